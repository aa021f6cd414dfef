"""The scalar functions behind the fp32 activations and the portable 16-bit conversions, against torch in float64.

Planted bugs that these checks caught: the last coefficient of the tail dropped, z * z left rounded, 65520 kept finite,
round-half-up in float_to_bf16.
"""

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

HERE = Path(__file__).parent
CSRC = HERE.parents[2] / "csrc"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("vector_math") / "vector_math"
    command = ["g++", "-std=c++17", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}"]
    subprocess.run([*command, str(HERE / "vector_math.cpp"), "-o", str(path)], check=True, timeout=120)

    def run(function, values, dtype):
        output = subprocess.run([path, function], input=values.tobytes(), capture_output=True, check=True, timeout=60)
        return np.frombuffer(output.stdout, dtype)

    return run


def floats(step):
    """Every `step`-th float32 bit pattern, both signs, infinities and NaNs among them."""
    bits = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32)
    extremes = np.array([0x7F800000, 0xFF800000, 0x7FC00000, 0x80000000, 1, 0x477FF000, 0x477FEFFF], np.uint32)
    return np.concatenate([bits, extremes]).view(np.float32)


EXACT = {
    "relu": lambda x: torch.where(x < 0, torch.zeros_like(x), x),
    "gelu": lambda x: x * 0.5 * torch.special.erfc(-x / 2**0.5),
    "gelu_tanh": lambda x: x * torch.special.expit(2 * (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)),
    "silu": lambda x: x * torch.special.expit(x),
}
# (relative error, down to this size of the result): the tail's argument is rounded, which exp multiplies by itself.
BOUNDS = {"relu": (0, 0), "gelu": (5e-7, 1e-36), "gelu_tanh": (3e-6, 1e-8), "silu": (4e-7, 1e-36)}


@pytest.mark.parametrize("function", EXACT)
def test_activation_is_accurate(program, function):
    x = floats(1009)
    out = torch.from_numpy(program(function, x, np.float32).copy()).double()
    exact = EXACT[function](torch.from_numpy(x.copy()).double())
    finite = torch.from_numpy(np.isfinite(x))
    assert out[finite].isfinite().all()
    assert out[np.isnan(x)].isnan().all()
    assert (out[x == np.inf] == torch.inf).all()
    at_minus_infinity = out[x == -np.inf]  # the limit, or -inf * 0
    assert (at_minus_infinity.isnan() | (at_minus_infinity == 0)).all()
    relative, floor = BOUNDS[function]
    error = (out - exact).abs()[finite]
    size = exact.abs()[finite]
    sized = size >= floor
    worst = (error[sized] / size[sized].clamp_min(1e-45)).max().item()
    print(f"{function}: largest relative error {worst:.2e}")
    assert worst <= relative
    assert not (~sized).any() or error[~sized].max().item() <= 1e-5 * floor


def test_widening_is_exact_for_every_value(program):
    bits = np.arange(65536, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        half = bits.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(program("half_to_float", bits, np.float32), half)
    bf16 = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(program("bf16_to_float", bits, np.float32).view(np.uint32), bf16.view(np.uint32))


@pytest.mark.parametrize("function, dtype", [("float_to_half", torch.float16), ("float_to_bf16", torch.bfloat16)])
def test_narrowing_rounds_to_nearest_even(program, function, dtype):
    # The neighbourhoods of every representable value and of every midpoint, and a sweep.
    wide = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype).float().numpy().view(np.uint32)
    midpoint = np.uint32(1 << (12 if dtype is torch.float16 else 15))
    near = [wide + np.uint32(offset) for offset in (0, 1, midpoint - 1, midpoint, midpoint + 1)]
    x = np.concatenate([*near, floats(4099).view(np.uint32)]).view(np.float32)
    out = torch.from_numpy(program(function, x, np.int16).copy()).view(dtype)
    expected = torch.from_numpy(x.copy()).to(dtype)
    assert torch.equal(out.isnan(), expected.isnan())
    numbers = ~expected.isnan()
    assert torch.equal(out[numbers].view(torch.int16), expected[numbers].view(torch.int16))

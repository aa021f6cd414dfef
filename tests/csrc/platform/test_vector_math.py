"""The scalar functions behind the fp32 activations and the portable 16-bit conversions, against torch in float64.

Planted bugs that these checks caught: the last coefficient of the tail dropped, z * z left rounded, 65520 kept finite,
round-half-up in float_to_bf16, `c ? a : b` in place of select, signalling NaNs kept, a reciprocal in logistic.
"""

import functools
import platform
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from torch_tiledmm.testing.reference import EXACT_ACTIVATIONS

HERE = Path(__file__).parent
CSRC = HERE.parents[2] / "csrc"
COMPILE = ["g++", "-std=c++17", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}"]
X86 = platform.machine() == "x86_64"
ISAS = ["PORTABLE", "AVX2", "AVX512"] if X86 else ["PORTABLE"]


@pytest.fixture(scope="module", params=ISAS)
def program(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("vector_math") / "vector_math"
    command = [*COMPILE, f"-DTILEDMM_ISA_{request.param}", str(HERE / "vector_math.cpp")]
    subprocess.run([*command, "-S", "-o", f"{path}.s"], check=True, timeout=120)
    subprocess.run(["g++", f"{path}.s", "-o", path], check=True, timeout=120)

    def run(function, values, dtype):
        done = subprocess.run([path, function], input=values.tobytes(), capture_output=True, timeout=60)
        if done.returncode == 2:
            pytest.skip(f"this CPU has no {request.param}")
        assert done.returncode == 0
        return np.frombuffer(done.stdout, dtype)

    run.assembly, run.isa = Path(f"{path}.s").read_text(), request.param
    return run


def floats(step):
    """Every `step`-th float32 bit pattern, both signs, infinities and NaNs among them."""
    bits = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32)
    extremes = np.array([0x7F800000, 0xFF800000, 0x7FC00000, 0x80000000, 1, 0x477FF000, 0x477FEFFF], np.uint32)
    return np.concatenate([bits, extremes]).view(np.float32)


# Between which arguments; the largest error there, in units of the exact result's last place, and where it is: with
# fused multiply-add and without. It was found by a look at every float from -0.25 to -16.
LIMITS = {
    "relu": [(-np.inf, np.inf, (0, 0), (-1.0, -1.0))],
    "gelu": [
        (-13.0, -1.0, (5.63, 6.39), (-1.8407317, -3.2513044)),
        (-1.0, 1.0, (2.91, 3.54), (-0.9991914, -0.9998609)),
    ],
    "gelu_tanh": [
        (-10.1, -5.0, (249.8, 249.8), (-9.8904247, -9.8904247)),
        (-5.0, -2.0, (46.9, 47.9), (-4.8942199, -4.8942199)),
        (-2.0, np.inf, (9.36, 9.36), (-1.8408726, -1.8408726)),
    ],
    "silu": [(-87.0, np.inf, (3.4, 3.4), (-5.9760861, -5.1886934))],
}


def last_place(x):
    """The value of float32's last place at the float64 values x."""
    return torch.from_numpy(np.spacing(np.abs(x.numpy()).astype(np.float32)).astype(np.float64))


@functools.cache
def exact_activation(function):
    """Arguments and what is exact: floats of all sizes, every 37th where errors are large, and all beside the worst."""
    bits = [np.arange(*np.array([0.25, 16], np.float32).view(np.uint32), 37, dtype=np.uint32)]
    for place in {place for *_, places in LIMITS[function] for place in places}:
        at = int(np.abs(np.float32(place)).view(np.uint32))
        bits.append(np.arange(max(at - 20_000, 0), at + 20_000, dtype=np.uint32))
    x = np.concatenate([floats(4001), *(part.view(np.float32) * np.float32(-1) for part in bits)])
    wide = torch.from_numpy(x).double()
    exact = EXACT_ACTIVATIONS[function](wide)
    return x, wide, exact, last_place(exact)


@pytest.mark.parametrize("function", LIMITS)
def test_activation_is_accurate(program, function):
    x, wide, exact, place = exact_activation(function)
    out = torch.from_numpy(program(function, x, np.float32).copy()).double()
    assert out[wide.isnan()].isnan().all()
    error = (out - exact).abs()
    finite = wide.isfinite()
    for lowest, highest, both, _ in LIMITS[function]:
        units = both[program.isa == "PORTABLE"]
        worst = (error / place)[finite & (wide > lowest) & (wide < highest)].max().item()
        print(f"{function} from {lowest} to {highest}: at most {worst:.3f} units in the last place")
        assert worst <= units
        assert worst >= 0.99 * units, "the limit is larger than it says"
    scaled = (error / last_place(wide))[finite].max().item()
    assert scaled <= 2


@pytest.mark.parametrize("function", LIMITS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_limits(program, function, dtype):
    x = np.array([np.inf, np.nan, -0.0, 0.0, -1e30, 1e30, -np.inf], dtype)
    out = program(function if dtype is np.float32 else f"fp64 {function}", x, dtype)
    zero = np.copysign(0.0, -1.0) if function != "relu" else 0.0
    np.testing.assert_array_equal(out[:6], np.array([np.inf, np.nan, -0.0, 0.0, zero, 1e30], dtype))
    assert np.signbit(out[:6][[2, 4]]).tolist() == [True, function != "relu"]
    assert out[6] == 0 if function == "relu" else np.isnan(out[6])  # -inf * 0, as in torch


@pytest.mark.parametrize("function", LIMITS)
def test_fp64_activation_is_accurate(program, function):
    x = np.linspace(-30, 30, 4001)
    exact = EXACT_ACTIVATIONS[function](torch.from_numpy(x)).numpy()
    # exp multiplies the relative rounding error of its argument, at most 2000 here, by that argument.
    np.testing.assert_allclose(program(f"fp64 {function}", x, np.float64), exact, rtol=1e-12, atol=1e-300)


@pytest.mark.skipif(not X86, reason="the names of instructions are those of x86-64")
def test_loops_become_vector_code(program):
    """The activations' loops: GCC falls back to scalar code without a word when it finds a branch in one."""
    assert "divps" in program.assembly
    for scalar in ("divss", "mulss", "fmadd132ss", "fmadd213ss", "fmadd231ss", "fmaf"):
        assert scalar not in program.assembly


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
    quiet = 0x200 if dtype is torch.float16 else 0x40
    assert (out[out.isnan()].view(torch.int16) & quiet).all()
    numbers = ~expected.isnan()
    assert torch.equal(out[numbers].view(torch.int16), expected[numbers].view(torch.int16))

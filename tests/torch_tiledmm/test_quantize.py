"""quantize_rows and quantize_blocks: the CPU's bits against a model in numpy, and those of the GPU's kernels, run by
the host executor, against the CPU's. The same on a GPU: test_gpu_quantize.py.

Planted bugs that these tests caught: the next segment's magnitudes in a scale; elements beyond k, rows beyond m; a lane
of a row that is left out; the first part of a transposed row, or the last one of a long row, for the whole; scales that
no tile stores; each barrier left out; ties away from zero; a conversion that does not saturate; the next power of two
too early; scales below the normal numbers; one over the scale for the factor.
"""

import ctypes
import itertools
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from compilers import CXX
from torch import Tensor

from torch_tiledmm import host_gpu, quantize_blocks, quantize_rows
from torch_tiledmm.dispatch import ACTIVATIONS
from torch_tiledmm.testing.reference import EXACT_ACTIVATIONS

OPS = torch.ops.tiledmm
CSRC = Path(__file__).parents[2] / "csrc"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
# csrc/core/problem.h
NUMBERS = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 3, FLOAT8[0]: 4, FLOAT8[1]: 5}
# What shares a scale: rows, elements of k.
BLOCKS = {"row": (1, None), "segment": (1, 128), "square": (128, 128)}
ODD_SIZES = ((1, 1), (3, 127), (130, 129), (5, 1000), (257, 300), (66, 640), (2, 16), (1, 8200))


def quantize(x: Tensor, block: str, **options) -> tuple[Tensor, Tensor]:
    if block == "row":
        return quantize_rows(x, **options)
    return quantize_blocks(x, block_rows=BLOCKS[block][0], **options)


# ---- The model
def numbers_of(dtype: torch.dtype) -> np.ndarray:
    """All finite numbers of a format from 0 on, in order, from the definition of its bits."""
    exponent_bits, mantissa_bits, bias, count = (4, 3, 7, 0x7F) if dtype == FLOAT8[0] else (5, 2, 15, 0x7C)
    assert 1 + exponent_bits + mantissa_bits == 8
    bits = np.arange(count)
    exponent, mantissa = bits >> mantissa_bits, bits & (1 << mantissa_bits) - 1
    fraction = mantissa / 2.0**mantissa_bits + (exponent > 0)
    return fraction * 2.0 ** (np.maximum(exponent, 1) - bias)


def to_float8(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Bits: the nearest number, of two the even one, of what is too large the largest; NaN as 0x7f."""
    numbers = numbers_of(dtype)
    sizes = np.minimum(np.abs(values), numbers[-1])
    above = np.searchsorted(numbers, np.nan_to_num(sizes))
    below = np.maximum(above - 1, 0)
    is_below = sizes - numbers[below] < numbers[above] - sizes
    is_tie = (sizes - numbers[below] == numbers[above] - sizes) & (below % 2 == 0)
    bits = np.where(is_below | is_tie, below, above) | np.signbit(values) << 7
    return np.where(np.isnan(values), 0x7F, bits).astype(np.uint8)


def expect(x: Tensor, block: str, dtype: torch.dtype, power_of_two: bool) -> tuple[np.ndarray, np.ndarray]:
    """q's bits and scales, block by block. Products and quotients of fp32 in fp64 are rounded to fp32 as by fp32's own
    operations (Figueroa, When is double rounding innocuous?, 1995)."""
    values = x.double().numpy()
    m, k = values.shape
    rows, cols = BLOCKS[block]
    cols = cols or max(k, 1)
    q, scale = np.empty((m, k), np.uint8), np.empty((-(-m // rows), 1 if block == "row" else -(-k // cols)), np.float32)
    most = float(numbers_of(dtype)[-1])
    for i, j in np.ndindex(scale.shape):
        own = slice(i * rows, (i + 1) * rows), slice(j * cols, (j + 1) * cols)
        largest = np.abs(values[own]).max(initial=0)
        if largest == 0:
            scale[i, j], factor = 1, 1.0
        elif not np.isfinite(largest):
            scale[i, j], factor = np.float32(largest), np.nan
        else:
            largest = max(largest, most * 2.0**-126)
            if power_of_two:
                exponent = next(e for e in range(-126, 128) if 2.0**e * most >= largest)
                scale[i, j], factor = 2.0**exponent, 2.0**-exponent
            else:
                scale[i, j], factor = np.float32(largest / most), float(np.float32(most / largest))
        with np.errstate(invalid="ignore"):
            q[own] = to_float8((values[own] * factor).astype(np.float32).astype(np.float64), dtype)
    return q, scale


def check(got: tuple[Tensor, Tensor], expected: tuple[np.ndarray, np.ndarray]) -> None:
    for own, model in zip((got[0].view(torch.uint8), got[1]), expected, strict=True):
        assert own.shape == model.shape
        np.testing.assert_array_equal(own.numpy(), model)  # NaN equals NaN


def same(got: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> None:
    assert torch.equal(got[0].view(torch.uint8), other[0].view(torch.uint8))
    assert got[1].shape == other[1].shape and torch.equal(got[1].view(torch.int32), other[1].view(torch.int32))


def operand(m: int, k: int, dtype: torch.dtype = torch.float32, how: str = "along") -> Tensor:
    """Rows of many sizes, some of whose elements become denormal; as it lies in memory: rows, columns, or with gaps."""
    x = (torch.randn(m, k) * 8.0 ** (torch.arange(m) % 5 - 2)[:, None] * 2.0 ** (-6 * torch.rand(m, k))).to(dtype)
    if how == "across":
        return x.mT.contiguous().mT
    if how == "odd":
        memory = torch.full((m, k + 3), torch.nan, dtype=dtype)
        memory[:, 1 : k + 1] = x
        return memory[:, 1 : k + 1]
    if how == "gaps":
        memory = torch.full((3 * m, 2 * k), torch.nan, dtype=dtype)
        memory[::3, ::2] = x
        return memory[::3, ::2]
    if how == "odd_across":
        memory = torch.full((k, m + 3), torch.nan, dtype=dtype)
        memory[:, 1 : m + 1] = x.mT
        return memory[:, 1 : m + 1].mT
    return x


LAYOUTS = ("along", "across", "odd", "odd_across", "gaps")


# ---- On the CPU
@pytest.mark.parametrize("power_of_two", (False, True))
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_bits_are_those_of_the_model(dtype, block, power_of_two):
    for (m, k), own, how in zip(ODD_SIZES, itertools.cycle(DTYPES), itertools.cycle(LAYOUTS), strict=False):
        x = operand(m, k, own, how)
        got = quantize(x, block, dtype=dtype, power_of_two=power_of_two)
        check(got, expect(x, block, dtype, power_of_two))
        assert got[0].stride() == (-(-k // 16) * 16, 1)
        assert got[1].stride() == ((1, m) if block == "segment" else (got[1].shape[1], 1))


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_every_rounding(dtype):
    """Of each number of 8 bits, what is halfway to the next one, and what lies beside; the scale is 1."""
    numbers = numbers_of(dtype)
    halves = (numbers[1:] + numbers[:-1]) / 2
    values = np.concatenate([numbers, halves]).astype(np.float32)
    values = np.concatenate(
        [values, np.nextafter(values, np.float32(0)), np.nextafter(values, np.float32(numbers[-1]))]
    )
    x = torch.from_numpy(np.concatenate([values, -values]))[None]
    for power_of_two in (False, True):
        q, scale = quantize_rows(x, dtype=dtype, power_of_two=power_of_two)
        assert scale.item() == 1
        check((q, scale), (to_float8(x.double().numpy(), dtype), np.ones((1, 1), np.float32)))
    finite = torch.arange(len(numbers), dtype=torch.uint8)
    assert torch.equal(q[0, : len(numbers)].view(torch.uint8), finite)  # the numbers themselves
    assert torch.equal(torch.from_numpy(numbers).float(), finite.view(dtype).float())  # which are torch's, too


PROBE = """#include "platform/float8.h"
extern "C" void convert(const float* from, unsigned char* to, long long count, int dtype) {
  for (long long i = 0; i < count; ++i) {
    to[i] = (unsigned char)tiledmm::float_to_float8(tiledmm::float8_of(tiledmm::DType(dtype)), from[i]);
  }
}
"""


def test_conversion_of_any_number(tmp_path):
    """By float8.h alone, beyond the largest number, too, where scaled elements never are: one float in 4000."""
    library = tmp_path / "probe.so"
    command = [*CXX, "-std=c++17", "-O1", "-fwrapv", "-ffp-contract=off", "-fPIC", "-shared", f"-I{CSRC}", "-x", "c++"]
    subprocess.run([*command, "-", "-o", library], input=PROBE, text=True, check=True)
    convert = ctypes.CDLL(str(library)).convert
    values = np.arange(0, 2**32, 4093, dtype=np.uint32).view(np.float32)
    values = np.concatenate([values, np.float32([448, 464, 465, 57344, 61440, 61441, np.inf, -np.inf, np.nan])])
    for dtype in FLOAT8:
        bits = np.empty(len(values), np.uint8)
        convert(values.ctypes.data_as(ctypes.c_void_p), bits.ctypes.data_as(ctypes.c_void_p),
                ctypes.c_longlong(len(values)), NUMBERS[dtype])  # fmt: skip
        with np.errstate(invalid="ignore"):  # of NaNs that signal
            np.testing.assert_array_equal(bits, to_float8(values.astype(np.float64), dtype))


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@pytest.mark.parametrize("block", BLOCKS)
def test_zeros_tiny_and_huge_numbers_and_those_that_are_none(block, dtype):
    for special in (
        0.0,
        -0.0,
        1e-45,
        3e-38,
        1e-36,
        3e38,
        torch.finfo(torch.float32).max,
        torch.inf,
        -torch.inf,
        torch.nan,
    ):
        for power_of_two in (False, True):
            x = torch.randn(4, 260) * (1 if abs(special) > 1 or special != special else abs(special))
            x[1, 130], x[2] = special, 0
            x[3, 5], x[3, 140] = -torch.nan, torch.inf
            got = quantize(x, block, dtype=dtype, power_of_two=power_of_two)
            check(got, expect(x, block, dtype, power_of_two))
    q, scale = quantize_rows(torch.tensor([[0.0, -0.0], [1.0, torch.nan], [-torch.inf, 1.0]]), dtype=dtype)
    assert q.view(torch.uint8).tolist() == [[0, 0x80], [0x7F, 0x7F], [0x7F, 0x7F]]
    assert scale[0] == 1 and scale[1].isnan() and scale[2] == torch.inf


def test_of_nothing():
    for m, k in ((0, 5), (5, 0), (0, 0)):
        q, scale = quantize_rows(torch.empty(m, k))
        assert q.shape == (m, k) and scale.shape == (m, 1) and (scale == 1).all()
        for rows in (1, 128):
            q, scale = quantize_blocks(torch.empty(m, k), block_rows=rows)
            assert q.shape == (m, k) and scale.shape == (-(-m // rows), -(-k // 128))


@pytest.mark.parametrize("block", BLOCKS)
def test_an_activation_comes_first(block):
    """Of numbers in fp32, and what it gives is not rounded."""
    for dtype, how in itertools.product(DTYPES, ("along", "across")):
        x = operand(130, 200, dtype, how)
        for activation in ACTIVATIONS[1:]:
            exact = EXACT_ACTIVATIONS[activation]
            activated = OPS.activate(x.float(), activation)
            assert (activated.double() - exact(x.double())).abs().max() < 1e-5 * (1 + x.abs().max())
            same(quantize(x, block, activation=activation), quantize(activated, block))


@pytest.mark.parametrize("how", ("along", "across"))
def test_a_row_s_bits_are_its_own(how):
    x = operand(300, 1111, torch.bfloat16, how)
    num_threads = torch.get_num_threads()
    for block in ("row", "segment"):
        q, scale = quantize(x, block)
        for rows in (slice(0, 1), slice(299, 300), slice(17, 50)):
            same(quantize(x[rows], block), (q[rows], scale[rows]))
            same(quantize(x[rows].contiguous(), block), (q[rows], scale[rows]))
        torch.set_num_threads(1)
        same(quantize(x, block), (q, scale))
        torch.set_num_threads(num_threads)
    for power_of_two in (False, True):
        close = quantize_rows(x, power_of_two=power_of_two)
        difference = (close[0].double() * close[1] - x.double()).abs()
        assert (difference <= x.double().abs() * 2**-4 + close[1] * 2**-10).all()


def test_columns_are_rows_of_the_transposed_view():
    w = torch.randn(200, 300)
    q, scale = (part.T for part in quantize_rows(w.T))
    assert q.shape == (200, 300) and scale.shape == (1, 300)
    assert ((q.float() * scale - w).abs() <= w.abs() * 2**-4 + scale * 2**-10).all()
    square, scales = quantize_blocks(w, block_rows=128)
    other, others = (part.T for part in quantize_blocks(w.T, block_rows=128))
    same((square, scales), (other, others))


def test_wrong_arguments():
    x = torch.randn(4, 5)
    with pytest.raises(TypeError, match="x has dtype Double; accepted are torch.float32"):
        quantize_rows(x.double())
    with pytest.raises(TypeError, match="x has dtype Float8"):
        quantize_rows(x.to(FLOAT8[0]))
    with pytest.raises(TypeError, match="dtype is BFloat16; accepted are torch.float8_e4m3fn and torch.float8_e5m2"):
        quantize_rows(x, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="block_rows is 64; accepted are 1 and 128"):
        quantize_blocks(x, block_rows=64)
    with pytest.raises(ValueError, match="activation 'tanh' is not known"):
        quantize_blocks(x, activation="tanh")
    with pytest.raises(RuntimeError, match="x has 3 dimensions"):
        quantize_rows(x[None])


# ---- As an operator
CALLS = ((OPS.quantize_rows.default, {}), (OPS.quantize_blocks.default, {"block_rows": 1}),
         (OPS.quantize_blocks.default, {"block_rows": 128}))  # fmt: skip


@pytest.mark.parametrize("op, options", CALLS)
def test_opcheck(op, options):
    for k in (5, 32):
        x = torch.randn(3, k, requires_grad=True)
        torch.library.opcheck(op, (x,), {"dtype": FLOAT8[0], **options})
        torch.library.opcheck(op, (x.detach().mT,), {"dtype": FLOAT8[1], "activation": "silu", **options})


def test_no_gradient_and_no_autocast():
    x = torch.randn(4, 40, requires_grad=True)
    plain = quantize_rows(x.detach())
    q, scale = quantize_rows(x)
    assert not q.requires_grad and not scale.requires_grad
    same((q, scale), plain)
    with torch.autocast("cpu", torch.bfloat16):
        same(quantize_rows(x), plain)
    with torch.inference_mode():
        same(quantize_rows(x), plain)


def test_compiles_in_one_graph():
    def dequantised(x):
        q, scale = quantize_rows(x, activation="relu")
        block, scales = quantize_blocks(x.mT, block_rows=128)
        return q.float() * scale, block.float(), scales

    compiled = torch.compile(dequantised, fullgraph=True, dynamic=True, backend="aot_eager")
    for m, k in ((3, 40), (5, 33), (130, 140)):
        x = torch.randn(m, k)
        for own, other in zip(compiled(x), dequantised(x), strict=True):
            assert torch.equal(own, other) and own.stride() == other.stride()


def test_vmap_and_meta():
    x = torch.randn(2, 5, 130)
    q, scale = torch.func.vmap(quantize_rows)(x)
    for item in range(2):
        same((q[item], scale[item]), quantize_rows(x[item]))
    q, scale = quantize_blocks(torch.empty(7, 130, device="meta"))
    assert q.shape == (7, 130) and q.stride() == (144, 1) and scale.stride() == (1, 7)


# ---- The GPU's kernels, by the host executor
class QuantizeProblem(ctypes.Structure):  # csrc/core/quantize.h
    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("dtype", "dtype_q", "block", "activation")],
        ("is_power_of_two", ctypes.c_bool),
        *[(name, ctypes.c_int64) for name in ("m", "k")],
        ("x", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("stride_m", "stride_k")],
        ("q", ctypes.c_void_p),
        ("stride_q", ctypes.c_int64),
        ("scale", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("stride_scale_m", "stride_scale_k")],
    ]


def by_gpu_kernel(
    x: Tensor, block: str, *, dtype=FLOAT8[0], power_of_two=False, activation="none", warp_size=32, seed=3, counts=None
) -> tuple[Tensor, Tensor]:
    """What is around q and scale must stay as it is."""
    m, k = x.shape
    pitch = -(-k // 16) * 16
    memory = torch.full((m + 2, pitch), 0x55, dtype=torch.uint8)
    q = memory[1:-1, :k]
    shape = {"row": (m, 1), "segment": (m, -(-k // 128)), "square": (-(-m // 128), -(-k // 128))}[block]
    scales = torch.full((shape[0] * shape[1] + 2,), -7.0)
    scale = scales[1:-1].view(shape) if block != "segment" else scales[1:-1].view(shape[::-1]).mT
    problem = QuantizeProblem(
        *(NUMBERS[x.dtype], NUMBERS[dtype], list(BLOCKS).index(block), ACTIVATIONS.index(activation), power_of_two),
        *(m, k, x.data_ptr(), *x.stride(), q.data_ptr(), pitch, scale.data_ptr(), *scale.stride()),
    )
    reason = ctypes.create_string_buffer(256)
    status = host_gpu._library(warp_size).tiledmm_host_quantize(
        ctypes.byref(problem), ctypes.c_uint64(seed), counts, reason, ctypes.c_size_t(len(reason))
    )
    assert status == 0, reason.value
    assert (memory[0] == 0x55).all() and (memory[-1] == 0x55).all() and (scales[[0, -1]] == -7).all()
    return q.view(dtype), scale


@pytest.mark.parametrize("warp_size", host_gpu.WARP_SIZES)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kernels_have_the_cpu_s_bits(dtype, block, warp_size):
    for seed, ((m, k), how) in enumerate(itertools.product(((1, 1), (130, 129), (5, 1000), (66, 640)), LAYOUTS)):
        x = operand(m, k, dtype, how)
        options = {"dtype": FLOAT8[seed % 2], "power_of_two": seed % 3 == 0, "activation": ACTIVATIONS[seed % 4 == 1]}
        same(by_gpu_kernel(x, block, warp_size=warp_size, seed=seed, **options), quantize(x, block, **options))


@pytest.mark.parametrize(
    "dtype, sizes", ((torch.float32, (513, 4100, 16400)), (torch.bfloat16, (1030, 8200, 32800))), ids=str
)
def test_every_kernel_of_rows(dtype, sizes):
    """A warp's, four warps', a block's, and one that reads them twice; of transposed views, several parts."""
    for k, how in itertools.product(sizes, ("along", "odd")):
        x = operand(2, k, dtype, how)
        x[1, k - 1] = 4000.0  # in the last element
        same(by_gpu_kernel(x, "row", seed=k), quantize_rows(x))
    x = operand(70, 40 * 128 + 3, dtype, "across")
    x[1, -1] = 4000.0
    same(by_gpu_kernel(x, "row", seed=5), quantize_rows(x))


@pytest.mark.parametrize("how", ("along", "across"))
def test_kernels_keep_what_is_no_number(how):
    for block, special in itertools.product(BLOCKS, (torch.nan, torch.inf, 1e-45, 0.0, 3e38)):
        x = operand(5, 300, torch.float32, how) * (1e-40 if special == 1e-45 else 1)
        x[1, 150], x[3] = special, 0
        same(by_gpu_kernel(x, block), quantize(x, block))
    assert (by_gpu_kernel(torch.empty(3, 0), "row")[1] == 1).all()


@pytest.mark.parametrize("block", BLOCKS)
def test_kernels_activate(block):
    """In 16 bits by the short functions of the epilogues: a number of 8 bits may be the next one."""
    for dtype, activation in itertools.product(DTYPES, ACTIVATIONS[1:]):
        for how in ("along", "across"):
            x = operand(20, 200, dtype, how)
            q, scale = by_gpu_kernel(x, block, activation=activation)
            own, own_scale = quantize(x, block, activation=activation)
            assert ((scale - own_scale).abs() <= own_scale * 2**-15).all()
            codes, own_codes = (part.view(torch.uint8).int() for part in (q, own))
            assert ((codes - own_codes).abs() <= 1).all() and (codes != own_codes).float().mean() < 0.01


def test_rows_are_read_once():
    counts = host_gpu._Counts()
    x = operand(8, 7168, torch.bfloat16)
    by_gpu_kernel(x, "row", counts=ctypes.byref(counts))
    assert counts.global_load_sectors * 32 == x.nbytes and counts.global_store_sectors * 32 == x.numel() + 8 * 32
    by_gpu_kernel(x, "segment", counts=ctypes.byref(counts))
    assert counts.global_load_sectors * 32 == x.nbytes
    by_gpu_kernel(operand(64, 512, torch.bfloat16, "across"), "segment", counts=ctypes.byref(counts))
    assert counts.global_load_sectors * 32 == 64 * 512 * 2

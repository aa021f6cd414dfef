"""Kernels that widen operands of 8 bits on their way to the product, on the host executor: rungs 01, 04 and 08, and
mma_async. Values of all recipes, bits, groups, every value of 8 bits, what explain says of all GPUs.

Planted bugs that these tests caught: e5m2 taken for e4m3; NaN of e4m3 that became 480; the factors of the block before;
the factor of a row for its column; one factor for both rows of a lane; a promotion left out; the first group's factors
for all; rows of no group multiplied by an infinite scale.
"""

import itertools

import pytest
import torch
from test_scaled import LAYOUTS, MIXES, OUT_DTYPES, RECIPES, operands
from test_scaled_grouped import operands as grouped_operands

import torch_tiledmm
from torch_tiledmm import host_gpu
from torch_tiledmm.dispatch import build_info, explain
from torch_tiledmm.testing.cases import assert_same_bits
from torch_tiledmm.testing.reference import ACTIVATIONS, assert_close, expect_scaled

KERNELS = [(name, warp) for name in ("naive", "register_tiled", "mma_output_cached") for warp in host_gpu.WARP_SIZES]
KERNELS += [("mma_async", 32)]
CHAIN = ("naive", "register_tiled")  # one order of summation
NUM_TILES = 3  # of mma_async
SIZES = ((1, 1, 1), (5, 33, 70), (3, 2, 0), (66, 130, 300), (17, 67, 129), (2, 257, 131))


def as_matrices(scale_a, scale_b):
    """The shapes that host_gpu takes."""
    scale_a = scale_a.reshape(-1, 1) if scale_a.dim() < 2 or scale_a.numel() == 1 else scale_a
    scale_b = scale_b.reshape(1, -1) if scale_b.dim() < 2 or scale_b.numel() == 1 else scale_b
    return scale_a, scale_b


def multiply(a, b, scale_a, scale_b, **options):
    """Where it may write and must not is NaN, and stays that."""
    shape, out_dtype = (a.shape[0], b.shape[-1]), options.pop("out_dtype", torch.bfloat16)
    memory = torch.full((shape[0] + 1, shape[1] + 3), torch.nan, dtype=out_dtype)
    out = host_gpu.scaled_matmul(a, b, *as_matrices(scale_a, scale_b), out=memory[1:, 1:-2], **options)
    assert memory[0].isnan().all() and memory[:, 0].isnan().all() and memory[:, -2:].isnan().all()
    return out


@pytest.mark.parametrize("mix", MIXES, ids=str)
@pytest.mark.parametrize("recipe", RECIPES)
def test_values(recipe, mix):
    """Kernels of one order agree to the bit. Operands lie along k, across, and among NaN."""
    number = list(RECIPES).index(recipe) + 7 * MIXES.index(mix)
    epilogues = list(itertools.product(OUT_DTYPES, ACTIVATIONS, (False, True)))
    layouts = list(itertools.product(LAYOUTS, repeat=2))
    for i in range(3):
        m, n, k = SIZES[(number + 2 * i) % len(SIZES)]
        out_dtype, activation, has_bias = epilogues[(number + 11 * i) % len(epilogues)]
        given = operands(recipe, m, n, k, mix, layouts[(number + i) % 9], LAYOUTS[(number + i) % 3])
        bias = torch.randn(n).to(out_dtype) if has_bias else None
        options = {"bias": bias, "activation": activation, "out_dtype": out_dtype}
        expected, of_chain = expect_scaled(*given, **options), []
        for name, warp_size in {*KERNELS[i % 2 :: 2], ("mma_async", 32)}:
            out = multiply(*given, algorithm=name, warp_size=warp_size, seed=number, **options)
            assert_close(out, expected)
            of_chain += [out] if name in CHAIN else []
        for out in of_chain:
            assert_same_bits(out, of_chain[0])


@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_every_value_of_8_bits(mix):
    """Exact products of all finite values with each other, infinities and NaN where torch has them."""
    bytes_ = torch.arange(256, dtype=torch.uint8)
    a, b = bytes_[:, None].view(mix[0]), bytes_[None].view(mix[1])
    expected = (0 + a.double() * b.double()).float()  # a sum has no negative zero
    for name, warp_size in KERNELS:
        if warp_size == 32:
            out = multiply(a, b, torch.ones(()), torch.ones(()), algorithm=name, out_dtype=torch.float32)
            assert_same_bits(out, expected)


@pytest.mark.parametrize("recipe", ["rows", "1x128 and 128x128", "1x128 and 1x128"])
def test_bits_of_a_row(recipe):
    """Of few rows those of many, by every tile, and with the roles of both operands exchanged (few columns)."""
    a, b, scale_a, scale_b = operands(recipe, 70, 40, 391, MIXES[1])
    options = {"bias": torch.randn(40).bfloat16(), "activation": "silu"}
    for name in ("register_tiled", "mma_output_cached", "mma_async"):
        whole = multiply(a, b, scale_a, scale_b, algorithm=name, **options)
        for rows in (slice(0, 1), slice(69, 70), slice(3, 12), slice(5, 38), slice(2, 67)):
            few = a[rows], b, scale_a[rows], scale_b
            assert_same_bits(multiply(*few, algorithm=name, **options), whole[rows])
    for plan in range(NUM_TILES):
        assert_same_bits(multiply(a, b, scale_a, scale_b, algorithm=f"mma_async:{plan}", **options), whole)


@pytest.mark.parametrize("recipe", ["tensors", "rows", "blocks"])
def test_groups(recipe):
    """A row has the bits of its group's product; rows behind the last group are 0, whatever they and their scales are,
    and b of an empty group is not looked at."""
    sizes, n, k = (5, 0, 70, 1, 4), 67, 200
    a, b, scale_a, scale_b, offs = grouped_operands(recipe, sizes, n, k, MIXES[1], ("N", "T"))
    scale_a, bias = scale_a.expand(80, -1).clone(), torch.randn(4, n).bfloat16()
    b.view(torch.uint8)[1], scale_b[1], bias[1] = 0x7F, torch.nan, torch.nan
    a.view(torch.uint8)[76:], scale_a[76:] = 0x7F, torch.inf
    for name, warp_size in KERNELS:
        options = {"algorithm": name, "warp_size": warp_size, "activation": "gelu"}
        out = multiply(a, b, scale_a, scale_b, offs=offs, bias=bias, **options)
        assert not out[76:].any()
        for group, (begin, end) in enumerate(itertools.pairwise([0, *offs.tolist()])):
            if begin < end:
                own = a[begin:end], b[group], scale_a[begin:end], scale_b[group]
                assert_same_bits(out[begin:end], multiply(*own, bias=bias[group], **options))
                assert_close(out[begin:end], expect_scaled(*own, bias=bias[group], activation="gelu"))


def test_every_gpu_has_a_kernel_and_explain_says_that_it_widens():
    chips = [f"{chip['device']}:{name}" for name, chip in build_info().chips.items() if name != "host"]
    for device, groups in itertools.product(chips, (0, 8)):
        for m, n, k in ((1, 1, 1), (1, 4096, 4096), (4096, 7168, 2048), (4, 3, 0)):
            answer = explain(m, n, k, "e5m2", b_dtype="e4m3", device=device, groups=groups)
            candidates = {own.algorithm: own for own in answer.candidates}
            on_nvidia = "wgmma_fp8" if device == "cuda:sm_90" and k else "mma_async"
            expected = on_nvidia + "_grouped" * bool(groups and "fp8" in on_nvidia)
            assert answer.choice == (expected if device.startswith("cuda") else "mma_output_cached"), answer
            for name, dtype in (("mma_async", "fp16"), ("mma_output_cached", "bf16"), ("naive", "fp32")):
                own = candidates[name]
                assert own.config.get("widened_to") == dtype or not own.legal and name == "mma_async", own
            assert "widened_to=fp16" in str(answer) or not device.startswith("cuda")
            assert "8 bits" in candidates["mma_cached"].reason
    entries = {(entry.name, entry.device): entry.dtypes for entry in torch_tiledmm.algorithms()}
    for entry in (("naive", "cuda"), ("register_tiled", "hip"), ("mma_output_cached", "hip"), ("mma_async", "cuda")):
        assert {"e4m3", "e5m2"} <= set(entries[entry])

"""Scaled products of groups of rows on a GPU: values, bits of a row by every tile, offsets that the host never sees.

Skipped without a GPU. The same on a CPU, and what is refused: test_scaled_grouped.py; Hopper's kernel is emulated in
tests/csrc/kernels/cuda.
"""

import itertools

import pytest
import torch
from test_scaled import E4M3, LAYOUTS, MIXES, OUT_DTYPES
from test_scaled_grouped import RECIPES, SIZES, check, multiply, of_groups, operands

import torch_tiledmm
from torch_tiledmm import scaled_matmul
from torch_tiledmm.testing.cases import assert_same_bits
from torch_tiledmm.testing.reference import ACTIVATIONS, expect_scaled

if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

IS_HOPPER = torch.version.hip is None and torch.cuda.get_device_capability() == (9, 0)
LARGE = ((300, 0, 1, 129, 64, 700, 5, 3), (0, 2049, 127, 0, 0), (1, 1, 2, 1, 1, 0, 3, 0))
NUM_TILES = {"rows": 6, "blocks": 5}  # of wgmma_fp8_grouped


@pytest.fixture(autouse=True)
def on_the_gpu():
    with torch.device("cuda"):
        yield


def check_on_gpu(given, **options):
    """The memory that the result may come to lie in holds NaN."""
    shape, out_dtype = (given[0].shape[0], given[1].shape[2]), options.get("out_dtype", torch.bfloat16)
    torch.full(shape, torch.nan, dtype=out_dtype)

    def expect(*own, algorithm="", **options):
        return expect_scaled(*own, **options, has_short_sums=IS_HOPPER)

    check(given, expect=expect, **options)


@pytest.mark.parametrize("mix", MIXES, ids=str)
@pytest.mark.parametrize("recipe", RECIPES)
def test_values(recipe, mix):
    epilogues = itertools.cycle(itertools.product(OUT_DTYPES, ACTIVATIONS, (None, *OUT_DTYPES)))
    layouts = itertools.cycle(itertools.product(LAYOUTS, repeat=3))
    for sizes, (n, k) in itertools.product(SIZES + LARGE, ((33, 70), (1, 1), (3, 0), (264, 300), (257, 1024))):
        out_dtype, activation, of_bias = next(epilogues)
        of_a, of_b, of_scales = next(layouts)
        given = operands(recipe, sizes, n, k, mix, (of_a, of_b), of_scales)
        bias = None if of_bias is None else torch.randn(len(sizes) - 1, n).to(of_bias)
        check_on_gpu(given, bias=bias, activation=activation, out_dtype=out_dtype)


def check_bits(given, bias=None, **options):
    """Of rows of a group those of the group's product, of all of its rows and of few."""
    out = multiply(*given, bias=bias, **options)
    options.pop("algorithm", None)
    for own, own_out, own_bias in of_groups(given, out, bias):
        if len(own_out) == 0:
            continue
        assert_same_bits(own_out, scaled_matmul(*own, bias=own_bias, **options))
        for rows in (slice(0, 1), slice(len(own_out) - 2, len(own_out))):
            scale_a = own[2] if own[2].numel() == 1 else own[2][rows]
            few = scaled_matmul(own[0][rows], own[1], scale_a, own[3], bias=own_bias, **options)
            assert_same_bits(own_out[rows], few)


@pytest.mark.parametrize("mix", MIXES, ids=str)
@pytest.mark.parametrize("recipe", RECIPES)
def test_bits_of_a_row_are_those_of_a_product(recipe, mix):
    for sizes, out_dtype, (n, k, layouts) in itertools.product(
        LARGE, OUT_DTYPES, ((264, 640, "NT"), (77, 391, "NN"), (2112, 1024, "TT"))
    ):
        given = operands(recipe, sizes, n, k, mix, layouts)
        bias = torch.randn(len(sizes) - 1, n).bfloat16()
        check_bits(given, bias, activation="silu", out_dtype=out_dtype)


@pytest.mark.parametrize("recipe", NUM_TILES)
def test_every_tile_on_hopper(recipe):
    if not IS_HOPPER:
        pytest.skip("wgmma_fp8_grouped is for Hopper")
    for plan, sizes, (n, k) in itertools.product(
        range(NUM_TILES[recipe]), LARGE, ((264, 640), (1408, 144), (65, 129), (512, 4096))
    ):
        check_bits(operands(recipe, sizes, n, k), algorithm=f"wgmma_fp8_grouped:{plan}")
    with pytest.raises(NotImplementedError):
        multiply(*operands(recipe, LARGE[0], 264, 640), algorithm=f"wgmma_fp8_grouped:{NUM_TILES[recipe]}")


@pytest.mark.parametrize("recipe", ["tensors", "rows", "blocks"])
@pytest.mark.parametrize("mix", MIXES[:2], ids=str)
def test_what_no_row_of_a_group_has_changes_nothing(recipe, mix):
    """NaN in rows of no group, in the b of empty groups, and in the scales of both."""
    a, b, scale_a, scale_b, offs = operands(recipe, (5, 0, 200, 0, 64, 7), 264, 300, mix)
    bias = torch.randn(5, 264)
    options = {"bias": bias, "activation": "gelu", "out_dtype": torch.float32}
    expected = multiply(a, b, scale_a, scale_b, offs, **options)
    assert not expected[269:].any()
    a.view(torch.uint8)[269:] = 0x7F
    if scale_a.numel() > 1:
        scale_a[269:] = torch.inf
    for group in (1, 3):
        b.view(torch.uint8)[group] = 0x7F
        scale_b[group] = torch.nan
        bias[group] = torch.nan
    assert_same_bits(multiply(a, b, scale_a, scale_b, offs, **options), expected)


@pytest.mark.parametrize("recipe", ["rows", "vectors", "blocks"])
def test_offsets_of_a_graph_are_those_of_its_replay(recipe):
    *given, offs = operands(recipe, LARGE[0], 264, 600)
    options = {"bias": torch.randn(7, 264), "activation": "gelu"}
    own = offs.clone()
    multiply(*given, own, **options)
    torch.cuda.set_sync_debug_mode("error")
    try:
        multiply(*given, own, **options)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = multiply(*given, own, **options)
    for step in (0, 7, 100, 5000):
        own.copy_((offs - step).clamp(0))
        for tensor, fresh in zip(given, operands(recipe, LARGE[0], 264, 600), strict=False):
            tensor.copy_(fresh)
        graph.replay()
        assert_same_bits(out, multiply(*given, own, **options))


@pytest.mark.parametrize("recipe", ["rows", "blocks"])
@pytest.mark.parametrize("ends", [(5, 2, 7), (-3, 4, 9), (2, 100, 7), (2**31 - 1, -(2**31), 0)])
def test_bad_offsets_stay_inside(ends, recipe):
    """For compute-sanitizer, too: no access leaves the operands, their scales and the result."""
    offs = torch.tensor(ends, dtype=torch.int32)
    for mix in MIXES:
        a, b, scale_a, scale_b, _ = operands(recipe, (8, 8, 8, 0), 264, 144, mix)
        memory = torch.full((3 * 24, 264), 7.0).bfloat16()
        for out_dtype in OUT_DTYPES:
            multiply(a, b, scale_a, scale_b, offs, out_dtype=out_dtype)
        assert (memory == 7).all()
    torch.cuda.synchronize()


def test_the_mode_has_the_kernel():
    if not IS_HOPPER:
        pytest.skip("wgmma_fp8_grouped is for Hopper")
    assert torch_tiledmm.explain(8192, 1408, 2048, E4M3, device="cuda", groups=64).choice == "wgmma_fp8_grouped"
    given = operands("vectors", (128, 0, 256, 64, 0), 256, 512)
    with torch_tiledmm.enabled():
        out = torch._scaled_grouped_mm(*given, out_dtype=torch.bfloat16)
        assert "wgmma_fp8_grouped" in str(torch_tiledmm.report())
    assert_same_bits(out, multiply(*given))

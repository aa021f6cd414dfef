"""Scaled products of operands of 8 bits on a GPU: values of all recipes and layouts, bits of a row, graphs.

Skipped without a GPU. The same on a CPU, and what is refused: test_scaled.py.
"""

import itertools

import pytest
import torch
from test_scaled import E4M3, LAYOUTS, MIXES, OUT_DTYPES, RECIPES, laid_out, operands

import torch_tiledmm
from torch_tiledmm import scaled_matmul
from torch_tiledmm.testing.cases import assert_same_bits
from torch_tiledmm.testing.reference import ACTIVATIONS, assert_close, expect_scaled

if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

# Kernels that widen 8 bits on their way to the product.
WIDENING = ("naive", "register_tiled", "mma_output_cached", *(() if torch.version.hip else ("mma_async",)))
IS_HOPPER = torch.version.hip is None and torch.cuda.get_device_capability() == (9, 0)
SIZES = ((1, 1, 1), (5, 33, 70), (130, 264, 300), (3, 2, 0), (64, 256, 1024), (257, 129, 513), (1, 7168, 2048))


@pytest.fixture(autouse=True)
def on_the_gpu():
    with torch.device("cuda"):
        yield


def check(given, algorithm="auto", **options):
    m, n = given[0].shape[0], given[1].shape[1]
    torch.full((m, n), torch.nan, dtype=options.get("out_dtype", torch.bfloat16))  # where the result may come to lie
    out = scaled_matmul(*given, **options, algorithm=algorithm)
    assert_close(out, expect_scaled(*given, **options, has_short_sums=IS_HOPPER and algorithm == "auto"))


@pytest.mark.parametrize("mix", MIXES, ids=str)
@pytest.mark.parametrize("recipe", RECIPES)
def test_values(recipe, mix):
    epilogues = itertools.cycle(itertools.product(OUT_DTYPES, ACTIVATIONS, (None, *OUT_DTYPES)))
    number = itertools.count()
    for (m, n, k), layouts in itertools.product(SIZES, itertools.product(LAYOUTS, repeat=2)):
        out_dtype, activation, of_bias = next(epilogues)
        given = operands(recipe, m, n, k, mix, layouts, LAYOUTS[next(number) % 3])
        bias = None if of_bias is None else laid_out(torch.randn(n).to(of_bias), layouts[0])
        check(given, bias=bias, activation=activation, out_dtype=out_dtype)


@pytest.mark.parametrize("recipe", ["tensor", "rows", "1x128 and 128x128"])
@pytest.mark.parametrize("data", ["uniform", "outliers", "long"])
def test_other_data(data, recipe):
    m, n, k = (70, 136, 32768 + 77) if data == "long" else (200, 264, 2048)
    given = operands(recipe, m, n, k)
    if data == "uniform":  # of one sign: the errors of sums do not cancel
        given = (*(torch.rand(own.shape).to(E4M3) for own in given[:2]), *given[2:])
    if data == "outliers":
        for own in given[:2]:
            own.view(torch.uint8)[torch.rand(own.shape) < 0.001] = 0x7E  # 448
    check(given, out_dtype=torch.float32)


@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_every_value_of_8_bits(mix):
    bytes_ = torch.arange(256, dtype=torch.uint8)
    a, b = bytes_[:, None].view(mix[0]), bytes_[None].view(mix[1])
    for algorithm in ("auto", *WIDENING):
        out = scaled_matmul(a, b, torch.ones(()), torch.ones(()), out_dtype=torch.float32, algorithm=algorithm)
        assert_same_bits(out, (0 + a.double() * b.double()).float())


@pytest.mark.parametrize("recipe", RECIPES)
def test_bits_of_a_row(recipe):
    """Of few rows, by whatever plan and with the roles of both operands exchanged, those of many."""
    m, step = 300, 1
    for n, k, layouts in ((264, 640, "NT"), (77, 391, "NN"), (2112, 1024, "TT"), (256, 8192, "NT")):
        a, b, scale_a, scale_b = operands(recipe, m, n, k, MIXES[1], layouts)
        if recipe.startswith("128x128"):
            scale_a[1:] = scale_a[:1]  # so that a row has its scale at any place
        options = {"bias": torch.randn(n).bfloat16(), "activation": "silu"}
        whole = scaled_matmul(a, b, scale_a, scale_b, **options)
        for rows in (1, 2, 3, 7, 8, 9, 16, 31, 64, 65, 127, 128, 129, 200, 256) if n > 264 else range(1, m + 1, step):
            begin = (rows * 7) % (m - rows + 1)
            own = slice(begin, begin + rows)
            blocks_of_own = (rows + 127) // 128
            scale = scale_a if scale_a.numel() == 1 else (
                scale_a[:blocks_of_own] if recipe.startswith("128x128") else scale_a[own]
            )  # fmt: skip
            assert_same_bits(scaled_matmul(a[own], b, scale, scale_b, **options), whole[own])
        # The transposed product exchanges the operands.
        if recipe in ("tensor", "rows", "vectors", "tensor and rows", "rows and tensor"):
            turned = [scale.mT if scale.dim() == 2 else scale for scale in (scale_b, scale_a)]
            exchanged = scaled_matmul(b.mT, a.mT, *turned, out_dtype=torch.float32)
            check((b.mT, a.mT, *turned), out_dtype=torch.float32)
            assert exchanged.shape == (n, m)


@pytest.mark.parametrize("algorithm", WIDENING)
@pytest.mark.parametrize("recipe", RECIPES)
def test_kernels_that_widen(recipe, algorithm):
    """By name, also where auto has others: values of all mixes and layouts, and the bits of a row by each plan."""
    number = itertools.count()
    for (m, n, k), mix in itertools.product((*SIZES, (300, 520, 4096)), MIXES):
        layouts = LAYOUTS[next(number) % 3], LAYOUTS[next(number) // 3 % 3]
        given = operands(recipe, m, n, k, mix, layouts)
        check(given, algorithm=algorithm, out_dtype=OUT_DTYPES[next(number) % 3], activation="silu")
    num_plans = 3 if algorithm == "mma_async" else 1
    for n, k, layouts in ((264, 640, "NT"), (77, 391, "NN"), (2112, 1024, "TT")):
        a, b, scale_a, scale_b = operands(recipe, 300, n, k, MIXES[1], layouts)
        if recipe.startswith("128x128"):
            scale_a[1:] = scale_a[:1]  # so that a row has its scale at any place
        whole = scaled_matmul(a, b, scale_a, scale_b, algorithm=algorithm)
        for plan, rows in itertools.product(range(num_plans), (1, 2, 16, 17, 65, 128, 129, 300)):
            own = slice(300 - rows, 300)
            scale = scale_a if scale_a.numel() == 1 else (
                scale_a[: (rows + 127) // 128] if recipe.startswith("128x128") else scale_a[own]
            )  # fmt: skip
            out = scaled_matmul(a[own], b, scale, scale_b, algorithm=f"{algorithm}:{plan}")
            assert_same_bits(out, whole[own])


@pytest.mark.parametrize("recipe", RECIPES)
def test_graphs_and_the_host_does_not_wait(recipe):
    given = operands(recipe, 70, 264, 600)
    bias = torch.randn(264)
    options = {"bias": bias, "activation": "gelu"}
    scaled_matmul(*given, **options)
    torch.cuda.set_sync_debug_mode("error")
    try:
        scaled_matmul(*given, **options)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = scaled_matmul(*given, **options)
    for _ in range(3):
        for tensor, fresh in zip(given, operands(recipe, 70, 264, 600), strict=True):
            tensor.copy_(fresh.reshape(tensor.shape))
        graph.replay()
        assert_same_bits(out, scaled_matmul(*given, **options))


# ---- 8 bits on one side: _weight_only

WEIGHT_ONLY = torch.ops.tiledmm._weight_only.default
# m, n, k: one chunk; chunks side by side and one after the other; rows of C that no vector stores; many tiles.
WEIGHT_SIZES = ((1, 4096, 4096), (13, 28672, 512), (64, 2112, 7168), (100, 250, 2064), (300, 1032, 4112), (70, 33, 16))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_weight_only_has_one_order_of_summation(dtype):
    """By all plans of wgmma_fp8_b the bits of skinny, which has 64 rows at a time, and of the widened weight."""
    if not IS_HOPPER:
        pytest.skip("wgmma_fp8_b is for Hopper")
    epilogues = itertools.cycle(itertools.product(OUT_DTYPES, ACTIVATIONS, (False, True)))
    for m, n, k in WEIGHT_SIZES:
        out_dtype, activation, has_bias = next(epilogues)
        x, q = torch.randn(m, k).to(dtype), torch.randn(n, k).to(E4M3)
        given = q, torch.rand(n, 1) * k**-0.5, torch.randn(n).to(out_dtype) if has_bias else None
        options = {"out_dtype": out_dtype, "activation": activation}
        rows = [WEIGHT_ONLY(part, *given, **options, algorithm="skinny") for part in x.split(64)]
        expected = torch.cat(rows)
        assert_same_bits(WEIGHT_ONLY(x, *given, **options), expected, m, n, k)
        assert_same_bits(WEIGHT_ONLY(x, *given, **options, algorithm="mma_async"), expected, m, n, k)
        plans = torch_tiledmm.explain(m, n, k, dtype, b_dtype=E4M3, device="cuda", plans_of="wgmma_fp8_b").candidates
        assert len(plans) > 10
        for plan in plans:
            torch.full((m, n), torch.nan, dtype=out_dtype)  # where the result may come to lie
            found = WEIGHT_ONLY(x, *given, **options, algorithm=plan.algorithm)
            assert_same_bits(found, expected, m, n, k, plan.algorithm, plan.config)


def test_weight_only_has_every_number():
    if not IS_HOPPER:
        pytest.skip("wgmma_fp8_b is for Hopper")
    numbers = torch.arange(256).to(torch.uint8).view(E4M3)
    q = torch.zeros(256, 16).to(E4M3)
    q[torch.arange(256), torch.arange(256) // 16] = numbers
    for dtype in (torch.bfloat16, torch.float16):
        options = {"out_dtype": torch.float32, "algorithm": "wgmma_fp8_b"}
        found = WEIGHT_ONLY(torch.ones(130, 16, dtype=dtype), q, torch.ones(256, 1), None, **options)
        torch.testing.assert_close(found, numbers.float().expand(130, 256), rtol=0, atol=0, equal_nan=True)


def test_explain_and_the_mode_have_the_kernel():
    if not IS_HOPPER:
        pytest.skip("wgmma_fp8 is for Hopper")
    assert torch_tiledmm.explain(4096, 7168, 2048, "e4m3", device="cuda").choice == "wgmma_fp8"
    entry = next(entry for entry in torch_tiledmm.algorithms("cuda") if entry.name == "wgmma_fp8")
    assert entry.dtypes == ("e4m3", "e5m2")
    for recipe in ("tensor", "rows"):
        given = operands(recipe, 64, 256, 512)
        with torch_tiledmm.enabled():
            out = torch._scaled_mm(*given, out_dtype=torch.bfloat16)
            assert "wgmma_fp8" in str(torch_tiledmm.report())
        assert_same_bits(out, scaled_matmul(*given))

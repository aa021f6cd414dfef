"""Groups and gated layers on a GPU: values and bits by every kernel that takes them, offsets that the host never sees.

Skipped without a GPU. The same on a CPU: test_grouped.py, test_gated.py; Hopper's kernel is emulated in
tests/csrc/kernels/cuda. A bug that these tests caught: a bias of one element read with the step of the other bias.
"""

import itertools

import pytest
import torch
from test_gated import check_that_a_gradient_changes_no_bit
from test_grouped import DTYPES, FORMS, SIZES, behind, operands, products, random

import torch_tiledmm
from torch_tiledmm import gated_grouped_matmul, gated_linear, grouped_matmul, linear, matmul
from torch_tiledmm.testing import fuzz_layers
from torch_tiledmm.testing.cases import assert_same_bits
from torch_tiledmm.testing.reference import assert_close, expect_linear

if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

OPS = torch.ops.tiledmm
GATES = ("silu", "gelu", "gelu_tanh", "relu")
IS_HOPPER = torch.version.hip is None and torch.cuda.get_device_capability() == (9, 0)
LARGE = ((300, 0, 1, 129, 64, 700, 5, 3), (0, 2049, 127, 0, 0), (1, 1, 2, 1, 1, 0, 3, 0))


@pytest.fixture(autouse=True)
def on_the_gpu():
    with torch.device("cuda"):
        yield


def poison(*shapes, dtype):
    """The memory of results to come holds NaN."""
    for shape in shapes:
        torch.full(shape, torch.nan, dtype=dtype)


def check_groups(a, b, offs, out, bias=None, activation="none"):
    for group, (own_a, own_b, own_out) in enumerate(products(a, b, offs, out)):
        own_bias = None if bias is None else bias[group]
        assert_close(own_out, expect_linear(own_a, own_b.mT, own_bias, activation))
    assert not behind(a, b, offs, out).any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values(dtype, form):
    for sizes, (m, n, k) in itertools.product(SIZES + LARGE, ((5, 33, 70), (136, 264, 200), (1, 1, 1), (4, 3, 0))):
        a, b, offs = operands(form, sizes, m, n, k, dtype, is_strided=len(sizes) == 4)
        bias = None if form == "columns" else random(len(sizes) - 1, n, dtype=dtype)
        for added, activation in ((None, "none"), (bias, "silu")):
            poison((sum(sizes), n), (len(sizes) - 1, m, n), dtype=dtype)
            out = grouped_matmul(a, b, offs=offs, bias=added, activation=activation)
            check_groups(a, b, offs, out, added, activation)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("plan", range(5))
def test_every_tile_on_hopper(dtype, plan):
    if not IS_HOPPER:
        pytest.skip("wgmma_grouped is for Hopper")
    options = {"algorithm": f"wgmma_grouped:{plan}"}
    for sizes, is_along_n, (n, k) in itertools.product(LARGE, (False, True), ((264, 200), (1408, 72), (65, 129))):
        a, b, offs = operands("rows", sizes, 0, n, k, dtype)
        b = b.mT.contiguous().mT if not is_along_n else b
        poison((sum(sizes), n), dtype=dtype)
        check_groups(a, b, offs, grouped_matmul(a, b, offs=offs, **options))
        bits = grouped_matmul(a, b, offs=offs)
        assert_same_bits(grouped_matmul(a, b, offs=offs, **options), bits)
        if plan < 2:
            a, b, offs = operands("k", sizes, n, k, 0, dtype)
            poison((len(sizes) - 1, n, k), dtype=dtype)
            check_groups(a.mT.contiguous().mT, b, offs, grouped_matmul(a.mT.contiguous().mT, b, offs=offs, **options))


@pytest.mark.parametrize("plan", range(2))
def test_every_tile_of_simt_pipelined(plan):
    if torch.version.hip:
        pytest.skip("simt_pipelined is for NVIDIA's chips")
    options = {"algorithm": f"simt_pipelined:{plan}"}
    for sizes, is_along_n, (n, k) in itertools.product(LARGE, (False, True), ((264, 200), (65, 1029))):
        a, b, offs = operands("rows", sizes, 0, n, k, torch.float32)
        b = b.mT.contiguous().mT if not is_along_n else b
        poison((sum(sizes), n), dtype=torch.float32)
        check_groups(a, b, offs, grouped_matmul(a, b, offs=offs, **options))
        a, b, offs = operands("k", sizes, n, 264, 0, torch.float32)
        a = a.mT.contiguous().mT if is_along_n else a
        poison((len(sizes) - 1, n, 264), dtype=torch.float32)
        out = grouped_matmul(a, b, offs=offs, **options)
        check_groups(a, b, offs, out)
        for own_a, own_b, own_out in products(a, b, offs, out):
            assert_same_bits(own_out, matmul(own_a, own_b, algorithm="simt_pipelined"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_bits_of_a_row_are_those_of_a_product(dtype):
    if torch.version.hip or not (IS_HOPPER or dtype == torch.float32):
        pytest.skip("other chips have them by the same kernel alone")
    for sizes, n, k in (
        ((600, 1, 0, 210, 40, 9), 515, 1100),
        ((1, 2, 1, 0), 2100, 1601),
        ((300, 3, 0), 256, 8192),  # chunks of k
        ((5, 200, 30, 3), 1408, 7168),
    ):
        a, b, offs = operands("rows", sizes, 0, n, k, dtype)
        b = b.mT.contiguous().mT
        bias = torch.randn(len(sizes) - 1, n).to(dtype)
        out = grouped_matmul(a, b, offs=offs, bias=bias, activation="gelu")
        gated = gated_grouped_matmul(a, b, b.flip(0), offs=offs, gate_bias=bias, up_bias=bias.flip(0))
        for group, (own_a, own_b, own_out) in enumerate(products(a, b, offs, out)):
            for rows in (slice(0, 1), slice(len(own_a) - 2, len(own_a)), slice(None)):
                assert_same_bits(own_out[rows], linear(own_a[rows], own_b.mT, bias[group], activation="gelu"))
            (_, own_up, _) = list(products(a, b.flip(0), offs, gated))[group]
            own_gated = list(products(a, b, offs, gated))[group][2]
            biases = bias[group], bias.flip(0)[group]
            assert_same_bits(own_gated[-1:], gated_linear(own_a[-1:], own_b.mT, own_up.mT, *biases))


@pytest.mark.parametrize("activation", GATES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gated_layers_have_the_bits_of_separate_calls(dtype, activation):
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    for m, n, k in ((1, 264, 320), (70, 1408, 200), (300, 264, 1000), (5, 33, 70), (130, 256, 8192)):
        x, gate, up = torch.randn(m, k).to(dtype), *(torch.randn(2, n, k) * k**-0.5).to(dtype)
        poison((m, n), dtype=dtype)
        out = gated_linear(x, gate, up, activation=activation)
        sums = linear(x, gate, out_dtype=wide), linear(x, up, out_dtype=wide)
        assert_same_bits(out, OPS.gated(*sums, activation=activation, out_dtype=dtype))
        assert_same_bits(gated_linear(x[-1:], gate, up, activation=activation), out[-1:])
        woven = torch.stack([gate, up], 1).flatten(0, 1)
        assert_same_bits(gated_linear(x, woven[::2], woven[1::2], activation=activation), out)
        assert_same_bits(gated_linear(x, torch.cat([gate, up]), activation=activation), out)
        batch = gated_linear(x.expand(2, m, k), gate, up, activation=activation)
        assert_same_bits(batch[1], out)
        vector = gated_linear(x, gate[0], up[0], activation=activation)
        assert_same_bits(vector, gated_linear(x, gate[:1], up[:1], activation=activation)[:, 0])
        gate_bias, up_bias = torch.randn(n, 2).to(dtype).contiguous().mT
        both = (gate_bias, up_bias), (gate_bias[:1], up_bias), (gate_bias, up_bias[:1])
        for biases in (*both, (None, up_bias), (gate_bias, None)):
            out = gated_linear(x, gate, up, *biases, activation=activation)
            sums = (linear(x, *own, out_dtype=wide) for own in zip((gate, up), biases, strict=True))
            assert_same_bits(out, OPS.gated(*sums, activation=activation, out_dtype=dtype))
            assert_same_bits(gated_linear(x[-1:], gate, up, *biases, activation=activation), out[-1:])


@pytest.mark.parametrize("activation", GATES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_gradient_changes_no_bit(dtype, activation):
    """Few rows and many, operands that the copy engine takes and others, several chunks of k. These are as long for 2 n
    columns as for n: a weight that holds both is multiplied in halves, and compared with one product."""
    for m, n, k in ((9, 33, 70), (1, 264, 320), (1300, 1416, 200), (130, 64, 8192), (3, 4, 0)):
        check_that_a_gradient_changes_no_bit(m, n, k, dtype, activation)


@pytest.mark.parametrize("seed", range(4))
def test_operands_and_biases_of_any_layout(seed):
    with torch.device("cpu"):  # which the operands come from
        for number in range(100):
            fuzz_layers.check_layer(fuzz_layers.draw_layer(seed, number), "cuda")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_offsets_of_a_graph_are_those_of_its_replay(dtype):
    x, weights, offs = operands("rows", LARGE[0], 0, 264, 200, dtype)
    given = offs.clone()
    gated_grouped_matmul(x, weights, offs=given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, gated = grouped_matmul(x, weights, offs=given), gated_grouped_matmul(x, weights, offs=given)
        sums = grouped_matmul(x.mT, out, offs=given)
    for step in (0, 7, 100):
        given.copy_((offs - step).clamp(0))
        graph.replay()
        assert_same_bits(out, grouped_matmul(x, weights, offs=given))
        assert_same_bits(gated, gated_grouped_matmul(x, weights, offs=given))
        assert_same_bits(sums, grouped_matmul(x.mT, out, offs=given))


def test_the_host_does_not_wait():
    x, weights, offs = operands("rows", LARGE[0], 0, 264, 200, torch.bfloat16)
    x.requires_grad_(), weights.requires_grad_()
    torch.cuda.set_sync_debug_mode("error")
    try:
        gated_grouped_matmul(x, weights, offs=offs).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("ends", [(5, 2, 7), (-3, 4, 9), (2, 100, 7), (2**31 - 1, -(2**31), 0)])
def test_bad_offsets_stay_inside(ends):
    """What lies around the operands is NaN, and does not reach the result."""
    offs = torch.tensor(ends, dtype=torch.int32)
    for dtype in DTYPES:
        a, b, _ = operands("rows", (300, 300, 300, 0), 0, 264, 72, dtype)
        assert torch.isfinite(grouped_matmul(a[100:108], b, offs=offs).nan_to_num(0.0)).all()
        memory = torch.full((3 * 16, 264), torch.nan, dtype=dtype)
        memory[16:32] = torch.randn(16, 264)
        left = torch.full((48, 136), torch.nan, dtype=dtype)
        left[16:32] = torch.randn(16, 136)
        assert torch.isfinite(grouped_matmul(left[16:32].mT, memory[16:32], offs=offs)).all()
    torch.cuda.synchronize()


def test_gradients():
    x, weights, offs = operands("rows", LARGE[0], 0, 264, 200, torch.bfloat16)
    grads = []
    for own in (torch.bfloat16, torch.float64):
        given = [x.detach().to(own).requires_grad_(), weights.detach().to(own).requires_grad_()]
        out = gated_grouped_matmul(*given, offs=offs)
        out.backward(torch.ones_like(out))
        grads.append([tensor.grad.double() for tensor in given])
    for found, exactly in zip(*grads, strict=True):
        assert (found - exactly).norm() / exactly.norm() < 2**-7


def test_explain_and_the_mode_have_the_kernel():
    if not IS_HOPPER:
        pytest.skip("wgmma_grouped is for Hopper")
    explained = torch_tiledmm.explain(8192, 1408, 2048, "bf16", layout="NT", device="cuda", groups=64)
    assert explained.choice == "wgmma_grouped"
    assert torch_tiledmm.explain(8192, 1408, 2048, "fp32", device="cuda", groups=64).choice == "simt_pipelined"
    x, weights, offs = operands("rows", LARGE[0], 0, 264, 200, torch.bfloat16)
    with torch_tiledmm.enabled():
        assert_same_bits(torch._grouped_mm(x, weights, offs), grouped_matmul(x, weights, offs=offs))
        assert "wgmma_grouped" in str(torch_tiledmm.report())

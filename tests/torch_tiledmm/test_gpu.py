"""The operators on CUDA tensors (which are ROCm's, too): every rung, every dtype, and torch's ways of calling them.

Skipped without a GPU. What the same kernels do on the host executor: tests/csrc/kernels/gpu.
"""

import itertools
import math
import os
import re

import pytest
import torch
import torch.nn.functional as F
from torch.library import opcheck

import torch_tiledmm
from torch_tiledmm import TiledLinear, addmm, linear, matmul
from torch_tiledmm.dispatch import DTYPES as DTYPE_NAMES
from torch_tiledmm.testing.reference import ACTIVATIONS, assert_close, expect_addmm, expect_linear, expect_matmul
from torch_tiledmm.testing.timing import matmul_precision

if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

OPS = torch.ops.tiledmm
DTYPES = tuple(DTYPE_NAMES.values())
# ROCm calls gfx90a (9, 0), too.
IS_HOPPER = torch.version.hip is None and torch.cuda.get_device_capability() == (9, 0)
SHAPES = [
    (1, 1, 1),
    (5, 3, 0),
    (0, 4, 7),
    (33, 47, 29),
    (65, 130, 70),
    (129, 127, 257),
    (300, 1, 65),
    (1, 515, 66),
    (300, 264, 128),
]


def rand(*shape, dtype=torch.float32):
    return (torch.rand(shape, dtype=torch.float64, device="cuda") * 2 - 1).to(dtype)


def operand(rows, cols, dtype, is_transposed=False, margin=0):
    """A matrix within a larger one, so that its leading dimension is not its size."""
    if is_transposed:
        return operand(cols, rows, dtype, margin=margin).mT
    base = torch.full((rows, cols + margin), torch.nan, dtype=dtype, device="cuda")
    base[:, :cols] = rand(rows, cols, dtype=dtype)
    return base[:, :cols]


def refusal(algorithm, dtype, m=8, n=8, k=64):
    """Why the kernel refuses such a product of whole matrices on this GPU; empty if it does not."""
    candidates = torch_tiledmm.explain(m, n, k, dtype, device="cuda").candidates
    return next((c.reason for c in candidates if c.algorithm == algorithm), "")


def serves(algorithm, dtype):
    return not refusal(algorithm, dtype)


# What this build and this GPU have, and of these what needs the permission for tf32. Without wgmma_single, which alone
# refuses operands by their strides.
with matmul_precision("tf32"):
    RUNGS = [
        entry.name
        for entry in torch_tiledmm.algorithms("cuda")
        if entry.order and entry.name != "wgmma_single" and any(serves(entry.name, dtype) for dtype in DTYPES)
    ]
    TF32_RUNGS = [name for name in RUNGS if serves(name, torch.float32)]
TF32_RUNGS = [name for name in TF32_RUNGS if not serves(name, torch.float32)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("algorithm", ["auto", "native", *RUNGS])
def test_every_rung_in_every_layout(algorithm, dtype):
    if reason := refusal(algorithm, dtype):
        with pytest.raises(NotImplementedError, match=f"{algorithm}.*{re.escape(reason)}"):
            matmul(rand(3, 4, dtype=dtype), rand(4, 5, dtype=dtype), algorithm=algorithm)
        return
    for m, n, k in SHAPES:
        if reason := refusal(algorithm, dtype, m, n, k):
            with pytest.raises(NotImplementedError, match=f"{algorithm}.*{re.escape(reason)}"):
                matmul(rand(m, k, dtype=dtype), rand(k, n, dtype=dtype), algorithm=algorithm)
            continue
        for layout in ("NN", "NT", "TN", "TT"):
            for margin in (0, 3, 8):  # 8: aligned, but wider than the matrix
                a = operand(m, k, dtype, layout[0] == "T", margin)
                b = operand(k, n, dtype, layout[1] == "T", margin)
                out = operand(m, n, dtype, margin=margin).fill_(torch.nan)
                OPS.matmul_out(a, b, out, algorithm=algorithm)
                assert_close(out, expect_matmul(a, b))
    m = 7 if refusal(algorithm, dtype, 35, 41, 30) else 35
    a, b = rand(2 * m, 90, dtype=dtype)[::2, ::3], rand(60, 41, dtype=dtype)[::2, ::1]
    assert_close(matmul(a, b, algorithm=algorithm), expect_matmul(a, b))  # no stride is 1
    out = torch.full((41, m), torch.nan, dtype=dtype, device="cuda").mT
    OPS.matmul_out(a, b, out, algorithm=algorithm)
    assert_close(out, expect_matmul(a, b))


@pytest.mark.parametrize("algorithm", TF32_RUNGS)
def test_tf32_where_it_is_allowed(algorithm):
    a, b = operand(129, 300, torch.float32, margin=4), operand(300, 70, torch.float32, is_transposed=True)
    with matmul_precision("tf32"):
        out = matmul(a, b, algorithm=algorithm)
    a64, b64 = a.double(), b.double()
    bound = (2 * 2**-11 + 302 * 2**-23) * (a64.abs() @ b64.abs())
    difference = (out.double() - a64 @ b64).abs()
    assert (difference <= bound).all()
    assert difference.max() > 1e-5  # it is tf32, not fp32
    assert_close(matmul(a, b), expect_matmul(a, b))  # and not without the permission


@pytest.mark.skipif(not IS_HOPPER, reason="wgmma is Hopper's")
@pytest.mark.parametrize(
    "m, n, k",
    [
        *SHAPES[3:],
        (260, 132, 64),
        (520, 1000, 96),
        (1000, 1000, 1000),
        (2048, 2048, 1024),
        (64, 100, 4100),
        (8000, 200, 4500),
        (3, 256, 9000),
        (3136, 2984, 1184),  # halves of tiles in the last wave
    ],
)
def test_wgmma_in_tf32(m, n, k):
    """Every layout gives the same bits, those of rung 08 where k is one chunk; nothing outside of C is written."""

    def tf32(a, b, **how):
        with matmul_precision("tf32"):
            return matmul(a, b, **how)

    a, b = rand(m, k), rand(k, n)
    expected = tf32(a, b, algorithm="wgmma")
    a64, b64 = a.double(), b.double()
    bound = (2 * 2**-11 + (k + 2) * 2**-24) * (a64.abs() @ b64.abs())
    assert ((expected.double() - a64 @ b64).abs() <= bound).all()
    if n > 256 or k < 4096:
        assert torch.equal(tf32(a, b, algorithm="mma_output_cached"), expected)
    for layout, margin in itertools.product(("NN", "NT", "TN", "TT"), (0, 3, 4)):
        a1 = operand(m, k, torch.float32, layout[0] == "T", margin).copy_(a)
        b1 = operand(k, n, torch.float32, layout[1] == "T", margin).copy_(b)
        for rows, cols, turn in ((m, n, False), (n, m, True)):
            base = torch.full((rows, cols + margin), 7.0, device="cuda")
            out = base[:, :cols].mT if turn else base[:, :cols]
            with matmul_precision("tf32"):
                OPS.matmul_out(a1, b1, out, algorithm="wgmma")
            assert torch.equal(out, expected), (layout, margin, turn)
            assert (base[:, cols:] == 7).all(), (layout, margin, turn)
    for rows in {1, min(m, 64), min(m, 65), m - m // 3}:
        assert torch.equal(tf32(a[:rows], b, algorithm="wgmma"), expected[:rows]), rows


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("algorithm", RUNGS)
def test_bias_and_activation(algorithm, dtype):
    if not serves(algorithm, dtype):
        return
    for m, n, k in ((4, 30, 20), (130, 140, 70)):
        if refusal(algorithm, dtype, m, n, k):
            continue
        input, weight, bias = rand(m, k, dtype=dtype), rand(n, k, dtype=dtype), rand(n, dtype=dtype)
        for activation in ACTIVATIONS:
            out = linear(input, weight, bias, activation=activation, algorithm=algorithm)
            assert_close(out, expect_linear(input, weight, bias, activation))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_batches(dtype):
    for a_shape, b_shape in [
        ((5, 30, 20), (5, 20, 40)),
        ((5, 30, 20), (20, 40)),
        ((2, 1, 30, 20), (3, 20, 40)),
        ((2, 3, 1, 2, 9, 7), (2, 1, 4, 2, 7, 5)),
        ((70000, 2, 3), (70000, 3, 2)),
        ((20,), (5, 20, 3)),
    ]:
        a, b = rand(*a_shape, dtype=dtype), rand(*b_shape, dtype=dtype)
        assert_close(matmul(a, b), expect_matmul(a, b))
    a, b = rand(3, 4, 30, 20, dtype=dtype).transpose(0, 1), rand(4, 3, 40, 20, dtype=dtype).mT
    for algorithm in RUNGS:
        if not refusal(algorithm, dtype, 30, 40, 20):
            assert_close(matmul(a, b, algorithm=algorithm), expect_matmul(a, b))


@pytest.mark.skipif(not IS_HOPPER, reason="wgmma is Hopper's")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@matmul_precision("tf32")
def test_wgmma_batches_are_their_items(dtype):
    def check(a, b, out=None):
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        if out is None:
            out = torch.empty(*batch, a.shape[-2], b.shape[-1], dtype=dtype, device="cuda")
        OPS.matmul_out(a, b, out.fill_(torch.nan), algorithm="wgmma")
        a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
        for idx in itertools.product(*map(range, batch)):
            assert torch.equal(out[idx], matmul(a[idx], b[idx], algorithm="wgmma")), idx

    for m, n, k in ((64, 64, 64), (33, 40, 24), (17, 9, 13), (1, 8, 8), (130, 31, 100), (20, 30, 4100)):
        check(rand(3, m, k, dtype=dtype), rand(3, k, n, dtype=dtype))
        check(rand(2, 1, 3, m, k, dtype=dtype), rand(4, 1, k, n, dtype=dtype))
        check(rand(3, k, m, dtype=dtype).mT, rand(2, 3, n, k, dtype=dtype).mT)
    heads = rand(2, 40, 6, 64, dtype=dtype)  # items lie between each other's rows
    check(heads.permute(0, 2, 1, 3), heads.permute(0, 2, 3, 1))
    check(
        heads.permute(0, 2, 1, 3),
        rand(2, 6, 64, 24, dtype=dtype),
        torch.empty(2, 40, 6, 24, dtype=dtype, device="cuda").permute(0, 2, 1, 3),
    )


def aligned_operand(rows, cols, dtype, is_transposed):
    """Of a wide range; rows begin at multiples of 16 bytes, and lie apart."""
    values = torch.ldexp(rand(rows, cols), torch.randint(-6, 6, (rows, cols), device="cuda"))
    return operand(rows, cols, dtype, is_transposed, margin=8 + -(rows if is_transposed else cols) % 8).copy_(values)


@pytest.mark.skipif(not IS_HOPPER, reason="wgmma is Hopper's")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_wgmma_single(dtype):
    """The bits of rung 08's chain of mma.sync in every layout; what the copy engine cannot take is refused."""
    single, other = "wgmma_single", "mma_output_cached"
    for m, n, k in ((1, 1, 1), (1, 8, 8), (64, 256, 64), (129, 257, 72), (300, 520, 1000), (130, 9, 4100)):
        for layout in ("NN", "NT", "TN", "TT"):
            a = aligned_operand(m, k, dtype, layout[0] == "T")
            b = aligned_operand(k, n, dtype, layout[1] == "T")
            expected = matmul(a, b, algorithm=other)
            base = torch.full((n, m + 3), 7.0, dtype=dtype, device="cuda")
            OPS.matmul_out(a, b, base[:, :m].mT, algorithm=single)
            assert torch.equal(base[:, :m].mT, expected) and (base[:, m:] == 7).all(), (m, n, k, layout)
            assert torch.equal(matmul(a, b, algorithm=single), expected), (m, n, k, layout)
    a, b = rand(3, 2, 40, 64, dtype=dtype).transpose(0, 1), rand(3, 64, 24, dtype=dtype)
    assert torch.equal(matmul(a, b, algorithm=single), matmul(a, b, algorithm=other))
    many = rand(70000, 2, 8, dtype=dtype), rand(70000, 8, 8, dtype=dtype)
    assert torch.equal(matmul(*many, algorithm=single), matmul(*many, algorithm=other))
    input, weight, bias = rand(130, 72, dtype=dtype), rand(300, 72, dtype=dtype), rand(300, dtype=dtype)
    for activation in ACTIVATIONS:
        out = linear(input, weight, bias, activation=activation, algorithm=single)
        assert torch.equal(out, linear(input, weight, bias, activation=activation, algorithm=other))
    for shape, reason in (((5, 7, 3), "copy engine"), ((8, 0, 8), "k is 0")):
        with pytest.raises(NotImplementedError, match=f"wgmma_single.*{reason}"):
            matmul(rand(*shape[:2], dtype=dtype), rand(*shape[1:], dtype=dtype), algorithm=single)


@pytest.mark.skipif(not IS_HOPPER, reason="wgmma is Hopper's")
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(
    "m, n, k",
    [
        (500, 3000, 1000),
        (700, 5000, 200),
        (1000, 2008, 504),
        (1300, 1000, 1000),
        (360, 1568, 4248),
        (472, 584, 3224),
        (168, 728, 1832),
        (168, 728, 4824),
        (2200, 1224, 2008),
    ],
)
def test_wgmma_pairs_of_blocks(m, n, k, layout):
    """Rows of 16 bytes times an odd number: the model lets pairs of blocks share operands, but not for few rows."""
    a = operand(m, k, torch.bfloat16, layout[0] == "T")
    b = operand(k, n, torch.bfloat16, layout[1] == "T")
    whole = matmul(a, b, algorithm="wgmma")
    assert_close(whole, expect_matmul(a, b))
    assert torch.equal(matmul(a[:100], b, algorithm="wgmma"), whole[:100])


@pytest.mark.skipif(not IS_HOPPER, reason="wgmma is Hopper's")
@pytest.mark.parametrize("layout", ["NN", "TT"])
@pytest.mark.parametrize("n, k", [(64, 4096), (200, 5001), (1030, 5200)])
def test_wgmma_chunks_of_k(layout, n, k):
    """Few rows: the chunks are computed side by side. Many: one after the other."""
    a = operand(9000, k, torch.bfloat16, layout[0] == "T")
    b = operand(k, n, torch.bfloat16, layout[1] == "T")
    whole = matmul(a, b, algorithm="wgmma")
    assert_close(whole, expect_matmul(a, b))
    for m in (1, 64, 65, 300, 2000):
        assert torch.equal(matmul(a[:m], b, algorithm="wgmma"), whole[:m]), m


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("m, n, k", [(33, 47, 29), (128, 256, 64), (200, 300, 520), (4, 64, 5000)])
def test_an_item_of_a_batch_is_the_same_alone(dtype, m, n, k):
    a, b = rand(7, m, k, dtype=dtype), rand(7, n, k, dtype=dtype).mT
    together = matmul(a, b)
    for idx in range(7):
        assert torch.equal(together[idx], matmul(a[idx], b[idx]))


@pytest.mark.parametrize("name", [*DTYPE_NAMES, "tf32"])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(
    "n, k", [(129, 515), (128, 512), (1000, 64), (64, 8200), (257, 4200), (1030, 1100), (1063, 1300)]
)
def test_a_row_is_the_same_whatever_m_is(name, layout, n, k):
    with matmul_precision(name) as dtype:
        a, b = operand(2000, k, dtype, layout[0] == "T"), operand(k, n, dtype, layout[1] == "T")
        whole = matmul(a, b)
        assert torch.equal(whole, matmul(a, b))
        for m in [*range(1, 301), 777, 1024]:
            assert torch.equal(matmul(a[:m], b), whole[:m]), m
            assert torch.equal(matmul(a[2000 - m :], b), whole[2000 - m :]), m


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_zero_keeps_its_sign_whatever_m_is(dtype):
    """Where every product underflows, a tile that adds a zero for want of a bias would turn it around."""
    tiny = torch.finfo(dtype).tiny
    a = torch.full((2048, 40), tiny, dtype=dtype, device="cuda")
    b = torch.full((40, 512), -tiny, dtype=dtype, device="cuda")
    for m in (1, 40, 300, 2048):
        out = matmul(a[:m], b)
        assert torch.equal(torch.signbit(out), torch.signbit(matmul(a, b))[:m]), m


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.mem_get_info()[0] < 45e9, reason="needs 45 GB of memory")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_more_than_2_31_elements(dtype):
    a, b = rand(70000, 8, dtype=dtype), rand(8, 70000, dtype=dtype)
    out = matmul(a, b)
    for rows in (slice(0, 50), slice(35000, 35050), slice(69950, 70000)):
        assert_close(out[rows], expect_matmul(a[rows], b))


def split_in_halves(x):
    """x, of 26 bits, as two addends of 13."""
    high = (x * 2**13).floor() / 2**13
    return high, x - high


@pytest.mark.parametrize("n", [64, 300])
@pytest.mark.parametrize("name", ["fp32", "fp64", "fp16", "bf16", "tf32"])
def test_long_sums_are_no_worse_than_the_vendors(name, n):
    with matmul_precision(name) as dtype:
        a, b = rand(64, 2**20, dtype=dtype), rand(n, 2**20, dtype=dtype).mT
        if name == "fp64":  # sums of products of halves are exact
            a, b = (a * 2**26).round() / 2**26, (b * 2**26).round() / 2**26
            (a1, a0), (b1, b0) = split_in_halves(a), split_in_halves(b)
            exact = (a1 @ b1, a1 @ b0 + a0 @ b1, a0 @ b0)
        else:
            exact = (a.double() @ b.double(),)
        errors = [out.double() - exact[0] for out in (matmul(a, b), a @ b)]
        for rest in exact[1:]:
            errors = [error - rest for error in errors]
        ours, theirs = (float(error.norm()) for error in errors)
    assert ours <= 1.1 * theirs, (ours, theirs, float(exact[0].norm()))


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16], ids=str)
def test_operands_of_two_dtypes(narrow):
    """Converted to fp32, whatever is allowed of tf32; a row alone has the bits that it has among others."""
    for m, n, k in ((70, 256, 1500), (1300, 1400, 1200), (5, 3, 0), (1, 33, 40)):
        for x, w in ((rand(m, k, dtype=narrow), rand(n, k)), (rand(m, k), rand(n, k, dtype=narrow))):
            bias = rand(n)
            with matmul_precision("tf32"):
                for out_dtype in (None, narrow):
                    out = linear(x, w, bias, activation="gelu", out_dtype=out_dtype)
                    assert_close(out, expect_linear(x, w, bias, "gelu", out_dtype or torch.float32))
            assert_close(matmul(x, w.mT), expect_matmul(x, w.mT, torch.float32))
            assert torch.equal(matmul(x[-1:], w.mT), matmul(x, w.mT)[-1:])
            assert torch.equal(matmul(x.expand(2, m, k), w.mT)[1], matmul(x, w.mT))
            assert torch.equal(matmul(x.expand(2, m, k), w.mT.expand(2, k, n))[1], matmul(x, w.mT))
            assert_close(addmm(bias, x, w.mT, beta=0.5, alpha=-2), expect_addmm(bias, x, w.mT, 0.5, -2, torch.float32))


def test_gradients():
    for algorithm in ("auto", *RUNGS):
        if not serves(algorithm, torch.float64):
            continue
        a, b, bias = (rand(*shape, dtype=torch.float64).requires_grad_() for shape in ((5, 7), (4, 7), (4,)))
        assert torch.autograd.gradcheck(lambda a, b, c, how=algorithm: linear(a, b, c, algorithm=how), (a, b, bias))
        assert torch.autograd.gradcheck(lambda a, b, how=algorithm: matmul(a, b.mT, algorithm=how), (a, b))
    assert torch.autograd.gradgradcheck(lambda a, b, c: linear(a, b, c, activation="gelu"), (a, b, bias))
    grad = torch.func.grad(lambda weight: linear(a, weight, bias).sin().sum())(b)
    expected = torch.func.grad(lambda weight: F.linear(a, weight, bias).sin().sum())(b)
    torch.testing.assert_close(grad, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [(512, 256, 128), (300, 131, 70), (1, 5, 3), (8192, 64, 200), (8192, 70, 300), (4160, 1888, 416)], ids=str
)
def test_gradients_of_weight_and_bias_in_one_pass(shape, dtype):
    rows, out_features, in_features = shape
    grad = operand(rows, out_features, dtype, margin=8)
    input = operand(rows, in_features, dtype)
    weight_grad, bias_grad = OPS.linear_weight_grads(grad, input)
    assert_close(weight_grad, expect_matmul(grad.mT, input))
    expected = expect_matmul(grad.mT, torch.ones(rows, dtype=dtype, device="cuda"))
    assert_close(bias_grad, expected)
    with matmul_precision("tf32"):  # of products; no element of a sum is rounded
        assert_close(OPS.linear_weight_grads(grad, input)[1], expected)
        assert_close(OPS.ordered_sum(grad, [0])[0], expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_opcheck_and_compile(dtype):
    a, b, bias = rand(30, 20, dtype=dtype), rand(40, 20, dtype=dtype), rand(40, dtype=dtype)
    opcheck(OPS.matmul.default, (a.clone().requires_grad_(), b.mT))
    opcheck(OPS.linear.default, (a, b.clone().requires_grad_(), bias))
    layer = TiledLinear(20, 40, device="cuda", dtype=dtype)
    compiled = torch.compile(layer, fullgraph=True)
    out, expected = compiled(a), layer(a)
    assert torch.equal(out, expected)
    gradient = torch.autograd.grad(out.sum(), layer.weight)[0]
    assert torch.equal(gradient, torch.autograd.grad(expected.sum(), layer.weight)[0])


def test_autocast():
    a, b = rand(30, 20), rand(20, 40)
    with torch.autocast("cuda", torch.bfloat16):
        out = matmul(a, b)
    assert out.dtype is torch.bfloat16
    assert torch.equal(out, matmul(a.bfloat16(), b.bfloat16()))


def test_current_stream_without_synchronisation():
    a, b = rand(2000, 2000), rand(2000, 2000)
    expected = matmul(a, b)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(int(1e8))
        out = matmul(a, b)
        assert not side.query()  # the call returned before the stream was done
    side.synchronize()
    assert torch.equal(out, expected)


@pytest.mark.parametrize("algorithm", RUNGS)
def test_capture_in_a_graph(algorithm):
    dtype = torch.bfloat16 if serves(algorithm, torch.bfloat16) else torch.float32
    a, b = rand(60, 70, dtype=dtype), rand(70, 140, dtype=dtype)
    expected = matmul(a, b, algorithm=algorithm)
    static = torch.zeros_like(a)
    matmul(static, b, algorithm=algorithm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = matmul(static, b, algorithm=algorithm)
    static.copy_(a)
    graph.replay()
    assert torch.equal(out, expected)


def test_no_memory_beside_the_output():
    """But for split, which stores the terms of its operands."""
    of_fp32 = [name for name in RUNGS if not refusal(name, torch.float32, 512, 512, 512) and "split" not in name]
    for algorithm, dtype in [(name, torch.float32) for name in of_fp32] + [
        ("mma_output_cached", torch.bfloat16),
        ("auto", torch.bfloat16),
    ]:
        a, b = rand(512, 512, dtype=dtype), rand(512, 512, dtype=dtype)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = matmul(a, b, algorithm=algorithm)
        assert torch.cuda.max_memory_allocated() - before == out.nbytes, algorithm


def test_errors():
    a = rand(3, 4)
    with pytest.raises(RuntimeError, match="cuda:0.*cpu|cpu.*cuda:0"):
        matmul(a, torch.ones(4, 5))
    with pytest.raises(NotImplementedError, match="register_tiled.avx2.*no GPU kernel"):
        matmul(a, rand(4, 5), algorithm="register_tiled.avx2")
    with pytest.raises(ValueError, match="nonsense"):
        matmul(a, rand(4, 5), algorithm="nonsense")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_several_devices_in_one_process():
    """By turns, the current device unchanged, each rung's attributes set on each device."""
    for algorithm, dtype in itertools.product(["auto", *RUNGS], DTYPES):
        if not serves(algorithm, dtype):
            continue
        for m, n, k in ((30, 40, 20), (60, 64, 5000), (300, 200, 130)):
            if refusal(algorithm, dtype, m, n, k):
                continue
            a, b = rand(m, k, dtype=dtype), rand(k, n, dtype=dtype)
            expected = matmul(a, b, algorithm=algorithm)
            for device in ("cuda:1", "cuda:0", "cuda:1"):
                out = matmul(a.to(device), b.to(device), algorithm=algorithm)
                assert str(out.device) == device and torch.cuda.current_device() == 0
                assert torch.equal(out.to("cuda:0"), expected), (algorithm, dtype, m, n, k)
    side = torch.cuda.Stream("cuda:1")
    a, b = rand(700, 600).to("cuda:1"), rand(600, 800).to("cuda:1")
    expected = matmul(a, b)
    side.wait_stream(torch.cuda.current_stream("cuda:1"))
    with torch.cuda.stream(side):
        out = matmul(a, b)
    side.synchronize()
    assert torch.equal(out, expected)
    with pytest.raises(RuntimeError, match="cuda:1"):
        matmul(a, b.to("cuda:0"))


def draw_operand(draw, batch, rows, cols, dtype):
    """Any layout, leading dimension, offset and batch (apart, in between the rows, or shared); NaN around it."""
    is_transposed = draw(2)
    if is_transposed:
        rows, cols = cols, rows
    step, margin, offset = (1, 1, 1, 1, 2)[draw(5)], (0, 0, 8, draw(11))[draw(4)], (0, 0, draw(9))[draw(3)]
    shared = bool(batch) and draw(4) == 0
    stored = (1,) * len(batch) if shared else tuple(batch)
    width = cols * step + margin
    is_between = len(stored) == 1 and draw(3) == 0
    shape = (rows, *stored, width) if is_between else (*stored, rows, width)
    base = torch.full((offset + math.prod(shape),), torch.nan, dtype=dtype, device="cuda")
    view = base[offset:].view(shape)
    if is_between:
        view = view.movedim(1, 0)
    view = view[..., : cols * step : step]
    operand = view.copy_(rand(*view.shape, dtype=dtype)).expand(*batch, rows, cols)
    return operand.mT if is_transposed else operand


@pytest.mark.skipif("TILEDMM_SANITIZE" in os.environ, reason="too slow there")
def test_random_problems():
    """TILEDMM_GPU_CASES of them: shapes, layouts, margins, offsets, batches, epilogues, algorithms, precisions."""
    generator = torch.Generator().manual_seed(1)

    def draw(end):
        return int(torch.randint(end, (), generator=generator))

    for case in range(int(os.environ.get("TILEDMM_GPU_CASES", "1000"))):
        dtype, is_long = DTYPES[draw(4)], draw(8) == 0
        limit = 70 if is_long else (20, 150, 600)[draw(3)]
        m, n, k = 1 + draw(limit), 1 + draw(limit), 2000 + draw(7000) if is_long else draw(limit)
        batch = ((), (), (), (1 + draw(5),), (1 + draw(3), 1 + draw(3)))[draw(5)] if limit < 600 else ()
        names = [name for name in RUNGS if not refusal(name, dtype, m, n, k)]
        algorithm = "auto" if draw(2) else names[draw(len(names))]
        a = draw_operand(draw, batch, m, k, dtype)
        if draw(3) == 0:
            weight = draw_operand(draw, (), n, k, dtype)
            bias = (None, rand(n, dtype=dtype), rand(2 * n, dtype=dtype)[::2], rand(1, dtype=dtype).expand(n))[draw(4)]
            activation = ACTIVATIONS[draw(len(ACTIVATIONS))]
            out = linear(a, weight, bias, activation=activation, algorithm=algorithm)
            expected, what = expect_linear(a, weight, bias, activation), f"{weight.stride()} {activation}"
        else:
            b = draw_operand(draw, batch, k, n, dtype)
            out, expected, what = matmul(a, b, algorithm=algorithm), expect_matmul(a, b), str(b.stride())
        try:
            assert_close(out, expected)
        except AssertionError as error:
            where = f"case {case}: {batch} {m}x{n}x{k} {dtype} {algorithm} {a.stride()} {what}"
            raise AssertionError(where) from error


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_current_device_stays_with_both_gradients_in_one_pass(dtype):
    grad, input = rand(70, 40, dtype=dtype), rand(70, 24, dtype=dtype)
    grads = OPS.linear_weight_grads(grad.to("cuda:1"), input.to("cuda:1"))
    assert torch.cuda.current_device() == 0
    for other, expected in zip(grads, OPS.linear_weight_grads(grad, input), strict=True):
        assert other.device.index == 1 and torch.equal(other.to("cuda:0"), expected)

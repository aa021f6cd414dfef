"""Results and operands of other dtypes: out_dtype, fp32 beside 16 bits. Values are in test_property.py's sweep, too.

Planted bugs that these tests caught: a gradient that is rounded before it is multiplied; a gradient in the dtype of the
other operand; a bias read as C's dtype; A's words packed as B's; an out_dtype that vmap drops.
"""

import copy
import itertools
import pickle
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_tiledmm
from torch_tiledmm import TiledLinear, addmm, explain, linear, matmul
from torch_tiledmm.testing.reference import assert_close, expect_addmm, expect_linear, expect_matmul

WIDE = torch.float32
NARROW = (torch.float16, torch.bfloat16)
# (a, b, result): all that are not of one dtype.
MIXES = [
    dtypes
    for narrow in NARROW
    for dtypes in itertools.product((WIDE, narrow), repeat=3)
    if len(set(dtypes)) > 1
]  # fmt: skip
WIDE_RESULTS = [(narrow, narrow, WIDE) for narrow in NARROW]
SIZES = [(1, 64, 300), (5, 65, 1500), (70, 33, 129), (13, 1, 40), (8, 256, 7), (3, 5, 0), (0, 4, 3), (130, 257, 1030)]
ALGORITHMS = [entry.name for entry in torch_tiledmm.algorithms("cpu") if entry.available and not entry.name == "split"]


def randn(*sizes: int, dtype: torch.dtype, is_turned: bool = False) -> torch.Tensor:
    return torch.randn(sizes[::-1]).T.to(dtype) if is_turned else torch.randn(sizes).to(dtype)


def by_kernel(call, *args, **kwargs):
    """The result by each kernel that takes these dtypes."""
    for algorithm in ALGORITHMS:
        try:
            yield algorithm, call(*args, **kwargs, algorithm=algorithm)
        except NotImplementedError as error:
            assert algorithm != "auto" and re.search("dtype|serves fp32|has no fp16", str(error)), (algorithm, error)


@pytest.mark.parametrize("dtypes", MIXES, ids=str)
def test_values_of_every_kernel(dtypes):
    torch.manual_seed(0)
    for (m, n, k), turned in zip(SIZES, itertools.cycle(itertools.product((False, True), repeat=2)), strict=False):
        a = randn(m, k, dtype=dtypes[0], is_turned=turned[0])
        weight = randn(n, k, dtype=dtypes[1], is_turned=turned[1])
        for bias_dtype in set(dtypes):
            bias, matrix = randn(n, dtype=bias_dtype), randn(m, n, dtype=bias_dtype)
            for _, out in by_kernel(linear, a, weight, bias, activation="gelu", out_dtype=dtypes[2]):
                assert_close(out, expect_linear(a, weight, bias, "gelu", dtypes[2]))
            for _, out in by_kernel(addmm, matrix, a, weight.mT, beta=0.5, alpha=-2, out_dtype=dtypes[2]):
                assert_close(out, expect_addmm(matrix, a, weight.mT, 0.5, -2, dtypes[2]))
        for _, out in by_kernel(matmul, a, weight.mT, out_dtype=dtypes[2]):
            assert_close(out, expect_matmul(a, weight.mT, dtypes[2]))


@pytest.mark.parametrize("dtypes", MIXES, ids=str)
def test_bits(dtypes):
    """A wide result is what is rounded to the narrow one; mixed operands are those in fp32."""
    for m, n, k in SIZES[:3] + SIZES[-1:]:
        a, b = randn(m, k, dtype=dtypes[0]), randn(k, n, dtype=dtypes[1])
        for algorithm, out in by_kernel(matmul, a, b, out_dtype=dtypes[2]):
            if "amx" in algorithm or "bf16" in algorithm:
                continue  # their conversions take denormals as zero
            if dtypes in WIDE_RESULTS:
                assert torch.equal(out.to(dtypes[0]), matmul(a, b, algorithm=algorithm)), algorithm
            elif "." in algorithm or algorithm == "naive":
                assert torch.equal(out, matmul(a.float(), b.float(), algorithm=algorithm).to(dtypes[2])), algorithm


@pytest.mark.parametrize("dtypes", MIXES, ids=str)
def test_rows_and_batches(dtypes):
    a, b = randn(300, 700, dtype=dtypes[0]), randn(700, 90, dtype=dtypes[1])
    whole = matmul(a, b, out_dtype=dtypes[2])
    for m in (1, 2, 7, 8, 9, 33, 100, 299):
        assert torch.equal(matmul(a[-m:], b, out_dtype=dtypes[2]), whole[-m:])
    items = randn(6, 20, 30, dtype=dtypes[0]), randn(6, 30, 10, dtype=dtypes[1])
    batch = matmul(*items, out_dtype=dtypes[2])
    for i in range(6):
        assert torch.equal(batch[i], matmul(items[0][i], items[1][i], out_dtype=dtypes[2]))
    out = torch.full((90, 300), torch.nan, dtype=dtypes[2]).mT
    assert matmul(a, b, out=out) is out and torch.equal(out, whole)
    for vectors in ((a[0], b), (a, b[:, 0]), (a[0], b[:, 0])):
        assert_close(matmul(*vectors, out_dtype=dtypes[2]), expect_matmul(*vectors, dtypes[2]))


@pytest.mark.parametrize("activation", ["none", "relu", "silu"])
@pytest.mark.parametrize("dtypes", MIXES, ids=str)
def test_gradients_are_products_of_the_gradient_as_it_is(dtypes, activation):
    first, second, result = dtypes
    x, weight = randn(7, 40, dtype=first).requires_grad_(), randn(9, 40, dtype=second).requires_grad_()
    bias = randn(9, dtype=second).requires_grad_()
    out = linear(x, weight, bias, activation=activation, out_dtype=result)
    assert out.dtype == result
    grad = randn(7, 9, dtype=result)
    grads = torch.autograd.grad(out, (x, weight, bias), grad)
    assert [own.dtype for own in grads] == [first, second, second]
    inner = grad
    if activation != "none":
        z = linear(x, weight, bias, out_dtype=result).detach()
        inner = torch.ops.tiledmm.activate_backward(grad, out.detach() if activation == "relu" else z, activation)
    assert torch.equal(grads[0], matmul(inner, weight.detach(), out_dtype=first))
    assert torch.equal(grads[1], matmul(inner.mT, x.detach(), out_dtype=second))
    torch.testing.assert_close(grads[2], inner.double().sum(0).to(second), rtol=0.02, atol=1e-3)


@pytest.mark.parametrize("dtypes", MIXES, ids=str)
def test_gradients_of_products_are_rounded_once(dtypes):
    first, second, result = dtypes
    for batch in ((), (3,)):
        a, b = randn(7, 40, dtype=first).expand(*batch, 7, 40), randn(40, 9, dtype=second).expand(*batch, 40, 9)
        leaves = [a.clone().requires_grad_(), b.clone().requires_grad_()]
        grad = randn(7, 9, dtype=result).expand(*batch, 7, 9)
        grads = torch.autograd.grad(matmul(*leaves, out_dtype=result), leaves, grad)
        assert torch.equal(grads[0], matmul(grad, b.mT, out_dtype=first))
        assert torch.equal(grads[1], matmul(a.mT, grad, out_dtype=second))
        scaled = torch.autograd.grad(addmm(None, *leaves, alpha=-2, out_dtype=result), leaves, grad)
        assert torch.equal(scaled[0], -2 * grads[0]) and torch.equal(scaled[1], -2 * grads[1])


@pytest.mark.parametrize("dtypes", MIXES, ids=str)
def test_second_derivatives_and_tangents(dtypes):
    """Against those in float64 of the same operands; what is rounded on the way is small."""
    sizes = ((5, 6), (6, 4), (5, 4))
    operands = [(0.3 * torch.randn(own)).to(dtype) for own, dtype in zip(sizes, dtypes, strict=True)]
    tangents = [torch.randn_like(operand) for operand in operands]

    def own(a, b, added):
        return addmm(added, a, b, beta=0.5, alpha=-2, out_dtype=dtypes[2]).double().square().sum()

    def exact(a, b, added):
        return (0.5 * added - 2 * a @ b).square().sum()

    def grads_of(function):
        return torch.func.grad(function, argnums=(0, 1, 2))

    wide = [[tensor.double() for tensor in tensors] for tensors in (operands, tangents)]
    for function, expected in ((own, exact), (grads_of(own), grads_of(exact))):
        found = torch.func.jvp(function, tuple(operands), tuple(tangents))
        reference = torch.func.jvp(expected, tuple(wide[0]), tuple(wide[1]))
        leaves_of = torch.utils._pytree.tree_leaves
        for actual, value in zip(leaves_of(found), leaves_of(reference), strict=True):
            torch.testing.assert_close(actual.double(), value, rtol=0.05, atol=0.05 * value.abs().max().item())
    leaves = [operand.requires_grad_() for operand in operands]
    first = torch.autograd.grad(own(*leaves), leaves, create_graph=True)
    second = torch.autograd.grad(sum(own_grad.double().square().sum() for own_grad in first), leaves)
    assert [grad.dtype for grad in second] == list(dtypes)
    exact_leaves = [operand.detach().double().requires_grad_() for operand in operands]
    exact_first = torch.autograd.grad(exact(*exact_leaves), exact_leaves, create_graph=True)
    exact_second = torch.autograd.grad(sum(grad.square().sum() for grad in exact_first), exact_leaves)
    for actual, value in zip(second, exact_second, strict=True):
        torch.testing.assert_close(actual.double(), value, rtol=0.1, atol=0.1 * value.abs().max().item())


@pytest.mark.parametrize("dtypes", MIXES, ids=str)
def test_transforms(dtypes):
    x, weight, bias = randn(4, 3, 6, dtype=dtypes[0]), randn(5, 6, dtype=dtypes[1]), randn(5, dtype=dtypes[1])

    def call(x, weight, bias):
        return linear(x, weight, bias, activation="silu", out_dtype=dtypes[2])

    expected = call(x, weight, bias)
    assert torch.equal(torch.vmap(call, (0, None, None))(x, weight, bias), expected)
    weights = torch.stack([weight, -weight])
    mapped = torch.vmap(call, (None, 0, None))(x, weights, bias)
    assert mapped.dtype == dtypes[2]
    torch.testing.assert_close(mapped[0], expected, rtol=0.02, atol=0.02)
    products = torch.vmap(lambda w: matmul(x, w.mT, out_dtype=dtypes[2]))(weights)
    assert torch.equal(products[1], matmul(x, weights[1].mT, out_dtype=dtypes[2]))
    leaf = weight.clone().requires_grad_()
    torch._dynamo.reset()  # it compiles one function so many times and no more
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")(x, leaf, bias)
    assert torch.equal(compiled, expected)
    (grad,) = torch.autograd.grad(compiled.sum(), leaf)
    assert torch.equal(grad, torch.autograd.grad(call(x, leaf, bias).sum(), leaf)[0])
    exported = torch.export.export(TiledLinear(6, 5, dtype=dtypes[1], out_dtype=dtypes[2]), (x,))
    assert exported.module()(x).dtype == dtypes[2]
    options = {"out_dtype": dtypes[2]}
    torch.library.opcheck(torch.ops.tiledmm.matmul.default, (x, weight.mT), options)
    torch.library.opcheck(torch.ops.tiledmm.linear.default, (x, weight, bias), options)
    assert matmul(x.to("meta"), weight.mT.to("meta"), **options).dtype == dtypes[2]


def test_what_the_result_is_without_being_told():
    for narrow in NARROW:
        x, weight = randn(3, 4, dtype=narrow), randn(5, 4, dtype=WIDE)
        assert linear(x, weight).dtype == matmul(weight, x.mT).dtype == WIDE
        with torch.autocast("cpu", torch.bfloat16):
            assert linear(x, weight).dtype == torch.bfloat16
            assert linear(x, weight, out_dtype=WIDE).dtype == WIDE


def test_a_layer_keeps_its_out_dtype():
    layer = TiledLinear(4, 3, dtype=torch.bfloat16, out_dtype=WIDE)
    x = randn(2, 4, dtype=torch.bfloat16)
    assert "out_dtype=torch.float32" in str(layer)
    for own in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.jit.script(layer)):
        assert torch.equal(own(x), linear(x, layer.weight, layer.bias, out_dtype=WIDE))
    model = nn.Sequential(layer)
    assert "out_dtype" in torch_tiledmm.restore_linear(model).skipped[0][1]
    layer.out_dtype = None
    assert layer(x).dtype == torch.bfloat16 and torch_tiledmm.restore_linear(model).replaced == ["0"]


def test_explain():
    for chip in ("cpu:avx2", "cpu:amx", "cuda:sm_80", "cuda:sm_90", "hip:gfx942", "hip:gfx1100"):
        for arguments in ({"out_dtype": "fp32"}, {"b_dtype": "fp32"}, {"b_dtype": "fp32", "out_dtype": "bf16"}):
            explained = explain(8, 300, 600, "bf16", device=chip, **arguments)
            assert explained.choice, (chip, arguments)
            assert not any(entry.legal for entry in explained.candidates if entry.algorithm == "block_tiled.8")
    assert "bf16 x fp32 -> fp32" in str(explain(8, 300, 600, "bf16", b_dtype=WIDE))
    assert "bf16 -> fp32" in str(explain(8, 300, 600, "bf16", out_dtype=WIDE))


@pytest.mark.parametrize("is_needed", [False, True])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_other_dtypes_are_refused(device, is_needed):
    def of(*sizes, dtype=WIDE):
        return torch.randn(sizes).to(device, dtype).requires_grad_(is_needed)

    for message, call in (
        ("a has dtype Double and b has Float; both must", lambda: matmul(of(2, 3, dtype=torch.float64), of(3, 4))),
        ("a has dtype Half and b has BFloat16", lambda: matmul(of(2, 3, dtype=NARROW[0]), of(3, 4, dtype=NARROW[1]))),
        ("cannot have dtype Double", lambda: matmul(of(2, 3), of(3, 4), out_dtype=torch.float64)),
        ("cannot have dtype Int", lambda: matmul(of(2, 3), of(3, 4), out_dtype=torch.int32)),
        ("cannot have dtype BFloat16", lambda: linear(of(2, 3, dtype=NARROW[0]), of(4, 3), out_dtype=NARROW[1])),
        ("bias has dtype Half", lambda: linear(of(2, 3), of(4, 3), of(4, dtype=NARROW[0]))),
        ("bias has dtype Double", lambda: linear(of(2, 3), of(4, 3, dtype=NARROW[0]), of(4, dtype=torch.float64))),
        ("input has dtype BFloat16", lambda: addmm(of(4, dtype=NARROW[1]), of(2, 3, dtype=NARROW[0]), of(3, 4))),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=message):
            call()
    if device == "cpu" and not is_needed:
        with pytest.raises(TypeError, match="out has dtype|cannot have dtype Double"):
            matmul(of(2, 3), of(3, 4), out=torch.empty(2, 4, dtype=torch.float64))
        with pytest.raises(TypeError, match="out_dtype: got torch.float16 with an out"):
            matmul(of(2, 3), of(3, 4), out=torch.empty(2, 4), out_dtype=NARROW[0])


def test_functional_linear_agrees():
    x, weight, bias = (randn(*sizes, dtype=torch.bfloat16) for sizes in ((6, 50), (7, 50), (7,)))
    exact = F.linear(x.float(), weight.float(), bias.float())
    torch.testing.assert_close(linear(x, weight, bias, out_dtype=WIDE), exact, rtol=1e-5, atol=1e-4)

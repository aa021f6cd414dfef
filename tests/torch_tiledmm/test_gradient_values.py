"""Values of gradients and tangents: every subset of operands that need one, ranks 1 to 5, every form of batch, bias and
activation, every dtype, by every way that torch has to ask for them.

A gradient is a product itself, so its reference and its bound are those of a product: see `expected_gradients`.

Planted bugs that these tests caught: the form of b's gradient taken from a b that was not saved, rounded gradients of
each item added up instead of one product over the batch, rows taken from the stride of the last but one dimension, the
bias's gradient without the last row, or none where the input needs none, a bias of one number detached, a batch
expanded to the size of b alone, one term of a tangent dropped or a little too small, backward without a graph.
"""

import itertools
import math
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
import torch.autograd.forward_ad as fw
from torch.autograd import gradcheck, gradgradcheck

from torch_tiledmm import linear, matmul
from torch_tiledmm.testing.reference import ACTIVATIONS, Expected, assert_close, expect_linear, expect_matmul

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
BATCH = (2, 3, 2)  # of the ranks 3 to 5, from the right


LAYOUTS = {
    "contiguous": lambda randn, *sizes: randn(sizes),
    "transposed": lambda randn, *sizes: randn((*sizes[:-2], *sizes[:-3:-1])).movedim(-1, -len(sizes[-2:])),
    "stepped": lambda randn, *sizes: randn((*sizes[:-1], 2 * sizes[-1] + 1))[..., 1::2],
    "channels_last": lambda randn, *sizes: randn((*sizes[1:], *sizes[:1])).movedim(-1, 0),
    "expanded": lambda randn, *sizes: randn((1, *sizes[1:])).expand(sizes),
    "one_number": lambda randn, *sizes: randn(()).expand(sizes),
}


def make(layout, shape, dtype):
    return LAYOUTS[layout](lambda sizes: torch.randn(sizes, dtype=dtype), *shape)


# ---- The cases


@dataclass(frozen=True)
class Case:
    shapes: tuple  # of the operands
    activation: str | None = None  # None: matmul
    layout: str = "contiguous"  # of every operand

    def operands(self, dtype=torch.float64):
        return [make(self.layout, shape, dtype) for shape in self.shapes]

    def call(self, *operands):
        return matmul(*operands) if self.activation is None else linear(*operands, activation=self.activation)

    def subsets(self):
        """What of the operands needs a gradient, for every subset that is not empty."""
        return [needs for needs in itertools.product((True, False), repeat=len(self.shapes)) if any(needs)]

    def __str__(self):
        name = "matmul" if self.activation is None else f"linear {self.activation}"
        return f"{name} {self.layout} {' '.join(map(str, self.shapes))}".replace(", ", ",")


def matmul_cases():
    """Ranks 1 to 5 of both operands, in each form of batch; a size that is zero in each place; each layout."""
    shapes = {}
    for rank_a, rank_b in itertools.product(range(1, 6), repeat=2):
        batch_a, batch_b = ((1,) * (5 - rank) + BATCH[5 - rank :] for rank in (rank_a, rank_b))
        for form in ("equal", "ones in a", "ones in b", "ones in turn", "empty"):
            own_a, own_b = list(batch_a), list(batch_b)
            for d in range(3):
                own_a[d] = 1 if form == "ones in a" or (form == "ones in turn" and d % 2) else own_a[d]
                own_b[d] = 1 if form == "ones in b" or (form == "ones in turn" and not d % 2) else own_b[d]
            if form == "empty":
                own_a[2] = own_b[2] = 0
            a = (*own_a[5 - rank_a :], 4, 5) if rank_a > 1 else (5,)
            b = (*own_b[5 - rank_b :], 5, 6) if rank_b > 1 else (5,)
            shapes[a, b] = None
    shapes |= dict.fromkeys(
        [((0, 5), (5, 6)), ((4, 0), (0, 6)), ((4, 5), (5, 0)), ((2, 4, 0), (2, 0, 6)), ((0,), (0,))]
    )
    others = [
        ((4, 5), (5, 6)),
        ((2, 4, 5), (2, 5, 6)),
        ((2, 4, 5), (5, 6)),
        ((4, 5), (3, 5, 6)),
        ((2, 1, 4, 5), (3, 5, 6)),
    ]
    return [Case(pair) for pair in shapes] + [
        Case(pair, layout=layout) for pair in others for layout in LAYOUTS if layout != "contiguous"
    ]


def linear_cases():
    """Ranks 1 to 5 of the input, in each form of weight and bias; the activations on one of them."""
    inputs = [(5,), (4, 5), (2, 4, 5), (3, 2, 4, 5), (2, 3, 2, 4, 5), (0, 5), (2, 0, 5), (4, 0), (0,)]
    cases = [Case(((3, 4, 5), (6, 5), (6,)), "none", layout) for layout in LAYOUTS]
    for input, columns in itertools.product(inputs, [(6,), (), (0,)]):
        for bias in [[], [(1,)], [()]] + ([[columns]] if columns else []):
            names = ACTIVATIONS if input == (2, 4, 5) else ACTIVATIONS[:1]
            cases += [Case((input, (*columns, input[-1]), *bias), name) for name in names]
    return cases


CASES = {"matmul": matmul_cases(), "linear": linear_cases()}
FEW = [
    Case(((3, 4), (4, 2))),
    Case(((2, 3, 4), (2, 4, 2))),
    Case(((2, 3, 4), (4, 2))),
    Case(((2, 1, 3, 4), (3, 4, 2))),
    Case(((4,), (2, 4, 3))),
    Case(((2, 3, 4), (2, 4), (2,)), "none"),
    Case(((4,), (2, 4), (1,)), "gelu"),
    Case(((3, 4), (2, 4)), "gelu_tanh"),
]
few = pytest.mark.parametrize("case", FEW, ids=str)

# ---- The reference


def summed(terms: Expected, shape) -> Expected:
    """`terms`, each rounded to its dtype as a result is, summed over the dimensions that are missing or 1 in `shape`.

    A stored term is off by at most e = bound + u_out (|value| + bound) and half a denormal. An addition may round in
    the accumulator and, as torch's sum may store partial sums, in the dtype of the output: any order of at most N of
    them errs by (N (u_acc + u_out)) / (1 - ...) of the sum of all |terms|, and so does the reference in fp64.
    """
    info = torch.finfo(terms.dtype)
    u_out, u_acc = info.eps / 2, torch.finfo(torch.float64 if terms.dtype == torch.float64 else torch.float32).eps / 2
    magnitude = terms.value.abs() + terms.bound
    error = terms.bound + u_out * magnitude + info.tiny * u_out
    value = terms.value.sum_to_size(shape)
    additions = terms.value.numel() // max(value.numel(), 1) * (u_acc + u_out) * (2 if u_acc == u_out else 1)
    bound = error.sum_to_size(shape) + additions / (1 - additions) * (magnitude + error).sum_to_size(shape)
    # No bound of the whole: the errors of the terms are rounded ones, not a random walk's.
    return Expected(f"sum of {terms.what}", terms.dtype, value, bound, math.inf)


def shaped(expected: Expected, shape) -> Expected:
    value, bound = expected.value.reshape(shape), expected.bound.reshape(shape)
    return Expected(expected.what, expected.dtype, value, bound, expected.frobenius_bound)


def rows(tensor):
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])


def expected_matmul_gradients(a, b, grad):
    """A vector is a matrix of one row or column. One b for the whole batch: one product over all rows. Otherwise a
    product for each item of the batch, rounded, and a sum of them where the operand was broadcast.
    """
    left = a if a.dim() > 1 else a.unsqueeze(0)
    right = b if b.dim() > 1 else b.unsqueeze(1)
    grad = grad.unsqueeze(-1) if b.dim() == 1 else grad
    grad = grad.unsqueeze(-2) if a.dim() == 1 else grad
    grad_a = expect_matmul(grad, right.mT)
    grad_a = grad_a if grad_a.value.shape == left.shape else summed(grad_a, left.shape)
    if right.dim() == 2:
        grad_b = expect_matmul(rows(left.expand(*grad.shape[:-1], -1)).mT, rows(grad))
    else:
        grad_b = expect_matmul(left.mT, grad)
        grad_b = grad_b if grad_b.value.shape == right.shape else summed(grad_b, right.shape)
    return [shaped(grad_a, a.shape), shaped(grad_b, b.shape)]


def expected_gradients(case, operands, grad):
    """What the gradient of each operand must be, if `grad` is that of the result.

    An activation's backward works on the linear result before it as stored: what it gives is taken bit for bit, which
    test_activations.py checks, and the products behind it have their own bounds.
    """
    if case.activation is None:
        return expected_matmul_gradients(*operands, grad)
    if case.activation != "none":
        grad = torch.ops.tiledmm.activate_backward(grad, linear(*operands), case.activation)
    x, weight, *bias = operands
    expected = expected_matmul_gradients(x, weight.mT if weight.dim() == 2 else weight, grad)
    if weight.dim() == 2:
        expected[1] = expect_matmul(rows(grad).mT, rows(x))
    for own in bias:
        grad_rows = rows(grad if weight.dim() == 2 else grad.unsqueeze(-1))
        sums = shaped(expect_matmul(grad_rows.new_ones(len(grad_rows)), grad_rows), grad_rows.shape[1:])
        expected.append(sums if own.shape == sums.value.shape else summed(sums, own.shape))
    return expected


# ---- The ways. Each gives the gradients of the operands that need one, in order.


def with_needed(function, operands, needs):
    """`function` of the needed operands alone, and these operands."""

    def of_needed(*needed):
        left = iter(needed)
        return function(*[next(left) if need else own for own, need in zip(operands, needs, strict=True)])

    return of_needed, list(itertools.compress(operands, needs))


def leaves(operands, needs):
    return [own.detach().requires_grad_(need) for own, need in zip(operands, needs, strict=True)]


def backward(function, operands, needs, grad, around=nullcontext):
    own = leaves(operands, needs)
    out = function(*own)
    with around():
        out.backward(grad)
    return [tensor.grad for tensor in itertools.compress(own, needs)]


def autograd_grad(function, operands, needs, grad):
    """Of operands that are no leaves."""
    own = [tensor * 1 if tensor.requires_grad else tensor for tensor in leaves(operands, needs)]
    return torch.autograd.grad(function(*own), list(itertools.compress(own, needs)), grad)


def beside_a_tangent(function, operands, needs, grad):
    """Backward of a result that has a tangent, too."""
    with fw.dual_level():
        own = leaves(operands, needs)
        out = function(*[fw.make_dual(tensor, tensor.detach()) for tensor in own])
        return torch.autograd.grad(out, list(itertools.compress(own, needs)), grad)


def func_vjp(function, operands, needs, grad):
    of_needed, needed = with_needed(function, operands, needs)
    return torch.func.vjp(of_needed, *needed)[1](grad)


def func_grad(function, operands, needs, grad):
    of_needed, needed = with_needed(function, operands, needs)
    return torch.func.grad(lambda *own: (of_needed(*own) * grad).sum(), tuple(range(len(needed))))(*needed)


def func_jacrev(function, operands, needs, grad):
    of_needed, needed = with_needed(function, operands, needs)

    def losses(*own):
        loss = (of_needed(*own) * grad).sum()
        return torch.stack((-loss, loss))

    return [jacobian[1] for jacobian in torch.func.jacrev(losses, tuple(range(len(needed))))(*needed)]


def func_vmap(function, operands, needs, grad):
    of_needed, needed = with_needed(function, operands, needs)
    grads = torch.vmap(lambda *own: torch.func.vjp(of_needed, *own)[1](grad))(
        *[torch.stack((2 * own, own)) for own in needed]
    )
    return [own[1] for own in grads]


WAYS = (backward, autograd_grad, beside_a_tangent, func_vjp, func_grad, func_jacrev, func_vmap)


def compare(grads, expected, needs, what):
    for own, wanted in zip(grads, itertools.compress(expected, needs), strict=True):
        try:
            assert_close(own, wanted)
        except AssertionError as error:
            raise AssertionError(f"{what}, gradients of {needs}: {error}") from None


def check(way, case, needs, dtype=torch.float32, grad_layout="contiguous"):
    operands = case.operands(dtype)
    grad = make(grad_layout, case.call(*operands).shape, dtype)
    grads = way(case.call, operands, needs, grad)
    compare(grads, expected_gradients(case, operands, grad), needs, case)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", CASES)
def test_values(way, name):
    """All dtypes by plain backward, fp32 by the other ways: these differ in how they come to the same products."""
    for case in CASES[name]:
        if way is backward or case.activation in (None, "none", "relu"):
            for needs, dtype in itertools.product(case.subsets(), DTYPES if way is backward else DTYPES[:1]):
                check(way, case, needs, dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_the_gradient_given(layout):
    for case, way in itertools.product(FEW[:6], (backward, func_vjp)):
        for needs in case.subsets():
            check(way, case, needs, grad_layout=layout)


@few
def test_shape_dtype_and_device(case):
    for needs in case.subsets():
        operands = [operand.to("meta", torch.bfloat16) for operand in case.operands()]
        grads = backward(case.call, operands, needs, case.call(*operands))
        for own, grad in zip(itertools.compress(operands, needs), grads, strict=True):
            assert (grad.shape, grad.dtype, grad.device) == (own.shape, own.dtype, own.device)


@few
def test_finite_differences(case):
    """First and second derivatives: reverse, forward, batched, and each over the other."""
    for needs in case.subsets():
        own = leaves(case.operands(), needs)
        gradcheck(case.call, own, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)
        gradgradcheck(case.call, own, check_fwd_over_rev=True, check_rev_over_rev=True)

        def tangent(*own, needs=needs):
            of_needed, needed = with_needed(case.call, own, needs)
            return torch.func.jvp(of_needed, tuple(needed), tuple(tensor.sin() for tensor in needed))[1]

        gradcheck(tangent, own)


# ---- Tangents


def expected_tangent(case, operands, tangents):
    """A product for each tangent that is given, and the sum of these."""
    expect = expect_matmul if case.activation is None else expect_linear
    terms = []
    for i, tangent in enumerate(tangents):
        if tangent is not None and i < 2:
            terms.append(expect(*[tangent if i == j else operands[j] for j in range(2)]))
        elif tangent is not None:
            own = tangent if operands[1].dim() == 2 else tangent.squeeze()
            terms.append(expect_linear(torch.zeros_like(operands[0]), operands[1], own))
    if len(terms) == 1:
        return terms[0]
    values, bounds = torch.stack([term.value for term in terms]), torch.stack([term.bound for term in terms])
    return summed(Expected(terms[0].what, terms[0].dtype, values, bounds, math.inf), terms[0].value.shape)


def dual_tangent(function, operands, tangents):
    with fw.dual_level():
        own = [
            tensor if tangent is None else fw.make_dual(tensor, tangent)
            for tensor, tangent in zip(operands, tangents, strict=True)
        ]
        return fw.unpack_dual(function(*own)).tangent


def func_jvp(function, operands, tangents):
    of_needed, needed = with_needed(function, operands, [tangent is not None for tangent in tangents])
    return torch.func.jvp(of_needed, tuple(needed), tuple(own for own in tangents if own is not None))[1]


@pytest.mark.parametrize("way", [dual_tangent, func_jvp], ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", CASES)
def test_tangents(way, name):
    for case in [case for case in CASES[name] if case.activation in (None, "none")]:
        for needs, dtype in itertools.product(case.subsets(), DTYPES if way is dual_tangent else DTYPES[:1]):
            operands = case.operands(dtype)
            tangents = [own if need else None for own, need in zip(case.operands(dtype), needs, strict=True)]
            assert_close(way(case.call, operands, tangents), expected_tangent(case, operands, tangents))


# ---- Compiled


def compiled(function, operands, needs, grad, dynamic=False):
    torch.compiler.reset()
    return backward(
        torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic), operands, needs, grad
    )


def compiled_dynamic(*args):
    return compiled(*args, dynamic=True)


def compiled_autograd(*args):
    compiler = torch.compile(backend="aot_eager", fullgraph=True)
    return backward(*args, around=lambda: torch._dynamo.compiled_autograd._enable(compiler))


@few
def test_compiled(case):
    for needs in case.subsets():
        check(compiled, case, needs)


@pytest.mark.parametrize("case", [FEW[1], FEW[3]], ids=str)
def test_compiled_in_other_ways(case):
    for way, needs in itertools.product((compiled_dynamic, compiled_autograd), case.subsets()):
        check(way, case, needs)

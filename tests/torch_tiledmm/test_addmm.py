"""beta * input + alpha * (a @ b): values, what is not read, bits, derivatives, transforms.

Planted bugs that these tests caught: alpha that scales the bias, too; beta that is left out where input is a vector;
the strides of input's batch left out; a beta of 0 that reads NaN; a vector's fast way taken for a matrix; the gradient
of a without alpha; the option's algorithm in place of beta.
"""

import random

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import torch_tiledmm
from torch_tiledmm import addmm, linear, matmul
from torch_tiledmm.dispatch import DTYPES
from torch_tiledmm.testing.reference import assert_close, expect_addmm

INPUTS = ("none", "number", "row", "column", "matrix", "batch")


def strided(rng: random.Random, *sizes: int, dtype: torch.dtype) -> torch.Tensor:
    """Random numbers with margins, in one of both orders, at an odd place, in memory that is NaN elsewhere."""
    *batch, rows, cols = sizes
    is_turned = rng.random() < 0.5
    inner, outer = (rows, cols) if is_turned else (cols, rows)
    memory = torch.full((*batch, outer + rng.randint(0, 2), inner + rng.randint(0, 3)), torch.nan, dtype=dtype)
    view = memory[..., memory.shape[-2] - outer :, memory.shape[-1] - inner :]
    view.copy_(torch.randn(view.shape, dtype=dtype))
    return view.mT if is_turned else view


def algorithms(dtype: str) -> list[str]:
    return [entry.name for entry in torch_tiledmm.algorithms("cpu") if entry.available and dtype in entry.dtypes]


@pytest.mark.parametrize("dtype", DTYPES)
def test_values(dtype):
    rng = random.Random(dtype)
    torch.manual_seed(0)
    own = DTYPES[dtype]
    for case in range(240):
        m, n = (rng.choice((1, 2, 3, 17, 40, rng.randint(1, 90))) for _ in range(2))
        k = rng.choice((0, 1, 3, 33, 64, rng.randint(1, 200), 1100))
        batch = rng.choice(((), (), (3,), (2, 3)))
        a = strided(rng, *batch, m, k, dtype=own)
        b = strided(rng, *(batch if rng.random() < 0.5 else ()), k, n, dtype=own)
        kind = INPUTS[case % len(INPUTS)]
        sizes = {"row": (1, n), "column": (m, 1), "matrix": (m, n), "batch": (*batch, m, n)}.get(kind)
        given = None if kind == "none" else torch.randn((), dtype=own) if kind == "number" else None
        if sizes:
            given = strided(rng, *sizes, dtype=own)
        if kind == "row" and rng.random() < 0.5:
            given = given[0]
        beta, alpha = (rng.choice((1, 1, 0, -0.5, 0.3, 7)) for _ in range(2))
        for tensor, factor in ((given, beta), (a, alpha)):
            if factor == 0 and tensor is not None and tensor.numel():
                tensor.fill_(torch.nan)
        for algorithm in ("auto", rng.choice(algorithms(dtype))):
            out = addmm(given, a, b, beta=beta, alpha=alpha, algorithm=algorithm)
            assert_close(out, expect_addmm(given, a, b, beta, alpha))
            assert out.is_contiguous()


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits(dtype):
    own = DTYPES[dtype]
    a, b, row = torch.randn(70, 600, dtype=own), torch.randn(600, 50, dtype=own), torch.randn(50, dtype=own)
    assert torch.equal(addmm(row, a, b), linear(a, b.mT, row))
    assert torch.equal(addmm(None, a, b), matmul(a, b))
    wide = row.expand(70, 50).contiguous()
    assert torch.equal(addmm(wide, a, b), linear(a, b.mT, row)), "a matrix of equal rows is not the row"
    whole = addmm(wide, a, b, beta=0.3, alpha=-1.7)
    assert torch.equal(whole, addmm(row, a, b, beta=0.3, alpha=-1.7))
    threads = torch.get_num_threads()
    try:
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            for first, rows in ((0, 1), (5, 3), (11, 40)):
                part = slice(first, first + rows)
                assert torch.equal(addmm(wide[part], a[part], b, beta=0.3, alpha=-1.7), whole[part])
    finally:
        torch.set_num_threads(threads)


SHAPES = {
    "matrices": ((3, 5), (3, 4), (4, 5)),
    "a row": ((5,), (3, 4), (4, 5)),
    "a number": ((), (3, 4), (4, 5)),
    "a column": ((3, 1), (3, 4), (4, 5)),
    "batches": ((2, 3, 5), (2, 3, 4), (2, 4, 5)),
    "a batch of one operand": ((3, 5), (2, 3, 4), (4, 5)),
    "batches that broadcast": ((2, 1, 3, 1), (1, 2, 3, 4), (2, 1, 4, 5)),
    "nothing added": (None, (3, 4), (4, 5)),
}


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_derivatives(shapes):
    operands = [
        None if sizes is None else torch.randn(sizes, dtype=torch.float64, requires_grad=True) for sizes in shapes
    ]

    def product(*operands):
        return addmm(*operands, beta=-0.7, alpha=1.3)

    if operands[0] is None:
        own = lambda a, b: product(None, a, b)  # noqa: E731
        given = operands[1:]
    else:
        own, given = product, operands
    assert gradcheck(own, given, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(own, given)
    grads = torch.autograd.grad(own(*given).square().sum(), given)
    composed = -0.7 * (0 if operands[0] is None else operands[0]) + 1.3 * (operands[1] @ operands[2])
    torch.testing.assert_close(grads, torch.autograd.grad(composed.square().sum(), given))
    by_torch_func = torch.func.grad(lambda *own_given: own(*own_given).square().sum(), tuple(range(len(given))))
    torch.testing.assert_close(by_torch_func(*(tensor.detach() for tensor in given)), grads)


def test_a_gradient_of_the_input_alone():
    given, a, b = torch.randn(5, requires_grad=True), torch.randn(3, 4), torch.randn(4, 5)
    (grad,) = torch.autograd.grad(addmm(given, a, b, beta=2.5).sum(), given)
    assert torch.equal(grad, torch.full((5,), 7.5))
    with forward_ad.dual_level():
        out = addmm(forward_ad.make_dual(given.detach(), torch.ones(5)), a, b, beta=2.5)
        assert torch.equal(forward_ad.unpack_dual(out).tangent.expand(3, 5), torch.full((3, 5), 2.5))


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, None, None), (None, 1, None), (1, None, 2), (None, 0, 1)], ids=str)
def test_vmap(in_dims):
    sizes = [[3, 5], [3, 4], [4, 5]]
    for own, dim in zip(sizes, in_dims, strict=True):
        if dim is not None:
            own.insert(dim, 6)
    operands = [torch.randn(*own) for own in sizes]
    out = torch.vmap(lambda *own: addmm(*own, beta=0.5, alpha=-2), in_dims)(*operands)
    for item in range(6):
        own = [
            tensor if dim is None else tensor.select(dim, item) for tensor, dim in zip(operands, in_dims, strict=True)
        ]
        torch.testing.assert_close(out[item], addmm(*own, beta=0.5, alpha=-2))


def test_compiled():
    given, a, b = torch.randn(5), torch.randn(3, 4, requires_grad=True), torch.randn(4, 5)

    def product(given, a, b):
        return addmm(given, a, b, beta=0.5, alpha=-2)

    compiled = torch.compile(product, fullgraph=True, backend="aot_eager")
    for out in (product(given, a, b), compiled(given, a, b)):
        (grad,) = torch.autograd.grad(out.sum(), a)
        torch.testing.assert_close(grad, -2 * torch.ones(3, 5) @ b.mT)
    torch.library.opcheck(torch.ops.tiledmm.addmm.default, (given, a, b), {"beta": 0.5, "alpha": -2.0})
    torch.library.opcheck(torch.ops.tiledmm.addmm.default, (None, a, b))


def test_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        out = addmm(torch.randn(5), torch.randn(3, 4), torch.randn(4, 5))
    assert out.dtype == torch.bfloat16


@pytest.mark.parametrize(
    "sizes, message",
    [
        (((2, 5), (3, 4), (4, 5)), r"input has shape \[2, 5\]; accepted is what broadcasts to the .* \[3, 5\]"),
        (((1, 3, 5), (3, 4), (4, 5)), "input has shape"),
        (((3, 5), (4,), (4, 5)), "a has 1 dimensions and b has 2; both need at least 2"),
        (((3, 5), (3, 4), (3, 5)), "do not fit"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_shapes_that_do_not_fit(device, sizes, message):
    with pytest.raises(RuntimeError, match=message):
        addmm(*(torch.randn(*own, device=device) for own in sizes))
    with pytest.raises(RuntimeError, match=message):
        addmm(*(torch.randn(own, device=device, requires_grad=True) for own in sizes))


def test_other_dtypes_are_refused():
    with pytest.raises(
        TypeError,
        match="input has dtype Double and a has Float; accepted are the dtypes of the operands and of the result",
    ):
        addmm(torch.randn(5, dtype=torch.float64), torch.randn(3, 4), torch.randn(4, 5))

"""The expected gradients and tangents: those of torch in float64 pass, others do not.

Planted bugs that these tests caught: one item of a broadcast batch left out, the slope of another activation, a bound
that counts each rounding a hundred times.
"""

import pytest
import torch
import torch.nn.functional as F

from torch_tiledmm.dispatch import DTYPES
from torch_tiledmm.testing import ACTIVATIONS
from torch_tiledmm.testing import gradients as expect
from torch_tiledmm.testing.reference import assert_close

PATTERNS = [
    ((4, 5), (5, 3)),
    ((5,), (5,)),
    ((5,), (2, 5, 3)),
    ((2, 4, 5), (5,)),
    ((2, 4, 5), (5, 3)),
    ((4, 5), (2, 5, 3)),
    ((2, 1, 4, 5), (3, 5, 2)),
    ((3, 1, 2, 4, 5), (1, 2, 1, 5, 2)),
    ((0, 4, 5), (5, 2)),
]
FUNCTIONS = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


def rand(*shape, dtype):
    return (torch.rand(shape, dtype=torch.float64) * 2 - 1).to(dtype)


def check(exact, expected):
    """The exact value passes, one that is off by more than rounding explains does not."""
    exact = exact.detach()
    assert_close(exact.to(expected.dtype), expected)
    if exact.numel():
        wrong = exact.clone(memory_format=torch.contiguous_format)
        wrong.view(-1)[0] += torch.finfo(expected.dtype).eps * (32 if expected.dtype.itemsize == 2 else 512)
        with pytest.raises(AssertionError):
            assert_close(wrong.to(expected.dtype), expected)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=list(DTYPES))
@pytest.mark.parametrize("a_shape, b_shape", PATTERNS, ids=str)
def test_matmul(a_shape, b_shape, dtype):
    a, b = rand(*a_shape, dtype=dtype), rand(*b_shape, dtype=dtype)
    tangents = rand(*a_shape, dtype=dtype), rand(*b_shape, dtype=dtype)
    wide = [tensor.double().requires_grad_() for tensor in (a, b)]
    out = torch.matmul(*wide)
    grad = rand(*out.shape, dtype=dtype)
    for name, exact in zip("ab", torch.autograd.grad(out, wide, grad.double()), strict=True):
        check(exact, expect.expect_matmul_grad(name, a, b, grad))
    exact = torch.func.jvp(torch.matmul, (a.double(), b.double()), tuple(t.double() for t in tangents))[1]
    check(exact, expect.expect_matmul_tangent(a, b, *tangents))
    check(torch.matmul(a.double(), tangents[1].double()), expect.expect_matmul_tangent(a, b, None, tangents[1]))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=list(DTYPES))
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 5)], ids=str)
def test_linear(shape, activation, dtype):
    operands = [rand(*shape, dtype=dtype), rand(3, 5, dtype=dtype), rand(3, dtype=dtype)]
    tangents = [rand(*tensor.shape, dtype=dtype) for tensor in operands]

    def function(input, weight, bias):
        return FUNCTIONS[activation](F.linear(input, weight, bias))

    wide = [tensor.double().requires_grad_() for tensor in operands]
    out = function(*wide)
    grad = rand(*out.shape, dtype=dtype)
    check(out, expect.expect_linear_of_rounded_sum(*operands, activation))
    for name, exact in zip(("input", "weight", "bias"), torch.autograd.grad(out, wide, grad.double()), strict=True):
        check(exact, expect.expect_linear_grad(name, *operands, activation, grad))
    exact = torch.func.jvp(function, tuple(t.double() for t in operands), tuple(t.double() for t in tangents))[1]
    check(exact, expect.expect_linear_tangent(*operands, activation, *tangents))


def test_tf32_is_wider_by_its_rounding():
    a, b, grad = rand(4, 5, dtype=torch.float32), rand(5, 3, dtype=torch.float32), rand(4, 3, dtype=torch.float32)
    ieee, tf32 = (expect.expect_matmul_grad("a", a, b, grad, is_tf32=is_tf32) for is_tf32 in (False, True))
    extra = tf32.bound - ieee.bound
    magnitude = grad.double().abs() @ b.double().abs().mT
    assert (extra >= 2**-10 * magnitude).all() and (extra <= 1.01 * 2**-10 * magnitude).all()

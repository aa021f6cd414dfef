"""Expected gradients and tangents of matmul and linear: reference.py's bounds through the rules of derivatives.

A gradient is a product itself, so it is held to the bound of that product: of grad and b^T for a, of a^T and grad for
b. What is added to it, each element by itself (u_out is the unit roundoff of the dtype, gamma that of reference.py):

- A batch that was broadcast is added up. That sum over items is one product with a longer k, which gives value and
  bound; gamma of the longer k covers the additions, which torch does in the accumulator's dtype. Each item may be
  rounded to the dtype before: u_out (|item| + its bound), and half the smallest denormal.
- With an activation the sum z = x W^T + bias is rounded to the dtype, so it is off by
  d = bound + u_out (|z| + bound). The slope of the activation is then off by C d, C being the largest curvature; relu's
  by 1 where |z| <= d. torch evaluates the slope itself to about 128 u_acc: gelu's tanh cancels in 1 - tanh^2, which is
  multiplied by up to 60 before it vanishes. grad * slope is rounded, and the product with this inexact operand is off
  by its error times |W|. silu's slope s (1 + z (1 - s)), s = sigmoid(z), is computed in the dtype where it may be
  differentiated itself (is_slope_rounded: torch.func, tangents): three roundings of size 1 + |z|, one of s times |z|,
  and three of the whole. torch's kernels for activations may flush denormals.
- A tangent is the sum of the tangents' products, each of them and each partial sum rounded to the dtype.

tf32 rounds each element of both operands to 11 bits: 2 * 2^-11 of |A| |B|, where torch's fp32_precision allows it; it
may flush denormals, and its sums get twice the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .reference import _LIPSCHITZ, EXACT_ACTIVATIONS, Expected, expect_linear, expect_matmul

_CURVATURE = {"none": 0.0, "gelu": 0.8, "gelu_tanh": 0.81, "silu": 0.5}  # largest |f''|, at 0 or next to it
_SLOPE_ROUNDINGS = 128


def allow_tf32(expected: Expected, a: Tensor, b: Tensor, activation: str = "none") -> Expected:
    """`expected`, of the product of a and b, where a and b may be rounded to tf32."""
    a, b = _double(a).abs(), _double(b).abs()
    k = a.shape[-1]
    relative = 2 * 2**-11 + 2**-22 + (k + 2) * 2**-24
    underflow = 2**-126 * (torch.matmul(a, torch.ones_like(b)) + torch.matmul(torch.ones_like(a), b) + k)
    return _widen(expected, _LIPSCHITZ[activation] * (relative * torch.matmul(a, b) + underflow))


def of_equal_terms(expected: Expected) -> Expected:
    """`expected`, where a sum may add one number again and again: its roundings do not average out, each is held to its
    own bound alone.
    """
    return replace(expected, frobenius_bound=math.inf)


def expect_linear_of_rounded_sum(
    input: Tensor, weight: Tensor, bias: Tensor | None, activation: str, *, is_tf32: bool = False
) -> Expected:
    """The result of `linear` where torch.func or forward mode asks: the argument of the activation is rounded."""
    z = _expect_sum(input, weight, bias, is_tf32)
    if activation == "none":
        return z
    error = _LIPSCHITZ[activation] * _error_when_rounded(z) + 8 * _u_acc(z.dtype) * (z.value.abs() + z.bound)
    error = error + _smallest_normal(z.dtype)
    return Expected(f"{z.what}, {activation}", z.dtype, EXACT_ACTIVATIONS[activation](z.value), error, math.inf)


def expect_matmul_grad(name: str, a: Tensor, b: Tensor, grad: Tensor, *, is_tf32: bool = False) -> Expected:
    """The gradient of the operand `name`, "a" or "b", of matmul(a, b)."""
    shape, is_one_product = (a.shape, False) if name == "a" else (b.shape, b.dim() <= 2 and a.dim() >= 2)
    if b.dim() == 1:
        b, grad = b.unsqueeze(1), grad.unsqueeze(-1)
    if a.dim() == 1:
        a, grad = a.unsqueeze(0), grad.unsqueeze(-2)
    a, b = (tensor.expand(*grad.shape[:-2], *tensor.shape[-2:]) for tensor in (a, b))
    left, right = (grad, b.mT) if name == "a" else (a.mT, grad)
    expected = _expect_sum_of_items(left, right, shape[:-2], is_one_product, is_tf32)
    return _reshape(expected, shape)


def expect_linear_grad(
    name: str,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    grad: Tensor,
    *,
    is_tf32: bool = False,
    is_slope_rounded: bool = False,
) -> Expected:
    """The gradient of the operand `name`, "input", "weight" or "bias", of linear."""
    z = _expect_sum(input, weight, bias, is_tf32)
    inner = _times_slope(_Inexact(_double(grad), torch.zeros_like(z.value)), z, activation, is_slope_rounded)
    operand = inner.value.to(z.dtype)
    error = inner.error + 2 * _rounding(inner.value.abs() + inner.error, z.dtype) if activation != "none" else None
    if weight.dim() == 1:
        operand, error = operand.unsqueeze(-1), None if error is None else error.unsqueeze(-1)
    operand, error = _rows(operand), None if error is None else _rows(error)
    if name == "input":
        matrix = weight if weight.dim() == 2 else weight.unsqueeze(0)
        return _reshape(_expect_product(operand, matrix, error, is_tf32), input.shape)
    if name == "weight":
        error = None if error is None else error.mT
        return _reshape(_expect_product(operand.mT, _rows(input), error, is_tf32), weight.shape)
    assert name == "bias" and bias is not None
    columns = _expect_product(operand.mT, torch.ones_like(operand[:, :1]), None if error is None else error.mT, False)
    if bias.numel() == columns.value.numel():
        return _reshape(columns, bias.shape)
    # One bias for all columns: they are added up, rounded.
    whole = operand.reshape(1, -1)
    total = _expect_product(whole, torch.ones_like(whole).mT, None if error is None else error.reshape(1, -1), False)
    return _reshape(_widen(total, _error_when_rounded(columns).sum() - columns.bound.sum()), bias.shape)


def expect_matmul_tangent(
    a: Tensor, b: Tensor, a_tangent: Tensor | None, b_tangent: Tensor | None, *, is_tf32: bool = False
) -> Expected:
    """The tangent of matmul(a, b); None is an operand without a tangent."""
    terms = [
        _expect_product(left, right, None, is_tf32)
        for left, right in ((a_tangent, b), (a, b_tangent))
        if left is not None and right is not None
    ]
    return _finish("tangent of matmul", a.dtype, _add(terms, a.dtype))


def expect_linear_tangent(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    input_tangent: Tensor | None,
    weight_tangent: Tensor | None,
    bias_tangent: Tensor | None,
    *,
    is_tf32: bool = False,
    is_slope_rounded: bool = False,
) -> Expected:
    """The tangent of linear; None is an operand without a tangent."""
    z = _expect_sum(input, weight, bias, is_tf32)
    terms = [
        _expect_sum(left, right, None, is_tf32)
        for left, right in ((input_tangent, weight), (input, weight_tangent))
        if left is not None and right is not None
    ]
    if bias_tangent is not None:
        value = _double(bias_tangent) if weight.dim() == 2 else _double(bias_tangent).reshape(())
        value = value.expand(z.value.shape)
        terms.append(Expected("bias", z.dtype, value, torch.zeros_like(value), 0.0))
    return _finish("tangent of linear", z.dtype, _times_slope(_add(terms, z.dtype), z, activation, is_slope_rounded))


@dataclass(frozen=True)
class _Inexact:
    """Float64 values, and how far off the computed ones may be."""

    value: Tensor
    error: Tensor


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float64)


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])


def _acc_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _u_acc(dtype: torch.dtype) -> float:
    return torch.finfo(_acc_dtype(dtype)).eps / 2


def _smallest_normal(dtype: torch.dtype) -> float:
    """Of the accumulator."""
    return torch.finfo(_acc_dtype(dtype)).tiny


def _rounding(magnitude: Tensor, dtype: torch.dtype) -> Tensor:
    """The most that rounding to the dtype changes a number of this magnitude."""
    info = torch.finfo(dtype)
    return info.eps / 2 * magnitude + info.tiny * info.eps / 2


def _error_when_rounded(expected: Expected) -> Tensor:
    return expected.bound + _rounding(expected.value.abs() + expected.bound, expected.dtype)


def _widen(expected: Expected, extra: Tensor) -> Expected:
    """With `extra` more for each element; none where a sum is not finite."""
    extra = torch.where(expected.value.isfinite(), extra, 0.0)
    frobenius_bound = expected.frobenius_bound + extra.norm().item()
    return replace(expected, bound=expected.bound + extra, frobenius_bound=frobenius_bound)


def _reshape(expected: Expected, shape: torch.Size) -> Expected:
    return replace(expected, value=expected.value.reshape(shape), bound=expected.bound.reshape(shape))


def _finish(what: str, dtype: torch.dtype, inexact: _Inexact) -> Expected:
    bound = torch.where(inexact.value.isfinite(), inexact.error, 0.0)
    return Expected(what, dtype, inexact.value, bound, math.inf)


def _expect_product(a: Tensor, b: Tensor, a_error: Tensor | None, is_tf32: bool) -> Expected:
    """The product of a, which may be off by a_error, and b."""
    expected = expect_matmul(a, b)
    if is_tf32:
        expected = allow_tf32(expected, a, b)
    if a_error is None:
        return expected
    # Roundings of the error's own products are less than a part in 2^10.
    extra = (1 + 2**-10) * torch.matmul(a_error, _double(b).abs())
    return _widen(expected, extra * (1 + 2**-9) if is_tf32 else extra)


def _expect_sum(input: Tensor, weight: Tensor, bias: Tensor | None, is_tf32: bool) -> Expected:
    """input weight^T + bias, what an activation is applied to."""
    if bias is not None and weight.dim() == 1:
        bias = bias.reshape(())  # a vector has no columns that a bias could have
    expected = expect_linear(input, weight, bias)
    return allow_tf32(expected, input, weight.mT if weight.dim() == 2 else weight) if is_tf32 else expected


def _expect_sum_of_items(
    left: Tensor, right: Tensor, own_batch: torch.Size, is_one_product: bool, is_tf32: bool
) -> Expected:
    """The products of all items, added up over the batch dimensions that `own_batch` lacks or has with size 1."""
    batch = left.shape[:-2]
    own = (1,) * (len(batch) - len(own_batch)) + tuple(own_batch)
    kept = [d for d in range(len(batch)) if own[d] == batch[d]]
    added = [d for d in range(len(batch)) if own[d] != batch[d]]

    def side_by_side(tensor: Tensor) -> Tensor:
        """The items that are added up as one matrix, one after the other along k."""
        sizes = [batch[d] for d in kept]
        rows, columns = tensor.shape[-2:]
        length = columns * math.prod(batch[d] for d in added)
        return tensor.permute(*kept, len(batch), *added, len(batch) + 1).reshape(*sizes, rows, length)

    expected = _expect_product(side_by_side(left), side_by_side(right.mT).mT, None, is_tf32)
    if is_one_product or not added:
        return expected
    items = _expect_product(left, right, None, is_tf32)
    return _widen(expected, _rounding(items.value.abs() + items.bound, items.dtype).sum(added))


def _add(terms: list[Expected], dtype: torch.dtype) -> _Inexact:
    """The sum of the terms, every one and every partial sum rounded."""
    value, error = terms[0].value, terms[0].bound if len(terms) == 1 else _error_when_rounded(terms[0])
    for term in terms[1:]:
        value, error = value + term.value, error + _error_when_rounded(term)
        error = error + _rounding(value.abs() + error, dtype)
    return _Inexact(value, error)


def _times_slope(factor: _Inexact, z: Expected, activation: str, is_slope_rounded: bool) -> _Inexact:
    """factor, rounded, times the activation's slope at z, before the last rounding."""
    if activation == "none":
        return factor
    off = _error_when_rounded(z)
    if activation == "relu":
        slope, error = (z.value > 0).double(), (z.value.abs() <= off).double()
    else:
        with torch.enable_grad():
            at = z.value.clone().requires_grad_()
            (slope,) = torch.autograd.grad(EXACT_ACTIVATIONS[activation](at).sum(), at)
        error = _CURVATURE[activation] * off + _SLOPE_ROUNDINGS * _u_acc(z.dtype)
        if is_slope_rounded:
            error = error + torch.finfo(z.dtype).eps / 2 * (8 + 4 * (z.value.abs() + off))
    inexact = factor.error + torch.where(factor.error > 0, _rounding(factor.value.abs() + factor.error, z.dtype), 0.0)
    error = inexact * (slope.abs() + error) + factor.value.abs() * error + _smallest_normal(z.dtype)
    return _Inexact(factor.value * slope, error)

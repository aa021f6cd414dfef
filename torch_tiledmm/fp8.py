"""Products of layers in FP8: what TiledLinear with a precision and QuantizedLinear compute, with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.overrides import _get_current_function_mode_stack

from .dispatch import use_algorithm
from .ops import _is_nested, _jagged, _need_grad, _result_dtype, has_own_products, matmul, scaled_matmul
from .quantize import quantize_blocks, quantize_rows

PRECISIONS = ("fp8_row", "fp8_block")  # of layers that are trained
RECIPES = (*PRECISIONS, "fp8_weight_only")  # of layers whose weights are stored in 8 bits
WEIGHT_GRADS = ("wide", "fp8")


def check_precision(precision: str | None, weight_grad: str) -> None:
    """Raises ValueError for names that are not known."""
    if precision not in (None, *PRECISIONS):
        raise ValueError(f"precision: got {precision!r}, expected None or one of {', '.join(PRECISIONS)}")
    if weight_grad not in WEIGHT_GRADS:
        raise ValueError(f"weight_grad: got {weight_grad!r}, expected one of {', '.join(WEIGHT_GRADS)}")


def fp8_linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    precision: str,
    weight_grad: str,
    activation: str,
    algorithm: str,
    out_dtype: torch.dtype | None,
) -> Tensor:
    """`linear` with both operands rounded to FP8 first, and so those of its gradients, as TiledLinear says."""
    check_precision(precision, weight_grad)
    if _is_nested(input):
        options = {"weight_grad": weight_grad, "activation": activation, "algorithm": algorithm, "out_dtype": out_dtype}

        def on_values(values: Tensor) -> Tensor:
            return fp8_linear(values, weight, bias, precision=precision, **options)  # type: ignore[arg-type]

        return _jagged(on_values, input, "input", weight=weight, bias=bias)
    if has_own_products(weight):
        raise NotImplementedError(
            f"weight: got a {type(weight).__name__}, which has products of its own, with precision {precision!r}; "
            "accepted with it is None"
        )
    input, autocast_dtype = _under_autocast(input)
    out_dtype = out_dtype or autocast_dtype or _result_dtype(input, weight, None)

    def of_rows(x: Tensor) -> Tensor:
        if not _need_derivative(x, weight, bias):
            return _product(
                precision, x, weight, "weight", bias=bias, out_dtype=out_dtype, activation=activation,
                algorithm=algorithm,
            )  # fmt: skip
        name = _algorithm_of_backward(algorithm)
        out: Tensor = _Fp8Linear.apply(x, weight, bias, precision, weight_grad, name, out_dtype)
        return out if activation == "none" else torch.ops.tiledmm.activate.default(out, activation)

    return _by_rows(of_rows, input, weight.shape[0])


def quantized_linear(
    input: Tensor,
    q: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    *,
    precision: str,
    activation: str,
    algorithm: str,
    out_dtype: torch.dtype | None,
) -> Tensor:
    """The same by a weight that is stored in FP8; of gradients, those of the input and of the bias."""
    if precision not in RECIPES:
        raise ValueError(f"precision: got {precision!r}, expected one of {', '.join(RECIPES)}")
    if _is_nested(input):

        def on_values(values: Tensor) -> Tensor:
            options = {"activation": activation, "algorithm": algorithm, "out_dtype": out_dtype}
            return quantized_linear(values, q, scale, bias, precision=precision, **options)  # type: ignore[arg-type]

        return _jagged(on_values, input, "input", bias=bias)
    input, autocast_dtype = _under_autocast(input)
    out_dtype = out_dtype or autocast_dtype or input.dtype

    def of_rows(x: Tensor) -> Tensor:
        if not _need_derivative(x, bias):
            return _quantized_product(precision, x, q, scale, bias, out_dtype, activation, algorithm)
        name = _algorithm_of_backward(algorithm)
        out: Tensor = _QuantizedLinear.apply(x, q, scale, bias, precision, name, out_dtype)
        return out if activation == "none" else torch.ops.tiledmm.activate.default(out, activation)

    return _by_rows(of_rows, input, q.shape[0])


def quantized_weight(recipe: str, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A weight in 8 bits and its scales, as a recipe stores them."""
    return _quantized("fp8_row" if recipe == "fp8_weight_only" else recipe, weight.detach(), "weight")


def dequantized_weight(q: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The values that a weight in 8 bits stands for."""
    if scale.shape != (q.shape[0], 1):  # blocks of 128 x 128
        scale = scale.repeat_interleave(128, 0)[: q.shape[0]].repeat_interleave(128, 1)[:, : q.shape[1]]
    return (q.float() * scale).to(dtype)


def _quantized(precision: str, operand: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """(rows, k) in 8 bits with scales along k, by row or by block: of 128 rows for a "weight", of one for "rows"."""
    if precision == "fp8_row":
        return quantize_rows(operand)
    return quantize_blocks(operand, block_rows=128 if kind == "weight" else 1)


def _product(precision: str, a: Tensor, b: Tensor, kind_of_b: str, **options: Any) -> Tensor:
    """`a @ b.T` of operands that are quantised along k, which is the last dimension of both."""
    qa, scale_a = _quantized(precision, a, "rows")
    qb, scale_b = _quantized(precision, b, kind_of_b)
    return scaled_matmul(qa, qb.mT, scale_a, scale_b.mT, **options)


class _Fp8Linear(torch.autograd.Function):
    """Three products of one form: what is summed over is the last dimension of both operands, as they lie or turned."""

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        precision: str,
        weight_grad: str,
        algorithm: str,
        out_dtype: torch.dtype,
    ) -> Tensor:
        options = {"bias": _detached(bias), "out_dtype": out_dtype, "algorithm": algorithm}
        return _product(precision, x, weight, "weight", **options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        x, weight, bias, ctx.precision, ctx.weight_grad, ctx.algorithm, _ = inputs
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)
        ctx.dtypes = x.dtype, weight.dtype, None if bias is None else bias.dtype

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        x_dtype, weight_dtype, bias_dtype = ctx.dtypes
        options = {"algorithm": ctx.algorithm}
        grad_x = grad_weight = grad_bias = None
        with torch.no_grad(), _without_autocast(grad):
            if needs_x:
                grad_x = _product(ctx.precision, grad, weight.mT, "weight", out_dtype=x_dtype, **options)
            if needs_weight and ctx.weight_grad == "fp8":
                grad_weight = _product(ctx.precision, grad.mT, x.mT, "rows", out_dtype=weight_dtype, **options)
            elif needs_weight and needs_bias and grad.dtype == x.dtype == weight_dtype:
                grad_weight, grad_bias = torch.ops.tiledmm.linear_weight_grads.default(grad, x, **options)
            elif needs_weight:
                grad_weight = _wide_weight_grad(grad, x, ctx.algorithm).to(weight_dtype)
            if needs_bias and grad_bias is None:
                grad_bias = torch.ops.tiledmm.ordered_sum.default(grad, [0]).squeeze(0)
            if grad_bias is not None:
                grad_bias = grad_bias.to(bias_dtype)
        grad_x, grad_weight = _final(grad_x, grad, weight), _final(grad_weight, grad, x)
        return grad_x, grad_weight, _final(grad_bias, grad), None, None, None, None


class _Final(torch.autograd.Function):
    """A gradient as it is, which depends on `operands` and has no derivative."""

    @staticmethod
    def forward(gradient: Tensor, *operands: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        raise NotImplementedError(
            "tiledmm: a derivative of the gradient of an FP8 layer was asked for, and there is none; layers whose "
            "gradients are differentiated, as a penalty on gradients does, need precision None"
        )


def _final(gradient: Tensor | None, *operands: Tensor | None) -> Tensor | None:
    """The gradient, with an error for whoever differentiates it by what it was computed from.

    once_differentiable looks at the result's gradient alone, and a share by the weight or the input would be lost.
    torch.compile has an error of its own.
    """
    if gradient is None or is_compiling() or not _need_grad(*operands):
        return gradient
    final: Tensor = _Final.apply(gradient, *operands)
    return final


def _detached(operand: Tensor | None) -> Tensor | None:
    """For scaled_matmul, which takes none with a gradient: torch.export traces it without the Function around it."""
    return None if operand is None else operand.detach()


def _wide_weight_grad(grad: Tensor, x: Tensor, algorithm: str) -> Tensor:
    """Summed in float32 and not rounded."""
    if grad.dtype != x.dtype and torch.float32 not in (grad.dtype, x.dtype):
        grad, x = grad.float(), x.float()
    return matmul(grad.mT, x, algorithm=algorithm, out_dtype=torch.float32)


class _QuantizedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        x: Tensor,
        q: Tensor,
        scale: Tensor,
        bias: Tensor | None,
        precision: str,
        algorithm: str,
        out_dtype: torch.dtype,
    ) -> Tensor:
        return _quantized_product(precision, x, q, scale, _detached(bias), out_dtype, "none", algorithm)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        x, q, scale, bias, _, ctx.algorithm, _ = inputs
        ctx.save_for_backward(q, scale)
        ctx.dtypes = x.dtype, None if bias is None else bias.dtype

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x_dtype, bias_dtype = ctx.dtypes
        grad_x = grad_bias = None
        with torch.no_grad(), _without_autocast(grad):
            if ctx.needs_input_grad[0]:
                q, scale = ctx.saved_tensors
                weight = dequantized_weight(q, scale, grad.dtype)
                grad_x = matmul(grad, weight, algorithm=ctx.algorithm).to(x_dtype)
            if ctx.needs_input_grad[3]:
                grad_bias = torch.ops.tiledmm.ordered_sum.default(grad, [0]).squeeze(0).to(bias_dtype)
        return _final(grad_x, grad), None, None, _final(grad_bias, grad), None, None, None


def _quantized_product(
    precision: str,
    x: Tensor,
    q: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    activation: str,
    algorithm: str,
) -> Tensor:
    if precision == "fp8_weight_only":
        out: Tensor = torch.ops.tiledmm._weight_only.default(
            x, q, scale, bias, out_dtype=out_dtype, activation=activation, algorithm=algorithm
        )
        return out
    qx, scale_x = _quantized(precision, x, "rows")
    return scaled_matmul(
        qx, q.mT, scale_x, scale.mT, bias=bias, out_dtype=out_dtype, activation=activation, algorithm=algorithm
    )


def _by_rows(product: Callable[[Tensor], Tensor], input: Tensor, columns: int) -> Tensor:
    """The product of a matrix, for inputs of any number of dimensions."""
    if input.dim() == 2:
        return product(input)
    if input.dim() == 0:
        raise RuntimeError("input: got a scalar, expected (..., in_features)")
    rows = input.unsqueeze(0) if input.dim() == 1 else input.flatten(0, -2)
    return product(rows).reshape(*input.shape[:-1], columns)


def _under_autocast(input: Tensor) -> tuple[Tensor, torch.dtype | None]:
    """The input as autocast casts it for nn.Linear, and the dtype of what it gives; None without autocast.

    A weight is not cast: its elements are rounded to 8 bits, and to cast them first would be to round them twice.
    """
    device = input.device.type
    if not _has_autocast(device) or not torch.is_autocast_enabled(device) or input.dtype == torch.float64:
        return input, None
    dtype = torch.get_autocast_dtype(device)
    return input.to(dtype), dtype


def _without_autocast(operand: Tensor) -> AbstractContextManager:
    device = operand.device.type
    return torch.autocast(device, enabled=False) if _has_autocast(device) else nullcontext()


def _has_autocast(device: str) -> bool:
    """The meta device, for one, has none, and torch raises an error where it is asked about it.

    torch.compile of torch 2.11 cannot trace the question.
    """
    return device in ("cpu", "cuda") or (not is_compiling() and torch.amp.is_autocast_available(device))


def _need_derivative(*operands: Tensor | None) -> bool:
    """A function of autograd raises for tangents; without one they would be lost."""
    return _need_grad(*operands) or forward_ad._current_level >= 0


def _algorithm_of_backward(algorithm: str) -> str:
    """What "auto" means now: a backward pass is outside of the contexts that are around it."""
    if algorithm == "auto" and not is_compiling():
        for mode in reversed(_get_current_function_mode_stack()):
            if isinstance(mode, use_algorithm):
                return mode._name
    return algorithm

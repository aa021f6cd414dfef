"""The operators of torch.ops.tiledmm, matmul, addmm, linear, gated_linear, grouped_matmul and scaled_matmul among
them, and those of their gradients: documentation, vmap, flop counts.

Kernels, meta kernels, autograd and autocast are C++ (csrc/torch).
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.compiler import is_compiling, is_exporting
from torch.jit._builtins import _register_builtin
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import flop_registry, register_flop_formula

from . import direct

# Called without what is the default: handing it over takes 1 us.
_matmul = torch.ops.tiledmm.matmul.default
_linear = torch.ops.tiledmm.linear.default


def matmul(
    a: Tensor,
    b: Tensor,
    *,
    algorithm: str = "auto",
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Matrix product with the semantics of `torch.matmul`:

        matmul(torch.randn(8, 3, 4), torch.randn(4, 5)).shape  # torch.Size([8, 3, 5])
        matmul(torch.randn(4), torch.randn(4, 5)).shape        # torch.Size([5]): a vector is a row of a, a column of b

    Args:
        a: (k,), (m, k) or (..., m, k); float32, float64, float16 or bfloat16; any strides, no operand is copied. Or a
            nested tensor of layout torch.jagged, by a matrix: any dimension but the last may be the ragged one.
        b: (k,), (k, n) or (..., k, n); device of `a`. Batch dimensions broadcast. Its dtype is that of `a`, or one of
            them is float32 and the other float16 or bfloat16: such a product is exact for the elements as they are.
        algorithm: a name of `torch_tiledmm.algorithms(device)`: each device has its own. "auto" is what
            `torch_tiledmm.use_algorithm` says, else the cheapest legal kernel.
        out: the result goes there; its shape and device, a dtype as `out_dtype` accepts, any strides, no memory in
            common with `a` and `b`. Gradients do not pass through it.
        out_dtype: of the result, to which the float32 sums are rounded once: float32 or the operands' other dtype where
            these are float32, float16 or bfloat16, and float16 or bfloat16 where both are float32. None: the operands'
            dtype, float32 where they differ. A gradient comes in it and is not rounded before it is multiplied.

    Returns:
        `out`, or the product in new memory, contiguous. float16 and bfloat16 are summed in float32 and rounded once;
        where dtypes differ, tf32 is never used. A row's bits depend neither on m, nor on the place in the batch, nor on
        the number of threads.

    Raises:
        TypeError: a dtype that is not accepted, or dtypes that do not go together.
        ValueError: an algorithm that is not known.
        NotImplementedError: an algorithm that cannot serve this device; a layout other than strided and, for the first
            operand, jagged.
        RuntimeError: shapes that do not fit, or different devices; an `out` that shares memory, or needs a gradient.
    """
    product: Tensor
    if out is None:
        if direct.is_here and out_dtype is None and not is_compiling():
            product = direct.matmul(a, b, algorithm)
            if product is not NotImplemented:
                return product
        if _is_nested(a) or _is_nested(b):
            return _jagged(lambda values: matmul(values, b, algorithm=algorithm, out_dtype=out_dtype), a, "a", b=b)
        if _is_onnx_exported():
            return torch.matmul(*_alike(a, b, out_dtype)).to(_result_dtype(a, b, out_dtype))
        if algorithm == "auto" and out_dtype is None:
            product = _matmul(a, b)
        else:
            product = _matmul(a, b, algorithm=algorithm, out_dtype=out_dtype)
        return product
    if out_dtype not in (None, out.dtype):
        raise TypeError(f"out_dtype: got {out_dtype} with an out of dtype {out.dtype}; accepted is that, or None")
    torch.ops.tiledmm.matmul_out.default(a, b, out, algorithm=algorithm)
    return out


def addmm(
    input: Tensor | None,
    a: Tensor,
    b: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    algorithm: str = "auto",
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """`beta * input + alpha * (a @ b)`, with the semantics of `torch.addmm`, for batches of matrices, too:

        addmm(torch.randn(5), torch.randn(3, 4), torch.randn(4, 5), alpha=0.5).shape  # torch.Size([3, 5])

    Args:
        input: any shape that broadcasts to the product's; dtype of `a`, of `b` or of the result, device of `a`; any
            strides. None: nothing is added.
        a: (..., m, k); float32, float64, float16 or bfloat16; any strides, no operand is copied.
        b: (..., k, n); device of `a`, dtype as in `matmul`. Batch dimensions broadcast.
        beta: 0: `input` is not read, and NaN in it is not propagated.
        alpha: 0: `a` and `b` are not read.
        algorithm, out_dtype: as for `matmul`.

    Returns:
        The sum in new memory, contiguous. It is computed in the dtype in which products are summed and rounded once. A
        row's bits depend neither on m, nor on the place in the batch, nor on the number of threads. With beta = 1 and
        alpha = 1 they are those of `linear` with `input` as its bias.

    Raises:
        As `matmul`.
    """
    if _is_onnx_exported():
        product = alpha * torch.matmul(*_alike(a, b, out_dtype))
        sum_ = product if input is None or beta == 0 else beta * input + product
        return sum_.to(_result_dtype(a, b, out_dtype))
    out: Tensor = torch.ops.tiledmm.addmm.default(
        input, a, b, beta=beta, alpha=alpha, algorithm=algorithm, out_dtype=out_dtype
    )
    return out


def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    algorithm: str = "auto",
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """`activation(input @ weight.T + bias)`, with the semantics of `torch.nn.functional.linear`:

        linear(torch.randn(8, 3, 4), torch.randn(5, 4), torch.randn(5), activation="gelu").shape  # (8, 3, 5)

    Args:
        input: (..., in_features); float32, float64, float16 or bfloat16; any strides. Or a nested tensor of layout
            torch.jagged, of which any dimension but the last may be the ragged one.
        weight: (out_features, in_features) or (in_features,); device of `input`, dtype as `b` in `matmul`; read as it
            is stored. A tensor of a class with products of its own, such as torchao's quantized ones, computes them
            itself: `torch.nn.functional.linear` is called, and the activation after it.
        bias: (out_features,) or (1,), or None; dtype of `input`, of `weight` or of the result; added before the
            activation.
        activation: "none", "relu", "gelu", "gelu_tanh" or "silu", applied before the result is rounded.
        algorithm, out_dtype: see `matmul`.

    Returns:
        (..., out_features), contiguous; for a nested input, nested as that is. It is rounded once, after bias and
        activation; under torch.vmap over weight or bias, bias and activation are operations of their own, so that
        float16 and bfloat16 are rounded before each.

    Raises:
        As `matmul`; ValueError also for an activation that is not known. NotImplementedError also for an algorithm
        other than "auto", or an `out_dtype`, where the weight has products of its own.
    """
    out: Tensor
    if direct.is_here and out_dtype is None and not is_compiling():
        out = direct.linear(input, weight, bias, activation, algorithm)
        if out is not NotImplemented:
            return out
    if _is_nested(input) or _is_nested(weight) or _is_nested(bias):

        def on_values(values: Tensor) -> Tensor:
            return linear(values, weight, bias, activation=activation, algorithm=algorithm, out_dtype=out_dtype)

        return _jagged(on_values, input, "input", weight=weight, bias=bias)
    is_left_to_weight = has_own_products(weight)
    if is_left_to_weight and algorithm != "auto":
        raise NotImplementedError(
            f"weight: got a {type(weight).__name__}, which has products of its own, with algorithm {algorithm!r}; "
            'accepted with it is "auto"'
        )
    if is_left_to_weight and out_dtype is not None:
        raise NotImplementedError(
            f"weight: got a {type(weight).__name__}, which has products of its own, with out_dtype {out_dtype}; "
            "accepted with it is None"
        )
    if is_left_to_weight:
        return _by_torch(input, weight, bias, activation)
    if _is_onnx_exported():
        return _by_torch(*_alike(input, weight, out_dtype), bias, activation).to(
            _result_dtype(input, weight, out_dtype)
        )
    if activation == "none" and algorithm == "auto" and out_dtype is None:
        out = _linear(input, weight, bias)
    else:
        out = _linear(input, weight, bias, activation=activation, algorithm=algorithm, out_dtype=out_dtype)
    return out


def gated_linear(
    input: Tensor,
    gate: Tensor,
    up: Tensor | None = None,
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    *,
    activation: str = "silu",
    algorithm: str = "auto",
    out_dtype: torch.dtype | None = None,
    keeps_sums: bool = True,
) -> Tensor:
    """`activation(input @ gate.T + gate_bias) * (input @ up.T + up_bias)`, a gated feed-forward's first half (Shazeer,
    "GLU variants improve transformer", 2020):

        gated_linear(torch.randn(8, 3, 4), torch.randn(5, 4), torch.randn(5, 4)).shape  # torch.Size([8, 3, 5])

    Args:
        input: (..., in_features), as in `linear`; no nested tensor.
        gate, up: (out_features, in_features), dtypes as `weight` of `linear`; each is read where it lies. One tensor
            that holds both is given by its parts: stacked `w.chunk(2)`, interleaved `(w[::2], w[1::2])`. Without an
            `up`, `gate` is a stacked one, (2 * out_features, in_features), and so is `gate_bias`.
        gate_bias, up_bias: (out_features,), or None; both of one dtype, as `bias` of `linear`.
        activation: "silu", "gelu", "gelu_tanh" or "relu".
        algorithm, out_dtype: see `matmul`; of both products, and of the result.
        keeps_sums: whether a backward pass finds both sums, rounded to the result's dtype, or computes them again.

    Returns:
        (..., out_features), contiguous. Both sums stay in float32 (float64), and what comes of them is rounded once. A
        row's bits depend neither on m, nor on the place in the batch, nor on the number of threads, nor on whether a
        gradient is needed.

    Raises:
        As `linear`; RuntimeError for weights of unlike shapes, TypeError for weights or biases of unlike dtypes.
    """
    options: dict[str, Any] = {"activation": activation, "algorithm": algorithm, "out_dtype": out_dtype}
    if up is None:
        _check_stacked(gate, 2, 0, "(2 * out_features, in_features)", gate_bias, up_bias)
        if _need_grad(input, gate, gate_bias) and not _is_onnx_exported():
            stacked = torch.ops.tiledmm._stacked_gated_linear.default
            return _compute_gated(stacked, keeps_sums, input, gate, gate_bias, **options)
        gate, up = gate.chunk(2)
        gate_bias, up_bias = (None, None) if gate_bias is None else gate_bias.chunk(2)
    if _is_onnx_exported():
        product = _by_torch(input, gate, gate_bias, activation) * _by_torch(input, up, up_bias, "none")
        return product if out_dtype is None else product.to(out_dtype)
    operands = (input, gate, up, gate_bias, up_bias)
    keeps_sums = keeps_sums or not _need_grad(*operands)
    return _compute_gated(torch.ops.tiledmm.gated_linear.default, keeps_sums, *operands, **options)


def _compute_gated(
    function: Callable[..., Tensor], keeps_sums: bool, *operands: Tensor | None, **options: Any
) -> Tensor:
    if keeps_sums:
        return function(*operands, **options)
    out: Tensor = checkpoint(function, *operands, use_reentrant=False, **options)
    return out


def _check_stacked(
    gate: Tensor, dim: int, stacked: int, accepted: str, gate_bias: Tensor | None, up_bias: Tensor | None
) -> None:
    """Of a gate that holds an up behind it, along its dimension `stacked`: its shape, and that of a bias of both."""
    if gate.dim() != dim or gate.shape[stacked] % 2:
        raise RuntimeError(f"gate: got shape {list(gate.shape)} without an up; accepted is {accepted}")
    both = [gate.shape[stacked]] if dim == 2 else [gate.shape[0], gate.shape[stacked]]
    if up_bias is not None or (gate_bias is not None and list(gate_bias.shape) != both):
        given = [None if bias is None else list(bias.shape) for bias in (gate_bias, up_bias)]
        raise RuntimeError(
            f"gate_bias, up_bias: got shapes {given[0]} and {given[1]} without an up; accepted is one gate_bias of "
            f"shape {both}, or None"
        )


def grouped_matmul(
    a: Tensor,
    b: Tensor,
    *,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    activation: str = "none",
    algorithm: str = "auto",
    checks_offs: bool = False,
) -> Tensor:
    """Products of several sizes in one call, in the four forms of `torch.nn.functional.grouped_mm`. `offs` says where
    each of G groups ends, and the sizes may be known on the device alone:

        a (m, k), b (G, k, n), offs along m    -> (m, n): rows of a group by a matrix of its own, as of experts
        a (G, m, k), b (G, k, n), no offs      -> (G, m, n): a batch
        a (m, k), b (k, n), offs along k       -> (G, m, n): one sum for each group, as of experts' weights' gradients
        a (G, m, k), b (k, n), offs along n    -> (m, n): columns of a group by a matrix of its own

        offs = torch.tensor([2, 2, 7], dtype=torch.int32)  # groups of 2, 0 and 5 rows; the last row is in none
        grouped_matmul(torch.randn(8, 4), torch.randn(3, 4, 5), offs=offs).shape  # torch.Size([8, 5])

    Args:
        a, b: dtypes as in `matmul`; any strides, no operand is copied.
        offs: (G,), int32, device of `a`; ends that do not decrease, the last one at most the size that is grouped.
        bias: (G, n), a row for each group; dtype as `bias` of `linear`; None where columns are grouped.
        out_dtype, algorithm: see `matmul`.
        activation: "none", "relu", "gelu", "gelu_tanh" or "silu", applied before the result is rounded.
        checks_offs: whether a GPU's offsets are read and checked, for which the host waits. Those of a CPU always are.

    Returns:
        The products in new memory, contiguous. Rows (columns) behind the last group are 0, and elements of `a` and `b`
        behind it change nothing. Row i of group g has the bits of `matmul(a[i], b[g])` by the same kernel, whatever
        else is in the call; on a CPU "auto" takes the same. A sum over a group of k has an order of its own, from the
        group's first element on.

    Raises:
        As `linear`; ValueError for offsets that decrease or leave the operand. Where a GPU's are not checked, such
        offsets give values that are undefined, and no access outside of the operands. NotImplementedError under
        torch.vmap, and so in torch.func.jacrev: groups are a batch of their own.
    """
    options: dict[str, Any] = {"out_dtype": out_dtype, "activation": activation, "algorithm": algorithm}
    out: Tensor = torch.ops.tiledmm.grouped_matmul.default(a, b, offs, bias, **options)
    if checks_offs and offs is not None:
        _check_offs(a, b, offs)
    return out


def _check_offs(a: Tensor, b: Tensor, offs: Tensor) -> None:
    """Raises ValueError for ends that decrease or leave the operand; the rest of both has been checked."""
    size = a.shape[-1] if a.dim() == b.dim() else a.shape[0] if a.dim() == 2 else b.shape[1]
    torch.ops.tiledmm._check_offs(offs.cpu(), size)


def gated_grouped_matmul(
    a: Tensor,
    gate: Tensor,
    up: Tensor | None = None,
    *,
    offs: Tensor | None = None,
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    activation: str = "silu",
    algorithm: str = "auto",
    checks_offs: bool = False,
) -> Tensor:
    """`activation(grouped_matmul(a, gate)) * grouped_matmul(a, up)`: the first half of gated experts.

    Args:
        a: (m, k), rows of each group one after the other, or (G, m, k).
        gate, up: (G, k, n), each read where it lies; an nn.Linear-like (G, n, k) is given as `w.mT`. Without an `up`,
            `gate` is (G, k, 2 n) and holds both, one after the other, and so does `gate_bias`, (G, 2 n).
        offs, out_dtype, algorithm, checks_offs: as in `grouped_matmul`.
        gate_bias, up_bias: (G, n), or None; both of one dtype.
        activation: "silu", "gelu", "gelu_tanh" or "relu".

    Returns:
        (m, n) or (G, m, n), contiguous, rounded and kept for a gradient as by `gated_linear`.

    Raises:
        As `grouped_matmul` and `gated_linear`.
    """
    if up is None:
        _check_stacked(gate, 3, 2, "(groups, k, 2 * n)", gate_bias, up_bias)
    options: dict[str, Any] = {"out_dtype": out_dtype, "algorithm": algorithm}
    out: Tensor
    if up is None and _need_grad(a, gate, gate_bias):
        stacked = torch.ops.tiledmm._stacked_gated_grouped_matmul.default
        out = stacked(a, gate, offs, gate_bias, activation=activation, **options)
    else:
        if up is None:
            gate, up = gate.chunk(2, -1)
            gate_bias, up_bias = (None, None) if gate_bias is None else gate_bias.chunk(2, -1)
        operands = (a, gate, up, offs, gate_bias, up_bias)
        out = torch.ops.tiledmm.gated_grouped_matmul.default(*operands, activation=activation, **options)
    if checks_offs and offs is not None:
        _check_offs(a, gate, offs)
    return out


def scaled_matmul(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = torch.bfloat16,
    activation: str = "none",
    algorithm: str = "auto",
) -> Tensor:
    """`activation((scale_a * a) @ (scale_b * b) + bias)` of operands of 8 bits, with the recipes of
    `torch.nn.functional.scaled_mm` whose scales are float32:

        a, b = torch.randn(64, 256).to(torch.float8_e4m3fn), torch.randn(256, 32).to(torch.float8_e4m3fn)
        scaled_matmul(a, b, torch.tensor(0.5), torch.tensor(2.0)).shape       # by tensor: torch.Size([64, 32])
        scaled_matmul(a, b, torch.rand(64, 1), torch.rand(1, 32)).shape       # by row of a and column of b
        scaled_matmul(a, b, torch.rand(64, 2), torch.rand(2, 1)).shape        # by 1 x 128 of a and 128 x 128 of b

    A scale is what an element is multiplied by: its value is `scale * element`.

    Args:
        a: (m, k), float8_e4m3fn or float8_e5m2; any strides.
        b: (k, n), float8_e4m3fn or float8_e5m2, not always that of `a`; device of `a`; any strides.
        scale_a, scale_b: float32, any strides, device of `a`. Their shapes say how they are shared, and both are of one
            of these kinds (a size is divided by 128 and rounded up):

                tensor or row   scale_a: one element, (m, 1) or (m,)     scale_b: one element, (1, n) or (n,)
                blocks of k     scale_a: (m, k / 128), (m / 128, k / 128)     scale_b: (k / 128, n), (k / 128, n / 128)

            Where k is at most 128, a scale for each row is one for each block, too: it goes with both kinds.
        bias: (n,), float32, float16 or bfloat16; added before the activation.
        out_dtype: bfloat16, which None means, too, float16 or float32.
        activation: "none", "relu", "gelu", "gelu_tanh" or "silu".
        algorithm: as for `matmul`. Where it names no kernel that reads 8 bits, kernels of other dtypes that it names
            multiply converted operands: in bfloat16, which is exact, or, with scales of blocks multiplied in, in
            float32.

    Returns:
        (m, n), contiguous. With scales by tensor or row, a sum is multiplied by `scale_a * scale_b`. With blocks, each
        sum over 128 of k is, or, where operands are converted, each element by its scale. All of it is in float32,
        never in tf32, and rounded once, after the activation. A row's bits depend neither on m, nor on the
        place in the batch, nor on the number of threads.

    Raises:
        TypeError: a dtype that is not accepted.
        ValueError: scales of a shape that is not accepted; an activation or algorithm that is not known.
        NotImplementedError: an algorithm that serves neither the operands nor what they are converted to; an operand
            that requires grad, since 8 bits have no gradients; torch.vmap.
        RuntimeError: shapes of `a`, `b` and `bias` that do not fit, or different devices.
    """
    out: Tensor = torch.ops.tiledmm.scaled_matmul.default(
        a, b, scale_a, scale_b, bias, out_dtype=out_dtype, activation=activation, algorithm=algorithm
    )
    return out


def scaled_grouped_matmul(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    offs: Tensor,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = torch.bfloat16,
    activation: str = "none",
    algorithm: str = "auto",
) -> Tensor:
    """`scaled_matmul` of rows in groups, each with a matrix and scales of its own, as experts have them in 8 bits:

        a, b = torch.randn(8, 256).to(torch.float8_e4m3fn), torch.randn(3, 256, 32).to(torch.float8_e4m3fn)
        offs = torch.tensor([2, 2, 7], dtype=torch.int32)  # groups of 2, 0 and 5 rows; the last row is in none
        scaled_grouped_matmul(a, b, torch.rand(8, 1), torch.rand(3, 1, 32), offs=offs)  # by row of a and column of b
        scaled_grouped_matmul(a, b, torch.rand(8, 2), torch.rand(3, 2, 1), offs=offs)   # by 1 x 128 and 128 x 128

    Args:
        a: (m, k), rows of each group one after the other; float8_e4m3fn or float8_e5m2; any strides.
        b: (groups, k, n), float8_e4m3fn or float8_e5m2, not always that of `a`; device of `a`; any strides.
        scale_a, scale_b: float32, any strides, device of `a`. Their shapes say how they are shared, and both are of one
            of these kinds (a size is divided by 128 and rounded up):

                tensor or row   scale_a: one element, (m, 1) or (m,)
                                scale_b: one element, (groups, 1, 1), (groups, 1, n) or (groups, n)
                blocks of 128   scale_a: (m, k / 128)     scale_b: (groups, k / 128, n / 128)

        offs: (groups,), int32, device of `a`: where each group ends, as in `grouped_matmul`. A CPU's are checked.
        bias: (groups, n), float32, float16 or bfloat16; added before the activation.
        out_dtype, activation, algorithm: as in `scaled_matmul`.

    Returns:
        (m, n), contiguous. Rows behind the last group are 0, whatever `a` has there. Row i of group g has the bits of
        `scaled_matmul(a[i], b[g])` with the scales of both, whatever else is in the call.

    Raises:
        As `scaled_matmul` and `grouped_matmul`. There are no gradients, and torch.vmap is refused.
    """
    out: Tensor = torch.ops.tiledmm.scaled_grouped_matmul.default(
        a, b, scale_a, scale_b, offs, bias, out_dtype=out_dtype, activation=activation, algorithm=algorithm
    )
    return out


def _need_grad(*operands: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(own is not None and own.requires_grad for own in operands)


# In TorchScript, calls of the functions are calls of the operators. The body of a function is nothing it could compile.
_register_builtin(matmul, "tiledmm::matmul")
_register_builtin(linear, "tiledmm::linear")
_register_builtin(grouped_matmul, "tiledmm::grouped_matmul")
_register_builtin(scaled_matmul, "tiledmm::scaled_matmul")
_register_builtin(scaled_grouped_matmul, "tiledmm::scaled_grouped_matmul")


def has_own_products(tensor: object) -> bool:
    """Whether a tensor is of a class that computes products in its own way, as torchao's quantized tensors do.

    Those of torch.distributed do not: DTensor has rules for the operators, and the others hand them on.
    """
    # Classes made of other tensors have this method. Unlike torch's own question, this can be asked in torch.compile.
    tensor_class = type(tensor)
    return hasattr(tensor_class, "__tensor_flatten__") and not tensor_class.__module__.startswith("torch.distributed.")


def _result_dtype(a: Tensor, b: Tensor, out_dtype: torch.dtype | None) -> torch.dtype:
    return out_dtype or torch.promote_types(a.dtype, b.dtype)


def _alike(a: Tensor, b: Tensor, out_dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """Two operands in the widest dtype of theirs and of the result, as functions of torch want them."""
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), _result_dtype(a, b, out_dtype))
    return a.to(dtype), b.to(dtype)


TORCH_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": functools.partial(torch.nn.functional.gelu, approximate="tanh"),
    "relu": torch.nn.functional.relu,
}


def _by_torch(input: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """`linear` in functions of torch."""
    z = torch.nn.functional.linear(input, weight, bias)
    if activation == "none":
        return z
    if activation not in TORCH_ACTIVATIONS:
        raise ValueError(f"activation {activation!r} is not known; accepted are none, relu, gelu, gelu_tanh, silu")
    return TORCH_ACTIVATIONS[activation](z)


def _is_onnx_exported() -> bool:
    """Whether torch.onnx.export traces this call: what it has translations for are torch's own operators."""
    return is_exporting() and torch.onnx.is_in_onnx_export()


def _is_nested(operand: object) -> bool:
    return isinstance(operand, Tensor) and operand.is_nested


def _jagged(product: Callable[[Tensor], Tensor], given: Tensor, name: str, **others: Tensor | None) -> Tensor:
    """The product of a jagged nested tensor: of its values, which are a dense tensor, with its ragged structure."""
    for other_name, other in others.items():
        if _is_nested(other):
            raise NotImplementedError(f"{other_name}: got a nested tensor; accepted as one is {name} alone")
        if name == "a" and other is not None and other.dim() != 2:
            raise NotImplementedError(
                f"{other_name}: got {other.dim()} dimensions beside a nested tensor; accepted is a matrix"
            )
    if given.layout != torch.jagged:
        raise NotImplementedError(
            f"{name}: got a nested tensor of layout {given.layout}; accepted is layout torch.jagged, as of "
            "torch.nested.nested_tensor(tensors, layout=torch.jagged)"
        )
    if given.lengths() is not None:  # type: ignore[attr-defined]
        raise NotImplementedError(
            f"{name}: got a nested tensor with holes between its items, as torch.nested.narrow makes; accepted is one "
            "without, as contiguous() makes of it"
        )
    ragged_dim = given._ragged_idx  # type: ignore[attr-defined]
    if ragged_dim == given.dim() - 1:
        raise NotImplementedError(
            f"{name}: got a nested tensor whose ragged dimension is the last one, along which products are summed; "
            "accepted is any other"
        )
    return torch.nested.nested_tensor_from_jagged(
        product(given.values()),
        given.offsets(),  # type: ignore[attr-defined]
        jagged_dim=ragged_dim,
        min_seqlen=given._maybe_min_seqlen,  # type: ignore[attr-defined]
        max_seqlen=given._maybe_max_seqlen,  # type: ignore[attr-defined]
    )


def _check_mapped(op: OpOverload, in_dims: Sequence[int | None], *operands: Tensor | None, **kwargs: object) -> None:
    """Raises what the operator raises for the shapes that the function under vmap sees: its meta kernel checks them."""
    op(
        *(
            operand
            if operand is None
            else torch.empty(_own_shape(operand, mapped_dim), dtype=operand.dtype, device="meta")
            for operand, mapped_dim in zip(operands, in_dims, strict=False)
        ),
        **kwargs,
    )


def _align(tensor: Tensor, is_mapped: bool, batch_dims: int) -> Tensor:
    """A mapped matrix (mapped dimension first) with dimensions of size 1 behind it, up to `batch_dims` of the batch."""
    if not is_mapped:
        return tensor
    missing = batch_dims - (tensor.dim() - 3)
    return tensor.reshape(tensor.shape[0], *[1] * missing, *tensor.shape[1:])


def _own_shape(tensor: Tensor, mapped_dim: int | None) -> list[int]:
    """The shape that the function under vmap sees."""
    return [size for d, size in enumerate(tensor.shape) if d != mapped_dim]


def _mapped_matmul(a_dim: int | None, b_dim: int | None, a: Tensor, b: Tensor, **options: Any) -> Tensor:
    """The product of mapped operands, mapped dimension first; at least one operand is mapped."""
    own_a, own_b = a.dim() - (a_dim is not None), b.dim() - (b_dim is not None)
    a = a if a_dim is None else a.movedim(a_dim, 0)
    b = b if b_dim is None else b.movedim(b_dim, 0)
    # Vectors become matrices, so that the mapped dimension is a batch dimension of both.
    a = a.unsqueeze(-2) if own_a == 1 else a
    b = b.unsqueeze(-1) if own_b == 1 else b
    batch_dims = max(own_a, own_b, 2) - 2
    a, b = _align(a, a_dim is not None, batch_dims), _align(b, b_dim is not None, batch_dims)
    out: Tensor = torch.ops.tiledmm.matmul.default(a, b, **options)
    out = out.squeeze(-1) if own_b == 1 else out
    return out.squeeze(-1 if own_b == 1 else -2) if own_a == 1 else out


def _matmul_vmap(
    info: object, in_dims: Sequence[int | None], a: Tensor, b: Tensor, **options: Any
) -> tuple[Tensor, int]:
    a_dim, b_dim = in_dims[:2]
    _check_mapped(torch.ops.tiledmm.matmul.default, in_dims, a, b, **options)
    return _mapped_matmul(a_dim, b_dim, a, b, **options), 0


def _addmm_vmap(
    info: Any,
    in_dims: Sequence[int | None],
    input: Tensor | None,
    a: Tensor,
    b: Tensor,
    **options: Any,
) -> tuple[Tensor, int]:
    _check_mapped(torch.ops.tiledmm.addmm.default, in_dims, input, a, b, **options)
    input_dim, a_dim, b_dim = in_dims[:3]
    if a_dim is None and b_dim is None:
        a, a_dim = a.expand(info.batch_size, *a.shape), 0
    batch_dims = max(a.dim() - (a_dim is not None), b.dim() - (b_dim is not None)) - 2
    a, b = (
        _align(operand if dim is None else operand.movedim(dim, 0), dim is not None, batch_dims)
        for operand, dim in ((a, a_dim), (b, b_dim))
    )
    if input is not None and input_dim is not None:
        input = input.movedim(input_dim, 0)
        input = input.reshape(input.shape[0], *[1] * (batch_dims + 3 - input.dim()), *input.shape[1:])
    return torch.ops.tiledmm.addmm.default(input, a, b, **options), 0


def _linear_vmap(
    info: object,
    in_dims: Sequence[int | None],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    **options: Any,
) -> tuple[Tensor, int]:
    input_dim, weight_dim, bias_dim = (*in_dims, None)[:3]
    operands = (input, weight, bias)
    dims = (input_dim, weight_dim, bias_dim)
    _check_mapped(torch.ops.tiledmm.linear.default, dims, *operands, activation=activation, **options)
    if weight_dim is None and bias_dim is None:
        assert input_dim is not None
        input = input.movedim(input_dim, 0)
        return torch.ops.tiledmm.linear.default(input, weight, bias, activation=activation, **options), 0
    if weight_dim is not None:
        weight = weight.movedim(weight_dim, 0)
    has_columns = weight.dim() - (weight_dim is not None) == 2
    transposed = weight.mT if has_columns else weight
    if input_dim is None and weight_dim is None:
        out = torch.ops.tiledmm.matmul.default(input, transposed, **options).unsqueeze(0)
    else:
        out = _mapped_matmul(input_dim, None if weight_dim is None else 0, input, transposed, **options)
    if bias is not None and bias_dim is not None:
        bias = bias.movedim(bias_dim, 0)
        columns = bias.shape[1:] if has_columns else ()
        bias = bias.reshape(bias.shape[0], *[1] * (out.dim() - 1 - len(columns)), *columns)
    out = out if bias is None else (out + bias).to(out.dtype)
    return (out if activation == "none" else torch.ops.tiledmm.activate.default(out, activation)), 0


def _activate_vmap(
    info: object, in_dims: Sequence[int | None], x: Tensor, activation: str
) -> tuple[Tensor, int | None]:
    return torch.ops.tiledmm.activate.default(x, activation), in_dims[0]


def _activate_backward_vmap(
    info: Any, in_dims: Sequence[int | None], grad: Tensor, x: Tensor, activation: str
) -> tuple[Tensor, int]:
    _check_mapped(torch.ops.tiledmm.activate_backward.default, in_dims, grad, x, activation=activation)
    grad, x = _mapped_first(info, in_dims, grad, x)
    return torch.ops.tiledmm.activate_backward.default(grad, x, activation), 0


def _mapped_first(info: Any, in_dims: Sequence[int | None], *operands: Tensor) -> list[Tensor]:
    """Operands of one shape, the mapped dimension first; those that are not mapped are repeated."""
    return [
        operand.expand(info.batch_size, *operand.shape) if dim is None else operand.movedim(dim, 0)
        for operand, dim in zip(operands, in_dims, strict=False)
    ]


def _gated_vmap(
    info: Any, in_dims: Sequence[int | None], gate: Tensor, up: Tensor, **options: Any
) -> tuple[Tensor, int]:
    _check_mapped(torch.ops.tiledmm.gated.default, in_dims, gate, up, **options)
    return torch.ops.tiledmm.gated.default(*_mapped_first(info, in_dims, gate, up), **options), 0


def _gated_backward_vmap(
    info: Any, in_dims: Sequence[int | None], grad: Tensor, gate: Tensor, up: Tensor, **options: Any
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    _check_mapped(torch.ops.tiledmm.gated_backward.default, in_dims, grad, gate, up, **options)
    grads = torch.ops.tiledmm.gated_backward.default(*_mapped_first(info, in_dims, grad, gate, up), **options)
    return grads, (0, 0)


def _gated_linear_vmap(
    info: Any,
    in_dims: Sequence[int | None],
    input: Tensor,
    gate: Tensor,
    up: Tensor,
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    *,
    activation: str = "silu",
    algorithm: str = "auto",
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, int]:
    dims = (*in_dims, None, None)[:5]
    options = {"activation": activation, "algorithm": algorithm, "out_dtype": out_dtype}
    _check_mapped(torch.ops.tiledmm.gated_linear.default, dims, input, gate, up, gate_bias, up_bias, **options)
    if dims[0] is not None and dims[1:] == (None,) * 4:
        mapped = input.movedim(dims[0], 0)
        return torch.ops.tiledmm.gated_linear.default(mapped, gate, up, gate_bias, up_bias, **options), 0
    result = out_dtype or torch.promote_types(input.dtype, gate.dtype)
    wide = torch.float64 if result == torch.float64 else torch.float32
    sums = []
    for own, weight, bias in (((0, 1, 3), gate, gate_bias), ((0, 2, 4), up, up_bias)):
        own_dims = [dims[place] for place in own]
        is_mapped = any(dim is not None for dim in own_dims)
        if is_mapped:
            sums.append(_linear_vmap(info, own_dims, input, weight, bias, algorithm=algorithm, out_dtype=wide)[0])
        else:
            product = torch.ops.tiledmm.linear.default(input, weight, bias, algorithm=algorithm, out_dtype=wide)
            sums.append(product.expand(info.batch_size, *product.shape))
    sums = [sum_.expand(info.batch_size, *sum_.shape[1:]) for sum_ in sums]
    return torch.ops.tiledmm.gated.default(*sums, activation=activation, out_dtype=result), 0


def _no_vmap_of_groups(info: object, in_dims: Sequence[int | None], *operands: Tensor, **options: Any) -> Any:
    raise NotImplementedError(
        "grouped_matmul: got operands under torch.vmap; accepted are plain ones, since groups are a batch of their own"
    )


def _no_vmap_of_scales(info: object, in_dims: Sequence[int | None], *operands: Tensor, **options: Any) -> Any:
    raise NotImplementedError(
        "scaled_matmul: got operands under torch.vmap; accepted are plain ones, since shapes say how scales are shared"
    )


def _no_vmap_of_scaled_groups(info: object, in_dims: Sequence[int | None], *operands: Tensor, **options: Any) -> Any:
    raise NotImplementedError(
        "scaled_grouped_matmul: got operands under torch.vmap; accepted are plain ones, since groups are a batch of "
        "their own"
    )


def _ordered_sum_vmap(
    info: object, in_dims: Sequence[int | None], a: Tensor, dims: Sequence[int]
) -> tuple[Tensor, int]:
    assert in_dims[0] is not None
    _check_mapped(torch.ops.tiledmm.ordered_sum.default, in_dims, a, dims=dims)
    return torch.ops.tiledmm.ordered_sum.default(a.movedim(in_dims[0], 0), [dim + 1 for dim in dims]), 0


def _fake(mode: FakeTensorMode, op: OpOverload, types: Sequence[type], args: Sequence[Any], kwargs: Any = None) -> Any:
    """The meta kernel for fake tensors. torch's own way there takes 2.5 times as long as aten.mm, since torch remembers
    the results of its own operators alone; it stays the way of symbolic shapes and of all that is unusual.
    """
    kwargs = kwargs or {}
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    is_usual = all(
        type(tensor) is FakeTensor and tensor.fake_mode is mode and not tensor._has_symbolic_sizes_strides
        for tensor in tensors
    )
    device = tensors[0].device
    if mode.propagate_real_tensors or not is_usual or any(tensor.device != device for tensor in tensors):
        return mode.__torch_dispatch__(op, types, args, kwargs)
    with in_kernel_invocation_manager(mode):
        out = op(*args, **kwargs)
    if isinstance(out, tuple):
        return tuple(FakeTensor(mode, own, device) for own in out)
    return FakeTensor(mode, out, device)


def _matmul_flops(
    a_shape: Sequence[int], b_shape: Sequence[int], *args: object, out_shape: Sequence[int], **kwargs: object
) -> int:
    return 2 * math.prod(out_shape) * a_shape[-1]


def _addmm_flops(
    input_shape: Sequence[int] | None, *shapes: Sequence[int], out_shape: Sequence[int], **kwargs: object
) -> int:
    return _matmul_flops(*shapes, out_shape=out_shape)


def _linear_weight_grads_flops(
    grad_shape: Sequence[int], input_shape: Sequence[int], *args: object, **kwargs: object
) -> int:
    return 2 * math.prod(grad_shape) * input_shape[1]


def _linear_flops(input_shape: Sequence[int], weight_shape: Sequence[int], *args: object, **kwargs: object) -> int:
    return 2 * math.prod(input_shape[:-1]) * math.prod(weight_shape)


def _grouped_matmul_flops(a_shape: Sequence[int], b_shape: Sequence[int], *args: object, **kwargs: object) -> int:
    """Of all rows, or all of k: how many the groups have, shapes do not say."""
    groups = a_shape[0] if len(a_shape) == len(b_shape) == 3 else 1
    return 2 * groups * a_shape[-2] * a_shape[-1] * b_shape[-1]


def _gated_grouped_matmul_flops(a_shape: Sequence[int], gate_shape: Sequence[int], *args: object, **kwargs: Any) -> int:
    return 2 * _grouped_matmul_flops(a_shape, gate_shape)


def _gated_linear_flops(input_shape: Sequence[int], gate_shape: Sequence[int], *args: object, **kwargs: object) -> int:
    return 2 * _linear_flops(input_shape, gate_shape)


def _register() -> None:
    for name, rule in (
        ("tiledmm::matmul", _matmul_vmap),
        ("tiledmm::addmm", _addmm_vmap),
        ("tiledmm::linear", _linear_vmap),
        ("tiledmm::activate", _activate_vmap),
        ("tiledmm::activate_backward", _activate_backward_vmap),
        ("tiledmm::gated", _gated_vmap),
        ("tiledmm::gated_backward", _gated_backward_vmap),
        ("tiledmm::gated_linear", _gated_linear_vmap),
        ("tiledmm::grouped_matmul", _no_vmap_of_groups),
        ("tiledmm::gated_grouped_matmul", _no_vmap_of_groups),
        ("tiledmm::scaled_matmul", _no_vmap_of_scales),
        ("tiledmm::scaled_grouped_matmul", _no_vmap_of_scaled_groups),
        ("tiledmm::ordered_sum", _ordered_sum_vmap),
    ):
        torch.library.register_vmap(name, rule)
        torch.library.register_torch_dispatch(name, FakeTensorMode, _fake)
    for op, formula in (
        (torch.ops.tiledmm.matmul, _matmul_flops),
        (torch.ops.tiledmm.scaled_matmul, _matmul_flops),
        (torch.ops.tiledmm.addmm, _addmm_flops),
        (torch.ops.tiledmm.linear, _linear_flops),
        (torch.ops.tiledmm.linear_and_sum, _linear_flops),
        (torch.ops.tiledmm._weight_only, _linear_flops),
        (torch.ops.tiledmm.gated_linear, _gated_linear_flops),
        (torch.ops.tiledmm.gated_linear_and_sums, _gated_linear_flops),
        (torch.ops.tiledmm.grouped_matmul, _grouped_matmul_flops),
        (torch.ops.tiledmm.grouped_matmul_and_sum, _grouped_matmul_flops),
        (torch.ops.tiledmm.scaled_grouped_matmul, _grouped_matmul_flops),
        (torch.ops.tiledmm.gated_grouped_matmul, _gated_grouped_matmul_flops),
        (torch.ops.tiledmm.gated_grouped_matmul_and_sums, _gated_grouped_matmul_flops),
        (torch.ops.tiledmm.linear_weight_grads, _linear_weight_grads_flops),
    ):
        register_flop_formula(op)(formula)


# torch takes each rule once in a process: where the package is imported anew, those of the first import stay.
if torch.ops.tiledmm.matmul not in flop_registry:
    _register()

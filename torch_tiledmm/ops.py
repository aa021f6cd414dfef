"""The operators `torch.ops.tiledmm.matmul`, `matmul_out`, `linear` and `linear_weight_grads`: documentation, fake
kernels, vmap, flop counts.

Kernels, autograd and autocast are C++ (csrc/torch). A fake kernel says what shape and dtype comes out, for meta
tensors, torch.compile and torch.export; it makes the same checks as the kernel.
"""

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")


def matmul(a: Tensor, b: Tensor, *, algorithm: str = "auto") -> Tensor:
    """Matrix product with the semantics of `torch.matmul`.

    Args:
        a: (k,), (m, k) or (..., m, k); float32, float64, float16 or bfloat16; any strides, no operand is copied.
        b: (k,), (k, n) or (..., k, n); dtype and device of `a`. Batch dimensions broadcast.
        algorithm: a name of `torch_tiledmm.algorithms()`; "auto" takes the cheapest legal kernel.

    Returns:
        The product, contiguous; float16 and bfloat16 are summed in float32 and rounded once. A row's bits depend
        neither on m, nor on the place in the batch, nor on the number of threads.

    Raises:
        TypeError: a dtype that is not accepted, or two different dtypes.
        ValueError: an algorithm that is not known.
        NotImplementedError: an algorithm that cannot serve this device; a layout other than strided.
        RuntimeError: shapes that do not fit, or different devices.
    """
    return torch.ops.tiledmm.matmul.default(a, b, algorithm=algorithm)


def linear(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str = "none", algorithm: str = "auto"
) -> Tensor:
    """`activation(input @ weight.T + bias)`, with the semantics of `torch.nn.functional.linear`.

    Args:
        input: (..., in_features); float32, float64, float16 or bfloat16; any strides.
        weight: (out_features, in_features) or (in_features,); dtype and device of `input`; read as it is stored.
        bias: (out_features,) or (1,), or None; added before the activation.
        activation: "none", "relu", "gelu", "gelu_tanh" or "silu", applied before the result is rounded. Where a
            gradient is needed, backward keeps the sum, so that float16 and bfloat16 are rounded before it, too.
        algorithm: see `matmul`.

    Returns:
        (..., out_features), contiguous.

    Raises:
        As `matmul`; ValueError also for an activation that is not known.
    """
    return torch.ops.tiledmm.linear.default(input, weight, bias, activation=activation, algorithm=algorithm)


def _check_operands(**operands: Tensor) -> None:
    (first_name, first), *others = operands.items()
    for name, tensor in operands.items():
        torch._check_type(
            tensor.dtype in _DTYPES,
            lambda name=name, tensor=tensor: f"tiledmm: {name} has dtype {tensor.dtype}; accepted are torch.float32, "
            "torch.float64, torch.float16 and torch.bfloat16",
        )
    for name, tensor in others:
        torch._check_type(
            tensor.dtype == first.dtype,
            lambda name=name, tensor=tensor: f"tiledmm: {first_name} has dtype {first.dtype} and {name} has "
            f"{tensor.dtype}; both must have one dtype",
        )
        torch._check(
            tensor.device == first.device,
            lambda name=name, tensor=tensor: f"tiledmm: {first_name} is on {first.device} and {name} on "
            f"{tensor.device}; both must be on one device",
        )


def _check_algorithm(algorithm: str) -> None:
    from .dispatch import algorithms

    known = [entry.name for entry in algorithms()]
    torch._check_value(
        algorithm in known, lambda: f"tiledmm: algorithm '{algorithm}' is not known; known are {', '.join(known)}"
    )


def _check_activation(activation: str) -> None:
    torch._check_value(
        activation in _ACTIVATIONS,
        lambda: f"tiledmm: activation '{activation}' is not known; accepted are {', '.join(_ACTIVATIONS)}",
    )


def _matmul_shape(a: tuple, b: tuple) -> list:
    """The shape of the product of operands of shapes `a` and `b`, which are checked."""
    torch._check(
        len(a) > 0 and len(b) > 0,
        lambda: f"tiledmm: a has {len(a)} dimensions and b has {len(b)}; both need at least 1",
    )
    torch._check(
        a[-1] == b[0 if len(b) == 1 else -2],
        lambda: f"tiledmm: the shapes of a {list(a)} and b {list(b)} do not fit: the last dimension of a must be the "
        f"{'only' if len(b) == 1 else 'last but one'} of b",
    )
    try:
        batch = torch.broadcast_shapes(a[:-2], b[:-2])
    except RuntimeError as error:
        raise RuntimeError(f"tiledmm: the batch dimensions of a {list(a)} and b {list(b)} do not broadcast") from error
    return [*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ())]


def _linear_shape(input: tuple, weight: tuple, bias: tuple | None) -> list:
    """The shape of `linear` of operands of these shapes, which are checked."""
    torch._check(
        len(input) >= 1, lambda: "tiledmm: input has 0 dimensions; it needs at least 1, the last of size in_features"
    )
    torch._check(
        len(weight) in (1, 2),
        lambda: f"tiledmm: weight has shape {list(weight)}; accepted are (out_features, in_features) and "
        "(in_features,)",
    )
    torch._check(
        input[-1] == weight[-1],
        lambda: f"tiledmm: the shapes of input {list(input)} and weight {list(weight)} do not fit: their last "
        "dimensions must be equal",
    )
    if bias is not None:
        size = weight[0] if len(weight) == 2 else 1
        torch._check(
            len(bias) == 0 or (len(bias) == 1 and (bias[0] == size or bias[0] == 1)),
            lambda: f"tiledmm: bias has shape {list(bias)}; accepted are ({size},) and (1,)",
        )
    return [*input[:-1], *weight[:-1]]


@torch.library.register_fake("tiledmm::matmul")
def _matmul_fake(a: Tensor, b: Tensor, *, algorithm: str = "auto") -> Tensor:
    _check_operands(a=a, b=b)
    _check_algorithm(algorithm)
    return a.new_empty(_matmul_shape(a.shape, b.shape))


@torch.library.register_fake("tiledmm::matmul_out")
def _matmul_out_fake(a: Tensor, b: Tensor, out: Tensor, *, algorithm: str = "auto") -> None:
    _check_operands(a=a, b=b, out=out)
    _check_algorithm(algorithm)
    shape = _matmul_shape(a.shape, b.shape)
    torch._check(list(out.shape) == shape, lambda: f"tiledmm: out has shape {list(out.shape)}; the result has {shape}")


@torch.library.register_fake("tiledmm::linear")
def _linear_fake(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str = "none", algorithm: str = "auto"
) -> Tensor:
    _check_operands(input=input, weight=weight, **({} if bias is None else {"bias": bias}))
    _check_algorithm(algorithm)
    _check_activation(activation)
    return input.new_empty(_linear_shape(input.shape, weight.shape, None if bias is None else bias.shape))


@torch.library.register_fake("tiledmm::linear_weight_grads")
def _linear_weight_grads_fake(grad: Tensor, input: Tensor, *, algorithm: str = "auto") -> tuple[Tensor, Tensor]:
    _check_operands(grad=grad, input=input)
    _check_algorithm(algorithm)
    torch._check(
        grad.dim() == 2 and input.dim() == 2 and grad.shape[0] == input.shape[0],
        lambda: f"tiledmm: grad has shape {list(grad.shape)} and input {list(input.shape)}; accepted are "
        "(rows, out_features) and (rows, in_features)",
    )
    return grad.new_empty(grad.shape[1], input.shape[1]), grad.new_empty(grad.shape[1])


def _align(tensor: Tensor, is_mapped: bool, batch_dims: int) -> Tensor:
    """A mapped matrix (mapped dimension first) with dimensions of size 1 behind it, up to `batch_dims` of the batch."""
    if not is_mapped:
        return tensor
    missing = batch_dims - (tensor.dim() - 3)
    return tensor.reshape(tensor.shape[0], *[1] * missing, *tensor.shape[1:])


def _own_shape(tensor: Tensor, mapped_dim: int | None) -> list:
    """The shape that the function under vmap sees."""
    return [size for d, size in enumerate(tensor.shape) if d != mapped_dim]


def _mapped_matmul(a_dim: int | None, b_dim: int | None, a: Tensor, b: Tensor, algorithm: str) -> Tensor:
    """The product of mapped operands, mapped dimension first; at least one operand is mapped."""
    own_a, own_b = a.dim() - (a_dim is not None), b.dim() - (b_dim is not None)
    a = a if a_dim is None else a.movedim(a_dim, 0)
    b = b if b_dim is None else b.movedim(b_dim, 0)
    # Vectors become matrices, so that the mapped dimension is a batch dimension of both.
    a = a.unsqueeze(-2) if own_a == 1 else a
    b = b.unsqueeze(-1) if own_b == 1 else b
    batch_dims = max(own_a, own_b, 2) - 2
    a, b = _align(a, a_dim is not None, batch_dims), _align(b, b_dim is not None, batch_dims)
    out = torch.ops.tiledmm.matmul.default(a, b, algorithm=algorithm)
    out = out.squeeze(-1) if own_b == 1 else out
    return out.squeeze(-1 if own_b == 1 else -2) if own_a == 1 else out


def _matmul_vmap(info, in_dims, a: Tensor, b: Tensor, *, algorithm: str = "auto"):
    a_dim, b_dim = in_dims[:2]
    _check_operands(a=a, b=b)
    _matmul_shape(_own_shape(a, a_dim), _own_shape(b, b_dim))
    return _mapped_matmul(a_dim, b_dim, a, b, algorithm), 0


def _linear_vmap(
    info,
    in_dims,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    algorithm: str = "auto",
):
    input_dim, weight_dim, bias_dim = (*in_dims, None)[:3]
    _check_operands(input=input, weight=weight, **({} if bias is None else {"bias": bias}))
    _check_activation(activation)
    own_bias_shape = None if bias is None else _own_shape(bias, bias_dim)
    _linear_shape(_own_shape(input, input_dim), _own_shape(weight, weight_dim), own_bias_shape)
    if weight_dim is None and bias_dim is None:
        input = input.movedim(input_dim, 0)
        return torch.ops.tiledmm.linear.default(input, weight, bias, activation=activation, algorithm=algorithm), 0
    if weight_dim is not None:
        weight = weight.movedim(weight_dim, 0)
    has_columns = weight.dim() - (weight_dim is not None) == 2
    transposed = weight.mT if has_columns else weight
    if input_dim is None and weight_dim is None:
        out = torch.ops.tiledmm.matmul.default(input, transposed, algorithm=algorithm).unsqueeze(0)
    else:
        out = _mapped_matmul(input_dim, None if weight_dim is None else 0, input, transposed, algorithm)
    if bias is not None and bias_dim is not None:
        bias = bias.movedim(bias_dim, 0)
        columns = bias.shape[1:] if has_columns else ()
        bias = bias.reshape(bias.shape[0], *[1] * (out.dim() - 1 - len(columns)), *columns)
    return _activate(out if bias is None else out + bias, activation), 0


torch.library.register_vmap("tiledmm::matmul", _matmul_vmap)
torch.library.register_vmap("tiledmm::linear", _linear_vmap)


def _activate(z: Tensor, activation: str) -> Tensor:
    functional = torch.nn.functional
    if activation == "relu":
        return functional.relu(z)
    if activation in ("gelu", "gelu_tanh"):
        return functional.gelu(z, approximate="tanh" if activation == "gelu_tanh" else "none")
    return functional.silu(z) if activation == "silu" else z


def _product(sizes) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result


@register_flop_formula(torch.ops.tiledmm.matmul)
def _matmul_flops(a_shape, b_shape, *args, out_shape=None, **kwargs) -> int:
    return 2 * _product(out_shape) * a_shape[-1]


@register_flop_formula(torch.ops.tiledmm.linear_weight_grads)
def _linear_weight_grads_flops(grad_shape, input_shape, *args, out_shape=None, **kwargs) -> int:
    return 2 * _product(grad_shape) * input_shape[1]


@register_flop_formula(torch.ops.tiledmm.linear)
def _linear_flops(input_shape, weight_shape, *args, out_shape=None, **kwargs) -> int:
    return 2 * _product(out_shape) * input_shape[-1]

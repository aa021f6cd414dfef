"""THE reference and THE error bounds, used by every test.

The reference is a float64 product of the operands as given. An output element is accepted when

    round(ref - bound) <= out <= round(ref + bound),  bound = gamma(k + 2) (|A| |B| + |bias|) + absolute term,

where round() is the last rounding, to the dtype of the output. Rounding is monotone, so this is what
|out - ref| <= bound + u_out * |ref| says, but exact: it decides overflow and underflow of the output as
well, and a result that is truncated instead of rounded fails.

u is the unit roundoff and gamma(j) = j u_acc / (1 - j u_acc). Summing k products and a bias in any order,
fused or not, meets at most k + 1 roundings of relative size u_acc along the way of any one product (Higham,
Accuracy and Stability of Numerical Algorithms, section 3.1); the one more is the reference's and
second-order terms. fp16 and bf16 accumulate in fp32, where their products are exact. Operands of two dtypes do so,
too, as if both were fp32. For fp64 the reference has the same error as the result, so the first term counts twice.

The absolute term covers underflow, where rounding is no longer relative: half the smallest denormal per
operation. bf16 has more of it: the vdpbf16ps and tdpbf16ps instructions read denormal inputs as zero and write zero
for denormal sums (Intel SDM), which loses at most 2^-126 * (sum |a| + sum |b| + k + 1), the last for the bias.
In every other dtype denormals are kept, and the bound is too tight for a flush to pass.

An activation multiplies all this by its Lipschitz constant and adds its own evaluation error, 8 u_acc |x|,
which covers implementations that lose relative accuracy where the activation cancels to nearly zero, and, for
results of 16 bits, 2^-16 of the result: GPUs compute those by shorter formulas.

The bound per element grows with k, the actual error with sqrt(k). So the whole output must also meet

    ||out - ref||_F <= (4 sqrt(k + 1) u_acc + u_out) * (||ref||_F + ||Q||_F)  +  absolute term,

with Q_ij^2 = sum_p (a_ip b_pj)^2. It holds for sums whose terms come in no particular order: the partial
sums are then of the size of Q (zero mean) or of ref, and rounding errors add up like a random walk. Q keeps
the bound meaningful when ref is small by chance.

nan must be where the reference, rounded to the dtype of the output, has it; inf likewise, up to the bound
at the overflow threshold. Sums whose |A| |B| overflows the accumulator are outside of these bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ..dispatch import dtype_name

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")

# The activations in float64. torch's own gelu loses the left tail, where 1 + erf cancels.
EXACT_ACTIVATIONS = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": lambda x: x / 2 * torch.special.erfc(-x / 2**0.5),
    "gelu_tanh": lambda x: x * torch.special.expit((8 / math.pi) ** 0.5 * (x + 0.044715 * x**3)),
    "silu": lambda x: x * torch.special.expit(x),
}
# Largest slope: gelu at sqrt(2) 1.1290, gelu_tanh 1.1290, silu at 2.3994 1.0998.
_LIPSCHITZ = {"none": 1.0, "relu": 1.0, "gelu": 1.13, "gelu_tanh": 1.13, "silu": 1.1}
_ACTIVATION_ROUNDINGS = {"none": 0, "relu": 0, "gelu": 8, "gelu_tanh": 8, "silu": 8}
_SHORT_ACTIVATION_ERROR = 2.0**-16  # relative, of results of 16 bits on GPUs
_FROBENIUS_FACTOR = 4.0
_SMALLEST_DENORMAL = {torch.float32: 2.0**-149, torch.float64: 2.0**-1074}  # of the accumulator


@dataclass(frozen=True)
class Expected:
    """What an output must be. All tensors are float64 on the CPU and have the shape of the output."""

    what: str  # for messages, e.g. "matmul (2, 3) x (3, 4)"
    dtype: torch.dtype  # of the output
    value: torch.Tensor
    bound: torch.Tensor  # of |out - value| before the last rounding, 0 where the sum is not finite
    frobenius_bound: float  # of the Frobenius norm of out - value; not finite if an operand is not


def expect_matmul(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None) -> Expected:
    """The expected result of ``matmul`` with these arguments: shapes as torch.matmul takes them."""
    return _expect(f"matmul {tuple(a.shape)} x {tuple(b.shape)}", a, b, None, "none", out_dtype=out_dtype)


def expect_addmm(
    input: torch.Tensor | None,
    a: torch.Tensor,
    b: torch.Tensor,
    beta: float = 1,
    alpha: float = 1,
    out_dtype: torch.dtype | None = None,
) -> Expected:
    """The expected result of ``addmm`` with these arguments. alpha and beta, which are rounded to the accumulator's
    dtype, and their products are four roundings more.
    """
    what = f"addmm {tuple(a.shape)} x {tuple(b.shape)}, alpha {alpha}, beta {beta}, input {input is not None}"
    return _expect(what, a, b, input if beta != 0 else None, "none", alpha, beta, out_dtype)


def expect_linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str = "none",
    out_dtype: torch.dtype | None = None,
) -> Expected:
    """The expected result of ``linear`` with these arguments, shapes as F.linear takes them."""
    what = f"linear {tuple(input.shape)} x {tuple(weight.shape)}^T, {activation}, bias {bias is not None}"
    return _expect(what, input, weight.mT if weight.dim() == 2 else weight, bias, activation, out_dtype=out_dtype)


def expect_scaled(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str = "none",
    out_dtype: torch.dtype = torch.bfloat16,
    *,
    has_short_sums: bool = False,
) -> Expected:
    """The expected result of ``scaled_matmul`` with these arguments.

    The scales are four roundings more: of an operand and its scale, of a sum and both scales. ``has_short_sums`` is for
    Hopper's kernel.
    """
    what = f"scaled_matmul {tuple(a.shape)} x {tuple(b.shape)}, scales {tuple(scale_a.shape)}, {tuple(scale_b.shape)}"
    k_blocks = -(-a.shape[1] // 128)
    wide_a = a.to("cpu", torch.float64) * _each_scale(scale_a.cpu(), a.shape[0], a.shape[1], k_blocks)
    scale_b_t = scale_b.cpu().mT if scale_b.dim() == 2 else scale_b.cpu()
    wide_b = b.to("cpu", torch.float64) * _each_scale(scale_b_t, b.shape[1], b.shape[0], k_blocks).mT
    sums = short_sums(a.shape[1]) if has_short_sums else Sums(a.shape[1] + 6)
    what = f"{what}, {activation}, bias {bias is not None}"
    return _expect(what, wide_a, wide_b, bias, activation, out_dtype=out_dtype, sums=sums)


class Sums(NamedTuple):
    """Roundings of a sum in the accumulator's type, and what it loses besides: of |A| |B| at most, and of the result's
    norm."""

    num_roundings: int
    lost: float = 0.0
    lost_of_norm: float = 0.0


def short_sums(k: int) -> Sums:
    """Those of 8 bits by Hopper's matrix unit (docs/numerics.md, "fp8_sums"): each of four instructions cuts 32 addends
    and their sum off 13 bits behind the largest one. They lose that much together only where one product outweighs all
    others; of the result's norm, sums of one sign lose a twentieth of it."""
    return Sums(-(-k // 128) + 6, 4 * 33 * 2.0**-13, 2.0**-10)


def _each_scale(scale: torch.Tensor, rows: int, k: int, k_blocks: int) -> torch.Tensor:
    """The scale of each of rows x k elements."""
    scale = scale.double()
    if scale.numel() == 1:
        return scale.reshape(1, 1).expand(rows, k)
    if scale.dim() == 1:
        scale = scale[:, None]
    row_of, k_block_of = (torch.arange(size, device=scale.device) for size in (rows, k))
    if scale.shape[0] != rows:
        row_of = row_of // 128
    k_block_of = k_block_of // 128 if scale.shape[1] == k_blocks else torch.zeros_like(k_block_of)
    return scale[row_of][:, k_block_of]


def assert_close(out: torch.Tensor, expected: Expected) -> None:
    """Raises AssertionError, naming the worst element, unless out has the dtype, the shape and the values
    expected.
    """
    head = f"{expected.what} in {dtype_name(expected.dtype)}"
    assert out.dtype == expected.dtype, f"{head}: dtype {out.dtype}, expected {expected.dtype}"
    assert out.shape == expected.value.shape, (
        f"{head}: shape {tuple(out.shape)}, expected {tuple(expected.value.shape)}"
    )

    actual = out.detach().to("cpu", torch.float64)
    low = (expected.value - expected.bound).to(expected.dtype).double()
    high = (expected.value + expected.bound).to(expected.dtype).double()
    is_good = ((actual >= low) & (actual <= high)) | (actual.isnan() & expected.value.isnan())
    if not is_good.all():
        raise AssertionError(f"{head}: {_describe_worst(actual, expected, low, high, is_good)}")

    is_finite = actual.isfinite() & expected.value.isfinite()
    error = torch.where(is_finite, actual - expected.value, 0.0).norm().item()
    if error > expected.frobenius_bound:  # false for a bound that is nan or inf
        raise AssertionError(
            f"{head}: Frobenius norm of the error {error:.6g} > bound {expected.frobenius_bound:.6g}, "
            f"though every element is within its own"
        )


def _expect(
    what: str,
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str,
    alpha: float = 1,
    beta: float = 1,
    out_dtype: torch.dtype | None = None,
    sums: Sums | None = None,
) -> Expected:
    dtype, k = out_dtype or torch.promote_types(a.dtype, b.dtype), a.shape[-1]
    may_flush = torch.bfloat16 in (dtype, a.dtype if a.dtype == b.dtype else None)
    acc_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    u_acc = torch.finfo(acc_dtype).eps / 2
    u_out = torch.finfo(dtype).eps / 2
    num_roundings = (k + 2 + 4 * ((alpha, beta) != (1, 1))) * (2 if dtype == torch.float64 else 1)
    sums = sums or Sums(num_roundings)
    num_roundings = sums.num_roundings
    gamma = num_roundings * u_acc / (1 - num_roundings * u_acc)

    a, b = a.detach().to("cpu", torch.float64), b.detach().to("cpu", torch.float64)
    a = alpha * a if alpha != 0 else torch.zeros_like(a)
    b = b if alpha != 0 else torch.zeros_like(b)
    value = torch.matmul(a, b)
    magnitude = torch.matmul(a.abs(), b.abs())
    spread = _frobenius_of_squares(a, b, value.numel())
    if bias is not None:
        bias = beta * bias.detach().to("cpu", torch.float64)
        value = value + bias
        magnitude = magnitude + bias.abs()

    num_ops = k + 1 + _ACTIVATION_ROUNDINGS[activation]
    absolute = torch.full_like(value, num_ops * _SMALLEST_DENORMAL[acc_dtype])
    if may_flush:
        ones_a, ones_b = torch.ones_like(a), torch.ones_like(b)
        absolute += 2.0**-126 * (torch.matmul(a.abs(), ones_b) + torch.matmul(ones_a, b.abs()) + k + 1)

    is_finite = value.isfinite()
    evaluation = _ACTIVATION_ROUNDINGS[activation] * u_acc * value.abs()
    slope = _LIPSCHITZ[activation]
    value = EXACT_ACTIVATIONS[activation](value)
    if dtype.itemsize == 2 and _ACTIVATION_ROUNDINGS[activation]:
        evaluation = evaluation + _SHORT_ACTIVATION_ERROR * value.abs()
    bound = slope * ((gamma + sums.lost) * magnitude + absolute) + evaluation
    bound = torch.where(is_finite, bound, 0.0)

    relative = slope * (_FROBENIUS_FACTOR * math.sqrt(k + 1) * u_acc + sums.lost_of_norm) + u_out
    norm = torch.linalg.vector_norm
    underflow = slope * norm(absolute) + norm(torch.full_like(value, torch.finfo(dtype).tiny * u_out))
    frobenius_bound = (relative * (norm(value) + spread) + norm(evaluation) + underflow).item()
    return Expected(what, dtype, value, bound, frobenius_bound)


def _frobenius_of_squares(a: torch.Tensor, b: torch.Tensor, num_outputs: int) -> torch.Tensor:
    """The Frobenius norm of Q, Q_ij^2 = sum_p (a_ip b_pj)^2."""
    if num_outputs == 0:
        return torch.zeros((), dtype=torch.float64)
    return torch.matmul(a.square(), b.square()).sum().sqrt()


def _describe_worst(
    actual: torch.Tensor, expected: Expected, low: torch.Tensor, high: torch.Tensor, is_good: torch.Tensor
) -> str:
    """Where out is furthest outside of what is allowed; a wrong nan or inf counts as furthest."""
    error = (actual - expected.value).abs()
    bound = torch.maximum(high - expected.value, expected.value - low)
    excess = torch.where(is_good, -1.0, (error / bound).nan_to_num(nan=math.inf, posinf=math.inf))
    flat = int(excess.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), actual.shape))
    picked = [t.reshape(-1)[flat].item() for t in (actual, expected.value, error, bound)]
    num_wrong = int((~is_good).sum())
    return (
        f"element {index} is {picked[0]:.9g}, reference {picked[1]:.9g}, "
        f"error {picked[2]:.3g}, bound {picked[3]:.3g} ({num_wrong} of {actual.numel()} elements wrong)"
    )

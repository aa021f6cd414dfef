"""Elements of 8 bits with scales, for products in FP8: quantize_rows, quantize_blocks. Kernels and checks are C++."""

from __future__ import annotations

import torch
from torch import Tensor


def quantize_rows(
    x: Tensor, *, dtype: torch.dtype = torch.float8_e4m3fn, power_of_two: bool = False, activation: str = "none"
) -> tuple[Tensor, Tensor]:
    """Rows in 8 bits, each with a scale: `q.float() * scale` is close to `activation(x)`, in one pass over `x`.

    The columns of a matrix are the rows of its transposed view, which is read as it lies. So `x @ weight.T` takes rows
    of both, and `a @ b` columns of `b`:

        qx, scale_x = quantize_rows(torch.randn(8, 64))
        qw, scale_w = quantize_rows(torch.randn(32, 64))  # a weight, (out_features, in_features)
        y = (qx.float() @ qw.float().T) * scale_x * scale_w.T
        qb, scale_b = (part.T for part in quantize_rows(torch.randn(64, 32).T))  # (64, 32), (1, 32)

    Args:
        x: (m, k); float32, float16 or bfloat16; any strides.
        dtype: torch.float8_e4m3fn, whose largest number is 448, or torch.float8_e5m2, with 57344.
        power_of_two: whether scales are rounded up to powers of two, so that no element is rounded twice.
        activation: "none", "relu", "gelu", "gelu_tanh" or "silu", of x, in float32 and not rounded before the scale.

    Returns:
        q: (m, k), `dtype`. Rows begin at multiples of 16 bytes: q is contiguous where k is a multiple of 16, else it
            is the front of a wider matrix.
        scale: (m, 1), float32. With `largest` for the largest magnitude in a row and `most` for dtype's largest number,
            scale = largest / most and q = x * (most / largest), in float32; with power_of_two, scale is the least power
            of two that is not below largest / most, and q = x / scale. q is rounded to nearest even and saturates.
            A row of zeros has scale 1. No scale is below 2^-126, the least normal number. A row with a NaN has scale
            NaN, one with an infinity scale infinity, and all elements of both are NaN.
        The bits of a row depend on the row alone, and without an activation, or with relu, not on the device either.
        Neither result needs a gradient, whether or not `x` does.

    Raises:
        TypeError: a dtype that is not accepted.
        ValueError: an activation that is not known.
        RuntimeError: x has other than 2 dimensions.
    """
    q, scale = torch.ops.tiledmm.quantize_rows.default(x, dtype=dtype, power_of_two=power_of_two, activation=activation)
    return q, scale


def quantize_blocks(
    x: Tensor,
    *,
    block_rows: int = 1,
    dtype: torch.dtype = torch.float8_e4m3fn,
    power_of_two: bool = False,
    activation: str = "none",
) -> tuple[Tensor, Tensor]:
    """Blocks of `block_rows` rows by 128 elements in 8 bits, each block with a scale; the last ones have what is left.

    Activations take blocks of 1 row, weights of 128. As in `quantize_rows`, columns are rows of the transposed view:

        qx, scale_x = quantize_blocks(torch.randn(8, 256))                     # scale (8, 2)
        qw, scale_w = quantize_blocks(torch.randn(300, 256), block_rows=128)   # scale (3, 2); y = x @ weight.T
        qb, scale_b = (part.T for part in quantize_blocks(torch.randn(256, 300).T, block_rows=128))  # scale (2, 3)

    Args:
        block_rows: 1 or 128.
        x, dtype, power_of_two, activation: as for `quantize_rows`.

    Returns:
        q: (m, k), as of `quantize_rows`.
        scale: (ceil(m / block_rows), ceil(k / 128)), float32; each is what a row's scale is to a row. For block_rows=1
            the scales of neighbouring rows are neighbours, strides (1, m); for 128, those along k.

    Raises:
        As `quantize_rows`; ValueError also for a block_rows that is not accepted.
    """
    q, scale = torch.ops.tiledmm.quantize_blocks.default(
        x, block_rows=block_rows, dtype=dtype, power_of_two=power_of_two, activation=activation
    )
    return q, scale

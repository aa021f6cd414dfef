"""The names and signatures of batch_invariant_ops (thinking-machines-lab/batch_invariant_ops), by the mode of this
package, for programs that call that one:

    import sys, torch_tiledmm.batch_invariant_ops
    sys.modules["batch_invariant_ops"] = torch_tiledmm.batch_invariant_ops

What is covered is more than there: batched products, all forms of each, gradients, fp32 in full, CPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from . import mode
from .mode import disable, enable, is_enabled
from .ops import addmm, matmul

__all__ = [
    "AttentionBlockSize",
    "addmm_batch_invariant",
    "disable_batch_invariant_mode",
    "enable_batch_invariant_mode",
    "get_batch_invariant_attention_block_size",
    "is_batch_invariant_mode_enabled",
    "log_softmax",
    "matmul_persistent",
    "mean_dim",
    "mm_batch_invariant",
    "set_batch_invariant_mode",
]


class AttentionBlockSize(NamedTuple):
    """Queries and keys that an attention kernel takes at a time."""

    block_m: int
    block_n: int


def get_batch_invariant_attention_block_size() -> AttentionBlockSize:
    """The block size that callers pad to: 16 by 16."""
    return AttentionBlockSize(16, 16)


def is_batch_invariant_mode_enabled() -> bool:
    """Whether the mode is on, by whichever name."""
    return is_enabled()


def enable_batch_invariant_mode() -> None:
    """`torch_tiledmm.enable()`, unless it is on."""
    if not is_enabled():
        enable()


def disable_batch_invariant_mode() -> None:
    """`torch_tiledmm.disable()`."""
    disable()


@contextmanager
def set_batch_invariant_mode(enabled: bool = True) -> Iterator[None]:
    """Inside the mode is on, or off; afterwards it is as it was. Blocks of several threads or tasks may overlap."""
    found = mode.settings_in_force()
    if enabled:
        with mode.enabled(**found):
            yield
        return
    disable()
    try:
        yield
    finally:
        enable(**found) if found else disable()


def matmul_persistent(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a @ b for (m, k) and (k, n), and bias (n,) added before it is rounded."""
    return matmul(a, b) if bias is None else addmm(bias, a, b)


def mm_batch_invariant(a: Tensor, b: Tensor) -> Tensor:
    """a @ b for (m, k) and (k, n)."""
    return matmul(a, b)


def addmm_batch_invariant(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """bias + a @ b for (m, k) and (k, n); bias broadcasts to (m, n)."""
    return addmm(bias, a, b)


def log_softmax(input: Tensor, dim: int = -1) -> Tensor:
    """torch.log_softmax, a row's bits of which do not depend on the batch (benchmarks/what_varies.py)."""
    return torch.log_softmax(input, dim)


def mean_dim(
    input: Tensor, dim: int | Sequence[int], keepdim: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    """torch.mean over some dimensions, as a product with ones: its order of summation does not depend on the batch."""
    dims = [dim] if isinstance(dim, int) else list(dim)
    dims = [d % max(input.dim(), 1) for d in dims] or list(range(input.dim()))
    result_dtype = dtype or (input.dtype if input.dtype.is_floating_point else torch.float32)
    kept = [d for d in range(input.dim()) if d not in dims]
    last = input.to(result_dtype).permute(*kept, *dims)
    rows = last.reshape(*last.shape[: len(kept)], -1)
    count = rows.shape[-1]
    ones = torch.ones(1, dtype=result_dtype, device=input.device).expand(count, 1)
    mean = addmm(None, rows.reshape(-1, count), ones, alpha=1 / count if count else torch.nan)
    shape = [1 if d in dims else size for d, size in enumerate(input.shape)]
    return mean.view(shape) if keepdim else mean.view(last.shape[: len(kept)])

"""Which tokens go to which experts, as the groups of grouped_matmul."""

from __future__ import annotations

import torch
from torch import Tensor

from .ops import matmul


class ExpertRouting:
    """A mixture of experts' choices as groups of rows: those of each expert one after the other.

        routing = ExpertRouting(top_k_index, num_experts)
        inner = gated_grouped_matmul(routing.gather(x), gate, up, offs=routing.offs)
        y = routing.combine(grouped_matmul(inner, down, offs=routing.offs), top_k_weights)

    Nothing waits for the host, so that a CUDA graph can hold it, and a token's bits depend on its own experts alone.

    Args:
        top_k_index: (tokens, k), int32 or int64, the experts of each token. Numbers outside of 0 to num_experts - 1,
            which may stand for experts of other devices or for none, get rows behind the last group, which are 0.
        num_experts: G.

    Attributes:
        offs: (G,), int32, where each expert's rows end.

    Raises:
        TypeError: an index of another dtype.
        ValueError: an index of another shape, or a negative number of experts.
    """

    def __init__(self, top_k_index: Tensor, num_experts: int) -> None:
        if top_k_index.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"top_k_index: got {top_k_index.dtype}; accepted are torch.int32 and torch.int64")
        if top_k_index.dim() != 2 or num_experts < 0:
            raise ValueError(
                f"top_k_index, num_experts: got shape {list(top_k_index.shape)} and {num_experts}; accepted are "
                "(tokens, k) and a number from 0 on"
            )
        self.num_tokens, self.num_choices = top_k_index.shape
        choices = top_k_index.reshape(-1)
        experts, self._choice_of_row = torch.sort(torch.where(choices < 0, num_experts, choices), stable=True)
        expert_ids = torch.arange(num_experts, device=experts.device, dtype=experts.dtype)
        self.offs = torch.searchsorted(experts, expert_ids, right=True, out_int32=True)
        rows = torch.arange(experts.shape[0], device=experts.device)
        self._row_of_choice = torch.empty_like(rows).scatter_(0, self._choice_of_row, rows)

    def gather(self, tokens: Tensor) -> Tensor:
        """(tokens, n) -> (tokens * k, n): a row for each choice, in the order of the experts."""
        self._check("tokens", tokens, (self.num_tokens,), tokens.shape[:1])
        return tokens[self._choice_of_row // self.num_choices]

    def combine(self, rows: Tensor, top_k_weights: Tensor) -> Tensor:
        """(tokens * k, n) -> (tokens, n): the sum of each token's rows, each times its weight of (tokens, k).

        The sum is rounded once, to the dtype of both, float32 where one of them has 16 bits; weights of any other dtype
        are cast to that of the rows. Weights of choices without an expert must be finite, since they are multiplied by
        0.
        """
        self._check("rows", rows, (self.num_tokens * self.num_choices,), rows.shape[:1])
        self._check("top_k_weights", top_k_weights, (self.num_tokens, self.num_choices), top_k_weights.shape)
        dtypes = {rows.dtype, top_k_weights.dtype}
        if len(dtypes) == 2 and (torch.float32 not in dtypes or torch.float64 in dtypes):
            top_k_weights = top_k_weights.to(rows.dtype)
        of_tokens = rows[self._row_of_choice].view(self.num_tokens, self.num_choices, rows.shape[-1])
        if rows.is_cuda:  # products so small take longer, and two dtypes are converted first
            dtype = torch.promote_types(rows.dtype, top_k_weights.dtype)
            wide = top_k_weights.to(torch.promote_types(dtype, torch.float32))
            return (of_tokens * wide.unsqueeze(-1)).sum(1).to(dtype)
        return matmul(top_k_weights.unsqueeze(1), of_tokens).squeeze(1)

    def _check(self, name: str, tensor: Tensor, expected: tuple[int, ...], sizes: torch.Size) -> None:
        if tuple(sizes) != expected:
            raise ValueError(
                f"{name}: got shape {list(tensor.shape)} for {self.num_tokens} tokens of {self.num_choices} choices; "
                f"accepted is one that begins with {list(expected)}"
            )

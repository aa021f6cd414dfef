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
        top_k_index: (tokens, k), int64, the experts of each token. From num_experts on, which may stand for experts of
            other devices, they add nothing.
        num_experts: G.

    Attributes:
        offs: (G,), int32, where each expert's rows end.
    """

    def __init__(self, top_k_index: Tensor, num_experts: int) -> None:
        self.num_tokens, self.num_choices = top_k_index.shape
        experts, self._choices = torch.sort(top_k_index.reshape(-1), stable=True)
        every = torch.arange(num_experts, device=experts.device, dtype=experts.dtype)
        self.offs = torch.searchsorted(experts, every, right=True, out_int32=True)
        rows = torch.arange(len(experts), device=experts.device)
        self._rows = torch.empty_like(rows).scatter_(0, self._choices, rows)  # of each choice

    def gather(self, tokens: Tensor) -> Tensor:
        """(tokens, n) -> (tokens * k, n): a row for each choice, in the order of the experts."""
        return tokens[self._choices // self.num_choices]

    def combine(self, rows: Tensor, top_k_weights: Tensor) -> Tensor:
        """(tokens * k, n) -> (tokens, n): the sum of each token's rows, each times its weight of (tokens, k).

        The sum is rounded once, to the dtype of both, float32 where they differ.
        """
        of_tokens = rows[self._rows].view(self.num_tokens, self.num_choices, rows.shape[-1])
        return matmul(top_k_weights.unsqueeze(1), of_tokens).squeeze(1)

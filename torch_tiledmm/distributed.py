"""Sharding rules of the operators for DTensor (tensor parallel).

Importing this module registers them. That happens by itself when `torch.distributed.tensor` was imported before
`torch_tiledmm`, or when a TiledLinear is given a DTensor as parameter (`parallelize_module`, `distribute_module`); who calls
the operators on DTensors in other ways imports this module once.

DDP and FSDP2 need no rules.
"""

import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

Rules = list[tuple[list, list]]


@register_sharding(torch.ops.tiledmm.matmul.default)
def _matmul_sharding(a, b, *, algorithm: str = "auto") -> Rules:
    """Placements ([out], [a, b]) that need no communication, for operands of any rank."""
    a_batch, b_batch = max(a.ndim - 2, 0), max(b.ndim - 2, 0)
    batch = max(a_batch, b_batch)
    row, column = batch, batch + (a.ndim > 1)  # dimensions of the result
    a_k, b_k = a.ndim - 1, max(b.ndim - 2, 0)
    rules = [
        ([Replicate()], [Replicate(), Replicate()]),
        ([Partial()], [Shard(a_k), Shard(b_k)]),
        ([Partial()], [Partial(), Replicate()]),
        ([Partial()], [Replicate(), Partial()]),
    ]
    if a.ndim > 1:
        rules.append(([Shard(row)], [Shard(a.ndim - 2), Replicate()]))
    if b.ndim > 1:
        rules.append(([Shard(column)], [Replicate(), Shard(b.ndim - 1)]))
    for dim in range(batch):
        operands = []
        for tensor, own_batch in ((a, a_batch), (b, b_batch)):
            own = dim - (batch - own_batch)
            operands.append(Shard(own) if own >= 0 and tensor.shape[own] > 1 else Replicate())
        rules.append(([Shard(dim)], operands))
    return rules


@register_sharding(torch.ops.tiledmm.linear.default)
def _linear_sharding(input, weight, bias=None, *, activation: str = "none", algorithm: str = "auto") -> Rules:
    """Placements ([out], [input, weight, bias]) that need no communication.

    A sum that is spread over devices takes its bias spread likewise, so that it counts once, and no activation, since
    the activation of a part is not a part of the activation.
    """

    def with_bias(placement):
        return None if bias is None else placement

    last = input.ndim - 1
    rules = [([Replicate()], [Replicate(), Replicate(), with_bias(Replicate())])]
    if weight.ndim == 2:
        is_whole = bias is None or (bias.ndim == 1 and bias.shape[0] == weight.shape[0])
        rules.append(([Shard(last)], [Replicate(), Shard(0), with_bias(Shard(0) if is_whole else Replicate())]))
    for dim in range(last):
        rules.append(([Shard(dim)], [Shard(dim), Replicate(), with_bias(Replicate())]))
    if activation == "none":
        for operands in ([Shard(last), Shard(weight.ndim - 1)], [Partial(), Replicate()], [Replicate(), Partial()]):
            rules.append(([Partial()], [*operands, with_bias(Partial())]))
    return rules

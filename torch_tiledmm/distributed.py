"""Sharding rules, so that the operators take DTensors (tensor parallelism). DDP and fully_shard need none.

`import torch_tiledmm` is enough: the rules are registered when torch.distributed.tensor is imported, be it
before or after. Importing it here would add a second to `import torch_tiledmm` for those who do not need it.

matmul_out has no rule, and DTensor says so (NotImplementedError): to satisfy one, DTensor may compute into a copy of
`out` with another placement, and the result would be lost without a word.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.distributed.tensor import Placement
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

    Rules = list[tuple[list[Placement], list[Placement]]]

_DTENSOR = "torch.distributed.tensor"


def register_sharding_rules() -> None:
    """Tells DTensor how the operators may be sharded; doing it twice is harmless."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.experimental import register_sharding

    ops = torch.ops.tiledmm
    for op, rules in (
        (ops.matmul, _matmul_rules),
        (ops.addmm, _addmm_rules),
        (ops.linear, _linear_rules),
        (ops.linear_and_sum, partial(_with_sums, 1, _linear_rules)),
        (ops.linear_weight_grads, _linear_weight_grads_rules),
        (ops.gated_linear, _gated_linear_rules),
        (ops.gated_linear_and_sums, partial(_with_sums, 2, _gated_linear_rules)),
        (ops.gated, _gated_rules),
        (ops.gated_backward, _gated_backward_rules),
        (ops.activate, _activate_rules),
        (ops.activate_backward, _activate_backward_rules),
        (ops.grouped_matmul, _grouped_matmul_rules),
        (ops.grouped_matmul_and_sum, partial(_with_sums, 1, _grouped_matmul_rules)),
        (ops.gated_grouped_matmul, _gated_grouped_matmul_rules),
        (ops.gated_grouped_matmul_and_sums, partial(_with_sums, 2, _gated_grouped_matmul_rules)),
        (ops.ordered_sum, _ordered_sum_rules),
    ):
        register_sharding(op.default)(partial(_with_strided_shards, rules))
    # DTensor remembers its choice, and what the result is, per operands and integer arguments; here strings, dtypes and
    # lists take part in that.
    schema_info = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info
    gated_ops = (ops.gated_linear, ops.gated, ops.gated_grouped_matmul)
    gated_ops_and_sums = (ops.gated_linear_and_sums, ops.gated_grouped_matmul_and_sums)
    for op in (ops.matmul, ops.addmm, *gated_ops, *gated_ops_and_sums):
        schema_info[op.default].static_kwargkey = ["out_dtype"]
    for op in (ops.linear, ops.linear_and_sum, ops.grouped_matmul, ops.grouped_matmul_and_sum):
        schema_info[op.default].static_kwargkey = ["activation", "out_dtype"]
    schema_info[ops.ordered_sum.default].static_argnum = 1


def _with_strided_shards(rules_of: Callable[..., Rules], *operands: Any, **options: Any) -> Rules:
    """An operator's rules, and each again with a _StridedShard for every Shard, where the operands lie like that.

    A _StridedShard is what DTensor makes of (batch, sequence), sharded along the sequence, when it flattens them to
    rows: each process holds some rows of each item. The dimensions that a rule shards have one size, so that with one
    split factor a process holds the same part of all of them, as with Shard.
    """
    from torch.distributed.tensor import Shard

    rules = rules_of(*operands, **options)
    try:
        from torch.distributed.tensor.placement_types import _StridedShard
    except ImportError:  # a private name, which a later torch may be without
        return rules

    def strided(placements: list[Placement], factor: Any) -> list[Placement]:
        return [_StridedShard(own.dim, split_factor=factor) if isinstance(own, Shard) else own for own in placements]

    given = [getattr(operand, "placements", ()) for operand in operands]
    factors = {own.split_factor for placements in given for own in placements if isinstance(own, _StridedShard)}
    more = [(strided(out, factor), strided(placed, factor)) for factor in factors for out, placed in rules]
    for out, placed in more:
        is_given = [own in there for own, there in zip(placed, given, strict=False) if isinstance(own, _StridedShard)]
        if is_given and all(is_given):
            rules.append((out, placed))
    return rules


def _matmul_rules(a: DTensorSpec, b: DTensorSpec, **options: Any) -> Rules:
    """([placement of the result], [of a, of b]) without communication, for one dimension of the device mesh."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    batch_a, batch_b = a.shape[:-2], b.shape[:-2]
    num_batch_dims = max(len(batch_a), len(batch_b))
    rules: Rules = [
        ([Replicate()], [Replicate(), Replicate()]),
        ([Partial()], [Shard(a.ndim - 1), Shard(max(b.ndim - 2, 0))]),
        ([Partial()], [Partial(), Replicate()]),
        ([Partial()], [Replicate(), Partial()]),
    ]
    if a.ndim > 1:
        rules.append(([Shard(num_batch_dims)], [Shard(a.ndim - 2), Replicate()]))
    if b.ndim > 1:
        rules.append(([Shard(num_batch_dims + (a.ndim > 1))], [Replicate(), Shard(b.ndim - 1)]))
    for dim in range(num_batch_dims):
        in_a, in_b = dim - num_batch_dims + len(batch_a), dim - num_batch_dims + len(batch_b)
        size = max(batch_a[in_a] if in_a >= 0 else 1, batch_b[in_b] if in_b >= 0 else 1)
        placements: list[Placement] = [
            Shard(own) if own >= 0 and batch[own] == size else Replicate()  # what is broadcast stays whole
            for own, batch in ((in_a, batch_a), (in_b, batch_b))
        ]
        rules.append(([Shard(dim)], placements))
    return rules


def _addmm_rules(
    input: DTensorSpec | None,
    a: DTensorSpec,
    b: DTensorSpec,
    **options: Any,
) -> Rules:
    """([placement of the result], [of input, of a, of b]); see `_matmul_rules`.

    A partial sum takes its input as one, too, so that it counts once. What is broadcast of an input stays whole.
    """
    from torch.distributed.tensor import Partial, Replicate, Shard

    rules = _matmul_rules(a, b)
    if input is None:
        return [(out, [None, *placements]) for out, placements in rules]  # type: ignore[list-item]
    batch_dims = max(a.ndim, b.ndim) - 2
    missing = batch_dims + 2 - input.ndim

    def of_input(out: Placement) -> Placement:
        if not isinstance(out, Shard):
            return Partial() if isinstance(out, Partial) else Replicate()
        own = out.dim - missing
        return Replicate() if own < 0 or input.shape[own] == 1 else Shard(own)

    return [(out, [of_input(out[0]), *placements]) for out, placements in rules]


def _linear_rules(
    input: DTensorSpec,
    weight: DTensorSpec,
    bias: DTensorSpec | None = None,
    *,
    activation: str = "none",
    **options: Any,
) -> Rules:
    """([placement of the result], [of input, of weight, of bias]); see `_matmul_rules`.

    A partial sum takes its bias as one, too, so that it counts once: DTensor keeps a replicated bias on one
    rank and takes zeros on the others. An activation of partial sums would be wrong, so with one there are
    none.
    """
    from torch.distributed.tensor import Partial, Replicate, Shard

    def add(out: Placement, *operands: Placement) -> None:
        rules.append(([out], list(operands if bias is not None else operands[:2])))

    rules: Rules = []
    last = input.ndim - 1
    add(Replicate(), Replicate(), Replicate(), Replicate())
    for dim in range(last):
        add(Shard(dim), Shard(dim), Replicate(), Replicate())
    if weight.ndim == 2:
        is_per_row = bias is not None and tuple(bias.shape) == (weight.shape[0],)
        add(Shard(last), Replicate(), Shard(0), Shard(0) if is_per_row else Replicate())
    if activation == "none":
        add(Partial(), Shard(last), Shard(weight.ndim - 1), Partial())
        add(Partial(), Partial(), Replicate(), Partial())
        add(Partial(), Replicate(), Partial(), Partial())
    return rules


def _gated_linear_rules(
    input: DTensorSpec,
    gate: DTensorSpec,
    up: DTensorSpec,
    gate_bias: DTensorSpec | None = None,
    up_bias: DTensorSpec | None = None,
    **options: Any,
) -> Rules:
    """([placement of the result], [of input, of both weights, of both biases]); see `_matmul_rules`."""
    biases = (gate_bias, up_bias)
    rules = _linear_rules(input, gate, gate_bias or up_bias, activation="silu")
    return [
        (out, [placed[0], placed[1], placed[1], *(None if own is None else placed[2] for own in biases)])  # type: ignore[list-item]
        for out, placed in rules
    ]


def _with_sums(count: int, rules_of: Callable[..., Rules], *operands: DTensorSpec | None, **options: Any) -> Rules:
    """The rules of a product whose result comes with so many sums, which lie as it does."""
    return [(out * (1 + count), placements) for out, placements in rules_of(*operands, **options)]


def _grouped_matmul_rules(
    a: DTensorSpec,
    b: DTensorSpec,
    offs: DTensorSpec | None = None,
    bias: DTensorSpec | None = None,
    *,
    activation: str = "none",
    **options: Any,
) -> Rules:
    """([placement of the result], [of a, of b, of offs, of bias]); see `_matmul_rules`.

    What offsets count stays whole, and so do they: a part of it is no part of every group.
    """
    from torch.distributed.tensor import Partial, Replicate, Shard

    rules: Rules = []

    def add(out: Placement, of_a: Placement, of_b: Placement, of_bias: Placement) -> None:
        placed = [of_a, of_b, None if offs is None else Replicate(), None if bias is None else of_bias]
        rules.append(([out], placed))  # type: ignore[arg-type]

    last = 2 if a.ndim == b.ndim else 1  # the result's last dimension
    add(Replicate(), Replicate(), Replicate(), Replicate())
    if a.ndim == 3 or b.ndim == 2:  # rows
        add(Shard(last - 1), Shard(a.ndim - 2), Replicate(), Replicate())
    if b.ndim == 3 or a.ndim == 2:  # columns
        add(Shard(last), Replicate(), Shard(b.ndim - 1), Shard(1))
    if a.ndim == b.ndim == 3:
        add(Shard(0), Shard(0), Shard(0), Shard(0))
    if activation == "none":
        if a.ndim == 3 or b.ndim == 3:  # k
            add(Partial(), Shard(a.ndim - 1), Shard(b.ndim - 2), Partial())
        add(Partial(), Partial(), Replicate(), Partial())
        add(Partial(), Replicate(), Partial(), Partial())
    return rules


def _gated_grouped_matmul_rules(
    a: DTensorSpec,
    gate: DTensorSpec,
    up: DTensorSpec,
    offs: DTensorSpec | None = None,
    gate_bias: DTensorSpec | None = None,
    up_bias: DTensorSpec | None = None,
    **options: Any,
) -> Rules:
    """([placement of the result], [of a, of both weights, of offs, of both biases]); see `_matmul_rules`."""
    biases = (gate_bias, up_bias)
    rules = _grouped_matmul_rules(a, gate, offs, gate_bias or up_bias, activation="silu")
    return [
        (out, [placed[0], placed[1], placed[1], placed[2], *(None if own is None else placed[3] for own in biases)])  # type: ignore[list-item]
        for out, placed in rules
    ]


def _gated_rules(gate: DTensorSpec, up: DTensorSpec, **options: Any) -> Rules:
    """([placement of the result], [of gate, of up]); see `_matmul_rules`."""
    from torch.distributed.tensor import Replicate, Shard

    return [([own], [own, own]) for own in (Replicate(), *map(Shard, range(gate.ndim)))]


def _gated_backward_rules(grad: DTensorSpec, gate: DTensorSpec, up: DTensorSpec, **options: Any) -> Rules:
    """([placements of both gradients], [of grad, of gate, of up]); see `_matmul_rules`."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    rules: Rules = [([own] * 2, [own] * 3) for own in (Replicate(), *map(Shard, range(gate.ndim)))]
    return [*rules, ([Partial(), Partial()], [Partial(), Replicate(), Replicate()])]


def _activate_rules(x: DTensorSpec, activation: str) -> Rules:
    """([placement of the result], [of x, None for the name]); see `_matmul_rules`."""
    from torch.distributed.tensor import Replicate, Shard

    placements = [Replicate(), *(Shard(dim) for dim in range(x.ndim))]
    return [([own], [own, None]) for own in placements]  # type: ignore[list-item]


def _activate_backward_rules(grad: DTensorSpec, x: DTensorSpec, activation: str) -> Rules:
    """([placement of the result], [of grad, of x, None for the name]); see `_matmul_rules`."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    placements = [Replicate(), *(Shard(dim) for dim in range(x.ndim))]
    rules: Rules = [([own], [own, own, None]) for own in placements]  # type: ignore[list-item]
    return [*rules, ([Partial()], [Partial(), Replicate(), None])]  # type: ignore[list-item]


def _ordered_sum_rules(a: DTensorSpec, dims: Sequence[int]) -> Rules:
    """([placement of the sums], [of a, None for dims]); see `_matmul_rules`."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    pairs = [(Replicate(), Replicate()), (Partial(), Partial())]
    pairs += [(Partial() if dim in dims else Shard(dim), Shard(dim)) for dim in range(a.ndim)]
    return [([out], [own, None]) for out, own in pairs]  # type: ignore[list-item]


def _linear_weight_grads_rules(grad: DTensorSpec, input: DTensorSpec, *, algorithm: str = "auto") -> Rules:
    """([placements of the weight's and the bias's gradient], [of grad, of input]); see `_matmul_rules`."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    return [
        ([Replicate(), Replicate()], [Replicate(), Replicate()]),
        ([Partial(), Partial()], [Shard(0), Shard(0)]),
        ([Shard(0), Shard(0)], [Shard(1), Replicate()]),
        ([Shard(1), Replicate()], [Replicate(), Shard(1)]),
        ([Partial(), Partial()], [Partial(), Replicate()]),
    ]


class _AfterImport(importlib.abc.MetaPathFinder):
    """Registers the rules at the end of the import of torch.distributed.tensor, then is gone."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _DTENSOR:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        run_module = spec.loader.exec_module

        def run_module_and_register(module: ModuleType) -> None:
            sys.meta_path.remove(self)
            run_module(module)
            register_sharding_rules()

        spec.loader.exec_module = run_module_and_register  # type: ignore[method-assign]
        return spec


if _DTENSOR in sys.modules:
    register_sharding_rules()
else:
    sys.meta_path.insert(0, _AfterImport())

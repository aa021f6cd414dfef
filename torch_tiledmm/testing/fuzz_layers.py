"""Fuzzer of products with an activation, gated ones and those of groups: operands of any layout, biases of any shape
that is accepted, with a gradient and without.

    python -m torch_tiledmm.testing.fuzz_layers --cases 2000 --seed 1 [--device cuda]
    python -m torch_tiledmm.testing.fuzz_layers --seed 1 --case 123       one case again

Each result has to have the bits of a product of contiguous operands for each group; of two weights, those of their
sums in the type of accumulators and one pass over them. So has the result under a gradient. Each gradient has to have
the bits of that of contiguous operands. The values of products are fuzz.py's matter.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..ops import gated_grouped_matmul, gated_linear, grouped_matmul, linear
from .cases import Layout, assert_same_bits, draw_layout, draw_size, fill, nans

OPS = torch.ops.tiledmm
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")
BIASES = ("none", "columns", "columns", "one", "scalar")


@dataclass(frozen=True)
class LayerCase:
    """A product: `ends` of its groups, none where it has none; one weight or two, apart or one behind the other."""

    m: int
    n: int
    k: int
    ends: tuple[int, ...]
    num_weights: int
    is_stacked: bool
    dtype: torch.dtype
    activation: str
    biases: tuple[str, ...]
    layouts: tuple[Layout, ...]  # one for each of shapes()

    def shapes(self) -> list[tuple[int, ...] | None]:
        """Of rows, weights (out, in) and biases; None: there is none."""
        groups = (len(self.ends),) if self.ends else ()
        n = self.n * (self.num_weights if self.is_stacked else 1)
        of_bias = {"none": None, "columns": (*groups, n), "one": (1,), "scalar": ()}
        weights = [(*groups, n, self.k)] * (1 if self.is_stacked else self.num_weights)
        return [(self.m, self.k), *weights, *(of_bias[bias] for bias in self.biases)]


def draw_layer(seed: int, number: int) -> LayerCase:
    rng = random.Random(f"layers {seed} {number}")
    m, n, k = draw_size(rng, 300), draw_size(rng, 300), draw_size(rng, 1200)
    ends = sorted(rng.randint(0, m) for _ in range(rng.randint(1, 5))) if rng.random() < 0.5 else ()
    num_weights = rng.choice((1, 2, 2))
    is_stacked = num_weights == 2 and rng.random() < 0.3
    # A bias of one element would not say whose columns it is of: a group's, or one weight's of two.
    kinds = ("none", "columns") if ends or is_stacked else BIASES
    biases = [rng.choice(kinds) for _ in range(1 if is_stacked else num_weights)]
    dtype, activation = rng.choice(DTYPES), rng.choice(ACTIVATIONS)
    case = LayerCase(m, n, k, tuple(ends), num_weights, is_stacked, dtype, activation, tuple(biases), ())
    layouts = [draw_layout(rng, shape or (1,), ("expanded",)) for shape in case.shapes()]
    return replace(case, layouts=tuple(layouts))


def make_operands(case: LayerCase, device: str) -> list[Any]:
    """NaN lies around each."""
    operands: list[Any] = []
    for seed, (shape, layout) in enumerate(zip(case.shapes(), case.layouts, strict=True)):
        if shape is None or len(shape) == 0:
            operands.append(None if shape is None else torch.tensor(0.7, dtype=case.dtype, device=device))
            continue
        strides = layout.strides(shape)
        memory = nans(layout.num_elements(shape), case.dtype)
        memory = fill(memory, shape, strides, layout.before, "uniform", seed).to(device)
        operands.append(memory.as_strided(shape, strides, layout.before))
    return operands


def compute(case: LayerCase, operands: Sequence[Any]) -> Tensor:
    """By one call."""
    rows, *others = operands
    num_biases = len(case.biases)
    # Those of groups are given as (groups, in, out).
    weights = [weight.mT if case.ends else weight for weight in others[:-num_biases]]
    gate, up = (*weights, None)[:2]
    gate_bias, up_bias = (*others[-num_biases:], None)[:2]
    options: dict[str, Any] = {"activation": case.activation}
    if case.ends:
        options["offs"] = torch.tensor(case.ends, dtype=torch.int32, device=rows.device)
        if case.num_weights == 1:
            return grouped_matmul(rows, gate, bias=gate_bias, **options)
        return gated_grouped_matmul(rows, gate, up, gate_bias=gate_bias, up_bias=up_bias, **options)
    if case.num_weights == 1:
        return linear(rows, gate, gate_bias, **options)
    return gated_linear(rows, gate, up, gate_bias, up_bias, **options)


def compute_apart(case: LayerCase, operands: Sequence[Any]) -> Tensor:
    """By a product for each weight and each group. Of two weights one pass over their sums follows."""
    rows, *others = operands
    wide = torch.float64 if case.dtype == torch.float64 else torch.float32
    options = {"activation": case.activation} if case.num_weights == 1 else {"out_dtype": wide}
    if case.is_stacked:
        weight, bias = others
        both = (None, None) if bias is None else bias.tensor_split(2, -1)
        others = [*weight.tensor_split(2, -2), *both]
    weights, biases = others[: case.num_weights], others[case.num_weights :]
    results: list[Tensor] = []
    for weight, bias in zip(weights, biases, strict=True):
        if not case.ends:
            results.append(linear(rows, weight, bias, **options))
            continue
        out = rows.new_zeros(case.m, case.n, dtype=options.get("out_dtype", case.dtype))
        for group, (first, end) in enumerate(zip((0, *case.ends[:-1]), case.ends, strict=True)):
            own = None if bias is None else bias[group]
            out[first:end] = linear(rows[first:end], weight[group], own, **options)
        results.append(out)
    if case.num_weights == 1:
        return results[0]
    gated: Tensor = OPS.gated(*results, activation=case.activation, out_dtype=case.dtype)
    if case.ends:
        gated[case.ends[-1] :] = 0  # rows of no group
    return gated


def flushed(tensor: Tensor) -> Tensor:
    """On a CPU bf16 without denormals and what rounds to the least normal number: instructions may write 0 for these
    (docs/numerics.md)."""
    if tensor.dtype != torch.bfloat16 or tensor.is_cuda:
        return tensor
    is_denormal = tensor.abs() <= torch.finfo(tensor.dtype).tiny
    return torch.where(is_denormal, torch.copysign(torch.zeros_like(tensor), tensor), tensor)


def check_layer(case: LayerCase, device: str = "cpu") -> None:
    """Raises AssertionError where bits are not as promised."""
    operands = make_operands(case, device)
    plain = [
        operand if operand is None else operand.clone(memory_format=torch.contiguous_format) for operand in operands
    ]
    out = compute(case, operands)
    assert_same_bits(flushed(out), flushed(compute_apart(case, plain)), "one call")
    grads = []
    for given in (operands, plain):
        leaves = [operand if operand is None else operand.detach().requires_grad_() for operand in given]
        result = compute(case, leaves)
        assert_same_bits(result, out, "under a gradient")
        grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(0), device="cpu").to(out)
        grads.append(torch.autograd.grad(result, [leaf for leaf in leaves if leaf is not None], grad))
    for own, expected in zip(*grads, strict=True):
        assert_same_bits(own, expected, "gradients")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--case", type=int, help="this number alone")
    args = parser.parse_args(arguments)
    failures = 0
    for number in range(args.cases) if args.case is None else (args.case,):
        case = draw_layer(args.seed, number)
        try:
            check_layer(case, args.device)
        except Exception as error:
            failures += 1
            print(f"case {number}: {type(error).__name__} {str(error)[:300]}\n  {case}")
            command = f"python -m torch_tiledmm.testing.fuzz_layers --seed {args.seed} --case {number}"
            print(f"run again: {command} --device {args.device}", flush=True)
    print(f"{failures} failures")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())

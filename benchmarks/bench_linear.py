"""Forward and backward of TiledLinear against nn.Linear on the layers of an MLP and of BERT-base, and the forward of a
sentence encoder with every nn.Linear replaced.

    python benchmarks/bench_linear.py --dtype bf16 --json benchmarks/results/amd_epyc_2_cores/linear_bf16.json

One step of a layer is the forward and the gradients of input, weight and bias. Both arms hold the same parameters and
get the same input.
"""

import argparse
import copy
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_tiledmm import TiledLinear, replace_linear
from torch_tiledmm.dispatch import DTYPES, format_columns
from torch_tiledmm.testing.bench import (
    OURS,
    add_arguments,
    compare,
    describe_run,
    ratio_of_best,
    summarize,
    threads_of,
    threads_of_all_arms,
    with_progress,
    write_json,
)
from torch_tiledmm.testing.timing import time_arms

# (name, in_features, out_features)
LAYERS = (
    ("digits_hidden", 64, 256),
    ("digits_hidden_2", 256, 256),
    ("digits_classes", 256, 10),
    ("bert_attention", 768, 768),
    ("bert_ffn_up", 768, 3072),
    ("bert_ffn_down", 3072, 768),
)
BATCH_SIZES = (1, 32, 512)
# Of the sentence encoder: width, layers, heads (those of all-MiniLM-L6-v2), and sentences of so many tokens.
WIDTH, NUM_LAYERS, NUM_HEADS = 384, 6, 12
TOKENS = (10, 24, 60)


class Case(NamedTuple):
    """One row: its name, what it computes, and its arms."""

    layer: str
    in_features: int
    out_features: int
    batch_size: int  # rows; of the encoder: tokens
    flops: int
    make_arms: Callable[[], dict[str, Callable]]

    def __str__(self) -> str:
        return f"{self.layer}_batch{self.batch_size}"


class EncoderLayer(nn.Module):
    """A layer of BERT: attention, then two linear layers with gelu between them."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH, dtype=dtype) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, dtype=dtype), nn.Linear(4 * WIDTH, WIDTH, dtype=dtype)
        self.norm_1, self.norm_2 = (nn.LayerNorm(WIDTH, dtype=dtype) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        heads = [
            project(x).unflatten(-1, (NUM_HEADS, -1)).transpose(-2, -3)
            for project in (self.query, self.key, self.value)
        ]
        attended = F.scaled_dot_product_attention(*heads).transpose(-2, -3).flatten(-2)
        x = self.norm_1(x + self.output(attended))
        return self.norm_2(x + self.down(F.gelu(self.up(x))))


def encoder_arms(tokens: int, dtype: torch.dtype) -> dict[str, Callable]:
    """The forward of one sentence."""
    torch.manual_seed(0)
    theirs = nn.Sequential(*(EncoderLayer(dtype) for _ in range(NUM_LAYERS))).eval().requires_grad_(False)
    ours = copy.deepcopy(theirs)
    replace_linear(ours)
    input = torch.empty(1, tokens, WIDTH, dtype=dtype).uniform_(-1, 1)
    return {OURS: lambda: ours(input), "nn.Linear": lambda: theirs(input)}


def linear_step(layer: nn.Linear, input: Tensor, grad_output: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    inputs = (input, layer.weight, layer.bias)
    return lambda: torch.autograd.grad(layer(input), inputs, grad_output)


def linear_arms(in_features: int, out_features: int, batch_size: int, dtype: torch.dtype) -> dict[str, Callable]:
    """One training step per layer type, on shared parameters and data."""
    torch.manual_seed(0)
    theirs = nn.Linear(in_features, out_features, dtype=dtype)
    ours = TiledLinear(in_features, out_features, dtype=dtype)
    ours.weight, ours.bias = theirs.weight, theirs.bias
    input = torch.empty(batch_size, in_features, dtype=dtype).uniform_(-1, 1).requires_grad_()
    grad_output = torch.empty(batch_size, out_features, dtype=dtype).uniform_(-1, 1)
    return {OURS: linear_step(ours, input, grad_output), "nn.Linear": linear_step(theirs, input, grad_output)}


def linear_table(results: dict) -> list[tuple[str, ...]]:
    """The rows as text, the head first."""
    table = [("layer", "in -> out", "batch", "TiledLinear us", "+-", "nn.Linear us", "GFLOP/s", "ratio", "best")]
    for row in results["rows"]:
        ours, theirs = row["timings"][OURS], row["timings"]["nn.Linear"]
        table.append(
            (
                row["layer"],
                f"{row['in_features']} -> {row['out_features']}",
                str(row["batch_size"]),
                f"{ours['median_us']:.1f}",
                f"{100 * ours['spread']:.0f}%",
                f"{theirs['median_us']:.1f}",
                f"{row['gflops']:.1f}",
                f"{row['ratio']:.2f}",
                f"{ratio_of_best(row):.2f}",
            )
        )
    return table


def run_linear(args: argparse.Namespace) -> dict:
    """Runs every layer at every batch size and the encoder, prints the table, writes the JSON, returns the results."""
    dtype = DTYPES[args.dtype]
    cases = []
    for batch_size in BATCH_SIZES:
        for name, *features in LAYERS:
            flops = 6 * features[0] * features[1] * batch_size  # forward and two products backward
            arms = partial(linear_arms, *features, batch_size, dtype)
            cases.append(Case(name, *features, batch_size, flops, arms))
    for tokens in TOKENS:
        flops = 2 * tokens * NUM_LAYERS * 12 * WIDTH**2  # those of the linear layers
        cases.append(Case("sentence_encoder", WIDTH, WIDTH, tokens, flops, partial(encoder_arms, tokens, dtype)))
    with threads_of_all_arms(args.threads, has_numpy=False):
        results = describe_run("linear", dtype)
        rows = results["rows"] = []
        for case in with_progress(cases):
            arms = time_arms(case.make_arms(), seconds=args.seconds)
            timings = {arm: timing.to_dict() for arm, timing in arms.items()}
            rows.append(
                {
                    "name": str(case),
                    "layer": case.layer,
                    "in_features": case.in_features,
                    "out_features": case.out_features,
                    "batch_size": case.batch_size,
                    "timings": timings,
                    "gflops": round(case.flops / timings[OURS]["median_us"] / 1e3, 2),
                    **compare(timings),
                }
            )
    summary = results["summary"] = summarize(rows)
    print(format_columns(linear_table(results)))
    print(f"\n{results['cpu']}, {results['isa']}, {threads_of(results)}, {results['dtype']}")
    print(f"ratio = time of nn.Linear / ours: geomean {summary['geomean']:.3f} over {len(rows)} rows")
    print(f"rows below 1.0: {len(summary['below_one'])} {' '.join(summary['below_one'])}")
    write_json(results, args.json)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description="forward and backward of TiledLinear against nn.Linear")
    add_arguments(parser)
    try:
        run_linear(parser.parse_args())
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()

"""Forward and backward of TiledLinear against nn.Linear on the layers of an MLP and of BERT-base.

    python benchmarks/bench_linear.py --dtype bf16 --json benchmarks/results/amd_epyc_2_cores/linear_bf16.json

One step is the forward and the gradients of input, weight and bias. Both layers hold the same parameters
and get the same input.
"""

import argparse
from collections.abc import Callable

import torch

from torch_tiledmm import TiledLinear
from torch_tiledmm.dispatch import DTYPES, format_columns
from torch_tiledmm.testing.bench import (
    OURS,
    add_arguments,
    compare,
    describe_run,
    summarize,
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


def linear_step(
    layer: torch.nn.Linear, input: torch.Tensor, grad_output: torch.Tensor
) -> Callable[[], tuple[torch.Tensor, ...]]:
    inputs = (input, layer.weight, layer.bias)
    return lambda: torch.autograd.grad(layer(input), inputs, grad_output)


def linear_arms(in_features: int, out_features: int, batch_size: int, dtype: torch.dtype) -> dict[str, Callable]:
    """One training step per layer type, on shared parameters and data."""
    torch.manual_seed(0)
    theirs = torch.nn.Linear(in_features, out_features, dtype=dtype)
    ours = TiledLinear(in_features, out_features, dtype=dtype)
    ours.weight, ours.bias = theirs.weight, theirs.bias
    input = torch.empty(batch_size, in_features, dtype=dtype).uniform_(-1, 1).requires_grad_()
    grad_output = torch.empty(batch_size, out_features, dtype=dtype).uniform_(-1, 1)
    return {OURS: linear_step(ours, input, grad_output), "nn.Linear": linear_step(theirs, input, grad_output)}


def linear_table(results: dict) -> list[tuple[str, ...]]:
    """The rows as text, the head first."""
    table = [("layer", "in -> out", "batch", "TiledLinear us", "+-", "nn.Linear us", "GFLOP/s", "ratio")]
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
            )
        )
    return table


def run_linear(args: argparse.Namespace) -> dict:
    """Runs every layer at every batch size, prints the table, writes the JSON, returns the results."""
    dtype = DTYPES[args.dtype]
    cases = [(*layer, batch_size) for batch_size in BATCH_SIZES for layer in LAYERS]
    with threads_of_all_arms(args.threads, has_numpy=False):
        results = describe_run("linear", dtype)
        rows = results["rows"] = []
        for name, in_features, out_features, batch_size in with_progress(cases):
            arms = linear_arms(in_features, out_features, batch_size, dtype)
            timings = {arm: timing.to_dict() for arm, timing in time_arms(arms, seconds=args.seconds).items()}
            flops = 6 * in_features * out_features * batch_size  # forward and two products backward
            rows.append(
                {
                    "name": f"{name}_batch{batch_size}",
                    "layer": name,
                    "in_features": in_features,
                    "out_features": out_features,
                    "batch_size": batch_size,
                    "timings": timings,
                    "gflops": round(flops / timings[OURS]["median_us"] / 1e3, 2),
                    **compare(timings),
                }
            )
    summary = results["summary"] = summarize(rows)
    print(format_columns(linear_table(results)))
    print(f"\n{results['cpu']}, {results['isa']}, {results['num_threads']} threads, {results['dtype']}")
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

"""Host cost of a call: 4 x 4 products in fp32 on one thread, where there is next to nothing to compute.

    python benchmarks/bench_overhead.py --json overhead.json

matmul against torch.mm and TiledLinear against nn.Linear: the time of ours divided by theirs, beside the bar that the
project has set itself. Every call is that of a user: torch_tiledmm.matmul, or the layer.
"""

import argparse
from collections.abc import Callable

import torch

from torch_tiledmm import TiledLinear, matmul
from torch_tiledmm.dispatch import format_columns
from torch_tiledmm.testing.bench import (
    OURS,
    describe_run,
    output_file,
    positive,
    threads_of_all_arms,
    with_progress,
    write_json,
)
from torch_tiledmm.testing.timing import time_arms

SIZE = 4
MODES = ("no grad", "forward", "forward + backward")
# Largest ratio to the peer, per mode.
MATMUL_BARS = (2.2, 2.5, 1.3)
LINEAR_BARS = (1.3, 1.3, 1.3)


def make_call(function: Callable[..., torch.Tensor], operands: tuple[torch.Tensor, ...], mode: str) -> Callable:
    """One call of the mode; in "no grad" no operand needs a gradient, so grad mode itself need not be switched."""
    if mode == "forward + backward":
        leaves = tuple(operand for operand in operands if operand.requires_grad)
        grad_output = torch.ones_like(function(*operands))
        return lambda: torch.autograd.grad(function(*operands), leaves, grad_output)
    if len(operands) == 1:
        (operand,) = operands
        return lambda: function(operand)
    a, b = operands
    return lambda: function(a, b)


def overhead_arms(peer: str, mode: str) -> dict[str, Callable]:
    """Ours and the peer (torch.mm or nn.Linear) on the same operands."""
    needs_grad = mode != "no grad"
    a, b = (torch.empty(SIZE, SIZE).uniform_(-1, 1).requires_grad_(needs_grad) for _ in range(2))
    if peer == "torch.mm":
        functions, operands = {OURS: matmul, peer: torch.mm}, (a, b)
    else:
        theirs, ours = (layer(SIZE, SIZE).requires_grad_(needs_grad) for layer in (torch.nn.Linear, TiledLinear))
        ours.load_state_dict(theirs.state_dict())
        functions, operands = {OURS: ours, peer: theirs}, (a,)
    return {name: make_call(function, operands, mode) for name, function in functions.items()}


def overhead_table(results: dict) -> list[tuple[str, ...]]:
    """The rows as text, the head first."""
    table = [("peer", "mode", "ours us", "peer us", "ours / peer", "bar", "")]
    for row in results["rows"]:
        verdict = "" if row["ratio"] <= row["bar"] else "above the bar"
        times = (f"{row['timings'][name]['minimum_us']:.2f}" for name in (OURS, row["peer"]))
        table.append((row["peer"], row["mode"], *times, f"{row['ratio']:.2f}", f"{row['bar']:.1f}", verdict))
    return table


def run_overhead(args: argparse.Namespace) -> dict:
    """Times every row, prints the table, writes the JSON, returns the results."""
    cases = [
        (peer, mode, bar)
        for peer, bars in (("torch.mm", MATMUL_BARS), ("nn.Linear", LINEAR_BARS))
        for mode, bar in zip(MODES, bars, strict=True)
    ]
    with threads_of_all_arms(1, has_numpy=False):
        results = describe_run("overhead", torch.float32)
        rows = results["rows"] = []
        for peer, mode, bar in with_progress(cases):
            arms = overhead_arms(peer, mode)
            timings = {arm: timing.to_dict() for arm, timing in time_arms(arms, seconds=args.seconds).items()}
            # The fastest sample of each: what disturbs a call of a microsecond only ever adds to it.
            ratio = timings[OURS]["minimum_us"] / timings[peer]["minimum_us"]
            rows.append({"peer": peer, "mode": mode, "bar": bar, "timings": timings, "ratio": round(ratio, 3)})
    print(format_columns(overhead_table(results)))
    print(f"\n{results['cpu']}, {results['isa']}, 1 thread, fp32, {SIZE} x {SIZE}")
    write_json(results, args.json)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description="host cost of a call against torch.mm and nn.Linear")
    parser.add_argument("--seconds", type=positive, default=1.0, help="time for each row, default 1")
    parser.add_argument("--json", type=output_file, default=None, metavar="FILE", help="write the results there")
    run_overhead(parser.parse_args())


if __name__ == "__main__":
    main()

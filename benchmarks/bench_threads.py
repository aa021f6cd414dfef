"""How matmul and torch scale over threads: the same products with 1, 2, 4, ... threads, up to all cores.

python benchmarks/bench_threads.py --dtype bf16 --json benchmarks/results/MACHINE/threads_bf16.json
"""

import argparse

import torch

from torch_tiledmm.dispatch import DTYPES, format_columns
from torch_tiledmm.testing.bench import (
    OURS,
    add_arguments,
    compare,
    describe_run,
    matmul_arms,
    ratio_of_best,
    summarize,
    threads_of_all_arms,
    with_progress,
    write_json,
)
from torch_tiledmm.testing.shapes import select_shapes
from torch_tiledmm.testing.timing import time_arms

ROWS = "square_256_nn,square_1024_nn,square_2048_nn,bert_ffn_up_m128,llama_attention_m1,batch_32x128"


def threads_table(results: dict) -> list[tuple[str, ...]]:
    """The rows as text, the head first. Times of one thread are the measure of the others."""
    table = [("shape", "threads", "us", "+-", "times faster", "torch us", "times faster", "ratio", "best")]
    alone: dict[str, dict] = {}
    for row in results["rows"]:
        timings = row["timings"]
        first = alone.setdefault(row["shape"], timings)
        cells = [row["shape"], str(row["num_threads"])]
        for arm in (OURS, "torch"):
            cells.append(f"{timings[arm]['median_us']:.1f}")
            if arm == OURS:
                cells.append(f"{100 * timings[arm]['spread']:.0f}%")
            cells.append(f"{first[arm]['median_us'] / timings[arm]['median_us']:.2f}")
        table.append((*cells, f"{row['ratio']:.2f}", f"{ratio_of_best(row):.2f}"))
    return table


def run_threads(args: argparse.Namespace) -> dict:
    """Measures, prints the table, writes the JSON, returns the results."""
    dtype = DTYPES[args.dtype]
    most = args.threads or torch.get_num_threads()
    counts = [1 << i for i in range(most.bit_length()) if 1 << i < most] + [most]
    cases = [(shape, count) for shape in select_shapes(args.rows.split(",")) for count in counts]
    results = describe_run("threads", dtype)
    rows = results["rows"] = []
    progress = with_progress([f"{shape.name}_threads{count}" for shape, count in cases])
    for name, (shape, count) in zip(progress, cases, strict=True):
        with threads_of_all_arms(count, has_numpy=False):
            arms = time_arms(matmul_arms(shape, dtype, "auto"), seconds=args.seconds)
            timings = {name: timing.to_dict() for name, timing in arms.items()}
        rows.append({"name": name, "shape": str(shape), "num_threads": count, "timings": timings, **compare(timings)})
    results["summary"] = summarize(rows)
    print(format_columns(threads_table(results)))
    write_json(results, args.json)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description="matmul and torch with 1, 2, 4, ... threads")
    add_arguments(parser)
    parser.add_argument(
        "--rows", default=ROWS, help=f"of the shapes table, or MxNxK:NT, commas between; default: {ROWS}"
    )
    try:
        run_threads(parser.parse_args())
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()

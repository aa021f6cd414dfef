"""The benchmark of matmul against torch and numpy: measures rows of the shapes table, prints and plots them.

Every arm allocates its output at each call, as its users' calls do: none is spared the cost, none pays it
twice. Operands are given to every arm as the same memory in the layout of the row, so nobody copies unless
the library itself does. numpy takes part in fp32 and fp64; in the other two dtypes it has no matrix
multiplication worth the name.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from ..dispatch import DTYPES, algorithms, build_info, dtype_name, format_columns
from ..machine import cpu_name
from ..ops import matmul
from .origin import origin
from .shapes import KINDS, SHAPES, Shape, make_operands, random_shapes, select_shapes
from .timing import bandwidth_of, copy_bandwidths, fma_peak, time_arms

OURS = "tiledmm"
NUMPY_DTYPES = (torch.float32, torch.float64)
MOST_RANDOM_FLOPS = 2e10  # so that no row drawn at random takes minutes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that every benchmark has."""
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="fp32")
    parser.add_argument("--threads", type=int, default=None, help="threads of every arm, default: torch's own")
    parser.add_argument("--seconds", type=positive, default=0.5, help="time for each row, default 0.5")
    parser.add_argument("--json", type=output_file, default=None, metavar="FILE", help="write the results there")


def positive(number: str) -> float:
    """A number of seconds."""
    if not 0 < (seconds := float(number)) < float("inf"):
        raise argparse.ArgumentTypeError(f"got {number}, expected a number above 0")
    return seconds


def output_file(name: str) -> Path:
    """What an option names to be written at the end of a run. Without such a folder there is no run."""
    path = Path(name)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}")
    return path


def add_matmul_arguments(parser: argparse.ArgumentParser, default_rows: str) -> None:
    add_arguments(parser)
    parser.add_argument("--algorithm", default="auto", help="ours, default: auto")
    parser.add_argument(
        "--rows",
        default=default_rows,
        help=f"commas between: row names, kinds ({', '.join(KINDS)}), cheap, all, or shapes as MxNxK:NT or "
        f"BATCHxMxNxK:NT; default: {default_rows}",
    )
    parser.add_argument("--random", type=int, default=0, metavar="COUNT", help="so many rows that nobody chose instead")
    parser.add_argument("--seed", type=int, default=0, help="of --random")
    parser.add_argument("--no-numpy", action="store_true", help="torch is the only peer")


def run_matmul(args: argparse.Namespace) -> dict:
    """Runs what the options ask for, prints the table, writes the JSON, returns the results as plain data.

    Raises ValueError for options that make no sense.
    """
    shapes = list(SHAPES) if args.rows == "all" else select_shapes(args.rows.split(","))
    if args.random:
        shapes = list(itertools.islice(random_shapes(args.seed, MOST_RANDOM_FLOPS), args.random))
    known = [entry.name for entry in algorithms("cpu") if entry.available]
    if args.algorithm not in known:
        raise ValueError(f"algorithm: got {args.algorithm!r}, expected one of {', '.join(known)}")
    dtype = DTYPES[args.dtype]
    has_numpy = dtype in NUMPY_DTYPES and not args.no_numpy
    with threads_of_all_arms(args.threads, has_numpy=has_numpy):
        results = describe_run("matmul", dtype)
        results["algorithm"] = args.algorithm
        results["fma_peak_gflops"] = fma_peak(dtype)
        bandwidths = copy_bandwidths()
        results["copy_gbytes_per_second"] = {str(size): rate for size, rate in bandwidths.items()}
        rows = results["rows"] = []
        for shape in with_progress(shapes):
            arms = matmul_arms(shape, dtype, args.algorithm, has_numpy=has_numpy)
            timings = {name: timing.to_dict() for name, timing in time_arms(arms, seconds=args.seconds).items()}
            rows.append(matmul_row(shape, dtype, timings, results["fma_peak_gflops"], bandwidths))
    results["summary"] = summarize(rows)
    print(format_matmul(results))
    write_json(results, args.json)
    return results


def matmul_arms(
    shape: Shape, dtype: torch.dtype, algorithm: str, *, has_numpy: bool = False
) -> dict[str, Callable[[], object]]:
    """One callable per library on the same operands; ours first."""
    a, b = make_operands(shape, dtype)
    theirs = torch.bmm if shape.batch else torch.mm
    arms: dict[str, Callable[[], object]] = {
        OURS: lambda: matmul(a, b, algorithm=algorithm),
        "torch": lambda: theirs(a, b),
    }
    if has_numpy:
        import numpy

        np_a, np_b = a.numpy(), b.numpy()
        arms["numpy"] = lambda: numpy.matmul(np_a, np_b)
    return arms


def matmul_row(
    shape: Shape,
    dtype: torch.dtype,
    timings: dict[str, dict],
    peak_gflops: float | None,
    bandwidths: dict[int, float],
) -> dict:
    """The record of one row. The limit is the larger of the times of its flops and its bytes at full rate."""
    num_bytes = shape.num_bytes(dtype)
    byte_us = num_bytes / bandwidth_of(num_bytes, bandwidths) / 1e3
    limit_us = None if peak_gflops is None else max(shape.flops / peak_gflops / 1e3, byte_us)
    ours = timings[OURS]["median_us"]
    return {
        "name": shape.name,
        "shape": str(shape),
        "kind": shape.kind,
        "why": shape.why,
        "timings": timings,
        "gflops": round(shape.flops / ours / 1e3, 2),
        "percent_of_limit": None if limit_us is None else round(100 * limit_us / ours, 1),
        **compare(timings),
    }


def compare(timings: dict[str, dict]) -> dict:
    """The fastest peer and how many times its time is ours."""
    peers = {name: timing["median_us"] for name, timing in timings.items() if name != OURS}
    best = min(peers, key=peers.__getitem__)
    return {"best_peer": best, "ratio": float(f"{peers[best] / timings[OURS]['median_us']:.4g}")}


def ratio_of_best(row: dict) -> float:
    """As `compare`, of the shortest times. Where strangers share the cores, they say what the libraries can do."""
    minima: dict[str, float] = {name: timing["minimum_us"] for name, timing in row["timings"].items()}
    ours = minima.pop(OURS)
    return min(minima.values()) / ours


def geomean(ratios: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))  # the same digits from every Python


def summarize(rows: list[dict]) -> dict:
    """The geometric mean of the ratios and the rows where a peer is faster."""
    return {
        "geomean": float(f"{geomean([row['ratio'] for row in rows]):.4g}"),
        "below_one": [row["name"] for row in rows if row["ratio"] < 1],
    }


def matmul_table(results: dict) -> list[tuple[str, ...]]:
    """The rows as text, the head first, in the order of the shapes table."""
    peers = [name for name in results["rows"][0]["timings"] if name != OURS]
    head = ("row", "shape", "us", "+-", "GFLOP/s", "% of limit", *(f"{peer} us" for peer in peers), "ratio", "best")
    table = [head]
    for row in results["rows"]:
        ours = row["timings"][OURS]
        limit = row["percent_of_limit"]
        table.append(
            (
                row["name"],
                row["shape"],
                f"{ours['median_us']:.1f}",
                f"{100 * ours['spread']:.0f}%",
                f"{row['gflops']:.1f}",
                "-" if limit is None else f"{limit:.0f}",
                *(f"{row['timings'][peer]['median_us']:.1f}" for peer in peers),
                f"{row['ratio']:.2f}",
                f"{ratio_of_best(row):.2f}",
            )
        )
    return table


def threads_of(results: dict) -> str:
    return "1 thread" if results["num_threads"] == 1 else f"{results['num_threads']} threads"


def format_matmul(results: dict) -> str:
    summary = results["summary"]
    peak = results["fma_peak_gflops"]
    below = summary["below_one"]
    return "\n".join(
        [
            format_columns(matmul_table(results)),
            "",
            f"{results['cpu']}, {results['isa']}, {threads_of(results)}, {results['dtype']}, "
            f"FMA peak {'not measured' if peak is None else f'{peak:.0f} GFLOP/s'}, "
            f"algorithm {results['algorithm']}",
            f"ratio = median time of the fastest peer / ours: geomean {summary['geomean']:.3f} "
            f"over {len(results['rows'])} rows; best = the same of shortest times: "
            f"{geomean([ratio_of_best(row) for row in results['rows']]):.3f}",
            f"rows below 1.0: {len(below)}" + "".join(f"\n  {name}" for name in below),
        ]
    )


def plot_matmul(results: dict, path: Path) -> None:
    """Saves a bar chart of GFLOP/s per row and library. Raises ValueError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("plot: matplotlib is not installed; pip install matplotlib") from None
    rows = results["rows"]
    names = list(rows[0]["timings"])
    figure = Figure(figsize=(8, 1.5 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(names)
    for i, name in enumerate(names):
        flops_us = [row["gflops"] * row["timings"][OURS]["median_us"] for row in rows]
        speeds = [flops / row["timings"][name]["median_us"] for flops, row in zip(flops_us, rows, strict=True)]
        axes.barh([y + i * height for y in range(len(rows))], speeds, height, label=name)
    axes.set_yticks([y + 0.4 - height / 2 for y in range(len(rows))], [row["shape"] for row in rows], fontsize=8)
    axes.invert_yaxis()
    if results["fma_peak_gflops"] is not None:
        axes.axvline(results["fma_peak_gflops"], color="black", linestyle="--", label="FMA peak")
    axes.set_xlabel("GFLOP/s")
    axes.set_title(f"matmul {results['dtype']}, {threads_of(results)}, {results['cpu']}")
    axes.legend()
    figure.savefig(path)


def describe_run(benchmark: str, dtype: torch.dtype) -> dict:
    """What a reader needs to judge the figures: machine, versions, commit, threads. Raises what `origin` does."""
    info = build_info()
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_tiledmm": info.version,
    }
    if dtype in NUMPY_DTYPES:
        import numpy

        versions["numpy"] = numpy.__version__
    return {
        "benchmark": benchmark,
        "dtype": dtype_name(dtype),
        "cpu": cpu_name(),
        "isa": info.isa["cpu"],
        "num_cores": info.num_cores,
        "num_threads": torch.get_num_threads(),
        "versions": versions,
        **origin(),
    }


@contextlib.contextmanager
def threads_of_all_arms(num_threads: int | None, *, has_numpy: bool) -> Iterator[None]:
    """Gives torch, and numpy's library where it takes part, this many threads; by default torch's number.

    Raises ValueError for a number below 1, and where numpy's threads cannot be set.
    """
    if num_threads is not None and num_threads < 1:
        raise ValueError(f"threads: got {num_threads}, expected at least 1")
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads or before)
    try:
        with _numpy_threads(num_threads or before) if has_numpy else contextlib.nullcontext():
            yield
    finally:
        torch.set_num_threads(before)


def _numpy_threads(num_threads: int) -> contextlib.AbstractContextManager:
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise ValueError("numpy's threads cannot be set without threadpoolctl; pip install threadpoolctl") from None
    import numpy  # noqa: F401  its library has to be loaded before it can be limited

    limits: contextlib.AbstractContextManager = threadpool_limits(limits=num_threads, user_api="blas")
    return limits


def with_progress(rows: Sequence) -> Iterator:
    """Yields the rows and draws a bar on stderr, when that is a terminal; otherwise one line per row."""
    width = 30
    for i, row in enumerate(rows):
        if sys.stderr.isatty():
            done = width * i // len(rows)
            bar = "#" * done + "." * (width - done)
            print(f"\r\033[K[{bar}] {i + 1}/{len(rows)} {row}", end="", file=sys.stderr, flush=True)
        else:
            print(f"{i + 1}/{len(rows)} {row}", file=sys.stderr, flush=True)
        yield row
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def write_json(results: dict, path: Path | None) -> None:
    if path is not None:
        path.write_text(json.dumps(results, indent=1) + "\n")

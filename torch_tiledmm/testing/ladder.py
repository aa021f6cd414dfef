"""The ladder of GPU kernels: counted on any machine, measured where there is a GPU.

Counting runs every rung on the host executor (torch_tiledmm/host_gpu.py), or, for a chip of AMD's, its machine code in
an interpreter (tools/amd_interpreter). Measuring times every rung against the vendor's library through torch.mm: arms
interleaved, medians of events, caches of the GPU emptied before each call, random data, one shape after the other.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import importlib
import io
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import host_gpu
from ..dispatch import DTYPES, algorithms, build_info, explain, format_columns
from ..ops import matmul
from .bench import output_file
from .origin import GpuClocks, describe_gpu_run
from .shapes import Shape, make_operands, parse_shape
from .timing import PRECISIONS, gpu_name, host_seconds, matmul_precision, time_on_gpu

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MULTIPLY_ADD_ORDERS = ("chain", "simt_chunks")  # of summation; the others are those of matrix instructions
VENDOR = "vendor"
# Cubes; Accera's problem (m, n, k = 2048, 1024, 2048); the linear layer of the slides' use case, 4 x 1024 tokens.
SHAPES = (
    "1024x1024x1024:NN",
    "2048x2048x2048:NN",
    "4096x4096x4096:NN",
    "8192x8192x8192:NN",
    "2048x1024x2048:NN",
    "4096x3072x768:NT",
)


def ladder_rungs() -> list[str]:
    """The rungs that run on every chip and at every warp size of the host executor, without their variants."""
    return [
        entry.name
        for entry in algorithms("cuda")
        if entry.order in ("chain", "mma_chain") and "." not in entry.name and "fp32" in entry.dtypes
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=int, nargs=3, metavar=("M", "N", "K"), help="count on the CPU; no GPU needed")
    parser.add_argument(
        "--wave", type=int, choices=host_gpu.WARP_SIZES, default=32, help="with --count: lanes of a warp"
    )
    parser.add_argument("--device", metavar="hip:CHIP", help="with --count: the main loops of this chip's machine code")
    parser.add_argument("--layout", choices=("NN", "NT", "TN", "TT"), default="NN", help="with --count")
    parser.add_argument(
        "--dtype",
        nargs="+",
        choices=PRECISIONS,
        default=None,
        help="default: fp32 to count, also fp64 tf32 bf16 to measure",
    )
    parser.add_argument("--rows", nargs="+", default=list(SHAPES), metavar="MxNxK:NT", help="shapes to measure")
    parser.add_argument("--ncu", action="store_true", help="DRAM bytes from Nsight Compute instead of the model")
    parser.add_argument("--json", type=output_file, default=None, metavar="FILE", help="write the results there")
    parser.add_argument("--plot", type=output_file, default=None, metavar="FILE.png", help="save a chart there")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)  # what --ncu runs under the profiler


def run(args: argparse.Namespace) -> None:
    """Raises ValueError for options that make no sense."""
    if args.count:
        m, n, k = args.count
        dtypes = args.dtype or ["fp32"]
        if len(dtypes) != 1 or dtypes[0] == "tf32":
            raise ValueError(f"dtype: got {' '.join(dtypes)}, expected one of {', '.join(DTYPES)} to count")
        if args.device is not None:
            loops = count_loops(args.device, m, n, k, dtypes[0], args.layout)
            print(format_loops(loops, m, n, k, args.device))
            _write(args.json, loops)
            return
        counts = count(parse_shape(f"{m}x{n}x{k}:{args.layout}"), DTYPES[dtypes[0]], args.wave)
        print(format_counts(counts, m, n, k, args.wave))
        _write(args.json, counts)
        if args.plot:
            plot_counts(counts, args.plot)
        return
    if not torch.cuda.is_available():
        raise ValueError("there is no GPU to measure; --count M N K needs none")
    shapes = [parse_shape(row) for row in args.rows]
    if args.once:
        _run_once(shapes[0], (args.dtype or ["fp32"])[0])
        return
    results = measure(shapes, args.dtype or ["fp32", "fp64", "tf32", "bf16"], has_ncu=args.ncu)
    _write(args.json, results)
    if args.plot:
        plot_measured(results, args.plot)


# ---- Counting


def count(shape: Shape, dtype: torch.dtype, warp_size: int) -> list[dict]:
    """For each rung what one product asks of the GPU, checked against torch on the way."""
    a, b = make_operands(shape, dtype)
    expected = a.double() @ b.double()
    results = []
    for algorithm in ladder_rungs():
        out, counts = host_gpu.matmul(a, b, algorithm=algorithm, warp_size=warp_size)
        torch.testing.assert_close(out.double(), expected, rtol=0.02, atol=0.02 * max(1, shape.k) ** 0.5)
        results.append({"algorithm": algorithm, **dataclasses.asdict(counts)})
    return results


def format_counts(results: list[dict], m: int, n: int, k: int, warp_size: int) -> str:
    """The counts as a table, and the global loads drawn to scale."""
    least = m * k + k * n
    rows = [tuple(name.replace("_", " ") for name in results[0]) + ("flops per element loaded",)]
    for entry in results:
        ratio = entry["flops"] / max(1, entry["global_load_elements"])
        rows.append((*(f"{v:,}" if isinstance(v, int) else v for v in entry.values()), f"{ratio:.1f}"))
    most = max(entry["global_load_elements"] for entry in results)
    width = max(len(entry["algorithm"]) for entry in results)
    bars = [
        f"{entry['algorithm']:{width}}  {'#' * max(1, round(60 * entry['global_load_elements'] / max(1, most)))}"
        f" {entry['global_load_elements'] / max(1, least):.1f}"
        for entry in results
    ]
    head = f"{m} x {n} x {k}, warps of {warp_size} lanes; A and B have {least:,} elements"
    return "\n".join([head, "", format_columns(rows), "", "global loads, in sizes of A and B together", *bars])


def count_loops(device: str, m: int, n: int, k: int, dtype: str, layout: str) -> list[dict]:
    """For each rung that can serve the product on a chip of AMD's, what an iteration of its main loop is made of, from
    the execution of its machine code; of the others, why they cannot."""
    tools = Path(__file__).resolve().parents[2] / "tools"
    if not (tools / "amd_interpreter").exists():
        raise ValueError(f"device: machine code is executed by the source tree's tools, and {tools} is not there")
    sys.path.insert(0, str(tools))
    evidence, launches = (importlib.import_module(f"amd_interpreter.{name}") for name in ("evidence", "launches"))
    chip = device.removeprefix("hip:")
    if chip not in launches.CHIPS or device == chip:
        raise ValueError(f"device: got {device!r}, expected one of hip:{', hip:'.join(launches.CHIPS)}")
    results = []
    for entry in algorithms("hip"):
        if "." in entry.name or not launches.has_sources(entry.name):
            continue
        result: dict = {"algorithm": entry.name}
        try:
            result |= evidence.rung(chip, entry.name, m, n, k, str(DTYPES[dtype]).removeprefix("torch."), layout)
        except (NotImplementedError, ValueError) as error:
            result["reason"] = str(error)
        results.append(result)
    return results


def format_loops(results: list[dict], m: int, n: int, k: int, device: str) -> str:
    """The loops as a table, a column for each rung."""
    counted = [entry for entry in results if "reason" not in entry]
    names = dict.fromkeys(name for entry in counted for name in entry)
    rows: list[tuple[str, ...]] = []
    for name in names:
        values = [entry.get(name, "") for entry in counted]
        rows.append((name, *(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values)))
    head = (
        f"{m} x {n} x {k} on {device}: an iteration of the main loop of a warp, executed by an interpreter\n"
        "busy: matrix units, % of the clocks, by a model of one compute unit (docs/amd_evidence.md)"
    )
    return "\n".join(
        [
            head,
            "",
            *([format_columns(rows)] if rows else []),
            "",
            *(f"{entry['algorithm']}: {entry['reason']}" for entry in results if "reason" in entry),
        ]
    )


def plot_counts(results: list[dict], path: Path) -> None:
    axes_names = ("global_load_elements", "global_load_sectors", "shared_loads", "bank_conflicts", "barriers")
    figure = _figure(3 * len(axes_names), 4)
    for axes, name in zip(figure.subplots(1, len(axes_names), sharey=True), axes_names, strict=True):
        axes.barh([entry["algorithm"] for entry in results], [entry[name] for entry in results])
        axes.invert_yaxis() if name == axes_names[0] else None
        axes.set_title(name.replace("_", " "), fontsize=9)
    figure.savefig(path)


# ---- Measuring


def measure(shapes: list[Shape], precisions: list[str], *, has_ncu: bool) -> dict:
    """Prints a table for each shape and precision; returns everything as plain data."""
    results = describe_gpu_run("ladder") | {"host_us": {}, "tables": []}
    for precision in precisions:
        results["host_us"][precision] = costs = _host_costs(precision)
        print(
            f"{precision}, 64x64x64, us of the calling thread: " + ", ".join(f"{k} {v:.1f}" for k, v in costs.items())
        )
    peaks = build_info().chips.get(gpu_name().split(":")[1], {})
    with GpuClocks(torch.cuda.get_device_properties().uuid) as clocks:
        for precision in precisions:
            for shape in shapes:
                rows = _measure_shape(shape, precision, peaks, has_ncu)
                table = {"shape": str(shape), "precision": precision, "rows": rows}
                results["tables"].append(table)
                print(format_measured(table), flush=True)
        results["clocks"] = clocks.to_dict()
    return results


def _measure_shape(shape: Shape, precision: str, peaks: dict, has_ncu: bool) -> list[dict]:
    names = _rungs_of(shape, precision)
    with matmul_precision(precision) as dtype:
        a, b = (operand.cuda() for operand in make_operands(shape, dtype))
        timings = time_on_gpu(_arms(names, a, b))
    dram = _dram_bytes(shape, precision) if has_ncu else {}
    orders = {entry.name: entry.order for entry in algorithms("cuda")}
    rows, before = [], None
    for name in [*names, VENDOR]:
        timing = timings[name]
        median = timing.median
        is_mma = precision != "fp32" if name == VENDOR else orders[name] not in _MULTIPLY_ADD_ORDERS
        peak = peaks.get("mma_tflops" if is_mma else "simt_tflops", {}).get(
            "fp32" if precision == "tf32" else precision
        )
        tflops = shape.flops / median / 1e12
        rows.append(
            {
                "algorithm": name,
                "median_us": round(median * 1e6, 2),
                "minimum_us": round(timing.minimum * 1e6, 2),
                "num_samples": timing.num_samples,
                "tflops": round(tflops, 3),
                "percent_of_peak": round(100 * tflops / peak, 1) if peak else None,
                "percent_of_vendor": round(100 * timings[VENDOR].median / median, 1),
                "dram_bytes": dram.get(name, shape.num_bytes(dtype)),
                "dram_bytes_from": "ncu" if name in dram else "model: each operand once",
                "speedup": round(before / median, 2) if before else None,
            }
        )
        before = median
    return rows


def format_measured(table: dict) -> str:
    rows: list[tuple[str, ...]] = [("algorithm", "us", "TFLOP/s", "% of peak", "% of vendor", "DRAM MB", "speed-up")]
    for row in table["rows"]:
        peak, speedup = row["percent_of_peak"], row["speedup"]
        rows.append(
            (
                row["algorithm"],
                f"{row['median_us']:.1f}",
                f"{row['tflops']:.2f}",
                "-" if peak is None else f"{peak:.1f}",
                f"{row['percent_of_vendor']:.1f}",
                f"{row['dram_bytes'] / 1e6:.0f}",
                "-" if speedup is None or row["algorithm"] == VENDOR else f"{speedup:.2f}",
            )
        )
    source = table["rows"][0]["dram_bytes_from"]
    return f"\n{table['shape']} {table['precision']} (DRAM bytes: {source})\n{format_columns(rows)}"


def _host_costs(precision: str) -> dict[str, float]:
    """Microseconds of the calling thread for one call of each rung and of the vendor."""
    shape = parse_shape("64x64x64")
    names = _rungs_of(shape, precision)
    with matmul_precision(precision) as dtype:
        a, b = (operand.cuda() for operand in make_operands(shape, dtype))
        return {name: round(seconds * 1e6, 2) for name, seconds in host_seconds(_arms(names, a, b)).items()}


def _arms(names: list[str], a: Tensor, b: Tensor) -> dict[str, Callable[[], Tensor]]:
    """What is timed: each rung and the vendor."""
    rungs = {name: partial(matmul, a, b, algorithm=name) for name in names}
    return {**rungs, VENDOR: partial(torch.mm, a, b)}


def _rungs_of(shape: Shape, precision: str) -> list[str]:
    """What serves the shape on this GPU, variants of a rung left out; in tf32, what uses it."""
    available = {
        entry.name
        for entry in algorithms("cuda")
        if entry.available
        and "." not in entry.name
        and not (precision == "tf32" and entry.order in _MULTIPLY_ADD_ORDERS)
    }
    with matmul_precision(precision) as dtype:
        explained = explain(shape.m, shape.n, shape.k, dtype, layout=shape.layout, device=gpu_name())
    return [c.algorithm for c in explained.candidates if c.legal and c.algorithm in available]


def _run_once(shape: Shape, precision: str) -> None:
    with matmul_precision(precision) as dtype:
        a, b = (operand.cuda() for operand in make_operands(shape, dtype))
        for name in _rungs_of(shape, precision):
            with torch.cuda.nvtx.range(name):
                torch.ops.tiledmm.matmul(a, b, algorithm=name)
        torch.cuda.synchronize()


def _dram_bytes(shape: Shape, precision: str) -> dict[str, int]:
    """Bytes read and written by all kernels of each rung, from Nsight Compute, which names a kernel after the range it
    was launched in; empty if it is not there or may not read counters.
    """
    command = [
        "ncu",
        "--csv",
        "--clock-control",
        "none",
        "--metrics",
        "dram__bytes.sum",
        "--kernel-name",
        "regex:tiledmm",
    ]
    command += ["--kernel-name-base", "mangled", "--nvtx", "--print-nvtx-rename", "kernel"]
    command += [sys.executable, "-m", "torch_tiledmm", "ladder", "--once"]
    command += ["--rows", f"{shape.m}x{shape.n}x{shape.k}:{shape.layout}", "--dtype", precision]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    scale = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
    dram: dict[str, int] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines))):
        name = row["Kernel Name"].split("/")[0]
        dram[name] = dram.get(name, 0) + int(float(row["Metric Value"].replace(",", "")) * scale[row["Metric Unit"]])
    return dram if set(dram) == set(_rungs_of(shape, precision)) else {}


def plot_measured(results: dict, path: Path) -> None:
    """Above, the ladder of each precision at each shape; below, the roofline with every row."""
    precisions = list(dict.fromkeys(table["precision"] for table in results["tables"]))
    figure = _figure(5 * len(precisions), 8)
    axes = figure.subplots(2, len(precisions), squeeze=False)
    rate = results["copy_tbytes_per_second"]
    for column, precision in enumerate(precisions):
        tables = [table for table in results["tables"] if table["precision"] == precision]
        names = [row["algorithm"] for row in tables[0]["rows"]]
        for table in tables:
            axes[0][column].plot(names, [row["tflops"] for row in table["rows"]], marker="o", label=table["shape"])
            for row in table["rows"]:
                flops = parse_shape(table["shape"]).flops
                axes[1][column].scatter(flops / row["dram_bytes"], row["tflops"], s=12)
        axes[0][column].set(yscale="log", ylabel="TFLOP/s", title=f"{precision}, {results['device']}")
        axes[0][column].tick_params(axis="x", rotation=60, labelsize=8)
        axes[0][column].legend(fontsize=6)
        best = max(row["tflops"] for table in tables for row in table["rows"])
        intensities = [1, best / rate, 1e4]
        axes[1][column].plot(intensities, [min(best, rate * intensity) for intensity in intensities], color="black")
        axes[1][column].set(xscale="log", yscale="log", xlabel="flops per byte of DRAM", ylabel="TFLOP/s")
    figure.savefig(path)


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("plot: matplotlib is not installed; pip install matplotlib") from None
    return Figure(figsize=(width, height), layout="constrained")


def _write(path: Path | None, results: list[dict] | dict) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1) + "\n")

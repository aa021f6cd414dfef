"""Draws the pictures of the documents from the committed results.

    python benchmarks/plot_results.py           writes docs/img/speed.png, ladder.png, families.png, split.png, fp8.png
    python benchmarks/plot_results.py --check   fails if a picture was drawn from other numbers

A picture carries the numbers that it shows, so that the check needs no comparison of pixels.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from PIL import Image
from readme_table import (
    LADDER_SHAPE,
    ROOT,
    SPEED_PRECISIONS,
    VENDOR,
    ladder_tables,
    ladders_of_the_page,
    load_machines,
    measured,
    products_of,
    title_of,
)

from torch_tiledmm.testing.bench import geomean

COLORS = {"bf16": "#d1495b", "fp16": "#edae49", "tf32": "#66a182", "fp32": "#2e4057", "fp64": "#8d96a3"}
# The kinds of the GPUs' and of the CPUs' shapes that the picture of speed shows as one class.
CLASSES = {
    "large, middle": ("large", "square_2048", "medium", "square"),
    "small": ("small", "tiny"),
    "layers": ("linear", "backward"),
    "few rows or columns": ("m1", "few_rows", "few_columns", "skinny"),
    "long k": ("split_k", "long_k"),
    "odd sizes": ("unaligned", "odd"),
    "batches": ("batch",),
}
NUMBERS = "Numbers"  # the text in a picture that says what it was drawn from

# {"GPUs" or "CPUs": {class of shapes: {precision: (geometric mean of each chip, ascending; worst row, best row)}}}
Ratios = dict[str, dict[str, dict[str, tuple[list[float], float, float]]]]


def ratios_by_class(machines: dict) -> Ratios:
    """How many times as fast as the vendor's library (on a CPU: as the fastest peer) we are."""
    found: Ratios = {}
    for kind, is_gpu in (("GPUs", True), ("CPUs", False)):
        chips = [products_of(machine) for machine in measured(machines).values() if bool(machine["gpu"]) == is_gpu]
        for name, kinds in CLASSES.items():
            for precision in SPEED_PRECISIONS:
                own = [[row["ratio"] for p, row in rows if p == precision and row["kind"] in kinds] for rows in chips]
                if own := [ratios for ratios in own if ratios]:
                    worst, best = min(map(min, own)), max(map(max, own))
                    by_precision = found.setdefault(kind, {}).setdefault(name, {})
                    by_precision[precision] = (sorted(map(geomean, own)), worst, best)
    return found


PEERS = {"GPUs": "against cuBLAS", "CPUs": "against the faster of torch and numpy"}


def plot_speed(panels: Ratios) -> Figure:
    """A panel for GPUs and one for CPUs, as wide as a page together: in each class of shapes a dot for each chip, and a
    line from the worst row of all chips to the best one.
    """
    figure = Figure(figsize=(8, 5.6), layout="constrained")
    rows = list(CLASSES)
    for axes, (kind, classes) in zip(
        figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels.items(), strict=True
    ):
        precisions = [name for name in SPEED_PRECISIONS if any(name in own for own in classes.values())]
        for i, precision in enumerate(precisions):
            shift = (i - (len(precisions) - 1) / 2) * 0.16
            own = [
                (rows.index(name) + shift, found[precision]) for name, found in classes.items() if precision in found
            ]
            color = COLORS[precision]
            for y, (means, worst, best) in own:
                axes.plot([worst, best], [y, y], color=color, lw=1.2, alpha=0.6)
                axes.plot(means, [y] * len(means), "o", color=color, ms=4.5)
            axes.plot([], [], "o-", color=color, label=precision)
        axes.axvline(1, color="black", lw=1.2)
        axes.set_xscale("log")
        most = max(best for own in classes.values() for _, _, best in own.values())
        ticks = (0.5, 1, 2, 4) if most < 10 else (0.25, 1, 4, 16, 64, 256)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=11)
        axes.set_xticks([], minor=True)
        axes.grid(axis="x", alpha=0.3)
        for y in range(1, len(rows), 2):
            axes.axhspan(y - 0.5, y + 0.5, color="black", alpha=0.05, lw=0)
        chips = max(len(means) for own in classes.values() for means, _, _ in own.values())
        axes.set_title(f"{chips} {kind if chips > 1 else kind[:-1]}\n{PEERS[kind]}", fontsize=11)
        axes.set_xlabel("times as fast as the vendor", fontsize=12)
        axes.set_yticks(range(len(rows)), rows, fontsize=11)
        axes.set_ylim(len(rows) - 0.5, -0.5)
    widest = max(figure.axes, key=lambda axes: len(axes.get_legend_handles_labels()[1]))
    figure.legend(*widest.get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=11, frameon=False)
    return figure


def ladder_speeds(machines: dict) -> dict[str, dict[str, float]]:
    """TFLOP/s of each rung at LADDER_SHAPE by precision."""
    timed, _ = ladder_tables(ladders_of_the_page(machines))
    return {
        precision: {row["algorithm"]: row["tflops"] for row in table["rows"]}
        for precision, tables in timed.items()
        for table in tables
        if table["shape"] == LADDER_SHAPE
    }


def plot_ladder(speeds: dict[str, dict[str, float]]) -> Figure:
    """A panel for bf16 and one for fp32: a bar for each rung, a line for the vendor's library."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, precision in zip(figure.subplots(1, 2), ("bf16", "fp32"), strict=True):
        rungs = {name: speed for name, speed in speeds[precision].items() if name != VENDOR}
        bars = axes.barh(list(rungs), list(rungs.values()), color=COLORS[precision])
        axes.bar_label(bars, [f"{speed:.0f}" for speed in rungs.values()], padding=3, fontsize=8)
        axes.axvline(speeds[precision][VENDOR], color="black", ls="--", label="cuBLAS")
        axes.invert_yaxis()
        axes.set_xlim(0, 1.12 * max(speeds[precision].values()))
        axes.set_xlabel("TFLOP/s")
        axes.set_title(f"{precision}: rungs at m = n = k = 4096, H200", fontsize=11)
        axes.set_ylabel("rung")
        axes.legend(loc="upper right" if precision == "fp32" else "center right")
    return figure


def family_ratios(machines: dict) -> dict[str, dict[str, list[float]]]:
    """The ratios of each family of random products, ascending, for each machine; those to the vendor's best apart."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, machine in machines.items():
        for results in machine["families"]:
            for ratio, rival in (("ratio", ""), ("best_ratio", ", cuBLASLt's best")):
                for entry in results["families"]:
                    if ratios := sorted(row[ratio] for row in entry["products"] if ratio in row):
                        found.setdefault(title_of(name, machine) + rival, {})[entry["family"]] = ratios
    return found


def plot_families(machines: dict[str, dict[str, list[float]]]) -> Figure:
    """A panel for each machine and rival, a line for each family: its rows from the worst to the best."""
    figure = Figure(figsize=(5 * max(2, len(machines)), 5), layout="constrained")
    panels = figure.subplots(1, len(machines), squeeze=False)[0]
    for axes, (title, families) in zip(panels, machines.items(), strict=True):
        for i, (family, ratios) in enumerate(families.items()):
            shares = [100 * (i + 0.5) / len(ratios) for i in range(len(ratios))]
            style = ("-", "--")[i // 10 % 2]  # there are ten colors
            axes.plot(shares, ratios, label=f"{family}, mean {geomean(ratios):.3f}", lw=1.5, ls=style)
        axes.axhline(1, color="black", lw=1.2)
        axes.axhline(0.9, color="black", lw=0.8, ls="--")
        axes.set_yscale("log")
        most = max(2.0, *(ratios[-1] for ratios in families.values()))
        ticks = [tick for tick in (0.5, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 4, 8, 16) if tick <= most]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_yticks([], minor=True)
        axes.grid(alpha=0.3)
        axes.set_xlabel("percent of the family's products, the worst first")
        axes.set_ylabel("time of the vendor's library / ours")
        axes.set_title(title, fontsize=11)
        axes.legend(fontsize=8)
    return figure


def split_methods(machines: dict) -> dict[str, list[dict]]:
    """What bench_split.py measured of each machine: time and error of each way to an fp32 product."""
    return {
        f"{title_of(name, machine)}, {results['size']}^3": results["methods"]
        for name, machine in machines.items()
        for results in machine["split"]
    }


FP8_SHAPE, FP8_K = (4096, 7168, 16384), 16384


def fp8_methods(machines: dict) -> dict[str, list[dict]]:
    """What bench_fp8.py measured of each machine: the time of a product by tensor, and errors of such sums."""
    found: dict[str, list[dict]] = {}
    for name, machine in machines.items():
        rows = [row for results in machine["fp8"] for row in results["rows"] if row.get("recipe") == "tensor"]
        timed = [row for row in rows if row["family"] == "large" and (row["m"], row["n"], row["k"]) == FP8_SHAPE]
        errors = [row for row in rows if row["family"] == "errors" and row["k"] == FP8_K]
        methods = {"ours": "ours", "torch": "slow", "torch, fast accumulation": "fast", "ours in bf16": "bf16"}
        found[f"{title_of(name, machine)}, {'x'.join(map(str, FP8_SHAPE))}"] = [
            {"method": method, "data": row["data"], "us": timed[0][f"{arm}_us"], "error": row[f"{key}_error"]}
            for row in errors
            for method, arm in methods.items()
            if timed and (key := "wide" if arm == "bf16" else arm)
        ]
    return {title: rows for title, rows in found.items() if rows}


def plot_errors(machines: dict[str, list[dict]], ylabel: str) -> Figure:
    """A panel for each machine: error against time, a point for each method and kind of data."""
    figure = Figure(figsize=(4.5 * len(machines), 4), layout="constrained")
    panels = figure.subplots(1, len(machines), squeeze=False)[0]
    for axes, (title, rows) in zip(panels, machines.items(), strict=True):
        kinds = dict.fromkeys(row["data"] for row in rows)
        for data, marker in zip(kinds, "os^", strict=False):
            own = [row for row in rows if row["data"] == data]
            colors = [COLORS["bf16"] if row["method"] in ("split", "ours") else COLORS["fp32"] for row in own]
            axes.scatter([r["us"] for r in own], [r["error"] for r in own], c=colors, marker=marker, label=data)
            if data == "normal":
                slowest = max(row["us"] for row in own)
                for row in own:
                    at, side = (row["us"], row["error"]), "right" if row["us"] == slowest else "left"
                    offset = (4, -12 if row["method"] == "ours" else 6)
                    axes.annotate(row["method"], at, offset, textcoords="offset points", fontsize=8, ha=side)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.margins(x=0.3, y=0.1)  # room for the names
        axes.set_xlabel("microseconds")
        axes.set_ylabel(ylabel)
        axes.set_title(title, fontsize=11)
        axes.legend(fontsize=8)
    return figure


def plot_split(machines: dict[str, list[dict]]) -> Figure:
    return plot_errors(machines, "largest error / S, in 2^-24")


def plot_fp8(machines: dict[str, list[dict]]) -> Figure:
    return plot_errors(machines, f"error / result in Frobenius norm, k = {FP8_K}")


def digest_of(numbers: object) -> str:
    return hashlib.sha256(json.dumps(numbers).encode()).hexdigest()[:16]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="draws the documents' pictures from the committed results")
    parser.add_argument("--check", action="store_true", help="only compare; exit with 1 if a picture is out of date")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "img")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    args = parser.parse_args(arguments)
    machines = load_machines(args.results)
    pictures: dict[str, tuple[Callable, dict]] = {
        "speed.png": (plot_speed, ratios_by_class(machines)),
        "ladder.png": (plot_ladder, ladder_speeds(machines)),
    }
    if families := family_ratios(machines):
        pictures["families.png"] = (plot_families, families)
    if methods := split_methods(machines):
        pictures["split.png"] = (plot_split, methods)
    if methods := fp8_methods(machines):
        pictures["fp8.png"] = (plot_fp8, methods)
    for name, (plot, numbers) in pictures.items():
        path = args.out / name
        if not args.check:
            plot(numbers).savefig(path, dpi=200 if name == "speed.png" else 100, metadata={NUMBERS: digest_of(numbers)})
        elif not path.exists() or Image.open(path).text.get(NUMBERS) != digest_of(numbers):
            sys.exit(f"{path} shows other numbers than the results; run python benchmarks/plot_results.py")


if __name__ == "__main__":
    main()

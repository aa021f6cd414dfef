"""Draws the pictures of the documents from the committed results.

    python benchmarks/plot_results.py           writes docs/img/speed.png, ladder.png, families.png and split.png
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
from readme_table import LADDER_SHAPE, ROOT, VENDOR, ladder_tables, ladders_of_the_page, load_machines, title_of

from torch_tiledmm.testing.bench import geomean

COLORS = {"bf16": "#d1495b", "fp16": "#edae49", "tf32": "#66a182", "fp32": "#2e4057", "fp64": "#8d96a3"}
CLASS_NAMES = {"square_2048": "squares of 2048", "m1": "one row", "few_rows": "few rows", "few_columns": "few columns"}
CLASS_NAMES |= {"long_k": "long k", "split_k": "long k, few tiles", "linear": "layers", "backward": "layers, backward"}
NUMBERS = "Numbers"  # the text in a picture that says what it was drawn from

# {machine: {class of shape: {precision: (geometric mean, worst, best)}}}
Ratios = dict[str, dict[str, dict[str, tuple[float, float, float]]]]


def ratios_by_class(machines: dict) -> Ratios:
    """Time of the vendor's library (on a CPU: of the fastest peer) over ours."""
    found: Ratios = {}
    for name, machine in reversed(machines.items()):  # the fastest GPU first
        groups: dict[str, dict[str, list[float]]] = {}
        rows = [(r["precision"], r) for results in machine["gpu"] for r in results["products"]]
        runs = [r for r in machine["cpu"] if r["benchmark"] == "matmul" and r.get("algorithm", "auto") == "auto"]
        threads = max((run["num_threads"] for run in runs), default=0)  # runs with fewer are in the machine's page
        rows += [(run["dtype"], r) for run in runs if run["num_threads"] == threads for r in run["rows"]]
        for precision, row in rows:
            groups.setdefault(row["kind"], {}).setdefault(precision, []).append(row["ratio"])
        if groups:
            found[title_of(name, machine)] = {
                CLASS_NAMES.get(kind, kind): {p: (geomean(r), min(r), max(r)) for p, r in group.items()}
                for kind, group in groups.items()
            }
    return found


def plot_speed(machines: Ratios) -> Figure:
    """One panel a machine: the geometric mean of each class of shape and precision, its worst and its best row."""
    figure = Figure(figsize=(4 * len(machines), 7.5), layout="constrained")
    names_before: list[str] = []
    for axes, (machine, classes) in zip(
        figure.subplots(1, len(machines), squeeze=False)[0], machines.items(), strict=True
    ):
        names = list(classes)
        precisions = [name for name in COLORS if any(name in classes[c] for c in names)]
        for i, precision in enumerate(precisions):
            places = [(y, classes[name][precision]) for y, name in enumerate(names) if precision in classes[name]]
            ys = [y + (i - (len(precisions) - 1) / 2) * 0.15 for y, _ in places]
            axes.hlines(ys, [r[1] for _, r in places], [r[2] for _, r in places], COLORS[precision], lw=1, alpha=0.6)
            axes.plot([r[0] for _, r in places], ys, "o", color=COLORS[precision], ms=5, label=precision)
        axes.axvline(1, color="black", lw=1.2)
        axes.set_xscale("log")
        ticks = [0.5, 1, 2, 4] if max(r[2] for c in classes.values() for r in c.values()) < 10 else [0.5, 1, 4, 32, 256]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.set_yticks(range(len(names)), names if names != names_before else [""] * len(names))
        names_before = names
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.grid(axis="x", alpha=0.3)
        axes.set_title(machine.replace(", ", "\n", 1), fontsize=11)
        axes.legend(fontsize=8, loc="best")
    figure.supxlabel("time of the library / ours (a ratio without unit, log scale)", fontsize=11)
    figure.supylabel("class of shapes", fontsize=11)
    figure.suptitle(
        "How many times faster than cuBLAS (GPUs) and the faster of torch and numpy (CPU): right of 1.0 we are faster\n"
        "dot: geometric mean of a class of shapes; line: its worst to its best row",
        fontsize=11,
    )
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
    """The ratios of each family of random products, ascending, for each machine."""
    return {
        title_of(name, machine): {
            entry["family"]: sorted(row["ratio"] for row in entry["products"]) for entry in results["families"]
        }
        for name, machine in machines.items()
        for results in machine["families"]
    }


def plot_families(machines: dict[str, dict[str, list[float]]]) -> Figure:
    """A panel for each machine, a line for each family: its rows from the worst to the best."""
    figure = Figure(figsize=(10, 5), layout="constrained")
    panels = figure.subplots(1, len(machines), squeeze=False)[0]
    for axes, (title, families) in zip(panels, machines.items(), strict=True):
        for family, ratios in families.items():
            shares = [100 * (i + 0.5) / len(ratios) for i in range(len(ratios))]
            axes.plot(shares, ratios, label=f"{family}, mean {geomean(ratios):.3f}", lw=1.5)
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


def plot_split(machines: dict[str, list[dict]]) -> Figure:
    """A panel for each machine: error against time, a point for each method and kind of data."""
    figure = Figure(figsize=(4.5 * len(machines), 4), layout="constrained")
    panels = figure.subplots(1, len(machines), squeeze=False)[0]
    for axes, (title, rows) in zip(panels, machines.items(), strict=True):
        for data, marker in (("normal", "o"), ("uniform (0, 1)", "s")):
            own = [row for row in rows if row["data"] == data]
            colors = [COLORS["bf16"] if row["method"] == "split" else COLORS["fp32"] for row in own]
            axes.scatter([r["us"] for r in own], [r["error"] for r in own], c=colors, marker=marker, label=data)
            if data == "normal":
                for row in own:
                    axes.annotate(
                        row["method"], (row["us"], row["error"]), (4, 6), textcoords="offset points", fontsize=8
                    )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.margins(x=0.3, y=0.1)  # room for the names
        axes.set_xlabel("microseconds")
        axes.set_ylabel("largest error / S, in 2^-24")
        axes.set_title(title, fontsize=11)
        axes.legend(fontsize=8)
    return figure


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
    for name, (plot, numbers) in pictures.items():
        path = args.out / name
        if not args.check:
            plot(numbers).savefig(path, dpi=100, metadata={NUMBERS: digest_of(numbers)})
        elif not path.exists() or Image.open(path).text.get(NUMBERS) != digest_of(numbers):
            sys.exit(f"{path} shows other numbers than the results; run python benchmarks/plot_results.py")


if __name__ == "__main__":
    main()

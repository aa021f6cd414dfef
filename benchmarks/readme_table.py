"""Writes the tables of README.md and docs/LADDER.md from benchmarks/results, between markers, and docs/GPU_RESULTS.md.

    python benchmarks/readme_table.py           writes them
    python benchmarks/readme_table.py --check   fails if they say anything else than the results

Nothing is left out: the rows come in the order of the shapes table, the bad ones included.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from bench_gpu import PRODUCT_HEAD, goal_text, is_met, product_line
from bench_linear import linear_table

from torch_tiledmm.dispatch import DTYPES
from torch_tiledmm.testing.bench import matmul_table

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
GPU_BEGIN, GPU_END = "<!-- gpu results:begin -->", "<!-- gpu results:end -->"
LADDER_BEGIN, LADDER_END = "<!-- ladder:begin -->", "<!-- ladder:end -->"
TABLES = {"matmul": matmul_table, "linear": linear_table}


def markdown_table(rows: list[tuple[str, ...]]) -> list[str]:
    head, *body = rows
    rule = ("---",) + ("---:",) * (len(head) - 1)
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *body)]


def listed(values: Iterable[object]) -> str:
    """Each once, in the order of their first time."""
    return ", ".join(dict.fromkeys(str(value) for value in values))


def name_of(results: dict) -> str:
    return f"{results['benchmark']} {results['dtype']}"


def slower_rows(all_results: list[dict]) -> list[str]:
    """For each machine how many rows are slower than the faster peer, in all and in each run."""
    machines: dict[str, list[dict]] = {}
    for results in all_results:
        machine = f"{results['cpu']}, {results['isa']}, {results['num_threads']} threads"
        machines.setdefault(machine, []).append(results)
    lines = []
    for machine, runs in machines.items():
        counts = [(name_of(results), len(results["summary"]["below_one"]), len(results["rows"])) for results in runs]
        below, total = (sum(count[i] for count in counts) for i in (1, 2))
        each = ", ".join(f"{name} {part} of {whole}" for name, part, whole in counts)
        origin = f"commit {listed(results['commit'] for results in runs)}; {listed(r['date'] for r in runs)}"
        lines.append(f"- {machine}: **{below} of {total} rows are below 1.0** ({each}); {origin}.")
    return lines


def summary_row(results: dict) -> tuple[str, ...]:
    """One line for a whole run; peers are named, rows below 1.0 counted."""
    rows = results["rows"]
    ratios = [row["ratio"] for row in rows]
    peak = results.get("fma_peak_gflops")
    return (
        name_of(results),
        ", ".join(name for name in rows[0]["timings"] if name != "tiledmm"),
        str(len(rows)),
        f"{results['summary']['geomean']:.2f}",
        f"{min(ratios):.2f}",
        f"{max(ratios):.2f}",
        str(len(results["summary"]["below_one"])),
        "-" if peak is None else f"{peak:.0f}",
    )


def render(all_results: list[dict]) -> str:
    """The text between the markers: a summary, then each run in full, bad rows included, in shape order."""
    head = ("benchmark", "peers", "rows", "geomean", "worst", "best", "below 1.0", "FMA peak GFLOP/s")
    lines = ["Ratio: time of the fastest peer / ours, more is better.", "", *slower_rows(all_results), ""]
    lines += markdown_table([head, *map(summary_row, all_results)])
    for results in all_results:
        versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
        lines += ["", f"<details><summary>{name_of(results)}, all rows</summary>", ""]
        lines.append(
            f"{results['cpu']}, {results['isa']}, {results['num_threads']} threads; {versions}; "
            f"commit {results['commit']}, {results['date']}."
        )
        lines += ["", *markdown_table(TABLES[results["benchmark"]](results)), "", "</details>"]
    return "\n".join(lines)


def load_results(folder: Path) -> list[dict]:
    """All runs, matmul before linear, in the order of the dtypes."""
    all_results = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    benchmarks, dtypes = list(TABLES), list(DTYPES)
    return sorted(all_results, key=lambda r: (r["cpu"], benchmarks.index(r["benchmark"]), dtypes.index(r["dtype"])))


def load_gpu_results(folder: Path, benchmark: str) -> list[dict]:
    """The runs of bench_gpu.py ("gpu") or of `python -m torch_tiledmm ladder` ("ladder")."""
    all_results = [json.loads(path.read_text()) for path in sorted((folder / "gpu").glob("*.json"))]
    return [results for results in all_results if results["benchmark"] == benchmark]


def describe_gpu(results: dict) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return f"{results['device']}, copy {results['copy_tbytes_per_second']:.2f} TB/s; {versions}."


def clocks_text(clocks: dict | None) -> str:
    """The clocks while products were measured; what NVML did not know is left out."""
    if not clocks:
        return "clocks not recorded"
    parts = []
    if sm_clock := clocks["sm_mhz"]:
        span = f"{sm_clock['minimum']} to {sm_clock['maximum']}, limit {clocks['sm_mhz_limit']}"
        parts.append(f"SM clock {sm_clock['median']} MHz ({span})")
    if memory_clock := clocks["memory_mhz"]:
        parts.append(f"memory {memory_clock['median']} MHz")
    if temperature := clocks["temperature_c"]:
        parts.append(f"up to {temperature['maximum']} C")
    if power_limit := clocks["power_limit_w"]:
        parts.append(f"power limit {power_limit:.0f} W")
    reasons = clocks["throttled"] or {}
    parts += [f"{reason} in {100 * share:.0f} % of the samples" for reason, share in reasons.items()]
    return ", ".join([*parts, f"driver {clocks['driver']}"])


def missed_text(rows: list[dict]) -> str:
    """How many of the rows with a goal miss it."""
    rows = [row for row in rows if row["goal"] is not None]
    return f"{sum(not is_met(row) for row in rows)} of {len(rows)}"


def missed_goals(all_results: list[dict]) -> list[str]:
    """For each GPU how many rows miss their goal, in all and in each precision, and where the figures come from."""
    lines = []
    for results in all_results:
        products: dict[str, list[dict]] = {}
        for row in results["products"]:
            products.setdefault(row["precision"], []).append(row)
        each = ", ".join(f"{precision} {missed_text(rows)}" for precision, rows in products.items())
        lines.append(
            f"- {results['device']}: **{missed_text(results['products'])} products with a goal miss it** ({each}), "
            f"{missed_text(results['layers'])} layers, {missed_text(results['training'])} steps of training; "
            f"commit {results.get('commit') or 'not recorded'}; {results['date']}; "
            f"{clocks_text(results.get('clocks'))}."
        )
    return lines


def render_gpu(all_results: list[dict]) -> str:
    """One line for each precision and kind of shape, one for the layers, one for the calling thread."""
    lines = ["Ratio: time of torch (the vendor's library) / ours, more is better. Goals and all rows:"]
    lines += ["[docs/GPU_RESULTS.md](docs/GPU_RESULTS.md).", "", *missed_goals(all_results)]
    for results in all_results:
        rows = [("precision", "kind", "rows", "geomean", "worst", "best", "below goal")]
        for entry in results["summary"]:
            has_goal = any(row["goal"] for row in results["products"] if row["kind"] == entry["kind"])
            rows.append(
                (
                    entry["precision"],
                    entry["kind"],
                    str(entry["rows"]),
                    *(f"{entry[name]:.2f}" for name in ("geomean", "worst", "best")),
                    str(len(entry["below_goal"])) if has_goal else "-",
                )
            )
        lines += ["", describe_gpu(results), "", *markdown_table(rows)]
    return "\n".join(lines)


def times_of(row: dict) -> list[str]:
    return [f"{timing['median_us']:.1f}" for timing in row["timings"].values()]


def layer_line(row: dict) -> tuple[str, ...]:
    names = (row["layer"], str(row["rows"]), row["precision"])
    return (*names, *times_of(row), f"{row['tflops']:.1f}", f"{row['ratio']:.2f}", goal_text(row))


def training_line(row: dict) -> tuple[str, ...]:
    return (row["model"], str(row["rows"]), *times_of(row), f"{row['ratio']:.2f}", goal_text(row))


def render_gpu_document(all_results: list[dict]) -> str:
    """Every row of every run."""
    lines = [
        "# GPU results",
        "",
        "Written by benchmarks/readme_table.py from benchmarks/results/gpu. Products: single calls,",
    ]
    lines += ["caches of the GPU emptied before each, medians, arms interleaved; a goal is the least ratio asked for."]
    lines += ["", *missed_goals(all_results)]
    for results in all_results:
        share = 100 * results["share_predicted_within_30_percent"]
        lines += ["", f"## {results['device']}", "", describe_gpu(results)]
        lines += [f"Predicted times within 30 % of the measured: {share:.0f} % of the rows.", "", "### Products", ""]
        lines += markdown_table([PRODUCT_HEAD, *map(product_line, results["products"])])
        lines += ["", "### Layers: forward, gradients of input, weight and bias", ""]
        head = ("layer", "rows", "precision", "us", "nn.Linear us", "TFLOP/s", "ratio", "goal")
        lines += markdown_table([head, *map(layer_line, results["layers"])])
        lines += ["", "### Steps of training in bf16 under autocast, fused AdamW", ""]
        head = ("model", "rows", "us", "nn.Linear us", "ratio", "goal")
        lines += markdown_table([head, *map(training_line, results["training"])])
        lines += ["", "### The calling thread, microseconds a call at 64 x 64 x 64", ""]
        names = list(next(iter(results["host_us"].values())))
        costs = [(precision, *(f"{us[name]:.1f}" for name in names)) for precision, us in results["host_us"].items()]
        lines += markdown_table([("precision", *names), *costs])
    return "\n".join(lines) + "\n"


def render_ladder(all_results: list[dict]) -> str:
    """TFLOP/s of each rung at each shape, a table a precision, and DRAM bytes where Nsight Compute counted them."""
    timed, counted = [], {}
    for table in (table for results in all_results for table in results["tables"]):
        if table["rows"][0]["dram_bytes_from"] == "ncu":
            counted[table["precision"]] = table
        else:
            timed.append(table)
    lines: list[str] = []
    for precision in dict.fromkeys(table["precision"] for table in timed):
        tables = [table for table in timed if table["precision"] == precision]
        columns = [{row["algorithm"]: f"{row['tflops']:.1f}" for row in table["rows"]} for table in tables]
        heads = [table["shape"] for table in tables]
        if precision in counted:
            rows = counted[precision]["rows"]
            heads.append(f"DRAM at {counted[precision]['shape']}")
            columns.append({row["algorithm"]: f"{row['dram_bytes'] / 1e9:.1f} GB" for row in rows[:-1]})
        body = [(f"`{name}`", *(column.get(name, "-") for column in columns)) for name in columns[0]]
        lines += [*markdown_table([(precision, *heads), *body]), ""]
    return "\n".join(lines[:-1])


def replace_tables(text: str, tables: str, begin: str = BEGIN, end: str = END) -> str:
    """The document's text with the new tables. Raises ValueError unless it has each marker once, in order."""
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"document: expected one {begin} and after it one {end}")
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n{tables}\n{end}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description="writes the tables of README.md from the committed results")
    parser.add_argument("--check", action="store_true", help="only compare; exit with 1 if README.md differs")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    args = parser.parse_args()
    all_results = load_results(args.results)
    if not all_results:
        parser.error(f"results: no *.json in {args.results}; run benchmarks/bench_matmul.py --json FILE first")
    gpu_results, ladders = (load_gpu_results(args.results, benchmark) for benchmark in ("gpu", "ladder"))
    docs = args.readme.parent / "docs"
    try:
        texts = {args.readme: replace_tables(args.readme.read_text(), render(all_results))}
        if gpu_results:
            texts[args.readme] = replace_tables(texts[args.readme], render_gpu(gpu_results), GPU_BEGIN, GPU_END)
            texts[docs / "GPU_RESULTS.md"] = render_gpu_document(gpu_results)
        if ladders:
            path = docs / "LADDER.md"
            texts[path] = replace_tables(path.read_text(), render_ladder(ladders), LADDER_BEGIN, LADDER_END)
    except ValueError as error:
        parser.error(str(error))
    for path, text in texts.items():
        if not args.check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path} differs from the results; run python benchmarks/readme_table.py")


if __name__ == "__main__":
    main()

"""Writes the tables of README.md from benchmarks/results/*.json, between the two markers.

    python benchmarks/readme_table.py           writes them
    python benchmarks/readme_table.py --check   fails if README.md says anything else than the results

Nothing is left out: the rows come in the order of the shapes table, the bad ones included.
"""

import argparse
import json
import sys
from pathlib import Path

from bench_linear import linear_table

from torch_tiledmm.dispatch import DTYPES
from torch_tiledmm.testing.bench import matmul_table

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
TABLES = {"matmul": matmul_table, "linear": linear_table}


def markdown_table(rows: list[tuple[str, ...]]) -> list[str]:
    head, *body = rows
    rule = ("---",) + ("---:",) * (len(head) - 1)
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *body)]


def summary_row(results: dict) -> tuple[str, ...]:
    """One line for a whole run; peers are named, rows below 1.0 counted."""
    rows = results["rows"]
    ratios = [row["ratio"] for row in rows]
    peak = results.get("fma_peak_gflops")
    return (
        f"{results['benchmark']} {results['dtype']}",
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
    lines = ["Ratio: time of the fastest peer / ours, more is better.", ""]
    lines += markdown_table([head, *map(summary_row, all_results)])
    for results in all_results:
        versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
        title = f"{results['benchmark']} {results['dtype']}"
        lines += ["", f"<details><summary>{title}, all rows</summary>", ""]
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


def replace_tables(readme: str, tables: str) -> str:
    """README's text with the new tables. Raises ValueError unless it has each marker once, in order."""
    if readme.count(BEGIN) != 1 or readme.count(END) != 1 or readme.index(BEGIN) > readme.index(END):
        raise ValueError(f"README: expected one {BEGIN} and after it one {END}")
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description="writes the tables of README.md from the committed results")
    parser.add_argument("--check", action="store_true", help="only compare; exit with 1 if README.md differs")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    args = parser.parse_args()
    all_results = load_results(args.results)
    if not all_results:
        parser.error(f"results: no *.json in {args.results}; run benchmarks/bench_matmul.py --json FILE first")
    old = args.readme.read_text()
    try:
        new = replace_tables(old, render(all_results))
    except ValueError as error:
        parser.error(str(error))
    if not args.check:
        args.readme.write_text(new)
    elif new != old:
        sys.exit(f"{args.readme} differs from the results; run python benchmarks/readme_table.py")


if __name__ == "__main__":
    main()

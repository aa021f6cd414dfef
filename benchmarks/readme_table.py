"""Writes what the committed results say: a page beside the results of each machine, and tables between markers.

    python benchmarks/readme_table.py           writes them
    python benchmarks/readme_table.py --check   fails if they say anything else than the results, or if results come
                                                from no commit or from uncommitted changes

Nothing is left out: the rows come in the order of the shapes table, the bad ones included. README.md gets two tables
with one line for each machine, docs/ladder.md what each rung asks of the memory (counted) and what it reaches
(measured).
benchmarks/plot_results.py draws the pictures.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench_gpu import RATIO_TO, goal_text, is_met, product_head, product_line, rivals_of
from bench_linear import linear_table
from bench_models import MODEL_HEAD, model_line
from bench_split import PRODUCT_HEAD as SPLIT_HEAD
from bench_split import class_lines, error_lines, method_lines, step_line
from bench_split import product_line as split_line
from bench_split_sparse import TABLE_DEPTH, sparse_lines
from bench_threads import threads_table

from torch_tiledmm.dispatch import DTYPES
from torch_tiledmm.testing.bench import OURS, geomean, matmul_table, threads_of

ROOT = Path(__file__).parents[1]
TABLES = {"matmul": matmul_table, "linear": linear_table, "threads": threads_table}
LADDER_SHAPE, LADDER_MACHINE = "4096x4096x4096:NN", "nvidia_h200"  # of docs/ladder.md
VENDOR = "vendor"
SPEED_PRECISIONS = ("bf16", "fp16", "tf32", "fp32", "fp64")  # of README's table, and of the picture
LAYER, LAYER_PRECISION, LAYER_ROWS = (768, 3072), "bf16", (32, 512, 8192)  # of README's layer


def markdown_table(rows: list[tuple[str, ...]]) -> list[str]:
    head, *body = rows
    rule = ("---",) + ("---:",) * (len(head) - 1)
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *body)]


def listed(values: Iterable[object]) -> str:
    """Each once, in the order of their first time."""
    return ", ".join(dict.fromkeys(str(value) for value in values))


def name_of(results: dict) -> str:
    algorithm = results.get("algorithm", "auto")
    name = f"{results['benchmark']} {results['dtype']}" + (f" {algorithm}" if algorithm != "auto" else "")
    has_all_cores = results["num_threads"] == results.get("num_cores", results["num_threads"])
    return name if has_all_cores else f"{name}, {threads_of(results)}"


def slower_rows(all_results: list[dict]) -> list[str]:
    """For each machine how many rows are slower than the faster peer, in all and in each run."""
    machines: dict[str, list[dict]] = {}
    for results in all_results:
        machine = f"{results['cpu']}, {results['isa']}, {threads_of(results)}"
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


def render_cpu(all_results: list[dict]) -> list[str]:
    """A summary, then each run in full, bad rows included, in shape order."""
    head = ("benchmark", "peers", "rows", "geomean", "worst", "best", "below 1.0", "FMA peak GFLOP/s")
    lines = [
        "Ratio: time of the fastest peer / ours, more is better: of medians, and (best) of shortest times.",
        "",
        *slower_rows(all_results),
        "",
    ]
    lines += markdown_table([head, *map(summary_row, all_results)])
    for results in all_results:
        versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
        lines += ["", f"## {name_of(results)}", ""]
        lines.append(
            f"{results['cpu']}, {results['isa']}, {threads_of(results)}; {versions}; "
            f"commit {results['commit']}, {results['date']}."
        )
        lines += ["", *markdown_table(TABLES[results["benchmark"]](results))]
    return lines


def load_results(folder: Path) -> dict[str, list[dict]]:
    """The runs of one machine: those of bench_matmul.py, bench_linear.py and bench_threads.py ("cpu", in this order and
    that of the dtypes), of bench_gpu.py ("gpu", "families"), of bench_models.py ("models"), of bench_split.py
    ("split") and bench_split_sparse.py ("split_sparse"), of `ladder` ("ladder"), of bench_regret.py ("regret", which is
    for fit_costs.py alone), of bench_bmm.py and bench_mode.py ("bmm", "mode", which docs/whole_programs.md quotes), of
    bench_dtypes.py, bench_grouped.py, bench_quantize.py and bench_fp8.py ("dtypes", "grouped", ..., for the worklog),
    and what `ladder --count` counted ("counts").
    """
    names = "cpu gpu families models split split_sparse ladder regret bmm mode dtypes grouped quantize fp8 counts"
    found: dict[str, list[dict]] = {name: [] for name in names.split()}
    for path in sorted(folder.glob("*.json")):
        results = json.loads(path.read_text())
        if isinstance(results, list):
            found["counts"].append({"problem": path.stem.replace("_wave", ", warps of "), "rows": results})
        else:
            found["cpu" if results["benchmark"] in TABLES else results["benchmark"]].append(results)
    benchmarks, dtypes = list(TABLES), list(DTYPES)
    found["cpu"].sort(key=lambda r: (r["cpu"], benchmarks.index(r["benchmark"]), dtypes.index(r["dtype"])))
    return found


def load_machines(folder: Path) -> dict[str, dict[str, list[dict]]]:
    """The results of each machine by the name of its folder."""
    return {path.name: load_results(path) for path in sorted(folder.iterdir()) if list(path.glob("*.json"))}


def commit_problems(folder: Path) -> list[str]:
    """One line for each file of times that nobody could measure again: from no commit, or from changes to one."""
    problems = []
    for path in sorted(folder.rglob("*.json")):
        results = json.loads(path.read_text())
        if isinstance(results, list):  # counts, which a test makes again
            continue
        commit = results.get("commit")
        if not commit:
            problems.append(f"{path}: says no commit")
        elif commit.endswith("-dirty"):
            problems.append(f"{path}: {commit} is no commit, sources were changed")
    return problems


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


def missed_by_precision(products: list[dict]) -> dict[str, str]:
    groups: dict[str, list[dict]] = {}
    for row in products:
        groups.setdefault(row["precision"], []).append(row)
    return {precision: missed_text(rows) for precision, rows in groups.items()}


def missed_goals(all_results: list[dict]) -> list[str]:
    """For each GPU how many rows miss their goal, in all and in each precision, and where the figures come from."""
    lines = []
    for results in all_results:
        counts = missed_by_precision(results["products"])
        each = ", ".join(f"{precision} {text}" for precision, text in counts.items())
        lines.append(
            f"- {results['device']}: **{missed_text(results['products'])} products with a goal miss it** ({each}), "
            f"{missed_text(results['layers'])} layers, {missed_text(results['training'])} steps of training; "
            f"commit {results.get('commit') or 'not recorded'}; {results['date']}; "
            f"{clocks_text(results.get('clocks'))}."
        )
    return lines


def rival_text(entry: dict, rival: str) -> str:
    """Of a summary: the geometric mean of the ratio to a rival, and the share of rows below 0.9."""
    own = entry.get(RATIO_TO[rival])
    return f"{own['geomean']:.3f}, {100 * own['share_below_0.9']:.0f} %" if own else "-"


def worst_text(entry: dict, rival: str) -> str:
    own = entry.get(RATIO_TO[rival])
    return f"; {'; '.join(own['worst'][:3])}" if own else ""


def kinds_table(results: dict) -> list[str]:
    """One line for each precision and kind of shape."""
    rivals = rivals_of(results["products"])
    rows = [("precision", "kind", "rows", "geomean", "worst", "best", "below goal", *rivals)]
    for entry in results["summary"]:
        has_goal = any(row["goal"] for row in results["products"] if row["kind"] == entry["kind"])
        rows.append(
            (
                entry["precision"],
                entry["kind"],
                str(entry["rows"]),
                *(f"{entry[name]:.2f}" for name in ("geomean", "worst", "best")),
                str(len(entry["below_goal"])) if has_goal else "-",
                *(rival_text(entry, name) for name in rivals),
            )
        )
    return markdown_table(rows)


def times_of(row: dict) -> list[str]:
    return [f"{timing['median_us']:.1f}" for timing in row["timings"].values()]


def layer_line(row: dict) -> tuple[str, ...]:
    names = (row["layer"], str(row["rows"]), row["precision"])
    return (*names, *times_of(row), f"{row['tflops']:.1f}", f"{row['ratio']:.2f}", goal_text(row))


def training_line(row: dict) -> tuple[str, ...]:
    return (row["model"], str(row["rows"]), *times_of(row), f"{row['ratio']:.2f}", goal_text(row))


def render_gpu(results: dict) -> list[str]:
    """The kinds of shapes, then every row."""
    share = 100 * results["share_predicted_within_30_percent"]
    lines = [
        "Ratio: time of torch (the vendor's library) / ours, more is better. Products are single calls, the caches"
    ]
    lines += ["of the GPU are emptied before each, times are medians. A goal is the least ratio asked for.", ""]
    lines += [*missed_goals([results]), "", describe_gpu(results)]
    lines += [f"Predicted times within 30 % of the measured: {share:.0f} % of the rows.", ""]
    lines += [*kinds_table(results), "", "## Products", ""]
    rivals = rivals_of(results["products"])
    lines += markdown_table([product_head(rivals), *(product_line(row, rivals) for row in results["products"])])
    lines += ["", "## Layers: forward, gradients of input, weight and bias", ""]
    head = ("layer", "rows", "precision", "us", "nn.Linear us", "TFLOP/s", "ratio", "goal")
    lines += markdown_table([head, *map(layer_line, results["layers"])])
    lines += ["", "## Steps of training in bf16 under autocast, fused AdamW", ""]
    head = ("model", "rows", "us", "nn.Linear us", "ratio", "goal")
    lines += markdown_table([head, *map(training_line, results["training"])])
    lines += ["", "## The calling thread, microseconds a call at 64 x 64 x 64", ""]
    names = list(next(iter(results["host_us"].values())))
    costs = [(precision, *(f"{us[name]:.1f}" for name in names)) for precision, us in results["host_us"].items()]
    return [*lines, *markdown_table([("precision", *names), *costs])]


def render_families(results: dict) -> list[str]:
    """Each family beside its bar, and its worst rows; all rows are in the results."""
    lines = ["", "## Families of random products", "", f"Commit {results['commit']}, {results['date']}; "]
    lines[-1] += f"{clocks_text(results.get('clocks'))}. The vendor's time / ours; a copy of other data empties the"
    lines += ["caches before each call. In brackets what is asked for: the least mean, the largest share.", ""]
    rivals = rivals_of(row for entry in results["families"] for row in entry["products"])
    rows = [("family", "what", "seed", "rows", "geomean", "below 0.9", "bar", "worst rows", *rivals)]
    for entry in results["families"]:
        rows.append(
            (
                entry["family"],
                entry["why"],
                str(entry["seed"]),
                str(entry["rows"]),
                f"{entry['geomean']:.3f} ({entry['least_geomean']:.2f})",
                f"{100 * entry['share_below_0.9']:.0f} % ({100 * entry['most_below_0.9']:.0f} %)",
                "met" if entry["is_met"] else "missed",
                "; ".join(entry["worst"][:5]),
                *(f"{rival_text(entry, name)}{worst_text(entry, name)}" for name in rivals),
            )
        )
    return [*lines, *markdown_table(rows)]


def render_models(runs: list[dict]) -> list[str]:
    """Steps of whole models, of one run after the other."""
    lines = ["", "## Steps of whole models", "", "Medians and shortest steps, and what the calling thread"]
    lines += ["takes to launch one. Where that is as long as the step, the GPU waits for the thread, and the ratio"]
    lines += ["tells of threads and not of kernels."]
    for results in runs:
        lines += ["", f"Commit {results['commit']}, {results['date']}.", ""]
        lines += markdown_table([MODEL_HEAD, *map(model_line, results["models"])])
    return lines


def render_split(results: dict) -> list[str]:
    """What algorithm="split" reaches against the vendor's fp32, and its errors."""
    tables = {
        "Errors over S, the sum of the products' magnitudes, in 2^-24: largest / rms.": error_lines(results["errors"]),
        f"Time and largest error of {results['size']}^3.": method_lines(results["methods"]),
    }
    if "products" in results:
        tables |= {
            "Vendor's time / ours by class.": class_lines(results["products"]),
            "Training.": [("step", "split us", "vendor us", "ratio", "goal"), *map(step_line, results["steps"])],
            "All products.": [SPLIT_HEAD, *map(split_line, results["products"])],
        }
    lines = ["", '## algorithm="split"', "", f"Commit {results['commit']}, {results['date']}."]
    for title, table in tables.items():
        lines += ["", title, "", *markdown_table(table)]
    return lines


def render_split_sparse(results: dict) -> list[str]:
    """The errors of algorithm="split" over sparse data."""
    lines = [
        "",
        '## algorithm="split" over sparse data',
        "",
        f"Commit {results['commit']}, {results['date']}. Errors of",
    ]
    lines += [
        f"elements with k = {TABLE_DEPTH} over S, the sum of their products' magnitudes, in 2^-24: largest / rms."
    ]
    lines += ["The results have more k.", ""]
    return [*lines, *markdown_table(sparse_lines(results))]


def ladder_tables(all_results: list[dict]) -> tuple[dict[str, list[dict]], dict[str, dict]]:
    """The measured tables of each precision, and the one whose DRAM bytes Nsight Compute counted."""
    timed: dict[str, list[dict]] = {}
    counted: dict[str, dict] = {}
    for table in (table for results in all_results for table in results["tables"]):
        if table["rows"][0]["dram_bytes_from"] == "ncu":
            counted[table["precision"]] = table
        else:
            timed.setdefault(table["precision"], []).append(table)
    return timed, counted


def ladders_of_the_page(machines: dict[str, dict[str, list[dict]]]) -> list[dict]:
    """What docs/ladder.md and its picture show: runs of one GPU."""
    found = {name: machine["ladder"] for name, machine in machines.items() if machine["ladder"]}
    return found.get(LADDER_MACHINE) or sum(found.values(), [])


def render_ladder(all_results: list[dict]) -> list[str]:
    """TFLOP/s of each rung at each shape, a table a precision, and DRAM bytes where Nsight Compute counted them."""
    lines = ["", "## The ladder, TFLOP/s"]
    timed, counted = ladder_tables(all_results)
    for precision, tables in timed.items():
        columns = [{row["algorithm"]: f"{row['tflops']:.1f}" for row in table["rows"]} for table in tables]
        heads = [table["shape"] for table in tables]
        if precision in counted:
            rows = counted[precision]["rows"]
            heads.append(f"DRAM at {counted[precision]['shape']}")
            columns.append({row["algorithm"]: f"{row['dram_bytes'] / 1e9:.1f} GB" for row in rows[:-1]})
        body = [(f"`{name}`", *(column.get(name, "-") for column in columns)) for name in columns[0]]
        lines += ["", *markdown_table([(precision, *heads), *body])]
    return lines


def render_counts(all_results: list[dict]) -> list[str]:
    """What each rung asked of the GPU that the host executor stands in for."""
    lines = [
        "Counted by the host executor, which runs the kernels' sources without a GPU. A load is counted by element,"
    ]
    lines += ["a sector is 32 bytes of one warp's access, bank conflicts are extra turns of shared memory."]
    for results in all_results:
        names = list(results["rows"][0])
        rows = [
            tuple(row[name] if name == "algorithm" else f"{row[name]:,}" for name in names) for row in results["rows"]
        ]
        lines += ["", f"## {results['problem']} lanes", ""]
        lines += markdown_table([tuple(name.replace("_", " ") for name in names), *rows])
    return lines


def render_machine(name: str, machine: dict[str, list[dict]]) -> str:
    """The page of one machine: every row of every run."""
    lines = [f"# {title_of(name, machine)}", "", "Written by benchmarks/readme_table.py from the results beside it."]
    if machine["cpu"]:
        lines += render_cpu(machine["cpu"])
    for results in machine["gpu"]:
        lines += render_gpu(results)
    for results in machine["families"]:
        lines += render_families(results)
    if machine["models"]:
        lines += render_models(machine["models"])
    for results in machine["split"]:
        lines += render_split(results)
    for results in machine["split_sparse"]:
        lines += render_split_sparse(results)
    if machine["ladder"]:
        lines += render_ladder(machine["ladder"])
    if machine["counts"]:
        lines += render_counts(machine["counts"])
    return "\n".join(lines) + "\n"


def title_of(name: str, machine: dict[str, list[dict]]) -> str:
    for results in (*machine["gpu"], *machine["ladder"], *machine["cpu"], *machine["split"]):
        return results.get("device") or f"{results['cpu']}, {results['isa']}, {results['num_cores']} cores"
    return name.replace("_", " ")


def short_title(name: str, machine: dict[str, list[dict]]) -> str:
    return title_of(name, machine).replace("(R)", "").replace(" Processor", "")


def products_of(machine: dict[str, list[dict]]) -> list[tuple[str, dict]]:
    """(precision, row) of each product that `auto` computed; on a CPU those of the runs with the most threads."""
    products = [(row["precision"], row) for results in machine["gpu"] for row in results["products"]]
    runs = [r for r in machine["cpu"] if r["benchmark"] == "matmul" and r.get("algorithm", "auto") == "auto"]
    threads = max((run["num_threads"] for run in runs), default=0)
    return products + [(run["dtype"], row) for run in runs if run["num_threads"] == threads for row in run["rows"]]


def rows_of(machine: dict[str, list[dict]]) -> list[dict]:
    """Every row of a machine's products, layers and steps of training."""
    rows = [row for results in machine["cpu"] for row in results["rows"]]
    kinds = ("products", "layers", "training")
    return rows + [row for results in machine["gpu"] for kind in kinds for row in results[kind]]


def measured(machines: dict[str, dict[str, list[dict]]]) -> dict[str, dict[str, list[dict]]]:
    """The machines that have rows of products, GPUs first, the fastest one before the others."""
    names = sorted((name for name in machines if rows_of(machines[name])), reverse=True)
    return {name: machines[name] for name in sorted(names, key=lambda name: not machines[name]["gpu"])}


def render_speed(machines: dict[str, dict[str, list[dict]]]) -> str:
    """README's table of ratios: the geometric mean of each precision, and how many of all rows are below 1.0."""
    rows = [("chip", *SPEED_PRECISIONS, "slower than the vendor")]
    for name, machine in measured(machines).items():
        groups: dict[str, list[float]] = {}
        for precision, row in products_of(machine):
            groups.setdefault(precision, []).append(row["ratio"])
        means = (f"{geomean(groups[name]):.2f}" if name in groups else "-" for name in SPEED_PRECISIONS)
        all_rows = rows_of(machine)
        slower = f"{sum(row['ratio'] < 1 for row in all_rows)} of {len(all_rows)} rows"
        rows.append((short_title(name, machine), *means, f"[{slower}](benchmarks/results/{name}/README.md)"))
    return "\n".join(markdown_table(rows))


def layer_rows(machine: dict[str, list[dict]]) -> dict[int, dict]:
    """README's layer on a machine, by the number of rows of its input."""
    found = {}
    for results in machine["gpu"]:
        for row in results["layers"]:
            if (row["layer"], row["precision"]) == (f"{LAYER[0]} -> {LAYER[1]}", LAYER_PRECISION):
                found[row["rows"]] = row
    for results in machine["cpu"]:
        if (results["benchmark"], results["dtype"]) == ("linear", LAYER_PRECISION):
            own = (row for row in results["rows"] if (row["in_features"], row["out_features"]) == LAYER)
            found |= {row["batch_size"]: row for row in own}
    return found


def step_text(row: dict) -> str:
    """Ours / that of nn.Linear (ratio)."""
    times = {arm: timing["median_us"] for arm, timing in row["timings"].items()}
    ours = times.pop(OURS)
    (peer,) = times.values()
    return f"{ours:.0f} / {peer:.0f} us ({row['ratio']:.2f})"


def render_layer(machines: dict[str, dict[str, list[dict]]]) -> str:
    """README's table of one layer: microseconds of a step by TiledLinear and by nn.Linear, and the ratio."""
    lines = [("chip", *(f"{rows} rows" for rows in LAYER_ROWS))]
    for name, machine in measured(machines).items():
        found = layer_rows(machine)
        if found:
            cells = (step_text(found[rows]) if rows in found else "-" for rows in LAYER_ROWS)
            lines.append((short_title(name, machine), *cells))
    return "\n".join(markdown_table(lines))


def render_rungs(machines: dict[str, dict[str, list[dict]]]) -> dict[str, str]:
    """For docs/ladder.md, by the rung's name: its speed in each precision with the step from the rung before, and what
    was counted of it.
    """
    timed, _ = ladder_tables(ladders_of_the_page(machines))
    speeds: dict[str, dict[str, str]] = {}
    for precision, tables in timed.items():
        for row in next(table["rows"] for table in tables if table["shape"] == LADDER_SHAPE):
            step = "" if row["speedup"] is None else f" (x {row['speedup']:.2f})"
            speeds.setdefault(row["algorithm"], {})[precision] = f"{row['tflops']:.1f}{step}"
    speeds.pop(VENDOR, None)
    counts = [results for machine in machines.values() for results in machine["counts"]]
    counted = {row["algorithm"]: row for results in counts for row in results["rows"]}
    heads = ("global_load_elements", "global_load_sectors", "shared_loads", "bank_conflicts", "barriers")
    texts = {}
    for name, own in speeds.items():
        columns = [(f"{precision} TFLOP/s", own[precision]) for precision in timed if precision in own]
        columns += [(head.replace("_", " "), f"{counted[name][head]:,}") for head in heads if name in counted]
        texts[name] = "\n".join(markdown_table(list(zip(*columns, strict=True))))
    return texts


def replace_part(text: str, name: str, part: str) -> str:
    """The document's text with a new part between the markers of that name. Raises ValueError unless it has each
    marker once, in order.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"document: expected one {begin} and after it one {end}")
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n{part}\n{end}{after}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="writes the tables of the documents from the committed results")
    parser.add_argument("--check", action="store_true", help="only compare; exit with 1 if a document differs")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    args = parser.parse_args(arguments)
    machines = load_machines(args.results)
    if not machines:
        parser.error(f"results: no */*.json in {args.results}; run benchmarks/bench_matmul.py --json FILE first")
    texts = {args.results / name / "README.md": render_machine(name, machine) for name, machine in machines.items()}
    ladder = args.readme.parent / "docs" / "ladder.md"
    try:
        readme = replace_part(args.readme.read_text(), "results", render_speed(machines))
        texts[args.readme] = replace_part(readme, "layer", render_layer(machines))
        for name, part in render_rungs(machines).items():
            texts[ladder] = replace_part(texts.get(ladder) or ladder.read_text(), name, part)
    except ValueError as error:
        parser.error(str(error))
    for path, text in texts.items():
        if not args.check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path} differs from the results; run python benchmarks/readme_table.py")
    if args.check and (problems := commit_problems(args.results)):
        remedy = "Measure again from a clean checkout, or, where there is no .git, with TILEDMM_COMMIT=HASH."
        sys.exit("\n".join([*problems, remedy]))


if __name__ == "__main__":
    main()

"""Everything that is measured on a GPU, in one run: products of every kind and precision against torch (the vendor's
library), layers in training against nn.Linear, the calling thread's cost, and what `explain` predicted.

    python benchmarks/bench_gpu.py --json benchmarks/results/nvidia_h200/gpu.json
    python benchmarks/bench_gpu.py --random 500      shapes that nobody chose instead of the table
    python benchmarks/bench_gpu.py --family all --random 100 --seed 3 --json families.json
    python benchmarks/bench_gpu.py --family lm_heads --random 100 --seed 3 --lt-best

Products: single calls, caches of the GPU emptied before each, arms interleaved, medians, random data in [-1, 1], the
output allocated by each call. A goal is the least ratio of the vendor's time to ours that a kind of shape should reach.
Families (torch_tiledmm/testing/families.py) are products alone; a copy of other data empties the caches.

The vendor is what torch calls: the library's own choice. With --lt-best products have another arm, the fastest
algorithm that a search by measurement finds in cuBLASLt (cublaslt.py), with --max-autotune one more, torch.compile's
choice. The best ratio is the time of the faster one of the vendor's two arms over ours.

A tree without .git does not know its commit: TILEDMM_COMMIT=HASH says it, to every benchmark.
"""

import argparse
import copy
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from cublaslt import CublasLt, LibraryError, fastest_call, find_library

import torch_tiledmm
from torch_tiledmm import TiledLinear, replace_linear
from torch_tiledmm.testing.bench import OURS, geomean, output_file, positive
from torch_tiledmm.testing.families import FAMILIES, family_products
from torch_tiledmm.testing.origin import GpuClocks, describe_gpu_run
from torch_tiledmm.testing.shapes import Shape, gpu_shapes, parse_shape, random_shapes
from torch_tiledmm.testing.timing import PRECISIONS, gpu_name, host_seconds, matmul_precision, time_on_gpu

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from train_characters import Block  # noqa: E402

VENDOR, BEST, AUTOTUNED = "vendor", "cublaslt-best", "max-autotune"
# Of two operands and a precision: an arm, and what is to be said of it.
Rival = Callable[[torch.Tensor, torch.Tensor, str], tuple[Callable[[], object], dict]]
# in_features, out_features of a layer; rows of its input
LAYERS = ((768, 3072), (3072, 768), (4096, 4096), (4096, 11008), (11008, 4096))
LAYER_ROWS = (32, 512, 8192)
# Random shapes of more take too long.
MOST_RANDOM_FLOPS = {"fp16": 1e12, "bf16": 1e12, "tf32": 5e11, "fp32": 6e10, "fp64": 6e10}
# Widths of an MLP's layers with rows of its input; width and heads of a transformer block with batch and length.
MLPS = (((1024, 4096, 4096, 1024), 512), ((1024, 4096, 4096, 1024), 8192))
BLOCKS = ((768, 12, 8, 512), (768, 12, 16, 1024), (4096, 32, 2, 2048))


def goal(shape: Shape, precision: str) -> float | None:
    """The least ratio that is asked for; None: reported only."""
    if precision == "fp64":
        return {"large": 0.97, "medium": 1.0, "small": 1.0}.get(shape.kind)
    if shape.kind == "split_k":
        return 1.3
    if shape.kind == "batch":
        return 1.0
    if precision in ("fp16", "bf16"):
        goals = {"large": 1.0, "square_2048": 1.0, "medium": 1.0, "linear": 1.0, "m1": 1.15, "few_rows": 1.15}
        return {**goals, "unaligned": 3.5}.get(shape.kind)
    if precision == "tf32":
        if shape.kind == "unaligned":
            return 2.0
        return (1.3 if shape.layout == "TN" else 1.0) if shape.kind in ("large", "square_2048", "medium") else None
    if shape.kind in ("m1", "few_rows") and shape.m <= 32:
        return 1.3
    if shape.kind in ("medium", "small") and max(shape.m, shape.n, shape.k) <= 512:
        return 1.2
    return {"large": 1.0, "square_2048": 1.1, "medium": 1.1}.get(shape.kind)


def make_gpu_operands(shape: Shape, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    batch = (shape.batch,) if shape.batch else ()

    def operand(rows: int, columns: int, is_transposed: bool) -> torch.Tensor:
        stored = (*batch, *((columns, rows) if is_transposed else (rows, columns)))
        values = torch.empty(stored, dtype=dtype, device="cuda").uniform_(-1, 1, generator=generator)
        return values.mT if is_transposed else values

    return operand(shape.m, shape.k, shape.layout[0] == "T"), operand(shape.k, shape.n, shape.layout[1] == "T")


def autotuned_call(a: torch.Tensor, b: torch.Tensor, precision: str) -> tuple[Callable[[], object], dict]:
    """torch.compile's choice among its templates and the vendor's library, by its own measurement."""
    torch._dynamo.reset()
    call = torch.compile(lambda a, b: a @ b, mode="max-autotune-no-cudagraphs", dynamic=False)
    call(a, b)
    return lambda: call(a, b), {}


def make_rivals(lt_seconds: float | None, max_autotune: bool) -> dict[str, Rival]:
    """The arms beside the vendor's that were asked for. Raises LibraryError where there is no cuBLASLt."""
    rivals: dict[str, Rival] = {}
    if lt_seconds is not None:
        lt = CublasLt(find_library())
        rivals[BEST] = lambda a, b, precision: fastest_call(lt, a, b, precision, lt_seconds)
    if max_autotune:
        rivals[AUTOTUNED] = autotuned_call
    return rivals


def ratios_of(timings: Mapping[str, float]) -> dict[str, float]:
    """The vendor's time over ours; of the vendor's best the same, and of torch.compile, where they were measured."""
    ours, vendor = timings[OURS], timings[VENDOR]
    ratios = {"ratio": vendor / ours}
    if BEST in timings:
        ratios["best_ratio"] = min(vendor, timings[BEST]) / ours
    if AUTOTUNED in timings:
        ratios["autotuned_ratio"] = timings[AUTOTUNED] / ours
    return {name: round(ratio, 3) for name, ratio in ratios.items()}


def measure_product(
    shape: Shape, precision: str, *, copies: bool = False, rivals: Mapping[str, Rival] | None = None
) -> dict:
    notes: dict[str, dict] = {}
    with matmul_precision(precision) as dtype:
        a, b = make_gpu_operands(shape, dtype)
        theirs = torch.bmm if shape.batch else torch.mm
        arms: dict[str, Callable] = {OURS: lambda: torch_tiledmm.matmul(a, b), VENDOR: lambda: theirs(a, b)}
        for name, rival in (rivals or {}).items():
            try:
                arms[name], notes[name] = rival(a, b, precision)
            except (LibraryError, RuntimeError) as error:  # a row without a rival is better than none
                notes[name] = {"error": str(error)}
        timings = time_on_gpu(arms, seconds=0.05, copies=copies)
        explained = torch_tiledmm.explain(
            shape.m, shape.n, shape.k, dtype, layout=shape.layout, device=gpu_name(), batch=shape.batch
        )
    ours = timings[OURS].median
    predicted = next(c.cost_us for c in explained.candidates if c.algorithm == explained.choice)
    return {
        "precision": precision,
        "kind": shape.kind,
        "shape": str(shape),
        "algorithm": explained.choice,
        "predicted_us": round(predicted, 2),
        "timings": {name: timing.to_dict() for name, timing in timings.items()},
        "tflops": round(shape.flops / ours / 1e12, 3),
        "tbytes_per_second": round(shape.num_bytes(dtype) / ours / 1e12, 3),
        **ratios_of({name: timing.median for name, timing in timings.items()}),
        **({"rivals": notes} if notes else {}),
        "goal": goal(shape, precision),
    }


def measure_layer(in_features: int, out_features: int, rows: int, precision: str) -> dict:
    """One training step of a layer: forward, gradients of input, weight and bias."""
    with matmul_precision(precision) as dtype:
        theirs = torch.nn.Linear(in_features, out_features, dtype=dtype, device="cuda")
        ours = TiledLinear(in_features, out_features, dtype=dtype, device="cuda")
        ours.weight, ours.bias = theirs.weight, theirs.bias
        input = torch.empty(rows, in_features, dtype=dtype, device="cuda").uniform_(-1, 1).requires_grad_()
        grad = torch.empty(rows, out_features, dtype=dtype, device="cuda").uniform_(-1, 1)

        def step(layer: torch.nn.Linear):
            return lambda: torch.autograd.grad(layer(input), (input, layer.weight, layer.bias), grad)

        timings = time_on_gpu({OURS: step(ours), VENDOR: step(theirs)}, seconds=0.1)
    return {
        "precision": precision,
        "layer": f"{in_features} -> {out_features}",
        "rows": rows,
        "timings": {name: timing.to_dict() for name, timing in timings.items()},
        "tflops": round(6 * in_features * out_features * rows / timings[OURS].median / 1e12, 3),
        "ratio": round(timings[VENDOR].median / timings[OURS].median, 3),
        "goal": 1.0 if precision == "bf16" else None,
    }


def measure_training(name: str, model: torch.nn.Module, input: torch.Tensor) -> dict:
    """One step of training in bf16 under autocast, weights and optimiser in fp32."""

    def step(model: torch.nn.Module):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

        def run() -> None:
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(input).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return run

    tiled = copy.deepcopy(model)
    replace_linear(tiled)
    timings = time_on_gpu({OURS: step(tiled), VENDOR: step(model)}, seconds=0.3)
    return {
        "model": name,
        "rows": input.numel() // input.shape[-1],
        "timings": {name: timing.to_dict() for name, timing in timings.items()},
        "ratio": round(timings[VENDOR].median / timings[OURS].median, 3),
        "goal": 1.0,
    }


def training_models() -> list[tuple[str, torch.nn.Module, torch.Tensor]]:
    """Name, model, input."""
    models = []
    for widths, rows in MLPS:
        layers = [torch.nn.Linear(*pair, device="cuda") for pair in zip(widths, widths[1:], strict=False)]
        mlp = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.GELU())))[:-1]
        models.append((f"MLP {' -> '.join(map(str, widths))}", mlp, torch.randn(rows, widths[0], device="cuda")))
    for width, heads, batch, length in BLOCKS:
        block, input = Block(width, heads).cuda(), torch.randn(batch, length, width, device="cuda")
        models.append((f"transformer block of {width}, {batch} x {length}", block, input))
    return models


def measure_host(precision: str) -> dict:
    """Microseconds of the calling thread for one call at 64 x 64 x 64, and for a layer without gradients."""
    with matmul_precision(precision) as dtype:
        a, b = make_gpu_operands(parse_shape("64x64x64"), dtype)
        layer = TiledLinear(64, 64, dtype=dtype, device="cuda").requires_grad_(False)
        arms = {
            "tiledmm.matmul": lambda: torch_tiledmm.matmul(a, b),
            "torch.mm": lambda: torch.mm(a, b),
            "TiledLinear": lambda: layer(a),
            "nn.Linear": lambda: torch.nn.functional.linear(a, layer.weight, layer.bias),
        }
        return {name: round(seconds * 1e6, 2) for name, seconds in host_seconds(arms).items()}


def is_met(row: dict) -> bool:
    return row["goal"] is None or row["ratio"] >= row["goal"]


def goal_text(row: dict) -> str:
    return "" if row["goal"] is None else f"{row['goal']:.2f}{'' if is_met(row) else ' missed'}"


def summarize(rows: list[dict]) -> list[dict]:
    """One entry for each precision and kind."""
    groups: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        groups.setdefault((row["precision"], row["kind"]), []).append(row)
    return [
        {
            "precision": precision,
            "kind": kind,
            "rows": len(group),
            "geomean": round(geomean([row["ratio"] for row in group]), 3),
            "worst": min(row["ratio"] for row in group),
            "best": max(row["ratio"] for row in group),
            "below_goal": [row["shape"] for row in group if not is_met(row)],
            **summarize_rivals(group),
        }
        for (precision, kind), group in groups.items()
    ]


def summarize_rivals(rows: list[dict]) -> dict[str, dict]:
    """Of each ratio to another rival than the vendor, over the rows that have it: mean, share below 0.9, worst row."""
    summary = {}
    for name in RATIO_TO.values():
        if own := sorted((row[name], f"{row['precision']} {row['shape']}") for row in rows if name in row):
            ratios = [ratio for ratio, _ in own]
            summary[name] = {
                "rows": len(own),
                "geomean": round(geomean(ratios), 3),
                "share_below_0.9": round(sum(ratio < 0.9 for ratio in ratios) / len(ratios), 3),
                "worst": [f"{shape} {ratio:.2f}" for ratio, shape in own[:10]],
            }
    return summary


def share_predicted(rows: list[dict]) -> float:
    """Share of the rows whose predicted time is within 30 % of the measured."""
    good = [abs(row["predicted_us"] / row["timings"][OURS]["median_us"] - 1) <= 0.3 for row in rows]
    return sum(good) / len(good)


def measure_family(
    name: str, count: int, seed: int, precisions: Sequence[str] | None, rivals: Mapping[str, Rival]
) -> dict:
    """So many products, of these precisions alone if they are given, and how they compare with the family's bar."""
    rows = []
    drawn = family_products(name, seed)
    for precision, shape in itertools.islice((p for p in drawn if not precisions or p[0] in precisions), count):
        rows.append(row := measure_product(shape, precision, copies=True, rivals=rivals))
        print(name, *product_line(row, tuple(rivals)), *rival_notes(row), sep="  ", flush=True)
    return {"seed": seed, **summarize_family(name, rows), "products": rows}


def summarize_family(name: str, rows: list[dict]) -> dict:
    family = FAMILIES[name]
    ratios = [row["ratio"] for row in rows]
    mean, share_below = geomean(ratios), sum(ratio < 0.9 for ratio in ratios) / len(ratios)
    worst = sorted(rows, key=lambda row: row["ratio"])[:10]
    return {
        "family": name,
        "why": family.why,
        "rows": len(rows),
        "geomean": round(mean, 3),
        "least_geomean": family.least_geomean,
        "share_below_0.9": round(share_below, 3),
        "most_below_0.9": family.most_below,
        "is_met": mean >= family.least_geomean and share_below <= family.most_below,
        "worst": [f"{row['precision']} {row['shape']} {row['ratio']:.2f}" for row in worst],
        **summarize_rivals(rows),
    }


def rivals_of(rows: Iterable[dict]) -> tuple[str, ...]:
    """The arms beside ours and the vendor's that some row has."""
    return tuple(dict.fromkeys(name for row in rows for name in row["timings"] if name not in (OURS, VENDOR)))


def product_head(rivals: Iterable[str] = ()) -> tuple[str, ...]:
    columns = (column for name in rivals for column in (f"{name} us", RATIO_TO[name].replace("_", " ")))
    return (*PRODUCT_HEAD, *columns)


def product_line(row: dict, rivals: Iterable[str] = ()) -> tuple[str, ...]:
    """The row as text: the vendor, then a time and a ratio for each rival, which a row may lack."""
    timings = row["timings"]
    columns = (
        column
        for name in rivals
        for column in (
            (f"{timings[name]['median_us']:.1f}", f"{row[RATIO_TO[name]]:.2f}") if name in timings else ("-", "-")
        )
    )
    return (
        row["precision"],
        row["kind"],
        row["shape"],
        row["algorithm"],
        f"{timings[OURS]['median_us']:.1f}",
        f"{timings[VENDOR]['median_us']:.1f}",
        f"{row['predicted_us']:.1f}",
        f"{row['tflops']:.1f}",
        f"{row['ratio']:.2f}",
        goal_text(row),
        *columns,
    )


def rival_notes(row: dict) -> list[str]:
    """How many algorithms were tried, or why there is no rival."""
    notes = row.get("rivals", {})
    texts = {name: note.get("error") or f"{note['tried']} tried" for name, note in notes.items() if note}
    return [f"{name}: {text}" for name, text in texts.items()]


def summary_line(entry: dict) -> str:
    """An entry of a summary but for its rows: name and value of each, those of ratios to rivals in brackets."""
    texts = []
    for name, value in entry.items():
        if isinstance(value, dict):
            value = f"({', '.join(f'{key} {part}' for key, part in value.items())})"
        if name != "products":
            texts.append(f"{name} {value}")
    return ", ".join(texts)


RATIO_TO = {BEST: "best_ratio", AUTOTUNED: "autotuned_ratio"}
PRODUCT_HEAD = ("precision", "kind", "shape", "algorithm", "us", "vendor us", "predicted", "TFLOP/s", "ratio", "goal")


def described(parser: argparse.ArgumentParser, benchmark: str) -> dict:
    try:
        return describe_gpu_run(benchmark)
    except ValueError as error:
        parser.error(str(error))


def run_families(args: argparse.Namespace, parser: argparse.ArgumentParser, rivals: Mapping[str, Rival]) -> None:
    results = described(parser, "families") | {"families": []}
    names = list(FAMILIES) if "all" in args.family else list(dict.fromkeys(args.family))
    print("family", *product_head(rivals), sep="  ")
    with GpuClocks(torch.cuda.get_device_properties().uuid) as clocks:
        for name in names:
            results["families"].append(measure_family(name, args.random or 100, args.seed, args.precisions, rivals))
            results["clocks"] = clocks.to_dict()
            if args.json:
                args.json.write_text(json.dumps(results, indent=1) + "\n")
    for entry in results["families"]:
        print(summary_line(entry))


def main() -> None:
    parser = argparse.ArgumentParser(description="all measurements on a GPU")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, help="default: all, or those of the family")
    shapes = parser.add_mutually_exclusive_group()
    shapes.add_argument("--rows", nargs="+", default=None, metavar="MxNxK:NT", help="these instead of the whole table")
    shapes.add_argument("--random", type=int, default=0, metavar="COUNT", help="so many random ones in each precision")
    parser.add_argument("--seed", type=int, default=0, help="of --random")
    parser.add_argument("--family", nargs="+", choices=(*FAMILIES, "all"), help="--random products of each, or 100")
    lt_help = "cuBLASLt's fastest algorithm as another arm, from a search of so many seconds for each product, or 1"
    parser.add_argument("--lt-best", nargs="?", type=positive, const=1.0, default=None, metavar="SECONDS", help=lt_help)
    parser.add_argument("--max-autotune", action="store_true", help="torch.compile as another arm; slow to compile")
    parser.add_argument("--json", type=output_file, default=None, metavar="FILE")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no GPU")
    try:
        rivals = make_rivals(args.lt_best, args.max_autotune)
    except LibraryError as error:
        parser.error(f"--lt-best: {error}")
    if args.family:
        if args.rows:
            parser.error("--family draws its own rows")
        return run_families(args, parser, rivals)
    precisions = args.precisions or ("bf16", "fp16", "tf32", "fp32", "fp64")
    is_table = args.rows is None and not args.random
    chosen = gpu_shapes() if args.rows is None else [parse_shape(text) for text in args.rows]

    def shapes_of(precision: str) -> Iterable[Shape]:
        if args.random:
            return itertools.islice(random_shapes(args.seed, MOST_RANDOM_FLOPS[precision]), args.random)
        return chosen

    results = described(parser, "gpu")
    results["host_us"] = {precision: measure_host(precision) for precision in precisions}
    results |= {"layers": [], "training": [], "products": []}
    print("us of the calling thread:", json.dumps(results["host_us"]), flush=True)
    if is_table:
        for rows in LAYER_ROWS:
            for layer in LAYERS:
                results["layers"].append(row := measure_layer(*layer, rows, "bf16"))
                print(row["layer"], row["rows"], row["ratio"], "" if is_met(row) else "missed", flush=True)
        for model in training_models():
            results["training"].append(row := measure_training(*model))
            print(row["model"], row["rows"], row["ratio"], "" if is_met(row) else "missed", flush=True)
    with GpuClocks(torch.cuda.get_device_properties().uuid) as clocks:
        for precision in precisions:
            for shape in shapes_of(precision):
                results["products"].append(row := measure_product(shape, precision, rivals=rivals))
                print(*product_line(row, tuple(rivals)), *rival_notes(row), sep="  ", flush=True)
            results["summary"] = summarize(results["products"])
            results["share_predicted_within_30_percent"] = round(share_predicted(results["products"]), 3)
            results["clocks"] = clocks.to_dict()
            if args.json:
                args.json.write_text(json.dumps(results, indent=1) + "\n")
    for entry in results["summary"]:
        print(summary_line(entry))
    print(f"predicted within 30 %: {100 * results['share_predicted_within_30_percent']:.0f} % of the rows")


if __name__ == "__main__":
    main()

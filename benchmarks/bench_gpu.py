"""Everything that is measured on a GPU, in one run: products of every kind and precision against torch (the vendor's
library), layers in training against nn.Linear, the calling thread's cost, and what `explain` predicted.

    python benchmarks/bench_gpu.py --json benchmarks/results/nvidia_h200/gpu.json
    python benchmarks/bench_gpu.py --random 500      shapes that nobody chose instead of the table
    python benchmarks/bench_gpu.py --family all --random 100 --seed 3 --json families.json

Products: single calls, caches of the GPU emptied before each, arms interleaved, medians, random data in [-1, 1], the
output allocated by each call. A goal is the least ratio of the vendor's time to ours that a kind of shape should reach.
Families (torch_tiledmm/testing/families.py) are products alone; a copy of other data empties the caches.

A tree without .git does not know its commit: TILEDMM_COMMIT=HASH says it, to every benchmark.
"""

import argparse
import copy
import itertools
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

import torch_tiledmm
from torch_tiledmm import TiledLinear, replace_linear
from torch_tiledmm.testing.bench import OURS, geomean, output_file
from torch_tiledmm.testing.families import FAMILIES, family_products
from torch_tiledmm.testing.origin import GpuClocks, describe_gpu_run
from torch_tiledmm.testing.shapes import Shape, gpu_shapes, parse_shape, random_shapes
from torch_tiledmm.testing.timing import PRECISIONS, gpu_name, host_seconds, matmul_precision, time_on_gpu

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from train_characters import Block  # noqa: E402

VENDOR = "vendor"
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


def measure_product(shape: Shape, precision: str, *, copies: bool = False) -> dict:
    with matmul_precision(precision) as dtype:
        a, b = make_gpu_operands(shape, dtype)
        theirs = torch.bmm if shape.batch else torch.mm
        arms = {OURS: lambda: torch_tiledmm.matmul(a, b), VENDOR: lambda: theirs(a, b)}
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
        "ratio": round(timings[VENDOR].median / ours, 3),
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
        }
        for (precision, kind), group in groups.items()
    ]


def share_predicted(rows: list[dict]) -> float:
    """Share of the rows whose predicted time is within 30 % of the measured."""
    good = [abs(row["predicted_us"] / row["timings"][OURS]["median_us"] - 1) <= 0.3 for row in rows]
    return sum(good) / len(good)


def measure_family(name: str, count: int, seed: int, precisions: Sequence[str] | None) -> dict:
    """So many products, of these precisions alone if they are given, and how they compare with the family's bar."""
    rows = []
    drawn = family_products(name, seed)
    for precision, shape in itertools.islice((p for p in drawn if not precisions or p[0] in precisions), count):
        rows.append(row := measure_product(shape, precision, copies=True))
        print(name, *product_line(row), sep="  ", flush=True)
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
    }


def product_line(row: dict) -> tuple[str, ...]:
    timings = row["timings"]
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
    )


PRODUCT_HEAD = ("precision", "kind", "shape", "algorithm", "us", "vendor us", "predicted", "TFLOP/s", "ratio", "goal")


def described(parser: argparse.ArgumentParser, benchmark: str) -> dict:
    try:
        return describe_gpu_run(benchmark)
    except ValueError as error:
        parser.error(str(error))


def run_families(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    results = described(parser, "families") | {"families": []}
    names = list(FAMILIES) if "all" in args.family else list(dict.fromkeys(args.family))
    with GpuClocks(torch.cuda.get_device_properties().uuid) as clocks:
        for name in names:
            results["families"].append(measure_family(name, args.random or 100, args.seed, args.precisions))
            results["clocks"] = clocks.to_dict()
            if args.json:
                args.json.write_text(json.dumps(results, indent=1) + "\n")
    for entry in results["families"]:
        print(*(f"{name} {value}" for name, value in entry.items() if name != "products"), sep=", ")


def main() -> None:
    parser = argparse.ArgumentParser(description="all measurements on a GPU")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, help="default: all, or those of the family")
    shapes = parser.add_mutually_exclusive_group()
    shapes.add_argument("--rows", nargs="+", default=None, metavar="MxNxK:NT", help="these instead of the whole table")
    shapes.add_argument("--random", type=int, default=0, metavar="COUNT", help="so many random ones in each precision")
    parser.add_argument("--seed", type=int, default=0, help="of --random")
    parser.add_argument("--family", nargs="+", choices=(*FAMILIES, "all"), help="--random products of each, or 100")
    parser.add_argument("--json", type=output_file, default=None, metavar="FILE")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no GPU")
    if args.family:
        if args.rows:
            parser.error("--family draws its own rows")
        return run_families(args, parser)
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
                results["products"].append(row := measure_product(shape, precision))
                print(*product_line(row), sep="  ", flush=True)
            results["summary"] = summarize(results["products"])
            results["share_predicted_within_30_percent"] = round(share_predicted(results["products"]), 3)
            results["clocks"] = clocks.to_dict()
            if args.json:
                args.json.write_text(json.dumps(results, indent=1) + "\n")
    for entry in results["summary"]:
        print(*(f"{name} {value}" for name, value in entry.items()), sep=", ")
    print(f"predicted within 30 %: {100 * results['share_predicted_within_30_percent']:.0f} % of the rows")


if __name__ == "__main__":
    main()

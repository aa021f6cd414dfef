"""Every plan of a product against the chosen one and against the vendor's library, on a GPU: two distances that need
different cures.

    python benchmarks/bench_regret.py --family layers_base --random 100 --seed 1 --json regret.json
    python benchmarks/bench_regret.py --family any --random 200 --json benchmarks/results/nvidia_h100/regret.json
    python benchmarks/bench_regret.py --rows 6304x768x768:NT 3072x768x2048:TN --precision bf16

For each product it asks `explain` for the plans (tiles, ways to split k, pairs of blocks, orders of the tiles) of each
kernel whose order of summation is that of the choice, and times them all but those that are predicted to take twice as
long as another, then the fastest ones, the choice and the vendor's library once more, with more samples. Regret is the
time of what `auto` chose over that of the fastest plan. The families are bench_gpu.py's: a seed that was tuned on is
none to publish results of; `any` is products of every precision and kind, to which fit_costs.py fits the cost models.
"""

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

import torch
from bench_gpu import MOST_RANDOM_FLOPS, VENDOR, described, make_gpu_operands

import torch_tiledmm
from torch_tiledmm.dispatch import Candidate
from torch_tiledmm.testing.bench import OURS, geomean, output_file
from torch_tiledmm.testing.families import FAMILIES, family_products
from torch_tiledmm.testing.origin import GpuClocks
from torch_tiledmm.testing.shapes import Shape, parse_shape, random_shapes
from torch_tiledmm.testing.timing import PRECISIONS, gpu_name, matmul_precision, time_on_gpu

FINALISTS = 4  # plans that are timed once more
LEFT_OUT = 2.0  # plans that are predicted to take so many times as long as another one


def any_products(seed: int) -> Iterator[tuple[str, Shape]]:
    """Random ones of all precisions in turn, without end."""
    shapes = {precision: random_shapes(seed, most) for precision, most in MOST_RANDOM_FLOPS.items()}
    while True:
        for precision, own in shapes.items():
            yield precision, next(own)


def plans_of(shape: Shape, dtype: torch.dtype) -> list[Candidate]:
    """All plans of the kernels that auto chose among."""
    explain = partial(
        torch_tiledmm.explain,
        *(shape.m, shape.n, shape.k, dtype),
        layout=shape.layout,
        device=gpu_name(),
        batch=shape.batch,
    )
    kernels = explain()
    natives = {entry.name for entry in torch_tiledmm.algorithms(gpu_name()) if entry.is_native}
    names = [c.algorithm for c in kernels.candidates if c.legal and c.order == kernels.order and c.algorithm in natives]
    return [plan for name in names for plan in explain(plans_of=name).candidates]


def measure_plans(shape: Shape, precision: str) -> dict:
    """Medians in microseconds of all plans, and of the finalists, of auto and of the vendor."""
    with matmul_precision(precision) as dtype:
        a, b = make_gpu_operands(shape, dtype)
        plans = {plan.algorithm: plan for plan in plans_of(shape, dtype)}
        most_us = LEFT_OUT * min(plan.cost_us for plan in plans.values())
        plans = {name: plan for name, plan in plans.items() if plan.cost_us <= most_us}
        ours = torch_tiledmm.matmul
        arms: dict[str, Callable] = {name: partial(ours, a, b, algorithm=name) for name in plans}
        arms |= {OURS: partial(ours, a, b), VENDOR: partial(torch.bmm if shape.batch else torch.mm, a, b)}
        tried = time_on_gpu(arms, seconds=0.02, most_samples=6, copies=True, warms=True)
        best = sorted(plans, key=lambda name: tried[name].median)[:FINALISTS]
        finals = time_on_gpu(
            {name: arms[name] for name in (OURS, VENDOR, *best)},
            seconds=0.05,
            most_samples=40,
            copies=True,
            warms=True,
        )
        explained = torch_tiledmm.explain(
            shape.m, shape.n, shape.k, dtype, layout=shape.layout, device=gpu_name(), batch=shape.batch
        )
    chosen = next(c for c in explained.candidates if c.algorithm == explained.choice)
    micro = {name: round(timing.median * 1e6, 2) for name, timing in finals.items()}
    fastest = min(best, key=lambda name: micro[name])
    return {
        "precision": precision,
        "kind": shape.kind,
        "shape": str(shape),
        "chosen": {"algorithm": chosen.algorithm, "config": chosen.config, "predicted_us": chosen.cost_us},
        "chosen_us": micro[OURS],
        "vendor_us": micro[VENDOR],
        "best": fastest,
        "best_us": min(micro[fastest], micro[OURS]),
        "regret": round(max(1.0, micro[OURS] / micro[fastest]), 4),
        "ratio": round(micro[VENDOR] / micro[OURS], 4),
        "best_ratio": round(micro[VENDOR] / min(micro[fastest], micro[OURS]), 4),
        "plans": [
            {
                "algorithm": name,
                "config": plan.config,
                "predicted_us": plan.cost_us,
                "us": round(tried[name].median * 1e6, 2),
            }
            for name, plan in plans.items()
        ],
    }


def row_line(row: dict) -> tuple[str, ...]:
    config = next(plan["config"] for plan in row["plans"] if plan["algorithm"] == row["best"])
    return (
        row["precision"],
        row["kind"],
        row["shape"],
        f"ours {row['chosen_us']:.1f}",
        f"best {row['best_us']:.1f}",
        f"vendor {row['vendor_us']:.1f}",
        f"regret {row['regret']:.3f}",
        f"best ratio {row['best_ratio']:.3f}",
        " ".join(f"{key}={value}" for key, value in row["chosen"]["config"].items()),
        "| " + row["best"],
        " ".join(f"{key}={value}" for key, value in config.items()),
    )


def way_of(algorithm: str, config: dict) -> str:
    """A plan in few words: kernel, tile, pairs, where chunks of k are added; orders of the tiles are one way."""
    words = (config.get(key) for key in ("path", "block", "stages", "cluster", "split_k"))
    return " ".join([algorithm.split(":")[0], *(str(word) for word in words if word is not None)])


def costliest_choices(rows: list[dict]) -> list[str]:
    """Which way was taken for which, how often, and how much longer that took in the mean, the largest sum first."""
    regrets: dict[str, list[float]] = {}
    for row in rows:
        best = next(plan for plan in row["plans"] if plan["algorithm"] == row["best"])
        ways = [way_of(plan["algorithm"], plan["config"]) for plan in (row["chosen"], best)]
        if row["regret"] > 1:
            regrets.setdefault(" instead of ".join(ways), []).append(row["regret"])
    costs = sorted(regrets.items(), key=lambda item: -sum(map(math.log, item[1])))
    return [f"{ways}: {len(own)} rows, {geomean(own):.3f}" for ways, own in costs[:12]]


def model_errors(rows: list[dict]) -> dict[str, str]:
    """For each way the measured time over the predicted one: quartiles over all products that it was timed for."""
    ratios: dict[str, list[float]] = {}
    for plan in (plan for row in rows for plan in row["plans"]):
        ratios.setdefault(way_of(plan["algorithm"], plan["config"]), []).append(plan["us"] / plan["predicted_us"])
    return {
        way: " ".join(f"{quartile:.2f}" for quartile in statistics.quantiles(own, n=4))
        for way, own in sorted(ratios.items())
        if len(own) >= 4
    }


def summarize(name: str, rows: list[dict]) -> dict:
    """Both distances of a family, and what the model of the time makes of its plans."""
    return {
        "family": name,
        "rows": len(rows),
        "geomean": round(geomean([row["ratio"] for row in rows]), 4),
        "geomean_of_best": round(geomean([row["best_ratio"] for row in rows]), 4),
        "mean_regret": round(geomean([row["regret"] for row in rows]), 4),
        "share_of_regret_above_5_percent": round(sum(row["regret"] > 1.05 for row in rows) / len(rows), 3),
        "share_of_best_below_0.9": round(sum(row["best_ratio"] < 0.9 for row in rows) / len(rows), 3),
        "costliest_choices": costliest_choices(rows),
        "measured_over_predicted": model_errors(rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="times every plan of products on a GPU")
    shapes = parser.add_mutually_exclusive_group(required=True)
    shapes.add_argument("--family", nargs="+", choices=(*FAMILIES, "any", "all"))
    shapes.add_argument("--rows", nargs="+", metavar="MxNxK:NT")
    parser.add_argument("--random", type=int, default=100, metavar="COUNT", help="products of each family")
    parser.add_argument("--seed", type=int, default=1, help="of the families")
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16", help="of --rows")
    parser.add_argument("--json", type=output_file, default=None, metavar="FILE")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no GPU")
    sources: dict[str, Iterable[tuple[str, Shape]]] = {}
    if args.rows:
        sources["given"] = [(args.precision, parse_shape(text)) for text in args.rows]
    else:
        for name in FAMILIES if "all" in args.family else dict.fromkeys(args.family):
            products = any_products(args.seed) if name == "any" else family_products(name, args.seed)
            sources[name] = islice(products, args.random)
    chip = torch_tiledmm.explain(1, 1, 1, "fp32", device=gpu_name()).device
    results = described(parser, "regret") | {"chip": chip, "seed": args.seed, "summary": [], "rows": []}
    with GpuClocks(torch.cuda.get_device_properties().uuid) as clocks:
        for name, products in sources.items():
            rows = []
            for precision, shape in products:
                rows.append(row := measure_plans(shape, precision))
                print(name, *row_line(row), sep="  ", flush=True)
            # Of the plans the times alone: their tiles and predictions follow from the commit.
            times = [{plan["algorithm"]: plan["us"] for plan in row["plans"]} for row in rows]
            results["rows"] += [{"family": name, **row, "plans": own} for row, own in zip(rows, times, strict=True)]
            results["summary"].append(summarize(name, rows))
            results["clocks"] = clocks.to_dict()
            if args.json:
                args.json.write_text(json.dumps(results) + "\n")
    for entry in results["summary"]:
        lists = {
            "costliest choices": entry.pop("costliest_choices"),
            "measured over predicted": [
                f"{way}: {error}" for way, error in entry.pop("measured_over_predicted").items()
            ],
        }
        print(*(f"{name} {value}" for name, value in entry.items()), sep=", ")
        for name, lines in lists.items():
            print(f"  {name}", *lines, sep="\n    ")


if __name__ == "__main__":
    main()

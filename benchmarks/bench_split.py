"""algorithm="split" against the vendor's fp32: times on a GPU, errors on a GPU or a CPU.

    python benchmarks/bench_split.py --json benchmarks/results/MACHINE/split.json

The errors are those of each element over S, the sum of its products' magnitudes, in units of 2^-24; float64 is the
reference. A CPU's times are those of bench_matmul.py --dtype fp32 --algorithm split.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
from bench_gpu import VENDOR, Block, make_gpu_operands

from torch_tiledmm import TiledLinear, matmul, replace_linear
from torch_tiledmm.dispatch import format_columns
from torch_tiledmm.testing.bench import describe_run, geomean, output_file, write_json
from torch_tiledmm.testing.origin import GpuClocks, describe_gpu_run
from torch_tiledmm.testing.shapes import Shape, parse_shape
from torch_tiledmm.testing.timing import Timing, matmul_precision, time_arms, time_on_gpu

SPLIT, NATIVE = "split", "native"
# What is asked of a class of shapes: the vendor's time over that of split.
GOALS = {"8192": 3.7, "4096": 3.3, "2048": 2.2, "1024": 1.3, "layers": 2.5, "few rows": 1.0, "unaligned": 2.5}
SHAPES = {
    "8192": ("8192x8192x8192:NN", "8192x8192x8192:NT", "8192x8192x8192:TN", "16384x8192x8192:NT"),
    "4096": ("4096x4096x4096:NN", "4096x4096x4096:NT", "4096x4096x4096:TN"),
    "2048": ("2048x2048x2048:NN", "2048x2048x2048:NT", "2048x2048x2048:TN"),
    "1024": ("1024x1024x1024:NN", "1024x1024x1024:NT", "1024x1024x1024:TN"),
    "layers": tuple(
        f"{rows}x{wide}:{layout}"
        for rows in (512, 2048, 8192)
        for wide, layout in (
            ("3072x768", "NT"),
            ("768x3072", "NT"),
            ("4096x4096", "NT"),
            ("11008x4096", "NT"),
            ("4096x11008", "NT"),
            ("4096x11008", "NN"),
        )
    ),
    "few rows": tuple(
        f"{rows}x{wide}:NT"
        for rows in (1, 4, 16, 64)
        for wide in ("4096x4096", "11008x4096", "4096x11008", "50257x768", "1024x1024")
    ),
    "unaligned": ("4095x4095x4095:NN", "3001x2999x1537:NN", "2047x2049x2051:NT"),
}
ERROR_DEPTHS = (64, 1000, 4096)
ERROR_SIDE = 256


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def opposing(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of A whose range is that of B's columns turned round, 2^-100 to 2^100: all products are of one size."""
    exponents = torch.randint(-100, 101, (k,)).double()
    return (normal(m, k) * 2.0**exponents).float(), (normal(k, n) * 2.0 ** -exponents[:, None]).float()


def alike(make: Callable[..., torch.Tensor]) -> Callable[[int, int, int], tuple[torch.Tensor, torch.Tensor]]:
    return lambda m, n, k: (make(m, k), make(k, n))


DATA: dict[str, Callable[[int, int, int], tuple[torch.Tensor, torch.Tensor]]] = {
    "normal": alike(normal),
    "uniform (0, 1)": alike(lambda *shape: torch.rand(shape)),
    "1 + 2^-12 normal": alike(lambda *shape: 1 + 2.0**-12 * normal(*shape)),
    "lognormal, sigma 4": alike(lambda *shape: torch.exp(4 * normal(*shape))),
    "lognormal, sigma 8": alike(lambda *shape: torch.exp(8 * normal(*shape))),
    "softmax by normal": lambda m, n, k: (torch.softmax(4 * normal(m, k), 1), normal(k, n)),
    "opposing ranges": opposing,
    "denormal by 2^100": lambda m, n, k: (normal(m, k) * 2.0**-130, normal(k, n) * 2.0**100),
}


def arms_of(a: torch.Tensor, b: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    return {
        SPLIT: partial(matmul, a, b, algorithm=SPLIT),
        NATIVE: partial(matmul, a, b, algorithm=NATIVE),
        VENDOR: partial(torch.mm, a, b),
    }


def measure_error(out: torch.Tensor, exact: torch.Tensor, magnitude: torch.Tensor) -> dict[str, float]:
    """The largest and the root mean square error of the elements whose magnitude is not zero; others have to be 0."""
    error = (out.double() - exact).abs() / magnitude.clamp_min(torch.finfo(torch.float64).tiny) * 2**24
    rms = (error.square().sum() / (magnitude > 0).sum()).sqrt()
    return {"largest": float(f"{error.max():.3g}"), "rms": float(f"{rms:.3g}")}


def measure_errors(device: str) -> list[dict]:
    """The largest and the root mean square error of each arm, for each kind of data and k."""
    rows = []
    for name, make in DATA.items():
        for k in ERROR_DEPTHS:
            torch.manual_seed(k)
            a, b = (operand.to(device) for operand in make(ERROR_SIDE, ERROR_SIDE + 64, k))
            exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
            errors = {arm: measure_error(call(), exact, magnitude) for arm, call in arms_of(a, b).items()}
            rows.append({"data": name, "k": k, "errors": errors})
    return rows


def measure_methods(size: int, device: str) -> list[dict]:
    """Time and errors of all ways to an fp32 product of size^3: what the picture of error against time shows."""

    def by_tf32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with matmul_precision("tf32"):
            return torch.mm(a, b)

    methods: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "vendor fp32": torch.mm,
        "split": partial(matmul, algorithm=SPLIT),
        "native fp32": partial(matmul, algorithm=NATIVE),
        "vendor fp64, converted": lambda a, b: (a.double() @ b.double()).float(),
    }
    if device == "cuda":
        methods["vendor tf32"] = by_tf32
    rows = []
    for data in ("normal", "uniform (0, 1)"):
        a, b = (operand.to(device) for operand in DATA[data](size, size, size))
        timings = time_all({name: partial(method, a, b) for name, method in methods.items()}, device)
        part = slice(0, ERROR_SIDE)
        exact, magnitude = a[part].double() @ b.double(), a[part].double().abs() @ b.double().abs()
        for name, method in methods.items():
            error = ((method(a, b)[part].double() - exact).abs() / magnitude * 2**24).max()
            time_us = timings[name].to_dict()["median_us"]
            rows.append({"method": name, "data": data, "us": time_us, "error": float(f"{error:.3g}")})
    return rows


def time_all(arms: dict[str, Callable[[], object]], device: str) -> dict[str, Timing]:
    return time_on_gpu(arms, seconds=0.06) if device == "cuda" else time_arms(arms, seconds=0.5)


def finish_row(timings: dict[str, Timing], goal: float | None) -> dict:
    ratio = timings[VENDOR].median / timings[SPLIT].median
    found = {name: timing.to_dict() for name, timing in timings.items()}
    return {"timings": found, "ratio": round(ratio, 3), "goal": goal}


def measure_product(kind: str, shape: Shape) -> dict:
    arms = arms_of(*make_gpu_operands(shape, torch.float32))
    return {"kind": kind, "shape": str(shape)} | finish_row(time_all(dict(arms), "cuda"), GOALS[kind])


def measure_steps() -> list[dict]:
    """Forward and backward of a layer of 4096 x 4096 with 4096 rows, and of four transformer blocks of 2048."""
    rows = []
    layer = torch.nn.Linear(4096, 4096, device="cuda")
    tiled = TiledLinear.from_linear(layer, algorithm=SPLIT)
    input = torch.randn(4096, 4096, device="cuda", requires_grad=True)
    grad = torch.randn(4096, 4096, device="cuda")

    def of_layer(module: torch.nn.Module) -> Callable[[], object]:
        return lambda: torch.autograd.grad(module(input), (input, *module.parameters()), grad)

    timings = time_all({SPLIT: of_layer(tiled), VENDOR: of_layer(layer)}, "cuda")
    rows.append({"step": "layer 4096 -> 4096, 4096 rows, forward and backward"} | finish_row(timings, 3.0))
    width, heads = 2048, 16
    models = [torch.nn.Sequential(*(Block(width, heads) for _ in range(4))).cuda() for _ in range(2)]
    replace_linear(models[0], algorithm=SPLIT)
    tokens = torch.randn(2, 1023, width, device="cuda")

    def of_model(model: torch.nn.Module) -> Callable[[], object]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

        def run() -> None:
            model(tokens).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return run

    timings = time_all({SPLIT: of_model(models[0]), VENDOR: of_model(models[1])}, "cuda")
    rows.append({"step": "4 transformer blocks of 2048, 2 x 1023 tokens, training"} | finish_row(timings, 2.0))
    return rows


PRODUCT_HEAD = ("class", "shape", "split us", "native us", "vendor us", "ratio", "goal")


def goal_text(row: dict) -> str:
    return f"{row['goal']:.1f}{'' if row['ratio'] >= row['goal'] else ' missed'}"


def product_line(row: dict) -> tuple[str, ...]:
    times = (f"{row['timings'][arm]['median_us']:.1f}" for arm in (SPLIT, NATIVE, VENDOR))
    return (row["kind"], row["shape"], *times, f"{row['ratio']:.2f}", goal_text(row))


def step_line(row: dict) -> tuple[str, ...]:
    times = (f"{row['timings'][arm]['median_us']:.0f}" for arm in (SPLIT, VENDOR))
    return (row["step"], *times, f"{row['ratio']:.2f}", goal_text(row))


def class_lines(products: list[dict]) -> list[tuple[str, ...]]:
    """The geometric mean, the least and the greatest ratio of each class."""
    groups: dict[str, list[dict]] = {}
    for row in products:
        groups.setdefault(row["kind"], []).append(row)
    lines = [("class", "rows", "geomean", "least", "greatest", "goal")]
    for kind, group in groups.items():
        ratios = [row["ratio"] for row in group]
        numbers = (f"{number:.2f}" for number in (geomean(ratios), min(ratios), max(ratios)))
        lines.append((kind, str(len(group)), *numbers, f"{group[0]['goal']:.1f}"))
    return lines


def error_cell(error: dict[str, float]) -> str:
    return f"{error['largest']:g} / {error['rms']:g}"


def error_lines(rows: list[dict]) -> list[tuple[str, ...]]:
    """largest / rms of each arm."""
    lines = [("data", "k", SPLIT, NATIVE, VENDOR)]
    for row in rows:
        lines.append((row["data"], str(row["k"]), *map(error_cell, row["errors"].values())))
    return lines


def method_lines(rows: list[dict]) -> list[tuple[str, ...]]:
    lines = [("method", "data", "us", "largest error")]
    return lines + [(row["method"], row["data"], f"{row['us']:.0f}", f"{row['error']:g}") for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description="split against the vendor's fp32")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", type=int, default=None, help="of the products whose time and error are compared")
    parser.add_argument("--json", type=output_file, default=None, metavar="FILE")
    args = parser.parse_args()
    is_gpu = args.device == "cuda"
    try:
        results = describe_gpu_run("split") if is_gpu else describe_run("split", torch.float32)
    except ValueError as error:
        parser.error(str(error))
    results["size"] = args.size or (4096 if is_gpu else 1024)
    tables = []
    results["errors"] = measure_errors(args.device)
    tables.append(error_lines(results["errors"]))
    results["methods"] = measure_methods(results["size"], args.device)
    tables.append(method_lines(results["methods"]))
    if is_gpu:
        with GpuClocks(torch.cuda.get_device_properties().uuid) as clocks:
            shapes = [(kind, parse_shape(text)) for kind, texts in SHAPES.items() for text in texts]
            results["products"] = [measure_product(kind, shape) for kind, shape in shapes]
        results["clocks"] = clocks.to_dict()
        results["steps"] = measure_steps()
        tables += [[PRODUCT_HEAD, *map(product_line, results["products"])], class_lines(results["products"])]
        tables.append([("step", "split us", "vendor us", "ratio", "goal"), *map(step_line, results["steps"])])
    print("\n\n".join(format_columns(table) for table in tables))
    write_json(results, args.json)


if __name__ == "__main__":
    main()

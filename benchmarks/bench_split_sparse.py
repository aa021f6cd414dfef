"""The errors of algorithm="split" where most products of an element are zero, beside those of plain fp32.

    python benchmarks/bench_split_sparse.py --json benchmarks/results/MACHINE/split_sparse.json

An error is that of an element over S, the sum of its products' magnitudes, in units of 2^-24; float64 is the reference.
Elements of which no product is nonzero are left out, but have to be zero. Where no kernel of the group serves, on a CPU
without AMX, its three schemes are simulated instead (torch_tiledmm/testing/split_model.py), and the results say so.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
from bench_gpu import VENDOR
from bench_split import ERROR_SIDE, SPLIT, error_cell, measure_error, normal

from torch_tiledmm import matmul
from torch_tiledmm.dispatch import format_columns
from torch_tiledmm.testing.bench import describe_run, output_file, write_json
from torch_tiledmm.testing.origin import describe_gpu_run
from torch_tiledmm.testing.split_model import SIMULATED

AUTO = "auto"
DEPTHS = (64, 500, 1000, 3000, 4096)
TABLE_DEPTH = 3000  # of the rows that are printed; the results have all
PERCENTS = (0.1, 1, 5, 20, 50)
CPU_SIDES, SIMULATED_SIDES = (32, 1056), (32, 24)  # m and n; amx_split makes terms from n = 1024 on

Make = Callable[..., torch.Tensor]
MakeOperands = Callable[[int, int, int], tuple[torch.Tensor, torch.Tensor]]


def relu_of_normal(*shape: int) -> torch.Tensor:
    """What relu leaves of normal numbers, but for its zeros."""
    return normal(*shape).abs()


def uniform(*shape: int) -> torch.Tensor:
    return torch.rand(shape)


def lognormal(*shape: int) -> torch.Tensor:
    return torch.exp(2 * normal(*shape))


def sparse(make: Make, percent: float) -> Make:
    """So many per cent of the elements are not zero."""
    return lambda *shape: torch.where(torch.rand(shape) < percent / 100, make(*shape), 0.0)


def one_of_a_row(m: int, k: int) -> torch.Tensor:
    """Rows of zeros and a one each, at a random place."""
    return torch.nn.functional.one_hot(torch.randint(0, k, (m,)), k).float()


def integers(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape).float()


def by(make_b: Make, make_a: Make) -> MakeOperands:
    return lambda m, n, k: (make_a(m, k), make_b(k, n))


DATA: dict[str, MakeOperands] = {
    "one-hot rows by normal": by(normal, one_of_a_row),
    "identity by normal": by(normal, torch.eye),
    "one normal number a row, by normal": by(normal, lambda *shape: one_of_a_row(*shape) * normal(*shape)),
    "mask of 1 % ones by normal": by(normal, sparse(torch.ones, 1)),
    "mask of 50 % ones by uniform": by(uniform, sparse(torch.ones, 50)),
    "integers to 255 by normal": by(normal, integers),
    "integers to 255 by integers": by(integers, integers),
}
DENSE = {"relu(normal)": (relu_of_normal, normal), "uniform": (uniform, uniform), "lognormal": (lognormal, lognormal)}
for name, (make, make_dense) in DENSE.items():
    for percent in PERCENTS:
        thinned = sparse(make, percent)
        DATA[f"{percent:g} % of {name}, by dense"] = by(make_dense, thinned)
        DATA[f"{percent:g} % of {name}, by the same"] = by(thinned, thinned)

Arm = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def arms_on(device: str) -> dict[str, Arm]:
    """Split, or its simulated schemes where no kernel serves it, and plain fp32."""
    plain: dict[str, Arm] = {AUTO: partial(matmul, algorithm=AUTO), VENDOR: torch.mm}
    try:
        matmul(*(torch.ones(1024, 1024, device=device) for _ in range(2)), algorithm=SPLIT)
    except NotImplementedError:
        return {f"{name}, simulated": call for name, call in SIMULATED.items()} | plain
    return {SPLIT: partial(matmul, algorithm=SPLIT)} | plain


def measure_data(data: str, k: int, sides: tuple[int, int], device: str, arms: dict[str, Arm]) -> dict | None:
    """Each arm's errors; None where no product of any element is nonzero."""
    torch.manual_seed(k)
    a, b = (operand.to(device) for operand in DATA[data](*sides, k))
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    counts = (a != 0).double() @ (b != 0).double()
    if not counts.any():
        return None
    products = counts[counts > 0].mean().item()
    errors = {arm: measure_error(call(a, b), exact, magnitude) for arm, call in arms.items()}
    return {"data": data, "k": k, "products": float(f"{products:.3g}"), "errors": errors}


def sparse_lines(results: dict) -> list[tuple[str, ...]]:
    """largest / rms of each arm, and of how many products an element is the sum, for one k."""
    rows = [row for row in results["rows"] if row["k"] == TABLE_DEPTH]
    lines = [("data", "nonzero products", *rows[0]["errors"])]
    return lines + [(row["data"], f"{row['products']:g}", *map(error_cell, row["errors"].values())) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description="errors of split over sparse operands")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=output_file, default=None, metavar="FILE")
    args = parser.parse_args()
    is_gpu = args.device == "cuda"
    try:
        results = describe_gpu_run("split_sparse") if is_gpu else describe_run("split_sparse", torch.float32)
    except ValueError as error:
        parser.error(str(error))
    arms = arms_on(args.device)
    sides = (ERROR_SIDE, ERROR_SIDE + 64) if is_gpu else CPU_SIDES if SPLIT in arms else SIMULATED_SIDES
    measured = (measure_data(data, k, sides, args.device, arms) for data in DATA for k in DEPTHS)
    results["rows"] = [row for row in measured if row is not None]
    print(format_columns(sparse_lines(results)))
    write_json(results, args.json)


if __name__ == "__main__":
    main()

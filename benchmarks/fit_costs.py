"""Fit the cost models of NVIDIA's kernels to what bench_regret.py measured on a chip.

    python benchmarks/bench_regret.py --family any --random 300 --json benchmarks/results/MACHINE/regret.json
    python benchmarks/fit_costs.py benchmarks/results/MACHINE/regret.json --write

The first command needs the GPU, the second one only g++. The constants stand in csrc/kernels/cuda/<kernel>/costs.h, a
table for each model and a row for each chip. From the chip's row, or from those that it borrows, this seeks constants
for which the logarithms of predicted and measured times differ least (Levenberg, Quart. Appl. Math. 2, 1944), where
plans that are near the fastest one of their product weigh more. One product of five takes no part: the regret of these
says what the fit is worth. `--write` puts the rows into costs.h, and where every kernel that was measured has one, the
chip's row in csrc/dispatch/chips.cpp is modelled after nobody any more.
"""

import argparse
import ctypes
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from torch_tiledmm.host_gpu import _BatchDim, _GemmProblem
from torch_tiledmm.testing.bench import geomean
from torch_tiledmm.testing.shapes import Shape, parse_shape

CSRC = Path(__file__).parents[1] / "csrc"
FOLDER = "kernels/cuda"
TABLE = re.compile(r"inline constexpr CostRow<(\w+)> (\w+)\[\] = \{(.*?)\};\n", re.DOTALL)  # costs, name, rows
DTYPES = {"fp32": 0, "tf32": 0, "fp64": 1, "fp16": 2, "bf16": 3}
HELD_OUT = 5  # one product of so many
PRIOR = 0.01  # how much a constant wants to stay what it is, for each plan
STEPS = 60


def folder_of(kernel: str) -> Path:
    """Where its entry and its tables are; several kernels may share a folder."""
    return next(path.parent for path in (CSRC / FOLDER).glob("*/rung.cpp") if kernel in names_in(path))


def names_in(entries: Path) -> list[str]:
    return re.findall(r"^const Rung (\w+)_rung", entries.read_text(), re.MULTILINE)


def kernels() -> list[str]:
    """Those with tables."""
    folders = [path.parent for path in (CSRC / FOLDER).glob("*/costs.h") if path.parent.name != "shared"]
    return sorted(name for folder in folders for name in names_in(folder / "rung.cpp"))


def problem_of(shape: Shape, precision: str) -> _GemmProblem:
    """As explain sees it: no address, rows that follow each other."""
    m, n, k = shape.m, shape.n, shape.k
    a, b = (1, m) if shape.layout[0] == "T" else (k, 1), (1, k) if shape.layout[1] == "T" else (n, 1)
    fields = dict(m=m, n=n, k=k, stride_am=a[0], stride_ak=a[1], stride_bk=b[0], stride_bn=b[1], stride_cm=n)
    fields |= dict(stride_cn=1, dtype=DTYPES[precision], allow_tf32=precision == "tf32")
    dims = [(shape.batch, m * k, k * n, m * n)] if shape.batch else []
    return _GemmProblem(**fields, batch_dims=(_BatchDim * len(dims))(*dims), num_batch_dims=len(dims))


@dataclass
class Product:
    """Measured microseconds of the plans of each kernel, by their number."""

    name: str
    problem: _GemmProblem
    plans: dict[str, dict[int, float]] = field(default_factory=dict)

    @property
    def best_us(self) -> float:
        return min(min(times.values()) for times in self.plans.values())


def read_measurements(paths: Sequence[Path]) -> tuple[str, list[Product]]:
    """The chip, as in cuda:sm_80, and its products. Raises ValueError where the files are of several chips."""
    chips, products = set(), []
    for path in paths:
        results = json.loads(path.read_text())
        chips.add(results["chip"])
        for row in results["rows"]:
            shape = parse_shape(row["shape"])
            product = Product(f"{row['precision']} {row['shape']}", problem_of(shape, row["precision"]))
            for plan, us in row["plans"].items():
                kernel, _, number = plan.partition(":")
                product.plans.setdefault(kernel, {})[int(number)] = us
            products.append(product)
    if len(chips) != 1:
        raise ValueError(f"measurements: got those of {', '.join(sorted(chips)) or 'no chip'}, expected one chip")
    return chips.pop(), products


class Model:
    """A kernel's plans with the costs of a chip, which are `values`: views of the library's own memory, by table."""

    def __init__(self, kernel: str, device: str, folder: Path) -> None:
        own = Path(FOLDER, folder_of(kernel).name, "costs.h")
        text = (CSRC / own).read_text()
        names = [found[2] for found in TABLE.finditer(text)]
        copy = folder / kernel / own
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text.replace("inline constexpr CostRow<", "inline CostRow<"))
        library = folder / kernel / "fit.so"
        command = [
            *os.environ.get("CXX", "g++").split(),
            "-std=c++17",
            "-O2",
            "-fPIC",
            "-shared",
            "-fvisibility=hidden",
        ]
        command += ["-DTILEDMM_HOST_GPU", f'-DRUNG_SOURCE="{own.with_name("rung.cpp")}"', f"-DRUNG={kernel}_rung"]
        command += [f"-DTABLES={','.join(names)}", f"-I{folder / kernel}", f"-I{CSRC}", "-o", str(library)]
        command += [str(Path(__file__).with_suffix(".cpp")), str(CSRC / "dispatch/chips.cpp")]
        if not library.exists():
            subprocess.run(command, check=True)
        self._times: Callable = ctypes.CDLL(str(library)).fit_times
        found = (ctypes.c_int64 * (2 * len(names)))()
        if not ctypes.CDLL(str(library)).fit_start(device.encode(), found):
            raise ValueError(f"chip: got {device!r}, which csrc/dispatch/chips.cpp does not know; add its row")
        self.values: dict[str, np.ndarray] = {}
        for name, address, count in zip(names, found[::2], found[1::2], strict=True):
            costs = np.ctypeslib.as_array((ctypes.c_double * (2 * count)).from_address(address))
            self.values[name] = costs[::2]  # a kind beside each
        self.start = {name: values.copy() for name, values in self.values.items()}

    def times(self, problems: Sequence[_GemmProblem]) -> list[np.ndarray]:
        """The predicted microseconds of all plans of each problem."""
        given, counts = (_GemmProblem * len(problems))(*problems), np.zeros(len(problems), np.int64)
        capacity = 256 * len(problems)
        while True:
            times = np.empty(capacity)
            pointers = (array.ctypes.data_as(ctypes.c_void_p) for array in (times, counts))
            first, last = pointers
            self._times(given, ctypes.c_int64(len(problems)), first, ctypes.c_int64(capacity), last)
            if counts.sum() <= capacity:
                return np.split(times[: counts.sum()], np.cumsum(counts)[:-1])
            capacity = int(counts.sum())


def predictions(models: dict[str, Model], products: Sequence[Product]) -> list[list[tuple[float, float]]]:
    """(predicted, measured) microseconds of each product's plans."""
    rows: list[list[tuple[float, float]]] = [[] for _ in products]
    for kernel, model in models.items():
        for row, product, times in zip(rows, products, model.times([p.problem for p in products]), strict=True):
            measured = product.plans.get(kernel, {})
            if measured and max(measured) >= len(times):
                raise ValueError(f"{product.name}: {kernel} has {len(times)} plans: it was measured at another commit")
            row += [(float(times[number]), us) for number, us in measured.items()]
    return rows


def regrets(models: dict[str, Model], products: Sequence[Product]) -> list[float]:
    """For each product the time of the plan that is predicted to be the fastest over that of the fastest one."""
    return [min(row)[1] / min(us for _, us in row) for row in predictions(models, products) if row]


def fit(kernel: str, model: Model, products: Sequence[Product]) -> None:
    """Sets the values of a model. Constants that are 0, and those that no measured plan depends on, stay."""
    products = [product for product in products if kernel in product.plans]
    start = np.concatenate(list(model.values.values()))
    free = np.flatnonzero(start)
    measured = np.concatenate([list(product.plans[kernel].values()) for product in products])
    best = np.concatenate([[product.best_us] * len(product.plans[kernel]) for product in products])

    def set_values(steps: np.ndarray) -> None:
        values = start.copy()
        values[free] *= np.exp(steps)
        for own in model.values.values():
            own[:], values = values[: len(own)], values[len(own) :]

    def errors(steps: np.ndarray) -> np.ndarray:
        set_values(steps)
        all_times = model.times([product.problem for product in products])
        predicted = [times[list(p.plans[kernel])] for p, times in zip(products, all_times, strict=True)]
        return np.log(np.concatenate(predicted) / measured)

    def loss(error: np.ndarray, steps: np.ndarray) -> float:
        return float(np.sum(weights * error**2) + prior * np.sum(steps**2))

    steps, damping, prior = np.zeros(len(free)), 1e-2, PRIOR**2 * len(measured)
    error = errors(steps)
    for _ in range(STEPS):
        weights = (best / measured) / np.hypot(1, error / 0.2)  # plans that no model describes count less
        small = 1e-4
        slopes = np.stack([(errors(steps + small * unit) - error) / small for unit in np.eye(len(free))], axis=1)
        matrix = slopes.T @ (weights[:, None] * slopes) + prior * np.eye(len(free))
        downhill = -(slopes.T @ (weights * error) + prior * steps)
        before, is_better = loss(error, steps), False
        while not is_better and damping < 1e6:
            move = np.linalg.solve(matrix + damping * np.diag(np.diag(matrix)), downhill)
            other = steps + np.clip(move, -0.5, 0.5)
            is_better = loss(new := errors(other), other) < before
            damping *= 0.3 if is_better else 4
        if not is_better:
            break
        steps, error = other, new
        if loss(error, steps) > before * (1 - 1e-5):
            break
    set_values(steps)


def members_of(text: str, costs: str) -> list[tuple[str, int]]:
    """The constants of a struct in costs.h: names, and how many values each has, 0 for one that is no array."""
    body = re.sub(r"//[^\n]*", "", text.partition(f"struct {costs} {{")[2].partition("\n};")[0])
    found = re.findall(r"(\w+)(\[\w+\])? = (\{[^}]*\}|[^,;]+)", body)
    return [(name, value.count(",") + 1 if is_array else 0) for name, is_array, value in found]


def rows_of(rows: str) -> dict[int, str]:
    """The rows of a table by the chip, each with the comment before it."""
    found, start, depth = {}, 0, 0
    for i, letter in enumerate(re.sub(r"//[^\n]*", lambda comment: " " * len(comment[0]), rows)):
        depth += (letter == "{") - (letter == "}")
        if letter == "}" and depth == 0:
            row = rows[start : i + 1].strip(", \n")
            found[int(re.search(r"^ *\{(\d+)", row, re.MULTILINE | re.DOTALL)[1])] = row
            start = i + 1
    return found


def row_text(members: Sequence[tuple[str, int]], arch: int, values: Sequence[float], note: str) -> str:
    numbers = (re.sub(r"e\+?(-?)0*", r"e\1", f"{value:.4g}") for value in values)
    parts = [f"{{{', '.join(islice(numbers, size))}}}" if size else next(numbers) for _, size in members]
    assert next(numbers, None) is None, "each value has a place"
    return f"// {note}\n{{{arch}, {{{', '.join(parts)}}}}}"


def write_rows(kernel: str, model: Model, arch: int, note: str, csrc: Path = CSRC) -> None:
    """Those of the tables that a fit has changed."""
    path = csrc / FOLDER / folder_of(kernel).name / "costs.h"
    text = path.read_text()

    def replaced(table: re.Match) -> str:
        costs, name, rows = table.groups()
        values = model.values[name]
        if np.array_equal(values, model.start[name]):
            return table[0]
        own = {arch: row_text(members_of(text, costs), arch, values, note)}
        return table[0].replace(rows, "\n" + ",\n".join((rows_of(rows) | own).values()))

    path.write_text(TABLE.sub(replaced, text))


def is_fitted(kernel: str, arch: int, csrc: Path = CSRC) -> bool:
    """Whether each of its tables has a row for a chip, but for 8 bits, which bench_regret.py does not measure."""
    tables = TABLE.findall((csrc / FOLDER / folder_of(kernel).name / "costs.h").read_text())
    return all(arch in rows_of(rows) for _, name, rows in tables if "Fp8" not in name)


def name_chip(device: str, product: str, csrc: Path = CSRC) -> None:
    """The chip's row says that it is modelled after no other."""
    path = csrc / "dispatch/chips.cpp"
    row = re.compile(rf'after_\w+\(\s*({{"{device.partition(":")[2]}",.*?(?:true|false))}}\)', re.DOTALL)
    path.write_text(row.sub(rf'\1, 0, Cores::other, "{product}"}}', path.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description="fits the cost models to measurements of bench_regret.py")
    parser.add_argument("measurements", type=Path, nargs="+", metavar="FILE.json", help="of one chip")
    parser.add_argument("--write", action="store_true", help="the rows of the chip into costs.h")
    args = parser.parse_args()
    try:
        device, products = read_measurements(args.measurements)
    except ValueError as error:
        parser.error(str(error))
    name = json.loads(args.measurements[0].read_text())["device"]
    fitted, held_out = [p for i, p in enumerate(products) if i % HELD_OUT], products[::HELD_OUT]
    measured = {kernel for product in products for kernel in product.plans}
    with tempfile.TemporaryDirectory() as folder:
        models = {kernel: Model(kernel, device, Path(folder)) for kernel in kernels() if kernel in measured}

        def report(when: str) -> None:
            for which, own in (("fitted", fitted), ("held out", held_out)):
                found = regrets(models, own)
                print(f"{when}, {len(found)} products {which}: regret {geomean(found):.4f}, worst {max(found):.3f}")

        report("before")
        for kernel, model in models.items():
            fit(kernel, model, fitted)
        report("after")
        if args.write:
            arch = int(device.rpartition("_")[2])
            for kernel, model in models.items():
                write_rows(kernel, model, arch, f"{name}, {len(fitted)} random products")
            if all(is_fitted(kernel, arch) for kernel in models):
                name_chip(device, name)
            print(f"wrote the rows of {device} for {', '.join(models)}; now build, and run `make format`")


if __name__ == "__main__":
    main()

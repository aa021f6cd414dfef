"""Compare what the kernels make of random problems before and after a change of their plans: for every chip and every
instruction set the choice, and for each kernel that may serve the predicted time and its plan, as explain shows it.

    python benchmarks/compare_plans.py dump before.txt.gz     # at the commit before
    python benchmarks/compare_plans.py dump after.txt.gz      # at the commit after, built
    python benchmarks/compare_plans.py compare before.txt.gz after.txt.gz

A line of a dump is a problem; the problems depend on --seed alone. compare prints the first lines that differ, counts
them by chip and kernel, and fails where there are any. No GPU is needed.
"""

import argparse
import collections
import ctypes
import gzip
import json
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch_tiledmm
from torch_tiledmm.dispatch import build_info
from torch_tiledmm.host_gpu import _BatchDim, _GemmProblem

ISAS = ("portable", "neon", "avx2", "avx512", "avx512_bf16", "amx", "amx_fp16")
DTYPES = ("fp32", "fp64", "fp16", "bf16")
SIZES = {"fp32": 4, "fp64": 8, "fp16": 2, "bf16": 2}
MOST_BYTES = 1 << 40  # of C, and of an operand


def devices() -> list[str]:
    return [f"{chip['device']}:{name}" for name, chip in build_info().chips.items()] + [f"cpu:{isa}" for isa in ISAS]


def draw_size(rng: random.Random, most: int) -> int:
    """Few, a multiple of a tile, or anything; small ones as often as large ones."""
    size = int(2 ** rng.uniform(0, most.bit_length() - 1))
    kind = rng.randrange(4)
    if kind == 0:
        return rng.randint(1, 70)
    return min(most, -(-size // 64) * 64 if kind == 1 else -(-size // 8) * 8 if kind == 2 else size)


def draw_matrix(rng: random.Random, rows: int, cols: int) -> tuple[int, int, int]:
    """The strides of rows and columns, and the elements from one matrix of a batch to the next."""
    inner, outer = (cols, rows) if (is_row_major := rng.random() < 0.5) else (rows, cols)
    stride = inner
    if rng.random() < 0.4:
        stride = rng.choice((inner + rng.randint(1, 9), -(-inner // 8) * 8, -(-inner // 64) * 64, 2048, 4096))
    stride = max(stride, inner)
    step = rng.choice((2, 3)) if rng.random() < 0.03 else 1
    matrix = outer * stride * step + (rng.randint(1, 9) if rng.random() < 0.1 else 0)
    return (stride * step, step, matrix) if is_row_major else (step, stride * step, matrix)


def draw_problem(rng: random.Random, is_cpu: bool) -> tuple[str, dict, list[tuple[int, int, int, int]]]:
    dtype = rng.choice(DTYPES)
    while True:
        m, n = draw_size(rng, 1 << 15), draw_size(rng, 1 << 15)
        k = 0 if rng.random() < 0.01 else draw_size(rng, 100_000)
        sizes = [rng.randint(2, 70) for _ in range(rng.choice((0, 0, 0, 1, 1, 2)))]
        items = 1
        for size in sizes:
            items *= size
        if max(m * n, m * k, n * k) * items * SIZES[dtype] <= MOST_BYTES:
            break
    a, b, c = draw_matrix(rng, m, k), draw_matrix(rng, k, n), draw_matrix(rng, m, n)
    fields = dict(m=m, n=n, k=k, stride_am=a[0], stride_ak=a[1], stride_bk=b[0], stride_bn=b[1])
    fields |= dict(stride_cm=c[0], stride_cn=c[1], dtype=DTYPES.index(dtype), allow_tf32=rng.random() < 0.5)
    # Nobody reads at these addresses.
    for name in "abc":
        fields[name] = (1 << 20) + (rng.choice((0, 2, 4, 8, 16, 32, 64)) * SIZES[dtype] if rng.random() < 0.2 else 0)
    if rng.random() < 0.3:
        fields |= dict(bias=1 << 21, stride_bias_n=1, activation=rng.randrange(5))
    dims, steps = [], [a[2], b[2], c[2]]
    for size in reversed(sizes):
        is_repeated = [rng.random() < 0.15 for _ in range(2)]
        dims.insert(
            0,
            (size, *(0 if repeated else step for repeated, step in zip(is_repeated, steps[:2], strict=True)), steps[2]),
        )
        steps = [step * size for step in steps]
    if not sizes and SIZES[dtype] == 2 and not is_cpu and rng.random() < 0.1:
        fields |= dict(stride_am=1, stride_ak=m, stride_bk=n, stride_bn=1, row_sums=1 << 22)
    return dtype, fields, dims


def lines_of(device: str, seed: int, count: int) -> Iterator[str]:
    library = ctypes.CDLL(str(Path(torch_tiledmm.__file__).with_name("_kernels.so")))
    library.tiledmm_explain.restype = ctypes.c_size_t
    text = ctypes.create_string_buffer(1 << 17)
    rng = random.Random(f"{seed} {device}")
    for _ in range(count):
        dtype, fields, dims = draw_problem(rng, device.startswith("cpu"))
        threads = rng.choice((1, 2, 8, 16, 64))
        problem = _GemmProblem(batch_dims=(_BatchDim * len(dims))(*dims), num_batch_dims=len(dims), **fields)
        size = library.tiledmm_explain(
            ctypes.byref(problem), device.encode(), threads, None, text, ctypes.c_size_t(len(text))
        )
        answer = json.loads(text.raw[:size])
        own = {name: value for name, value in fields.items() if name != "dtype"}
        given = f"{device} {dtype} threads={threads} {json.dumps(own)} {dims}"
        plans = [
            f"{plan['algorithm']} {plan['cost_us']} {json.dumps(plan['config'])}" if plan["legal"]
            else f"{plan['algorithm']} refuses: {plan['reason']}"
            for plan in answer["candidates"]
        ]  # fmt: skip
        yield "\t".join([given, f"choice {answer['choice']} {answer['order']}", *plans])


def text_of(device: str, seed: int, count: int) -> bytes:
    return gzip.compress("".join(line + "\n" for line in lines_of(device, seed, count)).encode(), 1)


def dump(path: Path, seed: int, count: int) -> None:
    names = devices()
    with ProcessPoolExecutor() as pool, path.open("wb") as file:
        for text in pool.map(text_of, names, [seed] * len(names), [count] * len(names)):
            file.write(text)
    print(f"{count} problems for each of {len(names)} chips and instruction sets: {path}")


def compare(before: Path, after: Path, most: int = 10) -> int:
    """The number of problems of which something differs."""
    num_lines, num_shown, differing, of_kernels = 0, 0, 0, collections.Counter()
    with gzip.open(before, "rt") as first, gzip.open(after, "rt") as second:
        for one, other in zip(first, second, strict=True):
            num_lines += 1
            if one == other:
                continue
            (given, *plans), (same, *others) = one.rstrip("\n").split("\t"), other.rstrip("\n").split("\t")
            if given != same:
                sys.exit(f"the dumps are of other problems:\n{given}\n{same}")
            differing += 1
            of_chip = [pair for pair in zip(plans, others, strict=True) if pair[0] != pair[1]]
            of_kernels.update((given.split()[0], pair[0].split()[0]) for pair in of_chip)
            if num_shown < most:
                num_shown += 1
                print("\n".join([given, *(f"  before {old}\n  after  {new}" for old, new in of_chip)]))
    for (chip, kernel), number in sorted(of_kernels.items()):
        print(f"{chip} {kernel}: {number} differ")
    print(f"{num_lines} problems, of which {differing} differ")
    return differing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    of_dump = commands.add_parser("dump", help="write what the library that is built makes of random problems")
    of_dump.add_argument("path", type=Path)
    of_dump.add_argument("--count", type=int, default=20_000, help="problems for each chip (default: %(default)s)")
    of_dump.add_argument("--seed", type=int, default=0)
    of_compare = commands.add_parser("compare", help="print what differs between two dumps")
    of_compare.add_argument("before", type=Path)
    of_compare.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "dump":
        dump(arguments.path, arguments.seed, arguments.count)
    else:
        sys.exit(compare(arguments.before, arguments.after) > 0)


if __name__ == "__main__":
    main()

"""Seeded sweep of matmul, matmul_out and linear against the float64 reference with its derived bounds.

A case is all that its number draws: shapes, strides, offsets, batch, values, algorithm, threads. A failure
prints the line that runs it again:

    python tests/torch_tiledmm/test_property.py 1234 [--guarded]

Operands lie in memory filled with NaN, so that a read outside of an operand shows in the result; the
guarded cases lie against pages without access, so that it kills the process, in a child of its own.

Bugs that were planted into the kernels, and what caught them:

- the packing of bf16 pairs reads one element past an odd k: sweep (NaN), guard pages
- a masked vector load reads the whole vector: guard pages only
- a partial store writes a whole vector: the process died of its heap
- with 2 threads the chunks of k are added in reverse: sweep, long sums
- the streaming path keeps one chain of k in place of chunks: bits of a row
- the bias of the last column is dropped: sweep, bits of linear
- a batch is folded into rows though B has that batch dimension, too: sweep
- the last k is dropped when it is alone in its chunk: sweep
- one stride of A is taken as 1 while packing: sweep, guard pages
- bf16 is truncated in place of rounded: sweep, bits of a row
- the words of k after the last whole block are added to the first chain: bits of a row, of a layout

Found in earnest: with k split over threads only the first product of a small batch was computed.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass, field

import pytest
import torch

import torch_tiledmm
from torch_tiledmm.dispatch import DTYPES
from torch_tiledmm.testing import ACTIVATIONS, LAYOUTS, assert_close, expect_linear, expect_matmul

NUM_CASES = 4000
NUM_GUARDED_CASES = 1200
EDGES = (
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    11,
    12,
    13,
    15,
    16,
    17,
    24,
    31,
    32,
    33,
    47,
    48,
    49,
    63,
    64,
    65,
    79,
    80,
    81,
    96,
    97,
    100,
)
BATCHES = (
    ((3,), ()),
    ((), (3,)),
    ((3,), (3,)),
    ((1,), (4,)),
    ((4,), (1,)),
    ((2, 1), (3,)),
    ((2, 1), (1, 3)),
    ((2, 3), (2, 3)),
    ((5,), (2, 1)),
    ((2, 2, 2), (2, 1)),
    ((0,), ()),
    ((2, 0), (1,)),
)
INT_DTYPES = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def available_algorithms(dtype_name: str) -> list[str]:
    return [entry.name for entry in torch_tiledmm.algorithms("cpu") if entry.available and dtype_name in entry.dtypes]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(INT_DTYPES[tensor.element_size()])


def check_same_bits(actual: torch.Tensor, expected: torch.Tensor, *what: object) -> None:
    is_same = bits(actual) == bits(expected)
    if not is_same.all():
        index = tuple(int(i) for i in (~is_same).nonzero()[0])
        message = f"bits differ at {index}: {actual[index].item()!r}, expected {expected[index].item()!r}"
        raise AssertionError(f"{' '.join(map(str, what))}: {message} ({int((~is_same).sum())} of {actual.numel()})")


# --- memory ---


def plain_memory(num_elements: int, dtype: torch.dtype, is_at_end: bool) -> torch.Tensor:
    return torch.full((num_elements,), float("nan"), dtype=dtype)


def guarded_memory(num_elements: int, dtype: torch.dtype, is_at_end: bool) -> torch.Tensor:
    """NaNs between two pages without access: against the second one if is_at_end, else against the first."""
    num_bytes = num_elements * dtype.itemsize
    if num_bytes == 0:
        return torch.empty(0, dtype=dtype)
    page = mmap.PAGESIZE
    num_pages = -(-num_bytes // page)
    pages = mmap.mmap(-1, (num_pages + 2) * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    libc = ctypes.CDLL(None, use_errno=True)
    for guard in (address, address + (num_pages + 1) * page):
        no_access = 0
        if libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), no_access) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    offset = page + (num_pages * page - num_bytes if is_at_end else 0)
    return torch.frombuffer(pages, dtype=dtype, count=num_elements, offset=offset).fill_(float("nan"))


@dataclass
class Operand:
    """A strided view into its own memory, and what that memory held when the view was made."""

    view: torch.Tensor
    memory: torch.Tensor
    before: torch.Tensor = field(init=False)

    def __post_init__(self):
        self.before = self.memory.clone()

    def check_unchanged(self, name: str) -> None:
        check_same_bits(self.memory, self.before, name, "or the memory around it was written to")

    def check_only_view_changed(self, name: str) -> None:
        strides, offset = self.view.stride(), self.view.storage_offset() - self.memory.storage_offset()
        allowed = self.before.as_strided(self.view.shape, strides, offset)
        allowed.copy_(self.view)
        check_same_bits(self.memory, self.before, "the memory around", name, "was written to")


def place(rng: random.Random, shape: tuple[int, ...], dtype: torch.dtype, allocate, can_expand: bool) -> Operand:
    """A view of this shape, filled with NaN, with random order of dimensions, steps, gaps, offset and
    margins.
    """
    style = rng.choice(("rows", "rows", "transposed", "transposed", "padded", "stepped", "any_order", "expanded"))
    order = list(reversed(range(len(shape))))  # innermost first
    if style == "transposed" or (style == "padded" and rng.random() < 0.5):
        order[:2] = reversed(order[:2])
    elif style in ("stepped", "any_order"):
        rng.shuffle(order)
    expanded = set()
    if style == "expanded" and can_expand:
        expanded = {dim for dim in order if rng.random() < 0.5}

    strides = [0] * len(shape)
    stride = rng.choice((2, 3)) if style == "stepped" else 1
    for dim in order:
        if dim not in expanded:
            strides[dim] = stride
            stride = stride * max(shape[dim], 1) + (rng.randrange(1, 20) if style in ("padded", "any_order") else 0)
    is_at_end = rng.random() < 0.7
    before, after = rng.choice((0, 0, 1, 3, 8, 17)), rng.choice((0, 5))
    if allocate is guarded_memory:
        before, after = (before, 0) if is_at_end else (0, after)
    extent = sum((size - 1) * step for size, step in zip(shape, strides, strict=True)) + 1 if 0 not in shape else 0
    memory = allocate(before + extent + after, dtype, is_at_end)
    view = memory.as_strided(shape, strides, memory.storage_offset() + before)
    return Operand(view, memory)


def fill(operand: Operand, kind: str, seed: int) -> Operand:
    """Random values; every element of an expanded dimension is the same."""
    view = operand.view
    stored = view[tuple(slice(0, 1) if step == 0 else slice(None) for step in view.stride())]
    generator = torch.Generator().manual_seed(seed)
    values = torch.empty(stored.shape, dtype=torch.float64).uniform_(-1, 1, generator=generator)
    info = torch.finfo(view.dtype)
    if kind == "positive":
        values = values.abs()
    elif kind == "integers":
        values = (values * 4).round()
    elif kind == "wide":
        values *= torch.empty_like(values).uniform_(-8, 8, generator=generator).exp2()
    elif kind == "tiny":  # products or operands are denormal
        values *= info.tiny * 2.0 ** (seed % 4)
    elif kind == "nonfinite":
        where = torch.empty_like(values).uniform_(0, 1, generator=generator)
        values[where < 0.02] = float("inf")
        values[where < 0.01] = float("-inf")
        values[where < 0.003] = float("nan")
    stored.copy_(values)
    return Operand(view, operand.memory)


# --- cases ---


def draw_size(rng: random.Random) -> int:
    chance = rng.random()
    if chance < 0.03:
        return 0
    if chance < 0.15:
        return 1
    return rng.choice(EDGES) if chance < 0.7 else rng.randrange(2, 101)


def draw_large_size(rng: random.Random, low: int, high: int) -> int:
    """Every other one is next to a multiple of 128, where blocks and chunks end."""
    if rng.random() < 0.5:
        return rng.randrange(low, high)
    return 128 * rng.randrange(low // 128 + 1, high // 128) + rng.choice((-1, 0, 1, 2))


def draw_sizes(rng: random.Random) -> tuple[int, int, int]:
    """m, n, k: mostly all of them small, else one of them large."""
    m, n, k = draw_size(rng), draw_size(rng), draw_size(rng)
    chance = rng.random()
    if chance < 0.08:
        return min(m, 20), min(n, 20), draw_large_size(rng, 128, 6000)
    if chance < 0.13:
        return min(m, 20), draw_large_size(rng, 128, 3000), min(k, 64)
    if chance < 0.18:
        return draw_large_size(rng, 128, 3000), min(n, 20), min(k, 64)
    if chance < 0.21:
        return rng.randrange(100, 300), rng.randrange(100, 300), draw_large_size(rng, 128, 700)
    return m, n, k


def draw_matmul_shapes(rng: random.Random) -> tuple[tuple[int, ...], tuple[int, ...]]:
    m, n, k = draw_sizes(rng)
    batch_a, batch_b = ((), ()) if rng.random() < 0.55 else rng.choice(BATCHES)
    if batch_a or batch_b:
        m, n = min(m, 300), min(n, 300)
    a_shape, b_shape = (*batch_a, m, k), (*batch_b, k, n)
    if rng.random() < 0.05:
        a_shape = (k,)
    if rng.random() < 0.05:
        b_shape = (k,)
    return a_shape, b_shape


def run_case(index: int, allocate) -> None:
    """Draws the case of this number and checks it; raises AssertionError with the case and the line that
    runs it again.
    """
    rng = random.Random(index)
    dtype_name = list(DTYPES)[index % len(DTYPES)]
    dtype = DTYPES[dtype_name]
    op = rng.choice(("matmul", "matmul_out", "linear"))
    algorithm = rng.choice(["auto", "auto", *available_algorithms(dtype_name)])
    threads = rng.sample((1, 2, 3), 2)
    kind = rng.choice(("uniform", "uniform", "uniform", "positive", "integers", "wide", "tiny", "nonfinite"))
    case = f"{op} {dtype_name} {algorithm} {kind} threads {threads}"

    def operand(shape: tuple[int, ...]) -> Operand:
        nonlocal case
        placed = fill(place(rng, shape, dtype, allocate, can_expand=True), kind, rng.randrange(2**31))
        case += f" {tuple(shape)}/{placed.view.stride()}"
        return placed

    if op == "linear":
        m, n, k = draw_sizes(rng)
        batch = rng.choice(((m,), (m,), (m,), (), (2, min(m, 50)), (2, 3, min(m, 20))))
        operands = {"input": operand((*batch, k)), "weight": operand((n, k))}
        bias = rng.choice((None, "bias"))
        if bias is not None:
            operands["bias"] = operand((n,))
        activation = rng.choice(ACTIVATIONS)
        case += f" {activation}"
        views = [placed.view for placed in operands.values()]
        expected = expect_linear(*views, activation=activation)

        def compute() -> torch.Tensor:
            return torch.ops.tiledmm.linear(*views, activation=activation, algorithm=algorithm)

    else:
        a_shape, b_shape = draw_matmul_shapes(rng)
        operands = {"a": operand(a_shape), "b": operand(b_shape)}
        a, b = (placed.view for placed in operands.values())
        expected = expect_matmul(a, b)
        if op == "matmul_out":
            out = place(rng, tuple(expected.value.shape), dtype, allocate, can_expand=False)

        def compute() -> torch.Tensor:
            if op == "matmul":
                return torch.ops.tiledmm.matmul(a, b, algorithm=algorithm)
            out.view.fill_(float("nan"))
            torch.ops.tiledmm.matmul_out(a, b, out.view, algorithm=algorithm)
            return out.view.clone()

    threads_before = torch.get_num_threads()
    try:
        results = []
        for num_threads in (threads[0], threads[0], threads[1]):
            torch.set_num_threads(num_threads)
            result = compute()
            # The sign and the payload of a nan are no part of the promise.
            results.append(torch.where(result.isnan(), float("nan"), result))
        assert_close(results[0], expected)
        check_same_bits(results[1], results[0], "second run")
        check_same_bits(results[2], results[0], threads[1], "instead of", threads[0], "threads")
        for name, placed in operands.items():
            placed.check_unchanged(name)
        if op == "matmul_out":
            out.check_only_view_changed("out")
    except Exception as error:
        raise AssertionError(f"{error}\n  case {index}: {case}\n  {repro(index, allocate)}") from error
    finally:
        torch.set_num_threads(threads_before)


def repro(index: int, allocate) -> str:
    flag = " --guarded" if allocate is guarded_memory else ""
    return f"run again: python tests/torch_tiledmm/test_property.py {index}{flag}"


def run_cases(indices, allocate) -> None:
    """Runs all of them, then raises with the first few failures."""
    failures = []
    for index in indices:
        if allocate is guarded_memory:
            os.write(1, f"{index}\n".encode())  # the last number is the one that crashed
        try:
            run_case(index, allocate)
        except AssertionError as error:
            failures.append(str(error))
    assert not failures, f"{len(failures)} cases failed:\n" + "\n".join(failures[:5])


# --- tests ---


@pytest.mark.parametrize("dtype_idx", range(len(DTYPES)), ids=list(DTYPES))
def test_sweep(dtype_idx):
    run_cases(range(dtype_idx, NUM_CASES, len(DTYPES)), plain_memory)


def test_sweep_against_guard_pages():
    first, last = NUM_CASES, NUM_CASES + NUM_GUARDED_CASES
    command = [sys.executable, __file__, str(first), str(last), "--guarded"]
    child = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if child.returncode < 0:
        index = int(child.stdout.split()[-1])
        name = signal.Signals(-child.returncode).name
        pytest.fail(f"{name}: touched memory outside of an operand\n  {repro(index, guarded_memory)}\n{child.stderr}")
    assert child.returncode == 0, child.stderr
    assert len(child.stdout.split()) == NUM_GUARDED_CASES


def test_guard_pages_kill_the_process_that_touches_them():
    cases = {(True, 20): -signal.SIGSEGV, (True, 19): 0, (False, -1): -signal.SIGSEGV, (False, 0): 0}
    touch = (
        "import ctypes, os, torch, test_property as t\n"
        f"for is_at_end, distance in {list(cases)}:\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        memory = t.guarded_memory(5, torch.float32, is_at_end)\n"
        "        assert memory.isnan().all()\n"
        "        ctypes.c_char.from_address(memory.data_ptr() + distance).value\n"
        "        os._exit(0)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", touch], cwd=os.path.dirname(__file__), capture_output=True, text=True, timeout=60
    )
    assert list(map(int, done.stdout.split())) == list(map(int, cases.values())), done.stderr


def make_layout(rows: int, columns: int, letter: str, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """The same values in either layout."""
    values = torch.empty(rows, columns, dtype=dtype).uniform_(-1, 1, generator=torch.Generator().manual_seed(seed))
    return values if letter == "N" else values.t().contiguous().t()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype_name", DTYPES)
def test_bits_of_a_row_do_not_depend_on_m_or_its_place(dtype_name, layout):
    rng = random.Random(f"{dtype_name}{layout}")
    dtype = DTYPES[dtype_name]
    for algorithm in available_algorithms(dtype_name):
        for n, k in ((70, 300), (1, 1500), (9, 65), (200, 33), (40, 27), (20, 30)):
            a, b = make_layout(230, k, layout[0], dtype, 0), make_layout(k, n, layout[1], dtype, 1)
            whole = torch.ops.tiledmm.matmul(a, b, algorithm=algorithm)
            sizes = range(1, 65) if "tiled" in algorithm or algorithm == "auto" else (1, 2, 7, 33)
            for m in (*sizes, 97, 128, 201):
                start = rng.randrange(0, 230 - m)
                part = torch.ops.tiledmm.matmul(a[start : start + m], b, algorithm=algorithm)
                check_same_bits(part, whole[start : start + m], algorithm, m, n, k, start)
            row = rng.randrange(230)
            vector = torch.ops.tiledmm.matmul(a[row], b, algorithm=algorithm)
            check_same_bits(vector, whole[row], algorithm, "1-D", n, k, row)
            batched = torch.ops.tiledmm.matmul(a[:40].unsqueeze(1), b, algorithm=algorithm)
            check_same_bits(batched[:, 0], whole[:40], algorithm, "batch of rows", n, k)


@pytest.mark.parametrize("dtype_name", DTYPES)
def test_bits_do_not_depend_on_layout_or_n(dtype_name):
    dtype = DTYPES[dtype_name]
    for algorithm in available_algorithms(dtype_name):
        for m, n, k in ((1, 90, 700), (5, 17, 129), (70, 65, 600), (3, 1, 1000), (20, 41, 30)):
            results = [
                torch.ops.tiledmm.matmul(
                    make_layout(m, k, layout[0], dtype, 0),
                    make_layout(k, n, layout[1], dtype, 1),
                    algorithm=algorithm,
                )
                for layout in LAYOUTS
            ]
            for layout, result in zip(LAYOUTS, results, strict=True):
                check_same_bits(result, results[0], algorithm, m, n, k, layout)
            a, b = make_layout(m, k, "N", dtype, 0), make_layout(k, n, "T", dtype, 1)
            for num_columns in {1, n // 3, n // 2, n - 1} - {0}:
                part = torch.ops.tiledmm.matmul(a, b[:, n - num_columns :], algorithm=algorithm)
                check_same_bits(part, results[0][:, n - num_columns :], algorithm, m, n, k, num_columns)


@pytest.mark.parametrize("dtype_name", DTYPES)
def test_bits_of_a_long_sum_do_not_depend_on_threads_or_m(dtype_name):
    dtype, threads_before = DTYPES[dtype_name], torch.get_num_threads()
    try:
        for n, k in ((16, 20000), (1, 100_003), (64, 9001)):
            a, b = make_layout(20, k, "N", dtype, 0), make_layout(k, n, "T", dtype, 1)
            torch.set_num_threads(1)
            whole = torch.ops.tiledmm.matmul(a, b)
            for num_threads in (1, 2, 3):
                torch.set_num_threads(num_threads)
                for m in (1, 2, 5, 16, 17, 20):
                    part = torch.ops.tiledmm.matmul(a[20 - m :], b)
                    check_same_bits(part, whole[20 - m :], n, k, num_threads, m)
    finally:
        torch.set_num_threads(threads_before)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype_name", DTYPES)
def test_bits_of_linear_do_not_depend_on_m(dtype_name, activation):
    dtype = DTYPES[dtype_name]
    for n in (1, 7, 37, 100):
        x, weight = make_layout(80, 50, "N", dtype, 0), make_layout(n, 50, "N", dtype, 1)
        bias = make_layout(1, n, "N", dtype, 2)[0]
        whole = torch.ops.tiledmm.linear(x, weight, bias, activation=activation)
        for m in range(1, 40):
            part = torch.ops.tiledmm.linear(x[m : 2 * m], weight, bias, activation=activation)
            check_same_bits(part, whole[m : 2 * m], n, m)


def main() -> None:
    parser = argparse.ArgumentParser(description="runs cases of the sweep by number")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?", help="one past the last; default: the first alone")
    parser.add_argument("--guarded", action="store_true")
    args = parser.parse_args()
    last = args.first + 1 if args.last is None else args.last
    run_cases(range(args.first, last), guarded_memory if args.guarded else plain_memory)


if __name__ == "__main__":
    main()

"""Seeded sweep of matmul, matmul_out and linear against the float64 reference with its derived bounds.

The cases are those of torch_tiledmm/testing/cases.py, which the fuzzer draws, too; here always the same, without
derivatives, and more of them with one large size. A failure prints the line that runs it again:

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
- a thread keeps the packed rows of the first item for all others: few rows of an item

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
from dataclasses import replace

import pytest
import torch

import torch_tiledmm
from torch_tiledmm.dispatch import DTYPES
from torch_tiledmm.testing import ACTIVATIONS, LAYOUTS
from torch_tiledmm.testing.cases import Case, assert_same_bits, draw_case, nans, run_case

NUM_CASES = 4000
NUM_GUARDED_CASES = 1200


def available_algorithms(dtype_name: str) -> list[str]:
    return [entry.name for entry in torch_tiledmm.algorithms("cpu") if entry.available and dtype_name in entry.dtypes]


# --- memory ---


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


# --- cases ---


def draw(number: int) -> Case:
    case = draw_case(0, number, modes=("values",), large_share=0.2)
    return replace(case, threads=random.Random(number).choice((2, 3)))


def against_guards(case: Case) -> Case:
    """Without margins: both ends of the memory are those of the tensor."""
    return replace(case, layouts=tuple((name, replace(layout, before=0, after=0)) for name, layout in case.layouts))


def guarded_allocator(number: int):
    """Allocates against the guard page at either end."""
    rng = random.Random(number)
    return lambda num_elements, dtype, device: guarded_memory(num_elements, dtype, rng.random() < 0.7)


def run(number: int, is_guarded: bool) -> None:
    """Raises AssertionError with the program of the case and the line that runs it again."""
    case, threads = draw(number), torch.get_num_threads()
    case = against_guards(case) if is_guarded else case
    try:
        outcome = run_case(case, guarded_allocator(number) if is_guarded else nans)
    finally:
        torch.set_num_threads(threads)
    if outcome.check:
        code = "\n".join(code for _, code in case.program())
        raise AssertionError(f"{outcome.check}: {outcome.message}\n{repro(number, is_guarded)}\n{code}")


def repro(index: int, is_guarded: bool) -> str:
    flag = " --guarded" if is_guarded else ""
    return f"run again: python tests/torch_tiledmm/test_property.py {index}{flag}"


def run_cases(indices, is_guarded: bool) -> None:
    """Runs all of them, then raises with the first few failures."""
    failures = []
    for index in indices:
        if is_guarded:
            os.write(1, f"{index}\n".encode())  # the last number is the one that crashed
        try:
            run(index, is_guarded)
        except AssertionError as error:
            failures.append(str(error))
    assert not failures, f"{len(failures)} cases failed:\n" + "\n".join(failures[:5])


# --- tests ---


@pytest.mark.parametrize("dtype_idx", range(len(DTYPES)), ids=list(DTYPES))
def test_sweep(dtype_idx):
    run_cases(range(dtype_idx, NUM_CASES, len(DTYPES)), is_guarded=False)


def test_sweep_against_guard_pages():
    first, last = NUM_CASES, NUM_CASES + NUM_GUARDED_CASES
    command = [sys.executable, __file__, str(first), str(last), "--guarded"]
    child = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if child.returncode < 0:
        index = int(child.stdout.split()[-1])
        name = signal.Signals(-child.returncode).name
        pytest.fail(f"{name}: touched memory outside of an operand\n  {repro(index, is_guarded=True)}\n{child.stderr}")
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
                assert_same_bits(part, whole[start : start + m], algorithm, m, n, k, start)
            row = rng.randrange(230)
            vector = torch.ops.tiledmm.matmul(a[row], b, algorithm=algorithm)
            assert_same_bits(vector, whole[row], algorithm, "1-D", n, k, row)
            batched = torch.ops.tiledmm.matmul(a[:40].unsqueeze(1), b, algorithm=algorithm)
            assert_same_bits(batched[:, 0], whole[:40], algorithm, "batch of rows", n, k)


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
                assert_same_bits(result, results[0], algorithm, m, n, k, layout)
            if "split" in algorithm:  # few columns are not split
                continue
            a, b = make_layout(m, k, "N", dtype, 0), make_layout(k, n, "T", dtype, 1)
            for num_columns in {1, n // 3, n // 2, n - 1} - {0}:
                part = torch.ops.tiledmm.matmul(a, b[:, n - num_columns :], algorithm=algorithm)
                assert_same_bits(part, results[0][:, n - num_columns :], algorithm, m, n, k, num_columns)


@pytest.mark.parametrize("dtype_name", DTYPES)
def test_bits_of_a_long_sum_do_not_depend_on_threads_or_m(dtype_name):
    dtype, threads_before = DTYPES[dtype_name], torch.get_num_threads()
    try:
        for n, k in ((100, 40_000), (1, 100_003), (64, 9001)):
            a, b = make_layout(20, k, "N", dtype, 0), make_layout(k, n, "T", dtype, 1)
            torch.set_num_threads(1)
            whole = torch.ops.tiledmm.matmul(a, b)
            for num_threads in (1, 2, 3):
                torch.set_num_threads(num_threads)
                for m in (1, 2, 5, 16, 17, 20):
                    part = torch.ops.tiledmm.matmul(a[20 - m :], b)
                    assert_same_bits(part, whole[20 - m :], n, k, num_threads, m)
    finally:
        torch.set_num_threads(threads_before)


@pytest.mark.parametrize("dtype_name", DTYPES)
def test_few_rows_of_an_item_are_its_own(dtype_name):
    """On a CPU a thread packs few rows once for all columns of an item."""
    dtype, threads_before = DTYPES[dtype_name], torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        for m in (1, 2, 5, 8):
            a = torch.stack([make_layout(m, 700, "N", dtype, item) for item in range(3)])
            b = torch.stack([make_layout(700, 2000, "T", dtype, 3 + item).mT for item in range(3)]).mT
            batch = torch.ops.tiledmm.matmul(a, b)
            for item in range(3):
                assert_same_bits(batch[item], torch.ops.tiledmm.matmul(a[item], b[item]), m, item)
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
            assert_same_bits(part, whole[m : 2 * m], n, m)


def main() -> None:
    parser = argparse.ArgumentParser(description="runs cases of the sweep by number")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?", help="one past the last; default: the first alone")
    parser.add_argument("--guarded", action="store_true")
    args = parser.parse_args()
    last = args.first + 1 if args.last is None else args.last
    run_cases(range(args.first, last), args.guarded)


if __name__ == "__main__":
    main()

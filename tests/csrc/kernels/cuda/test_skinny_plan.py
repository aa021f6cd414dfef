"""The plans that csrc/kernels/cuda/skinny chooses, and the time it expects, against measurements on an H200."""

import itertools
import os
import subprocess
from pathlib import Path

import pytest
from summation import count_chunks, count_chunks_of_fp64

HERE = Path(__file__).parent
CSRC = HERE.parents[3] / "csrc"
SHARED_BYTES = (99 << 10, 163 << 10, 227 << 10)  # of a block on sm_86, sm_80, sm_90

# m, n, k, batch: microseconds, cold second-level cache that has to write back, operands along k
MEASURED = {
    (1, 768, 768, 1): 7.4,
    (1, 1024, 1024, 1): 8.0,
    (1, 4096, 4096, 1): 16.9,
    (8, 4096, 4096, 1): 17.9,
    (1, 14336, 4096, 1): 38.3,
    (1, 4096, 14336, 1): 39.3,
    (1, 11008, 4096, 1): 32.2,
    (1, 50257, 768, 1): 27.8,
    (16, 4096, 4096, 1): 19.6,
    (4096, 1, 4096, 1): 17.1,
    (8192, 64, 8192, 1): 66.4,
    (64, 64, 65536, 1): 17.1,
    (1, 1, 65536, 1): 10.5,
    (16, 16, 65536, 1): 12.0,
    (1, 128, 4096, 32): 17.5,
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    program = tmp_path_factory.mktemp("config") / "config"
    cxx = os.environ.get("CXX", "g++").split()
    subprocess.run([*cxx, "-std=c++17", f"-I{CSRC}", HERE / "skinny_plan.cpp", "-o", program], check=True, timeout=60)

    def run(problems):
        text = "\n".join(" ".join(map(str, problem)) for problem in problems)
        done = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
        rows = [[float(value) for value in line.split()] for line in done.stdout.splitlines()]
        return zip(rows[::2], rows[1::2], strict=True)  # both layouts

    return run


@pytest.mark.parametrize("is_f64", [False, True])
def test_every_plan_fits_and_covers_its_problem(is_f64, plan):
    most = 8 if is_f64 else 64  # few rows
    few, many, ks = (1, 8, 9, 17, 64), (1, 16, 65, 257, 4096, 50257), (0, 1, 300, 4096, 14336, 70000)
    problems = [
        (int(is_f64), *(shape if not swap else (shape[1], shape[0])), k, batch, shared)
        for shape, k, batch, shared, swap in itertools.product(
            itertools.product(few, many), ks, (1, 33), SHARED_BYTES, (False, True)
        )
        if min(shape) <= most
    ]
    for (_, m, n, k, batch, shared), layouts in zip(problems, plan(problems), strict=True):
        for groups, stages, shared_bytes, units, blocks_n, chunks, cols, time in layouts:
            assert stages >= 2 and shared_bytes <= shared and time > 0, (m, n, k)
            streamed = m if m > most or (n <= most and n < m) else n
            assert cols <= groups * 16 if is_f64 else cols == groups * 16
            assert blocks_n * cols >= streamed > (blocks_n - 1) * cols, (m, n, k)
            assert units == blocks_n * chunks * batch
            assert chunks in (1, (count_chunks_of_fp64 if is_f64 else count_chunks)(n, k)), (m, n, k)


def test_time_is_near_what_was_measured(plan):
    for problem, ((*_, time), _) in zip(MEASURED, plan([(0, *p, 227 << 10) for p in MEASURED]), strict=True):
        assert abs(time / MEASURED[problem] - 1) < 0.25, (problem, time)

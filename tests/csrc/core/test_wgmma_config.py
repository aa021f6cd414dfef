"""The tiles that csrc/core/wgmma_config.h chooses, and the time it expects, against measurements on an H200."""

import itertools
import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CSRC = HERE.parents[2] / "csrc"

# m, n, k, batch: microseconds, cold second-level cache, A k-major, B k-major
MEASURED = {
    (512, 512, 512, 1): 6.7,
    (1024, 1024, 1024, 1): 9.7,
    (2048, 2048, 2048, 1): 27.6,
    (4096, 4096, 4096, 1): 178,
    (8192, 8192, 8192, 1): 1490,
    (1000, 1000, 1000, 1): 12.9,
    (128, 4096, 4096, 1): 18.8,
    (512, 11008, 4096, 1): 70.9,
    (128, 768, 3072, 1): 11.1,
    (2048, 3072, 768, 1): 20.0,
    (8192, 64, 8192, 1): 45.5,
    (256, 256, 16384, 1): 16.6,
    (128, 128, 128, 8): 5.9,
    (1024, 1024, 1024, 64): 204,
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    program = tmp_path_factory.mktemp("config") / "config"
    cxx = os.environ.get("CXX", "g++").split()
    subprocess.run([*cxx, "-std=c++17", f"-I{CSRC}", HERE / "wgmma_config.cpp", "-o", program], check=True, timeout=60)

    def run(problems):
        text = "\n".join(" ".join(map(str, problem)) for problem in problems)
        done = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
        return [[float(value) for value in line.split()] for line in done.stdout.splitlines()]

    return run


def test_every_plan_is_legal(plan):
    sizes = (1, 2, 64, 129, 256, 257, 1000, 4096, 70000)
    problems = [(*shape, 1, 0) for shape in itertools.product(sizes, repeat=3)]
    for (_, n, k, *_), (_, _, splits, sums_chunks, _, time, whole) in zip(problems, plan(problems), strict=True):
        is_chunked = n <= 256 and k >= 4096
        assert sums_chunks or not is_chunked
        assert is_chunked or not splits
        assert 0 < time and 0 < whole
    for row in plan([(m, n, k, 1, 1) for m, n, k, *_ in problems if n > 256]):
        assert row[4]


def test_time_is_near_what_was_measured(plan):
    for problem, (*_, whole) in zip(MEASURED, plan([(*problem, 0) for problem in MEASURED]), strict=True):
        assert abs(whole / MEASURED[problem] - 1) < 0.2, (problem, whole)

"""What the plans of csrc/kernels/cuda/wgmma choose and expect, against measurements on an H200."""

import itertools
import os
import subprocess
from pathlib import Path

import pytest
from summation import count_chunks, length_of_chunks

HERE = Path(__file__).parent
CSRC = HERE.parents[3] / "csrc"
LONG_K = (65535, 65537, 98305, 1 << 17, 151936, 330000, 1 << 20)  # about the lengths from which chunks have others

# m, n, k, batch: microseconds, cold second-level cache, A k-major, B k-major
MEASURED = {
    (512, 512, 512, 1): 6.7,
    (1024, 1024, 1024, 1): 9.7,
    (2048, 2048, 2048, 1): 27.6,
    (4096, 4096, 4096, 1): 178,
    (8192, 8192, 8192, 1): 1490,
    (1000, 1000, 1000, 1): 12.9,
    (128, 4096, 4096, 1): 16.1,
    (16, 4096, 4096, 1): 15.9,
    (512, 11008, 4096, 1): 64.3,
    (8, 4096, 14336, 1): 36.4,
    (256, 4096, 4096, 1): 18.8,
    (66, 4096, 4096, 1): 17.2,
    (197, 1024, 4096, 1): 13.2,
    (128, 768, 3072, 1): 11.1,
    (2048, 3072, 768, 1): 20.0,
    (8192, 64, 8192, 1): 41.3,
    (256, 256, 16384, 1): 16.6,
    (256, 256, 4096, 1): 10.3,
    (512, 128, 4096, 1): 10.4,
    (256, 256, 8192, 1): 11.8,
    (64, 64, 8192, 1): 9.3,
    (128, 128, 128, 8): 5.9,
    (1024, 1024, 1024, 64): 204,
}


# The same in tf32, with the layout, where it is not the chunks that take the time.
MEASURED_TF32 = {
    (512, 512, 512, 1, "NT"): 8.8,
    (512, 512, 512, 1, "NN"): 9.2,
    (512, 512, 512, 1, "TN"): 10.3,
    (1024, 1024, 1024, 1, "NT"): 13.4,
    (1024, 1024, 1024, 1, "NN"): 14.6,
    (1024, 1024, 1024, 1, "TN"): 18.0,
    (2048, 2048, 2048, 1, "NT"): 48.4,
    (2048, 2048, 2048, 1, "NN"): 48.1,
    (2048, 2048, 2048, 1, "TN"): 58.2,
    (4096, 4096, 4096, 1, "NT"): 340,
    (4096, 4096, 4096, 1, "NN"): 355,
    (4096, 4096, 4096, 1, "TN"): 393,
    (1024, 1024, 1024, 1, "TT"): 15.5,
    (2048, 2048, 2048, 1, "TT"): 50.4,
    (4096, 4096, 4096, 1, "TT"): 336,
    (4095, 4095, 4095, 1, "NN"): 441,
    (8192, 8192, 8192, 1, "NT"): 2803,
    (2048, 4096, 4096, 1, "NT"): 171,
    (16, 4096, 4096, 1, "NT"): 29.1,
    (3072, 512, 4096, 1, "TN"): 74.3,
    (512, 512, 512, 16, "NN"): 22.3,
    (1024, 1024, 1024, 8, "NT"): 53.1,
}


def build(source, directory):
    program = directory / "config"
    cxx = os.environ.get("CXX", "g++").split()
    subprocess.run([*cxx, "-std=c++17", f"-I{CSRC}", HERE / source, "-o", program], check=True, timeout=60)

    def run(problems):
        text = "\n".join(" ".join(map(str, problem)) for problem in problems)
        done = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
        return [[float(value) for value in line.split()] for line in done.stdout.splitlines()]

    return run


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return build("wgmma_plan.cpp", tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="module")
def plan_tf32(tmp_path_factory):
    return build("wgmma_tf32_plan.cpp", tmp_path_factory.mktemp("config"))


def test_every_plan_is_legal(plan):
    sizes = (1, 2, 64, 129, 256, 257, 1000, 2048, 4096, 70000)
    problems = [(*shape, 1, 0) for shape in itertools.product(sizes, repeat=3)]
    problems += [(*shape, 1, 0) for shape in itertools.product((64, 4096), (256, 257, 2048, 2049), LONG_K)]
    for problem, row in zip(problems, plan(problems), strict=True):
        m, n, k, *_ = problem
        block_m, block_n, splits, sums_chunks, _, shares, log_m, log_n, is_exchanged, chunk_k, time, whole = row
        assert chunk_k == length_of_chunks(n, k), problem
        num_chunks = -(-k // chunk_k)
        rows, cols = (n, m) if is_exchanged else (m, n)
        assert sums_chunks or splits or num_chunks == 1, problem
        assert num_chunks > 1 or not (splits or shares), problem
        assert not splits or 4 * num_chunks * m * n <= 256 << 20, problem
        assert not shares or (not splits and num_chunks <= 8), problem
        assert not is_exchanged or (n % 8 == 0 and block_n >= 64 and not shares), problem
        assert not log_m or (block_m * 2 ** (log_m - 1) < rows and k % 32 and not shares), problem
        assert not log_n or (block_n * 2 ** (log_n - 1) < cols and k % 32 and not shares), problem
        assert log_m <= 2 and log_n <= 2 and log_m + log_n <= 3
        assert 0 < time and 0 < whole
    # Clusters of two, four and eight, of small tiles and of large ones, with and without exchanged roles.
    sides = range(200, 3000, 200)
    unaligned = [(m, n, k, 1, 0) for m, n, k in itertools.product(sides, sides, (552, 1208, 8008))]
    rows = plan(unaligned)
    chosen = {(block_m, log_m + log_n) for block_m, _, _, _, _, _, log_m, log_n, *_ in rows}
    assert chosen >= {(64, 1), (64, 2), (64, 3), (128, 1), (128, 2), (128, 3), (192, 1), (192, 2)}, chosen
    assert {row[8] for row in rows} == {0, 1}
    # Kernels that sum rows: those of small tiles do not work in clusters.
    for block_m, _, _, _, sums_rows, shares, log_m, log_n, *_ in plan(
        [(m, n, k, 1, 1) for m, n, k, *_ in problems + unaligned]
    ):
        assert sums_rows and not shares and not log_n and (block_m >= 128 or not log_m)
    # A C in fp32: a few tiles, all of which are of use.
    wide = set()
    for (m, n, k, *_), (block_m, block_n, splits, sums_chunks, _, shares, _, _, is_exchanged, _, time, _) in zip(
        problems + unaligned, plan([(m, n, k, 1, 2) for m, n, k, *_ in problems + unaligned]), strict=True
    ):
        assert not is_exchanged and 0 < time, (m, n, k)
        assert count_chunks(n, k) == 1 or splits or shares or sums_chunks, (m, n, k)
        wide.add((block_m, block_n))
    assert wide == {(128, 256), (128, 192), (128, 128), (64, 128), (64, 64), (64, 32)}, wide


def test_three_consumers_fill_a_wave_that_two_do_not(plan):
    # 33 x 4 tiles of 192 x 192 on 132 multiprocessors; fewer rows leave some idle, more take a second wave.
    problems = [(m, 768, 768, 1, 0) for m in (6304, 4096, 6500)]
    full, less, more = ([int(value) for value in row[:2]] for row in plan(problems))
    assert full == [192, 192] and less != full and more != full


def test_time_is_near_what_was_measured(plan):
    for problem, (*_, whole) in zip(MEASURED, plan([(*problem, 0) for problem in MEASURED]), strict=True):
        assert abs(whole / MEASURED[problem] - 1) < 0.2, (problem, whole)


def test_every_tf32_plan_is_legal(plan_tf32):
    sizes = (1, 2, 64, 129, 256, 257, 1000, 2048, 70000)
    layouts = ("NT", "NN", "TN", "TT")
    problems = [(*shape, 1, layout) for *shape, layout in itertools.product(sizes, sizes, sizes, layouts)]
    problems += [(*shape, 1, "NT") for shape in itertools.product((64, 4096), (256, 257, 2048, 2049), LONG_K)]
    for problem, row in zip(problems, plan_tf32(problems), strict=True):
        m, n, k, _, layout = problem
        path, copies_a, copies_b, _, _, splits, serves_path, sums_chunks, chunk_k, time = row
        assert chunk_k == length_of_chunks(n, k, is_tf32=True), problem
        num_chunks = -(-k // chunk_k)
        assert serves_path and time > 0, problem
        assert sums_chunks or num_chunks == 1, problem
        assert num_chunks > 1 or not splits, problem
        assert not splits or 4 * num_chunks * m * n <= 256 << 20, problem
        # An operand that no row of which begins at 16 bytes is copied.
        if (m if layout[0] == "T" else k) % 4 and min(m, k) > 1:
            assert copies_a, problem
        if (k if layout[1] == "T" else n) % 4 and min(n, k) > 1:
            assert copies_b, problem
        if path == 2 and min(m, n, k) > 1:
            assert layout == "TN" and not copies_a and not copies_b, problem


def test_tf32_time_is_near_what_was_measured(plan_tf32):
    for problem, (*_, time) in zip(MEASURED_TF32, plan_tf32(list(MEASURED_TF32)), strict=True):
        assert abs(time / MEASURED_TF32[problem] - 1) < 0.2, (problem, time)

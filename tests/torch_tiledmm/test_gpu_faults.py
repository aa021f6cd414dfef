"""What fails on a GPU fails with the reason and leaks nothing, and the next call is right; threads, streams, the exit.

Skipped without a GPU. The same on the host executor, for every allocation and launch: tests/csrc/kernels/gpu.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import torch

import torch_tiledmm

if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

ROOT = Path(__file__).parents[2]
OPS = torch.ops.tiledmm
IS_ROCM = torch.version.hip is not None
IS_HOPPER = not IS_ROCM and torch.cuda.get_device_capability() == (9, 0)
NUM_THREADS = 8


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code, *arguments]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)])}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)


def rand(*shape, dtype=torch.float32):
    return (torch.rand(shape, dtype=torch.float32, device="cuda") * 2 - 1).to(dtype)


def operands(dtype, m, k, n, step):
    """Each `step`-th column of larger matrices: from 2 on, no kernel that copies 16 bytes at a time can take them."""
    return rand(m, k * step, dtype=dtype)[:, ::step], rand(k, n * step, dtype=dtype)[:, ::step]


def problems():
    """algorithm, dtype, m, k, n, step: calls that need a workspace, one or several allocations each."""
    bf16, fp32, fp64 = torch.bfloat16, torch.float32, torch.float64
    found = [("mma", bf16, 4096, 256, 4096, 1), ("mma_cached", fp64, 2048, 256, 2048, 1)]
    if not IS_ROCM:
        found += [
            ("mma_async", bf16, 4096, 4096, 4095, 2),  # both operands repacked
            ("mma_async", fp64, 64, 65536, 128, 1),  # chunks of k
            ("simt_pipelined", fp32, 64, 65536, 128, 1),
            ("skinny", bf16, 33, 65536, 250, 1),
            ("skinny", fp64, 8, 65536, 250, 1),
        ]
    if IS_HOPPER:
        found += [("wgmma", bf16, 4096, 4096, 4095, 2), ("wgmma", bf16, 64, 65536, 200, 1)]
    return found


@pytest.fixture
def no_more_memory():
    """Calls what it is given while torch's allocator may ask the device for nothing more, and has no large rests."""
    total = torch.cuda.get_device_properties(0).total_memory

    def call(function):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
        rests, num_bytes = [], 1 << 30
        while num_bytes >= 1 << 20:
            try:
                rests.append(torch.empty(num_bytes, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                num_bytes //= 2
        try:
            return function()
        finally:
            del rests
            torch.cuda.set_per_process_memory_fraction(1.0)

    return call


# Those whose workspace fits into no rest of a block that torch holds already.
@pytest.mark.parametrize(
    "algorithm", ["mma", *(["mma_async"] if not IS_ROCM else []), *(["wgmma"] if IS_HOPPER else [])]
)
def test_torch_has_no_memory_for_a_workspace(algorithm, no_more_memory):
    _, dtype, m, k, n, step = next(problem for problem in problems() if problem[0] == algorithm)
    a, b = operands(dtype, m, k, n, step)
    out = torch.empty(m, n, dtype=dtype, device="cuda")
    OPS.matmul_out(a, b, out, algorithm=algorithm)
    expected = out.clone()
    before = torch.cuda.memory_allocated()

    def fail():
        with pytest.raises(torch.OutOfMemoryError, match=f"no memory for the workspace of algorithm '{algorithm}"):
            OPS.matmul_out(a, b, out, algorithm=algorithm)

    no_more_memory(fail)
    assert torch.cuda.memory_allocated() == before
    OPS.matmul_out(a, b, out.fill_(torch.nan), algorithm=algorithm)
    assert torch.equal(out, expected)
    assert torch.cuda.memory_allocated() == before


def test_torch_has_no_memory_for_the_result(no_more_memory):
    a, b = rand(8192, 16), rand(16, 8192)
    expected = torch_tiledmm.matmul(a, b)
    before = torch.cuda.memory_allocated()

    def fail():
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory|HIP out of memory"):
            torch_tiledmm.matmul(a, b)

    no_more_memory(fail)
    assert torch.cuda.memory_allocated() == before
    assert torch.equal(torch_tiledmm.matmul(a, b), expected)


# An allocator for torch that refuses one allocation and counts all. The runtime is the one that torch has loaded.
ALLOCATOR = """
#include <dlfcn.h>
#include <stddef.h>

extern "C" {
long failing = -1, num_allocations = 0, num_live = 0;
static int (*allocate_memory)(void**, size_t);
static int (*free_memory)(void*);

int connect_runtime(const char* path) {
  void* runtime = dlopen(path, RTLD_NOW);
  if (!runtime) return 0;
  *(void**)&allocate_memory = dlsym(runtime, "cudaMalloc");
  *(void**)&free_memory = dlsym(runtime, "cudaFree");
  return allocate_memory && free_memory;
}
void* allocate(size_t size, int, void*) {
  void* memory = nullptr;
  if (num_allocations++ == failing || size == 0 || allocate_memory(&memory, size) != 0) return nullptr;
  ++num_live;
  return memory;
}
void release(void* memory, size_t, int, void*) {
  if (!memory) return;
  --num_live;
  free_memory(memory);  // waits for the kernels that use it
}
}
"""
USE_ALLOCATOR = """
import ctypes, sys, torch

path = sys.argv[1]
library = ctypes.CDLL(path)
with open("/proc/self/maps") as file:
    runtime = next(line.split()[-1] for line in file if "libcudart.so" in line)
assert library.connect_runtime(runtime.encode()) == 1
torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(path, "allocate", "release"))

from test_gpu_faults import OPS, operands, problems, rand

failing, num_allocations, num_live = (
    ctypes.c_long.in_dll(library, name) for name in ("failing", "num_allocations", "num_live")
)
"""
EACH_ALLOCATION_FAILS = """
for algorithm, dtype, m, k, n, step in problems():
    a, b = operands(dtype, m, k, n, step)
    out = torch.empty(m, n, dtype=dtype, device="cuda")
    first, live = num_allocations.value, num_live.value
    OPS.matmul_out(a, b, out, algorithm=algorithm)
    count = num_allocations.value - first
    assert num_live.value == live, (algorithm, "leaks")
    expected = out.clone()
    for idx in range(count):
        live = num_live.value
        failing.value = num_allocations.value + idx
        try:
            OPS.matmul_out(a, b, out, algorithm=algorithm)
            raise AssertionError(f"{algorithm}: allocation {idx} of {count} failed, and nothing was said")
        except torch.OutOfMemoryError as error:
            assert f"no memory for the workspace of algorithm '{algorithm}" in str(error), error
        failing.value = -1
        assert num_live.value == live, (algorithm, idx, "leaks behind a failure")
        OPS.matmul_out(a, b, out.fill_(float("nan")), algorithm=algorithm)
        torch.cuda.synchronize()
        assert num_live.value == live, (algorithm, idx, "leaks behind the call after a failure")
        assert torch.equal(out, expected), (algorithm, idx)
    print(algorithm, count)
"""


@pytest.fixture
def allocator(tmp_path):
    source, library = tmp_path / "allocator.cpp", tmp_path / "allocator.so"
    source.write_text(ALLOCATOR)
    cxx = os.environ.get("CXX", "g++").split()
    subprocess.run([*cxx, "-shared", "-fPIC", "-O1", source, "-o", library, "-ldl"], check=True, timeout=60)
    return str(library)


@pytest.mark.skipif(IS_ROCM, reason="asks CUDA's runtime for memory")
def test_each_allocation_fails_once(allocator):
    done = run_python(USE_ALLOCATOR + EACH_ALLOCATION_FAILS, allocator)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = [int(line.split()[1]) for line in done.stdout.splitlines()]
    assert len(counts) == len(problems()) and counts[0] == counts[1] == 1, done.stdout
    assert max(counts) >= 2 or not IS_HOPPER, done.stdout


# The first two allocations are torch's own, for the two gradients.
FUSED_GRADIENT_FAILS = """
grad, input = rand(65536, 31, dtype=torch.bfloat16), rand(65536, 33, dtype=torch.bfloat16)
first = num_allocations.value
expected = OPS.linear_weight_grads(grad, input)
count = num_allocations.value - first
for idx in range(2, count):
    live = num_live.value
    failing.value = num_allocations.value + idx
    try:
        OPS.linear_weight_grads(grad, input)
        raise AssertionError(f"allocation {idx} of {count} failed, and nothing was said")
    except torch.OutOfMemoryError as error:
        assert "no memory for the workspace of algorithm 'wgmma" in str(error), error
    failing.value = -1
    assert num_live.value == live, (idx, "leaks behind a failure")
    assert all(map(torch.equal, OPS.linear_weight_grads(grad, input), expected)), idx
print(count)
"""


@pytest.mark.skipif(not IS_HOPPER, reason="no kernel computes both gradients in one pass")
def test_a_failure_of_both_gradients_in_one_pass_is_said(allocator):
    """Rows of an odd number of elements are repacked, so that the one pass needs a workspace."""
    done = run_python(USE_ALLOCATOR + FUSED_GRADIENT_FAILS, allocator)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) > 2, "there was no workspace that could fail"


# Work for a stream whose capture is broken is refused, until the capture ends.
EACH_ALGORITHM_IS_REFUSED = """
import torch
from test_gpu_faults import OPS, operands, problems

# All operands first: behind a broken capture torch draws no random numbers.
calls = [(algorithm, *operands(*rest), torch.empty(rest[1], rest[3], dtype=rest[0], device="cuda"))
         for algorithm, *rest in problems()]
for algorithm, a, b, out in calls:
    OPS.matmul_out(a, b, out, algorithm=algorithm)
    expected = out.clone()
    torch.cuda.synchronize()
    stream, graph, message = torch.cuda.Stream(), torch.cuda.CUDAGraph(), "no error"
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            stream.synchronize()  # breaks it
        except RuntimeError:
            pass
        try:
            OPS.matmul_out(a, b, out, algorithm=algorithm)
        except RuntimeError as error:
            message = f"{type(error).__name__}: {error}".splitlines()[0]
        try:
            graph.capture_end()
        except RuntimeError:
            pass
    torch.cuda.synchronize()
    assert float(torch.ones(3, device="cuda").sum()) == 3  # torch is told of no error that is not its own
    OPS.matmul_out(a, b, out.fill_(float("nan")), algorithm=algorithm)
    assert torch.equal(out, expected), algorithm
    print(f"{algorithm} {message}")
"""


@pytest.mark.skipif(IS_ROCM, reason="captures are CUDA's")
def test_a_launch_that_is_refused_says_why_and_the_next_call_is_right():
    done = run_python(EACH_ALGORITHM_IS_REFUSED)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(problems())
    for line in lines:
        assert "Error: " in line and "captur" in line, line
        assert "NotImplementedError" not in line, line


POISONED_CONTEXT = """
import os, sys, torch, torch_tiledmm

a, out = torch.rand(64, 64, device="cuda"), torch.empty(64, 64, device="cuda")
torch.ops.tiledmm.matmul_out(a, a, out)
torch.cuda.synchronize()
torch.zeros(1, device="cuda")[torch.tensor([5], device="cuda")]  # asserts on the device
try:
    torch.cuda.synchronize()
except RuntimeError:
    pass
try:
    torch.ops.tiledmm.matmul_out(a, a, out)
    torch.cuda.synchronize()
    print("no error")
except RuntimeError as error:
    print(f"{type(error).__name__}: {error}".splitlines()[0])
sys.stdout.flush()
os._exit(0)  # torch's own clean-up is not what is tested
"""


def test_a_context_that_is_lost_is_an_error_with_the_reason():
    done = run_python(POISONED_CONTEXT)
    assert done.returncode == 0, done.stderr
    assert "Error: " in done.stdout and "NotImplementedError" not in done.stdout, done.stdout
    assert "assert" in done.stdout or IS_ROCM, done.stdout


def test_threads_streams_and_devices_change_no_bit():
    """Eight threads at once, on every device a stream of its own each, products and gradients."""

    def work(thread, make_stream):
        results = []
        for device in range(torch.cuda.device_count()):
            generator = torch.Generator().manual_seed(thread)
            with torch.cuda.device(device), torch.cuda.stream(make_stream(device)):
                for i, dtype in enumerate((torch.bfloat16, torch.float32, torch.float64)):
                    m, k, n = 100 + 31 * thread, 500 * (i + 1) + 8 * thread, 256 + thread % 3

                    def rand(*shape, dtype=dtype, generator=generator):
                        values = torch.rand(shape, generator=generator) - 0.5
                        return values.to("cuda", dtype).requires_grad_()

                    a, b, weight, bias = rand(m, k), rand(k, n), rand(n, k), rand(n)
                    outs = torch_tiledmm.matmul(a, b), torch_tiledmm.linear(a, weight, bias, activation="relu")
                    grads = torch.autograd.grad(sum(out.square().sum() for out in outs), (a, b, weight, bias))
                    results += [tensor.detach().cpu() for tensor in (*outs, *grads)]
        return results

    barrier = Barrier(NUM_THREADS)

    def start(thread):
        barrier.wait(timeout=60)
        return [work(thread, lambda device: torch.cuda.Stream(device)) for _ in range(3)]

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        at_once = list(pool.map(start, range(NUM_THREADS)))
    for thread, rounds in enumerate(at_once):
        expected = work(thread, torch.cuda.default_stream)
        assert all(all(map(torch.equal, results, expected)) for results in rounds), thread


EXIT_WITH_WORK_QUEUED = """
import torch, torch_tiledmm

a = torch.rand(8192, 8192, device="cuda", dtype=torch.bfloat16)
for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
    with torch.cuda.stream(stream):
        for _ in range(200):
            out = torch_tiledmm.matmul(a, a)
print("leaving", stream.query(), flush=True)
"""


def test_exit_with_work_queued():
    done = run_python(EXIT_WITH_WORK_QUEUED)
    assert done.returncode == 0 and done.stdout == "leaving False\n", done.stdout + done.stderr

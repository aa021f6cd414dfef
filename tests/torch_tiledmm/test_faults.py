"""What fails on the CPU fails with the reason, and the next call is right; threads that call at once change no bit.

Without torch, each allocation and each launch fails once in tests/csrc/kernels; on a GPU, in test_gpu_faults.py.

Planted bugs that these tests caught: a failed allocation of a workspace that is no error, one current block of the host
executor for all threads, a workspace that is freed after each product.
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import torch

import torch_tiledmm
from torch_tiledmm import host_gpu
from torch_tiledmm.dispatch import DTYPES

ROOT = Path(__file__).parents[2]
NUM_THREADS = 8

# Workspaces are mapped, not taken from what was freed; then the address space is what it is, and no more. A thread
# keeps its last workspace, so that each product that is to fail has a thread of its own.
WITHOUT_MEMORY = """
import ctypes, resource
from concurrent.futures import ThreadPoolExecutor

assert ctypes.CDLL(None).mallopt(-3, 65536) == 1  # M_MMAP_THRESHOLD
assert ctypes.CDLL(None).mallopt(-8, 1) == 1  # M_ARENA_MAX: others than the first one have room in reserve

import torch, torch_tiledmm

torch.set_num_threads(2)
OPS = torch.ops.tiledmm

def limit_memory(is_limited):
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now if is_limited else most, most))

def message_without_memory(call):
    limit_memory(True)
    try:
        call()
        return "no error"
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        limit_memory(False)

for dtype in (torch.float32, torch.bfloat16):
    for m, k, n in ((500, 600, 700), (4, 300_000, 300)):
        a, b = (torch.rand(size).sub(0.5).to(dtype) for size in ((m, k), (k, n)))
        out = torch.full((m, n), torch.nan, dtype=dtype)
        OPS.matmul_out(a, b, out)
        expected = out.clone()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(torch.ones(1000, 1000).exp).result()  # its OpenMP threads begin
            fail = lambda: message_without_memory(lambda: OPS.matmul_out(a, b, out.fill_(torch.nan)))
            print(pool.submit(fail).result())
            assert out.isnan().all()
            pool.submit(OPS.matmul_out, a, b, out).result()
        assert torch.equal(out, expected)

a, b = torch.rand(1500, 4), torch.rand(4, 1500).requires_grad_()
expected = torch_tiledmm.matmul(a, b)
print(message_without_memory(lambda: torch_tiledmm.matmul(a, b)))  # the result's own memory
assert torch.equal(torch_tiledmm.matmul(a, b), expected)
"""


def output_of(code: str) -> str:
    """What a Python of its own prints."""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the address space as Linux does")
def test_without_memory_the_reason_is_said_and_the_next_call_is_right():
    output = output_of(WITHOUT_MEMORY)
    *of_workspaces, of_result = output.splitlines()
    assert len(of_workspaces) == 4
    reason = r"OutOfMemoryError: tiledmm: no memory for the workspace of algorithm '(register_tiled\.\w+|amx)'$"
    assert all(re.match(reason, line) for line in of_workspaces), output
    assert of_result.startswith("RuntimeError") and "allocate" in of_result


# What is allocated anew is new pages.
KEPT_WORKSPACE = """
import ctypes, resource

assert ctypes.CDLL(None).mallopt(-3, 65536) == 1  # M_MMAP_THRESHOLD

import torch, torch_tiledmm

torch.set_num_threads(2)
a, b, out = torch.rand(500, 600), torch.rand(600, 400), torch.empty(500, 400)

def page_faults_of_products():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch_tiledmm.matmul(a, b, out=out)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

page_faults_of_products()
print(page_faults_of_products())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts page faults of glibc's mappings")
def test_a_thread_keeps_its_workspace():
    assert int(output_of(KEPT_WORKSPACE)) < 40  # 400 and more where each product allocates


def on_threads_at_once(work):
    """[work(0), work(1), ...], each by a thread of its own; all of them begin at the same time."""
    barrier = Barrier(NUM_THREADS)

    def start(thread):
        barrier.wait(timeout=60)
        return work(thread)

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        return list(pool.map(start, range(NUM_THREADS)))


def products_and_gradients(thread: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(thread)
    results = []
    for i, dtype in enumerate(DTYPES.values()):
        m, k, n = 30 + 5 * thread, 700 * (i + 1) - thread, 64 + thread % 3

        def rand(*shape, dtype=dtype):
            return (torch.rand(shape, generator=generator) - 0.5).to(dtype).requires_grad_()

        a, b, weight, bias = rand(m, k), rand(k, n), rand(n, k), rand(n)
        outs = torch_tiledmm.matmul(a, b), torch_tiledmm.linear(a, weight, bias, activation="gelu")
        sum(out.square().sum() for out in outs).backward()
        results += [tensor.detach() for tensor in (*outs, a.grad, b.grad, weight.grad, bias.grad)]
    return results


def test_threads_change_no_bit():
    at_once = on_threads_at_once(products_and_gradients)
    for thread, results in enumerate(at_once):
        assert all(map(torch.equal, results, products_and_gradients(thread))), thread


def test_threads_change_no_bit_on_the_host_executor():
    algorithms = ("block_tiled", "register_tiled", "mma", "mma_output_cached", "simt_pipelined", "mma_async", "skinny")

    def work(thread):
        generator = torch.Generator().manual_seed(thread)
        results = []
        for algorithm in algorithms[thread % 3 :]:
            dtype = torch.float32 if algorithm.startswith(("simt", "block")) else torch.float16
            a, b = (torch.rand(size, generator=generator).to(dtype) for size in ((30 + thread, 50), (50, 41)))
            results.append(host_gpu.matmul(a, b, algorithm=algorithm, seed=thread)[0])
        return results

    at_once = on_threads_at_once(work)
    for thread, results in enumerate(at_once):
        assert all(map(torch.equal, results, work(thread))), thread

"""The operators across processes: fork before and after the first call, spawn, DataLoader workers, and the exit of the
interpreter while kernels run. Where torch itself hangs or aborts, no more is promised than torch.matmul does.

A planted bug that these tests caught: a lock of the library that stays locked in a child. What the library itself does
at exit: tests/csrc/kernels/cpu/threads.cpp.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import torch_tiledmm

ROOT = Path(__file__).parents[2]
NUM_ITEMS = 6


def product(seed: int) -> torch.Tensor:
    """A product and its gradients, as one vector, with shapes and values of the seed."""
    generator = torch.Generator().manual_seed(seed)
    m, k, n = 40 + 7 * seed, 300 + 100 * seed, 65 - seed
    a = torch.rand(m, k, generator=generator).requires_grad_()
    b = torch.rand(k, n, generator=generator).requires_grad_()
    out = torch_tiledmm.matmul(a, b)
    out.square().sum().backward()
    return torch.cat([tensor.detach().flatten() for tensor in (out, a.grad, b.grad)])


class Products(Dataset):
    def __len__(self):
        return NUM_ITEMS

    def __getitem__(self, index):
        return product(index).numpy()  # copied, not shared


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code, *arguments]
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    # Without GPUs: where torch sees one, it refuses backward in a child of a process that has run backward.
    env = os.environ | {"PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)


FORK = """
import os, signal, sys, torch
from test_processes import product

torch.set_num_threads(2)

def calls_in_child(compute):
    child = os.fork()
    if child == 0:
        signal.alarm(8)  # ends a child that hangs
        try:
            compute()
            os._exit(0)
        finally:
            os._exit(1)
    return child

def result_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def compute_the_same(num_threads):
    torch.set_num_threads(num_threads)
    for seed, expected in enumerate(results):
        assert torch.equal(product(seed), expected)

def bytes_of_products():
    return b"".join(product(seed).numpy().tobytes() for seed in range(3))

def compute_and_hand_over(fd):
    with os.fdopen(fd, "wb") as pipe:
        pipe.write(bytes_of_products())

read_end, write_end = os.pipe()
child = calls_in_child(lambda: compute_and_hand_over(write_end))  # imported, never called
os.close(write_end)
of_child = os.fdopen(read_end, "rb").read()
print("after import", result_of(child))
results = [product(seed) for seed in range(3)]
assert of_child == bytes_of_products()
print("after a call, one thread", result_of(calls_in_child(lambda: compute_the_same(1))))
a, b = torch.rand(700, 700), torch.rand(700, 700)
torch.matmul(a, b), product(0)  # both have used all threads
children = calls_in_child(lambda: torch.matmul(a, b)), calls_in_child(lambda: compute_the_same(2))
print("after a call, all threads", *map(result_of, children))
"""


def test_fork():
    done = run_python(FORK)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "after import 0" and lines[1] == "after a call, one thread 0", done.stdout + done.stderr
    theirs, ours = map(int, lines[2].split()[-2:])
    assert ours == 0 or theirs == ours == -signal.SIGALRM, "torch.matmul's child ends, this one does not"


def put_product(seed: int, results) -> None:
    results.put(product(seed).numpy())


def test_spawn():
    context = torch.multiprocessing.get_context("spawn")
    results = context.Queue()
    child = context.Process(target=put_product, args=(3, results))
    child.start()
    out = torch.from_numpy(results.get(timeout=60))
    child.join(60)
    assert child.exitcode == 0
    assert torch.equal(out, product(3))


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_dataloader_workers(how):
    if how == "fork" and torch.cuda.is_available():
        pytest.skip("torch refuses backward in a child of a process that ran backward where there is a GPU")
    loader = DataLoader(Products(), batch_size=None, num_workers=2, multiprocessing_context=how, timeout=60)
    items = list(loader)
    assert len(items) == NUM_ITEMS
    for index, item in enumerate(items):
        assert torch.equal(torch.as_tensor(item), product(index))


# A thread of Python's: older than 3.14, it ends threads that come back from C++ in a way that C++ aborts at.
EXIT_WITH_PYTHON_THREADS = """
import sys, threading, time, torch, torch_tiledmm

def compute(matmul=torch_tiledmm.matmul if sys.argv[1] == "ours" else torch.matmul):
    while True:
        matmul(a, a)

a = torch.rand(300, 300)
threading.Thread(target=compute, daemon=True).start()
time.sleep(0.3)
print("leaving", flush=True)
"""


def test_exit_while_a_daemon_thread_computes():
    ours, theirs = (run_python(EXIT_WITH_PYTHON_THREADS, whose) for whose in ("ours", "theirs"))
    assert ours.stdout == theirs.stdout == "leaving\n", ours.stderr + theirs.stderr
    assert ours.returncode in (0, theirs.returncode), ours.stderr

"""The operators across processes: fork before and after the first call, spawn, DataLoader workers, and the exit of the
interpreter while kernels run. After a fork, products run on the thread that calls, with the bits of all threads. At
exit, no more is promised than torch.matmul does.

Planted bugs that these tests caught: a lock of the library that stays locked in a child, the flag of a fork that is
never set, or heeded by the plan alone. What the library itself does at exit:
tests/csrc/kernels/cpu/threads.cpp.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import torch_tiledmm
from torch_tiledmm.testing.reference import ACTIVATIONS

OPS = torch.ops.tiledmm
ROOT = Path(__file__).parents[2]
NUM_ITEMS = 6


def product(seed: int) -> np.ndarray:
    """A product and its gradients, as one vector, with shapes and values of the seed. numpy joins them: torch would use
    threads for that, which hangs in a child of fork.
    """
    generator = torch.Generator().manual_seed(seed)
    m, k, n = 40 + 7 * seed, 300 + 100 * seed, 65 - seed
    a = torch.rand(m, k, generator=generator).requires_grad_()
    b = torch.rand(k, n, generator=generator).requires_grad_()
    out = torch_tiledmm.matmul(a, b)
    out.square().sum().backward()
    return np.concatenate([tensor.detach().numpy().ravel() for tensor in (out, a.grad, b.grad)])


def backward_that_copies() -> bytes:
    """Our part of calls that have torch copy what is large enough for its threads: gradients that are expanded or
    transposed, activations of views, sums, second derivatives, autocast. torch's own part is small, or views.
    """
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.rand(size, 300, generator=generator).requires_grad_() for size in (300, 400))
    grads = []
    for activation in ACTIVATIONS:
        out = torch_tiledmm.linear(x, weight, weight.detach()[:, 0], activation=activation)
        one, many = torch.ones((), requires_grad=True), torch.rand(400, 300, generator=generator).t()
        for grad in (one.expand(300, 400), many):
            grads += torch.autograd.grad(out, (x, weight), grad, create_graph=True)
    with torch.no_grad():
        grads.append(OPS.activate(x.t(), "gelu"))
        grads.append(OPS.ordered_sum(x.t().expand(3, 300, 300), [0, 2]))
        with torch.autocast("cpu", torch.float16):  # which converts the operands
            grads.append(torch_tiledmm.linear(x, weight))
            grads.append(torch_tiledmm.matmul(x, weight.t()))
    grads += torch.autograd.grad(grads[-8], x, x.detach())  # the input's gradient under silu, differentiated
    return hashlib.sha256(b"".join(grad.detach().numpy().tobytes() for grad in grads)).digest()


def bits_of_products() -> bytes:
    """A digest of products that all threads share: one row and many, by kernels that share them out in different ways,
    of matmul and of a layer, and their gradients. Of torch's own work, nothing here is so large that it takes threads.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer, row, rows = torch_tiledmm.TiledLinear(768, 768), torch.randn(1, 768), torch.randn(40, 768)
    tiled = torch_tiledmm.matmul(rows, layer.weight.detach(), algorithm="block_tiled")
    outs = [out.detach().numpy() for out in (layer(row), layer(rows), tiled)]
    digest = hashlib.sha256(b"".join(out.tobytes() for out in (*outs, *map(product, range(3)))))
    return digest.digest() + backward_that_copies()


class Products(Dataset):
    def __len__(self):
        return NUM_ITEMS

    def __getitem__(self, index):
        return product(index)


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code, *arguments]
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    # Without GPUs: where torch sees one, it refuses backward in a child of a process that has run backward.
    env = os.environ | {"PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)


FORK = """
import importlib, os, signal, threading, torch, torch_tiledmm
from test_processes import bits_of_products

def exit_code(compute):
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # ends a child that hangs
        try:
            compute()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def compute_the_same():
    assert bits_of_products() == expected

def compute_with_three_threads():
    torch.set_num_threads(3)
    compute_the_same()

def compute_in_a_thread():
    failures = []
    threading.excepthook = failures.append
    thread = threading.Thread(target=compute_the_same)
    thread.start()
    thread.join()
    assert not failures, failures

def compute_in_a_child():
    assert exit_code(compute_the_same) == 0

read_end, write_end = os.pipe()
print("imported, never called:", exit_code(lambda: os.write(write_end, bits_of_products())))
torch.set_num_threads(1)
expected = bits_of_products()
assert os.read(read_end, 64) == expected
print("called, one thread:", exit_code(compute_the_same))
torch.set_num_threads(2)
assert bits_of_products() == expected
large = torch.rand(700, 700)
torch.matmul(large, large)  # torch's own products have used all threads, too
for compute in (compute_the_same, compute_with_three_threads, compute_in_a_thread, compute_in_a_child):
    print("called, all threads:", compute.__name__, exit_code(compute))
importlib.reload(torch_tiledmm)
print("reloaded:", exit_code(compute_the_same))

def keep_computing():
    while not is_done:
        torch_tiledmm.matmul(large, large)

is_done = False
other = threading.Thread(target=keep_computing)
other.start()
for _ in range(5):
    print("while a product runs:", exit_code(compute_the_same))
is_done = True
other.join()
assert bits_of_products() == expected  # the parent has lost nothing
"""


def test_fork():
    done = run_python(FORK)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 12, done.stdout + done.stderr
    assert all(line.endswith(" 0") for line in lines), done.stdout + done.stderr


def take_all_threads(worker_idx: int) -> None:
    torch.set_num_threads(2)  # torch itself gives a worker one


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_dataloader_workers(how):
    if how == "fork" and torch.cuda.is_available():
        pytest.skip("torch refuses backward in a child of a process that ran backward where there is a GPU")
    torch.set_num_threads(2)
    expected = [product(index) for index in range(NUM_ITEMS)]
    loader = DataLoader(
        Products(),
        batch_size=None,
        num_workers=2,
        multiprocessing_context=how,
        timeout=60,
        worker_init_fn=take_all_threads,
    )
    items = list(loader)
    assert len(items) == NUM_ITEMS
    for item, own in zip(items, expected, strict=True):
        assert np.array_equal(item, own)


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

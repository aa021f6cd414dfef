"""The registry's orders of summation against the bits: kernels that are said to be of one order give the same ones.

`auto` compares the costs of such kernels alone, so this and test_dispatch.py's test of the order over m say that a
row's bits do not depend on which kernel is cheapest. GPU kernels run on the host executor.

Planted bugs that these tests caught: the portable kernel said to be of the order of AVX2's, chunks of 256 words
instead of 512, a zero multiplied beyond k, the two sums of a pair of chunks added in the other order.
"""

import itertools
from collections import defaultdict

import pytest
import torch

import torch_tiledmm
from torch_tiledmm import host_gpu, matmul
from torch_tiledmm.dispatch import DTYPES

SHAPES = [(1, 5, 7), (3, 64, 100), (33, 17, 700), (70, 40, 1100), (9, 20, 4200)]
GPU_SHAPES = [(1, 5, 7), (9, 17, 70), (2, 3, 4100)]  # the last one for orders with chunks of k


def by_order(m: int, n: int, k: int, dtype_name: str, device: str) -> dict[str, list[str]]:
    """The legal kernels of each order, of one kind of device."""
    kernels = defaultdict(list)
    for candidate in torch_tiledmm.explain(m, n, k, dtype_name, device=device).candidates:
        if candidate.legal:
            kernels[candidate.order].append(candidate.algorithm)
    return kernels


def operands(m: int, n: int, k: int, dtype_name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Values over a wide range, so that another order shows in most elements."""
    scale = torch.logspace(-2, 2, k)
    a, b = torch.randn(m, k) * scale, torch.randn(n, k) / scale.flip(0)
    return a.to(DTYPES[dtype_name]), b.to(DTYPES[dtype_name]).mT


def check_same_bits(results: dict[str, torch.Tensor], what: tuple) -> None:
    first, *others = results
    for other in others:
        assert torch.equal(results[first].isnan(), results[other].isnan())
        differs = results[first].view(torch.uint8) != results[other].view(torch.uint8)
        assert not differs.any(), f"{what}: {first} and {other} differ"


@pytest.mark.parametrize("dtype_name", DTYPES)
def test_on_the_cpu(dtype_name):
    for m, n, k in SHAPES:
        a, b = operands(m, n, k, dtype_name)
        for order, names in by_order(m, n, k, dtype_name, "cpu").items():
            check_same_bits({name: matmul(a, b, algorithm=name) for name in names}, (order, m, n, k))


def sum_in_chunks(a: torch.Tensor, b: torch.Tensor, length: int) -> torch.Tensor:
    """fp32: chunks of k, in each of them one fused multiply-add after the other. A product of two floats is exact in
    float64, and a sum that is rounded there before it is rounded to fp32 differs once in 2^29."""
    total = None
    for begin in range(0, a.shape[1], length):
        acc = torch.zeros(a.shape[0], b.shape[1])
        for p in range(begin, min(begin + length, a.shape[1])):
            acc = (acc.double() + a[:, p : p + 1].double() * b[p].double()).float()
        total = acc if total is None else total + acc
    return total


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "strided"])
@pytest.mark.parametrize("dtype_name", ["fp32", "fp16"])
def test_chunks_are_what_the_page_on_numerics_says(dtype_name, layout):
    """Every path: micro-tiles, few rows with either layout of B, short k, a C of few elements."""
    shapes = [(1, 70, 600), (3, 40, 1100), (7, 33, 513), (70, 45, 1030), (30, 70, 3), (1, 2, 9001), (5, 5, 512)]
    if layout == "NT":  # columns of B that begin in one set of the nearest cache: chunks in pairs
        shapes += [(1, 40, 2048), (2, 13, 3072)]
    for m, n, k in shapes:
        a, b = operands(m, n, k, dtype_name)
        tiny = torch.finfo(torch.float32).tiny
        if dtype_name == "fp32":  # products that underflow to -0: one more of +0 would make it +0
            a[0], b[:, 0] = -tiny, tiny
        a = {"TN": a.T.contiguous().T, "strided": a.repeat_interleave(2, 1)[:, ::2]}.get(layout, a.contiguous())
        b = b.contiguous() if layout in ("NN", "TN") else b
        expected = sum_in_chunks(a.float(), b.float(), 512).to(DTYPES[dtype_name])
        kernels = by_order(m, n, k, dtype_name, "cpu")
        for name in kernels["chunks"] + kernels["chunks_of_pairs"]:  # none on a CPU without multiply-add
            check_same_bits({"expected": expected, name: matmul(a, b, algorithm=name)}, (m, n, k, layout))


@pytest.mark.parametrize("warp_size", host_gpu.WARP_SIZES)
@pytest.mark.parametrize("dtype_name", DTYPES)
def test_on_gpus(dtype_name, warp_size):
    for m, n, k in GPU_SHAPES:
        a, b = operands(m, n, k, dtype_name)
        for order, names in by_order(m, n, k, dtype_name, "host:host").items():
            if k > 1000 and not order.endswith("chunks"):
                continue
            results = {}
            for name in names:
                try:
                    results[name] = host_gpu.matmul(a, b, algorithm=name, warp_size=warp_size)[0]
                except NotImplementedError:
                    assert warp_size == 64  # kernels for NVIDIA's chips are not compiled for it
            if results:
                check_same_bits(results, (order, m, n, k))


@pytest.mark.parametrize("dtype_name", DTYPES)
def test_a_row_alone_is_as_in_its_batch_where_chunks_come_in_pairs(dtype_name):
    """By each variant that this machine runs; columns along k, which begin in one set of the nearest cache or not."""
    variants = [entry.name for entry in torch_tiledmm.algorithms("cpu") if entry.name.startswith("register_tiled.")]
    for n, k in itertools.product((13, 40), (1024 * chunks + more for chunks in range(2, 6) for more in (0, 1, 512))):
        a, b = operands(9, n, k, dtype_name)
        for name in variants:
            if name in itertools.chain(*by_order(9, n, k, dtype_name, "cpu").values()):
                batch = matmul(a, b, algorithm=name)
                rows = {m: matmul(a[:m], b, algorithm=name) for m in (1, 2, 3)}
                for m, some in rows.items():
                    check_same_bits({name: batch[:m], f"{m} rows": some}, (n, k))


def test_orders_differ_in_their_bits():
    """Else the tests above would say nothing."""
    a, b = operands(33, 17, 700, "fp32")
    cpu = [matmul(a, b, algorithm=names[0]) for names in by_order(33, 17, 700, "fp32", "cpu").values()]
    assert len(cpu) >= 2 and not torch.equal(cpu[0], cpu[-1])
    a, b = a[:17], b[:, :9]
    gpu = by_order(17, 9, 700, "fp32", "host:host")
    results = [host_gpu.matmul(a, b, algorithm=gpu[order][0])[0] for order in ("chain", "mma_chain")]
    assert not torch.equal(*results)

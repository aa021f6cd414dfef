"""Sums along a dimension: the GPU's kernel, run by the host executor, against float64, and its order.

Planted bugs that these tests caught: each barrier left out, one at a time; elements beyond k in a chain; a shift that
is not subtracted; sums of chunks that another row reads; a divisor that the last sums do not have; a running sum
without what is before its part; a root that is not taken.
"""

import ctypes
import itertools

import pytest
import torch
from torch import Tensor

from torch_tiledmm import host_gpu

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
TERMS = ("value", "square", "magnitude")


class ReduceProblem(ctypes.Structure):  # csrc/core/reduce.h
    _fields_ = [
        ("dtype", ctypes.c_int32),
        ("dtype_y", ctypes.c_int32),
        ("is_running", ctypes.c_bool),
        ("term", ctypes.c_int32),
        *[(name, ctypes.c_int64) for name in ("outer", "inner", "k")],
        ("x", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("stride_outer", "stride_inner", "stride_k")],
        ("shift", ctypes.c_void_p),
        ("divisor", ctypes.c_double),
        ("takes_root", ctypes.c_bool),
        ("y", ctypes.c_void_p),
    ]


def reduce(
    x: Tensor, *, term="value", shift=None, divisor=1.0, dtype=None, running=False, root=False, warp_size=32, seed=3
) -> Tensor:
    """Over the last dimension of (outer, inner, k), of any strides."""
    outer, inner, k = x.shape
    y = torch.full(x.shape if running else (outer, inner), torch.nan, dtype=dtype or x.dtype)
    problem = ReduceProblem(
        *(DTYPES.index(x.dtype), DTYPES.index(y.dtype), running, TERMS.index(term), outer, inner, k),
        *(x.data_ptr(), *x.stride(), None if shift is None else shift.data_ptr(), divisor, root, y.data_ptr()),
    )
    reason = ctypes.create_string_buffer(256)
    call = host_gpu._library(warp_size).tiledmm_host_reduce
    assert call(ctypes.byref(problem), ctypes.c_uint64(seed), reason, ctypes.c_size_t(256)) == 0, reason.value
    return y


def expect(y: Tensor, exact: Tensor, magnitude: Tensor, k: int) -> None:
    """A path has at most 8 + 2 + 5 additions in each of its levels of 1024."""
    levels = 1 + (k > 1024) + (k > 2**20)
    unit = torch.finfo(torch.float64 if y.dtype == torch.float64 else torch.float32).eps
    rounding = torch.finfo(y.dtype).eps
    limit = (16 * levels + 2) * unit * magnitude + rounding * exact.abs() + torch.finfo(y.dtype).tiny
    assert not y.isnan().any() and ((y.double() - exact).abs() <= limit).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("k", (1, 3, 30, 128, 1000, 1025, 5003, 9001))
def test_sums_of_rows_and_columns(k, dtype):
    """Rows that lie close and rows whose neighbours do; whole vectors and odd strides; every term."""
    memory = torch.randn(2 * 7 * (k + 3) + 1).to(dtype)
    for case, (term, shifted) in itertools.product(
        ("close", "odd", "columns"), (("value", False), ("square", True), ("magnitude", False))
    ):
        strides = {"close": (7 * k, k, 1), "odd": (7 * (k + 3), k + 3, 1), "columns": (7 * k, 1, 7)}[case]
        x = memory.as_strided((2, 7, k), strides, int(case == "odd"))
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        shift = torch.randn(2, 7, dtype=wide) if shifted else None
        y = reduce(x, term=term, shift=shift, divisor=3.0, dtype=wide if shifted else dtype, seed=k)
        terms = x.double() - (shift.double()[..., None] if shifted else 0)
        terms = terms**2 if term == "square" else terms.abs() if term == "magnitude" else terms
        expect(y, terms.sum(-1) / 3, 4 * terms.abs().sum(-1) / 3, k)


@pytest.mark.parametrize("warp_size", host_gpu.WARP_SIZES)
@pytest.mark.parametrize("k", (20, 40, 1500, 20_000, 35_000))
def test_a_row_s_bits_are_its_own(k, warp_size):
    """One row and many, each kernel, both orders in memory."""
    x = torch.randn(1, 70, k)
    whole = reduce(x, warp_size=warp_size)
    for rows in (1, 2, 9):
        assert torch.equal(reduce(x[:, :rows], warp_size=warp_size), whole[:, :rows])
    for columns in (x.mT.contiguous().mT, x.permute(1, 2, 0).contiguous().permute(2, 0, 1)):
        assert torch.equal(reduce(columns, warp_size=warp_size, seed=k), whole)
    alone = x[:, 1:2].mT.contiguous().mT
    assert torch.equal(reduce(alone, warp_size=warp_size), whole[:, 1:2])


def test_few_long_rows():
    """Chunks that many blocks add up: more than one block has, and in three levels."""
    x = torch.randn(1, 2, 1_050_000)
    y = reduce(x, divisor=2.0)
    expect(y, x.double().sum(-1) / 2, x.abs().double().sum(-1), x.shape[-1])


def test_a_root_is_taken_last():
    x = torch.randn(2, 3, 2000)
    exact = reduce(x, term="square", divisor=7.0).double().sqrt().float()  # torch's own root in fp32 is not exact
    assert torch.equal(reduce(x, term="square", divisor=7.0, root=True), exact)


def test_of_nothing():
    assert (reduce(torch.randn(2, 3, 0)) == 0).all()
    assert reduce(torch.randn(2, 3, 0), divisor=0.0).isnan().all()
    assert reduce(torch.randn(0, 3, 5)).shape == (0, 3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("k", (1, 5, 1024, 2100, 11_000))
def test_running_sums(k, dtype):
    x = torch.randn(3, k, 2).to(dtype).mT  # few long rows are shared out among blocks
    y = reduce(x, running=True, seed=k)
    exact = x.double().cumsum(-1)
    magnitude = x.double().abs().cumsum(-1)
    unit = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    limit = (14 + k / 1024) * unit * magnitude + torch.finfo(dtype).eps * exact.abs() + torch.finfo(dtype).tiny
    assert ((y.double() - exact).abs() <= limit).all()
    assert torch.equal(reduce(x[:1, 1:].contiguous(), running=True), y[:1, 1:])

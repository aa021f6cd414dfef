"""Sums along a dimension: the GPU's kernels, run by the host executor, and the CPU's, against float64, and their order.

Planted bugs that these tests caught: each barrier left out, one at a time; elements beyond k in a chain, or among the
differences from the mean; parts that another row reads; a root that is not taken; few chunks added up as many are; one
row's result for those beside it; a column's first chunk for all. Of the spread: what a mean's rounding does not taken
away, in its own part and in the next level; counts of the last part, of the next level's parts, of a column's lanes, of
lanes without elements; a column's lanes in other pairs. Of running sums: with the part itself for what is before it;
with the first part's for all of a block; one chain of all parts; a part that does not end; lanes that are left over;
another row's parts; another association. On a CPU: a row's last element left out; lanes beyond it among the differences
from the mean, or the last one not; chunks in another order; the first columns' means for all; elements in a neighbour's
chain; chains added in another order; a root or a divisor that is not taken; the last column left out.
"""

import ctypes
import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

import torch_tiledmm
from torch_tiledmm import host_gpu

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
TERMS = ("value", "square", "magnitude", "spread")


class ReduceProblem(ctypes.Structure):  # csrc/core/reduce.h
    _fields_ = [
        ("dtype", ctypes.c_int32),
        ("dtype_y", ctypes.c_int32),
        ("is_running", ctypes.c_bool),
        ("term", ctypes.c_int32),
        *[(name, ctypes.c_int64) for name in ("outer", "inner", "k")],
        ("x", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("stride_outer", "stride_inner", "stride_k", "segment", "stride_segment")],
        ("divisor", ctypes.c_double),
        ("takes_root", ctypes.c_bool),
        ("y", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("stride_y_outer", "stride_y_inner", "stride_y_k")],
        ("mean", ctypes.c_void_p),
    ]


def reduce(
    x: Tensor, *, term="value", mean=None, divisor=1.0, dtype=None, running=None, root=False, warp_size=32, seed=3
) -> Tensor:
    """Over the last dimension of (outer, inner, k), of any strides. Running sums lie as rows or as columns."""
    outer, inner, k = x.shape
    y = torch.full(x.shape if running else (outer, inner), torch.nan, dtype=dtype or x.dtype)
    if running == "columns":
        y = y.mT.contiguous().mT
    problem = ReduceProblem(
        *(DTYPES.index(x.dtype), DTYPES.index(y.dtype), bool(running), TERMS.index(term), outer, inner, k),
        *(x.data_ptr(), *x.stride(), k, 0, divisor, root, y.data_ptr(), *(y.stride() if running else (0, 0, 0))),
        None if mean is None else mean.data_ptr(),
    )
    reason = ctypes.create_string_buffer(256)
    call = host_gpu._library(warp_size).tiledmm_host_reduce
    assert call(ctypes.byref(problem), ctypes.c_uint64(seed), reason, ctypes.c_size_t(256)) == 0, reason.value
    return y


def spread(x: Tensor, *, divisor: float, **kwargs) -> tuple[Tensor, Tensor]:
    """The sum of squared differences from the mean over the divisor; the mean."""
    mean = torch.full(x.shape[:2], torch.nan, dtype=x.dtype)
    return reduce(x, term="spread", mean=mean, divisor=divisor, **kwargs), mean


def expect(y: Tensor, exact: Tensor, magnitude: Tensor, k: int) -> None:
    """A path has at most 8 + 2 + 5 additions in each of its levels of 1024."""
    levels = 1 + (k > 1024) + (k > 2**20)
    unit = torch.finfo(torch.float64 if y.dtype == torch.float64 else torch.float32).eps
    rounding = torch.finfo(y.dtype).eps
    limit = (16 * levels + 2) * unit * magnitude + rounding * exact.abs() + torch.finfo(y.dtype).tiny
    assert not y.isnan().any() and ((y.double() - exact).abs() <= limit).all()


def placed(case: str, k: int, dtype: torch.dtype, offset: float = 0) -> Tensor:
    """(2, 7, k): rows that lie close and rows whose neighbours do; whole vectors and odd strides."""
    memory = (torch.randn(2 * 7 * (k + 3) + 1) + offset).to(dtype)
    strides = {"close": (7 * k, k, 1), "odd": (7 * (k + 3), k + 3, 1), "columns": (7 * k, 1, 7)}[case]
    return memory.as_strided((2, 7, k), strides, int(case == "odd"))


def padded(x: Tensor, multiple: int) -> Tensor:
    return torch.cat([x, torch.zeros(*x.shape[:-1], -x.shape[-1] % multiple)], -1)


def chained(x: Tensor) -> Tensor:
    """Running sums of fp32 along the last dimension, one addition after the other."""
    return torch.from_numpy(np.add.accumulate(x.numpy(), axis=-1, dtype=np.float32))


CASES = ("close", "odd", "columns")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("k", (1, 3, 30, 128, 250, 500, 1000, 1025, 5003, 9001))
def test_sums_of_rows_and_columns(k, dtype):
    for case, term in itertools.product(CASES, ("value", "square", "magnitude")):
        x = placed(case, k, dtype)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        y = reduce(x, term=term, divisor=3.0, dtype=wide if term == "square" else dtype, seed=k)
        terms = x.double()
        terms = terms**2 if term == "square" else terms.abs() if term == "magnitude" else terms
        expect(y, terms.sum(-1) / 3, 4 * terms.abs().sum(-1) / 3, k)


def documented_sum(x: Tensor) -> Tensor:
    """Sums of fp32 in the order that reduce.cu documents."""

    def lane_sums(x: Tensor) -> Tensor:  # of (steps, lanes, 4)
        a, b, c, d = chained(x.movedim(-3, -1))[..., -1].unbind(-1)
        return (a + b) + (c + d)

    k = x.shape[-1]
    if k <= 32:
        return lane_sums(padded(x, 32).unflatten(-1, (8, 1, 4)))[..., 0]
    sums = lane_sums(padded(x, 1024).unflatten(-1, (-1, 8, 32, 4)))
    while sums.shape[-1] > 1:
        first, second = sums.chunk(2, -1)
        sums = first + second
    return documented_sum(sums[..., 0]) if k > 1024 else sums[..., 0, 0]


@pytest.mark.parametrize("k", (3, 30, 128, 250, 500, 1000, 5003, 40_000))
def test_sums_are_in_the_documented_order(k):
    x = torch.randn(2, 7, k)
    assert torch.equal(reduce(x), documented_sum(x))


@pytest.mark.parametrize("k", (33, 70, 127, 128))
def test_many_short_columns_are_in_the_documented_order(k):
    """More than 512 for each multiprocessor of the host executor, which has four: a thread has one of its own."""
    x = torch.randn(2, k, 1100).mT
    assert torch.equal(reduce(x), documented_sum(x))
    assert torch.equal(reduce(x, term="magnitude"), documented_sum(x.abs()))
    few = reduce(x[:, :70], term="square", root=True)
    assert torch.equal(reduce(x, term="square", root=True)[:, :70], few)


def expect_spread(y: Tensor, x: Tensor) -> None:
    """`y`: the sum of squared differences from the mean.

    A level (lanes, chunks, rows) adds up in at most 8 + 2 + 5 additions and divides, so that the means of all levels
    are off by at most `rest`, whatever x is. From such means there are `around` squares. The roundings of a difference,
    of the sums of differences and squares, and of what is taken away for the means' rest are less than 100 units of
    that in a level.
    """
    exact, k = x.double(), x.shape[-1]
    unit = torch.finfo(y.dtype).eps / 2
    levels = 1 + (k > 256) + (k > 1024) + (k > 2**20)
    squares = (exact - exact.mean(-1, keepdim=True)).square().sum(-1)
    rest = 16 * levels * unit * exact.abs().mean(-1)
    around = squares + k * rest**2
    assert not y.isnan().any() and ((y.double() - squares).abs() <= 100 * levels * unit * around).all()


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("k", (1, 3, 30, 128, 250, 500, 1025, 5003, 9001, 36_000))
def test_spread_of_rows_and_columns(k, dtype):
    """Values around 0 and far from it; the mean has the bits of the mean that is computed alone."""
    for case, offset in itertools.product(CASES, (0, 1e6)):
        x = placed(case, k, dtype, offset)
        y, mean = spread(x, divisor=1, seed=k)
        expect_spread(y, x)
        assert torch.equal(mean, reduce(x, divisor=k))


def test_spread_of_numbers_that_are_alike_or_none():
    for k in (1, 2, 40, 200, 600, 3000):
        alike = torch.randn(1, 70, 1).expand(-1, -1, k)
        y, _ = spread(alike, divisor=1)
        assert (y == 0).all()  # all differences are one number of few bits
        y, mean = spread(alike, divisor=0)
        assert (y.isnan() | y.isinf()).all() and not mean.isnan().any()
        for value in (torch.inf, torch.nan):
            x = torch.randn(1, 5, k)
            x[0, 1, k // 2] = value
            y, mean = spread(x, divisor=1)
            assert y.isnan().tolist() == [[False, True, False, False, False]]
            assert torch.equal(mean[0, 1].nan_to_num(7), torch.tensor(value).nan_to_num(7))
    y, mean = spread(torch.randn(2, 3, 0), divisor=0)
    assert y.isnan().all() and mean.isnan().all()


@pytest.mark.parametrize("warp_size", host_gpu.WARP_SIZES)
@pytest.mark.parametrize("term", ("value", "spread"))
@pytest.mark.parametrize("k", (20, 40, 250, 500, 600, 1500, 20_000, 35_000))
def test_a_row_s_bits_are_its_own(k, term, warp_size):
    """One row and many, each kernel, both orders in memory."""
    x = torch.randn(1, 70, k)

    def bits(x: Tensor, **kwargs) -> Tensor:
        return reduce(x, term=term, warp_size=warp_size, **kwargs)

    whole = bits(x)
    for rows in (1, 2, 9):
        assert torch.equal(bits(x[:, :rows]), whole[:, :rows])
    for columns in (x.mT.contiguous().mT, x.permute(1, 2, 0).contiguous().permute(2, 0, 1)):
        assert torch.equal(bits(columns, seed=k), whole)
    alone = x[:, 1:2].mT.contiguous().mT
    assert torch.equal(bits(alone), whole[:, 1:2])


def test_few_long_rows():
    """Chunks that many blocks add up: more than one block has, and in three levels."""
    x = torch.randn(1, 2, 1_050_000)
    y = reduce(x, divisor=2.0)
    expect(y, x.double().sum(-1) / 2, x.abs().double().sum(-1), x.shape[-1])
    x += 100
    y, mean = spread(x, divisor=1)
    expect_spread(y, x)
    assert torch.equal(mean, reduce(x, divisor=x.shape[-1]))


def test_a_root_is_taken_last():
    x = torch.randn(2, 3, 2000)
    exact = reduce(x, term="square", divisor=7.0).double().sqrt().float()  # torch's own root in fp32 is not exact
    assert torch.equal(reduce(x, term="square", divisor=7.0, root=True), exact)


def test_of_nothing():
    assert (reduce(torch.randn(2, 3, 0)) == 0).all()
    assert reduce(torch.randn(2, 3, 0), divisor=0.0).isnan().all()
    assert reduce(torch.randn(0, 3, 5)).shape == (0, 3)


def documented_running(x: Tensor) -> Tensor:
    """Running sums of fp32 in the order that running_sums.cu documents."""
    k = x.shape[-1]
    chains = chained(padded(x, 1024).unflatten(-1, (-1, 32, 32)))
    segments = chained(chains[..., -1])
    before_segment = torch.cat([torch.zeros(*segments.shape[:-1], 1), segments[..., :-1]], -1)
    before_part = torch.zeros(segments.shape[:-1])
    if k > 1024:
        before_part[..., 1:] = documented_running(segments[..., -1])[..., :-1]
    sums = (before_part[..., None] + before_segment)[..., None] + chains
    return sums.flatten(-3)[..., :k]


@pytest.mark.parametrize("warp_size", host_gpu.WARP_SIZES)
@pytest.mark.parametrize("k", (1, 5, 40, 77, 600, 1024, 2100, 11_000, 36_000))
def test_running_sums(k, warp_size):
    """One order, of rows and columns, whether a block has a row's parts or one, for each place of results."""
    x = torch.randn(3, 11, k)
    expected = documented_running(x)
    for rows, layout, seed in itertools.product((1, 3, 11), ("rows", "columns"), (3, 0)):
        own = x[:, :rows] if seed else x[:1, :rows].mT.contiguous().mT
        y = reduce(own, running=layout, warp_size=warp_size, seed=k + seed)
        assert torch.equal(y, expected[: len(own), :rows]), (rows, layout, seed)


@pytest.mark.parametrize("layout", ("rows", "columns"))
def test_many_running_sums(layout):
    """So many rows that each has 32 lanes, or a block several columns."""
    for k in (7, 33, 2100):
        x = torch.randn(1, 300, k)
        assert torch.equal(reduce(x, running=layout), documented_running(x))


@pytest.mark.parametrize("layout, k", (("rows", 1_050_000), ("columns", 1_050_000), ("rows", 1_040_000)))
def test_long_running_sums(layout, k):
    """More parts than a block goes through, and almost as many as a row's parts add up the sums of."""
    x = torch.randn(1, 8 if layout == "columns" else 1, k)
    assert torch.equal(reduce(x, running=layout), documented_running(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ("rows", "columns"))
@pytest.mark.parametrize("k", (1, 5, 1024, 2100, 11_000))
def test_running_sums_against_float64(k, layout, dtype):
    """A sum is a chain of 32 elements, one of 32 segments, and running sums of parts."""
    x = torch.randn(3, k, 9).to(dtype).mT
    y = reduce(x, running=layout, seed=k)
    exact, magnitude = x.double().cumsum(-1), x.double().abs().cumsum(-1)
    unit = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps / 2
    limit = 128 * unit * magnitude + torch.finfo(dtype).eps * exact.abs() + torch.finfo(dtype).tiny
    assert ((y.double() - exact).abs() <= limit).all()


@pytest.fixture
def on_a_cpu():
    with torch_tiledmm.enabled(cover=["reductions"]):
        yield


def documented_cpu_sum(terms: Tensor) -> Tensor:
    """Sums along the last dimension in the order that csrc/kernels/cpu/shared/reduce.h documents."""
    chunks = torch.cat([terms, terms.new_zeros(*terms.shape[:-1], -terms.shape[-1] % 1024)], -1).unflatten(
        -1, (-1, 32, 32)
    )
    sums = torch.zeros_like(chunks[..., 0, :])
    for step in chunks.unbind(-2):
        sums = sums + step
    while sums.shape[-1] > 1:
        first, second = sums.chunk(2, -1)
        sums = first + second
    return documented_cpu_sum(sums[..., 0]) if terms.shape[-1] > 1024 else sums[..., 0, 0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("k", (1, 3, 32, 33, 100, 250, 1024, 1025, 5003, 40_000))
def test_sums_on_a_cpu_are_in_the_documented_order(k, dtype, on_a_cpu):
    """Rows, columns and odd strides have the same bits, near to those of float64 by the length of a path: 32 additions
    in a chain and 5 of chains in each of the levels of 1024.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    unit = torch.finfo(wide).eps / 2
    many_columns = torch.randn(1, k, 150 if k < 10_000 else 1).to(dtype).mT
    for x in (*(placed(case, k, dtype) for case in CASES), many_columns):
        for terms, y in (
            (x.to(wide), x.sum(-1, dtype=wide)),
            (x.to(wide).abs(), torch.linalg.vector_norm(x, 1, -1, dtype=wide)),
        ):
            assert torch.equal(y, documented_cpu_sum(terms))
            limit = 38 * (1 + (k > 1024)) * unit * terms.double().abs().sum(-1)
            assert ((y.double() - terms.double().sum(-1)).abs() <= limit).all()
        root = torch.from_numpy(np.sqrt(documented_cpu_sum(x.to(wide) ** 2).numpy()))  # torch's own is not exact
        assert torch.equal(torch.linalg.vector_norm(x, dim=-1), root.to(dtype))
        mean = documented_cpu_sum(x.double()) / k
        spread = documented_cpu_sum((x.double() - mean[..., None]) ** 2)
        var, own_mean = torch.var_mean(x, -1, correction=0)
        assert torch.equal(var, (spread / k).to(dtype)) and torch.equal(own_mean, mean.to(dtype))
        assert torch.equal(x.mean(-1), (documented_cpu_sum(x.to(wide)) / k).to(dtype))


def test_forms_of_sums_on_a_cpu(on_a_cpu):
    x = torch.randn(4, 5, 70)
    expected = x.sum(-1)
    out = torch.full((4, 10), torch.nan)[:, ::2]
    for place in (out, torch.empty(0), torch.empty(4, 5, dtype=torch.float64)):
        torch.sum(x, -1, out=place)
        torch.testing.assert_close(place, x.sum(-1, dtype=place.dtype))
    assert torch.equal(out, expected)
    assert torch.equal(torch.sum(x, -1, keepdim=True), expected[..., None])
    assert torch.equal(x.sum(dtype=torch.float64), x.double().sum())
    assert torch.equal(x.sum(-1, dtype=torch.bfloat16), x.bfloat16().sum(-1))
    assert torch.equal(x.sum(()), x.flatten().sum(0)) and torch.equal(x.mean(), x.sum() / x.numel())
    assert torch.equal(x.sum((0, 2)), x.transpose(0, 1).reshape(5, -1).sum(-1))
    assert torch.equal(x.mT.sum(1), expected) and torch.equal(x[:, :, ::3].sum(-1), x[:, :, ::3].contiguous().sum(-1))
    assert torch.equal(x[:, :1].expand(-1, 3, -1).sum(-1), expected[:, :1].expand(-1, 3))
    scalar = torch.tensor(3.5)
    assert scalar.sum() == scalar.sum(0) == scalar.mean(-1) == scalar.norm() == 3.5
    assert (torch.empty(2, 0).sum(1) == 0).all() and torch.empty(0, 3).sum(1).shape == (0,)
    assert torch.empty(2, 0).mean(1).isnan().all() and torch.empty(2, 0).var(1).isnan().all()
    assert torch.randn(3, 1).var(1).isnan().all() and torch.equal(torch.tensor([[-0.0]]).sum(1), torch.zeros(1))
    for value in (torch.inf, torch.nan):
        x = torch.randn(3, 2000)
        x[1, 1234] = value
        for y in (x.sum(1), x.mean(1), x.norm(dim=1), x.mT.contiguous().sum(0)):
            assert y.isfinite().tolist() == [True, False, True] and y[1].isnan() == (value is torch.nan)
        assert x.var(1).isnan().tolist() == [False, True, False]
    for call in (
        lambda: x.sum((0, 0)),
        lambda: x.mean(2),
        lambda: torch.linalg.vector_norm(x.double(), dim=1, dtype=torch.float32),
        lambda: torch.sum(x, 1, dtype=torch.float64, out=torch.empty(3)),
    ):
        with pytest.raises((RuntimeError, IndexError)):
            call()

"""Weights of attention: the GPU's kernel, run by the host executor, against float64. Softmax of columns on a CPU.

Planted bugs that these tests caught: the barrier left out; lanes, or groups of lanes, not merged; the largest of the
first elements for all of a long row; elements beyond the end; another head's or query's mask. Of columns: largest
elements or sums that are not those of all rows of a line; a line's last vector that does not begin early; the first
chunk's sum for all; an exponential that is not 0 at minus infinity; a logarithm of few terms or without NaN
(test_mode.py); chains in other pairs; the last one left out.
"""

import ctypes
import itertools

import numpy as np
import pytest
import torch
from test_reduce import documented_cpu_sum
from torch import Tensor

import torch_tiledmm
from torch_tiledmm import host_gpu

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


class SoftmaxProblem(ctypes.Structure):  # csrc/core/softmax.h
    _fields_ = [
        ("sizes", ctypes.c_int64 * 3),
        ("k", ctypes.c_int64),
        ("x", ctypes.c_void_p),
        ("scale", ctypes.c_float),
        ("dtype_mask", ctypes.c_int32),
        ("dtype_y", ctypes.c_int32),
        ("mask", ctypes.c_void_p),
        ("stride_mask", ctypes.c_int64 * 4),
        ("y", ctypes.c_void_p),
    ]


def softmax(x: Tensor, scale: float, mask: Tensor | None, dtype: torch.dtype, *, warp_size=32, seed=3) -> Tensor:
    """Of scores with four dimensions; the mask is expanded to them."""
    y = torch.full(x.shape, torch.nan, dtype=dtype)
    address, strides, dtype_mask = None, (0, 0, 0, 0), dtype
    if mask is not None:
        address, strides, dtype_mask = mask.data_ptr(), mask.expand(x.shape).stride(), mask.dtype
    problem = SoftmaxProblem(
        *((ctypes.c_int64 * 3)(*x.shape[:3]), x.shape[3], x.data_ptr(), scale),
        *(DTYPES.index(dtype_mask), DTYPES.index(dtype), address, (ctypes.c_int64 * 4)(*strides), y.data_ptr()),
    )
    reason = ctypes.create_string_buffer(256)
    call = host_gpu._library(warp_size).tiledmm_host_softmax
    assert call(ctypes.byref(problem), ctypes.c_uint64(seed), reason, ctypes.c_size_t(256)) == 0, reason.value
    return y


def some_mask(case: str, k: int, dtype: torch.dtype) -> Tensor:
    """Of (2, 3, 2, k): numbers, and minus infinity for about a third of the keys, in one row for all of them."""
    if case == "keys":
        shape, strides = (2, 1, 1, k), (k, 0, 0, 1)
    elif case == "apart":
        shape, strides = (2, 3, 2, k), (6 * k + 1, 2, 1, 6)
    else:
        shape, strides = (2, 3, 2, k), (6 * k, 2 * k, k, 1)
    memory = torch.randn(12 * k + 2)
    memory[torch.rand(memory.shape) < 0.3] = -torch.inf
    mask = memory.to(dtype).as_strided(shape, strides)
    mask[1, -1, -1] = -torch.inf
    return mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("k", (1, 31, 100, 257, 1024, 1025, 4099))
def test_softmax(k, dtype):
    """An exponent has an error of its own magnitude times a unit, a sum one unit for each addition of its path."""
    x = torch.randn(2, 3, 2, k) * 20
    x[0, 1, 1] += torch.arange(k)  # the largest one comes late
    cases = itertools.product(("keys", "apart", "whole"), (dtype, torch.float))
    for i, mask in enumerate([None, *(some_mask(case, k, own) for case, own in cases)]):
        scores = 0.125 * x.double() + (0 if mask is None else mask.double())
        exact = torch.nan_to_num(scores.softmax(-1), nan=0.0)
        y = softmax(x, 0.125, mask, dtype, warp_size=32 << i % 2, seed=i)
        span = scores.masked_fill(scores.isinf(), 0).abs().amax(-1, keepdim=True)
        limit = (torch.finfo(dtype).eps + (4 * span + 24 + k / 1024) * 2**-23) * exact + torch.finfo(dtype).tiny
        assert ((y.double() - exact).abs() <= limit).all()
        assert mask is None or not y[1, -1, -1].any()


def test_a_row_has_the_bits_that_it_has_alone():
    x, mask = torch.randn(4, 2, 3, 1500), torch.randn(4, 1, 3, 1500).bfloat16()
    whole = softmax(x, 0.3, mask, torch.bfloat16)
    for i, j, r in itertools.product((0, 3), (0, 1), (0, 2)):
        one, its = x[i : i + 1, j : j + 1, r : r + 1].contiguous(), mask[i : i + 1, :, r : r + 1]
        assert torch.equal(softmax(one, 0.3, its, torch.bfloat16)[0, 0, 0], whole[i, j, r])


def test_what_is_not_a_number():
    x = torch.randn(1, 1, 3, 40)
    x[0, 0, 0, 7], x[0, 0, 1, 33] = torch.nan, torch.inf
    y = softmax(x, 1.0, None, torch.float32)
    assert y[0, 0, :2].isnan().all() and y[0, 0, 2].isfinite().all()
    assert softmax(x[:, :, :, :0], 1.0, None, torch.float32).shape == (1, 1, 3, 0)


@pytest.fixture
def on_a_cpu():
    with torch_tiledmm.enabled():
        yield


def gradient(name: str, grad: Tensor, y: Tensor) -> Tensor:
    return getattr(torch.ops.aten, f"_{name}_backward_data")(grad, y, 1, y.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("k", (1, 2, 3, 31, 64, 100, 1025, 2100))
def test_columns_on_a_cpu(k, dtype, on_a_cpu):
    """An exponent has an error of its own magnitude times a unit, a sum of one unit for each of 38 additions in its two
    levels, and functions and products some units. What would be a denormal may be 0.
    """
    unit = torch.finfo(dtype if dtype.itemsize > 2 else torch.float32).eps
    rounding, tiny = torch.finfo(dtype).eps, torch.finfo(torch.float64 if dtype.itemsize == 8 else torch.float32).tiny
    least = rounding * torch.finfo(dtype).tiny
    for inner in (1, 2, 7, 16, 33, 65, 300) if k < 1000 else (1, 7, 65):
        x, grad = (20 * torch.randn(3, k, inner)).to(dtype), torch.randn(3, k, inner).to(dtype)
        x[1, k // 2 + 1 :, 0] -= 200
        x[1, k // 2 + 1 :, -1] = -torch.inf
        x[2, :, -1] += torch.arange(k)  # the largest one comes late
        terms = x.double().numpy().astype(np.longdouble)
        shifted = terms - terms.max(1, keepdims=True)
        shares = np.exp(shifted)
        sums = shares.sum(1, keepdims=True)
        shares, logs = shares / sums, shifted - np.log(sums)
        errors = unit * (80 + np.abs(np.where(np.isinf(shifted), 0, shifted)))
        y, log_y = x.softmax(1), x.log_softmax(1)
        found = y.double().numpy()
        assert (np.abs(found - shares) <= (errors + rounding) * shares + least + 2 * tiny).all()
        is_far = np.isinf(shifted)
        assert (found[is_far] == 0).all()
        found = np.where(is_far, 0, log_y.double().numpy())
        assert (log_y.isinf().numpy() == is_far).all() and not log_y[x.isfinite()].isinf().any()
        assert (np.abs(found - np.where(is_far, 0, logs)) <= errors + rounding * np.where(is_far, 0, -logs)).all()

        own, own_grad = y.double(), grad.double()
        exact = own * (own_grad - (own * own_grad).sum(1, keepdim=True))
        magnitude = own * (own_grad.abs() + (own * own_grad).abs().sum(1, keepdim=True))
        assert (
            (gradient("softmax", grad, y).double() - exact).abs() <= (80 * unit + rounding) * magnitude + least
        ).all()
        own = log_y.double().exp()
        exact = own_grad - own * own_grad.sum(1, keepdim=True)
        magnitude = own_grad.abs() + own * own_grad.abs().sum(1, keepdim=True)
        assert (
            (gradient("log_softmax", grad, log_y).double() - exact).abs() <= (100 * unit + rounding) * magnitude
        ).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("k", (1, 2, 5, 33, 200, 1500))
def test_a_column_has_the_bits_that_it_has_alone(k, dtype, on_a_cpu):
    """In matrices narrow and wide, among others, on any number of threads, in any strides."""
    grad, x = torch.randn(2, 4, k, 270).to(dtype)
    for name in ("softmax", "log_softmax"):
        function = getattr(torch, name)
        whole = function(x, 1)
        its_gradient = gradient(name, grad, whole)
        for threads, (begin, end) in itertools.product(
            (1, 2), ((0, 1), (269, 270), (1, 3), (5, 18), (60, 124), (3, 68))
        ):
            torch.set_num_threads(threads)
            for rows in (slice(0, 1), slice(1, 4)):
                part, own_grad, y = (t[rows, :, begin:end] for t in (x, grad, whole))
                assert torch.equal(function(part, 1), y), (name, begin, end)
                assert torch.equal(function(part.contiguous(), 1), y), (name, begin, end)
                assert torch.equal(gradient(name, own_grad, y), its_gradient[rows, :, begin:end]), (name, begin, end)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("k", (1, 7, 40, 1024, 1025, 3000))
def test_sums_of_columns_are_in_the_documented_order(k, dtype, on_a_cpu):
    """A gradient beside logarithms that are 0 is the difference from the sum."""
    for inner in (1, 3, 64, 70):
        grad = torch.randn(2, k, inner).to(dtype)
        wide = grad.double() if dtype == torch.float64 else grad.float()
        expected = (wide - documented_cpu_sum(wide.mT.contiguous())[:, None]).to(dtype)
        assert torch.equal(gradient("log_softmax", grad, torch.zeros_like(grad)), expected)

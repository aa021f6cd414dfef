"""Semantics of torch.matmul and F.linear, and every error. Values in bulk: test_property.py.

Planted bugs that these tests caught: the batch stride of a broadcast operand not 0, bias dropped for k = 0, the device
check of the fake kernel removed, matmul_out without its overlap check, with one that knows no views with gaps, with one
that takes beside each other for overlapping, with one that skips solutions, and with one that sees whole elements only,
a contiguous copy of an operand, the bias of a vector as weight unchecked where a gradient is needed, denormals that
stores by columns keep and stores by rows do not, 31 bits for k or for the place of a chunk of A or of B, a negative bit
of out or of b that is lost, a kind of tensor or an operator that is not refused, an operand that has no memory,
a caller's rounding or denormals that other threads do not take over or keep.
"""

import collections
import contextlib
import ctypes
import ctypes.util
import functools
import itertools
import math
import mmap
import os
import platform
import random
import re
import warnings

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as fwAD
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from torch_tiledmm import linear, matmul
from torch_tiledmm.testing.reference import assert_close, expect_linear, expect_matmul

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
OPS = torch.ops.tiledmm
# The instruction set of another machine.
FOREIGN = "register_tiled.avx2" if platform.machine() in ("aarch64", "arm64") else "register_tiled.neon"


def randn(*sizes, dtype=torch.float32):
    return torch.randn(*sizes).to(dtype)


SHAPES = [
    ((7,), (7,)),
    ((7,), (7, 3)),
    ((5, 7), (7,)),
    ((5, 7), (7, 3)),
    ((2, 5, 7), (7,)),
    ((7,), (2, 7, 3)),
    ((2, 5, 7), (7, 3)),
    ((5, 7), (2, 7, 3)),
    ((2, 1, 5, 7), (3, 7, 4)),
    ((1, 5, 7), (6, 7, 4)),
    ((2, 3, 4, 5, 7), (1, 3, 1, 7, 2)),
    ((0, 7), (7, 3)),
    ((5, 0), (0, 3)),
    ((2, 5, 0), (0,)),
    ((0,), (0,)),
    ((0, 5, 7), (0, 7, 3)),
    ((3, 0, 7), (7, 0)),
    ((1, 1), (1, 1)),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("a_shape, b_shape", SHAPES, ids=str)
def test_matmul_is_torch_matmul(a_shape, b_shape, dtype):
    a, b = randn(*a_shape, dtype=dtype), randn(*b_shape, dtype=dtype)
    out = matmul(a, b)
    assert out.shape == torch.matmul(a.double(), b.double()).shape
    assert out.dtype is dtype and out.is_contiguous()
    assert_close(out, expect_matmul(a, b))
    # The same values from a base with margins, in strides that no one else has.
    wide_a = torch.full([2 * size + 3 for size in a_shape], torch.nan, dtype=dtype)
    view_a = wide_a[tuple(slice(2, 2 * size + 2, 2) for size in a_shape)].copy_(a)
    view_b = torch.full(b_shape[::-1], torch.nan, dtype=dtype).permute(*range(len(b_shape))[::-1]).copy_(b)
    assert torch.equal(matmul(view_a, view_b), out)


def test_expanded_operands_are_read_where_they_lie():
    row = randn(1, 1, 7).expand(4, 5, 7)
    b = randn(1, 3).expand(7, 3)
    assert_close(matmul(row, b), expect_matmul(row, b))
    huge = randn(1).expand(3, 1 << 40)[:, : 1 << 12]  # a copy of the base would need terabytes
    assert_close(matmul(huge, huge.mT), expect_matmul(huge, huge.mT))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 3, 7), (2, 3, 4, 7), (0, 7), (5, 0)], ids=str)
def test_linear_is_f_linear(shape, activation, dtype):
    x, weight, bias = randn(*shape, dtype=dtype), randn(6, shape[-1], dtype=dtype), randn(6, dtype=dtype)
    for own_bias in (None, bias, bias[:1], randn(12, dtype=dtype)[::2]):
        out = linear(x, weight, own_bias, activation=activation)
        assert out.shape == F.linear(x.double(), weight.double()).shape and out.is_contiguous()
        whole_bias = None if own_bias is None else own_bias.expand(6)
        assert_close(out, expect_linear(x, weight, whole_bias, activation))


def allocated_bytes(function) -> int:
    """All that torch's allocator hands out during one call: the result, and what panels are packed into."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        function()
    events = profiled.profiler.kineto_results.events()
    return sum(max(event.nbytes(), 0) for event in events if event.name() == "[memory]")


def test_no_operand_is_copied():
    torch.set_num_threads(2)  # each has a workspace of its own
    size = 4096
    contiguous, columns = torch.randn(size, size), torch.randn(size, 8)
    every_other = torch.randn(size, 2 * size)[:, ::2]
    weight, rows = torch.randn(size, size, requires_grad=True), torch.randn(8, size, requires_grad=True)
    sum_of_layer = linear(rows, weight).sum()
    one_operand = contiguous.nbytes
    for call, result in (
        (lambda: matmul(contiguous, columns), columns.nbytes),
        (lambda: matmul(contiguous.t(), columns), columns.nbytes),
        (lambda: matmul(every_other, columns), columns.nbytes),
        (lambda: matmul(columns.t(), every_other), columns.nbytes),
        (lambda: matmul(every_other.t(), every_other), one_operand),
        (lambda: linear(rows, weight.t()), rows.nbytes),
        (lambda: torch.autograd.grad(sum_of_layer, (rows, weight)), one_operand + rows.nbytes),
    ):
        assert allocated_bytes(call) < result + one_operand // 4
    assert allocated_bytes(lambda: matmul(contiguous.t().contiguous(), columns)) > one_operand


def test_linear_takes_any_layout_of_the_leading_dimensions():
    x = randn(4, 3, 2, 7).permute(2, 0, 1, 3)  # (2, 4, 3, 7), not foldable
    weight, bias = randn(7, 6).t(), randn(6)
    out = linear(x, weight, bias)
    assert_close(out, expect_linear(x, weight, bias, "none"))
    assert torch.equal(out, linear(x.contiguous(), weight.contiguous(), bias))


def test_linear_with_a_vector_as_weight():
    x, weight, bias = randn(2, 5, 7), randn(7), randn(1)
    assert linear(x, weight, bias).shape == (2, 5)
    assert_close(linear(x, weight), expect_matmul(x, weight))
    for grad in (False, True):
        own = weight.clone().requires_grad_(grad)
        torch.testing.assert_close(linear(x, own, bias), F.linear(x, weight) + bias)


def test_k_of_zero_gives_the_activated_bias():
    bias = randn(3)
    expected = F.gelu(bias).expand(4, 3)
    torch.testing.assert_close(linear(randn(4, 0), randn(3, 0), bias, activation="gelu"), expected)


def test_nan_and_infinity_propagate():
    a, b = randn(40, 50), randn(50, 30)
    a[3, 4], a[5, 6], b[7, 8] = torch.nan, torch.inf, -torch.inf
    a[9, 7] = b[6, 10] = b[4, 11] = 0  # 0 by infinity and by NaN are NaN
    for algorithm in ("naive", "block_tiled", "native"):
        out, expected = matmul(a, b, algorithm=algorithm), torch.matmul(a.double(), b.double())
        assert torch.equal(out.isnan(), expected.isnan())
        assert torch.equal(out.isinf(), expected.isinf())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_a_row_has_the_same_bits_by_itself_where_results_are_denormal(dtype, activation):
    """Some instructions take denormals as zero. C stored by rows and by columns must then do the same."""
    least = float(torch.finfo(dtype).smallest_normal)
    small = {"gelu": -math.sqrt(-2 * math.log(least)), "silu": math.log(least)}[activation]  # about where results are
    x, weight = torch.zeros(150, 600, dtype=dtype), torch.zeros(17, 600, dtype=dtype)
    x[:, 0], weight[:, 0] = torch.linspace(0.9 * small, 1.1 * small, 150).to(dtype), 1
    whole = linear(x, weight, activation=activation)
    for row in range(0, 150, 10):
        for part in (1, 7, 40):
            own = linear(x[row : row + part], weight, activation=activation)
            assert torch.equal(own, whole[row : row + part]), (row, part)


# ---- Denormals and rounding as the caller has set them, in all threads


@contextlib.contextmanager
def flushed_denormals():
    if not torch.set_flush_denormal(True):
        pytest.skip("torch cannot flush denormals here")
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextlib.contextmanager
def rounding_up():
    upward = {"x86_64": 0x800, "aarch64": 0x400000}.get(platform.machine())
    library = ctypes.util.find_library("m")
    if upward is None or library is None:
        pytest.skip("the number of C's FE_UPWARD is not known here")
    libm = ctypes.CDLL(library)
    assert libm.fesetround(upward) == 0
    try:
        yield
    finally:
        libm.fesetround(0)


@pytest.mark.parametrize("algorithm", ["auto", "block_tiled"])
@pytest.mark.parametrize("m, n, k", [(64, 512, 512), (1, 768, 768), (8, 24, 20000)])  # tiles, a row, parts of k
@pytest.mark.parametrize("mode", [flushed_denormals, rounding_up])
def test_all_threads_compute_as_the_caller_does(mode, m, n, k, algorithm):
    is_flushed = mode is flushed_denormals
    a, b = (torch.rand(*sizes) * (1e-21 if is_flushed else 1) for sizes in ((m, k), (k, n)))
    bits = []
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        plain = matmul(a, b, algorithm=algorithm)
        with mode():
            out = matmul(a, b, algorithm=algorithm)
        bits += [plain.view(torch.int32), out.view(torch.int32)]
    assert all(torch.equal(own, bits[i % 2]) for i, own in enumerate(bits))
    if is_flushed:
        assert (plain != 0).all() and (out == 0).all()
    else:
        assert (out >= plain).float().mean() > 0.9 and not torch.equal(out, plain)


def test_backward_computes_as_its_caller_does():
    x, weight, grad = (torch.full(sizes, 1e-21) for sizes in ((64, 512), (512, 512), (64, 512)))
    operands = x.requires_grad_(), weight.requires_grad_()
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        out = linear(*operands)
        assert all((own != 0).all() for own in torch.autograd.grad(out, operands, grad, retain_graph=True))
        with flushed_denormals():
            assert all((own == 0).all() for own in torch.autograd.grad(out, operands, grad))


def test_threads_compute_as_before_after_a_product():
    """torch's own functions, for which each thread computes in its own way."""
    torch.set_num_threads(2)
    a, denormals = randn(700, 700), torch.full((1 << 18,), 1e-39)
    with flushed_denormals():
        matmul(a, a)
    assert (denormals * 1.5 != 0).all()


# ---- matmul_out


def test_matmul_out_writes_its_elements_only():
    a, b = randn(2, 5, 7), randn(7, 6)
    for strides in ((1, 2), (2, 1)):
        base = torch.full((4, 20, 20), torch.nan)
        out = base[1:3, 3 : 3 + 5 * strides[0] : strides[0], 4 : 4 + 6 * strides[1] : strides[1]]
        OPS.matmul_out(a, b, out)
        assert_close(out, expect_matmul(a, b))
        assert base.isnan().sum() == base.numel() - out.numel()
    column_major = torch.full((6, 5), torch.nan).t()
    OPS.matmul_out(a[0], b, column_major)
    assert_close(column_major, expect_matmul(a[0], b))


@pytest.mark.parametrize("algorithm", ("auto", "block_tiled"))
def test_matmul_with_out(algorithm):
    a, b = randn(2, 5, 7), randn(7, 3)
    out = torch.full((2, 3, 5), torch.nan).mT
    assert matmul(a, b, algorithm=algorithm, out=out) is out
    assert_close(out, expect_matmul(a, b))
    assert torch.equal(out, matmul(a, b, algorithm=algorithm))
    with pytest.raises(RuntimeError, match=r"out has shape \[5, 3\]; the result has \[2, 5, 3\]"):
        matmul(a, b, out=torch.empty(5, 3))
    with pytest.raises(RuntimeError, match="does not support automatic differentiation"):
        matmul(a.requires_grad_(), b, out=out)
    with pytest.raises(NotImplementedError, match="'wgmma' cannot serve"):
        matmul(a.detach(), b, algorithm="wgmma", out=out)


def test_matmul_out_refuses():
    a, b, out = randn(5, 7), randn(7, 6), torch.empty(5, 6)
    with pytest.raises(RuntimeError, match="out has shape.*the result has"):
        OPS.matmul_out(a, b, torch.empty(6, 5))
    with pytest.raises(RuntimeError, match="elements of out share memory"):
        OPS.matmul_out(a, b, torch.empty(1, 6).expand(5, 6))
    square = randn(7, 7)
    with pytest.raises(RuntimeError, match="out shares memory with a"):
        OPS.matmul_out(square, randn(7, 7), square)
    for operands in ((a.clone().requires_grad_(), b, out), (a, b, out.clone().requires_grad_())):
        with pytest.raises(RuntimeError, match="requires grad"):
            OPS.matmul_out(*operands)
    with fwAD.dual_level():
        dual_a, dual_out = (fwAD.make_dual(tensor, torch.ones_like(tensor)) for tensor in (a, out))
        for operands in ((dual_a, b, out), (a, b, dual_out)):
            with pytest.raises(RuntimeError, match="has a tangent"):
                OPS.matmul_out(*operands)


@pytest.mark.parametrize(
    "rows, columns", [((0, 5), (0, 5)), ((2, 7), (2, 7)), ((4, 9), (4, 9)), ((0, 5), (4, 9))], ids=str
)
def test_matmul_out_refuses_a_view_with_gaps_that_meets_an_operand(rows, columns):
    base, other = randn(12, 12), randn(5, 5)
    operand, out = base[:5, :5], base[slice(*rows), slice(*columns)]
    with pytest.raises(RuntimeError, match="out shares memory with a"):
        OPS.matmul_out(operand, other, out)
    with pytest.raises(RuntimeError, match="out shares memory with b"):
        OPS.matmul_out(other, operand, out)


def test_matmul_out_takes_a_view_with_gaps_beside_an_operand():
    other = randn(5, 5)
    for rows, columns in (((0, 5), (5, 10)), ((3, 8), (5, 10)), ((5, 10), (0, 5)), ((5, 10), (5, 10))):
        base = randn(10, 10)
        operand, out = base[:5, :5], base[slice(*rows), slice(*columns)]
        for view in (out, out.t()):
            OPS.matmul_out(operand, other, view)
            assert_close(view, expect_matmul(operand, other))


@pytest.mark.parametrize("strides", [(0, 1), (1, 0), (1, 1), (4, 1), (1, 4)], ids=str)
def test_matmul_out_refuses_an_out_whose_elements_share_memory(strides):
    out = torch.empty(40).as_strided((3, 6) if strides[0] > 1 else (6, 3), strides)
    with pytest.raises(RuntimeError, match="elements of out share memory"):
        OPS.matmul_out(randn(len(out), 2), randn(2, out.shape[1]), out)


def draw_view(rng: random.Random, shape: tuple[int, ...], base: torch.Tensor) -> torch.Tensor:
    """A view of this shape and of random strides into the middle of `base`."""
    strides = [rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 9, 12, 18, 30)) for _ in shape]
    return base.as_strided(shape, strides, rng.randrange(5, 40))


def elements_of(view: torch.Tensor) -> torch.Tensor:
    """Where in its base the elements lie."""
    return torch.arange(view.untyped_storage().nbytes() // view.element_size()).as_strided(
        view.shape, view.stride(), view.storage_offset()
    )


def test_matmul_out_takes_just_the_strides_that_give_each_element_a_place_of_its_own():
    rng, taken, interleaved = random.Random(4), 0, 0
    for _ in range(1500):
        shape = (rng.randrange(1, 3), rng.randrange(1, 4), rng.randrange(1, 7), rng.randrange(1, 7))
        base = torch.full((400,), torch.nan)
        out = draw_view(rng, shape, base)
        a, b = randn(*shape[:3], 2), randn(2, shape[3])
        places = elements_of(out).flatten()
        if len(places.unique()) == len(places):
            OPS.matmul_out(a, b, out)
            assert_close(out, expect_matmul(a, b))
            assert base.isnan().sum() == base.numel() - out.numel()
            taken += 1
            reach = 0
            for stride, size in sorted(zip(out.stride(), shape, strict=True)):
                interleaved += size > 1 and stride <= reach
                reach += stride * (size - 1)
        else:
            with pytest.raises(RuntimeError, match="tiledmm: elements of out share memory"):
                OPS.matmul_out(a, b, out)
    assert taken > 200 and interleaved > 50


@pytest.mark.parametrize("odd_bytes", [0, 1, 3])
def test_matmul_out_takes_just_the_operands_that_share_no_byte_with_out(odd_bytes):
    rng, taken = random.Random(5), 0
    for _ in range(1500):
        m, k, n = (rng.randrange(1, 6) for _ in range(3))
        memory = torch.ones(400).view(torch.uint8)
        base, shifted = memory.view(torch.float32), memory.numpy()[odd_bytes:][:1596].view("float32")
        a, out = draw_view(rng, (m, k), torch.from_numpy(shifted)), draw_view(rng, (m, n), base)
        places = elements_of(out).flatten()
        if len(places.unique()) < len(places):
            continue
        bytes_of_out = {4 * int(place) + byte for place in places for byte in range(4)}
        bytes_of_a = {4 * int(place) + odd_bytes + byte for place in elements_of(a).flatten() for byte in range(4)}
        if bytes_of_out & bytes_of_a:
            with pytest.raises(RuntimeError, match="tiledmm: out shares memory with a"):
                OPS.matmul_out(a, randn(k, n), out)
        elif odd_bytes == 0:
            OPS.matmul_out(a, torch.ones(k, n), out)
            assert (out == k).all() and (a == 1).all()
            taken += 1
        else:  # the next check, since nobody computes with such an operand
            with pytest.raises(ValueError, match="algorithm 'fast'"):
                OPS.matmul_out(a, randn(k, n), out, algorithm="fast")
            taken += 1
    assert taken > 50


RESERVED = 1 << 41  # bytes


@pytest.fixture(scope="module")
def reserved() -> torch.Tensor:
    """bfloat16 elements that have addresses and no memory of their own: zeros that nobody may write."""
    memory = mmap.mmap(-1, RESERVED, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.frombuffer(memory, dtype=torch.bfloat16)


def places_of(view: torch.Tensor) -> collections.Counter:
    """How many elements lie at which place, in Python's integers."""
    indices = itertools.product(*map(range, view.shape))
    return collections.Counter(
        view.storage_offset() + sum(i * stride for i, stride in zip(index, view.stride(), strict=True))
        for index in indices
    )


def refuses(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> str:
    """Which memory is shared, in the words of the operator. An algorithm that nobody knows is what it asks about next,
    so that it computes nothing."""
    with pytest.raises((RuntimeError, ValueError), match="share|algorithm 'fast' is not known") as error:
        OPS.matmul_out(a, b, out, algorithm="fast")
    return next((what for what in ("elements of out", "with a", "with b") if what in str(error.value)), "nothing")


def test_matmul_out_knows_which_operands_share_memory_at_strides_of_ten_to_the_ten(reserved):
    """Against the elements' places, counted in integers without a limit. Strides are sums of few large numbers, and
    operands lie such that two elements meet, or nearly do."""
    rng, seen = random.Random(6), collections.Counter()
    a, out = reserved.as_strided((2, 1), (5954962523, 1), 9203485529), reserved.as_strided((2, 1), (9203485529, 1))
    assert refuses(a, torch.ones(1, 1, dtype=a.dtype), out) == "with a"
    for _ in range(1500):
        large = [rng.choice((rng.randrange(2**31, 10**10), rng.randrange(2**33, 2**34))) for _ in range(2)]
        strides = [*large, *large, sum(large), 2 * large[0], large[0] + rng.randrange(1, 4), rng.choice((1, 2, 1000))]

        def draw(rows, columns, strides=strides):
            return reserved.as_strided((rows, columns), (rng.choice(strides), rng.choice(strides)), 1 << 38)

        m, k, n = (rng.randrange(1, 5) for _ in range(3))
        a, b, out = draw(m, k), draw(k, n), draw(m, n)
        operand, name = (a, "with a") if rng.random() < 0.5 else (b, "with b")
        meeting = rng.choice(list(places_of(operand))) - rng.choice(list(places_of(out))) + rng.choice((0, 0, 0, 1, -1))
        out = out.as_strided(out.shape, out.stride(), out.storage_offset() + meeting)
        places = places_of(out)
        expected = "nothing"
        if max(places.values()) > 1:
            expected = "elements of out"
        elif places & places_of(a):
            expected = "with a"
        elif places & places_of(b):
            expected = "with b"
        found, views = refuses(a, b, out), [(view.shape, view.stride(), view.storage_offset()) for view in (a, b, out)]
        assert found == expected, views
        seen[expected] += 1
    assert min(seen.values()) > 100 and len(seen) == 4, seen


def test_matmul_out_says_when_it_cannot_find_out():
    strides = (1000003, 1100009, 1210021, 1331033, 1464139, 1610557, 1771613, 1948789)
    out = torch.empty(4 * sum(strides) + 1, dtype=torch.bfloat16).as_strided((5,) * 8, strides)
    a, b = torch.ones((5,) * 7 + (1,), dtype=torch.bfloat16), torch.ones((1, 5), dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="it takes too long to find out whether elements of out share memory"):
        OPS.matmul_out(a, b, out)


@pytest.mark.parametrize("mode", [contextlib.nullcontext, torch.no_grad, torch.inference_mode])
def test_matmul_out_counts_as_a_change_of_out(mode):
    x = randn(3, 3).requires_grad_()
    out = torch.empty(3, 3)
    product = x * out
    with mode():
        OPS.matmul_out(randn(3, 4), randn(4, 3), out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


# ---- Tensors of torch's other kinds, as each operand of every operator

GATED_GROUPS = {"a": (6, 4), "gate": (2, 4, 5), "up": (2, 4, 5), "gate_bias": (2, 5), "up_bias": (2, 5)}
OPERANDS = {
    "matmul": {"a": (3, 4), "b": (4, 5)},
    "matmul_out": {"a": (3, 4), "b": (4, 5), "out": (3, 5)},
    "addmm": {"input": (3, 5), "a": (3, 4), "b": (4, 5)},
    "linear": {"input": (3, 4), "weight": (5, 4), "bias": (5,)},
    "linear_and_sum": {"input": (3, 4), "weight": (5, 4), "bias": (5,)},
    "linear_weight_grads": {"grad": (3, 5), "input": (3, 4)},
    "gated_linear": {"input": (3, 4), "gate": (5, 4), "up": (5, 4), "gate_bias": (5,), "up_bias": (5,)},
    "gated_linear_and_sums": {"input": (3, 4), "gate": (5, 4), "up": (5, 4), "gate_bias": (5,), "up_bias": (5,)},
    "gated": {"gate": (3, 4), "up": (3, 4)},
    "gated_backward": {"grad": (3, 4), "gate": (3, 4), "up": (3, 4)},
    "activate": {"x": (3, 4)},
    "activate_backward": {"grad": (3, 4), "x": (3, 4)},
    "grouped_matmul": {"a": (6, 4), "b": (2, 4, 5), "bias": (2, 5)},
    "grouped_matmul_and_sum": {"a": (6, 4), "b": (2, 4, 5), "bias": (2, 5)},
    "gated_grouped_matmul": GATED_GROUPS,
    "gated_grouped_matmul_and_sums": GATED_GROUPS,
    "scaled_matmul": {"a": (3, 4), "b": (4, 5), "scale_a": (3, 1), "scale_b": (1, 5), "bias": (5,)},
    "scaled_grouped_matmul": {"a": (6, 4), "b": (2, 4, 5), "scale_a": (6, 1), "scale_b": (2, 1, 5), "bias": (2, 5)},
    "ordered_sum": {"a": (3, 4)},
    "quantize_rows": {"x": (3, 4)},
    "quantize_blocks": {"x": (3, 4)},
}
OF_8_BITS = {(op, name) for op in ("scaled_matmul", "scaled_grouped_matmul") for name in ("a", "b")}
WITHOUT_GRADIENT = ("matmul_out", "scaled_matmul", "scaled_grouped_matmul")
OFFS = torch.tensor([2, 6], dtype=torch.int32)
OTHER_ARGUMENTS = {
    "linear_and_sum": {"activation": "silu"},
    "gated": {"activation": "silu"},
    "gated_backward": {"activation": "silu"},
    "activate": {"activation": "silu"},
    "activate_backward": {"activation": "silu"},
    "grouped_matmul": {"offs": OFFS},
    "grouped_matmul_and_sum": {"offs": OFFS, "activation": "silu"},
    "gated_grouped_matmul": {"offs": OFFS},
    "gated_grouped_matmul_and_sums": {"offs": OFFS},
    "scaled_grouped_matmul": {"offs": OFFS},
    "ordered_sum": {"dims": [0]},
    "quantize_rows": {"dtype": torch.float8_e4m3fn},
    "quantize_blocks": {"dtype": torch.float8_e4m3fn, "block_rows": 1},
}
ROLES = [(op, name) for op, operands in OPERANDS.items() for name in operands]
FP32_ROLES = [role for role in ROLES if role not in OF_8_BITS]


def operands_of(op):
    types = {name: torch.float8_e4m3fn if (op, name) in OF_8_BITS else torch.float32 for name in OPERANDS[op]}
    return {name: randn(*sizes).to(types[name]) for name, sizes in OPERANDS[op].items()}


def test_every_operator_is_in_this_table():
    schemas = [schema for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("tiledmm::")]
    tensors = {
        schema.name.removeprefix("tiledmm::"): [arg.name for arg in schema.arguments if "Tensor" in str(arg.type)]
        for schema in schemas
    }
    tensors = {op: names for op, names in tensors.items() if not op.startswith("_")}  # called by the package alone
    for names in tensors.values():
        if "offs" in names:
            names.remove("offs")  # integers
    assert {op: names for op, names in tensors.items() if names} == {op: list(own) for op, own in OPERANDS.items()}


def negative(*sizes):
    """Its memory holds the negative of its elements."""
    tensor = torch.randn(*sizes, dtype=torch.complex64).conj().imag
    assert tensor.is_neg()
    return tensor


def results_of(op: str, operands: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    outs = getattr(OPS, op)(**operands, **OTHER_ARGUMENTS.get(op, {}))
    # A copy: another call may write to the same `out`.
    return (operands["out"].clone(),) if outs is None else outs if isinstance(outs, tuple) else (outs,)


@pytest.mark.parametrize("op, role", FP32_ROLES)
def test_a_view_with_a_pending_sign(op, role):
    operands = operands_of(op)
    view = negative(*OPERANDS[op][role])
    expected = results_of(op, operands | {role: view.resolve_neg()})
    if op == "matmul_out":
        (view if role == "out" else operands["out"]).fill_(torch.nan)
    for out, own in zip(results_of(op, operands | {role: view}), expected, strict=True):
        assert torch.equal(out, own) and not out.isnan().any()


def test_gradients_by_views_with_a_pending_sign():
    views = [negative(3, 4), negative(5, 4), negative(5), negative(3, 5)]
    plain = [view.resolve_neg() for view in views]
    grads, expected = (
        torch.autograd.grad(linear(*operands), operands, grad)
        for *operands, grad in (
            [tensor.requires_grad_(i < 3) for i, tensor in enumerate(own)] for own in (views, plain)
        )
    )
    assert all(map(torch.equal, grads, expected))


def test_matmul_out_with_a_pending_sign_is_checked_as_any_other():
    memory = torch.randn(5, 5, dtype=torch.complex64).conj()
    with pytest.raises(RuntimeError, match="out has shape"):
        OPS.matmul_out(randn(5, 4), randn(4, 4), memory.imag)
    with pytest.raises(RuntimeError, match="elements of out share memory"):
        OPS.matmul_out(randn(5, 4), randn(4, 5), memory.imag[:1].expand(5, 5))
    with pytest.raises(RuntimeError, match="out shares memory with a"):
        OPS.matmul_out(torch._neg_view(memory.imag), randn(5, 5), memory.imag)
    out = memory.imag
    product = randn(5, 5).requires_grad_() * out
    OPS.matmul_out(randn(5, 4), randn(4, 5), out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


@pytest.mark.parametrize("op, role", FP32_ROLES)
def test_a_zero_tensor(op, role):
    operands = operands_of(op)
    sizes = OPERANDS[op][role]
    if role == "out":
        with pytest.raises(RuntimeError, match="immutable"):
            results_of(op, operands | {role: torch._efficientzerotensor(sizes)})
        return
    expected = results_of(op, operands | {role: torch.zeros(sizes)})
    if op == "matmul_out":
        operands["out"].fill_(torch.nan)
    assert all(map(torch.equal, results_of(op, operands | {role: torch._efficientzerotensor(sizes)}), expected))


REFUSED = {
    "coo": (NotImplementedError, "has layout Sparse; accepted", lambda x: x.to_sparse()),
    "csr": (NotImplementedError, "has layout SparseCsr; accepted", lambda x: x.to_sparse_csr()),
    "csc": (NotImplementedError, "has layout SparseCsc; accepted", lambda x: x.to_sparse_csc()),
    "bsr": (NotImplementedError, "has layout SparseBsr; accepted", lambda x: x.to_sparse_bsr((1, 1))),
    "bsc": (NotImplementedError, "has layout SparseBsc; accepted", lambda x: x.to_sparse_bsc((1, 1))),
    "sparse, on meta": (NotImplementedError, "has layout Sparse; accepted", lambda x: x.to_sparse().to("meta")),
    "mkldnn": (NotImplementedError, "has layout Mkldnn; accepted", lambda x: x.to_mkldnn()),
    "nested": (NotImplementedError, "is a nested tensor, .*; accepted", lambda x: torch.nested.nested_tensor([x])),
    "jagged": (
        NotImplementedError,
        "is a nested tensor, .*; accepted",
        lambda x: torch.nested.nested_tensor([x], layout=torch.jagged),
    ),
    "quantized": (TypeError, "has dtype QInt8; acc", lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)),
    "float8": (TypeError, "(has|has dtype) Float8.*; (both must|accepted)", lambda x: x.to(torch.float8_e4m3fn)),
    "complex": (TypeError, "(has|has dtype) ComplexFloat.*; (both must|accepted)", lambda x: x.to(torch.complex64)),
    "conjugate bit": (
        TypeError,
        "(has|has dtype) ComplexFloat.*; (both must|accepted)",
        lambda x: x.to(torch.complex64).conj(),
    ),
    "meta": (RuntimeError, "(is )?on meta.*; (both must|accepted)", lambda x: x.to("meta")),
    "None": (TypeError, "is None; accepted", lambda x: None),
}


@pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors", "ignore:Sparse (CSR|CSC|BSR|BSC) tensor support"
)
@pytest.mark.parametrize("mode", ["no grad", "grad", "inference"])
@pytest.mark.parametrize("kind", REFUSED)
def test_a_tensor_of_another_kind_is_refused_by_name(kind, mode):
    error, pattern, make = REFUSED[kind]
    if kind == "jagged" and mode == "inference":
        pytest.skip("a class of Python's, which refuses for itself")
    for op, role in ROLES:
        needs_matrix = kind in ("csr", "csc", "bsr", "bsc")
        may_be_none = role.endswith("bias") or (op, role) == ("addmm", "input")
        if (role.endswith("bias") and needs_matrix) or (may_be_none and kind == "None"):
            continue
        if (op, role) in OF_8_BITS and kind == "float8":
            continue
        if len(OPERANDS[op]) == 1 and kind in ("meta", "None"):  # a tensor of its own device; no tensor at all
            continue
        with torch.inference_mode(mode == "inference"):
            operands = operands_of(op)
            is_of_8_bits = (op, role) in OF_8_BITS and kind != "meta"  # which has fewer kinds of tensors
            operands[role] = make(operands[role].float() if is_of_8_bits else operands[role])
            if mode == "grad" and op not in WITHOUT_GRADIENT:
                for name, tensor in operands.items():
                    if name != role:
                        tensor.requires_grad_()
            with pytest.raises(error, match=rf"tiledmm: .*\b{role} {pattern}"):
                results_of(op, operands)


def test_memory_that_was_given_back_is_refused():
    """As fully sharded training does with a weight between two calls: the tensor has a shape and no memory."""
    for op, role in ROLES:
        operands = operands_of(op)
        operands[role].untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match=f"the memory of {role}, .*; accepted"):
            results_of(op, operands)


def test_a_sparse_gradient_is_refused_by_name():
    x = randn(3, 4).requires_grad_()
    with pytest.raises(NotImplementedError, match="has layout Sparse"):
        linear(x, randn(5, 4)).backward(randn(3, 5).to_sparse())


# ---- Errors: the exception, and that its text names the argument, what was given, what is accepted


@pytest.mark.parametrize(
    "error, pattern, call",
    [
        (TypeError, "a has dtype Float and b has Double", lambda: matmul(randn(2, 2), randn(2, 2).double())),
        (TypeError, "a has dtype Long; accepted", lambda: matmul(torch.ones(2, 2).long(), torch.ones(2, 2).long())),
        (TypeError, "bias has dtype Double and input", lambda: linear(randn(2, 2), randn(2, 2), randn(2).double())),
        (TypeError, "b is None; accepted is a tensor", lambda: matmul(randn(2, 2), None)),
        (TypeError, "input is None; accepted is a tensor", lambda: linear(None, randn(2, 2).requires_grad_())),
        (RuntimeError, r"shapes of a \[2, 3\] and b \[4, 5\]", lambda: matmul(randn(2, 3), randn(4, 5))),
        (RuntimeError, r"b \[3, 3, 4\] do not broadcast", lambda: matmul(randn(2, 2, 3), randn(3, 3, 4))),
        (RuntimeError, "a has 0 dimensions", lambda: matmul(torch.tensor(1.0), randn(3))),
        (RuntimeError, r"input \[2, 3\] and weight \[5, 4\]", lambda: linear(randn(2, 3), randn(5, 4))),
        (RuntimeError, r"weight has shape \[1, 2, 3\]", lambda: linear(randn(2, 3), randn(1, 2, 3))),
        (RuntimeError, r"bias has shape \[4\]; accepted are \(5", lambda: linear(randn(2, 3), randn(5, 3), randn(4))),
        (RuntimeError, "one device", lambda: matmul(randn(2, 2), randn(2, 2).to("meta"))),
        (RuntimeError, "one device", lambda: matmul(randn(2, 2).to("meta"), randn(2, 2))),
        (RuntimeError, "one device", lambda: linear(randn(2, 2), randn(2, 2), randn(2).to("meta"))),
        (ValueError, "algorithm 'fast' is not known", lambda: matmul(randn(2, 2), randn(2, 2), algorithm="fast")),
        (ValueError, "algorithm '' is not known", lambda: linear(randn(2, 2), randn(2, 2), algorithm="")),
        (ValueError, "activation 'tanh' is not known", lambda: linear(randn(2, 2), randn(2, 2), activation="tanh")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("grad_mode", [False, True])
def test_error(error, pattern, call, grad_mode):
    with torch.set_grad_enabled(grad_mode), pytest.raises(error, match=pattern):
        call()


EVERY_DTYPE = sorted({dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}, key=str)
# Those of which triples are tried: what is accepted, and one of each other kind.
SOME_DTYPES = (*DTYPES, torch.float8_e4m3fn, torch.complex64, torch.bool, torch.int8, torch.uint8, torch.int64)


@functools.cache
def of_dtype(dtype: torch.dtype, dim: int, device: str = "cpu", needs_grad: bool = False) -> torch.Tensor:
    """Ones and zeros, whose products are exact, of a dtype that has numbers: (3, 3), or (3,) where `dim` is 1."""
    matrix = torch.tensor([[1, 0, 1], [1, 1, 0], [0, 1, 1]], device=device)
    values = matrix if dim == 2 else matrix[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of its rare dtypes
        result = values.to(dtype) if dtype in SOME_DTYPES else torch.empty(values.shape, dtype=dtype, device=device)
    return result.requires_grad_() if needs_grad and dtype in DTYPES else result


def is_served(call, dtypes: tuple[torch.dtype, ...], *how, is_cast: bool = False) -> bool:
    """Whether there is a result; then it is right. Else the error is about dtypes."""
    operands = [of_dtype(dtype, 1 if i == 2 and call is linear else 2, *how) for i, dtype in enumerate(dtypes)]
    try:
        result = call(*operands)
    except TypeError as error:
        assert re.search("dtype.*(accepted are|must have one dtype)", str(error)), (dtypes, error)
        return False
    except NotImplementedError as error:  # torch's, of another kind of tensor
        assert "Quantized" in str(error), (dtypes, error)
        return False
    for found in [] if is_cast else result if isinstance(result, tuple) else [result]:
        assert found.dtype == (dtypes[2] if call is product_into else torch.promote_types(*dtypes[:2])), (dtypes, found)
    if call is not OPS.linear_weight_grads and not result.is_meta:
        a, b, *bias = (operand.detach().double() for operand in operands)
        expected = F.linear(a, b, *bias) if call in (linear, OPS.linear) else a @ b
        assert torch.equal(result.double(), expected), (dtypes, result)
    return True


def goes_together(call, dtypes: tuple[torch.dtype, ...]) -> bool:
    if len(set(dtypes)) == 1 or call is OPS.linear_weight_grads:
        return len(set(dtypes)) == 1 and dtypes[0] in DTYPES
    narrow = [dtype for dtype in set(dtypes) if dtype in (torch.float16, torch.bfloat16)]
    if len(narrow) != 1 or set(dtypes) != {torch.float32, *narrow}:
        return False
    # What is added to operands of one dtype has that of the result, which is theirs.
    return call is not linear or len(dtypes) == 2 or dtypes[0] != dtypes[1]


def product_into(a, b, out):
    return matmul(a, b, out=torch.empty(out.shape, dtype=out.dtype, device=out.device))


@pytest.mark.parametrize("how", [("cpu", False), ("cpu", True), ("meta", False)], ids=str)
def test_every_product_of_dtypes_is_right_or_refused(how):
    """Nothing is read as something else. Operands have one dtype of those accepted, or one has float32 and the other 16
    bits; a third, which is added or written, has the dtype of one of them or of the result.
    """
    pairs = list(itertools.product(EVERY_DTYPE, repeat=2))
    triples = [*itertools.product(SOME_DTYPES, repeat=3), *((d, d, other) for d in DTYPES for other in EVERY_DTYPE)]
    cases = [(call, pairs) for call in (matmul, linear, OPS.matmul, OPS.linear, OPS.linear_weight_grads)]
    cases += [(linear, triples)] + [(product_into, triples)] * (not how[1])  # out takes no gradient
    for call, all_dtypes in cases:
        for dtypes in all_dtypes:
            is_accepted = goes_together(call, dtypes)
            assert is_served(call, dtypes, *how) == is_accepted, (call, dtypes)


@pytest.mark.parametrize("to", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_converts_what_it_converts_for_torch(to):
    """Every float but float64. Other products of dtypes are refused as they are elsewhere."""
    converted = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn)
    with torch.autocast("cpu", to):
        for call, count in ((matmul, 2), (linear, 2), (linear, 3)):
            for dtypes in itertools.product(SOME_DTYPES, repeat=count):
                is_accepted = set(dtypes) <= set(converted) or set(dtypes) == {torch.float64}
                assert is_served(call, dtypes, is_cast=True) == is_accepted, (call, dtypes)
        assert matmul(of_dtype(torch.float32, 2), of_dtype(torch.float16, 2)).dtype == to


def test_errors_are_the_same_when_a_gradient_is_needed():
    weight = randn(3, 2).requires_grad_()
    with pytest.raises(ValueError, match="activation 'tanh' is not known"):
        linear(randn(2, 2), weight, activation="tanh")
    with pytest.raises(RuntimeError, match="do not fit"):
        linear(randn(2, 3), weight)
    with pytest.raises(TypeError, match="one dtype"):
        matmul(randn(2, 3).double(), weight)
    with pytest.raises(RuntimeError, match="bias has shape"):
        linear(randn(2, 2), weight, randn(2))
    vector = randn(3).requires_grad_()
    with pytest.raises(RuntimeError, match="bias has shape"):
        linear(randn(2, 3), vector, randn(2))
    with pytest.raises(TypeError, match="bias has dtype Double"):
        linear(randn(2, 3), vector, randn(1).double())
    with pytest.raises(RuntimeError, match=r"shapes of a \[4, 5, 2\] and b \[3, 2\]"):
        matmul(randn(4, 5, 2), weight)
    with pytest.raises(RuntimeError, match=r"shapes of a \[2\] and b \[3, 2\]"):
        matmul(randn(2), weight)
    with pytest.raises(RuntimeError, match=r"a \[2, 5, 3\] and b \[4, 3, 2\] do not broadcast"):
        matmul(randn(2, 5, 3), weight.expand(4, 3, 2))
    with pytest.raises(NotImplementedError, match="neon|avx2"):
        linear(randn(2, 2), weight, activation="gelu", algorithm=FOREIGN)


def test_an_instruction_set_that_the_machine_lacks_is_refused():
    why = "(the CPU lacks the instruction set|not compiled)"
    with pytest.raises(NotImplementedError, match=f"'{FOREIGN}' cannot serve this call on .*: {why}"):
        matmul(randn(2, 2), randn(2, 2), algorithm=FOREIGN)


def test_too_large_a_result_is_an_exception():
    with pytest.raises(RuntimeError):
        matmul(randn(1, 1).expand(1 << 30, 1), randn(1, 1).expand(1, 1 << 30))


# Chunks of dot products side by side; packed operands; on request columns in place.
LONG = [(1, 1), (9, 9)] + [(2, 3)] * (os.environ.get("TILEDMM_EVERY_M") == "1")


@pytest.mark.parametrize("m, n", LONG)
def test_more_than_two_to_the_31_elements(m, n):
    """More elements than 31 bits count, without the memory: numpy's zeros take none until they are written."""
    k = (1 << 31) + 8
    row = torch.from_numpy(np.zeros(k, np.int16)).view(torch.bfloat16)  # the dtype that takes least time
    row[0] = row[k // 2] = row[k - 1] = 1
    assert torch.equal(matmul(row.expand(m, k), row.expand(n, k).mT), torch.full((m, n), 3, dtype=row.dtype))


@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_packed_operands_of_more_than_two_to_the_31_elements(layout):
    """Rows of B, or columns of A, far apart along k; the other operand's rows far apart."""
    m, n, k = 9, 11, 130
    far, near = (
        torch.from_numpy(np.zeros((1 << 31) + (1 << 29), np.int16)).view(torch.bfloat16).as_strided(size, stride)
        for size, stride in (((k, n), (1 << 24, 1)), ((m, k), (1 << 28, 1)))
    )
    for operand in (far, near):
        operand.copy_(torch.rand(operand.shape) - 0.5)
    a, b = (near, far) if layout == "NN" else (far.mT, near.mT)
    assert_close(matmul(a, b), expect_matmul(a, b))

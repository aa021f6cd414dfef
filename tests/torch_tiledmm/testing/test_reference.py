"""The reference against exact sums, and the bounds against errors that they must tell apart."""

import math

import pytest
import torch

from torch_tiledmm.dispatch import DTYPES
from torch_tiledmm.testing import ACTIVATIONS, assert_close, expect_linear, expect_matmul

dtypes = pytest.mark.parametrize("dtype", DTYPES.values(), ids=list(DTYPES))


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype).uniform_(-1, 1, generator=torch.Generator().manual_seed(seed))


def good_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Accumulates in fp32 or fp64, one product after the other, rounds once."""
    acc_dtype = torch.float64 if a.dtype == torch.float64 else torch.float32
    acc = torch.zeros(a.shape[0], b.shape[1], dtype=acc_dtype)
    for p in range(a.shape[1]):
        acc = acc + a[:, p, None].to(acc_dtype) * b[None, p].to(acc_dtype)
    return acc.to(a.dtype)


@dtypes
def test_value_is_the_exact_sum(dtype):
    a, b = random(4, 9, dtype=dtype), random(9, 5, dtype=dtype, seed=1)
    expected = expect_matmul(a, b)
    for i in range(4):
        for j in range(5):
            exact = math.fsum(x * y for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True))
            assert abs(expected.value[i, j].item() - exact) < 1e-14


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear_is_that_of_torch(activation):
    x, weight, bias = (random(*shape, dtype=torch.float64) for shape in ((2, 3, 8), (5, 8), (5,)))
    plain = torch.nn.functional.linear(x, weight, bias)
    result = {
        "none": lambda: plain,
        "relu": lambda: plain.clamp(min=0),
        "gelu": lambda: plain * 0.5 * (1 + torch.erf(plain / math.sqrt(2))),
        "gelu_tanh": lambda: plain * torch.sigmoid(math.sqrt(8 / math.pi) * (plain + 0.044715 * plain**3)),
        "silu": lambda: plain * torch.sigmoid(plain),
    }[activation]()
    assert_close(result, expect_linear(x, weight, bias, activation))


@dtypes
@pytest.mark.parametrize("k", [0, 1, 2, 100, 3000])
def test_a_plain_sum_passes(dtype, k):
    a, b = random(6, k, dtype=dtype), random(k, 5, dtype=dtype, seed=1)
    assert_close(good_matmul(a, b), expect_matmul(a, b))
    assert_close(good_matmul(a.abs(), b.abs()), expect_matmul(a.abs(), b.abs()))


@dtypes
@pytest.mark.parametrize("k", [1, 7, 400])
def test_a_dropped_or_doubled_term_fails(dtype, k):
    a, b = random(6, k, dtype=dtype), random(k, 5, dtype=dtype, seed=1)
    for wrong in (
        good_matmul(a[:, 1:], b[1:]),
        good_matmul(torch.cat((a, a[:, :1]), 1), torch.cat((b, b[:1]))),
    ):
        with pytest.raises(AssertionError, match="elements wrong"):
            assert_close(wrong, expect_matmul(a, b))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_accumulation_in_a_short_dtype_fails(dtype):
    a, b = random(20, 256, dtype=dtype), random(256, 20, dtype=dtype, seed=1)
    acc = torch.zeros(20, 20, dtype=dtype)
    for p in range(256):
        acc = acc + a[:, p, None] * b[None, p]
    with pytest.raises(AssertionError):
        assert_close(acc, expect_matmul(a, b))


def test_frobenius_bound_sees_what_the_bound_per_element_cannot():
    a, b = random(30, 4000, dtype=torch.float32), random(4000, 30, dtype=torch.float32, seed=1)
    expected = expect_matmul(a, b)
    noise = torch.empty_like(expected.value).uniform_(-0.3, 0.3) * expected.bound
    with pytest.raises(AssertionError, match="Frobenius"):
        assert_close((expected.value + noise).float(), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_truncation_in_place_of_rounding_fails(dtype):
    a, b = random(6, 8, dtype=dtype), random(8, 5, dtype=dtype, seed=1)
    expected = expect_matmul(a, b)
    out = expected.value.to(dtype)
    assert_close(out, expected)
    is_up = out.double().abs() > expected.value.abs()
    truncated = torch.where(is_up, torch.nextafter(out, torch.zeros_like(out)), out)
    with pytest.raises(AssertionError, match=f"{int(is_up.sum())} of 30"):
        assert_close(truncated, expected)


@dtypes
def test_an_error_of_a_few_bounds_fails_and_is_named(dtype):
    a, b = random(6, 50, dtype=dtype), random(50, 5, dtype=dtype, seed=1)
    expected = expect_matmul(a, b)
    out = good_matmul(a, b)
    out[4, 2] = expected.value[4, 2] * (1 + 2 * torch.finfo(dtype).eps) + 4 * expected.bound[4, 2]
    with pytest.raises(AssertionError, match=r"element \(4, 2\) is .*reference .*bound .*1 of 30"):
        assert_close(out, expected)


@dtypes
@pytest.mark.parametrize("good, wrong", [(1.0, math.nan), (1.0, math.inf), (math.nan, 1.0), (math.inf, -math.inf)])
def test_nan_and_inf_must_be_where_the_reference_has_them(dtype, good, wrong):
    a, b = random(3, 4, dtype=dtype), torch.eye(4, dtype=dtype)[:, :2]
    expected = expect_matmul(a, b)
    expected.value[1, 1] = good
    expected.bound[1, 1] = 0
    out = expected.value.to(dtype, copy=True)
    assert_close(out, expected)
    out[1, 1] = wrong
    with pytest.raises(AssertionError, match=r"element \(1, 1\)"):
        assert_close(out, expected)


def test_nonfinite_operands_leave_the_bounds_of_other_rows_alone():
    a, b = random(3, 4, dtype=torch.float32), random(4, 5, dtype=torch.float32, seed=1)
    a[1, 2] = math.inf
    expected = expect_matmul(a, b)
    out = a @ b
    assert_close(out, expected)
    out[0, 0] += 1e-3
    with pytest.raises(AssertionError, match=r"element \(0, 0\)"):
        assert_close(out, expected)


def test_overflow_of_the_output_is_inf():
    a, b = torch.full((1, 1), 60000.0, dtype=torch.float16), torch.full((1, 1), 2.0, dtype=torch.float16)
    assert_close(torch.tensor([[math.inf]], dtype=torch.float16), expect_matmul(a, b))
    for wrong in (65504.0, -math.inf, math.nan):
        with pytest.raises(AssertionError):
            assert_close(torch.tensor([[wrong]], dtype=torch.float16), expect_matmul(a, b))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_flushed_denormals_fail(dtype):
    a = torch.full((2, 1), torch.finfo(dtype).tiny / 8, dtype=dtype)
    b = torch.ones(1, 2, dtype=dtype)
    assert_close((a.double() @ b.double()).to(dtype), expect_matmul(a, b))
    with pytest.raises(AssertionError):
        assert_close(torch.zeros(2, 2, dtype=dtype), expect_matmul(a, b))


def test_flushed_denormals_of_bf16_pass():
    a = torch.full((2, 3), torch.finfo(torch.bfloat16).tiny / 8, dtype=torch.bfloat16)
    b = torch.ones(3, 2, dtype=torch.bfloat16)
    assert_close(torch.zeros(2, 2, dtype=torch.bfloat16), expect_matmul(a, b))
    with pytest.raises(AssertionError):
        assert_close(torch.full((2, 2), 2.0**-120, dtype=torch.bfloat16), expect_matmul(a, b))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_wrong_or_missing_activation_fails(activation):
    x, weight = random(20, 30, dtype=torch.bfloat16), random(40, 30, dtype=torch.bfloat16, seed=1)
    out = expect_linear(x, weight, None, activation).value.to(torch.bfloat16)
    assert_close(out, expect_linear(x, weight, None, activation))
    for other in set(ACTIVATIONS) - {activation}:
        with pytest.raises(AssertionError):
            assert_close(out, expect_linear(x, weight, None, other))


def test_dtype_and_shape_must_match():
    a, b = random(3, 4, dtype=torch.float32), random(4, 5, dtype=torch.float32)
    with pytest.raises(AssertionError, match="dtype"):
        assert_close((a @ b).double(), expect_matmul(a, b))
    with pytest.raises(AssertionError, match="shape"):
        assert_close((a @ b).unsqueeze(0), expect_matmul(a, b))

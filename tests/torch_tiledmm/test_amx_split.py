"""algorithm="split" on a CPU with AMX: who serves it, its terms and flags by a model, and the products.

Products are computed where the machine has AMX, and in a copy of the package with emulated tiles by
../csrc/kernels/cpu/test_amx.py, where the bits of single elements are tested, too. That copy splits smaller products.
The bound is that of docs/numerics.md.
"""

import math

import pytest
import torch
from test_orders import sum_in_chunks
from test_split import DATA as COMMON_DATA
from test_split import U, check_one_hot_rows, check_single_products

import torch_tiledmm
from torch_tiledmm import TiledLinear, linear, matmul
from torch_tiledmm.testing.split_model import CHUNK_K, bf16_terms, simulated_amx_split_chunks

ONE_PRODUCT = 2.1  # its largest error, in U of it
HAS_AMX = torch_tiledmm.build_info().isa["cpu"] in ("amx", "amx_fp16")
on_amx = pytest.mark.skipif(not HAS_AMX, reason="amx_split needs AMX")


def candidate(*args, **kwargs):
    found = torch_tiledmm.explain(*args, **kwargs)
    return next(c for c in found.candidates if c.algorithm == "amx_split"), found.choice


def splits(m, n, k):
    """Whether such a product is one of terms, not of multiply-adds."""
    own = candidate(m, n, k, "fp32", device="cpu:amx")[0]
    chosen = {
        plan.algorithm for plan in torch_tiledmm.explain(m, n, k, "fp32", device="cpu:amx", plans_of="split").candidates
    }
    assert own.legal == any(name.startswith("amx_split") for name in chosen) and chosen
    return own.legal and own.config["path"] == "6 products in bf16"


MIN_N, MIN_K = (16, 64) if splits(1, 16, 64) else (1024, 1024)
MORE_N, MORE_K = MIN_N - 16, MIN_K - 64  # what products have to be larger by than those of the emulated package


def flags(x):
    """Which rows of a matrix are flagged."""
    largest = x.abs().nan_to_num(torch.inf, torch.inf).amax(1)
    return (largest != 0) & ((largest < 2.0**-50) | (largest > 2.0**60))


def error_bound(a, b):
    k = a.shape[1]
    a64, b64 = a.double().abs(), b.double().abs()
    sums, products = a64 @ b64, (a64 != 0).double() @ (b64 != 0).double()
    plain = (k + 2) * U * sums + (k + 2) * 2.0**-149
    if k < MIN_K or b.shape[1] < MIN_N:
        return plain
    adds = 19 + 6 * math.ceil(min(k, CHUNK_K) / 32) + math.ceil(k / CHUNK_K)
    small = 7 * k * 2.0**-126 + 2.0**-125 * (a64.sum(1)[:, None] + b64.sum(0))
    units = (6.1 * products - 4).clamp(0, adds)
    return torch.where(flags(a)[:, None] | flags(b.mT), plain, units * U * sums + small)


DATA = COMMON_DATA | {
    "small": lambda *shape: torch.randn(shape) * 2.0**-49,
    "near the largest": lambda *shape: torch.randn(shape).sign() * (1 - torch.rand(shape) / 8) * 2.0**127,
}
IN_RANGE = [name for name in DATA if name not in ("small", "denormal", "near the largest", "zero", "sparse")]


# ---- everywhere


def test_nobody_gets_it_without_asking():
    entries = {entry.name: entry for entry in torch_tiledmm.algorithms("cpu")}
    assert entries["amx_split"].rung == 0 and entries["amx_split"].order == "amx_split_chunks"
    assert not entries["amx_split"].is_native
    for size in (MIN_K, 1024, 4096):
        own, choice = candidate(size, size, size, "fp32", device="cpu:amx", num_threads=2)
        assert own.legal and own.cost_us > 0 and choice != "amx_split"
    assert 0 < own.config["workspace"] <= 28 << 20
    assert own.config["one_product_within"] == f"{ONE_PRODUCT}*2^-24"


@pytest.mark.parametrize(
    "dtype, device, reason",
    [
        ("fp16", "cpu:amx_fp16", "it serves fp32"),
        ("bf16", "cpu:amx", "it serves fp32"),
        ("fp64", "cpu:amx", "it serves fp32"),
        ("fp32", "cpu:avx512_bf16", "the CPU lacks AMX, or the system does not let this process use it"),
    ],
)
def test_refusals_have_reasons(dtype, device, reason):
    own, choice = candidate(64, 64, 64, dtype, device=device)
    assert not own.legal and own.reason == reason and choice != "amx_split"


def test_n_and_k_alone_decide_what_is_multiplied_plainly():
    for m in (1, 15, 5000):
        assert splits(m, 1024, 1024)
        for n, k in ((1024, 1023), (1023, 1024), (1023, 5000), (5000, 1)):
            assert not splits(m, n, k)


@pytest.mark.parametrize("name", DATA)
def test_terms_of_the_model(name):
    torch.manual_seed(1)
    x = DATA[name](40, 200)
    if name in ("near the largest", "denormal"):
        assert flags(x).all()
        return
    high, middle, low = bf16_terms(x)
    for term in (high, middle, low):
        assert torch.equal(term.bfloat16().float(), term)
    assert torch.equal(high.double() + middle.double() + low.double(), x.double())
    products = middle.double().abs() * low.double().abs() * 2 + low.double() ** 2  # of x by itself
    assert (products <= 1.01 * U * x.double() ** 2).all()


def near_the_worst(count):
    """Numbers whose middle and low terms are large; the first two have the product that a search found to be met
    worst."""
    x = 1 + (2**15 - 1 - torch.randint(0, 2**10, (count,))) * 2.0**-23
    x[:2] = torch.tensor([float.fromhex("0x1.00ff8p0"), float.fromhex("0x1.00fe8p0")])
    return x


def test_a_single_product_of_the_model_is_within_its_bound_and_near_it():
    torch.manual_seed(9)
    check_single_products(simulated_amx_split_chunks, 70, ONE_PRODUCT, 1.9, near_the_worst)
    check_one_hot_rows(simulated_amx_split_chunks, 70, 0)


# ---- with AMX


def split(a, b):
    return matmul(a, b, algorithm="split")


@on_amx
def test_the_kernel_has_the_models_bits_on_amx():
    """Dense and sparse rows, single products among them."""
    torch.manual_seed(10)
    for name in ("normal", "lognormal 4", "sparse"):
        a, b = DATA[name](30, MIN_K + 500), DATA[name](MIN_K + 500, MIN_N)
        assert torch.equal(split(a, b), simulated_amx_split_chunks(a, b)), name


def strided(x):
    """The same values where no stride is 1."""
    base = torch.full((2 * x.shape[0], 3 * x.shape[1]), torch.nan)
    base[::2, ::3] = x
    return base[::2, ::3]


def same(x, y):
    return torch.equal(x.nan_to_num(7.5), y.nan_to_num(7.5))


def check(a, b, out):
    difference = (out.double() - a.double() @ b.double()).abs()
    worst = (difference / error_bound(a, b).clamp_min(2.0**-1000)).max().item()
    assert worst <= 1, f"{worst} times the bound"


@on_amx
@pytest.mark.parametrize("name", DATA)
def test_bound_layouts_and_flagged_lanes_on_amx(name):
    torch.manual_seed(2)
    for m, n, k in [(1, 16, 64), (33, 47, 70), (65, 130, 577), (20, 300, 1088)]:
        n, k = n + MORE_N, k + MORE_K
        a, b = DATA[name](m, k), DATA[name](k, n)
        expected = split(a, b)
        if name != "near the largest":
            check(a, b, expected)
        is_flagged = flags(a)[:, None] | flags(b.mT)
        assert is_flagged.all() if name in ("denormal", "near the largest") else not is_flagged.all()
        assert same(torch.where(is_flagged, matmul(a, b, algorithm="native"), expected), expected)
        for way_a in (a.mT.contiguous().mT, strided(a)):
            assert same(split(way_a, b), expected)
        for way_b in (b.mT.contiguous().mT, strided(b)):
            assert same(split(a, way_b), expected)
        for out in (torch.full((n, m), torch.nan).mT, strided(torch.zeros(m, n))):
            torch.ops.tiledmm.matmul_out(a, b, out, algorithm="split")
            assert same(out, expected)


@on_amx
@pytest.mark.parametrize("k", [MIN_K, MIN_K + 436, 3000])
@pytest.mark.parametrize("name", IN_RANGE)
def test_errors_are_at_most_those_of_multiply_adds_on_amx(name, k):
    torch.manual_seed(3)
    a, b = DATA[name](48, k), DATA[name](k, 48 + MIN_N)
    exact, sums = a.double() @ b.double(), (a.double().abs() @ b.double().abs()).clamp_min(2.0**-1000)

    def errors(out):
        error = (out.double() - exact).abs() / sums / U
        return error.max().item(), error.square().mean().sqrt().item()

    own, plain = errors(split(a, b)), errors(sum_in_chunks(a, b, CHUNK_K))
    print(
        f"{name}, k {k}: largest and rms error {own[0]:.3f} {own[1]:.4f}, multiply-adds {plain[0]:.3f} {plain[1]:.4f}"
    )
    assert own[0] <= plain[0] and own[1] <= plain[1]


@on_amx
def test_a_long_sum_of_positive_numbers_on_amx():
    torch.manual_seed(4)
    a, b = torch.rand(16, 1 << 17), torch.rand(1 << 17, MIN_N)
    exact = a.double() @ b.double()
    own, plain = ((matmul(a, b, algorithm=name).double() - exact).abs() / exact for name in ("split", "native"))
    assert own.max() <= plain.max() and own.square().mean() <= plain.square().mean()


@on_amx
def test_cancellation_on_amx():
    a = torch.full((9, 4096), 1 + 2**-8 + 2**-20)
    a[:, 1::2] *= -1
    assert (split(a, torch.ones(4096, MIN_N + 1)) == 0).all()


@on_amx
def test_rows_do_not_know_their_neighbours_on_amx():
    torch.manual_seed(5)
    k = MIN_K + 936
    a, b = torch.randn(300, k), torch.randn(k, 100 + MORE_N)
    whole = split(a, b)
    for first, rows in ((0, 1), (3, 2), (127, 130), (260, 40)):
        assert torch.equal(split(a[first : first + rows], b), whole[first : first + rows])
    for first, cols in ((0, MIN_N), (13, 87 + MORE_N)):
        assert torch.equal(split(a, b[:, first : first + cols]), whole[:, first : first + cols])
    items = a[:60].reshape(3, 20, k)
    batch = split(items, torch.stack([b, b * 2, b]))
    assert torch.equal(batch, torch.stack([whole[:20], 2 * whole[20:40], whole[40:60]]))
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(split(a, b), whole)
    finally:
        torch.set_num_threads(threads)


@on_amx
def test_flagged_rows_leave_the_others_unchanged_on_amx():
    torch.manual_seed(6)
    k, n = 700 + MORE_K, 90 + MORE_N
    a, b = torch.randn(100, k), torch.randn(k, n)
    clean = split(a, b)
    wrong_a, wrong_b = a.clone(), b.clone()
    wrong_a[5, 600], wrong_a[31, 1], wrong_a[32, 3], wrong_a[99] = torch.inf, torch.nan, 2.0**100, 2.0**-70
    wrong_b[0, 7], wrong_b[k - 1, n - 1] = 3e38, -torch.inf
    out, plain = split(wrong_a, wrong_b), matmul(wrong_a, wrong_b, algorithm="native")
    is_flagged = flags(wrong_a)[:, None] | flags(wrong_b.mT)
    assert is_flagged.sum(0).min() == 4 and is_flagged.sum(1).min() == 2
    assert torch.equal(torch.where(is_flagged, 0, out), torch.where(is_flagged, 0, clean))
    torch.testing.assert_close(out[is_flagged], plain[is_flagged], rtol=0, atol=0, equal_nan=True)


@on_amx
@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "gelu_tanh", "silu"])
def test_linear_with_bias_and_activation_on_amx(activation):
    torch.manual_seed(7)
    n, k = 140 + MORE_N, 520 + MORE_K
    x, w, bias = torch.randn(50, k), torch.randn(n, k) / 20, torch.randn(n)
    x[3], w[9] = x[3] * 2.0**-60, w[9] * 2.0**-60  # computed by multiply-adds
    sums = x.double() @ w.double().mT + bias
    functions = {
        "none": lambda v: v,
        "relu": torch.relu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda v: torch.nn.functional.gelu(v, approximate="tanh"),
        "silu": torch.nn.functional.silu,
    }
    out = linear(x, w, bias, activation=activation, algorithm="split")
    torch.testing.assert_close(out.double(), functions[activation](sums), rtol=1e-5, atol=2e-5)


@on_amx
def test_backward_is_split_too_on_amx():
    torch.manual_seed(8)
    inputs, outputs, rows = 96 + MORE_N, 64 + MORE_N, 80 + MORE_K
    layer = TiledLinear(inputs, outputs, algorithm="split")
    x = torch.randn(rows, inputs, requires_grad=True)
    grad = torch.randn(rows, outputs)
    layer(x).backward(grad)
    assert torch.equal(x.grad, split(grad, layer.weight))
    assert torch.equal(layer.weight.grad, split(grad.mT, x))


@on_amx
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_dtypes_are_refused_on_amx(dtype):
    a = torch.ones(64, 64, dtype=dtype)
    with pytest.raises(NotImplementedError, match="'split' cannot serve this call on amx.*: it serves fp32"):
        split(a, a)

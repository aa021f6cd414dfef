"""The mode: every operator and form of aten that it stands for, everywhere torch computes; nothing of it stays behind.

Planted bugs that these tests caught: flags of attention, Inductor's settings or decompositions that stay as the mode
set them; decompositions that are not taken out; overrides that outlive disable(); counts that survive enable(). Bugs
of the first version that they found: parts of a function that torch shared out among threads once more, so that ends
differed; operands that are not an operator's first arguments.
"""

import collections
import contextlib
import itertools
import os
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_tiledmm
from torch_tiledmm import batch_invariant_ops, mode
from torch_tiledmm.testing.cases import assert_same_bits

HAS_GPU = torch.cuda.is_available()
DEVICES = ["cpu", *["cuda"] * HAS_GPU]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
ATEN = torch.ops.aten


@pytest.fixture(autouse=True)
def off_afterwards():
    yield
    torch_tiledmm.disable()


def served() -> dict[str, int]:
    """Calls of each operator, by whatever kernel."""
    found = collections.Counter()
    for calls in torch_tiledmm.report().served:
        found[calls.operator] += calls.count
    return dict(found)


def left() -> dict[str, str]:
    return {calls.operator: calls.by for calls in torch_tiledmm.report().left}


def operands(dtype: torch.dtype, device: str = "cpu", batch: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    """(7, 33) and (33, 21) of odd strides."""
    a = torch.randn(*batch, 33, 9).to(device, dtype).mT[..., 1:8, :]
    b = torch.randn(*batch, 33, 43).to(device, dtype)[..., ::2][..., :21]
    return a, b


def expect(actual: Tensor, *terms: tuple[Tensor, Tensor, float], added: Tensor | float = 0.0) -> None:
    """What the sum of products and something added is, within a bound for the sums and one rounding of each part."""
    exact = added.double() if isinstance(added, Tensor) else torch.tensor(added, dtype=torch.float64)
    magnitude = exact.abs()
    k = 0
    for a, b, alpha in terms:
        exact = exact + alpha * (a.double() @ b.double())
        magnitude = magnitude + abs(alpha) * (a.double().abs() @ b.double().abs())
        k += a.shape[-1]
    unit = 2.0**-53 if actual.dtype == torch.float64 else 2.0**-24
    limit = (k + 4) * unit * magnitude + torch.finfo(actual.dtype).eps * exact.abs()
    assert not actual.isnan().any() and ((actual.double() - exact).abs() <= limit).all()


# Calls of every row of the products' tables, each with what it computes: (a, b, alpha), and what is added.
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_operator_and_form(dtype, device):
    a, b = operands(dtype, device)
    batch_a, batch_b = operands(dtype, device, (3,))
    matrix, row, column = (torch.randn(*size).to(device, dtype) for size in ((7, 21), (21,), (7, 1)))
    batch_matrix = torch.randn(3, 7, 21).to(device, dtype)
    vector, other = b[:, 0], torch.randn(33).to(device, dtype)
    rows = torch.randn(7).to(device, dtype)

    def new(*size: int) -> Tensor:
        return torch.full(size, torch.nan, dtype=dtype, device=device)

    torch_tiledmm.enable()
    expect(torch.mm(a, b), (a, b, 1))
    expect(torch.mm(a, b, out=new(7, 21)), (a, b, 1))
    expect(torch.bmm(batch_a, batch_b), (batch_a, batch_b, 1))
    expect(torch.bmm(batch_a, batch_b, out=new(3, 7, 21)), (batch_a, batch_b, 1))
    expect(torch.mv(a, vector), (a, vector, 1))
    expect(torch.mv(a, vector, out=new(7)), (a, vector, 1))
    expect(torch.dot(vector, other), (vector, other, 1))
    expect(torch.dot(vector, other, out=new()), (vector, other, 1))
    expect(torch.vdot(vector, other), (vector, other, 1))
    for added in (matrix, row, column, matrix[:1, :1].reshape(())):
        expect(torch.addmm(added, a, b, beta=0.5, alpha=2), (a, b, 2), added=0.5 * added)
        expect(torch.addmm(added, a, b, beta=-1, out=new(7, 21)), (a, b, 1), added=-added)
    expect(matrix.clone().addmm_(a, b, beta=3), (a, b, 1), added=3 * matrix.double())
    expect(matrix.mT.clone().mT.addmm_(a, b), (a, b, 1), added=matrix)
    for added in (batch_matrix, matrix, row):
        expect(torch.baddbmm(added, batch_a, batch_b, alpha=-2), (batch_a, batch_b, -2), added=added)
        expect(torch.baddbmm(added, batch_a, batch_b, out=new(3, 7, 21)), (batch_a, batch_b, 1), added=added)
    expect(batch_matrix.clone().baddbmm_(batch_a, batch_b), (batch_a, batch_b, 1), added=batch_matrix)
    expect(torch.addmv(rows, a, vector, beta=2, alpha=3), (a, vector, 3), added=2 * rows.double())
    expect(torch.addmv(rows[0], a, vector, out=new(7)), (a, vector, 1), added=rows[0])
    expect(rows.clone().addmv_(a, vector), (a, vector, 1), added=rows)
    gelu = ATEN._addmm_activation(row, a, b, use_gelu=True)
    exact = a.double() @ b.double() + row.double()
    approximate = "none" if device == "cpu" else "tanh"
    torch.testing.assert_close(gelu.double(), F.gelu(exact, approximate=approximate), rtol=2e-2, atol=2e-2)
    relu = ATEN._addmm_activation.out(row, a, b, out=new(7, 21))
    torch.testing.assert_close(relu.double(), exact.relu(), rtol=2e-2, atol=2e-2)
    # Those that call others.
    added = torch.addbmm(matrix, batch_a, batch_b)
    torch.testing.assert_close(added.double(), (batch_a.double() @ batch_b.double()).sum(0) + matrix.double(),
                               rtol=5e-2, atol=5e-1)  # fmt: skip
    expect(F.linear(a, b.mT, row), (a, b, 1), added=row)
    expect(torch.einsum("bij,bjk->bik", batch_a, batch_b), (batch_a, batch_b, 1))
    expect(torch.tensordot(a, b, 1), (a, b, 1))
    names = (
        "mm mm.out bmm bmm.out mv mv.out dot vdot addmm addmm.out addmm_ baddbmm baddbmm.out baddbmm_ addmv addmv.out"
    )
    assert {*names.split(), "addmv_", "_addmm_activation", "_addmm_activation.out"} <= set(served())
    assert left() == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_groups(dtype):
    """aten's _grouped_mm on a CPU: what torch serves by ours, with gradients, and what torch does not serve, too."""
    x, weights = torch.randn(31, 48).to(dtype).requires_grad_(), torch.randn(3, 48, 33).to(dtype).requires_grad_()
    offs = torch.tensor([9, 9, 31], dtype=torch.int32)
    expected = torch_tiledmm.grouped_matmul(x, weights, offs=offs)
    grad = torch.randn(31, 33).to(dtype)
    grads = torch.autograd.grad(expected, (x, weights), grad)
    torch_tiledmm.enable()
    actual = F.grouped_mm(x, weights, offs=offs)
    assert_same_bits(actual, expected)
    for own, other in zip(torch.autograd.grad(actual, (x, weights), grad), grads, strict=True):
        assert_same_bits(own, other)
    assert served()["_grouped_mm"] == 3 and left() == {}
    batch = F.grouped_mm(x[:30].view(3, 10, 48), weights)
    assert_same_bits(batch, torch_tiledmm.grouped_matmul(x[:30].view(3, 10, 48), weights))
    columns = F.grouped_mm(weights.mT, x.mT, offs=offs)
    assert_same_bits(columns, torch_tiledmm.grouped_matmul(weights.mT, x.mT, offs=offs))
    # Rows begin at multiples of 16 bytes, as torch's do, and compiled code asserts it.
    unit = 16 // dtype.itemsize
    row, row_of_columns = 33 + -33 % unit, 31 + -31 % unit
    assert (actual.stride(), batch.stride()) == ((row, 1), (10 * row, row, 1))
    assert columns.stride() == (row_of_columns, 1)


def test_groups_that_are_none_of_ours():
    """What torch makes of them, its errors among that."""
    x, weights = torch.randn(8, 48), torch.randn(2, 48, 16)
    beyond = torch.tensor([4, 9], dtype=torch.int32)
    expected = F.grouped_mm(x, weights, offs=beyond)
    torch_tiledmm.enable()
    torch.testing.assert_close(F.grouped_mm(x, weights, offs=beyond), expected)
    assert left() == {"_grouped_mm": "operands that do not fit"}
    for operand, offs in ((x.half(), beyond), (x, beyond.long()), (x[:, :16], beyond)):
        with pytest.raises(RuntimeError) as error:
            F.grouped_mm(operand, weights, offs=offs)
        assert "tiledmm" not in str(error.value)


@pytest.mark.skipif(not HAS_GPU, reason="aten has these for GPUs alone")
@pytest.mark.parametrize("narrow", (torch.float16, torch.bfloat16), ids=str)
def test_forms_with_a_dtype(narrow):
    ops, wide = torch.ops.aten, torch.float32
    a, b = operands(narrow, "cuda")
    matrix = torch.randn(a.shape[0], b.shape[1]).to("cuda")
    torch_tiledmm.enable()
    for dtype in (narrow, wide):
        expected = torch_tiledmm.matmul(a, b, out_dtype=dtype)
        for out in (
            ops.mm.dtype(a, b, dtype),
            ops.mm.dtype_out(a, b, dtype, out=torch.empty_like(expected)),
            ops.bmm.dtype(a[None], b[None], dtype)[0],
            ops.bmm.dtype_out(a[None], b[None], dtype, out=torch.empty_like(expected[None]))[0],
        ):
            assert torch.equal(out, expected)
        for added in {matrix.to(narrow), matrix.to(dtype)}:
            expected = torch_tiledmm.addmm(added, a, b, beta=0.5, alpha=2, out_dtype=dtype)
            for out in (
                ops.addmm.dtype(added, a, b, dtype, beta=0.5, alpha=2),
                ops.addmm.dtype_out(added, a, b, dtype, beta=0.5, alpha=2, out=torch.empty_like(expected)),
                ops.baddbmm.dtype(added[None], a[None], b[None], dtype, beta=0.5, alpha=2)[0],
            ):
                assert torch.equal(out, expected)
    assert (served()["mm.dtype"], served()["baddbmm.dtype"], left()) == (2, 4, {})
    with pytest.raises((RuntimeError, NotImplementedError)):
        ops.mm.dtype(a, b, torch.float64)
    assert left()["mm.dtype"] == "a result of another dtype"


SAMPLED = ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "vdot", "addbmm", "matmul", "einsum", "__rmatmul__",
           "nn.functional.linear", "nn.functional.bilinear", "tensordot", "linalg.multi_dot", "inner", "outer",
           "nn.functional.silu", "nn.functional.gelu", "sigmoid", "nn.functional.softplus", "nn.functional.mish",
           "nn.functional.elu", "rsqrt", "pow", "softmax", "sum", "mean", "var", "std", "var_mean", "std_mean",
           "cumsum", "linalg.vector_norm", "norm", "add", "sub", "logaddexp", "softshrink")  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SAMPLED)
def test_torch_s_own_samples(name, device):
    """Shapes, strides and arguments as torch's tests have them, in dtypes that are served and those that are not."""
    pytest.importorskip("expecttest")  # torch's tests need it
    from torch.testing._internal.common_methods_invocations import op_db

    for op in (op for op in op_db if op.name == name):
        supported = op.dtypes if device == "cpu" else op.dtypesIfCUDA
        for dtype in {torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.complex64} & set(supported):
            for sample in op.sample_inputs(device, dtype):

                def call(op=op, sample=sample):
                    return op(sample.input, *sample.args, **sample.kwargs)

                torch_tiledmm.disable()
                expected = call()
                torch_tiledmm.enable()
                actual = call()
                tolerance = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 4e-2}.get(dtype, 2e-5)
                torch.testing.assert_close(actual, expected, rtol=tolerance, atol=10 * tolerance, equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_not_added_is_not_read(device):
    a, b = operands(torch.float32, device)
    nan = torch.full((7, 21), torch.nan, device=device)
    torch_tiledmm.enable()
    expect(torch.addmm(nan, a, b, beta=0), (a, b, 1))
    expect(nan.clone().addmm_(a, b, beta=0), (a, b, 1))
    zero = torch.addmm(nan.nan_to_num(2.0), a * torch.nan, b, alpha=0)
    assert (zero == 2).all() or zero.isnan().all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("k", (5, 400, 5000))
def test_results_that_share_memory(k, device):
    """With what is added, in any way, and with an operand."""
    memory = torch.randn(2 * 90 * 90, device=device)
    a, b = torch.randn(80, k, device=device), torch.randn(k, 80, device=device)
    torch_tiledmm.enable()
    for strides, offset in (((90, 1), 0), ((1, 90), 0), ((90, 1), 1)):
        own = memory.clone()
        out, added = own.as_strided((80, 80), (90, 1), 0), own.as_strided((80, 80), strides, offset)
        expected = torch.addmm(added, a, b)
        assert torch.equal(torch.addmm(added, a, b, out=out), expected)
    own = memory.clone()
    square, out = own.as_strided((80, 80), (80, 1), 0), own.as_strided((80, 80), (80, 1), 40)
    expected = square @ square
    assert torch.equal(torch.mm(square, square, out=out), expected)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_a_result_is_resized():
    a, b = operands(torch.float32)
    torch_tiledmm.enable()
    for out in (torch.empty(0), torch.empty(3, 4)):
        expect(torch.mm(a, b, out=out), (a, b, 1))
        assert out.shape == (7, 21)
    with pytest.raises(RuntimeError):
        torch.randn(3, 4).addmm_(a, b)


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.mm(torch.ones(2, 3, dtype=torch.int64), torch.ones(3, 2, dtype=torch.int64)),
        lambda: torch.mm(torch.ones(2, 3, dtype=torch.complex64), torch.ones(3, 2, dtype=torch.complex64)),
        lambda: torch.mm(torch.ones(2, 3).to_sparse(), torch.ones(3, 2)),
        lambda: torch.ones(2, 3).to_sparse_csr() @ torch.ones(3, 2),
        lambda: torch.ones(2, 3, device="meta") @ torch.ones(3, 2, device="meta"),
        lambda: torch.sigmoid(torch.arange(3)),
        lambda: torch.pow(torch.ones(3), 1 + 2j),
        lambda: torch.var(300 * torch.arange(21.0).half().view(7, 3), 1, out=torch.full((7,), torch.nan)),
    ],
)
def test_what_is_not_served_is_torch_s(call):
    expected = call()
    with torch_tiledmm.enabled():
        actual = call()
        assert actual.dtype == expected.dtype and actual.device == expected.device
        if not expected.is_meta:
            assert torch.equal(actual.to_dense(), expected.to_dense())


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.mm(torch.randn(2, 3), torch.randn(4, 2)),
        lambda: torch.mm(torch.randn(2, 3), torch.randn(3)),
        lambda: torch.mm(torch.randn(2, 3), torch.randn(3, 2).double()),
        lambda: torch.dot(torch.randn(2), torch.randn(3)),
        lambda: torch.addmm(torch.randn(5), torch.randn(2, 3), torch.randn(3, 2)),
        lambda: torch.std(torch.randn(2, 3), 1, out=torch.zeros(2, dtype=torch.int64)),
        lambda: torch.linalg.vector_norm(torch.randn(5).half(), dtype=torch.bfloat16),
        lambda: torch.linalg.vector_norm(torch.randn(5).bfloat16(), dtype=torch.float16),
    ],
)
def test_torch_s_errors_stay(call):
    with pytest.raises(RuntimeError) as expected:
        call()
    with torch_tiledmm.enabled(), pytest.raises(RuntimeError) as actual:
        call()
    assert str(actual.value) == str(expected.value)


def test_algorithms():
    """One that refuses a call leaves it to auto; one that nobody knows is refused at once."""
    a, b = operands(torch.float32)
    for algorithm, kernel in (("naive", "naive"), ("wgmma", None)):
        torch_tiledmm.disable()
        torch_tiledmm.enable(algorithm, devices=["cpu"])
        expect(a @ b, (a, b, 1))
        (calls,) = torch_tiledmm.report().served
        assert kernel is None or calls.by.startswith(kernel)
    for arguments in ({"algorithm": "fast"}, {"devices": ["gpu"]}, {"devices": "cpu"}, {"cover": ["all"]}):
        with pytest.raises(ValueError, match="got"):
            torch_tiledmm.enable(**arguments)


@pytest.mark.parametrize("device", DEVICES)
def test_derivatives(device):
    a, b = (torch.randn(*size, dtype=torch.float64, device=device, requires_grad=True) for size in ((3, 4), (4, 5)))
    c = torch.randn(5, dtype=torch.float64, device=device, requires_grad=True)

    def product(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return F.silu(torch.addmm(c, a, b)).mean(-1)

    with torch_tiledmm.enabled():
        assert torch.autograd.gradcheck(product, (a, b, c), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(product, (a, b, c))
        per_sample = torch.func.vmap(torch.func.grad(lambda row: (row @ b).pow(2).sum()))(a.detach())
        torch.testing.assert_close(per_sample, (2 * a @ b @ b.mT).detach())
        names = served()
        assert names["mm"] and names["addmm"]


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_casts_as_ever(device):
    a, b = torch.randn(5, 6, device=device), torch.randn(6, 7, device=device)
    with torch_tiledmm.enabled(), torch.autocast(device, torch.bfloat16):
        product = a @ b
        assert product.dtype == torch.bfloat16
    expect(product, (a.bfloat16(), b.bfloat16(), 1))


def attention_model(device: str) -> nn.Module:
    return nn.TransformerEncoderLayer(48, 4, 96, dropout=0, batch_first=True, activation="gelu", device=device).eval()


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_a_model_do_not_depend_on_the_batch(device):
    """Forward and the gradients of inputs, each item alone and with others; without the mode this fails."""
    model = attention_model(device).requires_grad_(False)

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone().requires_grad_()
        y = model(x)
        return y.detach(), torch.autograd.grad(y.pow(2).mean((1, 2)).sum(), x)[0]

    x = torch.randn(16, 37, 48, device=device)
    with torch_tiledmm.enabled():
        whole = run(x)
        for rows in (1, 2, 5, 15):
            for part, expected in zip(run(x[:rows]), whole, strict=True):
                assert torch.equal(part, expected[:rows])


FUNCTIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "softplus of parameters": lambda x: F.softplus(x, 2.0, 5.0),
    "mish": F.mish,
    "elu": lambda x: F.elu(x, 0.7),
    "rsqrt": lambda x: x.abs().rsqrt(),
    "pow": lambda x: x.abs().pow(0.7),
    "pow of tensors": lambda x: torch.pow(x.abs(), x),
    "pow of a number by a tensor": lambda x: torch.pow(1.7, x),
    "exp2": torch.exp2,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "atan2": lambda x: torch.atan2(x, x.detach() + 1),
    "hypot": lambda x: torch.hypot(x, x.detach() + 1),
    "atanh": lambda x: torch.atanh(x.clamp(-0.9, 0.9)),
    "logaddexp": lambda x: torch.logaddexp(x, x.detach() / 2),
    "logaddexp2": lambda x: torch.logaddexp2(x, x.detach() / 2),
    "igamma": lambda x: torch.igamma(x.detach().abs() + 0.1, x.abs()),
    "i0e": torch.special.i0e,
    "softshrink": F.softshrink,
    "sum": lambda x: torch.add(x, x.detach() + 1, alpha=0.3),
    "difference": lambda x: torch.sub(x, x.detach() + 1, alpha=0.3),
    "difference from a number": lambda x: torch.rsub(x, 1.7, alpha=0.3),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_each_element(name, dtype):
    """An element's bits, and those of its gradient, wherever it lies, on any number of threads; torch's values."""
    function = FUNCTIONS[name]
    x = torch.randn(300, 333).to(dtype)

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        y = function(x)
        return y.detach(), torch.autograd.grad(y, x, torch.ones_like(y))[0]

    expected, strides = both(x), [part.stride() for part in both(x.mT)]
    with torch_tiledmm.enabled():
        whole = both(x)
        for threads in (1, 3):
            torch.set_num_threads(threads)
            for rows in (slice(0, 1), slice(7, 9), slice(1, 300)):
                for part, own in zip(both(x[rows]), whole, strict=True):
                    assert_same_bits(part, own[rows])
        for part, own in zip(both(x[::3, ::2]), whole, strict=True):
            assert_same_bits(part, own[::3, ::2])
        for part, own, stride in zip(both(x.mT), whole, strides, strict=True):
            assert_same_bits(part, own.mT)
            assert part.stride() == stride
        for part, own in zip(both(x[4, 5]), whole, strict=True):
            assert_same_bits(part, own[4, 5])
    for part, own in zip(whole, expected, strict=True):  # torch's code for ends of rsqrt rounds twice
        torch.testing.assert_close(part, own, rtol=4 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)


def test_functions_in_place_and_into_results():
    x = torch.randn(5, 77)
    with torch_tiledmm.enabled():
        expected = F.silu(x)
        assert torch.equal(F.silu(x.clone(), inplace=True), expected)
        assert torch.equal(ATEN.silu.out(x, out=torch.empty(0)), expected)
        out = torch.full((5, 154), torch.nan)[:, ::2]
        assert torch.equal(ATEN.silu.out(x, out=out), expected)
        shifted = torch.randn(400)
        x, out = shifted[:385].view(5, 77), shifted[1:386].view(5, 77)
        expected = F.silu(x)
        assert torch.equal(ATEN.silu.out(x, out=out), expected)
        assert F.silu(torch.empty(0, 3)).shape == (0, 3)


def test_nothing_stays_behind():
    """Bits, flags and tables are what they were, whatever happened inside."""
    from torch._inductor import config, decomposition

    a, b = torch.randn(64, 500), torch.randn(500, 70)
    x = torch.randn(1001)
    before = a @ b, F.silu(x)
    tables = decomposition.decompositions, decomposition.fast_random_decomps()
    sizes = [len(table) for table in tables]
    assert config.shape_padding and all(torch.ops.aten.mm.default in table for table in tables), (
        "an earlier test's mode"
    )
    flags = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.cudnn_sdp_enabled(), config.shape_padding
    with contextlib.suppress(ZeroDivisionError), torch_tiledmm.enabled("naive"):
        assert not torch.backends.cuda.flash_sdp_enabled() and not config.shape_padding
        assert all(torch.ops.aten.mm.default not in table for table in tables)
        assert not torch.equal(a @ b, before[0])
        1 / 0  # noqa: B018
    assert torch.equal(a @ b, before[0]) and torch.equal(F.silu(x), before[1])
    assert [len(table) for table in tables] == sizes
    assert flags == (
        torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.cudnn_sdp_enabled(), config.shape_padding
    )  # fmt: skip
    count = served()["mm"]
    a @ b
    assert served()["mm"] == count


def test_nesting_and_switching():
    a, b = operands(torch.float32)

    def kernel() -> str:
        torch.ops.tiledmm._clear_mode_counts()
        a @ b
        found = torch_tiledmm.report().served
        return found[0].by if found else "torch"

    @torch_tiledmm.enabled("naive", devices=["cpu"])
    def decorated() -> str:
        return kernel()

    assert kernel() == "torch" and decorated().startswith("naive") and kernel() == "torch"
    with torch_tiledmm.enabled():
        outer = kernel()
        with torch_tiledmm.enabled("naive"):
            assert kernel().startswith("naive")
            torch_tiledmm.disable()
            assert kernel() == "torch"
        assert kernel() == outer != "torch" and torch_tiledmm.is_enabled()
        with torch_tiledmm.enabled(cover=["functions"]):
            assert kernel() == "torch"
    assert not torch_tiledmm.is_enabled()
    torch_tiledmm.enable(devices=[])
    assert kernel() == "torch"


def test_threads_share_the_mode():
    a, b = operands(torch.float32)
    results = []
    with torch_tiledmm.enabled():
        expected = a @ b
        threads = [threading.Thread(target=lambda: results.append(a @ b)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert served()["mm"] == 5
    assert all(torch.equal(result, expected) for result in results)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_fork():
    code = """
import os, torch, torch_tiledmm
torch_tiledmm.enable()
a, b = torch.randn(65, 300), torch.randn(300, 70)
x = torch.randn(40_001)
expected = a @ b, torch.sigmoid(x)
pid = os.fork()
if pid == 0:
    found = a @ b, torch.sigmoid(x)
    same = all((own.numpy() == other.numpy()).all() for own, other in zip(found, expected))
    os._exit(0 if same and torch_tiledmm.is_enabled() else 1)
assert os.waitpid(pid, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_compiled_code_is_eager():
    """With one compilation for each number of dimensions that changes; also where a side is 1, which Inductor would
    decompose; and enabled in the middle of what is compiled.
    """
    weight, bias = torch.randn(40, 24), torch.randn(24)

    def function(x: Tensor) -> Tensor:
        return (
            torch.addmm(bias, x, weight) @ weight[:24, :1]
            + (x[:1] @ weight[:, :1])
            + torch.mv(x, weight[:, 0])[:, None]
        )

    torch._dynamo.reset()
    with torch_tiledmm.enabled():
        compiled = torch.compile(function, fullgraph=True, dynamic=True)
        for rows in (3, 5, 17, 64):
            x = torch.randn(rows, 40)
            assert torch.equal(compiled(x), function(x))
        assert {"mm.out", "addmm.out"} & set(served())
        assert any("compiled code" in line for line in torch_tiledmm.report().may_vary)
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="compiled before") if mode._has_compiled() else contextlib.nullcontext():
        torch_tiledmm.enable()


def test_export_and_fake_tensors():
    class Product(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a @ b

    a, b = operands(torch.float32)
    with torch_tiledmm.enabled():
        program = torch.export.export(Product(), (a, b))
        assert torch.equal(program.module()(a, b), a @ b)
        assert "aten.mm" in program.graph_module.code or "aten.matmul" in program.graph_module.code
        with FakeTensorMode():
            assert (torch.empty(3, 4) @ torch.empty(4, 5)).shape == (3, 5)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_distributed_tensors_and_fully_sharded_layers(tmp_path):
    """In one process: products of local tensors are ours, the layouts torch's."""
    code = f"""
import torch, torch_tiledmm
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
distributed.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
a, b = torch.randn(8, 6), torch.randn(6, 4)
with torch_tiledmm.enabled():
    x, w = distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(b, mesh, [Replicate()]).requires_grad_()
    y = x @ w
    y.sum().backward()
    assert torch.equal(y.full_tensor(), a @ b) and w.grad.full_tensor().shape == b.shape
    layer = nn.Linear(6, 4)
    fully_shard(layer, mesh=mesh)
    layer(a).sum().backward()
    assert layer.weight.grad.shape == (4, 6)
    assert {{"mm", "addmm"}} <= {{calls.operator for calls in torch_tiledmm.report().served}}
distributed.destroy_process_group()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


@pytest.mark.parametrize("device", DEVICES)
def test_attention(device):
    """By backends that do not vary, unless the user asks for one."""
    query, key, value = (torch.randn(4, 4, 33, 64, device=device) for _ in range(3))
    with torch_tiledmm.enabled():
        whole = F.scaled_dot_product_attention(query, key, value)
        for rows in (1, 2, 3):
            part = F.scaled_dot_product_attention(query[:rows], key[:rows], value[:rows])
            assert torch.equal(part, whole[:rows])
        if device == "cpu":
            assert served()["bmm"] >= 8
        else:  # torch's own shares out keys, and adds up the parts in any order
            inputs = [torch.randn(8, 4, 700, 64, device=device, requires_grad=True) for _ in range(3)]
            whole = torch.autograd.grad(F.scaled_dot_product_attention(*inputs).square().sum(), inputs)
            part = [x[:1].detach().requires_grad_() for x in inputs]
            own = torch.autograd.grad(F.scaled_dot_product_attention(*part).square().sum(), part)
            assert all(torch.equal(a, b[:1]) for a, b in zip(own, whole, strict=True))
            assert served()["_efficient_attention_backward"] == 2
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            with contextlib.suppress(RuntimeError):  # a GPU's takes no float32
                F.scaled_dot_product_attention(query, key, value)
                assert any("flash" in line for line in torch_tiledmm.report().may_vary)
    with torch_tiledmm.enabled(cover=["products"]):
        assert torch.backends.cuda.flash_sdp_enabled()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("shared", "queries", "keys", "mask", "is_causal"),
    [(3, 5, 9, None, False), (2, 7, 7, None, True), (2, 1, 9, None, False), (3, 1, 9, (2, 1, 1, 9), False),
     (2, 1, 9, (2, 6, 1, 9), False), (6, 3, 5, (1, 1, 3, 5), False), (2, 1, 3, None, True)],
)  # fmt: skip
def test_attention_of_grouped_heads(device, shared, queries, keys, mask, is_causal):
    """Values and gradients against torch's math without the mode, in fp64.

    Planted bugs that this caught: heads of the keys repeated as a whole; a mask of heads, or a causal one, for the rows
    that stand for the heads of a single query.
    """
    query = torch.randn(2, 6, queries, 16, dtype=torch.float64, device=device, requires_grad=True)
    key, value = (
        torch.randn(2, 6 // shared, keys, 16, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2)
    )
    inputs = (query, key, value)
    options = {"is_causal": is_causal, "scale": 0.3, "enable_gqa": True}
    options["attn_mask"] = mask and torch.randn(mask, dtype=torch.float64, device=device)

    def run() -> tuple[Tensor, ...]:
        y = F.scaled_dot_product_attention(*inputs, **options)
        return y, *torch.autograd.grad(y.square().sum(), inputs)

    expected = run()
    with torch_tiledmm.enabled():
        actual = run()
        assert served()["_scaled_dot_product_attention_math"] == 1
        with torch.inference_mode():
            assert torch.equal(F.scaled_dot_product_attention(*inputs, **options), actual[0])
    for own, exact in zip(actual, expected, strict=True):
        torch.testing.assert_close(own, exact, rtol=0, atol=1e-12)


def test_attention_where_a_program_forgoes_math():
    query = torch.randn(1, 2, 5, 16)
    expected = F.scaled_dot_product_attention(query, query, query)
    torch.backends.cuda.enable_math_sdp(False)
    try:
        with torch_tiledmm.enabled():
            torch.testing.assert_close(F.scaled_dot_product_attention(query, query, query), expected)
        assert not torch.backends.cuda.math_sdp_enabled() and torch.backends.cuda.flash_sdp_enabled()
    finally:
        torch.backends.cuda.enable_math_sdp(True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_attention_of_one_query_has_the_bits_of_many(device, dtype):
    """What a sampler computes with a cache is what a trainer computes of the whole sequence; heads are grouped.

    Without the mode it fails in fp32 and bf16 on a CPU, and on a GPU.
    """
    query = torch.randn(2, 8, 333, 64).to(device, dtype)
    key, value = (torch.randn(2, 2, 333, 64).to(device, dtype) for _ in range(2))
    with torch_tiledmm.enabled():
        whole = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        for i in (*range(0, 333, 23), 4, 11):  # among them fewer keys than a vector holds
            part = (query[:1, :, i : i + 1], key[:1, :, : i + 1], value[:1, :, : i + 1])
            assert torch.equal(F.scaled_dot_product_attention(*part, enable_gqa=True), whole[:1, :, i : i + 1])
        assert ("bmm" in served()) == (device == "cpu")  # a GPU has efficient attention


@pytest.mark.skipif(not HAS_GPU, reason="decoding is a GPU's")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_decoding(dtype):
    """Few queries by products where that is asked for: values against math in fp64, rows alone, all keys hidden."""
    query = torch.randn(3, 8, 1, 64).to("cuda", dtype)
    key, value = (torch.randn(3, 2, 2048, 64).to("cuda", dtype) for _ in range(2))
    mask = torch.rand(3, 1, 1, 2048, device="cuda") < 0.7
    mask[1] = False
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        exact = F.scaled_dot_product_attention(
            query.double(), key.double(), value.double(), attn_mask=mask, enable_gqa=True
        )
    with torch_tiledmm.enabled(cover=[*mode.COVER, "decoding"]):
        whole = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
        part = F.scaled_dot_product_attention(query[:1], key[:1], value[:1], attn_mask=mask[:1], enable_gqa=True)
        assert torch.equal(part, whole[:1])
        assert served()["_scaled_dot_product_efficient_attention"] == 2
        F.scaled_dot_product_attention(query, key.repeat_interleave(4, 1), value.repeat_interleave(4, 1))
        assert served()["_scaled_dot_product_efficient_attention"] == 3
        many = torch.randn(3, 2, 17, 64, device="cuda", dtype=dtype)
        F.scaled_dot_product_attention(many, key, value)
        grad = torch.autograd.grad(
            F.scaled_dot_product_attention(query.requires_grad_(), key, value, enable_gqa=True).sum(), query
        )
        assert grad[0].isfinite().all() and served()["_scaled_dot_product_efficient_attention"] == 3
    assert not whole[1].any()
    bound = 4 * torch.finfo(dtype).eps + 2048 * torch.finfo(torch.float32).eps
    assert ((whole.double() - exact).abs() <= bound * value.abs().max()).all()


def test_report():
    a, b = operands(torch.float32)
    with torch_tiledmm.enabled(cover=["products"]):
        a @ b
        torch.ones(2, 2, dtype=torch.int64) @ torch.ones(2, 2, dtype=torch.int64)
        F.conv_transpose2d(torch.randn(1, 3, 8, 8), torch.randn(3, 4, 3, 3))
        nn.GRU(7, 3)(torch.randn(2, 5, 7))
        a.nansum(1), a.prod(1), F.glu(torch.randn(3, 8)), torch.linalg.multi_dot([a, b, b.mT])
        x = torch.randn(3, 4, 5, requires_grad=True)
        (F.layer_norm(x, (5,)) + F.group_norm(x, 2) + torch.fft.rfft(x, 10).abs()[..., 1:]).sum().backward()
        nn.BatchNorm1d(4).eval()(x)
        assert not any("batch_norm" in line for line in torch_tiledmm.report().may_vary)
        nn.BatchNorm1d(4)(x)
        report = torch_tiledmm.report()
    text = str(report)
    assert "torch: a dtype other than" in text and "attention: not covered" in text
    for name in ("convolution", "gru", "nansum", "prod", "glu", "linalg_multi_dot", "native_layer_norm_backward",
                 "native_group_norm_backward", "_fft_r2c", "_fft_c2", "native_batch_norm"):  # fmt: skip
        assert any(line.startswith(name) for line in report.may_vary), name
    assert "nothing that was seen" not in text
    with torch_tiledmm.enabled():  # integers do not vary
        (a > 0).sum(1), a.sum(1, dtype=torch.int64), torch.sum(a.long(), 1, out=torch.empty(7, dtype=torch.int64))
        assert not any(line.startswith("sum") for line in torch_tiledmm.report().may_vary)


def test_a_program_is_run(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, torch\nassert __name__ == '__main__' and sys.argv[1:] == ['--x', '3']\n"
        "torch.randn(3, 4) @ torch.randn(4, 5)\nraise ValueError('its own')\n"
    )
    command = [sys.executable, "-m", "torch_tiledmm", "run", "--report", str(program), "--x", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "ValueError: its own" in done.stderr and "mm " in done.stderr
    done = subprocess.run([*command[:4], "--algorithm", "fast", str(program)], capture_output=True, text=True)
    assert done.returncode == 2 and "algorithm: got 'fast'" in done.stderr


@pytest.mark.parametrize("device", DEVICES)
def test_the_names_of_batch_invariant_ops(device):
    """As that package's own test: a product of one row and of many; and its functions."""
    a, b = torch.linspace(-100, 100, 64 * 96, device=device).view(64, 96), torch.randn(96, 80, device=device)
    with batch_invariant_ops.set_batch_invariant_mode():
        assert batch_invariant_ops.is_batch_invariant_mode_enabled()
        assert torch.equal(torch.mm(a[:1], b), torch.mm(a, b)[:1])
        with batch_invariant_ops.set_batch_invariant_mode(False):
            assert not torch_tiledmm.is_enabled()
        assert torch_tiledmm.is_enabled()
    assert not torch_tiledmm.is_enabled()
    batch_invariant_ops.enable_batch_invariant_mode()
    batch_invariant_ops.disable_batch_invariant_mode()
    assert not torch_tiledmm.is_enabled()
    expect(batch_invariant_ops.matmul_persistent(a, b, b[0]), (a, b, 1), added=b[0])
    expect(batch_invariant_ops.mm_batch_invariant(a, b), (a, b, 1))
    expect(batch_invariant_ops.addmm_batch_invariant(b[0], a, b), (a, b, 1), added=b[0])
    assert torch.equal(batch_invariant_ops.log_softmax(a, -1), a.log_softmax(-1))
    assert batch_invariant_ops.get_batch_invariant_attention_block_size() == (16, 16)
    x = torch.randn(3, 4, 50, device=device)
    for dim, keepdim in ((-1, False), ((0, 2), True), ([1], True), ((), False)):
        mean = batch_invariant_ops.mean_dim(x, dim, keepdim)
        torch.testing.assert_close(mean, x.mean(dim, keepdim))
    whole = batch_invariant_ops.mean_dim(x, -1)
    assert torch.equal(batch_invariant_ops.mean_dim(x[:1, :1], -1), whole[:1, :1])
    wide = batch_invariant_ops.mean_dim(x.bfloat16(), -1, dtype=torch.float32)
    torch.testing.assert_close(wide, x.bfloat16().float().mean(-1))


REDUCTIONS = {
    "sum": lambda x, d: x.sum(d), "mean": lambda x, d: x.mean(d), "var": lambda x, d: x.var(d),
    "std": lambda x, d: x.std(d, keepdim=True), "var_mean": lambda x, d: torch.var_mean(x, d)[1],
    "norm": lambda x, d: torch.linalg.vector_norm(x, dim=d), "norm 1": lambda x, d: x.norm(1, d),
    "sum of two": lambda x, d: x.sum((1, 2)) if d == 2 else x.sum((d, 2)), "cumsum": lambda x, d: x.cumsum(d),
    "wide": lambda x, d: x.sum(d, dtype=torch.float32), "logsumexp": lambda x, d: x.logsumexp(d),
}  # fmt: skip
SHARES = {"softmax": torch.softmax, "log_softmax": torch.log_softmax}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums(dtype, device):
    """Rows and columns alone and among others, along each dimension; values against float64."""
    x = torch.randn(301, 7, 520).to(device, dtype)
    calls = REDUCTIONS | (SHARES if device == "cpu" else {})
    with torch_tiledmm.enabled():
        for name, call in calls.items():
            for dim in (1, 2):
                whole = call(x, dim)
                tolerance = 1e-10 if whole.dtype == torch.float64 else 2e-3 if whole.dtype == torch.float32 else 5e-2
                expected = call(x.double(), dim).double()
                torch.testing.assert_close(whole.double(), expected, rtol=tolerance, atol=tolerance)
                for rows in (1, 2, 5, 13, 16, 300):
                    assert torch.equal(call(x[:rows], dim), whole[:rows]), (name, dim, rows)
            behind = x.permute(1, 2, 0)  # the batch is the last dimension
            for columns in (1, 2, 300) if name != "sum of two" else ():
                assert torch.equal(call(behind[..., :columns], 1), call(behind, 1)[..., :columns]), (name, columns)
        names = {"cumsum"} if dtype.itemsize == 2 else {"sum.dim_IntList", "mean.dim", "var.correction", "cumsum"}
        if device == "cpu":  # where torch's running sums do not vary
            names = {"sum.dim_IntList", "mean.dim", "var.correction", "linalg_vector_norm", "_softmax", "_log_softmax"}
        assert not names - set(served())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [*REDUCTIONS, *SHARES])
def test_sums_and_their_gradients_on_any_number_of_threads(name, dtype):
    """Few long rows, each of several chunks that threads share out, columns of any number, and many rows that fill no
    vectors; without the mode torch's sums, norms and shares vary here.
    """

    def both(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        y = (REDUCTIONS | SHARES)[name](x, dim)
        return y.detach(), torch.autograd.grad(y, x, y.detach().cos())[0]

    with torch_tiledmm.enabled():
        for size, dim, rows in (((3, 2, 40_001), 2, 1), ((5, 70, 333), 1, 1), ((301, 1, 31), 2, 100)):
            x = torch.randn(size).to(dtype)
            whole = both(x, dim)
            for threads in (1, 2):
                torch.set_num_threads(threads)
                for part, own in zip(both(x[1 : 1 + rows], dim), whole, strict=True):
                    assert torch.equal(part, own[1 : 1 + rows]), threads
                if dim == 1 and name != "sum of two":
                    for part, own in zip(both(x[..., 3:36].contiguous(), dim), whole, strict=True):
                        assert torch.equal(part, own[..., 3:36]), threads


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_of_any_dimensions(dtype, device):
    """A row has the bits that it has in one piece, contiguous and among others: of dimensions that do not lie together,
    and of tensors whose dimensions lie in another order.
    """
    if device == "cuda" and dtype.itemsize == 2:
        pytest.skip("torch's own")
    names = ("sum", "mean", "var", "norm", "norm 1", "logsumexp")
    with torch_tiledmm.enabled():
        tensors = (
            torch.randn(3, 5, 4, 40),
            torch.randn(3, 1, 40)[:, :, None].expand(-1, 5, 4, -1),
            torch.randn(2, 1, 0, 3),
        )
        for x, order in itertools.product(tensors, itertools.permutations(range(4))):
            given, dims = x.to(device, dtype).permute(order), ((0,), (3,), (0, 2))[sum(order[:2]) % 3]
            kept = [d for d in range(4) if d not in dims]
            whole = given.permute(*kept, *dims).flatten(len(kept)).contiguous()
            for name in names:
                own = REDUCTIONS[name](given, dims)
                assert torch.equal(own.nan_to_num(7), REDUCTIONS[name](whole, -1).nan_to_num(7)), (name, order, dims)
                assert own.stride() == torch.empty(own.shape).stride(), (name, order, dims)
            for own, expected in zip(torch.var_mean(given, dims, keepdim=True), torch.var_mean(whole, -1), strict=True):
                assert torch.equal(own.flatten().nan_to_num(7), expected.flatten().nan_to_num(7)), (order, dims)
                shape = [1 if d in dims else size for d, size in enumerate(given.shape)]
                assert own.stride() == torch.empty(shape).stride(), (order, dims)
        for segments, rows, size in ((2, 5, 64), (3, 1, 65), (40, 3, 100), (2, 4, 1031), (7, 2, 2100)):
            x = torch.randn(segments, rows, 2, size + 3).to(device, dtype)[..., :size]
            for kept in (x[:, :, 0], x.transpose(1, 2)):
                whole = kept.movedim(0, -2).flatten(-2)
                for name in names:
                    own = REDUCTIONS[name](kept, (0, -1))
                    assert torch.equal(own, REDUCTIONS[name](whole.contiguous(), -1)), (name, segments, rows, size)


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.tensor([[7e4, 1, 2], [3, 4, 5]]).mean(1, dtype=torch.float16),
        lambda: torch.mean(torch.tensor([[7e4, 1, 2], [3, 4, 5]]), 1, out=torch.full((2,), torch.nan).half()),
        lambda: torch.tensor([7e4, 1, 2]).bfloat16().mean(0, dtype=torch.float16),
        lambda: torch.tensor([[1e25], [-1e-25]]).norm(dim=1),
        lambda: F.normalize(torch.tensor([[1e25], [-3.0]])),
        lambda: torch.linalg.vector_norm(torch.tensor(-3e20).bfloat16()),
    ],
)
def test_sums_of_large_numbers(call):
    """Those that no dtype on the way to the result may round or square."""
    expected = call()
    assert expected.isfinite().all() and expected.any()
    with torch_tiledmm.enabled():
        torch.testing.assert_close(call(), expected, atol=0, rtol=1e-6)
        assert not left()


@pytest.mark.parametrize("name", SHARES)
@pytest.mark.parametrize("dim", (0, 1))
def test_softmax_into_results(dim, name):
    """Along columns and rows, forward and backward, also into a view; NaN and infinities as torch has them."""
    function, backward = SHARES[name], getattr(ATEN, f"_{name}_backward_data")
    x, grad = torch.randn(2, 70, 33)
    x[:, 3], x[5, 4], x[6, 5] = -torch.inf, torch.nan, torch.inf
    expected = function(x, dim)
    of_torch = backward(grad, expected, dim, x.dtype)
    with torch_tiledmm.enabled():
        y = function(x, dim)
        torch.testing.assert_close(y, expected, equal_nan=True)
        out = torch.full((70, 66), torch.nan)[:, ::2]
        assert torch.equal(function(x, dim, out=out).nan_to_num(7), y.nan_to_num(7))
        result = backward(grad, expected, dim, x.dtype)
        torch.testing.assert_close(result, of_torch, equal_nan=True, rtol=1e-4, atol=1e-4)
        out = getattr(backward, "grad_input" if "out" not in backward.overloads() else "out")
        place = torch.empty(0)
        out(grad, expected, dim, x.dtype, **{out._schema.arguments[-1].name: place})
        assert torch.equal(place.nan_to_num(7), result.nan_to_num(7))
        assert function(torch.empty(0, 3), 0).shape == (0, 3) and function(torch.tensor(2.0), 0) == function(
            x[0, :1], 0
        )


@pytest.mark.skipif(not HAS_GPU, reason="no GPU")
def test_in_a_cuda_graph():
    a, b = torch.randn(64, 128, device="cuda"), torch.randn(128, 96, device="cuda")
    with torch_tiledmm.enabled():
        expected = (a @ b).mean(-1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = (a @ b).mean(-1)
        result.zero_()
        graph.replay()
        assert torch.equal(result, expected)

"""Schemas, fake kernels, compile, export, AOTInductor, autocast, vmap.

Planted bugs that these tests caught: a fake kernel with the wrong last dimension, autocast without the exclusion of its
own key, a vmap rule that maps the wrong operand, one that drops the rows beside a mapped bias, one that checks nothing,
half the flops of the weight's gradient, flops by the wrong size of an operand.
"""

import itertools
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._inductor.utils import run_and_get_code
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from torch_tiledmm import TiledLinear, linear, matmul

OPS = torch.ops.tiledmm


def randn(*sizes, grad=False):
    return torch.randn(*sizes, requires_grad=grad)


@pytest.mark.parametrize(
    "op, args, kwargs",
    [
        (OPS.matmul, lambda g: (randn(3, 4, grad=g), randn(4, 5, grad=g)), {}),
        (OPS.matmul, lambda g: (randn(4, grad=g), randn(2, 4, 5, grad=g)), {"algorithm": "naive"}),
        (OPS.matmul, lambda g: (randn(2, 3, 4, grad=g), randn(5, 4, grad=g).t()), {}),
        (OPS.matmul, lambda g: (randn(2, 1, 3, 4, grad=g), randn(6, 4, 5, grad=g)), {}),
        (OPS.matmul_out, lambda g: (randn(3, 4), randn(4, 5), torch.empty(5, 3).t()), {}),
        (OPS.linear, lambda g: (randn(3, 4, grad=g), randn(5, 4, grad=g), randn(5, grad=g)), {}),
        (OPS.linear, lambda g: (randn(2, 3, 4, grad=g), randn(5, 4, grad=g)), {"activation": "gelu"}),
        (OPS.linear, lambda g: (randn(4, grad=g), randn(5, 4, grad=g), randn(5, grad=g)), {"activation": "relu"}),
        (OPS.linear, lambda g: (randn(3, 4, grad=g), randn(4, grad=g), randn(1, grad=g)), {"activation": "silu"}),
        (OPS.linear, lambda g: (randn(3, 0, grad=g), randn(5, 0, grad=g), randn(5, grad=g)), {}),
        (OPS.linear_weight_grads, lambda g: (randn(3, 4), randn(3, 5)), {}),
        (OPS.linear, lambda g: (randn(4, 3, grad=g).t(), randn(4, 5, grad=g).t()), {"activation": "gelu_tanh"}),
    ],
)
@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(op, args, kwargs, grad):
    torch.library.opcheck(op.default, args(grad), kwargs)


def block(x, weight, bias, b):
    hidden = linear(x, weight, bias, activation="gelu")
    return matmul(hidden, b).sin(), matmul(hidden.mT, hidden)


@pytest.mark.parametrize("backend, dynamic", [("aot_eager", False), ("aot_eager", True), ("inductor", True)])
def test_compile_is_eager(backend, dynamic):
    torch.compiler.reset()
    compiled = torch.compile(block, fullgraph=True, backend=backend, dynamic=dynamic)
    for rows in (3, 4, 7) if dynamic else (3,):
        args = [randn(2, rows, 5, grad=True), randn(6, 5, grad=True), randn(6, grad=True), randn(6, 4, grad=True)]
        expected, out = block(*args), compiled(*args)
        torch.testing.assert_close(out, expected)
        total = [sum(part.sum() for part in result) for result in (expected, out)]
        torch.testing.assert_close(*(torch.autograd.grad(loss, args) for loss in total), rtol=1e-4, atol=1e-4)


def test_compile_computes_an_operand_of_several_calls_once():
    torch.compiler.reset()

    def layers(x, weight, other):
        hidden = torch.relu(x)
        return linear(hidden, weight), linear(hidden, other), matmul(hidden, other.mT)

    args = randn(3, 5), randn(6, 5), randn(4, 5)
    out, (code,) = run_and_get_code(torch.compile(layers, fullgraph=True), *args)
    torch.testing.assert_close(out, layers(*args))
    operands = re.findall(r"tiledmm\.(?:linear|matmul)\.default\((\w+),", code)
    assert len(operands) == 3 and len(set(operands)) == 1


def test_compile_of_matmul_out():
    def step(a, b, base):
        OPS.matmul_out(a, b, base[:, ::2])
        return base * 2

    a, b, base = randn(4, 5), randn(5, 3), randn(4, 6)
    own = base.clone()
    expected = step(a, b, own)
    torch.testing.assert_close(torch.compile(step, fullgraph=True, backend="aot_eager")(a, b, base), expected)
    torch.testing.assert_close(base, own)


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_compile_with_rows_counted_at_run_time():
    weight, bias = randn(3, 2, grad=True), randn(3, grad=True)

    def positions(mask):
        rows = mask.nonzero().float()
        batch = rows.unsqueeze(1).expand(-1, 2, 2) * weight[0]
        return linear(rows, weight, bias, activation="gelu").sum(0), matmul(batch, batch.mT).sum(0)

    mask = randn(6, 6) > 0
    compiled = torch.compile(positions, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(mask), positions(mask))


def test_compile_of_a_transform():
    def loss(a, b):
        return matmul(a, b).sin().sum()

    a, b = randn(4, 5), randn(5, 3)
    compiled = torch.compile(torch.func.grad(loss), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(a, b), torch.func.grad(loss)(a, b))


def test_export_round_trip(tmp_path):
    model = nn.Sequential(TiledLinear(5, 6), nn.ReLU(), TiledLinear(6, 3)).eval()
    x = randn(4, 5)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("rows", min=2)},))
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    assert "tiledmm.linear" in str(loaded.graph)
    for rows in (4, 9):
        x = randn(rows, 5)
        torch.testing.assert_close(loaded.module()(x), model(x))
        torch.testing.assert_close(loaded.run_decompositions().module()(x), model(x))


def test_export_with_every_size_dynamic():
    class Product(nn.Module):
        def forward(self, a, b):
            return matmul(a, b)

    batch, rows, depth = (torch.export.Dim(name, min=2) for name in ("batch", "rows", "depth"))
    for b_shape, sizes, other in (((5, 7), {0: depth}, (11, 7)), ((4, 5, 7), {0: batch, 1: depth}, (3, 11, 7))):
        dynamic = ({0: batch, 1: rows, 2: depth}, sizes)
        program = torch.export.export(Product(), (randn(4, 6, 5), randn(*b_shape)), dynamic_shapes=dynamic)
        a, b = randn(3, 9, 11), randn(*other)
        torch.testing.assert_close(program.module()(a, b), torch.matmul(a, b))


@torch._inductor.config.patch({"aot_inductor.compile_wrapper_opt_level": "O0"})  # it runs once
def test_aot_inductor_package(tmp_path):
    model = TiledLinear(5, 6).eval()
    x = randn(4, 5)
    program = torch.export.export(model, (x,))
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    torch.testing.assert_close(torch._inductor.aoti_load_package(path)(x), model(x))


def test_fake_and_meta():
    a, b = torch.empty(2, 3, 4, device="meta"), torch.empty(4, 5, device="meta")
    out = matmul(a, b)
    assert out.device.type == "meta" and out.shape == (2, 3, 5)
    with torch._subclasses.FakeTensorMode():
        assert linear(torch.empty(2, 3, 4), torch.empty(5, 4), activation="silu").shape == (2, 3, 5)
        with pytest.raises(ValueError, match="algorithm 'fast' is not known"):
            matmul(torch.empty(2, 3), torch.empty(3, 2), algorithm="fast")


def test_meta_tensors_meet_the_checks_of_the_kernel():
    """One text for both, so that a wrong model fails alike before and after it has memory."""

    def message(device, call):
        with torch.device(device), pytest.raises((RuntimeError, TypeError, ValueError)) as raised:
            call(torch.empty)
        return type(raised.value), str(raised.value).splitlines()[0]

    for call in (
        lambda e: matmul(e(2, 3), e(4, 5)),
        lambda e: matmul(e(2, 3), e(4)),
        lambda e: matmul(e(2, 2, 3), e(3, 3, 4)),
        lambda e: matmul(e(()), e(3)),
        lambda e: OPS.matmul_out(e(2, 3), e(3, 4), e(4, 2)),
        lambda e: linear(e(2, 3), e(5, 4)),
        lambda e: linear(e(()), e(5, 4)),
        lambda e: linear(e(2, 3), e(1, 2, 3)),
        lambda e: linear(e(2, 3), e(5, 3), e(4)),
        lambda e: linear(e(2, 3), e(3), e(2)),
        lambda e: linear(e(2, 3), e(5, 3), activation="tanh"),
    ):
        assert message("meta", call) == message("cpu", call)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_takes_the_dtype_of_the_user(dtype):
    x, weight, bias = randn(4, 5), randn(6, 5, grad=True), randn(6, grad=True)
    with torch.autocast("cpu", dtype=dtype):
        out = linear(x, weight, bias)
        assert out.dtype is dtype
        assert matmul(x, weight.t()).dtype is dtype
        assert matmul(x.to(dtype), weight.t()).dtype is dtype
        assert matmul(x.double(), weight.t().double()).dtype is torch.float64
        with torch.autocast("cpu", enabled=False):
            assert matmul(x, weight.t()).dtype is torch.float32
    assert torch.equal(out, linear(x.to(dtype), weight.to(dtype), bias.to(dtype)))
    out.float().sum().backward()
    assert weight.grad.dtype is torch.float32 and bias.grad.dtype is torch.float32


def test_autocast_casts_a_weight_once():
    layer = TiledLinear(5, 5)
    casts = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            casts.extend(args[:1] if function is torch.ops.aten._to_copy.default else ())
            return function(*args, **(kwargs or {}))

    with Record(), torch.autocast("cpu", dtype=torch.bfloat16):
        layer(layer(layer(randn(2, 5))))
    assert len(casts) == 3  # input, weight, bias
    assert sum(tensor is layer.weight for tensor in casts) == 1


@pytest.mark.parametrize(
    "a_shape, b_shape",
    [
        ((4,), (4,)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((3, 4), (2, 4, 5)),
    ],
)
def test_vmap_of_matmul(a_shape, b_shape):
    for a_dim, b_dim in itertools.product((None, 0, -1), repeat=2):
        if a_dim is None and b_dim is None:
            continue

        def operand(shape, dim):
            return randn(*shape) if dim is None else randn(*shape, 6).movedim(-1, dim)

        a, b = operand(a_shape, a_dim), operand(b_shape, b_dim)
        ours, theirs = (torch.vmap(f, (a_dim, b_dim))(a, b) for f in (matmul, torch.matmul))
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_vmap_of_linear(shape, activation):
    function = {"none": lambda z: z, "silu": F.silu}[activation]
    for dims in itertools.product((None, 0, -1), (None, 0, -1), (None, 0, "no bias")):
        has_bias = dims[2] != "no bias"
        dims = dims if has_bias else dims[:2]
        if all(dim is None for dim in dims):
            continue
        shapes = (shape, (5, 4), (5,))
        args = [
            randn(*own) if dim is None else randn(*own, 6).movedim(-1, dim)
            for own, dim in zip(shapes, dims, strict=False)
        ]
        ours = torch.vmap(lambda *a: linear(*a, activation=activation), dims)(*args)
        theirs = torch.vmap(lambda *a: function(F.linear(*a)), dims)(*args)
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)], ids=str)
def test_vmap_of_linear_with_a_vector_as_weight(shape):
    for dims in itertools.product((None, 0, -1), (None, 0, -1), (None, 0, -1)):
        if all(dim is None for dim in dims):
            continue
        args = [
            randn(*own) if dim is None else randn(*own, 6).movedim(-1, dim)
            for own, dim in zip((shape, (4,), (1,)), dims, strict=True)
        ]
        ours = torch.vmap(lambda *a: linear(*a, activation="silu"), dims)(*args)
        theirs = torch.vmap(lambda x, weight, bias: F.silu(x @ weight + bias.squeeze()), dims)(*args)
        torch.testing.assert_close(ours, theirs)


def test_vmap_of_linear_over_no_bias_at_all():
    assert torch.vmap(linear, (None, None, 0))(randn(3, 4), randn(5, 4), randn(0, 5)).shape == (0, 3, 5)


def test_vmap_makes_the_checks_of_the_kernel():
    x, weight, bias = randn(6, 3), randn(6, 4, 3), randn(6, 4)

    def tanh(x, bias):
        return linear(x, weight[0], bias, activation="tanh")

    for error, pattern, call in (
        (ValueError, "activation 'tanh'", lambda: torch.vmap(tanh)(x, bias)),
        (TypeError, "bias has dtype", lambda: torch.vmap(lambda x, b: linear(x, weight[0], b))(x, bias.double())),
        (TypeError, "bias has dtype", lambda: torch.vmap(lambda w: linear(x, w, bias[0].double()))(weight)),
        (RuntimeError, r"bias has shape \[2\]", lambda: torch.vmap(lambda w: linear(x[:2], w, bias[0, :2]))(x)),
        (RuntimeError, r"bias has shape \[2\]", lambda: torch.vmap(lambda w, b: linear(x, w, b))(weight, bias[:, :2])),
        (RuntimeError, r"weight \[3, 4\] do not fit", lambda: torch.vmap(lambda w: linear(x, w))(weight.mT)),
        (RuntimeError, r"weight has shape \[6, 4, 3\]", lambda: torch.vmap(lambda x: linear(x, weight))(x)),
        (RuntimeError, r"b \[4, 3\] do not fit", lambda: torch.vmap(matmul)(x, weight)),
        (RuntimeError, "a has 0 dimensions", lambda: torch.vmap(matmul)(x[:, 0], x)),
        (ValueError, "algorithm 'fast'", lambda: torch.vmap(lambda w: linear(x, w, algorithm="fast"))(weight)),
    ):  # fmt: skip
        with pytest.raises(error, match=pattern):
            call()


def test_nested_vmap_and_gradients_per_sample():
    a, b = randn(6, 2, 3, 4), randn(6, 4, 5)
    nested = torch.vmap(torch.vmap(matmul, (0, None)))
    torch.testing.assert_close(nested(a, b), torch.matmul(a, b.unsqueeze(1)))
    model = TiledLinear(4, 5)
    parameters = dict(model.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    per_sample = torch.vmap(torch.func.grad(loss), (None, 0))(parameters, a[0, 0])
    for i, x in enumerate(a[0, 0]):
        torch.testing.assert_close(per_sample["weight"][i], torch.func.grad(loss)(parameters, x)["weight"])


@pytest.mark.parametrize(
    "function, shapes, flops",
    [
        (matmul, [(4,), (4,)], 2 * 4),
        (matmul, [(3, 4), (4,)], 2 * 3 * 4),
        (matmul, [(4,), (2, 4, 5)], 2 * 2 * 4 * 5),
        (matmul, [(3, 4), (4, 5)], 2 * 3 * 4 * 5),
        (matmul, [(2, 3, 4), (4, 5)], 2 * 2 * 3 * 4 * 5),
        (matmul, [(2, 3, 4), (2, 4, 5)], 2 * 2 * 3 * 4 * 5),
        (matmul, [(2, 1, 3, 4), (6, 4, 5)], 2 * 2 * 6 * 3 * 4 * 5),
        (linear, [(3, 4), (4,)], 2 * 3 * 4),
        (linear, [(4,), (5, 4)], 2 * 4 * 5),
        (linear, [(2, 3, 4), (5, 4)], 2 * 2 * 3 * 4 * 5),
        (linear, [(2, 3, 4), (5, 4), (5,)], 2 * 2 * 3 * 4 * 5),  # backward through linear_weight_grads
        (OPS.linear_weight_grads, [(3, 5), (3, 4)], 2 * 3 * 4 * 5),
    ],
)
def test_flops_are_counted(function, shapes, flops):
    """Counts by hand: a multiplication and an addition for each term of the sums, and again for each gradient."""
    has_backward = function is not OPS.linear_weight_grads
    operands = [randn(*shape, grad=has_backward) for shape in shapes]
    with FlopCounterMode(display=False) as forward:
        out = function(*operands)
    assert forward.get_total_flops() == flops
    if has_backward:
        with FlopCounterMode(display=False) as backward:
            out.sum().backward()
        assert backward.get_total_flops() == 2 * flops


def test_trace():
    x = randn(2, 4)
    traced = torch.jit.trace(TiledLinear(4, 5), x)
    assert traced(randn(3, 4)).shape == (3, 5)

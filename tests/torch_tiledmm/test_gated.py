"""Gated layers: values, bits, derivatives, transforms, the module.

Planted bugs that these tests caught: gate and up exchanged; the slope without the other sum; a gradient of up without
the activation; a bias that both sums get; a result of 16 bits rounded twice; sums that are rounded before the
activation under a gradient; up's sum kept as gate's.
"""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

import torch_tiledmm
from torch_tiledmm import TiledGatedMLP, gated_grouped_matmul, gated_linear, grouped_matmul, linear
from torch_tiledmm.testing.cases import assert_same_bits
from torch_tiledmm.testing.reference import EXACT_ACTIVATIONS

OPS = torch.ops.tiledmm
GATES = ("silu", "gelu", "gelu_tanh", "relu")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def operands(m: int, n: int, k: int, dtype: torch.dtype, has_bias: bool = True) -> list:
    scale = max(k, 1) ** -0.5
    sizes = ((m, k), (n, k), (n, k), (n,), (n,))
    tensors = [torch.randn(own).to(dtype) for own in sizes]
    tensors[1:3] = [tensor * scale for tensor in tensors[1:3]]
    return tensors if has_bias else [*tensors[:3], None, None]


def exact(x, gate, up, gate_bias, up_bias, activation):
    def product(weight, bias):
        return F.linear(x.double(), weight.double(), None if bias is None else bias.double())

    return EXACT_ACTIVATIONS[activation](product(gate, gate_bias)) * product(up, up_bias)


@pytest.mark.parametrize("activation", GATES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values(dtype, activation):
    for m, n, k in ((1, 64, 300), (5, 33, 1500), (70, 257, 129), (3, 4, 0), (0, 5, 3), (1, 1, 1)):
        for has_bias in (True, False):
            given = operands(m, n, k, dtype, has_bias)
            out = gated_linear(*given, activation=activation)
            assert out.dtype == dtype and out.is_contiguous()
            eps = max(torch.finfo(dtype).eps, 2**-10 if dtype.itemsize == 2 else 0, k * torch.finfo(dtype).eps / 2**13)
            rtol = eps if dtype.itemsize == 2 else 64 * eps
            torch.testing.assert_close(out.double(), exact(*given, activation), rtol=rtol, atol=64 * 2**-22)


@pytest.mark.parametrize("activation", GATES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_are_those_of_separate_calls(dtype, activation):
    x, gate, up, gate_bias, up_bias = operands(40, 90, 700, dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    out = gated_linear(x, gate, up, gate_bias, up_bias, activation=activation)
    sums = linear(x, gate, gate_bias, out_dtype=wide), linear(x, up, up_bias, out_dtype=wide)
    assert torch.equal(out, (OPS.activate(sums[0], activation) * sums[1]).to(dtype))
    for m in (1, 2, 7, 33):
        assert torch.equal(gated_linear(x[-m:], gate, up, gate_bias, up_bias, activation=activation), out[-m:])
    # One weight that holds both, stacked or interleaved.
    stacked, biases = torch.cat([gate, up]), torch.cat([gate_bias, up_bias])
    assert torch.equal(gated_linear(x, stacked, gate_bias=biases, activation=activation), out)
    woven = torch.stack([gate, up], 1).flatten(0, 1)
    assert torch.equal(gated_linear(x, woven[::2], woven[1::2], gate_bias, up_bias, activation=activation), out)
    batch = gated_linear(x.view(4, 10, 700), gate, up, gate_bias, up_bias, activation=activation)
    assert torch.equal(batch.view(40, 90), out)


def check_that_a_gradient_changes_no_bit(m: int, n: int, k: int, dtype: torch.dtype, activation: str) -> None:
    """Of the result of any product with an activation. The gradients are those of its sums, rounded."""
    x, gate, up, gate_bias, up_bias = operands(m, n, k, dtype)
    offs = torch.tensor([m // 3, m], dtype=torch.int32, device=x.device)
    by_group = {"offs": offs, "activation": activation}

    def of_groups(*tensors):
        return [torch.stack([tensor, tensor.flip(0)]) for tensor in tensors]

    def summed(linear_sum):
        return OPS.gated(*(half.contiguous() for half in linear_sum.chunk(2, -1)), activation=activation)

    def groups_of(x, gate, up, gate_bias, up_bias):
        return grouped_matmul(x, gate.mT, offs=offs, bias=gate_bias), grouped_matmul(x, up.mT, offs=offs, bias=up_bias)

    def of_layers(x, gate, up, gate_bias=None, up_bias=None):
        return OPS.gated(linear(x, gate, gate_bias), linear(x, up, up_bias), activation=activation)

    def gated(*own):
        return gated_linear(*own, activation=activation)

    weights, biases = of_groups(gate, up), of_groups(gate_bias, up_bias)
    for given, product, of_sums in (
        (
            (x, gate, gate_bias),
            lambda *own: linear(*own, activation=activation),
            lambda *own: OPS.activate(linear(*own), activation),
        ),
        ((x, gate, up, gate_bias, up_bias), gated, of_layers),
        ((x, gate, up, gate_bias[0], up_bias[:1]), gated, of_layers),
        ((x, gate, up, gate_bias[:1], up_bias), gated, of_layers),
        ((x, gate[0], up[0]), gated, of_layers),
        ((x, gate[0], up[0], gate_bias[:1], up_bias[0]), gated, of_layers),
        (
            (x, weights[0], biases[0]),
            lambda x, weight, bias: grouped_matmul(x, weight.mT, bias=bias, **by_group),
            lambda x, weight, bias: OPS.activate(grouped_matmul(x, weight.mT, offs=offs, bias=bias), activation),
        ),
        (
            (x, *weights, *biases),
            lambda x, gate, up, gate_bias, up_bias: gated_grouped_matmul(
                x, gate.mT, up.mT, gate_bias=gate_bias, up_bias=up_bias, **by_group
            ),
            lambda *own: OPS.gated(*groups_of(*own), activation=activation),
        ),
        (
            (x, torch.cat([gate, up]), torch.cat([gate_bias, up_bias])),
            lambda x, weight, bias: gated_linear(x, weight, gate_bias=bias, activation=activation),
            lambda *own: summed(linear(*own)),
        ),
        (
            (x, torch.cat(weights, 1), torch.cat(biases, 1)),
            lambda x, weight, bias: gated_grouped_matmul(x, weight.mT, gate_bias=bias, **by_group),
            lambda x, weight, bias: summed(grouped_matmul(x, weight.mT, offs=offs, bias=bias)),
        ),
    ):
        leaves = [tensor.clone().requires_grad_() for tensor in given]
        out = product(*leaves)
        assert_same_bits(out, product(*given))
        grad = torch.randn(out.shape, device=out.device).to(dtype)
        for own, expected in zip(
            torch.autograd.grad(out, leaves, grad), torch.autograd.grad(of_sums(*leaves), leaves, grad), strict=True
        ):
            assert_same_bits(own, expected)
        partial = [tensor.detach().requires_grad_(i == len(given) - 1) for i, tensor in enumerate(given)]
        assert_same_bits(product(*partial), out)


@pytest.mark.parametrize("activation", GATES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_gradient_changes_no_bit(dtype, activation):
    for m, n, k in ((9, 33, 70), (1, 1, 1), (40, 90, 700), (3, 4, 0)):
        check_that_a_gradient_changes_no_bit(m, n, k, dtype, activation)


def test_other_dtypes():
    x, gate, up, gate_bias, up_bias = operands(6, 9, 50, torch.bfloat16)
    for own_x, out_dtype in ((x, torch.float32), (x.float(), None), (x.float(), torch.bfloat16)):
        out = gated_linear(own_x, gate, up, gate_bias, up_bias, out_dtype=out_dtype)
        assert out.dtype == (out_dtype or torch.float32)
        torch.testing.assert_close(out.double(), exact(x, gate, up, gate_bias, up_bias, "silu"), rtol=0.01, atol=1e-4)
        leaf = gate.clone().requires_grad_()
        (grad,) = torch.autograd.grad(gated_linear(own_x, leaf, up, out_dtype=out_dtype).sum(), leaf)
        assert grad.dtype == torch.bfloat16
    wide = [tensor.float() for tensor in (x, gate, up)]
    for needs_grad in (False, True):  # biases of the result's dtype alone
        biases = [tensor.half().requires_grad_(needs_grad) for tensor in (gate_bias, up_bias)]
        out = gated_linear(*wide, *biases, out_dtype=torch.float16)
        own_sums = [linear(wide[0], wide[i + 1], biases[i].float()) for i in range(2)]
        assert torch.equal(out, (OPS.activate(own_sums[0], "silu") * own_sums[1]).half())
        if needs_grad:
            assert all(grad.dtype == torch.float16 for grad in torch.autograd.grad(out.sum(), biases))
    with torch.autocast("cpu", torch.bfloat16):
        assert gated_linear(x.float(), gate.float(), up.float()).dtype == torch.bfloat16


@pytest.mark.parametrize("activation", GATES)
def test_derivatives(activation):
    given = [tensor.requires_grad_() for tensor in operands(3, 4, 5, torch.float64)]

    def product(*operands):
        return gated_linear(*operands, activation=activation)

    x, gate, up, gate_bias, up_bias = given
    of_one_element = (x, gate, up, gate_bias[:1], up_bias), (x, gate[0], up[0], gate_bias[0], up_bias[:1])
    for own in (given, *of_one_element):
        leaves = [tensor.detach().clone().requires_grad_() for tensor in own]
        assert gradcheck(product, leaves, check_forward_ad=True, check_batched_grad=True)
        if activation != "relu":
            assert gradgradcheck(product, leaves)
    sums = [torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert gradcheck(lambda *own: OPS.gated(*own, activation=activation), sums, check_forward_ad=True)
    grads = torch.autograd.grad(product(*given).square().sum(), given)
    again = torch.autograd.grad(gated_linear(*given, activation=activation, keeps_sums=False).square().sum(), given)
    assert all(map(torch.equal, grads, again))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_both_gradients_of_a_pair(dtype):
    """In one pass, wherever an element lies; an infinite gradient times relu's 0 is none."""
    for count in (1, 7, 16, 4099):
        grad, gate, up = torch.randn(3, count + 3)[:, 3:].to(dtype)
        for activation in GATES:
            pair = OPS.gated_backward(grad, gate, up, activation=activation)
            leaves = [tensor.double().requires_grad_() for tensor in (gate, up)]
            expected = torch.autograd.grad(EXACT_ACTIVATIONS[activation](leaves[0]) * leaves[1], leaves, grad.double())
            for own, exactly in zip(pair, expected, strict=True):
                eps = max(torch.finfo(dtype).eps, 2**-40)
                torch.testing.assert_close(own.double(), exactly, rtol=eps * 16, atol=eps * 16)
    grad, gate = torch.tensor([torch.inf, 1.0]).to(dtype), torch.tensor([-1.0, torch.nan]).to(dtype)
    assert OPS.gated_backward(grad, gate, grad, activation="relu")[0][0] == 0


@pytest.mark.parametrize("in_dims", [(0, None, None, None, None), (0, 0, 0, 0, 0), (None, 1, None, None, 0)], ids=str)
def test_vmap(in_dims):
    given = operands(3, 4, 5, torch.float32)
    mapped = [
        tensor if dim is None else torch.stack([tensor * (i + 1) for i in range(6)], dim)
        for tensor, dim in zip(given, in_dims, strict=True)
    ]
    out = torch.vmap(gated_linear, in_dims)(*mapped)
    for i in range(6):
        own = [tensor if dim is None else tensor.select(dim, i) for tensor, dim in zip(mapped, in_dims, strict=True)]
        torch.testing.assert_close(out[i], gated_linear(*own))


def test_compiled():
    given = operands(3, 4, 5, torch.float32)
    given[1].requires_grad_()
    compiled = torch.compile(gated_linear, fullgraph=True, backend="aot_eager")
    for keeps_sums in (True, False):
        out = compiled(*given, keeps_sums=keeps_sums)
        assert torch.equal(out, gated_linear(*given))
        grads = [torch.autograd.grad(own.sum(), given[1])[0] for own in (out, gated_linear(*given))]
        assert torch.equal(*grads)
    detached = [tensor.detach() for tensor in given]
    torch.library.opcheck(OPS.gated_linear.default, (*given[:3],), {"activation": "gelu"})
    torch.library.opcheck(OPS.gated_linear.default, (*detached,), {"out_dtype": torch.bfloat16})
    torch.library.opcheck(
        OPS.gated.default, (detached[1], detached[2].clone().requires_grad_()), {"activation": "silu"}
    )
    torch.library.opcheck(OPS.gated_backward.default, (detached[1], detached[1], detached[2]), {"activation": "silu"})
    exported = torch.export.export(TiledGatedMLP(5, 8), (detached[0],))
    assert exported.module()(detached[0]).shape == (3, 5)


def test_the_module():
    mlp = TiledGatedMLP(5, 8, bias=True, activation="gelu_tanh")
    x = torch.randn(2, 3, 5)
    gate, up = F.linear(x, mlp.gate_proj.weight, mlp.gate_proj.bias), F.linear(x, mlp.up_proj.weight, mlp.up_proj.bias)
    expected = mlp.down_proj(F.gelu(gate, approximate="tanh") * up)
    for own in (mlp, copy.deepcopy(mlp), pickle.loads(pickle.dumps(mlp))):
        torch.testing.assert_close(own(x), expected)
    assert "gelu_tanh" in str(mlp)
    assert set(mlp.state_dict()) == {f"{n}_proj.{p}" for n in ("gate", "up", "down") for p in ("weight", "bias")}
    with pytest.raises(ValueError, match="activation: got 'tanh'"):
        TiledGatedMLP(5, 8, activation="tanh")
    assert torch_tiledmm.replace_gated_mlp(nn.Sequential(mlp)).replaced == []  # none of transformers
    with pytest.raises(TypeError, match="expected a torch.nn.Module"):
        torch_tiledmm.replace_gated_mlp(3)


@pytest.mark.parametrize("is_needed", [False, True])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_does_not_fit(device, is_needed):
    def of(*sizes, dtype=torch.float32):
        return torch.randn(sizes).to(device, dtype).requires_grad_(is_needed)

    half = torch.float16
    for error, message, call in (
        (RuntimeError, "gate has shape .* and up", lambda: gated_linear(of(2, 3), of(4, 3), of(5, 3))),
        (RuntimeError, "do not fit", lambda: gated_linear(of(2, 2), of(4, 3), of(4, 3))),
        (RuntimeError, "bias has shape", lambda: gated_linear(of(2, 3), of(4, 3), of(4, 3), of(3))),
        (RuntimeError, r"gate: got shape .* without an up", lambda: gated_linear(of(2, 3), of(5, 3))),
        (TypeError, "both must have one dtype", lambda: gated_linear(of(2, 3), of(4, 3), of(4, 3, dtype=half))),
        (ValueError, "activation 'none'", lambda: gated_linear(of(2, 3), of(4, 3), of(4, 3), activation="none")),
        (ValueError, "is not known", lambda: gated_linear(of(2, 3), of(4, 3), of(4, 3), activation="tanh")),
        (RuntimeError, "both must have one shape", lambda: OPS.gated(of(2, 3), of(3, 2), activation="silu")),
        (TypeError, "cannot have dtype", lambda: OPS.gated(of(2), of(2), activation="silu", out_dtype=torch.float64)),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize("keeps_sums", [True, False])
def test_a_stacked_weight_has_one_gradient(keeps_sums):
    """With the bits of that of two weights, and as the weight lies."""
    x, gate, up, gate_bias, up_bias = (tensor.requires_grad_() for tensor in operands(9, 20, 30, torch.float32))
    weight, bias = torch.cat([gate, up]).detach().requires_grad_(), torch.cat([gate_bias, up_bias]).detach()
    out = gated_linear(x, weight, gate_bias=bias.requires_grad_(), keeps_sums=keeps_sums)
    expected = gated_linear(x, gate, up, gate_bias, up_bias)
    assert torch.equal(out, expected)
    grad = torch.randn(out.shape)
    own = torch.autograd.grad(out, (weight, bias), grad)
    of_parts = torch.autograd.grad(expected, (gate, up, gate_bias, up_bias), grad)
    assert torch.equal(own[0], torch.cat(of_parts[:2])) and torch.equal(own[1], torch.cat(of_parts[2:]))
    assert own[0].is_contiguous()


def test_refusals_of_a_stacked_weight():
    x, weight = torch.zeros(3, 30), torch.zeros(40, 30)
    with pytest.raises(RuntimeError, match="without an up"):
        gated_linear(x, weight[:39])
    for options in ({"up_bias": torch.zeros(20)}, {"gate_bias": torch.zeros(20)}):
        with pytest.raises(RuntimeError, match=r"accepted is one gate_bias of shape \[40\]"):
            gated_linear(x, weight, **options)
    # What calls the operators themselves.
    for size, bias in ((1, None), (3, None), (6, torch.zeros(1)), (4, torch.zeros(3))):
        for needs_grad in (False, True):
            own = torch.zeros(size, 30, requires_grad=needs_grad)
            with pytest.raises(RuntimeError, match="accepted is an even size"):
                OPS._stacked_gated_linear(x, own, bias)
            with pytest.raises(RuntimeError, match="accepted is an even size"):
                OPS._stacked_gated_grouped_matmul(x[None], own.mT[None], None, None if bias is None else bias[None])


def test_the_module_calls_layers_that_are_more_than_a_weight_and_a_bias():
    """Planted bugs that this caught: a check of gate alone, and none of hooks, of a layer's class or algorithm."""

    class Adapter(nn.Module):
        def __init__(self, inner: nn.Linear) -> None:
            super().__init__()
            self.inner, self.weight, self.bias = inner, inner.weight, inner.bias

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + 1

    def hooked(layer: nn.Module) -> None:
        layer.register_forward_hook(lambda module, given, out: out + 1)

    def with_activation(layer: nn.Module) -> None:
        layer.activation = "relu"

    def in_more_bits(layer: nn.Module) -> None:
        layer.out_dtype = torch.float32

    def parametrized(layer: nn.Module) -> None:
        torch.nn.utils.parametrizations.weight_norm(layer)

    x = torch.randn(3, 8, dtype=torch.bfloat16)
    for name in ("gate_proj", "up_proj"):
        for change in (hooked, with_activation, in_more_bits, parametrized, Adapter):
            mlp = TiledGatedMLP(8, 16, bias=True, dtype=torch.bfloat16)
            plain = mlp(x)
            setattr(mlp, name, change(getattr(mlp, name)) or getattr(mlp, name))
            expected = mlp.down_proj(F.silu(mlp.gate_proj(x)) * mlp.up_proj(x))
            torch.testing.assert_close(mlp(x), expected, rtol=0.05, atol=0.05)
            assert change is parametrized or not torch.equal(mlp(x), plain)


def test_the_module_calls_layers_of_another_algorithm():
    mlp = TiledGatedMLP(8, 16)
    mlp.gate_proj.algorithm = "wgmma"  # which no CPU has
    with pytest.raises(NotImplementedError, match="wgmma"):
        mlp(torch.randn(3, 8))
    mlp.gate_proj.algorithm, mlp.algorithm = "auto", "wgmma"
    with pytest.raises(NotImplementedError, match="wgmma"):
        mlp(torch.randn(3, 8))


def test_the_module_of_restored_layers():
    mlp, x = TiledGatedMLP(8, 16), torch.randn(3, 8)
    expected = mlp(x)
    assert len(torch_tiledmm.restore_linear(mlp).replaced) == 3
    assert torch.equal(mlp.down_proj(gated_linear(x, mlp.gate_proj.weight, mlp.up_proj.weight)), mlp(x))
    torch.testing.assert_close(mlp(x), expected)
    assert torch.equal(torch.compile(mlp, fullgraph=True, backend="eager")(x), mlp(x))

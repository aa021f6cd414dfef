"""Layers in FP8: values and gradients of TiledLinear with a precision, QuantizedLinear, the swaps, transforms.

What a layer must give is computed in float64 from operands that are rounded here, by a few lines of torch's functions.
Planted bugs that these tests caught: the scales of a turned 128 x 128 block not turned; a weight's gradient in FP8
where "wide" is asked for, and the other way round; scales of a weight's gradient by 128 x 128; an input not cast
under autocast; an activation that training leaves out; a layer cast with its weight of 8 bits; sums of a weight-only
product that are rounded before the scale; blocks of one row of a weight; an input kept for a weight that is frozen;
tangents that are lost; a context's algorithm that backward does not know; parameters restored in another order; a gated
feed-forward that reads the weight of 8 bits.
"""

import copy
import io
import itertools
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune
from torch.utils._python_dispatch import TorchDispatchMode

import torch_tiledmm
from torch_tiledmm import QuantizedLinear, TiledGatedMLP, TiledLinear, quantize_linear, replace_linear, restore_linear
from torch_tiledmm.testing import assert_close
from torch_tiledmm.testing.cases import assert_same_bits
from torch_tiledmm.testing.reference import Sums, _expect, short_sums

E4M3 = torch.float8_e4m3fn
WIDE = (torch.bfloat16, torch.float16, torch.float32)
PRECISIONS = ("fp8_row", "fp8_block")
WEIGHT_GRADS = ("wide", "fp8")
RECIPES = (*PRECISIONS, "fp8_weight_only")
SIZES = ((5, 70, 200), (130, 140, 300), (1, 1, 1), (129, 33, 17), (16, 256, 128))  # rows, out_features, in_features
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")))


def is_hopper(device):
    return device == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability() == (9, 0)


def rounded(x, rows, columns):
    """The values in float64 that blocks of rows x columns of x in 8 bits stand for; 0: as many as there are."""
    wide = x.detach().float().cpu()
    rows, columns = rows or max(wide.shape[0], 1), columns or max(wide.shape[1], 1)
    padded = F.pad(wide, (0, -wide.shape[1] % columns, 0, -wide.shape[0] % rows))
    blocks = padded.view(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
    largest = blocks.abs().amax((1, 3), keepdim=True)
    largest = torch.where(largest == 0, 448.0, largest)
    factor = torch.full_like(largest, 448) / largest  # a number over a tensor is its reciprocal times the number
    values = (blocks * factor).clamp(-448, 448).to(E4M3).double() * (largest / 448).double()
    return values.view(padded.shape)[: wide.shape[0], : wide.shape[1]]


def rounded_rows(x, precision):
    return rounded(x, 1, 0 if precision == "fp8_row" else 128)


def rounded_weight(x, precision):
    return rounded(x, 1, 0) if precision == "fp8_row" else rounded(x, 128, 128)


def expect(a, b_t, bias, out_dtype, device, activation="none"):
    """A product of what operands stand for, by scaled_matmul: the scales are four roundings more."""
    k = a.shape[1]
    sums = short_sums(k) if is_hopper(device) else Sums(k + 6)
    return _expect(
        f"{tuple(a.shape)} by {tuple(b_t.shape)}", a, b_t.mT, bias, activation, out_dtype=out_dtype, sums=sums
    )


def expect_wide(a, b_t, out_dtype):
    return _expect(f"wide {tuple(a.shape)} by {tuple(b_t.shape)}", a, b_t.mT, None, "none", out_dtype=out_dtype)


# ---- TiledLinear


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("weight_grad", WEIGHT_GRADS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_values_and_gradients(precision, weight_grad, device):
    for (m, n, k), dtype, bias in itertools.product(SIZES, WIDE, (True, False)):
        options = {"precision": precision, "weight_grad": weight_grad, "dtype": dtype, "device": device}
        layer = TiledLinear(k, n, bias, **options)
        x = torch.randn(m, k, dtype=dtype, device=device, requires_grad=True)
        grad = torch.randn(m, n, dtype=dtype, device=device)
        out = layer(x)
        out.backward(grad)
        rows, weight = rounded_rows(x, precision), rounded_weight(layer.weight, precision)
        assert_close(out, expect(rows, weight, layer.bias, dtype, device))
        grads, turned = rounded_rows(grad, precision), rounded_weight(layer.weight.mT, precision)
        assert_close(x.grad, expect(grads, turned, None, dtype, device))
        if weight_grad == "fp8":
            columns = rounded_rows(grad.mT, precision), rounded_rows(x.mT, precision)
            assert_close(layer.weight.grad, expect(*columns, None, dtype, device))
        else:
            assert_close(layer.weight.grad, expect_wide(grad.mT, x.detach().mT, dtype))
        if bias:
            expected = expect_wide(grad.mT, grad.new_ones(1, m), dtype)
            assert_close(layer.bias.grad[:, None], expected)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_operands_of_two_dtypes(precision):
    """fp32 masters under 16 bits: a gradient in fp32 is rounded once, and what autocast casts is the input alone."""
    layer = TiledLinear(200, 70, precision=precision)
    x = torch.randn(9, 200)
    grad = torch.randn(9, 70).bfloat16()
    rows, weight = rounded_rows(x.bfloat16(), precision), rounded_weight(layer.weight, precision)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
        out.backward(grad)  # autocast changes nothing in it
    assert_close(out, expect(rows, weight, layer.bias, torch.bfloat16, "cpu"))
    assert_close(layer.weight.grad, expect_wide(grad.mT, x.bfloat16().mT, torch.float32))
    assert layer.bias.grad.dtype == torch.float32
    layer.zero_grad()
    out = layer(x.bfloat16())
    assert_close(out, expect(rows, weight, layer.bias, torch.float32, "cpu"))  # as of linear
    out.backward(grad.float())
    assert_close(layer.weight.grad, expect_wide(grad.mT, x.bfloat16().mT, torch.float32))
    layer.out_dtype = torch.bfloat16
    assert_close(layer(x.bfloat16()), expect(rows, weight, layer.bias, torch.bfloat16, "cpu"))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_shapes(precision):
    for shape, (n, k) in itertools.product(((), (0,), (3,), (2, 3), (2, 0, 4)), ((70, 200), (5, 0), (0, 5))):
        weight = torch.randn(n, k)
        for weight_grad in WEIGHT_GRADS:
            layer = TiledLinear.from_linear(nn.Linear(1, 1), precision=precision, weight_grad=weight_grad)
            layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(torch.randn(n))
            x = torch.randn(*shape, k, requires_grad=True)
            out = layer(x)
            assert out.shape == (*shape, n)
            out.sum().backward()
            assert (x.grad.shape, layer.weight.grad.shape, layer.bias.grad.shape) == (x.shape, (n, k), (n,))
            rows = math.prod(shape)
            assert_same_bits(out.reshape(rows, n), layer(x.reshape(rows, k)))
    with pytest.raises(RuntimeError, match="got a scalar"):
        layer(torch.randn(()))
    jagged = torch.nested.nested_tensor([torch.randn(2, 5), torch.randn(4, 5)], layout=torch.jagged)
    assert_same_bits(layer(jagged).values(), layer(jagged.values()))
    for recipe in RECIPES:
        quantized = QuantizedLinear(5, 3, precision=recipe)
        assert_same_bits(quantized(jagged).values(), quantized(jagged.values()))


@pytest.mark.parametrize("weight_grad", WEIGHT_GRADS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_not_wanted_is_not_computed(precision, weight_grad, monkeypatch):
    layer = TiledLinear(200, 70, precision=precision, weight_grad=weight_grad)
    x, grad = torch.randn(5, 200), torch.randn(5, 70)
    for wanted in itertools.product((True, False), repeat=3):
        if not any(wanted):
            continue
        given = x.clone().requires_grad_(wanted[0])
        layer.weight.requires_grad_(wanted[1])
        layer.bias.requires_grad_(wanted[2])
        layer.zero_grad()
        out = layer(given)
        saved = out.grad_fn.saved_tensors
        assert [own is not None for own in saved] == [wanted[1], wanted[0]]  # a frozen layer keeps no input
        with torch.utils.flop_counter.FlopCounterMode(display=False) as flops:
            out.backward(grad)
        assert flops.get_total_flops() == 2 * 5 * 200 * 70 * (wanted[0] + wanted[1])
        grads = given.grad, layer.weight.grad, layer.bias.grad
        assert [own is not None for own in grads] == list(wanted)
    layer.requires_grad_(False)
    assert layer(x).grad_fn is None


@pytest.mark.parametrize("precision", PRECISIONS)
def test_activations(precision):
    """In the last pass without a gradient, of the rounded sum with one; and the derivative at that."""
    for activation, dtype in itertools.product(("relu", "gelu", "gelu_tanh", "silu"), (torch.float32, torch.bfloat16)):
        layer = TiledLinear(200, 70, precision=precision, activation=activation, dtype=dtype)
        plain = TiledLinear.from_linear(layer, precision=precision)
        x = torch.randn(9, 200, dtype=dtype)
        rows, weight = rounded_rows(x, precision), rounded_weight(layer.weight, precision)
        with torch.no_grad():
            assert_close(layer(x), expect(rows, weight, layer.bias, dtype, "cpu", activation))
        grad = torch.randn(9, 70, dtype=dtype)
        sums = plain(x)
        expected = torch.ops.tiledmm.activate(sums, activation)
        assert_same_bits(layer(x), expected)
        (of_weight,) = torch.autograd.grad(layer(x), layer.weight, grad)
        assert_same_bits(of_weight, torch.autograd.grad(expected, plain.weight, grad)[0])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_bits_of_a_row(precision):
    layer = TiledLinear(391, 200, precision=precision)
    x, grad = torch.randn(70, 391, requires_grad=True), torch.randn(70, 200)
    whole = layer(x)
    (grad_x,) = torch.autograd.grad(whole, x, grad)
    for m in (1, 2, 3, 7, 16, 33, 69):
        rows = slice(70 - m, 70) if m % 2 else slice(1, m + 1)
        own = x.detach()[rows].clone().requires_grad_()
        out = layer(own)
        assert_same_bits(out, whole[rows])
        assert_same_bits(torch.autograd.grad(out, own, grad[rows])[0], grad_x[rows])
        with torch.no_grad():
            assert_same_bits(layer(own), whole[rows])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_compiled_in_one_graph(precision, device):
    torch._dynamo.reset()
    model = nn.Sequential(
        TiledLinear(200, 70, precision=precision, weight_grad="fp8", activation="silu"),
        TiledLinear(70, 33, precision=precision),
    ).to(device)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (9, 12):
        x = torch.randn(rows, 200, device=device)
        results = []
        for function in (model, compiled):
            model.zero_grad()
            own = x.clone().requires_grad_()
            out = function(own)
            out.sum().backward()
            results.append([out, own.grad, *(parameter.grad for parameter in model.parameters())])
        for expected, actual in zip(*results, strict=True):
            assert_same_bits(actual, expected)
    program = torch.export.export(model, (x,))
    assert_same_bits(program.module()(x), model(x))


def test_derivatives_that_there_are_none_of():
    layer = TiledLinear(200, 70, precision="fp8_row")
    x = torch.randn(5, 200, requires_grad=True)
    frozen = copy.deepcopy(layer).requires_grad_(False)
    for own in (layer, QuantizedLinear.from_linear(layer)):
        (grad,) = torch.autograd.grad(own(x).square().sum(), x, create_graph=True)
        with pytest.raises(NotImplementedError, match="derivative of the gradient of an FP8 layer"):
            grad.sum().backward()
    # The result's gradient is a constant here, and what is wanted is the share of the weight, or of the input.
    model = nn.Sequential(nn.Linear(200, 200), nn.Tanh(), layer)
    (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="derivative of the gradient"):
        (model(x).mean() + grad.square().sum()).backward()
    (grad,) = torch.autograd.grad(layer(x).sum(), layer.weight, create_graph=True)
    with pytest.raises(NotImplementedError, match="derivative of the gradient"):
        torch.autograd.grad(grad.square().sum(), x)
    for own in (layer, frozen, QuantizedLinear.from_linear(frozen)):
        with pytest.raises(NotImplementedError, match="jvp"):
            torch.func.jvp(own, (x.detach(),), (x.detach(),))
    with pytest.raises((RuntimeError, NotImplementedError), match="vmap"):
        torch.func.vmap(frozen)(torch.randn(3, 5, 200))
    grads = torch.func.grad(lambda w: torch.func.functional_call(layer, {"weight": w}, x.detach()).sum())(
        layer.weight.detach()
    )
    assert_same_bits(grads, torch.autograd.grad(layer(x.detach()).sum(), layer.weight)[0])


@pytest.mark.parametrize("recipe", RECIPES)
def test_meta(recipe):
    layers = [QuantizedLinear(200, 70, device="meta", precision=recipe)]
    if recipe in PRECISIONS:
        layers.append(TiledLinear(200, 70, device="meta", precision=recipe))
    for layer in layers:
        x = torch.randn(5, 200, device="meta", requires_grad=True)
        out = layer(x)
        out.sum().backward()
        assert (out.shape, x.grad.shape) == ((5, 70), x.shape) and layer.bias.grad.is_meta


class Named(TorchDispatchMode):
    """Notes the algorithms of all products."""

    def __enter__(self):
        self.names = []
        return super().__enter__()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "algorithm" in str(function._schema):
            self.names.append((kwargs or {}).get("algorithm", "auto"))
        return function(*args, **(kwargs or {}))


def test_algorithms():
    """A layer's name holds for all of its products; a context's is recorded for backward."""
    x = torch.randn(5, 200, requires_grad=True)
    for make in (TiledLinear, QuantizedLinear):
        layer = make(200, 70, precision="fp8_row", algorithm="naive")
        num_products = 3 if make is TiledLinear else 2
        with Named() as named:
            layer(x).sum().backward()
        assert named.names == ["naive"] * num_products
        layer.algorithm = "auto"
        with torch_tiledmm.use_algorithm("block_tiled"):
            out = layer(x)
            with torch_tiledmm.use_algorithm("auto"):
                other = layer(x)
        with Named() as named:
            out.sum().backward()
            assert named.names == ["block_tiled"] * (num_products - 1)
            other.sum().backward()
        assert named.names[num_products - 1 :] == ["plain_auto"] * (num_products - 1)
        layer.algorithm = "wgmma"
        with pytest.raises(NotImplementedError, match="only GPUs"):
            layer(x)


def test_attributes_and_swaps():
    layer = TiledLinear(7, 5, precision="fp8_block", weight_grad="fp8")
    assert repr(layer).endswith("bias=True, precision='fp8_block', weight_grad='fp8')")
    assert layer.state_dict().keys() == nn.Linear(7, 5).state_dict().keys()
    loaded = pickle_copy(layer)
    assert (loaded.precision, loaded.weight_grad) == ("fp8_block", "fp8")
    layer.precision = None
    assert_same_bits(layer(torch.ones(3, 7)), TiledLinear.from_linear(layer)(torch.ones(3, 7)))
    layer.precision = "fp4"
    with pytest.raises(ValueError, match="precision: got 'fp4', expected None or one of fp8_row, fp8_block"):
        layer(torch.ones(3, 7))
    model = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3).double())
    for options in ({"precision": "fp4"}, {"precision": "fp8_row", "weight_grad": "bf16"}):
        for make in (lambda **own: TiledLinear(7, 5, **own), lambda **own: replace_linear(model, **own)):
            with pytest.raises(ValueError, match="expected"):
                make(**options)
    swap = replace_linear(model, precision="fp8_row", weight_grad="fp8")
    assert swap.replaced == ["0"] and swap.skipped == [("1", "torch.float64 has no precision 'fp8_row'")]
    assert (type(model[0]), model[0].precision, model[0].weight_grad) == (TiledLinear, "fp8_row", "fp8")
    assert restore_linear(model).replaced == ["0"]
    assert type(model[0]) is nn.Linear and not {"precision", "weight_grad"} & vars(model[0]).keys()
    with pytest.raises(TypeError, match="Double"):
        TiledLinear(7, 5, dtype=torch.float64, precision="fp8_row")(torch.ones(3, 7).double())


def test_gated_mlp_calls_layers_of_a_precision():
    mlp = TiledGatedMLP(40, 70)
    x = torch.randn(5, 40)
    plain = mlp(x)
    mlp.gate_proj.precision = "fp8_row"
    halves = torch.ops.tiledmm.gated(mlp.gate_proj(x), mlp.up_proj(x), activation="silu")
    assert_same_bits(mlp(x), mlp.down_proj(halves))
    assert not torch.equal(mlp(x), plain)
    quantize_linear(mlp)
    assert torch.allclose(mlp(x), plain, atol=0.1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("weight_grad", WEIGHT_GRADS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_learns(precision, weight_grad, device):
    """As bf16 does: the last loss is that of training without FP8, up to a few percent of the first."""

    def train(**options):
        torch.manual_seed(3)
        layers = [TiledLinear(48, 200, activation="gelu", **options), TiledLinear(200, 16, **options)]
        model = nn.Sequential(*layers).to(device, torch.bfloat16)
        x = torch.randn(256, 48).to(device, torch.bfloat16)
        target = torch.tanh(x.float() @ torch.randn(48, 16).to(device) / 7)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses = []
        for _ in range(60):
            loss = F.mse_loss(model(x).float(), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    plain, rounded_ones = train(), train(precision=precision, weight_grad=weight_grad)
    assert plain[-1] < 0.2 * plain[0]
    assert abs(rounded_ones[-1] - plain[-1]) < 0.04 * plain[0]


# ---- QuantizedLinear


def pickle_copy(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def make_model(dtype=torch.bfloat16, device="cpu"):
    layers = nn.Linear(200, 300), nn.GELU(), TiledLinear(300, 70, activation="silu")
    return nn.Sequential(*layers).to(device, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_quantized_values(recipe, device):
    for (m, n, k), dtype, activation in itertools.product(SIZES, WIDE, ("none", "gelu")):
        layer = TiledLinear(k, n, dtype=dtype, device=device, activation=activation)
        weight = rounded_weight(layer.weight, recipe if recipe == "fp8_block" else "fp8_row")
        assert quantize_linear(layer, recipe=recipe).replaced == [""]
        x = torch.randn(m, k, dtype=dtype, device=device)
        rows = x if recipe == "fp8_weight_only" else rounded_rows(x, recipe)
        with torch.no_grad(), torch.utils.flop_counter.FlopCounterMode(display=False) as flops:
            out = layer(x)
        assert flops.get_total_flops() == 2 * m * n * k
        with torch.no_grad():
            assert_close(out, expect(rows, weight, layer.bias, dtype, device, activation))
            assert_same_bits(layer(x[:1]), out[:1])
        torch.testing.assert_close(layer.dequantized(torch.float32).cpu().double(), weight, rtol=1e-6, atol=0)


@pytest.mark.parametrize("recipe", RECIPES)
def test_weight_only_rounds_once(recipe):
    layer = nn.Linear(200, 70).half()
    quantize_linear(layer, recipe=recipe)
    x = torch.randn(5, 200).half()
    with torch.no_grad():
        out = layer(x)
        layer.out_dtype = torch.float32
        assert_same_bits(out, layer(x).half())


@pytest.mark.parametrize("recipe", RECIPES)
def test_quantize_save_load_undo(recipe):
    model, x = make_model(), torch.randn(2, 5, 200).bfloat16()
    weights = [model[0].weight, model[2].weight]
    plain = model(x)
    hooked = []
    handle = model[0].register_forward_hook(lambda *_: hooked.append(1))
    layer = model[0]
    swap = quantize_linear(model, recipe=recipe, keeps_weights=True)
    assert repr(swap) == "replaced 2: 0, 2" and model[0] is layer
    assert f"QuantizedLinear(in_features=200, out_features=300, bias=True, precision='{recipe}')" in repr(model)
    out = model(x)
    handle.remove()
    assert hooked and (out - plain).norm() < 0.15 * plain.norm()
    assert repr(quantize_linear(model)).endswith("skipped 2: 0, 2 (already quantised)")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        swap = replace_linear(model)
    assert repr(swap) == "replaced 0: none\nskipped 2: 0, 2 (already tiled)"
    shape = (3, 2) if recipe == "fp8_block" else (300, 1)
    state = model.state_dict()
    assert list(state) == [f"{i}.{name}" for i in (0, 2) for name in ("bias", "weight", "weight_scale")]
    assert (state["0.weight"].dtype, state["0.weight_scale"].dtype) == (E4M3, torch.float32)
    assert state["0.weight_scale"].shape == shape

    for make_copy in (copy.deepcopy, pickle_copy, lambda own: own.double().bfloat16()):
        assert_same_bits(make_copy(model)(x), out)
    assert model[0].weight.dtype == E4M3 and model[0].bias.dtype == torch.bfloat16
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded_state = torch.load(file)
    for device in ("cpu", "meta"):
        with torch.device(device):
            fresh = make_model(device=device)
        quantize_linear(fresh, recipe=recipe)
        fresh.to_empty(device="cpu").load_state_dict(loaded_state)
        assert_same_bits(fresh(x), out)
        fresh = make_model(device=device)
        quantize_linear(fresh, recipe=recipe)
        fresh.load_state_dict(loaded_state, assign=True)
        assert_same_bits(fresh(x), out)
    with pytest.raises(RuntimeError, match="load it before quantize_linear"):
        fresh.load_state_dict(make_model().state_dict(), strict=False)

    assert restore_linear(model).replaced == ["0", "2"]
    assert (type(model[0]), type(model[2]), model[2].activation) == (nn.Linear, TiledLinear, "silu")
    assert model[0].weight is weights[0] and model[2].weight is weights[1]
    assert_same_bits(model(x), plain)
    # Without the former weights: their values in 8 bits.
    assert restore_linear(fresh).replaced == ["0", "2"]
    assert [name for name, _ in fresh.named_parameters()] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    own = rounded_weight(weights[0], recipe if recipe == "fp8_block" else "fp8_row").bfloat16()
    assert_same_bits(fresh[0].weight, own)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("keeps_weights", (True, False))
def test_restored_weights(keeps_weights, recipe):
    """They have the layer's dtype and are frozen as before; kept ones come back unless others were loaded."""
    options = {"recipe": recipe, "keeps_weights": keeps_weights}
    for bias in (True, False):
        layer = nn.Linear(200, 70, bias)
        layer.weight.requires_grad_(False)
        quantize_linear(layer, **options)
        values = layer.dequantized() if not keeps_weights else layer._former.weight
        layer.half()
        assert layer.dequantized().dtype == torch.float16
        restore_linear(layer)
        assert layer.weight.dtype == torch.float16 and not layer.weight.requires_grad
        assert_same_bits(layer.weight, values.half())
        assert layer(torch.randn(3, 200).half()).dtype == torch.float16
    for assign in (False, True):
        layer, other = nn.Linear(200, 70), nn.Linear(200, 70)
        former = layer.weight
        quantize_linear(layer, **options)
        quantize_linear(other, **options)
        layer.load_state_dict(other.state_dict(), assign=assign)
        restore_linear(layer)
        assert layer.weight is not former and layer.weight.requires_grad
        assert_same_bits(layer.weight, other.dequantized())
    with torch.device("meta"):
        fresh = nn.Linear(200, 70)
    quantize_linear(fresh, **options)
    fresh.to_empty(device="cpu").load_state_dict(other.state_dict())
    restore_linear(fresh)
    assert_same_bits(fresh.weight, other.dequantized())


def test_what_a_quantized_layer_says():
    layer = TiledLinear(20, 30, precision="fp8_block", weight_grad="fp8")
    quantize_linear(layer)
    assert "weight_grad" not in repr(layer) and "precision='fp8_row'" in repr(layer)
    with pytest.raises(TypeError, match="the weight of a QuantizedLinear is quantised"):
        layer.reset_parameters()
    restore_linear(layer)
    assert "weight_grad='fp8'" in repr(layer)
    layer.reset_parameters()


def test_quantize_keeps_the_precision_of_training():
    layer = TiledLinear(20, 30, precision="fp8_block", weight_grad="fp8")
    quantize_linear(layer, recipe="fp8_weight_only")
    assert layer.precision == "fp8_weight_only"
    restore_linear(layer)
    assert (type(layer), layer.precision, layer.weight_grad) == (TiledLinear, "fp8_block", "fp8")


def test_made_and_from_linear():
    made = QuantizedLinear(200, 70, precision="fp8_block", activation="relu", dtype=torch.bfloat16)
    linear = nn.Linear(200, 70).bfloat16().eval()
    own = QuantizedLinear.from_linear(linear, activation="relu", precision="fp8_block")
    assert own.bias is linear.bias and not own.training and linear.weight.dtype == torch.bfloat16
    made.load_state_dict(own.state_dict())
    x = torch.randn(4, 200).bfloat16()
    assert_same_bits(made(x), own(x))
    assert made(x).min() == 0
    for make in (lambda: QuantizedLinear(3, 4, precision="int8"), lambda: quantize_linear(linear, recipe="int8"),
                 lambda: QuantizedLinear.from_linear(linear, precision="int8")):  # fmt: skip
        with pytest.raises(ValueError, match="got 'int8', expected one of fp8_row, fp8_block, fp8_weight_only"):
            make()
    with pytest.raises(TypeError, match="float64"):
        QuantizedLinear.from_linear(nn.Linear(3, 4).double())
    with pytest.raises(TypeError, match="model is a int"):
        quantize_linear(3)


@pytest.mark.parametrize("recipe", RECIPES)
def test_gradients_of_the_input(recipe):
    layer = QuantizedLinear(200, 70, precision=recipe)
    for activation in ("none", "silu"):
        layer.activation = activation
        x = torch.randn(5, 200, requires_grad=True)
        grad = torch.randn(5, 70)
        out = layer(x)
        out.backward(grad)
        with torch.no_grad():
            torch.testing.assert_close(layer(x), out)
        plain = copy.deepcopy(layer)
        plain.activation = "none"
        z = plain(x.detach()).detach().requires_grad_()
        if activation == "silu":
            (grad,) = torch.autograd.grad(F.silu(z), z, grad)
        torch.testing.assert_close(x.grad, grad @ layer.dequantized())
        torch.testing.assert_close(layer.bias.grad, grad.sum(0))
        layer.zero_grad()


@pytest.mark.parametrize("recipe", RECIPES)
def test_quantized_compiled_exported_and_autocast(recipe):
    torch._dynamo.reset()
    model = make_model(torch.float32)
    quantize_linear(model, recipe=recipe)
    with torch.no_grad():
        expected = model(torch.ones(3, 200))
    program = torch.export.export(model, (torch.randn(3, 200),))  # of biases that require a gradient
    torch.testing.assert_close(program.module()(torch.ones(3, 200)), expected)
    model.requires_grad_(False)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (5, 9):
        x = torch.randn(rows, 200)
        assert_same_bits(compiled(x), model(x))
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    assert_same_bits(program.module()(x[:4]), model(x[:4]))
    with torch.autocast("cpu", torch.bfloat16):
        out = model[0](x)
    assert_same_bits(out, model[0](x.bfloat16()))
    assert out.dtype == torch.bfloat16


class Float8Tensor(torch.Tensor):
    """Stands in for torchao's: another tensor's data and scales, and products of its own."""

    @staticmethod
    def __new__(cls, qdata, scale, dtype=torch.bfloat16):
        return torch.Tensor._make_wrapper_subclass(cls, qdata.shape, dtype=dtype, device=qdata.device)

    def __init__(self, qdata, scale, dtype=torch.bfloat16):
        self.qdata, self.scale = qdata, scale

    def __tensor_flatten__(self):
        return ["qdata", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].qdata, args[0].scale)
        raise NotImplementedError(function)


def test_weights_of_torchao():
    wide = torch.randn(300, 200)
    of_rows, of_blocks = torch_tiledmm.quantize_rows(wide), torch_tiledmm.quantize_blocks(wide, block_rows=128)
    of_tensor = (wide / 0.01).to(E4M3), torch.full((1, 1), 0.01)
    stored = {"rows": of_rows, "blocks": of_blocks, "tensor": of_tensor}
    stored["e5m2"] = torch_tiledmm.quantize_rows(wide, dtype=torch.float8_e5m2)
    stored["turned"] = of_rows[0].mT, of_rows[1]
    x = torch.randn(5, 200).bfloat16()
    for recipe, taken in (("fp8_row", {"rows", "tensor"}), ("fp8_weight_only", {"rows", "tensor"}),
                          ("fp8_block", {"blocks", "tensor"})):  # fmt: skip
        model = nn.ModuleDict({name: nn.Linear(200, 300, bias=False) for name in stored})
        for name, own in stored.items():
            model[name].weight = nn.Parameter(Float8Tensor(*own), requires_grad=False)
        weights = {name: model[name].weight for name in stored}
        swap = quantize_linear(model, recipe=recipe)
        assert set(swap.replaced) == taken
        for name, reason in swap.skipped:
            assert "its weight is a Float8Tensor " in reason
            assert ("e5m2" in reason, "stored as" in reason) == (name == "e5m2", name == "turned")
        for name in taken:
            q, scale = stored[name]
            expected = QuantizedLinear(200, 300, bias=False, precision=recipe)
            expected.weight, expected.weight_scale = q, scale.expand_as(expected.weight_scale)
            assert_same_bits(model[name](x), expected(x))
        restore_linear(model)
        assert all(model[name].weight is own for name, own in weights.items())


def test_what_is_not_quantized():
    class Plain(nn.Linear):
        pass

    model = nn.ModuleDict(
        {
            "subclass": Plain(3, 3),
            "wide": nn.Linear(3, 3).double(),
            "lazy": nn.LazyLinear(3),
            "pruned": prune.random_unstructured(nn.Linear(3, 3), "weight", 0.5),
            "parametrized": nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
            "patched": nn.Linear(3, 3),
            "encoder": nn.TransformerEncoderLayer(8, 2, 16),
            "small": nn.Linear(3, 3),
            "large": nn.Linear(3, 9),
        }
    )
    model["patched"].forward = lambda x: x
    swap = quantize_linear(model, module_filter_fn=lambda module, name: module.out_features > 3 and name != "small")
    assert swap.replaced == ["large"]
    reasons = dict(swap.skipped)
    assert reasons == {
        "subclass": "Plain is a subclass of nn.Linear",
        "wide": "its weight has dtype torch.float64; quantised are float32, float16 and bfloat16",
        "lazy": "LazyLinear is a subclass of nn.Linear",
        "pruned": "its weight is no parameter; make it one first, as torch.nn.utils.prune.remove does",
        "parametrized": "ParametrizedLinear is a subclass of nn.Linear",
        "patched": "a forward was put on it, which may read its weight; remove that, quantise, put it back",
        "encoder.self_attn.out_proj": "nn.MultiheadAttention reads its weight",
        "encoder.linear1": "nn.TransformerEncoderLayer reads its weight",
        "encoder.linear2": "nn.TransformerEncoderLayer reads its weight",
        "small": "module_filter_fn said no",
    }
    with torch.no_grad():
        model["encoder"].eval()(torch.randn(2, 3, 8))
    with pytest.raises(ValueError, match="precision: got 'fp4'"):
        model["large"].precision = "fp4"
        model["large"](torch.randn(2, 3))

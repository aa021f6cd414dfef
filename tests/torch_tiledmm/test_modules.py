"""TiledLinear is nn.Linear in everything but the product; replace_linear and restore_linear swap in place.

Planted bugs that these tests caught: forward through F.linear, forward without the bias, restore to nn.Linear
whatever was there before, TiledLinear before the subclass, the filter's arguments swapped, no pickling of
subclasses, parametrized layers and subclasses replaced, no word on the transformer's fast path, a tiled layer that
prints itself as Linear, one that calls a subclass TiledLinear. Of `algorithm` and `activation`: one that forward does
not hand over, one that a copy loses, no default for layers without it, a restored layer that keeps its algorithm, one
that loses its activation, an attribute of a subclass taken for ours, `from_linear` that copies parameters, forgets the
training flag, or takes a layer with a forward of its own. Of forwards that are put on a layer: one under which a layer
is replaced, or restored, all the same, a former forward that stays under a hook, one of another layer taken for the
layer's own, one that is none of accelerate's taken for one. Of restore: an inherited `_former_class` that counts. Of
weights: sparse ones and those with functions of their own that are taken. Of a second import: rules registered twice.
"""

import copy
import functools
import importlib
import io
import pickle
import re
import sys
import types
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import parametrize, prune
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import torch_tiledmm
from torch_tiledmm import TiledLinear, replace_linear, restore_linear
from torch_tiledmm.testing import assert_close, expect_linear

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class Counted(TorchDispatchMode):
    """Notes the calls of tiledmm::linear: the proof that a layer is tiled."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.tiledmm.linear.default:
            self.names.append(((kwargs or {}).get("activation"), (kwargs or {}).get("algorithm")))
        return function(*args, **(kwargs or {}))


def tiled_calls(function, *args) -> int:
    with Counted() as counted:
        function(*args)
    return len(counted.names)


class Doubled(nn.Linear):
    """A subclass with a forward, a method and an attribute of its own."""

    factor = 2

    def forward(self, input):
        return super().forward(input) * self.scale()

    def scale(self):
        return self.factor


class Plain(nn.Linear):
    """A subclass that changes nothing."""


def hooked(layer: nn.Linear) -> nn.Linear:
    """The layer with a hook that triples, put there in the way of accelerate."""

    def new_forward(module, *args):
        return 3 * module._old_forward(*args)

    new_forward.__module__ = "accelerate.hooks"
    layer._old_forward = layer.forward
    layer.forward = functools.update_wrapper(functools.partial(new_forward, layer), layer._old_forward)
    return layer


def unhooked(layer: nn.Linear) -> nn.Linear:
    layer.forward = layer._old_forward
    del layer._old_forward
    return layer


def patched(layer: nn.Linear) -> nn.Linear:
    """The layer with a forward that triples, put there in a way of its own."""
    old_forward = layer.forward
    layer.forward = lambda input: 3 * old_forward(input)
    return layer


def pruned(layer: nn.Linear) -> nn.Linear:
    return prune.random_unstructured(layer, "weight", amount=0.5)


def make_pair(*args, **kwargs) -> tuple[nn.Linear, TiledLinear]:
    torch.manual_seed(5)
    linear = nn.Linear(*args, **kwargs)
    torch.manual_seed(5)
    return linear, TiledLinear(*args, **kwargs)


# ---- TiledLinear


@pytest.mark.parametrize("bias", (True, False))
def test_is_made_like_linear(bias):
    linear, tiled = make_pair(7, 5, bias=bias)
    assert isinstance(tiled, nn.Linear)
    assert tiled.state_dict().keys() == linear.state_dict().keys()
    for name, parameter in linear.named_parameters():
        assert torch.equal(tiled.get_parameter(name), parameter)
    torch.manual_seed(6)
    tiled.load_state_dict(nn.Linear(7, 5, bias=bias).state_dict(), strict=True)
    linear.load_state_dict(tiled.state_dict(), strict=True)
    assert torch.equal(linear.weight, tiled.weight)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", ((), (3,), (2, 3), (2, 1, 4), (0,)), ids=str)
@pytest.mark.parametrize("bias", (True, False))
def test_computes_what_linear_does(dtype, shape, bias):
    linear, tiled = make_pair(7, 5, bias=bias, dtype=dtype)
    input = torch.randn(*shape, 7, dtype=dtype)
    assert_close(tiled(input), expect_linear(input, tiled.weight.detach(), tiled.bias.detach() if bias else None))
    assert tiled_calls(tiled, input) == 1 and tiled_calls(linear, input) == 0


def test_learns_what_linear_does():
    pair = make_pair(7, 5, dtype=torch.float64)
    input, target = torch.randn(6, 7, dtype=torch.float64), torch.randn(6, 5, dtype=torch.float64)
    for layer in pair:
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            F.mse_loss(layer(input), target).backward()
            optimizer.step()
    for expected, actual in zip(pair[0].parameters(), pair[1].parameters(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


NAMES = {"algorithm": "block_tiled", "activation": "relu"}


def handed_over(module, *args) -> list[tuple]:
    """(activation, algorithm) of each call of tiledmm::linear, None where it is the default. Without a gradient: with
    one, the activation is an operation of its own."""
    with torch.no_grad(), Counted() as counted:
        module(*args)
    return counted.names


@pytest.mark.parametrize("activation", ("none", "relu", "gelu", "gelu_tanh", "silu"))
@pytest.mark.parametrize("algorithm", ("auto", "naive"))
def test_algorithm_and_activation(activation, algorithm):
    tiled = TiledLinear(7, 5, algorithm=algorithm, activation=activation).requires_grad_(False)
    input = torch.randn(3, 7)
    assert_close(tiled(input), expect_linear(input, tiled.weight, tiled.bias, activation))
    assert handed_over(tiled, input) == [
        (activation if activation != "none" else None, algorithm if algorithm != "auto" else None)
    ]


def test_attributes_are_plain():
    linear, tiled = make_pair(7, 5)
    input = torch.randn(3, 7)
    assert (tiled.algorithm, tiled.activation) == ("auto", "none")
    tiled.activation, tiled.algorithm = "silu", "naive"
    assert handed_over(tiled, input) == [("silu", "naive")]
    assert tiled.state_dict().keys() == linear.state_dict().keys()
    for name in NAMES:
        changed = copy.deepcopy(tiled)
        setattr(changed, name, "fast")
        with pytest.raises(ValueError, match=f"{name} 'fast' is not known"):
            changed(input)


def test_print_shows_what_is_not_the_default():
    text = "TiledLinear(in_features=7, out_features=5, bias=True"
    assert repr(TiledLinear(7, 5)) == f"{text})"
    assert repr(TiledLinear(7, 5, activation="relu")) == f"{text}, activation='relu')"
    assert repr(TiledLinear(7, 5, **NAMES)) == f"{text}, algorithm='block_tiled', activation='relu')"


def test_refuses_names_that_are_not_known():
    with pytest.raises(ValueError, match="^activation: got 'tanh', expected one of none, relu, gelu, gelu_tanh, silu$"):
        TiledLinear(7, 5, activation="tanh")
    expected = "^algorithm: got 'fast', expected one of auto, .*wgmma"
    with pytest.raises(ValueError, match=expected):
        TiledLinear(7, 5, algorithm="fast")
    model = nn.Linear(7, 5)
    with pytest.raises(ValueError, match=expected):
        replace_linear(model, algorithm="fast")
    assert type(model) is nn.Linear


def test_refuses_what_its_device_cannot_serve_when_called():
    tiled = TiledLinear(7, 5, algorithm="wgmma")
    with pytest.raises(NotImplementedError, match="algorithm 'wgmma' cannot serve this call.*only GPUs have it"):
        tiled(torch.randn(3, 7))


def test_layers_without_the_attributes():
    """As those in pickles that are older than the attributes."""
    tiled = TiledLinear(7, 5)
    for name in NAMES:
        del vars(tiled)[name]
    old = pickle.loads(pickle.dumps(tiled))
    input = torch.randn(3, 7)
    assert not NAMES.keys() & vars(old).keys() and handed_over(old, input) == [(None, None)]
    assert repr(old) == repr(TiledLinear(7, 5)) and torch.equal(old(input), tiled(input))


@pytest.mark.parametrize("bias", (True, False))
@pytest.mark.parametrize("make", (nn.Linear, TiledLinear, Plain), ids=lambda make: make.__name__)
def test_from_linear(make, bias):
    linear = make(7, 5, bias=bias, dtype=torch.float64).eval()
    linear.weight.requires_grad_(False)
    linear.register_forward_hook(lambda *_: pytest.fail("a hook was carried over"))
    state = torch.get_rng_state()
    tiled = TiledLinear.from_linear(linear, **NAMES)
    assert type(tiled) is TiledLinear and type(linear) is make and not tiled.training
    assert tiled.weight is linear.weight and tiled.bias is linear.bias
    assert (tiled.in_features, tiled.out_features) == (7, 5) and torch.equal(torch.get_rng_state(), state)
    input = torch.randn(3, 7, dtype=torch.float64)
    expected = expect_linear(input, linear.weight, linear.bias.detach() if bias else None, "relu")
    assert_close(tiled(input).detach(), expected)
    assert TiledLinear.from_linear(nn.Linear(7, 5)).algorithm == "auto"


def test_from_linear_refuses():
    parametrized = parametrize.register_parametrization(nn.Linear(3, 3), "weight", nn.Tanh())
    for layer, message in (
        (nn.ReLU(), "layer: got a ReLU, expected a torch.nn.Linear with the forward of that"),
        (None, "layer: got a NoneType, expected"),
        (Doubled(3, 3), "layer: got a Doubled, expected a torch.nn.Linear with the forward of that"),
        (parametrized, "layer: got a ParametrizedLinear that cannot be tiled: parametrized"),
        (nn.LazyLinear(3), "layer: got a LazyLinear that cannot be tiled: lazy"),
        (nn.Linear(3, 3, dtype=torch.complex64), "layer: got a Linear that cannot be tiled: torch.complex64"),
        (hooked(nn.Linear(3, 3)), "layer: got a Linear that cannot be tiled: a forward was put on it"),
        (patched(nn.Linear(3, 3)), "layer: got a Linear that cannot be tiled: a forward was put on it"),
        (pruned(nn.Linear(3, 3)), "layer: got a Linear that cannot be tiled: its weight is no parameter"),
    ):
        with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
            TiledLinear.from_linear(layer)
    with pytest.raises(ValueError, match="^activation: got 'tanh'"):
        TiledLinear.from_linear(nn.Linear(3, 3), activation="tanh")


def test_from_linear_takes_what_a_hook_left():
    layer, input = unhooked(hooked(nn.Linear(7, 5))), torch.randn(3, 7)
    assert "forward" in vars(layer)
    torch.testing.assert_close(TiledLinear.from_linear(layer)(input), layer(input))


def save_and_load(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "pickle 0": lambda module: pickle.loads(pickle.dumps(module, protocol=0)),
    "torch.save": save_and_load,
}


@pytest.mark.parametrize("make_copy", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("make", (TiledLinear, nn.Linear, Doubled), ids=lambda make: make.__name__)
@pytest.mark.filterwarnings("ignore:replace_linear")
def test_copies_are_tiled_and_independent(make, make_copy):
    module = nn.Sequential(make(7, 5))
    replace_linear(module, algorithm="naive", module_filter_fn=lambda *_: True)
    module[0].attribute, module[0].algorithm, module[0].activation = "kept", *NAMES.values()
    double = make_copy(module)
    input = torch.randn(3, 7)
    assert handed_over(double, input)[0] == ("relu", "block_tiled") and "relu" in repr(double)
    assert type(double[0]) is type(module[0]) and double[0].attribute == "kept"
    assert tiled_calls(double, input) == 1 and torch.equal(double(input), module(input))
    with torch.no_grad():
        double[0].weight.zero_()
    assert module[0].weight.any()


def test_parametrized():
    tiled = TiledLinear(4, 4)
    parametrize.register_parametrization(tiled, "weight", nn.Tanh())
    input = torch.randn(3, 4)
    torch.testing.assert_close(tiled(input), F.linear(input, tiled.weight, tiled.bias))
    tiled(input).sum().backward()
    assert tiled_calls(tiled, input) == 1 and tiled.parametrizations.weight.original.grad is not None
    parametrize.remove_parametrizations(tiled, "weight")
    assert type(tiled) is TiledLinear


def test_functional_call_and_grad():
    linear, tiled = make_pair(7, 5)
    input = torch.randn(3, 7)
    zeros = {name: torch.zeros_like(parameter) for name, parameter in tiled.named_parameters()}
    assert not torch.func.functional_call(tiled, zeros, (input,)).any()

    def loss(parameters, module):
        return torch.func.functional_call(module, parameters, (input,)).square().sum()

    expected = torch.func.grad(loss)(dict(linear.named_parameters()), linear)
    torch.testing.assert_close(torch.func.grad(loss)(dict(tiled.named_parameters()), tiled), expected)


def test_meta_and_to_empty():
    with torch.device("meta"):
        tiled = TiledLinear(7, 5)
    assert tiled(torch.empty(3, 7, device="meta")).shape == (3, 5)
    linear = nn.Linear(7, 5)
    tiled.to_empty(device="cpu").load_state_dict(linear.state_dict())
    input = torch.randn(3, 7)
    torch.testing.assert_close(tiled(input), linear(input))


def test_autocast_keeps_the_dtype_asked_for():
    tiled = TiledLinear(7, 5)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            assert tiled(torch.randn(3, 7)).dtype == dtype


def test_compiles_in_one_graph():
    model = nn.Sequential(nn.Linear(7, 5), nn.GELU(), Doubled(5, 3)).double()
    with warnings.catch_warnings(action="ignore"):
        replace_linear(model, module_filter_fn=lambda *_: True)
    input = torch.randn(4, 7, dtype=torch.float64)
    expected = torch.autograd.grad(model(input).square().sum(), list(model.parameters()))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    actual = torch.autograd.grad(compiled(input).square().sum(), list(model.parameters()))
    torch.testing.assert_close(actual, expected)


# ---- replace_linear, restore_linear


class Model(nn.Module):
    """Names that are prefixes of each other, a layer that occurs twice, tied weights, a subclass."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(11))
        self.again = self.layers[0]
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.layers[1].weight
        self.plain = Plain(6, 6)

    def forward(self, x):
        for layer in (*self.layers, self.again, self.tied, self.plain):
            x = torch.tanh(layer(x))
        return x


def test_replaces_in_place():
    model = Model().double().eval()
    model.layers[2].train()
    calls = []
    model.layers[3].register_forward_hook(lambda *_: calls.append("hook"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    input = torch.randn(4, 6, dtype=torch.float64)
    expected = model(input)
    parameters, modules = dict(model.named_parameters()), dict(model.named_modules())

    swap = replace_linear(model)

    assert swap.replaced == [f"layers.{i}" for i in range(11)] + ["tied"]
    assert swap.skipped == [("plain", "Plain is a subclass of nn.Linear")] and swap.warnings == []
    assert type(model.layers[0]) is TiledLinear and type(model.plain) is Plain
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    assert all(module is modules[name] for name, module in model.named_modules())
    assert model.tied.weight is model.layers[1].weight and model.again is model.layers[0]
    assert model.layers[2].training and not model.layers[3].training
    calls.clear()
    assert tiled_calls(model, input) == 13 and calls == ["hook"]
    torch.testing.assert_close(model(input), expected)
    model(input).sum().backward()
    before = model.layers[5].weight.clone()
    optimizer.step()
    assert not torch.equal(model.layers[5].weight, before)

    assert replace_linear(model).skipped[0] == ("layers.0", "already tiled")


def test_print_shows_what_is_tiled():
    model = nn.Sequential(nn.Linear(7, 5), Plain(5, 5), Plain(5, 3))
    before, state = repr(model), [(name, value.data_ptr()) for name, value in model.state_dict().items()]
    replace_linear(model, module_filter_fn=lambda _, fqn: fqn != "2")
    lines = ["Sequential(", "  (0): TiledLinear(in_features=7, out_features=5, bias=True)"]
    lines += ["  (1): TiledPlain(in_features=5, out_features=5, bias=True)"]
    lines += ["  (2): Plain(in_features=5, out_features=3, bias=True)", ")"]
    assert repr(model).splitlines() == lines
    assert [(name, value.data_ptr()) for name, value in model.state_dict().items()] == state
    restore_linear(model)
    assert repr(model) == before


def test_filter_gets_module_and_exact_name():
    model = Model()
    seen = []

    def keep_one(module, fqn):
        seen.append((fqn, module))
        return fqn != "layers.1"

    swap = replace_linear(model, module_filter_fn=keep_one)
    assert dict(seen) == {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    assert swap.skipped == [("layers.1", "module_filter_fn said no")]
    assert type(model.layers[1]) is nn.Linear and type(model.layers[10]) is TiledLinear
    assert swap.replaced[-1] == "plain" and isinstance(model.plain, (Plain, TiledLinear))


def test_the_model_itself():
    linear = nn.Linear(7, 5)
    swap = replace_linear(linear)
    assert swap.replaced == [""] and type(linear) is TiledLinear
    assert repr(swap) == "replaced 1: the model itself"
    assert restore_linear(linear).replaced == [""] and type(linear) is nn.Linear


def test_subclass_keeps_its_own_forward():
    model = nn.Sequential(Doubled(7, 5), Plain(5, 5))
    input = torch.randn(3, 7)
    expected = model(input)
    with pytest.warns(UserWarning, match=r"replace_linear: 0 \(TiledDoubled\) has its own forward"):
        swap = replace_linear(model, module_filter_fn=lambda *_: True)
    assert swap.replaced == ["0", "1"] and len(swap.warnings) == 1
    assert isinstance(model[0], Doubled) and isinstance(model[0], TiledLinear) and model[0].scale() == 2
    assert tiled_calls(model, input) == 2
    torch.testing.assert_close(model(input), expected)
    restore_linear(model)
    assert [type(module) for module in model] == [Doubled, Plain]


def test_gathered_weights_are_tiled():
    """What torch.distributed gathers is a tensor of a class that waits, and hands the operators on."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    weight, input = torch.randn(5, 7), torch.randn(3, 7)
    outs = []
    assert tiled_calls(lambda: outs.append(torch_tiledmm.linear(input, AsyncCollectiveTensor(weight)))) == 1
    assert torch.equal(outs[0], torch_tiledmm.linear(input, weight))


class WithFunctions(torch.Tensor):
    """A tensor whose functions are its own."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


class Named(torch.Tensor):
    """A tensor with another name."""


def test_replaces_under_a_weight_with_another_name():
    layer, input = nn.Linear(7, 5), torch.randn(3, 7)
    layer.weight = nn.Parameter(layer.weight.detach().as_subclass(Named))
    expected = layer(input)
    assert replace_linear(layer).replaced == [""] and tiled_calls(layer, input) == 1
    torch.testing.assert_close(layer(input), expected)


ORDERS = (
    "hook replace unhook restore",
    "hook replace restore unhook",
    "hook unhook replace restore",
    "replace hook unhook restore",
    "replace hook restore unhook",
    "hook replace copy restore unhook",
)


@pytest.mark.parametrize("make", (nn.Linear, Doubled, Plain), ids=lambda make: make.__name__)
@pytest.mark.filterwarnings("ignore:replace_linear")
def test_hooks_that_keep_the_forward(make):
    """As accelerate's do. They come and go before and after the swaps, in any order."""
    input = torch.randn(3, 7)
    for steps in ORDERS:
        model = nn.Sequential(make(7, 5))
        plain, factor, is_tiled = model(input), 1, False
        for step in steps.split():
            if step == "replace":
                assert replace_linear(model, module_filter_fn=lambda *_: True).replaced == ["0"]
            elif step == "restore":
                assert restore_linear(model).replaced == ["0"] and type(model[0]) is make
            elif step == "copy":
                model = copy.deepcopy(model)
            else:
                (hooked if step == "hook" else unhooked)(model[0])
            factor = {"hook": 3, "unhook": 1}.get(step, factor)
            is_tiled = {"replace": True, "restore": False}.get(step, is_tiled)
            assert tiled_calls(model, input) == is_tiled, (steps, step)
            torch.testing.assert_close(model(input), factor * plain)


def taken_from_another(layer: nn.Linear) -> nn.Linear:
    """A shallow copy has the forward of the other layer, with the weight of that."""
    layer.forward = copy.deepcopy(layer).forward
    return layer


def partial_of_others(layer: nn.Linear) -> nn.Linear:
    layer._old_forward = layer.forward
    layer.forward = functools.partial(nn.Linear.forward, layer)
    return layer


def method_of_others(layer: nn.Linear) -> nn.Linear:
    old_forward = layer.forward
    layer.forward = types.MethodType(lambda self, input: 3 * old_forward(input), layer)
    return layer


def compiled(layer: nn.Linear) -> nn.Linear:
    layer.forward = torch.compile(layer.forward, backend="eager")
    return layer


def shallow_copy_of_a_hooked(layer: nn.Linear) -> nn.Linear:
    return copy.copy(hooked(layer))


def patched_and_hooked(layer: nn.Linear) -> nn.Linear:
    return hooked(patched(layer))


def hooked_and_patched(layer: nn.Linear) -> nn.Linear:
    return patched(hooked(layer))


PUT_FORWARDS = (
    patched,
    taken_from_another,
    partial_of_others,
    method_of_others,
    compiled,
    shallow_copy_of_a_hooked,
    patched_and_hooked,
    hooked_and_patched,
)


@pytest.mark.parametrize("put", PUT_FORWARDS, ids=lambda put: put.__name__)
def test_skips_layers_on_which_a_forward_was_put(put):
    layer, input = put(nn.Linear(7, 5)), torch.randn(3, 7)
    expected, attributes = layer(input), dict(vars(layer))
    reason = "a forward was put on it, which would be called in the place of ours; remove that, replace, put it back"
    assert replace_linear(layer, module_filter_fn=lambda *_: True).skipped == [("", reason)]
    assert type(layer) is nn.Linear and vars(layer) == attributes and torch.equal(layer(input), expected)


@pytest.mark.parametrize("put", PUT_FORWARDS, ids=lambda put: put.__name__)
def test_restore_leaves_layers_on_which_a_forward_was_put(put):
    layer, input = put(TiledLinear(7, 5, algorithm="naive")), torch.randn(3, 7)
    expected, attributes = layer(input), dict(vars(layer))
    reason = "a forward was put on it, which may call TiledLinear's; remove that first"
    assert restore_linear(layer).skipped == [("", reason)]
    assert type(layer) is TiledLinear and vars(layer) == attributes and torch.equal(layer(input), expected)


@pytest.mark.parametrize("change", (pruned, nn.utils.spectral_norm), ids=lambda change: change.__name__)
def test_weights_that_hooks_compute(change):
    model, input = nn.Sequential(change(nn.Linear(7, 5))).eval(), torch.randn(3, 7)
    expected = model(input)
    assert replace_linear(model).replaced == ["0"] and tiled_calls(model, input) == 1
    torch.testing.assert_close(model(input), expected)
    model(input).sum().backward()
    assert model[0].weight_orig.grad.any()
    assert restore_linear(model).replaced == ["0"] and torch.equal(model(input), expected)


@pytest.mark.parametrize("compile_it", ("the model", "the layer"))
def test_compiled_before_it_is_replaced(compile_it):
    """Compiled code asks for the class of a layer, so that it is compiled anew."""
    model, input, seen = nn.Sequential(nn.Linear(7, 5), nn.ReLU()), torch.randn(3, 7), []

    def backend(graph, _):
        seen.append(str(graph.graph))
        return graph

    (model if compile_it == "the model" else model[0]).compile(backend=backend)
    expected = model(input)
    for swap, is_tiled in ((replace_linear, True), (restore_linear, False)):
        assert swap(model).replaced == ["0"]
        seen.clear()
        torch.testing.assert_close(model(input), expected)
        assert ("tiledmm.linear" in "".join(seen)) == is_tiled


def test_lists_conv1d_of_transformers(monkeypatch):
    class Conv1D(nn.Module):
        pass

    module = types.SimpleNamespace(Conv1D=Conv1D)
    monkeypatch.setitem(sys.modules, "transformers.pytorch_utils", module)
    swap = replace_linear(nn.Sequential(nn.Linear(3, 3), Conv1D()))
    reason = "Conv1D is no nn.Linear: put one with the transposed weight there first"
    assert swap.replaced == ["0"] and swap.skipped == [("1", reason)]


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_skips_what_it_cannot_serve():
    model = nn.ModuleDict(
        {
            "complex": nn.Linear(3, 3, dtype=torch.complex64),
            "int8": nn.Linear(3, 3).requires_grad_(False).to(torch.float32),
            "lazy": nn.LazyLinear(3),
            "parametrized": nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
            "sparse": nn.Linear(3, 3),
            "csr": nn.Linear(3, 3),
            "own": nn.Linear(3, 3),
            "none": nn.Linear(3, 3),
            "bias_row": nn.Linear(3, 3),
            "own_bias": nn.Linear(3, 3),
        }
    )
    model["bias_row"].bias = nn.Parameter(torch.ones(1, 3))
    model["own_bias"].bias = nn.Parameter(torch.ones(3).as_subclass(WithFunctions), requires_grad=False)
    for name, weight in (
        ("sparse", torch.eye(3).to_sparse()),
        ("csr", torch.eye(3).to_sparse_csr()),
        ("own", torch.eye(3).as_subclass(WithFunctions)),
        ("none", None),
    ):
        model[name].weight = None if weight is None else nn.Parameter(weight, requires_grad=False)
    model["int8"].weight = nn.Parameter(torch.ones(3, 3, dtype=torch.int8), requires_grad=False)
    classes = [type(module) for module in model.values()]
    swap = replace_linear(model, module_filter_fn=lambda *_: True)
    assert swap.replaced == [] and [type(module) for module in model.values()] == classes
    assert swap.skipped == [
        ("complex", "torch.complex64 is not supported"),
        ("int8", "torch.int8 is not supported"),
        ("lazy", "lazy; run the model once first"),
        ("parametrized", "parametrized; replace first, then parametrize"),
        ("sparse", "its weight has layout torch.sparse_coo; tiled are strided ones"),
        ("csr", "its weight has layout torch.sparse_csr; tiled are strided ones"),
        ("own", "its weight is a WithFunctions, which has products of its own"),
        ("none", "its weight is a NoneType"),
        ("bias_row", "its bias has 2 dimensions; tiled are those with 1"),
        ("own_bias", "its bias is a WithFunctions"),
    ]
    assert str(swap).splitlines()[:2] == [
        "replaced 0: none",
        "skipped 1: complex (torch.complex64 is not supported)",
    ]


def test_skips_all_while_another_forward_is_nn_linear_s(monkeypatch):
    monkeypatch.setattr(nn.Linear, "forward", lambda self, input: input)
    swap = replace_linear(nn.Sequential(nn.Linear(3, 3)))
    assert swap.skipped == [("0", "another forward was put in the place of nn.Linear's")] and not swap.replaced


def test_a_module_is_no_activation():
    layer = TiledLinear(3, 4)
    with pytest.raises(TypeError, match="activation: got the module ReLU, expected a name"):
        layer.activation = nn.ReLU()


def test_skips_weights_of_other_projects():
    class Quantized(torch.Tensor):
        def __tensor_flatten__(self):
            raise AssertionError("only looked for")

        __tensor_unflatten__ = None
        __torch_dispatch__ = classmethod(lambda cls, function, types, args=(), kwargs=None: None)

    linear = nn.Linear(3, 3)
    del linear.weight
    linear.weight = torch.Tensor._make_wrapper_subclass(Quantized, (3, 3))
    assert replace_linear(linear).skipped == [("", "its weight is a Quantized, which has products of its own")]


def test_a_call_of_its_own_may_bypass():
    class Called(nn.Linear):
        def __call__(self, input):
            return nn.functional.linear(input, self.weight)

    model, input = nn.Sequential(Called(3, 3)), torch.randn(2, 3)
    with pytest.warns(
        UserWarning, match=r"0 \(TiledCalled\) has its own __call__: tiled is only what it leaves to super"
    ):
        replace_linear(model, module_filter_fn=lambda *_: True)
    assert tiled_calls(model, input) == 0


def test_transformer_fast_path_bypasses_and_can_be_switched_off():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    with pytest.warns(UserWarning, match="nn.TransformerEncoderLayer.*set_fastpath_enabled"):
        swap = replace_linear(layer)
    assert swap.replaced == ["linear1", "linear2"]
    (warning,) = swap.warnings
    assert "the model itself" in warning and "linear1 and linear2" in warning
    assert [name for name, _ in swap.skipped] == ["self_attn.out_proj"]
    input = torch.randn(2, 3, 8)
    assert tiled_calls(layer, input) == 2
    layer.eval()
    # A dispatch mode or a hook would switch the fast path off itself, so the calls count themselves.
    calls = []
    for child in (layer.linear1, layer.linear2):
        forward = child.forward
        child.forward = lambda x, forward=forward: calls.append(1) or forward(x)
    with torch.no_grad():
        bypassed = layer(input)
        assert calls == []
        enabled = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            called = layer(input)
        finally:
            torch.backends.mha.set_fastpath_enabled(enabled)
    assert len(calls) == 2
    torch.testing.assert_close(called, bypassed)


def test_attention_bypasses_its_projection_in_every_mode():
    attention = nn.MultiheadAttention(8, 2)
    with pytest.warns(UserWarning, match="never calls out_proj"):
        assert replace_linear(attention, module_filter_fn=lambda *_: True).replaced == ["out_proj"]
    input = torch.randn(3, 2, 8)
    assert tiled_calls(attention, input, input, input) == 0


def test_replaces_with_an_algorithm():
    model = nn.Sequential(nn.Linear(7, 7), Doubled(7, 7), TiledLinear(7, 7))
    with warnings.catch_warnings(action="ignore"):
        swap = replace_linear(model, algorithm="naive", module_filter_fn=lambda *_: True)
    assert swap.replaced == ["0", "1"] and swap.skipped == [("2", "already tiled")]
    assert [layer.algorithm for layer in model] == ["naive", "naive", "auto"]
    assert handed_over(model, torch.randn(3, 7)) == [(None, "naive"), (None, "naive"), (None, None)]
    assert "TiledDoubled(in_features=7, out_features=7, bias=True, algorithm='naive')" in repr(model)


def test_keeps_attributes_of_a_subclass():
    class Active(nn.Linear):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            self.activation = nn.ReLU()

    class Named(nn.Linear):
        algorithm = "of its own"

    model = nn.Sequential(Active(3, 3), Named(3, 3))
    swap = replace_linear(model, module_filter_fn=lambda *_: True)
    assert swap.replaced == [] and swap.skipped == [
        ("0", "it has an attribute 'activation' of its own"),
        ("1", "it has an attribute 'algorithm' of its own"),
    ]


def test_restore_leaves_layers_with_an_activation():
    model = nn.Sequential(TiledLinear(4, 4, activation="gelu"), TiledLinear(4, 4, algorithm="naive"))
    swap = restore_linear(model)
    assert swap.replaced == ["1"] and type(model[0]) is TiledLinear and model[0].activation == "gelu"
    assert swap.skipped == [("0", "its activation is 'gelu', which Linear has not")]
    assert vars(model[1]).keys() == vars(nn.Linear(4, 4)).keys()


@pytest.mark.parametrize("algorithm", ("auto", "naive"))
def test_restores_exactly(algorithm):
    model = Model()
    state, classes = copy.deepcopy(model.state_dict()), [type(module) for module in model.modules()]
    attributes = [set(vars(module)) for module in model.modules()]
    swap = replace_linear(model, algorithm=algorithm, module_filter_fn=lambda *_: True)
    assert restore_linear(model).replaced == swap.replaced
    assert [type(module) for module in model.modules()] == classes
    assert [set(vars(module)) for module in model.modules()] == attributes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert restore_linear(model).replaced == []


def test_restore_leaves_classes_made_from_tiled_linear():
    model = nn.Sequential(TiledLinear(4, 4), TiledLinear(4, 4))
    parametrize.register_parametrization(model[1], "weight", nn.Tanh())
    swap = restore_linear(model)
    assert swap.replaced == ["0"] and type(model[0]) is nn.Linear
    assert swap.skipped == [("1", "ParametrizedTiledLinear was made from TiledLinear, undo that first")]


def test_restore_leaves_parametrized_subclasses():
    """Their class inherits from the one that replace_linear made, and has their weight."""
    model, input = nn.Sequential(Plain(4, 4), Plain(4, 4)), torch.randn(3, 4)
    replace_linear(model, module_filter_fn=lambda *_: True)
    parametrize.register_parametrization(model[1], "weight", nn.Tanh())
    expected = model(input)
    swap = restore_linear(model)
    assert swap.replaced == ["0"] and type(model[0]) is Plain
    assert swap.skipped == [("1", "ParametrizedTiledPlain was made from TiledLinear, undo that first")]
    torch.testing.assert_close(model(input), expected)
    torch.testing.assert_close(copy.deepcopy(model)(input), expected)
    with pytest.raises(RuntimeError, match="Serialization of parametrized modules"):  # not as a TiledPlain
        pickle.dumps(model[1])
    parametrize.remove_parametrizations(model[1], "weight")
    assert restore_linear(model).replaced == ["1"] and type(model[1]) is Plain
    torch.testing.assert_close(model(input), expected)


def test_a_class_made_of_a_tiled_subclass_is_pickled_as_itself():
    model = Plain(4, 4)
    replace_linear(model, module_filter_fn=lambda *_: True)
    model.__class__ = type("OfOthers", (type(model),), {"__module__": __name__})
    with pytest.raises(pickle.PicklingError, match="OfOthers"):
        pickle.dumps(model)
    globals()["OfOthers"] = type(model)
    try:
        assert type(pickle.loads(pickle.dumps(model))) is type(model)
    finally:
        del globals()["OfOthers"]


@pytest.mark.parametrize("function", (replace_linear, restore_linear))
def test_refuses_what_is_no_module(function):
    with pytest.raises(TypeError, match=f"{function.__name__}: model is a list; accepted is a torch.nn.Module"):
        function([nn.Linear(2, 2)])


def test_names_are_public():
    assert {"TiledLinear", "replace_linear", "restore_linear"} <= set(torch_tiledmm.__all__)


def test_a_second_import_is_harmless():
    """As notebooks and test runners do it. The rules of the first import stay, and the functions of both work."""
    first = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "torch_tiledmm"}
    finders = sys.meta_path.copy()
    a, b = torch.randn(3, 4, 5), torch.randn(5, 6)
    layer = TiledLinear(5, 6)
    expected = torch_tiledmm.matmul(a, b)
    try:
        with warnings.catch_warnings(action="error"):
            for name in first:
                del sys.modules[name]
            again = importlib.import_module("torch_tiledmm")
            assert again is not torch_tiledmm and again.matmul is not torch_tiledmm.matmul
            for name in ("machine", "direct", "dispatch", "ops", "modules", "distributed"):
                importlib.reload(sys.modules[f"torch_tiledmm.{name}"])
            importlib.reload(again)
        for package in (torch_tiledmm, again):
            assert torch.equal(package.matmul(a, b), expected)
            assert torch.equal(torch.func.vmap(package.matmul, in_dims=(0, None))(a, b), expected)
            with FlopCounterMode(display=False) as counter:
                package.matmul(a, b)
            assert counter.get_total_flops() == 2 * 3 * 4 * 5 * 6
            with FakeTensorMode():
                assert package.matmul(torch.empty(3, 4), torch.empty(4, 2)).shape == (3, 2)
        assert torch.equal(layer(a), torch_tiledmm.linear(a, layer.weight, layer.bias))
        new = again.TiledLinear.from_linear(nn.Linear(5, 6))
        assert again.restore_linear(new).replaced == [""] and again.replace_linear(new).replaced == [""]
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torch_tiledmm"]:
            del sys.modules[name]
        sys.modules.update(first)
        sys.meta_path[:] = finders

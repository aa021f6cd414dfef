"""TiledLinear is nn.Linear in everything but the product; replace_linear and restore_linear swap in place.

Planted bugs that these tests caught: forward through F.linear, forward without the bias, restore to nn.Linear
whatever was there before, TiledLinear before the subclass, the filter's arguments swapped, no pickling of
subclasses, parametrized layers and subclasses replaced, no word on the transformer's fast path, a tiled layer that
prints itself as Linear, one that calls a subclass TiledLinear.
"""

import copy
import io
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

import torch_tiledmm
from torch_tiledmm import TiledLinear, replace_linear, restore_linear
from torch_tiledmm.testing import assert_close, expect_linear

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class Counted(TorchDispatchMode):
    """Counts the calls of tiledmm::linear: the proof that a layer is tiled."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += function is torch.ops.tiledmm.linear.default
        return function(*args, **(kwargs or {}))


def tiled_calls(function, *args) -> int:
    with Counted() as counted:
        function(*args)
    return counted.calls


class Doubled(nn.Linear):
    """A subclass with a forward, a method and an attribute of its own."""

    factor = 2

    def forward(self, input):
        return super().forward(input) * self.scale()

    def scale(self):
        return self.factor


class Plain(nn.Linear):
    """A subclass that changes nothing."""


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
    replace_linear(module, module_filter_fn=lambda *_: True)
    module[0].attribute = "kept"
    double = make_copy(module)
    input = torch.randn(3, 7)
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


def test_skips_what_it_cannot_serve():
    model = nn.ModuleDict(
        {
            "complex": nn.Linear(3, 3, dtype=torch.complex64),
            "int8": nn.Linear(3, 3).requires_grad_(False).to(torch.float32),
            "lazy": nn.LazyLinear(3),
            "parametrized": nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
        }
    )
    model["int8"].weight = nn.Parameter(torch.ones(3, 3, dtype=torch.int8), requires_grad=False)
    classes = [type(module) for module in model.values()]
    swap = replace_linear(model, module_filter_fn=lambda *_: True)
    assert swap.replaced == [] and [type(module) for module in model.values()] == classes
    assert swap.skipped == [
        ("complex", "torch.complex64 is not supported"),
        ("int8", "torch.int8 is not supported"),
        ("lazy", "lazy; run the model once first"),
        ("parametrized", "parametrized; replace first, then parametrize"),
    ]
    assert str(swap).splitlines()[:2] == [
        "replaced 0: none",
        "skipped 1: complex (torch.complex64 is not supported)",
    ]


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


def test_restores_exactly():
    model = Model()
    state, classes = copy.deepcopy(model.state_dict()), [type(module) for module in model.modules()]
    attributes = [set(vars(module)) for module in model.modules()]
    swap = replace_linear(model, module_filter_fn=lambda *_: True)
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


@pytest.mark.parametrize("function", (replace_linear, restore_linear))
def test_refuses_what_is_no_module(function):
    with pytest.raises(TypeError, match=f"{function.__name__}: model is a list; accepted is a torch.nn.Module"):
        function([nn.Linear(2, 2)])


def test_names_are_public():
    assert {"TiledLinear", "replace_linear", "restore_linear"} <= set(torch_tiledmm.__all__)

"""transformers' gated feed-forwards by gated_linear: models compute, learn, are saved and are loaded as before.

Planted bugs that these tests caught: gate and up of Phi3's one weight exchanged; hooks of a layer left out; an
activation that is taken for silu.
"""

import copy
import pickle

import pytest
import torch
from torch import nn

from torch_tiledmm import replace_gated_mlp, replace_linear, restore_gated_mlp, restore_linear

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SIZES |= {"vocab_size": 101, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
MODELS = ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "Phi3")


def make(name: str, **more: object) -> nn.Module:
    config = getattr(transformers, f"{name}Config")(**SIZES, **more)
    return getattr(transformers, f"{name}ForCausalLM")(config).double().eval()


def make_input() -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 101, (2, 9))
    return {"input_ids": ids, "labels": ids}


def outcome(model: nn.Module, given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Logits and gradients."""
    model.zero_grad()
    out = model(**given)
    out.loss.backward()
    return [out.logits.detach(), *(p.grad.clone() for p in model.parameters())]


def assert_alike(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for own, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("keeps_sums", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_models(name, keeps_sums):
    model, given = make(name), make_input()
    expected, former = outcome(model, given), [type(module) for module in model.modules()]
    parameters = list(model.parameters())
    swap = replace_gated_mlp(model, keeps_sums=keeps_sums)
    assert len(swap.replaced) == 2 and not swap.skipped and all("mlp" in replaced for replaced in swap.replaced)
    assert all(own is other for own, other in zip(model.parameters(), parameters, strict=True))
    assert_alike(outcome(model, given), expected)
    replace_linear(model)
    assert_alike(outcome(model, given), expected)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_alike(outcome(other, given), expected)
    restore_linear(model)
    assert restore_gated_mlp(model).replaced == swap.replaced
    assert [type(module) for module in model.modules()] == former
    assert_alike(outcome(model, given), expected)


@pytest.mark.parametrize("activation", ["gelu_pytorch_tanh", "gelu", "relu", "silu"])
def test_activations_are_told_by_their_values(activation):
    model, given = make("Llama", hidden_act=activation), make_input()
    expected = outcome(model, given)
    assert len(replace_gated_mlp(model).replaced) == 2
    assert_alike(outcome(model, given), expected)
    other = make("Llama", hidden_act="tanh")
    assert [reason for _, reason in replace_gated_mlp(other).skipped] == [
        "its activation is none of silu, gelu, gelu_tanh, relu"
    ] * 2


def test_saved_and_loaded(tmp_path):
    model, given = make("Llama"), make_input()
    replace_gated_mlp(model)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.float64)
    assert torch.equal(
        model.generate(given["input_ids"], max_new_tokens=5), loaded.generate(given["input_ids"], max_new_tokens=5)
    )
    assert_alike(outcome(loaded, given), outcome(model, given))


def test_layers_that_are_no_plain_ones_any_more():
    """Hooks and adapters that come later are called."""
    model, given = make("Llama"), make_input()
    replace_gated_mlp(model)
    expected = model(**given).logits
    seen = []
    handle = model.model.layers[0].mlp.up_proj.register_forward_hook(lambda *call: seen.append(call))
    torch.testing.assert_close(model(**given).logits, expected)
    assert len(seen) == 1
    handle.remove()
    model(**given)
    assert len(seen) == 1
    model.model.layers[1].mlp.gate_proj = nn.Sequential(model.model.layers[1].mlp.gate_proj, nn.ReLU())
    assert not torch.allclose(model(**given).logits, expected)
    other = make("Llama")
    other.model.layers[0].mlp.up_proj.register_forward_hook(lambda *call: None)
    swap = replace_gated_mlp(other)
    assert swap.skipped == [("model.layers.0.mlp", "a layer in it is no plain nn.Linear")] and len(swap.replaced) == 1


class Quantized(torch.Tensor):
    """Ones, whatever is stored: a weight of a class with products of its own."""

    @staticmethod
    def __new__(cls, stored):
        return torch.Tensor._make_wrapper_subclass(cls, stored.shape, dtype=stored.dtype)

    def __init__(self, stored):
        self.stored = stored

    def __tensor_flatten__(self):
        return ["stored"], None

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:  # as nn.Parameter asks
            return cls(args[0].stored)
        args = [torch.ones_like(arg.stored) if isinstance(arg, cls) else arg for arg in args]
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("is_before", [True, False])
def test_weights_with_products_of_their_own(is_before):
    """A weight that is quantised before or after the replacement keeps its own products."""
    model, given = make("Llama"), make_input()
    layer = model.model.layers[0].mlp.up_proj
    swap = None if is_before else replace_gated_mlp(model)
    stored = layer.weight.detach()
    layer.weight = nn.Parameter(Quantized(stored), requires_grad=False)
    swap = swap or replace_gated_mlp(model)
    actual = model(**given).logits
    assert [name for name, _ in swap.skipped] == (["model.layers.0.mlp"] if is_before else [])
    assert not is_before or "Quantized" in swap.skipped[0][1]
    layer.weight = nn.Parameter(torch.ones_like(stored))
    torch.testing.assert_close(actual, model(**given).logits, rtol=1e-9, atol=1e-11)


def test_compiled():
    model, given = make("Qwen3"), make_input()
    expected = model(**given).logits
    replace_gated_mlp(model)
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(compiled(**given).logits, expected, rtol=1e-9, atol=1e-11)

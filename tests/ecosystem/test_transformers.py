"""transformers: models compute, generate, learn, are saved and are loaded as they do with nn.Linear.

All models are float64: with another order of summation, no token and no route to an expert changes. None has
drop-out.

Planted bugs that these tests caught: forward without the bias, Conv1D in no list, a weight that is no longer tied.
"""

import copy

import pytest
import torch
from tiled import Counted, tiled_calls
from torch import nn

from torch_tiledmm import TiledLinear, replace_linear, restore_linear

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
CAUSAL = {**SIZES, "vocab_size": 101, "num_key_value_heads": 2}
T5 = {"vocab_size": 101, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "dropout_rate": 0}
GPT2 = {"vocab_size": 101, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
GPT2 |= {"attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}
BERT = {**SIZES, "vocab_size": 101, "attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0}
MIXTRAL = {**CAUSAL, "num_local_experts": 4, "experts_implementation": "eager"}
# The class, its configuration, and the number of its layers that are nn.Linear. Experts are none.
MODELS = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", CAUSAL, 15),
    "llama_tied": ("LlamaForCausalLM", "LlamaConfig", {**CAUSAL, "tie_word_embeddings": True}, 15),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2, 1),
    "bert": ("BertForMaskedLM", "BertConfig", BERT, 14),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", MIXTRAL, 9),
    "vit": (
        "ViTForImageClassification",
        "ViTConfig",
        {**SIZES, "image_size": 16, "patch_size": 8, "num_labels": 7},
        13,
    ),
    "t5": ("T5ForConditionalGeneration", "T5Config", {**T5, "decoder_start_token_id": 0}, 33),
}
WRITERS = ("llama", "llama_tied", "gpt2", "mixtral", "t5")
EXACT = {"rtol": 1e-10, "atol": 1e-12}


def make(name: str) -> nn.Module:
    model, config, sizes, _ = MODELS[name]
    made = getattr(transformers, model)(getattr(transformers, config)(**sizes)).double().eval()
    for parameter_name, parameter in made.named_parameters():
        if parameter_name.endswith("bias"):  # zeros, which say nothing
            nn.init.normal_(parameter, std=0.1)
    return made


def make_input(name: str) -> dict[str, torch.Tensor]:
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16, dtype=torch.float64), "labels": torch.tensor([3, 5])}
    ids = torch.randint(3, 101, (2, 9))
    return {"input_ids": ids, "labels": ids}


@torch.no_grad()
def logits(model: nn.Module, input: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(**input).logits


@pytest.mark.parametrize("name", MODELS)
def test_logits(name):
    model, input = make(name), make_input(name)
    expected = logits(model, input)
    swap = replace_linear(model)
    assert len(swap.replaced) == MODELS[name][-1] and swap.warnings == []
    with Counted() as counted:
        actual = logits(model, input)
    assert counted.calls == len(swap.replaced)
    torch.testing.assert_close(actual, expected, **EXACT)
    assert restore_linear(model).replaced == swap.replaced
    assert torch.equal(logits(model, input), expected)


@pytest.mark.parametrize("name", WRITERS)
def test_generates_the_same_tokens(name):
    model, ids = make(name), make_input(name)["input_ids"]
    settings = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, **settings)
    replace_linear(model)
    with Counted() as counted:
        actual = model.generate(ids, **settings)
    assert torch.equal(actual, expected) and actual.shape[1] >= 9 and counted.calls >= 8


@pytest.mark.parametrize("name", ("llama", "llama_tied", "gpt2", "t5"))
def test_saved_and_loaded(name, tmp_path):
    model, input = make(name), make_input(name)
    replace_linear(model)
    expected = logits(model, input)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert not any(isinstance(module, TiledLinear) for module in loaded.modules())
    is_tied = model.lm_head.weight is model.get_input_embeddings().weight
    assert is_tied == (name != "llama") and is_tied == (loaded.lm_head.weight is loaded.get_input_embeddings().weight)
    replace_linear(loaded)
    assert torch.equal(logits(loaded, input), expected)


@pytest.mark.parametrize("is_checkpointed", (False, True), ids=("plain", "checkpointed"))
@pytest.mark.parametrize("name", MODELS)
def test_gradients(name, is_checkpointed):
    model, input = make(name), make_input(name)
    tiled = copy.deepcopy(model)
    replace_linear(tiled)
    if is_checkpointed:
        tiled.train().activation_checkpointing_enable({"use_reentrant": False})
    num_layers = MODELS[name][-1]
    model(**input).loss.backward()
    with Counted() as counted:
        tiled(**input).loss.backward()
    # What a checkpoint holds is computed twice; the head is in none.
    assert counted.calls > num_layers if is_checkpointed and num_layers > 1 else counted.calls == num_layers
    for (parameter_name, expected), actual in zip(model.named_parameters(), tiled.parameters(), strict=True):
        if expected.grad is None:
            assert actual.grad is None, parameter_name
        else:
            torch.testing.assert_close(actual.grad, expected.grad, **EXACT, msg=lambda m, p=parameter_name: f"{p}: {m}")


def test_conv1d_is_listed_and_can_be_exchanged():
    model, input = make("gpt2"), make_input("gpt2")
    expected = logits(model, input)
    reason = "Conv1D is no nn.Linear: put one with the transposed weight there first"
    skipped = replace_linear(model).skipped
    kinds = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    assert skipped == [(f"transformer.h.{i}.{kind}", reason) for i in range(2) for kind in kinds]
    for name, _ in skipped:
        old = model.get_submodule(name)
        new = nn.Linear(old.nx, old.nf, dtype=torch.float64)
        new.weight, new.bias = nn.Parameter(old.weight.detach().T), old.bias
        model.set_submodule(name, new)
    assert replace_linear(model).replaced == [name for name, _ in skipped]
    with Counted() as counted:
        torch.testing.assert_close(logits(model, input), expected, **EXACT)
    assert counted.calls == 9


def test_layers_that_come_later_are_not_tiled():
    """As the guide says."""
    model = make("llama")
    replace_linear(model)
    model.resize_token_embeddings(120)
    assert type(model.lm_head) is nn.Linear and replace_linear(model).replaced == ["lm_head"]
    assert tiled_calls(logits, model, make_input("llama")) == 15

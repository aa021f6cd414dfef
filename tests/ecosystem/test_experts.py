"""transformers' mixtures of experts by grouped_matmul: models compute, learn, generate and compile as before, and a
token's bits do not depend on the other tokens.
"""

import pytest
import torch
from torch import nn

import torch_tiledmm.transformers
from torch_tiledmm.testing.cases import assert_same_bits

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SIZES |= {"vocab_size": 101, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
DEEPSEEK = {"n_routed_experts": 6, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 16}
DEEPSEEK |= {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
MODELS = {
    "Mixtral": {"num_local_experts": 6, "num_experts_per_tok": 2},
    "Qwen3Moe": {"num_experts": 6, **MOE},
    "Olmoe": {"num_experts": 6, "num_experts_per_tok": 2},
    "DeepseekV3": {**MOE, **DEEPSEEK, "num_key_value_heads": 4},
    "GptOss": {"num_local_experts": 6, "num_experts_per_tok": 2},  # biases, weights the other way round, its own gate
}


@pytest.fixture(scope="module", autouse=True)
def registered():
    torch_tiledmm.transformers.register()


def make(name: str, implementation: str) -> nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **MODELS[name]})
    model = getattr(transformers, f"{name}ForCausalLM")._from_config(config, experts_implementation=implementation)
    for parameter in model.parameters():  # where transformers leaves memory as it is
        nn.init.normal_(parameter, std=0.1)
    return model.double().eval()


def experts_of(model: nn.Module) -> nn.Module:
    return next(module for module in model.modules() if hasattr(module, "down_proj") and hasattr(module, "has_gate"))


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    ids = torch.randint(3, 101, (2, 9))
    outcomes = []
    for implementation in ("eager", "tiledmm"):
        model = make(name, implementation)
        assert model.config._experts_implementation == implementation
        out = model(input_ids=ids, labels=ids)
        out.loss.backward()
        grads = [torch.zeros_like(own) if own.grad is None else own.grad for own in model.parameters()]
        tokens = model.generate(ids, max_new_tokens=4, do_sample=False)
        outcomes.append([out.logits.detach(), *grads, tokens])
    for eager, ours in zip(*outcomes, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bits_of_a_token_do_not_depend_on_others(dtype):
    experts = experts_of(make("Qwen3Moe", "tiledmm")).to(dtype)
    hidden = torch.randn(70, 32, dtype=dtype)
    index = torch.stack([torch.randperm(6)[:2] for _ in range(70)])
    weights = torch.rand(70, 2, dtype=dtype)
    together = experts(hidden, index, weights)
    for token in range(0, 70, 9):
        own = slice(token, token + 1)
        assert_same_bits(experts(hidden[own], index[own], weights[own]), together[own])


def test_experts_of_other_devices_add_nothing():
    experts = experts_of(make("Qwen3Moe", "tiledmm"))
    hidden = torch.randn(5, 32, dtype=torch.double, requires_grad=True)
    index, weights = torch.tensor([[0, 6], [3, 5], [6, 6], [1, 6], [2, 4]]), torch.rand(5, 2, dtype=torch.double)
    out = experts(hidden, index, weights)
    assert not out[2].any() and out[[0, 1, 3, 4]].abs().sum(1).min() > 0
    alone = experts(hidden[3:4], index[3:4, :1], weights[3:4, :1])
    torch.testing.assert_close(out[3:4], alone, rtol=1e-12, atol=1e-12)
    out.sum().backward()
    assert not hidden.grad[2].any() and torch.isfinite(hidden.grad).all()


def test_replace_linear_names_experts():
    model = make("Mixtral", "tiledmm")
    skipped = dict(torch_tiledmm.replace_linear(model).skipped)
    assert list(skipped) == [f"model.layers.{layer}.mlp.experts" for layer in range(2)]
    assert "torch_tiledmm.transformers.register()" in skipped["model.layers.0.mlp.experts"]


def test_compiled():
    model, ids = make("Mixtral", "tiledmm"), torch.randint(3, 101, (2, 9))
    expected = model(input_ids=ids).logits
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(input_ids=ids).logits, expected, rtol=1e-9, atol=1e-11)


def test_quantised_weights_are_refused():
    experts = experts_of(make("Qwen3Moe", "tiledmm"))

    class Quantized(torch.Tensor):
        def __tensor_flatten__(self):
            return [], None

    experts.down_proj = nn.Parameter(experts.down_proj.detach().as_subclass(Quantized), requires_grad=False)
    with pytest.raises(NotImplementedError, match="Quantized"):
        experts(torch.zeros(1, 32).double(), torch.zeros(1, 2, dtype=torch.long), torch.ones(1, 2).double())

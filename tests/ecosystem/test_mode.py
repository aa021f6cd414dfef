"""transformers under the mode: a whole model's rows have the same bits alone and in a batch, forward, backward and in
generate, and a token has them alone with a cache and in its sequence; torch's own do not in all of them.

Planted bugs that these tests caught: products left out, the choice of attention left out.
"""

import pytest
import torch
from test_transformers import MODELS, WRITERS, make, make_input, transformers
from torch import Tensor

import torch_tiledmm

BATCH = 9


def rows_of(input: dict[str, Tensor], rows: slice) -> dict[str, Tensor]:
    return {name: value[rows] for name, value in input.items() if name != "labels"}


def input_of(name: str) -> dict[str, Tensor]:
    """make_input's, of more rows and in fp32, whose bits vary in torch."""
    inputs = [make_input(name) for _ in range(5)]
    joined = {key: torch.cat([input[key] for input in inputs])[:BATCH] for key in inputs[0]}
    if name == "t5":
        joined["decoder_input_ids"] = joined["input_ids"]
    return {key: value.float() if value.is_floating_point() else value for key, value in joined.items()}


@pytest.mark.parametrize("attention", ("eager", "sdpa"))
@pytest.mark.parametrize("name", MODELS)
def test_rows_of_a_whole_model(name, attention):
    model, input = make(name).float(), input_of(name)
    if attention == "sdpa" and name == "t5":
        pytest.skip("T5 has eager attention alone")
    model.set_attn_implementation(attention)
    with torch_tiledmm.enabled(), torch.no_grad():
        whole = model(**rows_of(input, slice(0, BATCH))).logits
        for rows in (slice(0, 1), slice(3, 5), slice(1, BATCH)):
            assert torch.equal(model(**rows_of(input, rows)).logits, whole[rows])
        assert torch_tiledmm.report().served


@pytest.mark.parametrize("name", ("llama", "gpt2", "bert", "mixtral"))
def test_gradients_of_rows(name):
    """Of the embedded input, whose rows are the batch's."""
    model, input = make(name).float().requires_grad_(False), input_of(name)
    embedded = model.get_input_embeddings()(input["input_ids"])

    def gradient(rows: slice) -> Tensor:
        x = embedded[rows].clone().requires_grad_()
        scores = model(inputs_embeds=x).logits
        return torch.autograd.grad(scores.log_softmax(-1)[..., 3].sum(), x)[0]

    with torch_tiledmm.enabled():
        whole = gradient(slice(0, BATCH))
        for rows in (slice(0, 1), slice(4, 7)):
            assert torch.equal(gradient(rows), whole[rows])


@pytest.mark.parametrize("name", WRITERS)
def test_generate(name):
    """Each step's logits, with a cache, prompts of unlike lengths padded to one."""
    model, tokens = make(name).float(), input_of(name)["input_ids"]
    mask = torch.ones_like(tokens)
    for row, own in enumerate(mask):
        own[: row % 4] = 0

    def steps(rows: slice) -> tuple[Tensor, ...]:
        config = transformers.GenerationConfig(
            max_new_tokens=8, min_new_tokens=8, do_sample=False, output_logits=True, return_dict_in_generate=True,
            pad_token_id=0, decoder_start_token_id=0, eos_token_id=2
        )  # fmt: skip
        return model.generate(tokens[rows], attention_mask=mask[rows], generation_config=config).logits

    with torch_tiledmm.enabled():
        whole = steps(slice(0, BATCH))
        for rows in (slice(0, 1), slice(2, 5)):
            assert all(torch.equal(own, step[rows]) for own, step in zip(steps(rows), whole, strict=True))


@pytest.mark.parametrize("attention", ("eager", "sdpa"))
@pytest.mark.parametrize("name", ("llama", "gpt2", "mixtral"))
def test_tokens_one_at_a_time(name, attention):
    """A sampler's logits, with a cache, are those of the whole sequence in a batch."""
    model, tokens = make(name).float(), input_of(name)["input_ids"]
    model.set_attn_implementation(attention)
    with torch_tiledmm.enabled(), torch.no_grad():
        whole = model(tokens).logits
        cache = None
        for i in range(tokens.shape[1]):
            made = model(tokens[2:4, i : i + 1], past_key_values=cache, use_cache=True)
            assert torch.equal(made.logits[:, 0], whole[2:4, i])
            cache = made.past_key_values

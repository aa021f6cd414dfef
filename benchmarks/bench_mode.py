"""Whole models as they are and under `torch_tiledmm.enable()`: times, and whether a row's bits depend on the batch.

    python benchmarks/bench_mode.py [--device cuda] [--json FILE] [--what times attention cached generate gradients]

The models are those of transformers with random weights, in bf16 on a GPU and in fp32 on a CPU. times: forward passes
and training steps (forward and backward), arms in turns, medians; torch / ours. attention: what torch's attention of
grouped heads costs as torch chooses and under the mode. cached: logits of a whole sequence against those of its tokens
one at a time with a cache, steps that differ. generate: logits of 64 tokens of batches of 1, 2, 5 and 8 prompts against
those of 16, of one length and padded to one, steps that differ. gradients: losses and input gradients of each row alone
against a batch of 16, rows that differ.
"""

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator

import torch
from bench_models import decoding_step
from torch import Tensor, nn

import torch_tiledmm
from torch_tiledmm.mode import COVER, ON_REQUEST
from torch_tiledmm.testing.bench import describe_run, geomean, output_file, write_json
from torch_tiledmm.testing.origin import describe_gpu_run

SEED = 3


def make(name: str, device: str, is_large: bool, attention: str = "eager") -> tuple[nn.Module, dict[str, Tensor]]:
    """A model and its inputs: a batch of 16."""
    import transformers

    torch.manual_seed(SEED)
    hidden, layers, length = (2048, 8, 300) if is_large else (128, 2, 77)
    sizes = dict(hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=hidden // 64 if is_large else 4)
    causal = dict(**sizes, vocab_size=8000, num_key_value_heads=hidden // 256 if is_large else 2)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    tokens = torch.randint(3, 8000, (16, length), device=device)
    inputs = {"input_ids": tokens, "labels": tokens}
    if name == "vit":
        config = transformers.ViTConfig(**sizes, intermediate_size=4 * hidden, num_labels=100)
        model = transformers.ViTForImageClassification(config)
        inputs = {"pixel_values": torch.randn(16, 3, 224, 224, device=device, dtype=dtype),
                  "labels": torch.arange(16, device=device)}  # fmt: skip
    elif name == "gpt2":
        config = transformers.GPT2Config(vocab_size=8000, n_embd=hidden, n_layer=layers, n_head=hidden // 64,
                                         attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)  # fmt: skip
        model = transformers.GPT2LMHeadModel(config)
    elif name == "bert":
        config = transformers.BertConfig(**sizes, vocab_size=8000, intermediate_size=4 * hidden,
                                         attention_probs_dropout_prob=0, hidden_dropout_prob=0)  # fmt: skip
        model = transformers.BertForMaskedLM(config)
    elif name == "mixtral":
        config = transformers.MixtralConfig(**causal, intermediate_size=hidden, num_local_experts=8,
                                            experts_implementation="eager")  # fmt: skip
        model = transformers.MixtralForCausalLM(config)
    else:
        config = transformers.LlamaConfig(**causal, intermediate_size=11 * hidden // 4)
        model = transformers.LlamaForCausalLM(config)
    model.set_attn_implementation(attention)
    return model.to(device, dtype).eval(), inputs


MODELS = ("llama", "gpt2", "bert", "vit", "mixtral")
ARMS = ("torch", "ours")


@contextlib.contextmanager
def arm(name: str) -> Iterator[None]:
    """torch; ours: the mode; decoding: the mode with what `cover` has on request."""
    cover = COVER + ON_REQUEST if name == "decoding" else COVER
    with contextlib.nullcontext() if name == "torch" else torch_tiledmm.enabled(cover=cover):
        yield


def median_ms(call: Callable[[], object], device: str, count: int) -> float:
    times = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times)[count // 2] * 1e3


def compare(call: Callable[[], object], device: str, count: int, arms: tuple[str, ...] = ARMS) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(3):
        for name, times in found.items():
            with arm(name):
                call()
                times.append(median_ms(call, device, count))
            time.sleep(0.05)
    return {f"{name}_ms": round(min(times), 3) for name, times in found.items()}


def measure_times(device: str, is_large: bool, count: int) -> list[dict]:
    rows = []
    for name in MODELS:
        model, inputs = make(name, device, is_large)

        def forward(model=model, inputs=inputs) -> None:
            with torch.no_grad():
                model(**inputs)

        def step(model=model, inputs=inputs) -> None:
            model.zero_grad(set_to_none=True)
            model(**inputs).loss.backward()

        for what, call in (("forward", forward), ("training step", step)):
            row = {"model": name, "what": what, **compare(call, device, count)}
            rows.append(row)
            print(f"{name:8s} {what:14s} torch {row['torch_ms']:8.2f} ms, ours {row['ours_ms']:8.2f}, "
                  f"{row['torch_ms'] / row['ours_ms']:.3f}", flush=True)  # fmt: skip
        if name == "llama" and device == "cuda":
            rows.append({"model": name, "what": "decoding by a CUDA graph", **measure_decoding(model)})
            print(rows[-1], flush=True)
        del model
    print(f"torch / ours: {geomean([row['torch_ms'] / row['ours_ms'] for row in rows]):.3f}")
    return rows


def measure_decoding(model: nn.Module) -> dict[str, float]:
    """One step of 16 sequences with 512 keys in a static cache, as a CUDA graph."""
    model.set_attn_implementation("sdpa")  # eager attention copies its mask from the host
    found: dict[str, list[float]] = {name: [] for name in (*ARMS, "decoding")}
    steps = {}
    for name in found:
        with arm(name):
            steps[name] = decoding_step(model, 16)
    for _ in range(3):
        for name, times in found.items():
            times.append(median_ms(steps[name], "cuda", 30))
    return {f"{name}_ms": round(min(times), 3) for name, times in found.items()}


def measure_attention(device: str, is_large: bool, count: int) -> list[dict]:
    """Four heads of queries for one of keys, 128 numbers each: whole sequences, and one token with a cache."""
    rows = []
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    for batch, heads, queries, keys in ((1, 32, 4096, 4096), (4, 32, 1024, 1024), (16, 32, 1, 2048), (1, 32, 1, 8192)):
        heads = heads if is_large else 4
        query = torch.randn(batch, heads, queries, 128, device=device, dtype=dtype)
        key, value = (torch.randn(batch, heads // 4, keys, 128, device=device, dtype=dtype) for _ in range(2))

        def attend(query=query, key=key, value=value) -> Tensor:
            return nn.functional.scaled_dot_product_attention(
                query, key, value, is_causal=query.shape[2] > 1, enable_gqa=True
            )

        arms = ARMS if queries > 1 or device == "cpu" else (*ARMS, "decoding")
        row = {"queries": list(query.shape), "keys": list(key.shape), **compare(attend, device, count, arms)}
        rows.append(row)
        print(row, flush=True)
    return rows


def measure_cached(device: str, is_large: bool, count: int) -> list[dict]:
    rows = []
    for name in ("llama", "gpt2", "mixtral"):
        for attention in ("eager", "sdpa"):
            model, inputs = make(name, device, is_large, attention)
            tokens = inputs["input_ids"][:4]
            half = tokens.shape[1] // 2
            for arm_name in ("torch", "ours"):
                with arm(arm_name), torch.no_grad():
                    whole = model(tokens).logits
                    made = model(tokens[:, :half], use_cache=True)
                    differ = int(not torch.equal(made.logits, whole[:, :half]))
                    for i in range(half, tokens.shape[1]):
                        made = model(tokens[:, i : i + 1], past_key_values=made.past_key_values, use_cache=True)
                        differ += not torch.equal(made.logits[:, 0], whole[:, i])
                steps = tokens.shape[1] - half + 1
                rows.append({"model": name, "attention": attention, "arm": arm_name, "steps": steps, "differ": differ})
                print(rows[-1], flush=True)
    return rows


def measure_generate(device: str, is_large: bool, count: int) -> list[dict]:
    rows = []
    for attention in ("eager", "sdpa"):
        for padded in (False, True):
            model, inputs = make("llama", device, is_large, attention)
            tokens = inputs["input_ids"][:, :77]
            mask = torch.ones_like(tokens)
            if padded:
                for i, row in enumerate(mask):  # all of them: transformers drops a mask that hides nothing
                    row[: 3 * i + 1] = 0

            def logits(batch: int, model=model, tokens=tokens, mask=mask) -> list[Tensor]:
                made = model.generate(tokens[:batch], attention_mask=mask[:batch], max_new_tokens=64, do_sample=False,
                                      min_new_tokens=64, output_logits=True, return_dict_in_generate=True,
                                      pad_token_id=0)  # fmt: skip
                return made.logits

            for name in ("torch", "ours"):
                with arm(name):
                    whole = logits(16)
                    differ = {
                        batch: sum(
                            not torch.equal(own, step[:batch]) for own, step in zip(logits(batch), whole, strict=True)
                        )
                        for batch in (1, 2, 5, 8)
                    }
                rows.append({"attention": attention, "padded": padded, "arm": name, "steps_that_differ": differ})
                print(rows[-1], flush=True)
    return rows


def measure_gradients(device: str, is_large: bool, count: int) -> list[dict]:
    rows = []
    for model_name in ("llama", "gpt2", "bert"):
        for attention in ("eager", "sdpa"):
            model, inputs = make(model_name, device, is_large, attention)
            model.requires_grad_(False)
            embedded = model.get_input_embeddings()(inputs["input_ids"]).detach()

            def run(rows_of: slice, model=model, inputs=inputs, embedded=embedded) -> tuple[Tensor, Tensor]:
                x = embedded[rows_of].clone().requires_grad_()
                scores = model(inputs_embeds=x).logits.float()
                labels = inputs["labels"][rows_of]
                losses = nn.functional.cross_entropy(scores.mT, labels, reduction="none").mean(-1)
                return losses.detach(), torch.autograd.grad(losses.sum(), x)[0]

            for name in ("torch", "ours"):
                with arm(name):
                    whole = run(slice(0, 16))
                    differ = 0
                    for i in range(16):
                        alone = run(slice(i, i + 1))
                        differ += not all(torch.equal(a, w[i : i + 1]) for a, w in zip(alone, whole, strict=True))
                rows.append({"model": model_name, "attention": attention, "arm": name, "rows_that_differ": differ})
                print(rows[-1], flush=True)
    return rows


MEASURED = {
    "times": measure_times,
    "attention": measure_attention,
    "cached": measure_cached,
    "generate": measure_generate,
    "gradients": measure_gradients,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", type=output_file, default=None, metavar="FILE")
    parser.add_argument("--what", nargs="+", choices=MEASURED, default=list(MEASURED))
    parser.add_argument("--count", type=int, default=10, help="calls in a turn")
    args = parser.parse_args()
    is_large = args.device == "cuda"
    results: dict[str, object] = describe_gpu_run("mode") if is_large else describe_run("mode", torch.float32)
    for what in args.what:
        results[what] = MEASURED[what](args.device, is_large, args.count)
        write_json(results, args.json)


if __name__ == "__main__":
    main()

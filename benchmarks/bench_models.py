"""Whole models on a GPU, as they are and with all linear layers and gated feed-forwards replaced, arms interleaved.

    python benchmarks/bench_models.py --json benchmarks/results/nvidia_h200/models.json

ViT-base and BERT-base with fp32 weights under autocast in bf16, a small Llama and a small Qwen 2 in bf16, each eager
and compiled. The models are those of transformers with random weights. A step is forward, backward and AdamW. Each row
of the table is measured in a process of its own, where nothing of an earlier one slows the calling thread. Where that
thread takes longer than the GPU ("launch us" beside the median), a step tells of it and not of kernels; such a model
runs compiled into CUDA graphs, too. Decoding is one token of each of eight sequences with 512 keys in a cache, as a
CUDA graph.
"""

import argparse
import copy
import functools
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import torch
from torch import nn

from torch_tiledmm import replace_gated_mlp, replace_linear
from torch_tiledmm.testing.bench import OURS, output_file
from torch_tiledmm.testing.origin import describe_gpu_run
from torch_tiledmm.testing.timing import time_on_gpu

VENDOR = "vendor"
MODEL_HEAD = ("model", "", "us", "shortest", "nn.Linear us", "shortest", "launch us", "of nn.Linear")
MODEL_HEAD += ("ratio", "of the shortest")


def random_tokens(size: int, batch: int, length: int) -> torch.Tensor:
    return torch.randint(size, (batch, length), device="cuda", generator=torch.Generator("cuda").manual_seed(0))


def vit(batch: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    import transformers

    images = torch.randn(batch, 3, 224, 224, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    model = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000))
    return model, {"pixel_values": images, "labels": torch.arange(batch, device="cuda")}


def bert() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    import transformers

    tokens = random_tokens(30000, 16, 384)
    return transformers.BertForMaskedLM(transformers.BertConfig()), {"input_ids": tokens, "labels": tokens}


def decoder(kind: str, hidden: int, between: int, heads: int, groups: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A Llama or a Qwen2 of four layers; `between` is the size of its feed-forward, `groups` its heads of keys."""
    import transformers

    tokens = random_tokens(32000, 2, 1023)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=32000,
        hidden_size=hidden,
        intermediate_size=between,
        num_hidden_layers=4,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        use_cache=False,
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    return model.to(torch.bfloat16), {"input_ids": tokens, "labels": tokens}


EAGER, COMPILED, GRAPHS, DECODING = "eager", "compiled", "CUDA graphs", "decoding"
llama = functools.partial(decoder, "Llama", 2048, 5632, 16, 4)
qwen = functools.partial(decoder, "Qwen2", 3584, 18944, 28, 4)
# name: what makes the model and its inputs, whether it runs under autocast, the ways it runs
MODELS = {
    "ViT-base, 32 images": (functools.partial(vit, 32), True, (EAGER, COMPILED, GRAPHS)),
    "ViT-base, 64 images": (functools.partial(vit, 64), True, (EAGER, COMPILED)),
    "BERT-base, 16 x 384": (bert, True, (EAGER, COMPILED)),
    "Llama, 2 x 1023": (llama, False, (EAGER, COMPILED, GRAPHS, DECODING)),
    "Qwen 2, 2 x 1023": (qwen, False, (EAGER, COMPILED, GRAPHS, DECODING)),
}


def training_step(model: nn.Module, inputs: dict, *, is_autocast: bool, way: str) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    modes = {COMPILED: "default", GRAPHS: "reduce-overhead"}
    forward = torch.compile(model, mode=modes[way]) if way in modes else model

    def run() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast("cuda", torch.bfloat16, enabled=is_autocast):
            loss = forward(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run


def decoding_step(model: nn.Module, batch: int = 8) -> Callable[[], None]:
    """Replays a CUDA graph of one token of each of `batch` sequences, with 512 keys in a static cache."""
    import transformers

    model.eval()
    cache = transformers.StaticCache(config=model.config, max_cache_len=1024)
    tokens, position = torch.full((batch, 1), 5, device="cuda"), torch.tensor([512], device="cuda")

    def run() -> None:
        with torch.no_grad():
            model(tokens, past_key_values=cache, cache_position=position, use_cache=True)

    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    # The graph reads these as long as it is replayed.
    return functools.partial(lambda *kept: graph.replay(), model, cache, tokens, position)


def launch_seconds(step: Callable[[], None]) -> float:
    """What the calling thread takes for a step, the GPU idle before it: the median of ten."""
    samples = []
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        samples.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return statistics.median(samples)


def model_line(row: dict) -> tuple[str, ...]:
    times = [f"{row['timings'][arm][name]:.0f}" for arm in (OURS, VENDOR) for name in ("median_us", "minimum_us")]
    launches = [f"{row['launch_us'][arm]:.0f}" for arm in (OURS, VENDOR)]
    return (row["model"], row["way"], *times, *launches, f"{row['ratio']:.2f}", f"{row['ratio_of_shortest']:.2f}")


def measure_model(name: str, way: str) -> dict:
    make, is_autocast, _ = MODELS[name]
    torch.manual_seed(0)
    model, inputs = make()
    model.cuda().train()
    tiled = copy.deepcopy(model)
    replace_linear(tiled)
    replace_gated_mlp(tiled)
    step: Callable[[nn.Module], Callable[[], None]] = decoding_step
    if way != DECODING:
        step = functools.partial(training_step, inputs=inputs, is_autocast=is_autocast, way=way)
    arms = {OURS: step(tiled), VENDOR: step(model)}
    for call in arms.values():  # compiles, records graphs
        for _ in range(4):
            call()
    timings = time_on_gpu(arms, seconds=1.5)
    return {
        "model": name,
        "way": way,
        "timings": {arm: timing.to_dict() for arm, timing in timings.items()},
        "launch_us": {arm: round(launch_seconds(call) * 1e6, 1) for arm, call in arms.items()},
        "ratio": round(timings[VENDOR].median / timings[OURS].median, 3),
        "ratio_of_shortest": round(timings[VENDOR].minimum / timings[OURS].minimum, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="training steps of whole models on a GPU")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--json", type=output_file, default=None, metavar="FILE")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no GPU")
    results = describe_gpu_run("models") | {"models": []}
    for name in args.models:
        for way in MODELS[name][2]:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                results["models"].append(row := pool.submit(measure_model, name, way).result())
            print(*model_line(row), sep=" | ", flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

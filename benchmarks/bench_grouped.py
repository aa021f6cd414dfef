"""Grouped products, as of experts, against torch's grouped_mm and a loop of torch.mm.

    python benchmarks/bench_grouped.py [--device cuda] [--families rows sums gated] [--dtypes bf16 fp32] [--json FILE]
    python benchmarks/bench_grouped.py --families models    # needs transformers

rows: rows of each expert by its weight (n, k); sums: the weights' gradients, sums over the rows of each expert; gated:
silu(x gate^T) * (x up^T). Each with groups of one size and with skewed ones, whose sizes go as the cube of a uniform
number. The loop of torch.mm knows the sizes on the host and writes into one new result. models: Mixtral and Qwen3-MoE
of transformers with random weights: prefill, a step of 16 sequences, a training step, by its own grouped_mm, its loop
("eager") and by ours. Each shape: the arms in turns, medians; on a GPU with its caches emptied before each call.
Printed: the faster of torch's arms over ours.
"""

import argparse
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

import torch_tiledmm
from torch_tiledmm.dispatch import DTYPES
from torch_tiledmm.testing.bench import describe_run, geomean, output_file, write_json
from torch_tiledmm.testing.origin import describe_gpu_run
from torch_tiledmm.testing.timing import time_arms, time_on_gpu

Arms = dict[str, Callable[[], object]]
# (experts, mean rows, n, k)
SHAPES = {
    "cuda": (
        (8, 1024, 14336, 4096),
        (64, 128, 1408, 2048),
        (128, 64, 768, 2048),
        (64, 1, 1408, 2048),
        (128, 1, 1536, 2048),
        (256, 32, 2048, 7168),
        (64, 128, 1401, 2047),
    ),
    "cpu": tuple((experts, rows, 1408, 2048) for experts in (8, 64) for rows in (1, 4, 16, 64, 512)),
}
MOST_FLOPS = {"cuda": 1e14, "cpu": 1e11}


def group_sizes(experts: int, rows: int, is_skewed: bool) -> list[int]:
    """Of `experts * rows` rows in all."""
    if not is_skewed:
        return [rows] * experts
    shares = torch.rand(experts, generator=torch.Generator().manual_seed(0)).double() ** 3
    ends = (shares.cumsum(0) / shares.sum() * experts * rows).round().long()
    return [int(size) for size in ends.diff(prepend=torch.zeros(1, dtype=torch.long))]


def product_arms(a: Tensor, b: Tensor, offs: Tensor, loop: Callable[[], Tensor]) -> Arms:
    return {
        "ours": lambda: torch_tiledmm.grouped_matmul(a, b, offs=offs),
        "loop": loop,
        "grouped_mm": lambda: F.grouped_mm(a, b, offs=offs),
    }


def rows_arms(x: Tensor, weight: Tensor, offs: Tensor, slices: list[slice]) -> Arms:
    def loop() -> Tensor:
        out = x.new_empty(x.shape[0], weight.shape[2])
        for expert, own in enumerate(slices):
            torch.mm(x[own], weight[expert], out=out[own])
        return out

    return product_arms(x, weight, offs, loop)


def sums_arms(x: Tensor, weight: Tensor, offs: Tensor, slices: list[slice]) -> Arms:
    grad, left = torch.randn(x.shape[0], weight.shape[2], dtype=x.dtype, device=x.device), x.mT

    def loop() -> Tensor:
        out = torch.empty_like(weight)
        for expert, own in enumerate(slices):
            torch.mm(left[:, own], grad[own], out=out[expert])
        return out

    return product_arms(left, grad, offs, loop)


def gated_arms(x: Tensor, weight: Tensor, offs: Tensor, slices: list[slice]) -> Arms:
    gate, up = weight, weight.flip(0)

    def loop() -> Tensor:
        out = x.new_empty(x.shape[0], weight.shape[2])
        for expert, own in enumerate(slices):
            torch.mul(F.silu(x[own] @ gate[expert]), x[own] @ up[expert], out=out[own])
        return out

    def grouped_mm() -> Tensor:
        return F.silu(F.grouped_mm(x, gate, offs=offs)) * F.grouped_mm(x, up, offs=offs)

    ours = torch_tiledmm.gated_grouped_matmul
    return {"ours": lambda: ours(x, gate, up, offs=offs), "loop": loop, "grouped_mm": grouped_mm}


FAMILIES = {"rows": rows_arms, "sums": sums_arms, "gated": gated_arms}
# Layers, hidden size, experts' inner size, experts, tokens of a prefill.
MODELS = {"cuda": (4, 2048, 1024, 64, 2048), "cpu": (2, 512, 384, 32, 512)}


def model_arms(name: str, step: str, dtype: torch.dtype, device: str) -> Arms:
    import transformers

    torch_tiledmm.transformers.register()
    layers, hidden, inner, experts, length = MODELS[device]
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "vocab_size": 1000, "num_attention_heads": 8}
    sizes |= {"intermediate_size": inner, "moe_intermediate_size": inner, "num_key_value_heads": 8, "head_dim": 64}
    sizes |= {"num_experts" if name == "Qwen3Moe" else "num_local_experts": experts, "num_experts_per_tok": 4}
    config = getattr(transformers, f"{name}Config")(**sizes)
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(device, dtype)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    ids = torch.randint(1000, (16, 1) if step == "decode" else (1, length), device=device)

    def arm(implementation: str) -> Callable[[], object]:
        def run() -> None:
            model.set_experts_implementation(implementation)
            with torch.set_grad_enabled(step == "train"):
                out = model(input_ids=ids, labels=ids if step == "train" else None)
            if step == "train":
                out.loss.backward()
                model.zero_grad()

        return run

    return {"ours": arm("tiledmm"), "loop": arm("eager"), "grouped_mm": arm("grouped_mm")}


def works(function: Callable[[], object]) -> bool:
    """Whether torch takes such operands."""
    try:
        function()
    except (RuntimeError, ValueError):
        return False
    return True


def time_row(row: dict, arms: Arms, device: str) -> dict:
    arms = {name: arm for name, arm in arms.items() if works(arm)}
    is_gpu = device == "cuda"
    # Steps of a model wait for the host, whose times vary more.
    seconds = 0.5 if "model" in row else 0.05
    times = time_on_gpu(arms, seconds=seconds, most_samples=25) if is_gpu else time_arms(arms, seconds=0.3)
    micros = {name: round(time.median * 1e6, 1) for name, time in times.items()}
    best = min(us for name, us in micros.items() if name != "ours")
    row = {**row, "ratio": round(best / micros["ours"], 3)}
    print(*row.values(), micros, flush=True)
    return {**row, **{f"{name}_us": us for name, us in micros.items()}}


def measure(args: argparse.Namespace) -> Iterator[dict]:
    for precision in args.dtypes if "models" in args.families else ():
        for name in ("Mixtral", "Qwen3Moe"):
            for step in ("prefill", "decode", "train"):
                row = {"family": "models", "dtype": precision, "model": name, "step": step}
                yield time_row(row, model_arms(name, step, DTYPES[precision], args.device), args.device)
    for family, arms_of in FAMILIES.items():
        for precision in args.dtypes if family in args.families else ():
            for experts, rows, n, k in SHAPES[args.device]:
                if 2.0 * experts * rows * n * k > MOST_FLOPS[args.device]:
                    continue
                weight = torch.randn(experts, n, k, device=args.device, dtype=DTYPES[precision]).mT
                x = torch.randn(experts * rows, k, device=args.device, dtype=DTYPES[precision]) * k**-0.5
                for is_skewed in (False, True):
                    ends = torch.tensor(group_sizes(experts, rows, is_skewed)).cumsum(0).tolist()
                    offs = torch.tensor(ends, dtype=torch.int32, device=args.device)
                    arms = arms_of(x, weight, offs, [slice(*pair) for pair in pairwise([0, *ends])])
                    shape = {"experts": experts, "rows": rows, "n": n, "k": k, "is_skewed": is_skewed}
                    yield time_row({"family": family, "dtype": precision, **shape}, arms, args.device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=tuple(SHAPES))
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=(*FAMILIES, "models"))
    parser.add_argument("--dtypes", nargs="+", default=["bf16", "fp32"], choices=tuple(DTYPES))
    parser.add_argument("--json", type=output_file, default=None, metavar="FILE")
    args = parser.parse_args()
    run = describe_gpu_run("grouped") if args.device == "cuda" else describe_run("grouped", torch.float32)
    run.pop("dtype", None)  # each row has its own
    rows = list(measure(args))
    for family in args.families:
        for precision in args.dtypes:
            ratios = [row["ratio"] for row in rows if (row["family"], row["dtype"]) == (family, precision)]
            print(f"{family} {precision}: torch / ours {geomean(ratios):.3f}, lowest {min(ratios):.2f}")
    write_json({**run, "rows": rows}, args.json)


if __name__ == "__main__":
    main()

"""Products and layers in FP8 against torch._scaled_mm and against bfloat16.

    python benchmarks/bench_fp8.py [--device cuda] [--family large few ...] [--width 4096] [--json FILE]

large, few: scales by row and, for many rows, by tensor; torch's arms are its slow (exact) and its fast accumulation,
and bf16 is our product in bfloat16. blocks: scales of 1 x 128 and 128 x 128, and of 1 x 128 twice; torch's arm is
F.scaled_mm, where that has the recipe. unaligned: n and k that are no multiples of 16, and the four layouts, most of
which torch refuses; the ratio is to ours on aligned rows, by flops. weight_only: a weight of 8 bits beside rows of 16,
and on a CPU of 32 bits; bf16 or fp32 is our product with the weight in the rows' dtype, torch is its own. grouped: rows
of experts, in groups of one size and in skewed ones, by rows and by blocks of 128; torch's arms are those of
torch._scaled_grouped_mm, by rows. layers:
TiledLinear forward and backward, with quantisation. llama: a training step of a small model of Llama's kind, tokens at
random. text: the loss after a short training of such a model on characters, for several seeds of its weights, all arms
under autocast; bf16 is torch's layers. errors: relative Frobenius norms of the error against float64 of what the
operands stand for; "wide" is that of our bfloat16 product of what was quantised, and "whole" that of ours with what
quantisation loses. Quantisation alone is bench_quantize.py's.

Each shape: the arms in turns, medians; on a GPU with its caches emptied before each call. On a CPU the weights of
weight_only come from memory: as many copies take turns as no cache holds. Ratios above 1: ours is faster than the arm
of that name.
"""

import argparse
import copy
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from bench_grouped import group_sizes
from torch import Tensor, nn

import torch_tiledmm
from torch_tiledmm import (
    TiledLinear,
    quantize_blocks,
    quantize_rows,
    replace_linear,
    scaled_grouped_matmul,
    scaled_matmul,
)
from torch_tiledmm.testing.bench import describe_run, geomean, output_file, write_json
from torch_tiledmm.testing.origin import describe_gpu_run
from torch_tiledmm.testing.timing import time_arms, time_on_gpu

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from train_characters import NUM_CHARACTERS, load_text  # noqa: E402

Arms = dict[str, Callable[[], object]]
E4M3 = torch.float8_e4m3fn
BF16 = torch.bfloat16
# (n, k) of DeepSeek-V3's layers, and of a square and Llama's feed-forward; (m, n, k).
DEEPSEEK = ((2112, 7168), (24576, 1536), (7168, 16384), (4096, 7168), (32768, 512), (7168, 2048))
# Rows beside a weight of 8 bits, whose (n, k) are given.
FEW = {"cuda": (1, 8, 16, 32, 64, 128, 256, 1024), "cpu": (1, 2, 4, 8, 16, 32, 64)}
FAR_BYTES = 1 << 30  # of the copies of a weight that take turns on a CPU
SIZES = {
    "cuda": {
        "large": tuple((4096, *own) for own in DEEPSEEK[:4]) + ((8192, 4096, 4096), (4096, 14336, 4096)),
        "few": tuple((m, *own) for own in DEEPSEEK for m in (1, 16, 64, 128)),
        "blocks": tuple((m, *own) for m in (64, 128, 4096) for own in DEEPSEEK),
        "unaligned": ((4096, 4096, 7168), (4096, 4095, 7168), (4096, 4096, 7167), (4096, 4097, 7169), (999, 2047, 909)),
        "weight_only": ((28672, 8192), (7168, 16384), (14336, 4096), (4096, 14336), (24576, 1536), (4096, 4096),
                        (2112, 7168), (7168, 2048)),
        "grouped": ((8, 1024, 14336, 4096), (64, 128, 1408, 2048), (128, 64, 768, 2048), (64, 1, 1408, 2048),
                    (128, 1, 1536, 2048), (256, 32, 2048, 7168)),  # experts, mean rows, n, k
        "layers": ((8192, 4096, 4096), (8192, 2048, 2048), (8192, 14336, 4096)),
    },
    "cpu": {
        "large": ((128, 264, 512),),
        "few": ((1, 264, 512), (16, 264, 512)),
        "blocks": ((64, 256, 512),),
        "unaligned": ((64, 256, 512), (64, 255, 511)),
        "weight_only": ((4096, 4096), (11008, 4096), (4096, 11008), (2048, 2048)),
        "grouped": ((4, 8, 256, 256),),
        "layers": ((64, 128, 256),),
    },
}  # fmt: skip
DEPTHS = {"cuda": (1024, 4096, 16384, 65536), "cpu": (256, 1024)}
LLAMA = {"cuda": (2048, 4, 8192, 2048), "cpu": (64, 2, 64, 32)}  # width, layers, tokens, tokens of a sequence
# Width, layers, tokens of a step and of a sequence, steps, seeds.
TEXT = {"cuda": (1024, 4, 8192, 512, 300, 3), "cpu": (64, 1, 64, 32, 10, 1)}
FAMILIES = ("large", "few", "blocks", "unaligned", "weight_only", "grouped", "layers", "llama", "text", "errors")
LAYERS = {"fp8_row": "wide", "fp8_row_fp8": "fp8", "fp8_block": "wide", "fp8_block_fp8": "fp8"}  # weight_grad


def works(function: Callable[[], object]) -> bool:
    """Whether torch takes such operands."""
    try:
        function()
    except (RuntimeError, ValueError, NotImplementedError):
        return False
    return True


def time_row(row: dict, arms: Arms, device: str, flops: float = 0, seconds: float = 0.05) -> dict:
    arms = {name: arm for name, arm in arms.items() if name == "ours" or works(arm)}
    if device == "cuda":
        times = time_on_gpu(arms, seconds=seconds, most_samples=25)
    else:
        times = time_arms(arms, seconds=max(seconds, 0.1))
    micros = {name: round(time.median * 1e6, 1) for name, time in times.items()}
    ours = micros["ours"]
    found = {f"{name}_over_ours": round(us / ours, 3) for name, us in micros.items() if name != "ours"}
    if flops:
        found["tflops"] = round(flops / ours / 1e6, 1)
    print(*row.values(), micros, found, flush=True)
    return {**row, **{f"{name}_us": us for name, us in micros.items()}, **found}


def rows_of(m: int, n: int, k: int, device: str) -> tuple[Tensor, Tensor]:
    """a and b^T of a product, whose sums are of mean size 1."""
    return tuple(torch.randn(*own, device=device, dtype=BF16) * k**-0.25 for own in ((m, k), (n, k)))


def by_torch(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, is_fast: bool, dtype: torch.dtype = BF16
) -> Tensor:
    out: Tensor = torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=dtype, use_fast_accum=is_fast)
    return out


def scaled_operands(a: Tensor, b: Tensor, recipe: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What a @ b^T is in FP8."""
    if recipe == "tensor":
        scales = tuple((own.abs().amax().float() / 448).reshape(1, 1) for own in (a, b))
        qa, qb = ((own.float() / scale).to(E4M3) for own, scale in zip((a, b), scales, strict=True))
        return qa, qb.mT, *scales
    (qa, scale_a), (qb, scale_b) = {
        "row": lambda: (quantize_rows(a), quantize_rows(b)),
        "128x128": lambda: (quantize_blocks(a), quantize_blocks(b, block_rows=128)),
        "1x128": lambda: (quantize_blocks(a), quantize_blocks(b)),
    }[recipe]()
    return qa, qb.mT, scale_a, scale_b.mT


def products(family: str, recipes: tuple[str, ...], device: str) -> Iterator[dict]:
    for recipe in recipes:
        for m, n, k in SIZES[device][family]:
            a, b = rows_of(m, n, k, device)
            given = scaled_operands(a, b, recipe)
            arms = {
                "ours": lambda given=given: scaled_matmul(*given),
                "slow": lambda given=given: by_torch(*given, False),
                "fast": lambda given=given: by_torch(*given, True),
                "bf16": lambda a=a, b=b: torch_tiledmm.linear(a, b),
            }
            row = {"family": family, "recipe": recipe, "m": m, "n": n, "k": k}
            yield time_row(row, arms, device, 2.0 * m * n * k)


def torch_of_blocks(given: tuple[Tensor, ...], recipe: str) -> Callable[[], Tensor] | None:
    """F.scaled_mm with scales of blocks, in whatever layout of scales it takes; None where it takes none."""
    if not hasattr(F, "scaled_mm"):
        return None
    a, b, scale_a, scale_b = given
    kinds = F.ScalingType.BlockWise1x128, getattr(F.ScalingType, f"BlockWise{recipe}")
    expected = scaled_matmul(*given).float()
    for own in (scale_b, scale_b.mT, scale_b.contiguous(), scale_b.mT.contiguous()):

        def call(own: Tensor = own) -> Tensor:
            return F.scaled_mm(a, b, scale_a, kinds[0], own, kinds[1], output_dtype=BF16)

        if works(call) and (call().float() - expected).norm() < 0.01 * expected.norm():
            return call
    return None


def blocks(device: str) -> Iterator[dict]:
    for recipe in ("128x128", "1x128"):
        for m, n, k in SIZES[device]["blocks"]:
            a, b = rows_of(m, n, k, device)
            given = scaled_operands(a, b, recipe)
            arms: Arms = {
                "ours": lambda given=given: scaled_matmul(*given),
                "bf16": lambda a=a, b=b: torch_tiledmm.linear(a, b),
            }
            torch_arm = torch_of_blocks(given, recipe)
            if torch_arm is not None:
                arms["torch"] = torch_arm
            row = {"family": "blocks", "recipe": recipe, "m": m, "n": n, "k": k}
            yield time_row(row, arms, device, 2.0 * m * n * k)


def unaligned(device: str) -> Iterator[dict]:
    best = 0.0
    for m, n, k in SIZES[device]["unaligned"]:
        a, b = rows_of(m, n, k, device)
        qa, qb, *scales = scaled_operands(a, b, "row")
        for layout in ("NT", "NN", "TN", "TT"):
            own_a = qa.mT.contiguous().mT if layout[0] == "T" else qa
            own_b = qb.contiguous() if layout[1] == "N" else qb
            given = own_a, own_b, *scales
            arms = {"ours": lambda given=given: scaled_matmul(*given)}
            row = {"family": "unaligned", "layout": layout, "m": m, "n": n, "k": k}
            found = time_row(row, arms, device, 2.0 * m * n * k)
            best = best or found["tflops"]  # the first one is aligned
            yield {**found, "of_aligned": round(found["tflops"] / best, 3) if best else 0.0}


def in_turns(weight: Tensor, device: str) -> Callable[[], Tensor]:
    """Copies of a weight, one after the other."""
    count = -(-FAR_BYTES // weight.nbytes) if device == "cpu" else 1
    copies = itertools.cycle([weight.clone() for _ in range(count)])
    return lambda: next(copies)


def weight_only_arms(x: Tensor, narrow: Callable[[], Tensor], scale: Tensor, wide: Callable[[], Tensor]) -> Arms:
    return {
        "ours": lambda: torch.ops.tiledmm._weight_only(x, narrow(), scale, None, out_dtype=x.dtype),
        "bf16" if x.dtype == BF16 else "fp32": lambda: torch_tiledmm.linear(x, wide()),
        "torch": lambda: F.linear(x, wide()),
    }


def weight_only(device: str) -> Iterator[dict]:
    for dtype in (BF16,) if device == "cuda" else (BF16, torch.float32):
        for n, k in SIZES[device]["weight_only"]:
            q, scale = quantize_rows(torch.randn(n, k, device=device, dtype=dtype) * k**-0.5)
            narrow, wide = in_turns(q, device), in_turns((q.float() * scale).to(dtype), device)
            for m in FEW[device]:
                arms = weight_only_arms(torch.randn(m, k, device=device, dtype=dtype), narrow, scale, wide)
                row = {"family": "weight_only", "recipe": str(dtype).split(".")[1], "m": m, "n": n, "k": k}
                yield time_row(row, arms, device, 2.0 * m * n * k, seconds=0.05 if device == "cuda" else 0.6)


def quantized_experts(x: Tensor, weights: Tensor, recipe: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """a, b and their scales of experts' rows by weights (experts, n, k)."""
    is_by_row = recipe == "row"
    qx, scale_x = quantize_rows(x) if is_by_row else quantize_blocks(x)
    each = [quantize_rows(own) if is_by_row else quantize_blocks(own, block_rows=128) for own in weights]
    b, scale_b = (torch.stack(parts).mT for parts in zip(*each, strict=True))
    return qx, b, scale_x, scale_b


def grouped_arms(x: Tensor, weights: Tensor, given: tuple[Tensor, ...], offs: Tensor, recipe: str) -> Arms:
    def by_torch_of_groups(is_fast: bool) -> Tensor:
        a, b, scale_a, scale_b = given
        vectors = scale_a.squeeze(1), scale_b.squeeze(1)
        return torch._scaled_grouped_mm(a, b, *vectors, offs=offs, out_dtype=BF16, use_fast_accum=is_fast)

    arms: Arms = {
        "ours": lambda: scaled_grouped_matmul(*given, offs=offs),
        "bf16": lambda: torch_tiledmm.grouped_matmul(x, weights.mT, offs=offs),
    }
    if recipe == "row":
        arms |= {"slow": lambda: by_torch_of_groups(False), "fast": lambda: by_torch_of_groups(True)}
    return arms


def grouped(device: str) -> Iterator[dict]:
    for experts, mean_rows, n, k in SIZES[device]["grouped"]:
        x = torch.randn(experts * mean_rows, k, device=device, dtype=BF16) * k**-0.25
        weights = torch.empty(experts, n, k, device=device, dtype=BF16).normal_(std=k**-0.25)
        for recipe in ("row", "128x128"):
            given = quantized_experts(x, weights, recipe)
            for is_skewed in (False, True):
                offs = torch.tensor(group_sizes(experts, mean_rows, is_skewed)).cumsum(0).int().to(device)
                row = {"family": "grouped", "recipe": recipe, "is_skewed": is_skewed}
                row |= {"experts": experts, "rows": mean_rows, "n": n, "k": k}
                arms = grouped_arms(x, weights, given, offs, recipe)
                yield time_row(row, arms, device, 2.0 * experts * mean_rows * n * k)


def training_step(layer: nn.Module, x: Tensor, grad: Tensor) -> Callable[[], object]:
    own = x.clone().requires_grad_()
    wanted = [own, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(own), wanted, grad)


def layers(device: str) -> Iterator[dict]:
    """Ours: the fastest that is asked for is a matter of accuracy, so that each has a ratio."""
    for rows, n, k in SIZES[device]["layers"]:
        linear = nn.Linear(k, n, device=device, dtype=BF16)
        x = torch.randn(rows, k, device=device, dtype=BF16)
        grad = torch.randn(rows, n, device=device, dtype=BF16)
        arms = {
            "torch": training_step(linear, x, grad),
            "bf16": training_step(TiledLinear.from_linear(linear), x, grad),
        }
        for name, weight_grad in LAYERS.items():
            layer = TiledLinear.from_linear(linear, precision=name.removesuffix("_fp8"), weight_grad=weight_grad)
            steps = {"ours": training_step(layer, x, grad), **arms}
            row = {"family": "layers", "arm": name, "weight_grad": weight_grad, "m": rows, "n": n, "k": k}
            yield time_row(row, steps, device, 6.0 * rows * n * k, seconds=0.1)


class Block(nn.Module):
    """A layer of Llama's kind, without rotations."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head_size = min(128, width // 2)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        inner = 256 * -(-8 * width // 3 // 256)
        self.gate_up, self.down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (3, -1, self.head_size)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, width: int, num_layers: int, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(num_layers)), nn.RMSNorm(width))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(tokens)))


def llama(device: str, width: int | None) -> Iterator[dict]:
    """The head is in bfloat16 in all arms, as FP8 recipes leave it."""
    default, num_layers, tokens, length = LLAMA[device]
    width = width or default
    plain = Llama(width, num_layers, 1024 if device == "cpu" else 32000).to(device, BF16)
    ids = torch.randint(plain.embed.num_embeddings, (tokens // length, length + 1), device=device)

    def step(precision: str | None, weight_grad: str, is_ours: bool = True) -> Callable[[], object]:
        model = copy.deepcopy(plain)
        if is_ours:
            options = {"precision": precision, "weight_grad": weight_grad}
            replace_linear(model, **options, module_filter_fn=lambda module, name: name != "head")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def run() -> None:
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return run

    peers = {"torch": step(None, "wide", False), "bf16": step(None, "wide")}
    for name, weight_grad in LAYERS.items():
        steps = {"ours": step(name.removesuffix("_fp8"), weight_grad), **peers}
        row = {"family": "llama", "arm": name, "weight_grad": weight_grad, "width": width, "tokens": tokens}
        yield time_row(row, steps, device, seconds=1.0)


def text(device: str, width: int | None) -> Iterator[dict]:
    """The mean loss of the last tenth of the steps. Seeds are of the weights: all arms learn from the same batches."""
    default, num_layers, tokens, length, steps, num_seeds = TEXT[device]
    width = width or default
    characters = load_text().to(device)
    starts = torch.randint(len(characters) - length - 1, (steps, tokens // length, 1), device=device)
    for (name, weight_grad), seed in itertools.product({"bf16": "wide", **LAYERS}.items(), range(num_seeds)):
        torch.manual_seed(seed)
        model = Llama(width, num_layers, NUM_CHARACTERS).to(device)
        if name in LAYERS:
            options = {"precision": name.removesuffix("_fp8"), "weight_grad": weight_grad}
            replace_linear(model, **options, module_filter_fn=lambda module, name: name != "head")
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
        losses = []
        for own in starts:
            ids = characters[own + torch.arange(length + 1, device=device)]
            with torch.autocast(device, BF16):
                logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        mean = statistics.fmean(loss.item() for loss in losses[-max(steps // 10, 1) :])
        row = {"family": "text", "arm": name, "weight_grad": weight_grad, "width": width, "seed": seed}
        print(*row.values(), f"loss {mean:.4f}", flush=True)
        yield {**row, "loss": round(mean, 4)}


def relative_error(out: Tensor, exact: Tensor) -> float:
    return float(f"{((out.double() - exact).norm() / exact.norm()).item():.3g}")


def data_of(name: str, rows: int, k: int, device: str) -> Tensor:
    """normal; uniform, of one sign, so that errors of sums do not cancel; normal with columns 100 times as large."""
    x = torch.rand(rows, k, device=device) if name == "uniform" else torch.randn(rows, k, device=device)
    if name == "outliers":
        x[:, :: k // 8] *= 100
    return x.to(BF16)


def errors(device: str) -> Iterator[dict]:
    size = 256 if device == "cuda" else 32
    for data in ("normal", "uniform", "outliers"):
        for k in DEPTHS[device]:
            a, b = data_of(data, size, k, device), data_of(data, size, k, device)
            wide = a.double() @ b.double().mT
            for recipe in ("tensor", "row", "128x128"):
                given = scaled_operands(a, b, recipe)
                one = torch.ones((), device=device)
                if recipe == "128x128":
                    blocks_of_k = torch.arange(k, device=device) // 128
                    rows = torch.arange(size, device=device) // 128
                    scales = given[2][:, blocks_of_k].double(), given[3][blocks_of_k][:, rows].double()
                else:
                    scales = given[2].double() * one, given[3].double() * one
                exact = (given[0].double() * scales[0]) @ (given[1].double() * scales[1])
                # torch's rows have results in bfloat16 alone; so have all there.
                dtype = torch.float32 if recipe == "tensor" else BF16
                arms: dict[str, Callable[[], Tensor]] = {
                    "ours": lambda given=given, dtype=dtype: scaled_matmul(*given, out_dtype=dtype),
                    "slow": lambda given=given, dtype=dtype: by_torch(*given, False, dtype),
                    "fast": lambda given=given, dtype=dtype: by_torch(*given, True, dtype),
                }
                found = {name: relative_error(arm(), exact) for name, arm in arms.items() if works(arm)}
                found["wide"] = relative_error(torch_tiledmm.linear(a, b, out_dtype=dtype), wide)
                found["whole"] = relative_error(arms["ours"](), wide)
                row = {"family": "errors", "recipe": recipe, "data": data, "k": k, "out": str(dtype).split(".")[1]}
                print(*row.values(), found, flush=True)
                yield {**row, **{f"{name}_error": error for name, error in found.items()}}


def measure(family: str, args: argparse.Namespace) -> Iterator[dict]:
    if family == "large":
        return products(family, ("row", "tensor"), args.device)
    if family == "few":
        return products(family, ("row",), args.device)
    if family in ("llama", "text"):
        return {"llama": llama, "text": text}[family](args.device, args.width)
    families = {"blocks": blocks, "unaligned": unaligned, "weight_only": weight_only, "grouped": grouped}
    return (families | {"layers": layers, "errors": errors})[family](args.device)


def summary(rows: list[dict]) -> Iterator[str]:
    """A line for each kind of row and each arm: the mean and the lowest ratio."""
    kinds = dict.fromkeys((row["family"], row.get("recipe") or row.get("arm", "")) for row in rows)
    for family, kind in kinds:
        own = [row for row in rows if (row["family"], row.get("recipe") or row.get("arm", "")) == (family, kind)]
        for arm in dict.fromkeys(
            key for row in own for key in row if key.endswith("_over_ours") or key == "of_aligned"
        ):
            ratios = [row[arm] for row in own if row.get(arm)]
            if ratios:
                name = arm.replace("_over_ours", " / ours")
                yield f"{family} {kind}: {name} {geomean(ratios):.3f}, lowest {min(ratios):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=tuple(SIZES))
    parser.add_argument("--family", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--width", type=int, default=None, help="of the models of llama and text")
    parser.add_argument("--json", type=output_file, default=None, metavar="FILE")
    args = parser.parse_args()
    run = describe_gpu_run("fp8") if args.device == "cuda" else describe_run("fp8", torch.float32)
    run.pop("dtype", None)  # each row has its own
    torch.manual_seed(0)
    rows = [row for family in args.family for row in measure(family, args)]
    print(*summary(rows), sep="\n")
    write_json({**run, "rows": rows}, args.json)


if __name__ == "__main__":
    main()

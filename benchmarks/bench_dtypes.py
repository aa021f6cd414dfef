"""Results and operands of other dtypes, and gated layers, against what torch computes of the same.

    python benchmarks/bench_dtypes.py [--device cuda] [--families wide mixed ...] [--compile] [--json FILE]

wide: float32 results of bfloat16 operands; torch: mm with out_dtype on a GPU, on a CPU a product in bfloat16 that is
cast. mixed: bfloat16 by float32; torch: a cast and a product in float32. gated: silu(x gate^T) * (x up^T); gated_train:
forward and backward. With --compile, torch.compile of torch's expression is an arm of its own. Each shape: the arms in
turns, medians; on a GPU with its caches emptied before each call. Printed: the fastest of torch's arms over ours.
"""

import argparse
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

import torch_tiledmm
from torch_tiledmm.dispatch import DTYPES
from torch_tiledmm.testing.bench import describe_run, geomean, output_file, write_json
from torch_tiledmm.testing.origin import describe_gpu_run
from torch_tiledmm.testing.timing import time_arms, time_on_gpu

Arms = dict[str, Callable[[], object]]
# (n, k): routers, heads and squares; layers of models. The number of rows is beside them.
WIDE = {"router": (256, 7168), "small_router": (8, 4096), "head": (32000, 2048), "square": (4096, 4096)}
MIXED = {"router": (256, 7168), "narrow_router": (128, 2048), "head": (32000, 2048), "square": (4096, 4096)}
GATED = {"moe": (1408, 2048), "llama_1b": (5504, 2048), "llama_8b": (14336, 4096), "qwen_7b": (18944, 3584)}
ROWS = {"cuda": (1, 16, 64, 512, 4096, 8192), "cpu": (1, 32, 512)}
MOST_FLOPS = {"cuda": 1e14, "cpu": 3e10}


def wide(m: int, n: int, k: int, dtype: torch.dtype, device: str) -> Arms:
    a, b = torch.randn(m, k, device=device, dtype=dtype), torch.randn(n, k, device=device, dtype=dtype)
    arms: Arms = {"ours": lambda: torch_tiledmm.linear(a, b, out_dtype=torch.float32)}
    if device == "cuda":
        arms["torch"] = lambda: torch.mm(a, b.mT, out_dtype=torch.float32)
    else:
        arms["torch"] = lambda: F.linear(a, b).float()
    return arms


def mixed(m: int, n: int, k: int, dtype: torch.dtype, device: str) -> Arms:
    a, b = torch.randn(m, k, device=device, dtype=dtype), torch.randn(n, k, device=device)
    return {
        "ours": lambda: torch_tiledmm.linear(a, b),
        "torch": lambda: F.linear(a.float(), b),
        "cast_ours": lambda: torch_tiledmm.linear(a.float(), b),
    }


def expression(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def gated(m: int, n: int, k: int, dtype: torch.dtype, device: str) -> Arms:
    x, gate, up = (torch.randn(*sizes, device=device, dtype=dtype) * k**-0.5 for sizes in ((m, k), (n, k), (n, k)))
    return {"ours": lambda: torch_tiledmm.gated_linear(x, gate, up), "torch": lambda: expression(x, gate, up)}


def gated_train(m: int, n: int, k: int, dtype: torch.dtype, device: str) -> Arms:
    leaves = [(torch.randn(*own, device=device, dtype=dtype) * k**-0.5) for own in ((m, k), (n, k), (n, k))]
    grad = torch.randn(m, n, device=device, dtype=dtype)

    def step(function: Callable[..., Tensor]) -> Callable[[], object]:
        own = [leaf.clone().requires_grad_() for leaf in leaves]
        return lambda: torch.autograd.grad(function(*own), own, grad)

    return {"ours": step(torch_tiledmm.gated_linear), "torch": step(expression)}


FAMILIES = {"wide": (wide, WIDE), "mixed": (mixed, MIXED), "gated": (gated, GATED), "gated_train": (gated_train, GATED)}


def rows_of(family: str, dtypes: list[str], device: str) -> Iterator[tuple[str, str, int, int, int]]:
    """(dtype, name, m, n, k) of a family, as long as they are not too much for the device."""
    factor = {"gated": 2, "gated_train": 6}.get(family, 1)
    for precision in dtypes if family.startswith("gated") else ["bf16"]:
        for name, (n, k) in FAMILIES[family][1].items():
            for m in ROWS[device]:
                if 2.0 * factor * m * n * k <= MOST_FLOPS[device]:
                    yield precision, name, m, n, k


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=tuple(ROWS))
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=tuple(FAMILIES))
    parser.add_argument("--dtypes", nargs="+", default=["bf16"], choices=tuple(DTYPES), help="of gated layers")
    parser.add_argument("--compile", action="store_true", help="measure torch.compile, too")
    parser.add_argument("--json", type=output_file, default=None, metavar="FILE")
    args = parser.parse_args()
    run = describe_gpu_run("dtypes") if args.device == "cuda" else describe_run("dtypes", torch.float32)
    run.pop("dtype", None)  # each row has its own
    rows: list[dict] = []
    for family in args.families:
        own = []
        for precision, name, m, n, k in rows_of(family, args.dtypes, args.device):
            arms = FAMILIES[family][0](m, n, k, DTYPES[precision], args.device)
            if args.compile and family.startswith("gated"):
                arms["compiled"] = torch.compile(arms["torch"])
            is_gpu = args.device == "cuda"
            times = time_on_gpu(arms, seconds=0.05, most_samples=25) if is_gpu else time_arms(arms, seconds=0.3)
            micros = {arm: round(time.median * 1e6, 1) for arm, time in times.items()}
            ratio = min(micros[arm] for arm in micros if arm in ("torch", "compiled")) / micros["ours"]
            row = {"family": family, "dtype": precision, "name": name, "m": m, "n": n, "k": k, "ratio": round(ratio, 3)}
            own.append({**row, **{f"{arm}_us": us for arm, us in micros.items()}})
            print(f"{family} {precision} {name} m={m} {micros} {ratio:.2f}", flush=True)
        ratios = [row["ratio"] for row in own]
        print(f"{family}: torch / ours {geomean(ratios):.3f}, {sum(r < 0.9 for r in ratios)} of {len(own)} below 0.9")
        rows += own
    write_json({**run, "rows": rows}, args.json)


if __name__ == "__main__":
    main()

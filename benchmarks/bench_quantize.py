"""quantize_rows and quantize_blocks against torch's own functions, and against a copy of as many bytes.

    python benchmarks/bench_quantize.py [--device cuda] [--dtypes bf16 fp32] [--blocks row segment square] [--json FILE]

Matrices as they lie ("along") and transposed views ("across"). torch's arm composes amax, division, clamp and the cast;
the other one is the same under torch.compile, which is left out where Inductor has no compiler. Each shape: the arms in
turns, medians; on a GPU with its caches emptied before each call. GB/s counts x, q and the scales once. The copy has as
many bytes, half of them read, and is one of the arms. Printed: our rate over the copy's, and the faster of torch's arms
over ours.
"""

import argparse
import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from torch_tiledmm import quantize_blocks, quantize_rows
from torch_tiledmm.dispatch import ACTIVATIONS, DTYPES
from torch_tiledmm.ops import TORCH_ACTIVATIONS
from torch_tiledmm.testing.bench import describe_run, geomean, output_file, write_json
from torch_tiledmm.testing.origin import describe_gpu_run
from torch_tiledmm.testing.timing import time_arms, time_on_gpu

Arms = dict[str, Callable[[], object]]
BLOCKS = {"row": (1, None), "segment": (1, 128), "square": (128, 128)}  # rows, elements of k
SHAPES = {
    "cuda": (
        (4096, 7168),
        (4096, 2048),
        (4096, 1000),
        (8192, 4096),
        (1024, 28672),
        (4096, 7167),
        (128, 7168),
        (1, 7168),
    ),
    "cpu": ((1024, 4096), (16, 4096), (1, 4096)),
}
E4M3 = torch.float8_e4m3fn
MOST = torch.finfo(E4M3).max


def by_torch(x: Tensor, block: str, activation: str) -> tuple[Tensor, Tensor]:
    """What torch's functions make of it: the same numbers, but for NaN."""
    values = x.float() if activation == "none" else TORCH_ACTIVATIONS[activation](x.float())
    if block == "row":
        largest = values.abs().amax(1, keepdim=True)
        factor = torch.where(largest == 0, 1.0, MOST / largest)
        return (values * factor).clamp(-MOST, MOST).to(E4M3), torch.where(largest == 0, 1.0, largest / MOST)
    rows, cols = BLOCKS[block]
    m, k = x.shape
    padded = torch.nn.functional.pad(values, (0, -k % cols, 0, -m % rows))
    blocks = padded.view(padded.shape[0] // rows, rows, padded.shape[1] // cols, cols)
    largest = blocks.abs().amax((1, 3), keepdim=True)
    q = (blocks * torch.where(largest == 0, 1.0, MOST / largest)).clamp(-MOST, MOST).to(E4M3)
    return q.view(padded.shape)[:m, :k], torch.where(largest == 0, 1.0, largest / MOST)[:, 0, :, 0]


def ours(x: Tensor, block: str, activation: str) -> tuple[Tensor, Tensor]:
    if block == "row":
        return quantize_rows(x, activation=activation)
    return quantize_blocks(x, block_rows=BLOCKS[block][0], activation=activation)


def works(call: Callable[[], object]) -> bool:
    """Whether torch.compile finds its compiler here."""
    try:
        call()
    except Exception as error:  # of many classes
        print(f"left out: {type(error).__name__}: {str(error).splitlines()[0]}")
        return False
    return True


def time_row(row: dict, x: Tensor) -> dict:
    block, activation, is_gpu = row["block"], row["activation"], x.is_cuda
    q, scale = ours(x, block, activation)
    num_bytes = x.numel() * x.element_size() + q.numel() + scale.numel() * 4
    source = torch.empty(num_bytes // 2, dtype=torch.uint8, device=x.device)
    compiled = torch.compile(functools.partial(by_torch, block=block, activation=activation), dynamic=False)
    arms: Arms = {
        "ours": lambda: ours(x, block, activation),
        "eager": lambda: by_torch(x, block, activation),
        "compiled": lambda: compiled(x),
        "copy": functools.partial(torch.empty_like(source).copy_, source),
    }
    if not works(arms["compiled"]):
        del arms["compiled"]
    times = time_on_gpu(arms) if is_gpu else time_arms(arms, seconds=0.2)
    torch._dynamo.reset()
    micros = {name: round(time.median * 1e6, 2) for name, time in times.items()}
    best = min(us for name, us in micros.items() if name not in ("ours", "copy"))
    row |= {
        "gbytes_per_second": round(num_bytes / micros["ours"] / 1e3, 1),
        "of_copy": round(micros["copy"] / micros["ours"], 3),
        "ratio": round(best / micros["ours"], 3),
    }
    print(*row.values(), micros, flush=True)
    return {**row, **{f"{name}_us": us for name, us in micros.items()}}


def measure(args: argparse.Namespace) -> Iterator[dict]:
    for precision in args.dtypes:
        for block in args.blocks:
            for m, k in SHAPES[args.device]:
                x = torch.randn(m, k, device=args.device, dtype=DTYPES[precision])
                for order in ("along", "across") if m > 1 else ("along",):
                    own = x if order == "along" else x.mT.contiguous().mT
                    row = {"dtype": precision, "block": block, "m": m, "k": k, "order": order}
                    yield time_row({**row, "activation": args.activation}, own)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=tuple(SHAPES))
    parser.add_argument("--dtypes", nargs="+", default=["bf16", "fp32"], choices=("fp32", "fp16", "bf16"))
    parser.add_argument("--blocks", nargs="+", default=list(BLOCKS), choices=tuple(BLOCKS))
    parser.add_argument("--activation", default="none", choices=ACTIVATIONS)
    parser.add_argument("--json", type=output_file, default=None, metavar="FILE")
    args = parser.parse_args()
    run = describe_gpu_run("quantize") if args.device == "cuda" else describe_run("quantize", torch.float32)
    run.pop("dtype", None)  # each row has its own
    rows = list(measure(args))
    for precision in args.dtypes:
        for block in args.blocks:
            own = [row for row in rows if (row["dtype"], row["block"]) == (precision, block)]
            ratios, of_copy = [row["ratio"] for row in own], [row["of_copy"] for row in own]
            print(
                f"{precision} {block}: torch / ours {geomean(ratios):.3f}, lowest {min(ratios):.2f}; "
                f"of the copy's rate {geomean(of_copy):.3f}, lowest {min(of_copy):.2f}"
            )
    write_json({**run, "rows": rows}, args.json)


if __name__ == "__main__":
    main()

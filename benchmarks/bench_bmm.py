"""Batched products against torch.bmm: random shapes of attention (queries by keys, probabilities by values) and batches
of small matrices, drawn from a seed.

    python benchmarks/bench_bmm.py [--device cuda] [--dtypes fp32 bf16] [--count 100] [--seed 1] [--json FILE]

Each shape: both in turns, medians; on a GPU with its caches emptied before each call. Printed for each family: the
geometric mean of torch's time over ours, the shapes below 0.9 and the worst ones.
"""

import argparse
import itertools
import random

import torch

import torch_tiledmm
from torch_tiledmm.testing.bench import describe_run, geomean, output_file, write_json
from torch_tiledmm.testing.origin import describe_gpu_run
from torch_tiledmm.testing.timing import PRECISIONS, matmul_precision, time_arms, time_on_gpu

MOST_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 27}  # of an operand or a result


def lengths(source: random.Random) -> int:
    """Of queries or keys: aligned as often as not."""
    length = int(2 ** source.uniform(0, 12))
    return max(1, length // 8 * 8) if source.random() < 0.5 else length


def attention(source: random.Random) -> tuple[int, int, int, int, str]:
    """Batch and heads, m, n, k and the layout of one of attention's two products."""
    head = source.choice((64, 96, 128))
    queries, keys = lengths(source), lengths(source)
    if source.random() < 0.3:
        queries = source.choice((1, 1, 5))  # decoding
    batch = source.choice((1, 2, 4, 8, 16, 32)) * source.choice((8, 12, 16, 32))
    return (batch, queries, keys, head, "NT") if source.random() < 0.5 else (batch, queries, head, keys, "NN")


def small(source: random.Random) -> tuple[int, int, int, int, str]:
    """Many small matrices."""
    m, n, k = (int(2 ** source.uniform(0, 6)) for _ in range(3))
    return int(2 ** source.uniform(1, 17)), m, n, k, source.choice(("NN", "NT", "TN"))


FAMILIES = {"attention": attention, "small": small}


def draw(family: str, count: int, seed: int, device: str) -> list[tuple[int, int, int, int, str]]:
    source = random.Random(f"{family} {seed}")
    shapes: list[tuple[int, int, int, int, str]] = []
    while len(shapes) < count:
        batch, m, n, k, layout = FAMILIES[family](source)
        if batch * max(m * k, k * n, m * n) <= MOST_ELEMENTS[device]:
            shapes.append((batch, m, n, k, layout))
    return shapes


def operands(shape: tuple[int, int, int, int, str], dtype: torch.dtype, device: str) -> tuple[torch.Tensor, ...]:
    batch, m, n, k, layout = shape
    a = torch.randn(batch, *((m, k) if layout[0] == "N" else (k, m)), device=device, dtype=dtype)
    b = torch.randn(batch, *((k, n) if layout[1] == "N" else (n, k)), device=device, dtype=dtype)
    return a if layout[0] == "N" else a.mT, b if layout[1] == "N" else b.mT


def measure(shape: tuple[int, int, int, int, str], dtype: torch.dtype, device: str) -> tuple[float, float]:
    """Microseconds of torch.bmm and of ours."""
    a, b = operands(shape, dtype, device)
    arms = {"torch": lambda: torch.bmm(a, b), "ours": lambda: torch_tiledmm.matmul(a, b)}
    times = time_on_gpu(arms, seconds=0.02, most_samples=25) if device == "cuda" else time_arms(arms, seconds=0.1)
    return times["torch"].median * 1e6, times["ours"].median * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=tuple(MOST_ELEMENTS))
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"], choices=PRECISIONS)
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=tuple(FAMILIES))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shapes", action="store_true", help="print every shape")
    parser.add_argument("--json", type=output_file, default=None, metavar="FILE")
    args = parser.parse_args()
    run = describe_gpu_run("bmm") if args.device == "cuda" else describe_run("bmm", torch.float32)
    run.pop("dtype", None)  # each row has its own
    rows: list[dict] = []
    for precision, family in itertools.product(args.dtypes, args.families):
        own = []
        for shape in draw(family, args.count, args.seed, args.device):
            with matmul_precision(precision) as dtype:
                peer, ours = (round(us, 2) for us in measure(shape, dtype, args.device))
            name = "{}x{}x{}x{}:{}".format(*shape)
            own.append({"dtype": precision, "family": family, "shape": name, "torch_us": peer, "ours_us": ours})
            if args.shapes:
                print(f"{precision} {name} torch {peer:.1f} us, ours {ours:.1f}, {peer / ours:.2f}")
        ratios = sorted((row["torch_us"] / row["ours_us"], row["shape"]) for row in own)
        slow = sum(ratio < 0.9 for ratio, _ in ratios)
        print(f"{precision} {family}: torch / ours {geomean([r for r, _ in ratios]):.3f}, "
              f"{slow} of {len(own)} below 0.9; worst " + ", ".join(f"{s} {r:.2f}" for r, s in ratios[:8]),
              flush=True)  # fmt: skip
        rows += own
    write_json({**run, "seed": args.seed, "rows": rows}, args.json)


if __name__ == "__main__":
    main()

"""Runs, counts and models main loops of machine code for AMD's chips, without a GPU; prints a table in Markdown.

    python benchmarks/amd_loops.py --chips gfx942 --rungs mma_output_cached
    python benchmarks/amd_loops.py --triton FOLDER       # what triton_peer.py wrote

Executed, counted and modelled is the first workgroup of a product of fp16, of operands whose k is contiguous if no
other layout is asked for. What it writes is compared with float64: the loop that is counted is one that computes the
right thing.
"""

import argparse
import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np

from .chips import CHIPS
from .code_object import Kernel
from .count import count_loop, resources, table_row
from .cycles import UNITS, matrix_busy
from .interpreter import Memory, load, run
from .launches import Launcher

# Clocks of latency of global memory, bytes a clock of a unit's path to it: the measured spread on MI308X is 500 to 800
# clocks, 32 bytes a clock (tingqli/pyhip); the nominal rate is 64.
MEMORIES = [(500, 64), (800, 64), (500, 32), (800, 32)]


def widened(x: np.ndarray) -> np.ndarray:
    """fp32 of the bits of bf16; others as they are."""
    return (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x


def check(a, b, c) -> None:
    """What is written of c (docs/numerics.md: sums in fp32 or fp64, rounded once)."""
    unit = 2.0**-8 if c.dtype == np.uint16 else np.finfo(c.dtype).eps / 2
    a, b, c = (widened(x) for x in (a, b, c))
    rows, cols = (np.flatnonzero((~np.isnan(c)).any(axis)) for axis in (1, 0))
    a, b, c = a[rows], b[:, cols], c[np.ix_(rows, cols)]
    of_sums = 2.0**-53 if c.dtype == np.float64 else 2.0**-24
    wide = np.longdouble if c.dtype == np.float64 else np.float64
    a, b = a.astype(wide), b.astype(wide)
    expected = a @ b
    bound = 2 * (a.shape[1] + 2) * of_sums * (np.abs(a) @ np.abs(b)) + unit * np.abs(expected)
    is_written = ~np.isnan(c)
    assert is_written.any() and (np.abs(c.astype(wide) - expected) <= bound)[is_written].all(), "the result is wrong"


def row_of(kernel: Kernel, traces: list, threads: int) -> dict:
    counts, found = count_loop(kernel, traces), resources(kernel, threads)
    row = table_row(counts, found)
    lanes = CHIPS[kernel.arch].lanes
    num_blocks = 4 * found.waves_per_simd // -(-threads // lanes)
    if not counts.kinds["matrix"]:
        return row
    for number in dict.fromkeys((1, max(1, min(2, num_blocks)))):
        unit = UNITS[kernel.arch]
        memories = [replace(unit, global_latency=latency, global_bytes=width) for latency, width in MEMORIES]
        try:
            shares = [matrix_busy(kernel, traces, each, number).share for each in memories]
        except ValueError:  # too few iterations
            continue
        row[f"busy, {number} block{'s' * (number > 1)}"] = " ".join(f"{100 * share:.0f}" for share in shares)
    return row


def rung(chip: str, name: str, m: int, n: int, k: int, dtype=np.float16, layout: str = "NT") -> dict:
    """Of the first workgroup of a product. Raises NotImplementedError where the rung cannot serve it."""
    random, traces = np.random.default_rng(1), []
    a, b = (random.uniform(-1, 1, shape) for shape in ((m, k), (k, n)))
    if dtype == "bfloat16":  # its bits
        a, b = ((x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for x in (a, b))
    else:
        a, b = a.astype(dtype), b.astype(dtype)
    a, b = (np.asfortranarray(x) if letter == "T" else x for x, letter in zip((a, b), layout, strict=True))
    launcher = Launcher(chip, name)
    check(a, b, launcher.matmul(a, b, traces=traces, most_blocks=1))
    kernel, threads = launcher.launched[0]
    return row_of(kernel, traces, threads)


def triton(path: Path) -> dict:
    sizes = json.loads(path.with_suffix(".json").read_text())
    m, n, block_k = (int(size) for size in path.stem.split("_")[-1].split("x"))
    kernel = load(path).find("peer_matmul")
    # The launcher gives the size of shared memory.
    kernel.descriptor = struct.pack("<I", sizes["shared_bytes"]) + kernel.descriptor[4:]
    k = 9 * block_k
    random = np.random.default_rng(1)
    a, b = (random.uniform(-1, 1, shape).astype(np.float16) for shape in ((m, k), (n, k)))
    c, memory, traces = np.full((m, n), np.nan, np.float16), Memory(), []
    args = [memory.add("a", a), memory.add("b", b), memory.add("c", c, writable=True), n, k]
    explicit = [each for each in kernel.metadata[".args"] if not each[".value_kind"].startswith("hidden_")]
    args += [0] * (len(explicit) - len(args))  # scratch memory that it does not use
    run(kernel, (1, 1, 1), (sizes["threads"], 1, 1), args, memory, 1, traces=traces)
    check(a, b.T, c)
    assert not np.isnan(c).any()
    return row_of(kernel, traces, sizes["threads"])


def table(rows: dict[str, dict]) -> str:
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    lines = ["| | " + " | ".join(rows) + " |", "|---" * (len(rows) + 1) + "|"]
    for name in names:
        values = [row.get(name, "") for row in rows.values()]
        texts = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in values]
        lines.append(f"| {name} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--chips", nargs="+", choices=UNITS, default=list(UNITS))
    parser.add_argument("--rungs", nargs="+", default=["mma_output_cached"])
    parser.add_argument("--shape", type=int, nargs=3, default=(256, 256, 576), metavar=("M", "N", "K"))
    parser.add_argument("--dtype", choices=("fp16", "fp32"), default="fp16")
    parser.add_argument("--layout", choices=("NN", "NT", "TN", "TT"), default="NT")
    parser.add_argument("--triton", type=Path, metavar="FOLDER", help="what triton_peer.py wrote, instead of rungs")
    args = parser.parse_args()
    rows: dict[str, dict] = {}
    if args.triton:
        rows = {path.stem: triton(path) for path in sorted(args.triton.glob("*.co"))}
    for name in () if args.triton else args.rungs:
        for chip in args.chips:
            try:
                dtype = {"fp16": np.float16, "fp32": np.float32}[args.dtype]
                rows[f"{name} {chip}"] = rung(chip, name, *args.shape, dtype, args.layout)
            except NotImplementedError as error:
                print(f"{name} on {chip}: {error}")
    print(f"busy: matrix units, % of the clocks, at (latency, bytes a clock) {', '.join(map(str, MEMORIES))}\n")
    print(table(rows))

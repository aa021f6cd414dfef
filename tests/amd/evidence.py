"""Runs, counts and models main loops of machine code for AMD's chips, without a GPU; prints a table in Markdown.

    python tests/amd/evidence.py rungs [CHIP ...]    # rung 08, fp16, NT
    python tests/amd/evidence.py triton FOLDER       # what triton_peer.py wrote

Each kernel computes one block of C over nine tiles of k, or twelve; the result is compared with float64, so the loop
that is counted is one that computes the right thing. 12_mfma has its own way in, test_mfma.py.
"""

import json
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from code_object import Kernel
from count import count_loop, resources, table_row
from cycles import UNITS, matrix_busy
from interpreter import Memory, load, run

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
import gpu_objects  # noqa: E402

# Clocks of latency of global memory, bytes a clock of a unit's path to it: the measured spread on MI308X is 500 to 800
# clocks, 32 bytes a clock (tingqli/pyhip); the nominal rate is 64.
MEMORIES = [(500, 64), (800, 64), (500, 32), (800, 32)]


def operands(m: int, n: int, k: int):
    random = np.random.default_rng(1)
    a, b = (random.uniform(-1, 1, shape).astype(np.float16) for shape in ((m, k), (n, k)))
    return a, b, np.full((m, n), np.nan, np.float16)


def check(a, b, c) -> None:
    """(docs/numerics.md: sums in fp32, rounded once)"""
    a, b = a.astype(np.float64), b.astype(np.float64)
    expected = a @ b.T
    bound = (a.shape[1] + 2) * 2.0**-23 * (np.abs(a) @ np.abs(b.T)) + 2.0**-11 * np.abs(expected)
    assert (np.abs(c.astype(np.float64) - expected) <= bound).all(), "the result is wrong"


def row_of(kernel: Kernel, traces: list, threads: int) -> dict:
    counts, found = count_loop(kernel, traces), resources(kernel, threads)
    row = table_row(counts, found)
    waves = -(-threads // UNIT_LANES[kernel.arch])
    num_blocks = max(1, 4 * found.waves_per_simd // waves) if counts.kinds["matrix"] else 0
    for number in dict.fromkeys((1, min(2, num_blocks))):
        unit = UNITS[kernel.arch]
        memories = [replace(unit, global_latency=latency, global_bytes=width) for latency, width in MEMORIES]
        shares = [matrix_busy(kernel, traces, each, number).share for each in memories]
        row[f"busy, {number} blocks"] = " ".join(f"{100 * share:.0f}" for share in shares)
    return row


UNIT_LANES = {arch: 32 if arch.startswith("gfx1") else 64 for arch in UNITS}


def rung_08(arch: str) -> dict:
    from test_rungs import _FoldedProblem

    clang = shutil.which("clang++-22")
    source = gpu_objects.CSRC / "kernels/gpu/08_mma_output_cached.cu"
    command = [*gpu_objects.hip_command(clang, [arch], standalone=True), "--cuda-device-only"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "code"
        command += ["--no-gpu-bundle-output", f"-I{gpu_objects.CSRC}", "-c", str(source), "-o", str(path)]
        subprocess.run(command, check=True)
        kernel = load(path).find("ILi128ELi128ELi32ELi256E", "4Half", "Lb1ELb1EEEEE")
    m = n = 128
    k = 12 * 32
    a, b, c = operands(m, n, k)
    memory, problem = Memory(), _FoldedProblem(batch_size=1)
    gemm = problem.gemm
    gemm.m, gemm.n, gemm.k, gemm.dtype = m, n, k, 2
    gemm.a, gemm.stride_am, gemm.stride_ak = memory.add("a", a), k, 1
    gemm.b, gemm.stride_bk, gemm.stride_bn = memory.add("b", b), 1, k
    gemm.c, gemm.stride_cm, gemm.stride_cn = memory.add("c", c, writable=True), n, 1
    traces = []
    run(kernel, (1, 1, 1), (256, 1, 1), [bytes(problem)], memory, traces=traces)
    check(a, b, c)
    return row_of(kernel, traces, 256)


def triton(path: Path) -> dict:
    sizes = json.loads(path.with_suffix(".json").read_text())
    m, n, block_k = (int(size) for size in path.stem.split("_")[-1].split("x"))
    kernel = load(path).find("peer_matmul")
    # The launcher gives the size of shared memory.
    kernel.descriptor = struct.pack("<I", sizes["shared_bytes"]) + kernel.descriptor[4:]
    k = 9 * block_k
    a, b, c = operands(m, n, k)
    memory, traces = Memory(), []
    args = [memory.add("a", a), memory.add("b", b), memory.add("c", c, writable=True), n, k]
    explicit = [each for each in kernel.metadata[".args"] if not each[".value_kind"].startswith("hidden_")]
    args += [0] * (len(explicit) - len(args))  # scratch memory that it does not use
    run(kernel, (1, 1, 1), (sizes["threads"], 1, 1), args, memory, 1, traces=traces)
    check(a, b, c)
    return row_of(kernel, traces, sizes["threads"])


def table(rows: dict[str, dict]) -> str:
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    lines = ["| | " + " | ".join(rows) + " |", "|---" * (len(rows) + 1) + "|"]
    for name in names:
        values = [row.get(name, "") for row in rows.values()]
        texts = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in values]
        lines.append(f"| {name} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def main(what: str, *names: str) -> None:
    if what == "rungs":
        rows = {f"08 {arch}": rung_08(arch) for arch in names or UNITS}
    else:
        rows = {path.stem: triton(path) for path in sorted(Path(names[0]).glob("*.co"))}
    print(f"busy: matrix units, % of the clocks, at (latency, bytes a clock) {', '.join(map(str, MEMORIES))}\n")
    print(table(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])

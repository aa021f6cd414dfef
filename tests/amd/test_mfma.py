"""Rung 12, mfma: its machine code as clang compiles it for CDNA, started by its own host code (launch.cpp) and run by
the interpreter.

Results are compared with the reference's bounds; memory outside of the operands, a missing wait and a race in shared
memory are errors of the interpreter. What decides the speed is counted: instructions of a k tile, bank conflicts,
registers.

Planted bugs that these tests caught, each as a mutant below: the barriers and waits that hand tiles over, one at a
time; a swizzle of the stores that is not that of the loads; a k tile that is read twice; an operand's end that is taken
for that of a whole tile; a cut-off k tile whose end is not zero; runs of tiles that overlap.
"""

import ctypes
import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from interpreter import Fault, Memory, load, run
from memory import SharedMemory
from test_rungs import _FoldedProblem

from torch_tiledmm.dispatch import ACTIVATIONS, DTYPES
from torch_tiledmm.testing.reference import assert_close, expect_linear

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
import gpu_objects  # noqa: E402

FOLDER = gpu_objects.CSRC / "kernels/hip/12_mfma"
SOURCES = {"fp16": "mfma_f16.cu", "bf16": "mfma_bf16.cu", "fp32": "mfma_f32.cu", "fp64": "mfma_f64.cu"}
DTYPE_NUMBERS = {"fp32": 0, "fp64": 1, "fp16": 2, "bf16": 3}  # csrc/core/problem.h
BLOCK_K = {"fp16": 64, "bf16": 64, "fp32": 32, "fp64": 16}
TILES = (256, 128, 64)  # by number of the shape, plan.h

_Allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_Release = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_Record = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, *[ctypes.c_uint] * 3, ctypes.POINTER(ctypes.c_void_p))


class _Executor(ctypes.Structure):  # csrc/core/executor.h
    _fields_ = [
        ("self", ctypes.c_void_p),
        *[(name, ctypes.c_int32) for name in ("num_threads", "device_idx", "num_cus", "warp_size")],
        ("stream", ctypes.c_void_p),
        ("parallel_for", ctypes.c_void_p),
        ("allocate", _Allocate),
        ("release", _Release),
    ]


@pytest.fixture(scope="module")
def launcher(built_once):
    """The rung's host code."""
    if not shutil.which("clang++-22"):
        assert os.environ.get("CI") != "true", "CI needs clang-22, lld-22 and llvm-22"
        pytest.skip("there is no clang++-22")

    def build(folder: Path) -> None:
        (folder / "no_device_code").touch()
        command = [*gpu_objects.hip_command("clang++-22", ["gfx942"], standalone=True), "-O1", "-w", "-no-hip-rt"]
        command += ["--cuda-host-only", "-Xclang", "-fcuda-include-gpubinary", "-Xclang", folder / "no_device_code"]
        command += [f"-I{gpu_objects.CSRC}", "-shared", Path(__file__).with_name("launch.cpp")]
        subprocess.run([*command, "-o", folder / "launch.so"], check=True, timeout=120)

    library = ctypes.CDLL(str(built_once("launch_mfma", build) / "launch.so"))
    numbers = (ctypes.c_int, ctypes.c_int64, ctypes.c_bool, ctypes.c_int)
    library.launch.argtypes = [ctypes.c_void_p, *numbers, ctypes.c_void_p, _Record]
    return library.launch


@pytest.fixture(scope="module")
def code_of(amd_object, launcher):
    @functools.cache
    def compiled(dtype: str, arch: str = "gfx942"):
        return load(amd_object(arch, FOLDER / SOURCES[dtype])[0])

    return compiled


def as_array(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def operand(rows: int, k: int, dtype: torch.dtype, layout: str, pad: int, skipped: int, batch: int):
    """(batch, rows, k) in memory of its own, k-major for "k", "m" for the other, "s" without a unit stride; nan between
    its rows and in front of it."""
    inner, outer = (rows, k) if layout == "m" else (k, rows)
    step = 2 if layout == "s" else 1
    ld = inner * step + pad
    memory = torch.full((skipped + max(1, batch) * outer * ld - (ld - (inner - 1) * step - 1) * (inner > 0),), torch.nan)
    memory = memory.to(dtype)
    matrix = memory.as_strided((max(1, batch), outer, inner), (outer * ld, ld, step), skipped)
    matrix.copy_(torch.rand(matrix.shape, dtype=torch.float64) * 2 - 1)
    return memory, matrix.mT if layout == "m" else matrix


class Product:
    """linear(a, b, bias) in memory of the interpreter. `batch` 0: no batch; `repeats_b`: all items have one B."""

    def __init__(self, m, n, k, dtype="fp16", layouts="kk", pads=(8, 8), skipped=(0, 0), batch=0, repeats_b=False,
                 bias="n", activation="relu", pad_c=8, seed=0):  # fmt: skip
        torch.manual_seed(seed)
        self.m, self.n, self.k, self.dtype, self.bias_along = m, n, k, dtype, bias
        self.batch, self.activation = batch, activation
        kind = DTYPES[dtype]
        memory_a, self.a = operand(m, k, kind, layouts[0], pads[0], skipped[0], batch)
        memory_b, self.b = operand(n, k, kind, layouts[1], pads[1], skipped[1], 0 if repeats_b else batch)
        self.bias = (torch.rand(m if bias == "m" else n, dtype=torch.float64) * 2 - 1).to(kind) if bias else None
        self.out = torch.full((max(1, batch), m, n + pad_c), torch.nan, dtype=kind)
        self.memory = Memory()
        self.problem = problem = _FoldedProblem(batch_size=max(1, batch), chunk_k=max(k, 1), asked_n=n)
        gemm, size = problem.gemm, self.out.element_size()
        gemm.m, gemm.n, gemm.k, gemm.dtype = m, n, k, DTYPE_NUMBERS[dtype]
        gemm.activation = ACTIVATIONS.index(activation)
        gemm.a = self.memory.add("a", as_array(memory_a)) + skipped[0] * size
        gemm.b = self.memory.add("b", as_array(memory_b)) + skipped[1] * size
        gemm.c = self.memory.add("c", as_array(self.out), writable=True)
        gemm.stride_am, gemm.stride_ak = self.a.stride()[1:]
        gemm.stride_bn, gemm.stride_bk = self.b.stride()[1:]
        gemm.stride_cm, gemm.stride_cn = n + pad_c, 1
        if bias:
            gemm.bias = self.memory.add("bias", as_array(self.bias))
            gemm.stride_bias_m, gemm.stride_bias_n = int(bias == "m"), int(bias == "n")
        if batch:
            gemm.num_batch_dims = 1
            strides = (self.a.stride(0), 0 if repeats_b else self.b.stride(0), self.out.stride(0))
            dim = problem.batch_dims[0]
            dim.size, (dim.stride_a, dim.stride_b, dim.stride_c) = batch, strides

    def run(self, code, launcher, shape=-1, chunk_k=-1, splits=False, num_cus=64, seed=None):
        """What was executed, by mnemonic; `shape`, `chunk_k`: -1 for the planned ones."""
        launches, spaces = [], []

        def allocate(_, num_bytes):
            spaces.append(np.full(num_bytes, 0xFF, np.uint8))
            return self.memory.add(f"workspace {len(spaces)}", spaces[-1], writable=True)

        def record(name, blocks, blocks_y, threads, arguments):
            kernel = code.kernels[name.decode()]
            sizes = [each[".size"] for each in kernel.metadata[".args"] if not each[".value_kind"].startswith("hidden")]
            values = [ctypes.string_at(arguments[i], size) for i, size in enumerate(sizes)]
            launches.append((kernel, (blocks, blocks_y, 1), (threads, 1, 1), values))
            return 0

        executor = _Executor(num_threads=1, num_cus=num_cus, warp_size=64)
        executor.allocate, executor.release = _Allocate(allocate), _Release(lambda *_: None)
        problem = ctypes.byref(self.problem)
        status = launcher(problem, shape, chunk_k, splits, num_cus, ctypes.byref(executor), _Record(record))
        assert status == 0
        counts = [run(*launch[:3], launch[3], self.memory, seed) for launch in launches]
        return sum(counts[1:], counts[0])

    def check(self):
        bias = None if self.bias is None else self.bias[:, None] if self.bias_along == "m" else self.bias
        for item in range(max(1, self.batch)):
            a, b = self.a[item], self.b[item % self.b.shape[0]]
            if self.bias_along == "m":  # the same product with C transposed
                expected = expect_linear(b, a, self.bias, self.activation)
                assert_close(self.out[item, :, : self.n].mT, expected)
            else:
                assert_close(self.out[item, :, : self.n], expect_linear(a, b, bias, self.activation))
            assert self.out[item, :, self.n :].isnan().all(), "what lies between C's rows was written"


# shape, then what is particular; sizes that are no multiple of anything. One case covers several things.
CASES = [
    ("fp16", 0, dict(m=270, n=262, k=200, layouts="kk")),
    ("fp16", 0, dict(m=130, n=262, k=150, layouts="mm", pads=(6, 2))),
    ("bf16", 0, dict(m=70, n=45, k=130, layouts="mk", activation="gelu", pad_c=3)),
    ("fp16", 1, dict(m=70, n=150, k=200, layouts="km", bias="m")),
    ("fp16", 1, dict(m=70, n=45, k=130, layouts="mk", pads=(2, 4), skipped=(2, 6), bias=None, activation="none")),
    ("fp16", 2, dict(m=70, n=45, k=200, layouts="mm", batch=3, repeats_b=True)),
    ("fp16", 2, dict(m=71, n=45, k=128, layouts="mm", pads=(0, 0))),  # whole k tiles whose last element is half a word
    ("fp16", 2, dict(m=70, n=45, k=100, layouts="kk", pads=(1, 3), skipped=(1, 0))),  # element by element
    ("fp16", 2, dict(m=5, n=130, k=70, layouts="sm", activation="silu", batch=2)),
    ("fp16", 2, dict(m=3, n=5, k=0)),
    ("bf16", 2, dict(m=70, n=45, k=130, layouts="km")),
    ("fp32", 0, dict(m=130, n=100, k=75, layouts="mk")),
    ("fp32", 1, dict(m=130, n=100, k=75, layouts="km", pads=(1, 3))),
    ("fp32", 2, dict(m=70, n=45, k=75, layouts="sk", bias="m")),
    ("fp64", 1, dict(m=130, n=100, k=40, layouts="km", pads=(1, 1))),
    ("fp64", 2, dict(m=70, n=45, k=40, layouts="mk", batch=2)),
]


@pytest.mark.parametrize(
    "number, dtype, shape, case", [(i, *case) for i, case in enumerate(CASES)], ids=lambda value: str(value)[:40]
)
def test_products_are_right(number, dtype, shape, case, code_of, launcher):
    product = Product(dtype=dtype, **case)
    product.run(code_of(dtype), launcher, shape, seed=number)  # the waves' order, too
    product.check()


@pytest.mark.parametrize("chunk_k, splits", [(256, False), (256, True), (-1, False)])
def test_chunks_are_added_in_their_order(chunk_k, splits, code_of, launcher):
    """The same bits whether one block sums all chunks or each has a block; other ones than those of a single chunk."""
    for dtype, shapes in (("fp16", (2, 1, 0) if splits else (2, 1)), ("fp64", (2,))):
        outs = []
        for shape in shapes:
            product = Product(70, 45, 600, dtype, layouts="km", activation="none")
            product.run(code_of(dtype), launcher, shape, chunk_k, splits)
            product.check()
            outs.append(as_array(product.out).copy())
        assert all(np.array_equal(outs[0], out, equal_nan=True) for out in outs[1:])
        BITS_OF_CHUNKS.setdefault((dtype, chunk_k), outs[0])
        assert np.array_equal(BITS_OF_CHUNKS[dtype, chunk_k], outs[0], equal_nan=True)
    one, several = (BITS_OF_CHUNKS.get(("fp64", chunk)) for chunk in (-1, 256))
    assert one is None or several is None or not np.array_equal(one, several, equal_nan=True)


BITS_OF_CHUNKS = {}


@pytest.mark.parametrize("n, k", [(45, 200), (100, 70)])
def test_a_row_s_bits_do_not_depend_on_m(n, k, code_of, launcher):
    """Rows of A lie in front of each other's, in tiles of every size, of the plans for 1 to 300 rows."""
    largest = Product(300, n, k, seed=3)
    rows = {}
    for m, shape in ((300, 0), (300, -1), (1, -1), (17, 2), (65, 1), (130, -1), (129, 0)):
        first = 300 - m
        product = Product(m, n, k, seed=3)
        product.a.copy_(largest.a[:, first:])
        for name in ("b", "bias"):
            getattr(product, name).copy_(getattr(largest, name))
        product.run(code_of("fp16"), launcher, shape)
        for row in sorted({0, m // 2, m - 1}):
            found = product.out[0, row, :n].view(torch.int16)
            assert torch.equal(rows.setdefault(first + row, found), found), (m, shape, row)
    assert len(rows) < 3 * 7, "no row was computed twice"


# ---- What decides the speed


def per_k_tile(code, launcher, dtype: str, shape: int, layouts: str) -> dict[str, float]:
    """What a wave executes for one more k tile of one block, by mnemonic."""
    block, block_k = TILES[shape], BLOCK_K[dtype]
    waves = {256: 8, 128: 4, 64: 2}[block]
    counts = []
    for tiles in (3, 5):
        product = Product(block, block, tiles * block_k, dtype, layouts, bias=None, activation="none")
        counts.append(product.run(code, launcher, shape))
    return {name: (times - counts[0][name]) / waves / 2 for name, times in counts[1].items() if times > counts[0][name]}


@pytest.mark.parametrize("dtype, shape, layouts, most", [
    ("fp16", 0, "kk", 1.7), ("fp16", 0, "mm", 1.95), ("bf16", 0, "kk", 1.7), ("fp16", 1, "kk", 2.0)
])  # fmt: skip
def test_the_main_loop_is_short(dtype, shape, layouts, most, code_of, launcher):
    counts = per_k_tile(code_of(dtype), launcher, dtype, shape, layouts)
    products = sum(times for name, times in counts.items() if name.startswith("v_mfma"))
    block = TILES[shape]
    warps = {256: 8, 128: 4}[block]
    assert products == block * block * BLOCK_K[dtype] / 16**3 / warps
    assert sum(counts.values()) <= most * products, counts
    vector = {name: times for name, times in counts.items() if name.startswith("v_") and "mfma" not in name}
    # Turning an mn-major operand takes 16 permutations for 4 chunks.
    allowed = {"v_perm_b32": 16 * layouts.count("m")} if "m" in layouts else {}
    assert vector == allowed
    assert counts["ds_read_b128"] == {256: 24, 128: 16}[block] and not any("scratch" in name for name in counts)


def kernels_of(report: str):
    for part in report.split("Function Name: ")[1:]:
        found = re.findall(r"remark:\s+([^:\[]+)[^:]*: (\d+)", part)
        yield part.split()[0], {name.strip(): int(value) for name, value in found}


@pytest.mark.parametrize("arch, dtype", [("gfx942", dtype) for dtype in SOURCES] + [("gfx90a", "fp16")])
def test_registers_suffice(arch, dtype, amd_object, code_of):
    """With 20 to spare for other compilers; two warps on each SIMD."""
    kernels = [each for each in kernels_of(amd_object(arch, FOLDER / SOURCES[dtype])[1]) if "4mfma" in each[0]]
    assert len(kernels) == (8 if dtype == "fp64" else 12)
    for name, kernel in kernels:
        assert kernel["ScratchSize"] == kernel["VGPRs Spill"] == kernel["SGPRs Spill"] == kernel["AGPRs"] == 0, name
        assert kernel["VGPRs"] <= 236 and kernel["LDS Size"] <= 64 << 10, (name, kernel)


# Lanes of a wave whose 16 bytes are moved in one clock: eight neighbours with CDNA3's 32 banks; with CDNA4's 64 those that
# HipKittens measured, and the same of the other half (HazyResearch/HipKittens, docs of its LDS layouts).
PHASES = {
    32: [list(range(first, first + 8)) for first in range(0, 64, 8)],
    64: [
        [half + lane for lane in lanes]
        for half in (0, 32)
        for lanes in ([*range(4), *range(12, 16), *range(20, 28)], [*range(4, 12), *range(16, 20), *range(28, 32)])
    ],
}


@pytest.mark.parametrize("dtype, layouts", [("fp16", "km"), ("fp32", "mk")])
def test_fragments_have_no_bank_conflicts(dtype, layouts, code_of, launcher, monkeypatch):
    load_shared, accesses = SharedMemory.load, []

    def recorded(self, places, wave, text="load"):
        accesses.append((places[:, 0].copy(), text))
        return load_shared(self, places, wave, text)

    monkeypatch.setattr(SharedMemory, "load", recorded)
    product = Product(128, 128, 2 * BLOCK_K[dtype], dtype, layouts, bias=None, activation="none")
    product.run(code_of(dtype), launcher, shape=1)
    accesses = accesses[: 4 * 2 * 16]  # of each wave 16 for each k tile; after the last tile C's follow
    assert all(text.startswith("ds_read_b128") for _, text in accesses)
    addresses = np.stack([addresses for addresses, _ in accesses])
    for num_banks, phases in PHASES.items():
        for lanes in phases:
            banks = (addresses[:, lanes, None] // 4 + np.arange(4)).reshape(len(addresses), -1) % num_banks
            banks.sort(axis=1)
            assert (banks[:, 1:] != banks[:, :-1]).all(), f"{num_banks} banks, lanes {lanes}"

"""mfma: its machine code as clang compiles it for CDNA, started by its own host code (launch.cpp) and run by
the interpreter.

Results are compared with the reference's bounds; memory outside of the operands, a missing wait and a race in shared
memory are errors of the interpreter. What decides the speed is counted: instructions of a k tile, bank conflicts,
registers.

Planted bugs that these tests caught, each as a mutant below: the barriers and waits that hand tiles over, one at a
time, of copies straight to shared memory, too; a swizzle of the stores that is not that of the loads, and one that has
conflicts; a k tile that is read twice, or from the other buffer; an operand's end that is taken for that of a whole
tile; a cut-off k tile whose end is not zero; rows that are not turned; runs of tiles that overlap. And one by hand:
copies without the instruction that M0 wants in front of them.
"""

import ctypes
import functools
import itertools
import os
import re
import shutil
import subprocess
from pathlib import Path

import gpu_objects
import numpy as np
import pytest
import torch
from amd_interpreter.count import count_loop, resources
from amd_interpreter.cycles import UNITS, matrix_busy
from amd_interpreter.interpreter import Fault, Memory, load, run
from amd_interpreter.launches import Record, host_side, launches_of
from amd_interpreter.structs import FoldedProblem
from compilers import IS_WHOLE

from torch_tiledmm.dispatch import ACTIVATIONS, DTYPES
from torch_tiledmm.testing.reference import assert_close, expect_linear

ROOT = Path(__file__).parents[2]

FOLDER = gpu_objects.CSRC / "kernels/hip/mfma"
SHARED = FOLDER.parent / "shared"
OF_MFMA = [
    *FOLDER.glob("*.h"),
    *(SHARED / f"{name}.h" for name in ("block_order", "c_strip", "tile_copy", "warp_sums")),
]
INSTANCES = FOLDER / "instances.cu"
DTYPE_NUMBERS = {"fp32": 0, "fp64": 1, "fp16": 2, "bf16": 3}  # csrc/core/problem.h
BLOCK_K = {"fp16": 64, "bf16": 64, "fp32": 32, "fp64": 16}
TILES = (256, 128, 64)  # by number of the shape, plan.h


@pytest.fixture(scope="module")
def launcher(built_once):
    """The rung's host code."""
    if not shutil.which("clang++-22"):
        assert os.environ.get("CI") != "true", "CI needs clang-22, lld-22 and llvm-22"
        pytest.skip("there is no clang++-22")

    def build(folder: Path) -> None:
        host_side(folder, Path(__file__).with_name("launch.cpp"))

    library = ctypes.CDLL(str(built_once("launch_mfma", build) / "launch.so"))
    numbers = (ctypes.c_int, ctypes.c_int64, ctypes.c_bool, ctypes.c_int)
    library.launch.argtypes = [ctypes.c_void_p, *numbers, ctypes.c_void_p, Record]
    return library.launch


# Of gfx90a, whose instructions are gfx942's with other names, on request; what it lacks, test_device_code.py tells.
ON_REQUEST = ("gfx90a",) if IS_WHOLE else ()
ALL = [("gfx942", "fp16"), ("gfx942", "fp64")]  # chips and dtypes of which all kernels are compiled
# Of the others these: number of the tile, layouts. What differs is an instruction, on gfx950 also how 16 bits move.
FEW = [(0, "kk"), (0, "mm"), (0, "mk"), (1, "km"), (2, "mm"), (2, "km")]
STRAIGHT = [(0, "kk"), (0, "mm"), (1, "kk"), (1, "km"), (1, "mk"), (1, "mm"), (2, "km")]
ELEMENTS = {"fp16": "Half", "bf16": "BFloat16", "fp32": "float"}


def instances(dtype: str, kernels: list[tuple[int, str]]) -> str:
    """A source with these kernels alone."""
    lines = ['#include "kernels/hip/mfma/kernel.h"', "namespace tiledmm::gpu {", "namespace {"]
    for shape, layouts in kernels:
        a, b = (str(layout == "k").lower() for layout in layouts)
        config = f"Config<{ELEMENTS[dtype]}, {shape}>"
        lines.append(f"template __global__ void mfma<{config}, {a}, {b}, false>(MfmaWork, FoldedProblem);")
    return "\n".join([*lines, "}", "}", ""])


@pytest.fixture(scope="module")
def code_of(amd_object, launcher, tmp_path_factory):
    @functools.cache
    def compiled(dtype: str, arch: str = "gfx942"):
        if (arch, dtype) in ALL:
            return load(amd_object(arch, INSTANCES, DTYPE_NUMBERS[dtype])[0])
        source = tmp_path_factory.mktemp("few") / f"few_mfma_{dtype}.cu"
        source.write_text(instances(dtype, STRAIGHT if arch == "gfx950" else FEW))
        return load(amd_object(arch, source)[0])

    return compiled


def as_array(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def operand(rows: int, k: int, dtype: torch.dtype, layout: str, pad: int, skipped: int, batch: int):
    """(batch, rows, k) in memory of its own, k-major for "k", "m" for the other, "s" without a unit stride; nan between
    its rows and in front of it."""
    inner, outer = (rows, k) if layout == "m" else (k, rows)
    step = 2 if layout == "s" else 1
    ld = inner * step + pad
    count = skipped + max(1, batch) * outer * ld - (ld - (inner - 1) * step - 1) * (inner > 0)
    if count < 2**28:
        memory = torch.full((count,), torch.nan).to(dtype)
    else:  # what lies between the rows stays untouched
        memory = torch.from_numpy(np.zeros(count, np.float16))
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
        self.problem = problem = FoldedProblem(batch_size=max(1, batch), chunk_k=max(k, 1), asked_n=n)
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

    def run(self, code, launcher, shape=-1, chunk_k=-1, splits=False, num_cus=64, seed=None, traces=None):
        """What was executed, by mnemonic, and the kernel; `shape`, `chunk_k`: -1 for the planned ones."""

        def start(executor, record):
            return launcher(ctypes.byref(self.problem), shape, chunk_k, splits, num_cus, executor, record)

        launches = launches_of(start, code.kernels, self.memory, num_cus)
        counts = [run(*launch, self.memory, seed, traces=traces) for launch in launches]
        return sum(counts[1:], counts[0]), launches[0][0]

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
    ("fp16", 0, dict(m=270, n=200, k=200, layouts="kk")),
    ("fp16", 0, dict(m=130, n=262, k=150, layouts="mm", pads=(6, 2))),
    ("bf16", 0, dict(m=70, n=45, k=130, layouts="mk", activation="gelu", pad_c=3)),
    ("fp16", 1, dict(m=70, n=150, k=200, layouts="km", bias="m")),
    ("fp16", 1, dict(m=70, n=45, k=130, layouts="mk", pads=(2, 4), skipped=(2, 6), bias=None, activation="none")),
    ("fp16", 2, dict(m=70, n=45, k=200, layouts="mm", pads=(8, 7), batch=3, repeats_b=True)),
    ("fp16", 2, dict(m=71, n=45, k=128, layouts="mm", pads=(0, 0))),  # whole k tiles whose last element is half a word
    ("fp16", 2, dict(m=70, n=45, k=100, layouts="kk", pads=(1, 3), skipped=(1, 0))),  # element by element
    ("fp16", 2, dict(m=5, n=130, k=70, layouts="sm", activation="silu", batch=2)),
    ("fp16", 2, dict(m=3, n=5, k=0)),
    ("bf16", 2, dict(m=70, n=45, k=130, layouts="km", pads=(8, 7))),
    ("fp32", 0, dict(m=130, n=100, k=75, layouts="mk")),
    ("fp32", 1, dict(m=130, n=100, k=75, layouts="km", pads=(1, 3))),
    ("fp32", 2, dict(m=70, n=45, k=75, layouts="sm", bias="m")),
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


@pytest.mark.parametrize("arch, numbers", [*((arch, (3, 5)) for arch in ON_REQUEST), ("gfx950", (1, 3, 4, 8, 10))])
def test_products_are_right_on_other_chips(arch, numbers, code_of, launcher):
    for number in numbers:
        _, shape, case = CASES[number]
        product = Product(dtype="fp16", **case)
        product.run(code_of("fp16", arch), launcher, shape, seed=number)
        product.check()


@pytest.mark.parametrize("dtype, shapes", [("fp16", (2, 0)), ("fp64", (2,))])
def test_chunks_are_added_in_their_order(dtype, shapes, code_of, launcher):
    """The same bits whether one block sums all chunks or each has a block; other ones than those of a single chunk."""
    outs = {}
    for shape in shapes:
        for chunk_k, splits in ((256, False), (256, True), (-1, False)):
            if chunk_k == 256 and not splits and shape == 0:
                continue  # its registers hold no total
            product = Product(70, 45, 520, dtype, layouts="km", activation="none")
            product.run(code_of(dtype), launcher, shape, chunk_k, splits)
            product.check()
            outs.setdefault(chunk_k, []).append(as_array(product.out))
    assert all(np.array_equal(each[0], out, equal_nan=True) for each in outs.values() for out in each)
    assert not np.array_equal(outs[256][0], outs[-1][0], equal_nan=True)


def test_items_of_a_batch_beyond_those_of_a_launch(code_of, launcher):
    """Three items in launches of two: each has sums of its own, whether its chunks are side by side or not."""
    outs = []
    for splits in (False, True):
        product = Product(5, 7, 300, layouts="km", batch=3, bias=None, activation="none")
        product.run(code_of("fp16"), launcher, 2, 256, splits)
        product.check()
        outs.append(as_array(product.out))
    assert np.array_equal(*outs, equal_nan=True)


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


@pytest.mark.takes_long  # compiling does, while nobody waits for it
def test_no_row_s_bits_depend_on_m(code_of, launcher):
    """Of products of 1 to 300 rows, as they are planned, each row is as in that of 300: all up to a tile of 32 rows,
    and of the others each 13th and what fills whole tiles or has one more row. With TILEDMM_EVERY_M=1, all."""
    n, k = 32, 128
    how = dict(n=n, k=k, bias=None, activation="none")
    largest = Product(300, **how)
    # Products that cancel each other: what is left over depends on the order of summation.
    half = torch.randperm(k // 2)
    largest.a[:, :, k // 2 :] = largest.a[:, :, half]
    largest.b[:, :, k // 2 :] = -largest.b[:, :, half]
    for operand in (largest.a, largest.b):
        operand *= 64
    largest.run(code_of("fp16"), launcher)
    largest.check()
    expected = as_array(largest.out.view(torch.int16))
    is_every_m = os.environ.get("TILEDMM_EVERY_M") == "1"
    for m in range(1, 300):
        if not is_every_m and m > 32 and m % 13 != 0 and m % 32 > 1:
            continue
        product = Product(m, **how)
        product.a.copy_(largest.a[:, :m])
        product.b.copy_(largest.b)
        product.run(code_of("fp16"), launcher)
        assert np.array_equal(as_array(product.out.view(torch.int16)), expected[:, :m]), m


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_bits_do_not_depend_on_layouts_or_tiles(arch, code_of, launcher):
    """Whichever way the operands take to the matrix unit; k has a whole pair of tiles, one more and one cut off."""
    m, n, k = 70, 46, 200
    values = Product(m, n, k, seed=6)
    outs = []
    for shape, layouts in STRAIGHT:
        product = Product(m, n, k, layouts=layouts, seed=6)
        for name in ("a", "b", "bias"):
            getattr(product, name).copy_(getattr(values, name))
        product.run(code_of("fp16", arch), launcher, shape)
        outs.append(as_array(product.out.view(torch.int16)))
    product.check()
    assert all(np.array_equal(out, outs[0]) for out in outs)


# ---- What decides the speed


def test_offsets_of_more_than_32_bits(code_of, launcher):
    """Of A's rows, of B's rows along k; more than 2^31 elements each."""
    m, n, k = 258, 16, 192
    product = Product(m, n, k, layouts="km", pads=(2**23 - 8 - k, 11_300_000 - n), bias=None, activation="none")
    assert (m - 1) * product.a.stride(1) > 2**31 and (k - 1) * product.b.stride(2) > 2**31
    product.run(code_of("fp16"), launcher, 2)
    product.check()


# Chip, dtype, number of the tile, layouts; most instructions for a matrix instruction; blocks of a CU, and the least
# share of the time that the matrix unit works by the model of a CU.
LOOPS = [
    ("gfx942", "fp16", 0, "kk", 1.7, 1, 0.95),
    ("gfx942", "bf16", 0, "kk", 1.7, 1, 0),
    ("gfx942", "fp16", 0, "mm", 1.95, 1, 0),
    ("gfx942", "fp16", 1, "kk", 2.1, 2, 0.9),
    ("gfx942", "fp32", 0, "kk", 1.35, 1, 0),
    *((arch, "fp16", 0, "kk", 1.7, 1, 0) for arch in ON_REQUEST),
    ("gfx950", "fp16", 0, "kk", 2.3, 1, 0.95),  # each instruction does twice the work
    ("gfx950", "fp16", 0, "mm", 2.7, 1, 0.95),
    ("gfx950", "fp16", 1, "kk", 3.0, 2, 0.9),
    ("gfx950", "fp16", 1, "mm", 3.4, 2, 0.9),
]


@pytest.mark.parametrize("arch, dtype, shape, layouts, most, blocks, busy", LOOPS)
def test_the_main_loop_is_short(arch, dtype, shape, layouts, most, blocks, busy, code_of, launcher):
    block, block_k, traces = TILES[shape], BLOCK_K[dtype], []
    # Straight copies alternate between two buffers, and an iteration is two k tiles.
    is_straight = arch == "gfx950"
    num_tiles, depth = 1 + is_straight, {"fp32": 4}.get(dtype, 32 if is_straight else 16)
    product = Product(block, block, 7 * num_tiles * block_k, dtype, layouts, (0, 0), bias=None)
    kernel = product.run(code_of(dtype, arch), launcher, shape, traces=traces)[1]
    counts = count_loop(kernel, traces)
    assert counts.kinds["matrix"] == num_tiles * block * block * block_k / (16 * 16 * depth) / len(traces)
    assert counts.instructions_per_matrix <= most, counts
    # Turning an mn-major operand takes 16 permutations for 4 chunks, or loads of half the size.
    num_turned = layouts.count("m")
    assert counts.kinds["vector"] == (0 if is_straight else 16 * num_turned)
    assert counts.kinds["moves of accumulators"] == counts.kinds["LDS writes"] * is_straight == 0
    num_loads = {256: 24, 128: 16}[block]
    assert counts.kinds["LDS reads"] == num_tiles * num_loads * (2 + num_turned * is_straight) / 2
    assert counts.conflicts["LDS reads"] == counts.conflicts["LDS writes"] == 0
    assert not busy or matrix_busy(kernel, traces, UNITS[arch], blocks).share >= busy


@pytest.mark.parametrize(
    "arch, dtype",
    [*ALL, ("gfx942", "bf16"), ("gfx942", "fp32"), ("gfx950", "fp16"), *((arch, "fp16") for arch in ON_REQUEST)],
)
def test_registers_suffice(arch, dtype, code_of):
    """With 20 to spare for other compilers; two warps on each SIMD. Scalars of the epilogue may go to lanes of a vector
    register, none goes to memory."""
    kernels = [kernel for name, kernel in code_of(dtype, arch).kernels.items() if "4mfma" in name]
    few = STRAIGHT if arch == "gfx950" else FEW
    assert len(kernels) == ({"fp64": 12, "fp16": 28}[dtype] if (arch, dtype) in ALL else len(few))
    for kernel in kernels:
        found = resources(kernel, kernel.metadata[".max_flat_workgroup_size"])
        assert found.spills == 0 and kernel.metadata[".sgpr_spill_count"] <= 32, kernel.name
        assert found.registers <= 236 and found.waves_per_simd >= 2, (kernel.name, found)


def test_a_copy_does_not_follow_the_write_of_its_place(code_of):
    """M0 has it; the chip wants an instruction between them (CDNA3 ISA, "Manually Inserted Wait States"), which the
    compiler does not see to in assembly."""
    num_copies = 0
    for kernel in code_of("fp16", "gfx950").kernels.values():
        for (_, before), (_, text) in itertools.pairwise(kernel.lines):
            if text.endswith(" lds"):
                num_copies += 1
                assert not re.match(r"s_\w+ m0,", before), kernel.name
    assert num_copies > 0


# ---- Mistakes that must be found


def main_loop(lines: list[tuple[int, str]]) -> range:
    """The shortest loop that multiplies and loads from memory."""
    places, found = {address: i for i, (address, _) in enumerate(lines)}, []
    for i, (address, text) in enumerate(lines):
        if branch := re.match(r"s_cbranch_\w+ (\d+)", text):
            start = places.get(address + 4 + 4 * ((int(branch[1]) ^ 0x8000) - 0x8000))
            if start is not None and start < i:
                body = [text for _, text in lines[start : i + 1]]
                if any("mfma" in text for text in body) and any(text.startswith("buffer_load") for text in body):
                    found.append(range(start, i + 1))
    return min(found, key=len)


# Chip, number of the tile, and what is removed from the main loop of two k-major operands: the first wait after, or the
# last one before, the barrier of a number, or that barrier, or the wait for memory of a number.
MISSING = {
    "tile 256: the wait for the first fragments": ("gfx942", 0, "after", 0),
    "tile 256: a half goes on before it has read the tile": ("gfx942", 0, "before", 4),
    "tile 256: the barrier after the last load": ("gfx942", 0, "barrier", 4),
    "tile 256: the barrier before the first store": ("gfx942", 0, "barrier", 5),
    "tile 256: a half goes on before it has stored its part": ("gfx942", 0, "before", 6),
    "tile 256: the barrier after the last store": ("gfx942", 0, "barrier", 6),
    "tile 256: the barrier before the first load": ("gfx942", 0, "barrier", 7),
    "tile 256: the wait for memory": ("gfx942", 0, "memory", 0),
    "tile 64: the barrier before the stores": ("gfx942", 2, "barrier", 0),
    "tile 64: stores that are not waited for": ("gfx942", 2, "before", 1),
    "tile 64: the barrier after the stores": ("gfx942", 2, "barrier", 1),
    "tile 64: the wait for memory": ("gfx942", 2, "memory", 0),
    "straight copies, tile 256: a half goes on before it has read the tile": ("gfx950", 0, "before", 4),
    "straight copies, tile 256: the barrier after the last load": ("gfx950", 0, "barrier", 4),
    "straight copies, tile 256: the barrier before the first copy": ("gfx950", 0, "barrier", 5),
    "straight copies, tile 256: the wait for those to the second buffer": ("gfx950", 0, "memory", 0),
    "straight copies, tile 256: the barrier after that wait": ("gfx950", 0, "barrier", 6),
    "straight copies, tile 256: the barrier before the second buffer is read": ("gfx950", 0, "barrier", 7),
    "straight copies, tile 256: the wait for those to the first buffer": ("gfx950", 0, "memory", 1),
    "straight copies, tile 128: the barrier before the first buffer is overwritten": ("gfx950", 1, "barrier", 0),
    "straight copies, tile 128: the wait for those to the second buffer": ("gfx950", 1, "memory", 0),
    "straight copies, tile 128: the barrier before the second buffer is read": ("gfx950", 1, "barrier", 1),
    "straight copies, tile 128: the barrier before the second buffer is overwritten": ("gfx950", 1, "barrier", 2),
    "straight copies, tile 128: the wait for those to the first buffer": ("gfx950", 1, "memory", 1),
    "straight copies, tile 128: the barrier before the first buffer is read": ("gfx950", 1, "barrier", 3),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_barrier_or_wait_is_found(name, code_of, launcher):
    arch, shape, what, number = MISSING[name]
    edited = []

    def without(kernel: str, lines):
        if f"ConfigINS_4HalfELi{shape}EEELb1ELb1ELb0E" not in kernel:
            return lines
        loop = main_loop(lines)
        barriers = [i for i in loop if lines[i][1] == "s_barrier"]
        assert len(barriers) == {("gfx942", 0): 8, ("gfx942", 2): 2, ("gfx950", 0): 16, ("gfx950", 1): 4}[arch, shape]
        waits = [i for i in loop if lines[i][1].startswith("s_waitcnt") and "lgkmcnt" in lines[i][1]]
        place = {
            "barrier": lambda: barriers[number],
            "before": lambda: max(i for i in waits if i < barriers[number]),
            "after": lambda: min(i for i in waits if i > barriers[number]),
            "memory": lambda: [i for i in loop if lines[i][1].startswith("s_waitcnt vmcnt")][number],
        }[what]()
        edited.append(place)
        return [(address, "s_nop 0" if i == place else text) for i, (address, text) in enumerate(lines)]

    code = load(code_of("fp16", arch).path, without)
    assert len(edited) == 1
    # The loop is gone through twice; that of straight copies, which are waited for an iteration later, three times.
    product = Product(TILES[shape], TILES[shape], (3 if arch == "gfx942" else 9) * 64, bias=None, activation="none")
    with pytest.raises((Fault, AssertionError)):
        product.run(code, launcher, shape, seed=1)
        product.check()


BLOCK_ORDER = """
#include <cstdio>
#include <cstdlib>
#include <vector>
#include "@HEADER@"
using namespace tiledmm;

void check(bool is_right, const char* what, int m, int n, int dies) {
  if (is_right) return;
  std::printf("%s: %d x %d tiles, %d dies", what, m, n, dies);
  std::exit(1);
}

int main() {
  for (int dies : {1, 6, 8}) {
    for (int m = 1; m <= 700; ++m) {
      for (int n = 1; n * m <= 700; ++n) {
        const gpu::BlockOrder order(m, n, dies);
        const int num = m * n, run = num / dies < 16 ? num / dies : 16;
        std::vector<bool> is_taken(num), is_number_taken(num);
        for (int idx = 0; idx < num; ++idx) {
          const int number = order.number_of(idx);
          const gpu::TileIndex tile = order.tile_of(idx);
          check(number >= 0 && number < num && !is_number_taken[number], "number", m, n, dies);
          check(tile.m >= 0 && tile.m < m && tile.n >= 0 && tile.n < n, "outside", m, n, dies);
          check(!is_taken[tile.m * n + tile.n], "twice", m, n, dies);
          is_number_taken[number] = is_taken[tile.m * n + tile.n] = true;
          // In whole rounds a die's blocks follow each other.
          const bool is_whole = run > 0 && (idx / (run * dies) + 1) * run * dies <= num;
          if (is_whole && idx / dies % run + 1 < run)
            check(order.number_of(idx + dies) == number + 1, "no run", m, n, dies);
        }
      }
    }
  }
}
"""
# Text of block_order.h, and what it becomes.
ORDER_MUTANTS = {
    "none": ("", ""),
    "the last runs are as long as the others": (
        "last_run_ = int((num_tiles - num_whole_) / num_dies)",
        "last_run_ = run_",
    ),
    "a die's blocks are dealt out as they come": ("first + die * run + place", "idx"),
    "every group of rows is whole": (
        "const bool is_last = first + kGroupRows > tiles_m_",
        "const bool is_last = false",
    ),
}


@pytest.mark.parametrize("name", ORDER_MUTANTS)
def test_each_tile_has_a_block_and_each_die_its_runs(name, tmp_path):
    text, mutant = ORDER_MUTANTS[name]
    source = (SHARED / "block_order.h").read_text()
    assert source.count(text) == 1 or not text
    (tmp_path / "block_order.h").write_text(source.replace(text, mutant))
    (tmp_path / "check.cpp").write_text(BLOCK_ORDER.replace("@HEADER@", str(tmp_path / "block_order.h")))
    command = [*gpu_objects.host_command(os.environ.get("CXX", "g++"), 64), f"-I{gpu_objects.CSRC}"]
    subprocess.run([*command, tmp_path / "check.cpp", "-o", tmp_path / "check"], check=True, timeout=60)
    done = subprocess.run([tmp_path / "check"], capture_output=True, text=True, timeout=60)
    assert (done.returncode == 0) == (name == "none"), done.stdout


# Chip, file, text, what it becomes; and a product that shows it.
MUTANTS = {
    "the swizzle of the fragments is not that of the copies": (
        "gfx942",
        "warp_sums.h",
        "from[slice] = Places::place_of(first_row + lane % 16, slice * 4 + lane / 16)",
        "from[slice] = (first_row + lane % 16) * kMfmaRowBytes + (slice * 4 + lane / 16) * 16",
        dict(m=64, n=64, k=64),
    ),
    "chunks that are turned go to the places of the first row": (
        "gfx942",
        "tile_copy.h",
        "(to ^ row * 16)",
        "to",
        dict(m=64, n=64, k=128),
    ),
    "a k tile is read twice": (
        "gfx942",
        "tile_copy.h",
        "tile += IS_K_MAJOR ? int64_t(kMfmaRowBytes) : int64_t(kBlockK) * stride_k;",
        "if (!IS_K_MAJOR) tile += int64_t(kBlockK) * stride_k;",
        dict(m=64, n=64, k=128),
    ),
    "an operand of fewer rows is taken for a whole tile": (
        "gfx942",
        "tile_copy.h",
        "rows(int(min_of(operand.size_mn - row, BLOCK)))",
        "rows(BLOCK)",
        dict(m=50, n=64, k=64),
    ),
    "what lies behind the end of k is not zero": (
        "gfx942",
        "tile_copy.h",
        "mn < rows && k < left_k ? offset : kOutside",
        "mn < rows ? offset : kOutside",
        dict(m=64, n=64, k=50),
    ),
    "elements overwrite a tile that is still read": (
        "gfx942",
        "kernel.h",
        "block_barrier();  // nobody reads the old tiles any more\n      copy_a.copy_elements",
        "copy_a.copy_elements",
        dict(m=64, n=64, k=100),
    ),
    "the sums of a chunk are forgotten": (
        "gfx942",
        "warp_sums.h",
        "total[i][j][e] += acc[i][j][e]",
        "total[i][j][e] = acc[i][j][e]",
        dict(m=64, n=64, k=768),
    ),
    "rows beyond C's are stored": (
        "gfx942",
        "c_strip.h",
        "if (row + r >= gemm_.m) continue;",
        "",
        dict(m=50, n=64, k=64),
    ),
    "straight copies leave chunks in the order of memory": (
        "gfx950",
        "tile_copy.h",
        "idx % Places::kPacketsOfRow ^ Places::swizzle(row)",
        "idx % Places::kPacketsOfRow",
        dict(m=64, n=64, k=64),
    ),
    "straight copies of fewer rows read beyond the operand": (
        "gfx950",
        "tile_copy.h",
        "describe_buffer(tile, num_bytes)",
        "describe_buffer(tile, ~0u)",
        dict(m=50, n=64, k=64),
    ),
    "a load that turns takes the same four rows twice": (
        "gfx950",
        "warp_sums.h",
        "load_turned(place + 4 * Places::kRowBytes)",
        "load_turned(place)",
        dict(m=64, n=64, k=64),
    ),
    "elements of rows along n go where rows along k would be": (
        "gfx950",
        "tile_copy.h",
        "const int mn = kAreRowsAlongK ? row : packet * kElements + e",
        "const int mn = row",
        dict(m=64, n=64, k=50),
    ),
    "the last tile is read from the first buffer": (
        "gfx950",
        "kernel.h",
        "const int buffer = k_tile % kBuffers",
        "const int buffer = 0",
        dict(m=64, n=64, k=128),
    ),
    "the last tile is not waited for": (
        "gfx950",
        "kernel.h",
        "wait_for_copies();\n      block_barrier();",
        "block_barrier();",
        dict(m=64, n=64, k=320),
    ),
    "the last tile is read before the other warps have copied theirs": (
        "gfx950",
        "kernel.h",
        "wait_for_copies();\n      block_barrier();",
        "wait_for_copies();",
        dict(m=64, n=64, k=320),
    ),
    "the last tile goes to the buffer that is read next": (
        "gfx950",
        "kernel.h",
        "if (k_tile + 2 < num_wide) copy(buffer);",
        "if (k_tile + 2 < num_wide) copy(1 - buffer);",
        dict(m=64, n=64, k=320),
    ),
    "a copy of the tile that is read next may be outstanding": (
        "gfx950",
        "warp_sums.h",
        "CopyA::kPackets + CopyB::kPackets",
        "CopyA::kPackets + CopyB::kPackets + 1",
        dict(m=64, n=64, k=320),
    ),
}


@pytest.fixture(scope="module")
def run_variant(launcher, tmp_path_factory):
    """run_variant(arch, file, text, mutant, cases): products by the tile of 64 with an n-major B, of sources changed
    so. Returns the kernel and the traces of the last one."""

    def run_cases(arch: str, file: str, text: str, mutant: str, cases: list[dict]):
        folder = tmp_path_factory.mktemp("variant")
        for path in OF_MFMA:
            source = re.sub(r'#include "kernels/hip/(mfma/|shared/(?!plan|cdna))', '#include "', path.read_text())
            if path.name == file:
                assert source.count(text) == 1, f"the mutant needs a new place in {file}"
                source = source.replace(text, mutant)
            (folder / path.name).write_text(source)
        text = instances("fp16", [(2, "km")]).replace("kernels/hip/mfma/", "")
        (folder / "variant.cu").write_text(text)
        command = [*gpu_objects.hip_command("clang++-22", [arch], standalone=True), "--cuda-device-only"]
        command += ["--no-gpu-bundle-output", f"-I{folder}", f"-I{gpu_objects.CSRC}", "-c", folder / "variant.cu"]
        subprocess.run([*command, "-o", folder / "code"], check=True, timeout=120)
        code = load(folder / "code")
        for case in cases:
            traces = []
            product = Product(layouts="km", activation="none", **case)
            _, kernel = product.run(code, launcher, 2, chunk_k=256, seed=1, traces=traces)
            product.check()
        return kernel, traces

    return run_cases


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_the_sources_without_a_mutant_are_right(arch, run_variant):
    run_variant(arch, "", "", "", [case for *_, case in MUTANTS.values()])


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_source_is_found(name, run_variant):
    *change, case = MUTANTS[name]
    with pytest.raises((Fault, AssertionError)):
        run_variant(*change, [case])


@pytest.mark.parametrize("swizzle", ["row % 8 * 0", "row % 4 * 2"])
def test_another_swizzle_of_turned_rows_has_conflicts(swizzle, run_variant):
    text = "(row % 4 + row / 8 % 2 * 4) / max_of(1, 128 / BLOCK) * 2"
    kernel, traces = run_variant("gfx950", "tile_copy.h", text, swizzle, [dict(m=64, n=64, k=17 * 64)])
    assert count_loop(kernel, traces).conflicts["LDS reads"] > 0


ODD_ROWS = [
    dict(m=150, n=131, k=259, layouts="kk", pads=(0, 2)),
    dict(m=131, n=70, k=200, layouts="mk", pads=(0, 8), batch=2),
    dict(m=70, n=131, k=192, layouts="km", pads=(1, 0), skipped=(2, 2)),
    dict(m=45, n=131, k=130, layouts="mm", pads=(0, 6)),
]


@pytest.mark.parametrize("case", ODD_ROWS, ids=str)
def test_rows_that_begin_within_a_word(case, code_of, launcher):
    """They are copied 16 bytes at a time all the same, and nothing outside of the operand is read."""
    product = Product(**case, seed=5)
    counts, _ = product.run(code_of("fp16"), launcher, shape=1, seed=2)
    assert counts["buffer_load_dwordx4"] > 0
    product.check()


def test_chunks_do_not_overhang_the_operand(code_of, launcher):
    """Not even where the hardware's bounds would cut them off."""
    product = Product(64, 63, 64, layouts="km", pads=(0, 1), activation="none")
    counts, _ = product.run(code_of("fp16"), launcher, 2)
    assert counts["buffer_load_dwordx4"] == 0
    product.check()

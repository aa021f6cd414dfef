"""Rung 13, wmma_rdna: its machine code as clang compiles it for gfx1100 and gfx1201, run by the interpreter.

Results are compared with the bounds of the reference; memory outside of the operands, a missing wait and a race in
shared memory are errors of the interpreter. What decides the speed is counted: instructions of the main loop, bank
conflicts, registers.

Planted bugs that these tests caught: each barrier and each wait removed, one at a time; a swizzle of the loads that is
not that of the stores; a k tile that begins too early; the end of k and of the rows taken for later ones; garbage
beyond k; a total that forgets its chunks; gathered rows that all lie where the first round's do; a last group of tiles
that is taken for a whole one; an order of summation that differs for 129 rows, and for 17 in the last tile; the
smallest tile planned for rows that it has no kernel for.
"""

import functools
import os
import re
import struct
from math import ceil

import numpy as np
import pytest
import torch
from amd_interpreter.interpreter import load, run
from amd_interpreter.memory import SharedMemory
from compilers import IS_WHOLE
from products import Product, compile_mutant, gpu_objects, is_wrong, loops_of, need_compiler, removable, without

from torch_tiledmm.dispatch import explain

FOLDER = gpu_objects.CSRC / "kernels/hip/wmma_rdna"
ARCHS = ("gfx1100", "gfx1201")
LARGE, SMALL, SMALLEST = 0, 1, 2  # shapes, as in plan.h
# Of gfx1201, which has the same source, CI has these kernels: shape, whole tiles, both operands contiguous along k.
FEW = ((LARGE, True), (SMALLEST, True), (SMALL, False))
CHIPS = ARCHS if IS_WHOLE else ("gfx1100",)
BLOCKS = {LARGE: (128, 128), SMALL: (64, 64), SMALLEST: (32, 64)}
THREADS = {LARGE: 128, SMALL: 128, SMALLEST: 64}
MANGLED = {"fp16": "4Half", "bf16": "8BFloat16"}
LAUNCH, KERNELS, INSTANCE = FOLDER / "launch.cu", FOLDER / "instances.cu", {"fp16": 0, "bf16": 1}
DTYPE_OF = {"gfx1100": "fp16", "gfx1201": "bf16"}
IS_EVERY_M = os.environ.get("TILEDMM_EVERY_M") == "1"


@pytest.fixture(scope="module")
def source_of(tmp_path_factory):
    """source_of(arch, dtype) -> what amd_object compiles; for a chip of which CI has FEW kernels, these alone."""
    few = tmp_path_factory.mktemp("few") / "few_wmma_bf16.cu"
    kernels = [
        f"template __global__ void wmma_rdna<WmmaConfig<BFloat16, {shape}, {str(is_whole).lower()}>, true, true>"
        "(WmmaWork, FoldedProblem);"
        for shape, is_whole in FEW
    ]
    lines = ['#include "kernels/hip/wmma_rdna/kernel.h"', "namespace tiledmm::gpu {", "namespace {", *kernels, "}", "}"]
    few.write_text("\n".join([*lines, ""]))
    return lambda arch, dtype: (KERNELS, INSTANCE[dtype]) if arch in CHIPS else (few,)


@pytest.fixture(scope="module")
def compiled(amd_object, source_of):
    need_compiler()

    return functools.cache(lambda arch, dtype: code_of(amd_object, source_of, arch, dtype))


def code_of(amd_object, source_of, arch: str, dtype: str | None):
    """Of the kernels of a dtype, or of the launcher."""
    return load(amd_object(arch, *((LAUNCH,) if dtype is None else source_of(arch, dtype)))[0])


def multiply(
    compiled, arch, product, shape=SMALL, is_whole=True, splits=1, seed=None, code=None, blocks_y=None, traces=None
):
    """C by the kernel's machine code, as launch.cu starts it."""
    code = code or compiled(arch, product.dtype)
    layouts = f"ELb{int(product.a_close == 'k')}ELb{int(product.b_close == 'k')}E"
    kernel = code.find("9wmma_rdnaI", f"{MANGLED[product.dtype]}ELi{shape}ELb{int(is_whole)}EE{layouts}")
    tiles_m, tiles_n = (ceil(size / block) for size, block in zip((product.m, product.n), BLOCKS[shape], strict=True))
    chunk_k = product.problem.chunk_k
    split_k, partials = (chunk_k, np.full(splits * product.batch * product.m * product.n, np.nan, np.float32))
    address = product.memory.add("partials", partials, writable=True) if splits > 1 else 0
    work = struct.pack("<iiqqqQ", tiles_m, tiles_n, splits, split_k if splits > 1 else product.k, chunk_k, address)
    # Blocks with several items, but on gfx1201, whose waves go on without what they have loaded for lanes beyond C.
    blocks_y = blocks_y or (product.batch if arch == "gfx1201" else ceil(product.batch / 2))
    grid = (tiles_m * tiles_n * splits, blocks_y, 1)
    counts = run(kernel, grid, (THREADS[shape], 1, 1), product.args(work), product.memory, seed, traces=traces)
    if splits > 1:
        adder = compiled(arch, None).find("10add_chunksI", MANGLED[product.dtype], "Li128ELi16E")
        outputs = product.batch * product.m * product.n
        args = product.args(address, product.n, splits)
        run(adder, (ceil(outputs / 128), 1, 1), (128, 1, 1), args, product.memory, seed)
    return counts


# Product, and how it is computed. Each case has several things at once; k of one tile, of two, and of more, whole and
# not, since the main loop takes two.
CASES = {
    "large_kk": (dict(m=140, n=70, k=200, has_bias=True, activation="relu"), dict(shape=LARGE)),
    "large_mn": (dict(m=130, n=136, k=70, a_close="m", b_close="n", pads=(6, 2, 3)), dict(shape=LARGE)),
    "large_kn_batch": (dict(m=4, n=134, k=128, b_close="n", batch=2, c_close="m"), dict(shape=LARGE)),
    "small_mk_chunks": (dict(m=66, n=30, k=600, a_close="m", chunk_k=256, batch=2), {}),
    "small_kn_silu": (dict(m=30, n=70, k=34, b_close="n", has_bias=True, activation="silu", offset=2), {}),
    "small_split": (dict(m=33, n=65, k=700, chunk_k=256, has_bias=True, activation="gelu"), dict(splits=3)),
    "smallest_kk_chunks": (dict(m=70, n=70, k=300, chunk_k=256, has_bias=True), dict(shape=SMALLEST)),
    "smallest_mn_split": (
        dict(m=36, n=66, k=300, a_close="m", b_close="n", pads=(6, 2, 3), chunk_k=256),
        dict(shape=SMALLEST, splits=2),
    ),
    "one_row_of_any_stride": (dict(m=1, n=50, k=96, pads=(0, 0, 0)), {}),
    "gather_kk": (dict(m=70, n=45, k=75, pads=(1, 0, 3), offset=1, has_bias=True), dict(is_whole=False)),
    "gather_large_kn": (dict(m=130, n=40, k=75, b_close="n", pads=(1, 1, 3)), dict(shape=LARGE, is_whole=False)),
    "gather_mn_chunks": (
        dict(m=35, n=67, k=290, a_close="m", b_close="n", pads=(0, 2, 0), chunk_k=256, batch=2),
        dict(is_whole=False),
    ),
    "empty_sum": (dict(m=5, n=6, k=0, has_bias=True), {}),
}


# Every case on one chip, some of them on the other.
SOME = ("large_kk", "smallest_kk_chunks", "gather_kk", *(("small_mk_chunks", "small_kn_silu") if IS_WHOLE else ()))


@pytest.mark.takes_long
@pytest.mark.parametrize("arch, case", [("gfx1100", case) for case in CASES] + [("gfx1201", case) for case in SOME])
def test_values(arch, case, compiled):
    product, how = CASES[case]
    product = Product("bf16" if arch == "gfx1201" else "fp16", **product)
    multiply(compiled, arch, product, **how, seed=1)
    product.check()


@pytest.mark.parametrize("arch", CHIPS)
def test_no_row_s_bits_depend_on_m(arch, compiled):
    """Of products of 1 to 300 rows each row is as in that of 300, in all tiles, gathered ones among them: of those
    whose last tile has one row, half of them and one more, all but one, all. With TILEDMM_EVERY_M=1, of all; that takes
    half an hour. Rows of A lie in front of each other's, so that a row's place in its tile differs, too."""
    dtype, n, k = ("fp16", 45, 40) if arch == "gfx1100" else ("bf16", 30, 40)
    drawn = Product(dtype, 300, n, k)
    # Products that cancel each other: what is left over depends on the order of summation.
    halves = ((x[:, :, : k // 2], sign) for x, sign in ((drawn.a, 1), (drawn.b, -1)))
    a, b = (64 * torch.cat([half, sign * half.flip(2)], 2) for half, sign in halves)
    whole = Product(dtype, 300, n, k, a=a, b=b)
    multiply(compiled, arch, whole)
    whole.check()
    expected = whole.result()
    for shape, is_whole in ((LARGE, True), (SMALL, True), (SMALLEST, True), (LARGE, False), (SMALL, False)):
        block, pads = BLOCKS[shape][0], (2, 2, 2) if is_whole else (1, 1, 1)
        edges = (1, block // 2 + 1, block - 1, block, block + 1) if arch == "gfx1100" else (1, block + 1)
        for m in range(1, 301) if IS_EVERY_M else edges:
            part = Product(dtype, m, n, k, pads=pads, a=a[:, -m:], b=b)
            multiply(compiled, arch, part, shape=shape, is_whole=is_whole)
            assert torch.equal(part.result(), expected[:, -m:]), (m, shape, is_whole)


@pytest.mark.parametrize("arch", CHIPS)
def test_the_bits_of_chunks_depend_neither_on_m_nor_on_who_adds_them(arch, compiled):
    """A block one after the other, or a second kernel; k has a whole chunk and a part of one."""
    dtype, n, k = ("fp16", 45, 300) if arch == "gfx1100" else ("bf16", 30, 300)
    whole = Product(dtype, 40, n, k, chunk_k=256)
    multiply(compiled, arch, whole)
    for m, how in ((1, dict(splits=2)), (33, dict(shape=LARGE, splits=2)), (35, dict(shape=SMALLEST))):
        part = Product(dtype, m, n, k, chunk_k=256, a=whole.a[:, -m:], b=whole.b)
        multiply(compiled, arch, part, **how)
        assert torch.equal(part.result(), whole.result()[:, -m:]), (m, how)


# ---- What decides the speed


@pytest.mark.parametrize("arch", ARCHS)
def test_odd_rows_have_the_tiles_that_gather(arch):
    """Planned by the library's own code: the large tile where it fills the chip, and never the smallest."""
    for m, n, k, block in ((4095, 4095, 4095, "128x128"), (65, 65, 65, "64x64"), (33, 257, 75, "64x64")):
        found = explain(m, n, k, "fp16", device=f"hip:{arch}")
        config = next(one for one in found.candidates if one.algorithm == "wmma_rdna").config
        assert (config["block"], config["copies"]) == (block, "elements"), (m, n, k)


LOOPS = [((True, True), 0), ((True, False), 16), ((False, False), 32)]


@pytest.mark.parametrize(
    "arch, layouts, permutes", [(arch, *loop) for arch in ARCHS for loop in (LOOPS if arch in CHIPS else LOOPS[:1])]
)
def test_the_main_loop_is_short(arch, layouts, permutes, compiled):
    """For 32 instructions WMMA at most as many as Triton 3.9's matmul of this tile has; but for the permutes that turn
    operands, no vector arithmetic."""
    code = compiled(arch, DTYPE_OF[arch])
    a, b = (int(is_k_major) for is_k_major in layouts)
    kernel = code.find("9wmma_rdnaI", f"ELi{LARGE}ELb1EEELb{a}ELb{b}E")
    loops = [loop for loop in loops_of(kernel) if sum("wmma" in text for text in loop) == 64]
    counts = [sum(text.startswith("v_") and "wmma" not in text for text in loop) for loop in loops]
    loop = loops[counts.index(min(counts))]
    others = [text.split()[0] for text in loop if text.startswith("v_") and "wmma" not in text]
    assert set(others) <= {"v_perm_b32"} and len(others) == 2 * permutes
    assert len(loop) - 2 * permutes <= 2 * {"gfx1100": 134, "gfx1201": 124}[arch]
    assert sum(text.startswith("s_barrier") and "signal" not in text for text in loop) == 2


@pytest.mark.parametrize("arch", CHIPS)
def test_gathered_elements_are_on_their_way_together(arch, compiled):
    """Eight at a time, one wait for all of them; at most 21 instructions for each, or 24 on gfx1201, which waits for
    masks, too."""
    code = compiled(arch, DTYPE_OF[arch])
    kernels = [kernel for name, kernel in code.kernels.items() if "9wmma_rdnaI" in name and "ELb0EEELb" in name]
    assert len(kernels) == 8  # two tiles, four layouts
    for kernel in kernels:
        loops = [loop for loop in loops_of(kernel) if sum(text.startswith("ds_store_b16") for text in loop) == 8]
        assert len(loops) == 10  # of A and B: before the main loop, and in it in two copies of two stages
        for loop in loops:
            assert len(loop) <= {"gfx1100": 168, "gfx1201": 192}[arch]
            assert sum(bool(re.match(r"s_wait(cnt vmcnt\(0\)|_loadcnt 0x0)", text)) for text in loop) == 1


@pytest.mark.parametrize("arch", ARCHS)
def test_registers_suffice(arch, amd_object, source_of):
    report = amd_object(arch, *source_of(arch, DTYPE_OF[arch]))[1]
    num_kernels = 20 if arch in CHIPS else len(FEW)
    assert report.count("ScratchSize") == report.count("ScratchSize [bytes/lane]: 0") >= num_kernels
    assert max(int(count) for count in re.findall(r" VGPRs: (\d+)", report)) <= 236


def test_fragments_have_no_bank_conflicts(compiled, monkeypatch):
    """Eight lanes with 16 bytes each at a time, 32 banks (64 in a work group processor, which is easier)."""
    mark, accesses = SharedMemory.mark, []

    def recorded(self, places, agent, is_store, text="an access"):
        if not is_store and "b128" in text:
            accesses.append(places[:, 0].copy())
        return mark(self, places, agent, is_store, text)

    monkeypatch.setattr(SharedMemory, "mark", recorded)
    multiply(compiled, "gfx1100", Product("fp16", 60, 60, 128, a_close="m"))
    banks = np.stack(accesses)[:, :, None] // 4 % 32 + np.arange(4)
    banks = np.sort(banks.reshape(len(accesses), 4, 32), axis=2)
    assert len(accesses) >= 4 * 4 * 16 and (banks[:, :, 1:] != banks[:, :, :-1]).all()


# ---- Mutants


@pytest.mark.takes_long
@pytest.mark.parametrize("arch", ARCHS)
def test_missing_waits_and_barriers_are_found(arch, compiled):
    """Each of those that a block executes for two items, whole tiles and a last one among their k tiles. It may do
    without the waits between a wave's own stores to shared memory and its loads, which follow each other, and without
    one behind a barrier. Items are whole: gfx1201 skips, with what lanes beyond C would do, the wait for what they have
    loaded (and do not use). CI has every other one on gfx1100, and every fourth from the second on gfx1201; with
    TILEDMM_DEVICE_CODE=1, all."""
    dtype = DTYPE_OF[arch]
    kernel = compiled(arch, dtype).find("9wmma_rdnaI", f"{MANGLED[dtype]}ELi{SMALLEST}ELb1EEELb1ELb1E")
    product, how, traces = dict(m=32, n=64, k=136, batch=2), dict(shape=SMALLEST, blocks_y=1), []
    right = Product(dtype, **product)
    multiply(compiled, arch, right, **how, traces=traces)
    right.check()
    executed = {place for trace in traces for place, _ in trace}
    pattern = re.compile(r"s_wait(cnt (?!depctr)|_\w+cnt)|s_barrier(_wait)?\b")
    places = [place for place in removable(kernel.lines, pattern) if place in executed]
    assert sum("barrier" in kernel.lines[place][1] for place in places) == 6 and len(places) >= 60
    texts, uses = [text for _, text in kernel.lines], r"ds_|s_barrier"
    for place in places if IS_WHOLE else places[::2] if arch in CHIPS else places[1::4]:
        code = without(kernel, place)
        if not is_wrong(multiply, compiled, arch, (dtype,), product, dict(how, code=code)):
            before = next(text for text in reversed(texts[:place]) if re.match(uses, text))
            after = next(text for text in texts[place + 1 :] if re.match(uses, text))
            is_own = before.startswith("ds_store") and after.startswith("ds_load_b32")
            is_of_shared = texts[place] in ("s_waitcnt lgkmcnt(0)", "s_wait_dscnt 0x0")
            assert is_of_shared and (is_own or before.startswith("s_barrier")), texts[place]


WHOLE_KM = dict(m=70, n=50, k=204, b_close="n", pads=(6, 2, 3))
MUTANTS = {
    "the swizzle of odd fragments": ("tile.h", "at[step ^ (idx & 1)]", "at[step]", WHOLE_KM),
    "a tile's k": ("tile.h", "next += kWmmaBlockK *", "next += (kWmmaBlockK - 2) *", WHOLE_KM),
    "the end of k": ("tile.h", "left_k < kWmmaBlockK ? left_k :", "false ? left_k :", WHOLE_KM),
    "what lies beyond k": ("tile.h", "< inside_k ? word : 0", "< inside_k ? word : word", WHOLE_KM),
    "the rows' end": ("tile.h", "(left_mn - 1) * operand.stride_mn", "left_mn * operand.stride_mn", WHOLE_KM),
    "a chunk's total": (
        "kernel.h",
        "total[i][j][e] + acc[i][j][e]",
        "acc[i][j][e]",
        dict(WHOLE_KM, k=600, chunk_k=256),
    ),
    "the rounds of gathered rows": (
        "tile.h",
        "round * kRowBytes + swizzled",
        "swizzled",
        dict(WHOLE_KM, pads=(1, 2, 3)),
    ),
    "the last group of tiles": (
        "kernel.h",
        "min_of(work.tiles_m - int64_t(group) * kGroup, kGroup)",
        "kGroup",
        dict(WHOLE_KM, n=70),
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_found(mutant, compiled, tmp_path):
    file, old, new, product = MUTANTS[mutant]
    folder = "kernels/hip/wmma_rdna/"
    is_whole = "gathered" not in mutant
    kernel = f"wmma_rdna<WmmaConfig<Half, 1, {str(is_whole).lower()}>, true, false>"
    code = load(compile_mutant(tmp_path, "gfx1100", folder + "kernel.h", kernel, folder + file, old, new))

    assert is_wrong(multiply, compiled, "gfx1100", ("fp16",), product, dict(code=code, is_whole=is_whole))

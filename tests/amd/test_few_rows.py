"""few_rows: its machine code as clang compiles it for AMD's chips, run by the interpreter: for gfx1100, gfx942
and, in fp64, gfx1201, with TILEDMM_DEVICE_CODE=1 for all. Its bits are those of the rungs with tiles, whose order of
summation it follows.

Planted bugs that these tests caught: each barrier removed, one at a time; a step that takes the next one's few rows;
garbage beyond k; columns that change places; a part of k that is read twice; without matrix instructions, a last odd
row that is left out, and k from its end on; a warp's number that the compiler takes for each lane's own.
"""

import functools
import re
import struct
from collections import Counter
from math import ceil

import numpy as np
import pytest
import test_mfma
import test_rdna
import torch
from amd_interpreter.instructions import fma_f32, fma_f64
from amd_interpreter.interpreter import load, run
from compilers import IS_WHOLE
from products import DTYPES, Product, compile_mutant, gpu_objects, is_wrong, need_compiler, removable, without

FOLDER = gpu_objects.CSRC / "kernels/hip/few_rows"
MANGLED = {"fp16": "4Half", "bf16": "8BFloat16", "fp32": "f", "fp64": "d"}
WARPS = {"gfx1100": 8, "gfx1201": 8, "gfx90a": 4, "gfx942": 4, "gfx950": 4}


@pytest.fixture(scope="module")
def compiled(amd_object):
    need_compiler()

    @functools.cache
    def code_of(arch: str, dtype: str | None):
        """Of the kernels of a dtype, or of the launcher."""
        source = ("launch.cu",) if dtype is None else ("instances.cu", list(DTYPES).index(dtype))
        return load(amd_object(arch, FOLDER / source[0], *source[1:])[0])

    return code_of


def multiply(
    compiled,
    arch,
    product,
    are_columns_few=False,
    is_whole=True,
    splits=1,
    seed=None,
    code=None,
    blocks_y=None,
    traces=None,
):
    """C by the kernel's machine code, as launch.cu starts it."""
    code = code or compiled(arch, product.dtype)
    is_k_major = (product.a_close if are_columns_few else product.b_close) == "k"
    stream = 2 if not is_whole else 0 if is_k_major else 1
    bits = int(are_columns_few)
    kernel = code.find("8few_rowsI", f"9FewConfigI{mangled(product.dtype)}LNS1_6StreamE{stream}ELb{bits}EE")
    size = DTYPES[product.dtype].itemsize
    tile = 16 * (8 // size if stream == 1 else 1) * WARPS[arch]
    tiles = ceil((product.m if are_columns_few else product.n) / tile)
    chunk_k, outputs = product.problem.chunk_k, product.batch * product.m * product.n
    partials = np.full(splits * outputs, np.nan, np.float64 if size == 8 else np.float32)
    address = product.memory.add("partials", partials, writable=True) if splits > 1 else 0
    work = struct.pack("<qqqQ", tiles, splits, chunk_k if splits > 1 else product.k, address)
    # Blocks with several items, but on gfx1201, whose waves go on without what they have loaded for lanes beyond C.
    blocks_y = blocks_y or (product.batch if arch == "gfx1201" else ceil(product.batch / 2))
    grid = (tiles * splits, blocks_y, 1)
    run(kernel, grid, (256, 1, 1), product.args(work), product.memory, seed, traces=traces)
    if splits > 1:
        adder = compiled(arch, None).find(f"10add_chunksI{mangled(product.dtype)}Li128ELi16E")
        args = product.args(address, product.n, splits)
        run(adder, (ceil(outputs / 128), 1, 1), (128, 1, 1), args, product.memory, seed)


def mangled(dtype: str) -> str:
    return f"NS_{MANGLED[dtype]}E" if dtype in ("fp16", "bf16") else MANGLED[dtype]


CASES = {
    "kk": (dict(m=5, n=150, k=300, has_bias=True, activation="relu"), {}),
    "kk_whole": (dict(m=16, n=40, k=512, offset=2), {}),
    "kn_batch": (dict(m=3, n=134, k=290, b_close="n", batch=2, c_close="m"), {}),
    "mk_short": (dict(m=9, n=18, k=6, a_close="m"), {}),
    "columns_kk": (dict(m=140, n=7, k=530, has_bias=True, activation="silu"), dict(are_columns_few=True)),
    "columns_mn": (
        dict(m=70, n=16, k=610, a_close="m", b_close="n", chunk_k=256),
        dict(are_columns_few=True, splits=3),
    ),
    "split": (dict(m=1, n=130, k=700, chunk_k=256, has_bias=True, pads=(0, 2, 0)), dict(splits=3)),
    "elements": (dict(m=6, n=35, k=275, pads=(1, 0, 3), offset=1, has_bias=True), dict(is_whole=False)),
    "elements_columns": (
        dict(m=33, n=5, k=55, a_close="m", b_close="n", batch=2),
        dict(is_whole=False, are_columns_few=True),
    ),
    "empty_sum": (dict(m=2, n=6, k=0, has_bias=True), {}),
}


# Fixtures: the code of mfma and its host side.
code_of, launcher = test_mfma.code_of, test_mfma.launcher

# By multiply-adds, on RDNA.
CHAINS = [("gfx1100", "fp32", case) for case in ("kk", "columns_mn", "elements_columns")]
CHAINS += [("gfx1201", "fp64", case) for case in ("kn_batch", "mk_short")]

CHIPS = {"gfx1100": "fp16", "gfx1201": "bf16", "gfx942": "fp64", "gfx950": "fp16", "gfx90a": "fp32"}


# Every case on one chip of each family, some of them, on request, on the others.
ALL = [(arch, case) for arch in ("gfx1100", "gfx942") for case in CASES]
SOME = [(arch, case) for arch in ("gfx1201", "gfx950", "gfx90a") for case in ("kk", "kn_batch") if IS_WHOLE]


@pytest.mark.parametrize("arch, dtype, case", [(arch, CHIPS[arch], case) for arch, case in ALL + SOME] + CHAINS)
def test_values(arch, dtype, case, compiled):
    product, how = CASES[case]
    product = dict(product)
    if dtype == "fp64" and product.get("activation") == "silu":
        product["activation"] = "relu"  # exp in fp64 is in ROCm's device library
    if (arch, dtype, case) in CHAINS:  # there are no chunks
        product.pop("chunk_k", None)
        how = {key: value for key, value in how.items() if key != "splits"}
    product = Product(dtype, **product)
    multiply(compiled, arch, product, **how, seed=1)
    product.check()


@pytest.mark.parametrize("arch, dtype", [("gfx1100", "fp32"), ("gfx1201", "fp64")])
def test_multiply_adds_are_one_chain_in_the_order_of_k(arch, dtype, compiled):
    """The bits of rungs 01 to 04 and of simt_rdna, whatever the number of rows, few columns, layout and way of
    loading."""
    n, k, columns = 5, 83, dict(are_columns_few=True)
    largest = Product(dtype, 16, n, k)
    a, b = largest.a, largest.b
    expected, fma = (np.zeros((16, n), np.float32), fma_f32) if dtype == "fp32" else (np.zeros((16, n)), fma_f64)
    for i in range(k):
        expected = fma(a[0, :, i, None].numpy(), b[0, None, :, i].numpy(), expected)
    for m, layouts, how in ((16, {}, {}), (16, {}, columns), (3, {}, {}), (1, dict(b_close="n"), {}),
                            (7, dict(a_close="m"), columns), (2, {}, dict(is_whole=False))):  # fmt: skip
        product = Product(dtype, m, n, k, a=a[:, -m:], b=b, **layouts)
        multiply(compiled, arch, product, **how)
        assert np.array_equal(product.result()[0].numpy(), expected[-m:]), (m, layouts, how)


def test_the_bits_are_those_of_tiles(compiled, amd_object):
    """wmma_rdna's, with few rows and with few columns, chunks among them. In both the large operand keeps its role."""
    tiles = functools.cache(lambda arch, dtype: load(amd_object(arch, test_rdna.KERNELS, test_rdna.INSTANCE[dtype])[0]))
    for m, n, k, chunk_k, how in ((16, 50, 330, 256, {}), (40, 8, 96, 0, dict(are_columns_few=True))):
        splits = ceil(k / chunk_k) if chunk_k else 1
        few = Product("fp16", m, n, k, chunk_k=chunk_k)
        multiply(compiled, "gfx1100", few, splits=splits, **how)
        whole = Product("fp16", m, n, k, chunk_k=chunk_k)
        test_rdna.multiply(tiles, "gfx1100", whole)
        assert torch.equal(few.result(), whole.result())
        one_row = Product("fp16", 1, n, k, b_close="n", chunk_k=chunk_k, a=whole.a[:, -1:], b=whole.b)
        multiply(compiled, "gfx1100", one_row, splits=splits)
        assert torch.equal(one_row.result(), whole.result()[:, -1:])


@pytest.mark.parametrize("arch, dtype", [("gfx1100", "fp16"), ("gfx1100", "fp32")])
def test_a_row_s_bits_do_not_depend_on_m(arch, dtype, compiled):
    """m of 1 to 16, all that it serves; others are the tiles' (the tests above). Rows lie in front of each other's."""
    n, k = 20, 40
    largest = Product(dtype, 16, n, k)
    multiply(compiled, arch, largest)
    expected = largest.result()[0]
    assert not expected.isnan().any()
    for m in range(1, 16):
        product = Product(dtype, m, n, k, a=largest.a[:, -m:], b=largest.b)
        multiply(compiled, arch, product)
        assert torch.equal(product.result()[0], expected[-m:]), m


def test_the_bits_are_those_of_mfma(compiled, code_of, launcher):
    """The same on CDNA. What the interpreter's matrix instruction adds at one time is 4 of k."""
    torch.manual_seed(0)
    tile = test_mfma.Product(9, 50, 75, "fp64", bias=None, activation="none")
    tile.run(code_of("fp64"), launcher)
    few = Product("fp64", 9, 50, 75, a=tile.a.clone(), b=tile.b.clone())
    multiply(compiled, "gfx942", few)
    assert torch.equal(few.result(), tile.out[:, :, :50])


# ---- What decides the speed

# Chip, dtype, which dimension of B is contiguous, elements of a part of k; loads of 8 or 16 bytes of a part by a warp,
# and the most other instructions.
PARTS = [
    ("gfx1100", "fp16", "k", 256, 32, 220),
    ("gfx1100", "fp16", "n", 256, 256, 1110),
    ("gfx942", "fp16", "k", 512, 16, 280),
    ("gfx942", "fp16", "n", 512, 128, 940),
]


@pytest.mark.parametrize("arch, dtype, b_close, part, loads, others", PARTS)
def test_the_main_loop_is_short(arch, dtype, b_close, part, loads, others, compiled):
    """What a warp executes for one more part of k: each load once (it is in a loop over the lanes where the compiler
    takes the warp's rows for each lane's own), and no scalar register comes out of a lane."""
    executed = []
    for parts in (3, 4):
        traces = []
        multiply(compiled, arch, Product(dtype, 1, 16, parts * part, b_close=b_close), traces=traces)
        stream = f"StreamE{int(b_close == 'n')}ELb0E"
        kernel = compiled(arch, dtype).find("8few_rowsI", stream)
        executed.append(Counter(kernel.lines[place][1].split()[0] for place, _ in traces[0]))
    more = executed[1] - executed[0]
    found = sum(count for name, count in more.items() if name.startswith("buffer_load"))
    assert found == loads
    assert more.total() - found <= others, more
    assert not {name for name in more if re.match("v_(read|write)", name)}


# ---- Mutants


def test_missing_barriers_are_found(compiled):
    product = dict(m=5, n=20, k=600, batch=2)
    kernel = compiled("gfx1100", "fp16").find("8few_rowsI", "StreamE0ELb0E")
    places = removable(kernel.lines, re.compile(r"s_barrier\b"))
    assert 4 <= len(places) <= 5
    assert not is_wrong(multiply, compiled, "gfx1100", ("fp16",), product, dict(blocks_y=1))
    for place in places:
        how = dict(code=without(kernel, place), blocks_y=1)
        assert is_wrong(multiply, compiled, "gfx1100", ("fp16",), product, how), kernel.lines[place]


MUTANTS = {
    "the few rows' step": ("n", "from + step * Step::kK", "from + (step ^ 1) * Step::kK"),
    "what lies beyond k": ("k", "if (w * 4 / kSize >= left_k)", "if (false)"),
    "the columns' places": ("n", "(Config::kIsStreamFirst ? first : second) * kFrags + i", "second + i * 16"),
    "the next part of k": ("k", "next_few += Config::kPartK * few.stride_k;", ""),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_found(mutant, compiled, tmp_path):
    b_close, old, new = MUTANTS[mutant]
    header = "kernels/hip/few_rows/kernel.h"
    kernel = f"few_rows<FewConfig<Half, Stream::{'k' if b_close == 'k' else 'mn'}_major, false>>"
    code = load(compile_mutant(tmp_path, "gfx1100", header, kernel, header, old, new))
    product = dict(m=5, n=70, k=300, b_close=b_close)
    assert is_wrong(multiply, compiled, "gfx1100", ("fp16",), product, dict(code=code))

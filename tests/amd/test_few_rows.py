"""few_rows as clang compiles it for AMD's chips, run by the interpreter."""

import functools
import struct
from math import ceil

import numpy as np
import pytest
from interpreter import load, run
from products import DTYPES, Product, gpu_objects, need_compiler

FOLDER = gpu_objects.CSRC / "kernels/hip/16_few_rows"
MANGLED = {"fp16": "4Half", "bf16": "8BFloat16", "fp32": "f", "fp64": "d"}
WARPS = {"gfx1100": 8, "gfx1201": 8, "gfx90a": 4, "gfx942": 4, "gfx950": 4}


@pytest.fixture(scope="module")
def compiled(amd_object):
    need_compiler()

    @functools.cache
    def code_of(arch: str, name: str):
        return load(amd_object(arch, FOLDER / name)[0])

    return code_of


def multiply(compiled, arch, product, are_columns_few=False, is_whole=True, splits=1, seed=None):
    """C by the kernel's machine code, as launch_few.cu starts it."""
    code = compiled(arch, "few_" + product.dtype.replace("fp", "f") + ".cu")
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
    grid = (tiles * splits, product.batch, 1)
    run(kernel, grid, (256, 1, 1), product.args(work), product.memory, seed)
    if splits > 1:
        adder = compiled(arch, "launch_few.cu").find(f"10add_chunksI{mangled(product.dtype)}Li128ELi16E")
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
    "elements": (dict(m=6, n=35, k=75, pads=(1, 0, 3), offset=1, has_bias=True), dict(is_whole=False)),
    "elements_columns": (
        dict(m=33, n=5, k=55, a_close="m", b_close="n", batch=2),
        dict(is_whole=False, are_columns_few=True),
    ),
    "empty_sum": (dict(m=2, n=6, k=0, has_bias=True), {}),
}


CHIPS = {"gfx1100": "fp16", "gfx1201": "bf16", "gfx942": "fp64", "gfx950": "fp16", "gfx90a": "fp32"}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("arch", CHIPS)
def test_values(arch, case, compiled):
    product, how = CASES[case]
    product = dict(product)
    if CHIPS[arch] == "fp64" and product.get("activation") == "silu":
        product["activation"] = "relu"  # exp in fp64 is in ROCm's device library
    product = Product(CHIPS[arch], **product)
    multiply(compiled, arch, product, **how, seed=1)
    product.check()

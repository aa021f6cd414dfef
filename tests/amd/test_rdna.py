"""wmma_rdna as clang compiles it for gfx1100 and gfx1201, run by the interpreter."""

import functools
import os
import re
import shutil
import struct
import sys
from math import ceil
from pathlib import Path

import numpy as np
import pytest
import torch
from interpreter import Fault, load, run
from products import Product

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
import gpu_objects  # noqa: E402

FOLDER = gpu_objects.CSRC / "kernels/hip/13_wmma_rdna"
ARCHS = ("gfx1100", "gfx1201")
LARGE, SMALL = 0, 1  # shapes, as in plan.h
BLOCKS = {LARGE: 128, SMALL: 64}
MANGLED = {"fp16": "4Half", "bf16": "8BFloat16"}


@pytest.fixture(scope="module")
def compiled(amd_object):
    if not shutil.which("clang++-22"):  # the interpreter knows the instructions that this one takes
        assert os.environ.get("CI") != "true", "CI needs clang-22, lld-22 and llvm-22"
        pytest.skip("there is no clang++-22")

    @functools.cache
    def code_of(arch: str, name: str):
        return load(amd_object(arch, FOLDER / name)[0])

    return code_of


def multiply(compiled, arch, product, shape=SMALL, is_whole=True, splits=1, seed=None, edit=None):
    """C by the kernel's machine code, as launch_wmma.cu starts it."""
    code = compiled(arch, "wmma_f16.cu" if product.dtype == "fp16" else "wmma_bf16.cu")
    layouts = f"ELb{int(product.a_close == 'k')}ELb{int(product.b_close == 'k')}E"
    kernel = code.find("9wmma_rdnaI", f"{MANGLED[product.dtype]}ELi{shape}ELb{int(is_whole)}EE{layouts}")
    tiles_m, tiles_n = (ceil(size / BLOCKS[shape]) for size in (product.m, product.n))
    chunk_k = product.problem.chunk_k
    split_k, partials = (chunk_k, np.full(splits * product.batch * product.m * product.n, np.nan, np.float32))
    address = product.memory.add("partials", partials, writable=True) if splits > 1 else 0
    work = struct.pack("<iiqqqQ", tiles_m, tiles_n, splits, split_k if splits > 1 else product.k, chunk_k, address)
    grid = (tiles_m * tiles_n * splits, product.batch, 1)
    counts = run(kernel, grid, (128, 1, 1), product.args(work), product.memory, seed)
    if splits > 1:
        adder = compiled(arch, "launch_wmma.cu").find("10add_chunksI", MANGLED[product.dtype], "Li128ELi16E")
        outputs = product.batch * product.m * product.n
        args = product.args(address, product.n, splits)
        run(adder, (ceil(outputs / 128), 1, 1), (128, 1, 1), args, product.memory, seed)
    return counts


# Product, and how it is computed. Each case has several things at once; k of one tile, of two, and of more, whole and
# not, since the main loop takes two.
CASES = {
    "large_kk": (dict(m=150, n=130, k=200, has_bias=True, activation="relu"), dict(shape=LARGE)),
    "large_mn": (dict(m=130, n=136, k=70, a_close="m", b_close="n", pads=(6, 2, 3)), dict(shape=LARGE)),
    "large_kn_batch": (dict(m=4, n=134, k=128, b_close="n", batch=2, c_close="m"), dict(shape=LARGE)),
    "small_mk_chunks": (dict(m=66, n=30, k=600, a_close="m", chunk_k=256, batch=2), {}),
    "small_kn_silu": (dict(m=30, n=70, k=34, b_close="n", has_bias=True, activation="silu", offset=2), {}),
    "small_split": (dict(m=33, n=65, k=700, chunk_k=256, has_bias=True, activation="gelu"), dict(splits=3)),
    "one_row_of_any_stride": (dict(m=1, n=50, k=96, pads=(0, 0, 0)), {}),
    "gather_kk": (dict(m=70, n=45, k=75, pads=(1, 0, 3), offset=1, has_bias=True), dict(is_whole=False)),
    "gather_mn_chunks": (
        dict(m=35, n=67, k=290, a_close="m", b_close="n", pads=(0, 2, 0), chunk_k=256, batch=2),
        dict(is_whole=False),
    ),
    "empty_sum": (dict(m=5, n=6, k=0, has_bias=True), {}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("arch", ARCHS)
def test_values(arch, case, compiled):
    product, how = CASES[case]
    is_bf16 = (arch == "gfx1201") == (len(case) % 2 == 0)
    product = Product("bf16" if is_bf16 else "fp16", **product)
    multiply(compiled, arch, product, **how, seed=1)
    product.check()

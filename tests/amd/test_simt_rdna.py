"""simt_rdna: its machine code as clang compiles it for gfx1100, run by the interpreter. For gfx1201, which has
the same source, with TILEDMM_DEVICE_CODE=1.

Planted bugs that these tests caught: each barrier, one at a time.
"""

import functools
import re
from math import ceil

import pytest
import torch
from amd_interpreter.interpreter import load, run
from compilers import IS_WHOLE
from products import Product, gpu_objects, is_wrong, loops_of, need_compiler, removable, without

SOURCE = gpu_objects.CSRC / "kernels/hip/simt_rdna/simt_rdna.cu"
ARCHS = ("gfx1100", "gfx1201") if IS_WHOLE else ("gfx1100",)
LARGE, SMALL = 0, 1  # shapes, as in plan.h
BLOCKS = {LARGE: 128, SMALL: 64}


@pytest.fixture(scope="module")
def compiled(amd_object):
    need_compiler()
    return functools.cache(lambda arch: load(amd_object(arch, SOURCE)[0]))


def kernel_of(code, product, shape: int, is_whole: bool):
    layouts = f"ELb{int(product.a_close == 'k')}ELb{int(product.b_close == 'k')}E"
    return code.find("14SimtRdnaConfig", f"ILi{shape}ELb{int(is_whole)}EE{layouts}")


def multiply(compiled, arch, product, shape=SMALL, is_whole=True, seed=None, code=None, blocks_y=None):
    """C by the kernel's machine code, as its launcher starts it."""
    kernel = kernel_of(code or compiled(arch), product, shape, is_whole)
    tiles = ceil(product.m / BLOCKS[shape]) * ceil(product.n / BLOCKS[shape])
    run(kernel, (tiles, blocks_y or ceil(product.batch / 2), 1), (128, 1, 1), product.args(), product.memory, seed)


CASES = {
    "large_kk": (dict(m=100, n=130, k=43, has_bias=True, activation="relu", pads=(1, 2, 3)), dict(shape=LARGE)),
    "large_mn": (dict(m=130, n=135, k=20, a_close="m", b_close="n"), dict(shape=LARGE)),
    "small_kn_batch": (dict(m=5, n=67, k=24, b_close="n", batch=3, c_close="m", offset=1), {}),
    "small_mk": (dict(m=66, n=30, k=17, a_close="m", has_bias=True, activation="silu"), {}),
    "elements": (dict(m=70, n=45, k=19, b_close="n", pads=(1, 0, 3)), dict(is_whole=False)),
    "empty_sum": (dict(m=5, n=6, k=0, has_bias=True), {}),
}


@pytest.mark.takes_long
@pytest.mark.parametrize(
    "arch, case", [(ARCHS[0], case) for case in CASES] + [(arch, "large_kk") for arch in ARCHS[1:]]
)
def test_values(arch, case, compiled):
    product, how = CASES[case]
    product = Product("fp32", **product)
    multiply(compiled, arch, product, **how, seed=1)
    product.check()


def test_the_sum_is_one_chain_in_the_order_of_k(compiled):
    """The same bits in every tile, and those of fused multiply-adds one after the other: a product of two floats is
    exact in float64, and a sum that is rounded there before it is rounded to fp32 differs once in 2^29."""
    whole = Product("fp32", 70, 40, 45)
    acc = torch.zeros(70, 40)
    for p in range(45):
        acc = (acc.double() + whole.a[0, :, p : p + 1].double() * whole.b[0, :, p].double()).float()
    for m, how in ((70, dict(shape=LARGE)), (1, {}), (67, {}), (3, dict(is_whole=False))):
        part = Product("fp32", m, 40, 45, a=whole.a[:, -m:], b=whole.b)
        multiply(compiled, "gfx1100", part, **how)
        assert torch.equal(part.result()[0], acc[-m:]), (m, how)


@pytest.mark.parametrize("arch", ARCHS)
def test_the_main_loop_is_multiply_adds_in_pairs(arch, compiled, amd_object):
    for a_close in "km":
        kernel = kernel_of(compiled(arch), Product("fp32", 1, 1, 1, a_close=a_close), LARGE, True)
        loops = [loop for loop in loops_of(kernel) if sum("v_dual_fmac_f32" in text for text in loop) >= 1000]
        loop = min(loops, key=len)
        vector = [text for text in loop if text.startswith("v_")]
        assert len(vector) == 1024 and all(text.count("v_dual_fmac_f32") == 2 for text in vector)
        assert len(loop) <= 1230
    report = amd_object(arch, SOURCE)[1]
    assert report.count("ScratchSize") == report.count("ScratchSize [bytes/lane]: 0") == 12
    assert max(int(count) for count in re.findall(r" VGPRs: (\d+)", report)) <= 236


def test_missing_barriers_are_found(compiled):
    product = dict(m=40, n=40, k=43, batch=2)
    kernel = kernel_of(compiled("gfx1100"), Product("fp32", **product), SMALL, True)
    places = removable(kernel.lines, re.compile(r"s_barrier\b"))
    assert 6 <= len(places) <= 8
    assert not is_wrong(multiply, compiled, "gfx1100", ("fp32",), product, dict(blocks_y=1))
    for place in places:
        code = without(kernel, place)
        how = dict(code=code, blocks_y=1)
        assert is_wrong(multiply, compiled, "gfx1100", ("fp32",), product, how), kernel.lines[place]

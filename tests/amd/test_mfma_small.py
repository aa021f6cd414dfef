"""Rung 12's tile of 32, whose block is one warp, and odd rows in that of 64: their machine code, run by the interpreter
as in test_mfma.py.

Planted bugs that these tests caught: steps between a thread's chunks that are those of a block of two warps; odd rows
that only one tile takes; a smallest tile that is never chosen.
"""

import pytest
import test_mfma
import torch
from amd_interpreter.interpreter import load
from test_mfma import Product, as_array

from torch_tiledmm.dispatch import explain

launcher = test_mfma.launcher
SMALLEST, SMALL, LARGE = 3, 2, 1  # shapes, as in plan.h


@pytest.fixture(scope="module")
def code_of(amd_object, launcher, tmp_path_factory):
    def compiled(arch: str, dtype: str):
        if (arch, dtype) in test_mfma.ALL:
            return load(amd_object(arch, test_mfma.INSTANCES, test_mfma.DTYPE_NUMBERS[dtype])[0])
        source = tmp_path_factory.mktemp("small") / f"small_mfma_{dtype}.cu"
        source.write_text(test_mfma.instances(dtype, [(SMALLEST, layouts) for layouts in ("kk", "km", "mm")]))
        return load(amd_object(arch, source)[0])

    return compiled


CASES = [
    ("gfx942", "fp16", SMALLEST, dict(m=70, n=45, k=200, layouts="mk", bias="m", activation="silu")),
    ("gfx942", "fp16", SMALLEST, dict(m=33, n=30, k=70, layouts="ss", batch=2)),
    ("gfx942", "fp64", SMALLEST, dict(m=35, n=65, k=40, layouts="mm", pads=(2, 4))),
    ("gfx950", "fp16", SMALLEST, dict(m=70, n=46, k=200, layouts="mm")),
    ("gfx950", "fp16", SMALLEST, dict(m=33, n=70, k=140, layouts="km")),
    *((arch, "fp32", SMALLEST, dict(m=33, n=70, k=75, layouts="km", pads=(4, 4))) for arch in test_mfma.ON_REQUEST),
    ("gfx942", "fp16", SMALL, dict(m=70, n=45, k=200, layouts="km", pads=(3, 8), skipped=(2, 0))),
    ("gfx942", "fp16", SMALLEST, dict(m=67, n=65, k=70, layouts="mm", pads=(0, 2))),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_products_are_right(number, code_of, launcher):
    arch, dtype, shape, case = CASES[number]
    product = Product(dtype=dtype, **case)
    product.run(code_of(arch, dtype), launcher, shape, seed=number)
    product.check()


def test_the_bits_are_those_of_other_tiles(code_of, launcher):
    """Chunks one after the other and side by side among them."""
    code, outs = code_of("gfx942", "fp16"), []
    for shape, splits in ((SMALLEST, False), (SMALLEST, True), (LARGE, True)):
        product = Product(40, 35, 520, layouts="km", activation="none")
        product.run(code, launcher, shape, 256, splits)
        outs.append(as_array(product.out).copy())
    assert not torch.from_numpy(outs[0][:, :, :35]).isnan().any()
    assert (outs[0][:, :, :35] == outs[1][:, :, :35]).all() and (outs[0][:, :, :35] == outs[2][:, :, :35]).all()


def test_small_products_take_small_tiles():
    """Where larger ones would leave most CUs without work. Odd rows have all but the largest."""

    def block_of(m, n, k, layout="NT"):
        candidates = explain(m, n, k, "fp16", layout=layout, device="hip:gfx942").candidates
        return next(one.config["block"] for one in candidates if one.algorithm == "mfma")

    blocks = [block_of(size, size, size) for size in (128, 512, 2048, 8192)]
    assert blocks == ["32x32", "32x32", "128x128", "256x256"]
    assert block_of(257, 257, 257) == "32x32" and block_of(4095, 4095, 4095) == "128x128"

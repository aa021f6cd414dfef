"""Rung 12 where it sums A's rows beside C: its machine code, run by the interpreter as in test_mfma.py.

The sums are compared with the reference's bounds, and, bit by bit, with a column of C whose B is ones.

Planted bugs that these tests caught, the first three as mutants below: fragments that no warp sums; the sums of a chunk
that are forgotten; rows beyond A's that are stored. And by hand: chunks of k whose sums are all in one place; sums that
the blocks of the second column of tiles store instead.
"""

import ctypes
import functools

import numpy as np
import pytest
import test_mfma
import torch
from count import resources
from interpreter import Fault, load
from products import compile_mutant
from test_mfma import Product, as_array

from torch_tiledmm.testing.reference import assert_close, expect_linear

launcher = test_mfma.launcher


@pytest.fixture(scope="module")
def code_of(amd_object, launcher, tmp_path_factory):
    @functools.cache
    def compiled(arch: str, dtype: str):
        kernels = test_mfma.instances(dtype, [(shape, "mm") for shape in range(4)], sums_rows=True)
        element = test_mfma.ELEMENTS[dtype]
        add = f"template __global__ void add_chunks<{element}, 128, 16>"
        add += f"(const Acc<{element}>*, int64_t, int64_t, FoldedProblem);"
        source = tmp_path_factory.mktemp("sums") / f"sums_mfma_{dtype}.cu"
        source.write_text(kernels.replace("\n}\n}", f"\n{add}\n}}\n}}"))
        return load(amd_object(arch, source)[0])

    return compiled


class WeightGrad(Product):
    """C = A B and the sums of A's rows; the first column of B is ones."""

    def __init__(self, m, n, k, dtype="fp16", **more):
        super().__init__(m, n, k, dtype, "mm", bias=None, activation="none", **more)
        self.b[0, 0] = 1
        self.row_sums = torch.full((m,), torch.nan, dtype=self.out.dtype)
        self.problem.gemm.row_sums = self.memory.add("row sums", as_array(self.row_sums), writable=True)

    def check(self):
        super().check()
        ones = torch.ones(1, self.k, dtype=self.a.dtype)
        assert_close(self.row_sums[:, None], expect_linear(self.a[0], ones, None, "none"))
        assert torch.equal(self.row_sums.view(torch.int16), self.out[0, :, 0].view(torch.int16))


# Chip, dtype, tile, sizes, and how: chunks, whether blocks of their own have them.
CASES = [
    ("gfx942", "fp16", 0, dict(m=134, n=262, k=200), {}),
    ("gfx942", "fp16", 0, dict(m=134, n=70, k=300, pads=(6, 2)), dict(chunk_k=128, splits=True)),
    ("gfx942", "fp16", 1, dict(m=134, n=130, k=300, pads=(2, 4), skipped=(2, 6)), dict(chunk_k=128)),
    ("gfx942", "fp16", 2, dict(m=70, n=70, k=300), dict(chunk_k=128)),
    ("gfx942", "fp16", 2, dict(m=71, n=45, k=128, pads=(1, 3)), {}),
    ("gfx942", "fp16", 3, dict(m=70, n=34, k=300), dict(chunk_k=128, splits=True)),
    ("gfx942", "fp16", 2, dict(m=5, n=3, k=0, pads=(0, 0)), {}),
    ("gfx950", "bf16", 0, dict(m=268, n=70, k=200), {}),
    ("gfx950", "bf16", 1, dict(m=134, n=130, k=390), dict(chunk_k=128)),
    ("gfx950", "bf16", 2, dict(m=70, n=70, k=200), {}),
]


@pytest.mark.parametrize(
    "arch, dtype, shape, sizes, how", CASES, ids=[f"{a}-{d}-{s}-{c}{h}" for a, d, s, c, h in CASES]
)
def test_rows_are_summed(arch, dtype, shape, sizes, how, code_of, launcher):
    product = WeightGrad(dtype=dtype, **sizes)
    product.run(code_of(arch, dtype), launcher, shape, seed=shape, **how)
    product.check()


def test_bits_do_not_depend_on_the_tile_or_on_m(code_of, launcher):
    outs, values = [], torch.rand(1, 134, 300, dtype=torch.float64) * 2 - 1
    for m, shape, splits in ((134, 0, True), (70, 1, False), (70, 2, False), (70, 2, True), (70, 3, False)):
        product = WeightGrad(m, 34, 300)
        product.a.copy_(values[:, :m])
        product.run(code_of("gfx942", "fp16"), launcher, shape, chunk_k=128, splits=splits)
        outs.append(as_array(product.row_sums.view(torch.int16))[:70])
    assert all(np.array_equal(out, outs[0]) for out in outs)


@pytest.mark.parametrize("arch, dtype", [("gfx942", "fp16"), ("gfx90a", "fp16"), ("gfx950", "bf16")])
def test_registers_suffice(arch, dtype, code_of):
    kernels = [each for each in code_of(arch, dtype).kernels.values() if each.name.endswith(test_mfma.SUMS_ROWS)]
    assert len(kernels) == 4
    for kernel in kernels:
        found = resources(kernel, kernel.metadata[".max_flat_workgroup_size"])
        assert found.spills == 0 and kernel.metadata[".sgpr_spill_count"] == 0, kernel.name
        assert found.registers <= 252 and found.waves_per_simd >= 2, (kernel.name, found)


# Dtype, layouts, more of the product, and whether its rows are summed.
SERVED = [
    ("fp16", "mm", {}, True),
    ("bf16", "mm", {}, True),
    ("fp32", "mm", {}, False),
    ("fp16", "km", {}, False),
    ("fp16", "mk", {}, False),
    ("fp16", "mm", dict(pads=(9, 8)), False),
    ("fp16", "mm", dict(batch=2), False),
]


@pytest.mark.parametrize("dtype, layouts, more, is_served", SERVED)
def test_a_weight_s_gradient_is_served(dtype, layouts, more, is_served, launcher, built_once):
    serves = ctypes.CDLL(str(built_once("launch_mfma", None) / "launch.so")).serves_row_sums
    serves.restype = ctypes.c_bool
    product = Product(64, 48, 80, dtype, layouts, **more)
    assert serves(ctypes.byref(product.problem)) == is_served


# Text of kernel.h, and what it becomes.
MUTANTS = {
    "fragments that no warp sums": ("if (i % kWarpsN != first_summed)", "if (i != first_summed)"),
    "the sums of a chunk are forgotten": ("row_total[i] += row_acc[i][0], ", ""),
    "rows beyond A's are stored": ("L::c_row(lane, 0) == 0 && at < num_rows", "L::c_row(lane, 0) == 0"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name, launcher, tmp_path):
    header, kernel = "kernels/hip/12_mfma/kernel.h", "mfma<Config<Half, 2>, false, false, false, true>"
    code = load(compile_mutant(tmp_path, "gfx942", header, kernel, header, *MUTANTS[name]))
    product = WeightGrad(70, 34, 300)
    with pytest.raises((Fault, AssertionError)):
        product.run(code, launcher, 2, chunk_k=128, seed=1)
        product.check()

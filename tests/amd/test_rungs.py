"""Rungs as clang compiles them for AMD's chips, run by the interpreter on small ragged problems and compared with
float64: all on gfx942, 04 and 08 on gfx1100, 08 also with operands of 8 bits. With TILEDMM_DEVICE_CODE=1, 04 and 08 on
all chips.
Memory outside of the operands is an error, and so is a missing wait.
"""

import functools
import os
import shutil
from math import ceil
from pathlib import Path

import gpu_objects
import numpy as np
import pytest
import torch
from amd_interpreter.interpreter import Memory, load, run
from amd_interpreter.structs import FoldedProblem
from compilers import IS_WHOLE

from torch_tiledmm.host_gpu import _Scales

ROOT = Path(__file__).parents[2]

# The small tile of rungs 06 to 08 in a mangled name, and the letters of the dtype.
SMALL = {
    dtype: f"9MmaConfigILi64ELi64ELi{k}ELi128ELi2ELi1EE" for dtype, k in (("fp64", 16), ("fp32", 32), ("fp16", 64))
}
# Of A, B and C, where a kernel may have different ones.
LETTERS = {"fp64": ("EEd", "IdE", "Iddd"), "fp32": ("EEf", "IfE", "Ifff"), "fp16": ("4Half",)}
# rung: file, parts of the kernel's name, block tile, threads (those of 64 lanes), has sums
RUNGS = {
    "01": ("01_naive.cu", ["5naiveI"], (8, 32), 256, False),
    "02": ("02_block_tiled.cu", ["11block_tiledI", "ILi16EE"], (16, 16), 256, False),
    "04": ("04_register_tiled.cu", ["14register_tiledI", "ILi4ELi4E"], (128, 32), 256, False),
    "06": ("06_mma_cached.cu", ["10mma_cachedI", "Lb1ELb0E"], (64, 64), 128, True),
    "07": ("07_mma_double_buffered.cu", ["19mma_double_bufferedI", "Lb1ELb0E"], (64, 64), 128, True),
    "08": ("08_mma_output_cached.cu", ["17mma_output_cachedI", "Lb1ELb0E"], (64, 64), 128, False),
}
RDNA = ("gfx1100", "gfx1201")
DTYPES = {"fp32": (np.float32, 0), "fp64": (np.float64, 1), "fp16": (np.float16, 2)}


@pytest.fixture(scope="module")
def compiled(amd_object):
    if not shutil.which("clang++-22"):  # the interpreter knows the instructions that this one takes
        assert os.environ.get("CI") != "true", "CI needs clang-22, lld-22 and llvm-22"
        pytest.skip("there is no clang++-22")

    @functools.cache
    def code_of(arch: str, name: str):
        return load(amd_object(arch, gpu_objects.CSRC / "kernels/gpu" / name)[0])

    return code_of


def kernel_of(code, rung: str, dtype: str):
    file, parts, *_ = RUNGS[rung]
    parts = [*parts, SMALL[dtype]] if rung >= "05" else parts
    for name, kernel in code.kernels.items():
        if "AnyElement" in name or "Lb1EEEvNS_13FoldedProblem" in name:  # of groups
            continue
        if all(part in name for part in parts) and any(letters in name for letters in LETTERS[dtype]):
            return kernel
    raise AssertionError(f"{file} has no kernel {parts} of {dtype}: {list(code.kernels)}")


CASES = [("gfx942", rung, "fp32") for rung in RUNGS]
CASES += [("gfx942", rung, dtype) for rung, dtype in (("01", "fp16"), ("06", "fp16"), ("08", "fp16"), ("08", "fp64"))]
OF_RDNA = (("04", "fp32"), ("04", "fp64"), ("08", "fp16"))
CASES += [("gfx1100", *case) for case in OF_RDNA]
if IS_WHOLE:
    CASES += [
        *(("gfx1201", *case) for case in OF_RDNA),
        *(("gfx90a", *case) for case in (("04", "fp32"), ("08", "fp32"), ("08", "fp64"))),
        *(("gfx950", *case) for case in (("04", "fp32"), ("08", "fp32"), ("08", "fp16"))),
    ]


@pytest.mark.parametrize("arch, rung, dtype", CASES)
def test_rung_is_right(arch, rung, dtype, compiled):
    file, _, (block_m, block_n), threads, has_sums = RUNGS[rung]
    if arch in RDNA and rung == "04":  # half of the lanes along m
        block_m, threads = block_m // 2, threads // 2
    m, n, k = (19, 37, 13) if rung in ("01", "02") else (70, 45, 50)
    numpy_dtype, dtype_idx = DTYPES[dtype]
    random = np.random.default_rng(7)
    a, b = (random.uniform(-1, 1, shape).astype(numpy_dtype) for shape in ((m, k + 3), (k, n + 1)))
    bias, c = random.uniform(-1, 1, n).astype(numpy_dtype), np.full((m, n + 2), np.nan, numpy_dtype)
    blocks = ceil(m / block_m) * ceil(n / block_n)
    memory = Memory()
    problem = FoldedProblem(batch_size=1)
    gemm = problem.gemm
    gemm.m, gemm.n, gemm.k, gemm.dtype = m, n, k, dtype_idx
    gemm.a, gemm.stride_am, gemm.stride_ak = memory.add("a", a), k + 3, 1
    gemm.b, gemm.stride_bk, gemm.stride_bn = memory.add("b", b), n + 1, 1
    gemm.c, gemm.stride_cm, gemm.stride_cn = memory.add("c", c, writable=True), n + 2, 1
    gemm.bias, gemm.stride_bias_n, gemm.activation = memory.add("bias", bias), 1, 1  # relu
    args = [bytes(problem)]
    if has_sums:
        sums = np.full(blocks * block_m * block_n, np.nan, np.float32)
        args.append(memory.add("sums", sums, writable=True))
    run(kernel_of(compiled(arch, file), rung, dtype), (blocks, 1, 1), (threads, 1, 1), args, memory, order_seed=1)
    a64, b64 = a[:, :k].astype(np.float64), b[:, :n].astype(np.float64)
    expected = np.maximum(a64 @ b64 + bias, 0)
    bound = (k + 2) * 2.0**-23 * (np.abs(a64) @ np.abs(b64) + np.abs(bias))
    bound += (2.0**-11 if dtype == "fp16" else 2.0**-24) * np.abs(expected) + 1e-7
    bound = bound * 2.0**-29 if dtype == "fp64" else bound
    assert (np.abs(c[:, :n].astype(np.float64) - expected) <= bound).all()
    assert np.isnan(c[:, n:]).all()


def kernel_of_8_bits(code):
    parts = [*RUNGS["08"][1], "9AnyFloat8"]
    return next(
        kernel
        for name, kernel in code.kernels.items()
        if all(part in name for part in parts) and "Lb1EEEvNS_13FoldedProblem" not in name
    )


@pytest.mark.parametrize("mix", [(torch.float8_e4m3fn, torch.float8_e5m2), (torch.float8_e5m2, torch.float8_e4m3fn)])
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100", *(("gfx90a", "gfx950", "gfx1201") if IS_WHOLE else ())])
def test_operands_of_8_bits(arch, mix, compiled):
    """Blocks of 1 x 128 of A and of 128 x 128 of B, denormal numbers, C in fp32. A NaN of each operand shows in its own
    row or column alone."""
    file, _, (block_m, block_n), threads, _ = RUNGS["08"]
    m, n, k = 35, 45, 150
    generator = torch.Generator().manual_seed(7)

    def draw(rows, cols, dtype):
        bytes_ = torch.randint(0, 0x40, (rows, cols), generator=generator)
        return (bytes_ + 0x80 * torch.randint(0, 2, (rows, cols), generator=generator)).to(torch.uint8).view(dtype)

    a, b = draw(m, k + 3, mix[0]), draw(k, n + 1, mix[1])
    a.view(torch.uint8)[3, 5] = b.view(torch.uint8)[7, 9] = 0x7F
    scale_a, scale_b = torch.rand(m, 2, generator=generator), torch.rand(2, 1, generator=generator)
    c, memory, problem = np.full((m, n + 2), np.nan, np.float32), Memory(), FoldedProblem(batch_size=1)
    gemm = problem.gemm
    gemm.m, gemm.n, gemm.k = m, n, k
    dtypes = (torch.float8_e4m3fn, torch.float8_e5m2)
    gemm.dtype_a, gemm.dtype_b = (4 + dtypes.index(dtype) for dtype in mix)
    gemm.a, gemm.stride_am, gemm.stride_ak = memory.add("a", a.view(torch.uint8).numpy()), k + 3, 1
    gemm.b, gemm.stride_bk, gemm.stride_bn = memory.add("b", b.view(torch.uint8).numpy()), n + 1, 1
    gemm.c, gemm.stride_cm, gemm.stride_cn = memory.add("c", c, writable=True), n + 2, 1
    gemm.scaling = 2
    gemm.scale_a = _Scales(memory.add("scale_a", scale_a.numpy()), 2, 1, 1)
    gemm.scale_b = _Scales(memory.add("scale_b", scale_b.numpy()), 0, 1, 128)
    grid = (ceil(m / block_m) * ceil(n / block_n), 1, 1)
    run(kernel_of_8_bits(compiled(arch, file)), grid, (threads, 1, 1), [bytes(problem)], memory, order_seed=1)
    each_a = scale_a.double().repeat_interleave(128, 1)[:, :k]
    wide_a = a[:, :k].double() * each_a
    wide_b = b[:, :n].double() * scale_b.double().repeat_interleave(128, 0)[:k]
    expected, bound = (wide_a @ wide_b).numpy(), ((k + 6) * 2.0**-23 * (wide_a.abs() @ wide_b.abs())).numpy()
    is_nan = np.isnan(expected)
    assert is_nan.sum() == m + n - 1
    assert np.isnan(c[:, :n][is_nan]).all() and (np.abs(c[:, :n] - expected) <= bound)[~is_nan].all()
    assert np.isnan(c[:, n:]).all()

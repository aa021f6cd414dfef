"""A random product in the interpreter's memory, as the kernels take it, and what its result must be.

Operands lie in buffers that end with their last element. What is between their rows is nan, and so is C at the start.
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

import gpu_objects
import numpy as np
import pytest
import torch
from amd_interpreter.code_object import CodeObject, Kernel
from amd_interpreter.interpreter import Fault, Memory
from amd_interpreter.structs import FoldedProblem

from torch_tiledmm.host_gpu import _BatchDim
from torch_tiledmm.testing.reference import ACTIVATIONS, assert_close, expect_linear

DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "fp16": torch.float16, "bf16": torch.bfloat16}
WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().view(WORDS[tensor.element_size()]).numpy()


@dataclass
class Product:
    """C = activation(A B + bias). `a_close`, `b_close`, `c_close`: the dimension that is contiguous, "m", "n" or "k";
    `pads`: elements between rows of A, B and C; `offset`: of all of them from an aligned address, in elements."""

    dtype: str
    m: int
    n: int
    k: int
    a_close: str = "k"
    b_close: str = "k"
    c_close: str = "n"
    pads: tuple = (2, 2, 2)
    offset: int = 0
    batch: int = 1
    has_bias: bool = False
    activation: str = "none"
    chunk_k: int = 0  # 0: one chunk
    a: torch.Tensor | None = None  # [batch, m, k]; random if it is not given
    b: torch.Tensor | None = None  # [batch, n, k]
    memory: Memory = field(default_factory=Memory)
    problem: FoldedProblem = field(default_factory=FoldedProblem)

    def __post_init__(self):
        dtype, random = DTYPES[self.dtype], torch.Generator().manual_seed(self.m + 100 * self.n + 10000 * self.k)

        def draw(*shape):
            return (torch.rand(*shape, generator=random, dtype=torch.float64) * 2 - 1).to(dtype)

        m, n, k, batch, gemm = self.m, self.n, self.k, self.batch, self.problem.gemm
        self.a = draw(batch, m, k) if self.a is None else self.a
        self.b = draw(batch, n, k) if self.b is None else self.b
        gemm.m, gemm.n, gemm.k, gemm.dtype = m, n, k, list(DTYPES).index(self.dtype)
        gemm.activation = ACTIVATIONS.index(self.activation)
        gemm.a, (step_a, gemm.stride_am, gemm.stride_ak), _ = self._place("a", self.a, self.a_close == "k", 0)
        gemm.b, (step_b, gemm.stride_bn, gemm.stride_bk), _ = self._place("b", self.b, self.b_close == "k", 1)
        nan = torch.full((batch, m, n), torch.nan, dtype=dtype)
        gemm.c, (step_c, gemm.stride_cm, gemm.stride_cn), self.c = self._place("c", nan, self.c_close == "n", 2)
        self.strides_c = step_c, gemm.stride_cm, gemm.stride_cn
        self.bias = draw(n) if self.has_bias else None
        if self.has_bias:
            gemm.bias, gemm.stride_bias_n = self.memory.add("bias", bits_of(self.bias)), 1
        self.problem.batch_size, self.problem.asked_n = batch, n
        self.problem.chunk_k = self.chunk_k or max(k, 1)
        if batch > 1:
            gemm.num_batch_dims = 1
            self.problem.batch_dims[0] = _BatchDim(batch, step_a, step_b, step_c)

    def _place(self, name: str, values: torch.Tensor, is_last_close: bool, which: int):
        """Address, strides and the buffer; the strides are those of the tensor's dimensions."""
        batch, rows, cols = values.shape
        far, close = (rows, cols) if is_last_close else (cols, rows)
        stride = close + self.pads[which]
        step = far * stride + 2
        size = self.offset + ((batch - 1) * step + (far - 1) * stride + close if far * close else 0)
        buffer = torch.full((max(size, 1),), torch.nan, dtype=values.dtype)
        strides = (step, stride, 1) if is_last_close else (step, 1, stride)
        if size > self.offset:
            buffer.as_strided(values.shape, strides, self.offset).copy_(values)
        array = bits_of(buffer)
        address = self.memory.add(name, array, writable=name == "c")
        return address + self.offset * values.element_size(), strides, array

    def args(self, *before) -> list:
        return [*before, bytes(self.problem)]

    def result(self) -> torch.Tensor:
        """[batch, m, n]; what lies between the rows must have stayed as it was."""
        c = torch.from_numpy(self.c).view(DTYPES[self.dtype]).clone()
        found = c.as_strided((self.batch, self.m, self.n), self.strides_c, self.offset)
        result = found.clone()
        found.fill_(torch.nan)
        assert c.isnan().all(), "something beside C was written"
        return result

    def check(self):
        result = self.result()
        for i in range(self.batch):
            assert_close(result[i], expect_linear(self.a[i], self.b[i], self.bias, self.activation))


# ---- Machine code


def need_compiler():
    if not shutil.which("clang++-22"):  # the interpreter knows the instructions that this one takes
        assert os.environ.get("CI") != "true", "CI needs clang-22, lld-22 and llvm-22"
        pytest.skip("there is no clang++-22")


def loops_of(kernel) -> list[list[str]]:
    """The instructions of each loop that has no other one in it."""
    places = {address: i for i, (address, _) in enumerate(kernel.lines)}
    ends = []
    for i, (address, text) in enumerate(kernel.lines):
        if branch := re.match(r"s_c?branch\S* (\d+)$", text):
            to = address + 4 + 4 * ((int(branch[1]) ^ 0x8000) - 0x8000)
            ends += [(places[to], i)] if to <= address else []
    inner = [
        one for one in ends if not any(one != other and one[0] <= other[0] <= other[1] <= one[1] for other in ends)
    ]
    return [[text for _, text in kernel.lines[first : last + 1]] for first, last in inner]


# ---- Mutants


def compile_mutant(folder: Path, arch: str, header: str, kernel: str, file: str, old: str, new: str) -> Path:
    """The code object of one kernel of `header`, with `old` in place of `new` in a file of csrc."""
    text = (gpu_objects.CSRC / file).read_text()
    assert text.count(old) == 1, f"{file} has {text.count(old)} times {old}"
    (folder / file).parent.mkdir(parents=True)
    (folder / file).write_text(text.replace(old, new))
    source = folder / "mutant.cu"
    kept = f"const void* const kept = (const void*)&{kernel};"
    source.write_text(f'#include "{header}"\nnamespace tiledmm::gpu {{\n{kept}\n}}\n')
    command = [*gpu_objects.hip_command("clang++-22", [arch], standalone=True), "-w", "--cuda-device-only"]
    command += ["--no-gpu-bundle-output", f"-I{folder}", f"-I{gpu_objects.CSRC}", "-c", source, "-o", folder / "code"]
    subprocess.run(command, check=True, timeout=120)
    return folder / "code"


def is_wrong(multiply, compiled, arch: str, sizes: tuple, product: dict, how: dict) -> bool:
    """Whether the interpreter or the reference finds a mistake in a product, in one of a few orders of the waves."""
    for seed in range(3):
        try:
            one = Product(*sizes, **product)
            multiply(compiled, arch, one, seed=seed, **how)
            one.check()
        except (Fault, AssertionError):
            return True
    return False


def removable(lines: list, pattern) -> list[int]:
    return [i for i, (_, text) in enumerate(lines) if pattern.match(text)]


def without(kernel: Kernel, index: int) -> CodeObject:
    """The kernel alone, with a line that does nothing."""
    lines = [(at, "s_nop 0" if i == index else text) for i, (at, text) in enumerate(kernel.lines)]
    return CodeObject(Path(), {kernel.name: replace(kernel, lines=lines, program=None)})

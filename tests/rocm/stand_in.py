"""A ROCm that is not there: folders as ROCm has them, and a runtime that hands each launch to the test.

rocm = make_rocm(folder)                      hipcc, headers and libamdhip64.so.7 of our own
library = HipLibrary(kernels, rocm, folder)   the library of the kernels, in a process with that runtime
library.gemm(problem, "naive", gpu=0)         a whole call through the C interface; library.launches has what came
library.gemm(..., memory=memory)              the same, and the interpreter of tools/ runs what is launched
"""

import ctypes
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from amd_interpreter.code_object import Kernel, load
from amd_interpreter.interpreter import run
from amd_interpreter.memory import Memory
from amd_interpreter.structs import Allocate, Executor, Release

from torch_tiledmm.host_gpu import _GemmProblem

HERE = Path(__file__).parent
MAJOR = 7
RUNTIME = f"libamdhip64.so.{MAJOR}"
INVALID_DEVICE_FUNCTION, LAUNCH_FAILURE = 98, 719  # hipError_t
STREAM = 0x5EA
MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"


def make_runtime(target: Path, *flags: str) -> None:
    """AMD's library has this SONAME in whatever file it is."""
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    command += [*flags, f"-I{HERE / 'include'}", HERE / "runtime.cpp", f"-Wl,-soname,{RUNTIME}"]
    command += [f"-Wl,--version-script={HERE / 'runtime.map'}", "-o", target]
    subprocess.run(command, check=True)


def make_rocm(rocm: Path, headers: Path = HERE / "include") -> Path:
    """A folder like /opt/rocm, for clang 22 in place of ROCm's."""
    shutil.copytree(headers, rocm / "include")
    shutil.copy2(HERE / "device_library.h", rocm / "include")
    (rocm / "bin").mkdir()
    for name in ("hipcc", "clang-offload-bundler"):
        shutil.copy2(HERE / name, rocm / "bin")
    (rocm / "share" / "hip").mkdir(parents=True)
    (rocm / "share" / "hip" / "version").write_text(f"HIP_VERSION_MAJOR={MAJOR}\nHIP_VERSION_MINOR=1\n")
    make_runtime(rocm / "lib" / RUNTIME)
    return rocm


class _Gpu(ctypes.Structure):  # runtime.cpp
    _fields_ = [
        ("arch", ctypes.c_char_p),
        ("num_cus", ctypes.c_int),
        ("warp_size", ctypes.c_int),
        ("shared_bytes", ctypes.c_size_t),
    ]


_Dim3 = ctypes.c_uint32 * 3
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_void_p,
    ctypes.POINTER(_Dim3),
    ctypes.POINTER(_Dim3),
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_size_t,
    ctypes.c_void_p,
)


@dataclass(frozen=True)
class Launch:
    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: list[bytes]
    shared_bytes: int  # dynamic
    stream: int

    def check(self, warp_size: int, most_shared_bytes: int) -> None:
        """Raises AssertionError for what the hardware refuses, and for threads that a kernel is not compiled for."""
        metadata = self.kernel.metadata
        assert self.block == (metadata[".max_flat_workgroup_size"], 1, 1), self.block
        assert metadata[".wavefront_size"] == warp_size
        assert self.shared_bytes == 0, "LDS is static, and would be there twice"
        assert self.kernel.shared_bytes <= most_shared_bytes, self.kernel.shared_bytes
        assert metadata[".kernarg_segment_size"] <= 4096


# The GPUs of the process, as their runtime describes them: MI300X, RX 7900 XTX, whose 96 CUs it counts in pairs, and
# two that the library is not compiled for.
GPUS = {
    "gfx942:sramecc+:xnack-": (304, 64, 64 << 10),
    "gfx1100": (48, 32, 64 << 10),
    "gfx90a:sramecc+:xnack-": (104, 64, 64 << 10),
    "gfx1030": (36, 32, 64 << 10),
}
ARCHS = [name.split(":")[0] for name in GPUS]


class HipLibrary:
    """One library of the kernels, and the runtime that it was linked with. `scratch` is a folder for code objects."""

    def __init__(self, kernels: Path, rocm: Path, scratch: Path):
        self._runtime = ctypes.CDLL(str(rocm / "lib" / RUNTIME))
        num_before = self._runtime.stand_in_num_binaries()
        self._kernels = ctypes.CDLL(str(kernels))
        self.num_binaries = self._runtime.stand_in_num_binaries() - num_before
        self._scratch = scratch
        self._bundles: dict[tuple[int, str], object] = {}
        self.launches: list[Launch] = []
        self.allocated: list[int] = []  # bytes of each workspace
        self.num_borrowed = 0  # workspaces that did not come back
        self._memory: Memory | None = None
        self._seed: int | None = None
        self._arch, self._limits, self._error = "", [], None
        self._callbacks = _LAUNCH(self._on_launch), Allocate(self._allocate), Release(self._release)
        self._gpus = (_Gpu * len(GPUS))(*(_Gpu(name.encode(), *figures) for name, figures in GPUS.items()))

    def gemm(
        self, problem: _GemmProblem, algorithm: str, gpu: int, *, memory: Memory | None = None, seed: int | None = None
    ) -> tuple[int, str]:
        """Status and reason of tiledmm_gemm_gpu; what went wrong in a launch is raised.

        With a memory, which the operands' addresses belong to, the interpreter executes what is launched; the order of
        waves is drawn from the seed.
        """
        self.launches, self.allocated, self._error = [], [], None
        self._memory, self._seed = memory, seed
        if gpu < len(GPUS):
            self._arch, (_, *self._limits) = ARCHS[gpu], list(GPUS.values())[gpu]
        self._runtime.stand_in_set_gpus(self._gpus, len(self._gpus), self._callbacks[0])
        executor = Executor(device_idx=gpu, stream=STREAM)
        executor.allocate, executor.release = self._callbacks[1:]
        reason = ctypes.create_string_buffer(320)
        index = self._kernels.tiledmm_find_algorithm(algorithm.encode(), ctypes.c_size_t(len(algorithm)))
        status = self._kernels.tiledmm_gemm_gpu(
            ctypes.byref(problem), index, ctypes.byref(executor), reason, ctypes.c_size_t(len(reason))
        )
        if self._error:
            raise self._error
        return status, reason.value.decode()

    def code_of(self, bundle: int, arch: str):
        """The code object for a chip in a bundle; None where there is none."""
        if (bundle, arch) not in self._bundles:
            self._bundles[bundle, arch] = None
            assert ctypes.string_at(bundle, len(MAGIC)) == MAGIC
            at = bundle + len(MAGIC)
            count = ctypes.c_uint64.from_address(at).value
            at += 8
            for _ in range(count):
                offset, size, length = (ctypes.c_uint64 * 3).from_address(at)
                target = ctypes.string_at(at + 24, length).decode()
                at += 24 + length
                if target.endswith(f"--{arch}"):
                    file = self._scratch / f"{bundle:x}.{arch}"
                    file.write_bytes(ctypes.string_at(bundle + offset, size))
                    self._bundles[bundle, arch] = load(file)
        return self._bundles[bundle, arch]

    def _on_launch(self, name, bundle, grid, block, args, shared_bytes, stream) -> int:
        try:
            code = self.code_of(bundle, self._arch)
            if code is None:
                return INVALID_DEVICE_FUNCTION
            kernel = code.kernels[name.decode()]
            sizes = [arg[".size"] for arg in kernel.metadata[".args"] if not arg[".value_kind"].startswith("hidden_")]
            values = [ctypes.string_at(args[i], size) for i, size in enumerate(sizes)]
            launch = Launch(kernel, tuple(grid[0]), tuple(block[0]), values, shared_bytes, stream or 0)
            launch.check(*self._limits)
            self.launches.append(launch)
            if self._memory:
                run(kernel, launch.grid, launch.block, values, self._memory, self._seed)
            return 0
        except BaseException as error:  # which ctypes would only print
            self._error = error
            return LAUNCH_FAILURE

    def _allocate(self, _, num_bytes: int) -> int:
        self.allocated.append(num_bytes)
        self.num_borrowed += 1
        if not self._memory:
            return 0x1000 * len(self.allocated)
        garbage = np.full(num_bytes, 0xFF, np.uint8)  # nan in each format
        return self._memory.add(f"workspace {len(self.allocated)}", garbage, writable=True)

    def _release(self, _, address: int) -> None:
        self.num_borrowed -= 1

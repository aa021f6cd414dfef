"""Whole calls of a rung on a chip of AMD's: the rung's own host code plans and launches, the interpreter executes.

    launcher = Launcher("gfx942", "mma_output_cached")
    c = launcher.matmul(a, b, traces=traces)

clang compiles the rung's kernels for the chip and its host code for this machine, g++ the dispatcher; objects are kept
under build/.
"""

import ctypes
import shutil
from functools import cached_property
from pathlib import Path

import gpu_objects
import numpy as np

from torch_tiledmm.host_gpu import _GemmProblem

from .code_object import load
from .interpreter import Memory, run
from .structs import Allocate, Executor, Release

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

Record = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, *[ctypes.c_uint] * 3, ctypes.POINTER(ctypes.c_void_p))
# csrc/core/problem.h; numpy has no bf16: its bits.
DTYPES = {np.dtype(np.float32): 0, np.dtype(np.float64): 1, np.dtype(np.float16): 2, np.dtype(np.uint16): 3}
BF16_NAN = 0x7FC0
# Constants of host code that are lowered, so that small products go through loops which else only large ones reach:
# name, file of csrc, value there, and here. Items of a batch in a launch of rungs 12 and 18; k of a group of split
# operands.
LOWERED = {
    "kMaxMfmaItems": ("kernels/hip/shared/plan.h", "65535", "2"),
    "kSplitGroupK": ("kernels/split/layout.h", "1 << 14", "1024"),
}
PREPARES = "split_operands"  # in the name of a kernel
# CUs, bytes of LDS of a workgroup: csrc/dispatch/chips.cpp.
CHIPS = {"gfx90a": (110, 64), "gfx942": (304, 64), "gfx950": (256, 160), "gfx1100": (96, 64), "gfx1201": (64, 64)}


def sources_of(rung: str) -> list[gpu_objects.Source]:
    """The rung's files for HIP: one file of the ladder, or a folder of its own."""
    kernels = gpu_objects.CSRC / "kernels"
    found = [*kernels.glob(f"gpu/[0-9][0-9]_{rung}.cu"), *kernels.glob(f"hip/{rung}/*.cu")]
    if not found:
        raise ValueError(f"{rung} has no kernel for HIP")
    return gpu_objects.sources_of(found)


def has_sources(rung: str) -> bool:
    try:
        return bool(sources_of(rung))
    except ValueError:
        return False


def host_only(clang: str, arch: str, folder: Path) -> list[str]:
    """A command for a rung's host code alone. The registration of kernels refers to their code, which is elsewhere."""
    nothing = folder / "no_device_code"
    nothing.touch()
    command = [*gpu_objects.hip_command(clang, [arch], standalone=True), "-w", "-no-hip-rt", "--cuda-host-only"]
    return [*command, "-Xclang", "-fcuda-include-gpubinary", "-Xclang", str(nothing)]


def host_side(folder: Path, source: Path) -> None:
    """launch.so: a rung's host code, with a function that launches it and constants LOWERED, for this machine."""
    for name, (file, value, smaller) in LOWERED.items():
        text = (gpu_objects.CSRC / file).read_text()
        assert text.count(f"{name} = {value};") == 1, f"{name} has another place or value"
        (folder / file).parent.mkdir(parents=True)
        (folder / file).write_text(text.replace(f"{name} = {value};", f"{name} = {smaller};"))
    command = [*host_only("clang++-22", "gfx942", folder), "-O1", "-shared"]
    command += [f"-I{include}" for include in (folder, gpu_objects.CSRC, HERE)]
    gpu_objects.run_compiler([*command, str(source), "-o", str(folder / "launch.so")])


def executor_in(memory: Memory, **fields) -> Executor:
    """Its workspaces lie in `memory`; nothing is in them but nan."""
    spaces = []

    def allocate(_, num_bytes):
        spaces.append(np.full(num_bytes, 0xFF, np.uint8))
        return memory.add(f"workspace {len(spaces)}", spaces[-1], writable=True)

    executor = Executor(num_threads=1, **fields)
    executor.allocate, executor.release = Allocate(allocate), Release(lambda *_: None)
    return executor


def launches_of(start, kernels: dict, memory: Memory, num_cus: int) -> list[tuple]:
    """What start(executor, recorder) launches, as interpreter.run() takes it; `kernels`: by name."""
    launches = []

    def record(name, blocks, blocks_y, threads, arguments):
        kernel = kernels[name.decode()]
        launches.append((kernel, (blocks, blocks_y, 1), (threads, 1, 1), values_of(kernel, arguments)))
        return 0

    executor = executor_in(memory, num_cus=num_cus, warp_size=64)
    assert start(ctypes.byref(executor), Record(record)) == 0
    return launches


def values_of(kernel, arguments) -> list[bytes]:
    sizes = [each[".size"] for each in kernel.metadata[".args"] if not each[".value_kind"].startswith("hidden")]
    return [ctypes.string_at(arguments[i], size) for i, size in enumerate(sizes)]


class Launcher:
    def __init__(self, arch: str, rung: str):
        self.arch, self.rung, self.sources = arch, rung, sources_of(rung.split(".")[0])  # rung.variant
        self.clang = shutil.which("clang++-22")
        if self.clang is None:
            raise RuntimeError("there is no clang++-22, which compiles for AMD's chips without ROCm")
        self.folder = ROOT / "build" / "amd"
        self.codes: dict[gpu_objects.Source, object] = {}
        self.threads: list[int] = []

    @cached_property
    def library(self) -> ctypes.CDLL:
        folder = self.folder / f"host_{self.rung}"
        folder.mkdir(parents=True, exist_ok=True)
        host = [*host_only(self.clang, self.arch, folder), "-O0"]
        plain = gpu_objects.host_command("g++", 64)
        own = [gpu_objects.CSRC / "api/host_gpu_api.cpp", gpu_objects.CSRC / "platform/host_gpu/executor.cpp"]
        entries = [one for one in gpu_objects.host_sources(64) if one.path.suffix == ".cpp" and one.path not in own]
        with gpu_objects.locked(self.folder):
            groups = [
                gpu_objects.Sources(self.sources, host, folder),
                gpu_objects.Sources(entries, plain, self.folder / "entries"),
            ]
            objects = gpu_objects.compile_objects(groups, gpu_objects.num_jobs(), is_quiet=True)
            recorder, target = folder / "recorder.o", folder / "launch.so"
            source = HERE / "recorder.cpp"
            gpu_objects.run_compiler([*plain, f"-I{gpu_objects.CSRC}", "-c", str(source), "-o", str(recorder)])
            gpu_objects.link_library(["g++"], [*objects[0], *objects[1], recorder], target)
        return ctypes.CDLL(str(target))

    def kernel(self, name: str):
        """Compiled when it is first launched, with the others of its source."""
        # Those of other dtypes are instances of their own, fp16 and bf16 the last ones: they need not be compiled.
        own = -1 if "BFloat16" in name else -2 if "4Half" in name else 0
        indices = [source.instance for source in self.sources if source.instance is not None]
        first = indices[own] if indices else None
        for source in sorted(self.sources, key=lambda source: source.instance != first):
            if source not in self.codes:
                command = [*gpu_objects.hip_command(self.clang, [self.arch], standalone=True), "--cuda-device-only"]
                group = gpu_objects.Sources(
                    [source], [*command, "--no-gpu-bundle-output"], self.folder / f"{self.arch}_{self.rung}"
                )
                with gpu_objects.locked(self.folder):
                    ((code,),) = gpu_objects.compile_objects([group], 1, is_quiet=True)
                self.codes[source] = load(code)
            if name in self.codes[source].kernels:
                return self.codes[source].kernels[name]
        raise KeyError(name)

    def matmul(self, a: np.ndarray, b: np.ndarray, traces: list | None = None, most_blocks=None) -> np.ndarray:
        """a @ b; `traces` and `most_blocks` as in interpreter.run, traces of the first launch. What PREPARES operands
        does not count, and runs whole. `launched` has (kernel, threads) of each other launch.

        Raises NotImplementedError where the rung cannot serve.
        """
        (m, k), n = a.shape, b.shape[1]
        c, memory = np.full((m, n), BF16_NAN if a.dtype == np.uint16 else np.nan, a.dtype), Memory()
        problem = _GemmProblem(m=m, n=n, k=k, dtype=DTYPES[a.dtype])
        for name, array, axes in (("a", a, "mk"), ("b", b, "kn"), ("c", c, "mn")):
            # What lies transposed is handed over as it lies.
            lies = array if array.flags.c_contiguous else array.T
            setattr(problem, name, memory.add(name, lies, writable=name == "c"))
            for axis, stride in zip(axes, array.strides, strict=True):
                setattr(problem, f"stride_{name}{axis}", stride // array.itemsize)
        self.launched = []

        def record(name, blocks, blocks_y, threads, arguments):
            kernel = self.kernel(name.decode())
            values = values_of(kernel, arguments)
            grid, block = (blocks, blocks_y, 1), (threads, 1, 1)
            how = {}
            if PREPARES not in kernel.name:
                how = dict(traces=None if self.launched else traces, most_blocks=most_blocks)
                self.launched.append((kernel, threads))
            failures.append(None)
            try:
                run(kernel, grid, block, values, memory, **how)
            except Exception as error:
                failures[-1] = error
                return 1
            return 0

        failures: list = []
        executor = executor_in(memory)
        num_cus, kib = CHIPS[self.arch]
        reason = ctypes.create_string_buffer(320)
        lanes = 32 if self.arch.startswith("gfx1") else 64
        status = self.library.record_gemm(
            ctypes.byref(problem),
            self.rung.encode(),
            ctypes.byref(executor),
            int(self.arch[3:], 16),
            num_cus,
            lanes,
            kib << 10,
            Record(record),
            reason,
            ctypes.c_size_t(len(reason)),
        )
        for failure in failures:
            if failure is not None:
                raise failure
        if status:
            raise NotImplementedError(reason.value.decode())
        return c

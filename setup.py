"""Builds the libraries of torch_tiledmm (docs: CONTRIBUTING.md, "Build").

_kernels.so   kernels and dispatch, plain C interface, no torch: one binary for every torch.
_ops_2.13.so  the torch operators on top of it, for torch 2.13: for the installed torch, or one for each torch whose
              folder TILEDMM_TORCHES names (`make wheel TORCHES=...`).
_calls_2.13.cpython-311-x86_64-linux-gnu.so
              a shorter way from Python to the operators, for this Python where its headers are installed.

The first two do not use Python's interface, so one wheel serves every Python; those without the third call by
torch.ops.
"""

import functools
import importlib.util
import json
import os
import re
import runpy
import shlex
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import NamedTuple

import setuptools
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    raise SystemExit(
        f"\ntorch_tiledmm: setuptools {setuptools.__version__} is too old.\n"
        "  What to do: pip install 'setuptools>=77'\n"
    ) from None

VERSION = "0.2.0"
PACKAGE = "torch_tiledmm"
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "tools"))
import gpu_objects  # noqa: E402

OLDEST_GCC = 12  # __builtin_shufflevector
OLDEST_TORCH = (2, 11)
REBUILD = "pip install --no-build-isolation ."
OBJECTS = Path(HERE, "build", "objects")
PYTHON_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


def stop(problem: str, remedy: str) -> None:
    raise SystemExit(f"\ntorch_tiledmm: {problem}\n  What to do: {remedy}\n")


class Torch(NamedTuple):
    """A torch that the operators are built for: its package's folder, which need not be importable here."""

    folder: Path
    version: str
    cuda: str | None
    hip: str | None

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])

    @property
    def flags(self) -> list[str]:
        # As system headers: their warnings are not ours.
        include = self.folder / "include"
        system = [f"-isystem{include}", f"-isystem{include}/torch/csrc/api/include"]
        # Classes of torch's headers have members of ROCm; torch.utils.cpp_extension sets the same macros.
        rocm = ["-D__HIP_PLATFORM_AMD__=1", "-DUSE_ROCM=1"] if self.hip else []
        return ["-std=c++20", *system, *rocm, f'-DTILEDMM_TORCH="{self.version}"']


def torches() -> list[Torch]:
    """Those whose folders TILEDMM_TORCHES names, else the installed one."""
    folders = [Path(folder) for folder in os.environ.get("TILEDMM_TORCHES", "").split(os.pathsep) if folder]
    found = []
    for folder in folders or [installed_torch()]:
        if not (folder / "version.py").exists():
            stop(f"{folder} is no folder of a torch.", "name folders that hold torch's version.py in TILEDMM_TORCHES")
        version = runpy.run_path(str(folder / "version.py"))
        found.append(Torch(folder, version["__version__"], version.get("cuda"), version.get("hip")))
    for torch in found:
        if tuple(map(int, torch.minor.split("."))) < OLDEST_TORCH:
            stop(f"torch {torch.version} is too old.", "install torch >= " + ".".join(map(str, OLDEST_TORCH)))
    if len({torch.minor for torch in found}) < len(found):
        stop("TILEDMM_TORCHES names two torches of one minor version.", "name one: its library serves the other, too")
    return found


def installed_torch() -> Path:
    found = importlib.util.find_spec("torch")
    if not found:
        stop(
            f"the build needs torch, and {sys.executable} has none.",
            "install torch first (CPU only: pip install torch --index-url "
            f"https://download.pytorch.org/whl/cpu), then `{REBUILD}`. "
            "Without --no-build-isolation, pip hides the installed torch from the build.",
        )
    return Path(found.origin).parent


def python_headers() -> list[str]:
    """The compiler's flags for them; none where they are not installed."""
    folders = dict.fromkeys(sysconfig.get_path(name) for name in ("include", "platinclude"))
    is_there = any(Path(folder, "Python.h").exists() for folder in folders)
    return [f"-isystem{folder}" for folder in folders] if is_there else []


def calls_name(torch: Torch) -> str:
    return f"calls_{torch.minor}{PYTHON_SUFFIX.removesuffix('.so')}"


def gpu_capability() -> tuple[int, int] | None:
    """Of the first CUDA device that torch sees; None without an installed torch or a device."""
    try:
        import torch
    except ImportError:
        return None
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None


def compiler() -> str:
    command = os.environ.setdefault("CXX", "g++")
    remedy = f"install g++ {OLDEST_GCC} or later (Debian: apt install g++), or set CXX."
    if not shutil.which(command.split()[0]):
        stop(f"there is no C++ compiler '{command}'.", remedy)
    run = functools.partial(subprocess.run, capture_output=True, text=True)
    macros = run([*command.split(), "-dM", "-E", "-x", "c++", os.devnull]).stdout
    gcc = re.search(r"#define __GNUC__ (\d+)", macros)
    if gcc and int(gcc[1]) < OLDEST_GCC and "#define __clang__" not in macros:
        stop(f"'{command}' is g++ {gcc[1]}, which has no __builtin_shufflevector.", remedy)
    return run([*command.split(), "--version"]).stdout.split("\n")[0].strip()


def needed_libraries(path: Path) -> list[str] | None:
    """The shared libraries that a 64-bit ELF file asks for; None where it is no such file."""
    data = path.read_bytes()
    if data[:5] != b"\x7fELF\x02":
        return None
    order = "<" if data[5] == 1 else ">"
    (table,) = struct.unpack_from(f"{order}Q", data, 0x28)
    entry_size, num_entries = struct.unpack_from(f"{order}HH", data, 0x3A)
    # Of each section: name, kind, flags, address, offset, size, link, info.
    sections = [struct.unpack_from(f"{order}IIQQQQII", data, table + i * entry_size) for i in range(num_entries)]
    names = []
    for _, kind, _, _, offset, size, link, _ in sections:
        if kind == 6:  # SHT_DYNAMIC; its link is the section of its strings
            strings = sections[link][4]
            for tag, value in struct.iter_unpack(f"{order}qQ", data[offset : offset + size]):
                if tag == 1:  # DT_NEEDED
                    names.append(data[strings + value : data.index(b"\0", strings + value)].decode())
    return names


def check_shared_runtime(compile_with: list[str], link_with: list[str]) -> None:
    """Stops where the compiler, with all its flags, links the C++ runtime statically.

    An exception that one copy of the runtime throws and another catches ends the process, and torch brings the shared
    one. A library of one function tells this in a second, before the long compilations.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "probe.cpp"), Path(folder, "probe.so")
        source.write_text("void probe(int* number) { if (!number) throw 1; }\n")
        made = [f"{folder}/probe.o"]
        gpu_objects.run_compiler([*compile_with, "-c", str(source), "-o", *made])
        gpu_objects.run_compiler([*link_with, "-shared", *made, "-o", str(library)])
        needed = needed_libraries(library)
    if needed is not None and not any(name.startswith(("libstdc++.so", "libc++.so")) for name in needed):
        stop(
            f"CXX={os.environ['CXX']} links the C++ runtime statically, and every exception would end the process.",
            "set CXX to a g++ with a shared libstdc++, for example CXX=/usr/bin/g++, and LDFLAGS to nothing that "
            "links it statically.",
        )


def rocm_archs() -> tuple[list[str], list[str]]:
    """The chips to compile for, and those that PYTORCH_ROCM_ARCH names without there being kernels for them: an image
    with ROCm sets it to all that its other libraries serve."""
    known = ", ".join(gpu_objects.HIP_ARCHS)
    names = re.findall(r"[^;,\s]+", os.environ.get("PYTORCH_ROCM_ARCH", "")) or list(gpu_objects.HIP_ARCHS)
    for name in names:
        if not re.fullmatch(r"gfx([0-9a-f]{3,4}(:(sramecc|xnack)[+-])*|[0-9-]+-generic)", name):
            stop(f"PYTORCH_ROCM_ARCH has '{name}', which is no chip of AMD.", f"name some of {known}")
    served = [name for name in names if name.split(":")[0] in gpu_objects.HIP_ARCHS]
    if not served:
        stop(f"there are no kernels for {', '.join(names)} of PYTORCH_ROCM_ARCH.", f"name some of {known}")
    return served, [name for name in names if name not in served]


class Gpu:
    """Whether and how the GPU kernels are compiled."""

    def __init__(self, torch: Torch):
        self.device, self.archs, self.why, self.command, self.link_flags = "", [], "", [], []
        self.has_hopper, self.hopper_command, self.left_out = False, [], []
        self.is_rocm = bool(torch.hip)
        wanted = os.environ.get("TILEDMM_CUDA")
        werror = os.environ.get("TILEDMM_WERROR") == "1"
        if self.is_rocm and wanted != "0":
            rocm = gpu_objects.find_rocm()
            if not rocm:
                stop(
                    "torch is built for ROCm, but there is no hipcc.",
                    "name ROCm's folder in ROCM_HOME, or put its bin folder on the PATH",
                )
            self.device = "hip"
            self.archs, self.left_out = rocm_archs()
            self.command = gpu_objects.hip_command(str(rocm / "bin" / "hipcc"), self.archs, werror=werror)
            try:
                self.link_flags = gpu_objects.hip_runtime_flags(rocm, torch.hip.split(".")[0])
            except RuntimeError as error:
                stop(f"{error}.", "name the folder of the ROCm that torch is built for in ROCM_HOME")
            return
        if wanted == "0" or (not torch.cuda and wanted != "1"):
            self.why = (
                "TILEDMM_CUDA=0" if wanted == "0" else "this torch has no CUDA; TILEDMM_CUDA=1 builds it all the same"
            )
            return
        nvcc = gpu_objects.find_nvcc()
        if not nvcc:
            if wanted == "1":
                stop("TILEDMM_CUDA=1, but there is no nvcc.", "install the CUDA toolkit, or set CUDA_HOME")
            self.why = "there is no nvcc: install the CUDA toolkit, or set CUDA_HOME"
            return
        self.device = "cuda"
        if os.environ.get("TORCH_CUDA_ARCH_LIST"):
            self.archs = re.split("[; ]+", os.environ["TORCH_CUDA_ARCH_LIST"].strip("; "))
        elif capability := gpu_capability():
            self.archs = ["9.0a" if capability == (9, 0) else "{}.{}".format(*capability)]
        else:
            self.archs = ["8.0", "9.0a"]
        self.command = gpu_objects.nvcc_command(nvcc, self.archs, werror=werror)
        self.has_hopper = "9.0a" in self.archs
        self.hopper_command = gpu_objects.nvcc_command(nvcc, ["9.0a"], werror=werror)
        self.link_flags = gpu_objects.cudart_flags(nvcc)

    def describe(self, device: str) -> str:
        if self.device == device:
            left_out = f"; PYTORCH_ROCM_ARCH has others, too: {', '.join(self.left_out)}" if self.left_out else ""
            return f"yes: {', '.join(self.archs)}{left_out}"
        if self.is_rocm != (device == "hip"):
            return f"no: this torch is {'' if self.is_rocm else 'not '}built for ROCm"
        return f"no: {self.why}"


class Build(build_ext):
    """Compiles everything side by side, incrementally (tools/gpu_objects.py), and links it into the package."""

    def run(self):
        built_for = torches()
        compiled_by = compiler()
        gpu = Gpu(built_for[0])
        headers = python_headers()
        print(
            f"torch_tiledmm {VERSION}: building for torch {', '.join(torch.version for torch in built_for)} with "
            f"{compiled_by}\n"
            "  CPU    yes: portable, and by run-time choice AVX2, AVX-512, AVX-512-BF16, AMX or NEON\n"
            f"  CUDA   {gpu.describe('cuda')}\n"
            f"  ROCm   {gpu.describe('hip')}\n"
            f"  calls  {'by a library for this Python' if headers else 'by torch.ops: there is no Python.h'}",
            flush=True,
        )
        folder = self.library_folder()
        with gpu_objects.locked(OBJECTS):
            try:
                build_libraries(folder, built_for, gpu, headers)
            except RuntimeError as error:  # a compiler's words need no traceback
                raise SystemExit(str(error)) from None
        info = {
            "version": VERSION,
            "torch_versions": [torch.minor for torch in built_for],
            "compiler": compiled_by,
            "kernels": ["cpu", *([gpu.device] if gpu.device else [])],
        }
        (folder / "_build_info.json").write_text(json.dumps(info, indent=1))
        if not self.inplace:  # the host executor's libraries are compiled when they are first asked for
            sources = folder / "_sources"
            shutil.rmtree(sources, ignore_errors=True)
            (sources / "tools").mkdir(parents=True)
            shutil.copy2("tools/gpu_objects.py", sources / "tools")
            for name in gpu_objects.HOST_FOLDERS:
                ignore = shutil.ignore_patterns("*_sm90a.cu")
                shutil.copytree(gpu_objects.CSRC / name, sources / "csrc" / name, ignore=ignore)

    def library_folder(self) -> Path:
        return Path(HERE if self.inplace else self.build_lib, PACKAGE).resolve()

    def get_outputs(self):
        folder = self.library_folder()
        made = [*folder.glob("_*.so"), folder / "_build_info.json", *folder.glob("_sources/**/*")]
        return [str(path) for path in made if path.is_file()]

    def get_output_mapping(self):
        return {}


def build_libraries(folder: Path, built_for: list[Torch], gpu: Gpu, headers: list[str]) -> None:
    cxx, link = shlex.split(os.environ["CXX"]), shlex.split(os.environ.get("LDFLAGS", ""))
    flags = ["-O3", "-DNDEBUG", "-fwrapv", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra"]
    flags += [f"-ffile-prefix-map={HERE}/=", f'-DTILEDMM_VERSION="{VERSION}"']
    flags += ["-Werror"] if os.environ.get("TILEDMM_WERROR") == "1" else []
    for name in ("CPPFLAGS", "CXXFLAGS"):
        flags += shlex.split(os.environ.get(name, ""))
    check_shared_runtime([*cxx, *flags], [*cxx, *link])

    macros = [f'-DTILEDMM_GPU_DEVICE="{gpu.device}"', f'-DTILEDMM_GPU_ARCHS="{" ".join(gpu.archs)}"']
    of_kernels = [*cxx, "-std=c++17", *flags, *(macros if gpu.device else [])]
    groups = {}  # those that take longest first
    if gpu.has_hopper:
        groups["sm_90a"] = (gpu_objects.hopper_sources(), gpu.hopper_command)
    for torch in built_for:
        of_torch = [*cxx, *flags, *torch.flags]
        groups[torch.minor] = (gpu_objects.torch_sources(), of_torch)
        groups[calls_name(torch)] = (gpu_objects.python_sources() if headers else [], [*of_torch, *headers])
    if gpu.device:
        of_vendor = gpu_objects.cuda_sources() if gpu.device == "cuda" else gpu_objects.hip_sources()
        groups[gpu.device] = (of_vendor + gpu_objects.gpu_sources(), gpu.command)
    groups["kernels"] = (gpu_objects.cpp_sources(), of_kernels)
    sources = [gpu_objects.Sources(*group, OBJECTS / name) for name, group in groups.items()]
    objects = dict(zip(groups, gpu_objects.compile_objects(sources, gpu_objects.num_jobs()), strict=True))

    of_torches = [(objects.pop(torch.minor), objects.pop(calls_name(torch))) for torch in built_for]
    gpu_objects.link_library([*cxx, *link], sum(objects.values(), []), folder / "_kernels.so", gpu.link_flags)
    for torch, (of_ops, of_calls) in zip(built_for, of_torches, strict=True):
        libraries = ["-Wl,--as-needed", f"-L{torch.folder}/lib", "-ltorch_cpu", "-lc10"]
        kernels = [f"-L{folder}", "-l:_kernels.so", "-Wl,-rpath,$ORIGIN"]
        gpu_objects.link_library([*cxx, *link], of_ops, folder / f"_ops_{torch.minor}.so", [*libraries, *kernels])
        calls = folder / f"_{calls_name(torch)}.so"
        if of_calls:
            libraries.append("-ltorch_python")
            gpu_objects.link_library([*cxx, *link], of_calls, calls, libraries, is_of_python=True)
        else:
            calls.unlink(missing_ok=True)


class Wheel(bdist_wheel):
    """For every Python: the library that is for one may be missing."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


def main() -> None:
    os.chdir(HERE)
    setup(
        version=VERSION,
        packages=[PACKAGE, f"{PACKAGE}.testing"],
        package_data={PACKAGE: ["py.typed"]},
        ext_modules=[Extension(f"{PACKAGE}._kernels", [])],  # so that the wheel is for one platform
        cmdclass={"build_ext": Build, "bdist_wheel": Wheel},
    )


main()

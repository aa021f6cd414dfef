"""Builds the two libraries of torch_tiledmm (docs: CONTRIBUTING.md, "Build").

_kernels  kernels and dispatch, plain C interface, no torch: one binary for every torch version.
_ops      the torch operators on top of it: built for the torch that is installed now.
"""

import functools
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from glob import glob
from pathlib import Path

from setuptools import Extension, setup

VERSION = "0.1.0"
PACKAGE = "torch_tiledmm"
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import gpu_objects  # noqa: E402

OLDEST_GCC = 12  # __builtin_shufflevector
OLDEST_TORCH = (2, 11)
REBUILD = "pip install --no-build-isolation ."


def stop(problem: str, remedy: str) -> None:
    raise SystemExit(f"\ntorch_tiledmm: {problem}\n  What to do: {remedy}\n")


def import_torch():
    try:
        import torch
    except ImportError:
        stop(
            f"the build needs torch, and {sys.executable} has none.",
            "install torch first (CPU only: pip install torch --index-url "
            f"https://download.pytorch.org/whl/cpu), then `{REBUILD}`. "
            "Without --no-build-isolation, pip hides the installed torch from the build.",
        )
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < OLDEST_TORCH:
        stop(f"torch {torch.__version__} is too old.", "install torch >= " + ".".join(map(str, OLDEST_TORCH)))
    return torch


def compiler() -> str:
    command = os.environ.setdefault("CXX", "g++")  # torch's build asks for the same variable
    remedy = f"install g++ {OLDEST_GCC} or later (Debian: apt install g++), or set CXX."
    if not shutil.which(command.split()[0]):
        stop(f"there is no C++ compiler '{command}'.", remedy)
    run = functools.partial(subprocess.run, capture_output=True, text=True)
    macros = run([*command.split(), "-dM", "-E", "-x", "c++", os.devnull]).stdout
    gcc = re.search(r"#define __GNUC__ (\d+)", macros)
    if gcc and int(gcc[1]) < OLDEST_GCC and "#define __clang__" not in macros:
        stop(f"'{command}' is g++ {gcc[1]}, which has no __builtin_shufflevector.", remedy)
    return run([*command.split(), "--version"]).stdout.split("\n")[0].strip()


def relative(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(HERE)) for path in paths]


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


def check_shared_runtime(compiler) -> None:
    """Stops where this compiler (of setuptools, with all its flags) links the C++ runtime statically.

    An exception that one copy of the runtime throws and another catches ends the process, and torch brings the shared
    one. A library of one function tells this in a second, before the long compilations.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "probe.cpp"), Path(folder, "probe.so")
        source.write_text("void probe(int* number) { if (!number) throw 1; }\n")
        objects = compiler.compile([str(source)], output_dir=folder)
        compiler.link_shared_object(objects, str(library), target_lang="c++")
        needed = needed_libraries(library)
    if needed is not None and not any(name.startswith(("libstdc++.so", "libc++.so")) for name in needed):
        stop(
            f"CXX={os.environ['CXX']} links the C++ runtime statically, and every exception would end the process.",
            "set CXX to a g++ with a shared libstdc++, for example CXX=/usr/bin/g++, and LDFLAGS to nothing that "
            "links it statically.",
        )


class Gpu:
    """Whether and how the GPU kernels are compiled."""

    def __init__(self, torch):
        self.device, self.archs, self.why, self.command, self.link_flags = "", [], "", [], []
        self.has_hopper, self.hopper_command = False, []
        self.is_rocm = bool(torch.version.hip)
        wanted = os.environ.get("TILEDMM_CUDA")
        werror = os.environ.get("TILEDMM_WERROR") == "1"
        if self.is_rocm and wanted != "0":
            hipcc = shutil.which("hipcc") or "/opt/rocm/bin/hipcc"
            if not os.path.exists(hipcc):
                stop("torch is built for ROCm, but there is no hipcc.", "put ROCm's bin folder on the PATH")
            self.device = "hip"
            self.archs = (
                re.split("[; ]+", os.environ.get("PYTORCH_ROCM_ARCH", ""))
                if os.environ.get("PYTORCH_ROCM_ARCH")
                else list(gpu_objects.HIP_ARCHS)
            )
            self.command = gpu_objects.hip_command(hipcc, self.archs, werror=werror)
            lib = Path(hipcc).resolve().parent.parent / "lib"
            self.link_flags = [f"-L{lib}", f"-Wl,-rpath,{lib}", "-lamdhip64"]
            return
        if wanted == "0" or (not torch.version.cuda and wanted != "1"):
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
        elif torch.cuda.is_available():
            major, minor = torch.cuda.get_device_capability()
            self.archs = ["9.0a" if (major, minor) == (9, 0) else f"{major}.{minor}"]
        else:
            self.archs = ["8.0", "9.0a"]
        self.command = gpu_objects.nvcc_command(nvcc, self.archs, werror=werror)
        self.has_hopper = "9.0a" in self.archs
        self.hopper_command = gpu_objects.nvcc_command(nvcc, ["9.0a"], werror=werror)
        self.link_flags = gpu_objects.cudart_flags(nvcc)

    def describe(self, device: str) -> str:
        if self.device == device:
            return f"yes: {', '.join(self.archs)}"
        if self.is_rocm != (device == "hip"):
            return f"no: this torch is {'' if self.is_rocm else 'not '}built for ROCm"
        return f"no: {self.why}"


def main() -> None:
    os.chdir(HERE)
    build_commands = {"build_ext", "build", "bdist_wheel", "develop", "install", "editable_wheel"}
    if not build_commands & set(sys.argv):  # sdist, egg_info: neither torch nor a compiler is needed
        setup(version=VERSION, packages=[PACKAGE, f"{PACKAGE}.testing"])
        return

    torch = import_torch()
    compiled_by = compiler()
    from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths, is_ninja_available

    flags = [
        "-O3",
        "-fvisibility=hidden",
        "-ffp-contract=off",
        "-Wall",
        "-Wextra",
        "-g0",
        f'-DTILEDMM_VERSION="{VERSION}"',
    ]
    if os.environ.get("TILEDMM_WERROR") == "1":
        flags.append("-Werror")
    werror = "-Werror" in flags
    headers = glob("csrc/**/*.h", recursive=True)
    gpu = Gpu(torch)

    class Build(BuildExtension):
        """Plain file names (_kernels.so, _ops.so), so that one library finds the other on every Python."""

        def get_ext_filename(self, fullname):
            return os.path.join(*fullname.split(".")) + ".so"

        def run(self):
            print(
                f"torch_tiledmm {VERSION}: building for torch {torch.__version__} with {compiled_by}\n"
                "  CPU   yes: portable, and by run-time choice AVX2, AVX-512, AVX-512-BF16 or NEON\n"
                f"  CUDA  {gpu.describe('cuda')}\n"
                f"  ROCm  {gpu.describe('hip')}\n"
                f"  ninja {'yes' if is_ninja_available() else 'no, one file at a time: pip install ninja'}",
                flush=True,
            )
            super().run()
            info = {
                "version": VERSION,
                "torch_version": ".".join(torch.__version__.split(".")[:2]),
                "compiler": compiled_by,
                "kernels": ["cpu", *([gpu.device] if gpu.device else [])],
            }
            folder = PACKAGE if self.inplace else os.path.join(self.build_lib, PACKAGE)
            if self.inplace:  # setuptools copies the extensions alone
                for warp_size in gpu_objects.WARP_SIZES:
                    shutil.copy(os.path.join(self.build_lib, PACKAGE, f"_host_gpu_wave{warp_size}.so"), folder)
            with open(os.path.join(folder, "_build_info.json"), "w") as file:
                json.dump(info, file, indent=1)

        def build_extensions(self):
            check_shared_runtime(self.compiler)
            objects, jobs = Path(self.build_temp).resolve() / "gpu", int(os.environ["MAX_JOBS"])
            if gpu.device:
                gpu_sources = gpu_objects.gpu_sources() + (gpu_objects.cuda_sources() if gpu.device == "cuda" else [])
                compiled = gpu_objects.compile_objects(gpu_sources, gpu.command, objects / gpu.device, jobs)
                if gpu.has_hopper:
                    compiled += gpu_objects.compile_objects(
                        gpu_objects.hopper_sources(), gpu.hopper_command, objects / "sm_90a", jobs
                    )
                self.extensions[0].extra_objects = [str(path) for path in compiled]
            for warp_size in gpu_objects.WARP_SIZES:
                target = Path(self.get_ext_fullpath(f"{PACKAGE}._host_gpu_wave{warp_size}"))
                target.parent.mkdir(parents=True, exist_ok=True)
                folder = objects / f"host{warp_size}"
                gpu_objects.build_host_library(os.environ["CXX"], warp_size, folder, target, jobs, werror)
            self.extensions[1].include_dirs = [f"{HERE}/csrc"]
            # _ops is linked to the _kernels that this very build has just made.
            self.extensions[1].library_dirs.append(os.path.dirname(self.get_ext_fullpath(f"{PACKAGE}._kernels")))
            super().build_extensions()

    if "MAX_JOBS" not in os.environ:
        os.environ["MAX_JOBS"] = str(min(os.cpu_count() or 1, 8))
    gpu_macros = [
        f'-DTILEDMM_GPU_{key}="{value}"' for key, value in (("DEVICE", gpu.device), ("ARCHS", " ".join(gpu.archs)))
    ]
    kernels = Extension(
        f"{PACKAGE}._kernels",
        relative(gpu_objects.cpp_sources()),
        include_dirs=[f"{HERE}/csrc"],
        depends=headers,
        language="c++",
        extra_compile_args=["-std=c++17", *flags, *(gpu_macros if gpu.device else [])],
        extra_link_args=gpu.link_flags,
    )
    # torch's headers as system headers: their warnings are not ours.
    system_includes = [f"-isystem{path}" for path in include_paths()]
    # Nobody looks whether those have changed: after an update of torch in place, it is by the command or by a file of
    # torch's that all is compiled anew.
    ops = CppExtension(
        f"{PACKAGE}._ops",
        relative(gpu_objects.largest_first(Path(HERE).glob("csrc/torch/*.cpp"))),
        include_dirs=[f"{HERE}/csrc"],
        depends=[*headers, torch.version.__file__],
        extra_compile_args=[*flags, *system_includes, f'-DTILEDMM_TORCH="{torch.__version__}"'],
        extra_link_args=["-l:_kernels.so", "-Wl,-rpath,$ORIGIN", "-Wl,--as-needed"],
    )
    setup(
        version=VERSION,
        packages=[PACKAGE, f"{PACKAGE}.testing"],
        package_data={PACKAGE: ["_build_info.json", "py.typed"]},
        ext_modules=[kernels, ops],
        cmdclass={"build_ext": Build},
    )


main()

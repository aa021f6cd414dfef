"""Builds the two libraries of torch_tiledmm (docs: CONTRIBUTING.md, "Build").

_kernels  kernels and dispatch, plain C interface, no torch: one binary for every torch version.
_ops      the torch operators on top of it: built for the torch that is installed now.
"""

import json
import os
import shutil
import subprocess
import sys
from glob import glob

from setuptools import Extension, setup

VERSION = "0.1.0"
PACKAGE = "torch_tiledmm"
HERE = os.path.dirname(os.path.abspath(__file__))
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
    if not shutil.which(command.split()[0]):
        stop(
            f"there is no C++ compiler '{command}'.",
            "install g++ 11 or later (Debian: apt install g++), or set CXX.",
        )
    version = subprocess.run([*command.split(), "--version"], capture_output=True, text=True).stdout
    return version.split("\n")[0].strip()


def sources(*folders: str) -> list[str]:
    """Largest first: they take longest, and the last compilation has no other beside it."""
    return sorted(
        (path for folder in folders for path in glob(f"csrc/{folder}/*.cpp")),
        key=lambda path: (-os.path.getsize(path), path),
    )


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
    headers = glob("csrc/**/*.h", recursive=True)

    class Build(BuildExtension):
        """Plain file names (_kernels.so, _ops.so), so that one library finds the other on every Python."""

        def get_ext_filename(self, fullname):
            return os.path.join(*fullname.split(".")) + ".so"

        def run(self):
            print(
                f"torch_tiledmm {VERSION}: building for torch {torch.__version__} with {compiled_by}\n"
                "  CPU   yes: portable, and by run-time choice AVX2, AVX-512, AVX-512-BF16 or NEON\n"
                "  CUDA  no: this version has no GPU kernels\n"
                "  ROCm  no: this version has no GPU kernels\n"
                f"  ninja {'yes' if is_ninja_available() else 'no, one file at a time: pip install ninja'}",
                flush=True,
            )
            super().run()
            info = {
                "version": VERSION,
                "torch_version": ".".join(torch.__version__.split(".")[:2]),
                "compiler": compiled_by,
                "kernels": ["cpu"],
            }
            folder = PACKAGE if self.inplace else os.path.join(self.build_lib, PACKAGE)
            with open(os.path.join(folder, "_build_info.json"), "w") as file:
                json.dump(info, file, indent=1)

        def build_extensions(self):
            self.extensions[1].include_dirs = [f"{HERE}/csrc"]
            # _ops is linked to the _kernels that this very build has just made.
            self.extensions[1].library_dirs.append(os.path.dirname(self.get_ext_fullpath(f"{PACKAGE}._kernels")))
            super().build_extensions()

    if "MAX_JOBS" not in os.environ:
        os.environ["MAX_JOBS"] = str(min(os.cpu_count() or 1, 8))
    kernels = Extension(
        f"{PACKAGE}._kernels",
        sources("dispatch", "kernels/cpu"),
        include_dirs=[f"{HERE}/csrc"],
        depends=headers,
        language="c++",
        extra_compile_args=["-std=c++17", *flags],
    )
    # torch's headers as system headers: their warnings are not ours.
    system_includes = [f"-isystem{path}" for path in include_paths()]
    ops = CppExtension(
        f"{PACKAGE}._ops",
        sources("torch"),
        include_dirs=[f"{HERE}/csrc"],
        depends=headers,
        extra_compile_args=[*flags, *system_includes],
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

"""Finds the kernels' sources by folder and suffix, and compiles those of GPUs, for setup.py and for the tests.

    csrc/**/*.cpp                    g++, but for the host executor's own files
    csrc/kernels/gpu/*.cu            every GPU compiler: nvcc, clang for HIP, and g++ for the host executor
    csrc/kernels/cuda/*/*.cu         nvcc, and g++ for the host executor
    csrc/kernels/cuda/*/*_sm90a.cu   nvcc, for sm_90a alone

None of them sees a torch header, and nothing is translated from one language to the other.
"""

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CSRC = Path(__file__).resolve().parent / "csrc"
HIP_ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
WARP_SIZES = (32, 64)


def largest_first(paths) -> list[Path]:
    """They take longest, and the last compilation has no other beside it."""
    return sorted(paths, key=lambda path: (-path.stat().st_size, path))


def cpp_sources() -> list[Path]:
    """What g++ compiles for the library of the kernels: interface, dispatch, all entries, CPU kernels."""
    folders = ("dispatch/*.cpp", "kernels/**/*.cpp")
    return largest_first([CSRC / "api/kernels_api.cpp", *(path for folder in folders for path in CSRC.glob(folder))])


def gpu_sources() -> list[Path]:
    """The ladder's kernels."""
    return largest_first(CSRC.glob("kernels/gpu/*.cu"))


def cuda_sources() -> list[Path]:
    """Kernels for NVIDIA's chips from sm_80 on; the host executor runs them at its warp size of 32."""
    return sorted(path for path in CSRC.glob("kernels/cuda/*/*.cu") if path not in hopper_sources())


def hopper_sources() -> list[Path]:
    """Kernels for sm_90a alone."""
    return sorted(CSRC.glob("kernels/cuda/*/*_sm90a.cu"))


def host_sources(warp_size: int) -> list[Path]:
    """What the host executor runs at this warp size, the entries of all GPU kernels, and the executor itself."""
    others = (CSRC / "api", CSRC / "kernels/cpu")
    entries = [path for path in cpp_sources() if not any(path.is_relative_to(folder) for folder in others)]
    own = [CSRC / "api/host_gpu_api.cpp", CSRC / "platform/host_gpu/executor.cpp"]
    return (cuda_sources() if warp_size == 32 else []) + gpu_sources() + entries + own


def object_name(source: Path) -> str:
    return f"{source.parent.name}_{source.name}.o"


def nvcc_command(nvcc: str, archs: list[str], *, werror: bool = False) -> list[str]:
    """``archs`` as in "8.0", "9.0a", "9.0+PTX" (TORCH_CUDA_ARCH_LIST)."""
    codes = []
    for arch in archs:
        number = arch.removesuffix("+PTX").replace(".", "")
        codes.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if arch.endswith("+PTX"):
            codes.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    host = "-fPIC,-fvisibility=hidden,-Wall,-Wextra" + (",-Werror" if werror else "")
    strict = ["-Werror=all-warnings"] if werror else []
    if "--compress-mode" in subprocess.run([nvcc, "--help"], capture_output=True, text=True).stdout:
        codes.append("--compress-mode=size")  # an eighth of the library's size
    return [nvcc, "-std=c++17", "-O3", "--expt-relaxed-constexpr", *codes, "-Xcompiler", host, *strict]


def hip_command(clang: str, archs: list[str], *, standalone: bool = False, werror: bool = False) -> list[str]:
    """``standalone`` needs nothing of ROCm: device code only, for clang 20 or later."""
    command = [clang, "-x", "hip", "-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
    command += [f"--offload-arch={arch}" for arch in archs]
    command += ["-Werror"] if werror else []
    if standalone:
        command += ["-nogpuinc", "-nogpulib", "-DTILEDMM_HIP_STANDALONE"]
    return command


def host_command(cxx: str, warp_size: int, *, werror: bool = False) -> list[str]:
    command = [*cxx.split(), "-std=c++17", "-x", "c++", "-O1", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"]
    command += ["-Wall", "-Wextra", "-DTILEDMM_HOST_GPU", f"-DTILEDMM_WARP_SIZE={warp_size}"]
    return command + (["-Werror"] if werror else [])


def compile_objects(sources: list[Path], command: list[str], folder: Path, jobs: int) -> list[Path]:
    """One object for each source; those that are up to date stay. Raises RuntimeError with the compiler's words."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [*command, f"-I{CSRC}", "-c"]
    stamp = folder / "command"
    is_same = stamp.exists() and stamp.read_text() == "\n".join(command)

    def compile_one(source: Path) -> Path:
        target = folder / object_name(source)
        depends = target.with_suffix(".d")
        if is_same and is_newer(target, depends):
            return target
        print(f"  {Path(command[0]).name} {source.name}", flush=True)
        done = subprocess.run([*command, source, "-o", target, "-MMD", "-MF", depends], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} {source}:\n{done.stdout}{done.stderr}")
        return target

    with ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(compile_one, sources))
    stamp.write_text("\n".join(command))
    return objects


def is_newer(target: Path, depends: Path) -> bool:
    """Whether an object is newer than all files that its compiler read (a makefile's rule: "target: file file ...")."""
    if not target.exists() or not depends.exists():
        return False
    files = depends.read_text().split(":", 1)[1].replace("\\\n", " ").split()
    return all(os.path.exists(file) and os.path.getmtime(file) < target.stat().st_mtime for file in files)


def build_host_library(cxx: str, warp_size: int, objects_folder: Path, target: Path, jobs: int, werror: bool) -> None:
    """The rungs on the host executor, as one library."""
    command = host_command(cxx, warp_size, werror=werror)
    objects = compile_objects(host_sources(warp_size), command, objects_folder, jobs)
    subprocess.run([*cxx.split(), "-shared", "-Wl,--no-undefined", "-o", target, *objects], check=True)


def find_nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    candidates = ([f"{home}/bin/nvcc"] if home else []) + ["nvcc", "/usr/local/cuda/bin/nvcc"]
    return next((found for candidate in candidates if (found := shutil.which(candidate))), None)


def cudart_flags(nvcc: str) -> list[str]:
    """Links the runtime statically: it loads the driver when it is first used, so the library loads without one."""
    dry = subprocess.run([nvcc, "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True)
    folders = re.findall(r'"-L([^"]+)"', dry.stdout + dry.stderr)
    return [*(f"-L{folder}" for folder in folders), "-lcudart_static", "-ldl", "-lrt", "-lpthread"]

"""Finds the sources by folder and suffix, and compiles them: for setup.py, for the tests, and for host_gpu.py.

    csrc/**/*.cpp                    g++, but for the host executor's own files
    csrc/torch/*.cpp                 g++, the only ones that see torch's headers
    csrc/kernels/gpu/*.cu, csrc/platform/*.cu
                                     every GPU compiler: nvcc, clang for HIP, and g++ for the host executor
    csrc/kernels/cuda/*/*.cu         nvcc, and g++ for the host executor
    csrc/kernels/cuda/*/*_sm90a.cu   nvcc, for sm_90a alone

A source that says `constexpr int kNumInstances = 4;` is compiled four times, with TILEDMM_INSTANCE = 0, 1, 2, 3: what
would take long is compiled in parts, side by side. Nothing is translated from one language to the other.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

CSRC = Path(__file__).resolve().parents[1] / "csrc"
HIP_ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
WARP_SIZES = (32, 64)
# What the host executor's libraries need of csrc.
HOST_FOLDERS = ("api", "core", "dispatch", "kernels", "platform")
HOPPER = "kernels/cuda/*/*_sm90a.cu"


class Source(NamedTuple):
    """What one compilation compiles: a file, or one of its instances."""

    path: Path
    instance: int | None = None

    @property
    def name(self) -> str:
        """launch.cu, instances.cu.3"""
        return self.path.name + ("" if self.instance is None else f".{self.instance}")

    @property
    def object_name(self) -> str:
        return f"{self.path.parent.name}_{self.name}.o"

    def arguments(self, path: Path | None = None) -> list[str]:
        """Of a compiler. ``path``: a copy of the file that is compiled in its place."""
        macros = [] if self.instance is None else [f"-DTILEDMM_INSTANCE={self.instance}"]
        return [*macros, str(path or self.path)]


def sources_of(paths: Iterable[Path]) -> list[Source]:
    """Those that take longest first: the last compilation has no other beside it. The size of a file and of what it
    includes itself counts; of instances, the first ones take longest."""

    def size(path: Path) -> int:
        own = re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE)
        return sum(file.stat().st_size for file in [path, *(CSRC / name for name in own)] if file.exists())

    def instances(path: Path) -> Sequence[int | None]:
        text = path.read_text()
        found = re.search(r"^constexpr int kNumInstances = (\d+);", text, re.MULTILINE)
        if not found and "TILEDMM_INSTANCE" in text:
            raise RuntimeError(f"{path} does not say kNumInstances, how often it is compiled")
        return range(int(found[1])) if found else [None]

    paths = sorted(paths, key=lambda path: (-size(path), path))
    return [Source(path, instance) for path in paths for instance in instances(path)]


def cpp_sources() -> list[Source]:
    """What g++ compiles for the library of the kernels: interface, dispatch, all entries, CPU kernels."""
    folders = ("dispatch/*.cpp", "kernels/**/*.cpp")
    return sources_of([CSRC / "api/kernels_api.cpp", *(path for folder in folders for path in CSRC.glob(folder))])


def torch_sources() -> list[Source]:
    """The torch operators."""
    return sources_of(CSRC.glob("torch/*.cpp"))


def python_sources() -> list[Source]:
    """Calls of the operators past torch.ops."""
    return sources_of(CSRC.glob("python/*.cpp"))


def gpu_sources() -> list[Source]:
    """The ladder's kernels, and others for every chip."""
    return sources_of([*CSRC.glob("kernels/gpu/*.cu"), *CSRC.glob("platform/*.cu")])


def cuda_sources() -> list[Source]:
    """Kernels for NVIDIA's chips from sm_80 on; the host executor runs them at its warp size of 32."""
    return sources_of(set(CSRC.glob("kernels/cuda/*/*.cu")) - set(CSRC.glob(HOPPER)))


def hopper_sources() -> list[Source]:
    """Kernels for sm_90a alone."""
    return sources_of(CSRC.glob(HOPPER))


def hip_sources() -> list[Source]:
    """Kernels for AMD's chips."""
    return sources_of(CSRC.glob("kernels/hip/*/*.cu"))


def is_gpu_entry(source: Source) -> bool:
    """Whether the source is an entry of GPU kernels."""
    return source.name in ("rung.cpp", "rungs.cpp") and not source.path.is_relative_to(CSRC / "kernels/cpu")


def object_of_the_build(source: Source) -> Path | None:
    """The object that setup.py's build has left in this checkout of a source of the kernels' library, if it is up to
    date. None for the interface, which says what was built."""
    found = CSRC.parent / "build/objects/kernels" / source.object_name
    is_same = not source.path.is_relative_to(CSRC / "api")
    return found if is_same and is_newer(found, found.with_suffix(".d")) else None


def host_sources(warp_size: int) -> list[Source]:
    """What the host executor runs at this warp size, the entries of all GPU kernels, and the executor itself."""
    others = (CSRC / "api", CSRC / "kernels/cpu")
    entries = [one for one in cpp_sources() if not any(one.path.is_relative_to(folder) for folder in others)]
    own = [Source(CSRC / "api/host_gpu_api.cpp"), Source(CSRC / "platform/host_gpu/executor.cpp")]
    return (cuda_sources() if warp_size == 32 else []) + gpu_sources() + entries + own


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


def find_rocm() -> Path | None:
    """ROCm's folder, by the rules of torch.utils.cpp_extension: ROCM_HOME or ROCM_PATH names it, else it is the package
    of pip, or around the hipcc on the PATH, or /opt/rocm. None where there is no hipcc."""
    rocm = Path("/opt/rocm")
    if named := os.environ.get("ROCM_HOME") or os.environ.get("ROCM_PATH"):
        rocm = Path(named)
    elif (package := importlib.util.find_spec("_rocm_sdk_core")) and package.origin:
        rocm = Path(package.origin).parent
    elif on_path := shutil.which("hipcc"):
        rocm = Path(on_path).resolve().parents[1]
    return rocm if shutil.which(rocm / "bin" / "hipcc") else None


def hip_runtime_flags(rocm: Path, major: str) -> list[str]:
    """Links HIP's runtime of this major version by its full name: pip's ROCm has no libamdhip64.so, and a process
    where torch brought another one would have two. Raises RuntimeError where there are only others."""
    name = f"libamdhip64.so.{major}"
    others = []
    for folder in (rocm / "lib", rocm / "lib64"):
        if (folder / name).exists():
            return [f"-L{folder}", f"-Wl,-rpath,{folder}", f"-l:{name}"]
        others += sorted(folder.glob("libamdhip64.so*"))
    if others:
        raise RuntimeError(f"torch is built for HIP {major}, but {rocm} has {others[-1].name}")
    return [f"-l:{name}"]  # Debian's folder is one that the linker knows


def host_command(cxx: str, warp_size: int, *, werror: bool = False) -> list[str]:
    """-Og: -O1 takes twice as long to compile. Most of the time to run is the executor's, which is optimised."""
    command = [*shlex.split(cxx), "-std=c++17", "-x", "c++", "-Og", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"]
    command += ["-Wall", "-Wextra", "-DTILEDMM_HOST_GPU", f"-DTILEDMM_WARP_SIZE={warp_size}"]
    return command + (["-Werror"] if werror else [])


class Sources(NamedTuple):
    """Sources that one command compiles, and the folder of their objects."""

    sources: list[Source]
    command: list[str]
    folder: Path


def compile_objects(groups: list[Sources], jobs: int, *, is_quiet: bool = False) -> list[list[Path]]:
    """The objects of each group, all side by side, the first ones first; those that are up to date stay.

    An object is up to date if it was made by the same command and is newer than all files that its compiler read.
    Raises RuntimeError with the compiler's words.
    """

    def compile_one(source: Source, command: list[str], folder: Path) -> Path:
        target = folder / source.object_name
        depends, made_by = target.with_suffix(".d"), target.with_suffix(".command")
        command = [*command, f"-I{CSRC}", "-c", *source.arguments(), "-o", str(target), "-MD", "-MF", str(depends)]
        is_same = made_by.exists() and made_by.read_text() == shlex.join(command)
        if is_same and is_newer(target, depends):
            return target
        if not is_quiet:
            print(f"  {Path(command[0]).name} {source.path.parent.relative_to(CSRC) / source.name}", flush=True)
        made_by.unlink(missing_ok=True)  # what is interrupted is not up to date
        run_compiler(command)
        made_by.write_text(shlex.join(command))
        return target

    for group in groups:
        group.folder.mkdir(parents=True, exist_ok=True)
    pool = ThreadPoolExecutor(jobs)
    try:
        started = [[pool.submit(compile_one, source, *group[1:]) for source in group.sources] for group in groups]
        return [[one.result() for one in group] for group in started]
    finally:
        pool.shutdown(cancel_futures=True)  # after a failure the rest need not be tried


def run_compiler(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)}:\n{done.stdout}{done.stderr}")


def is_newer(target: Path, depends: Path) -> bool:
    """Whether an object is newer than all files that its compiler read (a makefile's rule: "target: file file ...")."""
    if not target.exists() or not depends.exists():
        return False
    files = depends.read_text().split(":", 1)[1].replace("\\\n", " ").split()
    return all(os.path.exists(file) and os.path.getmtime(file) < target.stat().st_mtime for file in files)


def link_library(
    command: list[str], objects: list[Path], target: Path, flags: Sequence[str] = (), *, is_of_python: bool = False
) -> None:
    """Links a shared library, unless it is newer than its objects and made by the same command. One that uses Python's
    interface (`is_of_python`) finds its symbols when it is loaded, all others must find them here.

    It takes its place in one step: whoever has the old one loaded keeps it.
    """
    no_undefined = [] if is_of_python else ["-Wl,--no-undefined"]
    command = [*command, "-shared", *no_undefined, *map(str, objects), *flags]
    made_by = objects[0].parent / f"{target.name}.command"
    is_same = made_by.exists() and made_by.read_text() == shlex.join([*command, str(target)])
    if is_same and target.exists() and all(one.stat().st_mtime < target.stat().st_mtime for one in objects):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    finished = target.with_name(f"{target.name}.{os.getpid()}")
    run_compiler([*command, "-o", str(finished)])
    finished.replace(target)
    made_by.write_text(shlex.join([*command, str(target)]))


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time builds in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def host_cache() -> Path:
    """Where the host executor's libraries are kept: in a checkout's build folder, else with the user's other caches,
    in a folder of these very sources and compiler."""
    if (CSRC.parent / "setup.py").exists():
        return CSRC.parent / "build" / "host_gpu"
    found = hashlib.sha256()
    for path in sorted(path for path in [Path(__file__), *CSRC.rglob("*")] if path.is_file()):
        found.update(path.read_bytes())
    cxx = shlex.split(os.environ.get("CXX", "g++"))
    found.update(subprocess.run([*cxx, "--version"], capture_output=True).stdout)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "torch_tiledmm" / "host_gpu" / found.hexdigest()[:16]


def host_library(warp_size: int) -> Path:
    """The rungs on the host executor, as one library; compiled where it is missing or older than its sources."""
    cxx = os.environ.get("CXX", "g++")
    if not shutil.which(shlex.split(cxx)[0]):
        raise RuntimeError(
            f"there is no C++ compiler '{cxx}', and the GPU kernels on the CPU are compiled when they are first asked "
            "for: install g++ 12 or later (Debian: apt install g++), or set CXX"
        )
    cache, command = host_cache(), host_command(cxx, warp_size)
    folder = cache / f"wave{warp_size}"
    kernels = [source for source in host_sources(warp_size) if source.path.suffix == ".cu"]
    *entries, executor = [source for source in host_sources(warp_size) if source.path.suffix == ".cpp"]
    groups = [Sources(kernels, command, folder), Sources([executor], [*command, "-O2"], folder)]
    # Entries do not know the warp size, and those of kernels not even for whom they are compiled.
    built = {source: found for source in entries if is_gpu_entry(source) and (found := object_of_the_build(source))}
    entries = [source for source in entries if source not in built]
    groups.append(Sources(entries, host_command(cxx, WARP_SIZES[0]), cache / "entries"))
    with locked(cache):
        target = folder / f"_host_gpu_wave{warp_size}.so"
        if not target.exists():
            print("torch_tiledmm: compiling the GPU kernels for the CPU, half a minute, once", file=sys.stderr)
        objects = compile_objects(groups, num_jobs(), is_quiet=True)
        link_library(shlex.split(cxx), sum(objects, [*built.values()]), target)
    return target


def num_jobs() -> int:
    """Compilers at a time: MAX_JOBS, else one for each core and each 2 GB of memory."""
    if os.environ.get("MAX_JOBS"):
        return int(os.environ["MAX_JOBS"])
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(len(os.sched_getaffinity(0)), memory // (2 << 30)))


def find_nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    candidates = ([f"{home}/bin/nvcc"] if home else []) + ["nvcc", "/usr/local/cuda/bin/nvcc"]
    return next((found for candidate in candidates if (found := shutil.which(candidate))), None)


def cudart_flags(nvcc: str) -> list[str]:
    """Links the runtime statically: it loads the driver when it is first used, so the library loads without one."""
    dry = subprocess.run([nvcc, "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True)
    folders = re.findall(r'"-L([^"]+)"', dry.stdout + dry.stderr)
    return [*(f"-L{folder}" for folder in folders), "-lcudart_static", "-ldl", "-lrt", "-lpthread"]

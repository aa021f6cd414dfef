"""The build for ROCm, without ROCm: setup.py with a hipcc that is clang, linked with a runtime that stands in for AMD's
(tests/rocm). Whole calls go through the C interface, dispatch and launchers; amd_interpreter of tools/ executes what
they launch.

Planted bugs that these tests caught: a block of half its threads, a grid with x and y exchanged, arguments in another
order, no stream, shared memory asked for twice, batch dimensions that point into the host; CUs counted in pairs, a
chip's name read with its features, an error of the runtime in nobody's words; a name of another version, one that the
runtime lacks, HIP 5's properties of a device, no rpath, a runtime of another file name; operators without the macros of
torch's headers.
"""

import ctypes
import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from math import ceil
from pathlib import Path

import gpu_objects
import pytest
import torch
from amd_interpreter.structs import FoldedProblem

from torch_tiledmm import explain
from torch_tiledmm.host_gpu import _BatchDim, _GemmProblem
from torch_tiledmm.testing.reference import ACTIVATIONS, assert_close, expect_linear, expect_matmul

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "rocm"))
from stand_in import ARCHS, RUNTIME, STREAM, HipLibrary, Memory, make_rocm, make_runtime  # noqa: E402

CHIPS = ("gfx942", "gfx1100")
# What is compiled of csrc/kernels, with the names of the algorithms; all of it would take minutes.
COMPILED = {
    "gpu/01_naive.cu": ["naive"],
    "gpu/04_register_tiled.cu": ["register_tiled", "register_tiled.4x4"],
    "gpu/05_mma.cu": ["mma"],
}
# What the library asks the runtime for. The version of a name is that of AMD's library, 6.0 for what HIP 6 changed.
NEEDED = {
    "__hipPopCallConfiguration": "hip_4.2",
    "__hipRegisterFatBinary": "hip_4.2",
    "__hipRegisterFunction": "hip_4.2",
    "__hipUnregisterFatBinary": "hip_4.2",
    "hipGetDevicePropertiesR0600": "hip_6.0",
    "hipGetErrorString": "hip_4.2",
    "hipGetLastError": "hip_4.2",
    "hipLaunchKernel": "hip_4.2",
    "hipSetDevice": "hip_4.2",
}
DTYPES = {
    "fp32": (torch.float32, 0),
    "fp64": (torch.float64, 1),
    "fp16": (torch.float16, 2),
    "bf16": (torch.bfloat16, 3),
}
OK, UNSUPPORTED, LAUNCH_FAILED = 0, 2, 4  # Status


def make_torch(folder: Path) -> Path:
    """What the build needs of a torch for ROCm: its version, and libraries to link with."""
    (folder / "lib").mkdir(parents=True)
    (folder / "version.py").write_text("__version__ = '2.13.0+rocm7.1'\ncuda = None\nhip = '7.1.25424'\n")
    for name in ("torch_cpu", "c10"):
        command = ["g++", "-shared", "-x", "c++", os.devnull, "-o", folder / "lib" / f"lib{name}.so"]
        subprocess.run(command, check=True)
    return folder


def make_tree(tree: Path) -> Path:
    """The sources of a build with few kernels of csrc: launchers are weak, so what is not there is "not compiled"."""
    tree.mkdir()
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, tree)
    (tree / "tools").mkdir()
    shutil.copy2(ROOT / "tools/gpu_objects.py", tree / "tools")
    (tree / "torch_tiledmm").mkdir()
    shutil.copytree(gpu_objects.CSRC, tree / "csrc")
    kernels = tree / "csrc" / "kernels"
    kept = {kernels / name for name in COMPILED}
    kept |= {entries for source in kept for entries in source.parent.glob("*.cpp")}
    kept.add(tree / "csrc" / "torch" / "abi.cpp")
    for source in [*kernels.rglob("*.c*"), *tree.glob("csrc/torch/*.cpp"), *tree.glob("csrc/python/*.cpp")]:
        if source not in kept:
            source.unlink()
    entries = "".join(source.read_text() for source in kept if source.suffix == ".cpp")
    rungs = (kernels / "rungs.def").read_text()
    for line, namespace, name in re.findall(r"(TILEDMM_RUNG\((\w+), (\w+)\)\n)", rungs):
        if namespace != "gpu" or f"{name}_rung" not in entries:
            rungs = rungs.replace(line, "")
    (kernels / "rungs.def").write_text(rungs)
    # Kernels of one dtype: dtypes that differ, and those of 8 bits, would take most of the time.
    epilogue = tree / "csrc" / "platform" / "epilogue.h"
    all_of_one = r"\1  return visit_dtype(problem.dtype_a, [&](auto* a) { return visit(a, a, a); });\n}\n"
    text, count = re.subn(r"(?s)(auto visit_elements\([^\n]+\n).*?\n}\n", all_of_one, epilogue.read_text())
    assert count == 1
    epilogue.write_text(text)
    setup = (tree / "setup.py").read_text()
    assert setup.count('"-O3"') == 1
    (tree / "setup.py").write_text(setup.replace('"-O3"', '"-O0"'))  # of the host's part
    return tree


def run_setup(tree: Path, rocm: Path, torch_folder: Path, **env: str) -> subprocess.CompletedProcess:
    decides = ("ROCM_HOME", "ROCM_PATH", "PYTORCH_ROCM_ARCH", "TILEDMM_CUDA")
    full = {name: value for name, value in os.environ.items() if name not in decides}
    # One job: where hipcc compiles nothing, which comes first, nothing else is compiled.
    full |= {"ROCM_HOME": str(rocm), "TILEDMM_TORCHES": str(torch_folder), "MAX_JOBS": "1", **env}
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    return subprocess.run(command, cwd=tree, env=full, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="session")
def build(built_once, num_jobs):
    """The folder of ROCm, torch and the tree in which the library was built, and what the build said."""
    if not shutil.which("clang++-22"):
        assert os.environ.get("CI") != "true", "CI needs clang-22, lld-22 and llvm-22"
        pytest.skip("there is no clang++-22")

    def build_all(folder: Path) -> None:
        tree, torch_folder = make_tree(folder / "tree"), make_torch(folder / "torch")
        options = {"PYTORCH_ROCM_ARCH": "gfx942;gfx1100 gfx1030", "TILEDMM_WERROR": "1", "MAX_JOBS": str(num_jobs)}
        done = run_setup(tree, make_rocm(folder / "rocm"), torch_folder, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        (folder / "output").write_text(done.stdout)

    return built_once("rocm_build", build_all)


@pytest.fixture(scope="session")  # a process that loads it a second time registers nothing
def library(build, tmp_path_factory):
    kernels = build / "tree" / "torch_tiledmm" / "_kernels.so"
    return HipLibrary(kernels, build / "rocm", tmp_path_factory.mktemp("code"))


# ---- What was built


def tool(*command: object) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.takes_long
def test_the_library_needs_these_names_of_the_runtime(build):
    kernels = build / "tree" / "torch_tiledmm" / "_kernels.so"
    symbols = tool("nm", "-D", "--undefined-only", "--with-symbol-versions", kernels)
    assert dict(re.findall(r" [Uw] (\w*[hH]ip\w*)@(\S+)", symbols)) == NEEDED
    assert "stand_in" not in symbols
    dynamic = tool("readelf", "-d", kernels)
    assert re.findall(r"NEEDED.*\[(libamdhip64.*)\]", dynamic) == ["libamdhip64.so.7"]
    assert f"[{build / 'rocm' / 'lib'}]" in dynamic


def test_the_build_says_for_which_chips(build):
    output = (build / "output").read_text()
    assert "ROCm   yes: gfx942, gfx1100; PYTORCH_ROCM_ARCH has others, too: gfx1030\n" in output
    assert "CUDA   no: this torch is built for ROCm\n" in output
    info = json.loads((build / "tree" / "torch_tiledmm" / "_build_info.json").read_text())
    assert info["kernels"] == ["cpu", "hip"]


def test_the_operators_see_the_headers_that_torch_was_compiled_with(build):
    (command,) = (build / "tree" / "build" / "objects" / "2.13").glob("torch_*.command")
    assert {"-DUSE_ROCM=1", "-D__HIP_PLATFORM_AMD__=1"} <= set(command.read_text().split())


def objects_of(build) -> dict[str, Path]:
    """Those of the library of the kernels."""
    return {path.name: path for path in (build / "tree" / "build" / "objects").glob("[hk]*/*.o")}


def test_each_fat_binary_is_registered(build, library):
    """One for each file with kernels."""
    num_binaries = sum("__hipRegisterFatBinary" in tool("nm", path) for path in objects_of(build).values())
    assert library.num_binaries == num_binaries > 0


# ---- Launches


def problem_of(m, n, k, dtype, layout="NN", batch=0) -> _GemmProblem:
    """Operands at made-up addresses, whose leading dimensions are larger than their sizes."""
    strides = {"N": lambda rows, cols: (cols + 8, 1), "T": lambda rows, cols: (1, rows + 16)}
    problem = _GemmProblem(m=m, n=n, k=k, dtype=DTYPES[dtype][1], a=1 << 40, b=2 << 40, c=3 << 40)
    problem.stride_am, problem.stride_ak = strides[layout[0]](m, k)
    problem.stride_bk, problem.stride_bn = strides[layout[1]](k, n)
    problem.stride_cm, problem.stride_cn = n + 24, 1
    if batch:
        # No two batches lie so that they fold into a larger product.
        problem.dims = _BatchDim(batch, 3 * m * k + 64, 5 * k * n + 64, 7 * m * (n + 24))
        problem.batch_dims, problem.num_batch_dims = (_BatchDim * 1)(problem.dims), 1
    return problem


# m, n, k, batch. At 640 x 384 the number of CUs decides between two tiles of RDNA.
SIZES = [(1, 1, 1, 0), (70, 45, 50, 0), (640, 384, 9, 0), (513, 260, 129, 3), (2048, 2048, 64, 0), (8, 40, 7, 70000)]
CALLS = [
    (chip, algorithm, dtype)
    for algorithm in itertools.chain(*COMPILED.values())
    for chip in CHIPS
    for dtype in DTYPES
    if not algorithm.startswith("mma") or chip == "gfx942" or dtype in ("fp16", "bf16")
]


def plain(value: object) -> object:
    """A field of a structure; of one that is a structure itself, its fields."""
    if not isinstance(value, ctypes.Structure):
        return value
    return [getattr(value, name) for name, _ in value._fields_]


@pytest.mark.parametrize("chip, algorithm, dtype", CALLS)
def test_launch(chip, algorithm, dtype, library):
    for (m, n, k, batch), layout in itertools.product(SIZES, ("NN", "TT")):
        problem = problem_of(m, n, k, dtype, layout, batch)
        status, reason = library.gemm(problem, algorithm, ARCHS.index(chip))
        assert status == OK, reason
        (launch,) = library.launches
        explained = explain(m, n, k, dtype, layout=layout, device=f"hip:{chip}", batch=batch)
        block = next(c.config["block"] for c in explained.candidates if c.algorithm == algorithm)
        block_m, block_n = map(int, block.split("x"))
        num_tiles = ceil(m / block_m) * ceil(n / block_n)
        assert launch.grid == (num_tiles, min(batch or 1, 65535), 1)
        assert launch.stream == STREAM
        got = FoldedProblem.from_buffer_copy(launch.args[0])
        assert got.batch_size == (batch or 1) and got.asked_n == n
        for name, _ in _GemmProblem._fields_:
            if name != "batch_dims":
                assert plain(getattr(got.gemm, name)) == plain(getattr(problem, name)), name
        assert not got.gemm.batch_dims  # they are the host's
        if batch:
            assert bytes(got.batch_dims[0]) == bytes(problem.batch_dims[0])
        if algorithm == "mma":  # sums of whole tiles, in the accumulator's dtype
            size = num_tiles * (batch or 1) * block_m * block_n * (8 if dtype == "fp64" else 4)
            assert library.allocated == [size]
            assert int.from_bytes(launch.args[1], "little") == 0x1000
        assert library.num_borrowed == 0


# ---- Whole calls, executed


class Operand:
    """Matrices within larger ones that are full of nan, at an address of the interpreter's memory."""

    def __init__(self, memory: Memory, name: str, shape: tuple[int, int, int], dtype: torch.dtype, is_transposed=False):
        batch, rows, cols = shape
        self.whole = torch.full(
            (batch, cols, rows + 5) if is_transposed else (batch, rows, cols + 3), torch.nan, dtype=dtype
        )
        self.values = self.whole[..., :rows].mT if is_transposed else self.whole[..., :cols]
        self.address = memory.add(name, self.whole.reshape(-1).view(torch.uint8).numpy(), writable=name == "c")

    def fill(self) -> "Operand":
        self.values.copy_(torch.rand(self.values.shape, dtype=torch.float64) * 2 - 1)
        return self


@pytest.mark.parametrize(
    "chip, algorithm, dtype, sizes, layout, seed",
    [
        ("gfx942", "naive", "bf16", (3, 9, 33, 13), "NT", None),
        ("gfx942", "register_tiled", "fp32", (1, 70, 45, 50), "TN", 1),
        ("gfx942", "register_tiled", "fp64", (1, 70, 20, 19), "NN", 2),
        ("gfx942", "mma", "fp16", (1, 70, 45, 80), "TT", 3),
        ("gfx942", "auto", "fp32", (1, 65, 66, 35), "NN", 4),
    ],
)
def test_a_whole_call_is_right(chip, algorithm, dtype, sizes, layout, seed, library):
    check_whole_call(library, chip, algorithm, dtype, sizes, layout, seed)


def check_whole_call(library, chip, algorithm, dtype, sizes, layout, seed=None) -> None:
    """Sizes are batch, m, n, k; without a batch, bias and activation come, too."""
    (batch, m, n, k), (torch_dtype, dtype_idx), memory = sizes, DTYPES[dtype], Memory()
    a = Operand(memory, "a", (batch, m, k), torch_dtype, layout[0] == "T").fill()
    b = Operand(memory, "b", (batch, k, n), torch_dtype, layout[1] == "T").fill()
    bias = Operand(memory, "bias", (1, 1, n), torch_dtype).fill()
    c = Operand(memory, "c", (batch, m, n), torch_dtype)
    problem = _GemmProblem(m=m, n=n, k=k, dtype=dtype_idx, a=a.address, b=b.address, c=c.address)
    stride_a, problem.stride_am, problem.stride_ak = a.values.stride()
    stride_b, problem.stride_bk, problem.stride_bn = b.values.stride()
    stride_c, problem.stride_cm, problem.stride_cn = c.values.stride()
    if batch > 1:
        problem.batch_dims = (_BatchDim * 1)(_BatchDim(batch, stride_a, stride_b, stride_c))
        problem.num_batch_dims = 1
        expected = expect_matmul(a.values, b.values)
    else:
        problem.bias, problem.stride_bias_n, problem.activation = bias.address, 1, ACTIVATIONS.index("relu")
        expected = expect_linear(a.values, b.values[0].mT, bias.values[0, 0], "relu")
    status, reason = library.gemm(problem, algorithm, ARCHS.index(chip), memory=memory, seed=seed)
    assert status == OK, reason
    assert_close(c.values, expected)
    assert c.whole[..., n:].isnan().all()


# ---- What goes wrong


def test_a_gpu_that_is_not_there(library):
    problem = problem_of(64, 64, 64, "fp32")
    for _ in range(2):  # the runtime has forgotten it by the second time
        status, reason = library.gemm(problem, "naive", len(ARCHS))
        assert (status, reason) == (LAUNCH_FAILED, f"GPU {len(ARCHS)} cannot be used: invalid device ordinal")
    assert library.gemm(problem, "naive", 0) == (OK, "")


def test_a_gpu_without_kernels(library):
    status, reason = library.gemm(problem_of(64, 64, 64, "fp32"), "auto", ARCHS.index("gfx1030"))
    assert status == UNSUPPORTED
    assert reason.startswith("there are no kernels for this GPU; supported are") and "gfx90a, gfx942" in reason


def test_a_gpu_that_the_library_is_not_compiled_for(library):
    status, reason = library.gemm(problem_of(64, 64, 64, "fp32"), "naive", ARCHS.index("gfx90a"))
    why = "invalid device function: this build is for other chips"
    assert (status, reason) == (LAUNCH_FAILED, f"the launch of algorithm 'naive' on gfx90a failed: {why}")


def test_a_grid_beyond_the_runtime(library):
    """2^32 threads along x are too many for it, though not for CUDA's."""
    status, reason = library.gemm(problem_of(1 << 16, 1 << 16, 1, "fp32"), "naive", 0)
    assert status == LAUNCH_FAILED and reason.endswith("failed: invalid configuration argument")
    assert library.gemm(problem_of((1 << 16) - 8, 1 << 16, 1, "fp32"), "naive", 0) == (OK, "")


def test_a_kernel_that_is_not_compiled(library):
    status, reason = library.gemm(problem_of(64, 64, 64, "fp32"), "block_tiled", 0)
    assert status == UNSUPPORTED and reason.endswith("this build lacks it: it was not compiled for this chip")


# ---- The runtime


def test_a_process_has_one_runtime(build, tmp_path):
    """torch's wheels have it as torch/lib/libamdhip64.so, with the SONAME that the libraries of ROCm ask for."""
    own = tmp_path / "libamdhip64.so"
    make_runtime(own)
    kernels = build / "tree" / "torch_tiledmm" / "_kernels.so"
    code = (
        "import ctypes, pathlib, re, sys\n"
        "for path in sys.argv[1:]: ctypes.CDLL(path)\n"
        "print(set(re.findall(r'\\S*libamdhip64\\S*', pathlib.Path('/proc/self/maps').read_text())))\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    for loaded, expected in (([own, kernels], own), ([kernels], build / "rocm" / "lib" / RUNTIME)):
        done = subprocess.run([sys.executable, "-c", code, *loaded], env=env, capture_output=True, text=True)
        assert done.stdout.strip() == str({str(expected)}), done.stderr


def test_a_runtime_that_lacks_a_name_is_noticed_by_the_build(build, tmp_path):
    make_runtime(tmp_path / "lib" / RUNTIME, "-DhipGetLastError=other")
    flags = gpu_objects.hip_runtime_flags(tmp_path, "7")
    with pytest.raises(RuntimeError, match="hipGetLastError"):
        gpu_objects.link_library(["g++"], list(objects_of(build).values()), tmp_path / "other.so", flags)


def true_headers() -> Path:
    """The headers of HIP 7: of ROCm, of Triton, which brings them, or where TILEDMM_HIP_INCLUDE says."""
    triton = importlib.util.find_spec("triton")
    places = [os.environ.get("TILEDMM_HIP_INCLUDE"), "/opt/rocm/include"]
    places += [Path(triton.origin).parent / "backends" / "amd" / "include"] if triton else []
    found = next((Path(place) for place in places if place and Path(place, "hip", "hip_runtime.h").exists()), None)
    return found or pytest.skip("there are no headers of HIP: TILEDMM_HIP_INCLUDE=.../triton/backends/amd/include")


def test_the_headers_of_hip_declare_the_same(build, tmp_path):
    """A runtime that was compiled with the stand-in for them serves what was compiled with them."""
    rocm, csrc, objects = make_rocm(tmp_path / "rocm", true_headers()), build / "tree" / "csrc", objects_of(build)
    command = [*gpu_objects.hip_command(str(rocm / "bin" / "hipcc"), ["gfx942"], werror=True), f"-I{csrc}"]
    for source in (csrc / "platform/device.cu", csrc / "kernels/gpu/01_naive.cu"):
        target = tmp_path / gpu_objects.Source(source).object_name
        assert target.name in objects
        subprocess.run([*command, "-c", source, "-o", target], check=True)
        objects[target.name] = target
    flags = gpu_objects.hip_runtime_flags(build / "rocm", "7")
    gpu_objects.link_library(["g++"], [*objects.values()][::-1], tmp_path / "other.so", flags)
    library = HipLibrary(tmp_path / "other.so", build / "rocm", tmp_path)
    check_whole_call(library, "gfx942", "naive", "fp16", (2, 9, 33, 13), "NN")


# ---- The choices of setup.py, up to the first compilation of a kernel


@pytest.fixture(scope="module")
def small_tree(tmp_path_factory):
    """A build that ends at its first kernel, with the words of a hipcc that compiles nothing."""
    folder = tmp_path_factory.mktemp("choices")
    tree = make_tree(folder / "tree")
    (tree / "csrc" / "torch" / "abi.cpp").unlink()
    for source in (tree / "csrc").rglob("*.cu"):
        if source.name != "01_naive.cu":
            source.unlink()
    return tree, make_torch(folder / "torch")


def fake_rocm(folder: Path, *libraries: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "hipcc").write_text(f'#!/bin/sh\necho "hipcc of {folder.name}: $@" >&2\nexit 1\n')
    (folder / "bin" / "hipcc").chmod(0o755)
    (folder / "lib").mkdir()
    for name in libraries:
        (folder / "lib" / name).touch()
    return folder


@pytest.mark.parametrize(
    "wanted, archs",
    [
        ("", ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"]),
        ("gfx942", ["gfx942"]),
        ("gfx90a:xnack-; gfx942;", ["gfx90a:xnack-", "gfx942"]),
        ("gfx906 gfx1201 gfx11-generic", ["gfx1201"]),
    ],
)
def test_chips_are_those_of_the_variable(wanted, archs, small_tree, tmp_path):
    done = run_setup(
        small_tree[0], fake_rocm(tmp_path / "rocm", "libamdhip64.so.7"), small_tree[1], PYTORCH_ROCM_ARCH=wanted
    )
    assert done.returncode == 1
    assert re.findall(r"--offload-arch=(\S*)", done.stderr.split("hipcc of rocm:")[1]) == archs


@pytest.mark.parametrize(
    "wanted, message",
    [
        ("sm_80", "PYTORCH_ROCM_ARCH has 'sm_80', which is no chip of AMD."),
        ("gfx942;gfx110O", "PYTORCH_ROCM_ARCH has 'gfx110O', which is no chip of AMD."),
        ("gfx906;gfx1030", "there are no kernels for gfx906, gfx1030 of PYTORCH_ROCM_ARCH."),
    ],
)
def test_chips_that_nothing_can_be_compiled_for(wanted, message, small_tree, tmp_path):
    done = run_setup(
        small_tree[0], fake_rocm(tmp_path / "rocm", "libamdhip64.so.7"), small_tree[1], PYTORCH_ROCM_ARCH=wanted
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert message in done.stderr and "name some of gfx90a, gfx942, gfx950, gfx1100, gfx1201" in done.stderr


def test_rocm_is_found_where_torch_finds_it(small_tree, tmp_path):
    named, on_path = (fake_rocm(tmp_path / name, "libamdhip64.so.7") for name in ("named", "on_path"))
    path = {"PATH": f"{on_path / 'bin'}:{os.environ['PATH']}"}
    package = tmp_path / "site" / "_rocm_sdk_core"
    fake_rocm(package, "libamdhip64.so.7")
    (package / "__init__.py").touch()
    in_package = {"PYTHONPATH": str(package.parent)}
    for rocm, env in (
        (named, {"ROCM_HOME": "", "ROCM_PATH": str(named), **path, **in_package}),
        (package, {"ROCM_HOME": "", **path, **in_package}),
        (on_path, {"ROCM_HOME": "", **path}),
    ):
        done = run_setup(small_tree[0], named, small_tree[1], **env)
        assert f"hipcc of {rocm.name}: " in done.stderr, done.stderr


@pytest.mark.parametrize(
    "libraries, message",
    [
        (None, "torch is built for ROCm, but there is no hipcc."),
        (["libamdhip64.so", "libamdhip64.so.6"], "torch is built for HIP 7, but {rocm} has libamdhip64.so.6."),
    ],
)
def test_a_build_without_the_right_rocm_says_what_to_do(libraries, message, small_tree, tmp_path):
    rocm = tmp_path / "rocm"
    if libraries:
        fake_rocm(rocm, *libraries)
    done = run_setup(small_tree[0], rocm, small_tree[1])
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert message.format(rocm=rocm) in done.stderr and "in ROCM_HOME" in done.stderr


def test_cuda_0_leaves_the_kernels_out(small_tree, tmp_path):
    """Nothing of ROCm is looked for."""
    done = run_setup(small_tree[0], tmp_path, small_tree[1], TILEDMM_CUDA="0", CXX="false")
    assert "  ROCm   no: TILEDMM_CUDA=0\n" in done.stdout

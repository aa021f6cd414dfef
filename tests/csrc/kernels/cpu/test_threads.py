"""The C interface called by many threads at once, compiled with the thread sanitizer (threads.cpp).

The mutants say that it can fail: what threads share without an atomic, and a GPU that stays unknown or half known. They
are compiled with the rest and switched on by an environment variable, as in ../gpu/test_host_execution.py.
"""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import compilers
import gpu_objects
import pytest
from test_sanitize import SOURCE_OF

import torch_tiledmm

HERE = Path(__file__).parent
CSRC = HERE.parents[3] / "csrc"


# The same sources as AVX2's, with other vectors: compiling them would take more than half of the time.
LEFT_OUT = {SOURCE_OF["avx512"], SOURCE_OF["avx512_bf16"]}
# What this machine does not run.
ISA = torch_tiledmm.build_info().isa["cpu"]
LEFT_OUT |= {SOURCE_OF["portable"]} if ISA != "portable" else set()
LEFT_OUT |= {"amx.cpp", "amx_split.cpp"} if not ISA.startswith("amx") else set()
# What spends most of the time in loops without vectors, and is compiled fast.
OPTIMISED = {"01_naive.cpp", "02_block_tiled.cpp", "threads.cpp"}
TILE, DEVICE = "kernels/cpu/register_tiled/launch.h", "platform/device.cu"
# name: file, text, what takes its place ({on}: this mutant is switched on)
MUTANTS = {
    "a counter without an atomic": (
        "kernels/cpu/01_naive.cpp",
        "Status launch_naive(const FoldedProblem& folded, const Plan&, const Executor&) {",
        "Status launch_naive(const FoldedProblem& folded, const Plan&, const Executor&) {\n"
        "  static int64_t num_calls = 0;\n  if ({on}) ++num_calls;",
    ),
    "a table that is destroyed at exit": (
        "kernels/cpu/02_block_tiled.cpp",
        "Status launch_block_tiled(const FoldedProblem& folded, const Plan&, const Executor& executor) {",
        "Status launch_block_tiled(const FoldedProblem& folded, const Plan&, const Executor& executor) {\n"
        "  static struct Table {\n    int64_t* size = new int64_t(1);\n    ~Table() { delete size; }\n  } table;\n"
        "  if ({on} && *table.size != 1) return Status::unsupported;",
    ),
    "a workspace that calls share": (
        TILE,
        # Written here, since which path writes there is for each chip to choose.
        "const bool is_near = bytes <=",
        "[[maybe_unused]] static char shared_workspace;\n  if ({on}) shared_workspace = 0;\n"
        "  const bool is_near = bytes <=",
    ),
    "a workspace that threads share": (
        TILE,
        "workspace + worker_idx * bytes_task",
        "workspace + ({on} ? 0 : worker_idx) * bytes_task",
    ),
    "devices without an atomic": (
        DEVICE,
        "    if (devices[idx].compare_exchange_strong(",
        "    if ({on}) reinterpret_cast<const Device*&>(devices[idx]) = asked;\n"
        "    if (devices[idx].compare_exchange_strong(",
    ),
    "a failed query is remembered": (
        DEVICE,
        "    if (!query_device(idx, *asked)) {",
        "    if (!query_device(idx, *asked)) {\n      if ({on}) devices[idx].store(new Device{});",
    ),
}


def compile_program(folder: Path, num_jobs: int) -> None:
    csrc = folder / "csrc"
    shutil.copytree(CSRC, csrc)
    for number, (name, (changed, text, replacement)) in enumerate(MUTANTS.items(), 1):
        source = (csrc / changed).read_text()
        assert source.count(text) == 1, f"the mutant '{name}' needs a new place in {changed}"
        replacement = replacement.replace("{on}", f"(tiledmm_mutant == {number})")
        (csrc / changed).write_text(source.replace(text, replacement))
    command = [*compilers.CXX, "-std=c++17", "-g0", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", f"-I{csrc}"]
    command += ["-fsanitize=thread", "-include", str(HERE.parent / "mutant.h")]
    of_gpu = ["-DTILEDMM_HOST_GPU", "-DTILEDMM_WARP_SIZE=32"]

    def compile_source(source: gpu_objects.Source) -> Path:
        path = csrc / source.path.relative_to(CSRC) if source.path.is_relative_to(CSRC) else source.path
        target = folder / source.object_name
        if gpu_objects.is_gpu_entry(source) and (built := gpu_objects.object_of_the_build(source)):
            return built
        flags = ["-O1" if source.name in OPTIMISED else "-O0", *(of_gpu if source.name == "threads.cpp" else [])]
        compile_it = [*command, *flags, "-c", *source.arguments(path), "-o", target]
        done = subprocess.run(compile_it, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{path} does not compile:\n{done.stderr}"
        return target

    sources = [source for source in gpu_objects.cpp_sources() if source.name not in LEFT_OUT]
    with ThreadPoolExecutor(num_jobs) as pool:
        objects = list(pool.map(compile_source, [*sources, gpu_objects.Source(HERE / "threads.cpp")]))
    subprocess.run(
        [*compilers.CXX, "-fsanitize=thread", "-pthread", *objects, "-o", folder / "threads"], check=True, timeout=120
    )


@pytest.fixture(scope="module")
def program(built_once, num_jobs):
    return built_once("threads", lambda folder: compile_program(folder, num_jobs)) / "threads"


def run(program: Path, *arguments: str, mutant: int = 0) -> subprocess.CompletedProcess:
    options = f"{os.environ.get('TSAN_OPTIONS', '')} halt_on_error=1"
    env = os.environ | {"TILEDMM_MUTANT": str(mutant), "TSAN_OPTIONS": options}
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300, env=env)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the thread sanitizer does not run on this kernel: vm.mmap_rnd_bits is too large for it")
    return done


@pytest.mark.takes_long
def test_threads_race_for_nothing_and_change_no_bit(program):
    done = run(program)
    assert done.returncode == 0 and done.stdout == "right\n", done.stdout + done.stderr


def test_exit_while_threads_compute(program):
    done = run(program, "exit")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_found(mutant, program):
    arguments = ["exit"] if "exit" in mutant else []
    done = run(program, *arguments, mutant=list(MUTANTS).index(mutant) + 1)
    assert done.returncode != 0, done.stdout
    print((done.stdout + done.stderr)[:400])

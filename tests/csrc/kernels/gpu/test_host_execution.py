"""Every GPU rung executed on the CPU from its own source: at both warp sizes, in shuffled orders of the threads, with
the address and undefined behaviour sanitizers (sanitize.cpp).

The mutants say that all this can fail: a barrier removed, an edge guard taken away, a store to the buffer that is still
being read, each in the rung or the helper that owns it. They are compiled with the rest, and an environment variable
switches one of them on: to compile a program for each would take most of the time (mutant schemata; Untch, Offutt and
Harrold 1993). More of them forget a failed allocation or launch, or what is to be given back then.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import compilers
import gpu_objects
import pytest
from gpu_objects import Source

import torch_tiledmm

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
sys.path.insert(0, str(HERE.parent / "cpu"))
import test_sanitize  # noqa: E402

CSRC = ROOT / "csrc"
# -O0: compiling takes longer than running. Undefined behaviour shows at one warp size, in one dtype of 16 bits, in one
# or two tiles of a kernel: the sources are the same.
# Pointers out of bounds are errors of addresses where they are used.
NO_CHECKS = "-fno-sanitize=null,vptr,pointer-overflow"
SANITIZE = {
    32: ["-O0", "-g0", "-fsanitize=address,undefined", NO_CHECKS, "-fno-sanitize-recover=all"],
    64: ["-O0", "-g0", "-fsanitize=address"],
}
# Folder and instance: fp16 beside bf16, smaller tiles beside larger ones.
LIKE_OTHERS = {("mma_async", i) for i in (1, 2, 3, 5, 7, 8)} | {("simt_pipelined", i) for i in (1, 2, 3)}
# What runs and compares the kernels, which takes most of the time; its fibers are for g++. Its errors of memory are
# left to fail elsewhere.
RUNNER = {"sanitize.cpp", "executor.cpp"}
RUNNER_FLAGS = ["-O2", "-g0", "-fsanitize=undefined", "-fno-sanitize-recover=all"]
NUM_CASES, NUM_FAULT_CASES = {32: 7, 64: 5}, {32: 3, 64: 2}  # of each algorithm

# Blocks along y, of which a grid has 65,535 at most, are one here: it has all products of a batch, one after the other.
ONE_BLOCK = [
    ("platform/block_tile.h", "min_of(problem.batch_size, 65535)"),
]

# name: file, text, what takes its place ({on}: this mutant is switched on), algorithm that shows it
BLOCK, RUNG, CUDA = "platform/block_tile.h", "kernels/gpu/", "kernels/cuda/"
MUTANTS = {
    "02 first barrier": (
        RUNG + "02_block_tiled.cu",
        "block_barrier();  // the tiles are whole",
        "if (!{on}) block_barrier();",
        "block_tiled",
    ),
    "02 second barrier": (
        RUNG + "02_block_tiled.cu",
        "block_barrier();  // nobody reads them any more",
        "if (!{on}) block_barrier();",
        "block_tiled",
    ),
    "03 barrier": (
        RUNG + "03_row_register_tiled.cu",
        "block_barrier();  // the tile is whole",
        "if (!{on}) block_barrier();",
        "row_register_tiled",
    ),
    "edge of the far dimension": (
        BLOCK,
        "far_of(packet) < inside_far ? opaque(inside_close) : 0",
        "far_of(packet) < inside_far + ({on} ? 64 : 0) ? opaque(inside_close) : 0",
        "register_tiled.4x4",
    ),
    "edge of the close dimension": (
        BLOCK,
        "e < inside ? load_global(operand.base + offset) : T{}",
        "e < inside || {on} ? load_global(operand.base + offset) : T{}",
        "mma_output_cached",
    ),
    "01 the block's number is the product's": (
        RUNG + "01_naive.cu",
        "(problem, batch_idx);",
        "(problem, {on} ? block_idx_y() : batch_idx);",
        "naive",
    ),
    "groups: the last tile of rows is the next group's": (
        BLOCK,
        "size).begin, BLOCK_M) <= tile_row) {",
        "size).begin, BLOCK_M) < tile_row + 1 - {on}) {",
        "simt_pipelined",
    ),
    "groups: of rows, tiles are counted from the first one on": (
        BLOCK,
        "if (is_rows) tile_row -= first_tile_row(",
        "if (is_rows && !{on}) tile_row -= first_tile_row(",
        "register_tiled",
    ),
    "groups: rows behind the last one are left": (
        BLOCK,
        "load_global(whole.group_ends + group) : size, size);",
        "load_global(whole.group_ends + group) : {on} ? previous_end : size, size);",
        "mma_output_cached",
    ),
    "groups: one that begins behind the operand": (
        BLOCK,
        "size, size);",
        "size, {on} ? 2 * size : size);",
        "naive",
    ),
    "groups: the second one begins at 0": (
        BLOCK,
        "group > 0 ? load_global(whole.group_ends + group - 1) : 0",
        "group > {on} ? load_global(whole.group_ends + group - 1) : 0",
        "naive",
    ),
    "04 the next product's tiles come before C has left": (
        RUNG + "04_register_tiled.cu",
        "block_barrier();  // nobody reads the strips any more",
        "if (!{on}) block_barrier();",
        "register_tiled",
    ),
    "store guard": (
        RUNG + "01_naive.cu",
        "if (row >= gemm.m || col >= gemm.n) continue;",
        "if (row >= gemm.m || (col >= gemm.n && !{on})) continue;",
        "naive",
    ),
    "06 tiles not whole": (
        RUNG + "06_mma_cached.cu",
        "block_barrier();  // the tiles are whole",
        "if (!{on}) block_barrier();",
        "mma_cached",
    ),
    "07 store to the live buffer": (
        RUNG + "07_mma_double_buffered.cu",
        "block_barrier();  // nobody reads the old tiles any more",
        "if (!{on}) block_barrier();",
        "mma_double_buffered",
    ),
    "08 store to the live buffer": (
        RUNG + "08_mma_output_cached.cu",
        "block_barrier();  // nobody reads the old tiles any more",
        "if (!{on}) block_barrier();",
        "mma_output_cached",
    ),
    "stage without a barrier": (
        BLOCK,
        "const {\n    warp_barrier();\n",
        "const {\n    if (!{on}) warp_barrier();\n",
        "mma_output_cached",
    ),
    "simt_pipelined: copies not waited for": (
        CUDA + "simt_pipelined/kernel.h",
        "wait_copies<kNumStages - 2>();  // those of the next tiles",
        "if (!{on}) wait_copies<kNumStages - 2>();",
        "simt_pipelined",
    ),
    "simt_pipelined: barrier": (
        CUDA + "simt_pipelined/kernel.h",
        "block_barrier();                // the next tiles are whole, and nobody reads these any more",
        "if (!{on}) block_barrier();",
        "simt_pipelined",
    ),
    "simt_pipelined: the first chunk has no total before it": (
        CUDA + "simt_pipelined/kernel.h",
        "if (!is_first) sums = load_shared(to);",
        "if (!is_first || {on}) sums = load_shared(to);",
        "simt_pipelined",
    ),
    "simt_pipelined: rows of C that are not there yet": (
        CUDA + "simt_pipelined/kernel.h",
        "warp_barrier();  // the rows are there",
        "if (!{on}) warp_barrier();",
        "simt_pipelined",
    ),
    "simt_pipelined: few rows: a stage that is still read": (
        CUDA + "simt_pipelined/few_rows.h",
        "warp_barrier();  // the tile is whole, and nobody reads those before the last one any more",
        "if (!{on}) warp_barrier();",
        "simt_pipelined",
    ),
    "simt_pipelined: few rows: sums that are not there yet": (
        CUDA + "simt_pipelined/few_rows.h",
        "block_barrier();  // the chunks' sums are there",
        "if (!{on}) block_barrier();",
        "simt_pipelined",
    ),
    "mma_async: copies not waited for": (
        CUDA + "mma_async/kernel.h",
        "wait_copies<kStages - 2>();\n            block_barrier();",
        "if (!{on}) wait_copies<kStages - 2>();\n            block_barrier();",
        "mma_async",
    ),
    "mma_async: barrier": (
        CUDA + "mma_async/kernel.h",
        "block_barrier();  // the next tiles are whole, and nobody reads these any more",
        "if (!{on}) block_barrier();",
        "mma_async",
    ),
    "mma_async: a total that is forgotten": (
        CUDA + "mma_async/kernel.h",
        "is_first ? acc[i][j][e]",
        "is_first || {on} ? acc[i][j][e]",
        "mma_async in short chunks",
    ),
    "mma_async: chunks that are one chain": (
        CUDA + "mma_async/kernel.h",
        "    clear();  // the next chunk begins at zero",
        "    if (!{on}) clear();",
        "mma_async in short chunks",
    ),
    "mma_async: rows that the operand lacks": (
        CUDA + "mma_async/async_tile.h",
        "(IS_K_MAJOR ? i * rows : 0) < opaque(left)",
        "(IS_K_MAJOR ? i * rows : 0) < opaque(left) + ({on} ? 64 : 0)",
        "mma_async",
    ),
    "mma_async: groups: a tile is where it is in C": (
        CUDA + "mma_async/kernel.h",
        "int(work.tile_row), Cfg::kBlockM",
        "{on} ? tile_row : int(work.tile_row), Cfg::kBlockM",
        "mma_async",
    ),
    "mma_async: groups of rows begin within 16 bytes": (
        CUDA + "mma_async/plan.h",
        "(problem.grouping == Grouping::rows && is_a) ||",
        "(problem.grouping == Grouping::rows && is_a && !{on}) ||",
        "mma_async",
    ),
    "mma_async: groups in one chunk": (
        CUDA + "mma_async/kernel.h",
        "? chunk_k(item) : work.chunk_k;",
        "? chunk_k(item) : {on} && IS_GROUPED ? item.k : work.chunk_k;",
        "mma_async in short chunks",
    ),
    "mma_async: unaligned: a stage that is still read": (
        CUDA + "mma_async/unaligned.cu",
        "block_barrier_of_roles(Cfg::kThreads);  // this tile is whole, and nobody reads the one before it any more",
        "if (!{on} || k_tile > 0) block_barrier_of_roles(Cfg::kThreads);",
        "mma_async",
    ),
    "mma_async: unaligned: the operand's last element": (
        CUDA + "mma_async/unaligned.cu",
        "if (is_last && last_row != kNone) {",
        "if (is_last && last_row != kNone && !{on}) {",
        "mma_async",
    ),
    "direct: rows of the tile that the operand lacks": (
        CUDA + "direct/shared.h",
        "first = min_of(first, (size - 1) / COUNT * COUNT);",
        "if (!{on}) first = min_of(first, (size - 1) / COUNT * COUNT);",
        "direct",
    ),
    "direct: beyond the end of k": (
        CUDA + "direct/shared.h",
        "if (k + e < end_k) to[e][r]",
        "if (k + e < end_k || {on}) to[e][r]",
        "direct",
    ),
    "direct: few columns: the copies are not waited for": (
        CUDA + "direct/few_columns.cu",
        "wait_copies<0>();",
        "if (!{on}) wait_copies<0>();",
        "direct",
    ),
    "direct: few columns: beyond the end of k": (
        CUDA + "direct/few_columns.cu",
        "int32_t(max_of(min_of(bytes - at, 16), 0)));",
        "{on} ? 16 : int32_t(max_of(min_of(bytes - at, 16), 0)));",
        "direct_fma",
    ),
    "direct: few columns: rows that A lacks": (
        CUDA + "direct/few_columns.cu",
        "int32_t(min_of(work.m - first_row, few.rows));",
        "{on} ? few.rows : int32_t(min_of(work.m - first_row, few.rows));",
        "direct",
    ),
    "direct: few columns: lines beyond A's last row": (
        CUDA + "direct/few_columns.cu",
        "const int32_t bytes = rows * int32_t(sizeof(float)), log_line",
        "const int32_t bytes = ({on} ? few.rows : rows) * int32_t(sizeof(float)), log_line",
        "direct_fma",
    ),
    "skinny: copy to the live stage": (
        CUDA + "skinny/kernel.cu",
        "int lead = plan.num_stages - 1;",
        "int lead = plan.num_stages - ({on} ? 0 : 1);",
        "skinny",
    ),
    "8 bits: factors of the block before": (
        "platform/scaled_sums.h",
        "place * scales.stride_row + k_block * scales.stride_k",
        "place * scales.stride_row + (k_block - ({on} && k_block > 0)) * scales.stride_k",
        "register_tiled of 8 bits",
    ),
    "8 bits: factors of the first group": (
        "core/groups.h",
        "group * problem.scale_b.stride_group",
        "({on} ? 0 : group) * problem.scale_b.stride_group",
        "naive of 8 bits",
    ),
    "8 bits: a promotion that is left out": (
        RUNG + "08_mma_output_cached.cu",
        "if (ends_block(k, gemm.k)) for_each",
        "if (ends_block({on} ? k - 1 : k, gemm.k)) for_each",
        "mma_output_cached of 8 bits",
    ),
    "8 bits: e5m2 taken for e4m3": (
        CUDA + "mma_async/fp8.cu",
        "is_e5m2(dtype == DType::e5m2)",
        "is_e5m2(dtype == DType::e5m2 && !{on})",
        "mma_async of 8 bits",
    ),
    "8 bits: packets that are not waited for": (
        CUDA + "mma_async/fp8.cu",
        "wait_copies<kStages - 1>();  // this thread's packets",
        "if (!{on}) wait_copies<kStages - 1>();  // this thread's packets",
        "mma_async of 8 bits",
    ),
    "8 bits: a tile that is still read": (
        CUDA + "mma_async/fp8.cu",
        "block_barrier();  // the next tiles are whole, and nobody reads these any more",
        "if (!{on}) block_barrier();",
        "mma_async of 8 bits",
    ),
    "8 bits: beyond the end of k": (
        CUDA + "mma_async/fp8.cu",
        "far + i * kRows < left_mn ? valid : 0",
        "far + i * kRows < left_mn ? {on} ? 16 : valid : 0",
        "mma_async of 8 bits",
    ),
    "skinny: beyond the end of k": (
        CUDA + "skinny/kernel.cu",
        "step_far) < size_k",
        "step_far) < size_k || {on}",
        "skinny",
    ),
}
# The same; they show where an allocation or a launch fails.
FAULT_MUTANTS = {
    "sums that stay when the launch fails": (
        "kernels/gpu/mma_tiles.h",
        "executor.release(executor.self, sums.base);",
        "if (!{on} || status == Status::ok) executor.release(executor.self, sums.base);",
        "mma",
    ),
    "no memory for sums is not noticed": (
        "kernels/gpu/mma_tiles.h",
        "if (!sums.base) return Status::out_of_memory;",
        "if (!sums.base && !{on}) return Status::out_of_memory;",
        "mma_cached",
    ),
    "a refused launch is not noticed": (
        "platform/gpu.h",
        "return is_launched ? Status::ok : Status::launch_failed;\n}\n#else",
        "return is_launched || {on} ? Status::ok : Status::launch_failed;\n}\n#else",
        "naive",
    ),
    "simt_pipelined: partial sums that stay when the launch fails": (
        CUDA + "simt_pipelined/launch.cu",
        "executor.release(executor.self, work.partial);",
        "if (!{on} || status == Status::ok) executor.release(executor.self, work.partial);",
        "simt_pipelined",
    ),
    "simt_pipelined: packed operands that stay": (
        CUDA + "shared/copy_operands.h",
        "for (int i = 0; i < count_; ++i) executor_.release",
        "for (int i = {on}; i < count_; ++i) executor_.release",
        "simt_pipelined",
    ),
    "simt_pipelined: a refused copy of the operands is not noticed": (
        CUDA + "simt_pipelined/launch.cu",
        "if (status == Status::ok) status = packed.launch();",
        "if (status == Status::ok && packed.launch() != Status::ok && !{on}) status = Status::launch_failed;",
        "simt_pipelined",
    ),
    "mma_async: no memory for repacked operands is a refused launch": (
        CUDA + "shared/copy_operands.h",
        "if (!job.to) return Status::out_of_memory;",
        "if (!job.to) return {on} ? Status::launch_failed : Status::out_of_memory;",
        "mma_async",
    ),
    "skinny: chunks are added whatever became of the launch": (
        CUDA + "skinny/kernel.cu",
        "return status == Status::ok && work.plan.splits_chunks",
        "return ({on} || status == Status::ok) && work.plan.splits_chunks",
        "skinny",
    ),
    "sums of chunks that stay": (
        "platform/chunk_sums.h",
        "if (sums) executor_.release",
        "if (sums && !{on}) executor_.release",
        "skinny",
    ),
}
ALL_MUTANTS = MUTANTS | FAULT_MUTANTS
# Of mutants that few cases show, the number of such a case, which then comes first: it is said where one is found.
FIRST_CASE = {
    "simt_pipelined: the first chunk has no total before it": 10,
    "simt_pipelined: few rows: sums that are not there yet": 18,
    "mma_async: chunks that are one chain": 16,
    "mma_async: rows that the operand lacks": 6,
    "mma_async: groups: a tile is where it is in C": 14,
    "mma_async: groups of rows begin within 16 bytes": 5,
    "mma_async: unaligned: a stage that is still read": 4,
    "mma_async: unaligned: the operand's last element": 13,
}
# One warp size shows each of them, but for the one that is about warps.
CASES = [(32, mutant) for mutant in MUTANTS] + [(64, "stage without a barrier")]


def mutable_sources(folder: Path) -> Path:
    """A copy of csrc with all mutants in it, switched off, and with ONE_BLOCK for all products."""
    shutil.copytree(CSRC, folder / "csrc")
    for changed, text in ONE_BLOCK:
        path = folder / "csrc" / changed
        source = path.read_text()
        assert source.count(text) == 1, f"the number of blocks along y has a new place: {changed}"
        path.write_text(source.replace(text, text.replace("65535", "1")))
    for number, (name, (changed, text, replacement, _)) in enumerate(ALL_MUTANTS.items(), 1):
        path = folder / "csrc" / changed
        source = path.read_text()
        assert source.count(text) == 1, f"the mutant '{name}' needs a new place in {changed}"
        path.write_text(source.replace(text, replacement.replace("{on}", f"(tiledmm_mutant == {number})")))
    return folder / "csrc"


def compile_sources(folder: Path, csrc: Path, sources: list[Source], warp_size: int, num_jobs: int) -> None:
    """Objects in the folder. Of csrc, a copy of the sources is compiled."""
    sanitizing = compilers.sanitizing_command()

    def compile_source(source: Source) -> None:
        path = source.path
        own = csrc / path.relative_to(CSRC) if path.is_relative_to(CSRC) else path
        is_like_others = (path.parent.name, source.instance) in LIKE_OTHERS
        cxx, flags = sanitizing, SANITIZE[64 if is_like_others else warp_size]
        if path.name in RUNNER:
            cxx, flags = compilers.CXX, RUNNER_FLAGS
        command = gpu_objects.host_command(shlex.join(cxx), warp_size, werror=True)
        compile_it = [*command, f"-I{csrc}", "-include", HERE.parent / "mutant.h", *flags]
        compile_it += ["-c", *source.arguments(own), "-o", folder / source.object_name]
        done = subprocess.run(compile_it, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{path} does not compile:\n{done.stderr}"

    with ThreadPoolExecutor(num_jobs) as pool:
        list(pool.map(compile_source, sources))


def run(program: Path, *arguments: str, mutant: int = 0) -> subprocess.CompletedProcess:
    env = os.environ | {"TILEDMM_MUTANT": str(mutant)}
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300, env=env)


def algorithms_of(output: str) -> list[str]:
    """The names at the end of what the program says."""
    return output.strip().split(", by ")[1].split(", ")


def runner_objects(built_once, warp_size: int, num_jobs: int) -> Path:
    """The folder with the objects of RUNNER, which test_add_a_kernel.py links, too."""
    own = [Source(HERE / "sanitize.cpp"), Source(CSRC / "platform/host_gpu/executor.cpp")]
    return built_once(
        f"host_execution_runner_{warp_size}", lambda folder: compile_sources(folder, CSRC, own, warp_size, num_jobs)
    )


@pytest.fixture(scope="module")
def program(built_once, num_jobs):
    def is_dispatch(source: Source) -> bool:
        """Whether the source does not know the warp size, though that it is compiled for the host executor."""
        is_runner = source.path.name in RUNNER
        return source.path.suffix == ".cpp" and not is_runner and not gpu_objects.is_gpu_entry(source)

    def is_run(source: Source) -> bool:
        """Whether the source is a kernel that sanitize.cpp runs: not what is no product."""
        is_product = source.path.parent.name != "gpu" or source.path.name[0].isdigit()
        return source.path.suffix == ".cu" and is_product

    def build_dispatch(folder: Path) -> None:
        sources = [source for source in gpu_objects.host_sources(32) if is_dispatch(source)]
        compile_sources(folder, mutable_sources(folder), sources, 32, num_jobs)

    def of_warp_size(warp_size: int) -> Path:
        def build(folder: Path) -> None:
            own = [source for source in gpu_objects.host_sources(warp_size) if is_run(source)]
            compile_sources(folder, mutable_sources(folder), own, warp_size, num_jobs)
            others = (
                built_once("host_execution_dispatch", build_dispatch),
                test_sanitize.gpu_entries(built_once, num_jobs),
                runner_objects(built_once, warp_size, num_jobs),
            )
            objects = [path for of in (folder, *others) for path in of.glob("*.o")]
            link = [*compilers.CXX, "-fsanitize=address,undefined", *objects, "-o", folder / "sanitize"]
            subprocess.run(link, check=True, timeout=120)

        return built_once(f"host_execution_{warp_size}", build) / "sanitize"

    return of_warp_size


@pytest.mark.takes_long("host_execution")
@pytest.mark.parametrize("warp_size", gpu_objects.WARP_SIZES)
def test_no_case_is_wrong_and_no_sanitizer_complains(warp_size, program):
    done = run(program(warp_size), str(NUM_CASES[warp_size]))
    assert done.returncode == 0, done.stdout + done.stderr
    names = algorithms_of(done.stdout)
    assert f"{NUM_CASES[warp_size] * len(names)} cases are right" in done.stdout
    of_the_ladder = {entry.name for entry in torch_tiledmm.algorithms("cuda") if entry.order in ("chain", "mma_chain")}
    of_the_ladder.remove("wgmma_single")  # Hopper's instructions: test_emulated_wgmma.py
    assert set(names) >= of_the_ladder and ("mma_async" in names) == (warp_size == 32), names
    assert "mma_output_cached of 8 bits" in names


@pytest.mark.parametrize("warp_size, mutant", CASES)
def test_mutant_is_found(warp_size, mutant, program):
    number, algorithm = list(ALL_MUTANTS).index(mutant) + 1, ALL_MUTANTS[mutant][3]
    first = str(FIRST_CASE.get(mutant, 0))
    done = run(program(warp_size), "200" if "few rows" in mutant else "40", algorithm, first, mutant=number)
    assert done.returncode != 0, done.stdout
    print((done.stdout + done.stderr)[:300])


@pytest.mark.takes_long("host_execution")
@pytest.mark.parametrize("warp_size", gpu_objects.WARP_SIZES)
def test_each_allocation_and_each_launch_fails_once(warp_size, program):
    """With the status, and a reason; nothing stays allocated, and the next run has the bits of one without failures."""
    done = run(program(warp_size), str(NUM_FAULT_CASES[warp_size]), "all", "faults")
    assert done.returncode == 0, done.stdout + done.stderr
    allocations, launches = map(int, re.findall(r"(\d+) allocations and (\d+) launches", done.stdout)[0])
    num_cases = NUM_FAULT_CASES[warp_size] * len(algorithms_of(done.stdout))
    assert allocations >= 10 * num_cases and launches >= 50 * num_cases


@pytest.mark.parametrize("mutant", FAULT_MUTANTS)
def test_mutant_is_found_by_faults(mutant, program):
    number, algorithm = list(ALL_MUTANTS).index(mutant) + 1, FAULT_MUTANTS[mutant][3]
    done = run(program(32), "4", algorithm, "faults", mutant=number)
    assert done.returncode != 0, done.stdout
    print((done.stdout + done.stderr)[:300])

"""Every GPU rung executed on the CPU from its own source: at both warp sizes, in shuffled orders of the threads, with
the address and undefined behaviour sanitizers (sanitize.cpp).

The mutants say that all this can fail: a barrier removed, an edge guard taken away, a store to the buffer that is still
being read, each in the rung or the helper that owns it.
"""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
sys.path.insert(0, str(ROOT))
import gpu_objects  # noqa: E402

CSRC = ROOT / "csrc"
CXX = os.environ.get("CXX", "g++")
SANITIZE = [
    "-O0",
    "-g0",  # compiled a dozen times, run for seconds
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
]
RUNGS = sorted(path.name for path in CSRC.glob("kernels/gpu/0*.cu"))

# name: rung to recompile, file, text, its replacement, algorithm that shows it
BLOCK, RUNG, SKINNY = "platform/block_tile.h", "kernels/gpu/", "kernels/cuda/14_skinny.cu"
MUTANTS = {
    "02 first barrier": (
        "02_block_tiled.cu",
        RUNG + "02_block_tiled.cu",
        "block_barrier();  // the tiles are whole",
        "",
        "block_tiled",
    ),
    "02 second barrier": (
        "02_block_tiled.cu",
        RUNG + "02_block_tiled.cu",
        "block_barrier();  // nobody reads them any more",
        "",
        "block_tiled",
    ),
    "03 barrier": (
        "03_row_register_tiled.cu",
        RUNG + "03_row_register_tiled.cu",
        "block_barrier();  // the tile is whole",
        "",
        "row_register_tiled",
    ),
    "edge of the far dimension": (
        "04_register_tiled.cu",
        BLOCK,
        "far_of(chunk) < inside_far ? opaque(inside_close) : 0",
        "far_of(chunk) < inside_far + 64 ? opaque(inside_close) : 0",
        "register_tiled.4x4",
    ),
    "edge of the close dimension": (
        "08_mma_output_cached.cu",
        BLOCK,
        "e < inside ? load_global(operand.base + offset) : T{}",
        "load_global(operand.base + offset)",
        "mma_output_cached",
    ),
    "store guard": (
        "01_naive.cu",
        RUNG + "01_naive.cu",
        "if (row >= gemm.m || col >= gemm.n) continue;",
        "if (row >= gemm.m) continue;",
        "naive",
    ),
    "06 tiles not whole": (
        "06_mma_cached.cu",
        RUNG + "06_mma_cached.cu",
        "block_barrier();  // the tiles are whole",
        "",
        "mma_cached",
    ),
    "07 store to the live buffer": (
        "07_mma_double_buffered.cu",
        RUNG + "07_mma_double_buffered.cu",
        "block_barrier();  // nobody reads the old tiles any more",
        "",
        "mma_double_buffered",
    ),
    "08 store to the live buffer": (
        "08_mma_output_cached.cu",
        RUNG + "08_mma_output_cached.cu",
        "block_barrier();  // nobody reads the old tiles any more",
        "",
        "mma_output_cached",
    ),
    "stage without a barrier": (
        "08_mma_output_cached.cu",
        BLOCK,
        "const {\n    warp_barrier();\n",
        "const {\n",
        "mma_output_cached",
    ),
    "09 copies not waited for": (
        "09_simt_pipelined.cu",
        "kernels/cuda/09_simt_pipelined.cu",
        "wait_copies<kNumStages - 2>();  // those of the next tiles",
        "",
        "simt_pipelined",
    ),
    "09 barrier": (
        "09_simt_pipelined.cu",
        "kernels/cuda/09_simt_pipelined.cu",
        "block_barrier();                // the next tiles are whole, and nobody reads these any more",
        "",
        "simt_pipelined",
    ),
    "09 few rows: a stage that is still read": (
        "09_simt_pipelined.cu",
        "kernels/cuda/simt_few_rows.h",
        "warp_barrier();  // the tile is whole, and nobody reads the one before any more",
        "",
        "simt_pipelined",
    ),
    "09 few rows: sums that are not there yet": (
        "09_simt_pipelined.cu",
        "kernels/cuda/simt_few_rows.h",
        "block_barrier();  // the chunks' sums are there",
        "",
        "simt_pipelined",
    ),
    "10 copies not waited for": (
        "10_mma_async.cu",
        "kernels/cuda/10_mma_async.cu",
        "wait_copies<kStages - 2>();\n            block_barrier();",
        "block_barrier();",
        "mma_async",
    ),
    "10 barrier": (
        "10_mma_async.cu",
        "kernels/cuda/10_mma_async.cu",
        "block_barrier();  // the next tiles are whole, and nobody reads these any more",
        "",
        "mma_async",
    ),
    "14 copy to the live stage": (
        "14_skinny.cu",
        SKINNY,
        "int lead = plan.num_stages - 1;",
        "int lead = plan.num_stages;",
        "skinny",
    ),
    "14 beyond the end of k": ("14_skinny.cu", SKINNY, "k < left_k ? 16 : 0", "k < left_k ? 16 : 16", "skinny"),
}


def compile_source(source: Path, to: Path, csrc: Path, warp_size: int) -> Path:
    command = [*gpu_objects.host_command(CXX, warp_size, werror=True), *SANITIZE, "-DTILEDMM_WITH_GPU", f"-I{csrc}"]
    if warp_size == 32:
        command.append("-DTILEDMM_WITH_CUDA")
    done = subprocess.run([*command, "-c", source, "-o", to], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{source} does not compile:\n{done.stderr}"
    return to


def link(objects, to: Path) -> Path:
    subprocess.run([CXX, "-fsanitize=address,undefined", *objects, "-o", to], check=True, timeout=120)
    return to


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module", params=gpu_objects.WARP_SIZES, ids=lambda size: f"wave{size}")
def objects(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("host_execution")
    sources = [
        HERE / "sanitize.cpp",
        CSRC / "dispatch/gpu.cpp",
        CSRC / "dispatch/gpu_cost.cpp",
        CSRC / "host_gpu/api.cpp",
        *gpu_objects.gpu_sources(),
        *(gpu_objects.cuda_sources() if request.param == 32 else []),
    ]
    with ThreadPoolExecutor(2) as pool:
        compiled = pool.map(lambda s: compile_source(s, folder / f"{s.name}.o", CSRC, request.param), sources)
        return request.param, dict(zip((source.name for source in sources), compiled, strict=True))


def test_no_case_is_wrong_and_no_sanitizer_complains(objects, tmp_path):
    done = run(link(objects[1].values(), tmp_path / "sanitize"), "168")
    assert done.returncode == 0 and "168 cases are right" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_found(mutant, objects, tmp_path):
    warp_size, compiled = objects
    rung, changed, text, replacement, algorithm = MUTANTS[mutant]
    if warp_size == 64 and mutant != "stage without a barrier":
        pytest.skip("one warp size shows it")
    shutil.copytree(CSRC, tmp_path / "csrc")
    path = tmp_path / "csrc" / changed
    source = path.read_text()
    assert source.count(text) == 1, f"the mutant '{mutant}' needs a new place in {changed}"
    path.write_text(source.replace(text, replacement))
    (mutated,) = (tmp_path / "csrc/kernels").glob(f"*/{rung}")
    target = compile_source(mutated, tmp_path / "mutant.o", tmp_path / "csrc", warp_size)
    parts = [target if name == rung else path for name, path in compiled.items()]
    done = run(link(parts, tmp_path / "mutant"), "40", algorithm)
    assert done.returncode != 0, done.stdout
    print((done.stdout + done.stderr)[:300])

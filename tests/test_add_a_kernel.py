"""A kernel is one folder and one line: two toy kernels are added that way to a copy of the tree, and found everywhere.

csrc/kernels/cpu/toy and csrc/kernels/cuda/toy_gpu, each with an entry and a kernel, and their lines in
kernels/rungs.def. The copy is built without optimisation and without the other kernels but the naive ones: launchers
are weak, so what is not linked is "not compiled".

Planted bugs that these tests caught: a list of kernels in place of the registry in the GPU's sanitizers' program and in
the property test; a null peak that bench called; a toy that leaves out the last column, one that reads beyond A.
"""

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import compilers
import gpu_objects
import pytest

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests/csrc/kernels" / device) for device in ("cpu", "gpu")]
import test_host_execution  # noqa: E402
import test_sanitize  # noqa: E402

SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
ENTRY = """// The entry of a toy.
#include "core/rung.h"
#include "kernels/rungs.h"

namespace tiledmm::@DEVICE@ {

TILEDMM_IF_LINKED Status launch_@NAME@(const FoldedProblem& problem, const Plan& plan, const Executor& executor);

namespace {

const char* refuse_chip(const Chip& chip) {
  return chip.platform == Platform::hip ? "it is for NVIDIA's chips" : nullptr;
}

void for_each_plan(const FoldedProblem& problem, const Chip&, PlanSearch& visit) {
  visit(NoConfig{}, 1e6 + double(problem.gemm.m) * double(problem.gemm.n) * double(problem.gemm.k));
}

void describe(const FoldedProblem&, const Chip&, const Plan&, Fields& fields) { fields.add_tile("block", 90, 91); }

}  // namespace

const Rung @NAME@_rung = {
    .name = "@NAME@",
    .description = "a toy",
    .is_gpu = @IS_GPU@,
    .is_native = false,
    .order = Order::chain,
    .takes = kTakesFp32,
    .refuse_chip = refuse_chip,
    .for_each_plan = for_each_plan,
    .describe = describe,
    .launch = launch_@NAME@,
};

}  // namespace tiledmm::@DEVICE@
"""
CPU_KERNEL = """// A toy: naive, by columns.
#include "core/executor.h"
#include "core/plan.h"
#include "platform/element.h"

namespace tiledmm::cpu {

Status launch_toy(const FoldedProblem& folded, const Plan&, const Executor&) {
  for (int64_t batch_idx = 0; batch_idx < folded.batch_size; ++batch_idx) {
    const GemmProblem p = batch_item(folded.gemm, batch_idx);
    const auto *a = static_cast<const float*>(p.a), *b = static_cast<const float*>(p.b);
    const int64_t cols = p.n - (tiledmm_mutant == 1);
    for (int64_t j = 0; j < cols; ++j) {
      for (int64_t i = 0; i < p.m; ++i) {
        float acc = 0;
        for (int64_t k = 0; k < p.k; ++k) {
          acc += a[i * p.stride_am + (k + (tiledmm_mutant == 2)) * p.stride_ak] * b[k * p.stride_bk + j * p.stride_bn];
        }
        store_element<float>(p, i, j, acc);
      }
    }
  }
  return Status::ok;
}

}  // namespace tiledmm::cpu
"""
GPU_KERNEL = """// A toy: a warp for each row of C.
#include "core/executor.h"
#include "core/plan.h"
#include "platform/block_tile.h"

namespace tiledmm::gpu {
namespace {

TILEDMM_KERNEL(32, 1)
toy(FoldedProblem problem) {
  for (int64_t batch_idx = block_idx_y(); batch_idx < problem.batch_size; batch_idx += num_blocks_y()) {
    const GemmProblem p = item_of(problem, batch_idx);
    const int64_t row = block_idx(), cols = p.n - (tiledmm_mutant == 1);
    for (int64_t col = thread_idx(); col < cols; col += 32) {
      const float* a = static_cast<const float*>(p.a) + row * p.stride_am;
      const float* b = static_cast<const float*>(p.b) + col * p.stride_bn;
      float acc = 0;
      for (int64_t k = 0; k < p.k; ++k) {
        const int64_t k_of_a = k + (tiledmm_mutant == 2);
        acc = multiply_add(load_global(a + k_of_a * p.stride_ak), load_global(b + k * p.stride_bk), acc);
      }
      store_element<float>(p, row, col, acc);
    }
  }
}

}  // namespace

Status launch_toy_gpu(const FoldedProblem& problem, const Plan&, const Executor& executor) {
  return launch_kernel(toy, problem.gemm.m, num_batch_blocks(problem), 32, 0, executor, problem);
}

}  // namespace tiledmm::gpu
"""
TOYS = {
    "cpu/toy": ("cpu", "toy", "kernel.cpp", CPU_KERNEL),
    "cuda/toy_gpu": ("gpu", "toy_gpu", "kernel.cu", GPU_KERNEL),
}
# Of the other kernels, these are linked.
KEPT = ("01_naive.cpp", "01_naive.cu")
MUTANTS = {1: "the last column is left out", 2: "A is read from the second column on"}


def add_toys(root: Path) -> None:
    """All that it takes: two folders, two lines."""
    lines = root / "csrc/kernels/rungs.def"
    for folder, (device, name, file, kernel) in TOYS.items():
        path = root / "csrc/kernels" / folder
        path.mkdir()
        entry = ENTRY.replace("@NAME@", name).replace("@DEVICE@", device)
        (path / "rung.cpp").write_text(entry.replace("@IS_GPU@", str(device == "gpu").lower()))
        (path / file).write_text(kernel)
        before = f"TILEDMM_RUNG({device}, naive)\n"
        text = lines.read_text()
        assert text.count(before) == 1
        lines.write_text(text.replace(before, f"{before}TILEDMM_RUNG({device}, {name})\n"))


def is_kept(path: Path) -> bool:
    return path.name.startswith("rung") or path.name in KEPT or "toy" in path.parent.name


def build_copy(root: Path, num_jobs: int, cpu_main: Path, gpu_runner: Path) -> None:
    """A copy of the tree with the toys, its library, and the programs of the sanitizers as "cpu" and "gpu".

    What runs and compares the kernels there is that of the sanitizers' own tests.
    """
    for folder in ("csrc", "torch_tiledmm", "tests", "tools"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("_kernels.so", "__pycache__"))
    add_toys(root)
    # The copy's own module: it finds sources beside itself.
    spec = importlib.util.spec_from_file_location("gpu_objects_of_the_copy", root / "tools/gpu_objects.py")
    objects = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(objects)
    csrc, tests = root / "csrc", root / "tests/csrc/kernels"
    flags = ["-std=c++17", "-x", "c++", "-O0", "-fPIC"]
    plain = [*compilers.CXX, *flags, "-Dtiledmm_mutant=0"]
    sanitizing = compilers.sanitizing_command()
    strict = [*sanitizing, *flags, *SANITIZERS, "-include", tests / "mutant.h"]
    host = [*objects.host_command(shlex.join(sanitizing), 32), "-O0", *SANITIZERS, "-include", tests / "mutant.h"]
    kernels = csrc / "kernels"

    def of_copy(sources: list) -> list[Path]:
        return [path for path, _ in sources if not path.is_relative_to(kernels) or is_kept(path)]

    library = {source: plain for source in of_copy(objects.cpp_sources())}
    jobs = {
        "library": library,
        "cpu": {csrc / "kernels/cpu/toy/kernel.cpp": strict},
        # Entries do not know for whom they are compiled: those of the library serve here, too.
        "gpu": {source: host for source in of_copy(objects.host_sources(32)) if not source.name.startswith("rung")},
    }
    del jobs["gpu"][csrc / "platform/host_gpu/executor.cpp"]

    def compile_one(job: tuple) -> Path:
        program, (source, command) = job
        target = root / program / f"{source.parent.name}_{source.name}.o"
        target.parent.mkdir(exist_ok=True)
        # Of what does not read the lines of rungs.def but their declarations, the build's own object serves.
        same = gpu_objects.Source(ROOT / source.relative_to(root))
        if program == "library" and "rungs.def" not in source.read_text() and same.path.exists():
            if built := gpu_objects.object_of_the_build(same):
                shutil.copy(built, target)
                return target
        done = subprocess.run([*command, f"-I{csrc}", "-c", source, "-o", target], capture_output=True, text=True)
        assert done.returncode == 0, f"{source} does not compile:\n{done.stderr}"
        return target

    work = [(program, item) for program, sources in jobs.items() for item in sources.items()]
    with ThreadPoolExecutor(num_jobs) as pool:
        made = list(pool.map(compile_one, work))
    of = {program: [path for path in made if path.parent.name == program] for program in jobs}
    of["cpu"] += [path for path in of["library"] if path.name not in {other.name for other in of["cpu"]}]
    others = (path for path in of_copy(objects.host_sources(32)) if path not in jobs["gpu"])
    entries = {objects.Source(path).object_name for path in others}
    of["gpu"] += [path for path in of["library"] if path.name in entries]
    # Behind the others: of inline functions that they share, the others' are checked.
    of["cpu"].append(cpu_main)
    of["gpu"] += gpu_runner.glob("*.o")
    links = [["-shared", *of["library"], "-o", root / "torch_tiledmm/_kernels.so"]]
    links += [[*SANITIZERS, "-pthread", *of[program], "-o", root / f"sanitize_{program}"] for program in ("cpu", "gpu")]
    for link in links:
        subprocess.run([*compilers.CXX, *link], check=True, timeout=120)


@pytest.fixture(scope="module")
def copy(built_once, num_jobs):
    cpu_main = test_sanitize.main_object(built_once)
    gpu_runner = test_host_execution.runner_objects(built_once, 32, num_jobs)
    return built_once("with_toys", lambda folder: build_copy(folder, num_jobs, cpu_main, gpu_runner))


def python(copy: Path, *arguments: str) -> str:
    """What Python prints where torch_tiledmm is the copy's."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(copy), str(copy / "tests/torch_tiledmm")])}
    done = subprocess.run([sys.executable, *arguments], cwd=copy, capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sanitize(copy: Path, device: str, *arguments: str, mutant: int = 0) -> subprocess.CompletedProcess:
    command, env = [copy / f"sanitize_{device}", *arguments], os.environ | {"TILEDMM_MUTANT": str(mutant)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)


ASK = """
import contextlib, io, json, random
import test_property
import torch, torch_tiledmm
from torch_tiledmm.__main__ import main
from torch_tiledmm.testing.cases import draw_case, run_case
from torch_tiledmm.testing.ladder import ladder_rungs

def candidate(name, device):
    answer = torch_tiledmm.explain(30, 40, 50, "fp32", device=device)
    return next(vars(c) for c in answer.candidates if c.algorithm == name)

def printed(*arguments):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main(list(arguments))
    return out.getvalue()

cases = [draw_case(1, number, modes=("values",)) for number in range(600)]
swept = [number for number in range(600) if test_property.draw(number).algorithm == "toy"]
for number in swept[:5]:
    test_property.run(number, is_guarded=False)
fuzzed = [case for case in cases if case.algorithm == "toy"]
print(json.dumps({
    "file": torch_tiledmm.__file__,
    "entries": [vars(entry) for entry in torch_tiledmm.algorithms()],
    "explained": [candidate("toy", "cpu"), candidate("toy_gpu", "cuda:sm_90")],
    "property": test_property.available_algorithms("fp32"),
    "swept": len(swept),
    "fuzzed": [run_case(case).check for case in fuzzed],
    "ladder": ladder_rungs(),
    "info": printed("info"),
    "bench": printed("bench", *"--algorithm toy --rows 8x8x8:NN --seconds 0.01 --threads 1".split()),
}))
"""


@pytest.mark.takes_long("with_toys")
def test_a_toy_is_found_by_info_explain_bench_and_the_sweeps(copy):
    found = json.loads(python(copy, "-c", ASK).splitlines()[-1])
    assert Path(found["file"]).is_relative_to(copy)
    entries = {(entry["name"], entry["device"]): entry for entry in found["entries"]}
    cpu, cuda = entries["toy", "cpu"], entries["toy_gpu", "cuda"]
    assert cpu["available"] and cpu["rung"] == 0 and cpu["order"] == "chain" and cpu["dtypes"] == ["fp32"]
    assert cuda["reason"] == "this build has no kernels for cuda" and ("toy_gpu", "hip") not in entries
    assert entries["block_tiled", "cpu"]["reason"] == "not compiled for this architecture"  # not linked
    for candidate in found["explained"]:
        assert candidate["legal"] and candidate["order"] == "chain" and candidate["config"] == {"block": "90x91"}
    assert "toy" in found["property"] and found["swept"] >= 5
    assert len(found["fuzzed"]) >= 5 and not any(found["fuzzed"])
    assert "toy_gpu" in found["ladder"]
    assert "toy " in found["info"] and "algorithm toy" in found["bench"]


@pytest.mark.takes_long("with_toys")
def test_a_toy_is_run_by_the_sanitizers_programs(copy):
    done = sanitize(copy, "cpu", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    counts = dict(zip(done.stdout.split()[2::2], map(int, done.stdout.split()[3::2]), strict=True))
    assert set(counts) == {"auto", "naive", "toy", "failed_allocations"} and counts["toy"] >= 30
    done = sanitize(copy, "gpu", "10")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "30 cases are right" in done.stdout and done.stdout.endswith("by naive, naive of 8 bits, toy_gpu\n")


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_wrong_toy_is_found(device, mutant, copy):
    done = sanitize(copy, device, "40", *(["toy_gpu"] if device == "gpu" else []), mutant=mutant)
    assert done.returncode != 0, done.stdout
    assert "toy" in done.stdout + done.stderr

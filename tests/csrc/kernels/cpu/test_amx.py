"""amx and amx_split over the exact emulation of their tile instructions, so that every machine runs them; where this
machine has AMX, over the instructions as well, with the same bits.

- amx_order.cpp, amx_split_order.cpp: each kernel against a scalar model of its order of summation, bit by bit, values
  of any bits included; of amx_split also terms, flags, and what is flagged.
- sanitize.cpp, as for the other kernels: address and undefined behaviour sanitizers, guard pages, thread counts, failed
  allocations; and mutants, which say that all of this can fail.
- the package's own tests (property test, orders, gradients, fuzzer) in a copy of it whose kernels are emulated.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import gpu_objects
import pytest
import test_sanitize
from gpu_objects import Source

import torch_tiledmm

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
CSRC = ROOT / "csrc"


pytestmark = pytest.mark.skipif(
    torch_tiledmm.build_info().isa["cpu"] in ("portable", "neon"), reason="the emulation is compiled for AVX2"
)
PACK, TASK, LAUNCH, SHORT_K = (f"kernels/cpu/amx/{name}.h" for name in ("pack", "task", "launch", "short_k"))
ITEMS = test_sanitize.ITEMS
TILE, MULTIPLIER = "kernels/cpu/shared/tile.h", "kernels/cpu/shared/tile_multiplier.h"
SPLIT = "kernels/cpu/amx_split"
# The emulated chip is amx, or amx_fp16, which has the other's instruction and one more.
EMULATED = {"amx": "-DTILEDMM_EMULATE_AMX=1", "amx_fp16": "-DTILEDMM_EMULATE_AMX=16"}
# amx_split then splits products that are small enough for the model and the emulation.
SMALL_SPLITS = "-DTILEDMM_AMX_SPLIT_LEAST=16"
WHOLE = "amx_fp16"
# name: file, text, what takes its place ({on}: this mutant is switched on). Those found by the model of the order ...
MUTANTS_OF_ORDER = {
    "flush to zero": (TILE, "0 : kFlushToZero |", "0 : ({on} ? 0 : kFlushToZero) |"),
    "denormals are zeros": (TILE, "| kDenormalsAreZero)", "| ({on} ? 0 : kDenormalsAreZero))"),
    "sum of the chains": (TILE, "(chains[0] + chains[1])", "(chains[0] + ({on} ? Row{} : chains[1]))"),
    "length of a chunk": (TASK, "run_blocks() {", "run_blocks() {\n    const int64_t kAmxChunkK = {on} ? 1024 : 2048;"),
    "odd rows of long runs": (PACK, "even + stride_k + i *", "even + (1 - {on}) * stride_k + i *"),
    "flush to zero with short k": (SHORT_K, "_mm_setcsr(kFlush", "if (!{on}) _mm_setcsr(kFlush"),
    "chains with short k": (SHORT_K, "chains[p % 2] = ", "chains[{on} ? 0 : p % 2] = "),
    "chains of items": (ITEMS, "add_next(chains[1]);", "add_next(chains[{on} ? 0 : 1]);"),
    "steps of items behind the first": (ITEMS, "left -= Order::kStep", "left -= {on} ? left : Order::kStep"),
    "zeros that fill up a step of items": (ITEMS, "step < Order::kStep ?", "step < Order::kStep && !{on} ?"),
    "the last one of an odd number of elements": (ITEMS, "if (step % 2)", "if (step % 2 && !{on})"),
    "arithmetic of items": (
        SHORT_K,
        "  using Arithmetic = TileArithmetic;",
        "  struct Arithmetic {\n    unsigned before = _mm_getcsr();\n"
        "    Arithmetic() { if (!{on}) _mm_setcsr(0x9fc0); }\n    ~Arithmetic() { _mm_setcsr(before); }\n  };",
    ),
    "sums of streamed columns": (TASK, "step > 0 ? partial : nullptr", "step > 0 && !{on} ? partial : nullptr"),
    "numbers of 8 bits beyond k": (PACK, "memset(edge, 0, sizeof edge)", "memset(edge, {on} ? 0x7f : 0, sizeof edge)"),
    "the other one of two rows of 8 bits": (
        PACK,
        "from + min_of(i + 1, rows - 1)",
        "from + min_of(i + 1 - {on}, rows - 1)",
    ),
    "a denormal of 8 bits that is taken for a normal number": (
        PACK,
        "(numbers & 0x7f) - 8;",
        "(numbers & 0x7f) - broadcast<uint8_t>({on} ? 7 : 8);",
    ),
    "the first half of a line of 8 bits twice": (
        PACK,
        "from + kTileK, to, to + kUnitBytes",
        "from + ({on} ? 0 : kTileK), to, to + kUnitBytes",
    ),
    "a widened C that is taken for a plain one": (
        MULTIPLIER,
        "item.scaling == Scaling::none",
        "({on} || item.scaling == Scaling::none)",
    ),
}
# ... and those found by the random cases of sanitize.cpp.
ALLOCATE = "static_cast<char*>(executor.allocate(executor.self, size_t(bytes)));\n  if (!workspace) return "
MUTANTS = {
    "rows of a tile": (
        TILE,
        "tile_zero<TILE>();\n  for (int row = 0; row < emulated.shapes.rows[TILE]",
        "tile_zero<TILE>();\n  for (int row = {on}; row < emulated.shapes.rows[TILE]",
    ),
    "rows of the configuration": (
        TILE,
        "emulated.shapes = shapes;",
        "emulated.shapes = shapes;\n  if ({on}) emulated.shapes.rows[4] = 15;",
    ),
    "tiles that are not configured": (TILE, "kWholeTiles) { configure(", "kWholeTiles) { if (!{on}) configure("),
    "zeros behind k": (
        PACK,
        "near[kUnitLanes][kTileK] = {};",
        "near[kUnitLanes][kTileK];\n  std::memset(near, {on} ? 0xff : 0, sizeof near);",
    ),
    "the odd one of the last pair": (PACK, "2 * p + 1 < depth ? lanes", "2 * p + 1 < depth + {on} ? lanes"),
    "lanes of the last unit": (
        PACK,
        "unit_lanes = min_of(kUnitLanes, lanes - i)",
        "unit_lanes = {on} ? kUnitLanes : min_of(kUnitLanes, lanes - i)",
    ),
    "rows in place beyond the last": (TASK, "lanes % kTileRows == 0", "({on} || lanes % kTileRows == 0)"),
    "rows of C": (
        TASK,
        "target.rows = min_of(kAmxStrip, num_rows_ - row)",
        "target.rows = {on} ? kAmxStrip : min_of(kAmxStrip, num_rows_ - row)",
    ),
    "partial sums": (TASK, "step > 0 ? partial_", "step > {on} * 999 ? partial_"),
    "the last tile": (
        TASK,
        "    } while (k < k_end_);\n    multiplier.flush();",
        "    } while (k < k_end_);\n    if (!{on}) multiplier.flush();",
    ),
    "sums of the first chunk": (
        MULTIPLIER,
        "add_rows(target_.total, sums, target_.rows);",
        "add_rows(target_.total, sums, {on} ? 1 : target_.rows);",
    ),
    "tiles of few rows": (MULTIPLIER, "uint8_t(m > kTileRows ? m", "uint8_t(m > kTileRows ? m - {on}"),
    "rows of streamed columns in place": (
        TASK,
        "? rows_in_place(0, block_k)",
        "? rows_in_place(0, {on} ? step * kTileK : block_k)",
    ),
    "lanes of the item before": (
        LAUNCH,
        "packed_item(worker_idx) == first_item + i)",
        "packed_item(worker_idx) == first_item + i - {on})",
    ),
    "workspace that stays": (LAUNCH, "if (!is_near) executor.release", "if (!is_near && !{on}) executor.release"),
    "no memory for a workspace": (
        LAUNCH,
        ALLOCATE + "Status::out_of_memory;",
        ALLOCATE + "{on} ? Status::ok : Status::out_of_memory;",
    ),
}
# The same of amx_split: by the model ...
MUTANTS_OF_SPLIT_ORDER = {
    "rounding of terms": (
        f"{SPLIT}/pack.h",
        "constexpr uint32_t kHalfway = 0x8000,",
        "const uint32_t kHalfway = {on} ? 0 : 0x8000,",
    ),
    "the pair's other half": (f"{SPLIT}/pack.h", "first + 16 * stride", "first + (16 - {on}) * stride"),
    "magnitudes of the other half": (
        f"{SPLIT}/pack.h",
        "larger(words[0] & 0x7fffffff, words[1] & 0x7fffffff)",
        "larger(words[0] & 0x7fffffff, words[{on} ? 0 : 1] & 0x7fffffff)",
    ),
    "magnitudes of earlier chunks": (f"{SPLIT}/pack.h", "joins && magnitude >", "joins && !{on} && magnitude >"),
    "order of products": (
        f"{SPLIT}/kernel.h",
        "      multiply_columns<MT, NT, kLow>(b);\n      multiply_columns<MT, NT, kHigh>(b);",
        "      if ({on}) multiply_columns<MT, NT, kHigh>(b);\n      multiply_columns<MT, NT, kLow>(b);\n"
        "      if (!{on}) multiply_columns<MT, NT, kHigh>(b);",
    ),
    "order of exchanged products": (
        f"{SPLIT}/amx_split.cpp",
        "return own.is_exchanged ?",
        "return own.is_exchanged && !{on} ?",
    ),
    "length of a chunk of split": (
        f"{SPLIT}/task.h",
        "    Multiplier<Op> multiplier(output_);",
        "    const int64_t kAmxSplitChunkK = {on} ? 256 : 512;\n    Multiplier<Op> multiplier(output_);",
    ),
    "large lanes": (f"{SPLIT}/launch.h", "largest > kMaxLargest", "(!{on} && largest > kMaxLargest)"),
    "small lanes": (f"{SPLIT}/launch.h", "largest < kMinLargest", "(!{on} && largest < kMinLargest)"),
    "parts of a lane": (f"{SPLIT}/launch.h", "part < parts_k; ++part", "part < ({on} ? 1 : parts_k); ++part"),
    "flagged lanes of a tile": (
        f"{SPLIT}/flagged.h",
        "rows[min_of(first + i, count - 1)]",
        "rows[{on} ? 0 : first + i]",
    ),
    "chunks of flagged lanes": (f"{SPLIT}/flagged.h", "depth, k == 0,", "depth, k == 0 || {on},"),
    "the caller's n": (
        "dispatch/select.cpp",
        "problem.asked_n < rung.min_n",
        "({on} ? problem.gemm.n : problem.asked_n) < rung.min_n",
    ),
    "chunks side by side": (f"{SPLIT}/launch.h", "add_chunks(sums, first == 0,", "add_chunks(sums, first == {on},"),
    "workspace after a failure": (
        f"{SPLIT}/launch.h",
        "executor_.release(executor_.self, panels_);\n    return status;",
        "if (!{on} || status == Status::ok) executor_.release(executor_.self, panels_);\n    return status;",
    ),
}
# ... and by the random cases.
MUTANTS_OF_SPLIT = {
    "lanes beyond the last": (
        f"{SPLIT}/pack.h",
        "is_whole = lanes == kAmxStrip &&",
        "is_whole = ({on} || lanes == kAmxStrip) &&",
    ),
    "elements beyond k": (f"{SPLIT}/pack.h", "&& depth == kAmxStep;", "&& ({on} || depth == kAmxStep);"),
    "columns of C": (
        f"{SPLIT}/task.h",
        "target.cols = min_of(kAmxStrip, num_cols - j * kAmxStrip)",
        "target.cols = {on} ? kAmxStrip : min_of(kAmxStrip, num_cols - j * kAmxStrip)",
    ),
    "no memory for terms": (
        f"{SPLIT}/launch.h",
        "if (!panels_) return Status",
        "if (!panels_ && !{on}) return Status",
    ),
}
# Of the cases of the models every fifth one shows all mutants.
SOME_CASES = "5"
# Those of register_tiled are in the objects that these programs share with that of test_sanitize.py.
OF_RUNG_04 = {f"04 {name}": mutant for name, mutant in test_sanitize.MUTANTS.items()}
ALL_MUTANTS = OF_RUNG_04 | MUTANTS_OF_ORDER | MUTANTS | MUTANTS_OF_SPLIT_ORDER | MUTANTS_OF_SPLIT

EMULATED_FOR_MUTANTS = "amx"
# The vector kernel whose bits flagged lanes have, that of AVX2 as well as that of AVX-512.
VECTORS = test_sanitize.SOURCE_OF["avx2"]
ORDERS = [Source(HERE / "amx_order.cpp"), Source(HERE / "amx_split_order.cpp")]
# The models' multiply-adds are instructions, not calls of the C library, which take ten times as long behind vectors.
OF_ORDERS = ("-mavx2", "-mfma")


def sources_of(*others: str) -> list[Source]:
    """All entries, the dispatcher, these rungs, and of the other kernels for CPUs the sources that are named."""
    named = {"rung.cpp", "rungs.cpp", *others}
    of_cpu = CSRC / "kernels/cpu"
    return [
        source
        for source in gpu_objects.cpp_sources()
        if not source.path.is_relative_to(of_cpu)
        or source.path.parent.name in test_sanitize.AMX
        or source.name in named
    ]


@pytest.fixture(scope="module")
def programs(built_once, num_jobs):
    """With the sanitizers and all mutants, over the emulation."""
    shared = test_sanitize.shared_objects(built_once, num_jobs)

    def build(folder: Path) -> None:
        sources, orders = sources_of(VECTORS), folder / "orders"
        own = [source for source in sources if test_sanitize.is_of_amx(source) or source.name == "select.cpp"]
        flags = [EMULATED[EMULATED_FOR_MUTANTS], SMALL_SPLITS]
        test_sanitize.compile_sources(folder, num_jobs, ALL_MUTANTS, own, flags)
        test_sanitize.compile_sources(orders, num_jobs, {}, ORDERS, OF_ORDERS)
        objects = [(folder if source in own else shared) / source.object_name for source in sources]
        mains = [test_sanitize.main_object(built_once), *(orders / source.object_name for source in ORDERS)]
        for main, name in zip(mains, ("sanitize", "amx_order", "amx_split_order"), strict=True):
            test_sanitize.link_program(objects, main, folder / name)

    return built_once("emulated_amx_sanitized", build)


def run(program: Path, *arguments: str, mutant: str = "") -> subprocess.CompletedProcess:
    number = list(ALL_MUTANTS).index(mutant) + 1 if mutant else 0
    env = os.environ | {"TILEDMM_MUTANT": str(number)}
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300, env=env)


@pytest.mark.takes_long("sanitized")
def test_no_case_is_wrong_and_no_sanitizer_complains(programs):
    done = run(programs / "sanitize", "300", "amx", "split")
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = dict(zip(done.stdout.split()[2::2], map(int, done.stdout.split()[3::2]), strict=True))
    assert counts["amx"] >= 250 and counts["split"] >= 200 and counts["failed_allocations"] >= 150


@pytest.mark.parametrize("program", ["amx_order", "amx_split_order"])
def test_mutants_that_are_off_change_no_bit(program, programs):
    done = run(programs / program, SOME_CASES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("mutant", MUTANTS | MUTANTS_OF_SPLIT)
def test_mutant_is_found(mutant, programs):
    done = run(programs / "sanitize", "400", "split" if mutant in MUTANTS_OF_SPLIT else "amx", mutant=mutant)
    assert done.returncode != 0, done.stdout
    print((done.stdout + done.stderr)[:400])


@pytest.mark.parametrize("mutant", MUTANTS_OF_ORDER | MUTANTS_OF_SPLIT_ORDER)
def test_mutant_of_the_order_is_found(mutant, programs):
    program = "amx_order" if mutant in MUTANTS_OF_ORDER else "amx_split_order"
    done = run(programs / program, SOME_CASES, mutant=mutant)
    assert done.returncode == 1 and done.stdout.startswith("WRONG"), done.stdout + done.stderr
    print(done.stdout)


# --- programs and packages as a build compiles them ---


def compile_variant(folder: Path, num_jobs: int, flags: list[str]) -> None:
    """``folder``/amx_order, amx_split_order and _kernels.so. What the flags do not change is compiled once, beside
    them, or comes from the build."""
    command = [*shlex.split(os.environ.get("CXX", "g++")), "-std=c++17", "-O2", "-fwrapv", "-ffp-contract=off", "-fPIC"]
    command += ["-fvisibility=hidden", '-DTILEDMM_VERSION="0"']
    sources = sources_of("01_naive.cpp", "02_block_tiled.cpp", VECTORS)
    changed = [source for source in sources if test_sanitize.is_of_amx(source)]
    same = [source for source in sources if source not in changed]
    built = [found for source in same if (found := gpu_objects.object_of_the_build(source))]
    same = [source for source in same if not gpu_objects.object_of_the_build(source)]
    groups = [
        gpu_objects.Sources(ORDERS, [*command, *OF_ORDERS], folder.parent / "shared"),
        gpu_objects.Sources(same, command, folder.parent / "shared"),
        gpu_objects.Sources(changed, [*command, SMALL_SPLITS, *flags], folder),
    ]
    mains, of_same, own = gpu_objects.compile_objects(groups, num_jobs, is_quiet=True)
    shared = [*built, *of_same]
    gpu_objects.link_library(command[:1], shared + own, folder / "_kernels.so")
    for source, main in zip(ORDERS, mains, strict=True):
        linked = [*command[:1], *map(str, [main, *shared, *own]), "-pthread", "-o", str(folder / source.path.stem)]
        gpu_objects.run_compiler(linked)


@pytest.fixture(scope="module")
def variants(built_once, num_jobs):
    """A folder for the emulated chip: the program, and the package and its tests with emulated kernels."""

    def build(folder: Path) -> None:
        ignore = shutil.ignore_patterns("_kernels.so", "__pycache__")
        compile_variant(folder / WHOLE, num_jobs, [EMULATED[WHOLE]])
        for name in ("torch_tiledmm", "tests", "tools"):
            shutil.copytree(ROOT / name, folder / WHOLE / name, ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", folder / WHOLE)
        (folder / WHOLE / "_kernels.so").rename(folder / WHOLE / "torch_tiledmm/_kernels.so")

    return built_once("emulated_amx", build)


@pytest.mark.parametrize("program, num_cases", [("amx_order", 496), ("amx_split_order", 117)])
def test_order_of_summation(program, num_cases, variants):
    done = run(variants / WHOLE / program)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(rf"{WHOLE} {num_cases} cases [0-9a-f]{{16}}\n", done.stdout)


def test_instructions_and_emulation_give_the_same_bits(variants, num_jobs):
    isa = torch_tiledmm.build_info().isa["cpu"]
    if isa not in EMULATED:
        pytest.skip(f"this machine is {isa}: it has no AMX, or does not let a process use it")
    compile_variant(variants / "instructions", num_jobs, [])
    of_bf16 = ("1", "bf16") if isa != WHOLE else ()
    for source in ORDERS:
        own, emulated = (run(variants / name / source.path.stem, *of_bf16) for name in ("instructions", WHOLE))
        assert own.returncode == 0, own.stdout + own.stderr
        assert own.stdout.split() == [isa, *emulated.stdout.split()[1:]]


# --- the package's own tests ---


def run_python(folder: Path, *arguments: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env=env | {"PYTHONPATH": str(folder)},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


# Of which file which tests.
PACKAGE_TESTS = {
    "test_items.py": "amx",
    "test_property.py": "bits and (bf16 or fp16 or (layout_or_n and fp32))",
    "test_amx_split.py": "on_amx",
    "test_orders.py": "on_the_cpu or available or (not_depend_on_m and amx)",
    "test_scaled.py": "weight_only and not one_order",
    "test_scaled_grouped.py": "sums_by_rows",
    "test_dispatch.py": "on_the_cpu or available or (not_depend_on_m and amx)",
}


@pytest.mark.takes_long("emulated_amx")
def test_the_package_s_tests(variants):
    """In one process: to import torch takes as long as half of them."""
    words = " or ".join(f"({name} and ({words}))" for name, words in PACKAGE_TESTS.items())
    paths = [f"tests/torch_tiledmm/{name}" for name in PACKAGE_TESTS]
    out = run_python(variants / WHOLE, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-k", words, *paths)
    for name in PACKAGE_TESTS:
        assert len(re.findall(rf"{name}::.* PASSED", out)) >= 4, out


def test_random_cases(variants):
    code = """if True:
        import sys
        import torch_tiledmm
        from torch_tiledmm.testing import fuzz
        print(torch_tiledmm.build_info().isa["cpu"], torch_tiledmm.explain(9, 9, 9, "fp16").choice)
        sys.exit(fuzz.main(["--cases", "250", "--seed", "7", "--processes", "1"]))
    """
    assert run_python(variants / WHOLE, "-c", code).split()[:2] == [WHOLE, "amx"]


def test_fp16_is_refused_where_amx_lacks_it():
    answer = torch_tiledmm.explain(9, 9, 9, "fp16", device="cpu:amx")
    assert {c.algorithm: c.reason for c in answer.candidates}["amx"] == "the CPU's AMX has no fp16"
    assert answer.choice != "amx" and torch_tiledmm.explain(9, 9, 9, "bf16", device="cpu:amx").choice == "amx"


@pytest.mark.parametrize("threads", [2, 16, 64])
@pytest.mark.parametrize("n", [500, 1000, 1024, 4096, 5000, 50257])
def test_few_rows_leave_no_thread_without_a_task(n, threads):
    answer = torch_tiledmm.explain(4, n, 2048, "bf16", layout="NN", device="cpu:amx", num_threads=threads)
    (config,) = [candidate.config for candidate in answer.candidates if candidate.algorithm == "amx"]
    assert config["path"] == "stream_columns"
    assert int(config["tasks"].split("x")[1]) >= min(threads, n // 64)

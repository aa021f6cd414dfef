"""The CPU kernels without torch, compiled with the address and undefined behaviour sanitizers (sanitize.cpp).

The mutants say that the program can fail: each is one guard of an edge taken away, or a failed allocation or what must
be given back forgotten. They are compiled with the rest and switched on by an environment variable, as in
../gpu/test_host_execution.py.
"""

import functools
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import compilers
import gpu_objects
import pytest
from gpu_objects import Source

import torch_tiledmm

HERE = Path(__file__).parent
CSRC = HERE.parents[3] / "csrc"

# -O0: to optimise what has so many checks takes much longer than to run it. Pointers out of bounds are errors of
# addresses where they are used. Of objects the compiler knows no sizes at -O0.
SANITIZE = ("-O0", "-g0", "-fsanitize=address,undefined", "-fno-sanitize=null,vptr,pointer-overflow,object-size")
SANITIZE += ("-fno-sanitize-recover=all",)
# The same source as that of AVX2 or NEON, with other vectors. Where those run, these have no sanitizers, with which
# they take half of the time to compile. The guard pages around operands find their errors of memory, too.
ISAS = ("portable", "neon", "avx2", "avx512", "avx512_bf16")
SOURCE_OF = {isa: f"register_tiled.cpp.{number}" for number, isa in enumerate(ISAS)}  # name of a gpu_objects.Source
LIKE_OTHERS = (SOURCE_OF["portable"], SOURCE_OF["avx512"])
SANITIZE_OF = {
    # Its loops without vectors compile fast and run slowly.
    "02_block_tiled.cpp": (*SANITIZE, "-O1"),
    # Vectors that are not aligned end a program without a sanitizer's help, whose checks take a fifth of the time.
    **{SOURCE_OF[isa]: (*SANITIZE, "-fno-sanitize=alignment") for isa in ("neon", "avx2", "avx512_bf16")},
}
# Of what runs and compares the kernels. Its errors of memory are left to fail elsewhere.
RUNNER_FLAGS = ("-O2", "-g0", "-fsanitize=undefined", "-fno-sanitize-recover=all")
AMX = ("amx", "amx_split")
AVAILABLE = {entry.name for entry in torch_tiledmm.algorithms("cpu") if entry.available}
# Sources with instructions that not every machine has, and the rung that says whether this one has them.
NEEDED_RUNG = {
    "amx.cpp": "amx",
    "amx_split.cpp": "amx",
    SOURCE_OF["avx512"]: "register_tiled.avx512",
    SOURCE_OF["avx512_bf16"]: "register_tiled.avx512_bf16",
}
TILE = "kernels/cpu/register_tiled/block_tile.h"
PACK, EPILOGUE = "kernels/cpu/shared/pack.h", "kernels/cpu/shared/epilogue.h"
LAUNCH, ITEMS = "kernels/cpu/register_tiled/launch.h", "kernels/cpu/shared/items.h"
IN_PLACE = "kernels/cpu/register_tiled/in_place.h"
# name: file, text, what takes its place ({on}: this mutant is switched on)
MUTANTS = {
    "columns": (
        TILE,
        "tile_cols = min_of(kThreadN, block_cols - jr)",
        "tile_cols = {on} ? kThreadN : min_of(kThreadN, block_cols - jr)",
    ),
    "epilogue": (
        EPILOGUE,
        "const int64_t count = min_of(kLanes, cols - j);",
        "const int64_t count = {on} ? kLanes : min_of(kLanes, cols - j);",
    ),
    "workspace that stays": (LAUNCH, "if (!is_near) executor.release", "if (!is_near && !{on}) executor.release"),
    "no memory for a workspace": (LAUNCH, "if (!workspace) return", "if (!workspace && !{on}) return"),
    "no memory for dot products": (
        "kernels/cpu/register_tiled/long_dot.h",
        "if (!sums) return Status::out_of_memory;",
        "if (!sums) return {on} ? Status::ok : Status::out_of_memory;",
    ),
    "both chunks of a pair by the first one's rows": (
        "kernels/cpu/register_tiled/dots.h",
        "a[v * step_a + word * MR + i]",
        "a[({on} ? 0 : v * step_a) + word * MR + i]",
    ),
    "columns that are packed on the way": (
        "kernels/cpu/register_tiled/micro_kernel.h",
        "store(b.packed + v * kLanes, frag_b[v])",
        "store(b.packed + v * kLanes, frag_b[{on} ? 0 : v])",
    ),
    "rows taken for neighbours": (TILE, "a.row_bytes == sizeof(Word)", "{on} || a.row_bytes == sizeof(Word)"),
    "rows and words with gaps in place": (
        "kernels/cpu/register_tiled/plan.h",
        "(is_a_k_major || is_a_m_major)",
        "({on} || is_a_k_major || is_a_m_major)",
    ),
    "the last columns beside them": (
        TILE,
        "(config.packs_b_on_the_way || jr % group_cols == 0)",
        "((!{on} && config.packs_b_on_the_way) || jr % group_cols == 0)",
    ),
    "packets behind the last item": (
        ITEMS,
        "packets_end <= (items_left - count + 1) * stride_item",
        "({on} || packets_end <= (items_left - count + 1) * stride_item)",
    ),
    "packets of items that are none": (ITEMS, "if (l >= count) break;", "if (l >= count && !{on}) break;"),
    "the first item's bias for its neighbours": (
        ITEMS,
        "if (bias) bias += kLanes * dim.stride_bias;",
        "if (bias && !{on}) bias += kLanes * dim.stride_bias;",
    ),
    "no memory for items": (
        ITEMS,
        "if (!workspace) return Status::out_of_memory;",
        "if (!workspace) return {on} ? Status::ok : Status::out_of_memory;",
    ),
    "items that stay": (
        ITEMS,
        "executor.release(executor.self, workspace);",
        "if (!{on}) executor.release(executor.self, workspace);",
    ),
    "rows of items in place taken for neighbours": (
        IN_PLACE,
        "problem.stride_am == 1",
        "({on} || problem.stride_am == 1)",
    ),
    "chunks of items in place": (IN_PLACE, "if (!place.is_first)", "if (!place.is_first && !{on})"),
    "no memory for items in place": (
        IN_PLACE,
        "if (!workspace) return Status::out_of_memory;",
        "if (!workspace) return {on} ? Status::ok : Status::out_of_memory;",
    ),
    "items in place that stay": (IN_PLACE, "if (workspace) executor", "if (workspace && !{on}) executor"),
    "items in place of one dimension alone": (
        IN_PLACE,
        "min_of(end - first, dim.size - first % dim.size)",
        "min_of(end - first, {on} ? end : dim.size - first % dim.size)",
    ),
    "the first columns' scales for later ones": (EPILOGUE, "scales.offset(col, 0)", "scales.offset({on} ? 0 : col, 0)"),
    "the first column's scale for its neighbours": (
        EPILOGUE,
        "problem.scale_b.offset(col + l, 0)",
        "problem.scale_b.offset(col + ({on} ? 0 : l), 0)",
    ),
    "denormal numbers of 8 bits": (
        PACK,
        "(numbers & 0x7f) + 1)",
        "(numbers & 0x7f) + broadcast<uint8_t>({on} ? 9 : 1))",
    ),
    "the other half of a packet of 8 bits": (PACK, "(Reg<Unit>)halves[1]", "(Reg<Unit>)halves[{on} ? 0 : 1]"),
    "words of short columns": (
        PACK,
        "load(from + i * Simd<Word>::kLanes);",
        "load(from + ({on} ? 0 : i) * Simd<Word>::kLanes);",
    ),
    "first chunk": (TILE, "const bool is_first = pc == k_begin,", "const bool is_first = {on} || pc == k_begin,"),
}

# Mutants that named shapes of sanitize.cpp find, and random shapes hardly ever do.
OF_NAMED_SHAPES = (
    "the first columns' scales for later ones",
    "the first column's scale for its neighbours",
    "denormal numbers of 8 bits",
    "the other half of a packet of 8 bits",
    "no memory for dot products",
    "both chunks of a pair by the first one's rows",
    "words of short columns",
)
OF_NAMED_SHAPES += tuple(name for name, (changed, *_) in MUTANTS.items() if changed in (ITEMS, IN_PLACE))

# The kernel whose sources have all mutants, with sanitizers: others would take most of the time.
FIND_MUTANTS = AVAILABLE & {"register_tiled.avx2", "register_tiled.neon"}


def mutable_sources(folder: Path, mutants: dict) -> Path:
    """A copy of csrc with the mutants in it, switched off."""
    csrc = folder / "csrc"
    shutil.copytree(CSRC, csrc)
    for number, (name, (changed, text, replacement)) in enumerate(mutants.items(), 1):
        source = (csrc / changed).read_text()
        assert source.count(text) == 1, f"the mutant '{name}' needs a new place in {changed}"
        replacement = replacement.replace("{on}", f"(tiledmm_mutant == {number})")
        (csrc / changed).write_text(source.replace(text, replacement))
    return csrc


def is_like_others(source: Source) -> bool:
    return source.name in LIKE_OTHERS and bool(FIND_MUTANTS)


def compile_sources(
    folder: Path, num_jobs: int, mutants: dict, sources: Sequence[Source], flags: Sequence[str] = ()
) -> None:
    """Objects of sources of csrc, with the mutants in it, and of programs."""
    csrc = mutable_sources(folder, mutants)
    command = ["-std=c++17", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
    command += [f"-I{csrc}", "-include", str(HERE.parent / "mutant.h"), *flags]

    def compile_source(source: Source) -> None:
        is_of_csrc = source.path.is_relative_to(CSRC)
        path = csrc / source.path.relative_to(CSRC) if is_of_csrc else source.path
        target = folder / source.object_name
        if is_like_others(source) and (built := gpu_objects.object_of_the_build(source)):
            shutil.copy(built, target)
            return
        sanitize = SANITIZE_OF.get(source.name, SANITIZE) if is_of_csrc else RUNNER_FLAGS
        sanitize = ("-O0", "-g0") if is_like_others(source) else sanitize
        is_entry = is_of_csrc and (source.name.startswith("rung") or source.path.parent.name in ("api", "dispatch"))
        cxx = compilers.sanitizing_command() if is_entry else compilers.CXX
        compile_it = [*cxx, *command, *sanitize, "-c", *source.arguments(path), "-o", target]
        done = subprocess.run(compile_it, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{path} does not compile:\n{done.stderr}"

    with ThreadPoolExecutor(num_jobs) as pool:
        list(pool.map(compile_source, sources))


def link_program(objects: Iterable[Path], main: Path, program: Path) -> None:
    """The program's own object is the last one, and those without sanitizers come before it: of inline functions that
    they share with others, theirs are checked."""
    objects = sorted(objects, key=lambda path: path.name.endswith(tuple(f"_{name}.o" for name in LIKE_OTHERS)))
    link = [*compilers.CXX, "-fsanitize=address,undefined", "-pthread", *objects, main, "-o", program]
    subprocess.run(link, check=True, timeout=120)


def is_of_amx(source: Source) -> bool:
    return source.path.parent.name in AMX or source.name == "chips.cpp"


def can_run(source: Source) -> bool:
    """Whether this machine has the instructions: launchers are weak, others can be left out."""
    return source.name not in NEEDED_RUNG or NEEDED_RUNG[source.name] in AVAILABLE


def gpu_entries(built_once, num_jobs: int) -> Path:
    """The folder with the objects of all entries of GPU kernels, which ../gpu/test_host_execution.py links, too."""
    sources = [source for source in gpu_objects.cpp_sources() if gpu_objects.is_gpu_entry(source)]
    return built_once("sanitized_entries", lambda folder: compile_sources(folder, num_jobs, {}, sources))


def shared_objects(built_once, num_jobs: int) -> Path:
    """The folder with the objects of what this machine runs but those of AMX, which test_amx.py links, too."""
    entries = gpu_entries(built_once, num_jobs)

    def build(folder: Path) -> None:
        others = [source for source in gpu_objects.cpp_sources() if not gpu_objects.is_gpu_entry(source)]
        sources = [source for source in others if not is_of_amx(source) and can_run(source)]
        compile_sources(folder, num_jobs, MUTANTS, sources)
        for entry in entries.glob("*.o"):
            shutil.copy(entry, folder)

    return built_once("sanitized", build)


def main_object(built_once) -> Path:
    """The object of sanitize.cpp, which others link, too."""
    main = Source(HERE / "sanitize.cpp")
    build = functools.partial(compile_sources, num_jobs=1, mutants={}, sources=[main])
    return built_once("sanitized_main", build) / main.object_name


@pytest.fixture(scope="module")
def program(built_once, num_jobs):
    shared = shared_objects(built_once, num_jobs)

    def build(folder: Path) -> None:
        sources = [source for source in gpu_objects.cpp_sources() if is_of_amx(source) and can_run(source)]
        compile_sources(folder, num_jobs, MUTANTS, sources)
        link_program([*shared.glob("*.o"), *folder.glob("*.o")], main_object(built_once), folder / "sanitize")

    return built_once("sanitize", build) / "sanitize"


def run(program: Path, num_cases: int, *algorithms: str, mutant: int = 0) -> subprocess.CompletedProcess:
    command = [program, str(num_cases), *algorithms]
    env = os.environ | {"TILEDMM_MUTANT": str(mutant)}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)


@pytest.mark.takes_long("sanitized")
def test_no_case_is_wrong_and_no_sanitizer_complains(program):
    done = run(program, 300)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = dict(zip(done.stdout.split()[2::2], map(int, done.stdout.split()[3::2]), strict=True))
    assert counts["auto"] == counts["native"] >= 900
    for entry in torch_tiledmm.algorithms("cpu"):
        if entry.available:
            assert counts[entry.name] >= (900 if entry.is_native else 750) * len(entry.dtypes) // 4, entry.name
    assert counts["failed_allocations"] >= 750


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_found(mutant, program):
    num_random_cases = 0 if mutant in OF_NAMED_SHAPES else 400
    done = run(program, num_random_cases, *FIND_MUTANTS, mutant=list(MUTANTS).index(mutant) + 1)
    assert done.returncode != 0, done.stdout
    print((done.stdout + done.stderr)[:400])

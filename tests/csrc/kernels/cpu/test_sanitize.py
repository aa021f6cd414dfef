"""The CPU kernels without torch, compiled with the address and undefined behaviour sanitizers (sanitize.cpp).

The mutants say that the program can fail: each is one guard of an edge taken away.
"""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CSRC = HERE.parents[3] / "csrc"
MUTATED = "kernels/cpu/04_register_tiled_portable.cpp"
TILE, EPILOGUE = "kernels/cpu/04_register_tiled.h", "platform/epilogue.h"
MUTANTS = {
    "columns": (TILE, "tile_cols = min_of(kThreadN, block_cols - jr)", "tile_cols = kThreadN"),
    "epilogue": (EPILOGUE, "const int64_t count = min_of(kLanes, cols - j);", "const int64_t count = kLanes;"),
    "first chunk": (TILE, "const bool is_first = pc == k_begin,", "const bool is_first = true,"),
}


def compile_source(source: Path, to: Path, csrc: Path) -> Path:
    command = [
        os.environ.get("CXX", "g++"),
        "-std=c++17",
        "-O1",
        "-g0",
        "-ffp-contract=off",
        "-Wall",
        "-Wextra",
    ]
    command += ["-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{csrc}"]
    done = subprocess.run([*command, "-c", source, "-o", to], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{source} does not compile:\n{done.stderr}"
    return to


def link(objects: list[Path], to: Path) -> Path:
    command = [os.environ.get("CXX", "g++"), "-fsanitize=address,undefined", "-pthread"]
    subprocess.run([*command, *objects, "-o", to], check=True, timeout=120)
    return to


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sanitize")
    sources = [
        HERE / "sanitize.cpp",
        *sorted(CSRC.glob("kernels/cpu/*.cpp")),
        *sorted(CSRC.glob("dispatch/*.cpp")),
    ]
    with ThreadPoolExecutor(2) as pool:
        compiled = pool.map(lambda s: compile_source(s, folder / f"{s.parent.name}_{s.name}.o", CSRC), sources)
        return dict(zip(sources, compiled, strict=True))


def run(program: Path, num_cases: int) -> subprocess.CompletedProcess:
    return subprocess.run([program, str(num_cases)], capture_output=True, text=True, timeout=300)


def test_no_case_is_wrong_and_no_sanitizer_complains(objects, tmp_path):
    done = run(link(list(objects.values()), tmp_path / "sanitize"), 400)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = dict(zip(done.stdout.split()[2::2], map(int, done.stdout.split()[3::2]), strict=True))
    assert counts["auto"] == counts["naive"] == counts["native"] >= 1200
    assert counts["register_tiled.portable"] >= 1200


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_found(mutant, objects, tmp_path):
    header, guard, without = MUTANTS[mutant]
    text = (CSRC / header).read_text()
    assert text.count(guard) == 1, f"the mutant '{mutant}' needs a new place in {header}"
    # All of csrc in links, but for the header.
    for path in CSRC.rglob("*.h"):
        copy = tmp_path / "csrc" / path.relative_to(CSRC)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text.replace(guard, without) if path == CSRC / header else path.read_text())
    compiled = compile_source(CSRC / MUTATED, tmp_path / "mutant.o", tmp_path / "csrc")
    parts = [compiled if source == CSRC / MUTATED else path for source, path in objects.items()]
    done = run(link(parts, tmp_path / "mutant"), 400)
    assert done.returncode != 0, done.stdout
    print((done.stdout + done.stderr)[:400])

"""Programs that run a rung's kernels by the emulated Hopper (emulated_hopper/emulator.h), mutants of them included."""

import os
import shutil
import subprocess
from pathlib import Path

import gpu_objects
import pytest

HERE = Path(__file__).parent
CSRC = HERE.parents[3] / "csrc"

NVCC = gpu_objects.find_nvcc()


def compile_program(folder: Path, source: str, rung: str, mutants: dict, edits: tuple = (), flags: tuple = ()) -> Path:
    """A program of csrc with the edits (file, text, what takes its place) and, each to be switched on, the mutants.

    Files of the rung are named without their folder.
    """
    csrc, program = folder / "csrc", folder / "program"
    shutil.copytree(CSRC, csrc)
    numbered = [
        (changed, text, replacement.replace("{on}", f"(tiledmm_mutant == {number})"))
        for number, (changed, text, replacement, _) in enumerate(mutants.values(), 1)
    ]
    for changed, text, replacement in (*edits, *numbered):
        path = csrc / changed if "/" in changed else csrc / rung / changed
        code = path.read_text()
        assert code.count(text) == 1, f"a mutant or an edit needs a new place in {changed}: {text}"
        path.write_text(code.replace(text, replacement))
    # g++ takes the extern declaration of a thread's memory for one that is initialised elsewhere.
    # Registers are left as they are where a kernel's state begins with others.
    host = "-fno-extern-tls-init,-ffp-contract=off,-pthread,-Wall,-Wextra,-Werror,-Wno-unknown-pragmas"
    host += ",-Wno-missing-field-initializers"
    command = [NVCC, "-x", "c++", "-std=c++20", "-O1", "-ccbin", os.environ.get("CXX", "g++"), "-Xcompiler", host]
    command += ["-DTILEDMM_HOST_GPU", "-DTILEDMM_WARP_SIZE=32", f"-I{HERE / 'emulated_hopper'}", f"-I{csrc}", *flags]
    command += ["-include", HERE.parent / "mutant.h", "-include", "emulator.h", HERE / source]
    done = subprocess.run([*command, "-o", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return program


def run(program: Path, *cases: int, mutant: int = 0, timeout: int = 300) -> subprocess.CompletedProcess:
    env = os.environ | {"TILEDMM_MUTANT": str(mutant)}
    return subprocess.run([program, *map(str, cases)], capture_output=True, text=True, timeout=timeout, env=env)


def compiled_if_chosen(launcher: str, shares: str) -> tuple[str, str, str]:
    """An edit of wgmma's frame: a launcher instantiates no kernel that no case runs."""
    head = f"template <class Cfg>\nconst char* {launcher}(const Task& task) {{\n"
    chosen = head.replace(launcher, f"really_{launcher}")
    return (
        "kernel.h",
        head,
        f"{chosen.replace(' {', ';')}{head}  if constexpr (is_compiled<Cfg, {shares}>())\n"
        f'    return really_{launcher}<Cfg>(task);\n  else\n    return "not compiled";\n}}\n{chosen}',
    )


def program_fixture(source: str, rung: str, mutants: dict, edits: tuple = ()):
    @pytest.fixture(scope="module")
    def program(built_once):
        def build(folder):
            compile_program(folder, source, rung, mutants, edits)

        return built_once(Path(source).stem, build) / "program"

    return program


def check_cases(program: Path, num_cases: int) -> None:
    done = run(program)
    assert done.returncode == 0 and done.stdout.count("right") == num_cases, done.stdout + done.stderr


def check_mutant(program: Path, mutants: dict, name: str) -> None:
    """The mutant's case, the last of its fields, finds it."""
    done = run(program, mutants[name][3], mutant=list(mutants).index(name) + 1)
    assert done.returncode == 1, done.stdout + done.stderr
    print(done.stdout)

"""Tasks that workers share out among themselves, kernels/cpu/shared/parallel.h: each runs just once (parallel.cpp).

Planted bug that this caught, kept as a mutant: a place that is read and then written, in two steps instead of one.
"""

import os
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
CSRC = HERE.parents[3] / "csrc"
HEADER = "kernels/cpu/shared/parallel.h"
IN_ONE_STEP = "const int64_t idx = share.next.fetch_add(1, std::memory_order_relaxed);"
# In between others run now and then, also where all cores are busy.
IN_TWO_STEPS = """const int64_t idx = share.next.load(std::memory_order_relaxed);
if (idx % 1024 == 1000) std::this_thread::sleep_for(std::chrono::microseconds(1));
share.next.store(idx + 1);"""


def build(folder: Path) -> Path:
    cxx = os.environ.get("CXX", "g++").split()
    command = [*cxx, "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{folder}", f"-I{CSRC}"]
    subprocess.run([*command, HERE / "parallel.cpp", "-o", folder / "parallel"], check=True, timeout=60)
    return folder / "parallel"


def run(program: Path) -> subprocess.CompletedProcess:
    return subprocess.run([program], capture_output=True, text=True, timeout=60)


def test_each_task_runs_just_once(tmp_path):
    done = run(build(tmp_path))
    assert done.returncode == 0 and done.stdout == "in turn: 0 wrong\nat once: 0 wrong\n", done.stdout


def test_a_task_that_two_workers_take_is_found(tmp_path):
    source = (CSRC / HEADER).read_text()
    assert source.count(IN_ONE_STEP) == 1, "the mutant needs a new place"
    (tmp_path / HEADER).parent.mkdir(parents=True)
    (tmp_path / HEADER).write_text("#include <thread>\n" + source.replace(IN_ONE_STEP, IN_TWO_STEPS))
    assert run(build(tmp_path)).returncode == 1

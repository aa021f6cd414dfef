"""The kernel that adds the sums of chunks, with and without vectors, on the host executor."""

import os
import subprocess
from pathlib import Path

import gpu_objects

HERE = Path(__file__).parent
CSRC = HERE.parents[2] / "csrc"


def test_every_bit_is_that_of_one_addition_after_the_other(tmp_path):
    """Planted bugs that it caught: chunks from the last to the first, a column's neighbour's sum, vectors stored where
    C's rows or columns do not allow it, a scale or a bias of the first column for all, one column of four activated,
    the column of A's sums off by one.
    """
    program = tmp_path / "chunk_sums"
    command = gpu_objects.host_command(os.environ.get("CXX", "g++"), 32, werror=True)
    sources = (HERE / "chunk_sums.cpp", CSRC / "platform/host_gpu/executor.cpp")
    subprocess.run([*command, f"-I{CSRC}", *sources, "-pthread", "-o", program], check=True, timeout=120)
    done = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.count("right") == 37, done.stdout + done.stderr

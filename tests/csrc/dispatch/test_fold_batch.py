"""A batch that folds into rows or columns: the same products, and chunks of k that depend on neither m nor the batch.

Planted bugs that this check caught: a bias along m or along n that is forgotten, a stride of C that is not compared,
chunks of the folded problem, chunks that depend on m in fp64.
"""

import subprocess
from pathlib import Path

HERE = Path(__file__).parent
CSRC = HERE.parents[2] / "csrc"


def test_folded_problems_have_the_same_products_and_order(tmp_path):
    program = tmp_path / "fold_batch"
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}", str(HERE / "fold_batch.cpp")]
    subprocess.run([*command, "-o", program], check=True, timeout=120)
    done = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout

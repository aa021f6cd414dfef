"""The mixture of experts learns by grouped products what it learns by a loop."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_experts.py"


def test_learns_what_the_loop_does():
    command = [sys.executable, str(EXAMPLE), "--quick", "--threads", "1", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    loop, grouped = map(float, re.findall(r"^(?:loop|grouped products) +loss ([\d.]+)", done.stdout, re.MULTILINE))
    assert abs(loop - grouped) <= 0.01
    assert loop < 4.4  # log(128) = 4.85 at the start

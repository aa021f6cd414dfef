"""What a model writes alone and in a batch has equal bits under the mode."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "generate.py"


def test_no_step_differs_under_the_mode():
    command = [sys.executable, str(EXAMPLE), "--quick", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^torch_tiledmm +0 of  8 ", done.stdout, re.MULTILINE), done.stdout
    assert "nothing that was seen" in done.stdout

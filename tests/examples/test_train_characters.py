"""The character transformer runs with its layers tiled and learns as much as with nn.Linear."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_characters.py"


def final_loss(*arguments: str) -> tuple[float, str]:
    command = [sys.executable, str(EXAMPLE), "--quick", "--threads", "1", "--device", "cpu", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return float(re.findall(r"step +40/40 +loss ([\d.]+)", done.stdout)[0]), done.stdout


def test_learns_what_linear_does():
    tiled, output = final_loss()
    assert re.match("device cpu: .*\nreplaced 9: blocks.0.query_key_value, blocks.0.project, blocks.0.up,", output)
    assert "\ndef " in output
    linear, _ = final_loss("--linear")
    assert abs(tiled - linear) <= 0.01
    assert tiled < 4.2  # log(128) = 4.85 at the start

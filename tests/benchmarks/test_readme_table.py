import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "readme_table.py"
README = "# title\n<!-- results:begin -->\nold\n<!-- results:end -->\nrest\n"
MATMUL = {
    "benchmark": "matmul",
    "dtype": "fp32",
    "cpu": "a cpu",
    "isa": "avx2",
    "num_threads": 2,
    "versions": {"torch": "2.13"},
    "commit": "abc",
    "date": "2026-11-21",
    "fma_peak_gflops": 500.0,
    "rows": [
        {
            "name": name,
            "shape": "4x5x6:NT",
            "timings": {
                "tiledmm": {"median_us": 10.0, "spread": 0.02},
                "torch": {"median_us": 10.0 * ratio, "spread": 0.0},
            },
            "gflops": 1.5,
            "percent_of_limit": 80.0,
            "ratio": ratio,
        }
        for name, ratio in (("good", 2.0), ("bad", 0.5))
    ],
    "summary": {"geomean": 1.0, "below_one": ["bad"]},
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "README.md").write_text(README)
    (tmp_path / "results").mkdir()
    return tmp_path


def readme_table(folder, *options: str) -> subprocess.CompletedProcess:
    places = ("--readme", str(folder / "README.md"), "--results", str(folder / "results"))
    command = [sys.executable, str(SCRIPT), *places, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_tables_are_written_in_order_with_bad_rows_and_checked(folder):
    bf16 = copy.deepcopy(MATMUL) | {"dtype": "bf16", "fma_peak_gflops": None}
    (folder / "results" / "a.json").write_text(json.dumps(bf16))
    (folder / "results" / "b.json").write_text(json.dumps(MATMUL))
    assert readme_table(folder, "--check").returncode == 1
    assert readme_table(folder).returncode == 0
    text = (folder / "README.md").read_text()
    assert text.startswith("# title\n<!-- results:begin -->\n") and text.endswith("<!-- results:end -->\nrest\n")
    assert "old" not in text
    assert text.index("| matmul fp32 | torch | 2 | 1.00 | 0.50 | 2.00 | 1 | 500 |") < text.index("| matmul bf16 |")
    assert text.index("| good | 4x5x6:NT | 10.0 | 2% |") < text.index("| bad |")
    assert readme_table(folder, "--check").returncode == 0
    (folder / "README.md").write_text(text.replace("| 10.0 |", "| 9.0 |"))
    child = readme_table(folder, "--check")
    assert child.returncode == 1 and "differs" in child.stderr


def test_missing_markers_and_missing_results_are_named(folder):
    child = readme_table(folder)
    assert child.returncode == 2 and "no *.json" in child.stderr
    (folder / "results" / "a.json").write_text(json.dumps(MATMUL))
    (folder / "README.md").write_text("no markers\n")
    child = readme_table(folder)
    assert child.returncode == 2 and "results:begin" in child.stderr

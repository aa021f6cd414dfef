"""Tables and counts from small results.

Planted bugs that these tests caught: rows without a goal counted as rows with one, a ratio equal to its goal counted
as missed, the sum over precisions that of the last, clocks of the wrong kind, rows below 1.0 of one run instead of all.
"""

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
GPU_README = README + "<!-- gpu results:begin -->\nold\n<!-- gpu results:end -->\n"
GPU = {
    "benchmark": "gpu",
    "device": "a gpu",
    "copy_tbytes_per_second": 4.0,
    "versions": {"torch": "2.13"},
    "commit": "0123456789ab",
    "date": "2026-11-22",
    "host_us": {"bf16": {"tiledmm.matmul": 3.0}},
    "layers": [
        {"layer": "4 -> 5", "rows": 6, "precision": "bf16", "timings": {}, "tflops": 1.0, "ratio": ratio, "goal": goal}
        for ratio, goal in ((0.9, 1.0), (1.0, 1.0), (0.5, None))
    ],
    "training": [],
    "products": [
        {
            "precision": precision,
            "kind": "large",
            "shape": "4x5x6:NT",
            "algorithm": "wgmma",
            "predicted_us": 10.0,
            "timings": {"tiledmm": {"median_us": 10.0}, "vendor": {"median_us": 10.0 * ratio}},
            "tflops": 1.0,
            "ratio": ratio,
            "goal": goal,
        }
        for precision, ratio, goal in (
            ("bf16", 0.99, 1.0),
            ("bf16", 1.0, 1.0),
            ("bf16", 1.2, 1.3),
            ("fp64", 0.96, 0.97),
            ("fp64", 0.5, None),
        )
    ],
    "summary": [],
    "share_predicted_within_30_percent": 1.0,
    "clocks": {
        "driver": "580.1",
        "sm_mhz": {"median": 1500, "minimum": 1200, "maximum": 1980},
        "sm_mhz_limit": 1981,
        "memory_mhz": {"median": 3201, "minimum": 3200, "maximum": 3202},
        "temperature_c": None,
        "power_limit_w": 700.0,
        "throttled": {"sw_power_cap": 0.25},
    },
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


def test_rows_below_one_are_counted_over_all_runs_of_a_machine(folder):
    runs = (MATMUL, MATMUL | {"dtype": "bf16", "commit": "def"}, MATMUL | {"cpu": "another cpu"})
    for i, run in enumerate(runs):
        (folder / "results" / f"{i}.json").write_text(json.dumps(run))
    assert readme_table(folder).returncode == 0
    lines = (folder / "README.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("- ")] == [
        "- a cpu, avx2, 2 threads: **2 of 4 rows are below 1.0** (matmul fp32 1 of 2, matmul bf16 1 of 2); "
        "commit abc, def; 2026-11-21.",
        "- another cpu, avx2, 2 threads: **1 of 2 rows are below 1.0** (matmul fp32 1 of 2); commit abc; 2026-11-21.",
    ]


def test_missed_goals_of_a_gpu_come_first_with_commit_and_clocks(folder):
    (folder / "results" / "gpu").mkdir()
    (folder / "docs").mkdir()
    (folder / "README.md").write_text(GPU_README)
    (folder / "results" / "a.json").write_text(json.dumps(MATMUL))
    (folder / "results" / "gpu" / "a.json").write_text(json.dumps(GPU))
    (folder / "results" / "gpu" / "b.json").write_text(json.dumps(GPU | {"commit": None, "clocks": None}))
    assert readme_table(folder).returncode == 0
    missed = (
        "- a gpu: **3 of 4 products with a goal miss it** (bf16 2 of 3, fp64 1 of 1), 1 of 2 layers, "
        "0 of 0 steps of training; commit "
    )
    clocks = (
        "SM clock 1500 MHz (1200 to 1980, limit 1981), memory 3201 MHz, power limit 700 W, "
        "sw_power_cap in 25 % of the samples, driver 580.1"
    )
    readme = (folder / "README.md").read_text().split("<!-- gpu results:begin -->")[1]
    for text in (readme, (folder / "docs" / "GPU_RESULTS.md").read_text()):
        head = text[: text.index("a gpu, copy")]
        assert [line for line in head.splitlines() if line.startswith("- ")] == [
            f"{missed}0123456789ab; 2026-11-22; {clocks}.",
            f"{missed}not recorded; 2026-11-22; clocks not recorded.",
        ]


def test_missing_markers_and_missing_results_are_named(folder):
    child = readme_table(folder)
    assert child.returncode == 2 and "no *.json" in child.stderr
    (folder / "results" / "a.json").write_text(json.dumps(MATMUL))
    (folder / "README.md").write_text("no markers\n")
    child = readme_table(folder)
    assert child.returncode == 2 and "results:begin" in child.stderr

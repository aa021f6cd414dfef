"""Tables and counts from small results.

Planted bugs that these tests caught: rows without a goal counted as rows with one, a ratio equal to its goal counted
as missed, the sum over precisions that of the last, clocks of the wrong kind, rows below 1.0 of one run instead of all,
a rung's step taken from another shape, results of no commit let through, and those of changed sources; in README's
tables a row of a layer left out of the slower ones, a mean over all precisions, another layer, another dtype's.
"""

import copy
import json
from pathlib import Path

import pytest

README = "# title\n<!-- results:begin -->\nold\n<!-- results:end -->\n<!-- layer:begin -->\n<!-- layer:end -->\nrest\n"
LADDER_PAGE = "<!-- naive:begin -->\n<!-- naive:end -->\n<!-- mma:begin -->\n<!-- mma:end -->\n"
MATMUL = {
    "benchmark": "matmul",
    "dtype": "fp32",
    "cpu": "a cpu",
    "isa": "avx2",
    "num_cores": 2,
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
                "tiledmm": {"median_us": 10.0, "minimum_us": 8.0, "spread": 0.02},
                "torch": {"median_us": 10.0 * ratio, "minimum_us": 10.0 * ratio, "spread": 0.0},
            },
            "gflops": 1.5,
            "percent_of_limit": 80.0,
            "ratio": ratio,
        }
        for name, ratio in (("good", 2.0), ("bad", 0.5))
    ],
    "summary": {"geomean": 1.0, "below_one": ["bad"]},
}
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


LADDER = {
    "benchmark": "ladder",
    "device": "a gpu",
    "tables": [
        {
            "shape": shape,
            "precision": "bf16",
            "rows": [
                {"algorithm": name, "tflops": tflops, "speedup": speedup, "dram_bytes_from": "model"}
                for name, tflops, speedup in (("naive", 5.0, None), ("mma", speed, speed / 5), ("vendor", 90.0, 4.0))
            ],
        }
        for shape, speed in (("8x8x8:NN", 7.0), ("4096x4096x4096:NN", 30.0))
    ],
}
SPLIT = {
    "benchmark": "split",
    "device": "a gpu",
    "commit": "0123456789ab",
    "date": "2026-11-23",
    "size": 4096,
    "errors": [
        {
            "data": "normal",
            "k": 64,
            "errors": {
                arm: {"largest": largest, "rms": 0.5}
                for arm, largest in (("split", 1.25), ("native", 2.5), ("vendor", 2.75))
            },
        }
    ],
    "methods": [
        {"method": method, "data": data, "us": us, "error": error}
        for method, us, error in (("split", 700.0, 1.5), ("vendor fp32", 2700.0, 2.0))
        for data in ("normal", "uniform (0, 1)")
    ],
    "products": [
        {
            "kind": "4096",
            "shape": "4096x4096x4096:NN",
            "timings": {
                arm: {"median_us": us} for arm, us in (("split", 10.0), ("native", 20.0), ("vendor", 10.0 * ratio))
            },
            "ratio": ratio,
            "goal": 3.3,
        }
        for ratio in (3.3, 3.2)
    ],
    "steps": [
        {
            "step": "a step",
            "timings": {"split": {"median_us": 10.0}, "vendor": {"median_us": 25.0}},
            "ratio": 2.5,
            "goal": 3.0,
        }
    ],
}
FAMILIES = {
    "benchmark": "families",
    "device": "a gpu",
    "commit": "0123456789ab",
    "date": "2026-11-24",
    "clocks": None,
    "families": [
        {
            "seed": 3,
            "family": "mid",
            "why": "middle sizes",
            "rows": 2,
            "geomean": 1.02,
            "least_geomean": 1.0,
            "share_below_0.9": 0.5,
            "most_below_0.9": 0.05,
            "is_met": False,
            "worst": ["bf16 4x5x6:NT 0.80", "bf16 7x8x9:NN 1.30"],
            "products": [GPU["products"][0] | {"ratio": ratio} for ratio in (1.3, 0.8)],
        }
    ],
}
COUNTS = [
    {
        "algorithm": "naive",
        "global_load_elements": 1234567,
        "global_load_sectors": 2,
        "global_store_sectors": 3,
        "shared_loads": 4,
        "bank_conflicts": 5,
        "barriers": 6,
    }
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "README.md").write_text(README)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "ladder.md").write_text(LADDER_PAGE)
    return tmp_path


def put(folder: Path, file: str, results: object) -> None:
    path = folder / "results" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results))


@pytest.fixture
def readme_table(folder, monkeypatch, capsys):
    """readme_table(*options) -> the exit code and what it says on stderr."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from readme_table import main

    (folder / "results").mkdir()

    def run(*options: str) -> tuple[int, str]:
        try:
            main(["--readme", str(folder / "README.md"), "--results", str(folder / "results"), *options])
        except SystemExit as end:
            return (end.code, capsys.readouterr().err) if isinstance(end.code, int) else (1, str(end.code))
        return 0, ""

    return run


def test_tables_are_written_in_order_with_bad_rows_and_checked(folder, readme_table):
    put(folder, "a_cpu/a.json", copy.deepcopy(MATMUL) | {"dtype": "bf16", "fma_peak_gflops": None})
    put(folder, "a_cpu/b.json", MATMUL)
    assert readme_table("--check")[0] == 1
    assert readme_table() == (0, "")
    page = folder / "results" / "a_cpu" / "README.md"
    text = page.read_text()
    assert text.index("| matmul fp32 | torch | 2 | 1.00 | 0.50 | 2.00 | 1 | 500 |") < text.index("| matmul bf16 |")
    assert text.index("| good | 4x5x6:NT | 10.0 | 2% |") < text.index("| bad |")
    readme = (folder / "README.md").read_text()
    assert readme.startswith("# title\n<!-- results:begin -->\n") and readme.endswith("<!-- layer:end -->\nrest\n")
    assert "old" not in readme
    assert (
        "| a cpu, avx2, 2 cores | 1.00 | - | - | 1.00 | - | [2 of 4 rows](benchmarks/results/a_cpu/README.md) |"
        in readme
    )
    assert readme_table("--check") == (0, "")
    page.write_text(text.replace("| 10.0 |", "| 9.0 |"))
    code, text = readme_table("--check")
    assert code == 1 and "differs" in text


def test_rows_below_one_are_counted_over_all_runs_of_a_machine(folder, readme_table):
    for i, run in enumerate((MATMUL, MATMUL | {"dtype": "bf16", "commit": "def"}, MATMUL | {"cpu": "another cpu"})):
        put(folder, f"a_cpu/{i}.json", run)
    assert readme_table() == (0, "")
    lines = (folder / "results" / "a_cpu" / "README.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("- ")] == [
        "- a cpu, avx2, 2 threads: **2 of 4 rows are below 1.0** (matmul fp32 1 of 2, matmul bf16 1 of 2); "
        "commit abc, def; 2026-11-21.",
        "- another cpu, avx2, 2 threads: **1 of 2 rows are below 1.0** (matmul fp32 1 of 2); commit abc; 2026-11-21.",
    ]


def test_missed_goals_of_a_gpu_come_first_with_commit_and_clocks(folder, readme_table):
    put(folder, "a_gpu/gpu.json", GPU)
    put(folder, "b_gpu/gpu.json", GPU | {"commit": None, "clocks": None})
    assert readme_table() == (0, "")
    missed = (
        "- a gpu: **3 of 4 products with a goal miss it** (bf16 2 of 3, fp64 1 of 1), 1 of 2 layers, "
        "0 of 0 steps of training; commit "
    )
    clocks = (
        "SM clock 1500 MHz (1200 to 1980, limit 1981), memory 3201 MHz, power limit 700 W, "
        "sw_power_cap in 25 % of the samples, driver 580.1"
    )
    origins = {
        "a_gpu": f"0123456789ab; 2026-11-22; {clocks}.",
        "b_gpu": "not recorded; 2026-11-22; clocks not recorded.",
    }
    for name, origin in origins.items():
        text = (folder / "results" / name / "README.md").read_text()
        head = text[: text.index("a gpu, copy")]
        assert [line for line in head.splitlines() if line.startswith("- ")] == [missed + origin]
        line = f"| a gpu | 1.06 | - | - | - | 0.69 | [5 of 8 rows](benchmarks/results/{name}/README.md) |"
        assert line in (folder / "README.md").read_text()


def test_the_layer_of_readme_has_a_line_for_each_machine_that_measured_it(folder, readme_table):
    def step(ours: float, peer: float) -> dict:
        us = {"tiledmm": ours, "nn.Linear": peer}
        timings = {name: {"median_us": time, "minimum_us": time, "spread": 0.0} for name, time in us.items()}
        return {"timings": timings, "ratio": peer / ours, "goal": None, "tflops": 1.0, "gflops": 1.0}

    layers = [
        {"layer": layer, "rows": 512, "precision": precision} | step(ours, 2 * ours)
        for layer, precision, ours in (
            ("768 -> 3072", "bf16", 20.0),
            ("768 -> 3072", "fp16", 9.0),
            ("3072 -> 768", "bf16", 8.0),
        )
    ]
    rows = [
        {"layer": "up", "in_features": 768, "out_features": out, "batch_size": 32} | step(ours, 50.2)
        for out, ours in ((3072, 100.4), (768, 25.1))
    ]
    linear = MATMUL | {"benchmark": "linear", "dtype": "bf16", "rows": rows}
    put(folder, "a_cpu/linear.json", linear)
    put(folder, "b_cpu/matmul.json", MATMUL)
    put(folder, "c_gpu/gpu.json", GPU | {"layers": layers})
    assert readme_table() == (0, "")
    readme = (folder / "README.md").read_text()
    lines = readme[readme.index("<!-- layer:begin -->") : readme.index("<!-- layer:end -->")].splitlines()
    assert lines[1:] == [
        "| chip | 32 rows | 512 rows | 8192 rows |",
        "| --- | ---: | ---: | ---: |",
        "| a gpu | - | 20 / 40 us (2.00) | - |",
        "| a cpu, avx2, 2 cores | 100 / 50 us (0.50) | - | - |",
    ]


def test_a_rung_has_its_speed_its_step_and_its_counts(folder, readme_table):
    put(folder, "a_gpu/ladder.json", LADDER)
    put(folder, "host_executor/8x8x8_wave32.json", COUNTS)
    assert readme_table() == (0, "")
    naive, mma = (folder / "docs" / "ladder.md").read_text().split("<!-- naive:end -->")
    assert "| 5.0 | 1,234,567 | 2 | 4 | 5 | 6 |" in naive
    assert "| 30.0 (x 6.00) |" in mma
    page = (folder / "results" / "a_gpu" / "README.md").read_text()
    assert "| `mma` | 7.0 | 30.0 |" in page and "| `vendor` | 90.0 | 90.0 |" in page
    counts = (folder / "results" / "host_executor" / "README.md").read_text()
    assert "8x8x8, warps of 32 lanes" in counts and "| naive | 1,234,567 | 2 | 3 | 4 | 5 | 6 |" in counts


def test_split_has_its_errors_classes_and_rows(folder, readme_table):
    put(folder, "a_gpu/split.json", SPLIT)
    assert readme_table() == (0, "")
    page = (folder / "results" / "a_gpu" / "README.md").read_text()
    assert page.startswith("# a gpu\n")
    assert "| normal | 64 | 1.25 / 0.5 | 2.5 / 0.5 | 2.75 / 0.5 |" in page
    assert "| 4096 | 2 | 3.25 | 3.20 | 3.30 | 3.3 |" in page
    assert "| 4096 | 4096x4096x4096:NN | 10.0 | 20.0 | 33.0 | 3.30 | 3.3 |" in page
    assert "| 4096 | 4096x4096x4096:NN | 10.0 | 20.0 | 32.0 | 3.20 | 3.3 missed |" in page
    assert "| a step | 10 | 25 | 2.50 | 3.0 missed |" in page
    errors = {"split": {"largest": 6.25, "rms": 1.5}, "auto": {"largest": 0.5, "rms": 0.25}}
    rows = [
        {"data": "one-hot rows", "k": k, "products": products, "errors": errors} for k, products in ((64, 9), (3000, 1))
    ]
    put(folder, "a_gpu/split_sparse.json", SPLIT | {"benchmark": "split_sparse", "rows": rows})
    assert readme_table() == (0, "")
    sparse = (folder / "results" / "a_gpu" / "README.md").read_text().removeprefix(page)
    assert "| one-hot rows | 1 | 6.25 / 1.5 | 0.5 / 0.25 |" in sparse and "| one-hot rows | 9 |" not in sparse


def test_results_of_no_commit_are_refused(folder, readme_table):
    put(folder, "a_cpu/a.json", MATMUL)
    put(folder, "a_cpu/b.json", MATMUL | {"commit": "abc-dirty"})
    put(folder, "b_gpu/a.json", GPU)
    put(folder, "b_gpu/b.json", GPU | {"commit": None})
    assert readme_table() == (0, "")
    code, text = readme_table("--check")
    assert code == 1
    *problems, remedy = text.splitlines()
    assert problems == [
        f"{folder}/results/a_cpu/b.json: abc-dirty is no commit, sources were changed",
        f"{folder}/results/b_gpu/b.json: says no commit",
    ]
    assert "clean checkout" in remedy


def test_missing_markers_and_missing_results_are_named(folder, readme_table):
    code, text = readme_table()
    assert code == 2 and "no */*.json" in text
    put(folder, "a_cpu/a.json", MATMUL)
    (folder / "README.md").write_text("no markers\n")
    code, text = readme_table()
    assert code == 2 and "results:begin" in text


def test_models_tell_who_waits_for_whom(folder, readme_table):
    times = {"median_us": 2000.4, "minimum_us": 1900.0}
    row = {"model": "a model", "way": "compiled", "ratio": 1.25, "ratio_of_shortest": 1.3}
    row |= {"timings": {"tiledmm": times, "vendor": {"median_us": 2500.0, "minimum_us": 2470.0}}}
    row |= {"launch_us": {"tiledmm": 900.0, "vendor": 800.0}}
    put(folder, "a_gpu/gpu.json", GPU)
    put(folder, "a_gpu/models.json", FAMILIES | {"benchmark": "models", "models": [row]})
    assert readme_table() == (0, "")
    text = (folder / "results" / "a_gpu" / "README.md").read_text()
    assert "| a model | compiled | 2000 | 1900 | 2500 | 2470 | 900 | 800 | 1.25 | 1.30 |" in text.splitlines()


def test_families_stand_beside_their_bars(folder, readme_table):
    put(folder, "a_gpu/gpu.json", GPU)
    put(folder, "a_gpu/families.json", FAMILIES)
    assert readme_table() == (0, "")
    text = (folder / "results" / "a_gpu" / "README.md").read_text()
    row = "| mid | middle sizes | 3 | 2 | 1.020 (1.00) | 50 % (5 %) | missed | bf16 4x5x6:NT 0.80; bf16 7x8x9:NN 1.30 |"
    assert row in text.splitlines()
    assert "Commit 0123456789ab, 2026-11-24; clocks not recorded." in text


def test_a_rival_has_its_columns_where_it_was_measured(folder, readme_table):
    best = {"rows": 1, "geomean": 0.875, "share_below_0.9": 0.5, "worst": ["bf16 4x5x6:NT 0.88"]}
    row, *others = GPU["products"]
    timings = row["timings"] | {"cublaslt-best": {"median_us": 8.75}}
    rows = [row | {"timings": timings, "best_ratio": 0.875}, *others]
    kinds = [
        {"precision": name, "kind": "large", "rows": 3, "geomean": 1.0, "worst": 1.0, "best": 1.0, "below_goal": []}
        for name in ("bf16", "fp64")
    ]
    kinds[0]["best_ratio"] = best
    (family,) = FAMILIES["families"]
    put(folder, "a_gpu/gpu.json", GPU | {"products": rows, "summary": kinds})
    put(folder, "a_gpu/families.json", FAMILIES | {"families": [family | {"products": rows, "best_ratio": best}]})
    assert readme_table() == (0, "")
    lines = (folder / "results" / "a_gpu" / "README.md").read_text().splitlines()
    assert "| bf16 | large | 3 | 1.00 | 1.00 | 1.00 | 0 | 0.875, 50 % |" in lines
    assert "| fp64 | large | 3 | 1.00 | 1.00 | 1.00 | 0 | - |" in lines
    assert sum(line.endswith("| 0.99 | 1.00 missed | 8.8 | 0.88 |") for line in lines) == 1
    assert sum(line.endswith("| 1.00 | 1.00 | - | - |") for line in lines) == 1
    assert sum(line.endswith("| 0.875, 50 %; bf16 4x5x6:NT 0.88 |") for line in lines) == 1

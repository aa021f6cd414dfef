"""bench_fp8.py on a CPU, at its small sizes: every family has rows, ratios and, for products, rates."""

import json
import sys
from pathlib import Path

import pytest
import torch

from torch_tiledmm.testing.timing import Timing

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import bench_fp8

    monkeypatch.setattr(bench_fp8, "describe_run", lambda *_: {"commit": "0123456789ab"})
    times = {"ours": 2.0, "slow": 3.0, "fast": 1.0, "bf16": 4.0, "fp32": 4.0, "torch": 5.0}

    def time_arms(arms, seconds):
        for arm in arms.values():
            arm()
        return {name: Timing(times[name] * 1e-6, 0.0, 0.0, 1) for name in arms}

    monkeypatch.setattr(bench_fp8, "time_arms", time_arms)
    monkeypatch.setitem(bench_fp8.SIZES["cpu"], "weight_only", ((24, 40),))
    monkeypatch.setattr(bench_fp8, "FAR_BYTES", 24 * 40 * 3)
    return bench_fp8


def test_all_families(bench, monkeypatch, tmp_path, capsys):
    file = tmp_path / "a.json"
    monkeypatch.setattr(sys, "argv", ["bench_fp8.py", "--json", str(file)])
    bench.main()
    results = json.loads(file.read_text())
    assert results["commit"] == "0123456789ab"
    rows = results["rows"]
    assert {row["family"] for row in rows} == set(bench.FAMILIES)
    of = {family: [row for row in rows if row["family"] == family] for family in bench.FAMILIES}
    assert {row["recipe"] for row in of["large"]} == {"row", "tensor"}
    for row in of["large"] + of["few"]:
        assert row["tflops"] == round(2 * row["m"] * row["n"] * row["k"] / 2e6, 1) and row["bf16_over_ours"] == 2
    assert any(row.get("slow_over_ours") == 1.5 for row in of["large"])
    assert [row["layout"] for row in of["unaligned"]] == ["NT", "NN", "TN", "TT"] * 2
    assert [row["of_aligned"] for row in of["unaligned"]] == [1.0] * 4 + [round(8.3 / 8.4, 3)] * 4
    assert [(row["recipe"], row["m"]) for row in of["weight_only"]] == [
        (dtype, m) for dtype in ("bfloat16", "float32") for m in bench.FEW["cpu"]
    ]
    assert all(row["torch_over_ours"] == 2.5 for row in of["weight_only"])
    assert [(row["recipe"], row["is_skewed"], row["bf16_over_ours"]) for row in of["grouped"]] == [
        (recipe, is_skewed, 2.0) for recipe in ("row", "128x128") for is_skewed in (False, True)
    ]
    assert [row["arm"] for row in of["layers"]] == [row["arm"] for row in of["llama"]] == list(bench.LAYERS)
    assert all(row["torch_over_ours"] == 2.5 for row in of["layers"] + of["llama"])
    assert [row["arm"] for row in of["text"]] == ["bf16", *bench.LAYERS]
    assert all(abs(row["loss"] - of["text"][0]["loss"]) < 0.05 for row in of["text"])
    out = capsys.readouterr().out
    assert "layers fp8_row_fp8: torch / ours 2.500, lowest 2.50" in out


def test_errors(bench):
    rows = list(bench.errors("cpu"))
    for row in rows:
        own = 1e-5 if row["out"] == "float32" else 2**-8
        assert 0 < row["ours_error"] < own and row["wide_error"] < own
        assert 0.001 < row["whole_error"] < 0.1
    exact = torch.ones(3, dtype=torch.float64)
    assert bench.relative_error(torch.tensor([1.0, 1.0, 1.5]), exact) == 0.289


def test_copies_take_turns(bench):
    weight = torch.randn(24, 40).to(torch.float8_e4m3fn)
    of_cpu, of_gpu = bench.in_turns(weight, "cpu"), bench.in_turns(weight, "cuda")
    assert len({of_cpu().data_ptr() for _ in range(9)}) == 3 and len({of_gpu().data_ptr() for _ in range(9)}) == 1
    assert of_cpu().float().equal(weight.float())

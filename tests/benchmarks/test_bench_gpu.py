"""What the results of a GPU say about where they come from; nothing is measured, so no GPU is needed.

Planted bugs that these tests caught: clocks sampled around nothing, before or after the products, results without them,
results without a commit, an unusable TILEDMM_COMMIT noticed after the run.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from torch_tiledmm.testing import ladder, origin, parse_shape

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


class Clocks:
    """Stands in for GpuClocks; what is measured while it is entered is counted."""

    is_entered = False
    num_samples = 0

    def __init__(self, uuid):
        assert uuid == "one-two"

    def __enter__(self):
        Clocks.is_entered, Clocks.num_samples = True, 0
        return self

    def __exit__(self, *_):
        Clocks.is_entered = False

    def to_dict(self):
        return {"num_samples": Clocks.num_samples}

    @staticmethod
    def sample():
        assert Clocks.is_entered
        Clocks.num_samples += 1


@pytest.fixture
def gpu(monkeypatch):
    """A torch that believes in a GPU; the modules that measure on it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import bench_gpu

    properties = SimpleNamespace(name="a gpu", multi_processor_count=7, uuid="one-two")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: properties)
    monkeypatch.setattr(origin, "gpu_copy_rate", lambda: 4e12)
    monkeypatch.setenv("TILEDMM_COMMIT", "0123456789ab")
    monkeypatch.setattr(origin, "commit_of", lambda root: None)
    for module in (bench_gpu, ladder):
        monkeypatch.setattr(module, "GpuClocks", Clocks)
    return bench_gpu


def check(results: dict, num_measured: int) -> None:
    assert (results["device"], results["num_cus"]) == ("a gpu", 7)
    assert (results["commit"], results["commit_from"]) == ("0123456789ab", "TILEDMM_COMMIT")
    assert results["clocks"] == {"num_samples": num_measured}


def test_bench_gpu(gpu, monkeypatch, tmp_path, capsys):
    def measure_product(shape, precision):
        Clocks.sample()
        row = {"precision": precision, "kind": shape.kind, "shape": str(shape), "algorithm": "wgmma"}
        timing = {"median_us": 1.0}
        row |= {"predicted_us": 1.0, "timings": {"tiledmm": timing, "vendor": timing}, "tflops": 1.0}
        return row | {"ratio": 1.0, "goal": None}

    monkeypatch.setattr(gpu, "measure_product", measure_product)
    monkeypatch.setattr(gpu, "measure_host", lambda precision: {"torch.mm": 1.0})
    file = tmp_path / "a.json"
    options = ["--rows", "4x5x6", "7x8x9:NT", "--precisions", "bf16", "fp64", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["bench_gpu.py", *options])
    gpu.main()
    results = json.loads(file.read_text())
    check(results, 4)
    assert [row["shape"] for row in results["products"]] == ["4x5x6:NN", "7x8x9:NT"] * 2

    monkeypatch.setenv("TILEDMM_COMMIT", "main")
    file.unlink()
    with pytest.raises(SystemExit):
        gpu.main()
    assert "TILEDMM_COMMIT: got 'main'" in capsys.readouterr().err and not file.exists()


def test_ladder(gpu, monkeypatch):
    def measure_shape(shape, precision, peaks, has_ncu):
        Clocks.sample()
        return []

    monkeypatch.setattr(ladder, "_measure_shape", measure_shape)
    monkeypatch.setattr(ladder, "_host_costs", lambda precision: {})
    monkeypatch.setattr(ladder, "gpu_name", lambda: "cuda:sm_90")
    monkeypatch.setattr(ladder, "format_measured", str)
    results = ladder.measure([parse_shape("4x5x6"), parse_shape("7x8x9:NT")], ["bf16", "fp64"], has_ncu=False)
    check(results, 4)
    assert len(results["tables"]) == 4

"""What bench_split_sparse.py measures where no kernel serves split, as on every CPU without AMX: simulated schemes.

Planted bugs that these tests caught: errors over the result instead of the magnitudes; elements without products that
count in the mean; a table of every k; sparse operands that are dense.
"""

import json
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import bench_split_sparse

    return bench_split_sparse


def test_an_error_is_that_of_elements_with_products(bench):
    import bench_split

    out, exact = torch.tensor([0.0, 3.0, 5.0]), torch.tensor([0.0, 3.0, 5.0 + 2.0**-20], dtype=torch.float64)
    found = bench_split.measure_error(out, exact, torch.tensor([0.0, 4.0, 16.0], dtype=torch.float64))
    assert found == {"largest": 1.0, "rms": 0.707}


def test_simulated_schemes_over_sparse_data(bench, monkeypatch, tmp_path, capsys):
    names = ["one-hot rows by normal", "5 % of relu(normal), by the same", "50 % of uniform, by dense"]
    monkeypatch.setattr(bench, "DATA", {name: bench.DATA[name] for name in names})
    monkeypatch.setattr(bench, "DEPTHS", (96, 200))
    monkeypatch.setattr(bench, "TABLE_DEPTH", 200)
    monkeypatch.setattr(bench, "describe_run", lambda *_: {"commit": "0123456789ab"})
    monkeypatch.setattr(bench, "arms_on", lambda _: bench.SIMULATED | {"auto": torch.mm})
    monkeypatch.setattr(sys, "argv", ["bench", "--device", "cpu", "--json", str(tmp_path / "a.json")])
    bench.main()
    rows = {(row["data"], row["k"]): row for row in json.loads((tmp_path / "a.json").read_text())["rows"]}
    assert len(rows) == 6
    one_hot, sparse, dense = (rows[name, 200] for name in names)
    assert one_hot["products"] == 1 and 1 < sparse["products"] < 2 and 80 < dense["products"] < 120
    exact = {"largest": 0, "rms": 0}
    assert one_hot["errors"]["amx_split_chunks"] == one_hot["errors"]["auto"] == exact
    assert 1.8 < one_hot["errors"]["split_chunks"]["largest"] <= 2
    assert sparse["errors"]["auto"]["rms"] < sparse["errors"]["split_chunks"]["rms"]
    assert dense["errors"]["auto"]["rms"] > dense["errors"]["split_chunks"]["rms"]
    table = capsys.readouterr().out
    assert table.count("one-hot") == 1 and "split_chunks" in table

"""The pictures from small results.

Planted bugs that these tests caught: a picture that is not drawn again, one machine alone that cannot be drawn, the
ratio's worst row taken for its best, one mean over all chips, runs with fewer threads taken for a chip's own, the rows
of a family unsorted.
"""

import json
from pathlib import Path

import pytest
from test_readme_table import FAMILIES, GPU, LADDER, MATMUL, SPLIT


@pytest.fixture
def plot_results(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import plot_results

    return plot_results


def test_a_picture_knows_what_it_was_drawn_from(tmp_path, plot_results):
    options = ["--out", str(tmp_path), "--results", str(tmp_path)]
    (tmp_path / "a_gpu").mkdir()
    tables = [LADDER["tables"][1] | {"precision": precision} for precision in ("bf16", "fp32")]
    results = {"gpu": GPU, "ladder": LADDER | {"tables": tables}, "families": FAMILIES, "split": SPLIT}
    for name, own in results.items():
        (tmp_path / "a_gpu" / f"{name}.json").write_text(json.dumps(own))
    with pytest.raises(SystemExit, match="speed.png shows other numbers"):
        plot_results.main([*options, "--check"])
    plot_results.main(options)
    plot_results.main([*options, "--check"])
    family = FAMILIES["families"][0]
    products = [row | {"ratio": row["ratio"] + 0.01} for row in family["products"]]
    changed = json.dumps(FAMILIES | {"families": [family | {"products": products}]})
    (tmp_path / "a_gpu" / "families.json").write_text(changed)
    with pytest.raises(SystemExit, match="families.png shows other numbers"):
        plot_results.main([*options, "--check"])
    plot_results.main(options)
    methods = [row | {"us": row["us"] + 1} for row in SPLIT["methods"]]
    (tmp_path / "a_gpu" / "split.json").write_text(json.dumps(SPLIT | {"methods": methods}))
    with pytest.raises(SystemExit, match="split.png shows other numbers"):
        plot_results.main([*options, "--check"])
    products = [row | {"ratio": row["ratio"] + 0.01} for row in GPU["products"]]
    (tmp_path / "a_gpu" / "gpu.json").write_text(json.dumps(GPU | {"products": products}))
    with pytest.raises(SystemExit, match="speed.png shows other numbers"):
        plot_results.main([*options, "--check"])


def test_the_rows_of_a_family_are_drawn_from_the_worst_on(plot_results):
    machines = {"a_gpu": {"gpu": [GPU], "families": [FAMILIES], "cpu": [], "split": [], "ladder": []}}
    assert plot_results.family_ratios(machines) == {"a gpu": {"mid": [0.8, 1.3]}}
    (axes,) = plot_results.plot_families(plot_results.family_ratios(machines)).axes
    line, one, least = axes.lines
    assert list(line.get_xdata()) == [25, 75] and list(line.get_ydata()) == [0.8, 1.3]
    assert (one.get_ydata()[0], least.get_ydata()[0]) == (1, 0.9)


def test_the_vendors_best_has_a_panel_of_its_own(plot_results):
    (entry,) = FAMILIES["families"]
    rows = [entry["products"][0] | {"best_ratio": 1.1}, entry["products"][1]]
    families = [FAMILIES | {"families": [entry | {"products": rows}]}]
    machines = {"a_gpu": {"gpu": [GPU], "families": families, "cpu": [], "split": [], "ladder": []}}
    found = plot_results.family_ratios(machines)
    assert found == {"a gpu": {"mid": [0.8, 1.3]}, "a gpu, cuBLASLt's best": {"mid": [1.1]}}
    assert [axes.get_title() for axes in plot_results.plot_families(found).axes] == list(found)


def test_ratios_are_grouped_by_kind_of_chip_class_and_precision(plot_results):
    def cpu(threads: int, *ratios: float) -> dict:
        rows = [MATMUL["rows"][0] | {"kind": "long_k", "ratio": ratio} for ratio in ratios]
        return {"cpu": [MATMUL | {"rows": rows, "num_threads": threads}], "gpu": [], "split": [], "ladder": []}

    fewer_threads = cpu(1, 9.0)["cpu"][0] | {"num_cores": 2}
    machines = {"a_cpu": cpu(2, 2.0, 0.5), "b_cpu": cpu(2, 0.25)}
    machines["a_cpu"]["cpu"].append(fewer_threads)
    machines["gpu"] = {"cpu": [], "gpu": [GPU], "split": [], "ladder": []}
    found = plot_results.ratios_by_class(machines)
    assert list(found) == ["GPUs", "CPUs"]
    assert found["CPUs"] == {"long k": {"fp32": ([0.25, 1.0], 0.25, 2.0)}}
    (geomean,), worst, best = found["GPUs"]["large, middle"]["bf16"]
    assert (worst, best) == (0.99, 1.2)
    assert geomean == pytest.approx((0.99 * 1.0 * 1.2) ** (1 / 3))
    left, right = plot_results.plot_speed(found).axes
    assert left.get_xlabel() == right.get_xlabel() == "times as fast as the vendor"
    assert right.get_title().startswith("2 CPUs") and left.get_title().startswith("1 GPU\n")

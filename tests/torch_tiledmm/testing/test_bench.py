import json

import pytest
import torch

from torch_tiledmm.__main__ import main
from torch_tiledmm.testing import bench, parse_shape


def timings(**medians: float) -> dict:
    return {name: {"median_us": value, "spread": 0.01} for name, value in medians.items()}


def test_ratio_is_that_of_the_fastest_peer():
    assert bench.compare(timings(tiledmm=2.0, torch=5.0, numpy=3.0)) == {"best_peer": "numpy", "ratio": 1.5}


def test_limit_is_the_larger_of_flop_time_and_byte_time():
    shape = parse_shape("100x100x100")  # 2e6 flops, 120000 bytes
    record = bench.matmul_row(shape, torch.float32, timings(tiledmm=40.0, torch=10.0), 200.0, {10**6: 100.0})
    assert record["gflops"] == 50
    assert record["percent_of_limit"] == 25  # 10 us of flops, 1.2 us of bytes
    record = bench.matmul_row(shape, torch.float32, timings(tiledmm=40.0, torch=10.0), 200.0, {10**6: 6.0})
    assert record["percent_of_limit"] == 50
    assert (
        bench.matmul_row(shape, torch.float32, timings(tiledmm=4.0, torch=1.0), None, {1: 1.0})["percent_of_limit"]
        is None
    )


def test_summary_has_every_bad_row():
    rows = [{"name": "a", "ratio": 4.0}, {"name": "b", "ratio": 0.25}, {"name": "c", "ratio": 1.0}]
    assert bench.summarize(rows) == {"geomean": 1.0, "below_one": ["b"]}


@pytest.mark.parametrize("dtype, peers", [("fp32", {"torch", "numpy"}), ("bf16", {"torch"})])
def test_arms_compute_the_same_product(dtype, peers):
    for text in ("5x6x7:NT", "3x5x6x7:TN"):
        arms = bench.matmul_arms(parse_shape(text), bench.DTYPES[dtype], "auto", has_numpy="numpy" in peers)
        assert set(arms) == {"tiledmm"} | peers
        results = [torch.as_tensor(call()).float() for call in arms.values()]
        for result in results:
            torch.testing.assert_close(result, results[0], rtol=2e-2, atol=2e-2)


def test_bench_prints_the_table_and_writes_json_and_plot(tmp_path, capsys):
    results_file, plot_file = tmp_path / "results.json", tmp_path / "plot.png"
    rows = "tiny_4_nn,2x5x6x7:NT"
    main(
        f"bench --rows {rows} --dtype fp64 --threads 1 --seconds 0.01 --algorithm naive "
        f"--json {results_file} --plot {plot_file}".split()
    )
    captured = capsys.readouterr()
    results = json.loads(results_file.read_text())
    assert [row["shape"] for row in results["rows"]] == ["4x4x4:NN", "2x5x6x7:NT"]
    assert results["num_threads"] == 1 and results["algorithm"] == "naive" and results["dtype"] == "fp64"
    assert {"cpu", "isa", "commit", "versions", "copy_gbytes_per_second", "fma_peak_gflops"} <= set(results)
    assert "2x5x6x7:NT" in captured.out and "geomean" in captured.out
    assert "2/2" in captured.err
    assert plot_file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "options, word",
    [
        ("--rows nothing", "nothing"),
        ("--threads 0", "threads"),
        ("--seconds 0", "seconds"),
        ("--algorithm best", "best"),
        ("--dtype int8", "int8"),
    ],
)
def test_bench_refuses_wrong_options(options, word, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", *options.split()])
    assert stopped.value.code == 2
    assert word in capsys.readouterr().err

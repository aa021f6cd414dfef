"""The main job runs, says what it promises, and the two models learn the same."""

import re
import subprocess
import sys
from pathlib import Path

import torch

import torch_tiledmm

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_digits.py"


def run(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(EXAMPLE), "--threads", "1", "--device", "cpu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_learns_the_same_and_plots(tmp_path):
    plot = tmp_path / "new" / "plot.png"
    done = run("--quick", "--dtype", "fp64", "--epochs", "6", "--out", str(plot))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("device cpu: 1 thread of ") and "replaced 3: 0, 2, 4" in done.stdout
    accuracies = re.findall(r"^(?:nn.Linear|TiledLinear) +([\d.]+) +([\d.]+) +[\d.]+ +[\d.]+$", done.stdout, re.M)
    assert len(accuracies) == 2 and accuracies[0] == accuracies[1]
    assert float(accuracies[0][1]) > 0.85  # chance is 0.1
    difference = re.search(r"largest difference of the learned weights: (\S+)", done.stdout)
    # Not the same kernel, and the same result. AVX-512's order may be that of the vendor, with the same bits.
    may_be_equal = torch_tiledmm.build_info().isa["cpu"].startswith(("avx512", "amx"))
    assert (0 < float(difference[1]) or may_be_equal) and float(difference[1]) < 1e-12
    assert len(re.findall("GFLOP/s", done.stdout)) == 2 * 2  # two shapes: 64 -> 64 twice, 64 -> 10
    assert f"plot: {plot}" in done.stdout and plot.read_bytes().startswith(b"\x89PNG")


def test_runs_on_the_gpu_where_there_is_one(tmp_path):
    if torch.cuda.is_available():
        done = run("--quick", "--device", "auto", "--out", str(tmp_path / "plot.png"))
        assert done.returncode == 0 and done.stdout.startswith("device cuda:0: "), done.stdout + done.stderr
    else:
        done = run("--device", "cuda")
        assert done.returncode == 2 and "device: got 'cuda', but torch sees no GPU" in done.stderr


def test_refuses_senseless_arguments():
    done = run("--epochs", "0")
    assert done.returncode == 2 and "argument --epochs: 0 is not positive" in done.stderr

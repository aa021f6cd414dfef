"""Whole calls without a GPU: a rung's own host code plans and launches, the interpreter executes; and what is counted
of it, as `ladder --device` prints it.

Planted bugs that must be found: the strides of a transposed operand taken for those of a plain one, traces of another
workgroup, a launch with half of the blocks, a rung that cannot serve counted as if it could, bf16's bits taken for
those of fp16.
"""

import os
import shutil

import numpy as np
import pytest
from amd_interpreter.evidence import check, rung
from amd_interpreter.launches import Launcher, has_sources

from torch_tiledmm.testing.ladder import count_loops, format_loops


@pytest.fixture(autouse=True, scope="module")
def need_clang():
    if not shutil.which("clang++-22"):
        assert os.environ.get("CI") != "true", "CI needs clang-22, lld-22 and llvm-22"
        pytest.skip("there is no clang++-22")


@pytest.mark.parametrize("chip, name, m", [("gfx942", "few_rows.mfma", 3), ("gfx1100", "block_tiled", 37)])
def test_a_whole_call(chip, name, m):
    launcher, random = Launcher(chip, name), np.random.default_rng(3)
    a, b = (random.uniform(-1, 1, shape).astype(np.float32) for shape in ((m, 21), (21, 150)))
    for operand in (b, np.asfortranarray(b)):
        traces: list = []
        c = launcher.matmul(a, operand, traces=traces)
        check(a, operand, c)
        assert not np.isnan(c).any()
        kernel, threads = launcher.launched[0]
        assert kernel.arch == chip and len(traces) == threads // (32 if chip == "gfx1100" else 64)
        # All waves of one workgroup have the same barriers.
        barriers = [sum("s_barrier" in kernel.lines[place][1] for place, _ in trace) for trace in traces]
        assert len(set(barriers)) == 1 and barriers[0] > 0


def test_what_a_rung_cannot_serve():
    with pytest.raises(NotImplementedError, match="gfx1100"):
        rung("gfx1100", "mma", 32, 32, 32, np.float64)
    assert has_sources("naive") and not has_sources("wgmma")


def test_the_table_of_ladder(monkeypatch):
    """Rungs that are quickly compiled, of them two that cannot serve, one of them AMD's own."""
    from amd_interpreter import launches

    monkeypatch.setattr(launches, "has_sources", lambda name: name in ("block_tiled", "mma", "mfma_split"))
    results = count_loops("hip:gfx1100", 32, 32, 96, "fp32", "NT")
    assert [entry["algorithm"] for entry in results] == ["block_tiled", "mma", "mfma_split"]
    assert results[0]["barriers"] == 2 and results[0]["vector"] >= 16 and "gfx1100" in results[1]["reason"]
    assert "MFMA" in results[2]["reason"]
    text = format_loops(results, 32, 32, 96, "hip:gfx1100")
    assert "mma: algorithm 'mma' cannot serve" in text and "LDS reads" in text
    # bf16, which numpy does not have.
    monkeypatch.setattr(launches, "has_sources", lambda name: name == "mma")
    half, brain = (count_loops("hip:gfx1100", 32, 32, 96, dtype, "NT")[0] for dtype in ("fp16", "bf16"))
    assert brain["matrix"] == half["matrix"] > 0
    for device in ("gfx1100", "cuda:sm_90"):
        with pytest.raises(ValueError, match="got"):
            count_loops(device, 32, 32, 32, "fp32", "NN")

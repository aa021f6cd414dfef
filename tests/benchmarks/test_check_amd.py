"""benchmarks/check_amd.py as far as it goes without such a GPU: the steps and their order, what is written, and that
every command of it is one.

Planted bugs that these tests caught: measurements after a check that failed, none of the ladder after one of products
that failed; success whatever happened, errors left out of a log, sums that nobody compares; an option that a benchmark
does not have, a file that is not there; docs/ladder.md filled from whichever GPU comes first.
"""

import copy
import json
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import torch_tiledmm.__main__
from torch_tiledmm.testing import fuzz

ROOT = Path(__file__).parents[2]
NAMES = ["build", "info", "tests", "random cases", "products, layers, training", "ladder", "split", "pages"]


@pytest.fixture
def check_amd(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import check_amd

    return check_amd


@pytest.fixture
def on_amd(check_amd, monkeypatch, tmp_path):
    """check_amd in a tree of its own, with a torch that believes in a GPU; its commands are only listed."""
    properties = SimpleNamespace(name="AMD Instinct MI300X", gcnArchName="gfx942:sramecc+", warp_size=64)
    monkeypatch.setattr(torch.version, "hip", "7.1.25424")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: properties)
    monkeypatch.setattr(check_amd, "ROOT", tmp_path)
    monkeypatch.setattr(check_amd, "LOGS", tmp_path / "build" / "check_amd")
    commands, fails = [], set()

    def execute(command, log):
        assert log.parent.is_dir()
        commands.append(shlex.join(command[1:]))
        fails_now = any(word in commands[-1] for word in fails)
        return int(fails_now), "first line\nlast line\n"

    monkeypatch.setattr(check_amd, "execute", execute)
    return check_amd, commands, fails


def table_of(text: str) -> dict[str, str]:
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")][2:]
    return {row[0].removeprefix("| "): row[1] for row in rows}


def test_all_steps_run_in_their_order(on_amd, tmp_path, capsys):
    check_amd, commands, _ = on_amd
    assert check_amd.main(["--cases", "7"]) == 0
    folder = tmp_path / "benchmarks" / "results" / "amd_instinct_mi300x"
    text = (folder / "checks.md").read_text()
    assert table_of(text) == dict.fromkeys(NAMES, "ok")
    assert "HIP 7.1.25424" in text and str(tmp_path) not in text
    assert len(commands) == len(NAMES) and "--cases 7 " in commands[3]
    for i, name in ((4, "gpu.json"), (5, "ladder.json"), (6, "split.json")):
        assert f"--json {folder / name}" in commands[i]


@pytest.mark.parametrize("failing, first_not_run", [("--build", 1), ("pytest", 3), ("fuzz", 4), ("bench_gpu", 8)])
def test_nothing_is_measured_after_a_check_that_fails(failing, first_not_run, on_amd, tmp_path):
    check_amd, commands, fails = on_amd
    fails.add(failing)
    assert check_amd.main(["--machine", "mine"]) == 1
    text = (tmp_path / "benchmarks" / "results" / "mine" / "checks.md").read_text()
    outcomes = table_of(text)
    assert list(outcomes) == NAMES and len(commands) == first_not_run
    assert [name for name in NAMES if outcomes[name] == "not run"] == NAMES[first_not_run:]
    assert list(outcomes.values()).count("failed (1)") == 1
    assert "first line\nlast line\n```" in text


def test_without_such_a_gpu(check_amd, capsys):
    with pytest.raises(SystemExit):
        check_amd.main([])
    assert "sees no AMD GPU; --dry-run needs none" in capsys.readouterr().err


def test_a_build_that_does_not_serve_the_gpu(on_amd, monkeypatch):
    check_amd, *_ = on_amd
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    torch.cuda.get_device_properties().total_memory = 2**37
    torch.cuda.get_device_properties().multi_processor_count = 304
    with pytest.raises(SystemExit, match="AMD Instinct MI300X, gfx942, 304 CUs.*this build has no kernels for hip"):
        check_amd.main(["--build"])
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(SystemExit, match="is not built for ROCm"):
        check_amd.main(["--build"])


def test_a_kernel_that_is_wrong(on_amd, monkeypatch):
    """The legal kernels of the chip are asked, here on the CPU: naive in place of each, then one that adds 1."""
    check_amd, *_ = on_amd
    usable, asked = SimpleNamespace(pick=lambda device: device), []
    ones, matmul = torch.ones, check_amd.torch_tiledmm.matmul
    monkeypatch.setattr(check_amd, "build_info", lambda: usable)
    monkeypatch.setattr(torch, "ones", lambda *sizes, device, dtype: ones(*sizes, dtype=dtype))

    def naive(a, b, algorithm, error=0):
        asked.append((algorithm, a.dtype))
        return matmul(a, b, algorithm="naive") + error * (algorithm == "mma_cached")

    monkeypatch.setattr(check_amd.torch_tiledmm, "matmul", naive)
    check_amd.check_build()
    assert {("naive", torch.float32), ("mma_cached", torch.float64), ("mma_cached", torch.float16)} <= set(asked)
    monkeypatch.setattr(check_amd.torch_tiledmm, "matmul", lambda *args, **named: naive(*args, **named, error=1))
    with pytest.raises(SystemExit, match=r"mma_cached in fp32: ones times ones are \[65.0, "):
        check_amd.check_build()


def test_what_a_step_prints_is_kept(check_amd, tmp_path, capfd):
    code = "import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(3)"
    assert check_amd.execute([sys.executable, "-c", code], tmp_path / "log") == (3, "out\nerr\n")
    assert (tmp_path / "log").read_text() == capfd.readouterr().out == "out\nerr\n"


def test_each_command_is_one(check_amd, tmp_path, monkeypatch, capsys):
    """Parsed by what it calls, which then misses a GPU."""
    assert check_amd.main(["--dry-run", "--machine", "nvidia_h200"]) == 0  # a folder that is there
    commands = [shlex.split(line)[1:] for line in capsys.readouterr().out.splitlines()]
    _, info, tests, cases, products, ladder, split, pages = commands
    assert info == ["-m", "torch_tiledmm", "info"]
    assert all((ROOT / word).exists() for word in tests if word.endswith(".py"))
    calls = []
    monkeypatch.setattr(fuzz, "fuzz", lambda *args, **_: calls.append(args) or SimpleNamespace(failures=[]))
    fuzz.main(cases[2:])
    assert calls[0][0] == 5000 and calls[0][2:] == ("cuda", 1)
    import bench_gpu
    import bench_split
    import readme_table

    scripts = [pages, products[:1], split[:1]]
    assert scripts == [[f"benchmarks/{name}.py"] for name in ("readme_table", "bench_gpu", "bench_split")]
    assert callable(readme_table.main)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def refuse(*_):
        raise ValueError("there is no GPU")

    monkeypatch.setattr(bench_split, "describe_run", refuse)  # it measures on a CPU, too
    runs = ((bench_gpu.main, products, []), (bench_split.main, split, []))
    for main, argv, arguments in (*runs, (torch_tiledmm.__main__.main, [], [ladder[2:]])):
        monkeypatch.setattr(sys, "argv", argv)
        with pytest.raises(SystemExit):
            main(*arguments)
        assert "there is no GPU" in capsys.readouterr().err


def test_another_gpu_leaves_the_page_of_the_ladder(check_amd):
    """It gets a page of its own."""
    import readme_table

    machines = readme_table.load_machines(ROOT / "benchmarks" / "results")
    before = readme_table.render_rungs(machines)
    other = copy.deepcopy(machines["nvidia_h200"])
    for results in other["ladder"]:
        for row in (row for table in results["tables"] for row in table["rows"]):
            row["tflops"] = -1.0
    assert json.dumps(other) != json.dumps(machines["nvidia_h200"])
    assert readme_table.render_rungs({"amd_instinct_mi300x": other, **machines}) == before
    assert "-1.0" in readme_table.render_machine("amd_instinct_mi300x", other)

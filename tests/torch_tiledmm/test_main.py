import subprocess
import sys

import pytest

import torch_tiledmm
from torch_tiledmm.__main__ import main


def run(capsys, arguments: str) -> str:
    main(arguments.split())
    return capsys.readouterr().out


def test_info_names_version_build_and_every_algorithm(capsys):
    out = run(capsys, "info")
    for entry in torch_tiledmm.algorithms():
        assert entry.name in out
    assert "compiled by" in out and "in use:" in out


def test_explain_prints_what_the_function_says(capsys):
    out = run(capsys, "explain 1000 768 3072 --dtype bf16 --layout TN --threads 3")
    assert out.strip() == str(torch_tiledmm.explain(1000, 768, 3072, "bf16", layout="TN", num_threads=3))


@pytest.mark.parametrize(
    "arguments, word",
    [
        ("", "command"),
        ("nonsense", "nonsense"),
        ("explain 1 2", "k"),
        ("explain 1 2 three", "three"),
        ("explain 1 2 -3", "-3"),
        ("explain 1 2 3 --dtype int8", "int8"),
        ("explain 1 2 3 --layout NX", "NX"),
        ("explain 1 2 3 --device abacus", "abacus"),
        ("explain 1 2 3 --threads 0", "threads"),
        ("explain 1 2 3 --threads 99999999999999999999", "threads"),
        ("bench --rows 4x4x4:NN --json no/such/folder.json", "'no/such'"),
        ("bench --rows 4x4x4:NN --plot no/such/folder.png", "'no/such'"),
        ("ladder --count 4 4 4 --json no/such/folder.json", "'no/such'"),
        ("ladder --count 4 4 4 --plot no/such/folder.png", "'no/such'"),
    ],
)
def test_wrong_arguments_exit_with_2_and_name_the_argument(capsys, arguments, word):
    with pytest.raises(SystemExit) as stopped:
        main(arguments.split())
    assert stopped.value.code == 2
    assert word in capsys.readouterr().err


def test_module_runs_as_a_command():
    command = [sys.executable, "-m", "torch_tiledmm", "explain", "4", "5", "6"]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert child.returncode == 0, child.stderr
    assert "choice:" in child.stdout

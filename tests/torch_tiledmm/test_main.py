"""The commands of `python -m torch_tiledmm`.

Planted bugs that these tests caught: code for sm_120a said to run on sm_121, that for sm_86 on sm_80, the instruction
cache taken for the data's, GPUs that torch cannot ask taken for a fault of `info`, the kernels of other makers' GPUs
shown, a traceback where the reader of the output ends, and exit code 120 where only the last flush finds that out.
"""

import dataclasses
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import torch_tiledmm
import torch_tiledmm.__main__ as main_module
from torch_tiledmm import machine
from torch_tiledmm.__main__ import main
from torch_tiledmm.dispatch import build_info


def run(capsys, arguments: str) -> str:
    main(arguments.split())
    return capsys.readouterr().out


def test_info_names_version_build_and_every_algorithm(capsys):
    out = run(capsys, "info")
    for entry in torch_tiledmm.algorithms():
        assert entry.name in out
    assert "compiled by" in out and "in use:" in out


def test_info_says_what_the_processor_has_and_uses(capsys, tmp_path, monkeypatch):
    info, out = build_info(), run(capsys, "info")
    line = next(line for line in out.splitlines() if line.startswith("cpu: "))
    assert line.endswith(f"; kernels for {', '.join(info.compiled['cpu'])}; in use: {info.isa['cpu']}")
    assert f"{torch.get_num_threads()} thread" in line and torch.__version__ in out
    # What the kernels use, the processor has.
    needed = {"avx2": "avx2", "avx512": "avx512f", "avx512_bf16": "avx512_bf16", "neon": "asimd"}
    needed |= {"amx": "amx_bf16", "amx_fp16": "amx_fp16"}
    assert needed.get(info.isa["cpu"], "") in (*info.cpu.features, "")

    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name : Abacus 9\nflags : fpu avx2 amx_tile\n")
    caches = (("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2048K"), ("3", "Unified", "36864K"))
    for idx, words in enumerate(caches):
        folder = tmp_path / "cache" / f"index{idx}"
        folder.mkdir(parents=True)
        for name, word in zip(("level", "type", "size"), words, strict=True):
            (folder / name).write_text(word + "\n")
    monkeypatch.setattr(machine, "_CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(machine, "_CACHES", tmp_path / "cache")
    line = next(line for line in run(capsys, "info").splitlines() if line.startswith("cpu: "))
    assert line.startswith("cpu: Abacus 9, ") and ", L1d 48 KiB, L2 2 MiB, L3 36 MiB; has avx2 amx_tile;" in line


@pytest.mark.parametrize(
    "family, model, name",
    [
        ("26", "2", "AMD EPYC (Zen 5)"),
        ("25", "1", "AMD EPYC (Zen 3)"),
        ("25", "17", "AMD EPYC (Zen 4)"),
        ("9", "2", "AMD EPYC"),
    ],
)
def test_the_microarchitecture_is_named(family, model, name, tmp_path, monkeypatch):
    first = f"vendor_id : AuthenticAMD\ncpu family : {family}\nmodel : {model}\nmodel name : AMD EPYC\n"
    (tmp_path / "cpuinfo").write_text(first + "\nmodel : 99\nmodel name : another\n")
    monkeypatch.setattr(machine, "_CPU_INFO", tmp_path / "cpuinfo")
    assert machine.cpu_name() == name


def test_info_without_proc_and_sys_still_answers(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_CPU_INFO", tmp_path / "no such file")
    monkeypatch.setattr(machine, "_CACHES", tmp_path / "no such folder")
    out = run(capsys, "info")
    assert " L1d " not in out and "; has " not in out and "in use: " in out


H200 = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, total_memory=150_000_000_000)


@pytest.mark.parametrize(
    "compiled, change, state",
    [
        (("9.0a",), {}, "kernels for 9.0a; in use: yes, by the figures of sm_90"),
        (("8.0", "9.0a"), {"major": 8, "minor": 9}, "kernels for 8.0, 9.0a; in use: yes, by the figures of sm_80"),
        (("8.0+PTX",), {"major": 12}, "kernels for 8.0+PTX; in use: yes, by the figures of sm_80"),
        (("9.0a",), {"major": 8}, "kernels for 9.0a; not in use: this build was compiled for other chips"),
        (("8.0",), {}, "kernels for 8.0; not in use: this build was compiled for other chips"),
        (("8.6",), {"major": 8}, "kernels for 8.6; not in use: this build was compiled for other chips"),
        (
            ("12.0a",),
            {"major": 12, "minor": 1},
            "kernels for 12.0a; not in use: this build was compiled for other chips",
        ),
        (("8.0",), {"major": 7, "minor": 5}, "kernels for 8.0; not in use: there are no kernels for this chip"),
        ((), {}, "not in use: this build has no kernels for cuda"),
    ],
)
def test_info_says_whether_a_gpu_is_in_use(compiled, change, state, capsys, monkeypatch):
    gpu = SimpleNamespace(**vars(H200) | change)
    info = build_info()
    with_gpu = {"cpu": info.compiled["cpu"], **({"cuda": compiled} if compiled else {})}
    monkeypatch.setattr(main_module, "build_info", lambda: dataclasses.replace(info, compiled=with_gpu))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda idx: gpu)
    monkeypatch.setattr(machine, "driver_version", lambda: "580.1")
    lines = run(capsys, "info").splitlines()
    chip = f"sm_{gpu.major}{gpu.minor}"
    for device in ("cuda:0", "cuda:1"):
        assert f"{device}: NVIDIA H200, {chip}, 132 SMs, 140 GiB, driver 580.1; {state}" in lines


def test_info_says_what_keeps_torch_from_asking_the_gpus(capsys, monkeypatch):
    def fail(idx):
        raise RuntimeError("the driver is too old\nand more")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", fail)
    assert "GPUs: torch cannot ask them: the driver is too old; kernels for " in run(capsys, "info")


def test_explain_prints_what_the_function_says(capsys):
    out = run(capsys, "explain 1000 768 3072 --dtype bf16 --layout TN --threads 3")
    assert out.strip() == str(torch_tiledmm.explain(1000, 768, 3072, "bf16", layout="TN", num_threads=3))
    out = run(capsys, "explain 64 256 128 --dtype bf16 --b-dtype fp32 --out-dtype bf16 --groups 8 --threads 1")
    given = {"b_dtype": "fp32", "out_dtype": "bf16", "groups": 8, "num_threads": 1}
    assert out.strip() == str(torch_tiledmm.explain(64, 256, 128, "bf16", **given))
    assert out.startswith("groups=8 m=64 n=256 k=128 bf16 x fp32 -> bf16 NT on cpu")


def test_explain_shows_the_kernels_of_the_chips_own_platform(capsys):
    def kernels(out: str) -> list[str]:
        table = out.splitlines()[3:]
        return [line[4:].split()[0] for line in table if line[:4] in ("    ", "->  ")]

    shown = run(capsys, "explain 64 128 256 --device cuda:sm_90")
    all_kernels = run(capsys, "explain 64 128 256 --device cuda:sm_90 --all")
    own = [entry.name for entry in build_info().algorithms if entry.device == "cuda" and entry.order]
    candidates = [c.algorithm for c in torch_tiledmm.explain(64, 128, 256, "fp32", device="cuda:sm_90").candidates]
    assert kernels(shown) == own and kernels(all_kernels) == candidates
    assert "choice: simt_pipelined" in shown and "AMD" not in shown
    assert f"not shown: {len(candidates) - len(own)} kernels" in shown and "not shown" not in all_kernels


@pytest.mark.parametrize(
    "arguments, word",
    [
        ("", "command"),
        ("nonsense", "nonsense"),
        ("explain 1 2", "k"),
        ("explain 1 2 three", "three"),
        ("explain 1 2 -3", "-3"),
        ("explain 1 2 3 --dtype fp64 --b-dtype bf16", "both must have one dtype"),
        ("explain 1 2 3 --batch 2 --groups 2", "groups: got 2 with a batch of 2"),
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


def test_a_command_ends_quietly_when_its_reader_does():
    """In both places where it can be found out: while lines are printed, and in the last flush."""
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "torch_tiledmm", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": is_unbuffered},
        )
        for words, is_unbuffered in ((["info"], "1"), (["explain", "4", "5", "6"], ""), (["--help"], ""))
    ]
    for child in children:
        child.stdout.close()  # long before the child has imported torch
    for child in children:
        _, errors = child.communicate(timeout=60)
        assert (child.returncode, errors) == (-signal.SIGPIPE, "")

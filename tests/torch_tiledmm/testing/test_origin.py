"""The commit of a checkout, and clocks from a library that stands in for NVML.

Planted bugs that these tests caught: results of the run before make the next one dirty, untracked sources do not, the
commit of a repository around an exported tree is taken, TILEDMM_COMMIT hides changes, the memory's clock asked for as
the SMs', milliwatts as watts, bits of the reasons counted from one, one sample alone, errors of NVML overlooked, a
library without one of the functions.
"""

import os
import subprocess
import time

import pytest

from torch_tiledmm.testing import origin as module
from torch_tiledmm.testing.origin import GpuClocks, commit_of, origin

FAKE_NVML = """
#include <string.h>
static char gpu;
static unsigned calls;
int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (strcmp(uuid, "GPU-one-two")) return 6;
  *device = &gpu;
  return 0;
}
int nvmlDeviceGetClockInfo(void* device, int kind, unsigned* mhz) {
  if (device != &gpu) return 2;
  if (kind == 2) *mhz = 3201;
  if (kind == 1) *mhz = ++calls == 1 ? 1980 : calls == 2 ? 1200 : 1500;
  return 0;
}
int nvmlDeviceGetMaxClockInfo(void* device, int kind, unsigned* mhz) {
  *mhz = 1981;
  return kind == 1 ? 0 : 3;
}
int nvmlDeviceGetEnforcedPowerLimit(void* device, unsigned* milliwatts) {
  *milliwatts = 700000;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  *reasons = 0x4 | 1ULL << 40;
  return 0;
}
int nvmlSystemGetDriverVersion(char* text, unsigned length) {
  strncpy(text, "580.1", length);
  return 0;
}
"""


def git(folder, *words):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with one commit."""
    monkeypatch.delenv("TILEDMM_COMMIT", raising=False)
    folder = tmp_path / "checkout"
    for name in ("benchmarks/results/a.json", "csrc/a.cpp", "README.md", "docs/img/a.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("old\n")
    git(tmp_path, "init", "checkout")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")
    return folder


def test_results_and_documents_leave_a_checkout_clean(checkout):
    clean = commit_of(checkout)
    assert len(clean) == 12 and int(clean, 16)
    for name in ("benchmarks/results/a.json", "benchmarks/results/b.json", "README.md", "docs/img/a.png"):
        (checkout / name).write_text("new\n")
        assert commit_of(checkout) == clean


@pytest.mark.parametrize("name", ("csrc/a.cpp", "csrc/new.cpp", "benchmarks/new.py", "setup.py"))
def test_changes_of_what_is_measured_are_said(checkout, name):
    clean = commit_of(checkout)
    (checkout / name).write_text("new\n")
    assert commit_of(checkout) == f"{clean}-dirty"
    git(checkout, "add", ".")
    assert commit_of(checkout) == f"{clean}-dirty"
    git(checkout, "commit", "-m", "second")
    assert commit_of(checkout) not in (clean, f"{clean}-dirty") and "dirty" not in commit_of(checkout)


def test_a_tree_without_git_is_told_its_commit(checkout, monkeypatch):
    exported = checkout / "exported"  # inside of another repository
    exported.mkdir()
    assert origin(exported) == {"commit": None, "commit_from": None, "date": time.strftime("%Y-%m-%d")}
    monkeypatch.setenv("TILEDMM_COMMIT", "0123456789abcdef")
    named = origin(exported)
    assert (named["commit"], named["commit_from"]) == ("0123456789ab", "TILEDMM_COMMIT")
    for wrong in ("", "0123", "0123456789ab-dirty", "main"):
        monkeypatch.setenv("TILEDMM_COMMIT", wrong)
        with pytest.raises(ValueError, match="TILEDMM_COMMIT: got '.*12 to 40"):
            origin(exported)


def test_git_knows_better(checkout, monkeypatch):
    clean = commit_of(checkout)
    monkeypatch.setenv("TILEDMM_COMMIT", clean + "0" * 28)
    assert (origin(checkout)["commit"], origin(checkout)["commit_from"]) == (clean, "git")
    (checkout / "csrc/a.cpp").write_text("new\n")
    with pytest.raises(ValueError, match=f"the checkout is at {clean}-dirty"):
        origin(checkout)
    monkeypatch.setenv("TILEDMM_COMMIT", "0123456789abcdef")
    with pytest.raises(ValueError, match=f"the checkout is at {clean}"):
        origin(checkout)


@pytest.fixture(scope="module")
def fake_nvml(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(FAKE_NVML)
    compiler = [*os.environ.get("CXX", "g++").split(), "-x", "c"]
    subprocess.run([*compiler, "-shared", "-fPIC", "nvml.c", "-o", "nvml.so"], cwd=folder, check=True)
    return folder / "nvml.so"


def test_clocks_are_sampled_meanwhile(fake_nvml, monkeypatch):
    monkeypatch.setattr(module, "NVML", str(fake_nvml))
    monkeypatch.setattr(module, "_SAMPLE_SECONDS", 1e-3)
    with GpuClocks("one-two") as clocks:
        for _ in range(10_000):
            if len(clocks._samples) >= 5:
                break
            time.sleep(1e-3)
    result = clocks.to_dict()
    assert result.pop("num_samples") >= 5
    assert result == {
        "driver": "580.1",
        "sm_mhz": {"median": 1500, "minimum": 1200, "maximum": 1980},
        "sm_mhz_limit": 1981,
        "memory_mhz": {"median": 3201, "minimum": 3201, "maximum": 3201},
        "memory_mhz_limit": None,  # an error, whatever was written
        "temperature_c": None,  # this library has no such function
        "power_limit_w": 700.0,
        "throttled": {"sw_power_cap": 1.0, "bit_40": 1.0},
    }


def test_without_nvml_there_are_no_clocks(fake_nvml, monkeypatch, capsys):
    monkeypatch.setattr(module, "NVML", "libnothing.so.1")
    with GpuClocks("one-two") as clocks:
        assert clocks.to_dict() is None
    assert "clocks are not recorded: libnothing.so.1" in capsys.readouterr().err
    monkeypatch.setattr(module, "NVML", str(fake_nvml))
    with GpuClocks("another") as clocks:
        assert clocks.to_dict() is None
    assert "NVML's error 6 for GPU-another" in capsys.readouterr().err

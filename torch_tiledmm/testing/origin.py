"""Where a result comes from: the commit, the day, the GPU, and what its clocks did meanwhile."""

from __future__ import annotations

import ctypes
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch

from ..dispatch import build_info
from ..machine import NVML, driver_version, num_cus_of
from .timing import gpu_copy_rate

ROOT = Path(__file__).parents[2]
# No measurement depends on these: results of one run leave the next one clean.
_NOT_MEASURED = (":!benchmarks/results", ":!docs", ":!*.md")
_SAMPLE_SECONDS = 0.1
_SM_CLOCK, _MEMORY_CLOCK, _GPU_TEMPERATURE = 1, 2, 0  # nvmlClockType_t, nvmlTemperatureSensors_t
# nvmlClocksEventReasons, from bit 0 on
_REASONS = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
)


def commit_of(root: Path) -> str | None:
    """The commit of the checkout in ``root``, "-dirty" if what can be measured differs from it; None without .git."""
    if not (root / ".git").exists():
        return None

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        is_dirty = git("status", "--porcelain", "--untracked-files=normal", "--", ".", *_NOT_MEASURED)
        return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if is_dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def origin(root: Path = ROOT) -> dict[str, str | None]:
    """Commit and day of a run, and who named the commit: git, or TILEDMM_COMMIT, which a tree without .git needs.

    Raises ValueError where TILEDMM_COMMIT is no commit, or not that of a clean checkout.
    """
    found, given = commit_of(root), os.environ.get("TILEDMM_COMMIT")
    if given is not None and not re.fullmatch("[0-9a-f]{12,40}", given):
        raise ValueError(f"TILEDMM_COMMIT: got {given!r}, expected 12 to 40 hexadecimal digits")
    if given and found and not given.startswith(found):
        raise ValueError(f"TILEDMM_COMMIT: got {given}, but the checkout is at {found}")
    source = "git" if found else "TILEDMM_COMMIT" if given else None
    return {"commit": found or (given and given[:12]), "commit_from": source, "date": time.strftime("%Y-%m-%d")}


def describe_gpu_run(benchmark: str) -> dict:
    """What a reader needs to judge the figures of a GPU; its clocks are GpuClocks's. Raises what `origin` does."""
    properties = torch.cuda.get_device_properties()
    return {
        "benchmark": benchmark,
        "device": properties.name,
        "num_cus": num_cus_of(properties),
        "versions": {
            "torch": torch.__version__,
            "cuda": torch.version.cuda or torch.version.hip,
            "torch_tiledmm": build_info().version,
        },
        **origin(),
        "copy_tbytes_per_second": round(gpu_copy_rate() / 1e12, 3),
    }


class GpuClocks:
    """Clocks, temperature and reasons to throttle of one of NVIDIA's GPUs, sampled while this is entered.

    NVML is asked ten times a second in a thread of its own, which takes some 0.1 ms each time.
    """

    def __init__(self, uuid: object):
        self._uuid = f"GPU-{uuid}"  # torch leaves the prefix out
        self._nvml: ctypes.CDLL | None = None
        self._device = ctypes.c_void_p()
        self._samples: list[tuple[int | None, ...]] = []  # SM clock, memory clock, temperature, reasons
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_end, daemon=True)

    def __enter__(self) -> GpuClocks:
        try:
            nvml = ctypes.CDLL(NVML)
        except OSError as error:
            print(f"clocks are not recorded: {error}", file=sys.stderr)
            return self
        status = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(self._uuid.encode(), ctypes.byref(self._device))
        if status:
            print(f"clocks are not recorded: NVML's error {status} for {self._uuid}", file=sys.stderr)
            return self
        self._nvml = nvml
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._nvml:
            self._end.set()
            self._thread.join()

    def to_dict(self) -> dict | None:
        """Plain data about the samples so far; None where there is no NVML, as for each value it does not know."""
        if self._nvml is None:
            return None
        sm_clocks, memory_clocks, temperatures, reasons = zip(*self._samples, strict=True)
        power_limit = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        return {
            "driver": driver_version(NVML),
            "num_samples": len(self._samples),
            "sm_mhz": _distribution(sm_clocks),
            "sm_mhz_limit": self._ask("nvmlDeviceGetMaxClockInfo", _SM_CLOCK),
            "memory_mhz": _distribution(memory_clocks),
            "memory_mhz_limit": self._ask("nvmlDeviceGetMaxClockInfo", _MEMORY_CLOCK),
            "temperature_c": _distribution(temperatures),
            "power_limit_w": power_limit and power_limit / 1e3,
            "throttled": _shares(reasons),
        }

    def _sample_until_end(self) -> None:
        while not self._end.wait(_SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        self._samples.append(
            (
                self._ask("nvmlDeviceGetClockInfo", _SM_CLOCK),
                self._ask("nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
                self._ask("nvmlDeviceGetTemperature", _GPU_TEMPERATURE),
                self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong),
            )
        )

    def _ask(self, function: str, *words: int, kind: type = ctypes.c_uint) -> int | None:
        value = kind()
        try:
            status = getattr(self._nvml, function)(self._device, *words, ctypes.byref(value))
        except AttributeError:  # not in this version of the driver
            return None
        return None if status else value.value


def _distribution(samples: tuple[int | None, ...]) -> dict[str, int] | None:
    known = [sample for sample in samples if sample is not None]
    if not known:
        return None
    return {"median": statistics.median_low(known), "minimum": min(known), "maximum": max(known)}


def _shares(masks: tuple[int | None, ...]) -> dict[str, float] | None:
    """The share of the samples in which a reason to throttle held, for each that ever did."""
    known = [mask for mask in masks if mask is not None]
    if not known:
        return None
    counts = {bit: sum(mask >> bit & 1 for mask in known) for bit in range(64)}
    names = dict(enumerate(_REASONS))
    return {names.get(bit, f"bit_{bit}"): round(count / len(known), 3) for bit, count in counts.items() if count}

"""What this machine has: its CPU, the GPUs that torch sees, and whether this build's kernels serve them."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

NVML = "libnvidia-ml.so.1"
_CPU_INFO, _CACHES = Path("/proc/cpuinfo"), Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# Family, models: those of x86 servers on which the kernels were timed, and their neighbours.
_MICROARCHITECTURES = (
    ("6", (143,), "Sapphire Rapids"),
    ("6", (207,), "Emerald Rapids"),
    ("6", (173, 174), "Granite Rapids"),
    ("25", (*range(0x10), *range(0x20, 0x60)), "Zen 3"),
    ("25", (*range(0x10, 0x20), *range(0x60, 0x80), *range(0xA0, 0xB0)), "Zen 4"),
    ("26", range(0x100), "Zen 5"),
)
# What cpuinfo calls the instruction sets that matter for matrix products.
_FEATURES = (
    *("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_fp16"),
    *("asimd", "asimdhp", "bf16", "sve", "sve2", "sme"),
)


def torch_minor() -> str:
    """The version of torch that libraries are made for, "2.13"."""
    return ".".join(torch.__version__.split(".")[:2])


@dataclass(frozen=True)
class Cpu:
    """The processor. What the system does not say is empty."""

    name: str
    num_cores: int  # logical ones that this process may run on
    num_threads: int  # that a call uses, torch's number
    caches: dict[str, int]  # bytes of L1d, L2, L3, as one core sees them
    features: tuple[str, ...]  # instruction sets, as the system calls them
    compiled: tuple[str, ...]  # instruction sets that this build has kernels for
    isa: str  # the one of them in use
    device: str = "cpu"  # as torch calls it

    def __str__(self) -> str:
        parts = [self.name, _count(self.num_cores, "core"), _count(self.num_threads, "thread")]
        parts += [f"{name} {_binary_size(size)}" for name, size in self.caches.items()]
        has = f"; has {' '.join(self.features)}" if self.features else ""
        return f"cpu: {', '.join(parts)}{has}; kernels for {', '.join(self.compiled)}; in use: {self.isa}"


@dataclass(frozen=True)
class Gpu:
    """One GPU that torch sees."""

    device: str  # as torch calls it, "cuda:0"
    name: str
    chip: str  # "cuda:sm_90", "hip:gfx942"
    row: str  # of the table of chips, by which `auto` decides: "sm_80" for all that are like it; empty: none
    num_cus: int
    memory_bytes: int
    driver: str  # empty where it is not known
    compiled: tuple[str, ...]  # chips that this build has kernels for
    problem: str  # why a call cannot use it; empty: it can

    def __str__(self) -> str:
        units = "CUs" if self.chip.startswith("hip") else "SMs"
        parts = [self.name, self.chip.split(":")[1], f"{self.num_cus} {units}", _binary_size(self.memory_bytes)]
        parts += [f"driver {self.driver}"] if self.driver else []
        state = f"not in use: {self.problem}" if self.problem else f"in use: yes, by the figures of {self.row}"
        kernels = f"; kernels for {', '.join(self.compiled)}" if self.compiled else ""
        return f"{self.device}: {', '.join(parts)}{kernels}; {state}"


def find_cpu(compiled: tuple[str, ...], isa: str) -> Cpu:
    """This machine's processor, beside what the library says of its kernels."""
    return Cpu(
        name=cpu_name(),
        num_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        num_threads=torch.get_num_threads(),
        caches=_caches(),
        features=_features(),
        compiled=compiled,
        isa=isa,
    )


def find_gpus(compiled: Mapping[str, tuple[str, ...]], find_row: Callable[[str], str]) -> tuple[Gpu, ...]:
    """The GPUs that torch sees. ``compiled`` is BuildInfo's; ``find_row`` names the row of a chip or raises ValueError.

    Raises RuntimeError where the GPUs' runtime does not start.
    """
    return tuple(_find_gpu(idx, compiled, find_row) for idx in range(torch.cuda.device_count()))


def _find_gpu(idx: int, compiled: Mapping[str, tuple[str, ...]], find_row: Callable[[str], str]) -> Gpu:
    properties = torch.cuda.get_device_properties(idx)
    chip = chip_of(properties)
    platform_name = chip.split(":")[0]
    archs = tuple(compiled.get(platform_name, ()))
    row, problem = "", ""
    try:
        row = find_row(chip)
    except ValueError:
        problem = "there are no kernels for this chip"
    if not problem and not archs:
        problem = f"this build has no kernels for {platform_name}"
    elif not problem and not any(_runs_on(arch, chip, properties) for arch in archs):
        problem = "this build was compiled for other chips"
    return Gpu(
        device=f"cuda:{idx}",
        name=properties.name,
        chip=chip,
        row=row,
        num_cus=num_cus_of(properties),
        memory_bytes=properties.total_memory,
        driver=driver_version(),
        compiled=archs,
        problem=problem,
    )


def chip_of(properties: Any) -> str:
    """ "cuda:sm_90" or "hip:gfx942", from torch's properties of a GPU."""
    if torch.version.hip:
        return "hip:" + str(properties.gcnArchName).split(":")[0]
    return f"cuda:sm_{properties.major}{properties.minor}"


def num_cus_of(properties: Any) -> int:
    """SMs or CUs of a GPU; of RDNA, which has warps of 32 lanes, HIP counts pairs."""
    is_in_pairs = torch.version.hip is not None and properties.warp_size == 32
    return int(properties.multi_processor_count) * (2 if is_in_pairs else 1)


def _runs_on(arch: str, chip: str, properties: Any) -> bool:
    """Whether code compiled for ``arch`` ("9.0a", "8.0", "8.0+PTX", "gfx942") runs on a chip."""
    if chip.startswith("hip"):
        return chip == f"hip:{arch.split(':')[0]}"
    own, number = (properties.major, properties.minor), arch.removesuffix("+PTX").rstrip("af")
    major, minor = map(int, number.split("."))
    if arch.endswith("a"):
        return (major, minor) == own
    return (major == own[0] and minor <= own[1]) or (arch.endswith("+PTX") and (major, minor) <= own)


def driver_version(library: str = NVML) -> str:
    """The version of NVIDIA's or AMD's driver; empty where it is not known."""
    try:
        nvml = ctypes.CDLL(library)
        version = ctypes.create_string_buffer(96)
        if nvml.nvmlInit_v2() == 0 and nvml.nvmlSystemGetDriverVersion(version, len(version)) == 0:
            return version.value.decode()
    except OSError:  # no such library
        pass
    return _read(Path("/sys/module/amdgpu/version")).strip()


def _cpu_info() -> dict[str, str]:
    """What cpuinfo says of the first processor."""
    pairs = (line.partition(":") for line in reversed(_read(_CPU_INFO).splitlines()))
    return {key.strip(): value.strip() for key, _, value in pairs}


def cpu_name() -> str:
    """The name that the CPU gives itself, and its microarchitecture where the numbers beside it are known."""
    fields = _cpu_info()
    name = fields.get("model name") or platform.processor() or platform.machine()
    for family, models, microarchitecture in _MICROARCHITECTURES:
        if fields.get("cpu family") == family and fields.get("model") in [str(m) for m in models]:
            return f"{name} ({microarchitecture})"
    return name


def _features() -> tuple[str, ...]:
    fields = _cpu_info()
    words = fields.get("flags", fields.get("Features", "")).split()
    return tuple(feature for feature in _FEATURES if feature in words)


def _caches() -> dict[str, int]:
    caches = {}
    for folder in sorted(_CACHES.glob("index*")):
        level, kind, size = (_read(folder / name).strip() for name in ("level", "type", "size"))
        if kind in ("Data", "Unified") and size[:-1].isdecimal() and size[-1] in _UNITS:
            caches[f"L{level}{'d' if kind == 'Data' else ''}"] = int(size[:-1]) * _UNITS[size[-1]]
    return caches


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _binary_size(num_bytes: int) -> str:
    """As in "32 KiB", "1.5 MiB", "140 GiB"."""
    unit = next((unit for unit in ("GiB", "MiB", "KiB") if num_bytes >= _UNITS[unit[0]]), "bytes")
    return f"{num_bytes / _UNITS.get(unit[0], 1):.3g} {unit}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)

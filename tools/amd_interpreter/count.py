"""Counts what a kernel's main loop asks of a compute unit, from the executed instructions and their addresses.

The loop is the one whose iterations execute most matrix instructions. An iteration is what a wave executes from one
visit to the loop's first instruction to the next; counted is the one (the same instructions) that a wave runs most
often, over all waves of the first workgroup.

Bank conflicts follow the banks and the phases of each chip, as measured: nod-ai/amd-shark-ai, docs/empirical-lds
(MI300X, MI350X, W7900, RX 9070 XT, reads of 4, 8 and 16 bytes); the same for MI300X and MI350X in triton-lang/triton,
pull request 11365. Writes go in phases of neighbouring lanes (Composable Kernel's documentation, "Understanding AMD GPU
LDS and Bank Conflicts", for 16 bytes; assumed for the others). gfx90a is taken to be like gfx942. An access that is not
of 4, 8 or 16 bytes counts as one of the next width.
"""

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from .code_object import Kernel
from .interpreter import Access

# ---- LDS


def row_pairs(num_lanes: int) -> list[list[int]]:
    """Phases of 8 lanes: four of one half and the four of another that lie 20, 12, ... behind, for each 32 lanes."""
    halves = [(0, 20), (4, 16), (8, 28), (12, 24)]
    return [
        [base + first + i for first in pair for i in range(4)] for base in range(0, num_lanes, 32) for pair in halves
    ]


def neighbours(num_lanes: int, count: int) -> list[list[int]]:
    return [list(range(first, first + count)) for first in range(0, num_lanes, count)]


CDNA4_READS = [
    [base + first + i for first in group for i in range(4)]
    for base in (0, 32)
    for group in ((0, 12, 20, 24), (4, 8, 16, 28))
]
# Chip -> banks of 4 bytes, lanes, phases of a read of 16 bytes where they are not neighbours.
BANKS = {
    "gfx90a": (32, 64, row_pairs(64)),
    "gfx942": (32, 64, row_pairs(64)),
    "gfx950": (64, 64, CDNA4_READS),
    "gfx1100": (32, 32, row_pairs(32)),
    "gfx1201": (32, 32, None),
}


def phases(arch: str, size: int, is_store: bool) -> list[list[int]]:
    """The lanes that access LDS in one clock if there is no conflict."""
    num_banks, num_lanes, reads16 = BANKS[arch]
    width = 4 if size <= 4 else 8 if size <= 8 else 16
    if width == 16 and not is_store and reads16:
        return reads16
    if arch == "gfx950" and is_store:  # 128 bytes a clock, assumed to be those of CDNA3
        num_banks = 32
    return neighbours(num_lanes, min(num_lanes, 4 * num_banks // width))


def lds_clocks(arch: str, access: Access, is_store: bool) -> tuple[int, int]:
    """Clocks that an access occupies LDS for, and how many of them are due to conflicts of banks. Lanes that read the
    same word share it."""
    num_banks, num_lanes, _ = BANKS[arch]
    clocks = conflicts = 0
    words = np.arange(max(1, access.size // 4))
    for addresses in access.addresses:
        of_lane = np.full(num_lanes, -1, np.int64)
        of_lane[access.lanes] = addresses
        for phase in phases(arch, access.size, is_store):
            starts = of_lane[phase]
            starts = starts[starts >= 0]
            if len(starts) == 0:
                continue
            touched = np.unique(starts[:, None] // 4 + words)
            most = int(np.bincount(touched % num_banks).max())
            clocks += most
            conflicts += most - 1
    return clocks, conflicts


# ---- Kinds of instructions
KINDS = [
    ("matrix", r"v_(mfma|wmma|swmmac)_"),
    ("moves of accumulators", r"v_accvgpr_"),
    ("vector", r"v_"),
    ("LDS reads", r"ds_(read|load|bpermute|permute|swizzle)"),
    ("LDS writes", r"ds_(write|store)"),
    ("global stores", r"(global|buffer|flat)_store"),
    ("global loads", r"(global|buffer|flat)_load"),
    ("barriers", r"s_barrier(_wait)?$"),
    ("hints", r"s_(nop|setprio|delay_alu|clause|sleep|wait_alu|waitcnt_depctr|barrier_signal|sethalt|prefetch_\w+)$"),
    ("waits", r"s_wait(cnt|_\w+cnt)"),
    ("scalar", r"s_"),
]


def kind_of(text: str) -> str:
    name = text.split()[0]
    for kind, pattern in KINDS:
        if re.match(pattern, name):
            if kind == "global loads" and re.search(r"\blds\b", text) or name.startswith("global_load_lds"):
                return "copies to LDS"
            return kind
    return "scalar"  # cache control


DRAIN = re.compile(
    r"s_waitcnt .*vmcnt\(0\)|s_wait_loadcnt(_dscnt)? 0x0$|s_waitcnt_vscnt .*0x0|s_wait_storecnt(_dscnt)? 0x0$"
)


# ---- Loops


PRODUCT = re.compile(r"v_(pk_|dual_)?(fma|fmac|mad|mac)_f")


def iterations(trace: list, header: int) -> list[list]:
    """Of one wave: what it executed from each visit to an instruction to the next."""
    starts = [i for i, (place, _) in enumerate(trace) if place == header]
    return [trace[a:b] for a, b in zip(starts, starts[1:], strict=False)]


def usual(parts: list[list]) -> tuple[list, int]:
    """The iteration that is executed most often, the same instructions, and how often it is."""
    paths = Counter(tuple(place for place, _ in part) for part in parts)
    path, times = paths.most_common(1)[0] if paths else ((), 0)
    return next((part for part in parts if tuple(place for place, _ in part) == path), []), times


def main_loop(kernel: Kernel, trace: list) -> int:
    """Where the loop begins whose usual iterations execute most matrix instructions, or most multiply-adds where there
    are no matrix instructions; of two, the one with more iterations. `trace`: of one wave."""
    places = {address: i for i, (address, _) in enumerate(kernel.lines)}
    headers, work = set(), [0] * len(kernel.lines)
    has_matrix = any(kind_of(kernel.lines[place][1]) == "matrix" for place, _ in trace)
    for i, (address, text) in enumerate(kernel.lines):
        work[i] = kind_of(text) == "matrix" if has_matrix else bool(PRODUCT.match(text))
        if re.match(r"s_c?branch", text):
            offset = int(text.split()[1]) & 0xFFFF
            target = places.get(address + 4 + 4 * (offset - (offset >> 15 << 16)), len(places))
            if target <= i:
                headers.add(target)

    def weight(header):
        part, times = usual(iterations(trace, header))
        return times * sum(work[place] for place, _ in part), times

    best = max(headers, key=weight, default=None)
    if best is None or weight(best)[1] < 2:
        raise ValueError(f"no loop of {kernel.name} was executed three times")
    return best


@dataclass
class Counts:
    """Of one wave and one iteration of the main loop, the mean over the waves of a workgroup."""

    header: int  # where the loop begins, in the kernel's lines
    kinds: Counter
    drains: float
    lds_clocks: Counter  # "LDS reads", "LDS writes" -> clocks that they occupy LDS for
    conflicts: Counter  # of them due to conflicts

    @property
    def instructions(self) -> float:
        return sum(self.kinds.values())

    @property
    def instructions_per_matrix(self) -> float:
        return self.instructions / self.kinds["matrix"] if self.kinds["matrix"] else float("nan")


def count_loop(kernel: Kernel, traces: list) -> Counts:
    header = main_loop(kernel, traces[0])
    kinds, drains, clocks, conflicts, num_waves = Counter(), 0, Counter(), Counter(), 0
    for trace in traces:
        part, times = usual(iterations(trace, header))
        num_waves += times > 0
        for place, access in part:
            text = kernel.lines[place][1]
            kind = kind_of(text)
            kinds[kind] += 1
            drains += bool(DRAIN.match(text))
            if access is not None and access.space == "lds":
                taken, lost = lds_clocks(kernel.arch, access, kind == "LDS writes")
                clocks[kind] += taken
                conflicts[kind] += lost

    def mean(counter):
        return Counter({name: value / num_waves for name, value in counter.items()})

    return Counts(header, mean(kinds), drains / num_waves, mean(clocks), mean(conflicts))


# ---- Resources of a kernel, from its code object


@dataclass
class Resources:
    registers: int  # vector registers of a lane, accumulators included
    spills: int
    lds_bytes: int
    waves_per_simd: int


# Registers of a SIMD's lane, granule, most waves, LDS of a CU (of RDNA: of a WGP, whose four SIMDs share it). LLVM,
# "User Guide for AMDGPU Backend"; AMD's ISA documents.
LIMITS = {
    "gfx90a": (512, 8, 8, 64 << 10),
    "gfx942": (512, 8, 8, 64 << 10),
    "gfx950": (512, 8, 8, 160 << 10),
    "gfx1100": (1536, 24, 16, 128 << 10),
    "gfx1201": (1536, 24, 16, 128 << 10),
}


def resources(kernel: Kernel, num_threads: int) -> Resources:
    metadata, (total, granule, most, lds_total) = kernel.metadata, LIMITS[kernel.arch]
    registers = metadata[".vgpr_count"]
    by_registers = total // (-(-max(1, registers) // granule) * granule)
    waves = -(-num_threads // BANKS[kernel.arch][1])
    by_lds = lds_total // max(1, kernel.shared_bytes) * waves // 4
    spills = metadata[".vgpr_spill_count"] + metadata[".private_segment_fixed_size"]
    return Resources(registers, spills, kernel.shared_bytes, min(most, by_registers, max(1, by_lds)))


def table_row(counts: Counts, found: Resources) -> dict:
    kinds = counts.kinds
    return {
        "instructions": counts.instructions,
        "matrix": kinds["matrix"],
        **({"per matrix": counts.instructions_per_matrix} if kinds["matrix"] else {}),
        "vector": kinds["vector"] + kinds["moves of accumulators"],
        "scalar": kinds["scalar"],
        "LDS reads": kinds["LDS reads"],
        "conflict clocks": counts.conflicts["LDS reads"],
        "LDS writes": kinds["LDS writes"],
        "conflict clocks of writes": counts.conflicts["LDS writes"],
        "copies to LDS": kinds["copies to LDS"],
        "global loads": kinds["global loads"],
        "waits": kinds["waits"],
        "of them drain": counts.drains,
        "barriers": kinds["barriers"],
        "hints": kinds["hints"],
        "registers": found.registers,
        "spills": found.spills,
        "LDS bytes": found.lds_bytes,
        "waves per SIMD": found.waves_per_simd,
    }

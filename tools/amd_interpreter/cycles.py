"""A model of one compute unit in time (of RDNA: of a WGP), fed with the trace of what a workgroup executed.

It is for ranking loops and for floors. It says what share of the clocks the matrix units work, not how fast a chip is:
clocks under load, power, the sharing of L2 and of memory, and instruction caches are not in it.

Each SIMD gives, once every `period` clocks, at most one instruction of each class (vector and matrix, scalar, LDS,
memory) from different waves, the one of highest s_setprio first, then the one that waited longest; a wave gives one.
Instructions of a wave start in order. A matrix instruction occupies its unit for its products divided by the chip's
rate. A result of vector and matrix instructions is there after a latency. An access to LDS occupies the path of its
SIMD and LDS itself for the clocks that its addresses cost (count.py), one to global memory the path of the unit for
the lines of 64 bytes that it touches; each is done a latency later. s_waitcnt, s_wait_* and barriers wait as the ISA
documents say.

Where the numbers are from: matrix rates, CUs' LDS and cache widths from AMD's white papers and data sheets; latencies
of gfx942 as measured on MI308X (tingqli/pyhip), of gfx950 as measured by facebookexperimental/triton's AMDLatencyModel
(both cited in amd_evidence.md). The others are assumed to be like them; RDNA's are assumed.
"""

import re
from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np

from .assembly import parse_operand, split_text
from .chips import CHIPS
from .code_object import Kernel
from .count import BANKS, kind_of, lds_clocks, main_loop
from .instructions import UnknownInstruction


@dataclass(frozen=True)
class Unit:
    flops: dict  # type of A and B -> products and sums a clock of the whole unit
    period: int = 4  # clocks between instructions of one SIMD
    num_simds: int = 4
    result_clocks: int = 2  # of a matrix instruction, beyond its own
    matrix_overhead: int = 0  # clocks between matrix instructions beyond the rate
    vector_clocks: int = 4
    vector_latency: int = 8
    lds_latency: int = 64  # of one access alone, from its start to the end of the wait for it
    lds_latency_small: int = 52  # of 4 bytes a lane
    lds_path: float = 2.0  # clocks of a SIMD's path for one clock of LDS
    lds_gap: int = 8  # between accesses of one wave
    lds_width: float = 1.0  # LDS of the unit in units of what BANKS describes
    global_latency: int = 500
    global_bytes: int = 64  # a clock


UNITS = {
    "gfx90a": Unit({"f16": 1024, "bf16": 1024, "f32": 256, "f64": 256}),
    "gfx942": Unit({"f16": 2048, "bf16": 2048, "f32": 256, "f64": 256}),
    "gfx950": Unit(
        {"f16": 4096, "bf16": 4096, "f32": 256, "f64": 128},
        matrix_overhead=1,
        result_clocks=1,
        lds_latency=69,
        global_latency=790,
    ),
    "gfx1100": Unit({"f16": 1024, "bf16": 1024}, period=1, vector_clocks=1, vector_latency=5, lds_path=1, lds_gap=1),
    "gfx1201": Unit({"f16": 2048, "bf16": 2048}, period=1, vector_clocks=1, vector_latency=5, lds_path=1, lds_gap=1),
}
UNITS["gfx1100"] = replace(UNITS["gfx1100"], lds_width=0.5)
UNITS["gfx1201"] = replace(UNITS["gfx1201"], lds_width=0.5)
COUNTER = {"global loads": "load", "copies to LDS": "load", "global stores": "store"}
COUNTER |= {"LDS reads": "lds", "LDS writes": "lds"}


@dataclass
class Step:
    """An instruction of a trace, as far as the model needs it."""

    kind: str
    clocks: float = 0  # of the unit that it occupies
    more: float = 0  # of its path beyond that
    latency: int = 0
    counter: str = ""
    counts: dict = field(default_factory=dict)  # of waits
    reads: tuple = ()
    writes: tuple = ()
    priority: int | None = None


def registers(text: str) -> tuple[tuple, tuple]:
    """The vector registers that an instruction reads and writes."""
    reads, writes = [], []
    for part in text.split(" :: "):
        name, texts, _ = split_text(part)
        for i, operand in enumerate(texts):
            try:
                found = parse_operand(operand)
            except UnknownInstruction:
                continue
            if found.kind == "v":
                span = range(found.index, found.index + found.count)
                if i == 0:
                    writes += span
                if i > 0 or "fmac" in name or "mac_" in name:
                    reads += span
    return tuple(reads), tuple(writes)


def matrix_clocks(unit: Unit, text: str) -> float:
    m, n, k, kind = re.search(r"_(\d+)x(\d+)x(\d+)_?(bf16|f16|f32|f64)", text).groups()
    return 2 * int(m) * int(n) * int(k) * unit.num_simds / unit.flops[kind] + unit.matrix_overhead


def wait_counts(arch: str, text: str) -> dict:
    counts = {name: int(count) for name, count in re.findall(r"(\w+cnt)\((\d+)\)", text)}
    if not counts:
        names = re.findall(r"(?:load|store|ds|km|vs)cnt", text)
        value = int(text.split()[-1], 0)
        counts = dict(zip(names, (value >> 8, value & 63), strict=True)) if len(names) == 2 else {names[0]: value}
    known = set(CHIPS[arch].counters.values())
    return {name: count for name, count in counts.items() if name in known}


def steps_of(kernel: Kernel, trace: list, unit: Unit) -> list[Step]:
    arch, counters, plain, found = kernel.arch, CHIPS[kernel.arch].counters, {}, []
    for place, access in trace:
        text = kernel.lines[place][1]
        if place not in plain:
            kind = kind_of(text)
            step = Step(kind)
            if kind in ("matrix", "vector", "moves of accumulators"):
                step.reads, step.writes = registers(text)
                step.latency = unit.vector_latency
                step.clocks = unit.vector_clocks * (4 if re.match(r"v_(rcp|rsq|sqrt|exp|log|sin|cos)_", text) else 1)
            if kind == "matrix":
                step.clocks = matrix_clocks(unit, text)
                step.latency = step.clocks + unit.result_clocks
            if kind == "waits":
                step.counts = wait_counts(arch, text)
            if match := re.match(r"s_setprio (\d+)", text):
                step.priority = int(match[1])
            if text.startswith("s_load") or text.startswith("s_buffer_load"):
                step = Step("scalar", latency=unit.lds_latency, counter=counters["scalar"])
            if kind in COUNTER:
                step.counter = counters[COUNTER[kind]]
            plain[place] = step
        step = plain[place]
        if step.kind in COUNTER:
            clocks, more, latency = access_cost(arch, unit, step.kind, access)
            step = replace(step, clocks=clocks, more=more, latency=latency)
        found.append(step)
    return found


def access_cost(arch, unit, kind, access) -> tuple[float, float, int]:
    """Clocks of LDS or of the path to memory, clocks of the SIMD's path, latency."""
    if kind.startswith("LDS"):
        # Exchanges between lanes have no addresses; they cost what a word a lane does.
        clocks, conflicts = lds_clocks(arch, access, kind == "LDS writes") if access else (BANKS[arch][1] // 32, 0)
        latency = unit.lds_latency_small if access is None or access.size <= 4 else unit.lds_latency
        return clocks * unit.lds_width, clocks * unit.lds_path, latency - (clocks - conflicts) * unit.lds_path
    if access is None:  # no lane is active
        return 0, 0, unit.global_latency
    first = [addresses.astype(np.int64) for addresses in access.addresses]
    ends = [each + access.size - 1 for each in first]
    lines = np.unique(np.concatenate([each // 64 for each in (*first, *ends)]))
    return 64 * len(lines) / unit.global_bytes, 0, unit.global_latency


@dataclass
class Runner:
    """A wave in time."""

    steps: list
    simd: int
    block: int
    at: int = 0
    free_at: float = 0  # when it may give its next instruction
    priority: int = 0
    queues: dict = field(default_factory=dict)
    ready: dict = field(default_factory=dict)  # register -> clock
    lds_at: float = 0
    is_at_barrier: bool = False
    last: float = -1
    times: list = field(default_factory=list)  # when each step was given


CLASS = {"matrix": "vector", "vector": "vector", "moves of accumulators": "vector", "scalar": "scalar"}
CLASS |= {"LDS reads": "lds", "LDS writes": "lds", "global loads": "memory", "global stores": "memory"}
CLASS |= {"copies to LDS": "memory"}


def simulate(blocks: list[list[list[Step]]], unit: Unit, stagger: int = 0) -> list[Runner]:
    """Runs workgroups, each a list of waves, on one unit; the waves of a workgroup lie on its SIMDs in turn. Block i
    starts i * stagger clocks later."""
    waves, number = [], 0
    for idx, block in enumerate(blocks):
        for steps in block:
            waves.append(Runner(steps, number % unit.num_simds, idx, free_at=idx * stagger))
            number += 1
    matrix_free, vector_free = [0.0] * unit.num_simds, [0.0] * unit.num_simds
    path_free, shared = [0.0] * unit.num_simds, {"lds": 0.0, "memory": 0.0}
    by_simd = [[wave for wave in waves if wave.simd == simd] for simd in range(unit.num_simds)]
    clock, left = 0.0, len(waves)

    def blocked_until(wave, step, now) -> float:
        """0 if it can start now; else the first clock at which to look again."""
        later = wave.free_at
        if step.kind == "waits":
            for name, count in step.counts.items():
                queue = wave.queues.get(name, ())
                if len(queue) > count:
                    later = max(later, queue[len(queue) - count - 1])
        for register in step.reads:
            later = max(later, wave.ready.get(register, 0))
        if step.kind == "matrix":
            # The unit may still be at work for less than a period: the next one begins behind it.
            later = max(later, matrix_free[wave.simd] - unit.period + 1, vector_free[wave.simd])
            for register in step.writes:
                later = max(later, wave.ready.get(register, 0))
        elif CLASS.get(step.kind) == "vector":
            later = max(later, vector_free[wave.simd])
        elif CLASS.get(step.kind) == "lds":
            later = max(later, wave.lds_at, path_free[wave.simd])
        return later if later > now else 0

    def start(wave, step, now):
        wave.times.append(now)
        wave.at += 1
        wave.last = now
        wave.free_at = now + unit.period
        if step.priority is not None:
            wave.priority = step.priority
        if step.kind == "waits":
            for name, count in step.counts.items():
                queue = wave.queues.get(name, deque())
                while len(queue) > count:
                    queue.popleft()
        elif step.kind == "matrix":
            matrix_free[wave.simd] = max(now, matrix_free[wave.simd]) + step.clocks
            vector_free[wave.simd] = now + unit.vector_clocks
        elif CLASS.get(step.kind) == "vector":
            vector_free[wave.simd] = now + step.clocks
        done = now + step.latency
        if step.counter:
            which = CLASS[step.kind]
            if which != "scalar":
                begin = max(now, shared[which])
                shared[which] = begin + step.clocks
                done = max(begin + step.clocks, now + step.more) + step.latency
            if which == "lds":
                path_free[wave.simd] = now + step.more
                wave.lds_at = now + unit.lds_gap
            queue = wave.queues.setdefault(step.counter, deque())
            queue.append(max(done, queue[-1] if queue else 0))
        for register in step.writes:
            wave.ready[register] = done

    while left:
        soonest = float("inf")
        for simd in range(unit.num_simds):
            now = clock + (simd if unit.period > 1 else 0)
            taken = set()
            for wave in sorted(by_simd[simd], key=lambda wave: (-wave.priority, wave.last)):
                if wave.at == len(wave.steps) or wave.is_at_barrier:
                    continue
                step = wave.steps[wave.at]
                which = CLASS.get(step.kind)
                later = blocked_until(wave, step, now)
                if later:
                    soonest = min(soonest, later)
                    continue
                soonest = min(soonest, now + unit.period)
                if which in taken:
                    continue
                taken.add(which) if which else None
                start(wave, step, now)
                if step.kind == "barriers":
                    wave.is_at_barrier = True
                if wave.at == len(wave.steps):
                    left -= 1
        for idx in range(len(blocks)):
            own = [wave for wave in waves if wave.block == idx and wave.at < len(wave.steps) or wave.is_at_barrier]
            own = [wave for wave in own if wave.block == idx]
            if own and all(wave.is_at_barrier for wave in own):
                for wave in own:
                    wave.is_at_barrier = False
                    wave.free_at = max(wave.free_at, clock + unit.period)
                soonest = min(soonest, clock + unit.period)
        if left and soonest == float("inf"):
            raise RuntimeError("no wave can go on")
        slots = max(1, -(-(soonest - clock) // unit.period)) if left else 1
        clock += unit.period * slots
    return waves


@dataclass
class Busy:
    share: float  # of the clocks in which matrix units work
    clocks: float  # of an iteration of the main loop


def matrix_busy(kernel: Kernel, traces: list, unit: Unit, num_blocks: int = 1) -> Busy:
    """Of the main loop in its steady state: between the third and the last visit of the first wave to its beginning."""
    steps = [steps_of(kernel, trace, unit) for trace in traces]
    waves = simulate([steps] * num_blocks, unit, stagger=500)
    header = main_loop(kernel, traces[0])
    visits = [i for i, (place, _) in enumerate(traces[0]) if place == header]
    if len(visits) < 5:
        raise ValueError(f"{len(visits)} iterations: five are needed for a steady state")
    begin, end = waves[0].times[visits[2]], waves[0].times[visits[-1]]
    work = sum(
        step.clocks
        for wave in waves
        for step, at in zip(wave.steps, wave.times, strict=True)
        if step.kind == "matrix" and begin <= at < end
    )
    return Busy(work / (unit.num_simds * (end - begin)), (end - begin) / (len(visits) - 3))

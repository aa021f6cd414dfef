"""The clock: several callables, the arms, timed against each other in one process, on the CPU or on a GPU, and the
ceilings of this machine.

Arms take turns: each round has a turn of every arm, in an order that rotates, so that a change of clock rate or of load
meets all of them alike. On a GPU a turn is one call. On the CPU it is a tenth of a second. Before it comes a rest, in
which the threads of other libraries fall asleep: OpenBLAS's spin for 0.1 s after a product, those of OpenMP for some
milliseconds, and each takes a core from the next arm. The first part of a turn is not timed: it brings back the arm's
own caches, the clock of a core that has slept, and wakes its own threads. A sample is the mean of enough calls to
outlast the timer.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from ..dispatch import DTYPES

_SAMPLE_SECONDS = 2e-3
_TURN_SECONDS = 0.1
_UNTIMED_SECONDS = 0.03  # of a turn
_REST_SECONDS = 0.15  # OpenBLAS's threads spin for 2^28 ticks of the time stamp counter: 0.1 s at 2.6 GHz
_MIN_ROUNDS = 3
_MAX_ROUNDS = 100
_FLUSH_BYTES = 512 << 20  # of a GPU: several times its second-level cache, and long enough to hide slow launches

PRECISIONS = (*DTYPES, "tf32")


@dataclass(frozen=True)
class Timing:
    """Seconds per call over the samples of one arm."""

    median: float
    minimum: float
    spread: float  # half of the distance between the quartiles, relative to the median
    num_samples: int

    def to_dict(self) -> dict[str, float | int]:
        """Plain data in microseconds, rounded to the nanosecond."""
        return {
            "median_us": round(self.median * 1e6, 3),
            "minimum_us": round(self.minimum * 1e6, 3),
            "spread": round(self.spread, 4),
            "num_samples": self.num_samples,
        }


def time_arms(arms: Mapping[str, Callable[[], object]], *, seconds: float = 0.5) -> dict[str, Timing]:
    """Times every arm within about ``seconds`` in all, rests not counted, more if three turns of each take longer.

    An arm whose second call alone takes ``seconds`` is sampled by that call and has no turns.
    """
    samples: dict[str, list[float]] = {}
    num_calls: dict[str, int] = {}
    for name, call in arms.items():
        call()  # whatever is set up once
        duration = _time_calls(call, 1)
        if duration >= seconds:
            samples[name] = [duration]
            continue
        samples[name] = []
        num_calls[name] = max(1, math.ceil(_SAMPLE_SECONDS / min(duration, _time_calls(call, 3))))

    names = list(num_calls)
    spent = 0.0
    for round_idx in range(_MAX_ROUNDS if names else 0):
        if round_idx >= _MIN_ROUNDS and spent >= seconds:
            break
        shift = round_idx % len(names)
        for name in names[shift:] + names[:shift]:
            if len(arms) > 1:
                time.sleep(_REST_SECONDS)
            start = time.perf_counter()
            samples[name] += _time_turn(arms[name], num_calls[name])
            spent += time.perf_counter() - start
    return {name: _summarize(samples[name]) for name in arms}


def time_on_gpu(
    arms: Mapping[str, Callable[[], object]],
    *,
    seconds: float = 0.15,
    most_samples: int = 60,
    copies: bool = False,
    warms: bool = False,
) -> dict[str, Timing]:
    """Times single calls by events, the GPU's caches emptied before each, arms in turn; slow arms get fewer samples, at
    least three or ``most_samples``. ``seconds`` is the time that an arm's own calls may take together.

    The caches are emptied by zeros, or, with ``copies``, by a copy of other random data, as what runs before in a model
    leaves them. ``warms``: an untimed call before each sample, so that many arms do not find each other's code in the
    caches of instructions. What the calling thread does before a launch is hidden behind the emptying of the caches;
    host_seconds has it.
    """
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    target, source = flush.chunk(2)
    if copies:
        flush.random_()

    def sample(call: Callable[[], object]) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if warms:
            call()
        if copies:
            target.copy_(source)
        else:
            flush.zero_()
        start.record()
        call()
        end.record()
        return start, end

    rounds = {}
    for name, call in arms.items():
        call()
        start, end = sample(call)
        torch.cuda.synchronize()
        rounds[name] = min(most_samples, max(3, int(seconds * 1e3 / max(start.elapsed_time(end), 1e-3))))
    events: dict[str, list] = {name: [] for name in arms}
    for round_idx in range(max(rounds.values())):
        names = [name for name in arms if round_idx < rounds[name]]
        shift = round_idx % len(names)
        for name in names[shift:] + names[:shift]:
            events[name].append(sample(arms[name]))
    torch.cuda.synchronize()
    return {name: _summarize([start.elapsed_time(end) * 1e-3 for start, end in events[name]]) for name in arms}


def host_seconds(arms: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds that the calling thread needs for one call on a GPU, whose work is not waited for."""
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(30):
        for name, call in arms.items():
            torch.cuda.synchronize()
            call()
            samples[name].append(_time_calls(call, 20))
    return {name: statistics.median(values) for name, values in samples.items()}


def gpu_name() -> str:
    """The current GPU, as `explain` names it."""
    properties = torch.cuda.get_device_properties()
    if torch.version.hip:
        return f"hip:{properties.gcnArchName.split(':')[0]}"
    return f"cuda:sm_{properties.major}{properties.minor}"


def gpu_copy_rate() -> float:
    """Bytes read and written per second by a copy within the GPU's memory."""
    source = torch.ones(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / time_on_gpu({"copy": lambda: target.copy_(source)})["copy"].median


@contextlib.contextmanager
def matmul_precision(precision: str) -> Iterator[torch.dtype]:
    """Yields the dtype of one of PRECISIONS; tf32 is fp32 with torch's permission."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    try:
        yield torch.float32 if precision == "tf32" else DTYPES[precision]
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def fma_peak(dtype: torch.dtype) -> float | None:
    """GFLOP/s of fused multiply-adds held in registers on all of torch's threads, the most within a second; None where
    it cannot be measured.
    """
    if not hasattr(torch.ops.tiledmm, "_fma_peak"):
        return None
    peak: float = torch.ops.tiledmm._fma_peak(dtype)
    if not peak:
        return None
    for _ in range(5):  # a stranger may have half of the cores for a while
        end = time.perf_counter() + 0.1  # a core that has slept takes some of it to reach its clock
        while time.perf_counter() < end:
            peak = max(peak, torch.ops.tiledmm._fma_peak(dtype))
        time.sleep(0.1)
    return peak


def copy_bandwidths() -> dict[int, float]:
    """GB/s read and written by torch's copy, on all of its threads, per size of the working set in bytes,
    ascending.

    A smaller set fits into nearer memory, so it gets at least the figure of every larger one; that also keeps
    the cost of the call out of the figures of the small sets.
    """
    bandwidths: dict[int, float] = {}
    best = 0.0
    for exponent in range(28, 13, -2):
        num_bytes = 2**exponent
        source = torch.ones(num_bytes // 8, dtype=torch.float32)
        target = torch.empty_like(source)
        timing = time_arms({"copy": partial(target.copy_, source)}, seconds=0.1)["copy"]
        best = max(best, num_bytes / timing.median / 1e9)
        bandwidths[num_bytes] = round(best, 2)
    return dict(sorted(bandwidths.items()))


def bandwidth_of(num_bytes: int, bandwidths: Mapping[int, float]) -> float:
    """GB/s of the smallest measured working set that holds ``num_bytes``, of the largest one if none does."""
    return next((rate for size, rate in bandwidths.items() if size >= num_bytes), list(bandwidths.values())[-1])


def _time_calls(call: Callable[[], object], num_calls: int) -> float:
    start = time.perf_counter()
    for _ in range(num_calls):
        call()
    return (time.perf_counter() - start) / num_calls


def _time_turn(call: Callable[[], object], num_calls: int) -> list[float]:
    """The samples of a turn, at least one."""
    start = time.perf_counter()
    while time.perf_counter() < start + _UNTIMED_SECONDS:
        _time_calls(call, num_calls)
    samples = [_time_calls(call, num_calls)]
    while time.perf_counter() < start + _TURN_SECONDS:
        samples.append(_time_calls(call, num_calls))
    return samples


def _summarize(samples: list[float]) -> Timing:
    median = statistics.median(samples)
    spread = 0.0
    if len(samples) >= 4:
        quartiles = statistics.quantiles(samples, n=4)
        spread = (quartiles[2] - quartiles[0]) / 2 / median
    return Timing(median, min(samples), spread, len(samples))

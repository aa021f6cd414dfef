"""Fuzzer: random cases against the float64 reference, in several processes; a failure is shrunk and printed as code.

    python -m torch_tiledmm.testing.fuzz --cases 100000 --seed 1 [--device cuda] [--processes 2]
    python -m torch_tiledmm.testing.fuzz --seed 1 --case 1234       one case again
    compute-sanitizer --tool memcheck python -m torch_tiledmm.testing.fuzz --cases 300 --device cuda

What a case is, and what is checked of it: cases.py. A process that dies, of a signal or a GPU's error, is found, too:
each one notes the case that it is at. At the end come the counts of what the cases covered: a hole shows there.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from .cases import Case, Layout, Outcome, draw_case, imports, run_case

_MOST_ATTEMPTS = 1500  # of shrinking one case
_MOST_SECONDS = 60  # of shrinking it; a case that takes twice as long hangs
_COUNTS_EVERY = 200  # cases
_LOST_GPU = 99  # exit code
Prepare = Callable[[], None] | None  # what a process does first


@dataclass
class Failure:
    """One failing case, and what is left of it."""

    seed: int
    number: int
    device: str
    outcome: Outcome
    code: str = ""  # only of the first failure of a kind

    def __str__(self) -> str:
        command = f"python -m torch_tiledmm.testing.fuzz --seed {self.seed} --case {self.number}"
        command += "" if self.device == "cpu" else f" --device {self.device}"
        head = f"case {self.number}, {self.outcome.check}: {self.outcome.error} {self.outcome.message}"
        return f"{head}\nrun again: {command}\n{self.code}"


@dataclass
class Report:
    """What became of all cases."""

    seed: int
    num_cases: int = 0
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    counts: dict[str, Counter] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [
            f"{name}: " + ", ".join(f"{key} {n}" for key, n in sorted(c.items())) for name, c in self.counts.items()
        ]
        kinds: dict[tuple[str, str, str], list[str]] = {}
        for failure in self.failures:
            kinds.setdefault(failure.outcome.what, []).append(str(failure.number))
        for (check, error, _), numbers in kinds.items():
            lines.append(f"failed: {check}, {error}: {len(numbers)}, cases {', '.join(numbers[:5])} ...")
        rate = self.num_cases / self.seconds if self.seconds else 0
        num_refused = sum(self.counts.get("refused", Counter()).values())
        lines.append(
            f"seed {self.seed}: {self.num_cases} cases, {len(self.failures)} failures, {num_refused} refused, "
            f"{self.seconds:.1f} seconds, {rate:.0f} cases per second"
        )
        return "\n".join(lines)


# --- shrinking ---


def shrink(case: Case, run: Callable[[Case], Outcome] = run_case) -> Case:
    """The simplest case found that fails at the same check with the same error."""
    what, num_attempts, end = run(case).what, 0, time.monotonic() + _MOST_SECONDS
    is_shrinking = bool(what[0])  # false where it does not fail twice
    while is_shrinking:
        is_shrinking = False
        for simpler in _simpler_cases(case):
            # Some failures need certain values, and other sizes draw other ones.
            for changed in (replace(simpler, seed=simpler.seed + i) for i in range(0, 12, 4)):
                num_attempts += 1
                if num_attempts > _MOST_ATTEMPTS or time.monotonic() > end:
                    return case
                if run(changed).what == what:
                    case, is_shrinking = changed, True
                    break
            if is_shrinking:
                break
    return case


def _simpler_cases(case: Case) -> Iterator[Case]:
    """Large steps first."""
    if case.layouts:
        yield replace(case, layouts=())
    if case.dtypes:
        yield replace(case, dtypes=())
    kinds = {dict(case.kinds).get(name, "uniform") for name in case.tensors}
    for kind in ("integers", "uniform"):
        if kinds == {kind}:
            break
        yield replace(case, kinds=tuple((name, kind) for name in case.tensors))
    for name, value in (("algorithm", "auto"), ("activation", "none"), ("bias", "none"), ("is_tf32", False)):
        if getattr(case, name) != value:
            yield from _valid(case, **{name: value})
    for op in ("matmul",) if case.op == "matmul_out" else ():
        yield from _valid(case, op=op)
    if case.mode not in ("values", "grad"):
        yield from _valid(case, mode="grad")
    if case.mode != "values":
        yield from _valid(case, mode="values", needs=())
    for name in case.needs if len(case.needs) > 1 else ():
        yield from _valid(case, needs=tuple(other for other in case.needs if other != name))
    if case.threads > 1:
        yield from _valid(case, threads=1)
    if case.dtype != "fp32":
        yield from _valid(case, dtype="fp32")
    yield from _smaller_sizes(case)
    for name, layout in case.layouts:
        rest = tuple(pair for pair in case.layouts if pair[0] != name)
        yield replace(case, layouts=rest)
        for simpler in layout.simpler():
            yield replace(case, layouts=(*rest, (name, simpler)))
    if case.row:
        yield from _valid(case, row=0)


def _smaller_sizes(case: Case) -> Iterator[Case]:
    if case.batch_a or case.batch_b:
        yield from _valid(case, batch_a=(), batch_b=())
    if case.batch_a and case.batch_b:
        yield from _valid(case, batch_a=case.batch_a[1:], batch_b=case.batch_b[1:])
    for name in ("batch_a", "batch_b"):
        batch = getattr(case, name)
        if batch:
            yield from _valid(case, **{name: batch[1:]})
        for dim, size in enumerate(batch):
            # Both sides at once, counted from the end, where they have the same size.
            other = "batch_b" if name == "batch_a" else "batch_a"
            place = len(getattr(case, other)) - len(batch) + dim
            for smaller in range(1, size):
                changed = {name: (*batch[:dim], smaller, *batch[dim + 1 :])}
                if place >= 0 and getattr(case, other)[place] == size:
                    theirs = getattr(case, other)
                    changed[other] = (*theirs[:place], smaller, *theirs[place + 1 :])
                yield from _valid(case, **changed)
    for name in "mnk":
        size = getattr(case, name)
        for smaller in sorted({1, 2, size // 4, size // 2, size - size // 4, size - 1}):
            if 0 < smaller < size:
                yield from _valid(case, **{name: smaller})


def _valid(case: Case, **changes: Any) -> Iterator[Case]:
    """The changed case, unless its parts do not fit any more."""
    changed = replace(case, **changes)
    changed = replace(changed, needs=tuple(name for name in changed.needs if name in changed.operands))
    if (changed.mode == "values") != (not changed.needs):
        return
    try:
        changed.batch  # noqa: B018
    except RuntimeError:  # does not broadcast
        return
    yield changed


def write_code(case: Case, outcome: Outcome) -> str:
    """The program of a failing case by itself: what leads to the failing check, with the values of small operands."""
    program = case.program(has_literals=True)
    needs_all = outcome.check in ("crash", "memory")  # whichever call it was
    chosen = [code for check, code in program if needs_all or check in ("", outcome.check)]
    code = "\n".join(chosen)
    return f"# {outcome.check}: {outcome.error}\n{imports(code)}\n\n{code}\n"


def run_in_child(case: Case) -> Outcome:
    """As run_case, where the case may end the process; to be called in one that has neither threads nor a GPU."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.write(writing, pickle.dumps(run_case(case)))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        answer = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    outcome = pickle.loads(answer) if answer else None
    return _crash(code) if outcome is None else _crash(_LOST_GPU) if _is_gpu_lost(outcome) else outcome


def _is_gpu_lost(outcome: Outcome) -> bool:
    return any(f"{runtime} error" in outcome.message for runtime in ("CUDA", "HIP"))


def _crash(exit_code: int) -> Outcome:
    if exit_code == _LOST_GPU:
        return Outcome("crash", "GPU error", "nothing runs on the GPU after it")
    name = signal.Signals(-exit_code).name if exit_code < 0 else f"exit code {exit_code}"
    return Outcome("crash", name, "the process died")


# --- processes ---


def fuzz(
    num_cases: int,
    seed: int,
    device: str = "cpu",
    num_processes: int = 2,
    *,
    first: int = 0,
    prepare: Callable[[], None] | None = None,
    show: Callable[[str], None] = lambda text: None,
) -> Report:
    """Runs the cases from `first` on. Every process calls `prepare` before its first case, as tests do that plant bugs;
    `show` gets the first failure of each kind as it is found.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # processes beside each other must not spin
    start, report = time.monotonic(), Report(seed, num_cases)
    workers = [
        _Worker(seed, number, first + num_cases, num_processes, device, prepare)
        for number in range(first, first + min(num_cases, num_processes))
    ]
    while workers:
        wait([worker.connection for worker in workers], timeout=1)
        for worker in list(workers):
            for failure in worker.receive(report):
                is_new = all(failure.outcome.what != other.outcome.what for other in report.failures)
                if is_new and failure.outcome.check == "crash":
                    failure.code = _shrink_a_crash(failure, prepare)
                report.failures.append(failure)
                if is_new:
                    show(str(failure))
            if worker.is_done:
                workers.remove(worker)
    report.seconds = time.monotonic() - start
    return report


class _Worker:
    """A process that runs every step-th case; started again behind a case that ends it."""

    def __init__(self, seed: int, first: int, last: int, step: int, device: str, prepare: Prepare) -> None:
        self.seed, self.last, self.step, self.device, self.prepare = seed, last, step, device, prepare
        self.is_done = False
        self.start(first)

    def start(self, first: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe(duplex=False)
        self.at = context.RawArray("q", [first, 0])  # the case, and how many runs there were
        self.seen, self.since = 0, time.monotonic()
        arguments = (theirs, self.at, self.seed, range(first, self.last, self.step), self.device, self.prepare)
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def receive(self, report: Report) -> Iterator[Failure]:
        """What has come: failures. Counts go into the report."""
        try:
            while self.connection.poll():
                message = self.connection.recv()
                if isinstance(message, Failure):
                    yield message
                else:
                    for name, counter in message.items():
                        report.counts.setdefault(name, Counter()).update(counter)
        except EOFError:
            self.process.join()
            if self.process.exitcode:
                yield Failure(self.seed, self.at[0], self.device, _crash(self.process.exitcode))
                if self.at[0] + self.step < self.last:
                    return self.start(self.at[0] + self.step)
            self.is_done = True
        if self.at[1] != self.seen:
            self.seen, self.since = self.at[1], time.monotonic()
        elif time.monotonic() - self.since > 2 * _MOST_SECONDS:
            assert self.process.pid is not None
            os.kill(self.process.pid, signal.SIGALRM)  # it hangs: a death by a signal that has no other source


def _work(connection: Connection, at: Any, seed: int, numbers: range, device: str, prepare: Prepare) -> None:
    """What a process does."""
    if prepare is not None:
        prepare()

    def run(case: Case) -> Outcome:
        at[1] += 1
        return run_case(case)

    counts: dict[str, Counter] = {}
    kinds: set[tuple[str, str, str]] = set()
    for place, number in enumerate(numbers, 1):
        at[0] = number
        case = draw_case(seed, number, device)
        outcome = run(case)
        if _is_gpu_lost(outcome):
            os._exit(_LOST_GPU)
        count(counts, case, outcome)
        if outcome.check:
            failure = Failure(seed, number, device, outcome)
            if outcome.what not in kinds:
                kinds.add(outcome.what)
                failure.code = write_code(shrink(case, run), outcome)
            connection.send(failure)
        if place % _COUNTS_EVERY == 0 or place == len(numbers):
            connection.send(counts)
            counts = {}
    connection.close()


def _shrink_a_crash(failure: Failure, prepare: Prepare) -> str:
    """The code of a smaller case that ends the process, too."""
    context = multiprocessing.get_context("spawn")
    reading, writing = context.Pipe(duplex=False)
    case = draw_case(failure.seed, failure.number, failure.device)
    process = context.Process(target=_work_on_a_crash, args=(writing, case, failure.outcome, prepare), daemon=True)
    process.start()
    writing.close()
    with reading:
        try:
            code: str = reading.recv()
            return code
        except EOFError:  # it died itself
            return write_code(case, failure.outcome)
        finally:
            process.join()


def _work_on_a_crash(connection: Connection, case: Case, outcome: Outcome, prepare: Prepare) -> None:
    if prepare is not None:
        prepare()
    torch.set_num_threads(1)  # a child inherits no threads
    connection.send(write_code(shrink(case, run_in_child) if outcome.error != "SIGALRM" else case, outcome))
    connection.close()


# --- counts ---


def count(counts: dict[str, Counter], case: Case, outcome: Outcome) -> None:
    layouts = [layout for _, layout in case.layouts]
    entries = {
        "op": case.op,
        "mode": case.mode,
        "dtype": "tf32" if case.is_tf32 else case.dtype,
        "ranks": "x".join(str(len(case.shape(name))) for name in case.operands[:2]),
        "algorithm": case.algorithm,
        "refused": case.algorithm if outcome.is_refused else None,
        "differentiated": f"{case.op}({', '.join(case.needs)})" if case.needs else None,
        "activation": case.activation if case.op == "linear" else None,
        "bias": case.bias if case.op == "linear" else None,
        "values": dict(case.kinds)[case.operands[0]],
        "threads": str(case.threads),
        "sizes": "empty" if 0 in (case.m, case.n, case.k, *case.batch) else _size_class(max(case.m, case.n, case.k)),
    }
    for name, entry in entries.items():
        if entry is not None:
            counts.setdefault(name, Counter())[entry] += 1
    strides = {
        "permuted": any(layout.order != Layout.plain(len(layout.order)).order for layout in layouts),
        "stepped": any(layout.step > 1 for layout in layouts),
        "with gaps": any(layout.gaps for layout in layouts),
        "expanded": any(layout.expanded for layout in layouts),
        "overlapping": any(layout.is_overlapping for layout in layouts),
        "with an offset": any(layout.before for layout in layouts),
    }
    counts.setdefault("strides", Counter()).update(name for name, is_there in strides.items() if is_there)


def _size_class(size: int) -> str:
    return f"up to {next((limit for limit in (16, 64, 128, 512, 2048) if size <= limit), 8192)}"


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if a case failed."""
    parser = argparse.ArgumentParser(prog="python -m torch_tiledmm.testing.fuzz", description="random cases")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=seed_of_today(), help="default: the date")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--processes", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--case", type=int, help="this number alone")
    args = parser.parse_args(arguments)
    first, num_cases = (0, args.cases) if args.case is None else (args.case, 1)
    report = fuzz(
        num_cases, args.seed, args.device, args.processes, first=first, show=lambda text: print(text, flush=True)
    )
    print(report)
    return 1 if report.failures else 0


def seed_of_today() -> int:
    return int(datetime.date.today().strftime("%Y%m%d"))


if __name__ == "__main__":
    sys.exit(main())

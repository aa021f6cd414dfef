"""Everything that an AMD GPU can tell, in one run: whether the build serves it, the tests, random cases, then speed.

    python benchmarks/check_amd.py --dry-run    what would be run, on any machine
    python benchmarks/check_amd.py              all of it; results in benchmarks/results/<the GPU's name>

Nobody has run the kernels on such a GPU so far (docs say what was executed and counted instead), so correctness comes
first: where a check fails, nothing is measured. Each step is a process of its own, which a fault of the GPU ends alone.
`checks.md` beside the results says what was run, how it ended and how long it took; a step's whole output is in
build/check_amd. Commit the folder, also where checks failed.
"""

import argparse
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

import torch_tiledmm
from torch_tiledmm.dispatch import DTYPES, build_info
from torch_tiledmm.testing.origin import origin
from torch_tiledmm.testing.timing import gpu_name

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "build" / "check_amd"
LAST_LINES = 20  # of a failed step's output
GPU_TESTS = ("gpu", "gpu_faults", "split", "processes", "dispatch", "main")


class Step(NamedTuple):
    name: str
    command: list[str]
    is_check: bool  # whether what comes after it depends on its success


class Outcome(NamedTuple):
    step: Step
    exit_code: int | None  # None: not run, since a check failed
    seconds: float
    output: str

    @property
    def text(self) -> str:
        return "not run" if self.exit_code is None else "ok" if self.exit_code == 0 else f"failed ({self.exit_code})"


def steps_of(results: Path, num_cases: int, has_split: bool) -> list[Step]:
    """``has_split``: whether the chip has a kernel of algorithm="split"."""
    python = sys.executable
    tests = [f"tests/torch_tiledmm/test_{name}.py" for name in GPU_TESTS]
    fuzz = ["-m", "torch_tiledmm.testing.fuzz", "--device", "cuda", "--cases", str(num_cases), "--processes", "1"]
    precisions = ["bf16", "fp16", "fp32", "fp64"]  # AMD's matrix instructions multiply fp32 without rounding to tf32
    split = [Step("split", [python, "benchmarks/bench_split.py", "--json", str(results / "split.json")], False)]
    return [
        Step("build", [python, "benchmarks/check_amd.py", "--build"], True),
        Step("info", [python, "-m", "torch_tiledmm", "info"], True),
        Step("tests", [python, "-m", "pytest", "-q", "-rs", *tests], True),
        Step("random cases", [python, *fuzz], True),
        Step(
            "products, layers, training",
            [python, "benchmarks/bench_gpu.py", "--precisions", *precisions, "--json", str(results / "gpu.json")],
            False,
        ),
        Step(
            "ladder",
            [python, "-m", "torch_tiledmm", "ladder", "--dtype", *precisions, "--json", str(results / "ladder.json")],
            False,
        ),
        *(split if has_split else []),
        Step("pages", [python, "benchmarks/readme_table.py"], False),
    ]


def check_build() -> None:
    """Exits with the reason where this build does not serve the GPU."""
    if not torch.version.hip:
        sys.exit(f"torch {torch.__version__} is not built for ROCm")
    try:
        print(build_info().pick("cuda"))
    except ValueError as error:
        sys.exit(str(error))
    # One product by each kernel is soon done, and a fault here needs no search.
    for name, dtype in DTYPES.items():
        a = torch.ones(64, 64, device="cuda", dtype=dtype)
        for candidate in torch_tiledmm.explain(64, 64, 64, dtype, device=gpu_name()).candidates:
            if candidate.legal:
                result = torch_tiledmm.matmul(a, a, algorithm=candidate.algorithm)
                if not bool((result == 64).all()):
                    sys.exit(f"{candidate.algorithm} in {name}: ones times ones are {result.flatten()[:8].tolist()}")
                print(candidate.algorithm, name, "ok", flush=True)


def serves_split() -> bool:
    candidates = torch_tiledmm.explain(512, 512, 512, "fp32", device=gpu_name()).candidates
    return any(candidate.legal for candidate in candidates if candidate.algorithm == "mfma_split")


def folder_name(gpu: str) -> str:
    """As in "amd_instinct_mi300x"."""
    words = re.findall("[a-z0-9]+", gpu.lower())
    return "_".join(words if words[:1] == ["amd"] else ["amd", *words])


def execute(command: list[str], log: Path) -> tuple[int, str]:
    """Exit code and output, which is shown and kept as it comes."""
    lines = []
    with (
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process,
        log.open("w") as file,
    ):
        for line in process.stdout or ():
            lines.append(line)
            for target in (sys.stdout, file):
                target.write(line)
                target.flush()
    return process.returncode, "".join(lines)


def run(steps: list[Step]) -> list[Outcome]:
    LOGS.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for step in steps:
        if any(done.step.is_check and done.exit_code != 0 for done in outcomes):
            outcomes.append(Outcome(step, None, 0, ""))
            continue
        print(f"\n==== {step.name}: {shlex.join(step.command)}", flush=True)
        start = time.monotonic()
        exit_code, output = execute(step.command, LOGS / f"{step.name.split(',')[0].replace(' ', '_')}.log")
        outcomes.append(Outcome(step, exit_code, time.monotonic() - start, output))
    return outcomes


def report(gpu: str, outcomes: list[Outcome]) -> str:
    found = origin()
    lines = [f"# Checks on {gpu}", "", "Written by benchmarks/check_amd.py.", ""]
    lines += [f"torch {torch.__version__}, HIP {torch.version.hip}; commit {found['commit']}, {found['date']}.", ""]
    lines += ["| step | outcome | seconds | command |", "| --- | --- | ---: | --- |"]
    for outcome in outcomes:
        command = shlex.join([word.replace(f"{ROOT}/", "") for word in ["python", *outcome.step.command[1:]]])
        lines.append(f"| {outcome.step.name} | {outcome.text} | {outcome.seconds:.0f} | `{command}` |")
    for outcome in outcomes:
        if outcome.exit_code:
            lines += ["", f"## {outcome.step.name}", "", "```text"]
            lines += [*outcome.output.splitlines()[-LAST_LINES:], "```"]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 if a step failed."""
    parser = argparse.ArgumentParser(description="all checks and measurements on an AMD GPU")
    parser.add_argument("--dry-run", action="store_true", help="print the commands; needs no GPU")
    parser.add_argument("--cases", type=int, default=5000, help="random ones, default: 5000")
    parser.add_argument("--machine", help="the folder of the results; default: the GPU's name")
    parser.add_argument("--build", action="store_true", help="only whether this build serves the GPU")
    args = parser.parse_args(arguments)
    if args.build:
        check_build()
        return 0
    has_gpu = torch.version.hip is not None and torch.cuda.is_available()
    if not has_gpu and not args.dry_run:
        parser.error(f"torch {torch.__version__} sees no AMD GPU; --dry-run needs none")
    gpu = torch.cuda.get_device_properties().name if has_gpu else "gpu"
    results = ROOT / "benchmarks" / "results" / (args.machine or folder_name(gpu))
    steps = steps_of(results, args.cases, not has_gpu or serves_split())
    if args.dry_run:
        print("\n".join(shlex.join(step.command) for step in steps))
        return 0
    results.mkdir(parents=True, exist_ok=True)
    outcomes = run(steps)
    text = report(gpu, outcomes)
    (results / "checks.md").write_text(text)
    print(text)
    return int(any(outcome.exit_code != 0 for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())

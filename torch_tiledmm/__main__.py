"""Looks inside, measures, runs programs: ``python -m torch_tiledmm info | explain M N K | bench | ladder | run``."""

from __future__ import annotations

import argparse
import dataclasses
import runpy
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from . import direct, mode
from .dispatch import DTYPES, FP8_DTYPES, LAYOUTS, build_info, explain, format_columns


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command. Exits with 2 and a message on stderr for options that make no sense."""
    parser = argparse.ArgumentParser(prog="python -m torch_tiledmm", description="matrix multiplication in tiles")
    commands = parser.add_subparsers(dest="command", required=True)

    info = commands.add_parser("info", help="version, build, what this machine has and what is in use, algorithms")
    info.set_defaults(run=_info)

    explain_ = commands.add_parser("explain", help="what auto picks for a problem, and why")
    explain_.add_argument("m", type=int)
    explain_.add_argument("n", type=int)
    explain_.add_argument("k", type=int)
    explain_.add_argument("--dtype", choices=(*DTYPES, *FP8_DTYPES), default="fp32")
    explain_.add_argument("--b-dtype", choices=(*DTYPES, *FP8_DTYPES), default=None, help="default: that of --dtype")
    explain_.add_argument(
        "--out-dtype", choices=tuple(DTYPES), default=None, help="default: as matmul's, bf16 of 8 bits"
    )
    explain_.add_argument("--batch", type=int, default=0, help="products of a batch; default: a single one")
    explain_.add_argument("--groups", type=int, default=0, help="groups that share m rows, as in grouped_matmul")
    explain_.add_argument("--layout", choices=LAYOUTS, default="NT", help="NT, the default, is F.linear")
    explain_.add_argument(
        "--device", default="cpu", help='"cpu", or a chip as in "cpu:avx2", "cuda:sm_90"; any other word lists them'
    )
    explain_.add_argument("--threads", type=int, default=None, help="default: torch's own number")
    explain_.add_argument("--all", action="store_true", help="show the kernels of other makers' GPUs as well")
    explain_.set_defaults(run=_explain)

    bench = commands.add_parser("bench", help="speed against torch and numpy")
    # The module is imported for its options here and not at the top of the file, so that `info` stays quick.
    from .testing.bench import add_matmul_arguments, output_file

    add_matmul_arguments(bench, default_rows="square")
    bench.add_argument("--plot", type=output_file, default=None, metavar="FILE.png", help="save a chart there")
    bench.set_defaults(run=_bench)

    ladder = commands.add_parser("ladder", help="the rungs of the GPU, counted on any machine or measured")
    from .testing import ladder as ladder_

    ladder_.add_arguments(ladder)
    ladder.set_defaults(run=ladder_.run)

    run = commands.add_parser("run", help="runs a program whose products are computed by this package")
    run.add_argument("--algorithm", default="auto", help="of each product that it serves (default: auto)")
    run.add_argument("--devices", nargs="+", choices=mode.DEVICES, default=list(mode.DEVICES))
    run.add_argument(
        "--cover", nargs="+", choices=mode.COVER + mode.ON_REQUEST, default=list(mode.COVER), help="default: all of it"
    )
    run.add_argument(
        "--report", action="store_true", help="prints at the end, to stderr, what was computed and by what"
    )
    run.add_argument("-m", dest="is_module", action="store_true", help="the program is a module, as for python -m")
    run.add_argument("program", help="a file of Python code")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")

    args = parser.parse_args(arguments)
    if args.command == "run":
        try:
            mode.enable(args.algorithm, devices=args.devices, cover=args.cover)
        except ValueError as error:
            run.error(str(error))
        _run(args)
        return
    try:
        args.run(args)
    except (TypeError, ValueError) as error:
        commands.choices[args.command].error(str(error))


def _info(args: argparse.Namespace) -> None:
    info = build_info()
    print(f"torch_tiledmm {info.version}, compiled by {info.compiler}")
    toolkits = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
    toolkit = next((f"{name} {version}" for name, version in toolkits.items() if version), "no CUDA, no ROCm")
    print(f"torch {torch.__version__}, {toolkit}; calls {'past' if direct.is_here else 'by'} torch.ops")
    print(info.cpu)
    built = [f"{name} ({', '.join(archs)})" for name, archs in info.compiled.items() if name != "cpu"]
    gpus: tuple[object, ...] = ()
    why_none = "torch sees none"
    try:
        gpus = info.gpus
    except RuntimeError as error:
        why_none = f"torch cannot ask them: {str(error).splitlines()[0]}"
    print("\n".join(map(str, gpus)) or f"GPUs: {why_none}; kernels for {', '.join(built) or 'none'}")
    rows: list[tuple[str, ...]] = [("algorithm", "device", "rung", "dtypes", "description")]
    for entry in info.algorithms:
        dtypes = " ".join(entry.dtypes) if entry.available else f"not available: {entry.reason}"
        rows.append((entry.name, entry.device, str(entry.rung or "-"), dtypes, entry.description))
    print(format_columns(rows))


def _explain(args: argparse.Namespace) -> None:
    explanation = explain(
        args.m,
        args.n,
        args.k,
        args.dtype,
        layout=args.layout,
        device=args.device,
        num_threads=args.threads,
        batch=args.batch,
        b_dtype=args.b_dtype,
        out_dtype=args.out_dtype,
        groups=args.groups,
    )
    platform = explanation.device.partition(":")[0]
    own = {entry.name for entry in build_info().algorithms if entry.device == platform}
    shown = tuple(c for c in explanation.candidates if args.all or c.algorithm in own)
    print(dataclasses.replace(explanation, candidates=shown))
    if left_out := len(explanation.candidates) - len(shown):
        print(f"not shown: {left_out} kernels for other makers' GPUs (--all shows them)")


def _bench(args: argparse.Namespace) -> None:
    from .testing.bench import plot_matmul, run_matmul

    results = run_matmul(args)
    if args.plot is not None:
        plot_matmul(results, args.plot)


def _run(args: argparse.Namespace) -> None:
    """Runs a program as Python itself would, while the mode is on."""
    sys.argv = [args.program, *args.arguments]
    try:
        if args.is_module:
            runpy.run_module(args.program, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(args.program).resolve().parent))
            runpy.run_path(args.program, run_name="__main__")
    finally:
        if args.report:
            print(mode.report(), file=sys.stderr)
        mode.disable()


def _run_as_command() -> None:
    """main(), which ends as other Unix tools do where nobody reads its output any more, as in `info | head -1`: without
    a word, by SIGPIPE.
    """
    try:
        try:
            main()
        finally:
            print(end="", flush=True)  # here, since an error of the interpreter's own flush cannot be caught
    except BrokenPipeError:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.raise_signal(signal.SIGPIPE)


if __name__ == "__main__":
    _run_as_command()

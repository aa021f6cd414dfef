"""The fuzzer: cases of the day, and bugs planted into the operators that it finds, shrinks and prints as code.

Planted bugs, each of them found by the check that is for it, shrunk to the size at which it begins, and reproduced by
the printed code, which passes without the bug:

- the last column of a result of three columns or more is dropped: values
- an operand of stride 0 is read wrongly: values
- the sum over k is split in two where m is more than 4: row alone
- the sum over k is split in two in a batch: item alone
- the sum over k is split in two with more than one thread: threads
- every other call splits the sum: second run
- out is written to one element in front of it: memory
- the element in front of an operand is written to: memory
- the strided out gets another order of summation: out
- the gradient of a raises where a and b are 3-D and b needs none: gradients
- the gradient of a weight with a bias is doubled: gradients
- the tangent of the second operand is dropped: tangent
- the process dies where k is more than 6, or the GPU, as HIP says: crash

A seed is drawn each day: TILEDMM_FUZZ_SEED sets it.
"""

import os
import signal
from functools import partial

import pytest
import torch

import torch_tiledmm
from torch_tiledmm.testing import fuzz
from torch_tiledmm.testing.cases import KINDS, MODES, OPS, Outcome, draw_case, run_case

OPERATORS = torch.ops.tiledmm
REAL = {name: getattr(OPERATORS, name) for name in OPS}


@pytest.mark.takes_long
def test_cases_of_the_day():
    seed = int(os.environ.get("TILEDMM_FUZZ_SEED", fuzz.seed_of_today()))
    print(f"TILEDMM_FUZZ_SEED={seed}")
    report = fuzz.fuzz(1000, seed, show=print)
    print(report)
    assert not report.failures, f"seed {seed}:\n" + "\n".join(map(str, report.failures[:5]))


def test_cases_leave_no_hole():
    cases = [draw_case(1, number) for number in range(4000)]
    assert cases[7] == draw_case(1, 7) != draw_case(2, 7)
    assert {case.op for case in cases} == set(OPS)
    assert {case.mode for case in cases} == set(MODES)
    assert {kind for case in cases for _, kind in case.kinds} == set(KINDS)
    for op, name in (("matmul", "b"), ("linear", "weight")):
        ranks = {tuple(len(case.shape(x)) for x in case.operands[:2]) for case in cases if case.op == op}
        assert ranks == {(i, j) for i in range(1, 6) for j in range(1, 6 if name == "b" else 3)}
        assert len({case.needs for case in cases if case.op == op}) == (4 if op == "matmul" else 8)
    names = {entry.name for entry in torch_tiledmm.algorithms("cpu") if entry.available}
    assert {case.algorithm for case in cases} == names
    drawn = fuzz.Report(1)
    for case in cases:
        fuzz.count(drawn.counts, case, Outcome())
    assert set(drawn.counts["strides"]) >= {"permuted", "stepped", "with gaps", "expanded", "overlapping"}
    assert set(drawn.counts["sizes"]) >= {"empty", "up to 16", "up to 64", "up to 128", "up to 512", "up to 8192"}
    assert "ranks: 1x1" in str(drawn)


# --- planted bugs: each takes the place of one operator ---


def in_halves(a, b, algorithm):
    half = a.shape[-1] // 2
    b_halves = (b[:half], b[half:]) if b.dim() == 1 else (b[..., :half, :], b[..., half:, :])
    parts = [
        REAL["matmul"](x, y, algorithm=algorithm) for x, y in zip((a[..., :half], a[..., half:]), b_halves, strict=True)
    ]
    return parts[0] + parts[1]


def split_where(is_split):
    def matmul(a, b, *, algorithm):
        return (in_halves if is_split(a, b) else REAL["matmul"])(a, b, algorithm=algorithm)

    return matmul


def drop_last_column(a, b, *, algorithm):
    out = REAL["matmul"](a, b, algorithm=algorithm)
    return out if b.dim() == 1 or out.shape[-1] < 3 else torch.cat((out[..., :-1], 0 * out[..., -1:]), -1)


def misread_expanded(a, b, *, algorithm):
    is_expanded = any(stride == 0 and size > 1 for stride, size in zip(a.stride(), a.shape, strict=True))
    return REAL["matmul"](a + 1 if is_expanded else a, b, algorithm=algorithm)


def split_every_other_time():
    calls = []

    def is_split(a, b):
        calls.append(1)
        return len(calls) % 2 == 0

    return split_where(is_split)


def write_in_front(a, b, out, *, algorithm):
    REAL["matmul_out"](a, b, out, algorithm=algorithm)
    if out.storage_offset() > 0:
        out.as_strided((1,), (1,), out.storage_offset() - 1).fill_(0)


def split_into_out(a, b, out, *, algorithm):
    out.copy_(in_halves(a, b, algorithm))


def write_beside_operand(a, b, *, algorithm):
    if b.storage_offset() > 0:
        b.as_strided((1,), (1,), b.storage_offset() - 1).fill_(0)
    return REAL["matmul"](a, b, algorithm=algorithm)


def raise_for_a_alone(a, b, *, algorithm):
    def fail(grad):
        raise ValueError("planted")

    out = REAL["matmul"](a, b, algorithm=algorithm)
    if a.dim() == b.dim() == 3 and a.requires_grad and not b.requires_grad:
        out.register_hook(fail)
    return out


def double_weight_grad(input, weight, bias=None, **how):
    if bias is not None and weight.requires_grad:
        weight = 2 * weight - weight.detach()
    return REAL["linear"](input, weight, bias, **how)


def drop_tangent(a, b, *, algorithm):
    b = torch.autograd.forward_ad.unpack_dual(b).primal if torch.autograd.forward_ad._current_level >= 0 else b
    return REAL["matmul"](a, b, algorithm=algorithm)


PLANTED = {
    "last column": ("matmul", drop_last_column, "values", dict(n=3, m=1, k=1)),
    "expanded": ("matmul", misread_expanded, "values", dict(n=1)),
    "m": ("matmul", split_where(lambda a, b: a.dim() > 1 and a.shape[-2] > 4), "row alone", dict(m=5, n=1)),
    "batch": ("matmul", split_where(lambda a, b: a.dim() > 2), "item alone", dict(m=1, n=1)),
    "threads": ("matmul", split_where(lambda a, b: torch.get_num_threads() > 1), "threads", dict(m=1, n=1, batch=())),
    "second run": ("matmul", split_every_other_time(), "second run", dict(m=1, n=1)),
    "in front": ("matmul_out", write_in_front, "memory", dict(m=1, n=1, k=1, batch=())),
    "out": ("matmul_out", split_into_out, "out", dict(m=1, n=1, batch=())),
    "operand": ("matmul", write_beside_operand, "memory", dict(m=1, n=1, k=1)),
    "gradient of a": ("matmul", raise_for_a_alone, "gradients", dict(m=1, n=1, k=1, needs=("a",))),
    "gradient of weight": ("linear", double_weight_grad, "gradients", dict(m=1, n=1, k=1, needs=("weight",))),
    "tangent": ("matmul", drop_tangent, "tangent", dict(m=1, n=1, k=1, needs=("b",))),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bug_is_found_shrunk_and_reproduced(name, monkeypatch):
    op, bug, check, sizes = PLANTED[name]
    mode = "grad" if check == "gradients" else "func_jvp" if check == "tangent" else "values"
    error = "ValueError" if bug is raise_for_a_alone else "AssertionError"
    monkeypatch.setattr(OPERATORS, op, bug)
    for number in range(3000):
        case = draw_case(1, number, modes=(mode,), large_share=0)
        outcome = run_case(case)
        if outcome.what[:2] == (check, error):
            break
    assert outcome.what[:2] == (check, error)
    small = fuzz.shrink(case)
    for field, size in sizes.items():
        assert getattr(small, field) == size, f"{field} of {small}"
    assert (small.algorithm, small.activation) == ("auto", "none")
    code = fuzz.write_code(small, outcome)
    imports = {line.split()[1].split(".")[0] for line in code.splitlines() if line.startswith(("import ", "from "))}
    assert imports <= {"torch", "torch_tiledmm"}
    with pytest.raises((AssertionError, ValueError)) as raised:
        exec(code, {})
    assert type(raised.value).__name__ == outcome.error
    monkeypatch.undo()
    exec(code, {})


def plant_a_crash(error=""):
    """Of the process, or of the GPU with this error."""

    def die(a, b, *, algorithm):
        if a.shape[-1] > 6:
            if error:
                raise RuntimeError(error)
            os.kill(os.getpid(), signal.SIGSEGV)
        return REAL["matmul"](a, b, algorithm=algorithm)

    OPERATORS.matmul = die


@pytest.mark.takes_long
@pytest.mark.parametrize("error", ["", "HIP error: invalid device function"])
def test_a_process_that_dies_is_found_and_another_goes_on(error):
    first = next(i for i in range(99) if dies(draw_case(1, i)))
    last = next(i for i in range(first, first + 99) if not dies(draw_case(1, i)))
    shown = []
    report = fuzz.fuzz(
        last + 1 - first, 1, num_processes=1, first=first, prepare=partial(plant_a_crash, error), show=shown.append
    )
    crashes = [failure for failure in report.failures if failure.outcome.check == "crash"]
    assert [failure.number for failure in crashes] == list(range(first, last))
    assert {failure.outcome.error for failure in crashes} == {"GPU error" if error else "SIGSEGV"}
    assert sum(report.counts["op"].values()) == 1
    assert "a_memory = torch.tensor([" in crashes[0].code and "(1, 7)" in crashes[0].code
    assert f"--seed 1 --case {first}" in shown[0]


def dies(case):
    return case.op != "linear" and case.k > 6


def test_command(capsys, monkeypatch):
    """A failing case ends in exit code 1, a run without one in 0."""
    assert fuzz.main(["--cases", "0"]) == 0
    assert "0 cases, 0 failures" in capsys.readouterr().out
    failure = fuzz.Failure(1, 5, "cpu", Outcome("values", "AssertionError", "planted"))
    monkeypatch.setattr(fuzz, "fuzz", lambda *args, **how: fuzz.Report(1, 1, 1.0, [failure]))
    assert fuzz.main(["--seed", "1", "--case", "5"]) == 1
    assert "failed: values, AssertionError: 1, cases 5" in capsys.readouterr().out

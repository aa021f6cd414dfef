"""Random cases for the operators, each of them plain data that turns into a program.

A case is all that a seed and a number draw: shapes, strides, offsets, batches, values, algorithm, threads, and what is
differentiated and how. `Case.program` writes it as Python code with its checks, `run_case` runs exactly that code, so
that the code printed for a failure is what failed.

Operands lie in memory filled with NaN: a read outside of an operand shows in the result, a write in the memory.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..dispatch import DTYPES, Algorithm, algorithms
from . import gradients, reference

OPS = ("matmul", "matmul_out", "linear")
# values: the result and its properties; the rest: one derivative by one of torch's ways.
MODES = ("values", "grad", "partial_grad", "func_grad", "func_vjp", "func_jvp", "forward_ad")
_TANGENT_MODES = ("func_jvp", "forward_ad")
KINDS = (
    "integers uniform uniform uniform positive zeros wide wide_rows tiny large nonfinite nonfinite_rows".split()
)  # of values
_OVERFLOWING_IN_FP16 = ("wide", "wide_rows", "large")
_MODERATE_KINDS = ("integers", "uniform", "positive", "zeros", "tiny")
TILES = (2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 24, 32, 33, 48, 64, 65, 96, 128, 256, 512)
_INT_DTYPES = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_NUM_LITERALS = 24  # operands of at most so many elements are printed as they are


# --- what a program calls ---


def nans(num_elements: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Memory for an operand."""
    return torch.full((num_elements,), torch.nan, dtype=dtype, device=device)


def fill(memory: Tensor, shape: tuple, strides: tuple, offset: int, kind: str, seed: int) -> Tensor:
    """The memory, with random values of a kind where the view with these strides lies."""
    is_in_view = torch.zeros(memory.numel(), dtype=torch.bool)
    stored = tuple(1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True))
    if 0 not in shape:
        is_in_view.as_strided(stored, strides, offset).fill_(True)
    values = _make_values(memory.numel(), max((1, *shape[-1:])), kind, seed, torch.finfo(memory.dtype))
    return memory.copy_(torch.where(is_in_view, values, torch.nan))


def assert_same_bits(actual: Tensor, expected: Tensor, *what: object) -> None:
    """The sign and the payload of a nan are no part of the promise; `what` is for the message."""
    actual, expected = (torch.where(tensor.isnan(), torch.nan, tensor) for tensor in (actual, expected))
    _assert_same_memory(actual, expected, *what)


def assert_unchanged(memory: Tensor, before: Tensor) -> None:
    """An operand and the memory around it."""
    _assert_same_memory(memory, before)


def assert_only_view_changed(memory: Tensor, view: Tensor) -> None:
    """Around the view are the NaNs of the beginning."""
    expected = nans(memory.numel(), memory.dtype, memory.device)
    expected.as_strided(view.shape, view.stride(), view.storage_offset() - memory.storage_offset()).copy_(view)
    _assert_same_memory(memory, expected)


def _assert_same_memory(actual: Tensor, expected: Tensor, *what: object) -> None:
    assert actual.shape == expected.shape, f"{what} shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    is_same = _bits(actual) == _bits(expected)
    if not is_same.all():
        index = tuple(int(i) for i in (~is_same).nonzero()[0])
        message = f"bits differ at {index}: {actual[index].item()!r}, expected {expected[index].item()!r}"
        raise AssertionError(f"{' '.join(map(str, what))} {message} ({int((~is_same).sum())} of {actual.numel()})")


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(_INT_DTYPES[tensor.element_size()])


def _make_values(count: int, row_length: int, kind: str, seed: int, info: torch.finfo) -> Tensor:
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, size: int = count) -> Tensor:
        return torch.empty(size, dtype=torch.float64).uniform_(low, high, generator=generator)

    def by_row(low: float, high: float) -> Tensor:  # neighbours share a value
        return uniform(low, high, count // row_length + 1).repeat_interleave(row_length)[:count]

    values = uniform(-1, 1)
    if kind == "positive":
        values = values.abs()
    elif kind == "integers":
        values = (values * 4).round()
    elif kind == "zeros":  # of both signs
        values *= uniform(0, 1) < 0.2
    elif kind in ("wide", "wide_rows"):
        values *= (uniform(-8, 8) if kind == "wide" else by_row(-8, 8)).exp2()
    elif kind == "tiny":  # products or operands are denormal
        values *= info.tiny * 2.0 ** (seed % 4)
    elif kind == "large":  # products stay below what the accumulator holds, sums need not fit into fp16
        values *= {torch.float16: 2.0**7, torch.float64: 2.0**500}.get(getattr(torch, info.dtype), 2.0**57)
    elif kind in ("nonfinite", "nonfinite_rows"):
        where = uniform(0, 1) if kind == "nonfinite" else by_row(0, 1) * 4
        values[where < 0.02] = torch.inf
        values[where < 0.01] = -torch.inf
        values[where < 0.003] = torch.nan
    return values


# --- cases ---


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in its memory, whatever its sizes are."""

    order: tuple[int, ...]  # dimensions, innermost first
    step: int = 1  # between neighbours of the innermost one
    gaps: tuple[int, ...] = ()  # for each dimension of the order, elements after it that are skipped; empty: none
    expanded: tuple[int, ...] = ()  # dimensions of stride 0
    is_overlapping: bool = False  # every other element of a row belongs to the next row, too
    before: int = 0  # elements of memory in front and behind
    after: int = 0

    @staticmethod
    def plain(num_dims: int) -> Layout:
        return Layout(tuple(reversed(range(num_dims))))

    def strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        strides, stride = [0] * len(shape), self.step
        for place, dim in enumerate(self.order):
            if dim not in self.expanded:
                strides[dim] = stride
                covered = stride * max(shape[dim], 1) + (self.gaps[place] if self.gaps else 0)
                stride = (covered + 1) // 2 if self.is_overlapping else covered
        return tuple(strides)

    def num_elements(self, shape: tuple[int, ...]) -> int:
        last = sum((size - 1) * stride for size, stride in zip(shape, self.strides(shape), strict=True))
        return self.before + (0 if 0 in shape else last + 1) + self.after

    def simpler(self) -> Iterator[Layout]:
        plain = Layout.plain(len(self.order))
        for name in ("order", "step", "gaps", "expanded", "is_overlapping", "before", "after"):
            if getattr(self, name) != getattr(plain, name):
                yield replace(self, **{name: getattr(plain, name)})


@dataclass(frozen=True)
class Case:
    """Sizes, not shapes: what belongs together stays so when one of them changes."""

    op: str
    mode: str
    device: str
    dtype: str
    algorithm: str
    m: int
    n: int
    k: int
    batch_a: tuple[int, ...]  # of a or input
    batch_b: tuple[int, ...]
    a_is_vector: bool
    b_is_vector: bool  # or weight
    bias: str  # "none", "full", "one", "scalar"
    activation: str
    needs: tuple[str, ...]  # the operands that are differentiated
    threads: int  # for one more run, or for a derivative; the rest has one
    is_tf32: bool
    row: int  # its place modulo m is that of the row computed alone; likewise in the batch
    seed: int
    kinds: tuple[tuple[str, str], ...]  # of values, by operand; uniform where one is not named
    layouts: tuple[tuple[str, Layout], ...]  # by tensor; plain where one is not named
    dtypes: tuple[tuple[str, str], ...] = ()  # by tensor, "out" included, where they are not all `dtype`

    @property
    def operands(self) -> tuple[str, ...]:
        if self.op != "linear":
            return ("a", "b")
        return ("input", "weight") if self.bias == "none" else ("input", "weight", "bias")

    @property
    def tensors(self) -> tuple[str, ...]:
        """The operands, and the gradient or the tangents that are given."""
        if self.mode == "values":
            return self.operands
        if self.mode in _TANGENT_MODES:
            return self.operands + tuple(f"{name}_tangent" for name in self.needs)
        return (*self.operands, "grad")

    def shape(self, name: str) -> tuple[int, ...]:
        name = name.removesuffix("_tangent")
        if name in ("a", "input"):
            return (self.k,) if self.a_is_vector else (*self.batch_a, self.m, self.k)
        if name == "b":
            return (self.k,) if self.b_is_vector else (*self.batch_b, self.k, self.n)
        if name == "weight":
            return (self.k,) if self.b_is_vector else (self.n, self.k)
        if name == "bias":
            return () if self.bias == "scalar" else (self.n if self.bias == "full" and not self.b_is_vector else 1,)
        return (*self.batch, *(() if self.a_is_vector else (self.m,)), *(() if self.b_is_vector else (self.n,)))

    @property
    def batch(self) -> tuple[int, ...]:
        batch_a, batch_b = self.shape("a")[:-2], self.shape("b")[:-2] if self.op != "linear" else ()
        return tuple(torch.broadcast_shapes(batch_a, batch_b))

    def torch_dtype(self, name: str) -> torch.dtype:
        return DTYPES[dict(self.dtypes).get(name, self.dtype)]

    @property
    def _out_dtype(self) -> str:
        """As an argument behind others."""
        return f", out_dtype={self.torch_dtype('out')}" if self.dtypes else ""

    def layout(self, name: str) -> Layout:
        layout, num_dims = dict(self.layouts).get(name), len(self.shape(name))
        if layout is None or len(layout.order) == num_dims:
            return layout or Layout.plain(num_dims)
        return replace(layout, order=Layout.plain(num_dims).order, gaps=(), expanded=())

    # --- the program ---

    def program(self, has_literals: bool = False) -> list[tuple[str, str]]:
        """(what is checked, code) by statements; nothing is checked by what only prepares."""
        code = [("", "torch.set_num_threads(1)")]  # more would make the reference slow
        if self.device == "cuda":
            precision = "tf32" if self.is_tf32 else "ieee"
            code.append(("", f'torch.backends.cuda.matmul.fp32_precision = "{precision}"'))
        for place, name in enumerate(self.tensors):
            code += self._make_tensor(name, self.seed + place, has_literals)
        arguments = ", ".join(self.operands)
        code += [("memory", f"{name}_before = {name}_memory.clone()") for name in self.operands]
        code.append(("", self._compute()))
        code += self._check_values(arguments) if self.mode == "values" else self._check_derivative(arguments)
        return code + [("memory", f"assert_unchanged({name}_memory, {name}_before)") for name in self.operands]

    def _make_tensor(self, name: str, seed: int, has_literals: bool) -> list[tuple[str, str]]:
        shape, layout, dtype = self.shape(name), self.layout(name), self.torch_dtype(name)
        strides, count = layout.strides(shape), layout.num_elements(shape)
        kind = dict(self.kinds).get(name, "uniform")
        if has_literals and count <= _NUM_LITERALS:
            values = fill(nans(count, dtype), shape, strides, layout.before, kind, seed).tolist()
            memory = f'torch.tensor({values}, dtype={dtype}, device="{self.device}")'
        else:
            memory = f'fill(nans({count}, {dtype}, "{self.device}"), {shape}, {strides}, {layout.before}, '
            memory += f'"{kind}", {seed})'
        return [("", f"{name}_memory = {memory}"), ("", f"{name} = {self._view(name, layout, shape, strides)}")]

    @staticmethod
    def _view(name: str, layout: Layout, shape: tuple[int, ...], strides: tuple[int, ...]) -> str:
        start = f"[{layout.before}:]" if layout.before else ""
        return f"{name}_memory{start}.as_strided({shape}, {strides})"

    def _compute(self) -> str:
        how = f'algorithm="{self.algorithm}"'
        if self.op == "linear":
            how += self._out_dtype
            call = f'torch.ops.tiledmm.linear(input, weight, bias, activation="{self.activation}", {how})'
            return f"def compute(input, weight, bias=None):\n    return {call}"
        call = f"def compute(a, b):\n    return torch.ops.tiledmm.matmul(a, b, {how}{self._out_dtype})"
        if self.op == "matmul_out":
            shape, layout = self.shape("out"), self.layout("out")
            strides = layout.strides(shape)
            call += f'\nout_memory = nans({layout.num_elements(shape)}, {self.torch_dtype("out")}, "{self.device}")\n'
            call += f"out = {self._view('out', layout, shape, strides)}\n"
            call += "def compute_out():\n    out_memory.fill_(torch.nan)\n"
            call += f"    torch.ops.tiledmm.matmul_out(a, b, out, {how})\n    return out.clone()"
        return call

    def _check_values(self, arguments: str) -> list[tuple[str, str]]:
        first, *others = self.operands
        call, rest = f"compute({arguments})", ", ".join(others)
        if self.op == "matmul_out":
            call = "compute_out()"
        code = [("", f"result = {call}"), ("values", self._close("result", self._expected_result(arguments)))]
        code.append(("second run", f"assert_same_bits({call}, result)"))
        if self.threads > 1:
            lines = [f"torch.set_num_threads({self.threads})", f"other = {call}", "torch.set_num_threads(1)"]
            code.append(("threads", "\n".join([*lines, "assert_same_bits(other, result)"])))
        if self.op == "matmul_out":
            code.append(("memory", "assert_only_view_changed(out_memory, out)"))
            code.append(("out", f"assert_same_bits(compute({arguments}), result)"))
        if not self.a_is_vector and self.m > 0:
            row = self.row % self.m
            rows, columns = f"..., {row}:{row + 1}, :", "" if self.b_is_vector else ", :"
            alone = f"compute({first}[{rows}], {rest})"
            code.append(("row alone", f"assert_same_bits({alone}, result[..., {row}:{row + 1}{columns}])"))
        if self.batch and 0 not in self.batch:
            index = [self.row % size for size in self.batch]
            operands = [f"{first}{index}", *others]
            if self.op != "linear":
                sizes = [(*self.batch, *self.shape(name)[-2:]) for name in self.operands]
                vectors = (self.a_is_vector, self.b_is_vector)
                operands = [
                    name if is_vector else f"{name}.expand({size}){index}"
                    for name, size, is_vector in zip(self.operands, sizes, vectors, strict=True)
                ]
            code.append(("item alone", f"assert_same_bits(compute({', '.join(operands)}), result{index})"))
        return code

    def _check_derivative(self, arguments: str) -> list[tuple[str, str]]:
        needs = ", ".join(self.needs)
        function = f"lambda {needs}: compute({arguments})"
        tangents = ", ".join(f"{name}_tangent" for name in self.needs)
        if self.mode in ("grad", "partial_grad"):
            leaves = self.needs if self.mode == "grad" else self.operands
            code = [("", f"{name}.requires_grad_()") for name in leaves]
            code.append(("", f"result = compute({arguments})"))
            code.append(("gradients", f"grads = torch.autograd.grad(result, ({needs},), grad)"))
        elif self.mode == "func_vjp":
            code = [("", f"result, pull_back = torch.func.vjp({function}, {needs})")]
            code.append(("gradients", "grads = pull_back(grad)"))
        elif self.mode == "func_grad":
            code = [("", f"result = compute({arguments})")]
            loss = f"lambda {needs}: (compute({arguments}) * grad).sum()"
            places = tuple(range(len(self.needs)))
            code.append(("gradients", f"grads = torch.func.grad({loss}, argnums={places})({needs})"))
        elif self.mode == "func_jvp":
            code = [("tangent", f"result, tangent = torch.func.jvp({function}, ({needs},), ({tangents},))")]
        else:
            duals = [f"torch.autograd.forward_ad.make_dual({name}, {name}_tangent)" for name in self.needs]
            lines = [
                "with torch.autograd.forward_ad.dual_level():",
                f"    dual = ({function})({', '.join(duals)})",
                "    result, tangent = (part.clone() for part in torch.autograd.forward_ad.unpack_dual(dual))",
            ]
            code = [("tangent", "\n".join(lines))]
        if self.threads > 1:
            threads = [("", f"torch.set_num_threads({n})") for n in (self.threads, 1)]
            code = [threads[0], *code, threads[1]]
        code.append(("values", self._close("result", self._expected_result(arguments))))
        what = "linear" if self.op == "linear" else "matmul"
        inputs, how = arguments, ", is_tf32=True" * self.is_tf32
        if self.op == "linear":
            inputs = f'input, weight, {"None" if self.bias == "none" else "bias"}, "{self.activation}"'
        if self.activation == "silu" and self.mode not in ("grad", "partial_grad"):
            how += ", is_slope_rounded=True"
        if self.mode in _TANGENT_MODES:
            names = ("input", "weight", "bias") if self.op == "linear" else self.operands
            given = ", ".join(f"{name}_tangent" if name in self.needs else "None" for name in names)
            code.append(("tangent", self._close("tangent", f"expect_{what}_tangent({inputs}, {given}{how})")))
        else:
            for place, name in enumerate(self.needs):
                expected = f'expect_{what}_grad("{name}", {inputs}, grad{how})'
                code.append(("gradients", self._close(f"grads[{place}]", expected)))
        return code

    def _close(self, actual: str, expected: str) -> str:
        if any(self.layout(name).expanded for name in self.tensors):
            expected = f"of_equal_terms({expected})"
        return f"assert_close({actual}, {expected})"

    def _expected_result(self, arguments: str) -> str:
        activation = f', "{self.activation}"' if self.op == "linear" else ""
        if self.op == "linear":
            bias = "None" if self.bias == "none" else "bias"
            if self.activation != "none" and self.mode in (*_TANGENT_MODES, "func_vjp"):  # the sum is a result itself
                how = ", is_tf32=True" * self.is_tf32
                return f"expect_linear_of_rounded_sum(input, weight, {bias}{activation}{how})"
            # A vector as weight has no dimension that a bias could have.
            arguments = f"input, weight, {'bias.reshape(())' if self.b_is_vector and bias == 'bias' else bias}"
        expected = f"expect_{'linear' if self.op == 'linear' else 'matmul'}({arguments}{activation}{self._out_dtype})"
        if not self.is_tf32:
            return expected
        right = "b" if self.op != "linear" else "weight" if self.b_is_vector else "weight.mT"
        return f"allow_tf32({expected}, {self.operands[0]}, {right}{activation})"


# --- running ---


@dataclass(frozen=True)
class Outcome:
    """How a program ended: right, refused by the algorithm, or failed at a check with an error."""

    check: str = ""  # what was checked, empty: nothing failed
    error: str = ""  # its type
    message: str = ""
    is_refused: bool = False

    @property
    def what(self) -> tuple[str, str, str]:
        """Outcomes of one defect have it in common: the check, the error, and what it says without its numbers."""
        says = "" if self.error == "AssertionError" else re.sub(r"[\d\[\], ]+", " ", self.message)
        return self.check, self.error, says


_HELPERS = {
    helper.__name__: helper
    for helper in (
        assert_only_view_changed,
        assert_same_bits,
        assert_unchanged,
        fill,
        nans,
        gradients.allow_tf32,
        gradients.expect_linear_grad,
        gradients.expect_linear_of_rounded_sum,
        gradients.expect_linear_tangent,
        gradients.expect_matmul_grad,
        gradients.expect_matmul_tangent,
        gradients.of_equal_terms,
        reference.assert_close,
        reference.expect_linear,
        reference.expect_matmul,
    )
}


def imports(code: str) -> str:
    """The import statements that the code of a program needs."""
    called: dict[str, list[str]] = {}
    for name, helper in _HELPERS.items():
        if re.search(rf"\b{name}\(", code):
            called.setdefault(helper.__module__, []).append(name)
    lines = ["import torch", "from torch import inf, nan", "", "import torch_tiledmm"]
    return "\n".join([*lines, *(f"from {module} import {', '.join(names)}" for module, names in called.items())])


def run_case(case: Case, allocate: Callable[..., Tensor] = nans) -> Outcome:
    """Runs the program of the case; the operands' memory comes from `allocate`."""
    program = case.program()
    namespace = {**_HELPERS, "nans": allocate, "torch": torch}
    try:
        exec(compile("\n".join(code for _, code in program), "<case>", "exec"), namespace)
    except NotImplementedError as error:
        if case.algorithm != "auto":
            return Outcome(is_refused=True)
        return _failure(program, error)
    except Exception as error:
        return _failure(program, error)
    return Outcome()


def _failure(program: list[tuple[str, str]], error: Exception) -> Outcome:
    """Which statement of the program raised."""
    trace = error.__traceback__
    assert trace is not None
    while trace.tb_frame.f_code.co_filename != "<case>":
        trace = trace.tb_next
        assert trace is not None  # the program raised
    checks = [check for check, code in program for _ in code.splitlines()]
    return Outcome(checks[trace.tb_lineno - 1] or "call", type(error).__name__, str(error))


# --- drawing ---


def draw_case(
    seed: int, number: int, device: str = "cpu", *, modes: Sequence[str] = MODES, large_share: float = 0.04
) -> Case:
    """The case of this number; every other one is of the mode "values", if that is one of them."""
    rng = random.Random(f"{seed} {number}")
    dtype = list(DTYPES)[number % len(DTYPES)]
    others = [mode for mode in modes if mode != "values"]
    mode = rng.choice(others) if others and (rng.random() < 0.5 or "values" not in modes) else "values"
    op = rng.choice(("matmul", "matmul_out", "linear") if mode == "values" else ("matmul", "matmul", "linear"))
    activation = rng.choice(("none", *reference.ACTIVATIONS)) if op == "linear" else "none"
    batch_a, batch_b = draw_batches(rng)
    m, n, k = draw_sizes(rng, large_share, math.prod(torch.broadcast_shapes(batch_a, batch_b)))
    case = Case(
        op=op,
        mode=mode,
        device=device,
        dtype=dtype,
        # By itself, so that the rest of a case is the same on every machine.
        algorithm=draw_algorithm(random.Random(f"{seed} {number} algorithm"), dtype, device),
        m=m,
        n=n,
        k=k,
        batch_a=batch_a,
        batch_b=batch_b if op != "linear" else (),
        a_is_vector=not batch_a and rng.random() < 0.15,
        b_is_vector=(op == "linear" or not batch_b) and rng.random() < 0.15,
        bias=rng.choice(("none", "full", "full", "one", "scalar")) if op == "linear" else "none",
        activation=activation,
        needs=(),
        threads=rng.choice((1, 1, 1, 2, 3)) if device == "cpu" else 1,
        is_tf32=device == "cuda" and dtype == "fp32" and rng.random() < 0.5,
        row=rng.randrange(10**6),
        seed=rng.randrange(2**31),
        kinds=(),
        layouts=(),
    )
    if mode != "values":
        chosen = rng.randrange(1, 2 ** len(case.operands))
        case = replace(case, needs=tuple(name for i, name in enumerate(case.operands) if chosen >> i & 1))
    kind = draw_kind(rng, case)
    kinds = {name: "uniform" if name not in case.operands else kind for name in case.tensors}
    # torch gives a tangent the strides of its primal, so each element needs memory of its own; its derivative of gelu
    # does not take a gradient that overlaps itself.
    shared: dict[str, tuple[str, ...]] = {name: ("expanded", "overlapping") for name in (*case.operands, "grad")}
    shared.update((name, ()) for name in (case.needs if mode in _TANGENT_MODES else ()))
    if activation.startswith("gelu"):
        shared["grad"] = ("expanded",)
    layouts = {name: draw_layout(rng, case.shape(name), shared.get(name, ())) for name in (*case.tensors, "out")}
    case = replace(case, kinds=tuple(kinds.items()), layouts=tuple(layouts.items()))
    # By itself, as the algorithm above.
    return replace(case, dtypes=draw_dtypes(random.Random(f"{seed} {number} dtypes"), case))


def draw_dtypes(rng: random.Random, case: Case) -> tuple[tuple[str, str], ...]:
    """For every other case of values: dtypes that differ, fp32 beside one of 16 bits."""
    if case.mode != "values" or case.dtype == "fp64" or rng.random() < 0.5:
        return ()
    pair = ("fp32", rng.choice(("fp16", "bf16")) if case.dtype == "fp32" else case.dtype)
    first, second, out = (rng.choice(pair) for _ in range(3))
    if first == second == out:
        return ()
    names = (*case.operands[:2], "out")
    dtypes = dict(zip(names, (first, second, out), strict=True))
    if "bias" in case.operands:
        dtypes["bias"] = rng.choice((first, second, out))
    return tuple(dtypes.items())


def draw_algorithm(rng: random.Random, dtype: str, device: str) -> str:
    names = [entry.name for entry in _algorithms(device) if entry.available and dtype in entry.dtypes]
    return rng.choice(["auto", "auto", *names])


_KNOWN_ALGORITHMS: dict[str, list[Algorithm]] = {}


def _algorithms(device: str) -> list[Algorithm]:
    if device not in _KNOWN_ALGORITHMS:  # asking takes longer than a case
        _KNOWN_ALGORITHMS[device] = algorithms(device)
    return _KNOWN_ALGORITHMS[device]


def draw_kind(rng: random.Random, case: Case) -> str:
    """The kind of the operands' values. What overflows on the way, not in the end, is outside of the bounds."""
    kinds = KINDS
    if case.mode != "values" and case.activation != "none":
        kinds = [kind for kind in KINDS if kind in _MODERATE_KINDS]
    elif case.mode != "values" and case.dtype == "fp16":
        kinds = [kind for kind in KINDS if kind not in _OVERFLOWING_IN_FP16]
    return rng.choice(kinds)


def draw_size(rng: random.Random, most: int) -> int:
    """Mostly next to a multiple of a tile."""
    chance = rng.random()
    if chance < 0.03:
        return 0
    if chance < 0.13:
        return 1
    if chance < 0.4:
        return rng.randrange(2, most + 1)
    tile = rng.choice([tile for tile in TILES if tile <= most])
    return tile * rng.randrange(1, most // tile + 1) + rng.choice((-1, 0, 0, 1))


def draw_large_size(rng: random.Random, low: int, high: int) -> int:
    """Every other one is next to a multiple of 128, where blocks and chunks end."""
    if rng.random() < 0.5:
        return rng.randrange(low, high)
    return 128 * rng.randrange(low // 128 + 1, high // 128) + rng.choice((-1, 0, 1, 2))


def draw_sizes(rng: random.Random, large_share: float, num_items: int) -> tuple[int, int, int]:
    """m, n, k: mostly all of them small, else one of them large."""
    most = rng.choice((9, 20, 50, 100)) if num_items <= 1 else rng.choice((5, 9, 20, 40))
    m, n, k = (draw_size(rng, most) for _ in range(3))
    if rng.random() >= large_share:
        return m, n, k
    chance = rng.random() if num_items <= 1 else rng.uniform(0, 0.86)
    if chance < 0.38:
        return min(m, 20), min(n, 20), draw_large_size(rng, 128, 6000)
    if chance < 0.62:
        return min(m, 20), draw_large_size(rng, 128, 3000), min(k, 64)
    if chance < 0.86:
        return draw_large_size(rng, 128, 3000), min(n, 20), min(k, 64)
    return rng.randrange(100, 300), rng.randrange(100, 300), draw_large_size(rng, 128, 700)


def draw_batches(rng: random.Random) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Batch dimensions of both operands: equal, missing, or of size 1 on either side; now and then of size 0."""
    dims_a, dims_b = (rng.choice((0, 0, 0, 1, 1, 2, 3)) for _ in range(2))
    if rng.random() < 0.3:
        dims_b = dims_a
    sizes = [0 if rng.random() < 0.03 else rng.choice((1, 2, 2, 3, 4)) for _ in range(max(dims_a, dims_b))]
    share_of_ones = rng.choice((0, 0, 0.3))
    ones = [rng.choice("ab") if rng.random() < share_of_ones else "" for _ in sizes]
    batches = []
    for name, num_dims in (("a", dims_a), ("b", dims_b)):
        own = [1 if one == name else size for size, one in zip(sizes, ones, strict=True)]
        batches.append(tuple(own[len(sizes) - num_dims :]))
    return batches[0], batches[1]


def draw_layout(rng: random.Random, shape: tuple[int, ...], shared: tuple[str, ...]) -> Layout:
    """Any order of dimensions, steps, gaps and margins, and the ways of `shared` to read an element several times."""
    num_dims = len(shape)
    styles = ["rows", "rows", "transposed", "transposed", "padded", "stepped", "any_order"]
    style = rng.choice((*styles, *shared))
    order = list(reversed(range(num_dims)))
    if style == "transposed" or (style == "padded" and rng.random() < 0.5):
        order[:2] = reversed(order[:2])
    elif style in ("stepped", "any_order") or (style == "overlapping" and rng.random() < 0.5):
        rng.shuffle(order)
    return Layout(
        order=tuple(order),
        step=rng.choice((2, 3)) if style == "stepped" else 1,
        gaps=tuple(rng.choice((1, 2, 4, 7, 8, 12, 19)) for _ in order) if style in ("padded", "any_order") else (),
        expanded=tuple(dim for dim in order if rng.random() < 0.5) if style == "expanded" else (),
        is_overlapping=style == "overlapping",
        before=rng.choice((0, 0, 1, 3, 8, 17)),
        after=rng.choice((0, 5)),
    )

"""What can compute a product, what auto picks and why; `use_algorithm` gives auto another meaning for a while.

The C++ side decides; this module asks it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .machine import Cpu, Gpu, chip_of, find_cpu, find_gpus

DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "fp16": torch.float16, "bf16": torch.bfloat16}
FP8_DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}  # of operands that have scales
LAYOUTS = ("NN", "NT", "TN", "TT")
PICKS = ("auto", "cpu", "cuda")  # what BuildInfo.pick takes
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
_MOST_ELEMENTS = 2**48  # of an operand: no machine has more


@dataclass(frozen=True)
class Algorithm:
    """One algorithm on one device: ``matmul(a, b, algorithm=name)``."""

    name: str
    device: str
    rung: int  # its place on the teaching ladder; 0: a production kernel, or a name that stands for several kernels
    order: str  # of summation, docs/numerics.md; empty for a name that stands for several kernels
    is_native: bool  # one of those that `native` admits
    dtypes: tuple[str, ...]
    available: bool
    reason: str  # why it is not available, else empty
    description: str

    def __str__(self) -> str:
        state = ", ".join(self.dtypes) if self.available else f"not available: {self.reason}"
        return f"{self.name} ({self.device}): {state}"


@dataclass(frozen=True)
class BuildInfo:
    """What was built and what runs here."""

    version: str
    compiler: str
    compiled: dict[str, tuple[str, ...]]  # per device, the instruction sets that the library has kernels for
    isa: dict[str, str]  # per device, the instruction set in use
    num_cores: int
    algorithms: tuple[Algorithm, ...]
    chips: dict[str, dict]  # GPUs that are known: rates by dtype, from data sheets

    @cached_property
    def cpu(self) -> Cpu:
        """This machine's processor."""
        return find_cpu(self.compiled["cpu"], self.isa["cpu"])

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that torch sees. To read this starts their runtime: RuntimeError where it does not start."""
        return find_gpus(self.compiled, lambda chip: explain(1, 1, 1, "fp32", device=chip).isa)

    def pick(self, device: str) -> Cpu | Gpu:
        """The processor for "cpu", the first GPU that a call can use for "cuda"; "auto": that GPU if there is one.

        Raises ValueError where "cuda" is asked for and cannot be used, and for any other word.
        """
        if device not in PICKS:
            raise ValueError(f"device: got {device!r}, expected one of {', '.join(PICKS)}")
        usable = [gpu for gpu in self.gpus if not gpu.problem] if device != "cpu" else []
        if device == "cuda" and not usable:
            raise ValueError(f"device: got 'cuda', but {'; '.join(map(str, self.gpus)) or 'torch sees no GPU'}")
        return usable[0] if usable else self.cpu


@dataclass(frozen=True)
class Candidate:
    """One algorithm that was considered for a problem."""

    algorithm: str
    legal: bool
    cost_us: float | None  # predicted; None if it is not legal
    order: str  # of summation, docs/numerics.md; kernels of one order give the same bits
    reason: str
    config: dict[str, object] = field(default_factory=dict)  # the tile numbers that its launcher would take


@dataclass(frozen=True)
class Explanation:
    """The candidates for one problem and the choice. ``str()`` is a table."""

    problem: dict[str, object]
    device: str
    isa: str
    modelled_after: str  # a GPU whose constants serve, scaled by the rates of both, where nobody has fitted this one's
    num_threads: int
    candidates: tuple[Candidate, ...]
    choice: str
    order: str  # of the choice: a function of n, k, dtype and chip
    reason: str

    def __str__(self) -> str:
        p = self.problem
        threads = f"{self.num_threads} thread" + "s" * (self.num_threads != 1)
        batch = "" if p["batch"] == 1 else f"batch={p['batch']} "
        batch += f"groups={p['groups']} " if p["groups"] else ""
        dtypes = str(p["dtype"]) if p["dtype"] == p["b_dtype"] else f"{p['dtype']} x {p['b_dtype']}"
        dtypes += f" -> {p['out_dtype']}" * (len({p["dtype"], p["b_dtype"], p["out_dtype"]}) > 1)
        problem = f"{batch}m={p['m']} n={p['n']} k={p['k']} {dtypes} {p['layout']}"
        head = f"{problem} on {self.device} ({self.isa}, {threads})"
        if self.modelled_after:
            head += f"\ncosts are modelled after {self.modelled_after}: nobody has fitted them to this chip"
        rows: list[tuple[str, ...]] = [("", "algorithm", "legal", "cost us", "order", "config", "reason")]
        for c in self.candidates:
            mark = "->" if c.algorithm == self.choice else ""
            cost = "" if c.cost_us is None else f"{c.cost_us:.4g}"
            config = " ".join(f"{key}={value}" for key, value in c.config.items())
            rows.append((mark, c.algorithm, "yes" if c.legal else "no", cost, c.order, config, c.reason))
        return "\n".join([head, format_columns(rows), f"choice: {self.choice or 'none'} ({self.reason})"])


def build_info() -> BuildInfo:
    """The build, the instruction set in use and all algorithms."""
    info = json.loads(torch.ops.tiledmm._info())
    return BuildInfo(
        version=info["version"],
        compiler=info["compiler"],
        compiled={device: tuple(names) for device, names in info["compiled"].items()},
        isa=info["isa"],
        num_cores=info["num_cores"],
        algorithms=tuple(Algorithm(**{**entry, "dtypes": tuple(entry["dtypes"])}) for entry in info["algorithms"]),
        chips={chip["name"]: chip for chip in info["chips"]},
    )


def algorithms(device: str | torch.device | None = None) -> list[Algorithm]:
    """The algorithms of one device, by default of all, with the reason where one is not available here.

    ``device`` is cpu, cuda or hip, also with an index or a chip behind a colon. Where torch is built for ROCm, whose
    devices torch calls cuda, both names mean hip.

    Raises ValueError for a device type that no algorithm knows.
    """
    entries = build_info().algorithms
    if device is None:
        return list(entries)
    device_type = str(device).split(":")[0]
    if device_type == "cuda" and torch.version.hip:
        device_type = "hip"
    known = sorted({entry.device for entry in entries})
    if device_type not in known:
        raise ValueError(f"device: got {str(device)!r}, expected one of {', '.join(known)}")
    return [entry for entry in entries if entry.device == device_type]


# Asked once, as torch.compile cannot trace the question.
_ALGORITHM_NAMES = tuple(dict.fromkeys(entry.name for entry in algorithms()))
_OPERATORS = frozenset(
    name
    for packet in (
        torch.ops.tiledmm.matmul,
        torch.ops.tiledmm.matmul_out,
        torch.ops.tiledmm.addmm,
        torch.ops.tiledmm.linear,
        torch.ops.tiledmm.linear_and_sum,
        torch.ops.tiledmm.gated_linear,
        torch.ops.tiledmm._stacked_gated_linear,
        torch.ops.tiledmm.linear_weight_grads,
        torch.ops.tiledmm.scaled_matmul,
        torch.ops.tiledmm.scaled_grouped_matmul,
        torch.ops.tiledmm._weight_only,
    )
    for name in (packet, packet.default)
)


def check_algorithm(name: str) -> None:
    """Raises ValueError for a name that no device knows."""
    if name not in _ALGORITHM_NAMES:
        raise ValueError(f"algorithm: got {name!r}, expected one of {', '.join(_ALGORITHM_NAMES)}")


class use_algorithm(TorchFunctionMode, ContextDecorator):
    """Context manager and decorator: inside it "auto", which is the default everywhere, means the given algorithm.

    It holds for `matmul`, `linear`, TiledLinear and torch.ops.tiledmm.*, on the thread that entered it. A name that a
    call or a layer gives itself goes first; of nested contexts the innermost holds, and use_algorithm("auto") gives
    back auto. What cannot be served is refused when it is called, with the reason:

        with torch_tiledmm.use_algorithm("native"):
            loss = model(input).sum()
        loss.backward()  # by the same group, too

    A backward pass takes what forward recorded, wherever and on whichever thread it runs; entering a context around
    `backward()` alone changes nothing. Python code that runs in a backward pass is outside of the contexts around it:
    torch.utils.checkpoint, which computes forward anew there, needs
    `context_fn=lambda: (use_algorithm(name), use_algorithm(name))`.

    torch.compile takes part: a function that is called in another context is compiled once more. torch.export and
    torch.jit.trace record the name in force. A context around the call of their program gives a meaning to the "auto"
    that torch.export has recorded; TorchScript and AOTInductor do not see it.

    While the context is entered, each call of a torch function from Python takes some 1 us longer and one of these
    operators some 8 us; compiled code takes no longer.

    Raises:
        ValueError: an algorithm that no device knows.
    """

    # A mode for torch functions, as torch.compile guards those: it needs no state of our own, which it would not see.

    def __init__(self, algorithm: str) -> None:
        super().__init__()
        check_algorithm(algorithm)
        self.algorithm = algorithm
        # A context around this one would replace "auto".
        self._name = "plain_auto" if algorithm == "auto" else algorithm

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _OPERATORS and kwargs.get("algorithm", "auto") == "auto":
            kwargs = {**kwargs, "algorithm": self._name}
        return func(*args, **kwargs)

    def __repr__(self) -> str:
        return f"use_algorithm({self.algorithm!r})"


def explain(
    m: int,
    n: int,
    k: int,
    dtype: str | torch.dtype,
    *,
    layout: str = "NT",
    device: str | torch.device = "cpu",
    num_threads: int | None = None,
    batch: int = 0,
    plans_of: str | None = None,
    b_dtype: str | torch.dtype | None = None,
    out_dtype: str | torch.dtype | None = None,
    groups: int = 0,
) -> Explanation:
    """What auto would pick for an ``m x k`` times ``k x n`` product, and what else it considered.

    ``dtype`` is fp32, fp64, fp16, bf16 or the torch dtype, of A, and of B and the result as well unless ``b_dtype`` and
    ``out_dtype`` say another, as in `matmul`; ``layout`` says for A and for B whether it is stored as written (N) or
    transposed (T), ``F.linear`` is NT; ``device`` is a device of torch (``cpu``, ``cuda``, ``cuda:1``), which means
    what this machine has, or names a chip, as in ``cpu:avx2``, ``cuda:sm_90`` or ``hip:gfx942``, which need not be
    present; ``num_threads`` is torch's by default; ``batch`` counts the products of a batch, 0: a single one;
    ``groups`` counts the groups that share m rows, as in `grouped_matmul`: on a CPU, which computes a product for each,
    that of a mean group is explained, on one thread unless it is large. On GPUs, tf32 is considered where torch's
    fp32_precision allows it. Nothing is computed.

    e4m3 and e5m2 (torch.float8_e4m3fn, torch.float8_e5m2) are dtypes of operands alone. Of A and B, in any mix: the
    product is that of `scaled_matmul`, or of `scaled_grouped_matmul`, with a scale for each row and column, which has
    no batch, and a result in bf16 by default. Of B alone: it is that of a layer of recipe "fp8_weight_only". Where no
    kernel reads 8 bits, the choice is empty, and the reason says what is computed instead.

    Of operands of two dtypes on a GPU these are the kernels that convert as they load. By "auto" the operators convert
    what has 16 bits first: what they compute then is the product in fp32, by "split" where n is at least 256.

    With ``plans_of``, the name of an algorithm, the candidates are not the kernels but the plans of the one that it
    stands for: the tiles and ways to share out the work that its launcher takes, with their predicted times. Their
    names, as ``wgmma:3``, are algorithms for `matmul` and the operators: for this very problem, since others have
    other plans. All give the same bits.

    Raises TypeError for a size that is no integer, ValueError for any other wrong argument.
    """
    num_threads = torch.get_num_threads() if num_threads is None else num_threads
    sizes = {"m": m, "n": n, "k": k, "batch": batch, "groups": groups, "num_threads": num_threads}
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool):
            raise TypeError(f"{name}: got {size!r}, expected an integer")
        least, most = (1, 2**16) if name == "num_threads" else (0, _MOST_ELEMENTS)
        if not least <= size <= most:
            raise ValueError(f"{name}: got {size}, expected an integer from {least} to {most}")
    for name, rows, columns in (("m and k", m, k), ("k and n", k, n), ("m and n", m, n)):
        if max(batch, 1) * max(rows, 1) * max(columns, 1) > _MOST_ELEMENTS:
            given = f"{rows} and {columns}" + f" in a batch of {batch}" * (batch > 1)
            raise ValueError(f"{name}: got {given}, expected at most {_MOST_ELEMENTS} elements")
    if batch and groups:
        raise ValueError(f"groups: got {groups} with a batch of {batch}, expected one of them")
    a_dtype = as_dtype(dtype, DTYPES | FP8_DTYPES)
    own_b_dtype = None if b_dtype is None else as_dtype(b_dtype, DTYPES | FP8_DTYPES)
    if batch and not {a_dtype, own_b_dtype}.isdisjoint(FP8_DTYPES.values()):
        raise ValueError(f"batch: got {batch} with operands of 8 bits, expected 0: scaled_matmul has none")
    if layout not in LAYOUTS:
        raise ValueError(f"layout: got {layout!r}, expected one of {', '.join(LAYOUTS)}")
    if plans_of is not None:
        check_algorithm(plans_of)
    chip = _visible_chip(str(device))
    answer = json.loads(
        torch.ops.tiledmm._explain(
            m,
            n,
            k,
            a_dtype,
            layout,
            chip,
            num_threads,
            batch,
            plans_of or "",
            own_b_dtype,
            None if out_dtype is None else as_dtype(out_dtype),
            groups,
        )
    )
    if "error" in answer:
        raise ValueError(f"device: got {str(device)!r}, {answer['error']}")
    answer["problem"]["layout"] = layout
    answer["candidates"] = tuple(Candidate(**candidate) for candidate in answer["candidates"])
    return Explanation(**answer)


def _visible_chip(device: str) -> str:
    """ "cuda:sm_90" for "cuda", "cuda:0" and the like, by the GPU that torch sees; any other name as it is."""
    device_type, _, index = device.partition(":")
    if device_type not in ("cuda", "hip") or (index and not index.isdecimal()):
        return device
    if int(index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device: got {device!r}, but torch sees no such GPU; a chip can be named, as in cuda:sm_90")
    properties = torch.cuda.get_device_properties(int(index) if index else torch.cuda.current_device())
    return chip_of(properties)


def as_dtype(dtype: str | torch.dtype, accepted: dict[str, torch.dtype] = DTYPES) -> torch.dtype:
    """The torch dtype for one of the names that are accepted or for itself. Raises ValueError for any other."""
    if isinstance(dtype, str) and dtype in accepted:
        return accepted[dtype]
    if isinstance(dtype, torch.dtype) and dtype in accepted.values():
        return dtype
    raise ValueError(f"dtype: got {dtype!r}, expected one of {', '.join(accepted)} or the torch dtype")


def dtype_name(dtype: torch.dtype) -> str:
    """fp32, fp64, fp16 or bf16."""
    return next(name for name, value in DTYPES.items() if value == dtype)


def format_columns(rows: list[tuple[str, ...]]) -> str:
    """Rows of text as aligned columns, the first row being the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])

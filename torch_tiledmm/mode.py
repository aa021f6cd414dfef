"""A mode for the whole process: every product of a program by the kernels of this package (docs/whole_programs.md).

`replace_linear` reaches layers; the mode reaches what torch itself calls: functional code, attention, einsum, other
people's modules, gradients, compiled graphs. csrc/torch/mode*.cpp puts the kernels into torch's dispatch table.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from contextlib import ContextDecorator, ExitStack
from contextvars import Context, ContextVar
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch

from .dispatch import check_algorithm, format_columns

DEVICES = ("cpu", "cuda")
COVER = ("products", "reductions", "functions", "attention", "inductor")
ON_REQUEST = ("decoding",)  # accepted in `cover`, and no part of "all of it"
# Operators whose Inductor decompositions compute products past aten.
_DECOMPOSED = ("mm", "addmm", "bmm", "mv", "dot", "vdot", "addmv")
_INDUCTOR = {
    "shape_padding": False,  # products padded by copies
    "max_autotune": False,  # templates, and long k in parts
    "max_autotune_gemm": False,
    "cpp.weight_prepack": False,  # oneDNN's layers for frozen weights
}
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class _Settings:
    algorithm: str
    devices: tuple[str, ...]
    cover: tuple[str, ...]


@dataclass
class _Block:
    """A `with enabled()` that is open."""

    owner: enabled
    before: _Settings | None  # what was in force when it was opened


class _Process:
    """What is on in this process, and how to take it back."""

    lock = threading.RLock()  # whoever changes something holds it
    settings: _Settings | None = None
    blocks: list[_Block] = []  # in the order in which they were opened
    undo = ExitStack()


def enable(algorithm: str = "auto", *, devices: Iterable[str] = DEVICES, cover: Iterable[str] = COVER) -> None:
    """From here on torch's own functions compute products by the kernels of this package, in all threads:

        torch_tiledmm.enable()
        model(input)  # nn.Linear, matmul, einsum, attention, gradients, compiled code
        print(torch_tiledmm.report())
        torch_tiledmm.disable()

    A call while the mode is on gives it other settings. Call it before other threads compute, and before
    torch.compile compiles: code that is compiled already may hold products of its own.

    Args:
        algorithm: a name of `torch_tiledmm.algorithms(device)`, for each product that it serves; the others take
            "auto". "split" multiplies float32 in parts of 16 bits, which is faster and not less exact.
        devices: of "cpu" and "cuda", which is ROCm's name in torch, too.
        cover: what of a program is covered, by default all of it.
            "products": mm, addmm, bmm, baddbmm, mv, addmv, dot, vdot, _addmm_activation in all forms, on a CPU
            _grouped_mm, and what calls them, for float32, float64, float16 and bfloat16, and _scaled_mm with scales by
            tensor, row or block and _scaled_grouped_mm of groups of rows, for which use_fast_accum changes nothing, as
            well as torch.nn.functional's functions of these names. The rest goes to torch's own kernels.
            "reductions": sums, means, variances and norms of order 1 and 2, and on GPUs running sums, in an order that
            the batch does not change. On GPUs those of 16 bits but running sums are torch's own, which do not vary.
            "functions": on CPUs silu, gelu, sigmoid, softplus, softshrink, mish, elu, pow, rsqrt, exp2, sinh, cosh,
            atan2, atanh, hypot, logaddexp, logaddexp2, igamma, i0e, and add and sub with alpha, with their gradients,
            whose bits in torch depend on an element's place, and softmax and log_softmax, where they depend on elements
            behind a row's, whose share is 0, on the number of columns and, of gradients, on the number of threads.
            "attention": scaled_dot_product_attention leaves out the backends whose bits depend on the batch, unless
            torch.nn.attention.sdpa_kernel asks for one; its gradients keep keys together.
            "inductor": torch.compile leaves products to aten.
            "decoding", on request alone, as in [*COVER, "decoding"]: on GPUs attention of up to 16 queries without
            gradients is two products, faster with long caches. Rows do not depend on the batch; but a token's bits are
            then not those that it has in its whole sequence.

    Raises:
        ValueError: a word that is not accepted.
    """
    settings = _checked(algorithm, devices, cover)
    _warn_of_compiled_code()
    _untraced(_switch_on, settings)


def _checked(algorithm: str, devices: Iterable[str], cover: Iterable[str]) -> _Settings:
    check_algorithm(algorithm)
    words = []
    for name, given, accepted in (("devices", devices, DEVICES), ("cover", cover, COVER + ON_REQUEST)):
        if isinstance(given, str):
            raise ValueError(f"{name}: got {given!r}, expected words in a list, as [{given!r}]")
        words.append(tuple(given))
        if unknown := [word for word in words[-1] if word not in accepted]:
            raise ValueError(f"{name}: got {unknown[0]!r}, expected some of {', '.join(accepted)}")
    return _Settings(algorithm, *words)


def disable() -> None:
    """torch's own kernels compute again; nothing of the mode is left. The counts of `report` stay."""
    _untraced(_apply, None)


def is_enabled() -> bool:
    """Whether the mode is on."""
    return _Process.settings is not None


def settings_in_force() -> dict[str, Any]:
    """Arguments of `enable` that switch on what is on, none where the mode is off."""
    return asdict(_Process.settings) if _Process.settings else {}


class enabled(ContextDecorator):
    """Context manager and decorator: `enable` inside, and what was before afterwards. It holds for all threads.

    Blocks of several threads or tasks may overlap: the one that was opened last is in force until it ends, and so is
    what `enable` or `disable` change in it. A decorated function, generator or coroutine has such a block as its body.

    Args:
        algorithm, devices, cover: as in `enable`.

    Raises:
        ValueError: a word that is not accepted. TypeError: what is decorated is an async generator.
    """

    def __init__(
        self, algorithm: str = "auto", *, devices: Iterable[str] = DEVICES, cover: Iterable[str] = COVER
    ) -> None:
        self._settings = _checked(algorithm, devices, cover)

    def __enter__(self) -> enabled:
        _warn_of_compiled_code()
        _untraced(_open_block, self)
        return self

    def __exit__(self, *exception: object) -> None:
        _untraced(_close_block, self)

    def __call__(self, func: _Function) -> _Function:
        if inspect.isasyncgenfunction(func):
            raise TypeError(f"enabled: got the async generator {func.__name__}; put a `with` block into its body")
        inside: Any = super().__call__(func)
        if inspect.iscoroutinefunction(func):

            @functools.wraps(func)
            async def inside(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await func(*args, **kwargs)

        elif inspect.isgeneratorfunction(func):

            @functools.wraps(func)
            def inside(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return (yield from func(*args, **kwargs))

        return inside  # type: ignore[no-any-return]


def _untraced(function: Callable[..., Any], *arguments: object) -> Any:
    """What changes or asks the process is no part of a graph, so torch.compile calls it in the middle of its code."""
    is_traced = "torch._dynamo" in sys.modules  # importing it takes seconds, which a program may not need
    return (torch.compiler.disable(function) if is_traced else function)(*arguments)


def _warn_of_compiled_code() -> None:
    if _untraced(_has_compiled):
        warnings.warn(
            "torch_tiledmm.enable: what torch.compile has compiled before may hold products of its own; "
            "torch._dynamo.reset() has it compiled anew",
            stacklevel=3,
        )


def _switch_on(settings: _Settings) -> None:
    with _Process.lock:
        if _Process.settings is None:
            torch.ops.tiledmm._clear_mode_counts()
        _apply(settings)


def _open_block(owner: enabled) -> None:
    with _Process.lock:
        block = _Block(owner, _Process.settings)
        _switch_on(owner._settings)
        _Process.blocks.append(block)


def _close_block(owner: enabled) -> None:
    with _Process.lock:
        blocks = _Process.blocks
        place = max(i for i, block in enumerate(blocks) if block.owner is owner)
        before = blocks.pop(place).before
        if place < len(blocks):
            blocks[place].before = before  # the block that was opened on top of it stays in force
        else:
            _apply(before)


def _apply(settings: _Settings | None) -> None:
    with _Process.lock:
        if settings == _Process.settings:
            return  # products of other threads would be torch's own for a moment
        _Process.settings = None
        _Process.undo.close()
        if settings is None:
            return
        groups = [word for word in settings.cover if word != "inductor"]
        with ExitStack() as undo:  # which takes back what was done before something fails
            undo.callback(torch.ops.tiledmm._set_mode, "auto", [], [])
            torch.ops.tiledmm._set_mode(settings.algorithm, list(settings.devices), [*groups, "watched"])
            if "attention" in settings.cover:
                _choose_attention(undo)
            if "inductor" in settings.cover:
                _keep_products_in_aten(undo)
            _Process.undo = undo.pop_all()
        _Process.settings = settings


def _has_compiled() -> bool:
    """Whether torch.compile has compiled anything in this process."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and dynamo.counters["stats"].get("unique_graphs", 0) > 0


def _choose_attention(undo: ExitStack) -> None:
    """Leaves efficient attention and math, which is all that a CPU has then, also where the program forgoes it."""
    backends = torch.backends.cuda  # they hold for the CPU, too
    for is_on, switch, wanted in (
        (backends.flash_sdp_enabled, backends.enable_flash_sdp, False),
        (backends.cudnn_sdp_enabled, backends.enable_cudnn_sdp, False),
        (backends.math_sdp_enabled, backends.enable_math_sdp, True),
    ):
        if is_on() != wanted:
            undo.callback(switch, not wanted)
            switch(wanted)


def _keep_products_in_aten(undo: ExitStack) -> None:
    import torch._inductor.config as config
    import torch._inductor.decomposition as inductor
    import torch._inductor.lowering as lowering

    _set_in_all_threads(config, _INDUCTOR, undo)
    packets = [getattr(torch.ops.aten, name) for name in _DECOMPOSED]
    ops = [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
    for table in (inductor.decompositions, inductor.fast_random_decomps()):
        taken = {op: table.pop(op) for op in ops if op in table}
        undo.callback(table.update, taken)
    # Inductor calls aten where it has neither a decomposition nor code of its own; left to find that out by itself, it
    # raises in programs with CI in their environment.
    for op in ops:
        if op not in lowering.lowerings:
            undo.callback(lowering.lowerings.pop, op, None)
            lowering.make_fallback(op, warn=False)


def _set_in_all_threads(config: Any, settings: dict[str, Any], undo: ExitStack) -> None:
    """Sets what config.patch sets in one thread alone, where torch keeps a setting as a ContextVar. Another one, whose
    default is the new value, takes its place. torch 2.11 keeps the value itself.
    """
    undo.callback(_forget_copies, config)
    for name, value in settings.items():
        entry = config._config[name]
        before = entry.user_override
        undo.callback(setattr, entry, "user_override", before)
        entry.user_override = ContextVar(name, default=value) if isinstance(before, ContextVar) else value
    _forget_copies(config)


def _forget_copies(config: Any) -> None:
    """Drops a config's copies of its settings, of which keys of Inductor's caches are made, in all threads."""
    for name, value in list(vars(config).items()):
        if isinstance(value, ContextVar):
            empty = Context().run(value.get)
            vars(config)[name] = ContextVar(value.name, default=empty)
        elif name == "_is_dirty":  # of torch 2.11
            vars(config)[name] = True


@dataclass(frozen=True)
class Calls:
    """Calls of one operator of aten on one device."""

    device: str
    operator: str
    by: str  # the kernel that computed them; where torch's did, the reason
    count: int


@dataclass(frozen=True)
class Report:
    """What the mode did since it was switched on. ``str()`` is a table."""

    served: tuple[Calls, ...]
    left: tuple[Calls, ...]  # to torch's own kernels
    may_vary: tuple[str, ...]  # what of this program may still give a row other bits in another batch

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("device", "operator", "calls", "by")]
        rows += [(c.device, c.operator, str(c.count), c.by) for c in self.served]
        rows += [(c.device, c.operator, str(c.count), f"torch: {c.by}") for c in self.left]
        vary = [f"- {line}" for line in self.may_vary] or ["nothing that was seen"]
        return "\n".join([format_columns(rows), "may vary with the batch:", *vary])


_DOES_NOT_VARY = "torch's own does not vary"  # as csrc/torch/mode.h says it


def report() -> Report:
    """What was computed since `enable`, by which kernel, what torch's own kernels computed and why, and what of this
    program may still vary with the batch. A product that a CUDA graph replays is counted once, when it is captured.
    """
    return _untraced(_report)  # type: ignore[no-any-return]


def _report() -> Report:
    served: list[Calls] = []
    left: list[Calls] = []
    for line in torch.ops.tiledmm._mode_counts().splitlines():
        device, operator, kind, by, count = line.split("\t")
        (served if kind == "served" else left).append(Calls(device, operator, by, int(count)))
    may_vary = [f"{c.operator} on {c.device}, {c.count} calls: {c.by}" for c in left if c.by != _DOES_NOT_VARY]
    settings = _Process.settings
    if settings:
        may_vary += [f"{word}: not covered" for word in COVER if word not in settings.cover]
    if _has_compiled():
        may_vary.append("compiled code: its sums and functions of each element are Inductor's own")
    return Report(tuple(served), tuple(left), tuple(may_vary))

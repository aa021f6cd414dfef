"""A mode for the whole process: every product of a program by the kernels of this package (docs/whole_programs.md).

`replace_linear` reaches layers; the mode reaches what torch itself calls: functional code, attention, einsum, other
people's modules, gradients, compiled graphs. csrc/torch/mode*.cpp puts the kernels into torch's dispatch table.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from contextlib import ContextDecorator
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class _Settings:
    algorithm: str
    devices: tuple[str, ...]
    cover: tuple[str, ...]


class _Process:
    """What is on in this process, and how to take it back."""

    settings: _Settings | None = None
    undo: list[Any] = []


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
            "functions": on CPUs silu, gelu, sigmoid, softplus, mish, elu, pow, rsqrt, exp2, sinh, cosh, atan2 and hypot
            with their gradients, whose bits in torch depend on an element's place, and softmax and log_softmax, where
            they depend on elements behind a row's, whose share is 0, and on the number of columns.
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
    if _Process.settings is None:
        torch.ops.tiledmm._clear_mode_counts()
    if _has_compiled():
        warnings.warn(
            "torch_tiledmm.enable: what torch.compile has compiled before may hold products of its own; "
            "torch._dynamo.reset() has it compiled anew",
            stacklevel=2,
        )
    _apply(settings)


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
    _apply(None)


def is_enabled() -> bool:
    """Whether the mode is on."""
    return _Process.settings is not None


class enabled(ContextDecorator):
    """Context manager and decorator: `enable` inside, and what was before afterwards. It holds for all threads."""

    def __init__(
        self, algorithm: str = "auto", *, devices: Iterable[str] = DEVICES, cover: Iterable[str] = COVER
    ) -> None:
        self._settings = _checked(algorithm, devices, cover)
        self._before: list[_Settings | None] = []

    def __enter__(self) -> enabled:
        before = _Process.settings
        own = self._settings
        enable(own.algorithm, devices=own.devices, cover=own.cover)
        self._before.append(before)
        return self

    def __exit__(self, *exception: object) -> None:
        _apply(self._before.pop())


def _apply(settings: _Settings | None) -> None:
    while _Process.undo:
        _Process.undo.pop()()
    torch.ops.tiledmm._set_mode("auto", [], [])
    _Process.settings = None
    if settings is None:
        return
    groups = [word for word in settings.cover if word != "inductor"]
    torch.ops.tiledmm._set_mode(settings.algorithm, list(settings.devices), [*groups, "watched"])
    _Process.settings = settings
    if "attention" in settings.cover:
        _choose_attention()
    if "inductor" in settings.cover:
        _keep_products_in_aten()


def _has_compiled() -> bool:
    """Whether torch.compile has compiled anything in this process."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and dynamo.counters["stats"].get("unique_graphs", 0) > 0


def _choose_attention() -> None:
    """Leaves efficient attention and math, which is all that a CPU has then, also where the program forgoes it."""
    backends = torch.backends.cuda  # they hold for the CPU, too
    for is_on, switch, wanted in (
        (backends.flash_sdp_enabled, backends.enable_flash_sdp, False),
        (backends.cudnn_sdp_enabled, backends.enable_cudnn_sdp, False),
        (backends.math_sdp_enabled, backends.enable_math_sdp, True),
    ):
        if is_on() != wanted:
            switch(wanted)
            _Process.undo.append(lambda switch=switch, before=not wanted: switch(before))


def _keep_products_in_aten() -> None:
    import torch._inductor.config as config
    import torch._inductor.decomposition as inductor
    import torch._inductor.lowering as lowering

    patch = config.patch(_INDUCTOR)
    patch.__enter__()
    _Process.undo.append(lambda: patch.__exit__(None, None, None))
    packets = [getattr(torch.ops.aten, name) for name in _DECOMPOSED]
    ops = [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
    for table in (inductor.decompositions, inductor.fast_random_decomps()):
        taken = {op: table.pop(op) for op in ops if op in table}
        _Process.undo.append(lambda table=table, taken=taken: table.update(taken))
    # Inductor calls aten where it has neither a decomposition nor code of its own; left to find that out by itself, it
    # raises in programs with CI in their environment.
    for op in ops:
        if op not in lowering.lowerings:
            lowering.make_fallback(op, warn=False)
            _Process.undo.append(lambda op=op: lowering.lowerings.pop(op, None))


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

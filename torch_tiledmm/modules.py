"""TiledLinear, a drop-in for nn.Linear, and the swap of a model's linear layers in place."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .dispatch import ACTIVATIONS, DTYPES, check_algorithm
from .ops import linear

_ATTRIBUTES = ("algorithm", "activation")


class TiledLinear(nn.Linear):
    """nn.Linear on tiled matmul; parameters, initialisation and state_dict are the same, print shows the class.

    Shapes: input (..., in_features), weight (out_features, in_features), bias (out_features,), output
    (..., out_features). Dtypes: float32, float64, float16, bfloat16. Its call raises what `torch_tiledmm.linear` does.

    Args:
        in_features, out_features, bias, device, dtype: as in nn.Linear.
        algorithm: as in `torch_tiledmm.linear`, for any device; what the layer's own cannot serve is refused when it
            is called.
        activation: as in `torch_tiledmm.linear`.

    The last two are attributes and may be changed at any time; print shows what is not the default. They are pickled,
    and no part of the state_dict.

    Raises:
        ValueError: an algorithm or an activation that is not known.
    """

    # Of layers that no constructor of this class has made: `replace_linear` changes the class of those that exist, and
    # pickles may be older than the attributes.
    algorithm: str = "auto"
    activation: str = "none"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        algorithm: str = "auto",
        activation: str = "none",
    ) -> None:
        check_algorithm(algorithm)
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation: got {activation!r}, expected one of {', '.join(ACTIVATIONS)}")
        super().__init__(in_features, out_features, bias, device, dtype)
        self.algorithm = algorithm
        self.activation = activation

    @classmethod
    def from_linear(cls, layer: nn.Linear, *, algorithm: str = "auto", activation: str = "none") -> TiledLinear:
        """A new layer that shares weight and bias with `layer` and has its training flag.

        Hooks and other attributes are not carried over, nor is the activation of a TiledLinear; `replace_linear`
        keeps the layer itself.

        Raises:
            TypeError: `layer` is not an nn.Linear, has a `forward` of its own, or cannot be tiled.
            ValueError: an algorithm or an activation that is not known.
        """
        if not isinstance(layer, nn.Linear) or type(layer).forward not in (nn.Linear.forward, TiledLinear.forward):
            raise TypeError(f"layer: got a {type(layer).__name__}, expected a torch.nn.Linear with the forward of that")
        if reason := _obstacle(layer):
            raise TypeError(f"layer: got a {type(layer).__name__} that cannot be tiled: {reason}")
        tiled = cls(
            layer.in_features, layer.out_features, bias=False, device="meta", algorithm=algorithm, activation=activation
        )
        tiled.weight, tiled.bias = layer.weight, layer.bias
        return tiled.train(layer.training)

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias, activation=self.activation, algorithm=self.algorithm)

    def extra_repr(self) -> str:
        names = [name for name in _ATTRIBUTES if getattr(self, name) != getattr(TiledLinear, name)]
        return ", ".join([super().extra_repr(), *(f"{name}={getattr(self, name)!r}" for name in names)])


@dataclass(frozen=True, repr=False)
class LinearSwap:
    """What `replace_linear` or `restore_linear` did, by exact names; "" is the model itself."""

    replaced: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)  # (name, reason)
    warnings: list[str] = field(default_factory=list)  # where a replaced layer is bypassed

    def __repr__(self) -> str:
        lines = [f"replaced {len(self.replaced)}: {_listed(self.replaced)}"]
        for reason in dict.fromkeys(reason for _, reason in self.skipped):
            names = [name for name, own_reason in self.skipped if own_reason == reason]
            lines.append(f"skipped {len(names)}: {_listed(names)} ({reason})")
        lines += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)


def replace_linear(
    model: nn.Module,
    *,
    algorithm: str = "auto",
    module_filter_fn: Callable[[nn.Module, str], bool] | None = None,
) -> LinearSwap:
    """Turns the linear layers of `model` into TiledLinear, in place.

    A layer stays the same object and only its class changes, so parameters, tied weights, hooks, optimiser
    state, training flag, dtype and device are untouched.

    Args:
        model: any module, also a linear layer itself. A layer that occurs twice is handled once, by its first
            name.
        algorithm: the attribute of each layer that is replaced. For a while, or for layers that are tiled already,
            there is `torch_tiledmm.use_algorithm`.
        module_filter_fn: called as (module, fully qualified name) for each nn.Linear and subclass of it; True
            replaces. The default takes `type(module) is nn.Linear`. A subclass that is taken keeps its
            methods: TiledLinear is put between it and nn.Linear, so in a `forward` of its own
            `super().forward(input)` is tiled.

    Returns:
        The names replaced, the names skipped with the reason, and warnings where a replaced layer may be
        bypassed: by a `forward` of its own, in nn.MultiheadAttention, and in eval mode in
        nn.TransformerEncoderLayer, which read weights instead of calling layers. The warnings are issued as
        UserWarning, too.

    Raises:
        TypeError: `model` is not a module.
        ValueError: an algorithm that is not known.
    """
    _check_module("replace_linear", model)
    check_algorithm(algorithm)
    swap = LinearSwap()
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        reason = _reason_to_keep(module) or _refusal(module, name, module_filter_fn)
        if reason:
            swap.skipped.append((name, reason))
        else:
            module.__class__ = _tiled_class(type(module))  # type: ignore[arg-type]  # mypy: a class is not Hashable
            if algorithm != "auto":
                vars(module)["algorithm"] = algorithm
            swap.replaced.append(name)
    for name, module in model.named_modules():
        swap.warnings.extend(f"{name or 'the model itself'} {bypass}" for bypass in _bypasses(module))
    for warning in swap.warnings:
        warnings.warn(f"replace_linear: {warning}", stacklevel=2)
    return swap


def restore_linear(model: nn.Module) -> LinearSwap:
    """Undoes `replace_linear`: every replaced layer has its former class again.

    What was made as TiledLinear becomes nn.Linear.

    Returns:
        The names replaced; skipped are layers with an activation, which nn.Linear cannot do, and those whose class was
        made from TiledLinear by somebody else.

    Raises:
        TypeError: `model` is not a module.
    """
    _check_module("restore_linear", model)
    swap = LinearSwap()
    for name, module in model.named_modules():
        if not isinstance(module, TiledLinear):
            continue
        former_class = nn.Linear if type(module) is TiledLinear else vars(type(module)).get("_former_class")
        if former_class is None:
            swap.skipped.append((name, f"{type(module).__name__} was made from TiledLinear, undo that first"))
        elif module.activation != "none":
            swap.skipped.append(
                (name, f"its activation is {module.activation!r}, which {former_class.__name__} has not")
            )
        else:
            module.__class__ = former_class  # type: ignore[assignment]
            for attribute in _ATTRIBUTES:
                vars(module).pop(attribute, None)
            swap.replaced.append(name)
    return swap


@functools.cache
def _tiled_class(former_class: type[nn.Linear]) -> type[TiledLinear]:
    """TiledLinear, or for a subclass of nn.Linear: that class with TiledLinear between it and nn.Linear."""
    if former_class is nn.Linear:
        return TiledLinear

    # pickle finds a class by its name, and this one has none.
    def reduce(module: nn.Module, protocol: int) -> tuple:
        state = former_class.__reduce_ex__(module, 2)[2:]
        return (_new_tiled, (former_class,), *state)

    namespace = {"_former_class": former_class, "__module__": __name__, "__reduce_ex__": reduce}
    return type(f"Tiled{former_class.__name__}", (former_class, TiledLinear), namespace)


def _new_tiled(former_class: type[nn.Linear]) -> TiledLinear:
    tiled_class: type[TiledLinear] = _tiled_class(former_class)  # type: ignore[arg-type]
    return tiled_class.__new__(tiled_class)


def _reason_to_keep(module: nn.Linear) -> str:
    """Why a layer cannot be replaced, whatever the filter says; empty if it can."""
    if isinstance(module, TiledLinear):
        return "already tiled"
    for attribute in _ATTRIBUTES:
        if hasattr(module, attribute):
            return f"it has an attribute {attribute!r} of its own"
    return _obstacle(module)


def _obstacle(module: nn.Linear) -> str:
    """Why the operator cannot compute what a layer computes; empty if it can."""
    if is_parametrized(module):
        return "parametrized; replace first, then parametrize"
    if isinstance(module, LazyModuleMixin):
        return "lazy; run the model once first"
    dtensor = sys.modules.get("torch.distributed.tensor")
    if is_traceable_wrapper_subclass(module.weight) and not (dtensor and isinstance(module.weight, dtensor.DTensor)):
        return f"its weight is a {type(module.weight).__name__}, which has products of its own"
    if module.weight.dtype not in DTYPES.values():
        return f"{module.weight.dtype} is not supported"
    return ""


def _refusal(module: nn.Linear, name: str, module_filter_fn: Callable[[nn.Module, str], bool] | None) -> str:
    if module_filter_fn is not None:
        return "" if module_filter_fn(module, name) else "module_filter_fn said no"
    return "" if type(module) is nn.Linear else f"{type(module).__name__} is a subclass of nn.Linear"


def _bypasses(module: nn.Module) -> Iterator[str]:
    """How `module` gets by without calling TiledLinear.forward of itself or of its children."""

    def tiled(*children: str) -> str:
        return " and ".join(name for name in children if isinstance(getattr(module, name, None), TiledLinear))

    if isinstance(module, TiledLinear) and type(module).forward is not TiledLinear.forward:
        yield f"({type(module).__name__}) has its own forward: tiled is only what it leaves to super().forward"
    if isinstance(module, nn.MultiheadAttention) and tiled("out_proj"):
        yield "(nn.MultiheadAttention) never calls out_proj, it reads the weight"
    if isinstance(module, nn.TransformerEncoderLayer) and tiled("linear1", "linear2"):
        yield (
            f"(nn.TransformerEncoderLayer) does not call {tiled('linear1', 'linear2')} in eval mode without "
            "gradients: its fast path reads the weights; torch.backends.mha.set_fastpath_enabled(False) "
            "switches that off"
        )


def _check_module(function: str, model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"{function}: model is a {type(model).__name__}; accepted is a torch.nn.Module")


def _listed(names: list[str]) -> str:
    return ", ".join(name or "the model itself" for name in names) or "none"

"""TiledLinear, a drop-in for nn.Linear, and the swap of a model's linear layers in place."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized

from .dispatch import ACTIVATIONS, DTYPES, check_algorithm
from .fp8 import check_precision, fp8_linear
from .ops import has_own_products, linear

_ATTRIBUTES = ("algorithm", "activation", "out_dtype", "precision", "weight_grad")
# Where a layer may hold the forward of its class, bound to itself: accelerate's hooks keep it in the second while they
# are on the layer, and leave it in the first when they go.
_PLACES_OF_FORWARD = ("forward", "_old_forward")
# What nn.Linear computes, unless somebody puts another function there.
_FORWARD = nn.Linear.forward


class TiledLinear(nn.Linear):
    """nn.Linear on tiled matmul; parameters, initialisation and state_dict are the same, print shows the class.

    Shapes: input (..., in_features), weight (out_features, in_features), bias (out_features,), output
    (..., out_features). Dtypes: float32, float64, float16, bfloat16. Its call raises what `torch_tiledmm.linear` does.

    Args:
        in_features, out_features, bias, device, dtype: as in nn.Linear.
        algorithm: as in `torch_tiledmm.linear`, for any device; what the layer's own cannot serve is refused when it
            is called.
        activation, out_dtype: as in `torch_tiledmm.linear`.
        precision: None, or how operands are rounded to float8_e4m3fn whenever the layer is called: "fp8_row" with a
            scale for each row of the input and of the weight, "fp8_block" with one for each 1 x 128 of the input and
            each 128 x 128 of the weight. Products are those of `torch_tiledmm.scaled_matmul`; the input's gradient is
            such a product, too. Parameters keep their dtype: float32, float16 or bfloat16, also under autocast.
        weight_grad: with a precision, "wide" for a weight's gradient of operands that are not rounded, or "fp8".

    Of a row, the bits of the result and of the input's gradient do not depend on the batch with a precision either.
    Gradients are computed as if rounding had derivative 1. They cannot be differentiated again: NotImplementedError.

    The last five are attributes and may be changed at any time; print shows what is not the default. They are pickled,
    and no part of the state_dict.

    Raises:
        ValueError: an algorithm, an activation, a precision or a weight_grad that is not known.
    """

    # Of layers that no constructor of this class has made: `replace_linear` changes the class of those that exist, and
    # pickles may be older than the attributes.
    algorithm = "auto"
    activation = "none"
    out_dtype: torch.dtype | None = None
    precision: str | None = None
    weight_grad = "wide"
    __constants__ = [*nn.Linear.__constants__, *_ATTRIBUTES]  # what TorchScript sees of a class

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
        out_dtype: torch.dtype | None = None,
        precision: str | None = None,
        weight_grad: str = "wide",
    ) -> None:
        check_algorithm(algorithm)
        check_precision(precision, weight_grad)
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation: got {activation!r}, expected one of {', '.join(ACTIVATIONS)}")
        super().__init__(in_features, out_features, bias, device, dtype)
        self.algorithm = algorithm
        self.activation = activation
        self.out_dtype = out_dtype
        self.precision = precision
        self.weight_grad = weight_grad

    @classmethod
    def from_linear(
        cls,
        layer: nn.Linear,
        *,
        algorithm: str = "auto",
        activation: str = "none",
        precision: str | None = None,
        weight_grad: str = "wide",
    ) -> TiledLinear:
        """A new layer that shares weight and bias with `layer` and has its training flag.

        Hooks and other attributes are not carried over, nor is the activation of a TiledLinear; `replace_linear`
        keeps the layer itself.

        Raises:
            TypeError: `layer` is not an nn.Linear, has a `forward` of its own, in its class or on itself as a hook of
                accelerate puts it there, or cannot be tiled.
            ValueError: an algorithm, an activation, a precision or a weight_grad that is not known.
        """
        if not isinstance(layer, nn.Linear) or type(layer).forward not in (nn.Linear.forward, TiledLinear.forward):
            raise TypeError(f"layer: got a {type(layer).__name__}, expected a torch.nn.Linear with the forward of that")
        reason = obstacle(layer)
        if not _is_forward_of_class(layer, vars(layer).get("forward")):
            reason = "a forward was put on it, which the new layer would not have; remove that first"
        elif not reason and "weight" not in layer._parameters:
            reason = "its weight is no parameter; make it one first, as torch.nn.utils.prune.remove does"
        if reason:
            raise TypeError(f"layer: got a {type(layer).__name__} that cannot be tiled: {reason}")
        tiled = cls(
            layer.in_features,
            layer.out_features,
            bias=False,
            device="meta",
            algorithm=algorithm,
            activation=activation,
            precision=precision,
            weight_grad=weight_grad,
        )
        tiled.weight, tiled.bias = layer.weight, layer.bias
        return tiled.train(layer.training)

    def __setattr__(self, name: str, value: Any) -> None:
        # nn.Module would keep a module among its children, and the layer would go on with the activation that it has.
        if name in _ATTRIBUTES and isinstance(value, nn.Module):
            raise TypeError(f"{name}: got the module {type(value).__name__}, expected a name, for example 'relu'")
        super().__setattr__(name, value)

    def forward(self, input: Tensor) -> Tensor:
        if self.precision is None:
            return linear(
                input,
                self.weight,
                self.bias,
                activation=self.activation,
                algorithm=self.algorithm,
                out_dtype=self.out_dtype,
            )
        return fp8_linear(
            input,
            self.weight,
            self.bias,
            precision=self.precision,
            weight_grad=self.weight_grad,
            activation=self.activation,
            algorithm=self.algorithm,
            out_dtype=self.out_dtype,
        )

    def extra_repr(self) -> str:
        return TiledLinear._repr_of(self)

    def _repr_of(self, without: str = "") -> str:
        # Also of a layer that was restored: torchao's layers keep the extra_repr that they had.
        values = [(name, getattr(self, name, getattr(TiledLinear, name))) for name in _ATTRIBUTES if name != without]
        shown = [f"{name}={value!r}" for name, value in values if value != getattr(TiledLinear, name)]
        return ", ".join([nn.Linear.extra_repr(self), *shown])


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
    precision: str | None = None,
    weight_grad: str = "wide",
    module_filter_fn: Callable[[nn.Module, str], bool] | None = None,
) -> LinearSwap:
    """Turns the linear layers of `model` into TiledLinear, in place.

    A layer stays the same object and only its class changes, so parameters, tied weights, hooks, optimiser
    state, training flag, dtype and device are untouched. Under a hook of accelerate, the forward that the hook calls
    becomes that of TiledLinear, too. Skipped are layers on which a `forward` was put in another way: it would be called
    in the place of ours.

    Args:
        model: any module, also a linear layer itself. A layer that occurs twice is handled once, by its first
            name.
        algorithm: the attribute of each layer that is replaced. For a while, or for layers that are tiled already,
            there is `torch_tiledmm.use_algorithm`.
        precision, weight_grad: attributes of each layer that is replaced, see `TiledLinear`. A model's last layer, and
            small ones, often are better left out of it, by the filter and a second call.
        module_filter_fn: called as (module, fully qualified name) for each nn.Linear and subclass of it; True
            replaces. The default takes `type(module) is nn.Linear`. A subclass that is taken keeps its
            methods: TiledLinear is put between it and nn.Linear, so in a `forward` of its own
            `super().forward(input)` is tiled.

    Returns:
        The names replaced, the names skipped with the reason, and warnings where a replaced layer may be
        bypassed: by a `forward` or `__call__` of its class, in nn.MultiheadAttention, and in eval mode in
        nn.TransformerEncoderLayer, which read weights instead of calling layers. The warnings are issued as
        UserWarning, too. Listed as skipped are also transformers' Conv1D and its experts, which are no nn.Linear.

    Raises:
        TypeError: `model` is not a module.
        ValueError: an algorithm, a precision or a weight_grad that is not known.
    """
    _check_module("replace_linear", model)
    check_algorithm(algorithm)
    check_precision(precision, weight_grad)
    attributes = {"algorithm": algorithm, "precision": precision, "weight_grad": weight_grad}
    swap = LinearSwap()
    conv1d = getattr(sys.modules.get("transformers.pytorch_utils"), "Conv1D", ())
    for name, module in model.named_modules():
        if isinstance(module, conv1d):
            swap.skipped.append((name, "Conv1D is no nn.Linear: put one with the transposed weight there first"))
        if hasattr(module, "has_gate") and "down_proj" in vars(module)["_parameters"]:  # transformers' experts
            reached_by = "torch_tiledmm.transformers.register() and model.set_experts_implementation('tiledmm')"
            swap.skipped.append((name, f"experts are no nn.Linear: reached by {reached_by}"))
        if not isinstance(module, nn.Linear):
            continue
        reason = _reason_to_keep(module) or _refusal(module, name, module_filter_fn)
        if not reason and precision is not None and module.weight.dtype == torch.float64:
            reason = f"{module.weight.dtype} has no precision {precision!r}"
        if reason:
            swap.skipped.append((name, reason))
        else:
            _change_class(module, _tiled_class(type(module)))  # type: ignore[arg-type]  # mypy: a class is not Hashable
            changed = {key: value for key, value in attributes.items() if value != getattr(TiledLinear, key)}
            vars(module).update(changed)
            swap.replaced.append(name)
    for name, module in model.named_modules():
        swap.warnings.extend(f"{name or 'the model itself'} {bypass}" for bypass in _bypasses(module))
    for warning in swap.warnings:
        warnings.warn(f"replace_linear: {warning}", stacklevel=2)
    return swap


def restore_linear(model: nn.Module) -> LinearSwap:
    """Undoes `replace_linear` and `quantize_linear`: every replaced layer has its former class again.

    What was made as TiledLinear becomes nn.Linear, and what was quantised what it was before, see `quantize_linear`.

    Returns:
        The names replaced; skipped are layers with an activation or an out_dtype, which nn.Linear cannot do, those
        whose class was made from TiledLinear by somebody else, and those on which somebody put a `forward`, which may
        call ours. Hooks of accelerate stay, and may go before or after.

    Raises:
        TypeError: `model` is not a module.
    """
    _check_module("restore_linear", model)
    swap = LinearSwap()
    for name, module in model.named_modules():
        if not isinstance(module, TiledLinear):
            continue
        restore = _restore_of(module)
        former_class = nn.Linear if type(module) is TiledLinear or restore else vars(type(module)).get("_former_class")
        if former_class is None:
            swap.skipped.append((name, f"{type(module).__name__} was made from TiledLinear, undo that first"))
        elif _is_bypassed(module):
            swap.skipped.append((name, "a forward was put on it, which may call TiledLinear's; remove that first"))
        elif restore:
            restore(module)
            swap.replaced.append(name)
        elif module.activation != "none":
            swap.skipped.append(
                (name, f"its activation is {module.activation!r}, which {former_class.__name__} has not")
            )
        elif module.out_dtype is not None:
            swap.skipped.append((name, f"its out_dtype is {module.out_dtype}, which {former_class.__name__} has not"))
        else:
            _change_class(module, former_class)
            for attribute in _ATTRIBUTES:
                vars(module).pop(attribute, None)
            swap.replaced.append(name)
    return swap


def _change_class(module: nn.Linear, new_class: type[nn.Linear]) -> None:
    """Gives a layer another class, and the forward of that where it holds the one of its class."""
    own = vars(module)
    held = [name for name in _PLACES_OF_FORWARD if name in own and _is_forward_of_class(module, own[name])]
    module.__class__ = new_class
    own.update((name, MethodType(new_class.forward, module)) for name in held)


def _is_forward_of_class(module: nn.Linear, forward: object) -> bool:
    """Whether to call `forward`, an attribute of the layer itself or None, is to call that of its class."""
    if forward is None:
        return True
    return isinstance(forward, MethodType) and forward.__self__ is module and forward.__func__ is type(module).forward


def _is_bypassed(module: nn.Linear) -> bool:
    """Whether a forward was put on the layer that may not call the one of its class."""
    own = vars(module)
    forward = own.get("forward")
    is_of_accelerate = (  # it calls _old_forward
        isinstance(forward, functools.partial) and getattr(forward.func, "__module__", "") == "accelerate.hooks"
    )
    return not _is_forward_of_class(module, own.get("_old_forward") if is_of_accelerate else forward)


@functools.cache
def _tiled_class(former_class: type[nn.Linear]) -> type[TiledLinear]:
    """TiledLinear, or for a subclass of nn.Linear: that class with TiledLinear between it and nn.Linear."""
    if former_class is nn.Linear:
        return TiledLinear

    # pickle finds a class by its name, and this one has none.
    def reduce(module: nn.Module, protocol: int) -> str | tuple:
        if "_former_class" not in vars(type(module)):  # a class that somebody made of this one
            return former_class.__reduce_ex__(module, protocol)
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
    if _is_bypassed(module):
        return "a forward was put on it, which would be called in the place of ours; remove that, replace, put it back"
    return obstacle(module)


def obstacle(module: nn.Linear) -> str:
    """Why the operator cannot compute what a layer computes; empty if it can."""
    if is_parametrized(module):
        return "parametrized; replace first, then parametrize"
    if isinstance(module, LazyModuleMixin):
        return "lazy; run the model once first"
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor):
        return f"its weight is a {type(weight).__name__}"
    if has_own_products(weight) or _has_own_functions(type(weight)):
        return f"its weight is a {type(weight).__name__}, which has products of its own"
    if weight.layout != torch.strided:
        return f"its weight has layout {weight.layout}; tiled are strided ones"
    if weight.dtype not in DTYPES.values():
        return f"{weight.dtype} is not supported"
    bias = getattr(module, "bias", None)
    if bias is not None and (not isinstance(bias, nn.Parameter) or _has_own_functions(type(bias))):
        return f"its bias is a {type(bias).__name__}"
    if bias is not None and bias.dim() != 1:
        return f"its bias has {bias.dim()} dimensions; tiled are those with 1"
    if nn.Linear.forward is not _FORWARD:
        return "another forward was put in the place of nn.Linear's"
    return ""


def _has_own_functions(tensor_class: type[Tensor]) -> bool:
    """Whether functions of torch that are called with such a tensor are functions of its class."""
    own, of_tensors, of_parameters = (
        getattr(function, "__func__", function)
        for function in (tensor_class.__torch_function__, Tensor.__torch_function__, nn.Parameter.__torch_function__)
    )
    return own not in (of_tensors, of_parameters)


def _refusal(module: nn.Linear, name: str, module_filter_fn: Callable[[nn.Module, str], bool] | None) -> str:
    if module_filter_fn is not None:
        return "" if module_filter_fn(module, name) else "module_filter_fn said no"
    return "" if type(module) is nn.Linear else f"{type(module).__name__} is a subclass of nn.Linear"


def _bypasses(module: nn.Module) -> Iterator[str]:
    """How `module` gets by without calling TiledLinear.forward of itself or of its children."""

    def tiled(*children: str) -> str:
        return " and ".join(name for name in children if isinstance(getattr(module, name, None), TiledLinear))

    if isinstance(module, TiledLinear) and not _restore_of(module):
        for method in ("forward", "__call__"):
            if getattr(type(module), method) is not getattr(TiledLinear, method):
                name = type(module).__name__
                yield f"({name}) has its own {method}: tiled is only what it leaves to super().{method}"
    if isinstance(module, nn.MultiheadAttention) and tiled("out_proj"):
        yield "(nn.MultiheadAttention) never calls out_proj, it reads the weight"
    if isinstance(module, nn.TransformerEncoderLayer) and tiled("linear1", "linear2"):
        yield (
            f"(nn.TransformerEncoderLayer) does not call {tiled('linear1', 'linear2')} in eval mode without "
            "gradients: its fast path reads the weights; torch.backends.mha.set_fastpath_enabled(False) "
            "switches that off"
        )


def _restore_of(module: nn.Module) -> Callable[[nn.Module], None] | None:
    """What gives a QuantizedLinear its former class; None for others, and for what somebody made of that class."""
    return vars(type(module)).get("_restore")


def _check_module(function: str, model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"{function}: model is a {type(model).__name__}; accepted is a torch.nn.Module")


def _listed(names: list[str]) -> str:
    return ", ".join(name or "the model itself" for name in names) or "none"

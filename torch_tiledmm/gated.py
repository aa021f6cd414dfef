"""TiledGatedMLP, a gated feed-forward, and the swap of those that transformers' models have, in place."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from .dispatch import check_algorithm
from .modules import LinearSwap, TiledLinear, obstacle
from .ops import TORCH_ACTIVATIONS, _alike, gated_linear, has_own_products

GATES = tuple(TORCH_ACTIVATIONS)
# Classes of transformers by what they call their layers: two of one size, or one that holds both.
_PAIRS = ("LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP", "GemmaMLP", "Gemma2MLP")
_STACKED = ("Phi3MLP",)


class TiledGatedMLP(nn.Module):
    """`down(activation(gate(x)) * up(x))`, whose first half is one call of `gated_linear`.

    Shapes: input and output (..., hidden_size). Dtypes: float32, float64, float16, bfloat16. The layers are called
    gate_proj, up_proj and down_proj, as in transformers' Llama, so that a state_dict of those fits. Other modules may
    be put in their places. Where gate_proj or up_proj is more than a weight and a bias when it is called, as one with
    hooks, an adapter, a precision, an activation or another algorithm, both are called.

    Args:
        hidden_size, intermediate_size: of input and output, and of what is between the layers.
        bias: of all three layers.
        activation: "silu", "gelu", "gelu_tanh" or "relu".
        algorithm: as in `gated_linear`; also that of the layers.
        keeps_sums: as in `gated_linear`.
        device, dtype: as in nn.Linear.

    Raises:
        ValueError: an algorithm or an activation that is not known.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        bias: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str = "silu",
        algorithm: str = "auto",
        keeps_sums: bool = True,
    ) -> None:
        check_algorithm(algorithm)
        if activation not in GATES:
            raise ValueError(f"activation: got {activation!r}, expected one of {', '.join(GATES)}")
        super().__init__()
        how: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.gate_proj = TiledLinear(hidden_size, intermediate_size, algorithm=algorithm, **how)
        self.up_proj = TiledLinear(hidden_size, intermediate_size, algorithm=algorithm, **how)
        self.down_proj = TiledLinear(intermediate_size, hidden_size, algorithm=algorithm, **how)
        self.activation = activation
        self.algorithm = algorithm
        self.keeps_sums = keeps_sums

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_proj, self.up_proj
        accepted = ("auto", self.algorithm)
        if _is_plain(gate, accepted) and _is_plain(up, accepted):
            of_gate, of_up = gate._parameters, up._parameters
            product = gated_linear(
                x,
                of_gate["weight"],  # type: ignore[arg-type]
                of_up["weight"],
                of_gate["bias"],
                of_up["bias"],
                activation=self.activation,
                algorithm=self.algorithm,
                keeps_sums=self.keeps_sums,
            )
        else:
            gate_sum, up_sum = _alike(gate(x), up(x), None)
            product = torch.ops.tiledmm.gated.default(gate_sum, up_sum, activation=self.activation)
        out: Tensor = self.down_proj(product)
        return out

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}"


def replace_gated_mlp(model: nn.Module, *, algorithm: str = "auto", keeps_sums: bool = True) -> LinearSwap:
    """Has the gated feed-forwards of transformers' Llama, Mistral, Qwen2, Qwen3, Gemma and Phi3 compute their first
    half by `gated_linear`, in place.

    A module stays the same object with the same layers, parameters and hooks; only its class changes, to one that is
    made from its own. Where a layer in it is no plain nn.Linear or TiledLinear when it is called, as one with hooks,
    adapters or quantised weights, the module computes as it did before. `replace_linear` goes well with it, before and
    after: what is left to it is the second half, and all other layers.

    Args:
        algorithm, keeps_sums: as in `gated_linear`.

    Returns:
        The names replaced, those skipped with the reason; print it.

    Raises:
        TypeError: `model` is not a module. ValueError: an algorithm that is not known.
    """
    check_algorithm(algorithm)
    swap = LinearSwap()
    for name, module in _modules("replace_gated_mlp", model):
        if not _is_known(type(module)):
            continue
        reason = _reason_to_keep(module)
        if reason:
            swap.skipped.append((name, reason))
            continue
        module._tiled_gate = (_activation_of(module), algorithm, keeps_sums)  # type: ignore[assignment]
        module.__class__ = _tiled_class(type(module))  # type: ignore[arg-type]
        swap.replaced.append(name)
    return swap


def restore_gated_mlp(model: nn.Module) -> LinearSwap:
    """Undoes `replace_gated_mlp`: every module has its former class again.

    Raises:
        TypeError: `model` is not a module.
    """
    swap = LinearSwap()
    for name, module in _modules("restore_gated_mlp", model):
        former_class = vars(type(module)).get("_former_mlp")
        if former_class is not None:
            module.__class__ = former_class
            vars(module).pop("_tiled_gate", None)
            swap.replaced.append(name)
    return swap


def _modules(caller: str, model: nn.Module) -> list[tuple[str, nn.Module]]:
    if not isinstance(model, nn.Module):
        raise TypeError(f"{caller}: got a {type(model).__name__}, expected a torch.nn.Module")
    return list(model.named_modules())


def _is_known(module_class: type) -> bool:
    return module_class.__module__.startswith("transformers.") and module_class.__name__ in _PAIRS + _STACKED


def _layers(module: nn.Module) -> tuple[Any, ...]:
    """Those of the first half."""
    names = ("gate_up_proj",) if hasattr(module, "gate_up_proj") else ("gate_proj", "up_proj")
    return tuple(getattr(module, name, None) for name in names)


def _is_plain(layer: nn.Module | None, algorithms: tuple[str, ...] | None = None) -> bool:
    """Whether to call a layer is to multiply by its weight and to add its bias, by one of some algorithms."""
    if type(layer) is TiledLinear:
        if layer.activation != "none" or layer.out_dtype is not None or layer.precision is not None:
            return False
        if algorithms is not None and layer.algorithm not in algorithms:
            return False
    elif type(layer) is not nn.Linear:
        return False
    own = vars(layer)
    if own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]:
        return False
    parameters = own["_parameters"]
    weight = parameters.get("weight")  # a parametrized layer has none
    is_read = weight is not None and weight.layout == torch.strided and not has_own_products(weight)
    return is_read and "bias" in parameters and "forward" not in own


def _reason_to_keep(module: nn.Module) -> str:
    """Why a module cannot be replaced; empty if it can."""
    if "forward" in vars(module):
        return "a forward was put on it, which would be called in the place of ours"
    for layer in _layers(module):
        if isinstance(layer, nn.Linear) and (reason := obstacle(layer)):
            return "a layer in it cannot be: " + reason
        if not _is_plain(layer):
            return "a layer in it is no plain nn.Linear"
    return "" if _activation_of(module) else "its activation is none of " + ", ".join(GATES)


def _activation_of(module: nn.Module) -> str:
    """The name of a module's activation, by its values; empty if it is none of ours."""
    function = getattr(module, "act_fn", None) or getattr(module, "activation_fn", None)
    x = torch.linspace(-6, 6, 97, dtype=torch.float64)
    values = function(x) if callable(function) else x
    names = (name for name, own in TORCH_ACTIVATIONS.items() if torch.allclose(values, own(x), rtol=0, atol=1e-9))
    return next(names, "")


def _forward(self: Any, x: Tensor) -> Tensor:
    layers = _layers(self)
    if not all(map(_is_plain, layers)):
        out: Tensor = type(self)._former_mlp.forward(self, x)
        return out
    activation, algorithm, keeps_sums = self._tiled_gate
    gate, up = layers[0], layers[-1] if len(layers) > 1 else None
    product = gated_linear(
        x,
        gate.weight,
        None if up is None else up.weight,
        gate.bias,
        None if up is None else up.bias,
        activation=activation,
        algorithm=algorithm,
        keeps_sums=keeps_sums,
    )
    out = self.down_proj(product)
    return out


@functools.cache
def _tiled_class(former_class: type[nn.Module]) -> type[nn.Module]:
    def reduce(module: nn.Module, protocol: int) -> str | tuple:
        # pickle finds a class by its name, and this one has none.
        state = former_class.__reduce_ex__(module, 2)[2:]
        return (_new_tiled, (former_class,), *state)

    namespace = {"_former_mlp": former_class, "__module__": __name__, "__reduce_ex__": reduce, "forward": _forward}
    return type(f"Tiled{former_class.__name__}", (former_class,), namespace)


def _new_tiled(former_class: type[nn.Module]) -> nn.Module:
    tiled_class: type[nn.Module] = _tiled_class(former_class)  # type: ignore[arg-type]
    return tiled_class.__new__(tiled_class)

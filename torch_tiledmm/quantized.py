"""QuantizedLinear, a layer whose weight is stored in FP8, and the swap of a model's linear layers to it, in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .fp8 import RECIPES, dequantized_weight, quantized_linear, quantized_weight
from .modules import LinearSwap, TiledLinear, _change_class, _check_module, _is_bypassed, obstacle

_STORED = ("weight", "weight_scale")
_WIDE = (torch.float32, torch.float16, torch.bfloat16)
# Modules that read the weights of layers which they hold.
_READERS = {nn.MultiheadAttention: ("out_proj",), nn.TransformerEncoderLayer: ("linear1", "linear2")}


@dataclass
class _Former:
    """What a layer was before its weight was stored in 8 bits."""

    layer_class: type[nn.Linear]
    precision: str | None
    dtype: torch.dtype  # of the weight, as it would be by now: casts of the layer change it
    requires_grad: bool
    weight: nn.Parameter | None  # where it is kept


class QuantizedLinear(TiledLinear):
    """A linear layer for inference whose weight is stored in float8_e4m3fn, with scales in float32.

    `weight` (out_features, in_features) and `weight_scale`, (out_features, 1), or a size for each 128 x 128 of the
    weight, are buffers. They are in the state_dict, beside `bias`, and keep their dtypes whatever the layer is cast to.
    The input's and the bias's gradients are computed with the weight that the 8 bits stand for; a weight has none.

    Args:
        in_features, out_features, bias, device, dtype: as in nn.Linear; the weight is made in `dtype` and then stored.
        precision: "fp8_row": the input is rounded to FP8 with a scale for each row, as the weight is. "fp8_block": the
            same with a scale for each 1 x 128 of the input, and 128 x 128 of the weight. "fp8_weight_only": the input
            stays as it is, and the weight has scales of rows.
        algorithm, activation, out_dtype: as in TiledLinear; the result has the input's dtype by default.

    Raises:
        ValueError: an algorithm, an activation or a precision that is not known.
    """

    weight_scale: Tensor
    precision = "fp8_row"
    _former: _Former

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        precision: str = "fp8_row",
        algorithm: str = "auto",
        activation: str = "none",
        out_dtype: torch.dtype | None = None,
    ) -> None:
        _check_recipe("precision", precision)
        options: dict[str, Any] = {"algorithm": algorithm, "activation": activation, "out_dtype": out_dtype}
        super().__init__(in_features, out_features, bias, device, dtype, **options)
        _store(self, precision, quantized_weight(precision, self.weight), None)

    @classmethod
    def from_linear(  # type: ignore[override]  # of no weight_grad
        cls, layer: nn.Linear, *, algorithm: str = "auto", activation: str = "none", precision: str = "fp8_row"
    ) -> QuantizedLinear:
        """A new layer with the weight of `layer` in FP8; the bias is shared, and so is the training flag.

        Raises:
            TypeError: as of `TiledLinear.from_linear`; or the weight's dtype is float64.
            ValueError: an algorithm, an activation or a precision that is not known.
        """
        _check_recipe("precision", precision)
        tiled = TiledLinear.from_linear(layer, algorithm=algorithm, activation=activation)
        if tiled.weight.dtype not in _WIDE:
            raise TypeError(f"layer: got a weight of {tiled.weight.dtype}, expected one of {_WIDE}")
        _store(tiled, precision, quantized_weight(precision, tiled.weight), None)
        tiled.__class__ = cls
        return tiled  # type: ignore[return-value]

    def forward(self, input: Tensor) -> Tensor:
        return quantized_linear(
            input,
            self.weight,
            self.weight_scale,
            self.bias,
            precision=self.precision,
            activation=self.activation,
            algorithm=self.algorithm,
            out_dtype=self.out_dtype,
        )

    def dequantized(self, dtype: torch.dtype | None = None) -> Tensor:
        """The weight that the 8 bits stand for, in `dtype`, by default that of the layer it was made of.

        A layer that was cast since, as by `half()`, has the dtype that its weight would have.
        """
        return dequantized_weight(self.weight, self.weight_scale, dtype or self._former.dtype)

    def reset_parameters(self) -> None:
        """Raises TypeError: 8 bits are no parameters. Only what the constructor makes is initialised."""
        if "weight" in self._buffers:
            raise TypeError(
                "reset_parameters: the weight of a QuantizedLinear is quantised; initialise the layer before it is "
                "quantised, or after restore_linear"
            )
        super().reset_parameters()

    def extra_repr(self) -> str:
        return self._repr_of(without="weight_grad")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantizedLinear:
        # `model.half()` and the like cast all that is floating point, and 8 bits are.
        stored = {name: self._buffers[name] for name in _STORED}
        super()._apply(fn, recurse)
        for name, tensor in stored.items():
            changed = self._buffers[name]
            assert tensor is not None and changed is not None
            if changed.dtype != tensor.dtype:
                self._buffers[name] = tensor.to(changed.device)
        self._former.dtype = fn(torch.empty(0, dtype=self._former.dtype, device=self.weight.device)).dtype
        return self

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: Any) -> None:
        # args: local_metadata, strict, missing_keys, unexpected_keys, error_msgs. A copy would be cast without a scale.
        given = state_dict.get(prefix + "weight")
        if given is not None and given.dtype != self.weight.dtype:
            args[-1].append(
                f"{prefix}weight is {given.dtype}, and that of a QuantizedLinear {self.weight.dtype} with scales: load "
                "it before quantize_linear, or quantize the model that it is of, and load that one's state_dict"
            )
            return
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _restore(self) -> None:
        """Has its former class and a wide weight again."""
        former, weight = self._former, self._former.weight
        if weight is None or not self._is_made_of(weight):
            weight = nn.Parameter(self.dequantized(), former.requires_grad)
        elif (weight.device, weight.dtype) != (self.weight.device, former.dtype):
            weight = nn.Parameter(weight.detach().to(self.weight.device, former.dtype), weight.requires_grad)
        for name in _STORED:
            del self._buffers[name]
        own = vars(self)
        del own["_former"], own["precision"]
        if former.precision is not None:
            own["precision"] = former.precision
        _change_class(self, former.layer_class)
        bias = self._parameters.pop("bias")
        self.register_parameter("weight", weight)
        self.register_parameter("bias", bias)  # in the order of nn.Linear

    def _is_made_of(self, weight: Tensor) -> bool:
        """Whether the 8 bits are those of `weight`: others may have been loaded."""
        if weight.is_meta or self.weight.is_meta:
            return weight.is_meta and self.weight.is_meta
        q, scale = _stored_by_torchao(weight, self.precision) or quantized_weight(self.precision, weight)
        q, scale = q.to(self.weight.device), scale.to(self.weight.device)
        if q.shape != self.weight.shape or scale.shape != self.weight_scale.shape:
            return False
        same = torch.equal(q.view(torch.uint8), self.weight.view(torch.uint8))  # NaN is not equal to NaN
        return same and torch.equal(scale.view(torch.int32), self.weight_scale.view(torch.int32))


def quantize_linear(
    model: nn.Module,
    *,
    recipe: str = "fp8_row",
    keeps_weights: bool = False,
    module_filter_fn: Callable[[nn.Module, str], bool] | None = None,
) -> LinearSwap:
    """Turns the linear layers of `model` into QuantizedLinear, in place, for inference.

    As by `replace_linear`, a layer stays the same object: hooks, bias, activation, algorithm and training flag are
    untouched. Its parameter `weight` becomes two buffers; an optimiser that has it goes on with what nobody reads, and
    a weight that is tied to another module becomes FP8 in this layer alone, and without `keeps_weights` it comes back
    untied. To load a state_dict of a model that is
    quantised, make the model, also on the meta device, call this, and load.

    `restore_linear` brings back each layer's former class, and a weight, frozen if it was: with `keeps_weights` the
    very parameter, else the values that the 8 bits stand for. Those also come back where the 8 bits are no longer the
    kept weight's, because others were loaded or the weight was trained on. A layer that was cast since gets a weight
    of the dtype that it would have, as a copy.

    Args:
        model: any module, also a linear layer itself.
        recipe: the attribute `precision` of each QuantizedLinear, see there.
        keeps_weights: whether former weights are kept for `restore_linear`, which takes their memory.
        module_filter_fn: called as (module, fully qualified name) for each nn.Linear and TiledLinear; True quantises.
            The default takes all.

    Returns:
        The names of what was quantised, and those skipped, with the reason: other subclasses of nn.Linear, layers whose
        weight something else computes, and those whose weight another module reads without calling them: `out_proj` of
        nn.MultiheadAttention, `linear1` and `linear2` of nn.TransformerEncoderLayer. A Float8Tensor of torchao is taken
        as it is stored where its scales are the recipe's, or one for the whole weight, and is always kept.

    Raises:
        TypeError: `model` is not a module.
        ValueError: a recipe that is not known.
    """
    _check_module("quantize_linear", model)
    _check_recipe("recipe", recipe)
    swap = LinearSwap()
    readers = {
        id(getattr(module, name, None)): reader.__name__
        for module in model.modules()
        for reader, names in _READERS.items()
        if isinstance(module, reader)
        for name in names
    }
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        reader = readers.get(id(module))
        reason = f"nn.{reader} reads its weight" if reader else _reason_to_keep(module, recipe)
        if not reason and module_filter_fn is not None and not module_filter_fn(module, name):
            reason = "module_filter_fn said no"
        if reason:
            swap.skipped.append((name, reason))
            continue
        of_torchao = _stored_by_torchao(module.weight, recipe)
        kept = module._parameters["weight"] if keeps_weights or of_torchao is not None else None
        stored = quantized_weight(recipe, module.weight) if of_torchao is None else of_torchao
        _store(module, recipe, stored, kept)
        _change_class(module, QuantizedLinear)
        swap.replaced.append(name)
    return swap


def _check_recipe(name: str, recipe: str) -> None:
    if recipe not in RECIPES:
        raise ValueError(f"{name}: got {recipe!r}, expected one of {', '.join(RECIPES)}")


def _store(layer: nn.Linear, recipe: str, stored: tuple[Tensor, Tensor], kept: nn.Parameter | None) -> None:
    """Puts a weight in 8 bits in the place of a layer's; the layer's class is the caller's to change."""
    own, weight = vars(layer), layer._parameters.pop("weight")
    assert weight is not None
    former_class = TiledLinear if isinstance(layer, TiledLinear) else nn.Linear
    own["_former"] = _Former(former_class, own.get("precision"), weight.dtype, weight.requires_grad, kept)
    own["precision"] = recipe
    for name, tensor in zip(_STORED, stored, strict=True):
        layer.register_buffer(name, tensor)


def _reason_to_keep(module: nn.Linear, recipe: str) -> str:
    """Why a layer cannot be quantised, whatever the filter says; empty if it can."""
    if isinstance(module, QuantizedLinear):
        return "already quantised"
    if type(module) not in (nn.Linear, TiledLinear):
        return f"{type(module).__name__} is a subclass of nn.Linear"
    if _is_bypassed(module):
        return "a forward was put on it, which may read its weight; remove that, quantise, put it back"
    weight = getattr(module, "weight", None)
    of_torchao = _stored_by_torchao(weight, recipe)
    if of_torchao is not None:
        return _misfit(*of_torchao, module, recipe)
    if reason := obstacle(module):
        return reason
    if "weight" not in module._parameters:
        return "its weight is no parameter; make it one first, as torch.nn.utils.prune.remove does"
    if module.weight.dtype not in _WIDE:
        return f"its weight has dtype {module.weight.dtype}; quantised are float32, float16 and bfloat16"
    if module.weight.is_meta and "_hf_hook" in vars(module):
        return "its weight is offloaded; quantise it before"
    return ""


def _stored_by_torchao(weight: object, recipe: str) -> tuple[Tensor, Tensor] | None:
    """Elements of 8 bits and scales of a Float8Tensor of torchao, which need not be installed."""
    if type(weight).__name__ != "Float8Tensor" or not hasattr(weight, "qdata") or not hasattr(weight, "scale"):
        return None
    q, scale = weight.qdata, weight.scale.float()
    if scale.numel() == 1:
        scale = scale.reshape(1, 1).expand(_scales_shape(recipe, *q.shape)).contiguous()
    return q, scale.unsqueeze(1) if scale.dim() == 1 else scale


def _scales_shape(recipe: str, rows: int, k: int) -> tuple[int, int]:
    return (-(-rows // 128), -(-k // 128)) if recipe == "fp8_block" else (rows, 1)


def _misfit(q: Tensor, scale: Tensor, module: nn.Linear, recipe: str) -> str:
    rows, k = module.out_features, module.in_features
    shape = _scales_shape(recipe, rows, k)
    if q.dtype != torch.float8_e4m3fn:
        return f"its weight is a Float8Tensor of {q.dtype}; quantised are those of torch.float8_e4m3fn"
    if q.shape != (rows, k):
        return f"its weight is a Float8Tensor stored as {tuple(q.shape)}; quantised are those stored as {(rows, k)}"
    if scale.shape != shape:
        return f"its weight is a Float8Tensor with scales {tuple(scale.shape)}; recipe {recipe!r} has {shape}"
    return ""

"""TiledLinear, a drop-in for nn.Linear, and the swap of a model's linear layers in place."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_linear = torch.ops.tiledmm.linear.default


class TiledLinear(nn.Linear):
    """nn.Linear on tiled matmul: the same constructor, parameters, initialisation, repr and state_dict.

    Shapes: input (..., in_features), weight (out_features, in_features), bias (out_features,); output
    (..., out_features). Dtypes float32, float64, float16, bfloat16. Raises what `torch_tiledmm.linear` raises.
    """

    def forward(self, input: Tensor) -> Tensor:
        return _linear(input, self.weight, self.bias)

    def _get_name(self) -> str:
        return "Linear" if type(self) is TiledLinear else type(self).__name__


@dataclass(frozen=True)
class Replacement:
    """What `replace_linear` did."""

    replaced: list[str] = field(default_factory=list)  # names of the layers that are tiled now
    skipped: list[tuple[str, str]] = field(default_factory=list)  # (name, reason) of the linear layers that are not
    warnings: list[str] = field(default_factory=list)  # where a replaced layer may not be called

    def __str__(self) -> str:
        lines = [f"replaced {len(self.replaced)} linear layers: {', '.join(self.replaced) or '-'}"]
        lines += [f"skipped {name}: {reason}" for name, reason in self.skipped]
        lines += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)


def _is_exactly_linear(module: nn.Module, fqn: str) -> bool:
    return type(module) is nn.Linear


def replace_linear(
    model: nn.Module, *, module_filter_fn: Callable[[nn.Module, str], bool] | None = None
) -> Replacement:
    """Turns the linear layers of `model` into TiledLinear, in place.

    A layer stays the same object: parameters, tied weights, hooks, optimiser state, training flag, dtype and device are
    untouched; only its class changes.

    Args:
        model: any module; itself a linear layer, too.
        module_filter_fn: called as (module, fully qualified name) for every nn.Linear and subclass of it; True replaces.
            The default takes `type(module) is nn.Linear`. A subclass that is let through loses its own `forward`.

    Returns:
        What was replaced, what was skipped and why, and where replaced layers may be bypassed.

    Raises:
        TypeError: `model` is not a module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"replace_linear: model is a {type(model).__name__}; accepted is a torch.nn.Module")
    accepts = module_filter_fn or _is_exactly_linear
    report = Replacement()
    for fqn, module in model.named_modules():
        if isinstance(module, nn.Linear):
            reason = _reason_to_skip(module, fqn, accepts, module_filter_fn is None)
            if reason:
                report.skipped.append((fqn, reason))
            else:
                module.__dict__["_class_before_tiled"] = type(module)
                module.__class__ = TiledLinear
                report.replaced.append(fqn)
    for fqn, module in model.named_modules():
        if isinstance(module, nn.TransformerEncoderLayer) and any(
            isinstance(child, TiledLinear) for child in module.modules()
        ):
            report.warnings.append(
                f"{fqn or 'the model'} is a TransformerEncoderLayer: in eval mode without gradients its fast path reads "
                "the weights and does not call its linear layers; torch.backends.mha.set_fastpath_enabled(False) "
                "switches it off"
            )
    return report


def _reason_to_skip(module: nn.Linear, fqn: str, accepts: Callable[[nn.Module, str], bool], is_default: bool) -> str:
    if isinstance(module, TiledLinear):
        return "already tiled"
    if nn.utils.parametrize.is_parametrized(module):
        return "parametrized: its class is made for it alone"
    if isinstance(module, nn.modules.lazy.LazyModuleMixin):
        return "lazy: run the model once first"
    if module.weight.dtype not in _DTYPES:
        return f"dtype {module.weight.dtype} is not supported"
    if not accepts(module, fqn):
        return f"subclass {type(module).__name__} of nn.Linear" if is_default else "module_filter_fn said no"
    return ""


def restore_linear(model: nn.Module) -> list[str]:
    """Undoes `replace_linear`: every replaced layer has its former class again. Returns their names.

    Layers that were made as TiledLinear become nn.Linear.

    Raises:
        TypeError: `model` is not a module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"restore_linear: model is a {type(model).__name__}; accepted is a torch.nn.Module")
    restored = []
    for fqn, module in model.named_modules():
        if type(module) is TiledLinear:
            module.__class__ = module.__dict__.pop("_class_before_tiled", nn.Linear)
            restored.append(fqn)
    return restored

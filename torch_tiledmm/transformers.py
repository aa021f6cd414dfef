"""Experts of transformers' models by grouped products.

torch_tiledmm.transformers.register()
model.set_experts_implementation("tiledmm")  # or experts_implementation="tiledmm" where a model is made or loaded
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .experts import ExpertRouting
from .ops import gated_grouped_matmul, grouped_matmul, has_own_products

# transformers' functions of an element by the classes they have; in torch.compile nothing but a class can be asked.
_ACTIVATIONS = {
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "ReLU": "relu",
}


def register(name: str = "tiledmm") -> None:
    """Adds `experts_forward` to transformers' implementations of experts, by a name. Doing it twice is harmless.

    Raises:
        ImportError: transformers is missing, or is older than its table of implementations (5.0).
    """
    try:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    except ImportError as error:
        raise ImportError(
            "transformers: found none with implementations of experts (transformers.integrations.moe); accepted is "
            "5.0 or later"
        ) from error
    ALL_EXPERTS_FUNCTIONS.register(name, experts_forward)


def experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """What a layer's experts make of its tokens: the sum of the chosen experts' results, each times its weight.

    See ExpertRouting for what it promises.

    Args:
        self: transformers' module of experts: its weights, and how they lie.
        hidden_states: (tokens, hidden).
        top_k_index: (tokens, k), the experts of each token; from num_experts on, which stands for those of other
            devices, an expert adds nothing.
        top_k_weights: (tokens, k).

    Returns:
        (tokens, hidden), dtype of `hidden_states`.

    Raises:
        NotImplementedError: weights with products of their own, as quantised ones.
    """
    first, last = self.gate_up_proj if self.has_gate else self.up_proj, self.down_proj
    if has_own_products(first) or has_own_products(last):
        raise NotImplementedError(
            f"experts: got weights that are {type(first).__name__} and {type(last).__name__}, which have products of "
            "their own; accepted are plain ones"
        )
    routing = ExpertRouting(top_k_index, self.num_experts)
    offs, rows = routing.offs, routing.gather(hidden_states).to(first.dtype)

    def oriented(weight: Tensor) -> Tensor:
        return weight if self.is_transposed else weight.mT

    def bias_of(kind: str) -> Tensor | None:
        return getattr(self, f"{kind}_proj_bias") if self.has_bias else None

    gate = _ACTIVATIONS.get(type(self.act_fn).__name__) if self.has_gate and _has_usual_gate(self) else None
    if gate:
        bias = bias_of("gate_up")
        inner = gated_grouped_matmul(rows, oriented(first), offs=offs, gate_bias=bias, activation=gate)
    else:
        bias = bias_of("gate_up" if self.has_gate else "up")
        inner = grouped_matmul(rows, oriented(first), offs=offs, bias=bias)
        inner = self._apply_gate(inner) if self.has_gate else self.act_fn(inner)
    out = grouped_matmul(inner, oriented(last), offs=offs, bias=bias_of("down"))
    if getattr(self, "has_post_expert_norm", False):  # transformers 5.17 does not know it
        out = self.post_expert_norm(out)
    return routing.combine(out, top_k_weights).to(hidden_states.dtype)


def _has_usual_gate(module: Any) -> bool:
    """Whether it is activation(first half) * second half."""
    from transformers.integrations.moe import _default_apply_gate

    return type(module)._apply_gate is _default_apply_gate

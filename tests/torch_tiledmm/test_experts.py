"""ExpertRouting: what a loop over experts computes, bits of a token, choices without an expert, export, refusals."""

import itertools

import pytest
import torch

from torch_tiledmm import ExpertRouting, gated_grouped_matmul, grouped_matmul
from torch_tiledmm.testing.cases import assert_same_bits

EXPERTS = 6


def experts(x, index, weights, gate_up, down):
    routing = ExpertRouting(index, EXPERTS)
    inner = gated_grouped_matmul(routing.gather(x), gate_up, offs=routing.offs)
    return routing.combine(grouped_matmul(inner, down, offs=routing.offs), weights)


def by_loop(x, index, weights, gate_up, down):
    y = torch.zeros_like(x)
    for token, choice in itertools.product(range(len(x)), range(index.shape[1])):
        expert = int(index[token, choice])
        if 0 <= expert < EXPERTS:
            gate, up = (x[token] @ gate_up[expert]).chunk(2)
            y[token] += weights[token, choice] * ((torch.nn.functional.silu(gate) * up) @ down[expert])
    return y


def operands(dtype=torch.float64, tokens=33, low=0, high=EXPERTS):
    index = torch.randint(low, high, (tokens, 2))
    sizes = ((tokens, 20), (tokens, 2), (EXPERTS, 20, 28), (EXPERTS, 14, 20))
    x, weights, gate_up, down = (torch.randn(own).to(dtype) for own in sizes)
    return x, index, weights, gate_up, down


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_as_a_loop_has_it(dtype):
    """With choices of no expert below and above; also of no token, and all of one expert."""
    for low, high, tokens in ((0, EXPERTS, 33), (-2, EXPERTS + 3, 33), (2, 3, 33), (0, EXPERTS, 0)):
        x, index, *others = operands(tokens=tokens, low=low, high=high)
        expected = by_loop(x, index, *others)
        torch.testing.assert_close(experts(x, index.to(dtype), *others), expected, rtol=1e-12, atol=1e-12)
    counts = ExpertRouting(index, EXPERTS).offs.diff(prepend=torch.zeros(1, dtype=torch.int32))
    assert counts.tolist() == [0] * EXPERTS


def test_gradients():
    x, index, *others = operands(tokens=9, high=EXPERTS + 2)
    given = [tensor.requires_grad_() for tensor in (x, *others)]
    grads = torch.autograd.grad(experts(x, index, *others).square().sum(), given)
    expected = torch.autograd.grad(by_loop(x, index, *others).square().sum(), given)
    for own, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bits_of_a_token_do_not_depend_on_others(dtype):
    x, index, weights, *others = operands(dtype)
    together = experts(x, index, weights, *others)
    for token in range(0, len(x), 5):
        own = slice(token, token + 1)
        assert_same_bits(experts(x[own], index[own], weights[own], *others), together[own])


def test_dtypes_of_weights():
    routing, rows = ExpertRouting(torch.randint(EXPERTS, (9, 2)), EXPERTS), torch.randn(18, 5)
    for dtype, other, result in (
        (torch.float64, torch.float32, torch.float64),
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float16, torch.bfloat16, torch.float16),
        (torch.float32, torch.float64, torch.float32),
    ):
        assert routing.combine(rows.to(dtype), torch.rand(9, 2).to(other)).dtype == result


class Experts(torch.nn.Module):
    def forward(self, *given):
        return experts(*given)


def test_exported_for_any_number_of_tokens():
    tokens = torch.export.Dim("tokens", min=2)
    shapes = {"given": ({0: tokens}, {0: tokens}, {0: tokens}, {}, {})}
    program = torch.export.export(Experts(), operands(tokens=9), dynamic_shapes=shapes).module()
    given = operands(tokens=17)
    assert_same_bits(program(*given), experts(*given))


REFUSED = {
    "an index in int8": (TypeError, "top_k_index", lambda routing: ExpertRouting(torch.zeros(3, 2).char(), 4)),
    "an index of one dimension": (ValueError, "top_k_index", lambda routing: ExpertRouting(torch.zeros(3).long(), 4)),
    "fewer than no experts": (ValueError, "num_experts", lambda routing: ExpertRouting(torch.zeros(3, 2).long(), -1)),
    "tokens of another batch": (ValueError, "tokens", lambda routing: routing.gather(torch.zeros(4, 5))),
    "rows of another batch": (ValueError, "rows", lambda routing: routing.combine(torch.zeros(8, 5), torch.ones(3, 2))),
    "weights that broadcast": (
        ValueError,
        "top_k_weights",
        lambda routing: routing.combine(torch.zeros(6, 5), torch.ones(1, 2)),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    error, message, call = REFUSED[name]
    with pytest.raises(error, match=message):
        call(ExpertRouting(torch.zeros(3, 2).long(), 4))

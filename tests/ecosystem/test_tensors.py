"""Nested and sparse tensors of torch.

Planted bugs that these tests caught: a bias added twice to a nested input, an algorithm that is not handed over, the
ragged dimension taken for the second one, a result with offsets of its own or with a wrong length of its longest item,
nested tensors with holes, ragged in the last dimension or in the place of a weight that are taken.
"""

import pytest
import torch
import torch.nn.functional as F
from tiled import tiled_calls
from torch import nn

import torch_tiledmm
from torch_tiledmm import TiledLinear, replace_linear

pytestmark = pytest.mark.filterwarnings("ignore:.*prototype", "ignore:.*beta state")
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def jagged(*shapes: tuple[int, ...]) -> torch.Tensor:
    items = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    return torch.nested.nested_tensor(items, layout=torch.jagged, requires_grad=True)


NESTED = {
    "3d": lambda: jagged((2, 16), (5, 16), (1, 16)),
    "4d": lambda: jagged((2, 3, 16), (5, 3, 16)),
    "ragged behind": lambda: jagged((2, 3, 16), (5, 3, 16)).transpose(1, 2),
    "an empty item": lambda: jagged((2, 16), (0, 16)),
    "strided values": lambda: jagged((2, 2, 16), (5, 2, 16)).select(2, 1),
}


@pytest.mark.parametrize("is_compiled", (False, True), ids=("eager", "compiled"))
@pytest.mark.parametrize("make", NESTED.values(), ids=NESTED)
def test_layer_on_jagged(make, is_compiled):
    input, layer = make(), TiledLinear(16, 5, activation="silu", dtype=torch.float64)
    call = torch.compile(layer, fullgraph=True, backend="aot_eager") if is_compiled else layer
    out = call(input)
    assert out.is_nested and out.layout == torch.jagged and tiled_calls(layer, input) == 1
    assert out.shape[:-1] == input.shape[:-1] and out.shape[-1] == 5  # the ragged size, too, is the same one
    expected = [F.silu(F.linear(item, layer.weight, layer.bias)) for item in input.unbind()]
    for own, item in zip(out.unbind(), expected, strict=True):
        torch.testing.assert_close(own, item, **EXACT)

    weights = [torch.randn_like(item) for item in expected]
    loss = sum((own * weight).sum() for own, weight in zip(out.unbind(), weights, strict=True))
    expected_loss = sum((own * weight).sum() for own, weight in zip(expected, weights, strict=True))
    needed = [input, *layer.parameters()]
    for actual, wanted in zip(
        torch.autograd.grad(loss, needed), torch.autograd.grad(expected_loss, needed), strict=True
    ):
        assert actual.is_nested == wanted.is_nested
        pairs = zip(actual.unbind(), wanted.unbind(), strict=True) if actual.is_nested else [(actual, wanted)]
        for pair in pairs:
            torch.testing.assert_close(*pair, **EXACT)


def test_matmul_of_jagged():
    a, b = NESTED["3d"](), torch.randn(16, 4, dtype=torch.float64)
    out = torch_tiledmm.matmul(a, b, algorithm="naive")
    assert out.shape == (3, a.shape[1], 4)
    assert out.to_padded_tensor(0.0).shape == (3, 5, 4)  # the longest item is known
    for own, item in zip(out.unbind(), a.unbind(), strict=True):
        torch.testing.assert_close(own, item @ b, **EXACT)


def test_refuses_other_nested_tensors():
    layer, matrix = TiledLinear(16, 5, dtype=torch.float64), torch.randn(16, 4, dtype=torch.float64)
    holes = torch.nested.narrow(
        torch.randn(3, 6, 16, dtype=torch.float64),
        1,
        torch.tensor([0, 1, 2]),
        torch.tensor([2, 3, 4]),
        layout=torch.jagged,
    )
    last = NESTED["3d"]().transpose(1, 2)
    ours = NESTED["3d"]()
    for call, message in (
        (lambda: layer(holes), "input: got a nested tensor with holes"),
        (lambda: torch_tiledmm.matmul(ours, matrix, algorithm="wgmma"), "tiledmm: algorithm 'wgmma' cannot serve"),
        (lambda: torch_tiledmm.linear(ours, matrix.mT, algorithm="wgmma"), "tiledmm: algorithm 'wgmma' cannot serve"),
        (lambda: layer(last), "input: got a nested tensor whose ragged dimension is the last one"),
        (lambda: torch_tiledmm.linear(matrix.mT, ours), "weight: got a nested tensor; accepted as one is input alone"),
        (lambda: torch_tiledmm.matmul(matrix, ours), "b: got a nested tensor; accepted as one is a alone"),
        (
            lambda: torch_tiledmm.matmul(ours, matrix[0]),
            "b: got 1 dimensions beside a nested tensor; accepted is a matrix",
        ),
    ):
        with pytest.raises(NotImplementedError, match=f"^{message}"):
            call()
    assert layer(holes.contiguous()).shape[-1] == 5


@pytest.mark.parametrize("layout", ("csr", "csc", "coo", "bsr", "mkldnn"))
def test_sparse_weights_are_skipped(layout):
    layer = nn.Linear(16, 8).requires_grad_(False)
    weight = layer.weight.detach()
    convert = {
        "csr": weight.to_sparse_csr,
        "csc": weight.to_sparse_csc,
        "coo": weight.to_sparse_coo,
        "bsr": lambda: weight.to_sparse_bsr((4, 4)),
        "mkldnn": weight.to_mkldnn,
    }[layout]
    layer.weight = nn.Parameter(convert(), requires_grad=False)
    reason = f"its weight has layout {layer.weight.layout}; tiled are strided ones"
    assert replace_linear(layer).skipped == [("", reason)] and type(layer) is nn.Linear
    with pytest.raises(TypeError, match=f"^layer: got a Linear that cannot be tiled: {reason}"):
        TiledLinear.from_linear(layer)

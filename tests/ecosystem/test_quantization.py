"""torchao's quantize_ and torch's quantize_dynamic, before and after replace_linear.

Planted bugs that these tests caught: an activation that a quantized layer loses, an algorithm that it passes over, the
operator called with a quantized weight, compiled or not, a restored layer that cannot be printed.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from tiled import tiled_calls
from torch import nn

from torch_tiledmm import TiledLinear, replace_linear, restore_linear

quantization = pytest.importorskip("torchao.quantization")

CONFIGS = ("Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig", "Float8WeightOnlyConfig")


def quantize(model: nn.Module, config: str = CONFIGS[0]) -> nn.Module:
    quantization.quantize_(model, getattr(quantization, config)())
    return model


@pytest.mark.parametrize("config", CONFIGS)
def test_quantized_after_replace(config):
    """The layer computes what nn.Linear does with such a weight."""
    tiled, input = nn.Sequential(nn.Linear(32, 16)), torch.randn(4, 32)
    plain = quantize(copy.deepcopy(tiled), config)
    expected = plain(input)
    replace_linear(tiled)
    quantize(tiled, config)
    assert torch.equal(tiled(input), expected) and tiled_calls(tiled, input) == 0
    compiled = torch.compile(tiled, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(input), expected)
    assert "TiledLinear" in repr(tiled)
    assert restore_linear(tiled).replaced == ["0"] and "TiledLinear" not in repr(tiled)
    assert torch.equal(tiled(input), expected)


def test_quantized_before_replace():
    model, input = quantize(nn.Sequential(nn.Linear(32, 16))), torch.randn(4, 32)
    expected = model(input)
    reason = f"its weight is a {type(model[0].weight).__name__}, which has products of its own"
    assert replace_linear(model).skipped == [("0", reason)]
    with pytest.raises(TypeError, match=f"^layer: got a Linear that cannot be tiled: {reason}"):
        TiledLinear.from_linear(model[0])
    assert torch.equal(model(input), expected)


@pytest.mark.parametrize("activation", ("relu", "gelu", "gelu_tanh", "silu"))
def test_activation_and_algorithm_of_a_quantized_layer(activation):
    layer, input = TiledLinear(32, 16, activation=activation), torch.randn(4, 32)
    quantize(layer)
    z = F.linear(input, layer.weight, layer.bias)
    functions = {"relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"), "silu": F.silu}
    torch.testing.assert_close(layer(input), functions[activation](z))
    layer.algorithm = "naive"
    with pytest.raises(NotImplementedError, match="^weight: got a .*, which has products of its own, .*'naive'"):
        layer(input)
    layer.algorithm, layer.activation = "auto", "tanh"
    with pytest.raises(ValueError, match="^activation 'tanh' is not known"):
        layer(input)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization:DeprecationWarning", "ignore:.*deprecated")
def test_quantize_dynamic_takes_restored_layers():
    """As the guide says: by exact class, so that a TiledLinear stays as it is."""
    quantize_dynamic = torch.ao.quantization.quantize_dynamic
    model, input = nn.Sequential(nn.Linear(32, 16)), torch.randn(4, 32)
    expected = quantize_dynamic(model, {nn.Linear})(input)
    replace_linear(model)
    assert type(quantize_dynamic(model, {nn.Linear})[0]) is TiledLinear
    restore_linear(model)
    assert torch.equal(quantize_dynamic(model, {nn.Linear})(input), expected)

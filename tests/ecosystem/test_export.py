"""torch.onnx, checked by onnxruntime, and torch.jit.

Planted bugs that these tests caught: an activation that the ONNX program lacks, a product for which it has the
operator, either function unknown to TorchScript, the defaults of a replaced layer unknown to it.
"""

import io
import warnings

import pytest
import torch
from tiled import tiled_calls
from torch import nn

import torch_tiledmm
from torch_tiledmm import TiledLinear, replace_linear

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*deprecated")


class Activated(nn.Module):
    """A layer for each activation, and a product."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(TiledLinear(16, 16, activation=activation) for activation in ACTIVATIONS)
        self.last = nn.Linear(16, 8)
        replace_linear(self)

    def forward(self, input):
        for layer in self.layers:
            input = layer(input)
        input = self.last(input)
        return torch_tiledmm.matmul(input.mT, input)


@pytest.mark.parametrize("is_dynamic", (False, True), ids=("static", "dynamic"))
def test_onnx(is_dynamic, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model, input = Activated().eval(), torch.randn(4, 16)
    shapes = ({0: torch.export.Dim("rows", min=2)},) if is_dynamic else None
    program = torch.onnx.export(model, (input,), dynamo=True, dynamic_shapes=shapes, verbose=False)
    program.save(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    for rows in (4, 7) if is_dynamic else (4,):
        given = torch.randn(rows, 16)
        (actual,) = session.run(None, {session.get_inputs()[0].name: given.numpy()})
        torch.testing.assert_close(torch.from_numpy(actual), model(given).detach())
    assert tiled_calls(model, input) == 6  # and not only after export


def test_onnx_of_an_exported_program():
    """As the guide says: the operator has no translation, a model that is not yet exported is what to give."""
    pytest.importorskip("onnxscript")
    program = torch.export.export(TiledLinear(16, 8), (torch.randn(4, 16),))
    with pytest.raises(torch.onnx.errors.OnnxExporterError, match="No ONNX function found for .*tiledmm.linear"):
        torch.onnx.export(program, dynamo=True, verbose=False)


def saved_and_loaded(scripted):
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    return torch.jit.load(file)


def traced(model):
    with warnings.catch_warnings(action="ignore"):
        return torch.jit.trace(model, torch.randn(4, 16))


@pytest.mark.parametrize("make", (torch.jit.script, traced), ids=("script", "trace"))
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_jit(make, activation):
    model = nn.Sequential(TiledLinear(16, 8, activation=activation), nn.Linear(8, 8, bias=False), nn.Linear(8, 5))
    replace_linear(model, algorithm="naive", module_filter_fn=lambda _, name: name == "1")
    replace_linear(model)
    scripted, input = make(model), torch.randn(5, 16)
    frozen = torch.jit.freeze(scripted.eval())
    for program in (scripted, saved_and_loaded(scripted), frozen):
        torch.testing.assert_close(program(input), model(input))
        assert tiled_calls(program, input) == 3
    expected = torch.autograd.grad(model(input).square().sum(), list(model.parameters()))
    actual = torch.autograd.grad(scripted(input).square().sum(), list(model.parameters()))
    torch.testing.assert_close(actual, expected)
    # What the calls hand over: (activation, algorithm, out_dtype).
    calls = frozen.graph.findAllNodes("tiledmm::linear")
    handed_over = [[value.toIValue() for value in list(call.inputs())[-3:]] for call in calls]
    assert handed_over == [[activation, "auto", None], ["none", "naive", None], ["none", "auto", None]]


def test_jit_of_functions():
    @torch.jit.script
    def products(a: torch.Tensor, b: torch.Tensor):
        return torch_tiledmm.matmul(a, b), torch_tiledmm.linear(a, b, activation="relu", algorithm="naive")

    a, b = torch.randn(3, 6), torch.randn(6, 6)
    product, activated = products(a, b)
    assert torch.equal(product, torch_tiledmm.matmul(a, b))
    assert torch.equal(activated, torch_tiledmm.linear(a, b, activation="relu", algorithm="naive"))

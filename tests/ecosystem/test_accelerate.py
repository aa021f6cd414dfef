"""accelerate: its hooks put a forward on a layer and keep the former one; hooks and swaps come and go in any order.

Planted bugs that these tests caught: a layer under a hook that is counted and not tiled, a former forward that stays
that of the former class, in replace_linear and in restore_linear, a forward under the hook that is not the class's.
"""

import copy
import pickle

import pytest
import torch
from tiled import Counted, tiled_calls
from torch import nn

from torch_tiledmm import TiledLinear, replace_linear, restore_linear

accelerate = pytest.importorskip("accelerate")
from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module  # noqa: E402


class Tripling(ModelHook):
    """A hook that shows that it is called."""

    def post_forward(self, module, output):
        return 3 * output


class Doubled(nn.Linear):
    def forward(self, input):
        return 2 * super().forward(input)


STEPS = {
    "hook": lambda model: add_hook_to_module(model[0], Tripling()),
    "unhook": lambda model: remove_hook_from_module(model[0]),
    "replace": lambda model: replace_linear(model, algorithm="naive", module_filter_fn=lambda *_: True),
    "restore": restore_linear,
    "copy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
}
ORDERS = [
    "hook replace unhook restore",
    "hook replace restore unhook",
    "replace hook unhook restore",
    "replace hook restore unhook",
    "hook unhook replace restore",
    "hook unhook replace hook restore unhook replace",
    "hook replace copy unhook copy restore",
    "hook replace copy restore unhook copy replace",
    "replace hook copy restore copy unhook",
    "replace hook unhook pickle restore pickle",
    "hook unhook pickle replace pickle restore",
    "hook hook replace hook unhook restore",
]


@pytest.mark.parametrize("make", (nn.Linear, Doubled), ids=lambda make: make.__name__)
@pytest.mark.parametrize("steps", ORDERS)
@pytest.mark.filterwarnings("ignore:replace_linear")
def test_hooks_and_swaps_in_any_order(make, steps):
    model, input = nn.Sequential(make(16, 8, dtype=torch.float64)), torch.randn(4, 16, dtype=torch.float64)
    plain = model(input)
    is_hooked = is_tiled = False
    for step in steps.split():
        result = STEPS[step](model)
        if step in ("copy", "pickle"):
            model = result
        elif step in ("replace", "restore"):
            assert result.replaced == ["0"] and result.skipped == []
        is_hooked = {"hook": True, "unhook": False}.get(step, is_hooked)
        is_tiled = {"replace": True, "restore": False}.get(step, is_tiled)
        with Counted() as counted:
            torch.testing.assert_close(model(input), plain * (3 if is_hooked else 1), rtol=1e-12, atol=1e-12)
        assert counted.calls == is_tiled and isinstance(model[0], TiledLinear) == is_tiled, step
        assert isinstance(model[0], make)


def test_what_is_under_a_hook_may_be_no_forward_of_the_class():
    layer = nn.Linear(16, 8)
    plain_forward = layer.forward
    layer.forward = lambda input: 2 * plain_forward(input)
    add_hook_to_module(layer, Tripling())
    (skipped,) = replace_linear(layer).skipped
    assert skipped[1].startswith("a forward was put on it") and type(layer) is nn.Linear
    input = torch.randn(4, 16)
    assert tiled_calls(layer, input) == 0
    torch.testing.assert_close(layer(input), 6 * plain_forward(input))


def test_from_linear_refuses_a_hooked_layer():
    layer = nn.Linear(16, 8)
    add_hook_to_module(layer, Tripling())
    with pytest.raises(TypeError, match="^layer: got a Linear that cannot be tiled: a forward was put on it"):
        TiledLinear.from_linear(layer)
    remove_hook_from_module(layer)
    input = torch.randn(4, 16)
    torch.testing.assert_close(TiledLinear.from_linear(layer)(input), layer(input))


def offload_all(model, folder):
    return accelerate.cpu_offload(model, execution_device=torch.device("cpu"))


def dispatch(model, folder):
    places = {"0": "cpu", "2": "disk"}
    return accelerate.dispatch_model(model, places, main_device="cpu", offload_dir=folder, force_hooks=True)


@pytest.mark.parametrize("comes_first", ("replace", "offload"))
@pytest.mark.parametrize("offload", (offload_all, dispatch))
def test_offloaded(offload, comes_first, tmp_path):
    model, input = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 5)).double(), torch.randn(4, 16).double()
    expected = model(input).detach()
    if comes_first == "replace":
        assert replace_linear(model).replaced == ["0", "2"]
    offload(model, tmp_path)
    assert model[2].weight.is_meta
    if comes_first == "offload":
        assert replace_linear(model).replaced == ["0", "2"]
    with Counted() as counted:
        torch.testing.assert_close(model(input), expected, rtol=1e-12, atol=1e-12)
    assert counted.calls == 2
    assert restore_linear(model).replaced == ["0", "2"]
    with Counted() as counted:
        torch.testing.assert_close(model(input), expected, rtol=1e-12, atol=1e-12)
    remove_hook_from_module(model, recurse=True)
    torch.testing.assert_close(model(input), expected, rtol=1e-12, atol=1e-12)
    assert counted.calls == 0

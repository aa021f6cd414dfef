"""peft: adapters of rank 4 go around tiled layers, and layers under adapters are tiled.

Planted bugs that these tests caught: forward without the bias, torch's product in forward.
"""

import copy

import pytest
import torch
from tiled import Counted
from torch import nn

from torch_tiledmm import TiledLinear, replace_linear, restore_linear

peft = pytest.importorskip("peft")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, input):
        return self.second(torch.tanh(self.first(input)))


def adapt(model: nn.Module) -> nn.Module:
    torch.manual_seed(7)
    config = peft.LoraConfig(r=4, target_modules=["first", "second"], init_lora_weights=False)
    return peft.get_peft_model(model, config).double()


@pytest.mark.parametrize("comes_first", ("replace", "adapt"))
def test_adapters(comes_first, tmp_path):
    plain, input = Model(), torch.randn(5, 16, dtype=torch.float64)
    tiled = copy.deepcopy(plain)
    plain = adapt(plain)
    if comes_first == "replace":
        assert replace_linear(tiled).replaced == ["first", "second"]
        tiled = adapt(tiled)
        assert len(replace_linear(tiled).replaced) == 4  # the adapters' own
    else:
        tiled = adapt(tiled)
        assert len(replace_linear(tiled).replaced) == 6
    exact = {"rtol": 1e-12, "atol": 1e-12}

    for model in (plain, tiled):
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1)
        with Counted() as counted:
            loss = model(input).square().sum()
        loss.backward()
        optimizer.step()
        assert counted.calls == (6 if model is tiled else 0)
    for expected, actual in zip(plain.parameters(), tiled.parameters(), strict=True):
        torch.testing.assert_close(actual, expected, **exact)
    expected = plain(input).detach()
    torch.testing.assert_close(tiled(input), expected, **exact)

    tiled.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(plain).unload(), tmp_path).double()
    replace_linear(loaded)
    torch.testing.assert_close(loaded(input), expected, **exact)

    merged = tiled.merge_and_unload()
    assert [type(layer) for layer in (merged.first, merged.second)] == [TiledLinear, TiledLinear]
    with Counted() as counted:
        torch.testing.assert_close(merged(input), expected, **exact)
    assert counted.calls == 2 and restore_linear(merged).replaced == ["first", "second"]
    torch.testing.assert_close(merged(input), expected, **exact)

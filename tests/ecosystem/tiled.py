"""What the tests with other projects' libraries share: the count of tiled calls."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import torch_tiledmm  # noqa: F401


class Counted(TorchDispatchMode):
    """Counts the products of layers: the proof that they are tiled."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += function in (torch.ops.tiledmm.linear.default, torch.ops.tiledmm.linear_and_sum.default)
        return function(*args, **(kwargs or {}))


def tiled_calls(function, *args, **kwargs) -> int:
    with Counted() as counted:
        function(*args, **kwargs)
    return counted.calls

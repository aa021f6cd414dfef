"""What the tests with other projects' libraries share: the count of tiled calls."""

from torch.utils._python_dispatch import TorchDispatchMode

import torch_tiledmm  # noqa: F401


class Counted(TorchDispatchMode):
    """Counts the calls of tiledmm::linear: the proof that layers are tiled."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += str(function) == "tiledmm.linear.default"
        return function(*args, **(kwargs or {}))


def tiled_calls(function, *args, **kwargs) -> int:
    with Counted() as counted:
        function(*args, **kwargs)
    return counted.calls

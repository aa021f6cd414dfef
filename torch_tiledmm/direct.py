"""Calls of the operators past torch.ops, by the library that csrc/python makes: half a microsecond less each.

`matmul(a, b, algorithm)` and `linear(input, weight, bias, activation, algorithm)` return the operator's result, or
NotImplemented where torch.ops is to be called: for tensors of other classes than Tensor and Parameter, under a mode of
torch.overrides, for arguments that are of no use. torch.compile cannot trace them. `is_here` says whether there are
any: a wheel has a library for the Python that made it.
"""

from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

from torch import Tensor

from .machine import torch_minor


def _library() -> ModuleType | None:
    path = Path(__file__).with_name(f"_calls_{torch_minor()}{EXTENSION_SUFFIXES[0]}")
    if not path.exists():
        return None
    loader = ExtensionFileLoader("torch_tiledmm._calls", str(path))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    try:
        module = module_from_spec(spec)
        loader.exec_module(module)
    except ImportError:  # for another build of this torch: the operators may serve all the same
        return None
    return module


_found = _library()
is_here = _found is not None
if _found:
    matmul: Callable[..., Tensor] = _found.matmul
    linear: Callable[..., Tensor] = _found.linear

"""Calls of the operators past torch.ops, by the library that csrc/python makes: half a microsecond less each.

`matmul(a, b, algorithm)` and `linear(input, weight, bias, activation, algorithm)` return the operator's result, or
NotImplemented where torch.ops is to be called: for tensors of other classes than Tensor and Parameter, under a mode of
torch.overrides, for arguments that are of no use, and where there is no library for this Python. A wheel has one for
the Python that made it. torch.compile cannot trace them.
"""

import importlib.machinery
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


def _library() -> ModuleType | None:
    minor = ".".join(torch.__version__.split(".")[:2])
    path = Path(__file__).with_name(f"_calls_{minor}{importlib.machinery.EXTENSION_SUFFIXES[0]}")
    spec = importlib.util.spec_from_file_location("torch_tiledmm._calls", path)
    if not path.exists() or spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _not_here(*args: object) -> Any:
    return NotImplemented


_found = _library()
is_here = _found is not None
matmul: Callable[..., Tensor] = _found.matmul if _found else _not_here
linear: Callable[..., Tensor] = _found.linear if _found else _not_here

"""Tiled matrix multiplication as PyTorch operators: hand-written kernels, autograd, a drop-in for nn.Linear."""

import json
from pathlib import Path

import torch

_REBUILD = "pip install --no-build-isolation -e . (in the source tree), or reinstall torch_tiledmm"


def _load_libraries() -> str:
    folder = Path(__file__).parent
    info_path = folder / "_build_info.json"
    if not info_path.exists() or not (folder / "_ops.so").exists():
        raise ImportError(f"torch_tiledmm is not built: {folder} holds no libraries. Build it with: {_REBUILD}")
    info: dict[str, str] = json.loads(info_path.read_text())
    found = ".".join(torch.__version__.split(".")[:2])
    if info["torch_version"] != found:
        raise ImportError(
            f"torch_tiledmm was built for torch {info['torch_version']} (with {info['compiler']}), but torch "
            f"{torch.__version__} is installed. Build it again with: {_REBUILD}"
        )
    torch.ops.load_library(folder / "_ops.so")
    return info["version"]


__version__ = _load_libraries()

from . import distributed  # noqa: E402, F401
from .dispatch import algorithms, build_info, explain, use_algorithm  # noqa: E402
from .modules import LinearSwap, TiledLinear, replace_linear, restore_linear  # noqa: E402
from .ops import linear, matmul  # noqa: E402

__all__ = [
    "LinearSwap",
    "TiledLinear",
    "algorithms",
    "build_info",
    "explain",
    "linear",
    "matmul",
    "replace_linear",
    "restore_linear",
    "use_algorithm",
]

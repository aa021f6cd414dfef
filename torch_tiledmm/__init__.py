"""Tiled matrix multiplication as PyTorch operators: hand-written kernels, autograd, a drop-in for nn.Linear."""

import ctypes
import json
from pathlib import Path
from typing import Any

import torch

from .machine import torch_minor

_REBUILD = "pip install --no-build-isolation -e . (in the source tree), or reinstall torch_tiledmm"


def _load_libraries() -> str:
    """Loads the operators that were built for this torch, and says with what to build them where there are none."""
    folder = Path(__file__).parent
    info_path = folder / "_build_info.json"
    if not info_path.exists():
        raise ImportError(f"torch_tiledmm is not built: {folder} holds no libraries. Build it with: {_REBUILD}")
    info: dict[str, Any] = json.loads(info_path.read_text())
    minor = torch_minor()
    if minor not in info["torch_versions"]:
        raise ImportError(
            f"torch_tiledmm was built for torch {', '.join(info['torch_versions'])} (with {info['compiler']}), but "
            f"torch {torch.__version__} is installed. Build it again with: {_REBUILD}"
        )
    kernels, ops = folder / "_kernels.so", folder / f"_ops_{minor}.so"
    for library in (kernels, ops):
        if not library.exists():
            raise ImportError(f"torch_tiledmm is not whole: {library} is missing. Build it again with: {_REBUILD}")
    found = ctypes.CDLL(str(kernels)).tiledmm_abi_version()
    torch.ops.load_library(ops)
    expected = ctypes.CDLL(str(ops)).tiledmm_ops_abi_version()
    if found != expected:
        raise ImportError(
            f"{ops} was compiled for version {expected} of the kernels' interface, but {kernels} has version {found}. "
            f"Build both again with: {_REBUILD}"
        )
    return str(info["version"])


__version__ = _load_libraries()

from . import distributed, transformers  # noqa: E402, F401
from .dispatch import algorithms, build_info, explain, use_algorithm  # noqa: E402
from .experts import ExpertRouting  # noqa: E402
from .gated import TiledGatedMLP, replace_gated_mlp, restore_gated_mlp  # noqa: E402
from .mode import disable, enable, enabled, is_enabled, report  # noqa: E402
from .modules import LinearSwap, TiledLinear, replace_linear, restore_linear  # noqa: E402
from .ops import (  # noqa: E402
    addmm,
    gated_grouped_matmul,
    gated_linear,
    grouped_matmul,
    linear,
    matmul,
    scaled_grouped_matmul,
    scaled_matmul,
)
from .quantize import quantize_blocks, quantize_rows  # noqa: E402
from .quantized import QuantizedLinear, quantize_linear  # noqa: E402

__all__ = [
    "ExpertRouting",
    "LinearSwap",
    "QuantizedLinear",
    "TiledGatedMLP",
    "TiledLinear",
    "addmm",
    "algorithms",
    "build_info",
    "disable",
    "enable",
    "enabled",
    "explain",
    "gated_grouped_matmul",
    "gated_linear",
    "grouped_matmul",
    "is_enabled",
    "linear",
    "matmul",
    "quantize_blocks",
    "quantize_linear",
    "quantize_rows",
    "replace_gated_mlp",
    "replace_linear",
    "report",
    "restore_gated_mlp",
    "restore_linear",
    "scaled_grouped_matmul",
    "scaled_matmul",
    "use_algorithm",
]

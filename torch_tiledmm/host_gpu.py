"""The GPU kernels on the CPU: the same source, run thread by thread to check and count it (csrc/platform/host_gpu.h).

It needs no GPU and says nothing about speed in seconds; it counts what decides it. The libraries are compiled when they
are first asked for, which needs a C++ compiler and takes half a minute.
"""

from __future__ import annotations

import ctypes
import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .dispatch import ACTIVATIONS, DTYPES, FP8_DTYPES

WARP_SIZES = (32, 64)


class _BatchDim(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("size", "stride_a", "stride_b", "stride_c", "stride_bias")]


class _Scales(ctypes.Structure):  # csrc/core/problem.h
    _fields_ = [
        ("data", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("stride_row", "stride_k")],
        ("rows_of_block", ctypes.c_int32),
        ("stride_group", ctypes.c_int32),
    ]


class _GemmProblem(ctypes.Structure):  # csrc/core/problem.h
    _fields_ = [
        *[(name, ctypes.c_int64) for name in ("m", "n", "k")],
        ("a", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("stride_am", "stride_ak")],
        ("b", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("stride_bk", "stride_bn")],
        ("c", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("stride_cm", "stride_cn")],
        ("bias", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("stride_bias_m", "stride_bias_n")],
        ("batch_dims", ctypes.POINTER(_BatchDim)),
        ("num_batch_dims", ctypes.c_int32),
        *[(name, ctypes.c_int32) for name in ("dtype_a", "dtype_b", "dtype_bias", "dtype_c")],
        ("activation", ctypes.c_int32),
        *[(name, ctypes.c_bool) for name in ("allow_tf32", "is_b_widened")],
        ("row_sums", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("sum_offset", "up_sum_offset")],
        *[(name, ctypes.c_double) for name in ("alpha", "beta")],
        *[(name, ctypes.c_int32) for name in ("scaling", "grouping")],
        *[(name, _Scales) for name in ("scale_a", "scale_b")],
        ("group_ends", ctypes.c_void_p),
        *[(name, ctypes.c_void_p) for name in ("gated_b", "gated_bias")],
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{"alpha": 1, "beta": 1, **fields})

    @property
    def dtype(self) -> int:
        """That of A, B, bias and C, where it is one."""
        return int(self.dtype_a)

    @dtype.setter
    def dtype(self, dtype: int) -> None:
        self.dtype_a = self.dtype_b = self.dtype_bias = self.dtype_c = dtype


class _Counts(ctypes.Structure):  # csrc/platform/host_gpu.h
    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "global_load_bytes",
            "global_store_bytes",
            "global_load_sectors",
            "global_store_sectors",
            "shared_load_bytes",
            "shared_store_bytes",
            "bank_conflicts",
            "barriers",
            "flops",
        )
    ]


@dataclass(frozen=True)
class Counts:
    """What one product asked of the GPU. Elements are of A's dtype."""

    global_load_elements: int  # by all threads, each time anew
    global_load_sectors: int  # 32 bytes; within one access of a warp, each sector counts once
    global_store_sectors: int
    shared_loads: int  # elements
    shared_stores: int  # elements
    bank_conflicts: int  # passes of a warp's access beyond the first: 32 banks of 4 bytes
    barriers: int  # summed over blocks
    flops: int  # those that edges waste included


@cache
def _library(warp_size: int) -> ctypes.CDLL:
    if warp_size not in WARP_SIZES:
        raise ValueError(f"wave: got {warp_size!r}, expected one of {', '.join(map(str, WARP_SIZES))}")
    return ctypes.CDLL(str(_compiler().host_library(warp_size)))


def _compiler() -> ModuleType:
    """tools/gpu_objects.py: beside the package in a checkout, else with the sources that a wheel brings."""
    package = Path(__file__).resolve().parent
    places = [folder / "tools/gpu_objects.py" for folder in (package / "_sources", package.parent)]
    found = next((place for place in places if place.exists()), None)
    if not found:
        raise RuntimeError(f"the sources of the GPU kernels are missing: neither {places[0]} nor {places[1]} exists")
    spec = importlib.util.spec_from_file_location("gpu_objects", found)
    assert spec is not None and spec.loader is not None  # it is a file of Python
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _check(
    a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor | None, activation: str, is_b_scaled: bool = False
) -> None:
    """The library takes addresses and trusts its caller."""
    given = {"a": a, "b": b, "bias": bias, "out": out}
    operands = {name: tensor for name, tensor in given.items() if tensor is not None}
    for name, tensor in operands.items():
        if name == "b" and is_b_scaled and tensor.dtype in FP8_DTYPES.values():
            continue
        if tensor.dtype not in DTYPES.values():
            raise TypeError(f"{name}: got {tensor.dtype}, expected one of {', '.join(DTYPES)}")
        if (tensor.dtype == torch.float64) != (a.dtype == torch.float64):
            raise TypeError(f"{name}: got {tensor.dtype}, which does not go with {a.dtype} of a")
        if tensor.device.type != "cpu":
            raise ValueError(f"{name}: got a tensor on {tensor.device}, expected one on the CPU")
    if a.dim() not in (2, 3) or a.shape[:-2] != b.shape[:-2] or a.dim() != b.dim() or a.shape[-1] != b.shape[-2]:
        raise ValueError(f"a, b: got shapes {list(a.shape)} and {list(b.shape)}, expected (m, k) and (k, n) or batches")
    of_result = (*a.shape[:-1], b.shape[-1])
    shapes: dict[str, list[tuple[int, ...]]] = {"bias": [of_result[-1:], of_result], "out": [of_result]}
    for name in operands.keys() & shapes.keys():
        if tuple(operands[name].shape) not in shapes[name]:
            raise ValueError(f"{name}: got shape {list(operands[name].shape)}, expected {list(shapes[name][0])}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation: got {activation!r}, expected one of {', '.join(ACTIVATIONS)}")


def matmul(
    a: Tensor,
    b: Tensor,
    *,
    algorithm: str,
    warp_size: int = 32,
    seed: int = 0,
    bias: Tensor | None = None,
    activation: str = "none",
    out: Tensor | None = None,
    alpha: float = 1,
    beta: float = 1,
    out_dtype: torch.dtype | None = None,
    scale_b: Tensor | None = None,
    is_b_widened: bool = False,
) -> tuple[Tensor, Counts]:
    """``activation(alpha * (a @ b) + beta * bias)`` by a GPU kernel run on the CPU, and what it counted.

    ``a`` is (batch, m, k) or (m, k), ``b`` (batch, k, n) or (k, n), of any strides; ``bias`` is (n,) or of the result's
    shape. Dtypes go together as in `torch_tiledmm.matmul`, with ``out_dtype``. ``seed`` orders the threads between
    barriers, 0: by their number. ``out`` is written if given. With ``scale_b``, float32 of shape (n,), ``b`` has 8 bits
    and means ``b * scale_b``, and ``out_dtype`` is given; with ``is_b_widened`` k is summed as beside such a ``b``.

    Raises RuntimeError for what the executor finds (a race on shared memory, a barrier that only a part of a block
    reaches), NotImplementedError where the algorithm cannot serve the problem, ValueError for an unknown algorithm or
    activation and for shapes that do not fit, TypeError for dtypes.
    """
    _check(a, b, bias, out, activation, scale_b is not None)
    if out is None:
        out = torch.full(
            (*a.shape[:-1], b.shape[-1]), torch.nan, dtype=out_dtype or torch.promote_types(a.dtype, b.dtype)
        )
    fields: dict[str, Any] = {"activation": ACTIVATIONS.index(activation), "alpha": alpha, "beta": beta}
    if bias is not None:
        added = bias.expand(out.shape)
        fields["bias"], fields["dtype_bias"] = added.data_ptr(), _number(bias.dtype)
        fields["stride_bias_m"], fields["stride_bias_n"] = added.stride()[-2:]
    fields["is_b_widened"] = is_b_widened
    if scale_b is not None:
        fields["scaling"], fields["scale_b"] = 1, _Scales(scale_b.data_ptr(), scale_b.stride(0), 0, 1)
    if a.dim() == 3:
        step = added.stride(0) if bias is not None else 0
        fields["batch_dims"] = (_BatchDim * 1)(_BatchDim(a.shape[0], a.stride(0), b.stride(0), out.stride(0), step))
        fields["num_batch_dims"] = 1
    return out, _compute(a, b, out, fields, algorithm, warp_size, seed)


def grouped_matmul(
    a: Tensor,
    b: Tensor,
    offs: Tensor,
    *,
    algorithm: str,
    warp_size: int = 32,
    seed: int = 0,
    bias: Tensor | None = None,
    activation: str = "none",
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """`torch_tiledmm.grouped_matmul` of groups of rows, (m, k) by (G, k, n), or of k, (m, k) by (k, n), by a GPU kernel
    run on the CPU. ``bias`` is (G, n). Shapes and dtypes are the caller's to check; errors otherwise as of `matmul`.
    """
    is_rows = b.dim() == 3
    shape = (a.shape[0], b.shape[-1]) if is_rows else (len(offs), a.shape[0], b.shape[-1])
    out = torch.full(shape, torch.nan, dtype=out_dtype or torch.promote_types(a.dtype, b.dtype))
    steps = (0, b.stride(0), 0) if is_rows else (0, 0, out.stride(0))
    groups = _BatchDim(len(offs), *steps, 0 if bias is None else bias.stride(0))
    ends = offs.contiguous()
    fields = {
        "activation": ACTIVATIONS.index(activation),
        "batch_dims": (_BatchDim * 1)(groups),
        "num_batch_dims": 1,
        "grouping": 1 if is_rows else 2,
        "group_ends": ends.data_ptr(),
    }
    if bias is not None:
        fields |= {"bias": bias.data_ptr(), "dtype_bias": _number(bias.dtype), "stride_bias_n": bias.stride(1)}
    _compute(a, b, out, fields, algorithm, warp_size, seed)
    return out


def scaled_matmul(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    algorithm: str,
    offs: Tensor | None = None,
    warp_size: int = 32,
    seed: int = 0,
    bias: Tensor | None = None,
    activation: str = "none",
    out_dtype: torch.dtype = torch.bfloat16,
    out: Tensor | None = None,
) -> Tensor:
    """`torch_tiledmm.scaled_matmul`, (m, k) by (k, n) in 8 bits, by a GPU kernel run on the CPU; with ``offs``
    `torch_tiledmm.scaled_grouped_matmul`, where ``b``, ``scale_b`` and ``bias`` have groups as their first dimension.

    Scales are matrices. Of rows: (m, 1) and (1, n), or (1, 1). Of blocks: (m or its blocks of 128, blocks of k) and
    (blocks of k, n or its blocks of 128); what could be either is of rows. ``bias`` is (n,), in ``out_dtype``. Shapes
    and dtypes are the caller's to check; errors otherwise as of `matmul`.
    """
    m, n = a.shape[0], b.shape[-1]
    if out is None:
        out = torch.full((m, n), torch.nan, dtype=out_dtype)
    is_of_rows = scale_a.shape in ((1, 1), (m, 1)) and scale_b.shape[-2:] in ((1, 1), (1, n))

    def scales(of: Tensor, row_dim: int, k_dim: int, size: int) -> _Scales:
        steps = [0 if of.shape[dim] == 1 else of.stride(dim) for dim in (row_dim, k_dim)]
        of_group = of.stride(0) if of.dim() == 3 and of.shape[0] > 1 else 0
        return _Scales(of.data_ptr(), *steps, 1 if of.shape[row_dim] == size or is_of_rows else 128, of_group)

    fields: dict[str, Any] = {
        "activation": ACTIVATIONS.index(activation),
        "scaling": 1 if is_of_rows else 2,
        "scale_a": scales(scale_a, 0, 1, m),
        "scale_b": scales(scale_b, -1, -2, n),
    }
    if bias is not None:
        fields |= {"bias": bias.data_ptr(), "stride_bias_n": bias.stride(-1)}
    if offs is not None:
        groups = _BatchDim(len(offs), 0, b.stride(0), 0, 0 if bias is None else bias.stride(0))
        fields |= {"batch_dims": (_BatchDim * 1)(groups), "num_batch_dims": 1, "grouping": 1}
        fields |= {"group_ends": offs.data_ptr()}
    _compute(a, b, out, fields, algorithm, warp_size, seed)
    return out


def _number(dtype: torch.dtype) -> int:
    return [*DTYPES.values(), *FP8_DTYPES.values()].index(dtype)


def _compute(
    a: Tensor, b: Tensor, out: Tensor, fields: dict[str, Any], algorithm: str, warp_size: int, seed: int
) -> Counts:
    """Runs the product of a's and b's last two dimensions, with what else of a problem is in fields."""
    problem = _GemmProblem(
        m=a.shape[-2],
        n=b.shape[-1],
        k=a.shape[-1],
        a=a.data_ptr(),
        stride_am=a.stride(-2),
        stride_ak=a.stride(-1),
        b=b.data_ptr(),
        stride_bk=b.stride(-2),
        stride_bn=b.stride(-1),
        c=out.data_ptr(),
        stride_cm=out.stride(-2),
        stride_cn=out.stride(-1),
        dtype_a=_number(a.dtype),
        dtype_b=_number(b.dtype),
        dtype_c=_number(out.dtype),
        **{"dtype_bias": _number(out.dtype), **fields},
    )
    counts, reason = _Counts(), ctypes.create_string_buffer(256)
    status = _library(warp_size).tiledmm_host_gemm(
        ctypes.byref(problem),
        algorithm.encode(),
        ctypes.c_uint64(seed),
        ctypes.byref(counts),
        None,  # nothing is to fail
        reason,
        ctypes.c_size_t(len(reason)),
    )
    if status != 0:
        error = {-1: RuntimeError, 1: ValueError, 2: NotImplementedError}.get(status, RuntimeError)
        raise error(f"{algorithm}: {reason.value.decode()}")
    size = a.element_size()
    return Counts(
        global_load_elements=counts.global_load_bytes // size,
        global_load_sectors=counts.global_load_sectors,
        global_store_sectors=counts.global_store_sectors,
        shared_loads=counts.shared_load_bytes // size,
        shared_stores=counts.shared_store_bytes // size,
        bank_conflicts=counts.bank_conflicts,
        barriers=counts.barriers,
        flops=counts.flops,
    )

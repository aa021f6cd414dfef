"""What the C++ side takes by value, for ctypes: the arguments of a rung's host code and of its kernels."""

import ctypes

from torch_tiledmm.host_gpu import _BatchDim, _GemmProblem

Allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
Release = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class FoldedProblem(ctypes.Structure):  # csrc/core/problem.h
    _fields_ = [
        ("gemm", _GemmProblem),
        ("batch_size", ctypes.c_int64),
        ("chunk_k", ctypes.c_int64),
        ("asked_n", ctypes.c_int64),
        ("batch_dims", _BatchDim * 6),
    ]

    def __init__(self, **fields: object) -> None:
        super().__init__(gemm=_GemmProblem(), **fields)


class Executor(ctypes.Structure):  # csrc/core/executor.h
    _fields_ = [
        ("self", ctypes.c_void_p),
        *[(name, ctypes.c_int32) for name in ("num_threads", "device_idx", "num_cus", "warp_size")],
        ("stream", ctypes.c_void_p),
        ("parallel_for", ctypes.c_void_p),
        ("allocate", Allocate),
        ("release", Release),
        ("launched", ctypes.c_void_p),
    ]

"""The fastest that cuBLASLt can do with a product: its algorithms are measured, and none is taken on its word.

The library offers a list (cublasLtMatmulAlgoGetHeuristic). Around the fastest of the list one attribute at a time is
changed: cluster, stages, parts of k, tile, swizzle, the algorithm's own option. The fastest of all are changed next,
until none of them is new. Then come the algorithms that the library does not offer (cublasLtMatmulAlgoGetIds).

A row-major C is the column-major C^T = B^T A^T, so that the library's first operand is our B. Numbers of types and
attributes are those of the cuBLAS documentation.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from ctypes import POINTER, byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import torch

from torch_tiledmm.testing.timing import time_on_gpu

WORKSPACE_BYTES = 32 << 20
MOST_OFFERED = 64  # asked for; the library may offer fewer
CENTRES = 3  # the fastest algorithms, whose neighbours are tried
FINALISTS = 6  # algorithms that are timed once more
LARGEST_ERROR = 0.05  # of a right result against torch's, over its largest element: sums of parts may be in 16 bits

_TYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 14}  # cudaDataType
_COMPUTE_TYPES = {"fp16": 68, "bf16": 68, "fp32": 68, "tf32": 77, "fp64": 70}  # cublasComputeType_t
_TRANSPOSE_A, _TRANSPOSE_B = 3, 4  # of a description
_BATCH_COUNT, _BATCH_STRIDE = 5, 6  # of a layout
_MAX_WORKSPACE, _MIN_ALIGNMENT_A, _MIN_ALIGNMENT_B = 1, 5, 6  # of a preference
_HAS_SPLIT_K, _SUM_SCHEMES, _HAS_SWIZZLE, _TILES, _MOST_OPTION, _STAGES = 0, 1, 2, 6, 7, 13  # of an algorithm, to read
_CONFIG: dict[str, tuple[int, type]] = {  # of an algorithm, to write: number and type
    "tile": (1, c_uint32),
    "split_k": (2, c_int32),
    "sum_scheme": (3, c_uint32),
    "swizzle": (4, c_uint32),
    "option": (5, c_uint32),
    "stages": (6, c_uint32),
    "cluster": (8, c_uint16),
}
_CLUSTERS = (0, *range(2, 17))  # the library's choice, and those whose sides are powers of two
_SPLIT_K = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
_ALL_SUM_SCHEMES = (1, 2, 4)  # bits: sums in C, in the compute type, in C's type
_OPTIONS = 8  # at most so many of an algorithm's own


class LibraryError(Exception):
    """The library is not there, or a call of it failed."""


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t."""

    _fields_ = [("data", c_uint64 * 8)]


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", Algorithm),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


_SET = (c_void_p, c_int, c_void_p, c_size_t)
_GET = (*_SET, POINTER(c_size_t))
_PRODUCT = (c_void_p,) * 6  # handle, description, layouts of A, B, C and D
_OF_TYPES = (c_void_p, *(c_int,) * 6)  # handle, compute type, types of scale, A, B, C and D
_ARGUMENTS = {
    "Create": (c_void_p,),
    "MatmulDescCreate": (c_void_p, c_int, c_int),
    "MatmulDescDestroy": (c_void_p,),
    "MatmulDescSetAttribute": _SET,
    "MatrixLayoutCreate": (c_void_p, c_int, c_uint64, c_uint64, c_int64),
    "MatrixLayoutDestroy": (c_void_p,),
    "MatrixLayoutSetAttribute": _SET,
    "MatmulPreferenceCreate": (c_void_p,),
    "MatmulPreferenceDestroy": (c_void_p,),
    "MatmulPreferenceSetAttribute": _SET,
    "MatmulAlgoGetHeuristic": (*_PRODUCT, c_void_p, c_int, c_void_p, POINTER(c_int)),
    "MatmulAlgoGetIds": (*_OF_TYPES, c_int, c_void_p, POINTER(c_int)),
    "MatmulAlgoInit": (*_OF_TYPES, c_int, c_void_p),
    "MatmulAlgoCheck": (*_PRODUCT, c_void_p, c_void_p),
    "MatmulAlgoCapGetAttribute": _GET,
    "MatmulAlgoConfigSetAttribute": _SET,
    "MatmulAlgoConfigGetAttribute": _GET,
    "Matmul": (
        *(c_void_p, c_void_p, c_void_p),  # handle, description, alpha
        *(c_void_p,) * 4,  # A and B with their layouts
        *(c_void_p,) * 5,  # beta, C and D with their layouts
        *(c_void_p, c_void_p, c_size_t, c_void_p),  # algorithm, workspace and its size, stream
    ),
}


def find_library() -> Path | str:
    """The library that torch has loaded, or would load."""
    if torch.version.cuda is None:
        raise LibraryError("this torch has no cuBLASLt")
    name = f"libcublasLt.so.{torch.version.cuda.split('.')[0]}"
    try:
        ctypes.CDLL(name)  # of a library that is loaded its name is enough
        return name
    except OSError:
        for path in Path(torch.__file__).parents[1].glob(f"nvidia/*/lib/{name}"):
            return path
    raise LibraryError(f"there is no {name}")


class CublasLt:
    """The library with a handle and a workspace. Its calls raise LibraryError for any status but success."""

    def __init__(self, path: Path | str, device: str = "cuda"):
        library = ctypes.CDLL(str(path))
        self._functions = {}
        for name, arguments in _ARGUMENTS.items():
            function = getattr(library, f"cublasLt{name}")
            function.argtypes, function.restype = arguments, c_int
            self._functions[name] = function
        self.workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self.handle = c_void_p()
        self.call("Create", byref(self.handle))

    def call(self, name: str, *arguments: Any) -> None:
        status = self._functions[name](*arguments)
        if status:
            raise LibraryError(f"cublasLt{name}: status {status}")

    def stream(self) -> int:
        return torch.cuda.current_stream().cuda_stream


class Descriptor:
    """One of the library's opaque structures, of a kind that has Create, SetAttribute and Destroy."""

    def __init__(self, lt: CublasLt, kind: str, *arguments: int):
        self._lt, self._kind, self.pointer = lt, kind, c_void_p()
        lt.call(f"{kind}Create", byref(self.pointer), *arguments)

    def set(self, attribute: int, value: Any) -> None:
        self._lt.call(f"{self._kind}SetAttribute", self.pointer, attribute, byref(value), ctypes.sizeof(value))

    def __del__(self) -> None:
        if self.pointer:
            self._lt.call(f"{self._kind}Destroy", self.pointer)


def column_major(matrix: torch.Tensor) -> tuple[int, int, int, bool]:
    """Rows, columns and leading dimension of the memory read column by column, and whether that is the matrix itself
    and not its transpose. A single row or column is read as one column, whose elements follow each other.
    """
    rows, columns = matrix.shape[-2:]
    row_stride, column_stride = matrix.stride()[-2:]
    is_row_major = column_stride == 1 and not (columns == 1 and row_stride == 1)
    if is_row_major:
        return columns, rows, max(row_stride, columns), False
    if row_stride != 1:
        raise LibraryError(f"strides {matrix.stride()} have no leading dimension")
    return rows, columns, max(column_stride, rows), True


def alignment_of(tensor: torch.Tensor) -> int:
    """Bytes, at most 256."""
    return math.gcd(tensor.data_ptr(), 256)


class Product:
    """A by B, matrices or batches of them, as the library sees it: which algorithms there are, and a call of one."""

    def __init__(self, lt: CublasLt, a: torch.Tensor, b: torch.Tensor, precision: str):
        self._lt, self._a, self._b = lt, a, b
        is_double = a.dtype == torch.float64
        self._compute_type, type = _COMPUTE_TYPES[precision], _TYPES[a.dtype]
        self._scale_type = _TYPES[torch.float64 if is_double else torch.float32]
        scalar = ctypes.c_double if is_double else c_float
        self._one, self._zero = scalar(1), scalar(0)
        self._size = (*a.shape[:-1], b.shape[-1])
        self._types = (self._compute_type, self._scale_type, type, type, type, type)
        self._desc = Descriptor(lt, "MatmulDesc", self._compute_type, self._scale_type)
        layouts = []
        for matrix, attribute in ((b, _TRANSPOSE_A), (a, _TRANSPOSE_B), (a.new_empty(self._size), None)):
            rows, columns, leading, is_transposed = column_major(matrix)
            if attribute is None:  # C^T, column by column
                rows, columns, leading = self._size[-1], self._size[-2], self._size[-1]
            else:
                self._desc.set(attribute, c_int32(is_transposed))
            layout = Descriptor(lt, "MatrixLayout", type, rows, columns, leading)
            if matrix.dim() == 3:
                layout.set(_BATCH_COUNT, c_int32(matrix.shape[0]))
                layout.set(_BATCH_STRIDE, c_int64(matrix.stride(0)))
            layouts.append(layout)
        self._layouts = [layouts[i] for i in (0, 1, 2, 2)]

    def _problem(self) -> tuple[c_void_p, ...]:
        return (self._lt.handle, self._desc.pointer, *(layout.pointer for layout in self._layouts))

    def offered(self) -> list[Algorithm]:
        """What the library's heuristic offers, the one that it thinks the fastest first."""
        preference = Descriptor(self._lt, "MatmulPreference")
        preference.set(_MAX_WORKSPACE, c_uint64(WORKSPACE_BYTES))
        preference.set(_MIN_ALIGNMENT_A, c_uint32(alignment_of(self._b)))
        preference.set(_MIN_ALIGNMENT_B, c_uint32(alignment_of(self._a)))
        results, count = (HeuristicResult * MOST_OFFERED)(), c_int()
        arguments = (*self._problem(), preference.pointer, MOST_OFFERED, results, byref(count))
        self._lt.call("MatmulAlgoGetHeuristic", *arguments)
        return [copy_of(result.algorithm) for result in results[: count.value] if result.state == 0]

    def others(self) -> Iterator[Algorithm]:
        """Every algorithm of the library with each of its tiles and the last stages that fit it, which are the most."""
        ids, count = (c_int * 256)(), c_int()
        self._lt.call("MatmulAlgoGetIds", self._lt.handle, *self._types, len(ids), ids, byref(count))
        for algorithm_id in ids[: count.value]:
            algorithm = Algorithm()
            try:
                self._lt.call("MatmulAlgoInit", self._lt.handle, *self._types, algorithm_id, byref(algorithm))
            except LibraryError:
                continue
            stages = self._capability(algorithm, _STAGES, c_uint32) or [0]
            for tile in self._capability(algorithm, _TILES, c_uint32) or [0]:
                fitting = (self._changed(algorithm, tile=tile, stages=stage) for stage in reversed(stages))
                yield from itertools.islice(filter(None, fitting), 1)

    def neighbours(self, algorithm: Algorithm) -> Iterator[Algorithm]:
        """The algorithm with one attribute changed, where the library can run that."""
        changes: list[dict[str, int]] = [{"cluster": cluster} for cluster in _CLUSTERS]
        changes += [{"stages": stages} for stages in self._capability(algorithm, _STAGES, c_uint32)]
        changes += [{"split_k": 1, "sum_scheme": 0}]
        if any(self._capability(algorithm, _HAS_SPLIT_K, c_int32)):
            (schemes,) = self._capability(algorithm, _SUM_SCHEMES, c_uint32) or [0]
            allowed = [scheme for scheme in _ALL_SUM_SCHEMES if scheme & schemes]
            changes += [{"split_k": parts, "sum_scheme": scheme} for parts in _SPLIT_K for scheme in allowed]
        changes += [{"tile": tile} for tile in self._capability(algorithm, _TILES, c_uint32)]
        if any(self._capability(algorithm, _HAS_SWIZZLE, c_uint32)):
            changes += [{"swizzle": value} for value in (0, 1)]
        most_option = max(self._capability(algorithm, _MOST_OPTION, c_int32), default=0)
        changes += [{"option": option} for option in range(min(most_option + 1, _OPTIONS))]
        for change in changes:
            if changed := self._changed(algorithm, **change):
                yield changed

    def config(self, algorithm: Algorithm) -> dict[str, int]:
        """The attributes, as the library numbers them."""
        values = {}
        for name, (attribute, type) in {"id": (0, c_int32), **_CONFIG}.items():
            value, size = type(), c_size_t()
            arguments = (byref(algorithm), attribute, byref(value), ctypes.sizeof(value), byref(size))
            self._lt.call("MatmulAlgoConfigGetAttribute", *arguments)
            values[name] = value.value
        return values

    def run(self, algorithm: Algorithm) -> torch.Tensor:
        """The product, on torch's current stream."""
        c = self._a.new_empty(self._size)
        first, second, third, fourth = (layout.pointer for layout in self._layouts)
        self._lt.call(
            "Matmul",
            *(self._lt.handle, self._desc.pointer, byref(self._one)),
            *(self._b.data_ptr(), first, self._a.data_ptr(), second),
            *(byref(self._zero), c.data_ptr(), third, c.data_ptr(), fourth),
            *(byref(algorithm), self._lt.workspace.data_ptr(), WORKSPACE_BYTES, self._lt.stream()),
        )
        return c

    def _changed(self, algorithm: Algorithm, **values: int) -> Algorithm | None:
        """A copy with these attributes; None where the library cannot run it."""
        changed, result = copy_of(algorithm), HeuristicResult()
        try:
            for name, number in values.items():
                attribute, type = _CONFIG[name]
                value = type(number)
                arguments = (byref(changed), attribute, byref(value), ctypes.sizeof(value))
                self._lt.call("MatmulAlgoConfigSetAttribute", *arguments)
            self._lt.call("MatmulAlgoCheck", *self._problem(), byref(changed), byref(result))
        except LibraryError:
            return None
        return changed if result.state == 0 and result.workspace <= WORKSPACE_BYTES else None

    def _capability(self, algorithm: Algorithm, attribute: int, type: type) -> list[int]:
        """A number, or as many as there are; none where the library does not tell."""
        size = c_size_t()
        try:
            self._lt.call("MatmulAlgoCapGetAttribute", byref(algorithm), attribute, None, 0, byref(size))
            values = (type * (size.value // ctypes.sizeof(type)))()
            arguments = (byref(algorithm), attribute, values, ctypes.sizeof(values), byref(size))
            self._lt.call("MatmulAlgoCapGetAttribute", *arguments)
        except LibraryError:
            return []
        return list(values)


def copy_of(algorithm: Algorithm) -> Algorithm:
    return Algorithm.from_buffer_copy(algorithm)


Timed = list[tuple[float, Algorithm]]  # seconds


def search(product: Product, seconds_of: Callable[[Algorithm], float], seconds: float) -> Timed:
    """Every algorithm that was tried with its time, the fastest first; a refused one's time is infinite.

    The offered ones are tried in any case, the others until the time is spent.
    """
    tried: dict[bytes, tuple[float, Algorithm]] = {}
    were_centres: set[bytes] = set()
    deadline = time.perf_counter() + seconds

    def attempt(algorithms: Iterable[Algorithm], *, in_any_case: bool = False) -> None:
        for algorithm in algorithms:
            if not in_any_case and time.perf_counter() >= deadline:
                return
            if bytes(algorithm) not in tried:
                tried[bytes(algorithm)] = (seconds_of(algorithm), algorithm)

    def fastest() -> Timed:
        return sorted(tried.values(), key=lambda timed: timed[0])

    def next_centre() -> Algorithm | None:
        could_run = (algorithm for spent, algorithm in fastest()[:CENTRES] if spent < math.inf)
        return next((algorithm for algorithm in could_run if bytes(algorithm) not in were_centres), None)

    def climb() -> None:
        while time.perf_counter() < deadline and (centre := next_centre()):
            were_centres.add(bytes(centre))
            attempt(product.neighbours(centre))

    attempt(product.offered(), in_any_case=True)
    climb()
    attempt(product.others())
    climb()
    return fastest()


def fastest_call(
    lt: CublasLt, a: torch.Tensor, b: torch.Tensor, precision: str, seconds: float
) -> tuple[Callable[[], torch.Tensor], dict]:
    """The product by the fastest algorithm that a search of so many seconds finds, and what is to be said of it.

    Raises LibraryError where the library computes no such product.
    """
    product = Product(lt, a, b, precision)

    def seconds_of(algorithm: Algorithm) -> float:
        try:
            return time_on_gpu({"it": lambda: product.run(algorithm)}, most_samples=1)["it"].minimum
        except LibraryError:
            return math.inf

    tried = search(product, seconds_of, seconds)
    expected = torch.matmul(a, b)
    most = LARGEST_ERROR * expected.abs().max()

    def is_right(algorithm: Algorithm) -> bool:
        return bool((product.run(algorithm) - expected).abs().max() <= most)

    could_run = [algorithm for spent, algorithm in tried if spent < math.inf]
    finalists: list[Algorithm] = []
    for algorithm in could_run:
        if len(finalists) < FINALISTS and is_right(algorithm):
            finalists.append(algorithm)
    if not finalists:
        raise LibraryError(f"none of {len(tried)} algorithms computed the product")
    arms = {str(i): (lambda algorithm=algorithm: product.run(algorithm)) for i, algorithm in enumerate(finalists)}
    timings = time_on_gpu(arms, seconds=0.02, most_samples=12)
    best = finalists[int(min(timings, key=lambda name: timings[name].median))]
    notes = {"tried": len(tried), "refused": len(tried) - len(could_run), "algorithm": product.config(best)}
    return lambda: product.run(best), notes

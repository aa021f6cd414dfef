"""What ``algorithm="split"`` computes, in torch: its terms in every bit, and its sums as the chips are said to add.

The terms of fp16 are those of csrc/kernels/split/terms.h, the terms of bf16 those of
csrc/kernels/cpu/amx_split/pack.h. The sums are simulated: Hopper's matrix unit and that of gfx942 by what
arXiv 2511.10909 says of them, AMX by Intel's manual. Flagged rows and denormal sums are not simulated. No kernel runs,
so this also says what chips would compute that are not there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_K = 512  # of k: it has one scale, and a sum of its own
_GROUP_K = 1 << 14
_MIN_EXPONENT, _MAX_EXPONENT = -60, 59
# A dtype's rule: the exponent that terms give to the largest of a chunk, and how many powers of two below that one
# others may lie.
_TERM_RULES = {torch.float32: (14, 40), torch.float16: (15, 40), torch.bfloat16: (15, 32)}
_LEAST_EXPONENT = -500  # of what is cut; that of zero


def fp16_terms(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """First and second terms, scales and flags of the rows of a (rows, k) matrix in float32 or 16 bits: two of
    (rows, chunks, 512) in float16, one of (rows, chunks) in float32, one of (rows,) in bool.

    An element is scale * (first + 2^-11 second). The second terms of 16 bits are zero. The terms of a flagged row stand
    for nothing.
    """
    rows, k = x.shape
    top, range_of_terms = _TERM_RULES[x.dtype]
    x = F.pad(x.float(), (0, -k % CHUNK_K)).reshape(rows, -1, CHUNK_K)
    largest = x.abs().nan_to_num(torch.inf, torch.inf).amax(-1, keepdim=True)
    exponent = torch.frexp(largest)[1] - 1
    in_range = largest.isfinite() & (largest > 0) & (exponent >= _MIN_EXPONENT) & (exponent <= _MAX_EXPONENT)
    exponent = torch.where(in_range, exponent, top)
    x = torch.where(in_range, torch.ldexp(x.double(), top - exponent), 0.0).float()
    is_flagged = (~in_range & (largest != 0)) | ((x != 0) & (x.abs() < 2.0 ** (top - range_of_terms)))
    first = x.half()
    second = ((x - first.float()) * 2048).half()
    scale = torch.ldexp(torch.ones(exponent.shape, device=x.device), exponent - top)[..., 0]
    return first, second, scale, is_flagged.flatten(1).any(1)


def bf16_terms(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """High, middle and low terms of a float32 tensor, in float32. Their sum is the tensor."""

    def nearest(value: Tensor) -> Tensor:
        return ((value.view(torch.int32) + 0x8000) & -0x10000).view(torch.float32)

    high = nearest(x)
    middle = nearest(x - high)
    return high, middle, x - high - middle


def simulated_split_chunks(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b``, (m, k) by (k, n) in float32, in the order ``split_chunks``. Raises ValueError for k beyond 2^14."""

    def add_chunk(total: Tensor, first_a: Tensor, second_a: Tensor, first_b: Tensor, second_b: Tensor) -> Tensor:
        zero = torch.zeros_like(total)
        main, corrections = zero, zero
        for begin in range(0, first_a.shape[1], 64):
            steps = [slice(step, step + 16) for step in range(begin, begin + 64, 16)]
            for step in steps:
                main = _rounded(main + _hopper_sum(zero, first_a[:, step], first_b[:, step]))
            for left, right in ((second_a, first_b), (first_a, second_b)):
                for step in steps:
                    corrections = _hopper_sum(corrections, left[:, step], right[:, step])
        return _rounded(total + _rounded(main + corrections / 2048))

    return _sum_of_chunks(a, b, add_chunk)


def simulated_mfma_split_sums(a: Tensor, b: Tensor) -> Tensor:
    """The same in the order ``mfma_split_sums``, on gfx942."""
    # What one sum takes of 32 of k: an instruction has the first, or the second, halves of each eight.
    eights = [[8 * e + half + i for e in (pair, pair + 1) for i in range(4)] for half in (0, 4) for pair in (0, 2)]

    def add_products(sums: Tensor, left: Tensor, right: Tensor) -> Tensor:
        for eight in eights:
            sums = _gfx942_sum(sums, left[:, eight], right[:, eight])
        return sums

    def add_chunk(total: Tensor, *terms: Tensor) -> Tensor:
        for begin in range(0, terms[0].shape[1], 32):
            first_a, second_a, first_b, second_b = (term[:, begin : begin + 32] for term in terms)
            corrections = add_products(torch.zeros_like(total), second_a, first_b)
            corrections = add_products(corrections, first_a, second_b)
            total = _rounded(total + add_products(corrections / 2048, first_a, first_b))
        return total

    return _sum_of_chunks(a, b, add_chunk)


def simulated_amx_split_chunks(a: Tensor, b: Tensor) -> Tensor:
    """The same in the order ``amx_split_chunks``, whatever n and k are."""
    k = a.shape[1]
    high, middle, low = range(3)
    of_a, of_b = ([F.pad(term, (0, -k % 32)).double() for term in bf16_terms(x)] for x in (a, b.mT.contiguous()))
    total = torch.zeros(a.shape[0], b.shape[1], device=a.device)
    for chunk in range(0, k, CHUNK_K):
        sums = torch.zeros_like(total)
        for begin in range(chunk, min(chunk + CHUNK_K, k), 32):
            for i, j in ((low, high), (middle, high), (middle, middle), (high, middle), (high, low), (high, high)):
                left, right = (term[:, begin : begin + 32].unflatten(1, (2, 16)) for term in (of_a[i], of_b[j]))
                chains = torch.zeros(*total.shape, 2, device=a.device)
                for p in range(16):
                    chains = (chains.double() + left[:, None, :, p] * right[:, :, p]).float()
                sums = sums + chains.sum(-1)
        total = sums if chunk == 0 else total + sums
    return total


# By the order of summation.
SIMULATED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "split_chunks": simulated_split_chunks,
    "mfma_split_sums": simulated_mfma_split_sums,
    "amx_split_chunks": simulated_amx_split_chunks,
}


def _sum_of_chunks(a: Tensor, b: Tensor, add_chunk: Callable[..., Tensor]) -> Tensor:
    """``add_chunk`` gets the total and the terms of a chunk. All are float64, the total in units of the chunk."""
    k = a.shape[1]
    if k > _GROUP_K:
        raise ValueError(f"k is {k}: more than {_GROUP_K} of k is summed in groups, which are not simulated")
    of_a, of_b = fp16_terms(a), fp16_terms(b.mT.contiguous())
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64, device=a.device)
    for chunk in range(of_a[2].shape[1]):
        length = min(CHUNK_K, -(-(k - chunk * CHUNK_K) // 64) * 64)
        terms = (term[:, chunk, :length].double() for term in (*of_a[:2], *of_b[:2]))
        scale = of_a[2][:, chunk, None].double() * of_b[2][:, chunk].double()
        total = add_chunk(total / scale, *terms) * scale
    return total.float()


def _hopper_sum(c: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """C + products of (m, 16) by (n, 16). All are cut 25 bits below the largest one's exponent, the sum to 24 bits."""
    products, largest = _products(a, b)
    largest = torch.maximum(largest, _exponent(c))
    total = _cut(torch.cat([products, c[..., None]], -1), (largest - 25)[..., None], torch.trunc).sum(-1)
    return _cut(total, _exponent(total) - 23, torch.trunc)


def _gfx942_sum(c: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """C + products of (m, 8) by (n, 8), which are cut 24 bits below the largest one's exponent; C is rounded down to as
    many bits, the sum to nearest."""
    products, largest = _products(a, b)
    total = _cut(products, (largest - 24)[..., None], torch.trunc).sum(-1)
    return _rounded(total + _cut(c, torch.maximum(largest, _exponent(c)) - 24, torch.floor))


def _products(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """All products of (m, count) by (n, count), and for each of (m, n) the largest sum of two exponents."""
    exponents = _exponent(a)[:, None] + _exponent(b)
    return a[:, None] * b, exponents.amax(-1).clamp_min(_LEAST_EXPONENT)


def _exponent(x: Tensor) -> Tensor:
    """The power of two that a magnitude begins with."""
    return torch.where(x == 0, _LEAST_EXPONENT, torch.frexp(x)[1] - 1)


def _cut(x: Tensor, exponent: Tensor, round_bits: Callable[[Tensor], Tensor]) -> Tensor:
    """float64 numbers as multiples of 2^exponent."""
    return torch.ldexp(round_bits(torch.ldexp(x, -exponent)), exponent)


def _rounded(x: Tensor) -> Tensor:
    """To fp32, in float64."""
    return x.float().double()

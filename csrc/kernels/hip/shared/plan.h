// What the plans and launchers of AMD's kernels share, as plain data and pure functions.
#pragma once

#include "core/chip.h"
#include "core/math.h"
#include "core/operand.h"
#include "core/problem.h"

namespace tiledmm {

// ---- The time of what overlaps, in cost models

// Microseconds of two things at once: the longer one's, and a little of the other's, so that where memory decides, the
// tile is chosen that multiplies less that is empty.
inline double overlapped_us(double one, double other) { return one > other ? one + 0.01 * other : other + 0.01 * one; }

// ---- The time of CDNA's tiles

// Microseconds of blocks that take `block_us` each at a CU's peak. CUs take `most` blocks at a time, in rounds, and
// reach the share `busy` of their peak then, and with a single block the share `alone`.
inline double rounds_us(int64_t blocks, int64_t most, double block_us, double busy, double alone, const Chip& chip) {
  const int64_t rounds = blocks / (chip.num_cus * most);
  const auto left = double(ceil_div(blocks - rounds * chip.num_cus * most, chip.num_cus));  // of a CU in the last round
  const double last = left / busy > 1 / alone ? left / busy : 1 / alone;
  return block_us * (double(rounds * most) / busy + (left > 0 ? last : 0));
}

// ---- Operands that are loaded several words at a time through a Buffer

// Rows begin at multiples of 4 bytes and hold whole words, and 32 bits count the bytes of 128 of them.
inline bool has_whole_tiles(const OperandView& view, const FoldedProblem& problem) {
  constexpr int64_t kMostRows = 128, kMostBytes = int64_t(1) << 31;
  const bool is_k_contiguous = is_k_major(view);
  const int64_t close = is_k_contiguous ? view.k : view.rows, far = is_k_contiguous ? view.stride_row : view.stride_k;
  const int64_t bytes = size_of(problem.gemm.dtype_a);
  return copy_width(view, problem) >= 4 && close * bytes % 4 == 0 && (kMostRows * far + 1024) * bytes < kMostBytes;
}

// ---- Strides that mean nothing

// The stride from a single row to the next, or from a single k, becomes 0: it need not be aligned, nor fit into 32
// bits, and kernels compute places from it.
inline void clear_single_strides(GemmProblem& p) {
  if (p.m == 1 && p.stride_ak == 1) p.stride_am = 0;
  if (p.n == 1 && p.stride_bk == 1) p.stride_bn = 0;
  if (p.k == 1 && p.stride_am == 1) p.stride_ak = 0;
  if (p.k == 1 && p.stride_bn == 1) p.stride_bk = 0;
}

// ---- The k tiles of CDNA's kernels

// A tile is staged 128 bytes of k at a time.
inline constexpr int kMfmaRowBytes = 128;
constexpr int mfma_block_k(DType dtype) { return kMfmaRowBytes / int(size_of(dtype)); }

// The rows of the largest tile.
inline constexpr int kMaxMfmaBlock = 256;

// A block has one item of the batch: a loop would keep in registers what does not change in it. So many at a time.
inline constexpr int64_t kMaxMfmaItems = 65535;

}  // namespace tiledmm

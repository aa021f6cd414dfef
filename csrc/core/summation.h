// The order of summation of the native GPU kernels. It depends on n, k and the precision alone, so that a row's bits do
// not depend on m, on the batch or on the kernel that computed it (docs/numerics.md).
#pragma once

#include "core/math.h"
#include "core/problem.h"

namespace tiledmm {

// k is summed in chunks of so many elements: each chunk from zero on, in the order of k, then the chunks' sums in their
// order. Short k is one chunk (of one element where it is 0). The chunks of a tile can be computed side by side, and
// their sums round less than one long chain.
//
// Chunks are multiples of this, so that each ends with a stage of every kernel; in fp64 of its own unit.
inline constexpr int64_t kChunkUnit = 256;

// By multiply-adds in fp32, whose tiles hold few sums: chunks cost them little, whatever n, and are the shorter the
// less there is to do besides.
constexpr int64_t simt_chunk_k(int64_t n, int64_t k) {
  const int64_t chunk = k >= 1 << 15 ? 4 * kChunkUnit : n <= 1024 && k < 1 << 13 ? kChunkUnit : 2 * kChunkUnit;
  return k >= 2 * chunk ? chunk : max_of(k, 1);
}

// By matrix instructions in 16 bits, and in tf32, whose k tiles hold half as many elements: as many chunks as give the
// multiprocessors work if there are few rows. Tiles that sum chunks are 192 columns wide at most, which costs many rows
// 2 to 12 %: not where k is shorter than 5 n. For any n where one chain's error would exceed that of cuBLAS, which
// splits k.
constexpr int64_t mma_chunk_k(int64_t n, int64_t k, bool is_tf32) {
  constexpr int64_t kNarrow = 256, kWide = 2048, kMost = 8, kLong = 1 << 17, kMostOfLong = 1 << 14;
  const int64_t least = (is_tf32 ? 2 : 4) * kChunkUnit;
  int64_t chunk = max_of(k, 1);
  if (k >= 4 * least && n <= kNarrow) {
    chunk = k < 32 * kChunkUnit ? least : 4 * kChunkUnit;
  } else if (k >= 4 * least && n <= kWide && k >= (is_tf32 ? 5 * n / 2 : 5 * n)) {
    chunk = round_up(ceil_div(k, min_of(min_of(2 * kWide / n, k / least), kMost)), kChunkUnit);
  }
  return k >= kLong ? min_of(chunk, kMostOfLong) : chunk;
}

// In fp64: chunks of about equal length. The fewer columns C has, the fewer tiles unless there are many rows, and the
// more chunks it takes to give every multiprocessor work: 4096 / n, or four. Where there are many rows, chunks are a
// burden: tiles that hold a total besides their sums take 5 % longer, others visit one in memory.
constexpr int64_t chunk_k_f64(int64_t n, int64_t k) {
  constexpr int64_t kUnit = 32, kLeast = 320, kMost = 8192, kMany = 64, kFew = 4, kEnough = 4096, kLeastOfFew = 4096;
  const int64_t most_chunks = max_of(kEnough / max_of(n, 1), kFew);
  const int64_t least =
      min_of(max_of(max_of(n, kLeast), max_of(k / kMany, min_of(k / most_chunks, kLeastOfFew))), kMost);
  return k < 2 * least ? max_of(k, 1) : round_up(ceil_div(k, k / least), kUnit);
}

// Of the caller's problem, before a batch is folded into n or C is transposed.
inline int64_t chunk_k(const GemmProblem& problem) {
  const int64_t n = problem.n, k = problem.k;
  if (problem.dtype == DType::f64) return chunk_k_f64(n, k);
  const bool is_f32 = problem.dtype == DType::f32;
  return is_f32 && !problem.allow_tf32 ? simt_chunk_k(n, k) : mma_chunk_k(n, k, is_f32);
}

}  // namespace tiledmm

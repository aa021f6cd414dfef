// The order of summation of the native GPU kernels. It depends on n, k and the precision alone, so that a row's bits do
// not depend on m, on the batch or on the kernel that computed it (docs/NUMERICS.md).
#pragma once

#include "core/math.h"
#include "core/problem.h"

namespace tiledmm {

inline constexpr int64_t kChunkK = 1024;  // of 16-bit elements
inline constexpr int64_t kLongK = 1 << 17, kLongChunkK = 1 << 14;
inline constexpr int64_t kChunkUnit = 256;  // chunks of matrix instructions end with a stage of every kernel

// k is summed in chunks of so many elements: each chunk from zero on, in the order of k, then the chunks' sums in their
// order. One chunk (of one element where k is 0), but
// - where n is small and k is long: there chunks are computed side by side (split k of fixed size);
// - by multiply-adds in fp32 (`is_simt`), whose tiles hold few sums: chunks cost them little, whatever n, and are the
//   shorter the less there is to do besides;
// - where k is so long that one chain's error would exceed that of a product whose k is split.
constexpr int64_t simt_chunk_k(int64_t n, int64_t k) {
  const int64_t chunk = k >= 1 << 15 ? 1024 : n <= 1024 && k < 1 << 13 ? 256 : 512;
  return k >= 2 * chunk ? chunk : max_of(k, 1);
}

// By matrix instructions in 16 bits, and in tf32, whose k tiles hold half as many elements. Tiles that sum chunks are
// 192 columns wide at most, which costs large products 2 to 12 %: so not where k is shorter than 5 n.
constexpr int64_t mma_chunk_k(int64_t n, int64_t k, bool is_tf32) {
  constexpr int64_t kNarrow = 256, kWide = 4096, kMost = 8;
  const int64_t least = is_tf32 ? kChunkK / 2 : kChunkK;
  int64_t chunk = max_of(k, 1);
  if (k >= 4 * least && n <= kNarrow) {
    chunk = least;
  } else if (k >= 4 * least && k >= (is_tf32 ? 5 * n / 2 : 5 * n) && 2 * n <= kWide) {
    chunk = round_up(ceil_div(k, min_of(min_of(kWide / n, k / least), kMost)), kChunkUnit);
  }
  return k >= kLongK ? min_of(chunk, kLongChunkK) : chunk;
}

// In fp64: chunks of about equal length. The fewer columns C has, the fewer tiles unless there are many rows, and the
// more chunks it takes to give every multiprocessor work. Where there are many rows, each chunk but the last costs a
// tile a visit to its total: about as much as 64 elements of k.
constexpr int64_t chunk_k_f64(int64_t n, int64_t k) {
  constexpr int64_t kUnit = 32, kLeast = 512, kMost = 8192, kMany = 64;
  const int64_t least = min_of(max_of(max_of(9 * n / 4, kLeast), k / kMany), kMost);
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

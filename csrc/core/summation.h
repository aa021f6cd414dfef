// The order of summation of the native GPU kernels. It depends on n, k and the precision alone, so that a row's bits do
// not depend on m, on the batch or on the kernel that computed it (docs/NUMERICS.md).
#pragma once

#include "core/math.h"
#include "core/problem.h"

namespace tiledmm {

inline constexpr int64_t kMaxChunkedN = 256, kMaxDividedN = 768;
inline constexpr int64_t kChunkK = 1024;
inline constexpr int64_t kMinSimtChunkK = 256;
inline constexpr int64_t kLongK = 1 << 17, kLongChunkK = 1 << 14;

// k is summed in chunks of so many elements: each chunk from zero on, in the order of k, then the chunks' sums in their
// order. One chunk (of one element where k is 0), but
// - where n is small and k is long: there chunks are computed side by side (split k of fixed size);
// - where n is of medium size and k much longer: four of them;
// - by multiply-adds in fp32 (`is_simt`), whose tiles hold few sums: chunks cost them little, whatever n, and are the
//   shorter the less there is to do besides;
// - where k is so long that one chain's error would exceed that of a product whose k is split.
constexpr int64_t chunk_k(int64_t n, int64_t k, bool is_simt) {
  if (is_simt) {
    const int64_t chunk = k >= 1 << 15 ? kChunkK : n <= 1024 && k < 1 << 13 ? kMinSimtChunkK : kChunkK / 2;
    return k >= 2 * chunk ? chunk : max_of(k, 1);
  }
  if (n <= kMaxChunkedN && k >= 4 * kChunkK) return kChunkK;
  if (k >= kLongK) return kLongChunkK;
  if (n > kMaxChunkedN && n <= kMaxDividedN && k >= 16 * n) return round_up(ceil_div(k, 4), kChunkK);
  return max_of(k, 1);
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
  if (problem.dtype == DType::f64) return chunk_k_f64(problem.n, problem.k);
  return chunk_k(problem.n, problem.k, problem.dtype == DType::f32 && !problem.allow_tf32);
}

}  // namespace tiledmm

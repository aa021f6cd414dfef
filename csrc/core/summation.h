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

// Of the caller's problem, before a batch is folded into n or C is transposed.
inline int64_t chunk_k(const GemmProblem& problem) {
  return chunk_k(problem.n, problem.k, problem.dtype == DType::f32 && !problem.allow_tf32);
}

}  // namespace tiledmm

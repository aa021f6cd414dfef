// The order of summation of the native GPU kernels. It depends on n, k and the dtype alone, so that a row's bits do not
// depend on m, on the batch or on the kernel that computed it (docs/NUMERICS.md).
#pragma once

#include <cstdint>

namespace tiledmm {

inline constexpr int64_t kMaxChunkedN = 256;
inline constexpr int64_t kChunkK = 1024;

// k is summed in chunks of so many elements: each chunk from zero on, in the order of k, then the chunks' sums in their
// order. One chunk, but where n is small and k is long: there chunks are computed side by side (split k of fixed size).
// `n` is the caller's, before a batch is folded into it or C is transposed.
constexpr int64_t chunk_k(int64_t n, int64_t k) { return n <= kMaxChunkedN && k >= 4 * kChunkK ? kChunkK : k; }

}  // namespace tiledmm

// An element whose row of A or column of B is flagged, by the thread that has its sum: few rows have no kernel that
// looks for flags (fix_up.h). The sum is not a number then, as the scale of a flagged row is none. Since other sums may
// overflow, the thread decides from the elements themselves.
#pragma once

#include "core/summation.h"
#include "platform/split_terms.h"

namespace tiledmm::cuda {
namespace {

// The elements of a chunk of one row that decide whether it is flagged.
struct ChunkRange {
  uint32_t largest = 0, smallest = ~0u;

  __device__ __forceinline__ void take(float x) {
    largest = max(largest, gpu::magnitude(x));
    smallest = min(smallest, gpu::nonzero_magnitude(x));
  }
  __device__ __forceinline__ bool is_flagged() const { return gpu::ChunkScale(largest).is_flagged(smallest); }
};

// The sum by plain multiply-adds, in the order of fix_up.h, if row or column are flagged; else `found`.
__device__ __forceinline__ float fix_element(const GemmProblem& p, int row, int col, float found) {
  const float* a = static_cast<const float*>(p.a) + row * p.stride_am;
  const float* b = static_cast<const float*>(p.b) + col * p.stride_bn;
  const int k = int(p.k), chunk_k = int(simt_chunk_k(1, p.k));
  constexpr int kUnit = int(kChunkUnit);
  static_assert(kSplitChunkK % kUnit == 0, "chunks of both kinds end with a unit");
  float total = -0.0f, chain = 0;  // -0 adds nothing to any
  bool is_flagged = false;
  ChunkRange range_a, range_b;
#pragma unroll 1
  for (int first = 0; first < k; first += kUnit) {
    const int end = min(first + kUnit, k);
#pragma unroll 4
    for (int i = first; i < end; ++i) {
      const float x = a[i * p.stride_ak], y = b[i * p.stride_bk];
      chain = __fmaf_rn(x, y, chain);
      range_a.take(x);
      range_b.take(y);
    }
    if (end % chunk_k == 0 || end == k) {
      total += chain;
      chain = 0;
    }
    if (end % kSplitChunkK == 0 || end == k) {
      is_flagged |= range_a.is_flagged() || range_b.is_flagged();
      range_a = range_b = ChunkRange();
    }
  }
  return is_flagged ? total : found;
}

}  // namespace
}  // namespace tiledmm::cuda

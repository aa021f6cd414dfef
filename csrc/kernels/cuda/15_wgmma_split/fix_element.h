// An element whose row of A or column of B is flagged, by the warp that has its sum: few rows have no kernel that looks
// for flags (fix_up.h). The sum is not a number then, as the scale of a flagged row is none. Since other sums may
// overflow, the warp decides from the elements themselves.
#pragma once

#include "core/summation.h"
#include "platform/split_terms.h"

namespace tiledmm::cuda {
namespace {

// The sum by plain multiply-adds, in the order of fix_up.h, if row or column are flagged; else `found`. A lane takes a
// chunk of that order, 32 of them at a time; all lanes name the same element.

__device__ __forceinline__ float fix_element(const GemmProblem& p, int row, int col, float found) {
  const float* a = static_cast<const float*>(p.a) + row * p.stride_am;
  const float* b = static_cast<const float*>(p.b) + col * p.stride_bn;
  const int k = int(p.k), chunk_k = int(simt_chunk_k(1, k));
  constexpr int kUnit = int(kChunkUnit);
  static_assert(kSplitChunkK == 2 * kUnit, "flags are those of two units");
  float total = -0.0f;  // -0 adds nothing to any
  bool is_flagged = false;
#pragma unroll 1
  for (int64_t first = 0; first < k; first += 32 * chunk_k) {
    const int own_first = int(min(first + int(threadIdx.x % 32) * chunk_k, int64_t(k)));
    const int own_end = own_first + min(k - own_first, chunk_k);
    float chain = own_first < k ? 0.0f : -0.0f;
    gpu::ChunkRange range_a, range_b;
#pragma unroll 1
    for (int unit = 0; unit < chunk_k; unit += kUnit) {
      const int end = min(own_first + unit + kUnit, own_end);
#pragma unroll 8
      for (int i = own_first + unit; i < end; ++i) {
        const float x = a[i * p.stride_ak], y = b[i * p.stride_bk];
        chain = __fmaf_rn(x, y, chain);
        range_a.take(x);
        range_b.take(y);
      }
      if (chunk_k == kUnit) {  // the other unit is a neighbour's
        range_a.join(__shfl_xor_sync(~0u, range_a.largest, 1), __shfl_xor_sync(~0u, range_a.smallest, 1));
        range_b.join(__shfl_xor_sync(~0u, range_b.largest, 1), __shfl_xor_sync(~0u, range_b.smallest, 1));
      } else if (unit % kSplitChunkK == 0 && unit + kUnit < chunk_k) {
        continue;  // the other unit is the next one
      }
      is_flagged |= range_a.is_flagged() || range_b.is_flagged();
      range_a = range_b = gpu::ChunkRange();
    }
#pragma unroll 1
    for (int lane = 0; lane < 32; ++lane) total += __shfl_sync(~0u, chain, lane);
  }
  is_flagged = __any_sync(~0u, is_flagged);
  return is_flagged ? total : found;
}

}  // namespace
}  // namespace tiledmm::cuda

// Elements whose row of A or column of B is flagged, by the block that has their sums: few rows have no kernel that
// looks for flags (fix_up.h). Such a sum is not a number, as the scale of a flagged row is none. Since other sums may
// overflow, the block decides from the elements themselves.
#pragma once

#include "kernels/split/layout.h"
#include "kernels/split/terms.h"

namespace tiledmm::cuda {
namespace {

constexpr int kFixColumns = 8;  // neighbouring ones, whose elements of a row are computed together

// The sum of a chunk, and whether row or column are flagged for it.
struct FixChain {
  float sum;
  bool is_flagged;
};

// The element of a row and of the thread's column. If the sum `found` is not a number since row or column are flagged,
// it is computed by plain multiply-adds in the order of fix_up.h, a chunk each of the threads of this column. Thread t
// of the block has column t % kFixColumns. `chains` is shared memory, one for each thread.
template <int THREADS>
__device__ __forceinline__ float fix_column(const GemmProblem& p, int row, int col, float found, FixChain* chains) {
  const int64_t first_a = row * p.stride_am;
  const float* b = static_cast<const float*>(p.b) + col * p.stride_bn;
  const int k = found != found ? int(p.k) : 0, chunk_k = int(flagged_chunk_k(p.k));
  constexpr int kChunks = THREADS / kFixColumns;
  gpu::ChunkTotal total;
  bool is_flagged = false;
#pragma unroll 1
  for (int64_t first = 0; first < p.k; first += kChunks * chunk_k) {
    const int own_first = int(min(first + int(threadIdx.x) / kFixColumns * chunk_k, int64_t(k)));
    const int own_end = own_first + min(k - own_first, chunk_k);
    FixChain chain{own_first < k ? 0.0f : -0.0f, false};
    gpu::ChunkRange range_a, range_b;
    const auto add_products = [&](const auto& load_a) {
#pragma unroll 8
      for (int i = own_first; i < own_end; ++i) {
        const float x = load_a(first_a + i * p.stride_ak), y = b[i * p.stride_bk];
        chain.sum = __fmaf_rn(x, y, chain.sum);
        range_a.take(x);
        range_b.take(y);
      }
    };
    // Each dtype has a loop of its own, so that loads need not wait for each other.
    if (p.dtype_a == DType::f32)
      add_products([&](int64_t idx) { return static_cast<const float*>(p.a)[idx]; });
    else
      add_products([&](int64_t idx) { return gpu::load_any(p.a, p.dtype_a, idx); });
    // Flags are those of longer chunks, which up to four neighbours share.
#pragma unroll 1
    for (int shared_k = chunk_k, lanes = kFixColumns; shared_k < min(kSplitChunkK, int(p.k));
         shared_k *= 2, lanes *= 2) {
      const auto of_other = [&](uint32_t own) { return __shfl_xor_sync(~0u, own, lanes); };
      range_a.join(of_other(range_a.largest), of_other(range_a.smallest));
      range_b.join(of_other(range_b.largest), of_other(range_b.smallest));
    }
    chain.is_flagged = range_a.is_flagged(term_rule(p.dtype_a)) || range_b.is_flagged(term_rule(DType::f32));
    chains[threadIdx.x] = chain;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const FixChain& next = chains[i * kFixColumns + threadIdx.x % kFixColumns];
      total.add(next.sum);
      is_flagged |= next.is_flagged;
    }
    __syncthreads();
  }
  return is_flagged ? total.rounded() : found;
}

}  // namespace
}  // namespace tiledmm::cuda

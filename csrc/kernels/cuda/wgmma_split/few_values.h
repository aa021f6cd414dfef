// What a thread of few_rows.h takes of the large operand, from shared memory or from where it lies.
#pragma once

#include "kernels/cuda/shared/ptx_sm90.h"
#include "kernels/cuda/wgmma_split/few_rows_launch.h"
#include "kernels/cuda/wgmma_split/plan.h"

namespace tiledmm::cuda {
namespace {

// Row of the tile that a thread's fragments begin with. It takes two neighbours, as rows r and r + 8 of the
// instruction: then what half a warp reads at once lies in different banks, in either order of memory.
__device__ __forceinline__ int first_row_of_thread() { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 * 2; }

// A thread's part of a block of k of its two rows: of each step of 16 along k, with c = 2 * (lane % 4), elements c,
// c + 1, c + 8, c + 9.
using FewValues = float[2][kSplitBlockK / 4];

template <class Cfg, FewSource SOURCE>
__device__ __forceinline__ void load_values(FewValues& values, uint32_t smem) {
  const int row = first_row_of_thread(), quarter = threadIdx.x % 4;
  if constexpr (SOURCE == FewSource::boxes_along_k) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t from = smem + (row + h) * 128 + (((row + h) % 8 ^ quarter / 2) << 4) + quarter % 2 * 8;
#pragma unroll
      for (int step = 0; step < Cfg::kSteps; ++step) {
#pragma unroll
        for (int far = 0; far < 2; ++far) {
          const uint2 pair =
              load_shared_pair((from ^ ((step % 2 * 4 + far * 2) << 4)) + step / 2 * uint32_t(Cfg::kBoxBytes));
          values[h][step * 4 + far * 2] = __uint_as_float(pair.x);
          values[h][step * 4 + far * 2 + 1] = __uint_as_float(pair.y);
        }
      }
    }
  } else {
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const int k = quarter * 2 + odd;
      const uint32_t from =
          smem + row / 32 * Cfg::kBoxBytes + k * 128 + ((row % 32 / 4 ^ k) << 4) + uint32_t(row % 4 * 4);
#pragma unroll
      for (int step = 0; step < Cfg::kSteps; ++step) {
#pragma unroll
        for (int far = 0; far < 2; ++far) {
          const uint2 pair = load_shared_pair(from + (step * 16 + far * 8) * 128);
          values[0][step * 4 + far * 2 + odd] = __uint_as_float(pair.x);
          values[1][step * 4 + far * 2 + odd] = __uint_as_float(pair.y);
        }
      }
    }
  }
}

// Loads a thread's values from memory. `from` is its first row, of `rows` that exist, and its first element.
struct FewLoader {
  const float* from;
  int64_t stride_row, stride_k;
  int rows, k;

  __device__ __forceinline__ FewLoader(const GemmProblem& p, int tile_row)
      : stride_row(p.stride_bn), stride_k(p.stride_bk) {
    const int row = tile_row + first_row_of_thread(), first_k = threadIdx.x % 4 * 2;
    from = static_cast<const float*>(p.b) + row * stride_row + first_k * stride_k;
    rows = int(p.n) - row;
    k = int(p.k) - first_k;
  }
  __device__ __forceinline__ void load(FewValues& values, int k_tile) const {
    const int first_k = k_tile * kSplitBlockK;
#pragma unroll
    for (int i = 0; i < kSplitBlockK / 4; ++i) {
      const int step_k = first_k + i / 4 * 16 + i % 4 / 2 * 8 + i % 2;
      const float* at = from + step_k * stride_k;
#pragma unroll
      for (int h = 0; h < 2; ++h) values[h][i] = h < rows && step_k < k ? at[h * stride_row] : 0;
    }
  }
};

}  // namespace
}  // namespace tiledmm::cuda

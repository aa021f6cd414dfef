// The end of a chunk, the same for tiles and for few rows.
#pragma once

#include <cuda_runtime.h>

namespace tiledmm::cuda {
namespace {

// A thread's sums of a chunk become: with corrections, times the scales of the instruction's rows and columns.
// `scale_rows`: of its two rows; `scales`: of columns, from its first one on.
template <int COUNT>
__device__ __forceinline__ void scale_chunk(float (&sums)[COUNT], const float (&corrections)[COUNT],
                                            const float (&scale_rows)[2], const float* scales) {
#pragma unroll
  for (int j = 0; j < COUNT / 4; ++j) {
    const float2 scale_cols = *reinterpret_cast<const float2*>(scales + j * 8);
#pragma unroll
    for (int i = 4 * j; i < 4 * j + 4; ++i) {
      // The product of two scales is exact: a power of two from 2^-148 to 2^90.
      const float scale = scale_rows[i / 2 % 2] * (i % 2 ? scale_cols.y : scale_cols.x);
      sums[i] = __fmul_rn(__fmaf_rn(corrections[i], 1.0f / 2048, sums[i]), scale);
    }
  }
}

}  // namespace
}  // namespace tiledmm::cuda

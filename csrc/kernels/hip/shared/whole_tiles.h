// Which operands can be loaded several words at a time through a Buffer.
#pragma once

#include "core/operand.h"

namespace tiledmm {

// Rows begin at multiples of 4 bytes and hold whole words, and 32 bits count the bytes of 128 of them.
inline bool has_whole_tiles(const OperandView& view, const FoldedProblem& problem) {
  constexpr int64_t kMostRows = 128, kMostBytes = int64_t(1) << 31;
  const bool is_k_contiguous = is_k_major(view);
  const int64_t close = is_k_contiguous ? view.k : view.rows, far = is_k_contiguous ? view.stride_row : view.stride_k;
  const int64_t bytes = size_of(problem.gemm.dtype_a);
  return copy_width(view, problem) >= 4 && close * bytes % 4 == 0 && (kMostRows * far + 1024) * bytes < kMostBytes;
}

}  // namespace tiledmm

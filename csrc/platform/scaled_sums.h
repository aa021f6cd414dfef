// Sums of operands of 8 bits that are widened on their way to the product. 128 elements of k are summed from zero on,
// and their sum is added to a total in fp32 ("promotion"), times the factors of its blocks where blocks have them.
// Factors of rows and columns multiply the total (core/problem.h, Scaling).
#pragma once

#include "core/math.h"
#include "platform/gpu.h"

namespace tiledmm::gpu {

// The factor of a row of A or a column of B beside a block of k.
TILEDMM_DEVICE const float* factor_of(const Scales& scales, int64_t row, int64_t k_block) {
  const int64_t place = scales.rows_of_block == 1 ? row : row / kScaledK;  // no division by a variable
  return scales.data + place * scales.stride_row + k_block * scales.stride_k;
}

// The factors of COUNT rows of A or columns of B that are less than 128 behind `row`, all in one block of 128: i has
// that of row + behind(i). Beyond the operand, where nothing is stored, the last one's serves.
template <int COUNT, class Behind>
TILEDMM_DEVICE void load_factors(const Scales& scales, int64_t row, int64_t num_rows, int64_t k_block,
                                 const Behind& behind, float (&factors)[COUNT]) {
  const float* from = factor_of(scales, row, k_block);
  // Opaque: what is the same beside each block of k would take registers from the sums.
  const int64_t step = opaque(scales.rows_of_block == 1 ? scales.stride_row : 0);
  const int last = opaque(int(min_of(num_rows - row, kScaledK)) - 1);
  TILEDMM_UNROLL for (int i = 0; i < COUNT; ++i) factors[i] = load_global(from + min_of(behind(i), last) * step);
}

// The factors of a thread's part of C beside element k. Where the problem has others than are asked for they are 1,
// times which a sum is what it is. Without k nothing is scaled: the rows behind the last group have no factors.
template <int ROWS, int COLS>
struct Factors {
  float rows[ROWS], cols[COLS];

  template <class RowBehind, class ColBehind>
  TILEDMM_DEVICE Factors(const GemmProblem& p, Scaling asked, int64_t k, int64_t row, const RowBehind& row_behind,
                         int64_t col, const ColBehind& col_behind) {
    if (p.scaling == asked && p.k > 0) {
      load_factors(p.scale_a, row, p.m, k / kScaledK, row_behind, rows);
      load_factors(p.scale_b, col, p.n, k / kScaledK, col_behind, cols);
    } else {
      TILEDMM_UNROLL for (int i = 0; i < ROWS; ++i) rows[i] = 1;
      TILEDMM_UNROLL for (int j = 0; j < COLS; ++j) cols[j] = 1;
    }
  }
  TILEDMM_DEVICE float at(int i, int j) const { return rows[i] * cols[j]; }
};

// That of one element of C.
TILEDMM_DEVICE float factor_at(const GemmProblem& p, Scaling asked, int64_t k, int64_t row, int64_t col) {
  const auto none = [](int) { return 0; };
  return Factors<1, 1>(p, asked, k, row, none, col, none).at(0, 0);
}

// Whether a block of k, or all of it, ends before element k.
TILEDMM_DEVICE bool ends_block(int64_t k, int64_t size_k) { return k % kScaledK == 0 || k >= size_k; }

// The sum of a block becomes part of the total, and the next one begins at zero.
TILEDMM_DEVICE void promote(float& total, float& sum, float factor) {
  total = fused(sum, factor, total);
  sum = 0;
}

}  // namespace tiledmm::gpu

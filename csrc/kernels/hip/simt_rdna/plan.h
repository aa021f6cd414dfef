// The block tiles of the simt_rdna kernel, as plain data, and the pure function that chooses one. None of them changes
// a bit of the result: the order of summation is the same for all.
#pragma once

#include "core/chip.h"
#include "core/math.h"
#include "core/plan.h"
#include "kernels/hip/shared/plan.h"

namespace tiledmm {

struct SimtRdnaShape {
  int block_m, block_n;
  double efficiency;  // share of the peak rate
};
// Thread tiles of 16 x 8 and of 8 x 4. The first one: what seb-v/fp32_sgemm_amd reaches on an RX 7900 XTX before it
// edits machine code, 33.5 of 61 TFLOP/s; the second one has twice the loads for a multiply-add: an estimate.
inline constexpr SimtRdnaShape kSimtRdnaShapes[] = {{128, 128, 0.55}, {64, 64, 0.35}};
inline constexpr int kNumSimtRdnaShapes = 2, kSmallSimtRdnaShape = 1;

// How rung 17 computes a problem.
struct SimtRdnaPlan {
  bool is_whole;  // operands are loaded 16 bytes at a time; else element by element, with the small tile
  int shape;
};

// Microseconds by a simple model: the fullest work group processor (two CUs) decides, beside memory. Assumed: 4 us for
// a launch, 0.8 of the data sheet's memory rate, one block alone reaches 0.6 of the rate of several, and element by
// element takes three times as long.
inline double simt_rdna_us(const SimtRdnaPlan& plan, const FoldedProblem& problem, const Chip& chip) {
  const GemmProblem& p = problem.gemm;
  const SimtRdnaShape& shape = kSimtRdnaShapes[plan.shape];
  const double alone = 0.6, by_element = 3;
  const int64_t processors = max_of(chip.num_cus / 2, 1);
  const double tiles = double(ceil_div(p.m, shape.block_m)) * double(ceil_div(p.n, shape.block_n));
  const auto most = double(ceil_div(int64_t(tiles * double(problem.batch_size)), processors));
  const double block_us = 2.0 * shape.block_m * shape.block_n * double(round_up(max_of(p.k, 1), 16)) *
                          double(processors) / (chip.simt_tflops[int(DType::f32)] * 1e6 * shape.efficiency);
  const double multiply = (most < 2 ? block_us / alone : most * block_us) * (plan.is_whole ? 1 : by_element);
  const double m = double(p.m), n = double(p.n), k = double(p.k);
  const double memory = 4 * (m * k + n * k + m * n) * double(problem.batch_size) / (chip.tbytes_per_second * 0.8e6);
  return 4 + (multiply > memory ? multiply : memory);
}

inline void for_each_simt_rdna_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  const GemmProblem& p = problem.gemm;
  const bool is_whole = has_whole_tiles(view_a(p), problem) && has_whole_tiles(view_b(p), problem);
  for (int shape = is_whole ? 0 : kSmallSimtRdnaShape; shape < kNumSimtRdnaShapes; ++shape) {
    const SimtRdnaPlan plan{is_whole, shape};
    visit(plan, simt_rdna_us(plan, problem, chip));
  }
}

}  // namespace tiledmm

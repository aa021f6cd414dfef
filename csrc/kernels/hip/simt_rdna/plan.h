// The block tiles of the simt_rdna kernel, as plain data, and the pure function that chooses one. None of them changes
// a bit of the result: the order of summation is the same for all.
#pragma once

#include "core/chip.h"
#include "core/math.h"
#include "core/plan.h"
#include "kernels/hip/shared/plan.h"
#include "kernels/hip/simt_rdna/costs.h"

namespace tiledmm {

struct SimtRdnaShape {
  int block_m, block_n;
};
// Thread tiles of 16 x 8 and of 8 x 4.
inline constexpr SimtRdnaShape kSimtRdnaShapes[kNumSimtRdnaShapes] = {{128, 128}, {64, 64}};
inline constexpr int kSmallSimtRdnaShape = 1;

// How simt_rdna computes a problem.
struct SimtRdnaPlan {
  bool is_whole;  // operands are loaded 16 bytes at a time; else element by element, with the small tile
  int shape;
};

// Microseconds by a simple model: the fullest work group processor (two CUs) decides, beside memory.
inline double simt_rdna_us(const SimtRdnaPlan& plan, const FoldedProblem& problem, const Chip& chip) {
  const GemmProblem& p = problem.gemm;
  const SimtRdnaShape& shape = kSimtRdnaShapes[plan.shape];
  constexpr SimtRdnaCosts costs = kSimtRdnaCosts;
  const int64_t processors = max_of(chip.num_cus / 2, 1);
  const double tiles = double(ceil_div(p.m, shape.block_m)) * double(ceil_div(p.n, shape.block_n));
  const auto most = double(ceil_div(int64_t(tiles * double(problem.batch_size)), processors));
  const double block_us = 2.0 * shape.block_m * shape.block_n * double(round_up(max_of(p.k, 1), 16)) *
                          double(processors) / (chip.simt_tflops[int(DType::f32)] * 1e6 * costs.efficiency[plan.shape]);
  const double multiply =
      (most < 2 ? block_us / costs.alone : most * block_us) * (plan.is_whole ? 1 : costs.by_element);
  const double m = double(p.m), n = double(p.n), k = double(p.k);
  const double per_us = chip.tbytes_per_second * (costs.bandwidth * 1e6);
  const double memory = 4 * (m * k + n * k + m * n) * double(problem.batch_size) / per_us;
  return costs.start + (multiply > memory ? multiply : memory);
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

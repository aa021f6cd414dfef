// How the few_rows kernel shares out its work, as plain data. Nothing here changes a bit of the result.
#pragma once

#include "core/chip.h"
#include "core/executor.h"
#include "core/math.h"
#include "core/operand.h"
#include "core/problem.h"
#include "kernels/hip/few_rows/costs.h"
#include "kernels/hip/shared/plan.h"

namespace tiledmm {

inline constexpr int kMostFewRows = 16, kFewThreads = 256;
// The large operand's rows of one warp: those of a fragment, or as many as lie in 16 times 8 bytes.
constexpr int few_rows_tile(int64_t element_bytes, bool is_mn_major) {
  return is_mn_major ? 16 * int(8 / element_bytes) : 16;
}

// How few_rows computes a problem.
struct FewPlan {
  bool are_columns_few;  // the large operand is A
  bool is_whole;         // it is loaded 8 or 16 bytes at a time; else every element by itself
  bool is_k_major;
  int64_t chunk_k, num_splits, tiles;
};

// The caller's problem on a chip; chunk_k is that of the chip's order of summation.
inline FewPlan plan_few_rows(const FoldedProblem& problem, const Chip& chip, int64_t chunk_k) {
  const GemmProblem& p = problem.gemm;
  FewPlan plan{};
  plan.are_columns_few = p.m > kMostFewRows || (p.n <= kMostFewRows && p.n < p.m);  // the larger operand streams
  const OperandView large = plan.are_columns_few ? view_a(p) : view_b(p);
  plan.is_whole = has_whole_tiles(large, problem);
  plan.is_k_major = is_k_major(large);
  plan.chunk_k = chunk_k;
  plan.num_splits = ceil_div(max_of(p.k, 1), chunk_k);
  const int64_t rows = few_rows_tile(size_of(p.dtype_a), plan.is_whole && !plan.is_k_major);
  plan.tiles = ceil_div(large.rows, rows * (kFewThreads / chip.warp_size));
  return plan;
}

inline double few_partial_bytes(const FoldedProblem& problem, const FewPlan& plan) {
  const GemmProblem& p = problem.gemm;
  const double bytes = p.dtype_a == DType::f64 ? 8 : 4;
  return plan.num_splits > 1 ? bytes * double(plan.num_splits) * double(problem.batch_size) * double(p.m * p.n) : 0;
}

// Microseconds by a simple model: the large operand arrives at the rate of memory, if enough of it is on its way. The
// matrix instructions have 16 rows, however few there are.
inline double few_rows_us(const FewPlan& plan, const FoldedProblem& problem, const Chip& chip) {
  constexpr FewCosts costs = kFewCosts;
  const GemmProblem& p = problem.gemm;
  const double large = double(plan.are_columns_few ? p.m : p.n), few = double(plan.are_columns_few ? p.n : p.m);
  const double k = double(max_of(p.k, 1)), batch = double(problem.batch_size), size = double(size_of(p.dtype_a));
  const double per_us = chip.tbytes_per_second * 1e6 * costs.rate;
  const double warps = double(plan.tiles * plan.num_splits) * batch * (kFewThreads / chip.warp_size);
  const double on_the_way = warps * costs.loads * 16 * chip.warp_size / costs.latency;  // bytes for each microsecond
  const double stream = large * k * size * batch / (on_the_way < per_us ? on_the_way : per_us);
  const double mma = chip.mma_tflops[int(p.dtype_a)], simt = chip.simt_tflops[int(p.dtype_a)];
  const double per_row = 2.0 * large * k * batch / ((mma > 0 ? mma : simt * costs.multiply_add) * 1e6);
  const double multiply = per_row * (mma > 0 ? kMostFewRows : few);
  const double rest = (few * k + large * few) * size * batch + 2 * few_partial_bytes(problem, plan);
  const double work = (stream > multiply ? stream : multiply) * (plan.is_whole ? 1 : costs.by_element) + rest / per_us;
  return costs.start + work + (plan.num_splits > 1 ? costs.start : 0);
}

namespace gpu {

// The kernel's first parameter.
struct FewWork {
  int64_t tiles;       // blocks that share out the large operand's rows
  int64_t num_splits;  // and each of them k
  int64_t part_k;      // what a block sums
  void* partials;      // as ChunkSums has them, null where a block computes all of k
};

template <class T>
Status launch_few_rows_of(const FoldedProblem& problem, const FewPlan& plan, const FewWork& work,
                          const Executor& executor);

}  // namespace gpu

}  // namespace tiledmm

// The block tiles of the wmma_rdna kernel, as plain data, and the pure function that chooses one. None of them changes
// a bit of the result: the order of summation is the same for all.
#pragma once

#include <initializer_list>

#include "core/chip.h"
#include "core/executor.h"
#include "core/math.h"
#include "core/operand.h"
#include "core/plan.h"
#include "core/problem.h"
#include "core/summation.h"
#include "kernels/hip/shared/plan.h"
#include "kernels/hip/wmma_rdna/costs.h"

namespace tiledmm {

struct WmmaShape {
  int block_m, block_n, warps_m, warps_n;
  bool sums_chunks;  // whether a block can add up chunks of k itself
  bool gathers;      // whether there is a kernel that loads tiles element by element
};
inline constexpr WmmaShape kWmmaShapes[kNumWmmaShapes] = {
    {128, 128, 2, 2, false, true}, {64, 64, 2, 2, true, true}, {32, 64, 1, 2, true, false}};

inline constexpr int kWmmaBlockK = 32;

// How wmma_rdna computes a problem.
struct WmmaPlan {
  bool is_whole;  // tiles are loaded 16 bytes at a time; else every element by itself
  int shape;
  int64_t num_splits;  // blocks that share out the k of a tile, each a chunk
};

// Microseconds by a simple model: the fullest work group processor (two CUs, four SIMDs, so one warp of a block each)
// decides, beside memory, the second-level cache, and what a k tile takes at least.
inline double wmma_us(const WmmaPlan& plan, const FoldedProblem& problem, const Chip& chip) {
  const GemmProblem& p = problem.gemm;
  const WmmaShape& shape = kWmmaShapes[plan.shape];
  constexpr WmmaCosts costs = kWmmaCosts;
  const double per_us = chip.tbytes_per_second * 1e6 * costs.bandwidth;
  const int64_t processors = max_of(chip.num_cus / 2, 1);
  const double tiles = double(ceil_div(p.m, shape.block_m)) * double(ceil_div(p.n, shape.block_n));
  const double blocks = tiles * double(problem.batch_size) * double(plan.num_splits);
  const auto most = double(ceil_div(int64_t(blocks), processors));  // blocks of one processor
  const double k = double(round_up(ceil_div(max_of(p.k, 1), plan.num_splits), 64));
  const double block_us = 2.0 * shape.block_m * shape.block_n * k * double(processors) /
                          (chip.mma_tflops[int(p.dtype_a)] * 1e6 * costs.efficiency[plan.shape]);
  double multiply = most < 2 ? block_us / costs.alone[plan.shape] : most * block_us;
  if (!plan.is_whole) multiply /= costs.gather[plan.shape];
  const double m = double(p.m), n = double(p.n), batch = double(problem.batch_size);
  const double output = m * n * batch * (plan.num_splits > 1 ? 8.0 * double(plan.num_splits) + 2 : 2);
  const double memory = (2 * (m + n) * double(p.k) * batch + output) / per_us;
  const double cache = 2 * blocks * (shape.block_m + shape.block_n) * k / (per_us * costs.cached);
  const double rounds = blocks / double(4 * processors);
  const double latencies = (rounds > 1 ? rounds : 1) * k / kWmmaBlockK * costs.latency;
  double busy = memory > cache ? memory : cache;
  if (latencies > busy) busy = latencies;
  return costs.start + overlapped_us(multiply, busy) + (plan.num_splits > 1 ? costs.start : 0);
}

inline void for_each_wmma_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  const GemmProblem& p = problem.gemm;
  const bool is_whole = has_whole_tiles(view_a(p), problem) && has_whole_tiles(view_b(p), problem);
  const int64_t chunks = ceil_div(max_of(p.k, 1), problem.chunk_k);
  const double partial_bytes = 4.0 * double(chunks) * double(problem.batch_size) * double(p.m) * double(p.n);
  for (int shape = 0; shape < kNumWmmaShapes; ++shape) {
    if (!is_whole && !kWmmaShapes[shape].gathers) continue;
    for (const int64_t splits : {int64_t(1), chunks}) {
      if (splits == 1 ? chunks > 1 && !kWmmaShapes[shape].sums_chunks : partial_bytes > double(kMaxPartialBytes)) {
        continue;
      }
      const WmmaPlan plan{is_whole, shape, splits};
      visit(plan, wmma_us(plan, problem, chip));
    }
  }
}

namespace gpu {

// The kernel's first parameter.
struct WmmaWork {
  int32_t tiles_m, tiles_n;
  int64_t num_splits;  // blocks that share out the k of a tile
  int64_t part_k;      // what each of them sums
  int64_t chunk_k;
  float* partials;  // as ChunkSums has them, null where a block computes all of k
};

template <class T>
Status launch_wmma_tile(const FoldedProblem& problem, const WmmaPlan& plan, const WmmaWork& work,
                        const Executor& executor);

}  // namespace gpu

}  // namespace tiledmm

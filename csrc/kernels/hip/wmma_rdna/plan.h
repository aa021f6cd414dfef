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
#include "kernels/hip/shared/plan.h"

namespace tiledmm {

struct WmmaShape {
  int block_m, block_n, warps_m, warps_n;
  bool sums_chunks;   // whether a block can add up chunks of k itself
  double efficiency;  // share of the peak rate that a work group processor reaches with two blocks or more
  double alone;       // share of that which one block reaches
  double gather;      // share of all that where tiles are loaded element by element; 0: such a kernel is not there
};
// 0.86 of the peak is what adelj88/rocm_wmma_gemm reports for tiles like the first (RX 7900 GRE, fp16, 4096 and 8192).
// The others are estimates such that many choices are near those of AMD's model Origami; those of gathered tiles follow
// the model of a work group processor (docs/amd_evidence.md).
inline constexpr WmmaShape kWmmaShapes[] = {
    {128, 128, 2, 2, false, 0.86, 0.6, 0.35}, {64, 64, 2, 2, true, 0.8, 0.5, 0.2}, {32, 64, 1, 2, true, 0.42, 0.55, 0}};
inline constexpr int kNumWmmaShapes = 3;

inline constexpr int kWmmaBlockK = 32;

// How rung 13 computes a problem.
struct WmmaPlan {
  bool is_whole;  // tiles are loaded 16 bytes at a time; else every element by itself
  int shape;
  int64_t num_splits;  // blocks that share out the k of a tile, each a chunk
};

// The chunks' sums take so much memory at most.
inline constexpr int64_t kMaxWmmaPartialBytes = 256 << 20;

// Microseconds by a simple model: the fullest work group processor (two CUs, four SIMDs, so one warp of a block each)
// decides, beside memory. Rates are those of the chip's row; what is assumed beyond them: 4 us for a launch, memory
// gives 0.8 of its rate, the second-level cache five times as much, and a k tile takes the latency of 0.4 us at least,
// in four blocks of a processor at a time.
inline double wmma_us(const WmmaPlan& plan, const FoldedProblem& problem, const Chip& chip) {
  const GemmProblem& p = problem.gemm;
  const WmmaShape& shape = kWmmaShapes[plan.shape];
  const double cached = 5, latency_us = 0.4, per_us = chip.tbytes_per_second * 1e6 * 0.8;
  const int64_t processors = max_of(chip.num_cus / 2, 1);
  const double tiles = double(ceil_div(p.m, shape.block_m)) * double(ceil_div(p.n, shape.block_n));
  const double blocks = tiles * double(problem.batch_size) * double(plan.num_splits);
  const auto most = double(ceil_div(int64_t(blocks), processors));  // blocks of one processor
  const double k = double(round_up(ceil_div(max_of(p.k, 1), plan.num_splits), 64));
  const double block_us = 2.0 * shape.block_m * shape.block_n * k * double(processors) /
                          (chip.mma_tflops[int(p.dtype_a)] * 1e6 * shape.efficiency);
  double multiply = most < 2 ? block_us / shape.alone : most * block_us;
  if (!plan.is_whole) multiply /= shape.gather;
  const double m = double(p.m), n = double(p.n), batch = double(problem.batch_size);
  const double output = m * n * batch * (plan.num_splits > 1 ? 8.0 * double(plan.num_splits) + 2 : 2);
  const double memory = (2 * (m + n) * double(p.k) * batch + output) / per_us;
  const double cache = 2 * blocks * (shape.block_m + shape.block_n) * k / (per_us * cached);
  const double rounds = blocks / double(4 * processors);
  const double latencies = (rounds > 1 ? rounds : 1) * k / kWmmaBlockK * latency_us;
  double busy = memory > cache ? memory : cache;
  if (latencies > busy) busy = latencies;
  return 4 + overlapped_us(multiply, busy) + (plan.num_splits > 1 ? 4 : 0);
}

inline void for_each_wmma_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  const GemmProblem& p = problem.gemm;
  const bool is_whole = has_whole_tiles(view_a(p), problem) && has_whole_tiles(view_b(p), problem);
  const int64_t chunks = ceil_div(max_of(p.k, 1), problem.chunk_k);
  const double partial_bytes = 4.0 * double(chunks) * double(problem.batch_size) * double(p.m) * double(p.n);
  for (int shape = 0; shape < kNumWmmaShapes; ++shape) {
    if (!is_whole && kWmmaShapes[shape].gather == 0) continue;
    for (const int64_t splits : {int64_t(1), chunks}) {
      if (splits == 1 ? chunks > 1 && !kWmmaShapes[shape].sums_chunks : partial_bytes > double(kMaxWmmaPartialBytes)) {
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
  int64_t split_k;     // what each of them sums
  int64_t chunk_k;
  float* partials;  // as ChunkSums has them, null where a block computes all of k
};

template <class T>
Status launch_wmma_tile(const FoldedProblem& problem, const WmmaPlan& plan, const WmmaWork& work,
                        const Executor& executor);

}  // namespace gpu

}  // namespace tiledmm

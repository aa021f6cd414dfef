// The block tiles of the simt_pipelined kernel, as plain data, and the pure function that chooses one. They share out
// work; none of them changes a bit of the result: the order of summation is the same for all.
#pragma once

#include <cmath>
#include <initializer_list>

#include "core/executor.h"
#include "core/math.h"
#include "core/operand.h"
#include "core/plan.h"
#include "core/task.h"
#include "kernels/cuda/simt_pipelined/costs.h"
#include "kernels/cuda/simt_pipelined/few_rows_plan.h"
#include "platform/instance.h"

namespace tiledmm {

struct SimtShape {
  int block_m, block_n, block_k;
  int thread_m, thread_n;
  int warps_m, warps_n;
  int num_stages;
  int blocks_per_cu;  // that registers and shared memory admit
  int k_step;         // elements of k that a fragment holds
  int num_fragments;  // one that is multiplied, the others on their way
  bool takes_groups = false;

  constexpr int num_threads() const { return 32 * warps_m * warps_n; }
  constexpr int64_t area() const { return int64_t(block_m) * block_n; }
};

// Groups have a tile for many rows and one for few. By the model of batches larger ones gain 1 % where groups have 1024
// rows, and lose where their last tiles are half empty.
inline constexpr SimtShape kSimtShapes[] = {
    {256, 128, 8, 16, 8, 4, 2, 4, 1, 1, 2},     {128, 96, 16, 8, 12, 2, 2, 4, 2, 1, 2},
    {128, 64, 8, 8, 8, 2, 2, 5, 3, 1, 2},       {96, 64, 16, 6, 8, 2, 2, 4, 3, 1, 2},
    {64, 64, 16, 8, 4, 2, 2, 4, 3, 1, 4, true}, {96, 48, 16, 6, 6, 2, 2, 5, 2, 4, 2},
    {64, 48, 32, 4, 6, 2, 2, 4, 2, 4, 2},       {64, 32, 32, 4, 4, 2, 2, 4, 3, 4, 2},
    {64, 32, 16, 4, 4, 2, 2, 6, 4, 1, 4},       {32, 32, 64, 4, 2, 4, 1, 4, 3, 4, 4},
    {16, 32, 64, 2, 2, 4, 1, 6, 2, 4, 4, true}, {8, 32, 64, 2, 1, 4, 1, 8, 2, 4, 4},
    {4, 32, 128, 1, 1, 4, 1, 4, 2, 4, 4},       {128, 32, 16, 8, 4, 4, 1, 4, 4, 1, 2},
};
static_assert(sizeof kSimtShapes == kNumSimtShapes * sizeof(SimtShape), "costs.h has a place for each");
// Those that are compiled together; the slowest first.
inline constexpr Instance kSimtInstances[] = {
    {DType::f32, 0, 2}, {DType::f32, 2, 5}, {DType::f32, 5, 8}, {DType::f32, 8, 14}};
static_assert(hold_all(kSimtInstances, DType::f32, kNumSimtShapes));

// Tall tiles are built for an m-major A with a k-major B only: the k-major operand, the dearer one to copy, is then the
// small side. The other mixed layout runs as the transposed product. Tiles of groups are built for all layouts.
constexpr bool is_built(const SimtShape& shape, bool is_a_k_major, bool is_b_k_major) {
  return is_b_k_major || !is_a_k_major || shape.block_m < shape.block_n;
}

// The shared memory that a block takes at most: the stages, and the total where it computes several chunks.
constexpr int64_t simt_shared_bytes(const SimtShape& shape, bool is_a_k_major, bool is_b_k_major, bool is_folding) {
  const auto elements = [&](int64_t block_mn, bool is_k_major) {
    return is_k_major && shape.k_step == 4 ? block_mn * (shape.block_k + 4) : shape.block_k * (block_mn + 4);
  };
  const int64_t stage = elements(shape.block_m, is_a_k_major) + elements(shape.block_n, is_b_k_major);
  return 320 + 4 * shape.num_stages * stage + (is_folding ? 4 * shape.area() : 0);
}

constexpr int64_t num_simt_tiles(const SimtShape& shape, const GemmTask& task) {
  return ceil_div(task.m, shape.block_m) * ceil_div(task.n, shape.block_n);
}

// How it is computed.
struct SimtPlan {
  int shape;
  bool is_exchanged;      // C^T = B^T A^T; what follows is of that product
  int64_t num_whole;      // tiles, of each product; the chunks of the others are computed by blocks of their own
  bool packs_a, packs_b;  // copied first: m (n) close, aligned
  FewRowsPlan few_rows;   // rows > 0: no tiles
};

// What the models read.
struct AllSimtCosts {
  const SimtCosts& tiles;
  const FewRowsCosts& few_rows;
};

// Microseconds by a simple model: rounds of the blocks that an SM holds at one time, of which the last one is not full;
// or what moves the operands and C, if longer. Infinite: the plan cannot be carried out.
inline double simt_microseconds(const AllSimtCosts& costs, const GemmTask& asked, const SimtPlan& plan,
                                const Chip& chip) {
  constexpr double kMaxPackedBytes = 1 << 30;
  const SimtCosts& c = costs.tiles;
  const SimtShape& shape = kSimtShapes[plan.shape];
  GemmTask task = plan.is_exchanged ? transposed(asked) : asked;
  if (plan.few_rows.rows > 0) {
    return few_rows_microseconds(costs.few_rows, task, plan.few_rows, chip);
  }
  const double elements_c = double(task.m) * double(task.n) * double(task.batch);
  double packed = 0, fixed = c.start;
  if (plan.packs_a) task.a = {false, 16}, packed += double(task.m) * double(task.k) * double(task.batch);
  if (plan.packs_b) task.b = {false, 16}, packed += double(task.n) * double(task.k) * double(task.batch);
  if (4 * packed > kMaxPackedBytes) return HUGE_VAL;
  if (packed > 0) fixed += c.pack + 8 * packed / c.packed;
  const bool is_folding = plan.num_whole > 0 && task.chunk_k < task.k;
  const int64_t shared = simt_shared_bytes(shape, task.a.is_k_major, task.b.is_k_major, is_folding);
  const int64_t per_cu = shared > chip.max_shared_bytes
                             ? 0
                             : min_of(shape.blocks_per_cu, (chip.max_shared_bytes + 1024) / (shared + 1024));
  if (per_cu == 0) return HUGE_VAL;

  double copies = 0, slower = 1;
  for (const bool is_a : {true, false}) {
    const TaskOperand& operand = is_a ? task.a : task.b;
    if (shape.k_step == 1 && operand.is_k_major) {
      copies += c.transposed * (is_a ? shape.block_m : shape.block_n);
    } else if (!is_aligned(operand)) {
      slower = 1 + c.unaligned;
    }
  }
  const int64_t num_chunks = max_of(1, ceil_div(task.k, task.chunk_k));
  if (is_folding) copies += c.fold * double(shape.area()) * double(num_chunks - 1) / double(task.k);
  const double alone = slower * (c.alone[plan.shape] + copies);
  const double crowded = slower * (c.crowded[plan.shape] + copies);
  const double loop = c.loop * double(shape.thread_m * shape.thread_n * shape.block_k);
  const auto longer = [](double a, double b) { return a > b ? a : b; };
  // Adds the time of `blocks` blocks, of which per_cu share a multiprocessor.
  double cycles = 0, num_rounds = 0, most_blocks = 0;
  const auto run = [&](int64_t blocks, int64_t k) {
    const int64_t slots = chip.num_cus * per_cu, rounds = blocks / slots;
    const int64_t rest = ceil_div(blocks - rounds * slots, chip.num_cus);
    const double full = longer(alone, double(per_cu) * crowded), last = longer(alone, double(rest) * crowded);
    cycles += double(k) * (double(rounds) * full + (rest > 0 ? last : 0));
    num_rounds += double(rounds + (rest > 0));
    most_blocks += double(rounds * per_cu + rest);
  };
  const int64_t num_split = num_simt_tiles(shape, task) - plan.num_whole;
  const bool is_mixed = num_split > 0 && plan.num_whole > 0;
  if (is_mixed) {
    // Blocks of both kinds side by side: whole tiles that fill the chip at first, so that the others balance the end.
    if (plan.num_whole < chip.num_cus * per_cu) return HUGE_VAL;
    const double whole = double(plan.num_whole / chip.num_cus),
                 parts = double(ceil_div(num_split * num_chunks, chip.num_cus));
    most_blocks = whole + parts + 0.5;  // an end that is not quite even
    num_rounds = double(ceil_div(int64_t(most_blocks), per_cu));
    cycles = (per_cu == 1 ? alone : crowded) * (whole * double(task.k) + (parts + 0.5) * double(task.chunk_k));
  } else if (num_split > 0) {
    run(num_split * num_chunks * task.batch, task.chunk_k);
  } else {
    run(plan.num_whole * task.batch, task.k);
  }
  cycles += loop * num_rounds;
  // C straight from the registers needs 4 neighbours in a thread, and rows of a multiple of 16 bytes.
  const int thread_close = plan.is_exchanged && plan.num_whole > 0 ? shape.thread_m : shape.thread_n;
  const bool is_staged = shape.k_step == 4 || thread_close % 4 != 0 || (asked.n % 4 != 0 && plan.num_whole > 0);
  const double copied_by_thread = double((shape.block_m + shape.block_n) * shape.block_k / shape.num_threads());
  const double store = (is_staged ? c.staged : c.element) * double(shape.area());
  const double edge = task.k % shape.block_k != 0 ? c.edge * copied_by_thread : 0;
  const double work = cycles / c.cycles_per_us + (store + edge) * most_blocks + c.round * num_rounds;
  const double read = double(task.m + task.n) * double(task.k) * double(task.batch);
  const double memory = 4 * read / c.read + 4 * elements_c / c.stored;
  const double partial = double(num_split * num_chunks * shape.area()) * double(task.batch);
  const double addition = num_split > 0 ? c.addition + 8 * partial / c.added : 0;
  const double overlap = per_cu == 1 ? c.lone_overlap : c.overlap;
  return fixed + longer(work, memory) + overlap * (work + memory - longer(work, memory)) + addition;
}

inline void for_each_simt_plan(const AllSimtCosts& costs, const FoldedProblem& problem, const Chip& chip,
                               PlanSearch& visit) {
  constexpr double kMinPackedFlops = 1e8;  // below, copies cost more than they save, and so does thinking of them
  const GemmTask task =
      task_of(problem, operand_of(view_a(problem.gemm), problem), operand_of(view_b(problem.gemm), problem));
  const bool is_chunked = task.chunk_k < task.k;
  const int64_t num_chunks = is_chunked ? ceil_div(task.k, task.chunk_k) : 1;
  const bool may_pack = double(task.m) * double(task.n) * double(task.k) * double(task.batch) >= kMinPackedFlops;
  const auto consider = [&](const SimtPlan& plan) { visit(plan, simt_microseconds(costs, task, plan, chip)); };
  for (const bool is_exchanged : {false, true}) {
    const GemmTask oriented = is_exchanged ? transposed(task) : task;
    for_each_few_rows_plan(
        oriented, chip, [&](const FewRowsPlan& few_rows) { consider({0, is_exchanged, 0, false, false, few_rows}); });
    for (int shape = 0; shape < kNumSimtShapes; ++shape) {
      const int64_t tiles = num_simt_tiles(kSimtShapes[shape], oriented);
      // All tiles whole; all split; those beyond the last full wave split.
      const int64_t full_waves = tiles / chip.num_cus * chip.num_cus;
      for (int way = 0; way < (is_chunked ? 3 : 1); ++way) {
        if (way == 2 && (task.batch > 1 || full_waves == 0 || full_waves == tiles)) continue;
        const int64_t num_whole = way == 0 ? tiles : way == 1 ? 0 : full_waves;
        const double partial = double(tiles - num_whole) * double(num_chunks * kSimtShapes[shape].area());
        if (4 * partial * double(task.batch) > double(kMaxPartialBytes)) continue;
        for (int packs = 0; packs < (may_pack && kSimtShapes[shape].k_step == 1 ? 4 : 1); ++packs) {
          const bool packs_a = packs & 1, packs_b = packs & 2;
          if (packs_a && !oriented.a.is_k_major && is_aligned(oriented.a)) continue;
          if (packs_b && !oriented.b.is_k_major && is_aligned(oriented.b)) continue;
          const bool is_a_k_major = oriented.a.is_k_major && !packs_a, is_b_k_major = oriented.b.is_k_major && !packs_b;
          if (!is_built(kSimtShapes[shape], is_a_k_major, is_b_k_major)) continue;
          consider({shape, is_exchanged, num_whole, packs_a, packs_b, {}});
        }
      }
    }
  }
}

// Groups: all chunks of a tile by one block, and no exchanged roles.
inline void for_each_simt_plan_of_groups(const AllSimtCosts& costs, const FoldedProblem& problem, const Chip& chip,
                                         PlanSearch& visit) {
  GemmTask task =
      task_of(problem, operand_of(view_a(problem.gemm), problem), operand_of(view_b(problem.gemm), problem));
  assume_equal_groups(task, problem);
  for (int shape = 0; shape < kNumSimtShapes; ++shape) {
    if (!kSimtShapes[shape].takes_groups) continue;
    const SimtPlan plan{shape, false, num_simt_tiles(kSimtShapes[shape], task), false, false, {}};
    visit(plan, simt_microseconds(costs, task, plan, chip));
  }
}

}  // namespace tiledmm

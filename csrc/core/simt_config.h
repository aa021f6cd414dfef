// The block tiles of the simt_pipelined kernel, as plain data, and the pure function that chooses one. They share out
// work; none of them changes a bit of the result: the order of summation is the same for all.
#pragma once

#include <initializer_list>

#include "core/math.h"

namespace tiledmm {

struct SimtShape {
  int block_m, block_n, block_k;
  int thread_m, thread_n;
  int warps_m, warps_n;
  int num_stages;
  int blocks_per_cu;      // that registers and shared memory admit
  int k_step;             // elements of k that a fragment holds
  int num_fragments;      // one that is multiplied, the others on their way
  double alone, crowded;  // cycles for each k: of a block alone on its SM, and for each block where there are several

  constexpr int num_threads() const { return 32 * warps_m * warps_n; }
  constexpr int64_t area() const { return int64_t(block_m) * block_n; }
};

// Cycles measured on an H200.
inline constexpr SimtShape kSimtShapes[] = {
    {256, 128, 8, 16, 8, 4, 2, 4, 1, 1, 2, 288, 288}, {128, 96, 16, 8, 12, 2, 2, 4, 2, 1, 2, 151, 116},
    {128, 64, 8, 8, 8, 2, 2, 5, 3, 1, 2, 83, 75.5},   {96, 64, 16, 6, 8, 2, 2, 4, 3, 1, 2, 81, 62},
    {64, 64, 16, 8, 4, 2, 2, 4, 3, 1, 4, 50.5, 41.5}, {96, 48, 16, 6, 6, 2, 2, 5, 2, 4, 2, 70.5, 60},
    {64, 48, 32, 4, 6, 2, 2, 4, 2, 4, 2, 47.5, 40.5}, {64, 32, 32, 4, 4, 2, 2, 4, 3, 4, 2, 28.5, 27.5},
    {64, 32, 16, 4, 4, 2, 2, 6, 4, 1, 4, 30, 25},     {32, 32, 64, 4, 2, 4, 1, 4, 3, 4, 4, 20.5, 16.5},
    {16, 32, 64, 2, 2, 4, 1, 6, 2, 4, 4, 13.5, 13},   {8, 32, 64, 2, 1, 4, 1, 8, 2, 4, 4, 12, 10},
    {4, 32, 128, 1, 1, 4, 1, 4, 2, 4, 4, 11.9, 9},
};
inline constexpr int kNumSimtShapes = int(sizeof(kSimtShapes) / sizeof(SimtShape));

// Of the two mixed layouts, a tall tile is built for the one whose k-major operand, the dearer to copy, is the small
// side: the other one is its transpose.
constexpr bool is_built(const SimtShape& shape, bool is_a_k_major, bool is_b_k_major) {
  return is_b_k_major || !is_a_k_major || shape.block_m < shape.block_n;
}

// Of shared memory for a block, at most: the stages, and the total where it computes several chunks.
constexpr int64_t simt_shared_bytes(const SimtShape& shape, bool is_a_k_major, bool is_b_k_major, bool is_folding) {
  const auto elements = [&](int64_t block_mn, bool is_k_major) {
    return is_k_major && shape.k_step == 4 ? block_mn * (shape.block_k + 4) : shape.block_k * (block_mn + 4);
  };
  const int64_t stage = elements(shape.block_m, is_a_k_major) + elements(shape.block_n, is_b_k_major);
  return 256 + 4 * shape.num_stages * stage + (is_folding ? 4 * shape.area() : 0);
}

// Few rows of C: a block's warps take chunks of k of so many columns (kernels/cuda/simt_few_rows.h).
struct FewRowsPlan {
  int rows, cols;
  int num_warps;
};
inline constexpr int kMaxFewRows = 8, kFewRowsMaxWarps = 8, kFewRowsStages = 3;
constexpr int few_rows_block_k(int cols) { return 2048 / cols; }
constexpr int64_t few_rows_shared_bytes(int rows, int cols) {
  const int block_k = few_rows_block_k(cols);
  return 4 * (kFewRowsStages * (rows * block_k + cols * (block_k + 4)) + rows * cols + (rows * cols) % 4);
}

// What of an operand decides the way of its copies.
struct SimtOperand {
  bool is_k_major;
  bool is_aligned;  // 16 bytes at a time
};

// One product, or one batch of them.
struct SimtTask {
  int64_t m, n, k, batch;
  int64_t chunk_k;  // of the order of summation (summation.h)
  SimtOperand a, b;
  int num_cus;
  int64_t max_shared_bytes;  // of a block
};

// How it is computed.
struct SimtPlan {
  int shape;
  bool is_transposed;     // C^T = B^T A^T; what follows is of that product
  bool is_split;          // the chunks of k are computed by blocks of their own
  bool packs_a, packs_b;  // copied first: m (n) close, aligned
  FewRowsPlan few_rows;   // rows > 0: no tiles
};

constexpr SimtTask transposed(const SimtTask& task) {
  SimtTask result = task;
  result.m = task.n, result.n = task.m, result.a = task.b, result.b = task.a;
  return result;
}

constexpr FewRowsPlan plan_few_rows(const SimtTask& task) {
  const bool is_narrow = task.m <= 4 && ceil_div(task.n, 32) * task.batch < task.num_cus;
  const int64_t rows = task.m == 1 ? 1 : is_narrow ? 4 : task.m == 2 ? 2 : task.m <= 4 ? 4 : 8;
  const int64_t cols = is_narrow ? 8 : 32, blocks = ceil_div(task.n, cols) * task.batch;
  const int64_t num_chunks = max_of(1, ceil_div(task.k, max_of(task.chunk_k, 1)));
  // Two blocks of four warps on a multiprocessor, or one of eight.
  const int64_t fitting = task.max_shared_bytes / few_rows_shared_bytes(int(rows), int(cols));
  const int64_t most = min_of(fitting, blocks <= task.num_cus ? kFewRowsMaxWarps : 4);
  return {int(rows), int(cols), int(ceil_div(num_chunks, ceil_div(num_chunks, most)))};
}

inline constexpr double kSimtFixed = 4.6, kSimtCyclesPerUs = 1980, kSimtBytesPerUs = 3.4e6;

inline double few_rows_microseconds(const SimtTask& task, const FewRowsPlan& plan) {
  constexpr double kStreamBytesPerUs = 3.8e6;
  const double elements = double(task.n) * double(task.k) * double(task.batch);
  const int64_t num_chunks = max_of(1, ceil_div(task.k, max_of(task.chunk_k, 1)));
  const double blocks = double(ceil_div(task.n, plan.cols)) * double(task.batch);
  // A multiprocessor holds so many warps; one reads its columns at the speed of a chain of multiply-adds.
  const int64_t per_cu =
      max_of(1, task.max_shared_bytes / few_rows_shared_bytes(plan.rows, plan.cols) / plan.num_warps);
  const double rounds = double(ceil_div(int64_t(blocks), task.num_cus * per_cu));
  const double steps = rounds * double(ceil_div(num_chunks, plan.num_warps)) * double(min_of(task.chunk_k, task.k));
  const double work = steps * (5 + plan.rows) / kSimtCyclesPerUs, memory = 4 * elements / kStreamBytesPerUs;
  return kSimtFixed + (work > memory ? work : memory) + 0.1 * (work > memory ? memory : work);
}

// Microseconds by a simple model, fitted on an H200: rounds of the blocks that an SM holds at one time, of which the
// last one is not full; or what moves the operands and C, if longer. kNever: the plan cannot be carried out.
inline constexpr double kNever = 1e30;
inline double simt_microseconds(const SimtTask& asked, const SimtPlan& plan) {
  constexpr double kRound = 1.6, kTile = 6e-4, kAddition = 5, kPack = 3;
  constexpr double kTransposed = 0.08;  // cycles for each k and element of a tile copied by 4 bytes
  constexpr double kUnaligned = 0.22;
  constexpr double kFold = 0.1;  // cycles for each element of a tile at the end of a chunk
  const SimtShape& shape = kSimtShapes[plan.shape];
  SimtTask task = plan.is_transposed ? transposed(asked) : asked;
  if (plan.few_rows.rows > 0) return few_rows_microseconds(task, plan.few_rows);
  const double elements_c = double(task.m) * double(task.n) * double(task.batch);
  double packed = 0, fixed = kSimtFixed;
  if (plan.packs_a) task.a = {false, true}, packed += double(task.m) * double(task.k) * double(task.batch);
  if (plan.packs_b) task.b = {false, true}, packed += double(task.n) * double(task.k) * double(task.batch);
  if (packed > 0) fixed += kPack + 8 * packed / kSimtBytesPerUs;
  if (!is_built(shape, task.a.is_k_major, task.b.is_k_major)) return kNever;
  const bool is_folding = !plan.is_split && task.chunk_k < task.k;
  const int64_t shared = simt_shared_bytes(shape, task.a.is_k_major, task.b.is_k_major, is_folding);
  const int64_t per_cu = shared > task.max_shared_bytes
                             ? 0
                             : min_of(shape.blocks_per_cu, (task.max_shared_bytes + 1024) / (shared + 1024));
  if (per_cu == 0) return kNever;

  const int64_t num_chunks = plan.is_split ? ceil_div(task.k, task.chunk_k) : 1;
  const int64_t tiles = ceil_div(task.m, shape.block_m) * ceil_div(task.n, shape.block_n);
  const double blocks = double(tiles) * double(task.batch) * double(num_chunks);
  double copies = 0, slower = 1;
  for (const bool is_a : {true, false}) {
    const SimtOperand& operand = is_a ? task.a : task.b;
    if (shape.k_step == 1 && operand.is_k_major) {
      copies += kTransposed * (is_a ? shape.block_m : shape.block_n);
    } else if (!operand.is_aligned) {
      slower = 1 + kUnaligned;
    }
  }
  if (is_folding) copies += kFold * double(shape.area()) / double(task.chunk_k);
  const double alone = slower * (shape.alone + copies), crowded = slower * (shape.crowded + copies);
  const double slots = double(task.num_cus * per_cu), rounds = double(int64_t(blocks / slots));
  const auto rest = double(ceil_div(int64_t(blocks - rounds * slots), task.num_cus));
  const auto longer = [](double a, double b) { return a > b ? a : b; };
  const double cycles =
      rounds * longer(alone, double(per_cu) * crowded) + (rest > 0 ? longer(alone, rest * crowded) : 0);
  const double work = cycles * double(plan.is_split ? task.chunk_k : task.k) / kSimtCyclesPerUs +
                      kTile * double(shape.area()) * (rounds * double(per_cu) + rest) + kRound * (rounds + (rest > 0));
  const double elements = double(task.m + task.n) * double(task.k) * double(task.batch) + elements_c;
  const double memory = 4 * elements / kSimtBytesPerUs;
  const double addition = plan.is_split ? kAddition + 8 * elements_c * double(num_chunks) / kSimtBytesPerUs : 0;
  return fixed + longer(work, memory) + 0.1 * (work + memory - longer(work, memory)) + addition;
}

inline SimtPlan choose_simt_plan(const SimtTask& task) {
  constexpr double kMaxWorkspace = 1 << 28;
  constexpr double kMinPackedFlops = 1e9;  // below, copies cost more than they save, and so does thinking of them
  const bool is_chunked = task.chunk_k < task.k;
  const double elements_c = double(task.m) * double(task.n) * double(task.batch);
  const double workspace = is_chunked ? 4 * elements_c * double(ceil_div(task.k, task.chunk_k)) : 0;
  const bool may_pack = elements_c * double(task.k) >= kMinPackedFlops;
  SimtPlan best{};
  double best_time = kNever;
  const auto consider = [&](const SimtPlan& plan) {
    const double time = simt_microseconds(task, plan);
    if (time < best_time) best = plan, best_time = time;
  };
  for (const bool is_transposed : {false, true}) {
    const SimtTask oriented = is_transposed ? transposed(task) : task;
    if (oriented.m <= kMaxFewRows) consider({0, is_transposed, false, false, false, plan_few_rows(oriented)});
    for (int shape = 0; shape < kNumSimtShapes; ++shape) {
      for (const bool is_split : {false, true}) {
        if (is_split && (!is_chunked || workspace > kMaxWorkspace)) continue;
        for (int packs = 0; packs < (may_pack && kSimtShapes[shape].k_step == 1 ? 4 : 1); ++packs) {
          const bool packs_a = packs & 1, packs_b = packs & 2;
          if (packs_a && !oriented.a.is_k_major && oriented.a.is_aligned) continue;
          if (packs_b && !oriented.b.is_k_major && oriented.b.is_aligned) continue;
          consider({shape, is_transposed, is_split, packs_a, packs_b, {}});
        }
      }
    }
  }
  return best;
}

}  // namespace tiledmm

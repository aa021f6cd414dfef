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
    {64, 64, 16, 8, 4, 2, 2, 4, 4, 1, 2, 50.5, 41.5}, {96, 48, 16, 6, 6, 2, 2, 5, 2, 4, 2, 70.5, 60},
    {64, 48, 32, 4, 6, 2, 2, 4, 2, 4, 2, 47.5, 40.5}, {64, 32, 32, 4, 4, 2, 2, 4, 3, 4, 2, 28.5, 27.5},
    {64, 32, 16, 4, 4, 2, 2, 6, 4, 1, 4, 30, 25},     {32, 32, 64, 4, 2, 4, 1, 4, 3, 4, 4, 20.5, 16.5},
    {16, 32, 64, 2, 2, 4, 1, 6, 2, 4, 4, 13.5, 13},   {8, 32, 64, 2, 1, 4, 1, 8, 2, 4, 4, 12, 10},
    {4, 32, 128, 1, 1, 4, 1, 4, 2, 4, 4, 11.9, 9},
};
inline constexpr int kNumSimtShapes = int(sizeof(kSimtShapes) / sizeof(SimtShape));

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
};

// How it is computed.
struct SimtPlan {
  int shape;
  bool is_transposed;  // C^T = B^T A^T
  bool is_split;       // the chunks of k are computed by blocks of their own
};

// Microseconds by a simple model, fitted on an H200 (within 30 % for 98 of 100 of 930 measurements): rounds of the
// blocks that an SM holds at one time, of which the last one is not full; or what moves the operands and C, if longer.
inline double simt_microseconds(const SimtShape& shape, const SimtTask& task, bool is_split) {
  constexpr double kFixed = 4.6, kRound = 1.6, kTile = 6e-4, kAddition = 7, kCyclesPerUs = 1980, kBytesPerUs = 3.4e6;
  constexpr double kTransposed = 0.08;  // cycles for each k and element of a tile copied by 4 bytes
  constexpr double kUnaligned = 0.22;
  const double elements_c = double(task.m) * double(task.n) * double(task.batch);
  const int64_t num_chunks = is_split ? ceil_div(task.k, task.chunk_k) : 1;
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
  const double alone = slower * (shape.alone + copies), crowded = slower * (shape.crowded + copies);
  const double slots = double(task.num_cus) * shape.blocks_per_cu, rounds = double(int64_t(blocks / slots));
  const auto rest = double(ceil_div(int64_t(blocks - rounds * slots), task.num_cus));
  const auto longer = [](double a, double b) { return a > b ? a : b; };
  const double cycles =
      rounds * longer(alone, shape.blocks_per_cu * crowded) + (rest > 0 ? longer(alone, rest * crowded) : 0);
  const double work = cycles * double(is_split ? task.chunk_k : task.k) / kCyclesPerUs +
                      kTile * double(shape.area()) * (rounds * shape.blocks_per_cu + rest) +
                      kRound * (rounds + (rest > 0));
  const double elements = double(task.m + task.n) * double(task.k) * double(task.batch) + elements_c;
  const double memory = 4 * elements / kBytesPerUs;
  const double addition = is_split ? kAddition + 8 * elements_c * double(num_chunks) / kBytesPerUs : 0;
  return kFixed + longer(work, memory) + 0.1 * (work + memory - longer(work, memory)) + addition;
}

// Whether shared memory has room for the tiles and the total of several chunks on every chip from sm_80 on.
constexpr bool can_fold(const SimtShape& shape) {
  return 4 * (shape.area() + int64_t(shape.num_stages) * (shape.block_k + 4) * (shape.block_m + shape.block_n + 8)) <=
         96 << 10;
}

inline SimtPlan choose_simt_plan(const SimtTask& task) {
  constexpr double kMaxWorkspace = 1 << 28;
  SimtTask transposed = task;
  transposed.m = task.n, transposed.n = task.m, transposed.a = task.b, transposed.b = task.a;
  const bool is_chunked = task.chunk_k < task.k;
  const double workspace = 4.0 * double(task.m) * double(task.n) * double(task.batch) *
                           (is_chunked ? double(ceil_div(task.k, task.chunk_k)) : 0);
  SimtPlan best{-1, false, false};
  double best_time = 0;
  for (int shape = 0; shape < kNumSimtShapes; ++shape) {
    for (const bool is_transposed : {false, true}) {
      for (const bool is_split : {false, true}) {
        if (is_split && (!is_chunked || workspace > kMaxWorkspace)) continue;
        if (!is_split && is_chunked && !can_fold(kSimtShapes[shape])) continue;
        const double time = simt_microseconds(kSimtShapes[shape], is_transposed ? transposed : task, is_split);
        if (best.shape < 0 || time < best_time) {
          best = {shape, is_transposed, is_split};
          best_time = time;
        }
      }
    }
  }
  return best;
}

}  // namespace tiledmm

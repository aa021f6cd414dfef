// How the skinny kernel shares out its work, as plain data, and the pure function that chooses. Nothing here changes a
// bit of the result: the order of summation is the same for all.
//
// m is the few rows, n x k the operand that streams (the kernel's launcher may have exchanged the caller's m and n).
#pragma once

#include <algorithm>

#include "core/math.h"
#include "core/operand.h"
#include "core/plan.h"
#include "core/problem.h"
#include "core/summation.h"
#include "core/task.h"
#include "core/transposed.h"
#include "kernels/cuda/skinny/costs.h"

namespace tiledmm {

// So many rows are few. In fp64 tiles of mma_async are as fast from 9 on.
constexpr int skinny_max_m(DType dtype) { return dtype == DType::f64 ? 8 : 64; }
inline constexpr int kSkinnyGroup = 16;                  // columns of C of one warp: what a matrix instruction takes
inline constexpr int kSkinnyStages[] = {2, 3, 4, 6, 8};  // each is a case in the kernel
inline constexpr int kNumSkinnyStages = int(sizeof(kSkinnyStages) / sizeof(int));

// Whether C^T = B^T A^T is computed instead: the larger operand streams.
constexpr bool exchanges_operands(DType dtype, int64_t m, int64_t n) {
  return m > skinny_max_m(dtype) || (n <= skinny_max_m(dtype) && n < m);
}

// The chunks' sums take so much memory at most: a result beyond that has enough units without splitting k.
inline constexpr int64_t kSkinnyMaxPartialBytes = 64 << 20;

// A chunk of k begins with a tile of its own.
constexpr int64_t skinny_k_tiles(int64_t k, int64_t chunk_k, int block_k) {
  const int64_t whole = k / chunk_k;
  return max_of(whole * ceil_div(chunk_k, block_k) + ceil_div(k - whole * chunk_k, block_k), 1);
}

struct SkinnyPlan {
  int groups;          // of kSkinnyGroup columns in a block
  int cols;            // of C in a unit, which the groups have room for
  bool splits_chunks;  // each chunk of k is a unit of work; else a block adds them up itself
  int num_stages;
  int stage_bytes, shared_bytes;
  int num_k_tiles;               // of a unit; the last chunk may have fewer
  int64_t blocks_n, num_chunks;  // of one product; num_chunks counts units, so 1 where chunks are not split
  int64_t num_units;
};

// Rows of the few in a block: whole fragments.
constexpr int skinny_block_m(int64_t m) { return m <= 8 ? 8 : m <= 16 ? 16 : m <= 32 ? 32 : 64; }
constexpr int skinny_block_k(DType dtype, int block_m, bool is_b_fp8) {
  return dtype != DType::f64 && (block_m <= 16 || is_b_fp8) ? 256 : 128;
}
// Threads that copy, and warps that multiply, at most: as far as registers go. Of a B of 8 bits there is half as much
// to copy, and a warp that widens it takes longer.
constexpr int skinny_copy_threads(bool is_b_fp8) { return is_b_fp8 ? 128 : 256; }
constexpr int skinny_max_groups(int block_m, bool is_b_fp8) {
  if (is_b_fp8) return block_m <= 16 ? 16 : block_m <= 32 ? 12 : 8;
  return block_m <= 32 ? 8 : 4;
}
// Rows of a tile in shared memory lie an odd number of 16 bytes apart, in fp64 of 32: without bank conflicts.
constexpr int skinny_row_bytes(DType dtype, bool is_k_major, int block_mn, int block_k) {
  const int bytes = (is_k_major ? block_k : block_mn) * int(size_of(dtype));
  return dtype == DType::f64 ? bytes + 32 : (bytes / 16 | 1) * 16;
}
constexpr int skinny_tile_bytes(DType dtype, bool is_k_major, int block_mn, int block_k) {
  return skinny_row_bytes(dtype, is_k_major, block_mn, block_k) * (is_k_major ? block_mn : block_k);
}

// What the items of a batch take besides, by ten random batches in 16 bits.
template <class Costs>
double items_microseconds(const Costs& costs, const GemmTask& task, const SkinnyPlan& plan, int num_sms) {
  const int64_t num_rounds = ceil_div(plan.num_units, num_sms);
  if (task.batch == 1) return 0;
  return num_rounds > 1 ? costs.items_of_round * double(num_rounds) : costs.items.value;
}

// Rounds of units, each as long as one unit takes, or as the memory takes for all of them.
inline double rounds_microseconds(const SkinnyPlan& plan, int num_sms, double unit, double shared) {
  const auto round = [&](double units) { return unit > units * shared ? unit : units * shared; };
  const int64_t rest = plan.num_units % num_sms;
  return double(plan.num_units / num_sms) * round(num_sms) + (rest ? round(double(rest)) : 0);
}

// Microseconds in fp64: rounds of units, each as long as a warp's chain or as the memory takes.
inline double model_microseconds(const SkinnyF64Costs& c, const GemmTask& task, const SkinnyPlan& plan, int num_sms,
                                 int copy_width) {
  const double k_tile = (c.k_tile + c.group * plan.groups) * (copy_width == 16 ? 1 : c.narrow.value);
  const double unit = c.unit + plan.num_k_tiles * k_tile;
  const double unit_k = double(plan.splits_chunks ? min_of(task.k, task.chunk_k) : task.k);
  const double shared = 8 * unit_k * double(min_of(task.n, plan.cols)) / c.rate;
  return c.start + rounds_microseconds(plan, num_sms, unit, shared) + items_microseconds(c, task, plan, num_sms) +
         (plan.splits_chunks ? c.split.value : 0);
}

// Microseconds in 16 bits: rounds of units, each round as long as the slowest of one multiprocessor's chain of k tiles,
// its copies, and the memory's. Copies of less than 16 bytes take each thread longer, the more it has of the few rows;
// so do other products of a batch.
inline double model_microseconds(const SkinnyCosts& c, const GemmTask& task, const SkinnyPlan& plan, int num_sms,
                                 int copy_width) {
  const int block_m = skinny_block_m(task.m), block_k = skinny_block_k(task.dtype, block_m, false);
  const double k = double(plan.splits_chunks ? min_of(task.k, task.chunk_k) : task.k);
  const double bytes_a = 2 * k * double(task.m);
  const double bytes_b = 2 * k * double(min_of(task.n, plan.groups * kSkinnyGroup));
  const double narrow = copy_width == 16  ? 0
                        : copy_width == 8 ? c.copy_8.value
                        : copy_width == 4 ? c.copy_4.value
                                          : c.copy_2.value;
  const double copies_a = double(block_m * block_k) / (8 * 256) * (plan.splits_chunks ? 2 : 1);  // of a thread
  const double chain =
                   plan.num_k_tiles * ((block_k == 256 ? c.k_tile_256.value : c.k_tile_128.value) + narrow * copies_a),
               copies = bytes_a / c.copied +
                        bytes_b / (copy_width == 2 && task.b.alignment == 2 ? c.copied_2.value : c.copied.value);
  const double products = c.product * block_m * block_k * plan.num_k_tiles * plan.groups * kSkinnyGroup;
  const double unit = c.unit + (task.batch > 1 && copy_width < 16 ? c.narrow_unit.value : 0) +
                      std::max(std::max(chain, copies), products);
  // The time that memory and second-level cache take; few multiprocessors draw less from them.
  const double busy = plan.num_units < num_sms ? c.idle + (1 - c.idle) * double(plan.num_units) / num_sms : 1;
  // Memory takes longer for short runs along n.
  const double runs = task.b.is_k_major ? 1 : 1 + c.short_runs / std::max<double>(plan.cols, c.least_run);
  const double shared = (bytes_b * runs / c.rate_b + bytes_a / c.rate_a) / busy;
  // The items' time is part of `unit` where copies are narrow.
  return c.start + rounds_microseconds(plan, num_sms, unit, shared) +
         (copy_width < 16 ? 0 : items_microseconds(c, task, plan, num_sms)) + (plan.splits_chunks ? c.split.value : 0);
}

// Microseconds beside a B of 8 bits: rounds of units, each of which takes as long as the slowest of a warp's chain of
// instructions, the work of all warps, which widen what they multiply, and one multiprocessor's copies; or as the
// memory takes for all of them.
inline double model_microseconds(const SkinnyFp8Costs& c, const GemmTask& task, const SkinnyPlan& plan, int num_sms,
                                 int copy_width) {
  const int block_m = skinny_block_m(task.m), block_k = skinny_block_k(task.dtype, block_m, true);
  const double k = double(plan.splits_chunks ? min_of(task.k, task.chunk_k) : task.k);
  const double work = plan.groups * (c.group + c.eight_rows * block_m / 8);
  const double copies = block_k * double(plan.cols + 2 * task.m) / c.copied;
  const double k_tile =
      std::max<double>(std::max<double>(c.k_tile, work), copies) * (copy_width == 16 ? 1 : c.narrow.value);
  const double shared = k * double(min_of(task.n, plan.cols)) / c.rate_b + 2 * k * double(task.m) / c.rate_a;
  return c.start + rounds_microseconds(plan, num_sms, c.unit + plan.num_k_tiles * k_tile, shared) +
         (plan.splits_chunks ? c.split.value : 0);
}

// Calls visit(plan) for each way to share out a problem.
template <class Visit>
void for_each_skinny_plan(const GemmTask& task, int num_sms, int64_t max_shared_bytes, const Visit& visit) {
  const int64_t groups_n = ceil_div(task.n, kSkinnyGroup);
  const int64_t chunks = task.chunk_k < task.k ? ceil_div(task.k, task.chunk_k) : 1;
  const DType dtype = task.dtype;
  const int block_m = skinny_block_m(task.m), block_k = skinny_block_k(dtype, block_m, task.is_b_fp8);
  const int sum_bytes = dtype == DType::f64 ? 8 : 4;
  const double partial_bytes =
      double(sum_bytes) * double(chunks) * double(task.batch) * double(task.m) * double(task.n);
  const bool may_split = chunks > 1 && partial_bytes <= double(kSkinnyMaxPartialBytes);
  for (int splits = 0; splits <= int(may_split); ++splits) {
    for (int groups = 1; groups <= skinny_max_groups(block_m, task.is_b_fp8) && groups <= groups_n; ++groups) {
      SkinnyPlan plan{};
      plan.groups = groups;
      plan.splits_chunks = splits;
      plan.num_k_tiles = int(skinny_k_tiles(splits ? task.chunk_k : task.k, task.chunk_k, block_k));
      plan.stage_bytes =
          skinny_tile_bytes(dtype, task.a.is_k_major, block_m, block_k) +
          skinny_tile_bytes(task.is_b_fp8 ? DType::e4m3 : dtype, task.b.is_k_major, groups * kSkinnyGroup, block_k);
      const int fixed = groups * block_m * (kSkinnyGroup + 4) * sum_bytes;  // C on its way out
      for (const int stages : kSkinnyStages) {
        if (stages * plan.stage_bytes + fixed <= max_shared_bytes) plan.num_stages = stages;
      }
      if (plan.num_stages < 3 && groups > 1) break;
      plan.shared_bytes = plan.num_stages * plan.stage_bytes + fixed;
      plan.blocks_n = ceil_div(groups_n, groups);
      plan.num_chunks = splits ? chunks : 1;
      plan.cols = groups * kSkinnyGroup;
      if (dtype == DType::f64) {
        // As many rounds of units, all of them full: few multiprocessors do not draw from memory what all do. In 16
        // bits the model was fitted to whole groups.
        const int64_t outer = plan.num_chunks * task.batch, rounds = ceil_div(plan.blocks_n * outer, num_sms);
        const int64_t blocks_n = max_of(rounds * num_sms / outer, plan.blocks_n);
        plan.cols = int(max_of(round_up(ceil_div(task.n, blocks_n), 4), kSkinnyGroup));
        plan.blocks_n = ceil_div(task.n, plan.cols);
      }
      plan.num_units = plan.blocks_n * plan.num_chunks * task.batch;
      visit(plan);
    }
  }
}

// How skinny computes a problem.
struct SkinnyLaunch {
  bool is_exchanged;     // C^T = B^T A^T; what follows is of that product
  int width_a, width_b;  // bytes that each operand's copies take at a time
  SkinnyPlan plan;
};

// Ways to share out are compared by their time with copies of 16 bytes.
template <class Costs>
void for_each_skinny_launch(const Costs& costs, const FoldedProblem& given, int num_sms, int64_t max_shared_bytes,
                            PlanSearch& visit) {
  // B streams where it alone has 8 bits.
  const bool is_b_fp8 = mix_of(given.gemm) == Mix::fp8_b;
  SkinnyLaunch launch{!is_b_fp8 && exchanges_operands(given.gemm.dtype_a, given.gemm.m, given.gemm.n), 0, 0, {}};
  const FoldedProblem problem = launch.is_exchanged ? transposed(given) : given;
  const GemmProblem& p = problem.gemm;
  const OperandView a = view_a(p), b = view_b(p);
  launch.width_a = copy_width(a, problem);
  launch.width_b = copy_width(b, problem);
  const int copy_width = int(min_of(launch.width_a, launch.width_b));
  const GemmTask task = task_of(problem, {is_k_major(a), launch.width_a}, {is_k_major(b), launch.width_b});
  for_each_skinny_plan(task, num_sms, max_shared_bytes, [&](const SkinnyPlan& plan) {
    const double own_us = model_microseconds(costs, task, plan, num_sms, 16);
    if (own_us >= visit.least_us()) return;
    launch.plan = plan;
    visit(launch, model_microseconds(costs, task, plan, num_sms, copy_width), own_us);
  });
}

}  // namespace tiledmm

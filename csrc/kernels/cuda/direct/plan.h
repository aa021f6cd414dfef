// How the direct kernels share out their work, as plain data, and the pure functions that choose. Nothing here changes
// a bit of the result: the order of summation is that of the other kernels.
#pragma once

#include "core/math.h"
#include "core/operand.h"
#include "core/plan.h"
#include "core/problem.h"
#include "core/transposed.h"
#include "kernels/cuda/direct/costs.h"
#include "kernels/cuda/direct/few_columns_plan.h"

namespace tiledmm {

inline constexpr int kDirectThreads = 128;

// What a lane has of a product: so many neighbouring rows of A, and as many columns of B.
//
// By matrix instructions a warp's tile is 8 times as high and as wide. By multiply-adds each thread has a tile of its
// own, wherever in the batch that is.
struct DirectTile {
  int rows, cols;
};
inline constexpr DirectTile kDirectMmaTiles[] = {{2, 1}, {2, 2}, {2, 4}, {2, 8}};
inline constexpr DirectTile kDirectFmaTiles[] = {{1, 1}, {1, 4}, {2, 4}, {4, 4}};
static_assert(sizeof kDirectMmaTiles == kNumDirectTiles * sizeof(DirectTile), "costs.h has a place for each");
static_assert(sizeof kDirectFmaTiles == kNumDirectTiles * sizeof(DirectTile), "costs.h has a place for each");

// The widest tile is too slow in tf32, since its stores are: with a k of 1 to 8 it takes 1.25 to 1.55 times as long as
// the next one.
constexpr int num_direct_tiles(DType dtype, bool is_mma) {
  return is_mma && dtype == DType::f32 ? kNumDirectTiles - 1 : kNumDirectTiles;
}

// Elements of k in a step: a matrix instruction's, or a unit of 16 bytes.
constexpr int direct_step(DType dtype, bool is_mma) { return int((is_mma ? 32 : 16) / size_of(dtype)); }

struct DirectPlan {
  int tile;                     // of the table; kNumDirectTiles: by few_columns
  bool is_exchanged;            // C^T = B^T A^T; what follows is of that product
  bool wide_a, wide_b, wide_c;  // loads and stores of several neighbours, which lie together and aligned
  int64_t tiles_m, num_tiles;   // of an item
  int64_t num_units;            // tiles of the whole batch
  FewColumnsPlan few_columns;
};

// Whether a lane's neighbours can be loaded by one instruction: along k as many as a word of the matrix instruction or
// a unit of 16 bytes holds, else along m (n), all of them.
inline bool is_wide(const OperandView& view, const FoldedProblem& problem, int count, bool is_mma) {
  if (view.stride_k != 1 && view.stride_row != 1) return false;
  const int64_t size = size_of(problem.gemm.dtype_a);
  const bool along_k = is_k_major(view);
  const int64_t bytes = along_k ? (is_mma ? 4 : 16) : min_of(count * size, 16);
  return bytes > size && copy_width(view, problem) >= bytes && (along_k || view.rows % count == 0);
}

// Whether rows of C are stored in units of up to 16 bytes: `count` neighbours of a lane.
inline bool is_wide_result(const FoldedProblem& problem, int count, bool is_mma) {
  const GemmProblem& p = problem.gemm;
  if (p.stride_cn != 1 || count == 1 || p.n % count != 0 || (is_mma && !is_plain(p))) return false;
  const OperandView rows_of_c{p.c, p.dtype_c, p.m, p.n, p.stride_cm, p.stride_cn, &BatchDim::stride_c};
  return copy_width(rows_of_c, problem) >= min_of(count * size_of(p.dtype_c), 16);
}

// Steps whose loads are on their way at the same time, as far as registers go.
constexpr int direct_steps(const DirectTile& tile, DType dtype, bool is_mma) {
  const int products = tile.rows * tile.cols, size = int(size_of(dtype));
  if (is_mma) return tile.cols <= 2 ? 4 : tile.cols == 4 ? 2 : 1;
  return products == 1 ? 8 : products == 4 ? 4 : products * size <= 64 ? 2 : 1;
}

// Microseconds by a simple model: what the warps of the busiest multiprocessor take, or memory, and waiting.
inline double direct_us(const DirectCosts& c, const FoldedProblem& problem, const DirectTile& tile,
                        const DirectPlan& plan, bool is_mma, int num_cus) {
  const GemmProblem& p = problem.gemm;
  const int64_t size = size_of(p.dtype_a), step = direct_step(p.dtype_a, is_mma), steps = ceil_div(p.k, step);
  const int64_t own_k = is_mma ? step / 4 : step;  // elements of k that a lane has of a step
  const auto loads = [&](const OperandView& view, bool is_wide, int count) {
    const bool along_k = is_k_major(view);
    if (!is_wide) return double(count * own_k) * (along_k ? c.load_k : c.load_mn);
    return along_k ? c.wide_k * double(count * (is_mma ? 2 : 1))
                   : c.wide_mn * double(own_k * ceil_div(count * size, 16));
  };
  const double products = double(tile.rows * tile.cols), m = double(p.m), n = double(p.n);
  const double outputs = m * n / double(plan.num_tiles * (is_mma ? 32 : 1));  // of a lane: there are none outside C
  const double multiply = is_mma ? c.multiply * products / 2 : c.fma * products * double(step);
  const double stores = plan.wide_c ? c.wide_store * outputs * double(size) / 16 : c.store * outputs;
  const double of_step = loads(view_a(p), plan.wide_a, tile.rows) + loads(view_b(p), plan.wide_b, tile.cols) + multiply;
  // A block's warps lie on one multiprocessor, however few blocks there are.
  const int64_t blocks = ceil_div(plan.num_units, kDirectThreads / (is_mma ? 32 : 1));
  const double work =
      1e-3 * kDirectThreads / 32 * double(ceil_div(blocks, num_cus)) * (c.tile + stores + double(steps) * of_step);
  const double k = double(p.k), batch = double(problem.batch_size);
  const double memory = double(size) * batch * (m * k + k * n + m * n) / c.rate;
  const double waiting = c.step * double(ceil_div(steps, direct_steps(tile, p.dtype_a, is_mma)));
  return c.start[plan.tile] + waiting + (work > memory ? work + c.overlap * memory : memory + c.overlap * work);
}

// Tiles of the product or of the exchanged one, so many rows and columns each; false: they are too many.
inline bool count_tiles(const FoldedProblem& problem, int64_t rows, int64_t cols, DirectPlan& plan) {
  plan.tiles_m = ceil_div(problem.gemm.m, rows);
  plan.num_tiles = plan.tiles_m * ceil_div(problem.gemm.n, cols);
  plan.num_units = plan.num_tiles * problem.batch_size;
  return plan.num_units <= INT32_MAX - kDirectThreads;
}

inline void for_each_direct_plan(const DirectCosts& costs, const FoldedProblem& given, bool is_mma, const Chip& chip,
                                 PlanSearch& visit) {
  const FoldedProblem exchanged = transposed(given);
  // Tiles store C in the operands' dtype alone.
  const int num_tiles = given.gemm.dtype_c == given.gemm.dtype_a ? num_direct_tiles(given.gemm.dtype_a, is_mma) : 0;
  for (const bool is_exchanged : {false, true}) {
    const FoldedProblem& problem = is_exchanged ? exchanged : given;
    const GemmProblem& p = problem.gemm;
    for (int i = 0; i < num_tiles; ++i) {
      const DirectTile& tile = is_mma ? kDirectMmaTiles[i] : kDirectFmaTiles[i];
      const int lanes = is_mma ? 8 : 1;
      DirectPlan plan{};
      if (!count_tiles(problem, tile.rows * lanes, tile.cols * lanes, plan)) continue;
      plan.tile = i, plan.is_exchanged = is_exchanged;
      plan.wide_a = is_wide(view_a(p), problem, tile.rows, is_mma);
      plan.wide_b = is_wide(view_b(p), problem, tile.cols, is_mma);
      plan.wide_c = is_wide_result(problem, is_mma ? 2 * tile.cols : tile.cols, is_mma);
      visit(plan, direct_us(costs, problem, tile, plan, is_mma, chip.num_cus));
    }
  }
  for (const bool is_exchanged : {false, true}) {
    const FoldedProblem& problem = is_exchanged ? exchanged : given;
    DirectPlan plan{};
    FewColumnsPlan& few = plan.few_columns;
    if (!plan_few_columns(problem, is_mma, chip, few) || !count_tiles(problem, few.rows, kMostFewColumns, plan))
      continue;
    plan.tile = kNumDirectTiles, plan.is_exchanged = is_exchanged;
    visit(plan, few_columns_us(costs, problem, few, is_mma, chip.num_cus));
  }
}

}  // namespace tiledmm

// The block tiles of wgmma_grouped, as plain data, and the functions that choose among them. None of them changes a bit
// of the result.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/wgmma/costs.h"
#include "kernels/cuda/wgmma/plan.h"

namespace tiledmm {

inline constexpr TileShape kGroupedTileShapes[] = {{128, 256}, {64, 256}, {128, 128}, {64, 128}, {64, 64}};
inline constexpr int kNumGroupedTileShapes = int(sizeof(kGroupedTileShapes) / sizeof(TileShape));

constexpr bool serves_groups_of_k(const TileShape& shape) { return shape.block_m == 128; }
// Half of a tile's columns for each B: boxes across k are 64 columns wide.
constexpr bool serves_gated(const TileShape& shape, bool is_b_k_major) { return is_b_k_major || shape.block_n >= 128; }

// A product without groups is one of its own.
inline int64_t num_groups_of(const FoldedProblem& problem) {
  return is_grouped(problem.gemm) ? problem.batch_dims[0].size : 1;
}

// Columns of C that a tile has.
constexpr int columns_of(const TileShape& shape, const GemmProblem& p) {
  return p.gated_b ? shape.block_n / 2 : shape.block_n;
}

struct WgmmaGroupedPlan {
  int tile;                 // of kGroupedTileShapes
  int box_rows;             // of A, in one copy
  int band;                 // rows of tiles that are computed together, at most
  bool copies_a, copies_b;  // first, since the copy engine cannot take them
  bool stores_by_tma, evicts_b;
  int num_blocks;
  TensorMapView a, b, c;  // of the product, or of copies
};

// Tiles at most, where offsets do not decrease.
constexpr int64_t most_tiles(const GemmProblem& p, int64_t num_groups, int64_t tiles_m, int64_t tiles_n) {
  if (p.grouping == Grouping::k) return num_groups * tiles_m * tiles_n;
  return (p.grouping == Grouping::rows ? tiles_m + num_groups + 1 : tiles_m) * tiles_n;
}

// How the kernel reads an operand, or its copy: A along k, B as it lies, both across k where that is grouped. True: it
// is copied first.
inline bool describe_grouped(const OperandView& operand, bool is_a, const FoldedProblem& problem, TensorMapView& view) {
  const bool is_of_k = problem.gemm.grouping == Grouping::k;
  if (describe_operand(operand, problem, view) && (is_of_k ? !view.is_k_major : !is_a || view.is_k_major)) return false;
  const bool is_along_k = !is_of_k && (is_a || is_k_major(operand));
  const int64_t inner = is_along_k ? operand.k : operand.rows, outer = is_along_k ? operand.rows : operand.k;
  const int64_t ld = copied_ld(operand.dtype, inner);
  view = {is_along_k, inner, outer, ld, outer * ld, num_items(problem, operand.batch_stride)};
  return true;
}

// Rows of tiles. How large groups are only the device knows: some have a tile that is half empty.
inline double expected_rows_of_tiles(const GemmProblem& p, const TileShape& shape, double groups) {
  const double rows = double(ceil_div(p.m, shape.block_m));
  if (p.grouping == Grouping::k) return groups * rows;
  return p.grouping == Grouping::none ? rows : std::max(groups, double(p.m) / shape.block_m + 0.4 * groups);
}

// Microseconds of a plan by a simple model: rounds of tiles, memory or the second-level cache, whichever takes longest,
// and a part of the others.
inline double grouped_microseconds(const GroupedCosts& costs, int tile, const FoldedProblem& problem, int num_sms) {
  const GemmProblem& p = problem.gemm;
  const TileShape& shape = kGroupedTileShapes[tile];
  const bool is_of_k = p.grouping == Grouping::k;
  const int columns = columns_of(shape, p);
  const auto groups = double(num_groups_of(problem));
  const double m = double(p.m), n = double(p.n), k = double(p.k), num_b = p.gated_b ? 2 : 1;
  const double tiles_m = expected_rows_of_tiles(p, shape, groups), tiles_n = double(ceil_div(p.n, columns));
  const double waves = tiles_m * tiles_n / num_sms;
  const double rounds = groups > 1 ? std::max(waves + 0.5, 1.0) : std::ceil(waves);
  const double k_tiles = is_of_k ? k / kWgmmaBlockK / groups + 0.5 : double(ceil_div(p.k, kWgmmaBlockK));
  const bool has_many_rows = p.grouping == Grouping::rows && m > costs.many_rows * groups;
  const double many = has_many_rows && tile > 0 ? costs.small_tiles.value : 1;
  const double area = double(shape.block_m) * columns;
  const double tiles = rounds * (k_tiles * many * costs.k_tile[tile] + costs.tile + area * costs.element);
  const double of_b = 2 * num_b * n * k * (p.grouping == Grouping::rows ? groups : 1), of_a = 2 * m * k;
  const double memory = (bytes_moved(problem) + 2 * (num_b - 1) * n * k * groups) / costs.rate + costs.ramp;
  const double cached = ((is_of_k ? 0 : of_b * tiles_m / groups) + of_a * tiles_n) / costs.cached;
  // The largest of skewed groups have several times the mean's rows: more than one tile then reads their weights.
  const bool is_read_again = p.grouping == Grouping::rows && 4 * m > groups * shape.block_m;
  const double slowed = memory * (1 + costs.tail / waves + (is_read_again ? costs.read_again.value : 0));
  return costs.start + (1 - costs.overlap) * std::max({tiles, slowed, cached}) +
         costs.overlap * (tiles + slowed + cached);
}

inline void for_each_grouped_plan(const FoldedProblem& problem, const GroupedCosts& costs, int num_sms,
                                  PlanSearch& visit) {
  const GemmProblem& p = problem.gemm;
  WgmmaGroupedPlan plan{};
  const OperandView a = view_a(p), b = view_b(p);
  plan.copies_a = describe_grouped(a, true, problem, plan.a);
  plan.copies_b = describe_grouped(b, false, problem, plan.b);
  const double copied = (plan.copies_a ? double(a.rows) * double(a.k) : 0) +
                        (plan.copies_b ? double(plan.b.batch_count) * double(b.rows) * double(b.k) : 0);
  plan.stores_by_tma = describe_result(problem, plan.c) && is_storable(p.dtype_c, plan.c);
  const int64_t num_groups = num_groups_of(problem);
  const int64_t mean_rows = p.grouping == Grouping::rows ? ceil_div(p.m, num_groups) : p.m;
  // Where the second-level cache gives up first what it has of B, as fitted on an H100.
  constexpr double kMostEvicted = 1e8;
  constexpr int64_t kFewRows = 64, kManyRows = 1024;
  const double bytes_b = 2 * double(plan.b.batch_count) * double(p.n) * double(p.k);
  const double copy_us = copied > 0 ? costs.repack + 4 * copied / costs.repacked : 0;
  for (int tile = 0; tile < kNumGroupedTileShapes; ++tile) {
    const TileShape& shape = kGroupedTileShapes[tile];
    if (p.grouping == Grouping::k && !serves_groups_of_k(shape)) continue;
    if (p.grouping != Grouping::k && problem.chunk_k < p.k && !sums_chunks(shape)) continue;
    if (p.gated_b && !serves_gated(shape, plan.b.is_k_major)) continue;
    plan.tile = tile;
    plan.box_rows = mean_rows <= 32 ? 16 : 64;
    plan.band = 2048 / shape.block_m;
    const int64_t tiles_n = ceil_div(p.n, columns_of(shape, p));
    plan.num_blocks = int(min_of(most_tiles(p, num_groups, ceil_div(p.m, shape.block_m), tiles_n), num_sms));
    plan.evicts_b = p.grouping == Grouping::none && (p.m <= kFewRows ? bytes_b <= kMostEvicted : p.m <= kManyRows);
    visit(plan, copy_us + grouped_microseconds(costs, tile, problem, num_sms));
  }
}

}  // namespace tiledmm

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
  int tile;                 // of kGroupedTileShapes; of kFp8Tiles where operands have 8 bits
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

// How the kernel reads an operand, or its copy: A along k, and B where it has 8 bits, else B as it lies, both across k
// where that is grouped. True: it is copied first.
inline bool describe_grouped(const OperandView& operand, bool is_a, const FoldedProblem& problem, TensorMapView& view) {
  const bool is_of_k = problem.gemm.grouping == Grouping::k, needs_k = is_a || size_of(operand.dtype) == 1;
  const bool is_readable = describe_operand(operand, problem, view);
  if (is_readable && (is_of_k ? !view.is_k_major : !needs_k || view.is_k_major)) return false;
  const bool is_along_k = !is_of_k && (needs_k || is_k_major(operand));
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
// and a part of the others. `k_tile` is what one of the tile takes.
inline double grouped_microseconds(const GroupedCosts& costs, const TileShape& shape, double k_tile,
                                   const FoldedProblem& problem, int num_sms) {
  const GemmProblem& p = problem.gemm;
  const bool is_of_k = p.grouping == Grouping::k;
  const int columns = columns_of(shape, p);
  const auto groups = double(num_groups_of(problem));
  const double m = double(p.m), n = double(p.n), k = double(p.k), num_b = p.gated_b ? 2 : 1;
  const double tiles_m = expected_rows_of_tiles(p, shape, groups), tiles_n = double(ceil_div(p.n, columns));
  const double waves = tiles_m * tiles_n / num_sms;
  const double rounds = groups > 1 ? std::max(waves + 0.5, 1.0) : std::ceil(waves);
  const auto bytes = double(size_of(p.dtype_a));
  const int64_t block_k = 2 * kWgmmaBlockK / size_of(p.dtype_a);
  const double k_tiles = is_of_k ? k / kWgmmaBlockK / groups + 0.5 : double(ceil_div(p.k, block_k));
  const bool has_many_rows = p.grouping == Grouping::rows && m > costs.many_rows * groups;
  const bool is_small = shape.block_m < 128 || shape.block_n < 256;
  const double many = has_many_rows && is_small ? costs.small_tiles.value : 1;
  const double num_sums = (p.sum_offset ? 1 : 0) + (p.up_sum_offset ? 1 : 0);  // that are kept
  const double area = double(shape.block_m) * columns;
  const double tiles = rounds * (k_tiles * many * k_tile + costs.tile + (1 + num_sums) * area * costs.element);
  const double of_b = bytes * num_b * n * k * (p.grouping == Grouping::rows ? groups : 1), of_a = bytes * m * k;
  const double memory =
      (bytes_moved(problem) + bytes * ((num_b - 1) * n * k * groups + num_sums * m * n)) / costs.rate + costs.ramp;
  const double cached = ((is_of_k ? 0 : of_b * tiles_m / groups) + of_a * tiles_n) / costs.cached;
  // The largest of skewed groups have several times the mean's rows: more than one tile then reads their weights.
  const bool is_read_again = p.grouping == Grouping::rows && 4 * m > groups * shape.block_m;
  const double slowed = memory * (1 + costs.tail / waves + (is_read_again ? costs.read_again.value : 0));
  return costs.start + (1 - costs.overlap) * std::max({tiles, slowed, cached}) +
         costs.overlap * (tiles + slowed + cached);
}

// What all plans of a problem are made from.
struct GroupedSearch {
  WgmmaGroupedPlan plan{};
  double copy_us;

  GroupedSearch(const FoldedProblem& problem, const GroupedCosts& costs) {
    const GemmProblem& p = problem.gemm;
    const OperandView a = view_a(p), b = view_b(p);
    plan.copies_a = describe_grouped(a, true, problem, plan.a);
    plan.copies_b = describe_grouped(b, false, problem, plan.b);
    const double copied = (plan.copies_a ? double(a.rows) * double(a.k) : 0) +
                          (plan.copies_b ? double(plan.b.batch_count) * double(b.rows) * double(b.k) : 0);
    const bool are_sums_aligned = (p.sum_offset | p.up_sum_offset) * size_of(p.dtype_c) % 16 == 0;
    plan.stores_by_tma = describe_result(problem, plan.c) && is_storable(p.dtype_c, plan.c) && are_sums_aligned;
    copy_us = copied > 0 ? costs.repack + 2 * double(size_of(p.dtype_a)) * copied / costs.repacked : 0;
  }
};

// Shows the plan of a tile, of which a k tile takes so long.
inline void visit_grouped_tile(GroupedSearch& search, const FoldedProblem& problem, const GroupedCosts& costs,
                               int num_sms, int tile, const TileShape& shape, double k_tile, PlanSearch& visit) {
  const GemmProblem& p = problem.gemm;
  WgmmaGroupedPlan& plan = search.plan;
  const int64_t num_groups = num_groups_of(problem);
  const int64_t mean_rows = p.grouping == Grouping::rows ? ceil_div(p.m, num_groups) : p.m;
  // Where the second-level cache gives up first what it has of B, as fitted on an H100.
  constexpr double kMostEvicted = 1e8;
  constexpr int64_t kFewRows = 64, kManyRows = 1024;
  const double bytes_b = 2 * double(plan.b.batch_count) * double(p.n) * double(p.k);
  plan.tile = tile;
  plan.box_rows = mean_rows <= 32 ? 16 : 64;
  plan.band = 2048 / shape.block_m;
  const int64_t tiles_n = ceil_div(p.n, columns_of(shape, p));
  plan.num_blocks = int(min_of(most_tiles(p, num_groups, ceil_div(p.m, shape.block_m), tiles_n), num_sms));
  plan.evicts_b = p.grouping == Grouping::none && (p.m <= kFewRows ? bytes_b <= kMostEvicted : p.m <= kManyRows);
  visit(plan, search.copy_us + grouped_microseconds(costs, shape, k_tile, problem, num_sms));
}

inline void for_each_grouped_plan(const FoldedProblem& problem, const GroupedCosts& costs, int num_sms,
                                  PlanSearch& visit) {
  const GemmProblem& p = problem.gemm;
  GroupedSearch search(problem, costs);
  for (int tile = 0; tile < kNumGroupedTileShapes; ++tile) {
    const TileShape& shape = kGroupedTileShapes[tile];
    if (p.grouping == Grouping::k && !serves_groups_of_k(shape)) continue;
    if (p.grouping != Grouping::k && problem.chunk_k < p.k && !sums_chunks(shape)) continue;
    if (p.gated_b && !serves_gated(shape, search.plan.b.is_k_major)) continue;
    visit_grouped_tile(search, problem, costs, num_sms, tile, shape, costs.k_tile[tile], visit);
  }
}

}  // namespace tiledmm

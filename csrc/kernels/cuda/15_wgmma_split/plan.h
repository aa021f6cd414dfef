// How the split kernel shares out its work and lays out its workspace, as plain data. Nothing here changes a bit of the
// result: the order of summation is a function of k alone.
#pragma once

#include "core/math.h"
#include "core/problem.h"

namespace tiledmm {

inline constexpr int kSplitBlock = 128;  // rows and columns of a tile
inline constexpr int kSplitRows = 32;    // of an operand, that are split together
// k is multiplied in blocks of so many elements, each with scales of its own; their sums are added up in chunks.
inline constexpr int kSplitBlockK = 64, kSplitChunkK = 512;
// So many of k the matrix unit sums at most before its sums are scaled and added to the chunk's.
inline constexpr int kSplitSumK = 32;
// Shorter k is left to the plain multiply-adds of the last kernel: the split's own error, 12 units of 2^-24 times the
// sum of the products' magnitudes, would exceed theirs.
inline constexpr int kSplitMinK = kSplitBlockK;
// The exponents that the largest of a block may have, and how far below it others may lie, nonzero ones.
inline constexpr int kSplitMinExponent = -60, kSplitMaxExponent = 59, kSplitRange = 40;

// Up to so many rows of A, or columns of B, the other operand is split after the load (few_rows.h): in tiles of so many
// of its rows, their chunks shared out in a cluster of at most so many blocks.
inline constexpr int kFewRows = 64, kFewTile = 64, kFewCluster = 8;
// The width of the matrix instruction that takes them.
constexpr int few_width(int64_t rows) { return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64; }

// The terms of one operand of `rows` x k, in each item of a batch: first terms, then second ones, of rows along k; a
// scale for each row and block of k; a flag for each row and `flag_blocks` blocks of k.
struct SplitLayout {
  int64_t num_items, rows, k;
  int flag_blocks = kSplitChunkK / kSplitBlockK;

  constexpr int64_t padded_k() const { return round_up(k, kSplitBlockK); }
  constexpr int64_t padded_rows() const { return round_up(rows, kSplitBlock); }
  constexpr int64_t num_blocks() const { return ceil_div(k, kSplitBlockK); }
  constexpr int64_t num_chunks() const { return ceil_div(k, kSplitChunkK); }
  constexpr int64_t num_flags() const { return ceil_div(num_blocks(), flag_blocks); }  // of a row
  constexpr int64_t terms_of_item() const { return rows * padded_k(); }                // of either kind
  constexpr int64_t term_bytes() const { return round_up(num_items * terms_of_item() * 2 * 2, 256); }
  constexpr int64_t scale_bytes() const { return num_items * num_blocks() * padded_rows() * 4; }
  constexpr int64_t flag_bytes() const { return round_up(num_items * num_flags() * padded_rows(), 256); }
  constexpr int64_t bytes() const { return term_bytes() + scale_bytes() + flag_bytes(); }
};

// The operand that is split after the load.
enum class SplitLate : int8_t { none, a, b };

struct SplitPlan {
  bool is_plain;  // k is short: one kernel of multiply-adds
  SplitLate late;
  int8_t log2_cluster;  // of the blocks that share a tile of it
  int64_t tiles_m, tiles_n, num_tiles;
  SplitLayout a, b;

  // An operand that is split late has flags alone in the workspace.
  constexpr int64_t bytes_a() const { return late == SplitLate::a ? a.flag_bytes() : a.bytes(); }
  constexpr int64_t bytes_b() const { return late == SplitLate::b ? b.flag_bytes() : b.bytes(); }
};

// Items of an operand that a batch does not repeat.
inline int64_t num_items(const FoldedProblem& problem, int64_t BatchDim::* stride) {
  int64_t items = 1;
  for (int32_t d = 0; d < problem.gemm.num_batch_dims; ++d) {
    if (problem.batch_dims[d].*stride != 0) items *= problem.batch_dims[d].size;
  }
  return items;
}

// An operand is split in tiles of 32 rows and at most a chunk of k, of shorter ones where there would be few: a tile
// takes as long as its blocks of k, one after the other.
constexpr SplitLayout plan_split_tiles(SplitLayout layout, int num_sms) {
  const int64_t tiles_rows = layout.num_items * layout.padded_rows() / kSplitRows;
  while (layout.flag_blocks > 1 && tiles_rows * layout.num_flags() < 2 * num_sms) layout.flag_blocks /= 2;
  return layout;
}

// The larger operand where the other one has few rows.
constexpr SplitLate split_late(const GemmProblem& p) {
  if (p.n <= kFewRows && p.m > p.n) return SplitLate::a;
  return p.m <= kFewRows ? SplitLate::b : SplitLate::none;
}

// The plan of a problem and the microseconds of a whole call: memory traffic of the split, tiles of three products at
// 92 % of the matrix unit's rate, or what is split late read once, launches. An estimate.
inline SplitPlan plan_split(const FoldedProblem& problem, int num_sms, double& cost_us) {
  const GemmProblem& p = problem.gemm;
  SplitPlan plan{};
  plan.is_plain = p.k < kSplitMinK;
  plan.tiles_m = ceil_div(p.m, kSplitBlock);
  plan.tiles_n = ceil_div(p.n, kSplitBlock);
  plan.num_tiles = problem.batch_size * plan.tiles_m * plan.tiles_n;
  plan.a = {num_items(problem, &BatchDim::stride_a), p.m, p.k};
  plan.b = {num_items(problem, &BatchDim::stride_b), p.n, p.k};
  const double rounds = double(ceil_div(plan.num_tiles, num_sms));
  if (!plan.is_plain) plan.late = split_late(p);
  if (plan.late != SplitLate::a) plan.a = plan_split_tiles(plan.a, num_sms);
  if (plan.late != SplitLate::b) plan.b = plan_split_tiles(plan.b, num_sms);
  if (plan.is_plain) {
    cost_us = 5 + rounds * (1 + 0.06 * double(p.k));
  } else if (plan.late != SplitLate::none) {
    const SplitLayout& large = plan.late == SplitLate::a ? plan.a : plan.b;
    const int64_t tiles = problem.batch_size * ceil_div(large.rows, kFewTile);
    // Enough blocks for several on each multiprocessor, and a chunk for each.
    while (2 << plan.log2_cluster <= min_of(kFewCluster, large.num_chunks()) &&
           tiles << plan.log2_cluster < 4 * num_sms)
      ++plan.log2_cluster;
    const double blocks_k = double(ceil_div(large.num_blocks(), int64_t(1) << plan.log2_cluster));
    const double copies = double(problem.batch_size) * double(large.rows) * double(large.k) * 4 / 4e6;
    cost_us = 8 + max_of(copies, blocks_k * 0.6);
  } else {
    cost_us = 14 + double(plan.a.bytes() + plan.b.bytes()) * 2 / 3.5e6 + rounds * (2 + double(plan.a.num_blocks()));
  }
  return plan;
}

}  // namespace tiledmm

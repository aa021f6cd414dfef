// How the split kernel shares out its work and lays out its workspace, as plain data. Nothing here changes a bit of the
// result: the order of summation is a function of k alone.
#pragma once

#include "kernels/cuda/shared/tile_order.h"
#include "kernels/cuda/wgmma_split/costs.h"
#include "kernels/split/layout.h"

namespace tiledmm {

// So many main products the matrix unit sums before its sums are added to others.
inline constexpr int kSplitSumK = 16;
inline constexpr int kBlocksOfChunk = kSplitChunkK / kSplitBlockK;  // blocks of k in a chunk
// Sums of chunks that are computed side by side take so much memory at most. The first of both fits the second-level
// cache.
inline constexpr int64_t kCachedSumBytes = 32 << 20, kMaxSumBytes = 64 << 20;
// Up to so many rows of A, or columns of B, the other operand is split after the load (few_rows.h): in tiles of so many
// of its rows, their chunks shared out in a cluster of at most so many blocks.
inline constexpr int kFewRows = 64, kFewTile = 64, kFewCluster = 8;
// Each block that multiplies by up to so many splits them itself; a kernel of its own splits more.
inline constexpr int kRowsSplitByBlocks = 16;
// The width of the matrix instruction that takes them.
constexpr int few_width(int64_t rows) { return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64; }
// Blocks of a multiprocessor, by registers and shared memory.
constexpr int few_blocks_of_sm(int64_t rows) { return rows <= kRowsSplitByBlocks ? 3 : 2; }
static_assert(few_width(kRowsSplitByBlocks) == kRowsSplitByBlocks, "kernels, which go by the width, and plans agree");

// The operand that is split after the load.
enum class SplitLate : int8_t { none, a, b };

// What is chosen for a product whose k is one group; all else follows from it and the product.
struct SplitChoice {
  bool is_late;         // whether an operand is split after the load
  int8_t cluster;       // blocks that share a tile of what is split after the load
  bool has_pairs;       // of blocks, of which each fetches half of B for both
  int64_t whole_tiles;  // the first ones, of all of k; of the others each chunk is a unit of work
  int num_blocks;       // that take turns
  int group_m;          // rows of tiles that are computed together
};

// How wgmma_split computes a problem: all of its k or as many groups as go at a time, fewer of them, the rest of k.
struct SplitPlan {
  SplitChoice first, fewer, rest;
};

struct SplitWork : SplitChoice {
  SplitLate late;
  int64_t tiles_m, tiles_n, num_tiles;  // of single blocks or of pairs; num_tiles: of the whole batch
  SplitLayout a, b;

  constexpr int64_t num_units() const { return whole_tiles + (num_tiles - whole_tiles) * a.num_chunks(); }
  // What the chunks of those others sum, a tile of each block and chunk.
  constexpr int64_t sum_bytes() const {
    return (num_units() - whole_tiles) * (has_pairs ? 2 : 1) * kSplitBlock * kSplitBlock * 4;
  }

  // The few rows, where the other operand is split late.
  constexpr const SplitLayout& few() const { return late == SplitLate::a ? b : a; }
  // Terms, scales and flags of what a kernel of its own splits, and sums of chunks.
  constexpr int64_t workspace_bytes() const {
    if (late == SplitLate::none) return a.bytes() + b.bytes() + sum_bytes();
    return few().rows <= kRowsSplitByBlocks ? 0 : few().bytes();
  }
};

// The operand that may be split after the load: the larger one where the other has few rows. What has 16 bits is split
// before: its one term takes no more memory than itself.
constexpr SplitLate split_late(const GemmProblem& p) {
  if (p.n <= kFewRows && p.m > p.n && p.dtype_a == DType::f32) return SplitLate::a;
  return p.m <= kFewRows && p.dtype_b == DType::f32 ? SplitLate::b : SplitLate::none;
}

// Chunks of one tile side by side fill multiprocessors that whole tiles would leave without work: all tiles where there
// are few, else those of the last round. Returns the microseconds of all tiles.
inline double share_out_chunks(const SplitCosts& costs, SplitWork& plan, int num_sms) {
  const int64_t places = num_sms / (plan.has_pairs ? 2 : 1);
  const auto blocks_k = double(plan.a.num_blocks());
  // `units` units of so many blocks of k; a multiprocessor is faster where not all of them have work.
  const auto rounds_us = [&](int64_t units, double blocks) {
    const double fill = double(units % places) / double(places);
    return double(units / places) * (costs.unit + costs.full * blocks) +
           (fill > 0 ? costs.unit + (costs.least + costs.fuller * fill) * blocks : 0);
  };
  plan.whole_tiles = plan.num_tiles;
  double best = rounds_us(plan.num_tiles, blocks_k);
  if (plan.a.num_chunks() == 1) return best;
  SplitWork other = plan;
  other.whole_tiles = plan.num_tiles / places * places;
  if (other.sum_bytes() > kMaxSumBytes) return best;
  const int64_t cached = min_of(other.sum_bytes(), kCachedSumBytes), others = other.sum_bytes() - cached;
  const double us = rounds_us(other.whole_tiles, blocks_k) +
                    rounds_us(other.num_units() - other.whole_tiles, blocks_k / double(plan.a.num_chunks())) +
                    double(cached) * 2 / costs.sums + double(others) * 2 / costs.split + costs.addition;
  if (us < best) best = us, plan = other;
  return best;
}

// Blocks that share a tile of few rows, a chunk for each: as many as run at the same time, of which clusters of three
// and more leave an eighth of the places empty; but no more than their rounds of chunks need. More are slower (H200).
constexpr int8_t few_cluster(int64_t rows, int64_t tiles, int64_t chunks, int num_sms) {
  const int64_t places = few_blocks_of_sm(rows) * int64_t(num_sms);
  int64_t most = min_of(min_of(kFewCluster, chunks), places / tiles);
  if (most > 2) most = max_of(2, min_of(most, places * 7 / 8 / tiles));
  most = max_of(most, 1);
  return int8_t(ceil_div(chunks, ceil_div(chunks, most)));
}

// What follows from a choice.
inline SplitWork lay_out(const FoldedProblem& problem, const SplitChoice& choice) {
  const GemmProblem& p = problem.gemm;
  SplitWork work{choice,
                 choice.is_late ? split_late(p) : SplitLate::none,
                 ceil_div(p.m, kSplitBlock),
                 ceil_div(p.n, kSplitBlock),
                 0,
                 {},
                 {}};
  if (choice.has_pairs) work.tiles_m = ceil_div(work.tiles_m, 2);
  work.num_tiles = problem.batch_size * work.tiles_m * work.tiles_n;
  lay_out_operands(work, problem);
  // The kernel for few rows takes both terms of them, of 16 bits as well.
  if (work.late != SplitLate::none) work.a.num_terms = work.b.num_terms = 2;
  return work;
}

// Choices for a product and the microseconds of a whole call, which are estimates. Tiles: memory traffic of the split,
// products, launches.
inline SplitChoice choose_tiles(const SplitCosts& costs, const FoldedProblem& problem, int num_sms, double& cost_us) {
  SplitWork work = lay_out(problem, {});
  const int64_t pairs = ceil_div(work.tiles_m, 2) * work.tiles_n * problem.batch_size;
  const int64_t rounds = ceil_div(work.num_tiles, num_sms);
  work.has_pairs = work.tiles_m > 1 && num_sms > 1 && ceil_div(pairs, num_sms / 2) <= rounds;
  work = lay_out(problem, work);
  cost_us =
      costs.start + double(work.a.bytes() + work.b.bytes()) * 2 / costs.split + share_out_chunks(costs, work, num_sms);
  const int cluster = work.has_pairs ? 2 : 1;
  work.num_blocks = int(min_of(work.num_units(), num_sms / cluster)) * cluster;
  const int64_t groups = num_square_groups(work.tiles_m * cluster, work.num_blocks, kSplitBlock, kSplitBlock);
  work.group_m = int(ceil_div(work.tiles_m, groups));
  return work;
}

// Few rows: what is split late is read once, while each block of the chip takes its blocks of k one after the other.
inline SplitChoice choose_late(const SplitCosts& costs, const FoldedProblem& problem, int num_sms, double& cost_us) {
  SplitChoice choice{};
  choice.is_late = true;
  SplitWork work = lay_out(problem, choice);
  const SplitLayout& large = work.late == SplitLate::a ? work.a : work.b;
  const int64_t rows = work.few().rows, tiles = problem.batch_size * ceil_div(large.rows, kFewTile);
  work.cluster = few_cluster(rows, tiles, large.num_chunks(), num_sms);
  const int64_t rounds = ceil_div(tiles * work.cluster, few_blocks_of_sm(rows) * int64_t(num_sms));
  const double block_us = costs.few_block + costs.few_row * few_width(rows);
  const double blocks_us = double(rounds * ceil_div(large.num_blocks(), work.cluster)) * block_us;
  const double copies_us = double(problem.batch_size) * double(large.rows) * double(large.k) * 4 / costs.few;
  cost_us = costs.few_start + (copies_us > blocks_us ? copies_us : blocks_us);
  return work;
}

// The faster one.
inline SplitChoice choose_split(const SplitCosts& costs, const FoldedProblem& problem, int num_sms, double& cost_us) {
  const SplitChoice tiles = choose_tiles(costs, problem, num_sms, cost_us);
  if (split_late(problem.gemm) == SplitLate::none) return tiles;
  double late_us;
  const SplitChoice late = choose_late(costs, problem, num_sms, late_us);
  if (late_us > cost_us) return tiles;
  cost_us = late_us;
  return late;
}

// The plan of a problem and its microseconds.
inline SplitPlan plan_split(const SplitCosts& costs, const FoldedProblem& problem, int num_sms, double& cost_us) {
  const int64_t k = problem.gemm.k, fewer = k / kSplitGroupK % groups_at_once(problem), rest = k % kSplitGroupK;
  SplitPlan plan{choose_split(costs, first_groups(problem), num_sms, cost_us), {}, {}};
  cost_us *= double(group_rounds(problem));
  if (k <= kSplitGroupK) return plan;
  double us;
  if (fewer) plan.fewer = choose_split(costs, groups_of(problem, 0, kSplitGroupK, fewer), num_sms, us);
  if (rest) plan.rest = choose_split(costs, groups_of(problem, 0, rest, 1), num_sms, us);
  return plan;
}

}  // namespace tiledmm

// The block tiles of wgmma_fp8_b, as plain data, and the pure functions that choose among them. They share out work;
// none of them changes a bit of the result: the order of summation is the same for all.
//
// The kernel computes C^T = B^T A^T: a tile's rows are those of the weight, the caller's columns.
#pragma once

#include <algorithm>

#include "core/plan.h"
#include "core/problem.h"
#include "core/summation.h"
#include "kernels/cuda/shared/plan.h"
#include "kernels/cuda/shared/tile_order.h"
#include "kernels/cuda/wgmma/costs.h"

namespace tiledmm {

// So many consumers of 64 rows of the weight each; rows of A; elements of k in a stage.
struct Fp8BTile {
  int consumers, block_n, block_k;
};
inline constexpr Fp8BTile kFp8BTiles[] = {
    {4, 8, 128},  {2, 8, 128},  {4, 16, 128}, {2, 16, 128}, {4, 32, 128}, {2, 32, 128},
    {3, 64, 128}, {2, 64, 128}, {2, 128, 64}, {3, 128, 64}, {2, 160, 64}, {2, 256, 64},
};
inline constexpr int kNumFp8BTiles = int(sizeof(kFp8BTiles) / sizeof(Fp8BTile));
inline constexpr int kFp8BBoxK = 64;  // elements of k in a box of A's rows

inline constexpr int kFp8BMostChunks = 8;  // side by side

// Whether a thread has the registers for a total beside the sums of a chunk.
constexpr bool sums_chunks(const Fp8BTile& tile) { return tile.block_n <= (tile.consumers == 2 ? 160 : 64); }

// Chunks of k: one after the other by one block; each a tile of its own, whose sums a second kernel adds; or each for a
// block of a cluster, which exchange their sums.
enum class Fp8BSplit : int32_t { none, by_kernel, by_cluster };

// How wgmma_fp8_b computes a problem. Tiles begin every `rows` of the weight and every `cols` rows of A, as many as a
// tile has or fewer: so all multiprocessors have about the same to do.
struct Fp8BPlan {
  int tile, rows, cols;
  Fp8BSplit split;
  int tiles_rows, tiles_cols, num_tiles;  // num_tiles: of all chunks
  int num_blocks;                         // each of which has every num_blocks-th tile
  int group;                              // rows of tiles that are computed together
  TensorMapView weight, few;              // of the caller's B and A
};

// How the copy engine sees an operand; false where it cannot take it.
inline bool describe_along_k(const OperandView& operand, TensorMapView& view) {
  const int64_t unit = kTensorMapBytes / size_of(operand.dtype);
  view.batch_step = unit, view.batch_count = 1;
  return describe_matrix(operand.data, operand.dtype, operand.rows, operand.k, operand.stride_row, operand.stride_k,
                         view) &&
         view.is_k_major;
}

// So many clusters run at the same time. Those of more than two blocks leave some multiprocessors idle, as not every
// GPC has a multiple of as many (an H200 runs 30 of four and 15 of eight).
constexpr int64_t fp8_b_clusters(int64_t blocks, int num_sms) {
  return max_of(blocks <= 2 ? num_sms / blocks : num_sms * (16 / blocks * 8 - (blocks <= 4 ? 2 : 1)) / 132, 1);
}

// Microseconds of one launch by a simple model: rounds of tiles, whose k tiles take as long as a consumer's chain of
// instructions or as all consumers' widening and multiplication; memory; what tiles copy from the second-level cache.
inline double model_microseconds(const Fp8BCosts& c, const Fp8BPlan& plan, const GemmProblem& p, int64_t chunk_k,
                                 int num_sms) {
  const Fp8BTile& tile = kFp8BTiles[plan.tile];
  const double m = double(p.m), n = double(p.n), k = double(p.k);
  const double consumers = double(ceil_div(min_of(plan.rows, p.n), 64));
  const int64_t chunks = ceil_div(p.k, chunk_k);
  const bool is_split = plan.split != Fp8BSplit::none, is_shared = plan.split == Fp8BSplit::by_cluster;
  const int64_t tile_k = is_split ? min_of(chunk_k, p.k) : p.k;
  const double k_tile =
      std::max(c.chain + c.chain_column * tile.block_n, consumers * (c.widen + c.product * 64 * tile.block_n));
  const double one = double(round_up(tile_k, tile.block_k) / kFp8BBoxK) * k_tile + c.tile +
                     c.element * 64 * consumers * tile.block_n + (is_split ? 0 : double(chunks - 1) * c.chunk) +
                     (is_shared ? c.shared_element * double(plan.rows) * plan.cols : 0);
  const int64_t at_once = is_shared ? chunks * fp8_b_clusters(chunks, num_sms) : num_sms;
  const double tiles = double(ceil_div(plan.num_tiles, at_once)) * one;
  const double busy = std::min(double(plan.num_tiles) / num_sms, 1.0);
  const double memory =
      (n * k + 2 * m * k + double(size_of(p.dtype_c)) * m * n) / c.rate / (c.idle + (1 - c.idle) * busy);
  const double cached = (n * k * plan.tiles_cols + 2 * m * k * plan.tiles_rows) / c.cached;
  const double partial = 8 * double(chunks) * m * n;
  const double sums = partial / c.sums + std::max(partial - c.held, 0.0) / c.rate;
  return c.start + overlapped(tiles, memory, cached) + (is_shared ? c.shared_tile.value : 0) +
         (plan.split == Fp8BSplit::by_kernel ? c.split + sums : 0);
}

// Tiles of `rows` and `cols`.
inline void set_tiles(Fp8BPlan& plan, const GemmProblem& p, int64_t rows, int64_t cols, int64_t splits) {
  plan.rows = int(rows), plan.cols = int(cols);
  plan.tiles_rows = int(ceil_div(p.n, rows)), plan.tiles_cols = int(ceil_div(p.m, cols));
  plan.num_tiles = int(plan.tiles_rows * plan.tiles_cols * splits);
}

// Shows a plan for each tile, chunks one after the other or side by side, and few enough rows in a tile that no more
// rounds of tiles are needed, or one more.
inline void for_each_fp8_b_plan(const Fp8BCosts& costs, const FoldedProblem& problem, int num_sms, PlanSearch& visit) {
  constexpr int kUnit = 8;  // rows of the weight: C's elements are stored in vectors
  const GemmProblem& p = problem.gemm;
  const int64_t chunks = ceil_div(p.k, problem.chunk_k);
  const double partial_bytes = 4 * double(chunks) * double(p.m) * double(p.n);
  Fp8BPlan plan{};
  describe_along_k(view_b(p), plan.weight);
  describe_along_k(view_a(p), plan.few);
  for (plan.tile = 0; plan.tile < kNumFp8BTiles; ++plan.tile) {
    const Fp8BTile& tile = kFp8BTiles[plan.tile];
    const int64_t block_m = 64 * tile.consumers, tiles_cols = ceil_div(p.m, tile.block_n);
    const int64_t cols = ceil_div(p.m, tiles_cols);
    for (const Fp8BSplit split : {Fp8BSplit::none, Fp8BSplit::by_kernel, Fp8BSplit::by_cluster}) {
      const bool is_split = split != Fp8BSplit::none;
      if (is_split ? chunks == 1 || chunks > kFp8BMostChunks : chunks > 1 && !sums_chunks(tile)) continue;
      if (split == Fp8BSplit::by_kernel && partial_bytes > double(kMaxPartialBytes)) continue;
      plan.split = split;
      const int64_t splits = is_split ? chunks : 1;
      const int64_t at_once = split == Fp8BSplit::by_cluster ? fp8_b_clusters(chunks, num_sms) : num_sms;
      const int64_t outer = tiles_cols * (split == Fp8BSplit::by_kernel ? chunks : 1);
      const int64_t rounds = ceil_div(ceil_div(p.n, block_m) * outer, at_once);
      int64_t last = 0;
      for (int64_t more = 0; more <= 2; ++more) {
        // The last one: whole tiles.
        const int64_t tiles_rows = more < 2 ? max_of((rounds + more) * at_once / outer, 1) : 1;
        const int64_t rows = min_of(round_up(ceil_div(p.n, tiles_rows), kUnit), block_m);
        if (rows == last) continue;
        last = rows;
        set_tiles(plan, p, rows, cols, splits);
        visit(plan, model_microseconds(costs, plan, p, problem.chunk_k, num_sms));
      }
    }
  }
  visit.complete<Fp8BPlan>([&](Fp8BPlan& own) {
    own.num_blocks = own.split == Fp8BSplit::by_cluster ? own.num_tiles : int(min_of(own.num_tiles, num_sms));
    const int64_t groups = num_square_groups(own.tiles_rows, own.num_blocks, own.rows, own.cols);
    own.group = int(ceil_div(own.tiles_rows, groups));
  });
}

}  // namespace tiledmm

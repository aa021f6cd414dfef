// The block tiles of the wgmma kernel, as plain data, and the pure functions that choose among them. They share out
// work; none of them changes a bit of the result: the order of summation is the same for all.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "core/math.h"
#include "core/operand.h"
#include "core/problem.h"
#include "core/summation.h"
#include "core/transposed.h"

namespace tiledmm {

inline constexpr int kWgmmaBlockK = 64;

struct TileShape {
  int block_m, block_n;
};
inline constexpr TileShape kTileShapes[] = {
    {128, 256}, {128, 224}, {128, 192}, {128, 168}, {128, 160}, {128, 128}, {64, 192},
    {64, 128},  {64, 96},   {64, 64},   {64, 32},   {192, 192}, {192, 128}, {192, 96},
};
inline constexpr int kNumTileShapes = int(sizeof(kTileShapes) / sizeof(TileShape));

// Whether the kernel can halve the tiles of the last wave, and whether that is of use: they leave half of the
// multiprocessors idle.
constexpr bool splits_tail(const TileShape& shape) { return shape.block_m == 128 && shape.block_n == 256; }
constexpr bool splits_tail(const TileShape& shape, int64_t num_tiles, int num_sms) {
  return splits_tail(shape) && num_tiles % num_sms && num_tiles % num_sms * 2 <= num_sms;
}

// Elements from one row to the next of a repacked operand, whose rows hold `inner`: at multiples of 64 bytes they cost
// the second-level cache fewer requests, short ones would grow too much.
constexpr int64_t repacked_ld(int64_t inner) { return round_up(inner, inner >= 256 ? 32 : 8); }

// Whether a thread has the registers for a second set of accumulators, which k in several chunks needs, and for the
// sums of rows. Where a block has three consumers, a thread has fewer of them.
constexpr bool sums_chunks(const TileShape& shape, bool sums_rows = false) {
  return shape.block_n <= (shape.block_m < 192 ? 192 : sums_rows ? 96 : 128);
}

// The chunks' sums take so much memory at most.
inline constexpr int64_t kWgmmaMaxPartialBytes = 256 << 20;

// Whether chunks may be computed side by side: their sums fit.
constexpr bool may_split_chunks(int64_t m, int64_t n, int64_t k, int64_t chunk_k, int64_t batch) {
  const double sums = double(ceil_div(k, chunk_k)) * double(batch) * double(m) * double(n);
  return chunk_k < k && 4 * sums <= double(kWgmmaMaxPartialBytes);
}

// Whether there is a kernel of this tile for a B in this layout. Along n, tiles consist of boxes of 64 columns and of
// one of 32.
constexpr bool serves_layout(const TileShape& shape, bool is_b_k_major) {
  return is_b_k_major || shape.block_n % 32 == 0;
}

// Where tiles of `block` rows of an operand begin at the latest. The copy engine takes longer for rows beyond it than
// for rows of it. So the second of a pair, if it is all outside, takes the first one's place; and where half of a tile
// or more is outside of an operand along k, and k long, the last tiles begin early, inside: some rows are computed
// again, to the same bits. Up to kHidden k tiles are all on their way before the first has arrived, which hides it
// (measured on an H200).
constexpr int latest_start(int64_t size, int block, int pair, int64_t num_k_tiles, bool is_k_major) {
  constexpr int64_t kHidden = 16;
  const int64_t outside = round_up(size, block << pair) - size;
  const bool begins_early = is_k_major && size > block && 2 * outside >= block && num_k_tiles > kHidden;
  return int(begins_early ? size - block : (size - 1) / block * block);
}

// Whether there is a kernel of this tile that sums the rows of A: the gradient of a linear layer's bias along with that
// of its weight, which is of the layer's size.
constexpr bool sums_rows(const TileShape& shape) {
  return shape.block_m >= 128 && shape.block_n != 224 && serves_layout(shape, false);
}

// Whether two blocks of a cluster may have tiles below each other, each of which fetches half of the B that both
// multiply, or beside each other, with half of A: copies must begin where the pattern of the swizzle does.
constexpr bool pairs(const TileShape& shape, bool is_b_k_major) {
  return shape.block_m >= 128 ? !is_b_k_major || shape.block_n % 16 == 0 : shape.block_n == 64 || shape.block_n == 128;
}
// Whether every kernel of this tile can work in pairs. The code for it costs small tiles 2 to 7 %: they have kernels of
// their own for pairs.
constexpr bool always_built_with_pairs(const TileShape& shape) { return shape.block_m >= 128; }

// Whether the blocks of a cluster may share a tile, a chunk each, and exchange their sums through shared memory: so
// many blocks at most.
constexpr bool shares_tiles(const TileShape& shape) {
  return shape.block_m == 64 && (shape.block_n == 64 || shape.block_n == 128);
}
inline constexpr int kMaxCluster = 8;

// How many clusters surely run at the same time: one lies within a GPC, which has 16 to 18 multiprocessors.
constexpr int64_t clusters_at_once(int64_t cluster, int num_sms) { return num_sms / 18 * (16 / cluster); }

struct TilePlan {
  int tile;
  TileShape shape;
  bool splits_chunks;     // each chunk of k is a tile of its own, their sums are added by a second kernel
  bool shares_tiles;      // each chunk of a tile is for a block of a cluster
  bool pairs_m, pairs_n;  // of blocks along m, which fetch B for each other; along n, which fetch A
  double microseconds;
  int group_m;  // rows of tiles that are computed together; 0: as many as the launcher finds best
};

// How many tiles, pairs or pairs of pairs run at the same time. Clusters of four leave some multiprocessors idle, as
// not every GPC has a multiple of four (an H200 runs 30 of them).
constexpr int tiles_at_once(const TilePlan& plan, int num_sms) {
  const int at_once =
      plan.pairs_m && plan.pairs_n ? num_sms / 4 - num_sms / 44 : num_sms >> int(plan.pairs_m || plan.pairs_n);
  return int(max_of(at_once, 1));
}

// What decides how long it takes.
struct WgmmaProblem {
  int64_t m, n, k, chunk_k, batch;
  bool is_b_k_major;
  int a_alignment, b_alignment;  // rows begin at multiples of 16, 32 or 64 bytes
  bool needs_row_sums;
};

constexpr int row_alignment(uint64_t address, int64_t ld) {
  const uint64_t bits = address | uint64_t(ld) * 2;
  return bits % 64 == 0 ? 64 : bits % 32 == 0 ? 32 : 16;
}

constexpr bool is_aligned(const WgmmaProblem& p) { return p.a_alignment == 64 && p.b_alignment == 64; }

// Nanoseconds that the copy of a row of 128 bytes takes a block while so many copy: the second-level cache sends
// sectors of 32 bytes, of which a row that begins within one touches five, and only once what several blocks ask for at
// a time if rows are aligned.
constexpr double row_nanoseconds(int alignment, double blocks) {
  return alignment == 16 ? 1.25 + 0.0087 * blocks : alignment == 32 ? 0.8 + 0.0077 * blocks : 0.93 + 0.0003 * blocks;
}

// Microseconds of one launch by a simple model, fitted on an H200 (mostly within 15 %): waves of tiles, each of an
// epilogue and of k tiles that take as long as the slowest of four: waiting; the matrix unit; the second-level cache,
// where rows are not aligned; shared memory, which takes A and B in and where each consumer reads its rows of A and
// all of B. Or as long as memory takes, which needs some time to get up to speed.
inline double model_microseconds(const TilePlan& plan, const WgmmaProblem& p, int num_sms) {
  const TileShape& shape = plan.shape;
  const int64_t num_chunks = ceil_div(p.k, p.chunk_k);
  const int64_t num_splits = plan.splits_chunks || plan.shares_tiles ? num_chunks : 1;
  const int num_pairs = int(plan.pairs_m) + int(plan.pairs_n), at_once = tiles_at_once(plan, num_sms);
  const int64_t num_tiles = p.batch * num_splits * ceil_div(p.m, shape.block_m << int(plan.pairs_m)) *
                            ceil_div(p.n, shape.block_n << int(plan.pairs_n));
  const double num_k_tiles = double(ceil_div(num_splits > 1 ? p.chunk_k : p.k, kWgmmaBlockK));
  const bool crosses_sectors = p.a_alignment == 16 || p.b_alignment == 16;
  // A copy to two or four blocks takes longer than one to a single block.
  const double copy = num_pairs == 0    ? 1
                      : num_pairs == 1  ? (crosses_sectors ? 1.1 : 1.4)
                      : crosses_sectors ? 1.3
                                        : 1.75;
  // `count` tiles or pairs of them at a time, as many as there are multiprocessors at most.
  const auto wave = [&](const TileShape& tile, int64_t count) {
    const double area = double(tile.block_m) * tile.block_n, blocks = double(count << num_pairs);
    const double a_rows = double(min_of(tile.block_m, p.m));
    const double b_rows = double(p.is_b_k_major ? min_of(tile.block_n, p.n) : round_up(tile.block_n, kWgmmaBlockK));
    double copies = copy * 1e-3 *
                    (row_nanoseconds(p.a_alignment, blocks) * a_rows / (plan.pairs_n ? 2 : 1) +
                     row_nanoseconds(p.b_alignment, blocks) * b_rows / (plan.pairs_m ? 2 : 1));
    // A single consumer's copies take less (sides of 512 to 2500, 280 plans: 0.88 of the predicted whole).
    if (shape.block_m == 64) copies *= num_pairs == 0 ? 0.8 : 0.85;
    if (is_aligned(p)) copies = 0;
    const double read = double(tile.block_m / 64) * (64 + tile.block_n);
    double k_tile = 0.105;
    for (const double bound : {area * 19.8e-6, copies, 2 * kWgmmaBlockK * (a_rows + tile.block_n + read) / 250e3})
      if (bound > k_tile) k_tile = bound;
    return num_k_tiles * k_tile + 0.8 + area * 3.2e-5 + (num_splits > 1 ? 0 : double(num_chunks - 1) * 0.4);
  };
  const int64_t rest = num_tiles % at_once;
  double tiles = num_tiles < at_once ? 0 : double(num_tiles / at_once) * wave(shape, at_once);
  if (splits_tail(shape, num_tiles, at_once))
    tiles += wave({shape.block_m, shape.block_n / 2}, 2 * rest) + 0.4;
  else if (rest)
    tiles += wave(shape, rest);
  const double m = double(p.m), n = double(p.n), k = double(p.k), batch = double(p.batch);
  const double bytes = 2 * batch * (m * k + k * n + m * n);
  // Where B comes in strips along n, memory is slower for narrow ones, and each block draws so much at most.
  double rate = 3.8e6;
  if (p.m <= shape.block_m && !p.is_b_k_major && num_splits == 1) {
    const double drawn = 70e3 * double(min_of(num_tiles, at_once) << num_pairs), narrow = 3.3e6;
    rate = shape.block_n < 128 ? narrow : rate;
    if (drawn < rate) rate = drawn;
  }
  const double memory = bytes / rate + (bytes < 20e6 ? bytes / 10e6 : 2);
  const double sums = plan.shares_tiles    ? 2.3
                      : plan.splits_chunks ? 2.5 + 4e-6 * double(num_chunks) * batch * m * n
                                           : 0;
  return 5 + (is_aligned(p) ? 0 : 0.7) + (num_pairs == 0 ? 0 : 0.4 + 0.1 * num_pairs) + sums +
         (tiles > memory ? tiles + 0.1 * memory : memory + 0.1 * tiles);
}

// Calls visit(plan) for each way to share out a problem: those that may be the fastest, or all that the kernels can
// carry out.
template <class Visit>
void for_each_tile_plan(const WgmmaProblem& problem, int num_sms, bool is_all, const Visit& visit) {
  const bool is_chunked = problem.chunk_k < problem.k;
  const bool may_split = may_split_chunks(problem.m, problem.n, problem.k, problem.chunk_k, problem.batch);
  for (int i = 0; i < kNumTileShapes; ++i) {
    const TileShape& shape = kTileShapes[i];
    if (!serves_layout(shape, problem.is_b_k_major)) continue;
    if (problem.needs_row_sums && !sums_rows(shape)) continue;
    const auto consider = [&](bool splits, bool shares, bool pairs_m, bool pairs_n) {
      TilePlan plan{i, shape, splits, shares, pairs_m, pairs_n, 0, 0};
      plan.microseconds = model_microseconds(plan, problem, num_sms);
      visit(plan);
    };
    const bool may_pair = problem.batch == 1 && pairs(shape, problem.is_b_k_major);
    for (const bool splits : {false, true}) {
      if (!splits && is_chunked && !sums_chunks(shape, problem.needs_row_sums)) continue;
      // Side by side, the narrowest tiles are slower than the model says: they read A once more.
      if (splits && (!may_split || (shape.block_n < 64 && !is_all) || problem.needs_row_sums)) continue;
      const bool gains = is_all || !is_aligned(problem);
      const bool may_pair_m = may_pair && problem.m > shape.block_m && gains;
      const bool may_pair_n = may_pair && problem.n > shape.block_n && gains && !problem.needs_row_sums;
      consider(splits, false, false, false);
      if (may_pair_m) consider(splits, false, true, false);
      if (may_pair_n) consider(splits, false, false, true);
      if (may_pair_m && may_pair_n) consider(splits, false, true, true);
    }
    const int64_t cluster = ceil_div(problem.k, problem.chunk_k);
    const int64_t num_tiles = problem.batch * ceil_div(problem.m, shape.block_m) * ceil_div(problem.n, shape.block_n);
    if (is_chunked && shares_tiles(shape) && cluster <= kMaxCluster && num_tiles <= clusters_at_once(cluster, num_sms))
      consider(false, true, false, false);
  }
}

inline TilePlan plan_tiles(const WgmmaProblem& problem, int num_sms) {
  TilePlan best{};
  for_each_tile_plan(problem, num_sms, false, [&](const TilePlan& plan) {
    if (best.microseconds == 0 || plan.microseconds < best.microseconds) best = plan;
  });
  return best;
}

// How rung 11 computes a problem in 16 bits.
struct WgmmaPlan {
  bool copies_a, copies_b;  // first, since the copy engine cannot take them
  TilePlan tiles;
};

// What all plans of a problem have in common.
struct WgmmaTask {
  bool copies_a, copies_b;
  WgmmaProblem problem;
  double other_us;  // beside the tiles
};

// The one of a product and its transpose whose C is row-major.
inline FoldedProblem row_major(const FoldedProblem& problem) {
  return problem.gemm.stride_cn == 1 || problem.gemm.n == 1 ? problem : transposed(problem);
}

// Elements of all items of an operand that a batch does not repeat.
inline double num_elements(const OperandView& view, const FoldedProblem& problem) {
  double items = 1;
  for (int32_t d = 0; d < problem.gemm.num_batch_dims; ++d) {
    if (problem.batch_dims[d].*view.batch_stride) items *= double(problem.batch_dims[d].size);
  }
  return items * double(view.rows) * double(view.k);
}

// A copy of an operand, with whole units of the copy engine in a row.
inline OperandView copied(const OperandView& view) {
  OperandView copy = view;
  const bool along_k = is_k_major(view);
  const int64_t ld = repacked_ld(along_k ? view.k : view.rows);
  copy.data = nullptr;
  copy.stride_row = along_k ? ld : 1;
  copy.stride_k = along_k ? 1 : ld;
  return copy;
}

// What rung 11 takes longer than its model says where it copies 16-bit operands first: with chunks of k, and where up
// to 8 rows or columns lie close to each other. A k tile is then 64 rows of 16 bytes, which all multiprocessors fetch
// at the same time.
inline double copied_us(const FoldedProblem& problem, bool copies_a, bool copies_b, int num_sms) {
  if (!copies_a && !copies_b) return 0;
  const GemmProblem& p = problem.gemm;
  const double chunks = problem.chunk_k < p.k ? 2.5 : 0;
  const auto is_slow = [](const OperandView& view, bool is_copied) {
    return is_copied && !is_k_major(view) && view.rows <= 8;
  };
  if (!is_slow(view_a(p), copies_a) && !is_slow(view_b(p), copies_b)) return chunks;
  const double readers = double(max_of(p.m, p.n)) / (32.0 * num_sms);
  return chunks + 0.3 * (readers < 1 ? readers : 1) * double(ceil_div(min_of(p.k, problem.chunk_k), kWgmmaBlockK));
}

// What the copy engine cannot take costs a launch and memory traffic (A, B) or stores by the threads (C); both are
// estimates.
inline WgmmaTask wgmma_task(const FoldedProblem& given, int num_sms) {
  const FoldedProblem problem = row_major(given);
  const GemmProblem& p = problem.gemm;
  WgmmaTask task{};
  TensorMapView a{}, b{}, c{};
  const auto needs_copy = [&](const OperandView& operand, TensorMapView& view) {
    if (describe_operand(operand, problem, view)) return false;
    const OperandView copy = copied(operand);
    describe_matrix(copy.data, p.dtype, copy.rows, copy.k, copy.stride_row, copy.stride_k, view);
    return true;
  };
  task.copies_a = needs_copy(view_a(p), a);
  task.copies_b = needs_copy(view_b(p), b);
  const auto alignment = [](const void* data, bool is_copied, const TensorMapView& view) {
    return row_alignment(is_copied ? 0 : reinterpret_cast<uintptr_t>(data), view.ld);
  };
  task.problem = {p.m,
                  p.n,
                  p.k,
                  problem.chunk_k,
                  problem.batch_size,
                  b.is_k_major,
                  alignment(p.a, task.copies_a, a),
                  alignment(p.b, task.copies_b, b),
                  p.row_sums != nullptr};
  const double num_copied =
      (task.copies_a ? num_elements(view_a(p), problem) : 0) + (task.copies_b ? num_elements(view_b(p), problem) : 0);
  const bool is_stored_by_tma = describe_result(problem, c) && is_storable(p.dtype, c);
  task.other_us = (num_copied > 0 ? 2.5 + 4 * num_copied / 3e6 : 0) +
                  copied_us(problem, task.copies_a, task.copies_b, num_sms) +
                  (is_stored_by_tma ? 0 : double(problem.batch_size) * double(p.m) * double(p.n) * 3e-7);
  return task;
}

// The plan of a problem on a chip and the microseconds of a whole call.
inline WgmmaPlan plan_wgmma(const FoldedProblem& problem, int num_sms, double& cost_us) {
  const WgmmaTask task = wgmma_task(problem, num_sms);
  const WgmmaPlan plan{task.copies_a, task.copies_b, plan_tiles(task.problem, num_sms)};
  cost_us = plan.tiles.microseconds + task.other_us;
  return plan;
}

// Calls visit(plan, cost_us) for every plan that the launcher takes. Tiles that do not all run at once come in several
// orders: the launcher's own, in groups of few rows, of half of the rows, of all.
template <class Visit>
void for_each_wgmma_plan(const FoldedProblem& problem, int num_sms, const Visit& visit) {
  const WgmmaTask task = wgmma_task(problem, num_sms);
  const WgmmaProblem& p = task.problem;
  for_each_tile_plan(p, num_sms, true, [&](TilePlan tiles) {
    const int rows = int(ceil_div(p.m, tiles.shape.block_m << int(tiles.pairs_m)));
    const int64_t columns = ceil_div(p.n, tiles.shape.block_n << int(tiles.pairs_n));
    const bool is_one_wave = rows * columns <= tiles_at_once(tiles, num_sms);
    const bool has_orders = rows > 1 && !is_one_wave && !tiles.splits_chunks && !tiles.shares_tiles;
    for (const int group_m : {0, 4, (rows + 1) / 2, rows}) {
      if (group_m > 0 && (!has_orders || (group_m == 4 && rows <= 8))) continue;
      tiles.group_m = group_m;
      visit(WgmmaPlan{task.copies_a, task.copies_b, tiles}, tiles.microseconds + task.other_us);
    }
  });
}

}  // namespace tiledmm

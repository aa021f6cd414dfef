// The block tiles of the wgmma kernel, as plain data, and the pure functions that choose among them. They share out
// work; none of them changes a bit of the result: the order of summation is the same for all.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "core/math.h"
#include "core/problem.h"
#include "core/summation.h"

namespace tiledmm {

inline constexpr int kWgmmaBlockK = 64;

struct TileShape {
  int block_m, block_n;
};
inline constexpr TileShape kTileShapes[] = {
    {128, 256}, {128, 224}, {128, 192}, {128, 168}, {128, 160}, {128, 128},
    {64, 192},  {64, 128},  {64, 96},   {64, 64},   {64, 32},
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

// Whether a thread has the registers for a second set of accumulators, which k in several chunks needs.
constexpr bool sums_chunks(const TileShape& shape) { return shape.block_n <= 192; }

// Of the chunks' sums in memory.
inline constexpr int64_t kWgmmaMaxPartialBytes = 256 << 20;

// Whether chunks may be computed side by side: their sums fit.
constexpr bool may_split_chunks(int64_t m, int64_t n, int64_t k, int64_t chunk_k, int64_t batch) {
  const double sums = double(ceil_div(k, chunk_k)) * double(batch) * double(m) * double(n);
  return chunk_k < k && 4 * sums <= double(kWgmmaMaxPartialBytes);
}

// Whether its tiles begin with a line of the second-level cache, if the rows of B do.
constexpr bool starts_in_lines(const TileShape& shape, bool is_b_k_major) {
  return is_b_k_major || shape.block_n % 64 == 0 || shape.block_n == 32;
}

// Whether there is a kernel of this tile for a B in this layout. Along n, tiles that begin within a line cost requests:
// of use for large tiles only.
constexpr bool serves_layout(const TileShape& shape, bool is_b_k_major) {
  return is_b_k_major || shape.block_n % (shape.block_m == 128 ? 32 : 64) == 0 || shape.block_n == 32;
}

// Whether there is a kernel of this tile that sums the rows of A: the gradient of a linear layer's bias along with that
// of its weight, which is of the layer's size.
constexpr bool sums_rows(const TileShape& shape) {
  return shape.block_m == 128 && shape.block_n != 224 && serves_layout(shape, false);
}

// Whether the two blocks of a cluster may have tiles below each other, each of which fetches half of the B that both
// multiply: its copies must begin where the pattern of the swizzle does. Smaller tiles gain nothing.
constexpr bool pairs(const TileShape& shape, bool is_b_k_major) {
  return shape.block_m == 128 && (!is_b_k_major || shape.block_n % 16 == 0);
}

// Whether the blocks of a cluster may share a tile, a chunk each, and exchange their sums through shared memory: so
// many blocks at most.
constexpr bool shares_tiles(const TileShape& shape) { return shape.block_m == 64 && shape.block_n == 64; }
inline constexpr int kMaxCluster = 8;

// How many clusters surely run at the same time: one lies within a GPC, which has 16 to 18 multiprocessors.
constexpr int64_t clusters_at_once(int64_t cluster, int num_sms) { return num_sms / 18 * (16 / cluster); }

struct TilePlan {
  int tile;
  TileShape shape;
  bool splits_chunks;  // each chunk of k is a tile of its own, their sums are added by a second kernel
  bool shares_tiles;   // each chunk of a tile is for a block of a cluster
  bool pairs;          // of blocks fetch B for each other
  double microseconds;
};

// What decides how long it takes.
struct WgmmaProblem {
  int64_t m, n, k, chunk_k, batch;
  bool is_b_k_major;
  bool is_a_aligned, is_b_aligned;  // rows begin at multiples of 64 bytes: fewer requests to the second-level cache
  bool needs_row_sums;
};

// Whether B's part of such a tile takes as few requests to the second-level cache as it can.
constexpr bool reads_b_in_lines(const TileShape& shape, const WgmmaProblem& p) {
  return p.is_b_aligned && starts_in_lines(shape, p.is_b_k_major);
}

// Microseconds of one launch by a simple model, fitted on an H200 (mostly within 15 %): waves of tiles, each of an
// epilogue and of k tiles that take as long as the slowest of four: waiting; the matrix unit; the second-level cache,
// where requests are not aligned; shared memory, which takes A and B in and where each consumer reads its rows of A and
// all of B. Or as long as memory takes, which needs some time to get up to speed.
inline double model_microseconds(const TilePlan& plan, const WgmmaProblem& p, int num_sms) {
  const TileShape& shape = plan.shape;
  const int64_t num_chunks = ceil_div(p.k, p.chunk_k);
  const int64_t num_splits = plan.splits_chunks || plan.shares_tiles ? num_chunks : 1;
  const int blocks = plan.pairs ? 2 : 1, at_once = num_sms / blocks;
  const int64_t num_tiles = p.batch * num_splits * ceil_div(p.m, shape.block_m * blocks) * ceil_div(p.n, shape.block_n);
  const double num_k_tiles = double(ceil_div(num_splits > 1 ? p.chunk_k : p.k, kWgmmaBlockK));
  const bool is_b_aligned = reads_b_in_lines(shape, p);
  // `count` tiles or pairs of them at a time, as many as there are multiprocessors at most.
  const auto wave = [&](const TileShape& tile, int64_t count) {
    const double area = double(tile.block_m) * tile.block_n;
    const double a_bytes = 2.0 * kWgmmaBlockK * double(min_of(tile.block_m, p.m));
    const double b_bytes = 2.0 * kWgmmaBlockK * tile.block_n;
    const double read = 2.0 * kWgmmaBlockK * double(tile.block_m / 64) * (64 + tile.block_n);
    const double unaligned = (p.is_a_aligned ? 0 : blocks * a_bytes) + (is_b_aligned ? 0 : b_bytes);
    double k_tile = 0.105;
    for (const double bound : {area * 19.8e-6, unaligned * double(count) / 7e6, (a_bytes + b_bytes + read) / 250e3})
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
  const double memory = bytes / 3.8e6 + (bytes < 20e6 ? bytes / 10e6 : 2);
  const double sums = plan.shares_tiles    ? 2.7
                      : plan.splits_chunks ? 2.5 + 4e-6 * double(num_chunks) * batch * m * n
                                           : 0;
  return 5 + (plan.pairs ? 0.5 : 0) + sums + (tiles > memory ? tiles + 0.1 * memory : memory + 0.1 * tiles);
}

inline TilePlan plan_tiles(const WgmmaProblem& problem, int num_sms) {
  const bool is_chunked = problem.chunk_k < problem.k;
  const bool may_split = may_split_chunks(problem.m, problem.n, problem.k, problem.chunk_k, problem.batch);
  TilePlan best{};
  for (int i = 0; i < kNumTileShapes; ++i) {
    const TileShape& shape = kTileShapes[i];
    if (!serves_layout(shape, problem.is_b_k_major)) continue;
    if ((is_chunked && !sums_chunks(shape)) || (problem.needs_row_sums && !sums_rows(shape))) continue;
    const bool may_pair = problem.batch == 1 && problem.m > shape.block_m && pairs(shape, problem.is_b_k_major) &&
                          !reads_b_in_lines(shape, problem);
    const auto consider = [&](bool splits, bool shares, bool in_pairs) {
      TilePlan plan{i, shape, splits, shares, in_pairs, 0};
      plan.microseconds = model_microseconds(plan, problem, num_sms);
      if (best.microseconds == 0 || plan.microseconds < best.microseconds) best = plan;
    };
    consider(false, false, false);
    if (may_pair) consider(false, false, true);
    // Side by side, the narrowest tiles are slower than the model says: they read A once more.
    if (may_split && shape.block_n >= 64 && !problem.needs_row_sums) consider(true, false, false);
    const int64_t cluster = ceil_div(problem.k, problem.chunk_k);
    const int64_t num_tiles = problem.batch * ceil_div(problem.m, shape.block_m) * ceil_div(problem.n, shape.block_n);
    if (is_chunked && shares_tiles(shape) && cluster <= kMaxCluster && num_tiles <= clusters_at_once(cluster, num_sms))
      consider(false, true, false);
  }
  return best;
}

// Microseconds of a whole call. What the copy engine cannot take costs a launch and memory traffic (A, B) or stores by
// the threads (C); both are estimates.
inline double wgmma_microseconds(const GemmProblem& p, int num_sms) {
  const bool is_transposed = p.stride_cn != 1 && p.n != 1;
  double batch = 1;
  bool takes_a = reinterpret_cast<uintptr_t>(p.a) % 16 == 0, takes_b = reinterpret_cast<uintptr_t>(p.b) % 16 == 0;
  bool takes_c = reinterpret_cast<uintptr_t>(p.c) % 16 == 0 && (is_transposed ? p.stride_cn : p.stride_cm) % 8 == 0;
  double items_a = 1, items_b = 1;
  for (int32_t d = 0; d < p.num_batch_dims; ++d) {
    const BatchDim& dim = p.batch_dims[d];
    batch *= double(dim.size);
    if (dim.stride_a) items_a *= double(dim.size);
    if (dim.stride_b) items_b *= double(dim.size);
    takes_a = takes_a && dim.stride_a % 8 == 0;
    takes_b = takes_b && dim.stride_b % 8 == 0;
    takes_c = takes_c && dim.stride_c % 8 == 0;
  }
  const auto is_legal = [](int64_t stride, int64_t other) {
    return (stride == 1 && other % 8 == 0 && other > 0) || (other == 1 && stride % 8 == 0 && stride > 0);
  };
  takes_a = takes_a && is_legal(p.stride_am, p.stride_ak);
  takes_b = takes_b && is_legal(p.stride_bk, p.stride_bn);
  // A copy's rows are as short as they can be.
  const auto is_aligned = [](bool is_taken, int64_t stride, int64_t other, int64_t inner) {
    return (is_taken ? (stride == 1 ? other : stride) : repacked_ld(inner)) % 32 == 0;
  };
  const bool is_a_aligned = is_aligned(takes_a, p.stride_am, p.stride_ak, p.stride_am == 1 ? p.m : p.k);
  const bool is_b_aligned = is_aligned(takes_b, p.stride_bn, p.stride_bk, p.stride_bn == 1 ? p.n : p.k);
  const bool is_a_k_major = p.stride_ak == 1, is_b_k_major = p.stride_bk == 1;
  WgmmaProblem problem{p.m,          p.n,          p.k,          chunk_k(p),           int64_t(batch),
                       is_b_k_major, is_a_aligned, is_b_aligned, p.row_sums != nullptr};
  if (is_transposed)
    problem = {p.n, p.m, p.k, problem.chunk_k, problem.batch, is_a_k_major, is_b_aligned, is_a_aligned, false};
  const double m = double(p.m), n = double(p.n), k = double(p.k);
  const double copied = (takes_a ? 0 : items_a * m * k) + (takes_b ? 0 : items_b * k * n);
  return plan_tiles(problem, num_sms).microseconds + (copied > 0 ? 2.5 + 4 * copied / 3e6 : 0) +
         (takes_c ? 0 : batch * m * n * 3e-7);
}

}  // namespace tiledmm

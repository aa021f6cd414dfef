// The block tiles of the wgmma kernel, as plain data, and the pure functions that choose among them. They share out
// work; none of them changes a bit of the result: the order of summation is the same for all.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "core/math.h"

namespace tiledmm {

inline constexpr int kWgmmaBlockK = 64;

struct TileShape {
  int block_m, block_n;
};
inline constexpr TileShape kTileShapes[] = {
    {128, 256}, {128, 224}, {128, 192}, {128, 128}, {64, 192}, {64, 128}, {64, 64}, {64, 32},
};
inline constexpr int kNumTileShapes = int(sizeof(kTileShapes) / sizeof(TileShape));

// Whether the kernel can halve the tiles of the last wave, and whether that is of use: they leave half of the
// multiprocessors idle.
constexpr bool splits_tail(const TileShape& shape) { return shape.block_m == 128 && shape.block_n == 256; }
constexpr bool splits_tail(const TileShape& shape, int64_t num_tiles, int num_sms) {
  return splits_tail(shape) && num_tiles % num_sms && num_tiles % num_sms * 2 <= num_sms;
}

// Whether a thread has the registers for a second set of accumulators, which k in several chunks needs.
constexpr bool sums_chunks(const TileShape& shape) { return shape.block_n <= 128; }

// Whether there is a kernel of this tile that sums the rows of A: the gradient of a linear layer's bias along with that
// of its weight, which is of the layer's size.
constexpr bool sums_rows(const TileShape& shape) {
  return shape.block_m == 128 && (shape.block_n == 256 || shape.block_n == 128);
}

struct TilePlan {
  int tile;
  TileShape shape;
  bool splits_chunks;  // each chunk of k is a tile of its own, their sums are added by a second kernel
  double microseconds;
};

// What decides how long it takes.
struct WgmmaProblem {
  int64_t m, n, k, chunk_k, batch;
  bool is_a_aligned, is_b_aligned;  // rows begin at multiples of 64 bytes: fewer requests to the second-level cache
  bool needs_row_sums;
};

// Microseconds from launch to end by a simple model, fitted on an H200 (mostly within 15 %): whole waves of tiles, each
// of an epilogue and of k tiles that the slowest of four bounds: latency; the matrix unit; the second-level cache;
// shared memory, which takes A and B in and where each consumer reads its rows of A and all of B. Or memory, if that is
// slower.
inline double model_microseconds(const TileShape& shape, bool splits_chunks, const WgmmaProblem& p, int num_sms) {
  const int64_t num_chunks = ceil_div(p.k, p.chunk_k), splits = splits_chunks ? num_chunks : 1;
  const int64_t num_tiles = p.batch * splits * ceil_div(p.m, shape.block_m) * ceil_div(p.n, shape.block_n);
  const double tail = splits_tail(shape, num_tiles, num_sms) ? 0.58 : num_tiles % num_sms ? 1 : 0;
  const double waves = double(num_tiles / num_sms) + tail;
  const double area = double(shape.block_m) * shape.block_n;
  const double a_bytes = 2.0 * kWgmmaBlockK * double(min_of(shape.block_m, p.m));
  const double b_bytes = 2.0 * kWgmmaBlockK * shape.block_n;
  const double read = 2.0 * kWgmmaBlockK * double(shape.block_m / 64) * (64 + shape.block_n);
  const double requested = a_bytes * (p.is_a_aligned ? 1 : 2.6) + b_bytes * (p.is_b_aligned ? 1 : 2.6);
  double k_tile = 0.163;
  for (const double bound :
       {area * (shape.block_m == 64 ? 17.5e-6 : 20.6e-6), requested / 140e3, (a_bytes + b_bytes + read) / 233e3})
    if (bound > k_tile) k_tile = bound;
  const double num_k_tiles = double(ceil_div(splits_chunks ? p.chunk_k : p.k, kWgmmaBlockK));
  const double tiles = waves * (num_k_tiles * k_tile + 0.47 + area * 2.6e-5);
  const double elements = double(p.batch) * (double(p.m) * double(p.k) + double(p.k) * double(p.n) +
                                             double(p.m) * double(p.n) * (splits_chunks ? double(2 * num_chunks) : 1));
  const double memory = 2 * elements / 3.3e6;
  const double sums = splits_chunks ? 2 + double(num_chunks) * 0.02 : 0;
  return 5.5 + sums + (tiles > memory ? tiles + 0.1 * memory : memory + 0.1 * tiles);
}

inline TilePlan plan_tiles(const WgmmaProblem& problem, int num_sms) {
  const bool is_chunked = problem.chunk_k < problem.k;
  TilePlan best{};
  for (int i = 0; i < kNumTileShapes; ++i) {
    const TileShape& shape = kTileShapes[i];
    if ((is_chunked && !sums_chunks(shape)) || (problem.needs_row_sums && !sums_rows(shape))) continue;
    for (int splits = 0; splits <= int(is_chunked); ++splits) {
      const double time = model_microseconds(shape, splits, problem, num_sms);
      if (best.microseconds == 0 || time < best.microseconds) best = {i, shape, splits != 0, time};
    }
  }
  return best;
}

}  // namespace tiledmm

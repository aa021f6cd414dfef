// The block tiles of the wgmma kernel, as plain data, and the pure functions that choose among them. They share out
// work; none of them changes a bit of the result: the order of summation is the same for all.
#pragma once

#include "core/math.h"

namespace tiledmm {

inline constexpr int kWgmmaBlockK = 64;

struct TileShape {
  int block_m, block_n;
};
inline constexpr TileShape kTileShapes[] = {
    {128, 256}, {128, 224}, {128, 192}, {128, 128}, {256, 176}, {256, 160}, {64, 192}, {64, 128}, {64, 64}, {64, 32},
};
inline constexpr int kNumTileShapes = int(sizeof(kTileShapes) / sizeof(TileShape));

// Whether the kernel can halve the tiles of the last wave, and whether that is of use: they leave half of the
// multiprocessors idle.
constexpr bool splits_tail(const TileShape& shape) { return shape.block_m == 128 && shape.block_n == 256; }
constexpr bool splits_tail(const TileShape& shape, int64_t num_tiles, int num_sms) {
  return splits_tail(shape) && num_tiles % num_sms && num_tiles % num_sms * 2 <= num_sms;
}

// Whether a thread has the registers for a second set of accumulators, which k in several chunks needs.
constexpr bool sums_chunks(const TileShape& shape) { return shape.block_m <= 128 && shape.block_n <= 128; }

// Whether there is a kernel of this tile that sums the rows of A: the gradient of a linear layer's bias along with that
// of its weight, which is of the layer's size.
constexpr bool sums_rows(const TileShape& shape) {
  return shape.block_m == 128 && (shape.block_n == 256 || shape.block_n == 128);
}

struct TilePlan {
  int tile;
  TileShape shape;
  int cluster_size;    // blocks that share what they load of B: 1 or 2
  bool splits_chunks;  // each chunk of k is a tile of its own, their sums are added by a second kernel
};

// Microseconds of the slowest multiprocessor by a simple model, fitted on an H200: whole waves of tiles, each of an
// epilogue and of k tiles that the slowest of three bounds: the matrix unit; shared memory, where each consumer reads
// its rows of A and all of B; the second-level cache.
inline double model_microseconds(const TileShape& shape, int64_t m, int64_t n, int64_t k, int64_t batch, int num_sms) {
  const int64_t num_tiles = batch * ceil_div(m, shape.block_m) * ceil_div(n, shape.block_n);
  const double tail = splits_tail(shape, num_tiles, num_sms) ? 0.66 : num_tiles % num_sms ? 1 : 0;
  const double waves = double(num_tiles / num_sms) + tail;
  const double area = double(shape.block_m) * shape.block_n;
  const double written = 2.0 * kWgmmaBlockK * (double(min_of(shape.block_m, m)) + shape.block_n);
  const double read = 2.0 * kWgmmaBlockK * double(shape.block_m / 64) * (64 + shape.block_n);
  const double math = area * 20.8e-6 + 0.01;
  double k_tile = 0.14;  // latency
  for (const double bound : {math, (written + read) / 220e3, written / 110e3})
    if (bound > k_tile) k_tile = bound;
  return waves * (double(ceil_div(k, kWgmmaBlockK)) * k_tile + 0.2 + area * 1e-5);
}

inline TilePlan plan_tiles(int64_t m, int64_t n, int64_t k, int64_t chunk_k, int64_t batch, bool needs_row_sums,
                           int num_sms) {
  const int64_t num_chunks = ceil_div(k, chunk_k);
  TilePlan best{};
  double best_time = 0;
  for (int i = 0; i < kNumTileShapes; ++i) {
    const TileShape& shape = kTileShapes[i];
    if ((num_chunks > 1 && !sums_chunks(shape)) || (needs_row_sums && !sums_rows(shape))) continue;
    for (const bool splits : {false, true}) {
      if (splits && num_chunks == 1) continue;
      double time = model_microseconds(shape, m, n, splits ? chunk_k : k, splits ? batch * num_chunks : batch, num_sms);
      if (splits) time += 2 + double(batch * m * n * num_chunks) * 1e-6;
      if (best_time == 0 || time < best_time) {
        best = {i, shape, 1, splits};
        best_time = time;
      }
    }
  }
  return best;
}

}  // namespace tiledmm

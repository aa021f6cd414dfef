// The block tiles of the wgmma kernel, as plain data, and the pure function that chooses one. They share out work; none
// of them changes a bit of the result: the order of summation is the same for all.
#pragma once

#include "core/math.h"

namespace tiledmm {

// Elements of a k tile: 128 bytes.
constexpr int wgmma_block_k(bool is_tf32) { return is_tf32 ? 32 : 64; }

struct TileShape {
  int block_m, block_n;
  bool serves_tf32;
};
inline constexpr TileShape kTileShapes[] = {
    {128, 256, true}, {128, 224, false}, {128, 192, true}, {128, 160, false}, {128, 128, true},
    {128, 96, false}, {128, 64, true},   {64, 256, true},  {64, 192, false},  {64, 128, true},
    {64, 96, false},  {64, 64, true},    {64, 32, true},
};
inline constexpr int kNumTileShapes = int(sizeof(kTileShapes) / sizeof(TileShape));

// Whether the tiles of the last wave leave half of the multiprocessors idle, and the kernel can halve them.
inline bool splits_tail(int block_n, int64_t num_tiles, int num_sms) {
  return block_n == 256 && num_tiles % num_sms && num_tiles % num_sms * 2 <= num_sms;
}

// Microseconds of the slowest multiprocessor by a simple model, fitted on an H200: whole waves of tiles, each of an
// epilogue and of k tiles that the slowest of three bounds: the matrix unit; shared memory, where each consumer reads
// its rows of A and all of B; the second-level cache.
inline double model_microseconds(const TileShape& shape, int64_t m, int64_t n, int64_t k, int num_sms, bool is_tf32) {
  const int64_t num_tiles = ceil_div(m, shape.block_m) * ceil_div(n, shape.block_n);
  const double tail = splits_tail(shape.block_n, num_tiles, num_sms) ? 0.66 : num_tiles % num_sms ? 1 : 0;
  const double waves = double(num_tiles / num_sms) + tail;
  const double area = double(shape.block_m) * shape.block_n;
  const double written = 128.0 * (double(min_of(shape.block_m, m)) + shape.block_n);
  const double read = 128.0 * double(shape.block_m / 64) * (64 + shape.block_n);
  // Widths that are no multiple of a swizzle are slower by a little.
  const double math = (area * 20.8e-6 + 0.01) * (shape.block_n % 64 ? 1.04 : 1);
  double k_tile = 0.14;  // latency
  for (const double bound : {math, (written + read) / 220e3, written / 110e3})
    if (bound > k_tile) k_tile = bound;
  return waves * (double(ceil_div(k, wgmma_block_k(is_tf32))) * k_tile + 0.2 + area * 1e-5);
}

inline int choose_tile_shape(int64_t m, int64_t n, int64_t k, int num_sms, bool is_tf32, bool transposes) {
  int best = 0;
  double best_time = 0;
  for (int i = 0; i < kNumTileShapes; ++i) {
    if (is_tf32 && !kTileShapes[i].serves_tf32) continue;
    if (transposes && kTileShapes[i].block_n == 256) continue;
    const double time = model_microseconds(kTileShapes[i], m, n, k, num_sms, is_tf32);
    if (best_time == 0 || time < best_time) {
      best = i;
      best_time = time;
    }
  }
  return best;
}

}  // namespace tiledmm

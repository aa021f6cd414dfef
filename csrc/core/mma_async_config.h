// The block tiles of the mma_async kernel, as plain data, and the pure function that chooses one. They share out work;
// none of them changes a bit of the result: the order of summation is the same for all.
#pragma once

#include "core/math.h"
#include "core/problem.h"

namespace tiledmm {

struct MmaAsyncShape {
  int block_m, block_n, block_k;
  int warps_m, warps_n, num_stages, blocks_per_cu;
  int step_words;    // along k, of one matrix instruction; a word is one element, or two of 16 bits
  bool sums_chunks;  // in registers of its own, one chunk after the other
  bool has_layouts;  // a kernel for each combination of the operands' layouts
};

// Of 8-byte elements, and of 2-byte ones; 4-byte elements (tf32) have half as many along k.
inline constexpr MmaAsyncShape kMmaAsyncShapes64[] = {
    {128, 128, 16, 2, 4, 4, 1, 8, false, true}, {64, 64, 16, 2, 2, 3, 3, 8, false, true},
    {64, 64, 16, 2, 2, 4, 2, 8, true, false},   {32, 64, 16, 2, 2, 6, 2, 8, false, true},
    {32, 32, 32, 2, 2, 5, 2, 8, false, true},   {16, 32, 32, 1, 4, 7, 2, 8, false, true},
};
inline constexpr MmaAsyncShape kMmaAsyncShapes16[] = {
    {128, 256, 32, 2, 4, 3, 1, 8, false, true},
    {64, 64, 32, 2, 2, 4, 2, 8, true, true},
};
inline constexpr int kNumMmaAsyncShapes64 = 6, kNumMmaAsyncShapes16 = 2;

constexpr int num_mma_async_shapes(DType dtype) {
  return dtype == DType::f64 ? kNumMmaAsyncShapes64 : kNumMmaAsyncShapes16;
}
constexpr const MmaAsyncShape& mma_async_shape(DType dtype, int shape) {
  return dtype == DType::f64 ? kMmaAsyncShapes64[shape] : kMmaAsyncShapes16[shape];
}

// Shared memory of a block, in bytes: tiles with rows padded by 32 bytes at most.
constexpr int64_t shared_bytes(const MmaAsyncShape& shape, DType dtype) {
  const int64_t row = dtype == DType::f64 ? shape.block_k * 8 + 32 : 80;
  return (shape.block_m + shape.block_n) * row * shape.num_stages;
}

// Microseconds by a simple model, fitted on an H200: the blocks of the fullest multiprocessor share its matrix unit and
// its shared memory; each alone is bound by latency, and a step of k costs it so much at least. In clocks of 1980 MHz,
// for a step of 8 words along k. `blocks_k` blocks share out the k of one tile.
inline double mma_async_us(const MmaAsyncShape& shape, DType dtype, int64_t m, int64_t n, int64_t k, int64_t batch,
                           int64_t blocks_k, int num_cus) {
  const double area = double(shape.block_m) * shape.block_n, sides = double(shape.block_m) + shape.block_n;
  const double warp_sides = double(shape.block_m) * shape.warps_n + double(shape.block_n) * shape.warps_m;
  const double word = dtype == DType::f64 ? 8 : 4;
  const double math = dtype == DType::f64 ? area / 16 : dtype == DType::f32 ? area / 160 : area / 158;
  const double shared = (sides + warp_sides) * 8 * word / 128;
  const double latency = dtype == DType::f64 ? 70 : 40;
  const int64_t blocks = ceil_div(m, shape.block_m) * ceil_div(n, shape.block_n) * batch * blocks_k;
  const int64_t per_cu = ceil_div(blocks, num_cus), rounds = ceil_div(per_cu, shape.blocks_per_cu);
  const double words_k = double(ceil_div(k, blocks_k)) * (dtype == DType::f64 || dtype == DType::f32 ? 1 : 0.5);
  const double busy = double(per_cu) * (math > shared ? math : shared), alone = double(rounds) * latency;
  const double epilogue = area * word / 60 + 1500;
  const double clocks = words_k / 8 * (busy > alone ? busy : alone) + double(rounds) * epilogue;
  return 2.5 + clocks / 1980 + (blocks_k > 1 ? 2.5 : 0);
}

// A shape that fits into shared memory, and for the problem whose columns are fewer than its rows only where they are
// many.
inline int choose_mma_async_shape(DType dtype, int64_t m, int64_t n, int64_t k, int64_t batch, int64_t chunk_k,
                                  int num_cus, int64_t max_shared_bytes) {
  int best = -1;
  double best_us = 0;
  for (int i = 0; i < num_mma_async_shapes(dtype); ++i) {
    const MmaAsyncShape& shape = mma_async_shape(dtype, i);
    if (shared_bytes(shape, dtype) > max_shared_bytes) continue;
    const int64_t blocks_k = chunk_k < k && !shape.sums_chunks ? ceil_div(k, chunk_k) : 1;
    const double us = mma_async_us(shape, dtype, m, n, k, batch, blocks_k, num_cus);
    if (best < 0 || us < best_us) {
      best = i;
      best_us = us;
    }
  }
  return best;
}

}  // namespace tiledmm

// The block tiles of the mma_async kernel, as plain data, and the pure function that chooses one. They share out work;
// none of them changes a bit of the result: the order of summation is the same for all.
#pragma once

#include <cmath>

#include "core/math.h"
#include "core/problem.h"

namespace tiledmm {

struct MmaAsyncShape {
  int block_m, block_n, block_k;
  int warps_m, warps_n, num_stages, blocks_per_cu;
  bool sums_chunks;  // one after the other: their total is in registers of its own, in fp64 in C
  // Measured on an H200: microseconds of a step of 8 words along k, of a block that has a multiprocessor for itself,
  // and of each block where blocks_per_cu of them share it; and how much longer it takes with copies of single
  // elements.
  double alone_us, busy_us, narrow;
  // In fp64: before the first step, with code that is in no cache; and of each round of blocks.
  double start_us = 0, round_us = 0;
};

// Of 8-byte elements, and of 2-byte ones; 4-byte elements (tf32) have half as many along k. A word is one element, or
// two of 16 bits.
inline constexpr MmaAsyncShape kMmaAsyncShapes64[] = {
    {128, 128, 16, 2, 4, 4, 1, false, 0.525, 0.525, 1.09, 6.9, 1.8},
    {128, 128, 16, 2, 4, 4, 1, true, 0.525, 0.525, 1.09, 6.9, 1.8},
    {64, 64, 16, 2, 2, 3, 3, false, 0.221, 0.132, 1.11, 7.7, 0.0},
    {64, 64, 16, 2, 2, 3, 3, true, 0.221, 0.132, 1.11, 7.7, 0.0},
    {64, 64, 32, 4, 2, 4, 1, false, 0.146, 0.146, 1.21, 5.2, 2.0},
    {32, 64, 16, 2, 2, 4, 3, false, 0.135, 0.081, 1.17, 6.4, 0.7},
    {32, 64, 32, 2, 2, 4, 2, false, 0.100, 0.081, 1.48, 6.5, 1.6},
    {32, 32, 32, 2, 2, 5, 2, false, 0.068, 0.055, 1.23, 5.2, 1.6},
    {16, 32, 32, 1, 4, 7, 2, false, 0.053, 0.044, 1.42, 4.7, 1.9},
};
inline constexpr MmaAsyncShape kMmaAsyncShapes16[] = {
    {128, 256, 32, 2, 4, 3, 1, false, 0.337, 0.337, 1.45},
    {64, 64, 32, 2, 2, 4, 2, true, 0.101, 0.073, 1.45},
};
inline constexpr int kNumMmaAsyncShapes64 = 9, kNumMmaAsyncShapes16 = 2;

constexpr int num_mma_async_shapes(DType dtype) {
  return dtype == DType::f64 ? kNumMmaAsyncShapes64 : kNumMmaAsyncShapes16;
}
constexpr const MmaAsyncShape& mma_async_shape(DType dtype, int shape) {
  return dtype == DType::f64 ? kMmaAsyncShapes64[shape] : kMmaAsyncShapes16[shape];
}

// Shared memory of a block, in bytes, with the rows' padding: whichever of the layouts takes more.
constexpr int64_t shared_bytes(const MmaAsyncShape& shape, DType dtype) {
  const int64_t row_k = dtype == DType::f64 ? shape.block_k * 8 + 32 : 80;
  const int64_t row_m = dtype == DType::f64 ? shape.block_m * 8 + 32 : shape.block_m * 2 + 16;
  const int64_t row_n = dtype == DType::f64 ? shape.block_n * 8 + 32 : shape.block_n * 2 + 16;
  return (max_of(shape.block_m * row_k, shape.block_k * row_m) + max_of(shape.block_n * row_k, shape.block_k * row_n)) *
         shape.num_stages;
}

// Sums of chunks wait in memory up to so many bytes; beyond, the shapes that sum one chunk after the other are left.
inline constexpr int64_t kMaxPartialBytes = 256 << 20;

// How many blocks share out the k of one tile.
constexpr int64_t num_mma_async_splits(const MmaAsyncShape& shape, int64_t k, int64_t chunk_k) {
  return chunk_k < k && !shape.sums_chunks ? ceil_div(k, chunk_k) : 1;
}

// Microseconds in fp64 on an H200, fitted to 17000 measurements: multiprocessors take blocks_per_cu blocks at a time,
// in rounds; memory is busy beside them.
inline double mma_async_f64_us(const MmaAsyncShape& shape, bool is_vectorised, int64_t m, int64_t n, int64_t k,
                               int64_t batch, int64_t chunk_k, int num_cus) {
  const int64_t chunks = ceil_div(k, chunk_k), splits = num_mma_async_splits(shape, k, chunk_k);
  const int64_t blocks = ceil_div(m, shape.block_m) * ceil_div(n, shape.block_n) * batch * splits;
  const int64_t at_once = num_cus * shape.blocks_per_cu, rounds = blocks / at_once, left = blocks - rounds * at_once;
  const double most = shape.blocks_per_cu, area = double(shape.block_m) * shape.block_n;
  const double steps = double(ceil_div(k, splits)) / 8 * (is_vectorised ? 1 : shape.narrow);
  const double more = most > 1 ? (most * shape.busy_us - shape.alone_us) / (most - 1) : 0;  // for another block
  const double add_totals = shape.sums_chunks ? 3.3e-4 * area * double(chunks - 1) : 0;
  const auto round_us = [&](double blocks_per_cu) {
    return steps * (shape.alone_us + (blocks_per_cu - 1) * more) + shape.round_us +
           (3.7e-4 * area + add_totals) * blocks_per_cu;
  };
  double multiply = double(rounds) * round_us(most);
  if (left > 0) {
    // Multiprocessors that are done first take more than their share.
    const double share = double(ceil_div(left, num_cus));
    multiply += round_us(rounds > 0 ? share + 0.13 * (most - share) : share);
  }
  const double move = 8 * double(batch) * (double(m + n) * double(k) + double(m * n) * double(splits)) / 3.26e6;
  double add_chunks = 0;
  if (splits > 1) {
    // What the second-level cache cannot hold goes to memory and back.
    const double bytes = 8 * double(splits) * double(m * n) * double(batch);
    add_chunks = 4 + bytes / 3.1e6 + (bytes > 25e6 ? (bytes - 25e6) / 1e6 : 0);
  }
  return shape.start_us + std::sqrt(std::hypot(multiply * multiply, move * move)) + add_chunks;
}

// Microseconds on an H200 by a simple model: multiprocessors take blocks_per_cu blocks at a time, the fullest one
// decides. Operands arrive while others are multiplied, but for those of the first stages; results leave behind the
// last. is_vectorised: copies of 16 bytes are possible.
inline double mma_async_us(const MmaAsyncShape& shape, DType dtype, bool is_vectorised, int64_t m, int64_t n, int64_t k,
                           int64_t batch, int64_t chunk_k, int num_cus) {
  if (dtype == DType::f64) return mma_async_f64_us(shape, is_vectorised, m, n, k, batch, chunk_k, num_cus);
  const int64_t splits = num_mma_async_splits(shape, k, chunk_k);
  const int64_t blocks = ceil_div(m, shape.block_m) * ceil_div(n, shape.block_n) * batch * splits;
  const int64_t per_cu = ceil_div(blocks, num_cus), rounds = per_cu / shape.blocks_per_cu;
  const double full = shape.blocks_per_cu * shape.busy_us;  // of a step with as many blocks as there may be
  double step = double(rounds) * full;
  if (const int64_t left = per_cu - rounds * shape.blocks_per_cu; left > 0) {
    step += shape.alone_us;
    if (left > 1) step += double(left - 1) * (full - shape.alone_us) / (shape.blocks_per_cu - 1);
  }
  const double bytes = double(size_of(dtype)), words = double(ceil_div(k, splits)) * (bytes == 2 ? 0.5 : 1);
  const double multiply = words / 8 * step * (dtype == DType::f32 ? 1.1 : 1) * (is_vectorised ? 1 : shape.narrow);
  const double load = double((m + n) * k * batch) * bytes / 3.9e6,
               store = double(m * n * batch * splits) * bytes / 3.9e6;
  const double first = shape.num_stages * shape.block_k * 0.5;  // words of the first stages
  double us = 6.4 + (multiply > load ? multiply : load);
  us +=
      ((words > first ? load * first / words : load) + store) / (rounds > 0 ? double(per_cu) / shape.blocks_per_cu : 1);
  us += 1.1e-4 * shape.block_m * shape.block_n * double(min_of(per_cu, shape.blocks_per_cu));
  us += 2.2 * double(ceil_div(per_cu, shape.blocks_per_cu) - 1);
  if (splits > 1) us += 6.5 + double(splits * m * n * batch) * 4 / 2.3e6;
  return us;
}

// The fastest of the shapes that fit into shared memory.
inline int choose_mma_async_shape(DType dtype, bool is_vectorised, int64_t m, int64_t n, int64_t k, int64_t batch,
                                  int64_t chunk_k, int num_cus, int64_t max_shared_bytes) {
  int best = -1;
  double best_us = 0;
  for (int i = 0; i < num_mma_async_shapes(dtype); ++i) {
    const MmaAsyncShape& shape = mma_async_shape(dtype, i);
    const int64_t splits = num_mma_async_splits(shape, k, chunk_k);
    if (shared_bytes(shape, dtype) > max_shared_bytes) continue;
    if (dtype == DType::f64 && shape.sums_chunks && chunk_k >= k) continue;  // another one is the same
    if (splits > 1 && splits * m * n * batch * (size_of(dtype) == 8 ? 8 : 4) > kMaxPartialBytes) continue;
    const double us = mma_async_us(shape, dtype, is_vectorised, m, n, k, batch, chunk_k, num_cus);
    if (best < 0 || us < best_us) {
      best = i;
      best_us = us;
    }
  }
  return best;
}

}  // namespace tiledmm

// Elements of 8 bits with scales (core/quantize.h) on a CPU, in portable code: what it takes is memory's time, not the
// processor's. Tasks of some rows go through x in tiles of 128 elements of k, converted to fp32 in the order in which
// they lie in memory; where a scale is that of whole rows, twice.
#include "core/quantize.h"

#include <algorithm>

#include "kernels/cpu/shared/parallel.h"
#include "kernels/rungs.h"
#include "platform/element.h"
#include "platform/float8.h"

namespace tiledmm::cpu {
namespace {

constexpr int64_t kRows = 16;  // of a task, where each has scales of its own: a cache line of a transposed x

template <int64_t ROWS>
struct Tile {
  alignas(64) float values[ROWS][kScaledK];
  int64_t rows, cols;
};

template <class T, int64_t ROWS>
void load_tile(const QuantizeProblem& p, int64_t row, int64_t col, Tile<ROWS>& tile) {
  const T* const from = static_cast<const T*>(p.x) + row * p.stride_m + col * p.stride_k;
  tile.rows = min_of(ROWS, p.m - row), tile.cols = min_of(kScaledK, p.k - col);
  if (p.stride_k <= p.stride_m) {
    for (int64_t r = 0; r < tile.rows; ++r) {
      for (int64_t c = 0; c < tile.cols; ++c) tile.values[r][c] = to_acc(from[r * p.stride_m + c * p.stride_k]);
    }
  } else {
    for (int64_t c = 0; c < tile.cols; ++c) {
      for (int64_t r = 0; r < tile.rows; ++r) tile.values[r][c] = to_acc(from[r * p.stride_m + c * p.stride_k]);
    }
  }
}

uint32_t largest_of(const float* values, int64_t count, uint32_t largest) {
  auto result = int32_t(largest);  // magnitudes have no sign, and every processor compares signed numbers
  for (int64_t i = 0; i < count; ++i) result = std::max(result, int32_t(magnitude_of(values[i])));
  return uint32_t(result);
}

template <int64_t ROWS>
void store_row(const QuantizeProblem& p, const Float8& format, int64_t row, int64_t col, const Tile<ROWS>& tile,
               int64_t r, float factor) {
  auto* const to = static_cast<uint8_t*>(p.q) + (row + r) * p.stride_q + col;
  // Bytes might be a part of anything else: numbers come into memory of their own, all of them, by vectors.
  const Float8 own = format;
  uint32_t numbers[kScaledK];
  for (int64_t c = 0; c < kScaledK; ++c) numbers[c] = float_to_float8(own, tile.values[r][c] * factor);
  uint8_t bytes[kScaledK];
  for (int64_t c = 0; c < kScaledK; ++c) bytes[c] = uint8_t(numbers[c]);
  std::copy_n(bytes, tile.cols, to);
}

Float8Scale store_scale(const QuantizeProblem& p, const Float8& format, int64_t m_block, int64_t k_block,
                        uint32_t largest) {
  const Float8Scale own = scale_for(format, largest, p.is_power_of_two);
  p.scale[m_block * p.stride_scale_m + k_block * p.stride_scale_k] = own.scale;
  return own;
}

// ROWS rows from `row` on, whose scales are those of whole rows.
template <class T, int64_t ROWS>
void quantize_rows(const QuantizeProblem& p, const Float8& format, int64_t row) {
  Tile<ROWS> tile{};
  uint32_t largest[ROWS] = {};
  for (int64_t col = 0; col < p.k; col += kScaledK) {
    load_tile<T>(p, row, col, tile);
    for (int64_t r = 0; r < tile.rows; ++r) largest[r] = largest_of(tile.values[r], tile.cols, largest[r]);
  }
  float factors[ROWS];
  const int64_t rows = min_of(ROWS, p.m - row);
  for (int64_t r = 0; r < rows; ++r) factors[r] = store_scale(p, format, row + r, 0, largest[r]).factor;
  for (int64_t col = 0; col < p.k; col += kScaledK) {
    load_tile<T>(p, row, col, tile);
    for (int64_t r = 0; r < tile.rows; ++r) store_row(p, format, row, col, tile, r, factors[r]);
  }
}

// ROWS rows, which share scales where they are kScaledK.
template <class T, int64_t ROWS>
void quantize_blocks(const QuantizeProblem& p, const Float8& format, int64_t row) {
  Tile<ROWS> tile{};
  for (int64_t col = 0; col < p.k; col += kScaledK) {
    load_tile<T>(p, row, col, tile);
    const int64_t k_block = col / kScaledK;
    uint32_t largest = 0;
    for (int64_t r = 0; r < tile.rows; ++r) {
      largest = largest_of(tile.values[r], tile.cols, ROWS == kScaledK ? largest : 0);
      if (ROWS < kScaledK) {
        store_row(p, format, row, col, tile, r, store_scale(p, format, row + r, k_block, largest).factor);
      }
    }
    if (ROWS < kScaledK) continue;
    const float factor = store_scale(p, format, row / kScaledK, k_block, largest).factor;
    for (int64_t r = 0; r < tile.rows; ++r) store_row(p, format, row, col, tile, r, factor);
  }
}

}  // namespace

void quantize(const QuantizeProblem& problem, const Executor& executor) {
  const Float8 format = float8_of(problem.dtype_q);
  const int64_t rows = problem.block == ScaleBlock::square ? kScaledK : kRows, num_tasks = ceil_div(problem.m, rows);
  visit_dtype(problem.dtype, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    if constexpr (sizeof(T) <= 4) {
      const auto task = [&](int64_t, int64_t idx) {
        if (problem.block == ScaleBlock::row) return quantize_rows<T, kRows>(problem, format, idx * rows);
        if (problem.block == ScaleBlock::segment) return quantize_blocks<T, kRows>(problem, format, idx * rows);
        quantize_blocks<T, kScaledK>(problem, format, idx * rows);
      };
      // A task of few elements repays no other thread.
      const int64_t workers = problem.m * problem.k < (1 << 15) ? 1 : executor.num_threads;
      for_each_task(executor, min_of(workers, num_tasks), num_tasks, task);
    }
  });
}

}  // namespace tiledmm::cpu

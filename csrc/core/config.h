// The tile numbers of the CPU's register_tiled kernel, as plain data, and the pure function that chooses them.
// They move data and share out work; none of them changes a bit of the result: the order of summation is fixed by
// kChunkWords alone.
#pragma once

#include <cstdint>

#include "core/math.h"

namespace tiledmm {
namespace {

// What a kernel build is made of: fixed per instruction set and dtype.
struct CpuKernelShape {
  int64_t lanes;       // words in a vector register
  int64_t max_thread_m;  // rows of C that the registers hold
  int64_t k_per_word;  // elements of k in a packed word: 2 where an instruction multiplies pairs
  int64_t word_bytes;
  int64_t acc_bytes;
  bool sums_in_c;  // C has the accumulator's type and unit stride: partial sums need no memory of their own
};

// k is summed in chunks of this many words: a chain of multiply-adds from zero within a chunk, then chunk after chunk.
inline constexpr int64_t kChunkWords = 256;
inline constexpr int64_t kVectorsN = 2;             // thread_n = kVectorsN vectors
inline constexpr int64_t kPanelABytes = 256 << 10;  // packed A at one time: a part of the second-level cache
inline constexpr int64_t kPanelBBytes = 512 << 10;  // packed B at one time: likewise
inline constexpr int64_t kSumsBytes = 1 << 20;      // partial sums of a 16-bit C, or of C with split k
inline constexpr int64_t kTaskFlops = 1 << 20;      // less is not worth waking a thread for

struct CpuConfig {
  int64_t thread_m;            // rows of a micro-tile, all tiles as even as m allows
  int64_t block_m, block_n;    // rows of A and columns of B packed at one time
  int64_t tasks_m, tasks_n;    // grid of block tiles of C, one task each
  int64_t task_m, task_n;      // their sizes
  int64_t split_k;             // chunks computed side by side before they are added up in order; 1: no split
  bool is_resident;            // A of a task is packed once, for all chunks of k
  bool is_streaming;           // few rows, B contiguous along n: no packing of B
};

// Work of one thread in multiply-add vectors, packing included (about a third of a vector operation per word).
[[maybe_unused]] double task_cost(int64_t rows, int64_t cols, const CpuKernelShape& shape) {
  const double vectors = double(ceil_div(cols, shape.lanes)) * double(rows);
  return vectors + 0.35 * double(rows + cols);
}

[[maybe_unused]] CpuConfig choose_cpu_config(int64_t m, int64_t n, int64_t k, int64_t batch, bool b_is_n_major,
                                             int64_t num_threads, const CpuKernelShape& shape) {
  CpuConfig config{};
  const int64_t thread_n = kVectorsN * shape.lanes;
  const int64_t num_words = ceil_div(k, shape.k_per_word), num_chunks = max_of(1, ceil_div(num_words, kChunkWords));
  config.tasks_m = config.tasks_n = config.split_k = 1;

  const double flops = 2.0 * double(m) * double(n) * double(k) * double(batch);
  const int64_t threads = min_of(num_threads, int64_t(flops / kTaskFlops) + 1);
  if (threads > 1 && batch < threads) {
    // The grid of block tiles in which the slowest thread has least to do.
    double best = 0;
    for (int64_t tasks_m = 1; tasks_m <= threads; ++tasks_m) {
      const int64_t tasks_n = threads / tasks_m;
      const double cost = task_cost(min_of(m, round_up(ceil_div(m, tasks_m), 2)),
                                    min_of(n, round_up(ceil_div(n, tasks_n), shape.lanes)), shape);
      if (best == 0 || cost < best) {
        best = cost;
        config.tasks_m = tasks_m;
        config.tasks_n = tasks_n;
      }
    }
    // Or whole tiles with k shared out, where that reads less; then the partial sums are written and read once.
    const double sums = double(m) * double(n) / double(shape.lanes) * 3 / double(kChunkWords);
    if (num_chunks >= 2 * threads && (task_cost(m, n, shape) + sums) / double(threads) < best) {
      config.tasks_m = config.tasks_n = 1;
      config.split_k = min_of(num_chunks, kSumsBytes / (m * round_up(n, thread_n) * shape.acc_bytes));
      if (config.split_k < threads) config.split_k = 1;
    }
  }
  config.task_m = ceil_div(m, config.tasks_m);
  config.task_n = min_of(n, round_up(ceil_div(n, config.tasks_n), shape.lanes));
  config.thread_m = ceil_div(config.task_m, ceil_div(config.task_m, shape.max_thread_m));
  config.task_m = min_of(m, round_up(config.task_m, config.thread_m));
  config.tasks_m = ceil_div(m, config.task_m);
  config.tasks_n = ceil_div(n, config.task_n);

  const int64_t chunk_bytes = min_of(kChunkWords, num_words) * shape.word_bytes;
  config.is_streaming = b_is_n_major && config.task_m <= shape.max_thread_m && n > shape.lanes;
  config.is_resident = round_up(config.task_m, config.thread_m) * num_words * shape.word_bytes <= kPanelABytes;
  config.block_m = max_of(1, min_of(ceil_div(config.task_m, config.thread_m),
                                    kPanelABytes / 2 / max_of(1, chunk_bytes * config.thread_m))) *
                   config.thread_m;
  config.block_n = max_of(1, min_of(ceil_div(config.task_n, thread_n),
                                    kPanelBBytes / max_of(1, chunk_bytes * thread_n))) *
                   thread_n;
  // One strip of rows and A at hand: take B strip by strip over the whole of k, in the order in which it lies in memory.
  if (config.is_resident && config.task_m <= config.thread_m && !b_is_n_major) config.block_n = thread_n;
  if (!shape.sums_in_c && num_chunks > 1) {
    config.task_m = min_of(config.task_m, max_of(1, kSumsBytes / shape.acc_bytes / config.block_n / config.thread_m) *
                                              config.thread_m);
    config.tasks_m = ceil_div(m, config.task_m);
  }
  return config;
}

}  // namespace
}  // namespace tiledmm

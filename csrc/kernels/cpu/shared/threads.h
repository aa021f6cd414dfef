// How many threads a product is worth.
#pragma once

#include <cstdint>

#include "core/math.h"

namespace tiledmm {

// `work` is counted in what one thread does while two are woken. All threads are woken for any number of them, which
// takes longer the more there are (3 us for 16), so either one works or all.
inline int64_t threads_for(double work, int64_t num_threads) {
  return work < 1 + double(num_threads) / 32 ? 1 : num_threads;
}

// The time of so many tasks alike, in tasks of a mean thread; `wait` of them at the end for the slowest one. Where
// cores are shared with others, it takes two to four times as long as the fastest (docs/worklog/cpu.md).
inline double turns_of(double num_tasks, int64_t num_threads, double wait) {
  const double turns = num_tasks / double(num_threads);
  return wait + (turns > 1 ? turns : 1);
}

// The wait of threads that use the tile units.
inline double wait_of_tiles(int64_t num_threads) { return 0.9 * (1 - 1 / double(num_threads)); }

// How many threads add up the sums of chunks, where k is split. They come from other cores' caches, and to wake threads
// a second time takes 4 us.
inline int64_t threads_for_sums(int64_t num_sums, int64_t num_threads) {
  constexpr int64_t kSumsOfThread = 2 << 10;
  const int64_t threads = num_sums / kSumsOfThread;
  return threads < 4 ? 1 : min_of(threads, num_threads);
}

}  // namespace tiledmm

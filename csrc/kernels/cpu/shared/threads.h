// How many threads a product is worth.
#pragma once

#include <cstdint>

namespace tiledmm {

// `work` is counted in what one thread does while two are woken. All threads are woken for any number of them, which
// takes longer the more there are (3 us for 16), so either one works or all.
inline int64_t threads_for(double work, int64_t num_threads) {
  return work < 1 + double(num_threads) / 32 ? 1 : num_threads;
}

// Where k is split: sums of chunks that are worth a thread to add up.
inline constexpr int64_t kSumsOfThread = 64 << 10;

}  // namespace tiledmm

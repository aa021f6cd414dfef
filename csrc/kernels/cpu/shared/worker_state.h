// What a worker keeps from one task to the next: a number at the end of its memory.
#pragma once

#include <cstdint>

namespace tiledmm {

constexpr int64_t kWorkerStateBytes = 64;

// `memory` of all workers, `worker_bytes` of each one.
inline int64_t& state_of_worker(char* memory, int64_t worker_bytes, int64_t worker_idx) {
  return *reinterpret_cast<int64_t*>(memory + (worker_idx + 1) * worker_bytes - kWorkerStateBytes);
}

}  // namespace tiledmm

// A lambda as the task of Executor::parallel_for, tasks that workers share out among themselves, and
// what a worker keeps between them.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/executor.h"
#include "core/math.h"

namespace tiledmm {
namespace {

template <class Task>
void parallel_for(const Executor& executor, int64_t num_tasks, const Task& task) {
  if (num_tasks == 1) return task(int64_t{0});
  executor.parallel_for(
      executor.self, num_tasks, [](void* arg, int64_t task_idx) { (*static_cast<const Task*>(arg))(task_idx); },
      const_cast<Task*>(&task));
}

// task(worker_idx, task_idx) for every task_idx < num_tasks. Each of num_workers workers has a share of the tasks that
// follow each other, so that calls alike find their memory in the same core's cache. Who is done with its own takes
// from the others', so that a slow core does less.
template <class Task>
void for_each_task(const Executor& executor, int64_t num_workers, int64_t num_tasks, const Task& task) {
  if (num_tasks == num_workers) return parallel_for(executor, num_workers, [&](int64_t idx) { task(idx, idx); });
  struct alignas(64) Share {
    std::atomic<int64_t> next;
    int64_t end;
  };
  constexpr int64_t kMaxShares = 32;
  Share shares[kMaxShares];
  const int64_t num_shares = min_of(num_workers, kMaxShares);
  for (int64_t i = 0; i < num_shares; ++i) {
    shares[i].next.store(i * num_tasks / num_shares, std::memory_order_relaxed);
    shares[i].end = (i + 1) * num_tasks / num_shares;
  }
  parallel_for(executor, num_workers, [&](int64_t worker_idx) {
    for (int64_t i = 0; i < num_shares; ++i) {
      Share& share = shares[(worker_idx + i) % num_shares];
      // To look at a share first costs less than to count in one of which nothing is left: 16 workers without work are
      // done in 6 instead of 9 us.
      while (share.next.load(std::memory_order_relaxed) < share.end) {
        const int64_t idx = share.next.fetch_add(1, std::memory_order_relaxed);
        if (idx < share.end) task(worker_idx, idx);
      }
    }
  });
}

// What a worker keeps from one task to the next: a number at the end of its memory.
constexpr int64_t kWorkerStateBytes = 64;

// `memory` of all workers, `worker_bytes` of each one.
inline int64_t& state_of_worker(char* memory, int64_t worker_bytes, int64_t worker_idx) {
  return *reinterpret_cast<int64_t*>(memory + (worker_idx + 1) * worker_bytes - kWorkerStateBytes);
}

}  // namespace
}  // namespace tiledmm

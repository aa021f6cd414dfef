// A lambda as the task of Executor::parallel_for, and tasks that workers take from a common counter.
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

// task(worker_idx, task_idx) for every task_idx < num_tasks. Each of num_workers workers begins with tasks of its own,
// so that calls alike find their memory in the same core's cache; then it takes the next ones that nobody has taken, so
// that a slow core does less. Where there are many, several that follow each other are taken at a time.
template <class Task>
void for_each_task(const Executor& executor, int64_t num_workers, int64_t num_tasks, const Task& task) {
  constexpr int64_t kTurns = 8;  // of each worker
  const int64_t count = max_of(1, num_tasks / max_of(1, kTurns * num_workers));
  std::atomic<int64_t> next{num_workers * count};
  parallel_for(executor, num_workers, [&](int64_t worker_idx) {
    int64_t first = worker_idx * count;
    while (first < num_tasks) {
      for (int64_t idx = first; idx < min_of(first + count, num_tasks); ++idx) task(worker_idx, idx);
      // Read before it is written: where all is taken, workers need not wait for each other's writes.
      const bool is_all_taken = next.load(std::memory_order_relaxed) >= num_tasks;
      first = is_all_taken ? num_tasks : next.fetch_add(count, std::memory_order_relaxed);
    }
  });
}

}  // namespace
}  // namespace tiledmm

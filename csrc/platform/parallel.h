// A lambda as the task of Executor::parallel_for.
#pragma once

#include <cstdint>

#include "core/executor.h"

namespace tiledmm {
namespace {

template <class Task>
void parallel_for(const Executor& executor, int64_t num_tasks, const Task& task) {
  if (num_tasks == 1) return task(int64_t{0});
  executor.parallel_for(
      executor.self, num_tasks, [](void* arg, int64_t task_idx) { (*static_cast<const Task*>(arg))(task_idx); },
      const_cast<Task*>(&task));
}

}  // namespace
}  // namespace tiledmm

// What the caller of the kernels lends to one call: threads, memory, a stream. The kernels know no torch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tiledmm {

struct Executor {
  void* self;           // handed back to the functions below
  int32_t num_threads;  // CPU: tasks that can run at the same time, >= 1
  int32_t device_idx;   // GPU
  int32_t num_cus;      // GPU: SMs, CUs; the dispatcher fills it in
  int32_t warp_size;    // GPU: lanes of a warp; the dispatcher fills it in
  void* stream;         // GPU: the current stream
  // Runs task(arg, 0) ... task(arg, num_tasks - 1), in any order, on any thread, and returns when all are done.
  void (*parallel_for)(void* self, int64_t num_tasks, void (*task)(void* arg, int64_t task_idx), void* arg);
  // 64-byte aligned memory of the device, nullptr when there is none. A task of parallel_for may call it, too, and
  // releases what it got. On a GPU it may be released when the kernels that use it have been launched.
  void* (*allocate)(void* self, size_t num_bytes);
  void (*release)(void* self, void* memory);
  const char** launched = nullptr;  // where to write the name of the kernel that is launched; null: nowhere
};

}  // namespace tiledmm

// The C interface of the kernel library `_kernels`. It knows no torch: the caller lends what a kernel needs
// (threads, memory, stream) as an Executor, so one build of the kernels serves every torch version.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.h"

namespace tiledmm {

// What the caller lends to one call.
struct Executor {
  void* self;           // handed back to the functions below
  int32_t num_threads;  // CPU: tasks that can run at the same time, >= 1
  int32_t device_idx;   // GPU
  int32_t num_cus;      // GPU: SMs, CUs
  int32_t warp_size;    // GPU: lanes of a warp
  void* stream;         // GPU: the current stream
  // Runs task(arg, 0) ... task(arg, num_tasks - 1), in any order, on any thread, and returns when all are done.
  void (*parallel_for)(void* self, int64_t num_tasks, void (*task)(void* arg, int64_t task_idx), void* arg);
  // 64-byte aligned memory of the device, nullptr when there is none. Called outside of parallel_for only. On a GPU it
  // may be released when the kernels that use it have been launched.
  void* (*allocate)(void* self, size_t num_bytes);
  void (*release)(void* self, void* memory);
};

}  // namespace tiledmm

#define TILEDMM_API __attribute__((visibility("default")))

extern "C" {

// Grows with every incompatible change of this header or of problem.h.
inline constexpr int32_t TILEDMM_ABI_VERSION = 3;
TILEDMM_API int32_t tiledmm_abi_version();

// Index of an algorithm for tiledmm_gemm, -1 if there is none of that name. 0 is "auto".
TILEDMM_API int32_t tiledmm_find_algorithm(const char* name, size_t length);

// Computes one problem on the CPU. On failure returns the Status and writes a reason (NUL-terminated).
TILEDMM_API tiledmm::Status tiledmm_gemm_cpu(const tiledmm::GemmProblem* problem, int32_t algorithm,
                                             const tiledmm::Executor* executor, char* reason, size_t capacity);

// The same on GPU executor->device_idx, asynchronously on executor->stream. num_cus and warp_size are filled in.
TILEDMM_API tiledmm::Status tiledmm_gemm_gpu(const tiledmm::GemmProblem* problem, int32_t algorithm,
                                             const tiledmm::Executor* executor, char* reason, size_t capacity);

// GFLOP/s of this machine's best multiply-add instruction for a dtype, on executor->num_threads threads, measured now.
TILEDMM_API double tiledmm_fma_peak(tiledmm::DType dtype, const tiledmm::Executor* executor);

// JSON texts. Each returns the length that the whole text has and writes at most capacity bytes of it.
// info: build, instruction set in use, algorithms per device and dtype with the reason where one is not available.
// explain: candidates with legality, cost and reason, and the choice, for one device ("cpu", "cpu:avx2", "cuda:sm_90",
// ...);
//          only m, n, k, dtype, strides and batch_dims of the problem are read.
TILEDMM_API size_t tiledmm_info(char* text, size_t capacity);
TILEDMM_API size_t tiledmm_explain(const tiledmm::GemmProblem* problem, const char* device, int32_t num_threads,
                                   char* text, size_t capacity);
}

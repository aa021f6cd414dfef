// The C interface of the kernel library `_kernels`. It knows no torch: the caller lends what a kernel needs
// (threads, memory, stream) as an Executor, so one build of the kernels serves every torch version.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/elementwise.h"
#include "core/executor.h"
#include "core/problem.h"
#include "core/quantize.h"
#include "core/reduce.h"
#include "core/softmax.h"

#define TILEDMM_API __attribute__((visibility("default")))

extern "C" {

// Grows with every incompatible change of this header, of executor.h, problem.h, elementwise.h, reduce.h, softmax.h or
// quantize.h. Whoever loads the library compares.
inline constexpr int32_t TILEDMM_ABI_VERSION = 19;
TILEDMM_API int32_t tiledmm_abi_version();

// Index of an algorithm for the functions below, -1 if there is none of that name. 0 is "auto". A name, a colon and a
// number ask for one of the plans that tiledmm_explain lists.
TILEDMM_API int32_t tiledmm_find_algorithm(const char* name, size_t length);

// Computes one problem on the CPU. On failure returns the Status and writes a reason (NUL-terminated).
TILEDMM_API tiledmm::Status tiledmm_gemm_cpu(const tiledmm::GemmProblem* problem, int32_t algorithm,
                                             const tiledmm::Executor* executor, char* reason, size_t capacity);

// Computes one problem on GPU executor->device_idx, asynchronously on executor->stream.
TILEDMM_API tiledmm::Status tiledmm_gemm_gpu(const tiledmm::GemmProblem* problem, int32_t algorithm,
                                             const tiledmm::Executor* executor, char* reason, size_t capacity);

// Whether tiledmm_gemm_gpu serves this problem on GPU device_idx, which becomes the calling thread's current one;
// by_production: by a kernel that is none of the teaching ladder.
TILEDMM_API bool tiledmm_gpu_serves(const tiledmm::GemmProblem* problem, int32_t algorithm, int32_t device_idx,
                                    bool by_production);

// Computes a function of each element, on the CPU; on GPU executor->device_idx, asynchronously on executor->stream.
TILEDMM_API tiledmm::Status tiledmm_elementwise_cpu(const tiledmm::ElementwiseProblem* problem,
                                                    const tiledmm::Executor* executor, char* reason, size_t capacity);
TILEDMM_API tiledmm::Status tiledmm_elementwise_gpu(const tiledmm::ElementwiseProblem* problem,
                                                    const tiledmm::Executor* executor, char* reason, size_t capacity);

// Sums along a dimension, on the CPU none that run; on GPU executor->device_idx, asynchronously on executor->stream.
TILEDMM_API tiledmm::Status tiledmm_reduce_cpu(const tiledmm::ReduceProblem* problem, const tiledmm::Executor* executor,
                                               char* reason, size_t capacity);
TILEDMM_API tiledmm::Status tiledmm_reduce_gpu(const tiledmm::ReduceProblem* problem, const tiledmm::Executor* executor,
                                               char* reason, size_t capacity);

// Softmax of columns on the CPU; weights of attention on GPU executor->device_idx, asynchronously on executor->stream.
TILEDMM_API tiledmm::Status tiledmm_softmax_cpu(const tiledmm::ColumnSoftmaxProblem* problem,
                                                const tiledmm::Executor* executor, char* reason, size_t capacity);
TILEDMM_API tiledmm::Status tiledmm_softmax_gpu(const tiledmm::SoftmaxProblem* problem,
                                                const tiledmm::Executor* executor, char* reason, size_t capacity);

// Elements of 8 bits with scales, on the CPU; on GPU executor->device_idx, asynchronously on executor->stream.
TILEDMM_API tiledmm::Status tiledmm_quantize_cpu(const tiledmm::QuantizeProblem* problem,
                                                 const tiledmm::Executor* executor, char* reason, size_t capacity);
TILEDMM_API tiledmm::Status tiledmm_quantize_gpu(const tiledmm::QuantizeProblem* problem,
                                                 const tiledmm::Executor* executor, char* reason, size_t capacity);

// GFLOP/s of this machine's best multiply-add instruction for a dtype, on executor->num_threads threads, measured now.
TILEDMM_API double tiledmm_fma_peak(tiledmm::DType dtype, const tiledmm::Executor* executor);

// Texts. Each returns the length that the whole text has and writes at most capacity bytes of it.
// algorithm_names: all of them, with commas between; the others are JSON.
// info: build, instruction set in use, algorithms per device and dtype with the reason where one is not available.
// explain: candidates with legality, cost, order of summation, tile and reason, and the choice, for one device ("cpu",
// "cpu:avx2", "cuda:sm_90", ...); only m, n, k, dtypes, strides, batch_dims and grouping of the problem are read: of
// groups of rows, on a CPU, the product of a group of the mean size. With plans_of,
// the name of a kernel, the candidates are its plans, by name and number; it may be null.
TILEDMM_API size_t tiledmm_algorithm_names(char* text, size_t capacity);
TILEDMM_API size_t tiledmm_info(char* text, size_t capacity);
TILEDMM_API size_t tiledmm_explain(const tiledmm::GemmProblem* problem, const char* device, int32_t num_threads,
                                   const char* plans_of, char* text, size_t capacity);
}

// Runs a problem as the caller has it: folds its batch, selects a kernel, launches it.
#pragma once

#include "core/elementwise.h"
#include "core/executor.h"
#include "core/problem.h"
#include "core/quantize.h"
#include "core/reduce.h"
#include "core/softmax.h"

namespace tiledmm {

// On failure returns the Status and writes a reason (NUL-terminated). `algorithm` as in select.h.
Status run_on_cpu(const GemmProblem& problem, int32_t algorithm, const Executor& executor, char* reason,
                  size_t capacity);
// On GPU executor.device_idx, asynchronously on executor.stream.
Status run_on_gpu(const GemmProblem& problem, int32_t algorithm, Executor executor, char* reason, size_t capacity);

// A function of each element, on the CPU or on GPU executor.device_idx; failures as above.
Status run_elementwise_on_cpu(const ElementwiseProblem& problem, const Executor& executor);
Status run_elementwise_on_gpu(const ElementwiseProblem& problem, Executor executor, char* reason, size_t capacity);

// Sums along a dimension, on the CPU none that run, or on GPU executor.device_idx; failures as above.
Status run_reduce_on_cpu(const ReduceProblem& problem, const Executor& executor, char* reason, size_t capacity);
Status run_reduce_on_gpu(const ReduceProblem& problem, Executor executor, char* reason, size_t capacity);

// Softmax of columns on the CPU; weights of attention on GPU executor.device_idx; failures as above.
Status run_softmax_on_cpu(const ColumnSoftmaxProblem& problem, const Executor& executor, char* reason, size_t capacity);
Status run_softmax_on_gpu(const SoftmaxProblem& problem, Executor executor, char* reason, size_t capacity);

// Elements of 8 bits with scales, on the CPU or on GPU executor.device_idx; failures as above.
Status run_quantize_on_cpu(const QuantizeProblem& problem, const Executor& executor);
Status run_quantize_on_gpu(const QuantizeProblem& problem, Executor executor, char* reason, size_t capacity);

// Whether run_on_gpu serves a problem, by_production: by a kernel that is none of the ladder.
bool gpu_serves(const GemmProblem& problem, int32_t algorithm, int32_t device_idx, bool by_production);

}  // namespace tiledmm

// Folds, selects, launches; what went wrong in words.
#include "dispatch/launch.h"

#include <atomic>
#include <cstdio>

#include "dispatch/chips.h"
#include "dispatch/fold_batch.h"
#include "dispatch/grouped.h"
#include "dispatch/select.h"
#include "kernels/rungs.h"
#include "platform/device.h"

namespace tiledmm {
namespace {

// asked_n: columns of the caller's C, of which `asked` may be a block.
Status run(const GemmProblem& asked, int64_t asked_n, int32_t algorithm, const Chip& chip, const Executor& executor,
           char* reason, size_t capacity) {
  if (algorithm < 0 || name_of(algorithm) >= num_algorithms()) {
    std::snprintf(reason, capacity, "there is no algorithm of index %d", int(algorithm));
    return Status::unknown_algorithm;
  }
  BatchDim dims[kMaxBatchDims];
  FoldedProblem problem = fold_batch(asked, dims);
  problem.asked_n = asked_n;
  const Choice choice = select(problem, algorithm, chip);
  if (!choice.rung) {
    std::snprintf(reason, capacity, "algorithm '%s' cannot serve this call on %s: %s", algorithm_name(algorithm),
                  chip.name, explain_refusal(problem, algorithm, chip));
    return Status::unsupported;
  }
  if (is_empty(problem)) return Status::ok;
  if (choice.rung->is_gpu) problem.gemm.batch_dims = nullptr;  // they are the host's
  if (executor.launched) *executor.launched = choice.rung->name;
  const Status status = choice.rung->launch(problem, choice.plan, executor);
  if (status == Status::out_of_memory) {
    std::snprintf(reason, capacity, "no memory for the workspace of algorithm '%s'", choice.rung->name);
  } else if (status == Status::launch_failed) {
    const char* why = choice.rung->is_gpu ? gpu::take_error() : nullptr;
    std::snprintf(reason, capacity, "the launch of algorithm '%s' on %s failed: %s", choice.rung->name, chip.name,
                  why ? why : "it takes no such operands");
  }
  return status;
}

// The row of a GPU of this machine, with what its runtime says. On failure writes a reason.
Status find_device(int32_t device_idx, Chip& chip, char* reason, size_t capacity) {
  if (!gpu::use_device) {
    std::snprintf(reason, capacity,
                  "this build has no GPU kernels; build it again where torch has CUDA or ROCm, and nvcc or hipcc is on "
                  "the PATH");
    return Status::unsupported;
  }
  gpu::Device device{};
  if (!gpu::use_device(device_idx, device)) {
    const char* why = gpu::take_error();
    std::snprintf(reason, capacity, "GPU %d cannot be used: %s", int(device_idx),
                  why ? why : "there is none of this index");
    return why ? Status::launch_failed : Status::unsupported;
  }
  const Chip* row = find_gpu_chip(device.arch);
  if (!row) {
    std::snprintf(reason, capacity, "there are no kernels for this GPU; supported are %s", supported_gpus().c_str());
    return Status::unsupported;
  }
  chip = *row;
  chip.num_cus = device.num_cus;
  chip.warp_size = device.warp_size;
  chip.max_shared_bytes = device.max_shared_bytes;
  return Status::ok;
}

// Finds the executor's GPU likewise, and tells the executor of it.
Status find_device(Executor& executor, Chip& chip, char* reason, size_t capacity) {
  const Status status = find_device(executor.device_idx, chip, reason, capacity);
  if (status == Status::ok) executor.num_cus = chip.num_cus, executor.warp_size = chip.warp_size;
  return status;
}

}  // namespace

#if !defined(TILEDMM_HOST_GPU)
namespace {

// Each group is a product of its own. Whether an algorithm can serve, and which kernel is said to be launched, is asked
// of the product of all rows, or of all k.
Status run_groups_on_cpu(const GemmProblem& asked, int32_t algorithm, const Executor& executor, char* reason,
                         size_t capacity) {
  GemmProblem as_one = asked;
  as_one.grouping = Grouping::none, as_one.num_batch_dims = 0;
  GemmProblem nothing = as_one;
  nothing.m = 0;
  const Chip chip = cpu_chip(executor.num_threads);
  if (const Status status = run(nothing, asked.n, algorithm, chip, executor, reason, capacity); status != Status::ok) {
    return status;
  }
  const bool is_empty =
      asked.m == 0 || asked.n == 0 || (asked.grouping == Grouping::k && asked.batch_dims[0].size == 0);
  if (is_empty) return Status::ok;
  if (executor.launched) {
    const Choice choice = select(fold_batch(as_one, nullptr), algorithm, chip);
    *executor.launched = choice.rung ? choice.rung->name : nullptr;
  }
  Executor silent = executor;
  silent.launched = nullptr;  // threads would write there at the same time
  std::atomic<bool> has_failed{false};
  return run_groups(asked, silent, [&](const GemmProblem& product, const Executor& own) {
    char why[320] = "";
    const Status status = run(product, asked.n, algorithm, cpu_chip(own.num_threads), own, why, sizeof why);
    if (status == Status::ok || has_failed.exchange(true)) return Status::ok;
    std::snprintf(reason, capacity, "%s", why);  // of the first failure, as the status
    return status;
  });
}

}  // namespace

Status run_on_cpu(const GemmProblem& problem, int32_t algorithm, const Executor& executor, char* reason,
                  size_t capacity) {
  if (is_grouped(problem)) return run_groups_on_cpu(problem, algorithm, executor, reason, capacity);
  return run(problem, problem.n, algorithm, cpu_chip(executor.num_threads), executor, reason, capacity);
}

Status run_elementwise_on_cpu(const ElementwiseProblem& problem, const Executor& executor) {
  if (problem.count > 0) compute_elementwise(problem, executor);
  return Status::ok;
}

Status run_reduce_on_cpu(const ReduceProblem& problem, const Executor& executor, char* reason, size_t capacity) {
  if (problem.outer * problem.inner == 0) return Status::ok;
  const Status status = compute_sums(problem, executor);
  if (status == Status::out_of_memory) std::snprintf(reason, capacity, "no memory for the workspace of sums");
  return status;
}

Status run_softmax_on_cpu(const ColumnSoftmaxProblem& problem, const Executor& executor, char* reason,
                          size_t capacity) {
  if (problem.outer * problem.inner * problem.k == 0) return Status::ok;
  const Status status = compute_softmax(problem, executor);
  if (status == Status::out_of_memory) std::snprintf(reason, capacity, "no memory for the workspace of softmax");
  return status;
}

Status run_quantize_on_cpu(const QuantizeProblem& problem, const Executor& executor) {
  if (problem.m > 0) cpu::quantize(problem, executor);
  return Status::ok;
}
#endif

Status run_on_gpu(const GemmProblem& problem, int32_t algorithm, Executor executor, char* reason, size_t capacity) {
  Chip chip;
  const Status status = find_device(executor, chip, reason, capacity);
  if (status != Status::ok) return status;
  return run(problem, problem.n, algorithm, chip, executor, reason, capacity);
}

namespace {

// launch(), which is no product, on the executor's GPU; `name` says what it computes.
template <class Launch>
Status run_on_gpu(const char* name, bool is_empty, Executor& executor, char* reason, size_t capacity,
                  const Launch& launch) {
  Chip chip;
  const Status status = find_device(executor, chip, reason, capacity);
  if (status != Status::ok || is_empty) return status;
  const Status launched = launch();
  if (launched == Status::launch_failed) {
    const char* why = gpu::take_error();
    std::snprintf(reason, capacity, "the launch of %s on %s failed: %s", name, chip.name,
                  why ? why : "no reason is known");
  } else if (launched == Status::out_of_memory) {
    std::snprintf(reason, capacity, "no memory for the workspace of %s", name);
  }
  return launched;
}

}  // namespace

Status run_elementwise_on_gpu(const ElementwiseProblem& problem, Executor executor, char* reason, size_t capacity) {
  const char* name = kFunctionNames[int(problem.function) - 1];
  return run_on_gpu(name, problem.count == 0, executor, reason, capacity,
                    [&] { return gpu::launch_elementwise(problem, executor); });
}

Status run_reduce_on_gpu(const ReduceProblem& problem, Executor executor, char* reason, size_t capacity) {
  return run_on_gpu("a sum along a dimension", problem.outer * problem.inner == 0, executor, reason, capacity,
                    [&] { return gpu::launch_reduce(problem, executor); });
}

Status run_softmax_on_gpu(const SoftmaxProblem& problem, Executor executor, char* reason, size_t capacity) {
  const bool is_empty = problem.sizes[0] * problem.sizes[1] * problem.sizes[2] * problem.k == 0;
  return run_on_gpu("softmax", is_empty, executor, reason, capacity,
                    [&] { return gpu::launch_softmax(problem, executor); });
}

Status run_quantize_on_gpu(const QuantizeProblem& problem, Executor executor, char* reason, size_t capacity) {
  const bool is_empty = problem.m == 0 || (problem.k == 0 && problem.block != ScaleBlock::row);
  return run_on_gpu("a quantisation", is_empty, executor, reason, capacity,
                    [&] { return gpu::launch_quantize(problem, executor); });
}

bool gpu_serves(const GemmProblem& problem, int32_t algorithm, int32_t device_idx, bool by_production) {
  Chip chip;
  char reason[320];
  if (find_device(device_idx, chip, reason, sizeof reason) != Status::ok) return false;
  BatchDim dims[kMaxBatchDims];
  return serves(fold_batch(problem, dims), algorithm, chip, by_production);
}

}  // namespace tiledmm

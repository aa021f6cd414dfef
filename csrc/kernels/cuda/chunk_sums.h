// The second half of a product whose chunks of k different blocks computed: their sums are added in the order of the
// chunks (core/summation.h), then bias, activation, rounding.
#pragma once

#include "kernels/cuda/tensor_map.h"
#include "platform/gpu.h"
#include "platform/ptx_sm90.h"

namespace tiledmm::cuda {
namespace {

// Sums of the chunks, [item][chunk][row][col], rows of `ld` floats.
struct PartialSums {
  const float* sums;
  int64_t ld;
  int num_chunks;
};

constexpr int kSumThreads = 128;   // few: small results reach more multiprocessors
constexpr int kSumsInFlight = 64;  // loads of a thread

template <class T>
__global__ void __launch_bounds__(kSumThreads)
    sum_chunks(const __grid_constant__ GpuProblem problem, const __grid_constant__ PartialSums partial) {
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  const int64_t idx = int64_t(blockIdx.x) * kSumThreads + threadIdx.x;
  const int64_t all_rows = idx / partial.ld, col = idx - all_rows * partial.ld;
  const int64_t item = all_rows / problem.gemm.m, row = all_rows - item * problem.gemm.m;
  if (item >= problem.batch_size || col >= problem.gemm.n) return;
  const int64_t slab = problem.gemm.m * partial.ld;
  const float* from = partial.sums + item * partial.num_chunks * slab + row * partial.ld + col;
  float total = 0;
  for (int first = 0; first < partial.num_chunks; first += kSumsInFlight) {
    float sums[kSumsInFlight];
#pragma unroll
    for (int i = 0; i < kSumsInFlight; ++i) sums[i] = first + i < partial.num_chunks ? from[(first + i) * slab] : 0;
#pragma unroll
    for (int i = 0; i < kSumsInFlight; ++i) {
      if (first + i < partial.num_chunks) total = first + i == 0 ? sums[0] : total + sums[i];
    }
  }
  if (problem.gemm.bias) total += gpu::load_bias<T>(problem.gemm, row, col);
  gpu::store_activated<T>(gpu::item_of(problem, item), row, col, total);
}

const char* launch_sum_chunks(const GpuProblem& problem, const PartialSums& partial, cudaStream_t stream) {
  const int64_t num_blocks = ceil_div(problem.batch_size * problem.gemm.m * partial.ld, kSumThreads);
  if (num_blocks > INT32_MAX) return "too many results of chunks";
  const auto launch = [&](auto element) {
    return launch_overlapped<&sum_chunks<decltype(element)>>(num_blocks, kSumThreads, 0, stream, problem, partial);
  };
  if (problem.gemm.dtype == DType::f32) return launch(float{});
  return problem.gemm.dtype == DType::f16 ? launch(Half{}) : launch(BFloat16{});
}

}  // namespace
}  // namespace tiledmm::cuda

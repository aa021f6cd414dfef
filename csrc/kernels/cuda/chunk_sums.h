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

constexpr int kSumWarps = 4;      // each takes every fourth chunk, for as many results as a warp has lanes
constexpr int kSumsInFlight = 8;  // loads of a thread
constexpr int kSumRound = kSumWarps * kSumsInFlight;

// The results of a row in units of a warp's width.
template <class T>
__global__ void __launch_bounds__(kSumWarps * 32)
    sum_chunks(const __grid_constant__ GpuProblem problem, const __grid_constant__ PartialSums partial) {
  __shared__ float sums[kSumRound][32];
  griddepcontrol_launch_dependents();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t units = uint32_t(ceil_div(problem.gemm.n, 32)), all_rows = blockIdx.x / units;
  const int64_t col = int64_t(blockIdx.x - all_rows * units) * 32 + lane;
  const uint32_t item = all_rows / uint32_t(problem.gemm.m), row = all_rows - item * uint32_t(problem.gemm.m);
  const int64_t slab = problem.gemm.m * partial.ld;
  const float* from = partial.sums + (int64_t(item) * partial.num_chunks + warp) * slab + row * partial.ld + col;
  griddepcontrol_wait();
  float total = 0;
  for (int first = 0; first < partial.num_chunks; first += kSumRound) {
    float mine[kSumsInFlight];
#pragma unroll
    for (int i = 0; i < kSumsInFlight; ++i) {
      const bool exists = first + warp + i * kSumWarps < partial.num_chunks && col < partial.ld;
      mine[i] = exists ? from[(first + i * kSumWarps) * slab] : 0;
    }
    if (first > 0) __syncthreads();  // the first warp has read the round before
#pragma unroll
    for (int i = 0; i < kSumsInFlight; ++i) sums[warp + i * kSumWarps][lane] = mine[i];
    __syncthreads();
    if (warp == 0) {
      const int count = int(min_of(partial.num_chunks - first, kSumRound));
#pragma unroll 8
      for (int i = 0; i < count; ++i) total = first + i == 0 ? sums[0][lane] : total + sums[i][lane];
    }
  }
  if (warp != 0 || col >= problem.gemm.n) return;
  if (problem.gemm.bias) total += gpu::load_bias<T>(problem.gemm, row, col);
  gpu::store_activated<T>(gpu::item_of(problem, item), row, col, total);
}

const char* launch_sum_chunks(const GpuProblem& problem, const PartialSums& partial, cudaStream_t stream) {
  const int64_t num_blocks = problem.batch_size * problem.gemm.m * ceil_div(problem.gemm.n, 32);
  if (num_blocks > INT32_MAX) return "too many results of chunks";
  const auto launch = [&](auto element) {
    return launch_overlapped<&sum_chunks<decltype(element)>>(num_blocks, kSumWarps * 32, 0, stream, problem, partial);
  };
  if (problem.gemm.dtype == DType::f32) return launch(float{});
  return problem.gemm.dtype == DType::f16 ? launch(Half{}) : launch(BFloat16{});
}

}  // namespace
}  // namespace tiledmm::cuda

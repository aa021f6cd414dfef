// Host side of wgmma_fp8_b: which instance is launched, and the kernel that adds up chunks after it.
#include "core/plan.h"
#include "kernels/cuda/shared/tensor_map.h"
#include "kernels/cuda/wgmma/fp8_b_result.h"
#include "kernels/cuda/wgmma/fp8_b_task.h"
#include "platform/chunk_sums.h"

namespace tiledmm::cuda {
namespace {

constexpr int kAddThreads = 128;

// Sums of chunks, [chunk][row][column], in the order of k. Four neighbours of a row for a thread, whose loads are all
// on their way at once.
__global__ void __launch_bounds__(kAddThreads)
    add_fp8_b_chunks(const float* partial, int num_chunks, int m, int64_t ld, gpu::Divisor quads_of_row,
                     const __grid_constant__ Fp8BResult to) {
  const int idx = int(blockIdx.x) * kAddThreads + int(threadIdx.x), row = quads_of_row.quotient(idx);
  const int col = (idx - row * quads_of_row.value) * 4;
  griddepcontrol_launch_dependents();
  if (row >= m) return;
  const Fp8BColumns columns(to, col, to.n - col);
  griddepcontrol_wait();
  float4 sums[kFp8BMostChunks];
#pragma unroll
  for (int i = 0; i < kFp8BMostChunks; ++i) {
    if (i < num_chunks) sums[i] = *reinterpret_cast<const float4*>(partial + (int64_t(i) * m + row) * ld + col);
  }
  store_finished(to, columns, sum_of(sums, num_chunks), row, col, to.n - col);
}

}  // namespace
}  // namespace tiledmm::cuda

namespace tiledmm::gpu {

Status launch_wgmma_fp8_b(const FoldedProblem& problem, const Plan& made, const Executor& executor) {
  const Fp8BPlan& plan = made.as<Fp8BPlan>();
  const GemmProblem& p = problem.gemm;
  const int64_t ld = cuda::ld_fp8_b_partial(p.n);
  ChunkSums<float> chunk_sums(problem, ld, executor);
  if (plan.split == Fp8BSplit::by_kernel && !chunk_sums.allocate()) return Status::out_of_memory;
  const auto stream = static_cast<cudaStream_t>(executor.stream);
  const auto launch = [&](auto instance) {
    return cuda::launch_fp8_b_instance<decltype(instance)::value>({problem, plan, chunk_sums.sums, stream});
  };
  if (visit_instance(cuda::kFp8BInstances, p.dtype_a, plan.tile, "no such tile", launch, false))
    return Status::launch_failed;
  if (!chunk_sums.sums) return Status::ok;
  const char* const refusal = cuda::launch_overlapped<&cuda::add_fp8_b_chunks>(
      ceil_div(p.m * ld / 4, cuda::kAddThreads), cuda::kAddThreads, 0, stream,
      static_cast<const float*>(chunk_sums.sums), int(ceil_div(p.k, problem.chunk_k)), int(p.m), ld, Divisor(ld / 4),
      cuda::Fp8BResult(p));
  return refusal ? Status::launch_failed : Status::ok;
}

}  // namespace tiledmm::gpu

// Operands of fp32 that the tf32 kernel cannot take as they lie, copied along k into memory lent by the caller: A and B
// in one launch.
#pragma once

#include "kernels/cuda/wgmma/repack.h"
#include "kernels/cuda/wgmma/tf32_plan.h"

namespace tiledmm::cuda {
namespace {

// One operand: `rows` x k in each item, to rows of `ld` elements with zeros behind.
struct CopyAlongKJob {
  const float* from;
  int64_t stride_row, stride_k;
  int rows, k;
  float* to;
  int64_t ld;
  int tiles_k, tiles_of_item, num_tiles;
  int num_dims;
  RepackDim dims[kMaxGpuBatchDims];  // those along which the items differ
};
struct CopyAlongKJobs {
  CopyAlongKJob jobs[2];
};

constexpr int kCopyThreads = 256;
constexpr int kCopyTile = 64;

// A tile a block, through shared memory: what neighbouring threads read and write lies together.
__global__ void __launch_bounds__(kCopyThreads) copy_along_k(const __grid_constant__ CopyAlongKJobs both) {
  __shared__ float tile[kCopyTile][kCopyTile + 1];  // [k][row]
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  int idx = int(blockIdx.x);
  const bool is_second = idx >= both.jobs[0].num_tiles;
  const CopyAlongKJob& job = both.jobs[is_second];
  if (is_second) idx -= both.jobs[0].num_tiles;
  const int item = idx / job.tiles_of_item;
  idx -= item * job.tiles_of_item;
  const int row = idx / job.tiles_k * kCopyTile, k = idx % job.tiles_k * kCopyTile;
  const float* from = job.from;
  int rest = item;
  for (int d = job.num_dims - 1; d >= 0; --d) {
    const int outer = rest / int(job.dims[d].size);
    from += (rest - outer * job.dims[d].size) * job.dims[d].stride;
    rest = outer;
  }

  constexpr int kStep = kCopyThreads / kCopyTile, kValues = kCopyTile / kStep;
  const int close = threadIdx.x % kCopyTile, first = threadIdx.x / kCopyTile;
  const bool reads_along_k = tiledmm::is_k_major(job.stride_row, job.stride_k);
  float values[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int far = first + kStep * i;
    const int r = row + (reads_along_k ? far : close), p = k + (reads_along_k ? close : far);
    values[i] = r < job.rows && p < job.k ? from[r * job.stride_row + p * job.stride_k] : 0;
  }
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int far = first + kStep * i;
    tile[reads_along_k ? close : far][reads_along_k ? far : close] = values[i];
  }
  __syncthreads();
  // A warp writes four rows of 32 elements: its lanes read 32 banks.
  float* to = job.to + (int64_t(item) * job.rows + row) * job.ld + k;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = threadIdx.x / 32 * 4 + i / 2 * 32 + threadIdx.x % 32 / 8, p = i % 2 * 32 + threadIdx.x % 8 * 4;
    if (row + r < job.rows && k + p < job.ld)
      *reinterpret_cast<float4*>(to + r * job.ld + p) =
          make_float4(tile[p][r], tile[p + 1][r], tile[p + 2][r], tile[p + 3][r]);
  }
}

// Memory for the copies and the launch that fills it; given back when the kernels have been launched.
class CopyAlongK {
 public:
  explicit CopyAlongK(const Executor& executor) : executor_(executor) {}
  ~CopyAlongK() {
    for (int i = 0; i < count_; ++i) executor_.release(executor_.self, jobs_.jobs[i].to);
  }
  CopyAlongK(const CopyAlongK&) = delete;

  // Plans a copy of `rows` x k matrices; data and all strides become the copy's.
  Status add(FoldedProblem& problem, const void*& data, int64_t rows, int64_t& stride_row, int64_t& stride_k,
             int64_t BatchDim::* stride) {
    const int64_t k = problem.gemm.k;
    CopyAlongKJob job{};
    job.from = static_cast<const float*>(data);
    job.stride_row = stride_row;
    job.stride_k = stride_k;
    job.rows = int(rows);
    job.k = int(k);
    job.ld = tf32_copied_ld(k);
    int64_t next = rows * job.ld, num_items = 1;
    for (int32_t d = 0; d < problem.gemm.num_batch_dims; ++d) {
      if (problem.batch_dims[d].*stride == 0) continue;
      job.dims[job.num_dims++] = {problem.batch_dims[d].size, problem.batch_dims[d].*stride};
      num_items *= problem.batch_dims[d].size;
    }
    const int64_t tiles_of_item = ceil_div(rows, kCopyTile) * ceil_div(k, kCopyTile);
    job.tiles_k = int(ceil_div(k, kCopyTile));
    if (tiles_of_item * num_items > INT32_MAX / 2) return Status::launch_failed;
    job.tiles_of_item = int(tiles_of_item);
    job.num_tiles = int(tiles_of_item * num_items);
    job.to = static_cast<float*>(executor_.allocate(executor_.self, size_t(next * num_items) * sizeof(float)));
    if (!job.to) return Status::out_of_memory;
    jobs_.jobs[count_++] = job;

    data = job.to;
    stride_row = job.ld;
    stride_k = 1;
    for (int32_t d = problem.gemm.num_batch_dims - 1; d >= 0; --d) {
      BatchDim& dim = problem.batch_dims[d];
      if (dim.*stride == 0) continue;
      dim.*stride = next;
      next *= dim.size;
    }
    return Status::ok;
  }

  const char* launch() const {
    if (count_ == 0) return nullptr;
    return launch_overlapped<&copy_along_k>(jobs_.jobs[0].num_tiles + jobs_.jobs[1].num_tiles, kCopyThreads, 0,
                                            static_cast<cudaStream_t>(executor_.stream), jobs_);
  }

 private:
  const Executor& executor_;
  CopyAlongKJobs jobs_{};
  int count_ = 0;
};

}  // namespace
}  // namespace tiledmm::cuda

// Operands that the copy engine cannot take (an address, a leading dimension or a batch stride that is no multiple of
// 16 bytes, no unit stride), copied into memory lent by the caller: A and B in one launch.
#pragma once

#include "kernels/cuda/shared/ptx_sm90.h"
#include "kernels/cuda/shared/tensor_map.h"
#include "kernels/cuda/wgmma/plan.h"
#include "platform/block_tile.h"

namespace tiledmm::cuda {
namespace {

struct RepackDim {
  int64_t size, stride;
};

// One operand of 16-bit elements: rows of `inner` elements, `outer` of them in each item, to rows of `ld` elements with
// zeros behind. A warp moves `rows_per_warp` rows, or a segment of one.
struct RepackJob {
  const uint16_t* from;
  int64_t stride_inner, stride_outer, inner, outer, num_rows;
  uint16_t* to;
  int64_t ld;
  int64_t segments;  // of a row
  int64_t num_units;
  int rows_per_warp;
  int num_dims;
  RepackDim dims[kMaxGpuBatchDims];  // those along which the items differ
};
struct RepackJobs {
  RepackJob jobs[2];
};

constexpr int kRepackThreads = 256;
constexpr int kRepackWords = 8;                        // of two elements, a lane's part of a segment
constexpr int64_t kRepackSegment = 32 * kRepackWords;  // words

__device__ __forceinline__ void repack_unit(const RepackJob& job, int64_t unit) {
  const int lane = threadIdx.x % 32, lanes = 32 / job.rows_per_warp;
  const bool is_small = job.num_units <= UINT32_MAX;
  const int64_t group = is_small ? int64_t(uint32_t(unit) / uint32_t(job.segments)) : unit / job.segments;
  const int64_t row = group * job.rows_per_warp + lane / lanes;
  if (row >= job.num_rows) return;
  const uint16_t* from = job.from;
  int64_t within = row;
  if (job.num_dims) {
    int64_t item = row / job.outer;
    within -= item * job.outer;
    for (int d = job.num_dims - 1; d >= 0; --d) {
      const int64_t rest = item / job.dims[d].size;
      from += (item - rest * job.dims[d].size) * job.dims[d].stride;
      item = rest;
    }
  }
  from += within * job.stride_outer;
  auto* to = reinterpret_cast<uint32_t*>(job.to + row * job.ld);
  const int64_t segment = (unit - group * job.segments) * kRepackSegment;
  uint32_t words[kRepackWords];
  if (job.stride_inner == 1 && job.rows_per_warp == 1 && 2 * (segment + kRepackSegment) <= job.inner) {
    // Inside of the row: every address is a constant away from the first.
    from += 2 * (segment + lane);
    to += segment + lane;
    if (reinterpret_cast<uintptr_t>(from) % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kRepackWords; ++i) words[i] = *reinterpret_cast<const uint32_t*>(from + 64 * i);
    } else {
#pragma unroll
      for (int i = 0; i < kRepackWords; ++i) words[i] = from[64 * i] | uint32_t(from[64 * i + 1]) << 16;
    }
#pragma unroll
    for (int i = 0; i < kRepackWords; ++i) to[32 * i] = words[i];
    return;
  }
  const int64_t first = segment + lane % lanes;
#pragma unroll
  for (int i = 0; i < kRepackWords; ++i) {
    const int64_t element = 2 * (first + i * lanes);
    const uint16_t* pair = from + element * job.stride_inner;
    const uint32_t low = element < job.inner ? *pair : 0;
    words[i] = low | (element + 1 < job.inner ? uint32_t(pair[job.stride_inner]) << 16 : 0);
  }
#pragma unroll
  for (int i = 0; i < kRepackWords; ++i) {
    const int64_t word = first + i * lanes;
    if (2 * word < job.ld) to[word] = words[i];
  }
}

__global__ void __launch_bounds__(kRepackThreads) repack(const __grid_constant__ RepackJobs both) {
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  const int64_t num_units = both.jobs[0].num_units + both.jobs[1].num_units;
  constexpr int kWarps = kRepackThreads / 32;
  for (int64_t unit = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32; unit < num_units;
       unit += int64_t(gridDim.x) * kWarps) {
    if (unit < both.jobs[0].num_units)
      repack_unit(both.jobs[0], unit);
    else
      repack_unit(both.jobs[1], unit - both.jobs[0].num_units);
  }
}

// Memory for repacked operands and the launch that fills it; given back when the kernels have been launched.
class Repack {
 public:
  explicit Repack(const Executor& executor) : executor_(executor) {}
  ~Repack() {
    for (int i = 0; i < count_; ++i) executor_.release(executor_.self, jobs_.jobs[i].to);
  }
  Repack(const Repack&) = delete;

  // Plans a copy of `rows` x k matrices; data and all strides become the copy's, which the copy engine takes.
  Status add(FoldedProblem& problem, const void*& data, int64_t rows, int64_t& stride_row, int64_t& stride_k,
             int64_t BatchDim::* stride) {
    const bool is_k_major = tiledmm::is_k_major(stride_row, stride_k);
    RepackJob job{};
    job.from = static_cast<const uint16_t*>(data);
    job.stride_inner = is_k_major ? stride_k : stride_row;
    job.stride_outer = is_k_major ? stride_row : stride_k;
    job.inner = is_k_major ? problem.gemm.k : rows;
    job.outer = is_k_major ? rows : problem.gemm.k;
    job.ld = repacked_ld(job.inner);
    int64_t num_items = 1;
    for (int32_t d = 0; d < problem.gemm.num_batch_dims; ++d) {
      if (problem.batch_dims[d].*stride == 0) continue;
      job.dims[job.num_dims++] = {problem.batch_dims[d].size, problem.batch_dims[d].*stride};
      num_items *= problem.batch_dims[d].size;
    }
    job.num_rows = num_items * job.outer;
    job.segments = ceil_div(job.ld / 2, kRepackSegment);
    job.rows_per_warp = 1;
    while (job.rows_per_warp < 8 && job.ld / 2 * job.rows_per_warp * 2 <= kRepackSegment) job.rows_per_warp *= 2;
    job.num_units = ceil_div(job.num_rows, job.rows_per_warp) * job.segments;
    job.to = static_cast<uint16_t*>(executor_.allocate(executor_.self, size_t(job.num_rows * job.ld) * 2));
    if (!job.to) return Status::out_of_memory;
    jobs_.jobs[count_++] = job;

    data = job.to;
    stride_row = is_k_major ? job.ld : 1;
    stride_k = is_k_major ? 1 : job.ld;
    int64_t next = job.outer * job.ld;
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
    const int64_t num_units = jobs_.jobs[0].num_units + jobs_.jobs[1].num_units;
    const int64_t num_blocks = min_of(ceil_div(num_units, kRepackThreads / 32), int64_t(executor_.num_cus) * 8);
    return launch_overlapped<&repack>(num_blocks, kRepackThreads, 0, static_cast<cudaStream_t>(executor_.stream),
                                      jobs_);
  }

 private:
  const Executor& executor_;
  RepackJobs jobs_{};
  int count_ = 0;
};

}  // namespace
}  // namespace tiledmm::cuda

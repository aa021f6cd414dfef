// Operands of fp32 that multiply-adds cannot take fast as they lie (k close, or rows that 16-byte copies cannot take),
// copied into memory lent by the caller: m (n) close, aligned, rows padded with zeros. A and B in one launch.
#pragma once

#include "platform/block_tile.h"
#include "platform/copied_batch.h"

namespace tiledmm::gpu {
namespace {

// One operand, to rows of `ld` elements for each k.
struct PackJob {
  const float* from;
  int64_t stride_mn, stride_k, size_mn, size_k;
  float* to;
  int64_t ld;
  int64_t tiles_mn, num_tiles;
  CopiedBatch batch;
};
struct PackJobs {
  PackJob jobs[2];
};

constexpr int kPackThreads = 256, kPackTile = 64;

struct PackShared {
  float tile[kPackTile][kPackTile + 1];  // [k][mn]
};

// A tile through shared memory: what neighbouring threads read and write lies together.
TILEDMM_DEVICE void pack_tile(const PackJob& job, int64_t tile, PackShared& smem) {
  constexpr int kStep = kPackThreads / kPackTile, kValues = kPackTile / kStep;
  const int64_t tile_k = tile / job.tiles_mn;
  const int64_t first_mn = (tile - tile_k * job.tiles_mn) * kPackTile, first_k = tile_k * kPackTile;
  const int close = thread_idx() % kPackTile, far = thread_idx() / kPackTile;
  const bool is_k_close = is_k_major(job.stride_mn, job.stride_k);
  // What is left for this thread, of the operand along the far dimension and of the copy along k.
  const int left_mn = int(min_of(job.size_mn - first_mn, kPackTile)),
            left_k = int(min_of(job.size_k - first_k, kPackTile));
  const int left_far = close < (is_k_close ? left_k : left_mn) ? (is_k_close ? left_mn : left_k) - far : 0;
  const int left_rows = first_mn + close < job.ld ? left_k - far : 0;
  for (int64_t item = block_idx_y(); item < job.batch.num_items; item += num_blocks_y()) {
    const float* from = job.from + job.batch.offset(item);
    from +=
        (first_mn + (is_k_close ? far : close)) * job.stride_mn + (first_k + (is_k_close ? close : far)) * job.stride_k;
    const int64_t step = (is_k_close ? job.stride_mn : job.stride_k) * kStep;
    float values[kValues];
    TILEDMM_UNROLL for (int i = 0; i < kValues; ++i) {
      values[i] = i * kStep < left_far ? load_global(from + i * step) : 0;
    }
    TILEDMM_UNROLL for (int i = 0; i < kValues; ++i) {
      const int at = far + i * kStep;
      store_shared(is_k_close ? &smem.tile[close][at] : &smem.tile[at][close], values[i]);
    }
    block_barrier();  // the tile is whole
    float* to = job.to + (item * job.size_k + first_k + far) * job.ld + first_mn + close;
    TILEDMM_UNROLL for (int i = 0; i < kValues; ++i) {
      if (i * kStep < left_rows) store_global(to + i * kStep * job.ld, load_shared(&smem.tile[far + i * kStep][close]));
    }
    block_barrier();  // nobody reads it any more
  }
}

TILEDMM_KERNEL(kPackThreads, 4)
pack_operands(PackJobs both) {
  auto& smem = block_shared<PackShared>();
  if (block_idx() < both.jobs[0].num_tiles) {
    pack_tile(both.jobs[0], block_idx(), smem);
  } else {
    pack_tile(both.jobs[1], block_idx() - both.jobs[0].num_tiles, smem);
  }
}

// Memory for the copies and the launch that fills it; given back when the kernels have been launched.
class Pack {
 public:
  explicit Pack(const Executor& executor) : executor_(executor) {}
  ~Pack() {
    for (int i = 0; i < count_; ++i) executor_.release(executor_.self, jobs_.jobs[i].to);
  }
  Pack(const Pack&) = delete;

  // Plans a copy of size_mn x k matrices; data and all strides become the copy's.
  Status add(FoldedProblem& problem, const void*& data, int64_t size_mn, int64_t& stride_mn, int64_t& stride_k,
             int64_t BatchDim::* stride) {
    PackJob job{};
    job.from = static_cast<const float*>(data);
    job.stride_mn = stride_mn;
    job.stride_k = stride_k;
    job.size_mn = size_mn;
    job.size_k = problem.gemm.k;
    job.ld = round_up(size_mn, 32);  // rows that begin at multiples of 128 bytes are read fastest
    job.tiles_mn = ceil_div(job.ld, kPackTile);
    job.num_tiles = job.tiles_mn * ceil_div(job.size_k, kPackTile);
    job.batch = describe_copied_batch(problem, stride, job.size_k * job.ld);
    const int64_t elements = job.batch.num_items * job.size_k * job.ld;
    job.to = static_cast<float*>(executor_.allocate(executor_.self, size_t(elements) * sizeof(float)));
    if (!job.to) return Status::out_of_memory;
    jobs_.jobs[count_++] = job;
    data = job.to;
    stride_mn = 1;
    stride_k = job.ld;
    return Status::ok;
  }

  Status launch() const {
    if (count_ == 0) return Status::ok;
    const int64_t items = max_of(jobs_.jobs[0].batch.num_items, jobs_.jobs[1].batch.num_items);
    return launch_kernel(pack_operands, jobs_.jobs[0].num_tiles + jobs_.jobs[1].num_tiles, min_of(items, 65535),
                         kPackThreads, sizeof(PackShared), executor_, jobs_);
  }

 private:
  const Executor& executor_;
  PackJobs jobs_{};
  int count_ = 0;
};

}  // namespace
}  // namespace tiledmm::gpu

// Operands of 16-bit elements that no copy of 4 bytes can take (an odd address or leading dimension, no unit stride),
// copied into memory lent by the caller: a whole batch, on the host executor, too. Where the batch repeats an operand,
// it is copied once.
#pragma once

#include "platform/block_tile.h"
#include "platform/copied_batch.h"

namespace tiledmm::gpu {
namespace {

struct Repack {
  const uint16_t* from;
  uint16_t* to;
  int64_t stride_inner, stride_outer, inner, outer, ld;
  CopiedBatch batch;
};

// Rows of aligned length, zeros behind each: 16 bytes a thread.
TILEDMM_KERNEL(256, 1)
repack_operand(Repack repack) {
  const int64_t vectors_per_row = repack.ld / 8, idx = block_idx() * 256 + thread_idx();
  const int64_t row = idx / vectors_per_row, first = (idx - row * vectors_per_row) * 8;
  if (row >= repack.outer) return;
  for (int64_t item = block_idx_y(); item < repack.batch.num_items; item += num_blocks_y()) {
    const int64_t offset = repack.batch.offset(item) + row * repack.stride_outer + first * repack.stride_inner;
    Vector16 vector;
    TILEDMM_UNROLL for (int w = 0; w < 4; ++w) {
      uint32_t halves[2];
      TILEDMM_UNROLL for (int h = 0; h < 2; ++h) {
        const int e = 2 * w + h;
        halves[h] = first + e < repack.inner ? load_global(repack.from + offset + e * repack.stride_inner) : 0;
      }
      vector.words[w] = halves[0] | halves[1] << 16;
    }
    store_global(reinterpret_cast<Vector16*>(repack.to + (item * repack.outer + row) * repack.ld + first), vector);
  }
}

// Memory lent by the caller, given back when the kernels have been launched.
struct Workspace {
  const Executor& executor;
  void* memory = nullptr;

  explicit Workspace(const Executor& executor) : executor(executor) {}
  ~Workspace() {
    if (memory) executor.release(executor.self, memory);
  }
  Workspace(const Workspace&) = delete;
  bool allocate(int64_t bytes) { return (memory = executor.allocate(executor.self, size_t(bytes))) != nullptr; }
};

// Makes an operand such that is_aligned. `stride` is A's or B's of a batch dimension.
Status repack_if_unaligned(FoldedProblem& problem, int64_t BatchDim::* stride, const void*& data, int64_t rows,
                           int64_t& stride_mn, int64_t& stride_k, Workspace& workspace) {
  const bool is_close_k = is_k_major(stride_mn, stride_k);
  const OperandView view{data, rows, problem.gemm.k, stride_mn, stride_k, stride};
  if (problem.gemm.k == 0 || is_aligned(view, problem)) return Status::ok;
  Repack repack{};
  repack.from = static_cast<const uint16_t*>(data);
  repack.inner = is_close_k ? problem.gemm.k : rows;
  repack.outer = is_close_k ? rows : problem.gemm.k;
  repack.stride_inner = is_close_k ? stride_k : stride_mn;
  repack.stride_outer = is_close_k ? stride_mn : stride_k;
  repack.ld = round_up(repack.inner, 8);
  repack.batch = describe_copied_batch(problem, stride, repack.outer * repack.ld);
  if (!workspace.allocate(repack.batch.num_items * repack.outer * repack.ld * 2)) return Status::out_of_memory;
  repack.to = static_cast<uint16_t*>(workspace.memory);
  data = workspace.memory;
  (is_close_k ? stride_k : stride_mn) = 1;
  (is_close_k ? stride_mn : stride_k) = repack.ld;
  return launch_kernel(repack_operand, ceil_div(repack.outer * repack.ld / 8, 256),
                       min_of(repack.batch.num_items, 65535), 256, 0, workspace.executor, repack);
}

}  // namespace
}  // namespace tiledmm::gpu

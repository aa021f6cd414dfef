// The rows of C for which terms cannot stand: multiply-adds of the operands themselves, in the order `chunks`, so with
// the bits of the vector kernels that have fused multiply-adds.
#pragma once

#include "core/executor.h"
#include "kernels/cpu/amx_split/plan.h"
#include "kernels/cpu/shared/epilogue.h"
#include "kernels/cpu/shared/pack.h"
#include "kernels/cpu/shared/parallel.h"
#include "kernels/cpu/shared/simd.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

// A tile of sums in registers. Tiles of one strip of columns share what is packed of B.
constexpr int kFlaggedTileRows = 6, kFlaggedVectors = TILEDMM_VECTOR_BYTES == 64 ? 4 : 2;
constexpr int kFlaggedColumns = kFlaggedVectors * Simd<float>::kLanes;
constexpr int64_t kMostFlaggedRows = 40 * kFlaggedTileRows;  // computed at a time

// The memory of a thread.
struct FlaggedWorkspace {
  alignas(64) float columns[strip_size<float>(kFlaggedColumns, kAmxSplitChunkK)];
  alignas(64) float sums[kMostFlaggedRows][kFlaggedColumns];
};

struct FlaggedRows {
  const GemmProblem& item;
  int64_t rows[kMostFlaggedRows] = {}, count = 0;

  // Some of the rows, for a strip of columns: chunk of k by chunk.
  void multiply(int64_t col, FlaggedWorkspace& workspace) const {
    const auto* const a = static_cast<const float*>(item.a);
    const auto* const b = static_cast<const float*>(item.b) + col * item.stride_bn;
    const int64_t num_cols = min_of(kFlaggedColumns, item.n - col);
    for (int64_t k = 0; k < item.k; k += kAmxSplitChunkK) {
      const int64_t depth = min_of(kAmxSplitChunkK, item.k - k);
      pack_strips<float, Fma<float, float>>(b + k * item.stride_bk, item.stride_bn, item.stride_bk, num_cols,
                                            kFlaggedColumns, depth, workspace.columns);
      for (int64_t first = 0; first < count; first += kFlaggedTileRows) {
        const float* lanes[kFlaggedTileRows];  // those beyond the last row repeat it
        for (int64_t i = 0; i < kFlaggedTileRows; ++i) {
          lanes[i] = a + rows[min_of(first + i, count - 1)] * item.stride_am + k * item.stride_ak;
        }
        multiply_tile(lanes, item.stride_ak, workspace.columns, depth, k == 0, &workspace.sums[first]);
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      store_block_tile(item, rows[i], 1, col, num_cols, workspace.sums[i], kFlaggedColumns);
    }
  }

 private:
  // One chain for each element, in the order of k; then its sum and that of the chunks before.
  static void multiply_tile(const float* const* rows, int64_t stride_k, const float* columns, int64_t depth,
                            bool is_first, float (*sums)[kFlaggedColumns]) {
    constexpr int kLanes = Simd<float>::kLanes;
    Reg<float> acc[kFlaggedTileRows][kFlaggedVectors] = {};
    for (int64_t k = 0; k < depth; ++k, columns += kFlaggedColumns) {
      Reg<float> frag_b[kFlaggedVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kFlaggedVectors; ++v) frag_b[v] = load(columns + v * kLanes);
#pragma GCC unroll 6
      for (int i = 0; i < kFlaggedTileRows; ++i) {
        const Reg<float> frag_a = broadcast(rows[i][k * stride_k]);
#pragma GCC unroll 4
        for (int v = 0; v < kFlaggedVectors; ++v) acc[i][v] = multiply_add(frag_a, frag_b[v], acc[i][v]);
      }
    }
#pragma GCC unroll 6
    for (int i = 0; i < kFlaggedTileRows; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kFlaggedVectors; ++v) {
        float* const to = sums[i] + v * kLanes;
        store(to, is_first ? acc[i][v] : load(to) + acc[i][v]);
      }
    }
  }
};

// The rows of an item for which is_flagged(row), some at a time.
template <class IsFlagged>
Status compute_flagged_rows(const GemmProblem& item, int64_t num_threads, const Executor& executor,
                            const IsFlagged& is_flagged) {
  const int64_t strips = ceil_div(item.n, kFlaggedColumns), num_workers = min_of(num_threads, strips);
  for (int64_t row = 0; row < item.m;) {
    FlaggedRows flagged{item};
    for (; row < item.m && flagged.count < kMostFlaggedRows; ++row) {
      if (is_flagged(row)) flagged.rows[flagged.count++] = row;
    }
    if (flagged.count == 0) break;
    void* const memory = executor.allocate(executor.self, size_t(num_workers) * sizeof(FlaggedWorkspace));
    if (!memory) return Status::out_of_memory;
    for_each_task(executor, num_workers, strips, [&](int64_t worker_idx, int64_t strip) {
      flagged.multiply(strip * kFlaggedColumns, static_cast<FlaggedWorkspace*>(memory)[worker_idx]);
    });
    executor.release(executor.self, memory);
  }
  return Status::ok;
}

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

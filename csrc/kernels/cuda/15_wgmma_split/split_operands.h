// The first of the three kernels: fp32 operands as two fp16 terms each, along k, with scales and flags.
//
// What is written depends on the row alone. The terms, scales and flags are those of terms.h.
#pragma once

#include "core/operand.h"
#include "kernels/cuda/15_wgmma_split/terms.h"
#include "kernels/cuda/shared/copied_batch.h"
#include "platform/ptx_sm90.h"

namespace tiledmm::cuda {
namespace {

constexpr int kSplitThreads = 256;
constexpr int kLanes = kSplitThreads / kSplitRows;   // threads of a row
constexpr int kSplitValues = kSplitBlockK / kLanes;  // of a thread and block
constexpr int kHalfBlockK = kSplitBlockK / 2;        // a thread has four values in each half of a block
static_assert(kSplitValues == 8 && kLanes == 8, "two times four values");

// One operand, where its terms go, and its tiles.
struct SplitOperand {
  const float* from;
  int64_t stride_row, stride_k;
  SplitLayout layout;
  __half* terms;
  float* scales;   // of [item][block][row]
  uint8_t* flags;  // of [item][tile of k][row]
  bool is_aligned;
  int tile_k, tiles_rows, tiles_k, num_tiles;
  gpu::CopiedBatch batch;
};
struct SplitOperands {
  SplitOperand of[2];
};

// One tile of an operand, as a thread reads it. `values` are those of the thread in the order of memory.
struct SplitSource {
  const float* from;  // the tile's first element
  int64_t stride_row, stride_k;
  int rows, k;  // inside of the operand, from there on
  bool is_aligned, is_along_k;

  // Place i of this thread in a block of the tile.
  __device__ __forceinline__ int row(int i) const {
    return is_aligned   ? threadIdx.x / kLanes
           : is_along_k ? threadIdx.x / kSplitBlockK + i * 4
                        : threadIdx.x % kSplitRows;
  }
  __device__ __forceinline__ int k_of(int i) const {
    return is_aligned   ? threadIdx.x % kLanes * 4 + i / 4 * kHalfBlockK + i % 4
           : is_along_k ? threadIdx.x % kSplitBlockK
                        : threadIdx.x / kSplitRows + i * 8;
  }
  __device__ __forceinline__ void load(float (&values)[kSplitValues], int first_k) const {
    if (is_aligned && first_k + kSplitBlockK <= k) {
      const float* row_start = from + row(0) * stride_row + first_k + k_of(0);
      const bool is_inside = row(0) < rows;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float4 v = is_inside ? *reinterpret_cast<const float4*>(row_start + half * kHalfBlockK) : float4{};
        values[4 * half] = v.x, values[4 * half + 1] = v.y, values[4 * half + 2] = v.z, values[4 * half + 3] = v.w;
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kSplitValues; ++i) {
      const int r = row(i), p = first_k + k_of(i);
      values[i] = r < rows && p < k ? from[r * stride_row + p * stride_k] : 0;
    }
  }
};

// A tile a block.
__global__ void __launch_bounds__(kSplitThreads, 4) split_operands(const __grid_constant__ SplitOperands both) {
  __shared__ float tile[kSplitRows][kSplitBlockK + 1];
  // In this order: the next kernel may read the caller's operands before this one is done.
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  int idx = int(blockIdx.x);
  const bool is_second = idx >= both.of[0].num_tiles;
  const SplitOperand& operand = both.of[is_second];
  if (is_second) idx -= both.of[0].num_tiles;
  const SplitLayout& layout = operand.layout;
  SplitSource source{};
  source.is_aligned = operand.is_aligned;
  source.is_along_k = tiledmm::is_k_major(operand.stride_row, operand.stride_k);
  source.stride_row = operand.stride_row;
  source.stride_k = operand.stride_k;
  // Neighbouring blocks read neighbouring memory.
  const int item = idx / (operand.tiles_rows * operand.tiles_k);
  idx -= item * operand.tiles_rows * operand.tiles_k;
  const int tile_k = source.is_along_k ? idx % operand.tiles_k : idx / operand.tiles_rows;
  const int first_row = (source.is_along_k ? idx / operand.tiles_k : idx % operand.tiles_rows) * kSplitRows;
  const int first_k = tile_k * operand.tile_k;
  source.rows = int(min_of(layout.rows - first_row, kSplitRows));  // 0 or less: padding
  source.k = int(min_of(layout.k - first_k, operand.tile_k));
  source.from = operand.from + operand.batch.offset(item) + first_row * operand.stride_row + first_k * operand.stride_k;

  const int row = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int64_t first_block = item * layout.num_blocks() + first_k / kSplitBlockK;
  float* scale = operand.scales + first_block * layout.padded_rows() + first_row + row;
  __half* terms =
      operand.terms + 2 * item * layout.terms_of_item() + (first_row + row) * layout.padded_k() + first_k + lane * 4;
  bool is_flagged = false;
  float next[kSplitValues];
  source.load(next, 0);
#pragma unroll 1
  for (int k = 0; k < source.k; k += kSplitBlockK) {
    float x[kSplitValues];
    if (source.is_aligned) {
#pragma unroll
      for (int i = 0; i < kSplitValues; ++i) x[i] = next[i];
    } else {
#pragma unroll
      for (int i = 0; i < kSplitValues; ++i) tile[source.row(i)][source.k_of(i)] = next[i];
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kSplitValues; ++i) x[i] = tile[row][lane * 4 + i / 4 * kHalfBlockK + i % 4];
      __syncthreads();
    }
    if (k + kSplitBlockK < source.k) source.load(next, k + kSplitBlockK);

    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kSplitValues; ++i) largest = max(largest, magnitude(x[i]));
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, step));
    const BlockScale block(largest);
    is_flagged |= block.is_flagged;
#pragma unroll
    for (int i = 0; i < kSplitValues; ++i) {
      // Zero where the block is flagged, infinities included.
      x[i] = block.is_in_range ? x[i] * block.factor : 0;
      is_flagged |= is_too_small(x[i]);
    }
    if (lane == 0) *scale = block.scale;
    scale += layout.padded_rows();
    if (row < source.rows) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint2 first, second;
        split_pair(x[4 * half], x[4 * half + 1], first.x, second.x);
        split_pair(x[4 * half + 2], x[4 * half + 3], first.y, second.y);
        *reinterpret_cast<uint2*>(terms + half * kHalfBlockK) = first;
        *reinterpret_cast<uint2*>(terms + layout.terms_of_item() + half * kHalfBlockK) = second;
      }
    }
    terms += kSplitBlockK;
  }
  const uint32_t flagged = __ballot_sync(~0u, is_flagged) >> (threadIdx.x % 32 / kLanes * kLanes) & 0xff;
  if (lane == 0)
    operand.flags[(int64_t(item) * operand.tiles_k + tile_k) * layout.padded_rows() + first_row + row] = flagged != 0;
}

}  // namespace
}  // namespace tiledmm::cuda

// The last of the three kernels: rows of A and columns of B that the split flagged, by plain multiply-adds in fp32, in
// the order of the native kernels for an n of 1024 at most (summation.h). Everything where there are no flags, k being
// short.
#pragma once

#include "core/operand.h"
#include "core/summation.h"
#include "kernels/cuda/15_wgmma_split/plan.h"
#include "platform/gpu.h"
#include "platform/ptx_sm90.h"

namespace tiledmm::cuda {
namespace {

constexpr int kFixThreads = 256;
constexpr int kFixK = 16;                   // of a tile in shared memory
constexpr int kFixPitch = kSplitBlock + 4;  // rows along k begin in different banks
constexpr int kFixValues = kSplitBlock * kFixK / kFixThreads;
static_assert(kChunkUnit % kFixK == 0, "a chunk ends with a tile, but the last one");

// An operand's flags, of [item][part of k][row].
struct FixUpFlags {
  const uint8_t* flags;  // null: everything is computed
  int num_parts, padded_rows;
};

struct FixUpArguments {
  FoldedProblem problem;
  FixUpFlags flags_a, flags_b;
  int64_t chunk_k;  // of the sums
  int tiles_m, tiles_n, num_tiles;
  int item_step_a[kMaxGpuBatchDims], item_step_b[kMaxGpuBatchDims];  // flags' items by dimension of the batch
};

// One operand of a tile: how a thread reads it, neighbouring threads along memory.
struct FixUpSource {
  const float* from;
  int64_t stride_row, stride_k;
  int rows, k;  // inside, from there on
  bool is_along_k;

  __device__ __forceinline__ int row(int i) const {
    return is_along_k ? threadIdx.x / kFixK + i * (kFixThreads / kFixK) : threadIdx.x % kSplitBlock;
  }
  __device__ __forceinline__ int k_of(int i) const {
    return is_along_k ? threadIdx.x % kFixK : threadIdx.x / kSplitBlock + i * (kFixThreads / kSplitBlock);
  }
  __device__ __forceinline__ void load(float (&values)[kFixValues], int first_k) const {
    const float* at = from + row(0) * stride_row + (first_k + k_of(0)) * stride_k;
    const int64_t step = is_along_k ? (row(1) - row(0)) * stride_row : (k_of(1) - k_of(0)) * stride_k;
#pragma unroll
    for (int i = 0; i < kFixValues; ++i) {
      values[i] = row(i) < rows && first_k + k_of(i) < k ? *at : 0;
      at += step;
    }
  }
  __device__ __forceinline__ void store(float (&tile)[kFixK][kFixPitch], const float (&values)[kFixValues]) const {
#pragma unroll
    for (int i = 0; i < kFixValues; ++i) tile[k_of(i)][row(i)] = values[i];
  }
};

// Where a tile's flags lie.
struct FixUpTile {
  int item, first_row, first_col;
  FixUpFlags flags_a, flags_b;  // from the tile's first row and column on

  __device__ __forceinline__ FixUpTile(const FixUpArguments& args, int idx) {
    first_col = idx % args.tiles_n * kSplitBlock;
    idx /= args.tiles_n;
    item = idx / args.tiles_m;
    first_row = (idx - item * args.tiles_m) * kSplitBlock;
    int64_t item_a = 0, item_b = 0;
    int rest = item;
#pragma unroll 1
    for (int d = args.problem.gemm.num_batch_dims - 1; d >= 0; --d) {
      const int size = int(args.problem.batch_dims[d].size), outer = rest / size;
      item_a += (rest - outer * size) * args.item_step_a[d];
      item_b += (rest - outer * size) * args.item_step_b[d];
      rest = outer;
    }
    flags_a = args.flags_a;
    flags_b = args.flags_b;
    flags_a.flags += item_a * flags_a.num_parts * flags_a.padded_rows + first_row;
    flags_b.flags += item_b * flags_b.num_parts * flags_b.padded_rows + first_col;
  }
};

// Whether anything is flagged in a tile: by one warp, with as many loads at a time as most tiles need.
__device__ __forceinline__ bool has_flags(const FixUpTile& tile) {
  constexpr int kLanes = kSplitBlock / 16, kStep = 32 / kLanes, kAtOnce = 8;  // a lane takes 16 flags of one part
  const int lane = threadIdx.x % 32;
  uint32_t any = 0;
  const auto load = [&](const FixUpFlags& of, int part) {
    if (part >= of.num_parts) return uint4{};
    return reinterpret_cast<const uint4*>(of.flags + int64_t(part) * of.padded_rows)[lane % kLanes];
  };
#pragma unroll 1
  for (int first = lane / kLanes; first < max(tile.flags_a.num_parts, tile.flags_b.num_parts);
       first += kAtOnce * kStep) {
    uint4 a[kAtOnce], b[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      a[i] = load(tile.flags_a, first + i * kStep);
      b[i] = load(tile.flags_b, first + i * kStep);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) any |= a[i].x | a[i].y | a[i].z | a[i].w | b[i].x | b[i].y | b[i].z | b[i].w;
  }
  return __any_sync(~0u, any != 0);
}

// Whether one of the parts flagged a row or column of a tile: the thread's own one of both together.
__device__ __forceinline__ bool is_flagged(const FixUpTile& tile) {
  const bool is_row = threadIdx.x < kSplitBlock;
  const uint8_t* flags = (is_row ? tile.flags_a.flags : tile.flags_b.flags) + threadIdx.x % kSplitBlock;
  const int num_parts = is_row ? tile.flags_a.num_parts : tile.flags_b.num_parts;
  const int64_t padded_rows = is_row ? tile.flags_a.padded_rows : tile.flags_b.padded_rows;
  uint32_t any = 0;
#pragma unroll 4
  for (int part = 0; part < num_parts; ++part) any |= flags[part * padded_rows];
  return any != 0;
}

// Shared memory of a block.
struct FixUpShared {
  float a[kFixK][kFixPitch], b[kFixK][kFixPitch];
  uint8_t flags[2 * kSplitBlock];  // of rows, of columns
};

// A tile by the block, 8 x 8 outputs a thread: 8 neighbouring rows, two times 4 neighbouring columns.
__device__ __forceinline__ void fix_tile(const FixUpArguments& args, FixUpShared& shared, int idx) {
  auto& [tile_a, tile_b, flags] = shared;
  static_assert(sizeof shared.a >= 8 * kFixThreads * sizeof(float), "the outputs pass through it");
  const FixUpTile tile(args, idx);
  const int first_row = tile.first_row, first_col = tile.first_col;
  flags[threadIdx.x] = !args.flags_a.flags || is_flagged(tile);
  __syncthreads();
  const GemmProblem p = gpu::item_of<true>(args.problem, tile.item);
  const int thread_row = threadIdx.x / 16 * 8, thread_col = threadIdx.x % 16 * 4;
  const auto col_of = [&](int j) { return thread_col + j / 4 * (kSplitBlock / 2) + j % 4; };
  bool has_work = false;
#pragma unroll
  for (int i = 0; i < 8; ++i) has_work |= flags[thread_row + i] | flags[kSplitBlock + col_of(i)];
  const FixUpSource a{static_cast<const float*>(p.a) + first_row * p.stride_am,
                      p.stride_am,
                      p.stride_ak,
                      int(p.m) - first_row,
                      int(p.k),
                      tiledmm::is_k_major(p.stride_am, p.stride_ak)};
  const FixUpSource b{static_cast<const float*>(p.b) + first_col * p.stride_bn,
                      p.stride_bn,
                      p.stride_bk,
                      int(p.n) - first_col,
                      int(p.k),
                      tiledmm::is_k_major(p.stride_bn, p.stride_bk)};
  float total[64], chain[64], next_a[kFixValues], next_b[kFixValues];
#pragma unroll
  for (int i = 0; i < 64; ++i) total[i] = -0.0f, chain[i] = 0;  // -0 adds nothing to any
  a.load(next_a, 0);
  b.load(next_b, 0);
#pragma unroll 1
  for (int k = 0; k < p.k; k += kFixK) {
    a.store(tile_a, next_a);
    b.store(tile_b, next_b);
    __syncthreads();
    a.load(next_a, k + kFixK);
    b.load(next_b, k + kFixK);
    if (has_work) {
#pragma unroll
      for (int step = 0; step < kFixK; ++step) {
        float frag_a[8], frag_b[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) frag_a[i] = tile_a[step][thread_row + i], frag_b[i] = tile_b[step][col_of(i)];
#pragma unroll
        for (int i = 0; i < 64; ++i) chain[i] = __fmaf_rn(frag_a[i / 8], frag_b[i % 8], chain[i]);
      }
      if ((k + kFixK) % args.chunk_k == 0 || k + kFixK >= p.k) {
#pragma unroll
        for (int i = 0; i < 64; ++i) total[i] += chain[i], chain[i] = 0;
      }
    }
    __syncthreads();
  }
  if (!has_work) return;
  if (p.k == 0) {
#pragma unroll
    for (int i = 0; i < 64; ++i) total[i] = 0;
  }
  // Row by row through shared memory: one copy of the epilogue's code. A thread reads what it wrote.
  float* slots = &tile_a[0][0] + threadIdx.x;
#pragma unroll 1
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) slots[j * kFixThreads] = total[j];
#pragma unroll 1
    for (int j = 0; j < 8; ++j) {
      if (flags[thread_row + i] | flags[kSplitBlock + col_of(j)])
        gpu::store_element<float>(p, first_row + thread_row + i, first_col + col_of(j), slots[j * kFixThreads]);
    }
    // All rows take their turn at the same place.
#pragma unroll
    for (int j = 0; j < 56; ++j) total[j] = total[j + 8];
  }
}

// A warp looks at one tile, and what it finds the block computes; neighbouring tiles are for different blocks.
__global__ void __launch_bounds__(kFixThreads, 1) fix_up(const __grid_constant__ FixUpArguments args) {
  constexpr int kWarps = kFixThreads / 32;
  __shared__ FixUpShared shared;
  __shared__ bool is_found[kWarps];
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  const int warp = threadIdx.x / 32, num_tiles = args.num_tiles;
#pragma unroll 1
  for (int64_t first = blockIdx.x; first < num_tiles; first += int64_t(kWarps) * gridDim.x) {
    const int64_t own = first + int64_t(warp) * gridDim.x;
    const bool has_work = own < num_tiles && (!args.flags_a.flags || has_flags(FixUpTile(args, int(own))));
    __syncthreads();  // what was found before is done
    is_found[warp] = has_work;
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < kWarps; ++i) {
      if (!is_found[i]) continue;
      fix_tile(args, shared, int(first + int64_t(i) * gridDim.x));
      __syncthreads();  // before the next tile takes the shared memory
    }
  }
}

}  // namespace
}  // namespace tiledmm::cuda

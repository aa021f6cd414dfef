// Where k has few chunks and C few tiles: each block of a cluster computes one chunk of the same tile. They read each
// other's sums ("Distributed Shared Memory" in the CUDA programming guide), each for its part of the tile, and add them
// in the order of the chunks.
#pragma once

#include "kernels/cuda/wgmma_epilogue.h"
#include "kernels/cuda/wgmma_multiply.h"

namespace tiledmm::cuda {
namespace {

constexpr int kSumsRow = 72;  // floats from one row to the next of a chunk's 64 x 64: without bank conflicts
constexpr int kSumsBytes = 64 * kSumsRow * 4;

__device__ __forceinline__ void store_sums(uint32_t smem, const float (&acc)[32], int row) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint32_t to = smem + ((row + 8 * h) * kSumsRow + threadIdx.x % 4 * 2) * 4;
#pragma unroll
    for (int j = 0; j < 8; ++j) store_shared_pair(to + j * 32, acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]);
  }
}

// Two neighbours of C.
template <class T>
__device__ __forceinline__ void store_pair(const Arguments& args, const Place& at, int row, int col, float2 sums) {
  if (row >= args.m || col >= args.n) return;
  const bool has_second = col + 1 < args.n;
  if (args.bias) {
    const T* bias = static_cast<const T*>(args.bias) + row * args.stride_bias_m + col * args.stride_bias_n;
    sums.x += to_float(bias[0]);
    if (has_second) sums.y += to_float(bias[args.stride_bias_n]);
  }
  if (args.activation == Activation::relu) {
    sums = make_float2(activate<Activation::relu>(sums.x), activate<Activation::relu>(sums.y));
  } else if (args.activation != Activation::none) {
#pragma unroll 1
    for (int i = 0; i < 2; ++i) sums = make_float2(sums.y, activate_slowly(sums.x, args.activation));
  }
  const uint32_t pair = pack_pair<T>(sums.x, sums.y);
  auto* to = static_cast<uint16_t*>(args.c) + at.batch_c * args.batch_step_c + row * args.ldc + col;
  if (args.stores_pairs) {
    *reinterpret_cast<uint32_t*>(to) = pair;
  } else {
    to[0] = uint16_t(pair);
    if (has_second) to[1] = uint16_t(pair >> 16);
  }
}

// 64 rows of a tile of 64 columns; `at` says which chunk is this block's, `rank` which block of the cluster it is.
template <class Cfg>
__device__ __forceinline__ void consume_shared_tile(const Arguments& args, const StageAddress& first_stage,
                                                    const Shared& shared, Ring<Cfg::kNumStages>& ring, int rank,
                                                    const Place& at) {
  static_assert(Cfg::kBlockM == 64 && Cfg::kBlockN == 64, "what store_sums stores");
  static_assert(kSumsBytes <= Cfg::kNumStages * Cfg::kStageBytes, "in place of stages");
  const int thread = threadIdx.x;
  Accumulators<Cfg> acc;
  forget_registers(acc.c);
  multiply_chunk<Cfg, Cfg, false>(acc, first_stage, shared, ring, at.num_k_tiles);
  named_barrier_sync(1, kWarpgroup);  // all warps have read the stages, and all that was copied has arrived
  store_sums(shared.stages, acc.c, thread / 32 * 16 + thread % 32 / 4);
  cluster_sync();
  for (int unit = rank * kWarpgroup + thread; unit < 64 * 16; unit += args.cluster * kWarpgroup) {
    const int row = unit / 16, col = unit % 16 * 4;
    const uint32_t place = shared.stages + (row * kSumsRow + col) * 4;
    float4 sums[kMaxCluster];
#pragma unroll
    for (int i = 0; i < kMaxCluster; ++i) {
      if (i < args.cluster) sums[i] = load_shared_cluster_vector(map_shared_cluster(place, i));
    }
    float4 total = sums[0];
#pragma unroll
    for (int i = 1; i < kMaxCluster; ++i) {
      if (i < args.cluster)
        total = make_float4(total.x + sums[i].x, total.y + sums[i].y, total.z + sums[i].z, total.w + sums[i].w);
    }
#pragma unroll 1
    for (int half = 0; half < 2; ++half)
      store_pair<typename Cfg::T>(args, at, at.row + row, at.col + col + 2 * half,
                                  half == 0 ? make_float2(total.x, total.y) : make_float2(total.z, total.w));
  }
  cluster_sync();  // others have read this block's sums
}

}  // namespace
}  // namespace tiledmm::cuda

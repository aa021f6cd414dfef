// Where C has few tiles and k few chunks: each block of a cluster computes one chunk of the same tile. They read each
// other's sums ("Distributed Shared Memory" in the CUDA programming guide), each for its part of the tile, and add them
// in the order of the chunks.
#pragma once

#include "kernels/cuda/shared/epilogue.h"
#include "kernels/cuda/shared/tiles.h"
#include "kernels/cuda/wgmma/multiply.h"
#include "kernels/cuda/wgmma/plan.h"
#include "kernels/cuda/wgmma/produce.h"

namespace tiledmm::cuda {
namespace {

// Sums of a tile are exchanged in units of what a thread holds of eight columns: two neighbours in each of two rows.
template <class Cfg>
inline constexpr int kNumUnits = Cfg::kBlockN / 8 * kWarpgroup;

// Two neighbours of C.
template <class Cfg>
__device__ __forceinline__ void store_pair(const Arguments& args, const Place& at, int row, int col, float2 sums) {
  if (row >= args.m || col >= args.n) return;
  using T = typename Cfg::T;
  using C = typename Cfg::C;
  const bool has_second = col + 1 < args.n;
  if (args.is_blended) {
    const BiasPointer<Cfg> bias = args.bias ? bias_of_item<Cfg>(args, at.slab / args.num_splits) : nullptr;
    sums = make_float2(blended<Cfg>(args, bias, row, col, sums.x), blended<Cfg>(args, bias, row, col + 1, sums.y));
  } else if (args.bias) {
    const BiasPointer<Cfg> bias = bias_at<Cfg>(args, static_cast<BiasPointer<Cfg>>(args.bias),
                                               row * args.stride_bias_m + col * args.stride_bias_n);
    sums.x += to_float(bias_element<Cfg>(args, bias, 0));
    if (has_second) sums.y += to_float(bias_element<Cfg>(args, bias, args.stride_bias_n));
  }
  if (args.activation != Activation::none) {
#pragma unroll 1
    for (int i = 0; i < 2; ++i) sums = make_float2(sums.y, gpu::activated<C>(args.activation, sums.x));
  }
  if constexpr (sizeof(C) == 4) {
    auto* to = static_cast<float*>(args.c) + at.batch_c * args.batch_step_c + row * args.ldc + col;
    if (args.stores_pairs) {
      *reinterpret_cast<float2*>(to) = sums;
    } else {
      to[0] = sums.x;
      if (has_second) to[1] = sums.y;
    }
  } else {
    const uint32_t pair = pack_pair<T>(sums.x, sums.y);
    auto* to = static_cast<uint16_t*>(args.c) + at.batch_c * args.batch_step_c + row * args.ldc + col;
    if (args.stores_pairs) {
      *reinterpret_cast<uint32_t*>(to) = pair;
    } else {
      to[0] = uint16_t(pair);
      if (has_second) to[1] = uint16_t(pair >> 16);
    }
  }
}

// What the blocks have of a tile, in `acc`, to C, by each a part.
template <class Cfg>
__device__ __forceinline__ void finish_shared_tile(const float (&acc)[Cfg::kAcc], const Arguments& args,
                                                   const Shared& shared, const Place& at, int rank) {
  const int thread = threadIdx.x;
#pragma unroll
  for (int j = 0; j < Cfg::kBlockN / 8; ++j)
    store_shared_vector(shared.stages + (j * kWarpgroup + thread) * 16,
                        make_uint4(__float_as_uint(acc[4 * j]), __float_as_uint(acc[4 * j + 1]),
                                   __float_as_uint(acc[4 * j + 2]), __float_as_uint(acc[4 * j + 3])));
  cluster_sync();
  for (int unit = rank * kWarpgroup + thread; unit < kNumUnits<Cfg>; unit += args.num_splits * kWarpgroup) {
    float4 sums[kMaxCluster];
#pragma unroll
    for (int i = 0; i < kMaxCluster; ++i) {
      if (i < args.num_splits) sums[i] = load_shared_cluster_vector(map_shared_cluster(shared.stages + unit * 16, i));
    }
    const float4 total = sum_of(sums, args.num_splits);
    const int row = at.row + thread / 32 * 16 + thread % 32 / 4, col = at.col + unit / kWarpgroup * 8 + thread % 4 * 2;
#pragma unroll 1
    for (int half = 0; half < 2; ++half)
      store_pair<Cfg>(args, at, row + 8 * half, col,
                      half == 0 ? make_float2(total.x, total.y) : make_float2(total.z, total.w));
  }
  cluster_sync();  // others have read this block's sums
}

// The grid: tiles, and blocks of a cluster.
template <class Cfg>
__global__ void __launch_bounds__(Cfg::kThreads, 1)
    wgmma_shared_kernel(const __grid_constant__ CUtensorMap map_a,
                        const __grid_constant__ BoxMaps<typename Cfg::LoaderB> map_b,
                        const __grid_constant__ Arguments args) {
  static_assert(Cfg::kBlockM == 64 && !Cfg::kIsTf32, "one consumer, 16 bits");
  static_assert(kNumUnits<Cfg> * 16 <= Cfg::kNumStages * Cfg::kStageBytes, "sums in the place of stages");
  constexpr int kProducerWarp = 4;
  extern __shared__ char dynamic_smem[];
  Shared shared{};
  shared.stages = (smem_address(dynamic_smem) + 1023) & ~1023u;  // the patterns of the swizzle count from there
  shared.stage_bytes = Cfg::kStageBytes;
  shared.full = shared.stages + Cfg::kNumStages * Cfg::kStageBytes;
  shared.empty = shared.full + Cfg::kNumStages * 8;
  const int warp = threadIdx.x / 32;
  if (warp == kProducerWarp && elect_sync()) {
    set_up_producer<Cfg>(&map_a, map_b.maps, shared);
    if (args.start == Start::by_grid) start_tile<Cfg>(&map_a, map_b.maps, args, shared, place_by_grid<Cfg>(args));
  }
  if (threadIdx.x == 0) {
#pragma unroll
    for (int stage = 0; stage < Cfg::kNumStages; ++stage) mbarrier_init(shared.empty + stage * 8, 4);
    fence_mbarrier_init();
  }
  __syncthreads();
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  const Place at = place_of<Cfg>({int(blockIdx.x), int(blockIdx.y), int(blockIdx.z)}, args);
  const int rank = args.num_batch_dims > 0 ? blockIdx.z % args.num_splits : blockIdx.z;
  Ring<Cfg::kNumStages> ring;
  if (warp < kProducerWarp) {
    Accumulators<Cfg> acc;
    forget_registers(acc.c);
    multiply_chunk<Cfg, Cfg, false>(acc, first_stage_of<Cfg>(shared, 0), shared, ring, at.num_k_tiles);
    named_barrier_sync(1, kWarpgroup);  // all warps have read the stages, and all that was copied has arrived
    finish_shared_tile<Cfg>(acc.c, args, shared, at, rank);
  } else if (elect_sync()) {
    produce_tile<Cfg, Cfg>(&map_a, map_b.maps, args, shared, ring, at, args.start == Start::by_grid);
  }
}

}  // namespace
}  // namespace tiledmm::cuda

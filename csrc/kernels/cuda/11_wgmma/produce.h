// The producer's part of the wgmma kernels: the copies that fill the ring of stages.
#pragma once

#include "kernels/cuda/11_wgmma/multiply.h"
#include "kernels/cuda/shared/boxes.h"
#include "kernels/cuda/shared/epilogue.h"

namespace tiledmm::cuda {
namespace {

template <class Cfg, bool MAY_CLUSTER>
__device__ __forceinline__ void load_block_tile(uint32_t smem_a, const CUtensorMap* map_a, const CUtensorMap* map_b,
                                                const Arguments& args, const Place& at, int k, uint32_t barrier) {
  using A = typename Cfg::LoaderA;
  using B = typename Cfg::LoaderB;
  const uint32_t smem_b = smem_a + Cfg::kABytes;
  constexpr bool kMayCluster = MAY_CLUSTER && Cfg::kClusters;
  const ClusterRank rank = kMayCluster ? cluster_rank<Cfg>(args) : ClusterRank{0, 0};
  if (kMayCluster && args.cluster_n)  // for all that have the same rows of C
    A::template load<true>(smem_a, map_a, args.a, at.row, k, at.batch_a, barrier, rank.n, args.cluster_n,
                           args.same_rows << rank.m);
  else
    A::template load<false>(smem_a, map_a, args.a, at.row, k, at.batch_a, barrier);
  if (kMayCluster && args.cluster_m)  // for all that have the same columns
    B::template load<true>(smem_b, map_b, args.b, at.col, k, at.batch_b, barrier, rank.m, args.cluster_m,
                           args.same_cols << (rank.n << args.cluster_m));
  else
    B::template load<false>(smem_b, map_b, args.b, at.col, k, at.batch_b, barrier);
}

// By the producer's thread: the tensor maps, of which B may have two, are on their way, and the barriers that it
// signals itself are set up.
template <class Cfg>
__device__ __forceinline__ void set_up_producer(const CUtensorMap* map_a, const CUtensorMap* map_b,
                                                const Shared& shared) {
  prefetch_tensormap(map_a);
#pragma unroll
  for (int i = 0; i < Cfg::LoaderB::kNumMaps; ++i) prefetch_tensormap(map_b + i);
#pragma unroll
  for (int stage = 0; stage < Cfg::kNumStages; ++stage) mbarrier_init(shared.full + stage * 8, 1);
  fence_mbarrier_init();
}

// The copies of a free stage.
template <class Cfg, class Piece, bool MAY_CLUSTER = true>
__device__ __forceinline__ void load_stage(const CUtensorMap* map_a, const CUtensorMap* map_b, const Arguments& args,
                                           const Shared& shared, Ring<Cfg::kNumStages>& ring, const Place& at,
                                           int k_tile) {
  const uint32_t barrier = shared.full + ring.stage * 8;
  mbarrier_arrive_expect_tx(barrier, Piece::kBlockN == Cfg::kBlockN ? args.stage_bytes : args.half_stage_bytes);
#pragma unroll
  for (int i = 0; i < Cfg::kTilesOfStage; ++i)
    load_block_tile<Piece, MAY_CLUSTER>(shared.stages + ring.stage * Cfg::kStageBytes + i * Cfg::kTileBytes, map_a,
                                        map_b, args, at, (at.first_k_tile + k_tile + i) * Cfg::kBlockK, barrier);
  ring.advance();
}

// Stages of the ring that the k tiles of a block's first tile fill.
template <class Cfg>
__device__ __forceinline__ int num_first_stages(const Place& at) {
  return min((at.num_k_tiles + Cfg::kTilesOfStage - 1) / Cfg::kTilesOfStage, Cfg::kNumStages);
}

// Fills the ring with the block's first tile. By one thread, that of produce_tile.
template <class Cfg, bool MAY_CLUSTER>
__device__ __forceinline__ void start_tile(const CUtensorMap* map_a, const CUtensorMap* map_b, const Arguments& args,
                                           const Shared& shared, const Place& at) {
  griddepcontrol_wait();
  Ring<Cfg::kNumStages> ring;
  const int num_stages = num_first_stages<Cfg>(at);
#pragma unroll 1
  for (int stage = 0; stage < num_stages; ++stage)
    load_stage<Cfg, Cfg, MAY_CLUSTER>(map_a, map_b, args, shared, ring, at, stage * Cfg::kTilesOfStage);
}

// One thread keeps the ring full. is_started: start_tile has filled it.
template <class Cfg, class Piece>
__device__ __forceinline__ void produce_tile(const CUtensorMap* map_a, const CUtensorMap* map_b, const Arguments& args,
                                             const Shared& shared, Ring<Cfg::kNumStages>& ring, const Place& at,
                                             bool is_started = false) {
  int k_tile = 0;
  if (is_started) {
    const int num_stages = num_first_stages<Cfg>(at);
    k_tile = num_stages * Cfg::kTilesOfStage;
    ring.stage = num_stages == Cfg::kNumStages ? 0 : num_stages;
    ring.phase = num_stages == Cfg::kNumStages;
  }
  for (; k_tile < at.num_k_tiles; k_tile += Cfg::kTilesOfStage) {
    // The phase before the first counts as complete.
    mbarrier_wait_parity(shared.empty + ring.stage * 8, ring.phase ^ 1);
    load_stage<Cfg, Piece>(map_a, map_b, args, shared, ring, at, k_tile);
  }
}

}  // namespace
}  // namespace tiledmm::cuda

// The producer's part of the wgmma kernels: the copies that fill the ring of stages.
#pragma once

#include "kernels/cuda/shared/arguments.h"
#include "kernels/cuda/shared/boxes.h"
#include "kernels/cuda/wgmma/multiply.h"

namespace tiledmm::cuda {
namespace {

// SHARES: blocks of a cluster fetch parts for each other, else each fetches all of its own.
template <class Cfg, bool SHARES>
__device__ __forceinline__ void load_block_tile(uint32_t smem_a, const CUtensorMap* map_a, const CUtensorMap* map_b,
                                                const Arguments& args, const Place& at, int k, uint32_t barrier) {
  using A = typename Cfg::LoaderA;
  using B = typename Cfg::LoaderB;
  const uint32_t smem_b = smem_a + Cfg::kABytes;
  const auto load_a = [&](int part) {
    A::template load<false>(smem_a, map_a, args.a, at.row, k, at.batch_a, barrier, part, args.cluster_n);
  };
  const auto load_b = [&](int part) {
    B::template load<false>(smem_b, map_b, args.b, at.col, k, at.batch_b, barrier, part, args.cluster_m);
  };
  if constexpr (!SHARES || !Cfg::kClusters) {
#pragma unroll 1
    for (int part = 0; part < (Cfg::kClusters ? 1 << args.cluster_n : 1); ++part) load_a(part);
#pragma unroll 1
    for (int part = 0; part < (Cfg::kClusters ? 1 << args.cluster_m : 1); ++part) load_b(part);
  } else {
    const ClusterRank rank = cluster_rank<Cfg>(args);
    if (args.cluster_n)  // for all that have the same rows of C
      A::template load<true>(smem_a, map_a, args.a, at.row, k, at.batch_a, barrier, rank.n, args.cluster_n,
                             args.same_rows << rank.m);
    else
      load_a(0);
    if (args.cluster_m)  // for all that have the same columns
      B::template load<true>(smem_b, map_b, args.b, at.col, k, at.batch_b, barrier, rank.m, args.cluster_m,
                             args.same_cols << (rank.n << args.cluster_m));
    else
      load_b(0);
  }
}

// Stages of the ring: fewer than the kernel has where blocks share a multiprocessor.
template <class Cfg>
__device__ __forceinline__ int num_stages(const Arguments& args) {
  return Cfg::kMostBlocks > 1 ? args.num_stages : Cfg::kNumStages;
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
template <class Cfg, class Piece, bool SHARES>
__device__ __forceinline__ void load_stage(const CUtensorMap* map_a, const CUtensorMap* map_b, const Arguments& args,
                                           const Shared& shared, Ring<Cfg::kNumStages>& ring, const Place& at,
                                           int k_tile) {
  const uint32_t barrier = shared.full + ring.stage * 8;
  const int num_tiles = tiles_of_stage<Cfg>(k_tile, at.num_k_tiles);
  mbarrier_arrive_expect_tx(barrier,
                            num_tiles * (Piece::kBlockN == Cfg::kBlockN ? args.tile_bytes : args.half_tile_bytes));
#pragma unroll
  for (int i = 0; i < Cfg::kTilesOfStage; ++i) {
    if (i == num_tiles) break;
    load_block_tile<Piece, SHARES>(shared.stages + ring.stage * shared.stage_bytes + i * Cfg::kTileBytes, map_a, map_b,
                                   args, at, (at.first_k_tile + k_tile + i) * Cfg::kBlockK, barrier);
  }
  ring.advance();
}

// Until the ring is full for the first time, so many stages are on their way: more of them, of all blocks at the same
// time, delay the first one.
constexpr int kFirstStages = 6;
// So many of them a block of a cluster fetches by itself, while the others' barriers are set up. More of what clusters
// are to share is fetched several times.
constexpr int kOwnStages = 2;

// Stages that a block's first tile fills before the block is set up.
template <class Cfg>
__device__ __forceinline__ int num_first_stages(const Arguments& args, const Place& at) {
  const bool in_cluster = Cfg::kClusters && args.cluster_m + args.cluster_n > 0;
  return min((at.num_k_tiles + Cfg::kTilesOfStage - 1) / Cfg::kTilesOfStage,
             in_cluster ? kOwnStages : min(kFirstStages, num_stages<Cfg>(args)));
}

// Fills stages of the ring with the block's first tile. By one thread, that of produce_tile. It waits for no other
// block, so that those of a cluster do not share these copies.
template <class Cfg>
__device__ __forceinline__ void start_tile(const CUtensorMap* map_a, const CUtensorMap* map_b, const Arguments& args,
                                           const Shared& shared, const Place& at) {
  griddepcontrol_wait();
  Ring<Cfg::kNumStages> ring;
  const int num_first = num_first_stages<Cfg>(args, at);
#pragma unroll 1
  for (int stage = 0; stage < num_first; ++stage)
    load_stage<Cfg, Cfg, false>(map_a, map_b, args, shared, ring, at, stage * Cfg::kTilesOfStage);
}

// One thread keeps the ring full. is_started: start_tile has begun to fill it.
template <class Cfg, class Piece>
__device__ __forceinline__ void produce_tile(const CUtensorMap* map_a, const CUtensorMap* map_b, const Arguments& args,
                                             const Shared& shared, Ring<Cfg::kNumStages>& ring, const Place& at,
                                             bool is_started = false) {
  int k_tile = 0;
  if (is_started) {
    const int num_first = num_first_stages<Cfg>(args, at);
    k_tile = num_first * Cfg::kTilesOfStage;
    ring.stage = num_first == ring.num_stages ? 0 : num_first;
    ring.phase = num_first == ring.num_stages;
  }
  for (; k_tile < at.num_k_tiles; k_tile += Cfg::kTilesOfStage) {
    // The phase before the first counts as complete.
    mbarrier_wait_parity(shared.empty + ring.stage * 8, ring.phase ^ 1);
    // Few stages are on their way at first.
    if (is_started && ring.stage >= kFirstStages && k_tile < ring.num_stages * Cfg::kTilesOfStage)
      mbarrier_wait_parity(shared.full + (ring.stage - kFirstStages) * 8, 0);
    load_stage<Cfg, Piece, true>(map_a, map_b, args, shared, ring, at, k_tile);
  }
}

}  // namespace
}  // namespace tiledmm::cuda

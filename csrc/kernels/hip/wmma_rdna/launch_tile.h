// The instances of the wmma_rdna kernel by dtype, which compile side by side: kernel.h defines the template, and each
// wmma_*.cu instantiates it for one of them.
#pragma once

#include "core/summation.h"
#include "kernels/hip/wmma_rdna/plan.h"
#include "platform/chunk_sums.h"

namespace tiledmm::gpu {

// The kernel's first parameter.
struct WmmaWork {
  int32_t tiles_m, tiles_n;
  int64_t num_splits;  // blocks that share out the k of a tile
  int64_t part_k;      // what each of them sums
  int64_t chunk_k;
  float* partials;  // as ChunkSums has them, null where a block computes all of k
};

// Which tile a block computes: groups of rows of tiles, so that those in flight share operands in the cache.
struct WmmaPlace {
  int32_t tile_m, tile_n;
  int64_t split;

  TILEDMM_DEVICE WmmaPlace(const WmmaWork& work, int64_t block) {
    constexpr int kGroup = 8;
    const auto idx = uint32_t(block), tiles = uint32_t(work.tiles_m) * uint32_t(work.tiles_n);
    split = idx / tiles;
    const uint32_t within = idx % tiles, group_tiles = kGroup * uint32_t(work.tiles_n), group = within / group_tiles;
    const auto rows = uint32_t(min_of(work.tiles_m - int64_t(group) * kGroup, kGroup));
    tile_m = int32_t(group * kGroup + within % group_tiles % rows);
    tile_n = int32_t(within % group_tiles / rows);
  }
};

template <class T>
Status launch_wmma_tile(const FoldedProblem& problem, const WmmaPlan& plan, const WmmaWork& work,
                        const Executor& executor);

}  // namespace tiledmm::gpu

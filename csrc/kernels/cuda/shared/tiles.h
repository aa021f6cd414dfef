// Which tiles of C a block of the wgmma kernels computes, and where they lie.
#pragma once

#include "kernels/cuda/shared/arguments.h"

namespace tiledmm::cuda {
namespace {

// A tile's row and column among the tiles, or those of its cluster; `slab` counts items of the batch and chunks of k.
struct TileIndex {
  int row, col, slab;
};

// The place in C of a block's tile, or of the block's own among those of its cluster.
template <class Cfg>
__device__ __forceinline__ Place place_in_c(int row, int col, const Arguments& args) {
  const ClusterRank rank = cluster_rank<Cfg>(args);
  Place at{};
  at.row = ((Cfg::kClusters ? row << args.cluster_m : row) + rank.m) * Cfg::kBlockM;
  at.col = ((Cfg::kClusters ? col << args.cluster_n : col) + rank.n) * Cfg::kBlockN;
  at.row = min(at.row, args.last_row);
  at.col = min(at.col, args.last_col);
  return at;
}

// Where a tile that begins at `start` would begin if tiles began at multiples of their size alone; 0 to 2^30.
template <int BLOCK>
__device__ __forceinline__ int nominal_start(int start) {
  return int((uint32_t(start) + BLOCK - 1) / BLOCK * BLOCK);
}

template <class Cfg>
__device__ __forceinline__ Place place_of(const TileIndex& tile, const Arguments& args) {
  Place at = place_in_c<Cfg>(tile.row, tile.col, args);
  at.slab = tile.slab;
  at.num_k_tiles = args.num_k_tiles;
  int item = at.slab;
  if (!Cfg::kIsPlain && args.num_splits > 1) {
    item = at.slab / args.num_splits;
    at.first_k_tile = (at.slab - item * args.num_splits) * args.chunk_tiles;
    at.num_k_tiles = min(args.num_k_tiles - at.first_k_tile, args.chunk_tiles);
  }
#pragma unroll 1
  for (int d = args.num_batch_dims - 1; d >= 0; --d) {
    const BatchSteps& dim = args.batch[d];
    const int rest = d == 0 ? 0 : item / dim.size, idx = item - rest * dim.size;
    item = rest;
    at.batch_a += idx * dim.a;
    at.batch_b += idx * dim.b;
    at.batch_c += idx * dim.c;
  }
  return at;
}

// Number `index`: item by item of the batch, chunk by chunk of k, then tiles in groups.
__device__ __forceinline__ TileIndex tile_of(int index, const Arguments& args) {
  const int slab = args.tiles_of_item.quotient(index);
  const TileGroups::Tile tile = args.groups.tile(index - slab * args.tiles_of_item.value);
  return {tile.row, tile.col, slab};
}

// Where the grid has a block for each tile: what place_of says of it to the producer, without a division and from one
// line of the constants' cache.
template <class Cfg>
__device__ __forceinline__ Place place_by_grid(const Arguments& args) {
  const int log_cluster = Cfg::kClusters ? args.cluster_m + args.cluster_n : 0;
  Place at = place_in_c<Cfg>(int(blockIdx.x) >> log_cluster, int(blockIdx.y), args);
  at.num_k_tiles = args.num_k_tiles;
  at.batch_a = args.slabs_step_a ? blockIdx.z : 0;
  at.batch_b = args.slabs_step_b ? blockIdx.z : 0;
  if (Cfg::kIsPlain) return at;
  at.first_k_tile = blockIdx.z * args.slabs_step_k;
  at.num_k_tiles = min(args.num_k_tiles - at.first_k_tile, args.most_k_tiles);
  return at;
}

// The number of a block among the tiles of one wave. Kernels that sum rows have grids of one dimension.
template <class Cfg>
__device__ __forceinline__ int block_index() {
  return Cfg::kSumsRows ? blockIdx.x : blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}
template <class Cfg>
__device__ __forceinline__ int num_blocks() {
  return Cfg::kSumsRows ? gridDim.x : gridDim.x * gridDim.y * gridDim.z;
}

// Some tiles of a block: of which columns of C.
enum class Columns { all, first, others };

// The tiles of one block from `first` on, in halves if Piece is half as wide as Cfg.
template <class Cfg, class Piece, Columns COLUMNS = Columns::all, class Function>
__device__ __forceinline__ void for_each_piece(const Arguments& args, int first, int end, const Function& function) {
  constexpr int kPieces = Cfg::kBlockN / Piece::kBlockN;
  const int shift = Cfg::kClusters ? args.cluster_m + args.cluster_n : 0;
  const int step = num_blocks<Cfg>() >> shift;
  for (int i = block_index<Cfg>() >> shift; i < (end - first) * kPieces; i += step) {
    Place at = place_of<Cfg>(tile_of(first + i / kPieces, args), args);
    at.col += i % kPieces * Piece::kBlockN;
    if (COLUMNS == Columns::all || (at.col == 0) == (COLUMNS == Columns::first)) function(at);
  }
}

}  // namespace
}  // namespace tiledmm::cuda

// What the wgmma kernels get from their launchers, and what their parts tell each other: the arguments, the place of a
// tile, a block's rank in its cluster.
#pragma once

#include "core/problem.h"
#include "kernels/cuda/shared/boxes.h"
#include "kernels/cuda/shared/ptx_sm90.h"
#include "kernels/cuda/shared/ring.h"
#include "kernels/cuda/shared/tile_groups.h"
#include "kernels/cuda/shared/tile_order.h"
#include "platform/epilogue.h"

namespace tiledmm::cuda {
namespace {

constexpr int kWarpgroup = 128;      // threads
constexpr int kNumStoreBuffers = 2;  // of a consumer: one fills while the other is stored
// Three consumers leave room for one each beside four stages.
constexpr int num_store_buffers(int num_consumers) { return num_consumers == 3 ? 1 : kNumStoreBuffers; }

using gpu::Divisor;
using gpu::TileGroups;

// The elements of a C of 16 bits whose dtype the arguments say: kernels of operands in 8 bits serve both.
struct AnyShort {
  uint16_t bits;
};

// A dimension of the batch, its strides in steps of the operands' tensor maps.
struct BatchSteps {
  int size, a, b;
  int64_t c, bias;  // bias: elements
};

struct Arguments {
  // In the order of use: a line of the constants' cache takes 0.1 us to arrive. The first one is all that `by_grid`
  // needs.
  Start start;
  bool slabs_step_a, slabs_step_b;  // whether the grid's third dimension is one of A's batch, of B's
  // Logarithms of the cluster's blocks along m, which fetch B for each other, and along n, which fetch A.
  uint8_t cluster_m, cluster_n;
  uint8_t num_stages;                   // of the ring
  int slabs_step_k, most_k_tiles;       // k tiles from one chunk to the next, or 0; of a tile
  int num_k_tiles, last_row, last_col;  // of C: where tiles begin at the latest
  int tile_bytes;                       // that arrive for a k tile
  Boxes a, b;
  int half_tile_bytes;  // likewise, for a tile of half the width
  int num_splits;       // 1, or the number of chunks: each is computed by itself, to `partial` or for the cluster
  int num_batch_dims;
  uint32_t same_rows, same_cols;    // the cluster's blocks that have the rows, the columns of its first
  int full_tiles;                   // so many are computed whole, the others in halves along n
  int tiles_m, tiles_n, num_tiles;  // of single blocks or of clusters; num_tiles: of the whole batch, each as often as
                                    // num_splits says
  TileGroups groups;
  Divisor tiles_of_item;
  int chunk_tiles;  // k tiles of a chunk
  int m, n;
  Activation activation;
  bool stores_by_tma;  // C consists of whole, aligned units of 16 bytes, as the copy engine stores it
  bool is_exchanged;   // C is stored transposed, by the copy engine
  bool stores_pairs;   // where not by the copy engine: rows of C consist of whole, aligned words of two elements
  bool is_blended;     // C has alpha * sums + beta * bias, else sums and a vector of bias
  float alpha, beta;
  bool is_bias_f32;  // where C has fp32 and operands 16 bits; else it has C's dtype
  const void* bias;
  int64_t stride_bias_m, stride_bias_n;
  void* c;
  int64_t ldc, batch_step_c;
  void* row_sums;
  float* partial;
  int64_t ld_partial;
  Scales scale_a, scale_b;
  bool is_c_f16;  // a C of AnyShort
  BatchSteps batch[kMaxGpuBatchDims];
};

static_assert(offsetof(Arguments, b) + sizeof(Boxes) <= 64, "what by_grid needs is one line of the constants' cache");

// What follows the sums.
inline void set_epilogue(Arguments& args, const FoldedProblem& problem) {
  const GemmProblem& p = problem.gemm;
  args.activation = p.activation;
  args.is_blended = is_blended(problem);
  args.alpha = float(p.alpha), args.beta = float(p.beta);
  args.bias = p.bias;
  args.is_bias_f32 = p.dtype_bias == DType::f32;
  args.stride_bias_m = p.stride_bias_m;
  args.stride_bias_n = p.stride_bias_n;
  args.scale_a = p.scale_a, args.scale_b = p.scale_b;
  args.is_c_f16 = p.dtype_c == DType::f16;
}

// Where a tile lies: in C, in the batch (third coordinates in the tensor maps), in k.
struct Place {
  int row, col;
  int batch_a, batch_b;
  int64_t batch_c;
  int64_t from_c;  // elements from C to what is stored: 0, or a sum that is kept beside it
  int slab;        // of `partial`: item and chunk
  int first_k_tile, num_k_tiles;
  int scales_b;  // elements before the factors of the B of its group
};

// Which one of its cluster a block is along m, along n; both 0 where there is none.
struct ClusterRank {
  int m, n;
};

template <class Cfg>
__device__ __forceinline__ ClusterRank cluster_rank(const Arguments& args) {
  if (!Cfg::kClusters) return {0, 0};
  return {int(blockIdx.x) & ((1 << args.cluster_m) - 1),
          int(blockIdx.x) >> args.cluster_m & ((1 << args.cluster_n) - 1)};
}

// A warp has read a stage: it is free for the copies of this block, and of those that share an operand with it.
template <class Cfg, class Shared>
__device__ __forceinline__ void release_stage(const Shared& shared, int stage) {
  const uint32_t barrier = shared.empty + stage * 8;
  const int lane = threadIdx.x % 32;
  if (Cfg::kClusters && shared.in_cluster) {
    if (shared.releases) mbarrier_arrive_cluster(shared.releases + stage * 8);
  } else if (lane == 0) {
    mbarrier_arrive(barrier);
  }
}

// Until all stages are free. A block of a cluster may exit then: no other one signals it any more. An arrival from
// another multiprocessor takes long where all of them write at memory's rate.
template <class Shared, int NUM_STAGES>
__device__ __forceinline__ void wait_for_releases(const Shared& shared, Ring<NUM_STAGES> ring) {
#pragma unroll 1
  for (int i = 0; i < ring.num_stages; ++i) {
    mbarrier_wait_parity(shared.empty + ring.stage * 8, ring.phase ^ 1);
    ring.advance();
  }
}

}  // namespace
}  // namespace tiledmm::cuda

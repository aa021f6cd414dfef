// wgmma_split: Hopper (sm_90a), fp32 by products in fp16 with fp32 sums.
//
// Beyond wgmma: fp32 operands, which the matrix unit rounds to tf32, are taken apart first (operands.h), and multiplied
// as first * first + 2^-11 (second * first + first * second); what is left out is 2^-22 of a product at most. An
// operand of 16 bits beside one of fp32 has no second term, so two products are all. The unit truncates as it sums, so
// no sum of main products is longer than 16 of k: fp32 instructions add these to the chunk's, while the unit works on
// corrections, which it sums over the whole chunk of 512. At the chunk's end corrections are added, times 2^-11, and
// all of it, scaled, to the total in shared memory. Terms and sums of a chunk have one scale, so nothing is scaled on
// the way. Pairs of blocks fetch half of B each for both. Rows and columns that were flagged are computed again by a
// third kernel (fix_up.h). Few rows have a kernel of their own (few_rows.h).
//
// Sources: Ootomo and Yokota, Recovering single precision accuracy from Tensor Cores while surpassing the FP32
// theoretical peak performance (arXiv 2203.03341): the terms, the sums outside of the matrix unit.
#pragma once

#include "kernels/cuda/shared/boxes.h"
#include "kernels/cuda/shared/epilogue.h"
#include "kernels/cuda/shared/ptx_sm90.h"
#include "kernels/cuda/shared/ring.h"
#include "kernels/cuda/shared/tiles.h"
#include "kernels/cuda/wgmma_split/plan.h"
#include "kernels/cuda/wgmma_split/scale_chunk.h"

namespace tiledmm::cuda {
namespace {

// What the functions of shared/ ask of a tile, and the layout of shared memory.
struct SplitConfig {
  using T = float;
  using C = float;
  static constexpr int kBlockM = kSplitBlock, kBlockN = kSplitBlock, kBlockK = kSplitBlockK;
  static constexpr bool kClusters = true, kSumsRows = false, kIsPlain = false;
  static constexpr bool kAIsMMajor = false, kBIsNMajor = false;  // of the terms
  using Loader = BoxLoader<__half, kSplitBlock, kSplitBlock, true>;
  using LoaderB = Loader;
  static constexpr int kConsumers = 2;
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
  static_assert(kProducerRegisters + 2 * kConsumerRegisters == 3 * 168, "setmaxnreg: what the block starts with");
  static constexpr int kAcc = kBlockN / 2;
  static constexpr int kRowStep = 8;  // between the two rows of a thread's accumulators
  // A block of k takes two stages: first terms of A and of B, second ones.
  static constexpr int kNumStages = 5;
  static constexpr int kTermBytes = kSplitBlock * kBlockK * 2;
  static constexpr int kStageBytes = 2 * kTermBytes;
  // The total of a consumer's sums. Bias and activation go through it when it is read. All warps have read these when
  // the first one writes a total again: that is at the end of a whole chunk, and no warp is further ahead than a ring.
  static constexpr int kTotalBytes = kAcc * kWarpgroup * 4, kStoreBytes = kTotalBytes / kNumStoreBuffers;
  static constexpr int kSmem = 1024 + kNumStages * kStageBytes + kConsumers * kTotalBytes + 2 * kNumStages * 8;
  static_assert(kSmem <= 232448 && kNumStages < 2 * kSplitChunkK / kBlockK, "of one block on sm_90; see above");
  static constexpr uint64_t kDesc = matrix_descriptor(Swizzle::bytes_128, 0, 1024);
  static constexpr uint32_t kStep = 2;  // Terms of the next 16 of k lie so far behind, as matrix_address counts.
};

// How many terms the operands have.
template <int TERMS_A, int TERMS_B>
struct SplitTerms : SplitConfig {
  static constexpr int kTermsA = TERMS_A, kTermsB = TERMS_B, kCorrections = TERMS_A + TERMS_B - 2;
  static_assert(kCorrections > 0);
};

struct SplitArguments {
  Arguments tiles;  // but for the strides of C; the steps of the batch are items of the terms
  const float *scales_a, *scales_b;
  int num_chunks, padded_m, padded_n;
  int whole_tiles, num_units;  // as SplitPlan has them
  float* sums;                 // of chunks: [tile behind the whole ones][block of a pair][chunk][128][128]
  int64_t stride_cm, stride_cn;
};

// Number `idx` of the units of work: a tile, or a chunk of k of one. The `slab` of a chunk says which sums are
// its own, that of a tile is -1 - item.
__device__ __forceinline__ Place place_of_unit(const SplitArguments& args, int idx) {
  using Cfg = SplitConfig;
  const int part = idx - args.whole_tiles, tile = part / args.num_chunks, chunk = part - tile * args.num_chunks;
  Place at = place_of<Cfg>(tile_of(part < 0 ? idx : args.whole_tiles + tile, args.tiles), args.tiles);
  at.slab = -1 - at.slab;
  if (part < 0) return at;
  at.first_k_tile = chunk * kBlocksOfChunk;
  at.num_k_tiles = min(at.num_k_tiles - at.first_k_tile, kBlocksOfChunk);
  at.slab = ((tile << args.tiles.cluster_m) + cluster_rank<Cfg>(args.tiles).m) * args.num_chunks + chunk;
  return at;
}

// The units of one block.
template <class Function>
__device__ __forceinline__ void for_each_unit(const SplitArguments& args, const Function& function) {
  const int shift = args.tiles.cluster_m;
  for (int i = int(blockIdx.x) >> shift; i < args.num_units; i += int(gridDim.x) >> shift) {
    function(place_of_unit(args, i));
  }
}

struct SplitShared {
  uint32_t stages, full, empty;
  bool in_cluster;
  uint32_t releases;  // address of the partner's `empty` barriers; 0 if this thread signals nobody
};

// Copies of one kind of terms for a block of k, of the operands that have it.
template <class Cfg>
__device__ __forceinline__ void load_split_stage(const CUtensorMap* map_a, const CUtensorMap* map_b,
                                                 const SplitArguments& args, const SplitShared& shared, int stage,
                                                 const Place& at, int k_tile, int term) {
  using Loader = SplitConfig::Loader;
  const uint32_t barrier = shared.full + stage * 8, smem = shared.stages + stage * Cfg::kStageBytes;
  const int k = k_tile * Cfg::kBlockK;
  const int item_a = Cfg::kTermsA * at.batch_a + term, item_b = Cfg::kTermsB * at.batch_b + term;
  const bool has_a = term < Cfg::kTermsA, has_b = term < Cfg::kTermsB;
  mbarrier_arrive_expect_tx(barrier, 128 * ((has_a ? args.tiles.a.rows : 0) + (has_b ? args.tiles.b.rows : 0)));
  if (has_a) Loader::load<false>(smem, map_a, args.tiles.a, at.row, k, item_a, barrier);
  if (!has_b) return;
  if (shared.in_cluster)
    Loader::load<true>(smem + Cfg::kTermBytes, map_b, args.tiles.b, at.col, k, item_b, barrier,
                       cluster_rank<Cfg>(args.tiles).m, args.tiles.cluster_m, 3);
  else
    Loader::load<false>(smem + Cfg::kTermBytes, map_b, args.tiles.b, at.col, k, item_b, barrier);
}

// acc (+)= A * B, 64 x 128 outputs over K of k; addresses as matrix_address has them.
template <int K>
__device__ __forceinline__ void multiply_terms(float (&acc)[SplitConfig::kAcc], uint32_t a, uint32_t b, bool is_first) {
#pragma unroll
  for (int step = 0; step < K / 16; ++step) {
    const auto descriptor = [&](uint32_t address) {
      return matrix_descriptor_at(SplitConfig::kDesc, address + step * SplitConfig::kStep);
    };
    wgmma_mma_async<__half, SplitConfig::kBlockN, false, false>(acc, descriptor(a), descriptor(b),
                                                                step > 0 || !is_first);
  }
}

// What multiplies 64 rows of tiles. `sums`: of the thread, kWarpgroup apart, in shared memory.
template <class Cfg>
struct SplitConsumer {
  const SplitArguments& args;
  const SplitShared& shared;
  float* sums;
  uint32_t first_a, first_b;  // in the ring's first stage
  Ring<Cfg::kNumStages> ring;

  __device__ __forceinline__ SplitConsumer(const SplitArguments& args, const SplitShared& shared, float* sums,
                                           int consumer)
      : args(args), shared(shared), sums(sums) {
    const auto uniform = [](uint32_t smem) { return __shfl_sync(~0u, matrix_address(smem), 0); };
    first_a = uniform(shared.stages + consumer * 64 * 128);
    first_b = uniform(shared.stages + Cfg::kTermBytes);
  }

  // The next stage, when it is there: how far it lies behind the first one.
  __device__ __forceinline__ uint32_t take_stage() {
    mbarrier_wait_parity(shared.full + ring.stage * 8, ring.phase);
    const uint32_t offset = __shfl_sync(~0u, ring.stage, 0) * (Cfg::kStageBytes >> 4);
    ring.advance();
    return offset;
  }
  // A block of k is multiplied: its first stage and the one behind it are free.
  __device__ __forceinline__ void release(int first) const {
    release_stage<Cfg>(shared, first);
    release_stage<Cfg>(shared, first + 1 == Cfg::kNumStages ? 0 : first + 1);
  }

  // The unit's sums over k, in `total`; the thread's first row and column.
  __device__ __forceinline__ void multiply(float (&total)[Cfg::kAcc], const Place& at, int row, int col) {
    constexpr int kSteps = Cfg::kBlockK / kSplitSumK;
    constexpr int kParts = kSteps / Cfg::kCorrections;
    static_assert(kSteps == 4, "each adds a half of one of two corrections, or a quarter of the only one");
    const int first_chunk = at.first_k_tile / kBlocksOfChunk;
    const float* scales_a = args.scales_a + (int64_t(at.batch_a) * args.num_chunks + first_chunk) * args.padded_m + row;
    const float* scales_b = args.scales_b + (int64_t(at.batch_b) * args.num_chunks + first_chunk) * args.padded_n + col;
    float (&chunk)[Cfg::kAcc] = total;
    float acc[Cfg::kAcc], corrections[Cfg::kAcc];
    forget_registers(acc);
    forget_registers(corrections);
#pragma unroll 1
    for (int k_tile = 0; k_tile < at.num_k_tiles;) {
      const bool is_first_chunk = k_tile == 0;
      const int end = min(k_tile + kBlocksOfChunk, at.num_k_tiles);
#pragma unroll
      for (int i = 0; i < Cfg::kAcc; ++i) chunk[i] = 0;
      int previous = -1;  // its stages are not released
#pragma unroll 1
      for (bool is_first = true; k_tile < end; ++k_tile, is_first = false) {
        const int stage = ring.stage;
        const uint32_t first = take_stage();
        uint32_t second = 0;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          wgmma_fence();
          multiply_terms<kSplitSumK>(acc, first_a + first + step * Cfg::kStep, first_b + first + step * Cfg::kStep,
                                     true);
          wgmma_commit_group();
          if (step == 0) second = take_stage();
          // A part of a correction.
          const bool is_second_a = Cfg::kTermsA == 2 && step < kParts;
          const uint32_t part = step % kParts * Cfg::kCorrections * Cfg::kStep;
          multiply_terms<Cfg::kBlockK / kParts>(corrections, first_a + (is_second_a ? second : first) + part,
                                                first_b + (is_second_a ? first : second) + part, is_first && step == 0);
          wgmma_commit_group();
          wgmma_wait_group<1>();
          fence_registers(acc);
          add(chunk, acc);
          fence_registers(acc);
          if (step > 0) continue;
          if (previous >= 0) release(previous);
          previous = stage;
        }
      }
      wgmma_wait_group<0>();
      fence_registers(corrections);
      release(previous);
      scale_chunk(chunk, corrections, {scales_a[0], scales_a[8]}, scales_b);
      scales_a += args.padded_m;
      scales_b += args.padded_n;
      if (!is_first_chunk) {
#pragma unroll
        for (int i = 0; i < Cfg::kAcc; ++i) chunk[i] += sums[i * kWarpgroup];
      }
      if (k_tile < at.num_k_tiles) {
#pragma unroll
        for (int i = 0; i < Cfg::kAcc; ++i) sums[i * kWarpgroup] = chunk[i];
      }
    }
  }
};

// 64 rows of C from the accumulators of one warpgroup: whole sectors of 32 bytes in one instruction where C lies along
// n or along m.
__device__ __forceinline__ void store_split(const float (&total)[SplitConfig::kAcc], const SplitArguments& args,
                                            const Place& at, int first_row) {
  const int first_col = at.col + threadIdx.x % 4 * 2;
  float* c = static_cast<float*>(args.tiles.c) + at.batch_c + first_col * args.stride_cn;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first_row + 8 * h;
    if (row >= args.tiles.m) break;
    float* to = c + row * args.stride_cm;
#pragma unroll
    for (int j = 0; j < SplitConfig::kBlockN / 8; ++j) {
      const float first = total[4 * j + 2 * h], second = total[4 * j + 2 * h + 1];
      if (args.tiles.stores_pairs) {
        if (first_col + 8 * j < args.tiles.n) *reinterpret_cast<float2*>(to + 8 * j) = make_float2(first, second);
      } else {
        if (first_col + 8 * j < args.tiles.n) to[8 * j * args.stride_cn] = first;
        if (first_col + 8 * j + 1 < args.tiles.n) to[(8 * j + 1) * args.stride_cn] = second;
      }
    }
  }
}

// 64 rows of a chunk's sums.
__device__ __forceinline__ void store_chunk(const float (&chunk)[SplitConfig::kAcc], const SplitArguments& args,
                                            const Place& at, int first_row) {
  float* to = args.sums + (int64_t(at.slab) * kSplitBlock + first_row - at.row) * kSplitBlock + threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < SplitConfig::kAcc; i += 2)
    *reinterpret_cast<float2*>(to + i / 2 % 2 * 8 * kSplitBlock + i / 4 * 8) = make_float2(chunk[i], chunk[i + 1]);
}

// The sums of chunks that were computed side by side are added in the order of k, then bias and activation. Four
// neighbours of a row for a thread, a tile for kBlocksOfTile blocks.
constexpr int kAddThreads = 128, kBlocksOfTile = kSplitBlock * kSplitBlock / 4 / kAddThreads;
__global__ void __launch_bounds__(kAddThreads)
    add_split_chunks(const __grid_constant__ SplitArguments args, const __grid_constant__ FoldedProblem problem) {
  constexpr int kAtOnce = 8;
  griddepcontrol_launch_dependents();
  const int tile = int(blockIdx.x) / kBlocksOfTile, cluster_m = args.tiles.cluster_m;
  const int quad = (int(blockIdx.x) - tile * kBlocksOfTile) * kAddThreads + int(threadIdx.x);
  const float* from = args.sums + int64_t(tile) * args.num_chunks * kSplitBlock * kSplitBlock + quad * 4;
  TileIndex idx = tile_of(args.whole_tiles + (tile >> cluster_m), args.tiles);
  const int first_row = ((idx.row << cluster_m) + (tile & ((1 << cluster_m) - 1))) * kSplitBlock;
  const int row = first_row + quad * 4 / kSplitBlock, col = idx.col * kSplitBlock + quad * 4 % kSplitBlock;
  if (row >= problem.gemm.m) return;
  griddepcontrol_wait();
  float total[4] = {-0.0f, -0.0f, -0.0f, -0.0f};  // adds nothing to any
#pragma unroll 1
  for (int chunk = 0; chunk < args.num_chunks; chunk += kAtOnce) {
    float4 next[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      next[i] = make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
      if (chunk + i < args.num_chunks)
        next[i] = *reinterpret_cast<const float4*>(from + int64_t(chunk + i) * kSplitBlock * kSplitBlock);
    }
#pragma unroll
    for (const float4& sums : next) {
      total[0] += sums.x;
      total[1] += sums.y;
      total[2] += sums.z;
      total[3] += sums.w;
    }
  }
  const GemmProblem item = gpu::item_of<true>(problem, idx.slab);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (col + i < item.n) gpu::store_element<float>(item, row, col + i, total[i]);
  }
}

template <class Cfg>
__global__ void __launch_bounds__(SplitConfig::kThreads, 1)
    wgmma_split_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                       const __grid_constant__ SplitArguments args) {
  extern __shared__ char dynamic_smem[];
  // The patterns of the swizzle count from multiples of 1024 bytes.
  char* smem = dynamic_smem + (-smem_address(dynamic_smem) & 1023);
  char* smem_totals = smem + Cfg::kNumStages * Cfg::kStageBytes;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  constexpr int kProducerWarp = Cfg::kConsumers * 4;
  SplitShared shared{};
  shared.stages = smem_address(smem);
  shared.full = smem_address(smem_totals) + Cfg::kConsumers * Cfg::kTotalBytes;
  shared.empty = shared.full + Cfg::kNumStages * 8;
  shared.in_cluster = args.tiles.cluster_m;
  // A warp's first lanes tell both blocks of a pair.
  if (shared.in_cluster && lane < 2) shared.releases = map_shared_cluster(shared.empty, lane);
  if (threadIdx.x == 0) {
    prefetch_tensormap(&map_a);
    prefetch_tensormap(&map_b);
#pragma unroll
    for (int stage = 0; stage < Cfg::kNumStages; ++stage) {
      mbarrier_init(shared.full + stage * 8, 1);
      // One arrival per consumer warp.
      mbarrier_init(shared.empty + stage * 8, 4 * Cfg::kConsumers * (1 + args.tiles.cluster_m));
    }
    fence_mbarrier_init();
  }
  if (shared.in_cluster) {
    cluster_arrive_relaxed();
    cluster_wait();  // the other block's barriers are initialised as well
  }
  __syncthreads();
  // Up to here nothing was read or written that the kernel before this one may still work on.
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();

  if (warp >= kProducerWarp) {
    setmaxnreg_dec<Cfg::kProducerRegisters>();
    if (warp == kProducerWarp && elect_sync()) {
      Ring<Cfg::kNumStages> ring;
      for_each_unit(args, [&](const Place& at) {
        for (int i = 0; i < 2 * at.num_k_tiles; ++i) {
          // The phase before the first counts as complete.
          mbarrier_wait_parity(shared.empty + ring.stage * 8, ring.phase ^ 1);
          load_split_stage<Cfg>(&map_a, &map_b, args, shared, ring.stage, at, at.first_k_tile + i / 2, i % 2);
          ring.advance();
        }
      });
      if (shared.in_cluster) wait_for_releases(shared, ring);
    }
  } else {
    setmaxnreg_inc<Cfg::kConsumerRegisters>();
    const int consumer = __shfl_sync(~0u, warp / 4, 0), thread = threadIdx.x % kWarpgroup;
    char* totals = smem_totals + consumer * Cfg::kTotalBytes;
    SplitConsumer<Cfg> own(args, shared, reinterpret_cast<float*>(totals) + thread, consumer);
    for_each_unit(args, [&](const Place& at) {
      const int row = at.row + consumer * 64 + warp % 4 * 16 + lane / 4;
      float total[Cfg::kAcc];
      own.multiply(total, at, row, at.col + lane % 4 * 2);
      if (at.slab >= 0) return store_chunk(total, args, at, row);
      const TileBias<float> bias = load_bias<Cfg>(args.tiles, at.col, row, 8);
      finish_block_tile<Cfg>(total, bias, args.tiles, totals, consumer, -1 - at.slab, row, at.col);
      store_split(total, args, at, row);
    });
  }
}

}  // namespace
}  // namespace tiledmm::cuda

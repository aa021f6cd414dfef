// Rung 15, wgmma_split: Hopper (sm_90a), fp32 by products in fp16 with fp32 sums.
//
// Since rung 11: fp32 operands, which the matrix unit rounds to tf32, are taken apart first (split_operands.h), and
// multiplied as first * first + 2^-11 (second * first + first * second); what is left out is 2^-22 of a product at
// most. The unit truncates as it sums, so no sum of it is longer than a block of 64 of k: the corrections come first,
// are multiplied by 2^-11 in registers, and the main products are added on top; then the sums are scaled back and added
// to those of the chunk of 512, and these to the total, by fp32 instructions. Two consumers take turns at the matrix
// unit: one scales or adds while the other multiplies. Rows and columns that were flagged are computed again by a third
// kernel (fix_up.h). Few rows have another second kernel (few_rows.h).
//
// Sources: Ootomo and Yokota, Recovering single precision accuracy from Tensor Cores while surpassing the FP32
// theoretical peak performance (arXiv 2203.03341): the terms, the sums outside of the matrix unit. FlashAttention-3
// (arXiv 2407.08608): turns by named barriers.
#pragma once

#include "kernels/cuda/15_wgmma_split/plan.h"
#include "kernels/cuda/shared/boxes.h"
#include "kernels/cuda/shared/epilogue.h"
#include "kernels/cuda/shared/ring.h"
#include "kernels/cuda/shared/tiles.h"
#include "platform/ptx_sm90.h"

namespace tiledmm::cuda {
namespace {

// What the functions of shared/ ask of a tile, and the layout of shared memory.
struct SplitConfig {
  using T = float;
  static constexpr int kBlockM = kSplitBlock, kBlockN = kSplitBlock, kBlockK = kSplitBlockK;
  static constexpr bool kPairs = false, kSumsRows = false;
  static constexpr bool kAIsMMajor = false, kBIsNMajor = false;  // of the terms
  using Loader = BoxLoader<__half, kSplitBlock, kSplitBlock, true>;
  using LoaderB = Loader;
  static constexpr int kConsumers = 2;
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
  static_assert(kProducerRegisters + 2 * kConsumerRegisters == 3 * 168, "setmaxnreg: what the block starts with");
  static constexpr int kAcc = kBlockN / 2;
  // A stage: first terms of A, second ones, those of B; the scales lie behind all stages.
  static constexpr int kNumStages = 3;
  static constexpr int kTermBytes = kSplitBlock * kBlockK * 2;
  static constexpr int kStageBytes = 4 * kTermBytes;
  static constexpr int kScaleBytes = kSplitBlock * 4;  // of one operand
  static constexpr int kStoreBytes = 4096;             // through which bias and activation go, each of two
  static constexpr int kSmem = 1024 + kNumStages * (kStageBytes + 2 * kScaleBytes) +
                               kConsumers * kNumStoreBuffers * kStoreBytes + 2 * kNumStages * 8;
  static_assert(kSmem <= 232448, "of one block on sm_90");
  static constexpr uint64_t kDesc = matrix_descriptor(Swizzle::bytes_128, 0, 1024);
};

struct SplitArguments {
  Arguments tiles;  // but for the strides of C; the steps of the batch are items of the terms
  const float *scales_a, *scales_b;
  int num_blocks, padded_m, padded_n;
  int64_t stride_cm, stride_cn;
};

struct SplitShared {
  uint32_t stages, scales, full, empty;
  bool is_paired = false;  // for release_stage, which serves pairs, too
  uint32_t releases = 0;
};

// Copies for one block of k.
__device__ __forceinline__ void load_split_stage(const CUtensorMap* map_a, const CUtensorMap* map_b,
                                                 const SplitArguments& args, const SplitShared& shared, int stage,
                                                 const Place& at, int k_tile) {
  using Cfg = SplitConfig;
  const uint32_t barrier = shared.full + stage * 8, smem = shared.stages + stage * Cfg::kStageBytes;
  const uint32_t scales = shared.scales + stage * 2 * Cfg::kScaleBytes;
  mbarrier_arrive_expect_tx(barrier, args.tiles.stage_bytes);
#pragma unroll
  for (int term = 0; term < 2; ++term) {
    Cfg::Loader::load<false>(smem + term * Cfg::kTermBytes, map_a, args.tiles.a, at.row, k_tile * Cfg::kBlockK,
                             2 * at.batch_a + term, barrier);
    Cfg::Loader::load<false>(smem + (2 + term) * Cfg::kTermBytes, map_b, args.tiles.b, at.col, k_tile * Cfg::kBlockK,
                             2 * at.batch_b + term, barrier);
  }
  const int64_t block_a = int64_t(at.batch_a) * args.num_blocks + k_tile;
  const int64_t block_b = int64_t(at.batch_b) * args.num_blocks + k_tile;
  cp_async_bulk(scales, args.scales_a + block_a * args.padded_m + at.row, Cfg::kScaleBytes, barrier);
  cp_async_bulk(scales + Cfg::kScaleBytes, args.scales_b + block_b * args.padded_n + at.col, Cfg::kScaleBytes, barrier);
}

// The order in which the two consumers issue their instructions to the matrix unit, which works them off in that order.
struct Turns {
  static constexpr int kFirstBarrier = 3;  // 1 and 2 are the epilogue's
  int consumer;

  __device__ __forceinline__ void wait() const { named_barrier_sync(kFirstBarrier + consumer, 2 * kWarpgroup); }
  __device__ __forceinline__ void pass() const { named_barrier_arrive(kFirstBarrier + 1 - consumer, 2 * kWarpgroup); }
};

// acc (+)= A * B, 64 x 128 outputs over K of k; addresses as matrix_address has them.
template <int K>
__device__ __forceinline__ void multiply_terms(float (&acc)[SplitConfig::kAcc], uint32_t a, uint32_t b, bool is_first) {
  constexpr uint64_t kDesc = SplitConfig::kDesc;
#pragma unroll
  for (int step = 0; step < K / 16; ++step) {
    const auto descriptor = [&](uint32_t address) {
      return (kDesc & 0xffffffff00000000) | (uint32_t(kDesc) + address + step * 2);
    };
    wgmma_mma_async<__half, SplitConfig::kBlockN, false, false>(acc, descriptor(a), descriptor(b),
                                                                step > 0 || !is_first);
  }
}

// Waits for the sums of products, and adds them to those of the chunk, times the scales of their rows and columns.
__device__ __forceinline__ void add_scaled(float (&chunk)[SplitConfig::kAcc], float (&acc)[SplitConfig::kAcc],
                                           uint32_t scales_a, uint32_t scales_b) {
  constexpr int kPairs = SplitConfig::kBlockN / 8;
  const float scale_rows[2] = {load_shared_float(scales_a), load_shared_float(scales_a + 32)};
  uint2 scale_cols[kPairs];
  const auto load_scales = [&](int first) {
#pragma unroll
    for (int j = first; j < first + kPairs / 2; ++j) scale_cols[j] = load_shared_pair(scales_b + j * 32);
  };
  // Half of the columns' scales arrive meanwhile: there are registers for no more.
  load_scales(0);
  wgmma_wait_group<0>();
  fence_registers(acc);
  load_scales(kPairs / 2);
#pragma unroll
  for (int i = 0; i < SplitConfig::kAcc; ++i) {
    const float scale_col = __uint_as_float(i % 2 ? scale_cols[i / 4].y : scale_cols[i / 4].x);
    // The product of two scales is exact: a power of two from 2^-148 to 2^90.
    chunk[i] = __fmaf_rn(acc[i], scale_rows[i / 2 % 2] * scale_col, chunk[i]);
  }
}

// 64 rows of a tile, summed over k into `total`.
__device__ __forceinline__ void multiply_split(float (&total)[SplitConfig::kAcc], const SplitShared& shared,
                                               Ring<SplitConfig::kNumStages>& ring, const Turns& turns,
                                               int num_k_tiles) {
  using Cfg = SplitConfig;
  constexpr int kTilesOfChunk = kSplitChunkK / Cfg::kBlockK;
  constexpr uint32_t kTerm = Cfg::kTermBytes >> 4;
  const auto uniform = [](uint32_t smem) { return __shfl_sync(~0u, matrix_address(smem), 0); };
  const uint32_t first_a = uniform(shared.stages + turns.consumer * 64 * 128);
  const uint32_t first_b = uniform(shared.stages + 2 * Cfg::kTermBytes);
  const uint32_t row = turns.consumer * 64 + threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4;
  const uint32_t scales_a = shared.scales + row * 4;
  const uint32_t scales_b = shared.scales + Cfg::kScaleBytes + threadIdx.x % 4 * 8;
  float acc[Cfg::kAcc], chunk[Cfg::kAcc];
  forget_registers(acc);
#pragma unroll
  for (int i = 0; i < Cfg::kAcc; ++i) total[i] = -0.0f, chunk[i] = 0;  // -0 adds nothing to any
#pragma unroll 1
  for (int k_tile = 0; k_tile < num_k_tiles; ++k_tile) {
    mbarrier_wait_parity(shared.full + ring.stage * 8, ring.phase);
    const uint32_t offset = __shfl_sync(~0u, ring.stage, 0) * (Cfg::kStageBytes >> 4);
    const uint32_t a = first_a + offset, b = first_b + offset;
    const uint32_t scales = ring.stage * 2 * Cfg::kScaleBytes;
    // The first main products, from zero on.
    turns.wait();
    wgmma_fence();
    multiply_terms<kSplitSumK>(acc, a, b, true);
    wgmma_commit_group();
    turns.pass();
    if (k_tile > 0 && k_tile % kTilesOfChunk == 0) {
      add(total, chunk);
#pragma unroll
      for (int i = 0; i < Cfg::kAcc; ++i) chunk[i] = 0;
    }
    add_scaled(chunk, acc, scales_a + scales, scales_b + scales);
    // The corrections, and the other main products on top.
    turns.wait();
    fence_registers(acc);
    wgmma_fence();
    multiply_terms<Cfg::kBlockK>(acc, a + kTerm, b, true);
    multiply_terms<Cfg::kBlockK>(acc, a, b + kTerm, false);
    wgmma_commit_group();
    turns.pass();
    wgmma_wait_group<0>();
    fence_registers(acc);
#pragma unroll
    for (int i = 0; i < Cfg::kAcc; ++i) acc[i] *= 1.0f / 2048;
    turns.wait();
    fence_registers(acc);
    wgmma_fence();
    multiply_terms<Cfg::kBlockK - kSplitSumK>(acc, a + kSplitSumK / 16 * 2, b + kSplitSumK / 16 * 2, false);
    wgmma_commit_group();
    turns.pass();
    add_scaled(chunk, acc, scales_a + scales, scales_b + scales);
    __syncwarp();  // all lanes have read their scales
    release_stage<Cfg>(shared, ring.stage);
    ring.advance();
  }
  add(total, chunk);
}

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

__global__ void __launch_bounds__(SplitConfig::kThreads, 1)
    wgmma_split_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                       const __grid_constant__ SplitArguments args) {
  using Cfg = SplitConfig;
  extern __shared__ char dynamic_smem[];
  // The patterns of the swizzle count from multiples of 1024 bytes.
  char* smem = dynamic_smem + (-smem_address(dynamic_smem) & 1023);
  char* smem_c = smem + Cfg::kNumStages * (Cfg::kStageBytes + 2 * Cfg::kScaleBytes);
  const int warp = threadIdx.x / 32;
  constexpr int kProducerWarp = Cfg::kConsumers * 4;
  SplitShared shared{};
  shared.stages = smem_address(smem);
  shared.scales = shared.stages + Cfg::kNumStages * Cfg::kStageBytes;
  shared.full = smem_address(smem_c) + Cfg::kConsumers * kNumStoreBuffers * Cfg::kStoreBytes;
  shared.empty = shared.full + Cfg::kNumStages * 8;
  if (threadIdx.x == 0) {
    prefetch_tensormap(&map_a);
    prefetch_tensormap(&map_b);
#pragma unroll
    for (int stage = 0; stage < Cfg::kNumStages; ++stage) {
      mbarrier_init(shared.full + stage * 8, 1);
      mbarrier_init(shared.empty + stage * 8, 4 * Cfg::kConsumers);  // one arrival per consumer warp
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  // Up to here nothing was read or written that the kernel before this one may still work on.
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();

  Ring<Cfg::kNumStages> ring;
  if (warp >= kProducerWarp) {
    setmaxnreg_dec<Cfg::kProducerRegisters>();
    if (warp == kProducerWarp && elect_sync()) {
      for_each_piece<Cfg, Cfg>(args.tiles, 0, args.tiles.num_tiles, [&](const Place& at) {
        for (int k_tile = 0; k_tile < at.num_k_tiles; ++k_tile) {
          // The phase before the first counts as complete.
          mbarrier_wait_parity(shared.empty + ring.stage * 8, ring.phase ^ 1);
          load_split_stage(&map_a, &map_b, args, shared, ring.stage, at, k_tile);
          ring.advance();
        }
      });
    }
  } else {
    setmaxnreg_inc<Cfg::kConsumerRegisters>();
    const int consumer = __shfl_sync(~0u, warp / 4, 0);
    const Turns turns{consumer};
    char* buffers = smem_c + consumer * kNumStoreBuffers * Cfg::kStoreBytes;
    if (consumer == 1) turns.pass();
    for_each_piece<Cfg, Cfg>(args.tiles, 0, args.tiles.num_tiles, [&](const Place& at) {
      const int row = at.row + consumer * 64 + threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4;
      float total[Cfg::kAcc];
      multiply_split(total, shared, ring, turns, at.num_k_tiles);
      const TileBias<float> bias = load_bias<Cfg>(args.tiles, at.col, row, 8);
      finish_block_tile<Cfg>(total, bias, args.tiles, buffers, consumer);
      store_split(total, args, at, row);
    });
    if (consumer == 0) turns.wait();  // the last pass of the other one
  }
}

}  // namespace
}  // namespace tiledmm::cuda

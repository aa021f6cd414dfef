// Few rows of A, or few columns of B: the large operand is read once, as fp32, and split after the load. The other
// kernels' pass (split_operands.h) would read it, write its terms, and read these: three times its bytes. Flagged rows
// and columns are computed again by the threads that have their sums, so that no kernel follows.
//
// A thread takes its part of a block of k in the order of the matrix unit's fragments, splits it, and the unit takes it
// from registers. So the large operand is the instruction's A, of 64 rows, whatever the caller's roles; the few rows
// are its B. Each block splits up to 16 of them itself (split_few.h), that pass more. A cluster of blocks shares a
// tile: each computes chunks of k, and the first ones add up a part of the tile each from everyone's shared memory.
// Limit: the memory's rate, which the copies of several blocks of an SM keep busy.
//
// The largest of a chunk, whose scale the terms must have, is known at its end. So blocks are split with the scale of
// the largest so far, and where it grows, the sums so far are multiplied by the ratio of both scales, a power of two
// (as Milakov and Gimelshein's softmax does, arXiv 1805.02867). Nothing is rounded thereby, but where an element of
// these blocks has terms that would lose bits with the larger scale. Then the chunk is computed again, from the largest
// that is now known on.
//
// The bits are kernel.h's: the matrix unit adds 16 products and C as one exact sum of truncated numbers (arXiv
// 2511.10909, 2512.07004), so neither exchanged roles (as in swapAB of CUTLASS) nor an order inside of an instruction
// nor a power of two show. What would show, the order of the corrections, tied to A and B, of blocks and of chunks, is
// the same.
#pragma once

#include "kernels/cuda/shared/boxes.h"
#include "kernels/cuda/shared/epilogue.h"
#include "kernels/cuda/shared/ptx_sm90.h"
#include "kernels/cuda/shared/ring.h"
#include "kernels/cuda/wgmma_split/few_rows_launch.h"
#include "kernels/cuda/wgmma_split/few_values.h"
#include "kernels/cuda/wgmma_split/fix_columns.h"
#include "kernels/cuda/wgmma_split/plan.h"
#include "kernels/cuda/wgmma_split/scale_chunk.h"
#include "kernels/cuda/wgmma_split/split_few.h"
#include "kernels/split/terms.h"

namespace tiledmm::cuda {
namespace {

constexpr int kFewThreads = 128;

// ROWS: the few, rounded up to a width of the instruction.
template <int ROWS>
struct FewConfig {
  static constexpr int kAcc = ROWS / 2, kSteps = kSplitBlockK / 16;
  static constexpr bool kSplitsFew = ROWS <= kRowsSplitByBlocks;  // whether each block splits them itself
  // A stage holds two boxes of the large operand, each of 64 rows of 128 bytes. The few rows' terms, first ones and
  // then second ones, lie behind all stages for a whole chunk if the block makes them, else in the stage of their block
  // of k.
  static constexpr int kBoxBytes = 64 * 128, kTermBytes = ROWS * 128;
  static constexpr int kStageBytes = 2 * kBoxBytes + (kSplitsFew ? 0 : 2 * kTermBytes);
  static constexpr int kNumStages = ROWS == 16 ? 2 : ROWS == 32 ? 4 : 3;
  static constexpr int kBlocksOfSm = few_blocks_of_sm(ROWS);
  // Sums of a chunk, [few row][row of the large operand]; half a warp's pairs lie in different banks. Those of two
  // rounds in turn, and the few rows' scales, follow a whole chunk's terms; else the sums take the place of a stage.
  static constexpr int kPitch = kFewTile + 4, kSumBytes = ROWS * kPitch * 4, kSumPlaces = 2;
  static constexpr int kChunkTermBytes = kBlocksOfChunk * 2 * kTermBytes;
  static constexpr int kChunkBytes = kSplitsFew ? kChunkTermBytes + kSumPlaces * kSumBytes + ROWS * 4 : 0;
  static_assert(kSplitsFew || kSumBytes <= kStageBytes, "sums take the place of a stage");
  static constexpr int kSmem = 1024 + kNumStages * kStageBytes + kChunkBytes + 2 * kNumStages * 8;
  static_assert(kBlocksOfSm * (kSmem + 1024) <= 233472, "of sm_90; each block takes 1024 bytes more");
  // A thread's part of a tile's sums, four neighbours at a time, where its block has no others to share with.
  static constexpr int kQuads = ROWS * kFewTile / 4 / kFewThreads;
  static constexpr uint64_t kDesc = matrix_descriptor(Swizzle::bytes_128, 0, 1024);
  using Loader = BoxLoader<__half, kSplitBlockK, kSplitBlockK, true>;
};

// What a block works on. Its own chunks are every cluster-th; `last_tiles`: blocks of k in the last chunk of all;
// `log2_parts`: of the tile's sums.
struct FewPlace {
  int rank, cluster, log2_parts, row, last_tiles, own_chunks, own_tiles;
  int item_terms = 0, item_map = 0;
  int64_t item;

  __device__ __forceinline__ explicit FewPlace(const FewArguments& args) {
    const int idx = int(blockIdx.x);
    rank = int(blockIdx.y), cluster = int(gridDim.y), log2_parts = args.log2_parts;
    item = args.problem.batch_size == 1 ? 0 : idx / args.num_tiles;
    row = (idx - int(item) * args.num_tiles) * kFewTile;
    last_tiles = args.num_blocks - (args.num_chunks - 1) * kBlocksOfChunk;
    const int chunks_of_last_round = args.num_chunks - (args.num_rounds - 1) * cluster;
    own_chunks = args.num_rounds - (rank >= chunks_of_last_round);
    own_tiles = own_chunks * kBlocksOfChunk - (rank == chunks_of_last_round - 1 ? kBlocksOfChunk - last_tiles : 0);
    int rest = int(item);
#pragma unroll 1
    for (int d = args.problem.gemm.num_batch_dims - 1; d >= 0; --d) {
      const int size = int(args.problem.batch_dims[d].size), outer = rest / size, at = rest - outer * size;
      item_terms += at * args.steps[d].terms;
      item_map += at * args.steps[d].map;
      rest = outer;
    }
  }
  __device__ __forceinline__ int chunk_of(int round) const { return round * cluster + rank; }
  // Whether a part of the tile's sums is this block's.
  __device__ __forceinline__ bool has_part() const { return rank >> log2_parts == 0; }
  // Number i of the blocks of k that this block multiplies, counted from the operand's start.
  __device__ __forceinline__ int k_tile(int i) const {
    return chunk_of(i / kBlocksOfChunk) * kBlocksOfChunk + i % kBlocksOfChunk;
  }
};

struct FewShared {
  uint32_t stages, terms, sums, full, empty;
};

// Copies of the large operand's part of a stage, boxes of 32 elements along memory; all that arrives there counts.
template <class Cfg, FewSource SOURCE>
__device__ __forceinline__ void load_large(const CUtensorMap* map, const FewArguments& args, const FewShared& shared,
                                           int stage, const FewPlace& at, int k_tile) {
  const uint32_t barrier = shared.full + stage * 8, smem = shared.stages + stage * Cfg::kStageBytes;
  mbarrier_arrive_expect_tx(barrier, args.stage_bytes);
  if constexpr (SOURCE != FewSource::memory) {
    constexpr bool kAlongK = SOURCE == FewSource::boxes_along_k;
    const int k = k_tile * kSplitBlockK;
#pragma unroll
    for (int box = 0; box < 2; ++box)
      cp_async_bulk_tensor_3d(smem + box * Cfg::kBoxBytes, map, (kAlongK ? k : at.row) + box * 32, kAlongK ? at.row : k,
                              at.item_map, barrier, CachePolicy::evict_first);
  }
}

// Copies of the few rows' terms.
template <class Cfg>
__device__ __forceinline__ void load_few(const CUtensorMap* map, const FewArguments& args, const FewShared& shared,
                                         int stage, const FewPlace& at, int k_tile) {
  const uint32_t barrier = shared.full + stage * 8;
  const uint32_t smem = shared.stages + stage * Cfg::kStageBytes + 2 * Cfg::kBoxBytes;
  const Boxes boxes{args.term_rows, CachePolicy::evict_normal};
#pragma unroll
  for (int term = 0; term < 2; ++term)
    Cfg::Loader::template load<false>(smem + term * Cfg::kTermBytes, map, boxes, 0, k_tile * kSplitBlockK,
                                      2 * at.item_terms + term, barrier);
}

// Both terms of a thread's values as the matrix unit takes them, and what the sums so far of both rows are multiplied
// by.
struct FewFragments {
  uint32_t first[kSplitBlockK / 16][4], second[kSplitBlockK / 16][4];
  float ratio[2];
};

// What a thread knows of a chunk of its two rows: the largest magnitude so far, which four threads have in common, and
// of its own elements the smallest nonzero_magnitude; whether a larger scale would have changed terms.
struct FewChunk {
  uint32_t largest[2] = {}, smallest[2];
  bool is_inexact;

  __device__ __forceinline__ void start() {
    smallest[0] = smallest[1] = ~0u;
    is_inexact = false;
  }
  __device__ __forceinline__ float scale(int row) const {
    const gpu::ChunkScale scale(largest[row]);
    const uint32_t flagged = __ballot_sync(~0u, scale.is_flagged(smallest[row])) >> threadIdx.x % 32 / 4 * 4 & 15;
    return scale.scale(flagged != 0);
  }

  // The terms of the chunk's next block.
  __device__ __forceinline__ void split(FewFragments& to, const FewValues& values) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int last_exponent = gpu::ChunkScale(largest[h]).exponent;
      uint32_t own_smallest = ~0u;
#pragma unroll
      for (int i = 0; i < kSplitBlockK / 4; ++i) {
        largest[h] = __float_as_uint(max_nan(__uint_as_float(largest[h]), fabsf(values[h][i])));
        own_smallest = min(own_smallest, gpu::nonzero_magnitude(values[h][i]));
      }
      largest[h] = max(largest[h], __shfl_xor_sync(~0u, largest[h], 1));
      largest[h] = max(largest[h], __shfl_xor_sync(~0u, largest[h], 2));
      const gpu::ChunkScale scale(largest[h]);
      to.ratio[h] = __uint_as_float(uint32_t(127 + last_exponent - scale.exponent) << 23);
      is_inexact |= scale.exponent > last_exponent && gpu::is_below(smallest[h], scale.exponent - kSplitExactRange);
      smallest[h] = min(smallest[h], own_smallest);
#pragma unroll
      for (int i = 0; i < kSplitBlockK / 4; i += 2) {
        // Whatever comes of infinities: the row is flagged.
        gpu::split_pair(values[h][i] * scale.factor(), values[h][i + 1] * scale.factor(), to.first[i / 4][h + i % 4],
                        to.second[i / 4][h + i % 4]);
      }
    }
  }
};

// acc (+)= the large operand's terms in registers by those of the few rows at `address`, as matrix_address has it, from
// step to step of 16 of k.
template <int ROWS, int FIRST_STEP, int END_STEP>
__device__ __forceinline__ void multiply_fragments(float (&acc)[ROWS / 2], const uint32_t (&fragments)[4][4],
                                                   uint32_t address, bool is_first) {
#pragma unroll
  for (int step = FIRST_STEP; step < END_STEP; ++step)
    wgmma_mma_async_fragment<__half, ROWS>(acc, fragments[step],
                                           matrix_descriptor_at(FewConfig<ROWS>::kDesc, address + step * 2),
                                           step > FIRST_STEP || !is_first);
}

// Where a block of the cluster has the sums of a chunk. If they have no place of their own, they take the last stage of
// their chunk, which is free then; its number follows from that of the chunk.
template <class Cfg>
__device__ __forceinline__ uint32_t place_of_sums(const FewArguments& args, const FewShared& shared, const FewPlace& at,
                                                  int round, int chunk) {
  if constexpr (Cfg::kSplitsFew) return shared.sums + uint32_t(round % Cfg::kSumPlaces * Cfg::kSumBytes);
  const int tiles = chunk + 1 == args.num_chunks ? at.last_tiles : kBlocksOfChunk;
  const int stage = (round * kBlocksOfChunk + tiles - 1) % Cfg::kNumStages;
  return shared.stages + stage * uint32_t(Cfg::kStageBytes);
}

// This block's sums of a chunk, for the cluster.
template <int ROWS>
__device__ __forceinline__ void store_sums(const float (&chunk)[ROWS / 2], uint32_t place) {
  using Cfg = FewConfig<ROWS>;
  __syncthreads();  // the matrix unit has read all terms of the stage, or of the chunk
  const uint32_t to = place + first_row_of_thread() * 4;
#pragma unroll
  for (int i = 0; i < Cfg::kAcc / 2; ++i) {
    const int row = i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2, idx = i / 2 * 4 + i % 2;
    store_shared_pair(to + row * Cfg::kPitch * 4, chunk[idx], chunk[idx + 2]);
  }
  if (!Cfg::kSplitsFew) fence_proxy_async();  // the next copy to this stage comes later
}

// The sums of the cluster's chunks of a round, in the order of k, onto this block's part of the total.
template <int ROWS>
__device__ __forceinline__ void add_sums(float (&total)[FewConfig<ROWS>::kQuads * 4], const FewArguments& args,
                                         const FewShared& shared, const FewPlace& at, int round) {
  using Cfg = FewConfig<ROWS>;
  const int first_chunk = round * at.cluster, count = min(at.cluster, args.num_chunks - first_chunk);
  const int log2_quads = 4 - at.log2_parts;  // of one few row in this block's part
  constexpr int kAtOnce = max_of(2, 8 / Cfg::kQuads);
#pragma unroll 1
  for (int group = 0; group < count; group += kAtOnce) {
    float4 sums[Cfg::kQuads][kAtOnce];
#pragma unroll
    for (int i = 0; i < Cfg::kQuads; ++i) {
      const int quad = threadIdx.x + i * kFewThreads;
      const int row = quad >> log2_quads, col = (at.rank << log2_quads) + (quad & ((1 << log2_quads) - 1));
      const uint32_t offset = (row * Cfg::kPitch + col * 4) * 4;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        // -0 adds nothing to any.
        sums[i][j] = make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
        if (row < ROWS && group + j < count) {
          const uint32_t place = place_of_sums<Cfg>(args, shared, at, round, first_chunk + group + j);
          sums[i][j] = load_shared_cluster_vector(map_shared_cluster(place + offset, group + j));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < Cfg::kQuads; ++i) {
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        total[4 * i] += sums[i][j].x;
        total[4 * i + 1] += sums[i][j].y;
        total[4 * i + 2] += sums[i][j].z;
        total[4 * i + 3] += sums[i][j].w;
      }
    }
  }
}

// An element of this block's part of the tile: number `i` of a thread's sums.
template <int ROWS>
struct FewElement {
  int row, col;
  bool is_inside;

  __device__ __forceinline__ FewElement(const GemmProblem& p, const FewPlace& at, int i, int thread) {
    const int log2_quads = 4 - at.log2_parts, quad = thread + i / 4 * kFewThreads;
    row = quad >> log2_quads;
    col = at.row + ((at.rank << log2_quads) + (quad & ((1 << log2_quads) - 1))) * 4 + i % 4;
    is_inside = row < min(ROWS, int(p.m)) && col < p.n;
  }
};

// Elements of flagged rows and columns, in `slots`: those of two neighbouring quads, one after the other.
template <int ROWS>
__device__ __forceinline__ void fix_elements(float* slots, const GemmProblem& p, const FewPlace& at) {
  static_assert(kFixColumns == 8 && kFewTile / kFewCluster % kFixColumns == 0, "two quads of one row");
  FixChain* chains = reinterpret_cast<FixChain*>(slots + FewConfig<ROWS>::kQuads * 4 * kFewThreads);
  const int num_quads = int(p.m) << (4 - at.log2_parts);
#pragma unroll 1
  for (int first = 0; first < num_quads; first += 2) {
    const int quad = first + int(threadIdx.x) % kFixColumns / 4, i = quad / kFewThreads * 4 + int(threadIdx.x) % 4;
    const FewElement<ROWS> element(p, at, i, quad % kFewThreads);
    float& slot = slots[i * kFewThreads + quad % kFewThreads];
    const float found = element.is_inside ? slot : 0;
    if (!__any_sync(~0u, found != found)) continue;
    const float fixed = fix_column<kFewThreads>(p, element.row, element.col, found, chains);
    if (threadIdx.x < kFixColumns) slot = fixed;
  }
  __syncthreads();
}

// This block's part of the tile, from registers through shared memory: one copy of the epilogue's code. Bias and
// activation are computed as kernel.h does.
template <int ROWS>
__device__ __forceinline__ void store_few_rows(const float (&total)[FewConfig<ROWS>::kQuads * 4], const GemmProblem& p,
                                               const FewPlace& at, char* smem) {
  constexpr int kCount = FewConfig<ROWS>::kQuads * 4;
  float* slots = reinterpret_cast<float*>(smem);
  bool is_any_flagged = false;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    slots[i * kFewThreads + threadIdx.x] = total[i];
    is_any_flagged |= total[i] != total[i];
  }
  if (__syncthreads_or(is_any_flagged)) fix_elements<ROWS>(slots, p, at);
#pragma unroll 1
  for (int i = 0; i < kCount; ++i) {
    const FewElement<ROWS> element(p, at, i, threadIdx.x);
    if (!element.is_inside) continue;
    const int row = element.row, col = element.col;
    float value = gpu::blended<float>(p, row, col, slots[i * kFewThreads + threadIdx.x]);
    if (p.activation != Activation::none) value = gpu::activated<float>(p.activation, value);
    static_cast<float*>(p.c)[row * p.stride_cm + col * p.stride_cn] = value;
  }
}

// sums *= the rows' ratios.
template <int COUNT>
__device__ __forceinline__ void scale_rows(float (&sums)[COUNT], const float (&ratio)[2]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) sums[i] *= ratio[i / 2 % 2];
}

template <int ROWS, FewSource SOURCE, bool IS_A>
__global__ void __launch_bounds__(kFewThreads, FewConfig<ROWS>::kBlocksOfSm)
    few_rows(const __grid_constant__ CUtensorMap map_large, const __grid_constant__ CUtensorMap map_terms,
             const __grid_constant__ FewArguments args) {
  using Cfg = FewConfig<ROWS>;
  constexpr bool kSplitsFew = Cfg::kSplitsFew;
  constexpr int kStages = Cfg::kNumStages, kSteps = Cfg::kSteps;
  static_assert(kSplitSumK == 16 && kSteps == 4, "a step is a sum of main products, two are made at a time");
  extern __shared__ char dynamic_smem[];
  // The patterns of the swizzle count from multiples of 1024 bytes.
  char* smem = dynamic_smem + (-smem_address(dynamic_smem) & 1023);
  FewShared shared;
  shared.stages = smem_address(smem);
  shared.terms = shared.stages + kStages * Cfg::kStageBytes;
  shared.sums = shared.terms + Cfg::kChunkTermBytes;
  shared.full = shared.terms + Cfg::kChunkBytes;
  shared.empty = shared.full + kStages * 8;
  const FewPlace at(args);
  const bool is_producer = threadIdx.x == 0;
  int next_tile = min(kStages, at.own_tiles);  // the next one to be copied
  if (is_producer) {
    if (SOURCE != FewSource::memory) prefetch_tensormap(&map_large);
    if (!kSplitsFew) prefetch_tensormap(&map_terms);
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(shared.full + stage * 8, 1);
      mbarrier_init(shared.empty + stage * 8, kFewThreads / 32);
    }
    fence_mbarrier_init();
  }
  const auto load_first = [&] {
    for (int i = 0; i < next_tile; ++i) load_large<Cfg, SOURCE>(&map_large, args, shared, i, at, at.k_tile(i));
  };
  // The large operand is the caller's, and all kernels before the split of the few rows are done: that one lets this
  // one start only when it has waited for them.
  if (!kSplitsFew && is_producer) load_first();
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  if (is_producer) {
    if constexpr (kSplitsFew)
      load_first();
    else
      for (int i = 0; i < next_tile; ++i) load_few<Cfg>(&map_terms, args, shared, i, at, at.k_tile(i));
  }

  const GemmProblem problem = gpu::item_of<true>(args.problem, at.item);
  float* own_scales = reinterpret_cast<float*>(smem + (shared.sums + Cfg::kSumPlaces * Cfg::kSumBytes - shared.stages));
  const FewLoader loader(problem, at.row);
  Ring<kStages> ring, filled;  // of what is multiplied, of what is copied
  filled.stage = next_tile % kStages;
  filled.phase = next_tile == kStages;
  FewFragments fragments;
  FewChunk of_chunk;
  // Sums of two steps of k; corrections of a chunk, its sums; those of all.
  float acc[2][Cfg::kAcc], corrections[Cfg::kAcc], chunk[Cfg::kAcc], total[Cfg::kQuads * 4];
  for (auto& sums : acc) forget_registers(sums);
  forget_registers(corrections);
#pragma unroll
  for (int i = 0; i < Cfg::kQuads * 4; ++i) total[i] = -0.0f;
  const auto release = [&](int stage) {
    __syncwarp();  // all lanes have read what they need of it
    if (threadIdx.x % 32 == 0) mbarrier_arrive(shared.empty + stage * 8);
  };
  // By the producer: the next stage is filled, with nothing if there is no tile for it.
  const auto fill = [&](int tile) {
    // The phase before the first counts as complete.
    mbarrier_wait_parity(shared.empty + filled.stage * 8, filled.phase ^ 1);
    if (kSplitsFew || tile < at.own_tiles) {
      load_large<Cfg, SOURCE>(&map_large, args, shared, filled.stage, at, at.k_tile(tile));
      if (!kSplitsFew) load_few<Cfg>(&map_terms, args, shared, filled.stage, at, at.k_tile(tile));
    } else {
      mbarrier_arrive(shared.full + filled.stage * 8);
    }
    filled.advance();
  };

  // The values of the ring's next stage, which is free then if it has no terms.
  const auto load_next = [&](FewValues& values, int i) {
    if constexpr (SOURCE == FewSource::memory) loader.load(values, at.k_tile(i));
    mbarrier_wait_parity(shared.full + ring.stage * 8, ring.phase);
    if constexpr (SOURCE != FewSource::memory)
      load_values<Cfg, SOURCE>(values, shared.stages + ring.stage * Cfg::kStageBytes);
    if constexpr (kSplitsFew) {
      release(ring.stage);
      ring.advance();
    }
  };

  // All blocks of the cluster have stored the sums of this round.
  const auto add_round = [&](int round) {
    if (at.has_part()) add_sums<ROWS>(total, args, shared, at, round);
  };
  // 64 rows and loads from memory leave no registers to load a block's values while the one before is multiplied.
  constexpr bool kLoadsAhead = SOURCE != FewSource::memory || ROWS < 64;
  FewValues values;  // of the block of k that is split next
  bool has_values = false;
  int last_stage = 0;  // of a chunk
#pragma unroll 1
  for (int round = 0;; ++round) {
    // The last round may have no chunk for this block, but part of the others' sums.
    const bool has_chunk = round < at.own_chunks;
    if constexpr (kSplitsFew) {
      if (has_chunk) split_few<ROWS, kFewThreads>(problem, at.chunk_of(round), shared.terms, own_scales);
    } else if (round > 0) {
      cluster_wait();
      add_round(round - 1);
      cluster_arrive();
      cluster_wait();  // all have read them, whose stage is needed again
      if (round == args.num_rounds) break;
      release(last_stage);
    }
    __syncthreads();  // barriers are initialised, this block's terms of the few rows are there
    const int start = round * kBlocksOfChunk, end = min(start + kBlocksOfChunk, at.own_tiles);
    of_chunk = FewChunk();
#pragma unroll 1
    while (has_chunk) {
      if (kLoadsAhead && !has_values) load_next(values, start);
      has_values = true;
      const int first_stage = ring.stage;
      of_chunk.start();
      // A block of k is split when the one before it is multiplied: other warps multiply meanwhile. Two sets of
      // fragments would double the loop's code, which comes from cold memory.
#pragma unroll 1
      for (int i = start; i < end; ++i) {
        const bool is_first = i == start, is_last = i + 1 == end;
        const int stage = __shfl_sync(~0u, ring.stage, 0);
        const uint32_t first =
            matrix_address(kSplitsFew ? shared.terms + (i - start) * 2 * Cfg::kTermBytes
                                      : shared.stages + stage * Cfg::kStageBytes + 2 * Cfg::kBoxBytes);
        const uint32_t second = first + (Cfg::kTermBytes >> 4);
        if (!kLoadsAhead) load_next(values, i);
        of_chunk.split(fragments, values);
        if (!is_first) scale_rows(corrections, fragments.ratio);
        fence_registers(corrections);
        wgmma_fence();
        multiply_fragments<ROWS, 0, 1>(acc[0], fragments.first, first, true);
        multiply_fragments<ROWS, 1, 2>(acc[1], fragments.first, first, true);
        wgmma_commit_group();
        // A's second terms by B's first, then A's first by B's second.
        multiply_fragments<ROWS, 0, kSteps>(corrections, IS_A ? fragments.second : fragments.first,
                                            IS_A ? first : second, is_first);
        multiply_fragments<ROWS, 0, kSteps>(corrections, IS_A ? fragments.first : fragments.second,
                                            IS_A ? second : first, false);
        wgmma_commit_group();
        wgmma_wait_group<1>();
        for (auto& sums : acc) fence_registers(sums);
#pragma unroll
        for (int j = 0; j < Cfg::kAcc; ++j) {
          // What is multiplied by the ratio is exact.
          chunk[j] = is_first ? acc[0][j] : __fmaf_rn(chunk[j], fragments.ratio[j / 2 % 2], acc[0][j]);
        }
        add(chunk, acc[1]);
        for (auto& sums : acc) fence_registers(sums);
        wgmma_fence();
        multiply_fragments<ROWS, 2, 3>(acc[0], fragments.first, first, true);
        multiply_fragments<ROWS, 3, 4>(acc[1], fragments.first, first, true);
        wgmma_commit_group();
        if (next_tile < at.own_tiles && (kSplitsFew || next_tile - i < kStages)) {
          // The stage of this block of k, or of the one before it, is filled again.
          if (is_producer) fill(next_tile);
          ++next_tile;
        }
        __syncwarp();
        if (!kSplitsFew) ring.advance();
        if (kLoadsAhead && i + 1 < at.own_tiles) load_next(values, i + 1);
        wgmma_wait_group<0>();
        for (auto& sums : acc) fence_registers(sums);
        fence_registers(corrections);
        add(chunk, acc[0]);
        add(chunk, acc[1]);
        last_stage = stage;
        if (!kSplitsFew && !is_last) release(stage);
      }
      if (!__syncthreads_or(of_chunk.is_inexact)) break;
      // Again from its start on; in the same stages, if sums take the place of one. What is on its way arrives unread.
      if (!kSplitsFew) release(last_stage);
      for (int i = end + kSplitsFew; i < next_tile || (!kSplitsFew && ring.stage != first_stage); ++i) {
        if (i >= next_tile && is_producer) fill(at.own_tiles);
        __syncwarp();
        mbarrier_wait_parity(shared.full + ring.stage * 8, ring.phase);
        release(ring.stage);
        ring.advance();
      }
      for (next_tile = start; next_tile < min(start + kStages, at.own_tiles); ++next_tile) {
        if (is_producer) fill(next_tile);
      }
      __syncwarp();
      has_values = false;
    }
    if (kSplitsFew && round > 0) {
      cluster_wait();  // all have stored the sums of the round before, and read those of the one before that
      add_round(round - 1);
      if (round == args.num_rounds) break;
    }
    if (has_chunk) {
      const int64_t place = int64_t(at.item_terms) * args.num_chunks + at.chunk_of(round);
      scale_chunk(chunk, corrections, {of_chunk.scale(0), of_chunk.scale(1)},
                  (kSplitsFew ? own_scales : args.scales + place * args.padded_few) + threadIdx.x % 4 * 2);
      store_sums<ROWS>(chunk, place_of_sums<Cfg>(args, shared, at, round, at.chunk_of(round)));
    }
    cluster_arrive();
  }
  if (kSplitsFew) cluster_arrive();
  if (at.has_part()) store_few_rows<ROWS>(total, problem, at, smem);
  if (kSplitsFew) cluster_wait();  // all have read this block's sums
}

}  // namespace
}  // namespace tiledmm::cuda

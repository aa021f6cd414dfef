// The main loop of the wgmma kernel: what consumers make of the k tiles that arrive in the ring.
#pragma once

#include "kernels/cuda/shared/epilogue.h"
#include "kernels/cuda/shared/ptx_sm90.h"
#include "kernels/cuda/shared/ring.h"
#include "kernels/cuda/wgmma/tf32.h"

namespace tiledmm::cuda {
namespace {

// A tile of 8 x 16 ones.
constexpr uint64_t kDescOnes = matrix_descriptor(Swizzle::none, 128, 128);

// Shared memory of a block, as addresses.
struct Shared {
  uint32_t stages, full, empty, transposed;  // the last three: barriers, one per stage
  int stage_bytes;                           // from stage to stage
  uint32_t ones;
  uint32_t turn, next_turn;  // where consumers take turns: barriers of this one's turn to multiply, of the other one's
  bool in_cluster;
  uint32_t releases;  // clusters: address of a block's `empty` barriers; 0 if this thread signals nobody
  char* c;            // of this consumer
};

// Accumulators of a consumer: of 64 rows of C, of those below where it has 128, and of the sums of A's rows, all eight
// columns of which are the same; and the chunks' total of these, for a thread's two rows.
template <class Cfg>
struct Accumulators {
  float c[Cfg::kAcc];
  float c_below[Cfg::kRowBlocks == 2 ? Cfg::kAcc : 1];
  float row_sums[4];
  float total_of_rows[2] = {-0.0f, -0.0f};  // the number that adds nothing to any
};

// Addresses of a stage, as matrix_address has them. Only a descriptor's lower half changes, so that the arithmetic
// stays in 32 bits and in uniform registers, which the matrix unit takes its descriptors from.
struct StageAddress {
  uint32_t a, b, ones;
};

constexpr int kRowBlockBytes = 64 * 128;  // of a stage: A's part for 64 rows of C

// One lane's values for all: the compiler then knows them to be uniform. Otherwise it moves four registers before every
// wgmma.
template <class Cfg>
__device__ __forceinline__ StageAddress first_stage_of(const Shared& shared, int row_block) {
  const auto uniform = [](uint32_t smem) { return __shfl_sync(~0u, matrix_address(smem), 0); };
  return {uniform(shared.stages + row_block * kRowBlockBytes), uniform(shared.stages + Cfg::kABytes),
          uniform(shared.ones)};
}

template <class Cfg, bool SUMS_ROWS>
__device__ __forceinline__ void multiply(Accumulators<Cfg>& acc, const StageAddress& address, bool is_first) {
  using T = typename Cfg::T;
#pragma unroll
  for (int step = 0; step < Cfg::kBlockK / Cfg::kMmaK; ++step) {
    const uint64_t desc_a = matrix_descriptor_at(Cfg::kDescA, address.a + step * Cfg::kStepA);
    const uint64_t desc_b = matrix_descriptor_at(Cfg::kDescB, address.b + step * Cfg::kStepB);
    if constexpr (Cfg::kIsTf32)
      wgmma_mma_async_tf32<Cfg::kBlockN>(acc.c, desc_a, desc_b, step > 0 || !is_first);
    else
      wgmma_mma_async<T, Cfg::kBlockN, Cfg::kAIsMMajor, Cfg::kBIsNMajor>(acc.c, desc_a, desc_b, step > 0 || !is_first);
    if constexpr (Cfg::kRowBlocks == 2)
      wgmma_mma_async<T, Cfg::kBlockN, Cfg::kAIsMMajor, Cfg::kBIsNMajor>(
          acc.c_below, matrix_descriptor_at(Cfg::kDescA, address.a + kRowBlockBytes / 16 + step * Cfg::kStepA), desc_b,
          step > 0 || !is_first);
    if constexpr (SUMS_ROWS)
      wgmma_mma_async<T, 8, Cfg::kAIsMMajor, false>(acc.row_sums, desc_a, matrix_descriptor_at(kDescOnes, address.ones),
                                                    step > 0 || !is_first);
  }
}

// The k tiles of a stage, of which `k_tile` is the first one: a pair, but for the last one of an odd number. Where sums
// are scaled (fp8.h), every stage is whole.
template <class Cfg>
__device__ __forceinline__ int tiles_of_stage(int k_tile, int num_k_tiles) {
  return Cfg::kTilesOfStage == 1 || Cfg::kIsScaled ? Cfg::kTilesOfStage : min(Cfg::kTilesOfStage, num_k_tiles - k_tile);
}

struct DoNothing {
  __device__ __forceinline__ void operator()(int, int) const {}
};

// The next k tiles of the ring, multiplied into accumulators from zero on; none is in flight at the end. `meanwhile` is
// called while the first is, prepare(k_tile, stage) for each stage that is there, before it is multiplied.
template <class Cfg, class Piece, bool SUMS_ROWS, class Function, class Prepare = DoNothing>
__device__ __forceinline__ void multiply_k_tiles(Accumulators<Piece>& acc, const StageAddress& first_stage,
                                                 const Shared& shared, Ring<Cfg::kNumStages>& ring, int num_k_tiles,
                                                 const Function& meanwhile, const Prepare& prepare = {}) {
  int previous = -1, k_tile = 0;
  const auto multiply_stage = [&](auto num_tiles) {
    mbarrier_wait_parity(shared.full + ring.stage * 8, ring.phase);
    prepare(k_tile, ring.stage);
    const uint32_t offset = __shfl_sync(~0u, ring.stage, 0) * (shared.stage_bytes >> 4);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < num_tiles; ++i) {
      const uint32_t tile = offset + i * (Cfg::kTileBytes >> 4);
      multiply<Piece, SUMS_ROWS>(acc, {first_stage.a + tile, first_stage.b + tile, first_stage.ones}, k_tile + i == 0);
    }
    wgmma_commit_group();
    if (k_tile == 0) meanwhile();
    // The stage before this one is multiplied and free. This one goes on meanwhile.
    wgmma_wait_group<1>();
    if (previous >= 0) release_stage<Cfg>(shared, previous);
    previous = ring.stage;
    ring.advance();
    k_tile += num_tiles;
  };
  while (k_tile + Cfg::kTilesOfStage <= num_k_tiles) multiply_stage(std::integral_constant<int, Cfg::kTilesOfStage>{});
  if constexpr (Cfg::kTilesOfStage > 1) {
    if (k_tile < num_k_tiles) multiply_stage(std::integral_constant<int, 1>{});
  }
  // All is issued: the other consumer's products follow it in the matrix unit.
  if constexpr (Cfg::kTakesTurns) {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(shared.next_turn);
  }
  wgmma_wait_group<0>();
  fence_registers(acc.c);
  if constexpr (Cfg::kRowBlocks == 2) fence_registers(acc.c_below);
  if constexpr (SUMS_ROWS) fence_registers(acc.row_sums);
  release_stage<Cfg>(shared, previous);
}

// One chunk of a tile.
template <class Cfg, class Piece, bool SUMS_ROWS>
__device__ __forceinline__ void multiply_chunk(Accumulators<Piece>& acc, const StageAddress& first_stage,
                                               const Shared& shared, Ring<Cfg::kNumStages>& ring, int num_k_tiles) {
  if constexpr (Cfg::kAFromRegisters)
    multiply_from_registers<Cfg, Piece>(acc.c, first_stage.b, shared, ring, num_k_tiles);
  else
    multiply_k_tiles<Cfg, Piece, SUMS_ROWS>(acc, first_stage, shared, ring, num_k_tiles, [] {});
  if constexpr (SUMS_ROWS) add(acc.total_of_rows, {acc.row_sums[0], acc.row_sums[2]});
}

// All chunks of a tile, added in their order. Where a thread has the registers for it, two sets of accumulators take
// turns, so that a chunk's sums are added while the next one is multiplied.
template <class Cfg, bool SUMS_ROWS>
__device__ __forceinline__ void multiply_chunks(Accumulators<Cfg>& acc, const StageAddress& first_stage,
                                                const Shared& shared, Ring<Cfg::kNumStages>& ring, int num_k_tiles,
                                                int chunk_tiles) {
  if (num_k_tiles <= chunk_tiles)
    return multiply_chunk<Cfg, Cfg, SUMS_ROWS>(acc, first_stage, shared, ring, num_k_tiles);
  float total[Cfg::kAcc];
#pragma unroll
  for (int i = 0; i < Cfg::kAcc; ++i) total[i] = -0.0f;  // the number that adds nothing to any
  if constexpr (Cfg::kAFromRegisters || Cfg::kSumsRows || Cfg::kBlockN > 128 || Cfg::kConsumers == 3) {
#pragma unroll 1
    for (; num_k_tiles > 0; num_k_tiles -= chunk_tiles) {
      multiply_chunk<Cfg, Cfg, SUMS_ROWS>(acc, first_stage, shared, ring, min(num_k_tiles, chunk_tiles));
      add(total, acc.c);
    }
  } else {
    Accumulators<Cfg> other;
    forget_registers(other.c);
    multiply_k_tiles<Cfg, Cfg, false>(acc, first_stage, shared, ring, chunk_tiles, [] {});
    while ((num_k_tiles -= chunk_tiles) > 0) {
      multiply_k_tiles<Cfg, Cfg, false>(other, first_stage, shared, ring, min(num_k_tiles, chunk_tiles),
                                        [&] { add(total, acc.c); });
      if ((num_k_tiles -= chunk_tiles) <= 0) {
        add(total, other.c);
        break;
      }
      multiply_k_tiles<Cfg, Cfg, false>(acc, first_stage, shared, ring, min(num_k_tiles, chunk_tiles),
                                        [&] { add(total, other.c); });
      if (num_k_tiles <= chunk_tiles) {
        add(total, acc.c);
        break;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < Cfg::kAcc; ++i) acc.c[i] = total[i];
}

}  // namespace
}  // namespace tiledmm::cuda

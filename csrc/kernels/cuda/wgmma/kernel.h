// wgmma: Hopper (sm_90a), fp16, bf16 and fp32 rounded to tf32, with fp32 sums, which a C in fp32 has unrounded.
//
// Beyond rung 09, wgmma_single, which shows its main loop alone: one producer thread has the copy engine (TMA) fill a
// ring of shared-memory stages, and the matrix unit reads them where they lie (wgmma). Warp specialisation, register
// reallocation and consumers that take tiles in turns after NVIDIA's CUTLASS 3 (efficient_gemm.md), persistent blocks
// and grouped tile order after fast.cu (pranjalssh) and DeepGEMM. Ours: all four layouts and batches of any strides
// read in place; one order of summation whatever the tile, chunks of a long k side by side; a last wave of half tiles;
// operands that stream evict themselves from the second-level cache; clusters of up to eight blocks that fetch operands
// for each other where rows cross sectors of that cache (multicast, which gains nothing otherwise); exchanged roles,
// C^T = B^T A^T, where a tile's other sides fit C better; kernels without rare code for products that need none of it
// (Config::kIsPlain). fp32 needs operands along k: the other layouts pass through registers or are transposed on their
// way (tf32.h). Where k is short, two to four blocks of a small tile share a multiprocessor: some store while others
// multiply. What the copy engine cannot take (strides and addresses in units of 16 bytes) is repacked first.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/shared/boxes.h"
#include "kernels/cuda/shared/epilogue.h"
#include "kernels/cuda/shared/ptx_sm90.h"
#include "kernels/cuda/shared/tensor_map.h"
#include "kernels/cuda/shared/tiles.h"
#include "kernels/cuda/wgmma/cluster.h"
#include "kernels/cuda/wgmma/multiply.h"
#include "kernels/cuda/wgmma/produce.h"
#include "kernels/cuda/wgmma/task.h"
#include "kernels/cuda/wgmma/tf32.h"

namespace tiledmm::cuda {
namespace {

constexpr int kSmemBytes = 232448;  // of one block on sm_90
constexpr int kMaxStages = 12;      // more does not hide more

// One block tile: 64 rows to a consumer warpgroup, or all of it where two of them take turns. C_ is T_, or float beside
// a T_ of 16 bits.
template <class T_, class C_, int BLOCK_M, int BLOCK_N, bool A_IS_M_MAJOR, bool B_IS_N_MAJOR, bool SUMS_ROWS = false,
          bool CLUSTERS = always_built_with_clusters({BLOCK_M, BLOCK_N}),
          bool C_IS_M_MAJOR = sizeof(T_) == 4 && A_IS_M_MAJOR, bool TAKES_TURNS = false, bool IS_PLAIN = false>
struct Config {
  using T = T_;
  using C = C_;
  // Products in one chunk of k, which the copy engine stores as they are, have a kernel of their own with a quarter of
  // the others' code: a call waits for instructions that no cache holds.
  static constexpr bool kIsPlain = IS_PLAIN;
  using Plain =
      Config<T, C, BLOCK_M, BLOCK_N, A_IS_M_MAJOR, B_IS_N_MAJOR, SUMS_ROWS, CLUSTERS, C_IS_M_MAJOR, TAKES_TURNS, true>;
  static constexpr TileShape kShape = {BLOCK_M, BLOCK_N, TAKES_TURNS};
  static constexpr int kBlockM = BLOCK_M, kBlockN = BLOCK_N;
  static constexpr bool kAIsMMajor = A_IS_M_MAJOR, kBIsNMajor = B_IS_N_MAJOR;
  static constexpr int kBlockK = 128 / sizeof(T);  // the width of a swizzle
  static constexpr int kMmaK = 32 / sizeof(T);
  // fp32, products in tf32: the matrix unit takes A from registers or along k, B along k (tf32.h).
  static constexpr bool kIsTf32 = sizeof(T) == 4;
  static constexpr bool kAFromRegisters = kIsTf32 && A_IS_M_MAJOR;
  static constexpr bool kTransposesB = kIsTf32 && B_IS_N_MAJOR;
  static constexpr bool kCIsMMajor = C_IS_M_MAJOR;
  static constexpr bool kTakesTurns = TAKES_TURNS;
  static constexpr int kConsumers = TAKES_TURNS ? 2 : BLOCK_M / 64;
  // Blocks of a multiprocessor. Kernels of clusters, of row sums, of transposing warps and of 8 bits have one; others
  // have as many as there are registers for.
  static constexpr int kMostBlocks = kTransposesB || SUMS_ROWS || CLUSTERS || sizeof(T) == 1
                                         ? 1
                                         : int(min_of(most_blocks(kShape, IS_PLAIN), kAFromRegisters ? 2 : 4));
  static constexpr int kReaders = TAKES_TURNS ? 1 : kConsumers;  // consumers that multiply a stage
  static constexpr int kRowBlocks = BLOCK_M / 64 / kReaders;     // of 64 rows, that a consumer has of a tile
  // The producer is a warpgroup of its own where registers move between warpgroups, else a warp.
  static constexpr bool kMovesRegisters = kConsumers > 1;
  static constexpr int kThreads = kConsumers * kWarpgroup + (kMovesRegisters || kTransposesB ? kWarpgroup : 32);
  static constexpr int kProducerRegisters = kTransposesB ? 88 : kConsumers == 3 ? 32 : TAKES_TURNS ? 40 : 56;
  static constexpr int kConsumerRegisters = kTransposesB ? 208 : kConsumers == 3 ? 160 : TAKES_TURNS ? 232 : 224;
  static constexpr int kStartRegisters = kConsumers == 3 ? 128 : 168;  // of all, as many as the block may have
  // Rows, columns of C that a copy is for. Operands along m or n arrive in boxes as wide as the swizzle.
  static constexpr int kBoxM = A_IS_M_MAJOR ? kBlockK : BLOCK_M;
  static constexpr int kBoxN = B_IS_N_MAJOR ? (BLOCK_N == 32 || kIsTf32 ? 32 : 64) : BLOCK_N == 256 ? 128 : BLOCK_N;
  // Tiles begin at multiples of so many rows, columns: where lines of operands across k do. Transposed ones begin with
  // whole tiles.
  static constexpr int kUnitA = !A_IS_M_MAJOR ? 1 : kIsTf32 ? BLOCK_M : 64;
  static constexpr int kUnitB = !B_IS_N_MAJOR ? 1 : kIsTf32 ? BLOCK_N : BLOCK_N % 64 ? 32 : 64;
  using LoaderA = BoxLoader<T, BLOCK_M, kBoxM, !A_IS_M_MAJOR>;
  using LoaderB = BoxLoader<T, BLOCK_N, kBoxN, !B_IS_N_MAJOR>;
  // Blocks of a cluster fetch parts of each box for each other.
  static constexpr bool kClusters =
      CLUSTERS && tiledmm::may_cluster({BLOCK_M, BLOCK_N}, !B_IS_N_MAJOR, SUMS_ROWS) && !kIsTf32;
  static_assert(!kClusters || B_IS_N_MAJOR || kBoxN % 16 == 0, "a part begins where the pattern of the swizzle does");
  static constexpr int kABytes = BLOCK_M * 128, kBBytes = LoaderB::kNumBoxes * kBoxN * 128;
  static constexpr int kTileBytes = kABytes + kBBytes;
  // Small tiles come in pairs along k, which halves the waiting (1024 x 1024 x 1024 by 64 x 64: 12.3 -> 11.1 us). The
  // last one of an odd number comes alone. Larger ones lose more by stages that are freed later.
  static constexpr int kTilesOfStage = BLOCK_M == 64 && BLOCK_N <= 64 && !kAFromRegisters ? 2 : 1;
  static constexpr int kStageBytes = kTilesOfStage * kTileBytes;
  // The distance between two stages. Where blocks share a multiprocessor and k is one k tile, a stage holds one, too.
  static constexpr int stage_bytes(int num_k_tiles) {
    return kMostBlocks > 1 && num_k_tiles == 1 ? kTileBytes : kStageBytes;
  }
  static constexpr int kStoreN = BLOCK_N >= 64 && sizeof(C) == 2 ? 64 : 32;  // columns of C in one store
  static constexpr int kStoreBytes = 64 * kStoreN * sizeof(C);
  static constexpr int kRowStep = kAFromRegisters ? 1 : 8;  // between the two rows of a thread's accumulators
  static constexpr bool kStoresDirectly = BLOCK_N < 64 && sizeof(C) == 2;
  // A tile of ones is multiplied by A as well, which sums A's rows.
  static constexpr bool kSumsRows = SUMS_ROWS;
  static constexpr int kOnesBytes = SUMS_ROWS ? 8 * kMmaK * 2 : 0;
  static constexpr int kFixedBytes =
      1024 + kConsumers * num_store_buffers(kConsumers) * kStoreBytes + kOnesBytes + 3 * kMaxStages * 8;
  static constexpr int kFitting = (kSmemBytes - kFixedBytes) / kStageBytes;
  static constexpr int kNumStages = kFitting < kMaxStages ? kFitting : kMaxStages;
  static constexpr int kSmem = kFixedBytes + kNumStages * kStageBytes;
  static constexpr int kAcc = BLOCK_N / 2;  // accumulators of a thread for 64 rows
  // Operands of 8 bits (fp8.h): their configuration brings a main loop of its own, which scales sums.
  static constexpr bool kIsScaled = false;
  // The last wave's tiles may be shared out in halves, whose boxes are the same.
  static constexpr bool kSplitsTail = tiledmm::splits_tail({BLOCK_M, BLOCK_N});
  static constexpr bool kSumsChunks = !IS_PLAIN && tiledmm::sums_chunks(kShape, SUMS_ROWS);

  static_assert(BLOCK_M == 64 || BLOCK_M == 128 || BLOCK_M == 192, "one to three consumers of 64 rows");
  static_assert(BLOCK_N % (sizeof(C) == 4 ? 32 : 8) == 0 && BLOCK_N <= 256,
                "stores of fp32 are 32 columns wide; wgmma");
  static_assert(!kTransposesB || (kAFromRegisters && !kSplitsTail), "the transposing warps know whole tiles only");
  static_assert(!TAKES_TURNS || (kRowBlocks <= 2 && kTilesOfStage == 1 && !kIsTf32 && !SUMS_ROWS && !kSplitsTail),
                "a consumer multiplies and stores up to 128 rows, of whole tiles");
  static_assert(!kMovesRegisters ||
                    kProducerRegisters + kConsumers * kConsumerRegisters == (kConsumers + 1) * kStartRegisters,
                "setmaxnreg: what the block starts with");
  static_assert(kNumStages >= 4, "fewer do not hide the latency of a copy where k is long");
  static_assert(kMostBlocks == 1 || !TAKES_TURNS, "Ring::skip counts all stages");
  static_assert(kChunkUnit % (kTilesOfStage * kBlockK) == 0, "a chunk begins with a stage");
  static_assert(kABytes % 1024 == 0 && kBBytes % 1024 == 0, "the patterns of the swizzle repeat every 1024 bytes");

  // Both operands in shared memory: k-major as [row][64 of k], else as boxes [64 of k][box of rows].
  static constexpr uint64_t kDescA =
      A_IS_M_MAJOR ? matrix_descriptor(Swizzle::bytes_128, 8192, 1024) : matrix_descriptor(Swizzle::bytes_128, 0, 1024);
  static constexpr uint64_t kDescB =
      !B_IS_N_MAJOR || kIsTf32 ? matrix_descriptor(Swizzle::bytes_128, 0, 1024)
                               : matrix_descriptor(LoaderB::kPitch == 128 ? Swizzle::bytes_128 : Swizzle::bytes_64,
                                                   LoaderB::kPitch* kBlockK, LoaderB::kPitch * 8);
  // From one step of kMmaK to the next, in the descriptor's units of 16 bytes.
  static constexpr int kStepA = (A_IS_M_MAJOR ? kMmaK * 128 : 32) >> 4;
  static constexpr int kStepB = (B_IS_N_MAJOR && !kIsTf32 ? kMmaK * LoaderB::kPitch : 32) >> 4;
  static_assert(((kDescA | kDescB) & 0x3fff) == 0 && (kStepA | kStepB) < 0x4000, "addresses and steps are added there");
};

template <class Cfg, class Piece, Columns COLUMNS = Columns::all>
__device__ __forceinline__ void produce(const CUtensorMap* map_a, const CUtensorMap* map_b, const Arguments& args,
                                        const Shared& shared, Ring<Cfg::kNumStages>& ring, int first, int end,
                                        bool is_started = false) {
  for_each_piece<Cfg, Piece, COLUMNS>(args, first, end, [&](const Place& at) {
    produce_tile<Cfg, Piece>(map_a, map_b, args, shared, ring, at, is_started);
    is_started = false;
  });
}

// The first of a thread's two rows, counted from the consumer's first; the second lies kRowStep below.
template <class Cfg>
__device__ __forceinline__ int first_row_of_thread() {
  if constexpr (Cfg::kAFromRegisters)
    return first_row_of_fragment();
  else
    return threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4;
}

// Stores 64 rows of a tile, at `row`.
template <class Cfg, class Piece>
__device__ __forceinline__ void store_row_block(float (&sums)[Piece::kAcc], const TileBias<BiasElement<Cfg>>& bias,
                                                const CUtensorMap* map_c, const Arguments& args, const Shared& shared,
                                                int consumer, const Place& at, int row, int& num_stores) {
  // A tile that begins early stores no rows, and no columns, that are all of the tile before it.
  if (row >= args.m || row + 64 <= nominal_start<Cfg::kBlockM>(at.row)) return;
  const int new_col = std::is_same_v<Cfg, Piece> ? nominal_start<Cfg::kBlockN>(at.col) : 0;
  if constexpr (!Cfg::kIsScaled && (Cfg::kSumsChunks || !(Cfg::kIsTf32 || Cfg::kIsPlain || Cfg::kTakesTurns))) {
    if (args.num_splits > 1) {
      if constexpr (Cfg::kCIsMMajor)
        return store_partial_along_m<Piece>(sums, args, at, row);
      else
        return store_partial<Piece>(sums, args, at, row + first_row_of_thread<Cfg>());
    }
  }
  if constexpr (!Cfg::kIsPlain) {
    finish_block_tile<Piece>(sums, bias, args, shared.c, consumer, at.slab, row + first_row_of_thread<Cfg>(), at.col);
  }
  if constexpr (sizeof(typename Cfg::C) == 4)
    store_block_tile_f32<Piece>(sums, map_c, args, shared.c, consumer, at, row, new_col, num_stores);
  else if constexpr (Cfg::kStoresDirectly)
    store_block_tile_directly<Piece>(sums, args, at, row);
  else
    store_block_tile<Piece>(sums, map_c, args, shared.c, consumer, at, row, new_col, num_stores);
}

// A consumer's rows of a tile: multiplies what arrives and stores.
template <class Cfg, class Piece, bool SUMS_ROWS>
__device__ __forceinline__ void consume_tile(const CUtensorMap* map_c, const Arguments& args,
                                             const StageAddress& first_stage, const Shared& shared,
                                             Ring<Cfg::kNumStages>& ring, int consumer, const Place& at,
                                             int& num_stores) {
  using T = typename Cfg::T;
  Accumulators<Piece> acc{};
  if constexpr (!Cfg::kSumsChunks) forget_registers(acc.c);
  if constexpr (Cfg::kRowBlocks == 2) forget_registers(acc.c_below);
  if constexpr (SUMS_ROWS) forget_registers(acc.row_sums);
  const int row = at.row + (Cfg::kTakesTurns ? 0 : consumer * 64), thread_row = row + first_row_of_thread<Cfg>();
  TileBias<BiasElement<Cfg>> bias{};
  if constexpr (!Cfg::kIsPlain) bias = load_bias<Cfg>(args, at.col, thread_row, Cfg::kRowStep);
  if constexpr (Cfg::kIsScaled)
    Cfg::template multiply_scaled<Piece>(acc.c, args, first_stage, shared, ring, consumer, at);
  else if constexpr (Cfg::kSumsChunks)
    multiply_chunks<Cfg, SUMS_ROWS>(acc, first_stage, shared, ring, at.num_k_tiles, args.chunk_tiles);
  else
    multiply_chunk<Cfg, Piece, SUMS_ROWS>(acc, first_stage, shared, ring, at.num_k_tiles);
  if constexpr (SUMS_ROWS) {
    if (at.col == 0) store_row_sums<T>(acc.total_of_rows, args, at, row);
  }
  // One copy of the code serves both row blocks. The second one's bias is fetched while the first one is stored.
#pragma unroll 1
  for (int block = 0; block < Cfg::kRowBlocks; ++block) {
    const TileBias<BiasElement<Cfg>> own_bias = bias;
    if constexpr (Cfg::kRowBlocks == 2 && !Cfg::kIsPlain)
      bias = load_bias<Cfg>(args, at.col, thread_row + 64, Cfg::kRowStep);
    store_row_block<Cfg, Piece>(acc.c, own_bias, map_c, args, shared, consumer, at, row + block * 64, num_stores);
    if constexpr (Cfg::kRowBlocks == 2) {
#pragma unroll
      for (int i = 0; i < Cfg::kAcc; ++i) acc.c[i] = acc.c_below[i];
    }
  }
}

// The tiles of a consumer. Rows of A are summed in tiles of the first column.
template <class Cfg, class Piece, Columns COLUMNS = Columns::all>
__device__ __forceinline__ void consume(const CUtensorMap* map_c, const Arguments& args, const Shared& shared,
                                        Ring<Cfg::kNumStages>& ring, int consumer, int first, int end,
                                        int& num_stores) {
  const StageAddress first_stage = first_stage_of<Cfg>(shared, Cfg::kTakesTurns ? 0 : consumer);
  int num_tiles = 0;
  for_each_piece<Cfg, Piece, COLUMNS>(args, first, end, [&](const Place& at) {
    if constexpr (Cfg::kTakesTurns) {
      const int turn = num_tiles++;
      if (turn % 2 != consumer) return ring.skip(at.num_k_tiles);
      // The first consumer begins: the phase before the first counts as complete.
      mbarrier_wait_parity(shared.turn, (turn / 2 + consumer + 1) % 2);
    }
    consume_tile<Cfg, Piece, Cfg::kSumsRows && COLUMNS != Columns::others>(map_c, args, first_stage, shared, ring,
                                                                           consumer, at, num_stores);
  });
}

// Half of a tile, where the last wave's tiles may be shared out in halves.
template <class Cfg>
inline constexpr int kHalfN = Cfg::kSplitsTail ? Cfg::kBlockN / 2 : Cfg::kBlockN;
template <class Cfg>
struct Half {
  using Type = Config<typename Cfg::T, typename Cfg::C, Cfg::kBlockM, kHalfN<Cfg>, Cfg::kAIsMMajor, Cfg::kBIsNMajor,
                      Cfg::kSumsRows, always_built_with_clusters({Cfg::kBlockM, kHalfN<Cfg>}), Cfg::kCIsMMajor,
                      Cfg::kTakesTurns, Cfg::kIsPlain>;
};
template <class Cfg>
using HalfOf = typename Half<Cfg>::Type;

// Blocks that a stage's copies come from, this one among them. A warp's first lanes tell each of them that a stage is
// free: those of the same columns, then those of the same rows.
template <class Cfg>
__device__ __forceinline__ int join_cluster(const Arguments& args, Shared& shared, int log_cluster) {
  shared.in_cluster = log_cluster > 0;
  const int num_senders = Cfg::kClusters ? (1 << args.cluster_m) + (1 << args.cluster_n) - 1 : 1;
  if (Cfg::kClusters && shared.in_cluster) {
    const ClusterRank rank = cluster_rank<Cfg>(args);
    const int lane = threadIdx.x % 32, block = rank.m + (rank.n << args.cluster_m);
    const int along_n = lane + 1 - (1 << args.cluster_m);
    const int other = along_n > 0 ? along_n << args.cluster_m : lane;
    shared.releases = lane < num_senders ? map_shared_cluster(shared.empty, block ^ other) : 0;
  }
  return num_senders;
}

// By the warps that do not multiply: all tiles of the block.
template <class Cfg>
__device__ __forceinline__ void run_producer(const CUtensorMap* map_a, const CUtensorMap* map_b, const Arguments& args,
                                             const Shared& shared, int warp) {
  constexpr int kProducerWarp = Cfg::kConsumers * 4;
  Ring<Cfg::kNumStages> ring{0, 0, num_stages<Cfg>(args)};
  if constexpr (Cfg::kMovesRegisters) setmaxnreg_dec<Cfg::kProducerRegisters>();
  if constexpr (Cfg::kTransposesB) {
    if (warp > kProducerWarp) {
      const int transposer = warp - kProducerWarp - 1;
      for_each_piece<Cfg, Cfg>(args, 0, args.num_tiles, [&](const Place& at) {
        transpose_k_tiles<Cfg>(shared, ring, at.num_k_tiles, transposer);
      });
    }
  }
  if (warp == kProducerWarp && elect_sync()) {
    if constexpr (Cfg::kSumsRows) {
      produce<Cfg, Cfg, Columns::first>(map_a, map_b, args, shared, ring, 0, args.full_tiles);
      produce<Cfg, Cfg, Columns::others>(map_a, map_b, args, shared, ring, 0, args.full_tiles);
    } else {
      produce<Cfg, Cfg>(map_a, map_b, args, shared, ring, 0, args.full_tiles, args.start != Start::late);
    }
    if constexpr (Cfg::kSplitsTail)
      produce<Cfg, HalfOf<Cfg>>(map_a, map_b, args, shared, ring, args.full_tiles, args.num_tiles);
    if (Cfg::kClusters && shared.in_cluster) wait_for_releases(shared, ring);
  }
}

// By a warpgroup that multiplies: the same tiles.
template <class Cfg>
__device__ __forceinline__ void run_consumer(const CUtensorMap* map_c, const Arguments& args, const Shared& shared,
                                             int consumer) {
  Ring<Cfg::kNumStages> ring{0, 0, num_stages<Cfg>(args)};
  if constexpr (Cfg::kMovesRegisters) setmaxnreg_inc<Cfg::kConsumerRegisters>();
  int num_stores = 0;
  if constexpr (Cfg::kSumsRows) {
    consume<Cfg, Cfg, Columns::first>(map_c, args, shared, ring, consumer, 0, args.full_tiles, num_stores);
    consume<Cfg, Cfg, Columns::others>(map_c, args, shared, ring, consumer, 0, args.full_tiles, num_stores);
  } else {
    consume<Cfg, Cfg>(map_c, args, shared, ring, consumer, 0, args.full_tiles, num_stores);
  }
  if constexpr (Cfg::kSplitsTail)
    consume<Cfg, HalfOf<Cfg>>(map_c, args, shared, ring, consumer, args.full_tiles, args.num_tiles, num_stores);
}

template <class Cfg>
__global__ void __launch_bounds__(Cfg::kThreads, Cfg::kMostBlocks)
    wgmma_kernel(const __grid_constant__ CUtensorMap map_a,
                 const __grid_constant__ BoxMaps<typename Cfg::LoaderB> map_b,
                 const __grid_constant__ CUtensorMap map_c, const __grid_constant__ Arguments args) {
  constexpr int kNumStages = Cfg::kNumStages;
  extern __shared__ char dynamic_smem[];
  // The patterns of the swizzle count from multiples of 1024 bytes.
  char* smem = dynamic_smem + (-smem_address(dynamic_smem) & 1023);
  const int stage_bytes = Cfg::stage_bytes(args.num_k_tiles);
  char* smem_c = smem + num_stages<Cfg>(args) * stage_bytes;
  constexpr int kStoreBytes = num_store_buffers(Cfg::kConsumers) * Cfg::kStoreBytes;  // of a consumer
  char* smem_ones = smem_c + Cfg::kConsumers * kStoreBytes;
  const int warp = threadIdx.x / 32;
  constexpr int kProducerWarp = Cfg::kConsumers * 4;
  const int log_cluster = Cfg::kClusters ? args.cluster_m + args.cluster_n : 0;
  Shared shared;
  shared.stages = smem_address(smem);
  shared.stage_bytes = stage_bytes;
  shared.ones = smem_address(smem_ones);
  shared.full = shared.ones + Cfg::kOnesBytes;
  shared.empty = shared.full + kNumStages * 8;
  shared.transposed = shared.empty + kNumStages * 8;
  // Before all that others need: a cold line of the constants' cache costs 0.1 us.
  if (warp == kProducerWarp && elect_sync()) {
    set_up_producer<Cfg>(&map_a, map_b.maps, shared);
    // The first copies wait for no other warp, only for the end of the kernels before this one.
    if constexpr (!Cfg::kSumsRows) {
      if (args.start == Start::by_grid) start_tile<Cfg>(&map_a, map_b.maps, args, shared, place_by_grid<Cfg>(args));
      if (args.start == Start::by_index)
        start_tile<Cfg>(&map_a, map_b.maps, args, shared,
                        place_of<Cfg>(tile_of(int(blockIdx.x) >> log_cluster, args), args));
    }
  }
  const int consumer = Cfg::kConsumers == 1 ? 0 : threadIdx.x / kWarpgroup;
  shared.c = smem_c + consumer * kStoreBytes;
  const uint32_t turns = shared.transposed;  // barriers that such kernels do without
  shared.turn = turns + consumer * 8;
  shared.next_turn = turns + (1 - consumer) * 8;
  const int num_senders = join_cluster<Cfg>(args, shared, log_cluster);
  if (threadIdx.x == 0) {
    if constexpr (Cfg::kIsPlain && !Cfg::kStoresDirectly) prefetch_tensormap(&map_c);
#pragma unroll
    for (int stage = 0; stage < kNumStages; ++stage) {
      mbarrier_init(shared.empty + stage * 8, 4 * Cfg::kReaders * num_senders);  // one arrival per consumer warp
      if constexpr (Cfg::kTransposesB) mbarrier_init(shared.transposed + stage * 8, 1);
    }
    if constexpr (Cfg::kTakesTurns) {
      mbarrier_init(turns, 4);
      mbarrier_init(turns + 8, 4);
    }
    fence_mbarrier_init();
  }
  if constexpr (Cfg::kSumsRows) {
    if (threadIdx.x < Cfg::kOnesBytes / 4) {
      reinterpret_cast<uint32_t*>(smem_ones)[threadIdx.x] = pack_pair<typename Cfg::T>(1, 1);
      fence_proxy_async();
    }
  }
  if (Cfg::kClusters && shared.in_cluster) {
    cluster_arrive_relaxed();
    cluster_wait();  // the other blocks' barriers are initialised as well
  }
  __syncthreads();
  // Up to here nothing was read or written that the kernel before this one may still work on.
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();

  if (warp >= kProducerWarp)
    run_producer<Cfg>(&map_a, map_b.maps, args, shared, warp);
  else
    run_consumer<Cfg>(&map_c, args, shared, consumer);
  // Shared memory must outlive the stores that read it.
  if (warp < kProducerWarp && threadIdx.x % kWarpgroup == 0) cp_async_bulk_wait_group_read<0>();
}

// ---- host ----

// Stages of each of a multiprocessor's blocks, which take 1 KB of its shared memory beside their own.
template <class Cfg>
constexpr int stages_of_launch(int blocks, int stage_bytes) {
  const int bytes = (kSmemBytes + 1024) / blocks - 1024 - Cfg::kFixedBytes;
  return int(min_of(bytes / stage_bytes, Cfg::kNumStages));
}

template <class Cfg>
Arguments arguments_of(const Task& task) {
  const GemmProblem& p = task.problem.gemm;
  const WgmmaPlan& plan = task.plan;
  const TileSchedule& schedule = plan.schedule;
  Arguments args{};
  args.start = schedule.start;
  args.m = int(p.m);
  args.n = int(p.n);
  args.num_k_tiles = int(ceil_div(p.k, Cfg::kBlockK));
  args.num_stages = uint8_t(stages_of_launch<Cfg>(plan.tiles.blocks, Cfg::stage_bytes(args.num_k_tiles)));
  args.cluster_m = uint8_t(plan.tiles.cluster_m);
  args.cluster_n = uint8_t(plan.tiles.cluster_n);
  for (int i = 0; i < 1 << args.cluster_n; ++i) args.same_rows |= 1u << (i << args.cluster_m);
  args.same_cols = (1u << (1 << args.cluster_m)) - 1;
  args.tiles_m = schedule.tiles_m;
  args.tiles_n = schedule.tiles_n;
  args.chunk_tiles = int(ceil_div(task.problem.chunk_k, Cfg::kBlockK));
  args.num_splits = schedule.num_splits;
  args.num_tiles = schedule.num_tiles;
  args.full_tiles = schedule.full_tiles;
  // Blocks of factors begin with tiles.
  args.last_row = Cfg::kIsScaled ? INT32_MAX : latest_start(p.m, Cfg::kBlockM, Cfg::kUnitA);
  args.last_col = Cfg::kIsScaled ? INT32_MAX : latest_start(round_up(p.n, 2), Cfg::kBlockN, Cfg::kUnitB);
  args.num_batch_dims = p.num_batch_dims;
  for (int32_t d = 0; d < p.num_batch_dims; ++d) {
    const BatchDim& dim = task.problem.batch_dims[d];
    args.batch[d] = {int(dim.size), int(dim.stride_a / plan.a.batch_step), int(dim.stride_b / plan.b.batch_step),
                     dim.stride_c / plan.c.batch_step, dim.stride_bias};
  }
  args.slabs_step_a = args.num_batch_dims == 1 && args.batch[0].a == 1;
  args.slabs_step_b = args.num_batch_dims == 1 && args.batch[0].b == 1;
  args.slabs_step_k = args.num_splits > 1 ? args.chunk_tiles : 0;
  args.most_k_tiles = args.num_splits > 1 ? args.chunk_tiles : args.num_k_tiles;
  set_epilogue(args, task.problem);
  args.stores_by_tma = plan.stores_by_tma;
  args.is_exchanged = plan.tiles.is_exchanged;
  args.stores_pairs = reinterpret_cast<uintptr_t>(p.c) % (2 * sizeof(typename Cfg::C)) == 0 && p.n % 2 == 0 &&
                      p.stride_cm % 2 == 0 && (p.num_batch_dims == 0 || plan.c.batch_step % 2 == 0);
  args.c = p.c;
  args.ldc = Cfg::kCIsMMajor ? p.stride_cn : p.stride_cm;
  args.batch_step_c = plan.c.batch_step;
  args.row_sums = p.row_sums;
  args.partial = task.partial;
  args.ld_partial = ld_partial(Cfg::kCIsMMajor ? p.m : p.n, Cfg::kSumsRows);
  return args;
}

// A's and B's.
template <class Cfg>
bool encode_operands(const Task& task, Arguments& args, CUtensorMap& map_a, BoxMaps<typename Cfg::LoaderB>& map_b) {
  const GemmProblem& p = task.problem.gemm;
  const WgmmaPlan& plan = task.plan;
  args.a.policy = plan.schedule.evicts_a ? CachePolicy::evict_first : CachePolicy::evict_normal;
  args.b.policy = plan.schedule.evicts_b ? CachePolicy::evict_first : CachePolicy::evict_normal;
  const bool is_encoded = Cfg::LoaderA::encode(map_a, args.a, p.dtype_a, p.a, plan.a, args.cluster_n) &&
                          Cfg::LoaderB::encode(map_b.maps, args.b, p.dtype_b, p.b, plan.b, args.cluster_m);
  const int a_bytes = Cfg::LoaderA::num_bytes(args.a), b_bytes = Cfg::LoaderB::num_bytes(args.b);
  args.tile_bytes = a_bytes + b_bytes;
  args.half_tile_bytes = a_bytes + b_bytes / 2;
  return is_encoded;
}

constexpr const char* kNotEncoded = "the driver refuses a tensor map";

template <class Cfg>
const char* launch_shared(const Task& task) {
  Arguments args = arguments_of<Cfg>(task);
  CUtensorMap map_a{};
  BoxMaps<typename Cfg::LoaderB> map_b{};
  if (!encode_operands<Cfg>(task, args, map_a, map_b)) return kNotEncoded;
  const unsigned chunks = unsigned(args.num_splits), num_slabs = unsigned(task.problem.batch_size) * chunks;
  return launch_in_clusters<&wgmma_shared_kernel<Cfg>>(dim3(1, 1, chunks),
                                                       dim3(unsigned(args.tiles_m), unsigned(args.tiles_n), num_slabs),
                                                       Cfg::kThreads, Cfg::kSmem, task.stream, map_a, map_b, args);
}

template <class Cfg>
const char* launch_config(const Task& task) {
  const GemmProblem& p = task.problem.gemm;
  const TileSchedule& schedule = task.plan.schedule;
  Arguments args = arguments_of<Cfg>(task);
  const unsigned cluster = 1u << args.cluster_m << args.cluster_n;
  if (cluster > 1 && !Cfg::kClusters) return "this kernel's blocks do not work in clusters";
  static_assert(stages_of_launch<Cfg>(Cfg::kMostBlocks, Cfg::kTileBytes) > 1 &&
                    stages_of_launch<Cfg>(int(min_of(Cfg::kMostBlocks, 3)), Cfg::kStageBytes) > 0,
                "stages of one k tile, of two");
  if (task.plan.tiles.blocks > Cfg::kMostBlocks) return "this kernel's blocks share no multiprocessor";
  args.groups = TileGroups(args.tiles_m, args.tiles_n, schedule.group_m);
  args.tiles_of_item = Divisor(args.tiles_m * args.tiles_n);

  CUtensorMap map_a{}, map_c{};
  BoxMaps<typename Cfg::LoaderB> map_b{};
  bool is_encoded = encode_operands<Cfg>(task, args, map_a, map_b);
  if (args.stores_by_tma && !Cfg::kStoresDirectly)
    is_encoded = is_encoded && encode_tensor_map(&map_c, p.dtype_c, p.c, task.plan.c, Cfg::kStoreN,
                                                 Cfg::kCIsMMajor ? 32 : 64, 128, false);
  if (!is_encoded) return kNotEncoded;
  dim3 grid{unsigned(schedule.num_units) * cluster};
  if (args.start == Start::by_grid)
    grid = {unsigned(args.tiles_m) * cluster, unsigned(args.tiles_n),
            unsigned(schedule.num_units / (args.tiles_m * args.tiles_n))};
  const SharedBytes smem(Cfg::kFixedBytes + args.num_stages * Cfg::stage_bytes(args.num_k_tiles), Cfg::kSmem);
  return launch_in_clusters<&wgmma_kernel<Cfg>>(dim3(cluster), grid, Cfg::kThreads, smem, task.stream, map_a, map_b,
                                                map_c, args);
}

// Whether the kernel of Config::Plain computes all that a product needs.
template <class Cfg>
bool is_plain(const Task& task) {
  const GemmProblem& p = task.problem.gemm;
  return task.problem.chunk_k >= p.k && tiledmm::is_plain(p) && (task.plan.stores_by_tma || Cfg::kStoresDirectly);
}

// Clusters that share a tile have a kernel of their own, too: the other one would pay for the code.
template <class Cfg, bool SHARES>
const char* launch_kernel_of(const Task& task) {
  if constexpr (SHARES)
    return launch_shared<Cfg>(task);
  else
    return is_plain<Cfg>(task) ? launch_config<typename Cfg::Plain>(task) : launch_config<Cfg>(task);
}

template <class T, class C, int TILE, bool A_IS_M_MAJOR, bool B_IS_N_MAJOR, bool CLUSTERS>
using ConfigOf = Config<T, C, kTileShapes[TILE].block_m, kTileShapes[TILE].block_n, A_IS_M_MAJOR, B_IS_N_MAJOR, false,
                        CLUSTERS, false, kTileShapes[TILE].takes_turns>;

template <class T, class C, int TILE, bool CLUSTERS, bool SHARES = false>
const char* launch_layout(const Task& task) {
  if (task.plan.b.is_k_major)
    return task.plan.a.is_k_major ? launch_kernel_of<ConfigOf<T, C, TILE, false, false, CLUSTERS>, SHARES>(task)
                                  : launch_kernel_of<ConfigOf<T, C, TILE, true, false, CLUSTERS>, SHARES>(task);
  if constexpr (serves_layout(kTileShapes[TILE], false))
    return task.plan.a.is_k_major ? launch_kernel_of<ConfigOf<T, C, TILE, false, true, CLUSTERS>, SHARES>(task)
                                  : launch_kernel_of<ConfigOf<T, C, TILE, true, true, CLUSTERS>, SHARES>(task);
  return "this tile needs a k-major B";
}

template <class T, class C, int TILE>
const char* launch_tile(const Task& task) {
  constexpr TileShape kShape = kTileShapes[TILE];
  constexpr int M = kShape.block_m, N = kShape.block_n;
  if (task.problem.gemm.row_sums) {
    if constexpr (sums_rows(kShape) && std::is_same_v<T, C>)
      return launch_config<Config<T, C, M, N, true, true, true>>(task);
    return "this tile does not sum rows";
  }
  if constexpr (shares_tiles(kShape)) {
    if (task.plan.tiles.shares_tiles) return launch_layout<T, C, TILE, false, true>(task);
  }
  if constexpr (may_cluster(kShape, true) && !always_built_with_clusters(kShape)) {
    if (task.plan.tiles.cluster_m || task.plan.tiles.cluster_n) return launch_layout<T, C, TILE, true>(task);
  }
  return launch_layout<T, C, TILE, always_built_with_clusters(kShape)>(task);
}

template <int TILE>
const char* launch_tile_tf32(const Task& task) {
  constexpr int M = kTf32TileShapes[TILE].block_m, N = kTf32TileShapes[TILE].block_n;
  if (task.plan.a.is_k_major) return launch_config<Config<float, float, M, N, false, false>>(task);
  if (task.plan.b.is_k_major)
    return task.is_exchanged
               ? launch_config<Config<float, float, M, N, true, false>>(task)
               : launch_config<
                     Config<float, float, M, N, true, false, false, always_built_with_clusters({M, N}), false>>(task);
  if constexpr (serves_path({M, N}, Tf32Path::b_transposed))
    return launch_config<Config<float, float, M, N, true, true>>(task);
  return "this tile does not transpose B";
}

}  // namespace

template <int INSTANCE>
const char* launch_instance(const Task& task) {
  constexpr Instance kOwn = kWgmmaInstances[INSTANCE];
  return visit_number<kOwn.first, kOwn.end>(task.plan.tiles.tile, "no such tile", [&](auto number) {
    constexpr int kTile = decltype(number)::value;
    constexpr DType kDType = kWgmmaInstances[INSTANCE].dtype;
    if constexpr (kDType == DType::f32) {
      return launch_tile_tf32<kTile>(task);
    } else {
      using T = std::conditional_t<kDType == DType::f16, __half, __nv_bfloat16>;
      if constexpr (!kWgmmaInstances[INSTANCE].is_wide)
        return launch_tile<T, T, kTile>(task);
      else if constexpr (has_wide_result(kTileShapes[kTile]))
        return launch_tile<T, float, kTile>(task);
      else
        return "this tile's C has the operands' dtype";
    }
  });
}

}  // namespace tiledmm::cuda

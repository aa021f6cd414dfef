// Rung 11, wgmma: Hopper (sm_90a), fp16 and bf16 with fp32 sums.
//
// Since rung 10: no thread computes an address of A or B. One producer thread has the copy engine (TMA) fill a ring of
// shared-memory stages, and the matrix unit reads them where they lie (wgmma): the issue slots that copies and fragment
// loads cost are gone. Warp specialisation and register reallocation after NVIDIA's CUTLASS 3 (efficient_gemm.md),
// persistent blocks and grouped tile order after fast.cu (pranjalssh) and DeepGEMM. Ours: all four layouts read in
// place; any m, n, k; one order of summation, k16 steps in order into one accumulator, whatever the tile; a last wave
// of half tiles. Measured without gain: multicast in clusters of two, prefetching the first stages to the cache.
// An operand whose address or leading dimension the copy engine cannot take (16 bytes) is repacked first.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdlib>
#include <utility>

#include "core/wgmma_config.h"
#include "core/wgmma_tf32_config.h"
#include "kernels/cuda/chunk_sums.h"
#include "kernels/cuda/repack.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/transpose.h"
#include "kernels/cuda/wgmma_epilogue.h"
#include "kernels/cuda/wgmma_tf32.h"
#include "kernels/gpu/kernels.h"
#include "platform/block_tile.h"
#include "platform/ptx_sm90.h"

namespace tiledmm::cuda {
namespace {

constexpr int kSmemBytes = 232448;  // of one block on sm_90
constexpr int kMaxStages = 12;      // more does not hide more

// A tile of 8 x 16 ones.
constexpr uint64_t kDescOnes = matrix_descriptor(Swizzle::none, 128, 128);

// One block tile: 64 or 128 rows to a consumer warpgroup.
template <class T_, int BLOCK_M, int BLOCK_N, bool A_IS_M_MAJOR, bool B_IS_N_MAJOR, bool SUMS_ROWS = false>
struct Config {
  using T = T_;
  static constexpr int kBlockM = BLOCK_M, kBlockN = BLOCK_N;
  static constexpr bool kAIsMMajor = A_IS_M_MAJOR, kBIsNMajor = B_IS_N_MAJOR;
  static constexpr int kBlockK = 128 / sizeof(T);  // the width of a swizzle
  static constexpr int kMmaK = 32 / sizeof(T);
  // fp32: the matrix unit takes A from registers or along k, B along k.
  static constexpr bool kIsTf32 = sizeof(T) == 4;
  static constexpr bool kAFromRegisters = kIsTf32 && A_IS_M_MAJOR;
  static constexpr bool kTransposesB = kIsTf32 && B_IS_N_MAJOR;
  static constexpr int kConsumers = BLOCK_M == 64 ? 1 : 2;
  static constexpr int kMmas = BLOCK_M / 64 / kConsumers;  // of 64 rows, to a consumer
  // The producer is a warpgroup of its own where registers move between warpgroups, else a warp.
  static constexpr bool kMovesRegisters = kConsumers == 2;
  static constexpr int kThreads = kConsumers * kWarpgroup + (kMovesRegisters || kTransposesB ? kWarpgroup : 32);
  // setmaxnreg; with two consumers 3 * 168, what the block starts with.
  static constexpr int kProducerRegisters = kTransposesB ? 88 : 40, kConsumerRegisters = kTransposesB ? 208 : 232;
  // B along n arrives in boxes as wide as the swizzle.
  static constexpr int kBoxN = BLOCK_N == 32 || kIsTf32 ? 32 : 64;
  static constexpr int kBoxRows = BLOCK_N == 256 ? 128 : BLOCK_N;  // of a k-major B in one copy
  static constexpr int kLoadedN = B_IS_N_MAJOR ? (BLOCK_N + kBoxN - 1) / kBoxN * kBoxN : BLOCK_N;
  static constexpr int kABytes = BLOCK_M * 128, kBBytes = kLoadedN * 128;
  static constexpr int kStageBytes = kABytes + kBBytes;
  static constexpr int kStoreN = BLOCK_N % 64 == 0 && kMmas == 1 && !kIsTf32 ? 64 : 32;  // columns of C in one store
  static constexpr int kStoreBytes = 64 * kStoreN * sizeof(T);
  static constexpr int kBiasBytes = kIsTf32 ? 0 : (BLOCK_N * 2 + 15) / 16 * 16;
  // A tile of ones is multiplied by A as well, which sums A's rows.
  static constexpr bool kSumsRows = SUMS_ROWS;
  static constexpr int kOnesBytes = SUMS_ROWS ? 8 * kMmaK * 2 : 0;
  static constexpr int kFixedBytes =
      1024 + kConsumers * (kNumStoreBuffers * kStoreBytes + kBiasBytes) + kOnesBytes + 3 * kMaxStages * 8;
  static constexpr int kFitting = (kSmemBytes - kFixedBytes) / kStageBytes;
  static constexpr int kNumStages = kFitting < kMaxStages ? kFitting : kMaxStages;
  static constexpr int kSmem = kFixedBytes + kNumStages * kStageBytes;
  static constexpr int kAcc = BLOCK_N / 2;  // accumulators of a thread for 64 rows
  // The last wave's tiles may be shared out in halves, whose boxes are the same.
  static constexpr bool kSplitsTail = tiledmm::splits_tail({BLOCK_M, BLOCK_N});
  static constexpr bool kSumsChunks = tiledmm::sums_chunks({BLOCK_M, BLOCK_N});

  static_assert(!kTransposesB || !kSplitsTail, "the transposing warps know whole tiles only");
  static_assert(BLOCK_M == 64 || BLOCK_M == 128 || BLOCK_M == 256, "one or two consumers of 64 rows, or two of 128");
  static_assert(BLOCK_N % 16 == 0 && BLOCK_N >= 32 && BLOCK_N <= 256,
                "stores are 32 columns wide, a wgmma at most 256");
  static_assert(kNumStages >= 3, "fewer do not hide the latency of a copy");
  static_assert(kABytes % 1024 == 0 && kBBytes % 1024 == 0, "the patterns of the swizzle repeat every 1024 bytes");

  // Both operands in shared memory: k-major as [row][64 of k], else as boxes [64 of k][box of rows].
  [[maybe_unused]] static constexpr uint64_t kDescA =
      A_IS_M_MAJOR ? matrix_descriptor(Swizzle::bytes_128, 8192, 1024) : matrix_descriptor(Swizzle::bytes_128, 0, 1024);
  static constexpr uint64_t kDescB =
      !B_IS_N_MAJOR || kIsTf32
          ? matrix_descriptor(Swizzle::bytes_128, 0, 1024)
          : matrix_descriptor(kBoxN == 64 ? Swizzle::bytes_128 : Swizzle::bytes_64, kBoxN * 2 * kBlockK, kBoxN * 2 * 8);
  // From one step of kMmaK to the next, and to the next 64 rows, in the descriptor's units of 16 bytes.
  [[maybe_unused]] static constexpr int kStepA = (A_IS_M_MAJOR ? kMmaK * 128 : 32) >> 4;
  static constexpr int kStepB = (B_IS_N_MAJOR && !kIsTf32 ? kMmaK * kBoxN * 2 : 32) >> 4;
  [[maybe_unused]] static constexpr int kStepMma = (64 * 128) >> 4;
};

// A cluster is of one block or of two.
__device__ __forceinline__ int cluster_rank(const Arguments& args) { return blockIdx.x & (args.cluster_size - 1); }
__device__ __forceinline__ int cluster_index(const Arguments& args) { return blockIdx.x >> (args.cluster_size - 1); }
__device__ __forceinline__ int num_clusters(const Arguments& args) { return gridDim.x >> (args.cluster_size - 1); }

// The work of number `index`: chunk by chunk, item by item of the batch; in an item, tiles in groups of group_m rows,
// so that the tiles in flight share operands in the second-level cache.
template <class Cfg>
__device__ __forceinline__ Place place_of(int index, const Arguments& args) {
  Place at{};
  const int tiles_of_item = args.tiles_m * args.tiles_n;
  if (args.num_tiles > tiles_of_item) {
    at.slab = index / tiles_of_item;
    index -= at.slab * tiles_of_item;
  }
  const int group_size = args.group_m * args.tiles_n;
  const int group = index / group_size, within = index - group * group_size;
  const int first = group * args.group_m;
  const int rows = min(args.tiles_m - first, args.group_m);
  at.row = ((first + within % rows) * args.cluster_size + cluster_rank(args)) * Cfg::kBlockM;
  at.col = within / rows * Cfg::kBlockN;
  int item = at.slab;
  at.num_k_tiles = args.num_k_tiles;
  if (args.num_splits > 1) {
    item = at.slab / args.num_splits;
    at.first_k_tile = (at.slab - item * args.num_splits) * args.chunk_tiles;
    at.num_k_tiles = min(args.num_k_tiles - at.first_k_tile, args.chunk_tiles);
  }
#pragma unroll 1
  for (int d = args.num_batch_dims - 1; d >= 0; --d) {
    const BatchSteps& dim = args.batch[d];
    const int rest = item / dim.size, idx = item - rest * dim.size;
    item = rest;
    at.batch_a += idx * dim.a;
    at.batch_b += idx * dim.b;
    at.batch_c += idx * dim.c;
  }
  return at;
}

// A place in the ring; the same sequence in the producer and in each consumer.
template <int NUM_STAGES>
struct Ring {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == NUM_STAGES) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// In a cluster, each block loads its share of every box of B for both.
template <class Cfg>
__device__ __forceinline__ void load_block_tile(uint32_t smem_a, const CUtensorMap* map_a, const CUtensorMap* map_b,
                                                const Place& at, int k, uint32_t barrier, int cluster_size, int rank) {
  if constexpr (Cfg::kAIsMMajor) {
#pragma unroll
    for (int i = 0; i < Cfg::kBlockM; i += 128 / int(sizeof(typename Cfg::T)))
      cp_async_bulk_tensor_3d(smem_a + i * 128, map_a, at.row + i, k, at.batch_a, barrier);
  } else {
    cp_async_bulk_tensor_3d(smem_a, map_a, k, at.row, at.batch_a, barrier);
  }
  constexpr int kBoxes = Cfg::kBIsNMajor ? Cfg::kLoadedN / Cfg::kBoxN : Cfg::kBlockN / Cfg::kBoxRows;
  constexpr int kBoxCols = Cfg::kBIsNMajor ? Cfg::kBoxN : Cfg::kBoxRows;
  constexpr int kLines =
      Cfg::kBIsNMajor ? Cfg::kBlockK : Cfg::kBoxRows;  // of a box, the same for each block of a cluster
  constexpr int kLineBytes = (Cfg::kBIsNMajor ? Cfg::kBoxN : Cfg::kBlockK) * sizeof(typename Cfg::T);
  const int line = rank * (kLines / 2);
#pragma unroll
  for (int box = 0; box < kBoxes; ++box) {
    const uint32_t smem_b = smem_a + Cfg::kABytes + box * kLines * kLineBytes + line * kLineBytes;
    const int col = at.col + box * kBoxCols;
    const int inner = Cfg::kBIsNMajor ? col : k, outer = (Cfg::kBIsNMajor ? k : col) + line;
    if (cluster_size == 1)
      cp_async_bulk_tensor_3d(smem_b, map_b, inner, outer, at.batch_b, barrier);
    else
      cp_async_bulk_tensor_3d_multicast(smem_b, map_b, inner, outer, at.batch_b, barrier, 3);
  }
}

// Accumulators of a consumer: of C, and of the sums of A's rows.
template <class Cfg>
struct Accumulators {
  float c[Cfg::kMmas][Cfg::kAcc];
  float row_sums[Cfg::kMmas][4];
};

// Addresses of a stage, as matrix_address has them. Only a descriptor's lower half changes, so that the arithmetic
// stays in 32 bits and in uniform registers, which the matrix unit takes its descriptors from.
struct StageAddress {
  uint32_t a, b, ones;
};

template <class Cfg>
__device__ __forceinline__ void multiply(Accumulators<Cfg>& acc, const StageAddress& address, bool is_first) {
  using T = typename Cfg::T;
  const auto descriptor = [](uint64_t fixed, uint32_t address) {
    return (fixed & 0xffffffff00000000) | (uint32_t(fixed) + address);
  };
#pragma unroll
  for (int step = 0; step < Cfg::kBlockK / Cfg::kMmaK; ++step) {
#pragma unroll
    for (int mma = 0; mma < Cfg::kMmas; ++mma) {
      const uint64_t desc_a = descriptor(Cfg::kDescA, address.a + step * Cfg::kStepA + mma * Cfg::kStepMma);
      const uint64_t desc_b = descriptor(Cfg::kDescB, address.b + step * Cfg::kStepB);
      if constexpr (Cfg::kIsTf32)
        wgmma_mma_async_tf32<Cfg::kBlockN>(acc.c[mma], desc_a, desc_b, step > 0 || !is_first);
      else
        wgmma_mma_async<T, Cfg::kBlockN, Cfg::kAIsMMajor, Cfg::kBIsNMajor>(acc.c[mma], desc_a, desc_b,
                                                                           step > 0 || !is_first);
      if constexpr (Cfg::kSumsRows)
        wgmma_mma_async<T, 8, Cfg::kAIsMMajor, false>(acc.row_sums[mma], desc_a, descriptor(kDescOnes, address.ones),
                                                      step > 0 || !is_first);
    }
  }
}

// Shared memory of a block, as addresses.
struct Shared {
  uint32_t stages, full, empty, transposed;  // the last three: barriers, one per stage
  uint32_t ones;
  int cluster_size;
  char *c, *bias;  // of this consumer
};

// The tiles of one block from `first` on, in halves if Piece is half as wide as Cfg.
template <class Cfg, class Piece, class Function>
__device__ __forceinline__ void for_each_piece(const Arguments& args, int first, int end, const Function& function) {
  constexpr int kPieces = Cfg::kBlockN / Piece::kBlockN;
  for (int i = cluster_index(args); i < (end - first) * kPieces; i += num_clusters(args)) {
    Place at = place_of<Cfg>(first + i / kPieces, args);
    at.col += i % kPieces * Piece::kBlockN;
    function(at);
  }
}

// One thread keeps the ring full.
template <class Cfg, class Piece>
__device__ __forceinline__ void produce(const CUtensorMap* map_a, const CUtensorMap* map_b, const Arguments& args,
                                        const Shared& shared, Ring<Cfg::kNumStages>& ring, int first, int end) {
  for_each_piece<Cfg, Piece>(args, first, end, [&](const Place& at) {
    for (int k_tile = 0; k_tile < at.num_k_tiles; ++k_tile) {
      const uint32_t barrier = shared.full + ring.stage * 8;
      // The phase before the first counts as complete.
      mbarrier_wait_parity(shared.empty + ring.stage * 8, ring.phase ^ 1);
      mbarrier_arrive_expect_tx(barrier, args.a_bytes + Piece::kBBytes);
      load_block_tile<Piece>(shared.stages + ring.stage * Cfg::kStageBytes, map_a, map_b, at,
                             (at.first_k_tile + k_tile) * Cfg::kBlockK, barrier, args.cluster_size, cluster_rank(args));
      ring.advance();
    }
  });
}

// The next k tiles of the ring, multiplied into accumulators from zero on; none is in flight at the end.
template <class Cfg, class Piece>
__device__ __forceinline__ void multiply_k_tiles(Accumulators<Piece>& acc, const StageAddress& first_stage,
                                                 const Shared& shared, Ring<Cfg::kNumStages>& ring, int num_k_tiles) {
  if constexpr (Cfg::kAFromRegisters) {
    multiply_from_registers<Cfg, Piece>(acc.c[0], first_stage.b, shared, ring, num_k_tiles);
    return;
  } else {
    int previous = 0;
    for (int k_tile = 0; k_tile < num_k_tiles; ++k_tile) {
      mbarrier_wait_parity(shared.full + ring.stage * 8, ring.phase);
      const uint32_t offset = __shfl_sync(~0u, ring.stage, 0) * (Cfg::kStageBytes >> 4);
      wgmma_fence();
      multiply<Piece>(acc, {first_stage.a + offset, first_stage.b + offset, first_stage.ones}, k_tile == 0);
      wgmma_commit_group();
      // The k tile before this one is multiplied: its stage is free. This one goes on meanwhile.
      wgmma_wait_group<1>();
      release_stage(shared.empty + previous * 8, k_tile > 0 ? shared.cluster_size : 0);
      previous = ring.stage;
      ring.advance();
    }
    wgmma_wait_group<0>();
#pragma unroll
    for (int mma = 0; mma < Piece::kMmas; ++mma) {
      fence_registers(acc.c[mma]);
      if constexpr (Piece::kSumsRows) fence_registers(acc.row_sums[mma]);
    }
    release_stage(shared.empty + previous * 8, shared.cluster_size);
  }
}

// All chunks of a tile, added in their order.
template <class Cfg>
__device__ __forceinline__ void multiply_chunks(Accumulators<Cfg>& acc, const StageAddress& first_stage,
                                                const Shared& shared, Ring<Cfg::kNumStages>& ring, int num_k_tiles,
                                                int chunk_tiles) {
  float total[Cfg::kAcc];
  for (int first = 0; first < num_k_tiles; first += chunk_tiles) {
    multiply_k_tiles<Cfg, Cfg>(acc, first_stage, shared, ring, min(num_k_tiles - first, chunk_tiles));
    if (num_k_tiles <= chunk_tiles) return;
#pragma unroll
    for (int i = 0; i < Cfg::kAcc; ++i) total[i] = first == 0 ? acc.c[0][i] : total[i] + acc.c[0][i];
  }
#pragma unroll
  for (int i = 0; i < Cfg::kAcc; ++i) acc.c[0][i] = total[i];
}

// A warpgroup multiplies what arrives and stores its rows.
template <class Cfg, class Piece>
__device__ __forceinline__ void consume(const CUtensorMap* map_c, const Arguments& args, const Shared& shared,
                                        Ring<Cfg::kNumStages>& ring, int consumer, int first, int end,
                                        int& num_stores) {
  using T = typename Cfg::T;
  constexpr int kRows = 64 * Cfg::kMmas;
  // One lane's values for all: the compiler then knows them to be uniform. Otherwise it moves four registers before
  // every wgmma.
  const auto uniform = [](uint32_t smem) { return __shfl_sync(~0u, matrix_address(smem), 0); };
  const StageAddress first_stage{uniform(shared.stages + consumer * kRows * 128), uniform(shared.stages + Cfg::kABytes),
                                 uniform(shared.ones)};
  for_each_piece<Cfg, Piece>(args, first, end, [&](const Place& at) {
    Accumulators<Piece> acc{};
#pragma unroll
    for (int mma = 0; mma < Cfg::kMmas; ++mma) {
      if constexpr (!Cfg::kIsTf32) forget_registers(acc.c[mma]);
      if constexpr (Cfg::kSumsRows) forget_registers(acc.row_sums[mma]);
    }
    const int row = at.row + consumer * kRows;
    if constexpr (Cfg::kSumsChunks)
      multiply_chunks(acc, first_stage, shared, ring, at.num_k_tiles, args.chunk_tiles);
    else
      multiply_k_tiles<Cfg, Piece>(acc, first_stage, shared, ring, at.num_k_tiles);
    if constexpr (Cfg::kSumsRows) {
#pragma unroll
      for (int mma = 0; mma < Cfg::kMmas; ++mma)
        if (at.col == 0) store_row_sums<T>(acc.row_sums[mma], args, row + mma * 64);
    }
#pragma unroll
    for (int mma = 0; mma < Cfg::kMmas; ++mma) {
      if (row + mma * 64 >= args.m) break;
      if constexpr (Cfg::kSumsChunks) {
        if (args.num_splits > 1) {
          if constexpr (Cfg::kAFromRegisters)
            store_partial_along_m<Piece>(acc.c[mma], args, at, row);
          else
            store_partial<Piece>(acc.c[mma], args, at, row);
          break;
        }
      }
      if constexpr (Cfg::kIsTf32)
        store_block_tile_tf32<Piece>(acc.c[mma], map_c, args, shared.c, consumer, at, row, num_stores);
      else
        store_block_tile<Piece>(acc.c[mma], map_c, args, shared.c, reinterpret_cast<T*>(shared.bias), consumer, at,
                                row + mma * 64, num_stores);
    }
  });
}

template <class Cfg>
__global__ void __launch_bounds__(Cfg::kThreads, 1)
    wgmma_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                 const __grid_constant__ CUtensorMap map_c, const __grid_constant__ Arguments args) {
  using Half = Config<typename Cfg::T, Cfg::kBlockM, Cfg::kSplitsTail ? Cfg::kBlockN / 2 : Cfg::kBlockN,
                      Cfg::kAIsMMajor, Cfg::kBIsNMajor, Cfg::kSumsRows>;
  constexpr int kNumStages = Cfg::kNumStages;
  extern __shared__ char dynamic_smem[];
  // The patterns of the swizzle count from multiples of 1024 bytes.
  char* smem = dynamic_smem + (-smem_address(dynamic_smem) & 1023);
  char* smem_c = smem + kNumStages * Cfg::kStageBytes;
  char* smem_bias = smem_c + Cfg::kConsumers * kNumStoreBuffers * Cfg::kStoreBytes;
  const int consumer = Cfg::kConsumers == 1 ? 0 : threadIdx.x / kWarpgroup;
  Shared shared;
  shared.stages = smem_address(smem);
  shared.ones = smem_address(smem_bias) + Cfg::kConsumers * Cfg::kBiasBytes;
  shared.full = shared.ones + Cfg::kOnesBytes;
  shared.cluster_size = args.cluster_size;
  shared.empty = shared.full + kNumStages * 8;
  shared.transposed = shared.empty + kNumStages * 8;
  shared.c = smem_c + consumer * kNumStoreBuffers * Cfg::kStoreBytes;
  shared.bias = smem_bias + consumer * Cfg::kBiasBytes;

  const int warp = threadIdx.x / 32;
  constexpr int kProducerWarp = Cfg::kConsumers * 4;
  if (threadIdx.x == kProducerWarp * 32) {
    prefetch_tensormap(&map_a);
    prefetch_tensormap(&map_b);
  }
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kNumStages; ++stage) {
      mbarrier_init(shared.full + stage * 8, 1);
      mbarrier_init(shared.empty + stage * 8, 4 * Cfg::kConsumers * args.cluster_size);  // by every consumer warp
      if constexpr (Cfg::kTransposesB) mbarrier_init(shared.transposed + stage * 8, 1);
    }
    fence_mbarrier_init();
  }
  if constexpr (Cfg::kSumsRows) {
    if (threadIdx.x < Cfg::kOnesBytes / 4) {
      reinterpret_cast<uint32_t*>(smem_bias + Cfg::kConsumers * Cfg::kBiasBytes)[threadIdx.x] =
          pack_pair<typename Cfg::T>(1, 1);
      fence_proxy_async();
    }
  }
  __syncthreads();
  if (args.cluster_size > 1) cluster_barrier();
  // Up to here nothing was read or written that the kernel before this one may still work on.
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();

  Ring<kNumStages> ring;
  if (warp >= kProducerWarp) {
    if constexpr (Cfg::kMovesRegisters) setmaxnreg_dec<Cfg::kProducerRegisters>();
    if constexpr (Cfg::kTransposesB) {
      if (warp > kProducerWarp) {
        int turn = warp - kProducerWarp - 1;
        for_each_piece<Cfg, Cfg>(args, 0, args.num_tiles,
                                 [&](const Place& at) { transpose_k_tiles<Cfg>(shared, ring, at.num_k_tiles, turn); });
      }
    }
    if (warp == kProducerWarp && elect_sync()) {
      produce<Cfg, Cfg>(&map_a, &map_b, args, shared, ring, 0, args.full_tiles);
      if constexpr (Cfg::kSplitsTail)
        produce<Cfg, Half>(&map_a, &map_b, args, shared, ring, args.full_tiles, args.num_tiles);
    }
  } else {
    if constexpr (Cfg::kMovesRegisters) setmaxnreg_inc<Cfg::kConsumerRegisters>();
    int num_stores = 0;
    consume<Cfg, Cfg>(&map_c, args, shared, ring, consumer, 0, args.full_tiles, num_stores);
    if constexpr (Cfg::kSplitsTail)
      consume<Cfg, Half>(&map_c, args, shared, ring, consumer, args.full_tiles, args.num_tiles, num_stores);
    // Shared memory must outlive the stores that read it.
    if (threadIdx.x % kWarpgroup == 0) cp_async_bulk_wait_group_read<0>();
  }
  if (args.cluster_size > 1) {
    __syncwarp();
    cluster_barrier();  // the other block may still arrive at this one's barriers
  }
}

// ---- host ----

// A problem whose C is row-major, and what was learned of it.
struct Task {
  GpuProblem problem;
  Operand a, b, c;
  bool stores_by_tma;
  TilePlan plan;
  float* partial;
  int num_sms;
  cudaStream_t stream;
};

template <class Cfg>
Arguments arguments_of(const Task& task) {
  const GemmProblem& p = task.problem.gemm;
  Arguments args{};
  args.m = int(p.m);
  args.n = int(p.n);
  args.num_k_tiles = int(ceil_div(p.k, Cfg::kBlockK));
  args.cluster_size = task.plan.cluster_size;
  args.tiles_m = int(ceil_div(p.m, Cfg::kBlockM * args.cluster_size));
  args.tiles_n = int(ceil_div(p.n, Cfg::kBlockN));
  args.chunk_tiles = int(ceil_div(task.problem.chunk_k, Cfg::kBlockK));
  args.num_splits = task.plan.splits_chunks ? int(ceil_div(p.k, task.problem.chunk_k)) : 1;
  args.num_tiles = int(task.problem.batch_size * args.num_splits * args.tiles_m * args.tiles_n);
  const int num_clusters = task.num_sms / args.cluster_size, remaining = args.num_tiles % num_clusters;
  args.full_tiles = args.num_tiles - (splits_tail(task.plan.shape, args.num_tiles, num_clusters) ? remaining : 0);
  args.num_batch_dims = p.num_batch_dims;
  for (int32_t d = 0; d < p.num_batch_dims; ++d) {
    const BatchDim& dim = task.problem.batch_dims[d];
    args.batch[d] = {int(dim.size), int(dim.stride_a / task.a.batch_step), int(dim.stride_b / task.b.batch_step),
                     dim.stride_c / task.c.batch_step};
  }
  args.activation = p.activation;
  args.stores_by_tma = task.stores_by_tma;
  args.c = p.c;
  args.ldc = Cfg::kAFromRegisters ? p.stride_cn : p.stride_cm;
  args.batch_step_c = task.c.batch_step;
  args.bias = p.bias;
  args.stride_bias_m = int(p.stride_bias_m);
  args.stride_bias_n = int(p.stride_bias_n);
  args.row_sums = p.row_sums;
  args.partial = task.partial;
  args.ld_partial = round_up(Cfg::kAFromRegisters ? p.m : p.n, 2);
  return args;
}

template <class Cfg>
const char* launch_config(const Task& task) {
  const GemmProblem& p = task.problem.gemm;
  Arguments args = arguments_of<Cfg>(task);
  const int64_t num_clusters = min_of(2 * args.num_tiles - args.full_tiles, task.num_sms / args.cluster_size);
  const int64_t num_blocks = num_clusters * args.cluster_size;
  // The tiles in flight form about a square of C, in groups of about the same size.
  int64_t square = 1;
  while (square * Cfg::kBlockM * args.cluster_size * square < num_clusters * Cfg::kBlockN) ++square;
  const int64_t num_groups = max_of(1, (args.tiles_m + square / 2) / square);
  args.group_m = int(ceil_div(args.tiles_m, num_groups));

  // Rows of a k-major A beyond m, if no tile has them, are not fetched: they reach only rows of C beyond m.
  const int rows_a = task.a.is_k_major ? int(min_of(Cfg::kBlockM, round_up(p.m, 8))) : Cfg::kBlockM;
  args.a_bytes = rows_a * 128;
  CUtensorMap map_a{}, map_b{}, map_c{};
  bool is_encoded =
      encode_tensor_map(&map_a, p.dtype, p.a, task.a, Cfg::kBlockK, task.a.is_k_major ? rows_a : Cfg::kBlockK,
                        Cfg::kIsTf32) &&
      encode_tensor_map(&map_b, p.dtype, p.b, task.b, Cfg::kBIsNMajor ? Cfg::kBoxN : Cfg::kBlockK,
                        (Cfg::kBIsNMajor ? Cfg::kBlockK : Cfg::kBoxRows) / args.cluster_size, Cfg::kIsTf32);
  if (args.stores_by_tma)
    is_encoded = is_encoded &&
                 encode_tensor_map(&map_c, p.dtype, p.c, task.c, Cfg::kStoreN, Cfg::kAFromRegisters ? 32 : 64, false);
  if (!is_encoded) return "the driver refuses a tensor map";
  return launch_overlapped<&wgmma_kernel<Cfg>>(num_blocks, args.cluster_size, Cfg::kThreads, Cfg::kSmem, task.stream,
                                               map_a, map_b, map_c, args);
}

template <class T, int TILE>
const char* launch_layout(const Task& task) {
  constexpr TileShape kShape = kTileShapes[TILE];
  constexpr int M = kShape.block_m, N = kShape.block_n;
  if (task.problem.gemm.row_sums) {
    if constexpr (sums_rows(kShape)) return launch_config<Config<T, M, N, true, true, true>>(task);
    return "this tile does not sum rows";
  }
  if (task.a.is_k_major)
    return task.b.is_k_major ? launch_config<Config<T, M, N, false, false>>(task)
                             : launch_config<Config<T, M, N, false, true>>(task);
  return task.b.is_k_major ? launch_config<Config<T, M, N, true, false>>(task)
                           : launch_config<Config<T, M, N, true, true>>(task);
}

template <class T, int TILE = 0>
const char* launch_tile(const Task& task) {
  if constexpr (TILE < kNumTileShapes)
    return task.plan.tile == TILE ? launch_layout<T, TILE>(task) : launch_tile<T, TILE + 1>(task);
  else
    return "no such tile";
}

template <int TILE = 0>
const char* launch_tile_tf32(const Task& task) {
  if constexpr (TILE < kNumTf32TileShapes) {
    if (task.plan.tile != TILE) return launch_tile_tf32<TILE + 1>(task);
    constexpr int M = kTf32TileShapes[TILE].block_m, N = kTf32TileShapes[TILE].block_n;
    if (task.a.is_k_major) return launch_config<Config<float, M, N, false, false>>(task);
    if (task.b.is_k_major) return launch_config<Config<float, M, N, true, false>>(task);
    if constexpr (serves_path({M, N}, Tf32Path::b_transposed))
      return launch_config<Config<float, M, N, true, true>>(task);
    return "the tile is too large";
  } else {
    return "no such tile";
  }
}

// C^T = B^T A^T.
GpuProblem transposed_problem(const GpuProblem& problem) {
  const GemmProblem& p = problem.gemm;
  GpuProblem transposed = problem;
  GemmProblem& q = transposed.gemm;
  q.m = p.n, q.n = p.m;
  q.a = p.b, q.stride_am = p.stride_bn, q.stride_ak = p.stride_bk;
  q.b = p.a, q.stride_bk = p.stride_ak, q.stride_bn = p.stride_am;
  q.stride_cm = p.stride_cn, q.stride_cn = p.stride_cm;
  q.stride_bias_m = p.stride_bias_n, q.stride_bias_n = p.stride_bias_m;
  for (int32_t d = 0; d < p.num_batch_dims; ++d) {
    transposed.batch_dims[d].stride_a = problem.batch_dims[d].stride_b;
    transposed.batch_dims[d].stride_b = problem.batch_dims[d].stride_a;
  }
  return transposed;
}

bool has_row_major_c(const GemmProblem& p) { return p.stride_cn == 1 || p.n == 1; }

// Memory for the sums of chunks, given back when the kernels have been launched.
struct Workspace {
  const Executor& executor;
  void* memory = nullptr;
  ~Workspace() {
    if (memory) executor.release(executor.self, memory);
  }
};

}  // namespace
}  // namespace tiledmm::cuda

namespace tiledmm::gpu {

namespace {

// fp32, products in tf32.
Status launch_wgmma_tf32(const GpuProblem& row_major, const Executor& executor) {
  using namespace tiledmm::cuda;
  Task task{row_major, {}, {}, {}, false, {}, nullptr, executor.num_cus, static_cast<cudaStream_t>(executor.stream)};
  GpuProblem& problem = task.problem;
  GemmProblem& p = problem.gemm;
  const auto describe_a = [&] {
    return describe_matrix(p.a, p.dtype, p.m, p.k, p.stride_am, p.stride_ak, task.a) &&
           describe_batch(problem, &BatchDim::stride_a, task.a);
  };
  const auto describe_b = [&] {
    return describe_matrix(p.b, p.dtype, p.n, p.k, p.stride_bn, p.stride_bk, task.b) &&
           describe_batch(problem, &BatchDim::stride_b, task.b);
  };
  const auto layout_of = [](bool is_readable, const cuda::Operand& operand) {
    if (!is_readable) return Tf32Layout::unreadable;
    return operand.is_k_major ? Tf32Layout::along_k : Tf32Layout::across_k;
  };
  const Tf32Layout layout_a = layout_of(describe_a(), task.a), layout_b = layout_of(describe_b(), task.b);
  Tf32Plan plan = plan_tf32(p.m, p.n, p.k, problem.chunk_k, problem.batch_size, layout_a, layout_b, executor.num_cus);
  CopyAlongK copies(executor);
  Status status = Status::ok;
  if (plan.copies_a) status = copies.add(problem, p.a, p.m, p.stride_am, p.stride_ak, &BatchDim::stride_a);
  if (plan.copies_b && status == Status::ok)
    status = copies.add(problem, p.b, p.n, p.stride_bn, p.stride_bk, &BatchDim::stride_b);
  if (status != Status::ok) return status;
  if (!describe_a() || !describe_b()) return Status::launch_failed;
  const bool swaps = plan.path != Tf32Path::both_in_place;
  if (swaps) {
    problem = transposed_problem(problem);
    std::swap(task.a, task.b);
  }
  const bool is_matrix = swaps ? describe_matrix(p.c, p.dtype, p.n, p.m, p.stride_cn, 1, task.c)
                               : describe_matrix(p.c, p.dtype, p.m, p.n, p.stride_cm, 1, task.c);
  task.stores_by_tma =
      describe_batch(problem, &BatchDim::stride_c, task.c) && is_matrix && is_storable(p.dtype, task.c);

  task.plan = plan.tiles;
  const GemmProblem& whole = row_major.gemm;
  const PartialSums partial{nullptr, round_up(whole.n, 2), int(ceil_div(p.k, problem.chunk_k))};
  Workspace workspace{executor};
  if (task.plan.splits_chunks) {
    const int64_t count = problem.batch_size * partial.num_chunks * whole.m * partial.ld;
    workspace.memory = executor.allocate(executor.self, size_t(count) * sizeof(float));
    if (!workspace.memory) return Status::out_of_memory;
    task.partial = static_cast<float*>(workspace.memory);
  }
  const char* refused = copies.launch();
  if (!refused) refused = launch_tile_tf32(task);
  if (!refused && task.plan.splits_chunks)
    refused = launch_sum_chunks(row_major, {task.partial, partial.ld, partial.num_chunks}, task.stream);
  return refused ? Status::launch_failed : Status::ok;
}

}  // namespace

Status launch_wgmma(const GpuProblem& given, const Executor& executor) {
  using namespace tiledmm::cuda;
  const GpuProblem row_major = has_row_major_c(given.gemm) ? given : transposed_problem(given);
  Task task{row_major, {}, {}, {}, false, {}, nullptr, executor.num_cus, static_cast<cudaStream_t>(executor.stream)};
  GpuProblem& problem = task.problem;
  GemmProblem& p = problem.gemm;
  if (p.dtype == DType::f32) return launch_wgmma_tf32(row_major, executor);
  Repack repack(executor);
  const auto take = [&](const void*& data, int64_t rows, int64_t& stride_row, int64_t& stride_k,
                        int64_t BatchDim::* stride, cuda::Operand& operand) {
    const auto is_taken = [&] {
      return describe_matrix(data, p.dtype, rows, p.k, stride_row, stride_k, operand) &&
             describe_batch(problem, stride, operand);
    };
    if (is_taken()) return Status::ok;
    const Status status = repack.add(problem, data, rows, stride_row, stride_k, stride);
    return status == Status::ok && !is_taken() ? Status::launch_failed : status;
  };
  Status status = take(p.a, p.m, p.stride_am, p.stride_ak, &BatchDim::stride_a, task.a);
  if (status == Status::ok) status = take(p.b, p.n, p.stride_bn, p.stride_bk, &BatchDim::stride_b, task.b);
  if (status != Status::ok) return status;
  const bool is_matrix = describe_matrix(p.c, p.dtype, p.m, p.n, p.stride_cm, 1, task.c);
  task.stores_by_tma =
      describe_batch(problem, &BatchDim::stride_c, task.c) && is_matrix && is_storable(p.dtype, task.c);

  task.plan = plan_tiles(p.m, p.n, p.k, problem.chunk_k, problem.batch_size, p.row_sums, executor.num_cus);
  const PartialSums partial{nullptr, round_up(p.n, 2), int(ceil_div(p.k, problem.chunk_k))};
  Workspace workspace{executor};
  if (task.plan.splits_chunks) {
    const int64_t count = problem.batch_size * partial.num_chunks * p.m * partial.ld;
    workspace.memory = executor.allocate(executor.self, size_t(count) * sizeof(float));
    if (!workspace.memory) return Status::out_of_memory;
    task.partial = static_cast<float*>(workspace.memory);
  }
  const char* refused = repack.launch();
  if (!refused) refused = p.dtype == DType::f16 ? launch_tile<__half>(task) : launch_tile<__nv_bfloat16>(task);
  if (!refused && task.plan.splits_chunks)
    refused = launch_sum_chunks(problem, {task.partial, partial.ld, partial.num_chunks}, task.stream);
  return refused ? Status::launch_failed : Status::ok;
}

}  // namespace tiledmm::gpu

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
#include "kernels/cuda/repack.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma_tf32.h"
#include "kernels/gpu/kernels.h"
#include "platform/block_tile.h"
#include "platform/ptx_sm90.h"

namespace tiledmm::cuda {
namespace {

constexpr int kWarpgroup = 128;     // threads
constexpr int kRowBytes = 128;      // of a k tile: the width of a swizzle
constexpr int kSmemBytes = 232448;  // of one block on sm_90
constexpr int kMaxStages = 12;      // more does not hide more

// One block tile: 64 rows to a consumer warpgroup.
template <class T_, int BLOCK_M, int BLOCK_N, bool A_IS_M_MAJOR, bool B_IS_N_MAJOR>
struct Config {
  using T = T_;
  static constexpr int kBlockM = BLOCK_M, kBlockN = BLOCK_N;
  static constexpr bool kAIsMMajor = A_IS_M_MAJOR, kBIsNMajor = B_IS_N_MAJOR;
  static constexpr int kBlockK = kRowBytes / sizeof(T), kMmaK = 32 / sizeof(T);
  static constexpr bool kIsTf32 = sizeof(T) == 4;
  static constexpr bool kAFromRegisters = kIsTf32 && A_IS_M_MAJOR;
  static constexpr bool kTransposesB = kIsTf32 && B_IS_N_MAJOR;
  static constexpr int kConsumers = BLOCK_M / 64;
  // The producer is a warpgroup of its own where registers move between warpgroups, else a warp.
  static constexpr bool kMovesRegisters = kConsumers == 2;
  // setmaxnreg; with two consumers' 3 * 168, what the block starts with.
  static constexpr int kProducerRegisters = kTransposesB ? 72 : 40, kConsumerRegisters = kTransposesB ? 216 : 232;
  static constexpr int kThreads = kConsumers * kWarpgroup + (kMovesRegisters || kTransposesB ? kWarpgroup : 32);
  static constexpr int kABytes = BLOCK_M * kRowBytes, kBBytes = BLOCK_N * kRowBytes;
  static constexpr int kStageBytes = kABytes + kBBytes;
  // B along n arrives in boxes as wide as the swizzle.
  static constexpr int kBoxN = !kIsTf32 && BLOCK_N % 64 == 0 ? 64 : 32;
  static constexpr int kBoxRows = BLOCK_N == 256 ? 128 : BLOCK_N;  // of a k-major B in one copy
  static constexpr int kStoreN = kIsTf32 ? 32 : kBoxN;             // columns of C in one store
  static constexpr int kStoreBytes = 64 * kStoreN * sizeof(T);
  static constexpr int kStoreBuffers = 2;  // of a consumer: one fills while the other is stored
  static constexpr int kBiasBytes = kIsTf32 ? 0 : BLOCK_N * 2;
  static constexpr int kFixedBytes =
      1024 + kConsumers * (kStoreBuffers * kStoreBytes + kBiasBytes) + 3 * kMaxStages * 8;
  static constexpr int kFitting = (kSmemBytes - kFixedBytes) / kStageBytes;
  static constexpr int kNumStages = kFitting < kMaxStages ? kFitting : kMaxStages;
  static constexpr int kSmem = kFixedBytes + kNumStages * kStageBytes;
  static constexpr int kAcc = BLOCK_N / 2;  // accumulators of a thread
  // The last wave's tiles may be shared out in halves, whose boxes are the same.
  static constexpr bool kSplitsTail = BLOCK_N == 256;

  static_assert(BLOCK_M == 64 || BLOCK_M == 128, "one or two consumers of 64 rows");
  static_assert(BLOCK_N % 32 == 0 && BLOCK_N <= 256, "stores are 32 or 64 columns wide, a wgmma at most 256");
  static_assert(!kTransposesB || (kAFromRegisters && BLOCK_N < 256),
                "of tiles in halves, boxes would differ in number");
  static_assert(kNumStages >= 4, "fewer do not hide the latency of a copy");
  static_assert(kABytes % 1024 == 0 && kBBytes % 1024 == 0, "the patterns of the swizzle repeat every 1024 bytes");

  // Both operands in shared memory: k-major as [row][64 of k], else as boxes [64 of k][box of rows].
  [[maybe_unused]] static constexpr uint64_t kDescA =
      A_IS_M_MAJOR ? matrix_descriptor(Swizzle::bytes_128, 8192, 1024) : matrix_descriptor(Swizzle::bytes_128, 0, 1024);
  static constexpr uint64_t kDescB =
      !B_IS_N_MAJOR || kIsTf32
          ? matrix_descriptor(Swizzle::bytes_128, 0, 1024)
          : matrix_descriptor(kBoxN == 64 ? Swizzle::bytes_128 : Swizzle::bytes_64, kBoxN * 2 * kBlockK, kBoxN * 2 * 8);
  // From one step of kMmaK to the next, in the descriptor's units of 16 bytes.
  [[maybe_unused]] static constexpr int kStepA = (A_IS_M_MAJOR ? kMmaK * 128 : 32) >> 4;
  static constexpr int kStepB = (B_IS_N_MAJOR && !kIsTf32 ? kMmaK * kBoxN * 2 : 32) >> 4;
};

struct Arguments {
  int m, n, num_k_tiles;
  int tiles_m, tiles_n;
  int full_tiles;  // so many are computed whole, the others in halves along n
  int group_m;
  int a_bytes;  // of A that arrive for one k tile
  Activation activation;
  bool stores_by_tma;
  void* c;
  int64_t ldc;
  const void* bias;
  int stride_bias_m, stride_bias_n;
};

struct TileIndex {
  int m, n;
};

// Tiles in groups of group_m rows, so that the tiles in flight share operands in the second-level cache.
__device__ __forceinline__ TileIndex tile_at(int index, const Arguments& args) {
  const int group_size = args.group_m * args.tiles_n;
  const int group = index / group_size, within = index - group * group_size;
  const int first = group * args.group_m;
  const int rows = min(args.tiles_m - first, args.group_m);
  return {first + within % rows, within / rows};
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

template <class Cfg>
__device__ __forceinline__ void load_block_tile(uint32_t smem_a, const CUtensorMap* map_a, const CUtensorMap* map_b,
                                                int row, int col, int k, uint32_t barrier) {
  const uint32_t smem_b = smem_a + Cfg::kABytes;
  if constexpr (Cfg::kAIsMMajor) {
#pragma unroll
    for (int i = 0; i < Cfg::kBlockM; i += Cfg::kBlockK)
      cp_async_bulk_tensor_2d(smem_a + i * 128, map_a, row + i, k, barrier);
  } else {
    cp_async_bulk_tensor_2d(smem_a, map_a, k, row, barrier);
  }
  if constexpr (Cfg::kBIsNMajor) {
#pragma unroll
    for (int j = 0; j < Cfg::kBlockN; j += Cfg::kBoxN)
      cp_async_bulk_tensor_2d(smem_b + j * kRowBytes, map_b, col + j, k, barrier);
  } else {
#pragma unroll
    for (int j = 0; j < Cfg::kBlockN; j += Cfg::kBoxRows)
      cp_async_bulk_tensor_2d(smem_b + j * kRowBytes, map_b, k, col + j, barrier);
  }
}

// address_a, address_b: of a stage, as matrix_address has them. Only a descriptor's lower half changes, so that the
// arithmetic stays in 32 bits and in uniform registers, which the matrix unit takes its descriptors from.
template <class Cfg>
__device__ __forceinline__ void multiply(float (&acc)[Cfg::kAcc], uint32_t address_a, uint32_t address_b,
                                         bool is_first) {
  const auto descriptor = [](uint64_t fixed, uint32_t address) {
    return (fixed & 0xffffffff00000000) | (uint32_t(fixed) + address);
  };
#pragma unroll
  for (int step = 0; step < Cfg::kBlockK / Cfg::kMmaK; ++step) {
    const uint64_t desc_a = descriptor(Cfg::kDescA, address_a + step * Cfg::kStepA);
    const uint64_t desc_b = descriptor(Cfg::kDescB, address_b + step * Cfg::kStepB);
    if constexpr (Cfg::kIsTf32)
      wgmma_mma_async_tf32<Cfg::kBlockN>(acc, desc_a, desc_b, step > 0 || !is_first);
    else
      wgmma_mma_async<typename Cfg::T, Cfg::kBlockN, Cfg::kAIsMMajor, Cfg::kBIsNMajor>(acc, desc_a, desc_b,
                                                                                       step > 0 || !is_first);
  }
}

// Two values as 16-bit elements, rounded to nearest even; the first in the low half.
template <class T>
__device__ __forceinline__ uint32_t pack_pair(float first, float second) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __half2 pair = __floats2half2_rn(first, second);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }

// 64 rows of C from the accumulators of one warpgroup: bias, activation, rounding, to shared memory, to C.
template <class Cfg>
__device__ __forceinline__ void store_block_tile(float (&acc)[Cfg::kAcc], const CUtensorMap* map_c,
                                                 const Arguments& args, char* smem_c, typename Cfg::T* smem_bias,
                                                 int consumer, int row, int col, int& num_stores) {
  using T = typename Cfg::T;
  constexpr int kStoreN = Cfg::kStoreN, kValues = kStoreN / 2;  // of a thread in one store
  const int thread = threadIdx.x % kWarpgroup, warp = thread / 32, lane = thread % 32;
  const int barrier_id = 1 + consumer;
  const T* bias = static_cast<const T*>(args.bias);

  float bias_m[2] = {0, 0};  // of this thread's two rows
  if (bias && args.stride_bias_n) {
    for (int j = thread; j < Cfg::kBlockN; j += kWarpgroup) {
      T value{};
      if (col + j < args.n) value = bias[col + j];
      smem_bias[j] = value;
    }
    named_barrier_sync(barrier_id, kWarpgroup);
  } else if (bias) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = row + warp * 16 + lane / 4 + 8 * h;
      if (i < args.m) bias_m[h] = to_float(bias[args.stride_bias_m ? i : 0]);
    }
  }

#pragma unroll
  for (int part = 0; part < Cfg::kBlockN / kStoreN; ++part) {
    char* buffer = smem_c + (num_stores++ % Cfg::kStoreBuffers) * Cfg::kStoreBytes;
    float v[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) v[i] = acc[part * kValues + i];
    if (bias && args.stride_bias_n) {
#pragma unroll
      for (int j = 0; j < kStoreN / 8; ++j) {
        const T* pair = smem_bias + part * kStoreN + j * 8 + lane % 4 * 2;
        const float first = to_float(pair[0]), second = to_float(pair[1]);
        v[4 * j] += first;
        v[4 * j + 1] += second;
        v[4 * j + 2] += first;
        v[4 * j + 3] += second;
      }
    } else if (bias) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) v[i] += bias_m[i / 2 % 2];
    }
    // The store before last has read this buffer; only the thread that issued it can wait for that.
    if (thread == 0) cp_async_bulk_wait_group_read<Cfg::kStoreBuffers - 1>();
    named_barrier_sync(barrier_id, kWarpgroup);
    if (args.activation == Activation::relu) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) v[i] = activate<Activation::relu>(v[i]);
    } else if (args.activation != Activation::none) {
      activate_values<Cfg::kStoreBytes / 4 / kWarpgroup>(v, reinterpret_cast<float*>(buffer) + thread, args.activation);
      named_barrier_sync(barrier_id, kWarpgroup);  // others' slots are read before they are overwritten
    }
    // Swizzled as the copy engine expects it: without bank conflicts here.
    const int r = warp * 16 + lane % 16;
    const uint32_t row_address = smem_address(buffer) + r * (kStoreN * 2);
    const int mask = kStoreN == 64 ? r % 8 : r / 2 % 4;
#pragma unroll
    for (int j = 0; j < kStoreN / 16; ++j) {
      const int chunk = 2 * j + lane / 16;
      stmatrix_x4(row_address + ((chunk ^ mask) << 4), pack_pair<T>(v[8 * j], v[8 * j + 1]),
                  pack_pair<T>(v[8 * j + 2], v[8 * j + 3]), pack_pair<T>(v[8 * j + 4], v[8 * j + 5]),
                  pack_pair<T>(v[8 * j + 6], v[8 * j + 7]));
    }
    const int first_col = col + part * kStoreN;
    if (args.stores_by_tma) {
      fence_proxy_async();
      named_barrier_sync(barrier_id, kWarpgroup);
      if (thread == 0) {
        cp_async_bulk_tensor_2d_store(map_c, first_col, row, smem_address(buffer));
        cp_async_bulk_commit_group();
      }
    } else {
      __syncwarp();  // a warp reads back the 16 rows that it wrote
#pragma unroll 4
      for (int i = 0; i < 16; ++i) {
        const int s = warp * 16 + i;
        if (row + s >= args.m) break;
        T* to = static_cast<T*>(args.c) + (row + s) * args.ldc + first_col;
        const int key = kStoreN == 64 ? s % 8 : s / 2 % 4;
        for (int j = lane; j < kStoreN; j += 32) {
          if (first_col + j < args.n)
            to[j] = *reinterpret_cast<const T*>(buffer + s * (kStoreN * 2) + (((j / 8) ^ key) << 4) + j % 8 * 2);
        }
      }
    }
  }
}

// Shared memory of a block, as addresses.
struct Shared {
  uint32_t stages, full, empty, transposed;  // the last three: barriers, one per stage
  char *c, *bias;                            // of this consumer
};

// The tiles of one block from `first` on, in halves if Piece is half as wide as Cfg.
template <class Cfg, class Piece, class Function>
__device__ __forceinline__ void for_each_piece(const Arguments& args, int first, int end, const Function& function) {
  constexpr int kPieces = Cfg::kBlockN / Piece::kBlockN;
  for (int i = blockIdx.x; i < (end - first) * kPieces; i += gridDim.x) {
    const TileIndex at = tile_at(first + i / kPieces, args);
    function(at.m * Cfg::kBlockM, at.n * Cfg::kBlockN + i % kPieces * Piece::kBlockN);
  }
}

// One thread keeps the ring full.
template <class Cfg, class Piece>
__device__ __forceinline__ void produce(const CUtensorMap* map_a, const CUtensorMap* map_b, const Arguments& args,
                                        const Shared& shared, Ring<Cfg::kNumStages>& ring, int first, int end) {
  for_each_piece<Cfg, Piece>(args, first, end, [&](int row, int col) {
    for (int k_tile = 0; k_tile < args.num_k_tiles; ++k_tile) {
      const uint32_t barrier = shared.full + ring.stage * 8;
      // The phase before the first counts as complete.
      mbarrier_wait_parity(shared.empty + ring.stage * 8, ring.phase ^ 1);
      mbarrier_arrive_expect_tx(barrier, args.a_bytes + Piece::kBBytes);
      load_block_tile<Piece>(shared.stages + ring.stage * Cfg::kStageBytes, map_a, map_b, row, col,
                             k_tile * Cfg::kBlockK, barrier);
      ring.advance();
    }
  });
}

// A warpgroup multiplies what arrives and stores its 64 rows.
template <class Cfg, class Piece>
__device__ __forceinline__ void consume(const CUtensorMap* map_c, const Arguments& args, const Shared& shared,
                                        Ring<Cfg::kNumStages>& ring, int consumer, int first, int end,
                                        int& num_stores) {
  // One lane's values for all: the compiler then knows them to be uniform. Otherwise it moves four registers before
  // every wgmma.
  const uint32_t address_a = __shfl_sync(~0u, matrix_address(shared.stages + consumer * 64 * 128), 0);
  const uint32_t address_b = __shfl_sync(~0u, matrix_address(shared.stages + Cfg::kABytes), 0);
  const bool is_lane_0 = threadIdx.x % 32 == 0;
  float acc[Piece::kAcc];
#pragma unroll
  for (int i = 0; i < Piece::kAcc; ++i) acc[i] = 0;

  for_each_piece<Cfg, Piece>(args, first, end, [&](int row, int col) {
    if constexpr (Cfg::kAFromRegisters) {
      multiply_from_registers<Cfg, Piece>(acc, address_b, shared, consumer, ring, args.num_k_tiles);
    } else {
      int previous = -1;
      for (int k_tile = 0; k_tile < args.num_k_tiles; ++k_tile) {
        mbarrier_wait_parity(shared.full + ring.stage * 8, ring.phase);
        const uint32_t offset = __shfl_sync(~0u, ring.stage, 0) * (Cfg::kStageBytes >> 4);
        wgmma_fence();
        multiply<Piece>(acc, address_a + offset, address_b + offset, k_tile == 0);
        wgmma_commit_group();
        // The k tile before this one is multiplied: its stage is free. This one goes on meanwhile.
        wgmma_wait_group<1>();
        if (previous >= 0 && is_lane_0) mbarrier_arrive(shared.empty + previous * 8);
        previous = ring.stage;
        ring.advance();
      }
      wgmma_wait_group<0>();
      fence_registers(acc);
      if (is_lane_0) mbarrier_arrive(shared.empty + previous * 8);
    }
    if (row + consumer * 64 >= args.m) return;
    if constexpr (Cfg::kIsTf32) {
      store_block_tile_tf32<Piece>(acc, map_c, args, shared.c, consumer, row + consumer * 64, col, num_stores);
    } else {
      store_block_tile<Piece>(acc, map_c, args, shared.c, reinterpret_cast<typename Cfg::T*>(shared.bias), consumer,
                              row + consumer * 64, col, num_stores);
    }
  });
}

template <class Cfg>
__global__ void __launch_bounds__(Cfg::kThreads, 1)
    wgmma_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                 const __grid_constant__ CUtensorMap map_c, const __grid_constant__ Arguments args) {
  using Half = Config<typename Cfg::T, Cfg::kBlockM, Cfg::kSplitsTail ? Cfg::kBlockN / 2 : Cfg::kBlockN,
                      Cfg::kAIsMMajor, Cfg::kBIsNMajor>;
  constexpr int kNumStages = Cfg::kNumStages;
  extern __shared__ char dynamic_smem[];
  // The patterns of the swizzle count from multiples of 1024 bytes.
  char* smem = dynamic_smem + (-smem_address(dynamic_smem) & 1023);
  char* smem_c = smem + kNumStages * Cfg::kStageBytes;
  char* smem_bias = smem_c + Cfg::kConsumers * Cfg::kStoreBuffers * Cfg::kStoreBytes;
  const int consumer = Cfg::kConsumers == 1 ? 0 : threadIdx.x / kWarpgroup;
  Shared shared;
  shared.stages = smem_address(smem);
  shared.full = smem_address(smem_bias) + Cfg::kConsumers * Cfg::kBiasBytes;
  shared.empty = shared.full + kNumStages * 8;
  shared.transposed = shared.empty + kNumStages * 8;
  shared.c = smem_c + consumer * Cfg::kStoreBuffers * Cfg::kStoreBytes;
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
      mbarrier_init(shared.empty + stage * 8, 4 * Cfg::kConsumers);  // one arrival per consumer warp
      if constexpr (Cfg::kTransposesB) mbarrier_init(shared.transposed + stage * 8, Cfg::kBlockN / 32);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  // Up to here nothing was read or written that the kernel before this one may still work on.
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();

  const int num_tiles = args.tiles_m * args.tiles_n;
  Ring<kNumStages> ring;
  if (warp >= kProducerWarp) {
    if constexpr (Cfg::kMovesRegisters) setmaxnreg_dec<Cfg::kProducerRegisters>();
    if constexpr (Cfg::kTransposesB) {
      if (warp > kProducerWarp) {
        int turn = 0;
        for_each_piece<Cfg, Cfg>(args, 0, num_tiles,
                                 [&](int, int) { transpose_k_tiles<Cfg>(shared, ring, args.num_k_tiles, turn); });
      }
    }
    if (warp == kProducerWarp && elect_sync()) {
      produce<Cfg, Cfg>(&map_a, &map_b, args, shared, ring, 0, args.full_tiles);
      if constexpr (Cfg::kSplitsTail)
        produce<Cfg, Half>(&map_a, &map_b, args, shared, ring, args.full_tiles, num_tiles);
    }
  } else {
    if constexpr (Cfg::kMovesRegisters) setmaxnreg_inc<Cfg::kConsumerRegisters>();
    int num_stores = 0;
    consume<Cfg, Cfg>(&map_c, args, shared, ring, consumer, 0, args.full_tiles, num_stores);
    if constexpr (Cfg::kSplitsTail)
      consume<Cfg, Half>(&map_c, args, shared, ring, consumer, args.full_tiles, num_tiles, num_stores);
    // Shared memory must outlive the stores that read it.
    if (threadIdx.x % kWarpgroup == 0) cp_async_bulk_wait_group_read<0>();
  }
}

// ---- host ----

// A problem whose C is row-major, and what was learned of it.
struct Task {
  GemmProblem problem;
  Operand a, b;
  int num_sms;
  cudaStream_t stream;
};

template <class Cfg>
const char* launch_config(const Task& task) {
  const GemmProblem& p = task.problem;
  Arguments args{};
  args.m = int(p.m);
  args.n = int(p.n);
  args.num_k_tiles = int(ceil_div(p.k, Cfg::kBlockK));
  args.tiles_m = int(ceil_div(p.m, Cfg::kBlockM));
  args.tiles_n = int(ceil_div(p.n, Cfg::kBlockN));
  args.activation = p.activation;
  args.c = p.c;
  // Where A comes through registers, C is column-major.
  constexpr bool kAlongM = Cfg::kAFromRegisters;
  const int64_t inner_c = kAlongM ? p.m : p.n, outer_c = kAlongM ? p.n : p.m;
  args.ldc = kAlongM ? p.stride_cn : p.stride_cm;
  args.bias = p.bias;
  args.stride_bias_m = int(p.stride_bias_m);
  args.stride_bias_n = int(p.stride_bias_n);
  const int64_t pitch_c = outer_c == 1 ? round_up(inner_c, 8) : args.ldc;
  args.stores_by_tma = reinterpret_cast<uintptr_t>(p.c) % 16 == 0 && pitch_c * sizeof(typename Cfg::T) % 16 == 0;

  const int64_t num_tiles = int64_t(args.tiles_m) * args.tiles_n;
  if (num_tiles > INT32_MAX / 2) return "too many tiles";
  args.full_tiles =
      int(splits_tail(Cfg::kBlockN, num_tiles, task.num_sms) ? num_tiles - num_tiles % task.num_sms : num_tiles);
  const int64_t num_blocks = min_of(args.full_tiles + 2 * (num_tiles - args.full_tiles), task.num_sms);
  // The tiles in flight form about a square of C, in groups of about the same size.
  int64_t square = 1;
  while (square * Cfg::kBlockM * square < num_blocks * Cfg::kBlockN) ++square;
  const int64_t num_groups = max_of(1, (args.tiles_m + square / 2) / square);
  args.group_m = int(ceil_div(args.tiles_m, num_groups));

  // Rows of a k-major A beyond m, if no tile has them, are not fetched: they reach only rows of C beyond m.
  const int rows_a = task.a.is_k_major ? int(min_of(Cfg::kBlockM, round_up(p.m, 8))) : Cfg::kBlockM;
  args.a_bytes = rows_a * kRowBytes;
  CUtensorMap map_a{}, map_b{}, map_c{};
  bool is_encoded = encode_tensor_map(&map_a, p.dtype, p.a, task.a.inner, task.a.outer, task.a.ld, Cfg::kBlockK,
                                      task.a.is_k_major ? rows_a : Cfg::kBlockK);
  is_encoded = is_encoded && encode_tensor_map(&map_b, p.dtype, p.b, task.b.inner, task.b.outer, task.b.ld,
                                               Cfg::kBIsNMajor ? Cfg::kBoxN : Cfg::kBlockK,
                                               Cfg::kBIsNMajor ? Cfg::kBlockK : Cfg::kBoxRows);
  if (args.stores_by_tma)
    is_encoded = is_encoded &&
                 encode_tensor_map(&map_c, p.dtype, p.c, inner_c, outer_c, pitch_c, Cfg::kStoreN, kAlongM ? 32 : 64);
  if (!is_encoded) return "the driver refuses a tensor map";

  return launch_overlapped<&wgmma_kernel<Cfg>>(num_blocks, Cfg::kThreads, Cfg::kSmem, task.stream, map_a, map_b, map_c,
                                               args);
}

template <class T, int TILE>
const char* launch_layout(const Task& task) {
  constexpr TileShape kShape = kTileShapes[TILE];
  constexpr int M = kShape.block_m, N = kShape.block_n;
  if constexpr (sizeof(T) == 4) {
    if constexpr (!kShape.serves_tf32) {
      return "not of tf32";
    } else {
      if (task.a.is_k_major) return launch_config<Config<T, M, N, false, false>>(task);
      if (task.b.is_k_major) return launch_config<Config<T, M, N, true, false>>(task);
      if constexpr (N < 256) return launch_config<Config<T, M, N, true, true>>(task);
      return "not of tf32";
    }
  } else {
    if (task.a.is_k_major)
      return task.b.is_k_major ? launch_config<Config<T, M, N, false, false>>(task)
                               : launch_config<Config<T, M, N, false, true>>(task);
    return task.b.is_k_major ? launch_config<Config<T, M, N, true, false>>(task)
                             : launch_config<Config<T, M, N, true, true>>(task);
  }
}

template <class T, int TILE = 0>
const char* launch_tile(const Task& task, int tile) {
  if constexpr (TILE < kNumTileShapes)
    return tile == TILE ? launch_layout<T, TILE>(task) : launch_tile<T, TILE + 1>(task, tile);
  else
    return "no such tile";
}

}  // namespace
}  // namespace tiledmm::cuda

namespace tiledmm::gpu {

namespace {

// The same with rows and columns of C in each other's places: C^T = B^T A^T.
GemmProblem transposed(const GemmProblem& q) {
  GemmProblem p = q;
  p.m = q.n, p.n = q.m;
  p.a = q.b, p.stride_am = q.stride_bn, p.stride_ak = q.stride_bk;
  p.b = q.a, p.stride_bk = q.stride_ak, p.stride_bn = q.stride_am;
  p.stride_cm = q.stride_cn, p.stride_cn = q.stride_cm;
  p.stride_bias_m = q.stride_bias_n, p.stride_bias_n = q.stride_bias_m;
  return p;
}

// fp32, products in tf32. A must lie along k; a B along n becomes the A of the transposed problem, through registers.
Status launch_wgmma_tf32(const GemmProblem& problem, const Executor& executor) {
  using namespace tiledmm::cuda;
  Task task{problem, {}, {}, executor.num_cus, static_cast<cudaStream_t>(executor.stream)};
  GemmProblem& p = task.problem;
  const bool takes_b = !describe_operand(p.b, p.n, p.k, p.stride_bn, p.stride_bk, 4, task.b);
  const char* fuse = getenv("TF32_FUSE");
  const bool takes_a = !describe_operand(p.a, p.m, p.k, p.stride_am, p.stride_ak, 4, task.a) &&
                       (task.a.is_k_major || (takes_b && !task.b.is_k_major && fuse && *fuse == '1'));
  KMajorCopies copies(executor);
  if (!takes_a) copies.add(p.a, p.m, p.k, p.stride_am, p.stride_ak);
  if (!takes_b) copies.add(p.b, p.n, p.k, p.stride_bn, p.stride_bk);
  const Status status = copies.run();
  if (status != Status::ok) return status;
  describe_operand(p.a, p.m, p.k, p.stride_am, p.stride_ak, 4, task.a);
  describe_operand(p.b, p.n, p.k, p.stride_bn, p.stride_bk, 4, task.b);
  if (!task.b.is_k_major) {
    p = transposed(p);
    std::swap(task.a, task.b);
  }
  int tile = choose_tile_shape(p.m, p.n, p.k, executor.num_cus, true, !task.b.is_k_major);
  if (const char* forced = getenv("TF32_TILE")) tile = *forced ? atoi(forced) : tile;
  return launch_tile<float>(task, tile) ? Status::launch_failed : Status::ok;
}

}  // namespace

Status launch_wgmma(const GpuProblem& problem, const Executor& executor) {
  using namespace tiledmm::cuda;
  GemmProblem p = problem.gemm;
  if (p.stride_cn != 1 && p.n != 1) {
    // C is column-major: compute C^T = B^T A^T.
    p = transposed(p);
  }
  if (p.dtype == DType::f32) return launch_wgmma_tf32(p, executor);
  Task task{p, {}, {}, executor.num_cus, static_cast<cudaStream_t>(executor.stream)};
  Repacked repacked_a(executor), repacked_b(executor);
  GemmProblem& taken = task.problem;
  if (describe_operand(p.a, p.m, p.k, p.stride_am, p.stride_ak, 2, task.a)) {
    const Status status = repacked_a.run(taken.a, p.m, p.k, taken.stride_am, taken.stride_ak);
    if (status != Status::ok) return status;
    describe_operand(taken.a, p.m, p.k, taken.stride_am, taken.stride_ak, 2, task.a);
  }
  if (describe_operand(p.b, p.n, p.k, p.stride_bn, p.stride_bk, 2, task.b)) {
    const Status status = repacked_b.run(taken.b, p.n, p.k, taken.stride_bn, taken.stride_bk);
    if (status != Status::ok) return status;
    describe_operand(taken.b, p.n, p.k, taken.stride_bn, taken.stride_bk, 2, task.b);
  }
  const int tile = choose_tile_shape(p.m, p.n, p.k, executor.num_cus, false, false);
  const char* refused =
      p.dtype == DType::f16 ? launch_tile<__half>(task, tile) : launch_tile<__nv_bfloat16>(task, tile);
  return refused ? Status::launch_failed : Status::ok;
}

}  // namespace tiledmm::gpu

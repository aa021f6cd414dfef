// wgmma_fp8_b: Hopper (sm_90a), a B of e4m3 with a scale for each column beside an A of fp16 or bf16, any number of
// rows.
//
// The kernel computes C^T = B^T A^T: consumers take the bytes of B^T, the weight, from shared memory, widen them in
// registers, which is exact, and the matrix unit takes them from there as its first operand; A's rows are its second
// one, where the copy engine has put them. So each byte of the weight is read once and widened once for up to 256 rows
// of A. 64 of k are widened while 64 others are multiplied. A thread has two bytes at a time of a row, eight bytes
// apart, since the order of k in registers is that of shared memory.
//
// Tiles have about the same number of rows of the weight each, as many as give every multiprocessor its share; chunks
// of k are summed one after the other or side by side, as in wgmma. A warp's sums pass through shared memory to C, so
// that stores are whole sectors and the code of the epilogue exists once.
//
// Sources: an operand from registers that is widened on its way, and exchanged roles, as in CUTLASS 3 (mixed input GEMM
// of Hopper, sm90_mma_tma_gmma_rs_warpspecialized_mixed_input). Limits: A and the weight along k, in rows of whole
// units of 16 bytes; one product.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "kernels/cuda/shared/ptx_sm90.h"
#include "kernels/cuda/shared/ring.h"
#include "kernels/cuda/shared/tensor_map.h"
#include "kernels/cuda/shared/tile_groups.h"
#include "kernels/cuda/wgmma/fp8_b_result.h"
#include "kernels/cuda/wgmma/fp8_b_task.h"

namespace tiledmm::cuda {
namespace {

using gpu::Divisor;
using gpu::TileGroups;

template <class T_, int TILE>
struct Fp8BConfig {
  using T = T_;
  using Element = std::conditional_t<std::is_same_v<T, __half>, Half, BFloat16>;
  static constexpr Fp8BTile kTile = kFp8BTiles[TILE];
  static constexpr int kConsumers = kTile.consumers, kBlockM = 64 * kConsumers, kBlockN = kTile.block_n;
  static constexpr int kBlockK = kTile.block_k, kBoxes = kBlockK / kFp8BBoxK;  // boxes of A's rows in a stage
  // The producer is a warpgroup of its own, so that registers move to the consumers.
  static constexpr int kThreads = (kConsumers + 1) * 128;
  static constexpr int kStartRegisters = kConsumers == 2 ? 168 : kConsumers == 3 ? 128 : 96;  // as many as there may be
  static constexpr int kProducerRegisters = kConsumers == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 232 : kConsumers == 3 ? 160 : 112;
  static constexpr int kAcc = kBlockN / 2;
  static constexpr bool kSumsChunks = sums_chunks(kTile);
  // A stage: rows of the weight, kBlockK bytes each and swizzled over them; then boxes of A's rows of 128 bytes.
  static constexpr int kPitch = kBlockK, kWeightBytes = kBlockM * kPitch, kBoxBytes = kBlockN * 128;
  static constexpr int kStageBytes = kWeightBytes + kBoxes * kBoxBytes;
  // Sums on their way to C: a warp's 16 of the weight's rows for some of A's.
  static constexpr int kStripRows = kBlockN < 16 ? 8 : kBlockN < 128 ? 16 : 32, kStripPitch = 20;
  static constexpr int kStripBytes = kStripRows * kStripPitch * 4, kStripsBytes = 4 * kConsumers * kStripBytes;
  static constexpr int kMaxSmem = 232448, kMaxStages = 12;  // of one block on sm_90; more does not hide more
  static constexpr int kFixedBytes = 1024 + kStripsBytes + 2 * kMaxStages * 8;
  static constexpr int kFitting = (kMaxSmem - kFixedBytes) / kStageBytes;
  static constexpr int kNumStages = kFitting < kMaxStages ? kFitting : kMaxStages;
  static constexpr int kSmem = kFixedBytes + kNumStages * kStageBytes;
  static constexpr uint64_t kDesc = matrix_descriptor(Swizzle::bytes_128, 0, 1024);
  // Sums that the blocks of a cluster exchange, [row of A][row of the weight], in the place of stages.
  static constexpr int kSharedPitch = kBlockM + 4;
  static_assert(kBlockN * kSharedPitch * 4 <= kNumStages * kStageBytes, "sums in the place of stages");
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters == (kConsumers + 1) * kStartRegisters,
                "setmaxnreg: what the block starts with");
  static_assert(kPitch == 64 || kPitch == 128, "a swizzle's width");
  static_assert(kWeightBytes % 1024 == 0 && kBoxBytes % 1024 == 0, "the patterns of the swizzle repeat");
  static_assert(kNumStages >= 3, "a stage is free only when the next one is there and has begun");
  static_assert(kChunkUnit % kBlockK == 0, "a chunk begins with a stage");
  static_assert(kBlockN % kStripRows == 0 && kStripRows % 8 == 0);
};

struct Fp8BArguments {
  int tile_rows, tile_cols;      // of a tile: rows of the weight, of A
  int num_stages, chunk_stages;  // of all k, of a chunk
  int num_splits;                // 1, or the number of chunks, each of which is a tile of its own
  int num_tiles;                 // of all chunks
  int stage_bytes;               // that arrive in a stage
  CachePolicy weight_policy;
  TileGroups groups;
  Divisor tiles_of_chunk;
  int m;
  Fp8BResult result;
  float* partial;  // where a second kernel adds chunks: their sums
  int64_t ld_partial;
};

struct Fp8BPlace {
  int row, col;                 // of the weight, of A
  int chunk;                    // 0 where they are not split
  int first_stage, num_stages;  // along k

  __device__ __forceinline__ Fp8BPlace(const Fp8BArguments& args, int idx) {
    chunk = args.num_splits > 1 ? args.tiles_of_chunk.quotient(idx) : 0;
    const TileGroups::Tile tile = args.groups.tile(idx - chunk * args.tiles_of_chunk.value);
    row = tile.row * args.tile_rows, col = tile.col * args.tile_cols;
    first_stage = chunk * args.chunk_stages;
    num_stages = args.num_splits > 1 ? min(args.num_stages - first_stage, args.chunk_stages) : args.num_stages;
  }
};

// Shared memory of a block, as addresses; the last two: barriers, one per stage.
struct Fp8BShared {
  uint32_t stages, full, empty;
};

// The tiles of a block: every num_blocks-th; one where blocks of a cluster share it, each of which has a chunk.
template <bool SHARES>
struct Fp8BTiles {
  int first, step;

  __device__ __forceinline__ explicit Fp8BTiles(const Fp8BArguments& args) : first(blockIdx.x), step(gridDim.x) {
    if (!SHARES) return;
    const int tile = first / args.num_splits, chunk = first - tile * args.num_splits;
    first = chunk * args.tiles_of_chunk.value + tile;
    step = args.num_tiles;
  }
};

// The copies of all stages of a block's tiles, by one thread.
template <class Cfg, bool SHARES>
struct Fp8BProducer {
  const CUtensorMap *weight, *few;
  const Fp8BArguments& args;
  const Fp8BShared& shared;
  Fp8BTiles<SHARES> tiles{args};
  Ring<Cfg::kNumStages> ring{};
  int tile = tiles.first, stage = 0;  // of the tile
  Fp8BPlace at{args, tile};

  __device__ __forceinline__ bool has_next() const { return tile < args.num_tiles; }
  __device__ __forceinline__ void load_next() {
    const uint32_t barrier = shared.full + ring.stage * 8, smem = shared.stages + ring.stage * Cfg::kStageBytes;
    // The phase before the first counts as complete.
    mbarrier_wait_parity(shared.empty + ring.stage * 8, ring.phase ^ 1);
    mbarrier_arrive_expect_tx(barrier, args.stage_bytes);
    const int k = (at.first_stage + stage) * Cfg::kBlockK;
    cp_async_bulk_tensor_3d(smem, weight, k, at.row, 0, barrier, args.weight_policy);
#pragma unroll
    for (int box = 0; box < Cfg::kBoxes; ++box)
      cp_async_bulk_tensor_3d(smem + Cfg::kWeightBytes + box * Cfg::kBoxBytes, few, k + box * kFp8BBoxK, at.col, 0,
                              barrier, CachePolicy::evict_normal);
    advance();
  }
  __device__ __forceinline__ void advance() {
    ring.advance();
    if (++stage < at.num_stages) return;
    stage = 0;
    tile += tiles.step;
    if (has_next()) at = Fp8BPlace(args, tile);
  }
  // The first copies wait for no other warp, only for the end of the kernels before this one.
  __device__ __forceinline__ void fill_ring() {
    griddepcontrol_wait();
#pragma unroll 1
    for (int i = 0; i < Cfg::kNumStages && has_next(); ++i) load_next();
  }
  // Once the ring is filled.
  __device__ __forceinline__ void load_rest() {
#pragma unroll 1
    for (int i = 0; i < Cfg::kNumStages && has_next(); ++i) advance();
    while (has_next()) load_next();
  }
};

// A consumer's sums of a tile; HAS_CHUNKS: of several chunks perhaps.
//
// A matrix instruction takes 16 of k. The matrix unit holds up a warp whose next one waits for registers to be read, so
// between two of them a thread widens what the one after next takes, and loads what will be widened then.
template <class Cfg, bool HAS_CHUNKS>
struct Fp8BSums {
  static constexpr int kSteps = Cfg::kBlockK / 16;                       // of a stage
  static constexpr int kSlots = 4, kWidenedAhead = 2, kLoadedAhead = 4;  // kept, in steps
  static_assert(kSteps % kSlots == 0 && kLoadedAhead <= kSteps, "slots are known to the compiler");

  const Fp8BShared& shared;
  Ring<Cfg::kNumStages>& ring;
  uint32_t bytes_of_row;  // in the first stage: where the thread's first row lies
  uint32_t first_few;     // in the first stage, as matrix_address has it
  float acc[Cfg::kAcc];
  float total[HAS_CHUNKS ? Cfg::kAcc : 1];          // of the chunks
  uint32_t pairs[kSlots][4], fragments[kSlots][4];  // of a step: numbers of 8 bits, and as the matrix unit takes them

  // A warp's loads meet in no bank: the swizzle gives its eight rows different packets.
  __device__ __forceinline__ void load(int stage, int step) {
    const uint32_t packet = (bytes_of_row + stage * Cfg::kStageBytes) ^ step << 4;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      pairs[step % kSlots][i] = load_shared_short(packet + i % 2 * 8 * Cfg::kPitch + i / 2 * 8);
  }
  __device__ __forceinline__ void widen(int step) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      fragments[step % kSlots][i] = gpu::widened_e4m3<typename Cfg::Element>(pairs[step % kSlots][i]);
  }
  __device__ __forceinline__ void wait_for_stage() const {
    mbarrier_wait_parity(shared.full + ring.stage * 8, ring.phase);
  }
  __device__ __forceinline__ void release(int stage) const {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(shared.empty + stage * 8);
  }

  // Whoever has no rows of a tile frees its stages.
  __device__ __forceinline__ void skip(int num_stages) const {
#pragma unroll 1
    for (; num_stages > 0; --num_stages) {
      wait_for_stage();
      release(ring.stage);
      ring.advance();
    }
  }

  // Multiplies the ring's stage, of which the first steps are loaded and widened, and begins with the next one.
  template <bool HAS_NEXT>
  __device__ __forceinline__ void multiply_stage(bool starts_chunk, int previous) {
    const int stage = ring.stage;
    const uint32_t address = first_few + __shfl_sync(~0u, stage, 0) * (Cfg::kStageBytes >> 4);
    ring.advance();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      wgmma_fence();
      wgmma_mma_async_fragment<typename Cfg::T, Cfg::kBlockN>(
          acc, fragments[step % kSlots],
          matrix_descriptor_at(Cfg::kDesc, address + (step / 4 * Cfg::kBoxBytes >> 4) + step % 4 * 2),
          step > 0 || !starts_chunk);
      wgmma_commit_group();
      if (HAS_NEXT && step == kSteps - kLoadedAhead) wait_for_stage();
      if (step + kLoadedAhead < kSteps)
        load(stage, step + kLoadedAhead);
      else if (HAS_NEXT)
        load(ring.stage, step + kLoadedAhead - kSteps);
      // The slot of the next fragment is free, and so is the stage before this one when all of it is multiplied.
      wgmma_wait_group<kSlots - kWidenedAhead>();
      if (step == kSlots - kWidenedAhead - 1 && previous >= 0) release(previous);
      if (step + kWidenedAhead < kSteps || HAS_NEXT) widen((step + kWidenedAhead) % kSteps);
    }
  }

  // The sums over the next stages of the ring, to `acc`.
  __device__ __forceinline__ void multiply(int num_stages, int chunk_stages) {
    forget_registers(acc);
    if constexpr (HAS_CHUNKS) {
#pragma unroll
      for (int i = 0; i < Cfg::kAcc; ++i) total[i] = -0.0f;  // the number that adds nothing to any
    }
    wait_for_stage();
#pragma unroll
    for (int step = 0; step < kLoadedAhead; ++step) load(ring.stage, step);
#pragma unroll
    for (int step = 0; step < kWidenedAhead; ++step) widen(step);
    int previous = -1, of_chunk = 0;
#pragma unroll 1
    for (; num_stages > 1; --num_stages) {
      const int stage = ring.stage;
      multiply_stage<true>(of_chunk == 0, previous);
      previous = stage;
      ++of_chunk;
      if constexpr (HAS_CHUNKS) {
        if (of_chunk == chunk_stages) {
          wgmma_wait_group<0>();
          fence_registers(acc);
          add(total, acc);
          of_chunk = 0;
        }
      }
    }
    const int last = ring.stage;
    multiply_stage<false>(of_chunk == 0, previous);
    wgmma_wait_group<0>();
    fence_registers(acc);
    release(last);
    if constexpr (HAS_CHUNKS) {
#pragma unroll
      for (int i = 0; i < Cfg::kAcc; ++i) acc[i] += total[i];
    }
  }
};

// A warp's 16 rows of the weight, from `row` on, by all of the tile's rows of A, from the sums to C, or to the chunks'.
// `strip`: the warp's.
template <class Cfg>
__device__ __forceinline__ void store_sums(float (&acc)[Cfg::kAcc], const Fp8BArguments& args, const Fp8BPlace& at,
                                           int row, float* strip) {
  constexpr int kRows = Cfg::kStripRows, kPitch = Cfg::kStripPitch, kOfTurn = kRows / 2;
  const int lane = threadIdx.x % 32, first = row + lane % 4 * 4;
  const int num_inside = min(args.result.n, at.row + args.tile_rows) - first;
  const int end_row = min(args.m, at.col + args.tile_cols);
  const Fp8BColumns columns(args.result, first, num_inside);
#pragma unroll 1
  for (int turn = 0; turn < Cfg::kBlockN / kRows; ++turn) {
#pragma unroll
    for (int i = 0; i < kOfTurn; ++i)
      strip[(i / 4 * 8 + lane % 4 * 2 + i % 2) * kPitch + lane / 4 + i / 2 % 2 * 8] = acc[i];
    __syncwarp();
#pragma unroll 1
    for (int own = lane / 4; own < kRows; own += 8) {
      const int own_row = at.col + turn * kRows + own;
      if (own_row >= end_row || num_inside <= 0) break;
      const float4 v = *reinterpret_cast<const float4*>(strip + own * kPitch + lane % 4 * 4);
      if (args.partial)
        *reinterpret_cast<float4*>(args.partial + (int64_t(at.chunk) * args.m + own_row) * args.ld_partial + first) = v;
      else
        store_finished(args.result, columns, v, own_row, first, num_inside);
    }
    __syncwarp();  // what others wrote is read

    // All accumulators take their turn at the same places.
#pragma unroll
    for (int i = 0; i < Cfg::kAcc - kOfTurn; ++i) acc[i] = acc[i + kOfTurn];
  }
}

// Where blocks of a cluster share a tile: each has the sums of a chunk in `acc`, and stores some rows of C. `first`:
// the warp's first row of the tile. By all consumers, of whom some have no sums.
template <class Cfg>
__device__ __forceinline__ void store_shared_sums(const float (&acc)[Cfg::kAcc], bool has_sums,
                                                  const Fp8BArguments& args, const Fp8BShared& shared,
                                                  const Fp8BPlace& at, int first) {
  constexpr int kThreads = Cfg::kConsumers * 128, kQuads = Cfg::kBlockM / 4, kPitch = Cfg::kSharedPitch * 4;
  static_assert(kThreads % kQuads == 0, "a thread's columns of C are always the same");
  const int lane = threadIdx.x % 32;
  named_barrier_sync(1, kThreads);  // all have read the stages, and all that was copied has arrived
  if (has_sums) {
    const uint32_t to = shared.stages + lane % 4 * 2 * kPitch + (first + lane / 4) * 4;
#pragma unroll
    for (int i = 0; i < Cfg::kAcc; ++i)
      store_shared_word(to + (i / 4 * 8 + i % 2) * kPitch + i / 2 % 2 * 32, __float_as_uint(acc[i]));
  }
  cluster_sync();
  const int quad = threadIdx.x % kQuads, col = at.row + quad * 4;
  const int num_inside = min(args.result.n, at.row + args.tile_rows) - col;
  const int end_row = min(args.m - at.col, args.tile_cols);
  const Fp8BColumns columns(args.result, col, num_inside);
#pragma unroll 1
  for (int row = threadIdx.x / kQuads + at.chunk * (kThreads / kQuads); row < end_row && num_inside > 0;
       row += args.num_splits * (kThreads / kQuads)) {
    float4 sums[kFp8BMostChunks];
#pragma unroll
    for (int i = 0; i < kFp8BMostChunks; ++i) {
      if (i < args.num_splits)
        sums[i] = load_shared_cluster_vector(map_shared_cluster(shared.stages + row * kPitch + quad * 16, i));
    }
    store_finished(args.result, columns, sum_of(sums, args.num_splits), at.col + row, col, num_inside);
  }
  cluster_sync();  // others have read this block's sums
}

template <class Cfg, bool SHARES>
__global__ void __launch_bounds__(Cfg::kThreads, 1)
    wgmma_fp8_b_kernel(const __grid_constant__ CUtensorMap map_weight, const __grid_constant__ CUtensorMap map_few,
                       const __grid_constant__ Fp8BArguments args) {
  extern __shared__ char dynamic_smem[];
  // The patterns of the swizzle count from multiples of 1024 bytes.
  char* smem = dynamic_smem + (-smem_address(dynamic_smem) & 1023);
  char* strips = smem + Cfg::kNumStages * Cfg::kStageBytes;
  Fp8BShared shared;
  shared.stages = smem_address(smem);
  shared.full = smem_address(strips) + Cfg::kStripsBytes;
  shared.empty = shared.full + Cfg::kNumStages * 8;
  const int warp = threadIdx.x / 32;
  const bool is_producer = warp == Cfg::kConsumers * 4 && elect_sync();
  if (is_producer) {
    prefetch_tensormap(&map_weight);
    prefetch_tensormap(&map_few);
#pragma unroll
    for (int stage = 0; stage < Cfg::kNumStages; ++stage) {
      mbarrier_init(shared.full + stage * 8, 1);
      mbarrier_init(shared.empty + stage * 8, 4 * Cfg::kConsumers);  // one arrival per consumer warp
    }
    fence_mbarrier_init();
    Fp8BProducer<Cfg, SHARES>{&map_weight, &map_few, args, shared}.fill_ring();
  }
  __syncthreads();
  // Up to here nothing was read or written that the kernel before this one may still work on.
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  if (warp >= Cfg::kConsumers * 4) {
    setmaxnreg_dec<Cfg::kProducerRegisters>();
    if (is_producer) Fp8BProducer<Cfg, SHARES>{&map_weight, &map_few, args, shared}.load_rest();
  } else {
    setmaxnreg_inc<Cfg::kConsumerRegisters>();
    const int consumer = warp / 4, first = consumer * 64 + warp % 4 * 16;  // the warp's first row of a tile
    const int own_row = first + threadIdx.x % 32 / 4;
    Ring<Cfg::kNumStages> ring;
    Fp8BSums<Cfg, Cfg::kSumsChunks && !SHARES> sums{shared, ring};
    // The packet that the swizzle gives the first 16 of k is xored with others' numbers.
    sums.bytes_of_row = shared.stages + own_row * Cfg::kPitch +
                        ((own_row * Cfg::kPitch / 128) % (Cfg::kPitch / 16) << 4) + threadIdx.x % 4 * 2;
    sums.first_few = __shfl_sync(~0u, matrix_address(shared.stages + Cfg::kWeightBytes), 0);
    float* strip = reinterpret_cast<float*>(strips + warp * Cfg::kStripBytes);
    const Fp8BTiles<SHARES> tiles(args);
#pragma unroll 1
    for (int tile = tiles.first; tile < args.num_tiles; tile += tiles.step) {
      const Fp8BPlace at(args, tile);
      const bool has_rows = consumer * 64 < min(args.tile_rows, args.result.n - at.row);
      if (has_rows)
        sums.multiply(at.num_stages, args.chunk_stages);
      else
        sums.skip(at.num_stages);
      if constexpr (SHARES)
        store_shared_sums<Cfg>(sums.acc, has_rows, args, shared, at, first);
      else if (has_rows)
        store_sums<Cfg>(sums.acc, args, at, at.row + first, strip);
    }
  }
}

// ---- host ----

template <class Cfg, bool SHARES>
const char* launch_fp8_b_config(const Fp8BTask& task) {
  const GemmProblem& p = task.problem.gemm;
  const Fp8BPlan& plan = task.plan;
  Fp8BArguments args{};
  args.tile_rows = plan.rows, args.tile_cols = plan.cols;
  args.num_stages = int(ceil_div(p.k, Cfg::kBlockK));
  args.chunk_stages = int(ceil_div(task.problem.chunk_k, Cfg::kBlockK));
  args.num_splits = plan.split != Fp8BSplit::none ? int(ceil_div(p.k, task.problem.chunk_k)) : 1;
  args.num_tiles = plan.num_tiles;
  args.stage_bytes = plan.rows * Cfg::kPitch + Cfg::kBoxes * plan.cols * 128;
  args.weight_policy = plan.tiles_cols == 1 ? CachePolicy::evict_first : CachePolicy::evict_normal;
  args.groups = TileGroups(plan.tiles_rows, plan.tiles_cols, plan.group);
  args.tiles_of_chunk = Divisor(plan.tiles_rows * plan.tiles_cols);
  args.m = int(p.m);
  args.result = Fp8BResult(p);
  args.partial = task.partial, args.ld_partial = ld_fp8_b_partial(p.n);
  CUtensorMap weight{}, few{};
  if (!encode_tensor_map(&weight, p.dtype_b, p.b, plan.weight, Cfg::kBlockK, plan.rows, Cfg::kPitch, false) ||
      !encode_tensor_map(&few, p.dtype_a, p.a, plan.few, kFp8BBoxK, plan.cols, 128, false))
    return "the driver refuses a tensor map";
  const auto cluster = unsigned(SHARES ? args.num_splits : 1);
  return launch_in_clusters<&wgmma_fp8_b_kernel<Cfg, SHARES>>(
      dim3(cluster), dim3(unsigned(plan.num_blocks)), Cfg::kThreads, Cfg::kSmem, task.stream, weight, few, args);
}

}  // namespace

template <int INSTANCE>
const char* launch_fp8_b_instance(const Fp8BTask& task) {
  constexpr Instance kOwn = kFp8BInstances[INSTANCE];
  using T = std::conditional_t<kOwn.dtype == DType::f16, __half, __nv_bfloat16>;
  return visit_number<kOwn.first, kOwn.end>(task.plan.tile, "no such tile", [&](auto number) {
    using Cfg = Fp8BConfig<T, decltype(number)::value>;
    return task.plan.split == Fp8BSplit::by_cluster ? launch_fp8_b_config<Cfg, true>(task)
                                                    : launch_fp8_b_config<Cfg, false>(task);
  });
}

}  // namespace tiledmm::cuda

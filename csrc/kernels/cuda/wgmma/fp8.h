// wgmma_fp8: wgmma's frame (kernel.h) with the main loop of operands in 8 bits and its factors.
//
// The matrix unit adds products in 8 bits with few bits behind the point: about 13 below the largest (DeepGEMM issues
// #37 and #50). So it sums one k tile, 128 elements, from zero on, and multiply-adds outside of it sum k tiles in fp32
// in the order of k ("promotion": DeepSeek-V3 technical report, section 3.3.2). A consumer multiplies its columns in
// parts: while it adds, the matrix unit works on its next part or for another consumer. Factors of blocks are those of
// one k tile, and multiply its sums on their way; factors of rows and columns multiply totals at the end.
#pragma once

#include "kernels/cuda/wgmma/fp8_task.h"
#include "kernels/cuda/wgmma/kernel.h"

namespace tiledmm::cuda {
namespace {

template <DType TYPE_A, DType TYPE_B, class C, int TILE, Factors FACTORS>
struct Fp8Config : Config<uint8_t, C, kFp8Tiles[TILE].shape.block_m, kFp8Tiles[TILE].shape.block_n, false, false, false,
                          /*CLUSTERS=*/false> {
  static constexpr bool kIsScaled = true;
  static constexpr DType kTypeA = TYPE_A, kTypeB = TYPE_B;
  static constexpr Factors kFactors = FACTORS;
  static constexpr int kPartN = kFp8Tiles[TILE].part_n, kSets = kFp8Tiles[TILE].sets;
  // More for sums and totals.
  using Base =
      Config<uint8_t, C, kFp8Tiles[TILE].shape.block_m, kFp8Tiles[TILE].shape.block_n, false, false, false, false>;
  static constexpr int kProducerRegisters = Base::kConsumers == 2 ? 40 : Base::kProducerRegisters;
  static constexpr int kConsumerRegisters = Base::kConsumers == 2 ? 232 : Base::kConsumerRegisters;

  template <class Piece>
  __device__ __forceinline__ static void multiply_scaled(float (&total)[Piece::kAcc], const Arguments& args,
                                                         const StageAddress& first_stage, const Shared& shared,
                                                         Ring<Fp8Config::kNumStages>& ring, int consumer,
                                                         const Place& at);
};

// Halves of a tile of 128 x 256: one part each.
constexpr int kHalfFp8Tile = 2;
static_assert(kFp8Tiles[0].shape.block_n == 256 && kFp8Tiles[kHalfFp8Tile].shape.block_n == 128 &&
              kFp8Tiles[kHalfFp8Tile].part_n == kFp8Tiles[0].part_n);
template <DType TYPE_A, DType TYPE_B, class C, int TILE, Factors FACTORS>
struct Half<Fp8Config<TYPE_A, TYPE_B, C, TILE, FACTORS>> {
  using Type = Fp8Config<TYPE_A, TYPE_B, C, kHalfFp8Tile, FACTORS>;
};

// The factors of the sums of one step: of a thread's two rows, and of its columns: one, or where theirs begin in shared
// memory.
struct StepFactors {
  uint2 rows;
  uint32_t column;
};

// Factors of blocks pass through shared memory, where what is stored lies otherwise. A consumer's threads copy those of
// a stage as many stages ahead as there is room for: what multiplies is faster than a word comes from memory. Beyond C,
// another's factor serves: what it multiplies is not stored. Beyond k it is zero, like the sums there.
template <class Cfg, class Piece>
struct BlockFactors {
  static constexpr bool kByColumn = Cfg::kFactors == Factors::columns;
  static constexpr int kColumns = kByColumn ? Piece::kBlockN : Piece::kBlockN / Piece::kPartN;  // of a k tile
  static constexpr int kOfTile = 64 + (kColumns + 3) / 4 * 4, kOfStage = Cfg::kTilesOfStage * kOfTile;
  static constexpr int kWords = (kOfStage + kWarpgroup - 1) / kWarpgroup;  // of a thread
  // Sums are added a step late, when a thread that is ahead copies: two stages' factors are read meanwhile.
  static constexpr int kFitting = Cfg::kStoreBytes / (kOfStage * 4), kBuffers = kFitting < 8 ? kFitting : 8,
                       kAhead = kBuffers - 2;
  static_assert(kAhead >= 3, "stages on their way");
  const float* from[kWords];
  int step[kWords];                                  // between stages
  uint32_t smem;                                     // the consumer's place
  int num_k_tiles, barrier_id, to = 0, buffer = -1;  // to: of the next copies; buffer: of the stage that is multiplied

  // Pairs of rows and fours of columns lie together that a thread has of a step.
  __device__ __forceinline__ static int row_at(int i) { return i / 16 * 16 + i % 2 * 8 + i % 16 / 2; }
  __device__ __forceinline__ static int column_at(int i) {
    return kByColumn ? i / 16 * 16 + i % 4 / 2 * 8 + i % 16 / 4 * 2 + i % 2 : min(i, kColumns - 1) * Piece::kPartN;
  }

  __device__ __forceinline__ BlockFactors(const Arguments& args, const Place& at, char* buffers, int row,
                                          int barrier_id)
      : smem(smem_address(buffers)), num_k_tiles(at.num_k_tiles), barrier_id(barrier_id) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int tile = place(i) / kOfTile, own = place(i) % kOfTile;
      const bool is_row = own < 64;
      const int stride = int(is_row ? args.scale_a.stride_k : args.scale_b.stride_k);
      const int64_t first = is_row
                                ? args.scale_a.offset(min(row + row_at(own), args.m - 1), 0)
                                : args.scale_b.offset(min(at.col + column_at(own - 64), args.n - 1), 0) + at.scales_b;
      from[i] = (is_row ? args.scale_a.data : args.scale_b.data) + first + tile * stride;
      step[i] = Cfg::kTilesOfStage * stride;
    }
    if (threadIdx.x % kWarpgroup == 0) cp_async_bulk_wait_group_read<0>();
    named_barrier_sync(barrier_id, kWarpgroup);  // what is stored has left
#pragma unroll 1
    for (int i = 0; i < kAhead; ++i) copy(i * Cfg::kTilesOfStage);
  }
  __device__ __forceinline__ static int behind(int buffer) { return (buffer + 1) % kBuffers; }
  __device__ __forceinline__ static int place(int i) { return threadIdx.x % kWarpgroup + i * kWarpgroup; }

  __device__ __forceinline__ void copy(int k_tile) {
    if (k_tile < num_k_tiles) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        if (place(i) < kOfStage) {
          const bool is_inside = Cfg::kTilesOfStage == 1 || k_tile + place(i) / kOfTile < num_k_tiles;
          cp_async_word(smem + (to * kOfStage + place(i)) * 4, from[i], is_inside);
        }
        from[i] += step[i];
      }
    }
    cp_async_commit_group();
    to = behind(to);
  }
  __device__ __forceinline__ void begin_stage(int k_tile) {
    cp_async_wait_group<kAhead - 1>();
    named_barrier_sync(barrier_id, kWarpgroup);  // the others' factors are there
    buffer = behind(buffer);
    copy(k_tile + kAhead * Cfg::kTilesOfStage);
  }
  __device__ __forceinline__ StepFactors of_step(int tile, int part) const {
    const uint32_t own = smem + (buffer * kOfStage + tile * kOfTile) * 4;
    const uint2 rows = load_shared_pair(own + (threadIdx.x % kWarpgroup / 4 * 2) * 4);
    if constexpr (kByColumn) return {rows, own + (64 + part * Piece::kPartN + threadIdx.x % 4 * 4) * 4};
    return {rows, load_shared_word(own + (64 + part) * 4)};
  }
};

struct NoFactors {
  template <class... Any>
  __device__ __forceinline__ NoFactors(const Any&...) {}
};

// The main loop of a consumer. A step multiplies a part of the columns by a k tile; `sums` hold as many steps as are
// under way or not yet added.
template <class Cfg, class Piece>
struct PromotedLoop {
  static constexpr int kPartN = Piece::kPartN, kParts = Piece::kBlockN / kPartN, kSums = kPartN / 2;
  static constexpr int kSteps = Cfg::kTilesOfStage * kParts;  // of a stage
  static constexpr int kSets = Piece::kSets;
  static constexpr bool kHasBlocks = Cfg::kFactors != Factors::rows, kByColumn = Cfg::kFactors == Factors::columns;

  float (&total)[Piece::kAcc];
  const StageAddress& first_stage;
  const Shared& shared;
  Ring<Cfg::kNumStages>& ring;
  std::conditional_t<kHasBlocks, BlockFactors<Cfg, Piece>, NoFactors> factors;
  uint32_t full = gpu::opaque(shared.full);  // else it is computed anew for every stage
  uint32_t stage = 0;                        // the address of the ring's stage, counted from the first one
  float sums[kSets][kSums];
  StepFactors own[kSets];

  // The compiler keeps descriptors in uniform registers where a stage's address is made in the same straight piece of
  // code.
  __device__ __forceinline__ void begin_stage() {
    mbarrier_wait_parity(full + ring.stage * 8, ring.phase);
    stage = __shfl_sync(~0u, ring.stage, 0) * (Cfg::kStageBytes >> 4);
  }

  __device__ __forceinline__ void multiply(int k_tile, int step, int set) {
    const uint32_t tile = stage + step / kParts * (Cfg::kTileBytes >> 4);
    const uint32_t part = step % kParts * (kPartN * 128 >> 4);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < Cfg::kBlockK / Cfg::kMmaK; ++i)
      wgmma_mma_async_fp8<kPartN, Cfg::kTypeA, Cfg::kTypeB>(
          sums[set], matrix_descriptor_at(Cfg::kDescA, first_stage.a + tile + i * Cfg::kStepA),
          matrix_descriptor_at(Cfg::kDescB, first_stage.b + tile + part + i * Cfg::kStepB), i > 0);
    wgmma_commit_group();
    if constexpr (kHasBlocks) {
      if (step == 0) factors.begin_stage(k_tile);
      own[set] = factors.of_step(step / kParts, step % kParts);
    }
  }

  __device__ __forceinline__ void add_to_total(int step, int set) {
    float* const to = total + step % kParts * kSums;
    if constexpr (!kHasBlocks) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) add(to[i], sums[set][i]);
    } else {
      const float rows[2] = {__uint_as_float(own[set].rows.x), __uint_as_float(own[set].rows.y)};
      if constexpr (kByColumn) {
#pragma unroll
        for (int i = 0; i < kSums; i += 8) {
          const uint4 four = load_shared_vector(own[set].column + i * 8);
          const float columns[4] = {__uint_as_float(four.x), __uint_as_float(four.y), __uint_as_float(four.z),
                                    __uint_as_float(four.w)};
#pragma unroll
          for (int j = 0; j < 8; ++j)
            add_scaled(to[i + j], sums[set][i + j], rows[j / 2 % 2] * columns[j / 4 * 2 + j % 2]);
        }
      } else {
        const float column = __uint_as_float(own[set].column), both[2] = {rows[0] * column, rows[1] * column};
#pragma unroll
        for (int i = 0; i < kSums; ++i) add_scaled(to[i], sums[set][i], both[i / 2 % 2]);
      }
    }
  }

  // The next COUNT stages. With two sets of sums the next step is under way while a step's are added.
  template <int COUNT>
  __device__ __forceinline__ void multiply_stages(int k_tile) {
    constexpr int kAll = COUNT * kSteps;
    begin_stage();
    multiply(k_tile, 0, 0);
#pragma unroll
    for (int i = 0; i < kAll; ++i) {
      const int step = i % kSteps, current = ring.stage;
      const bool ends_stage = step + 1 == kSteps, has_next = i + 1 < kAll;
      if (ends_stage) ring.advance();
      if (ends_stage && has_next) begin_stage();
      const auto multiply_next = [&] {
        multiply(k_tile + (i + 1) / kSteps * Cfg::kTilesOfStage, (i + 1) % kSteps, (i + 1) % kSets);
      };
      if (kSets == 2 && has_next) {
        multiply_next();
        wgmma_wait_group<1>();
      } else {
        wgmma_wait_group<0>();
      }
      if (ends_stage) release_stage<Cfg>(shared, current);
      add_to_total(step, i % kSets);
      if (kSets == 1 && has_next) multiply_next();
    }
  }
};

// Sums over all k tiles of a tile, each multiplied by the factors of its blocks if there are such. The matrix unit runs
// dry only after as many stages as the compiler sees at a time: it cannot tell that sums which a loop's last turn left
// are done.
template <class Cfg, class Piece>
__device__ __forceinline__ void multiply_promoted(float (&total)[Piece::kAcc], const Arguments& args,
                                                  const StageAddress& first_stage, const Shared& shared,
                                                  Ring<Cfg::kNumStages>& ring, int consumer, const Place& at) {
  constexpr int kStages = Cfg::kFactors == Factors::rows ? 4 : 2, kTiles = kStages * Cfg::kTilesOfStage;
  const int num_k_tiles = at.num_k_tiles;
  PromotedLoop<Cfg, Piece> loop{
      total, first_stage, shared, ring, {args, at, shared.c, at.row + consumer * 64, 1 + consumer}};
#pragma unroll
  for (int set = 0; set < Piece::kSets; ++set) forget_registers(loop.sums[set]);
  int k_tile = 0;
#pragma unroll 1
  for (; k_tile + kTiles <= num_k_tiles; k_tile += kTiles) loop.template multiply_stages<kStages>(k_tile);
#pragma unroll 1
  for (; k_tile < num_k_tiles; k_tile += Cfg::kTilesOfStage) loop.template multiply_stages<1>(k_tile);
}

// total * (the factor of its row * that of its column). A thread's columns come to it through `buffers`, those of the
// consumer's stores, as in add_bias: whoever writes there next waits for all threads first.
template <class Cfg>
__device__ __forceinline__ void scale_block_tile(float (&total)[Cfg::kAcc], const float (&rows)[2],
                                                 const float (&own_columns)[2], char* buffers, int barrier_id) {
  const int thread = threadIdx.x % kWarpgroup;
  float* columns = reinterpret_cast<float*>(buffers);
  if (thread == 0) cp_async_bulk_wait_group_read<0>();
  named_barrier_sync(barrier_id, kWarpgroup);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (thread + i * kWarpgroup < Cfg::kBlockN) columns[thread + i * kWarpgroup] = own_columns[i];
  }
  named_barrier_sync(barrier_id, kWarpgroup);
#pragma unroll
  for (int j = 0; j < Cfg::kBlockN / 8; ++j) {
    const float2 pair = *reinterpret_cast<const float2*>(columns + j * 8 + threadIdx.x % 4 * 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) total[4 * j + i] *= rows[i / 2] * (i % 2 ? pair.y : pair.x);
  }
}

template <DType TYPE_A, DType TYPE_B, class C, int TILE, Factors FACTORS>
template <class Piece>
__device__ __forceinline__ void Fp8Config<TYPE_A, TYPE_B, C, TILE, FACTORS>::multiply_scaled(
    float (&total)[Piece::kAcc], const Arguments& args, const StageAddress& first_stage, const Shared& shared,
    Ring<Fp8Config::kNumStages>& ring, int consumer, const Place& at) {
#pragma unroll
  for (int i = 0; i < Piece::kAcc; ++i) total[i] = -0.0f;  // the number that adds nothing to any
  float rows[2], columns[2];
  if constexpr (FACTORS == Factors::rows) {
    const int row = at.row + consumer * 64 + first_row_of_thread<Fp8Config>();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int own_row = row + 8 * i, own_col = at.col + threadIdx.x % kWarpgroup + i * kWarpgroup;
      rows[i] = own_row < args.m ? __ldg(args.scale_a.data + own_row * args.scale_a.stride_row) : 0;
      columns[i] = own_col < args.n ? __ldg(args.scale_b.data + at.scales_b + own_col * args.scale_b.stride_row) : 0;
    }
  }
  multiply_promoted<Fp8Config, Piece>(total, args, first_stage, shared, ring, consumer, at);
  if constexpr (FACTORS == Factors::rows) scale_block_tile<Piece>(total, rows, columns, shared.c, 1 + consumer);
}

template <DType TYPE_A, DType TYPE_B, class C, Factors FACTORS, int FIRST, int END>
const char* launch_fp8_tile(const Task& task) {
  return visit_number<FIRST, END>(task.plan.tiles.tile, "no such tile", [&](auto number) -> const char* {
    constexpr int kTile = decltype(number)::value;
    if constexpr (serves(kFp8Tiles[kTile], FACTORS, std::is_same_v<C, float>))
      return launch_config<Fp8Config<TYPE_A, TYPE_B, C, kTile, FACTORS>>(task);
    else
      return "this tile does not take such factors";
  });
}

}  // namespace

template <int INSTANCE>
const char* launch_fp8_instance(const Task& task) {
  constexpr Fp8Instance kOwn = kFp8Instances[INSTANCE];
  using C = std::conditional_t<kOwn.is_c_f32, float, AnyShort>;
  return launch_fp8_tile<kOwn.a, kOwn.b, C, kOwn.factors, 0, kNumFp8Tiles>(task);
}

}  // namespace tiledmm::cuda

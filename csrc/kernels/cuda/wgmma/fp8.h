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
  static constexpr int kPartN = kFp8Tiles[TILE].part_n;
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

// A value that the compiler keeps in a register instead of computing it anew.
__device__ __forceinline__ uint32_t opaque(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

// Halves of a tile of 128 x 256: one part each.
constexpr int kHalfFp8Tile = 2;
static_assert(kFp8Tiles[0].shape.block_n == 256 && kFp8Tiles[kHalfFp8Tile].shape.block_n == 128 &&
              kFp8Tiles[kHalfFp8Tile].part_n == kFp8Tiles[0].part_n);
template <DType TYPE_A, DType TYPE_B, class C, int TILE, Factors FACTORS>
struct Half<Fp8Config<TYPE_A, TYPE_B, C, TILE, FACTORS>> {
  using Type = Fp8Config<TYPE_A, TYPE_B, C, kHalfFp8Tile, FACTORS>;
};

// The factors of the sums of one step: of a thread's two rows, those of its columns multiplied in where they are one;
// where each column has its own, the first one's place in memory.
struct StepFactors {
  float rows[2];
  const float* columns;
};

// Where the factors of a thread's rows and columns lie.
template <class Cfg, class Piece>
struct BlockFactors {
  static constexpr bool kByColumn = Cfg::kFactors == Factors::columns;
  static constexpr int kColumns = kByColumn ? 1 : Piece::kBlockN / Piece::kPartN;  // of a k tile: one for each part
  struct Values {
    float rows[2], columns[kColumns];
  };
  const float *rows[2], *columns;
  int64_t row_step, column_step, part_step;
  int num_k_tiles;
  Values next[Cfg::kTilesOfStage], own[Cfg::kTilesOfStage];

  // Beyond C, another's factor serves: what it multiplies is not stored.
  __device__ __forceinline__ BlockFactors(const Arguments& args, int num_k_tiles, int row, int col)
      : row_step(args.scale_a.stride_k),
        column_step(args.scale_b.stride_k),
        part_step(args.scale_b.stride_row),
        num_k_tiles(num_k_tiles) {
#pragma unroll
    for (int h = 0; h < 2; ++h) rows[h] = args.scale_a.data + args.scale_a.offset(min(row + 8 * h, args.m - 1), 0);
    columns = args.scale_b.data + (kByColumn ? 0 : args.scale_b.offset(col, 0));
    if (!kByColumn && col + Piece::kPartN >= args.n) part_step = 0;
    load(0);
  }
  __device__ __forceinline__ void load(int first_k_tile) {
#pragma unroll
    for (int i = 0; i < Cfg::kTilesOfStage; ++i) {
      const int k_tile = min(first_k_tile + i, num_k_tiles - 1);
#pragma unroll
      for (int h = 0; h < 2; ++h) next[i].rows[h] = __ldg(rows[h] + k_tile * row_step);
#pragma unroll
      for (int part = 0; part < kColumns; ++part) {
        next[i].columns[part] =
            kByColumn ? 0 : __ldg(columns + k_tile * column_step + part * Piece::kPartN / kScaledK * part_step);
      }
    }
  }
  // Those of the stage that begins with a k tile become the own ones; the next stage's are on their way.
  __device__ __forceinline__ void begin_stage(int k_tile) {
#pragma unroll
    for (int i = 0; i < Cfg::kTilesOfStage; ++i) own[i] = next[i];
    load(k_tile + Cfg::kTilesOfStage);
  }
  __device__ __forceinline__ StepFactors of_part(int k_tile, int tile_of_stage, int part) const {
    const Values& values = own[tile_of_stage];
    if (kByColumn)
      return {{values.rows[0], values.rows[1]}, columns + min(k_tile + tile_of_stage, num_k_tiles - 1) * column_step};
    return {{values.rows[0] * values.columns[part], values.rows[1] * values.columns[part]}, nullptr};
  }
};

// Sums over all k tiles of a tile, each multiplied by the factors of its blocks if there are such. A step multiplies a
// part of the columns by a k tile; the sums of the step before it are added meanwhile.
template <class Cfg, class Piece>
__device__ __forceinline__ void multiply_promoted(float (&total)[Piece::kAcc], const Arguments& args,
                                                  const StageAddress& first_stage, const Shared& shared,
                                                  Ring<Cfg::kNumStages>& ring, int num_k_tiles, int row, int col) {
  constexpr int kPartN = Piece::kPartN, kParts = Piece::kBlockN / kPartN, kAcc = kPartN / 2;
  constexpr int kSteps = Cfg::kTilesOfStage * kParts;
  constexpr bool kHasBlocks = Cfg::kFactors != Factors::rows, kByColumn = Cfg::kFactors == Factors::columns;
  float acc[kAcc];
  forget_registers(acc);
  struct NoFactors {};
  std::conditional_t<kHasBlocks, BlockFactors<Cfg, Piece>, NoFactors> factors = [&] {
    if constexpr (kHasBlocks)
      return BlockFactors<Cfg, Piece>(args, num_k_tiles, row, col);
    else
      return NoFactors{};
  }();

  const auto add_to_total = [&](const StepFactors& own, int part) {
    float* const to = total + part * kAcc;
    if constexpr (!kHasBlocks) {
#pragma unroll
      for (int i = 0; i < kAcc; ++i) add(to[i], acc[i]);
    } else if constexpr (!kByColumn) {
#pragma unroll
      for (int i = 0; i < kAcc; ++i) add_scaled(to[i], acc[i], own.rows[i / 2 % 2]);
    } else {
      const int first_col = col + part * kPartN + threadIdx.x % 4 * 2;
      float pairs[kAcc / 2];
#pragma unroll
      for (int i = 0; i < kAcc / 2; ++i)
        pairs[i] = __ldg(own.columns + min(first_col + i / 2 * 8 + i % 2, args.n - 1) * args.scale_b.stride_row);
#pragma unroll
      for (int i = 0; i < kAcc; ++i) add_scaled(to[i], acc[i], own.rows[i / 2 % 2] * pairs[i / 4 * 2 + i % 2]);
    }
  };
  const auto multiply = [&](uint32_t stage, int step) {
    const uint32_t tile = stage + step / kParts * (Cfg::kTileBytes >> 4);
    const uint32_t part = step % kParts * (kPartN * 128 >> 4);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < Cfg::kBlockK / Cfg::kMmaK; ++i) {
      wgmma_mma_async_fp8<kPartN, Cfg::kTypeA, Cfg::kTypeB>(
          acc, matrix_descriptor_at(Cfg::kDescA, first_stage.a + tile + i * Cfg::kStepA),
          matrix_descriptor_at(Cfg::kDescB, first_stage.b + tile + part + i * Cfg::kStepB), i > 0);
    }
    wgmma_commit_group();
  };

  // The compiler finds descriptors in uniform registers, without waiting for them, where a stage's address is made in
  // the same straight piece of code.
  const uint32_t full = opaque(shared.full);
  uint32_t stage = 0;
  const auto begin_stage = [&] {
    mbarrier_wait_parity(full + ring.stage * 8, ring.phase);
    stage = __shfl_sync(~0u, ring.stage, 0) * (Cfg::kStageBytes >> 4);
  };
  // The first step of the stage is under way; so is the next one's at the end.
  const auto finish_stage = [&](int k_tile, auto has_next) {
    if constexpr (kSteps > 1) stage = __shfl_sync(~0u, stage, 0);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const bool is_last = step + 1 == kSteps;
      StepFactors own{};
      if constexpr (kHasBlocks) {
        if (step == 0) factors.begin_stage(k_tile);
        own = factors.of_part(k_tile, step / kParts, step % kParts);
      }
      const int current = ring.stage;
      if (is_last) ring.advance();
      if (is_last && decltype(has_next)::value) begin_stage();
      wgmma_wait_group<0>();
      fence_registers(acc);
      if (is_last) release_stage<Cfg>(shared, current);
      add_to_total(own, step % kParts);
      if (!is_last) multiply(stage, step + 1);
      if (is_last && decltype(has_next)::value) multiply(stage, 0);
    }
  };
  begin_stage();
  multiply(stage, 0);
  int k_tile = 0;
#pragma unroll 1
  for (; k_tile + Cfg::kTilesOfStage < num_k_tiles; k_tile += Cfg::kTilesOfStage)
    finish_stage(k_tile, std::true_type{});
  finish_stage(k_tile, std::false_type{});
}

// total * (the factor of its row * that of its column). A thread's columns come to it through `buffers`, those of the
// consumer's stores, as in add_bias.
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
  named_barrier_sync(barrier_id, kWarpgroup);  // all have read them
}

template <DType TYPE_A, DType TYPE_B, class C, int TILE, Factors FACTORS>
template <class Piece>
__device__ __forceinline__ void Fp8Config<TYPE_A, TYPE_B, C, TILE, FACTORS>::multiply_scaled(
    float (&total)[Piece::kAcc], const Arguments& args, const StageAddress& first_stage, const Shared& shared,
    Ring<Fp8Config::kNumStages>& ring, int consumer, const Place& at) {
  const int row = at.row + consumer * 64 + first_row_of_thread<Fp8Config>();
#pragma unroll
  for (int i = 0; i < Piece::kAcc; ++i) total[i] = -0.0f;  // the number that adds nothing to any
  float rows[2], columns[2];
  if constexpr (FACTORS == Factors::rows) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int own_row = row + 8 * i, own_col = at.col + threadIdx.x % kWarpgroup + i * kWarpgroup;
      rows[i] = own_row < args.m ? __ldg(args.scale_a.data + own_row * args.scale_a.stride_row) : 0;
      columns[i] = own_col < args.n ? __ldg(args.scale_b.data + own_col * args.scale_b.stride_row) : 0;
    }
  }
  multiply_promoted<Fp8Config, Piece>(total, args, first_stage, shared, ring, at.num_k_tiles, row, at.col);
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

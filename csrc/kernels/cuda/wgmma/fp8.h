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

  template <class Piece>
  __device__ __forceinline__ static void multiply_scaled(float (&total)[Piece::kAcc], const Arguments& args,
                                                         const StageAddress& first_stage, const Shared& shared,
                                                         Ring<Fp8Config::kNumStages>& ring, int consumer,
                                                         const Place& at);
};

// Halves of a tile of 128 x 256: one part each.
constexpr int kHalfFp8Tile = 4;
static_assert(kFp8Tiles[0].shape.block_n == 256 && kFp8Tiles[kHalfFp8Tile].shape.block_n == 128 &&
              kFp8Tiles[kHalfFp8Tile].part_n == kFp8Tiles[0].part_n);
template <DType TYPE_A, DType TYPE_B, class C, int TILE, Factors FACTORS>
struct Half<Fp8Config<TYPE_A, TYPE_B, C, TILE, FACTORS>> {
  using Type = Fp8Config<TYPE_A, TYPE_B, C, kHalfFp8Tile, FACTORS>;
};

// The factors of a thread's two rows and of a part's columns in one k tile.
struct BlockFactors {
  float rows[2], columns;
};

// Where they lie.
struct FactorsInMemory {
  const float* rows[2];
  const float* columns;
  int64_t row_step, column_step;  // from one k tile to the next

  __device__ __forceinline__ BlockFactors load(int k_tile, int num_k_tiles) const {
    if (k_tile >= num_k_tiles) return {};
    return {{__ldg(rows[0] + k_tile * row_step), __ldg(rows[1] + k_tile * row_step)},
            __ldg(columns + k_tile * column_step)};
  }
};

// Sums over all k tiles of a tile, each multiplied by the factors of its blocks if there are such.
template <class Cfg, class Piece>
__device__ __forceinline__ void multiply_promoted(float (&total)[Piece::kAcc], const Arguments& args,
                                                  const StageAddress& first_stage, const Shared& shared,
                                                  Ring<Cfg::kNumStages>& ring, int num_k_tiles, int row, int col) {
  constexpr int kPartN = Piece::kPartN, kParts = Piece::kBlockN / kPartN, kSets = Piece::kSets, kAcc = kPartN / 2;
  constexpr int kSteps = Cfg::kTilesOfStage * kParts;
  constexpr bool kHasBlocks = Cfg::kFactors != Factors::rows, kByColumn = Cfg::kFactors == Factors::columns;
  static_assert(kSteps % kSets == 0, "a step has the same sums in every stage");
  float acc[kSets][kAcc];
#pragma unroll
  for (int set = 0; set < kSets; ++set) forget_registers(acc[set]);

  FactorsInMemory memory{};
  BlockFactors factors[Cfg::kTilesOfStage][kByColumn ? 1 : kParts], next[Cfg::kTilesOfStage][kByColumn ? 1 : kParts];
  const auto load_factors = [&](int k_tile) {
#pragma unroll
    for (int i = 0; i < Cfg::kTilesOfStage; ++i) {
#pragma unroll
      for (int part = 0; part < (kByColumn ? 1 : kParts); ++part) {
        if (part == 0) next[i][0] = memory.load(k_tile + i, num_k_tiles);
        else next[i][part] = {{next[i][0].rows[0], next[i][0].rows[1]},
                              k_tile + i < num_k_tiles && col + part * kPartN < args.n
                                  ? __ldg(memory.columns + (k_tile + i) * memory.column_step +
                                          part * kPartN / kScaledK * args.scale_b.stride_row)
                                  : 0.0f};
      }
    }
  };
  if constexpr (kHasBlocks) {
    // What lies outside of C takes another's factor: it is not stored.
#pragma unroll
    for (int h = 0; h < 2; ++h) memory.rows[h] = args.scale_a.data + args.scale_a.offset(min(row + 8 * h, args.m - 1), 0);
    memory.columns = args.scale_b.data + (kByColumn ? 0 : args.scale_b.offset(col, 0));
    memory.row_step = args.scale_a.stride_k, memory.column_step = args.scale_b.stride_k;
    load_factors(0);
  }

  const auto multiply = [&](uint32_t stage, int step) {
    const uint32_t tile = stage + step / kParts * (Cfg::kTileBytes >> 4);
    const uint32_t part = step % kParts * (kPartN * 128 >> 4);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < Cfg::kBlockK / Cfg::kMmaK; ++i)
      wgmma_mma_async_fp8<kPartN, Cfg::kTypeA, Cfg::kTypeB>(
          acc[step % kSets], matrix_descriptor_at(Cfg::kDescA, first_stage.a + tile + i * Cfg::kStepA),
          matrix_descriptor_at(Cfg::kDescB, first_stage.b + tile + part + i * Cfg::kStepB), i > 0);
    wgmma_commit_group();
  };
  const auto add_to_total = [&](int step, int k_tile) {
    const float(&sums)[kAcc] = acc[step % kSets];
    float* const part = total + step % kParts * kAcc;
    if constexpr (!kHasBlocks) {
#pragma unroll
      for (int i = 0; i < kAcc; ++i) add(part[i], sums[i]);
    } else if constexpr (!kByColumn) {
      const BlockFactors& own = factors[step / kParts][step % kParts];
      const float rows[2] = {own.rows[0] * own.columns, own.rows[1] * own.columns};
#pragma unroll
      for (int i = 0; i < kAcc; ++i) add_scaled(part[i], sums[i], rows[i / 2 % 2]);
    } else {
      const BlockFactors& own = factors[step / kParts][0];
      const int first_col = col + step % kParts * kPartN + threadIdx.x % 4 * 2;
      const float* columns = memory.columns + (k_tile + step / kParts) * memory.column_step;
#pragma unroll
      for (int i = 0; i < kAcc; i += 4) {
        float pair[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int own_col = min(first_col + i * 2 + j, args.n - 1);
          pair[j] = __ldg(columns + own_col * args.scale_b.stride_row);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) add_scaled(part[i + j], sums[i + j], own.rows[j / 2] * pair[j % 2]);
      }
    }
  };
  const auto begin_stage = [&](int k_tile) {
#pragma unroll
    for (int i = 0; i < Cfg::kTilesOfStage; ++i) {
#pragma unroll
      for (int part = 0; part < (kByColumn ? 1 : kParts); ++part) factors[i][part] = next[i][part];
    }
    load_factors(k_tile + Cfg::kTilesOfStage);
  };
#pragma unroll 1
  for (int k_tile = 0; k_tile < num_k_tiles; k_tile += Cfg::kTilesOfStage) {
    mbarrier_wait_parity(shared.full + ring.stage * 8, ring.phase);
    const uint32_t stage = __shfl_sync(~0u, ring.stage, 0) * (Cfg::kStageBytes >> 4);
    if constexpr (kSets == 2) multiply(stage, 0);
    if constexpr (kHasBlocks) begin_stage(k_tile);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const bool is_last = step + 1 == kSteps;
      if (kSets == 1) multiply(stage, step);
      if (kSets == 2 && !is_last) {
        multiply(stage, step + 1);
        wgmma_wait_group<1>();
      } else {
        wgmma_wait_group<0>();
      }
      if (is_last) release_stage<Cfg>(shared, ring.stage);
      add_to_total(step, k_tile);
    }
    ring.advance();
  }
}

// total * the factor of its row * that of its column. A thread's columns come to it through `buffers`, those of the
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
    for (int i = 0; i < 4; ++i) total[4 * j + i] = total[4 * j + i] * rows[i / 2] * (i % 2 ? pair.y : pair.x);
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
  if constexpr (FACTORS == Factors::rows)
    scale_block_tile<Piece>(total, rows, columns, shared.c, 1 + consumer);
}

template <DType TYPE_A, DType TYPE_B, class C, Factors FACTORS, int FIRST, int END>
const char* launch_fp8_tile(const Task& task) {
  return visit_number<FIRST, END>(task.plan.tiles.tile, "no such tile", [&](auto number) -> const char* {
    constexpr int kTile = decltype(number)::value;
    if constexpr (serves_factors(kFp8Tiles[kTile], FACTORS))
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

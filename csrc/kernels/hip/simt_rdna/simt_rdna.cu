// Rung 17, simt_rdna: fp32 by multiply-adds for RDNA 3 and 4, which have no matrix instruction for it.
//
// Since rung 04: thread tiles of 16 x 8, so that 24 elements from shared memory serve 128 multiply-adds, which the
// compiler pairs (dual issue); the next k tile is on its way to registers while one is multiplied, two stages take
// turns, and there is one barrier for each; loads are bounded by hardware, so that the main loop has no tests. Both
// operands lie [k][mn] in shared memory; rows are padded against bank conflicts of the transposing stores.
// The sum is one chain in the order of k, as in rungs 01 to 04. Limits: no split k; operands without a unit stride are
// gathered element by element. Source: seb-v/fp32_sgemm_amd (its steps up to the first edit of machine code).
#include "core/plan.h"
#include "kernels/hip/shared/builtins.h"
#include "kernels/hip/shared/plan.h"
#include "kernels/hip/simt_rdna/plan.h"
#include "platform/block_tile.h"
#include "platform/mma.h"

namespace tiledmm::gpu {
namespace {

// A warp has 4 x 8 lanes; a thread has groups of 4 rows and of 4 columns, as far apart as the lanes reach.
template <int SHAPE, bool IS_WHOLE>
struct SimtRdnaConfig {
  static constexpr int kBlockM = kSimtRdnaShapes[SHAPE].block_m, kBlockN = kSimtRdnaShapes[SHAPE].block_n;
  static constexpr int kThreads = 128, kBlockK = 8;
  static constexpr int kWarpM = kBlockM / 2, kWarpN = kBlockN / 2, kGroupsM = kWarpM / 16, kGroupsN = kWarpN / 32;
  static constexpr bool kIsWhole = IS_WHOLE;
  static_assert(kGroupsM * 16 == kWarpM && kGroupsN * 32 == kWarpN, "whole groups fill the warp tile");
};

template <int BLOCK_MN, bool IS_K_MAJOR>
struct SimtRdnaTile {
  static constexpr int kThreads = 128, kBlockK = 8, kRow = BLOCK_MN + 4;  // 4 k are half of the banks apart
  static constexpr int kChunks = BLOCK_MN * kBlockK / 4 / kThreads,
                       kChunksOfRow = (IS_K_MAJOR ? kBlockK : BLOCK_MN) / 4;
  using Shared = float[kBlockK][kRow];

  const Operand<float>& operand;
  int left_mn, left_k;  // of the operand from the next tile on
  int mn, k;            // of this thread's first chunk within a tile
  uint32_t offsets[kChunks];
  const float* next;  // the next tile
  uint32_t staged[kChunks][4];

  TILEDMM_DEVICE SimtRdnaTile(const Operand<float>& operand, int64_t first_mn)
      : operand(operand), left_k(int(operand.size_k)) {
    left_mn = int(min_of(operand.size_mn - first_mn, BLOCK_MN));
    next = operand.base + first_mn * operand.stride_mn;
    const int close = thread_idx() % kChunksOfRow * 4, far = thread_idx() / kChunksOfRow;
    mn = IS_K_MAJOR ? far : close, k = IS_K_MAJOR ? close : far;
    TILEDMM_UNROLL for (int i = 0; i < kChunks; ++i) {
      offsets[i] = uint32_t(mn_of(i)) * uint32_t(operand.stride_mn) + uint32_t(k_of(i)) * uint32_t(operand.stride_k);
      offsets[i] = !IS_K_MAJOR && mn >= left_mn ? 1u << 31 : offsets[i] * 4;
    }
  }
  TILEDMM_DEVICE int mn_of(int i) const { return IS_K_MAJOR ? mn + i * (kThreads / kChunksOfRow) : mn; }
  TILEDMM_DEVICE int k_of(int i) const { return IS_K_MAJOR ? k : k + i * (kThreads / kChunksOfRow); }

  // The next tile. The buffer ends with the tile's last row, and with k; behind the last tile it is empty.
  template <bool MAY_BE_LAST>
  TILEDMM_DEVICE void load() {
    const int inside_k = MAY_BE_LAST && left_k < kBlockK ? left_k : kBlockK;
    const int64_t size =
        IS_K_MAJOR ? (left_mn - 1) * operand.stride_mn + inside_k : (inside_k - 1) * operand.stride_k + left_mn;
    const Buffer buffer{next, inside_k > 0 ? uint32_t(size) * 4 : 0};
    TILEDMM_UNROLL for (int i = 0; i < kChunks; ++i) { buffer.load<4>(offsets[i], staged[i]); }
    next += kBlockK * operand.stride_k;
    left_k -= kBlockK;
  }

  // Clears what lies beyond k in the tile that was loaded last: rows may be followed by others.
  TILEDMM_DEVICE void clear_beyond_k() {
    TILEDMM_UNROLL for (int i = 0; i < kChunks; ++i) {
      TILEDMM_UNROLL for (int w = 0; w < 4; ++w) {
        if (k_of(i) + (IS_K_MAJOR ? w : 0) >= left_k + kBlockK) staged[i][w] = 0;
      }
    }
  }

  TILEDMM_DEVICE void store(Shared& smem) const {
    TILEDMM_UNROLL for (int i = 0; i < kChunks; ++i) {
      if constexpr (IS_K_MAJOR) {
        TILEDMM_UNROLL for (int w = 0; w < 4; ++w) {
          store_shared(reinterpret_cast<uint32_t*>(&smem[k_of(i) + w][mn_of(i)]), staged[i][w]);
        }
      } else {
        const Vector16 vector{{staged[i][0], staged[i][1], staged[i][2], staged[i][3]}};
        store_shared(reinterpret_cast<Vector16*>(&smem[k_of(i)][mn_of(i)]), vector);
      }
    }
  }

  // Copies the next tile to shared memory element by element, whatever the operand's strides are; zeros beyond k and
  // beyond the operand's rows.
  TILEDMM_DEVICE void gather(Shared& smem) {
    constexpr int kClose = IS_K_MAJOR ? kBlockK : BLOCK_MN, kStep = kThreads / kClose;
    const int close = thread_idx() % kClose, far = thread_idx() / kClose;
    const int64_t stride_far = IS_K_MAJOR ? operand.stride_mn : operand.stride_k;
    int64_t offset = close * (IS_K_MAJOR ? operand.stride_k : operand.stride_mn) + far * stride_far;
    float elements[4 * kChunks];
    TILEDMM_UNROLL for (int i = 0; i < 4 * kChunks; ++i) {
      const int at_mn = IS_K_MAJOR ? far + i * kStep : close, at_k = IS_K_MAJOR ? close : far + i * kStep;
      offset = opaque(offset);  // else there is one for each element
      elements[i] = at_mn < left_mn && at_k < left_k ? load_global(next + offset) : 0;
      offset += kStep * stride_far;
    }
    TILEDMM_UNROLL for (int i = 0; i < 4 * kChunks; ++i) {
      const int at_mn = IS_K_MAJOR ? far + i * kStep : close, at_k = IS_K_MAJOR ? close : far + i * kStep;
      store_shared(&smem[at_k][at_mn], elements[i]);
    }
    next += kBlockK * operand.stride_k;
    left_k -= kBlockK;
  }
};

// Groups of 4, `STRIDE` elements from group to group.
template <int GROUPS, int STRIDE>
TILEDMM_DEVICE void load_groups(const float* from, float (&frag)[4 * GROUPS]) {
  TILEDMM_UNROLL for (int g = 0; g < GROUPS; ++g) {
    const Vector16 vector = load_shared(reinterpret_cast<const Vector16*>(from + g * STRIDE));
    TILEDMM_UNROLL for (int e = 0; e < 4; ++e) frag[4 * g + e] = __builtin_bit_cast(float, vector.words[e]);
  }
}

// The sums of one thread.
template <class Config>
struct SimtRdnaSums {
  static constexpr int kGroupsM = Config::kGroupsM, kGroupsN = Config::kGroupsN;
  float acc[4 * kGroupsM][4 * kGroupsN] = {};

  // The k tile in shared memory, from this thread's first row and column on.
  template <int ROW_A, int ROW_B>
  TILEDMM_DEVICE void multiply(const float (&smem_a)[Config::kBlockK][ROW_A],
                               const float (&smem_b)[Config::kBlockK][ROW_B], int row, int col) {
    float frag_a[2][4 * kGroupsM], frag_b[2][4 * kGroupsN];
    load_groups<kGroupsM, 16>(&smem_a[0][row], frag_a[0]);
    load_groups<kGroupsN, 32>(&smem_b[0][col], frag_b[0]);
    TILEDMM_UNROLL for (int k = 0; k < Config::kBlockK; ++k) {
      if (k + 1 < Config::kBlockK) {
        load_groups<kGroupsM, 16>(&smem_a[k + 1][row], frag_a[(k + 1) % 2]);
        load_groups<kGroupsN, 32>(&smem_b[k + 1][col], frag_b[(k + 1) % 2]);
      }
      TILEDMM_UNROLL for (int i = 0; i < 4 * kGroupsM; ++i) {
        TILEDMM_UNROLL for (int j = 0; j < 4 * kGroupsN; ++j) {
          acc[i][j] = multiply_add(frag_a[k % 2][i], frag_b[k % 2][j], acc[i][j]);
        }
      }
      keep_order();  // else loads of several k come first, and need registers
    }
    if constexpr (!Config::kIsWhole) {  // else the sums are moved behind the branches of the next tile's loads
      TILEDMM_UNROLL for (auto& row_of_sums : acc) { TILEDMM_UNROLL for (float& sum : row_of_sums) sum = opaque(sum); }
    }
  }
};

template <class Config, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR>
TILEDMM_KERNEL(Config::kThreads, 1)
simt_rdna([[maybe_unused]] FoldedProblem problem) {
#if !defined(__HIP_DEVICE_COMPILE__) || defined(__gfx1100__) || defined(__gfx1200__) || defined(__gfx1201__)
  using TileA = SimtRdnaTile<Config::kBlockM, IS_A_K_MAJOR>;
  using TileB = SimtRdnaTile<Config::kBlockN, IS_B_K_MAJOR>;
  constexpr int kGroupsM = Config::kGroupsM, kGroupsN = Config::kGroupsN, kBlockK = Config::kBlockK;
  union Shared {
    struct {
      alignas(16) typename TileA::Shared a;
      alignas(16) typename TileB::Shared b;
    } stages[2];
    WarpStage<float, 16, Config::kWarpN> outputs[Config::kThreads / kWarpSize];  // after the last k tile
  };
  auto& smem = block_shared<Shared>();
  const int warp = thread_idx() / kWarpSize, lane_m = thread_idx() % kWarpSize / 8 * 4, lane_n = thread_idx() % 8 * 4;
  const int warp_row = warp / 2 * Config::kWarpM, warp_col = warp % 2 * Config::kWarpN;
  for (int64_t batch_idx = block_idx_y(); batch_idx < problem.batch_size; batch_idx += num_blocks_y()) {
    const GemmProblem item = item_of(problem, batch_idx);
    const TilePlace place = tile_place<Config::kBlockM, Config::kBlockN>(item);
    const Operand<float> a = operand_a<float>(item), b = operand_b<float>(item);
    TileA tile_a(a, place.row);
    TileB tile_b(b, place.col);
    SimtRdnaSums<Config> sums;
    const auto load = [&](auto may_be_last) {
      if constexpr (Config::kIsWhole) {
        tile_a.template load<may_be_last.value>(), tile_b.template load<may_be_last.value>();
      }
    };
    const auto store = [&](auto& stage, auto may_be_last) {
      if constexpr (Config::kIsWhole) {
        if constexpr (may_be_last.value) tile_a.clear_beyond_k(), tile_b.clear_beyond_k();
        tile_a.store(stage.a), tile_b.store(stage.b);
      } else {
        tile_a.gather(stage.a), tile_b.gather(stage.b);
      }
    };
    block_barrier();  // nobody reads the last item's sums any more
    load(std::true_type{}), store(smem.stages[0], std::true_type{});
    block_barrier();  // the first tiles are whole
    // As in rung 13: tiles in pairs, so that the stages have their addresses while compiling; zeros behind the last.
    const auto multiply_pair = [&](auto may_be_last) {
      TILEDMM_UNROLL for (int stage = 0; stage < 2; ++stage) {
        load(may_be_last);
        sums.multiply(smem.stages[stage].a, smem.stages[stage].b, warp_row + lane_m, warp_col + lane_n);
        store(smem.stages[1 - stage], may_be_last);
        block_barrier();  // the other stage is whole, and nobody reads this one any more
      }
    };
    const auto num_k_tiles = int(ceil_div(item.k, kBlockK)), last_whole = int(item.k / kBlockK) - 2;
    int k_tile = 0;
    for (; k_tile < last_whole; k_tile += 2) multiply_pair(std::false_type{});
    for (; k_tile < num_k_tiles; k_tile += 2) multiply_pair(std::true_type{});

    auto& stage = smem.outputs[warp];
    // Anew, so that the main loop need not keep it in registers.
    const GemmProblem gemm = item_of(problem, opaque_uniform(batch_idx));
    TILEDMM_UNROLL for (int i = 0; i < kGroupsM; ++i) {
      TILEDMM_UNROLL for (int r = 0; r < 4; ++r) {
        TILEDMM_UNROLL for (int j = 0; j < 4 * kGroupsN; ++j) {
          store_shared(&stage.acc[lane_m + r][j / 4 * 32 + lane_n + j % 4], sums.acc[4 * i + r][j]);
        }
      }
      stage.store(gemm, place.row + warp_row + i * 16, 1, place.col + warp_col);
    }
  }
#endif
}

template <class Config>
Status launch(const FoldedProblem& problem, const Executor& executor) {
  return visit_layouts(problem.gemm, [&](auto is_a_k_major, auto is_b_k_major) {
    constexpr bool kA = decltype(is_a_k_major)::value, kB = decltype(is_b_k_major)::value;
    return launch_kernel(simt_rdna<Config, kA, kB>, num_tiles(problem.gemm, Config::kBlockM, Config::kBlockN),
                         num_batch_blocks(problem), Config::kThreads, 0, executor, problem);
  });
}

}  // namespace

Status launch_simt_rdna(const FoldedProblem& given, const Plan& made, const Executor& executor) {
  const SimtRdnaPlan& plan = made.as<SimtRdnaPlan>();
  FoldedProblem problem = given;
  clear_single_strides(problem.gemm);
  if (!plan.is_whole) return launch<SimtRdnaConfig<kSmallSimtRdnaShape, false>>(problem, executor);
  return plan.shape == kSmallSimtRdnaShape ? launch<SimtRdnaConfig<kSmallSimtRdnaShape, true>>(problem, executor)
                                           : launch<SimtRdnaConfig<0, true>>(problem, executor);
}

}  // namespace tiledmm::gpu

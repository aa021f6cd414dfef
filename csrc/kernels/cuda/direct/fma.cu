// direct, by multiply-adds: each thread computes a tile of some item of the batch, from memory and in registers.
// Threads are numbered through the whole batch, so that items of a few elements leave no lane idle. What neighbouring
// threads read again, the first-level cache has. They are numbered in the direction in which C's elements are
// neighbours, so that a warp stores neighbours. In fp32 and fp64.
#include "kernels/cuda/direct/shared.h"
#include "platform/block_tile.h"
#include "platform/instance.h"
#include "platform/mma.h"

namespace tiledmm::gpu {
namespace {

constexpr int kWarps = kDirectThreads / 32;

// The tiles of a warp's lanes on their way to C where a lane's neighbours cannot be stored together: neighbouring lanes
// then store neighbours, whole sectors of the second-level cache at a time. A lane's lone element needs no such way.
template <class T, int ROWS, int COLS>
struct TilesOfC {
  static constexpr bool kIsOfUse = ROWS * COLS > 1;
  static constexpr int kPitch = 32 + 32 / int(sizeof(T));  // so that neighbours of eight lanes lie in different banks
  T sums[ROWS * COLS * kPitch];

  // Lanes have tiles from `first_unit` on, which lie along C's neighbours: down its columns or not.
  template <bool IS_DOWN>
  TILEDMM_DEVICE void store(const T (&own)[ROWS][COLS], const DirectWork& work, const FoldedProblem& problem,
                            int32_t first_unit) {
    constexpr int kClose = IS_DOWN ? ROWS : COLS, kFar = IS_DOWN ? COLS : ROWS;
    static_assert(32 % kClose == 0, "a warp's lanes store whole tiles");
    const int lane = thread_idx() % 32;
    TILEDMM_UNROLL for (int f = 0; f < kFar; ++f) {
      TILEDMM_UNROLL for (int c = 0; c < kClose; ++c) {
        store_shared(&sums[(f * kClose + c) * kPitch + lane], IS_DOWN ? own[c][f] : own[f][c]);
      }
    }
    warp_barrier();
    const int64_t stride_far = IS_DOWN ? work.stride_cn : work.stride_cm;
    TILEDMM_UNROLL for (int first = 0; first < 32; first += 32 / kClose) {
      const int owner = first + lane / kClose, c = lane % kClose;
      if (first_unit + owner >= work.num_units) break;
      const DirectUnit<T> unit(work, problem, first_unit + owner);
      const int32_t row = unit.row * ROWS + (IS_DOWN ? c : 0), col = unit.col * COLS + (IS_DOWN ? 0 : c);
      if (row >= work.m || col >= work.n) continue;
      const int32_t left = IS_DOWN ? work.n - col : work.m - row;
      T* const to = unit.c + row * work.stride_cm + col * work.stride_cn;
      TILEDMM_UNROLL for (int f = 0; f < kFar; ++f) {
        if (f < left) store_global(to + f * stride_far, load_shared(&sums[(f * kClose + c) * kPitch + owner]));
      }
    }
  }
};

template <class T, int ROWS, int COLS, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR>
TILEDMM_KERNEL(kDirectThreads, 4)
direct_fma(DirectWork work, FoldedProblem problem) {
  constexpr DType kDType = sizeof(T) == 8 ? DType::f64 : DType::f32;
  constexpr int kStep = direct_step(kDType, false), kSteps = direct_steps({ROWS, COLS}, kDType, false);
  const auto index = int32_t(block_idx() * kDirectThreads + thread_idx()), first_unit = index - thread_idx() % 32;
  if (first_unit >= work.num_units) return;
  // Lanes behind the last tile multiply it, too: warps stay whole.
  const DirectUnit<T> unit(work, problem, min_of(index, work.num_units - 1));
  const int32_t row = unit.row * ROWS, col = unit.col * COLS, end_k = work.k;
  const LaneRows<T, ROWS> a(unit.a, row, work.m, work.stride_am, work.stride_ak);
  const LaneRows<T, COLS> b(unit.b, col, work.n, work.stride_bn, work.stride_bk);
  if constexpr (ROWS * COLS == 1) {  // larger tiles have other warps to wait for
    a.template prefetch<IS_A_K_MAJOR>(kSteps * kStep, end_k, 0, 1);
    b.template prefetch<IS_B_K_MAJOR>(kSteps * kStep, end_k, 0, 1);
  }
  T sums[ROWS][COLS] = {};
  for_each_step(work, kSteps * kStep, [&](auto is_wide_a, auto is_wide_b, int32_t first_k) {
    constexpr bool kIsWhole = is_wide_a.value || is_wide_b.value;
    T of_a[kSteps][kStep][ROWS] = {}, of_b[kSteps][kStep][COLS] = {};
    TILEDMM_UNROLL for (int s = 0; s < kSteps; ++s) {
      if (!kIsWhole && s > 0 && first_k + s * kStep >= end_k) break;
      a.template load<is_wide_a.value, IS_A_K_MAJOR>(first_k + s * kStep, end_k, of_a[s]);
      b.template load<is_wide_b.value, IS_B_K_MAJOR>(first_k + s * kStep, end_k, of_b[s]);
    }
    TILEDMM_UNROLL for (int e = 0; e < kSteps * kStep; ++e) {
      // Adding a product of zeros would change the sign of a zero. A branch would make loads wait for each other.
      const bool is_inside = kIsWhole || first_k + e < end_k;
      TILEDMM_UNROLL for (int i = 0; i < ROWS; ++i) {
        TILEDMM_UNROLL for (int j = 0; j < COLS; ++j) {
          const T sum = multiply_add(of_a[e / kStep][e % kStep][i], of_b[e / kStep][e % kStep][j], sums[i][j]);
          sums[i][j] = is_inside ? sum : sums[i][j];
        }
      }
    }
  });
  if (!work.is_plain) {
    const GemmProblem item = item_of<true>(problem, unit.item);
    TILEDMM_UNROLL for (int i = 0; i < ROWS; ++i) {
      TILEDMM_UNROLL for (int j = 0; j < COLS; ++j) sums[i][j] = with_epilogue<T>(item, row + i, col + j, sums[i][j]);
    }
  }
  if (TilesOfC<T, ROWS, COLS>::kIsOfUse && !work.wide_c) {
    auto& tiles = block_shared<TilesOfC<T, ROWS, COLS>[kWarps]>()[thread_idx() / 32];
    work.is_down ? tiles.template store<true>(sums, work, problem, first_unit)
                 : tiles.template store<false>(sums, work, problem, first_unit);
    return;
  }
  if (index >= work.num_units) return;
  TILEDMM_UNROLL for (int i = 0; i < ROWS; ++i) {
    if (row + i < work.m) store_wide(unit.c + (row + i) * work.stride_cm + col * work.stride_cn, sums[i]);
  }
}

template <class T>
Status launch(const FoldedProblem& problem, const DirectPlan& plan, const Executor& executor) {
  return visit_number<0, kNumDirectTiles>(plan.tile, Status::unsupported, [&](auto tile) {
    constexpr DirectTile kTile = kDirectFmaTiles[decltype(tile)::value];
    const DirectWork work(problem, plan, is_column_major(problem.gemm));
    return visit_layouts(problem.gemm, [&](auto is_a_k_major, auto is_b_k_major) {
      constexpr bool kA = decltype(is_a_k_major)::value, kB = decltype(is_b_k_major)::value;
      using Tiles = TilesOfC<T, kTile.rows, kTile.cols>[kWarps];
      const size_t shared = plan.wide_c || kTile.rows * kTile.cols == 1 ? 0 : sizeof(Tiles);  // else it is not used
      return launch_kernel(direct_fma<T, kTile.rows, kTile.cols, kA, kB>, ceil_div(plan.num_units, kDirectThreads), 1,
                           kDirectThreads, shared, executor, work, problem);
    });
  });
}

}  // namespace

Status launch_direct_fma(const FoldedProblem& given, const Plan& made, const Executor& executor) {
  const DirectPlan& plan = made.as<DirectPlan>();
  const FoldedProblem problem = plan.is_exchanged ? transposed(given) : given;
  if (plan.tile == kNumDirectTiles) return launch_few_columns(problem, plan, false, executor);
  return problem.gemm.dtype_a == DType::f64 ? launch<double>(problem, plan, executor)
                                            : launch<float>(problem, plan, executor);
}

}  // namespace tiledmm::gpu

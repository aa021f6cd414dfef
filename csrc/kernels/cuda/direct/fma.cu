// direct, by multiply-adds: each thread computes a tile of some item of the batch, from memory and in registers.
// Threads are numbered through the whole batch, so that items of a few elements leave no lane idle. What neighbouring
// threads read again, the first-level cache has. They are numbered in the direction in which C's elements are
// neighbours, and so store neighbours. In fp32 and fp64.
#include "kernels/cuda/direct/shared.h"
#include "platform/block_tile.h"
#include "platform/instance.h"
#include "platform/mma.h"

namespace tiledmm::gpu {
namespace {

template <class T, int ROWS, int COLS, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR>
TILEDMM_KERNEL(kDirectThreads, 4)
direct_fma(DirectWork work, FoldedProblem problem) {
  constexpr DType kDType = sizeof(T) == 8 ? DType::f64 : DType::f32;
  constexpr int kStep = direct_step(kDType, false), kSteps = direct_steps({ROWS, COLS}, kDType, false);
  const auto index = int32_t(block_idx() * kDirectThreads + thread_idx());
  if (index >= work.num_units) return;
  const DirectUnit<T> unit(work, problem, index);
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
  TILEDMM_UNROLL for (int i = 0; i < ROWS; ++i) {
    if (row + i >= work.m) break;
    T* to = unit.c + (row + i) * work.stride_cm + col * work.stride_cn;
    if (work.wide_c) {
      store_wide(to, sums[i]);
      continue;
    }
    TILEDMM_UNROLL for (int j = 0; j < COLS; ++j) {
      if (col + j < work.n) store_global(to + j * work.stride_cn, sums[i][j]);
    }
  }
}

template <class T>
Status launch(const FoldedProblem& problem, const DirectPlan& plan, const Executor& executor) {
  return visit_number<0, kNumDirectTiles>(plan.tile, Status::unsupported, [&](auto tile) {
    constexpr DirectTile kTile = kDirectFmaTiles[decltype(tile)::value];
    const DirectWork work(problem, plan, is_column_major(problem.gemm));
    return visit_layouts(problem.gemm, [&](auto is_a_k_major, auto is_b_k_major) {
      constexpr bool kA = decltype(is_a_k_major)::value, kB = decltype(is_b_k_major)::value;
      return launch_kernel(direct_fma<T, kTile.rows, kTile.cols, kA, kB>, ceil_div(plan.num_units, kDirectThreads), 1,
                           kDirectThreads, 0, executor, work, problem);
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

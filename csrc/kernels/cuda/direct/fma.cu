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

// STEP elements along k of each of a lane's rows. What lies beyond the end of k is zero.
template <class T, int COUNT, int STEP, bool IS_K_MAJOR>
TILEDMM_DEVICE void load_step(const LaneRows<T, COUNT>& rows, int k, int end_k, bool is_wide, T (&to)[COUNT][STEP]) {
  if (is_wide && k + STEP <= end_k) {
    if constexpr (IS_K_MAJOR) {
      TILEDMM_UNROLL for (int r = 0; r < COUNT; ++r) {
        Neighbours<T, STEP> found;
        load_neighbours(rows.base + rows.offsets[r] + k, found);
        TILEDMM_UNROLL for (int e = 0; e < STEP; ++e) to[r][e] = found.elements[e];
      }
    } else {
      TILEDMM_UNROLL for (int e = 0; e < STEP; ++e) {
        Neighbours<T, COUNT> found;
        load_neighbours(rows.base + rows.offsets[0] + (k + e) * rows.stride_k, found);
        TILEDMM_UNROLL for (int r = 0; r < COUNT; ++r) to[r][e] = found.elements[r];
      }
    }
  } else {
    TILEDMM_UNROLL for (int e = 0; e < STEP; ++e) {
      TILEDMM_UNROLL for (int r = 0; r < COUNT; ++r) to[r][e] = k + e < end_k ? rows.load(r, k + e) : T(0);
    }
  }
}

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
  T sums[ROWS][COLS] = {};
  TILEDMM_NO_UNROLL for (int k = 0; k < end_k; k += kSteps * kStep) {
    T of_a[kSteps][ROWS][kStep], of_b[kSteps][COLS][kStep];
    TILEDMM_UNROLL for (int s = 0; s < kSteps; ++s) {
      load_step<T, ROWS, kStep, IS_A_K_MAJOR>(a, k + s * kStep, end_k, work.wide_a, of_a[s]);
      load_step<T, COLS, kStep, IS_B_K_MAJOR>(b, k + s * kStep, end_k, work.wide_b, of_b[s]);
    }
    TILEDMM_UNROLL for (int e = 0; e < kSteps * kStep; ++e) {
      if (k + e >= end_k) break;  // adding a product of zeros would change the sign of a zero
      TILEDMM_UNROLL for (int i = 0; i < ROWS; ++i) {
        TILEDMM_UNROLL for (int j = 0; j < COLS; ++j) {
          sums[i][j] = multiply_add(of_a[e / kStep][i][e % kStep], of_b[e / kStep][j][e % kStep], sums[i][j]);
        }
      }
    }
  }
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
  return problem.gemm.dtype_a == DType::f64 ? launch<double>(problem, plan, executor)
                                            : launch<float>(problem, plan, executor);
}

}  // namespace tiledmm::gpu

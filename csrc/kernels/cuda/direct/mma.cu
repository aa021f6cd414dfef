// direct, by matrix instructions: each warp computes a tile of 16 rows of some item of the batch. Fragments come from
// memory straight into registers; what warps of the same item read again, the first-level cache has.
//
// The instruction's rows and columns are numbered so that each lane has neighbours, which one instruction loads or
// stores where they lie together: lane l has the rows from 2 (l / 4) on, not l / 4 and l / 4 + 8, and of a tile of 8 c
// columns the c columns from c (l / 4) on. Along k no element changes its place, since the order of summation would.
#include "kernels/cuda/direct/shared.h"
#include "platform/block_tile.h"
#include "platform/instance.h"
#include "platform/mma.h"

namespace tiledmm::gpu {

TILEDMM_IF_LINKED Launcher launch_direct_fma;

namespace {

using L = LayoutM16N8;
constexpr int kWarps = kDirectThreads / 32;

// What a lane has of a step of k: two words along k of each of its rows.
template <class T, int COUNT>
struct LaneWords {
  static constexpr int kElements = WordOf<T>::kElements;  // of a word
  T elements[2][kElements][COUNT];

  template <bool IS_WIDE, bool IS_K_MAJOR>
  TILEDMM_DEVICE void load(const LaneRows<T, COUNT>& rows, int32_t k, int32_t end_k) {
    TILEDMM_UNROLL for (int w = 0; w < 2; ++w) {
      const int32_t first = k + L::b_word(thread_idx() % 32, w) * kElements;
      rows.template load<IS_WIDE, IS_K_MAJOR>(first, end_k, elements[w]);
    }
  }
  // Prepared for the matrix instruction.
  TILEDMM_DEVICE typename WordOf<T>::Word word(int row, int w) const {
    if constexpr (kElements == 1) {
      return Mma<T>::prepared(elements[w][0][row]);
    } else {
      return uint32_t(elements[w][0][row].bits) | uint32_t(elements[w][1][row].bits) << 16;
    }
  }
};

// How the lanes go through a tile of C: along the dimension in which its elements are neighbours, 32 at a time.
struct LaneSteps {
  bool is_down;         // the columns
  Divisor whole, last;  // elements along that dimension, of all tiles but the last one, and of that

  LaneSteps(const GemmProblem& p, int cols) : is_down(is_column_major(p)) {
    const int64_t size = is_down ? p.m : p.n, tile = is_down ? L::kM : cols;
    whole = Divisor(min_of(size, tile));
    last = Divisor((size - 1) % tile + 1);
  }
};

// A warp's tile of sums on its way to C where a lane's neighbours cannot be stored together, or are not all there is to
// C: neighbouring lanes then store neighbours, whole sectors of the second-level cache at a time.
template <class T, int COLS>
struct TileOfC {
  static constexpr int kCols = L::kN * COLS, kPitch = kCols + 2;
  float sums[L::kM * kPitch];

  TILEDMM_DEVICE void store(const DirectWork& work, const LaneSteps& steps, const FoldedProblem& problem,
                            const DirectUnit<T>& unit, int32_t row, int32_t col) const {
    const int rows = min_of(work.m - row, L::kM), cols = min_of(work.n - col, kCols);
    const int close = steps.is_down ? rows : cols, far = steps.is_down ? cols : rows;
    const int64_t stride_close = steps.is_down ? work.stride_cm : work.stride_cn;
    const int64_t stride_far = steps.is_down ? work.stride_cn : work.stride_cm;
    const int pitch_close = steps.is_down ? kPitch : 1, pitch_far = steps.is_down ? 1 : kPitch;
    T* to = unit.c + row * work.stride_cm + col * work.stride_cn;
    const Divisor& divisor = close == steps.last.value ? steps.last : steps.whole;
    const int lane = thread_idx() % 32, far_step = divisor.quotient(32), close_step = 32 - far_step * close;
    int f = divisor.quotient(lane), c = lane - f * close;
    TILEDMM_NO_UNROLL while (f < far) {
      float sum = load_shared(&sums[f * pitch_far + c * pitch_close]);
      if (!work.is_plain) {
        const GemmProblem item = item_of<true>(problem, unit.item);
        sum = with_epilogue<T>(item, row + (steps.is_down ? c : f), col + (steps.is_down ? f : c), sum);
      }
      store_global(to + f * stride_far + c * stride_close, rounded_to<T>(sum));
      f += far_step, c += close_step;
      if (c >= close) ++f, c -= close;
    }
  }
};

template <class T, int COLS, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR>
TILEDMM_KERNEL(kDirectThreads, 4)
direct_mma(DirectWork work, LaneSteps steps, FoldedProblem problem) {
  using Word = typename WordOf<T>::Word;
  constexpr DType kDType = sizeof(T) == 4 ? DType::f32 : DType::bf16;
  constexpr int kStep = L::kWordsK * WordOf<T>::kElements, kSteps = direct_steps({2, COLS}, kDType, true);
  const auto index = int32_t(block_idx() * kWarps + thread_idx() / 32);
  if (index >= work.num_units) return;
  const DirectUnit<T> unit(work, problem, index);
  const int lane = thread_idx() % 32, own_row = lane / 4 * 2, own_col = L::c_col(lane, 0) * COLS;
  const int32_t tile_row = unit.row * L::kM, tile_col = unit.col * (L::kN * COLS), end_k = work.k;
  const LaneRows<T, 2> a(unit.a, tile_row + own_row, work.m, work.stride_am, work.stride_ak);
  const LaneRows<T, COLS> b(unit.b, tile_col + lane / 4 * COLS, work.n, work.stride_bn, work.stride_bk);
  a.template prefetch<IS_A_K_MAJOR>(kSteps * kStep, end_k, lane % 4, 4);
  b.template prefetch<IS_B_K_MAJOR>(kSteps * kStep, end_k, lane % 4, 4);
  float sums[COLS][L::kAccs] = {};
  for_each_step(work, kSteps * kStep, [&](auto is_wide_a, auto is_wide_b, int32_t first_k) {
    constexpr bool kWideA = decltype(is_wide_a)::value, kWideB = decltype(is_wide_b)::value;
    LaneWords<T, 2> of_a[kSteps] = {};
    LaneWords<T, COLS> of_b[kSteps] = {};
    TILEDMM_UNROLL for (int s = 0; s < kSteps; ++s) {
      if (!kWideA && !kWideB && s > 0 && first_k + s * kStep >= end_k) break;
      of_a[s].template load<kWideA, IS_A_K_MAJOR>(a, first_k + s * kStep, end_k);
      of_b[s].template load<kWideB, IS_B_K_MAJOR>(b, first_k + s * kStep, end_k);
    }
    TILEDMM_UNROLL for (int s = 0; s < kSteps; ++s) {  // those beyond the end add zeros, as in the other kernels
      Word frag_a[4];
      TILEDMM_UNROLL for (int w = 0; w < 4; ++w) frag_a[w] = of_a[s].word(w % 2, w / 2);
      TILEDMM_UNROLL for (int j = 0; j < COLS; ++j) {
        Mma<T>::multiply(sums[j], frag_a, {of_b[s].word(j, 0), of_b[s].word(j, 1)});
      }
    }
  });
  auto& tile = block_shared<TileOfC<T, COLS>[kWarps]>()[thread_idx() / 32];
  TILEDMM_UNROLL for (int r = 0; r < 2; ++r) {
    const int32_t row = tile_row + own_row + r, col = tile_col + own_col;
    float of_row[2 * COLS];
    TILEDMM_UNROLL for (int c = 0; c < 2; ++c) {
      TILEDMM_UNROLL for (int j = 0; j < COLS; ++j) of_row[c * COLS + j] = sums[j][2 * r + c];
    }
    if (!work.wide_c) {
      TILEDMM_UNROLL for (int i = 0; i < 2 * COLS; ++i) {
        store_shared(&tile.sums[(own_row + r) * tile.kPitch + own_col + i], of_row[i]);
      }
    } else if (row < work.m && col < work.n) {
      store_wide(unit.c + row * work.stride_cm + col, of_row);
    }
  }
  if (work.wide_c) return;
  warp_barrier();
  tile.store(work, steps, problem, unit, tile_row, tile_col);
}

template <class T>
Status launch(const FoldedProblem& problem, const DirectPlan& plan, const Executor& executor) {
  constexpr int kNumTiles = num_direct_tiles(kDTypeOf<T>, true);
  return visit_number<0, kNumTiles>(plan.tile, Status::unsupported, [&](auto tile) {
    constexpr int kCols = kDirectMmaTiles[decltype(tile)::value].cols;
    const DirectWork work(problem, plan, true);
    const LaneSteps steps(problem.gemm, L::kN * kCols);
    return visit_layouts(problem.gemm, [&](auto is_a_k_major, auto is_b_k_major) {
      constexpr bool kA = decltype(is_a_k_major)::value, kB = decltype(is_b_k_major)::value;
      return launch_kernel(direct_mma<T, kCols, kA, kB>, ceil_div(plan.num_units, kWarps), 1, kDirectThreads,
                           sizeof(TileOfC<T, kCols>[kWarps]), executor, work, steps, problem);
    });
  });
}

}  // namespace

Status launch_direct(const FoldedProblem& given, const Plan& made, const Executor& executor) {
  if (given.gemm.dtype_a == DType::f64) return launch_direct_fma(given, made, executor);
  const DirectPlan& plan = made.as<DirectPlan>();
  const FoldedProblem problem = plan.is_exchanged ? transposed(given) : given;
  if (plan.tile == kNumDirectTiles) return launch_few_columns(problem, plan, true, executor);
  switch (problem.gemm.dtype_a) {
    case DType::f16:
      return launch<Half>(problem, plan, executor);
    case DType::bf16:
      return launch<BFloat16>(problem, plan, executor);
    default:
      return launch<float>(problem, plan, executor);
  }
}

}  // namespace tiledmm::gpu

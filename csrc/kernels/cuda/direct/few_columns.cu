// direct, up to 16 columns, by multiply-adds up to 8, rows along k: a warp copies its rows of A, whole, and all columns
// of B to shared memory. So all that it needs is on its way at the same time, in copies of neighbouring bytes, whatever
// its lanes multiply afterwards. By multiply-adds a lane has one element of C, by matrix instructions the warp has 16
// rows of it, which may be fp32 where operands have 16 bits.
#include "kernels/cuda/direct/shared.h"
#include "platform/async_copy.h"
#include "platform/block_tile.h"
#include "platform/mma.h"

namespace tiledmm::gpu {
namespace {

struct FewColumnsWork {
  Divisor copies;  // of a row
  int32_t rows, log_cols, padded_k, pitch, warp_bytes, num_warps;

  explicit FewColumnsWork(const FewColumnsPlan& plan)
      : copies(max_of(plan.copies, 1)),
        rows(plan.rows),
        log_cols(plan.log_cols),
        padded_k(plan.padded_k),
        pitch(plan.pitch),
        warp_bytes(plan.warp_bytes),
        num_warps(plan.num_warps) {}
};

// Copies so many rows from `a` on and `cols` columns from `b` on; zeros follow the last k. The columns come to lie
// behind the rows for which there is room. One loop for both: code comes from memory, too.
template <class T>
TILEDMM_DEVICE void copy_rows(const DirectWork& work, const FewColumnsWork& few, const T* a, int32_t rows, const T* b,
                              char* to) {
  const int32_t bytes = work.k * int32_t(sizeof(T));
  TILEDMM_NO_UNROLL for (int32_t i = thread_idx() % 32; i < (rows + work.n) * few.copies.value; i += 32) {
    const int32_t line = few.copies.quotient(i), at = (i - line * few.copies.value) * 16;
    const bool is_a = line < rows;
    const int32_t row = is_a ? line : line - rows;
    const T* from = (is_a ? a : b) + int64_t(row) * (is_a ? work.stride_am : work.stride_bn);
    copy_async<16>(to + (is_a ? row : few.rows + row) * few.pitch + at, reinterpret_cast<const char*>(from) + at,
                   int32_t(max_of(min_of(bytes - at, 16), 0)));
  }
}

template <class T, class C>
TILEDMM_DEVICE void store_sum(const DirectWork& work, const FoldedProblem& problem, const DirectUnit<T, C>& unit,
                              int32_t row, int32_t col, Acc<T> sum) {
  using Added = std::conditional_t<std::is_same_v<T, C>, T, AnyElement>;  // beside a C in fp32 a bias has either dtype
  if (row >= work.m || col >= work.n) return;
  if (!work.is_plain) sum = with_epilogue<Added>(item_of<true>(problem, unit.item), row, col, sum);
  store_global(unit.c + row * work.stride_cm + col * work.stride_cn, rounded_to<C>(sum));
}

// A lane's product, in the order of k.
template <class T>
TILEDMM_DEVICE T sum_along_k(const T* a, const T* b, int32_t k) {
  constexpr int kVector = 16 / int(sizeof(T)), kVectors = 8;
  using Unit = typename Neighbours<T, kVector>::Unit;
  T sum = 0;
  int32_t at = 0;
  const auto multiply_vector = [&](int32_t at) {
    const Unit of_a = load_shared(reinterpret_cast<const Unit*>(a + at));
    const Unit of_b = load_shared(reinterpret_cast<const Unit*>(b + at));
    TILEDMM_UNROLL for (int e = 0; e < kVector; ++e) sum = multiply_add(of_a.elements[e], of_b.elements[e], sum);
  };
  TILEDMM_NO_UNROLL for (; at + kVectors * kVector <= k; at += kVectors * kVector) {
    TILEDMM_UNROLL for (int v = 0; v < kVectors; ++v) multiply_vector(at + v * kVector);
  }
  TILEDMM_NO_UNROLL for (; at + kVector <= k; at += kVector) multiply_vector(at);
  TILEDMM_NO_UNROLL for (; at < k; ++at) sum = multiply_add(load_shared(a + at), load_shared(b + at), sum);
  return sum;
}

// FRAGS: fragments of columns of the matrix instruction; 0: by multiply-adds.
template <class T, class C, int FRAGS>
TILEDMM_KERNEL(32 * kFewColumnsMaxWarps, 4)
few_columns(DirectWork work, FewColumnsWork few, FoldedProblem problem) {
  const int warp = thread_idx() / 32, lane = thread_idx() % 32;
  const auto index = int32_t(block_idx() * few.num_warps + warp);
  if (index >= work.num_units) return;
  const DirectUnit<T, C> unit(work, problem, index);
  const int32_t first_row = unit.row * few.rows, rows = int32_t(min_of(work.m - first_row, few.rows));
  char* const lines = reinterpret_cast<char*>(&block_shared<Vector16>()) + warp * few.warp_bytes;
  copy_rows(work, few, unit.a + int64_t(first_row) * work.stride_am, rows, unit.b, lines);
  commit_copies();
  wait_copies<0>();
  warp_barrier();
  const auto line = [&](int32_t at) { return lines + at * few.pitch; };
  if constexpr (FRAGS > 0) {
    using L = LayoutM16N8;
    using Word = typename WordOf<T>::Word;
    const auto words_of = [&](int32_t at) { return reinterpret_cast<const Word*>(line(at)) + L::a_word(lane, 0); };
    const Word *upper = words_of(L::a_row(lane, 0)), *lower = words_of(L::a_row(lane, 1));
    const Word* b[FRAGS];
    TILEDMM_UNROLL for (int f = 0; f < FRAGS; ++f) {
      b[f] = words_of(few.rows + int32_t(min_of(L::kN * f + L::b_col(lane, 0), work.n - 1)));
    }
    const auto word = [](const Word* from) { return Mma<T>::prepared(load_shared(from)); };
    float sums[FRAGS][L::kAccs] = {};
    TILEDMM_NO_UNROLL for (int32_t w = 0; w < few.padded_k / WordOf<T>::kElements; w += L::kWordsK) {
      const Word a[] = {word(upper + w), word(lower + w), word(upper + w + 4), word(lower + w + 4)};
      TILEDMM_UNROLL for (int f = 0; f < FRAGS; ++f) {
        Mma<T>::multiply(sums[f], a, {word(b[f] + w), word(b[f] + w + 4)});
      }
    }
    TILEDMM_UNROLL for (int f = 0; f < FRAGS; ++f) {
      TILEDMM_UNROLL for (int e = 0; e < L::kAccs; ++e) {
        store_sum(work, problem, unit, first_row + L::c_row(lane, e), L::kN * f + L::c_col(lane, e), sums[f][e]);
      }
    }
  } else {
    const int32_t row = lane >> few.log_cols, col = lane & ((1 << few.log_cols) - 1);
    const auto* a = reinterpret_cast<const T*>(line(int32_t(min_of(row, rows - 1))));
    const auto* b = reinterpret_cast<const T*>(line(few.rows + int32_t(min_of(col, work.n - 1))));
    store_sum(work, problem, unit, first_row + row, col, sum_along_k(a, b, work.k));
  }
}

template <class T, class C, bool IS_MMA>
Status launch(const FoldedProblem& problem, const DirectPlan& plan, const Executor& executor) {
  const FewColumnsPlan& few = plan.few_columns;
  const auto kernel = problem.gemm.n > kFewColumns ? few_columns<T, C, 2 * IS_MMA> : few_columns<T, C, IS_MMA>;
  return launch_kernel(kernel, ceil_div(plan.num_units, few.num_warps), 1, 32 * few.num_warps,
                       few.num_warps * few.warp_bytes, executor, DirectWork(problem, plan, true), FewColumnsWork(few),
                       problem);
}

}  // namespace

Status launch_few_columns(const FoldedProblem& problem, const DirectPlan& plan, bool is_mma, const Executor& executor) {
  const bool is_wide = problem.gemm.dtype_c != problem.gemm.dtype_a;
  switch (problem.gemm.dtype_a) {
    case DType::f64:
      return launch<double, double, false>(problem, plan, executor);
    case DType::f16:
      return is_wide ? launch<Half, float, true>(problem, plan, executor)
                     : launch<Half, Half, true>(problem, plan, executor);
    case DType::bf16:
      return is_wide ? launch<BFloat16, float, true>(problem, plan, executor)
                     : launch<BFloat16, BFloat16, true>(problem, plan, executor);
    default:
      return is_mma ? launch<float, float, true>(problem, plan, executor)
                    : launch<float, float, false>(problem, plan, executor);
  }
}

}  // namespace tiledmm::gpu

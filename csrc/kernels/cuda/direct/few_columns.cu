// direct for few columns that lie along k: up to 16, by multiply-adds up to 8. A warp copies its rows of A, whole, and
// all columns of B to shared memory. So all that it needs is on its way at the same time, in copies of neighbouring
// bytes, whatever its lanes multiply afterwards. By multiply-adds a lane has one element of C, and in fp32 A lies along
// k or m. By matrix instructions the warp has up to 16 rows of C, which may be fp32 where operands have 16 bits, and A
// lies along k.
#include "kernels/cuda/direct/shared.h"
#include "platform/async_copy.h"
#include "platform/block_tile.h"
#include "platform/mma.h"

namespace tiledmm::gpu {
namespace {

struct FewColumnsWork {
  Divisor copies;  // of a row
  int32_t rows, log_rows, log_cols, padded_k, pitch, bytes_of_a, warp_bytes, num_warps;

  explicit FewColumnsWork(const FewColumnsPlan& plan)
      : copies(max_of(plan.copies, 1)),
        rows(plan.rows),
        log_rows(__builtin_ctz(unsigned(plan.rows))),
        log_cols(plan.log_cols),
        padded_k(plan.padded_k),
        pitch(plan.pitch),
        bytes_of_a(plan.bytes_of_a),
        warp_bytes(plan.warp_bytes),
        num_warps(plan.num_warps) {}
};

// Copies so many rows along k from `a` on and all columns from `b` on; zeros follow the last k. The columns come to lie
// behind A. One loop for both: code comes from memory, too.
template <class T>
TILEDMM_DEVICE void copy_rows(const DirectWork& work, const FewColumnsWork& few, const T* a, int32_t rows, const T* b,
                              char* to) {
  const int32_t bytes = work.k * int32_t(sizeof(T));
  TILEDMM_NO_UNROLL for (int32_t i = thread_idx() % 32; i < (rows + work.n) * few.copies.value; i += 32) {
    const int32_t line = few.copies.quotient(i), at = (i - line * few.copies.value) * 16;
    const bool is_a = line < rows;
    const int32_t row = is_a ? line : line - rows;
    const T* from = (is_a ? a : b) + int64_t(row) * (is_a ? work.stride_am : work.stride_bn);
    copy_async<16>(to + (is_a ? 0 : few.bytes_of_a) + row * few.pitch + at, reinterpret_cast<const char*>(from) + at,
                   int32_t(max_of(min_of(bytes - at, 16), 0)));
  }
}

// Copies so many rows that lie along m, from `a` on: a line is one k of all of them, and lines follow each other
// without gaps. Zeros follow the last row.
TILEDMM_DEVICE void copy_lines(const DirectWork& work, const FewColumnsWork& few, const float* a, int32_t rows,
                               char* to) {
  const int32_t bytes = rows * int32_t(sizeof(float)), log_line = few.log_rows + 2;
  TILEDMM_NO_UNROLL for (int32_t i = thread_idx() % 32 * 16; i < work.k << log_line; i += 32 * 16) {
    const int32_t line = i >> log_line, at = i - (line << log_line);
    const float* from = a + int64_t(line) * work.stride_ak;
    copy_async<16>(to + i, reinterpret_cast<const char*>(from) + at, int32_t(min_of(max_of(bytes - at, 0), 16)));
  }
}

// Stores one sum, if its row and column are inside of C and the row is the warp's own.
template <class T, class C>
TILEDMM_DEVICE void store_sum(const DirectWork& work, const FewColumnsWork& few, const FoldedProblem& problem,
                              const DirectUnit<T, C>& unit, int32_t row_of_unit, int32_t col, Acc<T> sum) {
  using Added = std::conditional_t<std::is_same_v<T, C>, T, AnyElement>;  // beside a C in fp32 a bias has either dtype
  const int32_t row = unit.row * few.rows + row_of_unit;
  if (row_of_unit >= few.rows || row >= work.m || col >= work.n) return;
  if (!work.is_plain) sum = with_epilogue<Added>(item_of<true>(problem, unit.item), row, col, sum);
  store_global(unit.c + row * work.stride_cm + col * work.stride_cn, rounded_to<C>(sum));
}

// A lane's product, in the order of k. step_a: elements of A from one k to the next, where it lies along m.
template <class T, bool IS_A_ALONG_M>
TILEDMM_DEVICE T sum_along_k(const T* a, int32_t step_a, const T* b, int32_t k) {
  constexpr int kVector = 16 / int(sizeof(T)), kVectors = 8;
  using Unit = typename Neighbours<T, kVector>::Unit;
  T sum = 0;
  int32_t at = 0;
  const auto multiply_vector = [&](int32_t at) {
    Unit of_a;
    if constexpr (IS_A_ALONG_M) {
      TILEDMM_UNROLL for (int e = 0; e < kVector; ++e) of_a.elements[e] = load_shared(a + (at + e) * step_a);
    } else {
      of_a = load_shared(reinterpret_cast<const Unit*>(a + at));
    }
    const Unit of_b = load_shared(reinterpret_cast<const Unit*>(b + at));
    TILEDMM_UNROLL for (int e = 0; e < kVector; ++e) sum = multiply_add(of_a.elements[e], of_b.elements[e], sum);
  };
  TILEDMM_NO_UNROLL for (; at + kVectors * kVector <= k; at += kVectors * kVector) {
    TILEDMM_UNROLL for (int v = 0; v < kVectors; ++v) multiply_vector(at + v * kVector);
  }
  TILEDMM_NO_UNROLL for (; at + kVector <= k; at += kVector) multiply_vector(at);
  TILEDMM_NO_UNROLL for (; at < k; ++at) sum = multiply_add(load_shared(a + at * step_a), load_shared(b + at), sum);
  return sum;
}

// FRAGS: fragments of columns of the matrix instruction; 0: by multiply-adds.
template <class T, class C, int FRAGS, bool IS_A_ALONG_M = false>
TILEDMM_KERNEL(32 * kFewColumnsMaxWarps, 4)
few_columns(DirectWork work, FewColumnsWork few, FoldedProblem problem) {
  const int warp = thread_idx() / 32, lane = thread_idx() % 32;
  const auto index = int32_t(block_idx() * few.num_warps + warp);
  if (index >= work.num_units) return;
  const DirectUnit<T, C> unit(work, problem, index);
  const int32_t first_row = unit.row * few.rows, rows = int32_t(min_of(work.m - first_row, few.rows));
  char* const lines = reinterpret_cast<char*>(&block_shared<Vector16>()) + warp * few.warp_bytes;
  const T* const a = unit.a + int64_t(first_row) * work.stride_am;
  if constexpr (IS_A_ALONG_M) copy_lines(work, few, a, rows, lines);
  copy_rows(work, few, a, IS_A_ALONG_M ? 0 : rows, unit.b, lines);
  commit_copies();
  wait_copies<0>();
  warp_barrier();
  const auto row_of_a = [&](int32_t at) { return lines + at * few.pitch; };
  const auto col_of_b = [&](int32_t at) { return lines + few.bytes_of_a + min_of(at, work.n - 1) * few.pitch; };
  if constexpr (FRAGS > 0) {
    using L = LayoutM16N8;
    using Word = typename WordOf<T>::Word;
    const auto words_of = [&](const char* from) { return reinterpret_cast<const Word*>(from) + L::a_word(lane, 0); };
    const auto words_of_row = [&](int32_t row) { return words_of(row_of_a(int32_t(min_of(row, few.rows - 1)))); };
    const Word *upper = words_of_row(L::a_row(lane, 0)), *lower = words_of_row(L::a_row(lane, 1));
    const Word* b[FRAGS];
    TILEDMM_UNROLL for (int f = 0; f < FRAGS; ++f) b[f] = words_of(col_of_b(L::kN * f + L::b_col(lane, 0)));
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
        store_sum(work, few, problem, unit, L::c_row(lane, e), L::kN * f + L::c_col(lane, e), sums[f][e]);
      }
    }
  } else {
    const int32_t row = lane >> few.log_cols, col = lane & ((1 << few.log_cols) - 1);
    const auto own_row = int32_t(min_of(row, rows - 1));
    const auto* of_a =
        IS_A_ALONG_M ? reinterpret_cast<const T*>(lines) + own_row : reinterpret_cast<const T*>(row_of_a(own_row));
    const auto* of_b = reinterpret_cast<const T*>(col_of_b(col));
    const T sum = sum_along_k<T, IS_A_ALONG_M>(of_a, IS_A_ALONG_M ? few.rows : 1, of_b, work.k);
    store_sum(work, few, problem, unit, row, col, sum);
  }
}

template <class T, class C, bool IS_MMA>
Status launch(const FoldedProblem& problem, const DirectPlan& plan, const Executor& executor) {
  const FewColumnsPlan& few = plan.few_columns;
  auto* kernel = problem.gemm.n > kFewColumns ? few_columns<T, C, 2 * IS_MMA> : few_columns<T, C, IS_MMA>;
  if constexpr (std::is_same_v<T, float> && !IS_MMA) {
    if (few.is_a_along_m) kernel = few_columns<T, C, 0, true>;
  }
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

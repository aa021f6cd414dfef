// direct, up to 8 columns: a warp copies its rows of A, whole, and all columns of B to shared memory. So all that it
// needs is on its way at the same time, in copies of neighbouring bytes, whatever its lanes multiply afterwards. By
// multiply-adds a lane has one element of C, by matrix instructions the warp has 16 rows.
#include "kernels/cuda/direct/shared.h"
#include "platform/async_copy.h"
#include "platform/block_tile.h"
#include "platform/mma.h"

namespace tiledmm::gpu {
namespace {

// What the copies of an operand have in common.
struct LineCopies {
  Divisor copies;  // of a line
  int32_t width, pitch;

  explicit LineCopies(const CopiedLines& lines)
      : copies(max_of(lines.copies, 1)), width(lines.width), pitch(lines.pitch) {}
};

struct FewColumnsWork {
  LineCopies a, b;
  int32_t rows, log_cols, padded_k, a_bytes, warp_bytes, num_warps;

  explicit FewColumnsWork(const FewColumnsPlan& plan)
      : a(plan.a),
        b(plan.b),
        rows(plan.rows),
        log_cols(plan.log_cols),
        padded_k(plan.padded_k),
        a_bytes(plan.a_bytes),
        warp_bytes(plan.warp_bytes),
        num_warps(plan.num_warps) {}
};

// Copies `count` lines of so many bytes; zeros follow them, and are all of the lines from `end` on.
template <int WIDTH>
TILEDMM_DEVICE void copy_lines(const LineCopies& lines, const char* from, int64_t stride, int32_t count, int32_t end,
                               int32_t bytes, char* to) {
  TILEDMM_NO_UNROLL for (int32_t i = thread_idx() % 32; i < count * lines.copies.value; i += 32) {
    const int32_t line = lines.copies.quotient(i), first = (i - line * lines.copies.value) * WIDTH;
    const int32_t valid = line < end ? int32_t(max_of(min_of(bytes - first, WIDTH), 0)) : 0;
    copy_async<WIDTH>(to + line * lines.pitch + first, from + line * stride + first, valid);
  }
}

// The rows of an operand from `data` on, of which there are so many.
template <bool IS_K_MAJOR, class T>
TILEDMM_DEVICE void copy_rows(const LineCopies& lines, const T* data, int32_t rows, int32_t k, int32_t padded_k,
                              int32_t stride_row, int32_t stride_k, char* to) {
  const auto* from = reinterpret_cast<const char*>(data);
  const int64_t stride = int64_t(IS_K_MAJOR ? stride_row : stride_k) * int64_t(sizeof(T));
  const int32_t count = IS_K_MAJOR ? rows : padded_k, end = IS_K_MAJOR ? rows : k;
  const int32_t bytes = (IS_K_MAJOR ? k : rows) * int32_t(sizeof(T));
  if (lines.width == 16) {
    copy_lines<16>(lines, from, stride, count, end, bytes, to);
  } else if (lines.width == 8) {
    copy_lines<8>(lines, from, stride, count, end, bytes, to);
  } else {
    copy_lines<4>(lines, from, stride, count, end, bytes, to);
  }
}

// A row in shared memory.
template <class T, bool IS_K_MAJOR>
struct CopiedRow {
  const char* first;
  int32_t pitch;

  TILEDMM_DEVICE CopiedRow(const char* rows, int32_t pitch, int32_t row)
      : first(rows + row * (IS_K_MAJOR ? pitch : int32_t(sizeof(T)))), pitch(pitch) {}
  TILEDMM_DEVICE const T* at(int32_t k) const {
    return reinterpret_cast<const T*>(first + k * (IS_K_MAJOR ? int32_t(sizeof(T)) : pitch));
  }
  // COUNT elements from k on, 16 bytes or less.
  template <int COUNT>
  TILEDMM_DEVICE void load(int32_t k, T (&to)[COUNT]) const {
    if constexpr (IS_K_MAJOR) {
      const Neighbours<T, COUNT> found{
          {load_shared(reinterpret_cast<const typename Neighbours<T, COUNT>::Unit*>(at(k)))}};
      TILEDMM_UNROLL for (int e = 0; e < COUNT; ++e) to[e] = found.elements[e];
    } else {
      TILEDMM_UNROLL for (int e = 0; e < COUNT; ++e) to[e] = load_shared(at(k + e));
    }
  }
  TILEDMM_DEVICE typename WordOf<T>::Word word(int32_t word) const {
    if constexpr (WordOf<T>::kElements == 1) {
      return Mma<T>::prepared(load_shared(at(word)));
    } else if constexpr (IS_K_MAJOR) {
      return load_shared(reinterpret_cast<const uint32_t*>(at(2 * word)));
    } else {
      return uint32_t(load_shared(at(2 * word)).bits) | uint32_t(load_shared(at(2 * word + 1)).bits) << 16;
    }
  }
};

template <class T>
TILEDMM_DEVICE void store_sum(const DirectWork& work, const FoldedProblem& problem, const DirectUnit<T>& unit,
                              int32_t row, int32_t col, Acc<T> sum) {
  if (row >= work.m || col >= work.n) return;
  if (!work.is_plain) sum = with_epilogue<T>(item_of<true>(problem, unit.item), row, col, sum);
  store_global(unit.c + row * work.stride_cm + col * work.stride_cn, rounded_to<T>(sum));
}

// A lane's product, in the order of k.
template <class T, class RowA, class RowB>
TILEDMM_DEVICE T sum_along_k(const RowA& a, const RowB& b, int32_t k) {
  constexpr int kVector = 16 / int(sizeof(T)), kVectors = 8;
  T sum = 0;
  int32_t at = 0;
  const auto multiply = [&](auto count) {
    constexpr int kCount = decltype(count)::value;
    T of_a[kCount], of_b[kCount];
    a.load(at, of_a), b.load(at, of_b);
    TILEDMM_UNROLL for (int e = 0; e < kCount; ++e) sum = multiply_add(of_a[e], of_b[e], sum);
    at += kCount;
  };
  TILEDMM_NO_UNROLL while (at + kVectors * kVector <= k) {
    TILEDMM_UNROLL for (int v = 0; v < kVectors; ++v) multiply(std::integral_constant<int, kVector>{});
  }
  TILEDMM_NO_UNROLL while (at + kVector <= k) multiply(std::integral_constant<int, kVector>{});
  TILEDMM_NO_UNROLL while (at < k) multiply(std::integral_constant<int, 1>{});
  return sum;
}

template <class T, bool IS_MMA, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR>
TILEDMM_KERNEL(32 * kFewColumnsMaxWarps, 4)
few_columns(DirectWork work, FewColumnsWork own, FoldedProblem problem) {
  using L = LayoutM16N8;
  const int warp = thread_idx() / 32, lane = thread_idx() % 32;
  const auto index = int32_t(block_idx() * own.num_warps + warp);
  if (index >= work.num_units) return;
  const DirectUnit<T> unit(work, problem, index);
  const int32_t first_row = unit.row * own.rows;
  char* const rows_a = reinterpret_cast<char*>(&block_shared<Vector16>()) + warp * own.warp_bytes;
  char* const rows_b = rows_a + own.a_bytes;
  copy_rows<IS_A_K_MAJOR>(own.a, unit.a + first_row * work.stride_am, int32_t(min_of(work.m - first_row, own.rows)),
                          work.k, own.padded_k, work.stride_am, work.stride_ak, rows_a);
  copy_rows<IS_B_K_MAJOR>(own.b, unit.b, work.n, work.k, own.padded_k, work.stride_bn, work.stride_bk, rows_b);
  commit_copies();
  wait_copies<0>();
  warp_barrier();
  using RowA = CopiedRow<T, IS_A_K_MAJOR>;
  using RowB = CopiedRow<T, IS_B_K_MAJOR>;
  if constexpr (IS_MMA) {
    const RowA upper(rows_a, own.a.pitch, L::a_row(lane, 0)), lower(rows_a, own.a.pitch, L::a_row(lane, 1));
    const RowB b(rows_b, own.b.pitch, int32_t(min_of(L::b_col(lane, 0), work.n - 1)));
    float sums[L::kAccs] = {};
    TILEDMM_NO_UNROLL for (int32_t word = 0; word < own.padded_k / WordOf<T>::kElements; word += L::kWordsK) {
      const int32_t w0 = word + L::a_word(lane, 0), w1 = word + L::a_word(lane, 2);
      Mma<T>::multiply(sums, {upper.word(w0), lower.word(w0), upper.word(w1), lower.word(w1)},
                       {b.word(w0), b.word(w1)});
    }
    TILEDMM_UNROLL for (int e = 0; e < L::kAccs; ++e) {
      store_sum(work, problem, unit, first_row + L::c_row(lane, e), L::c_col(lane, e), sums[e]);
    }
  } else {
    const int32_t row = lane >> own.log_cols, col = lane & ((1 << own.log_cols) - 1);
    const RowA a(rows_a, own.a.pitch, int32_t(min_of(row, work.m - 1 - first_row)));
    const RowB b(rows_b, own.b.pitch, int32_t(min_of(col, work.n - 1)));
    store_sum(work, problem, unit, first_row + row, col, sum_along_k<T>(a, b, work.k));
  }
}

template <class T, bool IS_MMA>
Status launch(const FoldedProblem& problem, const DirectPlan& plan, const Executor& executor) {
  const FewColumnsPlan& few = plan.few_columns;
  const DirectWork work(problem, plan, true);
  return visit_layouts(problem.gemm, [&](auto is_a_k_major, auto is_b_k_major) {
    constexpr bool kA = decltype(is_a_k_major)::value, kB = decltype(is_b_k_major)::value;
    return launch_kernel(few_columns<T, IS_MMA, kA, kB>, ceil_div(plan.num_units, few.num_warps), 1, 32 * few.num_warps,
                         few.num_warps * few.warp_bytes, executor, work, FewColumnsWork(few), problem);
  });
}

}  // namespace

Status launch_few_columns(const FoldedProblem& problem, const DirectPlan& plan, bool is_mma, const Executor& executor) {
  switch (problem.gemm.dtype_a) {
    case DType::f64:
      return launch<double, false>(problem, plan, executor);
    case DType::f16:
      return launch<Half, true>(problem, plan, executor);
    case DType::bf16:
      return launch<BFloat16, true>(problem, plan, executor);
    default:
      return is_mma ? launch<float, true>(problem, plan, executor) : launch<float, false>(problem, plan, executor);
  }
}

}  // namespace tiledmm::gpu

// The second half of a product whose chunks of k different blocks computed: their sums are added in the order of the
// chunks (core/summation.h), then bias, activation, rounding.
#pragma once

#include "platform/epilogue.h"

namespace tiledmm::gpu {
namespace {

// Where the sums of one chunk of one item go: a matrix of its own, number `idx` in the workspace.
template <class A>
TILEDMM_DEVICE GemmProblem partial_problem(const GemmProblem& gemm, A* partial, int64_t idx) {
  GemmProblem sums = gemm;
  sums.c = partial + idx * gemm.m * gemm.n;
  sums.stride_cm = gemm.n, sums.stride_cn = 1;
  drop_epilogue(sums);
  return sums;
}

// Neighbours of a row that a thread adds, loads and stores together: four in fp32, two in fp64.
template <class A>
inline constexpr int kVectorColumns = int(16 / sizeof(A));
template <class E, int COLS>
struct alignas(sizeof(E) * COLS) Columns {
  E of[COLS];
};

// Where all of them are inside of C and lie together, one store.
template <class E, class A, int COLS>
TILEDMM_DEVICE void store_columns(E* to, int64_t stride, int num_inside, const Columns<A, COLS>& values) {
  using Vector = Columns<E, COLS>;
  if (COLS > 1 && num_inside >= COLS && stride == 1 && reinterpret_cast<uintptr_t>(to) % sizeof(Vector) == 0) {
    Vector rounded;
    TILEDMM_UNROLL for (int i = 0; i < COLS; ++i) rounded.of[i] = rounded_to<E>(values.of[i]);
    store_global(reinterpret_cast<Vector*>(to), rounded);
    return;
  }
  TILEDMM_UNROLL for (int i = 0; i < COLS; ++i) {
    if (i < num_inside) store_global(to + i * stride, rounded_to<E>(values.of[i]));
  }
}

// COLS columns a thread, AT_ONCE loads of them in flight; rows of sums begin at multiples of COLS. C = the chunks' sum,
// or what C has and theirs. SCALES: times the factor of B's column.
template <class T, int THREADS, int AT_ONCE, int COLS, bool ADDS_TO_C = false, bool SCALES = false>
TILEDMM_KERNEL(THREADS, 1)
add_chunks(const Acc<T>* sums, int64_t ld, int64_t num_chunks, FoldedProblem problem) {
  using Vector = Columns<Acc<T>, COLS>;
  let_later_kernels_start();
  const int64_t slab = problem.gemm.m * ld, idx = (block_idx() * THREADS + thread_idx()) * COLS;
  const int64_t item = problem.batch_size == 1 ? 0 : idx / slab;
  if (idx >= problem.batch_size * slab) return;
  const Acc<T>* from = sums + idx + item * (num_chunks - 1) * slab;
  Vector sum;
  TILEDMM_UNROLL for (int i = 0; i < COLS; ++i) sum.of[i] = Acc<T>(-0.0);  // adds nothing
  // First a rehearsal without chunks, while the kernel before this one still runs: this code takes longer to arrive
  // than to do its work.
  TILEDMM_NO_UNROLL for (int64_t count = opaque_uniform(int64_t(0));; count = num_chunks) {
    if (count > 0) wait_for_earlier_kernels();
    if constexpr (ADDS_TO_C) {
      const int64_t within = idx - item * slab, row = within / ld, col = within - row * ld;
      const GemmProblem p = item_of<true>(problem, item);
      TILEDMM_UNROLL for (int i = 0; i < COLS; ++i) {
        if (count > 0 && col + i < p.n)
          sum.of[i] = load_global(static_cast<const T*>(p.c) + row * p.stride_cm + (col + i) * p.stride_cn);
      }
    }
    TILEDMM_NO_UNROLL for (int64_t chunk = 0;; chunk += AT_ONCE) {
      Vector next[AT_ONCE];
      const int left = int(max_of(min_of(count - chunk, AT_ONCE), 0));
      TILEDMM_UNROLL for (int i = 0; i < AT_ONCE; ++i) {
        TILEDMM_UNROLL for (int j = 0; j < COLS; ++j) next[i].of[j] = Acc<T>(-0.0);
        if (i < left) next[i] = load_global(reinterpret_cast<const Vector*>(from + (chunk + i) * slab));
      }
      TILEDMM_UNROLL for (int i = 0; i < AT_ONCE; ++i) {
        TILEDMM_UNROLL for (int j = 0; j < COLS; ++j) sum.of[j] += next[i].of[j];
      }
      if (chunk + AT_ONCE >= count) break;
    }
    if (count > 0) break;
  }
  const int64_t row = (idx - item * slab) / ld, col = idx - item * slab - row * ld;
  const int num_inside = int(max_of(min_of(problem.gemm.n - col, COLS), 0));
  if constexpr (!std::is_same_v<T, AnyElement>) {
    if (problem.gemm.row_sums && col + COLS == ld)
      store_global(static_cast<T*>(problem.gemm.row_sums) + row, rounded_to<T>(sum.of[COLS - 1]));
  }
  if (num_inside == 0) return;
  const GemmProblem p = item_of<true>(problem, item);
  TILEDMM_UNROLL for (int i = 0; i < COLS; ++i) {
    if constexpr (SCALES) {
      if (i < num_inside) sum.of[i] *= load_global(p.scale_b.data + (col + i) * p.scale_b.stride_row);
    }
    sum.of[i] = blended<T>(p, row, col + i, sum.of[i]);
  }
  if (p.activation != Activation::none) {
    // One copy of the functions' code: the columns take turns.
    TILEDMM_NO_UNROLL for (int i = 0; i < COLS; ++i) {
      const Acc<T> first = activated<T>(p.activation, sum.of[0]);
      TILEDMM_UNROLL for (int j = 0; j + 1 < COLS; ++j) sum.of[j] = sum.of[j + 1];
      sum.of[COLS - 1] = first;
    }
  }
  const int64_t to = row * p.stride_cm + col * p.stride_cn;
  if constexpr (!std::is_same_v<T, AnyElement>) {
    store_columns(static_cast<T*>(p.c) + to, p.stride_cn, num_inside, sum);
  } else if (p.dtype_c == DType::f32) {
    store_columns(static_cast<float*>(p.c) + to, p.stride_cn, num_inside, sum);
  } else if (p.dtype_c == DType::f16) {
    store_columns(static_cast<Half*>(p.c) + to, p.stride_cn, num_inside, sum);
  } else {
    store_columns(static_cast<BFloat16*>(p.c) + to, p.stride_cn, num_inside, sum);
  }
}

// C of the problem from sums of its chunks, whose rows are `ld` apart. ADDS_TO_C, SCALES: as of add_chunks.
template <class T, bool ADDS_TO_C = false, bool SCALES = false>
Status add_chunks_of(const FoldedProblem& problem, const Acc<T>* sums, int64_t ld, int64_t num_chunks,
                     const Executor& executor) {
  const int64_t count = problem.batch_size * problem.gemm.m * ld;
  const auto launch = [&](auto* kernel, int num_threads, int columns) {
    return launch_early(kernel, ceil_div(count, num_threads * columns), 1, num_threads, 0, executor, sums, ld,
                        num_chunks, problem);
  };
  // Many elements: several a thread, so that memory has more to do.
  constexpr int64_t kMany = 1 << 17;
  constexpr int kColumns = kVectorColumns<Acc<T>>, kAtOnce = kIsAmd ? 4 : 8;
  if (count >= kMany && ld % kColumns == 0)
    return launch(add_chunks<T, 128, kAtOnce, kColumns, ADDS_TO_C, SCALES>, 128, kColumns);
  // Few elements: more blocks, so that more multiprocessors load, and more loads at a time (measured on an H200: 1 us
  // of 3.4 for 4096 elements of 64 chunks; as much the other way round for 65536 of 16).
  // AMD's compiler has no registers for that.
  [[maybe_unused]] constexpr int64_t kFew = 8192;
  if constexpr (!kIsAmd && !ADDS_TO_C) {
    if (count <= kFew) return launch(add_chunks<T, 32, 64, 1, ADDS_TO_C, SCALES>, 32, 1);
  }
  return launch(add_chunks<T, 128, 16, 1, ADDS_TO_C, SCALES>, 128, 1);
}

// Sums of the chunks, [item][chunk][row][col], rows of `ld`, the last of which is the sum of A's row if it is wanted:
// memory lent by the caller, given back when the kernels have been launched.
template <class A>
class ChunkSums {
 public:
  A* sums = nullptr;

  ChunkSums(const FoldedProblem& problem, int64_t ld, const Executor& executor)
      : executor_(executor), problem_(problem), ld_(ld), num_chunks_(ceil_div(problem.gemm.k, problem.chunk_k)) {}
  ~ChunkSums() {
    if (sums) executor_.release(executor_.self, sums);
  }
  ChunkSums(const ChunkSums&) = delete;

  bool allocate() {
    const int64_t count = num_chunks_ * problem_.batch_size * problem_.gemm.m * ld_;
    sums = static_cast<A*>(executor_.allocate(executor_.self, size_t(count) * sizeof(A)));
    return sums != nullptr;
  }

  // C of the problem, whose element is T. SCALES: as of add_chunks.
  template <class T, bool SCALES = false>
  Status add() const {
    static_assert(sizeof(Acc<T>) == sizeof(A), "the sums are T's accumulators");
    return add_chunks_of<T, false, SCALES>(problem_, sums, ld_, num_chunks_, executor_);
  }

 private:
  const Executor& executor_;
  const FoldedProblem& problem_;
  int64_t ld_, num_chunks_;
};

}  // namespace
}  // namespace tiledmm::gpu

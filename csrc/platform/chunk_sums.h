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

// An element a thread, AT_ONCE loads in flight. C = the chunks' sum, or what C has and theirs. SCALES: times the factor
// of B's column.
template <class T, int THREADS, int AT_ONCE, bool ADDS_TO_C = false, bool SCALES = false>
TILEDMM_KERNEL(THREADS, 1)
add_chunks(const Acc<T>* sums, int64_t ld, int64_t num_chunks, FoldedProblem problem) {
  let_later_kernels_start();
  const int64_t slab = problem.gemm.m * ld, idx = block_idx() * THREADS + thread_idx();
  const int64_t item = problem.batch_size == 1 ? 0 : idx / slab;
  if (idx >= problem.batch_size * slab) return;
  const Acc<T>* from = sums + idx + item * (num_chunks - 1) * slab;
  auto sum = Acc<T>(-0.0);  // adds nothing
  // First a rehearsal without chunks, while the kernel before this one still runs: this code takes longer to arrive
  // than to do its work.
  TILEDMM_NO_UNROLL for (int64_t count = opaque_uniform(int64_t(0));; count = num_chunks) {
    if (count > 0) wait_for_earlier_kernels();
    if constexpr (ADDS_TO_C) {
      const int64_t within = idx - item * slab, row = within / ld;
      const GemmProblem p = item_of<true>(problem, item);
      if (count > 0)
        sum = load_global(static_cast<const T*>(p.c) + row * p.stride_cm + (within - row * ld) * p.stride_cn);
    }
    TILEDMM_NO_UNROLL for (int64_t chunk = 0;; chunk += AT_ONCE) {
      Acc<T> next[AT_ONCE];
      const int left = int(max_of(min_of(count - chunk, AT_ONCE), 0));
      TILEDMM_UNROLL for (int i = 0; i < AT_ONCE; ++i) {
        next[i] = i < left ? load_global(from + (chunk + i) * slab) : Acc<T>(-0.0);
      }
      TILEDMM_UNROLL for (int i = 0; i < AT_ONCE; ++i) sum += next[i];
      if (chunk + AT_ONCE >= count) break;
    }
    if (count > 0) break;
  }
  const int64_t row = (idx - item * slab) / ld, col = idx - item * slab - row * ld;
  if constexpr (SCALES) sum *= load_global(problem.gemm.scale_b.data + col * problem.gemm.scale_b.stride_row);
  if (col < problem.gemm.n) {
    store_element<T>(item_of<true>(problem, item), row, col, sum);
  } else if constexpr (!std::is_same_v<T, AnyElement>) {
    if (problem.gemm.row_sums && col == ld - 1)
      store_global(static_cast<T*>(problem.gemm.row_sums) + row, rounded_to<T>(sum));
  }
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
    const int64_t count = num_chunks_ * num_outputs();
    sums = static_cast<A*>(executor_.allocate(executor_.self, size_t(count) * sizeof(A)));
    return sums != nullptr;
  }

  // C of the problem, whose element is T. SCALES: as of add_chunks.
  template <class T, bool SCALES = false>
  Status add() const {
    static_assert(sizeof(Acc<T>) == sizeof(A), "the sums are T's accumulators");
    // Few elements: more blocks, so that more multiprocessors load, and more loads at a time (measured on an H200: 1 us
    // of 3.4 for 4096 elements of 64 chunks; as much the other way round for 65536 of 16).
    // AMD's compiler has no registers for that.
    [[maybe_unused]] constexpr int64_t kFew = 8192;
    if constexpr (!kIsAmd) {
      if (num_outputs() <= kFew) return launch<T, 32, 64, SCALES>();
    }
    return launch<T, 128, 16, SCALES>();
  }

 private:
  int64_t num_outputs() const { return problem_.batch_size * problem_.gemm.m * ld_; }

  template <class T, int THREADS, int AT_ONCE, bool SCALES>
  Status launch() const {
    return launch_early(add_chunks<T, THREADS, AT_ONCE, false, SCALES>, ceil_div(num_outputs(), THREADS), 1, THREADS, 0,
                        executor_, static_cast<const Acc<T>*>(sums), ld_, num_chunks_, problem_);
  }

  const Executor& executor_;
  const FoldedProblem& problem_;
  int64_t ld_, num_chunks_;
};

}  // namespace
}  // namespace tiledmm::gpu

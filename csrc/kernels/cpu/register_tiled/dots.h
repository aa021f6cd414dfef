// The path of rung 04 for few rows and columns of B that are contiguous along k: vectors of columns are transposed in
// registers, so that each output is one chain in the order of k here, too. Included once per instruction set by
// <isa>.cpp.
#pragma once

#include "kernels/cpu/register_tiled/micro_kernel.h"
#include "kernels/cpu/register_tiled/plan.h"
#include "kernels/cpu/shared/pack.h"
#include "kernels/cpu/shared/simd.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

template <class T, class Op>
struct Dots {
  using Word = typename Op::Word;
  using A = typename Op::Acc;
  static constexpr int kLanes = Config<Op>::kLanes;
  static constexpr int64_t kChunk = Config<Op>::kChunk;
  static constexpr int64_t kAheadBytes = 256;  // of a column

  const T* b;  // the first column, from the first k on
  int64_t stride_b, cols, depth;
  const Word* panel_a;  // [chunks of k][words][rows]
  int64_t chunk_words;  // from chunk to chunk
  CpuFetch fetch;
  bool has_two_chains;  // with 512 bits

  // Calls finish(first column, how many, totals, their distance from row to row) for vector after vector of columns, of
  // MR rows. A chain of narrow vectors is waited for, so that two take turns (1x256x256 NT with AVX2: 28 GB/s by one
  // chain, 40 by two): of neighbouring vectors of columns, or, where those would begin in one set of the nearest cache,
  // which has no room for so many, of two chunks. Chunks of columns that come from memory are not paired, nor are
  // vectors of 256 bits in fp32: they would be twice as many runs of it at a time (Zen 2, 1x4096x11008 NT: 18 GB/s in
  // pairs, 26 alone; other dtypes gain nothing or lose). With 512 bits two take turns where the plan says so.
  template <int MR, class Finish>
  TILEDMM_INLINE void for_each_vector(const Finish& finish) const {
    [[maybe_unused]] const bool is_far = fetch == CpuFetch::columns || fetch == CpuFetch::runs;
    [[maybe_unused]] const bool is_one_set = stride_b * int64_t(sizeof(T)) % kSetBytes == 0;
    if constexpr (TILEDMM_VECTOR_BYTES < 64 && MR <= 3) {
      if (is_far && TILEDMM_VECTOR_BYTES == 32 && sizeof(T) == 4) return multiply<MR, 1, false>(finish);
      if (!is_one_set || 2 * kLanes <= 8) return multiply<MR, 2, false>(finish);
      if constexpr (MR <= 2) {
        if (depth >= 2 * kChunk && !is_far) return multiply<MR, 1, true>(finish);
      }
    }
    if constexpr (TILEDMM_VECTOR_BYTES == 64 && MR <= 2) {
      if (!is_far && has_two_chains) {
        if (!is_one_set) return multiply<MR, 2, false>(finish);
        if (depth >= 2 * kChunk) return multiply<MR, 1, true>(finish);
      }
    }
    multiply<MR, 1, false>(finish);
  }

  // Fetches what `fetch` says, before the lanes' elements from k on are used. Columns of 8 bits come fast enough by
  // themselves (Zen 3, 4x4096x4096: 3.6 GB/s, fetched ahead 2.9).
  template <int VECTORS>
  TILEDMM_INLINE void fetch_ahead([[maybe_unused]] const LanesAlongK<T, Op, VECTORS>& lanes,
                                  [[maybe_unused]] int64_t k) const {
    if constexpr (sizeof(T) > 1) {
      constexpr int64_t kStep = LanesAlongK<T, Op, VECTORS>::kStep, kCols = VECTORS * kLanes;
      if (fetch == CpuFetch::none) return;
      if constexpr (VECTORS == 1 && TILEDMM_VECTOR_BYTES == 64) {
        if (fetch == CpuFetch::runs) {
          // A square has as many steps of each lane as there are lanes. While one is multiplied, the one that lies a
          // chunk of k behind it comes from memory: in each step all that one lane has of it.
          constexpr int64_t kSquare = kCols * kStep;
          static_assert(kChunk % kSquare == 0);
          const int64_t end = round_up(depth, kSquare), later = k / kSquare * kSquare + kChunk;
          const T* run = lanes.lane[k % kSquare / kStep] + (later < end ? later : later - end + kCols * stride_b);
#pragma GCC unroll 16
          for (int64_t i = 0; i < kCols; ++i) __builtin_prefetch(run + i * kStep, 0, 2);
          return;
        }
      }
      const int64_t ahead = fetch == CpuFetch::columns ? kCols * stride_b : kAheadBytes / int64_t(sizeof(T));
#pragma GCC unroll 16
      for (int64_t l = 0; l < kCols; ++l) __builtin_prefetch(lanes.lane[l] + k + ahead, 0, 2);
    }
  }

 private:
  // The columns from j on. A last vector without a neighbour has no turns.
  template <int MR, int VECTORS, bool PAIRS_CHUNKS, class Finish>
  TILEDMM_INLINE void multiply(const Finish& finish, int64_t j = 0) const {
    constexpr int kCols = VECTORS * kLanes;
    for (; j < cols; j += kCols) {
      if constexpr (VECTORS == 2) {
        if (cols - j <= kLanes) return multiply<MR, 1, false>(finish, j);
      }
      alignas(64) A totals[MR][kCols] = {};
      const Word* a = panel_a;
      int64_t pc = 0;
      if constexpr (PAIRS_CHUNKS) {
        const LanesAlongK<T, Op, 2> lanes(b + j * stride_b, stride_b, cols - j, kChunk);
        for (; pc + 2 * kChunk <= depth; pc += 2 * kChunk, a += 2 * chunk_words) {
          const auto acc = sums_of<MR>(lanes, pc, kChunk, a, chunk_words);
#pragma GCC unroll 2
          for (int chunk = 0; chunk < 2; ++chunk) add_to(totals, 0, acc, chunk, pc == 0 && chunk == 0);
        }
      }
      const LanesAlongK<T, Op, VECTORS> lanes(b + j * stride_b, stride_b, cols - j);
      for (; pc < depth; pc += kChunk, a += chunk_words) {
        const auto acc = sums_of<MR>(lanes, pc, min_of(kChunk, depth - pc), a, 0);
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; ++v) add_to(totals, v, acc, v, pc == 0);
      }
      finish(j, min_of(kCols, cols - j), totals[0], kCols);
    }
  }

  template <int MR, int VECTORS>
  struct Sums {
    Reg<A> of[MR][VECTORS] = {};
  };

  // The sums of `count` elements from `first` on. `step_a`: from the words of A for one vector to those for the next.
  template <int MR, int VECTORS>
  TILEDMM_INLINE Sums<MR, VECTORS> sums_of(const LanesAlongK<T, Op, VECTORS>& lanes, int64_t first, int64_t count,
                                           const Word* a, int64_t step_a) const {
    Sums<MR, VECTORS> sums;
    lanes.for_each_word(
        first, count,
        [&](int64_t word, int v, Reg<Word> frag_b) {
#pragma GCC unroll 8
          for (int i = 0; i < MR; ++i) {
            sums.of[i][v] = Op::multiply_add(broadcast(a[v * step_a + word * MR + i]), frag_b, sums.of[i][v]);
          }
        },
        *this);
    return sums;
  }

  template <int MR, int VECTORS, int COLS>
  static TILEDMM_INLINE void add_to(A (&totals)[MR][COLS], int place, const Sums<MR, VECTORS>& sums, int v,
                                    bool is_first) {
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      A* to = totals[i] + place * kLanes;
      store(to, is_first ? sums.of[i][v] : load(to) + sums.of[i][v]);
    }
  }
};

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

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
  const Word* panel_a;   // [chunks of k][words][rows]
  int64_t chunk_words;   // from chunk to chunk
  bool fetches_b;        // the next columns come from memory meanwhile
  bool fetches_along_k;  // or what follows in these
  bool has_two_chains;   // with 512 bits

  // Calls finish(first column, how many, totals, their distance from row to row) for vector after vector of columns, of
  // MR rows. A chain of narrow vectors is waited for, so that two take turns (1x256x256 NT with AVX2: 28 GB/s by one
  // chain, 40 by two): of neighbouring vectors of columns, or, where those would begin in one set of the nearest cache,
  // which has no room for so many, of two chunks. Chunks of columns that come from memory are not paired: they would be
  // twice as many runs of it at a time. With 512 bits two take turns where the plan says so.
  template <int MR, class Finish>
  TILEDMM_INLINE void for_each_vector(const Finish& finish) const {
    [[maybe_unused]] const bool is_one_set = stride_b * int64_t(sizeof(T)) % kSetBytes == 0;
    if constexpr (TILEDMM_VECTOR_BYTES < 64 && MR <= 3) {
      if (!is_one_set || 2 * kLanes <= 8) return multiply<MR, 2, false>(finish);
      if constexpr (MR <= 2) {
        if (depth >= 2 * kChunk && !fetches_b) return multiply<MR, 1, true>(finish);
      }
    }
    if constexpr (TILEDMM_VECTOR_BYTES == 64 && MR <= 2) {
      if (!fetches_b && has_two_chains) {
        if (!is_one_set) return multiply<MR, 2, false>(finish);
        if (depth >= 2 * kChunk) return multiply<MR, 1, true>(finish);
      }
    }
    multiply<MR, 1, false>(finish);
  }

 private:
  template <int MR, int VECTORS, bool PAIRS_CHUNKS, class Finish>
  TILEDMM_INLINE void multiply(const Finish& finish) const {
    constexpr int kCols = VECTORS * kLanes;
    // Columns of 8 bits come fast enough by themselves (Zen 3, 4x4096x4096: 3.6 GB/s, fetched ahead 2.9).
    const int64_t ahead = sizeof(T) == 1    ? 0
                          : fetches_b       ? kCols * stride_b
                          : fetches_along_k ? kAheadBytes / int64_t(sizeof(T))
                                            : 0;
    for (int64_t j = 0; j < cols; j += kCols) {
      alignas(64) A totals[MR][kCols] = {};
      const Word* a = panel_a;
      int64_t pc = 0;
      if constexpr (PAIRS_CHUNKS) {
        const LanesAlongK<T, Op, 2> lanes(b + j * stride_b, stride_b, cols - j, kChunk);
        for (; pc + 2 * kChunk <= depth; pc += 2 * kChunk, a += 2 * chunk_words) {
          const auto acc = sums_of<MR>(lanes, pc, kChunk, ahead, a, chunk_words);
#pragma GCC unroll 2
          for (int chunk = 0; chunk < 2; ++chunk) add_to(totals, 0, acc, chunk, pc == 0 && chunk == 0);
        }
      }
      const LanesAlongK<T, Op, VECTORS> lanes(b + j * stride_b, stride_b, cols - j);
      for (; pc < depth; pc += kChunk, a += chunk_words) {
        const auto acc = sums_of<MR>(lanes, pc, min_of(kChunk, depth - pc), ahead, a, 0);
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
  static TILEDMM_INLINE Sums<MR, VECTORS> sums_of(const LanesAlongK<T, Op, VECTORS>& lanes, int64_t first,
                                                  int64_t count, int64_t ahead, const Word* a, int64_t step_a) {
    Sums<MR, VECTORS> sums;
    lanes.for_each_word(first, count, ahead, [&](int64_t word, int v, Reg<Word> frag_b) {
#pragma GCC unroll 8
      for (int i = 0; i < MR; ++i) {
        sums.of[i][v] = Op::multiply_add(broadcast(a[v * step_a + word * MR + i]), frag_b, sums.of[i][v]);
      }
    });
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

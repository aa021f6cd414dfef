// The path of rung 04 for small items that consist of words, of a batch or a single one: A is read where it lies, B too
// or, contiguous along k, from one strip of all its columns, and sums go from registers to C. So an item costs little
// more than its multiply-adds. Included once per instruction set by <isa>.cpp.
#pragma once

#include <array>
#include <type_traits>
#include <utility>

#include "core/executor.h"
#include "kernels/cpu/register_tiled/micro_kernel.h"
#include "kernels/cpu/register_tiled/plan.h"
#include "kernels/cpu/shared/pack.h"
#include "kernels/cpu/shared/parallel.h"
#include "kernels/cpu/shared/simd.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

// The products of one item, tile by tile, each output one chain in the order of k. Op::Word is the element's type.
template <class Op, bool ARE_NEIGHBOURS>
struct InPlaceItem {
  using Word = typename Op::Word;
  static constexpr int kLanes = Config<Op>::kLanes, kMaxRows = Config<Op>::kMaxThreadM;
  static constexpr bool kHasMasks = TILEDMM_VECTOR_BYTES == 64;
  static constexpr int kUnroll = 4;  // words of k at a time

  const GemmProblem& problem;
  const InPlaceTile tile;
  const int64_t stride_b;  // from word to word of k

  // Where a tile's operands and sums lie, of `words` of k. Of its last vector of columns `count` exist. C has the sums
  // of the chunks before, unless this one is the first.
  struct Place {
    RowsA a;
    const Word* b;
    Word* c;
    int64_t words, count;
    bool is_first;
  };

  void run(const Word* a, const Word* b, Word* c) const {
    const int64_t vectors = ceil_div(problem.n, kLanes);
    for (int64_t v = 0; v < vectors; v += tile.vectors) {
      const int64_t width = min_of(tile.vectors, vectors - v), j = v * kLanes;
      const int64_t count = min_of(kLanes, problem.n - j - (width - 1) * kLanes);
      const auto& of_rows = kTable[width - 1];
      for (int64_t i = 0; i < problem.m; i += tile.rows) {
        const Word* row = a + i * problem.stride_am;
        Place place{{nullptr, problem.stride_am * int64_t(sizeof(Word)), problem.stride_ak * int64_t(sizeof(Word))},
                    b + j,
                    c + i * problem.stride_cm + j,
                    0,
                    count,
                    true};
        int64_t k = 0;
        do {  // once for k = 0, too
          place.words = min_of(Config<Op>::kChunk, problem.k - k);
          place.a.base = reinterpret_cast<const char*>(row + k * problem.stride_ak);
          of_rows.of[min_of(tile.rows, problem.m - i) - 1](*this, place);
          k += place.words, place.b += place.words * stride_b, place.is_first = false;
        } while (k < problem.k);
      }
    }
  }

 private:
  using Multiply = void (*)(const InPlaceItem&, const Place&);
  struct OfRows {
    Multiply of[kMaxRows];
  };
  template <int ROWS, int VECTORS>
  static constexpr Multiply instance() {
    if constexpr (ROWS <= most_rows_in_place(kIsa, VECTORS)) return &InPlaceItem::multiply_tile<ROWS, VECTORS>;
    return nullptr;
  }
  template <int VECTORS, int... I>
  static constexpr OfRows of_rows(std::integer_sequence<int, I...>) {
    return {{instance<I + 1, VECTORS>()...}};
  }
  template <int... I>
  static constexpr std::array<OfRows, sizeof...(I)> of_widths(std::integer_sequence<int, I...>) {
    return {of_rows<I + 1>(std::make_integer_sequence<int, kMaxRows>{})...};
  }
  static constexpr std::array<OfRows, kMaxInPlaceVectors> kTable =
      of_widths(std::make_integer_sequence<int, kMaxInPlaceVectors>{});

  template <int ROWS, int VECTORS>
  static void multiply_tile(const InPlaceItem& item, const Place& place) {
    Reg<Word> acc[ROWS][VECTORS] = {};
    RowReader<ROWS, ARE_NEIGHBOURS> rows(place.a);
    const Word* b = place.b;
    int64_t left = place.words;
    // Rows of C come one after the other, while words are multiplied.
    const char* row_of_c = reinterpret_cast<const char*>(place.c);
    const int64_t c_bytes = item.problem.stride_cm * int64_t(sizeof(Word));
    for (int64_t rows_of_c = ROWS; left >= kUnroll; left -= kUnroll, --rows_of_c) {
      if (rows_of_c > 0) {
        __builtin_prefetch(row_of_c, 1);
        if constexpr (VECTORS > 1) __builtin_prefetch(row_of_c + VECTORS * TILEDMM_VECTOR_BYTES - 1, 1);
        row_of_c += c_bytes;
      }
      multiply_words(rows, b, item.stride_b, place.count, acc, std::make_integer_sequence<int, kUnroll>{});
    }
    for (; left > 0; --left) {
      multiply_words(rows, b, item.stride_b, place.count, acc, std::make_integer_sequence<int, 1>{});
    }
    Word* c = place.c;
#pragma GCC unroll 12
    for (int i = 0; i < ROWS; ++i, c += item.problem.stride_cm) {
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; ++v) {
        Word* const to = c + v * kLanes;
        const bool is_edge = kHasMasks && v == VECTORS - 1;
        if (!place.is_first) acc[i][v] = (is_edge ? load_partial(to, place.count) : load(to)) + acc[i][v];
        is_edge ? store_partial(to, acc[i][v], place.count) : store(to, acc[i][v]);
      }
    }
  }

  template <int ROWS, int VECTORS, int... WORD>
  static TILEDMM_INLINE void multiply_words(RowReader<ROWS, ARE_NEIGHBOURS>& rows, const Word*& b, int64_t stride_b,
                                            int64_t count, Reg<Word> (&acc)[ROWS][VECTORS],
                                            std::integer_sequence<int, WORD...>) {
    (multiply_word<WORD>(rows, b, stride_b, count, acc, std::make_integer_sequence<int, ROWS>{}), ...);
    if constexpr (!ARE_NEIGHBOURS) rows.template advance<Word>(sizeof...(WORD));
  }
  template <int WORD, int ROWS, int VECTORS, int... ROW>
  static TILEDMM_INLINE void multiply_word(RowReader<ROWS, ARE_NEIGHBOURS>& rows, const Word*& b, int64_t stride_b,
                                           int64_t count, Reg<Word> (&acc)[ROWS][VECTORS],
                                           std::integer_sequence<int, ROW...>) {
    Reg<Word> frag_b[VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) {
      frag_b[v] = kHasMasks && v == VECTORS - 1 ? load_partial(b + v * kLanes, count) : load(b + v * kLanes);
    }
    (multiply_row<ROW, WORD>(rows, frag_b, acc[ROW]), ...);
    b += stride_b;
    if constexpr (ARE_NEIGHBOURS) rows.template advance<Word>(1);
  }
  template <int ROW, int WORD, int ROWS, int VECTORS>
  static TILEDMM_INLINE void multiply_row(const RowReader<ROWS, ARE_NEIGHBOURS>& rows,
                                          const Reg<Word> (&frag_b)[VECTORS], Reg<Word> (&acc)[VECTORS]) {
    if constexpr (VECTORS == 1) {
      acc[0] = rows.template multiply_row<Op, ROW, WORD>(frag_b[0], acc[0]);
    } else {
      const Reg<Word> frag_a = rows.template broadcast_row<Op, Reg<Word>, ROW, WORD>();
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; ++v) acc[v] = Op::multiply_add(frag_a, frag_b[v], acc[v]);
    }
  }
};

// Items from `first` to `end`. From one to the next its operands move on, which costs a fifth of batch_item. A B along
// k is packed first, all of its columns as one strip.
template <class Op, bool ARE_NEIGHBOURS>
void run_items_in_place(const GemmProblem& problem, const InPlaceTile& tile, int64_t first, int64_t end,
                        typename Op::Word* packed_b) {
  using Word = typename Op::Word;
  const int dims = problem.num_batch_dims;
  const BatchDim dim = dims > 0 ? problem.batch_dims[dims - 1] : BatchDim{1, 0, 0, 0, 0};
  const int64_t strip = round_up(problem.n, Config<Op>::kLanes);
  const InPlaceItem<Op, ARE_NEIGHBOURS> product{problem, tile, tile.packs_b ? strip : problem.stride_bk};
  while (first < end) {
    const GemmProblem item = batch_item(problem, first);
    const auto *a = static_cast<const Word*>(item.a), *b = static_cast<const Word*>(item.b);
    auto* c = static_cast<Word*>(item.c);
    const int64_t count = min_of(end - first, dim.size - first % dim.size);
    first += count;
    for (int64_t i = 0; i < count; ++i, a += dim.stride_a, b += dim.stride_b, c += dim.stride_c) {
      if (tile.packs_b) {
        pack_strips<Word, Op>(b, problem.stride_bn, problem.stride_bk, problem.n, strip, problem.k, packed_b);
      }
      product.run(a, tile.packs_b ? packed_b : b, c);
    }
  }
}

template <class Op>
Status launch_in_place(const GemmProblem& problem, const InPlaceTile& tile, const Executor& executor) {
  using Word = typename Op::Word;
  const int64_t batch = batch_size(problem), num_tasks = ceil_div(batch, tile.task_items);
  const int64_t num_workers = min_of(executor.num_threads, num_tasks);
  const int64_t strip = tile.packs_b ? strip_size<Word>(round_up(problem.n, Config<Op>::kLanes), problem.k) : 0;
  Word* workspace = nullptr;
  if (tile.packs_b) {
    workspace = static_cast<Word*>(executor.allocate(executor.self, size_t(num_workers * strip) * sizeof(Word)));
    if (!workspace) return Status::out_of_memory;
  }
  for_each_task(executor, num_workers, num_tasks, [&](int64_t worker_idx, int64_t idx) {
    const int64_t first = idx * tile.task_items, end = min_of(batch, first + tile.task_items);
    Word* const packed_b = workspace + worker_idx * strip;
    problem.stride_am == 1 ? run_items_in_place<Op, true>(problem, tile, first, end, packed_b)
                           : run_items_in_place<Op, false>(problem, tile, first, end, packed_b);
  });
  if (workspace) executor.release(executor.self, workspace);
  return Status::ok;
}

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

// The micro-kernel of rung 04: a micro-tile of C in registers for a whole chunk of k.
// Included once per instruction set by <isa>.cpp.
#pragma once

#include <type_traits>

#include "kernels/cpu/register_tiled/plan.h"
#include "kernels/cpu/shared/pack.h"
#include "kernels/cpu/shared/simd.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

#if defined(TILEDMM_ISA_AVX512_BF16)
constexpr Isa kIsa = Isa::avx512_bf16;
#elif defined(TILEDMM_ISA_AVX512)
constexpr Isa kIsa = Isa::avx512;
#elif defined(TILEDMM_ISA_AVX2)
constexpr Isa kIsa = Isa::avx2;
#elif defined(TILEDMM_ISA_NEON)
constexpr Isa kIsa = Isa::neon;
#else
constexpr Isa kIsa = Isa::portable;
#endif

template <class Op>
struct Config {
  using Word = typename Op::Word;
  using Acc = typename Op::Acc;
  static constexpr int kLanes = Simd<Acc>::kLanes;
  static constexpr int kMaxThreadM = micro_tile(kIsa).max_thread_m;
  static constexpr int kThreadN = micro_tile(kIsa).vectors_n * kLanes;
  static constexpr int64_t kChunk = kChunkWords * Op::kPerWord;  // elements of k in a chunk
  static_assert(sizeof(Word) == sizeof(Acc), "a vector of words is summed in one vector of accumulators");
};

// Where a micro-tile's rows of A are: packed, or where they lie if no conversion is needed. Either the rows or the
// words of a row are neighbours in memory. Passed by reference: as a value g++ copies it with loads that wait for its
// stores to leave the core, and with them for every multiply-add before (50 cycles a micro-tile).
struct RowsA {
  const char* base;
  int64_t row_bytes;   // from row to row
  int64_t word_bytes;  // from word to word of k
};

// Packed columns come from the third-level cache a line at a time, one for so many words of k that are multiplied.
constexpr int kWordsOfLine = 4;
constexpr int64_t kWordsOfRow = 4;  // likewise, a row of C

// Where the columns of B are: packed; or, contiguous along n, where they lie, and the micro-kernel packs them on its
// way.
template <class Word>
struct ColsB {
  const Word* from;
  const char* next;        // packed columns that are used after these; they come meanwhile
  int64_t step = 0;        // from word to word of k, where they lie
  Word* packed = nullptr;  // where they go then
};

// Where the micro-tile's sums go: accumulators, to which they are added if C has parts of them, or C itself.
struct TileC {
  void* to;
  int64_t ld, cols;
  bool is_narrow;  // elements of C, in 16 bits; else accumulators
  bool accumulate;
  bool is_far;  // it comes from memory
};

// What of an operand is used next. It comes from memory while micro-tiles are multiplied, a piece every `interval`
// words of k: a burst would wait for memory, and the multiply-adds with it. Pieces that reach beyond the operand are
// harmless.
struct Ahead {
  static constexpr int kLines = 4, kBytes = kLines * 64;  // of a piece

  const char* piece = nullptr;
  int64_t lane_bytes = 0, lanes = 1;  // pieces side by side: one for each lane that is contiguous along k, else one
  int64_t step_bytes = 0, steps_left = 0;  // along k; none left: nothing to fetch
  int64_t interval = kChunkWords;
  int64_t lane = 0;

  TILEDMM_INLINE void fetch_piece() {
    if (steps_left == 0) return;
    const char* line = piece + lane * lane_bytes;
#pragma GCC unroll 4
    for (int i = 0; i < kLines; ++i) __builtin_prefetch(line + i * 64, 0, 2);
    __builtin_prefetch(line + kBytes - 1, 0, 2);  // a piece need not begin with a line
    if (++lane < lanes) return;
    lane = 0;
    piece += step_bytes;
    if (--steps_left == 0) interval = kChunkWords;
  }
};

#if defined(__x86_64__) && TILEDMM_VECTOR_BYTES > 16
#define TILEDMM_BROADCASTS_APART
#endif

// Words of A's rows in every lane. g++ has to be told how: on Intel a multiply-add and the load of its operand take one
// place in the core where the address is a register and a constant, and two where it is two registers. Places are the
// limit where another thread shares the core (17 cycles for 24 multiply-adds; 12 alone).
template <int MR, bool ARE_NEIGHBOURS>
struct RowReader {
  static constexpr int kBases = ARE_NEIGHBOURS ? 1 : (MR + 1) / 2;
  const char* bases[kBases];  // of the first row, if rows are neighbours; else of every second one
  int64_t row_bytes, word_bytes;

  TILEDMM_INLINE explicit RowReader(const RowsA& a) : row_bytes(a.row_bytes), word_bytes(a.word_bytes) {
#pragma GCC unroll 6
    for (int i = 0; i < kBases; ++i) bases[i] = a.base + 2 * i * a.row_bytes;
  }

  // Goes on by `words`: after each word if rows are neighbours, else after several, which are told apart by WORD.
  template <class Word>
  TILEDMM_INLINE void advance(int words) {
#pragma GCC unroll 6
    for (int i = 0; i < kBases; ++i) bases[i] += words * (ARE_NEIGHBOURS ? word_bytes : int64_t(sizeof(Word)));
  }

#define TILEDMM_OF_ROW(BEFORE, AFTER, ...)                                                          \
  constexpr int kOffset = (ARE_NEIGHBOURS ? ROW : WORD) * int(sizeof(typename Op::Word));           \
  const char* const base = bases[ARE_NEIGHBOURS ? 0 : ROW / 2];                                     \
  if constexpr (ARE_NEIGHBOURS || ROW % 2 == 0) {                                                   \
    asm(BEFORE "%c[offset](%[base])" AFTER : __VA_ARGS__, [base] "r"(base), [offset] "i"(kOffset)); \
  } else {                                                                                          \
    asm(BEFORE "%c[offset](%[base],%[row])" AFTER                                                   \
        : __VA_ARGS__, [base] "r"(base), [row] "r"(row_bytes), [offset] "i"(kOffset));              \
  }

  // The word of row ROW, for several vectors of B, by an instruction of its own.
  template <class Op, class R, int ROW, int WORD>
  TILEDMM_INLINE R broadcast_row() const {
    using Word = typename Op::Word;
#if defined(TILEDMM_BROADCASTS_APART)
    Reg<std::conditional_t<sizeof(Word) == 8, double, float>, int(sizeof(R))> row;
    if constexpr (sizeof(Word) == 8) {
      TILEDMM_OF_ROW("vbroadcastsd ", ", %0", "=v"(row) : "m"(*base))
    } else {
      TILEDMM_OF_ROW("vbroadcastss ", ", %0", "=v"(row) : "m"(*base))
    }
    return (R)row;
#else
    const char* const word = ARE_NEIGHBOURS ? bases[0] + ROW * sizeof(Word)
                                            : bases[ROW / 2] + ROW % 2 * row_bytes + WORD * int64_t(sizeof(Word));
    return broadcast<Word, int(sizeof(R))>(load_as<Word>(word));
#endif
  }

  // c + row ROW * b, for one vector of B: as an operand, where an instruction set has that. As an instruction a
  // broadcast would take the multiply-add's port every third time (Zen 4).
  template <class Op, int ROW, int WORD, class R, class S>
  TILEDMM_INLINE S multiply_row(R b, S c) const {
#if TILEDMM_VECTOR_BYTES == 64
    using Word = typename Op::Word;
    if constexpr (std::is_same_v<Word, double> && sizeof(R) == 64) {
      TILEDMM_OF_ROW("vfmadd231pd ", "%{1to8%}, %1, %0", "+v"(c) : "v"(b))
    } else if constexpr (std::is_same_v<Word, double>) {
      TILEDMM_OF_ROW("vfmadd231pd ", "%{1to4%}, %1, %0", "+v"(c) : "v"(b))
    } else if constexpr (Op::kPerWord == 1 && sizeof(R) == 64) {
      TILEDMM_OF_ROW("vfmadd231ps ", "%{1to16%}, %1, %0", "+v"(c) : "v"(b))
    } else if constexpr (Op::kPerWord == 1) {
      TILEDMM_OF_ROW("vfmadd231ps ", "%{1to8%}, %1, %0", "+v"(c) : "v"(b))
    } else if constexpr (sizeof(R) == 64) {
      TILEDMM_OF_ROW("vdpbf16ps ", "%{1to16%}, %1, %0", "+v"(c) : "v"(b))
    } else {
      TILEDMM_OF_ROW("vdpbf16ps ", "%{1to8%}, %1, %0", "+v"(c) : "v"(b))
    }
    return c;
#else
    return Op::multiply_add(broadcast_row<Op, R, ROW, WORD>(), b, c);
#endif
  }
#undef TILEDMM_OF_ROW
};

// C's micro-tile (+)= A * B: MR rows of A, and of B, [words of k][kThreadN], the first BYTES of each word's columns.
template <class T, class Op, int MR, int BYTES, bool ARE_NEIGHBOURS, bool PACKS_B = false>
class MicroTile {
  using Word = typename Op::Word;
  using Acc = typename Op::Acc;
  static constexpr int kLanes = Config<Op>::kLanes;
  static constexpr int kRegBytes = BYTES < TILEDMM_VECTOR_BYTES ? BYTES : TILEDMM_VECTOR_BYTES;
  static constexpr int kVectors = BYTES / kRegBytes;
  static constexpr int kUnroll = kVectors == 1 || TILEDMM_VECTOR_BYTES < 64 ? 1 : kWordsOfLine;  // words of k at a time
  using Sums = Reg<Acc, kRegBytes>;
  using Words = Reg<Word, kRegBytes>;
  using Rows = RowReader<MR, ARE_NEIGHBOURS>;

 public:
  static void multiply(int64_t num_words, const RowsA& a, const ColsB<Word>& cols, const TileC& c, Ahead& ahead) {
    constexpr auto kWords = std::make_integer_sequence<int, kUnroll>{};
    Sums acc[MR][kVectors] = {};
    Rows rows(a);
    ColsB<Word> b = cols;
    if constexpr (!PACKS_B) b.step = Config<Op>::kThreadN;
    // At first rows of C come, one after the other, each while some words are multiplied: all at once they would keep A
    // and B from coming. Then what is used next.
    int64_t rows_of_c = c.accumulate || c.is_far ? MR : 0;
    const int64_t bytes_of_c = c.is_narrow ? int64_t(sizeof(T)) : int64_t(sizeof(Acc));
    const char* row_of_c = static_cast<const char*>(c.to);
    const auto fetch_row = [&] {
      __builtin_prefetch(row_of_c, 1);
      __builtin_prefetch(row_of_c + c.cols * bytes_of_c - 1, 1);
      row_of_c += c.ld * bytes_of_c;
      --rows_of_c;
    };
    while (rows_of_c * kWordsOfRow > num_words) fetch_row();  // for which there are too few words
    int64_t interval = rows_of_c > 0 ? kWordsOfRow : ahead.interval;
    while (num_words > 0) {
      int64_t words = min_of(interval, num_words);
      num_words -= words;
      for (; words >= kUnroll; words -= kUnroll) {
        multiply_words(rows, b, acc, kWords);
        if constexpr (kUnroll == kWordsOfLine) {
          __builtin_prefetch(b.next, 0, 2);
          b.next += kLineBytes;
        }
      }
      if constexpr (kUnroll > 1) {
        for (; words > 0; --words) multiply_words(rows, b, acc, std::integer_sequence<int, 0>{});
      }
      if (rows_of_c > 0) {
        fetch_row();
        if (rows_of_c > 0) continue;
      } else {
        ahead.fetch_piece();
      }
      interval = ahead.interval;
    }
    if constexpr (!std::is_same_v<T, Acc>) {
      if (c.is_narrow) return store_rows<T>(acc, c);
    }
    store_rows<Acc>(acc, c);
  }

 private:
  template <int... WORD>
  static TILEDMM_INLINE void multiply_words(Rows& rows, ColsB<Word>& b, Sums (&acc)[MR][kVectors],
                                            std::integer_sequence<int, WORD...>) {
    (multiply_word<WORD>(rows, b, acc, std::make_integer_sequence<int, MR>{}), ...);
    if constexpr (!ARE_NEIGHBOURS) rows.template advance<Word>(sizeof...(WORD));
  }
  template <int WORD, int... ROW>
  static TILEDMM_INLINE void multiply_word(Rows& rows, ColsB<Word>& b, Sums (&acc)[MR][kVectors],
                                           std::integer_sequence<int, ROW...>) {
    Words frag_b[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      frag_b[v] = load_as<Words>(b.from + v * kLanes);
      if constexpr (PACKS_B) store(b.packed + v * kLanes, frag_b[v]);
    }
    (multiply_row<ROW, WORD>(rows, frag_b, acc[ROW]), ...);
    if constexpr (PACKS_B) b.packed += Config<Op>::kThreadN;
    b.from += b.step;
    if constexpr (ARE_NEIGHBOURS) rows.template advance<Word>(1);
  }
  // Every second row is an operand of its multiply-adds: a load for each, but no instruction of its own. All of them
  // would be 26 loads for 24 multiply-adds, and a cycle has two of either.
  template <int ROW, int WORD>
  static TILEDMM_INLINE void multiply_row(const Rows& rows, const Words (&frag_b)[kVectors], Sums (&acc)[kVectors]) {
    if constexpr (kVectors == 1 || (TILEDMM_VECTOR_BYTES == 64 && ROW % 2 == 0)) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) acc[v] = rows.template multiply_row<Op, ROW, WORD>(frag_b[v], acc[v]);
    } else {
      const Words frag_a = rows.template broadcast_row<Op, Words, ROW, WORD>();
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) acc[v] = Op::multiply_add(frag_a, frag_b[v], acc[v]);
    }
  }

  template <class Out>
  static TILEDMM_INLINE void store_rows(const Sums (&acc)[MR][kVectors], const TileC& c) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const int64_t count = min_of(kLanes, c.cols - v * kLanes);
      Out* row = static_cast<Out*>(c.to) + v * kLanes;
#pragma GCC unroll 12
      for (int i = 0; i < MR; ++i) {
        Reg<Acc> sum = widen<Acc>(acc[i][v]);
        if constexpr (std::is_same_v<Out, Acc>) {
          if (c.accumulate) sum += count == kLanes ? load(row) : load_partial(row, count);
        }
        store_converted(row, sum, count);
        row += c.ld;
      }
    }
  }
};

// The micro-kernel for `rows` of 1 .. kMaxThreadM and `cols` of 1 .. kThreadN: of all vectors of B, of one, or (512
// bits) of half of one. `packs_b`: of all that packs B on its way, which is for words as they lie. A converted A is
// packed, and its rows are neighbours then.
template <class T, class Op, int... I>
auto find_multiply(int64_t rows, int64_t cols, bool are_neighbours, bool packs_b, std::integer_sequence<int, I...>) {
  using Word = typename Op::Word;
  using Multiply = void (*)(int64_t, const RowsA&, const ColsB<Word>&, const TileC&, Ahead&);
  constexpr int kBytes = TILEDMM_VECTOR_BYTES, kHalf = kBytes == 64 ? 32 : kBytes;
  constexpr int kWhole = Config<Op>::kThreadN * int(sizeof(Word));
  constexpr bool kIsAsItLies = std::is_same_v<T, Word>;
  constexpr bool kIsPacked = !kIsAsItLies && Op::kPerWord == 1;
  static constexpr Multiply kTable[][sizeof...(I)] = {
      {MicroTile<T, Op, I + 1, kWhole, kIsPacked>::multiply...},
      {MicroTile<T, Op, I + 1, kBytes, kIsPacked>::multiply...},
      {MicroTile<T, Op, I + 1, kHalf, kIsPacked>::multiply...},
      {MicroTile<T, Op, I + 1, kWhole, kIsPacked, kIsAsItLies>::multiply...},
      {MicroTile<T, Op, I + 1, kWhole, true>::multiply...},
      {MicroTile<T, Op, I + 1, kBytes, true>::multiply...},
      {MicroTile<T, Op, I + 1, kHalf, true>::multiply...},
      {MicroTile<T, Op, I + 1, kWhole, true, kIsAsItLies>::multiply...}};
  const int width = packs_b ? 3 : cols > Config<Op>::kLanes ? 0 : cols > Config<Op>::kLanes / 2 ? 1 : 2;
  return kTable[4 * are_neighbours + width][rows - 1];
}

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

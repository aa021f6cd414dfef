// The micro-kernel of rung 04: a micro-tile of C in registers for a whole chunk of k.
// Included once per instruction set by 04_register_tiled_<isa>.cpp.
#pragma once

#include <type_traits>

#include "kernels/cpu/04_register_tiled/plan.h"
#include "platform/pack.h"
#include "platform/simd.h"

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

// Registers: kVectorsN accumulators a row, kVectorsN vectors of B (or operands from memory), 1 broadcast of A.
constexpr int kVectorsN = 4;
constexpr int kMaxThreadM = micro_tile(kIsa).max_thread_m, kThreadN = micro_tile(kIsa).thread_n;
static_assert(kThreadN == kVectorsN * kBlocks, "one column of C a block");

// Which way the vectors of B lie. Along n, A is read word by word: as part of the multiply-add in AVX-512, as an
// instruction of its own elsewhere, which makes the loads the limit. The bits are the same.
constexpr bool kIsAlongN = TILEDMM_VECTOR_BYTES == 64;

template <class Op>
struct Config {
  using Word = typename Op::Word;
  using Acc = typename Op::Acc;
  static constexpr int kLanes = Simd<Acc>::kLanes;
  static constexpr int kWords = Simd<Acc, kBlockBytes>::kLanes;  // of a block
  static constexpr int kStep = kWords * Op::kPerWord;            // elements of k in a block
  static constexpr int64_t kChunk = kChunkWords * Op::kPerWord;  // elements of k in a chunk
  static_assert(sizeof(Word) == sizeof(Acc), "a vector of words is summed in one vector of accumulators");
  static_assert(kVectorsN % kWords == 0, "sum_blocks takes as many vectors as a block has words");
  static_assert(kChunk % (4 * kStep) == 0, "chunks consist of whole passes of stream_rows");
};

// Where a micro-tile's rows of A are: packed, or where they lie if k is contiguous there and no conversion is needed.
// Passed by reference: as a value g++ copies it with loads that wait for its stores to leave the core, and with them
// for every multiply-add before (50 cycles a micro-tile).
struct RowsA {
  const char* base;
  int64_t row_bytes;   // from row to row
  int64_t word_bytes;  // from word to word of a block; read where the vectors of B lie along n
  int64_t step_bytes;  // from block to block along k
};

// What of B is packed next. It comes from memory while micro-tiles are multiplied, a piece every `interval` blocks of
// k: a burst would wait for memory, and the multiply-adds with it. Pieces that reach beyond B are harmless.
struct AheadB {
  static constexpr int kLines = 4, kBytes = kLines * 64;  // of a piece

  const char* piece = nullptr;
  int64_t lane_bytes = 0, lanes = 1;  // pieces side by side: one for each column that is contiguous along k, else one
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

// to (+)= A * B for one micro-tile: MR rows of A, B as [blocks of k][kThreadN blocks]. Writes columns < cols.
template <class Op, int MR, class OUT>
void multiply_along_k(int64_t num_words, const RowsA& a, const typename Op::Word* b, OUT* to, int64_t ld_to,
                      bool accumulate, int64_t cols, AheadB& ahead) {
  using Word = typename Op::Word;
  using Acc = typename Op::Acc;
  constexpr int kLanes = Config<Op>::kLanes, kWords = Config<Op>::kWords;
  Reg<Acc> acc[MR][kVectorsN] = {};
  const char* block_a = a.base;
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) __builtin_prefetch(to + i * ld_to, 1);  // C comes while A and B are multiplied
  for (int64_t blocks_left = ceil_div(num_words, kWords); blocks_left > 0;) {
    const int64_t blocks = min_of(ahead.interval, blocks_left);
    blocks_left -= blocks;
    for (int64_t block = 0; block < blocks; ++block) {
      Reg<Word> frag_b[kVectorsN];
#pragma GCC unroll 4
      for (int v = 0; v < kVectorsN; ++v) frag_b[v] = load(b + v * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < MR; ++i) {
        const auto frag_a = broadcast_block<Word>(block_a + i * a.row_bytes);
#pragma GCC unroll 4
        for (int v = 0; v < kVectorsN; ++v) acc[i][v] = Op::multiply_add(frag_a, frag_b[v], acc[i][v]);
      }
      block_a += a.step_bytes;
      b += kVectorsN * kLanes;
    }
    ahead.fetch_piece();
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
    for (int set = 0; set < kVectorsN / kWords; ++set) {
      Reg<Acc> parts[kWords];
#pragma GCC unroll 4
      for (int w = 0; w < kWords; ++w) parts[w] = acc[i][set * kWords + w];
      Reg<Acc> sum = sum_blocks<Acc>(parts);
      OUT* row = to + i * ld_to + set * kLanes;
      const int64_t count = min_of(kLanes, cols - set * kLanes);
      if (count <= 0) continue;
      if constexpr (std::is_same_v<OUT, Acc>) {
        if (accumulate) sum += count == kLanes ? load(row) : load_partial(row, count);
      }
      store_converted(row, sum, count);
    }
  }
}

// The sum of a block's chains, in registers of their own: the order of sum_blocks.
template <class R>
TILEDMM_INLINE R sum_chains(const R (&chains)[4]) {
  return (chains[0] + chains[2]) + (chains[1] + chains[3]);
}
template <class R>
TILEDMM_INLINE R sum_chains(const R (&chains)[2]) {
  return chains[0] + chains[1];
}

// multiply_along_k's sums with vectors along n and a register for each chain, so that nothing is added across lanes at
// the end.
// B as [blocks of k][vectors of columns][words of a block]; the first BYTES of each word's columns are computed.
template <class Op, int MR, int BYTES, class OUT>
void multiply_along_n(int64_t num_words, const RowsA& a, const typename Op::Word* b, OUT* to, int64_t ld_to,
                      bool accumulate, int64_t cols, AheadB& ahead) {
  using Word = typename Op::Word;
  using Acc = typename Op::Acc;
  constexpr int kLanes = Config<Op>::kLanes, kWords = Config<Op>::kWords;
  constexpr int kRegBytes = BYTES < TILEDMM_VECTOR_BYTES ? BYTES : TILEDMM_VECTOR_BYTES, kVectors = BYTES / kRegBytes;
  using Sums = Reg<Acc, kRegBytes>;
  Sums acc[MR][kVectors][kWords] = {};
  const char* row_a[MR];
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) row_a[i] = a.base + i * a.row_bytes;
  int64_t offset[kWords];  // of a block's words from a row's begin; they walk, the rows' begins stay
#pragma GCC unroll 4
  for (int w = 0; w < kWords; ++w) offset[w] = w * a.word_bytes;
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) __builtin_prefetch(to + i * ld_to, 1);
  const auto multiply_word = [&](int w) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const auto frag_b = load_as<Reg<Word, kRegBytes>>(b + (v * kWords + w) * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < MR; ++i) {
        acc[i][v][w] = Op::multiply_word(row_a[i] + offset[w], frag_b, acc[i][v][w]);
      }
    }
  };
  while (num_words >= kWords) {
    const int64_t blocks = min_of(ahead.interval, num_words / kWords);
    num_words -= blocks * kWords;
    for (int64_t block = 0; block < blocks; ++block) {
#pragma GCC unroll 4
      for (int w = 0; w < kWords; ++w) multiply_word(w);
#pragma GCC unroll 4
      for (int w = 0; w < kWords; ++w) offset[w] += a.step_bytes;
      b += kThreadN * kWords;
    }
    ahead.fetch_piece();
  }
  // Elsewhere the words of a block beyond k are zeros, whose products turn a chain of -0 into +0. So does this.
  const auto add_zero = [&](int w) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 8
      for (int i = 0; i < MR; ++i) acc[i][v][w] += Acc(0);
    }
  };
  if (num_words > 0) {
#pragma GCC unroll 4
    for (int w = 0; w < kWords; ++w) {
      if (w < num_words) {
        multiply_word(w);
      } else {
        add_zero(w);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      Reg<Acc> sum = widen<Acc>(sum_chains(acc[i][v]));
      OUT* row = to + i * ld_to + v * kLanes;
      const int64_t count = min_of(kLanes, cols - v * kLanes);
      if (count <= 0) continue;
      if constexpr (std::is_same_v<OUT, Acc>) {
        if (accumulate) sum += count == kLanes ? load(row) : load_partial(row, count);
      }
      store_converted(row, sum, count);
    }
  }
}

// The micro-kernel for 1 .. kMaxThreadM rows.
template <class Op, class OUT, int... I>
auto find_multiply(int64_t rows, int64_t cols, std::integer_sequence<int, I...>) {
  using Multiply = void (*)(int64_t, const RowsA&, const typename Op::Word*, OUT*, int64_t, bool, int64_t, AheadB&);
  if constexpr (kIsAlongN) {
    constexpr int kBytes = kThreadN * int(sizeof(typename Op::Word));
    static constexpr Multiply kWhole[] = {multiply_along_n<Op, I + 1, kBytes, OUT>...};
    static constexpr Multiply kHalf[] = {multiply_along_n<Op, I + 1, kBytes / 2, OUT>...};
    return (2 * cols > kThreadN ? kWhole : kHalf)[rows - 1];
  } else {
    static constexpr Multiply kTable[] = {multiply_along_k<Op, I + 1, OUT>...};
    return kTable[rows - 1];
  }
}

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

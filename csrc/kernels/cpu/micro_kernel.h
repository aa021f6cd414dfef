// The micro-kernel of rung 04: a micro-tile of C in registers for a whole chunk of k.
// Included once per instruction set by 04_register_tiled_<isa>.cpp.
#pragma once

#include <type_traits>

#include "core/config.h"
#include "platform/pack.h"
#include "platform/simd.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

// Registers: kVectorsN accumulators a row, kVectorsN vectors of B (or operands from memory), 1 broadcast of A.
constexpr int kVectorsN = 4;
#if TILEDMM_VECTOR_BYTES == 64
constexpr int kMaxThreadM = 6;  // 24 + 4 + 1 of 32
#elif defined(TILEDMM_ISA_NEON)
constexpr int kMaxThreadM = 5;  // 20 + 4 + 1 of 32
#elif TILEDMM_VECTOR_BYTES == 32
constexpr int kMaxThreadM = 3;  // 12 + 3 + 1 of 16
#else
constexpr int kMaxThreadM = 2;  // 8 + 4 + 1 of 16
#endif
constexpr int kThreadN = kVectorsN * kBlocks;  // one column of C a block

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
struct RowsA {
  const char* base;
  int64_t row_bytes;   // from row to row
  int64_t step_bytes;  // from block to block along k
};

// to (+)= A * B for one micro-tile: MR rows of A, B as [num_steps][kThreadN blocks]. Writes columns < cols.
template <class Op, int MR, class OUT>
void multiply(int64_t num_steps, RowsA a, const typename Op::Word* b, OUT* to, int64_t ld_to, bool accumulate,
              int64_t cols) {
  using Word = typename Op::Word;
  using Acc = typename Op::Acc;
  constexpr int kLanes = Config<Op>::kLanes, kWords = Config<Op>::kWords;
  Reg<Acc> acc[MR][kVectorsN] = {};
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) __builtin_prefetch(to + i * ld_to, 1);  // C comes while A and B are multiplied
  for (int64_t step = 0; step < num_steps; ++step) {
    Reg<Word> frag_b[kVectorsN];
#pragma GCC unroll 4
    for (int v = 0; v < kVectorsN; ++v) frag_b[v] = load(b + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      const auto frag_a = broadcast_block<Word>(a.base + i * a.row_bytes);
#pragma GCC unroll 4
      for (int v = 0; v < kVectorsN; ++v) acc[i][v] = Op::multiply_add(frag_a, frag_b[v], acc[i][v]);
    }
    a.base += a.step_bytes;
    b += kVectorsN * kLanes;
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

template <class Op, class OUT>
using Multiply = void (*)(int64_t, RowsA, const typename Op::Word*, OUT*, int64_t, bool, int64_t);

// The micro-kernel for 1 .. kMaxThreadM rows.
template <class Op, class OUT, int... I>
Multiply<Op, OUT> find_multiply(int64_t rows, std::integer_sequence<int, I...>) {
  static constexpr Multiply<Op, OUT> kTable[] = {multiply<Op, I + 1, OUT>...};
  return kTable[rows - 1];
}

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

// Which elements of a matrix instruction's operands each lane holds, as constexpr functions: plain data, the same on
// every platform, tested against the vendors' formulas.
//
// The unit is a word: one element, or two 16-bit elements that follow each other along k. `w` numbers a lane's words
// of A or B, `e` its elements of the accumulator.
//
// Sources: NVIDIA, PTX ISA, "Matrix Fragments for mma.m16n8k16 / m16n8k8 / m8n8k4"; AMD, matrix instruction calculator
// and the instruction set documents of CDNA3, RDNA3 and RDNA4.
#pragma once

namespace tiledmm {

// mma.sync m16n8k16 (fp16, bf16: a word is a pair) and m16n8k8 (tf32): the same places, counted in words.
struct LayoutM16N8 {
  static constexpr int kLanes = 32, kM = 16, kN = 8, kWordsK = 8;
  static constexpr int kWordsA = 4, kWordsB = 2, kAccs = 4;
  static constexpr int a_row(int lane, int w) { return lane / 4 + 8 * (w % 2); }
  static constexpr int a_word(int lane, int w) { return lane % 4 + 4 * (w / 2); }
  static constexpr int b_col(int lane, int) { return lane / 4; }
  static constexpr int b_word(int lane, int w) { return lane % 4 + 4 * w; }
  static constexpr int c_row(int lane, int e) { return lane / 4 + 8 * (e / 2); }
  static constexpr int c_col(int lane, int e) { return 2 * (lane % 4) + e % 2; }
};

// mma.sync m8n8k4 of fp64.
struct LayoutM8N8 {
  static constexpr int kLanes = 32, kM = 8, kN = 8, kWordsK = 4;
  static constexpr int kWordsA = 1, kWordsB = 1, kAccs = 2;
  static constexpr int a_row(int lane, int) { return lane / 4; }
  static constexpr int a_word(int lane, int) { return lane % 4; }
  static constexpr int b_col(int lane, int) { return lane / 4; }
  static constexpr int b_word(int lane, int) { return lane % 4; }
  static constexpr int c_row(int lane, int) { return lane / 4; }
  static constexpr int c_col(int lane, int e) { return 2 * (lane % 4) + e; }
};

// MFMA 16x16: WORDS of A and B a lane, 4 lane groups along k. fp32 16x16x4: 1 word; fp16, bf16 16x16x16: 2 pairs.
// fp64 16x16x4 has 1 word, too, but interleaves the rows of C.
template <int WORDS, bool ARE_ROWS_INTERLEAVED>
struct LayoutMfma16 {
  static constexpr int kLanes = 64, kM = 16, kN = 16, kWordsK = 4 * WORDS;
  static constexpr int kWordsA = WORDS, kWordsB = WORDS, kAccs = 4;
  static constexpr int a_row(int lane, int) { return lane % 16; }
  static constexpr int a_word(int lane, int w) { return WORDS * (lane / 16) + w; }
  static constexpr int b_col(int lane, int) { return lane % 16; }
  static constexpr int b_word(int lane, int w) { return WORDS * (lane / 16) + w; }
  static constexpr int c_row(int lane, int e) { return ARE_ROWS_INTERLEAVED ? 4 * e + lane / 16 : 4 * (lane / 16) + e; }
  static constexpr int c_col(int lane, int) { return lane % 16; }
};

// WMMA of RDNA3, 16x16x16 of fp16 and bf16 at wave 32: both halves of the lanes hold the whole of A and B.
struct LayoutWmmaRdna3 {
  static constexpr int kLanes = 32, kM = 16, kN = 16, kWordsK = 8;
  static constexpr int kWordsA = 8, kWordsB = 8, kAccs = 8;
  static constexpr int a_row(int lane, int) { return lane % 16; }
  static constexpr int a_word(int, int w) { return w; }
  static constexpr int b_col(int lane, int) { return lane % 16; }
  static constexpr int b_word(int, int w) { return w; }
  static constexpr int c_row(int lane, int e) { return 2 * e + lane / 16; }
  static constexpr int c_col(int lane, int) { return lane % 16; }
};

// WMMA of RDNA4: each half of the lanes holds half of k.
struct LayoutWmmaRdna4 {
  static constexpr int kLanes = 32, kM = 16, kN = 16, kWordsK = 8;
  static constexpr int kWordsA = 4, kWordsB = 4, kAccs = 8;
  static constexpr int a_row(int lane, int) { return lane % 16; }
  static constexpr int a_word(int lane, int w) { return 4 * (lane / 16) + w; }
  static constexpr int b_col(int lane, int) { return lane % 16; }
  static constexpr int b_word(int lane, int w) { return 4 * (lane / 16) + w; }
  static constexpr int c_row(int lane, int e) { return 8 * (lane / 16) + e; }
  static constexpr int c_col(int lane, int) { return lane % 16; }
};

}  // namespace tiledmm

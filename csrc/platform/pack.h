// Between memory and registers: conversion of the element types, packing of operands from any layout, and the
// multiply-add of packed words. One instruction set per translation unit, as in simd.h.
//
// A packed word holds what one lane of one multiply-add takes of an operand: one element converted to the accumulator's
// type, or a pair of neighbours in k where an instruction multiplies pairs. A block (128 bits) holds words that are
// neighbours in k: kBlockWords = 4, or 2 for fp64.
#pragma once

#include "platform/element.h"
#include "platform/simd.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm {
namespace {

// 16-bit patterns, each widened to the low half of a 32-bit lane.
template <int BYTES>
TILEDMM_INLINE Reg<uint32_t, BYTES> load_widened(const void* from) {
  const auto bits = load_as<Reg<uint16_t, BYTES / 2>>(static_cast<const uint16_t*>(from));
  return __builtin_convertvector(bits, Reg<uint32_t, BYTES>);
}

// Widening loads of BYTES of accumulators.
template <int BYTES>
TILEDMM_INLINE Reg<float, BYTES> load_converted(const float* from) {
  return load_as<Reg<float, BYTES>>(from);
}
template <int BYTES>
TILEDMM_INLINE Reg<double, BYTES> load_converted(const double* from) {
  return load_as<Reg<double, BYTES>>(from);
}
template <int BYTES>
TILEDMM_INLINE Reg<float, BYTES> load_converted(const BFloat16* from) {
  return (Reg<float, BYTES>)(load_widened<BYTES>(from) << 16);
}
template <int BYTES>
TILEDMM_INLINE Reg<float, BYTES> load_converted(const Half* from) {
#if TILEDMM_VECTOR_BYTES == 64
  if constexpr (BYTES == 64) {
    return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
#endif
#if TILEDMM_VECTOR_BYTES >= 32
  if constexpr (BYTES == 32) return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  if constexpr (BYTES == 16) return _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
#elif defined(TILEDMM_ISA_NEON)
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&from->bits)));
#else
  Reg<float, BYTES> v;
  for (int i = 0; i < BYTES / 4; ++i) v[i] = to_acc(from[i]);
  return v;
#endif
}

// Narrowing stores of the first `count` lanes, rounded to nearest even.
// No template for the first two: for a 16-bit T it would name a vector that does not exist.
TILEDMM_INLINE void store_converted(float* to, Reg<float> v, int64_t count) {
  count == Simd<float>::kLanes ? store(to, v) : store_partial(to, v, count);
}
TILEDMM_INLINE void store_converted(double* to, Reg<double> v, int64_t count) {
  count == Simd<double>::kLanes ? store(to, v) : store_partial(to, v, count);
}

template <class T>
TILEDMM_INLINE void store_bits(T* to, const void* bits, int64_t count) {
#if TILEDMM_VECTOR_BYTES == 64
  _mm256_mask_storeu_epi16(to, __mmask16((1u << count) - 1), *static_cast<const __m256i*>(bits));
#else
  count == Simd<float>::kLanes ? __builtin_memcpy(to, bits, Simd<float>::kLanes * sizeof(T))
                               : __builtin_memcpy(to, bits, size_t(count) * sizeof(T));
#endif
}

TILEDMM_INLINE void store_converted(BFloat16* to, Reg<float> v, int64_t count) {
#if defined(TILEDMM_ISA_AVX512_BF16)
  const __m256bh narrow = _mm512_cvtneps_pbh(v);
#else
  const auto bits = (Reg<uint32_t>)v;
  const Reg<uint32_t> rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Reg<uint32_t> quiet_nan = (bits >> 16) | 0x40;
  const auto is_nan = (Reg<uint32_t>)((bits & 0x7fffffff) > 0x7f800000);
  const auto narrow =
      __builtin_convertvector((quiet_nan & is_nan) | (rounded & ~is_nan), Reg<uint16_t, TILEDMM_VECTOR_BYTES / 2>);
#endif
  store_bits(to, &narrow, count);
}

TILEDMM_INLINE void store_converted(Half* to, Reg<float> v, int64_t count) {
#if TILEDMM_VECTOR_BYTES == 64
  const __m256i narrow = _mm512_maskz_cvtps_ph(0xffff, v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif TILEDMM_VECTOR_BYTES == 32
  const __m128i narrow = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(TILEDMM_ISA_NEON)
  const uint16x4_t narrow = vreinterpret_u16_f16(vcvt_f16_f32(v));
#else
  uint16_t narrow[Simd<float>::kLanes];
  for (int i = 0; i < Simd<float>::kLanes; ++i) narrow[i] = float_to_half(v[i]);
#endif
  store_bits(to, &narrow, count);
}

#if TILEDMM_VECTOR_BYTES == 64
// Widening loads of the lanes of eight that are set in `places`; the memory of the others is not touched.
constexpr int kPlaces = 8;
TILEDMM_INLINE Reg<float, 32> load_masked(const float* from, __mmask8 places) {
  return _mm256_maskz_loadu_ps(places, from);
}
TILEDMM_INLINE Reg<double> load_masked(const double* from, __mmask8 places) {
  return _mm512_maskz_loadu_pd(places, from);
}
TILEDMM_INLINE Reg<float, 32> load_masked(const BFloat16* from, __mmask8 places) {
  return (Reg<float, 32>)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_maskz_loadu_epi16(places, from)), 16);
}
TILEDMM_INLINE Reg<float, 32> load_masked(const Half* from, __mmask8 places) {
  return _mm256_cvtph_ps(_mm_maskz_loadu_epi16(places, from));
}
template <class T, class R>
TILEDMM_INLINE void store_masked(T* to, R words, __mmask8 places) {
  if constexpr (sizeof(R) == 32) {
    _mm256_mask_storeu_epi32(to, places, (__m256i)words);
  } else {
    _mm512_mask_storeu_epi64(to, places, (__m512i)words);
  }
}
#endif

// Packed words of one element each, and their fused multiply-add.
template <class T, class ACC>
struct Fma {
  using Word = ACC;
  using Acc = ACC;
  static constexpr int kPerWord = 1;

  template <class R>
  static TILEDMM_INLINE R multiply_add(R a, R b, R c) {
    return tiledmm::multiply_add(a, b, c);
  }
  // One word of A, at any address, with a vector of words of B.
  template <class R>
  static TILEDMM_INLINE R multiply_word(const char* a, R b, R c) {
    return tiledmm::multiply_add(broadcast<Word, int(sizeof(R))>(load_as<Word>(a)), b, c);
  }
  // BYTES of words that are neighbours along k; all of them exist.
  template <int BYTES>
  static TILEDMM_INLINE Reg<Word, BYTES> load_words(const T* from) {
    return load_converted<BYTES>(from);
  }
  // BYTES of words, one for each of the lanes that are neighbours in memory; all of them exist.
  template <int BYTES>
  static TILEDMM_INLINE Reg<Word, BYTES> load_lanes(const T* from, int64_t) {
    return load_converted<BYTES>(from);
  }
  // Loads two vectors of neighbours.
  static TILEDMM_INLINE void load_two(const T* from, int64_t, Reg<Word> (&words)[2]) {
    for (int i = 0; i < 2; ++i) words[i] = load_converted<TILEDMM_VECTOR_BYTES>(from + i * Simd<Word>::kLanes);
  }
#if TILEDMM_VECTOR_BYTES == 64
  // The first lanes of eight; the memory of the others is not touched.
  static TILEDMM_INLINE Reg<Word, kPlaces* int(sizeof(Word))> load_places(const T* from, int64_t, __mmask8 places,
                                                                          int64_t) {
    return load_masked(from, places);
  }
#endif
  static TILEDMM_INLINE Word load_word(const T* from, int64_t, int64_t) { return to_acc(*from); }
};

#if defined(TILEDMM_ISA_AVX512_BF16)
// Packed pairs (k, k + 1) of bf16 and their dot product into fp32: VDPBF16PS. It takes denormals as zero.
struct DotBf16 {
  using Word = uint32_t;
  using Acc = float;
  static constexpr int kPerWord = 2;

  static TILEDMM_INLINE Reg<Acc> multiply_add(Reg<Word> a, Reg<Word> b, Reg<Acc> c) {
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
  }
  static TILEDMM_INLINE Block<Acc> multiply_add(Block<Word> a, Block<Word> b, Block<Acc> c) {
    return _mm_dpbf16_ps(c, (__m128bh)a, (__m128bh)b);
  }
  // g++ 12 does not make the broadcast a part of the instruction by itself, and then the loads are the limit.
  static TILEDMM_INLINE Reg<Acc> multiply_word(const char* a, Reg<Word> b, Reg<Acc> c) {
    asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(c) : "v"(b), "m"(*reinterpret_cast<const char (*)[sizeof(Word)]>(a)));
    return c;
  }
  static TILEDMM_INLINE Reg<Acc, 32> multiply_word(const char* a, Reg<Word, 32> b, Reg<Acc, 32> c) {
    asm("vdpbf16ps %2%{1to8%}, %1, %0" : "+v"(c) : "v"(b), "m"(*reinterpret_cast<const char (*)[sizeof(Word)]>(a)));
    return c;
  }
  template <int BYTES>
  static TILEDMM_INLINE Reg<Word, BYTES> load_words(const BFloat16* from) {
    return load_as<Reg<Word, BYTES>>(from);
  }
  template <int BYTES>
  static TILEDMM_INLINE Reg<Word, BYTES> load_lanes(const BFloat16* from, int64_t stride_k) {
    return load_widened<BYTES>(from) | load_widened<BYTES>(from + stride_k) << 16;
  }
  static TILEDMM_INLINE void load_two(const BFloat16* from, int64_t stride_k, Reg<Word> (&words)[2]) {
    const __m512i even = _mm512_loadu_si512(from), odd = _mm512_loadu_si512(from + stride_k);
    words[0] = interleave<0>(even, odd, std::make_integer_sequence<int, 32>{});
    words[1] = interleave<16>(even, odd, std::make_integer_sequence<int, 32>{});
  }
  static TILEDMM_INLINE Reg<Word, 32> load_places(const BFloat16* from, int64_t stride_k, __mmask8 places,
                                                  int64_t depth) {
    const __m128i even = _mm_maskz_loadu_epi16(places, from);
    const __m128i odd = _mm_maskz_loadu_epi16(depth > 1 ? places : __mmask8(0), from + stride_k);
    return (Reg<Word, 32>)_mm256_set_m128i(_mm_unpackhi_epi16(even, odd), _mm_unpacklo_epi16(even, odd));
  }
  // The word at `from`, of which `depth` elements exist.
  static TILEDMM_INLINE Word load_word(const BFloat16* from, int64_t stride_k, int64_t depth) {
    return from->bits | (depth > 1 ? uint32_t(from[stride_k].bits) << 16 : 0);
  }

 private:
  template <int FIRST, int... I>
  static TILEDMM_INLINE Reg<Word> interleave(__m512i even, __m512i odd, std::integer_sequence<int, I...>) {
    return (Reg<Word>)__builtin_shufflevector((Reg<uint16_t>)even, (Reg<uint16_t>)odd,
                                              (FIRST + I / 2 + (I % 2 ? 32 : 0))...);
  }
};
#endif

// `bytes` of 1 .. 64 to memory of 64, the rest 0; nothing beyond them is read.
TILEDMM_INLINE void load_first(const void* from, int64_t bytes, void* to) {
#if TILEDMM_VECTOR_BYTES == 64
  _mm512_storeu_si512(to, _mm512_maskz_loadu_epi8(~uint64_t(0) >> (64 - bytes), from));
#else
  __builtin_memset(to, 0, 64);
  __builtin_memcpy(to, from, size_t(bytes));
#endif
}

// As Op::load_words where `depth` elements exist; the rest is 0.
template <class T, class Op, int BYTES>
TILEDMM_INLINE Reg<typename Op::Word, BYTES> load_words(const T* from, int64_t depth) {
  constexpr int64_t kElements = BYTES / int(sizeof(typename Op::Word)) * Op::kPerWord;
  if (depth >= kElements) return Op::template load_words<BYTES>(from);
  alignas(64) T near[64 / sizeof(T)];
  load_first(from, depth * int64_t(sizeof(T)), near);
  return Op::template load_words<BYTES>(near);
}

// A word of each of `count` lanes, of which `depth` elements exist, may be none; the rest is 0.
template <class T, class Op>
TILEDMM_INLINE Reg<typename Op::Word> load_lanes(const T* from, int64_t stride_lane, int64_t stride_k, int64_t count,
                                                 int64_t depth) {
  using Word = typename Op::Word;
  constexpr int64_t kLanes = Simd<Word>::kLanes;
  if (stride_lane == 1 && count >= kLanes && depth >= Op::kPerWord) {
    return Op::template load_lanes<TILEDMM_VECTOR_BYTES>(from, stride_k);
  }
  alignas(64) Word words[kLanes] = {};
  if (depth > 0 && stride_lane == 1) {
    constexpr int64_t kNear = 64 / sizeof(T);
    alignas(64) T near[Op::kPerWord * kNear] = {};
    for (int64_t p = 0; p < min_of(Op::kPerWord, depth); ++p) {
      load_first(from + p * stride_k, min_of(kLanes, count) * int64_t(sizeof(T)), near + p * kNear);
    }
    return Op::template load_lanes<TILEDMM_VECTOR_BYTES>(near, kNear);
  }
  for (int64_t l = 0; depth > 0 && l < min_of(kLanes, count); ++l) {
    words[l] = Op::load_word(from + l * stride_lane, stride_k, depth);
  }
  return load(words);
}

// kWords words of k for `count` columns of B, `depth` deep, as pack_strip wants them. Inline, and so without a test
// where count and depth are constants.
template <class T, class Op, bool IS_ALONG_N>
TILEDMM_INLINE void pack_set(const T* from, int64_t stride_lane, int64_t stride_k, int64_t count, int64_t depth,
                             typename Op::Word* to) {
  using Word = typename Op::Word;
  constexpr int kWords = Simd<Word, kBlockBytes>::kLanes;
  Reg<Word> words[kWords];
#pragma GCC unroll 4
  for (int w = 0; w < kWords; ++w) {
    const int64_t k = w * Op::kPerWord;
    words[w] = load_lanes<T, Op>(from + k * stride_k, stride_lane, stride_k, count, depth - k);
  }
  if constexpr (!IS_ALONG_N) transpose_in_blocks<Word>(words);
#pragma GCC unroll 4
  for (int w = 0; w < kWords; ++w) store(to + w * Simd<Word>::kLanes, words[w]);
}

// The same from columns contiguous along k, kBlocks times as deep; of its `steps` exist.
template <class T, class Op, bool IS_ALONG_N>
TILEDMM_INLINE void pack_sets(const T* from, int64_t stride_lane, int64_t count, int64_t depth, int64_t steps,
                              typename Op::Word* to, int64_t step_words) {
  using Word = typename Op::Word;
  constexpr int kWords = Simd<Word, kBlockBytes>::kLanes;
  Reg<Word> blocks[kWords][kBlocks];
#pragma GCC unroll 4
  for (int w = 0; w < kWords; ++w) {
#pragma GCC unroll 4
    for (int g = 0; g < kBlocks; ++g) {
      const T* column = from + min_of(w + g * kWords, count - 1) * stride_lane;
      blocks[w][g] = load_words<T, Op, TILEDMM_VECTOR_BYTES>(column, depth);
    }
    transpose_blocks<Word>(blocks[w]);
  }
#pragma GCC unroll 4
  for (int g = 0; g < kBlocks; ++g) {
    if (g >= steps) break;
    Reg<Word> words[kWords];
#pragma GCC unroll 4
    for (int w = 0; w < kWords; ++w) words[w] = blocks[w][g];
    if constexpr (IS_ALONG_N) transpose_in_blocks<Word>(words);
#pragma GCC unroll 4
    for (int w = 0; w < kWords; ++w) store(to + g * step_words + w * Simd<Word>::kLanes, words[w]);
  }
}

// Two sets of columns that are neighbours in memory, all of which exist.
template <class T, class Op, bool IS_ALONG_N>
TILEDMM_INLINE void pack_two_sets(const T* from, int64_t stride_k, typename Op::Word* const (&to)[2]) {
  using Word = typename Op::Word;
  constexpr int kWords = Simd<Word, kBlockBytes>::kLanes;
  Reg<Word> words[2][kWords];
#pragma GCC unroll 4
  for (int w = 0; w < kWords; ++w) {
    Reg<Word> both[2];
    Op::load_two(from + w * Op::kPerWord * stride_k, stride_k, both);
    words[0][w] = both[0];
    words[1][w] = both[1];
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    if constexpr (!IS_ALONG_N) transpose_in_blocks<Word>(words[i]);
#pragma GCC unroll 4
    for (int w = 0; w < kWords; ++w) store(to[i] + w * Simd<Word>::kLanes, words[i][w]);
  }
}

// Packs columns of B in strips of STRIP, strip_words a lane apart, each [steps of k][sets of kLanes columns][words of a
// block], a word a full vector. IS_ALONG_N: word w of every column of the set. Otherwise a block along k of the columns
// w, w + kWords, ..., so that sum_blocks leaves the columns in their order. Words beyond the depth are 0, columns
// beyond the last are any value.
template <class T, class Op, int STRIP, bool IS_ALONG_N>
void pack_strips(const T* from, int64_t stride_lane, int64_t stride_k, int64_t cols, int64_t depth,
                 typename Op::Word* to, int64_t strip_words) {
  constexpr int kWords = Simd<typename Op::Word, kBlockBytes>::kLanes, kLanes = kWords * kBlocks;
  constexpr int kStep = kWords * Op::kPerWord;  // elements of k in a block
  const int64_t steps = ceil_div(depth, kStep), step_words = STRIP * kWords;
  const auto corner = [&](int64_t step, int64_t j) { return from + j * stride_lane + step * kStep * stride_k; };
  const auto set = [&](int64_t step, int64_t j) {
    return to + j / STRIP * STRIP * strip_words + step * step_words + j % STRIP * kWords;
  };
  if (stride_k == 1 && stride_lane != 1) {
    for (int64_t strip = 0; strip < cols; strip += STRIP) {
      for (int64_t step = 0; step < steps; step += kBlocks) {
        for (int64_t j = strip; j < min_of(strip + STRIP, cols); j += kLanes) {
          const int64_t count = min_of(kLanes, cols - j), rest = depth - step * kStep;
          if (count == kLanes && rest >= kBlocks * kStep) {
            pack_sets<T, Op, IS_ALONG_N>(corner(step, j), stride_lane, kLanes, kBlocks * kStep, kBlocks, set(step, j),
                                         step_words);
          } else {
            pack_sets<T, Op, IS_ALONG_N>(corner(step, j), stride_lane, count, rest, steps - step, set(step, j),
                                         step_words);
          }
        }
      }
    }
    return;
  }
  const int64_t pairs = stride_lane == 1 ? cols / (2 * kLanes) * (2 * kLanes) : 0;
  for (int64_t step = 0; step < steps; ++step) {
    int64_t j = 0;
    if ((step + 1) * kStep <= depth) {
      for (; j < pairs; j += 2 * kLanes) {
        pack_two_sets<T, Op, IS_ALONG_N>(corner(step, j), stride_k, {set(step, j), set(step, j + kLanes)});
      }
    }
    for (; j < cols; j += kLanes) {
      pack_set<T, Op, IS_ALONG_N>(corner(step, j), stride_lane, stride_k, cols - j, depth - step * kStep, set(step, j));
    }
  }
}

// Packs rows of A: strips of `strip` rows (the last one may have fewer), strip_words a row apart, each
// [steps of k][rows][block]. Words beyond the depth are 0.
template <class T, class Op>
void pack_rows(const T* from, int64_t stride_lane, int64_t stride_k, int64_t rows, int64_t strip, int64_t depth,
               typename Op::Word* to, int64_t strip_words) {
  using Word = typename Op::Word;
  constexpr int kWords = Simd<Word, kBlockBytes>::kLanes, kLanes = kWords * kBlocks;
  constexpr int kStep = kWords * Op::kPerWord;
  const int64_t steps = ceil_div(depth, kStep);
  if (stride_k == 1 && stride_lane != 1) {
    // A cache line of every row at a time, so that a strip is written front to back.
    constexpr int64_t kLineSteps = 4;
    for (int64_t row = 0; row < rows; row += strip) {
      const int64_t places = min_of(strip, rows - row);
      for (int64_t line = 0; line < steps; line += kLineSteps) {
        for (int64_t i = 0; i < places; ++i) {
          for (int64_t step = line; step < min_of(line + kLineSteps, steps); ++step) {
            store(to + row * strip_words + (step * places + i) * kWords,
                  load_words<T, Op, kBlockBytes>(from + (row + i) * stride_lane + step * kStep, depth - step * kStep));
          }
        }
      }
    }
    return;
  }
  // Groups of rows that are read as one contiguous run for every k.
  constexpr int64_t kGroup = 64;
  Word* block_of[kGroup];
  int64_t step_of[kGroup];
  for (int64_t row = 0; row < rows; row += kGroup) {
    const int64_t group = min_of(kGroup, rows - row);
    for (int64_t i = 0; i < group; ++i) {
      const int64_t first = (row + i) / strip * strip, places = min_of(strip, rows - first);
      block_of[i] = to + first * strip_words + (row + i - first) * kWords;
      step_of[i] = places * kWords;
    }
    for (int64_t step = 0; step < steps; ++step) {
      for (int64_t i = 0; i < group; i += kLanes) {
        const T* corner = from + (row + i) * stride_lane + step * kStep * stride_k;
        Reg<Word> words[kWords];  // transposed: block g of register w belongs to row g * kWords + w
#pragma GCC unroll 4
        for (int w = 0; w < kWords; ++w) {
          words[w] = load_lanes<T, Op>(corner + w * Op::kPerWord * stride_k, stride_lane, stride_k, group - i,
                                       depth - step * kStep - w * Op::kPerWord);
        }
        transpose_in_blocks<Word>(words);
#pragma GCC unroll 4
        for (int g = 0; g < kBlocks; ++g) {
#pragma GCC unroll 4
          for (int w = 0; w < kWords; ++w) {
            const int64_t lane = i + g * kWords + w;
            if (lane < group) store(block_of[lane] + step * step_of[lane], block_at<Word>(words[w], g));
          }
        }
      }
    }
  }
}

#if TILEDMM_VECTOR_BYTES == 64
// Packs rows with neighbours in m side by side, as column-major A has them: strips of [words of k][rows].
template <class T, class Op>
void pack_rows_along_m(const T* from, int64_t stride_lane, int64_t stride_k, int64_t rows, int64_t strip, int64_t depth,
                       typename Op::Word* to, int64_t strip_words) {
  constexpr int kWords = Simd<typename Op::Word, kBlockBytes>::kLanes, kStep = kWords * Op::kPerWord;
  const int64_t group = 64 / strip * strip;  // rows that are read as one contiguous run for every k
  for (int64_t first = 0; first < rows; first += group) {
    for (int64_t k = 0; k < depth; k += kStep) {
      for (int64_t row = first; row < min_of(first + group, rows); row += strip) {
        const int64_t places = min_of(strip, rows - row);
        const auto mask = __mmask8((1 << places) - 1);
        const T* corner = from + row * stride_lane + k * stride_k;
        auto* place = to + row * strip_words + k / Op::kPerWord * places;
        if (stride_lane == 1 && depth - k >= kStep) {
#pragma GCC unroll 4
          for (int w = 0; w < kWords; ++w) {
            store_masked(place + w * places,
                         Op::load_places(corner + w * Op::kPerWord * stride_k, stride_k, mask, kStep), mask);
          }
          continue;
        }
        for (int64_t p = k; p < min_of(k + kStep, depth); p += Op::kPerWord) {
          for (int64_t i = 0; i < places; ++i) {
            *place++ = Op::load_word(from + (row + i) * stride_lane + p * stride_k, stride_k, depth - p);
          }
        }
      }
    }
  }
}
#endif

}  // namespace
}  // namespace tiledmm
TILEDMM_TARGET_END

// Between memory and registers: conversion of the element types, packing of operands from any layout, and the
// multiply-add of packed words. One instruction set per translation unit, as in simd.h.
//
// A packed word holds what one lane of one multiply-add takes of an operand: one element converted to the accumulator's
// type, or a pair of neighbours in k where an instruction multiplies pairs.
#pragma once

#include "platform/element.h"
#include "platform/simd.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm {
namespace {

constexpr int kPrefetchBytes = 512;  // ahead of a packed row: the streams are too many for the hardware to follow

template <class T, int COUNT>
struct Memory {
  typedef T type __attribute__((vector_size(sizeof(T) * COUNT)));
};

// Widening loads of a whole vector.
TILEDMM_INLINE Reg<float> load_converted(const float* from) { return load(from); }
TILEDMM_INLINE Reg<double> load_converted(const double* from) { return load(from); }

// 16-bit patterns, each widened to the low half of a 32-bit lane.
TILEDMM_INLINE Reg<uint32_t> load_widened(const void* from) {
  typename Memory<uint16_t, Simd<float>::kLanes>::type bits;
  __builtin_memcpy(&bits, from, sizeof bits);
  return __builtin_convertvector(bits, Reg<uint32_t>);
}

TILEDMM_INLINE Reg<float> load_converted(const BFloat16* from) { return (Reg<float>)(load_widened(from) << 16); }

TILEDMM_INLINE Reg<float> load_converted(const Half* from) {
#if TILEDMM_VECTOR_BYTES == 64
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(TILEDMM_ISA_AVX2)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif defined(TILEDMM_ISA_NEON)
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&from->bits)));
#else
  Reg<float> v;
  for (int i = 0; i < Simd<float>::kLanes; ++i) v[i] = to_acc(from[i]);
  return v;
#endif
}

// Narrowing stores of the first `count` lanes, rounded to nearest even.
template <class T>
TILEDMM_INLINE void store_converted(T* to, Reg<T> v, int64_t count) {
  count == Simd<T>::kLanes ? store(to, v) : store_partial(to, v, count);
}

template <class T>
TILEDMM_INLINE void store_bits(T* to, const void* bits, int64_t count) {
  count == Simd<float>::kLanes ? __builtin_memcpy(to, bits, Simd<float>::kLanes * sizeof(T))
                               : __builtin_memcpy(to, bits, size_t(count) * sizeof(T));
}

TILEDMM_INLINE void store_converted(BFloat16* to, Reg<float> v, int64_t count) {
  const auto bits = (Reg<uint32_t>)v;
  const Reg<uint32_t> rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Reg<uint32_t> quiet_nan = (bits >> 16) | 0x40;
  const auto is_nan = (Reg<uint32_t>)((bits & 0x7fffffff) > 0x7f800000);
  const auto narrow = __builtin_convertvector((quiet_nan & is_nan) | (rounded & ~is_nan),
                                              typename Memory<uint16_t, Simd<float>::kLanes>::type);
  store_bits(to, &narrow, count);
}

TILEDMM_INLINE void store_converted(Half* to, Reg<float> v, int64_t count) {
#if TILEDMM_VECTOR_BYTES == 64
  const __m256i narrow = _mm512_maskz_cvtps_ph(0xffff, v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(TILEDMM_ISA_AVX2)
  const __m128i narrow = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(TILEDMM_ISA_NEON)
  const uint16x4_t narrow = vreinterpret_u16_f16(vcvt_f16_f32(v));
#else
  uint16_t narrow[Simd<float>::kLanes];
  for (int i = 0; i < Simd<float>::kLanes; ++i) narrow[i] = float_to_half(v[i]);
#endif
  store_bits(to, &narrow, count);
}

// Packed words of one element each, and their fused multiply-add.
template <class T, class ACC>
struct Fma {
  using Word = ACC;
  using Acc = ACC;
  static constexpr int kPerWord = 1;

  static TILEDMM_INLINE Reg<Acc> multiply_add(Reg<Word> a, Reg<Word> b, Reg<Acc> c) {
    return tiledmm::multiply_add(a, b, c);
  }
  // A vector of words of neighbours in memory; `count` of them exist.
  static TILEDMM_INLINE Reg<Word> load_neighbours(const T* from, int64_t count) {
    constexpr int kLanes = Simd<Word>::kLanes;
    if (count >= kLanes) return load_converted(from);
    T near[kLanes] = {};
    for (int64_t i = 0; i < count; ++i) near[i] = from[i];
    return load_converted(near);
  }
  // One word for each of `count` lanes that are neighbours in memory.
  static TILEDMM_INLINE Reg<Word> load_lanes(const T* from, int64_t, int64_t, int64_t count) {
    return load_neighbours(from, count);
  }
  // One vector of words of one lane, neighbours along k.
  static TILEDMM_INLINE Reg<Word> load_words(const T* from, int64_t depth) { return load_neighbours(from, depth); }
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
  static TILEDMM_INLINE Reg<Word> load_lanes(const BFloat16* from, int64_t stride_k, int64_t depth, int64_t count) {
    constexpr int kLanes = Simd<Word>::kLanes;
    BFloat16 near[2][kLanes] = {};
    const BFloat16 *low = from, *high = from + stride_k;
    if (count < kLanes) {
      for (int64_t i = 0; i < count; ++i) near[0][i] = low[i];
      for (int64_t i = 0; i < count && depth > 1; ++i) near[1][i] = high[i];
      low = near[0];
      high = near[1];
    }
    return depth > 1 ? load_widened(low) | load_widened(high) << 16 : load_widened(low);
  }
  static TILEDMM_INLINE Reg<Word> load_words(const BFloat16* from, int64_t depth) {
    constexpr int kElements = 2 * Simd<Word>::kLanes;
    if (depth >= kElements) return load(reinterpret_cast<const Word*>(from));
    BFloat16 near[kElements] = {};
    for (int64_t i = 0; i < depth; ++i) near[i] = from[i];
    return load(reinterpret_cast<const Word*>(near));
  }
  static TILEDMM_INLINE Word load_word(const BFloat16* from, int64_t stride_k, int64_t depth) {
    return from->bits | (depth > 1 ? uint32_t(from[stride_k].bits) << 16 : 0);
  }
};
#endif

// Packs `lanes` rows (of A) or columns (of B), `depth` deep in k, as to[word][ld]; lanes <= ld and lanes beyond are 0
// where ld is a multiple of the vector. May write one vector past the end when ld is less than a vector.
template <class T, class Op>
void pack_strip(const T* from, int64_t stride_lane, int64_t stride_k, int64_t lanes, int64_t depth,
                typename Op::Word* to, int64_t ld) {
  using Word = typename Op::Word;
  constexpr int kLanes = Simd<Word>::kLanes;
  const int64_t words = ceil_div(depth, Op::kPerWord);
  const int64_t step = stride_k * Op::kPerWord;
  const bool is_whole_vectors = ld % kLanes == 0 || ld < kLanes;  // else a store would reach into the next word
  if (stride_lane == 1 && lanes > 1 && is_whole_vectors) {
    for (int64_t p = 0; p < words; ++p) {
      for (int64_t l = 0; l < lanes; l += kLanes) {
        store(to + p * ld + l, Op::load_lanes(from + p * step + l, stride_k, depth - p * Op::kPerWord, lanes - l));
      }
    }
  } else if (stride_k == 1 && lanes > 4 && is_whole_vectors) {
    for (int64_t p = 0; p < words; p += kLanes) {
      for (int64_t l = 0; l < lanes; l += kLanes) {
        Reg<Word> block[kLanes];
        const T* corner = from + l * stride_lane + p * Op::kPerWord;
        const int64_t left = depth - p * Op::kPerWord;
        if (lanes - l >= kLanes && left >= kLanes * Op::kPerWord) {
#pragma GCC unroll 16
          for (int i = 0; i < kLanes; ++i) {
            block[i] = Op::load_words(corner + i * stride_lane, kLanes * Op::kPerWord);
            __builtin_prefetch(corner + i * stride_lane + kPrefetchBytes / int(sizeof(T)));
          }
        } else {
          for (int i = 0; i < kLanes; ++i) {
            block[i] = i < lanes - l ? Op::load_words(corner + i * stride_lane, left) : Reg<Word>{};
          }
        }
        transpose<Word>(block);
        Word* corner_to = to + p * ld + l;
        if (words - p >= kLanes) {
#pragma GCC unroll 16
          for (int i = 0; i < kLanes; ++i) store(corner_to + i * ld, block[i]);
        } else {
          for (int i = 0; i < words - p; ++i) store(corner_to + i * ld, block[i]);
        }
      }
    }
  } else {
    for (int64_t p = 0; p < words; ++p) {
      for (int64_t l = 0; l < lanes; ++l) {
        to[p * ld + l] = Op::load_word(from + l * stride_lane + p * step, stride_k, depth - p * Op::kPerWord);
      }
      for (int64_t l = lanes; l < ld; ++l) to[p * ld + l] = 0;
    }
  }
}

}  // namespace
}  // namespace tiledmm
TILEDMM_TARGET_END

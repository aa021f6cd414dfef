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
  template <int BYTES>
  static TILEDMM_INLINE Reg<Word, BYTES> load_words(const BFloat16* from) {
    return load_as<Reg<Word, BYTES>>(from);
  }
  template <int BYTES>
  static TILEDMM_INLINE Reg<Word, BYTES> load_lanes(const BFloat16* from, int64_t stride_k) {
    return load_widened<BYTES>(from) | load_widened<BYTES>(from + stride_k) << 16;
  }
  // The word at `from`, of which `depth` elements exist.
  static TILEDMM_INLINE Word load_word(const BFloat16* from, int64_t stride_k, int64_t depth) {
    return from->bits | (depth > 1 ? uint32_t(from[stride_k].bits) << 16 : 0);
  }
};
#endif

// Ahead of a row of B: the rows are too many streams for the hardware to follow. Into the second level, since rows that
// are a power of two apart fall into one set of the first.
constexpr int64_t kPrefetchBytes = 1024;

// A packed panel of `lanes` rows of A or columns of B: strips of `strip` lanes, each [steps of k][places][block].
template <class Word, bool IS_B>
struct PanelLayout {
  static constexpr int64_t kWords = Simd<Word, kBlockBytes>::kLanes, kSet = kWords * kBlocks;
  int64_t lanes, strip, steps;

  // Places in the strip that holds `lane`: B's are padded, so that whole vectors of it can be read.
  int64_t places(int64_t lane) const { return IS_B ? strip : min_of(strip, lanes - lane / strip * strip); }
  // Rows of A stand in their order; columns of B so that sum_blocks leaves them in their order.
  int64_t place(int64_t lane) const {
    const int64_t l = lane % strip;
    return IS_B ? l / kSet * kSet + l % kWords * kBlocks + l % kSet / kWords : l;
  }
  // The block of `lane` in step 0; one step on is step_words(lane) further.
  Word* first_block(Word* panel, int64_t lane) const {
    return panel + (lane / strip * strip * steps + place(lane)) * kWords;
  }
  int64_t step_words(int64_t lane) const { return places(lane) * kWords; }
};

// A whole strip of B, `whole_steps` deep, in full vectors. Returns the steps packed: none if B has no unit stride.
template <class T, class Op>
int64_t pack_strip_vectors(const T* from, int64_t stride_lane, int64_t stride_k, int64_t strip, int64_t whole_steps,
                           typename Op::Word* to) {
  using Word = typename Op::Word;
  constexpr int kWords = Simd<Word, kBlockBytes>::kLanes, kLanes = kWords * kBlocks;
  constexpr int kStep = kWords * Op::kPerWord;
  if (stride_lane == 1) {
    for (int64_t step = 0; step < whole_steps; ++step) {
      for (int64_t l = 0; l < strip; l += kLanes) {
        Reg<Word> rows[kWords];
        const T* corner = from + l + step * kStep * stride_k;
#pragma GCC unroll 4
        for (int w = 0; w < kWords; ++w) {
          rows[w] = Op::template load_lanes<TILEDMM_VECTOR_BYTES>(corner + w * Op::kPerWord * stride_k, stride_k);
        }
        transpose_in_blocks<Word>(rows);
#pragma GCC unroll 4
        for (int w = 0; w < kWords; ++w) store(to + (step * strip + l) * kWords + w * kLanes, rows[w]);
      }
    }
    return whole_steps;
  }
  if (stride_k != 1) return 0;
  const int64_t steps = whole_steps / kBlocks * kBlocks;
  for (int64_t step = 0; step < steps; step += kBlocks) {
    for (int64_t l = 0; l < strip; l += kLanes) {
#pragma GCC unroll 4
      for (int w = 0; w < kWords; ++w) {
        Reg<Word> lanes[kBlocks];  // lanes w, w + kWords, ...: the blocks of one vector of every step
        const T* corner = from + (l + w) * stride_lane + step * kStep;
#pragma GCC unroll 4
        for (int g = 0; g < kBlocks; ++g) {
          lanes[g] = Op::template load_words<TILEDMM_VECTOR_BYTES>(corner + g * kWords * stride_lane);
          __builtin_prefetch(corner + g * kWords * stride_lane + kPrefetchBytes / int(sizeof(T)), 0, 2);
        }
        transpose_blocks<Word>(lanes);
#pragma GCC unroll 4
        for (int g = 0; g < kBlocks; ++g) store(to + ((step + g) * strip + l) * kWords + w * kLanes, lanes[g]);
      }
    }
  }
  return steps;
}

// Packs `lanes` lanes, `depth` deep in k. Words beyond the depth are 0, and so are B's places without a lane.
template <class T, class Op, bool IS_B>
void pack_panel(const T* from, int64_t stride_lane, int64_t stride_k, int64_t lanes, int64_t strip, int64_t depth,
                typename Op::Word* to) {
  using Word = typename Op::Word;
  constexpr int kWords = Simd<Word, kBlockBytes>::kLanes, kLanes = kWords * kBlocks;
  constexpr int kStep = kWords * Op::kPerWord;  // elements of k in a block
  const int64_t whole_steps = depth / kStep;
  const PanelLayout<Word, IS_B> layout{lanes, strip, ceil_div(depth, kStep)};
  // Lanes below first_lane are packed down to packed_steps.
  int64_t first_lane = 0, packed_steps = whole_steps;
  if (IS_B && lanes == strip) {
    packed_steps = pack_strip_vectors<T, Op>(from, stride_lane, stride_k, strip, whole_steps, to);
    first_lane = lanes;
  } else if (stride_lane == 1) {
    // Groups of lanes that are read as one contiguous run in every row of k.
    constexpr int64_t kGroup = 64;
    Word* block_of[kGroup];
    int64_t step_of[kGroup];
    while (first_lane + kWords <= lanes) {
      const int64_t group = min_of(kGroup, (lanes - first_lane) / kWords * kWords);
      for (int64_t l = 0; l < group; ++l) {
        block_of[l] = layout.first_block(to, first_lane + l);
        step_of[l] = layout.step_words(first_lane + l);
      }
      for (int64_t step = 0; step < whole_steps; ++step) {
        const T* corner = from + first_lane + step * kStep * stride_k;
        int64_t l = 0;
        for (; l + kLanes <= group; l += kLanes) {
          Reg<Word> rows[kWords];  // transposed: block g of register w belongs to lane g * kWords + w
#pragma GCC unroll 4
          for (int w = 0; w < kWords; ++w) {
            rows[w] = Op::template load_lanes<TILEDMM_VECTOR_BYTES>(corner + l + w * Op::kPerWord * stride_k, stride_k);
          }
          transpose_in_blocks<Word>(rows);
#pragma GCC unroll 4
          for (int g = 0; g < kBlocks; ++g) {
#pragma GCC unroll 4
            for (int w = 0; w < kWords; ++w) {
              const int64_t lane = l + g * kWords + w;
              store(block_of[lane] + step * step_of[lane], block_at<Word>(rows[w], g));
            }
          }
        }
        for (; l < group; l += kWords) {
          Block<Word> block[kWords];
#pragma GCC unroll 4
          for (int w = 0; w < kWords; ++w) {
            block[w] = Op::template load_lanes<kBlockBytes>(corner + l + w * Op::kPerWord * stride_k, stride_k);
          }
          transpose_in_blocks<Word>(block);
#pragma GCC unroll 4
          for (int w = 0; w < kWords; ++w) store(block_of[l + w] + step * step_of[l + w], block[w]);
        }
      }
      first_lane += group;
    }
  } else if (stride_k == 1) {
    // A cache line of every lane at a time, so that a strip is written front to back.
    constexpr int64_t kLineSteps = 4;
    for (int64_t lane = 0; lane < lanes; lane += strip) {
      const int64_t places = layout.places(lane);
      for (int64_t line = 0; line < whole_steps; line += kLineSteps) {
        const int64_t line_steps = min_of(kLineSteps, whole_steps - line);
        for (int64_t l = lane; l < min_of(lane + strip, lanes); ++l) {
          const T* row = from + l * stride_lane + line * kStep;
          Word* block = layout.first_block(to, l) + line * places * kWords;
          for (int64_t step = 0; step < line_steps; ++step) {
            store(block + step * places * kWords, Op::template load_words<kBlockBytes>(row + step * kStep));
          }
        }
      }
    }
    first_lane = lanes;
  }
  // What is left: single lanes, all steps of any other layout, and the last steps where they are not whole.
  for (int64_t lane = 0; lane < lanes; ++lane) {
    Word* block = layout.first_block(to, lane);
    for (int64_t step = lane < first_lane ? packed_steps : 0; step < layout.steps; ++step) {
      for (int w = 0; w < kWords; ++w) {
        const int64_t k = step * kStep + w * Op::kPerWord;
        block[step * layout.step_words(lane) + w] =
            k < depth ? Op::load_word(from + lane * stride_lane + k * stride_k, stride_k, depth - k) : Word(0);
      }
    }
  }
  for (int64_t lane = lanes; IS_B && lane % strip; ++lane) {
    for (int64_t step = 0; step < layout.steps; ++step) {
      store(layout.first_block(to, lane) + step * layout.step_words(lane), Block<Word>{});
    }
  }
}

}  // namespace
}  // namespace tiledmm
TILEDMM_TARGET_END

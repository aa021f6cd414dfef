// Between memory and registers: conversion of the element types, packing of operands from any layout, and the
// multiply-add of packed words. One instruction set per translation unit, as in simd.h.
//
// A packed word holds what one lane of one multiply-add takes of an operand: one element converted to the accumulator's
// type, or a pair of neighbours in k where an instruction multiplies pairs. A lane is a row of A or a column of B.
#pragma once

#include "kernels/cpu/shared/simd.h"
#include "platform/element.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm {
namespace {

constexpr int kLineBytes = 64;  // of a cache
constexpr int kPackWords = 8;   // along k, of neighbours in memory that are packed at a time

// 16-bit patterns, each widened to the low half of a 32-bit lane.
template <int BYTES>
TILEDMM_INLINE Reg<uint32_t, BYTES> load_widened(const void* from) {
  const auto bits = load_as<Reg<uint16_t, BYTES / 2>>(static_cast<const uint16_t*>(from));
#if TILEDMM_VECTOR_BYTES == 64
  // GCC 12 would widen one half after the other.
  if constexpr (BYTES == 64) return (Reg<uint32_t, BYTES>)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)bits);
#endif
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
// 16-bit patterns of Half as floats.
template <class R>
TILEDMM_INLINE auto convert_halves(R bits) {
#if TILEDMM_VECTOR_BYTES == 64
  if constexpr (sizeof(R) == 32) return (Reg<float, 64>)_mm512_maskz_cvtph_ps(0xffff, (__m256i)bits);
#endif
#if TILEDMM_VECTOR_BYTES >= 32
  if constexpr (sizeof(R) == 16) return (Reg<float, 32>)_mm256_cvtph_ps((__m128i)bits);
#elif defined(TILEDMM_ISA_NEON)
  return (Reg<float>)vcvt_f32_f16(vreinterpret_f16_u16((uint16x4_t)bits));
#else
  Reg<float> v;
  for (int i = 0; i < Simd<float>::kLanes; ++i) v[i] = half_to_float(bits[i]);
  return v;
#endif
}
template <int BYTES>
TILEDMM_INLINE Reg<float, BYTES> load_converted(const Half* from) {
  return convert_halves(load_as<Reg<uint16_t, BYTES / 2>>(from));
}

// Numbers of 8 bits as floats. A processor may take fp32's denormals for zeros, so that none of them is one.
template <DType DTYPE, int BYTES = TILEDMM_VECTOR_BYTES>
TILEDMM_INLINE Reg<float, BYTES> load_float8(const void* from) {
  constexpr bool kIsE4m3 = DTYPE == DType::e4m3;
  constexpr uint32_t kShift = kIsE4m3 ? 20 : 21, kRebias = (kIsE4m3 ? 120u : 112u) << 23,
                     kLeastNormal = kIsE4m3 ? 8 : 4;
  constexpr float kOfUnit = kIsE4m3 ? 0x1p-9f : 0x1p-16f;
  using Bits = Reg<uint32_t, BYTES>;
  const Bits bits = __builtin_convertvector(load_as<Reg<uint8_t, BYTES / 4>>(static_cast<const uint8_t*>(from)), Bits);
  const Bits number = bits & 0x7f;
  const auto denormal = __builtin_convertvector((Reg<int32_t, BYTES>)number, Reg<float, BYTES>) * kOfUnit;
  Bits value = number < kLeastNormal ? (Bits)denormal : (number << kShift) + kRebias;
  if constexpr (kIsE4m3)
    value = number == 0x7f ? Bits{} + 0x7fc00000 : value;
  else
    value = number >= 0x7c ? number << kShift | 0x7f800000 : value;
  return (Reg<float, BYTES>)(value | (bits & 0x80) << 24);
}
template <int BYTES>
TILEDMM_INLINE Reg<float, BYTES> load_converted(const E4m3* from) {
  return load_float8<DType::e4m3, BYTES>(from);
}

// A number of e4m3 in bf16, which holds it exactly.
constexpr uint32_t bf16_of_e4m3(uint32_t number) {
  uint32_t magnitude = number & 0x7f, exponent = 121;
  const uint32_t sign = (number & 0x80) << 8;
  if (magnitude == 0x7f) return sign | 0x7ff0;
  if (magnitude >= 8 || magnitude == 0) return sign | (magnitude ? (magnitude << 4) + (120 << 7) : 0);
  for (; magnitude < 8; magnitude *= 2) --exponent;
  return sign | exponent << 7 | (magnitude & 7) << 4;
}

#if defined(TILEDMM_LOOKS_UP)
// bf16's lower byte of a normal number of e4m3 is the number's last four bits, and the upper one a function of the
// others. The bytes of numbers below 8 and of NaN differ from that: by what stands at 14 - number, and at 15.
struct E4m3Tables {
  uint8_t upper[64] = {}, upper_change[64] = {}, lower_change[64] = {};  // the same 16 for each packet

  constexpr E4m3Tables() {
    for (uint32_t place = 0; place < 64; ++place) {
      const uint32_t i = place % 16, number = i == 15 ? 0x7f : 14 - i, as_normal = (number << 4) + (120 << 7);
      const uint32_t change = number < 8 || number == 0x7f ? bf16_of_e4m3(number) ^ as_normal : 0;
      upper[place] = uint8_t((i & 8) << 4 | (60 + (i & 7)));
      upper_change[place] = uint8_t(change >> 8), lower_change[place] = uint8_t(change);
    }
  }
};
alignas(64) constexpr E4m3Tables kE4m3Tables;
#else
struct E4m3Table {
  uint16_t bf16[256] = {};

  constexpr E4m3Table() {
    for (uint32_t number = 0; number < 256; ++number) bf16[number] = uint16_t(bf16_of_e4m3(number));
  }
};
constexpr E4m3Table kE4m3Table;
#endif

// Numbers of e4m3 in bf16: the first half of each packet becomes one of `first`, the second half one of `second`.
TILEDMM_INLINE void widen_e4m3(Reg<uint8_t> numbers, Reg<uint8_t>& first, Reg<uint8_t>& second) {
#if defined(TILEDMM_LOOKS_UP)
  const Reg<uint8_t> change = subtract_saturated(broadcast<uint8_t>(15), (numbers & 0x7f) + 1);  // of NaN 15 + 128
  const Reg<uint8_t> upper = look_up(kE4m3Tables.upper, numbers >> 4) ^ look_up(kE4m3Tables.upper_change, change);
  // Shifts are of 16 bits: g++ makes four additions of a shift of bytes.
  const Reg<uint8_t> last_bits = (Reg<uint8_t>)((Reg<uint16_t>)numbers << 4) & 0xf0;
  const Reg<uint8_t> lower = last_bits ^ look_up(kE4m3Tables.lower_change, change);
  first = interleave<uint8_t, 1, false>(lower, upper);
  second = interleave<uint8_t, 1, true>(lower, upper);
#else
  uint16_t wide[sizeof numbers];
  for (size_t i = 0; i < sizeof numbers; ++i) wide[i] = kE4m3Table.bf16[numbers[i]];
  __builtin_memcpy(&first, wide, sizeof first);
  __builtin_memcpy(&second, wide + sizeof numbers / 2, sizeof second);
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

// Packed words of one element each, and their fused multiply-add.
template <class T, class ACC>
struct Fma {
  using Word = ACC;
  using Acc = ACC;
  using Element = ACC;  // of memory that consists of words
  template <class U>
  using Of = Fma<U, ACC>;
  static constexpr int kPerWord = 1;

  template <class R>
  static TILEDMM_INLINE R multiply_add(R a, R b, R c) {
    return tiledmm::multiply_add(a, b, c);
  }
  // A vector of neighbours along k; all of them exist.
  static TILEDMM_INLINE Reg<Word> load_words(const T* from) { return load_converted<TILEDMM_VECTOR_BYTES>(from); }
  // A word of each of the lanes that are neighbours in memory; all of them exist.
  static TILEDMM_INLINE Reg<Word> load_lanes(const T* from, int64_t) {
    return load_converted<TILEDMM_VECTOR_BYTES>(from);
  }
  // A word of each of twice as many lanes.
  static TILEDMM_INLINE void load_two(const T* from, int64_t, Reg<Word>* words) {
    for (int i = 0; i < 2; ++i) words[i] = load_converted<TILEDMM_VECTOR_BYTES>(from + i * Simd<Word>::kLanes);
  }
  static TILEDMM_INLINE Word load_word(const T* from, int64_t, int64_t) { return to_acc(*from); }

  // What is transposed as one: a word as it lies in memory, or two neighbours of 16 bits, widened to them or not.
  using Unit = std::conditional_t<sizeof(T) <= 2, uint32_t, ACC>;
  static constexpr int kUnitWords = sizeof(T) <= 2 ? 2 : 1;
  static TILEDMM_INLINE void split(Reg<Unit> unit, Reg<Word>* words) {
    if constexpr (kUnitWords == 1) {
      words[0] = unit;
    } else if constexpr (!std::is_same_v<T, Half>) {
      words[0] = (Reg<Word>)(unit << 16);
      words[1] = (Reg<Word>)(unit & 0xffff0000);
    } else {
      using Halves = Reg<uint16_t, TILEDMM_VECTOR_BYTES / 2>;
#if TILEDMM_VECTOR_BYTES == 32
      // All first halves, then all second ones: 5 instructions, where g++ makes 9 of the lines below.
      const __m256i order =
          _mm256_set_epi64x(0x0f0e0b0a07060302, 0x0d0c090805040100, 0x0f0e0b0a07060302, 0x0d0c090805040100);
      const __m256i sorted = _mm256_permute4x64_epi64(_mm256_shuffle_epi8((__m256i)unit, order), 0xd8);
      words[0] = convert_halves((Halves)_mm256_castsi256_si128(sorted));
      words[1] = convert_halves((Halves)_mm256_extracti128_si256(sorted, 1));
#else
      words[0] = convert_halves(__builtin_convertvector(unit & 0xffff, Halves));
      words[1] = convert_halves(__builtin_convertvector(unit >> 16, Halves));
#endif
    }
  }
};

#if defined(TILEDMM_ISA_AVX512_BF16)
// Packed pairs (k, k + 1) of bf16, or of what is widened to it, and their dot product into fp32: VDPBF16PS. It takes
// denormals as zero.
template <class T>
struct DotBf16 {
  using Word = uint32_t;
  using Acc = float;
  using Element = BFloat16;
  template <class U>
  using Of = DotBf16<U>;
  static constexpr int kPerWord = 2;

  static TILEDMM_INLINE Reg<Acc> multiply_add(Reg<Word> a, Reg<Word> b, Reg<Acc> c) {
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
  }
  static TILEDMM_INLINE Reg<Word> load_words(const BFloat16* from) { return load_as<Reg<Word>>(from); }
  static TILEDMM_INLINE Reg<Word> load_lanes(const T* from, int64_t stride_k) {
    return load_lane(from) | load_lane(from + stride_k) << 16;
  }
  static TILEDMM_INLINE void load_two(const E4m3* from, int64_t stride_k, Reg<Word>* words) {
    for (int i = 0; i < 2; ++i) words[i] = load_lanes(from + i * Simd<Word>::kLanes, stride_k);
  }
  static TILEDMM_INLINE void load_two(const BFloat16* from, int64_t stride_k, Reg<Word>* words) {
    const __m512i even = _mm512_loadu_si512(from), odd = _mm512_loadu_si512(from + stride_k);
    words[0] = interleave_rows<0>(even, odd, std::make_integer_sequence<int, 32>{});
    words[1] = interleave_rows<16>(even, odd, std::make_integer_sequence<int, 32>{});
  }
  // The word at `from`, of which `depth` elements exist.
  static TILEDMM_INLINE Word load_word(const T* from, int64_t stride_k, int64_t depth) {
    return bits_of(to_acc(*from)) >> 16 | (depth > 1 ? bits_of(to_acc(from[stride_k])) : 0);
  }

  using Unit = Word;
  static constexpr int kUnitWords = 1;
  static TILEDMM_INLINE void split(Reg<Unit> unit, Reg<Word>* words) { words[0] = unit; }

 private:
  // An element of each lane.
  static TILEDMM_INLINE Reg<Word> load_lane(const BFloat16* from) { return load_widened<TILEDMM_VECTOR_BYTES>(from); }
  static TILEDMM_INLINE Reg<Word> load_lane(const E4m3* from) {
    return (Reg<Word>)load_converted<TILEDMM_VECTOR_BYTES>(from) >> 16;
  }
  template <int FIRST, int... I>
  static TILEDMM_INLINE Reg<Word> interleave_rows(__m512i even, __m512i odd, std::integer_sequence<int, I...>) {
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

// A word of each of `count` lanes, of which `depth` elements exist, at least one; the rest is 0.
template <class T, class Op>
TILEDMM_INLINE Reg<typename Op::Word> load_lanes(const T* from, int64_t stride_lane, int64_t stride_k, int64_t count,
                                                 int64_t depth) {
  using Word = typename Op::Word;
  constexpr int64_t kLanes = Simd<Word>::kLanes;
  if (stride_lane == 1 && count >= kLanes && depth >= Op::kPerWord) return Op::load_lanes(from, stride_k);
  if constexpr (std::is_same_v<T, Word>) {
    if (stride_lane == 1) return load_partial(from, min_of(kLanes, count));
  } else if (stride_lane == 1) {
    constexpr int64_t kNear = 64 / sizeof(T);
    alignas(64) T near[Op::kPerWord * kNear] = {};
    for (int64_t p = 0; p < min_of(Op::kPerWord, depth); ++p) {
      load_first(from + p * stride_k, min_of(kLanes, count) * int64_t(sizeof(T)), near + p * kNear);
    }
    return Op::load_lanes(near, kNear);
  }
  alignas(64) Word words[kLanes] = {};
  for (int64_t l = 0; l < min_of(kLanes, count); ++l) {
    words[l] = Op::load_word(from + l * stride_lane, stride_k, depth);
  }
  return load(words);
}

// Word WORD of each of as many lanes as a vector has, of WORDS words each, that follow each other.
template <int WORDS, int WORD, class R, int... LANE>
TILEDMM_INLINE R pick_word(const R* loaded, std::integer_sequence<int, LANE...>) {
  constexpr int kLanes = sizeof...(LANE);
  R picked = __builtin_shufflevector(loaded[0], loaded[1], ((LANE * WORDS + WORD) % (2 * kLanes))...);
  if constexpr (WORDS > 2) {
    picked = __builtin_shufflevector(
        picked, loaded[2], ((LANE * WORDS + WORD) / kLanes == 2 ? (LANE * WORDS + WORD) % kLanes + kLanes : LANE)...);
  }
  if constexpr (WORDS > 3) {
    picked = __builtin_shufflevector(
        picked, loaded[3], ((LANE * WORDS + WORD) / kLanes == 3 ? (LANE * WORDS + WORD) % kLanes + kLanes : LANE)...);
  }
  return picked;
}
template <int WORDS, class R, int... WORD>
TILEDMM_INLINE void pick_words(const R* loaded, R* words, std::integer_sequence<int, WORD...>) {
  constexpr auto kLanes = std::make_integer_sequence<int, int(sizeof(R) / sizeof(R{}[0]))>{};
  ((words[WORD] = pick_word<WORDS, WORD>(loaded, kLanes)), ...);
}

// The words of lanes that follow each other in memory: the first ones, the second ones, and so on.
template <int WORDS, class Word>
TILEDMM_INLINE void load_apart(const Word* from, Reg<Word>* words) {
  Reg<Word> loaded[WORDS];
#pragma GCC unroll 4
  for (int i = 0; i < WORDS; ++i) loaded[i] = load(from + i * Simd<Word>::kLanes);
  pick_words<WORDS>(loaded, words, std::make_integer_sequence<int, WORDS>{});
}

// Lanes that are contiguous along k, as many as VECTORS have; those beyond the last one repeat it. Or, `step` elements
// further along k for each vector, the same lanes again.
template <class T, class Op, int VECTORS = 1>
struct LanesAlongK {
  using Word = typename Op::Word;
  using Unit = typename Op::Unit;
  static constexpr int kLanes = Simd<Word>::kLanes;
  static constexpr int kPacketUnits = kPacketBytes / int(sizeof(Unit)), kPacketElements = kPacketBytes / int(sizeof(T));
  static constexpr int kWidth = sizeof(T) == 1 ? 2 : 1;  // of widened elements over those in memory
  static constexpr int kPacketsOfStep = kPackets > kWidth ? kPackets / kWidth : 1;  // of a lane

  struct NoFetch {
    TILEDMM_INLINE void fetch_ahead(const LanesAlongK&, int64_t) const {}
  };

  const T* lane[VECTORS * kLanes];
  int64_t count;

  TILEDMM_INLINE LanesAlongK(const T* from, int64_t stride_lane, int64_t num_lanes)
      : count(min_of(num_lanes, VECTORS * kLanes)) {
    for (int l = 0; l < VECTORS * kLanes; ++l) lane[l] = from + min_of(l, count - 1) * stride_lane;
  }
  TILEDMM_INLINE LanesAlongK(const T* from, int64_t stride_lane, int64_t num_lanes, int64_t step)
      : count(VECTORS * kLanes) {
    for (int l = 0; l < VECTORS * kLanes; ++l)
      lane[l] = from + min_of(l % kLanes, num_lanes - 1) * stride_lane + l / kLanes * step;
  }

  static constexpr int kStep = kPacketsOfStep * kPacketElements;  // elements of a lane that are used at a time

  // use(word, vector, its lanes) for every word of `depth` elements from k_first on, in their order. Before those of a
  // step, fetcher.fetch_ahead(these lanes, its first element): a method that is always inline, since g++ leaves out
  // calls of a function that only fetches.
  template <class Use, class Fetcher = NoFetch>
  TILEDMM_INLINE void for_each_word(int64_t k_first, int64_t depth, const Use& use, const Fetcher& fetcher = {}) const {
    int64_t k = 0;
    for (; k + kStep <= depth; k += kStep) {
      fetcher.fetch_ahead(*this, k_first + k);
      use_packets<kPacketsOfStep>(k_first, k, use);
    }
    if constexpr (kPacketsOfStep > 1) {
      for (; k + kPacketElements <= depth; k += kPacketElements) use_packets<1>(k_first, k, use);
    }
    // What is left is the end of a packet that begins earlier.
    const int64_t end = depth / Op::kPerWord * Op::kPerWord;
    if (k < end && end >= kPacketElements) {
      use_packets<1>(k_first, end - kPacketElements, [&](int64_t word, int vector, Reg<Word> words) {
        if (word * Op::kPerWord >= k) use(word, vector, words);
      });
      k = end;
    }
    for (; k < depth; k += Op::kPerWord) {
      alignas(64) Word words[VECTORS * kLanes] = {};
      for (int64_t l = 0; l < count; ++l) words[l] = Op::load_word(lane[l] + k_first + k, 1, depth - k);
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v) use(k / Op::kPerWord, v, load(words + v * kLanes));
    }
  }

 private:
  // COUNT packets of every lane, put side by side as they are loaded and then transposed: half of the shuffles of a
  // transposition in registers. All of a lane's at once, since lanes may be so far apart that the nearest cache cannot
  // hold a line of each.
  template <int COUNT, class Use>
  TILEDMM_INLINE void use_packets(int64_t k_first, int64_t k, const Use& use) const {
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; ++v) {
      constexpr int kWideCount = COUNT * kWidth;
      Reg<Unit> units[kWideCount * kPacketUnits] = {};
      if constexpr (kPackets == 4 && COUNT % 2 == 0) {
#pragma GCC unroll 4
        for (int r = 0; r < kPacketUnits; ++r) {
          load_four_lanes<kPacketUnits, COUNT>(&lane[v * kLanes + r], k_first + k, &units[r]);
        }
      } else {
        insert_lanes<COUNT, 0>(v * kLanes, k_first + k, units);
      }
      if constexpr (kWidth > 1) {  // the last packet first: what two of them become takes the place of later ones
#pragma GCC unroll 8
        for (int i = COUNT * kPacketUnits - 1; i >= 0; --i) {
          Reg<Unit>* const wide = units + i / kPacketUnits * 2 * kPacketUnits + i % kPacketUnits;
          Reg<uint8_t> halves[2];
          widen_e4m3((Reg<uint8_t>)units[i], halves[0], halves[1]);
          wide[0] = (Reg<Unit>)halves[0], wide[kPacketUnits] = (Reg<Unit>)halves[1];
        }
      }
#pragma GCC unroll 4
      for (int packet = 0; packet < kWideCount; ++packet) transpose_in_packets<Unit>(units + packet * kPacketUnits);
#pragma GCC unroll 16
      for (int u = 0; u < kWideCount * kPacketUnits; ++u) {
        Reg<Word> words[Op::kUnitWords];
        Op::split(units[u], words);
#pragma GCC unroll 2
        for (int w = 0; w < Op::kUnitWords; ++w) use(k / Op::kPerWord + u * Op::kUnitWords + w, v, words[w]);
      }
    }
  }
  template <int COUNT, int PLACE>
  TILEDMM_INLINE void insert_lanes(int first, int64_t k, Reg<Unit>* units) const {
    if constexpr (PLACE < kPackets) {
      if (PLACE > 0 && first + PLACE * kPacketUnits >= count) return;
#pragma GCC unroll 4
      for (int r = 0; r < kPacketUnits; ++r) {
        const T* from = lane[first + PLACE * kPacketUnits + r] + k;
#pragma GCC unroll 4
        for (int packet = 0; packet < COUNT; ++packet) {
          Reg<Unit>& unit = units[packet * kPacketUnits + r];
          unit = insert_packet<PLACE>(unit, from + packet * kPacketElements);
        }
      }
      insert_lanes<COUNT, PLACE + 1>(first, k, units);
    }
  }
};

// From strip to strip, in words. Every row of a strip is stored in whole vectors, the last one as well; and strips
// that are a vector more than a power of two apart do not begin in one set of the nearest cache.
template <class Word>
constexpr int64_t strip_size(int64_t strip, int64_t words) {
  return round_up(strip * words, Simd<Word>::kLanes) + Simd<Word>::kLanes;
}

// A vector of words for each word of k, of `count` lanes at most, `to_step` words apart.
template <class T, class Op>
__attribute__((noinline)) void pack_edge(const T* from, int64_t stride_lane, int64_t stride_k, int64_t count,
                                         int64_t depth, typename Op::Word* to, int64_t to_step) {
  for (int64_t k = 0; k < depth; k += Op::kPerWord) {
    store(to, load_lanes<T, Op>(from + k * stride_k, stride_lane, stride_k, count, depth - k));
    to += to_step;
  }
}

// Packs rows of A or columns of B, `strip` lanes to a strip: each [words of k][strip]. Lanes beyond the last are any
// value.
template <class T, class Op>
void pack_strips(const T* from, int64_t stride_lane, int64_t stride_k, int64_t lanes, int64_t strip, int64_t depth,
                 typename Op::Word* to) {
  using Word = typename Op::Word;
  constexpr int kLanes = Simd<Word>::kLanes, kPerWord = Op::kPerWord;
  if constexpr (sizeof(T) > 1) {  // only B has 8 bits, and its strips are wider
    if (lanes == 1 && strip == 1 && stride_k == 1) {
      int64_t k = 0;
      for (; k + kLanes * kPerWord <= depth; k += kLanes * kPerWord) store(to + k / kPerWord, Op::load_words(from + k));
      for (; k < depth; k += kPerWord) to[k / kPerWord] = Op::load_word(from + k, 1, depth - k);
      return;
    }
  }
  const int64_t size = strip_size<Word>(strip, ceil_div(depth, kPerWord));
  if (stride_k == 1 && stride_lane != 1) {
    for (int64_t first = 0; first < lanes; first += strip) {
      const int64_t places = min_of(strip, lanes - first);
      // The last vector of a row first: what it stores beyond the strip, the others overwrite.
      for (int64_t i = (places - 1) / kLanes * kLanes; i >= 0; i -= kLanes) {
        Word* row = to + first / strip * size + i;
        LanesAlongK<T, Op>(from + (first + i) * stride_lane, stride_lane, places - i)
            .for_each_word(0, depth, [&](int64_t word, int, Reg<Word> words) { store(row + word * strip, words); });
      }
    }
    return;
  }
  // Lanes that are neighbours in memory, in runs of about four cache lines for every k.
  const int64_t group = max_of(strip, kLineBytes * 4 / int64_t(sizeof(T)) / strip * strip);
  for (int64_t begin = 0; begin < lanes; begin += group) {
    const int64_t end = min_of(begin + group, lanes);
    for (int64_t k = 0; k < depth; k += kPackWords * kPerWord) {
      const bool is_whole = stride_lane == 1 && k + kPackWords * kPerWord <= depth;
      Word* row = to + begin / strip * size + k / kPerWord * strip;
      for (int64_t first = begin; first < end; first += strip, row += size) {
        const int64_t places = min_of(strip, end - first);
        const T* corner = from + first * stride_lane + k * stride_k;
        if (is_whole && places == 2 * kLanes) {
#pragma GCC unroll 8
          for (int w = 0; w < kPackWords; ++w) {
            Reg<Word> words[2];
            Op::load_two(corner + w * kPerWord * stride_k, stride_k, words);
            store(row + w * strip, words[0]);
            store(row + w * strip + kLanes, words[1]);
          }
          continue;
        }
        for (int64_t i = (places - 1) / kLanes * kLanes; i >= 0; i -= kLanes) {  // in this order for the same reason
          if (is_whole && lanes - first - i >= kLanes) {
#pragma GCC unroll 8
            for (int w = 0; w < kPackWords; ++w) {
              store(row + w * strip + i, Op::load_lanes(corner + i + w * kPerWord * stride_k, stride_k));
            }
          } else {
            const int64_t count = stride_lane == 1 ? lanes - first - i : places - i;
            pack_edge<T, Op>(corner + i * stride_lane, stride_lane, stride_k, count,
                             min_of(kPackWords * kPerWord, depth - k), row + i, strip);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tiledmm
TILEDMM_TARGET_END

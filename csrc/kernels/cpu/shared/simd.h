// The vectors of one CPU instruction set, for every lane type that the kernels use.
//
// A translation unit picks its instruction set by defining exactly one of TILEDMM_ISA_PORTABLE, _AVX2, _AVX512,
// _AVX512_BF16, _NEON before it includes this file, and encloses its code in TILEDMM_TARGET_BEGIN / _END, so that the
// library as a whole is compiled for the baseline and the choice is made at run time. Everything here has internal
// linkage: a function compiled for AVX-512 must never be the copy that the linker keeps for all.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define TILEDMM_PRAGMA_TEXT(text) _Pragma(#text)
#define TILEDMM_PRAGMA(text) TILEDMM_PRAGMA_TEXT(text)
#if defined(TILEDMM_ISA_AVX512_BF16)
#define TILEDMM_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c"
#elif defined(TILEDMM_ISA_AVX512)
#define TILEDMM_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"
#elif defined(TILEDMM_ISA_AVX2)
#define TILEDMM_TARGET "avx2,fma,f16c"
#endif
#if !defined(TILEDMM_TARGET)
#define TILEDMM_TARGET_BEGIN
#define TILEDMM_TARGET_END
#elif defined(__clang__)
#define TILEDMM_TARGET_BEGIN \
  TILEDMM_PRAGMA(clang attribute push(__attribute__((target(TILEDMM_TARGET))), apply_to = function))
#define TILEDMM_TARGET_END TILEDMM_PRAGMA(clang attribute pop)
#else
#define TILEDMM_TARGET_BEGIN TILEDMM_PRAGMA(GCC push_options) TILEDMM_PRAGMA(GCC target(TILEDMM_TARGET))
#define TILEDMM_TARGET_END TILEDMM_PRAGMA(GCC pop_options)
#endif

#if defined(TILEDMM_ISA_AVX512) || defined(TILEDMM_ISA_AVX512_BF16)
#define TILEDMM_VECTOR_BYTES 64
#elif defined(TILEDMM_ISA_AVX2)
#define TILEDMM_VECTOR_BYTES 32
#else
#define TILEDMM_VECTOR_BYTES 16
#endif
#define TILEDMM_INLINE inline __attribute__((always_inline))

TILEDMM_TARGET_BEGIN
namespace tiledmm {
namespace {

// T in a vector of BYTES, as the compiler's own vector type (operators work lane by lane).
template <class T, int BYTES = TILEDMM_VECTOR_BYTES>
struct Simd {
  static constexpr int kLanes = BYTES / int(sizeof(T));
  typedef T Reg __attribute__((vector_size(BYTES)));
};
template <class T, int BYTES = TILEDMM_VECTOR_BYTES>
using Reg = typename Simd<T, BYTES>::Reg;

// A packet is 128 bits: what is transposed at a time.
constexpr int kPacketBytes = 16;
constexpr int kPackets = TILEDMM_VECTOR_BYTES / kPacketBytes;  // in a full vector

template <class R, class T>
TILEDMM_INLINE R load_as(const T* from) {
  R v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}
template <class T>
TILEDMM_INLINE Reg<T> load(const T* from) {
  return load_as<Reg<T>>(from);
}

template <class R, class T>
TILEDMM_INLINE void store(T* to, R v) {
  __builtin_memcpy(to, &v, sizeof v);
}

template <class T, int BYTES = TILEDMM_VECTOR_BYTES>
TILEDMM_INLINE Reg<T, BYTES> broadcast(T value) {
  return value - Reg<T, BYTES>{};
}

// v with packet IDX taken from memory; IDX 0 begins a vector.
template <int IDX, class R>
TILEDMM_INLINE R insert_packet([[maybe_unused]] R v, const void* from) {
#if TILEDMM_VECTOR_BYTES == 64
  const __m128i packet = _mm_loadu_si128(static_cast<const __m128i*>(from));
  if constexpr (IDX == 0) return (R)_mm512_zextsi128_si512(packet);
  return (R)_mm512_inserti32x4((__m512i)v, packet, IDX);
#elif TILEDMM_VECTOR_BYTES == 32
  const __m128i packet = _mm_loadu_si128(static_cast<const __m128i*>(from));
  if constexpr (IDX == 0) return (R)_mm256_zextsi128_si256(packet);
  return (R)_mm256_inserti128_si256((__m256i)v, packet, IDX);
#else
  return load_as<R>(static_cast<const char*>(from));
#endif
}

// COUNT packets of four lanes, every STEP-th one, from element `first` on: packet i of all four side by side in
// vectors[i * STEP]. Two neighbouring packets come by one load.
template <int STEP, int COUNT, class T, class R>
TILEDMM_INLINE void load_four_lanes([[maybe_unused]] const T* const* lanes, [[maybe_unused]] int64_t first,
                                    [[maybe_unused]] R* vectors) {
#if TILEDMM_VECTOR_BYTES == 64
#pragma GCC unroll 2
  for (int packet = 0; packet < COUNT; packet += 2) {
    const auto half = [&](int lane) {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lanes[lane * STEP] + first) + packet / 2);
    };
    const __m512i low = _mm512_maskz_inserti64x4(0xff, _mm512_castsi256_si512(half(0)), half(1), 1);
    const __m512i high = _mm512_maskz_inserti64x4(0xff, _mm512_castsi256_si512(half(2)), half(3), 1);
    vectors[packet * STEP] = (R)_mm512_maskz_shuffle_i32x4(0xffff, low, high, 0x88);
    vectors[(packet + 1) * STEP] = (R)_mm512_maskz_shuffle_i32x4(0xffff, low, high, 0xdd);
  }
#endif
}

// The first `count` lanes, 0 <= count <= kLanes; the others are 0 and their memory is not touched.
template <class T>
TILEDMM_INLINE Reg<T> load_partial(const T* from, int64_t count) {
#if TILEDMM_VECTOR_BYTES == 64
  if constexpr (sizeof(T) == 4) {
    return (Reg<T>)_mm512_maskz_loadu_epi32(__mmask16((1u << count) - 1), from);
  } else if constexpr (sizeof(T) == 8) {
    return (Reg<T>)_mm512_maskz_loadu_epi64(__mmask8((1u << count) - 1), from);
  }
#endif
  Reg<T> v{};
  for (int64_t i = 0; i < count; ++i) v[i] = from[i];
  return v;
}

template <class T>
TILEDMM_INLINE void store_partial(T* to, Reg<T> v, int64_t count) {
#if TILEDMM_VECTOR_BYTES == 64
  if constexpr (sizeof(T) == 4) {
    return _mm512_mask_storeu_epi32(to, __mmask16((1u << count) - 1), (__m512i)v);
  } else if constexpr (sizeof(T) == 8) {
    return _mm512_mask_storeu_epi64(to, __mmask8((1u << count) - 1), (__m512i)v);
  }
#endif
  for (int64_t i = 0; i < count; ++i) to[i] = v[i];
}

// a * b + c, in one rounding where the instruction set can.
TILEDMM_INLINE Reg<float> multiply_add(Reg<float> a, Reg<float> b, Reg<float> c) {
#if TILEDMM_VECTOR_BYTES == 64
  return _mm512_fmadd_ps(a, b, c);
#elif TILEDMM_VECTOR_BYTES == 32
  return _mm256_fmadd_ps(a, b, c);
#elif defined(TILEDMM_ISA_NEON)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}
TILEDMM_INLINE Reg<double> multiply_add(Reg<double> a, Reg<double> b, Reg<double> c) {
#if TILEDMM_VECTOR_BYTES == 64
  return _mm512_fmadd_pd(a, b, c);
#elif TILEDMM_VECTOR_BYTES == 32
  return _mm256_fmadd_pd(a, b, c);
#elif defined(TILEDMM_ISA_NEON)
  return vfmaq_f64(c, a, b);
#else
  return a * b + c;
#endif
}

// v and, in the lanes above it, zeros.
template <class T, class R, int... I>
TILEDMM_INLINE Reg<T> widen(R v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, R{}, (I < int(sizeof(R) / sizeof(T)) ? I : int(sizeof(R) / sizeof(T)))...);
}
template <class T, class R>
TILEDMM_INLINE Reg<T> widen(R v) {
  if constexpr (sizeof(R) == TILEDMM_VECTOR_BYTES) return v;
  return widen<T>(v, std::make_integer_sequence<int, Simd<T>::kLanes>{});
}

// The lower or upper halves of the packets of a and b, SPAN lanes of one and SPAN of the other in turn.
template <class T, int SPAN, bool IS_UPPER, class R, int... I>
TILEDMM_INLINE R interleave(R a, R b, std::integer_sequence<int, I...>) {
  constexpr int kLanes = sizeof...(I), kWords = kPacketBytes / int(sizeof(T));
  return __builtin_shufflevector(a, b,
                                 (I / kWords * kWords + IS_UPPER * kWords / 2 + I % kWords / (2 * SPAN) * SPAN +
                                  I % SPAN + (I / SPAN % 2 ? kLanes : 0))...);
}
template <class T, int SPAN, bool IS_UPPER, class R>
TILEDMM_INLINE R interleave(R a, R b) {
  return interleave<T, SPAN, IS_UPPER>(a, b, std::make_integer_sequence<int, int(sizeof(R) / sizeof(T))>{});
}

#if TILEDMM_VECTOR_BYTES > 16 || defined(TILEDMM_ISA_NEON)
#define TILEDMM_LOOKS_UP
// Entries of a table of 16, of which each packet has a copy, by the low four bits of indices; 0 where an index is
// negative.
TILEDMM_INLINE Reg<uint8_t> look_up(const uint8_t (&table)[64], Reg<uint8_t> indices) {
#if TILEDMM_VECTOR_BYTES == 64
  return (Reg<uint8_t>)_mm512_shuffle_epi8(load_as<__m512i>(table), (__m512i)indices);
#elif TILEDMM_VECTOR_BYTES == 32
  return (Reg<uint8_t>)_mm256_shuffle_epi8(load_as<__m256i>(table), (__m256i)indices);
#else
  return (Reg<uint8_t>)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)(indices & 0x8f));
#endif
}

// a - b; 127 where that is more.
TILEDMM_INLINE Reg<uint8_t> subtract_saturated(Reg<uint8_t> a, Reg<uint8_t> b) {
#if TILEDMM_VECTOR_BYTES == 64
  return (Reg<uint8_t>)_mm512_subs_epi8((__m512i)a, (__m512i)b);
#elif TILEDMM_VECTOR_BYTES == 32
  return (Reg<uint8_t>)_mm256_subs_epi8((__m256i)a, (__m256i)b);
#else
  return (Reg<uint8_t>)vqsubq_s8((int8x16_t)a, (int8x16_t)b);
#endif
}
#endif

// In every packet of as many registers as a packet has lanes: lane c of register r <-> lane r of register c.
template <class T, class R>
TILEDMM_INLINE void transpose_in_packets(R* rows) {
  constexpr int kWords = kPacketBytes / int(sizeof(T));
  static_assert(kWords == 2 || kWords == 4, "lanes of 32 or 64 bits");
  const R low = interleave<T, 1, false>(rows[0], rows[1]), high = interleave<T, 1, true>(rows[0], rows[1]);
  if constexpr (kWords == 2) {
    rows[0] = low;
    rows[1] = high;
  } else {
    const R low2 = interleave<T, 1, false>(rows[2], rows[3]), high2 = interleave<T, 1, true>(rows[2], rows[3]);
    rows[0] = interleave<T, 2, false>(low, low2);
    rows[1] = interleave<T, 2, true>(low, low2);
    rows[2] = interleave<T, 2, false>(high, high2);
    rows[3] = interleave<T, 2, true>(high, high2);
  }
}

}  // namespace
}  // namespace tiledmm
TILEDMM_TARGET_END

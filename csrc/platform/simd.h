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

// A block is 128 bits: the unit in which the kernels keep neighbours along k together.
constexpr int kBlockBytes = 16;
constexpr int kBlocks = TILEDMM_VECTOR_BYTES / kBlockBytes;  // in a full vector
template <class T>
using Block = Reg<T, kBlockBytes>;

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

// One block from memory in every block of a vector.
template <class T>
TILEDMM_INLINE Reg<T> broadcast_block(const void* from) {
#if TILEDMM_VECTOR_BYTES == 64
  return (Reg<T>)_mm512_maskz_broadcast_i32x4(0xffff, _mm_loadu_si128(static_cast<const __m128i*>(from)));
#elif TILEDMM_VECTOR_BYTES == 32
  return (Reg<T>)_mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(from)));
#else
  return load_as<Reg<T>>(static_cast<const T*>(from));
#endif
}

// Block `idx` of a vector.
template <class T>
TILEDMM_INLINE Block<T> block_at(Reg<T> v, int idx) {
  Block<T> blocks[kBlocks];
  __builtin_memcpy(blocks, &v, sizeof v);
  return blocks[idx];
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

// a * b + c, in one rounding where the instruction set can; full vectors and single blocks.
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
#if TILEDMM_VECTOR_BYTES == 64
TILEDMM_INLINE Reg<float, 32> multiply_add(Reg<float, 32> a, Reg<float, 32> b, Reg<float, 32> c) {
  return _mm256_fmadd_ps(a, b, c);
}
#endif
#if TILEDMM_VECTOR_BYTES > 16
TILEDMM_INLINE Block<float> multiply_add(Block<float> a, Block<float> b, Block<float> c) {
  return _mm_fmadd_ps(a, b, c);
}
TILEDMM_INLINE Block<double> multiply_add(Block<double> a, Block<double> b, Block<double> c) {
  return _mm_fmadd_pd(a, b, c);
}
#endif

// v and, in the lanes above it, zeros.
template <class T, class R, int... I>
TILEDMM_INLINE Reg<T> widen(R v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, R{}, (I < int(sizeof(R) / sizeof(T)) ? I : int(sizeof(R) / sizeof(T)))...);
}
template <class T, class R>
TILEDMM_INLINE Reg<T> widen(R v) {
  return widen<T>(v, std::make_integer_sequence<int, Simd<T>::kLanes>{});
}

// Exchanges the lanes of `low` in which SPAN is set with the lanes of `high` in which it is not, SPAN lanes apart.
template <int SPAN, class R, int... I>
TILEDMM_INLINE void swap_lanes(R& low, R& high, std::integer_sequence<int, I...>) {
  constexpr int kLanes = sizeof...(I);
  const R first = __builtin_shufflevector(low, high, ((I & SPAN) ? kLanes + I - SPAN : I)...);
  high = __builtin_shufflevector(low, high, ((I & SPAN) ? kLanes + I : I + SPAN)...);
  low = first;
}

// In every block of COUNT registers, COUNT = lanes of a block: lane c of register r <-> lane r of register c.
template <class T, int SPAN = 1, class R, int COUNT>
TILEDMM_INLINE void transpose_in_blocks(R (&rows)[COUNT]) {
  static_assert(COUNT == Simd<T, kBlockBytes>::kLanes, "a block is transposed with as many registers as it has lanes");
  if constexpr (SPAN < COUNT) {
#pragma GCC unroll 4
    for (int i = 0; i < COUNT; ++i) {
      if (!(i & SPAN)) {
        swap_lanes<SPAN>(rows[i], rows[i + SPAN], std::make_integer_sequence<int, int(sizeof(R) / sizeof(T))>{});
      }
    }
    transpose_in_blocks<T, SPAN * 2>(rows);
  }
}

// Transposes whole blocks: block c of register r <-> block r of register c, for kBlocks registers.
template <class T, int SPAN = 1>
TILEDMM_INLINE void transpose_blocks(Reg<T> (&rows)[kBlocks]) {
  if constexpr (SPAN < kBlocks) {
#pragma GCC unroll 4
    for (int i = 0; i < kBlocks; ++i) {
      if (!(i & SPAN)) {
        swap_lanes<SPAN * Simd<T, kBlockBytes>::kLanes>(rows[i], rows[i + SPAN],
                                                        std::make_integer_sequence<int, Simd<T>::kLanes>{});
      }
    }
    transpose_blocks<T, SPAN * 2>(rows);
  }
}

// The sum over the lanes of each block, for as many registers as a block has lanes: lane c of block g of the result is
// the sum of block g of rows[c]; fp32: (lane 0 + lane 2) + (lane 1 + lane 3), fp64: lane 0 + lane 1.
template <class T, class R, int... I>
TILEDMM_INLINE R sum_blocks(const R (&rows)[2], std::integer_sequence<int, I...>) {
  constexpr int kLanes = sizeof...(I);
  return __builtin_shufflevector(rows[0], rows[1], (I % 2 ? kLanes + I - 1 : I)...) +
         __builtin_shufflevector(rows[0], rows[1], (I % 2 ? kLanes + I : I + 1)...);
}
template <class T, class R, int... I>
TILEDMM_INLINE R sum_blocks(const R (&rows)[4], std::integer_sequence<int, I...>) {
  constexpr int kLanes = sizeof...(I);
  R halves[2];  // of each block: lanes 0 and 1 of rows 0 and 1 (or 2 and 3) plus their lanes 2 and 3
  for (int pair = 0; pair < 2; ++pair) {
    const R &even = rows[2 * pair], &odd = rows[2 * pair + 1];
    halves[pair] = __builtin_shufflevector(even, odd, (I / 4 * 4 + I % 4 / 2 + (I % 2 ? kLanes : 0))...) +
                   __builtin_shufflevector(even, odd, (I / 4 * 4 + I % 4 / 2 + 2 + (I % 2 ? kLanes : 0))...);
  }
  return __builtin_shufflevector(halves[0], halves[1], (I / 4 * 4 + I % 2 + (I % 4 / 2 ? kLanes : 0))...) +
         __builtin_shufflevector(halves[0], halves[1], (I / 4 * 4 + I % 2 + 2 + (I % 4 / 2 ? kLanes : 0))...);
}
template <class T, class R, int COUNT>
TILEDMM_INLINE R sum_blocks(const R (&rows)[COUNT]) {
  return sum_blocks<T>(rows, std::make_integer_sequence<int, int(sizeof(R) / sizeof(T))>{});
}

}  // namespace
}  // namespace tiledmm
TILEDMM_TARGET_END

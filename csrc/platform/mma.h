// The matrix instruction of each chip behind one name: Mma<T>::multiply adds the product of a fragment of A and one of
// B to an accumulator. Where a lane's words belong is the Layout's matter (mma_layout.h), loading them the kernel's.
//
//   NVIDIA, sm_80 and later  mma.sync: fp16, bf16, fp32 rounded to tf32, fp64
//   CDNA (gfx90a, gfx94x, gfx950)  MFMA 16x16: fp16, bf16, fp32, fp64
//   RDNA 3 and 4  WMMA: fp16, bf16
//   host  NVIDIA's layout at warp size 32, CDNA's at 64; sums in double precision, rounded once for each instruction;
//   in fp64 a chain of multiply-adds
#pragma once

#include "core/operand.h"
#include "platform/gpu.h"
#include "platform/mma_layout.h"

namespace tiledmm::gpu {

#if defined(__HIP__) && (defined(__gfx1200__) || defined(__gfx1201__))
template <class T>
using Layout = LayoutWmmaRdna4;
#elif defined(__HIP__) && defined(__gfx1100__)
template <class T>
using Layout = LayoutWmmaRdna3;
#elif defined(__HIP__) || (defined(TILEDMM_HOST_GPU) && TILEDMM_WARP_SIZE == 64)
template <class T>
using Layout = LayoutMfma16<WordOf<T>::kElements, sizeof(T) == 8>;
#else
template <class T>
using Layout = std::conditional_t<sizeof(T) == 8, LayoutM8N8, LayoutM16N8>;
#endif

template <class T>
struct Mma : Layout<T> {
  using L = Layout<T>;
  using Word = typename WordOf<T>::Word;
  static constexpr int kElementsK = L::kWordsK * WordOf<T>::kElements;
  static_assert(L::kLanes == kWarpSize, "the layout is that of this chip");

  // As the instruction wants a word to be: fp32 is rounded to tf32, where it would be cut off otherwise.
  static TILEDMM_DEVICE Word prepared(Word word) {
#if defined(__CUDACC__) && !defined(__HIP__)
    if constexpr (std::is_same_v<T, float>) {
      uint32_t rounded;
#if __CUDA_ARCH__ >= 900
      asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(word));  // to even, as the copy engine does
#else
      asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(word));
#endif
      return __uint_as_float(rounded);
    }
#endif
    return word;
  }

  // acc += a b. All lanes of the warp take part.
  static TILEDMM_DEVICE void multiply(Acc<T> (&acc)[L::kAccs], const Word (&a)[L::kWordsA],
                                      const Word (&b)[L::kWordsB]);
};

#if defined(TILEDMM_HOST_GPU)

// Element `half` of a word.
template <class T>
Acc<T> element_of(typename WordOf<T>::Word word, int half) {
  if constexpr (WordOf<T>::kElements == 1) {
    return word;
  } else {
    return as_acc(T{uint16_t(word >> (16 * half))});
  }
}

// The lanes show each other their words, then each computes its own elements.
template <class T>
void Mma<T>::multiply(Acc<T> (&acc)[L::kAccs], const Word (&a)[L::kWordsA], const Word (&b)[L::kWordsB]) {
  struct Operands {
    Word a[L::kM][L::kWordsK], b[L::kN][L::kWordsK];
  };
  static_assert(sizeof(Operands) <= host_gpu::kScratchBytes);
  auto& operands = *reinterpret_cast<Operands*>(host_gpu::warp_scratch());
  const int lane = thread_idx() % kWarpSize;
  for (int w = 0; w < L::kWordsA; ++w) operands.a[L::a_row(lane, w)][L::a_word(lane, w)] = a[w];
  for (int w = 0; w < L::kWordsB; ++w) operands.b[L::b_col(lane, w)][L::b_word(lane, w)] = b[w];
  host_gpu::warp_barrier();
  for (int e = 0; e < L::kAccs; ++e) {
    double sum = acc[e];
    for (int word = 0; word < L::kWordsK; ++word) {
      for (int half = 0; half < WordOf<T>::kElements; ++half) {
        sum = __builtin_fma(double(element_of<T>(operands.a[L::c_row(lane, e)][word], half)),
                            double(element_of<T>(operands.b[L::c_col(lane, e)][word], half)), sum);
      }
    }
    acc[e] = Acc<T>(sum);
  }
  if (lane == 0) host_gpu::count_flops(2 * L::kM * L::kN * kElementsK);
  host_gpu::warp_barrier();
}

#elif defined(__CUDACC__) && !defined(__HIP__)

template <>
TILEDMM_DEVICE void Mma<Half>::multiply(float (&acc)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
TILEDMM_DEVICE void Mma<BFloat16>::multiply(float (&acc)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
TILEDMM_DEVICE void Mma<float>::multiply(float (&acc)[4], const float (&a)[4], const float (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}

template <>
TILEDMM_DEVICE void Mma<double>::multiply(double (&acc)[2], const double (&a)[1], const double (&b)[1]) {
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(acc[0]), "+d"(acc[1])
      : "d"(a[0]), "d"(b[0]));
}

#else  // HIP

template <class E, int SIZE>
using ClangVector = E __attribute__((ext_vector_type(SIZE)));

template <class To, class From>
TILEDMM_DEVICE To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// Calls a builtin that takes and returns the accumulator as a vector.
template <class A, int SIZE, class Instruction>
TILEDMM_DEVICE void accumulate(A (&acc)[SIZE], const Instruction& instruction) {
  using Sums = ClangVector<A, SIZE>;
  const auto sums = instruction(bits_as<Sums>(acc));
  TILEDMM_UNROLL for (int e = 0; e < SIZE; ++e) acc[e] = sums[e];
}

template <class T>
TILEDMM_DEVICE void Mma<T>::multiply([[maybe_unused]] Acc<T> (&acc)[L::kAccs],
                                     [[maybe_unused]] const Word (&a)[L::kWordsA],
                                     [[maybe_unused]] const Word (&b)[L::kWordsB]) {
#if defined(__gfx1200__) || defined(__gfx1201__)
  if constexpr (std::is_same_v<T, Half>) {
    using Operand = ClangVector<_Float16, 8>;
    accumulate(acc, [&](auto c) {
      return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(bits_as<Operand>(a), bits_as<Operand>(b), c);
    });
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    using Operand = ClangVector<short, 8>;
    accumulate(acc, [&](auto c) {
      return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(bits_as<Operand>(a), bits_as<Operand>(b), c);
    });
  }
#elif defined(__gfx1100__)
  if constexpr (std::is_same_v<T, Half>) {
    using Operand = ClangVector<_Float16, 16>;
    accumulate(acc, [&](auto c) {
      return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(bits_as<Operand>(a), bits_as<Operand>(b), c);
    });
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    using Operand = ClangVector<short, 16>;
    accumulate(acc, [&](auto c) {
      return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(bits_as<Operand>(a), bits_as<Operand>(b), c);
    });
  }
#elif defined(__HIP_DEVICE_COMPILE__)
  if constexpr (std::is_same_v<T, Half>) {
    using Operand = ClangVector<_Float16, 4>;
    accumulate(acc, [&](auto c) {
      return __builtin_amdgcn_mfma_f32_16x16x16f16(bits_as<Operand>(a), bits_as<Operand>(b), c, 0, 0, 0);
    });
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    using Operand = ClangVector<short, 4>;
    accumulate(acc, [&](auto c) {
      return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(bits_as<Operand>(a), bits_as<Operand>(b), c, 0, 0, 0);
    });
  } else if constexpr (std::is_same_v<T, float>) {
    accumulate(acc, [&](auto c) { return __builtin_amdgcn_mfma_f32_16x16x4f32(a[0], b[0], c, 0, 0, 0); });
  } else {
    accumulate(acc, [&](auto c) { return __builtin_amdgcn_mfma_f64_16x16x4f64(a[0], b[0], c, 0, 0, 0); });
  }
#endif
}

#endif

// Whether this compilation's chip has a matrix instruction for T; kernels of rungs 05 to 08 are empty where not.
#if defined(__HIP__) && (defined(__gfx1100__) || defined(__gfx1200__) || defined(__gfx1201__))
template <class T>
inline constexpr bool kHasMma = sizeof(T) == 2;
#else
template <class T>
inline constexpr bool kHasMma = true;
#endif

// Calls launch with std::bool_constant for whether A and B are k-major.
template <class Launch>
Status visit_layouts(const GemmProblem& gemm, const Launch& launch) {
  const bool is_a_k_major = is_k_major(gemm.stride_am, gemm.stride_ak);
  const bool is_b_k_major = is_k_major(gemm.stride_bn, gemm.stride_bk);
  if (is_a_k_major)
    return is_b_k_major ? launch(std::true_type{}, std::true_type{}) : launch(std::true_type{}, std::false_type{});
  return is_b_k_major ? launch(std::false_type{}, std::true_type{}) : launch(std::false_type{}, std::false_type{});
}

}  // namespace tiledmm::gpu

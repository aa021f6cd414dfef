// The matrix instruction of 16 x 8 sums, of 8 words along k in every dtype: what mma_async and skinny multiply with.
#pragma once

#include "platform/mma.h"

namespace tiledmm::gpu {
namespace {

// acc += a b, words as LayoutM16N8 has them. fp64 uses Hopper's m16n8k8, twice as fast there as m8n8k4, with the bits
// of a chain of multiply-adds in the order of k.
template <class T>
TILEDMM_DEVICE void multiply_16x8(Acc<T> (&acc)[4], const typename WordOf<T>::Word (&a)[4],
                                  const typename WordOf<T>::Word (&b)[2]) {
  if constexpr (sizeof(T) == 8) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+d"(acc[0]), "+d"(acc[1]), "+d"(acc[2]), "+d"(acc[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
    TILEDMM_UNROLL for (int half = 0; half < 2; ++half) {
      double sums[2] = {acc[2 * half], acc[2 * half + 1]};
      TILEDMM_UNROLL for (int w = 0; w < 2; ++w) Mma<T>::multiply(sums, {a[2 * w + half]}, {b[w]});
      acc[2 * half] = sums[0], acc[2 * half + 1] = sums[1];
    }
#endif
  } else {
    Mma<T>::multiply(acc, a, b);
  }
}

// ptxas 13.0 lets m16n8k8 of fp64 read sums that an earlier iteration of its loop has not written yet. They
// are 50 cycles after the instruction started, and those of a warp start 32 cycles apart, in order: a warp of four sums
// and more is always late enough (tests/csrc/kernels/gpu/test_device_code.py checks the order). One of fewer reads its
// sums here with other instructions than those of the matrix unit, and so waits for them; that makes ptxas give up its
// order of the loop, too, which costs large tiles 7 %. `zero` is 0, which the compiler must not know; `smem` is any
// word.
template <class T, int ROWS, int COLS>
TILEDMM_DEVICE void wait_for_sums([[maybe_unused]] const Acc<T> (&acc)[ROWS][COLS][4], [[maybe_unused]] void* smem,
                                  [[maybe_unused]] int zero) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (sizeof(T) == 8 && ROWS * COLS < 4) {
    int mixed = 0;
    TILEDMM_UNROLL for (int i = 0; i < ROWS; ++i) {
      TILEDMM_UNROLL for (int j = 0; j < COLS; ++j) mixed ^= __double2hiint(acc[i][j][0]);
    }
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %0, 0;\n@p st.shared.s32 [%1], %2;\n}" ::"r"(zero),
                 "r"(uint32_t(__cvta_generic_to_shared(smem))), "r"(mixed));
  }
#endif
}

}  // namespace
}  // namespace tiledmm::gpu

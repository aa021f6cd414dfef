// The activation in an epilogue whose values lie in registers.
#pragma once

#include "platform/element.h"
#include "platform/gpu.h"

namespace tiledmm::cuda {
namespace {

// In a loop that is not unrolled: one copy of the function's code. `slots` is this thread's alone, STRIDE floats apart.
template <int COUNT, int STRIDE>
__device__ __forceinline__ void activate_slots(float* slots, Activation activation) {
#pragma unroll 1
  for (int i = 0; i < COUNT; ++i) {
    const float x = slots[i * STRIDE];
    float y;
    if (activation == Activation::gelu)
      y = x * normal_cdf(x);
    else if (activation == Activation::gelu_tanh)
      y = activate<Activation::gelu_tanh>(x);
    else
      y = activate<Activation::silu>(x);
    slots[i * STRIDE] = x != x ? x : y;
  }
}

template <int SLOTS, int COUNT>
__device__ __forceinline__ void activate_values(float (&v)[COUNT], float* slots, Activation activation) {
#pragma unroll
  for (int first = 0; first < COUNT; first += SLOTS) {
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) slots[i * 128] = v[first + i];
    activate_slots<SLOTS, 128>(slots, activation);
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) v[first + i] = slots[i * 128];
  }
}

}  // namespace
}  // namespace tiledmm::cuda

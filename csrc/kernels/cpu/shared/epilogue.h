// From partial sums to C: alpha, beta * bias, activation, one rounding, store. One instruction set per translation
// unit, as in simd.h.
#pragma once

#include "kernels/cpu/shared/pack.h"
#include "kernels/cpu/shared/simd.h"
#include "platform/element.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm {
namespace {

// `count` neighbours of C along n.
template <class T>
TILEDMM_INLINE void store_lanes(T* to, int64_t stride, Reg<Acc<T>> v, int64_t count) {
  if (stride == 1) return store_converted(to, v, count);
  T narrow[Simd<Acc<T>>::kLanes];  // by the same instruction: that of AVX-512 BF16 takes denormals as zero
  store_converted(narrow, v, Simd<Acc<T>>::kLanes);
  for (int64_t l = 0; l < count; ++l) to[l * stride] = narrow[l];
}

// `count` elements of a bias, `stride` apart; the others are 0.
template <class T>
TILEDMM_INLINE Reg<Acc<T>> load_bias(const T* from, int64_t stride, int64_t count) {
  Acc<T> values[Simd<Acc<T>>::kLanes] = {};
  for (int64_t l = 0; l < count; ++l) values[l] = to_acc(from[l * stride]);
  return load(values);
}

// C = activation(alpha * sums + beta * bias) for rows x cols of C from (row, col).
template <class T, Activation ACT>
void store_block_tile(const GemmProblem& problem, int64_t row, int64_t rows, int64_t col, int64_t cols,
                      const Acc<T>* sums, int64_t ld_sums) {
  using A = Acc<T>;
  constexpr int kLanes = Simd<A>::kLanes;
  const T* bias = static_cast<const T*>(problem.bias);
  const bool is_blending = is_blended(problem), bias_along_n = bias && problem.stride_bias_m == 0 && !is_blending;
  const Reg<A> alpha = broadcast(A(problem.alpha)), beta = broadcast(A(problem.beta));
  for (int64_t j = 0; j < cols; j += kLanes) {
    const int64_t count = min_of(kLanes, cols - j);
    Reg<A> bias_n{};
    if (bias_along_n) bias_n = load_bias(bias + (col + j) * problem.stride_bias_n, problem.stride_bias_n, count);
    for (int64_t i = 0; i < rows; ++i) {
      const A* from = sums + i * ld_sums + j;
      Reg<A> v = count == kLanes ? load(from) : load_partial(from, count);
      if (is_blending) {
        v *= alpha;
        const T* from = bias + (row + i) * problem.stride_bias_m + (col + j) * problem.stride_bias_n;
        if (bias) v += beta * load_bias(from, problem.stride_bias_n, count);
      } else if (bias) {
        v += bias_along_n ? bias_n : broadcast(to_acc(bias[(row + i) * problem.stride_bias_m]));
      }
      T* to = static_cast<T*>(problem.c) + (row + i) * problem.stride_cm + (col + j) * problem.stride_cn;
      if constexpr (ACT != Activation::none) {
        if (problem.sum_offset) store_lanes(to + problem.sum_offset, problem.stride_cn, v, count);
        A values[kLanes];
        store(values, v);
        for (int l = 0; l < kLanes; ++l) values[l] = activate<ACT>(values[l]);
        v = load(values);
      }
      store_lanes(to, problem.stride_cn, v, count);
    }
  }
}

template <class T>
void store_block_tile(const GemmProblem& problem, int64_t row, int64_t rows, int64_t col, int64_t cols,
                      const Acc<T>* sums, int64_t ld_sums) {
  auto store_as = &store_block_tile<T, Activation::none>;
  switch (problem.activation) {
    case Activation::none:
      break;
    case Activation::relu:
      store_as = &store_block_tile<T, Activation::relu>;
      break;
    case Activation::gelu:
      store_as = &store_block_tile<T, Activation::gelu>;
      break;
    case Activation::gelu_tanh:
      store_as = &store_block_tile<T, Activation::gelu_tanh>;
      break;
    case Activation::silu:
      store_as = &store_block_tile<T, Activation::silu>;
      break;
  }
  store_as(problem, row, rows, col, cols, sums, ld_sums);
}

}  // namespace
}  // namespace tiledmm
TILEDMM_TARGET_END

// The way from partial sums to C: scales, alpha, beta * bias, activation, one rounding, store. One instruction set per
// translation unit, as in simd.h.
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

// `count` elements of the bias from its element `first` on, `stride` apart. One call for all: code outside of this
// instruction set (bias_element) costs Intel's cores 120 ns a call while the upper halves of vectors are in use.
template <class A>
TILEDMM_INLINE void load_bias_elements(const GemmProblem& problem, int64_t first, int64_t stride, int64_t count,
                                       A* values) {
  visit_dtype(problem.dtype_bias, [&](auto* element) {
    const auto* from = static_cast<const std::remove_pointer_t<decltype(element)>*>(problem.bias) + first;
    for (int64_t l = 0; l < count; ++l) values[l] = A(to_acc(from[l * stride]));
  });
}

// The bias of `count` elements of C along n from (row, col) on; the others are 0.
template <class A>
TILEDMM_INLINE Reg<A> load_bias(const GemmProblem& problem, int64_t row, int64_t col, int64_t count) {
  A values[Simd<A>::kLanes] = {};
  load_bias_elements(problem, row * problem.stride_bias_m + col * problem.stride_bias_n, problem.stride_bias_n, count,
                     values);
  return load(values);
}

// The bias of a row of C that adds one number to all of its elements, in each lane.
template <class A>
TILEDMM_INLINE Reg<A> load_bias_of_row(const GemmProblem& problem, int64_t row) {
  A value;
  load_bias_elements(problem, row * problem.stride_bias_m, 0, 1, &value);
  return broadcast(value);
}

// The factors of `count` columns from `col` on, or, where C is computed as C^T, that of a row; the others are 0.
TILEDMM_INLINE Reg<float> load_scales(const GemmProblem& problem, int64_t row, int64_t col, int64_t count) {
  if (problem.scale_a.data) return broadcast(problem.scale_a.data[problem.scale_a.offset(row, 0)]);
  const Scales& scales = problem.scale_b;
  if (scales.rows_of_block == 1 && scales.stride_row == 1)
    return load_partial(scales.data + scales.offset(col, 0), count);
  float values[Simd<float>::kLanes] = {};
  for (int64_t l = 0; l < count; ++l) values[l] = problem.scale_b.data[problem.scale_b.offset(col + l, 0)];
  return load(values);
}

// C = activation(alpha * scale * sums + beta * bias) for rows x cols of C from (row, col).
template <class T, Activation ACT>
void store_block_tile_as(const GemmProblem& problem, int64_t row, int64_t rows, int64_t col, int64_t cols,
                         const Acc<T>* sums, int64_t ld_sums) {
  using A = Acc<T>;
  constexpr int kLanes = Simd<A>::kLanes;
  const bool is_blending = is_blended(problem);
  const bool bias_along_n = problem.bias && problem.stride_bias_m == 0 && !is_blending;
  const Reg<A> alpha = broadcast(A(problem.alpha)), beta = broadcast(A(problem.beta));
  for (int64_t j = 0; j < cols; j += kLanes) {
    const int64_t count = min_of(kLanes, cols - j);
    Reg<A> bias_n{};
    if (bias_along_n) bias_n = load_bias<A>(problem, row, col + j, count);
    for (int64_t i = 0; i < rows; ++i) {
      const A* from = sums + i * ld_sums + j;
      Reg<A> v = count == kLanes ? load(from) : load_partial(from, count);
      if constexpr (std::is_same_v<A, float>) {
        if (problem.scaling != Scaling::none) v *= load_scales(problem, row + i, col + j, count);
      }
      if (is_blending) {
        v *= alpha;
        if (problem.bias) v += beta * load_bias<A>(problem, row + i, col + j, count);
      } else if (problem.bias) {
        v += bias_along_n ? bias_n : load_bias_of_row<A>(problem, row + i);
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
void store_block_tile_as(const GemmProblem& problem, int64_t row, int64_t rows, int64_t col, int64_t cols,
                         const Acc<T>* sums, int64_t ld_sums) {
  auto store_as = &store_block_tile_as<T, Activation::none>;
  switch (problem.activation) {
    case Activation::none:
      break;
    case Activation::relu:
      store_as = &store_block_tile_as<T, Activation::relu>;
      break;
    case Activation::gelu:
      store_as = &store_block_tile_as<T, Activation::gelu>;
      break;
    case Activation::gelu_tanh:
      store_as = &store_block_tile_as<T, Activation::gelu_tanh>;
      break;
    case Activation::silu:
      store_as = &store_block_tile_as<T, Activation::silu>;
      break;
  }
  store_as(problem, row, rows, col, cols, sums, ld_sums);
}

// store_block_tile calls store_block_tile_as with the element type that C has.
inline void store_block_tile(const GemmProblem& problem, int64_t row, int64_t rows, int64_t col, int64_t cols,
                             const double* sums, int64_t ld_sums) {
  store_block_tile_as<double>(problem, row, rows, col, cols, sums, ld_sums);
}
inline void store_block_tile(const GemmProblem& problem, int64_t row, int64_t rows, int64_t col, int64_t cols,
                             const float* sums, int64_t ld_sums) {
  switch (problem.dtype_c) {
    case DType::f16:
      return store_block_tile_as<Half>(problem, row, rows, col, cols, sums, ld_sums);
    case DType::bf16:
      return store_block_tile_as<BFloat16>(problem, row, rows, col, cols, sums, ld_sums);
    default:
      return store_block_tile_as<float>(problem, row, rows, col, cols, sums, ld_sums);
  }
}

}  // namespace
}  // namespace tiledmm
TILEDMM_TARGET_END

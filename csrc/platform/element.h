// The four element types, their accumulators, and the scalar epilogue: what every CPU rung does the same way.
#pragma once

#include <cstdint>
#include <tuple>

#include "core/math.h"
#include "core/problem.h"
#include "platform/float8.h"
#include "platform/vector_math.h"

namespace tiledmm {

// The 16-bit types have external linkage: their instances of the kernels are compiled apart from the launchers.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};
// An element of 8 bits, of a B that stands beside a wider A.
struct E4m3 {
  uint8_t bits;
};

namespace {

template <class T>
struct ElementTraits {
  using Acc = T;
};
template <>
struct ElementTraits<Half> {
  using Acc = float;
};
template <>
struct ElementTraits<BFloat16> {
  using Acc = float;
};
template <>
struct ElementTraits<E4m3> {
  using Acc = float;
};
// What products of T are summed in.
template <class T>
using Acc = typename ElementTraits<T>::Acc;

static inline float to_acc(float value) { return value; }
static inline double to_acc(double value) { return value; }
static inline float to_acc(Half value) { return half_to_float(value.bits); }
static inline float to_acc(BFloat16 value) { return bf16_to_float(value.bits); }
[[maybe_unused]] static inline float to_acc(E4m3 value) { return e4m3_to_float(value.bits); }

template <class T>
static inline T from_acc(Acc<T> value) {
  return value;
}
template <>
[[maybe_unused]] inline Half from_acc<Half>(float value) {
  return {float_to_half(value)};
}
template <>
[[maybe_unused]] inline BFloat16 from_acc<BFloat16>(float value) {
  return {float_to_bf16(value)};
}

template <class T>
inline constexpr DType kDTypeOf = DType::f32;
template <>
inline constexpr DType kDTypeOf<double> = DType::f64;
template <>
inline constexpr DType kDTypeOf<Half> = DType::f16;
template <>
inline constexpr DType kDTypeOf<BFloat16> = DType::bf16;
template <>
inline constexpr DType kDTypeOf<E4m3> = DType::e4m3;

template <DType DTYPE>
using ElementOf = std::tuple_element_t<size_t(DTYPE), std::tuple<float, double, Half, BFloat16>>;

// Calls visit with a null pointer to the element type of `dtype`.
template <class Visit>
auto visit_dtype(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::f32:
      return visit(static_cast<float*>(nullptr));
    case DType::f64:
      return visit(static_cast<double*>(nullptr));
    case DType::f16:
      return visit(static_cast<Half*>(nullptr));
    default:
      return visit(static_cast<BFloat16*>(nullptr));
  }
}

// visit_operands calls visit with null pointers to the element types of A and of B. They are of one dtype, or one is
// fp32 and the other has 16 bits.
template <class Visit>
auto visit_operands(const GemmProblem& problem, const Visit& visit) {
  return visit_dtype(problem.dtype_a, [&](auto* a) {
    using A = std::remove_pointer_t<decltype(a)>;
    if constexpr (sizeof(A) == 8) {
      return visit(a, a);
    } else if constexpr (sizeof(A) == 2) {
      return problem.dtype_b == DType::f32 ? visit(a, static_cast<float*>(nullptr)) : visit(a, a);
    } else {
      return problem.dtype_b == DType::f32   ? visit(a, a)
             : problem.dtype_b == DType::f16 ? visit(a, static_cast<Half*>(nullptr))
                                             : visit(a, static_cast<BFloat16*>(nullptr));
    }
  });
}

template <class A>
TILEDMM_SCALAR_ATTRIBUTES A activate_as(Activation activation, A value) {
  switch (activation) {
    case Activation::relu:
      return activate<Activation::relu>(value);
    case Activation::gelu:
      return activate<Activation::gelu>(value);
    case Activation::gelu_tanh:
      return activate<Activation::gelu_tanh>(value);
    case Activation::silu:
      return activate<Activation::silu>(value);
    default:
      return value;
  }
}

// Element `idx` of a bias, whose dtype the problem says, in the type that sums have.
template <class A>
A bias_element(const GemmProblem& problem, int64_t idx) {
  return visit_dtype(problem.dtype_bias, [&](auto* element) {
    return A(to_acc(static_cast<const std::remove_pointer_t<decltype(element)>*>(problem.bias)[idx]));
  });
}

// C[i, j] = activation(alpha * acc + beta * bias), rounded once. Both products are rounded: all kernels do the same.
template <class A>
void store_element(const GemmProblem& problem, int64_t i, int64_t j, A acc) {
  acc *= A(problem.alpha);
  if (problem.bias) {
    acc += A(problem.beta) * bias_element<A>(problem, i * problem.stride_bias_m + j * problem.stride_bias_n);
  }
  visit_dtype(problem.dtype_c, [&](auto* element) {
    using C = std::remove_pointer_t<decltype(element)>;
    C* const to = static_cast<C*>(problem.c) + i * problem.stride_cm + j * problem.stride_cn;
    if (problem.sum_offset && problem.activation != Activation::none) to[problem.sum_offset] = from_acc<C>(Acc<C>(acc));
    *to = from_acc<C>(Acc<C>(activate_as(problem.activation, acc)));
  });
}

// The product at place `batch_idx` of the batch, as a problem of its own.
[[maybe_unused]] GemmProblem batch_item(const GemmProblem& problem, int64_t batch_idx) {
  GemmProblem item = problem;
  item.num_batch_dims = 0;
  int64_t offset_a = 0, offset_b = 0, offset_c = 0, offset_bias = 0;
  for (int32_t d = problem.num_batch_dims - 1; d >= 0; --d) {
    const BatchDim& dim = problem.batch_dims[d];
    const int64_t idx = batch_idx % dim.size;
    batch_idx /= dim.size;
    offset_a += idx * dim.stride_a;
    offset_b += idx * dim.stride_b;
    offset_c += idx * dim.stride_c;
    offset_bias += idx * dim.stride_bias;
  }
  item.a = static_cast<const char*>(item.a) + offset_a * size_of(item.dtype_a);
  item.b = static_cast<const char*>(item.b) + offset_b * size_of(item.dtype_b);
  item.c = static_cast<char*>(item.c) + offset_c * size_of(item.dtype_c);
  if (item.bias) item.bias = static_cast<const char*>(item.bias) + offset_bias * size_of(item.dtype_bias);
  return item;
}

}  // namespace
}  // namespace tiledmm

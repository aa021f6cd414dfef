// From the sums of a GPU kernel to C: the item of the batch, alpha, beta, bias, activation, one rounding, store.
#pragma once

#include "platform/widen.h"

namespace tiledmm {
namespace gpu {

// What a C is made of, and its bias, where their dtypes are not those of the operands: fp32 or 16 bits, as the problem
// says.
struct AnyElement {};

}  // namespace gpu

namespace {

template <>
struct ElementTraits<gpu::AnyElement> {
  using Acc = float;
};

// visit_operands with a third: the element type of C and of its bias. Operands of 8 bits have one for both dtypes.
template <class Visit>
auto visit_elements(const GemmProblem& problem, const Visit& visit) {
  if (size_of(problem.dtype_a) == 1) {
    auto* const operand = static_cast<gpu::AnyFloat8*>(nullptr);
    return visit(operand, operand, static_cast<gpu::AnyElement*>(nullptr));
  }
  return visit_operands(problem, [&](auto* a, auto* b) {
    if constexpr (std::is_same_v<decltype(a), decltype(b)>) {
      if (sizeof *a == 8 || problem.dtype_c == problem.dtype_a) return visit(a, b, a);
    }
    if constexpr (sizeof *a < 8) return visit(a, b, static_cast<gpu::AnyElement*>(nullptr));
  });
}

}  // namespace
}  // namespace tiledmm

namespace tiledmm::gpu {

// The product at place `batch_idx` of the batch. IS_SHORT: in few instructions, since those that are jumped over delay
// the first copy of a kernel whose code arrives from memory.
template <bool IS_SHORT = false>
TILEDMM_DEVICE GemmProblem item_of(const FoldedProblem& problem, int64_t batch_idx) {
  GemmProblem item = problem.gemm;
  int64_t offset_a = 0, offset_b = 0, offset_c = 0, offset_bias = 0;
  const auto add_offsets = [&](int32_t d) {
    const BatchDim& dim = problem.batch_dims[d];
    int64_t idx = batch_idx;
    // The first dimension has what is left: most batches have no other, and divide by nothing. Longer code divides for
    // each: that takes fewer registers.
    if (!IS_SHORT || d > 0) {
      batch_idx /= dim.size;
      idx -= batch_idx * dim.size;
    }
    offset_a += idx * dim.stride_a;
    offset_b += idx * dim.stride_b;
    offset_c += idx * dim.stride_c;
    offset_bias += idx * dim.stride_bias;
  };
  if constexpr (IS_SHORT) {
    TILEDMM_NO_UNROLL for (int32_t d = item.num_batch_dims - 1; d >= 0; --d) add_offsets(d);
  } else {
    for (int32_t d = item.num_batch_dims - 1; d >= 0; --d) add_offsets(d);
  }
  item.a = static_cast<const char*>(item.a) + offset_a * size_of_wide(item.dtype_a);
  item.b = static_cast<const char*>(item.b) + offset_b * size_of_wide(item.dtype_b);
  item.c = static_cast<char*>(item.c) + offset_c * size_of_wide(item.dtype_c);
  if (item.bias) item.bias = static_cast<const char*>(item.bias) + offset_bias * size_of_wide(item.dtype_bias);
  return item;
}

// Activations for results that are rounded to 16 bits: within 2^-16 of the result's size, by a quarter of the
// instructions of vector_math.h, and without a branch. Each product that is added to something is a mul_add: every
// kernel then has the same bits. exp2's factors are of log2(e).
// The normal distribution function, from exp(-x * x / 2) and docs/vector_math.py's polynomial in 1 / (1 + scale * |x|).
TILEDMM_DEVICE float short_normal_cdf(float x, float density) {
  const float t = approximate_reciprocal(mul_add(__builtin_fabsf(x), 0.39f, 1.0f));
  float p = 0.0494834557f;
  p = mul_add(p, t, -0.14984934f);
  p = mul_add(p, t, 0.0856297687f);
  p = mul_add(p, t, 0.0702253655f);
  p = mul_add(p, t, 0.1333794f);
  p = mul_add(p, t, 0.155546501f);
  p = mul_add(p, t, 0.155587107f);
  return x < 0 ? p * (t * density) : mul_add(-p, t * density, 1.0f);
}
TILEDMM_DEVICE float short_gelu(float x) { return x * short_normal_cdf(x, approximate_exp2(x * x * -0.721347520f)); }
// silu and gelu_tanh, x * logistic(x) and x * logistic(2 * u) with vector_math.h's u.
TILEDMM_DEVICE float short_logistic(Activation activation, float x) {
  const float factor = activation == Activation::silu ? -1.44269504f : mul_add(x * x, -0.102943240f, -2.30220819f);
  return x * approximate_reciprocal(1.0f + approximate_exp2(x * factor));
}
// The activation of `value`, which becomes an element T.
template <class T, class A>
TILEDMM_DEVICE A activated(Activation activation, A value) {
  if constexpr (sizeof(T) == 2) {
    switch (activation) {
      case Activation::relu:
        return activate<Activation::relu>(value);
      case Activation::gelu:
        return short_gelu(value);
      case Activation::gelu_tanh:
      case Activation::silu:
        return short_logistic(activation, value);
      default:
        return value;
    }
  }
#if defined(TILEDMM_HIP_STANDALONE)
  // exp and erfc in fp64 are in ROCm's device library, which is absent here.
  if constexpr (sizeof(A) == 8) {
    if (activation != Activation::relu) __builtin_trap();
    return activate<Activation::relu>(value);
  } else
#endif
    return activate_as(activation, value);
}

// An element of fp32 or 16 bits at `idx`.
TILEDMM_DEVICE float load_any(const void* memory, DType dtype, int64_t idx) {
  if (dtype == DType::f32) return load_global(static_cast<const float*>(memory) + idx);
  if (dtype == DType::f16) return as_acc(load_global(static_cast<const Half*>(memory) + idx));
  return as_acc(load_global(static_cast<const BFloat16*>(memory) + idx));
}

TILEDMM_DEVICE void store_any(void* memory, DType dtype, int64_t idx, float value) {
  if (dtype == DType::f32) {
    store_global(static_cast<float*>(memory) + idx, value);
  } else if (dtype == DType::f16) {
    store_global(static_cast<Half*>(memory) + idx, rounded_to<Half>(value));
  } else {
    store_global(static_cast<BFloat16*>(memory) + idx, rounded_to<BFloat16>(value));
  }
}

// beta times the element's bias; without one `none`: -0 changes no sum, not even a zero's sign.
template <class T>
TILEDMM_DEVICE Acc<T> load_bias(const GemmProblem& problem, int64_t row, int64_t col, Acc<T> none = Acc<T>(-0.0)) {
  if (!problem.bias || row >= problem.m || col >= problem.n) return none;
  if constexpr (std::is_same_v<T, AnyElement>) {
    const int64_t idx = row * problem.stride_bias_m + col * problem.stride_bias_n;
    return float(problem.beta) * load_any(problem.bias, problem.dtype_bias, idx);
  } else {
    const T* from = static_cast<const T*>(problem.bias) + row * problem.stride_bias_m + col * problem.stride_bias_n;
    return Acc<T>(problem.beta) * as_acc(load_global(from));
  }
}
// alpha * acc + beta * bias.
template <class T>
TILEDMM_DEVICE Acc<T> blended(const GemmProblem& problem, int64_t row, int64_t col, Acc<T> acc,
                              Acc<T> none = Acc<T>(-0.0)) {
  return fused(Acc<T>(problem.alpha), acc, load_bias<T>(problem, row, col, none));
}

// C[row, col] = activation(acc), rounded once, where it is inside of C.
template <class T>
TILEDMM_DEVICE void store_activated(const GemmProblem& problem, int64_t row, int64_t col, Acc<T> acc) {
  if (row >= problem.m || col >= problem.n) return;
  if (problem.activation != Activation::none) acc = activated<T>(problem.activation, acc);
  if constexpr (std::is_same_v<T, AnyElement>) {
    store_any(problem.c, problem.dtype_c, row * problem.stride_cm + col * problem.stride_cn, acc);
  } else {
    store_global(static_cast<T*>(problem.c) + row * problem.stride_cm + col * problem.stride_cn, rounded_to<T>(acc));
  }
}

// C[row, col] = activation(alpha * acc + beta * bias).
template <class T>
TILEDMM_DEVICE void store_element(const GemmProblem& problem, int64_t row, int64_t col, Acc<T> acc) {
  store_activated<T>(problem, row, col, blended<T>(problem, row, col, acc));
}

}  // namespace tiledmm::gpu

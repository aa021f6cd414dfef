// Functions of each element (core/elementwise.h), by the code of the epilogues. A whole number of vectors is computed,
// of which the last one may be stored in part: an element's bits depend neither on its place nor on threads.
// One instruction set per translation unit, as in simd.h.
#pragma once

#include "core/elementwise.h"
#include "core/executor.h"
#include "kernels/cpu/shared/pack.h"
#include "kernels/cpu/shared/parallel.h"
#include "kernels/cpu/shared/simd.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

constexpr int64_t kElementwiseTask = 1 << 14;  // elements: 20 us of gelu, enough to repay another thread

template <Function FUNCTION, bool IS_SLOPE, class A>
TILEDMM_INLINE A evaluate(A x) {
  if constexpr (IS_SLOPE) return slope<Activation(FUNCTION)>(x);
  if constexpr (is_activation(FUNCTION)) return activate<Activation(FUNCTION)>(x);
  if constexpr (FUNCTION == Function::logistic) return with_nan_of(x, logistic(x));
  return with_nan_of(x, normal_density(x));
}

// The first `count` of a vector's lanes; the others are 0 and their memory is not touched.
template <class T>
TILEDMM_INLINE Reg<Acc<T>> load_some(const T* from, int64_t count) {
  if (count == Simd<Acc<T>>::kLanes) return load_converted<TILEDMM_VECTOR_BYTES>(from);
  T own[Simd<Acc<T>>::kLanes] = {};
  for (int64_t i = 0; i < count; ++i) own[i] = from[i];
  return load_converted<TILEDMM_VECTOR_BYTES>(own);
}

template <class T, Function FUNCTION, bool IS_SLOPE>
void compute_elements(const ElementwiseProblem& problem, int64_t begin, int64_t end) {
  using A = Acc<T>;
  constexpr int kLanes = Simd<A>::kLanes;
  const T* x = static_cast<const T*>(problem.x);
  const T* grad = static_cast<const T*>(problem.grad);
  T* y = static_cast<T*>(problem.y);
  for (int64_t i = begin; i < end; i += kLanes) {
    const int64_t count = min_of(kLanes, end - i);
    A values[kLanes];
    store(values, load_some(x + i, count));
    for (int l = 0; l < kLanes; ++l) values[l] = evaluate<FUNCTION, IS_SLOPE>(values[l]);
    Reg<A> v = load(values);
    if constexpr (IS_SLOPE && FUNCTION == Function::relu) {
      v = v != 0 ? load_some(grad + i, count) : Reg<A>{};  // an infinite gradient times 0 would be NaN
    } else if constexpr (IS_SLOPE) {
      v *= load_some(grad + i, count);
    }
    store_converted(y + i, v, count);
  }
}

// activation(x) * other, and the gradients of both: of elements T, with results Y.
template <class T, class Y, Activation ACT>
void compute_gated(const ElementwiseProblem& problem, int64_t begin, int64_t end) {
  using A = Acc<T>;
  constexpr int kLanes = Simd<A>::kLanes;
  const T* grad = static_cast<const T*>(problem.grad);
  for (int64_t i = begin; i < end; i += kLanes) {
    const int64_t count = min_of(kLanes, end - i);
    const Reg<A> x = load_some(static_cast<const T*>(problem.x) + i, count);
    Reg<A> other = load_some(static_cast<const T*>(problem.other) + i, count);
    A values[kLanes], slopes[kLanes];
    store(values, x), store(slopes, x);
    for (int l = 0; l < kLanes; ++l) values[l] = activate<ACT>(values[l]);
    if (grad) {
      for (int l = 0; l < kLanes; ++l) slopes[l] = slope<ACT>(slopes[l]);
      const Reg<A> own_grad = load_some(grad + i, count);
      other = own_grad * other;
      // An infinite gradient times relu's 0 would be NaN.
      const Reg<A> slope_of_x = load(slopes);
      other = ACT == Activation::relu ? slope_of_x != 0 ? other : Reg<A>{} : other * slope_of_x;
      store_converted(static_cast<T*>(problem.y_other) + i, own_grad * load(values), count);
    } else {
      if (problem.x_kept) store_converted(static_cast<Y*>(problem.x_kept) + i, x, count);
      if (problem.other_kept) store_converted(static_cast<Y*>(problem.other_kept) + i, other, count);
      other = load(values) * other;
    }
    store_converted(static_cast<Y*>(problem.y) + i, other, count);
  }
}

template <DType DTYPE, class Y>
void widen_elements(const ElementwiseProblem& problem, int64_t begin, int64_t end) {
  constexpr int kLanes = Simd<float>::kLanes;
  const uint8_t* x = static_cast<const uint8_t*>(problem.x);
  for (int64_t i = begin; i < end; i += kLanes) {
    const int64_t count = min_of(kLanes, end - i);
    uint8_t own[kLanes] = {};
    for (int64_t l = 0; count < kLanes && l < count; ++l) own[l] = x[i + l];
    store_converted(static_cast<Y*>(problem.y) + i, load_float8<DTYPE>(count < kLanes ? own : x + i), count);
  }
}

using ComputeElements = void (*)(const ElementwiseProblem& problem, int64_t begin, int64_t end);

inline ComputeElements find_elements_function(const ElementwiseProblem& problem) {
  if (size_of(problem.dtype) == 1) {
    return visit_dtype(problem.dtype_y, [&](auto* element) -> ComputeElements {
      using Y = std::remove_pointer_t<decltype(element)>;
      if constexpr (sizeof(Y) == 8)
        return nullptr;
      else
        return problem.dtype == DType::e4m3 ? &widen_elements<DType::e4m3, Y> : &widen_elements<DType::e5m2, Y>;
    });
  }
  return visit_dtype(problem.dtype, [&](auto* element) -> ComputeElements {
    using T = std::remove_pointer_t<decltype(element)>;
    if (!problem.other) {
      return visit_function(problem, [](auto function, auto is_slope) -> ComputeElements {
        return &compute_elements<T, decltype(function)::value, decltype(is_slope)::value>;
      });
    }
    return visit_activation(problem.function, [&](auto activation) -> ComputeElements {
      constexpr Activation kActivation = decltype(activation)::value;
      if constexpr (std::is_same_v<T, float>) {
        if (problem.dtype_y == DType::f16) return &compute_gated<T, Half, kActivation>;
        if (problem.dtype_y == DType::bf16) return &compute_gated<T, BFloat16, kActivation>;
      }
      return &compute_gated<T, T, kActivation>;
    });
  });
}

[[maybe_unused]] void elementwise(const ElementwiseProblem& problem, const Executor& executor) {
  const int64_t num_tasks = executor.num_threads == 1 ? 1 : ceil_div(problem.count, kElementwiseTask);
  const int64_t per_task = num_tasks == 1 ? problem.count : kElementwiseTask;
  const ComputeElements compute = find_elements_function(problem);
  for_each_task(executor, min_of(int64_t(executor.num_threads), num_tasks), num_tasks, [&](int64_t, int64_t task) {
    compute(problem, task * per_task, min_of((task + 1) * per_task, problem.count));
  });
}

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

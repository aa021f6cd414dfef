// A function of each element of a tensor, as plain data.
//
//   y[i] = function(x[i]), or, where grad is given, grad[i] * function'(x[i])      i < count
//
// A gated pair has `other`, too: y[i] = function(x[i]) * other[i], or, where grad is given, both gradients:
// y[i] = grad[i] * other[i] * function'(x[i]) and y_other[i] = grad[i] * function(x[i]).
//
// Sums in fp32 with a y of 16 bits may be kept beside it: x_kept[i] = x[i] and other_kept[i] = other[i], rounded as y
// is. Those of one product have no `other`, which then counts as 1.
//
// x of 8 bits is widened: y[i] = x[i], of dtype_y.
//
// All operands are contiguous and have one dtype otherwise. They are computed in the accumulator's type and rounded
// once.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/problem.h"

namespace tiledmm {

// Those that have an Activation's name have its number. The others have no grad: the derivatives of the activations'
// slopes are made of them.
enum class Function : int32_t { relu = 1, gelu = 2, gelu_tanh = 3, silu = 4, logistic = 5, normal_density = 6 };
inline constexpr int kNumFunctions = 6;
inline constexpr const char* kFunctionNames[kNumFunctions] = {"relu", "gelu",     "gelu_tanh",
                                                              "silu", "logistic", "normal_density"};
constexpr bool is_activation(Function function) { return int32_t(function) < kNumActivations; }

struct ElementwiseProblem {
  Function function;
  DType dtype;
  int64_t count;
  const void* x;
  const void* grad;  // null: the function itself
  void* y;           // may be x or grad
  // A gated pair; its function is an activation, and y has dtype_y: fp32 operands may have a y of 16 bits.
  const void* other = nullptr;
  void* y_other = nullptr;
  DType dtype_y = DType::f32;
  void* x_kept = nullptr;
  void* other_kept = nullptr;
};

// Calls visit with an integral_constant of an activation.
template <class Visit>
auto visit_activation(Function function, const Visit& visit) {
  switch (function) {
    case Function::relu:
      return visit(std::integral_constant<Activation, Activation::relu>{});
    case Function::gelu:
      return visit(std::integral_constant<Activation, Activation::gelu>{});
    case Function::gelu_tanh:
      return visit(std::integral_constant<Activation, Activation::gelu_tanh>{});
    default:
      return visit(std::integral_constant<Activation, Activation::silu>{});
  }
}

// Calls visit with an integral_constant of `function`, and of whether it is the slope that is asked for.
template <class Visit>
auto visit_function(const ElementwiseProblem& problem, const Visit& visit) {
  if (problem.function == Function::logistic) {
    return visit(std::integral_constant<Function, Function::logistic>{}, std::false_type{});
  }
  if (problem.function == Function::normal_density) {
    return visit(std::integral_constant<Function, Function::normal_density>{}, std::false_type{});
  }
  return visit_activation(problem.function, [&](auto activation) {
    constexpr std::integral_constant<Function, static_cast<Function>(decltype(activation)::value)> function{};
    return problem.grad ? visit(function, std::true_type{}) : visit(function, std::false_type{});
  });
}

}  // namespace tiledmm

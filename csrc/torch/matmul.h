// The public operators as typed calls through the dispatcher, for the Autograd and Autocast kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string_view>
#include <tuple>

namespace tiledmm {

// This name means auto, too, and torch_tiledmm.use_algorithm does not replace it: a backward pass gives it to the
// products of what was recorded with auto.
constexpr std::string_view kPlainAuto = "plain_auto";

using MatmulOp = at::Tensor(const at::Tensor& a, const at::Tensor& b, std::string_view algorithm);
using MatmulOutOp = void(const at::Tensor& a, const at::Tensor& b, at::Tensor& out, std::string_view algorithm);
using LinearOp = at::Tensor(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            std::string_view activation, std::string_view algorithm);
using LinearWeightGradsOp = std::tuple<at::Tensor, at::Tensor>(const at::Tensor& grad, const at::Tensor& input,
                                                               std::string_view algorithm);

inline const c10::TypedOperatorHandle<MatmulOp>& matmul_op() {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("tiledmm::matmul", "").typed<MatmulOp>();
  return op;
}
inline const c10::TypedOperatorHandle<MatmulOutOp>& matmul_out_op() {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("tiledmm::matmul_out", "").typed<MatmulOutOp>();
  return op;
}
inline const c10::TypedOperatorHandle<LinearOp>& linear_op() {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("tiledmm::linear", "").typed<LinearOp>();
  return op;
}
inline const c10::TypedOperatorHandle<LinearWeightGradsOp>& linear_weight_grads_op() {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("tiledmm::linear_weight_grads", "").typed<LinearWeightGradsOp>();
  return op;
}

}  // namespace tiledmm

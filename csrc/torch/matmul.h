// The operators as typed calls through the dispatcher, for the Autograd and Autocast kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string_view>
#include <tuple>

namespace tiledmm {

using OptionalDtype = std::optional<at::ScalarType>;

// This name means auto, too, and torch_tiledmm.use_algorithm does not replace it: a backward pass gives it to the
// products of what was recorded with auto.
constexpr std::string_view kPlainAuto = "plain_auto";

using MatmulOp = at::Tensor(const at::Tensor& a, const at::Tensor& b, std::string_view algorithm,
                            OptionalDtype out_dtype);
using MatmulOutOp = void(const at::Tensor& a, const at::Tensor& b, at::Tensor& out, std::string_view algorithm);
using AddmmOp = at::Tensor(const std::optional<at::Tensor>& input, const at::Tensor& a, const at::Tensor& b,
                           double beta, double alpha, std::string_view algorithm, OptionalDtype out_dtype);
using LinearOp = at::Tensor(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            std::string_view activation, std::string_view algorithm, OptionalDtype out_dtype);
using LinearAndSumOp = std::tuple<at::Tensor, at::Tensor>(const at::Tensor& input, const at::Tensor& weight,
                                                          const std::optional<at::Tensor>& bias,
                                                          std::string_view activation, std::string_view algorithm,
                                                          OptionalDtype out_dtype);
using ActivateOp = at::Tensor(const at::Tensor& x, std::string_view activation);
using ActivateBackwardOp = at::Tensor(const at::Tensor& grad, const at::Tensor& x, std::string_view activation);
using GatedOp = at::Tensor(const at::Tensor& gate, const at::Tensor& up, std::string_view activation,
                           OptionalDtype out_dtype);
using GatedBackwardOp = std::tuple<at::Tensor, at::Tensor>(const at::Tensor& grad, const at::Tensor& gate,
                                                           const at::Tensor& up, std::string_view activation);
using GatedLinearOp = at::Tensor(const at::Tensor& input, const at::Tensor& gate, const at::Tensor& up,
                                 const std::optional<at::Tensor>& gate_bias, const std::optional<at::Tensor>& up_bias,
                                 std::string_view activation, std::string_view algorithm, OptionalDtype out_dtype);
using GatedLinearAndSumsOp = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
    const at::Tensor& input, const at::Tensor& gate, const at::Tensor& up, const std::optional<at::Tensor>& gate_bias,
    const std::optional<at::Tensor>& up_bias, std::string_view activation, std::string_view algorithm,
    OptionalDtype out_dtype);
using GroupedMatmulOp = at::Tensor(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& offs,
                                   const std::optional<at::Tensor>& bias, OptionalDtype out_dtype,
                                   std::string_view activation, std::string_view algorithm);
using GroupedMatmulAndSumOp = std::tuple<at::Tensor, at::Tensor>(const at::Tensor& a, const at::Tensor& b,
                                                                 const std::optional<at::Tensor>& offs,
                                                                 const std::optional<at::Tensor>& bias,
                                                                 OptionalDtype out_dtype, std::string_view activation,
                                                                 std::string_view algorithm);
using GatedGroupedMatmulOp = at::Tensor(const at::Tensor& a, const at::Tensor& gate, const at::Tensor& up,
                                        const std::optional<at::Tensor>& offs,
                                        const std::optional<at::Tensor>& gate_bias,
                                        const std::optional<at::Tensor>& up_bias, OptionalDtype out_dtype,
                                        std::string_view activation, std::string_view algorithm);
using GatedGroupedMatmulAndSumsOp = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
    const at::Tensor& a, const at::Tensor& gate, const at::Tensor& up, const std::optional<at::Tensor>& offs,
    const std::optional<at::Tensor>& gate_bias, const std::optional<at::Tensor>& up_bias, OptionalDtype out_dtype,
    std::string_view activation, std::string_view algorithm);
using ScaledMatmulOp = at::Tensor(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a,
                                  const at::Tensor& scale_b, const std::optional<at::Tensor>& bias,
                                  OptionalDtype out_dtype, std::string_view activation, std::string_view algorithm);
using ScaledGroupedMatmulOp = at::Tensor(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a,
                                         const at::Tensor& scale_b, const at::Tensor& offs,
                                         const std::optional<at::Tensor>& bias, OptionalDtype out_dtype,
                                         std::string_view activation, std::string_view algorithm);
using OrderedSumOp = at::Tensor(const at::Tensor& a, at::IntArrayRef dims);
using LinearWeightGradsOp = std::tuple<at::Tensor, at::Tensor>(const at::Tensor& grad, const at::Tensor& input,
                                                               std::string_view algorithm);

// One function for each: its handle is looked up once.
#define TILEDMM_OPERATOR(NAME, TYPE)                                                                            \
  inline const c10::TypedOperatorHandle<TYPE>& NAME##_op() {                                                    \
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("tiledmm::" #NAME, "").typed<TYPE>(); \
    return op;                                                                                                  \
  }
TILEDMM_OPERATOR(matmul, MatmulOp)
TILEDMM_OPERATOR(matmul_out, MatmulOutOp)
TILEDMM_OPERATOR(addmm, AddmmOp)
TILEDMM_OPERATOR(linear, LinearOp)
TILEDMM_OPERATOR(linear_and_sum, LinearAndSumOp)
TILEDMM_OPERATOR(linear_weight_grads, LinearWeightGradsOp)
TILEDMM_OPERATOR(activate, ActivateOp)
TILEDMM_OPERATOR(activate_backward, ActivateBackwardOp)
TILEDMM_OPERATOR(gated, GatedOp)
TILEDMM_OPERATOR(gated_backward, GatedBackwardOp)
TILEDMM_OPERATOR(gated_linear, GatedLinearOp)
TILEDMM_OPERATOR(_stacked_gated_linear, LinearOp)
TILEDMM_OPERATOR(gated_linear_and_sums, GatedLinearAndSumsOp)
TILEDMM_OPERATOR(grouped_matmul, GroupedMatmulOp)
TILEDMM_OPERATOR(grouped_matmul_and_sum, GroupedMatmulAndSumOp)
TILEDMM_OPERATOR(gated_grouped_matmul, GatedGroupedMatmulOp)
TILEDMM_OPERATOR(_stacked_gated_grouped_matmul, GroupedMatmulOp)
TILEDMM_OPERATOR(gated_grouped_matmul_and_sums, GatedGroupedMatmulAndSumsOp)
TILEDMM_OPERATOR(scaled_matmul, ScaledMatmulOp)
TILEDMM_OPERATOR(scaled_grouped_matmul, ScaledGroupedMatmulOp)
TILEDMM_OPERATOR(ordered_sum, OrderedSumOp)
#undef TILEDMM_OPERATOR

}  // namespace tiledmm

// Derivatives of gated layers and of products in groups: where a kernel computes a result and the sums that a gradient
// needs, they are given to the Functions that would compute them.
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "torch/differentiate.h"

namespace tiledmm {
namespace {

// Whether all are what the kernels read. If not, the kernel below raises, and names the one that is not.
bool are_plain(std::initializer_list<Tensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor& tensor) {
    return tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_nested() && dtype_of(tensor.scalar_type());
  });
}
bool is_plain_or_none(const OptionalTensor& tensor) { return !tensor || !tensor->defined() || are_plain({*tensor}); }

Tensor gated_autograd(c10::DispatchKeySet keys, const Tensor& gate, const Tensor& up, std::string_view activation,
                      OptionalDtype out_dtype) {
  const c10::DispatchKeySet below = keys & c10::after_autograd_keyset;
  const Wanted wanted(gate, up);
  if (wanted.nothing() || !are_plain({gate, up})) return gated_op().redispatch(below, gate, up, activation, out_dtype);
  const at::ScalarType result = check_gated<c10::SymInt>(gate, up, activation, out_dtype);
  return differentiate<GatedFormula>(wanted, gate, up, Tensor(), below, GatedFormula::text_of(activation, result));
}

// In one pass, unless it is to be differentiated itself.
std::tuple<Tensor, Tensor> gated_backward_autograd(c10::DispatchKeySet keys, const Tensor& grad, const Tensor& gate,
                                                   const Tensor& up, std::string_view activation) {
  const Wanted wanted(grad, gate, up);
  if (wanted.nothing() || !are_plain({grad, gate, up})) {
    return gated_backward_op().redispatch(keys & c10::after_autograd_keyset, grad, gate, up, activation);
  }
  check_gated<c10::SymInt>(gate, up, activation);
  check_one_shape<c10::SymInt>({"grad", grad}, {"gate", gate});
  return {activate_backward_op().call(grad * up, gate, activation), grad * activate_op().call(gate, activation)};
}

// The result of a gated product and its sums, in one pass, are given to the Functions that would compute them.
// apply_product(weight, bias, sum) is that of a sum.
template <class ApplyProduct>
Tensor apply_gated(const std::tuple<Tensor, Tensor, Tensor>& computed, const Tensor& gate, const Tensor& up,
                   const OptionalTensor& gate_bias, const OptionalTensor& up_bias, std::string_view activation,
                   c10::DispatchKeySet below, const ApplyProduct& apply_product) {
  const auto& [result, gate_sum, up_sum] = computed;
  const Tensor own_gate = apply_product(gate, gate_bias.value_or(Tensor()), Computed{gate_sum});
  const Tensor own_up = apply_product(up, up_bias.value_or(Tensor()), Computed{up_sum});
  return apply_function<GatedFormula>(own_gate, own_up, Tensor(), below,
                                      GatedFormula::text_of(activation, result.scalar_type()), Computed{result});
}

// Under a gradient both sums are kept, in the result's dtype; the result comes of the sums as they were. Where no
// Function serves, the sums are results themselves, and rounded as such.
Tensor gated_linear_autograd(c10::DispatchKeySet keys, const Tensor& input, const Tensor& gate, const Tensor& up,
                             const OptionalTensor& gate_bias, const OptionalTensor& up_bias,
                             std::string_view activation, std::string_view algorithm, OptionalDtype out_dtype) {
  const Wanted wanted(input, gate, up), of_biases(gate_bias.value_or(Tensor()), up_bias.value_or(Tensor()));
  const bool is_given = are_plain({input, gate, up}) && is_plain_or_none(gate_bias) && is_plain_or_none(up_bias);
  if ((wanted.nothing() && of_biases.nothing()) || !is_given) {
    return gated_linear_op().redispatch(keys & c10::after_autograd_keyset, input, gate, up, gate_bias, up_bias,
                                        activation, algorithm, out_dtype);
  }
  check_gated_linear<c10::SymInt>(input, gate, up, gate_bias, up_bias, activation, out_dtype);
  if (needs_node(wanted) || of_biases.tangent) {
    const Tensor gate_sum = linear_op().call(input, gate, gate_bias, "none", algorithm, out_dtype);
    const Tensor up_sum = linear_op().call(input, up, up_bias, "none", algorithm, out_dtype);
    return gated_op().call(gate_sum, up_sum, activation, std::nullopt);
  }
  if (gate.dim() == 1) {
    return gated_linear_op()
        .call(input, gate.unsqueeze(0), up.unsqueeze(0), gate_bias, up_bias, activation, algorithm, out_dtype)
        .squeeze(-1);
  }
  const c10::DispatchKeySet below = keys & c10::after_autograd_keyset;
  const auto of_columns = [&](const OptionalTensor& bias) -> OptionalTensor {
    return bias && bias->defined() ? broadcast(*bias, gate.sym_sizes().slice(0, 1), below) : bias;
  };
  const OptionalTensor wide_gate_bias = of_columns(gate_bias), wide_up_bias = of_columns(up_bias);
  std::tuple<Tensor, Tensor, Tensor> computed;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    computed = gated_linear_and_sums_op().redispatch(below, input, gate, up, wide_gate_bias, wide_up_bias, activation,
                                                     algorithm, out_dtype);
  }
  const auto apply_product = [&](const Tensor& weight, const Tensor& bias, const Computed& sum) {
    const std::string option = ProductOption(input, weight, bias, algorithm, out_dtype).text();
    return apply_function<LinearFormula<false>>(input, weight, bias, below, option, sum);
  };
  return apply_gated(computed, gate, up, wide_gate_bias, wide_up_bias, activation, below, apply_product);
}

// Gate's part and up's of what holds both, one behind the other.
struct Halves {
  Tensor gate, up;
  Halves(const Tensor& both, int64_t dim) {
    if (!both.defined()) return;
    TORCH_CHECK(both.sym_size(dim) % 2 == 0, "tiledmm: got shape ", both.sym_sizes(), "; accepted is an even size of ",
                "dimension ", dim, ", half of it gate's and half of it up's");
    const std::vector<Tensor> parts = both.chunk(2, dim);
    gate = parts[0], up = parts[1];
  }
};

// A gated layer, or gated groups, whose weight and bias hold both parts. Its gradients are those of one product, not of
// two that would be put together.
template <bool IS_GROUPED>
struct StackedGatedFunction : torch::autograd::Function<StackedGatedFunction<IS_GROUPED>> {
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* context, const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                        const OptionalTensor& offs, std::string_view activation, std::string_view algorithm,
                        OptionalDtype out_dtype) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Halves weights(weight, kDim), biases(bias.value_or(Tensor()), kDim);
    const OptionalTensor gate_bias = optional(biases.gate), up_bias = optional(biases.up);
    Tensor result, gate_sum, up_sum;
    if constexpr (IS_GROUPED)
      std::tie(result, gate_sum, up_sum) = gated_grouped_matmul_and_sums_op().call(
          input, weights.gate, weights.up, offs, gate_bias, up_bias, out_dtype, activation, algorithm);
    else
      std::tie(result, gate_sum, up_sum) = gated_linear_and_sums_op().call(input, weights.gate, weights.up, gate_bias,
                                                                           up_bias, activation, algorithm, out_dtype);
    const Tensor own_bias = bias.value_or(Tensor());
    const std::string option = ProductOption(input, weight, own_bias, algorithm, out_dtype).text();
    context->saved_data["activation"] = std::string(activation);
    context->saved_data["option"] = recorded(option);
    context->save_for_backward({input, weight, own_bias, offs.value_or(Tensor()), gate_sum, up_sum});
    return result;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const TorchOnOneThreadInChild own_thread;
    const variable_list saved = context->get_saved_variables();
    const std::string activation = context->saved_data["activation"].toStringRef();
    const std::string option = context->saved_data["option"].toStringRef();
    const Tensor &input = saved[0], &weight = saved[1], &bias = saved[2], &offs = saved[3];
    Tensor gate_sum = saved[4], up_sum = saved[5];
    if (at::GradMode::is_enabled()) {  // to be differentiated, they are computed again
      const ProductOption own(option);
      const Tensor both = IS_GROUPED
                              ? grouped_matmul_op().call(input, weight, optional(offs), optional(bias), own.result,
                                                         "none", own.algorithm)
                              : linear_op().call(input, weight, optional(bias), "none", own.algorithm, own.result);
      const Halves sums(both, -1);
      gate_sum = sums.gate, up_sum = sums.up;
    }
    const auto [gate_grad, up_grad] = gated_backward_op().call(grads[0], gate_sum, up_sum, activation);
    Needs needs{};
    for (size_t i = 0; i < 3; ++i) needs[i] = (i < 2 || bias.defined()) && context->needs_input_grad(i);
    using Formula = std::conditional_t<IS_GROUPED, GroupedFormula, LinearFormula<false>>;
    variable_list result =
        Formula::backward(at::cat({gate_grad, up_grad}, -1), {input, weight, {}, offs}, needs, option);
    result.resize(7);
    return result;
  }

 private:
  static constexpr int64_t kDim = IS_GROUPED ? -1 : 0;  // along which weight and bias hold both
};

// Whether a Function of one product is of use: it keeps the input for the gradient of the weight.
bool is_one_product(const Wanted& wanted, const Tensor& input, const Tensor& weight, const OptionalTensor& bias) {
  return wanted.grad && weight.requires_grad() && !needs_node(wanted) && are_plain({input, weight}) &&
         is_plain_or_none(bias);
}

Tensor stacked_gated_linear(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                            std::string_view activation, std::string_view algorithm, OptionalDtype out_dtype) {
  if (is_one_product(Wanted(input, weight, bias), input, weight, bias)) {
    return StackedGatedFunction<false>::apply(input, weight, bias, OptionalTensor(), activation, algorithm, out_dtype);
  }
  const Halves weights(weight, 0), biases(bias.value_or(Tensor()), 0);
  return gated_linear_op().call(input, weights.gate, weights.up, optional(biases.gate), optional(biases.up), activation,
                                algorithm, out_dtype);
}

Tensor stacked_gated_grouped_matmul(const Tensor& a, const Tensor& b, const OptionalTensor& offs,
                                    const OptionalTensor& bias, OptionalDtype out_dtype, std::string_view activation,
                                    std::string_view algorithm) {
  if (is_one_product(Wanted(a, b, bias), a, b, bias))
    return StackedGatedFunction<true>::apply(a, b, bias, offs, activation, algorithm, out_dtype);
  const Halves weights(b, -1), biases(bias.value_or(Tensor()), -1);
  return gated_grouped_matmul_op().call(a, weights.gate, weights.up, offs, optional(biases.gate), optional(biases.up),
                                        out_dtype, activation, algorithm);
}

// As linear_autograd, but for relu, too.
Tensor grouped_matmul_autograd(c10::DispatchKeySet keys, const Tensor& a, const Tensor& b, const OptionalTensor& offs,
                               const OptionalTensor& bias, OptionalDtype out_dtype, std::string_view activation,
                               std::string_view algorithm) {
  const Wanted wanted(a, b, bias);
  if (wanted.nothing() || !are_plain({a, b}) || !is_plain_or_none(bias)) {
    return grouped_matmul_op().redispatch(keys & c10::after_autograd_keyset, a, b, offs, bias, out_dtype, activation,
                                          algorithm);
  }
  const Tensor own_bias = bias.value_or(Tensor()), ends = offs.value_or(Tensor());
  const GroupedShape<c10::SymInt> checked(a, b, offs, bias);
  const c10::DispatchKeySet below = keys & c10::after_autograd_keyset;
  if (to_activation(activation) == Activation::none) {
    const std::string option = ProductOption(a, b, own_bias, algorithm, out_dtype).text();
    return differentiate<GroupedFormula>(wanted, a, b, own_bias, below, option, ends);
  }
  if (needs_node(wanted))
    return activate_op().call(grouped_matmul_op().call(a, b, offs, bias, out_dtype, "none", algorithm), activation);
  Computed result, sum;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    std::tie(result.result, sum.result) =
        grouped_matmul_and_sum_op().redispatch(below, a, b, offs, bias, out_dtype, activation, algorithm);
  }
  const std::string option = ProductOption(a, b, own_bias, algorithm, out_dtype).text();
  const Tensor z = apply_function<GroupedFormula>(a, b, own_bias, below, option, sum, ends);
  return apply_function<ActivateFormula>(z, Tensor(), Tensor(), below, activation, result);
}

// As gated_linear_autograd.
Tensor gated_grouped_matmul_autograd(c10::DispatchKeySet keys, const Tensor& a, const Tensor& gate, const Tensor& up,
                                     const OptionalTensor& offs, const OptionalTensor& gate_bias,
                                     const OptionalTensor& up_bias, OptionalDtype out_dtype,
                                     std::string_view activation, std::string_view algorithm) {
  const Wanted wanted(a, gate, up), of_biases(gate_bias.value_or(Tensor()), up_bias.value_or(Tensor()));
  const bool is_given = are_plain({a, gate, up}) && is_plain_or_none(gate_bias) && is_plain_or_none(up_bias);
  if ((wanted.nothing() && of_biases.nothing()) || !is_given) {
    return gated_grouped_matmul_op().redispatch(keys & c10::after_autograd_keyset, a, gate, up, offs, gate_bias,
                                                up_bias, out_dtype, activation, algorithm);
  }
  check_gated_grouped<c10::SymInt>(a, gate, up, offs, gate_bias, up_bias, activation, out_dtype);
  if (needs_node(wanted) || of_biases.tangent) {
    const Tensor gate_sum = grouped_matmul_op().call(a, gate, offs, gate_bias, out_dtype, "none", algorithm);
    const Tensor up_sum = grouped_matmul_op().call(a, up, offs, up_bias, out_dtype, "none", algorithm);
    return gated_op().call(gate_sum, up_sum, activation, std::nullopt);
  }
  const c10::DispatchKeySet below = keys & c10::after_autograd_keyset;
  std::tuple<Tensor, Tensor, Tensor> computed;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    computed = gated_grouped_matmul_and_sums_op().redispatch(below, a, gate, up, offs, gate_bias, up_bias, out_dtype,
                                                             activation, algorithm);
  }
  const auto apply_product = [&](const Tensor& weight, const Tensor& bias, const Computed& sum) {
    const std::string option = ProductOption(a, weight, bias, algorithm, out_dtype).text();
    return apply_function<GroupedFormula>(a, weight, bias, below, option, sum, offs.value_or(Tensor()));
  };
  return apply_gated(computed, gate, up, gate_bias, up_bias, activation, below, apply_product);
}

}  // namespace

TORCH_LIBRARY_IMPL(tiledmm, Autograd, m) {
  m.impl("gated_linear", &gated_linear_autograd);
  m.impl("gated", &gated_autograd);
  m.impl("gated_backward", &gated_backward_autograd);
  m.impl("grouped_matmul", &grouped_matmul_autograd);
  m.impl("gated_grouped_matmul", &gated_grouped_matmul_autograd);
  m.impl("grouped_matmul_and_sum", torch::autograd::autogradNotImplementedFallback());
  m.impl("gated_linear_and_sums", torch::autograd::autogradNotImplementedFallback());
  m.impl("gated_grouped_matmul_and_sums", torch::autograd::autogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(tiledmm, CompositeImplicitAutograd, m) {
  m.impl("_stacked_gated_linear", &stacked_gated_linear);
  m.impl("_stacked_gated_grouped_matmul", &stacked_gated_grouped_matmul);
}

}  // namespace tiledmm

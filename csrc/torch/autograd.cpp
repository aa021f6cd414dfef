// Derivatives of the operators, but for those of gated layers and of groups (autograd_gated.cpp).
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "torch/differentiate.h"

namespace tiledmm {
namespace {

bool are_equal_batches(const Tensor& a, const Tensor& b) {
  if (a.dim() != b.dim() || a.dim() < 2) return false;
  for (int64_t d = 0; d < a.dim() - 2; ++d) {
    if (a.sym_size(d) != b.sym_size(d)) return false;
  }
  return true;
}

// Makes the batch dimensions of two operands, which are at least 2-D, equal through views, whose derivatives sum what
// was broadcast. False, and nothing is changed, where they do not fit.
bool align_batches(Tensor& a, Tensor& b, c10::DispatchKeySet below) {
  const auto batch_a = a.sym_sizes().slice(0, a.dim() - 2), batch_b = b.sym_sizes().slice(0, b.dim() - 2);
  std::vector<c10::SymInt> batch(std::max(batch_a.size(), batch_b.size()), 1);
  for (size_t i = 1; i <= batch.size(); ++i) {
    const c10::SymInt size_a = i <= batch_a.size() ? batch_a[batch_a.size() - i] : c10::SymInt(1);
    const c10::SymInt size_b = i <= batch_b.size() ? batch_b[batch_b.size() - i] : c10::SymInt(1);
    const c10::SymInt& size = size_a == 1 ? size_b : size_a;
    if (size_b != 1 && size_b != size) return false;
    batch[batch.size() - i] = size;
  }
  for (Tensor* operand : {&a, &b}) {
    auto sizes = batch;
    sizes.push_back(operand->sym_size(-2));
    sizes.push_back(operand->sym_size(-1));
    *operand = broadcast(*operand, sizes, below);
  }
  return true;
}

Tensor matmul_autograd(c10::DispatchKeySet keys, const Tensor& a, const Tensor& b, std::string_view algorithm,
                       OptionalDtype out_dtype) {
  const c10::DispatchKeySet below = keys & c10::after_autograd_keyset;
  const Wanted wanted(a, b);
  if (wanted.nothing() || a.dim() == 0 || b.dim() == 0)
    return matmul_op().redispatch(below, a, b, algorithm, out_dtype);
  const auto option = [&] { return ProductOption(a, b, Tensor(), algorithm, out_dtype).text(); };
  if (b.dim() == 2 && a.dim() >= 2) {
    return differentiate<MatmulFormula<true>>(wanted, a, b, Tensor(), below, option());
  }
  if (are_equal_batches(a, b)) return differentiate<MatmulFormula<false>>(wanted, a, b, Tensor(), below, option());
  // What does not fit goes to the kernel as it was given, which raises.
  if (a.sym_size(-1) != b.sym_size(b.dim() == 1 ? 0 : -2))
    return matmul_op().redispatch(below, a, b, algorithm, out_dtype);

  if (a.dim() == 1) {
    return b.dim() == 1 ? matmul_op().call(a.unsqueeze(0), b.unsqueeze(1), algorithm, out_dtype).squeeze()
                        : matmul_op().call(a.unsqueeze(0), b, algorithm, out_dtype).squeeze(-2);
  }
  if (b.dim() == 1) return matmul_op().call(a, b.unsqueeze(1), algorithm, out_dtype).squeeze(-1);
  Tensor left = a, right = b;
  if (!align_batches(left, right, below)) return matmul_op().redispatch(below, a, b, algorithm, out_dtype);
  return matmul_op().call(left, right, algorithm, out_dtype);
}

Tensor addmm_autograd(c10::DispatchKeySet keys, const OptionalTensor& input, const Tensor& a, const Tensor& b,
                      double beta, double alpha, std::string_view algorithm, OptionalDtype out_dtype) {
  const c10::DispatchKeySet below = keys & c10::after_autograd_keyset;
  const Wanted wanted(a, b, input);
  if (wanted.nothing() || !a.defined() || !b.defined() || a.dim() < 2 || b.dim() < 2) {
    return addmm_op().redispatch(below, input, a, b, beta, alpha, algorithm, out_dtype);
  }
  const Shape<c10::SymInt> shape = addmm_shape<c10::SymInt>(input, a, b);
  Tensor left = a, right = b, added = input.value_or(Tensor());
  if (added.defined()) added = broadcast(added, shape, below);
  ProductOption asked(a, b, added, algorithm, out_dtype);
  asked.beta = beta, asked.alpha = alpha;
  const std::string option = asked.text();
  if (b.dim() == 2) return differentiate<AddmmFormula<true>>(wanted, a, b, added, below, option);
  if (!are_equal_batches(a, b)) align_batches(left, right, below);
  return differentiate<AddmmFormula<false>>(wanted, left, right, added, below, option);
}

// activation(X W^T + bias) under a gradient: the sum is kept for backward. Both are computed at once, and given to the
// two Functions that would compute them. Where no Function serves, the sum is a result itself, and rounded as such.
Tensor activated_linear(const Wanted& wanted, const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                        std::string_view activation, c10::DispatchKeySet below, std::string_view algorithm,
                        OptionalDtype out_dtype) {
  const Tensor own_bias = bias.value_or(Tensor());
  if (needs_node(wanted))
    return activate_op().call(linear_op().call(input, weight, bias, "none", algorithm, out_dtype), activation);
  Computed result, sum;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    std::tie(result.result, sum.result) =
        linear_and_sum_op().redispatch(below, input, weight, bias, activation, algorithm, out_dtype);
  }
  const std::string option = ProductOption(input, weight, own_bias, algorithm, out_dtype).text();
  const Tensor z = apply_function<LinearFormula<false>>(input, weight, own_bias, below, option, sum);
  return apply_function<ActivateFormula>(z, Tensor(), Tensor(), below, activation, result);
}

Tensor linear_autograd(c10::DispatchKeySet keys, const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                       std::string_view activation, std::string_view algorithm, OptionalDtype out_dtype) {
  const c10::DispatchKeySet below = keys & c10::after_autograd_keyset;
  const Wanted wanted(input, weight, bias);
  const bool is_given = input.defined() && weight.defined();  // else the kernel raises
  if (wanted.nothing() || !is_given)
    return linear_op().redispatch(below, input, weight, bias, activation, algorithm, out_dtype);
  const Tensor own_bias = bias.value_or(Tensor());
  const bool is_usual = input.dim() >= 1 && weight.dim() == 2 &&
                        (!own_bias.defined() || (own_bias.dim() == 1 && own_bias.sym_size(0) == weight.sym_size(0)));
  if (is_usual) {
    const auto option = [&] { return ProductOption(input, weight, own_bias, algorithm, out_dtype).text(); };
    if (activation == "none") {
      return differentiate<LinearFormula<false>>(wanted, input, weight, own_bias, below, option());
    }
    if (activation == "relu") {
      return differentiate<LinearFormula<true>>(wanted, input, weight, own_bias, below, option());
    }
    if (activation == "gelu" || activation == "gelu_tanh" || activation == "silu") {
      return activated_linear(wanted, input, weight, optional(own_bias), activation, below, algorithm, out_dtype);
    }
  }
  if (input.dim() >= 1 && weight.dim() == 1) {
    return linear_op().call(input, weight.unsqueeze(0), bias, activation, algorithm, out_dtype).squeeze(-1);
  }
  if (!is_usual && weight.dim() == 2 && own_bias.defined() && own_bias.dim() <= 1 && own_bias.sym_numel() == 1) {
    const Tensor wide = broadcast(own_bias, weight.sym_sizes().slice(0, 1), below);
    return linear_op().call(input, weight, wide, activation, algorithm, out_dtype);
  }
  return linear_op().redispatch(below, input, weight, bias, activation, algorithm, out_dtype);  // raises
}

Tensor activate_autograd(c10::DispatchKeySet keys, const Tensor& x, std::string_view activation) {
  const c10::DispatchKeySet below = keys & c10::after_autograd_keyset;
  const Wanted wanted(x);
  if (wanted.nothing()) return activate_op().redispatch(below, x, activation);
  return differentiate<ActivateFormula>(wanted, x, Tensor(), Tensor(), below, activation);
}

Tensor activate_backward_autograd(c10::DispatchKeySet keys, const Tensor& grad, const Tensor& x,
                                  std::string_view activation) {
  const c10::DispatchKeySet below = keys & c10::after_autograd_keyset;
  const Wanted wanted(grad, x);
  const bool is_given = grad.defined() && x.defined();  // else the kernel raises
  if (wanted.nothing() || !is_given) return activate_backward_op().redispatch(below, grad, x, activation);
  return differentiate<ActivateBackwardFormula>(wanted, grad, x, Tensor(), below, activation);
}

// Operands of 8 bits are rounded, which has no derivative; whoever made them knows what stands for it.
void refuse_derivatives(const char* who, const std::initializer_list<std::pair<const char*, Tensor>>& tensors) {
  for (const auto& [name, tensor] : tensors) {
    const Wanted wanted(tensor);
    TORCH_CHECK_NOT_IMPLEMENTED(wanted.nothing(), "tiledmm: ", who, " has no gradients, and ", name,
                                wanted.grad ? " requires grad" : " has a tangent",
                                "; accepted are tensors without, as detach() makes them, or torch.no_grad()");
  }
}

Tensor scaled_matmul_autograd(c10::DispatchKeySet keys, const Tensor& a, const Tensor& b, const Tensor& scale_a,
                              const Tensor& scale_b, const OptionalTensor& bias, OptionalDtype out_dtype,
                              std::string_view activation, std::string_view algorithm) {
  refuse_derivatives(
      "scaled_matmul",
      {{"a", a}, {"b", b}, {"scale_a", scale_a}, {"scale_b", scale_b}, {"bias", bias.value_or(Tensor())}});
  return scaled_matmul_op().redispatch(keys & c10::after_autograd_keyset, a, b, scale_a, scale_b, bias, out_dtype,
                                       activation, algorithm);
}

Tensor scaled_grouped_matmul_autograd(c10::DispatchKeySet keys, const Tensor& a, const Tensor& b, const Tensor& scale_a,
                                      const Tensor& scale_b, const Tensor& offs, const OptionalTensor& bias,
                                      OptionalDtype out_dtype, std::string_view activation,
                                      std::string_view algorithm) {
  refuse_derivatives(
      "scaled_grouped_matmul",
      {{"a", a}, {"b", b}, {"scale_a", scale_a}, {"scale_b", scale_b}, {"bias", bias.value_or(Tensor())}});
  return scaled_grouped_matmul_op().redispatch(keys & c10::after_autograd_keyset, a, b, scale_a, scale_b, offs, bias,
                                               out_dtype, activation, algorithm);
}

Tensor ordered_sum_autograd(c10::DispatchKeySet keys, const Tensor& a, at::IntArrayRef dims) {
  const c10::DispatchKeySet below = keys & c10::after_autograd_keyset;
  const Wanted wanted(a);
  if (wanted.nothing()) return ordered_sum_op().redispatch(below, a, dims);
  summed_dims(a, dims);  // raises where they are none of a's
  return differentiate<OrderedSumFormula>(wanted, a, Tensor(), Tensor(), below, OrderedSumFormula::text_of(dims));
}

void matmul_out_autograd(c10::DispatchKeySet keys, const Tensor& a, const Tensor& b, Tensor& out,
                         std::string_view algorithm) {
  const Wanted wanted(a, b, out);
  TORCH_CHECK(!wanted.grad,
              "tiledmm: matmul_out does not support automatic differentiation, but one of its arguments requires grad");
  TORCH_CHECK(!wanted.tangent,
              "tiledmm: matmul_out does not support automatic differentiation, but one of its arguments has a tangent");
  const at::AutoDispatchBelowAutograd guard;
  matmul_out_op().redispatch(keys & c10::after_autograd_keyset, a, b, out, algorithm);
}

// Not in the kernel above: inference mode leaves that out, but `out` may be what a backward pass outside of it saved.
void matmul_out_counted(c10::DispatchKeySet keys, const Tensor& a, const Tensor& b, Tensor& out,
                        std::string_view algorithm) {
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    matmul_out_op().redispatch(keys & c10::after_ADInplaceOrView_keyset, a, b, out, algorithm);
  }
  torch::autograd::impl::bump_version(out);
}

}  // namespace

TORCH_LIBRARY_IMPL(tiledmm, Autograd, m) {
  m.impl("matmul", &matmul_autograd);
  m.impl("matmul_out", &matmul_out_autograd);
  m.impl("addmm", &addmm_autograd);
  m.impl("linear", &linear_autograd);
  m.impl("activate", &activate_autograd);
  m.impl("activate_backward", &activate_backward_autograd);
  m.impl("scaled_matmul", &scaled_matmul_autograd);
  m.impl("scaled_grouped_matmul", &scaled_grouped_matmul_autograd);
  m.impl("ordered_sum", &ordered_sum_autograd);
  // What linear's derivative calls has none of its own: a backward pass through it raises.
  m.impl("linear_and_sum", torch::autograd::autogradNotImplementedFallback());
  m.impl("linear_weight_grads", torch::autograd::autogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(tiledmm, ADInplaceOrView, m) { m.impl("matmul_out", &matmul_out_counted); }

}  // namespace tiledmm

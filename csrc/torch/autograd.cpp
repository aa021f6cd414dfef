// Derivatives of the operators. Backward is made of the same operators on transposed views, so it is differentiable
// itself; forward-mode tangents are, too.
//
// Three ways, because no single one serves every transform of torch (2.11 to 2.13):
//   no gradient and no tangent -> straight to the kernel below;
//   a forward-mode tangent or a torch.func transform is active -> a Node of our own (autograd::Function refuses there);
//   otherwise -> autograd::Function (compiled autograd can trace it, a Node of our own it cannot).
#if defined(__GNUC__) && !defined(__clang__)
// GCC 13 takes torch's copy of a vector<bool> of one word for one that overflows.
#pragma GCC diagnostic ignored "-Warray-bounds"
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#endif
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/FunctionsManual.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <algorithm>
#include <initializer_list>
#include <mutex>
#include <type_traits>

#include "torch/cpu_executor.h"
#include "torch/formulas.h"
#include "torch/matmul.h"
#include "torch/shapes.h"

namespace tiledmm {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::SavedVariable;

// ---- (c) autograd::Function

// The result, where it has been computed already. torch looks for tensors among a Function's arguments; in here it
// finds none.
struct Computed {
  Tensor result;
};

template <class Own>
Tensor compute_forward(c10::DispatchKeySet below, const Tensor& first, const Tensor& second, const Tensor& third,
                       [[maybe_unused]] const Tensor& offs, std::string_view option) {
  if constexpr (Own::kHasOffs) {
    return Own::forward(below, first, second, third, offs, option);
  } else {
    return Own::forward(below, first, second, third, option);
  }
}

template <class Own, bool HAS_THIRD>
struct TiledFunction : torch::autograd::Function<TiledFunction<Own, HAS_THIRD>> {
  // Backward reads nothing but its context: compiled autograd traces it without a graph break.
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* context, const Tensor& first, const OptionalTensor& other,
                        const OptionalTensor& third, const OptionalTensor& offs, c10::DispatchKeySet below,
                        std::string_view option, const Computed& computed) {
    const Tensor second = other.value_or(Tensor());
    const Needs needs = {first.requires_grad(), second.defined() && second.requires_grad(), false};
    context->set_materialize_grads(false);
    if (option != "auto") context->saved_data["option"] = std::string(option);
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Tensor result = computed.result.defined()
                              ? computed.result
                              : compute_forward<Own>(below, first, second, HAS_THIRD ? *third : Tensor(),
                                                     offs.value_or(Tensor()), option);
    const auto kept = Own::kept(first, second, needs);
    variable_list saved = {kept[0], kept[1], Own::kKeepsResult ? result : Tensor()};
    if (Own::kHasOffs) saved.push_back(offs.value_or(Tensor()));
    context->save_for_backward(std::move(saved));
    return result;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    variable_list result(7);
    if (!grads[0].defined()) return result;
    const TorchOnOneThreadInChild own_thread;
    const variable_list saved = context->get_saved_variables();
    const auto found = context->saved_data.find("option");
    const std::string option(found == context->saved_data.end() ? kPlainAuto : found->second.toStringRef());
    Needs needs{};
    for (size_t i = 0; i < Own::kInputs; ++i) needs[i] = (i < 2 || HAS_THIRD) && context->needs_input_grad(i);
    const Kept kept = {saved[0], saved[1], saved[2], Own::kHasOffs ? saved[3] : Tensor()};
    const variable_list own = Own::backward(grads[0], kept, needs, option);
    std::copy(own.begin(), own.end(), result.begin());
    return result;
  }
};

template <class Own>
Tensor apply_function(const Tensor& first, const Tensor& second, const Tensor& third, c10::DispatchKeySet below,
                      std::string_view option, const Computed& computed, const Tensor& offs = Tensor()) {
  const OptionalTensor other = optional(second), ends = optional(offs);
  return third.defined()
             ? TiledFunction<Own, true>::apply(first, other, optional(third), ends, below, option, computed)
             : TiledFunction<Own, false>::apply(first, other, OptionalTensor(), ends, below, option, computed);
}

// ---- (b) Node

template <class Own>
struct TiledNode : torch::autograd::Node {
  SavedVariable first, second, result, offs;
  Needs needs;
  std::string option;

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard<std::mutex> lock(this->mutex_);
    if (!grads[0].defined()) return variable_list(Own::kInputs);
    const TorchOnOneThreadInChild own_thread;
    Needs wanted = needs;
    for (size_t i = 0; i < Own::kInputs; ++i) wanted[i] = needs[i] && this->task_should_compute_output(i);
    const Kept kept = {first.unpack(), second.unpack(), result.unpack(pointer_to(this)), offs.unpack()};
    return Own::backward(grads[0], kept, wanted, option);
  }
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(this->mutex_);
    first.reset_data();
    second.reset_data();
    result.reset_data();
    offs.reset_data();
  }
  std::string name() const override { return Own::kName; }

  // torch 2.11 holds a Node in a shared_ptr, 2.13 in an intrusive_ptr.
  static constexpr bool kIsIntrusive = std::is_base_of_v<c10::intrusive_ptr_target, torch::autograd::Node>;
  static auto make() {
    if constexpr (kIsIntrusive) {
      return c10::make_intrusive<TiledNode>();
    } else {
      return std::shared_ptr<TiledNode>(new TiledNode(), [](auto* node) { deleteNode(node); });
    }
  }
  template <class NodeType>
  static auto pointer_to(NodeType* node) {
    if constexpr (kIsIntrusive) {
      return c10::intrusive_ptr<torch::autograd::Node>::reclaim_copy(node);
    } else {
      return node->getptr();
    }
  }
};

template <class Own>
Tensor call_with_node(const Tensor& first, const Tensor& second, const Tensor& third, c10::DispatchKeySet below,
                      std::string_view option, const Tensor& offs) {
  using torch::autograd::generated::details::toNonOptFwGrad;
  using torch::autograd::generated::details::toNonOptPrimal;
  decltype(TiledNode<Own>::make()) node{};
  if (torch::autograd::compute_requires_grad(first, second, third)) {
    node = TiledNode<Own>::make();
    node->set_next_edges(Own::kInputs == 1   ? torch::autograd::collect_next_edges(first)
                         : Own::kInputs == 2 ? torch::autograd::collect_next_edges(first, second)
                                             : torch::autograd::collect_next_edges(first, second, third));
    node->needs = {first.requires_grad(), second.defined() && second.requires_grad(),
                   third.defined() && third.requires_grad()};
    const auto kept = Own::kept(first, second, node->needs);
    node->first = SavedVariable(kept[0], false);
    node->second = SavedVariable(kept[1], false);
    node->offs = SavedVariable(offs, false);
    node->option = std::string(option == "auto" ? kPlainAuto : option);
  }
  Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    result = compute_forward<Own>(below, first, second, third, offs, option);
  }
  if (node) {
    torch::autograd::set_history(result, node);
    if (Own::kKeepsResult) node->result = SavedVariable(result, true);
  }
  const TorchOnOneThreadInChild own_thread;
  if (isFwGradDefined(first) || isFwGradDefined(second) || isFwGradDefined(third)) {
    const Kept primal = {toNonOptPrimal(first), toNonOptPrimal(second), result, offs};
    const Tensor tangent =
        Own::tangent(primal, toNonOptFwGrad(first), toNonOptFwGrad(second), toNonOptFwGrad(third), option);
    result._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
  }
  return result;
}

// ---- The selector

// Whether anything of some operands asks for a derivative.
struct Wanted {
  bool grad, tangent;
  explicit Wanted(const Tensor& a, const Tensor& b = Tensor(), const OptionalTensor& bias = std::nullopt)
      : grad(torch::autograd::compute_requires_grad(a, b, bias)),
        tangent(isFwGradDefined(a) || isFwGradDefined(b) || isFwGradDefined(bias)) {}
  bool nothing() const { return !grad && !tangent; }
};

// Whether autograd::Function would refuse.
bool needs_node(const Wanted& wanted) { return wanted.tangent || is_transform_active(); }

template <class Own>
Tensor differentiate(const Wanted& wanted, const Tensor& first, const Tensor& second, const Tensor& third,
                     c10::DispatchKeySet below, std::string_view option, const Tensor& offs = Tensor()) {
  if (needs_node(wanted)) return call_with_node<Own>(first, second, third, below, option, offs);
  return apply_function<Own>(first, second, third, below, option, Computed{}, offs);
}

Tensor broadcast(const Tensor& tensor, c10::SymIntArrayRef sizes, c10::DispatchKeySet below) {
  if (tensor.sym_sizes() == sizes) return tensor;
  const Wanted wanted(tensor);
  if (!wanted.grad) return tensor.expand_symint(sizes);
  return differentiate<BroadcastFormula>(wanted, tensor, of_shape(sizes, tensor), Tensor(), below, "auto");
}

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

// The dtype of sums before they are rounded, of a product whose result has such a dtype.
at::ScalarType wide(at::ScalarType result) { return result == at::kDouble ? at::kDouble : at::kFloat; }

// activation(X W^T + bias) under a gradient: the sum is kept for backward. Both are computed at once, and given to the
// two Functions that would compute them. Where no Function serves, the sum is a result itself, in the type of
// accumulators.
Tensor activated_linear(const Wanted& wanted, const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                        std::string_view activation, c10::DispatchKeySet below, std::string_view algorithm,
                        OptionalDtype out_dtype) {
  const Tensor own_bias = bias.value_or(Tensor());
  if (needs_node(wanted)) {
    const at::ScalarType result = product_dtypes({"input", input}, {"weight", weight}, out_dtype, "bias", bias).result;
    const Tensor z = linear_op().call(input, weight, bias, "none", algorithm, wide(result));
    return activate_op().call(z, activation).to(result);
  }
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
  if (!own_gate.requires_grad() && !own_up.requires_grad()) return result;
  return apply_function<GatedFormula>(own_gate, own_up, Tensor(), below,
                                      GatedFormula::text_of(activation, result.scalar_type()), Computed{result});
}

// Under a gradient both sums are kept, in the result's dtype; the result comes of the sums as they were. Where no
// Function serves, the sums are results themselves.
Tensor gated_linear_autograd(c10::DispatchKeySet keys, const Tensor& input, const Tensor& gate, const Tensor& up,
                             const OptionalTensor& gate_bias, const OptionalTensor& up_bias,
                             std::string_view activation, std::string_view algorithm, OptionalDtype out_dtype) {
  const Wanted wanted(input, gate, up), of_biases(gate_bias.value_or(Tensor()), up_bias.value_or(Tensor()));
  const bool is_given = are_plain({input, gate, up}) && is_plain_or_none(gate_bias) && is_plain_or_none(up_bias);
  if ((wanted.nothing() && of_biases.nothing()) || !is_given) {
    return gated_linear_op().redispatch(keys & c10::after_autograd_keyset, input, gate, up, gate_bias, up_bias,
                                        activation, algorithm, out_dtype);
  }
  const at::ScalarType result =
      check_gated_linear<c10::SymInt>(input, gate, up, gate_bias, up_bias, activation, out_dtype).result;
  const auto has_usual_bias = [&](const OptionalTensor& bias) {
    return !bias || !bias->defined() || (bias->dim() == 1 && bias->sym_size(0) == gate.sym_size(0));
  };
  if (needs_node(wanted) || of_biases.tangent || gate.dim() != 2 || !has_usual_bias(gate_bias) ||
      !has_usual_bias(up_bias)) {
    const Tensor gate_sum = linear_op().call(input, gate, gate_bias, "none", algorithm, wide(result));
    const Tensor up_sum = linear_op().call(input, up, up_bias, "none", algorithm, wide(result));
    return gated_op().call(gate_sum, up_sum, activation, result);
  }
  const c10::DispatchKeySet below = keys & c10::after_autograd_keyset;
  std::tuple<Tensor, Tensor, Tensor> computed;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    computed = gated_linear_and_sums_op().redispatch(below, input, gate, up, gate_bias, up_bias, activation, algorithm,
                                                     out_dtype);
  }
  const auto apply_product = [&](const Tensor& weight, const Tensor& bias, const Computed& sum) {
    const std::string option = ProductOption(input, weight, bias, algorithm, out_dtype).text();
    return apply_function<LinearFormula<false>>(input, weight, bias, below, option, sum);
  };
  return apply_gated(computed, gate, up, gate_bias, up_bias, activation, below, apply_product);
}

// A gated layer whose weight and bias hold gate's and up's parts, one behind the other. Its gradients are those of one
// product, not of two that would be put together.
struct StackedGatedFunction : torch::autograd::Function<StackedGatedFunction> {
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* context, const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                        std::string_view activation, std::string_view algorithm, OptionalDtype out_dtype) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Halves weights(weight), biases(bias.value_or(Tensor()));
    const auto [result, gate_sum, up_sum] = gated_linear_and_sums_op().call(
        input, weights.gate, weights.up, optional(biases.gate), optional(biases.up), activation, algorithm, out_dtype);
    const Tensor own_bias = bias.value_or(Tensor());
    context->saved_data["activation"] = std::string(activation);
    context->saved_data["option"] = ProductOption(input, weight, own_bias, algorithm, out_dtype).text();
    context->save_for_backward({input, weight, own_bias, gate_sum, up_sum});
    return result;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const TorchOnOneThreadInChild own_thread;
    const variable_list saved = context->get_saved_variables();
    const std::string activation = context->saved_data["activation"].toStringRef();
    const std::string option = context->saved_data["option"].toStringRef();
    const Tensor &input = saved[0], &weight = saved[1], &bias = saved[2];
    Halves sums(saved[3], saved[4]);
    if (at::GradMode::is_enabled()) {  // to be differentiated, they are computed again
      const ProductOption own(option);
      sums = Halves(linear_op().call(input, weight, optional(bias), "none", own.algorithm, own.result), -1);
    }
    const auto [gate_grad, up_grad] = gated_backward_op().call(grads[0], sums.gate, sums.up, activation);
    Needs needs{};
    for (size_t i = 0; i < 3; ++i) needs[i] = (i < 2 || bias.defined()) && context->needs_input_grad(i);
    variable_list result =
        LinearFormula<false>::backward(at::cat({gate_grad, up_grad}, -1), {input, weight, {}, {}}, needs, option);
    result.resize(6);
    return result;
  }

  struct Halves {
    Tensor gate, up;
    Halves(const Tensor& gate, const Tensor& up) : gate(gate), up(up) {}
    explicit Halves(const Tensor& both, int64_t dim = 0) {
      if (!both.defined()) return;
      const std::vector<Tensor> parts = both.chunk(2, dim);
      gate = parts[0], up = parts[1];
    }
  };
};

Tensor stacked_gated_linear(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                            std::string_view activation, std::string_view algorithm, OptionalDtype out_dtype) {
  const Wanted wanted(input, weight, bias);
  if (wanted.grad && !needs_node(wanted) && are_plain({input, weight}) && is_plain_or_none(bias))
    return StackedGatedFunction::apply(input, weight, bias, activation, algorithm, out_dtype);
  const StackedGatedFunction::Halves weights(weight), biases(bias.value_or(Tensor()));
  return gated_linear_op().call(input, weights.gate, weights.up, optional(biases.gate), optional(biases.up), activation,
                                algorithm, out_dtype);
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
  if (needs_node(wanted)) {
    const at::ScalarType result = product_dtypes({"a", a}, {"b", b}, out_dtype, "bias", bias).result;
    const Tensor sum = grouped_matmul_op().call(a, b, offs, bias, wide(result), "none", algorithm);
    return activate_op().call(sum, activation).to(result);
  }
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
  const at::ScalarType result =
      check_gated_grouped<c10::SymInt>(a, gate, up, offs, gate_bias, up_bias, activation, out_dtype).result;
  if (needs_node(wanted) || of_biases.tangent) {
    const Tensor gate_sum = grouped_matmul_op().call(a, gate, offs, gate_bias, wide(result), "none", algorithm);
    const Tensor up_sum = grouped_matmul_op().call(a, up, offs, up_bias, wide(result), "none", algorithm);
    return gated_op().call(gate_sum, up_sum, activation, result);
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
  m.impl("gated_linear", &gated_linear_autograd);
  m.impl("gated", &gated_autograd);
  m.impl("gated_backward", &gated_backward_autograd);
  m.impl("grouped_matmul", &grouped_matmul_autograd);
  m.impl("gated_grouped_matmul", &gated_grouped_matmul_autograd);
  m.impl("scaled_matmul", &scaled_matmul_autograd);
  m.impl("scaled_grouped_matmul", &scaled_grouped_matmul_autograd);
  m.impl("ordered_sum", &ordered_sum_autograd);
  // What linear's derivative calls has none of its own: a backward pass through it raises.
  m.impl("linear_and_sum", torch::autograd::autogradNotImplementedFallback());
  m.impl("linear_weight_grads", torch::autograd::autogradNotImplementedFallback());
  m.impl("grouped_matmul_and_sum", torch::autograd::autogradNotImplementedFallback());
  m.impl("gated_linear_and_sums", torch::autograd::autogradNotImplementedFallback());
  m.impl("gated_grouped_matmul_and_sums", torch::autograd::autogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(tiledmm, CompositeImplicitAutograd, m) { m.impl("_stacked_gated_linear", &stacked_gated_linear); }

TORCH_LIBRARY_IMPL(tiledmm, ADInplaceOrView, m) { m.impl("matmul_out", &matmul_out_counted); }

}  // namespace tiledmm

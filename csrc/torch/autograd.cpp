// Derivatives of the operators. Backward is made of the same operators on transposed views, so it is differentiable
// itself; forward-mode tangents are, too.
//
// Three ways, because no single one serves every transform of torch (2.11 to 2.13):
//   no gradient and no tangent -> straight to the kernel below;
//   a forward-mode tangent or a torch.func transform is active -> a Node of our own (autograd::Function refuses there);
//   otherwise -> autograd::Function (compiled autograd can trace it, a Node of our own it cannot).
#include <ATen/core/Tensor.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/FunctionsManual.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <mutex>
#include <type_traits>

#include "torch/matmul.h"

namespace tiledmm {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<Tensor>;

// torch.func includes its front key as long as a transform is on its stack.
bool is_transform_active() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

// (..., k) as (rows, k): a view where the strides allow it.
Tensor as_rows(const Tensor& tensor) {
  if (tensor.dim() == 2) return tensor;
  c10::SymInt rows = 1;
  for (int64_t d = 0; d + 1 < tensor.dim(); ++d) rows *= tensor.sym_size(d);
  return tensor.reshape_symint({rows, tensor.sym_size(-1)});
}

// ---- Formulas, shared by Function and Node. Operands: (a, b) or (input, weight, bias).

// C = A B for a and b that are at least 2-D: with one b for the whole batch of a, or with equal batch dimensions. Which
// of the two is fixed here, as backward may have nothing of b to ask.
template <bool SHARES_B>
struct MatmulFormula {
  static constexpr size_t kInputs = 2;
  static constexpr const char* kName = "TiledMatmulBackward";

  static Tensor forward(c10::DispatchKeySet below, const Tensor& a, const Tensor& b, const Tensor&,
                        std::string_view algorithm) {
    return matmul_op().redispatch(below, a, b, algorithm);
  }
  static variable_list backward(const Tensor& grad, const Tensor& a, const Tensor& b, const std::array<bool, 3>& needs,
                                std::string_view algorithm) {
    variable_list grads(2);
    if (needs[0]) grads[0] = matmul_op().call(grad, b.mT(), algorithm);
    // One product for the whole batch: a gradient of b for each item, to be added up, would take far more memory.
    if (needs[1]) {
      grads[1] = SHARES_B ? matmul_op().call(as_rows(a).mT(), as_rows(grad), algorithm)
                          : matmul_op().call(a.mT(), grad, algorithm);
    }
    return grads;
  }
  static Tensor tangent(const Tensor& a, const Tensor& b, const Tensor&, const Tensor& a_t, const Tensor& b_t,
                        const Tensor&, std::string_view algorithm) {
    const Tensor left = a_t.defined() ? matmul_op().call(a_t, b, algorithm) : Tensor();
    const Tensor right = b_t.defined() ? matmul_op().call(a, b_t, algorithm) : Tensor();
    return !left.defined() ? right : !right.defined() ? left : left + right;
  }
};

// Y = X W^T + bias for input (..., k), weight (n, k), bias (n,).
struct LinearFormula {
  static constexpr size_t kInputs = 3;
  static constexpr const char* kName = "TiledLinearBackward";

  static OptionalTensor optional(const Tensor& tensor) {
    return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
  }
  static Tensor forward(c10::DispatchKeySet below, const Tensor& input, const Tensor& weight, const Tensor& bias,
                        std::string_view algorithm) {
    return linear_op().redispatch(below, input, weight, optional(bias), "none", algorithm);
  }
  static variable_list backward(const Tensor& grad, const Tensor& input, const Tensor& weight,
                                const std::array<bool, 3>& needs, std::string_view algorithm) {
    variable_list grads(3);
    if (needs[0]) grads[0] = matmul_op().call(grad, weight, algorithm);
    if (!needs[1] && !needs[2]) return grads;
    const Tensor grad_rows = as_rows(grad);
    // In one pass, unless the gradients are to be differentiated themselves.
    if (needs[1] && needs[2] && !at::GradMode::is_enabled() && !is_transform_active()) {
      std::tie(grads[1], grads[2]) = linear_weight_grads_op().call(grad_rows, as_rows(input), algorithm);
      return grads;
    }
    if (needs[1]) grads[1] = matmul_op().call(grad_rows.mT(), as_rows(input), algorithm);
    if (needs[2]) grads[2] = grad_rows.sum(0);
    return grads;
  }
  static Tensor tangent(const Tensor& input, const Tensor& weight, const Tensor&, const Tensor& input_t,
                        const Tensor& weight_t, const Tensor& bias_t, std::string_view algorithm) {
    Tensor sum;
    const auto add = [&](const Tensor& term) { sum = sum.defined() ? sum + term : term; };
    if (input_t.defined()) add(linear_op().call(input_t, weight, std::nullopt, "none", algorithm));
    if (weight_t.defined()) add(linear_op().call(input, weight_t, std::nullopt, "none", algorithm));
    if (bias_t.defined()) {
      auto sizes = input.sym_sizes().vec();
      sizes.back() = weight.sym_size(0);
      const Tensor rows = bias_t.expand_symint(sizes);
      sum = sum.defined() ? sum + rows : rows.clone();  // its own memory: the result may change in place
    }
    return sum;
  }
};

// What backward needs of each operand: a for the gradient of b and the other way round.
bool saves_first(const std::array<bool, 3>& needs) { return needs[1]; }
bool saves_second(const std::array<bool, 3>& needs) { return needs[0]; }

// ---- (c) autograd::Function

template <class Formula, bool HAS_BIAS>
struct TiledFunction : torch::autograd::Function<TiledFunction<Formula, HAS_BIAS>> {
  // Backward reads nothing but its context: compiled autograd traces it without a graph break.
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* context, const Tensor& a, const Tensor& b, const OptionalTensor& bias,
                        c10::DispatchKeySet below, std::string_view algorithm) {
    const std::array<bool, 3> needs = {a.requires_grad(), b.requires_grad(), false};
    context->set_materialize_grads(false);
    context->save_for_backward({saves_first(needs) ? a : Tensor(), saves_second(needs) ? b : Tensor()});
    if (algorithm != "auto") context->saved_data["algorithm"] = std::string(algorithm);
    const at::AutoDispatchBelowADInplaceOrView guard;
    return Formula::forward(below, a, b, HAS_BIAS ? *bias : Tensor(), algorithm);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    variable_list result(5);
    if (!grads[0].defined()) return result;
    const variable_list saved = context->get_saved_variables();
    const auto found = context->saved_data.find("algorithm");
    const std::string algorithm(found == context->saved_data.end() ? kPlainAuto : found->second.toStringRef());
    const std::array<bool, 3> needs = {context->needs_input_grad(0), context->needs_input_grad(1),
                                       HAS_BIAS && context->needs_input_grad(2)};
    const variable_list own = Formula::backward(grads[0], saved[0], saved[1], needs, algorithm);
    std::copy(own.begin(), own.end(), result.begin());
    return result;
  }
};

// ---- (b) Node

template <class Formula>
struct TiledNode : torch::autograd::Node {
  SavedVariable a, b;
  std::array<bool, 3> needs;
  std::string algorithm;

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard<std::mutex> lock(this->mutex_);
    if (!grads[0].defined()) return variable_list(Formula::kInputs);
    std::array<bool, 3> wanted = needs;
    for (size_t i = 0; i < Formula::kInputs; ++i) wanted[i] = needs[i] && this->task_should_compute_output(i);
    return Formula::backward(grads[0], a.unpack(), b.unpack(), wanted, algorithm);
  }
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(this->mutex_);
    a.reset_data();
    b.reset_data();
  }
  std::string name() const override { return Formula::kName; }
};

// torch 2.11 holds a Node in a shared_ptr, 2.13 in an intrusive_ptr.
template <class NodeType>
auto make_node() {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, NodeType>) {
    return c10::make_intrusive<NodeType>();
  } else {
    return std::shared_ptr<NodeType>(new NodeType(), [](auto* node) { deleteNode(node); });
  }
}

template <class Formula>
Tensor call_with_node(const Tensor& a, const Tensor& b, const Tensor& bias, c10::DispatchKeySet below,
                      std::string_view algorithm) {
  using torch::autograd::generated::details::toNonOptFwGrad;
  using torch::autograd::generated::details::toNonOptPrimal;
  decltype(make_node<TiledNode<Formula>>()) node{};
  if (torch::autograd::compute_requires_grad(a, b, bias)) {
    node = make_node<TiledNode<Formula>>();
    node->set_next_edges(Formula::kInputs == 2 ? torch::autograd::collect_next_edges(a, b)
                                               : torch::autograd::collect_next_edges(a, b, bias));
    node->needs = {a.requires_grad(), b.requires_grad(), bias.defined() && bias.requires_grad()};
    node->a = SavedVariable(saves_first(node->needs) ? a : Tensor(), false);
    node->b = SavedVariable(saves_second(node->needs) ? b : Tensor(), false);
    node->algorithm = std::string(algorithm == "auto" ? kPlainAuto : algorithm);
  }
  Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    result = Formula::forward(below, a, b, bias, algorithm);
  }
  if (node) torch::autograd::set_history(result, node);
  if (torch::autograd::isFwGradDefined(a) || torch::autograd::isFwGradDefined(b) ||
      torch::autograd::isFwGradDefined(bias)) {
    const Tensor tangent = Formula::tangent(toNonOptPrimal(a), toNonOptPrimal(b), toNonOptPrimal(bias),
                                            toNonOptFwGrad(a), toNonOptFwGrad(b), toNonOptFwGrad(bias), algorithm);
    result._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
  }
  return result;
}

// ---- The selector

struct Needs {
  bool grad, tangent;
  explicit Needs(const Tensor& a, const Tensor& b, const OptionalTensor& bias = std::nullopt)
      : grad(torch::autograd::compute_requires_grad(a, b, bias)),
        tangent(torch::autograd::isFwGradDefined(a) || torch::autograd::isFwGradDefined(b) ||
                torch::autograd::isFwGradDefined(bias)) {}
  bool nothing() const { return !grad && !tangent; }
};

template <class Formula>
Tensor differentiate(const Needs& needs, const Tensor& a, const Tensor& b, const Tensor& bias,
                     c10::DispatchKeySet below, std::string_view algorithm) {
  if (needs.tangent || is_transform_active()) {
    return call_with_node<Formula>(a, b, bias, below, algorithm);
  }
  return bias.defined() ? TiledFunction<Formula, true>::apply(a, b, OptionalTensor(bias), below, algorithm)
                        : TiledFunction<Formula, false>::apply(a, b, OptionalTensor(), below, algorithm);
}

bool are_equal_batches(const Tensor& a, const Tensor& b) {
  if (a.dim() != b.dim() || a.dim() < 2) return false;
  for (int64_t d = 0; d < a.dim() - 2; ++d) {
    if (a.sym_size(d) != b.sym_size(d)) return false;
  }
  return true;
}

Tensor matmul_autograd(c10::DispatchKeySet keys, const Tensor& a, const Tensor& b, std::string_view algorithm) {
  const c10::DispatchKeySet below = keys & c10::after_autograd_keyset;
  const Needs needs(a, b);
  if (needs.nothing() || a.dim() == 0 || b.dim() == 0) return matmul_op().redispatch(below, a, b, algorithm);
  if (b.dim() == 2 && a.dim() >= 2) {
    return differentiate<MatmulFormula<true>>(needs, a, b, Tensor(), below, algorithm);
  }
  if (are_equal_batches(a, b)) return differentiate<MatmulFormula<false>>(needs, a, b, Tensor(), below, algorithm);
  // What does not fit goes to the kernel as it was given, which raises.
  if (a.sym_size(-1) != b.sym_size(b.dim() == 1 ? 0 : -2)) return matmul_op().redispatch(below, a, b, algorithm);

  // Other ranks and batches become equal ones through views, whose own derivatives reduce what was broadcast.
  if (a.dim() == 1) {
    return b.dim() == 1 ? matmul_op().call(a.unsqueeze(0), b.unsqueeze(1), algorithm).squeeze()
                        : matmul_op().call(a.unsqueeze(0), b, algorithm).squeeze(-2);
  }
  if (b.dim() == 1) return matmul_op().call(a, b.unsqueeze(1), algorithm).squeeze(-1);
  const auto batch_a = a.sym_sizes().slice(0, a.dim() - 2), batch_b = b.sym_sizes().slice(0, b.dim() - 2);
  std::vector<c10::SymInt> batch(std::max(batch_a.size(), batch_b.size()), 1);
  for (size_t i = 1; i <= batch.size(); ++i) {
    const c10::SymInt size_a = i <= batch_a.size() ? batch_a[batch_a.size() - i] : c10::SymInt(1);
    const c10::SymInt size_b = i <= batch_b.size() ? batch_b[batch_b.size() - i] : c10::SymInt(1);
    const c10::SymInt& size = size_a == 1 ? size_b : size_a;
    if (size_b != 1 && size_b != size) return matmul_op().redispatch(below, a, b, algorithm);
    batch[batch.size() - i] = size;
  }
  const auto expanded = [&](const Tensor& tensor) {
    auto sizes = batch;
    sizes.push_back(tensor.sym_size(-2));
    sizes.push_back(tensor.sym_size(-1));
    return tensor.expand_symint(sizes);
  };
  return matmul_op().call(expanded(a), expanded(b), algorithm);
}

Tensor activate(const Tensor& z, std::string_view activation) {
  if (activation == "relu") return at::relu(z);
  if (activation == "gelu") return at::gelu(z);
  if (activation == "gelu_tanh") return at::gelu(z, "tanh");
  return at::silu(z);
}

Tensor linear_autograd(c10::DispatchKeySet keys, const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                       std::string_view activation, std::string_view algorithm) {
  const c10::DispatchKeySet below = keys & c10::after_autograd_keyset;
  const Needs needs(input, weight, bias);
  const bool is_given = input.defined() && weight.defined();  // else the kernel raises
  if (needs.nothing() || !is_given) return linear_op().redispatch(below, input, weight, bias, activation, algorithm);
  const bool is_known =
      activation == "relu" || activation == "gelu" || activation == "gelu_tanh" || activation == "silu";
  if (is_known) {
    return activate(linear_op().call(input, weight, bias, "none", algorithm), activation);
  }
  const Tensor own_bias = bias.value_or(Tensor());
  const bool is_usual = activation == "none" && input.dim() >= 1 && weight.dim() == 2 &&
                        (!own_bias.defined() || (own_bias.dim() == 1 && own_bias.sym_size(0) == weight.sym_size(0)));
  if (is_usual) return differentiate<LinearFormula>(needs, input, weight, own_bias, below, algorithm);
  if (activation == "none" && input.dim() >= 1 && weight.dim() == 1) {
    return linear_op().call(input, weight.unsqueeze(0), bias, activation, algorithm).squeeze(-1);
  }
  if (activation == "none" && weight.dim() == 2 && own_bias.defined() && own_bias.dim() <= 1 &&
      own_bias.sym_numel() == 1) {
    return linear_op().call(input, weight, own_bias.expand_symint({weight.sym_size(0)}), activation, algorithm);
  }
  return linear_op().redispatch(below, input, weight, bias, activation, algorithm);  // raises
}

void matmul_out_autograd(c10::DispatchKeySet keys, const Tensor& a, const Tensor& b, Tensor& out,
                         std::string_view algorithm) {
  const Needs needs(a, b, out);
  TORCH_CHECK(!needs.grad,
              "tiledmm: matmul_out does not support automatic differentiation, but one of its arguments requires grad");
  TORCH_CHECK(!needs.tangent,
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
  m.impl("linear", &linear_autograd);
}

TORCH_LIBRARY_IMPL(tiledmm, ADInplaceOrView, m) { m.impl("matmul_out", &matmul_out_counted); }

}  // namespace tiledmm

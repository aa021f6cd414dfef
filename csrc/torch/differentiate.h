// How a formula's operator (formulas.h) is recorded for a gradient or a tangent. Backward is made of the same operators
// on transposed views, so it is differentiable itself; forward-mode tangents are, too.
//
// Three ways, because no single one serves every transform of torch (2.11 to 2.13):
//   no gradient and no tangent -> straight to the kernel below;
//   a forward-mode tangent or a torch.func transform is active -> a Node of our own (autograd::Function refuses there);
//   otherwise -> autograd::Function (compiled autograd can trace it, a Node of our own it cannot).
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
// GCC 13 takes torch's copy of a vector<bool> of one word for one that overflows.
#pragma GCC diagnostic ignored "-Warray-bounds"
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#endif
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/FunctionsManual.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

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
    node->option = recorded(option);
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

// A view, whose derivative sums what was broadcast.
Tensor broadcast(const Tensor& tensor, c10::SymIntArrayRef sizes, c10::DispatchKeySet below) {
  if (tensor.sym_sizes() == sizes) return tensor;
  const Wanted wanted(tensor);
  if (!wanted.grad) return tensor.expand_symint(sizes);
  return differentiate<BroadcastFormula>(wanted, tensor, of_shape(sizes, tensor), Tensor(), below, "auto");
}

}  // namespace
}  // namespace tiledmm

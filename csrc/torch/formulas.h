// The derivatives of the operators as formulas: what each computes of up to three operands and an option, and what its
// gradients and tangents are, made of the same operators on transposed views. autograd.cpp calls them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/FunctionsManual.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <tuple>
#include <vector>

#include "torch/matmul.h"

namespace tiledmm {
namespace {

using at::Tensor;
using torch::autograd::isFwGradDefined;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<Tensor>;

// torch.func includes its front key as long as a transform is on its stack.
bool is_transform_active() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

OptionalTensor optional(const Tensor& tensor) { return tensor.defined() ? OptionalTensor(tensor) : std::nullopt; }

// (..., k) as (rows, k): a view where the strides allow it.
Tensor as_rows(const Tensor& tensor) {
  if (tensor.dim() == 2) return tensor;
  c10::SymInt rows = 1;
  for (int64_t d = 0; d + 1 < tensor.dim(); ++d) rows *= tensor.sym_size(d);
  return tensor.reshape_symint({rows, tensor.sym_size(-1)});
}

using Needs = std::array<bool, 3>;  // the operands whose gradients are wanted

struct Formula {
  static constexpr bool kKeepsResult = false;  // for backward
  static constexpr bool kHasOffs = false;      // a fourth operand, of which nothing is differentiated: groups' ends

  // What backward has of the first two operands. Of a product's: a for the gradient of b and the other way round.
  static std::array<Tensor, 2> kept(const Tensor& a, const Tensor& b, const Needs& needs) {
    return {needs[1] ? a : Tensor(), needs[0] ? b : Tensor()};
  }
};

// What backward computes with: the operands that were kept, the result if it was.
struct Kept {
  Tensor first, second, result, offs;
};

// An option as a backward pass takes it: no context around that pass changes what "auto" was.
std::string recorded(std::string_view option) { return std::string(option == "auto" ? kPlainAuto : option); }

// What a product is asked for beside its operands, as the text that an option is: the algorithm alone, or numbers and
// dtypes before it. Dtypes are there where they are not all one: backward has to round a gradient to that of its
// operand, and may have nothing of the operand to ask.
struct ProductOption {
  double beta = 1, alpha = 1;
  std::string algorithm;
  OptionalDtype first, second, third, result;  // of the operands and the result; none: all have one

  ProductOption(const Tensor& a, const Tensor& b, const Tensor& added, std::string_view asked, OptionalDtype out_dtype)
      : algorithm(asked) {
    const at::ScalarType type = a.scalar_type(), type_b = b.scalar_type();
    const at::ScalarType type_added = added.defined() ? added.scalar_type() : type;
    if (type == type_b && type == type_added && type == out_dtype.value_or(type)) return;
    first = type, second = type_b, third = type_added;
    result = out_dtype.value_or(type == type_b ? type : at::kFloat);
  }
  explicit ProductOption(std::string_view text) {
    const size_t end = text.rfind(',');
    algorithm = text.substr(end == text.npos ? 0 : end + 1);
    if (end == text.npos) return;
    const std::string numbers(text.substr(0, end));
    int types[4] = {-1, -1, -1, -1};
    std::sscanf(numbers.c_str(), "%la,%la,%d,%d,%d,%d", &beta, &alpha, &types[0], &types[1], &types[2], &types[3]);
    OptionalDtype* const own[] = {&first, &second, &third, &result};
    for (int i = 0; i < 4; ++i) {
      if (types[i] >= 0) *own[i] = at::ScalarType(types[i]);
    }
  }

  std::string text() const {
    if (beta == 1 && alpha == 1 && !result) return algorithm;
    char numbers[120];
    const auto number = [](OptionalDtype type) { return type ? int(*type) : -1; };
    std::snprintf(numbers, sizeof numbers, "%a,%a,%d,%d,%d,%d,", beta, alpha, number(first), number(second),
                  number(third), number(result));  // exact
    return numbers + recorded(algorithm);
  }
};

// A gradient in the dtype of its operand.
Tensor rounded_to(OptionalDtype dtype, const Tensor& grad) { return dtype ? grad.to(*dtype) : grad; }

// The gradients of a product's two operands. SHARES_B: one b for the whole batch of a. product(left, right, dtype)
// multiplies.
template <bool SHARES_B, class Product>
void set_operand_grads(const Tensor& grad, const Kept& kept, const Needs& needs, const ProductOption& option,
                       const Product& product, variable_list& grads) {
  if (needs[0]) grads[0] = product(grad, kept.second.mT(), option.first);
  // One product for the whole batch: a gradient of b for each item, to be added up, would take far more memory.
  if (needs[1]) {
    grads[1] = SHARES_B ? product(as_rows(kept.first).mT(), as_rows(grad), option.second)
                        : product(kept.first.mT(), grad, option.second);
  }
}

// C = A B for a and b that are at least 2-D: with one b for the whole batch of a, or with equal batch dimensions. Which
// of the two is fixed here, as backward may have nothing of b to ask.
template <bool SHARES_B>
struct MatmulFormula : Formula {
  static constexpr size_t kInputs = 2;
  static constexpr const char* kName = "TiledMatmulBackward";

  static Tensor forward(c10::DispatchKeySet below, const Tensor& a, const Tensor& b, const Tensor&,
                        std::string_view text) {
    const ProductOption option(text);
    return matmul_op().redispatch(below, a, b, option.algorithm, option.result);
  }
  static variable_list backward(const Tensor& grad, const Kept& kept, const Needs& needs, std::string_view text) {
    const ProductOption option(text);
    variable_list grads(2);
    const auto product = [&](const Tensor& left, const Tensor& right, OptionalDtype dtype) {
      return matmul_op().call(left, right, option.algorithm, dtype);
    };
    set_operand_grads<SHARES_B>(grad, kept, needs, option, product, grads);
    return grads;
  }
  static Tensor tangent(const Kept& primal, const Tensor& a_t, const Tensor& b_t, const Tensor&,
                        std::string_view text) {
    const ProductOption option(text);
    const auto product = [&](const Tensor& left, const Tensor& right) {
      return matmul_op().call(left, right, option.algorithm, option.result);
    };
    const Tensor left = a_t.defined() ? product(a_t, primal.second) : Tensor();
    const Tensor right = b_t.defined() ? product(primal.first, b_t) : Tensor();
    return !left.defined() ? right : !right.defined() ? left : left + right;
  }
};

// beta * input + alpha * A B for an input of the result's shape; a and b as in MatmulFormula.
template <bool SHARES_B>
struct AddmmFormula : Formula {
  static constexpr size_t kInputs = 3;
  static constexpr const char* kName = "TiledAddmmBackward";

  static Tensor forward(c10::DispatchKeySet below, const Tensor& a, const Tensor& b, const Tensor& input,
                        std::string_view text) {
    const ProductOption option(text);
    return addmm_op().redispatch(below, optional(input), a, b, option.beta, option.alpha, option.algorithm,
                                 option.result);
  }
  static variable_list backward(const Tensor& grad, const Kept& kept, const Needs& needs, std::string_view text) {
    const ProductOption option(text);
    const auto scaled_product = [&](const Tensor& left, const Tensor& right, OptionalDtype dtype) {
      return addmm_op().call(std::nullopt, left, right, 0, option.alpha, option.algorithm, dtype);
    };
    variable_list grads(3);
    set_operand_grads<SHARES_B>(grad, kept, needs, option, scaled_product, grads);
    if (needs[2]) grads[2] = rounded_to(option.third, option.beta == 1 ? grad : grad * option.beta);
    return grads;
  }
  static Tensor tangent(const Kept& primal, const Tensor& a_t, const Tensor& b_t, const Tensor& input_t,
                        std::string_view text) {
    const ProductOption option(text);
    Tensor sum = input_t.defined() ? option.beta == 1 ? input_t : input_t * option.beta : Tensor();
    const auto add = [&](const Tensor& left, const Tensor& right) {
      sum = addmm_op().call(optional(sum), left, right, 1, option.alpha, option.algorithm, option.result);
    };
    if (a_t.defined()) add(a_t, primal.second);
    if (b_t.defined()) add(primal.first, b_t);
    return rounded_to(option.result, sum);
  }
};

// Y = X W^T + bias for input (..., k), weight (n, k), bias (n,); relu of that, whose slope follows from the result.
template <bool IS_RELU>
struct LinearFormula : Formula {
  static constexpr size_t kInputs = 3;
  static constexpr bool kKeepsResult = IS_RELU;
  static constexpr const char* kName = IS_RELU ? "TiledLinearReluBackward" : "TiledLinearBackward";

  static Tensor forward(c10::DispatchKeySet below, const Tensor& input, const Tensor& weight, const Tensor& bias,
                        std::string_view text) {
    const ProductOption option(text);
    return linear_op().redispatch(below, input, weight, optional(bias), IS_RELU ? "relu" : "none", option.algorithm,
                                  option.result);
  }
  static variable_list backward(const Tensor& grad_result, const Kept& kept, const Needs& needs,
                                std::string_view text) {
    const ProductOption option(text);
    const std::string& algorithm = option.algorithm;
    const Tensor grad = IS_RELU ? activate_backward_op().call(grad_result, kept.result, "relu") : grad_result;
    variable_list grads(3);
    if (needs[0]) grads[0] = matmul_op().call(grad, kept.second, algorithm, option.first);
    if (!needs[1] && !needs[2]) return grads;
    const Tensor grad_rows = as_rows(grad);
    // In one pass, unless the gradients are to be differentiated themselves.
    if (needs[1] && needs[2] && !option.result && !at::GradMode::is_enabled() && !is_transform_active() &&
        !isFwGradDefined(grad) && !isFwGradDefined(kept.first)) {
      std::tie(grads[1], grads[2]) = linear_weight_grads_op().call(grad_rows, as_rows(kept.first), algorithm);
      return grads;
    }
    if (needs[1]) grads[1] = matmul_op().call(grad_rows.mT(), as_rows(kept.first), algorithm, option.second);
    if (needs[2]) grads[2] = rounded_to(option.third, ordered_sum_op().call(grad_rows, {0}).squeeze(0));
    return grads;
  }
  static Tensor tangent(const Kept& primal, const Tensor& input_t, const Tensor& weight_t, const Tensor& bias_t,
                        std::string_view text) {
    const ProductOption option(text);
    const Tensor &input = primal.first, &weight = primal.second;
    Tensor sum;
    OptionalTensor bias = optional(bias_t);
    const auto add = [&](const Tensor& x, const Tensor& w) {
      const Tensor term = linear_op().call(x, w, bias, "none", option.algorithm, option.result);
      bias.reset();
      sum = sum.defined() ? sum + term : term;
    };
    if (input_t.defined()) add(input_t, weight);
    if (weight_t.defined()) add(input, weight_t);
    if (bias) add(input.narrow(-1, 0, 0), weight.narrow(-1, 0, 0));  // no products: the bias alone
    return IS_RELU ? activate_backward_op().call(sum, primal.result, "relu") : sum;
  }
};

// A function of each element; the option is its name.
struct ActivateFormula : Formula {
  static constexpr size_t kInputs = 1;
  static constexpr const char* kName = "TiledActivateBackward";

  static std::array<Tensor, 2> kept(const Tensor& x, const Tensor&, const Needs&) { return {x, Tensor()}; }
  static Tensor forward(c10::DispatchKeySet below, const Tensor& x, const Tensor&, const Tensor&,
                        std::string_view name) {
    return activate_op().redispatch(below, x, name);
  }
  static variable_list backward(const Tensor& grad, const Kept& kept, const Needs&, std::string_view name) {
    return {times_slope(grad, kept.first, name)};
  }
  static Tensor tangent(const Kept& primal, const Tensor& x_t, const Tensor&, const Tensor&, std::string_view name) {
    return times_slope(x_t, primal.first, name);
  }

 private:
  static Tensor times_slope(const Tensor& grad, const Tensor& x, std::string_view name) {
    if (name == "normal_density") return -grad * x * activate_op().call(x, name);
    if (name != "logistic") return activate_backward_op().call(grad, x, name);
    const Tensor value = activate_op().call(x, name);
    return grad * value * (1 - value);
  }
};

// The second derivative of gelu, gelu_tanh or silu, by operations that can be differentiated in turn. 16 bits would be
// too few for its sums.
Tensor curvature(const Tensor& x, std::string_view activation) {
  const bool is_short = x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16;
  // Beyond this it is 0, and a power of x would be infinite.
  const double limit = activation == "silu" ? 800 : 40;
  const Tensor z = (is_short ? x.to(at::kFloat) : x).clamp(-limit, limit);
  const auto to_own = [&](const Tensor& value) { return is_short ? value.to(x.scalar_type()) : value; };
  if (activation == "gelu") return to_own(activate_op().call(z, "normal_density") * (2 - z * z));
  // silu and gelu_tanh are z * s, where s is logistic(u) and by_u is its derivative in u.
  constexpr double kFactor = 1.59576912160573071176, kCube = 0.044715;
  const bool is_silu = activation == "silu";
  const Tensor s = activate_op().call(is_silu ? z : kFactor * z * (1 + kCube * z * z), "logistic");
  const Tensor by_u = s * (1 - s);
  if (is_silu) return to_own(by_u * (2 + z * (1 - 2 * s)));
  const Tensor u_slope = kFactor * (1 + 3 * kCube * z * z);
  return to_own(by_u * (2 * u_slope + z * ((1 - 2 * s) * u_slope * u_slope + 6 * kFactor * kCube * z)));
}

// grad times an activation's slope at x; for relu, x may be its result.
struct ActivateBackwardFormula : Formula {
  static constexpr size_t kInputs = 2;
  static constexpr const char* kName = "TiledActivateBackwardBackward";

  static std::array<Tensor, 2> kept(const Tensor& grad, const Tensor& x, const Needs& needs) {
    return {needs[1] ? grad : Tensor(), x};
  }
  static Tensor forward(c10::DispatchKeySet below, const Tensor& grad, const Tensor& x, const Tensor&,
                        std::string_view name) {
    return activate_backward_op().redispatch(below, grad, x, name);
  }
  static variable_list backward(const Tensor& outer, const Kept& kept, const Needs& needs, std::string_view name) {
    variable_list grads(2);
    if (needs[0]) grads[0] = activate_backward_op().call(outer, kept.second, name);
    if (needs[1]) {
      // Zeros, not nothing: who asks for this gradient is not told that there is no way to it.
      grads[1] = name == "relu" ? at::zeros_like(kept.second) : outer * kept.first * curvature(kept.second, name);
    }
    return grads;
  }
  static Tensor tangent(const Kept& primal, const Tensor& grad_t, const Tensor& x_t, const Tensor&,
                        std::string_view name) {
    const Tensor left = grad_t.defined() ? activate_backward_op().call(grad_t, primal.second, name) : Tensor();
    if (!x_t.defined() || name == "relu") return left.defined() ? left : at::zeros_like(primal.first);
    const Tensor right = x_t * primal.first * curvature(primal.second, name);
    return left.defined() ? left + right : right;
  }
};

// activation(gate) * up; the option is the activation and the result's dtype.
struct GatedFormula : Formula {
  static constexpr size_t kInputs = 2;
  static constexpr const char* kName = "TiledGatedBackward";

  static std::array<Tensor, 2> kept(const Tensor& gate, const Tensor& up, const Needs&) { return {gate, up}; }
  static Tensor forward(c10::DispatchKeySet below, const Tensor& gate, const Tensor& up, const Tensor&,
                        std::string_view text) {
    const Option option(text);
    return gated_op().redispatch(below, gate, up, option.activation, option.result);
  }
  static variable_list backward(const Tensor& grad, const Kept& kept, const Needs&, std::string_view text) {
    variable_list grads(2);
    const Tensor own_grad = rounded_to(kept.first.scalar_type(), grad);
    std::tie(grads[0], grads[1]) = gated_backward_op().call(own_grad, kept.first, kept.second, Option(text).activation);
    return grads;
  }
  static Tensor tangent(const Kept& primal, const Tensor& gate_t, const Tensor& up_t, const Tensor&,
                        std::string_view text) {
    const Option option(text);
    const auto by_slope = [&] {
      return activate_backward_op().call(gate_t * primal.second, primal.first, option.activation);
    };
    const auto by_value = [&] { return up_t * activate_op().call(primal.first, option.activation); };
    const Tensor sum = !gate_t.defined() ? by_value() : !up_t.defined() ? by_slope() : by_slope() + by_value();
    return rounded_to(option.result, sum);
  }

  static std::string text_of(std::string_view activation, at::ScalarType result) {
    return std::string(activation) + "," + std::to_string(int(result));
  }

 private:
  struct Option {
    std::string activation;
    at::ScalarType result;

    explicit Option(std::string_view text)
        : activation(text.substr(0, text.find(','))),
          result(at::ScalarType(std::stoi(std::string(text.substr(text.find(',') + 1))))) {}
  };
};

// Groups of products. Each gradient is one of the other forms: rows and k exchange their places, columns stay columns.
struct GroupedFormula : Formula {
  static constexpr size_t kInputs = 3;
  static constexpr bool kHasOffs = true;
  static constexpr const char* kName = "TiledGroupedMatmulBackward";

  static Tensor forward(c10::DispatchKeySet below, const Tensor& a, const Tensor& b, const Tensor& bias,
                        const Tensor& offs, std::string_view text) {
    const ProductOption option(text);
    return grouped_matmul_op().redispatch(below, a, b, optional(offs), optional(bias), option.result, "none",
                                          option.algorithm);
  }
  static variable_list backward(const Tensor& grad, const Kept& kept, const Needs& needs, std::string_view text) {
    const ProductOption option(text);
    const auto product = [&](const Tensor& left, const Tensor& right, OptionalDtype dtype) {
      return grouped_matmul_op().call(left, right, optional(kept.offs), std::nullopt, dtype, "none", option.algorithm);
    };
    variable_list grads(3);
    if (needs[0]) grads[0] = product(grad, kept.second.mT(), option.first);
    if (needs[1]) {
      // As b lies in memory: mostly along k, as weights of nn.Linear do, which is assumed where b was not kept.
      const bool is_along_n = kept.second.defined() && kept.second.sym_stride(-1) == 1;
      grads[1] = is_along_n ? product(kept.first.mT(), grad, option.second)
                            : product(grad.mT(), kept.first, option.second).mT();
    }
    if (needs[2]) {
      // The sums of each group's rows: a product of groups of k with ones, or of whole matrices.
      const Tensor sums = grad.dim() == 3 ? ordered_sum_op().call(grad, {1})
                                          : product(at::ones({}, grad.options()).expand_symint({1, grad.sym_size(0)}),
                                                    grad, grad.scalar_type());
      grads[2] = rounded_to(option.third, sums.squeeze(1));
    }
    return grads;
  }
  static Tensor tangent(const Kept& primal, const Tensor& a_t, const Tensor& b_t, const Tensor& bias_t,
                        std::string_view text) {
    const ProductOption option(text);
    const Tensor &a = primal.first, &b = primal.second;
    Tensor sum;
    const auto add = [&](const Tensor& left, const Tensor& right, const Tensor& bias) {
      const Tensor term = grouped_matmul_op().call(left, right, optional(primal.offs), optional(bias), option.result,
                                                   "none", option.algorithm);
      sum = sum.defined() ? sum + term : term;
    };
    if (a_t.defined()) add(a_t, b, bias_t);
    if (b_t.defined()) add(a, b_t, a_t.defined() ? Tensor() : bias_t);
    if (!sum.defined()) add(at::zeros_like(a), b, bias_t);  // the bias alone
    return sum;
  }
};

// A tensor that says a shape and takes no memory.
Tensor of_shape(c10::SymIntArrayRef sizes, const Tensor& like) {
  return at::empty({}, at::TensorOptions().dtype(like.dtype()).device(like.device())).expand_symint(sizes);
}

// A formula of one operand, of which backward needs the shape alone.
struct FormulaOfShape : Formula {
  static constexpr size_t kInputs = 1;

  static std::array<Tensor, 2> kept(const Tensor& a, const Tensor&, const Needs&) {
    return {of_shape(a.sym_sizes(), a), Tensor()};
  }
};

// The sums over some dimensions, which the option lists: "0,2".
struct OrderedSumFormula : FormulaOfShape {
  static constexpr const char* kName = "TiledOrderedSumBackward";

  static Tensor forward(c10::DispatchKeySet below, const Tensor& a, const Tensor&, const Tensor&,
                        std::string_view dims) {
    return ordered_sum_op().redispatch(below, a, dims_of(dims));
  }
  static variable_list backward(const Tensor& grad, const Kept& kept, const Needs&, std::string_view) {
    return {grad.expand_symint(kept.first.sym_sizes())};
  }
  static Tensor tangent(const Kept&, const Tensor& a_t, const Tensor&, const Tensor&, std::string_view dims) {
    return ordered_sum_op().call(a_t, dims_of(dims));
  }

  static std::string text_of(at::IntArrayRef dims) {
    std::string text;
    for (const int64_t dim : dims) text += std::to_string(dim) + ",";
    return text;
  }

 private:
  static std::vector<int64_t> dims_of(std::string_view text) {
    std::vector<int64_t> dims;
    for (; !text.empty(); text.remove_prefix(text.find(',') + 1)) dims.push_back(std::stoll(std::string(text)));
    return dims;
  }
};

// A view of the second operand's shape, broadcast; what expand would be, but for the order in which its gradient is
// summed.
struct BroadcastFormula : FormulaOfShape {
  static constexpr const char* kName = "TiledBroadcastBackward";

  static Tensor forward(c10::DispatchKeySet, const Tensor& a, const Tensor& shape, const Tensor&, std::string_view) {
    const Tensor view = a.expand_symint(shape.sym_sizes());
    // What is saved of the view must notice where `a` changes in place.
    torch::autograd::impl::set_version_counter(view, torch::autograd::impl::version_counter(a));
    return view;
  }
  static variable_list backward(const Tensor& grad, const Kept& kept, const Needs&, std::string_view) {
    const Tensor& shape = kept.first;
    const int64_t added = grad.dim() - shape.dim();
    std::vector<int64_t> dims;
    for (int64_t d = 0; d < grad.dim(); ++d) {
      if (d < added || shape.sym_size(d - added) != grad.sym_size(d)) dims.push_back(d);
    }
    Tensor sum = ordered_sum_op().call(grad, dims);
    for (int64_t d = 0; d < added; ++d) sum = sum.squeeze(0);
    return {sum};
  }
  static Tensor tangent(const Kept& primal, const Tensor& a_t, const Tensor&, const Tensor&, std::string_view) {
    return a_t.expand_symint(primal.result.sym_sizes());
  }
};

}  // namespace
}  // namespace tiledmm

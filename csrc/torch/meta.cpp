// Meta kernels of the operators, which torch's fake tensors use, too: the checks of the real ones and an empty result.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "torch/shapes.h"

namespace tiledmm {
namespace {

using at::Tensor;
using c10::SymInt;

Tensor empty(const Tensor& like, c10::SymIntArrayRef shape) { return like.new_empty_symint(shape); }

Tensor matmul(const Tensor& a, const Tensor& b, std::string_view algorithm) {
  check_alike("a", a, "b", b);
  to_dtype("a", a);
  to_algorithm(algorithm);
  return empty(a, MatmulShape<SymInt>(a, b).out);
}

void matmul_out(const Tensor& a, const Tensor& b, Tensor& out, std::string_view algorithm) {
  check_alike("a", a, "b", b);
  check_alike("a", a, "out", out);
  to_dtype("a", a);
  to_algorithm(algorithm);
  const Shape<SymInt> shape = MatmulShape<SymInt>(a, b).out;
  bool fits = out.dim() == int64_t(shape.size());
  for (size_t d = 0; fits && d < shape.size(); ++d) fits = must_equal(out.sym_size(int64_t(d)), shape[d]);
  TORCH_CHECK(fits, "tiledmm: out has shape ", out.sym_sizes(), "; the result has ", c10::SymIntArrayRef(shape));
}

Tensor addmm(const std::optional<Tensor>& input, const Tensor& a, const Tensor& b, double, double,
             std::string_view algorithm) {
  check_alike("a", a, "b", b);
  if (input && input->defined()) check_alike("a", a, "input", *input);
  to_dtype("a", a);
  to_algorithm(algorithm);
  return empty(a, addmm_shape<SymInt>(input, a, b));
}

Tensor linear(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, std::string_view activation,
              std::string_view algorithm) {
  check_alike("input", input, "weight", weight);
  if (bias && bias->defined()) check_alike("input", input, "bias", *bias);
  to_dtype("input", input);
  to_activation(activation);
  to_algorithm(algorithm);
  return empty(input, linear_shape<SymInt>(input, weight, bias));
}

std::tuple<Tensor, Tensor> linear_and_sum(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                                          std::string_view activation, std::string_view algorithm) {
  check_keeps_sum(activation);
  const Tensor out = linear(input, weight, bias, activation, algorithm);
  return {out, empty(out, out.sym_sizes())};
}

Tensor activate(const Tensor& x, std::string_view activation) {
  to_dtype("x", x);
  to_function(activation);
  return empty(x, x.sym_sizes());
}

Tensor activate_backward(const Tensor& grad, const Tensor& x, std::string_view activation) {
  check_slope<SymInt>(grad, x, activation);
  to_dtype("x", x);
  return empty(x, x.sym_sizes());
}

Tensor ordered_sum(const Tensor& a, at::IntArrayRef dims) {
  to_dtype("a", a);
  return empty(a, ordered_sum_shape<SymInt>(a, dims));
}

std::tuple<Tensor, Tensor> linear_weight_grads(const Tensor& grad, const Tensor& input, std::string_view algorithm) {
  check_alike("grad", grad, "input", input);
  to_dtype("grad", grad);
  to_algorithm(algorithm);
  check_weight_grads<SymInt>(grad, input);
  return {empty(grad, {grad.sym_size(1), input.sym_size(1)}), empty(grad, {grad.sym_size(1)})};
}

}  // namespace

TORCH_LIBRARY_IMPL(tiledmm, Meta, m) {
  m.impl("matmul", &matmul);
  m.impl("matmul_out", &matmul_out);
  m.impl("addmm", &addmm);
  m.impl("linear", &linear);
  m.impl("linear_and_sum", &linear_and_sum);
  m.impl("linear_weight_grads", &linear_weight_grads);
  m.impl("activate", &activate);
  m.impl("activate_backward", &activate_backward);
  m.impl("ordered_sum", &ordered_sum);
}

}  // namespace tiledmm

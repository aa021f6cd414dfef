// Meta kernels of the operators, which torch's fake tensors use, too: the checks of the real ones and an empty result.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "torch/quantize.h"
#include "torch/shapes.h"

namespace tiledmm {
namespace {

using at::Tensor;
using c10::SymInt;

Tensor empty(const Tensor& like, c10::SymIntArrayRef shape, OptionalDtype dtype = std::nullopt) {
  return like.new_empty_symint(shape, at::TensorOptions().dtype(dtype.value_or(like.scalar_type())));
}

Tensor matmul(const Tensor& a, const Tensor& b, std::string_view algorithm, OptionalDtype out_dtype) {
  const ProductDtypes dtypes = product_dtypes({"a", a}, {"b", b}, out_dtype);
  to_algorithm(algorithm);
  return empty(a, MatmulShape<SymInt>(a, b).out, dtypes.result);
}

void matmul_out(const Tensor& a, const Tensor& b, Tensor& out, std::string_view algorithm) {
  to_dtype("out", out);
  product_dtypes({"a", a}, {"b", b}, out.scalar_type(), "out", out);
  to_algorithm(algorithm);
  const Shape<SymInt> shape = MatmulShape<SymInt>(a, b).out;
  bool fits = out.dim() == int64_t(shape.size());
  for (size_t d = 0; fits && d < shape.size(); ++d) fits = must_equal(out.sym_size(int64_t(d)), shape[d]);
  TORCH_CHECK(fits, "tiledmm: out has shape ", out.sym_sizes(), "; the result has ", c10::SymIntArrayRef(shape));
}

Tensor addmm(const std::optional<Tensor>& input, const Tensor& a, const Tensor& b, double, double,
             std::string_view algorithm, OptionalDtype out_dtype) {
  const ProductDtypes dtypes = product_dtypes({"a", a}, {"b", b}, out_dtype, "input", input);
  to_algorithm(algorithm);
  return empty(a, addmm_shape<SymInt>(input, a, b), dtypes.result);
}

Tensor linear(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, std::string_view activation,
              std::string_view algorithm, OptionalDtype out_dtype) {
  const ProductDtypes dtypes = product_dtypes({"input", input}, {"weight", weight}, out_dtype, "bias", bias);
  to_activation(activation);
  to_algorithm(algorithm);
  return empty(input, linear_shape<SymInt>(input, weight, bias), dtypes.result);
}

std::tuple<Tensor, Tensor> linear_and_sum(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                                          std::string_view activation, std::string_view algorithm,
                                          OptionalDtype out_dtype) {
  check_has_activation("linear_and_sum", activation);
  const Tensor out = linear(input, weight, bias, activation, algorithm, out_dtype);
  return {out, empty(out, out.sym_sizes())};
}

Tensor activate(const Tensor& x, std::string_view activation) {
  to_dtype("x", x);
  to_function(activation);
  return empty(x, x.sym_sizes());
}

Tensor activate_backward(const Tensor& grad, const Tensor& x, std::string_view activation) {
  check_slope<SymInt>(grad, x, activation);
  return empty(x, x.sym_sizes());
}

Tensor gated(const Tensor& gate, const Tensor& up, std::string_view activation, OptionalDtype out_dtype) {
  return empty(gate, gate.sym_sizes(), check_gated<SymInt>(gate, up, activation, out_dtype));
}

std::tuple<Tensor, Tensor> gated_backward(const Tensor& grad, const Tensor& gate, const Tensor& up,
                                          std::string_view activation) {
  check_gated<SymInt>(gate, up, activation);
  check_one_shape<SymInt>({"grad", grad}, {"gate", gate});
  return {empty(gate, gate.sym_sizes()), empty(up, up.sym_sizes())};
}

Tensor gated_linear(const Tensor& input, const Tensor& gate, const Tensor& up, const std::optional<Tensor>& gate_bias,
                    const std::optional<Tensor>& up_bias, std::string_view activation, std::string_view algorithm,
                    OptionalDtype out_dtype) {
  check_gated_linear<SymInt>(input, gate, up, gate_bias, up_bias, activation, out_dtype);
  return linear(input, gate, gate_bias, "none", algorithm, out_dtype);
}

std::tuple<Tensor, Tensor, Tensor> with_sums(const Tensor& out) {
  return {out, empty(out, out.sym_sizes()), empty(out, out.sym_sizes())};
}

std::tuple<Tensor, Tensor, Tensor> gated_linear_and_sums(const Tensor& input, const Tensor& gate, const Tensor& up,
                                                         const std::optional<Tensor>& gate_bias,
                                                         const std::optional<Tensor>& up_bias,
                                                         std::string_view activation, std::string_view algorithm,
                                                         OptionalDtype out_dtype) {
  return with_sums(gated_linear(input, gate, up, gate_bias, up_bias, activation, algorithm, out_dtype));
}

Tensor grouped_matmul(const Tensor& a, const Tensor& b, const std::optional<Tensor>& offs,
                      const std::optional<Tensor>& bias, OptionalDtype out_dtype, std::string_view activation,
                      std::string_view algorithm) {
  const ProductDtypes dtypes = product_dtypes({"a", a}, {"b", b}, out_dtype, "bias", bias);
  to_activation(activation);
  to_algorithm(algorithm);
  return empty(a, GroupedShape<SymInt>(a, b, offs, bias).out, dtypes.result);
}

std::tuple<Tensor, Tensor> grouped_matmul_and_sum(const Tensor& a, const Tensor& b, const std::optional<Tensor>& offs,
                                                  const std::optional<Tensor>& bias, OptionalDtype out_dtype,
                                                  std::string_view activation, std::string_view algorithm) {
  check_has_activation("grouped_matmul_and_sum", activation);
  const Tensor out = grouped_matmul(a, b, offs, bias, out_dtype, activation, algorithm);
  return {out, empty(out, out.sym_sizes())};
}

Tensor gated_grouped_matmul(const Tensor& a, const Tensor& gate, const Tensor& up, const std::optional<Tensor>& offs,
                            const std::optional<Tensor>& gate_bias, const std::optional<Tensor>& up_bias,
                            OptionalDtype out_dtype, std::string_view activation, std::string_view algorithm) {
  check_gated_grouped<SymInt>(a, gate, up, offs, gate_bias, up_bias, activation, out_dtype);
  return grouped_matmul(a, gate, offs, gate_bias, out_dtype, "none", algorithm);
}

std::tuple<Tensor, Tensor, Tensor> gated_grouped_matmul_and_sums(const Tensor& a, const Tensor& gate, const Tensor& up,
                                                                 const std::optional<Tensor>& offs,
                                                                 const std::optional<Tensor>& gate_bias,
                                                                 const std::optional<Tensor>& up_bias,
                                                                 OptionalDtype out_dtype, std::string_view activation,
                                                                 std::string_view algorithm) {
  return with_sums(gated_grouped_matmul(a, gate, up, offs, gate_bias, up_bias, out_dtype, activation, algorithm));
}

Tensor widen_float8(const Tensor& x, at::ScalarType dtype) {
  const Tensor dense = x.is_non_overlapping_and_dense() ? x : x.contiguous();
  return at::empty_like(dense, dense.options().dtype(dtype));
}

Tensor scaled_matmul(const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
                     const std::optional<Tensor>& bias, OptionalDtype out_dtype, std::string_view activation,
                     std::string_view algorithm) {
  const ProductDtypes dtypes = scaled_dtypes(a, b, scale_a, scale_b, bias, out_dtype);
  to_activation(activation);
  to_algorithm(algorithm);
  return empty(a, ScaledShape<SymInt>(a, b, scale_a, scale_b, bias).out, dtypes.result);
}

Tensor scaled_grouped_matmul(const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
                             const Tensor& offs, const std::optional<Tensor>& bias, OptionalDtype out_dtype,
                             std::string_view activation, std::string_view algorithm) {
  const ProductDtypes dtypes = scaled_dtypes(a, b, scale_a, scale_b, bias, out_dtype);
  to_activation(activation);
  to_algorithm(algorithm);
  return empty(a, ScaledGroupedShape<SymInt>(a, b, scale_a, scale_b, offs, bias).groups.out, dtypes.result);
}

Tensor weight_only(const Tensor& x, const Tensor& q, const Tensor& scale, const std::optional<Tensor>& bias,
                   at::ScalarType out_dtype, std::string_view activation, std::string_view algorithm) {
  weight_only_dtypes(x, q, scale, bias, out_dtype);
  to_activation(activation);
  to_algorithm(algorithm);
  return empty(x, {x.sym_size(0), q.sym_size(0)}, out_dtype);
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

std::tuple<Tensor, Tensor> quantize(const Tensor& x, ScaleBlock block, at::ScalarType dtype,
                                    std::string_view activation) {
  check_quantized(x, dtype, activation);
  const SymInt m = x.sym_size(0), k = x.sym_size(1);
  const auto shape = scale_shape(m, k, block), strides = scale_strides(shape, block);
  const Tensor scale = x.new_empty_strided_symint(shape, strides, x.options().dtype(at::kFloat));
  return {empty(x, {m, pitch_of(k)}, dtype).narrow_symint(1, 0, k), scale};
}

std::tuple<Tensor, Tensor> quantize_rows(const Tensor& x, at::ScalarType dtype, bool, std::string_view activation) {
  return quantize(x, ScaleBlock::row, dtype, activation);
}

std::tuple<Tensor, Tensor> quantize_blocks(const Tensor& x, int64_t block_rows, at::ScalarType dtype, bool,
                                           std::string_view activation) {
  return quantize(x, to_scale_block(block_rows), dtype, activation);
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
  m.impl("gated_linear", &gated_linear);
  m.impl("gated_linear_and_sums", &gated_linear_and_sums);
  m.impl("gated", &gated);
  m.impl("gated_backward", &gated_backward);
  m.impl("grouped_matmul", &grouped_matmul);
  m.impl("grouped_matmul_and_sum", &grouped_matmul_and_sum);
  m.impl("gated_grouped_matmul", &gated_grouped_matmul);
  m.impl("gated_grouped_matmul_and_sums", &gated_grouped_matmul_and_sums);
  m.impl("scaled_matmul", &scaled_matmul);
  m.impl("scaled_grouped_matmul", &scaled_grouped_matmul);
  m.impl("_widen_float8", &widen_float8);
  m.impl("_weight_only", &weight_only);
  m.impl("ordered_sum", &ordered_sum);
  m.impl("quantize_rows", &quantize_rows);
  m.impl("quantize_blocks", &quantize_blocks);
}

}  // namespace tiledmm

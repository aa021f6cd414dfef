// Schemas of the operators, nothing else. Kernels: matmul.cpp, meta.cpp, autograd.cpp, autocast.cpp; vmap rules:
// torch_tiledmm/ops.py.
#include <torch/library.h>

// The kernels take any strides. Otherwise torch.compile would copy an operand anew for each call that reads it.
namespace {
const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag, at::Tag::flexible_layout};
}  // namespace

TORCH_LIBRARY(tiledmm, m) {
  m.def("matmul(Tensor a, Tensor b, *, str algorithm=\"auto\", ScalarType? out_dtype=None) -> Tensor", tags);
  m.def("matmul_out(Tensor a, Tensor b, Tensor(a!) out, *, str algorithm=\"auto\") -> ()", tags);
  // alpha a b + beta input, rounded once; an input broadcasts to the product's shape. beta = 0: it is not read.
  m.def(
      "addmm(Tensor? input, Tensor a, Tensor b, *, float beta=1, float alpha=1, str algorithm=\"auto\", "
      "ScalarType? out_dtype=None) -> Tensor",
      tags);
  m.def(
      "linear(Tensor input, Tensor weight, Tensor? bias=None, *, str activation=\"none\", str algorithm=\"auto\", "
      "ScalarType? out_dtype=None) -> Tensor",
      tags);
  // The gradients of linear's weight and bias: grad^T input and the sums of grad's columns, for grad (rows,
  // out_features) and input (rows, in_features).
  m.def("linear_weight_grads(Tensor grad, Tensor input, *, str algorithm=\"auto\") -> (Tensor, Tensor)", tags);
  // linear with an activation, and the sum before it, rounded, which a gradient needs to know: (result, sum).
  m.def(
      "linear_and_sum(Tensor input, Tensor weight, Tensor? bias=None, *, str activation, str algorithm=\"auto\", "
      "ScalarType? out_dtype=None) -> (Tensor, Tensor)",
      tags);
  // An activation of each element ("logistic" and "normal_density", too), and grad times the activation's derivative at
  // x: the bits of an element depend on nothing but its value. For relu, x may be its result.
  m.def("activate(Tensor x, str activation) -> Tensor", tags);
  m.def("activate_backward(Tensor grad, Tensor x, str activation) -> Tensor", tags);
  // A product of operands of 8 bits, whose scales come by tensor, by row of a and column of b, or by blocks of 128
  // elements of k, as their shapes say. The result is bfloat16 by default.
  m.def(
      "scaled_matmul(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias=None, *, "
      "ScalarType? out_dtype=None, str activation=\"none\", str algorithm=\"auto\") -> Tensor",
      tags);
  // The same for rows in groups that end at offs, each with a matrix of b of its own and its scales.
  m.def(
      "scaled_grouped_matmul(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor offs, Tensor? bias=None, *, "
      "ScalarType? out_dtype=None, str activation=\"none\", str algorithm=\"auto\") -> Tensor",
      tags);
  // The sums over some dimensions, which stay with size 1: in an order that the sizes alone fix.
  m.def("ordered_sum(Tensor a, int[] dims) -> Tensor", tags);
  // Elements of 8 bits and their scales: of each row, or of blocks of 1 or 128 rows by 128 elements. No derivative.
  m.def(
      "quantize_rows(Tensor x, *, ScalarType dtype, bool power_of_two=False, str activation=\"none\") -> "
      "(Tensor, Tensor)",
      tags);
  m.def(
      "quantize_blocks(Tensor x, *, int block_rows, ScalarType dtype, bool power_of_two=False, "
      "str activation=\"none\") -> (Tensor, Tensor)",
      tags);
}

// Gated layers and groups.
TORCH_LIBRARY_FRAGMENT(tiledmm, m) {
  // activation(input gate^T + gate_bias) * (input up^T + up_bias), of fp32 sums, rounded once.
  m.def(
      "gated_linear(Tensor input, Tensor gate, Tensor up, Tensor? gate_bias=None, Tensor? up_bias=None, *, "
      "str activation=\"silu\", str algorithm=\"auto\", ScalarType? out_dtype=None) -> Tensor",
      tags);
  // The same, and both sums, which a gradient needs to know, in the result's dtype: (result, gate's, up's).
  m.def(
      "gated_linear_and_sums(Tensor input, Tensor gate, Tensor up, Tensor? gate_bias=None, Tensor? up_bias=None, *, "
      "str activation=\"silu\", str algorithm=\"auto\", ScalarType? out_dtype=None) -> (Tensor, Tensor, Tensor)",
      tags);
  // gated_linear of one weight and one bias that hold both parts, gate's first, and have one gradient each.
  m.def(
      "_stacked_gated_linear(Tensor input, Tensor weight, Tensor? bias=None, *, str activation=\"silu\", "
      "str algorithm=\"auto\", ScalarType? out_dtype=None) -> Tensor",
      tags);
  // What is left of that for each element, activation(gate) * up, and its gradients, in one pass.
  m.def("gated(Tensor gate, Tensor up, *, str activation, ScalarType? out_dtype=None) -> Tensor", tags);
  m.def("gated_backward(Tensor grad, Tensor gate, Tensor up, *, str activation) -> (Tensor, Tensor)", tags);
  // Products of several sizes in one call, by where a or b ends for each group (torch.nn.functional.grouped_mm).
  m.def(
      "grouped_matmul(Tensor a, Tensor b, Tensor? offs=None, Tensor? bias=None, *, ScalarType? out_dtype=None, "
      "str activation=\"none\", str algorithm=\"auto\") -> Tensor",
      tags);
  m.def(
      "grouped_matmul_and_sum(Tensor a, Tensor b, Tensor? offs=None, Tensor? bias=None, *, "
      "ScalarType? out_dtype=None, str activation, str algorithm=\"auto\") -> (Tensor, Tensor)",
      tags);
  // activation(a gate + gate_bias) * (a up + up_bias) for groups of rows or a batch, as gated_linear; a and both
  // weights as grouped_matmul has them.
  m.def(
      "gated_grouped_matmul(Tensor a, Tensor gate, Tensor up, Tensor? offs=None, Tensor? gate_bias=None, "
      "Tensor? up_bias=None, *, ScalarType? out_dtype=None, str activation=\"silu\", str algorithm=\"auto\") -> Tensor",
      tags);
  m.def(
      "_stacked_gated_grouped_matmul(Tensor a, Tensor b, Tensor? offs=None, Tensor? bias=None, *, "
      "ScalarType? out_dtype=None, str activation=\"silu\", str algorithm=\"auto\") -> Tensor",
      tags);
  m.def(
      "gated_grouped_matmul_and_sums(Tensor a, Tensor gate, Tensor up, Tensor? offs=None, Tensor? gate_bias=None, "
      "Tensor? up_bias=None, *, ScalarType? out_dtype=None, str activation=\"silu\", str algorithm=\"auto\") -> "
      "(Tensor, Tensor, Tensor)",
      tags);
}

// What the package alone calls.
TORCH_LIBRARY_FRAGMENT(tiledmm, m) {
  // activation(x q^T * scale^T + bias): elements of q have 8 bits and a scale for each row, those of x 16 or 32.
  m.def(
      "_weight_only(Tensor x, Tensor q, Tensor scale, Tensor? bias, *, ScalarType out_dtype, str activation=\"none\", "
      "str algorithm=\"auto\") -> Tensor",
      tags);
  // Raises where groups' ends, on the CPU, decrease or leave so many rows, or elements of k.
  m.def("_check_offs(Tensor offs, int size) -> ()");
  // Elements of 8 bits in a wider dtype, which holds them exactly.
  m.def("_widen_float8(Tensor x, ScalarType dtype) -> Tensor", tags);
  m.def("_info() -> str");
  m.def("_fma_peak(ScalarType dtype) -> float");
  m.def(
      "_explain(int m, int n, int k, ScalarType dtype, str layout, str device, int num_threads, int batch=0, "
      "str plans_of=\"\", ScalarType? b_dtype=None, ScalarType? out_dtype=None, int groups=0) -> str");
}

// CPU and CUDA (which is ROCm, too) kernels of grouped products.
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "api/kernels_api.h"
#include "torch/cpu_executor.h"
#include "torch/product.h"
#include "torch/shapes.h"

namespace tiledmm {

using at::Tensor;

void check_offs(const Tensor& offs, int64_t size) {
  const Tensor own = offs.contiguous();
  const int32_t* const ends = own.const_data_ptr<int32_t>();
  int64_t previous_end = 0;
  for (int64_t group = 0; group < own.size(0); ++group) {
    TORCH_CHECK_VALUE(ends[group] >= previous_end && ends[group] <= size, "tiledmm: offs ends group ", group, " at ",
                      ends[group], "; accepted are ends from ", previous_end, ", where the group before it ends, to ",
                      size);
    previous_end = ends[group];
  }
}

Tensor set_ends(GemmProblem& problem, Grouping grouping, const Tensor& offs, int64_t size) {
  Tensor ends = offs.contiguous();
  problem.grouping = grouping;
  problem.group_ends = ends.const_data_ptr<int32_t>();
  if (ends.is_cpu()) check_offs(ends, size);
  return ends;
}

namespace {

Tensor grouped_matmul(const Tensor& a, const Tensor& b, const std::optional<Tensor>& offs,
                      const std::optional<Tensor>& bias, OptionalDtype out_dtype, std::string_view activation,
                      std::string_view algorithm) {
  check_operand("a", a);
  check_operand("b", b);
  if (bias && bias->defined()) check_operand("bias", *bias);
  const ProductDtypes dtypes = product_dtypes({"a", a}, {"b", b}, out_dtype, "bias", bias);
  const GroupedShape<int64_t> shape(a, b, offs, bias);
  if (offs && offs->defined()) check_operand("offs", *offs);
  const Tensor out = new_result(shape.out, a.options().dtype(dtypes.result));
  grouped_into(a, b, offs, bias, out, shape, dtypes, to_activation(activation), to_algorithm(algorithm)).raise();
  return out;
}

// In one pass where a kernel has that, else the sum in the type of accumulators, then a pass over it.
std::tuple<Tensor, Tensor> grouped_matmul_and_sum(const Tensor& a, const Tensor& b, const std::optional<Tensor>& offs,
                                                  const std::optional<Tensor>& bias, OptionalDtype out_dtype,
                                                  std::string_view activation, std::string_view algorithm) {
  check_has_activation("grouped_matmul_and_sum", activation);
  check_operand("a", a);
  check_operand("b", b);
  if (bias && bias->defined()) check_operand("bias", *bias);
  const ProductDtypes dtypes = product_dtypes({"a", a}, {"b", b}, out_dtype, "bias", bias);
  const GroupedShape<int64_t> shape(a, b, offs, bias);
  const Tensor out = new_result(shape.out, a.options().dtype(dtypes.result));
  KeptSums kept;
  const Outcome outcome = grouped_into(a, b, offs, bias, out, shape, dtypes, to_activation(activation),
                                       to_algorithm(algorithm), Tensor(), false, true, std::nullopt, &kept);
  if (outcome.status != Status::unsupported) return outcome.raise(), std::tuple(out, kept.gate);
  const at::ScalarType of_sum = dtypes.c == DType::f64 ? at::kDouble : at::kFloat;
  return activated_and_sum(grouped_matmul(a, b, offs, bias, of_sum, "none", algorithm), activation, dtypes.result);
}

// As compute_gated_linear (matmul.cpp).
Tensor compute_gated_grouped(const Tensor& a, const Tensor& gate, const Tensor& up, const std::optional<Tensor>& offs,
                             const std::optional<Tensor>& gate_bias, const std::optional<Tensor>& up_bias,
                             OptionalDtype out_dtype, std::string_view activation, std::string_view algorithm,
                             KeptSums* kept) {
  check_operand("a", a);
  check_operand("gate", gate);
  check_operand("up", up);
  if (gate_bias && gate_bias->defined()) check_operand("gate_bias", *gate_bias);
  if (up_bias && up_bias->defined()) check_operand("up_bias", *up_bias);
  const ProductDtypes dtypes =
      check_gated_grouped<int64_t>(a, gate, up, offs, gate_bias, up_bias, activation, out_dtype);
  if (may_be_one_pass(gate, up, gate_bias, up_bias, dtypes)) {
    const GroupedShape<int64_t> shape(a, gate, offs, std::nullopt);
    const Tensor out = new_result(shape.out, a.options().dtype(dtypes.result));
    const Outcome outcome = grouped_into(a, gate, offs, gate_bias, out, shape, dtypes, to_activation(activation),
                                         to_algorithm(algorithm), up, false, true, up_bias, kept);
    if (outcome.status != Status::unsupported) return outcome.raise(), out;
  }
  const OptionalDtype of_sums = dtypes.c == DType::f64 ? at::kDouble : at::kFloat;
  const Tensor gate_sum = grouped_matmul(a, gate, offs, bias_of_sum(gate_bias, dtypes), of_sums, "none", algorithm);
  const Tensor up_sum = grouped_matmul(a, up, offs, bias_of_sum(up_bias, dtypes), of_sums, "none", algorithm);
  return compute_gated(gate_sum, up_sum, activation, dtypes.result, kept);
}

Tensor gated_grouped_matmul(const Tensor& a, const Tensor& gate, const Tensor& up, const std::optional<Tensor>& offs,
                            const std::optional<Tensor>& gate_bias, const std::optional<Tensor>& up_bias,
                            OptionalDtype out_dtype, std::string_view activation, std::string_view algorithm) {
  return compute_gated_grouped(a, gate, up, offs, gate_bias, up_bias, out_dtype, activation, algorithm, nullptr);
}

std::tuple<Tensor, Tensor, Tensor> gated_grouped_matmul_and_sums(const Tensor& a, const Tensor& gate, const Tensor& up,
                                                                 const std::optional<Tensor>& offs,
                                                                 const std::optional<Tensor>& gate_bias,
                                                                 const std::optional<Tensor>& up_bias,
                                                                 OptionalDtype out_dtype, std::string_view activation,
                                                                 std::string_view algorithm) {
  KeptSums kept;
  const Tensor out =
      compute_gated_grouped(a, gate, up, offs, gate_bias, up_bias, out_dtype, activation, algorithm, &kept);
  return {out, kept.gate, kept.up};
}

}  // namespace

Outcome grouped_into(const Tensor& a, const Tensor& b, const std::optional<Tensor>& offs,
                     const std::optional<Tensor>& bias, const Tensor& out, const GroupedShape<int64_t>& shape,
                     ProductDtypes dtypes, Activation activation, int32_t algorithm, const Tensor& up,
                     bool by_production, bool may_use_tf32, const std::optional<Tensor>& up_bias, KeptSums* kept) {
  const TorchOnOneThreadInChild own_thread;
  const bool has_groups_of_columns = shape.form == GroupedForm::columns;  // which are groups of rows of C^T = B^T A^T
  const Tensor left = has_groups_of_columns ? b.mT() : a, right = has_groups_of_columns ? a.mT() : b;
  if (has_groups_of_columns) std::swap(dtypes.a, dtypes.b);
  GemmProblem problem{};
  dtypes.set(problem);
  fill_operands(problem, left, right);
  if (up.defined()) problem.gated_b = up.const_data_ptr();
  problem.activation = activation;
  problem.c = out.mutable_data_ptr();
  if (kept) kept->ask(problem, out);
  problem.stride_cm = has_groups_of_columns ? 1 : out.stride(-2);
  problem.stride_cn = has_groups_of_columns ? out.stride(-2) : 1;
  const auto step = [](const Tensor& tensor) { return tensor.dim() == 3 ? tensor.stride(0) : 0; };
  BatchDim groups{shape.num_groups, step(left), step(right), step(out), 0};
  const auto set_bias = [&](const void*& of_problem, const std::optional<Tensor>& given) {
    if (!given || !given->defined()) return;
    of_problem = given->const_data_ptr();
    problem.dtype_bias = to_dtype("bias", *given);
    problem.stride_bias_n = given->stride(1);
    groups.stride_bias = given->stride(0);
  };
  set_bias(problem.bias, bias);
  set_bias(problem.gated_bias, up_bias);
  problem.batch_dims = &groups;
  problem.num_batch_dims = 1;
  Tensor ends;
  if (shape.form != GroupedForm::batch) {
    const Grouping grouping = shape.form == GroupedForm::k ? Grouping::k : Grouping::rows;
    ends = set_ends(problem, grouping, *offs, shape.grouped_size(a, b));
  }
  if (by_production && a.is_cuda()) {
    const c10::DeviceGuard guard(a.device());  // the question makes that device the current one
    if (!tiledmm_gpu_serves(&problem, algorithm, a.get_device(), true)) return {Status::unsupported};
  }
  return compute(problem, algorithm, a.device(), may_use_tf32);
}

TORCH_LIBRARY_IMPL(tiledmm, CPU, m) {
  m.impl("grouped_matmul", &grouped_matmul);
  m.impl("grouped_matmul_and_sum", &grouped_matmul_and_sum);
  m.impl("gated_grouped_matmul", &gated_grouped_matmul);
  m.impl("gated_grouped_matmul_and_sums", &gated_grouped_matmul_and_sums);
  m.impl("_check_offs", &check_offs);
}
TORCH_LIBRARY_IMPL(tiledmm, CUDA, m) {
  m.impl("grouped_matmul", &grouped_matmul);
  m.impl("grouped_matmul_and_sum", &grouped_matmul_and_sum);
  m.impl("gated_grouped_matmul", &gated_grouped_matmul);
  m.impl("gated_grouped_matmul_and_sums", &gated_grouped_matmul_and_sums);
}

}  // namespace tiledmm

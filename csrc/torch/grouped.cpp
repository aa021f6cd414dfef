// CPU and CUDA (which is ROCm, too) kernels of grouped products.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "torch/cpu_executor.h"
#include "torch/product.h"
#include "torch/shapes.h"

namespace tiledmm {
namespace {

using at::Tensor;

// On a GPU nobody reads the offsets but the kernels, which go nowhere by wrong ones.
void check_offsets(const Tensor& offs, int64_t size) {
  const int32_t* const ends = offs.const_data_ptr<int32_t>();
  int64_t previous_end = 0;
  for (int64_t group = 0; group < offs.size(0); ++group) {
    TORCH_CHECK_VALUE(ends[group] >= previous_end && ends[group] <= size, "tiledmm: offs ends group ", group, " at ",
                      ends[group], "; accepted are ends from ", previous_end, ", where the group before it ends, to ",
                      size);
    previous_end = ends[group];
  }
}

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

}  // namespace

Outcome grouped_into(const Tensor& a, const Tensor& b, const std::optional<Tensor>& offs,
                     const std::optional<Tensor>& bias, const Tensor& out, const GroupedShape<int64_t>& shape,
                     const ProductDtypes& dtypes, Activation activation, int32_t algorithm) {
  const TorchOnOneThreadInChild own_thread;
  GemmProblem problem{};
  dtypes.set(problem);
  problem.activation = activation;
  problem.c = out.mutable_data_ptr();
  const auto step = [](const Tensor& tensor) { return tensor.dim() == 3 ? tensor.stride(0) : 0; };
  BatchDim groups{shape.num_groups, step(a), step(b), step(out), 0};
  if (shape.form == GroupedForm::columns) {  // groups of rows of C^T = B^T A^T
    fill_operands(problem, b.mT(), a.mT());
    std::swap(problem.dtype_a, problem.dtype_b);
    std::swap(groups.stride_a, groups.stride_b);
    problem.stride_cm = 1, problem.stride_cn = out.stride(0);
  } else {
    fill_operands(problem, a, b);
    problem.stride_cm = out.stride(-2), problem.stride_cn = 1;
  }
  if (bias && bias->defined()) {
    problem.bias = bias->const_data_ptr();
    problem.stride_bias_n = bias->stride(1);
    groups.stride_bias = bias->stride(0);
  }
  problem.batch_dims = &groups;
  problem.num_batch_dims = 1;
  Tensor ends;
  if (shape.form != GroupedForm::batch) {
    ends = offs->contiguous();
    problem.grouping = shape.form == GroupedForm::k ? Grouping::k : Grouping::rows;
    problem.group_ends = ends.const_data_ptr<int32_t>();
    if (ends.is_cpu()) check_offsets(ends, shape.form == GroupedForm::k ? problem.k : problem.m);
  }
  return compute(problem, algorithm, a.device());
}

TORCH_LIBRARY_IMPL(tiledmm, CPU, m) { m.impl("grouped_matmul", &grouped_matmul); }
TORCH_LIBRARY_IMPL(tiledmm, CUDA, m) { m.impl("grouped_matmul", &grouped_matmul); }

}  // namespace tiledmm

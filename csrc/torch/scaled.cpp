// CPU and CUDA (which is ROCm, too) kernels of products of operands of 8 bits with scales. Where no kernel reads 8
// bits, the operands are widened, and the product is one of the other kernels'.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <utility>

#include "torch/cpu_executor.h"
#include "torch/product.h"
#include "torch/shapes.h"

namespace tiledmm {

using at::Tensor;

namespace {

// Scales as (rows of A, blocks of k), or (blocks of k, columns of B), with a size of 1 where one is shared by all.
Tensor as_matrix(const Tensor& scale, int64_t row_dim) {
  if (scale.numel() == 1) return scale.reshape({1, 1});
  return scale.dim() == 1 ? scale.unsqueeze(1 - row_dim) : scale;
}

Scales to_scales(const Tensor& scale, int64_t row_dim, int32_t rows_of_block) {
  const auto stride = [&](int64_t dim) { return scale.size(dim) == 1 ? 0 : scale.stride(dim); };
  return {scale.const_data_ptr<float>(), stride(row_dim), stride(1 - row_dim), rows_of_block};
}

// Each element `count` times along a dimension, `size` elements in all.
Tensor repeated(const Tensor& scale, int64_t dim, int64_t count, int64_t size) {
  if (scale.size(dim) == 1) {
    std::vector<int64_t> sizes = scale.sizes().vec();
    sizes[size_t(dim)] = size;
    return scale.expand(sizes);
  }
  if (count == 1) return scale;
  std::vector<int64_t> sizes = scale.sizes().vec();
  sizes.insert(sizes.begin() + dim + 1, count);
  return scale.unsqueeze(dim + 1).expand(sizes).flatten(dim, dim + 1).narrow(dim, 0, size);
}

// An operand of 8 bits in a wider dtype, which holds it exactly.
Tensor widen_float8(const Tensor& operand, at::ScalarType dtype) {
  const std::optional<DType> own = fp8_dtype_of(operand.scalar_type());
  const bool is_known = dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
  TORCH_CHECK_TYPE(own && is_known, "tiledmm: got ", operand.scalar_type(), " to be widened to ", dtype,
                   "; accepted are float8_e4m3fn and float8_e5m2, and float32, float16 and bfloat16");
  const Tensor dense = operand.is_non_overlapping_and_dense() ? operand : operand.contiguous();
  if (!operand.is_cpu()) return dense.to(dtype);
  const Tensor wide =
      new_result({dense.numel()}, dense.options().dtype(dtype)).as_strided(dense.sizes(), dense.strides());
  ElementwiseProblem problem{Function::relu,         *own,    dense.numel(),
                             dense.const_data_ptr(), nullptr, wide.mutable_data_ptr()};
  problem.dtype_y = *dtype_of(dtype);
  run(problem, dense.device());
  return wide;
}

// An operand in fp32, with its blocks' scales multiplied in.
Tensor scaled_operand(const Tensor& operand, const Tensor& scale, int64_t row_dim, int32_t rows_of_block) {
  const int64_t k_dim = 1 - row_dim;
  const Tensor of_rows = repeated(scale, row_dim, rows_of_block, operand.size(row_dim));
  return widen_float8(operand, at::kFloat).mul_(repeated(of_rows, k_dim, kScaledK, operand.size(k_dim)));
}

// The operands of a product, all checked; scales as matrices, a bias, if it is defined, in the dtype of C.
struct Operands {
  Tensor a, b, scale_a, scale_b, bias;
};

// activation(sums + bias) by kernels that read 16 or 32 bits, in fp32, into `sums`, which is contiguous. Scales of rows
// multiply exact sums, those of blocks the operands.
Outcome widened_into(const Operands& own, const ScaledShape<int64_t>& shape, Activation activation, int32_t algorithm,
                     const Tensor& sums) {
  const bool has_blocks = shape.scaling == Scaling::blocks;
  // Both dtypes of 8 bits are exact in bf16.
  const Tensor a =
      has_blocks ? scaled_operand(own.a, own.scale_a, 0, shape.rows_of_block_a) : widen_float8(own.a, at::kBFloat16);
  const Tensor b =
      has_blocks ? scaled_operand(own.b, own.scale_b, 1, shape.rows_of_block_b) : widen_float8(own.b, at::kBFloat16);
  GemmProblem problem{};
  problem.dtype_a = problem.dtype_b = has_blocks ? DType::f32 : DType::bf16;
  problem.dtype_c = problem.dtype_bias = DType::f32;
  fill_operands(problem, a, b);
  problem.c = sums.mutable_data_ptr();
  problem.stride_cm = problem.n, problem.stride_cn = 1;
  Outcome outcome = compute(problem, algorithm, sums.device(), false);
  if (outcome.status != Status::ok) return outcome;
  Tensor scaled = sums;
  if (!has_blocks) scaled.mul_(own.scale_a.mul(own.scale_b));
  if (own.bias.defined()) scaled.add_(own.bias);
  if (activation != Activation::none) {
    const ElementwiseProblem last{Function(int32_t(activation)), DType::f32, sums.numel(),
                                  sums.const_data_ptr(),         nullptr,    sums.mutable_data_ptr()};
    run(last, sums.device());
  }
  return outcome;
}

Tensor scaled_matmul(const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
                     const std::optional<Tensor>& bias, OptionalDtype out_dtype, std::string_view activation,
                     std::string_view algorithm) {
  for (const NamedTensor& operand :
       {NamedTensor{"a", a}, NamedTensor{"b", b}, NamedTensor{"scale_a", scale_a}, NamedTensor{"scale_b", scale_b}}) {
    check_operand(operand.name, operand.tensor);
  }
  if (bias && bias->defined()) check_operand("bias", *bias);
  const ProductDtypes dtypes = scaled_dtypes(a, b, scale_a, scale_b, bias, out_dtype);
  const ScaledShape<int64_t> shape(a, b, scale_a, scale_b, bias);
  const Tensor out = new_result(shape.out, a.options().dtype(dtypes.result));
  scaled_into(a, b, scale_a, scale_b, bias, out, shape, dtypes, to_activation(activation), to_algorithm(algorithm))
      .raise();
  return out;
}

}  // namespace

Outcome scaled_into(const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
                    const std::optional<Tensor>& bias, const Tensor& out, const ScaledShape<int64_t>& shape,
                    const ProductDtypes& dtypes, Activation activation, int32_t algorithm, bool may_widen) {
  const TorchOnOneThreadInChild own_thread;
  // A bias that the result's dtype does not hold is added in fp32, and so C is in fp32, which is rounded afterwards.
  const bool is_wide = dtypes.c == DType::f32, is_rounded = is_wide && out.scalar_type() != at::kFloat;
  const Tensor c = is_rounded ? new_result(out.sizes(), out.options().dtype(at::kFloat)) : out;
  Operands own{a, b, as_matrix(scale_a, 0), as_matrix(scale_b, 1), {}};
  if (bias && bias->defined()) own.bias = bias->to(c.scalar_type());

  GemmProblem problem{};
  dtypes.set(problem);
  fill_operands(problem, a, b);
  problem.scaling = shape.scaling;
  problem.scale_a = to_scales(own.scale_a, 0, shape.rows_of_block_a);
  problem.scale_b = to_scales(own.scale_b, 1, shape.rows_of_block_b);
  problem.activation = activation;
  if (own.bias.defined()) {
    problem.bias = own.bias.const_data_ptr();
    problem.stride_bias_n = own.bias.stride(0);
  }
  problem.c = c.mutable_data_ptr();
  problem.stride_cm = c.stride(0), problem.stride_cn = c.stride(1);
  Outcome outcome = compute(problem, algorithm, a.device(), false);
  if (outcome.status == Status::ok && is_rounded) Tensor(out).copy_(c);
  if (outcome.status != Status::unsupported || !may_widen) return outcome;

  const bool is_in_place = c.scalar_type() == at::kFloat && c.is_contiguous();
  const Tensor sums = is_in_place ? c : new_result(out.sizes(), out.options().dtype(at::kFloat));
  outcome = widened_into(own, shape, activation, algorithm, sums);
  if (outcome.status == Status::ok && !sums.is_same(out)) Tensor(out).copy_(sums);
  return outcome;
}

TORCH_LIBRARY_IMPL(tiledmm, CPU, m) {
  m.impl("scaled_matmul", &scaled_matmul);
  m.impl("_widen_float8", &widen_float8);
}
TORCH_LIBRARY_IMPL(tiledmm, CUDA, m) {
  m.impl("scaled_matmul", &scaled_matmul);
  m.impl("_widen_float8", &widen_float8);
}

}  // namespace tiledmm

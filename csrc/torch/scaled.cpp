// CPU and CUDA (which is ROCm, too) kernels of products of operands of 8 bits with scales, both or the second alone,
// and of groups of rows. Where no kernel reads 8 bits, the operands are widened, and the product is one of the other
// kernels'.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/searchsorted.h>
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

// Scales of a B for each group as (groups, blocks of k, columns of B), with a size of 1 where one is shared by all, and
// at distances that a problem can say.
Tensor as_batch(const Tensor& scale) {
  if (scale.numel() == 1) return scale.reshape({1, 1, 1});
  const Tensor near = scale.stride(0) > INT32_MAX ? scale.clone(at::MemoryFormat::Contiguous) : scale;
  return near.dim() == 2 ? near.unsqueeze(1) : near;
}

int64_t stride_of(const Tensor& scale, int64_t dim) { return scale.size(dim) == 1 ? 0 : scale.stride(dim); }

Scales to_scales(const Tensor& scale, int64_t row_dim, int64_t k_dim, int32_t rows_of_block) {
  return {scale.const_data_ptr<float>(), stride_of(scale, row_dim), stride_of(scale, k_dim), rows_of_block};
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
  const Tensor wide =
      new_result({dense.numel()}, dense.options().dtype(dtype)).as_strided(dense.sizes(), dense.strides());
  ElementwiseProblem problem{Function::relu,         *own,    dense.numel(),
                             dense.const_data_ptr(), nullptr, wide.mutable_data_ptr()};
  problem.dtype_y = *dtype_of(dtype);
  run(problem, dense.device());
  return wide;
}

// An operand in fp32, with its blocks' scales multiplied in.
Tensor scaled_operand(const Tensor& operand, const Tensor& scale, int64_t row_dim, int64_t k_dim,
                      int32_t rows_of_block) {
  const Tensor of_rows = repeated(scale, row_dim, rows_of_block, operand.size(row_dim));
  return widen_float8(operand, at::kFloat).mul_(repeated(of_rows, k_dim, kScaledK, operand.size(k_dim)));
}

// The operands of a product, all checked; scales as matrices, those of a B for each group as a batch of them; a bias,
// if it is defined, in the dtype of C.
struct Operands {
  Tensor a, b, scale_a, scale_b, bias;
};

// sums = a b, in fp32 and contiguous; where `offs` are given, those of groups of a's rows, each with a b of its own. A
// b of 8 bits is e4m3.
Outcome product(const Tensor& a, const Tensor& b, int32_t algorithm, const Tensor& sums, const Tensor& offs = {},
                bool is_b_widened = false) {
  GemmProblem problem{};
  problem.dtype_a = *dtype_of(a.scalar_type());
  problem.dtype_c = problem.dtype_bias = DType::f32;
  problem.is_b_widened = is_b_widened;
  fill_operands(problem, a, b);
  problem.c = sums.mutable_data_ptr();
  problem.stride_cm = problem.n, problem.stride_cn = 1;
  constexpr float kOne = 1;
  if (b.scalar_type() == at::kFloat8_e4m3fn) {
    problem.dtype_b = DType::e4m3;
    problem.scaling = Scaling::rows;
    problem.scale_b = {&kOne, 0, 0, 1};
  } else {
    problem.dtype_b = *dtype_of(b.scalar_type());
  }
  BatchDim groups{};
  Tensor ends;
  if (offs.defined()) {
    groups = {offs.size(0), 0, b.stride(0), 0, 0};
    problem.batch_dims = &groups;
    problem.num_batch_dims = 1;
    ends = set_ends(problem, Grouping::rows, offs, a.size(0));
  }
  return compute(problem, algorithm, sums.device(), false);
}

// The same of a and of b, of 8 bits. A CPU's kernels for a weight of e4m3 widen it on its way, to the same bits.
Outcome product_of_widened(const Tensor& a, const Tensor& b, int32_t algorithm, const Tensor& sums,
                           const Tensor& offs = {}) {
  const Tensor wide_a = widen_float8(a, at::kBFloat16);
  if (b.is_cpu() && b.scalar_type() == at::kFloat8_e4m3fn) {
    const Outcome outcome = product(wide_a, b, algorithm, sums, offs);
    if (outcome.status != Status::unsupported) return outcome;
  }
  return product(wide_a, widen_float8(b, at::kBFloat16), algorithm, sums, offs);
}

// What follows the sums, where they lie.
void finish(const Tensor& sums, const Tensor& scale, const Tensor& bias, Activation activation) {
  Tensor scaled = sums;
  if (scale.defined()) scaled.mul_(scale);
  if (bias.defined()) scaled.add_(bias);
  if (activation == Activation::none) return;
  const ElementwiseProblem last{Function(int32_t(activation)), DType::f32, sums.numel(),
                                sums.const_data_ptr(),         nullptr,    sums.mutable_data_ptr()};
  run(last, sums.device());
}

// activation(sums + bias), in fp32, into `sums`. Scales of rows multiply exact sums, those of blocks the operands.
Outcome widened_into(const Operands& own, const ScaledShape<int64_t>& shape, Activation activation, int32_t algorithm,
                     const Tensor& sums) {
  const bool has_blocks = shape.scaling == Scaling::blocks;
  // Both dtypes of 8 bits are exact in bf16.
  const Outcome outcome =
      has_blocks ? product(scaled_operand(own.a, own.scale_a, 0, 1, shape.rows_of_block_a),
                           scaled_operand(own.b, own.scale_b, 1, 0, shape.rows_of_block_b), algorithm, sums)
                 : product_of_widened(own.a, own.b, algorithm, sums);
  if (outcome.status == Status::ok)
    finish(sums, has_blocks ? Tensor() : own.scale_a.mul(own.scale_b), own.bias, activation);
  return outcome;
}

// The same of groups. What follows the sums is that of each row's group, which the device knows alone; rows of no group
// stay 0.
Outcome widened_groups_into(const Operands& own, const Tensor& offs, const ScaledGroupedShape<int64_t>& shape,
                            Activation activation, int32_t algorithm, const Tensor& sums) {
  const bool has_blocks = shape.scaling == Scaling::blocks;
  const Outcome outcome = has_blocks
                              ? product(scaled_operand(own.a, own.scale_a, 0, 1, 1),
                                        scaled_operand(own.b, own.scale_b, 2, 1, kScaledK), algorithm, sums, offs)
                              : product_of_widened(own.a, own.b, algorithm, sums, offs);
  if (outcome.status != Status::ok || sums.numel() == 0 || shape.groups.num_groups == 0) return outcome;
  const Tensor rows = at::arange(sums.size(0), offs.options());
  const Tensor last_end = offs.narrow(0, shape.groups.num_groups - 1, 1);
  const Tensor group_of = at::searchsorted(offs.contiguous(), rows, /*out_int32=*/false, /*right=*/true)
                              .clamp_(0, shape.groups.num_groups - 1);
  const auto of_rows = [&](const Tensor& of_groups) {
    return of_groups.size(0) == 1 ? of_groups : of_groups.index_select(0, group_of);
  };
  finish(sums, has_blocks ? Tensor() : own.scale_a.mul(of_rows(own.scale_b.squeeze(1))),
         own.bias.defined() ? of_rows(own.bias) : Tensor(), activation);
  Tensor(sums).masked_fill_(rows.ge(last_end).unsqueeze(1), 0);
  return outcome;
}

// The problem but for its scales and groups.
GemmProblem problem_of(const Operands& own, const ProductDtypes& dtypes, Activation activation, const Tensor& c) {
  GemmProblem problem{};
  dtypes.set(problem);
  fill_operands(problem, own.a, own.b);
  problem.activation = activation;
  if (own.bias.defined()) {
    problem.bias = own.bias.const_data_ptr();
    problem.stride_bias_n = own.bias.stride(-1);
  }
  problem.c = c.mutable_data_ptr();
  problem.stride_cm = c.stride(0), problem.stride_cn = c.stride(1);
  return problem;
}

// Where a kernel stores C: in fp32 where the result's dtype does not hold a bias, and then it is rounded afterwards.
Tensor place_of_c(const Tensor& out, const ProductDtypes& dtypes) {
  const bool is_rounded = dtypes.c == DType::f32 && out.scalar_type() != at::kFloat;
  return is_rounded ? new_result(out.sizes(), out.options().dtype(at::kFloat)) : out;
}

// The same for sums in fp32.
Tensor place_of_sums(const Tensor& c) {
  const bool is_in_place = c.scalar_type() == at::kFloat && c.is_contiguous();
  return is_in_place ? c : new_result(c.sizes(), c.options().dtype(at::kFloat));
}

// The result in `out`: of a kernel that reads 8 bits, which stores C, or, where there is none, of widen(sums).
template <class Widen>
Outcome compute_or_widen(GemmProblem& problem, int32_t algorithm, bool may_widen, const Tensor& c, const Tensor& out,
                         const Widen& widen) {
  Outcome outcome = compute(problem, algorithm, out.device(), false);
  Tensor result = c;
  if (outcome.status == Status::unsupported && may_widen) {
    result = place_of_sums(c);
    outcome = widen(result);
  }
  if (outcome.status == Status::ok && !result.is_same(out)) Tensor(out).copy_(result);
  return outcome;
}

// A B of 8 bits beside a wider A. In a kernel that reads 8 bits a row has the bits that it has by others, where it is
// multiplied by the widened B.
Tensor weight_only(const Tensor& x, const Tensor& q, const Tensor& scale, const std::optional<Tensor>& bias,
                   at::ScalarType out_dtype, std::string_view activation, std::string_view algorithm) {
  for (const NamedTensor& operand : {NamedTensor{"x", x}, NamedTensor{"q", q}, NamedTensor{"scale", scale}})
    check_operand(operand.name, operand.tensor);
  if (bias && bias->defined()) check_operand("bias", *bias);
  const ProductDtypes dtypes = weight_only_dtypes(x, q, scale, bias, out_dtype);
  const TorchOnOneThreadInChild own_thread;
  const Tensor out = new_result({x.size(0), q.size(0)}, x.options().dtype(out_dtype)), c = place_of_c(out, dtypes);
  Operands own{x, q.t(), {}, scale.t(), {}};
  if (bias && bias->defined()) own.bias = bias->to(c.scalar_type());
  const Activation own_activation = to_activation(activation);
  const int32_t own_algorithm = to_algorithm(algorithm);
  GemmProblem problem = problem_of(own, dtypes, own_activation, c);
  problem.scaling = Scaling::rows;
  problem.scale_b = to_scales(own.scale_b, 1, 0, 1);
  const auto multiply_widened = [&](const Tensor& sums) {
    const Outcome outcome = product(x, widen_float8(own.b, x.scalar_type()), own_algorithm, sums, {}, true);
    if (outcome.status == Status::ok) finish(sums, own.scale_b, own.bias, own_activation);
    return outcome;
  };
  compute_or_widen(problem, own_algorithm, true, c, out, multiply_widened).raise();
  return out;
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

Tensor scaled_grouped_matmul(const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
                             const Tensor& offs, const std::optional<Tensor>& bias, OptionalDtype out_dtype,
                             std::string_view activation, std::string_view algorithm) {
  for (const NamedTensor& operand : {NamedTensor{"a", a}, NamedTensor{"b", b}, NamedTensor{"scale_a", scale_a},
                                     NamedTensor{"scale_b", scale_b}, NamedTensor{"offs", offs}}) {
    check_operand(operand.name, operand.tensor);
  }
  if (bias && bias->defined()) check_operand("bias", *bias);
  const ProductDtypes dtypes = scaled_dtypes(a, b, scale_a, scale_b, bias, out_dtype);
  const ScaledGroupedShape<int64_t> shape(a, b, scale_a, scale_b, offs, bias);
  const Tensor out = new_result(shape.groups.out, a.options().dtype(dtypes.result));
  scaled_grouped_into(a, b, scale_a, scale_b, offs, bias, out, shape, dtypes, to_activation(activation),
                      to_algorithm(algorithm))
      .raise();
  return out;
}

}  // namespace

Outcome scaled_into(const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
                    const std::optional<Tensor>& bias, const Tensor& out, const ScaledShape<int64_t>& shape,
                    const ProductDtypes& dtypes, Activation activation, int32_t algorithm, bool may_widen) {
  const TorchOnOneThreadInChild own_thread;
  const Tensor c = place_of_c(out, dtypes);
  Operands own{a, b, as_matrix(scale_a, 0), as_matrix(scale_b, 1), {}};
  if (bias && bias->defined()) own.bias = bias->to(c.scalar_type());
  GemmProblem problem = problem_of(own, dtypes, activation, c);
  problem.scaling = shape.scaling;
  problem.scale_a = to_scales(own.scale_a, 0, 1, shape.rows_of_block_a);
  problem.scale_b = to_scales(own.scale_b, 1, 0, shape.rows_of_block_b);
  return compute_or_widen(problem, algorithm, may_widen, c, out,
                          [&](const Tensor& sums) { return widened_into(own, shape, activation, algorithm, sums); });
}

Outcome scaled_grouped_into(const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
                            const Tensor& offs, const std::optional<Tensor>& bias, const Tensor& out,
                            const ScaledGroupedShape<int64_t>& shape, const ProductDtypes& dtypes,
                            Activation activation, int32_t algorithm, bool may_widen) {
  const TorchOnOneThreadInChild own_thread;
  const Tensor c = place_of_c(out, dtypes);
  Operands own{a, b, as_matrix(scale_a, 0), as_batch(scale_b), {}};
  if (bias && bias->defined()) own.bias = bias->to(c.scalar_type());
  GemmProblem problem = problem_of(own, dtypes, activation, c);
  problem.scaling = shape.scaling;
  problem.scale_a = to_scales(own.scale_a, 0, 1, 1);
  problem.scale_b = to_scales(own.scale_b, 2, 1, shape.scaling == Scaling::blocks ? kScaledK : 1);
  problem.scale_b.stride_group = int32_t(stride_of(own.scale_b, 0));
  const BatchDim groups{shape.groups.num_groups, 0, b.stride(0), 0, own.bias.defined() ? own.bias.stride(0) : 0};
  problem.batch_dims = &groups;
  problem.num_batch_dims = 1;
  const Tensor ends = set_ends(problem, Grouping::rows, offs, a.size(0));
  return compute_or_widen(problem, algorithm, may_widen, c, out, [&](const Tensor& sums) {
    return widened_groups_into(own, offs, shape, activation, algorithm, sums);
  });
}

TORCH_LIBRARY_IMPL(tiledmm, CPU, m) {
  m.impl("scaled_matmul", &scaled_matmul);
  m.impl("scaled_grouped_matmul", &scaled_grouped_matmul);
  m.impl("_weight_only", &weight_only);
  m.impl("_widen_float8", &widen_float8);
}
TORCH_LIBRARY_IMPL(tiledmm, CUDA, m) {
  m.impl("scaled_matmul", &scaled_matmul);
  m.impl("scaled_grouped_matmul", &scaled_grouped_matmul);
  m.impl("_weight_only", &weight_only);
  m.impl("_widen_float8", &widen_float8);
}

}  // namespace tiledmm

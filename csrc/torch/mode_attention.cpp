// The mode's attention: torch's own kernels, called in the way whose bits depend neither on the batch nor on chance.
#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>
#include <cmath>

#include "torch/matmul.h"
#include "torch/mode.h"
#include "torch/product.h"
#include "torch/shapes.h"

namespace tiledmm::mode {
namespace {

// The argument of a boxed call by its name.
c10::IValue& argument_of(const c10::OperatorHandle& op, torch::jit::Stack& stack, const char* name) {
  const std::optional<int> idx = op.schema().argumentIndexWithName(name);
  TORCH_CHECK(idx, "tiledmm: ", op.operator_name(), " has no ", name);
  return stack.at(stack.size() - op.schema().arguments().size() + size_t(*idx));
}

// Left to itself the gradient's kernel shares out keys where a batch is small, and adds up the parts in any order.
struct KeepKeysTogether : c10::OperatorKernel {
  explicit KeepKeysTogether(Override& own) : own(own) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    c10::IValue& num_splits = argument_of(op, *stack, "num_splits_key");
    if (num_splits.isNone()) num_splits = int64_t(1);
    own.served.count(own.row.detail);
    own.call(*stack);
  }

  Override& own;
};

// Attention whose heads of the query share those of the keys.
at::Tensor attend_in_groups(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                            std::optional<double> scale) {
  const c10::SymInt shared = query.sym_size(1) / key.sym_size(1);
  // The heads of a single query can stand as its rows, so that keys are read once. A row's bits stay.
  const bool is_mask_of_keys = !mask || (mask->dim() == 4 && mask->sym_size(1) == 1);
  if (query.sym_size(2) == 1 && is_mask_of_keys && !is_causal && dropout == 0) {
    const at::Tensor rows = query.unflatten_symint(1, {key.sym_size(1), shared}).squeeze(3);
    return at::scaled_dot_product_attention(rows, key, value, mask, dropout, false, scale).flatten(1, 2).unsqueeze(2);
  }
  const auto repeated = [&](const at::Tensor& heads) {
    return heads.unsqueeze(2)
        .expand_symint({heads.sym_size(0), heads.sym_size(1), shared, heads.sym_size(2), heads.sym_size(3)})
        .flatten(1, 2);
  };
  return at::scaled_dot_product_attention(query, repeated(key), repeated(value), mask, dropout, is_causal, scale);
}

// torch's efficient attention refuses heads that share keys, so that its math is left, which keeps a score of each pair
// of query and key in fp32. Here torch chooses once more, for heads that share none.
struct ShareNoHeads : c10::OperatorKernel {
  explicit ShareNoHeads(Override& own) : own(own) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const auto argument = [&](const char* name) { return argument_of(op, *stack, name); };
    const at::Tensor query = argument("query").toTensor(), key = argument("key").toTensor(),
                     value = argument("value").toTensor();
    const bool is_grouped = argument("enable_gqa").toBool() && !argument("dropout_mask").isTensor() &&
                            query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && key.sym_size(1) > 0 &&
                            key.sym_size(1) == value.sym_size(1) && query.sym_size(1) > key.sym_size(1) &&
                            query.sym_size(1) % key.sym_size(1) == 0;
    if (!is_grouped) return own.call(*stack);
    own.served.count(own.row.detail);
    const at::Tensor out = attend_in_groups(query, key, value, argument("attn_mask").toOptional<at::Tensor>(),
                                            argument("dropout_p").toDouble(), argument("is_causal").toBool(),
                                            argument("scale").toOptional<double>());
    torch::jit::drop(*stack, op.schema().arguments().size());
    torch::jit::push(*stack, out, at::Tensor());  // nobody has the scores
  }

  Override& own;
};

// The weights of keys by contiguous scores of each head's queries, in the values' dtype.
at::Tensor weights_of(const at::Tensor& scores, double scale, const std::optional<at::Tensor>& mask,
                      at::ScalarType dtype) {
  SoftmaxProblem problem{};
  std::copy_n(scores.sizes().begin(), 3, problem.sizes);
  problem.k = scores.size(3);
  problem.x = scores.const_data_ptr<float>();
  problem.scale = float(scale);
  problem.dtype_mask = problem.dtype_y = *dtype_of(dtype);
  at::Tensor expanded;
  if (mask) {
    expanded = mask->expand(scores.sizes());
    problem.mask = expanded.const_data_ptr();
    problem.dtype_mask = *dtype_of(expanded.scalar_type());
    std::copy_n(expanded.strides().begin(), 4, problem.stride_mask);
  }
  const at::Tensor weights = at::empty(scores.sizes(), scores.options().dtype(dtype));
  problem.y = weights.mutable_data_ptr();
  run(problem, scores.device());
  return weights;
}

// Attention of few queries by two products, which share out the keys where a block of torch's kernel takes all keys of
// a head by itself.
struct AttendByProducts : c10::OperatorKernel {
  explicit AttendByProducts(Override& own) : own(own) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    constexpr int64_t kMostQueries = 16;
    const auto argument = [&](const char* name) { return argument_of(op, *stack, name); };
    const at::Tensor query = argument("query").toTensor(), key = argument("key").toTensor();
    const bool is_inference = !argument("compute_log_sumexp").toBool() && argument("dropout_p").toDouble() == 0;
    const auto mask = argument("attn_bias").toOptional<at::Tensor>();
    const at::ScalarType dtype = query.scalar_type();
    const bool is_served_mask = !mask || mask->scalar_type() == at::kFloat || mask->scalar_type() == dtype;
    const bool are_few = query.size(2) <= kMostQueries && query.size(0) * query.size(1) * query.size(2) <= INT32_MAX;
    if (!is_inference || argument("is_causal").toBool() || !are_few || !is_served_mask) return own.call(*stack);
    own.served.count(own.row.detail);
    const double scale = argument("scale").toOptional<double>().value_or(1 / std::sqrt(double(query.size(3))));
    const at::Tensor scores = matmul_op().call(query, key.mT(), "auto", at::kFloat);
    const at::Tensor weights = weights_of(scores, scale, mask, dtype);
    const at::Tensor out = matmul_op().call(weights, argument("value").toTensor(), "auto", std::nullopt);
    torch::jit::drop(*stack, op.schema().arguments().size());
    // No logarithms of sums, which gradients need, and no state of a dropout.
    torch::jit::push(*stack, out, at::empty({query.size(0), query.size(1), 0}, query.options().dtype(at::kFloat)),
                     at::empty({}, at::kLong), at::empty({}, at::kLong));
  }

  Override& own;
};

}  // namespace

const std::vector<Row>& attention() {
  static const std::vector<Row> rows = {
      {"_efficient_attention_backward", boxed<KeepKeysTogether>, "torch's kernel, keys in one part"},
      {"_scaled_dot_product_attention_math", boxed<ShareNoHeads>, "torch's kernel for heads that share none"},
  };
  return rows;
}

const std::vector<Row>& decoding() {
  static const std::vector<Row> rows = {
      {"_scaled_dot_product_efficient_attention", boxed<AttendByProducts>, "products"},
  };
  return rows;
}

}  // namespace tiledmm::mode

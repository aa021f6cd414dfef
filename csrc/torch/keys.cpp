// What torch's other dispatch keys do with the operators, of which the kernels know nothing: tensors that are no plain
// memory are refused, and a negative bit of `out` is honoured. torch itself resolves such a bit of an operand.
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/ops/_neg_view.h>
#include <torch/library.h>

#include "torch/cpu_executor.h"
#include "torch/matmul.h"
#include "torch/shapes.h"

namespace tiledmm {
namespace {

using at::Tensor;

// Says which operand it is that no kernel takes: by its dtype, else by what kind of tensor it is.
void refuse(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  const auto for_each_operand = [&](const auto& check) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      const c10::IValue& given = torch::jit::peek(*stack, i, arguments.size());
      if (given.isTensor()) check(arguments[i], given.toTensor());
    }
  };
  for_each_operand([](const c10::Argument& argument, const Tensor& tensor) {
    const bool has_own_dtype = argument.name() == "offs" || (tensor.defined() && fp8_dtype_of(tensor.scalar_type()));
    if (tensor.defined() && !has_own_dtype) to_dtype(argument.name().c_str(), tensor);
  });
  for_each_operand([](const c10::Argument& argument, const Tensor& tensor) {
    const bool may_be_none = argument.type()->kind() == c10::TypeKind::OptionalType;
    if (tensor.defined() || !may_be_none) check_operand(argument.name().c_str(), tensor);
  });
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.schema().name(),
                              ": no kernel takes these operands; accepted are plain tensors");
}

// What out's memory holds is the negative of out.
void matmul_out_negative(c10::DispatchKeySet keys, const Tensor& a, const Tensor& b, Tensor& out,
                         std::string_view algorithm) {
  Tensor memory = out.is_neg() ? at::_neg_view(out) : out;
  matmul_out_op().redispatch(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::Negative),
                             a.resolve_neg(), b.resolve_neg(), memory, algorithm);
  const TorchOnOneThreadInChild own_thread;
  if (out.is_neg()) memory.neg_();
}

constexpr const char* kOperators[] = {"matmul",
                                      "matmul_out",
                                      "addmm",
                                      "linear",
                                      "linear_and_sum",
                                      "linear_weight_grads",
                                      "activate",
                                      "activate_backward",
                                      "ordered_sum",
                                      "gated_linear",
                                      "gated",
                                      "gated_backward",
                                      "gated_linear_and_sums",
                                      "gated_grouped_matmul_and_sums",
                                      "grouped_matmul_and_sum",
                                      "grouped_matmul",
                                      "gated_grouped_matmul",
                                      "quantize_rows",
                                      "quantize_blocks",
                                      "scaled_matmul",
                                      "scaled_grouped_matmul"};

// Not every key without a kernel of its own: tensors of other devices may have a fallback, which copies them to the
// CPU.
constexpr c10::DispatchKey kRefused[] = {
    c10::DispatchKey::SparseCPU,
    c10::DispatchKey::SparseCUDA,
    c10::DispatchKey::SparseMeta,
    c10::DispatchKey::SparseCsrCPU,
    c10::DispatchKey::SparseCsrCUDA,
    c10::DispatchKey::SparseCsrMeta,
    c10::DispatchKey::MkldnnCPU,
    c10::DispatchKey::QuantizedCPU,
    c10::DispatchKey::QuantizedCUDA,
    c10::DispatchKey::QuantizedMeta,
    c10::DispatchKey::NestedTensorCPU,
    c10::DispatchKey::NestedTensorCUDA,
    c10::DispatchKey::NestedTensorMeta,
    c10::DispatchKey::AutogradNestedTensor,  // before the kernels of Autograd, which ask for sizes
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(tiledmm, m) {
  for (const char* op : kOperators) {
    for (const c10::DispatchKey key : kRefused) {
      m.impl(op, torch::dispatch(key, torch::CppFunction::makeFromBoxedFunction<&refuse>()));
    }
  }
}

TORCH_LIBRARY_IMPL(tiledmm, Negative, m) { m.impl("matmul_out", &matmul_out_negative); }

}  // namespace tiledmm

// The mode's efficient attention on GPUs: torch's own kernels, called in the way whose bits depend neither on the batch
// nor on chance.
#include "torch/mode.h"

namespace tiledmm::mode {
namespace {

// Left to itself the gradient's kernel shares out keys where a batch is small, and adds up the parts in any order.
struct KeepKeysTogether : c10::OperatorKernel {
  explicit KeepKeysTogether(Override& own) : own(own) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const c10::FunctionSchema& schema = op.schema();
    const std::optional<int> idx = schema.argumentIndexWithName("num_splits_key");
    TORCH_CHECK(idx, "tiledmm: ", op.operator_name(), " has no num_splits_key");
    c10::IValue& num_splits = stack->at(stack->size() - schema.arguments().size() + size_t(*idx));
    if (num_splits.isNone()) num_splits = int64_t(1);
    own.served.count(own.row.detail);
    own.call(*stack);
  }

  Override& own;
};

}  // namespace

const std::vector<Row>& attention() {
  static const std::vector<Row> rows = {
      {"_efficient_attention_backward", boxed<KeepKeysTogether>, "torch's kernel, keys in one part"},
  };
  return rows;
}

}  // namespace tiledmm::mode

// The mode's functions of each element, on the CPU. torch computes whole vectors by one code and what is left at the
// end of each thread's part by another, so that an element's bits depend on its place. Here torch's own kernel is
// called with whole vectors alone: an end that fills none is copied into one that is full.
#include <ATen/native/Resize.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "torch/cpu_executor.h"
#include "torch/mode.h"
#include "torch/overlap.h"
#include "torch/shapes.h"

namespace tiledmm::mode {
namespace {

using at::Tensor;
using torch::jit::Stack;

constexpr int64_t kWhole = 128;     // elements: two vectors of any instruction set, which torch takes at a time
constexpr int64_t kPart = 1 << 14;  // elements: torch shares so few among no threads

// One operator's operands and its result, each as flat memory of one order.
struct Operands {
  std::vector<size_t> places;   // of the operands among the arguments
  std::vector<Tensor> tensors;  // the operands, then the result
};

// A call of the kernel for some elements: arguments, and the result behind them.
Stack call_of(const Stack& arguments, const Operands& flat, int64_t begin, int64_t end) {
  Stack stack = arguments;
  for (size_t i = 0; i < flat.places.size(); ++i) stack[flat.places[i]] = flat.tensors[i].slice(0, begin, end);
  stack.emplace_back(flat.tensors.back().slice(0, begin, end));
  return stack;
}

// Calls a kernel that writes its last argument, or one that makes its result.
void call(const Override& kernel, Stack& stack) {
  const bool makes_result = kernel.original->opHandle().schema().arguments().size() < stack.size();
  const Tensor result = stack.back().toTensor();
  if (makes_result) stack.pop_back();
  kernel.call(stack);
  if (makes_result) result.copy_(stack.at(0).toTensor());
}

// Computes whole vectors only.
void compute_whole(const Override& kernel, const Stack& arguments, Operands flat) {
  const int64_t count = flat.tensors.back().numel(), whole = count / kWhole * kWhole;
  for (Tensor& tensor : flat.tensors) tensor = tensor.as_strided({count}, {1});
  // In a part that a thread of torch's pool computes, torch does not share out the work again. Such a thread knows
  // nothing of the caller's dispatch keys: all views are made here.
  const Executor executor = cpu_executor();
  const int64_t num_parts = std::min<int64_t>(executor.num_threads, (whole + kPart - 1) / kPart);
  const int64_t size = num_parts > 0 ? (whole / kWhole + num_parts - 1) / num_parts * kWhole : 0;
  std::vector<Stack> parts;
  for (int64_t begin = 0; begin < whole; begin += size) {
    parts.push_back(call_of(arguments, flat, begin, std::min(begin + size, whole)));
  }
  struct Work {
    const Override& kernel;
    std::vector<Stack>& parts;
  } work{kernel, parts};
  const auto task = [](void* work, int64_t idx) {
    const Work& own = *static_cast<Work*>(work);
    call(own.kernel, own.parts[size_t(idx)]);
  };
  if (!parts.empty()) executor.parallel_for(executor.self, int64_t(parts.size()), task, &work);
  if (whole == count) return;
  Operands padded{flat.places, {}};
  for (const Tensor& tensor : flat.tensors) {
    padded.tensors.push_back(at::zeros({kWhole}, tensor.options()));
    padded.tensors.back().slice(0, 0, count - whole).copy_(tensor.slice(0, whole, count));
  }
  Stack stack = call_of(arguments, padded, 0, kWhole);
  call(kernel, stack);
  flat.tensors.back().slice(0, whole, count).copy_(padded.tensors.back().slice(0, 0, count - whole));
}

// Why torch's kernel is to compute this; null where we do, and the result is `out`, which is made if it is not defined.
const char* compute(const Override& kernel, const Stack& arguments, Tensor& out, bool may_resize) {
  Operands operands;
  std::vector<Tensor>& tensors = operands.tensors;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].isTensor()) continue;
    operands.places.push_back(i);
    tensors.push_back(arguments[i].toTensor());
  }
  const Tensor x = tensors[0];
  if (!dtype_of(x.scalar_type())) return "a dtype other than float32, float64, float16 and bfloat16";
  for (const Tensor& tensor : tensors) {
    if (tensor.layout() != at::kStrided) return "a layout other than strided";
    if (tensor.scalar_type() != x.scalar_type()) return "operands of unlike dtypes";
    if (tensor.sizes() != x.sizes()) return "operands of unlike shapes";
  }
  if (out.defined()) {
    if (out.scalar_type() != x.scalar_type() || out.layout() != at::kStrided) return "a result of another dtype";
    if (out.sizes() != x.sizes()) {
      if (!may_resize) return "operands of unlike shapes";
      at::native::resize_output(out, x.sizes());
    }
  }
  const TorchOnOneThreadInChild own_thread;
  // Of the order in memory that torch's result has.
  const Tensor like = at::empty_like(x);
  bool is_own = !out.defined() || out.strides() != like.strides();
  for (const Tensor& tensor : tensors) {
    is_own |= out.defined() && !out.is_same(tensor) && out.is_alias_of(tensor) && overlap(out, tensor) != Answer::no;
  }
  const Tensor result = is_own ? like : out;
  if (x.numel() > 0) {
    for (Tensor& tensor : tensors) {
      if (tensor.strides() != result.strides()) tensor = at::empty_like(result).copy_(tensor);
    }
    tensors.push_back(result);
    compute_whole(kernel, arguments, operands);
  }
  if (!out.defined()) {
    out = result;
  } else if (is_own) {
    out.copy_(result);
  }
  return nullptr;
}

// One operator, whose form follows from its schema: with a new result, with one that is given last, with one that is
// the first argument.
struct Elementwise : c10::OperatorKernel {
  explicit Elementwise(Override& own) : own(own), kernel(find(own.key, own.row.out)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
    const size_t num_arguments = op.schema().arguments().size();
    Stack arguments(stack->end() - int64_t(num_arguments), stack->end());
    Tensor out;
    const auto& last = op.schema().arguments().back();
    const bool is_given = last.is_out(), is_in_place = op.schema().arguments()[0].alias_info() != nullptr;
    if (is_given) out = arguments.back().toTensor(), arguments.pop_back();
    if (is_in_place) out = arguments[0].toTensor();
    if (const char* reason = compute(kernel, arguments, out, is_given)) {
      own.left.count(reason);
      own.call(*stack);
      return;
    }
    own.served.count("whole vectors");
    torch::jit::drop(*stack, num_arguments);
    torch::jit::push(*stack, out);
  }

  Override& own;
  const Override& kernel;  // the form that writes its last argument
};

torch::CppFunction elementwise(Override& own) {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Elementwise>(own));
}

}  // namespace

// Those whose bits were found to depend on the place (benchmarks/what_varies.py).
const std::vector<Row>& functions() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> rows;
    for (const auto& [out, make, change] : {
             std::array<const char*, 3>{"silu.out", "silu", "silu_"},
             {"gelu.out", "gelu", "gelu_"},
             {"sigmoid.out", "sigmoid", "sigmoid_"},
             {"mish.out", "mish", "mish_"},
             {"elu.out", "elu", "elu_"},
             {"rsqrt.out", "rsqrt", "rsqrt_"},
             {"pow.Tensor_Scalar_out", "pow.Tensor_Scalar", "pow_.Scalar"},
             {"softplus.out", "softplus", nullptr},
             {"silu_backward.grad_input", "silu_backward", nullptr},
             {"gelu_backward.grad_input", "gelu_backward", nullptr},
             {"elu_backward.grad_input", "elu_backward", nullptr},
             {"sigmoid_backward.grad_input", "sigmoid_backward", nullptr},
             {"softplus_backward.grad_input", "softplus_backward", nullptr},
             {"mish_backward", nullptr, nullptr},
         }) {
      for (const char* name : {out, make, change}) {
        if (name) rows.push_back({name, elementwise, out});
      }
    }
    return rows;
  }();
  return rows;
}

}  // namespace tiledmm::mode

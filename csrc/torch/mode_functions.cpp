// The mode's functions of each element, on the CPU. torch computes whole vectors by one code and what is left at the
// end of each thread's part by another, so that an element's bits depend on its place. Here torch's own kernel is
// called with whole vectors alone: an end that fills none is copied into one that is full.
#include <ATen/WrapDimUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "torch/cpu_executor.h"
#include "torch/mode.h"
#include "torch/overlap.h"
#include "torch/product.h"
#include "torch/shapes.h"

namespace tiledmm::mode {
namespace {

using at::Tensor;
using torch::jit::Stack;

constexpr int64_t kWholeBytes = 128;  // of a dtype: two vectors of any instruction set, which torch takes at a time
constexpr int64_t kPart = 1 << 14;    // elements: torch shares so few among no threads

// One operator's operands and its result, all of one order in memory.
struct Operands {
  c10::SmallVector<size_t, 2> places;   // of the operands among the arguments
  c10::SmallVector<Tensor, 3> tensors;  // the operands, then the result
};

// Calls a kernel that writes its last argument, or one that makes its result.
void call(const Override& kernel, Stack& stack, const Tensor& result) {
  const bool makes_result = kernel.original->opHandle().schema().arguments().size() == stack.size();
  if (!makes_result) stack.emplace_back(result);
  kernel.call(stack);
  if (makes_result) result.copy_(stack.at(0).toTensor());
}

// The arguments with views in the places of the operands: view(tensor).
template <class View>
Stack with_views(const Stack& arguments, const Operands& operands, const View& view) {
  Stack stack = arguments;
  for (size_t i = 0; i < operands.places.size(); ++i) stack[operands.places[i]] = view(operands.tensors[i]);
  return stack;
}

// The last elements, which fill no vector: in tensors of a whole one.
void compute_end(const Override& kernel, const Stack& arguments, const Operands& operands, int64_t begin, int64_t count,
                 int64_t whole) {
  const Tensor& result = operands.tensors.back();
  const auto bytes = int64_t(result.element_size());
  const auto num_operands = int64_t(operands.places.size());
  const Tensor padded = at::zeros({num_operands + 1, whole}, result.options());
  char* const memory = static_cast<char*>(padded.mutable_data_ptr());
  int64_t row = 0;
  Stack stack = with_views(arguments, operands, [&](const Tensor& tensor) {
    std::memcpy(memory + row * whole * bytes, static_cast<const char*>(tensor.const_data_ptr()) + begin * bytes,
                size_t(count * bytes));
    return padded.select(0, row++);
  });
  call(kernel, stack, padded.select(0, num_operands));
  std::memcpy(static_cast<char*>(result.mutable_data_ptr()) + begin * bytes, memory + num_operands * whole * bytes,
              size_t(count * bytes));
}

// A part of the work of a kernel. A thread of torch's pool knows nothing of the caller's dispatch keys: all views of a
// part are made before.
struct Part {
  Stack stack;
  Tensor result;
};

// In a part that a thread of torch's pool computes, torch does not share out the work again.
void call_parts(const Override& kernel, std::vector<Part>& parts, const Executor& executor) {
  struct Work {
    const Override& kernel;
    std::vector<Part>& parts;
  } work{kernel, parts};
  const auto task = [](void* opaque, int64_t idx) {
    auto& work = *static_cast<Work*>(opaque);
    Part& part = work.parts[size_t(idx)];
    call(work.kernel, part.stack, part.result);
  };
  if (parts.size() == 1) {
    task(&work, 0);
  } else if (!parts.empty()) {
    executor.parallel_for(executor.self, int64_t(parts.size()), task, &work);
  }
}

// Computes whole vectors only.
void compute_whole(const Override& kernel, const Stack& arguments, const Operands& operands) {
  const Tensor& result = operands.tensors.back();
  const int64_t whole = kWholeBytes / int64_t(result.element_size());
  const int64_t count = result.numel(), in_whole = count / whole * whole;
  const Executor executor = cpu_executor();
  const int64_t num_parts = std::min<int64_t>(executor.num_threads, (in_whole + kPart - 1) / kPart);
  if (num_parts == 1 && in_whole == count) {
    Stack stack = with_views(arguments, operands, [](const Tensor& tensor) { return tensor; });
    call(kernel, stack, result);
    return;
  }
  std::vector<Part> parts;
  const int64_t size = num_parts > 0 ? (in_whole / whole + num_parts - 1) / num_parts * whole : 0;
  for (int64_t begin = 0; begin < in_whole; begin += size) {
    const auto view = [&](const Tensor& tensor) {
      return tensor.as_strided({std::min(size, in_whole - begin)}, {1}, tensor.storage_offset() + begin);
    };
    parts.push_back({with_views(arguments, operands, view), view(result)});
  }
  call_parts(kernel, parts, executor);
  if (in_whole < count) compute_end(kernel, arguments, operands, in_whole, count - in_whole, whole);
}

// Why torch's kernel is to compute this; null where we do, and the result is `out`, which is made if it is not defined.
const char* compute(const Override& kernel, const Stack& arguments, Tensor& out, bool may_resize) {
  // A number, of which torch makes a tensor in pow(1.7, x), is a scalar, and beside dimensions so is what has none.
  const bool has_dims = std::any_of(arguments.begin(), arguments.end(), [](const c10::IValue& argument) {
    return argument.isTensor() && argument.toTensor().dim() > 0;
  });
  Operands operands;
  auto& tensors = operands.tensors;
  c10::SmallVector<Tensor, 1> scalars;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].isComplexDouble()) return "a scalar that is no real number";
    if (!arguments[i].isTensor()) continue;
    const Tensor& tensor = arguments[i].toTensor();
    if (tensor.dim() == 0 && (has_dims || tensor.unsafeGetTensorImpl()->is_wrapped_number())) {
      scalars.push_back(tensor);
      continue;
    }
    operands.places.push_back(i);
    tensors.push_back(tensor);
  }
  if (tensors.empty()) return "numbers alone";
  const Tensor x = tensors[0];
  if (!dtype_of(x.scalar_type())) return kOtherDtype;
  for (const Tensor& scalar : scalars) {
    if (at::result_type(scalar, x) != x.scalar_type() || !scalar.is_cpu()) return "operands of unlike dtypes";
    if (out.defined() && may_overlap(out, scalar)) return "a result that overlaps an operand";
  }
  for (const Tensor& tensor : tensors) {
    if (tensor.layout() != at::kStrided) return kOtherLayout;
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
  // `like` has the order in memory that torch's result has.
  const Tensor like = at::empty_like(x);
  bool is_own = !out.defined() || out.strides() != like.strides();
  for (const Tensor& tensor : tensors) {
    is_own |= out.defined() && !out.is_same(tensor) && may_overlap(out, tensor);
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
  explicit Elementwise(Override& own) : own(own), kernel(find(own.key, own.row.detail)) {}

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

// A sum or difference of tensors. torch's own does not vary where what is added is not multiplied, and is called at
// once.
struct Added : Elementwise {
  using Elementwise::Elementwise;

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    constexpr size_t kAlpha = 2;  // among the arguments
    const auto& alpha = torch::jit::peek(*stack, kAlpha, op.schema().arguments().size());
    if (alpha.toScalar().equal(1)) return own.call(*stack);
    Elementwise::operator()(op, keys, stack);
  }
};

// ---- Softmax and its logarithm.
// torch adds up elements that fill no vector by other code than whole vectors, and columns that threads share by other
// code than others. So a kernel of ours does: of x, or of its result and the gradient of that.
bool is_softmax_ours(const Tensor& x) {
  return x.layout() == at::kStrided && dtype_of(x.scalar_type()) && x.numel() > 0 && x.dim() > 0;
}
Tensor run_softmax(Override& own, const Tensor& given, int64_t dim, bool is_log, const Tensor& grad = Tensor()) {
  own.served.count("softmax");
  const Tensor x = given.contiguous(), own_grad = grad.defined() ? grad.contiguous() : Tensor();
  const Tensor result = new_result(x.sizes(), x.options());
  ColumnSoftmaxProblem problem{*dtype_of(x.scalar_type()), is_log, 1, 1, 1, x.const_data_ptr(), nullptr, nullptr};
  const int64_t of_k = at::maybe_wrap_dim(dim, x.dim());
  for (int64_t d = 0; d < x.dim(); ++d) {
    (d < of_k ? problem.outer : d == of_k ? problem.k : problem.inner) *= x.size(d);
  }
  if (grad.defined()) problem.grad = own_grad.const_data_ptr();
  problem.result = result.mutable_data_ptr();
  run(problem, x.device());
  return result;
}

template <bool IS_LOG>
Tensor softmax(Override& own, const Tensor& x, int64_t dim, bool half_to_float) {
  const TorchOnOneThreadInChild own_thread;
  if (!half_to_float && is_softmax_ours(x)) return run_softmax(own, x, dim, IS_LOG);
  own.left.count(kDoesNotVary);
  return own.call_original(x, dim, half_to_float);
}
template <bool IS_LOG>
Tensor softmax_gradient(Override& own, const Tensor& grad, const Tensor& y, int64_t dim, at::ScalarType dtype) {
  const TorchOnOneThreadInChild own_thread;
  if (grad.scalar_type() == dtype && y.scalar_type() == dtype && grad.sizes() == y.sizes() &&
      grad.layout() == at::kStrided && is_softmax_ours(y))
    return run_softmax(own, y, dim, IS_LOG, grad);
  own.left.count(kDoesNotVary);
  return own.call_original(grad, y, dim, dtype);
}

// The form with a new result, and the one that writes its last argument, which calls it.
template <auto FUNCTION, class... Args>
torch::CppFunction with_new_result(Override& own, Tensor (*)(Override&, Args...)) {
  return torch::CppFunction([&own](Args... args) { return FUNCTION(own, args...); });
}
template <auto FUNCTION, class First, class... Args>
torch::CppFunction into_result(Override& own, Tensor (*)(Override&, First, Args...)) {
  return torch::CppFunction([&own](First first, Args... args, Tensor& out) -> Tensor& {
    if (out.scalar_type() != first.scalar_type()) {
      own.call_original(first, args..., out);
      return out;
    }
    const Tensor result = FUNCTION(find(own.key, own.row.detail), first, args...);
    at::native::resize_output(out, result.sizes());
    out.copy_(result);
    return out;
  });
}
template <auto FUNCTION>
torch::CppFunction with_new_result(Override& own) {
  return with_new_result<FUNCTION>(own, FUNCTION);
}
template <auto FUNCTION>
torch::CppFunction into_result(Override& own) {
  return into_result<FUNCTION>(own, FUNCTION);
}

}  // namespace

// Those whose bits were found to depend on the place (benchmarks/what_varies.py).
const std::vector<Row>& functions() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> rows = {
        {"_softmax", with_new_result<softmax<false>>},
        {"_softmax.out", into_result<softmax<false>>, "_softmax"},
        {"_log_softmax", with_new_result<softmax<true>>},
        {"_log_softmax.out", into_result<softmax<true>>, "_log_softmax"},
        {"_softmax_backward_data", with_new_result<softmax_gradient<false>>, "_softmax_backward_data.out"},
        {"_softmax_backward_data.out", into_result<softmax_gradient<false>>, "_softmax_backward_data"},
        {"_log_softmax_backward_data", with_new_result<softmax_gradient<true>>},
        {"_log_softmax_backward_data.out", into_result<softmax_gradient<true>>, "_log_softmax_backward_data"},
        {"add.out", boxed<Added>, "add.out"},
        {"add.Tensor", boxed<Added>, "add.out"},
        {"add_.Tensor", boxed<Added>, "add.out"},
        {"sub.out", boxed<Added>, "sub.out"},
        {"sub.Tensor", boxed<Added>, "sub.out"},
        {"sub_.Tensor", boxed<Added>, "sub.out"},
    };
    for (const auto& [out, make, change] : {
             std::array<const char*, 3>{"silu.out", "silu", "silu_"},
             {"gelu.out", "gelu", "gelu_"},
             {"sigmoid.out", "sigmoid", "sigmoid_"},
             {"mish.out", "mish", "mish_"},
             {"elu.out", "elu", "elu_"},
             {"rsqrt.out", "rsqrt", "rsqrt_"},
             {"pow.Tensor_Scalar_out", "pow.Tensor_Scalar", "pow_.Scalar"},
             {"pow.Tensor_Tensor_out", "pow.Tensor_Tensor", "pow_.Tensor"},
             {"exp2.out", "exp2", "exp2_"},
             {"sinh.out", "sinh", "sinh_"},
             {"cosh.out", "cosh", "cosh_"},
             {"atan2.out", "atan2", "atan2_"},
             {"hypot.out", "hypot", "hypot_"},
             {"atanh.out", "atanh", "atanh_"},
             {"logaddexp.out", "logaddexp", nullptr},
             {"logaddexp2.out", "logaddexp2", nullptr},
             {"igamma.out", "igamma", "igamma_"},
             {"special_i0e.out", "special_i0e", nullptr},
             {"softplus.out", "softplus", nullptr},
             {"softshrink.out", "softshrink", nullptr},
             {"silu_backward.grad_input", "silu_backward", nullptr},
             {"gelu_backward.grad_input", "gelu_backward", nullptr},
             {"elu_backward.grad_input", "elu_backward", nullptr},
             {"sigmoid_backward.grad_input", "sigmoid_backward", nullptr},
             {"softplus_backward.grad_input", "softplus_backward", nullptr},
             {"mish_backward", nullptr, nullptr},
         }) {
      for (const char* name : {out, make, change}) {
        if (name) rows.push_back({name, boxed<Elementwise>, out});
      }
    }
    return rows;
  }();
  return rows;
}

}  // namespace tiledmm::mode

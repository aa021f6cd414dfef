// CPU and CUDA (which is ROCm, too) kernels of the operators: checks, shapes, the GemmProblem straight from the
// tensors' strides, the call. No operand is ever copied here: any strides go to the kernel as they are, broadcast batch
// dimensions with stride 0.
#include "torch/matmul.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>

#include "api/kernels_api.h"
#include "torch/cpu_executor.h"
#include "torch/overlap.h"
#include "torch/product.h"
#include "torch/shapes.h"
#include "torch/text.h"

namespace tiledmm {
namespace {

using at::Tensor;

Tensor matmul(const Tensor& a, const Tensor& b, std::string_view algorithm, OptionalDtype out_dtype) {
  check_operand("a", a);
  check_operand("b", b);
  const ProductDtypes dtypes = product_dtypes({"a", a}, {"b", b}, out_dtype);
  const at::TensorOptions options = a.options().dtype(dtypes.result);
  const int32_t algorithm_idx = to_algorithm(algorithm);
  const bool is_matrices = a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0);
  if (is_matrices && !is_mixed(a, b, algorithm_idx)) {  // the common case, without the general one's work
    const Tensor out = new_result({a.size(0), b.size(1)}, options);
    GemmProblem problem{};
    dtypes.set(problem);
    fill_operands(problem, a, b);
    problem.c = out.mutable_data_ptr();
    problem.stride_cm = b.size(1);
    problem.stride_cn = 1;
    run(problem, algorithm_idx, a.device());
    return out;
  }
  const MatmulShape<int64_t> shape(a, b);
  const Tensor out = new_result(shape.out, options);
  matmul_into(a, b, out, shape, dtypes, algorithm_idx);
  return out;
}

void matmul_out(const Tensor& a, const Tensor& b, at::Tensor& out, std::string_view algorithm) {
  check_operand("a", a);
  check_operand("b", b);
  check_operand("out", out);
  to_dtype("out", out);
  const ProductDtypes dtypes = product_dtypes({"a", a}, {"b", b}, out.scalar_type(), "out", out);
  const MatmulShape<int64_t> shape(a, b);
  TORCH_CHECK(out.sizes() == c10::IntArrayRef(shape.out), "tiledmm: out has shape ", out.sizes(), "; the result has ",
              c10::IntArrayRef(shape.out));
  const Answer itself = overlaps_itself(out);
  TORCH_CHECK(itself == Answer::no, "tiledmm: ", itself == Answer::yes ? "" : "it takes too long to find out whether ",
              "elements of out share memory, its shape is ", out.sizes(), " and its strides are ", out.strides(),
              "; accepted are strides that give each element a place of its own",
              itself == Answer::yes ? "" : ", which is plain where each of them steps over all smaller ones");
  for (const Tensor* operand : {&a, &b}) {
    const Answer answer = overlap(out, *operand);
    TORCH_CHECK(answer == Answer::no,
                "tiledmm: ", answer == Answer::yes ? "" : "it takes too long to find out whether ",
                "out shares memory with ", operand == &a ? "a" : "b", "; accepted is a tensor of its own");
  }
  matmul_into(a, b, out, shape, dtypes, to_algorithm(algorithm));
}

Tensor addmm(const std::optional<Tensor>& input, const Tensor& a, const Tensor& b, double beta, double alpha,
             std::string_view algorithm, OptionalDtype out_dtype) {
  check_operand("a", a);
  check_operand("b", b);
  const bool is_given = input && input->defined();
  if (is_given) check_operand("input", *input);
  const ProductDtypes dtypes = product_dtypes({"a", a}, {"b", b}, out_dtype, "input", input);
  const Shape<int64_t> shape = addmm_shape<int64_t>(input, a, b);
  const Tensor out = new_result(shape, a.options().dtype(dtypes.result));
  matmul_into(a, b, out, MatmulShape<int64_t>(a, b), dtypes, to_algorithm(algorithm), true,
              is_given ? input->expand(shape) : Tensor(), beta, alpha);
  return out;
}

// A layer's bias becomes the one or the other one of a problem.
void set_bias(GemmProblem& problem, const void*& of_problem, const Tensor& bias) {
  of_problem = bias.const_data_ptr();
  problem.dtype_bias = to_dtype("bias", bias);
  problem.stride_bias_n = bias.dim() == 0 || bias.size(0) == 1 ? 0 : bias.stride(0);
}

// Memory for what is kept beside a result; how many elements lie between them.
int64_t new_sum(const Tensor& out, Tensor& sum) {
  sum = new_result(out.sizes(), out.options());
  return (static_cast<char*>(sum.mutable_data_ptr()) - static_cast<char*>(out.mutable_data_ptr())) / out.element_size();
}

// The result, and the sum before the activation where there is a place for it. A failure is an exception, unless there
// is a place for the outcome.
Tensor compute_linear(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                      std::string_view activation, std::string_view algorithm, OptionalDtype out_dtype,
                      Tensor* sum = nullptr, Outcome* outcome = nullptr, bool may_use_tf32 = true) {
  check_operand("input", input);
  check_operand("weight", weight);
  if (bias && bias->defined()) check_operand("bias", *bias);
  const ProductDtypes dtypes = product_dtypes({"input", input}, {"weight", weight}, out_dtype, "bias", bias);
  if (is_mixed(input, weight, to_algorithm(algorithm))) {
    linear_shape<int64_t>(input, weight, bias);  // raises
    const std::optional<Tensor> wide_bias = bias && bias->defined() ? std::optional(widened(*bias)) : std::nullopt;
    const int64_t n = weight.dim() == 1 ? 1 : weight.size(0);
    const auto compute = [&](const Tensor& own_input, const Tensor& own_weight, const char* own) {
      return compute_linear(own_input, own_weight, wide_bias, activation, own, at::kFloat, nullptr, nullptr, false);
    };
    return compute_mixed(input, weight, n, input.size(-1), compute).to(dtypes.result);
  }
  const Tensor out = new_result(linear_shape<int64_t>(input, weight, bias), input.options().dtype(dtypes.result));
  const int64_t dim = input.dim(), weight_dim = weight.dim();

  GemmProblem problem{};
  dtypes.set(problem);
  problem.activation = to_activation(activation);
  problem.a = input.const_data_ptr();
  problem.b = weight.const_data_ptr();
  problem.m = dim == 1 ? 1 : input.size(-2);
  problem.n = weight_dim == 1 ? 1 : weight.size(0);
  problem.k = input.size(-1);
  problem.stride_am = dim == 1 ? 0 : input.stride(-2);
  problem.stride_ak = input.stride(-1);
  problem.stride_bn = weight_dim == 1 ? 0 : weight.stride(0);
  problem.stride_bk = weight.stride(-1);
  problem.stride_cm = problem.n;
  problem.stride_cn = 1;
  if (bias && bias->defined()) set_bias(problem, problem.bias, *bias);
  problem.c = out.mutable_data_ptr();
  if (sum) problem.sum_offset = new_sum(out, *sum);

  BatchDim dims[kMaxBatchDims];
  int64_t stride_c = problem.m * problem.n;
  for (int64_t d = dim - 3; d >= 0; --d) {
    dims[d] = {input.size(d), input.stride(d), 0, stride_c, 0};
    stride_c *= input.size(d);
  }
  problem.batch_dims = dims;
  problem.num_batch_dims = int32_t(std::max<int64_t>(dim - 2, 0));
  const Outcome own = compute(problem, to_algorithm(algorithm), input.device(), may_use_tf32);
  if (outcome)
    *outcome = own;
  else
    own.raise();
  return out;
}

Tensor linear(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, std::string_view activation,
              std::string_view algorithm, OptionalDtype out_dtype) {
  return compute_linear(input, weight, bias, activation, algorithm, out_dtype);
}

// CPU: in one pass.
std::tuple<Tensor, Tensor> linear_and_sum(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                                          std::string_view activation, std::string_view algorithm,
                                          OptionalDtype out_dtype) {
  check_has_activation("linear_and_sum", activation);
  Tensor sum;
  const Tensor out = compute_linear(input, weight, bias, activation, algorithm, out_dtype, &sum);
  return {out, sum};
}

// function(x), or grad times its slope at x.
Tensor elementwise(Function function, const Tensor& x, const Tensor& grad) {
  const TorchOnOneThreadInChild own_thread;
  const Tensor own_x = x.contiguous(), own_grad = grad.defined() ? grad.contiguous() : grad;
  const Tensor y = new_result(x.sizes(), x.options());
  const ElementwiseProblem problem{function,
                                   to_dtype("x", x),
                                   x.numel(),
                                   own_x.const_data_ptr(),
                                   grad.defined() ? own_grad.const_data_ptr() : nullptr,
                                   y.mutable_data_ptr()};
  run(problem, x.device());
  return y;
}

}  // namespace

std::tuple<Tensor, Tensor> activated_and_sum(const Tensor& sum, std::string_view activation, at::ScalarType result) {
  const TorchOnOneThreadInChild own_thread;
  // A CPU has one activation for all dtypes, and a GPU another one for results of 16 bits.
  if (result == sum.scalar_type() || sum.is_cpu())
    return {elementwise(to_function(activation), sum, Tensor()).to(result), sum.to(result)};
  const Tensor own = sum.contiguous();
  const at::TensorOptions options = sum.options().dtype(result);
  const Tensor out = new_result(sum.sizes(), options), kept = new_result(sum.sizes(), options);
  ElementwiseProblem problem{};
  problem.function = to_function(activation);
  problem.dtype = to_dtype("sum", sum), problem.dtype_y = to_dtype("result", out);
  problem.count = sum.numel();
  problem.x = own.const_data_ptr(), problem.y = out.mutable_data_ptr(), problem.x_kept = kept.mutable_data_ptr();
  run(problem, sum.device());
  return {out, kept};
}

namespace {

// GPU: in one pass where a kernel has that, else the sum in the type of accumulators, then a pass over it.
std::tuple<Tensor, Tensor> linear_and_sum_on_gpu(const Tensor& input, const Tensor& weight,
                                                 const std::optional<Tensor>& bias, std::string_view activation,
                                                 std::string_view algorithm, OptionalDtype out_dtype) {
  check_has_activation("linear_and_sum", activation);
  const ProductDtypes dtypes = product_dtypes({"input", input}, {"weight", weight}, out_dtype, "bias", bias);
  const OptionalDtype of_sum = size_of(dtypes.c) == 2 ? at::kFloat : dtypes.result;
  const auto compute_sum = [&] { return linear(input, weight, bias, "none", algorithm, of_sum); };
  if (of_sum != dtypes.result && is_mixed(input, weight, to_algorithm(algorithm))) {
    const Tensor sum = compute_sum();
    return {elementwise(to_function(activation), sum, Tensor()).to(dtypes.result), sum.to(dtypes.result)};
  }
  if (of_sum != dtypes.result) {
    Tensor sum;
    Outcome outcome{};
    const Tensor out = compute_linear(input, weight, bias, activation, algorithm, out_dtype, &sum, &outcome);
    if (outcome.status != Status::unsupported) return outcome.raise(), std::tuple(out, sum);
  }
  return activated_and_sum(compute_sum(), activation, dtypes.result);
}

Tensor activate(const Tensor& x, std::string_view activation) {
  check_operand("x", x);
  return elementwise(to_function(activation), x, Tensor());
}

Tensor activate_backward(const Tensor& grad, const Tensor& x, std::string_view activation) {
  check_operand("grad", grad);
  check_operand("x", x);
  check_slope<int64_t>(grad, x, activation);
  return elementwise(to_function(activation), x, grad);
}

// What both passes over a gated pair, which is contiguous, have in common; they compute what `y` and `grad` ask for.
ElementwiseProblem gated_pair(const Tensor& gate, const Tensor& up, std::string_view activation, const Tensor& y) {
  ElementwiseProblem problem{};
  problem.function = to_function(activation);
  problem.dtype = to_dtype("gate", gate);
  problem.dtype_y = to_dtype("y", y);
  problem.count = gate.numel();
  problem.x = gate.const_data_ptr();
  problem.other = up.const_data_ptr();
  problem.y = y.mutable_data_ptr();
  return problem;
}

}  // namespace

void KeptSums::ask(GemmProblem& problem, const Tensor& out) {
  problem.sum_offset = new_sum(out, gate);
  if (problem.gated_b) problem.up_sum_offset = new_sum(out, up);
}

Tensor compute_gated(const Tensor& gate, const Tensor& up, std::string_view activation, OptionalDtype out_dtype,
                     KeptSums* kept) {
  check_operand("gate", gate);
  check_operand("up", up);
  const at::ScalarType result = check_gated<int64_t>(gate, up, activation, out_dtype);
  const TorchOnOneThreadInChild own_thread;
  const Tensor own_gate = gate.contiguous(), own_up = up.contiguous();
  const Tensor out = new_result(gate.sizes(), gate.options().dtype(result));
  ElementwiseProblem problem = gated_pair(own_gate, own_up, activation, out);
  if (kept && result == gate.scalar_type()) {
    *kept = {own_gate, own_up};
  } else if (kept) {
    *kept = {new_result(gate.sizes(), out.options()), new_result(gate.sizes(), out.options())};
    problem.x_kept = kept->gate.mutable_data_ptr(), problem.other_kept = kept->up.mutable_data_ptr();
  }
  run(problem, gate.device());
  return out;
}

namespace {

Tensor gated(const Tensor& gate, const Tensor& up, std::string_view activation, OptionalDtype out_dtype) {
  return compute_gated(gate, up, activation, out_dtype);
}

std::tuple<Tensor, Tensor> gated_backward(const Tensor& grad, const Tensor& gate, const Tensor& up,
                                          std::string_view activation) {
  check_operand("grad", grad);
  check_operand("gate", gate);
  check_operand("up", up);
  check_gated<int64_t>(gate, up, activation);
  check_one_shape<int64_t>({"grad", grad}, {"gate", gate});
  const TorchOnOneThreadInChild own_thread;
  const Tensor own_grad = grad.contiguous(), own_gate = gate.contiguous(), own_up = up.contiguous();
  const Tensor gate_grad = new_result(gate.sizes(), gate.options()), up_grad = new_result(up.sizes(), up.options());
  ElementwiseProblem problem = gated_pair(own_gate, own_up, activation, gate_grad);
  problem.grad = own_grad.const_data_ptr();
  problem.y_other = up_grad.mutable_data_ptr();
  run(problem, gate.device());
  return {gate_grad, up_grad};
}

}  // namespace

bool may_be_one_pass(const Tensor& gate, const Tensor& up, const std::optional<Tensor>& gate_bias,
                     const std::optional<Tensor>& up_bias, const ProductDtypes& dtypes) {
  const auto is_given = [](const std::optional<Tensor>& bias) { return bias && bias->defined(); };
  // A problem has one step for both biases, which is 0 for one of a single element.
  const bool are_alike = !is_given(gate_bias) || !is_given(up_bias) ||
                         (gate_bias->scalar_type() == up_bias->scalar_type() &&
                          gate_bias->sizes() == up_bias->sizes() && gate_bias->strides() == up_bias->strides());
  // Empty weights have no address, which would say that there is no second one.
  return gate.is_cuda() && gate.numel() > 0 && are_alike && gate.strides() == up.strides() && size_of(dtypes.c) == 2 &&
         dtypes.a == dtypes.c && dtypes.b == dtypes.c;
}

std::optional<Tensor> bias_of_sum(const std::optional<Tensor>& bias, const ProductDtypes& dtypes) {
  if (!bias || !bias->defined()) return bias;
  const TorchOnOneThreadInChild own_thread;
  const DType own = to_dtype("bias", *bias);
  return own == dtypes.a || own == dtypes.b ? *bias : bias->to(dtypes.c == DType::f64 ? at::kDouble : at::kFloat);
}

namespace {

// In one pass, or both sums in the type of accumulators, then a pass over them: the bits are the same. The sums are
// `kept` where a gradient needs them.
Tensor compute_gated_linear(const Tensor& input, const Tensor& gate, const Tensor& up,
                            const std::optional<Tensor>& gate_bias, const std::optional<Tensor>& up_bias,
                            std::string_view activation, std::string_view algorithm, OptionalDtype out_dtype,
                            KeptSums* kept) {
  check_operand("input", input);
  check_operand("gate", gate);
  check_operand("up", up);
  if (gate_bias && gate_bias->defined()) check_operand("gate_bias", *gate_bias);
  if (up_bias && up_bias->defined()) check_operand("up_bias", *up_bias);
  const ProductDtypes dtypes = check_gated_linear<int64_t>(input, gate, up, gate_bias, up_bias, activation, out_dtype);
  if (may_be_one_pass(gate, up, gate_bias, up_bias, dtypes) && gate.dim() == 2 && input.is_contiguous()) {
    const Shape<int64_t> shape = linear_shape<int64_t>(input, gate, gate_bias);
    const Tensor out = new_result(shape, input.options().dtype(dtypes.result));
    GemmProblem problem{};
    dtypes.set(problem);
    fill_operands(problem, input, gate.mT());
    problem.gated_b = up.const_data_ptr();
    if (gate_bias && gate_bias->defined()) set_bias(problem, problem.bias, *gate_bias);
    if (up_bias && up_bias->defined()) set_bias(problem, problem.gated_bias, *up_bias);
    problem.activation = to_activation(activation);
    problem.m = problem.n == 0 ? 0 : out.numel() / problem.n, problem.stride_am = problem.k;
    problem.c = out.mutable_data_ptr(), problem.stride_cm = problem.n, problem.stride_cn = 1;
    if (kept) kept->ask(problem, out);
    const Outcome outcome = compute(problem, to_algorithm(algorithm), input.device());
    if (outcome.status != Status::unsupported) return outcome.raise(), out;
  }
  const OptionalDtype of_sums = dtypes.c == DType::f64 ? at::kDouble : at::kFloat;
  const Tensor gate_sum = linear(input, gate, bias_of_sum(gate_bias, dtypes), "none", algorithm, of_sums);
  const Tensor up_sum = linear(input, up, bias_of_sum(up_bias, dtypes), "none", algorithm, of_sums);
  return compute_gated(gate_sum, up_sum, activation, dtypes.result, kept);
}

Tensor gated_linear(const Tensor& input, const Tensor& gate, const Tensor& up, const std::optional<Tensor>& gate_bias,
                    const std::optional<Tensor>& up_bias, std::string_view activation, std::string_view algorithm,
                    OptionalDtype out_dtype) {
  return compute_gated_linear(input, gate, up, gate_bias, up_bias, activation, algorithm, out_dtype, nullptr);
}

std::tuple<Tensor, Tensor, Tensor> gated_linear_and_sums(const Tensor& input, const Tensor& gate, const Tensor& up,
                                                         const std::optional<Tensor>& gate_bias,
                                                         const std::optional<Tensor>& up_bias,
                                                         std::string_view activation, std::string_view algorithm,
                                                         OptionalDtype out_dtype) {
  KeptSums kept;
  const Tensor out = compute_gated_linear(input, gate, up, gate_bias, up_bias, activation, algorithm, out_dtype, &kept);
  return {out, kept.gate, kept.up};
}

// As a product with ones, whose order of summation is fixed; tf32 never rounds the elements.
Tensor ordered_sum(const Tensor& a, at::IntArrayRef dims) {
  const TorchOnOneThreadInChild own_thread;
  check_operand("a", a);
  const ProductDtypes dtypes = product_dtypes({"a", a}, {"a", a});
  const Tensor out = new_result(ordered_sum_shape<int64_t>(a, dims), a.options());
  const std::vector<bool> is_summed = summed_dims(a, dims);
  std::vector<int64_t> order;
  int64_t summed = 1;
  for (int64_t d = 0; d < a.dim(); ++d) {
    if (is_summed[size_t(d)]) order.push_back(d), summed *= a.size(d);
  }
  for (int64_t d = 0; d < a.dim(); ++d) {
    if (!is_summed[size_t(d)]) order.push_back(d);
  }
  const Tensor rows = a.permute(order).reshape({summed, out.numel()});
  // On the CPU one number, again and again.
  const Tensor ones = a.is_cpu() ? at::ones({}, a.options()).expand({1, summed}) : at::ones({1, summed}, a.options());
  matmul_into(ones, rows, out.view({1, out.numel()}), MatmulShape<int64_t>(ones, rows), dtypes, to_algorithm("auto"),
              false);
  return out;
}

std::tuple<Tensor, Tensor> linear_weight_grads(const Tensor& grad, const Tensor& input, std::string_view algorithm) {
  check_operand("grad", grad);
  check_operand("input", input);
  check_alike("grad", grad, "input", input);
  check_weight_grads<int64_t>(grad, input);
  const Tensor weight_grad = new_result({grad.size(1), input.size(1)}, input.options());
  GemmProblem problem{};
  problem.set_dtypes(to_dtype("grad", grad));
  fill_operands(problem, grad.mT(), input);
  problem.c = weight_grad.mutable_data_ptr();
  problem.stride_cm = input.size(1);
  problem.stride_cn = 1;
  const int32_t algorithm_idx = to_algorithm(algorithm);
  if (grad.is_cuda() && weight_grad.numel() > 0) {
    // In the same pass, if there is a kernel for that.
    const Tensor bias_grad = at::empty({grad.size(1)}, grad.options());
    problem.row_sums = bias_grad.mutable_data_ptr();
    const c10::DeviceGuard guard(grad.device());  // the question makes that device the current one
    if (tiledmm_gpu_serves(&problem, algorithm_idx, grad.get_device(), false)) {
      run(problem, algorithm_idx, grad.device());
      return {weight_grad, bias_grad};
    }
    problem.row_sums = nullptr;
  }
  run(problem, algorithm_idx, grad.device());
  return {weight_grad, ordered_sum(grad, {0}).squeeze(0)};
}

std::string info() {
  return whole_text([](char* text, size_t capacity) { return tiledmm_info(text, capacity); });
}

std::string explain(int64_t m, int64_t n, int64_t k, at::ScalarType dtype, std::string_view layout,
                    std::string_view device, int64_t num_threads, int64_t batch, std::string_view plans_of,
                    OptionalDtype b_dtype, OptionalDtype out_dtype, int64_t groups) {
  TORCH_CHECK_VALUE(layout == "NN" || layout == "NT" || layout == "TN" || layout == "TT", "tiledmm: layout '", layout,
                    "' is not known; accepted are NN, NT, TN, TT");
  TORCH_CHECK_VALUE(m >= 0 && n >= 0 && k >= 0 && batch >= 0 && num_threads >= 1, "tiledmm: m, n, k are ", m, ", ", n,
                    ", ", k, " and num_threads is ", num_threads, "; accepted are sizes >= 0 and num_threads >= 1");
  GemmProblem problem{};
  problem.m = m;
  problem.n = n;
  problem.k = k;
  if (fp8_dtype_of(dtype)) {
    scaled_dtypes(dtype, b_dtype.value_or(dtype), out_dtype).set(problem);
    problem.scaling = Scaling::rows;
    problem.scale_a = problem.scale_b = {nullptr, 1, 0, 1};
  } else {
    const auto of_dtype = [](at::ScalarType type) { return at::empty({0, 1}, at::TensorOptions().dtype(type)); };
    const Tensor a = of_dtype(dtype), b = of_dtype(b_dtype.value_or(dtype));
    if (fp8_dtype_of(b.scalar_type())) {
      weight_only_dtypes(a, b, of_dtype(at::kFloat), {}, out_dtype.value_or(dtype)).set(problem);
      problem.scaling = Scaling::rows;
      problem.scale_b = {nullptr, 1, 0, 1};
    } else {
      product_dtypes({"a", a}, {"b", b}, out_dtype).set(problem);
    }
  }
  problem.stride_am = layout[0] == 'N' ? k : 1;
  problem.stride_ak = layout[0] == 'N' ? 1 : m;
  problem.stride_bk = layout[1] == 'N' ? n : 1;
  problem.stride_bn = layout[1] == 'N' ? 1 : k;
  problem.stride_cm = n;
  problem.stride_cn = 1;
  problem.allow_tf32 = allows_tf32();
  const BatchDim dim = groups > 0 ? BatchDim{groups, 0, k * n, 0, 0} : BatchDim{batch, m * k, k * n, m * n, 0};
  problem.batch_dims = &dim;
  problem.num_batch_dims = batch > 0 || groups > 0;
  if (groups > 0) problem.grouping = Grouping::rows;
  const std::string device_name(device), kernel(plans_of);
  return whole_text([&](char* text, size_t capacity) {
    return tiledmm_explain(&problem, device_name.c_str(), int32_t(num_threads),
                           kernel.empty() ? nullptr : kernel.c_str(), text, capacity);
  });
}

double fma_peak(at::ScalarType dtype) {
  const Executor executor = cpu_executor();
  return tiledmm_fma_peak(to_dtype("dtype", at::empty({0}, at::TensorOptions().dtype(dtype))), &executor);
}

}  // namespace

TORCH_LIBRARY_IMPL(tiledmm, CPU, m) {
  m.impl("matmul", &matmul);
  m.impl("matmul_out", &matmul_out);
  m.impl("addmm", &addmm);
  m.impl("linear", &linear);
  m.impl("linear_and_sum", &linear_and_sum);
  m.impl("linear_weight_grads", &linear_weight_grads);
  m.impl("activate", &activate);
  m.impl("activate_backward", &activate_backward);
  m.impl("gated_linear", &gated_linear);
  m.impl("gated_linear_and_sums", &gated_linear_and_sums);
  m.impl("gated", &gated);
  m.impl("gated_backward", &gated_backward);
  m.impl("ordered_sum", &ordered_sum);
}

TORCH_LIBRARY_IMPL(tiledmm, CUDA, m) {
  m.impl("matmul", &matmul);
  m.impl("matmul_out", &matmul_out);
  m.impl("addmm", &addmm);
  m.impl("linear", &linear);
  m.impl("linear_and_sum", &linear_and_sum_on_gpu);
  m.impl("linear_weight_grads", &linear_weight_grads);
  m.impl("activate", &activate);
  m.impl("activate_backward", &activate_backward);
  m.impl("gated_linear", &gated_linear);
  m.impl("gated_linear_and_sums", &gated_linear_and_sums);
  m.impl("gated", &gated);
  m.impl("gated_backward", &gated_backward);
  m.impl("ordered_sum", &ordered_sum);
}

TORCH_LIBRARY_IMPL(tiledmm, CompositeExplicitAutograd, m) {
  m.impl("_info", &info);
  m.impl("_fma_peak", &fma_peak);
  m.impl("_explain", &explain);
}

}  // namespace tiledmm

// The mode's products: aten's operators as GemmProblems of the operands' own strides.
#include <ATen/native/Resize.h>

#include "core/math.h"
#include "torch/cpu_executor.h"
#include "torch/mode.h"
#include "torch/overlap.h"
#include "torch/product.h"
#include "torch/shapes.h"

namespace tiledmm::mode {
namespace {

using at::Scalar;
using at::Tensor;
using c10::DispatchKey;

// out = activation(beta added + alpha a b).
struct Product {
  const Tensor &a, &b;
  const Tensor* added = nullptr;
  const Scalar *beta = nullptr, *alpha = nullptr;  // null: 1
  Activation activation = Activation::none;
  std::optional<at::ScalarType> dtype = std::nullopt;  // of the result; none: that of the operands
};

// Strides of a tensor along the dimensions of a result, 0 where it broadcasts; false where it does not fit.
bool broadcast_strides(const Tensor& tensor, at::IntArrayRef shape, int64_t* strides) {
  const int64_t missing = int64_t(shape.size()) - tensor.dim();
  if (missing < 0) return false;
  for (int64_t d = 0; d < int64_t(shape.size()); ++d) {
    const int64_t size = d < missing ? 1 : tensor.size(d - missing);
    if (size != 1 && size != shape[size_t(d)]) return false;
    strides[d] = size == 1 ? 0 : tensor.stride(d - missing);
  }
  return true;
}

// Why a tensor is none of ours beside `a`, whose dtype or `other` it is to have; null if it is.
const char* refuse_tensor(const Tensor& tensor, const Tensor& a, OptionalDtype other = std::nullopt) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_nested()) return kOtherLayout;
  if (tensor.scalar_type() != a.scalar_type() && tensor.scalar_type() != other) return "operands of unlike dtypes";
  if (tensor.device() != a.device()) return "operands on unlike devices";
  return nullptr;
}

// Matrices of one batch, or a matrix or a vector by a vector.
template <int DIMS_A, int DIMS_B>
bool fit(const Tensor& a, const Tensor& b) {
  if (a.dim() != DIMS_A || b.dim() != DIMS_B) return false;
  return a.size(-1) == b.size(DIMS_B == 1 ? 0 : -2) && (DIMS_A != 3 || a.size(0) == b.size(0));
}

// Writes the product into `out`, which is made if it is not defined. Null where it is done; else why torch's kernel is
// to do it, and nothing has been written.
template <int DIMS_A, int DIMS_B>
const char* multiply(Override& own, const Product& product, Tensor& out, bool may_resize) {
  const Tensor &a = product.a, &b = product.b;
  const at::ScalarType result = product.dtype.value_or(a.scalar_type());
  const std::optional<DType> dtype = dtype_of(a.scalar_type()), dtype_c = dtype_of(result);
  if (!dtype) return kOtherDtype;
  if (!dtype_c || mix_of(*dtype, *dtype, *dtype_c, *dtype_c) == Mix::other) return "a result of another dtype";
  if (const char* reason = refuse_tensor(a, a)) return reason;
  if (const char* reason = refuse_tensor(b, a)) return reason;
  if (!fit<DIMS_A, DIMS_B>(a, b)) return "shapes that do not fit";

  constexpr int kDims = DIMS_A == 3 ? 3 : (DIMS_A == 2) + (DIMS_B == 2);
  int64_t shape[3], dims = 0;
  if (DIMS_A == 3) shape[dims++] = a.size(0);
  if (DIMS_A >= 2) shape[dims++] = a.size(-2);
  if (DIMS_B >= 2) shape[dims++] = b.size(-1);
  const at::IntArrayRef sizes(shape, size_t(kDims));

  GemmProblem problem{};
  problem.dtype_a = problem.dtype_b = problem.dtype_bias = *dtype, problem.dtype_c = *dtype_c;
  fill_operands(problem, a, b);
  problem.activation = product.activation;
  for (const Scalar* scalar : {product.beta, product.alpha}) {
    if (scalar && (scalar->isComplex() || scalar->isSymbolic())) return "a scalar that is no real number";
  }
  if (product.beta) problem.beta = product.beta->toDouble();
  if (product.alpha) problem.alpha = product.alpha->toDouble();
  int64_t added[3] = {};
  const bool is_adding = product.added && problem.beta != 0;
  if (product.added) {
    if (const char* reason = refuse_tensor(*product.added, a, result)) return reason;
    if (product.added->scalar_type() == result) problem.dtype_bias = *dtype_c;
    if (!broadcast_strides(*product.added, sizes, added)) return "shapes that do not fit";
  }

  Tensor own_out = out;
  if (out.defined()) {
    if (const char* reason = refuse_tensor(out, a, result)) return reason;
    if (out.scalar_type() != result) return "a result of another dtype";
    if (out.sizes() != sizes) {
      if (!may_resize) return "shapes that do not fit";
      at::native::resize_output(out, sizes);
    }
    if (overlaps_itself(out) != Answer::no) return "a result whose elements share memory";
    // What is added may be the result itself on a GPU, where each element is read before it is written. On the CPU
    // partial sums may lie in the result.
    const bool is_in_place = is_adding && out.is_cuda() && out.is_same(*product.added);
    if (may_overlap(out, a) || may_overlap(out, b) || (is_adding && !is_in_place && may_overlap(out, *product.added))) {
      own_out = new_result(sizes, a.options().dtype(result));
    }
  } else {
    own_out = new_result(sizes, a.options().dtype(result));
  }
  if (is_adding) {
    problem.bias = product.added->const_data_ptr();
    problem.stride_bias_m = DIMS_A == 1 ? 0 : added[kDims - (DIMS_B >= 2) - 1];
    problem.stride_bias_n = DIMS_B == 1 ? 0 : added[kDims - 1];
  }
  problem.c = own_out.mutable_data_ptr();
  problem.stride_cm = DIMS_A == 1 ? 0 : own_out.stride(kDims - (DIMS_B >= 2) - 1);
  problem.stride_cn = DIMS_B == 1 ? 1 : own_out.stride(-1);
  BatchDim dim{};
  if (DIMS_A == 3) {
    dim = {shape[0], a.stride(0), b.stride(0), own_out.stride(0), added[0]};
    problem.batch_dims = &dim;
    problem.num_batch_dims = 1;
  }
  const int32_t asked = algorithm();
  Outcome outcome = compute(problem, asked, a.device());
  if (outcome.status == Status::unsupported && asked != 0) outcome = compute(problem, 0, a.device());
  if (outcome.status == Status::unsupported) return "no kernel for it on this device";
  outcome.raise();
  own.served.count(outcome.kernel ? outcome.kernel : "an empty result");
  if (!out.defined()) {
    out = own_out;
  } else if (!own_out.is_same(out)) {
    const TorchOnOneThreadInChild own_thread;
    out.copy_(own_out);
  }
  return nullptr;
}

template <int DIMS_A, int DIMS_B>
bool is_served(Override& own, const Product& product, Tensor& out, bool may_resize = true) {
  const char* reason = multiply<DIMS_A, DIMS_B>(own, product, out, may_resize);
  if (reason) own.left.count(reason);
  return !reason;
}

// The three forms of an operator: with a new result, with one that is given, and with one that is the first argument.
// `args` are those of torch's kernel.
template <int DIMS_A, int DIMS_B, class... Args>
Tensor make(Override& own, const Product& product, const Args&... args) {
  Tensor out;
  return is_served<DIMS_A, DIMS_B>(own, product, out) ? out : own.call_original(args...);
}
template <int DIMS_A, int DIMS_B, class... Args>
Tensor& write(Override& own, const Product& product, Tensor& out, const Args&... args) {
  if (!is_served<DIMS_A, DIMS_B>(own, product, out)) own.call_original(args..., out);
  return out;
}
template <int DIMS_A, int DIMS_B, class... Args>
Tensor& change(Override& own, const Product& product, Tensor& self, const Args&... args) {
  if (!is_served<DIMS_A, DIMS_B>(own, product, self, false)) own.call_original(self, args...);
  return self;
}

using Kernel = torch::CppFunction;

template <int DIMS_A, int DIMS_B>
Kernel plain(Override& own) {
  return Kernel([&own](const Tensor& a, const Tensor& b) { return make<DIMS_A, DIMS_B>(own, {a, b}, a, b); });
}
template <int DIMS_A, int DIMS_B>
Kernel plain_out(Override& own) {
  return Kernel([&own](const Tensor& a, const Tensor& b, Tensor& out) -> Tensor& {
    return write<DIMS_A, DIMS_B>(own, {a, b}, out, a, b);
  });
}
template <int DIMS>
Kernel plain_dtype(Override& own) {
  return Kernel([&own](const Tensor& a, const Tensor& b, at::ScalarType dtype) {
    return make<DIMS, DIMS>(own, {.a = a, .b = b, .dtype = dtype}, a, b, dtype);
  });
}
template <int DIMS>
Kernel plain_dtype_out(Override& own) {
  return Kernel([&own](const Tensor& a, const Tensor& b, at::ScalarType dtype, Tensor& out) -> Tensor& {
    return write<DIMS, DIMS>(own, {.a = a, .b = b, .dtype = dtype}, out, a, b, dtype);
  });
}

template <int DIMS_A, int DIMS_B>
Kernel added(Override& own) {
  return Kernel([&own](const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
    return make<DIMS_A, DIMS_B>(own, {a, b, &self, &beta, &alpha}, self, a, b, beta, alpha);
  });
}
template <int DIMS_A, int DIMS_B>
Kernel added_out(Override& own) {
  return Kernel([&own](const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha,
                       Tensor& out) -> Tensor& {
    return write<DIMS_A, DIMS_B>(own, {a, b, &self, &beta, &alpha}, out, self, a, b, beta, alpha);
  });
}
template <int DIMS_A, int DIMS_B>
Kernel added_in_place(Override& own) {
  return Kernel(
      [&own](Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) -> Tensor& {
        return change<DIMS_A, DIMS_B>(own, {a, b, &self, &beta, &alpha}, self, a, b, beta, alpha);
      });
}
template <int DIMS>
Kernel added_dtype(Override& own) {
  return Kernel([&own](const Tensor& self, const Tensor& a, const Tensor& b, at::ScalarType dtype, const Scalar& beta,
                       const Scalar& alpha) {
    const Product product{a, b, &self, &beta, &alpha, Activation::none, dtype};
    return make<DIMS, DIMS>(own, product, self, a, b, dtype, beta, alpha);
  });
}
template <int DIMS>
Kernel added_dtype_out(Override& own) {
  return Kernel([&own](const Tensor& self, const Tensor& a, const Tensor& b, at::ScalarType dtype, const Scalar& beta,
                       const Scalar& alpha, Tensor& out) -> Tensor& {
    const Product product{a, b, &self, &beta, &alpha, Activation::none, dtype};
    return write<DIMS, DIMS>(own, product, out, self, a, b, dtype, beta, alpha);
  });
}

// aten's gelu in _addmm_activation is another one on each device.
Activation activation_of(const Override& own, bool use_gelu) {
  return !use_gelu ? Activation::relu : own.key == DispatchKey::CPU ? Activation::gelu : Activation::gelu_tanh;
}
Kernel activated(Override& own) {
  return Kernel([&own](const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha,
                       bool use_gelu) {
    const Product product{a, b, &self, &beta, &alpha, activation_of(own, use_gelu)};
    return make<2, 2>(own, product, self, a, b, beta, alpha, use_gelu);
  });
}
Kernel activated_out(Override& own) {
  return Kernel([&own](const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha,
                       bool use_gelu, Tensor& out) -> Tensor& {
    const Product product{a, b, &self, &beta, &alpha, activation_of(own, use_gelu)};
    return write<2, 2>(own, product, out, self, a, b, beta, alpha, use_gelu);
  });
}

// A result of groups, whose rows begin at multiples of 16 bytes, as torch's do.
Tensor new_groups(at::IntArrayRef sizes, const at::TensorOptions& options) {
  std::vector<int64_t> padded = sizes.vec();
  padded.back() = round_up(sizes.back(), 16 / int64_t(options.dtype().itemsize()));
  return new_result(padded, options).narrow(-1, 0, sizes.back());
}

// Groups. On a GPU by a kernel of production alone: those of the ladder would take longer than torch's.
const char* multiply_groups(Override& own, const Tensor& a, const Tensor& b, const std::optional<Tensor>& offs,
                            const std::optional<Tensor>& bias, OptionalDtype out_dtype, Tensor& out) {
  const at::ScalarType result = out_dtype.value_or(a.scalar_type());
  if (!dtype_of(a.scalar_type()) || !dtype_of(result)) return kOtherDtype;
  for (const Tensor* operand : {&a, &b}) {
    if (const char* reason = refuse_tensor(*operand, a)) return reason;
  }
  if (bias && bias->defined()) return "a bias";
  std::optional<GroupedShape<int64_t>> shape;
  ProductDtypes dtypes;
  try {
    shape.emplace(a, b, offs, bias);
    dtypes = product_dtypes({"a", a}, {"b", b}, out_dtype);
    if (a.is_cpu() && offs && offs->defined()) check_offs(*offs, shape->grouped_size(a, b));
  } catch (const c10::Error&) {
    return "operands that do not fit";
  }
  out = new_groups(shape->out, a.options().dtype(result));
  const auto multiply = [&](int32_t algorithm) {
    const bool by_production = shape->form != GroupedForm::batch;
    return grouped_into(a, b, offs, bias, out, *shape, dtypes, Activation::none, algorithm, Tensor(), by_production);
  };
  Outcome outcome = multiply(algorithm());
  if (outcome.status == Status::unsupported) outcome = multiply(0);
  if (outcome.status == Status::unsupported) return "groups without a kernel for this GPU";
  outcome.raise();
  own.served.count(outcome.kernel ? outcome.kernel : "an empty result");
  return nullptr;
}
Kernel grouped(Override& own) {
  return Kernel([&own](const Tensor& a, const Tensor& b, const std::optional<Tensor>& offs,
                       const std::optional<Tensor>& bias, std::optional<at::ScalarType> out_dtype) {
    Tensor out;
    const char* reason = multiply_groups(own, a, b, offs, bias, out_dtype, out);
    if (!reason) return out;
    own.left.count(reason);
    return own.call_original(a, b, offs, bias, out_dtype);
  });
}

// Scaled products of torch's own recipes, by tensor, row and block: on a GPU by a kernel that reads 8 bits alone. Sums
// are as accurate with use_fast_accum as without.
struct ScaledCall {
  const Tensor &a, &b, &scale_a, &scale_b;
  const std::optional<Tensor>&bias, &scale_result;
  OptionalDtype out_dtype;
};
bool is_given(const std::optional<Tensor>& tensor) { return tensor && tensor->defined(); }

// Why a call is none of ours, whatever its shapes; null if it may be.
const char* refuse_scaled(const ScaledCall& call, at::ScalarType result) {
  for (const Tensor* operand : {&call.a, &call.b}) {
    if (!fp8_dtype_of(operand->scalar_type())) return "operands other than float8_e4m3fn and float8_e5m2";
    if (const char* reason = refuse_tensor(*operand, call.a, operand->scalar_type())) return reason;
  }
  if (!dtype_of(result)) return "a result of another dtype";
  if (is_given(call.scale_result)) return "a scale of the result";
  for (const Tensor* scale : {&call.scale_a, &call.scale_b}) {
    if (scale->scalar_type() != at::kFloat) return "scales of another dtype";
    if (const char* reason = refuse_tensor(*scale, call.a, at::kFloat)) return reason;
  }
  if (is_given(call.bias)) {
    if (const char* reason = refuse_tensor(*call.bias, call.a, call.bias->scalar_type())) return reason;
  }
  return nullptr;
}

// Computes by the mode's algorithm, or by auto; why torch's kernel is to do it, else null.
template <class Multiply>
const char* served_by_8_bits(Override& own, const Multiply& multiply) {
  Outcome outcome = multiply(algorithm());
  if (outcome.status == Status::unsupported && algorithm() != 0) outcome = multiply(0);
  if (outcome.status == Status::unsupported) return "operands of 8 bits without a kernel for this GPU";
  outcome.raise();
  own.served.count(outcome.kernel ? outcome.kernel : "an empty result");
  return nullptr;
}

const char* multiply_scaled(Override& own, const ScaledCall& call, Tensor& out) {
  const at::ScalarType result = call.out_dtype.value_or(call.a.scalar_type());
  if (const char* reason = refuse_scaled(call, result)) return reason;
  if (out.defined() && out.scalar_type() != result) return "a result of another dtype";
  if (!fit<2, 2>(call.a, call.b)) return "shapes that do not fit";
  const int64_t k_blocks = scale_blocks(call.a.size(1));
  const at::IntArrayRef scale_a = call.scale_a.sizes(), scale_b = call.scale_b.sizes();
  const bool is_by_tensor = call.scale_a.numel() == 1 && call.scale_b.numel() == 1;
  const bool is_by_row = scale_a.equals({call.a.size(0), 1}) && scale_b.equals({1, call.b.size(1)});
  const bool may_be_by_block =
      scale_a.size() == 2 && scale_b.size() == 2 && scale_a[1] == k_blocks && scale_b[0] == k_blocks;
  if (!is_by_tensor && !is_by_row && !may_be_by_block) return "scales other than by tensor, row and block";
  std::optional<ScaledShape<int64_t>> shape;
  ProductDtypes dtypes;
  try {
    shape.emplace(call.a, call.b, call.scale_a, call.scale_b, call.bias);
    dtypes = scaled_dtypes(call.a, call.b, call.scale_a, call.scale_b, call.bias, result);
  } catch (const c10::Error&) {
    return "operands that do not fit";
  }
  if (out.defined()) {
    if (const char* reason = refuse_tensor(out, call.a, result)) return reason;
    if (overlaps_itself(out) != Answer::no) return "a result whose elements share memory";
  }
  // What is given as a result may be an operand, too, or have another shape.
  const Tensor own_out = new_result(shape->out, call.a.options().dtype(result));
  const auto multiply = [&](int32_t algorithm) {
    return scaled_into(call.a, call.b, call.scale_a, call.scale_b, call.bias, own_out, *shape, dtypes, Activation::none,
                       algorithm, call.a.is_cpu());
  };
  if (const char* reason = served_by_8_bits(own, multiply)) return reason;
  if (!out.defined()) {
    out = own_out;
    return nullptr;
  }
  const TorchOnOneThreadInChild own_thread;
  at::native::resize_output(out, own_out.sizes());
  out.copy_(own_out);
  return nullptr;
}
Kernel scaled(Override& own) {
  return Kernel([&own](const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
                       const std::optional<Tensor>& bias, const std::optional<Tensor>& scale_result,
                       std::optional<at::ScalarType> out_dtype, bool use_fast_accum) {
    Tensor out;
    const char* reason = multiply_scaled(own, {a, b, scale_a, scale_b, bias, scale_result, out_dtype}, out);
    if (!reason) return out;
    own.left.count(reason);
    return own.call_original(a, b, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum);
  });
}
Kernel scaled_out(Override& own) {
  return Kernel([&own](const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
                       const std::optional<Tensor>& bias, const std::optional<Tensor>& scale_result,
                       std::optional<at::ScalarType> out_dtype, bool use_fast_accum, Tensor& out) -> Tensor& {
    const char* reason = multiply_scaled(own, {a, b, scale_a, scale_b, bias, scale_result, out_dtype}, out);
    if (!reason) return out;
    own.left.count(reason);
    own.call_original(a, b, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum, out);
    return out;
  });
}

// torch.nn.functional.scaled_mm: what scales are for is said by numbers (torch.nn.functional.ScalingType).
enum Recipe : int64_t { of_tensor = 0, of_rows = 1, of_1x128 = 4, of_128x128 = 5 };
struct RecipeCall {
  at::TensorList scale_a;
  at::IntArrayRef recipe_a, swizzle_a;
  at::TensorList scale_b;
  at::IntArrayRef recipe_b, swizzle_b, contraction_dim;
};

// Why a call is none of ours by its recipes; null if it may be.
const char* refuse_recipes(const RecipeCall& call) {
  const auto is_plain = [](at::IntArrayRef swizzle) { return swizzle.empty() || swizzle.equals({0}); };
  if (!is_plain(call.swizzle_a) || !is_plain(call.swizzle_b)) return "scales in an order of their own";
  if (!call.contraction_dim.empty()) return "dimensions that are named";
  if (call.scale_a.size() != 1 || call.scale_b.size() != 1 || call.recipe_a.size() != 1 || call.recipe_b.size() != 1)
    return "several scales for an operand";
  const auto kind = [](int64_t recipe) { return recipe == of_128x128 ? int64_t{of_1x128} : recipe; };
  const int64_t own = kind(call.recipe_a[0]);
  const bool is_ours = own == of_tensor || own == of_rows || own == of_1x128;
  return is_ours && own == kind(call.recipe_b[0]) ? nullptr : "scales other than by tensor, row and block";
}

// A's scales of blocks in the order of _scaled_mm, or B's as those of its transposed view; undefined: they have another
// shape. Those of 128 x 128 come with as many rows as a multiple of four that has room for the blocks of k.
Tensor in_order(const Tensor& scale, int64_t recipe, int64_t rows, int64_t k) {
  const int64_t k_blocks = scale_blocks(k);
  if (recipe == of_1x128) return scale.sizes().equals({rows, k_blocks}) ? scale : Tensor();
  const bool fits = scale.sizes().equals({round_up(k_blocks, 4), scale_blocks(rows)});
  return fits ? scale.narrow(0, 0, k_blocks).t() : Tensor();
}

const char* multiply_by_recipe(Override& own, const Tensor& a, const Tensor& b, const RecipeCall& by,
                               const std::optional<Tensor>& bias, OptionalDtype out_dtype, Tensor& out) {
  if (const char* reason = refuse_recipes(by)) return reason;
  if (!fit<2, 2>(a, b)) return "shapes that do not fit";
  Tensor scale_a = by.scale_a[0], scale_b = by.scale_b[0];
  if (by.recipe_a[0] >= of_1x128) {
    scale_a = in_order(scale_a, by.recipe_a[0], a.size(0), a.size(1));
    scale_b = in_order(scale_b, by.recipe_b[0], b.size(1), b.size(0));
    if (!scale_a.defined() || !scale_b.defined()) return "operands that do not fit";
    scale_b = scale_b.t();
  } else {
    const bool is_by_row = by.recipe_a[0] == of_rows;
    const int64_t count_a = is_by_row ? a.size(0) : 1, count_b = is_by_row ? b.size(1) : 1;
    if (scale_a.numel() != count_a || scale_b.numel() != count_b) return "operands that do not fit";
  }
  return multiply_scaled(own, {a, b, scale_a, scale_b, bias, std::nullopt, out_dtype}, out);
}
Kernel scaled_by_recipe(Override& own) {
  return Kernel([&own](const Tensor& a, const Tensor& b, at::TensorList scale_a, at::IntArrayRef recipe_a,
                       at::IntArrayRef swizzle_a, at::TensorList scale_b, at::IntArrayRef recipe_b,
                       at::IntArrayRef swizzle_b, const std::optional<Tensor>& bias,
                       std::optional<at::ScalarType> out_dtype, at::IntArrayRef contraction_dim, bool use_fast_accum) {
    Tensor out;
    const RecipeCall by{scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, contraction_dim};
    const char* reason = multiply_by_recipe(own, a, b, by, bias, out_dtype, out);
    if (!reason) return out;
    own.left.count(reason);
    return own.call_original(a, b, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, bias, out_dtype,
                             contraction_dim, use_fast_accum);
  });
}
Kernel scaled_by_recipe_out(Override& own) {
  return Kernel([&own](const Tensor& a, const Tensor& b, at::TensorList scale_a, at::IntArrayRef recipe_a,
                       at::IntArrayRef swizzle_a, at::TensorList scale_b, at::IntArrayRef recipe_b,
                       at::IntArrayRef swizzle_b, const std::optional<Tensor>& bias,
                       std::optional<at::ScalarType> out_dtype, at::IntArrayRef contraction_dim, bool use_fast_accum,
                       Tensor& out) -> Tensor& {
    const RecipeCall by{scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, contraction_dim};
    const char* reason = multiply_by_recipe(own, a, b, by, bias, out_dtype, out);
    if (!reason) return out;
    own.left.count(reason);
    own.call_original(a, b, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, bias, out_dtype,
                      contraction_dim, use_fast_accum, out);
    return out;
  });
}

// The same of groups of rows, by torch's one recipe: scales of rows of a and of columns of each b.
const char* multiply_scaled_groups(Override& own, const ScaledCall& call, const std::optional<Tensor>& offs,
                                   Tensor& out) {
  const at::ScalarType result = call.out_dtype.value_or(at::kBFloat16);
  if (const char* reason = refuse_scaled(call, result)) return reason;
  if (call.a.dim() != 2 || call.b.dim() != 3 || !is_given(offs)) return "groups other than of rows";
  if (!call.scale_a.sizes().equals({call.a.size(0)}) ||
      !call.scale_b.sizes().equals({call.b.size(0), call.b.size(2)})) {
    return "scales other than by row";
  }
  std::optional<ScaledGroupedShape<int64_t>> shape;
  ProductDtypes dtypes;
  try {
    shape.emplace(call.a, call.b, call.scale_a, call.scale_b, *offs, call.bias);
    dtypes = scaled_dtypes(call.a, call.b, call.scale_a, call.scale_b, call.bias, result);
    if (call.a.is_cpu()) check_offs(*offs, call.a.size(0));
  } catch (const c10::Error&) {
    return "operands that do not fit";
  }
  const Tensor own_out = new_groups(shape->groups.out, call.a.options().dtype(result));
  const auto multiply = [&](int32_t algorithm) {
    return scaled_grouped_into(call.a, call.b, call.scale_a, call.scale_b, *offs, call.bias, own_out, *shape, dtypes,
                               Activation::none, algorithm, call.a.is_cpu());
  };
  if (const char* reason = served_by_8_bits(own, multiply)) return reason;
  out = own_out;
  return nullptr;
}
Kernel scaled_grouped(Override& own) {
  return Kernel([&own](const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
                       const std::optional<Tensor>& offs, const std::optional<Tensor>& bias,
                       const std::optional<Tensor>& scale_result, std::optional<at::ScalarType> out_dtype,
                       bool use_fast_accum) {
    Tensor out;
    const char* reason =
        multiply_scaled_groups(own, {a, b, scale_a, scale_b, bias, scale_result, out_dtype}, offs, out);
    if (!reason) return out;
    own.left.count(reason);
    return own.call_original(a, b, scale_a, scale_b, offs, bias, scale_result, out_dtype, use_fast_accum);
  });
}

Kernel scaled_grouped_by_recipe(Override& own) {
  return Kernel([&own](const Tensor& a, const Tensor& b, at::TensorList scale_a, at::IntArrayRef recipe_a,
                       at::IntArrayRef swizzle_a, at::TensorList scale_b, at::IntArrayRef recipe_b,
                       at::IntArrayRef swizzle_b, const std::optional<Tensor>& offs, const std::optional<Tensor>& bias,
                       std::optional<at::ScalarType> out_dtype, at::IntArrayRef contraction_dim, bool use_fast_accum) {
    Tensor out;
    const char* reason = refuse_recipes({scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, contraction_dim});
    if (!reason && recipe_a[0] != of_rows) reason = "scales other than by row";
    if (!reason)
      reason = multiply_scaled_groups(own, {a, b, scale_a[0], scale_b[0], bias, std::nullopt, out_dtype}, offs, out);
    if (!reason) return out;
    own.left.count(reason);
    return own.call_original(a, b, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, offs, bias, out_dtype,
                             contraction_dim, use_fast_accum);
  });
}

}  // namespace

// aten's other operators of products, addbmm, dot.out and vdot.out among them, call these.
const std::vector<Row>& products() {
  static const std::vector<Row> rows = {
      {"mm", plain<2, 2>},
      {"mm.out", plain_out<2, 2>},
      {"mm.dtype", plain_dtype<2>},
      {"mm.dtype_out", plain_dtype_out<2>},
      {"bmm", plain<3, 3>},
      {"bmm.out", plain_out<3, 3>},
      {"bmm.dtype", plain_dtype<3>},
      {"bmm.dtype_out", plain_dtype_out<3>},
      {"mv", plain<2, 1>},
      {"mv.out", plain_out<2, 1>},
      {"dot", plain<1, 1>},
      {"vdot", plain<1, 1>},
      {"addmm", added<2, 2>},
      {"addmm.out", added_out<2, 2>},
      {"addmm_", added_in_place<2, 2>},
      {"addmm.dtype", added_dtype<2>},
      {"addmm.dtype_out", added_dtype_out<2>},
      {"baddbmm", added<3, 3>},
      {"baddbmm.out", added_out<3, 3>},
      {"baddbmm_", added_in_place<3, 3>},
      {"baddbmm.dtype", added_dtype<3>},
      {"baddbmm.dtype_out", added_dtype_out<3>},
      {"addmv", added<2, 1>},
      {"addmv.out", added_out<2, 1>},
      {"addmv_", added_in_place<2, 1>},
      {"_addmm_activation", activated},
      {"_addmm_activation.out", activated_out},
      {"_grouped_mm", grouped},
      {"_scaled_mm", scaled},
      {"_scaled_mm.out", scaled_out},
      {"_scaled_mm_v2", scaled_by_recipe},
      {"_scaled_mm_v2.out", scaled_by_recipe_out},
      {"_scaled_grouped_mm", scaled_grouped},
      {"_scaled_grouped_mm_v2", scaled_grouped_by_recipe},
  };
  return rows;
}

}  // namespace tiledmm::mode

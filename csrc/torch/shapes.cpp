// The checks of what is not a shape.
#include "torch/shapes.h"

#include "api/kernels_api.h"
#include "torch/matmul.h"
#include "torch/text.h"

namespace tiledmm {

using at::Tensor;

std::optional<DType> dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::f32;
    case at::kDouble:
      return DType::f64;
    case at::kHalf:
      return DType::f16;
    case at::kBFloat16:
      return DType::bf16;
    default:
      return std::nullopt;
  }
}

std::optional<DType> fp8_dtype_of(at::ScalarType type) {
  if (type == at::kFloat8_e4m3fn) return DType::e4m3;
  return type == at::kFloat8_e5m2 ? std::optional(DType::e5m2) : std::nullopt;
}

DType to_dtype(const char* name, const Tensor& tensor) {
  const std::optional<DType> dtype = dtype_of(tensor.scalar_type());
  TORCH_CHECK_TYPE(dtype, "tiledmm: ", name, " has dtype ", tensor.scalar_type(),
                   "; accepted are torch.float32, torch.float64, torch.float16 and torch.bfloat16");
  return *dtype;
}

void check_operand(const char* name, const Tensor& tensor) {
  TORCH_CHECK_TYPE(tensor.defined(), "tiledmm: ", name, " is None; accepted is a tensor");
  TORCH_CHECK_NOT_IMPLEMENTED(!tensor.is_nested(), "tiledmm: ", name, " is a nested tensor, of layout ",
                              tensor.layout(), "; accepted is a plain one, such as the values() of a jagged one");
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided, "tiledmm: ", name, " has layout ", tensor.layout(),
                              "; accepted is torch.strided");
  TORCH_CHECK(tensor.is_cpu() || tensor.is_cuda(), "tiledmm: ", name, " is on ", tensor.device(),
              "; accepted are cpu and cuda");
  TORCH_CHECK(tensor.unsafeGetTensorImpl()->storage_initialized(), "tiledmm: the memory of ", name, ", whose shape is ",
              tensor.sizes(), ", has been given back; accepted is a tensor whose storage holds its elements");
}

namespace {

void check_one_device(const NamedTensor& tensor, const NamedTensor& other) {
  TORCH_CHECK(tensor.tensor.device() == other.tensor.device(), "tiledmm: ", tensor.name, " is on ",
              tensor.tensor.device(), " and ", other.name, " on ", other.tensor.device(),
              "; both must be on one device");
}

}  // namespace

void check_alike(const char* name, const Tensor& tensor, const char* other_name, const Tensor& other) {
  TORCH_CHECK_TYPE(tensor.scalar_type() == other.scalar_type(), "tiledmm: ", name, " has dtype ", tensor.scalar_type(),
                   " and ", other_name, " has ", other.scalar_type(), "; both must have one dtype");
  check_one_device({name, tensor}, {other_name, other});
}

ProductDtypes product_dtypes(const NamedTensor& a, const NamedTensor& b, OptionalDtype out_dtype,
                             const char* added_name, const std::optional<Tensor>& added) {
  ProductDtypes dtypes{};
  dtypes.a = to_dtype(a.name, a.tensor);
  dtypes.b = to_dtype(b.name, b.tensor);
  const at::ScalarType type_a = a.tensor.scalar_type(), type_b = b.tensor.scalar_type();
  const DType wider = dtypes.a == dtypes.b ? dtypes.a : DType::f32;
  TORCH_CHECK_TYPE(mix_of(dtypes.a, dtypes.b, wider, wider) != Mix::other, "tiledmm: ", a.name, " has dtype ", type_a,
                   " and ", b.name, " has ", type_b,
                   "; both must have one dtype, or one torch.float32 and the other torch.float16 or torch.bfloat16");
  check_one_device(a, b);
  dtypes.result = out_dtype.value_or(type_a == type_b ? type_a : at::kFloat);
  const std::optional<DType> result = dtype_of(dtypes.result);
  TORCH_CHECK_TYPE(result && mix_of(dtypes.a, dtypes.b, *result, *result) != Mix::other, "tiledmm: the result of ",
                   a.name, ", which has dtype ", type_a, ", and ", b.name, ", which has ", type_b,
                   ", cannot have dtype ", dtypes.result,
                   "; accepted are theirs and torch.float32, and torch.float16 or torch.bfloat16 where both have "
                   "torch.float32");
  dtypes.c = dtypes.bias = *result;
  if (added && added->defined()) {
    dtypes.bias = to_dtype(added_name, *added);
    TORCH_CHECK_TYPE(dtypes.bias == dtypes.a || dtypes.bias == dtypes.b || dtypes.bias == dtypes.c,
                     "tiledmm: ", added_name, " has dtype ", added->scalar_type(), " and ", a.name, " has ", type_a,
                     "; accepted are the dtypes of the operands and of the result");
    check_one_device({added_name, *added}, a);
  }
  return dtypes;
}

namespace {

void check_scale(const NamedTensor& scale, const NamedTensor& operand) {
  TORCH_CHECK_TYPE(scale.tensor.scalar_type() == at::kFloat, "tiledmm: ", scale.name, " has dtype ",
                   scale.tensor.scalar_type(), "; accepted is torch.float32");
  check_one_device(scale, operand);
}

// C is in fp32 where the result's dtype does not hold a bias.
void add_scaled_bias(ProductDtypes& dtypes, const std::optional<Tensor>& bias, const NamedTensor& operand) {
  if (!bias || !bias->defined()) return;
  const std::optional<DType> type = dtype_of(bias->scalar_type());
  TORCH_CHECK_TYPE(type && *type != DType::f64, "tiledmm: bias has dtype ", bias->scalar_type(),
                   "; accepted are torch.float32, torch.float16 and torch.bfloat16");
  check_one_device({"bias", *bias}, operand);
  if (*type != dtypes.c) dtypes.c = dtypes.bias = DType::f32;
}

}  // namespace

ProductDtypes scaled_dtypes(at::ScalarType a, at::ScalarType b, OptionalDtype out_dtype) {
  ProductDtypes dtypes{};
  for (const auto& [name, type, own] : {std::tuple("a", a, &dtypes.a), std::tuple("b", b, &dtypes.b)}) {
    const std::optional<DType> dtype = fp8_dtype_of(type);
    TORCH_CHECK_TYPE(dtype, "tiledmm: ", name, " has dtype ", type,
                     "; accepted are torch.float8_e4m3fn and torch.float8_e5m2");
    *own = *dtype;
  }
  dtypes.result = out_dtype.value_or(at::kBFloat16);
  const std::optional<DType> result = dtype_of(dtypes.result);
  TORCH_CHECK_TYPE(result && mix_of(dtypes.a, dtypes.b, *result, *result) == Mix::fp8,
                   "tiledmm: the result of operands of 8 bits cannot have dtype ", dtypes.result,
                   "; accepted are torch.bfloat16, torch.float16 and torch.float32");
  dtypes.c = dtypes.bias = *result;
  return dtypes;
}

ProductDtypes scaled_dtypes(const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
                            const std::optional<Tensor>& bias, OptionalDtype out_dtype) {
  ProductDtypes dtypes = scaled_dtypes(a.scalar_type(), b.scalar_type(), out_dtype);
  const NamedTensor own_a{"a", a};
  check_one_device({"b", b}, own_a);
  check_scale({"scale_a", scale_a}, own_a);
  check_scale({"scale_b", scale_b}, own_a);
  add_scaled_bias(dtypes, bias, own_a);
  return dtypes;
}

ProductDtypes weight_only_dtypes(const Tensor& x, const Tensor& q, const Tensor& scale,
                                 const std::optional<Tensor>& bias, at::ScalarType out_dtype) {
  const std::optional<DType> type = dtype_of(x.scalar_type()), type_q = fp8_dtype_of(q.scalar_type());
  const std::optional<DType> type_c = dtype_of(out_dtype);
  TORCH_CHECK_TYPE(type && type_q && type_c && mix_of(*type, *type_q, *type_c, *type_c) == Mix::fp8_b, "tiledmm: got ",
                   x.scalar_type(), " by ", q.scalar_type(), " with a result of ", out_dtype,
                   "; accepted are torch.float32, torch.float16 and torch.bfloat16 by torch.float8_e4m3fn and "
                   "torch.float8_e5m2, with a result of one of the first three");
  ProductDtypes dtypes{*type, *type_q, *type_c, *type_c, out_dtype};
  const NamedTensor own_x{"x", x};
  check_one_device({"q", q}, own_x);
  check_scale({"scale", scale}, own_x);
  add_scaled_bias(dtypes, bias, own_x);
  TORCH_CHECK_VALUE(x.dim() == 2 && q.dim() == 2 && q.sym_size(1) == x.sym_size(1) && scale.dim() == 2 &&
                        scale.sym_size(0) == q.sym_size(0) && scale.sym_size(1) == 1 &&
                        (!bias || !bias->defined() || (bias->dim() == 1 && bias->sym_size(0) == q.sym_size(0))),
                    "tiledmm: got x ", x.sym_sizes(), ", q ", q.sym_sizes(), " and scale ", scale.sym_sizes(),
                    "; accepted are (m, k), (n, k) and (n, 1), and a bias of (n)");
  return dtypes;
}

int32_t to_algorithm(std::string_view name) {
  if (name == kPlainAuto) name = "auto";
  const int32_t algorithm = tiledmm_find_algorithm(name.data(), name.size());
  TORCH_CHECK_VALUE(algorithm >= 0, "tiledmm: algorithm '", name, "' is not known; known are ",
                    whole_text([](char* text, size_t size) { return tiledmm_algorithm_names(text, size); }));
  return algorithm;
}

Activation to_activation(std::string_view name) {
  for (int i = 0; i < kNumActivations; ++i) {
    if (name == kActivationNames[i]) return Activation(i);
  }
  TORCH_CHECK_VALUE(false, "tiledmm: activation '", name,
                    "' is not known; accepted are none, relu, gelu, gelu_tanh, silu");
}

void check_has_activation(const char* who, std::string_view activation) {
  TORCH_CHECK_VALUE(to_activation(activation) != Activation::none, "tiledmm: ", who,
                    " has activation 'none'; accepted are relu, gelu, gelu_tanh, silu");
}

Function to_function(std::string_view name) {
  for (int i = 0; i < kNumFunctions; ++i) {
    if (name == kFunctionNames[i]) return Function(i + 1);
  }
  TORCH_CHECK_VALUE(false, "tiledmm: activation '", name,
                    "' is not known; accepted are relu, gelu, gelu_tanh, silu, logistic, normal_density");
}

}  // namespace tiledmm

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

void check_alike(const char* name, const Tensor& tensor, const char* other_name, const Tensor& other) {
  TORCH_CHECK_TYPE(tensor.scalar_type() == other.scalar_type(), "tiledmm: ", name, " has dtype ", tensor.scalar_type(),
                   " and ", other_name, " has ", other.scalar_type(), "; both must have one dtype");
  TORCH_CHECK(tensor.device() == other.device(), "tiledmm: ", name, " is on ", tensor.device(), " and ", other_name,
              " on ", other.device(), "; both must be on one device");
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

void check_keeps_sum(std::string_view activation) {
  TORCH_CHECK_VALUE(to_activation(activation) != Activation::none,
                    "tiledmm: linear_and_sum has activation 'none'; accepted are relu, gelu, gelu_tanh, silu");
}

Function to_function(std::string_view name) {
  for (int i = 0; i < kNumFunctions; ++i) {
    if (name == kFunctionNames[i]) return Function(i + 1);
  }
  TORCH_CHECK_VALUE(false, "tiledmm: activation '", name,
                    "' is not known; accepted are relu, gelu, gelu_tanh, silu, logistic, normal_density");
}

}  // namespace tiledmm

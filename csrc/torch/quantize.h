// What quantize_rows and quantize_blocks accept, and the shapes and strides that come out: for plain and for symbolic
// sizes.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>

#include "core/quantize.h"
#include "torch/shapes.h"

namespace tiledmm {

// The dtype of 8 bits that torch calls so.
inline DType to_float8(at::ScalarType type) {
  const std::optional<DType> dtype = fp8_dtype_of(type);
  TORCH_CHECK_TYPE(dtype, "tiledmm: dtype is ", type, "; accepted are torch.float8_e4m3fn and torch.float8_e5m2");
  return *dtype;
}

inline ScaleBlock to_scale_block(int64_t block_rows) {
  TORCH_CHECK_VALUE(block_rows == 1 || block_rows == kScaledK, "tiledmm: block_rows is ", block_rows,
                    "; accepted are 1 and ", kScaledK);
  return block_rows == 1 ? ScaleBlock::segment : ScaleBlock::square;
}

inline void check_quantized(const at::Tensor& x, at::ScalarType dtype, std::string_view activation) {
  const std::optional<DType> own = dtype_of(x.scalar_type());
  TORCH_CHECK_TYPE(own && *own != DType::f64 && size_of(*own) > 1, "tiledmm: x has dtype ", x.scalar_type(),
                   "; accepted are torch.float32, torch.float16 and torch.bfloat16");
  TORCH_CHECK(x.dim() == 2, "tiledmm: x has ", x.dim(), " dimensions; accepted are 2, rows and k");
  to_float8(dtype);
  to_activation(activation);
}

// Room for a row of q, in elements: whole steps of 16 bytes.
template <class Size>
Size pitch_of(const Size& k) {
  return (k + 15) / 16 * 16;
}

template <class Size>
std::array<Size, 2> scale_shape(const Size& m, const Size& k, ScaleBlock block) {
  if (block == ScaleBlock::row) return {m, Size(1)};
  const Size k_blocks = (k + (kScaledK - 1)) / kScaledK;
  if (block == ScaleBlock::segment) return {m, k_blocks};
  return {(m + (kScaledK - 1)) / kScaledK, k_blocks};
}
// Scales of segments lie side by side along the rows, all others along k.
template <class Size>
std::array<Size, 2> scale_strides(const std::array<Size, 2>& shape, ScaleBlock block) {
  if (block == ScaleBlock::segment) return {Size(1), shape[0]};
  return {shape[1], Size(1)};
}

}  // namespace tiledmm

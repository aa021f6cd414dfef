// quantize_rows and quantize_blocks: elements of 8 bits with scales. Neither has a derivative: results need no
// gradient, whatever x does, and layers bring the derivative of what they compute.
#include "torch/quantize.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "torch/cpu_executor.h"
#include "torch/matmul.h"
#include "torch/product.h"

namespace tiledmm {
namespace {

using at::Tensor;
using Quantized = std::tuple<Tensor, Tensor>;

Quantized quantize(const Tensor& x, ScaleBlock block, at::ScalarType dtype, bool power_of_two,
                   std::string_view activation) {
  const TorchOnOneThreadInChild own_thread;
  check_operand("x", x);
  check_quantized(x, dtype, activation);
  QuantizeProblem problem{};
  problem.activation = to_activation(activation);
  Tensor own = x;
  if (x.is_cpu() && problem.activation != Activation::none) {
    own = activate_op().call(x.to(at::kFloat), activation);
    problem.activation = Activation::none;
  }
  const int64_t m = x.size(0), k = x.size(1), pitch = pitch_of(k);
  const auto shape = scale_shape(m, k, block), strides = scale_strides(shape, block);
  const Tensor q = new_result({m, pitch}, x.options().dtype(dtype));
  const Tensor scale = x.new_empty_strided(shape, strides, x.options().dtype(at::kFloat));
  problem.dtype = to_dtype("x", own);
  problem.dtype_q = to_float8(dtype);
  problem.block = block;
  problem.is_power_of_two = power_of_two;
  problem.m = m;
  problem.k = k;
  problem.x = own.const_data_ptr();
  problem.stride_m = own.stride(0);
  problem.stride_k = own.stride(1);
  problem.q = q.mutable_data_ptr();
  problem.stride_q = pitch;
  problem.scale = scale.mutable_data_ptr<float>();
  problem.stride_scale_m = strides[0];
  problem.stride_scale_k = strides[1];
  run(problem, x.device());
  return {pitch == k ? q : q.narrow(1, 0, k), scale};
}

Quantized quantize_rows(const Tensor& x, at::ScalarType dtype, bool power_of_two, std::string_view activation) {
  return quantize(x, ScaleBlock::row, dtype, power_of_two, activation);
}
Quantized quantize_blocks(const Tensor& x, int64_t block_rows, at::ScalarType dtype, bool power_of_two,
                          std::string_view activation) {
  return quantize(x, to_scale_block(block_rows), dtype, power_of_two, activation);
}

// ---- Past autograd. What comes out is new, and has no history.
using RowsOp = Quantized(const Tensor&, at::ScalarType, bool, std::string_view);
using BlocksOp = Quantized(const Tensor&, int64_t, at::ScalarType, bool, std::string_view);

Quantized quantize_rows_autograd(c10::DispatchKeySet keys, const Tensor& x, at::ScalarType dtype, bool power_of_two,
                                 std::string_view activation) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("tiledmm::quantize_rows", "").typed<RowsOp>();
  const at::AutoDispatchBelowADInplaceOrView guard;
  return op.redispatch(keys & c10::after_autograd_keyset, x, dtype, power_of_two, activation);
}
Quantized quantize_blocks_autograd(c10::DispatchKeySet keys, const Tensor& x, int64_t block_rows, at::ScalarType dtype,
                                   bool power_of_two, std::string_view activation) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("tiledmm::quantize_blocks", "").typed<BlocksOp>();
  const at::AutoDispatchBelowADInplaceOrView guard;
  return op.redispatch(keys & c10::after_autograd_keyset, x, block_rows, dtype, power_of_two, activation);
}

}  // namespace

TORCH_LIBRARY_IMPL(tiledmm, CPU, m) {
  m.impl("quantize_rows", &quantize_rows);
  m.impl("quantize_blocks", &quantize_blocks);
}
TORCH_LIBRARY_IMPL(tiledmm, CUDA, m) {
  m.impl("quantize_rows", &quantize_rows);
  m.impl("quantize_blocks", &quantize_blocks);
}
TORCH_LIBRARY_IMPL(tiledmm, Autograd, m) {
  m.impl("quantize_rows", &quantize_rows_autograd);
  m.impl("quantize_blocks", &quantize_blocks_autograd);
}

}  // namespace tiledmm

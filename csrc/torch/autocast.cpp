// Autocast: operands that torch.matmul would cast to the user's lower-precision dtype are cast here, fp64 is left
// alone.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "torch/cpu_executor.h"
#include "torch/matmul.h"

namespace tiledmm {
namespace {

using at::Tensor;

template <at::DeviceType DEVICE>
struct Autocast {
  static Tensor matmul(const Tensor& a, const Tensor& b, std::string_view algorithm, OptionalDtype out_dtype) {
    const c10::impl::ExcludeDispatchKeyGuard guard(at::autocast::get_autocast_dispatch_key_from_device_type(DEVICE));
    const TorchOnOneThreadInChild own_thread;
    return matmul_op().call(cast(a), cast(b), algorithm, out_dtype);
  }

  static Tensor addmm(const std::optional<Tensor>& input, const Tensor& a, const Tensor& b, double beta, double alpha,
                      std::string_view algorithm, OptionalDtype out_dtype) {
    const c10::impl::ExcludeDispatchKeyGuard guard(at::autocast::get_autocast_dispatch_key_from_device_type(DEVICE));
    const TorchOnOneThreadInChild own_thread;
    return addmm_op().call(cast(input), cast(a), cast(b), beta, alpha, algorithm, out_dtype);
  }

  static Tensor linear(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                       std::string_view activation, std::string_view algorithm, OptionalDtype out_dtype) {
    const c10::impl::ExcludeDispatchKeyGuard guard(at::autocast::get_autocast_dispatch_key_from_device_type(DEVICE));
    const TorchOnOneThreadInChild own_thread;
    return linear_op().call(cast(input), cast(weight), cast(bias), activation, algorithm, out_dtype);
  }

  static Tensor gated_linear(const Tensor& input, const Tensor& gate, const Tensor& up,
                             const std::optional<Tensor>& gate_bias, const std::optional<Tensor>& up_bias,
                             std::string_view activation, std::string_view algorithm, OptionalDtype out_dtype) {
    const c10::impl::ExcludeDispatchKeyGuard guard(at::autocast::get_autocast_dispatch_key_from_device_type(DEVICE));
    const TorchOnOneThreadInChild own_thread;
    return gated_linear_op().call(cast(input), cast(gate), cast(up), cast(gate_bias), cast(up_bias), activation,
                                  algorithm, out_dtype);
  }

  static Tensor stacked_gated_linear(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                                     std::string_view activation, std::string_view algorithm, OptionalDtype out_dtype) {
    const c10::impl::ExcludeDispatchKeyGuard guard(at::autocast::get_autocast_dispatch_key_from_device_type(DEVICE));
    const TorchOnOneThreadInChild own_thread;
    return _stacked_gated_linear_op().call(cast(input), cast(weight), cast(bias), activation, algorithm, out_dtype);
  }

  static Tensor grouped_matmul(const Tensor& a, const Tensor& b, const std::optional<Tensor>& offs,
                               const std::optional<Tensor>& bias, OptionalDtype out_dtype, std::string_view activation,
                               std::string_view algorithm) {
    const c10::impl::ExcludeDispatchKeyGuard guard(at::autocast::get_autocast_dispatch_key_from_device_type(DEVICE));
    const TorchOnOneThreadInChild own_thread;
    return grouped_matmul_op().call(cast(a), cast(b), offs, cast(bias), out_dtype, activation, algorithm);
  }

  static Tensor stacked_gated_grouped_matmul(const Tensor& a, const Tensor& b, const std::optional<Tensor>& offs,
                                             const std::optional<Tensor>& bias, OptionalDtype out_dtype,
                                             std::string_view activation, std::string_view algorithm) {
    const c10::impl::ExcludeDispatchKeyGuard guard(at::autocast::get_autocast_dispatch_key_from_device_type(DEVICE));
    const TorchOnOneThreadInChild own_thread;
    return _stacked_gated_grouped_matmul_op().call(cast(a), cast(b), offs, cast(bias), out_dtype, activation,
                                                   algorithm);
  }

  static Tensor gated_grouped_matmul(const Tensor& a, const Tensor& gate, const Tensor& up,
                                     const std::optional<Tensor>& offs, const std::optional<Tensor>& gate_bias,
                                     const std::optional<Tensor>& up_bias, OptionalDtype out_dtype,
                                     std::string_view activation, std::string_view algorithm) {
    const c10::impl::ExcludeDispatchKeyGuard guard(at::autocast::get_autocast_dispatch_key_from_device_type(DEVICE));
    const TorchOnOneThreadInChild own_thread;
    return gated_grouped_matmul_op().call(cast(a), cast(gate), cast(up), offs, cast(gate_bias), cast(up_bias),
                                          out_dtype, activation, algorithm);
  }

  static Tensor cast(const Tensor& tensor) {
    return at::autocast::cached_cast(at::autocast::get_autocast_dtype(DEVICE), tensor, DEVICE);
  }
  static std::optional<Tensor> cast(const std::optional<Tensor>& tensor) {
    return tensor && tensor->defined() ? std::optional(cast(*tensor)) : tensor;
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(tiledmm, AutocastCPU, m) {
  m.impl("matmul", &Autocast<at::kCPU>::matmul);
  m.impl("addmm", &Autocast<at::kCPU>::addmm);
  m.impl("linear", &Autocast<at::kCPU>::linear);
  m.impl("gated_linear", &Autocast<at::kCPU>::gated_linear);
  m.impl("_stacked_gated_linear", &Autocast<at::kCPU>::stacked_gated_linear);
  m.impl("grouped_matmul", &Autocast<at::kCPU>::grouped_matmul);
  m.impl("gated_grouped_matmul", &Autocast<at::kCPU>::gated_grouped_matmul);
  m.impl("_stacked_gated_grouped_matmul", &Autocast<at::kCPU>::stacked_gated_grouped_matmul);
}

TORCH_LIBRARY_IMPL(tiledmm, AutocastCUDA, m) {
  m.impl("matmul", &Autocast<at::kCUDA>::matmul);
  m.impl("addmm", &Autocast<at::kCUDA>::addmm);
  m.impl("linear", &Autocast<at::kCUDA>::linear);
  m.impl("gated_linear", &Autocast<at::kCUDA>::gated_linear);
  m.impl("_stacked_gated_linear", &Autocast<at::kCUDA>::stacked_gated_linear);
  m.impl("grouped_matmul", &Autocast<at::kCUDA>::grouped_matmul);
  m.impl("gated_grouped_matmul", &Autocast<at::kCUDA>::gated_grouped_matmul);
  m.impl("_stacked_gated_grouped_matmul", &Autocast<at::kCUDA>::stacked_gated_grouped_matmul);
}

}  // namespace tiledmm

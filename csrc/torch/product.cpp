// The call of the kernel library: what it borrows of torch on a CPU and on a GPU, and what its answers mean.
#include "torch/product.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/version.h>

#include <algorithm>

#include "api/kernels_api.h"
#include "torch/cpu_executor.h"

#include <dlfcn.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tiledmm {

using at::Tensor;

namespace {

// The stream that torch's user has made current on a GPU.
void* current_stream(c10::Device device) {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
#else
  // In the CUDA part of torch, which is loaded by now; this library is not linked to it, since it serves builds
  // without.
  using GetStream = AOTITorchError (*)(int32_t, void**);
  static const auto get_stream = []() -> GetStream {
    for (const char* library : {"libtorch_cuda.so", "libtorch_hip.so"}) {
      if (void* loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD)) {
        return reinterpret_cast<GetStream>(dlsym(loaded, "aoti_torch_get_current_cuda_stream"));
      }
    }
    return nullptr;
  }();
  void* stream = nullptr;
  TORCH_CHECK(get_stream && get_stream(device.index(), &stream) == AOTI_TORCH_SUCCESS,
              "tiledmm: torch does not say what its current stream on ", device, " is");
  return stream;
#endif
}

// What one call has borrowed on a GPU: tensors, since they come from the allocator that is in force, also where a user
// has put another in the place of torch's own.
struct GpuWorkspace {
  c10::Device device;
  c10::SmallVector<Tensor, 4> tensors;
};

// torch's stream and torch's memory, which its allocator keeps for this stream until the kernels have run.
Executor torch_gpu_executor(GpuWorkspace& workspace) {
  Executor executor{};
  executor.self = &workspace;
  executor.device_idx = workspace.device.index();
  executor.stream = current_stream(workspace.device);
  executor.allocate = [](void* self, size_t num_bytes) -> void* {
    GpuWorkspace& workspace = *static_cast<GpuWorkspace*>(self);
    try {
      const auto options = at::TensorOptions().dtype(at::kByte).device(workspace.device);
      workspace.tensors.push_back(at::empty({int64_t(num_bytes)}, options));
      return workspace.tensors.back().mutable_data_ptr();
    } catch (const c10::OutOfMemoryError&) {
      return nullptr;
    }
  };
  executor.release = [](void* self, void* memory) {
    auto& tensors = static_cast<GpuWorkspace*>(self)->tensors;
    tensors.erase(std::find_if(tensors.begin(), tensors.end(),
                               [&](const Tensor& tensor) { return tensor.const_data_ptr() == memory; }));
  };
  return executor;
}

template <class CpuCall, class GpuCall>
Status call(c10::Device device, const char** kernel, const CpuCall& on_cpu, const GpuCall& on_gpu) {
  if (device.is_cpu()) {
    Executor executor = cpu_executor();
    executor.launched = kernel;
    return on_cpu(executor);
  }
  const c10::DeviceGuard guard(device);
  GpuWorkspace workspace{device, {}};
  Executor executor = torch_gpu_executor(workspace);
  executor.launched = kernel;
  return on_gpu(executor);
}

}  // namespace

bool allows_tf32() {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
         at::Float32Precision::TF32;
}

Outcome compute(GemmProblem& problem, int32_t algorithm, c10::Device device, bool may_use_tf32) {
  const bool is_f32 = problem.dtype_a == DType::f32 && mix_of(problem) == Mix::none;
  problem.allow_tf32 = may_use_tf32 && !device.is_cpu() && is_f32 && allows_tf32();
  Outcome outcome;
  outcome.status = call(
      device, &outcome.kernel,
      [&](const Executor& executor) {
        return tiledmm_gemm_cpu(&problem, algorithm, &executor, outcome.reason, sizeof outcome.reason);
      },
      [&](const Executor& executor) {
        return tiledmm_gemm_gpu(&problem, algorithm, &executor, outcome.reason, sizeof outcome.reason);
      });
  return outcome;
}

namespace {

template <class Problem>
using Function = Status (*)(const Problem* problem, const Executor* executor, char* reason, size_t capacity);

// By a function of the library; one of both is null where there is none.
template <class Problem>
void run_by(const Problem& problem, c10::Device device, Function<Problem> on_cpu, Function<Problem> on_gpu) {
  Outcome outcome;
  const auto by = [&](Function<Problem> function) {
    return [&outcome, &problem, function](const Executor& executor) {
      return function(&problem, &executor, outcome.reason, sizeof outcome.reason);
    };
  };
  outcome.status = call(device, nullptr, by(on_cpu), by(on_gpu));
  outcome.raise();
}

}  // namespace

void run(const ElementwiseProblem& problem, c10::Device device) {
  run_by(problem, device, tiledmm_elementwise_cpu, tiledmm_elementwise_gpu);
}
void run(const ReduceProblem& problem, c10::Device device) {
  run_by(problem, device, tiledmm_reduce_cpu, tiledmm_reduce_gpu);
}
void run(const SoftmaxProblem& problem, c10::Device device) {
  run_by<SoftmaxProblem>(problem, device, nullptr, tiledmm_softmax_gpu);
}
void run(const ColumnSoftmaxProblem& problem, c10::Device device) {
  run_by<ColumnSoftmaxProblem>(problem, device, tiledmm_softmax_cpu, nullptr);
}
void run(const QuantizeProblem& problem, c10::Device device) {
  run_by(problem, device, tiledmm_quantize_cpu, tiledmm_quantize_gpu);
}

void Outcome::raise() const {
  switch (status) {
    case Status::ok:
      return;
    case Status::out_of_memory:
      TORCH_CHECK_WITH(OutOfMemoryError, false, "tiledmm: ", reason);
    case Status::unsupported:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "tiledmm: ", reason);
    case Status::unknown_algorithm:
      TORCH_CHECK_VALUE(false, "tiledmm: ", reason);
    case Status::launch_failed:
      TORCH_CHECK(false, "tiledmm: ", reason);
  }
}

// A result beyond what the C library recycles is new memory, which comes page by page as it is written: huge pages make
// that several times faster (numpy asks for them, too).
Tensor new_result(c10::IntArrayRef sizes, const at::TensorOptions& options) {
  // The dispatcher's way to an empty tensor takes a fifth of the time of the smallest products.
  Tensor result = options.device().is_cpu() ? Tensor(at::detail::empty_cpu(sizes, options)) : at::empty(sizes, options);
#if defined(__linux__)
  constexpr uintptr_t kPage = 4096;
  constexpr size_t kLargeBytes = size_t(32) << 20;  // glibc's largest mmap threshold
  if (result.is_cpu() && result.nbytes() >= kLargeBytes) {
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(result.mutable_data_ptr()) + kPage - 1) / kPage * kPage;
    const uintptr_t end = reinterpret_cast<uintptr_t>(result.mutable_data_ptr()) + result.nbytes();
    madvise(reinterpret_cast<void*>(begin), end / kPage * kPage - begin, MADV_HUGEPAGE);  // a wish: failure is no error
  }
#endif
  return result;
}

void fill_operands(GemmProblem& problem, const Tensor& a, const Tensor& b) {
  problem.a = a.const_data_ptr();
  problem.b = b.const_data_ptr();
  problem.k = a.size(-1);
  problem.stride_ak = a.stride(-1);
  problem.m = a.dim() == 1 ? 1 : a.size(-2);
  problem.stride_am = a.dim() == 1 ? 0 : a.stride(-2);
  problem.n = b.dim() == 1 ? 1 : b.size(-1);
  problem.stride_bn = b.dim() == 1 ? 0 : b.stride(-1);
  problem.stride_bk = b.dim() == 1 ? b.stride(0) : b.stride(-2);
}

bool is_mixed(const Tensor& a, const Tensor& b, int32_t algorithm) {
  return a.is_cuda() && a.scalar_type() != b.scalar_type() && algorithm == to_algorithm("auto");
}

bool repay_terms(DType a, DType b, int64_t n, int64_t k, c10::Device device) {
  constexpr int64_t kManyColumns = 256, kManyColumnsOfMixed = 128;  // on an H100 and an H200 fewer of them do not
  if (n < (a == b ? kManyColumns : kManyColumnsOfMixed)) return false;
  GemmProblem smallest{};
  smallest.set_dtypes(DType::f32);
  smallest.dtype_a = a, smallest.dtype_b = b;
  smallest.m = smallest.n = 1, smallest.k = k;
  const c10::DeviceGuard guard(device);  // the question makes that device the current one
  return tiledmm_gpu_serves(&smallest, to_algorithm("split"), device.index(), false);
}

Tensor widened(const Tensor& tensor) {
  Tensor own = tensor;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.stride(d) == 0 && tensor.size(d) > 1) own = own.narrow(d, 0, 1);
  }
  return own.to(at::kFloat).expand(tensor.sizes());
}

void matmul_into(const Tensor& a, const Tensor& b, const Tensor& out, const MatmulShape<int64_t>& shape,
                 const ProductDtypes& dtypes, int32_t algorithm, bool may_use_tf32, const Tensor& added, double beta,
                 double alpha) {
  if (is_mixed(a, b, algorithm)) {
    const Tensor wide_added = added.defined() ? widened(added) : added;
    const Tensor wide_out = dtypes.c == DType::f32 ? out : at::empty(out.sizes(), out.options().dtype(at::kFloat));
    const int64_t n = b.dim() == 1 ? 1 : b.size(-1);
    compute_mixed(a, b, n, a.size(-1), [&](const Tensor& own_a, const Tensor& own_b, const char* own) {
      matmul_into(own_a, own_b, wide_out, shape, dtypes_of_fp32(own_a, own_b), to_algorithm(own), false, wide_added,
                  beta, alpha);
    });
    if (dtypes.c != DType::f32) out.copy_(wide_out);
    return;
  }
  GemmProblem problem{};
  dtypes.set(problem);
  problem.alpha = alpha, problem.beta = beta;
  fill_operands(problem, a, b);
  if (added.defined()) {
    problem.bias = added.const_data_ptr();
    problem.stride_bias_m = shape.a_is_vector ? 0 : added.stride(shape.b_is_vector ? -1 : -2);
    problem.stride_bias_n = shape.b_is_vector ? 0 : added.stride(-1);
  }
  problem.c = out.mutable_data_ptr();
  problem.stride_cm = shape.a_is_vector ? 0 : out.stride(shape.b_is_vector ? -1 : -2);
  problem.stride_cn = shape.b_is_vector ? 1 : out.stride(-1);
  BatchDim dims[kMaxBatchDims];
  const auto stride = [&](const Tensor& tensor, int64_t d) -> int64_t {
    const int64_t own = d - (shape.num_batch_dims - std::max<int64_t>(tensor.dim() - 2, 0));
    return own < 0 || tensor.size(own) == 1 ? 0 : tensor.stride(own);
  };
  for (int64_t d = 0; d < shape.num_batch_dims; ++d) {
    dims[d] = {shape.out[d], stride(a, d), stride(b, d), out.stride(d), added.defined() ? added.stride(d) : 0};
  }
  problem.batch_dims = dims;
  problem.num_batch_dims = int32_t(shape.num_batch_dims);
  run(problem, algorithm, out.device(), may_use_tf32);
}

}  // namespace tiledmm

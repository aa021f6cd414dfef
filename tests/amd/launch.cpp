// Launches rung 12 without a GPU: its host side as it is, and in place of HIP's runtime functions that hand each launch
// to Python. Compiled by clang for the host alone; test_mfma.py has the command.
#include "kernels/hip/12_mfma/launch.cu"
#include "kernels/hip/12_mfma/mfma_bf16.cu"
#include "kernels/hip/12_mfma/mfma_f16.cu"
#include "kernels/hip/12_mfma/mfma_f32.cu"
#include "kernels/hip/12_mfma/mfma_f64.cu"

namespace {
constexpr int kMaxKernels = 256;
struct {
  const void* function;
  const char* name;
} kernels[kMaxKernels];
int num_kernels = 0;
int (*record)(const char* name, unsigned blocks, unsigned blocks_y, unsigned threads, void** args) = nullptr;
}  // namespace

extern "C" {
void** __hipRegisterFatBinary(const void*) {
  static void* binary = nullptr;
  return &binary;
}
void __hipUnregisterFatBinary(void**) {}
int __hipRegisterFunction(void**, const void* function, char*, const char* name, unsigned, void*, void*, void*, void*,
                          int*) {
  if (num_kernels < kMaxKernels) kernels[num_kernels++] = {function, name};
  return 0;
}
int __hipPopCallConfiguration(dim3*, dim3*, size_t*, void**) { return 1; }
int hipLaunchKernel(const void* function, dim3 grid, dim3 block, void** args, size_t, void*) {
  for (int i = 0; i < num_kernels; ++i) {
    if (kernels[i].function == function) return record(kernels[i].name, grid.x, grid.y, block.x, args);
  }
  return 1;
}

// The plan of a chip with `num_cus` CUs, eight of them on a die; of `shape` and `chunk_k` those that are asked for,
// else (negative) the planned ones. Returns the status.
__attribute__((visibility("default"))) int launch(const tiledmm::FoldedProblem* problem, int shape, int64_t chunk_k,
                                                  bool splits, int num_cus, const tiledmm::Executor* executor,
                                                  decltype(record) recorder) {
  const tiledmm::Chip chip{"",           tiledmm::Platform::hip, 0,     num_cus, 64, 64 << 10, 1,
                           {1, 1, 1, 1}, {1, 1, 1, 1},           false, 8};
  tiledmm::Plan plan;
  auto& own = plan.as<tiledmm::MfmaPlan>();
  own = plan_mfma(*problem, chip, plan.cost_us);
  if (shape >= 0) own.shape = shape;
  const bool has_odd_rows = own.copies == tiledmm::MfmaCopies::of_odd_rows;
  if (has_odd_rows && !copies_odd_rows(problem->gemm.dtype, own.shape)) own.copies = tiledmm::MfmaCopies::by_element;
  if (chunk_k >= 0) own.chunk_k = chunk_k;
  own.num_splits = splits ? tiledmm::ceil_div(problem->gemm.k, own.chunk_k) : 1;
  record = recorder;
  return int(tiledmm::gpu::launch_mfma(*problem, plan, *executor));
}
}

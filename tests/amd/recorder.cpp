// Launches kernels for AMD's chips without a GPU: the dispatcher and the host side of the kernels as they are, and in
// place of HIP's runtime functions that hand each launch to the caller. launches.py compiles it.
#include <vector>

#include "dispatch/launch.h"
#include "dispatch/select.h"
#include "platform/device.h"

namespace {
struct Function {
  const void* function;
  const char* name;
};
std::vector<Function>& functions() {
  static auto* known = new std::vector<Function>;  // kernels register before this file's own variables exist
  return *known;
}
struct dim3 {
  unsigned x, y, z;
};
using Record = int (*)(const char* name, unsigned blocks, unsigned blocks_y, unsigned threads, void** args);
Record record = nullptr;
tiledmm::gpu::Device device;
}  // namespace

namespace tiledmm::gpu {
bool use_device(int32_t, Device& found) {
  found = device;
  return true;
}
const char* take_error() { return nullptr; }
}  // namespace tiledmm::gpu

extern "C" {
void** __hipRegisterFatBinary(const void*) {
  static void* binary = nullptr;
  return &binary;
}
void __hipUnregisterFatBinary(void**) {}
int __hipRegisterFunction(void**, const void* function, char*, const char* name, unsigned, void*, void*, void*, void*,
                          int*) {
  functions().push_back({function, name});
  return 0;
}
int __hipPopCallConfiguration(dim3*, dim3*, size_t*, void**) { return 1; }
int hipLaunchKernel(const void* function, dim3 grid, dim3 block, void** args, size_t, void*) {
  for (const Function& known : functions()) {
    if (known.function == function) return record(known.name, grid.x, grid.y, block.x, args);
  }
  return 1;
}

// As run_on_gpu on a chip of these properties. `recorder` is called for each launch.
__attribute__((visibility("default"))) int record_gemm(const tiledmm::GemmProblem* problem, const char* algorithm,
                                                       const tiledmm::Executor* executor, int arch, int num_cus,
                                                       int warp_size, int max_shared_bytes, Record recorder,
                                                       char* reason, size_t capacity) {
  device = {arch, num_cus, warp_size, max_shared_bytes};
  record = recorder;
  return int(tiledmm::run_on_gpu(*problem, tiledmm::find_algorithm(algorithm), *executor, reason, capacity));
}
}

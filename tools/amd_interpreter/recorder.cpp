// Launches kernels for AMD's chips without a GPU: the dispatcher and the host side of the kernels as they are.
// launches.py compiles it.
#include "dispatch/launch.h"
#include "dispatch/select.h"
#include "platform/device.h"

namespace {
struct dim3 {
  unsigned x, y, z;
};
tiledmm::gpu::Device device;
}  // namespace

#include "fake_runtime.h"

namespace tiledmm::gpu {
bool use_device(int32_t, Device& found) {
  found = device;
  return true;
}
const char* take_error() { return nullptr; }
}  // namespace tiledmm::gpu

// As run_on_gpu on a chip of these properties. `recorder` is called for each launch.
extern "C" __attribute__((visibility("default"))) int record_gemm(const tiledmm::GemmProblem* problem,
                                                                  const char* algorithm,
                                                                  const tiledmm::Executor* executor, int arch,
                                                                  int num_cus, int warp_size, int max_shared_bytes,
                                                                  Record recorder, char* reason, size_t capacity) {
  device = {arch, num_cus, warp_size, max_shared_bytes};
  record = recorder;
  return int(tiledmm::run_on_gpu(*problem, tiledmm::find_algorithm(algorithm), *executor, reason, capacity));
}

// The devices of this process, as the runtime of this compilation knows them.
#include <atomic>

#include "kernels/gpu/kernels.h"
#include "platform/gpu.h"

namespace tiledmm::gpu {
namespace {

constexpr int kMaxDevices = 64;

// Filled at first use; threads that come at the same time write the same. num_cus is written last: 0 says that the rest
// is not there yet, also after a query that failed, which the next call makes again.
struct KnownDevice {
  std::atomic<int32_t> arch, num_cus, warp_size;
};
KnownDevice devices[kMaxDevices];

}  // namespace

bool use_device(int32_t idx, int32_t& arch, int32_t& num_cus, int32_t& warp_size) {
  if (idx < 0 || idx >= kMaxDevices || !set_device(idx)) return false;
  KnownDevice& known = devices[idx];
  if (known.num_cus.load(std::memory_order_acquire) == 0) {
    Device device{};
    if (!query_device(idx, device)) return false;
    known.arch.store(device.arch, std::memory_order_relaxed);
    known.warp_size.store(device.warp_size, std::memory_order_relaxed);
    known.num_cus.store(device.num_cus, std::memory_order_release);
  }
  arch = known.arch.load(std::memory_order_relaxed);
  num_cus = known.num_cus.load(std::memory_order_relaxed);
  warp_size = known.warp_size.load(std::memory_order_relaxed);
  return true;
}

const char* take_error() { return take_runtime_error(); }

}  // namespace tiledmm::gpu

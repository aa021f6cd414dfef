// The devices of this process, as the runtime of this compilation knows them.
#include "kernels/gpu/kernels.h"
#include "platform/gpu.h"

namespace tiledmm::gpu {

bool use_device(int32_t idx, int32_t& arch, int32_t& num_cus, int32_t& warp_size) {
  constexpr int kMaxDevices = 64;
  static Device devices[kMaxDevices];  // filled at first use; two threads write the same
  if (idx < 0 || idx >= kMaxDevices || !set_device(idx)) return false;
  Device device = devices[idx];
  if (device.num_cus == 0) {
    if (!query_device(idx, device)) return false;
    devices[idx] = device;
  }
  arch = device.arch;
  num_cus = device.num_cus;
  warp_size = device.warp_size;
  return true;
}

}  // namespace tiledmm::gpu

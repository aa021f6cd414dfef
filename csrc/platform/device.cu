// The devices of this process, as the runtime of this compilation knows them.
#include <atomic>

#include "platform/gpu.h"

namespace tiledmm::gpu {
namespace {

constexpr int kMaxDevices = 64;
std::atomic<const Device*> devices[kMaxDevices];  // null: not asked yet, or without success

}  // namespace

bool use_device(int32_t idx, Device& device) {
  if (idx < 0 || idx >= kMaxDevices || !set_device(idx)) return false;
  const Device* known = devices[idx].load(std::memory_order_acquire);
  if (!known) {
    auto* asked = new Device{};  // lives as long as the process
    if (!query_device(idx, *asked)) {
      delete asked;
      return false;
    }
    // The answer of the first of several threads that come at the same time stays.
    if (devices[idx].compare_exchange_strong(known, asked, std::memory_order_acq_rel)) {
      known = asked;
    } else {
      delete asked;
    }
  }
  device = *known;
  return true;
}

const char* take_error() { return take_runtime_error(); }

}  // namespace tiledmm::gpu

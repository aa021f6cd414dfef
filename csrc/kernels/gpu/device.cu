// The devices of this process, as the runtime of this compilation knows them.
#include <atomic>

#include "platform/gpu.h"

namespace tiledmm::gpu {

bool use_device(int32_t idx, Device& device) {
  constexpr int kMaxDevices = 64;
  static std::atomic<const Device*> known[kMaxDevices];  // null: not asked yet, or without success
  if (idx < 0 || idx >= kMaxDevices || !set_device(idx)) return false;
  if (const Device* found = known[idx].load(std::memory_order_acquire)) {
    device = *found;
    return true;
  }
  if (!query_device(idx, device)) return false;
  const Device* none = nullptr;
  const auto* made = new Device(device);  // lives as long as the process
  if (!known[idx].compare_exchange_strong(none, made, std::memory_order_release)) delete made;
  return true;
}

}  // namespace tiledmm::gpu

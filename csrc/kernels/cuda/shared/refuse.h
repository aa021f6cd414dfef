// The chips that kernels for NVIDIA's alone refuse.
#pragma once

#include "core/rung.h"

namespace tiledmm::gpu {

// The host executor runs them at its warp size of 32.
inline const char* refuse_not_nvidia(const Chip& chip) {
  return chip.platform == Platform::hip ? "it is for NVIDIA's chips" : nullptr;
}

inline const char* refuse_not_hopper(const Chip& chip) {
  if (const char* reason = refuse_not_nvidia(chip)) return reason;
  return chip.arch != 90 ? "the chip has no wgmma instruction" : nullptr;
}

}  // namespace tiledmm::gpu

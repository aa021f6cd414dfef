// What every kernel of NVIDIA's chips refuses.
#pragma once

#include "core/rung.h"

namespace tiledmm::gpu {

// The host executor runs them at its warp size of 32.
inline const char* refuse_chip(const FoldedProblem&, const Chip& chip) {
  return chip.platform == Platform::hip ? "it is for NVIDIA's chips" : nullptr;
}

}  // namespace tiledmm::gpu

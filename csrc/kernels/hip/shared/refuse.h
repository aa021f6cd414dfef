// What every kernel for AMD's chips alone refuses, and which family a chip is of.
#pragma once

#include "core/rung.h"

namespace tiledmm::gpu {

// Warps of 32 lanes: RDNA 3 and 4; the others are CDNA.
constexpr bool is_rdna(const Chip& chip) { return chip.platform == Platform::hip && chip.warp_size == 32; }

inline const char* refuse_amd(const FoldedProblem& problem, const Chip& chip) {
  if (chip.platform != Platform::hip) return "it is for AMD's chips";
  return problem.gemm.k > INT32_MAX ? "k does not fit into 32 bits" : nullptr;
}

}  // namespace tiledmm::gpu

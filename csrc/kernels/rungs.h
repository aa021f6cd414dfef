// Declares the entry of every kernel: cpu::naive_rung, gpu::wgmma_rung, ...
#pragma once

#include "core/rung.h"

namespace tiledmm {
#define TILEDMM_RUNG(NAMESPACE, NAME) \
  namespace NAMESPACE {               \
  extern const Rung NAME##_rung;      \
  }
#include "kernels/rungs.def"
#undef TILEDMM_RUNG
}  // namespace tiledmm

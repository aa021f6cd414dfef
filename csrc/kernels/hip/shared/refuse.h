// What kernels for AMD's chips alone refuse, and which family a chip is of.
#pragma once

#include "core/operand.h"
#include "core/rung.h"
#include "kernels/hip/shared/plan.h"

namespace tiledmm::gpu {

// Warps of 32 lanes: RDNA 3 and 4; the others are CDNA.
constexpr bool is_rdna(const Chip& chip) { return chip.platform == Platform::hip && chip.warp_size == 32; }

inline const char* refuse_not_rdna(const Chip& chip) {
  if (chip.platform != Platform::hip) return "it is for AMD's chips";
  return is_rdna(chip) ? nullptr : "it is for RDNA 3 and 4";
}
inline const char* refuse_not_cdna(const Chip& chip) {
  if (chip.platform != Platform::hip) return "it is for AMD's chips";
  return is_rdna(chip) ? "the chip has no MFMA instruction" : nullptr;
}

inline const char* refuse_long_k(const FoldedProblem& problem, const Chip&) {
  return problem.gemm.k > INT32_MAX ? "k does not fit into 32 bits" : nullptr;
}

// What CDNA's kernels of the order mfma_chunks refuse: all of them the same, or m would choose the order of summation.
inline const char* refuse_mfma(const FoldedProblem& problem, const Chip&) {
  const GemmProblem& p = problem.gemm;
  // Offsets within a tile have 32 bits.
  constexpr double kMaxTileBytes = double(int64_t(1) << 31);
  for (const OperandView& view : {view_a(p), view_b(p)}) {
    const double bytes = double(size_of(p.dtype_a)) * (double(kMaxMfmaBlock - 1) * double(view.stride_row) +
                                                       double(mfma_block_k(p.dtype_a)) * double(view.stride_k));
    if (bytes >= kMaxTileBytes) return "a tile's rows are spread over 2 GiB or more";
  }
  // HIP counts threads in 32 bits; a tile of 64 has 128.
  const double num_tiles = (double(p.m) / 64 + 1) * (double(p.n) / 64 + 1);
  if (num_tiles >= double(1 << 25)) return "it has 2^25 tiles or more";
  return nullptr;
}

}  // namespace tiledmm::gpu

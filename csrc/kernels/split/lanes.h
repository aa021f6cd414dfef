// What the lanes of a warp say, and pairs of fp16 in a word: the GPU's alone.
#pragma once

#include "platform/gpu.h"
#include "platform/vector_math.h"

namespace tiledmm::gpu {
namespace {

// Bit i: what lane i says.
TILEDMM_DEVICE uint64_t warp_ballot(bool pred) {
#if defined(__HIP__)
  if constexpr (kWarpSize == 64) return __builtin_amdgcn_ballot_w64(pred);
  return __builtin_amdgcn_ballot_w32(pred);
#else
  return __ballot_sync(~0u, pred);
#endif
}

// Two numbers rounded to fp16, the first one in the lower half; and the numbers that such a word holds.
TILEDMM_DEVICE uint32_t rounded_to_halves(float first, float second) {
#if defined(__HIP__)
  using Pair = _Float16 __attribute__((ext_vector_type(2)));
  return __builtin_bit_cast(uint32_t, Pair{_Float16(first), _Float16(second)});
#else
  const __half2 pair = __floats2half2_rn(first, second);
  return reinterpret_cast<const uint32_t&>(pair);
#endif
}
TILEDMM_DEVICE void floats_of_halves(uint32_t pair, float& first, float& second) {
#if defined(__HIP__)
  using Pair = _Float16 __attribute__((ext_vector_type(2)));
  const auto halves = __builtin_bit_cast(Pair, pair);
  first = float(halves.x), second = float(halves.y);
#else
  const float2 floats = __half22float2(reinterpret_cast<const __half2&>(pair));
  first = floats.x, second = floats.y;
#endif
}

}  // namespace
}  // namespace tiledmm::gpu

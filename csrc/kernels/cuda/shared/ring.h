// The ring of shared-memory stages between a producer and its consumers.
#pragma once

#include <cstdint>

namespace tiledmm::cuda {
namespace {

// A place in the ring; the same sequence in the producer and in each consumer. Of a kernel's stages a launch may use
// fewer.
template <int NUM_STAGES>
struct Ring {
  int stage = 0;
  uint32_t phase = 0;
  int num_stages = NUM_STAGES;
  __device__ __forceinline__ void advance() {
    if (++stage == num_stages) {
      stage = 0;
      phase ^= 1;
    }
  }
  // Past `num` stages, which are another consumer's.
  __device__ __forceinline__ void skip(int num) {
    const int end = stage + num;
    phase ^= uint32_t(end / NUM_STAGES & 1);
    stage = end % NUM_STAGES;
  }
};

}  // namespace
}  // namespace tiledmm::cuda

// A window of global memory whose loads the hardware bounds: what lies beyond its end is read as zero, dword by dword,
// and costs no instruction. (LLVM, IntrinsicsAMDGPU.td: raw.buffer.load. Only the offset of the lane is bounded.)
#pragma once

#include "platform/gpu.h"

namespace tiledmm::gpu {
namespace {

// Of one kind for all lanes of a warp. Loads take 4, 8 or 16 bytes at a multiple of 4, `offset` bytes from its start.
struct Buffer {
  const void* base;
  uint32_t num_bytes;

  template <int WORDS>
  TILEDMM_DEVICE void load([[maybe_unused]] uint32_t offset, [[maybe_unused]] uint32_t (&words)[WORDS]) const {
    static_assert(WORDS == 1 || WORDS == 2 || WORDS == 4, "what one instruction takes");
#if defined(__HIP_DEVICE_COMPILE__)
#if defined(__gfx1100__) || defined(__gfx1200__) || defined(__gfx1201__)
    constexpr int kFlags = 0x31004000;  // a format of 32 bits, which raw loads ignore; bounds of the raw kind
#else
    constexpr int kFlags = 0x27000;
#endif
    const auto resource = __builtin_amdgcn_make_buffer_rsrc(const_cast<void*>(base), 0, num_bytes, kFlags);
    if constexpr (WORDS == 4) {
      const auto loaded = __builtin_amdgcn_raw_buffer_load_b128(resource, offset, 0, 0);
      __builtin_memcpy(words, &loaded, 16);
    } else if constexpr (WORDS == 2) {
      const auto loaded = __builtin_amdgcn_raw_buffer_load_b64(resource, offset, 0, 0);
      __builtin_memcpy(words, &loaded, 8);
    } else {
      words[0] = __builtin_amdgcn_raw_buffer_load_b32(resource, offset, 0, 0);
    }
#endif
  }
};

}  // namespace
}  // namespace tiledmm::gpu

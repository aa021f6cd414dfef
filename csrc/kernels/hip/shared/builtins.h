// What the kernels for AMD's chips need of clang's builtins beyond platform/.
#pragma once

#include "platform/gpu.h"

namespace tiledmm::gpu {
namespace {

// A window of global memory, the same for all lanes of a warp, whose loads the hardware bounds: what lies beyond its
// end is read as zero, word by word of 4 bytes, and costs no instruction. Loads take 4, 8 or 16 bytes at a multiple of
// 4, `offset` bytes from its start; `more` bytes, the same for all lanes, may not count for the bounds (LLVM,
// IntrinsicsAMDGPU.td, raw.buffer.load).
struct Buffer {
  const void* base;
  uint32_t num_bytes;

  template <int WORDS>
  TILEDMM_DEVICE void load([[maybe_unused]] uint32_t offset, [[maybe_unused]] uint32_t* words,
                           [[maybe_unused]] uint32_t more = 0) const {
    static_assert(WORDS == 1 || WORDS == 2 || WORDS == 4, "what one instruction takes");
#if defined(__HIP_DEVICE_COMPILE__)
#if defined(__gfx1100__) || defined(__gfx1200__) || defined(__gfx1201__)
    constexpr int kFlags = 0x31004000;  // a format of 32 bits, which raw loads ignore; bounds of the raw kind
#else
    constexpr int kFlags = 0x27000;
#endif
    const auto resource = __builtin_amdgcn_make_buffer_rsrc(const_cast<void*>(base), 0, num_bytes, kFlags);
    if constexpr (WORDS == 4) {
      const auto loaded = __builtin_amdgcn_raw_buffer_load_b128(resource, offset, more, 0);
      __builtin_memcpy(words, &loaded, 16);
    } else if constexpr (WORDS == 2) {
      const auto loaded = __builtin_amdgcn_raw_buffer_load_b64(resource, offset, more, 0);
      __builtin_memcpy(words, &loaded, 8);
    } else {
      words[0] = __builtin_amdgcn_raw_buffer_load_b32(resource, offset, more, 0);
    }
#endif
  }
};

// The compiler moves nothing across.
[[maybe_unused]] TILEDMM_DEVICE void keep_order() {
#if defined(__HIP_DEVICE_COMPILE__)
  __builtin_amdgcn_sched_barrier(0);
#endif
}

// Half `half` of both words, of 16 bits each, `even` first.
[[maybe_unused]] TILEDMM_DEVICE uint32_t pair_of(uint32_t even, uint32_t odd, int half) {
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_perm(odd, even, half ? 0x07060302 : 0x05040100);
#else
  return half ? even >> 16 | (odd & 0xffff0000) : (even & 0xffff) | odd << 16;
#endif
}

}  // namespace
}  // namespace tiledmm::gpu

// Asynchronous copies from global to shared memory (NVIDIA, sm_80 and later): a thread issues them, commits those since
// the last commit as a group, and waits until all but its PENDING newest groups have arrived. Others see them after a
// barrier behind that wait. PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy".
//
// The host executor moves the bytes when they are waited for, as late as a GPU might, so that a missing wait shows.
#pragma once

#include "platform/gpu.h"

namespace tiledmm::gpu {

#if defined(TILEDMM_HOST_GPU)
template <int BYTES>
void copy_async(void* smem, const void* from, int valid_bytes) {
  if (valid_bytes) host_gpu::access(host_gpu::Space::global_load, from, BYTES);
  host_gpu::copy_async(smem, from, BYTES, valid_bytes);
}
template <int BYTES>
void copy_async_once(void* smem, const void* from, int valid_bytes) {
  copy_async<BYTES>(smem, from, valid_bytes);
}
inline uint64_t cache_policy(bool) { return 0; }
template <int BYTES>
void copy_async_by(uint64_t, void* smem, const void* from, int valid_bytes) {
  copy_async<BYTES>(smem, from, valid_bytes);
}
template <int BYTES>
void copy_async_if(bool pred, void* smem, const void* from) {
  if (pred) copy_async<BYTES>(smem, from, BYTES);
}
template <int BYTES>
void copy_async_or_zero(bool pred, void* smem, const void* from) {
  copy_async<BYTES>(smem, from, pred ? BYTES : 0);
}
inline void commit_copies() { host_gpu::commit_copies(); }
template <int PENDING>
void wait_copies() {
  host_gpu::wait_copies(PENDING);
}
#else
// 4, 8 or 16 bytes, both addresses aligned to that; those beyond valid_bytes are zero, and are not read.
template <int BYTES>
TILEDMM_DEVICE void copy_async(void* smem, const void* from, int valid_bytes) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "what the instruction takes");
  const auto address = uint32_t(__cvta_generic_to_shared(smem));
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(valid_bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(BYTES), "r"(valid_bytes)
                 : "memory");
  }
}

// For copy_async_by: what nobody reads again soon the second-level cache gives up before anything else.
TILEDMM_DEVICE uint64_t cache_policy(bool is_read_once) {
#if __CUDA_ARCH__ >= 900
  // createpolicy.fractional with 1.0; a constant costs no registers (CUTLASS, TMA::CacheHintSm90).
  return is_read_once ? 0x12F0000000000000 : 0x1000000000000000;
#else
  uint64_t first, normal;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(normal));
  return is_read_once ? first : normal;
#endif
}

// copy_async under a policy of the second-level cache.
template <int BYTES>
TILEDMM_DEVICE void copy_async_by(uint64_t policy, void* smem, const void* from, int valid_bytes) {
  const auto address = uint32_t(__cvta_generic_to_shared(smem));
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(address), "l"(from),
                 "r"(valid_bytes), "l"(policy)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], %2, %3, %4;" ::"r"(address), "l"(from),
                 "n"(BYTES), "r"(valid_bytes), "l"(policy)
                 : "memory");
  }
}
template <int BYTES>
TILEDMM_DEVICE void copy_async_once(void* smem, const void* from, int valid_bytes) {
  copy_async_by<BYTES>(cache_policy(true), smem, from, valid_bytes);
}

// Without a branch, and without computing the addresses under a condition.
template <int BYTES>
TILEDMM_DEVICE void copy_async_if(bool pred, void* smem, const void* from) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "what the instruction takes");
  const auto address = uint32_t(__cvta_generic_to_shared(smem));
  if constexpr (BYTES == 16) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p cp.async.cg.shared.global [%0], [%1], 16;\n}" ::"r"(address),
        "l"(from), "r"(int(pred))
        : "memory");
  } else {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p cp.async.ca.shared.global [%0], [%1], %3;\n}" ::"r"(address),
        "l"(from), "r"(int(pred)), "n"(BYTES)
        : "memory");
  }
}

// All of the bytes, or zeros: fewer instructions than a number of bytes takes.
template <int BYTES>
TILEDMM_DEVICE void copy_async_or_zero(bool pred, void* smem, const void* from) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "what the instruction takes");
  const auto address = uint32_t(__cvta_generic_to_shared(smem));
  if constexpr (BYTES == 16) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.b32 p, %2, 0;\ncp.async.cg.shared.global [%0], [%1], 16, p;\n}" ::"r"(address),
        "l"(from), "r"(int(pred))
        : "memory");
  } else {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.b32 p, %2, 0;\ncp.async.ca.shared.global [%0], [%1], %3, p;\n}" ::"r"(address),
        "l"(from), "r"(int(pred)), "n"(BYTES)
        : "memory");
  }
}

TILEDMM_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
TILEDMM_DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
#endif

}  // namespace tiledmm::gpu

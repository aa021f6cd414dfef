// Memory that one block of a kernel writes for another one, which reads it later in the same kernel.
//
// The reader waits. That ends where every block waits for a block of a lower number alone, and for what that one does
// before it waits itself: blocks start in the order of their numbers. Source: Merrill and Garland, Single-pass Parallel
// Prefix Scan with Decoupled Look-back, NVIDIA 2016, whose scans count on the same order.
#pragma once

#include "platform/gpu.h"

namespace tiledmm::gpu {
namespace {

// What all threads of the block have written is there for whoever waits for the flag, which was 0.
TILEDMM_DEVICE void hand_over(uint32_t* flag) {
#if defined(__CUDA_ARCH__)
  __threadfence();
#endif
  block_barrier();
  if (thread_idx() != 0) return;
#if defined(__CUDA_ARCH__)
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(1) : "memory");
#else
  store_global(flag, 1u);
#endif
}

TILEDMM_DEVICE void wait_for_handover(uint32_t* flag) {
  if (thread_idx() == 0) {
#if defined(__CUDA_ARCH__)
    uint32_t value;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    } while (value == 0);
#elif defined(TILEDMM_HOST_GPU)
    if (load_global(flag) == 0) host_gpu::fail("a block would wait for one that starts later");
#endif
  }
  block_barrier();
}

constexpr int kClearThreads = 128;

// Before the kernel whose blocks use the flags, which may start early.
TILEDMM_KERNEL(kClearThreads, 1)
clear_flags(uint32_t* flags, int64_t count) {
  let_later_kernels_start();
  const int64_t idx = block_idx() * kClearThreads + thread_idx();
  if (idx < count) store_global(flags + idx, 0u);
}

}  // namespace
}  // namespace tiledmm::gpu

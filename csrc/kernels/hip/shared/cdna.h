// What AMD's CDNA chips (gfx90a, gfx942, gfx950) have beyond gpu.h: loads whose bounds the hardware checks, and a say
// in the order of instructions. One builtin of clang, one function. Elsewhere TILEDMM_IS_CDNA is not defined.
//
// Sources: AMD, "Instinct MI300 (CDNA3) Instruction Set Architecture", s_waitcnt, s_setprio, "Memory Buffer
// Instructions"; LLVM, "User Guide for AMDGPU Backend".
#pragma once

#include "platform/gpu.h"

#if defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__)
#define TILEDMM_IS_CDNA
#if !__has_builtin(__builtin_amdgcn_make_buffer_rsrc)
#error "CDNA's kernels need ROCm 7 or clang 20, or later ones"
#endif

namespace tiledmm::gpu {

using Buffer = __amdgpu_buffer_rsrc_t;

inline constexpr int kRawWords = 0x27000;  // four bytes an element, no stride

// Memory of `num_bytes` from `base` on, which all lanes have in common. A load from beyond its end reads zeros and
// touches no memory. None may be partly beyond.
TILEDMM_DEVICE Buffer make_buffer(const void* base, uint32_t num_bytes) {
  return __builtin_amdgcn_make_buffer_rsrc(const_cast<void*>(base), 0, int(num_bytes), kRawWords);
}
inline constexpr uint32_t kOutside = ~0u;  // an offset beyond the end of every buffer

// 16 bytes, at a multiple of 4.
TILEDMM_DEVICE Vector16 load_vector(Buffer buffer, uint32_t offset) {
  return __builtin_bit_cast(Vector16, __builtin_amdgcn_raw_buffer_load_b128(buffer, int(offset), 0, 0));
}
template <class T>
TILEDMM_DEVICE T load_element(Buffer buffer, uint32_t offset) {
  if constexpr (sizeof(T) == 2) {
    return __builtin_bit_cast(T, __builtin_amdgcn_raw_buffer_load_b16(buffer, int(offset), 0, 0));
  } else if constexpr (sizeof(T) == 4) {
    return __builtin_bit_cast(T, __builtin_amdgcn_raw_buffer_load_b32(buffer, int(offset), 0, 0));
  } else {
    return __builtin_bit_cast(T, __builtin_amdgcn_raw_buffer_load_b64(buffer, int(offset), 0, 0));
  }
}

// ---- gfx950 alone: elsewhere templates can name them
// A buffer for copy_vector().
using Descriptor = uint32_t __attribute__((ext_vector_type(4)));
TILEDMM_DEVICE Descriptor describe_buffer(const void* base, uint32_t num_bytes) {
  const auto address = reinterpret_cast<uint64_t>(base);
  return {uint32_t(address), uint32_t(address >> 32), num_bytes, kRawWords};  // addresses have 48 bits
}
// Copies 16 bytes of each lane, at a multiple of 4, straight to shared memory: the lanes' follow each other from `to`
// on, which they have in common. What is beyond the buffer's end becomes zeros. Done when wait_for_copies() returns.
TILEDMM_DEVICE void copy_vector(Descriptor buffer, uint32_t offset, char* to);
// 8 bytes of each lane, after 4 x 4 elements of 16 bits of each group of 16 lanes were turned: lane i gives where
// elements 4 (i % 4) and on of row i / 4 are, and gets element i of the four rows.
TILEDMM_DEVICE uint64_t load_turned(const char* from);
#if defined(__gfx950__)
TILEDMM_DEVICE void copy_vector(Descriptor buffer, uint32_t offset, char* to) {
  // Behind clang's builtin all copies are waited for before anything is loaded from shared memory: assembly.
  const auto place = uint32_t(reinterpret_cast<uintptr_t>((__attribute__((address_space(3))) char*)to));
  // The instruction after M0's is written must not read it.
  asm volatile("s_nop 0\n\tbuffer_load_dwordx4 %0, %1, 0 offen lds" ::"v"(offset), "s"(buffer), "{m0}"(place)
               : "memory");
}
TILEDMM_DEVICE uint64_t load_turned(const char* from) {
  using Elements = short __attribute__((ext_vector_type(4)));
  auto* shared = (__attribute__((address_space(3))) Elements*)const_cast<char*>(from);
  return __builtin_bit_cast(uint64_t, __builtin_amdgcn_ds_read_tr16_b64_v4i16(shared));
}
#endif

// Elements 0 of two pairs of 16 bits as a pair, or elements 1.
template <int ELEMENT>
TILEDMM_DEVICE uint32_t pair_up(uint32_t first, uint32_t second) {
  return __builtin_amdgcn_perm(second, first, ELEMENT == 0 ? 0x05040100 : 0x07060302);
}

// The word that begins `bits` after the beginning of `low`, which `high` follows.
TILEDMM_DEVICE uint32_t shift_words(uint32_t high, uint32_t low, uint32_t bits) {
  return __builtin_amdgcn_alignbit(high, low, bits);
}

// ---- The order of instructions
// The compiler moves none across.
TILEDMM_DEVICE void schedule_barrier() { __builtin_amdgcn_sched_barrier(0); }
// What this warp asked of shared memory is done.
TILEDMM_DEVICE void wait_for_shared() { __builtin_amdgcn_s_waitcnt(0xc07f); }
// What this warp asked of global memory is done, but for the last LEFT of them.
template <int LEFT = 0>
TILEDMM_DEVICE void wait_for_copies() {
  static_assert(LEFT < 16, "the lower bits of the counter");
  __builtin_amdgcn_s_waitcnt(0x0f70 + LEFT);
}
// Of two warps of a SIMD that can go on, the one of higher priority does.
template <int PRIORITY>
TILEDMM_DEVICE void set_priority() {
  __builtin_amdgcn_s_setprio(PRIORITY);
}
// The warps of a block meet, whatever they have outstanding: keeps them in step, and hands nothing over.
TILEDMM_DEVICE void phase_barrier() {
  schedule_barrier();
  __builtin_amdgcn_s_barrier();
  schedule_barrier();
}

}  // namespace tiledmm::gpu

#endif

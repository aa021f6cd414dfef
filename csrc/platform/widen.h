// Numbers of 8 bits that become wider ones, exactly, on their way to a product.
#pragma once

#include "platform/gpu.h"

namespace tiledmm {
namespace gpu {

// An element of e4m3 or e5m2, as the problem says.
struct AnyFloat8 {
  uint8_t bits;
};

}  // namespace gpu

namespace {

template <>
struct ElementTraits<gpu::AnyFloat8> {
  using Acc = float;
};

}  // namespace
}  // namespace tiledmm

namespace tiledmm::gpu {

// Two numbers of fp16, each times 256.
TILEDMM_DEVICE uint32_t times_256(uint32_t halves) {
#if defined(__CUDACC__) && !defined(__HIP__)
  __half2 pair;
  __builtin_memcpy(&pair, &halves, 4);
  pair = __hmul2(pair, __floats2half2_rn(256, 256));
  __builtin_memcpy(&halves, &pair, 4);
  return halves;
#else
  const float first = as_acc(Half{uint16_t(halves)}) * 256, second = as_acc(Half{uint16_t(halves >> 16)}) * 256;
  return rounded_to<Half>(first).bits | uint32_t(rounded_to<Half>(second).bits) << 16;
#endif
}

// Two numbers of e4m3, the first one in the lower byte, as elements of 16 bits, which hold them exactly.
template <class T>
TILEDMM_DEVICE uint32_t widened_e4m3(uint32_t pair) {
  static_assert(sizeof(T) == 2);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(uint16_t(pair)));
  if constexpr (std::is_same_v<T, Half>) {
    return halves;
  } else {
    uint32_t wide;
    const float first = as_acc(Half{uint16_t(halves)}), second = as_acc(Half{uint16_t(halves >> 16)});
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(wide) : "f"(second), "f"(first));
    return wide;
  }
#else
  const float first = e4m3_to_float(pair & 0xff), second = e4m3_to_float(pair >> 8);
  return rounded_to<T>(first).bits | uint32_t(rounded_to<T>(second).bits) << 16;
#endif
}

// The same of either dtype of 8 bits. By its bits a number of e5m2 is one of fp16, and one of e4m3 is 2^8 times what it
// then is; NaN of e4m3 gets an exponent of ones alone.
template <class T>
TILEDMM_DEVICE uint32_t widened_float8(bool is_e5m2, uint32_t pair) {
  const uint32_t halves = (pair & 0xff) << 8 | (pair & 0xff00) << 16;
  const uint32_t magnitudes = halves & 0x7f007f00, nans = (magnitudes + 0x01000100) & 0x80008000;
  const uint32_t of_e4m3 = (halves & 0x80008000) | (magnitudes | nans) >> 1;
  if constexpr (std::is_same_v<T, Half>) {
    if (is_e5m2) return halves;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    return widened_e4m3<T>(pair);
#else
    return times_256(of_e4m3);
#endif
  } else {
    static_assert(std::is_same_v<T, BFloat16>);
    const uint32_t bits = is_e5m2 ? halves : of_e4m3;
    const float factor = is_e5m2 ? 1 : 256;
    const float first = as_acc(Half{uint16_t(bits)}) * factor, second = as_acc(Half{uint16_t(bits >> 16)}) * factor;
    return bits_of(first) >> 16 | (bits_of(second) & 0xffff0000);  // nothing is cut off
  }
}

// A number of 8 bits in fp32.
TILEDMM_DEVICE float as_acc(AnyFloat8 value, DType dtype) {
  return dtype == DType::e5m2 ? as_acc(Half{uint16_t(value.bits << 8)}) : e4m3_to_float(value.bits);
}
// Others say their dtype themselves.
template <class T>
TILEDMM_DEVICE Acc<T> as_acc(T value, DType) {
  return as_acc(value);
}

}  // namespace tiledmm::gpu

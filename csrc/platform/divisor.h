// Division by a number that the host knows, as a multiplication: the instructions of a division arrive from memory
// before a kernel's first copy can start.
//
// Source: Granlund and Montgomery, Division by Invariant Integers using Multiplication, 1994.
#pragma once

#include "platform/gpu.h"

namespace tiledmm::gpu {
namespace {

// Divides 0 to 2^31 - 1 by 1 to 2^31 - 1. The multiplier is 2^shift / value, rounded up: it has 32 bits, and is close
// enough where value <= 2^(shift - 31).
struct Divisor {
  int value;
  uint32_t multiplier;
  int shift;

  Divisor() = default;
  explicit Divisor(int64_t value) : value(int(value)), shift(31) {
    while (int64_t(1) << (shift - 31) < value) ++shift;
    multiplier = uint32_t(((uint64_t(1) << shift) + uint64_t(value) - 1) / uint64_t(value));
  }
  TILEDMM_DEVICE int quotient(int number) const { return int(uint64_t(uint32_t(number)) * multiplier >> shift); }
};

}  // namespace
}  // namespace tiledmm::gpu

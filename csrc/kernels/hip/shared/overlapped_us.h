// The time of what overlaps, for the cost models of AMD's kernels.
#pragma once

namespace tiledmm {

// Microseconds of two things at once: the longer one's, and a little of the other's, so that where memory decides, the
// tile is chosen that multiplies less that is empty.
inline double overlapped_us(double one, double other) { return one > other ? one + 0.01 * other : other + 0.01 * one; }

}  // namespace tiledmm

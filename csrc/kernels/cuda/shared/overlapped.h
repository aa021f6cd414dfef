// What the models of time share.
#pragma once

#include <cmath>

namespace tiledmm {

// The time of three things that go on side by side and wait for each other: about the longest, more where others take
// as long.
inline double overlapped(double a, double b, double c) {
  const auto fourth_power = [](double x) { return x * x * x * x; };
  return std::sqrt(std::sqrt(fourth_power(a) + fourth_power(b) + fourth_power(c)));
}

}  // namespace tiledmm

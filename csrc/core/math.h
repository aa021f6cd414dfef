// Integer helpers, defined once. Internal linkage: the CPU rungs are compiled for several instruction sets.
#pragma once

#include <cstdint>

namespace tiledmm {
namespace {

[[maybe_unused]] constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
[[maybe_unused]] constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
[[maybe_unused]] constexpr int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
[[maybe_unused]] constexpr int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace
}  // namespace tiledmm

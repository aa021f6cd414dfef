// What plans know of AMX's tiles; the instructions themselves: tile.h.
#pragma once

#include <cstdint>

namespace tiledmm {
namespace {

inline constexpr int64_t kAmxStep = 32;   // elements of k that a tile instruction takes
inline constexpr int64_t kAmxStrip = 32;  // rows and columns of C that the tiles hold

}  // namespace
}  // namespace tiledmm

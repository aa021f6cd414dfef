// Kernels of many tiles are compiled in parts, side by side: instances.cu once for each Instance of the kernel's table,
// whose index is the macro TILEDMM_INSTANCE.
#pragma once

#include <iterator>
#include <type_traits>

#include "core/problem.h"

namespace tiledmm {

// An instance is a part of the tiles that a kernel has for a dtype: those from `first` up to `end`. is_wide: the tiles
// counted are those whose C has fp32.
struct Instance {
  DType dtype;
  int first, end;
  bool is_wide = false;
};

// The index of the one that holds a tile; -1: there is none.
template <int COUNT>
constexpr int find_instance(const Instance (&instances)[COUNT], DType dtype, int tile, bool is_wide = false) {
  for (int i = 0; i < COUNT; ++i) {
    const Instance& own = instances[i];
    if (own.dtype == dtype && own.is_wide == is_wide && own.first <= tile && tile < own.end) return i;
  }
  return -1;
}

// Whether they hold all tiles of a dtype.
template <int COUNT>
constexpr bool hold_all(const Instance (&instances)[COUNT], DType dtype, int num_tiles, bool is_wide = false) {
  for (int tile = 0; tile < num_tiles; ++tile) {
    if (find_instance(instances, dtype, tile, is_wide) < 0) return false;
  }
  return true;
}

// What visit returns for std::integral_constant<int, number>, of the numbers from FIRST up to END; else `none`.
template <int FIRST, int END, class Result, class Visit>
Result visit_number(int number, Result none, const Visit& visit) {
  if constexpr (FIRST < END) {
    if (number == FIRST) return visit(std::integral_constant<int, FIRST>{});
    return visit_number<FIRST + 1, END>(number, none, visit);
  }
  return none;
}

// The same for the index of the instance that holds a tile.
template <int COUNT, class Result, class Visit>
Result visit_instance(const Instance (&instances)[COUNT], DType dtype, int tile, Result none, const Visit& visit,
                      bool is_wide = false) {
  return visit_number<0, COUNT>(find_instance(instances, dtype, tile, is_wide), none, visit);
}

}  // namespace tiledmm

// Where one block sums the chunks of k one after the other (core/summation.h), and its registers are full of sums: the
// total of the chunks so far is in C, which in fp64 has the accumulators' type. Each lane reads and writes the elements
// of its own sums alone.
#pragma once

#include "platform/gpu.h"
#include "platform/mma_layout.h"

namespace tiledmm::gpu {
namespace {

// Two neighbours in a row of C.
template <class A>
struct alignas(2 * sizeof(A)) Pair {
  A first, second;
};

// The elements of C that belong to a lane's sums of a warp's tile. C holds the total of the chunks before this one.
template <class A>
struct TotalInC {
  A* first;
  int64_t stride_m, stride_n;
  int rows, cols;        // of C, from the first element on
  bool are_pairs_whole;  // pairs of neighbours in a row lie inside, side by side and aligned

  // The total of the block's tile at (row, col), whose element at (lane_row, lane_col) is the lane's first one.
  TILEDMM_DEVICE TotalInC(const GemmProblem& gemm, int64_t row, int64_t col, int size_m, int size_n, int lane_row,
                          int lane_col)
      : stride_m(gemm.stride_cm), stride_n(gemm.stride_cn) {
    first = static_cast<A*>(gemm.c) + (row + lane_row) * stride_m + (col + lane_col) * stride_n;
    rows = int(min_of(gemm.m - row, size_m)) - lane_row;
    cols = int(min_of(gemm.n - col, size_n)) - lane_col;
    are_pairs_whole = row + size_m <= gemm.m && col + size_n <= gemm.n && stride_n == 1 && stride_m % 2 == 0 &&
                      reinterpret_cast<uintptr_t>(gemm.c) % 16 == 0;
  }
  template <bool ARE_WHOLE>
  TILEDMM_DEVICE Pair<A> load(int row, int col) const {
    const A* from = first + row * stride_m + col * stride_n;
    if constexpr (ARE_WHOLE) return load_global(reinterpret_cast<const Pair<A>*>(from));
    return {row < rows && col < cols ? load_global(from) : 0,
            row < rows && col + 1 < cols ? load_global(from + stride_n) : 0};
  }
  template <bool ARE_WHOLE>
  TILEDMM_DEVICE void store(int row, int col, Pair<A> pair) const {
    A* to = first + row * stride_m + col * stride_n;
    if constexpr (ARE_WHOLE) return store_global(reinterpret_cast<Pair<A>*>(to), pair);
    if (row < rows && col < cols) store_global(to, pair.first);
    if (row < rows && col + 1 < cols) store_global(to + stride_n, pair.second);
  }
};

}  // namespace
}  // namespace tiledmm::gpu

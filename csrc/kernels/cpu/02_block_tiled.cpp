// Rung 02, block_tiled: C in block tiles, the tiles of A and B copied near before they are used.
//
// Since rung 01: a tile of A and a tile of B, converted to the accumulator's type and padded with zeros at the edges,
// stay in the first-level cache for a whole block tile: each element that comes from memory is used kBlock times.
// The inner loop runs along the contiguous n of the tile, so the compiler can vectorise it. Block tiles are spread over
// threads. Still one load and one store of C's tile for every multiply-add: rung 04 keeps C in registers.
// Figures behind the tile size: three tiles of 64 x 64 fp32 are 48 KiB; see docs/ladder.md.
#include <type_traits>

#include "core/executor.h"
#include "core/plan.h"
#include "kernels/cpu/shared/parallel.h"
#include "platform/element.h"

namespace tiledmm::cpu {
namespace {

struct Config {
  static constexpr int64_t kBlock = 64;  // block_m = block_n = block_k
};

// dst[r][c] = src(row + r, col + c), zero outside of rows x cols.
template <class T>
void load_block_tile(Acc<T> (*dst)[Config::kBlock], const T* src, int64_t stride_row, int64_t stride_col, int64_t rows,
                     int64_t cols) {
  for (int64_t r = 0; r < Config::kBlock; ++r) {
    for (int64_t c = 0; c < Config::kBlock; ++c) {
      const bool pred = r < rows && c < cols;
      dst[r][c] = pred ? to_acc(src[r * stride_row + c * stride_col]) : Acc<T>(0);
    }
  }
}

template <class A>
void multiply(A (*acc)[Config::kBlock], const A (*tile_a)[Config::kBlock], const A (*tile_b)[Config::kBlock],
              int64_t depth) {
  for (int64_t i = 0; i < Config::kBlock; ++i) {
    for (int64_t p = 0; p < depth; ++p) {
      const A a = tile_a[i][p];
      for (int64_t j = 0; j < Config::kBlock; ++j) acc[i][j] += a * tile_b[p][j];
    }
  }
}

template <class A, class B>
void block_tile(const GemmProblem& problem, int64_t row, int64_t col) {
  constexpr int64_t kBlock = Config::kBlock;
  alignas(64) Acc<A> tile_a[kBlock][kBlock], tile_b[kBlock][kBlock], acc[kBlock][kBlock] = {};
  const A* a = static_cast<const A*>(problem.a) + row * problem.stride_am;
  const B* b = static_cast<const B*>(problem.b) + col * problem.stride_bn;
  const int64_t rows = min_of(kBlock, problem.m - row), cols = min_of(kBlock, problem.n - col);
  for (int64_t p = 0; p < problem.k; p += kBlock) {
    const int64_t depth = min_of(kBlock, problem.k - p);
    load_block_tile(tile_a, a + p * problem.stride_ak, problem.stride_am, problem.stride_ak, rows, depth);
    load_block_tile(tile_b, b + p * problem.stride_bk, problem.stride_bk, problem.stride_bn, depth, cols);
    multiply(acc, tile_a, tile_b, depth);
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) store_element(problem, row + i, col + j, acc[i][j]);
  }
}

}  // namespace

Status launch_block_tiled(const FoldedProblem& folded, const Plan&, const Executor& executor) {
  const GemmProblem& problem = folded.gemm;
  const int64_t tiles_m = ceil_div(problem.m, Config::kBlock), tiles_n = ceil_div(problem.n, Config::kBlock);
  visit_operands(problem, [&](auto* a, auto* b) {
    using A = std::remove_pointer_t<decltype(a)>;
    using B = std::remove_pointer_t<decltype(b)>;
    parallel_for(executor, batch_size(problem) * tiles_m * tiles_n, [&](int64_t task_idx) {
      const int64_t tile = task_idx % (tiles_m * tiles_n);
      block_tile<A, B>(batch_item(problem, task_idx / (tiles_m * tiles_n)), tile / tiles_n * Config::kBlock,
                       tile % tiles_n * Config::kBlock);
    });
  });
  return Status::ok;
}

}  // namespace tiledmm::cpu

// Rung 01, naive: one thread for each element of C, a loop over k.
//
// Every multiply-add reads two elements from global memory, so the ratio of arithmetic to memory traffic is that of a
// dot product: 2 flops to 8 bytes of fp32. The lanes of a warp lie along n: of a row-major B they read neighbours, of A
// all the same element. What follows reads each element fewer times. Source: ROCm documentation, "Tiling and reuse".
#include "kernels/gpu/kernels.h"
#include "platform/block_tile.h"
#include "platform/scaled_sums.h"

namespace tiledmm::gpu {
namespace {

struct NaiveConfig {
  static constexpr int kBlockM = 8, kBlockN = 32;
  static constexpr int kThreads = kBlockM * kBlockN;
  static_assert(kBlockN % 32 == 0, "a warp reads 32 neighbours of B");
};

template <class A, class B, class C, bool IS_GROUPED>
TILEDMM_KERNEL(NaiveConfig::kThreads, 1)
naive(FoldedProblem problem) {
  for (int64_t batch_idx = block_idx_y(); batch_idx < problem.batch_size; batch_idx += num_blocks_y()) {
    const auto [gemm, tile] =
        block_work<NaiveConfig::kBlockM, NaiveConfig::kBlockN, IS_GROUPED, sizeof(A) == 1>(problem, batch_idx);
    const int64_t row = tile.row + thread_idx() / NaiveConfig::kBlockN;
    const int64_t col = tile.col + thread_idx() % NaiveConfig::kBlockN;
    if (row >= gemm.m || col >= gemm.n) continue;
    const A* a = static_cast<const A*>(gemm.a) + row * gemm.stride_am;
    const B* b = static_cast<const B*>(gemm.b) + col * gemm.stride_bn;
    Acc<C> acc = 0;
    [[maybe_unused]] Acc<C> total = 0;  // of operands of 8 bits
    for (int64_t k = 0; k < gemm.k; ++k) {
      acc = multiply_add(as_acc(load_global(a), gemm.dtype_a), as_acc(load_global(b), gemm.dtype_b), acc);
      a += gemm.stride_ak;
      b += gemm.stride_bk;
      if constexpr (sizeof(A) == 1) {
        if (ends_block(k + 1, gemm.k)) promote(total, acc, factor_at(gemm, Scaling::blocks, k, row, col));
      }
    }
    if constexpr (sizeof(A) == 1) acc = total * factor_at(gemm, Scaling::rows, 0, row, col);
    store_element<C>(gemm, row, col, acc);
  }
}

}  // namespace

Status launch_naive(const FoldedProblem& problem, const Plan&, const Executor& executor) {
  return visit_elements(problem.gemm, [&](auto* a, auto* b, auto* c) {
    using A = std::remove_pointer_t<decltype(a)>;
    using B = std::remove_pointer_t<decltype(b)>;
    using C = std::remove_pointer_t<decltype(c)>;
    return launch_kernel(is_grouped(problem.gemm) ? naive<A, B, C, true> : naive<A, B, C, false>,
                         num_tiles(problem, NaiveConfig::kBlockM, NaiveConfig::kBlockN), num_batch_blocks(problem),
                         NaiveConfig::kThreads, 0, executor, problem);
  });
}

}  // namespace tiledmm::gpu

// Rung 03, row_register_tiled: only one operand passes through shared memory; the other goes straight to registers.
//
// A thread owns one column of C and U rows of it. For S steps of k it holds its column of B in registers, U uses for
// each element; the S x U tile of A lies in shared memory, where all lanes read the same element at the same time.
// Compared with rung 02 a multiply-add reads one element of shared memory, and four at a time, instead of two; C is
// written coalesced. It is the source's linear layer: B is the weight (out_features, in_features), a thread reads
// S neighbours of its row, and the bias is the accumulators' first value. Source: slides "Register Tiling Matrix
// Multiplication" after Illinois ECE 508 lecture 4. There, a block has one row of the input, which leaves the weight
// without reuse; here it has U.
#include "kernels/gpu/kernels.h"
#include "platform/block_tile.h"

namespace tiledmm::gpu {
namespace {

template <int S_, int U_>
struct RowRegisterConfig {
  static constexpr int S = S_;  // steps of k in registers
  static constexpr int U = U_;  // outputs of a thread
  static constexpr int kThreads = 128;
  static_assert(U % 4 == 0, "rows are read four at a time");
  static_assert(S % 8 == 0, "whole 16 bytes of 16-bit elements");
  static_assert(S * U <= 4 * kThreads, "a thread stages at most four elements of A");
};

template <class Config, class T>
struct RowRegisterShared {
  alignas(16) Acc<T> a[Config::S][Config::U];
};

// S neighbours along k of one column of B, 16 bytes at a time where they lie together.
template <int S, class T>
TILEDMM_DEVICE void load_row(const Operand<T>& b, int64_t col, int64_t k, Acc<T> (&row)[S]) {
  constexpr int kElements = Chunk<T>::kElements;
  if (b.is_vectorised && b.stride_k == 1 && col < b.size_mn && k + S <= b.size_k) {
    const T* from = b.base + col * b.stride_mn + k;
    TILEDMM_UNROLL for (int s = 0; s < S; s += kElements) {
      Chunk<T> chunk;
      chunk.vector = load_global(reinterpret_cast<const Vector16*>(from + s));
      TILEDMM_UNROLL for (int e = 0; e < kElements; ++e) row[s + e] = as_acc(chunk.elements[e]);
    }
  } else {
    TILEDMM_UNROLL for (int s = 0; s < S; ++s) row[s] = as_acc(load_or_zero(b, col, opaque(k + s)));
  }
}

template <class Config, class T>
TILEDMM_KERNEL(Config::kThreads, 1)
row_register_tiled(FoldedProblem problem) {
  constexpr int S = Config::S, U = Config::U;
  auto& smem = block_shared<RowRegisterShared<Config, T>>();
  for (int64_t batch_idx = block_idx_y(); batch_idx < problem.batch_size; batch_idx += num_blocks_y()) {
    const GemmProblem gemm = item_of(problem, batch_idx);
    const TilePlace tile = tile_place<U, Config::kThreads>(gemm);
    const auto a = operand_a<T>(gemm), b = operand_b<T>(gemm);
    const int64_t col = tile.col + thread_idx();
    Acc<T> acc[U];
    TILEDMM_UNROLL for (int u = 0; u < U; ++u) acc[u] = load_bias<T>(gemm, tile.row + u, col);
    for (int64_t k = 0; k < gemm.k; k += S) {
      Acc<T> row[S];
      load_row<S>(b, col, k, row);
      for (int idx = thread_idx(); idx < S * U; idx += Config::kThreads) {
        store_shared(&smem.a[idx % S][idx / S], as_acc(load_or_zero(a, tile.row + idx / S, k + idx % S)));
      }
      block_barrier();  // the tile is whole
      TILEDMM_UNROLL for (int s = 0; s < S; ++s) {
        TILEDMM_UNROLL for (int u = 0; u < U; ++u) acc[u] = multiply_add(load_shared(&smem.a[s][u]), row[s], acc[u]);
      }
      block_barrier();  // nobody reads it any more
    }
    const int64_t row = opaque_uniform(tile.row);
    TILEDMM_UNROLL for (int u = 0; u < U; ++u) store_activated<T>(gemm, row + u, col, acc[u]);
  }
}

}  // namespace

Status launch_row_register_tiled(const FoldedProblem& problem, const Plan&, const Executor& executor) {
  using Config = RowRegisterConfig<16, 16>;
  return visit_dtype(problem.gemm.dtype_a, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    return launch_kernel(row_register_tiled<Config, T>, num_tiles(problem.gemm, Config::U, Config::kThreads),
                         num_batch_blocks(problem), Config::kThreads, sizeof(RowRegisterShared<Config, T>), executor,
                         problem);
  });
}

}  // namespace tiledmm::gpu

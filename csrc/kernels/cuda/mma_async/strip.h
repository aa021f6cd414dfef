// The end of a kernel by matrix instructions: sums of a warp on their way from shared memory to C.
#pragma once

#include "platform/epilogue.h"

namespace tiledmm::gpu {
namespace {

// 16 bytes as elements of V.
template <class V>
union VectorOf {
  static constexpr int kElements = 16 / int(sizeof(V));
  Vector16 vector;
  V elements[kElements];
};

// Rows of a warp's tile on their way from registers to global memory, as WarpStrip, but 16 bytes at a time.
template <class A, int ROWS, int COLS>
struct Strip {
  static constexpr int kRows = ROWS, kPad = 8;
  alignas(16) A acc[kRows][COLS + kPad];

  // C = activation(alpha * acc + beta * bias), of elements Asked; AnyElement: of fp32. All lanes have written their
  // part.
  template <class Asked>
  TILEDMM_DEVICE void store(const GemmProblem& problem, int64_t row, int64_t col) {
    using Out = std::conditional_t<std::is_same_v<Asked, AnyElement>, A, Asked>;
    using Values = VectorOf<A>;
    using Outs = VectorOf<Out>;
    constexpr int kVector = Outs::kElements;
    const int lane = opaque(thread_idx() % kWarpSize);  // else the addresses are computed ahead of the first copy
    warp_barrier();
    if (!is_plain(problem)) {
      TILEDMM_NO_UNROLL for (int idx = lane; idx < kRows * COLS; idx += kWarpSize) {
        const int r = idx / COLS, c = idx % COLS;
        const A sum = blended<Asked>(problem, row + r, col + c, load_shared(&acc[r][c]));
        store_shared(&acc[r][c],
                     problem.activation == Activation::none ? sum : activated<Asked>(problem.activation, sum));
      }
      warp_barrier();
    }
    Out* to = static_cast<Out*>(problem.c) + row * problem.stride_cm + col * problem.stride_cn;
    const int rows = int(min_of(problem.m - row, kRows)), cols = int(min_of(problem.n - col, COLS));
    const bool is_vectorised = problem.stride_cn == 1 && problem.stride_cm * int64_t(sizeof(Out)) % 16 == 0 &&
                               reinterpret_cast<uintptr_t>(to) % 16 == 0 && cols % kVector == 0;
    if (is_vectorised) {
      for_each<COLS / kVector>(lane, cols / kVector, rows, [&](int c, int r) {
        Outs outs;
        TILEDMM_UNROLL for (int v = 0; v < kVector; v += Values::kElements) {
          Values values;
          values.vector = load_shared(reinterpret_cast<const Vector16*>(&acc[r][c * kVector + v]));
          TILEDMM_UNROLL for (int e = 0; e < Values::kElements; ++e) {
            outs.elements[v + e] = rounded_to<Out>(values.elements[e]);
          }
        }
        store_global(reinterpret_cast<Vector16*>(to + r * problem.stride_cm + c * kVector), outs.vector);
      });
    } else {
      const auto store_one = [&](int r, int c) {
        store_global(to + r * problem.stride_cm + c * problem.stride_cn, rounded_to<Out>(load_shared(&acc[r][c])));
      };
      if (is_column_major(problem)) {
        for_each<kRows>(lane, rows, cols, [&](int r, int c) { store_one(r, c); });
      } else {
        for_each<COLS>(lane, cols, rows, [&](int c, int r) { store_one(r, c); });
      }
    }
    warp_barrier();
  }

 private:
  // Calls visit(close, far) for the places of a tile CLOSE wide: neighbouring lanes have neighbours. A lane's steps are
  // along the other dimension.
  template <int CLOSE, class Visit>
  TILEDMM_DEVICE static void for_each(int lane, int close_end, int far_end, const Visit& visit) {
    constexpr int kWidth = CLOSE < kWarpSize ? CLOSE : kWarpSize;
    static_assert(kWarpSize % kWidth == 0, "lanes fill whole rows");
    TILEDMM_NO_UNROLL for (int close = lane % kWidth; close < close_end; close += kWidth) {
      for (int far = lane / kWidth; far < far_end; far += kWarpSize / kWidth) visit(close, far);
    }
  }
};

}  // namespace
}  // namespace tiledmm::gpu

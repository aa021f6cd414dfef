// k of a few elements, of which the tiles would be nearly empty: vector instructions in the order of the tile
// instructions, row by row of C. This is the gradient of a layer's weight where the batch is one row.
#pragma once

#include "kernels/cpu/amx/plan.h"
#include "kernels/cpu/shared/pack.h"
#include "kernels/cpu/shared/simd.h"
#include "platform/element.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

// The arithmetic of the tile instructions: denormals are read and written as zero, no exception is raised or noted.
class TileArithmetic {
 public:
  TileArithmetic() : before_(_mm_getcsr()) {
    constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040, kMaskAll = 0x1f80;
    _mm_setcsr(kFlushToZero | kDenormalsAreZero | kMaskAll);
  }
  ~TileArithmetic() { _mm_setcsr(before_); }
  TileArithmetic(const TileArithmetic&) = delete;
  TileArithmetic& operator=(const TileArithmetic&) = delete;

 private:
  unsigned before_;
};

// The order of a batch's items that lie in the lanes of vectors (shared/items.h).
struct TileOrder {
  static constexpr int64_t kStep = kAmxStep;
  using Arithmetic = TileArithmetic;
};

// Rows [row, row + rows) of C. The even and the odd k are two chains of multiply-adds from +0, and their sum is added
// to +0. Never inlined: its arithmetic must stay between the two changes of MXCSR.
template <class T, int K>
__attribute__((noinline)) void multiply_short_k_of(const GemmProblem& item, int64_t row, int64_t rows) {
  using Vector = Reg<float>;
  constexpr int64_t kLanes = Simd<float>::kLanes, kBlock = 512;
  alignas(64) float near[K][kBlock];
  for (int64_t col = 0; col < item.n; col += kBlock) {
    const int64_t cols = min_of(kBlock, item.n - col);
    for (int p = 0; p < K; ++p) {
      const T* from = static_cast<const T*>(item.b) + p * item.stride_bk + col;
      for (int64_t j = 0; j < cols; j += kLanes) {
        store(near[p] + j, load_lanes<T, Fma<T, float>>(from + j, 1, item.stride_bk, cols - j, 1));
      }
    }
    for (int64_t i = row; i < row + rows; ++i) {
      const T* from = static_cast<const T*>(item.a) + i * item.stride_am;
      Vector a[K];
#pragma GCC unroll 4
      for (int p = 0; p < K; ++p) a[p] = broadcast(float(to_acc(from[p * item.stride_ak])));
      T* to = static_cast<T*>(item.c) + i * item.stride_cm + col;
      for (int64_t j = 0; j < cols; j += kLanes) {
        Vector chains[2] = {};
#pragma GCC unroll 4
        for (int p = 0; p < K; ++p) chains[p % 2] = multiply_add(a[p], load(near[p] + j), chains[p % 2]);
        store_converted(to + j, Vector{} + (chains[0] + chains[1]), min_of(kLanes, cols - j));
      }
    }
  }
}

template <class T>
void multiply_short_k(const GemmProblem& item, int64_t row, int64_t rows) {
  static_assert(kAmxShortK == 4, "an instance for each k");
  using Multiply = void (*)(const GemmProblem&, int64_t, int64_t);
  static constexpr Multiply kOfK[] = {&multiply_short_k_of<T, 1>, &multiply_short_k_of<T, 2>,
                                      &multiply_short_k_of<T, 3>, &multiply_short_k_of<T, 4>};
  const TileArithmetic arithmetic;
  kOfK[item.k - 1](item, row, rows);
}

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

// The end of the mfma kernel: sums of a warp on their way to C through shared memory, 16 rows at a time.
#pragma once

#include "kernels/hip/shared/cdna.h"
#include "platform/epilogue.h"

#if defined(TILEDMM_IS_CDNA)

namespace tiledmm::gpu {
namespace {

template <class A, int COLS>
struct CStrip {
  static constexpr int kRows = 16, kPad = 16 / int(sizeof(A));  // rows begin four banks apart
  alignas(16) A acc[kRows][COLS + kPad];
};

// Stores strips of the columns from `col` on. Lanes take neighbours in a row: 16 bytes of C each where its rows allow
// that and the strip is inside, else an element.
template <class Out, class A, int COLS>
class CWriter {
 public:
  using Strip = CStrip<A, COLS>;

  TILEDMM_DEVICE CWriter(const GemmProblem& gemm, int64_t col, int lane) : gemm_(gemm), col_(col), lane_(lane) {
    const bool is_aligned =
        gemm.stride_cn == 1 && gemm.stride_cm % kVector == 0 && reinterpret_cast<uintptr_t>(gemm.c) % 16 == 0;
    takes_vectors_ = is_aligned && col + COLS <= gemm.n && !is_blended(gemm) &&
                     (gemm.activation == Activation::none || gemm.activation == Activation::relu);
    is_bias_along_m_ = gemm.bias && gemm.stride_bias_m != 0;
    TILEDMM_UNROLL for (int v = 0; v < kVector; ++v) {
      bias_[v] =
          is_bias_along_m_ || !(takes_vectors_ || v == 0) ? kNone : load_bias<Out>(gemm, 0, col + first_col() + v);
    }
  }

  // C = activation(alpha * acc + beta * bias) from `row` on. All lanes have written their part of the strip.
  TILEDMM_DEVICE void store(const Strip& strip, int64_t row) const {
    warp_barrier();
    takes_vectors_ ? store_vectors(strip, row) : store_elements(strip, row);
    warp_barrier();  // before the strip is overwritten
  }

 private:
  static constexpr int kVector = 16 / int(sizeof(Out)), kLanesPerRow = COLS / kVector;
  static constexpr A kNone = A(-0.0);  // adds nothing

  const GemmProblem& gemm_;
  int64_t col_;
  int lane_;
  bool takes_vectors_, is_bias_along_m_;
  A bias_[kVector];  // of this lane's columns

  TILEDMM_DEVICE int first_col() const { return takes_vectors_ ? lane_ % kLanesPerRow * kVector : lane_ % COLS; }
  TILEDMM_DEVICE A bias_of_row(int64_t row) const { return is_bias_along_m_ ? load_bias<Out>(gemm_, row, 0) : kNone; }

  TILEDMM_DEVICE void store_vectors(const Strip& strip, int64_t row) const {
    constexpr int kRowsAtOnce = 64 / kLanesPerRow;
    TILEDMM_UNROLL for (int first = 0; first < Strip::kRows; first += kRowsAtOnce) {
      const int r = first + lane_ / kLanesPerRow, c = first_col();
      if (row + r >= gemm_.m) continue;
      const A bias_of_this_row = bias_of_row(row + r);
      A sums[kVector];
      TILEDMM_UNROLL for (int v = 0; v < kVector; v += 16 / int(sizeof(A))) {
        const Vector16 part = load_shared(reinterpret_cast<const Vector16*>(&strip.acc[r][c + v]));
        __builtin_memcpy(&sums[v], &part, sizeof part);
      }
      struct alignas(16) {
        Out elements[kVector];
      } out;
      TILEDMM_UNROLL for (int v = 0; v < kVector; ++v) {
        A sum = sums[v] + bias_[v] + bias_of_this_row;
        if (gemm_.activation == Activation::relu) sum = activate<Activation::relu>(sum);
        out.elements[v] = rounded_to<Out>(sum);
      }
      store_global(reinterpret_cast<Vector16*>(static_cast<Out*>(gemm_.c) + (row + r) * gemm_.stride_cm + col_ + c),
                   __builtin_bit_cast(Vector16, out));
    }
  }
  TILEDMM_DEVICE void store_elements(const Strip& strip, int64_t row) const {
    constexpr int kRowsAtOnce = 64 / COLS;
    const int c = first_col();
    const int64_t col = col_ + c;
    TILEDMM_NO_UNROLL for (int r = lane_ / COLS; r < Strip::kRows; r += kRowsAtOnce) {
      const A acc = load_shared(&strip.acc[r][c]);
      if (is_blended(gemm_))
        store_element<Out>(gemm_, row + r, col, acc);
      else
        store_activated<Out>(gemm_, row + r, col, acc + bias_[0] + bias_of_row(row + r));
    }
  }
};

}  // namespace
}  // namespace tiledmm::gpu

#endif

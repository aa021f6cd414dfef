// Elements of 8 bits with scales, as plain data: of a block of x, scale = largest / most and
//
//   q = rounded(x * (most / largest))        largest: of |activation(x)| in the block, most: of the 8-bit dtype
//
// in fp32, each operation rounded to nearest even. is_power_of_two: scale is the least power of two that is not below
// largest / most, and q = rounded(x / scale). A block without elements other than 0 has scale 1. The details are
// platform/float8.h's, for every device.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace tiledmm {

// What shares a scale: a row of x, kScaledK elements of one along k, or those of kScaledK rows.
enum class ScaleBlock : int32_t { row = 0, segment = 1, square = 2 };

struct QuantizeProblem {
  DType dtype, dtype_q;  // of x: fp32, fp16, bf16; of q: e4m3, e5m2
  ScaleBlock block;
  Activation activation;  // of x, in fp32. CPU: none
  bool is_power_of_two;
  int64_t m, k;
  const void* x;
  int64_t stride_m, stride_k;
  void* q;           // m rows of k elements, which lie side by side
  int64_t stride_q;  // a multiple of 16, and enough for k rounded up to one: what is behind a row may be written
  float* scale;
  int64_t stride_scale_m, stride_scale_k;  // from a row, or kScaledK of them, to the next; from block to block of k
};

}  // namespace tiledmm

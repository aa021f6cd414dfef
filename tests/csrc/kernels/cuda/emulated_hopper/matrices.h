// What models of the emulated Hopper's kernels have in common: numbers of 16 and 32 bits, matrices amid NaNs, the order
// of the matrix instructions.
#pragma once

#include <cstdint>
#include <vector>

#include "core/math.h"
#include "platform/epilogue.h"

namespace {

using namespace tiledmm;

float to_float(DType dtype, uint32_t bits) {
  if (dtype == DType::f32) return emulator::float_of_bits(bits);
  return dtype == DType::f16 ? half_to_float(uint16_t(bits)) : bf16_to_float(uint16_t(bits));
}
[[maybe_unused]] float activated(DType dtype, Activation activation, float x) {
  return dtype == DType::f32 ? gpu::activated<float>(activation, x) : gpu::activated<Half>(activation, x);
}
uint32_t rounded(DType dtype, float x) {
  return dtype == DType::f32 ? __float_as_uint(x) : dtype == DType::f16 ? float_to_half(x) : float_to_bf16(x);
}
[[maybe_unused]] bool is_nan(DType dtype, uint32_t bits) { return to_float(dtype, bits) != to_float(dtype, bits); }

// A matrix for each item of a batch, in memory full of NaNs. W: as wide as an element.
template <class W>
struct Matrix {
  static constexpr int64_t kGuard = 1 << 14;  // elements before and behind
  static constexpr int kGap = 64;             // between items
  static constexpr size_t kAlignment = 128;
  int64_t stride_row, stride_col, stride_item, size;
  std::vector<W> memory;

  Matrix(int rows, int cols, bool is_along_rows, int margin, int num_items) {
    const int inner = is_along_rows ? rows : cols, outer = is_along_rows ? cols : rows;
    const int64_t ld = (margin % 2 ? inner : round_up(inner, 8)) + margin;
    stride_row = is_along_rows ? 1 : ld;
    stride_col = is_along_rows ? ld : 1;
    stride_item = ld * outer + (margin % 2 ? kGap - 1 : kGap + 8 - ld * outer % 8);
    size = stride_item * num_items + 2 * kGuard;
    memory.assign(size_t(size) + kAlignment / sizeof(W), W(-1));
  }
  W* begin() { return memory.data() + (-reinterpret_cast<uintptr_t>(memory.data()) & (kAlignment - 1)) / sizeof(W); }
  W* data() { return begin() + kGuard; }
  W& at(int item, int row, int col) { return data()[item * stride_item + row * stride_row + col * stride_col]; }
};

// The products of 16 after 16, as instructions take them, from zero on, in chunks whose sums are added in their order.
[[maybe_unused]] float sum_products(const std::vector<float>& a, const std::vector<float>& b, int chunk_k) {
  float total = -0.0f;
  for (size_t chunk = 0; chunk < a.size(); chunk += size_t(chunk_k)) {
    float sum = 0;
    for (size_t i = chunk; i < std::min(a.size(), chunk + size_t(chunk_k)); i += 16)
      sum = emulator::add_products(sum, &a[i], &b[i]);
    total += sum;
  }
  return total;
}

}  // namespace

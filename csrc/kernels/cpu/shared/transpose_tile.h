// Tiles of 32-bit words, transposed on their way from memory to memory.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/shared/simd.h"
#include "kernels/cpu/shared/tile.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

typedef Reg<uint32_t, 64> Pairs;  // of 16 lanes

// 16 bytes from each of four places.
TILEDMM_INLINE Pairs load_packets(const char* a, const char* b, const char* c, const char* d) {
#if TILEDMM_VECTOR_BYTES == 64
  const auto packet = [](const char* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); };
  __m512i v = _mm512_castsi128_si512(packet(a));
  v = _mm512_inserti32x4(v, packet(b), 1);
  v = _mm512_inserti32x4(v, packet(c), 2);
  return (Pairs)_mm512_inserti32x4(v, packet(d), 3);
#else
  char near[64];
  const char* const from[4] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) std::memcpy(near + i * 16, from[i], 16);
  return load_as<Pairs>(near);
#endif
}

// A tile of 16 x 16 words of 32 bits, transposed: row operand <-> column operand, and sums of C^T -> C. Rows of `from`
// from `rows` on are taken for zeros.
TILEDMM_INLINE void transpose_tile(const void* from, int64_t stride_from, int64_t rows, void* to, int64_t stride_to) {
  alignas(64) static constexpr char kZeros[kTileRowBytes] = {};
  const char* row[kTileRows];
  for (int i = 0; i < kTileRows; ++i) row[i] = i < rows ? static_cast<const char*>(from) + i * stride_from : kZeros;
#pragma GCC unroll 4
  for (int column = 0; column < 4; ++column) {  // of 16 bytes
    Pairs parts[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      parts[i] = load_packets(row[i] + column * 16, row[i + 4] + column * 16, row[i + 8] + column * 16,
                              row[i + 12] + column * 16);
    }
    transpose_in_packets<uint32_t>(parts);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) std::memcpy(static_cast<char*>(to) + (column * 4 + i) * stride_to, &parts[i], 64);
  }
}

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

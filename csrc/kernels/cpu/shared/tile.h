// The tile instructions of AMX, one function each: the instructions themselves or, with TILEDMM_EMULATE_AMX, exact C++.
//
// A tile register holds up to 16 rows of 64 bytes. A dot product takes 32 elements of k: of the row operand a row is 32
// neighbours along k, of the column operand row p is the pair (2p, 2p + 1) of 16 columns. Per element of C the even
// and the odd k are two chains of multiply-adds from +0; their sum is added to C (Intel SDM, TDPBF16PS, TDPFP16PS).
// bf16: denormals are read and written as zero. fp16: they are kept.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/shared/simd.h"

#if defined(TILEDMM_EMULATE_AMX)
#include <cstdlib>
#endif

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

constexpr int kTileRows = 16, kTileRowBytes = 64;
constexpr int64_t kTileBytes = kTileRows * kTileRowBytes, kTileK = 32;

// The operand of LDTILECFG: palette 1, and the rows and the bytes of a row of each tile.
struct TileShapes {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileShapes) == 64, "LDTILECFG reads 64 bytes");

constexpr TileShapes whole_tiles() {
  TileShapes shapes{};
  shapes.palette = 1;
  for (int tile = 0; tile < 8; ++tile) {
    shapes.rows[tile] = kTileRows;
    shapes.row_bytes[tile] = kTileRowBytes;
  }
  return shapes;
}
alignas(64) constexpr TileShapes kWholeTiles = whole_tiles();

#if !defined(TILEDMM_EMULATE_AMX)

inline void configure(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
inline void release() { asm volatile("tilerelease" ::: "memory"); }

template <int TILE>
TILEDMM_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(TILE));
}
// Rows `stride` bytes apart.
template <int TILE>
TILEDMM_INLINE void tile_load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(TILE) : "memory");
}
// As tile_load, with the hint that the data are not needed again soon.
template <int TILE>
TILEDMM_INLINE void tile_load_stream(const void* from, int64_t stride) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(TILE) : "memory");
}
template <int TILE>
TILEDMM_INLINE void tile_store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(TILE) : "memory");
}
// SUM += ROWS * COLS.
template <int SUM, int ROWS, int COLS>
TILEDMM_INLINE void dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(ROWS), "i"(COLS));
}
// In bytes, since assemblers before binutils 2.40 do not know TDPFP16PS: VEX.128.F2.0F38.W0 5C /r.
template <int SUM, int ROWS, int COLS>
TILEDMM_INLINE void dot_fp16() {
  asm volatile(".byte 0xc4, 0xe2, %c0, 0x5c, %c1" ::"i"((~COLS & 15) << 3 | 3), "i"(0xc0 | SUM << 3 | ROWS));
}

#else

struct EmulatedTiles {
  TileShapes shapes;
  alignas(64) char tiles[8][kTileBytes];
};
inline thread_local EmulatedTiles emulated;

inline void configure(const TileShapes& shapes) {
  std::memset(&emulated, 0, sizeof emulated);
  emulated.shapes = shapes;
}
inline void release() { std::memset(&emulated, 0, sizeof emulated); }

// A tile that is not configured raises #UD.
inline void require(bool is_legal) {
  if (!is_legal) std::abort();
}
inline char* tile_row(int tile, int row) { return emulated.tiles[tile] + row * kTileRowBytes; }

template <int TILE>
void tile_zero() {
  require(emulated.shapes.rows[TILE] > 0);
  std::memset(emulated.tiles[TILE], 0, kTileBytes);
}
template <int TILE>
void tile_load(const void* from, int64_t stride) {
  tile_zero<TILE>();
  for (int row = 0; row < emulated.shapes.rows[TILE]; ++row) {
    std::memcpy(tile_row(TILE, row), static_cast<const char*>(from) + row * stride, emulated.shapes.row_bytes[TILE]);
  }
}
template <int TILE>
void tile_load_stream(const void* from, int64_t stride) {
  tile_load<TILE>(from, stride);
}
template <int TILE>
void tile_store(void* to, int64_t stride) {
  require(emulated.shapes.rows[TILE] > 0);
  for (int row = 0; row < emulated.shapes.rows[TILE]; ++row) {
    std::memcpy(static_cast<char*>(to) + row * stride, tile_row(TILE, row), emulated.shapes.row_bytes[TILE]);
  }
}

// The even (odd) elements of 16 pairs in fp32.
template <bool IS_FP16>
TILEDMM_INLINE Reg<float, 64> widen_half(const Reg<uint32_t, 64>& pairs, bool is_odd) {
  const Reg<uint32_t, 64> bits = is_odd ? pairs >> 16 : pairs & 0xffff;
  if constexpr (!IS_FP16) return (Reg<float, 64>)(bits << 16);
  Reg<float, 64> values;
  for (int lane = 0; lane < 16; ++lane) values[lane] = _cvtsh_ss(uint16_t(bits[lane]));
  return values;
}

// Never inlined: its arithmetic must stay between the two changes of MXCSR in dot().
template <bool IS_FP16>
__attribute__((noinline)) void dot_rows(float* sums, const char* rows, const char* cols, int num_rows, int num_pairs) {
  typedef Reg<float, 64> Row;
  Row of_cols[2][kTileRows];
  for (int p = 0; p < num_pairs; ++p) {
    const auto pairs = load_as<Reg<uint32_t, 64> >(reinterpret_cast<const uint32_t*>(cols + p * kTileRowBytes));
    for (int odd = 0; odd < 2; ++odd) of_cols[odd][p] = widen_half<IS_FP16>(pairs, odd);
  }
  for (int i = 0; i < num_rows; ++i) {
    const auto pairs = load_as<Reg<uint32_t, 64> >(reinterpret_cast<const uint32_t*>(rows + i * kTileRowBytes));
    Row chains[2] = {};
    for (int odd = 0; odd < 2; ++odd) {
      const Row of_row = widen_half<IS_FP16>(pairs, odd);
      for (int p = 0; p < num_pairs; ++p) {
        for (int j = 0; j < 16; j += Simd<float>::kLanes) {  // the vectors that the instruction set has
          Reg<float> part, factors;
          std::memcpy(&part, reinterpret_cast<char*>(&chains[odd]) + j * 4, sizeof part);
          std::memcpy(&factors, reinterpret_cast<char*>(&of_cols[odd][p]) + j * 4, sizeof factors);
          part = multiply_add(broadcast(float(of_row[p])), factors, part);
          std::memcpy(reinterpret_cast<char*>(&chains[odd]) + j * 4, &part, sizeof part);
        }
      }
    }
    const Row sum = load_as<Row>(sums + i * 16) + (chains[0] + chains[1]);
    std::memcpy(sums + i * 16, &sum, sizeof sum);
  }
}

template <bool IS_FP16>
void dot(int sum, int rows, int cols) {
  const TileShapes& shapes = emulated.shapes;
  require(shapes.rows[sum] == shapes.rows[rows] && shapes.row_bytes[sum] == shapes.row_bytes[cols] &&
          shapes.row_bytes[rows] == 4 * shapes.rows[cols] && shapes.rows[sum] > 0);
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040, kMaskAll = 0x1f80;
  const unsigned before = _mm_getcsr();
  _mm_setcsr(kMaskAll | (IS_FP16 ? 0 : kFlushToZero | kDenormalsAreZero));
  dot_rows<IS_FP16>(reinterpret_cast<float*>(tile_row(sum, 0)), tile_row(rows, 0), tile_row(cols, 0), shapes.rows[sum],
                    shapes.rows[cols]);
  _mm_setcsr(before);
}
template <int SUM, int ROWS, int COLS>
void dot_bf16() {
  dot<false>(SUM, ROWS, COLS);
}
template <int SUM, int ROWS, int COLS>
void dot_fp16() {
  dot<true>(SUM, ROWS, COLS);
}

#endif

// Tiles may be used while one of these lives. A thread without tile state is switched faster, so it ends with a task.
struct TileState {
  explicit TileState(const TileShapes& shapes = kWholeTiles) { configure(shapes); }
  ~TileState() { release(); }
  TileState(const TileState&) = delete;
  TileState& operator=(const TileState&) = delete;
};

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

// Tiles of C one after the other, and their way to C: what kernels by AMX's tile instructions have in common.
//
// Sums of a finished tile are stored in the first step of the next one and converted in the steps after it, while the
// tile unit is busy.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/transposed.h"
#include "kernels/cpu/shared/epilogue.h"
#include "kernels/cpu/shared/simd.h"
#include "kernels/cpu/shared/threads.h"
#include "kernels/cpu/shared/tile.h"
#include "kernels/cpu/shared/transpose_tile.h"
#include "platform/element.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

static_assert(kAmxStrip == 2 * kTileRows && kAmxStep == kTileK, "plans and instructions agree");

constexpr int64_t kTileFloats = kAmxStrip * kAmxStrip;
constexpr int64_t kStripRowBytes = kAmxStrip * int64_t(sizeof(float));

// Where the tiles of 32 rows lie: packed, or in A itself.
struct RowTiles {
  const char* data;
  int64_t stride, next_tile, next_step;  // bytes from row to row, to the other 16 rows, to the next 32 of k

  RowTiles at(int64_t step) const { return {data + step * next_step, stride, next_tile, next_step}; }
};

// Where the sums of a tile go when a chunk of k is finished.
struct Target {
  enum class Kind { none, add, finish, add_and_finish };
  Kind kind = Kind::none;
  int64_t row = 0, rows = 0, col = 0, cols = 0;  // of C
  float* total = nullptr;                        // of the chunks before
};

inline void add_rows(float* total, const float* sums, int64_t rows) {
  for (int64_t e = 0; e < rows * kAmxStrip; e += Simd<float>::kLanes)
    store(total + e, load(total + e) + load(sums + e));
}

// Where k is split: `rows` rows of sums, of the chunks before, take those of `count` more in their order. These lie
// `distance` apart from each other, from `parts` on.
inline void add_chunks(float* sums, bool is_first, const float* parts, int64_t distance, int64_t count, int64_t rows) {
  for (int64_t i = 0; i < count; ++i) {
    const float* part = parts + i * distance;
    is_first&& i == 0 ? void(std::memcpy(sums, part, size_t(rows * kStripRowBytes))) : add_rows(sums, part, rows);
  }
}

// Number `idx` of C's blocks of 32 x 32, row by row.
inline Target target_of_tile(const GemmProblem& item, int64_t idx) {
  const int64_t tiles_n = ceil_div(item.n, kAmxStrip);
  Target target;
  target.row = idx / tiles_n * kAmxStrip, target.rows = min_of(kAmxStrip, item.m - target.row);
  target.col = idx % tiles_n * kAmxStrip, target.cols = min_of(kAmxStrip, item.n - target.col);
  return target;
}

// The epilogue for blocks of at most 32 x 32: sums to C.
class Output {
 public:
  explicit Output(const GemmProblem& item) : item_(item), transposed_(transposed(item)) {
    is_column_major_ = item.stride_cn != 1 && item.stride_cm == 1;
    const GemmProblem& by_rows = is_column_major_ ? transposed_ : item_;
    is_plain_ = item.activation == Activation::none && item.scaling == Scaling::none && by_rows.stride_cn == 1 &&
                !is_blended(item) && (!item.bias || by_rows.stride_bias_m == 0);
  }

  // Whether rows of C can be stored a few at a time, within the steps of the next tile: conversion and a bias along
  // the rows are all that is left to do.
  bool is_plain() const { return is_plain_; }

  // The number of rows that a block has in C.
  int64_t num_rows(const Target& target) const { return is_column_major_ ? target.cols : target.rows; }

  // The bias of a block's rows.
  void load_bias(const Target& target, float (&bias)[kAmxStrip]) const {
    const GemmProblem& by_rows = is_column_major_ ? transposed_ : item_;
    if (!by_rows.bias) return;
    const int64_t col = is_column_major_ ? target.row : target.col, cols = is_column_major_ ? target.rows : target.cols;
    load_bias_elements(by_rows, col * by_rows.stride_bias_n, by_rows.stride_bias_n, cols, bias);
  }

  // Rows `first` .. first + 3 of a block, of those that exist.
  TILEDMM_INLINE void store_rows(const float* sums, const Target& target, const float* bias, int64_t first) const {
    switch (item_.dtype_c) {
      case DType::bf16:
        return store_rows_as<BFloat16>(sums, target, bias, first);
      case DType::f16:
        return store_rows_as<Half>(sums, target, bias, first);
      default:
        return store_rows_as<float>(sums, target, bias, first);
    }
  }

  void store(const float* sums, int64_t ld, const Target& target) const {
    if (!is_column_major_) return store_block_tile(item_, target.row, target.rows, target.col, target.cols, sums, ld);
    alignas(64) float near[kTileFloats];
    for (int64_t i = 0; i < target.rows; i += 16) {
      for (int64_t j = 0; j < target.cols; j += 16) {
        transpose_tile(sums + i * ld + j, ld * 4, kTileRows, near + j * kAmxStrip + i, kStripRowBytes);
      }
    }
    store_block_tile(transposed_, target.col, target.cols, target.row, target.rows, near, kAmxStrip);
  }

  static constexpr int64_t kRows = 4;  // at a time

 private:
  template <class T>
  TILEDMM_INLINE void store_rows_as(const float* sums, const Target& target, const float* bias, int64_t first) const {
    const int64_t end = min_of(first + kRows, num_rows(target));
    if (!is_column_major_) {
      T* to = static_cast<T*>(item_.c) + target.row * item_.stride_cm + target.col;
      for (int64_t i = first; i < end; ++i) {
        store_row(sums + i * kAmxStrip, bias, to + i * item_.stride_cm, target.cols);
      }
      return;
    }
    alignas(64) float near[kRows][kAmxStrip];
#pragma GCC unroll 2
    for (int64_t half = 0; half < kAmxStrip; half += 16) {
      const char* from = reinterpret_cast<const char*>(sums + half * kAmxStrip + first);
      Pairs parts[kRows];
#pragma GCC unroll 4
      for (int64_t i = 0; i < kRows; ++i) {
        const char* row = from + i * kStripRowBytes;
        parts[i] = load_packets(row, row + 4 * kStripRowBytes, row + 8 * kStripRowBytes, row + 12 * kStripRowBytes);
      }
      transpose_in_packets<uint32_t>(parts);
#pragma GCC unroll 4
      for (int64_t i = 0; i < kRows; ++i) std::memcpy(near[i] + half, &parts[i], sizeof parts[i]);
    }
    T* to = static_cast<T*>(item_.c) + target.col * item_.stride_cn + target.row;
    for (int64_t i = first; i < end; ++i) store_row(near[i - first], bias, to + i * item_.stride_cn, target.rows);
  }

  // Lanes beyond `cols` may hold anything: they are not stored.
  template <class T>
  TILEDMM_INLINE void store_row(const float* from, const float* bias, T* to, int64_t cols) const {
    constexpr int kLanes = Simd<float>::kLanes;
    Reg<float> values[kAmxStrip / kLanes];
#pragma GCC unroll 8
    for (int v = 0; v < kAmxStrip / kLanes; ++v) {
      values[v] = load(from + v * kLanes);
      if (item_.bias) values[v] += load(bias + v * kLanes);
    }
#if defined(TILEDMM_ISA_AVX512_BF16)
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (cols == kAmxStrip) {
        const auto narrow = _mm512_cvtne2ps_pbh(values[1], values[0]);
        std::memcpy(to, &narrow, sizeof narrow);
        return;
      }
    }
#endif
#pragma GCC unroll 8
    for (int v = 0; v < kAmxStrip / kLanes; ++v) {
      if (v * kLanes < cols) store_converted(to + v * kLanes, values[v], min_of(kLanes, cols - v * kLanes));
    }
  }

  GemmProblem item_, transposed_;
  bool is_column_major_, is_plain_;
};

// The tiles of a product of `m` rows. Where they are fewer than two tiles have, the tiles have no more, so that A's are
// loaded where they lie. A tile without a row would be illegal.
constexpr TileShapes tiles_of_rows(int64_t m) {
  TileShapes shapes = kWholeTiles;
  if (m >= kAmxStrip) return shapes;
  const auto first = uint8_t(m < kTileRows ? m : kTileRows), second = uint8_t(m > kTileRows ? m - kTileRows : 1);
  shapes.rows[0] = shapes.rows[1] = shapes.rows[4] = first;
  shapes.rows[2] = shapes.rows[3] = shapes.rows[5] = second;
  return shapes;
}

// Tiles of C one after the other, on one thread. tmm0-3 hold C, 4 and 5 rows, 6 and 7 columns. Rows are loaded with the
// hint of TILELOADDT1, so that they do not drive the columns out of the nearest cache.
//
// Op: the products of a step of 32 of k. dot() is the instruction; kRowOffset and kColumnOffset say where in a step's
// packed operands the tiles of the first product lie, multiply_rest() makes the others, if there are any, and
// kUnitBytes is the step's packed columns.
template <class Op>
class Multiplier {
 public:
  explicit Multiplier(const Output& output) : output_(output) {}

  // Sums of `steps` of k, MT x NT tiles, to `to` [32][32] when the next tile begins or flush() is called, and from
  // there to the target. They start from `from`, or from zero where it is null. Rows that the tiles lack
  // (tiles_of_rows) are left as they are.
  template <int MT, int NT>
  void multiply(const RowTiles& a, const char* b, int64_t steps, const float* from, float* to, const Target& target,
                const char* ahead) {
    begin<MT, NT>(a, b, from);
    extend<MT, NT>(a.at(1), b + Op::kUnitBytes, steps - 1, ahead);
    finish_waiting();
    waiting_ = to, target_ = target, next_row_ = 0;
  }

  // More steps of the tile that multiply() began last.
  template <int MT, int NT>
  TILEDMM_INLINE void extend(RowTiles a, const char* b, int64_t steps, const char* ahead) {
    int64_t step = 0;
    if (converting_) {
      const Target target = target_of_converted_;
      const float* sums = converting_;
      const int64_t num_rows = output_.num_rows(target);
      int64_t row = next_row_;
      for (; step < steps && row < num_rows; ++step) {
        multiply_step<MT, NT>(a, b, ahead);
        output_.store_rows(sums, target, bias_, row);
        row += kRows;
        a = a.at(1), b += Op::kUnitBytes, ahead += 64 * Op::kPrefetchLines;
      }
      next_row_ = row;
    }
    for (; step < steps; ++step) {
      multiply_step<MT, NT>(a, b, ahead);
      a = a.at(1), b += Op::kUnitBytes, ahead += 64 * Op::kPrefetchLines;
    }
  }

  // Stores what is waiting.
  void flush() {
    if (!waiting_) return;
    store_tiles(waiting_);
    take_waiting();
    finish_waiting();
  }

 private:
  static constexpr int64_t kRows = Output::kRows;

  template <int TILE>
  static TILEDMM_INLINE void start(const float* from) {
    from ? tile_load<TILE>(from, kStripRowBytes) : tile_zero<TILE>();
  }

  template <int MT, int NT>
  static TILEDMM_INLINE void multiply_step(const RowTiles& a, const char* b, const char* ahead) {
    tile_load_stream<4>(a.data + Op::kRowOffset, a.stride);
    tile_load<6>(b + Op::kColumnOffset, kTileRowBytes);
    __builtin_prefetch(ahead, 0, 2);
    Op::template dot<0, 4, 6>();
    if constexpr (NT > 1) {
      tile_load<7>(b + Op::kColumnOffset + kTileBytes, kTileRowBytes);
      __builtin_prefetch(ahead + 64, 0, 2);
      Op::template dot<1, 4, 7>();
    }
    if constexpr (MT > 1) {
      tile_load_stream<5>(a.data + Op::kRowOffset + a.next_tile, a.stride);
      Op::template dot<2, 5, 6>();
    }
    if constexpr (MT > 1 && NT > 1) Op::template dot<3, 5, 7>();
    Op::template multiply_rest<MT, NT>(a, b, ahead);
  }

  // The first step, in which the sums of the tile before leave the registers. Tiles that it does not use are stored,
  // too; nobody reads them.
  template <int MT, int NT>
  TILEDMM_INLINE void begin(const RowTiles& a, const char* b, const float* from) {
    float* before = waiting_;
    tile_load_stream<4>(a.data + Op::kRowOffset, a.stride);
    tile_load<6>(b + Op::kColumnOffset, kTileRowBytes);
    if (before) tile_store<0>(before, kStripRowBytes);
    start<0>(from);
    Op::template dot<0, 4, 6>();
    if (before) tile_store<1>(before + 16, kStripRowBytes);
    if constexpr (NT > 1) {
      start<1>(from ? from + 16 : nullptr);
      tile_load<7>(b + Op::kColumnOffset + kTileBytes, kTileRowBytes);
      Op::template dot<1, 4, 7>();
    }
    if (before) tile_store<2>(before + 16 * kAmxStrip, kStripRowBytes);
    if constexpr (MT > 1) {
      start<2>(from ? from + 16 * kAmxStrip : nullptr);
      tile_load_stream<5>(a.data + Op::kRowOffset + a.next_tile, a.stride);
      Op::template dot<2, 5, 6>();
    }
    if (before) tile_store<3>(before + 16 * kAmxStrip + 16, kStripRowBytes);
    if constexpr (MT > 1 && NT > 1) {
      start<3>(from ? from + 16 * kAmxStrip + 16 : nullptr);
      Op::template dot<3, 5, 7>();
    }
    Op::template multiply_rest<MT, NT>(a, b, b);
    take_waiting();
  }

  static TILEDMM_INLINE void store_tiles(float* to) {
    tile_store<0>(to, kStripRowBytes);
    tile_store<1>(to + 16, kStripRowBytes);
    tile_store<2>(to + 16 * kAmxStrip, kStripRowBytes);
    tile_store<3>(to + 16 * kAmxStrip + 16, kStripRowBytes);
  }

  // The sums that were waiting are in memory now.
  void take_waiting() {
    float* sums = waiting_;
    waiting_ = nullptr, converting_ = nullptr;
    if (!sums || target_.kind == Target::Kind::none) return;
    if (target_.kind != Target::Kind::finish) {
      add_rows(target_.total, sums, target_.rows);
      sums = target_.total;
    }
    if (target_.kind == Target::Kind::add) return;
    if (!output_.is_plain()) return output_.store(sums, kAmxStrip, target_);
    converting_ = sums, target_of_converted_ = target_, next_row_ = 0;
    output_.load_bias(target_, bias_);
  }
  // Rows that the steps were too few for.
  void finish_waiting() {
    if (!converting_) return;
    for (; next_row_ < output_.num_rows(target_of_converted_); next_row_ += kRows) {
      output_.store_rows(converting_, target_of_converted_, bias_, next_row_);
    }
    converting_ = nullptr;
  }

  const Output& output_;
  float* waiting_ = nullptr;  // where the sums go that are in the registers
  Target target_;
  const float* converting_ = nullptr;  // sums that become rows of C
  Target target_of_converted_;
  alignas(64) float bias_[kAmxStrip] = {};
  int64_t next_row_ = 0;
};

// Multiplier::multiply for one or two tiles of each operand.
template <class Op>
void multiply(Multiplier<Op>& multiplier, bool two_rows, bool two_cols, const RowTiles& a, const char* b, int64_t steps,
              const float* from, float* to, const Target& target, const char* ahead) {
  if (two_rows) {
    two_cols ? multiplier.template multiply<2, 2>(a, b, steps, from, to, target, ahead)
             : multiplier.template multiply<2, 1>(a, b, steps, from, to, target, ahead);
  } else {
    two_cols ? multiplier.template multiply<1, 2>(a, b, steps, from, to, target, ahead)
             : multiplier.template multiply<1, 1>(a, b, steps, from, to, target, ahead);
  }
}

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

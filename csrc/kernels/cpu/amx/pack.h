// Packing of 16-bit operands for the tiles, and of e4m3, which becomes bf16. A lane is a row of A or a column of B. A
// unit is 32 lanes by 32 of k, two tiles: as a row operand each lane's 32 elements side by side, as a column operand
// [16 pairs along k][16 lanes][2]. Lanes and k beyond the operand are zero in both operands, so that nothing they are
// multiplied with counts.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/math.h"
#include "kernels/cpu/shared/pack.h"
#include "kernels/cpu/shared/simd.h"
#include "kernels/cpu/shared/tile.h"
#include "kernels/cpu/shared/transpose_tile.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

constexpr int64_t kUnitLanes = 32, kUnitBytes = 2 * kTileBytes;
constexpr int64_t kGroupLanes = 128;  // of lanes that are neighbours in memory, packed at a time: 4 cache lines
typedef Reg<uint16_t, 64> Elements;

// A or B^T of one product: its lanes.
struct LaneView {
  const void* data;
  int64_t stride_lane, stride_k, element_bytes;

  template <class T = uint16_t>
  const T* at(int64_t lane, int64_t k) const {
    return static_cast<const T*>(data) + lane * stride_lane + k * stride_k;
  }
};

// The first `count` of 32 elements, 0 <= count <= 32; the others are 0 and their memory is not touched.
TILEDMM_INLINE Elements load_elements(const uint16_t* from, int64_t count) {
  if (count >= 32) return load_as<Elements>(from);
#if TILEDMM_VECTOR_BYTES == 64
  return (Elements)_mm512_maskz_loadu_epi16(__mmask32((uint64_t(1) << count) - 1), from);
#else
  Elements elements{};
  if (count > 0) std::memcpy(&elements, from, size_t(count) * 2);
  return elements;
#endif
}

template <int FIRST, int... I>
TILEDMM_INLINE Pairs interleave(const Elements& even, const Elements& odd, std::integer_sequence<int, I...>) {
  return (Pairs)__builtin_shufflevector(even, odd, (FIRST + I / 2 + (I % 2 ? 32 : 0))...);
}

// Two rows along k of 32 lanes that are neighbours in memory, as a row of each of a unit's two column tiles.
TILEDMM_INLINE void store_pairs(const Elements& even, const Elements& odd, char* to) {
  const Pairs low = interleave<0>(even, odd, std::make_integer_sequence<int, 32>{});
  const Pairs high = interleave<16>(even, odd, std::make_integer_sequence<int, 32>{});
  std::memcpy(to, &low, 64);
  std::memcpy(to + kTileBytes, &high, 64);
}

// Asks for `lines` cache lines of the row that comes `rows` rows after the one at `from`. They need not exist.
TILEDMM_INLINE void prefetch_row(const uint16_t* from, int64_t stride_k, int64_t rows, int64_t lines) {
  const auto first = reinterpret_cast<uintptr_t>(from) + uintptr_t(rows * stride_k) * 2;
  for (uintptr_t line = 0; line < uintptr_t(lines); ++line) {
    __builtin_prefetch(reinterpret_cast<const void*>(first + line * 64), 0, 2);
  }
}

// 32 of k of `units` whole units, whose lanes are neighbours in memory, as column operands: two rows at a time in long
// runs. From one unit to the next `to` moves on by a strip. The rows that come `rows_ahead` later are fetched; 0: none.
TILEDMM_INLINE void interleave_rows(const uint16_t* from, int64_t stride_k, int64_t units, char* to,
                                    int64_t strip_bytes, int64_t rows_ahead = 0) {
  for (int64_t p = 0; p < 16; ++p) {
    const uint16_t* const even = from + 2 * p * stride_k;
    char* target = to + p * kTileRowBytes;
    if (rows_ahead > 0) {
      prefetch_row(even, stride_k, rows_ahead, units);
      prefetch_row(even, stride_k, rows_ahead + 1, units);
    }
    for (int64_t i = 0; i < units; ++i, target += strip_bytes) {
      store_pairs(load_as<Elements>(even + i * kUnitLanes), load_as<Elements>(even + stride_k + i * kUnitLanes),
                  target);
    }
  }
}

// One unit as column operands, of which `lanes` by `depth` exist.
TILEDMM_INLINE void interleave_edge(const uint16_t* from, int64_t stride_k, int64_t lanes, int64_t depth, char* to) {
#pragma GCC unroll 4
  for (int64_t p = 0; p < 16; ++p) {
    const uint16_t* pair = from + 2 * p * stride_k;
    store_pairs(load_elements(pair, 2 * p < depth ? lanes : 0),
                load_elements(pair + stride_k, 2 * p + 1 < depth ? lanes : 0), to + p * kTileRowBytes);
  }
}

// Lanes of 32 elements that are neighbours along k. Tiles without a lane are left as they are.
template <bool FOR_ROWS>
TILEDMM_INLINE void copy_unit(const uint16_t* from, int64_t stride_lane, int64_t lanes, char* to) {
  for (int64_t tile = 0; tile * kTileRows < lanes; ++tile) {
    const uint16_t* first = from + tile * kTileRows * stride_lane;
    const int64_t rows = min_of(kTileRows, lanes - tile * kTileRows);
    char* target = to + tile * kTileBytes;
    if constexpr (FOR_ROWS) {
      for (int64_t i = 0; i < rows; ++i) std::memcpy(target + i * kTileRowBytes, first + i * stride_lane, 64);
      std::memset(target + rows * kTileRowBytes, 0, size_t(kTileRows - rows) * kTileRowBytes);
    } else {
      rows == kTileRows ? transpose_tile(first, stride_lane * 2, kTileRows, target, kTileRowBytes)
                        : transpose_tile(first, stride_lane * 2, rows, target, kTileRowBytes);
    }
  }
}

// `lanes` of 1 .. 32, `depth` of 0 .. 32.
template <bool FOR_ROWS>
TILEDMM_INLINE void pack_unit(const LaneView& view, int64_t lane, int64_t k, int64_t lanes, int64_t depth, char* to) {
  if (depth == 0) {
    std::memset(to, 0, kUnitBytes);
    return;
  }
  const uint16_t* from = view.at(lane, k);
  if (view.stride_k == 1 && depth == kTileK) return copy_unit<FOR_ROWS>(from, view.stride_lane, lanes, to);
  if (view.stride_k != 1 && view.stride_lane == 1) {
    alignas(64) char near[kUnitBytes];
    char* const columns = FOR_ROWS ? near : to;
    const bool is_whole = lanes == kUnitLanes && depth == kTileK;
    is_whole ? interleave_rows(from, view.stride_k, 1, columns, 0)
             : interleave_edge(from, view.stride_k, lanes, depth, columns);
    if constexpr (!FOR_ROWS) return;
    for (int64_t tile = 0; tile < 2; ++tile) {
      transpose_tile(near + tile * kTileBytes, kTileRowBytes, kTileRows, to + tile * kTileBytes, kTileRowBytes);
    }
    return;
  }
  alignas(64) uint16_t near[kUnitLanes][kTileK] = {};
  for (int64_t i = 0; i < lanes; ++i) {
    const uint16_t* elements = from + i * view.stride_lane;
    if (view.stride_k == 1) {
      std::memcpy(near[i], elements, size_t(depth) * 2);
    } else {
      for (int64_t p = 0; p < depth; ++p) near[i][p] = elements[p * view.stride_k];
    }
  }
  copy_unit<FOR_ROWS>(near[0], kTileK, lanes, to);
}

// Half a vector of numbers of e4m3 as bf16, none of which is a denormal, zero or NaN: sign extension and a shift bring
// sign and magnitude to their places, and the exponent is corrected.
TILEDMM_INLINE Reg<uint16_t> widen_normal(const uint8_t* from) {
#if TILEDMM_VECTOR_BYTES == 64
  const auto extended = (Reg<uint16_t>)_mm512_cvtepi8_epi16(load_as<__m256i>(from));
#else
  const auto extended = (Reg<uint16_t>)_mm256_cvtepi8_epi16(load_as<__m128i>(from));
#endif
  return (extended << 4 & 0x87f0) + (120 << 7);
}

TILEDMM_INLINE bool are_normal(Reg<uint8_t> numbers) {
  const Reg<uint8_t> above_least = (numbers & 0x7f) - 8;  // at most that of 448, 0x76
#if TILEDMM_VECTOR_BYTES == 64
  return _mm512_cmpgt_epu8_mask((__m512i)above_least, _mm512_set1_epi8(0x76)) == 0;
#else
  const __m256i largest = _mm256_max_epu8((__m256i)above_least, _mm256_set1_epi8(0x76));
  return _mm256_movemask_epi8(_mm256_cmpeq_epi8(largest, _mm256_set1_epi8(0x76))) == -1;
#endif
}

// Two rows of 32 numbers of e4m3, as bf16. What holds for normal numbers alone takes half of the instructions of
// widen_e4m3, which serves the few rows that have others.
TILEDMM_INLINE void widen_two(const uint8_t* a, const uint8_t* b, char* to_a, char* to_b) {
  Reg<uint8_t> first, second;
#if TILEDMM_VECTOR_BYTES == 64
  const __m512i both =
      _mm512_maskz_inserti64x4(0xff, _mm512_castsi256_si512(load_as<__m256i>(a)), load_as<__m256i>(b), 1);
  if (are_normal((Reg<uint8_t>)both)) {
    store(to_a, widen_normal(a)), store(to_b, widen_normal(b));
    return;
  }
  // 8 numbers of either in turns, so that the first halves of packets are those of one.
  const __m512i in_turns = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
  widen_e4m3((Reg<uint8_t>)_mm512_maskz_permutexvar_epi64(0xff, in_turns, both), first, second);
  store(to_a, first), store(to_b, second);
#else
  for (const auto& [from, to] : {std::pair(a, to_a), std::pair(b, to_b)}) {
    if (are_normal(load(from))) {
      store(to, widen_normal(from)), store(to + sizeof first, widen_normal(from + kTileK / 2));
      continue;
    }
    widen_e4m3((Reg<uint8_t>)_mm256_permute4x64_epi64(load_as<__m256i>(from), 0xd8), first, second);
    store(to, first), store(to + sizeof first, second);
  }
#endif
}

// Two units of row operands that follow each other along k, of lanes that are contiguous along it: what each lane has
// of both is a cache line, which is read once. What comes `ahead` elements later is fetched; 0: nothing.
__attribute__((noinline)) void pack_widened_lines(const uint8_t* from, int64_t stride_lane, int64_t lanes, char* to,
                                                  int64_t ahead) {
  for (int64_t i = 0; i < lanes; ++i, from += stride_lane, to += kTileRowBytes) {
    if (ahead != 0) __builtin_prefetch(from + ahead, 0, 2);
    widen_two(from, from + kTileK, to, to + kUnitBytes);
  }
  for (; lanes % kTileRows != 0; ++lanes, to += kTileRowBytes) {
    for (char* const row : {to, to + kUnitBytes}) std::memset(row, 0, kTileRowBytes);
  }
}

// pack_unit for e4m3.
template <bool FOR_ROWS>
__attribute__((noinline)) void pack_widened_unit(const LaneView& view, int64_t lane, int64_t k, int64_t lanes,
                                                 int64_t depth, char* to) {
  const bool is_along_k = view.stride_k == 1 || view.stride_lane != 1;
  const int64_t rows = is_along_k ? lanes : depth, count = is_along_k ? depth : lanes;
  const int64_t step = is_along_k ? view.stride_k : 1;
  int64_t stride_row = is_along_k ? view.stride_lane : view.stride_k;
  const uint8_t* from = view.at<uint8_t>(lane, k);
  alignas(64) uint8_t edge[kUnitLanes][kTileK];
  if (count < kTileK || step != 1) {
    std::memset(edge, 0, sizeof edge);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t e = 0; e < count; ++e) edge[i][e] = from[i * stride_row + e * step];
    }
    from = edge[0], stride_row = kTileK;
  }
  const bool is_direct = FOR_ROWS && is_along_k;
  alignas(64) char near[kUnitBytes];
  char* const wide = is_direct ? to : near;
  for (int64_t i = 0; i < rows; i += 2) {
    char* const row = wide + i * kTileRowBytes;
    widen_two(from + i * stride_row, from + min_of(i + 1, rows - 1) * stride_row, row, row + kTileRowBytes);
  }
  if (is_direct) {
    const int64_t rows_left = round_up(rows, kTileRows) - rows;
    std::memset(to + rows * kTileRowBytes, 0, size_t(rows_left) * kTileRowBytes);
  } else if (is_along_k) {
    pack_unit<FOR_ROWS>({near, kTileK, 1, 2}, 0, 0, lanes, kTileK, to);
  } else {
    pack_unit<FOR_ROWS>({near, 1, kUnitLanes, 2}, 0, 0, lanes, depth, to);
  }
}

// Asks for the rows of the unit that follows along k, whose lanes are neighbours in memory. It need not exist.
TILEDMM_INLINE void prefetch_unit(const LaneView& view, int64_t lane, int64_t k) {
  const auto from = reinterpret_cast<uintptr_t>(view.data) + uintptr_t(lane + k * view.stride_k) * 2;
  for (uintptr_t p = 0; p < uintptr_t(kTileK); ++p) {
    __builtin_prefetch(reinterpret_cast<const void*>(from + p * uintptr_t(view.stride_k) * 2));
  }
}

constexpr int64_t num_steps(int64_t depth) { return max_of(1, ceil_div(depth, kTileK)); }

// Packs `lanes` from `lane` on in strips of 32 lanes, each [steps of k][unit]; k = 0 is one step of zeros. Of lanes
// that are neighbours in memory what comes `ahead` of k later is fetched, of e4m3 along k what comes `ahead` elements
// later; 0: nothing.
template <bool FOR_ROWS>
void pack_strips(const LaneView& view, int64_t lane, int64_t lanes, int64_t k, int64_t depth, char* to,
                 int64_t strip_bytes, int64_t ahead = 0) {
  const bool is_widened = view.element_bytes == 1;
  const bool is_wide = !is_widened && view.stride_k != 1 && view.stride_lane == 1;
  const int64_t group = is_wide ? kGroupLanes : kUnitLanes, steps = num_steps(depth);
  for (int64_t first = 0; first < lanes; first += group) {
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t step_k = k + step * kTileK, end = min_of(first + group, lanes);
      int64_t i = first;
      if (!FOR_ROWS && is_wide && (step + 1) * kTileK <= depth) {
        const int64_t units = (end - first) / kUnitLanes;
        interleave_rows(view.at(lane + first, step_k), view.stride_k, units,
                        to + first / kUnitLanes * strip_bytes + step * kUnitBytes, strip_bytes, ahead);
        i += units * kUnitLanes;
      }
      for (; i < end; i += kUnitLanes) {
        if (is_wide) prefetch_unit(view, lane + i, step_k + kTileK);
        const int64_t unit_lanes = min_of(kUnitLanes, lanes - i), unit_depth = min_of(kTileK, depth - step * kTileK);
        char* const unit = to + i / kUnitLanes * strip_bytes + step * kUnitBytes;
        if (FOR_ROWS && is_widened && view.stride_k == 1 && (step + 2) * kTileK <= depth) {
          pack_widened_lines(view.at<uint8_t>(lane + i, step_k), view.stride_lane, unit_lanes, unit, ahead);
          ++step;  // a strip of its own, since lanes are packed 32 at a time
        } else if (is_widened && unit_depth > 0) {
          pack_widened_unit<FOR_ROWS>(view, lane + i, step_k, unit_lanes, unit_depth, unit);
        } else {
          pack_unit<FOR_ROWS>(view, lane + i, step_k, unit_lanes, unit_depth, unit);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

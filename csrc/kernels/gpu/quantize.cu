// Elements of 8 bits with scales (core/quantize.h): the largest magnitude of each block, then its elements times one
// factor. Magnitudes are compared as integers, so that their order does not matter and a NaN exceeds all.
//
// Rows along k stay in the registers of 32, 128 or 512 threads, which read them once, 16 bytes at a time; longer ones
// are read twice. A segment of 128 elements is a part of a warp's, a square of 128 x 128 a block's of threads. Where
// rows lie side by side, as in a transposed view, threads read along them, and tiles of 128 elements of k change places
// in shared memory; a scale of whole rows then takes a pass of its own before that, over all tiles.
#include "core/quantize.h"

#include "platform/epilogue.h"

namespace tiledmm::gpu {
namespace {

constexpr int kLanes = 32;  // threads that work together: a warp, or half of one of AMD's
constexpr int kBlockK = kScaledK, kTileThreads = 256, kTileGroups = kTileThreads / kLanes;

// Neighbours in x, as they are loaded: in words, since a compiler would give each number of 16 bits a register.
template <class T>
struct Vector {
  static constexpr int kCount = 16 / int(sizeof(T));
  Vector16 own;

  TILEDMM_DEVICE float number(int j) const {
    if constexpr (sizeof(T) == 4) {
      return float_of(own.words[j]);
    } else {
      return as_acc(T{uint16_t(own.words[j / 2] >> (j % 2 * 16))});
    }
  }
  // The vector holds zeros before.
  TILEDMM_DEVICE void set(int j, T value) {
    if constexpr (sizeof(T) == 4) {
      own.words[j] = bits_of(value);
    } else {
      own.words[j / 2] |= uint32_t(value.bits) << (j % 2 * 16);
    }
  }
};
// The same neighbours after an activation, as numbers in fp32.
template <class T>
struct ActivatedVector {
  float numbers[Vector<T>::kCount];
  TILEDMM_DEVICE float number(int j) const { return numbers[j]; }
};

// What a thread has of x.
template <class T, bool HAS_ACT, int VECTORS>
struct Elements {
  static constexpr int kCount = Vector<T>::kCount;
  std::conditional_t<HAS_ACT, ActivatedVector<T>, Vector<T>> of[VECTORS];

  TILEDMM_DEVICE float number(int v, int j) const { return of[v].number(j); }
  // Without this, the compiler keeps what a word becomes in fp32 from the first use to the second.
  TILEDMM_DEVICE void forget_numbers() {
    if constexpr (!HAS_ACT) {
      TILEDMM_UNROLL for (int v = 0; v < VECTORS; ++v) {
        TILEDMM_UNROLL for (int w = 0; w < 4; ++w) of[v].own.words[w] = opaque(of[v].own.words[w]);
      }
    }
  }
  template <Activation ACT>
  TILEDMM_DEVICE void activate_all(const Vector<T> (&raw)[VECTORS]) {
    TILEDMM_UNROLL for (int v = 0; v < VECTORS; ++v) {
      TILEDMM_UNROLL for (int j = 0; j < kCount; ++j) of[v].numbers[j] = activated<T>(ACT, raw[v].number(j));
    }
  }
  TILEDMM_DEVICE void keep(Activation activation, const Vector<T> (&raw)[VECTORS]) {
    if constexpr (!HAS_ACT) {
      TILEDMM_UNROLL for (int v = 0; v < VECTORS; ++v) of[v] = raw[v];
    } else if (activation == Activation::relu) {
      activate_all<Activation::relu>(raw);
    } else if (activation == Activation::gelu) {
      activate_all<Activation::gelu>(raw);
    } else if (activation == Activation::gelu_tanh) {
      activate_all<Activation::gelu_tanh>(raw);
    } else {
      activate_all<Activation::silu>(raw);
    }
  }
  // The largest magnitude of a vector, of all, and of all at place j of theirs.
  TILEDMM_DEVICE uint32_t largest_of(int v) const {
    uint32_t largest = 0;
    TILEDMM_UNROLL for (int j = 0; j < kCount; ++j) largest = larger_of(largest, magnitude_of(number(v, j)));
    return largest;
  }
  TILEDMM_DEVICE uint32_t largest() const {
    uint32_t largest = 0;
    TILEDMM_UNROLL for (int v = 0; v < VECTORS; ++v) largest = larger_of(largest, largest_of(v));
    return largest;
  }
  TILEDMM_DEVICE uint32_t largest_at(int j) const {
    uint32_t largest = 0;
    TILEDMM_UNROLL for (int v = 0; v < VECTORS; ++v) largest = larger_of(largest, magnitude_of(number(v, j)));
    return largest;
  }
};

// The vector whose first element is x[at], with `left` elements up to the end, beyond which it is 0: every activation
// of 0 is 0. IS_ALIGNED: all vectors are whole, and begin at multiples of their size.
template <bool IS_ALIGNED, class T>
TILEDMM_DEVICE Vector<T> load_vector(const T* x, int64_t at, int64_t stride, int64_t left) {
  Vector<T> own{};
  if constexpr (IS_ALIGNED) {
    if (left > 0) own.own = load_global(reinterpret_cast<const Vector16*>(x + at));
  } else {
    TILEDMM_UNROLL for (int j = 0; j < Vector<T>::kCount; ++j) {
      if (j < left) own.set(j, load_global(x + at + j * stride));
    }
  }
  return own;
}

// The largest value among the lanes whose numbers differ in bits from FIRST up to END.
template <int FIRST, int END>
TILEDMM_DEVICE uint32_t largest_of_lanes(uint32_t own) {
  TILEDMM_UNROLL for (int mask = FIRST; mask < END; mask *= 2) own = larger_of(own, lane_xor(own, mask));
  return own;
}

// The largest value among GROUPS times 32 threads, which are all of the block's, if they are more than 32.
template <int GROUPS>
TILEDMM_DEVICE uint32_t largest_of_groups(uint32_t own, uint32_t (&shared)[GROUPS]) {
  own = largest_of_lanes<1, kLanes>(own);
  if constexpr (GROUPS > 1) {
    if (thread_idx() % kLanes == 0) store_shared(&shared[thread_idx() / kLanes], own);
    block_barrier();
    TILEDMM_UNROLL for (int i = 0; i < GROUPS; ++i) own = larger_of(own, load_shared(&shared[i]));
  }
  return own;
}

TILEDMM_DEVICE void store_scale(const QuantizeProblem& p, int64_t m_block, int64_t k_block, float scale) {
  store_global(p.scale + m_block * p.stride_scale_m + k_block * p.stride_scale_k, scale);
}

// Vector v of a row, from column `col` on. What is beyond k fits in behind it.
template <int COUNT>
struct alignas(COUNT) Packed {
  uint32_t words[COUNT / 4];
};
template <class E>
TILEDMM_DEVICE void store_vector(const QuantizeProblem& p, const Float8& format, int64_t row, int64_t col,
                                 const E& elements, int v, float factor) {
  Packed<E::kCount> packed;
  TILEDMM_UNROLL for (int w = 0; w < E::kCount / 4; ++w) {
    float scaled[4];
    TILEDMM_UNROLL for (int j = 0; j < 4; ++j) scaled[j] = elements.number(v, 4 * w + j) * factor;
    packed.words[w] = pack_float8(format, scaled[0], scaled[1]) | pack_float8(format, scaled[2], scaled[3]) << 16;
  }
  auto* const to = static_cast<unsigned char*>(p.q) + row * p.stride_q + col;
  store_global(reinterpret_cast<Packed<E::kCount>*>(to), packed);
}

// ---- Along k
constexpr int row_threads(int groups) { return kLanes * (groups > 4 ? groups : 4); }
// Blocks of a unit at a time: while some wait for memory, others compute.
[[maybe_unused]] constexpr int row_blocks(int groups, bool is_usual) {
  return (is_usual ? 2 : 1) * (groups > 4 ? 1 : 4);
}

// GROUPS times 32 threads for each row, whose vectors they keep: VECTORS each, neighbours' side by side.
template <class T, bool HAS_ACT, bool IS_ALIGNED, int GROUPS, int VECTORS>
TILEDMM_KERNEL(row_threads(GROUPS), row_blocks(GROUPS, IS_ALIGNED && !HAS_ACT))
quantize_rows(QuantizeProblem p) {
  using E = Elements<T, HAS_ACT, VECTORS>;
  constexpr int kOfRow = GROUPS * kLanes;
  auto& shared = block_shared<uint32_t[GROUPS]>();
  const int own = thread_idx() % kOfRow;
  const int64_t row = block_idx() * (row_threads(GROUPS) / kOfRow) + thread_idx() / kOfRow;
  const bool is_mine = row < p.m;  // lanes of another row of the warp go on
  const int64_t begin = (is_mine ? row : 0) * p.stride_m, end = is_mine ? p.k : 0;
  Vector<T> raw[VECTORS];
  TILEDMM_UNROLL for (int v = 0; v < VECTORS; ++v) {
    const int64_t col = (v * kOfRow + own) * E::kCount;
    raw[v] = load_vector<IS_ALIGNED>(static_cast<const T*>(p.x), begin + col * p.stride_k, p.stride_k, end - col);
  }
  E elements;
  elements.keep(p.activation, raw);
  const Float8 format = float8_of(p.dtype_q);
  const Float8Scale by = scale_for(format, largest_of_groups<GROUPS>(elements.largest(), shared), p.is_power_of_two);
  elements.forget_numbers();
  TILEDMM_UNROLL for (int v = 0; v < VECTORS; ++v) {
    const int64_t col = (v * kOfRow + own) * E::kCount;
    if (col < end) store_vector(p, format, row, col, elements, v, by.factor);
  }
  if (is_mine && own == 0) store_scale(p, row, 0, by.scale);
}

constexpr int kLongGroups = 16, kLongVectors = 4;

// A block for each row, which is read twice.
template <class T, bool HAS_ACT, bool IS_ALIGNED>
TILEDMM_KERNEL(row_threads(kLongGroups), 1)
quantize_long_rows(QuantizeProblem p) {
  using E = Elements<T, HAS_ACT, kLongVectors>;
  constexpr int kOfRow = kLongGroups * kLanes;
  auto& shared = block_shared<uint32_t[kLongGroups]>();
  const int64_t row = block_idx(), begin = row * p.stride_m;
  const auto load = [&](int64_t first) {
    Vector<T> raw[kLongVectors];
    TILEDMM_UNROLL for (int v = 0; v < kLongVectors; ++v) {
      const int64_t col = first + (v * kOfRow + thread_idx()) * E::kCount;
      raw[v] = load_vector<IS_ALIGNED>(static_cast<const T*>(p.x), begin + col * p.stride_k, p.stride_k, p.k - col);
    }
    E elements;
    elements.keep(p.activation, raw);
    return elements;
  };
  constexpr int kStep = kOfRow * kLongVectors * E::kCount;
  uint32_t largest = 0;
  TILEDMM_NO_UNROLL for (int64_t first = 0; first < p.k; first += kStep) {
    largest = larger_of(largest, load(first).largest());
  }
  const Float8 format = float8_of(p.dtype_q);
  const Float8Scale by = scale_for(format, largest_of_groups<kLongGroups>(largest, shared), p.is_power_of_two);
  TILEDMM_NO_UNROLL for (int64_t first = 0; first < p.k; first += kStep) {
    const E elements = load(first);
    TILEDMM_UNROLL for (int v = 0; v < kLongVectors; ++v) {
      const int64_t col = first + (v * kOfRow + thread_idx()) * E::kCount;
      if (col < p.k) store_vector(p, format, row, col, elements, v, by.factor);
    }
  }
  if (thread_idx() == 0) store_scale(p, row, 0, by.scale);
}

constexpr int kSegmentThreads = 128, kSegmentVectors = 4;
template <class T>
constexpr int kSegmentSpan = kLanes * kSegmentVectors * Vector<T>::kCount;  // elements of a row that 32 lanes have

// 32 lanes for some segments of a row. A block's rows are neighbours, so that it stores their scales side by side.
template <class T, bool HAS_ACT, bool IS_ALIGNED>
TILEDMM_KERNEL(kSegmentThreads, 4)
quantize_segments(QuantizeProblem p, int64_t num_spans) {
  using E = Elements<T, HAS_ACT, kSegmentVectors>;
  constexpr int kOfSegment = kBlockK / E::kCount;  // lanes
  const int lane = thread_idx() % kLanes;
  const int64_t rows = block_idx() / num_spans, span = block_idx() - rows * num_spans;
  const int64_t row = rows * (kSegmentThreads / kLanes) + thread_idx() / kLanes;
  const bool is_mine = row < p.m;
  const int64_t begin = (is_mine ? row : 0) * p.stride_m, end = is_mine ? p.k : 0, first = span * kSegmentSpan<T>;
  Vector<T> raw[kSegmentVectors];
  TILEDMM_UNROLL for (int v = 0; v < kSegmentVectors; ++v) {
    const int64_t col = first + (v * kLanes + lane) * E::kCount;
    raw[v] = load_vector<IS_ALIGNED>(static_cast<const T*>(p.x), begin + col * p.stride_k, p.stride_k, end - col);
  }
  E elements;
  elements.keep(p.activation, raw);
  const Float8 format = float8_of(p.dtype_q);
  TILEDMM_UNROLL for (int v = 0; v < kSegmentVectors; ++v) {
    const int64_t col = first + (v * kLanes + lane) * E::kCount;
    const uint32_t largest = largest_of_lanes<1, kOfSegment>(elements.largest_of(v));
    const Float8Scale by = scale_for(format, largest, p.is_power_of_two);
    if (col < end) store_vector(p, format, row, col, elements, v, by.factor);
    if (col < end && lane % kOfSegment == 0) store_scale(p, row, col / kBlockK, by.scale);
  }
}

// A block for each square.
template <class T, bool HAS_ACT, bool IS_ALIGNED>
TILEDMM_KERNEL(kTileThreads, 2)
quantize_squares(QuantizeProblem p, int64_t num_k_blocks) {
  constexpr int kOfRow = kBlockK / Vector<T>::kCount, kRowsAtOnce = kTileThreads / kOfRow;  // threads, rows
  constexpr int kVectors = kBlockK / kRowsAtOnce;
  using E = Elements<T, HAS_ACT, kVectors>;
  auto& shared = block_shared<uint32_t[kTileGroups]>();
  const int64_t m_block = block_idx() / num_k_blocks, k_block = block_idx() - m_block * num_k_blocks;
  const int64_t col = k_block * kBlockK + thread_idx() % kOfRow * E::kCount;
  const int64_t first = m_block * kBlockK + thread_idx() / kOfRow;
  Vector<T> raw[kVectors];
  TILEDMM_UNROLL for (int v = 0; v < kVectors; ++v) {
    const int64_t row = first + v * kRowsAtOnce, left = row < p.m ? p.k - col : 0;
    raw[v] = load_vector<IS_ALIGNED>(static_cast<const T*>(p.x), row * p.stride_m + col * p.stride_k, p.stride_k, left);
  }
  E elements;
  elements.keep(p.activation, raw);
  const Float8 format = float8_of(p.dtype_q);
  const uint32_t largest = largest_of_groups<kTileGroups>(elements.largest(), shared);
  const Float8Scale by = scale_for(format, largest, p.is_power_of_two);
  elements.forget_numbers();
  TILEDMM_UNROLL for (int v = 0; v < kVectors; ++v) {
    const int64_t row = first + v * kRowsAtOnce;
    if (row < p.m && col < p.k) store_vector(p, format, row, col, elements, v, by.factor);
  }
  if (thread_idx() == 0) store_scale(p, m_block, k_block, by.scale);
}

// ---- Across: rows are neighbours
// A tile of ROWS rows by 128 elements of k, of which a thread has kCount rows and some elements of k that follow each
// other.
template <class T, bool HAS_ACT, int ROWS>
struct Tile {
  static constexpr int kCount = Vector<T>::kCount;
  static constexpr int kOfK = ROWS / kCount;  // threads that have one element of k
  static constexpr int kVectors = kBlockK / (kTileThreads / kOfK);
  static_assert(kOfK <= kLanes && kVectors % 4 == 0, "lanes meet by shuffles, and a thread packs words");
  Elements<T, HAS_ACT, kVectors> elements;

  TILEDMM_DEVICE static int own_row() { return thread_idx() % kOfK * kCount; }
  TILEDMM_DEVICE static int own_col() { return thread_idx() / kOfK * kVectors; }

  template <bool IS_ALIGNED>
  TILEDMM_DEVICE void load(const QuantizeProblem& p, int64_t row, int64_t col) {
    row += own_row(), col += own_col();
    Vector<T> raw[kVectors];
    TILEDMM_UNROLL for (int v = 0; v < kVectors; ++v) {
      const int64_t left = col + v < p.k ? p.m - row : 0, at = row * p.stride_m + (col + v) * p.stride_k;
      raw[v] = load_vector<IS_ALIGNED>(static_cast<const T*>(p.x), at, p.stride_m, left);
    }
    elements.keep(p.activation, raw);
  }
};

// The largest value of each row of a tile, which the block's first ROWS threads get; the others get 0. A thread brings
// those of its own rows.
template <int ROWS, int COUNT>
TILEDMM_DEVICE uint32_t largest_of_row(const uint32_t (&largest)[COUNT], uint32_t (&shared)[kTileGroups][ROWS]) {
  constexpr int kOfK = ROWS / COUNT;
  TILEDMM_UNROLL for (int j = 0; j < COUNT; ++j) {
    const uint32_t own = largest_of_lanes<kOfK, kLanes>(largest[j]);
    if (thread_idx() % kLanes < kOfK) {
      store_shared(&shared[thread_idx() / kLanes][thread_idx() % kOfK * COUNT + j], own);
    }
  }
  block_barrier();
  uint32_t result = 0;
  if (thread_idx() < ROWS) {
    TILEDMM_UNROLL for (int i = 0; i < kTileGroups; ++i) {
      result = larger_of(result, load_shared(&shared[i][thread_idx()]));
    }
  }
  return result;
}

constexpr int kRowsAcross = 64;  // of a tile whose rows have scales of their own

// Of each row the largest of `tiles_of_block` tiles, as a part: [part][row].
template <class T, bool HAS_ACT, bool IS_ALIGNED>
TILEDMM_KERNEL(kTileThreads, 2)
find_largest(QuantizeProblem p, uint32_t* parts, int64_t num_row_tiles, int tiles_of_block) {
  using Own = Tile<T, HAS_ACT, kRowsAcross>;
  auto& shared = block_shared<uint32_t[kTileGroups][kRowsAcross]>();
  let_later_kernels_start();
  const int64_t part = block_idx() / num_row_tiles, row = (block_idx() - part * num_row_tiles) * kRowsAcross;
  uint32_t largest[Own::kCount] = {};
  TILEDMM_NO_UNROLL for (int i = 0; i < tiles_of_block; ++i) {
    const int64_t col = (part * tiles_of_block + i) * kBlockK;
    if (col >= p.k) break;
    Own tile;
    tile.template load<IS_ALIGNED>(p, row, col);
    TILEDMM_UNROLL for (int j = 0; j < Own::kCount; ++j) {
      largest[j] = larger_of(largest[j], tile.elements.largest_at(j));
    }
  }
  const uint32_t own = largest_of_row<kRowsAcross>(largest, shared);
  if (thread_idx() < kRowsAcross && row + thread_idx() < p.m) {
    store_global(parts + part * p.m + row + thread_idx(), own);
  }
}

// What the threads of a tile tell each other. A row of words has one more than it needs, for other banks.
template <int ROWS>
struct SharedTile {
  uint32_t largest[kTileGroups][ROWS];
  float factors[ROWS];
  uint32_t words[ROWS][kBlockK / 4 + 1];
};

// The tile's scales: those of its rows in whole, by parts, or of its own segments; or one of the square that it is.
template <ScaleBlock BLOCK, class Tile, int ROWS>
TILEDMM_DEVICE void find_factors(const QuantizeProblem& p, const Float8& format, const Tile& tile, int64_t row,
                                 int64_t col, const uint32_t* parts, int64_t num_parts, SharedTile<ROWS>& shared) {
  if constexpr (BLOCK == ScaleBlock::square) {
    uint32_t (&groups)[kTileGroups] = *reinterpret_cast<uint32_t (*)[kTileGroups]>(&shared.largest[0][0]);
    const uint32_t largest = largest_of_groups<kTileGroups>(tile.elements.largest(), groups);
    const Float8Scale by = scale_for(format, largest, p.is_power_of_two);
    if (thread_idx() < ROWS) store_shared(&shared.factors[thread_idx()], by.factor);
    if (thread_idx() == 0) store_scale(p, row / ROWS, col / kBlockK, by.scale);
  } else {
    const int64_t own_row = row + thread_idx();
    const bool has_row = thread_idx() < ROWS && own_row < p.m;
    uint32_t largest = 0;
    if constexpr (BLOCK == ScaleBlock::row) {
      if (has_row) {
        for (int64_t i = 0; i < num_parts; ++i) largest = larger_of(largest, load_global(parts + i * p.m + own_row));
      }
    } else {
      uint32_t own[Tile::kCount];
      TILEDMM_UNROLL for (int j = 0; j < Tile::kCount; ++j) own[j] = tile.elements.largest_at(j);
      largest = largest_of_row<ROWS>(own, shared.largest);
    }
    if (thread_idx() < ROWS) {
      const Float8Scale by = scale_for(format, largest, p.is_power_of_two);
      store_shared(&shared.factors[thread_idx()], by.factor);
      const bool is_first = BLOCK == ScaleBlock::segment || col == 0;
      if (has_row && is_first) store_scale(p, own_row, col / kBlockK, by.scale);
    }
  }
}

template <class T, bool HAS_ACT, bool IS_ALIGNED, ScaleBlock BLOCK>
TILEDMM_KERNEL(kTileThreads, 2)
quantize_across(QuantizeProblem p, const uint32_t* parts, int64_t num_parts, int64_t num_row_tiles) {
  constexpr int kRows = BLOCK == ScaleBlock::square ? kBlockK : kRowsAcross;
  using Own = Tile<T, HAS_ACT, kRows>;
  auto& shared = block_shared<SharedTile<kRows>>();
  wait_for_earlier_kernels();
  const int64_t k_block = block_idx() / num_row_tiles, col = k_block * kBlockK;
  const int64_t row = (block_idx() - k_block * num_row_tiles) * kRows;
  Own tile;
  tile.template load<IS_ALIGNED>(p, row, col);
  const Float8 format = float8_of(p.dtype_q);
  find_factors<BLOCK>(p, format, tile, row, col, parts, num_parts, shared);
  block_barrier();  // the factors are there
  tile.elements.forget_numbers();
  TILEDMM_UNROLL for (int j = 0; j < Own::kCount; ++j) {
    const float factor = load_shared(&shared.factors[Own::own_row() + j]);
    TILEDMM_UNROLL for (int v = 0; v < Own::kVectors; v += 4) {
      float scaled[4];
      TILEDMM_UNROLL for (int i = 0; i < 4; ++i) scaled[i] = tile.elements.number(v + i, j) * factor;
      const uint32_t low = pack_float8(format, scaled[0], scaled[1]), high = pack_float8(format, scaled[2], scaled[3]);
      store_shared(&shared.words[Own::own_row() + j][(Own::own_col() + v) / 4], low | high << 16);
    }
  }
  block_barrier();  // the rows are whole
  const int lane = thread_idx() % kLanes;
  for (int r = thread_idx() / kLanes; r < kRows; r += kTileGroups) {
    if (row + r >= p.m || col + 4 * lane >= p.k) continue;
    auto* const to = static_cast<unsigned char*>(p.q) + (row + r) * p.stride_q + col + 4 * lane;
    store_global(reinterpret_cast<uint32_t*>(to), load_shared(&shared.words[r][lane]));
  }
}

// ---- Launch
template <class T, bool HAS_ACT, bool IS_ALIGNED>
Status launch_along(const QuantizeProblem& p, const Executor& executor) {
  constexpr int kCount = Vector<T>::kCount;
  const int64_t num_k_blocks = ceil_div(p.k, kBlockK);
  if (p.block == ScaleBlock::square) {
    return launch_kernel(quantize_squares<T, HAS_ACT, IS_ALIGNED>, ceil_div(p.m, kBlockK) * num_k_blocks, 1,
                         kTileThreads, sizeof(uint32_t[kTileGroups]), executor, p, num_k_blocks);
  }
  if (p.block == ScaleBlock::segment) {
    const int64_t num_spans = ceil_div(p.k, kSegmentSpan<T>);
    return launch_kernel(quantize_segments<T, HAS_ACT, IS_ALIGNED>, ceil_div(p.m, kSegmentThreads / kLanes) * num_spans,
                         1, kSegmentThreads, 0, executor, p, num_spans);
  }
  const auto launch = [&](auto* kernel, int groups) {
    const int threads = row_threads(groups);
    return launch_kernel(kernel, ceil_div(p.m, threads / (groups * kLanes)), 1, threads, groups * sizeof(uint32_t),
                         executor, p);
  };
  if (p.k <= 1 * kLanes * 4 * kCount) return launch(quantize_rows<T, HAS_ACT, IS_ALIGNED, 1, 4>, 1);
  if (p.k <= 4 * kLanes * 8 * kCount) return launch(quantize_rows<T, HAS_ACT, IS_ALIGNED, 4, 8>, 4);
  if (p.k <= 16 * kLanes * 8 * kCount) return launch(quantize_rows<T, HAS_ACT, IS_ALIGNED, 16, 8>, 16);
  return launch(quantize_long_rows<T, HAS_ACT, IS_ALIGNED>, kLongGroups);
}

template <class T, bool HAS_ACT, bool IS_ALIGNED, ScaleBlock BLOCK>
Status launch_tiles(const QuantizeProblem& p, const uint32_t* parts, int64_t num_parts, const Executor& executor) {
  constexpr int kRows = BLOCK == ScaleBlock::square ? kBlockK : kRowsAcross;
  const int64_t num_row_tiles = ceil_div(p.m, kRows), num_tiles = num_row_tiles * ceil_div(p.k, kBlockK);
  const auto start = [&](auto... args) {
    if constexpr (BLOCK == ScaleBlock::row) return launch_early(args...);
    return launch_kernel(args...);
  };
  return start(quantize_across<T, HAS_ACT, IS_ALIGNED, BLOCK>, num_tiles, 1, kTileThreads, sizeof(SharedTile<kRows>),
               executor, p, parts, num_parts, num_row_tiles);
}

template <class T, bool HAS_ACT, bool IS_ALIGNED>
Status launch_across(const QuantizeProblem& p, const Executor& executor) {
  if (p.block == ScaleBlock::square) {
    return launch_tiles<T, HAS_ACT, IS_ALIGNED, ScaleBlock::square>(p, nullptr, 0, executor);
  }
  if (p.block == ScaleBlock::segment) {
    return launch_tiles<T, HAS_ACT, IS_ALIGNED, ScaleBlock::segment>(p, nullptr, 0, executor);
  }
  // Some blocks for each unit, and few parts, which every tile reads.
  const int64_t num_row_tiles = ceil_div(p.m, kRowsAcross), num_k_tiles = ceil_div(p.k, kBlockK);
  const int64_t wanted = ceil_div(num_row_tiles * num_k_tiles, 4 * int64_t(executor.num_cus));
  const auto tiles_of_block = int(min_of(wanted, num_k_tiles));
  const int64_t num_parts = ceil_div(num_k_tiles, tiles_of_block);
  auto* const parts =
      static_cast<uint32_t*>(executor.allocate(executor.self, size_t(num_parts * p.m) * sizeof(uint32_t)));
  if (!parts) return Status::out_of_memory;
  Status status =
      launch_kernel(find_largest<T, HAS_ACT, IS_ALIGNED>, num_row_tiles * num_parts, 1, kTileThreads,
                    sizeof(uint32_t[kTileGroups][kRowsAcross]), executor, p, parts, num_row_tiles, tiles_of_block);
  if (status == Status::ok) {
    status = launch_tiles<T, HAS_ACT, IS_ALIGNED, ScaleBlock::row>(p, parts, num_parts, executor);
  }
  executor.release(executor.self, parts);
  return status;
}

}  // namespace

Status launch_quantize(const QuantizeProblem& problem, const Executor& executor) {
  const QuantizeProblem& p = problem;
  const bool is_across = p.stride_m == 1 && p.stride_k != 1 && p.m > 1 && p.k > 1;
  const int64_t size = size_of(p.dtype), side_by_side = is_across ? p.m : p.k;
  const int64_t rows = is_across ? p.k : p.m, step = is_across ? p.stride_k : p.stride_m;
  const bool is_aligned = (is_across || p.stride_k == 1) && reinterpret_cast<uintptr_t>(p.x) % 16 == 0 &&
                          side_by_side * size % 16 == 0 && (rows == 1 || step * size % 16 == 0);
  return visit_dtype(p.dtype, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    const auto launch = [&](auto has_activation, auto aligned) {
      constexpr bool kHasAct = decltype(has_activation)::value, kIsAligned = decltype(aligned)::value;
      return is_across ? launch_across<T, kHasAct, kIsAligned>(p, executor)
                       : launch_along<T, kHasAct, kIsAligned>(p, executor);
    };
    const auto launch_kind = [&](auto has_activation) {
      return is_aligned ? launch(has_activation, std::true_type{}) : launch(has_activation, std::false_type{});
    };
    if constexpr (sizeof(T) <= 4) {
      return p.activation == Activation::none ? launch_kind(std::false_type{}) : launch_kind(std::true_type{});
    }
    return Status::unsupported;
  });
}

}  // namespace tiledmm::gpu

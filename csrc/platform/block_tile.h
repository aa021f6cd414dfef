// Moves block tiles of an operand: global memory -> registers of a thread -> shared memory. Any strides, any size: what
// lies outside becomes zero. 16 bytes at a time where the operand allows it, element by element where not.
//
// `mn` is the operand's own dimension: m of A, n of B.
#pragma once

#include "core/groups.h"
#include "core/math.h"
#include "core/operand.h"
#include "platform/epilogue.h"
#include "platform/widen.h"

namespace tiledmm::gpu {

// A or B of one product.
template <class T>
struct Operand {
  const T* base;
  int64_t stride_mn, stride_k;
  int64_t size_mn, size_k;
  bool is_vectorised;  // every 16 bytes along the close dimension lie together and aligned

  TILEDMM_DEVICE Operand(const void* memory, int64_t stride_mn, int64_t stride_k, int64_t size_mn, int64_t size_k)
      : base(static_cast<const T*>(memory)),
        stride_mn(stride_mn),
        stride_k(stride_k),
        size_mn(size_mn),
        size_k(size_k) {
    const int64_t close = is_k_major(stride_mn, stride_k) ? stride_k : stride_mn;
    const int64_t far = is_k_major(stride_mn, stride_k) ? stride_mn : stride_k;
    is_vectorised = close == 1 && far * int64_t(sizeof(T)) % 16 == 0 && reinterpret_cast<uintptr_t>(base) % 16 == 0;
  }
};

template <class T>
TILEDMM_DEVICE Operand<T> operand_a(const GemmProblem& problem) {
  return {problem.a, problem.stride_am, problem.stride_ak, problem.m, problem.k};
}
template <class T>
TILEDMM_DEVICE Operand<T> operand_b(const GemmProblem& problem) {
  return {problem.b, problem.stride_bn, problem.stride_bk, problem.n, problem.k};
}

template <class T>
TILEDMM_DEVICE T load_or_zero(const Operand<T>& operand, int64_t mn, int64_t k) {
  const bool pred = mn < operand.size_mn && k < operand.size_k;
  return pred ? load_global(operand.base + mn * operand.stride_mn + k * operand.stride_k) : T{};
}

// Elements along the close dimension that a thread moves at a time: 16 bytes, or 8 that become 16.
template <class T, int ELEMENTS = 16 / int(sizeof(T))>
union Packet {
  static constexpr int kElements = ELEMENTS;
  using Vector = std::conditional_t<sizeof(T) * ELEMENTS == 16, Vector16, Vector8>;
  Vector vector;
  T elements[kElements];
};

// The packet at `offset`, of which `inside` elements lie inside of the operand.
template <class P, class T>
TILEDMM_DEVICE P load_edge_packet(const Operand<T>& operand, int64_t offset, int64_t stride, int inside) {
  constexpr int kElements = P::kElements;
  P packet;
  if (operand.is_vectorised && inside >= kElements) {
    packet.vector = load_global(reinterpret_cast<const typename P::Vector*>(operand.base + offset));
    return packet;
  }
  TILEDMM_UNROLL for (int e = 0; e < kElements; ++e) {
    packet.elements[e] = e < inside ? load_global(operand.base + offset) : T{};
    offset = opaque(offset + stride);
  }
  return packet;
}

// One thread's part of an operand's block tiles, packet by packet: neighbouring threads along the close dimension
// first. P: a packet of elements T.
template <class T, int BLOCK_MN, int BLOCK_K, bool IS_K_MAJOR, int NUM_THREADS, bool IS_PAIRED, class P = Packet<T>>
struct TileReader {
  static constexpr int kElements = P::kElements;
  static constexpr int kClose = IS_K_MAJOR ? BLOCK_K : BLOCK_MN, kFar = IS_K_MAJOR ? BLOCK_MN : BLOCK_K;
  static constexpr int kPacketsPerRow = kClose / kElements;
  static constexpr int kRows = IS_PAIRED ? 2 : 1;  // rows that a thread holds side by side
  static constexpr int kRowsPerStep = NUM_THREADS / kPacketsPerRow * kRows;
  static constexpr int kPackets = (kFar + kRowsPerStep - 1) / kRowsPerStep * kRows;
  static_assert(kClose % kElements == 0 && NUM_THREADS % kPacketsPerRow == 0,
                "a thread stays in its column of packets");
  static_assert(kFar % kRowsPerStep == 0 || kFar < kRowsPerStep, "every thread moves as many packets, or one or none");

  Operand<T> operand;
  int64_t mn;      // of the block tile
  bool is_inside;  // all of it along mn, so that tiles can take the short way
  int close, far;  // of this thread's first packet
  const T* from;   // it, at k = 0

  TILEDMM_DEVICE TileReader(const Operand<T>& operand, int64_t mn)
      : operand(operand),
        mn(mn),
        close(thread_idx() % kPacketsPerRow * kElements),
        far(thread_idx() / kPacketsPerRow * kRows) {
    // Within a tile, 32 bits count elements.
    is_inside = operand.is_vectorised && mn + BLOCK_MN <= operand.size_mn && stride_far() * kFar < int64_t(1) << 31;
    from = operand.base + mn * operand.stride_mn + close * stride_close() + far * stride_far();
  }

  TILEDMM_DEVICE int64_t stride_close() const { return IS_K_MAJOR ? operand.stride_k : operand.stride_mn; }
  TILEDMM_DEVICE int64_t stride_far() const { return IS_K_MAJOR ? operand.stride_mn : operand.stride_k; }
  // Whether this thread has packets at all.
  TILEDMM_DEVICE bool has_packets() const { return kFar % kRowsPerStep == 0 || far < kFar; }

  static constexpr int far_of(int packet) { return packet / kRows * kRowsPerStep + packet % kRows; }

  // Reads the packets of the tile at k.
  TILEDMM_DEVICE void load(int64_t k, P (&staged)[kPackets]) const {
    if (!has_packets()) return;
    if (is_inside && k + BLOCK_K <= operand.size_k) {
      const T* tile = from + k * operand.stride_k;
      const auto step = uint32_t(stride_far());
      TILEDMM_UNROLL for (int packet = 0; packet < kPackets; ++packet) {
        staged[packet].vector =
            load_global(reinterpret_cast<const typename P::Vector*>(tile + uint32_t(far_of(packet)) * step));
      }
    } else {
      const int64_t left_k = min_of(operand.size_k - k, BLOCK_K), left_mn = min_of(operand.size_mn - mn, BLOCK_MN);
      const int inside_close = opaque(int(IS_K_MAJOR ? left_k : left_mn) - close);
      const int inside_far = opaque(int(IS_K_MAJOR ? left_mn : left_k) - far);
      const int64_t offset = opaque(from - operand.base + k * operand.stride_k);
      TILEDMM_UNROLL for (int packet = 0; packet < kPackets; ++packet) {
        staged[packet] = load_edge_packet<P>(operand, opaque(offset + far_of(packet) * stride_far()), stride_close(),
                                             far_of(packet) < inside_far ? opaque(inside_close) : 0);
      }
    }
  }
};

// What a matrix instruction takes at one time: one element, or two 16-bit elements that follow each other along k.
template <class T>
struct WordOf {
  using Word = T;
  static constexpr int kElements = 1;
};
template <>
struct WordOf<Half> {
  using Word = uint32_t;
  static constexpr int kElements = 2;
};
template <>
struct WordOf<BFloat16> : WordOf<Half> {};
template <>
struct WordOf<E4m3> {  // before they are widened
  using Word = uint16_t;
  static constexpr int kElements = 2;
};

// A block tile in words, in shared memory with rows padded so that the fragments' loads have no bank conflicts: k-major
// [mn][word] or mn-major [word][mn]. 16-bit elements are paired along k in both; only where ldmatrix can transpose,
// mn-major ones stay as they are, [k][mn]. W: an element in global memory, T or one of 8 bits that becomes it.
template <class T, int BLOCK_MN, int BLOCK_K, bool IS_K_MAJOR, int NUM_THREADS, class W = T>
struct BlockTile {
  using Word = typename WordOf<T>::Word;
  static constexpr int kWordsK = BLOCK_K / WordOf<T>::kElements;
  static constexpr bool kIsTransposing = kHasLdmatrix && !IS_K_MAJOR && WordOf<T>::kElements == 2;
  static constexpr bool kUsesLdmatrix = kIsTransposing || (kHasLdmatrix && IS_K_MAJOR && sizeof(Word) == 4);
  static constexpr bool kIsPaired = !kIsTransposing && !IS_K_MAJOR && WordOf<T>::kElements == 2;
  static constexpr int kPad = IS_K_MAJOR || sizeof(Word) == 8 ? 4 : 8;
  static constexpr int kStrideMn = IS_K_MAJOR ? kWordsK + kPad : 1;
  static constexpr int kStrideWord = IS_K_MAJOR ? 1 : BLOCK_MN + kPad;
  using Staged = Packet<W, Packet<T>::kElements>;
  using Reader = TileReader<W, BLOCK_MN, BLOCK_K, IS_K_MAJOR, NUM_THREADS, kIsPaired, Staged>;

  struct Shared {
    alignas(16) Word words[IS_K_MAJOR ? BLOCK_MN * kStrideMn : kWordsK * kStrideWord];

    // Element (k, mn) of a transposing tile.
    TILEDMM_DEVICE T* element(int k, int mn) { return reinterpret_cast<T*>(words) + k * kStrideK + mn; }
    TILEDMM_DEVICE const T* element(int k, int mn) const {
      return reinterpret_cast<const T*>(words) + k * kStrideK + mn;
    }
    static constexpr int kStrideK = BLOCK_MN + 8;
  };

  Reader reader;
  Staged staged[Reader::kPackets];
  DType dtype;  // of an operand of 8 bits

  // The block tiles of `operand` from mn on.
  TILEDMM_DEVICE BlockTile(const Operand<W>& operand, int64_t mn, DType dtype = DType::f32)
      : reader(operand, mn), dtype(dtype) {}

  TILEDMM_DEVICE void load_block_tile(int64_t k) { reader.load(k, staged); }

  // A packet as elements T.
  TILEDMM_DEVICE Vector16 staged_vector(int packet) const {
    if constexpr (std::is_same_v<W, T>) {
      return staged[packet].vector;
    } else {
      Vector16 wide;
      TILEDMM_UNROLL for (int i = 0; i < 4; ++i) wide.words[i] =
          widened_float8<T>(dtype == DType::e5m2, staged[packet].vector.words[i / 2] >> 16 * (i % 2) & 0xffff);
      return wide;
    }
  }

  TILEDMM_DEVICE void store_block_tile(Shared& shared) const {
    if (!reader.has_packets()) return;
    TILEDMM_UNROLL for (int packet = 0; packet < Reader::kPackets; packet += Reader::kRows) {
      const int far = reader.far + Reader::far_of(packet);
      const int mn = IS_K_MAJOR ? far : reader.close, k = IS_K_MAJOR ? reader.close : far;
      auto* to = reinterpret_cast<Vector16*>(
          kIsTransposing ? static_cast<void*>(shared.element(k, mn))
                         : &shared.words[mn * kStrideMn + k / WordOf<T>::kElements * kStrideWord]);
      if constexpr (kIsPaired) {
        const Vector16 even = staged_vector(packet), odd = staged_vector(packet + 1);
        TILEDMM_UNROLL for (int half = 0; half < 2; ++half) {
          Vector16 pairs;
          TILEDMM_UNROLL for (int w = 0; w < 2; ++w) {
            const uint32_t from_even = even.words[2 * half + w], from_odd = odd.words[2 * half + w];
            pairs.words[2 * w] = (from_even & 0xffff) | (from_odd << 16);
            pairs.words[2 * w + 1] = (from_even >> 16) | (from_odd & 0xffff0000);
          }
          store_shared(to + half, pairs);
        }
      } else {
        store_shared(to, staged_vector(packet));
      }
    }
  }

  // By ldmatrix: the words of two groups of 8 along mn and of two groups of 4 along k from (mn, word). The groups of mn
  // come first for A, those of k for B: an instruction takes the registers of its fragment in a row.
  template <bool IS_A>
  static TILEDMM_DEVICE void load_words(const Shared& shared, int mn, int word, Word& w0, Word& w1, Word& w2,
                                        Word& w3) {
    const int lane = thread_idx() % 32, matrix = lane / 8, row = lane % 8;
    const int group_mn = IS_A ? matrix % 2 : matrix / 2, group_k = IS_A ? matrix / 2 : matrix % 2;
    if constexpr (IS_K_MAJOR) {
      const void* from = &shared.words[(mn + 8 * group_mn + row) * kStrideMn + word + 4 * group_k];
      ldmatrix<false>(from, w0, w1, w2, w3);
    } else {
      ldmatrix<true>(shared.element(2 * word + 8 * group_k + row, mn + 8 * group_mn), w0, w1, w2, w3);
    }
  }

  static TILEDMM_DEVICE Word load_word(const Shared& shared, int mn, int word) {
    return load_shared(&shared.words[mn * kStrideMn + word * kStrideWord]);
  }
};

// The word at (mn, word) straight from global memory.
template <class T>
TILEDMM_DEVICE typename WordOf<T>::Word load_word_or_zero(const Operand<T>& operand, int64_t mn, int64_t word) {
  if constexpr (WordOf<T>::kElements == 1) {
    return load_or_zero(operand, mn, word);
  } else {
    return uint32_t(load_or_zero(operand, mn, 2 * word).bits) | uint32_t(load_or_zero(operand, mn, 2 * word + 1).bits)
                                                                    << 16;
  }
}

// A piece of C on its way from one warp's registers to global memory: through shared memory, so that stores are
// coalesced whatever the registers' layout, and the code of bias and activation exists once and not for each register.
template <class T, int ROWS, int COLS>
struct WarpStrip {
  static constexpr int kPad = 4;
  alignas(16) Acc<T> acc[ROWS][COLS + kPad];

  // C = activation(acc + bias) for rows row, row + row_step, ... and columns from col on. All lanes have written their
  // part; none may overwrite it before the next warp_barrier().
  TILEDMM_DEVICE void store(const GemmProblem& problem, int64_t row, int row_step, int64_t col) const {
    warp_barrier();
    const bool are_rows_close = is_column_major(problem);
    for (int idx = thread_idx() % kWarpSize; idx < ROWS * COLS; idx += kWarpSize) {
      const int r = are_rows_close ? idx % ROWS : idx / COLS, c = are_rows_close ? idx / ROWS : idx % COLS;
      store_element<T>(problem, row + r * row_step, col + c, load_shared(&acc[r][c]));
    }
    warp_barrier();
  }
};

// Block tiles of C in the order in which they are computed: along n first.
struct TilePlace {
  int64_t row, col;
};
template <int BLOCK_M, int BLOCK_N>
TILEDMM_DEVICE TilePlace tile_place(const GemmProblem& problem) {
  const int64_t tiles_n = ceil_div(problem.n, BLOCK_N), tile_m = block_idx() / tiles_n;
  return {tile_m * BLOCK_M, (block_idx() - tile_m * tiles_n) * BLOCK_N};
}

constexpr int64_t num_tiles(const GemmProblem& problem, int64_t block_m, int64_t block_n) {
  return ceil_div(problem.m, block_m) * ceil_div(problem.n, block_n);
}
constexpr int64_t num_tiles(const FoldedProblem& problem, int64_t block_m, int64_t block_n) {
  return num_tile_rows(problem, block_m) * ceil_div(problem.gemm.n, block_n);
}

// A row of tiles of a group's product.
struct GroupWork {
  GemmProblem gemm;
  int64_t tile_row;
};

// group_work finds the group that a row of tiles of C belongs to. Groups of k are the batch's items. Rows of tiles that
// groups of rows leave over lie behind the last row of theirs.
template <int BLOCK_M, bool MAY_HAVE_8_BITS = false>
TILEDMM_DEVICE GroupWork group_work(const FoldedProblem& problem, int64_t batch_idx, int64_t tile_row) {
  const GemmProblem& whole = problem.gemm;
  const BatchDim& groups = problem.batch_dims[0];
  const bool is_rows = whole.grouping == Grouping::rows;
  const int64_t size = is_rows ? whole.m : whole.k;
  int64_t group = batch_idx;
  if (is_rows) {
    group = 0;  // begins with this row of tiles or before it, whatever the offsets are
    for (int64_t last = groups.size; group < last;) {
      const int64_t middle = (group + last + 1) / 2, end = load_global(whole.group_ends + middle - 1);
      if (first_tile_row(middle, group_range(end, size, size).begin, BLOCK_M) <= tile_row) {
        group = middle;
      } else {
        last = middle - 1;
      }
    }
  }
  const int64_t previous_end = group > 0 ? load_global(whole.group_ends + group - 1) : 0;
  const GroupRange range =
      group_range(previous_end, group < groups.size ? load_global(whole.group_ends + group) : size, size);
  if (is_rows) tile_row -= first_tile_row(group, range.begin, BLOCK_M);
  GemmProblem item = whole;
  take_group<MAY_HAVE_8_BITS>(item, groups, group, range);
  return {item, tile_row};
}

// What a block computes: a tile of a product.
struct BlockWork {
  GemmProblem gemm;
  TilePlace tile;
};

// block_work finds the tile of an item of the batch.
template <int BLOCK_M, int BLOCK_N, bool IS_GROUPED, bool MAY_HAVE_8_BITS = false>
TILEDMM_DEVICE std::enable_if_t<!IS_GROUPED, BlockWork> block_work(const FoldedProblem& problem, int64_t batch_idx) {
  const GemmProblem item = item_of(problem, batch_idx);
  return {item, tile_place<BLOCK_M, BLOCK_N>(item)};
}

// This block_work finds the tile of a group. Groups have kernels of their own, since others would have to keep the
// sizes of their item in registers.
template <int BLOCK_M, int BLOCK_N, bool IS_GROUPED, bool MAY_HAVE_8_BITS = false>
TILEDMM_DEVICE std::enable_if_t<IS_GROUPED, BlockWork> block_work(const FoldedProblem& problem, int64_t batch_idx) {
  const TilePlace tile = tile_place<BLOCK_M, BLOCK_N>(problem.gemm);
  const GroupWork work = group_work<BLOCK_M, MAY_HAVE_8_BITS>(problem, batch_idx, tile.row / BLOCK_M);
  return {work.gemm, {work.tile_row * BLOCK_M, tile.col}};
}

// Blocks along y: one for each product of the batch, or several products for each block.
constexpr int64_t num_batch_blocks(const FoldedProblem& problem) { return min_of(problem.batch_size, 65535); }

}  // namespace tiledmm::gpu

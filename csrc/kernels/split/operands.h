// The first kernel of a product by split operands: operands as fp16 terms, along k, with scales and flags.
//
// What is written depends on the row alone. The terms, scales and flags are those of terms.h.
#pragma once

#include "core/operand.h"
#include "kernels/split/terms.h"
#include "platform/copied_batch.h"

namespace tiledmm::gpu {
namespace {

constexpr int kSplitThreads = 256;
constexpr int kSplitLanes = kSplitThreads / kSplitRows;      // threads of a row's chunk of k
constexpr int kSplitQuads = kSplitChunkK / kSplitLanes / 4;  // of neighbours along k, that a thread has
constexpr int kHalfBlockK = kSplitBlockK / 2;                // eight threads have one quad in each half of a block
constexpr int kSplitPitch = kSplitChunkK + 4;                // of a row in shared memory, a multiple of 16 bytes

// One operand, where its terms go, and its tiles.
struct SplitOperand {
  const void* from;
  DType dtype;
  int64_t stride_row, stride_k;
  SplitLayout layout;
  Half* terms;
  float* scales;                         // of [item][chunk][row]
  uint8_t* flags;                        // the same
  bool is_along_k, is_aligned;           // the direction of memory, whose quads of elements are aligned
  int tile_rows, tiles_rows, num_tiles;  // rows of a tile; tiles along the rows, in all
  CopiedBatch batch;
};
struct SplitOperands {
  SplitOperand of[2];
};

// The items of both operands that a product of the batch takes.
struct SplitItem {
  int64_t a, b;
};

// The steps between them, by dimension of the batch.
struct SplitSteps {
  int a[kMaxGpuBatchDims], b[kMaxGpuBatchDims];

  SplitSteps() = default;
  // `items`: as split_operand() leaves it.
  SplitSteps(const FoldedProblem& problem, const FoldedProblem& items) : a{}, b{} {
    for (int32_t d = 0; d < problem.gemm.num_batch_dims; ++d) {
      a[d] = int(items.batch_dims[d].stride_a);
      b[d] = int(items.batch_dims[d].stride_b);
    }
  }

  TILEDMM_DEVICE SplitItem item_of(const FoldedProblem& problem, int batch_idx) const {
    SplitItem item{};
    TILEDMM_NO_UNROLL for (int d = problem.gemm.num_batch_dims - 1; d >= 0; --d) {
      const int size = int(problem.batch_dims[d].size), outer = batch_idx / size;
      item.a += (batch_idx - outer * size) * a[d];
      item.b += (batch_idx - outer * size) * b[d];
      batch_idx = outer;
    }
    return item;
  }
};

struct alignas(8) TermPair {  // four terms
  uint32_t words[2];
};

// Where the terms of an item go. Apart: all first ones, then all second ones if there are such. Side by side: the first
// ones of each half of a row's block, then its second ones.
enum class SplitPlaces { apart, side_by_side };

// Rows of a tile that does not lie aligned along k. More of them are longer pieces of memory where rows are neighbours,
// and more shared memory.
template <SplitPlaces PLACES>
constexpr int kScatteredRows = PLACES == SplitPlaces::apart ? 2 * kSplitRows : kSplitRows;

// Blocks that share a unit: registers limit them on NVIDIA's chips, LDS on AMD's.
template <SplitPlaces PLACES>
constexpr int kSplitBlocksOfCu = PLACES == SplitPlaces::apart ? 4 : 3;

template <int ROWS>
struct alignas(16) SplitTile {
  float rows[ROWS][kSplitPitch];
};

// Four neighbours in memory as fp32.
template <class T>
TILEDMM_DEVICE Vector16 load_quad(const T* at) {
  if constexpr (sizeof(T) == 4) {
    return load_global(reinterpret_cast<const Vector16*>(at));
  } else {
    const Vector8 pairs = load_global(reinterpret_cast<const Vector8*>(at));
    Vector16 quad;
    TILEDMM_UNROLL for (int e = 0; e < 4; ++e) {
      quad.words[e] = bits_of(as_acc(T{uint16_t(pairs.words[e / 2] >> e % 2 * 16)}));
    }
    return quad;
  }
}

// One tile of an operand of elements T: rows of a chunk of k.
template <class T>
struct SplitSource {
  const T* from;  // its first element
  int64_t stride_row, stride_k;
  int rows, k;  // inside of the operand, from there on

  // Where quad `i` of a thread begins along k.
  TILEDMM_DEVICE static int quad_k(int i) {
    const int lane = thread_idx() % kSplitLanes;
    return (i / 2 * (kSplitLanes / 8) + lane / 8) * kSplitBlockK + i % 2 * kHalfBlockK + lane % 8 * 4;
  }
  TILEDMM_DEVICE static Vector16 load_quad_if(bool is_inside, const T* at) {
    return is_inside ? load_quad(at) : Vector16{};
  }
  // This loads a thread's quads of a row that is aligned along k. Each quad lies inside or outside as a whole.
  TILEDMM_DEVICE void load_quads(Vector16 (&quads)[kSplitQuads], int row) const {
    TILEDMM_UNROLL for (int i = 0; i < kSplitQuads; ++i) {
      quads[i] = load_quad_if(row < rows && quad_k(i) < k, from + row * stride_row + quad_k(i));
    }
  }
  // This copies a tile to shared memory whose rows are neighbours, in aligned quads across rows that lie inside or
  // outside as a whole. All loads are on their way at the same time.
  template <int ROWS>
  TILEDMM_DEVICE void copy_rows(float (&tile)[ROWS][kSplitPitch]) const {
    constexpr int kQuads = ROWS / 4, kCount = kQuads * kSplitChunkK / kSplitThreads;
    const int row = thread_idx() % kQuads * 4, first_k = thread_idx() / kQuads;
    Vector16 quads[kCount];
    TILEDMM_UNROLL for (int i = 0; i < kCount; ++i) {
      const int at_k = first_k + i * (kSplitThreads / kQuads);
      quads[i] = load_quad_if(row < rows && at_k < k, from + at_k * stride_k + row);
    }
    TILEDMM_UNROLL for (int i = 0; i < kCount; ++i) {
      TILEDMM_UNROLL for (int e = 0; e < 4; ++e) tile[row + e][first_k + i * (kSplitThreads / kQuads)] =
          float_of(quads[i].words[e]);
    }
  }
  // This copies any tile to shared memory, element by element. Neighbouring threads read neighbouring memory.
  template <int ROWS>
  TILEDMM_DEVICE void copy_scattered(float (&tile)[ROWS][kSplitPitch], bool is_along_k) const {
    constexpr int kAtOnce = 8;
    static_assert(ROWS * kSplitChunkK % (kAtOnce * kSplitThreads) == 0, "every thread copies as much");
    TILEDMM_NO_UNROLL for (int first = thread_idx(); first < ROWS * kSplitChunkK; first += kAtOnce * kSplitThreads) {
      float values[kAtOnce];
      int rows_of[kAtOnce], ks_of[kAtOnce];
      TILEDMM_UNROLL for (int i = 0; i < kAtOnce; ++i) {
        const int idx = first + i * kSplitThreads;
        rows_of[i] = is_along_k ? idx / kSplitChunkK : idx % ROWS;
        ks_of[i] = is_along_k ? idx % kSplitChunkK : idx / ROWS;
        const bool is_inside = rows_of[i] < rows && ks_of[i] < k;
        values[i] = is_inside ? as_acc(from[rows_of[i] * stride_row + ks_of[i] * stride_k]) : 0;
      }
      TILEDMM_UNROLL for (int i = 0; i < kAtOnce; ++i) tile[rows_of[i]][ks_of[i]] = values[i];
    }
  }
};

// The terms, scale and flag of a row's chunk of elements T.
template <SplitPlaces PLACES, class T>
TILEDMM_DEVICE void split_row(const SplitOperand& operand, const Vector16 (&quads)[kSplitQuads], int item, int chunk,
                              int row, int rest_k) {
  constexpr bool kAreApart = PLACES == SplitPlaces::apart;
  constexpr int kStep = kAreApart ? 1 : 2;  // of a row's terms, for each k
  const SplitLayout& layout = operand.layout;
  const int lane = thread_idx() % kSplitLanes;
  ChunkRange range;
  TILEDMM_UNROLL for (int i = 0; i < 4 * kSplitQuads; ++i) range.take(float_of(quads[i / 4].words[i % 4]));
  TILEDMM_UNROLL for (int step = 1; step < kSplitLanes; step *= 2) {
    range.join(lane_xor(range.largest, step), lane_xor(range.smallest, step));
  }
  const ChunkScale scale(range.largest, term_rule(kDTypeOf<T>));
  const bool is_flagged = scale.is_flagged(range.smallest);
  if (lane == 0) {
    const int64_t place = (int64_t(item) * layout.num_chunks() + chunk) * layout.padded_rows() + row;
    operand.scales[place] = scale.scale(is_flagged);
    operand.flags[place] = is_flagged;
  }
  if (row >= layout.rows) return;
  const float factor = scale.factor();
  Half* terms = operand.terms + layout.num_terms * item * layout.terms_of_item() +
                kStep * (row * layout.padded_k() + chunk * kSplitChunkK) + lane % 8 * 4;
  const int64_t to_second = kAreApart ? layout.terms_of_item() : kHalfBlockK;
  TILEDMM_UNROLL for (int i = 0; i < kSplitQuads; ++i) {
    const int half_k = SplitSource<T>::quad_k(i) / kHalfBlockK * kHalfBlockK;
    if (half_k / kSplitBlockK * kSplitBlockK >= rest_k) break;  // no block of k
    float scaled[4];
    TILEDMM_UNROLL for (int e = 0; e < 4; ++e) scaled[e] = float_of(quads[i].words[e]) * factor;
    TermPair first, second;
    split_pair(scaled[0], scaled[1], first.words[0], second.words[0]);
    split_pair(scaled[2], scaled[3], first.words[1], second.words[1]);
    Half* to = terms + kStep * half_k;
    store_global(reinterpret_cast<TermPair*>(to), first);
    if (sizeof(T) == 4 || layout.num_terms == 2) store_global(reinterpret_cast<TermPair*>(to + to_second), second);
  }
}

// Tile `idx` of an operand of elements T. Rows take their turns in a loop, since code that comes from cold memory is
// what a small operand costs most.
template <SplitPlaces PLACES, class T>
TILEDMM_DEVICE void split_tile(const SplitOperand& operand, SplitTile<kScatteredRows<PLACES>>& tile, int idx) {
  // Neighbouring blocks read neighbouring memory.
  const SplitLayout& layout = operand.layout;
  const int num_chunks = int(layout.num_chunks()), item = idx / (operand.tiles_rows * num_chunks);
  idx -= item * operand.tiles_rows * num_chunks;
  const int chunk = operand.is_along_k ? idx % num_chunks : idx / operand.tiles_rows;
  const int first_row = (operand.is_along_k ? idx / num_chunks : idx % operand.tiles_rows) * operand.tile_rows;
  SplitSource<T> source{};
  source.stride_row = operand.stride_row;
  source.stride_k = operand.stride_k;
  source.rows = int(min_of(layout.rows - first_row, operand.tile_rows));  // 0 or less: padding
  source.k = int(min_of(layout.k - chunk * kSplitChunkK, kSplitChunkK));
  source.from = static_cast<const T*>(operand.from) + operand.batch.offset(item) + first_row * operand.stride_row +
                int64_t(chunk) * kSplitChunkK * operand.stride_k;
  const bool is_direct = operand.is_aligned && operand.is_along_k && source.k % 4 == 0;
  if (!is_direct) {
    if (operand.is_aligned && !operand.is_along_k && source.rows % 4 == 0)
      source.copy_rows(tile.rows);
    else
      source.copy_scattered(tile.rows, operand.is_along_k);
    block_barrier();
  }
  TILEDMM_NO_UNROLL for (int row = thread_idx() / kSplitLanes; row < operand.tile_rows; row += kSplitRows) {
    Vector16 quads[kSplitQuads];
    if (is_direct) {
      source.load_quads(quads, row);
    } else {
      TILEDMM_UNROLL for (int i = 0; i < kSplitQuads; ++i) quads[i] =
          load_shared(reinterpret_cast<const Vector16*>(&tile.rows[row][SplitSource<T>::quad_k(i)]));
    }
    split_row<PLACES, T>(operand, quads, item, chunk, first_row + row, source.k);
  }
}

// A tile a block. SHORT: the elements of what has 16 bits, if anything has.
template <SplitPlaces PLACES, class SHORT = float>
TILEDMM_KERNEL(kSplitThreads, kSplitBlocksOfCu<PLACES>)
split_operands(TILEDMM_IN_PLACE SplitOperands both) {
  __shared__ SplitTile<kScatteredRows<PLACES>> tile;
  // In this order: the next kernel may read the caller's operands before this one is done.
  wait_for_earlier_kernels();
  let_later_kernels_start();
  int idx = int(block_idx());
  const int of_first = both.of[0].num_tiles;
  const bool is_second = idx >= of_first;
  const SplitOperand& operand = both.of[is_second];
  idx = is_second ? idx - of_first : idx;
  if constexpr (sizeof(SHORT) == 2) {
    if (operand.dtype != DType::f32) return split_tile<PLACES, SHORT>(operand, tile, idx);
  }
  split_tile<PLACES, float>(operand, tile, idx);
}

// ---- Host side

// An operand's part of the workspace and its tiles. `items` is the problem whose strides of the batch become places
// among the operand's items.
template <SplitPlaces PLACES>
SplitOperand split_operand(const OperandView& view, const FoldedProblem& problem, const SplitLayout& layout,
                           FoldedProblem& items, char* memory) {
  SplitOperand operand{};
  operand.from = view.data;
  operand.dtype = view.dtype;
  operand.stride_row = view.stride_row;
  operand.stride_k = view.stride_k;
  operand.layout = layout;
  operand.batch = describe_copied_batch(items, view.batch_stride, 1);
  operand.terms = reinterpret_cast<Half*>(memory);
  operand.scales = reinterpret_cast<float*>(memory + layout.term_bytes());
  operand.flags = reinterpret_cast<uint8_t*>(memory + layout.term_bytes() + layout.scale_bytes());
  operand.is_along_k = is_k_major(view);
  operand.is_aligned = is_aligned(view, problem);
  operand.tile_rows = operand.is_aligned && operand.is_along_k ? kSplitRows : kScatteredRows<PLACES>;
  operand.tiles_rows = int(layout.padded_rows() / operand.tile_rows);
  operand.num_tiles = int(layout.num_items * layout.num_chunks()) * operand.tiles_rows;
  return operand;
}

inline int64_t num_tiles(const SplitOperands& split) { return int64_t(split.of[0].num_tiles) + split.of[1].num_tiles; }

}  // namespace
}  // namespace tiledmm::gpu

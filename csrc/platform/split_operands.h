// The first kernel of a product by split operands: fp32 operands as two fp16 terms each, along k, with scales and
// flags.
//
// What is written depends on the row alone. The terms, scales and flags are those of split_terms.h.
#pragma once

#include "core/operand.h"
#include "platform/copied_batch.h"
#include "platform/split_terms.h"

namespace tiledmm::gpu {
namespace {

constexpr int kSplitThreads = 256;
constexpr int kSplitLanes = kSplitThreads / kSplitRows;   // threads of a row's block
constexpr int kSplitValues = kSplitBlockK / kSplitLanes;  // of a thread and block
constexpr int kFineLanes = 32;                 // threads of a row where tiles are few: a block for each eight
constexpr int kHalfBlockK = kSplitBlockK / 2;  // a thread has four values in each half of a block
static_assert(kSplitValues == 8 && kSplitLanes == 8, "two times four values");

// One operand, where its terms go, and its tiles.
struct SplitOperand {
  const float* from;
  int64_t stride_row, stride_k;
  SplitLayout layout;
  Half* terms;
  float* scales;   // of [item][chunk][row]
  uint8_t* flags;  // the same
  bool is_aligned, has_fine_tiles;
  int tiles_rows, num_tiles;
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

// One tile of an operand, as a thread reads it.
struct SplitSource {
  const float* from;  // the tile's first element
  int64_t stride_row, stride_k;
  int rows, k;  // inside of the operand, from there on
  bool is_along_k;

  // Two times four neighbours along k, of a row that is aligned, in the halves of a block of k: from `first_k` on.
  TILEDMM_DEVICE void load_quads(float (&values)[kSplitValues], int row, int first_k) const {
    const float* row_start = from + row * stride_row + first_k;
    TILEDMM_UNROLL for (int half = 0; half < 2; ++half) {
      const float* at = row_start + half * kHalfBlockK;
      const int left = row < rows ? k - first_k - half * kHalfBlockK : 0;
      Vector16 quad{};
      if (left >= 4) {
        quad = load_global(reinterpret_cast<const Vector16*>(at));
      } else {
        TILEDMM_UNROLL for (int i = 0; i < 3; ++i) {
          if (i < left) quad.words[i] = bits_of(at[i]);
        }
      }
      TILEDMM_UNROLL for (int i = 0; i < 4; ++i) values[4 * half + i] = float_of(quad.words[i]);
    }
  }

  // Elements of 32 rows of a block of k, neighbouring threads along memory: where they lie.
  TILEDMM_DEVICE int row(int i) const {
    return is_along_k ? thread_idx() / kSplitBlockK + i * 4 : thread_idx() % kSplitRows;
  }
  TILEDMM_DEVICE int k_of(int i) const {
    return is_along_k ? thread_idx() % kSplitBlockK : thread_idx() / kSplitRows + i * 8;
  }
  TILEDMM_DEVICE void load_scattered(float (&values)[kSplitValues], int first_k) const {
    const float* at = from + row(0) * stride_row + (first_k + k_of(0)) * stride_k;
    const int64_t step = is_along_k ? 4 * stride_row : 8 * stride_k;
    TILEDMM_UNROLL for (int i = 0; i < kSplitValues; ++i) {
      values[i] = row(i) < rows && first_k + k_of(i) < k ? *at : 0;
      at += step;
    }
  }
};

// Where the terms of an item go. Apart: all first ones, then all second ones. Side by side: the first ones of each half
// of a row's block, then its second ones.
enum class SplitPlaces { apart, side_by_side };
// What threads exchange to hold values along k, two blocks of k in turn.
using SplitExchange = float[2][kSplitRows][kSplitBlockK + 1];

// One tile: rows of a chunk, aligned along k or not, each of which LANES threads hold in registers until its largest is
// known.
template <SplitPlaces PLACES, int LANES, bool IS_ALIGNED>
TILEDMM_DEVICE void split_tile(const SplitOperand& operand, int idx, SplitExchange& exchange) {
  constexpr bool kAreApart = PLACES == SplitPlaces::apart;
  constexpr int kStep = kAreApart ? 1 : 2;  // of a row's terms, for each k
  constexpr int kRows = kSplitThreads / LANES, kGroups = LANES / kSplitLanes;
  constexpr int kBlocks = kSplitChunkK / kSplitBlockK / kGroups;  // of a thread
  const SplitLayout& layout = operand.layout;
  const int row = thread_idx() / LANES, lane = thread_idx() % LANES, quad = lane % kSplitLanes * 4;
  const auto k_of_block = [&](int block) { return (block * kGroups + lane / kSplitLanes) * kSplitBlockK; };
  SplitSource source{};
  source.is_along_k = is_k_major(operand.stride_row, operand.stride_k);
  source.stride_row = operand.stride_row;
  source.stride_k = operand.stride_k;
  // Neighbouring blocks read neighbouring memory.
  const int num_chunks = int(layout.num_chunks()), item = idx / (operand.tiles_rows * num_chunks);
  idx -= item * operand.tiles_rows * num_chunks;
  const int chunk = source.is_along_k ? idx % num_chunks : idx / operand.tiles_rows;
  const int first_row = (source.is_along_k ? idx / num_chunks : idx % operand.tiles_rows) * kRows;
  const int first_k = chunk * kSplitChunkK;
  source.rows = int(min_of(layout.rows - first_row, kRows));  // 0 or less: padding
  source.k = int(min_of(layout.k - first_k, kSplitChunkK));
  source.from = operand.from + operand.batch.offset(item) + first_row * operand.stride_row + first_k * operand.stride_k;

  float x[kBlocks][kSplitValues];
  TILEDMM_UNROLL for (int block = 0; block < kBlocks; ++block) {
    if (k_of_block(block) >= source.k) break;
    if constexpr (IS_ALIGNED)
      source.load_quads(x[block], row, k_of_block(block) + quad);
    else
      source.load_scattered(x[block], k_of_block(block));
  }
  ChunkRange range;
  TILEDMM_UNROLL for (int block = 0; block < kBlocks; ++block) {
    if (k_of_block(block) >= source.k) break;
    if constexpr (!IS_ALIGNED) {
      auto& tile = exchange[block % 2];
      TILEDMM_UNROLL for (int i = 0; i < kSplitValues; ++i) tile[source.row(i)][source.k_of(i)] = x[block][i];
      block_barrier();
      TILEDMM_UNROLL for (int i = 0; i < kSplitValues; ++i) x[block][i] = tile[row][quad + i / 4 * kHalfBlockK + i % 4];
    }
    TILEDMM_UNROLL for (int i = 0; i < kSplitValues; ++i) range.take(x[block][i]);
  }
  uint32_t largest = range.largest;
  TILEDMM_UNROLL for (int step = 1; step < LANES; step *= 2) largest = larger_of(largest, lane_xor(largest, step));
  const ChunkScale scale(largest);
  const uint64_t flagged = warp_ballot(scale.is_flagged(range.smallest)) >> (thread_idx() % kWarpSize - lane);
  if (lane == 0) {
    const int64_t place = (int64_t(item) * num_chunks + chunk) * layout.padded_rows() + first_row + row;
    const bool is_flagged = (flagged & ((uint64_t(1) << LANES) - 1)) != 0;
    operand.scales[place] = scale.scale(is_flagged);
    operand.flags[place] = is_flagged;
  }
  if (row >= source.rows) return;
  const float factor = scale.factor();
  Half* terms = operand.terms + 2 * item * layout.terms_of_item() +
                kStep * ((first_row + row) * layout.padded_k() + first_k) + quad;
  const int64_t to_second = kAreApart ? layout.terms_of_item() : kHalfBlockK;
  TILEDMM_UNROLL for (int block = 0; block < kBlocks; ++block) {
    if (k_of_block(block) >= source.k) break;
    TILEDMM_UNROLL for (int half = 0; half < 2; ++half) {
      float scaled[4];
      TILEDMM_UNROLL for (int i = 0; i < 4; ++i) scaled[i] = x[block][4 * half + i] * factor;
      TermPair first, second;
      split_pair(scaled[0], scaled[1], first.words[0], second.words[0]);
      split_pair(scaled[2], scaled[3], first.words[1], second.words[1]);
      Half* to = terms + kStep * (k_of_block(block) + half * kHalfBlockK);
      store_global(reinterpret_cast<TermPair*>(to), first);
      store_global(reinterpret_cast<TermPair*>(to + to_second), second);
    }
  }
}

// A tile a block.
template <SplitPlaces PLACES>
TILEDMM_KERNEL(kSplitThreads, 2)
split_operands(TILEDMM_IN_PLACE SplitOperands both) {
  __shared__ SplitExchange exchange;
  // In this order: the next kernel may read the caller's operands before this one is done.
  wait_for_earlier_kernels();
  let_later_kernels_start();
  int idx = int(block_idx());
  const int of_first = both.of[0].num_tiles;
  const bool is_second = idx >= of_first;
  const SplitOperand& operand = both.of[is_second];
  idx = is_second ? idx - of_first : idx;
  if (operand.has_fine_tiles)
    split_tile<PLACES, kFineLanes, true>(operand, idx, exchange);
  else if (operand.is_aligned)
    split_tile<PLACES, kSplitLanes, true>(operand, idx, exchange);
  else
    split_tile<PLACES, kSplitLanes, false>(operand, idx, exchange);
}

// ---- Host side

// An operand's part of the workspace and its tiles. `items` is the problem whose strides of the batch become places
// among the operand's items.
inline SplitOperand split_operand(const OperandView& view, const FoldedProblem& problem, const SplitLayout& layout,
                                  FoldedProblem& items, char* memory, int num_cus) {
  SplitOperand operand{};
  operand.from = static_cast<const float*>(view.data);
  operand.stride_row = view.stride_row;
  operand.stride_k = view.stride_k;
  operand.layout = layout;
  operand.batch = plan_copied_batch(items, view.batch_stride, 1);
  operand.terms = reinterpret_cast<Half*>(memory);
  operand.scales = reinterpret_cast<float*>(memory + layout.term_bytes());
  operand.flags = reinterpret_cast<uint8_t*>(memory + layout.term_bytes() + layout.scale_bytes());
  operand.is_aligned = view.stride_k == 1 && is_aligned(view, problem);
  const int64_t tiles = layout.num_items * layout.padded_rows() / kSplitRows * layout.num_chunks();
  operand.has_fine_tiles = operand.is_aligned && tiles < num_cus;
  const int rows = operand.has_fine_tiles ? kSplitThreads / kFineLanes : kSplitRows;
  operand.tiles_rows = int(layout.padded_rows() / rows);
  operand.num_tiles = int(tiles * (kSplitRows / rows));
  return operand;
}

inline int64_t num_tiles(const SplitOperands& split) { return int64_t(split.of[0].num_tiles) + split.of[1].num_tiles; }

}  // namespace
}  // namespace tiledmm::gpu

// fp32 operands as two fp16 terms each: their blocks, and the place that terms, scales and flags take in a workspace.
#pragma once

#include "core/math.h"
#include "core/problem.h"

namespace tiledmm {

inline constexpr int kSplitBlock = 128;  // rows and columns of a tile
inline constexpr int kSplitRows = 32;    // of an operand, that are split together
// k is multiplied in blocks of so many elements. Scales, flags and sums are those of a chunk.
inline constexpr int kSplitBlockK = 64, kSplitChunkK = 512;
// Shorter k is left to plain multiply-adds: the split's own error, 12 units of 2^-24 times the sum of the products'
// magnitudes, would exceed theirs.
inline constexpr int kSplitMinK = kSplitBlockK;
// The exponents that the largest of a chunk may have, and how far below it others may lie, nonzero ones.
inline constexpr int kSplitMinExponent = -60, kSplitMaxExponent = 59, kSplitRange = 40;

// Long k is multiplied in groups of so many elements (platform/split_groups.h), since errors grow with the number of
// sums that one total takes.
inline constexpr int64_t kSplitGroupK = 1 << 14;
constexpr int64_t num_split_groups(const GemmProblem& p) { return max_of(1, ceil_div(p.k, kSplitGroupK)); }
// Of a group's results that are added to C.
constexpr int64_t group_sum_bytes(const FoldedProblem& problem) {
  const GemmProblem& p = problem.gemm;
  return num_split_groups(p) > 1 ? problem.batch_size * p.m * p.n * 4 : 0;
}
// The problem of the first group.
inline FoldedProblem first_group(const FoldedProblem& problem) {
  FoldedProblem group = problem;
  group.gemm.k = min_of(group.gemm.k, kSplitGroupK);
  return group;
}

// What is flagged is summed in shorter chunks of k. Less than two of them are one chunk.
inline constexpr int kFlaggedChunkK = 128;
constexpr int64_t flagged_chunk_k(int64_t k) { return k < 2 * kFlaggedChunkK ? max_of(k, 1) : kFlaggedChunkK; }

// Terms of elements that lie at most so far below the largest would be the same with a smaller scale.
inline constexpr int kSplitExactRange = 26;

// The terms of one operand of `rows` x k, in each item of a batch, rows along k; a scale and a flag for each row and
// chunk of k.
struct SplitLayout {
  int64_t num_items, rows, k;

  constexpr int64_t padded_k() const { return round_up(k, kSplitBlockK); }
  constexpr int64_t padded_rows() const { return round_up(rows, kSplitBlock); }
  constexpr int64_t num_blocks() const { return ceil_div(k, kSplitBlockK); }
  constexpr int64_t num_chunks() const { return ceil_div(k, kSplitChunkK); }
  constexpr int64_t terms_of_item() const { return rows * padded_k(); }  // of either kind
  constexpr int64_t term_bytes() const { return round_up(num_items * terms_of_item() * 2 * 2, 256); }
  constexpr int64_t scale_bytes() const { return num_items * num_chunks() * padded_rows() * 4; }
  constexpr int64_t flag_bytes() const { return round_up(num_items * num_chunks() * padded_rows(), 256); }
  constexpr int64_t bytes() const { return term_bytes() + scale_bytes() + flag_bytes(); }
};

// Items of an operand that a batch does not repeat.
inline int64_t num_items(const FoldedProblem& problem, int64_t BatchDim::* stride) {
  int64_t items = 1;
  for (int32_t d = 0; d < problem.gemm.num_batch_dims; ++d) {
    if (problem.batch_dims[d].*stride != 0) items *= problem.batch_dims[d].size;
  }
  return items;
}

}  // namespace tiledmm

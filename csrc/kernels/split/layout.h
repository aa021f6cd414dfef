// Operands as fp16 terms, two of fp32 and one of 16 bits: their blocks, and the place that terms, scales and flags take
// in a workspace.
#pragma once

#include "core/math.h"
#include "core/operand.h"

namespace tiledmm {

inline constexpr int kSplitBlock = 128;  // rows and columns of a tile
inline constexpr int kSplitRows = 8;     // of an operand, that a block splits at least
// k is multiplied in blocks of so many elements. Scales, flags and sums are those of a chunk.
inline constexpr int kSplitBlockK = 64, kSplitChunkK = 512;
// Shorter k is left to the chip's native kernel: the split's own error, 8 units of 2^-24 times the sum of the
// products' magnitudes, and that of its sums could exceed that of its chain.
inline constexpr int64_t kSplitMinK = 96;
// The exponents that the largest of a chunk may have.
inline constexpr int kSplitMinExponent = -60, kSplitMaxExponent = 59;

// How an operand's dtype becomes terms: the exponent that the largest of a chunk is given, and how many powers of two
// below the largest others may lie, nonzero ones.
struct TermRule {
  int top_exponent, range;
};
// fp16 is one term, whatever it is, and so is bf16 within its range: its lowest bit is then one that fp16 has.
constexpr TermRule term_rule(DType dtype) {
  if (dtype == DType::f32) return {14, 40};
  return {15, dtype == DType::bf16 ? 32 : 40};
}

// Long k is multiplied in groups of so many elements, since errors grow with the number of sums that one total takes.
inline constexpr int64_t kSplitGroupK = 1 << 14;
// Results that are added up later take so much memory at most, but for those of a single group.
inline constexpr int64_t kSplitMaxSumBytes = 32 << 20;
// Whole groups that are multiplied together, a dimension of the batch more, so that few tiles fill a chip.
constexpr int64_t groups_at_once(const FoldedProblem& problem) {
  const GemmProblem& p = problem.gemm;
  if (p.num_batch_dims == kMaxGpuBatchDims) return 1;
  const int64_t fitting = kSplitMaxSumBytes / max_of(4, problem.batch_size * p.m * p.n * 4);
  return max_of(1, min_of(p.k / kSplitGroupK, fitting));
}
// So many times groups are multiplied, one after the other.
constexpr int64_t group_rounds(const FoldedProblem& problem) {
  return max_of(1, ceil_div(ceil_div(problem.gemm.k, kSplitGroupK), groups_at_once(problem)));
}
// The memory that results of groups take until they are added.
constexpr int64_t group_sum_bytes(const FoldedProblem& problem) {
  const GemmProblem& p = problem.gemm;
  return p.k > kSplitGroupK ? groups_at_once(problem) * problem.batch_size * p.m * p.n * 4 : 0;
}
// `num_groups` groups of `count` elements of k from `first` on as one more dimension of the batch, the outermost. C is
// [item][group][row][col], and somewhere else; bias and activation are left for later.
inline FoldedProblem groups_of(const FoldedProblem& problem, int64_t first, int64_t count, int64_t num_groups) {
  FoldedProblem part = problem;
  GemmProblem& p = part.gemm;
  p.k = count;
  p.a = static_cast<const char*>(p.a) + first * p.stride_ak * size_of(p.dtype_a);
  p.b = static_cast<const char*>(p.b) + first * p.stride_bk * size_of(p.dtype_b);
  p.c = nullptr, p.stride_cm = p.n, p.stride_cn = 1;
  drop_epilogue(p);
  int64_t stride_c = num_groups * p.m * p.n;
  for (int32_t d = p.num_batch_dims - 1; d >= 0; --d) {
    part.batch_dims[d].stride_c = stride_c;
    stride_c *= part.batch_dims[d].size;
  }
  if (num_groups == 1) return part;
  for (int32_t d = p.num_batch_dims; d > 0; --d) part.batch_dims[d] = part.batch_dims[d - 1];
  part.batch_dims[0] = {num_groups, count * p.stride_ak, count * p.stride_bk, p.m * p.n, 0};
  ++p.num_batch_dims;
  part.batch_size *= num_groups;
  return part;
}
// What is multiplied first: all of k, or groups of it.
inline FoldedProblem first_groups(const FoldedProblem& problem) {
  if (problem.gemm.k <= kSplitGroupK) return problem;
  return groups_of(problem, 0, kSplitGroupK, groups_at_once(problem));
}

// What is flagged is summed in shorter chunks of k. Less than two of them are one chunk.
inline constexpr int kFlaggedChunkK = 128;
constexpr int64_t flagged_chunk_k(int64_t k) { return k < 2 * kFlaggedChunkK ? k : kFlaggedChunkK; }

// Terms of elements that lie at most so far below the largest would be the same with a smaller scale.
inline constexpr int kSplitExactRange = 26;

// The terms of one operand of `rows` x k, in each item of a batch, rows along k; a scale and a flag for each row and
// chunk of k.
struct SplitLayout {
  int64_t num_items, rows, k;
  int num_terms;

  constexpr int64_t padded_k() const { return round_up(k, kSplitBlockK); }
  constexpr int64_t padded_rows() const { return round_up(rows, kSplitBlock); }
  constexpr int64_t num_blocks() const { return ceil_div(k, kSplitBlockK); }
  constexpr int64_t num_chunks() const { return ceil_div(k, kSplitChunkK); }
  constexpr int64_t terms_of_item() const { return rows * padded_k(); }  // of each kind
  constexpr int64_t term_bytes() const { return round_up(num_items * terms_of_item() * num_terms * 2, 256); }
  constexpr int64_t scale_bytes() const { return num_items * num_chunks() * padded_rows() * 4; }
  constexpr int64_t flag_bytes() const { return round_up(num_items * num_chunks() * padded_rows(), 256); }
  constexpr int64_t bytes() const { return term_bytes() + scale_bytes() + flag_bytes(); }
};

// The part of a plan that says where the operands' terms lie.
template <class Plan>
void lay_out_operands(Plan& plan, const FoldedProblem& problem) {
  const GemmProblem& p = problem.gemm;
  plan.a = {num_items(problem, &BatchDim::stride_a), p.m, p.k, p.dtype_a == DType::f32 ? 2 : 1};
  plan.b = {num_items(problem, &BatchDim::stride_b), p.n, p.k, p.dtype_b == DType::f32 ? 2 : 1};
}

}  // namespace tiledmm

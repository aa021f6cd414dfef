// Grouped products: which rows, or which elements of k, a group has, and what its product is.
//
//   rows: C[i, j] = sum_p A[i, p] * B[g, p, j] for the rows i of group g; rows behind the last group are 0
//   k:    C[g, i, j] = sum_p A[i, p] * B[p, j] over the p of group g
//
// Groups follow each other. Offsets that decrease or leave the operand give groups that overlap or are short: what then
// is in C is undefined, and no access leaves the operands.
#pragma once

#include "core/math.h"
#include "core/problem.h"

namespace tiledmm {

struct GroupRange {
  int64_t begin, end;
};

// A group, by where the one before it ends (0: it is the first) and where it ends itself.
constexpr GroupRange group_range(int64_t previous_end, int64_t end, int64_t size) {
  const int64_t begin = min_of(max_of(previous_end, 0), size);
  return {begin, max_of(begin, min_of(end, size))};
}

// The row of tiles that a group of rows begins with. It follows from where the group begins, whatever the sizes of the
// others: one more for each group before it leaves room for all last tiles that are not whole.
constexpr int64_t first_tile_row(int64_t group, int64_t begin, int64_t block_m) { return begin / block_m + group; }

// As many rows of tiles as C can have. The host does not know the groups' sizes.
constexpr int64_t num_tile_rows(const FoldedProblem& problem, int64_t block_m) {
  const GemmProblem& p = problem.gemm;
  if (p.grouping != Grouping::rows) return ceil_div(p.m, block_m);
  return first_tile_row(problem.batch_dims[0].size, p.m, block_m) + 1;
}

// Makes of a grouped problem the product of one group. The rows behind the last group form one more, with k = 0. Only
// where operands may have 8 bits is it asked whether they do.
template <bool MAY_HAVE_8_BITS = false>
constexpr void take_group(GemmProblem& problem, const BatchDim& groups, int64_t group, const GroupRange& range) {
  const auto skip = [](const void*& operand, int64_t count, DType dtype) {
    operand = static_cast<const char*>(operand) + count * (MAY_HAVE_8_BITS ? size_of(dtype) : size_of_wide(dtype));
  };
  const bool is_rows = problem.grouping == Grouping::rows;
  int64_t skipped_c = 0;
  skip(problem.a, range.begin * (is_rows ? problem.stride_am : problem.stride_ak), problem.dtype_a);
  if (is_rows) {
    problem.m = range.end - range.begin;
    skipped_c = range.begin * problem.stride_cm;
  } else {
    problem.k = range.end - range.begin;
    skip(problem.b, range.begin * problem.stride_bk, problem.dtype_b);
    skipped_c = group * groups.stride_c;
  }
  problem.c = static_cast<char*>(problem.c) + skipped_c * size_of_wide(problem.dtype_c);
  if (group == groups.size) {
    problem.k = 0, problem.bias = nullptr;
  } else {
    if (is_rows) skip(problem.b, group * groups.stride_b, problem.dtype_b);
    if (problem.bias) skip(problem.bias, group * groups.stride_bias, problem.dtype_bias);
  }
  if constexpr (MAY_HAVE_8_BITS) {  // each row of A has factors of its own, or all share them
    problem.scale_a.data += range.begin * problem.scale_a.stride_row;
    problem.scale_b.data += group * problem.scale_b.stride_group;
  }
}

}  // namespace tiledmm

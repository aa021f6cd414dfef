// How a batch of small items is shared out whose items lie side by side in the lanes of vectors (items.h), as plain
// data, and what that costs.
#pragma once

#include <cstdint>

#include "core/math.h"
#include "core/problem.h"
#include "kernels/cpu/shared/threads.h"

namespace tiledmm {
namespace {

inline constexpr int64_t kMaxItemWords = 1 << 14;  // multiply-adds of an item in a lane
inline constexpr int64_t kGroupBytes = 96 << 10;   // of a group's operands and sums: they stay in a second level

// A matrix of an item in runs along its close dimension; one run, where they follow each other. Packed elements, a
// vector for each, lie in the same order without gaps.
struct Runs {
  int64_t count, length, stride, step;  // elements of a run; from run to run, from element to element of a run
  int64_t row, col;                     // packed elements from row to row, from column to column

  Runs(int64_t rows, int64_t stride_row, int64_t cols, int64_t stride_col) {
    const bool is_along_rows = stride_col == 1 || stride_row != 1;
    count = is_along_rows ? rows : cols, length = is_along_rows ? cols : rows;
    stride = is_along_rows ? stride_row : stride_col, step = is_along_rows ? stride_col : stride_row;
    row = is_along_rows ? cols : 1, col = is_along_rows ? 1 : rows;
    if (stride == length * step || count == 1) length *= count, count = 1;
  }
};

struct ItemsPlan {
  int64_t num_groups;    // of as many items as a vector has lanes
  int64_t task_groups;   // groups in a task
  int32_t dim_of_lanes;  // the dimension of the batch in which the items of a group are neighbours
  double cost;           // of all groups, in multiply-adds of vectors
};

// False where items are too large. What a group takes at least, and what multiply-adds, elements of A and B, those of
// C, and runs of memory take, is fitted to random items on one thread of a Zen 3. It holds by 512 bits on an Intel with
// AMX (277 items in fp32: what is chosen takes 1 % longer than the best).
[[maybe_unused]] bool plan_items(const GemmProblem& p, int64_t batch, int64_t lanes, int64_t acc_bytes,
                                 ItemsPlan& plan) {
  const double words = double(p.m) * double(p.n) * double(p.k);
  const int64_t operands = (p.m + p.n) * p.k, results = p.m * p.n;
  if (words > double(kMaxItemWords) || (operands + results) * lanes * acc_bytes > kGroupBytes) return false;
  plan.num_groups = batch, plan.dim_of_lanes = 0;
  for (int32_t d = 0; d < p.num_batch_dims; ++d) {
    const int64_t size = p.batch_dims[d].size, groups_of_dim = batch / size * ceil_div(size, lanes);
    if (groups_of_dim < plan.num_groups) plan.num_groups = groups_of_dim, plan.dim_of_lanes = d;
  }
  const int64_t runs = Runs(p.m, p.stride_am, p.k, p.stride_ak).count + Runs(p.n, p.stride_bn, p.k, p.stride_bk).count;
  const double store = acc_bytes == size_of(p.dtype_c) ? 28 : 58;
  plan.cost = double(plan.num_groups) *
              (double(100 * lanes) + 3 * words + 9 * double(operands) + store * double(results) + 250 * double(runs));
  return true;
}

// Shares the groups out to threads. `wake`: as in threads_for.
[[maybe_unused]] void share_groups(ItemsPlan& plan, int64_t vector_bytes, int64_t num_threads, double wake) {
  constexpr double kTaskBytes = 2e6;  // of vectors that are multiplied: half of it repays waking a thread
  const double work = plan.cost * double(vector_bytes) / kTaskBytes;
  plan.task_groups = ceil_div(plan.num_groups, tasks_for(work, threads_for(work, num_threads, wake)));
}

}  // namespace
}  // namespace tiledmm

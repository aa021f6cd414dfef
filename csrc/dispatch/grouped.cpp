// Shares out the groups of a product among a CPU's threads.
#include "dispatch/grouped.h"

#include <algorithm>
#include <atomic>
#include <vector>

namespace tiledmm {
namespace {

// Work is counted in tasks that are worth a thread, as by register_tiled's plan: flops and bytes.
constexpr double kTaskFlops = 1e6, kTaskBytes = 1 << 20;
constexpr double kLargeGroup = 64;  // for each thread: then the threads of one product seldom wait for each other
constexpr int64_t kPartsOfThread = 8;
// The least that a block may be, where a group has more: fewer rows do not repay packing a B, nor fewer columns an A.
constexpr int64_t kMinRows = 192, kMinCols = 128;

double work_of(const GemmProblem& p) {
  const double m = double(p.m), n = double(p.n), k = double(p.k);
  const double flops = 2 * m * n * k * (p.dtype_c == DType::f64 ? 2 : 1);
  const double bytes =
      m * k * double(size_of(p.dtype_a)) + n * k * double(size_of(p.dtype_b)) + m * n * double(size_of(p.dtype_c));
  return flops / kTaskFlops + bytes / kTaskBytes;
}

// The product of a group; of the one behind the last, rows that become 0.
GemmProblem group_of(const GemmProblem& problem, int64_t group) {
  const BatchDim& groups = problem.batch_dims[0];
  const bool is_rows = problem.grouping == Grouping::rows;
  const int64_t size = is_rows ? problem.m : problem.k, last = groups.size;
  const int64_t previous_end = group == 0 ? 0 : problem.group_ends[group - 1];
  GemmProblem product = problem;
  take_group<true>(product, groups, group,
                   group_range(previous_end, group == last ? size : problem.group_ends[group], size));
  product.grouping = Grouping::none, product.num_batch_dims = 0;
  return product;
}

// Rows and columns of C from `row` and `col` on. A scale of B is one for all columns.
GemmProblem block_of(GemmProblem p, int64_t row, int64_t rows, int64_t col, int64_t cols) {
  const auto skip = [](const void* operand, int64_t count, DType dtype) {
    return static_cast<const char*>(operand) + count * size_of(dtype);
  };
  p.a = skip(p.a, row * p.stride_am, p.dtype_a);
  p.b = skip(p.b, col * p.stride_bn, p.dtype_b);
  p.c = const_cast<char*>(skip(p.c, row * p.stride_cm + col * p.stride_cn, p.dtype_c));
  if (p.bias) p.bias = skip(p.bias, row * p.stride_bias_m + col * p.stride_bias_n, p.dtype_bias);
  p.m = rows, p.n = cols;
  return p;
}

// Calls visit(block) for blocks of a group's C, each of about `work`. C is cut along m as far as that repays, then
// along n.
template <class Visit>
void for_each_block(const GemmProblem& product, double work, const Visit& visit) {
  const int64_t parts = max_of(1, int64_t(work_of(product) / work));
  const int64_t parts_m = max_of(1, min_of(parts, product.m / kMinRows));
  const int64_t parts_n = max_of(1, min_of(parts / parts_m, product.n / kMinCols));
  const int64_t rows = round_up(ceil_div(product.m, parts_m), 96), cols = round_up(ceil_div(product.n, parts_n), 64);
  for (int64_t row = 0; row < product.m; row += rows) {
    for (int64_t col = 0; col < product.n; col += cols) {
      visit(block_of(product, row, min_of(rows, product.m - row), col, min_of(cols, product.n - col)));
    }
  }
}

}  // namespace

bool is_large_group(const GemmProblem& product, int64_t num_threads) {
  return num_threads > 1 && work_of(product) >= kLargeGroup * double(num_threads);
}

Status run_groups(const GemmProblem& problem, const Executor& executor, const RunProduct& run) {
  const int64_t num_products = problem.batch_dims[0].size + (problem.grouping == Grouping::rows);
  std::atomic<Status> status{Status::ok};
  const auto compute = [&](const GemmProblem& product, const Executor& own) {
    const Status outcome = run(product, own);
    if (outcome != Status::ok) status = outcome;
  };
  std::vector<GemmProblem> others;
  double work_of_others = 0;
  for (int64_t group = 0; group < num_products; ++group) {
    const GemmProblem product = group_of(problem, group);
    if (product.m == 0 || product.n == 0) continue;
    if (is_large_group(product, executor.num_threads)) {
      compute(product, executor);
    } else {
      others.push_back(product);
      work_of_others += work_of(product);
    }
  }
  Executor one_thread = executor;
  one_thread.num_threads = 1;
  one_thread.parallel_for = [](void*, int64_t num_tasks, void (*task)(void*, int64_t), void* arg) {
    for (int64_t idx = 0; idx < num_tasks; ++idx) task(arg, idx);
  };
  if (executor.num_threads == 1 || work_of_others < 1) {
    for (const GemmProblem& product : others) compute(product, one_thread);
    return status;
  }
  std::vector<GemmProblem> blocks;
  const double work_of_block = std::max(0.5, work_of_others / double(kPartsOfThread * executor.num_threads));
  for (const GemmProblem& product : others) {
    for_each_block(product, work_of_block, [&](const GemmProblem& block) { blocks.push_back(block); });
  }
  std::atomic<size_t> next{0};
  const auto compute_blocks = [&] {
    for (size_t idx = next++; idx < blocks.size(); idx = next++) compute(blocks[idx], one_thread);
  };
  executor.parallel_for(
      executor.self, min_of(executor.num_threads, int64_t(blocks.size())),
      [](void* arg, int64_t) { (*static_cast<decltype(compute_blocks)*>(arg))(); },
      const_cast<void*>(static_cast<const void*>(&compute_blocks)));
  return status;
}

}  // namespace tiledmm

// How few_rows.h shares out few rows of C, as plain data, and the time that takes. None of it changes a bit of the
// result: the order of summation is the same for all.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/chip.h"
#include "core/math.h"
#include "core/summation.h"
#include "core/task.h"
#include "kernels/cuda/simt_pipelined/costs.h"

namespace tiledmm {

// A block's warps take chunks of k of so many columns, for up to `width` of which there is room, each with a ring of so
// many stages of its own. num_splits: blocks of one warp that take a chunk each, where a second kernel adds their sums;
// or 1.
struct FewRowsPlan {
  int rows, width, cols, num_stages;
  int num_warps, num_splits;
};
inline constexpr int kMaxFewRows = 8, kFewRowsMaxWarps = 8;
inline constexpr int kFewCols = 32, kFewColsNarrow = 8, kFewStages = 3, kFewStagesDeep = 6, kFewStagesNarrow = 4;

// A stage has 8 KB of B, whose rows along k are an odd number of 16 bytes apart.
constexpr int few_rows_block_k(int cols) { return 2048 / cols; }
constexpr int64_t few_rows_shared_bytes(int rows, int cols, int num_stages) {
  const int block_k = few_rows_block_k(cols);
  return 4 * (num_stages * (rows * block_k + cols * (block_k + 4)) + rows * cols);
}

// The rows of the kernel that serves m rows.
constexpr int few_rows_of_kernel(int64_t m, bool is_narrow) {
  return m == 1 ? 1 : is_narrow || m == 3 || m == 4 ? 4 : m == 2 ? 2 : 8;
}

// Blocks for which a multiprocessor has room.
constexpr int64_t fitting_blocks(const FewRowsPlan& plan, const Chip& chip) {
  const int64_t bytes = few_rows_shared_bytes(plan.rows, plan.width, plan.num_stages) * plan.num_warps;
  return max_of(1, chip.max_shared_bytes / bytes);
}

// So many columns for each block that all multiprocessors have as many, or nearly: the one with most decides when
// memory has sent all. Along n blocks begin with half lines at least. at_once: blocks that run at the same time;
// wide_blocks: as many as there are if each has kFewCols columns.
constexpr int balanced_cols(const GemmTask& task, int64_t at_once, int64_t wide_blocks) {
  if (wide_blocks > 2 * at_once) return kFewCols;
  const int64_t blocks = max_of(ceil_div(wide_blocks, at_once) * at_once / task.batch, 1);
  return int(min_of(round_up(ceil_div(task.n, blocks), task.b.is_k_major ? 1 : 16), kFewCols));
}

// The plan whose warps take chunks one after the other.
constexpr FewRowsPlan plan_few_rows(const GemmTask& task, const Chip& chip) {
  const int64_t num_chunks = max_of(1, ceil_div(task.k, task.chunk_k));
  const int64_t wide_blocks = ceil_div(task.n, kFewCols) * task.batch;
  const bool is_narrow = task.m <= 4 && wide_blocks * min_of(num_chunks, 4) < chip.num_cus;
  const int rows = few_rows_of_kernel(task.m, is_narrow), width = is_narrow ? kFewColsNarrow : kFewCols;
  const int64_t blocks = ceil_div(task.n, width) * task.batch;
  // One block of eight warps on a multiprocessor, or two of four; deeper rings where all blocks find room with them.
  const int64_t most = blocks <= chip.num_cus ? kFewRowsMaxWarps : 4;
  const auto num_warps = [&](int num_stages) {
    const int64_t fitting = chip.max_shared_bytes / few_rows_shared_bytes(rows, width, num_stages);
    return int(ceil_div(num_chunks, ceil_div(num_chunks, max_of(1, min_of(most, fitting)))));
  };
  if (is_narrow) return {rows, width, width, kFewStagesNarrow, num_warps(kFewStagesNarrow), 1};
  const int64_t deep_bytes = num_warps(kFewStagesDeep) * few_rows_shared_bytes(rows, width, kFewStagesDeep);
  const bool is_deep = num_warps(kFewStagesDeep) == num_warps(kFewStages) &&
                       ceil_div(blocks, chip.num_cus) * deep_bytes <= chip.max_shared_bytes;
  const int num_stages = is_deep ? kFewStagesDeep : kFewStages;
  FewRowsPlan plan{rows, width, width, num_stages, num_warps(num_stages), 1};
  plan.cols = balanced_cols(task, chip.num_cus * fitting_blocks(plan, chip), wide_blocks);
  return plan;
}

// The plan that has a block for each chunk. Rings are deeper where four blocks or fewer come to a multiprocessor.
constexpr FewRowsPlan plan_split_few_rows(const GemmTask& task, const Chip& chip) {
  const int64_t num_chunks = ceil_div(task.k, task.chunk_k), blocks = ceil_div(task.n, kFewCols) * task.batch;
  const bool is_narrow = task.m <= 4 && blocks * num_chunks < chip.num_cus;
  const int rows = few_rows_of_kernel(task.m, is_narrow);
  if (is_narrow) return {rows, kFewColsNarrow, kFewColsNarrow, kFewStagesNarrow, 1, int(num_chunks)};
  const bool is_deep = blocks * num_chunks <= 4 * chip.num_cus;
  return {rows, kFewCols, kFewCols, is_deep ? kFewStagesDeep : kFewStages, 1, int(num_chunks)};
}

// Calls visit(plan) for both, if they can be carried out.
template <class Visit>
void for_each_few_rows_plan(const GemmTask& task, const Chip& chip, const Visit& visit) {
  if (task.m > kMaxFewRows) return;
  visit(plan_few_rows(task, chip));
  const double num_chunks = double(ceil_div(task.k, max_of(task.chunk_k, 1)));
  const double sums = num_chunks * double(task.m) * double(task.n) * double(task.batch);
  if (task.chunk_k < task.k && 4 * sums <= double(kMaxPartialBytes)) visit(plan_split_few_rows(task, chip));
}

// Microseconds by a simple model.
inline double few_rows_microseconds(const FewRowsCosts& c, const GemmTask& task, const FewRowsPlan& plan,
                                    const Chip& chip) {
  const int64_t num_chunks = max_of(1, ceil_div(task.k, task.chunk_k));
  const int64_t blocks = ceil_div(task.n, plan.cols) * task.batch * plan.num_splits;
  const int64_t per_cu = min_of(fitting_blocks(plan, chip), ceil_div(blocks, chip.num_cus));
  const int64_t chunks_of_warp = ceil_div(num_chunks, plan.num_warps * plan.num_splits);
  // Rounds of so many blocks. Those of one chunk are short and even out; of others the place with most decides.
  const auto rounds_of = [&](int64_t at_once) {
    const double share = double(blocks) / double(at_once);
    return plan.num_splits > 1 ? std::max(share, 1.0) : std::ceil(share);
  };
  const double rounds_of_blocks = rounds_of(chip.num_cus * per_cu), blocks_of_cu = rounds_of(chip.num_cus);
  const double loads = c.load * double(per_cu * plan.num_warps) * (1 + plan.rows);
  const double chain = c.lone + c.step * double(ceil_div(plan.rows, kFewCols / plan.width));  // of a lone warp
  const double work = c.latency + c.round * (rounds_of_blocks - 1) +
                      rounds_of_blocks * double(chunks_of_warp * min_of(task.chunk_k, task.k)) *
                          (loads > chain ? loads : chain) / c.cycles_per_us;
  // What memory gives, less where a tile's rows along n are short, and what a multiprocessor draws from it.
  const bool has_short_rows = plan.width == kFewColsNarrow && !task.b.is_k_major;
  const double given =
      4 * double(task.n) * double(task.k) * double(task.batch) / (has_short_rows ? c.short_rows : c.rate);
  const double drawn = 4 * blocks_of_cu * plan.cols * double(task.k) / plan.num_splits / c.drawn;
  const double memory = given > drawn ? given : drawn;
  // Stages that are not full.
  const double unused = task.b.is_k_major ? double(plan.width - plan.cols) : 0;
  const double partial = unused * (c.unused * std::min<double>(double(task.k), c.most_k) + c.unused_memory * memory);
  const double sums = double(num_chunks * task.m) * double(task.n) * double(task.batch);
  const double addition = plan.num_splits > 1 ? c.addition + 8 * sums / c.added : 0;
  const double copied = task.b.alignment < 16 ? c.by_elements.value : 0;
  return c.start + (work > memory ? work + c.overlap * memory : memory + c.overlap * work) + partial + addition +
         copied;
}

}  // namespace tiledmm

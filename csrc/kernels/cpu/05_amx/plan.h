// The tile numbers of the amx kernel, as plain data, and the pure functions that choose them. They move data and share
// out work; none of them changes a bit of the result: kChunkK alone fixes the order of summation.
#pragma once

#include <cstdint>

#include "core/math.h"
#include "core/problem.h"

namespace tiledmm {
namespace {

enum class AmxPath : int32_t {
  blocks,          // packed panels, blocks of C
  stream_rows,     // few columns: the row operand passes by once, where it lies or in a near buffer
  stream_columns,  // few rows: the column operand passes by once
  split_k,         // few tiles: the chunks of k side by side
};
inline constexpr const char* kAmxPathNames[] = {"blocks", "stream_rows", "stream_columns", "split_k"};

// k is summed in chunks of so many elements. docs/numerics.md: changing it changes bits, nothing else here does.
inline constexpr int64_t kAmxChunkK = 2048;
inline constexpr int64_t kAmxStrip = 32;       // rows and columns of C that the tiles hold
inline constexpr int64_t kAmxMaxBlockM = 256;  // rows that a task multiplies with each strip of columns
inline constexpr int64_t kAmxFewColumns = 32, kAmxFewRows = 16;
inline constexpr int64_t kAmxStreamWidth = 64;  // columns that the tiles hold where there are few rows
inline constexpr int64_t kAmxStreamColumns = 1024, kAmxStreamK = 64;  // of B that pass by at a time, in long runs
inline constexpr int64_t kAmxMinStreamColumns = 128;                  // of a task
inline constexpr int64_t kAmxTaskFlops = 6 << 20;  // less is not worth waking a thread for; so many bytes are, too
inline constexpr int64_t kAmxTaskBytes = 128 << 10;
inline constexpr int64_t kAmxPanelBytes = int64_t(512) << 20;  // packed at one time, for all threads
inline constexpr int64_t kAmxTotalBytes = 2 << 20;             // sums of the chunks before, of one task
inline constexpr int64_t kAmxCachedElements = 32 << 20;        // of the rows, packed, in the last cache
inline constexpr int64_t kAmxSplitBytes = 16 << 20;

struct AmxPlan {
  AmxPath path;
  bool is_exchanged;              // C^T = B^T A^T is computed; the rest is of that product
  bool is_a_in_place;             // tiles of rows are loaded from A itself
  bool is_a_shared, is_b_shared;  // packed before the tasks begin, for all of them
  int32_t num_threads;
  int32_t planes;          // tile products for one of the operands' own: fp16 by bf16 tiles takes 4
  int64_t task_m, task_n;  // of C, one task
  int64_t tasks_m, tasks_n;
  int64_t task_items;  // of a batch, one task; more than 1 where a task has all of an item
};

// One operand: lanes of k elements (pack.h).
struct AmxOperand {
  int64_t lanes, stride_lane, stride_k;
};

// Cycles for 32 lanes by 32 of k, from measured rates of shuffles and stores.
constexpr double pack_cycles(const AmxOperand& operand, bool for_rows, int64_t planes) {
  const double split = planes > 1 ? 500 : 0;
  if (operand.stride_k == 1) return split + (for_rows ? 40 : 200);
  if (operand.stride_lane == 1) return split + (for_rows ? 300 : 80);
  return split + 2000;
}

// Whether all rows of all items begin at a multiple of a cache line: else every row of a tile is two of them.
[[maybe_unused]] bool lies_on_lines(const GemmProblem& p, const void* data, const AmxOperand& operand,
                                    int64_t BatchDim::* batch_stride) {
  constexpr int64_t kLineElements = 32;
  bool result = operand.stride_k == 1 && reinterpret_cast<uintptr_t>(data) % 64 == 0 &&
                operand.stride_lane % kLineElements == 0 && p.k % kLineElements == 0 && p.k > 0;
  for (int32_t d = 0; d < p.num_batch_dims; ++d) {
    result = result && p.batch_dims[d].*batch_stride % kLineElements == 0;
  }
  return result;
}

// The grid of blocks with which the slowest thread is done first.
[[maybe_unused]] void choose_blocks(const GemmProblem& p, const AmxOperand& a, const AmxOperand& b, int64_t batch,
                                    AmxPlan& plan) {
  const int64_t m = a.lanes, n = b.lanes, strips_n = ceil_div(n, kAmxStrip);
  const double steps = double(ceil_div(max_of(p.k, 1), 32));
  const double dot_cycles = 64.0 * plan.planes;
  const double a_cycles = plan.is_a_in_place ? 0 : pack_cycles(a, true, plan.planes) * steps;
  const double b_cycles = pack_cycles(b, false, plan.planes) * steps;
  double best = 0;
  for (int64_t most = kAmxMaxBlockM / plan.planes; most >= kAmxStrip; most /= 2) {
    if (most > kAmxStrip && most / 2 >= round_up(m, kAmxStrip)) continue;
    const int64_t tasks_m = ceil_div(m, most), strips_m = ceil_div(ceil_div(m, tasks_m), kAmxStrip);
    const bool is_b_shared = tasks_m > 1;
    const double rows = double(ceil_div(m, kAmxStrip)), columns = double(strips_n);
    for (int64_t wanted = 1; wanted <= min_of(strips_n, 4 * plan.num_threads); wanted += max_of(1, wanted / 2)) {
      const int64_t task_strips = ceil_div(strips_n, wanted), tasks_n = ceil_div(strips_n, task_strips);
      const bool is_a_shared = tasks_n > 1 && !plan.is_a_in_place;
      // 64 cycles of dot products a step; shared columns come from the last cache, and less often if there are many
      // rows. The end of a tile costs about 200.
      const double step_cycles = dot_cycles + (is_b_shared ? 100.0 * plan.planes / double(strips_m) : 0);
      double cycles = double(strips_m * task_strips) * (steps * step_cycles + 200);
      // The rows of a task come from the last cache once, or are packed.
      cycles += (is_a_shared || plan.is_a_in_place ? 150 * steps : a_cycles) * double(strips_m);
      if (!is_b_shared) cycles += b_cycles * double(task_strips);
      // Cores differ in speed: the last task of the slowest one is waited for, half of it on average.
      const double rounds = double(batch * tasks_m * tasks_n) / double(plan.num_threads);
      cycles *= plan.num_threads == 1 ? rounds : 0.5 + (rounds > 1 ? rounds : 1);
      const double shared = (is_a_shared ? a_cycles * rows : 0) + (is_b_shared ? b_cycles * columns : 0);
      if (shared > 0) cycles += shared * double(batch) / double(plan.num_threads) + (plan.num_threads > 1 ? 9000 : 0);
      if (best == 0 || cycles < best) {
        best = cycles;
        plan.task_m = strips_m * kAmxStrip, plan.task_n = task_strips * kAmxStrip;
        plan.is_a_shared = is_a_shared, plan.is_b_shared = is_b_shared;
      }
      if (plan.num_threads == 1 || batch >= 4 * plan.num_threads) break;  // nothing is gained by more tasks
    }
    if (plan.num_threads == 1 || batch >= 4 * plan.num_threads) break;
  }
  // Sums of earlier chunks, of a task.
  if (p.k > kAmxChunkK) {
    plan.task_n = min_of(plan.task_n, max_of(1, kAmxTotalBytes / 4 / plan.task_m / kAmxStrip) * kAmxStrip);
    if (plan.task_n < n && !plan.is_a_in_place) plan.is_a_shared = true;
  }
}

// `planes`: tile products for one of the operands' own.
[[maybe_unused]] AmxPlan choose_amx_plan(const FoldedProblem& problem, int64_t planes, int64_t num_threads) {
  const GemmProblem& p = problem.gemm;
  AmxPlan plan{};
  plan.planes = int32_t(planes);
  AmxOperand a{p.m, p.stride_am, p.stride_ak}, b{p.n, p.stride_bn, p.stride_bk};
  const bool in_place_a = planes == 1 && lies_on_lines(p, p.a, a, &BatchDim::stride_a);
  const bool in_place_b = planes == 1 && lies_on_lines(p, p.b, b, &BatchDim::stride_b);
  // Either operand can be that of the rows, with the same bits: the one for which less is packed. A column-major C
  // takes one transposition for each tile.
  const auto cycles = [&](const AmxOperand& rows, const AmxOperand& cols, bool in_place, int64_t stride_c) {
    const double strips_m = double(ceil_div(rows.lanes, kAmxStrip)), strips_n = double(ceil_div(cols.lanes, kAmxStrip));
    const double packing =
        strips_m * (in_place ? 0 : pack_cycles(rows, true, planes)) + strips_n * pack_cycles(cols, false, planes);
    return packing * double(ceil_div(max_of(p.k, 1), 32)) + (stride_c != 1 ? 100 * strips_m * strips_n : 0);
  };
  plan.is_exchanged = cycles(b, a, in_place_b, p.stride_cm) < cycles(a, b, in_place_a, p.stride_cn);
  if (plan.is_exchanged) {
    const AmxOperand rows = b;
    b = a, a = rows;
  }
  plan.is_a_in_place = plan.is_exchanged ? in_place_b : in_place_a;

  const int64_t m = a.lanes, n = b.lanes, batch = problem.batch_size;
  const double flops = 2.0 * double(m) * double(n) * double(p.k) * double(batch) * double(planes);
  const double bytes = 2.0 * double(p.k) * double(m + n) * double(batch);
  const double useful = flops / double(kAmxTaskFlops) + bytes / double(kAmxTaskBytes);
  plan.num_threads = int32_t(useful < double(num_threads) ? max_of(1, int64_t(useful)) : num_threads);
  plan.task_items = 1;
  const int64_t threads = plan.num_threads, num_chunks = ceil_div(p.k, kAmxChunkK);
  const int64_t tiles = ceil_div(m, kAmxStrip) * ceil_div(n, kAmxStrip);
  if (batch == 1 && num_chunks > 1 && tiles < 2 * threads && tiles < 64) {
    plan.path = AmxPath::split_k;
    plan.task_m = min_of(round_up(m, kAmxStrip), kAmxMaxBlockM / planes), plan.task_n = round_up(n, kAmxStrip);
  } else if (n <= kAmxFewColumns || m <= kAmxFewRows) {
    plan.path = n <= kAmxFewColumns ? AmxPath::stream_rows : AmxPath::stream_columns;
    plan.task_m = round_up(m, kAmxStrip), plan.task_n = round_up(n, kAmxStrip);
    int64_t& part = n <= kAmxFewColumns ? plan.task_m : plan.task_n;
    if (threads > 1 && batch < 4 * threads) {
      const int64_t least = n <= kAmxFewColumns ? kAmxStreamWidth : kAmxMinStreamColumns;
      part = min_of(round_up(ceil_div(part * batch, 4 * threads), least), part);
    }
    plan.is_b_shared = n <= kAmxFewColumns && part < m;
    plan.is_a_shared = !plan.is_b_shared && n > kAmxFewColumns && part < n;
    if (plan.path == AmxPath::stream_columns) plan.is_a_in_place = false;
  } else {
    plan.path = AmxPath::blocks;
    // Rows 4 KiB apart share two sets of the nearest cache: packed where they are used often and fit a cache.
    if (a.stride_lane % 2048 == 0 && n > 2048 && m * p.k <= kAmxCachedElements) plan.is_a_in_place = false;
    choose_blocks(p, a, b, batch, plan);
  }
  plan.tasks_m = ceil_div(m, plan.task_m), plan.tasks_n = ceil_div(n, plan.task_n);
  if (plan.tasks_m * plan.tasks_n == 1) plan.task_items = max_of(1, batch / (4 * threads));
  return plan;
}

}  // namespace
}  // namespace tiledmm

// The tile numbers of the amx kernel, as plain data, and the pure functions that choose them. They move data and share
// out work; none of them changes a bit of the result: kAmxChunkK alone fixes the order of summation.
#pragma once

#include <cstdint>

#include "core/math.h"
#include "core/problem.h"
#include "kernels/cpu/shared/items_plan.h"
#include "kernels/cpu/shared/threads.h"

namespace tiledmm {
namespace {

enum class AmxPath : int32_t {
  blocks,          // packed panels, blocks of C
  stream_rows,     // few columns: the row operand passes by once, where it lies or in a near buffer
  stream_columns,  // few rows: the column operand passes by once
  split_k,         // few tiles: the chunks of k side by side
  short_k,         // k of a few elements: C is written row by row, by vector instructions (short_k.h)
  items,           // a batch of small items, one in each lane of vectors (shared/items.h)
};
inline constexpr const char* kAmxPathNames[] = {"blocks",  "stream_rows", "stream_columns",
                                                "split_k", "short_k",     "items"};

// k is summed in chunks of so many elements. docs/numerics.md: changing it changes bits, nothing else here does.
inline constexpr int64_t kAmxChunkK = 2048;
inline constexpr int64_t kAmxMaxBlockM = 256;  // rows that a task multiplies with each strip of columns
inline constexpr int64_t kAmxFewColumns = 32, kAmxFewRows = 64;
inline constexpr int64_t kAmxLineElements = 32;          // of a cache line
inline constexpr int64_t kAmxShortK = 4;                 // so few would leave the tiles nearly empty
inline constexpr int64_t kAmxStreamedBytes = 512 << 10;  // of a column operand that passes by once; less is packed
inline constexpr int64_t kAmxFarBytes = 8 << 20;         // of it, where it comes from memory and is fetched ahead
inline constexpr int64_t kAmxStreamedLanes = 64;         // of a task that reads them row by row ...
inline constexpr int64_t kAmxFarStreamedLanes = 128;     // ... from memory, or where rows do not begin with lines
inline constexpr int64_t kAmxKeptBytes = 512 << 10;      // of the other operand, up to which each worker packs it
inline constexpr int64_t kAmxMostSplitTiles = 64;        // of C, where k is split: their sums are added by one thread
inline constexpr int64_t kAmxTaskFlops = 13 << 19;       // half of it repays waking a thread
inline constexpr int64_t kAmxTaskBytes = 128 << 10;      // likewise, of operands and C
inline constexpr int64_t kAmxPanelBytes = int64_t(512) << 20;  // packed at one time, for all threads
inline constexpr int64_t kAmxTotalBytes = 2 << 20;             // sums of the chunks before, of one task
inline constexpr int64_t kAmxCachedElements = 32 << 20;        // of an operand in the last cache
inline constexpr int64_t kAmxSplitBytes = 16 << 20;
inline constexpr int64_t kAmxItemLanes = 16;  // of a vector of sums

struct AmxPlan {
  AmxPath path;
  bool is_exchanged;              // C^T = B^T A^T is computed; the rest is of that product
  bool is_a_in_place;             // tiles of rows are loaded from A itself
  bool is_a_shared, is_b_shared;  // packed before the tasks begin, for all of them
  int32_t num_threads;
  int64_t task_m, task_n;  // of C, one task
  int64_t tasks_m, tasks_n;
  int64_t task_items;  // of a batch, one task; more than 1 where a task has all of an item
  ItemsPlan items;     // of their path
};

// One operand: lanes of k elements (pack.h).
struct AmxOperand {
  int64_t lanes, stride_lane, stride_k;
  bool is_widened;  // from 8 bits, as it is packed
};

// Cycles for 32 lanes by 32 of k, as measured in whole products: short runs of memory are what they take longest for.
constexpr double pack_cycles(const AmxOperand& operand, bool for_rows) {
  if (operand.stride_k == 1) return (for_rows ? 100 : 300) + (operand.is_widened ? 150 : 0);
  if (operand.stride_lane == 1) return for_rows ? 500 : 250;
  return 2000;
}

// Rows 4 KiB apart share two sets of the nearest cache, which hold few of them.
constexpr bool has_bad_pitch(const AmxOperand& operand) {
  constexpr int64_t kRowsOfSets = 8;
  return operand.lanes > kRowsOfSets && operand.stride_lane % 2048 == 0;
}

// Whether all rows of all items begin at a multiple of a cache line: else every row of a tile is two of them.
[[maybe_unused]] bool lies_on_lines(const GemmProblem& p, const void* data, const AmxOperand& operand,
                                    int64_t BatchDim::* batch_stride) {
  bool result = operand.stride_k == 1 && !operand.is_widened && reinterpret_cast<uintptr_t>(data) % 64 == 0 &&
                operand.stride_lane % kAmxLineElements == 0 && p.k % kAmxLineElements == 0 && p.k > 0;
  for (int32_t d = 0; d < p.num_batch_dims; ++d) {
    result = result && p.batch_dims[d].*batch_stride % kAmxLineElements == 0;
  }
  return result;
}

// The grid of blocks with which the slowest thread is done first, and who packs: all threads before the tasks begin, or
// each task its own part.
[[maybe_unused]] void choose_blocks(const GemmProblem& p, const AmxOperand& a, const AmxOperand& b, int64_t batch,
                                    AmxPlan& plan) {
  // Operands come from the last cache at so many cycles a unit, beside what dot products hide; what other threads have
  // packed comes from their caches, slower the more there are; and to write it again ends the copies there. A part of a
  // call that all threads take part in costs so much (docs/worklog/cpu.md).
  constexpr double kFetchCycles = 150, kFetchInPlaceCycles = 60, kTileEndCycles = 200, kShareCyclesOfThread = 200,
                   kRegionCycles = 2000, kRegionCyclesOfThread = 1500;
  const int64_t m = a.lanes, n = b.lanes, strips_n = ceil_div(n, kAmxStrip), threads = plan.num_threads;
  const double steps = double(ceil_div(max_of(p.k, 1), kAmxStep)), fetch_cycles = kFetchCycles * steps;
  const double fetch_shared_cycles = fetch_cycles * (threads > 4 ? 1 + double(threads) / 5 : 1);
  const double a_cycles = plan.is_a_in_place ? 0 : pack_cycles(a, true) * steps;
  const double fetch_a_cycles = plan.is_a_in_place ? kFetchInPlaceCycles * steps : fetch_cycles;
  const double b_cycles = pack_cycles(b, false) * steps;
  const bool has_many_items = threads == 1 || batch >= 4 * threads;  // nothing is gained by more tasks
  double best = 0;
  const auto judge = [&](int64_t strips_m, int64_t task_strips, bool shares) {
    const int64_t tasks_m = ceil_div(m, strips_m * kAmxStrip), tasks_n = ceil_div(strips_n, task_strips);
    const bool is_a_shared = shares && tasks_n > 1 && !plan.is_a_in_place, is_b_shared = shares && tasks_m > 1;
    double cycles = double(strips_m * task_strips) * (steps * 64 + kTileEndCycles) +
                    (is_a_shared ? fetch_shared_cycles : fetch_a_cycles + a_cycles) * double(strips_m) +
                    (is_b_shared ? fetch_shared_cycles : fetch_cycles + b_cycles) * double(task_strips);
    cycles *= turns_of(double(batch * tasks_m * tasks_n), threads, wait_of_tiles(threads));
    if (is_a_shared || is_b_shared) {
      const double share_cycles = fetch_cycles + (threads > 1 ? kShareCyclesOfThread * double(threads) * steps : 0);
      const double packing = (is_a_shared ? (a_cycles + share_cycles) * double(ceil_div(m, kAmxStrip)) : 0) +
                             (is_b_shared ? (b_cycles + share_cycles) * double(strips_n) : 0);
      cycles += packing * double(batch) / double(threads) +
                (threads > 1 ? kRegionCycles + kRegionCyclesOfThread * double(threads) : 0);
    }
    if (best == 0 || cycles < best) {
      best = cycles;
      plan.task_m = strips_m * kAmxStrip, plan.task_n = task_strips * kAmxStrip;
      plan.is_a_shared = is_a_shared, plan.is_b_shared = is_b_shared;
    }
  };
  // Many rows 4 KiB apart would not stay in the second cache.
  const int64_t max_block_m = kAmxMaxBlockM / (plan.is_a_in_place && has_bad_pitch(a) ? 2 : 1);
  for (int64_t most = max_block_m; most >= kAmxStrip; most /= 2) {
    if (most > kAmxStrip && most / 2 >= round_up(m, kAmxStrip)) continue;
    const int64_t strips_m = ceil_div(ceil_div(m, ceil_div(m, most)), kAmxStrip);
    const int64_t most_tasks_n = has_many_items ? 1 : min_of(strips_n, 4 * threads);
    for (int64_t wanted = 1; wanted <= most_tasks_n;) {
      judge(strips_m, ceil_div(strips_n, wanted), true);
      judge(strips_m, ceil_div(strips_n, wanted), false);
      wanted = wanted == most_tasks_n ? wanted + 1 : min_of(wanted + max_of(1, wanted / 2), most_tasks_n);
    }
    if (has_many_items) break;
  }
  // Sums of earlier chunks, of a task.
  if (p.k > kAmxChunkK) {
    const int64_t fitting = max_of(1, kAmxTotalBytes / 4 / plan.task_m / kAmxStrip) * kAmxStrip;
    if (fitting < plan.task_n) {
      plan.task_n = fitting;
      plan.is_a_shared = !plan.is_a_in_place;
    }
  }
}

// Whether rows of C can be written one by one: few elements of k, B and C contiguous along them, nothing added.
[[maybe_unused]] bool is_short_k(const GemmProblem& p, bool is_exchanged) {
  const int64_t stride_b = is_exchanged ? p.stride_am : p.stride_bn,
                stride_c = is_exchanged ? p.stride_cm : p.stride_cn;
  return p.k >= 1 && p.k <= kAmxShortK && stride_b == 1 && stride_c == 1 && is_plain(p) && p.dtype_b == p.dtype_a &&
         p.dtype_c == p.dtype_a && (is_exchanged ? p.m : p.n) > kAmxStrip;
}

// Small items side by side, where they take less time than tiles, of which even one takes as long as so many
// multiply-adds of vectors (277 random items, two cores of an Intel: what is chosen takes 1 % longer than the best).
[[maybe_unused]] bool choose_items(const FoldedProblem& problem, int64_t num_threads, AmxPlan& plan) {
  constexpr double kItemCost = 4000;
  constexpr int64_t kAccBytes = 4;
  const GemmProblem& p = problem.gemm;
  if (problem.batch_size == 1 || p.k < 1 || p.k > kAmxChunkK || mix_of(p) != Mix::none) return false;
  if (!plan_items(p, problem.batch_size, kAmxItemLanes, kAccBytes, plan.items)) return false;
  if (plan.items.cost >= kItemCost * double(problem.batch_size)) return false;
  share_groups(plan.items, kAmxItemLanes * kAccBytes, num_threads, kWakeOfTiles);
  plan.path = AmxPath::items;
  plan.is_exchanged = p.m > p.n;  // a micro-tile is wider than high
  return true;
}

[[maybe_unused]] AmxPlan choose_amx_plan(const FoldedProblem& problem, int64_t num_threads) {
  const GemmProblem& p = problem.gemm;
  AmxPlan plan{};
  if (choose_items(problem, num_threads, plan)) return plan;
  AmxOperand a{p.m, p.stride_am, p.stride_ak, false}, b{p.n, p.stride_bn, p.stride_bk, size_of(p.dtype_b) == 1};
  const bool in_place_a = lies_on_lines(p, p.a, a, &BatchDim::stride_a);
  const bool in_place_b = lies_on_lines(p, p.b, b, &BatchDim::stride_b);
  // Either operand can be that of the rows, with the same bits: the one for which less is packed. A column-major C
  // takes one transposition for each tile.
  const auto cycles = [&](const AmxOperand& rows, const AmxOperand& cols, bool in_place, int64_t stride_c) {
    const double packing = (in_place ? 0 : double(ceil_div(rows.lanes, kAmxStrip)) * pack_cycles(rows, true)) +
                           double(ceil_div(cols.lanes, kAmxStrip)) * pack_cycles(cols, false);
    // A tile with few rows takes as long as a whole one, one with few columns likewise.
    const double dots = 16.0 * double(ceil_div(rows.lanes, 16) * ceil_div(cols.lanes, 16));
    return (packing + dots) * double(ceil_div(max_of(p.k, 1), kAmxStep)) +
           (stride_c != 1 ? 120.0 : 0.0) * double(ceil_div(rows.lanes, kAmxStrip) * ceil_div(cols.lanes, kAmxStrip));
  };
  plan.is_exchanged = is_short_k(p, true) || (!is_short_k(p, false) && cycles(b, a, in_place_b, p.stride_cm) <
                                                                           cycles(a, b, in_place_a, p.stride_cn));
  if (plan.is_exchanged) {
    const AmxOperand rows = b;
    b = a, a = rows;
  }
  plan.is_a_in_place = plan.is_exchanged ? in_place_b : in_place_a;
  if (a.lanes < kAmxStrip) {
    // Tiles have no more rows than A (tiles_of_rows): those of whole steps are loaded where they lie, wherever they
    // begin.
    plan.is_a_in_place = a.stride_k == 1 && !a.is_widened && p.k > 0 && p.k % kAmxStep == 0 && !has_bad_pitch(a);
  }

  const int64_t m = a.lanes, n = b.lanes, batch = problem.batch_size;
  const double flops = 2.0 * double(m) * double(n) * double(p.k) * double(batch);
  const double bytes = 2.0 * (double(p.k) * double(m + n) + double(m) * double(n)) * double(batch);
  const double work = flops / double(kAmxTaskFlops) + bytes / double(kAmxTaskBytes);
  plan.num_threads = int32_t(threads_for(work, num_threads, kWakeOfTiles));
  plan.task_items = 1;
  const int64_t threads = plan.num_threads, num_chunks = ceil_div(p.k, kAmxChunkK);
  const int64_t tiles = ceil_div(m, kAmxStrip) * ceil_div(n, kAmxStrip);
  // Few columns make tasks of single tiles without splitting k. A split makes tasks of rows and chunks.
  const bool are_columns_few = n <= kAmxFewColumns;
  const int64_t wanted_tiles = are_columns_few ? threads : 2 * threads;
  const bool is_k_long = num_chunks > 1 && num_chunks * ceil_div(m, kAmxStrip) > tiles &&
                         (tiles < wanted_tiles || num_chunks >= 2 * threads);
  if (is_short_k(p, plan.is_exchanged)) {
    plan.path = AmxPath::short_k;
    plan.is_a_in_place = false;
    plan.task_m = ceil_div(m, batch < 4 * threads ? min_of(m, 2 * threads) : 1), plan.task_n = n;
  } else if (batch == 1 && is_k_long && tiles <= kAmxMostSplitTiles) {
    plan.path = AmxPath::split_k;
    // Two tasks for each thread, where there are rows enough.
    const int64_t rows = round_up(ceil_div(m * num_chunks, 2 * threads), kAmxStrip);
    plan.task_m = min_of(min_of(rows, round_up(m, kAmxStrip)), kAmxMaxBlockM), plan.task_n = round_up(n, kAmxStrip);
    if (has_bad_pitch(a)) plan.is_a_in_place = false;
  } else if (are_columns_few || (m <= kAmxFewRows && n * p.k * 2 >= kAmxStreamedBytes)) {
    plan.path = are_columns_few ? AmxPath::stream_rows : AmxPath::stream_columns;
    plan.task_m = round_up(m, kAmxStrip), plan.task_n = round_up(n, kAmxStrip);
    int64_t& part = are_columns_few ? plan.task_m : plan.task_n;
    if (threads > 1 && batch < 4 * threads) {
      const int64_t tasks = are_columns_few ? 4 * threads : 2 * threads;
      const int64_t unit = are_columns_few ? kAmxStrip : kAmxStreamedLanes;
      part = min_of(round_up(ceil_div(part * batch, tasks), unit), part);
      const bool are_short_runs_cheap = b.stride_k % kAmxLineElements == 0 && n * p.k <= kAmxCachedElements;
      if (!are_columns_few) part = min_of(part, are_short_runs_cheap ? kAmxStreamedLanes : kAmxFarStreamedLanes);
    }
    // Each worker packs the few lanes for itself, where they fit its cache: others' would come from their caches.
    const bool is_large = round_up(are_columns_few ? n : m, kAmxStrip) * p.k * 2 > kAmxKeptBytes;
    if (!are_columns_few && m >= kAmxStrip) plan.is_a_in_place = false;
    plan.is_b_shared = are_columns_few && part < m && is_large;
    plan.is_a_shared = !are_columns_few && part < n && is_large && !plan.is_a_in_place;
  } else {
    plan.path = AmxPath::blocks;
    // Rows 4 KiB apart share two sets of the nearest cache: packed where they are used often and fit a cache.
    if (has_bad_pitch(a) && n > 2048 && m * p.k <= kAmxCachedElements) plan.is_a_in_place = false;
    choose_blocks(p, a, b, batch, plan);
  }
  plan.tasks_m = ceil_div(m, plan.task_m), plan.tasks_n = ceil_div(n, plan.task_n);
  if (plan.tasks_m * plan.tasks_n == 1) plan.task_items = max_of(1, batch / (4 * threads));
  return plan;
}

}  // namespace
}  // namespace tiledmm

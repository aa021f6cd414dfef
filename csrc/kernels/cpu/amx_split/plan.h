// How the amx_split kernel shares out its work, as plain data, and the pure functions that choose it. Nothing here but
// kAmxSplitChunkK and the least n and k changes a bit of the result.
#pragma once

#include <cstdint>

#include "core/math.h"
#include "core/problem.h"
#include "core/rung.h"
#include "kernels/cpu/shared/threads.h"

namespace tiledmm {
namespace {

// k is summed in chunks of so many elements. docs/numerics.md: changing it changes bits.
inline constexpr int64_t kAmxSplitChunkK = 512;
// Shorter k, and fewer columns of the caller's C, are left to the vector kernel, which is faster with most m: splitting
// costs more than tiles gain. Tests compile kernels that split smaller products, too. Below 64 of k the vector kernel's
// chain would have the smaller bound.
#ifndef TILEDMM_AMX_SPLIT_LEAST
#define TILEDMM_AMX_SPLIT_LEAST 1024
#endif
inline constexpr int64_t kAmxSplitMinN = TILEDMM_AMX_SPLIT_LEAST, kAmxSplitMinK = max_of(kAmxSplitMinN, 64);
// The largest magnitude of a lane that is split, if not all of it is zero: 2^-50 .. 2^60, as bits of fp32.
inline constexpr uint32_t kMinLargest = (127 - 50) << 23, kMaxLargest = (127 + 60) << 23;

inline constexpr int kAmxSplitProducts = 6;
inline constexpr int64_t kAmxSplitUnitBytes = 3 * kAmxStrip * kAmxStep * 2;  // three terms of 32 lanes by 32 of k
inline constexpr int64_t kAmxSplitMaxStrips = 8;         // of rows, in a task: a chunk of them fits the second cache
inline constexpr int64_t kAmxSplitGroupStrips = 4;       // of lanes that are neighbours in memory, packed side by side
inline constexpr int64_t kAmxSplitTaskFlops = 1 << 20;   // half of it repays waking a thread
inline constexpr int64_t kAmxSplitTaskBytes = 96 << 10;  // likewise, of operands and C
// Packed at one time, for all threads. Memory of 32 MiB and more comes from the system anew at every call (glibc's
// M_MMAP_THRESHOLD), and its page faults would take longer than to pack again.
inline constexpr int64_t kAmxSplitPanelBytes = 28 << 20;
inline constexpr int64_t kAmxSplitTotalBytes = 768 << 10;  // sums of the chunks before, of one task
inline constexpr int64_t kAmxSplitPartBytes = 16 << 20;    // sums of chunks that are computed side by side

struct AmxSplitPlan {
  bool is_exchanged;              // C^T = B^T A^T is computed; the rest is of that product
  bool is_a_shared, is_b_shared;  // packed before the tasks begin; else each task packs what it uses
  bool splits_k;                  // few tiles: a task is a chunk of k, and its sums are added up afterwards
  int32_t num_threads;
  int64_t task_m, task_n;  // of C, one task
  int64_t tasks_m, tasks_n;
  int64_t range_n;  // columns for which B is packed at a time, if it is shared: whole tasks
};

// One operand: lanes of k elements.
struct AmxSplitOperand {
  int64_t lanes, stride_lane, stride_k;
};

// Cycles for 32 lanes by 32 of k, an estimate: what has to be transposed takes twice as long.
constexpr double split_cycles(const AmxSplitOperand& operand, bool for_rows) {
  if (operand.stride_k != 1 && operand.stride_lane != 1) return 3000;
  return (operand.stride_k == 1) == for_rows ? 450 : 900;
}

// Cycles of the tile unit for 32 of k, of the tiles that exist.
constexpr double product_cycles(int64_t m, int64_t n) {
  return 16.0 * kAmxSplitProducts * double(min_of(2, ceil_div(m, 16)) * min_of(2, ceil_div(n, 16)));
}

// The grid of blocks of C with which the slowest thread is done first, and who packs: all threads before the tasks
// begin, what a panel's memory holds at a time, or each task its own part again.
[[maybe_unused]] void choose_blocks(const AmxSplitOperand& a, const AmxSplitOperand& b, int64_t k, int64_t batch,
                                    AmxSplitPlan& plan) {
  constexpr double kFetchCycles = 300, kTileEndCycles = 250, kRegionCycles = 2000, kRegionCyclesOfThread = 1500;
  // Of a unit that is packed for all threads, for each of them: where it is written, other cores hold copies of what
  // was there.
  constexpr double kShareCycles = 600;
  const int64_t strips_a = ceil_div(a.lanes, kAmxStrip), strips_b = ceil_div(b.lanes, kAmxStrip);
  const int64_t threads = plan.num_threads, strip_bytes = ceil_div(k, kAmxStep) * kAmxSplitUnitBytes;
  const int64_t fitting = kAmxSplitPanelBytes / strip_bytes;  // strips
  const auto steps = double(ceil_div(k, kAmxStep)), chunks = double(ceil_div(k, kAmxSplitChunkK));
  const double a_cycles = split_cycles(a, true) * steps, b_cycles = split_cycles(b, false) * steps;
  const double fetch_cycles = kFetchCycles * steps;
  const double tile_cycles = product_cycles(a.lanes, b.lanes) * steps + kTileEndCycles * chunks;
  double best = 0;
  const auto judge = [&](int64_t strips_m, int64_t strips_n, bool is_a_shared, bool is_b_shared) {
    const int64_t tasks_m = ceil_div(strips_a, strips_m), tasks_n = ceil_div(strips_b, strips_n);
    if ((is_a_shared && tasks_n == 1) || (is_b_shared && tasks_m == 1)) return;
    const int64_t item_strips = (is_a_shared ? strips_a : 0) + (is_b_shared ? strips_b : 0);
    // Where A is not shared, B can be in parts.
    int64_t range_tasks = tasks_n, items = batch;
    if (item_strips > fitting) {
      range_tasks = is_a_shared ? 0 : fitting / strips_n, items = 1;
      if (range_tasks == 0) return;
    } else if (item_strips > 0) {
      items = min_of(batch, fitting / item_strips);
    }
    const auto rounds = double(ceil_div(batch, items) * ceil_div(tasks_n, range_tasks));
    double cycles = double(strips_m * strips_n) * tile_cycles +
                    double(strips_m) * (fetch_cycles + (is_a_shared ? 0 : a_cycles)) +
                    double(strips_n) * (fetch_cycles + (is_b_shared ? 0 : b_cycles));
    cycles *= rounds * turns_of(double(items * tasks_m * range_tasks), threads, wait_of_tiles(threads));
    if (item_strips > 0) {
      const double share_cycles = fetch_cycles + (threads > 1 ? kShareCycles * double(threads) * steps : 0);
      const double packing = (is_a_shared ? (a_cycles + share_cycles) * double(strips_a) : 0) +
                             (is_b_shared ? (b_cycles + share_cycles) * double(strips_b) : 0);
      cycles += packing * double(batch) / double(threads) +
                (threads > 1 ? rounds * (kRegionCycles + kRegionCyclesOfThread * double(threads)) : 0);
    }
    if (best == 0 || cycles < best) {
      best = cycles;
      plan.is_a_shared = is_a_shared, plan.is_b_shared = is_b_shared;
      plan.task_m = strips_m * kAmxStrip, plan.task_n = strips_n * kAmxStrip;
      plan.range_n = range_tasks * plan.task_n;
    }
  };
  // Sums of earlier chunks, of a task.
  const int64_t most_tiles = k > kAmxSplitChunkK ? kAmxSplitTotalBytes / (kAmxStrip * kAmxStrip * 4) : INT64_MAX;
  for (int64_t most = kAmxSplitMaxStrips; most >= 1; most /= 2) {
    if (most > 1 && most / 2 >= strips_a) continue;
    const int64_t strips_m = ceil_div(strips_a, ceil_div(strips_a, most));
    for (int64_t wanted = 1; wanted <= min_of(strips_b, 8 * threads); wanted += max_of(1, wanted / 2)) {
      const int64_t strips_n = min_of(ceil_div(strips_b, wanted), most_tiles / strips_m);
      for (const bool is_a_shared : {true, false}) {
        for (const bool is_b_shared : {true, false}) judge(strips_m, strips_n, is_a_shared, is_b_shared);
      }
    }
  }
  // The chunks of k side by side.
  constexpr double kAddCycles = 200;
  if (batch > 1 || threads == 1 || strips_a > kAmxSplitMaxStrips || strips_b > kAmxSplitMaxStrips) return;
  const auto tiles = double(strips_a * strips_b);
  const double chunk_cycles = (tiles * tile_cycles + double(strips_a) * (fetch_cycles + a_cycles) +
                               double(strips_b) * (fetch_cycles + b_cycles)) /
                              chunks;
  const double cycles = turns_of(chunks, threads, wait_of_tiles(threads)) * chunk_cycles + kAddCycles * tiles * chunks +
                        kRegionCycles + kRegionCyclesOfThread * double(threads);
  if (cycles >= best) return;
  plan.splits_k = true, plan.is_a_shared = plan.is_b_shared = false;
  plan.task_m = strips_a * kAmxStrip, plan.task_n = plan.range_n = strips_b * kAmxStrip;
}

[[maybe_unused]] AmxSplitPlan choose_amx_split_plan(const FoldedProblem& problem, int64_t num_threads) {
  const GemmProblem& p = problem.gemm;
  AmxSplitPlan plan{};
  AmxSplitOperand a{p.m, p.stride_am, p.stride_ak}, b{p.n, p.stride_bn, p.stride_bk};
  // Either operand can be that of the rows, with the same bits: the one for which less is transposed. A column-major C
  // takes one transposition for each tile.
  const auto cycles = [&](const AmxSplitOperand& rows, const AmxSplitOperand& cols, int64_t stride_c) {
    const auto strips_m = double(ceil_div(rows.lanes, kAmxStrip)), strips_n = double(ceil_div(cols.lanes, kAmxStrip));
    return (strips_m * split_cycles(rows, true) + strips_n * split_cycles(cols, false)) *
               double(ceil_div(p.k, kAmxStep)) +
           (stride_c != 1 ? 150.0 : 0.0) * strips_m * strips_n;
  };
  plan.is_exchanged = cycles(b, a, p.stride_cm) < cycles(a, b, p.stride_cn);
  if (plan.is_exchanged) {
    const AmxSplitOperand rows = b;
    b = a, a = rows;
  }
  const double batch = double(problem.batch_size), m = double(p.m), n = double(p.n), k = double(p.k);
  const double work = 2 * m * n * k / double(kAmxSplitTaskFlops) + 4 * (k * (m + n) + m * n) / kAmxSplitTaskBytes;
  plan.num_threads = int32_t(threads_for(work * batch, num_threads, kWakeOfTiles));
  choose_blocks(a, b, p.k, problem.batch_size, plan);
  plan.tasks_m = ceil_div(a.lanes, plan.task_m), plan.tasks_n = ceil_div(b.lanes, plan.task_n);
  return plan;
}

}  // namespace
}  // namespace tiledmm

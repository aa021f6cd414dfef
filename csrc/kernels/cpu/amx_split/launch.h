// Shares out the work of amx_split: packing for all tasks, then blocks of C, then what is flagged.
#pragma once

#include "core/executor.h"
#include "core/transposed.h"
#include "kernels/cpu/amx_split/flagged.h"
#include "kernels/cpu/amx_split/task.h"
#include "kernels/cpu/shared/parallel.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

// How an operand is packed: before the tasks begin, a range of its lanes at a time, in groups of lanes and each group
// in parts along k, so that there is work for every thread; or by the tasks. Each part has magnitudes of its own.
struct OperandPacking {
  static constexpr int64_t kGroupLanes = kAmxSplitGroupStrips * kAmxStrip;

  int64_t lanes, k, range, parts_k = 1, depth;
  bool is_shared;

  OperandPacking(const AmxSplitPlan& plan, bool is_shared, int64_t lanes, int64_t range, int64_t k)
      : lanes(lanes), k(k), range(range), depth(k), is_shared(is_shared) {
    constexpr int64_t kTasksOfThread = 2, kMinSteps = 4;
    if (plan.splits_k) parts_k = ceil_div(k, kAmxSplitChunkK), depth = kAmxSplitChunkK;
    if (!is_shared) return;
    const int64_t groups = ceil_div(range, kGroupLanes), steps = ceil_div(k, kTileK);
    parts_k = max_of(1, min_of(ceil_div(kTasksOfThread * plan.num_threads, groups), steps / kMinSteps));
    depth = ceil_div(steps, parts_k) * kTileK;
    parts_k = ceil_div(k, depth);
  }
  int64_t term_bytes() const { return is_shared ? ceil_div(range, kAmxStrip) * strip_bytes(k) : 0; }
  int64_t magnitude_bytes() const { return round_up(parts_k * lanes * int64_t(sizeof(uint32_t)), 64); }
  int64_t bytes() const { return term_bytes() + magnitude_bytes(); }

  // Where it lies in memory of so many bytes, for the range that begins at a lane.
  Panel panel(char* memory, int64_t first_lane) const {
    return {is_shared ? memory : nullptr, reinterpret_cast<uint32_t*>(memory + term_bytes()), first_lane};
  }

  // The end of the range that begins at a lane.
  int64_t end(int64_t first_lane) const { return min_of(lanes, first_lane + range); }
  int64_t num_tasks(int64_t first_lane) const {
    return is_shared ? ceil_div(end(first_lane) - first_lane, kGroupLanes) * parts_k : 0;
  }
  template <bool FOR_ROWS>
  void run(int64_t task_idx, const LaneView& view, const Panel& panel) const {
    const int64_t group = task_idx / parts_k * kGroupLanes, lane = panel.first_lane + group;
    const int64_t part = task_idx % parts_k, first_k = part * depth;
    pack_strips<FOR_ROWS>(view, lane, min_of(kGroupLanes, end(panel.first_lane) - lane), first_k,
                          min_of(depth, k - first_k),
                          panel.terms + group / kAmxStrip * strip_bytes(k) + strip_offset(first_k), strip_bytes(k),
                          panel.magnitudes + part * lanes + lane, false);
  }

  // Whether the terms cannot stand for a lane: something of it is not finite, or the largest is too large or small.
  bool is_flagged(const Panel& panel, int64_t lane) const {
    uint32_t largest = 0;
    for (int64_t part = 0; part < parts_k; ++part) {
      const uint32_t magnitude = panel.magnitudes[part * lanes + lane];
      if (magnitude > largest) largest = magnitude;
    }
    return largest != 0 && (largest < kMinLargest || largest > kMaxLargest);
  }
};

template <class Op>
class Multiplication {
 public:
  Multiplication(const FoldedProblem& problem, const AmxSplitPlan& plan, const Executor& executor)
      : problem_(problem.gemm),
        plan_(plan),
        executor_(executor),
        batch_size_(problem.batch_size),
        m_(plan.is_exchanged ? problem_.n : problem_.m),
        n_(plan.is_exchanged ? problem_.m : problem_.n),
        packing_a_(plan, plan.is_a_shared, m_, m_, problem_.k),
        packing_b_(plan, plan.is_b_shared, n_, min_of(n_, plan.range_n), problem_.k),
        item_bytes_(packing_a_.bytes() + packing_b_.bytes()),
        group_(max_of(1, min_of(batch_size_, kAmxSplitPanelBytes / item_bytes_))),
        num_workers_(plan.splits_k ? plan.num_threads : min_of(plan.num_threads, group_ * plan.tasks_m * plan.tasks_n)),
        task_bytes_(TaskWorkspace(plan, problem_.k).bytes()) {}

  Status run() {
    panels_ = static_cast<char*>(executor_.allocate(executor_.self, size_t(group_ * item_bytes_)));
    if (!panels_) return Status::out_of_memory;
    Status status = Status::out_of_memory;
    workspaces_ = static_cast<char*>(executor_.allocate(executor_.self, size_t(num_workers_ * task_bytes_)));
    if (workspaces_) {
      status = run_items();
      executor_.release(executor_.self, workspaces_);
    }
    executor_.release(executor_.self, panels_);
    return status;
  }

 private:
  Status run_items() const {
    for (int64_t first = 0; first < batch_size_; first += group_) {
      const int64_t count = min_of(group_, batch_size_ - first);
      if (plan_.splits_k) {
        const Status status = multiply_chunks(first);
        if (status != Status::ok) return status;
      }
      for (int64_t col = 0; col < n_ && !plan_.splits_k; col += packing_b_.range) {
        pack(first, count, col);
        multiply_blocks(first, count, col);
      }
      for (int64_t i = 0; i < count; ++i) {
        const GemmProblem p = item(first + i);
        Status status = compute_flagged_rows(p, packing_a_, panel_a(i));
        if (status == Status::ok) status = compute_flagged_rows(transposed(p), packing_b_, panel_b(i, 0));
        if (status != Status::ok) return status;
      }
    }
    return Status::ok;
  }

  Status compute_flagged_rows(const GemmProblem& p, const OperandPacking& packing, const Panel& panel) const {
    return cpu::compute_flagged_rows(p, plan_.num_threads, executor_,
                                     [&](int64_t row) { return packing.is_flagged(panel, row); });
  }

  // The product at a place of the batch, the way round in which it is computed.
  GemmProblem item(int64_t idx) const {
    const GemmProblem item = batch_item(problem_, idx);
    return plan_.is_exchanged ? transposed(item) : item;
  }
  // The operands of one item of the group.
  Panel panel_a(int64_t idx) const { return packing_a_.panel(panels_ + idx * item_bytes_, 0); }
  Panel panel_b(int64_t idx, int64_t col) const {
    return packing_b_.panel(panels_ + idx * item_bytes_ + packing_a_.bytes(), col);
  }

  // Rows are packed with the first range of columns.
  void pack(int64_t first_item, int64_t num_items, int64_t col) const {
    const int64_t tasks_a = col == 0 ? packing_a_.num_tasks(0) : 0, tasks = tasks_a + packing_b_.num_tasks(col);
    for_each_task(executor_, min_of(plan_.num_threads, num_items * tasks), num_items * tasks,
                  [&](int64_t, int64_t idx) {
                    const int64_t i = idx / tasks, task = idx % tasks;
                    const GemmProblem p = item(first_item + i);
                    if (task < tasks_a) {
                      const LaneView view{static_cast<const float*>(p.a), p.stride_am, p.stride_ak};
                      packing_a_.template run<true>(task, view, panel_a(i));
                    } else {
                      const LaneView view{static_cast<const float*>(p.b), p.stride_bn, p.stride_bk};
                      packing_b_.template run<false>(task - tasks_a, view, panel_b(i, col));
                    }
                  });
  }

  void multiply_blocks(int64_t first_item, int64_t num_items, int64_t col) const {
    const int64_t tasks_n = ceil_div(packing_b_.end(col) - col, plan_.task_n), blocks = plan_.tasks_m * tasks_n;
    for_each_task(
        executor_, min_of(num_workers_, num_items * blocks), num_items * blocks, [&](int64_t worker_idx, int64_t idx) {
          const TileState tiles;
          const int64_t i = idx / blocks, block = idx % blocks;
          BlockTask<Op> task(plan_, item(first_item + i), panel_a(i), panel_b(i, col),
                             workspaces_ + worker_idx * task_bytes_);
          task.run(block / tasks_n * plan_.task_m, col + block % tasks_n * plan_.task_n, 0, problem_.k, nullptr);
        });
  }

  // The chunks of k side by side, some at a time, and then their sums in the order of k.
  Status multiply_chunks(int64_t idx) const {
    const GemmProblem p = item(idx);
    const int64_t tiles = ceil_div(p.m, kAmxStrip) * ceil_div(p.n, kAmxStrip);
    const int64_t part_floats = tiles * kTileFloats, part_bytes = part_floats * int64_t(sizeof(float));
    const int64_t num_chunks = packing_a_.parts_k;
    const int64_t side_by_side = min_of(num_chunks, max_of(plan_.num_threads, kAmxSplitPartBytes / part_bytes));
    void* const memory = executor_.allocate(executor_.self, size_t((side_by_side + 1) * part_bytes));
    if (!memory) return Status::out_of_memory;
    float* const total = static_cast<float*>(memory);
    float* const parts = total + part_floats;
    const Output output(p);
    for (int64_t first = 0; first < num_chunks; first += side_by_side) {
      const int64_t count = min_of(side_by_side, num_chunks - first);
      for_each_task(executor_, min_of(num_workers_, count), count, [&](int64_t worker_idx, int64_t i) {
        const TileState tiles_in_use;
        const int64_t chunk = first + i, k = chunk * kAmxSplitChunkK;
        Panel a = panel_a(0), b = panel_b(0, 0);
        a.magnitudes += chunk * packing_a_.lanes, b.magnitudes += chunk * packing_b_.lanes;
        BlockTask<Op> task(plan_, p, a, b, workspaces_ + worker_idx * task_bytes_);
        task.run(0, 0, k, min_of(p.k, k + kAmxSplitChunkK), parts + i * part_floats);
      });
      const bool is_last = first + count == num_chunks;
      for_each_task(executor_, min_of(num_workers_, tiles), tiles, [&](int64_t, int64_t tile) {
        const Target target = target_of_tile(p, tile);
        float* const sums = total + tile * kTileFloats;
        add_chunks(sums, first == 0, parts + tile * kTileFloats, part_floats, count, target.rows);
        if (is_last) output.store(sums, kAmxStrip, target);
      });
    }
    executor_.release(executor_.self, memory);
    return Status::ok;
  }

  const GemmProblem problem_;
  const AmxSplitPlan& plan_;
  const Executor& executor_;
  const int64_t batch_size_, m_, n_;
  const OperandPacking packing_a_, packing_b_;
  const int64_t item_bytes_, group_, num_workers_, task_bytes_;
  char *panels_ = nullptr, *workspaces_ = nullptr;
};

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

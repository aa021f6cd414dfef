// Shares out the work of rung 06: packing for all tasks, then blocks of C, then what is flagged.
#pragma once

#include "core/executor.h"
#include "core/transposed.h"
#include "kernels/cpu/06_amx_split/task.h"
#include "platform/element.h"
#include "platform/parallel.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

// How an operand is packed: before the tasks begin, lanes in groups and each group in parts along k, so that there is
// work for every thread; or by the tasks. Each part has magnitudes of its own.
struct OperandPacking {
  static constexpr int64_t kGroupLanes = kAmxSplitGroupStrips * kAmxStrip;

  int64_t lanes, k, parts_k = 1, depth, num_tasks = 0;
  bool is_shared;

  OperandPacking(bool is_shared, int64_t lanes, int64_t k, int64_t num_threads)
      : lanes(lanes), k(k), depth(k), is_shared(is_shared) {
    constexpr int64_t kTasksOfThread = 2, kMinSteps = 4;
    if (!is_shared) return;
    const int64_t groups = ceil_div(lanes, kGroupLanes), steps = ceil_div(k, kTileK);
    parts_k = max_of(1, min_of(ceil_div(kTasksOfThread * num_threads, groups), steps / kMinSteps));
    depth = ceil_div(steps, parts_k) * kTileK;
    parts_k = ceil_div(k, depth);
    num_tasks = groups * parts_k;
  }
  int64_t term_bytes() const { return is_shared ? ceil_div(lanes, kAmxStrip) * strip_bytes(k) : 0; }
  int64_t magnitude_bytes() const { return round_up(parts_k * lanes * int64_t(sizeof(uint32_t)), 64); }
  int64_t bytes() const { return term_bytes() + magnitude_bytes(); }

  // Where it lies in memory of so many bytes.
  Panel panel(char* memory) const {
    return {is_shared ? memory : nullptr, reinterpret_cast<uint32_t*>(memory + term_bytes())};
  }

  template <bool FOR_ROWS>
  void run(int64_t task_idx, const LaneView& view, const Panel& panel) const {
    const int64_t first = task_idx / parts_k * kGroupLanes, part = task_idx % parts_k, first_k = part * depth;
    pack_strips<FOR_ROWS>(view, first, min_of(kGroupLanes, lanes - first), first_k, min_of(depth, k - first_k),
                          panel.terms + first / kAmxStrip * strip_bytes(k) + strip_offset(first_k), strip_bytes(k),
                          panel.magnitudes + part * lanes + first, false);
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

// The rows of C that belong to flagged rows of A, by the vector kernel, as many as follow each other at a time.
inline Status compute_flagged_rows(const GemmProblem& item, const OperandPacking& packing, const Panel& panel,
                                   const Executor& executor) {
  constexpr int64_t kBytes = sizeof(float);
  Chip chip{};
  chip.num_cus = executor.num_threads;
  for (int64_t row = 0; row < item.m; ++row) {
    const int64_t first = row;
    while (row < item.m && packing.is_flagged(panel, row)) ++row;
    if (row == first) continue;
    FoldedProblem part{};
    GemmProblem& p = part.gemm;
    p = item;
    p.m = row - first;
    p.a = static_cast<const char*>(item.a) + first * item.stride_am * kBytes;
    p.c = static_cast<char*>(item.c) + first * item.stride_cm * kBytes;
    if (item.bias) p.bias = static_cast<const char*>(item.bias) + first * item.stride_bias_m * kBytes;
    part.batch_size = 1;
    Plan plan;
    plain_rung().plan(part, chip, plan);
    const Status status = plain_rung().launch(part, plan, executor);
    if (status != Status::ok) return status;
  }
  return Status::ok;
}

template <class Op>
class Multiplication {
 public:
  Multiplication(const FoldedProblem& problem, const AmxSplitPlan& plan, const Executor& executor)
      : problem_(problem.gemm),
        plan_(plan),
        executor_(executor),
        batch_size_(problem.batch_size),
        packing_a_(plan.is_a_shared, plan.is_exchanged ? problem_.n : problem_.m, problem_.k, plan.num_threads),
        packing_b_(plan.is_b_shared, plan.is_exchanged ? problem_.m : problem_.n, problem_.k, plan.num_threads),
        item_bytes_(packing_a_.bytes() + packing_b_.bytes()),
        group_(max_of(1, min_of(batch_size_, kAmxSplitPanelBytes / item_bytes_))),
        num_workers_(min_of(plan.num_threads, group_ * plan.tasks_m * plan.tasks_n)),
        task_bytes_(TaskWorkspace(plan, problem_.k).bytes()) {}

  Status run() {
    const int64_t bytes = num_workers_ * task_bytes_ + group_ * item_bytes_;
    workspace_ = static_cast<char*>(executor_.allocate(executor_.self, size_t(bytes)));
    if (!workspace_) return Status::out_of_memory;
    Status status = Status::ok;
    for (int64_t first = 0; first < batch_size_ && status == Status::ok; first += group_) {
      const int64_t count = min_of(group_, batch_size_ - first);
      pack(first, count);
      multiply_blocks(first, count);
      for (int64_t i = 0; i < count && status == Status::ok; ++i) status = compute_flagged(first, i);
    }
    executor_.release(executor_.self, workspace_);
    return status;
  }

 private:
  // The product at a place of the batch, the way round in which it is computed.
  GemmProblem item(int64_t idx) const {
    const GemmProblem item = batch_item(problem_, idx);
    return plan_.is_exchanged ? transposed(item) : item;
  }
  // The operands of one item of the group.
  Panel panel_a(int64_t idx) const {
    return packing_a_.panel(workspace_ + num_workers_ * task_bytes_ + idx * item_bytes_);
  }
  Panel panel_b(int64_t idx) const {
    return packing_b_.panel(workspace_ + num_workers_ * task_bytes_ + idx * item_bytes_ + packing_a_.bytes());
  }

  void pack(int64_t first_item, int64_t num_items) const {
    const int64_t tasks = packing_a_.num_tasks + packing_b_.num_tasks;
    for_each_task(executor_, min_of(plan_.num_threads, num_items * tasks), num_items * tasks,
                  [&](int64_t, int64_t idx) {
                    const int64_t i = idx / tasks, task = idx % tasks;
                    const GemmProblem p = item(first_item + i);
                    if (task < packing_a_.num_tasks) {
                      const LaneView view{static_cast<const float*>(p.a), p.stride_am, p.stride_ak};
                      packing_a_.template run<true>(task, view, panel_a(i));
                    } else {
                      const LaneView view{static_cast<const float*>(p.b), p.stride_bn, p.stride_bk};
                      packing_b_.template run<false>(task - packing_a_.num_tasks, view, panel_b(i));
                    }
                  });
  }

  void multiply_blocks(int64_t first_item, int64_t num_items) const {
    const int64_t blocks = plan_.tasks_m * plan_.tasks_n;
    for_each_task(executor_, min_of(num_workers_, num_items * blocks), num_items * blocks,
                  [&](int64_t worker_idx, int64_t idx) {
                    const TileState tiles;
                    const int64_t i = idx / blocks, block = idx % blocks;
                    BlockTask<Op> task(plan_, item(first_item + i), panel_a(i), panel_b(i),
                                       workspace_ + worker_idx * task_bytes_);
                    task.run(block / plan_.tasks_n * plan_.task_m, block % plan_.tasks_n * plan_.task_n);
                  });
  }

  Status compute_flagged(int64_t first_item, int64_t i) const {
    const GemmProblem p = item(first_item + i);
    const Status status = compute_flagged_rows(p, packing_a_, panel_a(i), executor_);
    if (status != Status::ok) return status;
    return compute_flagged_rows(transposed(p), packing_b_, panel_b(i), executor_);
  }

  const GemmProblem problem_;
  const AmxSplitPlan& plan_;
  const Executor& executor_;
  const int64_t batch_size_;
  const OperandPacking packing_a_, packing_b_;
  const int64_t item_bytes_, group_, num_workers_, task_bytes_;
  char* workspace_ = nullptr;
};

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

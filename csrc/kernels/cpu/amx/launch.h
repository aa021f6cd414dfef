// Shares out the work of amx: packing for all tasks, then blocks of C; where k is split, then the chunks' sums.
#pragma once

#include "core/executor.h"
#include "kernels/cpu/amx/task.h"
#include "kernels/cpu/shared/items.h"
#include "kernels/cpu/shared/parallel.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

// The product at a place of the batch, the way round in which it is computed.
inline GemmProblem oriented_item(const GemmProblem& problem, const AmxPlan& plan, int64_t idx) {
  const GemmProblem item = batch_item(problem, idx);
  return plan.is_exchanged ? transposed(item) : item;
}

// An operand that is packed before the tasks begin: groups of lanes, each in parts along k, so that there is a task for
// every thread.
struct PackingTasks {
  int64_t lanes = 0, k, parts_k = 1, depth, num_tasks = 0, bytes_of_strip;

  PackingTasks(bool is_shared, int64_t num_lanes, int64_t k, int64_t num_threads)
      : k(k), depth(round_up(max_of(k, 1), kTileK)), bytes_of_strip(strip_bytes(k)) {
    constexpr int64_t kTasksOfThread = 2, kMinSteps = 4;
    if (!is_shared) return;
    lanes = num_lanes;
    const int64_t groups = ceil_div(lanes, kGroupLanes), steps = num_steps(k);
    parts_k = max_of(1, min_of(ceil_div(kTasksOfThread * num_threads, groups), steps / kMinSteps));
    depth = ceil_div(steps, parts_k) * kTileK;
    parts_k = max_of(1, ceil_div(k, depth));
    num_tasks = groups * parts_k;
  }
  int64_t bytes() const { return ceil_div(lanes, kUnitLanes) * bytes_of_strip; }

  template <bool FOR_ROWS>
  void run(int64_t task_idx, const LaneView& view, char* to) const {
    const int64_t first = task_idx / parts_k * kGroupLanes, first_k = task_idx % parts_k * depth;
    pack_strips<FOR_ROWS>(view, first, min_of(kGroupLanes, lanes - first), first_k, min_of(depth, k - first_k),
                          to + first / kUnitLanes * bytes_of_strip + strip_offset(first_k), bytes_of_strip);
  }
};

// Blocks of C, each over all of k, for `num_items` of the batch from `first_item` on.
template <class Op>
void multiply_items(const GemmProblem& problem, const AmxPlan& plan, int64_t first_item, int64_t num_items,
                    const PackingTasks& packing_a, const PackingTasks& packing_b, char* panels, char* workspaces,
                    const Executor& executor) {
  const int64_t panel_bytes = packing_a.bytes() + packing_b.bytes();
  const int64_t packing_tasks = packing_a.num_tasks + packing_b.num_tasks;
  for_each_task(executor, min_of(plan.num_threads, num_items * packing_tasks), num_items * packing_tasks,
                [&](int64_t, int64_t idx) {
                  const GemmProblem item = oriented_item(problem, plan, first_item + idx / packing_tasks);
                  char* panel = panels + idx / packing_tasks * panel_bytes;
                  const int64_t task = idx % packing_tasks;
                  if (task < packing_a.num_tasks) {
                    const LaneView view{item.a, item.stride_am, item.stride_ak, size_of(item.dtype_a)};
                    packing_a.template run<true>(task, view, panel);
                  } else {
                    const LaneView view{item.b, item.stride_bn, item.stride_bk, size_of(item.dtype_b)};
                    packing_b.template run<false>(task - packing_a.num_tasks, view, panel + packing_a.bytes());
                  }
                });
  const int64_t blocks = plan.tasks_m * plan.tasks_n, item_groups = ceil_div(num_items, plan.task_items);
  const int64_t task_bytes = TaskWorkspace(plan, problem.k).bytes();
  const TileShapes shapes = tiles_of_rows(plan.is_exchanged ? problem.n : problem.m);
  const int64_t num_workers = min_of(plan.num_threads, item_groups * blocks);
  // The item that a worker multiplied last: its few lanes, if they are packed, are there.
  const auto packed_item = [&](int64_t worker_idx) -> int64_t& {
    return state_of_worker(workspaces, task_bytes, worker_idx);
  };
  for (int64_t worker = 0; worker < num_workers; ++worker) packed_item(worker) = -1;
  for_each_task(executor, num_workers, item_groups * blocks, [&](int64_t worker_idx, int64_t idx) {
    const TileState tiles(shapes);
    const int64_t first = idx / blocks * plan.task_items, block = idx % blocks;
    for (int64_t i = first; i < min_of(first + plan.task_items, num_items); ++i) {
      const GemmProblem item = oriented_item(problem, plan, first_item + i);
      const char* panel = panels + i * panel_bytes;
      const SharedPanels shared{packing_a.num_tasks ? panel : nullptr,
                                packing_b.num_tasks ? panel + packing_a.bytes() : nullptr};
      BlockTask<Op> task(plan, item, shared, workspaces + worker_idx * task_bytes, nullptr,
                         packed_item(worker_idx) == first_item + i);
      packed_item(worker_idx) = first_item + i;
      task.run(block / plan.tasks_n * plan.task_m, block % plan.tasks_n * plan.task_n, 0, item.k);
    }
  });
}

// The chunks of k side by side, some at a time, and then their sums in the order of k.
template <class Op>
Status multiply_split(const GemmProblem& problem, const AmxPlan& plan, const Executor& executor) {
  const GemmProblem item = oriented_item(problem, plan, 0);
  const int64_t tiles = ceil_div(item.m, kAmxStrip) * ceil_div(item.n, kAmxStrip);
  const int64_t num_chunks = ceil_div(item.k, kAmxChunkK);
  const int64_t side_by_side = min_of(num_chunks, max_of(plan.num_threads, kAmxSplitBytes / (tiles * kTileFloats * 4)));
  const int64_t num_workers = min_of(plan.num_threads, side_by_side * plan.tasks_m);
  const int64_t task_bytes = TaskWorkspace(plan, item.k).bytes(), part_floats = tiles * kTileFloats;
  const int64_t part_bytes = part_floats * int64_t(sizeof(float));
  void* const workspace =
      executor.allocate(executor.self, size_t(num_workers * task_bytes + (side_by_side + 1) * part_bytes));
  if (!workspace) return Status::out_of_memory;
  float* const total = static_cast<float*>(workspace);
  float* const parts = total + part_floats;
  char* const near = reinterpret_cast<char*>(parts + side_by_side * part_floats);
  const Output output(item);
  const TileShapes shapes = tiles_of_rows(item.m);
  // Threads that add up the sums of the chunks and store tiles of C.
  const int64_t slices = threads_for_sums(side_by_side * part_floats, plan.num_threads);
  for (int64_t first = 0; first < num_chunks; first += side_by_side) {
    const int64_t count = min_of(side_by_side, num_chunks - first);
    for_each_task(executor, min_of(num_workers, count * plan.tasks_m), count * plan.tasks_m,
                  [&](int64_t worker_idx, int64_t idx) {
                    const TileState tiles_in_use(shapes);
                    const int64_t chunk = idx / plan.tasks_m, k = (first + chunk) * kAmxChunkK;
                    BlockTask<Op> task(plan, item, {nullptr, nullptr}, near + worker_idx * task_bytes,
                                       parts + chunk * part_floats, false);
                    task.run(idx % plan.tasks_m * plan.task_m, 0, k, min_of(item.k, k + kAmxChunkK));
                  });
    const bool is_last = first + count == num_chunks;
    for_each_task(executor, min_of(slices, tiles), tiles, [&](int64_t, int64_t tile) {
      const Target target = target_of_tile(item, tile);
      float* const sums = total + tile * kTileFloats;
      add_chunks(sums, first == 0, parts + tile * kTileFloats, part_floats, count, target.rows);
      if (is_last) output.store(sums, kAmxStrip, target);
    });
  }
  executor.release(executor.self, workspace);
  return Status::ok;
}

// What is not empty, as planned.
template <class Op>
Status multiply_planned(const FoldedProblem& folded, const AmxPlan& plan, const Executor& executor) {
  const GemmProblem& problem = folded.gemm;
  if (plan.path == AmxPath::split_k) return multiply_split<Op>(problem, plan, executor);
  if (plan.path == AmxPath::items) {
    using T = typename Op::Element;
    BatchDim dims[kMaxBatchDims];
    const GemmProblem oriented = plan.is_exchanged ? transposed(problem, dims) : problem;
    return launch_items<T, Fma<T, float>, TileOrder>(oriented, plan.items, executor);
  }
  const int64_t m = plan.is_exchanged ? problem.n : problem.m, n = plan.is_exchanged ? problem.m : problem.n;
  const PackingTasks packing_a(plan.is_a_shared, m, problem.k, plan.num_threads);
  const PackingTasks packing_b(plan.is_b_shared, n, problem.k, plan.num_threads);
  const int64_t panel_bytes = packing_a.bytes() + packing_b.bytes();
  const int64_t group = max_of(1, min_of(folded.batch_size, panel_bytes ? kAmxPanelBytes / panel_bytes : INT64_MAX));
  const int64_t num_tasks = ceil_div(group, plan.task_items) * plan.tasks_m * plan.tasks_n;
  const int64_t num_workers = min_of(plan.num_threads, num_tasks);
  const int64_t workspace_bytes = num_workers * TaskWorkspace(plan, problem.k).bytes();
  const int64_t bytes = workspace_bytes + group * panel_bytes;
  alignas(64) char near[32 << 10];
  const bool is_near = bytes <= int64_t(sizeof near);
  char* const workspace = is_near ? near : static_cast<char*>(executor.allocate(executor.self, size_t(bytes)));
  if (!workspace) return Status::out_of_memory;
  for (int64_t first = 0; first < folded.batch_size; first += group) {
    multiply_items<Op>(problem, plan, first, min_of(group, folded.batch_size - first), packing_a, packing_b,
                       workspace + workspace_bytes, workspace, executor);
  }
  if (!is_near) executor.release(executor.self, workspace);
  return Status::ok;
}

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

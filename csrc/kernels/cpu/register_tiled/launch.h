// Rung 04, register_tiled: packed panels, a micro-tile of C held in registers, threads over block tiles.
//
// Since rung 02: C stays in registers for a whole chunk of k, so a multiply-add costs no load or store of C; A and B
// are packed, from any layout and dtype, in the order in which the micro-kernel reads them; few rows have paths of
// their own. Structure after Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008) and
// BLIS; packing within the micro-kernel after Yang et al., "LibShalom" (SC 2021). Each output has one accumulator and
// takes k in its order, on every path. Included once per instruction set by <isa>.cpp.
#pragma once

#include "kernels/cpu/register_tiled/block_tile.h"
#include "kernels/cpu/register_tiled/in_place.h"
#include "kernels/cpu/register_tiled/long_dot.h"
#include "kernels/cpu/register_tiled/plan.h"
#include "kernels/cpu/shared/items.h"
#include "kernels/cpu/shared/parallel.h"
#include "kernels/cpu/shared/simd.h"
#include "kernels/cpu/shared/variants.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

// A product on all threads: the memory of its tasks, and the tasks.
template <class T, class Op>
struct TiledProduct {
  using Tile = BlockTile<T, Op>;
  using A = typename Op::Acc;

  const GemmProblem& problem;
  const CpuConfig& config;
  const Executor& executor;
  const bool splits = config.split_k > 1;  // chunks of k are computed side by side
  const int64_t task_k = splits ? Tile::kChunk : problem.k;
  // Sums from chunk to chunk: C serves when it can, few rows bring their own.
  const bool sums_are_c = problem.dtype_c == kDTypeOf<A> && problem.stride_cn == 1;
  const bool needs_sums = task_k > Tile::kChunk && !sums_are_c && config.path == CpuPath::packed;
  const int64_t ld_sums = round_up(splits ? problem.n : min_of(config.task_n, config.block_n), Tile::kThreadN);
  const int64_t num_tiles = config.tasks_m * config.tasks_n, all_tiles = batch_size(problem) * num_tiles;
  const int64_t num_workers = min_of(min_of(executor.num_threads, config.num_threads), config.split_k* all_tiles);
  const bool keeps = config.keeps_a || config.keeps_b;
  const int64_t bytes_panels = Tile::workspace_bytes(config, task_k);
  const int64_t bytes_task = bytes_panels +
                             (needs_sums ? round_up(config.task_m * ld_sums * int64_t(sizeof(A)), 64) : 0) +
                             (keeps ? kWorkerStateBytes : 0);
  char* workspace = nullptr;

  Status run() {
    // Split k: the sums of split_k chunks, and their running total.
    const int64_t bytes_split = splits ? (config.split_k + 1) * problem.m * ld_sums * int64_t(sizeof(A)) : 0;
    const int64_t bytes = num_workers * bytes_task + bytes_split;
    alignas(64) char near_workspace[16 << 10];
    const bool is_near = bytes <= int64_t(sizeof near_workspace);
    workspace = is_near ? near_workspace : static_cast<char*>(executor.allocate(executor.self, size_t(bytes)));
    if (!workspace) return Status::out_of_memory;
    if (splits) {
      multiply_chunks();
    } else {
      multiply_tiles();
    }
    if (!is_near) executor.release(executor.self, workspace);
    return Status::ok;
  }

  Tile make_tile(const GemmProblem& item, int64_t worker_idx) const {
    return Tile{item,    config,  0,     item.m, 0,    item.n, 0,    item.k, workspace + worker_idx * bytes_task,
                nullptr, ld_sums, false, false,  true, false,  false};
  }

  // Tiles of C with all of their k.
  void multiply_tiles() const {
    // What a worker has packed, counted through the batch: the rows of A that all tasks of an item share, or columns.
    const auto packed_part = [&](int64_t worker_idx) -> int64_t& {
      return state_of_worker(workspace, bytes_task, worker_idx);
    };
    for (int64_t worker = 0; keeps && worker < num_workers; ++worker) packed_part(worker) = -1;
    for_each_task(executor, num_workers, all_tiles, [&](int64_t worker_idx, int64_t idx) {
      const GemmProblem item = batch_item(problem, idx / num_tiles);
      Tile tile = make_tile(item, worker_idx);
      if (keeps) {
        const int64_t part = idx / (config.keeps_a ? config.tasks_n : config.tasks_m);
        (config.keeps_a ? tile.is_a_packed : tile.is_b_packed) = packed_part(worker_idx) == part;
        packed_part(worker_idx) = part;
      }
      const int64_t tile_idx = idx % num_tiles;
      tile.row = (config.keeps_b ? tile_idx % config.tasks_m : tile_idx / config.tasks_n) * config.task_m;
      tile.col = (config.keeps_b ? tile_idx / config.tasks_m : tile_idx % config.tasks_n) * config.task_n;
      tile.rows = min_of(config.task_m, item.m - tile.row);
      tile.cols = min_of(config.task_n, item.n - tile.col);
      if (sums_are_c) {
        tile.sums = static_cast<A*>(item.c) + tile.row * item.stride_cm + tile.col;
        tile.ld_sums = item.stride_cm;
        tile.sums_are_c = true;
      }
      if (needs_sums) {
        tile.sums = reinterpret_cast<A*>(tile.workspace + bytes_panels);
        tile.sums_cover_one_block = true;
      }
      tile.run();
    });
  }

  // Chunks of k side by side, split_k at a time, and then their sums in the order of k.
  void multiply_chunks() const {
    A* const parts = reinterpret_cast<A*>(workspace + num_workers * bytes_task);
    const int64_t part_size = problem.m * ld_sums, step = config.split_k * Tile::kChunk;
    for (int64_t first = 0; first < problem.k; first += step) {
      const int64_t count = min_of(config.split_k, ceil_div(problem.k - first, Tile::kChunk));
      for_each_task(executor, num_workers, count * config.tasks_n, [&](int64_t worker_idx, int64_t idx) {
        const int64_t part = idx / config.tasks_n;
        Tile tile = make_tile(problem, worker_idx);
        tile.col = idx % config.tasks_n * config.task_n;
        tile.cols = min_of(config.task_n, problem.n - tile.col);
        tile.k_begin = first + part * Tile::kChunk;
        tile.k_end = min_of(problem.k, tile.k_begin + Tile::kChunk);
        tile.sums = parts + part * part_size + tile.col;
        tile.is_finished = false;
        tile.run();
      });
      add_chunks(parts, part_size, count, first == 0, first + step >= problem.k);
    }
  }

  // Adds the sums of `count` chunks to the total behind the parts, each thread some rows, or parts of them where rows
  // are few. The last ones are followed by the epilogue.
  void add_chunks(A* parts, int64_t part_size, int64_t count, bool are_first, bool are_last) const {
    A* const total = parts + config.split_k * part_size;
    const int64_t slices = threads_for_sums(config.split_k * part_size, num_workers);
    const int64_t slice_rows = ceil_div(problem.m, slices), slices_m = ceil_div(problem.m, slice_rows);
    const int64_t slice_cols = round_up(ceil_div(problem.n, slices / slices_m), Tile::kThreadN);
    const int64_t slices_n = ceil_div(problem.n, slice_cols);
    for_each_task(executor, slices_m * slices_n, slices_m * slices_n, [&](int64_t, int64_t slice) {
      const int64_t row = slice / slices_n * slice_rows, rows = min_of(slice_rows, problem.m - row);
      const int64_t col = slice % slices_n * slice_cols, cols = min_of(slice_cols, problem.n - col);
      for (int64_t i = row; i < row + rows; ++i) {
        A* const to = total + i * ld_sums + col;
        for (int64_t part = 0; part < count; ++part) {
          const A* from = parts + part * part_size + i * ld_sums + col;
          const bool is_first = are_first && part == 0;
          for (int64_t j = 0; j < cols; ++j) to[j] = is_first ? from[j] : to[j] + from[j];
        }
      }
      if (are_last) store_block_tile(problem, row, rows, col, cols, total + row * ld_sums + col, ld_sums);
    });
  }
};

template <class T, class Op>
Status launch_as(const GemmProblem& problem, const CpuConfig& config, const Executor& executor) {
  if (config.path == CpuPath::long_dots) return launch_dots<T, Op>(problem, executor);
  if constexpr (Op::kPerWord == 1) {
    if constexpr (std::is_same_v<T, typename Op::Word>) {
      if (config.path == CpuPath::in_place) return launch_in_place<Op>(problem, config.in_place, executor);
    }
    if (config.path == CpuPath::items) return launch_items<T, Op>(problem, config.items, executor);
  }
  return TiledProduct<T, Op>{problem, config, executor}.run();
}

// What the kernel is given: C, or C^T.
template <class Launch>
Status launch_oriented(const GemmProblem& problem, const CpuPlan& plan, const Launch& launch) {
  if (!plan.is_exchanged) return launch(problem);
  BatchDim dims[kMaxBatchDims];
  return launch(transposed(problem, dims));
}

#if !defined(TILEDMM_ISA_AVX512_BF16)  // whose launcher chooses
// The kernel is that of B's dtype.
Status launch(const GemmProblem& problem, const CpuPlan& plan, const Executor& executor) {
  return launch_oriented(problem, plan, [&](const GemmProblem& oriented) {
    if (oriented.dtype_b == DType::e4m3) {
      return TiledProduct<E4m3, Fma<E4m3, float>>{oriented, plan.config, executor}.run();
    }
    return visit_dtype(oriented.dtype_b, [&](auto* element) {
      using T = std::remove_pointer_t<decltype(element)>;
      static_assert(kernel_shape(kIsa, kDTypeOf<T>).k_per_word == 1, "the plan knows the words");
      return launch_as<T, Fma<T, Acc<T>>>(oriented, plan.config, executor);
    });
  });
}
#endif

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

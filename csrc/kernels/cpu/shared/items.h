// A batch of small items, each of which would take less time than a task: a vector holds the same element of as many
// items as it has lanes, so that an item of any size and layout fills it. Included once per instruction set.
#pragma once

#include <type_traits>
#include <utility>

#include "core/executor.h"
#include "kernels/cpu/shared/epilogue.h"
#include "kernels/cpu/shared/items_plan.h"
#include "kernels/cpu/shared/pack.h"
#include "kernels/cpu/shared/parallel.h"
#include "kernels/cpu/shared/simd.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

// Each output is one chain of multiply-adds in the order of k.
struct OneChain {
  static constexpr int64_t kStep = 0;
  struct Arithmetic {};
};

// Order: OneChain, or kStep elements of k at a time, of which the even and the odd ones are two chains from +0, whose
// sum is added to those of the steps before. Products are computed while an object of Order::Arithmetic lives.
template <class T, class Op, class Order>
struct Items {
  using A = typename Op::Acc;
  static constexpr int kLanes = Simd<A>::kLanes;
  static constexpr int kMaxRows = 2, kMaxCols = 4;  // of a micro-tile of vectors

  const GemmProblem& problem;  // whose k is one chunk; the items of the last dimension of the batch become lanes
  const int64_t m = problem.m, n = problem.n, k = problem.k;
  const Runs a{m, problem.stride_am, k, problem.stride_ak};
  const Runs b{n, problem.stride_bn, k, problem.stride_bk};
  const Runs c{m, problem.stride_cm, n, problem.stride_cn};
  const BatchDim dim = problem.batch_dims[problem.num_batch_dims - 1];
  const int64_t groups_of_dim = ceil_div(dim.size, kLanes);
  const int64_t num_groups = batch_size(problem) / dim.size * groups_of_dim;

  // A worker's memory holds packed A and B, and sums.
  int64_t workspace_bytes() const {
    return round_up((panel_size(m) + panel_size(n) + m * n * kLanes) * int64_t(sizeof(A)), 64);
  }

  // The groups from `group` to `end`. From one to the next its operands move on, which costs a fifth of batch_item.
  void run(int64_t group, int64_t end, char* workspace) const {
    A* const panel_a = reinterpret_cast<A*>(workspace);
    A* const panel_b = panel_a + panel_size(m);
    A* const sums = panel_b + panel_size(n);
    while (group < end) {
      int64_t place = group % groups_of_dim * kLanes;
      const GemmProblem item = batch_item(problem, group / groups_of_dim * dim.size + place);
      const T *from_a = static_cast<const T*>(item.a), *from_b = static_cast<const T*>(item.b);
      const T* bias = static_cast<const T*>(item.bias);
      T* to = static_cast<T*>(item.c);
      for (; group < end && place < dim.size; ++group, place += kLanes) {
        const int64_t items_left = dim.size - place, count = min_of(kLanes, items_left);
        pack(a, from_a, dim.stride_a, count, items_left, panel_a);
        pack(b, from_b, dim.stride_b, count, items_left, panel_b);
        {
          [[maybe_unused]] const typename Order::Arithmetic arithmetic;
          multiply(panel_a, panel_b, sums);
        }
        is_plain(problem) ? store_plain(to, count, sums) : store_rows(to, bias, count, sums);
        from_a += kLanes * dim.stride_a, from_b += kLanes * dim.stride_b, to += kLanes * dim.stride_c;
        if (bias) bias += kLanes * dim.stride_bias;
      }
    }
  }

 private:
  // Elements of so many rows or columns, packed, and of a packet more than they are.
  int64_t panel_size(int64_t lanes) const { return (lanes * k + kPacketBytes / int64_t(sizeof(T))) * kLanes; }

  // Where items follow each other, whole packets are packed: behind an item is another one, but for the last ones.
  static void pack(const Runs& runs, const T* from, int64_t stride_item, int64_t count, int64_t items_left, A* to) {
    const int64_t packets_end = round_up(runs.length, kPacketBytes / int64_t(sizeof(T)));
    const bool are_together = runs.count == 1 && runs.step == 1 && stride_item == runs.length && stride_item > 1;
    const bool has_packets = are_together && packets_end <= (items_left - count + 1) * stride_item;
    const int64_t length = has_packets ? packets_end : runs.length;
    for (int64_t run = 0; run < runs.count; ++run) {
      tiledmm::pack_strips<T, Op>(from + run * runs.stride, stride_item, runs.step, count, kLanes, length,
                                  to + run * length * kLanes);
    }
  }

  // This is never inlined: it must stay between the two changes of how the thread computes.
  __attribute__((noinline)) void multiply(const A* panel_a, const A* panel_b, A* sums) const {
    using Multiply = void (Items::*)(const A*, const A*, A*) const;
    static constexpr Multiply kTable[kMaxRows][kMaxCols] = {{&Items::multiply_tile<1, 1>, &Items::multiply_tile<1, 2>,
                                                             &Items::multiply_tile<1, 3>, &Items::multiply_tile<1, 4>},
                                                            {&Items::multiply_tile<2, 1>, &Items::multiply_tile<2, 2>,
                                                             &Items::multiply_tile<2, 3>, &Items::multiply_tile<2, 4>}};
    for (int64_t i = 0; i < m; i += kMaxRows) {
      const auto& of_cols = kTable[min_of(kMaxRows, m - i) - 1];
      for (int64_t j = 0; j < n; j += kMaxCols) {
        (this->*of_cols[min_of(kMaxCols, n - j) - 1])(panel_a + i * a.row * kLanes, panel_b + j * b.row * kLanes,
                                                      sums + (i * c.row + j * c.col) * kLanes);
      }
    }
  }

  // chain += a column of A * a row of B.
  template <int ROWS, int COLS>
  static TILEDMM_INLINE void multiply_add(const A* panel_a, int64_t row_a, const A* panel_b, int64_t row_b,
                                          Reg<A> (&chain)[ROWS][COLS]) {
    Reg<A> frag_b[COLS];
#pragma GCC unroll 4
    for (int j = 0; j < COLS; ++j) frag_b[j] = load(panel_b + j * row_b);
#pragma GCC unroll 2
    for (int i = 0; i < ROWS; ++i) {
      const Reg<A> frag_a = load(panel_a + i * row_a);
#pragma GCC unroll 4
      for (int j = 0; j < COLS; ++j) chain[i][j] = Op::multiply_add(frag_a, frag_b[j], chain[i][j]);
    }
  }

  template <int ROWS, int COLS>
  void multiply_tile(const A* panel_a, const A* panel_b, A* sums) const {
    const int64_t row_a = a.row * kLanes, row_b = b.row * kLanes, step_a = a.col * kLanes, step_b = b.col * kLanes;
    Reg<A> acc[ROWS][COLS] = {};
    const auto add_next = [&](Reg<A>(&chain)[ROWS][COLS]) {
      multiply_add(panel_a, row_a, panel_b, row_b, chain);
      panel_a += step_a, panel_b += step_b;
    };
    if constexpr (Order::kStep == 0) {
      for (int64_t p = 0; p < k; ++p) add_next(acc);
    } else {
      for (int64_t left = k; left > 0; left -= Order::kStep) {
        Reg<A> chains[2][ROWS][COLS] = {};
        const int64_t step = min_of(left, Order::kStep);
        for (int64_t p = 0; p + 2 <= step; p += 2) add_next(chains[0]), add_next(chains[1]);
        if (step % 2) add_next(chains[0]);
        // Zeros fill up a step: their products make +0 of a chain that is -0, and change no other.
        const Reg<A> filled = broadcast<A, sizeof(Reg<A>)>(step < Order::kStep ? A(0) : A(-0.0));
#pragma GCC unroll 2
        for (int i = 0; i < ROWS; ++i) {
#pragma GCC unroll 4
          for (int j = 0; j < COLS; ++j) acc[i][j] += (chains[0][i][j] + filled) + (chains[1][i][j] + filled);
        }
      }
    }
#pragma GCC unroll 2
    for (int i = 0; i < ROWS; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < COLS; ++j) store(sums + (i * c.row + j * c.col) * kLanes, acc[i][j]);
    }
  }

  void store_plain(T* to, int64_t count, const A* sums) const {
    constexpr int64_t kPacket = kPacketBytes / int64_t(sizeof(A));
    const bool has_packets = std::is_same_v<T, A> && c.step == 1 && c.length >= kPacket && dim.stride_c != 1;
    for (int64_t run = 0; run < c.count; ++run, to += c.stride, sums += c.length * kLanes) {
      for (int64_t e = 0; e < c.length; e += has_packets ? kPacket : 1) {
        if constexpr (std::is_same_v<T, A>) {
          if (has_packets) {
            const int64_t first = min_of(e, c.length - kPacket);  // what is left is the end of an earlier packet
            store_packets(to + first, count, sums + first * kLanes);
            continue;
          }
        }
        store_lanes(to + e * c.step, dim.stride_c, load(sums + e * kLanes), count);
      }
    }
  }

  // A packet of each item.
  void store_packets(A* to, int64_t count, const A* sums) const {
    constexpr int kPacket = kPacketBytes / int(sizeof(A));
    Reg<A> elements[kPacket];
#pragma GCC unroll 4
    for (int e = 0; e < kPacket; ++e) elements[e] = load(sums + e * kLanes);
    transpose_in_packets<A>(elements);
#pragma GCC unroll 16
    for (int l = 0; l < kLanes; ++l) {
      if (l >= count) break;
      const char* const packets = reinterpret_cast<const char*>(&elements[l % kPacket]);
      __builtin_memcpy(to + l * dim.stride_c, packets + l / kPacket * kPacketBytes, kPacketBytes);
    }
  }

  // An epilogue sees each row of C as a matrix: its rows are that row's columns, and its columns are the items.
  void store_rows(T* to, const T* bias, int64_t count, const A* sums) const {
    GemmProblem row = problem;
    row.stride_cm = problem.stride_cn, row.stride_cn = dim.stride_c;
    row.stride_bias_m = problem.stride_bias_n, row.stride_bias_n = dim.stride_bias;
    for (int64_t i = 0; i < m; ++i) {
      row.c = to + i * problem.stride_cm;
      if (bias) row.bias = bias + i * problem.stride_bias_m;
      store_block_tile(row, 0, n, 0, count, sums + i * c.row * kLanes, c.col * kLanes);
    }
  }
};

template <class T, class Op, class Order = OneChain>
Status launch_items(const GemmProblem& problem, const ItemsPlan& plan, const Executor& executor) {
  BatchDim dims[kMaxBatchDims];
  const int32_t num_dims = problem.num_batch_dims;
  for (int32_t d = 0; d < num_dims; ++d) dims[d] = problem.batch_dims[d];
  std::swap(dims[num_dims - 1], dims[plan.dim_of_lanes]);
  GemmProblem ordered = problem;
  ordered.batch_dims = dims;
  const Items<T, Op, Order> items{ordered};
  const int64_t num_tasks = ceil_div(items.num_groups, plan.task_groups);
  const int64_t num_workers = min_of(executor.num_threads, num_tasks), bytes = items.workspace_bytes();
  char* const workspace = static_cast<char*>(executor.allocate(executor.self, size_t(num_workers * bytes)));
  if (!workspace) return Status::out_of_memory;
  for_each_task(executor, num_workers, num_tasks, [&](int64_t worker_idx, int64_t idx) {
    const int64_t first = idx * plan.task_groups;
    items.run(first, min_of(items.num_groups, first + plan.task_groups), workspace + worker_idx * bytes);
  });
  executor.release(executor.self, workspace);
  return Status::ok;
}

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

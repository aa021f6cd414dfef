// What both direct kernels do: a lane's neighbouring rows of A, or columns of B, come from memory straight into
// registers. Rows beyond the operand's last one are that one once more: their sums are not stored.
#pragma once

#include "kernels/cuda/direct/plan.h"
#include "platform/divisor.h"
#include "platform/epilogue.h"

namespace tiledmm::gpu {

// `problem` has exchanged its operands if the plan says so.
Status launch_few_columns(const FoldedProblem& problem, const DirectPlan& plan, bool is_mma, const Executor& executor);

namespace {

// What a kernel reads before its first load from memory, in few lines of the constants' cache: its first parameter. The
// problem behind it has what few calls need.
struct DirectWork {
  const void *a, *b;
  void* c;
  int64_t item_a, item_b, item_c;  // steps of a batch of one dimension
  int32_t m, n, k, stride_am, stride_ak, stride_bk, stride_bn;
  int32_t num_units;
  Divisor tiles_of_item, tiles_of_line;
  int64_t stride_cm, stride_cn;
  bool wide_a, wide_b, wide_c;
  bool is_plain;       // C is the sums, rounded
  bool is_down;        // tiles are numbered down the columns of C, else along its rows
  bool has_more_dims;  // of the batch than one

  DirectWork(const FoldedProblem& problem, const DirectPlan& plan, bool is_down) {
    const GemmProblem& p = problem.gemm;
    const BatchDim dim = p.num_batch_dims > 0 ? problem.batch_dims[0] : BatchDim{};
    a = p.a, b = p.b, c = p.c;
    item_a = dim.stride_a, item_b = dim.stride_b, item_c = dim.stride_c;
    m = int32_t(p.m), n = int32_t(p.n), k = int32_t(p.k), num_units = int32_t(plan.num_units);
    stride_am = int32_t(p.stride_am), stride_ak = int32_t(p.stride_ak);
    stride_bk = int32_t(p.stride_bk), stride_bn = int32_t(p.stride_bn);
    tiles_of_item = Divisor(plan.num_tiles);
    tiles_of_line = Divisor(is_down ? plan.tiles_m : plan.num_tiles / plan.tiles_m);
    stride_cm = p.stride_cm, stride_cn = p.stride_cn;
    wide_a = plan.wide_a, wide_b = plan.wide_b, wide_c = plan.wide_c;
    is_plain = tiledmm::is_plain(p), this->is_down = is_down, has_more_dims = p.num_batch_dims > 1;
  }
};

// A tile: its item, and its row and column among the tiles there. C: the element of the result.
template <class T, class C = T>
struct DirectUnit {
  const T *a, *b;
  C* c;
  int32_t item, row, col;

  TILEDMM_DEVICE DirectUnit(const DirectWork& work, const FoldedProblem& problem, int32_t unit) {
    item = work.tiles_of_item.quotient(unit);
    const int32_t tile = unit - item * work.tiles_of_item.value;
    const int32_t line = work.tiles_of_line.quotient(tile), place = tile - line * work.tiles_of_line.value;
    row = work.is_down ? place : line;
    col = work.is_down ? line : place;
    a = static_cast<const T*>(work.a) + item * work.item_a;
    b = static_cast<const T*>(work.b) + item * work.item_b;
    c = static_cast<C*>(work.c) + item * work.item_c;
    if (work.has_more_dims) {
      const GemmProblem own = item_of<true>(problem, item);
      a = static_cast<const T*>(own.a), b = static_cast<const T*>(own.b), c = static_cast<C*>(own.c);
    }
  }
};

// COUNT elements, loaded in units of up to 16 bytes.
template <class T, int COUNT>
union Neighbours {
  static constexpr int kBytes = COUNT * int(sizeof(T)), kUnit = kBytes < 16 ? kBytes : 16;
  struct alignas(kUnit) Unit {
    T elements[kUnit / sizeof(T)];
  };
  static constexpr int kNumUnits = kBytes / kUnit;
  Unit units[kNumUnits];
  T elements[COUNT];
};
template <class T, int COUNT>
TILEDMM_DEVICE void load_neighbours(const T* from, Neighbours<T, COUNT>& to) {
  using Unit = typename Neighbours<T, COUNT>::Unit;
  TILEDMM_UNROLL for (int u = 0; u < Neighbours<T, COUNT>::kNumUnits; ++u) {
    to.units[u] = load_global(reinterpret_cast<const Unit*>(from) + u);
  }
}

// Starts the way of a line of memory to the second-level cache.
TILEDMM_DEVICE void prefetch_line([[maybe_unused]] const void* address) {
#if !defined(TILEDMM_HOST_GPU)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
#endif
}

// A lane's rows of an operand: of A, or columns of B.
template <class T, int COUNT>
struct LaneRows {
  const T* rows[COUNT];
  int32_t stride_k;

  TILEDMM_DEVICE LaneRows(const T* data, int32_t first, int32_t size, int32_t stride_row, int32_t stride_k)
      : stride_k(stride_k) {
    first = min_of(first, (size - 1) / COUNT * COUNT);
    TILEDMM_UNROLL for (int r = 0; r < COUNT; ++r) rows[r] = data + min_of(first + r, size - 1) * stride_row;
  }

  // Later steps load these lines: of each row that lies along k, kLines from `first` on. Lanes that share a row share
  // out its lines.
  static constexpr int kLine = 128 / int(sizeof(T)), kLines = 4;
  template <bool IS_K_MAJOR>
  TILEDMM_DEVICE void prefetch(int32_t first, int32_t end_k, int lane, int lanes) const {
    if constexpr (!IS_K_MAJOR) return;
    const int32_t end = min_of(end_k, first + kLines * kLine);
    TILEDMM_NO_UNROLL for (int32_t k = first + lane * kLine; k < end; k += lanes * kLine) {
      TILEDMM_UNROLL for (int r = 0; r < COUNT; ++r) prefetch_line(rows[r] + k);
    }
  }

  // The elements from k on, ELEMENTS of each row; zeros beyond the end of k. Nothing here waits for a load, so that all
  // of A and B are on their way at the same time.
  template <bool IS_WIDE, bool IS_K_MAJOR, int ELEMENTS>
  TILEDMM_DEVICE void load(int32_t k, int32_t end_k, T (&to)[ELEMENTS][COUNT]) const {
    if constexpr (IS_WIDE && IS_K_MAJOR) {
      TILEDMM_UNROLL for (int r = 0; r < COUNT; ++r) {
        Neighbours<T, ELEMENTS> found;
        load_neighbours(rows[r] + k, found);
        TILEDMM_UNROLL for (int e = 0; e < ELEMENTS; ++e) to[e][r] = found.elements[e];
      }
    } else {
      TILEDMM_UNROLL for (int e = 0; e < ELEMENTS; ++e) {
        if constexpr (IS_WIDE) {
          Neighbours<T, COUNT> found;
          load_neighbours(rows[0] + (k + e) * stride_k, found);
          TILEDMM_UNROLL for (int r = 0; r < COUNT; ++r) to[e][r] = found.elements[r];
        } else {
          const int32_t place = (k + e) * stride_k;
          TILEDMM_UNROLL for (int r = 0; r < COUNT; ++r) {
            const T* from = rows[r] + place;
            to[e][r] = T{};
            if (k + e < end_k) to[e][r] = load_global(from);
          }
        }
      }
    }
  }
};

// Calls multiply(is_wide_a, is_wide_b, k) for all of k, `step` elements at a time. What is wide is whole.
template <class Multiply>
TILEDMM_DEVICE void for_each_step(const DirectWork& work, int32_t step, const Multiply& multiply) {
  int32_t k = 0;
  const auto while_whole = [&](auto is_wide_a, auto is_wide_b) {
    TILEDMM_NO_UNROLL for (; k + step <= work.k; k += step) multiply(is_wide_a, is_wide_b, k);
  };
  if (work.wide_a && work.wide_b) {
    while_whole(std::true_type{}, std::true_type{});
  } else if (work.wide_a) {
    while_whole(std::true_type{}, std::false_type{});
  } else if (work.wide_b) {
    while_whole(std::false_type{}, std::true_type{});
  }
  TILEDMM_NO_UNROLL for (; k < work.k; k += step) multiply(std::false_type{}, std::false_type{}, k);
}

// One copy of this code for all elements of a lane.
template <class T>
TILEDMM_OUT_OF_LINE Acc<T> activated_apart(Activation activation, Acc<T> value) {
  return activated<T>(activation, value);
}

// What C's element is before it is rounded.
template <class T>
TILEDMM_DEVICE Acc<T> with_epilogue(const GemmProblem& item, int32_t row, int32_t col, Acc<T> sum) {
  sum = blended<T>(item, row, col, sum);
  return item.activation == Activation::none ? sum : activated_apart<T>(item.activation, sum);
}

// Stores neighbours that lie together and aligned.
template <class T, int COUNT>
TILEDMM_DEVICE void store_wide(T* to, const Acc<T> (&sums)[COUNT]) {
  Neighbours<T, COUNT> out;
  TILEDMM_UNROLL for (int i = 0; i < COUNT; ++i) out.elements[i] = rounded_to<T>(sums[i]);
  using Unit = typename Neighbours<T, COUNT>::Unit;
  TILEDMM_UNROLL for (int u = 0; u < Neighbours<T, COUNT>::kNumUnits; ++u) {
    store_global(reinterpret_cast<Unit*>(to) + u, out.units[u]);
  }
}

}  // namespace
}  // namespace tiledmm::gpu

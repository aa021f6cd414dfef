// The block tiles of the mfma kernel, as plain data, and the pure function that chooses one. They share out work; none
// of them changes a bit of the result: the order of summation is the same for all.
#pragma once

#include <initializer_list>

#include "core/chip.h"
#include "core/executor.h"
#include "core/math.h"
#include "core/operand.h"
#include "core/plan.h"
#include "core/problem.h"
#include "core/summation.h"
#include "kernels/hip/mfma/costs.h"
#include "kernels/hip/shared/plan.h"

namespace tiledmm {

struct MfmaShape {
  int block;  // rows and columns of a tile
  int warps_m, warps_n, blocks_per_cu;
};

// Where there are more tiles than CUs, the smallest is never the fastest.
inline constexpr MfmaShape kMfmaShapes[] = {{256, 2, 4, 1}, {128, 2, 2, 2}, {64, 1, 2, 4}, {32, 1, 1, 8}};
static_assert(sizeof kMfmaShapes == kNumMfmaShapes * sizeof(MfmaShape), "costs.h has a place for each");
static_assert(kMfmaShapes[0].block == kMaxMfmaBlock);

// The sums of the large tile in fp64 would fill all registers.
constexpr bool has_mfma_shape(DType dtype, int shape) { return dtype != DType::f64 || shape > 0; }
// Odd rows take more registers than the large tile leaves.
constexpr bool copies_odd_rows(DType dtype, int shape) { return size_of(dtype) == 2 && shape > 0; }
// Whether registers hold a total beside the sums of a chunk.
constexpr bool sums_mfma_chunks(DType dtype, int shape) { return shape > (dtype == DType::f64 ? 1 : 0); }

// The rule of 16 bits for every dtype: the instructions keep as many sums whatever they multiply.
inline int64_t mfma_chunk_k(const FoldedProblem& problem) {
  return mma_chunk_k(problem.asked_n, problem.gemm.k, false);
}

// How the whole k tiles of an operand are copied. Odd rows: of 16-bit elements, some of which begin in the middle of a
// word of two; what is copied then overhangs a packet.
enum class MfmaCopies : int32_t { wide, of_odd_rows, by_element };
inline constexpr const char* kMfmaCopiesNames[] = {"wide", "odd rows", "by element"};

// Whether packets of 16 bytes overhang the rows of an operand, where rows lie along m or n.
inline bool overhangs_rows(const OperandView& view, DType dtype) {
  return !is_k_major(view) && view.rows * size_of(dtype) % 16 != 0;
}
inline MfmaCopies mfma_copies(const OperandView& view, const FoldedProblem& problem) {
  // What overhangs a row is in the next one, or in front of it.
  const bool has_room = is_k_major(view) || view.stride_k >= max_of(view.rows, 8);
  if (copy_width(view, problem) >= 4) {
    return has_room || !overhangs_rows(view, problem.gemm.dtype_a) ? MfmaCopies::wide : MfmaCopies::by_element;
  }
  const bool has_unit_stride = view.stride_k == 1 || view.stride_row == 1;
  const bool is_base_aligned = reinterpret_cast<uintptr_t>(view.data) % 4 == 0;
  return has_unit_stride && has_room && is_base_aligned ? MfmaCopies::of_odd_rows : MfmaCopies::by_element;
}
// Whether wide copies of the last k tile would reach beyond the operand: it goes element by element then. (Bounds of
// the hardware would prevent that, too, but for a load that is partly outside the manuals do not agree.)
inline bool overhangs_operand(const OperandView& view, MfmaCopies copies, DType dtype) {
  return copies == MfmaCopies::of_odd_rows || overhangs_rows(view, dtype);
}

struct MfmaPlan {
  int32_t shape, num_dies;
  int64_t num_splits, chunk_k;  // of k; blocks that compute chunks of one tile side by side
  MfmaCopies copies;            // of both operands: the less wide ones
  bool leaves_last;             // the last k tile is copied element by element
};

// The predicted time in microseconds: of blocks in rounds, and of memory beside them.
inline double mfma_us(const MfmaPlan& plan, const FoldedProblem& problem, const Chip& chip) {
  const GemmProblem& p = problem.gemm;
  constexpr MfmaCosts costs = kMfmaCosts;
  const MfmaShape& shape = kMfmaShapes[plan.shape];
  const int64_t splits = plan.num_splits;
  const bool is_16_bit = size_of(p.dtype_a) == 2;
  const int64_t blocks = ceil_div(p.m, shape.block) * ceil_div(p.n, shape.block) * problem.batch_size * splits;
  const double busy = (is_16_bit ? costs.busy_16 : costs.busy)[plan.shape];
  const double alone = (is_16_bit ? costs.alone_16 : costs.alone)[plan.shape];
  const double steps = double(ceil_div(ceil_div(p.k, splits), mfma_block_k(p.dtype_a)));
  const double rate = chip.mma_tflops[int(p.dtype_a)] * 1e6 / chip.num_cus;
  const double block_us = 2.0 * shape.block * shape.block * mfma_block_k(p.dtype_a) * steps / rate;
  const double multiply =
      rounds_us(blocks, shape.blocks_per_cu, block_us, busy, alone, chip) * costs.copies[int(plan.copies)];
  const double m = double(p.m), n = double(p.n), k = double(p.k), batch = double(problem.batch_size);
  const double per_us = chip.tbytes_per_second * 1e6 * costs.bandwidth;
  const double move = batch * (m * k + k * n + m * n) * double(size_of(p.dtype_a)) / per_us;
  const double sums = splits > 1 ? costs.start + 2 * batch * m * n * double(splits) * (is_16_bit ? 4 : 8) / per_us : 0;
  return costs.start + overlapped_us(multiply, move) + sums;
}

inline void for_each_mfma_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  const GemmProblem& p = problem.gemm;
  const OperandView view_of_a = view_a(p), view_of_b = view_b(p);
  const MfmaCopies a = mfma_copies(view_of_a, problem), b = mfma_copies(view_of_b, problem);
  MfmaPlan plan{};
  plan.num_dies = chip.cus_per_die ? int(max_of(1, chip.num_cus / chip.cus_per_die)) : 1;
  plan.chunk_k = mfma_chunk_k(problem);
  plan.copies = int(a) > int(b) ? a : b;
  plan.leaves_last = overhangs_operand(view_of_a, a, p.dtype_a) || overhangs_operand(view_of_b, b, p.dtype_a);
  const int64_t chunks = max_of(1, ceil_div(p.k, plan.chunk_k));
  const double partial_bytes =
      double(chunks) * double(p.m) * double(p.n) * double(problem.batch_size) * (p.dtype_a == DType::f64 ? 8 : 4);
  const bool do_partials_fit = partial_bytes <= double(kMaxPartialBytes);
  for (int shape = 0; shape < kNumMfmaShapes; ++shape) {
    if (!has_mfma_shape(p.dtype_a, shape)) continue;
    if (plan.copies == MfmaCopies::of_odd_rows && !copies_odd_rows(p.dtype_a, shape)) continue;
    for (const int64_t splits : {int64_t(1), chunks}) {
      if (splits == 1 ? chunks > 1 && !sums_mfma_chunks(p.dtype_a, shape) : !do_partials_fit) continue;
      plan.shape = shape, plan.num_splits = splits;
      visit(plan, mfma_us(plan, problem, chip));
    }
  }
}

namespace gpu {

template <class T>
Status launch_mfma_of(const FoldedProblem& problem, const MfmaPlan& plan, const Executor& executor);

}  // namespace gpu

}  // namespace tiledmm

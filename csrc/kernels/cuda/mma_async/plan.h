// The block tiles of the mma_async kernel, as plain data, and the pure function that chooses one. They share out work;
// none of them changes a bit of the result: the order of summation is the same for all.
#pragma once

#include "core/executor.h"
#include "core/groups.h"
#include "core/math.h"
#include "core/operand.h"
#include "core/problem.h"
#include "core/summation.h"
#include "core/task.h"
#include "core/transposed.h"
#include "kernels/cuda/mma_async/costs.h"
#include "kernels/cuda/shared/plan.h"
#include "platform/instance.h"

namespace tiledmm {

// Where a block that sums chunks one after the other keeps their total: nowhere, if it cannot.
enum class ChunkTotal { none, in_registers, in_c };

struct MmaAsyncShape {
  int block_m, block_n, block_k;
  int warps_m, warps_n, num_stages, blocks_per_cu;
  ChunkTotal total;
  bool takes_groups = false;
};

// The tiles for 8-byte elements, and those for 2-byte ones; 4-byte elements (tf32) have half as many along k. A word is
// one element, or two of 16 bits.
inline constexpr MmaAsyncShape kMmaAsyncShapes64[] = {
    {128, 128, 16, 2, 4, 4, 1, ChunkTotal::in_c},
    {64, 128, 32, 2, 4, 3, 1, ChunkTotal::in_registers},
    {64, 64, 16, 2, 2, 3, 3, ChunkTotal::in_c},
    {64, 64, 32, 4, 2, 4, 1, ChunkTotal::in_registers, true},
    {32, 64, 16, 2, 2, 4, 3, ChunkTotal::in_registers},
    {32, 64, 32, 2, 2, 4, 2, ChunkTotal::in_registers},
    {32, 32, 32, 2, 2, 5, 2, ChunkTotal::in_registers},
    {16, 32, 32, 1, 4, 7, 2, ChunkTotal::in_registers},
    // As the one before, for one row of tiles that have a multiprocessor each: half as many bytes again on their way.
    {16, 32, 32, 1, 4, 10, 1, ChunkTotal::in_registers},
    // Few columns.
    {64, 32, 16, 2, 2, 4, 3, ChunkTotal::in_registers},
};
inline constexpr MmaAsyncShape kMmaAsyncShapes16[] = {
    {128, 256, 32, 2, 4, 3, 1, ChunkTotal::none, true},
    // Blocks of short k are mostly loads and stores: those of one overlap the other's.
    {128, 128, 32, 2, 4, 4, 2, ChunkTotal::none},
    {64, 64, 32, 2, 2, 4, 2, ChunkTotal::in_registers, true},
    // In tf32 alone, for one row of tiles: much of B is on its way to few blocks.
    {16, 32, 64, 1, 4, 13, 2, ChunkTotal::in_registers},
};
static_assert(sizeof kMmaAsyncShapes64 == kNumMmaAsyncShapes64 * sizeof(MmaAsyncShape), "costs.h has a place for each");
static_assert(sizeof kMmaAsyncShapes16 == kNumMmaAsyncShapes16 * sizeof(MmaAsyncShape), "costs.h has a place for each");

// Those that are compiled together; the slowest first.
inline constexpr Instance kMmaAsyncInstances[] = {
    {DType::f64, 0, 1}, {DType::f64, 1, 3}, {DType::f64, 3, 5},        {DType::f64, 5, 10},     {DType::bf16, 0, 3},
    {DType::f16, 0, 3}, {DType::f32, 0, 4}, {DType::bf16, 0, 3, true}, {DType::f16, 0, 3, true}};

constexpr int num_mma_async_shapes(DType dtype) {
  return dtype == DType::f64 ? kNumMmaAsyncShapes64 : kNumMmaAsyncShapes16 - (dtype != DType::f32);
}
constexpr bool hold_all_mma_async(DType dtype, bool is_wide = false) {
  return hold_all(kMmaAsyncInstances, dtype, num_mma_async_shapes(dtype), is_wide);
}
static_assert(hold_all_mma_async(DType::f64) && hold_all_mma_async(DType::f32) && hold_all_mma_async(DType::bf16) &&
              hold_all_mma_async(DType::f16) && hold_all_mma_async(DType::bf16, true) &&
              hold_all_mma_async(DType::f16, true));
constexpr const MmaAsyncShape& mma_async_shape(DType dtype, int shape) {
  return dtype == DType::f64 ? kMmaAsyncShapes64[shape] : kMmaAsyncShapes16[shape];
}

// Shared memory of a block, in bytes, with the rows' padding: whichever of the layouts takes more.
constexpr int64_t shared_bytes(const MmaAsyncShape& shape, DType dtype) {
  const int64_t row_k = dtype == DType::f64 ? shape.block_k * 8 + 32 : shape.block_k * 2 + 16;
  const int64_t row_m = dtype == DType::f64 ? shape.block_m * 8 + 32 : shape.block_m * 2 + 16;
  const int64_t row_n = dtype == DType::f64 ? shape.block_n * 8 + 32 : shape.block_n * 2 + 16;
  return (max_of(shape.block_m * row_k, shape.block_k * row_m) + max_of(shape.block_n * row_k, shape.block_k * row_n)) *
         shape.num_stages;
}

// A shape, and how many blocks share out the k of one of its tiles: one, or each a chunk.
struct MmaAsyncChoice {
  int shape;
  int64_t num_splits;
  int64_t group_m = 0;  // rows of tiles that are computed together
};

// How the operands lie, and C. Rows along k may begin within a sector of 32 bytes, of which each copy of a row then
// takes one more, and mostly a line more, too.
struct MmaAsyncCopies {
  bool is_a_vectorised, is_b_vectorised;  // copies of 16 bytes are possible
  bool splits_sectors_a, splits_sectors_b;
  bool stores_across;  // C's neighbours lie down its columns: they are stored one by one
};
// How many times longer a step takes than with copies of 16 bytes: `narrow` where all are of single elements, else by
// their share.
inline double narrow_factor(const MmaAsyncShape& shape, const MmaAsyncCopies& copies, double narrow) {
  const int elements = (copies.is_a_vectorised ? 0 : shape.block_m) + (copies.is_b_vectorised ? 0 : shape.block_n);
  return 1 + (narrow - 1) * elements / (shape.block_m + shape.block_n);
}
constexpr bool splits_sectors(DType dtype, int64_t stride_mn, int64_t stride_k) {
  return stride_k == 1 && stride_mn * size_of(dtype) % kSectorBytes != 0;
}

// Microseconds in fp64: multiprocessors take blocks_per_cu blocks at a time, in rounds; memory and the second-level
// cache are busy beside them.
inline double mma_async_us(const MmaAsyncF64Costs& c, const MmaAsyncChoice& choice, const GemmTask& task,
                           const MmaAsyncCopies& copies, int num_cus) {
  const int64_t m = task.m, n = task.n, k = task.k, batch = task.batch;
  const MmaAsyncShape& shape = mma_async_shape(task.dtype, choice.shape);
  const double alone = c.alone[choice.shape];
  const int64_t splits = choice.num_splits;
  const int64_t blocks = ceil_div(m, shape.block_m) * ceil_div(n, shape.block_n) * batch * splits;
  const int64_t at_once = num_cus * shape.blocks_per_cu, rounds = blocks / at_once, left = blocks - rounds * at_once;
  const double most = shape.blocks_per_cu, area = double(shape.block_m) * shape.block_n;
  const double visits = splits > 1 ? 0 : double(ceil_div(k, task.chunk_k) - 1);
  const double total = visits > 0 && shape.total == ChunkTotal::in_registers ? c.total.value : 1;
  const double part_k = double(ceil_div(k, splits));
  const double steps = total * part_k / 8 * narrow_factor(shape, copies, c.narrow[choice.shape]);
  const double more = most > 1 ? (most * c.busy[choice.shape] - alone) / (most - 1) : 0;  // for another block
  const double visit = shape.total == ChunkTotal::in_c ? c.visit_in_c.value : c.visit.value;
  const double element = copies.stores_across && splits == 1 ? c.across * c.element : c.element.value;
  const auto round_us = [&](double blocks_per_cu) {
    return steps * (alone + (blocks_per_cu - 1) * more) + c.round[choice.shape] +
           (element + visit * visits) * area * blocks_per_cu;
  };
  double multiply = double(rounds) * round_us(most);
  if (left > 0) {
    // Multiprocessors that are done first take more than their share.
    const double share = double(ceil_div(left, num_cus));
    multiply += round_us(rounds > 0 ? share + c.uneven * (most - share) : share);
  }
  const double output = 8 * double(m * n) * double(splits) * double(batch);  // bytes
  const double move = (8 * double(batch) * double(m + n) * double(k) + output) / c.rate;
  const double split_sector = shape.block_k > 16 ? c.long_sectors.value : c.sectors.value;
  const double cached = 8 * double(blocks) * part_k *
                        (double(min_of(m, shape.block_m)) * (copies.splits_sectors_a ? split_sector : 1) +
                         double(min_of(n, shape.block_n)) * (copies.splits_sectors_b ? split_sector : 1)) /
                        c.cached;
  return c.start[choice.shape] + overlapped(multiply, move, cached) + (splits > 1 ? c.addition + output / c.added : 0);
}

// Microseconds in 16 bits and tf32 by a simple model: multiprocessors take blocks_per_cu blocks at a time, the fullest
// one decides. Operands arrive while others are multiplied, but for those of the first stages; results leave behind the
// last.
inline double mma_async_us(const MmaAsyncCosts& c, const MmaAsyncChoice& choice, const GemmTask& task,
                           const MmaAsyncCopies& copies, int num_cus) {
  const int64_t m = task.m, n = task.n, k = task.k, batch = task.batch;
  const double alone = c.alone[choice.shape], rate = c.rate;
  const MmaAsyncShape& shape = mma_async_shape(task.dtype, choice.shape);
  const int64_t splits = choice.num_splits;
  const int64_t blocks = ceil_div(m, shape.block_m) * ceil_div(n, shape.block_n) * batch * splits;
  const int64_t per_cu = ceil_div(blocks, num_cus), rounds = per_cu / shape.blocks_per_cu;
  const double full = shape.blocks_per_cu * c.busy[choice.shape];  // of a step with as many blocks as there may be
  double step = double(rounds) * full;
  if (const int64_t left = per_cu - rounds * shape.blocks_per_cu; left > 0) {
    step += alone;
    if (left > 1) step += double(left - 1) * (full - alone) / (shape.blocks_per_cu - 1);
  }
  const double bytes = double(size_of(task.dtype)), words = double(ceil_div(k, splits)) * (bytes == 2 ? 0.5 : 1);
  const double multiply =
      words / 8 * step * (task.dtype == DType::f32 ? c.tf32.value : 1) * narrow_factor(shape, copies, c.narrow);
  const double load = double((m + n) * k * batch) * bytes / rate;
  const double store = double(m * n * batch * splits) * bytes * (task.is_wide ? 2 : 1) / rate;
  const double first = shape.num_stages * shape.block_k * 0.5;  // words of the first stages
  double us = c.start + (multiply > load ? multiply : load);
  us +=
      ((words > first ? load * first / words : load) + store) / (rounds > 0 ? double(per_cu) / shape.blocks_per_cu : 1);
  // The blocks of a round store at the same time; those of a further round while others of theirs multiply.
  const double last = double(min_of(per_cu, shape.blocks_per_cu));
  us += c.element * shape.block_m * shape.block_n * (last + (double(per_cu) - last) / shape.blocks_per_cu);
  us += c.round * double(ceil_div(per_cu, shape.blocks_per_cu) - 1);
  if (splits > 1) us += c.addition + double(splits * m * n * batch) * 4 / c.added;
  return us;
}

// Calls visit(choice, microseconds) for each of the shapes that fit into shared memory.
template <class Costs, class Visit>
void for_each_mma_async(const Costs& costs, const FoldedProblem& problem, const GemmTask& task,
                        const MmaAsyncCopies& copies, const Chip& chip, const Visit& visit) {
  const DType dtype = task.dtype;
  const bool has_groups = is_grouped(problem.gemm);
  const int64_t chunks = ceil_div(problem.gemm.k, problem.chunk_k);
  const bool do_partials_fit =
      chunks * task.m * task.n * task.batch * (dtype == DType::f64 ? 8 : 4) <= kMaxPartialBytes;
  for (int i = 0; i < num_mma_async_shapes(dtype); ++i) {
    const MmaAsyncShape& shape = mma_async_shape(dtype, i);
    if (shared_bytes(shape, dtype) > chip.max_shared_bytes || (has_groups && !shape.takes_groups)) continue;
    for (int splits = 0; splits < 2; ++splits) {
      const bool can_sum_chunks = shape.total != ChunkTotal::none;
      if (splits ? chunks <= 1 || !do_partials_fit : chunks > 1 && !can_sum_chunks) continue;
      if (splits && ((can_sum_chunks && dtype != DType::f64) || has_groups)) continue;
      const MmaAsyncChoice choice{i, splits ? chunks : 1};
      visit(choice, mma_async_us(costs, choice, task, copies, chip.num_cus));
    }
  }
}

// Whether 16 bytes of an operand are read along k. A group begins with any row of A, or with any element of k: they are
// then read along the other dimension.
inline bool is_read_along_k(const OperandView& view, const GemmProblem& problem) {
  if (problem.grouping == Grouping::k) return false;
  const bool is_a = view.batch_stride == &BatchDim::stride_a;
  return (problem.grouping == Grouping::rows && is_a) || is_k_major(view);
}
// Whether the operand lies so that they can be.
inline bool is_vectorised(const OperandView& view, const FoldedProblem& problem) {
  return is_aligned(view, problem) && is_k_major(view) == is_read_along_k(view, problem.gemm);
}

// How mma_async computes a problem.
struct MmaAsyncPlan {
  bool is_exchanged;    // C^T = B^T A^T; what follows is of that product
  int unaligned_shape;  // of unaligned_plan.h; -1: none, operands that are not aligned are copied first
  bool is_a_vectorised, is_b_vectorised;
  MmaAsyncChoice choice;
};

// Few columns become few rows, for which there are tiles. Otherwise C becomes row-major, whose rows are stored 16 bytes
// at a time. Groups of rows stay rows.
inline bool is_better_transposed(const GemmProblem& p) {
  constexpr int64_t kFew = 64;
  if (is_grouped(p)) return false;
  return min_of(p.m, p.n) <= kFew ? p.n < p.m : is_column_major(p);
}

inline FoldedProblem oriented(const FoldedProblem& given, bool is_exchanged) {
  FoldedProblem problem = is_exchanged ? transposed(given) : given;
  // One row of A lies along k whatever its stride to the next one.
  if (problem.gemm.m == 1 && problem.gemm.stride_ak == 1) problem.gemm.stride_am = round_up(problem.gemm.k, 8);
  return problem;
}

namespace gpu {

// Launches the kernel of mma_async_shape(dtype, plan.choice.shape) for the layouts of the problem.
template <int INSTANCE>
Status launch_instance(const FoldedProblem& problem, const MmaAsyncPlan& plan, const Executor& executor);

}  // namespace gpu

}  // namespace tiledmm

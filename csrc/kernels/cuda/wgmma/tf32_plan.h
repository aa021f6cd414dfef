// The block tiles of the wgmma kernel for fp32 with products in tf32, and what becomes of operands whose layout its
// matrix unit does not take: as plan.h, plain data and pure functions that change no bit of the result.
#pragma once

#include "kernels/cuda/wgmma/plan.h"

namespace tiledmm {

inline constexpr int kTf32BlockK = 32;

inline constexpr TileShape kTf32TileShapes[] = {
    {128, 256}, {128, 128}, {128, 64}, {64, 128}, {64, 64}, {64, 32},
};
inline constexpr int kNumTf32TileShapes = int(sizeof(kTf32TileShapes) / sizeof(TileShape));

// How the kernel reads its operands. Both in place: both lie along k in shared memory. A from registers: A lies along m
// and passes through registers, which serves a B along n as the A of the transposed problem. B transposed: of the
// transposed problem, B lies along n as well, and warps beside the producer transpose it in shared memory.
enum class Tf32Path { both_in_place, a_from_registers, b_transposed };
inline constexpr const char* kTf32PathNames[] = {"both_in_place", "a_from_registers", "b_transposed"};

constexpr bool serves_path(const TileShape& shape, Tf32Path path) {
  return path != Tf32Path::b_transposed || shape.block_n <= 128;
}

struct Tf32Plan : WgmmaPlan {
  Tf32Path path;
  bool is_exchanged;  // the kernel computes the transposed problem
};

// Microseconds from launch to end, copies aside, by a simple model: whole waves of tiles, each of an
// epilogue and of k tiles that the slowest of these bounds: the latency of one chain of matrix instructions; the matrix
// unit; the second-level cache; shared memory; the transposing warps. Or memory, if that is slower. `p` is the problem
// that the kernel computes.
inline double model_tf32_microseconds(const Tf32Costs& costs, const TileShape& shape, Tf32Path path, bool splits_chunks,
                                      int blocks, const GemmTask& p, int num_sms) {
  const bool uses_registers = path != Tf32Path::both_in_place, transposes = path == Tf32Path::b_transposed;
  const int64_t num_chunks = ceil_div(p.k, p.chunk_k), splits = splits_chunks ? num_chunks : 1;
  const int64_t num_tiles = p.batch * splits * ceil_div(p.m, shape.block_m) * ceil_div(p.n, shape.block_n);
  const int at_once = blocks * num_sms, sharing = num_tiles > num_sms ? blocks : 1;
  const double tail = splits_tail(shape, num_tiles, at_once) ? costs.halved.value : num_tiles % at_once ? 1 : 0;
  const double waves = double(num_tiles / at_once) + tail;
  const double area = double(shape.block_m) * shape.block_n;
  const double a_bytes = 128 * double(min_of(shape.block_m, p.m)), b_bytes = 128.0 * shape.block_n;
  const double requested = a_bytes * (p.a.alignment >= 32 ? 1 : costs.unaligned.value) +
                           b_bytes * (p.b.alignment >= 32 ? 1 : costs.unaligned.value);
  const double read = 128 * double(shape.block_m / 64) * (64 + shape.block_n);
  const double moved = transposes ? 2 * b_bytes : 0;
  double k_tile = uses_registers ? costs.least_by_registers : costs.least_k_tile;
  for (const double bound :
       {(area * costs.k_tile_element + costs.k_tile) * (uses_registers ? costs.registers.value : 1),
        requested / costs.cached, (a_bytes + b_bytes + read + moved) / costs.shared,
        transposes ? costs.transpose + costs.transpose_32 * shape.block_n / 32 : 0})
    if (sharing * bound > k_tile) k_tile = sharing * bound;
  const double num_k_tiles = double(ceil_div(splits_chunks ? p.chunk_k : p.k, kTf32BlockK));
  const double tiles =
      waves * (num_k_tiles * k_tile + costs.tile + area * (costs.element + (sharing - 1) * costs.crowded));
  const double results = double(p.batch) * double(p.m) * double(p.n);
  const double elements = double(p.batch * p.k) * double(p.m + p.n) + results;
  const StreamedOperand large = streamed_operand(shape, p);
  const bool is_few = splits == 1 && min_of(p.m, p.n) <= kWgmmaFewRows && large.is_k_major;
  const double memory = 4 * elements / costs.rate * (is_few ? 1 + costs.few * large.tile_rows / 64 : 1);
  const double sums = splits_chunks ? costs.split + double(num_chunks) * (costs.chunk + results / costs.sums) : 0;
  return costs.start + sums + (tiles > memory ? tiles + costs.overlap * memory : memory + costs.overlap * tiles);
}

// An operand as it lies, and its copy along k.
struct Tf32Operand {
  TaskOperand in_place, copied;
  TensorMapView view, copied_view;
};
inline Tf32Operand describe_tf32(const OperandView& operand, const FoldedProblem& problem) {
  Tf32Operand result{};
  TaskOperand& in_place = result.in_place;
  in_place.is_readable = describe_operand(operand, problem, result.view);
  in_place.is_k_major = result.view.is_k_major;
  in_place.alignment = result.view.ld % 8 == 0 ? 32 : 16;  // fewer requests to the second-level cache
  result.copied = {true, 32};
  result.copied_view = describe_copy(operand, problem);
  return result;
}

inline void for_each_tf32_plan(const Tf32Costs& costs, const FoldedProblem& given, int num_sms, PlanSearch& visit) {
  Tf32Plan plan{};
  const FoldedProblem problem = row_major(given, plan);
  const GemmProblem& p = problem.gemm;
  plan.stores_by_tma = describe_result(problem, plan.c) && is_storable(p.dtype_c, plan.c);
  const double store_us =
      plan.stores_by_tma ? 0 : double(problem.batch_size) * double(p.m) * double(p.n) * costs.stored;
  const Tf32Operand a = describe_tf32(view_a(p), problem), b = describe_tf32(view_b(p), problem);
  const bool is_chunked = problem.chunk_k < p.k;
  const bool may_split = may_split_chunks(p.m, p.n, p.k, problem.chunk_k, problem.batch_size);
  for (int option = 0; option < 4; ++option) {
    plan.copies_a = option % 2, plan.copies_b = option / 2;
    GemmTask task = task_of(problem, plan.copies_a ? a.copied : a.in_place, plan.copies_b ? b.copied : b.in_place);
    if (!task.a.is_readable || !task.b.is_readable) continue;
    task.is_c_aligned = plan.stores_by_tma;
    plan.a = plan.copies_a ? a.copied_view : a.view;
    plan.b = plan.copies_b ? b.copied_view : b.view;
    plan.is_exchanged = !task.b.is_k_major;
    if (plan.is_exchanged) task = transposed(task), std::swap(plan.a, plan.b);
    plan.path = !task.b.is_k_major   ? Tf32Path::b_transposed
                : !task.a.is_k_major ? Tf32Path::a_from_registers
                                     : Tf32Path::both_in_place;
    // Elements that copies read, and those that they write with the gaps between their rows.
    const double copied = double(task.batch * (task.k + copied_ld(DType::f32, task.k))) *
                          double((plan.copies_a ? p.m : 0) + (plan.copies_b ? p.n : 0));
    const double copy_time = copied > 0 ? costs.copy + copied * 4 / costs.copied : 0;
    for (int i = 0; i < kNumTf32TileShapes; ++i) {
      const TileShape& shape = kTf32TileShapes[i];
      if (!serves_path(shape, plan.path) || (is_chunked && !sums_chunks(shape))) continue;
      const int most = plan.path == Tf32Path::b_transposed       ? 1
                       : plan.path == Tf32Path::a_from_registers ? fewest_blocks(most_blocks(shape, task, kTf32BlockK))
                                                                 : most_blocks(shape, task, kTf32BlockK);
      for (int splits = 0; splits <= int(may_split); ++splits) {
        for (int blocks = fewest_blocks(most); blocks <= most; ++blocks) {
          const double time =
              copy_time + model_tf32_microseconds(costs, shape, plan.path, splits, blocks, task, num_sms);
          plan.tiles = {i, shape, splits != 0, false, 0, 0, false, 0, blocks};
          visit(plan, time + store_us, time);
        }
      }
    }
  }
  const GemmTask task = task_of(problem, {}, {});
  visit.complete<Tf32Plan>([&](Tf32Plan& plan) {
    plan.schedule = schedule_tiles(plan, plan.is_exchanged ? transposed(task) : task, num_sms);
  });
}

}  // namespace tiledmm

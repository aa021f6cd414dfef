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

// Where an operand can be read: in place along k or along its other dimension, or nowhere as it lies.
enum class Tf32Layout { along_k, across_k, unreadable };
struct Tf32Operand {
  Tf32Layout layout;
  bool is_aligned;  // rows begin at multiples of 32 bytes: fewer requests to the second-level cache
};

struct Tf32Problem {
  int64_t m, n, k, chunk_k, batch;
  Tf32Operand a, b;
};

struct Tf32Plan {
  Tf32Path path;
  bool copies_a, copies_b;  // along k, by a kernel before
  bool is_transposed;       // the kernel computes the transposed problem
  TilePlan tiles;
};

// Microseconds from launch to end, copies aside, by a simple model, fitted on an H200: whole waves of tiles, each of an
// epilogue and of k tiles that the slowest of these bounds: the latency of one chain of matrix instructions; the matrix
// unit; the second-level cache; shared memory; the transposing warps. Or memory, if that is slower. `p` is the problem
// that the kernel computes.
inline double model_tf32_microseconds(const Tf32Costs& costs, const TileShape& shape, Tf32Path path, bool splits_chunks,
                                      const Tf32Problem& p, int num_sms) {
  const bool uses_registers = path != Tf32Path::both_in_place, transposes = path == Tf32Path::b_transposed;
  const int64_t num_chunks = ceil_div(p.k, p.chunk_k), splits = splits_chunks ? num_chunks : 1;
  const int64_t num_tiles = p.batch * splits * ceil_div(p.m, shape.block_m) * ceil_div(p.n, shape.block_n);
  const double tail = splits_tail(shape, num_tiles, num_sms) ? costs.halved.value : num_tiles % num_sms ? 1 : 0;
  const double waves = double(num_tiles / num_sms) + tail;
  const double area = double(shape.block_m) * shape.block_n;
  const double a_bytes = 128 * double(min_of(shape.block_m, p.m)), b_bytes = 128.0 * shape.block_n;
  const double requested =
      a_bytes * (p.a.is_aligned ? 1 : costs.unaligned.value) + b_bytes * (p.b.is_aligned ? 1 : costs.unaligned.value);
  const double read = 128 * double(shape.block_m / 64) * (64 + shape.block_n);
  const double moved = transposes ? 2 * b_bytes : 0;
  double k_tile = uses_registers ? costs.least_by_registers.value : costs.least_k_tile.value;
  for (const double bound :
       {(area * costs.k_tile_element + costs.k_tile) * (uses_registers ? costs.registers.value : 1),
        requested / costs.cached, (a_bytes + b_bytes + read + moved) / costs.shared,
        transposes ? costs.transpose + costs.transpose_32 * shape.block_n / 32 : 0})
    if (bound > k_tile) k_tile = bound;
  const double num_k_tiles = double(ceil_div(splits_chunks ? p.chunk_k : p.k, kTf32BlockK));
  const double tiles = waves * (num_k_tiles * k_tile + costs.tile + area * costs.element);
  const double results = double(p.batch) * double(p.m) * double(p.n);
  const double elements = double(p.batch * p.k) * double(p.m + p.n) + results;
  const double memory = 4 * elements / costs.rate;
  const double sums = splits_chunks ? costs.split + double(num_chunks) * (costs.chunk + results / costs.sums) : 0;
  return costs.start + sums + (tiles > memory ? tiles + costs.overlap * memory : memory + costs.overlap * tiles);
}

// Shows the plans of a problem, which take so long beside tiles and copies.
inline void for_each_tf32_plan_of(const Tf32Costs& costs, const Tf32Problem& problem, double other_us, int num_sms,
                                  PlanSearch& visit) {
  const bool is_chunked = problem.chunk_k < problem.k;
  const bool may_split = may_split_chunks(problem.m, problem.n, problem.k, problem.chunk_k, problem.batch);
  for (int option = 0; option < 4; ++option) {
    const bool copies_a = option % 2, copies_b = option / 2;
    if (!copies_a && problem.a.layout == Tf32Layout::unreadable) continue;
    if (!copies_b && problem.b.layout == Tf32Layout::unreadable) continue;
    Tf32Problem p = problem;
    if (copies_a) p.a = {Tf32Layout::along_k, true};
    if (copies_b) p.b = {Tf32Layout::along_k, true};
    Tf32Path path = Tf32Path::both_in_place;
    const bool is_transposed = p.b.layout == Tf32Layout::across_k;
    if (is_transposed) {
      path = p.a.layout == Tf32Layout::across_k ? Tf32Path::b_transposed : Tf32Path::a_from_registers;
      p = {p.n, p.m, p.k, p.chunk_k, p.batch, p.b, p.a};
    } else if (p.a.layout == Tf32Layout::across_k) {
      path = Tf32Path::a_from_registers;
    }
    const double copied =
        double(problem.batch * problem.k) * double((copies_a ? problem.m : 0) + (copies_b ? problem.n : 0));
    const double copy_time =
        copied > 0 ? costs.copy + copied * 8 / costs.copied : 0;  // each element is read and written
    for (int i = 0; i < kNumTf32TileShapes; ++i) {
      const TileShape& shape = kTf32TileShapes[i];
      if (!serves_path(shape, path) || (is_chunked && !sums_chunks(shape))) continue;
      for (int splits = 0; splits <= int(may_split); ++splits) {
        const double time = copy_time + model_tf32_microseconds(costs, shape, path, splits, p, num_sms);
        const TilePlan tiles{i, shape, splits != 0, false, 0, 0, false, 0};
        visit(Tf32Plan{path, copies_a, copies_b, is_transposed, tiles}, time + other_us, time);
      }
    }
  }
}

// How the copy engine sees an operand.
inline Tf32Operand describe_tf32(const OperandView& operand, const FoldedProblem& problem) {
  TensorMapView view{};
  if (!describe_operand(operand, problem, view)) return {Tf32Layout::unreadable, false};
  return {view.is_k_major ? Tf32Layout::along_k : Tf32Layout::across_k, view.ld % 8 == 0};
}

inline void for_each_tf32_plan(const Tf32Costs& costs, const FoldedProblem& given, int num_sms, PlanSearch& visit) {
  const FoldedProblem problem = row_major(given);
  const GemmProblem& p = problem.gemm;
  TensorMapView c{};
  const bool is_stored_by_tma = describe_result(problem, c) && is_storable(p.dtype_c, c);
  const double store_us = is_stored_by_tma ? 0 : double(problem.batch_size) * double(p.m) * double(p.n) * costs.stored;
  for_each_tf32_plan_of(costs,
                        {p.m, p.n, p.k, problem.chunk_k, problem.batch_size, describe_tf32(view_a(p), problem),
                         describe_tf32(view_b(p), problem)},
                        store_us, num_sms, visit);
}

}  // namespace tiledmm

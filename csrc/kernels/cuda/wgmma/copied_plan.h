// How operands lie that are copied before wgmma reads them, since the copy engine cannot take them as they are.
#pragma once

#include <cstdint>

#include "core/math.h"
#include "core/operand.h"
#include "core/problem.h"
#include "kernels/cuda/shared/plan.h"
#include "kernels/cuda/wgmma/costs.h"

namespace tiledmm {

// Elements from one row to the next of a copied operand, whose rows hold `inner`. At multiples of 64 bytes rows of 16
// bits cost the second-level cache fewer requests, short ones would grow too much; those of fp32 are read fastest at
// multiples of 128.
constexpr int64_t copied_ld(DType dtype, int64_t inner) {
  if (size_of(dtype) == 1) return round_up(inner, inner >= 512 ? 64 : 16);
  return round_up(inner, dtype == DType::f32 || inner >= 256 ? 32 : 8);
}

// Whether the rows of an operand's copy lie along k: always of fp32 and of 8 bits, else where the operand's do.
inline bool copies_along_k(DType dtype, const OperandView& view) { return size_of(dtype) != 2 || is_k_major(view); }

// Elements that a copy reads, and those that it writes with the gaps between its rows, of all items of an operand that
// a batch does not repeat.
inline double num_copied(const OperandView& view, const FoldedProblem& problem) {
  const bool is_along_k = copies_along_k(view.dtype, view);
  const double inner = double(is_along_k ? view.k : view.rows), outer = double(is_along_k ? view.rows : view.k);
  return double(num_items(problem, view.batch_stride)) * outer *
         (inner + double(copied_ld(view.dtype, int64_t(inner))));
}

// How the copy engine sees the copy of an operand.
inline TensorMapView describe_copy(const OperandView& view, const FoldedProblem& problem) {
  const bool is_along_k = copies_along_k(problem.gemm.dtype_a, view);
  const int64_t ld = copied_ld(problem.gemm.dtype_a, is_along_k ? view.k : view.rows);
  TensorMapView copy{};
  describe_matrix(nullptr, problem.gemm.dtype_a, view.rows, view.k, is_along_k ? ld : 1, is_along_k ? 1 : ld, copy);
  copy.batch_count = num_items(problem, view.batch_stride);
  copy.batch_step =
      copy.batch_count > 1 ? (is_along_k ? view.rows : view.k) * ld : kTensorMapBytes / size_of(problem.gemm.dtype_a);
  return copy;
}

// What wgmma takes longer than its model says where it copies 16-bit operands first: with chunks of k, and where up
// to 8 rows or columns lie close to each other. A k tile is then 64 rows of 16 bytes, which all multiprocessors fetch
// at the same time.
inline double copied_us(const WgmmaCosts& costs, const FoldedProblem& problem, bool copies_a, bool copies_b,
                        int num_sms) {
  if (!copies_a && !copies_b) return 0;
  const GemmProblem& p = problem.gemm;
  const double chunks = problem.chunk_k < p.k ? costs.repacked_chunks.value : 0;
  const auto is_slow = [](const OperandView& view, bool is_copied) {
    return is_copied && !is_k_major(view) && view.rows <= 8;
  };
  if (!is_slow(view_a(p), copies_a) && !is_slow(view_b(p), copies_b)) return chunks;
  const double readers = double(max_of(p.m, p.n)) / (costs.readers * num_sms);
  return chunks + costs.repacked_k_tile * (readers < 1 ? readers : 1) *
                      double(ceil_div(min_of(p.k, problem.chunk_k), kWgmmaBlockK));
}

}  // namespace tiledmm

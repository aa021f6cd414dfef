// The operands of groups that are copied before the kernel: of 16 bits and of 8.
#pragma once

#include "kernels/cuda/shared/copy_operands.h"
#include "kernels/cuda/wgmma/grouped_plan.h"

namespace tiledmm::gpu {
namespace {

// Launches the copies that a plan asks for; the problem's operands become them.
template <class T>
Status copy_grouped(OperandCopies<T>& copies, const WgmmaGroupedPlan& plan, FoldedProblem& problem) {
  Status status = Status::ok;
  const auto copy = [&](const OperandView& view, bool along_k) {
    if (status == Status::ok)
      status = copies.add(problem, view, along_k, copied_ld(view.dtype, along_k ? view.k : view.rows));
  };
  if (plan.copies_a) copy(view_a(problem.gemm), plan.a.is_k_major);
  if (plan.copies_b) copy(view_b(problem.gemm), plan.b.is_k_major);
  return status == Status::ok ? copies.launch() : status;
}

}  // namespace
}  // namespace tiledmm::gpu

// Rung 01, naive: three loops, one element of C at a time, on one thread.
//
// Every multiply-add reads two elements from memory: a row of A and a column of B for each output, again and again.
// The column of a row-major B touches a new cache line at every step, so beyond the cache this runs at memory latency.
// One chain of additions per element, in the order of k. It is also the plainest statement of what the others compute.
#include <type_traits>

#include "core/executor.h"
#include "core/plan.h"
#include "platform/element.h"

namespace tiledmm::cpu {
namespace {

template <class A, class B>
void naive(const GemmProblem& problem) {
  const A* a = static_cast<const A*>(problem.a);
  const B* b = static_cast<const B*>(problem.b);
  for (int64_t i = 0; i < problem.m; ++i) {
    for (int64_t j = 0; j < problem.n; ++j) {
      Acc<A> acc = 0;
      for (int64_t p = 0; p < problem.k; ++p) {
        acc += to_acc(a[i * problem.stride_am + p * problem.stride_ak]) *
               to_acc(b[p * problem.stride_bk + j * problem.stride_bn]);
      }
      store_element(problem, i, j, acc);
    }
  }
}

}  // namespace

Status launch_naive(const FoldedProblem& folded, const Plan&, const Executor&) {
  const GemmProblem& problem = folded.gemm;
  visit_operands(problem, [&](auto* a, auto* b) {
    for (int64_t batch_idx = 0; batch_idx < batch_size(problem); ++batch_idx) {
      naive<std::remove_pointer_t<decltype(a)>, std::remove_pointer_t<decltype(b)>>(batch_item(problem, batch_idx));
    }
  });
  return Status::ok;
}

}  // namespace tiledmm::cpu

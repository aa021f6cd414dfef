// Prints the cheapest plan for each problem on standard input (whether it is of fp64 instead of
// 16 bits, m n k batch, then the shared memory of a block), and the time that the model expects: groups, stages, shared
// bytes, units, blocks along n, chunks, columns of a unit, time.
#include "kernels/cuda/skinny/plan.h"

#include <cstdio>

#include "core/summation.h"

int main() {
  using namespace tiledmm;
  long m, n, k, batch, shared;
  int is_f64;
  while (std::scanf("%d %ld %ld %ld %ld %ld", &is_f64, &m, &n, &k, &batch, &shared) == 6) {
    const DType dtype = is_f64 ? DType::f64 : DType::f16;
    const bool is_exchanged = exchanges_operands(dtype, m, n);
    const int64_t chunk_k = is_f64 ? chunk_k_f64(n, k) : mma_chunk_k(n, k, false);
    for (int layout = 0; layout < 2; ++layout) {
      const bool is_k_major = layout == 0;
      const TaskOperand operand{is_k_major, 16};
      const GemmTask task{dtype, is_exchanged ? n : m, is_exchanged ? m : n, k, chunk_k, batch, 0, operand, operand};
      Plan best;
      PlanSearch search(best);
      for_each_skinny_plan(task, 132, shared, [&](const SkinnyPlan& plan) {
        search(plan, is_f64 ? model_microseconds(kSkinnyF64Costs[0].costs, task, plan, 132, 16)
                            : model_microseconds(kSkinnyCosts[0].costs, task, plan, 132, 16));
      });
      const SkinnyPlan& plan = best.as<SkinnyPlan>();
      std::printf("%d %d %d %ld %ld %ld %d %.3f\n", plan.groups, plan.num_stages, plan.shared_bytes,
                  long(plan.num_units), long(plan.blocks_n), long(plan.num_chunks), plan.cols, best.cost_us);
    }
  }
}

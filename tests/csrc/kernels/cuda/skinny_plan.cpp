// Prints the plan that choose_skinny_plan chooses for each problem on standard input (m n k batch, then the shared
// memory of a block), and the time that the model expects: groups, stages, shared bytes, units, blocks along n, chunks,
// time.
#include "kernels/cuda/14_skinny/plan.h"

#include <cstdio>

#include "core/summation.h"

int main() {
  using namespace tiledmm;
  long m, n, k, batch, shared;
  while (std::scanf("%ld %ld %ld %ld %ld", &m, &n, &k, &batch, &shared) == 5) {
    const bool is_transposed = exchanges_operands(m, n);
    for (int layout = 0; layout < 2; ++layout) {
      const bool is_k_major = layout == 0;
      const SkinnyProblem problem{
          is_transposed ? n : m, is_transposed ? m : n, k, mma_chunk_k(n, k, false), batch, is_k_major, is_k_major};
      const SkinnyPlan plan = choose_skinny_plan(problem, 132, shared);
      std::printf("%d %d %d %ld %ld %ld %.3f\n", plan.groups, plan.num_stages, plan.shared_bytes, long(plan.num_units),
                  long(plan.blocks_n), long(plan.num_chunks), model_microseconds(problem, plan, 132, 16));
    }
  }
}

// Prints the cheapest plan of each problem on standard input, m n k batch and two letters of the layout, and the
// time that the model expects: path, copies, tile, splits, whether the tile serves the path and may sum chunks,
// microseconds.
#include "kernels/cuda/wgmma/tf32_plan.h"

#include <cstdio>

int main() {
  using namespace tiledmm;
  long m, n, k, batch;
  char a, b;
  while (std::scanf("%ld %ld %ld %ld %c%c", &m, &n, &k, &batch, &a, &b) == 6) {
    FoldedProblem folded{};
    GemmProblem& problem = folded.gemm;
    problem.m = m, problem.n = n, problem.k = k;
    problem.stride_am = a == 'N' ? k : 1, problem.stride_ak = a == 'N' ? 1 : m;
    problem.stride_bk = b == 'N' ? n : 1, problem.stride_bn = b == 'N' ? 1 : k;
    problem.stride_cm = n, problem.stride_cn = 1;
    problem.num_batch_dims = batch > 1;
    problem.set_dtypes(DType::f32);
    folded.batch_dims[0] = {batch, m * k, k * n, m * n};
    folded.batch_size = batch;
    folded.chunk_k = mma_chunk_k(n, k, true);
    Plan best;
    PlanSearch search(best);
    for_each_tf32_plan(kTf32Costs[0].costs, folded, 132, search);
    const Tf32Plan& plan = best.as<Tf32Plan>();
    std::printf("%d %d %d %d %d %d %d %d %d %.3f\n", int(plan.path), int(plan.copies_a), int(plan.copies_b),
                plan.tiles.shape.block_m, plan.tiles.shape.block_n, int(plan.tiles.splits_chunks),
                int(serves_path(plan.tiles.shape, plan.path)), int(sums_chunks(plan.tiles.shape)), int(folded.chunk_k),
                best.cost_us);
  }
}

// Prints the tile of the cheapest plan and the time that the model expects for each problem on standard input:
// m n k batch, then what else is wanted: 0 nothing, 1 the sums of A's rows, 2 a C in fp32.
#include "kernels/cuda/wgmma/plan.h"

#include <cstdio>

int main() {
  using namespace tiledmm;
  long m, n, k, batch;
  int wanted;
  while (std::scanf("%ld %ld %ld %ld %d", &m, &n, &k, &batch, &wanted) == 5) {
    const bool needs_row_sums = wanted == 1;
    FoldedProblem folded{};
    GemmProblem& problem = folded.gemm;
    problem.m = m, problem.n = n, problem.k = k;
    problem.stride_am = k, problem.stride_ak = 1;
    problem.stride_bk = 1, problem.stride_bn = k;
    problem.stride_cm = n, problem.stride_cn = 1;
    problem.num_batch_dims = batch > 1;
    problem.set_dtypes(DType::bf16);
    if (wanted == 2) problem.dtype_c = DType::f32;
    folded.batch_dims[0] = {batch, m * k, k * n, m * n};
    folded.batch_size = batch;
    folded.chunk_k = mma_chunk_k(n, k, false);
    Plan best, whole;
    PlanSearch search(best), search_whole(whole);
    WgmmaSearch from = wgmma_search(kWgmmaCosts[0].costs, folded, 132);
    for_each_tile_plan(from, 132, search_whole);
    // As if operands of any k could be read in place.
    from.task.a = from.task.b = {true, row_alignment(0, k)};
    from.task.is_c_aligned = n * size_of(problem.dtype_c) % 16 == 0;
    from.task.sums_rows = needs_row_sums;
    from.other_us = 0;
    for_each_tile_plan(from, 132, search);
    const TilePlan& plan = best.as<WgmmaPlan>().tiles;
    std::printf("%d %d %d %d %d %d %d %d %d %d %.3f %.3f\n", plan.shape.block_m, plan.shape.block_n,
                int(plan.splits_chunks), int(sums_chunks(plan.shape, needs_row_sums)), int(sums_rows(plan.shape)),
                int(plan.shares_tiles), plan.cluster_m, plan.cluster_n, int(plan.is_exchanged), int(folded.chunk_k),
                best.cost_us, whole.cost_us);
  }
}

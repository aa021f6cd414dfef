// Prints the tile that plan_tiles chooses and the time that the model expects for each problem on standard input:
// m n k batch, then whether row sums are wanted.
#include "core/wgmma_config.h"

#include <cstdio>

int main() {
  using namespace tiledmm;
  long m, n, k, batch;
  int needs_row_sums;
  while (std::scanf("%ld %ld %ld %ld %d", &m, &n, &k, &batch, &needs_row_sums) == 5) {
    const BatchDim dim{batch, m * k, k * n, m * n};
    GemmProblem problem{};
    problem.m = m, problem.n = n, problem.k = k;
    problem.stride_am = k, problem.stride_ak = 1;
    problem.stride_bk = 1, problem.stride_bn = k;
    problem.stride_cm = n, problem.stride_cn = 1;
    problem.batch_dims = &dim, problem.num_batch_dims = batch > 1;
    problem.dtype = DType::bf16;
    const int alignment = row_alignment(0, k);
    const TilePlan plan =
        plan_tiles({m, n, k, mma_chunk_k(n, k, false), batch, true, alignment, alignment, needs_row_sums != 0}, 132);
    std::printf("%d %d %d %d %d %d %d %d %.3f %.3f\n", plan.shape.block_m, plan.shape.block_n, int(plan.splits_chunks),
                int(sums_chunks(plan.shape)), int(sums_rows(plan.shape)), int(plan.shares_tiles), int(plan.pairs_m),
                int(plan.pairs_n), plan.microseconds, wgmma_microseconds(problem, 132));
  }
}

// Host side of mfma_split: the workspace, and the launches, three for a group of k.
#include "core/plan.h"
#include "kernels/hip/mfma_split/kernel.h"
#include "kernels/split/fix_up.h"
#include "kernels/split/groups.h"

namespace tiledmm::gpu {
namespace {

template <int SHAPE = 0>
Status launch_tiles(const FoldedProblem& problem, int shape, MfmaSplitWork work, int num_dies,
                    const Executor& executor) {
  if constexpr (SHAPE < kNumMfmaSplitShapes) {
    if (shape != SHAPE) return launch_tiles<SHAPE + 1>(problem, shape, work, num_dies, executor);
    using Cfg = SplitConfig<SHAPE>;
    const int64_t tiles_m = ceil_div(problem.gemm.m, Cfg::kBlock), tiles_n = ceil_div(problem.gemm.n, Cfg::kBlock);
    work.order = BlockOrder(tiles_m, tiles_n, num_dies);
    Status status = Status::ok;
    for (; status == Status::ok && work.first_item < problem.batch_size; work.first_item += int(kMaxMfmaItems)) {
      status =
          launch_kernel(mfma_split<Cfg>, tiles_m * tiles_n, min_of(problem.batch_size - work.first_item, kMaxMfmaItems),
                        Cfg::kThreads, 0, executor, work, problem);
    }
    return status;
  } else {
    return Status::unsupported;
  }
}

Status launch_split(const FoldedProblem& problem, const MfmaSplitPlan& plan, char* memory, const Executor& executor) {
  FoldedProblem items = problem;
  const SplitOperands split{
      {split_operand<SplitPlaces::side_by_side>(view_a(problem.gemm), problem, plan.a, items, memory),
       split_operand<SplitPlaces::side_by_side>(view_b(problem.gemm), problem, plan.b, items,
                                                memory + plan.a.bytes())}};
  const Status status =
      launch_kernel(split_operands<SplitPlaces::side_by_side>, num_tiles(split), 1, kSplitThreads, 0, executor, split);
  if (status != Status::ok) return status;
  MfmaSplitWork work{};
  work.terms_a = split.of[0].terms, work.terms_b = split.of[1].terms;
  work.scales_a = split.of[0].scales, work.scales_b = split.of[1].scales;
  work.num_blocks = int(plan.a.num_blocks()), work.num_chunks = int(plan.a.num_chunks());
  work.padded_m = int(plan.a.padded_rows()), work.padded_n = int(plan.b.padded_rows());
  work.steps = SplitSteps(problem, items);
  const Status done = launch_tiles(problem, plan.shape, work, plan.num_dies, executor);
  if (done != Status::ok) return done;
  const FixUpArguments args = fix_up_arguments(problem, split, items, executor.num_cus);
  return launch_kernel(fix_up<false>, args.num_blocks, 1, kFixThreads, 0, executor, args);
}

Status launch_group(const FoldedProblem& problem, MfmaSplitPlan plan, const Executor& executor) {
  lay_out_operands(plan, problem);
  void* memory = executor.allocate(executor.self, size_t(plan.a.bytes() + plan.b.bytes()));
  if (!memory) return Status::out_of_memory;
  const Status status = launch_split(problem, plan, static_cast<char*>(memory), executor);
  executor.release(executor.self, memory);
  return status;
}

}  // namespace

Status launch_mfma_split(const FoldedProblem& problem, const Plan& made, const Executor& executor) {
  return launch_groups(problem, executor, [&](const FoldedProblem& group) {
    return launch_group(group, made.as<MfmaSplitPlan>(), executor);
  });
}

}  // namespace tiledmm::gpu

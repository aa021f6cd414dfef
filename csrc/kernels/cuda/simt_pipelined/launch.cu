// Host side of simt_pipelined: what is packed first, which instance is launched, and the kernel that adds up chunks
// after it.
#include "core/plan.h"
#include "core/transposed.h"
#include "kernels/cuda/shared/copy_operands.h"
#include "kernels/cuda/simt_pipelined/add_split_tiles.h"
#include "kernels/cuda/simt_pipelined/few_rows.h"
#include "kernels/cuda/simt_pipelined/plan.h"
#include "kernels/cuda/simt_pipelined/work.h"

namespace tiledmm::gpu {
namespace {

Status launch_chosen(int shape, const FoldedProblem& problem, const SimtWork& work, const Executor& executor) {
  return visit_instance(kSimtInstances, DType::f32, shape, Status::unsupported, [&](auto instance) {
    return launch_instance<decltype(instance)::value>(shape, problem, work, executor);
  });
}

Status launch_tiles(const SimtPlan& plan, const FoldedProblem& problem, const Executor& executor) {
  const SimtShape& shape = kSimtShapes[plan.shape];
  if (is_grouped(problem.gemm)) {
    SimtWork whole{};
    whole.num_whole = num_tiles(problem, shape.block_m, shape.block_n);
    return launch_chosen(plan.shape, problem, whole, executor);
  }
  const int64_t num_chunks = max_of(1, ceil_div(problem.gemm.k, problem.chunk_k));
  const int64_t num_split = num_tiles(problem.gemm, shape.block_m, shape.block_n) - plan.num_whole;
  SimtWork work{plan.num_whole,
                int32_t(num_split),
                Divisor(ceil_div(problem.gemm.n, shape.block_n)),
                Divisor(num_chunks),
                nullptr,
                plan.packs_a,
                plan.packs_b};
  if (num_split == 0) return launch_chosen(plan.shape, problem, work, executor);
  const int64_t elements = problem.batch_size * num_split * num_chunks * shape.area();
  work.partial = static_cast<float*>(executor.allocate(executor.self, size_t(elements) * sizeof(float)));
  if (!work.partial) return Status::out_of_memory;
  Status status = launch_chosen(plan.shape, problem, work, executor);
  if (status == Status::ok) {
    const SplitTiles tiles{work.partial,        plan.num_whole, work.num_split,
                           int32_t(num_chunks), shape.block_m,  shape.block_n};
    status = launch_early(add_split_tiles, num_split * ceil_div(shape.area(), kAddThreads), num_batch_blocks(problem),
                          kAddThreads, 0, executor, problem, tiles);
  }
  executor.release(executor.self, work.partial);
  return status;
}

}  // namespace

Status launch_simt_pipelined(const FoldedProblem& asked, const Plan& made, const Executor& executor) {
  const SimtPlan& plan = made.as<SimtPlan>();
  FoldedProblem problem = plan.is_exchanged ? transposed(asked) : asked;
  if (plan.few_rows.rows > 0) return launch_few_rows(plan.few_rows, problem, executor);
  // Rows along m (n) that begin at multiples of 128 bytes are read fastest.
  OperandCopies<float> packed(executor);
  Status status = Status::ok;
  if (plan.packs_a) status = packed.add(problem, view_a(problem.gemm), false, round_up(problem.gemm.m, 32));
  if (status == Status::ok && plan.packs_b)
    status = packed.add(problem, view_b(problem.gemm), false, round_up(problem.gemm.n, 32));
  if (status == Status::ok) status = packed.launch();
  if (status != Status::ok) return status;
  return launch_tiles(plan, problem, executor);
}

}  // namespace tiledmm::gpu

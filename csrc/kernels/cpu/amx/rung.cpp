// The entry of amx.
#include "core/rung.h"
#include "kernels/cpu/amx/plan.h"
#include "kernels/cpu/shared/cost.h"
#include "kernels/rungs.h"

namespace tiledmm::cpu {

TILEDMM_IF_LINKED Launcher launch_amx;

namespace {

constexpr double kFlopsPerCycle = 1024 * 0.8;  // of one core; what remains is spent on the ends of tiles

const char* refuse_chip(const Chip& chip) {
  return chip.arch < int(Isa::amx) ? "the CPU lacks AMX, or the system does not let this process use it" : nullptr;
}

const char* refuse(const FoldedProblem& problem, const Chip& chip) {
  if (problem.gemm.dtype_a != DType::f16) return nullptr;
  if (problem.gemm.dtype_b == DType::e4m3) return "its B of 8 bits is widened to bf16";
  return chip.arch < int(Isa::amx_fp16) ? "the CPU's AMX has no fp16" : nullptr;
}

void for_each_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  visit(choose_amx_plan(problem, chip.num_cus), cost_us(problem, chip, kFlopsPerCycle, true));
}

void describe(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  const AmxPlan& own = plan.as<AmxPlan>();
  fields.add("path", kAmxPathNames[int(own.path)]);
  if (own.path == AmxPath::items) return fields.add("task_items", own.items.task_groups * kAmxItemLanes);
  fields.add_tile("block", own.task_m, own.task_n);
  fields.add("block_k", kAmxChunkK);
  fields.add_tile("tasks", own.tasks_m, own.tasks_n);
  fields.add("threads", own.num_threads);
  fields.add_split_k(own.path == AmxPath::split_k ? ceil_div(problem.gemm.k, kAmxChunkK) : 1, "all threads");
  fields.add("rows", own.is_a_in_place ? "in place" : "packed");
  if (own.is_exchanged) fields.add("computes", "C^T");
}

}  // namespace

const Rung amx_rung = {
    .name = "amx",
    .description = "tile instructions of AMX, four tiles of C in registers",
    .is_native = true,
    .order = Order::amx_chunks,
    .takes = {.dtypes = {DType::f16, DType::bf16},
              .num_dtypes = 2,
              .served = "the tile instructions multiply bf16 and fp16",
              .wide_result = true,
              .kept_sum = true,
              .fp8_b = true},
    .refuse_chip = refuse_chip,
    .refuse = refuse,
    .for_each_plan = for_each_plan,
    .describe = describe,
    .launch = launch_amx,
};

}  // namespace tiledmm::cpu

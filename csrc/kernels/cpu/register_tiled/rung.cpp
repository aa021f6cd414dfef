// The entries of rung 04 on the CPU, one for each instruction set.
#include "core/rung.h"
#include "kernels/cpu/register_tiled/plan.h"
#include "kernels/cpu/shared/cost.h"
#include "kernels/cpu/shared/variants.h"
#include "kernels/rungs.h"

namespace tiledmm::cpu {
namespace {

// Flops of one core in a cycle, by the multiply-add instruction. Rows: Isa. Columns: fp32 fp64 fp16 bf16 e4m3.
constexpr double kFlopsPerCycle[kNumIsas][kNumDTypes + 1] = {
    {8, 4, 8, 8, 8}, {16, 8, 16, 16, 16}, {32, 16, 32, 32, 32}, {64, 32, 64, 64, 64}, {64, 32, 64, 128, 64}};
constexpr double kEfficiency = 0.9;

// Instruction sets of one architecture build on each other.
constexpr bool includes(Isa machine, Isa needed) {
  if (needed == Isa::portable || needed == machine) return true;
  return needed != Isa::neon && machine != Isa::neon && int(needed) < int(machine);
}

template <Isa ISA>
const char* refuse_chip(const Chip& chip) {
  return includes(Isa(chip.arch), ISA) ? nullptr : "the CPU lacks the instruction set";
}

template <Isa ISA, DType DTYPE>
void plan_dtype(const FoldedProblem& problem, const Chip& chip, bool is_exchanged, PlanSearch& visit) {
  visit(choose_cpu_plan<ISA, DTYPE>(problem, chip, is_exchanged),
        cost_us(problem, chip, kEfficiency * kFlopsPerCycle[int(ISA)][int(DTYPE)], true));
}

// The dtype whose words B becomes: beside bf16 e4m3 becomes pairs, where an instruction multiplies pairs.
template <Isa ISA>
DType dtype_of_words(const GemmProblem& p) {
  const bool is_of_pairs = ISA == Isa::avx512_bf16 && p.dtype_a == DType::bf16 && p.dtype_b == DType::e4m3;
  return is_of_pairs ? DType::bf16 : p.dtype_b;
}

template <Isa ISA>
void for_each_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  const bool is_exchanged = exchanges_operands<ISA>(problem.gemm);
  switch (is_exchanged ? problem.gemm.dtype_a : dtype_of_words<ISA>(problem.gemm)) {
    case DType::f32:
      return plan_dtype<ISA, DType::f32>(problem, chip, is_exchanged, visit);
    case DType::f64:
      return plan_dtype<ISA, DType::f64>(problem, chip, is_exchanged, visit);
    case DType::f16:
      return plan_dtype<ISA, DType::f16>(problem, chip, is_exchanged, visit);
    case DType::bf16:
      return plan_dtype<ISA, DType::bf16>(problem, chip, is_exchanged, visit);
    case DType::e4m3:
      return plan_dtype<ISA, DType::e4m3>(problem, chip, is_exchanged, visit);
    case DType::e5m2:
      return;  // refused
  }
}

template <Isa ISA>
void describe(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  const CpuPlan& own = plan.as<CpuPlan>();
  const CpuConfig& config = own.config;
  const CpuKernelShape shape = kernel_shape(ISA, dtype_of_words<ISA>(problem.gemm));
  fields.add("path", kCpuPathNames[int(config.path)]);
  if (config.path == CpuPath::long_dots) return;
  if (config.path == CpuPath::items) return fields.add("task_items", config.items.task_groups * shape.thread_n / 2);
  if (config.path == CpuPath::in_place) {
    fields.add_tile("thread", config.in_place.rows, config.in_place.vectors * shape.thread_n / 2);
    fields.add("task_items", config.in_place.task_items);
  } else {
    fields.add_tile("thread", config.thread_m, shape.thread_n);
    fields.add_tile("block", config.block_m, config.block_n);
    fields.add("block_k", kChunkWords * shape.k_per_word);
    fields.add_tile("tasks", config.tasks_m, config.tasks_n);
    fields.add_split_k(config.split_k, "all threads");
  }
  if (own.is_exchanged) fields.add("computes", "C^T");
}

template <Isa ISA>
constexpr Rung rung(const char* name, const char* description, Order order, Launcher* launch) {
  return {.name = name,
          .description = description,
          .number = 4,
          .is_native = true,
          .order = order,
          .takes = {.wide_result = true, .mixed = ISA != Isa::avx512_bf16, .kept_sum = true, .fp8_b = true},
          .refuse_chip = refuse_chip<ISA>,
          .for_each_plan = for_each_plan<ISA>,
          .describe = describe<ISA>,
          .launch = launch};
}

}  // namespace

const Rung register_tiled_portable_rung = rung<Isa::portable>(
    "register_tiled.portable", "packed panels, micro-tile in registers, 128-bit vectors of the baseline",
    Order::chunks_unfused, launch_register_tiled_portable);
const Rung register_tiled_neon_rung =
    rung<Isa::neon>("register_tiled.neon", "the same with NEON", Order::chunks, launch_register_tiled_neon);
const Rung register_tiled_avx2_rung =
    rung<Isa::avx2>("register_tiled.avx2", "the same with AVX2, FMA, F16C", Order::chunks, launch_register_tiled_avx2);
const Rung register_tiled_avx512_rung =
    rung<Isa::avx512>("register_tiled.avx512", "the same with AVX-512", Order::chunks, launch_register_tiled_avx512);
const Rung register_tiled_avx512_bf16_rung =
    rung<Isa::avx512_bf16>("register_tiled.avx512_bf16", "the same with AVX-512 and VDPBF16PS for bf16",
                           Order::chunks_of_pairs, launch_register_tiled_avx512_bf16);

}  // namespace tiledmm::cpu

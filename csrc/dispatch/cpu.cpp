// CPU rows of the dispatcher: instruction sets, kernels, cost model.
#include "dispatch/cpu.h"

#include <thread>

#include "core/math.h"
#include "kernels/cpu/kernels.h"

namespace tiledmm {
namespace {

constexpr double kCpuGHz = 3.5;
constexpr double kBytesPerUs = 20e3;              // memory, one core
constexpr double kStepsPerCycle[] = {0, 0.5, 4};  // flops of rungs 01 and 02, which no vector width speeds up much
constexpr double kLaunchUs = 0.1, kThreadsUs = 4;

//                                        fp32 fp64 fp16 bf16
constexpr CpuChip kChips[kNumIsas] = {{Isa::portable, {8, 4, 8, 8}},
                                      {Isa::neon, {16, 8, 16, 16}},
                                      {Isa::avx2, {32, 16, 32, 32}},
                                      {Isa::avx512, {64, 32, 64, 64}},
                                      {Isa::avx512_bf16, {64, 32, 64, 128}}};

#if defined(__x86_64__)
constexpr bool kIsX86 = true, kIsArm = false;
#define TILEDMM_IF_X86(function) cpu::function
#define TILEDMM_IF_ARM(function) nullptr
#elif defined(__aarch64__)
constexpr bool kIsX86 = false, kIsArm = true;
#define TILEDMM_IF_X86(function) nullptr
#define TILEDMM_IF_ARM(function) cpu::function
#else
constexpr bool kIsX86 = false, kIsArm = false;
#define TILEDMM_IF_X86(function) nullptr
#define TILEDMM_IF_ARM(function) nullptr
#endif

constexpr CpuKernel kKernels[kNumCpuKernels] = {
    {"naive", "three loops", 1, Isa::portable, true, cpu::launch_naive},
    {"block_tiled", "block tiles copied near, threads", 2, Isa::portable, true, cpu::launch_block_tiled},
    {"register_tiled.portable", "packed panels, micro-tile in registers, 128-bit vectors of the baseline", 4,
     Isa::portable, true, cpu::launch_register_tiled_portable},
    {"register_tiled.neon", "the same with NEON", 4, Isa::neon, kIsArm, TILEDMM_IF_ARM(launch_register_tiled_neon)},
    {"register_tiled.avx2", "the same with AVX2, FMA, F16C", 4, Isa::avx2, kIsX86,
     TILEDMM_IF_X86(launch_register_tiled_avx2)},
    {"register_tiled.avx512", "the same with AVX-512", 4, Isa::avx512, kIsX86,
     TILEDMM_IF_X86(launch_register_tiled_avx512)},
    {"register_tiled.avx512_bf16", "the same with AVX-512 and VDPBF16PS for bf16", 4, Isa::avx512_bf16, kIsX86,
     TILEDMM_IF_X86(launch_register_tiled_avx512_bf16)},
};

struct Machine {
  bool has[kNumIsas] = {};
  Isa best = Isa::portable;
  Machine() {
    has[int(Isa::portable)] = true;
#if defined(__x86_64__)
    __builtin_cpu_init();
    has[int(Isa::avx2)] =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    has[int(Isa::avx512)] = has[int(Isa::avx2)] && __builtin_cpu_supports("avx512f") &&
                            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512vl");
    has[int(Isa::avx512_bf16)] = has[int(Isa::avx512)] && __builtin_cpu_supports("avx512bf16");
#elif defined(__aarch64__)
    has[int(Isa::neon)] = true;
#endif
    for (int isa = 0; isa < kNumIsas; ++isa) {
      if (has[isa]) best = Isa(isa);
    }
  }
};

const Machine& machine() {
  static const Machine machine;
  return machine;
}

}  // namespace

const CpuChip& cpu_chip(Isa isa) { return kChips[int(isa)]; }
bool has_isa(Isa isa) { return machine().has[int(isa)]; }
Isa best_isa() { return machine().best; }
int32_t num_cores() { return int32_t(std::thread::hardware_concurrency()); }
const CpuKernel* cpu_kernels() { return kKernels; }

double measure_fma_peak(DType dtype, const Executor& executor) {
  switch (best_isa()) {
#if defined(__x86_64__)
    case Isa::avx512_bf16:
      return cpu::fma_peak_avx512_bf16(dtype, executor);
    case Isa::avx512:
      return cpu::fma_peak_avx512(dtype, executor);
    case Isa::avx2:
      return cpu::fma_peak_avx2(dtype, executor);
#elif defined(__aarch64__)
    case Isa::neon:
      return cpu::fma_peak_neon(dtype, executor);
#endif
    default:
      return cpu::fma_peak_portable(dtype, executor);
  }
}

double cpu_cost_us(const CpuKernel& kernel, const GemmProblem& problem, int32_t num_threads) {
  double batch = 1;
  for (int32_t d = 0; d < problem.num_batch_dims; ++d) batch *= double(problem.batch_dims[d].size);
  const double m = double(problem.m), n = double(problem.n), k = double(problem.k);
  const double flops = 2 * m * n * k * batch;
  const double bytes = (m * k + k * n + m * n) * batch * double(size_of(problem.dtype));
  const double rate =
      kernel.rung < 4 ? kStepsPerCycle[kernel.rung] : 0.9 * cpu_chip(kernel.isa).flops_per_cycle[int(problem.dtype)];
  const double compute_us = flops / (rate * kCpuGHz * 1e3), memory_us = bytes / kBytesPerUs;
  const double one_thread_us = compute_us > memory_us ? compute_us : memory_us;
  const double many_threads_us = one_thread_us / num_threads + kThreadsUs;
  const bool is_parallel = kernel.rung > 1 && num_threads > 1 && many_threads_us < one_thread_us;
  return kLaunchUs + (is_parallel ? many_threads_us : one_thread_us);
}

}  // namespace tiledmm

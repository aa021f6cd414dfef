// candidates -> legal -> cheapest, the same for every device.
#include "dispatch/select.h"

#include <cstring>

#include "dispatch/cpu.h"
#include "dispatch/gpu.h"

namespace tiledmm {
namespace {

constexpr const char* kGroups[kFirstKernel] = {"auto", "native", "register_tiled"};

// Instruction sets of one architecture build on each other.
bool includes(Isa machine, Isa needed) {
  if (needed == Isa::portable || needed == machine) return true;
  return needed != Isa::neon && machine != Isa::neon && int(needed) < int(machine);
}

struct Names {
  const char* of[kFirstKernel + kNumCpuKernels + kNumGpuKernels];
  int32_t count = 0;
  Names() {
    for (const char* group : kGroups) of[count++] = group;
    for (int32_t idx = 0; idx < kNumCpuKernels; ++idx) of[count++] = cpu_kernels()[idx].name;
    for (int32_t idx = 0; idx < kNumGpuKernels; ++idx) {
      bool is_new = true;
      for (int32_t i = 0; i < count; ++i) is_new = is_new && std::strcmp(of[i], gpu_kernels()[idx].name) != 0;
      if (is_new) of[count++] = gpu_kernels()[idx].name;
    }
  }
};

const Names& names() {
  static const Names names;
  return names;
}

bool admits(int32_t algorithm, int32_t kernel_idx) {
  if (algorithm == kAuto) return true;
  return algorithm < kFirstKernel ? cpu_kernels()[kernel_idx].rung == 4 : algorithm - kFirstKernel == kernel_idx;
}

}  // namespace

const char* algorithm_name(int32_t algorithm) { return names().of[algorithm]; }
int32_t num_algorithms() { return names().count; }

int32_t select_cpu(const GemmProblem& problem, int32_t algorithm, Isa isa, int32_t num_threads, Candidate* candidates) {
  int32_t choice = -1;
  double choice_cost = 0;
  for (int32_t idx = 0; idx < kNumCpuKernels; ++idx) {
    const CpuKernel& kernel = cpu_kernels()[idx];
    Candidate candidate{&kernel, true, "", 0};
    if (!kernel.is_compiled) {
      candidate.is_legal = false;
      candidate.reason = "not compiled for this architecture";
    } else if (!includes(isa, kernel.isa)) {
      candidate.is_legal = false;
      candidate.reason = "the CPU lacks the instruction set";
    } else if (candidates || admits(algorithm, idx)) {
      candidate.cost_us = cpu_cost_us(kernel, problem, num_threads);
    }
    if (candidates) candidates[idx] = candidate;
    // On a tie the later kernel, of the richer instruction set, wins.
    if (candidate.is_legal && admits(algorithm, idx) && (choice < 0 || candidate.cost_us <= choice_cost)) {
      choice = idx;
      choice_cost = candidate.cost_us;
    }
  }
  return choice;
}

}  // namespace tiledmm

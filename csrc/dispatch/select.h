// Which kernel computes a problem: candidates -> legal -> cheapest. Pure: the same arguments, the same answer.
#pragma once

#include "core/registry.h"

namespace tiledmm {

// Algorithms as the user names them: these three, then the CPU's kernels in order, then those that only GPUs have.
enum : int32_t { kAuto = 0, kNative = 1, kRegisterTiled = 2, kFirstKernel = 3 };
const char* algorithm_name(int32_t algorithm);
int32_t num_algorithms();

struct Candidate {
  const CpuKernel* kernel;
  bool is_legal;
  const char* reason;  // why it is not legal; else empty
  double cost_us;
};

// Judges every kernel of the registry for a machine whose instruction sets end with `isa`, and returns the index of
// the cheapest legal one among those that `algorithm` admits, -1 if there is none. `candidates` may be null.
// Costs of the kernels keep one order for all m, so that a row's bits do not depend on m.
int32_t select_cpu(const GemmProblem& problem, int32_t algorithm, Isa isa, int32_t num_threads, Candidate* candidates);

struct GpuCandidate {
  const GpuKernel* kernel;
  const char* reason;  // why it is not legal; null: it is
  double cost_us;
};

struct GpuChip;
// The same for a GPU.
int32_t select_gpu(const GemmProblem& problem, int32_t algorithm, const GpuChip& chip, GpuCandidate* candidates);

}  // namespace tiledmm

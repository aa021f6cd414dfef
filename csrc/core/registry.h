// What the dispatcher knows of one kernel: a row of data and a function.
#pragma once

#include <cstdint>

#include "core/api.h"
#include "core/problem.h"

namespace tiledmm {

// CPU instruction sets; a machine has a set of them.
enum class Isa : int32_t { portable = 0, neon = 1, avx2 = 2, avx512 = 3, avx512_bf16 = 4 };
inline constexpr int kNumIsas = 5;
inline constexpr const char* kIsaNames[kNumIsas] = {"portable", "neon", "avx2", "avx512", "avx512_bf16"};
inline constexpr const char* kDTypeNames[kNumDTypes] = {"fp32", "fp64", "fp16", "bf16"};

struct CpuKernel {
  const char* name;         // as given by the user
  const char* description;  // what this rung adds
  int32_t rung;             // number of its file
  Isa isa;                  // needed from the machine
  bool is_compiled;         // for this architecture
  Status (*launch)(const GemmProblem& problem, const Executor& executor);
};

struct GpuKernel {
  const char* name;
  const char* description;
  int32_t rung;
  bool is_mma;                                                            // needs a matrix instruction for the dtype
  bool is_native;                                                         // one of those that `native` admits
  Status (*launch)(const GpuProblem& problem, const Executor& executor);  // null: not compiled
};

}  // namespace tiledmm

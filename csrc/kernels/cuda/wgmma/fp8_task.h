// What the launcher of wgmma_fp8 knows before it chooses an instance of the kernel.
#pragma once

#include "kernels/cuda/wgmma/fp8_plan.h"
#include "kernels/cuda/wgmma/task.h"

namespace tiledmm::cuda {

// What is compiled together: all tiles for the dtypes of A and B, a C of fp32 or of 16 bits, and a kind of factors.
struct Fp8Instance {
  DType a, b;
  bool is_c_f32;
  Factors factors;
};
inline constexpr Fp8Instance kFp8Instances[] = {
    {DType::e4m3, DType::e4m3, false, Factors::rows},    {DType::e4m3, DType::e4m3, true, Factors::rows},
    {DType::e4m3, DType::e4m3, false, Factors::blocks},  {DType::e4m3, DType::e4m3, true, Factors::blocks},
    {DType::e4m3, DType::e4m3, false, Factors::columns}, {DType::e4m3, DType::e4m3, true, Factors::columns},
    {DType::e4m3, DType::e5m2, false, Factors::rows},    {DType::e4m3, DType::e5m2, true, Factors::rows},
    {DType::e5m2, DType::e4m3, false, Factors::rows},    {DType::e5m2, DType::e4m3, true, Factors::rows},
    {DType::e5m2, DType::e5m2, false, Factors::rows},    {DType::e5m2, DType::e5m2, true, Factors::rows},
};

// The index of the one that serves a problem; -1: there is none.
template <size_t COUNT>
constexpr int find_fp8_instance(const Fp8Instance (&instances)[COUNT], const GemmProblem& p) {
  for (int i = 0; i < int(COUNT); ++i) {
    const Fp8Instance& own = instances[i];
    if (own.a == p.dtype_a && own.b == p.dtype_b && own.is_c_f32 == (p.dtype_c == DType::f32) &&
        own.factors == factors_of(p))
      return i;
  }
  return -1;
}

// Launches the kernel of the plan's tile; the reason why not, else null.
template <int INSTANCE>
const char* launch_fp8_instance(const Task& task);

}  // namespace tiledmm::cuda

// GPUs as data: chips, the kernels that exist, what each can serve and what it costs. Builds without any GPU toolkit.
#pragma once

#include "core/registry.h"

namespace tiledmm {

// One row per architecture. Rates are those of the whole chip, from the vendors' data sheets.
struct GpuChip {
  const char* name;    // as in "cuda:sm_90"
  const char* device;  // cuda, hip, host
  int32_t arch;        // as in platform/gpu.h
  int32_t num_cus;
  int32_t warp_size;
  int32_t max_shared_bytes;  // of one block
  double tbytes_per_second;
  double simt_tflops[kNumDTypes];  // by DType: fp32 fp64 fp16 bf16; the last two in fp32
  double mma_tflops[kNumDTypes];   // 0: no matrix instruction
  bool is_mma_fp32_tf32;           // the matrix instruction for fp32 rounds to tf32
};

// The row of an architecture or of a name; null where it is not known.
const GpuChip* find_gpu_chip(int32_t arch);
const GpuChip* find_gpu_chip(const char* name);
inline constexpr int kNumGpuChips = 8;
const GpuChip* gpu_chips();

inline constexpr int kNumGpuKernels = 15;
inline constexpr int32_t kFirstNativeRung = 9;  // of kernels/cuda
const GpuKernel* gpu_kernels();
bool has_gpu_kernels();

// Why a kernel cannot serve a problem on a chip; null if it can.
const char* refuse_gpu(const GpuKernel& kernel, const GemmProblem& problem, const GpuChip& chip);

// Microseconds that the model predicts (gpu_cost.cpp).
double gpu_cost_us(const GpuKernel& kernel, const GemmProblem& problem, const GpuChip& chip);

// Computes a problem on executor.device_idx. `algorithm` as in select.h.
Status launch_gpu(const GemmProblem& problem, int32_t algorithm, Executor executor, char* reason, size_t capacity);

}  // namespace tiledmm

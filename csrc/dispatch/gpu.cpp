// GPU rows of the dispatcher: chips, kernels, cost model, the launch.
#include "dispatch/gpu.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/math.h"
#include "core/summation.h"
#include "dispatch/fold_batch.h"
#include "dispatch/select.h"
#include "kernels/gpu/kernels.h"

namespace tiledmm {
namespace {

// Data sheets of NVIDIA (A100, H100, H200) and AMD (MI250X, one die; MI300X; MI355X; RX 7900 XTX; RX 9070 XT).
constexpr GpuChip kChips[kNumGpuChips] = {
    {"sm_80", "cuda", 80, 108, 32, 163 << 10, 1.94, {19.5, 9.7, 19.5, 19.5}, {156, 19.5, 312, 312}, true},
    {"sm_90", "cuda", 90, 132, 32, 227 << 10, 4.2, {66.9, 33.5, 66.9, 66.9}, {495, 66.9, 989, 989}, true},
    {"gfx90a", "hip", 0x90a, 110, 64, 64 << 10, 1.6, {23.9, 23.9, 23.9, 23.9}, {47.9, 47.9, 191, 191}, false},
    {"gfx942", "hip", 0x942, 304, 64, 64 << 10, 5.3, {163, 81.7, 163, 163}, {163, 163, 1307, 1307}, false},
    {"gfx950", "hip", 0x950, 256, 64, 160 << 10, 8.0, {157, 78.6, 157, 157}, {157, 78.6, 2300, 2300}, false},
    {"gfx1100", "hip", 0x1100, 96, 32, 64 << 10, 0.96, {61, 1.9, 61, 61}, {0, 0, 123, 123}, false},
    {"gfx1201", "hip", 0x1201, 64, 32, 64 << 10, 0.64, {48.7, 1.5, 48.7, 48.7}, {0, 0, 195, 195}, false},
    {"host", "host", 0, 4, 32, 227 << 10, 0.02, {0.001, 0.001, 0.001, 0.001}, {0.001, 0.001, 0.001, 0.001}, false},
};

#if defined(TILEDMM_WITH_GPU)
#define TILEDMM_IF_GPU(function) gpu::function
constexpr bool kHasKernels = true;
#else
#define TILEDMM_IF_GPU(function) nullptr
constexpr bool kHasKernels = false;
#endif

#if defined(TILEDMM_WITH_CUDA)
#define TILEDMM_IF_CUDA(function) gpu::function
#else
#define TILEDMM_IF_CUDA(function) nullptr
#endif

#if defined(TILEDMM_WITH_WGMMA)
#define TILEDMM_IF_WGMMA(function) gpu::function
#else
#define TILEDMM_IF_WGMMA(function) nullptr
#endif

constexpr GpuKernel kKernels[kNumGpuKernels] = {
    {"naive", "one thread for each output", 1, false, false, TILEDMM_IF_GPU(launch_naive)},
    {"block_tiled", "block tiles of 16 in shared memory, of 32 on NVIDIA for large results", 2, false, false,
     TILEDMM_IF_GPU(launch_block_tiled)},
    {"block_tiled.8", "the same with tiles of 8", 2, false, false, TILEDMM_IF_GPU(launch_block_tiled_8)},
    {"block_tiled.32", "the same with tiles of 32", 2, false, false, TILEDMM_IF_GPU(launch_block_tiled_32)},
    {"row_register_tiled", "one operand straight to registers, the other in shared memory", 3, false, false,
     TILEDMM_IF_GPU(launch_row_register_tiled)},
    {"register_tiled", "thread tiles of 8 x 8 in registers, 4 x 4 for small results and fp64", 4, false, true,
     TILEDMM_IF_GPU(launch_register_tiled)},
    {"register_tiled.4x4", "the same with thread tiles of 4 x 4", 4, false, false,
     TILEDMM_IF_GPU(launch_register_tiled_4x4)},
    {"mma", "matrix instructions, nothing cached", 5, true, false, TILEDMM_IF_GPU(launch_mma)},
    {"mma_cached", "A and B cached in shared memory", 6, true, false, TILEDMM_IF_GPU(launch_mma_cached)},
    {"mma_double_buffered", "the next k tile prefetched into registers", 7, true, false,
     TILEDMM_IF_GPU(launch_mma_double_buffered)},
    {"mma_output_cached", "C kept in the accumulators", 8, true, true, TILEDMM_IF_GPU(launch_mma_output_cached)},
    {"simt_pipelined", "fp32 multiply-adds fed by asynchronous copies", 9, false, true,
     TILEDMM_IF_CUDA(launch_simt_pipelined)},
    {"mma_async", "matrix instructions fed by asynchronous copies", 10, true, true, TILEDMM_IF_CUDA(launch_mma_async)},
    {"wgmma", "Hopper: copy engine, warp specialisation, warpgroup matrix instructions", 11, true, true,
     TILEDMM_IF_WGMMA(launch_wgmma)},
    {"skinny", "few rows: the other operand streams through the matrix instructions once", 14, true, true,
     TILEDMM_IF_CUDA(launch_skinny)},
};

static_assert(kKernels[kNumGpuKernels - 1].name, "every kernel has its row");

}  // namespace

const GpuChip* gpu_chips() { return kChips; }
const GpuKernel* gpu_kernels() { return kKernels; }
bool has_gpu_kernels() { return kHasKernels; }

const GpuChip* find_gpu_chip(int32_t arch) {
  for (const GpuChip& chip : kChips) {
    if (chip.arch == arch) return &chip;
  }
  // NVIDIA's chips keep what sm_80 had; wgmma is of sm_90 alone.
  return arch >= 80 && arch < 0x900 ? &kChips[0] : nullptr;
}

const GpuChip* find_gpu_chip(const char* name) {
  for (const GpuChip& chip : kChips) {
    if (std::strcmp(chip.name, name) == 0) return &chip;
  }
  return std::strncmp(name, "sm_", 3) == 0 ? find_gpu_chip(std::atoi(name + 3)) : nullptr;
}

namespace {

const char* refuse_tf32(const GemmProblem& problem, const GpuChip& chip) {
  if (problem.dtype == DType::f32 && chip.is_mma_fp32_tf32 && !problem.allow_tf32) {
    return "the chip's matrix instruction for fp32 rounds to tf32, which torch.backends.cuda.matmul.fp32_precision = "
           "'tf32' would allow";
  }
  return nullptr;
}

const char* refuse_simt_pipelined(const GemmProblem& problem) {
  if (problem.dtype != DType::f32) return "it serves fp32";
  return nullptr;
}

const char* refuse_mma_async(const GemmProblem& problem, const GpuChip& chip) { return refuse_tf32(problem, chip); }

const char* refuse_skinny(const GemmProblem& problem) {
  if (size_of(problem.dtype) != 2) return "it serves fp16 and bf16";
  if (problem.m > 64 && problem.n > 64) return "it serves up to 64 rows or columns";
  return nullptr;
}

const char* refuse_wgmma(const GemmProblem& problem, const GpuChip& chip) {
  constexpr int64_t kLimit = int64_t(1) << 30;
  if (chip.arch != 90) return "the chip has no wgmma instruction";
  if (problem.dtype == DType::f64) return "it serves fp16, bf16 and fp32 rounded to tf32";
  if (const char* reason = refuse_tf32(problem, chip)) return reason;
  if (problem.k == 0) return "k is 0";
  if (problem.m >= kLimit || problem.n >= kLimit || problem.k >= kLimit) return "a size is 2^30 or more";
  if (problem.stride_cm != 1 && problem.stride_cn != 1 && problem.m != 1 && problem.n != 1)
    return "C has no unit stride";
  // Tiles, each for every chunk of k, are counted in 32 bits; the smallest are of 64 x 32.
  double num_tiles = double(ceil_div(problem.m, 64)) * double(ceil_div(problem.n, 32));
  for (int32_t d = 0; d < problem.num_batch_dims; ++d) num_tiles *= double(problem.batch_dims[d].size);
  if (num_tiles * double(ceil_div(problem.k, kChunkUnit)) >= double(kLimit)) return "it has 2^30 tiles or more";
  return nullptr;
}

// The native kernels have one order of summation for each precision. Where fp32 may round to tf32, that is the matrix
// instructions': what multiplies in fp32 serves those who ask for it by name.
bool is_of_another_order(const GpuKernel& kernel, const GemmProblem& problem, const GpuChip& chip) {
  return kernel.rung == 9 && problem.allow_tf32 && chip.is_mma_fp32_tf32;
}

// Only rung 11 sums the rows of a 16-bit A, where A is m-major and B is n-major, of a single product.
const char* refuse_row_sums(const GpuKernel& kernel, const GemmProblem& problem) {
  if (!problem.row_sums) return nullptr;
  const bool is_served = kernel.rung == 11 && size_of(problem.dtype) == 2 && problem.m > 1 && problem.n > 1 &&
                         problem.k > 1 && problem.stride_am == 1 && problem.stride_ak != 1 && problem.stride_bn == 1 &&
                         problem.stride_bk != 1 && problem.stride_cn == 1 && problem.num_batch_dims == 0;
  return is_served ? nullptr : "it does not sum rows";
}

}  // namespace

const char* refuse_gpu(const GpuKernel& kernel, const GemmProblem& problem, const GpuChip& chip) {
  if (problem.num_batch_dims > kMaxGpuBatchDims) {
    return "more than 6 batch dimensions that do not fold into fewer";
  }
  if (const char* reason = refuse_row_sums(kernel, problem)) return reason;
  if (kernel.rung >= kFirstNativeRung) {
    if (std::strcmp(chip.device, "hip") == 0) return "it is for NVIDIA's chips";
    if (has_gpu_kernels() && !kernel.launch) return "this build lacks it: it was not compiled for this chip";
  }
  if (kernel.rung == 9) return refuse_simt_pipelined(problem);
  if (kernel.rung == 10) return refuse_mma_async(problem, chip);
  if (kernel.rung == 11) return refuse_wgmma(problem, chip);
  if (kernel.rung == 14) return refuse_skinny(problem);
  if (!kernel.is_mma) return nullptr;
  if (chip.mma_tflops[int(problem.dtype)] == 0) return "the chip has no matrix instruction for this dtype";
  return refuse_tf32(problem, chip);
}

int32_t select_gpu(const GemmProblem& problem, int32_t algorithm, const GpuChip& chip, GpuCandidate* candidates) {
  int32_t choice = -1;
  double choice_cost = 0;
  for (int32_t idx = 0; idx < kNumGpuKernels; ++idx) {
    const GpuKernel& kernel = kKernels[idx];
    const bool is_named = std::strcmp(algorithm_name(algorithm), kernel.name) == 0;
    const bool is_admitted = is_named || ((algorithm == kAuto || (algorithm == kNative && kernel.is_native)) &&
                                          !is_of_another_order(kernel, problem, chip));
    if (!candidates && !is_admitted) continue;
    const char* reason = refuse_gpu(kernel, problem, chip);
    if (candidates) candidates[idx] = {&kernel, reason, reason ? 0 : gpu_cost_us(kernel, problem, chip)};
    if (!is_admitted || reason) continue;
    // The native kernels have one order of summation, the rungs before them their own: where there are native ones,
    // only they compete, so that a row's bits do not depend on which one is cheapest for its m.
    const bool is_native = kernel.rung >= kFirstNativeRung;
    const bool is_choice_native = choice >= 0 && kKernels[choice].rung >= kFirstNativeRung;
    double cost_us = -1;  // as long as there is nothing to compare it with
    if (choice >= 0 && is_native == is_choice_native) {
      cost_us = gpu_cost_us(kernel, problem, chip);
      if (choice_cost < 0) choice_cost = gpu_cost_us(kKernels[choice], problem, chip);
      if (cost_us >= choice_cost) continue;
    } else if (is_choice_native) {
      continue;
    }
    choice = idx;
    choice_cost = cost_us;
  }
  return choice;
}

Status launch_gpu(const GemmProblem& unfolded, int32_t algorithm, Executor executor, char* reason, size_t capacity) {
#if defined(TILEDMM_WITH_GPU)
  int32_t arch = 0;
  if (!gpu::use_device(executor.device_idx, arch, executor.num_cus, executor.warp_size)) {
    const char* why = gpu::take_error();
    std::snprintf(reason, capacity, "GPU %d cannot be used: %s", int(executor.device_idx),
                  why ? why : "there is none of this index");
    return why ? Status::launch_failed : Status::unsupported;
  }
  const GpuChip* chip = find_gpu_chip(arch);
  if (!chip) {
    std::snprintf(reason, capacity,
                  "there are no kernels for this GPU; supported are NVIDIA's from sm_80 on, gfx90a, "
                  "gfx942, gfx950, gfx1100 and gfx1201");
    return Status::unsupported;
  }
  BatchDim dims[kMaxBatchDims];
  const GemmProblem folded = fold_batch(unfolded, dims);
  const int32_t choice = select_gpu(folded, algorithm, *chip, nullptr);
  if (choice < 0) {
    const char* why = "it has no GPU kernel";
    for (const GpuKernel& kernel : kKernels) {
      if (std::strcmp(kernel.name, algorithm_name(algorithm)) == 0) why = refuse_gpu(kernel, folded, *chip);
    }
    std::snprintf(reason, capacity, "algorithm '%s' cannot serve this call on %s: %s", algorithm_name(algorithm),
                  chip->name, why);
    return Status::unsupported;
  }
  GpuProblem problem{};
  problem.gemm = folded;
  problem.gemm.batch_dims = nullptr;
  problem.batch_size = 1;
  problem.chunk_k = chunk_k(unfolded);
  for (int32_t d = 0; d < folded.num_batch_dims; ++d) {
    problem.batch_dims[d] = folded.batch_dims[d];
    problem.batch_size *= folded.batch_dims[d].size;
  }
  if (folded.m == 0 || folded.n == 0 || problem.batch_size == 0) return Status::ok;
  const GpuKernel& kernel = kKernels[choice];
  const Status status = kernel.launch(problem, executor);
  if (status == Status::out_of_memory) {
    std::snprintf(reason, capacity, "no memory for the workspace of algorithm '%s'", kernel.name);
  } else if (status == Status::launch_failed) {
    const char* why = gpu::take_error();
    std::snprintf(reason, capacity, "the launch of algorithm '%s' on %s failed: %s", kernel.name, chip->name,
                  why ? why : "it takes no such operands");
  }
  return status;
#else
  (void)unfolded, (void)algorithm, (void)executor;
  std::snprintf(reason, capacity,
                "this build has no GPU kernels; build it again where torch has CUDA or ROCm, and nvcc "
                "or hipcc is on the PATH");
  return Status::unsupported;
#endif
}

}  // namespace tiledmm

// The C interface of core/api.h.
#include "core/api.h"

#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "core/config.h"
#include "dispatch/cpu.h"
#include "dispatch/fold_batch.h"
#include "dispatch/gpu.h"
#include "dispatch/select.h"

#if !defined(TILEDMM_VERSION)
#define TILEDMM_VERSION "unknown"
#endif
#if !defined(TILEDMM_GPU_ARCHS)
#define TILEDMM_GPU_ARCHS ""
#endif

namespace tiledmm {
namespace {

std::string quoted(const std::string& text) { return '"' + text + '"'; }

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", value);
  return text;
}

std::string field(const char* key, const std::string& value) { return quoted(key) + ": " + value; }

std::vector<std::string> words_of(const char* text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// The elements of a JSON list or object, with the separators between them.
struct Joined {
  std::string text;
  void add(const std::string& element) { text += (text.empty() ? "" : ", ") + element; }
};

// Whether some chip's kernel takes a dtype; for fp32, tf32 allowed.
bool serves_dtype(const GpuKernel& kernel, DType dtype) {
  GemmProblem problem{};
  problem.m = problem.n = problem.k = 64;
  problem.stride_am = problem.stride_bk = problem.stride_cm = 64;
  problem.stride_ak = problem.stride_bn = problem.stride_cn = 1;
  problem.dtype = dtype;
  problem.allow_tf32 = true;
  for (int32_t row = 0; row < kNumGpuChips; ++row) {
    const GpuChip& chip = gpu_chips()[row];
    if (chip.arch && !refuse_gpu(kernel, problem, chip)) return true;
  }
  return false;
}

// `kernel`: of a GPU, null for what takes every dtype.
std::string algorithm_text(const char* name, const char* device, int32_t rung, const char* reason,
                           const char* description, const GpuKernel* kernel = nullptr) {
  std::string dtypes;
  for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
    if (kernel && !serves_dtype(*kernel, DType(dtype))) continue;
    dtypes += (dtypes.empty() ? "" : ", ") + quoted(kDTypeNames[dtype]);
  }
  Joined fields;
  fields.add(field("name", quoted(name)));
  fields.add(field("device", quoted(device)));
  fields.add(field("rung", std::to_string(rung)));
  fields.add(field("dtypes", "[" + dtypes + "]"));
  fields.add(field("available", *reason ? "false" : "true"));
  fields.add(field("reason", quoted(reason)));
  fields.add(field("description", quoted(description)));
  return "{" + fields.text + "}";
}

size_t copy_text(const std::string& from, char* to, size_t capacity) {
  std::memcpy(to, from.data(), from.size() < capacity ? from.size() : capacity);
  return from.size();
}

// The tile numbers that rung 04 would use, for explain. The rows of its micro-tiles are those of its kMaxThreadM.
std::string config_text(const GemmProblem& problem, const CpuKernel& kernel, int32_t num_threads) {
  const int64_t batch = batch_size(problem);
  if (kernel.rung != 4 || problem.m == 0 || problem.n == 0 || batch == 0) return "{}";
  const bool is_wide = kernel.isa == Isa::avx512 || kernel.isa == Isa::avx512_bf16;
  const int64_t max_thread_m = is_wide ? 6 : kernel.isa == Isa::neon ? 5 : kernel.isa == Isa::avx2 ? 3 : 2;
  const int64_t thread_n = is_wide ? 16 : kernel.isa == Isa::avx2 ? 8 : 4;
  const bool is_pairs = problem.dtype == DType::bf16 && kernel.isa == Isa::avx512_bf16;
  const int64_t acc_bytes = problem.dtype == DType::f64 ? 8 : 4;
  const CpuKernelShape shape{max_thread_m, thread_n,  is_pairs ? 2 : 1,
                             acc_bytes,    acc_bytes, acc_bytes == size_of(problem.dtype)};
  const CpuConfig config = choose_cpu_config(problem.m, problem.n, problem.k, batch, problem.stride_bn == 1,
                                             problem.stride_bk == 1, num_threads, shape);
  Joined fields;
  fields.add(field("thread_m", std::to_string(config.thread_m)));
  fields.add(field("thread_n", std::to_string(shape.thread_n)));
  fields.add(field("block_m", std::to_string(config.block_m)));
  fields.add(field("block_n", std::to_string(config.block_n)));
  fields.add(field("block_k", std::to_string(kChunkWords * shape.k_per_word)));
  fields.add(field("tasks", quoted((std::to_string(config.tasks_m) + "x" + std::to_string(config.tasks_n)).c_str())));
  fields.add(field("split_k", std::to_string(config.split_k)));
  fields.add(field("path", quoted(kCpuPathNames[int(config.path)])));
  return "{" + fields.text + "}";
}

// One candidate of explain; `reason` is null for a legal one.
std::string candidate_text(const char* name, const char* reason, double cost_us, const std::string& config) {
  Joined fields;
  fields.add(field("algorithm", quoted(name)));
  fields.add(field("legal", reason ? "false" : "true"));
  fields.add(field("cost_us", reason ? "null" : number(cost_us)));
  fields.add(field("reason", quoted(reason ? reason : "")));
  fields.add(field("config", config));
  return "{" + fields.text + "}";
}

// The instruction set of "cpu" or "cpu:avx2", -1 for another device.
int find_isa(const std::string& device) {
  if (device == "cpu") return int(best_isa());
  for (int idx = 0; idx < kNumIsas; ++idx) {
    if (device == std::string("cpu:") + kIsaNames[idx]) return idx;
  }
  return -1;
}

}  // namespace
}  // namespace tiledmm

using namespace tiledmm;

int32_t tiledmm_abi_version() { return TILEDMM_ABI_VERSION; }

int32_t tiledmm_find_algorithm(const char* name, size_t length) {
  for (int32_t algorithm = 0; algorithm < num_algorithms(); ++algorithm) {
    const char* known = algorithm_name(algorithm);
    if (std::strlen(known) == length && std::memcmp(known, name, length) == 0) return algorithm;
  }
  return -1;
}

Status tiledmm_gemm_cpu(const GemmProblem* problem, int32_t algorithm, const Executor* executor, char* reason,
                        size_t capacity) {
  if (algorithm < 0 || algorithm >= num_algorithms()) {
    std::snprintf(reason, capacity, "there is no algorithm of index %d", int(algorithm));
    return Status::unknown_algorithm;
  }
  BatchDim dims[kMaxBatchDims];
  const GemmProblem folded = fold_batch(*problem, dims);
  const int32_t choice = select_cpu(folded, algorithm, best_isa(), executor->num_threads, nullptr);
  if (choice < 0 && algorithm >= kFirstKernel + kNumCpuKernels) {
    std::snprintf(reason, capacity, "algorithm '%s' has no CPU kernel, only GPUs have it", algorithm_name(algorithm));
    return Status::unsupported;
  }
  if (choice < 0) {
    std::snprintf(reason, capacity, "algorithm '%s' cannot run here: this CPU has instruction set %s",
                  algorithm_name(algorithm), kIsaNames[int(best_isa())]);
    return Status::unsupported;
  }
  if (folded.m == 0 || folded.n == 0) return Status::ok;
  for (int32_t d = 0; d < folded.num_batch_dims; ++d) {
    if (dims[d].size == 0) return Status::ok;
  }
  const Status status = cpu_kernels()[choice].launch(folded, *executor);
  if (status == Status::out_of_memory) {
    std::snprintf(reason, capacity, "no memory for the workspace of algorithm '%s'", cpu_kernels()[choice].name);
  }
  return status;
}

Status tiledmm_gemm_gpu(const GemmProblem* problem, int32_t algorithm, const Executor* executor, char* reason,
                        size_t capacity) {
  return launch_gpu(*problem, algorithm, *executor, reason, capacity);
}

double tiledmm_fma_peak(DType dtype, const Executor* executor) { return measure_fma_peak(dtype, *executor); }

size_t tiledmm_info(char* text, size_t capacity) {
  Joined compiled, algorithms;
  for (int isa = 0; isa < kNumIsas; ++isa) {
    for (int32_t idx = 0; idx < kNumCpuKernels; ++idx) {
      const CpuKernel& kernel = cpu_kernels()[idx];
      if (kernel.rung == 4 && int(kernel.isa) == isa && kernel.is_compiled) compiled.add(quoted(kIsaNames[isa]));
    }
  }
  Candidate candidates[kNumCpuKernels];
  const GemmProblem problem{};
  select_cpu(problem, kAuto, best_isa(), 1, candidates);
  for (int32_t algorithm = 0; algorithm < kFirstKernel + kNumCpuKernels; ++algorithm) {
    const bool is_kernel = algorithm >= kFirstKernel;
    const Candidate* candidate = is_kernel ? &candidates[algorithm - kFirstKernel] : nullptr;
    const char* description = algorithm == kAuto ? "the cheapest kernel that is legal"
                                                 : "register_tiled with the best instruction set of this machine";
    algorithms.add(algorithm_text(algorithm_name(algorithm), "cpu",
                                  is_kernel            ? candidate->kernel->rung
                                  : algorithm == kAuto ? 0
                                                       : 4,
                                  is_kernel ? candidate->reason : "",
                                  is_kernel ? candidate->kernel->description : description));
  }
  const char* no_gpu = has_gpu_kernels() ? "" : "this build has no GPU kernels";
  algorithms.add(algorithm_text("auto", "cuda", 0, no_gpu, "the cheapest kernel that is legal"));
  algorithms.add(algorithm_text("native", "cuda", 0, no_gpu, "the cheapest of the kernels meant for production"));
  for (int32_t idx = 0; idx < kNumGpuKernels; ++idx) {
    const GpuKernel& kernel = gpu_kernels()[idx];
    algorithms.add(algorithm_text(kernel.name, "cuda", kernel.rung, no_gpu, kernel.description, &kernel));
  }
  Joined chips;
  for (int32_t row = 0; row < kNumGpuChips; ++row) {
    const GpuChip& chip = gpu_chips()[row];
    Joined fields, simt, mma;
    for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
      simt.add(field(kDTypeNames[dtype], number(chip.simt_tflops[dtype])));
      mma.add(field(kDTypeNames[dtype], number(chip.mma_tflops[dtype])));
    }
    fields.add(field("name", quoted(chip.name)));
    fields.add(field("device", quoted(chip.device)));
    fields.add(field("num_cus", std::to_string(chip.num_cus)));
    fields.add(field("tbytes_per_second", number(chip.tbytes_per_second)));
    fields.add(field("simt_tflops", "{" + simt.text + "}"));
    fields.add(field("mma_tflops", "{" + mma.text + "}"));
    chips.add("{" + fields.text + "}");
  }
  Joined info;
  info.add(field("version", quoted(TILEDMM_VERSION)));
  info.add(field("compiler", quoted(__VERSION__)));
  Joined devices;
  devices.add(field("cpu", "[" + compiled.text + "]"));
  Joined archs;
  for (const std::string& arch : words_of(TILEDMM_GPU_ARCHS)) archs.add(quoted(arch));
  if (has_gpu_kernels()) devices.add(field("cuda", "[" + archs.text + "]"));
  info.add(field("compiled", "{" + devices.text + "}"));
  info.add(field("isa", "{" + field("cpu", quoted(kIsaNames[int(best_isa())])) + "}"));
  info.add(field("num_cores", std::to_string(num_cores())));
  info.add(field("algorithms", "[" + algorithms.text + "]"));
  info.add(field("chips", "[" + chips.text + "]"));
  return copy_text("{" + info.text + "}", text, capacity);
}

size_t tiledmm_explain(const GemmProblem* problem, const char* device, int32_t num_threads, char* text,
                       size_t capacity) {
  BatchDim dims[kMaxBatchDims];
  const GemmProblem folded = fold_batch(*problem, dims);
  const std::string name = device;
  const std::string part = name.find(':') == std::string::npos ? "" : name.substr(name.find(':') + 1);
  Joined list;
  std::string choice, isa;
  if (const GpuChip* chip = find_gpu_chip(part.c_str()); chip && name == std::string(chip->device) + ":" + part) {
    GpuCandidate candidates[kNumGpuKernels];
    choice = gpu_kernels()[select_gpu(folded, kAuto, *chip, candidates)].name;
    isa = chip->name;
    for (const GpuCandidate& candidate : candidates) {
      list.add(candidate_text(candidate.kernel->name, candidate.reason, candidate.cost_us, "{}"));
    }
  } else if (const int idx = find_isa(name); idx >= 0) {
    Candidate candidates[kNumCpuKernels];
    choice = cpu_kernels()[select_cpu(folded, kAuto, Isa(idx), num_threads, candidates)].name;
    isa = kIsaNames[idx];
    for (const Candidate& candidate : candidates) {
      list.add(candidate_text(candidate.kernel->name, candidate.is_legal ? nullptr : candidate.reason,
                              candidate.cost_us, config_text(folded, *candidate.kernel, num_threads)));
    }
  } else {
    Joined known;
    known.add("cpu");
    for (const char* isa_name : kIsaNames) known.add(std::string("cpu:") + isa_name);
    for (int32_t row = 0; row < kNumGpuChips; ++row) {
      if (gpu_chips()[row].arch) known.add(std::string(gpu_chips()[row].device) + ":" + gpu_chips()[row].name);
    }
    return copy_text("{" + field("error", quoted("which is not known; known are " + known.text)) + "}", text, capacity);
  }
  const int64_t batch = batch_size(*problem);
  Joined shape;
  shape.add(field("m", std::to_string(problem->m)));
  shape.add(field("n", std::to_string(problem->n)));
  shape.add(field("k", std::to_string(problem->k)));
  shape.add(field("batch", std::to_string(batch)));
  shape.add(field("dtype", quoted(kDTypeNames[int(problem->dtype)])));
  Joined explained;
  explained.add(field("problem", "{" + shape.text + "}"));
  explained.add(field("device", quoted(device)));
  explained.add(field("isa", quoted(isa)));
  explained.add(field("num_threads", std::to_string(num_threads)));
  explained.add(field("candidates", "[" + list.text + "]"));
  explained.add(field("choice", quoted(choice)));
  explained.add(
      field("reason", quoted("least predicted time of the legal candidates that share one order of summation, "
                             "so that a row's bits do not depend on m")));
  return copy_text("{" + explained.text + "}", text, capacity);
}

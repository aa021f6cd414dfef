// The C interface, and what info and explain say as JSON.
#include "api/kernels_api.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "dispatch/chips.h"
#include "dispatch/fold_batch.h"
#include "dispatch/grouped.h"
#include "dispatch/launch.h"
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

// The elements of a JSON list or object, with the separators between them.
struct Joined {
  std::string text;
  void add(const std::string& element) { text += (text.empty() ? "" : ", ") + element; }
};

std::string list_of_words(const char* words) {
  Joined list;
  std::istringstream stream(words);
  for (std::string word; stream >> word;) list.add(quoted(word));
  return "[" + list.text + "]";
}

size_t copy_text(const std::string& from, char* to, size_t capacity) {
  std::memcpy(to, from.data(), from.size() < capacity ? from.size() : capacity);
  return from.size();
}

// An aligned product of a size that every kernel serves, those for few rows, too.
FoldedProblem usual_problem(DType dtype) {
  FoldedProblem problem{};
  GemmProblem& p = problem.gemm;
  p.m = 16;
  p.n = p.k = p.stride_am = p.stride_bk = p.stride_cm = 64;
  p.stride_ak = p.stride_bn = p.stride_cn = 1;
  p.set_dtypes(dtype);
  if (size_of(dtype) == 1) {
    p.dtype_bias = p.dtype_c = DType::bf16;
    p.scaling = Scaling::rows;
    p.scale_a = p.scale_b = {nullptr, 1, 0, 1};
  }
  p.allow_tf32 = true;
  problem.batch_size = 1;
  problem.chunk_k = p.k;
  problem.asked_n = p.n;
  return problem;
}

// A product of that size with groups, of which there is one.
FoldedProblem usual_group(DType dtype) {
  FoldedProblem problem = usual_problem(dtype);
  problem.gemm.grouping = Grouping::rows;
  problem.gemm.num_batch_dims = 1;
  problem.batch_dims[0] = {.size = 1, .stride_a = 0, .stride_b = 64 * 64, .stride_c = 0, .stride_bias = 0};
  return problem;
}

// A problem of a usual size whose B has 8 bits and lies along k.
FoldedProblem usual_weight(DType dtype) {
  FoldedProblem problem = usual_problem(dtype);
  GemmProblem& p = problem.gemm;
  p.dtype_b = DType::e4m3;
  p.stride_bk = 1, p.stride_bn = p.k;
  p.scaling = Scaling::rows;
  p.scale_b = {nullptr, 1, 0, 1};
  return problem;
}

// Whether some chip of a platform can be served by a kernel, for groups or a B of 8 bits at least; for fp32, tf32
// allowed.
bool serves(const Rung& rung, DType dtype, Platform platform) {
  for (const Chip& chip : chips()) {
    if (chip.platform != platform) continue;
    if (!rung.refusal(usual_problem(dtype), chip) || !rung.refusal(usual_group(dtype), chip) ||
        (size_of(dtype) == 2 && !rung.refusal(usual_weight(dtype), chip)))
      return true;
  }
  return false;
}

// Whether this build has a kernel for an instruction set, or for what the name of one begins with: a kernel or a
// variant is named after what it needs at least.
bool has_kernels_for(const Chip& chip) {
  return std::any_of(rungs().begin(), rungs().end(), [&](const Rung* rung) {
    const char* point = std::strchr(rung->name, '.');
    const char* isa = point ? point + 1 : rung->name;
    return !rung->is_gpu && rung->launch && !rung->refusal(usual_problem(DType::bf16), chip) &&
           std::strncmp(isa, chip.name, std::strlen(isa)) == 0;
  });
}

// Why a kernel cannot run here; empty if it can.
std::string reason_against(const Rung& rung, Platform platform) {
  if (rung.is_gpu && !is_built(platform)) {
    return std::string("this build has no kernels for ") + kPlatformNames[int(platform)];
  }
  if (!rung.launch) {
    return rung.is_gpu ? "this build lacks it: it was compiled for other chips" : "not compiled for this architecture";
  }
  if (rung.is_gpu) return "";
  for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
    if (!rung.refusal(usual_problem(DType(dtype)), cpu_chip(1))) return "";
  }
  return rung.refusal(usual_problem(DType::f32), cpu_chip(1));
}

// One entry of info's algorithms: a kernel, or, where `own` is null, a name that stands for several.
void add_algorithm(Joined& list, int32_t algorithm, Platform platform, const Rung* own) {
  const std::vector<const Rung*> kernels = kernels_of(algorithm, platform != Platform::cpu);
  if (kernels.empty()) return;
  std::string reason = reason_against(*kernels[0], platform);
  for (const Rung* rung : kernels) {
    if (!reason.empty()) reason = reason_against(*rung, platform);
  }
  // What this machine's CPU can run is said of it, everything else of all chips.
  const bool is_here = platform == Platform::cpu && reason.empty();
  Joined dtypes;
  for (int dtype = 0; dtype < int(std::size(kDTypeNames)); ++dtype) {
    const auto takes = [&](const Rung* rung) {
      return is_here ? !rung->refusal(usual_problem(DType(dtype)), cpu_chip(1)) : serves(*rung, DType(dtype), platform);
    };
    if (std::any_of(kernels.begin(), kernels.end(), takes)) dtypes.add(quoted(kDTypeNames[dtype]));
  }
  if (dtypes.text.empty()) return;
  Joined fields;
  fields.add(field("name", quoted(algorithm_name(algorithm))));
  fields.add(field("device", quoted(kPlatformNames[int(platform)])));
  fields.add(field("rung", std::to_string(own ? own->number : 0)));
  fields.add(field("order", quoted(own ? kOrderNames[int(own->order)] : "")));
  fields.add(field("is_native", own && own->is_native ? "true" : "false"));
  fields.add(field("dtypes", "[" + dtypes.text + "]"));
  fields.add(field("available", reason.empty() ? "true" : "false"));
  fields.add(field("reason", quoted(reason)));
  fields.add(field("description", quoted(own                    ? own->description
                                         : algorithm == kAuto   ? "the cheapest kernel that is legal"
                                         : algorithm == kNative ? "the cheapest of the kernels meant for production"
                                         : algorithm == kSplit  ? "fp32 by products in 16 bits, on request alone"
                                                                : "the cheapest of its variants that are legal")));
  list.add("{" + fields.text + "}");
}

std::string algorithms_text() {
  Joined list;
  for (const Platform platform : {Platform::cpu, Platform::cuda, Platform::hip}) {
    const bool is_gpu = platform != Platform::cpu;
    for (int32_t algorithm = 0; algorithm < num_algorithms(); ++algorithm) {
      const std::vector<const Rung*> kernels = kernels_of(algorithm, is_gpu);
      const bool stands_for_several = !kernels.empty() && std::strcmp(kernels[0]->name, algorithm_name(algorithm));
      if (stands_for_several) add_algorithm(list, algorithm, platform, nullptr);
    }
    for (const Rung* rung : rungs()) {
      if (rung->is_gpu == is_gpu) add_algorithm(list, find_algorithm(rung->name), platform, rung);
    }
  }
  return "[" + list.text + "]";
}

std::string chips_text() {
  Joined list;
  for (const Chip& chip : chips()) {
    if (chip.platform == Platform::cpu) continue;
    Joined fields, simt, mma;
    for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
      simt.add(field(kDTypeNames[dtype], number(chip.simt_tflops[dtype])));
      mma.add(field(kDTypeNames[dtype], number(chip.mma_tflops[dtype])));
    }
    fields.add(field("name", quoted(chip.name)));
    fields.add(field("device", quoted(kPlatformNames[int(chip.platform)])));
    fields.add(field("num_cus", std::to_string(chip.num_cus)));
    fields.add(field("tbytes_per_second", number(chip.tbytes_per_second)));
    fields.add(field("simt_tflops", "{" + simt.text + "}"));
    fields.add(field("mma_tflops", "{" + mma.text + "}"));
    list.add("{" + fields.text + "}");
  }
  return "[" + list.text + "]";
}

std::string candidate_text(const std::string& name, const Candidate& candidate, const FoldedProblem& problem,
                           const Chip& chip) {
  Fields config;
  if (!candidate.reason && !is_empty(problem)) candidate.rung->describe(problem, chip, candidate.plan, config);
  Joined entries;
  for (const auto& [key, value] : config.entries) entries.add(field(key.c_str(), value));
  Joined fields;
  fields.add(field("algorithm", quoted(name)));
  fields.add(field("legal", candidate.reason ? "false" : "true"));
  fields.add(field("cost_us", candidate.reason ? "null" : number(candidate.plan.cost_us)));
  fields.add(field("order", quoted(kOrderNames[int(candidate.rung->order)])));
  fields.add(field("reason", quoted(candidate.reason ? candidate.reason : "")));
  fields.add(field("config", "{" + entries.text + "}"));
  return "{" + fields.text + "}";
}

std::string candidates_text(const FoldedProblem& problem, const Chip& chip) {
  Joined list;
  for (const Candidate& candidate : list_candidates(problem, chip))
    list.add(candidate_text(candidate.rung->name, candidate, problem, chip));
  return "[" + list.text + "]";
}

// The plans of the kernel that an algorithm stands for; none where it cannot serve.
std::string plans_text(int32_t algorithm, const FoldedProblem& problem, const Chip& chip) {
  Joined list;
  if (const Rung* rung = algorithm < 0 ? nullptr : select(problem, algorithm, chip).rung) {
    const std::vector<Plan> plans = list_plans(problem, *rung, chip);
    for (size_t i = 0; i < plans.size(); ++i) {
      const std::string name = rung->name + (":" + std::to_string(i));
      list.add(candidate_text(name, {rung, nullptr, plans[i]}, problem, chip));
    }
  }
  return "[" + list.text + "]";
}

}  // namespace
}  // namespace tiledmm

using namespace tiledmm;

int32_t tiledmm_abi_version() { return TILEDMM_ABI_VERSION; }

int32_t tiledmm_find_algorithm(const char* name, size_t length) { return find_algorithm({name, length}); }

Status tiledmm_gemm_cpu(const GemmProblem* problem, int32_t algorithm, const Executor* executor, char* reason,
                        size_t capacity) {
  return run_on_cpu(*problem, algorithm, *executor, reason, capacity);
}

Status tiledmm_gemm_gpu(const GemmProblem* problem, int32_t algorithm, const Executor* executor, char* reason,
                        size_t capacity) {
  return run_on_gpu(*problem, algorithm, *executor, reason, capacity);
}

Status tiledmm_elementwise_cpu(const ElementwiseProblem* problem, const Executor* executor, char*, size_t) {
  return run_elementwise_on_cpu(*problem, *executor);
}

Status tiledmm_elementwise_gpu(const ElementwiseProblem* problem, const Executor* executor, char* reason,
                               size_t capacity) {
  return run_elementwise_on_gpu(*problem, *executor, reason, capacity);
}

Status tiledmm_reduce_cpu(const ReduceProblem* problem, const Executor* executor, char* reason, size_t capacity) {
  return run_reduce_on_cpu(*problem, *executor, reason, capacity);
}

Status tiledmm_reduce_gpu(const ReduceProblem* problem, const Executor* executor, char* reason, size_t capacity) {
  return run_reduce_on_gpu(*problem, *executor, reason, capacity);
}

Status tiledmm_softmax_cpu(const ColumnSoftmaxProblem* problem, const Executor* executor, char* reason,
                           size_t capacity) {
  return run_softmax_on_cpu(*problem, *executor, reason, capacity);
}

Status tiledmm_softmax_gpu(const SoftmaxProblem* problem, const Executor* executor, char* reason, size_t capacity) {
  return run_softmax_on_gpu(*problem, *executor, reason, capacity);
}

Status tiledmm_quantize_cpu(const QuantizeProblem* problem, const Executor* executor, char*, size_t) {
  return run_quantize_on_cpu(*problem, *executor);
}

Status tiledmm_quantize_gpu(const QuantizeProblem* problem, const Executor* executor, char* reason, size_t capacity) {
  return run_quantize_on_gpu(*problem, *executor, reason, capacity);
}

bool tiledmm_gpu_serves(const GemmProblem* problem, int32_t algorithm, int32_t device_idx, bool by_production) {
  return gpu_serves(*problem, algorithm, device_idx, by_production);
}

double tiledmm_fma_peak(DType dtype, const Executor* executor) { return measure_fma_peak(dtype, *executor); }

size_t tiledmm_algorithm_names(char* text, size_t capacity) {
  Joined names;
  for (int32_t algorithm = 0; algorithm < num_algorithms(); ++algorithm) names.add(algorithm_name(algorithm));
  return copy_text(names.text, text, capacity);
}

size_t tiledmm_info(char* text, size_t capacity) {
  Joined isas, compiled, info;
  for (const Chip& chip : chips()) {
    if (chip.platform == Platform::cpu && has_kernels_for(chip)) isas.add(quoted(chip.name));
  }
  compiled.add(field("cpu", "[" + isas.text + "]"));
  for (const Platform platform : {Platform::cuda, Platform::hip}) {
    if (is_built(platform)) compiled.add(field(kPlatformNames[int(platform)], list_of_words(TILEDMM_GPU_ARCHS)));
  }
  info.add(field("version", quoted(TILEDMM_VERSION)));
  info.add(field("compiler", quoted(__VERSION__)));
  info.add(field("compiled", "{" + compiled.text + "}"));
  info.add(field("isa", "{" + field("cpu", quoted(kIsaNames[int(best_isa())])) + "}"));
  info.add(field("num_cores", std::to_string(num_cores())));
  info.add(field("algorithms", algorithms_text()));
  info.add(field("chips", chips_text()));
  return copy_text("{" + info.text + "}", text, capacity);
}

size_t tiledmm_explain(const GemmProblem* problem, const char* device, int32_t num_threads, const char* plans_of,
                       char* text, size_t capacity) {
  const Chip* row = find_chip(device);
  if (!row) {
    return copy_text("{" + field("error", quoted("which is not known; known are " + known_devices())) + "}", text,
                     capacity);
  }
  Chip chip = *row;
  if (chip.platform == Platform::cpu) chip.num_cus = num_threads;
  GemmProblem asked = *problem;
  if (is_grouped(*problem) && chip.platform == Platform::cpu) {  // each group is a product of its own there
    asked.m = ceil_div(asked.m, problem->batch_dims[0].size);
    asked.grouping = Grouping::none, asked.num_batch_dims = 0;
    if (!is_large_group(asked, num_threads)) chip.num_cus = 1;
  }
  BatchDim dims[kMaxBatchDims];
  const FoldedProblem folded = fold_batch(asked, dims);
  const Choice choice = select(folded, kAuto, chip);
  Joined shape, explained;
  shape.add(field("m", std::to_string(problem->m)));
  shape.add(field("n", std::to_string(problem->n)));
  shape.add(field("k", std::to_string(problem->k)));
  shape.add(field("batch", std::to_string(is_grouped(*problem) ? 1 : batch_size(*problem))));
  shape.add(field("groups", std::to_string(is_grouped(*problem) ? problem->batch_dims[0].size : 0)));
  shape.add(field("dtype", quoted(kDTypeNames[int(problem->dtype_a)])));
  shape.add(field("b_dtype", quoted(kDTypeNames[int(problem->dtype_b)])));
  shape.add(field("out_dtype", quoted(kDTypeNames[int(problem->dtype_c)])));
  const std::string order = choice.rung ? kOrderNames[int(choice.rung->order)] : "none";
  explained.add(field("problem", "{" + shape.text + "}"));
  explained.add(field("device", quoted(device)));
  explained.add(field("isa", quoted(chip.name)));
  explained.add(field("modelled_after", quoted(chip.modelled_after ? chip.modelled_after->product : "")));
  explained.add(field("num_threads", std::to_string(num_threads)));
  explained.add(field("candidates",
                      plans_of ? plans_text(find_algorithm(plans_of), folded, chip) : candidates_text(folded, chip)));
  explained.add(field("choice", quoted(choice.rung ? choice.rung->name : "")));
  explained.add(field("order", quoted(order)));
  const bool is_widened = !choice.rung && size_of(problem->dtype_b) == 1;
  const std::string reason =
      is_widened && size_of(problem->dtype_a) > 1
          ? "no kernel reads a B of 8 bits here: it is converted to A's dtype first"
      : is_widened ? "no kernel reads both operands in 8 bits here: scaled_" +
                         std::string(is_grouped(*problem) ? "grouped_" : "") +
                         "matmul converts a to bf16, and a b of e5m2, too; with scales of blocks both to fp32"
                   : "least predicted time of the legal candidates whose order of summation is " + order +
                         ", which n, k, dtype and chip pick, not m";
  explained.add(field("reason", quoted(reason)));
  return copy_text("{" + explained.text + "}", text, capacity);
}

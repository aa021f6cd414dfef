// The choice of a kernel, and the names of algorithms.
#include "dispatch/select.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "core/summation.h"
#include "kernels/rungs.h"

#if defined(TILEDMM_HOST_GPU)
#define TILEDMM_GPU_DEVICE "host"
#elif !defined(TILEDMM_GPU_DEVICE)  // "cuda" or "hip"
#define TILEDMM_GPU_DEVICE ""
#endif

namespace tiledmm {
namespace {

using Mask = uint64_t;  // bit i: kernel i

constexpr const char* kNoPlan = "it has no plan for this problem on this chip";
constexpr const char* kLeft = "it leaves products of so short a k, or of so few columns, to the native kernel";

struct Algorithms {
  std::vector<std::string> names{"auto", "native", "split"};
  std::vector<Mask> admitted;  // by each
  Mask of_gpus = 0, of_splits = 0, of_order[kNumOrders] = {};

  Algorithms() {
    for (const Rung* rung : rungs()) {
      const std::string name = rung->name;
      if (!rung->is_gpu) add(name.substr(0, name.find('.')));
      add(name);
    }
    for (size_t i = 0; i < rungs().size(); ++i) {
      of_gpus |= Mask(rungs()[i]->is_gpu) << i;
      of_splits |= Mask(rungs()[i]->is_split) << i;
      of_order[int(rungs()[i]->order)] |= Mask(1) << i;
    }
    for (const std::string& name : names) admitted.push_back(find(name, of_gpus) | find(name, ~of_gpus));
  }

 private:
  void add(const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }

  // The kernels of one kind of device that an algorithm stands for.
  static Mask find(const std::string& algorithm, Mask of_device) {
    Mask named = 0, variants = 0;
    for (size_t i = 0; i < rungs().size(); ++i) {
      const std::string name = rungs()[i]->name;
      const bool is_group = rungs()[i]->is_split
                                ? algorithm == "split"
                                : algorithm == "auto" || (algorithm == "native" && rungs()[i]->is_native);
      named |= Mask(is_group || name == algorithm) << i;
      variants |= Mask(name.substr(0, name.find('.')) == algorithm) << i;
    }
    return named & of_device ? named & of_device : variants & of_device;
  }
};

const Algorithms& algorithms() {
  static const auto* const algorithms = new Algorithms;  // never destroyed: threads may compute at exit
  return *algorithms;
}

Mask admitted(int32_t algorithm, bool is_gpu) {
  const Mask of_gpus = algorithms().of_gpus;
  return algorithms().admitted[size_t(name_of(algorithm))] & (is_gpu ? of_gpus : ~of_gpus);
}
Mask admitted(int32_t algorithm, const Chip& chip) { return admitted(algorithm, chip.platform != Platform::cpu); }

const char* refuse(const Rung& rung, const FoldedProblem& problem, const Chip& chip) {
  // A library without kernels for a platform explains what one with them would do.
  if (!rung.launch && !rung.is_gpu) return "not compiled for this architecture";
  if (const char* reason = rung.refusal(problem, chip)) return reason;
  return !rung.launch && is_built(chip.platform) ? "this build lacks it: it was not compiled for this chip" : nullptr;
}

template <class Visit>
void for_each_kernel(Mask kernels, const Visit& visit) {
  for (; kernels; kernels &= kernels - 1) visit(__builtin_ctzll(kernels));
}

Mask legal_of(const FoldedProblem& problem, Mask kernels, const Chip& chip) {
  Mask legal = 0;
  for_each_kernel(kernels, [&](int i) { legal |= Mask(!refuse(*rungs()[size_t(i)], problem, chip)) << i; });
  return legal;
}

bool leaves(const Rung& rung, const FoldedProblem& problem) {
  return problem.gemm.k < rung.min_k || problem.asked_n < rung.min_n;
}

// Whether an algorithm stands for a kernel that leaves a problem to the native ones: then `problem` and `algorithm`
// become what they are asked.
bool is_left_to_native(FoldedProblem& problem, int32_t& algorithm, const Chip& chip) {
  bool is_left = false;
  for_each_kernel(admitted(algorithm, chip) & algorithms().of_splits, [&](int i) {
    const Rung& rung = *rungs()[size_t(i)];
    is_left |= leaves(rung, problem) && !refuse(rung, problem, chip);
  });
  if (!is_left) return false;
  problem.gemm.allow_tf32 = false;  // whoever asks for split wants more of fp32
  algorithm += kNative - name_of(algorithm);
  return true;
}

// A single product of row-major matrices, of another's dtypes.
FoldedProblem plain_problem(int64_t m, int64_t n, int64_t k, const GemmProblem& dtypes) {
  FoldedProblem problem{};
  GemmProblem& p = problem.gemm;
  p.m = m, p.n = n, p.k = k;
  p.dtype_a = dtypes.dtype_a, p.dtype_b = dtypes.dtype_b, p.dtype_c = p.dtype_bias = dtypes.dtype_c;
  p.stride_am = k, p.stride_ak = 1, p.stride_bk = n, p.stride_bn = 1, p.stride_cm = n, p.stride_cn = 1;
  problem.batch_size = 1, problem.chunk_k = k, problem.asked_n = n;
  return problem;
}

// The cheapest plan of a kernel that is legal; of an empty problem one that takes no time. False: there is none.
bool find_plan(const Rung& rung, const FoldedProblem& problem, const Chip& chip, Plan& plan) {
  if (is_empty(problem)) return true;
  PlanSearch search(plan);
  rung.for_each_plan(problem, chip, search);
  return search.has_found();
}

// No kernel takes less: the operands and C pass memory once, and products come at the chip's peak. A model may say less
// where its parts overlap more than they can; nobody is shown that.
double least_us(const Rung& rung, const FoldedProblem& problem, const Chip& chip) {
  if (chip.platform == Platform::cpu) return 0;
  const bool is_fp8 = size_of(problem.gemm.dtype_a) == 1;  // twice as many products as in 16 bits
  // Split: at least one product of 16 bits.
  const int dtype = int(rung.is_split || is_fp8 ? DType::f16 : problem.gemm.dtype_a);
  const double peak = std::max(chip.simt_tflops[dtype], chip.mma_tflops[dtype]) * (is_fp8 ? 2 : 1);
  return std::max(num_flops(problem) / (peak * 1e6), bytes_moved(problem) / (chip.tbytes_per_second * 1e6));
}

Choice cheapest(const FoldedProblem& problem, Mask legal, const Chip& chip) {
  Choice choice;
  for_each_kernel(legal, [&](int i) {
    const Rung& rung = *rungs()[size_t(i)];
    Plan other;
    Plan& plan = choice.rung ? other : choice.plan;
    if (!find_plan(rung, problem, chip, plan)) return;
    if (!choice.rung) {
      choice.rung = &rung;
    } else if (plan.cost_us < choice.plan.cost_us) {
      choice = {&rung, plan};
    }
  });
  return choice;
}

// The one of the ladder's two orders that is faster with many rows; it is taken for any number of them.
Order faster_order_of_ladder(const FoldedProblem& problem, Mask legal, const Chip& chip) {
  constexpr int64_t kManyRows = 4096;
  FoldedProblem many = plain_problem(kManyRows, problem.asked_n, problem.gemm.k, problem.gemm);
  many.chunk_k = problem.chunk_k;
  const Rung* fastest = cheapest(many, legal, chip).rung;
  return fastest ? fastest->order : Order::chain;
}

}  // namespace

const std::vector<const Rung*>& rungs() {
  static const auto* const rungs = new std::vector<const Rung*>{
#define TILEDMM_RUNG(NAMESPACE, NAME) &NAMESPACE::NAME##_rung,
#include "kernels/rungs.def"
#undef TILEDMM_RUNG
  };
  return *rungs;
}

bool is_built(Platform platform) { return kPlatformNames[int(platform)] == std::string_view(TILEDMM_GPU_DEVICE); }

int32_t num_algorithms() { return int32_t(algorithms().names.size()); }
const char* algorithm_name(int32_t algorithm) { return algorithms().names[size_t(name_of(algorithm))].c_str(); }
int32_t find_algorithm(std::string_view name) {
  const auto& names = algorithms().names;
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return int32_t(found - names.begin());
  const size_t colon = name.find(':');
  if (colon == name.npos) return -1;
  uint16_t plan = 0;
  const char* const end = name.data() + name.size();
  const auto [last, error] = std::from_chars(name.data() + colon + 1, end, plan);
  const int32_t named = find_algorithm(name.substr(0, colon));
  return error != std::errc() || last != end || named < 0 ? -1 : named + ((plan + 1) << kNameBits);
}

std::vector<const Rung*> kernels_of(int32_t algorithm, bool is_gpu) {
  std::vector<const Rung*> kernels;
  for_each_kernel(admitted(algorithm, is_gpu), [&](int i) { kernels.push_back(rungs()[size_t(i)]); });
  return kernels;
}

Choice select(const FoldedProblem& problem, int32_t algorithm, const Chip& chip) {
  if (admitted(algorithm, chip) & algorithms().of_splits) {
    FoldedProblem left = problem;
    if (is_left_to_native(left, algorithm, chip)) return select(left, algorithm, chip);
  }
  const Mask wanted = admitted(algorithm, chip);
  const auto& of_order = algorithms().of_order;
  Mask legal = 0;
  int order = kNumOrders;
  while (!legal && order-- > 0) legal = legal_of(problem, wanted & of_order[order], chip);
  if (Order(order) == Order::mma_chain) {  // both orders of the ladder serve many problems
    legal |= legal_of(problem, wanted & of_order[int(Order::chain)], chip);
    legal &= of_order[int(faster_order_of_ladder(problem, legal, chip))];
  }
  Choice choice = cheapest(problem, legal, chip);
  if (const int32_t idx = plan_of(algorithm); choice.rung && idx >= 0) {
    const std::vector<Plan> plans = list_plans(problem, *choice.rung, chip);
    if (size_t(idx) >= plans.size()) return {};
    choice.plan = plans[size_t(idx)];
  }
  return choice;
}

std::vector<Plan> list_plans(const FoldedProblem& problem, const Rung& rung, const Chip& chip) {
  std::vector<Plan> plans;
  if (is_empty(problem)) return {Plan{}};
  PlanSearch all(plans);
  rung.for_each_plan(problem, chip, all);
  for (Plan& plan : plans) plan.cost_us = std::max(plan.cost_us, least_us(rung, problem, chip));
  return plans;
}

std::vector<Candidate> list_candidates(const FoldedProblem& problem, const Chip& chip) {
  std::vector<Candidate> candidates;
  for_each_kernel(admitted(kAuto, chip) | admitted(kSplit, chip), [&](int i) {
    const Rung& rung = *rungs()[size_t(i)];
    Candidate& candidate = candidates.emplace_back(Candidate{&rung, refuse(rung, problem, chip), {}});
    if (!candidate.reason && leaves(rung, problem)) candidate.reason = kLeft;
    if (!candidate.reason && !find_plan(rung, problem, chip, candidate.plan)) candidate.reason = kNoPlan;
    candidate.plan.cost_us = std::max(candidate.plan.cost_us, least_us(rung, problem, chip));
  });
  return candidates;
}

const char* explain_refusal(const FoldedProblem& problem, int32_t algorithm, const Chip& chip) {
  FoldedProblem left = problem;
  if (is_left_to_native(left, algorithm, chip)) return explain_refusal(left, algorithm, chip);
  // A name may stand for several kernels: the reason of one that is for this chip comes before those of others.
  const char* reason = nullptr;
  bool is_known = false;
  for_each_kernel(admitted(algorithm, chip), [&](int i) {
    const Rung& rung = *rungs()[size_t(i)];
    if (rung.is_for(chip) || !is_known) reason = refuse(rung, problem, chip);
    is_known |= rung.is_for(chip);
  });
  if (reason) return reason;
  if (admitted(algorithm, chip)) return plan_of(algorithm) >= 0 ? "it has no plan of this number" : kNoPlan;
  return chip.platform == Platform::cpu ? "it has no CPU kernel, only GPUs have it" : "it has no GPU kernel";
}

bool serves(const FoldedProblem& problem, int32_t algorithm, const Chip& chip, bool by_production) {
  FoldedProblem left = problem;
  if (is_left_to_native(left, algorithm, chip)) return serves(left, algorithm, chip, by_production);
  Mask wanted = admitted(algorithm, chip);
  for (size_t i = 0; by_production && i < rungs().size(); ++i) wanted &= ~(Mask(rungs()[i]->number > 0) << i);
  return legal_of(problem, wanted, chip) != 0;
}

}  // namespace tiledmm

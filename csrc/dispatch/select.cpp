// The choice of a kernel, and the names of algorithms.
#include "dispatch/select.h"

#include <algorithm>
#include <string>

#include "core/summation.h"
#include "kernels/rungs.h"

namespace tiledmm {
namespace {

using Mask = uint64_t;  // bit i: kernel i

struct Algorithms {
  std::vector<std::string> names{"auto", "native"};
  std::vector<Mask> admitted;  // by each
  Mask of_gpus = 0;

  Algorithms() {
    for (const Rung* rung : rungs()) {
      const std::string name = rung->name;
      if (!rung->is_gpu) add(name.substr(0, name.find('.')));
      add(name);
    }
    for (size_t i = 0; i < rungs().size(); ++i) of_gpus |= Mask(rungs()[i]->is_gpu) << i;
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
      const bool is_group = algorithm == "auto" || (algorithm == "native" && rungs()[i]->is_native);
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

// Kernels that an algorithm admits on a chip.
Mask admitted(int32_t algorithm, const Chip& chip) {
  const Mask of_gpus = algorithms().of_gpus;
  return algorithms().admitted[size_t(algorithm)] & (chip.platform == Platform::cpu ? ~of_gpus : of_gpus);
}

const char* refuse(const Rung& rung, const GpuProblem& problem, const Chip& chip) {
  // A library without any kernel for GPUs explains what one with them would do.
  if (!rung.launch && !rung.is_gpu) return "not compiled for this architecture";
  if (const char* reason = rung.refuse(problem, chip)) return reason;
  return !rung.launch && is_built(true) ? "this build lacks it: it was not compiled for this chip" : nullptr;
}

// Both orders of the ladder serve many problems: the one that is faster with many rows is taken for any number of them.
Order faster_order_of_ladder(const GpuProblem& problem, int64_t n, Mask legal, const Chip& chip) {
  constexpr int64_t kManyRows = 4096;
  GpuProblem many{};
  GemmProblem& p = many.gemm;
  p.m = kManyRows, p.n = n, p.k = problem.gemm.k, p.dtype = problem.gemm.dtype;
  p.stride_am = p.k, p.stride_ak = 1, p.stride_bk = n, p.stride_bn = 1, p.stride_cm = n, p.stride_cn = 1;
  many.batch_size = 1, many.chunk_k = problem.chunk_k;
  Order order{};
  double least_us = 0;
  for (size_t i = 0; i < rungs().size(); ++i) {
    if (!(legal >> i & 1)) continue;
    Plan plan;
    rungs()[i]->plan(many, chip, plan);
    if (least_us == 0 || plan.cost_us < least_us) least_us = plan.cost_us, order = rungs()[i]->order;
  }
  return order;
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

bool is_built(bool is_gpu) {
  return std::any_of(rungs().begin(), rungs().end(),
                     [&](const Rung* rung) { return rung->is_gpu == is_gpu && rung->launch; });
}

int32_t num_algorithms() { return int32_t(algorithms().names.size()); }
const char* algorithm_name(int32_t algorithm) { return algorithms().names[size_t(algorithm)].c_str(); }
int32_t find_algorithm(std::string_view name) {
  const auto& names = algorithms().names;
  const auto found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? -1 : int32_t(found - names.begin());
}

Choice select(const GpuProblem& problem, int64_t n, int32_t algorithm, const Chip& chip,
              std::vector<Candidate>* candidates) {
  const Mask wanted = admitted(algorithm, chip), considered = candidates ? admitted(kAuto, chip) : wanted;
  Mask legal = 0;
  Order order = Order::chain;
  bool has_order_of_ladder = false;
  for (size_t i = 0; considered >> i; ++i) {
    if (!(considered >> i & 1)) continue;
    const Rung& rung = *rungs()[i];
    const char* reason = refuse(rung, problem, chip);
    if (candidates) {
      candidates->push_back({&rung, reason, {}});
      if (!reason) rung.plan(problem, chip, candidates->back().plan);
    }
    if (reason || !(wanted >> i & 1)) continue;
    legal |= Mask(1) << i;
    order = std::max(order, rung.order);
    has_order_of_ladder = has_order_of_ladder || rung.order == Order::chain;
  }
  if (order == Order::mma_chain && has_order_of_ladder) {
    order = faster_order_of_ladder(problem, n, legal, chip);
  }
  Choice choice{};
  for (size_t i = 0; legal >> i; ++i) {
    const Rung& rung = *rungs()[i];
    if (!(legal >> i & 1) || rung.order != order) continue;
    Plan plan;
    rung.plan(problem, chip, plan);
    if (!choice.rung || plan.cost_us < choice.plan.cost_us) choice = {&rung, plan};
  }
  return choice;
}

const char* explain_refusal(const GpuProblem& problem, int32_t algorithm, const Chip& chip) {
  const Mask wanted = admitted(algorithm, chip);
  const char* reason = nullptr;
  for (size_t i = 0; wanted >> i; ++i) {
    if (wanted >> i & 1) reason = refuse(*rungs()[i], problem, chip);
  }
  if (reason) return reason;
  return chip.platform == Platform::cpu ? "it has no CPU kernel, only GPUs have it" : "it has no GPU kernel";
}

bool serves_row_sums(const GpuProblem& problem, int32_t algorithm, const Chip& chip) {
  const Mask wanted = admitted(algorithm, chip);
  for (size_t i = 0; wanted >> i; ++i) {
    if ((wanted >> i & 1) && !refuse(*rungs()[i], problem, chip)) return true;
  }
  return false;
}

}  // namespace tiledmm

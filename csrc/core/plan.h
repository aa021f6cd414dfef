// A kernel's plan for one problem, as it travels from the dispatcher to the launcher.
#pragma once

#include <cmath>
#include <type_traits>
#include <vector>

#include "core/executor.h"
#include "core/problem.h"

namespace tiledmm {

// One way of a kernel to compute a problem on a chip: its predicted time, and the tile numbers that its launcher takes.
struct Plan {
  double cost_us = 0;
  alignas(8) char config[256];

  template <class T>
  T& as() {
    static_assert(sizeof(T) <= sizeof config && std::is_trivially_copyable_v<T>, "a plan is plain data of this size");
    return *reinterpret_cast<T*>(config);
  }
  template <class T>
  const T& as() const {
    return const_cast<Plan*>(this)->as<T>();
  }
};

// A kernel shows its plans to it, one after the other: visit(config, cost_us). It writes the cheapest one, the first of
// those that take as long; or all of them, where somebody wants to compare them.
class PlanSearch {
 public:
  explicit PlanSearch(Plan& cheapest) : cheapest_(&cheapest) {}
  explicit PlanSearch(std::vector<Plan>& all) : all_(&all) {}

  bool wants_all() const { return all_ != nullptr; }
  // The time of the cheapest plan as yet. A plan that surely takes as long need not be shown; infinite: each is wanted.
  double least_us() const { return least_us_; }
  // False: the kernel has shown no plan that can be carried out.
  bool has_found() const { return least_us_ < HUGE_VAL; }

  // `own_us`: by what a kernel compares its own plans, where that is not the time of a whole call.
  template <class Config>
  void operator()(const Config& config, double cost_us, double own_us) {
    if (own_us >= least_us_) return;
    Plan& plan = all_ ? all_->emplace_back() : *cheapest_;
    plan.cost_us = cost_us;
    plan.as<Config>() = config;
    if (!all_) least_us_ = own_us;
  }
  template <class Config>
  void operator()(const Config& config, double cost_us) {
    (*this)(config, cost_us, cost_us);
  }
  // Completes what was shown by what comparing it does not need: complete(config).
  template <class Config, class Complete>
  void complete(const Complete& complete) {
    if (all_) {
      for (Plan& plan : *all_) complete(plan.as<Config>());
    } else if (has_found()) {
      complete(cheapest_->as<Config>());
    }
  }

 private:
  Plan* cheapest_ = nullptr;
  std::vector<Plan>* all_ = nullptr;
  double least_us_ = HUGE_VAL;
};

// A kernel that has nothing to choose shows this as its one configuration.
struct NoConfig {};

// Launchers are declared with this: one that is not linked is null.
#define TILEDMM_IF_LINKED __attribute__((weak))
// They compute a problem that is not empty.
using Launcher = Status(const FoldedProblem& problem, const Plan& plan, const Executor& executor);

}  // namespace tiledmm

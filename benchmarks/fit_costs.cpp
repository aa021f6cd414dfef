// A kernel's plans with tables of costs that can be set: fit_costs.py compiles this for each kernel, beside a copy of
// its costs.h whose rows are variables. RUNG_SOURCE is its rung.cpp, RUNG its entry, TABLES are the names of its
// tables.
#include RUNG_SOURCE

#include <vector>

#include "dispatch/chips.h"
#include "dispatch/fold_batch.h"

namespace {

using namespace tiledmm;

Chip chip;

struct Values {
  Cost* first;
  int64_t count;
};

// The first row of a table becomes the chip's own, and holds what the chip has now.
template <class Costs, size_t N>
Values take_over(CostRow<Costs> (&rows)[N]) {
  Costs borrowed;
  rows[0].costs = costs_for(rows, chip, borrowed);
  rows[0].arch = chip.arch;
  return {reinterpret_cast<Cost*>(&rows[0].costs), sizeof(Costs) / sizeof(Cost)};
}

template <class... Tables>
std::vector<Values> take_over_all(Tables&... tables) {
  return {take_over(tables)...};
}

}  // namespace

// The values of each table; false: the chip is not known. Once for each load of this library.
extern "C" __attribute__((visibility("default"))) bool fit_start(const char* device, Values* values) {
  const Chip* row = find_chip(device);
  if (!row) return false;
  chip = *row;
  for (const Values& own : take_over_all(TABLES)) *values++ = own;
  return true;
}

// The predicted times of all plans of all problems, one after the other; `counts` has the number of each problem's.
extern "C" __attribute__((visibility("default"))) void fit_times(const GemmProblem* problems, int64_t num_problems,
                                                                 double* times, int64_t capacity, int64_t* counts) {
  std::vector<Plan> plans;
  for (int64_t i = 0; i < num_problems; ++i) {
    BatchDim dims[kMaxBatchDims];
    const FoldedProblem problem = fold_batch(problems[i], dims);
    plans.clear();
    PlanSearch all(plans);
    if (!gpu::RUNG.refusal(problem, chip)) gpu::RUNG.for_each_plan(problem, chip, all);
    counts[i] = int64_t(plans.size());
    for (const Plan& plan : plans) {
      if (capacity-- > 0) *times++ = plan.cost_us;
    }
  }
}

// The constants of cost models: a table for each model, with a row for each chip that somebody has fitted it to
// (benchmarks/fit_costs.py). A chip without a row borrows that of the chip that it is modelled after.
#pragma once

#include "core/chip.h"

namespace tiledmm {

// What scales a constant from chip to chip: the rate of multiply-adds of one multiprocessor bounds its times; that of
// memory is shared by all. The others are the same on every chip: latencies, what one multiprocessor moves by itself,
// pure numbers.
enum class CostKind : int32_t { fma_f32, mma_16, mma_f64, memory, fixed };

struct Cost {
  double value;
  CostKind kind;
  constexpr operator double() const { return value; }
};
template <CostKind KIND>
struct CostOf : Cost {
  constexpr CostOf(double value) : Cost{value, KIND} {}
};
// Times are in microseconds, rates in bytes for each microsecond, where a table says nothing else.
using FmaTime = CostOf<CostKind::fma_f32>;
using Mma16Time = CostOf<CostKind::mma_16>;  // tf32, too, which has half the rate on every chip
using Mma64Time = CostOf<CostKind::mma_f64>;
using MemoryRate = CostOf<CostKind::memory>;
using Fixed = CostOf<CostKind::fixed>;

// Costs has members of these types alone, whose defaults are the H200's.
template <class Costs>
struct CostRow {
  int32_t arch;  // of the chip's row in dispatch/chips.cpp
  Costs costs;
};

// The constants for a chip: a row of the table, or a scaled one, which is written to `borrowed`.
template <class Costs, size_t N>
const Costs& costs_for(const CostRow<Costs> (&rows)[N], const Chip& chip, Costs& borrowed) {
  for (const Chip* fitted = &chip; fitted; fitted = fitted->modelled_after) {
    for (const CostRow<Costs>& row : rows) {
      if (row.arch != fitted->arch) continue;
      if (fitted == &chip) return row.costs;
      const auto slower = [&](const double (&tflops)[kNumDTypes], const double (&own)[kNumDTypes], DType dtype) {
        return tflops[int(dtype)] / fitted->num_cus / (own[int(dtype)] / chip.num_cus);
      };
      const double factors[] = {slower(fitted->simt_tflops, chip.simt_tflops, DType::f32),
                                slower(fitted->mma_tflops, chip.mma_tflops, DType::f16),
                                slower(fitted->mma_tflops, chip.mma_tflops, DType::f64),
                                chip.tbytes_per_second / fitted->tbytes_per_second, 1};
      borrowed = row.costs;
      Cost* const costs = reinterpret_cast<Cost*>(&borrowed);
      for (size_t i = 0; i < sizeof borrowed / sizeof(Cost); ++i) costs[i].value *= factors[int(costs[i].kind)];
      return borrowed;
    }
  }
  return rows[0].costs;
}

}  // namespace tiledmm

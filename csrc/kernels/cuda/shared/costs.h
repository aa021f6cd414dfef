// The constants of cost models: a table for each model, with a row for each chip that somebody has fitted it to
// (benchmarks/fit_costs.py). A chip without a row borrows that of the chip that it is modelled after.
//
// A row has its constants in groups, by what the rates of a chip do to them:
//   multiply  times of one multiprocessor that its rate of multiply-adds bounds: Costs::rate() of the whole chip
//   memory    bytes, or elements, for each microsecond that memory and the second-level cache give to all of them
//   fixed     what no rate changes: latencies, what one multiprocessor moves by itself, pure numbers
#pragma once

#include "core/chip.h"

namespace tiledmm {

template <class Costs>
struct CostRow {
  int32_t arch;  // of the chip's row in dispatch/chips.cpp
  Costs costs;
};

template <class Group>
void scale(Group& group, double factor) {
  double* const values = reinterpret_cast<double*>(&group);
  for (size_t i = 0; i < sizeof group / sizeof(double); ++i) values[i] *= factor;
}

// The constants for a chip: a row of the table, or a scaled one, which is written to `borrowed`.
template <class Costs, size_t N>
const Costs& costs_for(const CostRow<Costs> (&rows)[N], const Chip& chip, Costs& borrowed) {
  for (const Chip* fitted = &chip; fitted; fitted = fitted->modelled_after) {
    for (const CostRow<Costs>& row : rows) {
      if (row.arch != fitted->arch) continue;
      if (fitted == &chip) return row.costs;
      borrowed = row.costs;
      const double rate = Costs::rate(chip) / chip.num_cus, fitted_rate = Costs::rate(*fitted) / fitted->num_cus;
      scale(borrowed.multiply, fitted_rate / rate);
      scale(borrowed.memory, chip.tbytes_per_second / fitted->tbytes_per_second);
      return borrowed;
    }
  }
  return rows[0].costs;
}

}  // namespace tiledmm

// The constants of the few_rows kernel's cost model, none of them measured here: the rate is what vLLM's wvSplitK
// reaches on an RX 7900 XTX (mudler/vllm.cpp, PR 506), the rest is assumed.
#pragma once

namespace tiledmm {

struct FewCosts {
  double rate = 0.95;                // share of the memory's rate with which the large operand arrives,
  double loads = 16, latency = 0.8;  // if enough of it is on its way: loads of a warp, each with so many us
  double multiply_add = 0.5;         // share of the data sheet's rate of multiply-adds
  double by_element = 6;             // how many times longer it takes element by element
  double start = 4;                  // us of a launch
};
inline constexpr FewCosts kFewCosts{};

}  // namespace tiledmm

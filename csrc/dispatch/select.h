// Which kernel computes a problem: order of summation -> legal -> cheapest. Pure: the same arguments, the same answer.
#pragma once

#include <string_view>
#include <vector>

#include "core/rung.h"

namespace tiledmm {

// All kernels, in the order of kernels/rungs.def.
const std::vector<const Rung*>& rungs();
// Whether this library has kernels for the GPUs of a platform.
bool is_built(Platform platform);

// Algorithms by index: auto, native, split, then the names of the kernels, each once. A name without a variant stands
// for all its variants where a device has no kernel of that very name: register_tiled on a CPU.
//
// A name with a number, "wgmma:3", is the plan of that number among those that the kernel shows that the name stands
// for. Its index is that of the name, and above it the number plus 1.
inline constexpr int32_t kAuto = 0, kNative = 1, kSplit = 2;
inline constexpr int kNameBits = 8;
constexpr int32_t name_of(int32_t algorithm) { return algorithm & ((1 << kNameBits) - 1); }
constexpr int32_t plan_of(int32_t algorithm) { return (algorithm >> kNameBits) - 1; }  // -1: the kernel's own choice
int32_t num_algorithms();
const char* algorithm_name(int32_t algorithm);
int32_t find_algorithm(std::string_view name);  // -1: there is none
// The kernels for GPUs, or for CPUs, that an algorithm stands for.
std::vector<const Rung*> kernels_of(int32_t algorithm, bool is_gpu);

struct Candidate {
  const Rung* rung;
  const char* reason;  // why it is not legal; null: it is
  Plan plan;
};

struct Choice {
  const Rung* rung = nullptr;  // null: none
  Plan plan;
};

// The cheapest of the kernels that `algorithm` admits and that are of one order of summation; of `native` ones in plain
// fp32 where it stands for a split kernel that leaves the problem to them. That order is a function
// of the caller's n (before a batch was folded into it), of k, dtype and chip, so that a row's bits depend neither on m
// nor on the batch.
Choice select(const FoldedProblem& problem, int32_t algorithm, const Chip& chip);

// All kernels of the chip's kind of device, as explain shows them.
std::vector<Candidate> list_candidates(const FoldedProblem& problem, const Chip& chip);

// The plans of a kernel that is legal.
std::vector<Plan> list_plans(const FoldedProblem& problem, const Rung& rung, const Chip& chip);

// Why an algorithm that has no choice has none.
const char* explain_refusal(const FoldedProblem& problem, int32_t algorithm, const Chip& chip);

// Whether a problem has a choice, by_production: beside the ladder.
bool serves(const FoldedProblem& problem, int32_t algorithm, const Chip& chip, bool by_production);

}  // namespace tiledmm

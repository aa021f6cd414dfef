// Grouped products on a CPU: by kernels that know one product.
#pragma once

#include <functional>

#include "core/executor.h"
#include "core/groups.h"

namespace tiledmm {

// Computes the product of a group, or a block of its C. Threads call it side by side.
using RunProduct = std::function<Status(const GemmProblem& product, const Executor& executor)>;

// Large groups are computed one after the other, each by all threads; blocks of the others side by side, each by one.
// No bit depends on that. Returns the status of a product that failed, if one did.
Status run_groups(const GemmProblem& problem, const Executor& executor, const RunProduct& run);

// Whether all threads compute the product of a group.
bool is_large_group(const GemmProblem& product, int64_t num_threads);

}  // namespace tiledmm

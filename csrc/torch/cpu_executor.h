// torch's threads and torch's memory for kernels of the CPU.
#pragma once

#include "core/executor.h"

namespace tiledmm {

// Its tasks run with the floating-point control of the thread that calls parallel_for. In a child of fork they all run
// on that thread.
Executor cpu_executor();

}  // namespace tiledmm

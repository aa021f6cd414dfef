// torch's threads and torch's memory for kernels of the CPU.
#pragma once

#include "core/executor.h"

namespace tiledmm {

// Its tasks run with the floating-point control of the thread that calls parallel_for. In a child of fork they all run
// on that thread.
Executor cpu_executor();

// In a child of fork torch's own functions, too, run on the calling thread while the object lives. Elsewhere it does
// nothing.
class TorchOnOneThreadInChild {
 public:
  TorchOnOneThreadInChild();
  ~TorchOnOneThreadInChild();
  TorchOnOneThreadInChild(const TorchOnOneThreadInChild&) = delete;
  TorchOnOneThreadInChild& operator=(const TorchOnOneThreadInChild&) = delete;

 private:
  int num_threads_;  // as it was; 0: unchanged
};

}  // namespace tiledmm

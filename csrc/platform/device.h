// The GPUs of this process, for the dispatcher. Plain: any compiler takes it.
#pragma once

#include <cstdint>

#include "core/elementwise.h"
#include "core/executor.h"
#include "core/plan.h"
#include "core/quantize.h"
#include "core/reduce.h"
#include "core/softmax.h"

namespace tiledmm::gpu {

struct Device {
  int32_t arch;  // NVIDIA: 90 for sm_90. AMD: 0x942 for gfx942. The host executor: 0
  int32_t num_cus, warp_size;
  int32_t max_shared_bytes;  // of one block
};

// GPU `idx` becomes the current one of the calling thread; what its runtime says of it, asked once. False where there
// is none. Null in a library without GPU kernels.
TILEDMM_IF_LINKED bool use_device(int32_t idx, Device& device);
// A function of each element, on the executor's stream.
TILEDMM_IF_LINKED Status launch_elementwise(const ElementwiseProblem& problem, const Executor& executor);
// Sums along a dimension, on the executor's stream.
TILEDMM_IF_LINKED Status launch_reduce(const ReduceProblem& problem, const Executor& executor);
// Weights of attention, on the executor's stream.
TILEDMM_IF_LINKED Status launch_softmax(const SoftmaxProblem& problem, const Executor& executor);
// Elements of 8 bits with scales, on the executor's stream.
TILEDMM_IF_LINKED Status launch_quantize(const QuantizeProblem& problem, const Executor& executor);
// Why these, or a launch, failed, in the runtime's words; null where it has none. The runtime forgets it.
TILEDMM_IF_LINKED const char* take_error();

}  // namespace tiledmm::gpu

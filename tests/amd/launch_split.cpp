// Launches mfma_split without a GPU, by a plan that the caller may change: its host side as it is. Compiled by clang
// for the host alone (launches.py).
#include "kernels/hip/mfma/rung.cpp"
#include "kernels/hip/mfma_split/launch.cu"

#include "fake_runtime.h"

// The plan of a chip with `num_cus` CUs, eight of them on a die; its tile is that of `shape`. Returns the status.
extern "C" __attribute__((visibility("default"))) int launch(const tiledmm::FoldedProblem* problem, int shape,
                                                             int num_cus, const tiledmm::Executor* executor,
                                                             Record recorder) {
  const tiledmm::Chip chip{"", tiledmm::Platform::hip, 0x942,        num_cus, 64, 64 << 10,
                           1,  {1, 1, 1, 1},           {1, 1, 1, 1}, false,   8};
  tiledmm::Plan plan;
  tiledmm::PlanSearch search(plan);
  for_each_mfma_split_plan(*problem, 1, chip, search);
  plan.as<tiledmm::MfmaSplitPlan>().shape = shape;
  record = recorder;
  return int(tiledmm::gpu::launch_mfma_split(*problem, plan, *executor));
}

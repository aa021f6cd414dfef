// Launches rung 12 without a GPU, by a plan that the caller may change: its host side as it is. Compiled by clang for
// the host alone; test_mfma.py has the command.
#include "kernels/hip/mfma/launch.cu"
#include "fake_runtime.h"
#include "kernels/hip/mfma/kernel.h"

// The plan of a chip with `num_cus` CUs, eight of them on a die; of `shape` and `chunk_k` those that are asked for,
// else (negative) the planned ones. Returns the status.
extern "C" __attribute__((visibility("default"))) int launch(const tiledmm::FoldedProblem* problem, int shape,
                                                             int64_t chunk_k, bool splits, int num_cus,
                                                             const tiledmm::Executor* executor, Record recorder) {
  const tiledmm::Chip chip{"",           tiledmm::Platform::hip, 0,     num_cus, 64, 64 << 10, 1,
                           {1, 1, 1, 1}, {1, 1, 1, 1},           false, 8};
  tiledmm::Plan plan;
  tiledmm::PlanSearch search(plan);
  for_each_mfma_plan(*problem, chip, search);
  auto& own = plan.as<tiledmm::MfmaPlan>();
  if (shape >= 0) own.shape = shape;
  const bool has_odd_rows = own.copies == tiledmm::MfmaCopies::of_odd_rows;
  if (has_odd_rows && !copies_odd_rows(problem->gemm.dtype_a, own.shape)) own.copies = tiledmm::MfmaCopies::by_element;
  if (chunk_k >= 0) own.chunk_k = chunk_k;
  own.num_splits = splits ? tiledmm::ceil_div(problem->gemm.k, own.chunk_k) : 1;
  record = recorder;
  return int(tiledmm::gpu::launch_mfma(*problem, plan, *executor));
}

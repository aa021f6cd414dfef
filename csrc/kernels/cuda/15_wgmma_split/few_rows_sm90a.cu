// Instances of the kernel for few rows, and the choice among them.
#include "kernels/cuda/15_wgmma_split/few_rows.h"
#include "kernels/cuda/shared/tensor_map.h"

namespace tiledmm::cuda {
namespace {

template <int ROWS, bool IS_K_MAJOR, bool IS_A>
const char* launch(const FewTask& task) {
  const unsigned cluster = 1u << task.args.log2_cluster;
  return launch_in_clusters<&few_rows<ROWS, IS_K_MAJOR, IS_A>>(
      dim3(cluster, 1, 1), dim3(unsigned(task.num_clusters) * cluster), kFewThreads, FewConfig<ROWS>::kSmem,
      task.stream, task.large, task.terms, task.args);
}

template <int ROWS>
const char* launch_layouts(const FewTask& task) {
  if (task.is_k_major) return task.is_a ? launch<ROWS, true, true>(task) : launch<ROWS, true, false>(task);
  return task.is_a ? launch<ROWS, false, true>(task) : launch<ROWS, false, false>(task);
}

}  // namespace

const char* launch_few_rows(const FewTask& task) {
  const int width = few_width(task.args.problem.gemm.m);
  return width == 8    ? launch_layouts<8>(task)
         : width == 16 ? launch_layouts<16>(task)
         : width == 32 ? launch_layouts<32>(task)
                       : launch_layouts<64>(task);
}

}  // namespace tiledmm::cuda

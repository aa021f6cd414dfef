// Instances of the kernel for few rows, and the choice among them.
#include "kernels/cuda/shared/tensor_map.h"
#include "kernels/cuda/wgmma_split/few_rows.h"

namespace tiledmm::cuda {
namespace {

template <int ROWS, FewSource SOURCE, bool IS_A>
const char* launch(const FewTask& task) {
  const auto cluster = unsigned(task.cluster);
  return launch_in_clusters<&few_rows<ROWS, SOURCE, IS_A>>(
      dim3(1, cluster, 1), dim3(unsigned(task.num_clusters), cluster), kFewThreads, FewConfig<ROWS>::kSmem, task.stream,
      task.large, task.terms, task.args);
}

template <int ROWS, FewSource SOURCE>
const char* launch_roles(const FewTask& task) {
  return task.is_a ? launch<ROWS, SOURCE, true>(task) : launch<ROWS, SOURCE, false>(task);
}

template <int ROWS>
const char* launch_sources(const FewTask& task) {
  switch (task.source) {
    case FewSource::boxes_along_k:
      return launch_roles<ROWS, FewSource::boxes_along_k>(task);
    case FewSource::boxes_along_rows:
      return launch_roles<ROWS, FewSource::boxes_along_rows>(task);
    default:
      return launch_roles<ROWS, FewSource::memory>(task);
  }
}

}  // namespace

const char* launch_few_rows(const FewTask& task) {
  const int width = few_width(task.args.problem.gemm.m);
  return width == 8    ? launch_sources<8>(task)
         : width == 16 ? launch_sources<16>(task)
         : width == 32 ? launch_sources<32>(task)
                       : launch_sources<64>(task);
}

}  // namespace tiledmm::cuda

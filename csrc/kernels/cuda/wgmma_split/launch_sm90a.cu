// Host side of wgmma_split: the workspace, and the launches: three or four for tiles, one or two for few rows.
#include <cuda_fp16.h>

#include "core/plan.h"
#include "core/transposed.h"
#include "kernels/cuda/shared/tensor_map.h"
#include "kernels/cuda/wgmma_split/few_rows_launch.h"
#include "kernels/cuda/wgmma_split/kernel.h"
#include "kernels/split/fix_up.h"
#include "kernels/split/groups.h"

namespace tiledmm::cuda {
namespace {

template <class Loader>
bool encode_terms(CUtensorMap& map, Boxes& boxes, const gpu::SplitOperand& operand, bool is_shared) {
  const SplitLayout& layout = operand.layout;
  const int64_t k = layout.padded_k();
  const TensorMapView view{true, k, layout.rows, k, layout.terms_of_item(), layout.num_terms * layout.num_items};
  boxes.policy = CachePolicy::evict_normal;
  return Loader::encode(map, boxes, DType::f16, operand.terms, view, is_shared);
}

// What the tiles' functions need; `items` as above.
Arguments tile_arguments(const FoldedProblem& problem, const FoldedProblem& items, const SplitWork& plan) {
  const GemmProblem& p = problem.gemm;
  Arguments args{};
  args.num_k_tiles = int(plan.a.num_blocks());
  args.chunk_tiles = args.num_k_tiles;
  args.last_row = int((ceil_div(p.m, kSplitBlock) - 1) * kSplitBlock);
  args.last_col = int((plan.tiles_n - 1) * kSplitBlock);
  args.num_splits = 1;
  args.cluster_m = plan.has_pairs;
  args.tiles_m = int(plan.tiles_m);
  args.tiles_n = int(plan.tiles_n);
  args.groups = TileGroups(args.tiles_m, args.tiles_n, plan.group_m);
  args.tiles_of_item = Divisor(args.tiles_m * args.tiles_n);
  args.num_batch_dims = p.num_batch_dims;
  bool are_batches_even = true;
  for (int32_t d = 0; d < p.num_batch_dims; ++d) {
    const BatchDim& dim = items.batch_dims[d];
    args.batch[d] = {int(dim.size), int(dim.stride_a), int(dim.stride_b), dim.stride_c, dim.stride_bias};
    are_batches_even = are_batches_even && dim.stride_c % 2 == 0;
  }
  args.m = int(p.m);
  args.n = int(p.n);
  set_epilogue(args, problem);
  args.c = p.c;
  args.stores_pairs = reinterpret_cast<uintptr_t>(p.c) % 8 == 0 && p.n % 2 == 0 && p.stride_cn == 1 &&
                      (p.stride_cm % 2 == 0 || p.m == 1) && are_batches_even;
  return args;
}

// The kernel that splits one operand or both, of which what has 16 bits has elements SHORT.
template <class SHORT>
const char* launch_split_elements(const gpu::SplitOperands& split, cudaStream_t stream) {
  return launch_overlapped<&gpu::split_operands<gpu::SplitPlaces::apart, SHORT>>(gpu::num_tiles(split),
                                                                                 gpu::kSplitThreads, 0, stream, split);
}
const char* launch_split_operands(const gpu::SplitOperands& split, cudaStream_t stream) {
  const auto has = [&](DType dtype) { return split.of[0].dtype == dtype || split.of[1].dtype == dtype; };
  return has(DType::f16)    ? launch_split_elements<Half>(split, stream)
         : has(DType::bf16) ? launch_split_elements<BFloat16>(split, stream)
                            : launch_split_elements<float>(split, stream);
}

template <int TERMS_A, int TERMS_B>
const char* launch_tiles(const FoldedProblem& problem, const SplitWork& plan, char* memory, int num_cus,
                         cudaStream_t stream) {
  const GemmProblem& p = problem.gemm;
  FoldedProblem items = problem;
  const gpu::SplitOperands split{
      {gpu::split_operand<gpu::SplitPlaces::apart>(view_a(p), problem, plan.a, items, memory),
       gpu::split_operand<gpu::SplitPlaces::apart>(view_b(p), problem, plan.b, items, memory + plan.a.bytes())}};
  const int cluster = plan.has_pairs ? 2 : 1;
  SplitArguments args{};
  args.tiles = tile_arguments(problem, items, plan);
  args.scales_a = split.of[0].scales;
  args.scales_b = split.of[1].scales;
  args.num_chunks = int(plan.a.num_chunks());
  args.padded_m = int(plan.a.padded_rows());
  args.padded_n = int(plan.b.padded_rows());
  args.whole_tiles = int(plan.whole_tiles);
  args.num_units = int(plan.num_units());
  args.sums = reinterpret_cast<float*>(memory + plan.a.bytes() + plan.b.bytes());
  args.stride_cm = p.stride_cm;
  args.stride_cn = p.stride_cn;
  CUtensorMap map_a{}, map_b{};
  if (!encode_terms<SplitConfig::Loader>(map_a, args.tiles.a, split.of[0], false) ||
      !encode_terms<SplitConfig::Loader>(map_b, args.tiles.b, split.of[1], plan.has_pairs)) {
    return "the driver refuses a tensor map";
  }
  if (const char* refused = launch_split_operands(split, stream)) return refused;
  if (const char* refused = launch_in_clusters<&wgmma_split_kernel<SplitTerms<TERMS_A, TERMS_B>>>(
          dim3(unsigned(cluster)), dim3(unsigned(plan.num_blocks)), SplitConfig::kThreads, SplitConfig::kSmem, stream,
          map_a, map_b, args))
    return refused;
  if (const int64_t tiles = (plan.num_tiles - plan.whole_tiles) * cluster) {
    if (const char* refused =
            launch_overlapped<&add_split_chunks>(tiles * kBlocksOfTile, kAddThreads, 0, stream, args, problem))
      return refused;
  }
  const gpu::FixUpArguments fix_up_args = gpu::fix_up_arguments(problem, split, items, num_cus);
  return launch_overlapped<&gpu::fix_up<TERMS_A != TERMS_B>>(fix_up_args.num_blocks, gpu::kFixThreads, 0, stream,
                                                             fix_up_args);
}

const char* launch_tiles_of_terms(const FoldedProblem& problem, const SplitWork& plan, char* memory, int num_cus,
                                  cudaStream_t stream) {
  if (plan.a.num_terms == 1) return launch_tiles<1, 2>(problem, plan, memory, num_cus, stream);
  return plan.b.num_terms == 1 ? launch_tiles<2, 1>(problem, plan, memory, num_cus, stream)
                               : launch_tiles<2, 2>(problem, plan, memory, num_cus, stream);
}

// One kernel, behind one that splits the few rows if its blocks do not. `memory`: of that one.
const char* launch_late(const FoldedProblem& problem, const SplitWork& plan, char* memory, cudaStream_t stream) {
  FewTask task{};
  FewArguments& args = task.args;
  task.stream = stream;
  task.is_a = plan.late == SplitLate::a;
  args.problem = task.is_a ? transposed(problem) : problem;
  const GemmProblem& p = args.problem.gemm;
  TensorMapView view;
  const bool is_described = describe_operand(view_b(p), args.problem, view);
  task.source = !is_described     ? FewSource::memory
                : view.is_k_major ? FewSource::boxes_along_k
                                  : FewSource::boxes_along_rows;
  args.num_blocks = int(plan.a.num_blocks());
  args.num_chunks = int(plan.a.num_chunks());
  args.num_tiles = int(ceil_div(p.n, kFewTile));
  args.num_rounds = ceil_div(args.num_chunks, plan.cluster);
  while (2 << args.log2_parts <= plan.cluster) ++args.log2_parts;
  task.num_clusters = problem.batch_size * args.num_tiles;
  task.cluster = plan.cluster;
  constexpr int kBoxInner = 32;  // 128 bytes
  if (is_described) {
    if (!encode_tensor_map(&task.large, DType::f32, p.b, view, kBoxInner, 64, 128, false))
      return "the driver refuses a tensor map";
    args.stage_bytes = 2 * kBoxInner * 64 * 4;
  }
  FoldedProblem items = args.problem;
  if (memory) {
    const gpu::SplitOperands split{
        {gpu::split_operand<gpu::SplitPlaces::apart>(view_a(p), args.problem, plan.few(), items, memory), {}}};
    args.scales = split.of[0].scales;
    args.padded_few = int(plan.few().padded_rows());
    Boxes boxes{};
    if (!encode_terms<BoxLoader<__half, kFewRows, kFewRows, true>>(task.terms, boxes, split.of[0], false))
      return "the driver refuses a tensor map";
    args.term_rows = boxes.rows;
    args.stage_bytes += 2 * 128 * boxes.rows;
    if (const char* refused = launch_split_operands(split, stream)) return refused;
  }
  for (int32_t d = 0; d < p.num_batch_dims; ++d) {
    args.steps[d] = {int(items.batch_dims[d].stride_a),
                     is_described ? int(args.problem.batch_dims[d].stride_b / view.batch_step) : 0};
  }
  return launch_few_rows(task);
}

}  // namespace
}  // namespace tiledmm::cuda

namespace tiledmm::gpu {

namespace {

Status launch_group(const FoldedProblem& problem, const SplitWork& plan, const Executor& executor) {
  const auto stream = static_cast<cudaStream_t>(executor.stream);
  const int64_t bytes = plan.workspace_bytes();
  char* memory = bytes ? static_cast<char*>(executor.allocate(executor.self, size_t(bytes))) : nullptr;
  if (bytes && !memory) return Status::out_of_memory;
  const char* refused = plan.late == SplitLate::none
                            ? cuda::launch_tiles_of_terms(problem, plan, memory, executor.num_cus, stream)
                            : cuda::launch_late(problem, plan, memory, stream);
  if (memory) executor.release(executor.self, memory);
  return refused ? Status::launch_failed : Status::ok;
}

}  // namespace

Status launch_wgmma_split(const FoldedProblem& problem, const Plan& made, const Executor& executor) {
  const SplitPlan& plan = made.as<SplitPlan>();
  const FoldedProblem first = first_groups(problem);
  return launch_groups(problem, executor, [&](const FoldedProblem& group) {
    const bool is_rest = group.gemm.k < first.gemm.k, are_fewer = group.batch_size < first.batch_size;
    return launch_group(group, lay_out(group, is_rest ? plan.rest : are_fewer ? plan.fewer : plan.first), executor);
  });
}

}  // namespace tiledmm::gpu

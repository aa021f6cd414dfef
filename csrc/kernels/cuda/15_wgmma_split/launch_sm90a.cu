// Host side of rung 15: the workspace, and the launches, three where anything is split.
#include <cuda_fp16.h>

#include "core/plan.h"
#include "core/transposed.h"
#include "kernels/cuda/15_wgmma_split/few_rows_launch.h"
#include "kernels/cuda/15_wgmma_split/fix_up.h"
#include "kernels/cuda/15_wgmma_split/kernel.h"
#include "kernels/cuda/15_wgmma_split/split_operands.h"
#include "kernels/cuda/shared/tensor_map.h"

namespace tiledmm::cuda {
namespace {

// An operand's part of the workspace and its tiles; flags alone if it is split late. `items` is the problem whose
// strides of the batch become places among the operand's items.
SplitOperand split_operand(const OperandView& view, const FoldedProblem& problem, const SplitLayout& layout,
                           FoldedProblem& items, char* memory, bool is_late) {
  SplitOperand operand{};
  operand.from = static_cast<const float*>(view.data);
  operand.stride_row = view.stride_row;
  operand.stride_k = view.stride_k;
  operand.layout = layout;
  operand.batch = gpu::plan_copied_batch(items, view.batch_stride, 1);
  operand.flags = reinterpret_cast<uint8_t*>(memory);
  if (is_late) return operand;
  operand.terms = reinterpret_cast<__half*>(memory);
  operand.scales = reinterpret_cast<float*>(memory + layout.term_bytes());
  operand.flags += layout.term_bytes() + layout.scale_bytes();
  operand.is_aligned = view.stride_k == 1 && is_aligned(view, problem);
  operand.tiles_rows = int(layout.padded_rows() / kSplitRows);
  operand.tile_k = layout.flag_blocks * kSplitBlockK;
  operand.tiles_k = int(layout.num_flags());
  operand.num_tiles = int(layout.num_items * operand.tiles_rows * operand.tiles_k);
  return operand;
}

template <class Loader>
bool encode_terms(CUtensorMap& map, Boxes& boxes, const SplitOperand& operand) {
  const SplitLayout& layout = operand.layout;
  const int64_t k = layout.padded_k();
  const TensorMapView view{true, k, layout.rows, k, layout.terms_of_item(), 2 * layout.num_items};
  boxes.policy = CachePolicy::evict_normal;
  return Loader::encode(map, boxes, DType::f16, operand.terms, view, false);
}

// What the tiles' functions need; `items` as above.
Arguments tile_arguments(const FoldedProblem& problem, const FoldedProblem& items, const SplitPlan& plan,
                         int64_t num_blocks) {
  const GemmProblem& p = problem.gemm;
  Arguments args{};
  args.num_k_tiles = int(plan.a.num_blocks());
  args.chunk_tiles = args.num_k_tiles;
  args.last_row = int((plan.tiles_m - 1) * kSplitBlock);
  args.last_col = int((plan.tiles_n - 1) * kSplitBlock);
  args.num_splits = 1;
  args.tiles_m = int(plan.tiles_m);
  args.tiles_n = int(plan.tiles_n);
  args.num_tiles = int(plan.num_tiles);
  // The tiles in flight form about a square of C, in groups of about the same size.
  int64_t square = 1;
  while (square * square < num_blocks) ++square;
  args.group_m = int(ceil_div(plan.tiles_m, max_of(1, (plan.tiles_m + square / 2) / square)));
  args.full_group_m = Divisor(args.group_m);
  args.last_group_m = Divisor(args.tiles_m - (args.tiles_m - 1) / args.group_m * args.group_m);
  args.tiles_of_group = Divisor(args.group_m * args.tiles_n);
  args.tiles_of_item = Divisor(args.tiles_m * args.tiles_n);
  args.num_batch_dims = p.num_batch_dims;
  bool are_batches_even = true;
  for (int32_t d = 0; d < p.num_batch_dims; ++d) {
    const BatchDim& dim = items.batch_dims[d];
    args.batch[d] = {int(dim.size), int(dim.stride_a), int(dim.stride_b), dim.stride_c};
    are_batches_even = are_batches_even && dim.stride_c % 2 == 0;
  }
  args.m = int(p.m);
  args.n = int(p.n);
  args.activation = p.activation;
  args.bias = p.bias;
  args.stride_bias_m = p.stride_bias_m;
  args.stride_bias_n = p.stride_bias_n;
  args.c = p.c;
  args.stores_pairs = reinterpret_cast<uintptr_t>(p.c) % 8 == 0 && p.n % 2 == 0 && p.stride_cn == 1 &&
                      (p.stride_cm % 2 == 0 || p.m == 1) && are_batches_even;
  return args;
}

const char* launch_fix_up(const FoldedProblem& problem, const SplitPlan& plan, const SplitOperands* split,
                          const FoldedProblem& items, int num_sms, cudaStream_t stream) {
  FixUpArguments args{};
  args.problem = problem;
  args.chunk_k = simt_chunk_k(1, problem.gemm.k);
  args.tiles_m = int(plan.tiles_m);
  args.tiles_n = int(plan.tiles_n);
  args.num_tiles = int(plan.num_tiles);
  if (split) {
    const auto flags_of = [](const SplitOperand& operand) {
      return FixUpFlags{operand.flags, int(operand.layout.num_flags()), int(operand.layout.padded_rows())};
    };
    args.flags_a = flags_of(split->of[0]);
    args.flags_b = flags_of(split->of[1]);
    for (int32_t d = 0; d < problem.gemm.num_batch_dims; ++d) {
      args.item_step_a[d] = int(items.batch_dims[d].stride_a);
      args.item_step_b[d] = int(items.batch_dims[d].stride_b);
    }
  }
  return launch_overlapped<&fix_up>(min_of(plan.num_tiles, num_sms), kFixThreads, 0, stream, args);
}

// The split of what is not split late: of one operand or both.
const char* launch_split_operands(const SplitOperands& split, cudaStream_t stream) {
  return launch_overlapped<&split_operands>(split.of[0].num_tiles + split.of[1].num_tiles, kSplitThreads, 0, stream,
                                            split);
}

const char* launch_tiles(const FoldedProblem& problem, const SplitPlan& plan, const SplitOperands& split,
                         const FoldedProblem& items, int num_sms, cudaStream_t stream) {
  const GemmProblem& p = problem.gemm;
  const int64_t num_blocks = min_of(plan.num_tiles, num_sms);
  SplitArguments args{};
  args.tiles = tile_arguments(problem, items, plan, num_blocks);
  args.scales_a = split.of[0].scales;
  args.scales_b = split.of[1].scales;
  args.num_blocks = int(plan.a.num_blocks());
  args.padded_m = int(plan.a.padded_rows());
  args.padded_n = int(plan.b.padded_rows());
  args.stride_cm = p.stride_cm;
  args.stride_cn = p.stride_cn;
  CUtensorMap map_a{}, map_b{};
  if (!encode_terms<SplitConfig::Loader>(map_a, args.tiles.a, split.of[0]) ||
      !encode_terms<SplitConfig::Loader>(map_b, args.tiles.b, split.of[1])) {
    return "the driver refuses a tensor map";
  }
  args.tiles.stage_bytes = 2 * 128 * (args.tiles.a.rows + args.tiles.b.rows) + 2 * SplitConfig::kScaleBytes;
  return launch_overlapped<&wgmma_split_kernel>(num_blocks, SplitConfig::kThreads, SplitConfig::kSmem, stream, map_a,
                                                map_b, args);
}

const char* launch_late(const FoldedProblem& problem, const SplitPlan& plan, const SplitOperands& split,
                        const FoldedProblem& items, cudaStream_t stream) {
  FewTask task{};
  FewArguments& args = task.args;
  task.stream = stream;
  task.is_a = plan.late == SplitLate::a;
  args.problem = task.is_a ? transposed(problem) : problem;
  const FoldedProblem places = task.is_a ? transposed(items) : items;
  const SplitOperand &few = split.of[task.is_a], &large = split.of[!task.is_a];
  TensorMapView view;
  const bool is_described = describe_operand(view_b(args.problem.gemm), args.problem, view);
  task.source = !is_described     ? FewSource::memory
                : view.is_k_major ? FewSource::boxes_along_k
                                  : FewSource::boxes_along_rows;
  for (int32_t d = 0; d < problem.gemm.num_batch_dims; ++d) {
    const BatchDim& place = places.batch_dims[d];
    args.steps[d] = {int(place.stride_a), int(place.stride_b),
                     is_described ? int(args.problem.batch_dims[d].stride_b / view.batch_step) : 0};
  }
  args.scales = few.scales;
  args.flags = large.flags;
  args.padded_few = int(few.layout.padded_rows());
  args.padded_large = int(large.layout.padded_rows());
  args.num_blocks = int(large.layout.num_blocks());
  args.num_chunks = int(large.layout.num_chunks());
  args.num_tiles = int(ceil_div(large.layout.rows, kFewTile));
  args.log2_cluster = plan.log2_cluster;
  task.num_clusters = problem.batch_size * args.num_tiles;
  constexpr int kBoxInner = 32;  // 128 bytes
  Boxes boxes{};
  if (!encode_terms<BoxLoader<__half, kFewRows, kFewRows, true>>(task.terms, boxes, few) ||
      (is_described && !encode_tensor_map(&task.large, DType::f32, large.from, view, kBoxInner, 64, 128, false))) {
    return "the driver refuses a tensor map";
  }
  args.term_rows = boxes.rows;
  args.stage_bytes =
      (is_described ? 2 * kBoxInner * 64 * 4 : 0) + 2 * 128 * boxes.rows + few_width(few.layout.rows) * 4;
  return launch_few_rows(task);
}

const char* launch_split(const FoldedProblem& problem, const SplitPlan& plan, char* memory, int num_sms,
                         cudaStream_t stream) {
  const GemmProblem& p = problem.gemm;
  FoldedProblem items = problem;
  SplitOperands split{
      {split_operand(view_a(p), problem, plan.a, items, memory, plan.late == SplitLate::a),
       split_operand(view_b(p), problem, plan.b, items, memory + plan.bytes_a(), plan.late == SplitLate::b)}};
  const char* refused = launch_split_operands(split, stream);
  if (!refused)
    refused = plan.late == SplitLate::none ? launch_tiles(problem, plan, split, items, num_sms, stream)
                                           : launch_late(problem, plan, split, items, stream);
  return refused ? refused : launch_fix_up(problem, plan, &split, items, num_sms, stream);
}

}  // namespace
}  // namespace tiledmm::cuda

namespace tiledmm::gpu {

Status launch_wgmma_split(const FoldedProblem& problem, const Plan& made, const Executor& executor) {
  const SplitPlan& plan = made.as<SplitPlan>();
  const auto stream = static_cast<cudaStream_t>(executor.stream);
  if (plan.is_plain) {
    const char* refused = cuda::launch_fix_up(problem, plan, nullptr, problem, executor.num_cus, stream);
    return refused ? Status::launch_failed : Status::ok;
  }
  void* memory = executor.allocate(executor.self, size_t(plan.bytes_a() + plan.bytes_b()));
  if (!memory) return Status::out_of_memory;
  const char* refused = cuda::launch_split(problem, plan, static_cast<char*>(memory), executor.num_cus, stream);
  executor.release(executor.self, memory);
  return refused ? Status::launch_failed : Status::ok;
}

}  // namespace tiledmm::gpu

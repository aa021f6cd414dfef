// Host side of rung 11: what is copied first, how the problem is described to the copy engine, which instance is
// launched.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <atomic>

#include "core/plan.h"
#include "kernels/cuda/11_wgmma/launch_tile.h"
#include "kernels/cuda/11_wgmma/plan.h"
#include "kernels/cuda/11_wgmma/repack.h"
#include "kernels/cuda/11_wgmma/tf32_launch.h"
#include "platform/chunk_sums.h"

namespace tiledmm::cuda {
namespace {

template <class T, int TILE = 0>
const char* launch_chosen(const Task& task) {
  if constexpr (TILE < kNumTileShapes)
    return task.plan.tile == TILE ? launch_tile<T, TILE>(task) : launch_chosen<T, TILE + 1>(task);
  else
    return "no such tile";
}

template <int TILE = 0>
const char* launch_chosen_tf32(const Task& task) {
  if constexpr (TILE < kNumTf32TileShapes)
    return task.plan.tile == TILE ? launch_tile_tf32<TILE>(task) : launch_chosen_tf32<TILE + 1>(task);
  else
    return "no such tile";
}

// Memory that relayed tiles pass through, lent until the kernel is launched.
class RelayMemory {
 public:
  explicit RelayMemory(const Executor& executor) : executor_(executor) {}
  ~RelayMemory() {
    if (memory_) executor_.release(executor_.self, memory_);
  }
  RelayMemory(const RelayMemory&) = delete;

  bool allocate(Task& task) {
    const RelayBytes bytes = relay_bytes(task.plan, task.num_sms);
    memory_ = executor_.allocate(executor_.self, size_t(bytes.sums + bytes.marks));
    task.relay_sums = memory_;
    task.relay_mark = next_mark();
    return memory_ != nullptr;
  }

 private:
  // Another number for each launch, and none that memory is likely to hold: the steps of Steele, Lea and Flood's
  // SplitMix ("Fast splittable pseudorandom number generators").
  static uint64_t next_mark() {
    static std::atomic<uint64_t> count{0};
    uint64_t mark = ++count * 0x9e3779b97f4a7c15;
    mark = (mark ^ mark >> 30) * 0xbf58476d1ce4e5b9;
    mark = (mark ^ mark >> 27) * 0x94d049bb133111eb;
    return mark ^ mark >> 31;
  }

  const Executor& executor_;
  void* memory_ = nullptr;
};

}  // namespace
}  // namespace tiledmm::cuda

namespace tiledmm::gpu {

Status launch_wgmma(const FoldedProblem& given, const Plan& made, const Executor& executor) {
  using namespace tiledmm::cuda;
  Task task{
      row_major(given), {}, {}, {}, false, {}, nullptr, executor.num_cus, static_cast<cudaStream_t>(executor.stream)};
  FoldedProblem& problem = task.problem;
  GemmProblem& p = problem.gemm;
  if (p.dtype == DType::f32) {
    return launch_wgmma_tf32(problem, made.as<Tf32Plan>(), executor, &launch_chosen_tf32<>);
  }
  const WgmmaPlan& plan = made.as<WgmmaPlan>();
  Repack repack(executor);
  Status status = Status::ok;
  if (plan.copies_a) status = repack.add(problem, p.a, p.m, p.stride_am, p.stride_ak, &BatchDim::stride_a);
  if (status == Status::ok && plan.copies_b)
    status = repack.add(problem, p.b, p.n, p.stride_bn, p.stride_bk, &BatchDim::stride_b);
  if (status != Status::ok) return status;
  if (!describe_operand(view_a(p), problem, task.a) || !describe_operand(view_b(p), problem, task.b)) {
    return Status::launch_failed;
  }
  task.stores_by_tma = describe_result(problem, task.c) && is_storable(p.dtype, task.c);
  task.plan = plan.tiles;
  ChunkSums<float> chunk_sums(problem, ld_partial(p.n), executor);
  if (task.plan.splits_chunks && !chunk_sums.allocate()) return Status::out_of_memory;
  task.partial = chunk_sums.sums;
  RelayMemory relay(executor);
  if (task.plan.relays && !relay.allocate(task)) return Status::out_of_memory;
  const char* refused = repack.launch();
  if (!refused) refused = p.dtype == DType::f16 ? launch_chosen<__half>(task) : launch_chosen<__nv_bfloat16>(task);
  if (refused) return Status::launch_failed;
  if (!task.plan.splits_chunks) return Status::ok;
  return p.dtype == DType::f16 ? chunk_sums.add<Half>() : chunk_sums.add<BFloat16>();
}

}  // namespace tiledmm::gpu

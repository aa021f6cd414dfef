// Rung 09, wgmma_single: Hopper's copy engine and warpgroup matrix instructions, with one tile and nothing else.
//
// Since rung 08: no thread computes an address of A or B, and their elements pass through no register. One thread, the
// producer, asks the copy engine (TMA) for boxes of A and B. The engine puts them into a ring of stages in shared
// memory, in the order that the matrix unit reads, with zeros for what lies outside. Two warpgroups multiply 64 rows of
// the tile each, by instructions that read shared memory themselves (wgmma). A stage has two barriers instead of the
// block's: `full` counts the bytes that arrive, `empty` the warps that have multiplied. The way to C is rung 08's.
// Limits: sm_90a, fp16 and bf16, operands whose rows begin at multiples of 16 bytes. What limits it: one tile for all
// shapes; a block lives for one tile, so nothing is multiplied while it begins and while it stores; a warpgroup waits
// for each k tile before it starts the next one. The kernel wgmma goes on from here.
// Sources: PTX ISA (cp.async.bulk.tensor, mbarrier, wgmma); roles of warps as in CUTLASS 3 (efficient_gemm.md).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/plan.h"
#include "kernels/cuda/shared/plan.h"
#include "kernels/cuda/shared/ptx_sm90.h"
#include "kernels/cuda/shared/ring.h"
#include "kernels/cuda/shared/tensor_map.h"
#include "platform/block_tile.h"

namespace tiledmm::cuda {
namespace {

constexpr int kBlockM = 128, kBlockN = 256, kBlockK = 64, kMmaM = 64, kMmaK = 16;
constexpr int kPitch = 128;  // bytes of a row in shared memory: the width of the swizzle
constexpr int kNumStages = 4, kStageBytes = (kBlockM + kBlockN) * kPitch;
constexpr int kConsumerThreads = 128, kConsumers = kBlockM / kMmaM,
              kProducer = kConsumers * kConsumerThreads;  // its thread
constexpr int kThreads = kProducer + 32;
// The patterns of the swizzle count from multiples of 1024 bytes.
constexpr int kSharedBytes = 1024 + kNumStages * (kStageBytes + 16);
template <class T>
using WarpSums = gpu::WarpStrip<T, 16, kBlockN>;  // takes the place of the ring at the end
static_assert(kConsumers * 4 * sizeof(WarpSums<Half>) <= kNumStages * kStageBytes, "the ring is as large");

// ROWS rows of an operand in a stage, each 64 elements of k: along k one box of all rows, else boxes of 64 rows, in
// which the elements of one k follow each other.
template <int ROWS, bool IS_K_MAJOR>
struct Side {
  static constexpr int kBoxRows = IS_K_MAJOR ? ROWS : 64, kBoxBytes = kBoxRows * kPitch;
  // How the matrix unit finds groups of 8 rows, or of 8 of k; from one instruction's k to the next one's.
  static constexpr uint64_t kDescriptor = matrix_descriptor(Swizzle::bytes_128, IS_K_MAJOR ? 0 : kBoxBytes, 8 * kPitch);
  static constexpr int kStepBytes = kMmaK * (IS_K_MAJOR ? 2 : kPitch);

  static bool encode(CUtensorMap& map, DType dtype, const void* data, const TensorMapView& view) {
    return encode_tensor_map(&map, dtype, data, view, IS_K_MAJOR ? kBlockK : kBoxRows, IS_K_MAJOR ? kBoxRows : kBlockK,
                             kPitch, false);
  }
  TILEDMM_DEVICE static void load(uint32_t smem, const CUtensorMap* map, int row, int k, int item, uint32_t full) {
    TILEDMM_UNROLL for (int i = 0; i < ROWS; i += kBoxRows) {
      cp_async_bulk_tensor_3d(smem + i * kPitch, map, IS_K_MAJOR ? k : row + i, IS_K_MAJOR ? row + i : k, item, full,
                              CachePolicy::evict_normal);
    }
  }
};

template <class T, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR>
__global__ void __launch_bounds__(kThreads, 1)
    wgmma_single(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                 const __grid_constant__ int64_t batch_step_a, const __grid_constant__ int64_t batch_step_b,
                 const __grid_constant__ FoldedProblem problem) {
  using A = Side<kBlockM, IS_A_K_MAJOR>;
  using B = Side<kBlockN, IS_B_K_MAJOR>;
  using Element = std::conditional_t<std::is_same_v<T, Half>, __half, __nv_bfloat16>;
  extern __shared__ char dynamic_smem[];
  char* stages = dynamic_smem + (-smem_address(dynamic_smem) & 1023);
  const uint32_t smem = smem_address(stages), full = smem + kNumStages * kStageBytes, empty = full + kNumStages * 8;
  const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32, consumer = thread / kConsumerThreads;
  const int64_t batch_idx = int64_t(blockIdx.z) * gridDim.y + blockIdx.y;
  if (batch_idx >= problem.batch_size) return;
  if (thread == kProducer) {
    for (int stage = 0; stage < kNumStages; ++stage) {
      mbarrier_init(full + stage * 8, 1);
      mbarrier_init(empty + stage * 8, kConsumers * 4);
    }
    fence_mbarrier_init();
  }
  __syncthreads();  // the barriers are there
  griddepcontrol_wait();
  const GemmProblem gemm = gpu::item_of(problem, batch_idx);
  const gpu::TilePlace tile = gpu::tile_place<kBlockM, kBlockN>(gemm);
  const int num_k_tiles = int(ceil_div(gemm.k, kBlockK));
  Ring<kNumStages> ring;
  if (thread == kProducer) {
    // Items are places along the third dimension of the tensor maps.
    const int item_a = int((static_cast<const T*>(gemm.a) - static_cast<const T*>(problem.gemm.a)) / batch_step_a);
    const int item_b = int((static_cast<const T*>(gemm.b) - static_cast<const T*>(problem.gemm.b)) / batch_step_b);
    for (int k_tile = 0; k_tile < num_k_tiles; ++k_tile) {
      const uint32_t to = smem + ring.stage * kStageBytes, barrier = full + ring.stage * 8;
      mbarrier_wait_parity(empty + ring.stage * 8, ring.phase ^ 1);  // the phase before the first is complete
      mbarrier_arrive_expect_tx(barrier, kStageBytes);
      A::load(to, &map_a, int(tile.row), k_tile * kBlockK, item_a, barrier);
      B::load(to + kBlockM * kPitch, &map_b, int(tile.col), k_tile * kBlockK, item_b, barrier);
      ring.advance();
    }
  }
  if (thread >= kProducer) return;
  float acc[kBlockN / 2];
  forget_registers(acc);
  for (int k_tile = 0; k_tile < num_k_tiles; ++k_tile) {
    const uint32_t from_a = smem + ring.stage * kStageBytes + consumer * kMmaM * kPitch;
    const uint32_t from_b = smem + ring.stage * kStageBytes + kBlockM * kPitch;
    mbarrier_wait_parity(full + ring.stage * 8, ring.phase);
    wgmma_fence();
    TILEDMM_UNROLL for (int step = 0; step < kBlockK / kMmaK; ++step) {
      wgmma_mma_async<Element, kBlockN, !IS_A_K_MAJOR, !IS_B_K_MAJOR>(
          acc, matrix_descriptor_at(A::kDescriptor, matrix_address(from_a + step * A::kStepBytes)),
          matrix_descriptor_at(B::kDescriptor, matrix_address(from_b + step * B::kStepBytes)), k_tile + step > 0);
    }
    wgmma_commit_group();
    wgmma_wait_group<0>();
    if (lane == 0) mbarrier_arrive(empty + ring.stage * 8);
    ring.advance();
  }
  fence_registers(acc);
  named_barrier_sync(1, kProducer);  // nobody reads the ring any more
  // A thread has two neighbours of every eight columns, in two of its warp's sixteen rows.
  auto& sums = reinterpret_cast<WarpSums<T>*>(stages)[warp];
  TILEDMM_UNROLL for (int i = 0; i < kBlockN / 2; ++i) {
    gpu::store_shared(&sums.acc[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2], acc[i]);
  }
  sums.store(gemm, tile.row + warp * 16, 1, tile.col);
}

template <class T, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR>
Status launch_single(const FoldedProblem& problem, const TensorMapView& a, const TensorMapView& b, void* stream) {
  const GemmProblem& gemm = problem.gemm;
  CUtensorMap map_a, map_b;
  const bool is_encoded = Side<kBlockM, IS_A_K_MAJOR>::encode(map_a, gemm.dtype_a, gemm.a, a) &&
                          Side<kBlockN, IS_B_K_MAJOR>::encode(map_b, gemm.dtype_a, gemm.b, b);
  const int64_t tiles = gpu::num_tiles(gemm, kBlockM, kBlockN), items = gpu::num_batch_blocks(problem);
  const dim3 grid(unsigned(tiles), unsigned(items), unsigned(ceil_div(problem.batch_size, items)));
  return is_encoded && !launch_in_clusters<&wgmma_single<T, IS_A_K_MAJOR, IS_B_K_MAJOR>>(
                           dim3{}, grid, kThreads, kSharedBytes, static_cast<cudaStream_t>(stream), map_a, map_b,
                           a.batch_step, b.batch_step, problem)
             ? Status::ok
             : Status::launch_failed;
}

template <class T>
Status launch_elements(const FoldedProblem& problem, void* stream) {
  TensorMapView a, b;
  if (!describe_operand(view_a(problem.gemm), problem, a) || !describe_operand(view_b(problem.gemm), problem, b)) {
    return Status::launch_failed;
  }
  const auto launch = a.is_k_major   ? b.is_k_major ? &launch_single<T, true, true> : &launch_single<T, true, false>
                        : b.is_k_major ? &launch_single<T, false, true>
                                     : &launch_single<T, false, false>;
  return launch(problem, a, b, stream);
}

}  // namespace
}  // namespace tiledmm::cuda

namespace tiledmm::gpu {

Status launch_wgmma_single(const FoldedProblem& problem, const Plan&, const Executor& executor) {
  return problem.gemm.dtype_a == DType::f16 ? cuda::launch_elements<Half>(problem, executor.stream)
                                            : cuda::launch_elements<BFloat16>(problem, executor.stream);
}

}  // namespace tiledmm::gpu

// Host side of the kernels that the copy engine feeds: tensor maps (CUDA driver API, "Tensor Map Object Management"),
// launches that overlap the end of the kernel before.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

#include "core/math.h"
#include "kernels/cuda/shared/plan.h"

namespace tiledmm::cuda {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

EncodeTiled find_encode_tiled() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result) !=
          cudaSuccess ||
      result != cudaDriverEntryPointSuccess)
    return nullptr;
  return reinterpret_cast<EncodeTiled>(function);
}

// Boxes of one item of the batch. In shared memory their rows lie `pitch` bytes apart, 128 or 64, over which they are
// swizzled; they may be shorter. The engine can round fp32 to tf32, to nearest even, while it copies.
bool encode_tensor_map(CUtensorMap* map, DType dtype, const void* data, const TensorMapView& operand, int box_inner,
                       int box_outer, int pitch, bool rounds_to_tf32) {
  static std::atomic<EncodeTiled> found{nullptr};  // once it is; else the next call asks again
  EncodeTiled encode = found.load(std::memory_order_relaxed);
  if (!encode) found.store(encode = find_encode_tiled(), std::memory_order_relaxed);
  if (!encode) return false;
  const int64_t bytes = size_of(dtype);
  const cuuint64_t sizes[3] = {cuuint64_t(operand.inner), cuuint64_t(operand.outer), cuuint64_t(operand.batch_count)};
  const cuuint64_t pitches[2] = {cuuint64_t(operand.ld * bytes), cuuint64_t(operand.batch_step * bytes)};
  const cuuint32_t box[3] = {cuuint32_t(box_inner), cuuint32_t(box_outer), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUtensorMapDataType type = bytes == 1             ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                   : dtype == DType::f16  ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                   : rounds_to_tf32       ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
                                                          : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  // Reading two lines ahead helps small operands (3 % of a call), and costs rows that begin within a sector a seventh
  // of the second-level cache's rate (6.1 instead of 7.2 TB/s on an H200, 9.2 where all begin with one).
  constexpr int64_t kSmall = 1 << 20;
  const bool crosses_sectors = operand.ld * bytes % kSectorBytes != 0;
  const bool is_large = operand.ld * operand.outer * operand.batch_count * bytes > kSmall;
  return encode(map, type, 3, const_cast<void*>(data), sizes, pitches, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                pitch == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                crosses_sectors && is_large ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Launches KERNEL such that its set-up overlaps the end of the kernel before it on the stream ("Programmatic Dependent
// Launch" in the CUDA programming guide): it must call griddepcontrol_wait before it touches memory.
template <auto KERNEL, class... Args>
const char* launch_in_clusters(dim3 cluster, dim3 grid, int num_threads, SharedBytes smem, cudaStream_t stream,
                               const Args&... args) {
  static std::atomic<uint64_t> ready_devices{0};  // bit d: device d lets this kernel have its shared memory
  int device = 0;
  cudaGetDevice(&device);
  const uint64_t bit = device < 64 ? uint64_t(1) << device : 0;
  if (!(ready_devices.load(std::memory_order_relaxed) & bit)) {
    const cudaError_t error = cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize, smem.most);
    if (error != cudaSuccess) return cudaGetErrorString(error);
    ready_devices.fetch_or(bit, std::memory_order_relaxed);
  }
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {cluster.x, cluster.y, cluster.z};
  cudaLaunchConfig_t launch{};
  launch.gridDim = grid;
  launch.blockDim = dim3(unsigned(num_threads));
  launch.dynamicSmemBytes = size_t(smem.of_launch);
  launch.stream = stream;
  launch.attrs = attributes;
  launch.numAttrs = cluster.x * cluster.y * cluster.z > 1 ? 2 : 1;
  const cudaError_t error = cudaLaunchKernelEx(&launch, KERNEL, args...);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <auto KERNEL, class... Args>
const char* launch_overlapped(int64_t num_blocks, int num_threads, int smem_bytes, cudaStream_t stream,
                              const Args&... args) {
  return launch_in_clusters<KERNEL>(dim3{}, dim3(unsigned(num_blocks)), num_threads, smem_bytes, stream, args...);
}

}  // namespace
}  // namespace tiledmm::cuda

// Host side of the kernels that the copy engine feeds: operands as it sees them, tensor maps (CUDA driver API,
// "Tensor Map Object Management"), launches that overlap the end of the kernel before.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

#include "core/math.h"
#include "core/problem.h"

namespace tiledmm::cuda {
namespace {

// How the copy engine sees A or B^T: `rows` x k, one of the two contiguous.
struct Operand {
  bool is_k_major;
  int64_t inner, outer, ld;
};

const char* describe_operand(const void* data, int64_t rows, int64_t k, int64_t stride_row, int64_t stride_k,
                             int element_bytes, Operand& operand) {
  if (reinterpret_cast<uintptr_t>(data) % 16) return "the address of A or B is not a multiple of 16 bytes";
  const int align = 16 / element_bytes;
  const auto is_legal = [align](int64_t inner, int64_t outer, int64_t stride_inner, int64_t stride_outer) {
    return (stride_inner == 1 || inner == 1) && (outer == 1 || (stride_outer > 0 && stride_outer % align == 0));
  };
  if (is_legal(k, rows, stride_k, stride_row)) {
    operand = {true, k, rows, rows == 1 ? round_up(k, align) : stride_row};
    return nullptr;
  }
  if (is_legal(rows, k, stride_row, stride_k)) {
    operand = {false, rows, k, k == 1 ? round_up(rows, align) : stride_k};
    return nullptr;
  }
  return "A or B has no unit stride, or a leading dimension that is no multiple of 16 bytes";
}

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

bool encode_tensor_map(CUtensorMap* map, DType dtype, const void* data, int64_t inner, int64_t outer, int64_t ld,
                       int box_inner, int box_outer) {
  static const EncodeTiled encode = find_encode_tiled();
  if (!encode) return false;
  const cuuint64_t sizes[2] = {cuuint64_t(inner), cuuint64_t(outer)};
  const cuuint64_t pitch[1] = {cuuint64_t(ld * size_of(dtype))};
  const cuuint32_t box[2] = {cuuint32_t(box_inner), cuuint32_t(box_outer)};
  const cuuint32_t steps[2] = {1, 1};
  // fp32 is rounded to tf32 on its way.
  const CUtensorMapDataType type = dtype == DType::f32    ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
                                   : dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                          : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  return encode(map, type, 2, const_cast<void*>(data), sizes, pitch, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                box_inner * size_of(dtype) == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Launches KERNEL such that its set-up overlaps the end of the kernel before it on the stream ("Programmatic Dependent
// Launch" in the CUDA programming guide): it must call griddepcontrol_wait before it touches memory.
template <auto KERNEL, class... Args>
const char* launch_overlapped(int64_t num_blocks, int num_threads, int smem_bytes, cudaStream_t stream,
                              const Args&... args) {
  static std::atomic<uint64_t> ready_devices{0};  // bit d: device d lets this kernel have its shared memory
  int device = 0;
  cudaGetDevice(&device);
  const uint64_t bit = device < 64 ? uint64_t(1) << device : 0;
  if (!(ready_devices.load(std::memory_order_relaxed) & bit)) {
    const cudaError_t error = cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (error != cudaSuccess) return cudaGetErrorString(error);
    ready_devices.fetch_or(bit, std::memory_order_relaxed);
  }
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(unsigned(num_blocks));
  launch.blockDim = dim3(unsigned(num_threads));
  launch.dynamicSmemBytes = size_t(smem_bytes);
  launch.stream = stream;
  launch.attrs = &attribute;
  launch.numAttrs = 1;
  const cudaError_t error = cudaLaunchKernelEx(&launch, KERNEL, args...);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace
}  // namespace tiledmm::cuda

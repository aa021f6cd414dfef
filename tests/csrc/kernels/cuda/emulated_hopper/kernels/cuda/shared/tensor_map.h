// Tensor maps and launches as in csrc/kernels/cuda/shared/tensor_map.h, emulated.
#pragma once

#include "core/math.h"
#include "kernels/cuda/shared/plan.h"
#include "kernels/cuda/shared/ptx_sm90.h"

namespace tiledmm::cuda {
namespace {

// False where the driver refuses (CUDA driver API, cuTensorMapEncodeTiled).
bool encode_tensor_map(CUtensorMap* map, DType dtype, const void* data, const TensorMapView& operand, int box_inner,
                       int box_outer, int pitch, bool rounds_to_tf32) {
  const int64_t bytes = size_of(dtype);
  const emulator::TensorMap made{static_cast<char*>(const_cast<void*>(data)),
                                 {operand.inner, operand.outer, operand.batch_count},
                                 {operand.ld * bytes, operand.batch_step * bytes},
                                 box_inner,
                                 box_outer,
                                 int(bytes),
                                 pitch,
                                 rounds_to_tf32 && dtype == DType::f32};
  const auto is_even = [](int64_t number) { return number % emulator::kUnit == 0; };
  constexpr int kMaxBox = 256;
  if (!is_even(int64_t(reinterpret_cast<uintptr_t>(data))) || !is_even(box_inner * bytes) ||
      !is_even(made.pitches[0]) || !is_even(made.pitches[1]) || box_inner * bytes > pitch || box_inner < 1 ||
      box_inner > kMaxBox || box_outer < 1 || box_outer > kMaxBox)
    return false;
  static_assert(sizeof made <= sizeof *map);
  std::memcpy(map, &made, sizeof made);
  return true;
}

template <auto KERNEL, class... Args>
const char* launch_in_clusters(dim3 cluster, dim3 grid, int num_threads, SharedBytes smem, cudaStream_t,
                               const Args&... args) {
  if (smem.of_launch > smem.most || smem.most > emulator::kMaxSmem) return "too much shared memory";
  const auto smem_of_thread = [] { return +dynamic_smem; };
  emulator::launch(cluster, grid, num_threads, smem.of_launch, smem_of_thread, [&] { KERNEL(args...); });
  return nullptr;
}

// Nothing overlaps here.
template <auto KERNEL, class... Args>
const char* launch_overlapped(int64_t num_blocks, int num_threads, int smem_bytes, cudaStream_t stream,
                              const Args&... args) {
  const dim3 alone, grid(static_cast<unsigned>(num_blocks));
  return launch_in_clusters<KERNEL>(alone, grid, num_threads, smem_bytes, stream, args...);
}

}  // namespace
}  // namespace tiledmm::cuda

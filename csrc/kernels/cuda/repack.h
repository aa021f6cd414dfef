// Operands that the copy engine cannot take (an address or a leading dimension that is no multiple of 16 bytes, no unit
// stride), copied into memory lent by the caller.
#pragma once

#include "platform/block_tile.h"

namespace tiledmm::cuda {
namespace {

// An operand that the copy engine cannot take, copied into rows of aligned length, zeros behind each: 16 bytes a
// thread.
__global__ void __launch_bounds__(256) repack(const uint16_t* from, int64_t stride_inner, int64_t stride_outer,
                                              int64_t inner, int64_t outer, uint16_t* to, int64_t ld) {
  const int64_t chunks_per_row = ld / 8;
  for (int64_t idx = int64_t(blockIdx.x) * 256 + threadIdx.x; idx < outer * chunks_per_row;
       idx += int64_t(gridDim.x) * 256) {
    const int64_t row = idx / chunks_per_row, first = (idx - row * chunks_per_row) * 8;
    const uint16_t* source = from + row * stride_outer + first * stride_inner;
    uint32_t words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const uint32_t low = first + 2 * w < inner ? source[2 * w * stride_inner] : 0;
      const uint32_t high = first + 2 * w + 1 < inner ? source[(2 * w + 1) * stride_inner] : 0;
      words[w] = low | high << 16;
    }
    *reinterpret_cast<uint4*>(to + row * ld + first) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// Memory for a repacked operand, given back when the kernels have been launched.
struct Repacked {
  const Executor& executor;
  void* memory = nullptr;

  explicit Repacked(const Executor& executor) : executor(executor) {}
  ~Repacked() {
    if (memory) executor.release(executor.self, memory);
  }
  Repacked(const Repacked&) = delete;

  // Makes `data` with its strides such that the copy engine takes it.
  Status run(const void*& data, int64_t rows, int64_t k, int64_t& stride_row, int64_t& stride_k) {
    const bool is_k_major = gpu::is_k_major(stride_row, stride_k);
    const int64_t inner = is_k_major ? k : rows, outer = is_k_major ? rows : k, ld = round_up(inner, 8);
    memory = executor.allocate(executor.self, size_t(outer * ld) * 2);
    if (!memory) return Status::out_of_memory;
    const int64_t blocks = min_of(ceil_div(outer * ld / 8, 256), int64_t(executor.num_cus) * 16);
    const Status status = gpu::launch_kernel(repack, blocks, 1, 256, 0, executor, static_cast<const uint16_t*>(data),
                                             is_k_major ? stride_k : stride_row, is_k_major ? stride_row : stride_k,
                                             inner, outer, static_cast<uint16_t*>(memory), ld);
    data = memory;
    stride_row = is_k_major ? ld : 1;
    stride_k = is_k_major ? 1 : ld;
    return status;
  }
};

}  // namespace
}  // namespace tiledmm::cuda

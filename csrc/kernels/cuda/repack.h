// Operands that the copy engine cannot take (an address or a leading dimension that is no multiple of 16 bytes, no unit
// stride), copied into memory lent by the caller.
#pragma once

#include "kernels/cuda/tensor_map.h"
#include "platform/block_tile.h"
#include "platform/ptx_sm90.h"

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

// An operand of fp32 to be copied along k.
struct KMajorCopy {
  const float* from;
  int64_t stride_row, stride_k;
  int rows, k;
  float* to;
  int64_t ld;
  int tiles_k, num_tiles;
};

struct KMajorCopyPair {
  KMajorCopy copies[2];
};

// 64 x 64 elements a block, through shared memory: what neighbouring threads read and write lies together.
__global__ void __launch_bounds__(256) copy_k_major(const __grid_constant__ KMajorCopyPair pair) {
  __shared__ float tile[64][65];  // [k][row]
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  int idx = int(blockIdx.x);
  const bool is_second = idx >= pair.copies[0].num_tiles;
  const KMajorCopy& copy = pair.copies[is_second];
  if (is_second) idx -= pair.copies[0].num_tiles;
  const int row = idx / copy.tiles_k * 64, k = idx % copy.tiles_k * 64;
  const int lane = threadIdx.x % 64, first = threadIdx.x / 64;
  const bool reads_along_k = gpu::is_k_major(copy.stride_row, copy.stride_k);
  float values[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int other = first + 4 * i;
    const int r = row + (reads_along_k ? other : lane), p = k + (reads_along_k ? lane : other);
    values[i] = r < copy.rows && p < copy.k ? copy.from[r * copy.stride_row + p * copy.stride_k] : 0;
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int other = first + 4 * i;
    tile[reads_along_k ? lane : other][reads_along_k ? other : lane] = values[i];
  }
  __syncthreads();
  // A warp writes four rows of 32: its lanes read 32 banks.
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = warp * 4 + i / 2 * 32 + threadIdx.x % 32 / 8, p = i % 2 * 32 + threadIdx.x % 8 * 4;
    if (row + r < copy.rows && k + p < copy.ld)
      *reinterpret_cast<float4*>(copy.to + (row + r) * copy.ld + k + p) =
          make_float4(tile[p][r], tile[p + 1][r], tile[p + 2][r], tile[p + 3][r]);
  }
}

// Copies of operands that the tf32 kernel cannot take as they lie, in one launch. The memory is given back when the
// kernels have been launched.
class KMajorCopies {
 public:
  explicit KMajorCopies(const Executor& executor) : executor_(executor) {}
  ~KMajorCopies() {
    for (int i = 0; i < num_copies_; ++i) {
      if (pair_.copies[i].to) executor_.release(executor_.self, pair_.copies[i].to);
    }
  }
  KMajorCopies(const KMajorCopies&) = delete;

  // `data` and its strides become those of the copy, which run() makes.
  void add(const void*& data, int64_t rows, int64_t k, int64_t& stride_row, int64_t& stride_k) {
    const int64_t ld = round_up(k, 4);
    const int64_t tiles_k = ceil_div(k, 64), num_tiles = tiles_k * ceil_div(rows, 64);
    void* to = executor_.allocate(executor_.self, size_t(rows * ld) * 4);
    is_out_of_memory_ = is_out_of_memory_ || !to;
    pair_.copies[num_copies_++] = {static_cast<const float*>(data), stride_row, stride_k,     int(rows),     int(k),
                                   static_cast<float*>(to),         ld,         int(tiles_k), int(num_tiles)};
    num_tiles_ += num_tiles;
    data = to;
    stride_row = ld;
    stride_k = 1;
  }

  Status run() const {
    if (is_out_of_memory_) return Status::out_of_memory;
    if (num_copies_ == 0) return Status::ok;
    if (num_tiles_ > INT32_MAX) return Status::launch_failed;
    return launch_overlapped<&copy_k_major>(num_tiles_, 256, 0, static_cast<cudaStream_t>(executor_.stream), pair_)
               ? Status::launch_failed
               : Status::ok;
  }

 private:
  const Executor& executor_;
  KMajorCopyPair pair_{};
  int num_copies_ = 0;
  int64_t num_tiles_ = 0;
  bool is_out_of_memory_ = false;
};

}  // namespace
}  // namespace tiledmm::cuda

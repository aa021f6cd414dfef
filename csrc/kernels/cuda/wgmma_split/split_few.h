// The few rows' terms of one chunk of k, made by the block that multiplies by them, so that no other kernel has to
// start and end before.
#pragma once

#include "kernels/cuda/shared/ptx_sm90.h"
#include "kernels/split/terms.h"

namespace tiledmm::cuda {
namespace {

// Terms go to shared memory as the matrix unit reads them: of each block of k the first ones of all rows, then the
// second ones, ROWS rows of 128 bytes, swizzled. A warp takes every fourth row, a lane two neighbours of each block of
// k. The scales are those of the rows.
template <int ROWS, int THREADS>
__device__ __forceinline__ void split_few(const GemmProblem& p, int chunk, uint32_t terms, float* scales) {
  constexpr int kBlocks = kSplitChunkK / kSplitBlockK, kTermBytes = ROWS * 128;
  static_assert(kSplitBlockK == 2 * 32, "two neighbours for each lane");
  const int lane = threadIdx.x % 32, first_k = chunk * kSplitChunkK + 2 * lane, rest_k = int(p.k) - first_k;
#pragma unroll 1
  for (int row = threadIdx.x / 32; row < p.m; row += THREADS / 32) {
    int64_t from = row * p.stride_am + first_k * p.stride_ak;
    // Bits are loaded first and converted after, so that all loads are on their way at the same time.
    uint32_t bits[2 * kBlocks];
    float values[2 * kBlocks];
    const auto load_bits = [&](const auto* a) {
#pragma unroll
      for (int i = 0; i < 2 * kBlocks; ++i) {
        bits[i] = i / 2 * kSplitBlockK + i % 2 < rest_k ? a[from] : 0;
        from += i % 2 ? (kSplitBlockK - 1) * p.stride_ak : p.stride_ak;
      }
    };
    const auto convert = [&](const auto& value_of) {
#pragma unroll
      for (int i = 0; i < 2 * kBlocks; ++i) values[i] = value_of(bits[i]);
    };
    if (p.dtype_a == DType::f32) {
      load_bits(static_cast<const uint32_t*>(p.a));
      convert([](uint32_t x) { return __uint_as_float(x); });
    } else {
      load_bits(static_cast<const uint16_t*>(p.a));
      if (p.dtype_a == DType::f16)
        convert([](uint32_t x) { return gpu::as_acc(Half{uint16_t(x)}); });
      else
        convert([](uint32_t x) { return gpu::as_acc(BFloat16{uint16_t(x)}); });
    }
    gpu::ChunkRange range;
#pragma unroll
    for (int i = 0; i < 2 * kBlocks; ++i) range.take(values[i]);
    const gpu::ChunkScale scale(__reduce_max_sync(~0u, range.largest), term_rule(p.dtype_a));
    const bool is_flagged = __any_sync(~0u, scale.is_flagged(range.smallest));
    if (lane == 0) scales[row] = scale.scale(is_flagged);
    const uint32_t to = terms + row * 128 + ((lane / 4 ^ row % 8) << 4) + lane % 4 * 4;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      uint32_t first, second;
      gpu::split_pair(values[2 * block] * scale.factor(), values[2 * block + 1] * scale.factor(), first, second);
      store_shared_word(to + block * 2 * kTermBytes, first);
      store_shared_word(to + block * 2 * kTermBytes + kTermBytes, second);
    }
  }
  fence_proxy_async();
}

}  // namespace
}  // namespace tiledmm::cuda

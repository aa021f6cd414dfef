// The order of summation of the native GPU kernels. It depends on n, k and the precision alone, so that a row's bits do
// not depend on m, on the batch or on the kernel that computed it (docs/numerics.md).
#pragma once

#include "core/math.h"
#include "core/problem.h"

namespace tiledmm {

// k is summed in chunks of so many elements: each chunk from zero on, in the order of k, then the chunks' sums in their
// order. Short k is one chunk (of one element where it is 0). The chunks of a tile can be computed side by side, and
// their sums round less than one long chain.
//
// Chunks are multiples of this, so that each ends with a stage of every kernel; in fp64 of its own unit.
inline constexpr int64_t kChunkUnit = 256;

// The sums of chunks that are computed side by side wait in memory, and take so much of it at most. Beyond, the tiles
// that sum one chunk after the other are left.
inline constexpr int64_t kMaxPartialBytes = 256 << 20;

// Chunks of multiply-adds in fp32. They cost little for any n, since the tiles hold few sums: 256 elements where n and
// k are small, else 512. What other lengths cost is in docs/numerics.md.
constexpr int64_t simt_chunk_k(int64_t n, int64_t k) {
  const int64_t chunk = n <= 1024 && k < 1 << 13 ? kChunkUnit : 2 * kChunkUnit;
  return k >= 2 * chunk ? chunk : max_of(k, 1);
}

// By matrix instructions in 16 bits, and in tf32, whose k tiles hold half as many elements: as many chunks as give the
// multiprocessors work if there are few rows, and no more, since sums on their way cost memory's time: of a narrow C
// 5120 / n, of a wider one 4096 / n, and 8192 / n where k is long and sums are few beside the operands. Tiles that sum
// chunks are 192 columns wide at most, which costs many rows 2 to 12 %: not where k is shorter than 5 n. A very long k
// is in chunks for any n, since the error of one chain would exceed that of cuBLAS, which splits k. In 16 bits it
// begins at 2^16, where many rows lose nothing by it; a narrow C and tf32 keep shorter chunks, which begin later.
constexpr int64_t mma_chunk_k(int64_t n, int64_t k, bool is_tf32) {
  constexpr int64_t kNarrowN = 256, kNarrowChunks = 5120, kWideN = 2048, kMaxChunks = 8, kLongK = 1 << 15;
  const int64_t min_chunk = (is_tf32 ? 2 : 4) * kChunkUnit;
  int64_t chunk = max_of(k, 1);
  if (k >= 4 * min_chunk && n <= kNarrowN) {
    const int64_t wanted = ceil_div(k, kNarrowChunks / max_of(n, 1));
    chunk = k < 32 * kChunkUnit ? min_chunk : round_up(max_of(wanted, 4 * kChunkUnit), kChunkUnit);
  } else if (k >= 4 * min_chunk && n <= kWideN && k >= (is_tf32 ? 5 * n / 2 : 5 * n)) {
    const int64_t columns = (k < kLongK ? 2 : 4) * kWideN;
    chunk = round_up(ceil_div(k, min_of(min_of(columns / n, k / min_chunk), kMaxChunks)), kChunkUnit);
  }
  const bool has_short_chunks = is_tf32 || n <= kNarrowN;
  const int64_t very_long_k = has_short_chunks ? 1 << 17 : 1 << 16, max_chunk = has_short_chunks ? 1 << 14 : 1 << 15;
  return k < very_long_k ? chunk : min_of(chunk, round_up(ceil_div(k, ceil_div(k, max_chunk)), kChunkUnit));
}

// In fp64: chunks of about equal length. The fewer columns C has, the fewer tiles unless there are many rows, and the
// more chunks it takes to give every multiprocessor work: 4096 / n, or four. Where there are many rows, chunks are a
// burden: tiles that hold a total besides their sums take 5 % longer, others visit one in memory. With few rows it is
// the second kernel that is one, so that k has to be long before chunks pay.
constexpr int64_t chunk_k_f64(int64_t n, int64_t k) {
  constexpr int64_t kUnit = 32, kMinChunk = 320, kMaxChunk = 8192, kMaxChunks = 64;
  constexpr int64_t kMinTargetChunks = 4, kTargetColumns = 4096, kMaxTargetChunk = 4096;
  constexpr int64_t kMinChunkedK = 1152, kMoreThanTwoN = 640, kAlwaysChunkedK = 2688;
  const int64_t target_chunks = max_of(kTargetColumns / max_of(n, 1), kMinTargetChunks);
  const int64_t min_chunk = min_of(
      max_of(max_of(n, kMinChunk), max_of(k / kMaxChunks, min_of(k / target_chunks, kMaxTargetChunk))), kMaxChunk);
  const int64_t chunked_k = max_of(max_of(kMinChunkedK, min_of(2 * n + kMoreThanTwoN, kAlwaysChunkedK)), 2 * min_chunk);
  return k < chunked_k ? max_of(k, 1) : round_up(ceil_div(k, k / min_chunk), kUnit);
}

// By matrix instructions in 16 bits that widen a B of 8 bits: k is summed in so many chunks that the warps of a
// multiprocessor, each of which waits for its own chain of instructions, keep pace with memory that has half as much
// to bring.
constexpr int64_t fp8_b_chunk_k(int64_t n, int64_t k) {
  constexpr int64_t kColumns = 1 << 15, kMinChunk = 4 * kChunkUnit, kMaxChunks = 8;
  const int64_t chunks = min_of(min_of(kColumns / max_of(n, 1), k / kMinChunk), kMaxChunks);
  return chunks > 1 ? round_up(ceil_div(k, chunks), kChunkUnit) : max_of(k, 1);
}

// The chunk of the caller's problem, before a batch is folded into n or C is transposed.
constexpr int64_t chunk_k(const GemmProblem& problem) {
  const int64_t n = problem.n, k = problem.k;
  if (size_of(problem.dtype_a) == 1) return max_of(k, 1);
  if (size_of(problem.dtype_a) == 2 && (problem.is_b_widened || size_of(problem.dtype_b) == 1))
    return fp8_b_chunk_k(n, k);
  if (problem.dtype_a == DType::f64) return chunk_k_f64(n, k);
  const bool is_f32 = problem.dtype_a == DType::f32 || problem.dtype_b == DType::f32;
  return is_f32 && !problem.allow_tf32 ? simt_chunk_k(n, k) : mma_chunk_k(n, k, is_f32);
}

}  // namespace tiledmm

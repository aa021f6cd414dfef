// The path of rung 04 for a C of few elements and a long k: the chunks of k side by side, added up in their order.
// Included once per instruction set by 04_register_tiled_<isa>.cpp.
#pragma once

#include "core/executor.h"
#include "kernels/cpu/04_register_tiled/micro_kernel.h"
#include "platform/epilogue.h"
#include "platform/pack.h"
#include "platform/parallel.h"
#include "platform/simd.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

// The sums of COUNT chunks of k that follow each other, of one row of A and one column of B: chunks are what a single
// dot product has many of. The chains and their sums are those of dot_chunk.
template <class T, class Op, int COUNT>
void dot_chunks(const T* a, const T* b, int64_t depth, typename Op::Acc* sums) {
  using A = typename Op::Acc;
  constexpr int kWords = Config<Op>::kWords, kStep = Config<Op>::kStep;
  constexpr int64_t kChunk = Config<Op>::kChunk;
  Block<A> acc[round_up(COUNT, kWords)] = {};
  int64_t k = 0;
  for (; k + kStep <= depth; k += kStep) {
#pragma GCC unroll 8
    for (int c = 0; c < COUNT; ++c) {
      acc[c] = Op::multiply_add(Op::template load_words<kBlockBytes>(a + c * kChunk + k),
                                Op::template load_words<kBlockBytes>(b + c * kChunk + k), acc[c]);
    }
  }
  if (COUNT == 1 && k < depth) {
    acc[0] = Op::multiply_add(load_words<T, Op, kBlockBytes>(a + k, depth - k),
                              load_words<T, Op, kBlockBytes>(b + k, depth - k), acc[0]);
  }
#pragma GCC unroll 8
  for (int c = 0; c < COUNT; c += kWords) {
    Block<A> parts[kWords];
#pragma GCC unroll 4
    for (int w = 0; w < kWords; ++w) parts[w] = acc[c + w];
    const Block<A> sum = sum_blocks<A>(parts);
    __builtin_memcpy(sums + c, &sum, size_t(min_of(kWords, COUNT - c)) * sizeof(A));
  }
}

// C of few elements, k of many chunks, both operands contiguous along k.
template <class T, class Op>
__attribute__((noinline)) Status launch_dots(const GemmProblem& problem, const Executor& executor) {
  using A = typename Op::Acc;
  constexpr int64_t kChunk = Config<Op>::kChunk;
  constexpr int kCount = 2 * Config<Op>::kWords;
  const int64_t num_chunks = ceil_div(problem.k, kChunk), num_groups = ceil_div(num_chunks, kCount);
  const int64_t ld = num_groups * kCount;
  A* sums = static_cast<A*>(executor.allocate(executor.self, size_t(problem.m * problem.n * ld) * sizeof(A)));
  if (!sums) return Status::out_of_memory;
  const int64_t num_workers = min_of(executor.num_threads, ceil_div(num_groups, 8));
  parallel_for(executor, num_workers, [&](int64_t worker_idx) {
    for (int64_t g = num_groups * worker_idx / num_workers; g < num_groups * (worker_idx + 1) / num_workers; ++g) {
      for (int64_t i = 0; i < problem.m; ++i) {
        for (int64_t j = 0; j < problem.n; ++j) {
          const int64_t k = g * kCount * kChunk;
          const T* a = static_cast<const T*>(problem.a) + i * problem.stride_am;
          const T* b = static_cast<const T*>(problem.b) + j * problem.stride_bn;
          A* to = sums + (i * problem.n + j) * ld + g * kCount;
          if (k + kCount * kChunk <= problem.k) {
            dot_chunks<T, Op, kCount>(a + k, b + k, kChunk, to);
          } else {
            for (int64_t p = k; p < problem.k; p += kChunk) {
              dot_chunks<T, Op, 1>(a + p, b + p, min_of(kChunk, problem.k - p), to++);
            }
          }
        }
      }
    }
  });
  for (int64_t i = 0; i < problem.m; ++i) {
    for (int64_t j = 0; j < problem.n; ++j) {
      const A* parts = sums + (i * problem.n + j) * ld;
      A total = parts[0];
      for (int64_t chunk = 1; chunk < num_chunks; ++chunk) total += parts[chunk];
      store_block_tile<T>(problem, i, 1, j, 1, &total, 1);
    }
  }
  executor.release(executor.self, sums);
  return Status::ok;
}

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

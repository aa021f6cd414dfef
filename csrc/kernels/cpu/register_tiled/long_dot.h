// The path of rung 04 for a C of few elements and a long k: the chunks of k side by side, added up in their order.
// Included once per instruction set by <isa>.cpp.
#pragma once

#include "core/executor.h"
#include "kernels/cpu/register_tiled/micro_kernel.h"
#include "kernels/cpu/shared/epilogue.h"
#include "kernels/cpu/shared/pack.h"
#include "kernels/cpu/shared/parallel.h"
#include "kernels/cpu/shared/simd.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

// Vectors of lanes, whose chains of multiply-adds take turns: two of 256 bits. With 512 bits so many chunks would begin
// in one set of the nearest cache; narrower ones were not measured.
template <class Op>
inline constexpr int kDotVectors = Config<Op>::kLanes * sizeof(typename Op::Word) == 32 ? 2 : 1;

// The sums of `count` chunks of k that follow each other, of `depth` elements each, of one row of A and one column of
// B: chunks are what a single dot product has many of, and each gets a lane.
template <class T, class Op>
void dot_chunks(const T* a, const T* b, int64_t count, int64_t depth, typename Op::Acc* to) {
  using Word = typename Op::Word;
  constexpr int kLanes = Config<Op>::kLanes, kVectors = kDotVectors<Op>;
  constexpr int64_t kPieceWords = 128, kChunk = Config<Op>::kChunk;
  const LanesAlongK<T, Op, kVectors> lanes_a(a, kChunk, count), lanes_b(b, kChunk, count);
  alignas(64) Word near_a[kPieceWords][kVectors][kLanes];
  Reg<typename Op::Acc> sums[kVectors] = {};
  for (int64_t k = 0; k < depth; k += kPieceWords * Op::kPerWord) {
    const int64_t piece = min_of(kPieceWords * Op::kPerWord, depth - k);
    lanes_a.for_each_word(k, piece, [&](int64_t word, int v, Reg<Word> words) { store(near_a[word][v], words); });
    lanes_b.for_each_word(k, piece, [&](int64_t word, int v, Reg<Word> words) {
      sums[v] = Op::multiply_add(load(near_a[word][v]), words, sums[v]);
    });
  }
  for (int v = 0; v < kVectors; ++v) {
    const int64_t own = min_of(count - v * kLanes, kLanes);
    if (own > 0) store_partial(to + v * kLanes, sums[v], own);
  }
}

// C of few elements, k of many chunks, both operands contiguous along k.
template <class T, class Op>
__attribute__((noinline)) Status launch_dots(const GemmProblem& problem, const Executor& executor) {
  using A = typename Op::Acc;
  constexpr int64_t kChunk = Config<Op>::kChunk;
  constexpr int kLanes = kDotVectors<Op> * Config<Op>::kLanes;
  const int64_t num_whole = problem.k / kChunk, num_chunks = ceil_div(problem.k, kChunk);
  const int64_t num_groups = ceil_div(num_whole, kLanes), ld = (num_groups + 1) * kLanes;
  A* sums = static_cast<A*>(executor.allocate(executor.self, size_t(problem.m * problem.n * ld) * sizeof(A)));
  if (!sums) return Status::out_of_memory;
  // Groups of whole chunks, and what is left of k.
  const auto dot_group = [&](int64_t, int64_t group) {
    const int64_t k = group < num_groups ? group * kLanes * kChunk : num_whole * kChunk;
    const int64_t count = group < num_groups ? min_of(kLanes, num_whole - group * kLanes) : 1;
    for (int64_t i = 0; i < problem.m; ++i) {
      for (int64_t j = 0; j < problem.n; ++j) {
        const T* a = static_cast<const T*>(problem.a) + i * problem.stride_am + k;
        const T* b = static_cast<const T*>(problem.b) + j * problem.stride_bn + k;
        A* to = sums + (i * problem.n + j) * ld + k / kChunk;
        dot_chunks<T, Op>(a, b, count, min_of(kChunk, problem.k - k), to);
      }
    }
  };
  const int64_t num_workers = min_of(executor.num_threads, ceil_div(num_whole, 4 * Config<Op>::kLanes));
  for_each_task(executor, num_workers, num_groups + (num_chunks > num_whole), dot_group);
  for (int64_t i = 0; i < problem.m; ++i) {
    for (int64_t j = 0; j < problem.n; ++j) {
      const A* parts = sums + (i * problem.n + j) * ld;
      A total = parts[0];
      for (int64_t chunk = 1; chunk < num_chunks; ++chunk) total += parts[chunk];
      store_block_tile(problem, i, 1, j, 1, &total, 1);
    }
  }
  executor.release(executor.self, sums);
  return Status::ok;
}

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

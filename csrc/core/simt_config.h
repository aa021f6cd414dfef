// The block tiles of the simt_pipelined kernel, as plain data, and the pure function that chooses one. They share out
// work; none of them changes a bit of the result: the order of summation is the same for all.
#pragma once

#include "core/math.h"

namespace tiledmm {

struct SimtShape {
  int block_m, block_n, block_k;
  int thread_m, thread_n;
  int warps_m, warps_n;
  int num_stages;
  int blocks_per_cu;  // that registers and shared memory admit
  int k_step;         // elements of k that a fragment holds
  int num_fragments;  // one that is multiplied, the others on their way

  constexpr int num_threads() const { return 32 * warps_m * warps_n; }
};

inline constexpr SimtShape kSimtShapes[] = {
    {256, 128, 8, 16, 8, 4, 2, 4, 1, 1, 2},  //
    {128, 96, 16, 8, 12, 2, 2, 4, 2, 1, 2},   //
    {128, 64, 8, 8, 8, 2, 2, 5, 3, 1, 2},    //
    {96, 64, 16, 6, 8, 2, 2, 4, 3, 1, 2},    //
    {64, 64, 16, 8, 4, 2, 2, 4, 4, 1, 2},    //
    {96, 48, 16, 6, 6, 2, 2, 5, 2, 4, 2},    //
    {64, 48, 32, 4, 6, 2, 2, 4, 2, 4, 2},    //
    {64, 32, 32, 4, 4, 2, 2, 4, 3, 4, 2},    //
    {64, 32, 16, 4, 4, 2, 2, 6, 4, 1, 4},    //
    {32, 32, 64, 4, 2, 4, 1, 4, 3, 4, 4},    //
    {16, 32, 64, 2, 2, 4, 1, 6, 3, 4, 4},    //
    {8, 32, 64, 2, 1, 4, 1, 8, 3, 4, 4},     //
    {4, 32, 128, 1, 1, 4, 1, 4, 3, 4, 4},    //
};
inline constexpr int kNumSimtShapes = int(sizeof(kSimtShapes) / sizeof(SimtShape));

// How one product, or one batch of products, is computed.
struct SimtPlan {
  int shape;
  bool is_transposed;  // C^T = B^T A^T
  bool is_split;       // the chunks of k are computed by blocks of their own
};

inline SimtPlan choose_simt_plan(int64_t m, int64_t n, int64_t k, int64_t batch, int64_t chunk_k, int num_cus) {
  (void)k, (void)batch, (void)num_cus;
  return {m * n >= 128 * 128 ? 0 : 6, m > n, chunk_k < k};
}

}  // namespace tiledmm

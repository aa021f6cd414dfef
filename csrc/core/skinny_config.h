// How the skinny kernel shares out its work, as plain data, and the pure function that chooses. Nothing here changes a
// bit of the result: the order of summation is the same for all.
//
// m is the few rows, n x k the operand that streams (the kernel's launcher may have exchanged the caller's m and n).
#pragma once

#include "core/math.h"

namespace tiledmm {

inline constexpr int kSkinnyMaxM = 64;
inline constexpr int kSkinnyGroup = 16;               // columns of C of one warp: what a matrix instruction takes
inline constexpr int kSkinnyStages[] = {2, 3, 4, 8};  // each is a case in the kernel
inline constexpr int kNumSkinnyStages = int(sizeof(kSkinnyStages) / sizeof(int));

struct SkinnyPlan {
  int groups;          // of kSkinnyGroup columns in a block
  bool splits_chunks;  // each chunk of k is a unit of work; else a block adds them up itself
  int num_stages;
  int stage_bytes, shared_bytes;
  int64_t blocks_n, num_chunks;  // of one product; num_chunks counts units, so 1 where chunks are not split
  int64_t num_units;
};

// Rows of the few in a block: whole fragments.
constexpr int skinny_block_m(int64_t m) { return m <= 8 ? 8 : m <= 16 ? 16 : m <= 32 ? 32 : 64; }
constexpr int skinny_block_k(int block_m) { return block_m <= 16 ? 256 : 128; }
// Warps that multiply in one block, as far as registers go.
constexpr int skinny_max_groups(int block_m) { return block_m <= 32 ? 8 : 4; }
// Rows of a tile in shared memory lie an odd number of 16 bytes apart: without bank conflicts.
constexpr int skinny_row_bytes(bool is_k_major, int block_mn, int block_k) {
  return ((is_k_major ? block_k : block_mn) / 8 | 1) * 16;
}
constexpr int skinny_tile_bytes(bool is_k_major, int block_mn, int block_k) {
  return skinny_row_bytes(is_k_major, block_mn, block_k) * (is_k_major ? block_mn : block_k);
}

// Microseconds by a simple model of an H200: the slowest multiprocessor's chain of k tiles, its traffic, the chip's.
inline double skinny_microseconds(const SkinnyPlan& plan, int64_t m, int64_t n, int64_t k, int64_t chunk_k,
                                  int64_t batch, int num_sms) {
  const int block_k = skinny_block_k(skinny_block_m(m));
  const double tiles = double(max_of(1, ceil_div(plan.splits_chunks ? min_of(k, chunk_k) : k, block_k)));
  const double rounds = double(ceil_div(plan.num_units, num_sms));
  const double blocks = double(min_of(plan.num_units, num_sms));
  const double copied = tiles * plan.stage_bytes;  // of one unit
  const double chain = tiles * block_k / 128 * (0.19 + 0.0015 * double(skinny_block_m(m)) * plan.groups / 8);
  const auto larger = [](double a, double b) { return a > b ? a : b; };
  const double unit = larger(chain, copied / 80e3);
  const double dram =
      2.0 * double(batch) * (double(n) * double(k) + double(m) * double(k)) / (4.0e6 * blocks / num_sms);
  const double in_flight = double(plan.num_stages - 1) * plan.stage_bytes * blocks;
  const double latency_bound = double(plan.num_units) * copied / in_flight * 1.0;
  const double time = larger(rounds * (unit + 0.3), larger(dram, latency_bound));
  return 4.5 + time + (plan.splits_chunks ? 2.5 : 0) + 0.01 * (rounds * unit + double(plan.groups));
}

// stage_fixed: shared memory of a block beyond the ring, for each group.
inline SkinnyPlan choose_skinny(bool is_a_k_major, bool is_b_k_major, int64_t m, int64_t n, int64_t k, int64_t chunk_k,
                                int64_t batch, int num_sms, int64_t max_shared_bytes) {
  SkinnyPlan best{};
  double best_time = 0;
  const int64_t groups_n = ceil_div(n, kSkinnyGroup), chunks = chunk_k < k ? ceil_div(k, chunk_k) : 1;
  const int block_m = skinny_block_m(m), block_k = skinny_block_k(block_m);
  for (int splits = 0; splits <= (chunks > 1 ? 1 : 0); ++splits) {
    for (int groups = 1; groups <= skinny_max_groups(block_m) && groups <= groups_n; ++groups) {
      SkinnyPlan plan{};
      plan.groups = groups;
      plan.splits_chunks = splits;
      plan.stage_bytes = skinny_tile_bytes(is_a_k_major, block_m, block_k) +
                         skinny_tile_bytes(is_b_k_major, groups * kSkinnyGroup, block_k);
      const int fixed = groups * block_m * (kSkinnyGroup + 4) * 4;  // C on its way out
      for (const int stages : kSkinnyStages) {
        if (stages * plan.stage_bytes + fixed <= max_shared_bytes) plan.num_stages = stages;
      }
      if (plan.num_stages < 3 && groups > 1) break;
      plan.shared_bytes = plan.num_stages * plan.stage_bytes + fixed;
      plan.blocks_n = ceil_div(groups_n, groups);
      plan.num_chunks = splits ? chunks : 1;
      plan.num_units = plan.blocks_n * plan.num_chunks * batch;
      const double time = skinny_microseconds(plan, m, n, k, chunk_k, batch, num_sms);
      if (best.groups == 0 || time < best_time) {
        best = plan;
        best_time = time;
      }
    }
  }
  return best;
}

}  // namespace tiledmm

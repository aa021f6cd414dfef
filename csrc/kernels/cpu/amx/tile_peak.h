// The peak of the tile instruction: what a benchmark measures the rung against, in the same run. Four tiles of sums,
// operands in registers, on every thread at once.
#pragma once

#include <chrono>

#include "core/executor.h"
#include "kernels/cpu/amx/kernel.h"
#include "kernels/cpu/shared/parallel.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

// GFLOP/s of all threads together: the best of several short runs. Zeros would be up to a sixth faster than data.
template <class Op>
double tile_peak(const Executor& executor) {
#if defined(TILEDMM_EMULATE_AMX)
  constexpr int kTrials = 1, kRounds = 1;
#else
  constexpr int kTrials = 20, kRounds = 4000;
#endif
  constexpr double kFlops = 2.0 * 4 * kRounds * kTileRows * kTileRows * kTileK;
  alignas(64) uint16_t data[kTileBytes / 2];
  uint32_t state = 1;
  for (uint16_t& element : data) {
    state = state * 1664525 + 1013904223;
    element = uint16_t((state >> 16 & 0x83ff) | 0x3800);  // of moderate size in either dtype
  }
  double best = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    const auto start = std::chrono::steady_clock::now();
    parallel_for(executor, executor.num_threads, [&](int64_t) {
      const TileState tiles;
      tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
      tile_load<4>(data, kTileRowBytes), tile_load<5>(data, kTileRowBytes);
      tile_load<6>(data, kTileRowBytes), tile_load<7>(data, kTileRowBytes);
      for (int round = 0; round < kRounds; ++round) {
        Op::template dot<0, 4, 6>();
        Op::template dot<1, 4, 7>();
        Op::template dot<2, 5, 6>();
        Op::template dot<3, 5, 7>();
      }
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const double rate = kFlops * executor.num_threads / seconds.count() / 1e9;
    if (rate > best) best = rate;
  }
  return best;
}

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

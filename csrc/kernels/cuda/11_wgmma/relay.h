// Tiles whose k two blocks share out, one after the other: the first hands its sums on through memory, and the second
// adds to them, in registers. It is the same chain of additions, so no bit of a result tells where a tile was cut.
#pragma once

#include "kernels/cuda/shared/tiles.h"
#include "platform/ptx_sm90.h"

namespace tiledmm::cuda {
namespace {

// The tiles of one block up to `end`, of which the last ones may be relayed. One number is kept from turn to turn:
// registers are full of sums.
template <class Cfg, class Function>
__device__ __forceinline__ void for_each_part(const Arguments& args, int end, const Function& function) {
  const int shift = Cfg::kPairs ? args.pair_m + args.pair_n : 0;
  for (int turn = 0;; ++turn) {
    const int unit = block_index<Cfg>() >> shift, num_units = num_blocks<Cfg>() >> shift;
    RelayPart part{unit + turn * num_units, 0, args.num_k_tiles};
    if (args.relays)
      part = relay_part(args.relay.shares, unit, num_units, turn,
                        [&](int number) { return args.relay.k_tiles.quotient(number); });
    else if (part.tile >= end)
      part.tile = -1;
    if (part.tile < 0) break;
    Place at = place_of<Cfg>(tile_of(part.tile, args), args);
    if (args.relays) {
      at.first_k_tile = part.begin;
      at.num_k_tiles = part.end - part.begin;
      at.takes_sums = part.begin > 0;
      at.hands_on_sums = part.end < args.num_k_tiles;
    }
    function(at);
  }
}

// Where the sums of one consumer of a block lie: vectors of neighbouring threads next to each other.
template <class Cfg>
__device__ __forceinline__ float4* relayed_sums(const Relay& relay, int block, int consumer) {
  const int64_t idx = int64_t(block) * Cfg::kConsumers + consumer;
  return relay.sums + idx * (Cfg::kAcc / 4) * kWarpgroup + threadIdx.x % kWarpgroup;
}

// To the block that ends this tile.
template <class Cfg>
__device__ __forceinline__ void hand_on_sums(const float (&acc)[Cfg::kAcc], const Arguments& args, int consumer) {
  float4* to = relayed_sums<Cfg>(args.relay, blockIdx.x, consumer);
#pragma unroll
  for (int i = 0; i < Cfg::kAcc; i += 4)
    __stcg(to + i / 4 * kWarpgroup, make_float4(acc[i], acc[i + 1], acc[i + 2], acc[i + 3]));
  named_barrier_sync(1 + consumer, kWarpgroup);  // all threads' sums are stored
  if (threadIdx.x % kWarpgroup == 0)
    store_release(args.relay.marks + blockIdx.x * Cfg::kConsumers + consumer, args.relay.mark);
}

// From the block that began this tile: the same one of the pair before, which comes first in the grid and begins with
// it, so that it never waits itself. The mark is taken away, as a graph launches the kernel with the same one again.
// Where is_begun is false, the accumulators stay as they are.
template <class Cfg>
__device__ __forceinline__ void take_sums(float (&acc)[Cfg::kAcc], const Arguments& args, int consumer, bool is_begun) {
  const int block = int(blockIdx.x) - (1 << args.pair_m << args.pair_n);
  if (is_begun) {
    if (threadIdx.x % kWarpgroup == 0) {
      uint64_t* mark = args.relay.marks + block * Cfg::kConsumers + consumer;
      while (load_acquire(mark) != args.relay.mark) __nanosleep(20);
      *mark = 0;
    }
    named_barrier_sync(1 + consumer, kWarpgroup);  // the sums are there for all threads
  }
  const float4* from = relayed_sums<Cfg>(args.relay, block, consumer);
#pragma unroll
  for (int i = 0; i < Cfg::kAcc; i += 4)
    load_vector_if(is_begun, from + i / 4 * kWarpgroup, acc[i], acc[i + 1], acc[i + 2], acc[i + 3]);
}

}  // namespace
}  // namespace tiledmm::cuda

// wgmma_grouped: Hopper (sm_90a), products of groups and gated layers, fp16 and bf16 with fp32 sums.
//
// Beyond wgmma, whose main loop and stores it uses: only the device knows where groups begin. Blocks stay for the whole
// product and walk through the tiles of all groups. The producer's warp finds their places from the offsets, by a sum
// over 32 groups at a time (a scheduler on the device, as in CUTLASS's grouped GEMM), and tells them with the first
// stage of a tile. A group that is larger than a tile has its last tile begin early, inside; of a smaller one, threads
// store the rows. Gated layers have half of a tile's columns from each of two B, so that a thread holds both sums of an
// element of C. Where k is grouped, rows of a k tile that belong to the next group become zeros in shared memory.
#pragma once

#include "core/groups.h"
#include "kernels/cuda/wgmma/grouped_plan.h"
#include "kernels/cuda/wgmma/grouped_task.h"
#include "kernels/cuda/wgmma/kernel.h"

namespace tiledmm::cuda {
namespace {

// The kernel's parameter beside those of wgmma.
struct GroupedArguments {
  const int32_t* ends;   // null: one group of all rows
  int num_groups, size;  // size: rows, or elements of k, of all groups
  int band;              // rows of tiles that are computed together
  Divisor tiles_of_row, tiles_of_band;
  const void* up_bias;  // gated layers; gate's is the bias
  // How many elements lie between C and the sum before the activation, or gate's, and up's; 0: they are not kept.
  int64_t sum_offset, up_sum_offset;
};

// What the producer tells of the tile that a stage begins; as it is made, that there is none, and no stage behind.
struct alignas(16) TileOfStage {
  int num_k_tiles = -1;      // 0: the stage holds nothing, and C is what follows sums of nothing
  int row = 0, new_row = 0;  // of C; rows before new_row are all of the tile before it
  int end_row = 0;           // of the group
  int col = 0, group = 0;
  int size_k = 0;       // of the group, where k is grouped
  bool behind = false;  // rows of no group
};

// One block tile, that of Base, of groups. OUT: C's columns, as they are finished and stored. Where k is grouped,
// neither operand lies along k. Gated: the rows of B are half gate's, half up's.
template <class Base, class OUT, Grouping GROUPING, bool IS_GATED>
struct WithGroups : Base {
  using Out = OUT;
  static constexpr Grouping kGrouping = GROUPING;
  static constexpr bool kIsGated = IS_GATED;
  static constexpr bool kKeepsSum = IS_GATED || (GROUPING == Grouping::rows && sizeof(typename OUT::T) == 2);
  static constexpr int kColumns = Out::kBlockN;  // of C
  static constexpr int kNumB = IS_GATED ? 2 : 1;
  using LoaderB = BoxLoader<typename Base::T, kColumns,
                            Base::kBIsNMajor  ? 64
                            : kColumns == 256 ? 128
                                              : kColumns,
                            !Base::kBIsNMajor>;
  static constexpr int kBytesOfB = Base::kBBytes / kNumB;
  static constexpr int kSmem = Base::kSmem + Base::kNumStages * int(sizeof(TileOfStage));
  static_assert(kColumns * kNumB == Base::kBlockN && Base::kAIsMMajor == (GROUPING == Grouping::k));
  static_assert(kColumns % (Base::kBIsNMajor ? 64 : 32) == 0, "whole boxes fill a tile");
  static_assert(GROUPING != Grouping::k || Base::kTilesOfStage == 1, "a k tile is cleared by its stage");
  static_assert(kSmem <= kSmemBytes);
};
template <class T, Grouping GROUPING, int BLOCK_M, int BLOCK_N, bool B_IS_N_MAJOR>
using OneProduct = Config<T, T, BLOCK_M, BLOCK_N, GROUPING == Grouping::k, B_IS_N_MAJOR, false, false, false, false>;
template <class T, Grouping GROUPING, int BLOCK_M, int BLOCK_N, bool B_IS_N_MAJOR, bool IS_GATED = false>
using GroupedConfig =
    WithGroups<OneProduct<T, GROUPING, BLOCK_M, BLOCK_N, B_IS_N_MAJOR>,
               OneProduct<T, GROUPING, BLOCK_M, IS_GATED ? BLOCK_N / 2 : BLOCK_N, B_IS_N_MAJOR>, GROUPING, IS_GATED>;

// The tile that a block computes next, in its group.
struct GroupTile {
  int group;
  GroupRange range;
  int tile;  // of the group's
};

// The first of 32 groups that are looked at together, and how many rows of tiles come before it. Tiles are asked for in
// their order.
struct GroupCursor {
  int first_group = 0, first_row = 0;
};

// The group that row `row` of all groups' rows of tiles belongs to; false behind the last one. By a whole warp. The
// rows behind the last group are one more.
template <int BLOCK_M>
__device__ __forceinline__ bool find_group(const GroupedArguments& groups, int row, GroupCursor& cursor, GroupTile& at,
                                           int& row_of_group) {
  constexpr int kMostRows = 1 << 30;
  const int lane = threadIdx.x % 32;
  while (cursor.first_group <= groups.num_groups) {
    const int group = cursor.first_group + lane;
    GroupRange range{};
    if (group <= groups.num_groups) {
      const int previous_end = group == 0 ? 0 : groups.ends[group - 1];
      range = group_range(previous_end, group == groups.num_groups ? groups.size : groups.ends[group], groups.size);
    }
    const int rows = (int(range.end - range.begin) + BLOCK_M - 1) / BLOCK_M;
    int end = rows;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int sum_before = __shfl_up_sync(~0u, end, distance);
      if (lane >= distance) end += sum_before;
    }
    const uint32_t behind = __ballot_sync(~0u, row - cursor.first_row < end);
    if (behind) {
      const int found = __ffs(int(behind)) - 1;
      at.group = cursor.first_group + found;
      at.range = {__shfl_sync(~0u, int(range.begin), found), __shfl_sync(~0u, int(range.end), found)};
      row_of_group = row - cursor.first_row - __shfl_sync(~0u, end - rows, found);
      return true;
    }
    cursor.first_group += 32;
    cursor.first_row = min(cursor.first_row + __shfl_sync(~0u, end, 31), kMostRows);
  }
  return false;
}

// Tile `idx` of all; false behind the last one. By a whole warp.
template <class Cfg>
__device__ __forceinline__ bool find_tile(const Arguments& args, const GroupedArguments& groups, int idx,
                                          GroupCursor& cursor, GroupTile& at) {
  if (idx >= args.num_tiles) return false;
  if constexpr (Cfg::kGrouping == Grouping::k) {
    at.group = args.tiles_of_item.quotient(idx);
    at.tile = idx - at.group * args.tiles_of_item.value;
    at.range = group_range(at.group == 0 ? 0 : groups.ends[at.group - 1], groups.ends[at.group], groups.size);
    return true;
  }
  if (!groups.ends) {
    at = {0, {0, groups.size}, idx};
    return true;
  }
  const int row = groups.tiles_of_row.quotient(idx);
  int row_of_group = 0;
  if (!find_group<Cfg::kBlockM>(groups, row, cursor, at, row_of_group)) return false;
  at.tile = idx - (row - row_of_group) * groups.tiles_of_row.value;
  return true;
}

// Where the tile lies. Tiles of a group are computed in bands of `band` rows of tiles, column by column of a band.
template <class Cfg>
__device__ __forceinline__ TileOfStage place_in_group(const Arguments& args, const GroupedArguments& groups,
                                                      const GroupTile& tile) {
  constexpr bool kIsOfK = Cfg::kGrouping == Grouping::k;
  const int size = int(tile.range.end - tile.range.begin);
  const int begin = kIsOfK ? 0 : int(tile.range.begin), end = kIsOfK ? args.m : int(tile.range.end);
  const int rows = (end - begin + Cfg::kBlockM - 1) / Cfg::kBlockM;
  const int band = groups.tiles_of_band.quotient(tile.tile), first = band * groups.band;
  const int rows_of_band = min(groups.band, rows - first), within = tile.tile - band * groups.tiles_of_band.value;
  const int col = within / rows_of_band, row = first + within - col * rows_of_band;
  TileOfStage at;
  at.new_row = begin + row * Cfg::kBlockM;
  at.row = min(at.new_row, kIsOfK ? args.last_row : max(begin, end - Cfg::kBlockM));
  at.end_row = end;
  at.col = min(col * Cfg::kColumns, args.last_col);
  at.group = tile.group;
  at.size_k = size;
  at.behind = !kIsOfK && groups.ends && tile.group == groups.num_groups;
  at.num_k_tiles = kIsOfK ? (size + Cfg::kBlockK - 1) / Cfg::kBlockK : at.behind ? 0 : args.num_k_tiles;
  return at;
}

// By the producer's thread: a stage without copies, which says what `tile` is.
template <class Cfg>
__device__ __forceinline__ void produce_empty_stage(const Shared& shared, TileOfStage* tiles,
                                                    Ring<Cfg::kNumStages>& ring, const TileOfStage& tile) {
  mbarrier_wait_parity(shared.empty + ring.stage * 8, ring.phase ^ 1);
  tiles[ring.stage] = tile;
  mbarrier_arrive(shared.full + ring.stage * 8);
  ring.advance();
}

// By the producer's thread: the copies of all k tiles of a tile.
template <class Cfg>
__device__ __forceinline__ void produce_group_tile(const CUtensorMap* map_a, const CUtensorMap* maps_b,
                                                   const Arguments& args, const Shared& shared, TileOfStage* tiles,
                                                   Ring<Cfg::kNumStages>& ring, int first_k, const TileOfStage& tile) {
  constexpr bool kIsOfK = Cfg::kGrouping == Grouping::k;
  if (tile.num_k_tiles == 0) return produce_empty_stage<Cfg>(shared, tiles, ring, tile);
  // Boxes of rows behind the group are left out: what is multiplied in their place goes nowhere.
  const int num_boxes = kIsOfK ? 1 : (min(tile.end_row - tile.row, Cfg::kBlockM) + args.a.rows - 1) / args.a.rows;
  const int tile_bytes = args.tile_bytes + (num_boxes - 1) * args.a.rows * 128;
  const int item_b = tile.group * args.batch[0].b;
#pragma unroll 1
  for (int k_tile = 0; k_tile < tile.num_k_tiles; k_tile += Cfg::kTilesOfStage) {
    mbarrier_wait_parity(shared.empty + ring.stage * 8, ring.phase ^ 1);
    const uint32_t barrier = shared.full + ring.stage * 8;
    if (k_tile == 0) tiles[ring.stage] = tile;
    const int num_tiles = tiles_of_stage<Cfg>(k_tile, tile.num_k_tiles);
    mbarrier_arrive_expect_tx(barrier, num_tiles * tile_bytes);
#pragma unroll
    for (int t = 0; t < Cfg::kTilesOfStage; ++t) {
      if (t == num_tiles) break;
      const uint32_t smem = shared.stages + ring.stage * shared.stage_bytes + t * Cfg::kTileBytes;
      const int k = first_k + (k_tile + t) * Cfg::kBlockK;
      if constexpr (kIsOfK) {
        Cfg::LoaderA::template load<false>(smem, map_a, args.a, tile.row, k, 0, barrier);
      } else {
#pragma unroll 1
        for (int i = 0; i < num_boxes; ++i)
          cp_async_bulk_tensor_3d(smem + i * args.a.rows * 128, map_a, k, tile.row + i * args.a.rows, 0, barrier,
                                  args.a.policy);
      }
#pragma unroll
      for (int i = 0; i < Cfg::kNumB; ++i)
        Cfg::LoaderB::template load<false>(smem + Cfg::kABytes + i * Cfg::kBytesOfB, maps_b + i, args.b, tile.col, k,
                                           item_b, barrier);
    }
    ring.advance();
  }
}

// Zeros in the place of those rows of a k tile that do not belong to the group: of this consumer's A and of all of B,
// which every consumer writes.
template <class Cfg>
__device__ __forceinline__ void clear_rows_of_k(const Shared& shared, int stage, int consumer, int num_rows) {
  const uint32_t smem = shared.stages + stage * Cfg::kStageBytes;
  const auto clear_box = [&](uint32_t box) {
    for (int at = num_rows * 128 + int(threadIdx.x) % kWarpgroup * 16; at < Cfg::kBlockK * 128; at += kWarpgroup * 16)
      store_shared_vector(box + at, make_uint4(0, 0, 0, 0));
  };
  clear_box(smem + consumer * Cfg::kBlockK * 128);
#pragma unroll 1
  for (int box = 0; box < Cfg::kBlockN / 64; ++box) clear_box(smem + Cfg::kABytes + box * Cfg::kBlockK * 128);
  fence_proxy_async();
  named_barrier_sync(1 + consumer, kWarpgroup);
}

// gate = activation(gate) * up, of results of 16 bits.
template <int COUNT>
__device__ __forceinline__ void multiply_gated(float (&gate)[COUNT], const float (&up)[COUNT], Activation activation) {
  if (activation == Activation::relu) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) gate[i] = activate<Activation::relu>(gate[i]);
  } else {
    activate_short(gate, activation);
  }
#pragma unroll
  for (int i = 0; i < COUNT; ++i) gate[i] *= up[i];
}

// A's tensor map, those of gate's and of up's B, or of the one B, C's, and those of the sums that are kept.
struct GroupedMaps {
  CUtensorMap a, b[2], c, sums[2];
};

// A thread's part of a tile's bias of its group, which none is behind the last one.
template <class Out>
__device__ __forceinline__ TileBias<BiasElement<Out>> load_group_bias(const Arguments& args, const void* bias,
                                                                      const TileOfStage& tile) {
  auto from = static_cast<BiasPointer<Out>>(bias);
  if (tile.behind || !from) return {};
  return load_bias<Out>(args, from + tile.group * args.batch[0].bias, tile.col, 0, 0);
}

// Stores those rows of a tile's 64 that are of its group.
template <class Out, bool IS_CUT>
__device__ __forceinline__ void store_group_tile(const float (&out)[Out::kAcc], const CUtensorMap* map_c,
                                                 const Arguments& args, const Shared& shared, int consumer,
                                                 const Place& at, int row, int end_row, int& num_stores) {
  if constexpr (Out::kStoresDirectly)
    store_block_tile_directly<Out, IS_CUT>(out, args, at, row, end_row);
  else
    store_block_tile<Out, IS_CUT>(out, map_c, args, shared.c, consumer, at, row, nominal_start<Out::kBlockN>(at.col),
                                  num_stores, end_row);
}

// 64 rows of a tile, whose first stage is there: multiplies what arrives and stores.
template <class Cfg>
__device__ __forceinline__ void consume_group_tile(const GroupedMaps& maps, const Arguments& args,
                                                   const GroupedArguments& groups, const StageAddress& first_stage,
                                                   const Shared& shared, Ring<Cfg::kNumStages>& ring, int consumer,
                                                   const TileOfStage& tile, int& num_stores) {
  using Out = typename Cfg::Out;
  constexpr bool kIsOfK = Cfg::kGrouping == Grouping::k;
  Accumulators<Cfg> acc{};
  const int row = tile.row + consumer * 64;
  Place at{};
  at.row = tile.row, at.col = tile.col;
  at.batch_c = tile.group * args.batch[0].c;
  TileBias<BiasElement<Out>> bias{}, up_bias{};
  if constexpr (Cfg::kIsGated) {
    bias = load_group_bias<Out>(args, args.bias, tile);
    up_bias = load_group_bias<Out>(args, groups.up_bias, tile);
  } else {
    bias = load_bias<Out>(args, tile.col, row + first_row_of_thread<Cfg>(), Cfg::kRowStep);
  }
  if (tile.num_k_tiles == 0) {
    __syncwarp();  // all lanes know the tile
    release_stage<Cfg>(shared, ring.stage);
    ring.advance();
  } else if constexpr (kIsOfK) {
    multiply_k_tiles<Cfg, Cfg, false>(
        acc, first_stage, shared, ring, tile.num_k_tiles, [] {},
        [&](int k_tile, int stage) {
          const int num_rows = tile.size_k - k_tile * Cfg::kBlockK;
          if (num_rows < Cfg::kBlockK) clear_rows_of_k<Cfg>(shared, stage, consumer, num_rows);
        });
  } else if constexpr (Cfg::kIsScaled) {
    at.num_k_tiles = tile.num_k_tiles;
    at.scales_b = tile.group * args.scale_b.stride_group;
    Cfg::template multiply_scaled<Out>(acc.c, args, first_stage, shared, ring, consumer, at);
  } else if constexpr (Cfg::kSumsChunks) {
    multiply_chunks<Cfg, false>(acc, first_stage, shared, ring, tile.num_k_tiles, args.chunk_tiles);
  } else {
    multiply_chunk<Cfg, Cfg, false>(acc, first_stage, shared, ring, tile.num_k_tiles);
  }
  if (row >= tile.end_row || row + 64 <= tile.new_row) return;
  const auto store = [&](const float (&values)[Out::kAcc], const CUtensorMap& map, int64_t from_c) {
    at.from_c = from_c;
    store_group_tile<Out, !kIsOfK>(values, &map, args, shared, consumer, at, row, tile.end_row, num_stores);
  };
  if constexpr (Cfg::kIsGated) {
    float gate[Out::kAcc], up[Out::kAcc];
#pragma unroll
    for (int i = 0; i < Out::kAcc; ++i) gate[i] = acc.c[i], up[i] = acc.c[Out::kAcc + i];
    if (args.bias) add_bias<Out>(gate, bias, args, shared.c, 1 + consumer);
    if (groups.up_bias) add_bias<Out>(up, up_bias, args, shared.c, 1 + consumer);
    if (groups.sum_offset) {
      store(gate, maps.sums[0], groups.sum_offset);
      store(up, maps.sums[1], groups.up_sum_offset);
    }
    multiply_gated(gate, up, args.activation);
    store(gate, maps.c, 0);
  } else {
    const auto keep_sum = [&] {
      if constexpr (Cfg::kKeepsSum) {
        if (groups.sum_offset) store(acc.c, maps.sums[0], groups.sum_offset);
      }
    };
    if (tile.behind)
      keep_sum();
    else
      finish_block_tile<Out>(acc.c, bias, args, shared.c, consumer, tile.group, row + first_row_of_thread<Cfg>(),
                             tile.col, keep_sum);
    store(acc.c, maps.c, 0);
  }
}

template <class Cfg>
__global__ void __launch_bounds__(Cfg::kThreads, 1)
    wgmma_grouped_kernel(const __grid_constant__ GroupedMaps maps, const __grid_constant__ Arguments args,
                         const __grid_constant__ GroupedArguments groups) {
  constexpr int kNumStages = Cfg::kNumStages, kProducerWarp = Cfg::kConsumers * 4;
  constexpr int kStoreBytes = num_store_buffers(Cfg::kConsumers) * Cfg::kStoreBytes;  // of a consumer
  extern __shared__ char dynamic_smem[];
  // The patterns of the swizzle count from multiples of 1024 bytes.
  char* smem = dynamic_smem + (-smem_address(dynamic_smem) & 1023);
  const int warp = threadIdx.x / 32, consumer = Cfg::kConsumers == 1 ? 0 : threadIdx.x / kWarpgroup;
  Shared shared{};
  shared.stages = smem_address(smem);
  shared.stage_bytes = Cfg::kStageBytes;
  shared.c = smem + kNumStages * Cfg::kStageBytes + consumer * kStoreBytes;
  shared.full = shared.stages + kNumStages * Cfg::kStageBytes + Cfg::kConsumers * kStoreBytes;
  shared.empty = shared.full + kNumStages * 8;
  auto* tiles = reinterpret_cast<TileOfStage*>(smem + kNumStages * Cfg::kStageBytes + Cfg::kConsumers * kStoreBytes +
                                               2 * kMaxStages * 8);
  if (threadIdx.x == 0) {
#pragma unroll
    for (int stage = 0; stage < kNumStages; ++stage) {
      mbarrier_init(shared.full + stage * 8, 1);
      mbarrier_init(shared.empty + stage * 8, 4 * Cfg::kConsumers);  // one arrival per consumer warp
    }
    fence_mbarrier_init();
  }
  if (warp == kProducerWarp && elect_sync()) {
    prefetch_tensormap(&maps.a);
#pragma unroll
    for (int i = 0; i < Cfg::kNumB; ++i) prefetch_tensormap(&maps.b[i]);
  }
  __syncthreads();
  // Up to here nothing was read or written that the kernel before this one may still work on.
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();

  Ring<kNumStages> ring;
  if (warp >= kProducerWarp) {
    if constexpr (Cfg::kMovesRegisters) setmaxnreg_dec<Cfg::kProducerRegisters>();
    if (warp > kProducerWarp) return;
    const bool is_elected = elect_sync();
    GroupCursor cursor;
    GroupTile found{};
    for (int idx = blockIdx.x; find_tile<Cfg>(args, groups, idx, cursor, found); idx += gridDim.x) {
      if (is_elected)
        produce_group_tile<Cfg>(&maps.a, maps.b, args, shared, tiles, ring,
                                Cfg::kGrouping == Grouping::k ? int(found.range.begin) : 0,
                                place_in_group<Cfg>(args, groups, found));
      __syncwarp();
    }
    if (is_elected) produce_empty_stage<Cfg>(shared, tiles, ring, TileOfStage{});
  } else {
    if constexpr (Cfg::kMovesRegisters) setmaxnreg_inc<Cfg::kConsumerRegisters>();
    const StageAddress first_stage = first_stage_of<Cfg>(shared, consumer);
    int num_stores = 0;
    while (true) {
      mbarrier_wait_parity(shared.full + ring.stage * 8, ring.phase);
      const TileOfStage tile = tiles[ring.stage];
      if (tile.num_k_tiles < 0) break;
      consume_group_tile<Cfg>(maps, args, groups, first_stage, shared, ring, consumer, tile, num_stores);
    }
    // Shared memory must outlive the stores that read it.
    if (threadIdx.x % kWarpgroup == 0) cp_async_bulk_wait_group_read<0>();
  }
}

// ---- host ----

template <class Cfg>
const char* launch_grouped_config(const GroupedTask& task) {
  const FoldedProblem& problem = task.problem;
  const GemmProblem& p = problem.gemm;
  const WgmmaGroupedPlan& plan = task.plan;
  constexpr bool kIsOfK = Cfg::kGrouping == Grouping::k;
  const int tiles_n = int(ceil_div(p.n, Cfg::kColumns)), tiles_m = int(ceil_div(p.m, Cfg::kBlockM));
  const int64_t num_groups = num_groups_of(problem);

  Arguments args{};
  args.m = int(p.m), args.n = int(p.n);
  args.num_k_tiles = int(ceil_div(p.k, Cfg::kBlockK));
  args.chunk_tiles = int(ceil_div(problem.chunk_k, Cfg::kBlockK));
  args.num_splits = 1;
  args.last_row = latest_start(p.m, Cfg::kBlockM, Cfg::kUnitA);
  // Blocks of factors begin with tiles.
  args.last_col = Cfg::kIsScaled ? INT32_MAX : latest_start(round_up(p.n, 2), Cfg::kColumns, Cfg::kUnitB);
  args.num_tiles = int(most_tiles(p, num_groups, tiles_m, tiles_n));
  args.tiles_of_item = Divisor(int64_t(tiles_m) * tiles_n);
  if (is_grouped(p)) {
    const BatchDim& dim = problem.batch_dims[0];
    args.num_batch_dims = 1;
    args.batch[0] = {int(dim.size), 0, int(dim.stride_b / plan.b.batch_step), dim.stride_c / plan.c.batch_step,
                     dim.stride_bias};
  }
  set_epilogue(args, problem);
  args.stores_by_tma = plan.stores_by_tma;
  args.stores_pairs = reinterpret_cast<uintptr_t>(p.c) % (2 * sizeof(typename Cfg::C)) == 0 && p.n % 2 == 0 &&
                      (p.stride_cm | plan.c.batch_step | p.sum_offset | p.up_sum_offset) % 2 == 0;
  args.c = p.c;
  args.ldc = p.stride_cm;
  args.batch_step_c = plan.c.batch_step;

  GroupedArguments groups{};
  groups.ends = p.group_ends;
  groups.num_groups = int(num_groups);
  groups.size = int(kIsOfK ? p.k : p.m);
  groups.band = plan.band;
  groups.up_bias = p.gated_bias;
  groups.sum_offset = p.sum_offset, groups.up_sum_offset = p.up_sum_offset;
  groups.tiles_of_row = Divisor(tiles_n);
  groups.tiles_of_band = Divisor(int64_t(plan.band) * tiles_n);

  GroupedMaps maps{};
  args.a.policy = CachePolicy::evict_normal;
  args.b.policy = plan.evicts_b ? CachePolicy::evict_first : CachePolicy::evict_normal;
  bool is_encoded;
  if constexpr (kIsOfK) {
    is_encoded = Cfg::LoaderA::encode(maps.a, args.a, p.dtype_a, p.a, plan.a, 0);
    args.tile_bytes = Cfg::LoaderA::num_bytes(args.a);
  } else {
    args.a.rows = plan.box_rows;
    is_encoded = encode_tensor_map(&maps.a, p.dtype_a, p.a, plan.a, Cfg::kBlockK, args.a.rows, 128, false);
    args.tile_bytes = args.a.rows * 128;
  }
  const void* const operands_b[2] = {p.b, p.gated_b};
  for (int i = 0; i < Cfg::kNumB; ++i)
    is_encoded = is_encoded && Cfg::LoaderB::encode(maps.b[i], args.b, p.dtype_b, operands_b[i], plan.b, 0);
  args.tile_bytes += Cfg::kNumB * Cfg::LoaderB::num_bytes(args.b);
  const auto encode_result = [&](CUtensorMap& map, int64_t from_c) {
    const void* const to = static_cast<const char*>(p.c) + from_c * int64_t(size_of(p.dtype_c));
    is_encoded = is_encoded && encode_tensor_map(&map, p.dtype_c, to, plan.c, Cfg::Out::kStoreN, 64, 128, false);
  };
  if (args.stores_by_tma && !Cfg::Out::kStoresDirectly) {
    encode_result(maps.c, 0);
    if (p.sum_offset) encode_result(maps.sums[0], p.sum_offset);
    if (p.up_sum_offset) encode_result(maps.sums[1], p.up_sum_offset);
  }
  if (!is_encoded) return kNotEncoded;
  return launch_overlapped<&wgmma_grouped_kernel<Cfg>>(plan.num_blocks, Cfg::kThreads, Cfg::kSmem, task.stream, maps,
                                                       args, groups);
}

template <class T, int TILE>
const char* launch_grouped_tile(const GroupedTask& task) {
  constexpr TileShape kShape = kGroupedTileShapes[TILE];
  constexpr int M = kShape.block_m, N = kShape.block_n;
  const GemmProblem& p = task.problem.gemm;
  if (p.grouping == Grouping::k) {
    if constexpr (serves_groups_of_k(kShape))
      return launch_grouped_config<GroupedConfig<T, Grouping::k, M, N, true>>(task);
    return "this tile is for groups of rows";
  }
  const bool is_k_major = task.plan.b.is_k_major;
  if (p.gated_b) {
    if (is_k_major) return launch_grouped_config<GroupedConfig<T, Grouping::rows, M, N, false, true>>(task);
    if constexpr (serves_gated(kShape, false))
      return launch_grouped_config<GroupedConfig<T, Grouping::rows, M, N, true, true>>(task);
    return "this tile has no box for each B";
  }
  return is_k_major ? launch_grouped_config<GroupedConfig<T, Grouping::rows, M, N, false>>(task)
                    : launch_grouped_config<GroupedConfig<T, Grouping::rows, M, N, true>>(task);
}

}  // namespace

template <int INSTANCE>
const char* launch_grouped_instance(const GroupedTask& task) {
  constexpr Instance kOwn = kGroupedInstances[INSTANCE];
  using T = std::conditional_t<kOwn.dtype == DType::f16, __half, __nv_bfloat16>;
  return visit_number<kOwn.first, kOwn.end>(task.plan.tile, "no such tile", [&](auto number) {
    return launch_grouped_tile<T, decltype(number)::value>(task);
  });
}

}  // namespace tiledmm::cuda

// The block tiles of the wgmma kernel, as plain data, and the pure functions that choose among them. They share out
// work; none of them changes a bit of the result: the order of summation is the same for all.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "core/math.h"
#include "core/operand.h"
#include "core/plan.h"
#include "core/problem.h"
#include "core/summation.h"
#include "core/task.h"
#include "core/transposed.h"
#include "kernels/cuda/shared/plan.h"
#include "kernels/cuda/shared/tile_order.h"
#include "kernels/cuda/wgmma/copied_plan.h"
#include "kernels/cuda/wgmma/costs.h"

namespace tiledmm {

struct TileShape {
  int block_m, block_n;
  // Two consumers take whole tiles in turns: one stores its tile while the other one multiplies. Else they share each
  // tile.
  bool takes_turns = false;
};
inline constexpr TileShape kTileShapes[] = {
    {128, 256}, {128, 224}, {128, 208}, {128, 192}, {128, 176}, {128, 168}, {128, 160}, {128, 128}, {64, 256},
    {64, 192},  {64, 160},  {64, 128},  {64, 96},   {64, 64},   {64, 32},   {192, 192}, {192, 96},  {128, 192, true},
};
inline constexpr int kNumTileShapes = int(sizeof(kTileShapes) / sizeof(TileShape));

// Whether the kernel can halve the tiles of the last wave, and whether that is of use: they leave half of the
// multiprocessors idle.
constexpr bool splits_tail(const TileShape& shape) { return shape.block_m == 128 && shape.block_n == 256; }
constexpr bool splits_tail(const TileShape& shape, int64_t num_tiles, int num_sms) {
  return splits_tail(shape) && num_tiles % num_sms && num_tiles % num_sms * 2 <= num_sms;
}

// Whether a thread has the registers for a second set of accumulators, which k in several chunks needs, and for the
// sums of rows. Where a block has three consumers, a thread has fewer of them; where they take turns, it has twice as
// many sums.
constexpr bool sums_chunks(const TileShape& shape, bool sums_rows = false) {
  return !shape.takes_turns && shape.block_n <= (shape.block_m < 192 ? 192 : sums_rows ? 96 : 128);
}

// Whether consumers may take turns: threads have no registers for chunks, and batches and short k gain nothing.
constexpr bool may_take_turns(const GemmTask& p) { return p.chunk_k >= p.k && p.batch == 1 && p.k >= 6 * kWgmmaBlockK; }

// Whether chunks may be computed side by side: their sums fit.
constexpr bool may_split_chunks(int64_t m, int64_t n, int64_t k, int64_t chunk_k, int64_t batch) {
  const double sums = double(ceil_div(k, chunk_k)) * double(batch) * double(m) * double(n);
  return chunk_k < k && 4 * sums <= double(kMaxPartialBytes);
}

// How many blocks of a tile a multiprocessor has registers for. is_plain: of the kernels with the least code.
constexpr int most_blocks(const TileShape& shape, bool is_plain) {
  if (shape.block_m > 64 || shape.block_n > 64) return 1;
  return shape.block_n == 32 || is_plain ? 4 : 3;
}

// How many share one at most, so that some multiply while others store. A tile's whole k has to fit into the stages
// that they leave each other: a longer one needs more of them on their way (from k = 1024 on two blocks take twice as
// long as one). More than two gain nothing where threads store C, nor in a single product (75 of short k, H200).
constexpr int most_blocks(const TileShape& shape, const GemmTask& p, int block_k) {
  const int64_t k_tiles = ceil_div(p.k, block_k);
  if (k_tiles > 4 || p.sums_rows) return 1;
  const bool are_two = k_tiles > 2 || p.batch == 1 || !p.is_c_aligned;
  return int(min_of(most_blocks(shape, p.is_plain), are_two ? 2 : k_tiles == 2 || size_of(p.dtype) == 4 ? 3 : 4));
}
// Where they share one, two of them do at least.
constexpr int fewest_blocks(int most) { return most == 1 ? 1 : 2; }

// Whether there is a kernel of this tile for a B in this layout. Along n, tiles consist of boxes of 64 columns and of
// one of 32.
constexpr bool serves_layout(const TileShape& shape, bool is_b_k_major) {
  return is_b_k_major || shape.block_n % 32 == 0;
}

// Where tiles of `block` rows of an operand begin at the latest. The copy engine takes longer for rows beyond it than
// for rows of it. So the last tiles begin early, inside, at a multiple of `unit`: some rows are computed again, to the
// same bits. A block of a cluster that would be all outside computes the last tile, too.
constexpr int latest_start(int64_t size, int block, int unit) {
  return size > block ? int(round_up(size - block, unit)) : 0;
}

// Whether the kernel can store C transposed: by the copy engine alone, which narrower tiles do without.
constexpr bool stores_transposed(const TileShape& shape) { return shape.block_n >= 64; }

// Whether there is a kernel of this tile that sums the rows of A: the gradient of a linear layer's bias along with that
// of its weight, which is of the layer's size.
constexpr bool sums_rows(const TileShape& shape) {
  const bool is_small = shape.block_n == 64 || shape.block_n == 96 || shape.block_n == 128;
  return !shape.takes_turns && (shape.block_m >= 128 ? shape.block_n != 224 : is_small) && serves_layout(shape, false);
}

// Whether there are kernels of this tile for a C in fp32 of operands in 16 bits. There are few, since they are compiled
// beside those for a C in 16 bits: by the model, products of random sizes take 2 % longer than by all tiles. They sum
// no rows, and store no C transposed, for which the largest have no registers.
constexpr bool has_wide_result(const TileShape& shape) {
  if (shape.takes_turns) return false;
  return shape.block_m == 64 ? shape.block_n <= 128 && shape.block_n != 96
                             : shape.block_m == 128 && shape.block_n % 64 == 0;
}

// Clusters have up to so many blocks along m and along n, and eight in all: 2 to these powers.
inline constexpr int kMaxLogSide = 2, kMaxLogCluster = 3;

// Whether 2^log_m blocks can fetch a B in parts, which begin where the pattern of the swizzle does.
constexpr bool has_parts(const TileShape& shape, bool is_b_k_major, int log_m) {
  return !is_b_k_major || shape.block_n % (8 << log_m) == 0;
}
// Whether every kernel of this tile can work in clusters. The code for it costs small tiles 2 to 7 %: they have kernels
// of their own for clusters, which sum no rows.
constexpr bool always_built_with_clusters(const TileShape& shape) { return shape.block_m >= 128; }
// Whether there is a kernel in which blocks of a cluster have tiles below each other, each of which fetches a part of
// the B that all multiply, or beside each other, with a part of A.
constexpr bool may_cluster(const TileShape& shape, bool is_b_k_major, bool sums_rows = false) {
  return shape.block_n >= 64 && has_parts(shape, is_b_k_major, 1) && (!sums_rows || always_built_with_clusters(shape));
}
static_assert(!may_cluster({128, 168}, true), "a part of 84 rows begins within the pattern");

// Whether the blocks of a cluster may share a tile, a chunk each, and exchange their sums through shared memory: so
// many blocks at most.
constexpr bool shares_tiles(const TileShape& shape) {
  return shape.block_m == 64 && (shape.block_n == 64 || shape.block_n == 128);
}
inline constexpr int kMaxCluster = 8;

// How many clusters surely run at the same time: one lies within a GPC, which has 16 to 18 multiprocessors.
constexpr int64_t clusters_at_once(int64_t cluster, int num_sms) { return num_sms / 18 * (16 / cluster); }

struct TilePlan {
  int tile;
  TileShape shape;
  bool splits_chunks;  // each chunk of k is a tile of its own, their sums are added by a second kernel
  bool shares_tiles;   // each chunk of a tile is for a block of a cluster
  // Logarithms of a cluster's blocks along m, which fetch B for each other, and along n, which fetch A.
  int cluster_m, cluster_n;
  // The kernel computes C^T = B^T A^T and stores it transposed: the tile's m is along the product's n.
  bool is_exchanged;
  int group_m;  // rows of tiles that are computed together, as asked; 0: as many as the schedule finds best
  int blocks;   // of a multiprocessor
};

// How many tiles, or clusters of them, run at the same time. Clusters of four and eight leave some multiprocessors
// idle, as not every GPC has a multiple of as many (an H200 runs 30 and 15 of them).
constexpr int tiles_at_once(const TilePlan& plan, int num_sms) {
  const int log = plan.cluster_m + plan.cluster_n;
  return plan.blocks * int(max_of((num_sms >> log) - (log < 2 ? 0 : num_sms / 132 * (log == 2 ? 3 : 1)), 1));
}

// Bytes at multiples of which an operand's rows begin: 16, 32, 64 or 128.
constexpr int row_alignment(uint64_t address, int64_t ld) {
  const uint64_t bits = address | uint64_t(ld) * 2;
  return bits % 128 == 0 ? 128 : bits % 64 == 0 ? 64 : bits % 32 == 0 ? 32 : 16;
}

constexpr bool is_aligned(const GemmTask& p) { return p.a.alignment >= 64 && p.b.alignment >= 64; }

// So many rows, or columns, are few: the narrowest tiles have them.
inline constexpr int kWgmmaFewRows = 64;

// Whether C is a strip: more than few rows, up to 256, beside many columns, or the other way round.
constexpr bool is_strip(const GemmTask& p) {
  const int64_t few = min_of(p.m, p.n), many = max_of(p.m, p.n);
  return few > kWgmmaFewRows && few <= 256 && many >= 16 * few;
}

// Nanoseconds that the copy of a row of 128 bytes takes a block while so many copy: the second-level cache sends
// sectors of 32 bytes, of which a row that begins within one touches five, and only once what several blocks ask for at
// a time if rows are aligned.
constexpr double row_nanoseconds(const WgmmaCosts& costs, int alignment, double blocks) {
  if (alignment == 16) return costs.row_16 + costs.row_16_of_block * blocks;
  return alignment == 32 ? costs.row_32 + costs.row_32_of_block * blocks
                         : costs.row_64 + costs.row_64_of_block * blocks;
}

// What clusters take beside their copies, as fitted.
constexpr double cluster_microseconds(const WgmmaCosts& costs, int log_m, int log_n) {
  return log_m + log_n > 0 ? costs.cluster + costs.cluster_m * log_m + costs.cluster_n * log_n : 0;
}

// What the matrix unit takes for a k tile of a tile, of each of so many blocks.
constexpr double matrix_unit_microseconds(const WgmmaCosts& costs, const TileShape& tile, int blocks = 1) {
  return std::max<double>(costs.least_k_tile, costs.k_tile * tile.block_m * tile.block_n * blocks);
}

// What tiles take longer where threads store them, those of `sharing` blocks of a multiprocessor; as fitted to tiles of
// 16 bits. The narrowest ones go straight to C, while other blocks multiply, if there are any. One consumer stores
// alone, as one of a turn does, and three have less shared memory for it each.
constexpr double stored_by_threads(const WgmmaCosts& c, const TileShape& tile, int sharing) {
  const double area = double(tile.block_m) * tile.block_n;
  if (tile.block_n < 64) return sharing > 1 ? 0 : c.by_threads * area;
  if (sharing > 1) return c.by_shared * area * sharing;
  return area * ((tile.block_m != 128 ? c.by_others.value : 0) + (tile.block_n % 64 != 0 ? c.by_parts.value : 0) +
                 (tile.takes_turns ? c.by_one.value : 0));
}

// Where consumers take turns: what follows a tile's products, by one consumer instead of two, while the other one
// multiplies.
constexpr double epilogue_of_turn(const WgmmaCosts& costs, const TileShape& tile, const GemmTask& p) {
  return costs.tile + costs.turn_element * tile.block_m * tile.block_n +
         (p.is_c_aligned ? 0 : stored_by_threads(costs, tile, 1));
}

// Rows of A and of B, along k, that a tile copies.
constexpr double copied_rows_a(const TileShape& tile, const GemmTask& p) { return double(min_of(tile.block_m, p.m)); }
constexpr double copied_rows_b(const TileShape& tile, const GemmTask& p) {
  return double(p.b.is_k_major ? min_of(tile.block_n, p.n) : round_up(tile.block_n, kWgmmaBlockK));
}

// The operand that streams where C has few rows or few columns: the larger one, and how many of its rows a tile has.
struct StreamedOperand {
  bool is_a, is_k_major;
  int alignment, tile_rows;
};
constexpr StreamedOperand streamed_operand(const TileShape& shape, const GemmTask& p) {
  return p.n <= p.m ? StreamedOperand{true, p.a.is_k_major, p.a.alignment, shape.block_m}
                    : StreamedOperand{false, p.b.is_k_major, p.b.alignment, shape.block_n};
}

// A strip's time where rows are not aligned: its tiles, memory and what all blocks draw from the second-level cache
// take about as long, and each waits for the others. Blocks of a cluster fetch the few rows for each other and cost a
// tenth of what they do elsewhere, as fitted; a tile with many of the other rows, along k, is slower.
inline double strip_microseconds(const WgmmaCosts& costs, const TilePlan& plan, const GemmTask& p, double num_blocks,
                                 double tiles, double memory) {
  const auto draw = [&](int alignment, double rows) {
    return rows / (alignment == 16 ? costs.strips_16.value : costs.strips.value);
  };
  const double drawn = 2 * double(p.k) * num_blocks *
                       (draw(p.a.alignment, copied_rows_a(plan.shape, p) / (1 << plan.cluster_n)) +
                        draw(p.b.alignment, copied_rows_b(plan.shape, p) / (1 << plan.cluster_m)));
  const StreamedOperand large = streamed_operand(plan.shape, p);
  const double slower = large.is_k_major ? 1 + costs.strip_rows / 64 * std::max(large.tile_rows - 128, 0) : 1;
  return overlapped(tiles, memory * slower, drawn) +
         costs.strip_cluster * cluster_microseconds(costs, plan.cluster_m, plan.cluster_n);
}

// What stores of a large C take longer where its rows begin within sectors: those at the sides of a tile are written
// by two blocks, and memory reads what the cache gives up in between. Wide tiles of few rows have the fewest of them;
// clusters side by side have as many, as measured. Of a single product; batches are not slowed down.
constexpr double crossed_microseconds(const WgmmaCosts& costs, const TilePlan& plan, const GemmTask& p) {
  constexpr double kHeldBytes = 50e6;  // by the second-level cache
  const double bytes = (p.is_wide ? 4.0 : 2.0) * double(p.m) * double(p.n);
  if (p.batch > 1 || bytes < kHeldBytes) return 0;
  const double columns = plan.is_exchanged ? plan.shape.block_m : plan.shape.block_n;
  const double rows = plan.is_exchanged ? plan.shape.block_n << plan.cluster_n : plan.shape.block_m << plan.cluster_m;
  return std::max(bytes / (costs.crossed + costs.crossed_wide * columns / rows) - bytes / costs.rate, 0.0);
}

// Bytes per us of memory while so many blocks compute tiles, of all k or each of a chunk. Chunks of a batch's items
// were not measured.
inline double memory_rate(const WgmmaCosts& costs, const TilePlan& plan, const GemmTask& p, int64_t num_blocks) {
  const bool are_chunks = plan.splits_chunks || plan.shares_tiles;
  if (are_chunks && p.batch > 1) return costs.rate;
  // Where B comes in strips along n, memory is slower for narrow ones: of chunks where each row of B is read in a few
  // strips. Tiles of all k draw so much at most.
  constexpr int kNarrow = 128, kNarrowOfChunks = 160, kMostColumns = 512;
  double rate = costs.rate;
  if (!p.b.is_k_major && are_chunks) {
    const bool has_strips = p.n <= kMostColumns && p.n > plan.shape.block_n;
    if (has_strips && plan.shape.block_n < kNarrowOfChunks) rate = costs.narrow_chunks;
  } else if (!p.b.is_k_major && p.m <= plan.shape.block_m) {
    const double drawn = costs.drawn * double(num_blocks);
    if (plan.shape.block_n < kNarrow) rate = costs.narrow_rate;
    if (drawn < rate) rate = drawn;
  }
  // Few rows or columns beside a large operand whose rows lie along k: memory is slower the more of these a tile has,
  // twice as much where chunks of the same rows are read at the same time.
  const StreamedOperand large = streamed_operand(plan.shape, p);
  if (min_of(p.m, p.n) <= kWgmmaFewRows && large.is_k_major) {
    const double slower = (are_chunks ? 2 : 1) * (large.alignment == 128 ? costs.few_128 : costs.few);
    rate /= 1 + slower * (large.tile_rows - (large.is_a ? 64 : 32)) / 64;
  }
  return rate;
}

// Less than any plan of a tile takes: if all multiprocessors were busy all the time.
inline double least_microseconds(const WgmmaCosts& costs, const TileShape& shape, const GemmTask& p, int num_sms) {
  const double k_tiles = double(p.k) / kWgmmaBlockK, area = double(shape.block_m) * shape.block_n;
  const double share = double(p.batch) * double(p.m) * double(p.n) / (area * num_sms);
  const int blocks = most_blocks(shape, p, kWgmmaBlockK);
  return costs.start + k_tiles * matrix_unit_microseconds(costs, shape, blocks) / blocks *
                           std::max(share, p.chunk_k < p.k ? 0.0 : 1.0);
}

// Microseconds of one launch by a simple model: waves of tiles, each of an epilogue, which consumers that take turns
// hide behind each other's products, and of k tiles that take as long as the slowest of four: waiting; the matrix unit;
// the second-level cache, where rows are not aligned; shared memory, which takes A and B in and where each consumer
// reads its rows of A and all of B. Or as long as memory takes, which needs some time to get up to speed.
inline double model_microseconds(const WgmmaCosts& costs, const TilePlan& plan, const GemmTask& p, int num_sms) {
  const TileShape& shape = plan.shape;
  const int64_t num_chunks = ceil_div(p.k, p.chunk_k);
  const int64_t num_splits = plan.splits_chunks || plan.shares_tiles ? num_chunks : 1;
  const int log_cluster = plan.cluster_m + plan.cluster_n, at_once = tiles_at_once(plan, num_sms);
  const int64_t tiles_m = ceil_div(p.m, shape.block_m << plan.cluster_m);
  const int64_t tiles_n = ceil_div(p.n, shape.block_n << plan.cluster_n);
  const int64_t num_tiles = p.batch * num_splits * tiles_m * tiles_n;
  const auto num_waves = double(ceil_div(num_tiles, at_once));
  const double num_k_tiles = double(ceil_div(num_splits > 1 ? p.chunk_k : p.k, kWgmmaBlockK));
  // `count` tiles or clusters of them at a time, as many as run at once at most.
  const auto wave = [&](const TileShape& tile, int64_t count) {
    const double area = double(tile.block_m) * tile.block_n, blocks = double(count << log_cluster);
    const double a_rows = copied_rows_a(tile, p), b_rows = copied_rows_b(tile, p);
    double copies = 1e-3 * (row_nanoseconds(costs, p.a.alignment, blocks) * a_rows / (1 << plan.cluster_n) +
                            row_nanoseconds(costs, p.b.alignment, blocks) * b_rows / (1 << plan.cluster_m));
    if (shape.block_m == 64) copies *= costs.small_rows;
    if (is_aligned(p)) copies = 0;
    const double consumers = tile.block_m / 64, smem_rows = a_rows + tile.block_n + consumers * (64 + tile.block_n);
    const auto smem = [&](double rows) { return 2 * kWgmmaBlockK * rows / costs.shared; };
    // Blocks of a multiprocessor share its matrix unit and its shared memory.
    const int sharing = 2 * count > at_once ? plan.blocks : 1;
    double k_tile = matrix_unit_microseconds(costs, tile, sharing);
    for (const double bound : {copies, sharing * smem(smem_rows)})
      if (bound > k_tile) k_tile = bound;
    // Tiles of the first column read A once more, and ones; the first blocks take them.
    const double summed = p.sums_rows ? std::max(smem(smem_rows + consumers * (64 + 8)) - k_tile, 0.0) : 0;
    const double products =
        num_k_tiles * (k_tile + summed * double(ceil_div(tiles_m * num_splits, at_once)) / num_waves);
    if (tile.takes_turns) {
      const double turn = plan.is_exchanged ? 2 * costs.turn : costs.turn.value;
      return std::max(products + turn, (products + epilogue_of_turn(costs, tile, p)) / 2);
    }
    const bool stores_otherwise = p.is_c_aligned || p.is_wide || num_splits > 1;
    const double stores = stores_otherwise ? 0 : stored_by_threads(costs, tile, sharing);
    return products + costs.tile + area * (costs.element + (sharing - 1) * costs.crowded) + stores +
           (num_splits > 1 ? 0 : double(num_chunks - 1) * costs.chunk);
  };
  const int64_t rest = num_tiles % at_once;
  double tiles = num_tiles < at_once ? 0 : double(num_tiles / at_once) * wave(shape, at_once);
  if (splits_tail(shape, num_tiles, at_once))
    tiles += wave({shape.block_m, shape.block_n / 2}, 2 * rest) + costs.tail;
  else if (rest)
    tiles += wave(shape, rest);
  // Tiles of chunks keep all multiprocessors at work, whose clocks power then limits. Tiles of whole k that take their
  // place have fewer of them.
  if (plan.splits_chunks) {
    const double area = double(shape.block_m) * shape.block_n * double(num_tiles << log_cluster);
    tiles = std::max(tiles, costs.split_k_tile * num_k_tiles * area / num_sms);
  }
  if (shape.takes_turns) tiles += epilogue_of_turn(costs, shape, p);
  const double m = double(p.m), n = double(p.n), k = double(p.k), batch = double(p.batch);
  const double bytes = 2 * batch * (m * k + k * n + (p.is_wide ? 2 : 1) * m * n);
  const double rate = memory_rate(costs, plan, p, min_of(num_tiles, at_once) << log_cluster);
  double memory = bytes / rate + std::min<double>(bytes / costs.ramp_rate, costs.ramp);
  if (p.crosses_sectors && !plan.splits_chunks) memory += crossed_microseconds(costs, plan, p);
  // Clusters that share a tile draw from the second-level cache at a rate of their own: their blocks read nothing in
  // common.
  if (plan.shares_tiles)
    memory = std::max(memory, double(num_tiles) * num_k_tiles * 2 * kWgmmaBlockK *
                                  (copied_rows_a(shape, p) + copied_rows_b(shape, p)) / costs.drawn_by_clusters);
  const double sums = plan.shares_tiles    ? costs.shared_tile.value
                      : plan.splits_chunks ? costs.split + double(num_chunks) * batch * m * n / costs.sums
                                           : 0;
  // Fewer rows of tiles than columns are faster where all else is the same, as it is if two plans differ in their roles
  // alone (192 x 96 on 3072 x 768 outputs: up to 10 %). But a tile may have all columns: then those of exchanged roles
  // have a part of them each.
  const double order = tiles_m > tiles_n && tiles_n > 1 ? costs.order.value : 0;
  const double work = num_splits == 1 && is_strip(p) && !is_aligned(p)
                          ? strip_microseconds(costs, plan, p, double(num_tiles << log_cluster), tiles, memory)
                          : cluster_microseconds(costs, plan.cluster_m, plan.cluster_n) +
                                (tiles > memory ? tiles + costs.overlap * memory : memory + costs.overlap * tiles);
  const double all = costs.start + (p.is_plain ? 0 : costs.more_code.value) + sums + order + work;
  // Where all k is in flight at the same time, clusters gain more.
  return plan.splits_chunks ? (1 - costs.split_cluster * log_cluster) * all : all;
}

// In which order the blocks compute the tiles of a plan.
struct TileSchedule {
  int num_splits;                   // 1, or the number of chunks, each of which is computed by itself
  int tiles_m, tiles_n, num_tiles;  // of single blocks or of clusters; num_tiles: of the whole batch, of each split
  int full_tiles;                   // so many are computed whole, the others in halves along n
  int num_units;                    // blocks that run, or clusters of them
  int group_m;                      // rows of tiles that are computed together
  Start start;
  bool evicts_a, evicts_b;  // the second-level cache gives up first what was read
};

// How wgmma computes a problem.
struct WgmmaPlan {
  TilePlan tiles;
  TileSchedule schedule;
  bool is_column_major;     // C: the problem is C^T = B^T A^T, also in what follows
  bool copies_a, copies_b;  // first, since the copy engine cannot take them
  bool stores_by_tma;
  TensorMapView a, b, c;  // of the product that the kernel computes, or of copies
};

// The second-level cache may give up first what only tiles in flight at the same time read. Not where much is stored:
// that takes the place of lines that are on their way, which are then read again. So a batch does it only where it has
// few rows, and a single product of short k only where it stores no more than it reads. Where rows do not begin with
// the cache's lines, a line is read twice, and is lost in between if much else passes through: a large result, or more
// operands than the cache holds several times over (fitted on an H200).
constexpr bool may_evict(const GemmTask& p, const TensorMapView& operand) {
  constexpr int64_t kLine = 128, kMostBytes = 150000000, kFewRows = 16, kShortK = 4 * kWgmmaBlockK;
  const double operands = double(p.m + p.n) * double(p.k), outputs = double(p.m) * double(p.n);
  const int64_t bytes = size_of(p.dtype);
  const bool stores_little = p.batch > 1 ? min_of(p.m, p.n) <= kFewRows : p.k > kShortK || outputs <= operands;
  const bool is_of_one_item = operand.batch_count >= p.batch;
  return stores_little && is_of_one_item &&
         (operand.ld * bytes % kLine == 0 || (outputs <= operands / 5 && operands * double(bytes) <= kMostBytes));
}

// Whether C is most of what passes through memory; of a single product, since batches were not measured.
constexpr bool stores_mostly(const GemmTask& p) {
  constexpr double kOutputs = 16;  // for an element of the operands
  return p.batch == 1 && double(p.m) * double(p.n) >= kOutputs * double(p.m + p.n) * double(p.k);
}

// Where the grid has a block for each tile, all tiles are one group: the kernel then numbers them as the grid does.
// Where a single product has few columns of tiles, none of them in clusters, groups of four rows are faster (on an
// H200). Where C is most of what passes through memory, tiles in flight lie along its rows.
constexpr int64_t num_groups(const TilePlan& tiles, const TileSchedule& s, const GemmTask& p) {
  const int log_cluster = tiles.cluster_m + tiles.cluster_n;
  if (s.start == Start::by_grid) return 1;
  if (tiles.group_m == 0 && log_cluster == 0 && stores_mostly(p))
    return ceil_div(s.tiles_m, tiles.is_exchanged ? s.num_units : 4);
  const bool has_few_columns =
      log_cluster == 0 && s.tiles_m > 8 && s.tiles_n <= 12 && s.num_tiles == s.tiles_m * s.tiles_n;
  if (tiles.group_m > 0 || has_few_columns) return ceil_div(s.tiles_m, tiles.group_m > 0 ? tiles.group_m : 4);
  return num_square_groups(s.tiles_m << tiles.cluster_m, s.num_units << log_cluster, tiles.shape.block_m,
                           tiles.shape.block_n);
}

// `p` is the product that the kernel computes.
inline TileSchedule schedule_tiles(const WgmmaPlan& plan, const GemmTask& p, int num_sms) {
  const TilePlan& tiles = plan.tiles;
  const int64_t block_k = 128 / size_of(p.dtype), num_k_tiles = ceil_div(p.k, block_k);
  const int64_t chunk_tiles = ceil_div(p.chunk_k, block_k);
  TileSchedule s{};
  s.num_splits = tiles.splits_chunks || tiles.shares_tiles ? int(ceil_div(p.k, p.chunk_k)) : 1;
  s.tiles_m = int(ceil_div(p.m, tiles.shape.block_m << tiles.cluster_m));
  s.tiles_n = int(ceil_div(p.n, tiles.shape.block_n << tiles.cluster_n));
  s.num_tiles = int(p.batch * s.num_splits * s.tiles_m * s.tiles_n);
  s.full_tiles = s.num_tiles;
  s.evicts_a = may_evict(p, plan.a);
  s.evicts_b = may_evict(p, plan.b);
  if (tiles.shares_tiles) {
    s.start = p.num_batch_dims == 0 ? Start::by_grid : Start::late;
    return s;
  }
  const int at_once = tiles_at_once(tiles, num_sms);
  if (splits_tail(tiles.shape, s.num_tiles, at_once)) s.full_tiles -= s.num_tiles % at_once;
  s.num_units = int(min_of(2 * s.num_tiles - s.full_tiles, at_once));
  const bool is_simple = p.num_batch_dims == 0 || (p.num_batch_dims == 1 && s.num_splits == 1);
  s.start = p.sums_rows || s.full_tiles < s.num_units ? Start::late
            : s.num_tiles == s.num_units && is_simple ? Start::by_grid
                                                      : Start::by_index;
  const int64_t groups = num_groups(tiles, s, p);
  s.group_m = int(ceil_div(s.tiles_m, groups));
  // Tiles that sum many chunks drift apart.
  const bool stays_together = s.num_splits > 1 || num_k_tiles <= 4 * chunk_tiles;
  const bool is_group_in_flight = int64_t(s.group_m) * s.tiles_n <= s.num_units;
  s.evicts_a = s.evicts_a && is_group_in_flight && (s.tiles_n == 1 || stays_together);
  s.evicts_b = s.evicts_b && groups == 1 && (s.tiles_m == 1 || stays_together);
  return s;
}

// A problem, and what all of its plans have in common.
struct WgmmaSearch {
  GemmTask task;
  WgmmaPlan plan;
  double other_us;  // beside the tiles
  const WgmmaCosts& costs;
};

// Shows a plan of tiles, `p` being the product that they compute. Where all plans are wanted, tiles that do not all run
// at once come in several orders: the schedule's own, in groups of few rows, of half of the rows, of all.
inline void visit_orders(const WgmmaSearch& from, WgmmaPlan& plan, const GemmTask& p, int num_sms, PlanSearch& visit) {
  TilePlan& tiles = plan.tiles;
  const double us = model_microseconds(from.costs, tiles, p, num_sms);
  visit(plan, us + from.other_us, us);
  if (!visit.wants_all() || tiles.splits_chunks || tiles.shares_tiles) return;
  const int rows = int(ceil_div(p.m, tiles.shape.block_m << tiles.cluster_m));
  const int64_t columns = ceil_div(p.n, tiles.shape.block_n << tiles.cluster_n);
  if (rows == 1 || rows * columns <= tiles_at_once(tiles, num_sms)) return;
  for (const int group_m : {4, (rows + 1) / 2, rows}) {
    if (group_m == 4 && rows <= 8) continue;
    tiles.group_m = group_m;
    visit(plan, us + from.other_us, us);
  }
  tiles.group_m = 0;
}

// Shows the ways to share out a problem of a task without exchanging roles: those that may be the fastest, or all that
// the kernels can carry out.
inline void for_each_tile_plan_of(const WgmmaSearch& from, const GemmTask& p, bool is_exchanged, WgmmaPlan made,
                                  int num_sms, PlanSearch& visit) {
  TilePlan& plan = made.tiles;
  const bool is_chunked = p.chunk_k < p.k;
  const bool may_split = !is_exchanged && may_split_chunks(p.m, p.n, p.k, p.chunk_k, p.batch);
  GemmTask aligned = p;
  for (TaskOperand* operand : {&aligned.a, &aligned.b}) operand->alignment = int(max_of(operand->alignment, 64));
  for (int i = 0; i < kNumTileShapes; ++i) {
    const TileShape& shape = kTileShapes[i];
    if (!serves_layout(shape, p.b.is_k_major) || (is_exchanged && !stores_transposed(shape))) continue;
    if (shape.takes_turns && !may_take_turns(p)) continue;
    if ((p.sums_rows && !sums_rows(shape)) || (p.is_wide && !has_wide_result(shape))) continue;
    if (least_microseconds(from.costs, shape, p, num_sms) >= visit.least_us()) continue;
    plan = {i, shape, false, false, 0, 0, is_exchanged, 0, 1};
    const auto consider = [&](int log_m, int log_n) {
      plan.cluster_m = log_m, plan.cluster_n = log_n;
      const int most = log_m + log_n == 0 && !plan.shares_tiles ? most_blocks(shape, p, kWgmmaBlockK) : 1;
      for (plan.blocks = fewest_blocks(most); plan.blocks <= most; ++plan.blocks)
        visit_orders(from, made, p, num_sms, visit);
    };
    for (const bool splits : {false, true}) {
      if (!splits && is_chunked && !sums_chunks(shape, p.sums_rows)) continue;
      // Side by side, the narrowest tiles are slower than the model says: they read A once more.
      if (splits && (!may_split || (shape.block_n < 64 && !visit.wants_all()))) continue;
      plan.splits_chunks = splits;
      consider(0, 0);
      if (p.batch > 1 || !may_cluster(shape, p.b.is_k_major, p.sums_rows)) continue;
      // What clusters gain is less than what aligned rows would.
      if (!visit.wants_all() &&
          (is_aligned(p) || model_microseconds(from.costs, plan, aligned, num_sms) >= visit.least_us()))
        continue;
      for (int log_m = 0; log_m <= kMaxLogSide; ++log_m) {
        for (int log_n = 0; log_n <= kMaxLogSide && log_m + log_n <= kMaxLogCluster; ++log_n) {
          const bool has_work = (shape.block_m << log_m) < 2 * p.m && (shape.block_n << log_n) < 2 * p.n;
          const bool may_share = has_parts(shape, p.b.is_k_major, log_m) && (log_n == 0 || !p.sums_rows);
          if (log_m + log_n > 0 && has_work && may_share) consider(log_m, log_n);
        }
      }
    }
    const int64_t cluster = ceil_div(p.k, p.chunk_k);
    const int64_t num_tiles = p.batch * ceil_div(p.m, shape.block_m) * ceil_div(p.n, shape.block_n);
    plan.splits_chunks = false;
    plan.shares_tiles = !is_exchanged && !p.sums_rows && is_chunked && shares_tiles(shape) && cluster <= kMaxCluster &&
                        num_tiles <= clusters_at_once(cluster, num_sms);
    if (plan.shares_tiles) consider(0, 0);
  }
}

inline void for_each_tile_plan(const WgmmaSearch& search, int num_sms, PlanSearch& visit) {
  const GemmTask& task = search.task;
  for_each_tile_plan_of(search, task, false, search.plan, num_sms, visit);
  if (task.is_c_aligned && !task.sums_rows && !task.is_wide) {
    WgmmaPlan exchanged = search.plan;
    std::swap(exchanged.a, exchanged.b);
    for_each_tile_plan_of(search, transposed(task), true, exchanged, num_sms, visit);
  }
  visit.complete<WgmmaPlan>([&](WgmmaPlan& plan) {
    plan.schedule = schedule_tiles(plan, plan.tiles.is_exchanged ? transposed(task) : task, num_sms);
  });
}

// What all plans of a problem are made from. C becomes row-major.
inline FoldedProblem row_major(const FoldedProblem& problem, WgmmaPlan& plan) {
  plan.is_column_major = problem.gemm.stride_cn != 1 && problem.gemm.n != 1;
  return plan.is_column_major ? transposed(problem) : problem;
}

// What the copy engine cannot take costs a launch and memory traffic (A, B) or stores by the threads (C); both are
// estimates.
inline WgmmaSearch wgmma_search(const WgmmaCosts& costs, const FoldedProblem& given, int num_sms) {
  WgmmaSearch search{{}, {}, 0, costs};
  WgmmaPlan& plan = search.plan;
  const FoldedProblem problem = row_major(given, plan);
  const GemmProblem& p = problem.gemm;
  const auto describe = [&](const OperandView& operand, bool& is_copied, TensorMapView& view) {
    is_copied = !describe_operand(operand, problem, view) || (size_of(operand.dtype) == 1 && !view.is_k_major);
    if (is_copied) view = describe_copy(operand, problem);
    return TaskOperand{view.is_k_major,
                       row_alignment(is_copied ? 0 : reinterpret_cast<uintptr_t>(operand.data), view.ld), !is_copied};
  };
  const TaskOperand a = describe(view_a(p), plan.copies_a, plan.a), b = describe(view_b(p), plan.copies_b, plan.b);
  plan.stores_by_tma = describe_result(problem, plan.c) && is_storable(p.dtype_c, plan.c);
  search.task = task_of(problem, a, b);
  search.task.is_c_aligned = plan.stores_by_tma;
  search.task.is_plain = plan.stores_by_tma && is_plain(p) && problem.chunk_k >= p.k;
  const uint64_t bits_of_c = reinterpret_cast<uintptr_t>(p.c) | uint64_t(plan.c.ld * size_of(p.dtype_c));
  search.task.crosses_sectors = plan.stores_by_tma && bits_of_c % kSectorBytes != 0;
  const double copied =
      (plan.copies_a ? num_copied(view_a(p), problem) : 0) + (plan.copies_b ? num_copied(view_b(p), problem) : 0);
  search.other_us = (copied > 0 ? costs.repack + 2 * copied / costs.repacked : 0) +
                    copied_us(costs, problem, plan.copies_a, plan.copies_b, num_sms) +
                    (plan.stores_by_tma ? 0 : double(problem.batch_size) * double(p.m) * double(p.n) * costs.stored);
  return search;
}

}  // namespace tiledmm

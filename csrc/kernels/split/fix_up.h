// The last kernel of a product by split operands: rows of A and columns of B that were flagged, by plain multiply-adds
// in fp32, in chunks of flagged_chunk_k().
#pragma once

#include "core/operand.h"
#include "kernels/split/layout.h"
#include "kernels/split/operands.h"
#include "platform/epilogue.h"

namespace tiledmm::gpu {
namespace {

constexpr int kFixThreads = 256;
constexpr int kFixK = 16;                   // of a tile in shared memory
constexpr int kFixPitch = kSplitBlock + 4;  // rows along k begin in different banks
constexpr int kFixValues = kSplitBlock * kFixK / kFixThreads;
static_assert(kFlaggedChunkK % kFixK == 0, "a chunk ends with a tile, but the last one");

// An operand's flags, of [item][chunk of k][row].
struct FixUpFlags {
  const uint8_t* flags;
  int padded_rows;
};

struct FixUpArguments {
  FoldedProblem problem;
  FixUpFlags flags_a, flags_b;
  int num_chunks;   // of k, each with flags
  int64_t chunk_k;  // of the sums
  int tiles_m, tiles_n, num_tiles;
  int num_blocks;  // that share out the tiles
  SplitSteps steps;
};

// One operand of a tile: how a thread reads it, neighbouring threads along memory.
template <bool IS_MIXED>
struct FixUpSource {
  const void* from;
  DType dtype;  // if there are several
  int64_t first, stride_row, stride_k;
  int rows, k;  // inside, from there on
  bool is_along_k;

  TILEDMM_DEVICE int row(int i) const {
    return is_along_k ? thread_idx() / kFixK + i * (kFixThreads / kFixK) : thread_idx() % kSplitBlock;
  }
  TILEDMM_DEVICE int k_of(int i) const {
    return is_along_k ? thread_idx() % kFixK : thread_idx() / kSplitBlock + i * (kFixThreads / kSplitBlock);
  }
  TILEDMM_DEVICE void load(float (&values)[kFixValues], int first_k) const {
    int64_t at = first + row(0) * stride_row + (first_k + k_of(0)) * stride_k;
    const int64_t step = is_along_k ? (row(1) - row(0)) * stride_row : (k_of(1) - k_of(0)) * stride_k;
    TILEDMM_UNROLL for (int i = 0; i < kFixValues; ++i) {
      values[i] = row(i) < rows && first_k + k_of(i) < k ? load_any(from, IS_MIXED ? dtype : DType::f32, at) : 0;
      at += step;
    }
  }
  TILEDMM_DEVICE void store(float (&tile)[kFixK][kFixPitch], const float (&values)[kFixValues]) const {
    TILEDMM_UNROLL for (int i = 0; i < kFixValues; ++i) tile[k_of(i)][row(i)] = values[i];
  }
};

// Where a tile's flags lie.
struct FixUpTile {
  int item, first_row, first_col, num_chunks;
  FixUpFlags flags_a, flags_b;  // from the tile's first row and column on

  TILEDMM_DEVICE FixUpTile(const FixUpArguments& args, int idx) {
    first_col = idx % args.tiles_n * kSplitBlock;
    idx /= args.tiles_n;
    item = idx / args.tiles_m;
    first_row = (idx - item * args.tiles_m) * kSplitBlock;
    const SplitItem place = args.steps.item_of(args.problem, item);
    num_chunks = args.num_chunks;
    flags_a = args.flags_a;
    flags_b = args.flags_b;
    flags_a.flags += place.a * num_chunks * flags_a.padded_rows + first_row;
    flags_b.flags += place.b * num_chunks * flags_b.padded_rows + first_col;
  }
};

// Whether anything is flagged in a tile: by one warp, with all loads at a time.
TILEDMM_DEVICE bool has_flags(const FixUpTile& tile) {
  // A lane takes 16 flags of one chunk.
  constexpr int kLanes = kSplitBlock / 16, kStep = kWarpSize / kLanes;
  constexpr int kAtOnce = int(kSplitGroupK / kSplitChunkK) / kStep;
  const int lane = thread_idx() % kWarpSize;
  uint32_t any = 0;
  const auto load = [&](const FixUpFlags& of, int chunk) {
    if (chunk >= tile.num_chunks) return Vector16{};
    return load_global(reinterpret_cast<const Vector16*>(of.flags + int64_t(chunk) * of.padded_rows) + lane % kLanes);
  };
  const auto any_of = [](const Vector16& v) { return v.words[0] | v.words[1] | v.words[2] | v.words[3]; };
  Vector16 a[kAtOnce], b[kAtOnce];
  TILEDMM_UNROLL for (int i = 0; i < kAtOnce; ++i) {
    a[i] = load(tile.flags_a, lane / kLanes + i * kStep);
    b[i] = load(tile.flags_b, lane / kLanes + i * kStep);
  }
  TILEDMM_UNROLL for (int i = 0; i < kAtOnce; ++i) any |= any_of(a[i]) | any_of(b[i]);
  return warp_ballot(any != 0) != 0;
}

// Whether one of the chunks flagged a row or column of a tile: the thread's own one of both together.
TILEDMM_DEVICE bool is_flagged(const FixUpTile& tile) {
  const bool is_row = thread_idx() < kSplitBlock;
  const FixUpFlags own = is_row ? tile.flags_a : tile.flags_b;
  const uint8_t* flags = own.flags + thread_idx() % kSplitBlock;
  uint32_t any = 0;
#pragma unroll 4
  for (int chunk = 0; chunk < tile.num_chunks; ++chunk) any |= flags[int64_t(chunk) * own.padded_rows];
  return any != 0;
}

// Shared memory of a block.
struct FixUpShared {
  float a[kFixK][kFixPitch], b[kFixK][kFixPitch];
  uint8_t flags[2 * kSplitBlock];  // of rows, of columns
};

// A tile by the block, 8 x 8 outputs a thread: 8 neighbouring rows, two times 4 neighbouring columns.
template <bool IS_MIXED>
TILEDMM_DEVICE void fix_tile(const FixUpArguments& args, FixUpShared& shared, int idx) {
  auto& [tile_a, tile_b, flags] = shared;
  static_assert(sizeof shared.a >= 8 * kFixThreads * sizeof(float), "the outputs pass through it");
  const FixUpTile tile(args, idx);
  const int first_row = tile.first_row, first_col = tile.first_col;
  flags[thread_idx()] = is_flagged(tile);
  block_barrier();
  const GemmProblem p = item_of<true>(args.problem, tile.item);
  const int thread_row = thread_idx() / 16 * 8, thread_col = thread_idx() % 16 * 4;
  const auto col_of = [&](int j) { return thread_col + j / 4 * (kSplitBlock / 2) + j % 4; };
  bool has_work = false;
  TILEDMM_UNROLL for (int i = 0; i < 8; ++i) has_work |= flags[thread_row + i] | flags[kSplitBlock + col_of(i)];
  const FixUpSource<IS_MIXED> a{p.a,
                                p.dtype_a,
                                first_row * p.stride_am,
                                p.stride_am,
                                p.stride_ak,
                                int(p.m) - first_row,
                                int(p.k),
                                is_k_major(p.stride_am, p.stride_ak)};
  const FixUpSource<IS_MIXED> b{p.b,
                                p.dtype_b,
                                first_col * p.stride_bn,
                                p.stride_bn,
                                p.stride_bk,
                                int(p.n) - first_col,
                                int(p.k),
                                is_k_major(p.stride_bn, p.stride_bk)};
  float total[64], chain[64], next_a[kFixValues], next_b[kFixValues];
  uint32_t lost[32];  // of two neighbours
  TILEDMM_UNROLL for (int i = 0; i < 64; ++i) total[i] = ChunkTotal().sum, lost[i / 2] = 0, chain[i] = 0;
  const auto total_of = [&](int i) {
    return ChunkTotal{total[i], float_of(i % 2 ? lost[i / 2] & 0xffff0000 : lost[i / 2] << 16)};
  };
  a.load(next_a, 0);
  b.load(next_b, 0);
  TILEDMM_NO_UNROLL for (int k = 0; k < p.k; k += kFixK) {
    a.store(tile_a, next_a);
    b.store(tile_b, next_b);
    block_barrier();
    a.load(next_a, k + kFixK);
    b.load(next_b, k + kFixK);
    if (has_work) {
// Not all at once: clang loads the operands of all steps first, for which there are no registers.
#pragma unroll 4
      for (int step = 0; step < kFixK; ++step) {
        float frag_a[8], frag_b[8];
        TILEDMM_UNROLL for (int i = 0; i < 8; ++i) frag_a[i] = tile_a[step][thread_row + i],
                                                   frag_b[i] = tile_b[step][col_of(i)];
        TILEDMM_UNROLL for (int i = 0; i < 64; ++i) chain[i] = multiply_add(frag_a[i / 8], frag_b[i % 8], chain[i]);
      }
      if ((k + kFixK) % args.chunk_k == 0 || k + kFixK >= p.k) {
        TILEDMM_UNROLL for (int i = 0; i < 64; i += 2) {
          ChunkTotal first = total_of(i), second = total_of(i + 1);
          first.add(chain[i]), second.add(chain[i + 1]);
          total[i] = first.sum, total[i + 1] = second.sum;
          lost[i / 2] = bits_of(first.lost) >> 16 | bits_of(second.lost);
          chain[i] = chain[i + 1] = 0;
        }
      }
    }
    block_barrier();
  }
  if (!has_work) return;
  TILEDMM_UNROLL for (int i = 0; i < 64; ++i) total[i] = total_of(i).rounded();
  // Row by row through shared memory: one copy of the epilogue's code. A thread reads what it wrote.
  float* slots = &tile_a[0][0] + thread_idx();
  TILEDMM_NO_UNROLL for (int i = 0; i < 8; ++i) {
    TILEDMM_UNROLL for (int j = 0; j < 8; ++j) slots[j * kFixThreads] = total[j];
    TILEDMM_NO_UNROLL for (int j = 0; j < 8; ++j) {
      if (flags[thread_row + i] | flags[kSplitBlock + col_of(j)])
        store_element<float>(p, first_row + thread_row + i, first_col + col_of(j), slots[j * kFixThreads]);
    }
    // All rows take their turn at the same place.
    TILEDMM_UNROLL for (int j = 0; j < 56; ++j) total[j] = total[j + 8];
  }
}

// A warp looks at one tile, and what it finds the block computes; neighbouring tiles are for different blocks. Mixed:
// one of the operands has 16 bits.
template <bool IS_MIXED>
TILEDMM_KERNEL(kFixThreads, 1)
fix_up(TILEDMM_IN_PLACE FixUpArguments args) {
  constexpr int kWarps = kFixThreads / kWarpSize;
  __shared__ FixUpShared shared;
  __shared__ bool is_found[kWarps];
  let_later_kernels_start();
  wait_for_earlier_kernels();
  const int warp = thread_idx() / kWarpSize, num_tiles = args.num_tiles;
  TILEDMM_NO_UNROLL for (int64_t first = block_idx(); first < num_tiles; first += int64_t(kWarps) * args.num_blocks) {
    const int64_t own = first + int64_t(warp) * args.num_blocks;
    const bool has_work = own < num_tiles && has_flags(FixUpTile(args, int(own)));
    block_barrier();  // what was found before is done
    is_found[warp] = has_work;
    block_barrier();
    TILEDMM_NO_UNROLL for (int i = 0; i < kWarps; ++i) {
      if (!is_found[i]) continue;
      fix_tile<IS_MIXED>(args, shared, int(first + int64_t(i) * args.num_blocks));
      block_barrier();  // before the next tile takes the shared memory
    }
  }
}

// What the kernel takes. `items`: as split_operand() leaves it.
inline FixUpArguments fix_up_arguments(const FoldedProblem& problem, const SplitOperands& split,
                                       const FoldedProblem& items, int num_cus) {
  FixUpArguments args{};
  args.problem = problem;
  args.chunk_k = flagged_chunk_k(problem.gemm.k);
  args.tiles_m = int(ceil_div(problem.gemm.m, kSplitBlock));
  args.tiles_n = int(ceil_div(problem.gemm.n, kSplitBlock));
  args.num_tiles = int(problem.batch_size * args.tiles_m * args.tiles_n);
  args.num_blocks = int(min_of(args.num_tiles, num_cus));
  const auto flags_of = [](const SplitOperand& operand) {
    return FixUpFlags{operand.flags, int(operand.layout.padded_rows())};
  };
  args.flags_a = flags_of(split.of[0]);
  args.flags_b = flags_of(split.of[1]);
  args.num_chunks = int(split.of[0].layout.num_chunks());
  args.steps = SplitSteps(problem, items);
  return args;
}

}  // namespace
}  // namespace tiledmm::gpu

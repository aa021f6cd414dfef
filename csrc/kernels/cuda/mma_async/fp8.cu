// mma_async of operands of 8 bits with scales: they are widened to fp16, which holds them exactly, on their way through
// shared memory.
//
// A thread copies packets of 16 bytes (cp.async) to places of its own, several k tiles ahead. One tile ahead it widens
// them into a tile of 16 bits, from which the warps read fragments as mma_async does. So each element is widened once
// for a block, not once for each warp that multiplies it, and half of the bytes pass memory. A packet waits for nobody
// but its thread: one barrier for each k tile is left. The dtype, of which a thread widens few elements, is a branch,
// so that one kernel serves all mixes. Sums of 128 of k are promoted (scaled_sums.h), in registers; the tiles have room
// for both. Limits: what has no rows along k that are aligned to 16 bytes is copied first. k is not split.
#include "core/transposed.h"
#include "kernels/cuda/mma_async/fp8_plan.h"
#include "kernels/cuda/mma_async/kernel.h"
#include "kernels/cuda/shared/copy_operands.h"
#include "platform/scaled_sums.h"

namespace tiledmm::gpu {
namespace {

// A tile's sizes, under the names that WarpSums asks for.
template <int SHAPE>
struct Fp8Config {
  using T = Half;
  static constexpr MmaFp8Shape kShape = kMmaFp8Shapes[SHAPE];
  static constexpr int kBlockM = kShape.block_m, kBlockN = kShape.block_n, kBlockK = kShape.block_k;
  static constexpr int kThreads = kShape.warps_m * kShape.warps_n * 32, kStages = kShape.num_stages;
  static constexpr int kWarpM = kBlockM / kShape.warps_m, kWarpN = kBlockN / kShape.warps_n;
  static constexpr int kFragsM = kWarpM / 16, kFragsN = kWarpN / 8, kSteps = kBlockK / 16;
  static constexpr int kStripRows = kWarpM > 32 ? 32 : kWarpM, kSetsA = 2;
  static constexpr bool kTotalInRegisters = true, kTotalInC = false;
  static_assert(kFragsM * 16 == kWarpM && kFragsN * 8 == kWarpN, "whole fragments fill the warp tile");
  static_assert(kScaledK % kBlockK == 0, "blocks of k are whole k tiles");
  static_assert(kScaledK % kBlockM == 0 && kScaledK % kBlockN == 0, "a tile lies in one block of rows and of columns");
};

// The block tiles of an operand.
template <class Cfg, int BLOCK_MN>
struct WideningTile {
  using Wide = AsyncTile<Half, BLOCK_MN, Cfg::kBlockK, true, Cfg::kThreads>;
  using Shared = typename Wide::Shared;
  static constexpr int kPacket = 16, kPacketsOfRow = Cfg::kBlockK / kPacket, kRows = Cfg::kThreads / kPacketsOfRow;
  static constexpr int kPackets = BLOCK_MN / kRows;  // of a thread
  static_assert(kPackets * kRows == BLOCK_MN, "every thread copies as much");
  struct Packets {
    Vector16 own[kPackets][Cfg::kThreads];
  };

  const uint8_t* next;  // this thread's first element of the next tile to copy
  int64_t step;         // from each of its packets to the next
  int64_t left_k;       // of the operand, from there on
  int far, close;       // of that element within the tile
  int left_mn;
  bool is_e5m2;
  Wide of_16_bits;  // loads fragments, and copies nothing

  // The tiles begin at row (column) mn of the operand.
  TILEDMM_DEVICE WideningTile(const Operand<uint8_t>& operand, int64_t mn, DType dtype)
      : step(kRows * operand.stride_mn),
        far(thread_idx() / kPacketsOfRow),
        close(thread_idx() % kPacketsOfRow * kPacket),
        left_mn(int(min_of(operand.size_mn - mn, BLOCK_MN))),
        is_e5m2(dtype == DType::e5m2),
        of_16_bits(Operand<Half>(nullptr, 0, 0, 0, 0), 0) {
    next = operand.base + (mn + far) * operand.stride_mn + close;
    left_k = operand.size_k - close;
  }

  // Starts the copies of the next tile. What is outside becomes zero.
  TILEDMM_DEVICE void copy(Packets& packets) {
    const auto valid = int(max_of(min_of(left_k, kPacket), 0));
    TILEDMM_UNROLL for (int i = 0; i < kPackets; ++i) {
      copy_async<kPacket>(&packets.own[i][thread_idx()], next + i * step, far + i * kRows < left_mn ? valid : 0);
    }
    next += Cfg::kBlockK, left_k -= Cfg::kBlockK;
  }

  TILEDMM_DEVICE void widen(const Packets& packets, int i, Shared& tile) const {
    const Vector16 narrow = load_shared(&packets.own[i][thread_idx()]);
    auto* to = reinterpret_cast<Vector16*>(&tile.elements[(far + i * kRows) * Wide::kRowK + close]);
    TILEDMM_UNROLL for (int half = 0; half < 2; ++half) {
      Vector16 wide;
      TILEDMM_UNROLL for (int w = 0; w < 4; ++w) {
        const uint32_t pair = narrow.words[2 * half + w / 2] >> 16 * (w % 2) & 0xffff;
        wide.words[w] = widened_float8<Half>(is_e5m2, pair);
      }
      store_shared(to + half, wide);
    }
  }

  template <class Frag>
  TILEDMM_DEVICE void load_fragment_a(const Shared& shared, int mn, int word, Frag& frag) const {
    of_16_bits.load_fragment_a(shared, mn, word, frag);
  }
  template <class Frags>
  TILEDMM_DEVICE void load_fragments_b(const Shared& shared, int mn, int word, Frags& frags) const {
    of_16_bits.load_fragments_b(shared, mn, word, frags);
  }
};

// The sums of one warp, and their totals.
template <class Cfg, class TileA, class TileB>
struct PromotedSums : WarpSums<Cfg, TileA, TileB> {
  using Base = WarpSums<Cfg, TileA, TileB>;
  using L = LayoutM16N8;
  // A row of C for every two of a lane's sums, a column for each of two.
  using OwnFactors = Factors<2 * Cfg::kFragsM, 2 * Cfg::kFragsN>;
  int64_t row, col;  // of C's block tile

  TILEDMM_DEVICE PromotedSums(int64_t row, int64_t col) : row(row), col(col) {
    this->for_each([&](int i, int j, int e) { this->total[i][j][e] = 0; });
  }
  TILEDMM_DEVICE OwnFactors factors(const GemmProblem& gemm, Scaling asked, int64_t k) const {
    return OwnFactors(
        gemm, asked, k, row + this->warp_row + L::c_row(this->lane, 0), [](int i) { return 8 * i; },
        col + this->warp_col + L::c_col(this->lane, 0), [](int j) { return j / 2 * 8 + j % 2; });
  }
  TILEDMM_DEVICE void end_block(const OwnFactors& own) {
    this->for_each([&](int i, int j, int e) {
      promote(this->total[i][j][e], this->acc[i][j][e], own.at(2 * i + e / 2, 2 * j + e % 2));
    });
  }
  TILEDMM_DEVICE void store_total(const GemmProblem& gemm, typename Base::StripOf& strip) {
    const OwnFactors own = factors(gemm, Scaling::rows, 0);
    this->for_each(
        [&](int i, int j, int e) { this->acc[i][j][e] = this->total[i][j][e] * own.at(2 * i + e / 2, 2 * j + e % 2); });
    if (gemm.dtype_c == DType::f32) {
      this->template store<AnyElement>(gemm, row, col, false, strip);
    } else if (gemm.dtype_c == DType::f16) {
      this->template store<Half>(gemm, row, col, false, strip);
    } else {
      this->template store<BFloat16>(gemm, row, col, false, strip);
    }
  }
};

template <class Cfg>
struct Fp8Tiles {
  using TileA = WideningTile<Cfg, Cfg::kBlockM>;
  using TileB = WideningTile<Cfg, Cfg::kBlockN>;
  using Sums = PromotedSums<Cfg, TileA, TileB>;
  struct Stage {
    typename TileA::Packets a;
    typename TileB::Packets b;
  };
  struct WideTiles {
    typename TileA::Shared a;
    typename TileB::Shared b;
  };
  union Shared {
    struct {
      Stage stages[Cfg::kStages];
      WideTiles wide[2];
    } tiles;
    typename Sums::StripOf strips[Cfg::kThreads / 32];  // after the last k tile
  };
};

template <class Cfg, bool IS_GROUPED>
TILEDMM_KERNEL(Cfg::kThreads, Cfg::kShape.blocks_per_cu)
mma_fp8(TileGroups groups, FoldedProblem problem) {
  using Tiles = Fp8Tiles<Cfg>;
  constexpr int kSteps = Cfg::kSteps, kStages = Cfg::kStages, kPacketsA = Tiles::TileA::kPackets;
  constexpr int kPackets = kPacketsA + Tiles::TileB::kPackets;
  auto& smem = block_shared<typename Tiles::Shared>();
  const TileGroups::Tile place = groups.tile(int(block_idx()));
  GemmProblem gemm = problem.gemm;
  int64_t row = int64_t(place.row) * Cfg::kBlockM;
  const int64_t col = int64_t(place.col) * Cfg::kBlockN;
  if constexpr (IS_GROUPED) {
    const GroupWork work = group_work<Cfg::kBlockM, true>(problem, 0, place.row);
    gemm = work.gemm, row = work.tile_row * Cfg::kBlockM;
    if (row >= gemm.m) return;  // no group has this row of tiles
  }
  typename Tiles::TileA tile_a(operand_a<uint8_t>(gemm), row, gemm.dtype_a);
  typename Tiles::TileB tile_b(operand_b<uint8_t>(gemm), col, gemm.dtype_b);
  typename Tiles::Sums sums(row, col);

  const auto copy_tiles = [&](int stage) {
    tile_a.copy(smem.tiles.stages[stage].a);
    tile_b.copy(smem.tiles.stages[stage].b);
    commit_copies();
  };
  const auto widen_packet = [&](int stage, int i, int wide) {
    auto& to = smem.tiles.wide[wide];
    i < kPacketsA ? tile_a.widen(smem.tiles.stages[stage].a, i, to.a)
                  : tile_b.widen(smem.tiles.stages[stage].b, i - kPacketsA, to.b);
  };
  const auto load_fragments = [&](int wide, int step) {
    const auto& from = smem.tiles.wide[wide];
    sums.load_fragments_b(tile_b, from.b, step);
    TILEDMM_UNROLL for (int i = 0; i < Cfg::kFragsM; ++i) sums.load_fragment_a(tile_a, from.a, step, i);
  };

  for (int stage = 0; stage < kStages; ++stage) copy_tiles(stage);
  wait_copies<kStages - 1>();
  TILEDMM_UNROLL for (int i = 0; i < kPackets; ++i) widen_packet(0, i, 0);
  block_barrier();  // the first tiles are whole
  load_fragments(0, 0);
  int stage = 0, wide = 0;
  for (int64_t first_k = 0; first_k < gemm.k; first_k += kScaledK) {
    const auto factors = sums.factors(gemm, Scaling::blocks, first_k);  // on their way while their sums are made
    const int64_t end_k = min_of(first_k + kScaledK, gemm.k);
    TILEDMM_NO_UNROLL for (int64_t k = first_k; k < end_k; k += Cfg::kBlockK) {
      copy_tiles(stage);  // whose packets were widened before the last barrier
      stage = stage + 1 == kStages ? 0 : stage + 1;
      wait_copies<kStages - 1>();  // this thread's packets of the next tile are there; behind the last one, zeros
      TILEDMM_UNROLL for (int step = 0; step < kSteps; ++step) {
        if (step + 1 < kSteps) {
          load_fragments(wide, step + 1);
        } else {
          block_barrier();  // the next tiles are whole, and nobody reads these any more
          load_fragments(1 - wide, 0);
        }
        TILEDMM_UNROLL for (int i = 0; i < Cfg::kFragsM; ++i) sums.multiply_row(step, i);
        TILEDMM_UNROLL for (int i = 0; i < kPackets; ++i) {
          if (i * (kSteps - 1) / kPackets == step) widen_packet(stage, i, 1 - wide);
        }
      }
      wide = 1 - wide;
    }
    sums.end_block(factors);
  }
  wait_copies<0>();
  block_barrier();  // nobody reads the last tiles any more
  sums.store_total(gemm, smem.strips[thread_idx() / 32]);
}

template <class Cfg>
Status launch_shape(const FoldedProblem& problem, const MmaFp8Plan& plan, const Executor& executor) {
  using Shared = typename Fp8Tiles<Cfg>::Shared;
  static_assert(int64_t(sizeof(Shared)) <= shared_bytes(Cfg::kShape), "the choice of a shape knows what fits");
  const GemmProblem& p = problem.gemm;
  const int64_t tiles_m = num_tile_rows(problem, Cfg::kBlockM), tiles_n = ceil_div(p.n, Cfg::kBlockN);
  if (tiles_m > kMaxBlocks / tiles_n) return Status::launch_failed;
  return launch_kernel(is_grouped(p) ? mma_fp8<Cfg, true> : mma_fp8<Cfg, false>, tiles_m * tiles_n, 1, Cfg::kThreads,
                       sizeof(Shared), executor, TileGroups(tiles_m, tiles_n, plan.group_m), problem);
}

}  // namespace

Status launch_mma_fp8(const FoldedProblem& given, const MmaFp8Plan& plan, const Executor& executor) {
  FoldedProblem problem = plan.is_exchanged ? transposed(given) : given;
  OperandCopies<uint8_t> copies(executor);
  Status status = Status::ok;
  const auto copy = [&](const OperandView& view) {
    if (status == Status::ok) status = copies.add(problem, view, true, round_up(view.k, 16));
  };
  if (plan.copies_a) copy(view_a(problem.gemm));
  if (plan.copies_b) copy(view_b(problem.gemm));
  if (status == Status::ok) status = copies.launch();
  if (status != Status::ok) return status;
  return visit_number<0, kNumMmaFp8Shapes>(plan.shape, Status::unsupported, [&](auto shape) {
    return launch_shape<Fp8Config<decltype(shape)::value>>(problem, plan, executor);
  });
}

}  // namespace tiledmm::gpu

// Rung 04, register_tiled: a thread owns a thread tile of C, so that an element that it reads from shared memory serves
// thread_m or thread_n multiply-adds: 8 x 8 outputs take 16 elements for 64 multiply-adds, where rung 02 takes 128.
//
// Four lanes of a warp lie along n, the others along m: a warp of 64 lanes owns twice the rows. A lies transposed in
// shared memory, [k][m], so that a thread reads 4 rows at once; rows are padded by 4 elements against bank conflicts of
// the transposing stores. A thread's rows and columns are groups of 4, as far apart as the lanes of the warp reach:
// neighbouring lanes then read neighbouring 16 bytes. What limits it: tiles are loaded and multiplied in turn.
// Source: ROCm documentation, "Tiling and reuse" (4 x 4, 64 x 32); groups of 4: ours.
#include <initializer_list>

#include "kernels/gpu/kernels.h"
#include "platform/block_tile.h"
#include "platform/scaled_sums.h"

namespace tiledmm::gpu {
namespace {

template <int THREAD_M, int THREAD_N, int WARPS_M, int WARPS_N, int BLOCKS_PER_CU>
struct RegisterTiledConfig {
  static constexpr int kThreadM = THREAD_M, kThreadN = THREAD_N, kWarpsN = WARPS_N;
  static constexpr int kBlockK = 16, kPad = 4, kLanesN = 4, kBlocksPerCu = BLOCKS_PER_CU;
  static constexpr int num_threads(int warp_size) { return WARPS_M * WARPS_N * warp_size; }
  static constexpr int block_m(int warp_size) { return WARPS_M * (warp_size / kLanesN) * THREAD_M; }
  static constexpr int kBlockN = WARPS_N * kLanesN * THREAD_N;
  static_assert(THREAD_M % 4 == 0 && THREAD_N % 4 == 0, "rows and columns come in groups of 4");
};

template <class Config, class T>
union RegisterTiledShared {
  struct {
    alignas(16) Acc<T> a[Config::kBlockK][Config::block_m(kWarpSize) + Config::kPad];
    alignas(16) Acc<T> b[Config::kBlockK][Config::kBlockN + Config::kPad];
  } tiles;
  // After the last k tile: one row of each thread of a warp.
  WarpStrip<T, kWarpSize / Config::kLanesN, Config::kLanesN * Config::kThreadN> strips[Config::num_threads(1)];
};

// 16 bytes of accumulators.
template <class A>
union AccVector {
  static constexpr int kElements = 16 / int(sizeof(A));
  Vector16 vector;
  A elements[kElements];
};

template <class Config, bool IS_K_MAJOR, int BLOCK_MN, class T>
TILEDMM_DEVICE void load_block_tile(const Operand<T>& operand, DType dtype, int64_t mn, int64_t k,
                                    Acc<T> (&smem)[Config::kBlockK][BLOCK_MN + Config::kPad]) {
  using Reader = TileReader<T, BLOCK_MN, Config::kBlockK, IS_K_MAJOR, Config::num_threads(kWarpSize), false>;
  const Reader reader(operand, mn);
  if (!reader.has_packets()) return;
  Packet<T> staged[Reader::kPackets];
  reader.load(k, staged);
  TILEDMM_UNROLL for (int packet = 0; packet < Reader::kPackets; ++packet) {
    const int far = reader.far + Reader::far_of(packet);
    if constexpr (IS_K_MAJOR) {
      TILEDMM_UNROLL for (int e = 0; e < Reader::kElements; ++e) {
        store_shared(&smem[reader.close + e][far], as_acc(staged[packet].elements[e], dtype));
      }
    } else {
      using V = AccVector<Acc<T>>;
      TILEDMM_UNROLL for (int e = 0; e < Reader::kElements; e += V::kElements) {
        V values;
        TILEDMM_UNROLL for (int i = 0; i < V::kElements; ++i) values.elements[i] =
            as_acc(staged[packet].elements[e + i], dtype);
        store_shared(reinterpret_cast<Vector16*>(&smem[far][reader.close + e]), values.vector);
      }
    }
  }
}

// Groups of 4 neighbours, `stride` elements from group to group.
template <int SIZE, class A>
TILEDMM_DEVICE void load_fragment(const A* from, int stride, A (&frag)[SIZE]) {
  using V = AccVector<A>;
  TILEDMM_UNROLL for (int i = 0; i < SIZE; i += V::kElements) {
    V values;
    values.vector = load_shared(reinterpret_cast<const Vector16*>(from + i / 4 * stride + i % 4));
    TILEDMM_UNROLL for (int e = 0; e < V::kElements; ++e) frag[i + e] = values.elements[e];
  }
}

// The factors of a thread's tile, whose first element is C's (row, col).
template <class Config>
TILEDMM_DEVICE auto factors_of(const GemmProblem& gemm, Scaling asked, int64_t k, int64_t row, int64_t col) {
  constexpr int kStepM = 4 * (kWarpSize / Config::kLanesN), kStepN = 4 * Config::kLanesN;
  return Factors<Config::kThreadM, Config::kThreadN>(
      gemm, asked, k, row, [](int i) { return i / 4 * kStepM + i % 4; }, col,
      [](int j) { return j / 4 * kStepN + j % 4; });
}

template <class Config, class A, class B, class C, bool IS_GROUPED>
TILEDMM_KERNEL(Config::num_threads(kWarpSize), Config::kBlocksPerCu)
register_tiled(FoldedProblem problem) {
  constexpr int kThreadM = Config::kThreadM, kThreadN = Config::kThreadN;
  constexpr int kBlockM = Config::block_m(kWarpSize), kBlockN = Config::kBlockN, kLanesN = Config::kLanesN;
  constexpr int kLanesM = kWarpSize / kLanesN;
  auto& smem = block_shared<RegisterTiledShared<Config, C>>();
  const int warp = thread_idx() / kWarpSize, lane = thread_idx() % kWarpSize;
  const int warp_row = warp / Config::kWarpsN * kLanesM * kThreadM, thread_row = warp_row + lane / kLanesN * 4;
  const int warp_col = warp % Config::kWarpsN * kLanesN * kThreadN, thread_col = warp_col + lane % kLanesN * 4;
  for (int64_t batch_idx = block_idx_y(); batch_idx < problem.batch_size; batch_idx += num_blocks_y()) {
    const auto [gemm, tile] = block_work<kBlockM, kBlockN, IS_GROUPED, sizeof(A) == 1>(problem, batch_idx);
    if constexpr (IS_GROUPED && sizeof(A) == 1) {
      if (tile.row >= gemm.m) continue;  // no row has factors
    }
    const auto a = operand_a<A>(gemm);
    const auto b = operand_b<B>(gemm);
    const bool is_a_k_major = is_k_major(a.stride_mn, a.stride_k), is_b_k_major = is_k_major(b.stride_mn, b.stride_k);
    Acc<C> acc[kThreadM][kThreadN] = {};
    [[maybe_unused]] Acc<C> total[sizeof(A) == 1 ? kThreadM : 1][kThreadN] = {};  // of operands of 8 bits
    const int64_t row = tile.row + thread_row, col = tile.col + thread_col;
    for (int64_t k = 0; k < gemm.k; k += Config::kBlockK) {
      if (is_a_k_major) {
        load_block_tile<Config, true, kBlockM>(a, gemm.dtype_a, tile.row, k, smem.tiles.a);
      } else {
        load_block_tile<Config, false, kBlockM>(a, gemm.dtype_a, tile.row, k, smem.tiles.a);
      }
      if (is_b_k_major) {
        load_block_tile<Config, true, kBlockN>(b, gemm.dtype_b, tile.col, k, smem.tiles.b);
      } else {
        load_block_tile<Config, false, kBlockN>(b, gemm.dtype_b, tile.col, k, smem.tiles.b);
      }
      block_barrier();  // the tiles are whole
      TILEDMM_UNROLL for (int p = 0; p < Config::kBlockK; ++p) {
        Acc<C> frag_a[kThreadM], frag_b[kThreadN];
        load_fragment(&smem.tiles.a[p][thread_row], 4 * kLanesM, frag_a);
        load_fragment(&smem.tiles.b[p][thread_col], 4 * kLanesN, frag_b);
        TILEDMM_UNROLL for (int i = 0; i < kThreadM; ++i) {
          TILEDMM_UNROLL for (int j = 0; j < kThreadN; ++j) acc[i][j] = multiply_add(frag_a[i], frag_b[j], acc[i][j]);
        }
      }
      block_barrier();  // nobody reads them any more
      if constexpr (sizeof(A) == 1) {
        if (ends_block(k + Config::kBlockK, gemm.k)) {
          const auto own = factors_of<Config>(gemm, Scaling::blocks, k, row, col);
          TILEDMM_UNROLL for (int i = 0; i < kThreadM; ++i) {
            TILEDMM_UNROLL for (int j = 0; j < kThreadN; ++j) promote(total[i][j], acc[i][j], own.at(i, j));
          }
        }
      }
    }
    if constexpr (sizeof(A) == 1) {
      const auto own = factors_of<Config>(gemm, Scaling::rows, 0, row, col);
      TILEDMM_UNROLL for (int i = 0; i < kThreadM; ++i) {
        TILEDMM_UNROLL for (int j = 0; j < kThreadN; ++j) acc[i][j] = total[i][j] * own.at(i, j);
      }
    }
    auto& strip = smem.strips[warp];
    TILEDMM_UNROLL for (int i = 0; i < kThreadM; ++i) {
      TILEDMM_UNROLL for (int j = 0; j < kThreadN; ++j) {
        store_shared(&strip.acc[lane / kLanesN][j / 4 * 4 * kLanesN + lane % kLanesN * 4 + j % 4], acc[i][j]);
      }
      strip.store(gemm, tile.row + warp_row + i / 4 * 4 * kLanesM + i % 4, 4, tile.col + warp_col);
    }
    block_barrier();  // nobody reads the strips any more
  }
}

using Small = RegisterTiledConfig<4, 4, 2, 2, 2>;
using Large = std::conditional_t<kIsAmd, RegisterTiledConfig<8, 8, 2, 2, 1>, RegisterTiledConfig<8, 8, 2, 4, 2>>;

// Groups, and operands of 8 bits, which have two sets of sums, have the small tile alone.
template <class Config, class A, class B, class C>
Status launch(const FoldedProblem& problem, const Executor& executor) {
  const int block_m = Config::block_m(warp_size(executor));
  const auto start = [&](auto* kernel) {
    return launch_kernel(kernel, num_tiles(problem, block_m, Config::kBlockN), num_batch_blocks(problem),
                         Config::num_threads(warp_size(executor)), sizeof(RegisterTiledShared<Config, C>), executor,
                         problem);
  };
  if constexpr (std::is_same_v<Config, Small>) {
    if (is_grouped(problem.gemm)) return start(register_tiled<Config, A, B, C, true>);
  }
  return start(register_tiled<Config, A, B, C, false>);
}

// Whether the plan's tile is this one, at both warp sizes.
template <class Config>
constexpr bool is_tile(bool is_large) {
  for (const int warp_size : {32, 64}) {
    const LadderPlan tile = register_tile(is_large, kIsAmd, warp_size);
    if (tile.block_m != Config::block_m(warp_size) || tile.block_n != Config::kBlockN) return false;
  }
  return true;
}
static_assert(is_tile<Small>(false) && is_tile<Large>(true), "the plan knows the tiles");

}  // namespace

Status launch_register_tiled(const FoldedProblem& problem, const Plan& plan, const Executor& executor) {
  return visit_elements(problem.gemm, [&](auto* a, auto* b, auto* c) {
    using A = std::remove_pointer_t<decltype(a)>;
    using B = std::remove_pointer_t<decltype(b)>;
    using C = std::remove_pointer_t<decltype(c)>;
    // The large tile's sums in fp64, or two sets of them, would not fit into the registers.
    if constexpr (sizeof(A) > 1 && sizeof(A) < 8) {
      if (plan.as<LadderPlan>().is_large) return launch<Large, A, B, C>(problem, executor);
    }
    return launch<Small, A, B, C>(problem, executor);
  });
}

}  // namespace tiledmm::gpu

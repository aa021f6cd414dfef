// simt_pipelined: fp32 multiply-adds on sm_80 and later. Beyond rung 04: asynchronous copies fill a ring of
// stages in shared memory, so that no register and no waiting warp carries a tile; the next fragments are on their way
// from shared memory while these are multiplied; one barrier for each k tile; tiles from 256 x 128 down to 4 x 32.
// Large tiles: both operands lie [k][mn] in shared memory, a k-major one transposed by copies of 4 bytes, or before by
// a kernel (pack.h). Small ones: as in global memory, 4 elements of k a fragment. k beyond the operand is 0 for A
// and -0 for B: their product -0 changes no sum. One chain of multiply-adds for each output, in the order of k, and at
// the end of each chunk of k (core/summation.h) an addition to a total; where the tiles of C, or those of the last
// wave, do not fill the chip, blocks of their own compute the chunks, and a second kernel (add_split_tiles.h) adds them
// up. Few rows: few_rows.h.
// Limits: fp32. Sources: sgemm.cu (Salykov): transposing copies, order of the lanes; CUTLASS: multi-stage main loop;
// Osama et al., "Stream-K": parts of tiles for the last wave.
#pragma once

#include "core/summation.h"
#include "kernels/cuda/simt_pipelined/plan.h"
#include "kernels/cuda/simt_pipelined/work.h"
#include "platform/async_copy.h"
#include "platform/block_tile.h"
#include "platform/mma.h"

namespace tiledmm::gpu {
namespace {

template <int SHAPE>
struct SimtConfig {
  static constexpr SimtShape kShape = kSimtShapes[SHAPE];
  static constexpr int kBlockM = kShape.block_m, kBlockN = kShape.block_n, kBlockK = kShape.block_k;
  static constexpr int kThreadM = kShape.thread_m, kThreadN = kShape.thread_n;
  static constexpr int kWarpM = kBlockM / kShape.warps_m, kWarpN = kBlockN / kShape.warps_n;
  static constexpr int kLanesM = kWarpM / kThreadM, kLanesN = kWarpN / kThreadN;
  static constexpr int kWarpsN = kShape.warps_n, kNumThreads = kShape.num_threads();
  static constexpr int kNumStages = kShape.num_stages, kStep = kShape.k_step, kNumSteps = kBlockK / kStep;
  static constexpr int kNumFrags = kShape.num_fragments;
  static_assert(kLanesM * kThreadM * kShape.warps_m == kBlockM && kLanesN * kThreadN * kWarpsN == kBlockN,
                "whole thread tiles");
  static_assert(kLanesM * kLanesN == 32, "a warp's lanes share out its tile");
  static_assert(kNumSteps % kNumFrags == 0, "the fragments take turns");
  static_assert(kStep == 1 || kStep == 4, "16 bytes along m and n, or along k");
  static_assert(kChunkUnit % kBlockK == 0, "a chunk ends with a k tile");

  // Neighbours share a row or a column, so that a half-warp's 16-byte accesses are 8 different ones at most.
  static TILEDMM_DEVICE int lane_m(int lane) {
    return kLanesM == 1 ? 0 : lane / 2 % 2 + lane / 4 / max_of(1, kLanesN / 2) * 2;
  }
  static TILEDMM_DEVICE int lane_n(int lane) {
    return kLanesM == 1 ? lane : lane % 2 + lane / 4 % max_of(1, kLanesN / 2) * 2;
  }
};

constexpr int round_up_to_power(int value) {
  int power = 1;
  while (power < value) power *= 2;
  return power;
}

// `SIZE` neighbours, aligned to their size.
template <int SIZE>
struct __attribute__((may_alias, aligned(4 * SIZE))) FloatVector {
  float elements[SIZE];
};

// One operand of a block: its tiles on their way to shared memory, and from there to the fragments of a thread.
template <class Config, bool IS_A, bool IS_K_MAJOR>
struct Side {
  static constexpr int kBlockMn = IS_A ? Config::kBlockM : Config::kBlockN, kBlockK = Config::kBlockK;
  static constexpr int kSize = IS_A ? Config::kThreadM : Config::kThreadN;
  static constexpr int kLanes = IS_A ? Config::kLanesM : Config::kLanesN;
  static constexpr int kNumThreads = Config::kNumThreads, kStep = Config::kStep;

  // In shared memory. The padding of a k-major tile keeps 8 rows, that of a transposed one 8 x 4 copies apart.
  static constexpr bool kLiesKMajor = IS_K_MAJOR && kStep == 4;
  static constexpr bool kIsTransposing = IS_K_MAJOR && !kLiesKMajor;
  static constexpr int kStrideMn = kLiesKMajor ? kBlockK + 4 : 1, kStrideK = kLiesKMajor ? 1 : kBlockMn + 4;
  static constexpr int kStageElements = kLiesKMajor ? kBlockMn * kStrideMn : kBlockK * kStrideK;

  // A thread's rows (columns) of the warp tile: groups of neighbours, as far apart as the lanes reach.
  static constexpr int kGroup = kLiesKMajor ? 1 : kSize % 4 == 0 ? 4 : kSize % 2 == 0 ? 2 : 1;
  static constexpr int place(int lane, int i) { return i / kGroup * (kGroup * kLanes) + lane * kGroup + i % kGroup; }

  // How the threads share out a tile: along the operand's close dimension first.
  static constexpr int kClose = IS_K_MAJOR ? kBlockK : kBlockMn, kFar = IS_K_MAJOR ? kBlockMn : kBlockK;
  static constexpr int kVectorThreads = round_up_to_power(kClose / 4);
  static constexpr int kElementThreads = kIsTransposing ? 8 : int(min_of(kNumThreads, round_up_to_power(kClose)));

  const char* next;                // this thread's first element of the next k tile
  int64_t advance;                 // bytes from one k tile to the next
  uint32_t step_far;               // bytes from one row of a tile to the next
  int smem_offset;                 // the first element's place in a stage
  int left_mn;                     // from it to the operand's end along mn
  bool is_vectorised, is_regular;  // 16 bytes at a time; by load_block_tile

  static TILEDMM_DEVICE Operand<float> operand_of(const GemmProblem& gemm) {
    return IS_A ? operand_a<float>(gemm) : operand_b<float>(gemm);
  }

  TILEDMM_DEVICE Side(const GemmProblem& gemm, int64_t mn, int64_t k, bool is_padded) {
    const Operand<float> operand = operand_of(gemm);
    int rows = int(min_of(operand.size_mn - mn, kBlockMn));
    if (is_padded) rows = (rows + 3) / 4 * 4;
    is_vectorised = !kIsTransposing && operand.is_vectorised && (IS_K_MAJOR || rows % 4 == 0);
    // By shifts, since nvcc makes one division of two by constants of which one counts.
    const int shift = is_vectorised ? __builtin_ctz(kVectorThreads) : __builtin_ctz(kElementThreads);
    const int close = (thread_idx() & ((1 << shift) - 1)) << (is_vectorised ? 2 : 0), far = thread_idx() >> shift;
    smem_offset = IS_K_MAJOR ? far * kStrideMn + close * kStrideK : close * kStrideMn + far * kStrideK;
    left_mn = rows - (IS_K_MAJOR ? far : close);
    const int64_t stride_far = IS_K_MAJOR ? operand.stride_mn : operand.stride_k;
    const int64_t stride_close = IS_K_MAJOR ? operand.stride_k : operand.stride_mn;
    // Within a tile, 32 bits count bytes.
    is_regular = stride_close == 1 && stride_far * (4 * kFar) < int64_t(1) << 31;
    next = reinterpret_cast<const char*>(operand.base + mn * operand.stride_mn + k * operand.stride_k +
                                         far * stride_far + close * stride_close);
    // Each thread computes it, though all get the same: instructions that multiply and add addresses take no uniform
    // register.
    step_far = left_mn > -kNumThreads - kBlockMn ? uint32_t(stride_far) * 4 : 0;
    advance = operand.stride_k * (4 * kBlockK);
  }

  // A regular tile, WIDTH elements at a time. What lies beyond the operand's end along mn is not copied.
  template <int WIDTH>
  TILEDMM_DEVICE void copy_regular(float* stage) const {
    constexpr int kThreadsClose = WIDTH == 4 ? kVectorThreads : kElementThreads;
    constexpr int kThreadsFar = kNumThreads / kThreadsClose, kStepClose = kThreadsClose * WIDTH;
    float* const to = stage + smem_offset;
    TILEDMM_UNROLL for (int f = 0; f < kFar; f += kThreadsFar) {
      const auto* from = reinterpret_cast<const float*>(next + uint64_t(uint32_t(f)) * step_far);
      const bool is_row = kFar % kThreadsFar == 0 || thread_idx() / kThreadsClose + f < kFar;
      TILEDMM_UNROLL for (int c = 0; c < kClose; c += kStepClose) {
        const bool is_place = is_row && (kClose % kStepClose == 0 || thread_idx() % kThreadsClose * WIDTH + c < kClose);
        const int left = left_mn - (IS_K_MAJOR ? f : c);
        const int offset = IS_K_MAJOR ? f * kStrideMn + c * kStrideK : c * kStrideMn + f * kStrideK;
        copy_async_if<4 * WIDTH>(is_place && left > 0, to + offset, from + c);
      }
    }
  }

  // A tile of any strides, any part of which lies beyond the ends.
  static TILEDMM_DEVICE void copy_edge(const Operand<float>& operand, float* stage, int64_t mn, int64_t k) {
    TILEDMM_NO_UNROLL for (int idx = thread_idx(); idx < kClose * kFar; idx += kNumThreads) {
      const int tile_mn = IS_K_MAJOR ? idx / kClose : idx % kClose, tile_k = IS_K_MAJOR ? idx % kClose : idx / kClose;
      float* to = stage + tile_mn * kStrideMn + tile_k * kStrideK;
      if (k + tile_k >= operand.size_k) {
        store_shared(to, IS_A ? 0.0f : -0.0f);
      } else if (mn + tile_mn < operand.size_mn) {
        copy_async<4>(to, operand.base + (mn + tile_mn) * operand.stride_mn + (k + tile_k) * operand.stride_k, 4);
      }
    }
  }

  // Whether load_fast serves the regular tiles.
  TILEDMM_DEVICE bool is_fast() const { return is_regular && (kIsTransposing || is_vectorised); }
  TILEDMM_DEVICE void load_fast(float* stage) {
    copy_regular<kIsTransposing ? 1 : 4>(stage);
    next += advance;
  }

  TILEDMM_DEVICE void load_block_tile(float* stage) {
    if (!kIsTransposing && is_vectorised) {
      if constexpr (!kIsTransposing) copy_regular<4>(stage);
    } else {
      copy_regular<1>(stage);
    }
    next += advance;
  }

  // `from`: this lane's first element of the stage.
  static TILEDMM_DEVICE void load_fragment(const float* from, int step, float (&frag)[kStep][kSize]) {
    if constexpr (kLiesKMajor) {
      TILEDMM_UNROLL for (int i = 0; i < kSize; ++i) {
        const auto* vector = reinterpret_cast<const FloatVector<4>*>(from + place(0, i) * kStrideMn + 4 * step);
        const FloatVector<4> along_k = load_shared(vector);
        TILEDMM_UNROLL for (int p = 0; p < 4; ++p) frag[p][i] = along_k.elements[p];
      }
    } else {
      TILEDMM_UNROLL for (int p = 0; p < kStep; ++p) {
        TILEDMM_UNROLL for (int i = 0; i < kSize; i += kGroup) {
          const auto* vector =
              reinterpret_cast<const FloatVector<kGroup>*>(from + (step * kStep + p) * kStrideK + place(0, i));
          const FloatVector<kGroup> group = load_shared(vector);
          TILEDMM_UNROLL for (int e = 0; e < kGroup; ++e) frag[p][i + e] = group.elements[e];
        }
      }
    }
  }
};

// Where a block's tile lies, and which chunk of k it sums up.
struct BlockPlace {
  int64_t row, col;
  int32_t split_tile, chunk;  // split_tile -1: all chunks
};

template <class Config>
TILEDMM_DEVICE BlockPlace block_place(const SimtWork& work) {
  const auto block = int(block_idx()), num_whole = int(work.num_whole);
  const bool is_split = block >= num_whole;
  const int split_tile = is_split ? work.chunks.quotient(block - num_whole) : 0;
  const int tile = is_split ? num_whole + split_tile : block, tile_m = work.tiles_n.quotient(tile);
  return {int64_t(tile_m) * Config::kBlockM, int64_t(tile - tile_m * work.tiles_n.value) * Config::kBlockN,
          is_split ? split_tile : -1, is_split ? block - num_whole - split_tile * work.chunks.value : 0};
}

template <class Config, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR>
struct SimtShared {
  using SideA = Side<Config, true, IS_A_K_MAJOR>;
  using SideB = Side<Config, false, IS_B_K_MAJOR>;
  struct Tiles {
    alignas(16) float a[Config::kNumStages][SideA::kStageElements];
    alignas(16) float b[Config::kNumStages][SideB::kStageElements];
  };
  // Rows of a warp tile that are stored at a time: as many as find room where the tiles were.
  static constexpr int kPieces = (Config::kBlockM * (Config::kWarpN + 4) * Config::kWarpsN * 4 - 1) / sizeof(Tiles) + 1;
  static constexpr int kStageRows = Config::kWarpM / round_up_to_power(kPieces);
  static_assert(kStageRows % (Config::kLanesM * SideA::kGroup) == 0, "whole groups of all lanes");

  // What the ends of the operands and the stores need, kept out of the main loop's registers.
  GemmProblem gemm;
  BlockPlace place;
  union {
    Tiles tiles;
    alignas(16) float stages[Config::kNumThreads / 32][kStageRows][Config::kWarpN + 4];  // after the last k tile
  };
};
// Behind it, where a block computes several chunks: their total.
template <class Config>
struct SimtTotals {
  static constexpr int kWidth = Config::kThreadM * Config::kThreadN % 4 == 0 ? 4 : 1;
  static constexpr int kVectors = Config::kThreadM * Config::kThreadN / kWidth;
  FloatVector<kWidth> vectors[kVectors][Config::kNumThreads];
};

constexpr int kMinFastTiles = 10;

template <class Config>
using Accumulators = float[Config::kThreadM][Config::kThreadN];

// There and back along n: each instruction shares a factor with the one before, so that two of its three registers are
// read anew, which the register file's two banks can give at one time.
template <class Config>
TILEDMM_DEVICE void multiply(const float (&frag_a)[Config::kStep][Config::kThreadM],
                             const float (&frag_b)[Config::kStep][Config::kThreadN], Accumulators<Config>& acc) {
  TILEDMM_UNROLL for (int p = 0; p < Config::kStep; ++p) {
    TILEDMM_UNROLL for (int i = 0; i < Config::kThreadM; ++i) {
      TILEDMM_UNROLL for (int step = 0; step < Config::kThreadN; ++step) {
        const int j = i % 2 ? Config::kThreadN - 1 - step : step;
        acc[i][j] = multiply_add(frag_a[p][i], frag_b[p][j], acc[i][j]);
      }
    }
  }
}

// The end of a chunk: total += acc, or acc += total at that of the last one. The first chunk's sum is the total.
template <class Config, bool IS_LAST>
TILEDMM_DEVICE void fold_chunk(bool is_first, SimtTotals<Config>& totals, Accumulators<Config>& acc) {
  using Totals = SimtTotals<Config>;
  TILEDMM_UNROLL for (int v = 0; v < Totals::kVectors; ++v) {
    auto* to = &totals.vectors[v][thread_idx()];
    FloatVector<Totals::kWidth> sums;
    TILEDMM_UNROLL for (int e = 0; e < Totals::kWidth; ++e) sums.elements[e] = -0.0f;  // changes nothing
    if (!is_first) sums = load_shared(to);
    TILEDMM_UNROLL for (int e = 0; e < Totals::kWidth; ++e) {
      const int idx = v * Totals::kWidth + e;
      float& element = acc[idx / Config::kThreadN][idx % Config::kThreadN];
      sums.elements[e] += element;
      element = IS_LAST ? sums.elements[e] : 0;
    }
    if constexpr (!IS_LAST) store_shared(to, sums);
  }
}

template <class Shared, class Config>
TILEDMM_DEVICE void add_bias(const GemmProblem& gemm, int64_t row, int64_t col, Accumulators<Config>& acc) {
  if (is_blended(gemm)) {
    TILEDMM_UNROLL for (int i = 0; i < Config::kThreadM; ++i) {
      TILEDMM_UNROLL for (int j = 0; j < Config::kThreadN; ++j) {
        acc[i][j] = blended<float>(gemm, row + Shared::SideA::place(0, i), col + Shared::SideB::place(0, j), acc[i][j]);
      }
    }
    return;
  }
  const bool is_along_m = gemm.stride_bias_m != 0;
  const float none = -float(opaque(0));  // as load_bias; the compiler would leave out adding what it knows to be -0
  TILEDMM_UNROLL for (int i = 0; i < Config::kThreadM; ++i) {
    const float bias = is_along_m ? load_bias<float>(gemm, row + Shared::SideA::place(0, i), col) : none;
    TILEDMM_UNROLL for (int j = 0; j < Config::kThreadN; ++j) acc[i][j] += bias;
  }
  if (is_along_m) return;
  TILEDMM_UNROLL for (int j = 0; j < Config::kThreadN; ++j) {
    const float bias = load_bias<float>(gemm, row, col + Shared::SideB::place(0, j));
    TILEDMM_UNROLL for (int i = 0; i < Config::kThreadM; ++i) acc[i][j] += bias;
  }
}

// C = acc straight from the registers, 16 bytes at a time: along m, if IS_C_TRANSPOSED, else along n.
template <class Shared, class Config, bool IS_C_TRANSPOSED>
TILEDMM_DEVICE void store_vectors(const GemmProblem& gemm, int64_t row, int64_t col, const Accumulators<Config>& acc) {
  using A = typename Shared::SideA;
  using B = typename Shared::SideB;
  constexpr int kStepM = IS_C_TRANSPOSED ? 4 : 1, kStepN = IS_C_TRANSPOSED ? 1 : 4;
  const int left_m = int(min_of(gemm.m - row, Config::kBlockM)), left_n = int(min_of(gemm.n - col, Config::kBlockN));
  const int64_t stride_m = IS_C_TRANSPOSED ? 1 : gemm.stride_cm, stride_n = IS_C_TRANSPOSED ? gemm.stride_cn : 1;
  float* c = static_cast<float*>(gemm.c) + row * stride_m + col * stride_n;
  TILEDMM_UNROLL for (int i = 0; i < Config::kThreadM; i += kStepM) {
    TILEDMM_UNROLL for (int j = 0; j < Config::kThreadN; j += kStepN) {
      const int place_m = A::place(0, i), place_n = B::place(0, j);
      FloatVector<4> sums;
      TILEDMM_UNROLL for (int e = 0; e < 4; ++e) { sums.elements[e] = IS_C_TRANSPOSED ? acc[i + e][j] : acc[i][j + e]; }
      float* to = c + place_m * stride_m + place_n * stride_n;
      if (place_m < left_m && place_n < left_n) store_global(reinterpret_cast<FloatVector<4>*>(to), sums);
    }
  }
}

// Any C, any activation: through shared memory, so that the lanes store neighbours. To the second-level cache a sector
// that is written in part costs as much as a whole one. Loops, not unrolled: where k is small, the kernel takes as long
// as its instructions take to come from memory.
template <class Shared, class Config>
TILEDMM_DEVICE void store_staged(const GemmProblem& gemm, int64_t row, int64_t col, int lane_m, int lane_n,
                                 const Accumulators<Config>& acc, Shared& smem) {
  using A = typename Shared::SideA;
  using B = typename Shared::SideB;
  constexpr int kRows = Shared::kStageRows, kCols = Config::kWarpN, kThreadRows = kRows / Config::kLanesM;
  constexpr int kAhead = 8;  // loads on their way
  auto& stage = smem.stages[thread_idx() / 32];
  const int lane = thread_idx() % 32;
  const bool is_along_m = is_column_major(gemm);
  const int64_t stride_close = is_along_m ? gemm.stride_cm : gemm.stride_cn;
  const int64_t stride_far = is_along_m ? gemm.stride_cn : gemm.stride_cm;
  const int step_close = is_along_m ? kCols + 4 : 1, step_far = is_along_m ? 1 : kCols + 4;
  TILEDMM_UNROLL for (int first = 0; first < Config::kThreadM; first += kThreadRows) {
    const int first_row = first * Config::kLanesM;
    TILEDMM_UNROLL for (int i = 0; i < kThreadRows; ++i) {
      TILEDMM_UNROLL for (int j = 0; j < Config::kThreadN; j += B::kGroup) {
        FloatVector<B::kGroup> sums;
        TILEDMM_UNROLL for (int e = 0; e < B::kGroup; ++e) sums.elements[e] = acc[first + i][j + e];
        float* to = &stage[A::place(lane_m, first + i) - first_row][B::place(lane_n, j)];
        store_shared(reinterpret_cast<FloatVector<B::kGroup>*>(to), sums);
      }
    }
    warp_barrier();  // the rows are there
    const int rows = int(min_of(gemm.m - row - first_row, kRows)), cols = int(min_of(gemm.n - col, kCols));
    const int num_close = is_along_m ? rows : cols, num_far = is_along_m ? cols : rows;
    float* const c = static_cast<float*>(gemm.c) + (row + first_row) * gemm.stride_cm + col * gemm.stride_cn;
    TILEDMM_NO_UNROLL for (int close = lane; close < num_close; close += 32) {
      const float* from = &stage[0][0] + close * step_close;
      float* to = c + close * stride_close;
      TILEDMM_NO_UNROLL for (int far = 0; far < num_far; far += kAhead) {
        float sums[kAhead];
        TILEDMM_UNROLL for (int i = 0; i < kAhead; ++i) {
          sums[i] = far + i < num_far ? load_shared(from + (far + i) * step_far) : 0;
        }
        if (gemm.activation != Activation::none) {
          TILEDMM_NO_UNROLL for (int i = 0; i < kAhead; ++i) {
            const float sum = activated<float>(gemm.activation, sums[0]);
            TILEDMM_UNROLL for (int next = 1; next < kAhead; ++next) sums[next - 1] = sums[next];
            sums[kAhead - 1] = sum;
          }
        }
        TILEDMM_UNROLL for (int i = 0; i < kAhead; ++i) {
          if (far + i < num_far) store_global(to, sums[i]);
          to += stride_far;
        }
      }
    }
    warp_barrier();  // nobody reads them any more
  }
}

// (row, col): of the warp tile. `is_whole`: of memory where all of the tile has its place.
template <class Shared, class Config>
TILEDMM_DEVICE void store_block_tile(const GemmProblem& gemm, int64_t row, int64_t col, int lane_m, int lane_n,
                                     bool is_whole, Accumulators<Config>& acc, Shared& smem) {
  using A = typename Shared::SideA;
  using B = typename Shared::SideB;
  const int64_t thread_row = row + A::place(lane_m, 0), thread_col = col + B::place(lane_n, 0);
  // The largest tile adds what changes nothing: without a branch, ptxas orders its main loop better, by 1 to 5 %.
  constexpr bool kAddsZeros = Config::kThreadM == 16 && !A::kIsTransposing && !B::kIsTransposing;
  if (kAddsZeros || gemm.bias || is_blended(gemm)) add_bias<Shared, Config>(gemm, thread_row, thread_col, acc);
  if (gemm.activation == Activation::none && reinterpret_cast<uintptr_t>(gemm.c) % 16 == 0) {
    if constexpr (B::kGroup == 4) {
      if (gemm.stride_cn == 1 && gemm.stride_cm % 4 == 0 && (is_whole || gemm.n % 4 == 0)) {
        return store_vectors<Shared, Config, false>(gemm, thread_row, thread_col, acc);
      }
    }
    if constexpr (A::kGroup == 4) {
      if (gemm.stride_cm == 1 && gemm.stride_cn % 4 == 0 && gemm.m % 4 == 0) {
        return store_vectors<Shared, Config, true>(gemm, thread_row, thread_col, acc);
      }
    }
  }
  store_staged<Shared, Config>(gemm, row, col, lane_m, lane_n, acc, smem);
}

// Groups have kernels of their own, since others would have to keep the sizes of their item in registers.
template <class Config, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR, bool IS_GROUPED>
TILEDMM_KERNEL(Config::kNumThreads, Config::kShape.blocks_per_cu)
simt_pipelined(FoldedProblem problem, SimtWork work) {
  if (work.num_split > 0) let_later_kernels_start();  // add_split_tiles
  using Shared = SimtShared<Config, IS_A_K_MAJOR, IS_B_K_MAJOR>;
  using A = typename Shared::SideA;
  using B = typename Shared::SideB;
  constexpr int kNumStages = Config::kNumStages, kNumSteps = Config::kNumSteps, kStep = Config::kStep;
  constexpr int kNumFrags = Config::kNumFrags;
  auto& smem = block_shared<Shared>();
  auto& totals = *reinterpret_cast<SimtTotals<Config>*>(&smem + 1);
  const int warp = thread_idx() / 32, lane = thread_idx() % 32;
  const int lane_m = Config::lane_m(lane), lane_n = Config::lane_n(lane);
  const int warp_row = warp / Config::kWarpsN * Config::kWarpM, warp_col = warp % Config::kWarpsN * Config::kWarpN;
  const float* lane_a = &smem.tiles.a[0][(warp_row + A::place(lane_m, 0)) * A::kStrideMn];
  const float* lane_b = &smem.tiles.b[0][(warp_col + B::place(lane_n, 0)) * B::kStrideMn];

  for (int64_t batch_idx = block_idx_y(); batch_idx < problem.batch_size; batch_idx += num_blocks_y()) {
    GemmProblem gemm;
    BlockPlace place;
    if constexpr (IS_GROUPED) {
      const BlockWork of_group = block_work<Config::kBlockM, Config::kBlockN, true>(problem, batch_idx);
      gemm = of_group.gemm, place = {of_group.tile.row, of_group.tile.col, -1, 0};
      if (place.row >= gemm.m) continue;  // no group has this row of tiles
      // A group of k has the chunks of a product with so much of k.
      if (gemm.grouping == Grouping::k) problem.chunk_k = chunk_k(gemm);
    } else {
      gemm = item_of<true>(problem, batch_idx), place = block_place<Config>(work);
    }
    const bool is_split = place.split_tile >= 0;
    if (is_split) {
      const int64_t tile = (batch_idx * work.num_split + place.split_tile) * work.chunks.value + place.chunk;
      gemm.c = work.partial + tile * Config::kShape.area() - place.row * Config::kBlockN - place.col;
      gemm.stride_cm = Config::kBlockN;
      gemm.stride_cn = 1;
      drop_epilogue(gemm);
    }
    const int64_t k = place.chunk * problem.chunk_k;
    const int64_t end_k = is_split ? min_of(gemm.k, k + problem.chunk_k) : gemm.k;
    const int num_k_tiles = int(ceil_div(end_k - k, Config::kBlockK));
    const bool is_folding = !is_split && problem.chunk_k < gemm.k;
    A side_a(gemm, place.row, k, work.is_a_padded);
    B side_b(gemm, place.col, k, work.is_b_padded);
    const int num_whole_tiles = int((end_k - k) / Config::kBlockK);
    const int num_regular_tiles = side_a.is_regular && side_b.is_regular ? num_whole_tiles : 0;
    int write_stage = 0, read_stage = 0;
    const auto load_tiles = [&](int k_tile, const GemmProblem& gemm, const BlockPlace& place) {
      if (k_tile < num_regular_tiles) {
        side_a.load_block_tile(smem.tiles.a[write_stage]);
        side_b.load_block_tile(smem.tiles.b[write_stage]);
      } else if (k_tile < num_k_tiles) {
        const int64_t at_k = place.chunk * problem.chunk_k + int64_t(k_tile) * Config::kBlockK;
        A::copy_edge(A::operand_of(gemm), smem.tiles.a[write_stage], place.row, at_k);
        B::copy_edge(B::operand_of(gemm), smem.tiles.b[write_stage], place.col, at_k);
      }
    };
    TILEDMM_NO_UNROLL for (; write_stage < kNumStages - 1; ++write_stage) {
      load_tiles(write_stage, gemm, place);
      commit_copies();
    }
    if (thread_idx() == 0) {
      smem.gemm = gemm;
      smem.place = place;
    }

    Accumulators<Config> acc = {};
    float frag_a[kNumFrags][kStep][Config::kThreadM], frag_b[kNumFrags][kStep][Config::kThreadN];
    wait_copies<kNumStages - 2>();
    block_barrier();  // the first tiles are whole
    TILEDMM_UNROLL for (int step = 0; step < kNumFrags - 1; ++step) {
      A::load_fragment(lane_a, step, frag_a[step]);
      B::load_fragment(lane_b, step, frag_b[step]);
    }
    int k_tile = 0;
    const auto multiply_tiles = [&](auto is_fast, int end) {
      constexpr int kBarrierStep = kNumSteps - (kNumFrags - 1), kCommitStep = int(min_of(1, kBarrierStep - 1));
      TILEDMM_NO_UNROLL for (; k_tile < end; ++k_tile) {
        TILEDMM_UNROLL for (int step = 0; step < kNumSteps; ++step) {
          if (step == kBarrierStep) {
            wait_copies<kNumStages - 2>();  // those of the next tiles
            block_barrier();                // the next tiles are whole, and nobody reads these any more
            read_stage = read_stage + 1 == kNumStages ? 0 : read_stage + 1;
          }
          const int ahead = (step + kNumFrags - 1) % kNumSteps, frag = (step + kNumFrags - 1) % kNumFrags;
          A::load_fragment(lane_a + read_stage * A::kStageElements, ahead, frag_a[frag]);
          B::load_fragment(lane_b + read_stage * B::kStageElements, ahead, frag_b[frag]);
          if constexpr (decltype(is_fast)::value) {
            if (step == 0) side_a.load_fast(smem.tiles.a[write_stage]);
            if (step == kCommitStep) side_b.load_fast(smem.tiles.b[write_stage]);
          } else if (step == kCommitStep) {
            load_tiles(k_tile + kNumStages - 1, smem.gemm, smem.place);
          }
          if (step == kCommitStep) {
            commit_copies();
            write_stage = write_stage + 1 == kNumStages ? 0 : write_stage + 1;
          }
          multiply<Config>(frag_a[step % kNumFrags], frag_b[step % kNumFrags], acc);
        }
      }
    };
    // Where k is short, one loop instead of two: the instructions of each come from memory.
    const bool is_fast = side_a.is_fast() && side_b.is_fast() && num_whole_tiles >= kMinFastTiles;
    const int num_fast_tiles = is_fast ? num_whole_tiles - (kNumStages - 1) : 0;
    const int tiles_per_chunk = is_folding ? int(problem.chunk_k / Config::kBlockK) : num_k_tiles;
    for (int end = 0; end < num_k_tiles;) {
      if (end > 0) fold_chunk<Config, false>(end == tiles_per_chunk, totals, acc);
      end = int(min_of(num_k_tiles, end + tiles_per_chunk));
      multiply_tiles(std::true_type{}, int(min_of(num_fast_tiles, end)));
      multiply_tiles(std::false_type{}, end);
    }
    if (is_folding) fold_chunk<Config, true>(false, totals, acc);
    block_barrier();  // nobody reads the tiles any more
    store_block_tile<Shared, Config>(smem.gemm, smem.place.row + warp_row, smem.place.col + warp_col, lane_m, lane_n,
                                     smem.place.split_tile >= 0, acc, smem);
    block_barrier();  // nor the stages
  }
}

template <class Config, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR, bool IS_GROUPED>
Status launch_layout(const FoldedProblem& problem, const SimtWork& work, const Executor& executor) {
  using Shared = SimtShared<Config, IS_A_K_MAJOR, IS_B_K_MAJOR>;
  static_assert(sizeof(Shared) <= simt_shared_bytes(Config::kShape, IS_A_K_MAJOR, IS_B_K_MAJOR, false));
  const bool is_folding = work.num_whole > 0 && problem.chunk_k < problem.gemm.k;
  const size_t bytes = sizeof(Shared) + (is_folding ? sizeof(SimtTotals<Config>) : 0);
  return launch_kernel(simt_pipelined<Config, IS_A_K_MAJOR, IS_B_K_MAJOR, IS_GROUPED>,
                       work.num_whole + int64_t(work.num_split) * work.chunks.value, num_batch_blocks(problem),
                       Config::kNumThreads, bytes, executor, problem, work);
}

template <int SHAPE>
Status launch_shape(const FoldedProblem& problem, const SimtWork& work, const Executor& executor) {
  using Config = SimtConfig<SHAPE>;
  return visit_layouts(problem.gemm, [&](auto is_a_k_major, auto is_b_k_major) {
    constexpr bool kIsA = decltype(is_a_k_major)::value, kIsB = decltype(is_b_k_major)::value;
    if constexpr (Config::kShape.takes_groups) {
      if (is_grouped(problem.gemm)) return launch_layout<Config, kIsA, kIsB, true>(problem, work, executor);
    }
    if constexpr (is_built(Config::kShape, kIsA, kIsB)) {
      return launch_layout<Config, kIsA, kIsB, false>(problem, work, executor);
    }
    return Status::unsupported;  // the plan knows
  });
}

}  // namespace

template <int INSTANCE>
Status launch_instance(int shape, const FoldedProblem& problem, const SimtWork& work, const Executor& executor) {
  constexpr Instance kOwn = kSimtInstances[INSTANCE];
  return visit_number<kOwn.first, kOwn.end>(shape, Status::unsupported, [&](auto number) {
    return launch_shape<decltype(number)::value>(problem, work, executor);
  });
}

}  // namespace tiledmm::gpu

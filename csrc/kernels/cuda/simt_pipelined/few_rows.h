// Up to 8 rows of C: B streams through shared memory once. The warps of a block take different chunks of k of the same
// columns, each with a ring of stages of its own and no barrier but a warp's; their sums are added in the order of the
// chunks. Where that leaves multiprocessors idle, each chunk is for a block of one warp, and a second kernel adds the
// sums. Few columns are few rows of the transposed product.
#pragma once

#include "kernels/cuda/simt_pipelined/few_rows_plan.h"
#include "platform/async_copy.h"
#include "platform/block_tile.h"
#include "platform/chunk_sums.h"

namespace tiledmm::gpu {
namespace {

// A block has room for COLS columns.
template <int ROWS, int COLS, int NUM_STAGES, bool IS_B_K_MAJOR>
struct FewRowsConfig {
  static constexpr int kVector = 4;
  static constexpr int kRows = ROWS, kCols = COLS, kBlockK = few_rows_block_k(COLS);
  static constexpr int kPaddedK = kBlockK + kVector, kNumStages = NUM_STAGES;
  static constexpr bool kIsKMajor = IS_B_K_MAJOR;
  // B in shared memory, as it lies in global memory. The padding keeps 8 columns' vectors apart.
  static constexpr int kStrideMn = IS_B_K_MAJOR ? kPaddedK : 1, kStrideK = IS_B_K_MAJOR ? 1 : COLS;
  static constexpr int kLanesM = 32 / COLS, kThreadM = (ROWS + kLanesM - 1) / kLanesM;
  static_assert(kLanesM * COLS == 32, "a warp's lanes share out its tile");
  // Elements of k between two looks at the end of a tile.
  static constexpr int kUnrolled = kBlockK < 64 ? kBlockK : 64;
};

// The shared memory of one warp.
template <class Config>
struct FewRowsShared {
  struct {
    alignas(16) float a[Config::kRows][Config::kBlockK];
    alignas(16) float b[Config::kCols * Config::kPaddedK];
  } stages[Config::kNumStages];
  float sums[Config::kRows][Config::kCols];
};

// A tile of B of up to left_n columns, WIDTH elements at a time: along B's close dimension first. Every address is a
// few steps from the lane's first one, since a warp has time for few instructions beside its copies.
template <class Config, int WIDTH, bool IS_WHOLE>
TILEDMM_DEVICE void copy_b(const Operand<float>& operand, float* stage, int64_t col, int left_n, int64_t k,
                           int left_k) {
  constexpr bool kIsKMajor = Config::kIsKMajor;
  constexpr int kClose = kIsKMajor ? Config::kBlockK : Config::kCols,
                kFar = kIsKMajor ? Config::kCols : Config::kBlockK;
  constexpr int kLanesClose = int(min_of(32, kClose / WIDTH)), kLanesFar = 32 / kLanesClose;
  constexpr int kSmemClose = kIsKMajor ? Config::kStrideK : Config::kStrideMn;
  constexpr int kSmemFar = kIsKMajor ? Config::kStrideMn : Config::kStrideK;
  const int lane = thread_idx() % 32, close = lane % kLanesClose * WIDTH, far = lane / kLanesClose;
  const int left_close = (kIsKMajor ? left_k : left_n) - close, left_far = (kIsKMajor ? left_n : left_k) - far;
  const int64_t stride_close = kIsKMajor ? operand.stride_k : operand.stride_mn;
  const int64_t stride_far = kIsKMajor ? operand.stride_mn : operand.stride_k;
  const float* from =
      operand.base + col * operand.stride_mn + k * operand.stride_k + close * stride_close + far * stride_far;
  stage += close * kSmemClose + far * kSmemFar;
  const auto copy_far = [&](int f) {
    TILEDMM_UNROLL for (int c = 0; c < kClose; c += kLanesClose * WIDTH) {
      if (IS_WHOLE || (f < left_far && c < left_close)) {
        copy_async_once<int(sizeof(float)) * WIDTH>(
            stage + f * kSmemFar + c * kSmemClose, from + (WIDTH > 1 ? c : c * stride_close),
            int(sizeof(float)) * (IS_WHOLE ? WIDTH : int(min_of(left_close - c, WIDTH))));
      }
    }
    from += kLanesFar * stride_far;
  };
  // Code that a call jumps over costs time as well, where the instructions come from cold memory.
  if constexpr (WIDTH > 1) {
    TILEDMM_UNROLL for (int f = 0; f < kFar; f += kLanesFar) copy_far(f);
  } else {
    TILEDMM_NO_UNROLL for (int f = 0; f < kFar; f += kLanesFar) copy_far(f);
  }
}

template <class Config>
TILEDMM_DEVICE void copy_a(const Operand<float>& operand, float (&stage)[Config::kRows][Config::kBlockK], int64_t k,
                           int left_k) {
  const int lane = thread_idx() % 32;
  const float* from = operand.base + (k + lane) * operand.stride_k;
  TILEDMM_UNROLL for (int p = 0; p < Config::kBlockK; p += 32) {
    TILEDMM_UNROLL for (int row = 0; row < Config::kRows; ++row) {
      if (lane + p < left_k && row < operand.size_mn) {
        copy_async<sizeof(float)>(&stage[row][lane + p], from + row * operand.stride_mn, sizeof(float));
      }
    }
    from += 32 * operand.stride_k;
  }
}

// COUNT elements of k from p on.
template <class Config, int COUNT>
TILEDMM_DEVICE void multiply(const float (&a)[Config::kRows][Config::kBlockK], const float* b, int row, int col, int p,
                             float (&acc)[Config::kThreadM]) {
  struct __attribute__((may_alias, aligned(sizeof(float) * COUNT))) AlongK {
    float elements[COUNT];
  };
  AlongK frag_b;
  if constexpr (Config::kIsKMajor) {
    frag_b = load_shared(reinterpret_cast<const AlongK*>(b + col * Config::kStrideMn + p));
  } else {
    TILEDMM_UNROLL for (int e = 0; e < COUNT; ++e) {
      frag_b.elements[e] = load_shared(b + col + (p + e) * Config::kStrideK);
    }
  }
  TILEDMM_UNROLL for (int i = 0; i < Config::kThreadM; ++i) {
    const AlongK frag_a = load_shared(reinterpret_cast<const AlongK*>(&a[row + i * Config::kLanesM][p]));
    TILEDMM_UNROLL for (int e = 0; e < COUNT; ++e) {
      acc[i] = multiply_add(frag_a.elements[e], frag_b.elements[e], acc[i]);
    }
  }
}

// How the blocks share out the chunks of the same columns.
struct FewRowsWork {
  int32_t num_warps;
  int32_t cols;        // of a block
  int32_t num_splits;  // blocks of one warp, a chunk each; or 1
  void* partial;       // as ChunkSums has them; null where there is one split
};

template <class Config>
TILEDMM_KERNEL(32 * kFewRowsMaxWarps, 1)
few_rows(FewRowsWork work, FoldedProblem problem) {
  constexpr int kBlockK = Config::kBlockK, kNumStages = Config::kNumStages, kThreadM = Config::kThreadM;
  constexpr int kVector = Config::kVector, kUnrolled = Config::kUnrolled;
  auto* all = &block_shared<FewRowsShared<Config>>();
  if (work.partial) let_later_kernels_start();  // add_chunks
  const int warp = thread_idx() / 32, lane = thread_idx() % 32, num_warps = work.num_warps;
  auto& smem = all[warp];
  // Lanes beyond the rows repeat the last one's work.
  const int lane_col = lane % Config::kCols, lane_row = int(min_of(lane / Config::kCols, Config::kRows - 1));
  const auto block = uint32_t(block_idx()), column = block / uint32_t(work.num_splits);
  const auto split = int32_t(block - column * uint32_t(work.num_splits));
  const int64_t col = int64_t(column) * work.cols, k = problem.gemm.k;
  const int left_n = int(min_of(problem.gemm.n - col, work.cols));
  const bool has_sums = lane_col < left_n && lane / Config::kCols < Config::kRows;
  const int64_t chunk_k = problem.chunk_k, step_k = work.num_splits * num_warps * chunk_k;

  for (int64_t batch_idx = block_idx_y(); batch_idx < problem.batch_size; batch_idx += num_blocks_y()) {
    const GemmProblem gemm = item_of<true>(problem, batch_idx);
    const Operand<float> a = operand_a<float>(gemm), b = operand_b<float>(gemm);
    // The next tile to copy, and the ends of its chunk.
    int64_t load_begin = (split + warp) * chunk_k, load_k = load_begin, load_end = min_of(k, load_k + chunk_k);
    int write_stage = 0, read_stage = 0;
    const auto load_tile = [&] {
      if (load_k < k) {
        const int left_k = int(min_of(load_end - load_k, kBlockK));
        float* const to = smem.stages[write_stage].b;
        if (!b.is_vectorised)
          copy_b<Config, 1, false>(b, to, col, left_n, load_k, left_k);
        else if (left_k == kBlockK && left_n == Config::kCols)
          copy_b<Config, kVector, true>(b, to, col, left_n, load_k, left_k);
        else
          copy_b<Config, kVector, false>(b, to, col, left_n, load_k, left_k);
        copy_a<Config>(a, smem.stages[write_stage].a, load_k, left_k);
        load_k += kBlockK;
        if (load_k >= load_end) {
          load_k = load_begin += step_k;
          load_end = min_of(k, load_k + chunk_k);
        }
      }
      commit_copies();
      write_stage = write_stage + 1 == kNumStages ? 0 : write_stage + 1;
    };
    int to_load = kNumStages - 1;  // tiles to start before the next one is multiplied

    float total[kThreadM] = {};
    for (int64_t first = 0; first < max_of(k, 1); first += step_k) {
      const int64_t begin = first + (split + warp) * chunk_k, end = min_of(k, begin + chunk_k);
      float acc[kThreadM] = {};
      TILEDMM_NO_UNROLL for (int64_t at = begin; at < end; at += kBlockK) {
        TILEDMM_NO_UNROLL for (; to_load > 0; --to_load) load_tile();
        to_load = 1;
        wait_copies<kNumStages - 2>();
        warp_barrier();  // the tile is whole, and nobody reads those before the last one any more
        const auto& stage = smem.stages[read_stage];
        const int left_k = int(min_of(end - at, kBlockK));
        int p = 0;
        TILEDMM_NO_UNROLL for (; p + kUnrolled <= left_k; p += kUnrolled) {
          TILEDMM_UNROLL for (int step = 0; step < kUnrolled; step += kVector) {
            multiply<Config, kVector>(stage.a, stage.b, lane_row, lane_col, p + step, acc);
          }
        }
        TILEDMM_NO_UNROLL for (; p + kVector <= left_k; p += kVector) {
          multiply<Config, kVector>(stage.a, stage.b, lane_row, lane_col, p, acc);
        }
        TILEDMM_NO_UNROLL for (; p < left_k; ++p) { multiply<Config, 1>(stage.a, stage.b, lane_row, lane_col, p, acc); }
        read_stage = read_stage + 1 == kNumStages ? 0 : read_stage + 1;
      }
      if (work.partial) {
        const GemmProblem sums =
            partial_problem(gemm, static_cast<float*>(work.partial), batch_idx * work.num_splits + split);
        TILEDMM_UNROLL for (int i = 0; i < kThreadM; ++i) {
          if (has_sums) store_element<float>(sums, lane_row + i * Config::kLanesM, col + lane_col, acc[i]);
        }
        warp_barrier();  // nobody reads the stages any more
        continue;
      }
      if (has_sums) {
        TILEDMM_UNROLL for (int i = 0; i < kThreadM; ++i) {
          store_shared(&smem.sums[lane_row + i * Config::kLanesM][lane_col], acc[i]);
        }
      }
      block_barrier();  // the chunks' sums are there
      for (int w = 0; warp == 0 && w < num_warps && first + w * chunk_k < max_of(k, 1); ++w) {
        TILEDMM_UNROLL for (int i = 0; i < kThreadM; ++i) {
          const float sum = load_shared(&all[w].sums[lane_row + i * Config::kLanesM][lane_col]);
          total[i] = first + w == 0 ? sum : total[i] + sum;
        }
      }
      block_barrier();  // nobody reads them any more
    }
    TILEDMM_UNROLL for (int i = 0; i < kThreadM; ++i) {
      if (warp == 0 && !work.partial && has_sums) {
        store_element<float>(gemm, lane_row + i * Config::kLanesM, col + lane_col, total[i]);
      }
    }
  }
}

template <class Config>
Status launch_few_rows(const FoldedProblem& problem, const FewRowsPlan& plan, const Executor& executor) {
  static_assert(sizeof(FewRowsShared<Config>) ==
                few_rows_shared_bytes(Config::kRows, Config::kCols, Config::kNumStages));
  ChunkSums<float> chunk_sums(problem, problem.gemm.n, executor);
  if (plan.num_splits > 1 && !chunk_sums.allocate()) return Status::out_of_memory;
  const FewRowsWork work{plan.num_warps, plan.cols, plan.num_splits, chunk_sums.sums};
  const Status status =
      launch_kernel(few_rows<Config>, ceil_div(problem.gemm.n, plan.cols) * plan.num_splits, num_batch_blocks(problem),
                    32 * plan.num_warps, plan.num_warps * sizeof(FewRowsShared<Config>), executor, work, problem);
  return status == Status::ok && plan.num_splits > 1 ? chunk_sums.add<float>() : status;
}

template <int COLS, int NUM_STAGES>
Status launch_few_rows(const FewRowsPlan& plan, const FoldedProblem& problem, const Executor& executor) {
  const auto launch = [&](auto rows) {
    constexpr int kRows = decltype(rows)::value;
    if (is_k_major(problem.gemm.stride_bn, problem.gemm.stride_bk)) {
      return launch_few_rows<FewRowsConfig<kRows, COLS, NUM_STAGES, true>>(problem, plan, executor);
    }
    return launch_few_rows<FewRowsConfig<kRows, COLS, NUM_STAGES, false>>(problem, plan, executor);
  };
  if (plan.rows == 1) return launch(std::integral_constant<int, 1>{});
  if (plan.rows == 4) return launch(std::integral_constant<int, 4>{});
  if constexpr (COLS == kFewCols) {
    if (plan.rows == 2) return launch(std::integral_constant<int, 2>{});
    if (plan.rows == 8) return launch(std::integral_constant<int, 8>{});
  }
  return Status::unsupported;
}

Status launch_few_rows(const FewRowsPlan& plan, const FoldedProblem& problem, const Executor& executor) {
  if (plan.width == kFewColsNarrow) return launch_few_rows<kFewColsNarrow, kFewStagesNarrow>(plan, problem, executor);
  return plan.num_stages == kFewStagesDeep ? launch_few_rows<kFewCols, kFewStagesDeep>(plan, problem, executor)
                                           : launch_few_rows<kFewCols, kFewStages>(plan, problem, executor);
}

}  // namespace
}  // namespace tiledmm::gpu

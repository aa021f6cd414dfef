// Rung 04, register_tiled: packed panels, a micro-tile of C held in registers, threads over block tiles.
//
// Since rung 02: C stays in registers for a whole chunk of k (thread_m x 2 vectors), so a multiply-add costs no load or
// store of C; A and B are packed, from any layout and dtype, in the order in which the micro-kernel reads them.
// Structure after Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008) and BLIS.
// Included once per instruction set by 04_register_tiled_<isa>.cpp. docs/NUMERICS.md states the order of summation.
#pragma once

#include <type_traits>

#include "core/config.h"
#include "kernels/cpu/kernels.h"
#include "platform/element.h"
#include "platform/parallel.h"
#include "platform/pack.h"
#include "platform/simd.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

#if TILEDMM_VECTOR_BYTES == 64
constexpr int kMaxThreadM = 14;  // 28 accumulators, 2 vectors of B, 1 broadcast of A: 31 of 32 registers
#elif defined(TILEDMM_ISA_NEON)
constexpr int kMaxThreadM = 12;  // 24 + 2 + 1 of 32
#else
constexpr int kMaxThreadM = 6;  // 12 + 2 + 1 of 16
#endif

template <class Op>
struct Config {
  using Word = typename Op::Word;
  using Acc = typename Op::Acc;
  static constexpr int kLanes = Simd<Word>::kLanes;
  static constexpr int kThreadN = int(kVectorsN) * kLanes;
  static constexpr int kStreamWords = 8;  // words of k that a pass over a streamed row of sums takes along
  static_assert(Simd<Acc>::kLanes == kLanes, "a vector of words is summed in one vector of accumulators");

  static CpuKernelShape shape(bool sums_in_c) {
    return {kLanes, kMaxThreadM, Op::kPerWord, int64_t(sizeof(Word)), int64_t(sizeof(Acc)), sums_in_c};
  }
};

// sums (+)= A * B for one micro-tile: `a` is [num_words][MR], `b` is [num_words][NV vectors].
// Writes columns < cols of MR rows. The one chain of multiply-adds of each element starts at zero.
template <class Op, int MR, int NV>
void multiply(int64_t num_words, const typename Op::Word* a, const typename Op::Word* b, typename Op::Acc* sums,
              int64_t ld_sums, bool accumulate, int64_t cols) {
  using Acc = typename Op::Acc;
  constexpr int kLanes = Config<Op>::kLanes;
  Reg<Acc> acc[MR][NV] = {};
  for (int64_t p = 0; p < num_words; ++p) {
    Reg<typename Op::Word> frag_b[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) frag_b[v] = load(b + v * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      const auto frag_a = broadcast(a[i]);
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) acc[i][v] = Op::multiply_add(frag_a, frag_b[v], acc[i][v]);
    }
    a += MR;
    b += NV * kLanes;
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      Acc* to = sums + i * ld_sums + v * kLanes;
      const int64_t count = cols - v * kLanes;
      if (count >= kLanes) {
        store(to, accumulate ? load(to) + acc[i][v] : acc[i][v]);
      } else if (count > 0) {
        store_partial(to, accumulate ? load_partial(to, count) + acc[i][v] : acc[i][v], count);
      }
    }
  }
}

template <class Op>
using Multiply = void (*)(int64_t, const typename Op::Word*, const typename Op::Word*, typename Op::Acc*, int64_t,
                          bool, int64_t);

// The micro-kernel for a tile of `rows` x `vectors`, both from 1.
template <class Op, int... I>
Multiply<Op> find_multiply(int64_t rows, int64_t vectors, std::integer_sequence<int, I...>) {
  static constexpr Multiply<Op> kTable[][kVectorsN] = {{multiply<Op, I + 1, 1>, multiply<Op, I + 1, 2>}...};
  return kTable[rows - 1][vectors - 1];
}
template <class Op>
Multiply<Op> find_multiply(int64_t rows, int64_t vectors) {
  return find_multiply<Op>(rows, vectors, std::make_integer_sequence<int, kMaxThreadM>{});
}

// C = activation(sums + bias) for rows x cols of C from (row, col).
template <class T, Activation ACT>
void store_block_tile(const GemmProblem& problem, int64_t row, int64_t rows, int64_t col, int64_t cols,
                      const Acc<T>* sums, int64_t ld_sums) {
  using A = Acc<T>;
  constexpr int kLanes = Simd<A>::kLanes;
  const T* bias = static_cast<const T*>(problem.bias);
  const bool bias_along_n = bias && problem.stride_bias_m == 0;
  for (int64_t j = 0; j < cols; j += kLanes) {
    const int64_t count = min_of(kLanes, cols - j);
    Reg<A> bias_n{};
    if (bias_along_n) {
      A values[kLanes] = {};
      for (int64_t l = 0; l < count; ++l) values[l] = to_acc(bias[(col + j + l) * problem.stride_bias_n]);
      bias_n = load(values);
    }
    for (int64_t i = 0; i < rows; ++i) {
      const A* from = sums + i * ld_sums + j;
      Reg<A> v = count == kLanes ? load(from) : load_partial(from, count);
      if (bias_along_n) v += bias_n;
      if (bias && !bias_along_n) v += broadcast(to_acc(bias[(row + i) * problem.stride_bias_m]));
      if constexpr (ACT != Activation::none) {
        A values[kLanes];
        store(values, v);
        for (int l = 0; l < kLanes; ++l) values[l] = activate<ACT>(values[l]);
        v = load(values);
      }
      T* to = static_cast<T*>(problem.c) + (row + i) * problem.stride_cm + (col + j) * problem.stride_cn;
      if (problem.stride_cn == 1) {
        store_converted(to, v, count);
      } else {
        for (int64_t l = 0; l < count; ++l) to[l * problem.stride_cn] = from_acc<T>(v[l]);
      }
    }
  }
}

template <class T>
void store_block_tile(const GemmProblem& problem, int64_t row, int64_t rows, int64_t col, int64_t cols,
                      const Acc<T>* sums, int64_t ld_sums) {
  auto store_as = &store_block_tile<T, Activation::none>;
  switch (problem.activation) {
    case Activation::none: break;
    case Activation::relu: store_as = &store_block_tile<T, Activation::relu>; break;
    case Activation::gelu: store_as = &store_block_tile<T, Activation::gelu>; break;
    case Activation::gelu_tanh: store_as = &store_block_tile<T, Activation::gelu_tanh>; break;
    case Activation::silu: store_as = &store_block_tile<T, Activation::silu>; break;
  }
  store_as(problem, row, rows, col, cols, sums, ld_sums);
}

// One block tile of C, on one thread.
template <class T, class Op>
struct BlockTile {
  using Word = typename Op::Word;
  using A = typename Op::Acc;
  static constexpr int kLanes = Config<Op>::kLanes;
  static constexpr int kThreadN = Config<Op>::kThreadN;
  static constexpr int64_t kChunk = kChunkWords * Op::kPerWord;  // elements of k

  const GemmProblem& problem;
  const CpuConfig& config;
  int64_t row, rows, col, cols;
  int64_t k_begin, k_end;  // k_begin is a multiple of kChunk
  Word *panel_a, *panel_b;
  A* sums;  // partial sums of this tile, [rows][ld_sums]; null: k is one chunk and they live in a micro-tile
  int64_t ld_sums;
  bool is_sums_in_c;  // sums is C itself
  bool is_finished;   // the last chunk is followed by the epilogue

  static int64_t num_words(int64_t elements) { return ceil_div(elements, Op::kPerWord); }
  static int64_t panel_a_words(const CpuConfig& config, int64_t k) {
    const int64_t rows = config.is_resident ? round_up(config.task_m, config.thread_m) : config.block_m;
    return rows * num_words(config.is_resident ? k : min_of(k, kChunk)) + kLanes;
  }
  static int64_t panel_b_words(const CpuConfig& config, int64_t k) {
    return config.is_streaming ? 0 : config.block_n * num_words(min_of(k, kChunk));
  }

  void load_panel_a(int64_t first, int64_t count, int64_t k_first, int64_t depth, Word* to) const {
    const T* a = static_cast<const T*>(problem.a) + (row + first) * problem.stride_am + k_first * problem.stride_ak;
    for (int64_t i = 0; i < count; i += config.thread_m) {
      pack_strip<T, Op>(a + i * problem.stride_am, problem.stride_am, problem.stride_ak,
                        min_of(config.thread_m, count - i), depth, to, min_of(config.thread_m, count - i));
      to += config.thread_m * num_words(depth);
    }
  }

  void load_strip_b(int64_t first, int64_t count, int64_t k_first, int64_t depth, Word* to) const {
    const T* b = static_cast<const T*>(problem.b) + (col + first) * problem.stride_bn + k_first * problem.stride_bk;
    pack_strip<T, Op>(b, problem.stride_bn, problem.stride_bk, count, depth, to, round_up(count, kLanes));
  }

  void run() const { config.is_streaming ? run_streaming() : run_packed(); }

  void run_packed() const {
    const bool has_epilogue = !is_sums_in_c || problem.bias || problem.activation != Activation::none;
    for (int64_t jc = 0; jc < cols; jc += config.block_n) {
      const int64_t block_cols = min_of(config.block_n, cols - jc);
      int64_t pc = k_begin;
      do {  // once for k = 0, too
        const int64_t depth = min_of(kChunk, k_end - pc), words = num_words(depth);
        const bool is_last = pc + depth >= k_end;
        for (int64_t ic = 0; ic < rows; ic += config.block_m) {
          const int64_t block_rows = min_of(config.block_m, rows - ic);
          Word* near_a = panel_a;
          if (config.is_resident) near_a += num_words(pc - k_begin) * round_up(rows, config.thread_m) + ic * words;
          if (!config.is_resident || jc == 0) load_panel_a(ic, block_rows, pc, depth, near_a);
          for (int64_t ir = 0; ir < block_rows; ir += config.thread_m) {
            const int64_t tile_rows = min_of(config.thread_m, block_rows - ir);
            for (int64_t jr = 0; jr < block_cols; jr += kThreadN) {
              const int64_t tile_cols = min_of(kThreadN, block_cols - jr);
              // The strip is packed when it is first needed, so that its first use finds it in the nearest cache.
              Word* near_b = panel_b + jr * words;
              if (ic == 0 && ir == 0) load_strip_b(jc + jr, tile_cols, pc, depth, near_b);
              multiply_tile(words, near_a + ir * words, near_b, ic + ir, tile_rows, jc + jr, tile_cols, pc > k_begin,
                            is_last && is_finished && has_epilogue);
            }
          }
        }
        pc += depth;
      } while (pc < k_end);
    }
  }

  void multiply_tile(int64_t words, const Word* a, const Word* b, int64_t i, int64_t tile_rows, int64_t j,
                     int64_t tile_cols, bool accumulate, bool is_stored) const {
    alignas(64) A near_sums[kMaxThreadM * kThreadN];
    A* tile = sums ? sums + i * ld_sums + j : near_sums;
    const int64_t ld_tile = sums ? ld_sums : kThreadN;
    find_multiply<Op>(tile_rows, ceil_div(tile_cols, kLanes))(words, a, b, tile, ld_tile, accumulate, tile_cols);
    if (is_stored) store_block_tile<T>(problem, row + i, tile_rows, col + j, tile_cols, tile, ld_tile);
  }

  // Few rows and B contiguous along n: rows of B go from memory through registers into rows of sums, kStreamWords rows
  // at a time, in long contiguous runs. Same chains, same chunks, same bits as run_packed.
  void run_streaming() const {
    constexpr int kStreamWords = Config<Op>::kStreamWords;
    const int64_t words_a = num_words(min_of(kChunk, k_end - k_begin));
    const int64_t width = stream_width(rows);
    A* chunk_sums = reinterpret_cast<A*>(panel_a + round_up(rows * words_a + kLanes, kLanes));
    A* total = chunk_sums + rows * width;
    for (int64_t jc = 0; jc < cols; jc += width) {
      const int64_t block_cols = min_of(width, cols - jc);
      for (int64_t pc = k_begin; pc < k_end || pc == k_begin; pc += kChunk) {
        const int64_t depth = min_of(kChunk, k_end - pc), words = num_words(depth);
        load_panel_a(0, rows, pc, depth, panel_a);
        const T* b = static_cast<const T*>(problem.b) + (col + jc) + pc * problem.stride_bk;
        A* to = pc == k_begin ? total : chunk_sums;
        for (int64_t e = 0; e < rows * width; ++e) to[e] = 0;
        for (int64_t p = 0; p < words; p += kStreamWords) {
          const int64_t count = min_of(kStreamWords, words - p);
          for (int64_t j = 0; j < block_cols; j += kLanes) {
            Reg<Word> frag_b[kStreamWords] = {};
            for (int64_t q = 0; q < count; ++q) {
              const int64_t k_word = (p + q) * Op::kPerWord;
              frag_b[q] = Op::load_lanes(b + k_word * problem.stride_bk + j, problem.stride_bk, depth - k_word,
                                         min_of(kLanes, block_cols - j));
            }
            multiply_rows(panel_a + p * rows, frag_b, count, to + j, width);
          }
        }
        if (pc > k_begin) {
          for (int64_t e = 0; e < rows * width; ++e) total[e] += chunk_sums[e];
        }
      }
      if (is_finished) {
        store_block_tile<T>(problem, row, rows, col + jc, block_cols, total, width);
      } else {
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < block_cols; ++j) sums[i * ld_sums + jc + j] = total[i * width + j];
        }
      }
    }
  }

  void multiply_rows(const Word* a, const Reg<Word> (&frag_b)[Config<Op>::kStreamWords], int64_t count, A* to,
                     int64_t ld_to) const {
    for (int64_t i = 0; i < rows; ++i) {
      Reg<A> acc = load(to + i * ld_to);
      if (count == Config<Op>::kStreamWords) {
#pragma GCC unroll 8
        for (int q = 0; q < Config<Op>::kStreamWords; ++q) {
          acc = Op::multiply_add(broadcast(a[q * rows + i]), frag_b[q], acc);
        }
      } else {
        for (int64_t q = 0; q < count; ++q) acc = Op::multiply_add(broadcast(a[q * rows + i]), frag_b[q], acc);
      }
      store(to + i * ld_to, acc);
    }
  }

  // Columns of one streaming pass: both rows of sums stay in half of a 32 KiB first-level cache.
  static int64_t stream_width(int64_t rows) {
    return max_of(4 * kLanes, (8 << 10) / int64_t(sizeof(A)) / rows / kLanes * kLanes);
  }
};

template <class T, class Op>
Status launch_as(const GemmProblem& problem, const Executor& executor) {
  using Tile = BlockTile<T, Op>;
  using Word = typename Op::Word;
  using A = typename Op::Acc;
  const bool is_sums_in_c = std::is_same_v<T, A> && problem.stride_cn == 1;
  const int64_t batch = batch_size(problem);
  const CpuConfig config = choose_cpu_config(problem.m, problem.n, problem.k, batch, problem.stride_bn == 1,
                                             executor.num_threads, Config<Op>::shape(is_sums_in_c));
  const bool is_chunked = problem.k > Tile::kChunk;
  const int64_t ld_sums = round_up(min_of(config.task_n, problem.n), Config<Op>::kThreadN);

  const int64_t bytes_a = round_up(Tile::panel_a_words(config, problem.k) * int64_t(sizeof(Word)), 64);
  const int64_t bytes_b = round_up(Tile::panel_b_words(config, problem.k) * int64_t(sizeof(Word)), 64);
  const int64_t stream_sums = config.is_streaming ? 2 * config.task_m * Tile::stream_width(config.task_m) : 0;
  // In-order partial sums: C serves when it can; streaming brings its own.
  const bool needs_sums = is_chunked && !is_sums_in_c && !config.is_streaming && config.split_k == 1;
  const int64_t bytes_sums =
      round_up((stream_sums + (needs_sums ? config.task_m * ld_sums : 0)) * int64_t(sizeof(A)), 64);
  const int64_t bytes_task = bytes_a + bytes_b + bytes_sums;
  const int64_t num_tiles = batch * config.tasks_m * config.tasks_n;
  const int64_t num_workers = min_of(executor.num_threads, config.split_k > 1 ? config.split_k : num_tiles);
  // Split k: the sums of split_k chunks, and their running total.
  const int64_t bytes_split = config.split_k > 1 ? (config.split_k + 1) * problem.m * ld_sums * int64_t(sizeof(A)) : 0;

  alignas(64) char near_workspace[16 << 10];
  const int64_t bytes = num_workers * bytes_task + bytes_split;
  const bool is_near = bytes <= int64_t(sizeof near_workspace);
  char* workspace = is_near ? near_workspace : static_cast<char*>(executor.allocate(executor.self, size_t(bytes)));
  if (!workspace) return Status::out_of_memory;

  const auto make_tile = [&](const GemmProblem& item, int64_t worker_idx) {
    char* own = workspace + worker_idx * bytes_task;
    return Tile{item,        config,
                0,           problem.m,
                0,           problem.n,
                0,           problem.k,
                reinterpret_cast<Word*>(own), reinterpret_cast<Word*>(own + bytes_a),
                nullptr,     ld_sums,
                false,       true};
  };

  if (config.split_k == 1) {
    parallel_for(executor, num_workers, [&](int64_t worker_idx) {
      const int64_t end = num_tiles * (worker_idx + 1) / num_workers;
      for (int64_t idx = num_tiles * worker_idx / num_workers; idx < end; ++idx) {
        const GemmProblem item = batch_item(problem, idx / (config.tasks_m * config.tasks_n));
        const int64_t tile_idx = idx % (config.tasks_m * config.tasks_n);
        Tile tile = make_tile(item, worker_idx);
        tile.row = tile_idx / config.tasks_n * config.task_m;
        tile.col = tile_idx % config.tasks_n * config.task_n;
        tile.rows = min_of(config.task_m, problem.m - tile.row);
        tile.cols = min_of(config.task_n, problem.n - tile.col);
        if constexpr (std::is_same_v<T, A>) {
          if (is_sums_in_c) {
            tile.sums = static_cast<A*>(item.c) + tile.row * problem.stride_cm + tile.col;
            tile.ld_sums = problem.stride_cm;
            tile.is_sums_in_c = true;
          }
        }
        if (needs_sums) tile.sums = reinterpret_cast<A*>(tile.panel_b) + bytes_b / int64_t(sizeof(A));
        tile.run();
      }
    });
  } else {
    // Chunks of k side by side, split_k at a time; then their sums are added up in the order of k.
    A* parts = reinterpret_cast<A*>(workspace + num_workers * bytes_task);
    A* total = parts + config.split_k * problem.m * ld_sums;
    for (int64_t first = 0; first < problem.k; first += config.split_k * Tile::kChunk) {
      const int64_t count = min_of(config.split_k, ceil_div(problem.k - first, Tile::kChunk));
      parallel_for(executor, num_workers, [&](int64_t worker_idx) {
        for (int64_t part = count * worker_idx / num_workers; part < count * (worker_idx + 1) / num_workers; ++part) {
          Tile tile = make_tile(problem, worker_idx);
          tile.k_begin = first + part * Tile::kChunk;
          tile.k_end = min_of(problem.k, tile.k_begin + Tile::kChunk);
          tile.sums = parts + part * problem.m * ld_sums;
          tile.is_finished = false;
          tile.run();
        }
      });
      for (int64_t part = 0; part < count; ++part) {
        const A* from = parts + part * problem.m * ld_sums;
        const bool is_first = first == 0 && part == 0;
        for (int64_t e = 0; e < problem.m * ld_sums; ++e) total[e] = is_first ? from[e] : total[e] + from[e];
      }
    }
    store_block_tile<T>(problem, 0, problem.m, 0, problem.n, total, ld_sums);
  }
  if (!is_near) executor.release(executor.self, workspace);
  return Status::ok;
}

// The operand roles are exchanged (C^T = B^T A^T) where C is column-major or where that fills the vectors better.
// Products commute, so no bit depends on it.
template <class T, class Op>
Status launch_oriented(const GemmProblem& problem, const Executor& executor) {
  constexpr int kLanes = Config<Op>::kLanes;
  const double vectors = double(problem.m) * double(ceil_div(problem.n, kLanes));
  const double vectors_exchanged = double(problem.n) * double(ceil_div(problem.m, kLanes));
  const bool is_c_column_major = problem.stride_cm == 1 && problem.stride_cn != 1 && problem.m > 1;
  // A strided store of C costs about two vector operations an element.
  const double words = double(ceil_div(problem.k, Op::kPerWord));
  const double stores = 2.0 * double(problem.m) * double(problem.n);
  const bool is_exchanged = vectors * words + (is_c_column_major ? stores : 0) >
                            vectors_exchanged * words + (is_c_column_major || problem.n == 1 ? 0 : stores);
  if (!is_exchanged) return launch_as<T, Op>(problem, executor);
  GemmProblem exchanged = problem;
  exchanged.m = problem.n;
  exchanged.n = problem.m;
  exchanged.a = problem.b;
  exchanged.stride_am = problem.stride_bn;
  exchanged.stride_ak = problem.stride_bk;
  exchanged.b = problem.a;
  exchanged.stride_bk = problem.stride_ak;
  exchanged.stride_bn = problem.stride_am;
  exchanged.stride_cm = problem.stride_cn;
  exchanged.stride_cn = problem.stride_cm;
  exchanged.stride_bias_m = problem.stride_bias_n;
  exchanged.stride_bias_n = problem.stride_bias_m;
  BatchDim dims[kMaxBatchDims];
  for (int32_t d = 0; d < problem.num_batch_dims; ++d) {
    const BatchDim& dim = problem.batch_dims[d];
    dims[d] = {dim.size, dim.stride_b, dim.stride_a, dim.stride_c};
  }
  exchanged.batch_dims = dims;
  return launch_as<T, Op>(exchanged, executor);
}

Status launch(const GemmProblem& problem, const Executor& executor) {
  switch (problem.dtype) {
    case DType::f32: return launch_oriented<float, Fma<float, float>>(problem, executor);
    case DType::f64: return launch_oriented<double, Fma<double, double>>(problem, executor);
    case DType::f16: return launch_oriented<Half, Fma<Half, float>>(problem, executor);
    default:
#if defined(TILEDMM_ISA_AVX512_BF16)
      return launch_oriented<BFloat16, DotBf16>(problem, executor);
#else
      return launch_oriented<BFloat16, Fma<BFloat16, float>>(problem, executor);
#endif
  }
}

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

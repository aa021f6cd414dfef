// Rung 04, register_tiled: packed panels, a micro-tile of C held in registers, threads over block tiles.
//
// Since rung 02: C stays in registers for a whole chunk of k, so a multiply-add costs no load or store of C; A and B
// are packed, from any layout and dtype, in the order in which the micro-kernel reads them; few rows have paths of
// their own. Structure after Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008) and
// BLIS. Ours is the order of summation, in blocks of 128 bits along k, which a dot product and an outer product can
// both follow. Included once per instruction set by 04_register_tiled_<isa>.cpp.
#pragma once

#include <type_traits>

#include "kernels/cpu/04_register_tiled/long_dot.h"
#include "kernels/cpu/04_register_tiled/micro_kernel.h"
#include "kernels/cpu/04_register_tiled/plan.h"
#include "kernels/cpu/04_register_tiled/variants.h"
#include "platform/element.h"
#include "platform/epilogue.h"
#include "platform/pack.h"
#include "platform/parallel.h"
#include "platform/simd.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

// One block tile of C, on one thread.
template <class T, class Op>
struct BlockTile {
  using Word = typename Op::Word;
  using A = typename Op::Acc;
  static constexpr int kLanes = Config<Op>::kLanes;
  static constexpr int kWords = Config<Op>::kWords;
  static constexpr int kStep = Config<Op>::kStep;
  static constexpr int64_t kChunk = Config<Op>::kChunk;
  static constexpr int64_t kShortColumns = 2048;  // columns of B that short_k packs at a time
  static constexpr int kPassWords = 4 * kWords;   // words of k that one pass of stream_rows takes along
  // Columns of B, contiguous along n, that are packed at a time.
  static constexpr int64_t kGroupColumns = AheadB::kBytes / int64_t(sizeof(T));
  static_assert(kGroupColumns % kThreadN == 0, "a group of columns consists of whole strips");

  const GemmProblem& problem;
  const CpuConfig& config;
  int64_t row, rows, col, cols;
  int64_t k_begin, k_end;  // k_begin is a multiple of kChunk
  char* workspace;
  A* sums;  // partial sums [rows][ld_sums]; null: k is one chunk and they live in a micro-tile
  int64_t ld_sums;
  bool sums_cover_one_block;  // sums holds block_n columns at a time, not all of the tile's
  bool sums_are_c;            // sums is C itself
  bool is_finished;           // the last chunk is followed by the epilogue

  static int64_t words_per_lane(int64_t depth) { return ceil_div(depth, kStep) * kWords; }
  // From strip to strip of a panel, for each lane: a block more, else strips of a whole chunk would begin in one set of
  // the nearest cache, and they are written side by side.
  static int64_t strip_words(int64_t depth) { return words_per_lane(depth) + kWords; }

  // Bytes that a tile needs for its panels and, in stream_rows, for its sums.
  static int64_t panel_a_bytes(const CpuConfig& config, int64_t k) {
    const int64_t rows = config.path == CpuPath::packed && !config.is_resident ? config.block_m : config.task_m;
    const int64_t chunks = config.is_resident ? max_of(1, ceil_div(k, kChunk)) : 1;
    return round_up(round_up(rows, config.thread_m) * strip_words(min_of(k, kChunk)) * chunks * int64_t(sizeof(Word)),
                    64);
  }
  // Packed B is read again by the next block of rows.
  static bool is_b_kept(const CpuConfig& config) { return config.block_m < config.task_m; }
  static int64_t workspace_bytes(const CpuConfig& config, int64_t k) {
    int64_t bytes = panel_a_bytes(config, k);
    if (config.path == CpuPath::packed) {
      const int64_t columns = is_b_kept(config) ? config.block_n : min_of(config.block_n, kGroupColumns);
      bytes += columns * strip_words(min_of(k, kChunk)) * int64_t(sizeof(Word));
    }
    if (config.path == CpuPath::short_k) bytes = kWords * kShortColumns * int64_t(sizeof(Word));
    if (config.path == CpuPath::stream_rows)
      bytes += (kWords + 1) * config.task_m * stream_width(config) * int64_t(sizeof(A));
    return round_up(bytes, 64);
  }

  // Inline, with the paths that store C in their innermost loops: else every store makes g++ load the tile's numbers
  // again (768x768x1: 50 us, called 85).
  TILEDMM_INLINE void run() const {
    switch (config.path) {
      case CpuPath::packed:
        return run_packed();
      case CpuPath::stream_rows:
        return run_stream_rows();
      case CpuPath::dot_rows:
        return run_dot_rows();
      case CpuPath::short_k:
        return problem.k <= Op::kPerWord ? run_short_k<1>() : run_short_k<kWords>();
      case CpuPath::long_dots:
        return;  // launch_dots has no tiles
    }
  }

  // Packs `count` rows of A from `first`, `strip` to a strip, for `depth` of k from k_first.
  void load_rows_a(int64_t first, int64_t count, int64_t strip, int64_t k_first, int64_t depth, Word* to,
                   [[maybe_unused]] bool is_along_m = false) const {
    const T* from = static_cast<const T*>(problem.a) + first * problem.stride_am + k_first * problem.stride_ak;
#if TILEDMM_VECTOR_BYTES == 64
    if (is_along_m) {
      return pack_rows_along_m<T, Op>(from, problem.stride_am, problem.stride_ak, count, strip, depth, to,
                                      strip_words(depth));
    }
#endif
    pack_rows<T, Op>(from, problem.stride_am, problem.stride_ak, count, strip, depth, to, strip_words(depth));
  }
  // Strips of columns of B.
  void load_strips_b(int64_t first, int64_t count, int64_t k_first, int64_t depth, Word* to) const {
    const T* from = static_cast<const T*>(problem.b) + first * problem.stride_bn + k_first * problem.stride_bk;
    pack_strips<T, Op, kThreadN, kIsAlongN>(from, problem.stride_bn, problem.stride_bk, count, depth, to,
                                            strip_words(depth));
  }

  // A is used where it lies: words need no conversion, k is contiguous and consists of all that a micro-kernel reads.
  bool is_a_in_place() const {
    return sizeof(T) * Op::kPerWord == sizeof(Word) && problem.stride_ak == 1 &&
           (k_end - k_begin) % (kIsAlongN ? Op::kPerWord : kStep) == 0;
  }

  TILEDMM_INLINE void run_packed() const {
    const bool in_place = is_a_in_place(), is_along_m = kIsAlongN && problem.stride_ak != 1;
    // Columns of B contiguous along n are read in runs of cache lines, as many strips at a time.
    const int64_t group_cols = problem.stride_bk == 1 ? kThreadN : kGroupColumns;
    AheadB ahead;
    Word* panel_a = reinterpret_cast<Word*>(workspace);
    Word* panel_b = reinterpret_cast<Word*>(workspace + panel_a_bytes(config, k_end - k_begin));
    for (int64_t jc = 0; jc < cols; jc += config.block_n) {
      const int64_t block_cols = min_of(config.block_n, cols - jc);
      int64_t pc = k_begin;
      do {  // once for k = 0, too
        const int64_t depth = min_of(kChunk, k_end - pc), words = strip_words(depth);
        for (int64_t ic = 0; ic < rows; ic += config.block_m) {
          const int64_t block_rows = min_of(config.block_m, rows - ic);
          Word* block_a = panel_a;
          if (config.is_resident) block_a += (pc - k_begin) / kChunk * strip_words(kChunk) * rows + ic * words;
          if (!in_place && (!config.is_resident || jc == 0)) {
            load_rows_a(row + ic, block_rows, config.thread_m, pc, depth, block_a, is_along_m);
          }
          for (int64_t jr = 0; jr < block_cols; jr += kThreadN) {
            const int64_t tile_cols = min_of(kThreadN, block_cols - jr);
            Word* strip_b = panel_b + (is_b_kept(config) ? jr : jr % group_cols) * words;
            // Packed when they are first needed, so that their first use finds them in a near cache.
            if (ic == 0 && jr % group_cols == 0) {
              load_strips_b(col + jc + jr, min_of(group_cols, block_cols - jr), pc, depth, strip_b);
              ahead = find_ahead(jc, jr + group_cols, pc, group_cols, block_rows);
            }
            for (int64_t ir = 0; ir < block_rows; ir += config.thread_m) {
              const int64_t tile_rows = min_of(config.thread_m, block_rows - ir);
              const RowsA rows_a =
                  in_place ? rows_in_place(ic + ir, pc) : rows_packed(block_a + ir * words, tile_rows, is_along_m);
              multiply_tile(ceil_div(depth, Op::kPerWord), rows_a, strip_b, ic + ir, tile_rows, jc, jr, tile_cols, pc,
                            ahead);
            }
          }
        }
        pc += depth;
      } while (pc < k_end);
    }
  }

  // The group of columns that is packed after the one that ends at jr; it comes while that one is multiplied.
  AheadB find_ahead(int64_t jc, int64_t jr, int64_t pc, int64_t group_cols, int64_t block_rows) const {
    if (problem.n * problem.k * int64_t(sizeof(T)) <= kNearBytes) return {};
    const int64_t tiles = group_cols / kThreadN * ceil_div(block_rows, config.thread_m);
    const int64_t blocks = tiles * ceil_div(min_of(kChunk, k_end - pc), kStep);
    if (jr >= min_of(config.block_n, cols - jc)) {
      jr = 0;
      pc += kChunk;
    }
    if (pc >= problem.k) {  // beyond k_end is what this thread's next part of a split k begins with
      pc = k_begin;
      jc += config.block_n;
    }
    if (jc >= cols) return {};
    const int64_t depth = min_of(kChunk, problem.k - pc);
    const int64_t bytes_n = problem.stride_bn * int64_t(sizeof(T)), bytes_k = problem.stride_bk * int64_t(sizeof(T));
    const char* piece = static_cast<const char*>(problem.b) + (col + jc + jr) * bytes_n + pc * bytes_k;
    const int64_t lanes = min_of(group_cols, min_of(config.block_n, cols - jc) - jr);
    AheadB ahead = problem.stride_bk == 1
                       ? AheadB{piece, bytes_n, lanes, AheadB::kBytes, ceil_div(depth * bytes_k, AheadB::kBytes), 1, 0}
                       : AheadB{piece, 0, 1, bytes_k, depth, 1, 0};
    ahead.interval = max_of(1, blocks / max_of(1, ahead.lanes * ahead.steps_left));
    return ahead;
  }

  RowsA rows_in_place(int64_t i, int64_t pc) const {
    const T* a = static_cast<const T*>(problem.a) + (row + i) * problem.stride_am + pc;
    return {reinterpret_cast<const char*>(a), problem.stride_am * int64_t(sizeof(T)), sizeof(Word), kBlockBytes};
  }
  static RowsA rows_packed(const Word* strip, int64_t tile_rows, bool is_along_m) {
    const char* base = reinterpret_cast<const char*>(strip);
    constexpr int64_t kWordBytes = sizeof(Word);
    return is_along_m ? RowsA{base, kWordBytes, tile_rows * kWordBytes, tile_rows * kBlockBytes}
                      : RowsA{base, kBlockBytes, kWordBytes, tile_rows * kBlockBytes};
  }

  void multiply_tile(int64_t words, const RowsA& a, const Word* b, int64_t i, int64_t tile_rows, int64_t jc, int64_t jr,
                     int64_t tile_cols, int64_t pc, AheadB& ahead) const {
    const int64_t j = jc + jr;
    constexpr auto kRows = std::make_integer_sequence<int, kMaxThreadM>{};
    const bool is_first = pc == k_begin, is_last = pc + kChunk >= k_end;
    const bool is_plain = !problem.bias && problem.activation == Activation::none && problem.stride_cn == 1;
    if (is_plain && is_finished && is_first && is_last) {
      T* to = static_cast<T*>(problem.c) + (row + i) * problem.stride_cm + col + j;
      return find_multiply<Op, T>(tile_rows, tile_cols, kRows)(words, a, b, to, problem.stride_cm, false, tile_cols,
                                                               ahead);
    }
    alignas(64) A near_sums[kMaxThreadM * kThreadN];
    A* tile = sums ? sums + i * ld_sums + (sums_cover_one_block ? jr : j) : near_sums;
    const int64_t ld_tile = sums ? ld_sums : kThreadN;
    find_multiply<Op, A>(tile_rows, tile_cols, kRows)(words, a, b, tile, ld_tile, !is_first, tile_cols, ahead);
    if (is_last && is_finished && !(sums_are_c && is_plain)) {
      store_block_tile<T>(problem, row + i, tile_rows, col + j, tile_cols, tile, ld_tile);
    }
  }

  // Columns of one pass of stream_rows, for a task: its sums stay in the nearest cache, in runs of whole pages of B
  // where rows allow. Rows of sums are an odd number of vectors apart, so that they do not begin in one set of it.
  static int64_t stream_width(const CpuConfig& config) {
    const int64_t fitting = (128 << 10) / int64_t(sizeof(A)) / (kWords + 1) / config.task_m / kLanes * kLanes;
    return min_of(max_of(4 * kLanes, fitting), (ceil_div(config.task_n, kLanes) | 1) * kLanes);
  }

  // Few rows and B contiguous along n: rows of B go from memory through registers into rows of sums, in long contiguous
  // runs, one row of sums for each place in a block. Same chains, same chunks, same bits as run_packed.
  void run_stream_rows() const {
    Word* panel_a = reinterpret_cast<Word*>(workspace);
    A* chains = reinterpret_cast<A*>(workspace + panel_a_bytes(config, k_end - k_begin));
    const int64_t width = stream_width(config);
    A* total = chains + kWords * rows * width;
    for (int64_t jc = 0; jc < cols; jc += width) {
      const int64_t block_cols = min_of(width, cols - jc);
      int64_t pc = k_begin;
      do {
        const int64_t depth = min_of(kChunk, k_end - pc), words = words_per_lane(depth);
        load_rows_a(row, rows, rows, pc, depth, panel_a);
        const T* b = static_cast<const T*>(problem.b) + (col + jc) * problem.stride_bn + pc * problem.stride_bk;
        for (int64_t e = 0; e < kWords * rows * width; ++e) chains[e] = 0;
        for (int64_t word = 0; word < words; word += kPassWords) {
          stream_pass(panel_a + word * rows, b + word * Op::kPerWord * problem.stride_bk, depth - word * Op::kPerWord,
                      block_cols, chains, width);
        }
        for (int64_t e = 0; e < rows * width; e += kLanes) {
          Reg<A> parts[kWords];
          for (int w = 0; w < kWords; ++w) parts[w] = load(chains + w * rows * width + e);
          const Reg<A> sum = sum_chains(parts);
          store(total + e, pc > k_begin ? load(total + e) + sum : sum);
        }
        pc += depth;
      } while (pc < k_end);
      if (is_finished) {
        store_block_tile<T>(problem, row, rows, col + jc, block_cols, total, width);
      } else {
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < block_cols; ++j) sums[i * ld_sums + jc + j] = total[i * width + j];
        }
      }
    }
  }

  void stream_pass(const Word* a, const T* b, int64_t depth, int64_t block_cols, A* chains, int64_t width) const {
    const int64_t words = min_of(kPassWords, words_per_lane(depth));
    const bool is_whole = depth >= kPassWords * Op::kPerWord;
    for (int64_t j = 0; j < block_cols; j += kLanes) {
      Reg<Word> frag_b[kPassWords];
      if (is_whole && block_cols - j >= kLanes) {
#pragma GCC unroll 16
        for (int w = 0; w < kPassWords; ++w) {
          frag_b[w] = Op::template load_lanes<TILEDMM_VECTOR_BYTES>(b + w * Op::kPerWord * problem.stride_bk + j,
                                                                    problem.stride_bk);
        }
      } else {
        Word near[kPassWords][kLanes] = {};
        for (int w = 0; w * Op::kPerWord < depth && w < kPassWords; ++w) {
          for (int64_t l = 0; l < min_of(kLanes, block_cols - j); ++l) {
            near[w][l] = Op::load_word(b + w * Op::kPerWord * problem.stride_bk + j + l, problem.stride_bk,
                                       depth - w * Op::kPerWord);
          }
        }
        for (int w = 0; w < kPassWords; ++w) frag_b[w] = load(near[w]);
      }
      if (words == kPassWords) {
        multiply_rows<kPassWords>(a, frag_b, chains + j, width);
      } else {
        for (int64_t w = 0; w < words; w += kWords) {
          const Reg<Word>(&block)[kWords] = *reinterpret_cast<const Reg<Word>(*)[kWords]>(frag_b + w);
          multiply_rows<kWords>(a + w * rows, block, chains + j, width);
        }
      }
    }
  }

  template <int WORDS>
  void multiply_rows(const Word* a, const Reg<Word> (&frag_b)[WORDS], A* chains, int64_t width) const {
    for (int64_t i = 0; i < rows; ++i) {
#pragma GCC unroll 4
      for (int chain = 0; chain < kWords; ++chain) {
        A* to = chains + (chain * rows + i) * width;
        Reg<A> acc = load(to);
#pragma GCC unroll 4
        for (int w = chain; w < WORDS; w += kWords) {
          acc = Op::multiply_add(broadcast(a[(w / kWords * rows + i) * kWords + chain]), frag_b[w], acc);
        }
        store(to, acc);
      }
    }
  }

  // k of WORDS words, at most one block: C is written row by row and bounds the time. Same chains as run_packed.
  template <int WORDS>
  TILEDMM_INLINE void run_short_k() const {
    Word* panel_b = reinterpret_cast<Word*>(workspace);
    const bool is_plain = !problem.bias && problem.activation == Activation::none && problem.stride_cn == 1;
    for (int64_t jc = 0; jc < cols; jc += kShortColumns) {
      const int64_t block_cols = min_of(kShortColumns, cols - jc), ld = round_up(block_cols, kLanes);
      for (int64_t w = 0; w < WORDS; ++w) {
        const T* b =
            static_cast<const T*>(problem.b) + (col + jc) * problem.stride_bn + w * Op::kPerWord * problem.stride_bk;
        for (int64_t j = 0; j < ld; j += kLanes) {
          store(panel_b + w * ld + j,
                load_lanes<T, Op>(b + j, 1, problem.stride_bk, block_cols - j, problem.k - w * Op::kPerWord));
        }
      }
      for (int64_t i = row; i < row + rows; ++i) {
        Reg<Word> frag_a[kWords] = {};
        for (int w = 0; w * Op::kPerWord < problem.k; ++w) {
          const T* a = static_cast<const T*>(problem.a) + i * problem.stride_am + w * Op::kPerWord * problem.stride_ak;
          frag_a[w] = broadcast(Op::load_word(a, problem.stride_ak, problem.k - w * Op::kPerWord));
        }
        for (int64_t j = 0; j < block_cols; j += kLanes) {
          Reg<A> chains[kWords] = {};
#pragma GCC unroll 4
          for (int w = 0; w < WORDS; ++w) chains[w] = Op::multiply_add(frag_a[w], load(panel_b + w * ld + j), Reg<A>{});
          const int64_t count = min_of(kLanes, block_cols - j);
          const Reg<A> sum = sum_chains(chains);
          if (is_plain) {
            T* to = static_cast<T*>(problem.c) + i * problem.stride_cm + col + jc + j;
            store_converted(to, sum, count);
          } else {
            A near_sums[kLanes];
            store(near_sums, sum);
            store_block_tile<T>(problem, i, 1, col + jc + j, count, near_sums, kLanes);
          }
        }
      }
    }
  }

  // Few rows and B contiguous along k: every block of B is used where it lies, a block-wide dot product a column.
  void run_dot_rows() const {
    switch (rows) {
      case 1:
        return dot_rows<1, kMaxThreadM >= 5 ? 8 : 4>();
      case 2:
        return dot_rows<2, kMaxThreadM >= 5 ? 8 : 4>();
      case 3:
        return dot_rows<3, 4>();
      default:
        return dot_rows<4, 4>();
    }
  }

  template <int MR, int COLS>
  void dot_rows() const {
    Word* panel_a = reinterpret_cast<Word*>(workspace);
    for (int64_t pc = k_begin; pc < k_end; pc += kChunk) {
      load_rows_a(row, rows, rows, pc, min_of(kChunk, k_end - pc), panel_a + (pc - k_begin) / Op::kPerWord * MR);
    }
    // The next columns come from memory while these are multiplied. Nearer ones are faster without (10 %).
    const bool is_far = problem.n * problem.k * int64_t(sizeof(T)) >= kFarBytes;
    const auto dot = is_far ? &dot_chunk<MR, COLS, true> : &dot_chunk<MR, COLS, false>;
    for (int64_t j = 0; j < cols; j += COLS) {
      const int64_t tile_cols = min_of(COLS, cols - j);
      const T* b[COLS];  // columns beyond the last repeat it, their sums are dropped
      for (int c = 0; c < COLS; ++c) {
        b[c] = static_cast<const T*>(problem.b) + (col + min_of(j + c, cols - 1)) * problem.stride_bn;
      }
      A total[MR][COLS] = {};
      for (int64_t pc = k_begin; pc < k_end; pc += kChunk) {
        dot(panel_a + (pc - k_begin) / Op::kPerWord * MR, b, problem.stride_bn, pc, min_of(kChunk, k_end - pc), total,
            pc > k_begin);
      }
      if (is_finished) {
        store_block_tile<T>(problem, row, MR, col + j, tile_cols, total[0], COLS);
      } else {
        for (int i = 0; i < MR; ++i) {
          for (int64_t c = 0; c < tile_cols; ++c) sums[i * ld_sums + j + c] = total[i][c];
        }
      }
    }
  }

  template <int MR, int COLS, bool IS_FAR>
  static void dot_chunk(const Word* a, const T* const (&b)[COLS], [[maybe_unused]] int64_t stride_bn, int64_t k_first,
                        int64_t depth, A (&total)[MR][COLS], bool accumulate) {
    Block<A> acc[MR][COLS] = {};
    const int64_t whole_steps = depth / kStep;
    const auto multiply_step = [&](const Block<Word>(&frag_b)[COLS]) {
#pragma GCC unroll 4
      for (int i = 0; i < MR; ++i) {
        const auto frag_a = load_as<Block<Word>>(a + i * kWords);
#pragma GCC unroll 8
        for (int c = 0; c < COLS; ++c) acc[i][c] = Op::multiply_add(frag_a, frag_b[c], acc[i][c]);
      }
      a += MR * kWords;
    };
    Block<Word> frag_b[COLS];
    const auto multiply_steps = [&](int64_t first, int64_t last) {
      for (int64_t step = first; step < last; ++step) {
#pragma GCC unroll 8
        for (int c = 0; c < COLS; ++c) frag_b[c] = Op::template load_words<kBlockBytes>(b[c] + k_first + step * kStep);
        multiply_step(frag_b);
      }
    };
    if constexpr (IS_FAR) {
      constexpr int64_t kLineSteps = 64 / int64_t(sizeof(T)) / kStep;
      for (int64_t line = 0; line < whole_steps; line += kLineSteps) {
#pragma GCC unroll 8
        for (int c = 0; c < COLS; ++c) __builtin_prefetch(b[c] + k_first + line * kStep + COLS * stride_bn, 0, 2);
        multiply_steps(line, min_of(line + kLineSteps, whole_steps));
      }
    } else {
      multiply_steps(0, whole_steps);
    }
    if (whole_steps * kStep < depth) {
      for (int c = 0; c < COLS; ++c) {
        frag_b[c] = load_words<T, Op, kBlockBytes>(b[c] + k_first + whole_steps * kStep, depth - whole_steps * kStep);
      }
      multiply_step(frag_b);
    }
#pragma GCC unroll 4
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
      for (int c = 0; c < COLS; c += kWords) {
        Block<A> parts[kWords];
#pragma GCC unroll 4
        for (int w = 0; w < kWords; ++w) parts[w] = acc[i][c + w];
        const Block<A> sum = sum_blocks<A>(parts);
        store(&total[i][c], accumulate ? load_as<Block<A>>(&total[i][c]) + sum : sum);
      }
    }
  }
};

template <class T, class Op>
Status launch_as(const GemmProblem& problem, const CpuConfig& config, const Executor& executor) {
  if (config.path == CpuPath::long_dots) return launch_dots<T, Op>(problem, executor);
  using Tile = BlockTile<T, Op>;
  using A = typename Op::Acc;
  const bool sums_are_c = std::is_same_v<T, A> && problem.stride_cn == 1;
  const int64_t batch = batch_size(problem);
  const int64_t task_k = config.split_k > 1 ? Tile::kChunk : problem.k;
  const int64_t ld_sums =
      round_up(config.split_k > 1 ? config.task_n : min_of(config.task_n, config.block_n), kThreadN);
  // Sums from chunk to chunk: C serves when it can, few rows bring their own.
  const bool needs_sums = task_k > Tile::kChunk && !sums_are_c && config.path == CpuPath::packed;
  const int64_t bytes_panels = Tile::workspace_bytes(config, task_k);
  const int64_t bytes_task =
      bytes_panels + (needs_sums ? round_up(config.task_m * ld_sums * int64_t(sizeof(A)), 64) : 0);
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
    return Tile{item,    config,  0,     item.m, 0,   item.n, 0, item.k, workspace + worker_idx * bytes_task,
                nullptr, ld_sums, false, false,  true};
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
        tile.rows = min_of(config.task_m, item.m - tile.row);
        tile.cols = min_of(config.task_n, item.n - tile.col);
        if constexpr (std::is_same_v<T, A>) {
          if (sums_are_c) {
            tile.sums = static_cast<A*>(item.c) + tile.row * item.stride_cm + tile.col;
            tile.ld_sums = item.stride_cm;
            tile.sums_are_c = true;
          }
        }
        if (needs_sums) {
          tile.sums = reinterpret_cast<A*>(tile.workspace + bytes_panels);
          tile.sums_cover_one_block = true;
        }
        tile.run();
      }
    });
  } else {
    // Chunks of k side by side, split_k at a time; then their sums are added up in the order of k.
    A* parts = reinterpret_cast<A*>(workspace + num_workers * bytes_task);
    const int64_t part_size = problem.m * ld_sums;
    A* total = parts + config.split_k * part_size;
    for (int64_t first = 0; first < problem.k; first += config.split_k * Tile::kChunk) {
      const int64_t count = min_of(config.split_k, ceil_div(problem.k - first, Tile::kChunk));
      parallel_for(executor, num_workers, [&](int64_t worker_idx) {
        for (int64_t part = count * worker_idx / num_workers; part < count * (worker_idx + 1) / num_workers; ++part) {
          Tile tile = make_tile(problem, worker_idx);
          tile.k_begin = first + part * Tile::kChunk;
          tile.k_end = min_of(problem.k, tile.k_begin + Tile::kChunk);
          tile.sums = parts + part * part_size;
          tile.is_finished = false;
          tile.run();
        }
      });
      for (int64_t part = 0; part < count; ++part) {
        const A* from = parts + part * part_size;
        const bool is_first = first == 0 && part == 0;
        for (int64_t e = 0; e < part_size; ++e) total[e] = is_first ? from[e] : total[e] + from[e];
      }
    }
    store_block_tile<T>(problem, 0, problem.m, 0, problem.n, total, ld_sums);
  }
  if (!is_near) executor.release(executor.self, workspace);
  return Status::ok;
}

// C^T = B^T A^T as a problem, with its batch dimensions in `dims`.
GemmProblem exchange_operands(const GemmProblem& problem, BatchDim* dims) {
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
  for (int32_t d = 0; d < problem.num_batch_dims; ++d) {
    const BatchDim& dim = problem.batch_dims[d];
    dims[d] = {dim.size, dim.stride_b, dim.stride_a, dim.stride_c};
  }
  exchanged.batch_dims = dims;
  return exchanged;
}

template <class T, class Op, DType DTYPE>
Status launch_oriented(const GemmProblem& problem, const CpuPlan& plan, const Executor& executor) {
  static_assert(Op::kPerWord == kernel_shape(kIsa, DTYPE).k_per_word, "the plan knows the words");
  if (!plan.is_exchanged) return launch_as<T, Op>(problem, plan.config, executor);
  BatchDim dims[kMaxBatchDims];
  return launch_as<T, Op>(exchange_operands(problem, dims), plan.config, executor);
}

Status launch(const GemmProblem& problem, const CpuPlan& plan, const Executor& executor) {
  switch (problem.dtype) {
    case DType::f32:
      return launch_oriented<float, Fma<float, float>, DType::f32>(problem, plan, executor);
    case DType::f64:
      return launch_oriented<double, Fma<double, double>, DType::f64>(problem, plan, executor);
    case DType::f16:
      return launch_oriented<Half, Fma<Half, float>, DType::f16>(problem, plan, executor);
    default:
#if defined(TILEDMM_ISA_AVX512_BF16)
      return launch_oriented<BFloat16, DotBf16, DType::bf16>(problem, plan, executor);
#else
      return launch_oriented<BFloat16, Fma<BFloat16, float>, DType::bf16>(problem, plan, executor);
#endif
  }
}

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

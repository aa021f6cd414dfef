// One task of register_tiled: a block tile of C on one thread, by the path of its plan. Included once per instruction
// set.
#pragma once

#include <type_traits>

#include "kernels/cpu/register_tiled/dots.h"
#include "kernels/cpu/register_tiled/micro_kernel.h"
#include "kernels/cpu/register_tiled/plan.h"
#include "kernels/cpu/shared/epilogue.h"
#include "kernels/cpu/shared/pack.h"
#include "kernels/cpu/shared/simd.h"
#include "platform/element.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

// One block tile of C, on one thread.
template <class T, class Op>
struct BlockTile {
  using Word = typename Op::Word;
  using A = typename Op::Acc;
  static constexpr int kLanes = Config<Op>::kLanes;
  static constexpr int kThreadN = Config<Op>::kThreadN;
  static constexpr int64_t kChunk = Config<Op>::kChunk;
  static constexpr bool kIsB8Bits = sizeof(T) == 1;                       // beside an A that has more
  static constexpr int64_t kShortColumns = 8192 / int64_t(sizeof(Word));  // of B, which short_k packs at a time
  // Words of k that one pass of stream_rows takes along: two vectors of each are in registers.
  static constexpr int kPassWords = TILEDMM_VECTOR_BYTES == 64 ? 8 : 4;
  // Columns of B, contiguous along n, that are packed at a time.
  static constexpr int64_t kGroupColumns = max_of(kThreadN, Ahead::kBytes / int64_t(sizeof(T)));
  static_assert(kGroupColumns % kThreadN == 0, "a group of columns consists of whole strips");

  const GemmProblem& problem;
  const CpuConfig& config;
  int64_t row, rows, col, cols;
  int64_t k_begin, k_end;  // k_begin is a multiple of kChunk
  char* workspace;
  A* sums;  // partial sums [rows][ld_sums]; null: k is one chunk and they live in a micro-tile
  int64_t ld_sums;
  bool sums_cover_one_block;      // sums holds block_n columns at a time, not all of the tile's
  bool sums_are_c;                // sums is C itself
  bool is_finished;               // the last chunk is followed by the epilogue
  bool is_a_packed, is_b_packed;  // by the task before
  const bool has_own_dtype_a = problem.dtype_a == kDTypeOf<T>;
  const bool is_plain = tiledmm::is_plain(problem) && problem.scaling == Scaling::none && problem.stride_cn == 1;

  static int64_t num_words(int64_t depth) { return ceil_div(depth, Op::kPerWord); }
  // The words of packed lanes, for a chunk at most.
  static int64_t panel_words(int64_t lanes, int64_t strip, int64_t depth) {
    return ceil_div(lanes, strip) * strip_size<Word>(strip, num_words(min_of(depth, kChunk)));
  }

  // Bytes that a tile needs for its panels and, in stream_rows, for its sums.
  static int64_t panel_a_bytes(const CpuConfig& config, int64_t k) {
    const int64_t rows = config.path == CpuPath::packed && !config.is_resident ? config.block_m : config.task_m;
    const int64_t strip = config.path == CpuPath::packed ? config.thread_m : config.task_m;
    const int64_t chunks = config.is_resident ? max_of(1, ceil_div(k, kChunk)) : 1;
    return round_up(panel_words(rows, strip, k) * chunks * int64_t(sizeof(Word)), 64);
  }
  // Packed B is read again by the next block of rows, or by the next task.
  static bool is_b_kept(const CpuConfig& config) { return config.keeps_b || config.block_m < config.task_m; }
  static int64_t workspace_bytes(const CpuConfig& config, int64_t k) {
    int64_t bytes = panel_a_bytes(config, k);
    if (config.path == CpuPath::packed) {
      const int64_t columns = is_b_kept(config) ? config.block_n : min_of(config.block_n, kGroupColumns);
      const int64_t chunks = config.keeps_b ? max_of(1, ceil_div(k, kChunk)) : 1;
      bytes += panel_words(columns, kThreadN, k) * chunks * int64_t(sizeof(Word));
    }
    if (config.path == CpuPath::short_k) bytes = kMaxShortWords * kShortColumns * int64_t(sizeof(Word));
    if (config.path == CpuPath::stream_rows) bytes += 2 * config.task_m * stream_ld(config) * int64_t(sizeof(A));
    return round_up(bytes, 64);
  }

  // Inline, with the paths that store C in their innermost loops: else every store makes g++ load the tile's numbers
  // again (768x768x1: 50 us, called 85).
  TILEDMM_INLINE void run() const {
    switch (config.path) {
      case CpuPath::packed:
        return run_packed();
      case CpuPath::stream_rows:
        if constexpr (!kIsB8Bits) run_stream_rows();
        return;
      case CpuPath::dot_rows:
        return run_dot_rows();
      case CpuPath::short_k:
        if constexpr (!kIsB8Bits) run_short_k();
        return;
      case CpuPath::long_dots:
      case CpuPath::items:
      case CpuPath::in_place:
        return;  // they have no tiles
    }
  }

  const T* rows_a(int64_t first, int64_t k) const {
    return static_cast<const T*>(problem.a) + (row + first) * problem.stride_am + k * problem.stride_ak;
  }
  const T* cols_b(int64_t first, int64_t k) const {
    return static_cast<const T*>(problem.b) + (col + first) * problem.stride_bn + k * problem.stride_bk;
  }
  int64_t bytes_b() const { return problem.n * problem.k * int64_t(sizeof(T)); }
  void pack_a(int64_t first, int64_t count, int64_t strip, int64_t k, int64_t depth, Word* to) const {
    if (!has_own_dtype_a) return pack_other_a(first, count, strip, k, depth, to);
    pack_strips<T, Op>(rows_a(first, k), problem.stride_am, problem.stride_ak, count, strip, depth, to);
  }
  // A has another dtype than B, of the same words.
  void pack_other_a(int64_t first, int64_t count, int64_t strip, int64_t k, int64_t depth, Word* to) const {
    const int64_t offset = (row + first) * problem.stride_am + k * problem.stride_ak;
    [[maybe_unused]] const auto pack = [&](auto* element) {
      using Element = std::remove_pointer_t<decltype(element)>;
      pack_strips<Element, typename Op::template Of<Element>>(static_cast<const Element*>(problem.a) + offset,
                                                              problem.stride_am, problem.stride_ak, count, strip, depth,
                                                              to);
    };
    if constexpr (Op::kPerWord == 2) {
      if constexpr (kIsB8Bits) pack(static_cast<BFloat16*>(nullptr));
    } else if constexpr (std::is_same_v<Word, float>) {
      if (problem.dtype_a == DType::f32) {
        if constexpr (!std::is_same_v<T, float>) pack(static_cast<float*>(nullptr));
      } else if constexpr (std::is_same_v<T, float> || kIsB8Bits) {
        problem.dtype_a == DType::f16 ? pack(static_cast<Half*>(nullptr)) : pack(static_cast<BFloat16*>(nullptr));
      }
    }
  }
  void pack_b(int64_t first, int64_t count, int64_t k, int64_t depth, Word* to) const {
    pack_strips<T, Op>(cols_b(first, k), problem.stride_bn, problem.stride_bk, count, kThreadN, depth, to);
  }

  TILEDMM_INLINE void run_packed() const {
    const bool in_place = config.is_a_in_place;
    // Rows that are used where they lie come while the rows before them are multiplied for the first time.
    const bool fetches_a = in_place && problem.stride_ak == 1 && cols > kLanes / 2 &&
                           rows * (k_end - k_begin) * int64_t(sizeof(T)) >= kNearBytes / 2;
    // Columns of B contiguous along n come in runs of cache lines, as many strips at a time. Where they are words as
    // they lie, the first micro-tile that needs a whole strip packs it on its way.
    const int64_t group_cols = problem.stride_bk == 1 ? kThreadN : kGroupColumns;
    Ahead ahead;
    Word* panel_a = reinterpret_cast<Word*>(workspace);
    Word* panel_b = reinterpret_cast<Word*>(workspace + panel_a_bytes(config, k_end - k_begin));
    for (int64_t jc = 0; jc < cols; jc += config.block_n) {
      const int64_t block_cols = min_of(config.block_n, cols - jc);
      int64_t pc = k_begin;
      Word* block_a = panel_a;
      do {  // once for k = 0, too
        const int64_t depth = min_of(kChunk, k_end - pc), words = num_words(depth);
        const int64_t strip_a = strip_size<Word>(config.thread_m, words), strip_b = strip_size<Word>(kThreadN, words);
        for (int64_t ic = 0; ic < rows; ic += config.block_m) {
          const int64_t block_rows = min_of(config.block_m, rows - ic);
          if (!in_place && (!config.is_resident || jc == 0)) {
            pack_a(ic, block_rows, config.thread_m, pc, depth, block_a);
          }
          Ahead ahead_block =
              config.fetches_a && !in_place && !config.is_resident ? find_ahead_block(jc, block_cols, pc, ic) : Ahead{};
          for (int64_t jr = 0; jr < block_cols; jr += kThreadN) {
            const int64_t tile_cols = min_of(kThreadN, block_cols - jr);
            Word* b = panel_b + (is_b_kept(config) ? jr : jr % group_cols) / kThreadN * strip_b;
            // Packed when they are first needed, so that their first use finds them in a near cache.
            const bool is_first_use = !is_b_packed && ic == 0;
            const bool packs_on_the_way = is_first_use && config.packs_b_on_the_way && tile_cols == kThreadN;
            if (is_first_use && jr % group_cols == 0) {
              ahead = find_ahead_b(jc, jr + group_cols, pc, group_cols, block_rows);
            }
            if (is_first_use && !packs_on_the_way && (config.packs_b_on_the_way || jr % group_cols == 0)) {
              pack_b(jc + jr, min_of(group_cols, block_cols - jr), pc, depth, b);
            }
            const Word* next_b = !is_b_kept(config) ? b : jr + kThreadN < block_cols ? b + strip_b : panel_b;
            ColsB<Word> packed_b{b, reinterpret_cast<const char*>(next_b)};
            const ColsB<Word> unpacked_b{reinterpret_cast<const Word*>(cols_b(jc + jr, pc)), packed_b.next,
                                         problem.stride_bk, b};
            const ColsB<Word>& first_b = packs_on_the_way ? unpacked_b : packed_b;
            RowsA a = in_place ? rows_in_place(ic, pc) : rows_packed(block_a, config.thread_m);
            const int64_t tile_bytes = in_place ? config.thread_m * a.row_bytes : strip_a * int64_t(sizeof(Word));
            for (int64_t ir = 0; ir < block_rows; ir += config.thread_m) {
              const int64_t tile_rows = min_of(config.thread_m, block_rows - ir);
              const char* next_a = a.base + tile_bytes;
              const bool is_ahead_a = fetches_a && jr == 0 && ir + config.thread_m < block_rows;
              const int64_t next_row = ic + ir + config.thread_m;
              Ahead ahead_a = is_ahead_a ? pieces_of(rows_a(next_row, pc), problem.stride_am, problem.stride_ak,
                                                     config.thread_m, depth, words)
                                         : Ahead{};
              Ahead& next = is_ahead_a ? ahead_a : ahead.steps_left > 0 ? ahead : ahead_block;
              multiply_tile(words, a, ir == 0 ? first_b : packed_b, ic + ir, tile_rows, jc, jr, tile_cols, pc, next);
              packed_b.next += words / kWordsOfLine * kLineBytes;
              a.base = next_a;
            }
          }
        }
        pc += depth;
        if (config.is_resident && pc < k_end) block_a += panel_words(rows, config.thread_m, kChunk);
        if (config.keeps_b && pc < k_end) panel_b += panel_words(cols, kThreadN, kChunk);
      } while (pc < k_end);
    }
  }

  // What `lanes` rows of A or columns of B have along k, from one on, in pieces for `words` words of k that are
  // multiplied meanwhile. None where neither they nor k are contiguous.
  static Ahead pieces_of(const T* from, int64_t stride_lane, int64_t stride_k, int64_t lanes, int64_t depth,
                         int64_t words) {
    if (stride_k != 1 && stride_lane != 1) return {};
    const int64_t bytes_lane = stride_lane * int64_t(sizeof(T)), bytes_k = stride_k * int64_t(sizeof(T));
    const char* piece = reinterpret_cast<const char*>(from);
    Ahead ahead = stride_k == 1
                      ? Ahead{piece, bytes_lane, lanes, Ahead::kBytes, ceil_div(depth * bytes_k, Ahead::kBytes), 1, 0}
                      : Ahead{piece, Ahead::kBytes, ceil_div(lanes * bytes_lane, Ahead::kBytes), bytes_k, depth, 1, 0};
    ahead.interval = max_of(1, words / max_of(1, ahead.lanes * ahead.steps_left));
    return ahead;
  }

  // The block of A that is packed after the one at ic, pc, which meets `block_cols` columns from jc on. It comes while
  // that one is multiplied.
  Ahead find_ahead_block(int64_t jc, int64_t block_cols, int64_t pc, int64_t ic) const {
    const int64_t tiles = ceil_div(min_of(config.block_m, rows - ic), config.thread_m) * ceil_div(block_cols, kThreadN);
    const int64_t words = tiles * num_words(min_of(kChunk, k_end - pc));
    ic += config.block_m;
    if (ic >= rows) {
      ic = 0;
      pc += kChunk;
    }
    if (pc >= k_end) {
      pc = k_begin;
      jc += config.block_n;
    }
    if (jc >= cols || !has_own_dtype_a) return {};
    return pieces_of(rows_a(ic, pc), problem.stride_am, problem.stride_ak, min_of(config.block_m, rows - ic),
                     min_of(kChunk, k_end - pc), words);
  }

  // The group of columns of B that is packed after the one that ends at jr. It comes while that one is multiplied.
  Ahead find_ahead_b(int64_t jc, int64_t jr, int64_t pc, int64_t group_cols, int64_t block_rows) const {
    if (bytes_b() <= kNearBytes) return {};
    const int64_t tiles = group_cols / kThreadN * ceil_div(block_rows, config.thread_m);
    const int64_t words = tiles * num_words(min_of(kChunk, k_end - pc));
    if (jr >= min_of(config.block_n, cols - jc)) {
      jr = 0;
      pc += kChunk;
    }
    if (pc >= problem.k) {  // beyond k_end is what this thread's next part of a split k begins with
      pc = k_begin;
      jc += config.block_n;
    }
    if (jc >= cols) return {};
    const int64_t lanes = min_of(group_cols, min_of(config.block_n, cols - jc) - jr);
    return pieces_of(cols_b(jc + jr, pc), problem.stride_bn, problem.stride_bk, lanes, min_of(kChunk, problem.k - pc),
                     words);
  }

  RowsA rows_in_place(int64_t i, int64_t pc) const {
    return {reinterpret_cast<const char*>(rows_a(i, pc)), problem.stride_am * int64_t(sizeof(T)),
            problem.stride_ak * int64_t(sizeof(Word))};
  }
  static RowsA rows_packed(const Word* strip, int64_t places) {
    return {reinterpret_cast<const char*>(strip), sizeof(Word), places * int64_t(sizeof(Word))};
  }

  void multiply_tile(int64_t words, const RowsA& a, const ColsB<Word>& b, int64_t i, int64_t tile_rows, int64_t jc,
                     int64_t jr, int64_t tile_cols, int64_t pc, Ahead& ahead) const {
    const int64_t j = jc + jr;
    constexpr auto kRows = std::make_integer_sequence<int, Config<Op>::kMaxThreadM>{};
    const bool is_first = pc == k_begin, is_last = pc + kChunk >= k_end;
    const bool is_narrow = !std::is_same_v<T, A> && problem.dtype_c == kDTypeOf<T>;
    // The micro-kernel of a B of 8 bits is that of the words that it is packed as.
    using Packed = std::conditional_t<kIsB8Bits, typename Op::Element, T>;
    const auto multiply = find_multiply<Packed, typename Op::template Of<Packed>>(
        tile_rows, tile_cols, a.row_bytes == sizeof(Word), b.packed, kRows);
    if (is_plain && is_finished && is_first && is_last && (is_narrow || problem.dtype_c == kDTypeOf<A>)) {
      char* to = static_cast<char*>(problem.c) +
                 ((row + i) * problem.stride_cm + col + j) * int64_t(is_narrow ? sizeof(T) : sizeof(A));
      return multiply(words, a, b, {to, problem.stride_cm, tile_cols, is_narrow, false, config.is_c_far}, ahead);
    }
    alignas(64) A near_sums[Config<Op>::kMaxThreadM * kThreadN];
    A* tile = sums ? sums + i * ld_sums + (sums_cover_one_block ? jr : j) : near_sums;
    const int64_t ld_tile = sums ? ld_sums : kThreadN;
    multiply(words, a, b, {tile, ld_tile, tile_cols, false, !is_first, sums_are_c && config.is_c_far}, ahead);
    if (is_last && is_finished && !(sums_are_c && is_plain)) {
      store_block_tile(problem, row + i, tile_rows, col + j, tile_cols, tile, ld_tile);
    }
  }

  // Columns of one pass of stream_rows, for a task: its sums stay in near caches, in runs of whole pages of B where
  // rows allow.
  static int64_t stream_width(const CpuConfig& config) {
    const int64_t fitting = kStreamSumsBytes / int64_t(sizeof(A)) / config.task_m / kLanes * kLanes;
    return min_of(max_of(4 * kLanes, fitting), round_up(config.task_n, kLanes));
  }
  // The distance from row to row of these sums is an odd number of vectors, so that rows do not begin in one set of the
  // nearest cache.
  static int64_t stream_ld(const CpuConfig& config) { return (stream_width(config) / kLanes | 1) * kLanes; }

  // A's words: where they lie, [row][word] with `distance` words from row to row, or packed, [word][row] of `distance`
  // rows.
  template <bool IN_PLACE>
  struct StreamedRows {
    const Word* words;
    int64_t distance;

    Word at(int64_t word, int64_t row) const {
      return IN_PLACE ? words[row * distance + word] : words[word * distance + row];
    }
    StreamedRows from(int64_t word) const { return {words + word * (IN_PLACE ? 1 : distance), distance}; }
  };

  // Few rows and B contiguous along n: rows of B go from memory through registers into rows of sums, in long contiguous
  // runs. Same order, same bits as run_packed.
  void run_stream_rows() const {
    if constexpr (std::is_same_v<T, Word>) {
      if (config.is_a_in_place) return stream_rows<true>();
    }
    stream_rows<false>();
  }

  template <bool IN_PLACE>
  void stream_rows() const {
    Word* panel_a = reinterpret_cast<Word*>(workspace);
    A* chunk = reinterpret_cast<A*>(workspace + panel_a_bytes(config, k_end - k_begin));
    const int64_t width = stream_width(config), ld = stream_ld(config);
    A* total = chunk + rows * ld;
    for (int64_t jc = 0; jc < cols; jc += width) {
      const int64_t block_cols = min_of(width, cols - jc);
      int64_t pc = k_begin;
      do {
        const int64_t depth = min_of(kChunk, k_end - pc), words = num_words(depth);
        A* chains = pc == k_begin ? total : chunk;
        if (!IN_PLACE) pack_a(0, rows, rows, pc, depth, panel_a);
        const StreamedRows<IN_PLACE> a{IN_PLACE ? reinterpret_cast<const Word*>(rows_a(0, pc)) : panel_a,
                                       IN_PLACE ? problem.stride_am : rows};
        for (int64_t e = 0; e < rows * ld; ++e) chains[e] = 0;
        int64_t word = 0;
        // Whole passes, then one of half as many words, then what is left word by word.
        const auto pass = [&](auto words_of_pass) {
          stream_pass<words_of_pass.value>(a.from(word), cols_b(jc, pc + word * Op::kPerWord), block_cols,
                                           depth - word * Op::kPerWord, chains, ld);
          word += words_of_pass.value;
        };
        const auto fits = [&](int pass_words) { return (word + pass_words) * Op::kPerWord <= depth; };
        while (fits(kPassWords)) pass(std::integral_constant<int, kPassWords>{});
        if (fits(kPassWords / 2)) pass(std::integral_constant<int, kPassWords / 2>{});
        while (word < words) pass(std::integral_constant<int, 1>{});
        if (pc > k_begin) {
          for (int64_t e = 0; e < rows * ld; e += kLanes) store(total + e, load(total + e) + load(chunk + e));
        }
        pc += depth;
      } while (pc < k_end);
      if (is_finished) {
        store_block_tile(problem, row, rows, col + jc, block_cols, total, ld);
      } else {
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < block_cols; ++j) sums[i * ld_sums + jc + j] = total[i * ld + j];
        }
      }
    }
  }

  // WORDS words of k, `depth` elements at least or all that is left: two vectors of columns at a time, one at the edge.
  template <int WORDS, bool IN_PLACE>
  void stream_pass(const StreamedRows<IN_PLACE>& a, const T* b, int64_t block_cols, int64_t depth, A* chains,
                   int64_t ld) const {
    int64_t j = 0;
    if (depth >= Op::kPerWord) {
      for (; j + 2 * kLanes <= block_cols; j += 2 * kLanes) {
        Reg<Word> frag_b[WORDS][2];
#pragma GCC unroll 16
        for (int w = 0; w < WORDS; ++w) {
          Op::load_two(b + w * Op::kPerWord * problem.stride_bk + j, problem.stride_bk, frag_b[w]);
        }
        multiply_rows(a, frag_b, chains + j, ld);
      }
    }
    for (; j < block_cols; j += kLanes) {
      Reg<Word> frag_b[WORDS][1];
#pragma GCC unroll 16
      for (int w = 0; w < WORDS; ++w) {
        frag_b[w][0] = load_lanes<T, Op>(b + w * Op::kPerWord * problem.stride_bk + j, 1, problem.stride_bk,
                                         block_cols - j, depth - w * Op::kPerWord);
      }
      multiply_rows(a, frag_b, chains + j, ld);
    }
  }

  template <int WORDS, int VECTORS, bool IN_PLACE>
  TILEDMM_INLINE void multiply_rows(const StreamedRows<IN_PLACE>& a, const Reg<Word> (&frag_b)[WORDS][VECTORS],
                                    A* chains, int64_t ld) const {
    for (int64_t i = 0; i < rows; ++i) {
      Reg<A> acc[VECTORS];
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v) acc[v] = load(chains + i * ld + v * kLanes);
#pragma GCC unroll 16
      for (int w = 0; w < WORDS; ++w) {
        const Reg<Word> frag_a = broadcast(a.at(w, i));
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; ++v) acc[v] = Op::multiply_add(frag_a, frag_b[w][v], acc[v]);
      }
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v) store(chains + i * ld + v * kLanes, acc[v]);
    }
  }

  // k of at most a block of words: C is written row by row and bounds the time. Same order as run_packed.
  TILEDMM_INLINE void run_short_k() const {
    switch (num_words(problem.k)) {
      case 1:
        return multiply_short_k<1>();
      case 2:
        return multiply_short_k<2>();
      case 3:
        return multiply_short_k<3>();
      default:
        return multiply_short_k<4>();
    }
  }

  // All words of a vector of columns from `first` on, of which `count` exist.
  template <int WORDS>
  TILEDMM_INLINE void load_short_columns(int64_t first, int64_t count, Reg<Word> (&words)[WORDS]) const {
    if constexpr (std::is_same_v<T, Word> && WORDS > 1) {
      if (problem.stride_bn == WORDS && problem.stride_bk == 1 && count >= kLanes) {
        return load_apart<WORDS>(cols_b(first, 0), words);
      }
    }
#pragma GCC unroll 4
    for (int w = 0; w < WORDS; ++w) {
      words[w] = load_lanes<T, Op>(cols_b(first, w * Op::kPerWord), problem.stride_bn, problem.stride_bk, count,
                                   problem.k - w * Op::kPerWord);
    }
  }

  template <int WORDS>
  TILEDMM_INLINE void multiply_short_k() const {
    Word* panel_b = reinterpret_cast<Word*>(workspace);
    const bool is_stored = is_plain && problem.dtype_c == kDTypeOf<T>;
    for (int64_t jc = 0; jc < cols; jc += kShortColumns) {
      const int64_t block_cols = min_of(kShortColumns, cols - jc), ld = round_up(block_cols, kLanes);
      for (int64_t j = 0; j < ld; j += kLanes) {
        Reg<Word> words[WORDS];
        load_short_columns<WORDS>(jc + j, block_cols - j, words);
#pragma GCC unroll 4
        for (int w = 0; w < WORDS; ++w) store(panel_b + w * ld + j, words[w]);
      }
      for (int64_t i = 0; i < rows; ++i) {
        Reg<Word> frag_a[WORDS];
        for (int w = 0; w < WORDS; ++w) {
          const int64_t k = w * Op::kPerWord;
          frag_a[w] = broadcast(Op::load_word(rows_a(i, k), problem.stride_ak, problem.k - k));
        }
        const auto sum_at = [&](int64_t j) {
          Reg<A> sum{};
#pragma GCC unroll 4
          for (int w = 0; w < WORDS; ++w) sum = Op::multiply_add(frag_a[w], load(panel_b + w * ld + j), sum);
          return sum;
        };
        int64_t j = 0;
        if (is_stored) {
          T* const to = static_cast<T*>(problem.c) + (row + i) * problem.stride_cm + col + jc;
          for (; j + kLanes <= block_cols; j += kLanes) store_converted(to + j, sum_at(j), kLanes);
          if (j < block_cols) store_converted(to + j, sum_at(j), block_cols - j);
          continue;
        }
        for (; j < block_cols; j += kLanes) {
          A near_sums[kLanes];
          store(near_sums, sum_at(j));
          store_block_tile(problem, row + i, 1, col + jc + j, min_of(kLanes, block_cols - j), near_sums, kLanes);
        }
      }
    }
  }

  // Few rows and B contiguous along k: a vector of columns at a time is read where it lies and transposed in registers.
  void run_dot_rows() const {
    using DotRows = void (BlockTile::*)() const;
    static constexpr DotRows kDotRows[] = {&BlockTile::dot_rows<1>, &BlockTile::dot_rows<2>, &BlockTile::dot_rows<3>,
                                           &BlockTile::dot_rows<4>, &BlockTile::dot_rows<5>, &BlockTile::dot_rows<6>,
                                           &BlockTile::dot_rows<7>, &BlockTile::dot_rows<8>};
    static_assert(sizeof kDotRows / sizeof *kDotRows == kMaxDotRows, "an instance for each number of rows");
    (this->*kDotRows[rows - 1])();
  }

  template <int MR>
  void dot_rows() const {
    // A is packed as [chunks of k][words][rows]. One row that consists of words is used where it lies.
    const bool in_place = MR == 1 && config.is_a_in_place;
    const int64_t chunk_words = in_place ? kChunkWords : panel_words(MR, MR, kChunk);
    Word* const panel_a = reinterpret_cast<Word*>(workspace);
    for (int64_t pc = k_begin; pc < k_end && !in_place && !is_a_packed; pc += kChunk) {
      pack_a(0, MR, MR, pc, min_of(kChunk, k_end - pc), panel_a + (pc - k_begin) / kChunk * chunk_words);
    }
    const Word* a = in_place ? reinterpret_cast<const Word*>(rows_a(0, k_begin)) : panel_a;
    const Dots<T, Op> dots{cols_b(0, k_begin), problem.stride_bn,    cols, k_end - k_begin, a, chunk_words,
                           config.fetch,       config.has_two_chains};
    dots.template for_each_vector<MR>([&](int64_t j, int64_t count, const A* totals, int64_t ld) {
      if (is_finished) return store_block_tile(problem, row, MR, col + j, count, totals, ld);
      for (int i = 0; i < MR; ++i) {
        for (int64_t c = 0; c < count; ++c) sums[i * ld_sums + j + c] = totals[i * ld + c];
      }
    });
  }
};

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

// The tile numbers of the CPU's register_tiled kernel, as plain data, and the pure functions that choose them.
// They move data and share out work; none of them changes a bit of the result: the order of summation is fixed by
// kChunkWords alone.
#pragma once

#include <cstdint>

#include "core/chip.h"
#include "core/math.h"
#include "core/problem.h"
#include "core/transposed.h"
#include "kernels/cpu/shared/items_plan.h"
#include "kernels/cpu/shared/threads.h"

namespace tiledmm {
namespace {

// What a kernel build is made of: fixed per instruction set and dtype.
struct CpuKernelShape {
  int64_t max_thread_m;  // rows of C that the registers hold
  int64_t thread_n;      // columns of C that they hold
  int64_t narrow_n;      // columns of the narrowest micro-tile
  int64_t k_per_word;    // elements of k in a packed word: 2 where an instruction multiplies pairs
  int64_t word_bytes;
  int64_t acc_bytes;
  bool is_of_words;  // an operand's element is a word as it lies
};

// A micro-tile has two vectors a row, so that a broadcast of A serves two multiply-adds. Registers in AVX-512 and NEON:
// 24 accumulators + 2 vectors of B + broadcasts, of 32; elsewhere 12 + 2 + 2, of 16.
struct MicroTileShape {
  int max_thread_m, vectors_n, vector_bytes;
};
constexpr MicroTileShape micro_tile(Isa isa) {
  return isa == Isa::neon       ? MicroTileShape{12, 2, 16}
         : isa == Isa::avx2     ? MicroTileShape{6, 2, 32}
         : isa == Isa::portable ? MicroTileShape{6, 2, 16}
                                : MicroTileShape{12, 2, 64};
}

[[maybe_unused]] constexpr CpuKernelShape kernel_shape(Isa isa, DType dtype) {
  const bool is_pairs = isa == Isa::avx512_bf16 && dtype == DType::bf16;
  const int64_t acc_bytes = dtype == DType::f64 ? 8 : 4;
  const MicroTileShape tile = micro_tile(isa);
  const int64_t lanes = tile.vector_bytes / acc_bytes;
  return {tile.max_thread_m,
          tile.vectors_n * lanes,
          tile.vector_bytes == 64 ? lanes / 2 : lanes,
          is_pairs ? 2 : 1,
          acc_bytes,
          acc_bytes,
          acc_bytes == size_of(dtype)};
}

enum class CpuPath : int32_t {
  packed,       // A and B packed, micro-tiles
  stream_rows,  // few rows, B contiguous along n: B goes through registers row by row
  dot_rows,     // few rows, B contiguous along k: its columns are transposed in registers, read once where they lie
  short_k,      // k of a few words, B contiguous along n: C is written row by row
  long_dots,    // a C of few elements, both operands contiguous along k: its chunks side by side (long_dot.h)
  items,        // a batch of small items, one in each lane of vectors (items.h)
  in_place,     // small items, of a batch or a single one, that are multiplied where they lie (in_place.h)
};
// What of B dot_rows fetches while it multiplies a vector of columns.
enum class CpuFetch : int32_t {
  none,
  columns,  // the next columns, a line of each at a time
  runs,     // what follows a chunk of k later in these columns, then in the next ones: of one after the other, in runs
  along_k,  // what follows soon in the same columns
};
inline constexpr const char* kCpuPathNames[] = {"packed",    "stream_rows", "dot_rows", "short_k",
                                                "long_dots", "items",       "in_place"};

// k is summed in chunks of so many packed words. docs/numerics.md: changing it changes bits, nothing else here does.
inline constexpr int64_t kChunkWords = 512;
inline constexpr int64_t kFewRows = 8, kMaxDotRows = 8;
inline constexpr int64_t kMaxShortWords = 4;           // of a column of B in short_k
inline constexpr int64_t kByRowsWords = 16;            // so few take less time than C
inline constexpr int64_t kShortRowBytes = 8 << 10;     // of a row of C there: so much is worth a task of columns
inline constexpr int64_t kPanelABytes = 256 << 10;     // packed A at one time: a part of the second-level cache; ...
inline constexpr int64_t kLargeNearBytes = 2 << 20;    // ... where it has so many bytes,
inline constexpr int64_t kPanelARows = 132;            // ... so many rows of any dtype
inline constexpr int64_t kPanelBBytes = 2 << 20;       // packed B at one time: its strips come from the third level
inline constexpr int64_t kMostPanelBBytes = 8 << 20;   // ... on Intel, whose third level is large,
inline constexpr int64_t kAllPanelsBBytes = 16 << 20;  // ... and of all threads together
inline constexpr int64_t kKeptBBytes = 512 << 10;   // packed B that is kept from task to task: half of a second level
inline constexpr int64_t kSumsBytes = 2 << 20;      // partial sums of a 16-bit C, or of C with split k ...
inline constexpr int64_t kMaxSumsBytes = 32 << 20;  // ... or more, two chunks for each thread
inline constexpr int64_t kStreamSumsBytes = 64 << 10;  // of a pass of stream_rows
inline constexpr int64_t kNearBytes = 64 << 10;        // of B: so little is not worth fetching ahead; of A half
inline constexpr int64_t kFarBytes = 16 << 20;         // of B: so much comes from memory, not from a cache
inline constexpr int64_t kFarColumnsBytes = 20 << 20;  // the same for columns of Zen 5, whose third level has 32 MiB
inline constexpr int64_t kShortColumnBytes = 1 << 10;  // of a column of B: nothing in it is far enough to be fetched
inline constexpr int64_t kFewThreads = 4;              // so few do not use all that memory can deliver
inline constexpr int64_t kFarTurnBytes = 8 << 20;      // likewise of an A that is not contiguous along k
inline constexpr int64_t kFarResultBytes = 1 << 20;    // of C: so much is fetched before it is stored
inline constexpr int64_t kInPlaceWords = 1 << 18;      // multiply-adds of an item: more of them repay packing
inline constexpr int64_t kInPlaceBytes = 96 << 10;     // of its B
inline constexpr int64_t kStreamedRowBytes = 1024;     // of a row of its B, which few rows of A meet once or twice
inline constexpr int64_t kShortItemBytes = 8 << 10;    // of its C, where k is short
inline constexpr int64_t kFewPackedWords = 4096;       // of its B, which few rows repay to pack
inline constexpr double kShortRunBytes = 512;          // of a row of B in a task: so short, they take twice as long
inline constexpr int64_t kSetBytes = 4096;             // so far apart, lines are in one set of the nearest cache
inline constexpr int64_t kSetRows = 6;                 // lines that a set holds beside others
inline constexpr int64_t kFewColumns = 64;             // so few do not repay packing an A whose lines are in one set,
inline constexpr int64_t kTurnColumns = 192;           // ... and so few one whose rows are not contiguous along k
inline constexpr double kTaskFlops = 1e6;              // in fp32: half of it repays waking a thread
inline constexpr double kTaskBytes = 1 << 20;          // likewise, of operands and C
inline constexpr double kItemWork = 0.02;              // of that work, to begin an item: 0.1 us on an Intel, elsewhere
                                                       // not measured
inline constexpr double kWake = 1.0 / 64;              // likewise, to wake one more thread
inline constexpr double kMostWait = 0.85;              // for the slowest thread, in tasks, of so many threads and more:
inline constexpr int64_t kWaitThreads = 16;            // fewer threads wait less, in proportion
inline constexpr double kLongWork = 500;               // so much that few threads need not wait for each other
inline constexpr int64_t kTransposedRows = 8;          // so many rows take as long as to transpose B's columns
inline constexpr double kPackCost = 0.175;             // of a packed byte, in multiply-adds of vectors
inline constexpr double kTaskCost = 1000;              // of a task, likewise
inline constexpr double kRegionCost = 1.1;             // adding up sums of chunks: work for all threads a second time,
inline constexpr double kRegionTime = 2000;            // ... which takes as long as so many multiply-adds of vectors
inline constexpr double kDotRegionTime = 30000;        // the same in dot_rows, where it was fitted to 16 threads
inline constexpr int64_t kMaxDots = 4, kMinDotChunks = 16;

// Whether one or two rows of dot_rows are faster by two vectors of columns in turns: one chain of multiply-adds takes
// longer than to transpose its columns. Zen 4 transposes no faster than one chain takes, nor does Intel in fp32.
constexpr bool two_chains_pay(Cores cores, int64_t vector_bytes, int64_t word_bytes) {
  return vector_bytes < 64 || cores == Cores::zen5 || (cores == Cores::intel && word_bytes == 8);
}

// The micro-tiles of an item that is multiplied where it lies.
struct InPlaceTile {
  int64_t rows, vectors;  // of columns
  bool packs_b;           // along k, as one strip
  int64_t task_items;     // items of a task
  double cost;            // of an item, in multiply-adds of vectors
};
inline constexpr int kMaxInPlaceVectors = 6;

// Beside its sums a tile needs registers for a word of B's columns and for a broadcast of A.
constexpr int64_t most_rows_in_place(Isa isa, int64_t vectors) {
  const MicroTileShape tile = micro_tile(isa);
  const int64_t registers = tile.max_thread_m == 12 ? 32 : 16;
  return min_of(tile.max_thread_m, (registers - 1 - vectors) / vectors);
}

// The tile of the least cost: multiply-adds, two of which a core begins in a cycle, unless too few of them wait for
// each other; half as much for each load; and what a tile costs besides.
[[maybe_unused]] InPlaceTile tile_in_place(Isa isa, int64_t m, int64_t n, int64_t k, int64_t lanes) {
  constexpr double kLeastChains = 8, kTileCost = 40;
  InPlaceTile best{};
  const int64_t all_vectors = ceil_div(n, lanes);
  for (int64_t most = 1; most <= min_of(all_vectors, kMaxInPlaceVectors); ++most) {
    const int64_t tiles_n = ceil_div(all_vectors, most), vectors = ceil_div(all_vectors, tiles_n);
    const int64_t tiles_m = ceil_div(m, most_rows_in_place(isa, vectors)), rows = ceil_div(m, tiles_m);
    const double busy = double(rows * vectors) + 0.5 * double(rows + vectors),
                 word = busy > kLeastChains ? busy : kLeastChains;
    const double cost = double(tiles_m * tiles_n) * (double(k) * word + 2 * double(rows * vectors) + kTileCost);
    if (most == 1 || cost < best.cost) best = {rows, vectors, false, 0, cost};
  }
  return best;
}

struct CpuConfig {
  CpuPath path;
  int64_t thread_m;          // rows of a micro-tile
  int64_t block_m, block_n;  // rows of A and columns of B packed at one time
  int64_t tasks_m, tasks_n;  // grid of block tiles of C, one task each
  int64_t task_m, task_n;    // their sizes
  int64_t num_threads;       // that the work is worth
  ItemsPlan items;           // of their path
  InPlaceTile in_place;      // of its path
  int64_t split_k;           // chunks computed side by side before they are added up in order, each in tasks_n tasks;
                             // 1: no split
  bool is_resident;          // A of a task is packed once, for all its chunks of k
  bool keeps_a;              // packed A of a task of dot_rows serves the next one
  bool keeps_b;              // packed B of a task serves the next one, which has the same columns
  bool is_a_in_place;        // A is not packed but used where it lies
  bool packs_b_on_the_way;   // the first micro-tile that needs a whole strip of B packs it
  bool is_c_far;             // C comes from memory
  bool fetches_a;            // the next block of A that is packed comes from memory while this one is multiplied
  CpuFetch fetch;            // dot_rows: what comes from memory
  bool has_two_chains;       // dot_rows of one or two rows: two vectors of columns take turns
};

// The cost of a row of C, in multiply-adds of vectors for a word of k.
[[maybe_unused]] double columns_cost(int64_t cols, const CpuKernelShape& shape) {
  return 2 * double(round_up(cols, shape.narrow_n)) / double(shape.thread_n);
}

// Whether A consists of packed words as it lies: nothing is converted, and pairs are whole ones of neighbours.
[[maybe_unused]] bool lies_in_words(int64_t k, bool is_a_k_major, const CpuKernelShape& shape) {
  return shape.k_per_word == 1 ? shape.is_of_words : is_a_k_major && k % shape.k_per_word == 0;
}

// Rows of a task up to which a B that is contiguous along n is streamed, read once where it lies, instead of being
// packed; `m` is of the product, `is_far`: B comes from memory. A row of 16-bit B comes in halves of cache lines, which
// cost most where rows are a power of two apart: on Zen 4, from two strips of rows on, packing whole lines is as fast
// as streaming, and steady. So is a B from memory that is packed on the way (Zen 4, fp32, 8x768x50257: 2.1 times as
// fast). By 512-bit vectors Zen 5 streams faster than it packs, the more so where elements are converted, and Intel's
// Emerald Rapids what comes from memory.
inline int64_t max_stream_rows(Isa isa, Cores cores, const CpuKernelShape& shape, bool is_far, int64_t m) {
  const bool is_intel = cores == Cores::intel, is_wide = micro_tile(isa).vector_bytes == 64,
             converts = !lies_in_words(0, false, shape);
  int64_t rows = shape.k_per_word == 2 ? 6 : kFewRows;
  if (is_far && !converts && !is_intel) {
    rows = 5;
  } else if (is_wide && is_intel) {
    rows = is_far ? 32 : converts ? 16 : kFewRows;
  } else if (is_wide && cores == Cores::zen5) {
    rows = converts ? 32 : 24;
  }
  return m <= rows ? rows : min_of(rows, kFewRows);  // else B is streamed once more for each task of rows
}

// Whether items are multiplied where they lie: words, of which vectors are whole or masked, of items that are small, or
// of few rows by a B of short rows. A high and narrow C is better computed as C^T, and one of a short k row by row. A B
// along k is packed, which few rows do not repay.
[[maybe_unused]] bool lies_in_place(const GemmProblem& p, const CpuKernelShape& shape) {
  const int64_t lanes = shape.thread_n / 2, bytes_c = p.m * p.n * shape.acc_bytes;
  const bool packs_b = p.stride_bn != 1;
  const bool has_words = shape.is_of_words && shape.k_per_word == 1 && mix_of(p) == Mix::none;
  const bool has_vectors = lanes * shape.acc_bytes == 64 || p.n % lanes == 0;
  const bool is_in_order = (!packs_b || p.stride_bk == 1) && p.stride_cn == 1 && (p.stride_ak == 1 || p.stride_am == 1);
  const bool is_small =
      p.k <= kChunkWords && p.k * p.n * shape.acc_bytes <= kInPlaceBytes && p.m <= kInPlaceWords / max_of(1, p.n * p.k);
  const bool is_streamed = !packs_b && p.m <= kFewRows && p.n * shape.acc_bytes <= kStreamedRowBytes;
  return has_words && has_vectors && is_in_order && is_plain(p) && p.scaling == Scaling::none &&
         (is_streamed || is_small) && p.m <= (packs_b ? 24 : 8) * p.n &&
         (p.k > kMaxShortWords || bytes_c < kShortItemBytes) &&
         (!packs_b || p.m >= kMaxDotRows || (p.m > 1 && p.n * p.k <= kFewPackedWords));
}

// Chooses the tile numbers of a product, step by step. A template, since it divides by the numbers of the shape some
// twenty times, and each by a constant is a shift.
template <Isa ISA, DType DTYPE>
struct CpuConfigChoice {
  static constexpr CpuKernelShape kShape = kernel_shape(ISA, DTYPE);
  static constexpr int64_t kThreadN = kShape.thread_n, kChunk = kChunkWords * kShape.k_per_word;
  static constexpr int64_t kSize = size_of(DTYPE);

  const GemmProblem problem;
  const int64_t batch;
  const Chip& chip;
  const int64_t m = problem.m, n = problem.n, k = problem.k;
  const bool is_a_k_major = problem.stride_ak == 1, is_a_m_major = problem.stride_am == 1;
  const bool is_b_k_major = problem.stride_bk == 1, is_b_n_major = problem.stride_bn == 1;
  const bool is_intel = chip.cores == Cores::intel;
  const bool is_far = n * k * kSize >= kFarBytes;  // B comes from memory
  // Rows of A, if they are contiguous, begin in one set of the nearest cache.
  const bool is_one_set = (is_a_k_major ? problem.stride_am : problem.stride_ak) * kSize % kSetBytes == 0;
  const bool is_mixed = problem.dtype_a != problem.dtype_b;  // A is converted, so that it is always packed
  // Columns of words follow each other in memory.
  const bool is_b_dense = is_b_k_major && problem.stride_bn == k && kShape.k_per_word == 1 && kShape.is_of_words;
  const bool is_short_k = !is_mixed && (is_b_n_major || is_b_dense) && k >= 1 &&
                          ceil_div(k, kShape.k_per_word) <= kMaxShortWords && n >= kThreadN / 2;
  // All that there is to do, in tasks that are worth a thread. A C that is only written takes twice as long as what is
  // read.
  const double work =
      2.0 * double(m) * double(n) * double(k) * double(batch) * double(kShape.acc_bytes) / 4 / kTaskFlops +
      (double(m + n) * double(k) + double(m) * double(n)) * double(batch) * double(kSize) * (is_short_k ? 2 : 1) /
          kTaskBytes +
      (batch > 1 ? kItemWork * double(batch) : 0);
  const int64_t threads = threads_for(work, chip.num_cus, kWake);
  // Few rows with B contiguous along n: B is read once, where it lies. Of 8 bits it hardly ever is.
  const int64_t stream_rows = size_of(problem.dtype_b) == 1 ? 0 : max_stream_rows(ISA, chip.cores, kShape, is_far, m);
  const bool is_streamed = is_b_n_major && !is_short_k && m <= stream_rows;
  // Few rows with B contiguous along k: its columns are not packed, so that tasks need not have whole micro-tiles of
  // them, but for one or two rows where two vectors of columns take turns (dots.h).
  const bool is_dotted = is_b_k_major && !is_short_k && m <= kMaxDotRows;
  const bool has_two_chains = two_chains_pay(chip.cores, micro_tile(ISA).vector_bytes, kShape.word_bytes);
  const int64_t grain_n = is_dotted && !(m <= 2 && has_two_chains) ? kThreadN / 2 : kThreadN;
  const int64_t num_chunks = max_of(1, ceil_div(k, kChunk));
  // A packed row of A or column of B, of one chunk.
  const int64_t bytes_per_lane = round_up(ceil_div(min_of(k, kChunk), kShape.k_per_word) * kShape.word_bytes, 16);
  // Columns of B up to which a task's stay packed, for all of k, for the thread's next task with the same columns.
  const int64_t bytes_per_column = num_chunks * bytes_per_lane;
  const int64_t kept_cols = kKeptBBytes / max_of(1, bytes_per_column) / kThreadN * kThreadN;
  CpuConfig config{};

  CpuConfig choose() {
    const bool may_be_items = batch > 1 && k >= 1 && k <= kChunk && kShape.k_per_word == 1;
    const bool is_item_in_place = lies_in_place(problem, kShape) && choose_in_place();
    if (may_be_items && mix_of(problem) == Mix::none && choose_items(is_item_in_place)) return config;
    if (is_item_in_place) return config;
    config.num_threads = threads;
    // On Intel's Sapphire Rapids it is slower to pack a B on the way that comes from memory (0.8 to 0.9 of the speed).
    config.packs_b_on_the_way = is_b_n_major && lies_in_words(k, false, kShape) && !(is_far && is_intel);
    config.is_c_far = m * n * kSize >= kFarResultBytes;
    config.fetches_a = !is_intel;
    config.fetch = choose_fetch();
    config.has_two_chains = has_two_chains;
    config.tasks_m = config.tasks_n = config.split_k = 1;
    if (threads > 1) choose_tasks();
    config.task_m = ceil_div(m, config.tasks_m);
    config.task_n = min_of(n, round_up(ceil_div(n, config.tasks_n), grain_n));
    choose_micro_tile();
    choose_path();
    choose_blocks();
    config.tasks_m = ceil_div(m, config.task_m);
    config.tasks_n = ceil_div(n, config.task_n);
    return config;
  }

  // Zen 4 is 5 to 25 % faster where the next columns are fetched from memory. Zen 5 is 5 to 30 % faster by runs, but
  // not with short columns, nor with those that are converted; it needs no fetches of what its third level holds, where
  // two vectors in turns are faster. Intel's Sapphire Rapids keeps up with 16 columns by itself, and loses 15 % by
  // fetches. Nearer columns are faster without (10 %).
  CpuFetch choose_fetch() const {
    constexpr bool is_wide = micro_tile(ISA).vector_bytes == 64;
    if (is_wide && chip.cores == Cores::zen5) {
      if (n * k * kSize < kFarColumnsBytes) return CpuFetch::none;
      return k >= 2 * kChunk && (kShape.is_of_words || kShape.k_per_word == 2) ? CpuFetch::runs : CpuFetch::columns;
    }
    if (!is_intel) return is_far ? CpuFetch::columns : CpuFetch::none;
    // One or two threads gain 10 % there by what follows in these columns; sixteen, who wait for memory, lost 25 %, and
    // 256-bit vectors lose 4 %.
    if (threads > kFewThreads || !is_wide) return CpuFetch::none;
    if (is_far) return CpuFetch::along_k;
    // Items that come from memory one after the other: short columns end before what follows in them has arrived.
    const bool are_far = batch * n * k * kSize >= kFarBytes;
    return are_far && k * kSize <= kShortColumnBytes ? CpuFetch::columns : CpuFetch::none;
  }

  // Small items side by side, if that costs less than a task for each: what that takes at least, and what multiply-adds
  // and elements take, in multiply-adds of vectors. A task of whole vectors, or of those with masks, has no slow edges.
  // Fitted as plan_items is.
  bool choose_items(bool is_item_in_place) {
    constexpr int64_t kLanes = kThreadN / 2;
    if (!plan_items(problem, batch, kLanes, kShape.acc_bytes, config.items)) return false;
    const double operands = double((m + n) * k), results = double(m * n),
                 vectors = double(m) * double(n) * double(k) / double(kLanes);
    const bool is_whole = n % kLanes == 0 || micro_tile(ISA).vector_bytes == 64, is_row = m == 1 && is_b_n_major;
    const double least_cost = is_short_k ? 420 : !is_whole ? 900 : is_row ? 500 : 800;
    const double item_cost = is_item_in_place ? 150 + 1.4 * config.in_place.cost
                             : is_whole       ? least_cost + 0.5 * vectors + operands + 2 * results
                                        : least_cost + 3.5 * vectors + 2 * operands + (is_short_k ? 3 : 5) * results;
    if (config.items.cost >= double(batch) * item_cost) return false;
    config.path = CpuPath::items;
    share_groups(config.items, kLanes * kShape.acc_bytes, chip.num_cus, kWake);
    return true;
  }

  // Items where they lie, unless threads would wait for one that has an item more.
  bool choose_in_place() {
    constexpr double kPackItemCost = 8;     // of a packed vector of words
    constexpr int64_t kPackItemWords = 16;  // and what packing takes at least, in such vectors
    if (threads > 1 && batch < 4 * threads && batch % threads != 0) return false;
    config.path = CpuPath::in_place;
    config.in_place = tile_in_place(ISA, m, n, k, kThreadN / 2);
    config.in_place.packs_b = !is_b_n_major;
    if (!is_b_n_major) config.in_place.cost += kPackItemCost * double(ceil_div(n, kThreadN / 2) * k + kPackItemWords);
    config.in_place.task_items = ceil_div(batch, tasks_for(work, threads));
    return true;
  }

  // The grid of tasks, and whether chunks of k are computed side by side: what costs least of some ways.
  void choose_tasks() {
    const bool is_few = is_streamed || is_dotted;
    // Chunks of k side by side, of a single product: each chunk's sums are written and read once.
    const int64_t sums_bytes = m * round_up(n, kThreadN) * kShape.acc_bytes;
    const int64_t side_by_side = min_of(num_chunks, max_of(kTurns * threads, kSumsBytes / sums_bytes));
    const bool can_split = batch == 1 && num_chunks > 1 && !is_short_k && side_by_side * sums_bytes <= kMaxSumsBytes;
    double best = 0;
    const auto judge = [&](int64_t tasks_m, int64_t tasks_n, bool splits) {
      const int64_t rows = ceil_div(m, tasks_m), cols = min_of(n, round_up(ceil_div(n, tasks_n), grain_n));
      tasks_m = ceil_div(m, rows), tasks_n = ceil_div(n, cols);
      const double cost = cost_of_tasks(tasks_m, tasks_n, rows, cols, splits);
      if (best != 0 && cost >= best) return;
      best = cost;
      config.tasks_m = tasks_m, config.tasks_n = tasks_n, config.split_k = splits ? side_by_side : 1;
    };
    for (int64_t turns = 1; turns <= kTurns; turns *= 2) {
      const int64_t tasks = ceil_div(turns * threads, batch);
      if (turns > 1 && work < kMinTask * double(turns * threads)) break;
      if (can_split) judge(1, max_of(1, tasks / num_chunks), true);
      // Whole rows of C if k is short: threads that write the same rows side by side would take each other's cache
      // lines away. Else whole micro-tiles.
      const int64_t most_m = is_few ? 1 : min_of(tasks, is_short_k ? m : max_of(1, m / kShape.max_thread_m));
      for (int64_t tasks_m = is_short_k ? most_m : 1; tasks_m <= most_m; tasks_m *= 2) {
        judge(tasks_m, tasks / tasks_m, false);
      }
      // Long rows may be shared: a part of one is many cache lines.
      if (is_short_k && n * kSize >= tasks * kShortRowBytes) judge(1, tasks, false);
    }
  }

  // What a grid of tasks of so many rows and columns costs, in multiply-adds of vectors for a word of k.
  double cost_of_tasks(int64_t tasks_m, int64_t tasks_n, int64_t rows, int64_t cols, bool splits) const {
    const double words = double(ceil_div(max_of(1, k), kShape.k_per_word));
    const int64_t uses_b = cols > kept_cols ? 1 : min_of(tasks_m, max_of(1, batch * tasks_m * tasks_n / threads));
    // A task's columns of a B along n are a run of memory in each row. Short runs cost more, where they come from
    // memory.
    const double runs = is_b_n_major && is_far ? 1 + kShortRunBytes / double(cols * kSize) : 1;
    const double packed_cols = is_streamed || is_dotted ? 0 : double(cols) * runs / double(uses_b);
    const double packed_rows = double(rows) / double(is_dotted && !splits ? max_of(1, tasks_n / threads) : 1);
    const double packing = kPackCost * double(kShape.word_bytes) * (packed_rows + packed_cols) + kTaskCost / words;
    const double chunks = splits ? words / double(kChunkWords) : 1;  // the last one may be short
    const double multiplied_rows = double(is_dotted ? max_of(rows, kTransposedRows) : rows) * (is_streamed ? runs : 1);
    // The wait for the slowest thread is short among few threads, of which none is much slower than the others.
    const double wait = is_intel && threads <= kFewThreads && work >= kLongWork
                            ? 0
                            : kMostWait * double(min_of(threads, kWaitThreads) - 1) / double(kWaitThreads - 1);
    const double cost = (columns_cost(cols, kShape) * multiplied_rows + packing) / chunks *
                        turns_of(double(batch * tasks_m * tasks_n) * chunks, threads, wait);
    if (!splits) return cost;
    const double sums_cost = double(m) * columns_cost(n, kShape) * 3 / double(kChunkWords) / double(threads);
    return kRegionCost * (cost + sums_cost) + (is_dotted ? kDotRegionTime : kRegionTime) / words;
  }

  // The rows of a micro-tile. A stays where it lies if it consists of words and is contiguous along k or m. Where k is
  // not contiguous, or where its rows begin in one set of the nearest cache, which holds few of them, many columns
  // repay packing; on Intel half as many where k is not contiguous (fp64, 1024x1024x1024 TN in tasks of 64 columns: 1.6
  // times as fast). There few threads read rows faster that are packed.
  void choose_micro_tile() {
    const int64_t few_columns = is_intel && !is_a_k_major ? kFewColumns / 2 : kFewColumns;
    const bool is_in_place_as_fast = is_a_k_major && !(is_intel && threads <= kFewThreads);
    const int64_t max_columns = is_one_set ? few_columns : is_in_place_as_fast ? n : kTurnColumns;
    config.is_a_in_place = !is_mixed && (is_a_k_major || is_a_m_major) && lies_in_words(k, is_a_k_major, kShape) &&
                           config.task_n <= max_columns;
    const bool are_rows_in_one_set = config.is_a_in_place && is_a_k_major && is_one_set;
    const int64_t most_m = are_rows_in_one_set ? min_of(kShape.max_thread_m, kSetRows) : kShape.max_thread_m;
    // Micro-tiles as even as m allows, and tasks of whole micro-tiles.
    config.thread_m = ceil_div(config.task_m, ceil_div(config.task_m, most_m));
    config.task_m = min_of(m, round_up(config.task_m, config.thread_m));
  }

  // How A and B reach the registers.
  void choose_path() {
    const int64_t chunks = ceil_div(max_of(1, depth()), kChunk);
    const int64_t packed_rows = round_up(config.task_m, config.thread_m);
    config.is_resident = packed_rows * bytes_per_lane * chunks <= kPanelABytes;
    const bool has_single_words =
        !is_mixed && is_a_k_major && kShape.k_per_word == 1 && lies_in_words(k, is_a_k_major, kShape);
    config.path = CpuPath::packed;
    if (is_short_k) {
      config.path = CpuPath::short_k;
    } else if (is_b_n_major && config.task_m <= stream_rows && n > kThreadN) {
      config.path = CpuPath::stream_rows;
      // A task has too few columns to repay packing rows. Those in one set are packed from kSetRows on, since lines of
      // B come into that set, too.
      config.is_a_in_place = has_single_words && (!is_one_set || config.task_m < kSetRows);
    } else if (is_b_k_major && config.task_m <= kMaxDotRows && config.is_resident) {
      config.path = CpuPath::dot_rows;
      config.is_a_in_place = has_single_words && config.task_m == 1;
      config.keeps_a = !config.is_a_in_place && config.split_k == 1 && config.tasks_m == 1 && config.tasks_n > threads;
    }
  }

  // What is packed at one time, and what of it stays for the next task.
  void choose_blocks() {
    const bool is_packed = config.path == CpuPath::packed;
    const int64_t tiles_m = ceil_div(config.task_m, config.thread_m), tiles_n = ceil_div(config.task_n, kThreadN);
    // Partial sums need no memory of their own where C has their type. Else it is that of so many columns.
    const bool sums_in_c = kShape.acc_bytes == size_of(problem.dtype_c) && problem.stride_cn == 1;
    const int64_t panel_b = sums_in_c ? panel_b_bytes() : kPanelBBytes;
    // Where k is short, C is written along its rows: one micro-tile of rows meets all columns.
    const bool is_by_rows = is_intel && config.is_c_far && ceil_div(k, kShape.k_per_word) <= kByRowsWords;
    const int64_t fitting_m = is_by_rows ? 1 : panel_a_bytes() / max_of(16, bytes_per_lane) / config.thread_m;
    const int64_t fitting_n = panel_b / max_of(16, bytes_per_lane) / kThreadN;
    const int64_t blocks_m = ceil_div(tiles_m, max_of(1, fitting_m));
    config.block_m = ceil_div(tiles_m, blocks_m) * config.thread_m;  // a block of few rows would take all of B, too
    config.block_n = max_of(1, min_of(tiles_n, fitting_n)) * kThreadN;
    // One strip of rows and A at hand: take B strip by strip over the whole of k, in the order in which it lies in
    // memory.
    if (config.is_resident && tiles_m == 1 && is_b_k_major) config.block_n = kThreadN;
    config.keeps_b = is_packed && config.split_k == 1 && config.tasks_m > 1 &&
                     batch * config.tasks_m * config.tasks_n > threads && config.task_n <= kept_cols;
    if (config.keeps_b) config.block_n = round_up(config.task_n, kThreadN);
    if (!sums_in_c && depth() > kChunk && is_packed) {
      // Even tasks of so many rows that the sums of block_n columns fit.
      const int64_t fitting_rows = max_of(config.thread_m, kSumsBytes / kShape.acc_bytes / config.block_n);
      const int64_t parts = ceil_div(config.task_m, fitting_rows);
      config.task_m = min_of(m, round_up(ceil_div(config.task_m, parts), config.thread_m));
    }
  }

  // Packed A at one time. While its micro-tiles are multiplied, the next strip of packed B comes from the third level:
  // eight of them take as long as that.
  int64_t panel_a_bytes() const {
    return chip.near_bytes < kLargeNearBytes ? kPanelABytes : kPanelARows * kChunkWords * kShape.word_bytes;
  }
  // Packed B at one time: the more columns, the less often A is packed.
  int64_t panel_b_bytes() const {
    return is_intel ? max_of(kPanelBBytes, min_of(kMostPanelBBytes, kAllPanelsBBytes / chip.num_cus)) : kPanelBBytes;
  }

  // The elements of k that a task takes.
  int64_t depth() const { return min_of(k, config.split_k > 1 ? kChunk : k); }
};

struct CpuPlan {
  CpuConfig config;
  bool is_exchanged;  // C^T = B^T A^T is computed; `config` is of that product
};

// The cost of all of C, in multiply-adds of vectors, with what comes before them: packing A, where it is not used in
// place, and B for more than few rows. An A along m that comes from memory costs as if it were packed; a B along n that
// consists of words is packed on the way. Fitted to both ways of random products on one thread of a Zen 4, by 256- and
// 512-bit vectors.
[[maybe_unused]] double operands_cost(int64_t m, int64_t n, int64_t k, bool is_a_k_major, bool is_b_n_major,
                                      bool is_mixed, const CpuKernelShape& shape) {
  constexpr double kPackACost = 0.5, kTurnACost = 1;              // of a word of a row
  constexpr double kPackBCost = 0.25, kPackBOnTheWayCost = 0.06;  // of a word of a column
  const auto words = double(ceil_div(k, shape.k_per_word));
  const bool is_far = double(m) * words * double(shape.word_bytes) >= double(kFarTurnBytes);
  const bool is_in_place =
      !is_mixed && lies_in_words(k, is_a_k_major, shape) && (is_a_k_major || (n <= kTurnColumns && !is_far));
  const bool is_on_the_way = is_b_n_major && lies_in_words(k, false, shape);
  const double packing_a = is_in_place ? 0 : is_a_k_major ? kPackACost : kTurnACost;
  const double packing_b = m <= kFewRows ? 0 : is_on_the_way ? kPackBOnTheWayCost : kPackBCost;
  return words * (double(m) * (columns_cost(n, shape) + packing_a) + double(n) * packing_b);
}

// The operands exchange their roles where that costs less, unless B has 8 bits. Products commute, so no bit depends on
// it.
template <Isa ISA>
bool exchanges_operands(const GemmProblem& p) {
  if (size_of(p.dtype_b) == 1) return false;
  // A strided store of C costs about two vector operations an element.
  const double stores = 2.0 * double(p.m) * double(p.n);
  const CpuKernelShape shape = kernel_shape(ISA, p.dtype_b), exchanged = kernel_shape(ISA, p.dtype_a);
  const bool is_mixed = p.dtype_a != p.dtype_b;
  const double cost = operands_cost(p.m, p.n, p.k, p.stride_ak == 1, p.stride_bn == 1, is_mixed, shape);
  const double cost_exchanged = operands_cost(p.n, p.m, p.k, p.stride_bk == 1, p.stride_am == 1, is_mixed, exchanged);
  return cost + (p.stride_cn != 1) * stores > cost_exchanged + (p.stride_cm != 1) * stores;
}

// DTYPE: that of the operand that is B where they have exchanged their roles.
template <Isa ISA, DType DTYPE>
CpuPlan choose_cpu_plan(const FoldedProblem& problem, const Chip& chip, bool is_exchanged) {
  constexpr CpuKernelShape shape = kernel_shape(ISA, DTYPE);
  const GemmProblem& p = problem.gemm;
  CpuPlan plan;
  if (problem.batch_size == 1 && p.dtype_a == p.dtype_b && p.m * p.n <= kMaxDots &&
      p.k >= kMinDotChunks * kChunkWords * shape.k_per_word && p.stride_ak == 1 && p.stride_bk == 1) {
    plan.is_exchanged = is_exchanged;
    plan.config = {};
    plan.config.path = CpuPath::long_dots;
    return plan;
  }
  const auto choose = [&](bool exchanges) {
    plan.is_exchanged = exchanges;
    plan.config = CpuConfigChoice<ISA, DTYPE>{exchanges ? transposed(p) : p, problem.batch_size, chip}.choose();
  };
  choose(is_exchanged && !lies_in_place(p, shape));
  const bool is_by_items = plan.config.path == CpuPath::in_place || plan.config.path == CpuPath::items;
  if (is_exchanged != plan.is_exchanged && !is_by_items) choose(is_exchanged);
  if (plan.config.path == CpuPath::items) plan.is_exchanged = p.m > p.n;  // a micro-tile is wider than high
  return plan;
}

}  // namespace
}  // namespace tiledmm

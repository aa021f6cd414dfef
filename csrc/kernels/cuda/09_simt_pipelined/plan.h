// The block tiles of the simt_pipelined kernel, as plain data, and the pure function that chooses one. They share out
// work; none of them changes a bit of the result: the order of summation is the same for all.
#pragma once

#include <initializer_list>

#include "core/math.h"
#include "core/operand.h"

namespace tiledmm {

struct SimtShape {
  int block_m, block_n, block_k;
  int thread_m, thread_n;
  int warps_m, warps_n;
  int num_stages;
  int blocks_per_cu;      // that registers and shared memory admit
  int k_step;             // elements of k that a fragment holds
  int num_fragments;      // one that is multiplied, the others on their way
  double alone, crowded;  // cycles for each k: of a block alone on its SM, and for each block where there are several

  constexpr int num_threads() const { return 32 * warps_m * warps_n; }
  constexpr int64_t area() const { return int64_t(block_m) * block_n; }
};

// Cycles measured on an H200.
inline constexpr SimtShape kSimtShapes[] = {
    {256, 128, 8, 16, 8, 4, 2, 4, 1, 1, 2, 318, 318}, {128, 96, 16, 8, 12, 2, 2, 4, 2, 1, 2, 149, 125.2},
    {128, 64, 8, 8, 8, 2, 2, 5, 3, 1, 2, 90.7, 81.4}, {96, 64, 16, 6, 8, 2, 2, 4, 3, 1, 2, 74.3, 63},
    {64, 64, 16, 8, 4, 2, 2, 4, 3, 1, 4, 53, 43.9},   {96, 48, 16, 6, 6, 2, 2, 5, 2, 4, 2, 73.9, 64},
    {64, 48, 32, 4, 6, 2, 2, 4, 2, 4, 2, 47.8, 39.8}, {64, 32, 32, 4, 4, 2, 2, 4, 3, 4, 2, 31.8, 27.1},
    {64, 32, 16, 4, 4, 2, 2, 6, 4, 1, 4, 31.4, 25.8}, {32, 32, 64, 4, 2, 4, 1, 4, 3, 4, 4, 22.5, 17.3},
    {16, 32, 64, 2, 2, 4, 1, 6, 2, 4, 4, 14, 11.7},   {8, 32, 64, 2, 1, 4, 1, 8, 2, 4, 4, 12.5, 11},
    {4, 32, 128, 1, 1, 4, 1, 4, 2, 4, 4, 11.1, 8.4},
};
inline constexpr int kNumSimtShapes = int(sizeof(kSimtShapes) / sizeof(SimtShape));

// Tall tiles are built for an m-major A with a k-major B only: the k-major operand, the dearer one to copy, is then the
// small side. The other mixed layout runs as the transposed product.
constexpr bool is_built(const SimtShape& shape, bool is_a_k_major, bool is_b_k_major) {
  return is_b_k_major || !is_a_k_major || shape.block_m < shape.block_n;
}

// The shared memory that a block takes at most: the stages, and the total where it computes several chunks.
constexpr int64_t simt_shared_bytes(const SimtShape& shape, bool is_a_k_major, bool is_b_k_major, bool is_folding) {
  const auto elements = [&](int64_t block_mn, bool is_k_major) {
    return is_k_major && shape.k_step == 4 ? block_mn * (shape.block_k + 4) : shape.block_k * (block_mn + 4);
  };
  const int64_t stage = elements(shape.block_m, is_a_k_major) + elements(shape.block_n, is_b_k_major);
  return 256 + 4 * shape.num_stages * stage + (is_folding ? 4 * shape.area() : 0);
}

// Few rows of C: a block's warps take chunks of k of so many columns, each with a ring of so many stages of its own
// (few_rows.h). num_splits: blocks of one warp that take a chunk each, where a second kernel adds their sums; or 1.
struct FewRowsPlan {
  int rows, cols, num_stages;
  int num_warps, num_splits;
};
inline constexpr int kMaxFewRows = 8, kFewRowsMaxWarps = 8;
inline constexpr int kFewCols = 32, kFewColsNarrow = 8, kFewStages = 3, kFewStagesDeep = 6, kFewStagesNarrow = 4;
constexpr int few_rows_block_k(int cols) { return 2048 / cols; }
constexpr int64_t few_rows_shared_bytes(int rows, int cols, int num_stages) {
  const int block_k = few_rows_block_k(cols);
  return 4 * (num_stages * (rows * block_k + cols * (block_k + 4)) + rows * cols);
}

// What of an operand decides the way of its copies.
struct SimtOperand {
  bool is_k_major;
  bool is_aligned;  // 16 bytes at a time
};

// One product, or one batch of them.
struct SimtTask {
  int64_t m, n, k, batch;
  int64_t chunk_k;  // of the order of summation (summation.h)
  SimtOperand a, b;
  int num_cus;
  int64_t max_shared_bytes;  // of a block
};

constexpr int64_t num_simt_tiles(const SimtShape& shape, const SimtTask& task) {
  return ceil_div(task.m, shape.block_m) * ceil_div(task.n, shape.block_n);
}

// How it is computed.
struct SimtPlan {
  int shape;
  bool is_transposed;     // C^T = B^T A^T; what follows is of that product
  int64_t num_whole;      // tiles, of each product; the chunks of the others are computed by blocks of their own
  bool packs_a, packs_b;  // copied first: m (n) close, aligned
  FewRowsPlan few_rows;   // rows > 0: no tiles
};

constexpr SimtTask transposed(const SimtTask& task) {
  SimtTask result = task;
  result.m = task.n, result.n = task.m, result.a = task.b, result.b = task.a;
  return result;
}

constexpr FewRowsPlan plan_few_rows(const SimtTask& task) {
  const int64_t num_chunks = max_of(1, ceil_div(task.k, task.chunk_k));
  const int64_t wide_blocks = ceil_div(task.n, kFewCols) * task.batch;
  const bool is_narrow = task.m <= 4 && wide_blocks * min_of(num_chunks, 4) < 2 * task.num_cus;
  const int rows = task.m == 1 ? 1 : is_narrow || task.m == 3 || task.m == 4 ? 4 : task.m == 2 ? 2 : 8;
  const int cols = is_narrow ? kFewColsNarrow : kFewCols;
  const int64_t blocks = ceil_div(task.n, cols) * task.batch;
  // One block of eight warps on a multiprocessor, or two of four; deeper rings where there is one of few warps.
  const int64_t most = blocks <= task.num_cus ? kFewRowsMaxWarps : 4;
  const auto num_warps = [&](int num_stages) {
    const int64_t fitting = task.max_shared_bytes / few_rows_shared_bytes(rows, cols, num_stages);
    return int(ceil_div(num_chunks, ceil_div(num_chunks, max_of(1, min_of(most, fitting)))));
  };
  if (is_narrow) return {rows, cols, kFewStagesNarrow, num_warps(kFewStagesNarrow), 1};
  const bool is_deep = blocks <= task.num_cus && num_warps(kFewStagesDeep) == num_warps(kFewStages);
  const int num_stages = is_deep ? kFewStagesDeep : kFewStages;
  return {rows, cols, num_stages, num_warps(num_stages), 1};
}

// With a block for each chunk; deeper rings where four blocks or fewer come to a multiprocessor.
constexpr FewRowsPlan plan_split_few_rows(const SimtTask& task) {
  const int64_t num_chunks = ceil_div(task.k, task.chunk_k), blocks = ceil_div(task.n, kFewCols) * task.batch;
  const bool is_narrow = task.m <= 4 && blocks * num_chunks < task.num_cus;
  const int rows = task.m == 1 ? 1 : is_narrow || task.m == 3 || task.m == 4 ? 4 : task.m == 2 ? 2 : 8;
  if (is_narrow) return {rows, kFewColsNarrow, kFewStagesNarrow, 1, int(num_chunks)};
  const bool is_deep = blocks * num_chunks <= 4 * task.num_cus;
  return {rows, kFewCols, is_deep ? kFewStagesDeep : kFewStages, 1, int(num_chunks)};
}

inline constexpr double kSimtFixed = 5.2, kSimtCyclesPerUs = 1980;
inline constexpr double kAddition = 2.7, kAddedBytesPerUs = 4.5e6;  // of the chunks' sums by a second kernel

inline double few_rows_microseconds(const SimtTask& task, const FewRowsPlan& plan) {
  constexpr double kLatency = 1, kLoad = 1.15, kBytesPerUs = 3.7e6;  // cycles for each k of a fragment
  const double elements = double(task.n) * double(task.k) * double(task.batch);
  const int64_t num_chunks = max_of(1, ceil_div(task.k, task.chunk_k));
  const int64_t blocks = ceil_div(task.n, plan.cols) * task.batch * plan.num_splits;
  const int64_t bytes = few_rows_shared_bytes(plan.rows, plan.cols, plan.num_stages) * plan.num_warps;
  const int64_t per_cu = min_of(max_of(1, task.max_shared_bytes / bytes), ceil_div(blocks, task.num_cus));
  const int64_t chunks_of_warp = ceil_div(num_chunks, plan.num_warps * plan.num_splits);
  const int64_t rounds = ceil_div(blocks, task.num_cus * per_cu) * chunks_of_warp;
  const double loads = kLoad * double(per_cu * plan.num_warps) * (1 + plan.rows);
  const double chain = 8 + 5 * double(ceil_div(plan.rows, kFewCols / plan.cols));  // of a lone warp
  const double work =
      kLatency + double(rounds * min_of(task.chunk_k, task.k)) * (loads > chain ? loads : chain) / kSimtCyclesPerUs;
  const double memory = 4 * elements / kBytesPerUs;
  const double partial = double(num_chunks * task.m) * double(task.n) * double(task.batch);
  const double addition = plan.num_splits > 1 ? kAddition + 8 * partial / kAddedBytesPerUs : 0;
  return kSimtFixed + (work > memory ? work + 0.1 * memory : memory + 0.1 * work) + addition;
}

// Microseconds by a simple model, fitted on an H200: rounds of the blocks that an SM holds at one time, of which the
// last one is not full; or what moves the operands and C, if longer. kNever: the plan cannot be carried out.
inline constexpr double kNever = 1e30;
inline double simt_microseconds(const SimtTask& asked, const SimtPlan& plan) {
  constexpr double kRound = 1.3, kTile = 1.4e-5, kStaged = 9.4e-5, kPack = 4.3;
  constexpr double kMaxPackedBytes = 1 << 30;
  constexpr double kPackedBytesPerUs = 3.8e6;
  constexpr double kReadBytesPerUs = 2.8e6, kStoredBytesPerUs = 1.75e6;  // caches full of dirty lines, as a rule
  constexpr double kTransposed = 0.071;  // cycles for each k and element of a tile copied by 4 bytes
  constexpr double kUnaligned = 0.18;
  constexpr double kFold = 0.07;   // cycles for each element of a tile between chunks
  constexpr double kLoop = 3.5;    // cycles for each multiply-add of the main loop: its instructions come from memory
  constexpr double kEdge = 0.038;  // microseconds for each element that a thread copies where k ends within a tile
  const SimtShape& shape = kSimtShapes[plan.shape];
  SimtTask task = plan.is_transposed ? transposed(asked) : asked;
  if (plan.few_rows.rows > 0) return few_rows_microseconds(task, plan.few_rows);
  const double elements_c = double(task.m) * double(task.n) * double(task.batch);
  double packed = 0, fixed = kSimtFixed;
  if (plan.packs_a) task.a = {false, true}, packed += double(task.m) * double(task.k) * double(task.batch);
  if (plan.packs_b) task.b = {false, true}, packed += double(task.n) * double(task.k) * double(task.batch);
  if (4 * packed > kMaxPackedBytes) return kNever;
  if (packed > 0) fixed += kPack + 8 * packed / kPackedBytesPerUs;
  if (!is_built(shape, task.a.is_k_major, task.b.is_k_major)) return kNever;
  const bool is_folding = plan.num_whole > 0 && task.chunk_k < task.k;
  const int64_t shared = simt_shared_bytes(shape, task.a.is_k_major, task.b.is_k_major, is_folding);
  const int64_t per_cu = shared > task.max_shared_bytes
                             ? 0
                             : min_of(shape.blocks_per_cu, (task.max_shared_bytes + 1024) / (shared + 1024));
  if (per_cu == 0) return kNever;

  double copies = 0, slower = 1;
  for (const bool is_a : {true, false}) {
    const SimtOperand& operand = is_a ? task.a : task.b;
    if (shape.k_step == 1 && operand.is_k_major) {
      copies += kTransposed * (is_a ? shape.block_m : shape.block_n);
    } else if (!operand.is_aligned) {
      slower = 1 + kUnaligned;
    }
  }
  const int64_t num_chunks = max_of(1, ceil_div(task.k, task.chunk_k));
  if (is_folding) copies += kFold * double(shape.area()) * double(num_chunks - 1) / double(task.k);
  const double alone = slower * (shape.alone + copies), crowded = slower * (shape.crowded + copies);
  const double loop = kLoop * double(shape.thread_m * shape.thread_n * shape.block_k);
  const auto longer = [](double a, double b) { return a > b ? a : b; };
  // Adds the time of `blocks` blocks, of which per_cu share a multiprocessor.
  double cycles = 0, num_rounds = 0, most_blocks = 0;
  const auto run = [&](int64_t blocks, int64_t k) {
    const int64_t slots = task.num_cus * per_cu, rounds = blocks / slots;
    const int64_t rest = ceil_div(blocks - rounds * slots, task.num_cus);
    const double full = longer(alone, double(per_cu) * crowded), last = longer(alone, double(rest) * crowded);
    cycles += double(k) * (double(rounds) * full + (rest > 0 ? last : 0));
    num_rounds += double(rounds + (rest > 0));
    most_blocks += double(rounds * per_cu + rest);
  };
  const int64_t num_split = num_simt_tiles(shape, task) - plan.num_whole;
  const bool is_mixed = num_split > 0 && plan.num_whole > 0;
  if (is_mixed) {
    // Blocks of both kinds side by side: whole tiles that fill the chip at first, so that the others balance the end.
    if (plan.num_whole < task.num_cus * per_cu) return kNever;
    const double whole = double(plan.num_whole / task.num_cus),
                 parts = double(ceil_div(num_split * num_chunks, task.num_cus));
    most_blocks = whole + parts + 0.5;  // an end that is not quite even
    num_rounds = double(ceil_div(int64_t(most_blocks), per_cu));
    cycles = (per_cu == 1 ? alone : crowded) * (whole * double(task.k) + (parts + 0.5) * double(task.chunk_k));
  } else if (num_split > 0) {
    run(num_split * num_chunks * task.batch, task.chunk_k);
  } else {
    run(plan.num_whole * task.batch, task.k);
  }
  cycles += loop * num_rounds;
  // C straight from the registers needs 4 neighbours in a thread, and rows of a multiple of 16 bytes.
  const int thread_close = plan.is_transposed && plan.num_whole > 0 ? shape.thread_m : shape.thread_n;
  const bool is_staged = shape.k_step == 4 || thread_close % 4 != 0 || (asked.n % 4 != 0 && plan.num_whole > 0);
  const double copied_by_thread = double((shape.block_m + shape.block_n) * shape.block_k / shape.num_threads());
  const double store = (is_staged ? kStaged : kTile) * double(shape.area());
  const double edge = task.k % shape.block_k != 0 ? kEdge * copied_by_thread : 0;
  const double work = cycles / kSimtCyclesPerUs + (store + edge) * most_blocks + kRound * num_rounds;
  const double read = double(task.m + task.n) * double(task.k) * double(task.batch);
  const double memory = 4 * read / kReadBytesPerUs + 4 * elements_c / kStoredBytesPerUs;
  const double partial = double(num_split * num_chunks * shape.area()) * double(task.batch);
  const double addition = num_split > 0 ? kAddition + 8 * partial / kAddedBytesPerUs : 0;
  return fixed + longer(work, memory) + 0.1 * (work + memory - longer(work, memory)) + addition;
}

// A problem as the model sees it, on a chip.
inline SimtTask simt_task(const FoldedProblem& problem, int num_cus, int64_t max_shared_bytes) {
  const GemmProblem& p = problem.gemm;
  const OperandView a = view_a(p), b = view_b(p);
  return {p.m,
          p.n,
          p.k,
          problem.batch_size,
          problem.chunk_k,
          {is_k_major(a), is_aligned(a, problem)},
          {is_k_major(b), is_aligned(b, problem)},
          num_cus,
          max_shared_bytes};
}

// Calls visit(plan, microseconds) for each plan that can be carried out.
template <class Visit>
void for_each_simt_plan(const SimtTask& task, const Visit& visit) {
  constexpr double kMaxWorkspace = 1 << 28;
  constexpr double kMinPackedFlops = 1e8;  // below, copies cost more than they save, and so does thinking of them
  const bool is_chunked = task.chunk_k < task.k;
  const int64_t num_chunks = is_chunked ? ceil_div(task.k, task.chunk_k) : 1;
  const bool may_pack = double(task.m) * double(task.n) * double(task.k) * double(task.batch) >= kMinPackedFlops;
  const auto consider = [&](const SimtPlan& plan) {
    const double time = simt_microseconds(task, plan);
    if (time < kNever) visit(plan, time);
  };
  for (const bool is_transposed : {false, true}) {
    const SimtTask oriented = is_transposed ? transposed(task) : task;
    if (oriented.m <= kMaxFewRows) {
      consider({0, is_transposed, 0, false, false, plan_few_rows(oriented)});
      const double sums = double(num_chunks) * double(oriented.m) * double(oriented.n) * double(oriented.batch);
      if (is_chunked && 4 * sums <= kMaxWorkspace)
        consider({0, is_transposed, 0, false, false, plan_split_few_rows(oriented)});
    }
    for (int shape = 0; shape < kNumSimtShapes; ++shape) {
      const int64_t tiles = num_simt_tiles(kSimtShapes[shape], oriented);
      // All tiles whole; all split; those beyond the last full wave split.
      const int64_t full_waves = tiles / task.num_cus * task.num_cus;
      for (int way = 0; way < (is_chunked ? 3 : 1); ++way) {
        if (way == 2 && (task.batch > 1 || full_waves == 0 || full_waves == tiles)) continue;
        const int64_t num_whole = way == 0 ? tiles : way == 1 ? 0 : full_waves;
        const double partial = double(tiles - num_whole) * double(num_chunks * kSimtShapes[shape].area());
        if (4 * partial * double(task.batch) > kMaxWorkspace) continue;
        for (int packs = 0; packs < (may_pack && kSimtShapes[shape].k_step == 1 ? 4 : 1); ++packs) {
          const bool packs_a = packs & 1, packs_b = packs & 2;
          if (packs_a && !oriented.a.is_k_major && oriented.a.is_aligned) continue;
          if (packs_b && !oriented.b.is_k_major && oriented.b.is_aligned) continue;
          consider({shape, is_transposed, num_whole, packs_a, packs_b, {}});
        }
      }
    }
  }
}

inline SimtPlan choose_simt_plan(const SimtTask& task) {
  SimtPlan best{};
  double best_time = kNever;
  for_each_simt_plan(task, [&](const SimtPlan& plan, double time) {
    if (time < best_time) best = plan, best_time = time;
  });
  return best;
}

}  // namespace tiledmm

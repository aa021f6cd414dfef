// What one thread does at a time in amx: a block of C over all of k or over one chunk of it.
#pragma once

#include "kernels/cpu/amx/kernel.h"
#include "kernels/cpu/amx/short_k.h"
#include "kernels/cpu/shared/parallel.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

// Operands packed before the tasks begin, for all of them: of one item, null where each task packs its own.
struct SharedPanels {
  const char* a;
  const char* b;
};

// The memory of a task, in the order in which it lies. A part of 0 bytes is not used.
struct TaskWorkspace {
  int64_t panel_a = 0, panel_b = 0, partial = 0, finished = 0, totals = 0;

  TaskWorkspace(const AmxPlan& plan, int64_t k) {
    if (plan.path == AmxPath::short_k) return;
    const int64_t chunk_bytes = strip_bytes(min_of(k, kAmxChunkK)), k_bytes = strip_bytes(k);
    const int64_t strips_m = ceil_div(plan.task_m, kAmxStrip), strips_n = ceil_div(plan.task_n, kAmxStrip);
    const bool is_stream = plan.path == AmxPath::stream_rows || plan.path == AmxPath::stream_columns;
    const bool is_stream_rows = plan.path == AmxPath::stream_rows;
    panel_a = plan.is_a_shared     ? 0
              : is_stream_rows     ? kBlockSteps * kUnitBytes
              : is_stream          ? (plan.is_a_in_place ? 0 : strips_m * k_bytes)
              : plan.is_a_in_place ? chunk_bytes
                                   : strips_m * chunk_bytes;
    panel_b = plan.is_b_shared ? 0
              : is_stream_rows ? k_bytes
              : is_stream      ? min_of(strips_n, kGroupLanes / kAmxStrip) * kStreamSteps * kUnitBytes
                               : min_of(strips_n, kGroupLanes / kUnitLanes) * chunk_bytes;
    // Tiles of C that are computed at a time.
    const int64_t tiles =
        is_stream_rows ? 1 : strips_m * (is_stream ? min_of(strips_n, kGroupLanes / kAmxStrip) : strips_n);
    partial = (is_stream_rows ? 0 : is_stream ? tiles : strips_m == 1 ? 0 : strips_m) * kTileFloats * 4;
    finished = 2 * kTileFloats * 4;
    const bool has_totals = k > kAmxChunkK && plan.path != AmxPath::split_k;
    totals = has_totals ? tiles * kTileFloats * 4 : 0;
  }
  int64_t bytes() const { return panel_a + panel_b + partial + finished + totals + kWorkerStateBytes; }
};

template <class Op>
class BlockTask {
  using T = typename Op::Element;

 public:
  // `parts`: where the sums of a chunk go if k is split, [strips of rows][strips of columns][32][32]; null: to C.
  // `is_packed`: the item's few columns (stream_rows) or rows (stream_columns) are packed, from the task before.
  BlockTask(const AmxPlan& plan, const GemmProblem& item, const SharedPanels& shared, char* workspace, float* parts,
            bool is_packed)
      : plan_(plan),
        item_(item),
        shared_(shared),
        parts_(parts),
        is_packed_(is_packed),
        output_(item),
        rows_{item.a, item.stride_am, item.stride_ak, size_of(item.dtype_a)},
        cols_{item.b, item.stride_bn, item.stride_bk, size_of(item.dtype_b)} {
    const TaskWorkspace sizes(plan, item.k);
    panel_a_ = workspace;
    panel_b_ = panel_a_ + sizes.panel_a;
    partial_ = reinterpret_cast<float*>(panel_b_ + sizes.panel_b);
    finished_ = partial_ + sizes.partial / 4;
    totals_ = finished_ + sizes.finished / 4;
  }

  // The block of C at (row, col), for k from k_begin, a multiple of the chunk, to k_end.
  void run(int64_t row, int64_t col, int64_t k_begin, int64_t k_end) {
    row_ = row, num_rows_ = min_of(plan_.task_m, item_.m - row);
    col_ = col, num_cols_ = min_of(plan_.task_n, item_.n - col);
    k_begin_ = k_begin, k_end_ = k_end;
    switch (plan_.path) {
      case AmxPath::stream_rows:
        return run_stream_rows();
      case AmxPath::stream_columns:
        return run_stream_columns();
      case AmxPath::short_k:
        return multiply_short_k<T>(item_, row_, num_rows_);
      default:
        return run_blocks();
    }
  }

 private:
  static constexpr int64_t kChunkSteps = num_steps(kAmxChunkK);
  static constexpr int64_t kMaxStrips = kAmxMaxBlockM / kAmxStrip;
  using TileMultiplier = Multiplier<Op>;

  static bool has_two_tiles(int64_t lanes) { return lanes > kTileRows; }
  // A tile of which rows are missing is packed, unless the product has so few that no tile has more (tiles_of_rows).
  bool is_in_place(int64_t lanes) const {
    return plan_.is_a_in_place && (lanes % kTileRows == 0 || item_.m < kAmxStrip);
  }

  RowTiles rows_in_place(int64_t row, int64_t k) const {
    const int64_t stride = item_.stride_am * 2;
    return {reinterpret_cast<const char*>(rows_.at(row, k)), stride, kTileRows * stride, kTileRowBytes};
  }

  Target target_at(int64_t row, int64_t col, bool is_first, bool is_last, float* total) const {
    Target target;
    target.kind = is_first ? (is_last ? Target::Kind::finish : Target::Kind::none)
                           : (is_last ? Target::Kind::add_and_finish : Target::Kind::add);
    target.row = row_ + row, target.rows = min_of(kAmxStrip, num_rows_ - row);
    target.col = col_ + col, target.cols = min_of(kAmxStrip, num_cols_ - col);
    target.total = total;
    return target;
  }

  static void extend(TileMultiplier& multiplier, bool two_rows, bool two_cols, const RowTiles& a, const char* b,
                     int64_t steps) {
    if (two_rows) {
      two_cols ? multiplier.template extend<2, 2>(a, b, steps, b) : multiplier.template extend<2, 1>(a, b, steps, b);
    } else {
      two_cols ? multiplier.template extend<1, 2>(a, b, steps, b) : multiplier.template extend<1, 1>(a, b, steps, b);
    }
  }

  // Strip of columns by strip, blocks of k in which they stay near, all strips of rows.
  void run_blocks() {
    TileMultiplier multiplier(output_);
    const int64_t strips_m = ceil_div(num_rows_, kAmxStrip), strips_n = ceil_div(num_cols_, kAmxStrip);
    const int64_t block_steps = strips_m == 1 ? kChunkSteps : kBlockSteps;
    const int64_t first_strip = parts_ ? row_ / kAmxStrip : 0;
    int64_t buffer = 0;
    int64_t k = k_begin_;
    do {  // once for k = 0, too
      const int64_t depth = min_of(kAmxChunkK, k_end_ - k), steps = num_steps(depth);
      const bool is_first = k == k_begin_, is_last = k + depth >= k_end_;
      RowTiles rows[kMaxStrips];
      find_rows(k, depth, rows);
      for (int64_t j = 0; j < strips_n; ++j) {
        const char* b = columns_of(j, k, depth);
        // What comes after it where columns are packed for all; else it is in a near cache.
        const char* ahead = shared_.b ? b + strip_bytes(item_.k) : b;
        const bool two_cols = has_two_tiles(num_cols_ - j * kAmxStrip);
        for (int64_t step = 0; step < steps; step += block_steps) {
          const int64_t count = min_of(block_steps, steps - step);
          for (int64_t i = 0; i < strips_m; ++i) {
            const float* from = step > 0 ? partial_ + i * kTileFloats : nullptr;
            float* to = partial_ + i * kTileFloats;
            Target target;
            if (step + count == steps) {
              float* total = (parts_ ? parts_ : totals_) + ((first_strip + i) * strips_n + j) * kTileFloats;
              if (!parts_) target = target_at(i * kAmxStrip, j * kAmxStrip, is_first, is_last, total);
              to = target.kind == Target::Kind::none ? total : finished_ + (buffer ^= 1) * kTileFloats;
            }
            multiply(multiplier, has_two_tiles(num_rows_ - i * kAmxStrip), two_cols, rows[i].at(step),
                     b + step * kUnitBytes, count, from, to, target, ahead);
            if (shared_.b) ahead += (count - 1) * 64 * Op::kPrefetchLines;
          }
        }
      }
      k += depth;
    } while (k < k_end_);
    multiplier.flush();
  }

  // Where the tiles of each strip of rows lie for a chunk of k; packs what has to be.
  void find_rows(int64_t k, int64_t depth, RowTiles (&rows)[kMaxStrips]) {
    char* to = panel_a_;
    for (int64_t i = 0; i * kAmxStrip < num_rows_; ++i) {
      const int64_t row = row_ + i * kAmxStrip, lanes = min_of(kAmxStrip, num_rows_ - i * kAmxStrip);
      if (shared_.a) {
        rows[i] = packed_rows(shared_.a + row / kAmxStrip * strip_bytes(item_.k) + strip_offset(k));
      } else if (is_in_place(lanes)) {
        rows[i] = rows_in_place(row, k);
      } else {
        pack_strips<true>(rows_, row, lanes, k, depth, to, 0);
        rows[i] = packed_rows(to);
        to += strip_bytes(depth);
      }
    }
  }

  // Packed columns of strip j for a chunk of k.
  const char* columns_of(int64_t j, int64_t k, int64_t depth) {
    const int64_t col = col_ + j * kAmxStrip;
    if (shared_.b) return shared_.b + col / kAmxStrip * strip_bytes(item_.k) + strip_offset(k);
    constexpr int64_t kGroup = kGroupLanes / kUnitLanes;
    const int64_t bytes = strip_bytes(depth);
    if (j % kGroup == 0) {
      pack_strips<false>(cols_, col, min_of(kGroupLanes, num_cols_ - j * kAmxStrip), k, depth, panel_b_, bytes);
    }
    return panel_b_ + j % kGroup * bytes;
  }

  // At most 32 columns, packed for all of k: each row passes by once.
  void run_stream_rows() {
    TileMultiplier multiplier(output_);
    const char* b = shared_.b ? shared_.b : panel_b_;
    if (!shared_.b && !is_packed_) pack_strips<false>(cols_, 0, num_cols_, 0, item_.k, panel_b_, 0);
    const bool two_cols = has_two_tiles(num_cols_), is_widened = rows_.element_bytes == 1;
    int64_t buffer = 0;
    for (int64_t i = 0; i < num_rows_; i += kAmxStrip) {
      const int64_t lanes = min_of(kAmxStrip, num_rows_ - i);
      const bool two_rows = has_two_tiles(lanes), in_place = is_in_place(lanes);
      int64_t k = 0;
      do {
        const int64_t depth = min_of(kAmxChunkK, item_.k - k), steps = num_steps(depth);
        const Target target = target_at(i, 0, k == 0, k + depth >= item_.k, totals_);
        float* to = target.kind == Target::Kind::none ? totals_ : finished_ + (buffer ^= 1) * kTileFloats;
        const int64_t block_steps = in_place ? kChunkSteps : is_widened ? kWidenedSteps : kBlockSteps;
        for (int64_t step = 0; step < steps; step += block_steps) {
          const int64_t count = min_of(block_steps, steps - step), block_k = k + step * kTileK;
          const RowTiles rows = in_place ? rows_in_place(row_ + i, block_k) : packed_rows(panel_a_);
          if (!in_place) {
            // What follows the end of these rows is the beginning of the next ones.
            const bool ends = block_k + kWidenedAhead >= item_.k;
            const int64_t ahead = is_widened ? kWidenedAhead + (ends ? kAmxStrip * item_.stride_am - item_.k : 0) : 0;
            pack_strips<true>(rows_, row_ + i, lanes, block_k, min_of(count * kTileK, item_.k - block_k), panel_a_, 0,
                              ahead);
          }
          const char* columns = b + strip_offset(block_k);
          if (step == 0) {
            multiply(multiplier, two_rows, two_cols, rows, columns, count, nullptr, to, target, columns);
          } else {
            extend(multiplier, two_rows, two_cols, rows, columns, count);
          }
        }
        if (k + depth < item_.k) multiplier.flush();  // the next chunk adds to the same total
        k += depth;
      } while (k < item_.k);
    }
    multiplier.flush();
  }

  // Few rows, where they lie or packed for all of k: columns pass by once, a group of strips by some steps of k at a
  // time.
  void run_stream_columns() {
    TileMultiplier multiplier(output_);
    const int64_t strips_m = ceil_div(num_rows_, kAmxStrip);
    const char* a = shared_.a ? shared_.a : panel_a_;
    if (!shared_.a && !plan_.is_a_in_place && !is_packed_) {
      pack_strips<true>(rows_, 0, num_rows_, 0, item_.k, panel_a_, strip_bytes(item_.k));
    }
    const bool is_far = item_.n * item_.k * 2 >= kAmxFarBytes;
    const int64_t rows_ahead = is_far ? kStreamStepsAhead * kTileK : 0;
    int64_t buffer = 0;
    for (int64_t j = 0; j < num_cols_; j += kGroupLanes) {
      const int64_t lanes = min_of(kGroupLanes, num_cols_ - j), strips_n = ceil_div(lanes, kAmxStrip);
      int64_t k = 0;
      do {
        const int64_t depth = min_of(kAmxChunkK, item_.k - k), steps = num_steps(depth);
        for (int64_t step = 0; step < steps; step += kStreamSteps) {
          const int64_t count = min_of(kStreamSteps, steps - step), block_k = k + step * kTileK;
          const int64_t bytes = count * kUnitBytes;
          pack_strips<false>(cols_, col_ + j, lanes, block_k, min_of(count * kTileK, item_.k - block_k), panel_b_,
                             bytes, rows_ahead);
          for (int64_t tile = 0; tile < strips_m * strips_n; ++tile) {
            const int64_t i = tile / strips_n, strip = tile % strips_n;
            const RowTiles rows = plan_.is_a_in_place
                                      ? rows_in_place(0, block_k)
                                      : packed_rows(a + i * strip_bytes(item_.k) + strip_offset(k)).at(step);
            float* const partial = partial_ + tile * kTileFloats;
            float* to = partial;
            Target target;
            if (step + count == steps) {
              float* const total = totals_ + tile * kTileFloats;
              target = target_at(i * kAmxStrip, j + strip * kAmxStrip, k == 0, k + depth >= item_.k, total);
              to = target.kind == Target::Kind::none ? total : finished_ + (buffer ^= 1) * kTileFloats;
            }
            const char* const b = panel_b_ + strip * bytes;
            multiply(multiplier, has_two_tiles(num_rows_ - i * kAmxStrip), has_two_tiles(lanes - strip * kAmxStrip),
                     rows, b, count, step > 0 ? partial : nullptr, to, target, b);
          }
        }
        k += depth;
      } while (k < item_.k);
    }
    multiplier.flush();
  }

  const AmxPlan& plan_;
  const GemmProblem item_;
  const SharedPanels shared_;
  float* const parts_;
  const bool is_packed_;
  const Output output_;
  const LaneView rows_, cols_;
  char *panel_a_, *panel_b_;
  float *partial_, *finished_, *totals_;
  int64_t row_ = 0, num_rows_ = 0, col_ = 0, num_cols_ = 0, k_begin_ = 0, k_end_ = 0;
};

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

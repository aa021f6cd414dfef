// What one thread does at a time in amx_split: a block of C.
#pragma once

#include "kernels/cpu/amx_split/kernel.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

// An operand's terms and its lanes' largest magnitudes, of one item.
struct Panel {
  char* terms;           // packed before the tasks begin; null: a task packs what it uses
  uint32_t* magnitudes;  // of all lanes
  int64_t first_lane;    // that of the terms
};

// The memory of a task, in the order in which it lies. A part of 0 bytes is not used.
struct TaskWorkspace {
  int64_t panel_a, panel_b, finished, totals;

  TaskWorkspace(const AmxSplitPlan& plan, int64_t k) {
    const int64_t chunk_bytes = strip_bytes(min_of(k, kAmxSplitChunkK));
    const int64_t strips_m = plan.task_m / kAmxStrip, strips_n = plan.task_n / kAmxStrip;
    panel_a = plan.is_a_shared ? 0 : strips_m * chunk_bytes;
    panel_b = plan.is_b_shared ? 0 : min_of(strips_n, kAmxSplitGroupStrips) * chunk_bytes;
    finished = 2 * kTileFloats * 4;
    totals = k > kAmxSplitChunkK && !plan.splits_k ? strips_m * strips_n * kTileFloats * 4 : 0;
  }
  int64_t bytes() const { return panel_a + panel_b + finished + totals; }
};

template <class Op>
class BlockTask {
 public:
  BlockTask(const AmxSplitPlan& plan, const GemmProblem& item, const Panel& a, const Panel& b, char* workspace)
      : plan_(plan),
        item_(item),
        a_(a),
        b_(b),
        output_(item),
        rows_{static_cast<const float*>(item.a), item.stride_am, item.stride_ak},
        cols_{static_cast<const float*>(item.b), item.stride_bn, item.stride_bk} {
    const TaskWorkspace sizes(plan, item.k);
    panel_a_ = workspace;
    panel_b_ = panel_a_ + sizes.panel_a;
    finished_ = reinterpret_cast<float*>(panel_b_ + sizes.panel_b);
    totals_ = finished_ + sizes.finished / 4;
  }

  // The block of C at (row, col) for k from k_begin, a multiple of the chunk, to k_end. Chunk of k by chunk: strip of
  // columns by strip, all strips of rows. `parts`: where the sums of a chunk go if k is split, [strips of rows][strips
  // of columns][32][32]; null: to C.
  void run(int64_t row, int64_t col, int64_t k_begin, int64_t k_end, float* parts) {
    Multiplier<Op> multiplier(output_);
    const int64_t num_rows = min_of(plan_.task_m, item_.m - row), num_cols = min_of(plan_.task_n, item_.n - col);
    const int64_t strips_m = ceil_div(num_rows, kAmxStrip), strips_n = ceil_div(num_cols, kAmxStrip);
    int64_t buffer = 0;
    for (int64_t k = k_begin; k < k_end; k += kAmxSplitChunkK) {
      const int64_t depth = min_of(kAmxSplitChunkK, k_end - k), steps = ceil_div(depth, kTileK);
      const bool is_first = k == k_begin, is_last = k + depth == k_end;
      const char* a = a_.terms ? shared_strip(a_, row, k) : panel_a_;
      const int64_t bytes_of_strip = strip_bytes(a_.terms ? item_.k : depth);
      if (!a_.terms) {
        // The tasks beside it pack the same rows.
        uint32_t* const magnitudes = col == 0 ? a_.magnitudes + row : nullptr;
        pack_strips<true>(rows_, row, num_rows, k, depth, panel_a_, bytes_of_strip, magnitudes, !is_first);
      }
      for (int64_t j = 0; j < strips_n; ++j) {
        const char* const b = columns_of(row, col, num_cols, j, k, depth, !is_first);
        // What comes after it where columns are packed for all; else it is in a near cache.
        const char* ahead = b_.terms ? b + strip_bytes(item_.k) : b;
        for (int64_t i = 0; i < strips_m; ++i) {
          float* const total = (parts ? parts : totals_) + (i * strips_n + j) * kTileFloats;
          Target target;
          if (!parts) {
            target.kind = is_first ? (is_last ? Target::Kind::finish : Target::Kind::none)
                                   : (is_last ? Target::Kind::add_and_finish : Target::Kind::add);
          }
          target.row = row + i * kAmxStrip, target.rows = min_of(kAmxStrip, num_rows - i * kAmxStrip);
          target.col = col + j * kAmxStrip, target.cols = min_of(kAmxStrip, num_cols - j * kAmxStrip);
          target.total = total;
          float* const to = target.kind == Target::Kind::none ? total : finished_ + (buffer ^= 1) * kTileFloats;
          const RowTiles rows{a + i * bytes_of_strip, kTileRowBytes, kTileBytes, kUnitBytes};
          multiply(multiplier, target.rows > kTileRows, target.cols > kTileRows, rows, b, steps, nullptr, to, target,
                   ahead);
          if (b_.terms) ahead += (steps - 1) * 64 * Op::kPrefetchLines;
        }
      }
    }
    multiplier.flush();
  }

 private:
  const char* shared_strip(const Panel& panel, int64_t lane, int64_t k) const {
    return panel.terms + (lane - panel.first_lane) / kAmxStrip * strip_bytes(item_.k) + strip_offset(k);
  }

  // Packed columns of strip j of the block for a chunk of k.
  const char* columns_of(int64_t row, int64_t col, int64_t num_cols, int64_t j, int64_t k, int64_t depth, bool joins) {
    const int64_t first = col + j * kAmxStrip;
    if (b_.terms) return shared_strip(b_, first, k);
    const int64_t bytes_of_strip = strip_bytes(depth);
    if (j % kAmxSplitGroupStrips == 0) {
      const int64_t lanes = min_of(kAmxSplitGroupStrips * kAmxStrip, num_cols - j * kAmxStrip);
      uint32_t* const magnitudes = row == 0 ? b_.magnitudes + first : nullptr;
      pack_strips<false>(cols_, first, lanes, k, depth, panel_b_, bytes_of_strip, magnitudes, joins);
    }
    return panel_b_ + j % kAmxSplitGroupStrips * bytes_of_strip;
  }

  const AmxSplitPlan& plan_;
  const GemmProblem item_;
  const Panel a_, b_;
  const Output output_;
  const LaneView rows_, cols_;
  char *panel_a_, *panel_b_;
  float *finished_, *totals_;
};

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

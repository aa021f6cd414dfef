// Operands that a kernel cannot read, or not fast, as they lie, copied first into memory lent by the caller: A and B in
// one launch, rows of a length that suits the kernel, zeros behind each. Where the batch repeats an operand, it is
// copied once.
#pragma once

#include "core/operand.h"
#include "platform/copied_batch.h"

namespace tiledmm::gpu {
namespace {

// One operand: in each item `outer` rows of `inner` elements, to rows of `ld`.
template <class T>
struct CopyJob {
  const T *from, *end;  // the first element, and what lies behind the last one
  T* to;
  int64_t stride_inner, stride_outer, inner, outer, ld;
  int64_t num_units;      // of work
  int64_t units_of_row;   // side by side
  int64_t num_rows;       // of all items
  int log_lanes;          // logarithm of the lanes that copy a row of a unit
  bool has_aligned_rows;  // 16 bits: they begin at multiples of 4 bytes, and their elements follow each other
  CopiedBatch batch;
};
template <class T>
struct CopyJobs {
  CopyJob<T> jobs[2];
};

constexpr int kCopyThreads = 256;

// 16 bytes of five words, from byte `shift` of the first word on; zeros behind the first `count`.
TILEDMM_DEVICE Vector16 shifted(const uint32_t* words, int shift, int count) {
  Vector16 bytes;
  TILEDMM_UNROLL for (int i = 0; i < 4; ++i) {
    const int left = count - 4 * i;
    const uint64_t pair = words[i] | uint64_t(words[i + 1]) << 32;
    bytes.words[i] = uint32_t(pair >> 8 * shift) & (left >= 4 ? ~0u : left <= 0 ? 0 : (1u << 8 * left) - 1);
  }
  return bytes;
}

// ---- 16 bits: rows stay rows. A unit is some rows, or a segment of one. A warp takes units that follow each other, so
// that it seldom has to divide.
constexpr int kCopyPacket = 8, kPacketsOfLane = 2;               // elements of 16 bytes; a lane's part of a segment
constexpr int kCopySegment = 32 * kPacketsOfLane * kCopyPacket;  // elements
constexpr int kCopyWords = kCopySegment / 64;                    // of two elements, a lane's part of a segment
// Blocks of a multiprocessor that run at the same time: as many as it has registers for.
constexpr int copy_blocks(bool are_aligned) { return are_aligned ? 5 : 4; }

// Loads the two aligned packets that hold eight elements of a row; the row's begin with element `shift` of the first
// one. A packet with none of the row's next `left` elements is not read. One that overhangs the operand is read element
// by element.
TILEDMM_DEVICE void load_packets(const CopyJob<uint16_t>& job, const uint16_t* row, int shift, int left,
                                 Vector16 (&packets)[2]) {
  const uint16_t* from = row - shift;
  TILEDMM_UNROLL for (int i = 0; i < 2; ++i, from += kCopyPacket) {
    packets[i] = Vector16{};
    if (left <= 0 || left + shift <= i * kCopyPacket || (i == 1 && shift == 0)) continue;
    if (from >= job.from && from + kCopyPacket <= job.end) {
      packets[i] = load_global(reinterpret_cast<const Vector16*>(from));
      continue;
    }
    uint64_t halves[2] = {};
    TILEDMM_NO_UNROLL for (int e = 0; e < kCopyPacket; ++e) {
      if (from + e < job.from || from + e >= job.end) continue;
      const uint64_t element = uint64_t(load_global(from + e)) << (e % 4 * 16);
      e < 4 ? halves[0] |= element : halves[1] |= element;
    }
    packets[i] = {{uint32_t(halves[0]), uint32_t(halves[0] >> 32), uint32_t(halves[1]), uint32_t(halves[1] >> 32)}};
  }
}

// The eight elements of two packets from element `shift` on; zeros behind the first `left`.
TILEDMM_DEVICE Vector16 eight_of(const Vector16 (&packets)[2], int shift, int left) {
  uint32_t words[8];
  TILEDMM_UNROLL for (int w = 0; w < 8; ++w) words[w] = packets[w / 4].words[w % 4];
  TILEDMM_UNROLL for (int w = 0; w < 6; ++w) words[w] = shift & 4 ? words[w + 2] : words[w];
  TILEDMM_UNROLL for (int w = 0; w < 5; ++w) words[w] = shift & 2 ? words[w + 1] : words[w];
  return shifted(words, 2 * (shift & 1), 2 * left);
}

// A lane's words of a row from element `first` on, where rows are aligned: a few percent less time than by packets.
TILEDMM_DEVICE void copy_words(const CopyJob<uint16_t>& job, const uint16_t* row, uint16_t* to, int first, int lane,
                               int log_lanes) {
  uint32_t words[kCopyWords];
  if (log_lanes == 5 && first + kCopySegment <= job.inner) {
    // Inside of the row: every address is a constant away from the first.
    const auto* from_word = reinterpret_cast<const uint32_t*>(row + first) + lane;
    auto* to_word = reinterpret_cast<uint32_t*>(to + first) + lane;
    TILEDMM_UNROLL for (int i = 0; i < kCopyWords; ++i) words[i] = load_global(from_word + 32 * i);
    TILEDMM_UNROLL for (int i = 0; i < kCopyWords; ++i) store_global(to_word + 32 * i, words[i]);
    return;
  }
  first += 2 * lane;
  row += first;
  to += first;
  const int left = int(min_of(job.inner - first, kCopySegment)), room = int(min_of(job.ld - first, kCopySegment));
  TILEDMM_UNROLL for (int i = 0; i < kCopyWords; ++i) {
    const int at = 2 * i << log_lanes;
    words[i] = at + 1 < left ? load_global(reinterpret_cast<const uint32_t*>(row + at)) : 0;
  }
  TILEDMM_UNROLL for (int i = 0; i < kCopyWords; ++i) {
    const int at = 2 * i << log_lanes;
    if (at < room) store_global(reinterpret_cast<uint32_t*>(to + at), words[i]);
  }
  // The last one of an odd number.
  if (left > 0 && ((left - 1) & ((2 << log_lanes) - 1)) == 0)
    store_global(reinterpret_cast<uint32_t*>(to + left - 1), uint32_t(load_global(row + left - 1)));
}

// A lane's words of a row whose elements lie apart.
TILEDMM_DEVICE void copy_apart(const CopyJob<uint16_t>& job, const uint16_t* row, uint16_t* to, int first, int lane,
                               int log_lanes) {
  first += 2 * lane;
  const uint16_t* from = row + first * job.stride_inner;
  auto* to_word = reinterpret_cast<uint32_t*>(to + first);
  const int left = int(min_of(job.inner - first, kCopySegment)), room = int(min_of(job.ld - first, kCopySegment));
  TILEDMM_NO_UNROLL for (int at = 0; at < room; at += 2 << log_lanes, to_word += 1 << log_lanes) {
    const uint16_t* pair = from + at * job.stride_inner;
    const uint32_t low = at < left ? load_global(pair) : 0;
    store_global(to_word, low | (at + 1 < left ? uint32_t(load_global(pair + job.stride_inner)) << 16 : 0));
  }
}

// A lane's part of a segment, which begins with element `first` of a row. ARE_ALIGNED: all operands' rows are.
template <bool ARE_ALIGNED>
TILEDMM_DEVICE void copy_segment(const CopyJob<uint16_t>& job, const uint16_t* row, uint16_t* to, int first, int lane,
                                 int log_lanes) {
  if (ARE_ALIGNED || job.has_aligned_rows) return copy_words(job, row, to, first, lane, log_lanes);
  if (job.stride_inner != 1) return copy_apart(job, row, to, first, lane, log_lanes);
  first += lane * kCopyPacket;
  row += first;
  to += first;
  const int left = int(min_of(job.inner - first, kCopySegment)), room = int(min_of(job.ld - first, kCopySegment));
  const int shift = int(reinterpret_cast<uintptr_t>(row) / 2 % kCopyPacket);
  Vector16 packets[kPacketsOfLane][2];
  TILEDMM_UNROLL for (int i = 0; i < kPacketsOfLane; ++i) {
    const int at = i * kCopyPacket << log_lanes;
    load_packets(job, row + at, shift, left - at, packets[i]);
  }
  TILEDMM_UNROLL for (int i = 0; i < kPacketsOfLane; ++i) {
    const int at = i * kCopyPacket << log_lanes;
    if (at < room) store_global(reinterpret_cast<Vector16*>(to + at), eight_of(packets[i], shift, left - at));
  }
}

template <bool ARE_ALIGNED>
TILEDMM_DEVICE void copy_units(const CopyJob<uint16_t>& job, int64_t unit, int count) {
  const int lane = thread_idx() % 32, log_lanes = job.log_lanes, rows_of_unit = 32 >> log_lanes;
  const int64_t group = unit / job.units_of_row;
  int segment = int(unit - group * job.units_of_row);
  int64_t row = group * rows_of_unit + (lane >> log_lanes);
  // The row's number within its item, and where that item begins.
  int64_t row_of_item = 0;
  const uint16_t* from = nullptr;
  const auto find_item = [&] {
    if (row >= job.num_rows) return;
    const int64_t item = job.batch.num_items > 1 ? row / job.outer : 0;
    row_of_item = row - item * job.outer;
    from = job.from + job.batch.offset(item);
  };
  find_item();
  for (; count > 0; --count) {
    if (row < job.num_rows)
      copy_segment<ARE_ALIGNED>(job, from + row_of_item * job.stride_outer, job.to + row * job.ld,
                                segment * kCopySegment, lane & ((1 << log_lanes) - 1), log_lanes);
    if (++segment < job.units_of_row) continue;
    segment = 0, row += rows_of_unit, row_of_item += rows_of_unit;
    if (row_of_item >= job.outer) find_item();
  }
}

template <bool ARE_ALIGNED>
TILEDMM_KERNEL(kCopyThreads, copy_blocks(ARE_ALIGNED))
copy_rows(CopyJobs<uint16_t> both, int64_t num_blocks) {
  constexpr int kWarps = kCopyThreads / 32;
  let_later_kernels_start();
  wait_for_earlier_kernels();
  const int64_t first_units = both.jobs[0].num_units, num_units = first_units + both.jobs[1].num_units;
  const int64_t units_of_warp = ceil_div(num_units, num_blocks * kWarps);
  const int64_t unit = (block_idx() * kWarps + thread_idx() / 32) * units_of_warp;
  const int64_t end = min_of(unit + units_of_warp, num_units);
  if (unit < first_units) copy_units<ARE_ALIGNED>(both.jobs[0], unit, int(min_of(end, first_units) - unit));
  if (end > first_units) {
    const int64_t first = max_of(unit, first_units);
    copy_units<ARE_ALIGNED>(both.jobs[1], first - first_units, int(end - first));
  }
}

// ---- 32 bits: rows become what the kernel wants, whichever dimension follows itself in memory. A unit is a tile, for
// a block, through shared memory: what neighbouring threads read and write lies together.
constexpr int kCopyTile = 64;

struct CopyShared {
  float tile[kCopyTile][kCopyTile + 1];  // [inner][outer]
};
struct __attribute__((may_alias, aligned(16))) FourFloats {
  float values[4];
};

[[maybe_unused]] TILEDMM_KERNEL(kCopyThreads, 4) copy_operands(CopyJobs<float> both, int64_t) {
  auto& smem = block_shared<CopyShared>();
  let_later_kernels_start();
  wait_for_earlier_kernels();
  int idx = int(block_idx());
  const bool is_second = idx >= both.jobs[0].num_units;
  const CopyJob<float>& job = both.jobs[is_second];
  if (is_second) idx -= int(both.jobs[0].num_units);
  const int rows = int(job.outer), cols = int(job.inner), tiles_outer = (rows + kCopyTile - 1) / kCopyTile;
  const int tile_row = idx / int(job.units_of_row), item = tile_row / tiles_outer;
  const int row = (tile_row - item * tiles_outer) * kCopyTile;
  const int col = (idx - tile_row * int(job.units_of_row)) * kCopyTile;
  const float* from = job.from + job.batch.offset(item);

  constexpr int kStep = kCopyThreads / kCopyTile, kValues = kCopyTile / kStep;
  const int thread = thread_idx(), close = thread % kCopyTile, first = thread / kCopyTile;
  const bool reads_along_rows = is_k_major(job.stride_outer, job.stride_inner);
  const int first_row = row + (reads_along_rows ? first : close), first_col = col + (reads_along_rows ? close : first);
  const int64_t step = kStep * (reads_along_rows ? job.stride_outer : job.stride_inner);
  const int left = reads_along_rows   ? (first_col < cols ? rows - first_row : 0)
                   : first_row < rows ? cols - first_col
                                      : 0;
  from += first_row * job.stride_outer + first_col * job.stride_inner;
  float values[kValues];
  TILEDMM_UNROLL for (int i = 0; i < kValues; ++i) {
    values[i] = 0;
    if (kStep * i < left) values[i] = load_global(from + i * step);
  }
  TILEDMM_UNROLL for (int i = 0; i < kValues; ++i) {
    const int far = first + kStep * i;
    store_shared(&smem.tile[reads_along_rows ? close : far][reads_along_rows ? far : close], values[i]);
  }
  block_barrier();  // the tile is whole
  // A warp writes four rows of 32 elements: its lanes read 32 banks.
  float* to = job.to + (int64_t(item) * rows + row) * job.ld + col;
  TILEDMM_UNROLL for (int i = 0; i < 4; ++i) {
    const int r = thread / 32 * 4 + i / 2 * 32 + thread % 32 / 8, c = i % 2 * 32 + thread % 8 * 4;
    if (row + r < rows && col + c < job.ld) {
      FourFloats four;
      TILEDMM_UNROLL for (int e = 0; e < 4; ++e) four.values[e] = load_shared(&smem.tile[c + e][r]);
      store_global(reinterpret_cast<FourFloats*>(to + r * job.ld + c), four);
    }
  }
}

// ---- 8 bits: rows along k, whichever dimension follows itself in memory. A unit is a tile, for a block. A thread
// fetches 16 neighbours of each of four lines before it waits for any of them.
constexpr int kCopyBytesTile = 128, kCopyNear = 16, kCopyLines = 4;

struct CopyBytesShared {
  alignas(16) uint32_t tile[kCopyBytesTile][kCopyBytesTile / 4];  // [outer][inner in fours, see place_of_four]
};

// Where four elements along k lie in a row: so that neither those who write the tile meet in a bank, 16 rows apart, nor
// those who read vectors of 16.
TILEDMM_DEVICE int place_of_four(int row, int four) { return four ^ row / kCopyNear * 4; }

// `count` bytes at an address, at most 16; zeros behind them. Words that hold none of them are not read.
TILEDMM_DEVICE Vector16 load_bytes(const uint8_t* from, int count) {
  const auto address = reinterpret_cast<uintptr_t>(from);
  if (count == kCopyNear && address % 16 == 0) return load_global(reinterpret_cast<const Vector16*>(from));
  const int shift = int(address % 4);
  const auto* words = reinterpret_cast<const uint32_t*>(from - shift);
  uint32_t raw[5];
  TILEDMM_UNROLL for (int i = 0; i < 5; ++i) {
    raw[i] = count > 0 && 4 * i < shift + count ? load_global(words + i) : 0;
  }
  return shifted(raw, shift, count);
}

// `count` bytes that lie `stride` apart, at most 16; zeros behind them.
TILEDMM_DEVICE Vector16 gather_bytes(const uint8_t* from, int count, int64_t stride) {
  Vector16 bytes = {};
  TILEDMM_UNROLL for (int i = 0; i < kCopyNear; ++i) {
    if (i < count) bytes.words[i / 4] |= uint32_t(load_global(from + i * stride)) << i % 4 * 8;
  }
  return bytes;
}

// Byte j of out[i] is byte i of in[j].
TILEDMM_DEVICE void transpose_bytes(const uint32_t (&in)[4], uint32_t (&out)[4]) {
  TILEDMM_UNROLL for (int i = 0; i < 4; ++i) {
    out[i] = 0;
    TILEDMM_UNROLL for (int j = 0; j < 4; ++j) out[i] |= (in[j] >> 8 * i & 0xff) << 8 * j;
  }
}

[[maybe_unused]] TILEDMM_KERNEL(kCopyThreads, 4) copy_operands(CopyJobs<uint8_t> both, int64_t) {
  auto& smem = block_shared<CopyBytesShared>();
  let_later_kernels_start();
  wait_for_earlier_kernels();
  int64_t idx = block_idx();
  const bool is_second = idx >= both.jobs[0].num_units;
  const CopyJob<uint8_t>& job = both.jobs[is_second];
  if (is_second) idx -= both.jobs[0].num_units;
  const int64_t tile_row = idx / job.units_of_row, tiles_outer = ceil_div(job.outer, kCopyBytesTile);
  const int64_t item = job.batch.num_items > 1 ? tile_row / tiles_outer : 0;
  const int64_t row = (tile_row - item * tiles_outer) * kCopyBytesTile,
                col = (idx - tile_row * job.units_of_row) * kCopyBytesTile;

  // Lines lie along k or, where that dimension follows itself alone, across.
  constexpr int kThreadsOfLine = kCopyBytesTile / kCopyNear;
  const int thread = thread_idx(), close = thread % kThreadsOfLine, far = thread / kThreadsOfLine;
  const bool is_across = job.stride_inner != 1 && job.stride_outer == 1;
  const int64_t first_line = (is_across ? col : row) + far * kCopyLines;
  const int64_t first_near = (is_across ? row : col) + close * kCopyNear;
  const int lines_left = int(min_of((is_across ? job.inner : job.outer) - first_line, kCopyLines));
  const int near_left = int(min_of((is_across ? job.outer : job.inner) - first_near, kCopyNear));
  const int64_t line_step = is_across ? job.stride_inner : job.stride_outer;
  const int64_t near_step = is_across ? 1 : job.stride_inner;
  const uint8_t* from = job.from + job.batch.offset(item) + first_line * line_step + first_near * near_step;
  Vector16 lines[kCopyLines];
  TILEDMM_UNROLL for (int i = 0; i < kCopyLines; ++i) {
    const int count = i < lines_left ? near_left : 0;
    lines[i] =
        near_step == 1 ? load_bytes(from + i * line_step, count) : gather_bytes(from + i * line_step, count, near_step);
  }
  uint8_t* const to = job.to + item * job.outer * job.ld;
  if (!is_across) {
    TILEDMM_UNROLL for (int i = 0; i < kCopyLines; ++i) {
      if (i < lines_left && first_near < job.ld)
        store_global(reinterpret_cast<Vector16*>(to + (first_line + i) * job.ld + first_near), lines[i]);
    }
    return;
  }
  TILEDMM_UNROLL for (int i = 0; i < 4; ++i) {
    const uint32_t across[] = {lines[0].words[i], lines[1].words[i], lines[2].words[i], lines[3].words[i]};
    uint32_t along[4];
    transpose_bytes(across, along);
    TILEDMM_UNROLL for (int j = 0; j < 4; ++j) {
      const int own_row = close * kCopyNear + 4 * i + j;
      store_shared(&smem.tile[own_row][place_of_four(own_row, far)], along[j]);
    }
  }
  block_barrier();  // the tile is whole
  TILEDMM_UNROLL for (int i = 0; i < kCopyLines; ++i) {
    const int own_row = far + i * (kCopyThreads / kThreadsOfLine);
    if (row + own_row >= job.outer || col + close * kCopyNear >= job.ld) continue;
    const auto* vector =
        reinterpret_cast<const Vector16*>(&smem.tile[own_row][place_of_four(own_row, close * (kCopyNear / 4))]);
    store_global(reinterpret_cast<Vector16*>(to + (row + own_row) * job.ld + col + close * kCopyNear),
                 load_shared(vector));
  }
}

// ---- Memory for the copies and the launch that fills it; given back when the kernels have been launched.
template <class T>
class OperandCopies {
 public:
  explicit OperandCopies(const Executor& executor) : executor_(executor) {}
  ~OperandCopies() {
    for (int i = 0; i < count_; ++i) executor_.release(executor_.self, jobs_.jobs[i].to);
  }
  OperandCopies(const OperandCopies&) = delete;

  // Plans a copy of A or B of a problem, rows of `ld` elements along k or across; the problem's operand becomes it.
  Status add(FoldedProblem& problem, const OperandView& view, bool is_along_k, int64_t ld) {
    CopyJob<T>& job = jobs_.jobs[count_];
    job = {};
    job.from = static_cast<const T*>(view.data);
    job.stride_inner = is_along_k ? view.stride_k : view.stride_row;
    job.stride_outer = is_along_k ? view.stride_row : view.stride_k;
    job.inner = is_along_k ? view.k : view.rows;
    job.outer = is_along_k ? view.rows : view.k;
    job.ld = ld;
    job.batch = describe_copied_batch(problem, view.batch_stride, job.outer * ld);
    job.num_rows = job.batch.num_items * job.outer;
    job.end = job.from + (job.outer - 1) * job.stride_outer + (job.inner - 1) * job.stride_inner + 1;
    for (int d = 0; d < job.batch.num_dims; ++d) job.end += (job.batch.dims[d].size - 1) * job.batch.dims[d].stride_a;
    join_items(job);
    if constexpr (sizeof(T) == 2) {
      job.has_aligned_rows = has_aligned_rows(job);
      job.units_of_row = ceil_div(ld, kCopySegment);
      job.log_lanes = 5;
      while (job.log_lanes > 0 && ld <= kCopySegment >> (6 - job.log_lanes)) --job.log_lanes;
      job.num_units = ceil_div(job.num_rows, 32 >> job.log_lanes) * job.units_of_row;
    } else {
      constexpr int kTile = sizeof(T) == 1 ? kCopyBytesTile : kCopyTile;
      job.units_of_row = ceil_div(job.inner, kTile);
      job.num_units = job.batch.num_items * ceil_div(job.outer, kTile) * job.units_of_row;
      if (job.num_units > INT32_MAX / 2) return Status::launch_failed;
    }
    job.to = static_cast<T*>(executor_.allocate(executor_.self, size_t(job.num_rows * ld) * sizeof(T)));
    if (!job.to) return Status::out_of_memory;
    ++count_;
    GemmProblem& p = problem.gemm;
    const bool is_a = view.batch_stride == &BatchDim::stride_a;
    (is_a ? p.a : p.b) = job.to;
    (is_a ? p.stride_am : p.stride_bn) = is_along_k ? ld : 1;
    (is_a ? p.stride_ak : p.stride_bk) = is_along_k ? 1 : ld;
    return Status::ok;
  }

  Status launch() const {
    if (count_ == 0) return Status::ok;
    const auto launch = [&](void (*kernel)(CopyJobs<T>, int64_t), int64_t num_blocks, size_t shared_bytes) {
      return launch_early(kernel, num_blocks, 1, kCopyThreads, shared_bytes, executor_, jobs_, num_blocks);
    };
    const int64_t num_units = jobs_.jobs[0].num_units + jobs_.jobs[1].num_units;
    if constexpr (sizeof(T) == 2) {
      const bool are_aligned = jobs_.jobs[0].has_aligned_rows && (count_ == 1 || jobs_.jobs[1].has_aligned_rows);
      const int64_t most_blocks = int64_t(executor_.num_cus) * copy_blocks(are_aligned);
      return launch(are_aligned ? copy_rows<true> : copy_rows<false>,
                    min_of(ceil_div(num_units, kCopyThreads / 32), most_blocks), 0);
    } else {
      return launch(copy_operands, num_units, sizeof(T) == 1 ? sizeof(CopyBytesShared) : sizeof(CopyShared));
    }
  }

 private:
  // Items whose rows follow each other as rows do, or that have one row each, become rows of one item: tiles are full.
  static void join_items(CopyJob<T>& job) {
    const BatchDim& dim = job.batch.dims[0];
    const bool is_regular = job.outer == 1 || dim.stride_a == job.outer * job.stride_outer;
    if (job.batch.num_dims != 1 || dim.size == 1 || !is_regular || job.num_rows > INT32_MAX) return;
    if (job.outer == 1) job.stride_outer = dim.stride_a;
    job.outer = job.num_rows, job.batch.num_dims = 0, job.batch.num_items = 1;
  }

  static bool has_aligned_rows(const CopyJob<T>& job) {
    int64_t steps = job.outer > 1 ? job.stride_outer : 0;
    for (int d = 0; d < job.batch.num_dims; ++d) steps |= job.batch.dims[d].stride_a;
    return job.stride_inner == 1 && steps % 2 == 0 && reinterpret_cast<uintptr_t>(job.from) % 4 == 0;
  }

  const Executor& executor_;
  CopyJobs<T> jobs_{};
  int count_ = 0;
};

}  // namespace
}  // namespace tiledmm::gpu

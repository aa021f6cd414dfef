// Running sums along a dimension (core/reduce.h). An element's sum is one of three:
//   a chain of its segment's elements, of which there are 32, up to itself;
//   a chain of the sums of the segments before it in its part, which has 1024 elements;
//   what is before the part: the running sum, by these rules, of the parts' sums.
// The last two are added, then the first one. Which threads and blocks do that is free: it depends on where results
// lie.
#include "kernels/gpu/rows.h"

namespace tiledmm::gpu {
namespace {

constexpr int kSegment = 32, kSegments = kChunk / kSegment;  // elements of a segment, segments of a part
constexpr int kRowThreads = 128, kRowGroups = kRowThreads / kLanes;
constexpr int kMostSegments = kReduceThreads / kLanes;  // of a column at once
constexpr int64_t kFewParts = 2 * kChunk;  // of all rows, whose running sums would take less than their launch
constexpr int64_t kMostParts = kSegments * kSegments;  // of a row that is gone through at once

// What a block does: all parts of its rows, one after the other; one part's sum; one part, given what is before it.
enum class Stage { all, sums, rest };

template <class A>
TILEDMM_DEVICE A nothing() {
  return A(-0.0);  // 0 plus it is 0, and so is -0: -0
}

// The sum of the parts so far.
template <class A>
struct Before {
  A segments = nothing<A>(), chain = nothing<A>();
  int count = 0;

  TILEDMM_DEVICE A sum() const { return segments + chain; }
  TILEDMM_DEVICE void add(A part) {
    if (count == kSegments) segments += chain, chain = nothing<A>(), count = 0;
    chain += part, ++count;
  }
};
template <class A>
TILEDMM_DEVICE A before_part(const A* part_sums, int64_t o, int64_t part, int64_t num_parts) {
  return part > 0 ? load_global(part_sums + o * num_parts + part - 1) : nothing<A>();
}

// ---- Rows whose results lie close. A warp, 32 lanes of it, loads 32 segments, each by all lanes, and then each lane
// adds one up. Short rows share them: `segments` for each row.
template <class A>
struct Group {
  A sums[kSegments][kSegment + 1];  // the elements, then their chains
  A before[kSegments];              // the segment's sum, then what is before it
  int64_t from[kSegments], to[kSegments];
  int counts[kSegments];
};

// AT_ONCE: loads of a lane that are on their way together.
template <int AT_ONCE, class T>
TILEDMM_DEVICE void load_segments(const T* x, int64_t stride, Group<Acc<T>>& own, int lane) {
  using A = Acc<T>;
  TILEDMM_NO_UNROLL for (int first = 0; first < kSegments; first += AT_ONCE) {
    A values[AT_ONCE];
    TILEDMM_UNROLL for (int i = 0; i < AT_ONCE; ++i) {
      const T* from = x + load_shared(own.from + first + i) + lane * stride;
      values[i] = lane < load_shared(own.counts + first + i) ? as_acc(load_global(from)) : nothing<A>();
    }
    TILEDMM_UNROLL for (int i = 0; i < AT_ONCE; ++i) store_shared(&own.sums[first + i][lane], values[i]);
  }
}
template <class T>
TILEDMM_DEVICE void store_segments(const ReduceProblem& p, const Group<Acc<T>>& own, int lane) {
  constexpr int kAtOnce = 8;
  TILEDMM_NO_UNROLL for (int first = 0; first < kSegments; first += kAtOnce) {
    T values[kAtOnce];
    int64_t to[kAtOnce];
    bool are_in[kAtOnce];
    TILEDMM_UNROLL for (int i = 0; i < kAtOnce; ++i) {
      const int s = first + i;
      values[i] = rounded_to<T>(load_shared(own.before + s) + load_shared(&own.sums[s][lane]));
      to[i] = load_shared(own.to + s) + lane * p.stride_y_k;
      are_in[i] = lane < load_shared(own.counts + s);
    }
    TILEDMM_UNROLL for (int i = 0; i < kAtOnce; ++i) {
      if (are_in[i]) store_global(static_cast<T*>(p.y) + to[i], values[i]);
    }
  }
}
// The sums of a part; what is before the lane's segment in it.
template <class A>
struct PartSums {
  A part = nothing<A>(), before = nothing<A>();
};
template <class A>
TILEDMM_DEVICE PartSums<A> add_segments(Group<A>& own, int lane, int segments, bool keeps_chains) {
  A chain = nothing<A>();
  TILEDMM_UNROLL for (int i = 0; i < kSegment; ++i) {
    chain += load_shared(&own.sums[lane][i]);
    if (keeps_chains) store_shared(&own.sums[lane][i], chain);
  }
  store_shared(own.before + lane, chain);
  warp_barrier();
  const int segment = lane % segments, first = lane - segment + segments <= kSegments ? lane - segment : 0;
  PartSums<A> sums;
  constexpr int kAtOnce = 8;
  TILEDMM_NO_UNROLL for (int next = 0; next < segments; next += kAtOnce) {
    TILEDMM_UNROLL for (int s = next; s < next + kAtOnce; ++s) {
      if (s == segment) sums.before = sums.part;
      sums.part += s < segments ? load_shared(own.before + first + s) : nothing<A>();
    }
  }
  warp_barrier();
  return sums;
}

// The sum of the parts before `part`, one of at most 1024: as their running sum, without a kernel of its own. The part
// itself and those behind it count as nothing.
template <class A>
TILEDMM_DEVICE A sum_before(const A* part_sums, int part, Group<A>& own, int lane) {
  store_shared(own.counts + lane, int(max_of(min_of(part - lane * kSegment, kSegment), 0)));
  store_shared(own.from + lane, int64_t(lane) * kSegment);
  warp_barrier();
  load_segments<kSegments>(part_sums, 1, own, lane);
  warp_barrier();
  const PartSums<A> sums = add_segments(own, lane, kSegments, true);
  store_shared(own.before + lane, sums.before);
  warp_barrier();
  const int segment = part / kSegment;
  return load_shared(own.before + segment) + load_shared(&own.sums[segment][part % kSegment]);
}

// Whether a block of the rest has shared memory for sum_before, too. AMD's blocks fill it.
constexpr bool kHasRoom = !kIsAmd;
template <class A, Stage STAGE>
struct RowsShared {
  Group<A> groups[STAGE == Stage::rest && kHasRoom ? 2 * kRowGroups : kRowGroups];
  A part_sums[kRowGroups];
};

// GROUPS times 32 lanes for a row's next GROUPS parts. are_running: whether the parts' sums are running sums already.
template <class T, Stage STAGE, int GROUPS>
TILEDMM_KERNEL(kRowThreads, sizeof(Acc<T>) == 8 ? 1 : 4)
run_rows(ReduceProblem p, Acc<T>* part_sums, int64_t num_parts, int segments, bool are_running) {
  using A = Acc<T>;
  auto& shared = block_shared<RowsShared<A, STAGE>>();
  // The rest begins while parts are summed: then a caller's x is there, and the parts' sums are waited for where they
  // are read. An x in the place of y is the parts' sums of a longer row.
  if constexpr (STAGE != Stage::rest) {
    wait_for_earlier_kernels();
    let_later_kernels_start();
  } else {
    if (p.x == p.y) wait_for_earlier_kernels();
  }
  const int lane = thread_idx() % kLanes, group = thread_idx() / kLanes, segment = lane % segments;
  Group<A>& own = shared.groups[group];
  // Rows, or parts, that are taken together, and their number.
  const int64_t unit = (block_idx() * kRowGroups + group) / GROUPS;
  const int64_t row = STAGE == Stage::all ? unit : unit / num_parts, only_part = unit - row * num_parts;
  const int64_t rows_at_once = kSegments / segments, o = row * rows_at_once + lane / segments;
  const bool is_mine = lane / segments < rows_at_once && o < p.outer * p.inner;
  const int64_t from = offset_in_x(p, is_mine ? o : 0), to = offset_in_y(p, is_mine ? o : 0);
  Before<A> before;
  const int64_t end = STAGE == Stage::all ? num_parts : only_part + 1;
  TILEDMM_NO_UNROLL for (int64_t first = STAGE == Stage::all ? 0 : only_part; first < end; first += GROUPS) {
    const int64_t part = first + group % GROUPS, begin = part * kChunk + segment * kSegment;
    store_shared(own.counts + lane, is_mine ? int(max_of(min_of(p.k - begin, kSegment), 0)) : 0);
    store_shared(own.from + lane, from + begin * p.stride_k);
    store_shared(own.to + lane, to + begin * p.stride_y_k);
    warp_barrier();
    load_segments<STAGE == Stage::all ? kSegments / 2 : kSegments>(static_cast<const T*>(p.x), p.stride_k, own, lane);
    warp_barrier();
    const PartSums<A> sums = add_segments(own, lane, segments, STAGE != Stage::sums);
    if constexpr (STAGE == Stage::sums) {
      if (is_mine && lane == 0) store_global(part_sums + unit, sums.part);
      return;
    }
    A before_own = before.sum();
    if constexpr (STAGE == Stage::rest) {
      wait_for_earlier_kernels();
      let_later_kernels_start();
      if (are_running) {
        if (is_mine) before_own = before_part(part_sums, row, part, num_parts);
      } else if constexpr (kHasRoom) {
        Group<A>& parts = shared.groups[kRowGroups + group];
        before_own = sum_before(part_sums + row * num_parts, is_mine ? int(part) : 0, parts, lane);
      }
    }
    if constexpr (GROUPS == 1) {
      before.add(sums.part);
    } else {
      if (lane == 0) store_shared(shared.part_sums + group, sums.part);
      block_barrier();
      TILEDMM_UNROLL for (int g = 0; g < GROUPS; ++g) {
        if (g == group % GROUPS) before_own = before.sum();
        before.add(load_shared(shared.part_sums + group / GROUPS * GROUPS + g));
      }
    }
    store_shared(own.before + lane, before_own + sums.before);
    warp_barrier();
    store_segments<T>(p, own, lane);
    if constexpr (GROUPS == 1) {
      warp_barrier();
    } else {
      block_barrier();  // also nobody reads the parts' sums any more
    }
  }
}

// ---- Rows whose neighbours' results lie beside theirs. A thread adds up a segment; a block has `segments` of a row at
// once.
template <class T, Stage STAGE>
TILEDMM_KERNEL(kReduceThreads, sizeof(T) == 4 ? 3 : 2)
run_columns(ReduceProblem p, Acc<T>* part_sums, int64_t num_parts, int segments) {
  using A = Acc<T>;
  struct Shared {
    A sums[kReduceThreads];  // of the segments
  };
  Shared& shared = block_shared<Shared>();
  wait_for_earlier_kernels();
  let_later_kernels_start();
  const int columns = kReduceThreads / segments, segment = thread_idx() / columns;
  const int column = thread_idx() - segment * columns;
  const int64_t tile = STAGE == Stage::all ? block_idx() : block_idx() / num_parts;
  const int64_t only_part = STAGE == Stage::all ? 0 : block_idx() - tile * num_parts;
  const int64_t o = tile * columns + column;
  const bool is_mine = o < p.outer * p.inner;
  const T* row = static_cast<const T*>(p.x) + offset_in_x(p, is_mine ? o : 0);
  T* to = static_cast<T*>(p.y) + offset_in_y(p, is_mine ? o : 0);
  Before<A> before;
  A before_part_sum = STAGE == Stage::rest && is_mine ? before_part(part_sums, o, only_part, num_parts) : nothing<A>();
  A part_sum = nothing<A>();
  const int64_t begin = only_part * kChunk, end = STAGE == Stage::all ? p.k : min_of(begin + kChunk, p.k);
  TILEDMM_NO_UNROLL for (int64_t first = begin; first < end; first += segments * kSegment) {
    const int64_t own = first + segment * kSegment;
    const int count = is_mine ? int(max_of(min_of(end - own, kSegment), 0)) : 0;
    A sums[kSegment];
    const T* from = row + opaque(own * p.stride_k);
    TILEDMM_UNROLL for (int i = 0; i < kSegment; ++i, from += p.stride_k) {
      sums[i] = i < count ? as_acc(load_global(from)) : nothing<A>();
    }
    TILEDMM_UNROLL for (int i = 1; i < kSegment; ++i) sums[i] += sums[i - 1];
    store_shared(shared.sums + thread_idx(), sums[kSegment - 1]);
    block_barrier();
    A before_own = nothing<A>();
    TILEDMM_NO_UNROLL for (int s = 0; s < segments; ++s) {
      if (s == segment) before_own = part_sum;
      part_sum += load_shared(shared.sums + s * columns + column);
    }
    block_barrier();
    if constexpr (STAGE != Stage::sums) {
      before_own = before_part_sum + before_own;
      T* at = to + opaque(own * p.stride_y_k);
      TILEDMM_UNROLL for (int i = 0; i < kSegment; ++i, at += p.stride_y_k) {
        if (i < count) store_global(at, rounded_to<T>(before_own + sums[i]));
      }
      if ((first + segments * kSegment) % kChunk == 0) {
        before.add(part_sum);
        before_part_sum = before.sum(), part_sum = nothing<A>();
      }
    }
  }
  if (STAGE == Stage::sums && is_mine && segment == 0) store_global(part_sums + o * num_parts + only_part, part_sum);
}

template <class T>
Status run(const ReduceProblem& p, const Executor& executor, bool is_early = false);

// How a problem's rows are gone through.
template <class T>
struct Launcher {
  using A = Acc<T>;
  const ReduceProblem& p;
  const Executor& executor;
  int64_t rows, num_parts;
  bool are_columns;
  int segments;  // of a row at once

  Launcher(const ReduceProblem& p, const Executor& executor)
      : p(p), executor(executor), rows(p.outer * p.inner), num_parts(ceil_div(max_of(p.k, 1), kChunk)) {
    constexpr int kClose = 8;  // elements of 32 bytes
    are_columns = p.k <= kClose || (p.stride_y_inner == 1 && p.stride_y_k != 1 && p.inner >= kClose);
    const auto all = int(min_of(ceil_div(max_of(p.k, 1), kSegment), kSegments));
    segments = all;
    if (are_columns) {
      for (segments = 1; segments < all && segments < kMostSegments;) segments *= 2;
    }
  }
  // How many rows a block goes through, with all their parts.
  int64_t rows_of_block() const {
    return are_columns ? kReduceThreads / segments : kRowGroups * (kSegments / segments);
  }
  // Whether a block should have a part of a row, not the whole: there are too few rows.
  bool is_staged() const {
    if (num_parts == 1 || num_parts > kMostParts) return num_parts > 1;
    if (are_columns) return 2 * ceil_div(rows, rows_of_block()) < executor.num_cus;
    return rows < executor.num_cus && num_parts > 2 * kRowGroups;
  }
  // Whether the rest is given running sums of the parts. Otherwise it adds up the parts' sums itself.
  bool are_running() const { return are_columns || !kHasRoom || num_parts > kChunk || rows * num_parts > kFewParts; }
  template <Stage STAGE>
  Status launch(A* sums, bool is_early) const {
    const auto start = [&](auto* kernel, int64_t blocks, int threads, size_t bytes, auto... more) {
      return is_early
                 ? launch_early(kernel, blocks, 1, threads, bytes, executor, p, sums, num_parts, segments, more...)
                 : launch_kernel(kernel, blocks, 1, threads, bytes, executor, p, sums, num_parts, segments, more...);
    };
    const int64_t parts = STAGE == Stage::all ? 1 : num_parts;
    if (are_columns) {
      return start(run_columns<T, STAGE>, ceil_div(rows, rows_of_block()) * parts, kReduceThreads,
                   kReduceThreads * sizeof(A));
    }
    const size_t bytes = sizeof(RowsShared<A, STAGE>);
    if (STAGE == Stage::all && num_parts > 1 && rows < 8 * int64_t(executor.num_cus)) {
      return start(run_rows<T, Stage::all, kRowGroups>, rows, kRowThreads, bytes, true);
    }
    return start(run_rows<T, STAGE, 1>, ceil_div(rows * parts, rows_of_block()), kRowThreads, bytes, are_running());
  }
};

template <class T>
Status run(const ReduceProblem& p, const Executor& executor, bool is_early) {
  using A = Acc<T>;
  const Launcher<T> launcher(p, executor);
  if (!launcher.is_staged()) return launcher.template launch<Stage::all>(nullptr, is_early);
  const int64_t rows = launcher.rows, num_parts = launcher.num_parts;
  A* sums = static_cast<A*>(executor.allocate(executor.self, size_t(rows * num_parts) * sizeof(A)));
  if (!sums) return Status::out_of_memory;
  ReduceProblem of_parts{};
  of_parts.dtype = of_parts.dtype_y = sizeof(A) == 8 ? DType::f64 : DType::f32;
  of_parts.outer = rows, of_parts.inner = 1, of_parts.k = num_parts;
  of_parts.x = of_parts.y = sums;
  of_parts.stride_outer = of_parts.stride_y_outer = num_parts, of_parts.stride_k = of_parts.stride_y_k = 1;
  Status status = launcher.template launch<Stage::sums>(sums, is_early);
  if (status == Status::ok && launcher.are_running()) status = run<A>(of_parts, executor, true);
  if (status == Status::ok) status = launcher.template launch<Stage::rest>(sums, true);
  executor.release(executor.self, sums);
  return status;
}

}  // namespace

Status launch_running_sums(const ReduceProblem& problem, const Executor& executor) {
  return visit_dtype(problem.dtype,
                     [&](auto* element) { return run<std::remove_pointer_t<decltype(element)>>(problem, executor); });
}

}  // namespace tiledmm::gpu

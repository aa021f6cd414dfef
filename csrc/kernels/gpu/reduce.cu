// Sums along a dimension (core/reduce.h) in an order that k alone fixes.
//   k <= 32: four chains, of elements 0, 4, 8, ..., of 1, 5, 9, ... and so on, which are added in pairs.
//   else: k is cut into chunks of 1024. In a chunk element i belongs to lane i / 4 mod 32, which adds its elements in
//   four such chains; lanes are added in pairs. The sums of the chunks are summed likewise.
// Which threads and blocks do that is free.
//
// Squared differences are those from the mean of all where k <= 256, summed in the same order. Where k is larger, they
// are those of a lane's elements from their own mean; then lanes, and chunks, are merged by their counts, means and
// squares. Sources: Chan, Golub and LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances,
// 1979; and, for what a mean's rounding does, their Algorithms for Computing the Sample Variance, 1983 ("corrected
// two-pass").
#include "kernels/gpu/rows.h"

namespace tiledmm::gpu {
namespace {

constexpr int kWidth = 4, kStep = kLanes * kWidth, kSteps = kChunk / kStep, kShort = 32;
constexpr int kFewSteps = 2;  // of a chunk whose elements threads keep until its mean is known
constexpr int kGroups = kReduceThreads / kLanes;
constexpr int kMostParts = kChunk;  // that a block keeps
// Chunks of few steps are loaded together, as many as give a thread some loads to wait for.
constexpr int chunks_at_once(int steps) { return steps <= kFewSteps ? 4 : kSteps / steps; }

// Elements of a lane that lie side by side, in accesses of up to 16 bytes.
template <class T>
struct Piece {
  static constexpr int kCount = sizeof(T) == 8 ? 2 : kWidth;
  alignas(kCount * sizeof(T)) T values[kCount];
};

#if defined(TILEDMM_HIP_STANDALONE)
TILEDMM_DEVICE float root(float x) { return __builtin_sqrtf(x); }
TILEDMM_DEVICE double root(double x) { return __builtin_sqrt(x); }
#else
TILEDMM_DEVICE float root(float x) { return sqrtf(x); }
TILEDMM_DEVICE double root(double x) { return sqrt(x); }
#endif

// ---- What is known of some elements: their sum, or this.
template <class A>
struct Spread {
  A sum, mean;  // the mean is rounded
  A rest;       // the mean of their differences from it
  A squares;    // the sum of their squared differences from mean + rest
};
template <class A>
TILEDMM_DEVICE A sum_of(A sum) {
  return sum;
}
template <class A>
TILEDMM_DEVICE A sum_of(const Spread<A>& part) {
  return part.sum;
}
template <class A, bool IS_SPREAD>
using PartOf = std::conditional_t<IS_SPREAD, Spread<A>, A>;

// Two sums at a time.
template <class A>
struct alignas(2 * sizeof(A)) Differences {
  A plain, squared;
};
template <class A>
TILEDMM_DEVICE Differences<A> operator+(Differences<A> a, Differences<A> b) {
  return {a.plain + b.plain, a.squared + b.squared};
}
using gpu::lane_xor;
template <class A>
TILEDMM_DEVICE Differences<A> lane_xor(Differences<A> own, int mask) {
  return {lane_xor(own.plain, mask), lane_xor(own.squared, mask)};
}

template <class V>
TILEDMM_DEVICE V add_chains(const V (&sums)[kWidth]) {
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}
// The sum of all lanes, in each of them.
template <class V>
TILEDMM_DEVICE V add_lanes(V own) {
  TILEDMM_UNROLL for (int mask = kLanes / 2; mask > 0; mask /= 2) own = own + lane_xor(own, mask);
  return own;
}
// The same of lanes that a thread has.
template <class V, int N>
TILEDMM_DEVICE V add_pairs(V (&lanes)[N]) {
  TILEDMM_UNROLL for (int mask = N / 2; mask > 0; mask /= 2) {
    TILEDMM_UNROLL for (int i = 0; i < mask; ++i) lanes[i] = lanes[i] + lanes[i + mask];
  }
  return lanes[0];
}
template <class A>
TILEDMM_DEVICE A mean_of(A sum, A count) {
  return count > 0 ? sum / count : A(0);
}

// No product is followed by an addition that the compiler may fuse with it in one kernel and not in another.
template <class A>
TILEDMM_DEVICE Spread<A> spread_of(A sum, A mean, A count, Differences<A> from_mean) {
  const A rest = mean_of(from_mean.plain, count), squares = fused(-from_mean.plain, rest, from_mean.squared);
  return {sum, mean, rest, squares < 0 ? A(0) : squares};
}
// What a part adds to the differences from the mean of more elements.
template <class A>
TILEDMM_DEVICE Differences<A> differences_of(const Spread<A>& part, A count, A mean) {
  const A difference = (part.mean - mean) + part.rest, of_all = fused(count, difference, A(0));
  return {of_all, fused(of_all, difference, part.squares)};
}

// ---- Elements of one thread: four neighbours, those STEP behind, and so on, STEPS times.
template <class T, int STEPS, int STEP = kStep>
struct Elements {
  using A = Acc<T>;
  T values[STEPS][kWidth];  // 0 beyond the end
  int left;                 // from the first one to the end

  TILEDMM_DEVICE bool has(int s, int j) const { return s * STEP + j < left; }
  TILEDMM_DEVICE int count() const {
    const int whole = int(min_of(max_of(left, 0) / STEP, STEPS));
    return whole * kWidth + (whole < STEPS ? int(min_of(max_of(left, 0) % STEP, kWidth)) : 0);
  }
  TILEDMM_DEVICE void load(const T* from, int64_t stride, int64_t to_end, bool is_aligned) {
    using P = Piece<T>;
    left = int(min_of(to_end, kChunk));
    TILEDMM_UNROLL for (int s = 0; s < STEPS; ++s, from += STEP * stride) {
      if (is_aligned && has(s, kWidth - 1)) {
        TILEDMM_UNROLL for (int j = 0; j < kWidth; j += P::kCount) {
          const P piece = load_global(reinterpret_cast<const P*>(from + j));
          TILEDMM_UNROLL for (int l = 0; l < P::kCount; ++l) values[s][j + l] = piece.values[l];
        }
      } else {
        TILEDMM_UNROLL for (int j = 0; j < kWidth; ++j) values[s][j] = has(s, j) ? load_global(from + j * stride) : T{};
      }
    }
  }
  TILEDMM_DEVICE A sum(Term term) const {
    A sums[kWidth] = {};
    TILEDMM_UNROLL for (int s = 0; s < STEPS; ++s) {
      TILEDMM_UNROLL for (int j = 0; j < kWidth; ++j) {
        const A x = as_acc(values[s][j]);
        sums[j] = term == Term::square ? fused(x, x, sums[j]) : sums[j] + (term == Term::magnitude && x < 0 ? -x : x);
      }
    }
    return add_chains(sums);
  }
  TILEDMM_DEVICE Differences<A> differences(A mean) const {
    Differences<A> sums[kWidth] = {};
    TILEDMM_UNROLL for (int s = 0; s < STEPS; ++s) {
      TILEDMM_UNROLL for (int j = 0; j < kWidth; ++j) {
        const A x = has(s, j) ? as_acc(values[s][j]) - mean : A(0);
        sums[j] = {sums[j].plain + x, fused(x, x, sums[j].squared)};
      }
    }
    return add_chains(sums);
  }
  template <class Part>
  TILEDMM_DEVICE Part part(const ReduceProblem& p) const {
    if constexpr (std::is_same_v<Part, A>) {
      return sum(p.term);
    } else {
      const A own = sum(Term::value), n = A(count()), mean = mean_of(own, n);
      return spread_of(own, mean, n, differences(mean));
    }
  }
};

// ---- Parts are merged.
// A chunk of `count` elements, of its lanes.
template <bool IS_SPREAD, class T, int STEPS>
TILEDMM_DEVICE PartOf<Acc<T>, IS_SPREAD> merge_lanes(const ReduceProblem& p, const Elements<T, STEPS>& own,
                                                     [[maybe_unused]] int64_t count) {
  using A = Acc<T>;
  if constexpr (!IS_SPREAD) {
    return add_lanes(own.sum(p.term));
  } else if constexpr (STEPS <= kFewSteps) {
    const A sum = add_lanes(own.sum(Term::value)), mean = mean_of(sum, A(count));
    return spread_of(sum, mean, A(count), add_lanes(own.differences(mean)));
  } else {
    const auto part = own.template part<Spread<A>>(p);
    const A sum = add_lanes(part.sum), mean = mean_of(sum, A(count));
    return spread_of(sum, mean, A(count), add_lanes(differences_of(part, A(own.count()), mean)));
  }
}

// A row of parts, or what lies in it from `first` on, a chunk at most.
struct Span {
  int64_t first, num_parts;  // all of the row's
  int64_t part_k, k;         // elements of a part; the last one has what is left of k
  int lane;

  TILEDMM_DEVICE int count() const { return int(max_of(min_of(num_parts - first, kChunk), 0)); }
  TILEDMM_DEVICE int64_t elements(int count) const { return min_of((first + count) * part_k, k) - first * part_k; }
  // The sum of value(i), by all lanes.
  template <class V, class Value>
  TILEDMM_DEVICE V sum(const Value& value) const {
    const bool is_short = num_parts <= kShort;
    const int begin = is_short ? 0 : lane * kWidth, step = is_short ? kWidth : kStep, end = count();
    V sums[kWidth] = {};
    TILEDMM_UNROLL for (int s = 0; s < kSteps; ++s) {
      TILEDMM_UNROLL for (int j = 0; j < kWidth; ++j) {
        const int i = begin + s * step + j;
        sums[j] = sums[j] + (i < end ? value(i) : V{});
      }
    }
    return is_short ? add_chains(sums) : add_lanes(add_chains(sums));
  }
};
// Where parts are: in memory, or in the block's.
enum class Place { global, shared };
template <Place PLACE, class V>
TILEDMM_DEVICE V load_from(const V* from) {
  return PLACE == Place::shared ? load_shared(from) : load_global(from);
}
template <Place PLACE, class V>
TILEDMM_DEVICE void store_to(V* to, V value) {
  PLACE == Place::shared ? store_shared(to, value) : store_global(to, value);
}
template <Place PLACE, class A>
TILEDMM_DEVICE void store_part(A* to, A part) {
  store_to<PLACE>(to, part);
}
template <Place PLACE, class A>
TILEDMM_DEVICE void store_part(Spread<A>* to, const Spread<A>& part) {
  store_to<PLACE>(&to->sum, part.sum), store_to<PLACE>(&to->mean, part.mean);
  store_to<PLACE>(&to->rest, part.rest), store_to<PLACE>(&to->squares, part.squares);
}
template <Place PLACE, class A>
TILEDMM_DEVICE A load_part(const A* from) {
  return load_from<PLACE>(from);
}
template <Place PLACE, class A>
TILEDMM_DEVICE Spread<A> load_part(const Spread<A>* from) {
  return {load_from<PLACE>(&from->sum), load_from<PLACE>(&from->mean), load_from<PLACE>(&from->rest),
          load_from<PLACE>(&from->squares)};
}

template <Place PLACE, class A>
TILEDMM_DEVICE A merge(const A* parts, const Span& span) {
  return span.sum<A>([&](int i) { return load_from<PLACE>(parts + i); });
}
template <Place PLACE, class A>
TILEDMM_DEVICE Spread<A> merge(const Spread<A>* parts, const Span& span) {
  const auto count = A(span.elements(span.count())), of_part = A(span.part_k);
  const auto of_last = A(span.k - (span.num_parts - 1) * span.part_k);
  const A sum = span.sum<A>([&](int i) { return load_from<PLACE>(&parts[i].sum); }), mean = mean_of(sum, count);
  const auto from_mean = span.sum<Differences<A>>([&](int i) {
    return differences_of(load_part<PLACE>(parts + i), span.first + i + 1 == span.num_parts ? of_last : of_part, mean);
  });
  return spread_of(sum, mean, count, from_mean);
}

template <class A>
TILEDMM_DEVICE void store_number(DType dtype, void* y, int64_t o, A value) {
  if (dtype == DType::f32) {
    store_global(static_cast<float*>(y) + o, float(value));
  } else if (dtype == DType::f64) {
    store_global(static_cast<double*>(y) + o, double(value));
  } else if (dtype == DType::f16) {
    store_global(static_cast<Half*>(y) + o, rounded_to<Half>(float(value)));
  } else {
    store_global(static_cast<BFloat16*>(y) + o, rounded_to<BFloat16>(float(value)));
  }
}
template <class A>
TILEDMM_DEVICE void store_result(const ReduceProblem& p, int64_t o, A sum) {
  const A quotient = sum / A(p.divisor);
  store_number(p.dtype_y, p.y, o, p.takes_root ? root(quotient) : quotient);
}
template <class A>
TILEDMM_DEVICE void store_result(const ReduceProblem& p, int64_t o, const Spread<A>& part) {
  store_result(p, o, part.squares);
  if (p.mean) store_number(p.dtype_y, p.mean, o, part.sum / A(p.k));
}
// Number `idx` of the parts, or the result where rows have one each.
template <class Part>
TILEDMM_DEVICE void store(const ReduceProblem& p, Part* parts, int64_t idx, const Part& part) {
  if (parts) {
    store_part<Place::global>(parts + idx, part);
  } else {
    store_result(p, idx, part);
  }
}

// ---- Kernels
template <class T>
TILEDMM_DEVICE const T* row_of(const ReduceProblem& p, int64_t o) {
  return static_cast<const T*>(p.x) + offset_in_x(p, o);
}

// k <= 32: a thread for each row.
template <class T, bool IS_SPREAD>
TILEDMM_KERNEL(kReduceThreads, 2)
sum_short_rows(ReduceProblem p, bool is_aligned) {
  using Part = PartOf<Acc<T>, IS_SPREAD>;
  const int64_t o = block_idx() * kReduceThreads + thread_idx();
  if (o >= p.outer * p.inner) return;
  const T* row = row_of<T>(p, o);
  if (p.k <= kWidth) {
    Elements<T, 1, kWidth> own;
    own.load(row, p.stride_k, p.k, is_aligned);
    store_result(p, o, own.template part<Part>(p));
  } else {
    Elements<T, kShort / kWidth, kWidth> own;
    own.load(row, p.stride_k, p.k, is_aligned);
    store_result(p, o, own.template part<Part>(p));
  }
}

// What a lane has of a chunk of STEPS steps.
template <class T, int STEPS>
TILEDMM_DEVICE Elements<T, STEPS> load_lane(const ReduceProblem& p, const T* row, int64_t chunk, int lane, bool is_mine,
                                            bool is_aligned) {
  const int64_t first = chunk * kChunk + lane * kWidth;
  Elements<T, STEPS> own;
  own.load(row + opaque(first * p.stride_k), p.stride_k, is_mine ? p.k - first : 0, is_aligned);
  return own;
}
TILEDMM_DEVICE int64_t elements_of(const ReduceProblem& p, int64_t chunk) {
  return min_of(p.k - chunk * kChunk, kChunk);
}

// 32 lanes for each chunk of a row, or, where chunks are one short step, for four rows.
template <class T, bool IS_SPREAD, int STEPS>
TILEDMM_KERNEL(kReduceThreads, 2)
sum_chunks(ReduceProblem p, PartOf<Acc<T>, IS_SPREAD>* parts, int64_t num_chunks, bool is_aligned) {
  using Part = PartOf<Acc<T>, IS_SPREAD>;
  constexpr int kAtOnce = chunks_at_once(STEPS);
  let_later_kernels_start();
  const int lane = thread_idx() % kLanes;
  const int64_t first = (block_idx() * kGroups + thread_idx() / kLanes) * kAtOnce;
  const int64_t count = p.outer * p.inner * num_chunks;
  Elements<T, STEPS> own[kAtOnce];
  int64_t chunks[kAtOnce];
  TILEDMM_UNROLL for (int i = 0; i < kAtOnce; ++i) {
    const bool is_mine = first + i < count;  // lanes of another chunk of the warp go on
    const int64_t idx = is_mine ? first + i : 0, o = num_chunks == 1 ? idx : idx / num_chunks;
    chunks[i] = idx - o * num_chunks;
    own[i] = load_lane<T, STEPS>(p, row_of<T>(p, o), chunks[i], lane, is_mine, is_aligned);
  }
  Part result{};
  TILEDMM_UNROLL for (int i = 0; i < kAtOnce; ++i) {
    const Part part = merge_lanes<IS_SPREAD>(p, own[i], elements_of(p, chunks[i]));
    if (lane == i) result = part;
  }
  if (lane < kAtOnce && first + lane < count) store(p, parts, first + lane, result);
}

// GROUPS times 32 lanes for each row, whose parts stay in shared memory.
template <class T, bool IS_SPREAD, int GROUPS>
TILEDMM_KERNEL(kReduceThreads, 2)
sum_rows(ReduceProblem p, int64_t num_chunks, bool is_aligned) {
  using Part = PartOf<Acc<T>, IS_SPREAD>;
  constexpr int kRows = kGroups / GROUPS;
  struct Shared {
    Part parts[kRows][kMostParts / kRows];
  };
  Shared& shared = block_shared<Shared>();
  const int group = thread_idx() / kLanes, lane = thread_idx() % kLanes;
  const int64_t o = block_idx() * kRows + group / GROUPS;
  const bool is_mine = o < p.outer * p.inner;
  const T* row = row_of<T>(p, is_mine ? o : 0);
  Part* const parts = shared.parts[group / GROUPS];
  TILEDMM_NO_UNROLL for (int64_t first = 0; first < num_chunks; first += GROUPS) {
    const int64_t chunk = first + group % GROUPS;
    const bool is_chunk = chunk < num_chunks;
    const auto own = load_lane<T, kSteps>(p, row, is_chunk ? chunk : 0, lane, is_mine && is_chunk, is_aligned);
    const Part part = merge_lanes<IS_SPREAD>(p, own, elements_of(p, chunk));
    if (lane == 0 && is_chunk) store_part<Place::shared>(parts + chunk, part);
  }
  if constexpr (GROUPS == 1) {
    warp_barrier();
  } else {
    block_barrier();
    if (thread_idx() >= kWarpSize) return;
  }
  const Part part = merge<Place::shared>(parts, Span{0, num_chunks, kChunk, p.k, lane});
  if (is_mine && lane == 0 && group % GROUPS == 0) store_result(p, o, part);
}

// The sum of what the groups of a block have of a row.
template <class V>
TILEDMM_DEVICE V add_groups(const V (&shared)[kGroups][kLanes], int row) {
  V groups[kGroups];
  TILEDMM_UNROLL for (int i = 0; i < kGroups; ++i) groups[i] = load_shared(&shared[i][row]);
  return add_pairs(groups);
}

constexpr int kOwn = kLanes / kGroups;  // lanes of a row that a thread of sum_columns has
// What its threads tell each other.
template <class A, bool IS_SPREAD, bool HAS_PARTS>
struct Columns {
  A sums[kGroups][kLanes];  // of a thread's lanes: [group][row]
  Differences<A> differences[IS_SPREAD ? kGroups : 1][kLanes];
  PartOf<A, IS_SPREAD> parts[HAS_PARTS ? kOwn : 1][HAS_PARTS ? kReduceThreads : 1];  // which its thread alone reads
};

// A chunk of 32 neighbouring rows, each with its neighbour's elements beside its own. A thread's lanes are those whose
// numbers differ in the bits of 16 and 8, the first two levels of pairs, so that it adds up more before it tells
// others. Until the mean is known it keeps the elements, where they are few, or the lanes' parts. fp64 takes more
// registers, and its parts take most of AMD's shared memory.
template <class T, bool IS_SPREAD, int STEPS>
TILEDMM_KERNEL(kReduceThreads, sizeof(T) == 8 ? (IS_SPREAD && kIsAmd ? 1 : 2) : 3)
sum_columns(ReduceProblem p, PartOf<Acc<T>, IS_SPREAD>* parts, int64_t num_chunks) {
  using A = Acc<T>;
  using Part = PartOf<A, IS_SPREAD>;
  constexpr bool kAreFew = STEPS <= kFewSteps;
  constexpr int kAtOnce = chunks_at_once(STEPS);
  auto& shared = block_shared<Columns<A, IS_SPREAD, !kAreFew>>();
  let_later_kernels_start();
  const int64_t tile = num_chunks == 1 ? block_idx() : block_idx() / num_chunks;
  const int64_t chunk = block_idx() - tile * num_chunks;
  const int close = thread_idx() % kLanes, group = thread_idx() / kLanes;
  const int64_t o = tile * kLanes + close;
  const bool is_mine = o < p.outer * p.inner;
  const T* row = row_of<T>(p, is_mine ? o : 0);
  Elements<T, STEPS> own[kAtOnce];
  TILEDMM_NO_UNROLL for (int first = 0; first < kOwn; first += kAtOnce) {
    TILEDMM_UNROLL for (int i = 0; i < kAtOnce; ++i) {
      own[i] = load_lane<T, STEPS>(p, row, chunk, group + (first + i) * kGroups, is_mine, false);
    }
    if constexpr (!kAreFew) {
      TILEDMM_UNROLL for (int i = 0; i < kAtOnce; ++i) {
        store_part<Place::shared>(&shared.parts[first + i][thread_idx()], own[i].template part<Part>(p));
      }
    }
  }
  A sums[kOwn];
  TILEDMM_UNROLL for (int i = 0; i < kOwn; ++i) {
    if constexpr (kAreFew) {
      sums[i] = own[i].sum(IS_SPREAD ? Term::value : p.term);
    } else {
      sums[i] = sum_of(load_part<Place::shared>(&shared.parts[i][thread_idx()]));
    }
  }
  store_shared(&shared.sums[group][close], add_pairs(sums));
  block_barrier();
  if (!IS_SPREAD && group > 0) return;
  const A sum = add_groups(shared.sums, close);
  if constexpr (IS_SPREAD) {
    const A n = A(elements_of(p, chunk)), mean = mean_of(sum, n);
    Differences<A> differences[kOwn];
    TILEDMM_UNROLL for (int i = 0; i < kOwn; ++i) {
      if constexpr (kAreFew) {
        differences[i] = own[i].differences(mean);
      } else {
        const int64_t left = p.k - chunk * kChunk - (group + i * kGroups) * kWidth;
        const Elements<T, STEPS> lane{{}, int(min_of(left, kChunk))};
        const Part part = load_part<Place::shared>(&shared.parts[i][thread_idx()]);
        differences[i] = differences_of(part, A(lane.count()), mean);
      }
    }
    store_shared(&shared.differences[group][close], add_pairs(differences));
    block_barrier();
    if (group > 0 || !is_mine) return;
    store(p, parts, o * num_chunks + chunk, spread_of(sum, mean, n, add_groups(shared.differences, close)));
  } else if (is_mine) {
    store(p, parts, o * num_chunks + chunk, sum);
  }
}

// The sum of the lanes FIRST, FIRST + STEP, FIRST + 2 * STEP and so on, in pairs as add_lanes has them.
template <int FIRST, int STEP, class V, class Function>
TILEDMM_DEVICE V sum_of_lanes(const Function& lane) {
  if constexpr (STEP == kLanes) {
    return lane(FIRST);
  } else {
    return sum_of_lanes<FIRST, 2 * STEP, V>(lane) + sum_of_lanes<FIRST + STEP, 2 * STEP, V>(lane);
  }
}

// Many columns of 32 < k <= 128: a thread for each, so that many of its elements are on their way at the same time.
template <class T>
TILEDMM_KERNEL(kReduceThreads, 2)
sum_short_columns(ReduceProblem p) {
  const int64_t o = block_idx() * kReduceThreads + thread_idx();
  if (o >= p.outer * p.inner) return;
  const T* row = row_of<T>(p, o);
  store_result(p, o, sum_of_lanes<0, 1, Acc<T>>([&](int lane) {
                 return load_lane<T, 1>(p, row, 0, lane, true, false).sum(p.term);
               }));
}

// 32 lanes for each 1024 parts of a row.
template <class A, bool IS_SPREAD>
TILEDMM_KERNEL(kReduceThreads, 2)
merge_parts(ReduceProblem p, const PartOf<A, IS_SPREAD>* parts, int64_t num_parts, int64_t part_k,
            PartOf<A, IS_SPREAD>* merged, int64_t num_merged) {
  wait_for_earlier_kernels();
  let_later_kernels_start();
  const int lane = thread_idx() % kLanes;
  const int64_t idx = block_idx() * kGroups + thread_idx() / kLanes, o = idx / num_merged;
  const bool is_mine = o < p.outer * p.inner;
  const int64_t first = is_mine ? (idx - o * num_merged) * kChunk : num_parts;
  const PartOf<A, IS_SPREAD> part =
      merge<Place::global>(parts + o * num_parts + first, Span{first, num_parts, part_k, p.k, lane});
  if (is_mine && lane == 0) store(p, merged, idx, part);
}

// Merges the parts of each row, which are given back.
template <class A, bool IS_SPREAD>
Status merge_all(const ReduceProblem& p, PartOf<A, IS_SPREAD>* parts, int64_t num_parts, int64_t part_k,
                 const Executor& executor) {
  using Part = PartOf<A, IS_SPREAD>;
  const int64_t rows = p.outer * p.inner, num_merged = ceil_div(num_parts, kChunk);
  Part* merged = nullptr;
  Status status = Status::ok;
  if (num_merged > 1) {
    merged = static_cast<Part*>(executor.allocate(executor.self, size_t(rows * num_merged) * sizeof(Part)));
    if (!merged) status = Status::out_of_memory;
  }
  if (status == Status::ok) {
    status = launch_early(merge_parts<A, IS_SPREAD>, ceil_div(rows * num_merged, kGroups), 1, kReduceThreads, 0,
                          executor, p, static_cast<const Part*>(parts), num_parts, part_k, merged, num_merged);
  }
  executor.release(executor.self, parts);
  if (status != Status::ok || !merged) {
    if (merged) executor.release(executor.self, merged);
    return status;
  }
  return merge_all<A, IS_SPREAD>(p, merged, num_merged, part_k * kChunk, executor);
}

template <class T, bool IS_SPREAD>
Status reduce(const ReduceProblem& p, const Executor& executor) {
  using Part = PartOf<Acc<T>, IS_SPREAD>;
  const int64_t rows = p.outer * p.inner, num_chunks = ceil_div(max_of(p.k, 1), kChunk);
  const auto vector = int64_t(alignof(Piece<T>));
  const bool is_aligned = p.stride_k == 1 && reinterpret_cast<uintptr_t>(p.x) % vector == 0 &&
                          p.stride_outer * int64_t(sizeof(T)) % vector == 0 &&
                          p.stride_inner * int64_t(sizeof(T)) % vector == 0;
  const bool are_columns = p.stride_inner == 1 && p.inner > 1 && p.stride_k != 1;
  if (p.k <= kShort) {
    return launch_kernel(sum_short_rows<T, IS_SPREAD>, ceil_div(rows, kReduceThreads), 1, kReduceThreads, 0, executor,
                         p, is_aligned);
  }
  if constexpr (!IS_SPREAD) {
    constexpr int64_t kBlocksOfCu = 2;
    if (are_columns && p.k <= kStep && rows >= kBlocksOfCu * kReduceThreads * executor.num_cus) {
      return launch_kernel(sum_short_columns<T>, ceil_div(rows, kReduceThreads), 1, kReduceThreads, 0, executor, p);
    }
  }
  const auto launch_steps = [&](auto num_steps, Part* parts) {
    constexpr int kOfChunk = decltype(num_steps)::value;
    if (are_columns) {
      const size_t bytes = sizeof(Columns<Acc<T>, IS_SPREAD, (kOfChunk > kFewSteps)>);
      return launch_kernel(sum_columns<T, IS_SPREAD, kOfChunk>, ceil_div(rows, kLanes) * num_chunks, 1, kReduceThreads,
                           bytes, executor, p, parts, num_chunks);
    }
    return launch_kernel(sum_chunks<T, IS_SPREAD, kOfChunk>,
                         ceil_div(rows * num_chunks, kGroups * chunks_at_once(kOfChunk)), 1, kReduceThreads, 0,
                         executor, p, parts, num_chunks, is_aligned);
  };
  const auto launch = [&](Part* parts) {
    if (p.k <= kStep) return launch_steps(std::integral_constant<int, 1>{}, parts);
    if (p.k <= kFewSteps * kStep) return launch_steps(std::integral_constant<int, kFewSteps>{}, parts);
    if (p.k <= kChunk / 2) return launch_steps(std::integral_constant<int, kSteps / 2>{}, parts);
    return launch_steps(std::integral_constant<int, kSteps>{}, parts);
  };
  if (num_chunks == 1) return launch(nullptr);
  if (!are_columns) {
    // 32 lanes for each row where rows are many; a block for each where that is enough work to be shared out.
    const bool are_many = rows >= 8 * int64_t(executor.num_cus) && num_chunks <= kMostParts / kGroups;
    const bool are_some = num_chunks <= kGroups || (rows >= executor.num_cus && num_chunks <= kMostParts);
    if (are_many || are_some) {
      return launch_kernel(are_many ? sum_rows<T, IS_SPREAD, 1> : sum_rows<T, IS_SPREAD, kGroups>,
                           are_many ? ceil_div(rows, kGroups) : rows, 1, kReduceThreads, kMostParts * sizeof(Part),
                           executor, p, num_chunks, is_aligned);
    }
  }
  Part* parts = static_cast<Part*>(executor.allocate(executor.self, size_t(rows * num_chunks) * sizeof(Part)));
  if (!parts) return Status::out_of_memory;
  const Status status = launch(parts);
  if (status == Status::ok) return merge_all<Acc<T>, IS_SPREAD>(p, parts, num_chunks, kChunk, executor);
  executor.release(executor.self, parts);
  return status;
}

}  // namespace

Status launch_reduce(const ReduceProblem& problem, const Executor& executor) {
  if (problem.is_running) return launch_running_sums(problem, executor);
  return visit_dtype(problem.dtype, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    if (problem.term != Term::spread) return reduce<T, false>(problem, executor);
    if constexpr (sizeof(T) >= 4) return reduce<T, true>(problem, executor);
    return Status::unsupported;
  });
}

}  // namespace tiledmm::gpu

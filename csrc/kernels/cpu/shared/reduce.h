// Sums along a dimension (core/reduce.h) on a CPU. k is cut into chunks of 1024. Element i of a chunk is in chain
// i mod 32, whose elements are added one after the other; chain c is added to chain c - 16 for c >= 16, then those from
// 8 on to the first 8, and so on. The sums of chunks are added up as elements are. So the order follows from k alone:
// rows, columns, each instruction set and any number of threads have the same bits.
// One instruction set per translation unit, as in simd.h.
#pragma once

#include "core/executor.h"
#include "core/reduce.h"
#include "kernels/cpu/shared/pack.h"
#include "kernels/cpu/shared/parallel.h"
#include "kernels/cpu/shared/simd.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

constexpr int64_t kChains = 32, kSumChunk = 1024;
constexpr int64_t kSumTask = 1 << 14;  // elements: enough to repay another thread
constexpr int64_t kSumsAtOnce = 512;   // are stored at a time
constexpr int kStripRegs = 4;
template <class A>
constexpr int64_t kStrip = kStripRegs * Simd<A>::kLanes;  // columns

// x[o], o < outer * inner, of k elements each, in segments as in core/reduce.h.
template <class T>
struct Rows {
  const T* x;
  int64_t outer, inner, k, stride_outer, stride_inner, stride_k, segment, stride_segment;

  const T* row(int64_t o) const {
    return outer == 1 ? x + o * stride_inner : x + o / inner * stride_outer + o % inner * stride_inner;
  }
};

// Elements in the type of sums: fp32 and 16 bits become fp64 where that is A.
template <class A, class T>
TILEDMM_INLINE Reg<A> load_terms(const T* from) {
  if constexpr (std::is_same_v<A, Acc<T>>) {
    return load_converted<TILEDMM_VECTOR_BYTES>(from);
  } else if constexpr (TILEDMM_VECTOR_BYTES == 64 || (TILEDMM_VECTOR_BYTES == 32 && !std::is_same_v<T, Half>)) {
    const auto narrow = load_converted<TILEDMM_VECTOR_BYTES / 2>(from);
#if TILEDMM_VECTOR_BYTES == 64
    return _mm512_maskz_cvtps_pd(0xff, narrow);  // GCC 12 would widen one half after the other
#else
    return __builtin_convertvector(narrow, Reg<A>);
#endif
  } else {
    Reg<A> v{};
    for (int l = 0; l < Simd<A>::kLanes; ++l) v[l] = to_acc(from[l]);
    return v;
  }
}
// The first `count` of them, fewer than a vector's lanes; the others are 0 and their memory is not touched.
template <class A, class T>
TILEDMM_INLINE Reg<A> load_some_terms(const T* from, int64_t count) {
#if TILEDMM_VECTOR_BYTES == 64
  T own[TILEDMM_VECTOR_BYTES / sizeof(T)];
  store(own, _mm512_maskz_loadu_epi8((uint64_t(1) << count * int64_t(sizeof(T))) - 1, from));
#else
  T own[Simd<A>::kLanes] = {};
  for (int64_t i = 0; i < count; ++i) own[i] = from[i];
#endif
  return load_terms<A>(own);
}

template <Term TERM, class R>
TILEDMM_INLINE R term_of(R x, R mean) {
  if constexpr (TERM == Term::square) return x * x;
  if constexpr (TERM == Term::magnitude) return x < 0 ? -x : x;
  if constexpr (TERM == Term::spread) return (x - mean) * (x - mean);
  return x;
}

// The first `count` lanes of v; `rest` in the others.
template <class A, int... I>
TILEDMM_INLINE Reg<A> first_lanes(Reg<A> v, int64_t count, A rest, std::integer_sequence<int, I...>) {
  using Index = std::conditional_t<sizeof(A) == 4, int32_t, int64_t>;
  return Reg<Index>{I...} < Index(count) ? v : broadcast(rest);
}
template <class A>
TILEDMM_INLINE Reg<A> first_lanes(Reg<A> v, int64_t count, A rest = 0) {
  return first_lanes<A>(v, count, rest, std::make_integer_sequence<int, Simd<A>::kLanes>{});
}

// One number from the first LANES lanes: fold(v, w) of the first half of them and the second half, and so on.
template <class A, int LANES, class R, class Fold, int... I>
TILEDMM_INLINE A fold_lanes(R v, const Fold& fold, std::integer_sequence<int, I...> lanes) {
  if constexpr (LANES == 1) {
    return v[0];
  } else {
    const R others = __builtin_shufflevector(v, v, ((I + LANES / 2) % int(sizeof...(I)))...);
    return fold_lanes<A, LANES / 2>(fold(v, others), fold, lanes);
  }
}
template <class A, class Fold>
TILEDMM_INLINE A fold_lanes(Reg<A> v, const Fold& fold) {
  constexpr int kLanes = Simd<A>::kLanes;
  return fold_lanes<A, kLanes>(v, fold, std::make_integer_sequence<int, kLanes>{});
}

template <class A>
constexpr std::integral_constant<int64_t, Simd<A>::kLanes> kAllLanes{};

// The sum of n terms: term(i, count) has `count` of them from term i on in its first lanes, and 0 in the others.
template <class A, class Function>
TILEDMM_INLINE A sum_of_terms(int64_t n, const Function& term) {
  constexpr int kLanes = Simd<A>::kLanes, kRegs = kChains / kLanes;
  Reg<A> sums[kRegs] = {};
  int64_t i = 0;
  for (; i + kChains <= n; i += kChains) {
    for (int r = 0; r < kRegs; ++r) sums[r] += term(i + r * kLanes, kAllLanes<A>);
  }
  for (int r = 0; r < kRegs; ++r) {
    const int64_t from = i + r * kLanes, count = n - from;
    if (count >= kLanes) {
      sums[r] += term(from, kAllLanes<A>);
    } else if (count > 0) {
      sums[r] += term(from, count);
    }
  }
  for (int half = kRegs / 2; half > 0; half /= 2) {
    for (int r = 0; r < half; ++r) sums[r] += sums[r + half];
  }
  return fold_lanes<A>(sums[0], [](auto a, auto b) { return a + b; });
}

template <class A, class T>
TILEDMM_INLINE Reg<A> load_lanes_of(const T* from, int64_t count) {
  return count == Simd<A>::kLanes ? load_terms<A>(from) : load_some_terms<A>(from, count);
}

// The terms of `count` elements, 0 in other lanes.
template <Term TERM, class A, class T>
TILEDMM_INLINE Reg<A> terms_of(const T* from, int64_t count, Reg<A> means) {
  const Reg<A> terms = term_of<TERM>(load_lanes_of<A>(from, count), means);
  const bool has_rest = TERM == Term::spread && count < Simd<A>::kLanes;  // other terms of 0 are 0
  return has_rest ? first_lanes<A>(terms, count) : terms;
}

// The sum of n elements of one row.
template <Term TERM, class A, class T>
TILEDMM_INLINE A sum_of_row(const T* x, int64_t stride, int64_t n, A mean) {
  const Reg<A> means = broadcast(mean);
  if (stride == 1) {
    return sum_of_terms<A>(n, [&](int64_t i, auto count) { return terms_of<TERM, A>(x + i, count, means); });
  }
  return sum_of_terms<A>(n, [&](int64_t i, auto count) {
    T own[Simd<A>::kLanes];
    for (int64_t j = 0; j < count; ++j) own[j] = x[(i + j) * stride];
    return terms_of<TERM, A>(own, count, means);
  });
}

// The sum of n elements of a row of segments, from element `first` on.
template <Term TERM, class A, class T>
TILEDMM_INLINE A sum_of_segments(const Rows<T>& rows, const T* row, int64_t first, int64_t n, A mean) {
  constexpr int64_t kLanes = Simd<A>::kLanes;
  const Reg<A> means = broadcast(mean);
  const int64_t size = rows.segment, stride = rows.stride_segment;
  const T* segment = row + first / size * stride;
  int64_t end = (first / size + 1) * size - first;  // of the segment
  return sum_of_terms<A>(n, [&](int64_t i, auto count) {
    if (i >= end) end += size, segment += stride;
    const T* from = segment + (i - (end - size));
    if (i + count <= end) return terms_of<TERM, A>(from, count, means);
    T own[2 * kLanes];  // the last lanes are of the next segment
    const int64_t left = end - i;
    __builtin_memcpy(own, from, size_t(left) * sizeof(T));
    __builtin_memcpy(own + left, segment + stride, size_t(kLanes) * sizeof(T));
    return terms_of<TERM, A>(own, count, means);
  });
}

// Neighbouring columns that are added up side by side: REGS vectors of them, the last of which begins early where their
// number is none of whole vectors; or, IS_PART, fewer than one vector.
template <class A, int REGS, bool IS_PART>
struct Strip {
  static constexpr int kRegs = REGS;
  int64_t count;

  int64_t begin(int r) const { return IS_PART || r + 1 < REGS ? r * Simd<A>::kLanes : count - Simd<A>::kLanes; }
  // Vector r of the row that begins at `row`.
  template <class T>
  TILEDMM_INLINE Reg<A> load(const T* row, int r) const {
    if constexpr (IS_PART) return load_some_terms<A>(row, count);
    return load_terms<A>(row + begin(r));
  }
  TILEDMM_INLINE void store(A* row, int r, Reg<A> v) const {
    store_converted(row + begin(r), v, IS_PART ? count : Simd<A>::kLanes);
  }
};

// visit(strip) of `count` columns, at most kStrip<A>.
template <class A, class Visit>
TILEDMM_INLINE void visit_strip(int64_t count, const Visit& visit) {
  static_assert(kStripRegs == 4);
  if (count < Simd<A>::kLanes) return visit(Strip<A, 1, true>{count});
  switch (ceil_div(count, Simd<A>::kLanes)) {
    case 1:
      return visit(Strip<A, 1, false>{count});
    case 2:
      return visit(Strip<A, 2, false>{count});
    case 3:
      return visit(Strip<A, 3, false>{count});
    default:
      return visit(Strip<A, 4, false>{count});
  }
}

// The sum of the chains c, c + STEP, c + 2 * STEP, ... of n elements, c < n, for each vector r: load(i, r). Some chains
// at a time, so that an addition need not wait for the one before.
template <int STEP, int REGS, class R, class Load>
TILEDMM_INLINE void add_chains(int64_t c, int64_t n, const Load& load, R (&sums)[REGS]) {
  constexpr int kAtOnce = REGS < 3 ? 4 : 2;
  if constexpr (STEP * kAtOnce < kChains) {
    add_chains<2 * STEP>(c, n, load, sums);
    if (c + STEP >= n) return;
    R others[REGS];
    add_chains<2 * STEP>(c + STEP, n, load, others);
    for (int r = 0; r < REGS; ++r) sums[r] += others[r];
  } else {
    R own[kAtOnce][REGS] = {};
    const auto add = [&](int64_t i, int chain) {
      for (int r = 0; r < REGS; ++r) own[chain][r] += load(i + chain * STEP, r);
    };
    int64_t i = c;
    for (; i + (kAtOnce - 1) * STEP < n; i += kChains) {
      for (int chain = 0; chain < kAtOnce; ++chain) add(i, chain);
    }
    for (int chain = 0; chain + 1 < kAtOnce; ++chain) {
      if (i + chain * STEP < n) add(i, chain);
    }
    for (int half = kAtOnce / 2; half > 0; half /= 2) {
      for (int chain = 0; chain < half; ++chain) {
        for (int r = 0; r < REGS; ++r) own[chain][r] += own[chain + half][r];
      }
    }
    for (int r = 0; r < REGS; ++r) sums[r] = own[0][r];
  }
}
// The sum of all chains, of which a quarter at a time is in registers.
template <int REGS, class R, class Load>
TILEDMM_INLINE void add_chunk(int64_t n, const Load& load, R (&sums)[REGS]) {
  R quarters[4][REGS] = {};
  const int64_t used = min_of(n, 4);
#pragma GCC unroll 1
  for (int64_t c = 0; c < used; ++c) add_chains<4>(c, n, load, quarters[c]);
  for (int r = 0; r < REGS; ++r) {
    sums[r] = (quarters[0][r] + quarters[2][r]) + (quarters[1][r] + quarters[3][r]);
  }
}

// The sums of n elements each of `count` columns, at most kStrip<A>.
template <Term TERM, class A, class T>
void sum_strip(const T* x, int64_t stride, int64_t n, int64_t count, const A* means, A* sums) {
  visit_strip<A>(count, [&](auto strip) {
    constexpr int kRegs = decltype(strip)::kRegs;
    Reg<A> own_means[kRegs] = {}, own[kRegs];
    for (int r = 0; TERM == Term::spread && r < kRegs; ++r) own_means[r] = strip.load(means, r);
    add_chunk(n, [&](int64_t i, int r) { return term_of<TERM>(strip.load(x + i * stride, r), own_means[r]); }, own);
    for (int r = 0; r < kRegs; ++r) strip.store(sums, r, own[r]);
  });
}

// The sums of fewer than kStrip<A> columns, without gaps between rows: what lies side by side is added at once.
template <Term TERM, class A, class T>
void sum_narrow_columns(const T* x, int64_t n, int64_t count, const A* means, A* sums) {
  constexpr int64_t kLanes = Simd<A>::kLanes;
  A chains[kChains * kStrip<A>], own_means[kChains * kStrip<A>];
  int64_t used = 1;  // chains: the others have no elements
  while (used < min_of(n, kChains)) used *= 2;
  const int64_t size = used * count;
  for (int64_t i = 0; i < size; i += kLanes) store(chains + i, Reg<A>{});
  for (int64_t i = 0; TERM == Term::spread && i < size; ++i) own_means[i] = means[i % count];
  for (int64_t i = 0; i < n * count; i += size) {
    const int64_t own = min_of(size, n * count - i);
    for (int64_t j = 0; j < own; j += kLanes) {
      const int64_t some = min_of(kLanes, own - j);
      const Reg<A> x_j = some == kLanes ? load_terms<A>(x + i + j) : load_some_terms<A>(x + i + j, some);
      const Reg<A> terms = term_of<TERM>(x_j, TERM == Term::spread ? load(own_means + j) : Reg<A>{});
      store(chains + j, load(chains + j) + (TERM == Term::spread ? first_lanes<A>(terms, some) : terms));
    }
  }
  for (int64_t half = size / 2; half >= count; half /= 2) {
    for (int64_t i = 0; i < half; ++i) chains[i] += chains[i + half];
  }
  for (int64_t i = 0; i < count; ++i) sums[i] = chains[i];
}

// The sums of n elements each of `count` columns, which are neighbours.
template <Term TERM, class A, class T>
void sum_columns(const T* x, int64_t stride, int64_t n, int64_t count, const A* means, A* sums) {
  // Without masks a vector that is not full is loaded by elements.
  const int64_t least = TILEDMM_VECTOR_BYTES < 64 && count < Simd<A>::kLanes ? 1 : 2 * kChains;
  if (count < kStrip<A> && stride == count && n >= least) {
    return sum_narrow_columns<TERM, A>(x, n, count, means, sums);
  }
  for (int64_t j = 0; j < count; j += kStrip<A>) {
    const A* const own_means = TERM == Term::spread ? means + j : nullptr;
    sum_strip<TERM, A>(x + j, stride, n, min_of(kStrip<A>, count - j), own_means, sums + j);
  }
}

// keep(o, sums, count) of rows o, o + 1, ...; means: what is taken away where TERM is spread. False where there is no
// memory.
template <Term TERM, class A, class T, class Keep>
bool add_up(const Rows<T>& rows, const A* means, const Executor& executor, const Keep& keep) {
  const int64_t count = rows.outer * rows.inner, num_chunks = max_of(int64_t(1), ceil_div(rows.k, kSumChunk));
  A* parts = nullptr;
  if (num_chunks > 1) {
    parts = static_cast<A*>(executor.allocate(executor.self, size_t(num_chunks * count) * sizeof(A)));
    if (!parts) return false;
  }
  // A line: rows that lie beside each other, all of one outer row; else a row. An item: a chunk of some lines, or of
  // some columns of one.
  const bool are_columns = rows.stride_inner == 1 && rows.stride_k != 1 && rows.inner > 1;
  const int64_t most = min_of(max_of(rows.k, int64_t(1)), kSumChunk), per_line = are_columns ? rows.inner : 1;
  const int64_t width = min_of(per_line, min_of(round_up(ceil_div(kSumTask, most), kStrip<A>), kSumsAtOnce));
  const bool are_long = num_chunks > 1 && !are_columns, are_parts = width < per_line;
  const int64_t lines = are_long || are_parts ? 1 : min_of(ceil_div(kSumTask, most * width), kSumsAtOnce / width);
  const int64_t num_lines = count / per_line, parts_of_line = ceil_div(per_line, width);
  const int64_t num_blocks = ceil_div(num_lines, lines) * parts_of_line, num_items = num_blocks * num_chunks;
  const auto add_up_item = [&](int64_t item) {
    const int64_t chunk = are_columns ? item / num_blocks : item % num_chunks;
    const int64_t block = are_columns ? item % num_blocks : item / num_chunks;
    const int64_t n = min_of(kSumChunk, rows.k - chunk * kSumChunk), first = chunk * kSumChunk * rows.stride_k;
    const int64_t line = block / parts_of_line * lines, begin = block % parts_of_line * width;
    const int64_t own_lines = min_of(lines, num_lines - line), own = min_of(width, per_line - begin);
    const int64_t o = line * per_line + begin, num_sums = own_lines * own;
    const A* const own_means = means ? means + o : nullptr;
    A sums[kSumsAtOnce];
    for (int64_t i = 0; i < num_sums; i += own) {
      const T* const row = rows.row(o + i);
      const A mean = TERM == Term::spread ? own_means[i] : A();
      if (are_columns) {
        const A* const means_of_columns = TERM == Term::spread ? own_means + i : nullptr;
        sum_columns<TERM, A>(row + first, rows.stride_k, n, own, means_of_columns, sums + i);
      } else if (rows.segment < rows.k) {
        sums[i] = sum_of_segments<TERM, A>(rows, row, chunk * kSumChunk, n, mean);
      } else {
        sums[i] = sum_of_row<TERM, A>(row + first, rows.stride_k, n, mean);
      }
    }
    if (!parts) return keep(o, sums, num_sums);
    __builtin_memcpy(parts + chunk * count + o, sums, size_t(num_sums) * sizeof(A));
  };
  const int64_t per_task = ceil_div(kSumTask, most * width * lines), num_tasks = ceil_div(num_items, per_task);
  const int64_t workers = count * rows.k < 2 * kSumTask ? 1 : min_of(int64_t(executor.num_threads), num_tasks);
  for_each_task(executor, workers, num_tasks, [&](int64_t, int64_t task) {
    for (int64_t i = task * per_task; i < min_of(num_items, (task + 1) * per_task); ++i) add_up_item(i);
  });
  if (!parts) return true;
  const Rows<A> rows_of_parts{parts, 1, count, num_chunks, 0, 1, count, num_chunks, 0};
  const bool has_memory = add_up<Term::value, A>(rows_of_parts, means, executor, keep);
  executor.release(executor.self, parts);
  return has_memory;
}

template <class A>
void store_numbers(DType dtype, void* y, int64_t o, const A* values, int64_t count) {
  visit_dtype(dtype, [&](auto* element) {
    using Y = std::remove_pointer_t<decltype(element)>;
    for (int64_t i = 0; i < count; ++i) static_cast<Y*>(y)[o + i] = from_acc<Y>(Acc<Y>(values[i]));
  });
}

template <Term TERM, class A, class T>
bool reduce_as(const ReduceProblem& p, const Executor& executor, const A* means = nullptr) {
  const auto* const x = static_cast<const T*>(p.x);
  const Rows<T> rows{x, p.outer, p.inner, p.k, p.stride_outer, p.stride_inner, p.stride_k, p.segment, p.stride_segment};
  return add_up<TERM, A>(rows, means, executor, [&](int64_t o, A* sums, int64_t count) {
    if (p.divisor != 1) {
      for (int64_t i = 0; i < count; ++i) sums[i] /= A(p.divisor);
    }
    if (p.takes_root) {
      for (int64_t i = 0; i < count; ++i) sums[i] = A(__builtin_sqrt(sums[i]));
    }
    store_numbers(p.dtype_y, p.y, o, sums, count);
  });
}

// In fp64, first the means.
template <class T>
bool reduce_spread(const ReduceProblem& p, const Executor& executor) {
  const int64_t count = p.outer * p.inner;
  auto* const means = static_cast<double*>(executor.allocate(executor.self, size_t(count) * sizeof(double)));
  if (!means) return false;
  ReduceProblem of_means = p;
  of_means.y = means, of_means.dtype_y = DType::f64, of_means.divisor = double(p.k), of_means.takes_root = false;
  bool has_memory = reduce_as<Term::value, double, T>(of_means, executor);
  if (has_memory && p.mean) store_numbers(p.dtype_y, p.mean, 0, means, count);
  has_memory = has_memory && reduce_as<Term::spread, double, T>(p, executor, means);
  executor.release(executor.self, means);
  return has_memory;
}

[[maybe_unused]] Status reduce(const ReduceProblem& p, const Executor& executor) {
  const bool has_memory = visit_dtype(p.dtype, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    return p.term == Term::spread      ? reduce_spread<T>(p, executor)
           : p.term == Term::square    ? reduce_as<Term::square, Acc<T>, T>(p, executor)
           : p.term == Term::magnitude ? reduce_as<Term::magnitude, Acc<T>, T>(p, executor)
                                       : reduce_as<Term::value, Acc<T>, T>(p, executor);
  });
  return has_memory ? Status::ok : Status::out_of_memory;
}

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

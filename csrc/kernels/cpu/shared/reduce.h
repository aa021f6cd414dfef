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
constexpr int64_t kSumAtOnce = 8;
constexpr int64_t kSumTask = 1 << 14;  // elements: enough to repay another thread
template <class A>
constexpr int64_t kSumColumns = 512 / sizeof(A);  // are added up side by side: their chains fit into a core's cache

// x[o], o < outer * inner, of k elements each.
template <class T>
struct Rows {
  const T* x;
  int64_t outer, inner, k, stride_outer, stride_inner, stride_k;

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
    return __builtin_convertvector(load_converted<TILEDMM_VECTOR_BYTES / 2>(from), Reg<A>);
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

// The first `count` lanes of v; 0 in the others.
template <class A>
TILEDMM_INLINE Reg<A> first_lanes(Reg<A> v, int64_t count) {
  A lanes[Simd<A>::kLanes] = {};
  store(lanes, v);
  for (int64_t l = count; l < Simd<A>::kLanes; ++l) lanes[l] = 0;
  return load(lanes);
}

// The sum of the first LANES lanes, the second half of which is added to the first one.
template <class A, int LANES, class R, int... I>
TILEDMM_INLINE A add_lanes(R v, std::integer_sequence<int, I...>) {
  if constexpr (LANES == 2) {
    return v[0] + v[1];
  } else {
    const auto sums = v + __builtin_shufflevector(v, v, ((I + LANES / 2) % int(sizeof...(I)))...);
    return add_lanes<A, LANES / 2>(sums, std::integer_sequence<int, I...>{});
  }
}

// The sum of n elements of one row.
template <Term TERM, class A, class T>
TILEDMM_INLINE A sum_of_row(const T* x, int64_t stride, int64_t n, A mean) {
  constexpr int kLanes = Simd<A>::kLanes, kRegs = kChains / kLanes;
  const Reg<A> means = broadcast(mean);
  Reg<A> sums[kRegs] = {};
  int64_t i = 0;
  if (stride == 1) {
    for (; i + kChains <= n; i += kChains) {
      for (int r = 0; r < kRegs; ++r) sums[r] += term_of<TERM>(load_terms<A>(x + i + r * kLanes), means);
    }
  }
  for (; i < n; i += kChains) {
    const T* from = x + i * stride;
    T own[kChains];
    if (stride != 1) {
      for (int64_t j = 0; j < min_of(kChains, n - i); ++j) own[j] = from[j * stride];
      from = own;
    }
    for (int r = 0; r < kRegs; ++r) {
      const int64_t count = n - i - r * kLanes;
      if (count >= kLanes) {
        sums[r] += term_of<TERM>(load_terms<A>(from + r * kLanes), means);
      } else if (count > 0) {
        const Reg<A> terms = term_of<TERM>(load_some_terms<A>(from + r * kLanes, count), means);
        sums[r] += TERM == Term::spread ? first_lanes<A>(terms, count) : terms;  // other terms of 0 are 0
      }
    }
  }
  for (int half = kRegs / 2; half > 0; half /= 2) {
    for (int r = 0; r < half; ++r) sums[r] += sums[r + half];
  }
  return add_lanes<A, kLanes>(sums[0], std::make_integer_sequence<int, kLanes>{});
}

// The sums of n elements each of `count` columns, which are neighbours.
template <Term TERM, class A, class T>
void sum_columns(const T* x, int64_t stride, int64_t n, int64_t count, const A* means, A* sums) {
  constexpr int64_t kLanes = Simd<A>::kLanes, kRegs = kSumColumns<A> / kLanes;
  const int64_t whole = count / kLanes, rest = count % kLanes, regs = whole + (rest > 0);
  Reg<A> chains[kChains * kRegs], own_means[kRegs] = {};
  if constexpr (TERM == Term::spread) {
    for (int64_t r = 0; r < whole; ++r) own_means[r] = load(means + r * kLanes);
    if (rest > 0) own_means[whole] = load_some_terms<A>(means + whole * kLanes, rest);
  }
  int64_t used = 1;  // chains: the others have no elements
  while (used < min_of(n, kChains)) used *= 2;
  for (int64_t i = 0; i < used * regs; ++i) chains[i] = Reg<A>{};
  // A chain takes several of its elements at a time.
  for (int64_t first = 0; first < n; first += kSumAtOnce * kChains) {
    for (int64_t c = 0; c < min_of(kChains, n - first); ++c) {
      const T* const from = x + (first + c) * stride;
      Reg<A>* const own = chains + c * regs;
      const auto add = [&](auto count) {
        const auto add_one = [&](int64_t r, const auto& load_at) {
          Reg<A> sum = own[r];
          for (int64_t j = 0; j < count; ++j) sum += term_of<TERM>(load_at(from + j * kChains * stride), own_means[r]);
          own[r] = sum;
        };
        for (int64_t r = 0; r < whole; ++r) add_one(r, [&](const T* at) { return load_terms<A>(at + r * kLanes); });
        if (rest > 0) add_one(whole, [&](const T* at) { return load_some_terms<A>(at + whole * kLanes, rest); });
      };
      const int64_t left = ceil_div(n - first - c, kChains);
      left >= kSumAtOnce ? add(std::integral_constant<int64_t, kSumAtOnce>()) : add(left);
    }
  }
  for (int64_t half = used / 2 * regs; half >= regs; half /= 2) {
    for (int64_t i = 0; i < half; ++i) chains[i] += chains[i + half];
  }
  for (int64_t r = 0; r < whole; ++r) store(sums + r * kLanes, chains[r]);
  for (int64_t i = 0; i < rest; ++i) sums[whole * kLanes + i] = chains[whole][i];
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
  // An item is a chunk of a long row, some whole short rows, or a chunk of some columns: of rows that lie beside each
  // other, all of one outer row.
  const bool are_columns = rows.stride_inner == 1 && rows.stride_k != 1 && rows.inner > 1;
  const int64_t most = min_of(max_of(rows.k, int64_t(1)), kSumChunk), per_line = are_columns ? rows.inner : count;
  const int64_t rows_at_once = num_chunks > 1 ? 1 : min_of(ceil_div(kSumTask, most), kSumColumns<A>);
  const int64_t width = min_of(are_columns ? kSumColumns<A> : rows_at_once, per_line);
  const int64_t blocks_per_line = ceil_div(per_line, width), num_blocks = count / per_line * blocks_per_line;
  const auto add_up_item = [&](int64_t item) {
    const int64_t chunk = are_columns ? item / num_blocks : item % num_chunks;
    const int64_t block = are_columns ? item % num_blocks : item / num_chunks;
    const int64_t n = min_of(kSumChunk, rows.k - chunk * kSumChunk), first = chunk * kSumChunk * rows.stride_k;
    const int64_t begin = block % blocks_per_line * width, o = block / blocks_per_line * per_line + begin;
    const int64_t own = min_of(width, per_line - begin);
    const A* const own_means = means ? means + o : nullptr;
    A sums[kSumColumns<A>];
    if (are_columns) {
      sum_columns<TERM, A>(rows.row(o) + first, rows.stride_k, n, own, own_means, sums);
    } else {
      for (int64_t i = 0; i < own; ++i) {
        const A mean = TERM == Term::spread ? own_means[i] : A();
        sums[i] = sum_of_row<TERM, A>(rows.row(o + i) + first, rows.stride_k, n, mean);
      }
    }
    if (!parts) return keep(o, sums, own);
    for (int64_t i = 0; i < own; ++i) parts[(o + i) * num_chunks + chunk] = sums[i];
  };
  const int64_t num_items = num_blocks * num_chunks, per_task = ceil_div(kSumTask, most * width);
  const int64_t num_tasks = ceil_div(num_items, per_task);
  const int64_t workers = count * rows.k < 2 * kSumTask ? 1 : min_of(int64_t(executor.num_threads), num_tasks);
  for_each_task(executor, workers, num_tasks, [&](int64_t, int64_t task) {
    for (int64_t i = task * per_task; i < min_of(num_items, (task + 1) * per_task); ++i) add_up_item(i);
  });
  if (!parts) return true;
  const Rows<A> rows_of_parts{parts, 1, count, num_chunks, 0, num_chunks, 1};
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
  const Rows<T> rows{static_cast<const T*>(p.x), p.outer, p.inner, p.k, p.stride_outer, p.stride_inner, p.stride_k};
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

// Softmax of columns (core/softmax.h) on a CPU. Those of matrices of one column are rows, each gone through by itself.
// Else a block, which is some columns or a narrow matrix, is gone through three times while a core's cache holds it:
// for the largest elements; for the exponentials beside them, which are kept as terms, whose sums are those of
// reduce.h; and for the result. One instruction set per translation unit, as in simd.h.
#pragma once

#include "core/softmax.h"
#include "kernels/cpu/shared/reduce.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm::cpu {
namespace {

constexpr int64_t kSoftmaxTask = 1 << 13;   // elements: enough to repay another thread
constexpr int64_t kSoftmaxBytes = 1 << 20;  // of a block's terms: a core's second-level cache holds them

// The numbers of fp32 and fp64: how many bits follow the leading one, what is added to an exponent, what exp begins at
// to be no denormal, and how many terms its series and that of log have.
template <class A>
struct Numbers;
template <>
struct Numbers<float> {
  using Bits = uint32_t;
  static constexpr int kMantissa = 23, kBias = 127, kExpTerms = 7, kLogTerms = 6;
  static constexpr float kLeastExponent = -87;
};
template <>
struct Numbers<double> {
  using Bits = uint64_t;
  static constexpr int kMantissa = 52, kBias = 1023, kExpTerms = 13, kLogTerms = 14;
  static constexpr double kLeastExponent = -708;
};

// ln 2, of which the first part has so few bits that its product with an exponent is exact.
template <class A>
constexpr A kLn2High = sizeof(A) == 4 ? 0.693359375 : 0x1.62e42fefap-1;
template <class A>
constexpr A kLn2Low = sizeof(A) == 4 ? -2.12194440054690583e-4 : 0x1.cf79abc9e3b3ap-40;

// The factors of exp's series, 1 / i!. As a table, since g++ would call a function for some of them.
template <class A>
struct ExpSeries {
  A factors[Numbers<A>::kExpTerms + 1];

  constexpr ExpSeries() : factors() {
    double factorial = 1;
    for (int i = 0; i <= Numbers<A>::kExpTerms; ++i, factorial *= i) factors[i] = A(1 / factorial);
  }
};
template <class A>
constexpr ExpSeries<A> kExpSeries{};

// exp(x), x <= 0: 2^n times the series of exp at x - n ln 2. Of what would be a denormal, 0.
template <class A>
TILEDMM_INLINE Reg<A> exp_of(Reg<A> x) {
  using N = Numbers<A>;
  using Bits = Reg<typename N::Bits>;
  constexpr A kUnit = A(1.5) * A(typename N::Bits(1) << N::kMantissa);  // a sum with it has no bits below 1
  const Reg<A> least = broadcast(N::kLeastExponent), inside = x < least ? least : x;  // a NaN stays one
  const Reg<A> shifted = multiply_add(inside, broadcast(A(1.4426950408889634)), broadcast(kUnit));
  const Reg<A> n = shifted - kUnit;
  const Reg<A> rest = multiply_add(n, broadcast(-kLn2Low<A>), multiply_add(n, broadcast(-kLn2High<A>), inside));
  Reg<A> p = broadcast(kExpSeries<A>.factors[N::kExpTerms]);
#pragma GCC unroll 16
  for (int term = N::kExpTerms - 1; term >= 0; --term)
    p = multiply_add(p, rest, broadcast(kExpSeries<A>.factors[term]));
  p *= (Reg<A>)(((Bits)shifted + N::kBias) << N::kMantissa);
  return x < least ? Reg<A>{} : p;
}

// log(x), x >= 1 and finite, or NaN: x is m 2^n, m from 2/3 to 4/3, and log(m) is 2 artanh((m - 1) / (m + 1)).
template <class A>
TILEDMM_INLINE Reg<A> log_of(Reg<A> x) {
  using N = Numbers<A>;
  using Bits = Reg<std::make_signed_t<typename N::Bits>>;
  const Bits bits = (Bits)x, bits_of_least = (Bits)broadcast(A(2.0 / 3));
  const Bits n = (bits - bits_of_least) >> N::kMantissa;
  const Reg<A> m = (Reg<A>)(bits - (n << N::kMantissa)), exponent = __builtin_convertvector(n, Reg<A>);
  const Reg<A> f = (m - 1) / (m + 1), square = f * f;
  Reg<A> p{};
#pragma GCC unroll 16
  for (int term = N::kLogTerms; term > 0; --term) p = multiply_add(p, square, broadcast(A(2.0 / (2 * term + 1))));
  const Reg<A> log_m = multiply_add(f * square, p, f + f);
  return multiply_add(exponent, broadcast(kLn2High<A>), multiply_add(exponent, broadcast(kLn2Low<A>), log_m)) + (x - x);
}

// The larger one; b where one is NaN.
template <class R>
TILEDMM_INLINE R larger(R a, R b) {
  return a > b ? a : b;
}

// Some neighbouring columns of a matrix, as lines of vectors. A line is a row of theirs. Of a narrow matrix, all of
// whose columns are in one block, a line is several rows, which follow each other in memory: as many as fill vectors.
template <class A>
struct Block {
  static constexpr int64_t kLanes = Simd<A>::kLanes, kMostWidth = 4 * kStrip<A>;
  int64_t columns, rows_of_line, stride;  // stride: from line to line

  int64_t width() const { return rows_of_line * columns; }
  // visit(place in the matrix, place among the terms, place in the line, count) of each vector of n rows. A line's last
  // vector begins early where it would not be full; a line of fewer elements than a vector has one of `count` lanes.
  template <class Visit>
  TILEDMM_INLINE void for_each_vector(int64_t n, const Visit& visit) const {
    const int64_t own_stride = stride, own_width = width();  // which no store can change
    int64_t from = 0, to = 0, left = n * columns;
    for (; left > own_width; left -= own_width, from += own_stride, to += own_width) {
      for_each_of_line(from, to, own_width, visit);
    }
    for_each_of_line(from, to, left, visit);
  }
  template <class Visit>
  static TILEDMM_INLINE void for_each_of_line(int64_t from, int64_t to, int64_t size, const Visit& visit) {
    if (size < kLanes) return visit(from, to, int64_t(0), size);
    for (int64_t j = 0; j < size; j += kLanes) {
      const int64_t at = min_of(j, size - kLanes);
      visit(from + at, to + at, at, std::integral_constant<int64_t, kLanes>());
    }
  }
  // The first row of a line becomes each of its rows. Behind a line there is room for a vector.
  void repeat(A* line) const {
    for (int64_t own = columns; own < width(); own *= 2) {
      for (int64_t i = 0; i < own; i += kLanes) store(line + own + i, load(line + i));
    }
  }
  // The first row of a line becomes the largest elements of all its rows.
  void merge(A* line) const {
    for (int64_t half = width() / 2; half >= columns; half /= 2) {
      for (int64_t i = 0; i < half; i += kLanes) store(line + i, larger(load(line + i), load(line + half + i)));
    }
  }
};

template <class A>
constexpr int64_t kRoom = Block<A>::kMostWidth + Simd<A>::kLanes;  // of what a block keeps for each element of a line

// The sums of k elements of each of `columns` columns, which lie in `terms` without gaps; of chunks they go to `parts`.
template <class A>
void sum_terms(const A* terms, int64_t k, int64_t columns, A* parts, A* sums) {
  for (; k > kSumChunk; k = ceil_div(k, kSumChunk), terms = parts) {
    for (int64_t i = 0; i < k; i += kSumChunk) {
      const int64_t n = min_of(kSumChunk, k - i);
      sum_columns<Term::value, A>(terms + i * columns, columns, n, columns, nullptr, sums);
      __builtin_memcpy(parts + i / kSumChunk * columns, sums, size_t(columns) * sizeof(A));
    }
  }
  sum_columns<Term::value, A>(terms, columns, k, columns, nullptr, sums);
}

template <class T, bool IS_LOG>
void softmax_block(const ColumnSoftmaxProblem& p, int64_t first, Block<Acc<T>> block, Acc<T>* terms, Acc<T>* parts) {
  using A = Acc<T>;
  const T* const x = static_cast<const T*>(p.x) + first;
  T* const result = static_cast<T*>(p.result) + first;
  A most[kRoom<A>], sums[kRoom<A>];
  for (int64_t j = 0; j < kRoom<A>; j += Simd<A>::kLanes) store(most + j, broadcast(A(-__builtin_inff())));
  block.for_each_vector(p.k, [&](int64_t i, int64_t, int64_t j, auto count) {
    // The sum is NaN where an element is.
    store_converted(most + j, larger(load_lanes_of<A>(x + i, count), load(most + j)), count);
  });
  block.merge(most);
  block.repeat(most);
  block.for_each_vector(p.k, [&](int64_t i, int64_t place, int64_t j, auto count) {
    store_converted(terms + place, exp_of<A>(load_lanes_of<A>(x + i, count) - load(most + j)), count);
  });
  sum_terms(terms, p.k, block.columns, parts, sums);
  for (int64_t j = 0; j < block.columns; j += Simd<A>::kLanes) {
    const Reg<A> sum = load(sums + j);
    store(sums + j, IS_LOG ? log_of<A>(sum) : 1 / sum);
  }
  block.repeat(sums);
  block.for_each_vector(p.k, [&](int64_t i, int64_t place, int64_t j, auto count) {
    const Reg<A> value = IS_LOG ? load_lanes_of<A>(x + i, count) - load(most + j) - load(sums + j)
                                : load(terms + place) * load(sums + j);
    store_converted(result + i, value, count);
  });
}

template <class T, bool IS_LOG>
void softmax_gradient_block(const ColumnSoftmaxProblem& p, int64_t first, Block<Acc<T>> block, Acc<T>* terms,
                            Acc<T>* parts) {
  using A = Acc<T>;
  const T* const y = static_cast<const T*>(p.x) + first;
  const T* const grad = static_cast<const T*>(p.grad) + first;
  T* const result = static_cast<T*>(p.result) + first;
  A sums[kRoom<A>];
  block.for_each_vector(p.k, [&](int64_t i, int64_t place, int64_t, auto count) {
    Reg<A> term = load_lanes_of<A>(grad + i, count);
    if (!IS_LOG) term *= load_lanes_of<A>(y + i, count);
    store_converted(terms + place, term, count);
  });
  sum_terms(terms, p.k, block.columns, parts, sums);
  block.repeat(sums);
  block.for_each_vector(p.k, [&](int64_t i, int64_t, int64_t j, auto count) {
    const Reg<A> own_grad = load_lanes_of<A>(grad + i, count), own = load_lanes_of<A>(y + i, count);
    const Reg<A> sum = load(sums + j);
    store_converted(result + i, IS_LOG ? own_grad - exp_of<A>(own) * sum : own * (own_grad - sum), count);
  });
}

// ---- rows: matrices of one column

// visit(i, count) of each vector of n elements, of which the last one may be part of one.
template <class A, class Visit>
TILEDMM_INLINE void for_each_vector_of_row(int64_t n, const Visit& visit) {
  int64_t i = 0;
  for (; i + Simd<A>::kLanes <= n; i += Simd<A>::kLanes) visit(i, kAllLanes<A>);
  if (i < n) visit(i, n - i);
}

// The largest of k elements, NaNs left out.
template <class A, class T>
TILEDMM_INLINE A largest_of_row(const T* x, int64_t k) {
  constexpr int64_t kLanes = Simd<A>::kLanes;
  constexpr int kAtOnce = 4;  // so that a comparison need not wait for the one before
  const Reg<A> least = broadcast(A(-__builtin_inff()));
  Reg<A> most[kAtOnce] = {least, least, least, least};
  int64_t i = 0;
  for (; i + kAtOnce * kLanes <= k; i += kAtOnce * kLanes) {
    for (int r = 0; r < kAtOnce; ++r) most[r] = larger(load_terms<A>(x + i + r * kLanes), most[r]);
  }
  for_each_vector_of_row<A>(k - i, [&](int64_t j, auto count) {
    most[0] = larger(first_lanes<A>(load_lanes_of<A>(x + i + j, count), count, least[0]), most[0]);
  });
  return fold_lanes<A>(larger(larger(most[0], most[1]), larger(most[2], most[3])),
                       [](auto a, auto b) { return larger(a, b); });
}

// The sum of k terms; of chunks they go to `parts`.
template <class A, class Function>
TILEDMM_INLINE A sum_in_chunks(int64_t k, A* parts, const Function& term) {
  if (k <= kSumChunk) return sum_of_terms<A>(k, term);
  for (int64_t first = 0; first < k; first += kSumChunk) {
    parts[first / kSumChunk] =
        sum_of_terms<A>(min_of(kSumChunk, k - first), [&](int64_t i, auto count) { return term(first + i, count); });
  }
  A sum;
  sum_terms(parts, ceil_div(k, kSumChunk), 1, parts, &sum);
  return sum;
}

// Rows that follow each other, at most as many as a vector has lanes, so that reciprocals and logarithms of their sums
// are computed at once. A logarithm needs no terms.
template <class T, bool IS_LOG>
void softmax_rows(const T* x, int64_t rows, int64_t k, T* result, Acc<T>* terms, Acc<T>* parts) {
  using A = Acc<T>;
  constexpr int64_t kLanes = Simd<A>::kLanes;
  A most[kLanes], shares[kLanes] = {};
  for (int64_t row = 0; row < rows; ++row) {
    const T* const own_x = x + row * k;
    A* const own_terms = IS_LOG ? nullptr : terms + row * k;
    most[row] = largest_of_row<A>(own_x, k);
    const Reg<A> own_most = broadcast(most[row]);
    shares[row] = sum_in_chunks<A>(k, parts, [&](int64_t i, auto count) {
      const Reg<A> all = exp_of<A>(load_lanes_of<A>(own_x + i, count) - own_most);
      const Reg<A> own = count == kLanes ? all : first_lanes<A>(all, count);
      if (!IS_LOG) store_converted(own_terms + i, own, count);
      return own;
    });
  }
  store(shares, IS_LOG ? log_of<A>(load(shares)) : 1 / load(shares));
  for (int64_t row = 0; row < rows; ++row) {
    const Reg<A> own_most = broadcast(most[row]), share = broadcast(shares[row]);
    const T* const own_x = x + row * k;
    const A* const own_terms = IS_LOG ? nullptr : terms + row * k;
    for_each_vector_of_row<A>(k, [&](int64_t i, auto count) {
      const Reg<A> value = IS_LOG ? load_lanes_of<A>(own_x + i, count) - own_most - share
                                  : load_lanes_of<A>(own_terms + i, count) * share;
      store_converted(result + row * k + i, value, count);
    });
  }
}

template <class T, bool IS_LOG>
void softmax_gradient_rows(const T* y, const T* grad, int64_t rows, int64_t k, T* result, Acc<T>* parts) {
  using A = Acc<T>;
  for (; rows > 0; --rows, y += k, grad += k, result += k) {
    const Reg<A> sum = broadcast(sum_in_chunks<A>(k, parts, [&](int64_t i, auto count) {
      const Reg<A> own_grad = load_lanes_of<A>(grad + i, count);
      return IS_LOG ? own_grad : own_grad * load_lanes_of<A>(y + i, count);
    }));
    for_each_vector_of_row<A>(k, [&](int64_t i, auto count) {
      const Reg<A> own_grad = load_lanes_of<A>(grad + i, count), own = load_lanes_of<A>(y + i, count);
      store_converted(result + i, IS_LOG ? own_grad - exp_of<A>(own) * sum : own * (own_grad - sum), count);
    });
  }
}

// False where there is no memory.
template <class T, bool IS_LOG>
bool softmax_of_rows(const ColumnSoftmaxProblem& p, const Executor& executor) {
  using A = Acc<T>;
  constexpr bool kIsAsWide = std::is_same_v<A, T>;  // terms can stand where the result will
  const int64_t k = p.k, per_task = ceil_div(kSoftmaxTask, k), num_tasks = ceil_div(p.outer, per_task);
  const int64_t workers = min_of(int64_t(executor.num_threads), num_tasks);
  const int64_t at_once = k <= kSumChunk ? Simd<A>::kLanes : 1;
  const int64_t num_terms = kIsAsWide || IS_LOG || p.grad ? 0 : at_once * k;
  const int64_t num_parts = k > kSumChunk ? ceil_div(k, kSumChunk) : 0, size = num_terms + num_parts;
  A* memory = nullptr;
  if (size > 0) {
    memory = static_cast<A*>(executor.allocate(executor.self, size_t(workers * size) * sizeof(A)));
    if (!memory) return false;
  }
  const auto *const all_x = static_cast<const T*>(p.x), *const all_grad = static_cast<const T*>(p.grad);
  T* const all_results = static_cast<T*>(p.result);
  for_each_task(executor, workers, num_tasks, [&](int64_t worker, int64_t task) {
    A *const own = memory + worker * size, *const parts = own + num_terms;
    const int64_t end = min_of(p.outer, (task + 1) * per_task);
    for (int64_t row = task * per_task; row < end; row += at_once) {
      const int64_t first = row * k, rows = min_of(at_once, end - row);
      T* const result = all_results + first;
      if (all_grad) {
        softmax_gradient_rows<T, IS_LOG>(all_x + first, all_grad + first, rows, k, result, parts);
      } else if constexpr (kIsAsWide) {
        softmax_rows<T, IS_LOG>(all_x + first, rows, k, result, result, parts);
      } else {
        softmax_rows<T, IS_LOG>(all_x + first, rows, k, result, own, parts);
      }
    }
  });
  if (memory) executor.release(executor.self, memory);
  return true;
}

// ---- both; false where there is no memory

template <class T, bool IS_LOG>
bool softmax_as(const ColumnSoftmaxProblem& p, const Executor& executor) {
  using A = Acc<T>;
  constexpr int64_t kLanes = Simd<A>::kLanes;
  if (p.inner == 1) return softmax_of_rows<T, IS_LOG>(p, executor);
  // A block's terms fit into a core's cache, and threads have blocks.
  const int64_t fitting = min_of(kSoftmaxBytes / (p.k * int64_t(sizeof(A))), max_of(kSoftmaxTask / p.k, kStrip<A>));
  const int64_t even = ceil_div(p.outer * p.inner, int64_t(executor.num_threads));
  const int64_t most = round_up(max_of(1, min_of(fitting, even)), kLanes);
  Block<A> block{min_of(p.inner, min_of(most, Block<A>::kMostWidth)), 1, p.inner};
  if (p.inner == block.columns && p.inner < kStrip<A>) {
    while (block.width() < kStrip<A> && block.rows_of_line < p.k) block.rows_of_line *= 2;
    block.stride = block.width();
  }
  const int64_t blocks_of_matrix = ceil_div(p.inner, block.columns), num_blocks = p.outer * blocks_of_matrix;
  const int64_t per_task = ceil_div(kSoftmaxTask, p.k * block.columns), num_tasks = ceil_div(num_blocks, per_task);
  const int64_t workers = min_of(int64_t(executor.num_threads), num_tasks);
  const int64_t num_terms = p.k * block.columns + kLanes, num_parts = ceil_div(p.k, kSumChunk) * block.columns;
  auto* const memory =
      static_cast<A*>(executor.allocate(executor.self, size_t(workers * (num_terms + num_parts)) * sizeof(A)));
  if (!memory) return false;
  for_each_task(executor, workers, num_tasks, [&](int64_t worker, int64_t task) {
    for (int64_t i = task * per_task; i < min_of(num_blocks, (task + 1) * per_task); ++i) {
      const int64_t column = i % blocks_of_matrix * block.columns;
      Block<A> own = block;
      own.columns = min_of(block.columns, p.inner - column);
      const int64_t first = i / blocks_of_matrix * p.k * p.inner + column;
      A* const terms = memory + worker * (num_terms + num_parts);
      (p.grad ? softmax_gradient_block<T, IS_LOG> : softmax_block<T, IS_LOG>)(p, first, own, terms, terms + num_terms);
    }
  });
  executor.release(executor.self, memory);
  return true;
}

[[maybe_unused]] Status column_softmax(const ColumnSoftmaxProblem& p, const Executor& executor) {
  const bool has_memory = visit_dtype(p.dtype, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    return p.is_log ? softmax_as<T, true>(p, executor) : softmax_as<T, false>(p, executor);
  });
  return has_memory ? Status::ok : Status::out_of_memory;
}

}  // namespace
}  // namespace tiledmm::cpu
TILEDMM_TARGET_END

// Runs the GPU rungs on the host executor, for test_host_execution.py, which compiles everything with the address and
// undefined behaviour sanitizers. Usage: sanitize CASES [ALGORITHM [faults|FIRST]]: so many cases of one algorithm, or
// of each (all, the default). The first wrong case ends the program with code 1 and its number. With FIRST it begins
// with the case of this number; those before it come last.
//
// Operands lie in heap memory of exactly their size; C starts as NaN. Every result is compared with a float64 reference
// within gamma(k + 2) (|A| |B| + |bias|), and bit for bit with that of other orders of the threads.
//
// With `faults` each allocation and each launch of a case fails once: the status must say so, with a reason, all memory
// must be given back, and the next run must have the bits of the first. Before that come 50 times as many cases in
// which launches succeed without running a kernel: large ones, whose operands are no memory.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/executor.h"
#include "core/math.h"
#include "dispatch/chips.h"
#include "dispatch/fold_batch.h"
#include "dispatch/select.h"
#include "kernels/cuda/mma_async/plan.h"
#include "kernels/rungs.h"
#include "platform/element.h"
#include "platform/host_gpu.h"

using namespace tiledmm;

extern "C" void __sanitizer_set_death_callback(void (*callback)());
extern "C" int32_t tiledmm_host_gemm(const GemmProblem* problem, const char* algorithm, uint64_t seed,
                                     host_gpu::Counts* counts, host_gpu::Faults* faults, char* reason, size_t capacity);

namespace {

struct Algorithm {
  std::string name;
  const Rung* rung;
  bool is_in_short_chunks = false, has_8_bits = false;
};

// The kernels that are linked, with operands of 8 bits besides, and one of them with chunks so short that small
// products have several.
std::vector<Algorithm> find_algorithms() {
  std::vector<Algorithm> algorithms;
  for (const Rung* rung : rungs()) {
    if (!rung->launch) continue;
    algorithms.push_back({rung->name, rung});
    if (rung->takes.fp8) algorithms.push_back({rung->name + std::string(" of 8 bits"), rung, false, true});
  }
  const Rung* chunked = &gpu::mma_async_rung;
  if (chunked->launch) algorithms.push_back({chunked->name + std::string(" in short chunks"), chunked, true});
  return algorithms;
}

const std::vector<Algorithm> algorithms = find_algorithms();

std::mt19937 generator(20240301);  // each case without faults begins with a seed of its own
int64_t case_idx = 0;

void say_case() { std::fprintf(stderr, "case %ld\n", long(case_idx)); }

int64_t random_int(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(generator); }

// Whether a kernel refuses operands that lie without gaps.
bool is_refused(const Rung& rung, DType dtype, int64_t m, int64_t n, int64_t k, Grouping grouping = Grouping::none) {
  FoldedProblem problem{};
  GemmProblem& p = problem.gemm;
  p.m = m, p.n = n, p.k = k, p.set_dtypes(dtype), p.grouping = grouping;
  if (size_of(dtype) == 1) p.dtype_bias = p.dtype_c = DType::f32, p.scaling = Scaling::rows;
  p.stride_am = k, p.stride_bk = p.stride_cm = n, p.stride_ak = p.stride_bn = p.stride_cn = 1;
  problem.batch_size = 1, problem.chunk_k = chunk_k(p);
  return rung.refusal(problem, *find_chip("host:host")) != nullptr;
}

DType random_dtype(const Algorithm& algorithm) {
  if (algorithm.is_in_short_chunks) return DType::f64;
  if (algorithm.has_8_bits) return random_int(0, 1) ? DType::e4m3 : DType::e5m2;
  for (;;) {
    const auto dtype = DType(random_int(0, kNumDTypes - 1));
    if (!is_refused(*algorithm.rung, dtype, 8, 8, 64)) return dtype;
  }
}

template <class T>
double value_of(T element) {
  return double(to_acc(element));
}

// A matrix with a leading dimension larger than its row, in memory that ends with its last element; of 8 bits, with a
// word of four, which kernels read as a whole.
template <class T>
struct Matrix {
  int64_t rows, cols, stride_row, stride_col;
  size_t num_bytes;
  std::unique_ptr<T[]> memory;

  Matrix(int64_t rows, int64_t cols, bool is_transposed, int64_t margin) : rows(rows), cols(cols) {
    const int64_t wide = is_transposed ? rows : cols, tall = is_transposed ? cols : rows;
    stride_row = is_transposed ? 1 : wide + margin;
    stride_col = is_transposed ? wide + margin : 1;
    const int64_t size = tall == 0 || wide == 0 ? 0 : (tall - 1) * (wide + margin) + wide;
    memory.reset(new T[size_t(sizeof(T) == 1 ? round_up(size, 4) : size)]);
    num_bytes = size_t(size) * sizeof(T);
    clear();
  }
  void clear() { std::memset(static_cast<void*>(memory.get()), 0xff, num_bytes); }
  T& at(int64_t row, int64_t col) { return memory[size_t(row * stride_row + col * stride_col)]; }
  void randomize() {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < cols; ++col) at(row, col) = from_acc<T>(Acc<T>(random_int(-1000, 1000)) / 1000);
    }
  }
};

#if TILEDMM_WARP_SIZE == 32
// Any tile of mma_async in fp64 that can serve, and either way to sum the chunks.
MmaAsyncChoice random_choice(int64_t num_chunks) {
  const int shape = int(random_int(0, kNumMmaAsyncShapes64 - 1));
  return {shape, random_int(0, 1) ? num_chunks : 1, random_int(1, 3)};
}

// mma_async with chunks so short that small products have several.
int32_t run_in_chunks(const GemmProblem& problem, int64_t chunk_k, const MmaAsyncChoice& choice, uint64_t seed,
                      host_gpu::Faults& faults, char* reason, size_t capacity) {
  host_gpu::Session session;
  session.seed = seed;
  session.faults = faults;
  FoldedProblem whole{};
  whole.gemm = problem;
  whole.gemm.batch_dims = nullptr;
  whole.batch_dims[0] = problem.batch_dims[0];
  whole.batch_size = problem.grouping == Grouping::rows ? 1 : problem.batch_dims[0].size;
  whole.chunk_k = chunk_k;
  Plan plan;
  PlanSearch search(plan);
  gpu::mma_async_rung.for_each_plan(whole, *find_chip("host:host"), search);
  if (problem.k > chunk_k && !is_grouped(problem)) plan.as<MmaAsyncPlan>().choice = choice;
  const Status status = gpu::mma_async_rung.launch(whole, plan, host_gpu::executor_of(session));
  faults = session.faults;
  std::snprintf(reason, capacity, "%s", status == Status::ok ? session.error.c_str() : "it has only a status");
  return session.error.empty() ? int32_t(status) : -1;
}
#else
MmaAsyncChoice random_choice(int64_t) { return {}; }
int32_t run_in_chunks(const GemmProblem&, int64_t, const MmaAsyncChoice&, uint64_t, host_gpu::Faults&, char*, size_t) {
  return -1;
}
#endif

// The name of a kernel's last plan for a problem: that of direct for few columns, if it has one.
std::string last_plan(const Rung& rung, const GemmProblem& problem) {
  BatchDim dims[kMaxBatchDims];
  const size_t count = list_plans(fold_batch(problem, dims), rung, *find_chip("host:host")).size();
  return rung.name + (":" + std::to_string(count - 1));
}

bool has_faults = false;
int64_t num_failed_allocations = 0, num_failed_launches = 0;

// Of rows or columns, now and then of more than one of the largest tiles, seldom of both.
int64_t random_size() { return random_int(1, has_faults ? 30 : random_int(0, 5) == 0 ? 270 : 70); }

// run(faults, reason) starts anew and returns the status; is_right(): whether its result is.
template <class Run, class IsRight>
bool survives_faults(const char* algorithm, const Run& run, const IsRight& is_right) {
  char reason[256];
  host_gpu::Faults counted;
  if (run(counted, reason) != 0 || counted.num_live != 0) return false;
  for (int64_t fault = 0; fault < counted.num_allocations + counted.num_launches; ++fault) {
    const bool is_allocation = fault < counted.num_allocations;
    host_gpu::Faults faults;
    (is_allocation ? faults.failing_allocation : faults.failing_launch) =
        is_allocation ? fault : fault - counted.num_allocations;
    const Status expected = is_allocation ? Status::out_of_memory : Status::launch_failed;
    ++(is_allocation ? num_failed_allocations : num_failed_launches);
    reason[0] = 0;
    const int32_t status = run(faults, reason);
    const bool has_reason = std::strstr(reason, is_allocation ? "no memory" : "the launch was to fail") ||
                            std::strstr(reason, "it has only a status");
    if (status != int32_t(expected) || !has_reason || faults.num_live != 0) {
      std::printf("%s, fault %ld of %ld and %ld: status %d, %ld allocations not given back, '%s'\n", algorithm,
                  long(fault), long(counted.num_allocations), long(counted.num_launches), int(status),
                  long(faults.num_live), reason);
      return false;
    }
    host_gpu::Faults none;
    if (run(none, reason) != 0 || none.num_live != 0 || !is_right()) {
      std::printf("%s, behind fault %ld: %ld allocations not given back, or another result\n", algorithm, long(fault),
                  long(none.num_live));
      return false;
    }
  }
  return true;
}

template <class T>
bool run_case(DType dtype, const Algorithm& asked, bool is_empty) {
  const Rung& rung = *asked.rung;
  std::string name = asked.name;
  const bool sums_chunks = rung.order != Order::chain && rung.order != Order::mma_chain;
  const bool is_in_chunks = asked.is_in_short_chunks;
  int64_t m, n, k, batch = 1;
  do {
    m = random_size(), n = random_size(), k = random_int(0, 90);
    batch = random_int(0, sums_chunks ? 1 : 3) == 0 ? 2 : 1;
    if (!sums_chunks) continue;
    const int64_t kind = random_int(0, has_faults ? 3 : 7);
    if (kind < 2) m = random_int(1, 9), n = random_int(1, 20);
    if (kind == 0) k = random_int(4096, 4200);                                        // in chunks
    if (kind == 1) k = random_int(2400, 2600);                                        // more tiles than stages
    if (kind == 2) m = min_of(m, 100), n = min_of(n, 100), k = random_int(512, 600);  // chunks of tiles, in fp32
  } while (is_refused(rung, dtype, m, n, k));
  if (is_in_chunks) {
    m = random_int(65, 80), n = random_int(65, 80), k = random_int(65, 130);
    batch = 2;
  }
  // Few columns along k, aligned to 16 bytes; rows along k or, in fp32 by multiply-adds, along m.
  const bool is_few = name.rfind("direct", 0) == 0 && random_int(0, 1);
  if (is_few) m = random_int(1, 60), n = random_int(1, 8), k = 8 * random_int(1, 25) - 7 * random_int(0, 1);
  const int64_t chunk_k = is_in_chunks ? 32 * random_int(1, 2) : max_of(k, 1);
  if (is_empty && !is_refused(rung, dtype, m, n, 0)) k = 0;
  // Groups of rows, or of k, whose ends lie anywhere. In any order, and outside, they make no sense, and must do no
  // harm. Groups of k have chunks of their own k.
  const bool may_be_grouped = !is_refused(rung, dtype, m, n, k, Grouping::rows);
  const Grouping grouping =
      may_be_grouped && random_int(0, 1) ? Grouping(random_int(1, is_in_chunks ? 1 : 2)) : Grouping::none;
  const bool is_grouped = grouping != Grouping::none, is_rows = grouping == Grouping::rows,
             is_k = grouping == Grouping::k;
  const bool is_senseless = is_grouped && !has_faults && random_int(0, 4) == 0;
  const int64_t outside = is_senseless ? 100 : 0;
  if (is_grouped) batch = random_int(1, 4);
  const std::unique_ptr<int32_t[]> ends(new int32_t[size_t(batch)]);
  for (int64_t group = 0; is_grouped && group < batch; ++group) {
    ends[size_t(group)] = int32_t(random_int(-outside, (is_k ? k : batch * m) + outside));
  }
  if (!is_senseless) std::sort(ends.get(), ends.get() + (is_grouped ? batch : 0));
  const auto begin_of = [&](int64_t group) { return group == 0 ? 0 : int64_t(ends[size_t(group - 1)]); };
  const bool has_bias = random_int(0, 1),
             is_a_transposed = is_few ? sizeof(T) == 4 && random_int(0, 2) == 0 : random_int(0, 1),
             is_b_transposed = is_few || random_int(0, 1);
  const int64_t margins[] = {0, 1, 8};
  // Behind a line of so many elements.
  const auto margin_of = [&](int64_t line) { return is_few ? round_up(line, 8) - line : margins[random_int(0, 2)]; };
  Matrix<T> a(is_k ? m : batch * m, k, is_a_transposed, margin_of(is_a_transposed ? batch * m : k));
  Matrix<T> b(k, is_k ? n : batch * n, is_b_transposed, margin_of(k));
  // What is added: one row for all, or for each group, or a matrix of each item's own, and all is scaled.
  const bool is_matrix = has_bias && !is_in_chunks && !is_grouped && random_int(0, 1);
  const int64_t bias_step = is_matrix ? m : is_grouped ? 1 : 0;  // rows from item to item
  Matrix<T> bias(max_of(1, batch * bias_step), n, is_matrix && random_int(0, 1),
                 is_matrix ? margins[random_int(0, 2)] : 0);
  a.randomize(), b.randomize(), bias.randomize();
  const bool is_c_transposed = random_int(0, 3) == 0;
  const int64_t margin_c = margins[random_int(0, 2)];
  Matrix<T> c(batch * m, n, is_c_transposed, margin_c), again(batch * m, n, is_c_transposed, margin_c);
  const BatchDim batch_dim{batch, is_grouped ? 0 : m * a.stride_row, is_k ? 0 : n * b.stride_col,
                           is_rows ? 0 : m * c.stride_row, bias_step * bias.stride_row};
  GemmProblem problem{};
  problem.m = is_rows ? batch * m : m, problem.n = n, problem.k = k;
  problem.grouping = grouping, problem.group_ends = ends.get();
  problem.a = a.memory.get(), problem.stride_am = a.stride_row, problem.stride_ak = a.stride_col;
  problem.b = b.memory.get(), problem.stride_bk = b.stride_row, problem.stride_bn = b.stride_col;
  problem.stride_cm = c.stride_row, problem.stride_cn = c.stride_col;
  if (has_bias) problem.bias = bias.memory.get(), problem.stride_bias_n = bias.stride_col;
  if (is_matrix) {
    problem.stride_bias_m = bias.stride_row, problem.beta = -0.5, problem.alpha = rung.takes.alpha ? -1.75 : 1;
  }
  problem.batch_dims = &batch_dim, problem.num_batch_dims = 1;
  problem.set_dtypes(dtype);
  problem.activation = Activation(random_int(0, 1));  // none, relu
  if (is_few) name = last_plan(rung, problem);
  if (is_grouped && random_int(0, 1)) name += ":0";  // not only the fastest plan
  const char* algorithm = name.c_str();
  MmaAsyncChoice choice{};  // drawn anew for the second run: no bit depends on it
  const auto run = [&](Matrix<T>& to, uint64_t seed, host_gpu::Faults& faults, char (&reason)[256]) {
    to.clear();
    problem.c = to.memory.get();
    return is_in_chunks ? run_in_chunks(problem, chunk_k, choice, seed, faults, reason, sizeof reason)
                        : tiledmm_host_gemm(&problem, algorithm, seed, nullptr, &faults, reason, sizeof reason);
  };
  for (Matrix<T>* to : {&c, &again}) {
    char reason[256] = "";
    host_gpu::Faults faults;
    const uint64_t seed = to == &c ? 0 : uint64_t(random_int(1, 1000000));
    if (is_in_chunks) choice = random_choice(ceil_div(k, chunk_k));
    if (run(*to, seed, faults, reason) != 0 || faults.num_live != 0) {
      std::printf("%s m %ld n %ld k %ld, %ld allocations not given back: %s\n", algorithm, long(m), long(n), long(k),
                  long(faults.num_live), reason);
      return false;
    }
  }
  if (is_senseless) return true;
  if (has_faults &&
      !survives_faults(
          algorithm, [&](host_gpu::Faults& faults, char (&reason)[256]) { return run(again, 0, faults, reason); },
          [&] { return std::memcmp(c.memory.get(), again.memory.get(), c.num_bytes) == 0; })) {
    return false;
  }
  const double unit = sizeof(T) == 8 ? std::ldexp(1, -52) : std::ldexp(1, -24);
  const double unit_out = sizeof(T) == 2 ? (dtype == DType::f16 ? std::ldexp(1, -11) : std::ldexp(1, -8)) : unit;
  for (int64_t i = 0; i < batch * m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      int64_t group = i / m;
      if (is_rows) {
        for (group = 0; group < batch && i >= ends[size_t(group)];) ++group;
      }
      const bool is_behind = group == batch;  // all groups: nothing is summed, nothing is added
      const int64_t begin_k = is_k ? begin_of(group) : 0, end_k = is_behind ? 0 : is_k ? ends[size_t(group)] : k;
      const int64_t bias_row = is_matrix ? i : is_grouped ? group : 0;
      const double added = has_bias && !is_behind ? problem.beta * value_of(bias.at(bias_row, j)) : 0;
      double sum = 0, size = std::fabs(added);
      for (int64_t first = begin_k; first < end_k; first += chunk_k) {
        double of_chunk = 0;
        for (int64_t p = first; p < min_of(end_k, first + chunk_k); ++p) {
          const double of_a = problem.alpha * value_of(a.at(is_k ? i % m : i, p)),
                       of_b = value_of(b.at(p, (is_k ? 0 : group * n) + j));
          of_chunk = std::fma(of_a, of_b, of_chunk);
          size += std::fabs(of_a * of_b);
        }
        sum = first == begin_k ? of_chunk : sum + of_chunk;
      }
      sum += added;
      if (problem.activation == Activation::relu) sum = std::max(sum, 0.0);
      const double difference = std::fabs(value_of(c.at(i, j)) - sum);
      // Of chunks, the order is tested, too.
      const double bound =
          is_in_chunks ? 0 : double(k + 4) * unit * size + unit_out * std::fabs(sum) + std::ldexp(1, -24);
      if (!(difference <= bound) || std::memcmp(&c.at(i, j), &again.at(i, j), sizeof(T)) != 0) {
        std::printf("%s dtype %d m %ld n %ld k %ld layout %d%d: C[%ld, %ld] = %g, in another order %g, expected %g\n",
                    algorithm, int(dtype), long(m), long(n), long(k), is_a_transposed, is_b_transposed, long(i),
                    long(j), value_of(c.at(i, j)), value_of(again.at(i, j)), sum);
        return false;
      }
    }
  }
  return true;
}

double value_of_8_bits(DType dtype, E4m3 element) {
  return double(dtype == DType::e4m3 ? e4m3_to_float(element.bits) : e5m2_to_float(element.bits));
}

// Factors in memory of exactly their size: of one row of A or column of B, or of 128, beside each block of k or all.
struct FactorsOf {
  int64_t rows, blocks;
  bool is_along_k = random_int(0, 1);
  std::unique_ptr<float[]> memory;

  FactorsOf(int64_t rows, int64_t blocks, int64_t groups = 1)
      : rows(rows), blocks(blocks), memory(new float[size_t(groups * rows * blocks)]) {
    for (int64_t i = 0; i < groups * rows * blocks; ++i) memory[size_t(i)] = float(random_int(1, 1000)) / 500;
  }
  Scales as_scales(int32_t rows_of_block) const {
    const int64_t step_row = is_along_k ? blocks : 1, step_k = is_along_k ? 1 : rows;
    return {memory.get(), rows > 1 ? step_row : 0, blocks > 1 ? step_k : 0, rows_of_block, int32_t(rows * blocks)};
  }
};

// Products of 8 bits with factors, also of groups of rows; C of elements T.
template <class T>
bool run_case_of_8_bits(const Algorithm& asked, bool is_empty) {
  const std::string name = asked.rung->name;
  const int64_t m = random_size(), n = random_size(), k = is_empty ? 0 : random_int(1, 400);
  const bool is_grouped = random_int(0, 2) == 0, has_bias = random_int(0, 1);
  const int64_t groups = is_grouped ? random_int(1, 4) : 1;
  const std::unique_ptr<int32_t[]> ends(new int32_t[size_t(groups)]);
  for (int64_t group = 0; group < groups; ++group) ends[size_t(group)] = int32_t(random_int(0, m));
  std::sort(ends.get(), ends.get() + groups);
  const int64_t margins[] = {0, 1, 16};
  const auto margin = [&] { return margins[random_int(0, 2)]; };
  const auto margin_b = margin();
  Matrix<E4m3> a(m, k, random_int(0, 1), margin()), b(k, groups * n, random_int(0, 1), margin_b);
  for (const Matrix<E4m3>* own : {&a, &b}) {
    for (size_t i = 0; i < own->num_bytes; ++i)
      own->memory[i].bits = uint8_t(random_int(0, 0x3f) + 0x80 * random_int(0, 1));
  }
  const bool has_blocks = random_int(0, 1);
  const int64_t k_blocks = has_blocks ? ceil_div(k, kScaledK) : 1;
  const auto rows_a = int32_t(has_blocks && !is_grouped && random_int(0, 1) ? kScaledK : 1);
  const auto rows_b = int32_t(has_blocks && random_int(0, 1) ? kScaledK : 1);
  const FactorsOf factors_a(ceil_div(m, rows_a), k_blocks), factors_b(ceil_div(n, rows_b), k_blocks, groups);
  Matrix<T> bias(groups, n, false, margin()), c(m, n, random_int(0, 3) == 0, margin());
  Matrix<T> again(m, n, c.stride_row == 1, (c.stride_row == 1 ? c.stride_col - m : c.stride_row - n));
  bias.randomize();
  GemmProblem problem{};
  problem.m = m, problem.n = n, problem.k = k;
  problem.dtype_a = random_dtype(asked), problem.dtype_b = random_dtype(asked);
  problem.dtype_c = problem.dtype_bias = kDTypeOf<T>;
  problem.a = a.memory.get(), problem.stride_am = a.stride_row, problem.stride_ak = a.stride_col;
  problem.b = b.memory.get(), problem.stride_bk = b.stride_row, problem.stride_bn = b.stride_col;
  problem.stride_cm = c.stride_row, problem.stride_cn = c.stride_col;
  if (has_bias) problem.bias = bias.memory.get(), problem.stride_bias_n = 1;
  problem.scaling = has_blocks ? Scaling::blocks : Scaling::rows;
  problem.scale_a = factors_a.as_scales(rows_a), problem.scale_b = factors_b.as_scales(rows_b);
  const BatchDim dim{groups, 0, n * b.stride_col, 0, bias.stride_row};
  if (is_grouped) {
    problem.grouping = Grouping::rows, problem.group_ends = ends.get();
    problem.batch_dims = &dim, problem.num_batch_dims = 1;
  }
  problem.activation = Activation(random_int(0, 1));  // none, relu
  const auto run = [&](Matrix<T>& to, uint64_t seed, const char* algorithm, host_gpu::Faults& faults,
                       char (&reason)[256]) {
    to.clear();
    problem.c = to.memory.get();
    return tiledmm_host_gemm(&problem, algorithm, seed, nullptr, &faults, reason, sizeof reason);
  };
  for (Matrix<T>* to : {&c, &again}) {  // the second one by another order of the threads, and by the first plan
    char reason[256] = "";
    host_gpu::Faults faults;
    const bool is_first = to == &c;
    const std::string algorithm = is_first ? name : name + ":0";
    if (run(*to, is_first ? 0 : 7, algorithm.c_str(), faults, reason) != 0 || faults.num_live != 0) {
      std::printf("%s m %ld n %ld k %ld: %s\n", asked.name.c_str(), long(m), long(n), long(k), reason);
      return false;
    }
  }
  const auto is_same = [&] { return std::memcmp(c.memory.get(), again.memory.get(), c.num_bytes) == 0; };
  if (has_faults) {
    const auto fail = [&](host_gpu::Faults& faults, char (&reason)[256]) {
      return run(again, 0, name.c_str(), faults, reason);
    };
    if (!survives_faults(name.c_str(), fail, is_same)) return false;
  }
  const double unit_out = sizeof(T) == 4 ? 0x1p-24 : kDTypeOf<T> == DType::f16 ? 0x1p-11 : 0x1p-8;
  for (int64_t i = 0; i < m; ++i) {
    int64_t group = 0;
    while (is_grouped && group < groups && i >= ends[size_t(group)]) ++group;
    const bool is_behind = group == groups;  // all groups
    for (int64_t j = 0; j < n; ++j) {
      const double added = has_bias && !is_behind ? value_of(bias.at(group, j)) : 0;
      double sum = added, size = std::fabs(added);
      for (int64_t p = 0; p < k && !is_behind; ++p) {
        const int64_t block = has_blocks ? p / kScaledK : 0;
        const double factor =
            double(problem.scale_a.data[problem.scale_a.offset(i, block)]) *
            double(problem.scale_b.data[problem.scale_b.offset(j, block) + group * factors_b.rows * factors_b.blocks]);
        const double product = factor * value_of_8_bits(problem.dtype_a, a.at(i, p)) *
                               value_of_8_bits(problem.dtype_b, b.at(p, group * n + j));
        sum += product, size += std::fabs(product);
      }
      if (problem.activation == Activation::relu) sum = std::max(sum, 0.0);
      const double difference = std::fabs(value_of(c.at(i, j)) - sum);
      const double bound = double(k + 8) * 0x1p-24 * size + unit_out * std::fabs(sum) + 0x1p-24;
      if (!(difference <= bound) || !is_same()) {
        std::printf("%s m %ld n %ld k %ld: C[%ld, %ld] = %g, in another order %g, expected %g\n", asked.name.c_str(),
                    long(m), long(n), long(k), long(i), long(j), value_of(c.at(i, j)), value_of(again.at(i, j)), sum);
        return false;
      }
    }
  }
  return true;
}

// A case in which no kernel runs.
bool run_dry_case(DType dtype, const Algorithm& asked) {
  const char* algorithm = asked.rung->name;
  const auto size = [](int64_t most) { return random_int(0, 2) == 0 ? random_int(1, 64) : random_int(1, most); };
  GemmProblem problem{};
  problem.set_dtypes(dtype);
  do {
    problem.m = size(3000), problem.n = size(3000), problem.k = random_int(0, 3) == 0 ? size(40000) : size(3000);
  } while (is_refused(*asked.rung, dtype, problem.m, problem.n, problem.k));
  const auto place = [](int64_t& stride_row, int64_t& stride_col, int64_t rows, int64_t cols, bool is_stepped) {
    const int64_t step = is_stepped ? 2 : 1, margin = 8 * random_int(0, 1) + random_int(0, 1);
    const bool is_transposed = random_int(0, 1);
    stride_row = is_transposed ? step : cols * step + margin, stride_col = is_transposed ? rows * step + margin : step;
    return reinterpret_cast<void*>(uintptr_t(1) << 20 | uintptr_t(random_int(0, 1) * 8));
  };
  problem.a = place(problem.stride_am, problem.stride_ak, problem.m, problem.k, random_int(0, 7) == 0);
  problem.b = place(problem.stride_bk, problem.stride_bn, problem.k, problem.n, random_int(0, 7) == 0);
  problem.c = place(problem.stride_cm, problem.stride_cn, problem.m, problem.n, false);
  const BatchDim dim{random_int(1, 3), int64_t(1) << 28, random_int(0, 1) << 28, int64_t(1) << 28, 0};
  problem.batch_dims = &dim, problem.num_batch_dims = 1;
  if (size_of(dtype) == 1) {
    problem.dtype_c = problem.dtype_bias = DType::f32, problem.scaling = Scaling::rows, problem.num_batch_dims = 0;
    problem.scale_a = problem.scale_b = {nullptr, 1, 0, 1};
  }
  return survives_faults(
      algorithm,
      [&](host_gpu::Faults& faults, char (&reason)[256]) {
        faults.is_dry = true;
        return tiledmm_host_gemm(&problem, algorithm, 0, nullptr, &faults, reason, sizeof reason);
      },
      [] { return true; });
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t cases = argc > 1 ? std::atoll(argv[1]) : 10;
  const char* only = argc > 2 && std::strcmp(argv[2], "all") != 0 ? argv[2] : nullptr;
  has_faults = argc > 3 && std::strcmp(argv[3], "faults") == 0;
  const int64_t first = argc > 3 && !has_faults ? std::atoll(argv[3]) : 0;
  std::vector<Algorithm> asked;
  std::string names;
  for (const Algorithm& algorithm : algorithms) {
    if (only && algorithm.name != only) continue;
    asked.push_back(algorithm);
    names += (names.empty() ? "" : ", ") + algorithm.name;
  }
  if (asked.empty()) {
    std::printf("there is no algorithm '%s'\n", only);
    return 1;
  }
  const int64_t num_cases = cases * int64_t(asked.size());
  const auto algorithm_of = [&](int64_t idx) -> const Algorithm& { return asked[size_t(idx) % asked.size()]; };
  for (int64_t idx = 0; has_faults && idx < 50 * num_cases; ++idx) {
    const Algorithm& algorithm = algorithm_of(idx);
    if (!run_dry_case(random_dtype(algorithm), algorithm)) return 1;
  }
  __sanitizer_set_death_callback(say_case);
  for (int64_t i = 0; i < num_cases; ++i) {
    case_idx = (first + i) % num_cases;
    if (!has_faults) generator.seed(unsigned(20240301 + case_idx));
    const Algorithm& algorithm = algorithm_of(case_idx);
    const bool is_empty = case_idx < int64_t(asked.size());
    const DType results[] = {DType::f32, DType::f16, DType::bf16};
    const DType dtype = algorithm.has_8_bits ? results[random_int(0, 2)] : random_dtype(algorithm);
    const bool is_right = visit_dtype(dtype, [&](auto* element) {
      using T = std::remove_pointer_t<decltype(element)>;
      if constexpr (sizeof(T) < 8) {
        if (algorithm.has_8_bits) return run_case_of_8_bits<T>(algorithm, is_empty);
      }
      return run_case<T>(dtype, algorithm, is_empty);
    });
    if (!is_right) {
      say_case();
      return 1;
    }
  }
  std::printf("%ld cases are right, %ld allocations and %ld launches were made to fail, by %s\n", long(num_cases),
              long(num_failed_allocations), long(num_failed_launches), names.c_str());
  return 0;
}

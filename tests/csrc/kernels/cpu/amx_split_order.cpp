// The amx_split kernel against a model of its order of summation, bit by bit, for test_amx.py: with the instructions of
// this machine, or compiled with TILEDMM_EMULATE_AMX.
//
// The model is scalar and sets no mode of the processor: three bf16 terms of every element, six products of 32 of k,
// each two chains of fused multiply-adds that are flushed by comparison (Intel SDM, TDPBF16PS). Operands lie in every
// layout, of moderate values, of a wide range with denormals, and with lanes of any bits. Rows and columns that are
// flagged have the bits of `native`, and so has all of C where k or n is short. Prints the number of cases and a hash
// of all unflagged results; the first wrong element ends the program with code 1, a machine without AMX with code 3.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "api/kernels_api.h"
#include "dispatch/chips.h"
#include "dispatch/select.h"

using namespace tiledmm;

namespace {

constexpr int64_t kChunk = 512, kDotK = 32, kMinK = 64, kMinN = 16;

std::mt19937 generator(20240229);

void run_on_threads(void*, int64_t num_tasks, void (*task)(void*, int64_t), void* arg) {
  std::vector<std::thread> threads;
  for (int64_t idx = 0; idx < num_tasks; ++idx) threads.emplace_back(task, arg, idx);
  for (std::thread& thread : threads) thread.join();
}
int64_t num_allocations, num_live, failing_allocation;  // counted from 0; -1: none fails
void* allocate(void*, size_t num_bytes) {
  if (num_allocations++ == failing_allocation) return nullptr;
  ++num_live;
  void* memory = nullptr;
  return posix_memalign(&memory, 64, num_bytes) ? nullptr : std::memset(memory, 0xff, num_bytes);
}
void release(void*, void* memory) {
  --num_live;
  std::free(memory);
}

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
float value_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// --- The model ---

// fp32 rounds a sum below this to the smallest normal number or more; AMX makes the rest zero.
const double kSmallestKept = std::ldexp(1.0, -126) - std::ldexp(1.0, -151);

float flushed(double exact, float rounded) {
  return std::fabs(exact) < kSmallestKept ? std::copysign(0.0f, rounded) : rounded;
}
float input(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
float multiply_add(float a, float b, float c) { return flushed(double(a) * double(b) + double(c), std::fma(a, b, c)); }
float add(float a, float b) { return flushed(double(a) + double(b), a + b); }

struct Terms {
  float of[3];  // high, middle, low
};

Terms split(float x) {
  const auto nearest = [](float v) { return value_of((bits_of(v) + 0x8000) & 0xffff0000); };
  Terms terms;
  terms.of[0] = nearest(x);
  const float rest = x - terms.of[0];
  terms.of[1] = nearest(rest);
  terms.of[2] = value_of(bits_of(rest - terms.of[1]) & 0xffff0000);
  return terms;
}

// C + the dot product of 32 pairs.
float dot(const Terms* a, int term_a, const Terms* b, int term_b, float c) {
  float chains[2] = {};
  for (int64_t p = 0; p < kDotK; ++p) {
    chains[p / 16] = multiply_add(input(a[p].of[term_a]), input(b[p].of[term_b]), chains[p / 16]);
  }
  return add(input(c), add(chains[0], chains[1]));
}

float model_of_element(const std::vector<Terms>& a, const std::vector<Terms>& b) {
  static constexpr int kProducts[][2] = {{2, 0}, {1, 0}, {1, 1}, {0, 1}, {0, 2}, {0, 0}};
  const auto k = int64_t(a.size());
  float total = 0;
  for (int64_t chunk = 0; chunk < k; chunk += kChunk) {
    float sum = 0;
    for (int64_t first = chunk; first < std::min(k, chunk + kChunk); first += kDotK) {
      Terms near[2][kDotK] = {};
      for (int64_t p = 0; p < std::min(kDotK, k - first); ++p) {
        near[0][p] = a[size_t(first + p)], near[1][p] = b[size_t(first + p)];
      }
      for (const auto& product : kProducts) sum = dot(near[0], product[0], near[1], product[1], sum);
    }
    total = chunk == 0 ? sum : total + sum;
  }
  return total;
}

// --- Cases ---

enum class Kind { moderate, wide, any_bits };

struct Matrix {
  int64_t rows, cols, stride_row, stride_col;
  std::vector<float> data;

  Matrix(int64_t rows, int64_t cols, bool is_row_major, int64_t gap, int64_t step)
      : rows(rows),
        cols(cols),
        stride_row(is_row_major ? (cols + gap) * step : step),
        stride_col(is_row_major ? step : (rows + gap) * step),
        data(size_t((rows - 1) * stride_row + (cols - 1) * stride_col + 1), value_of(0xffffffff)) {}
  float& at(int64_t i, int64_t j) { return data[size_t(i * stride_row + j * stride_col)]; }
};

// Lanes are rows here.
void fill(Matrix& matrix, bool lanes_are_rows, Kind kind) {
  const int64_t lanes = lanes_are_rows ? matrix.rows : matrix.cols, k = lanes_are_rows ? matrix.cols : matrix.rows;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const int lane_kind = kind == Kind::any_bits ? int(generator() % 8) : 8;
    for (int64_t p = 0; p < k; ++p) {
      float value = std::uniform_real_distribution<float>(-1, 1)(generator);
      if (kind == Kind::wide) value = std::ldexp(value, int(generator() % 200) - 140);
      if (lane_kind == 0 && generator() % 100 == 0) value = value_of(uint32_t(generator()));
      if (lane_kind == 1) value = std::ldexp(value, lane % 2 ? -49 : -50);  // the latter lanes are flagged
      if (lane_kind == 2) value = std::ldexp(value, 61);
      if (lane_kind == 3) value = 0;
      if (lane_kind == 4 && p == k - 1) value = generator() % 2 ? value_of(0x7f800000) : value_of(0x7fc12345);
      (lanes_are_rows ? matrix.at(lane, p) : matrix.at(p, lane)) = value;
    }
  }
}

bool is_flagged(const std::vector<float>& lane) {
  uint32_t largest = 0;
  for (const float value : lane) largest = std::max(largest, bits_of(value) & 0x7fffffff);
  return largest != 0 && (largest < bits_of(0x1p-50f) || largest > bits_of(0x1p60f));
}

// Where C is NaN its payload is not compared.
uint32_t compared(float value) { return std::isnan(value) ? 0xffffffff : bits_of(value); }

uint64_t hash = 1469598103934665603u;
int64_t num_flagged = 0, num_clean = 0;

// Each allocation fails once before the call that counts.
int64_t num_failures = 0;
void run(const char* algorithm, const GemmProblem& problem) {
  const Executor executor{nullptr, int32_t(1 + generator() % 3), 0, 0, 0, nullptr, run_on_threads, allocate, release};
  char reason[256] = "";
  for (failing_allocation = 0;; ++failing_allocation) {
    num_allocations = num_live = 0;
    const Status status = tiledmm_gemm_cpu(&problem, find_algorithm(algorithm), &executor, reason, sizeof reason);
    const bool has_failed = num_allocations > failing_allocation;
    num_failures += has_failed;
    if (status != (has_failed ? Status::out_of_memory : Status::ok) || num_live != 0) {
      std::printf("WRONG: allocation %lld: %s, %lld not given back\n", (long long)failing_allocation, reason,
                  (long long)num_live);
      std::fflush(stdout);  // the sanitizer ends the program at the leak
      std::exit(1);
    }
    if (!has_failed) return;
  }
}

void run_case(int64_t m, int64_t n, int64_t k, int layout, Kind kind) {
  const int64_t gap = layout & 4 ? 5 : 0, step = layout == 8 ? 3 : 1;
  Matrix a(m, k, !(layout & 1), gap, step), b(k, n, !(layout & 2), gap, step);
  Matrix c(m, n, layout % 3 != 2, gap, 1), plain(m, n, true, 0, 1), bias(1, n, true, 0, 1);
  fill(a, true, kind);
  fill(b, false, kind);
  fill(bias, true, Kind::moderate);
  GemmProblem problem{};
  problem.m = m, problem.n = n, problem.k = k, problem.set_dtypes(DType::f32);
  problem.a = a.data.data(), problem.stride_am = a.stride_row, problem.stride_ak = a.stride_col;
  problem.b = b.data.data(), problem.stride_bk = b.stride_row, problem.stride_bn = b.stride_col;
  const bool has_bias = layout & 1;
  if (has_bias) problem.bias = bias.data.data(), problem.stride_bias_n = 1;
  problem.c = plain.data.data(), problem.stride_cm = plain.stride_row, problem.stride_cn = plain.stride_col;
  run("native", problem);
  problem.c = c.data.data(), problem.stride_cm = c.stride_row, problem.stride_cn = c.stride_col;
  run("amx_split", problem);

  std::vector<std::vector<Terms>> terms[2];
  std::vector<bool> flags[2];
  for (int operand = 0; operand < 2; ++operand) {
    for (int64_t lane = 0; lane < (operand == 0 ? m : n); ++lane) {
      std::vector<float> values;
      for (int64_t p = 0; p < k; ++p) values.push_back(operand == 0 ? a.at(lane, p) : b.at(p, lane));
      flags[operand].push_back(is_flagged(values) || k < kMinK || n < kMinN);
      terms[operand].emplace_back();
      for (const float value : values) terms[operand].back().push_back(split(value));
    }
  }
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const bool flagged = flags[0][size_t(i)] || flags[1][size_t(j)];
      float expected = plain.at(i, j);
      if (!flagged) {
        expected = model_of_element(terms[0][size_t(i)], terms[1][size_t(j)]);
        if (has_bias) expected += bias.at(0, j);
        hash = (hash ^ compared(c.at(i, j))) * 1099511628211u;
      }
      ++(flagged ? num_flagged : num_clean);
      if (compared(c.at(i, j)) != compared(expected)) {
        std::printf("WRONG: m %lld, n %lld, k %lld, layout %d, kind %d: element (%lld, %lld), %s, is %a, expected %a\n",
                    (long long)m, (long long)n, (long long)k, layout, int(kind), (long long)i, (long long)j,
                    flagged ? "flagged" : "clean", double(c.at(i, j)), double(expected));
        std::exit(1);
      }
    }
  }
}

// A batch that shares A and is folded into columns: n is still the caller's.
void run_batch() {
  constexpr int64_t kBatch = 5, kRows = 9, kCols = 8, kDepth = 100;
  Matrix a(kRows, kDepth, true, 0, 1), b(kDepth, kBatch * kCols, false, 0, 1);
  Matrix c(kRows, kBatch * kCols, false, 0, 1), plain(kRows, kBatch * kCols, false, 0, 1);
  fill(a, true, Kind::moderate);
  fill(b, false, Kind::moderate);
  const BatchDim dim{kBatch, 0, kDepth * kCols, kRows * kCols, 0};
  GemmProblem problem{};
  problem.m = kRows, problem.n = kCols, problem.k = kDepth, problem.set_dtypes(DType::f32);
  problem.a = a.data.data(), problem.stride_am = a.stride_row, problem.stride_ak = a.stride_col;
  problem.b = b.data.data(), problem.stride_bk = b.stride_row, problem.stride_bn = b.stride_col;
  problem.c = c.data.data(), problem.stride_cm = c.stride_row, problem.stride_cn = c.stride_col;
  problem.batch_dims = &dim, problem.num_batch_dims = 1;
  run("amx_split", problem);
  problem.c = plain.data.data();
  run("native", problem);
  if (c.data != plain.data) {
    std::printf("WRONG: the columns of a folded batch were counted\n");
    std::exit(1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t step = argc > 1 ? std::atoll(argv[1]) : 1;  // of the cases, every one of so many
  if (best_isa() < Isa::amx) {
    std::printf("this machine has no AMX, or the system does not let a process use it\n");
    return 3;
  }
  // Few rows, few columns, both roles, several chunks, tails of every kind, and what is left to the vector kernel.
  const int64_t shapes[][3] = {{64, 64, 96},   {70, 90, 200},  {5, 100, 70},   {1, 130, 1100}, {33, 17, 600},
                               {40, 300, 130}, {290, 40, 64},  {17, 33, 1025}, {9, 600, 100},  {20, 15, 80},
                               {20, 40, 63},   {130, 16, 544}, {33, 40, 4200}};
  run_batch();
  int64_t num_cases = 0, num_sets = 0;
  for (const auto& shape : shapes) {
    for (int layout = 0; layout <= 8; ++layout) {
      const int64_t set = num_sets++;
      if (set % step) continue;
      run_case(shape[0], shape[1], shape[2], layout, Kind((set + set / 9) % 3));
      ++num_cases;
    }
  }
  if (num_flagged < num_clean / 20 || num_clean < num_flagged) {
    std::printf("WRONG: %lld flagged, %lld clean: not what was meant\n", (long long)num_flagged, (long long)num_clean);
    return 1;
  }
  std::printf("%s %lld cases %016llx\n", kIsaNames[int(best_isa())], (long long)num_cases, (unsigned long long)hash);
  return 0;
}

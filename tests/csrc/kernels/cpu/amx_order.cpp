// The amx kernel against a model of its order of summation, bit by bit, for test_amx.py: with the instructions of this
// machine, or compiled with TILEDMM_EMULATE_AMX.
//
// The model is scalar and sets no mode of the processor: chains of fused multiply-adds, the even and the odd k of 32,
// flushed by comparison where bf16 is multiplied (Intel SDM, TDPBF16PS, TDPFP16PS). Operands lie in every layout, of
// moderate values and of any bits: denormals, infinities, NaN. B is one of e4m3 with scales, too. Prints the number of
// cases and a hash of all results; the first wrong element ends the program with code 1, a machine without AMX with
// code 3.
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
#include "platform/element.h"

using namespace tiledmm;

namespace {

constexpr int64_t kChunk = 2048, kDotK = 32;

std::mt19937 generator(20240229);

void run_on_threads(void*, int64_t num_tasks, void (*task)(void*, int64_t), void* arg) {
  std::vector<std::thread> threads;
  for (int64_t idx = 0; idx < num_tasks; ++idx) threads.emplace_back(task, arg, idx);
  for (std::thread& thread : threads) thread.join();
}
void* allocate(void*, size_t num_bytes) {
  void* memory = nullptr;
  return posix_memalign(&memory, 64, num_bytes) ? nullptr : std::memset(memory, 0xff, num_bytes);
}
void release(void*, void* memory) { std::free(memory); }

// --- The model ---

float value_of(DType dtype, uint16_t bits) {
  return dtype == DType::bf16 ? to_acc(BFloat16{bits}) : to_acc(Half{bits});
}

// fp32 rounds a sum below this to the smallest normal number or more; AMX's bf16 makes the rest zero.
const double kSmallestKept = std::ldexp(1.0, -126) - std::ldexp(1.0, -151);

float flushed(double exact, float rounded) {
  return std::fabs(exact) < kSmallestKept ? std::copysign(0.0f, rounded) : rounded;
}

// Products and sums as the tile instruction makes them; `flushes`: denormals are zeros.
struct Model {
  bool flushes;

  float input(float x) const { return flushes && std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
  float multiply_add(float a, float b, float c) const {
    const float sum = std::fma(a, b, c);
    return flushes ? flushed(double(a) * double(b) + double(c), sum) : sum;
  }
  float add(float a, float b) const { return flushes ? flushed(double(a) + double(b), a + b) : a + b; }

  // C + the dot product of 32 pairs.
  float dot(const float* a, const float* b, float c) const {
    float chains[2] = {};
    for (int64_t p = 0; p < kDotK; ++p) chains[p % 2] = multiply_add(input(a[p]), input(b[p]), chains[p % 2]);
    return add(input(c), add(chains[0], chains[1]));
  }
};

float model_of_row(DType dtype, const std::vector<float>& a, const std::vector<float>& b) {
  const Model model{dtype == DType::bf16};
  const auto k = int64_t(a.size());
  float total = 0;
  for (int64_t chunk = 0; chunk == 0 || chunk < k; chunk += kChunk) {
    float sum = 0;
    for (int64_t first = chunk; first < std::min(k, chunk + kChunk); first += kDotK) {
      float near[2][kDotK] = {};
      for (int64_t p = 0; p < std::min(kDotK, k - first); ++p) {
        near[0][p] = a[size_t(first + p)], near[1][p] = b[size_t(first + p)];
      }
      sum = model.dot(near[0], near[1], sum);
    }
    total = chunk == 0 ? sum : total + sum;
  }
  return total;
}

// --- Cases ---

struct Matrix {
  int64_t rows, cols, stride_row, stride_col;
  std::vector<uint16_t> data;

  Matrix(int64_t rows, int64_t cols, bool is_row_major, int64_t gap) : rows(rows), cols(cols) {
    stride_row = is_row_major ? cols + gap : 1, stride_col = is_row_major ? 1 : rows + gap;
    data.resize(size_t((rows - 1) * stride_row + (cols - 1) * stride_col + 1));
  }
  uint16_t at(int64_t i, int64_t j) const { return data[size_t(i * stride_row + j * stride_col)]; }
};

void fill(Matrix& matrix, DType dtype, int percent_of_any_bits, float size) {
  for (uint16_t& bits : matrix.data) {
    const float value = size * std::uniform_real_distribution<float>(-1, 1)(generator);
    bits = dtype == DType::bf16 ? from_acc<BFloat16>(value).bits : from_acc<Half>(value).bits;
    if (int(generator() % 100) < percent_of_any_bits) bits = uint16_t(generator());
  }
}

// Where C is NaN its payload is not compared, and a bf16 that is denormal is as good as zero, as is the least normal
// one, to which a denormal sum may be rounded: the conversion that AVX-512 has makes denormals zeros.
uint16_t compared(DType dtype, uint16_t bits) {
  if (std::isnan(value_of(dtype, bits))) return 0xffff;
  return dtype == DType::bf16 && (bits & 0x7fff) <= 0x80 ? uint16_t(bits & 0x8000) : bits;
}

uint64_t hash = 1469598103934665603u;

// Makes of a matrix the values in bf16 of numbers of e4m3, which lie likewise. In every second one all are normal, but
// for NaN.
std::vector<uint8_t> fill_with_numbers(Matrix& matrix, int percent_of_nan) {
  std::vector<uint8_t> numbers;
  const bool are_normal = generator() % 2 == 0;
  for (uint16_t& bits : matrix.data) {
    uint32_t number = generator() % 256;
    if (are_normal && (number & 0x78) == 0) number |= 8;
    if ((number & 0x7f) == 0x7f && int(generator() % 100) >= percent_of_nan) number ^= 1;
    numbers.push_back(uint8_t(number));
    bits = from_acc<BFloat16>(to_acc(E4m3{uint8_t(number)})).bits;
  }
  return numbers;
}

// are_items: a batch, each item of which has two rows, half of the product's apart.
void run_case(int32_t algorithm, DType dtype, int64_t m, int64_t n, int64_t k, int layout, int percent_of_any_bits,
              bool has_b_8_bits, bool are_items) {
  const int64_t gap = layout & 4 ? 5 : 0;
  Matrix a(m, k, !(layout & 1), gap), b(k, n, !(layout & 2), gap), c(m, n, true, 0);
  // Of bf16, some sums of a chain are denormal, and others behind them are not; or most of A is, and no product with
  // it.
  const bool is_small = dtype == DType::bf16 && !has_b_8_bits;
  fill(a, dtype, percent_of_any_bits, !is_small ? 1 : layout == 3 ? 0x1p-62f : layout == 6 ? 0x1p-125f : 1);
  std::vector<uint8_t> numbers;
  std::vector<float> scales(size_t(n), 1.0f);
  if (has_b_8_bits) {
    numbers = fill_with_numbers(b, percent_of_any_bits);
    for (float& scale : scales) scale = std::uniform_real_distribution<float>(0, 1)(generator);
  } else {
    fill(b, dtype, percent_of_any_bits, !is_small ? 1 : layout == 3 ? 0x1p-62f : layout == 6 ? 0x1p100f : 1);
  }
  GemmProblem problem{};
  problem.m = m, problem.n = n, problem.k = k, problem.set_dtypes(dtype);
  problem.a = a.data.data(), problem.stride_am = a.stride_row, problem.stride_ak = a.stride_col;
  problem.b = b.data.data(), problem.stride_bk = b.stride_row, problem.stride_bn = b.stride_col;
  problem.c = c.data.data(), problem.stride_cm = c.stride_row, problem.stride_cn = c.stride_col;
  const BatchDim dim{m / 2, a.stride_row, 0, c.stride_row, 0};
  if (are_items) {
    problem.m = 2, problem.stride_am *= m / 2, problem.stride_cm *= m / 2;
    problem.batch_dims = &dim, problem.num_batch_dims = 1;
  }
  if (has_b_8_bits) {
    problem.dtype_b = DType::e4m3, problem.b = numbers.data();
    problem.scaling = Scaling::rows, problem.scale_b = {scales.data(), 1, 0, 1};
  }
  const Executor executor{nullptr, int32_t(1 + generator() % 3), 0, 0, 0, nullptr, run_on_threads, allocate, release};
  char reason[256] = "";
  if (tiledmm_gemm_cpu(&problem, algorithm, &executor, reason, sizeof reason) != Status::ok) {
    std::printf("WRONG: %s\n", reason);
    std::exit(1);
  }
  const auto values = [&](const Matrix& matrix, int64_t lane, bool is_row) {
    std::vector<float> found;
    for (int64_t p = 0; p < k; ++p) {
      found.push_back(value_of(dtype, is_row ? matrix.at(lane, p) : matrix.at(p, lane)));
    }
    return found;
  };
  std::vector<std::vector<float>> columns;
  for (int64_t j = 0; j < n; ++j) columns.push_back(values(b, j, false));
  for (int64_t i = 0; i < m; ++i) {
    const std::vector<float> row = values(a, i, true);
    for (int64_t j = 0; j < n; ++j) {
      const float sum = model_of_row(dtype, row, columns[size_t(j)]) * scales[size_t(j)];
      const uint16_t expected = dtype == DType::bf16 ? from_acc<BFloat16>(sum).bits : from_acc<Half>(sum).bits;
      const uint16_t actual = compared(dtype, c.at(i, j));
      hash = (hash ^ actual) * 1099511628211u;
      if (actual != compared(dtype, expected)) {
        std::printf(
            "WRONG: %s%s, m %lld, n %lld, k %lld, layout %d: element (%lld, %lld) is %04x, expected %04x (%g)\n",
            kDTypeNames[int(dtype)], has_b_8_bits ? " x e4m3" : "", (long long)m, (long long)n, (long long)k, layout,
            (long long)i, (long long)j, unsigned(c.at(i, j)), unsigned(expected), double(sum));
        std::exit(1);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t step = argc > 1 ? std::atoll(argv[1]) : 1;        // of the cases, every one of so many
  const bool has_f16 = best_isa() >= Isa::amx_fp16 && argc <= 2;  // a second argument: of those of bf16
  if (best_isa() < Isa::amx) {
    std::printf("this machine has no AMX, or the system does not let a process use it\n");
    return 3;
  }
  // All paths: blocks with rows in place and packed, few rows, few columns, split k, short k; tails of every
  // kind.
  const int64_t shapes[][3] = {{64, 64, 96},   {7, 600, 1},    {40, 33, 2},    {3, 50, 3},     {50, 70, 4},
                               {70, 90, 200},  {5, 100, 70},   {1, 130, 2100}, {33, 3, 4200},  {5, 33, 4200},
                               {33, 34, 2080}, {1, 1, 1},      {300, 33, 31},  {17, 130, 544}, {9, 600, 450},
                               {3, 130, 2500}, {40, 300, 900}, {130, 200, 300}};

  // Batches of small items: k of some steps of the tile instructions, of less than one, of an odd length.
  const int64_t shapes_of_items[][3] = {{34, 3, 1}, {64, 5, 70}, {100, 9, 33}, {22, 2, 600}};

  const int32_t algorithm = find_algorithm("amx");
  int64_t num_cases = 0, num_sets = 0;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    if (dtype == DType::f16 && !has_f16) continue;
    const auto run_shape = [&](const int64_t (&shape)[3], bool are_items) {
      for (int layout = 0; layout < 8; ++layout) {
        if (num_sets++ % step) continue;
        const int percent = layout % 3 == 0 ? 0 : layout % 3 == 1 ? 1 : 50;
        run_case(algorithm, dtype, shape[0], shape[1], shape[2], layout, percent, false, are_items);
        ++num_cases;
        if (dtype != DType::bf16 || are_items) continue;
        run_case(algorithm, dtype, shape[0], shape[1], shape[2], layout, percent, true, false);
        ++num_cases;
      }
    };
    for (const auto& shape : shapes) run_shape(shape, false);
    for (const auto& shape : shapes_of_items) run_shape(shape, true);
  }
  std::printf("%s %lld cases %016llx\n", kIsaNames[int(best_isa())], (long long)num_cases, (unsigned long long)hash);
  return 0;
}

// Runs the CPU rungs without torch on random problems, for test_sanitize.py, which compiles everything with
// the address and undefined behaviour sanitizers. Prints the number of cases; the first wrong one ends the
// program with code 1.
//
// Operands lie in heap memory of exactly their size (the sanitizer's redzones around it), or flush against a
// page that must not be touched: vector intrinsics with a mask are invisible to the sanitizer. What no index
// reaches, in operands and output, is NaN, and must stay so. Every result is compared with a float64
// reference within gamma(k + 2) (|A| |B| + |bias|), torch_tiledmm/testing/reference.py, and bit for bit with
// that of other thread counts. Some have a B of 8 bits with scales. Where a call needs a workspace, one whose
// allocation fails comes before the next.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "api/kernels_api.h"
#include "dispatch/chips.h"
#include "dispatch/fold_batch.h"
#include "dispatch/select.h"
#include "platform/element.h"

using namespace tiledmm;

namespace {

std::mt19937 generator(20240229);

int64_t random_int(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(generator); }
bool chance(int percent) { return random_int(1, 100) <= percent; }
template <class T, size_t COUNT>
T pick(const T (&choices)[COUNT]) {
  return choices[random_int(0, int64_t(COUNT) - 1)];
}

// --- What the caller lends to a kernel ---

struct Lender {
  int32_t num_threads;
  int64_t failing_allocation = -1;  // counted from 0; -1: none
  int64_t num_allocations = 0, num_live = 0;
};

void run_on_threads(void* self, int64_t num_tasks, void (*task)(void*, int64_t), void* arg) {
  std::atomic<int64_t> next{0};
  std::vector<std::thread> threads;
  for (int32_t idx = 0; idx < static_cast<Lender*>(self)->num_threads; ++idx) {
    threads.emplace_back([&] {
      for (int64_t task_idx = next++; task_idx < num_tasks; task_idx = next++) task(arg, task_idx);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Exactly the size asked for, filled with NaN. As from torch, there are no 0 bytes.
void* allocate(void* self, size_t num_bytes) {
  Lender& lender = *static_cast<Lender*>(self);
  if (lender.num_allocations++ == lender.failing_allocation || num_bytes == 0) return nullptr;
  ++lender.num_live;
  void* memory = nullptr;
  if (posix_memalign(&memory, 64, num_bytes)) std::abort();
  return std::memset(memory, 0xff, num_bytes);
}
void release(void* self, void* memory) {
  --static_cast<Lender*>(self)->num_live;
  std::free(memory);
}

Executor executor_of(Lender& lender) {
  return {&lender, lender.num_threads, 0, 0, 0, nullptr, run_on_threads, allocate, release};
}

// --- Operands ---

int64_t bytes_of(DType dtype) { return size_of(dtype); }

double read_element(DType dtype, const char* from) {
  if (dtype == DType::e4m3) return to_acc(E4m3{uint8_t(*from)});
  return visit_dtype(dtype, [&](auto* element) {
    std::remove_pointer_t<decltype(element)> value;
    std::memcpy(&value, from, sizeof value);
    return double(to_acc(value));
  });
}

void write_element(DType dtype, char* to, double value) {
  if (dtype == DType::e4m3) {  // any number of at most 1
    *to = char(random_int(0, 0x38) | (value < 0 ? 0x80 : 0));
    return;
  }
  visit_dtype(dtype, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    const T rounded = from_acc<T>(static_cast<Acc<T>>(value));
    std::memcpy(to, &rounded, sizeof rounded);
  });
}

// Memory of one operand, all bits set (NaN in every dtype).
class Buffer {
 public:
  enum class Place { heap, before_guard, after_guard };

  Buffer(int64_t num_bytes, Place place) : num_bytes_(num_bytes), place_(place) {
    if (place == Place::heap) {
      data_ = static_cast<char*>(std::malloc(size_t(num_bytes)));
    } else {
      const int64_t page = sysconf(_SC_PAGESIZE), inside = round_up(max_of(1, num_bytes), page);
      mapped_bytes_ = size_t(inside + page);
      mapped_ =
          static_cast<char*>(mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      if (mapped_ == MAP_FAILED) std::abort();
      const bool before = place == Place::before_guard;
      mprotect(before ? mapped_ + inside : mapped_, size_t(page), PROT_NONE);
      data_ = before ? mapped_ + inside - num_bytes : mapped_ + page;
    }
    clear();
  }
  ~Buffer() { place_ == Place::heap ? std::free(data_) : void(munmap(mapped_, mapped_bytes_)); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  char* data() { return data_; }
  int64_t num_bytes() const { return num_bytes_; }
  void clear() {
    if (num_bytes_) std::memset(data_, 0xff, size_t(num_bytes_));
  }

 private:
  int64_t num_bytes_;
  Place place_;
  char* data_ = nullptr;
  char* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
};

// any: any order of dimensions and any gaps between elements; broadcast in some dimensions if it is an input.
enum class Strides { any, row_major, column_major };

// An array.
struct Operand {
  std::vector<int64_t> sizes, strides;
  int64_t offset, num_elements;  // the first element, and all that the memory holds
  std::unique_ptr<Buffer> buffer;
  DType dtype;

  Operand(DType dtype, std::vector<int64_t> all_sizes, bool is_output, Strides wanted)
      : sizes(std::move(all_sizes)), dtype(dtype) {
    const bool is_any = wanted == Strides::any;
    const size_t rank = sizes.size();
    std::vector<size_t> order(rank);  // innermost first
    for (size_t d = 0; d < rank; ++d) order[d] = rank - 1 - d;
    if (is_any ? chance(40) : wanted == Strides::column_major) std::swap(order[0], order[1]);
    if (is_any && chance(15)) std::shuffle(order.begin(), order.end(), generator);
    strides.assign(rank, 0);
    const bool is_sparse = is_any && chance(20), is_padded = is_any && chance(50);
    int64_t span = is_sparse ? random_int(2, 3) : 1, last = 0;
    for (size_t place = 0; place < rank; ++place) {
      const size_t d = order[place];
      if (is_any && !is_output && chance(d + 2 < rank ? 30 : 3)) continue;
      strides[d] = span;
      last += max_of(0, sizes[d] - 1) * span;
      span = max_of(1, sizes[d]) * span + (is_padded ? random_int(0, 9) : 0);
    }
    bool is_empty = false;
    for (int64_t size : sizes) is_empty |= size == 0;
    const auto place = pick({Buffer::Place::heap, Buffer::Place::before_guard, Buffer::Place::after_guard});
    const bool has_margins = place == Buffer::Place::heap && (is_output || chance(30));
    offset = has_margins ? random_int(0, 40) : 0;
    num_elements = offset + (is_empty ? 0 : last + 1) + (has_margins && is_output ? 40 : 0);
    buffer = std::make_unique<Buffer>(num_elements * bytes_of(dtype), place);
  }

  char* first() { return buffer->data() + offset * bytes_of(dtype); }
  char* at(int64_t idx) { return first() + idx * bytes_of(dtype); }

  // Calls visit(offset in elements) for every index, in row-major order; a broadcast element comes again and
  // again.
  template <class Visit>
  void for_each(const Visit& visit, size_t d = 0, int64_t start = 0) const {
    if (d == sizes.size()) return visit(start);
    for (int64_t i = 0; i < sizes[d]; ++i) for_each(visit, d + 1, start + i * strides[d]);
  }

  void fill() {
    for_each(
        [&](int64_t idx) { write_element(dtype, at(idx), std::uniform_real_distribution<double>(-1, 1)(generator)); });
  }

  // The values in row-major order.
  std::vector<double> values() {
    std::vector<double> all;
    for_each([&](int64_t idx) { all.push_back(read_element(dtype, at(idx))); });
    return all;
  }

  // Whether the elements that no index reaches still have all bits set.
  bool has_clean_gaps() {
    std::vector<bool> is_reached(size_t(num_elements), false);
    for_each([&](int64_t idx) { is_reached[size_t(offset + idx)] = true; });
    for (int64_t e = 0; e < num_elements; ++e) {
      for (int64_t byte = 0; byte < bytes_of(dtype) && !is_reached[size_t(e)]; ++byte) {
        if (buffer->data()[e * bytes_of(dtype) + byte] != char(0xff)) return false;
      }
    }
    return true;
  }
};

// --- Reference ---

struct Limits {
  double value, bound;
};

double activate_reference(Activation activation, double x) {
  switch (activation) {
    case Activation::relu:
      return x < 0 ? 0 : x;
    case Activation::gelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    case Activation::silu:
      return x / (1 + std::exp(-x));
    default:
      return x;
  }
}

enum class Layout { any, nn, nt, tn };  // of any strides; else C is row-major, A and B are row- or column-major

struct Case {
  int64_t m, n, k;
  std::vector<int64_t> batch;
  DType dtype;
  Activation activation;
  int bias_along;  // 0: no bias, 1: n, 2: m; 3: a matrix for each item, and all is scaled
  Layout layout = Layout::any;
  bool has_b_8_bits = false;
};

constexpr double kAlpha = -1.75, kBeta = 0.3;

std::vector<Limits> reference(const Case& c, const std::vector<double>& a, const std::vector<double>& b,
                              const std::vector<float>& scales, const std::vector<double>& bias) {
  const double u_acc = c.dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
  const double u_out[] = {0x1p-24, 0x1p-53, 0x1p-11, 0x1p-8};
  const double smallest_out[] = {0x1p-149, 0x1p-1074, 0x1p-24, 0x1p-133};
  // In float64 the reference rounds as often as the kernel.
  const double num_roundings =
      double(c.k + (c.bias_along == 3 ? 6 : 2) + c.has_b_8_bits) * (c.dtype == DType::f64 ? 2 : 1);
  const double gamma = num_roundings * u_acc / (1 - num_roundings * u_acc);
  const bool is_curved = c.activation > Activation::relu;
  const double slope = is_curved ? 1.13 : 1;
  int64_t batch = 1;
  for (int64_t size : c.batch) batch *= size;
  std::vector<Limits> limits;
  std::vector<double> sums(size_t(c.n)), sizes(size_t(c.n));
  for (int64_t i = 0; i < batch * c.m; ++i) {
    std::fill(sums.begin(), sums.end(), 0.0);
    std::fill(sizes.begin(), sizes.end(), 0.0);
    for (int64_t p = 0; p < c.k; ++p) {
      const double a_ip = a[size_t(i * c.k + p)];
      const double* row_b = b.data() + (i / c.m * c.k + p) * c.n;
      for (int64_t j = 0; j < c.n; ++j) {
        sums[size_t(j)] += a_ip * row_b[j];
        sizes[size_t(j)] += std::fabs(a_ip * row_b[j]);
      }
    }
    for (int64_t j = 0; j < c.n; ++j) {
      const double add = c.bias_along == 1   ? bias[size_t(j)]
                         : c.bias_along == 2 ? bias[size_t(i % c.m)]
                         : c.bias_along == 3 ? kBeta * bias[size_t(i * c.n + j)]
                                             : 0;
      sums[size_t(j)] *= double(scales[size_t(j)]), sizes[size_t(j)] *= double(scales[size_t(j)]);
      if (c.bias_along == 3) sums[size_t(j)] *= kAlpha, sizes[size_t(j)] *= std::fabs(kAlpha);
      const double value = activate_reference(c.activation, sums[size_t(j)] + add);
      // Beyond the sum: 8 roundings of an activation, the rounding of the output, and products too small for
      // fp32.
      double bound = slope * gamma * (sizes[size_t(j)] + std::fabs(add)) + double(c.k + 1) * 0x1p-124;
      if (is_curved) bound += 8 * u_acc * std::fabs(value);
      bound += u_out[int(c.dtype)] * (std::fabs(value) + bound) + smallest_out[int(c.dtype)];
      limits.push_back({value, bound});
    }
  }
  return limits;
}

// --- One case, on every algorithm and thread count ---

constexpr double kLargeVolume = 4e6;

// A name that a caller may ask for, and the kernels of this program that it stands for.
struct Algorithm {
  int32_t idx;
  const char* name;
  std::vector<const Rung*> kernels;
  int64_t num_runs = 0;

  // Whether products of so many multiply-adds are tried. A kernel of the ladder knows no special cases: of a row or a
  // column it may compute whole tiles, 32 times as much. What stands for several is left to them.
  bool takes(double volume) const {
    if (kernels.size() > 1) return volume <= kLargeVolume;
    return kernels[0]->is_native || volume <= 1e6;
  }
  bool is_refused(const GemmProblem& problem, int32_t num_threads) const {
    BatchDim dims[kMaxBatchDims];
    const FoldedProblem folded = fold_batch(problem, dims);
    const Chip chip = cpu_chip(num_threads);
    return std::all_of(kernels.begin(), kernels.end(), [&](const Rung* rung) { return rung->refusal(folded, chip); });
  }
};

std::vector<Algorithm> cpu_algorithms() {
  std::vector<Algorithm> algorithms;
  for (int32_t idx = 0; idx < num_algorithms(); ++idx) {
    Algorithm algorithm{idx, algorithm_name(idx), {}};
    for (const Rung* rung : kernels_of(idx, false)) {
      if (rung->launch) algorithm.kernels.push_back(rung);
    }
    if (!algorithm.kernels.empty()) algorithms.push_back(algorithm);
  }
  return algorithms;
}

std::vector<Algorithm> algorithms = cpu_algorithms();
const char* const kDTypes[] = {"fp32", "fp64", "fp16", "bf16"};
int64_t num_failed_allocations = 0;

[[noreturn]] void fail(const Case& c, const char* algorithm, int32_t num_threads, const std::string& what) {
  std::string batch;
  for (int64_t size : c.batch) batch += std::to_string(size) + " ";
  std::printf("WRONG: m %lld, n %lld, k %lld, batch ( %s), %s%s, activation %d, bias %d, %s, %d threads: %s\n",
              (long long)c.m, (long long)c.n, (long long)c.k, batch.c_str(), kDTypes[int(c.dtype)],
              c.has_b_8_bits ? " x e4m3" : "", int(c.activation), c.bias_along, algorithm, int(num_threads),
              what.c_str());
  std::exit(1);
}

std::vector<int64_t> with_matrix(std::vector<int64_t> batch, int64_t rows, int64_t cols) {
  batch.push_back(rows);
  batch.push_back(cols);
  return batch;
}

void run_case(const Case& c) {
  const double volume = double(c.m) * double(c.n) * double(c.k);
  if (std::none_of(algorithms.begin(), algorithms.end(), [&](const Algorithm& asked) { return asked.takes(volume); })) {
    return;
  }
  const Strides strides = c.layout == Layout::any ? Strides::any : Strides::row_major;
  Operand a(c.dtype, with_matrix(c.batch, c.m, c.k), false, c.layout == Layout::tn ? Strides::column_major : strides);
  Operand b(c.has_b_8_bits ? DType::e4m3 : c.dtype, with_matrix(c.batch, c.k, c.n), false,
            c.layout == Layout::nt ? Strides::column_major : strides);
  Operand out(c.dtype, with_matrix(c.batch, c.m, c.n), true, strides);
  const bool is_matrix = c.bias_along == 3;
  const std::vector<int64_t> vector = {1, c.bias_along == 2 ? c.m : c.n};
  Operand bias(c.dtype, is_matrix ? with_matrix(c.batch, c.m, c.n) : vector, false, strides);
  a.fill();
  b.fill();
  bias.fill();
  std::vector<float> scales(size_t(c.n), 1.0f);
  for (size_t j = 0; c.has_b_8_bits && j < scales.size(); ++j) scales[j] = float(1 + j % 5) / 4;
  const int64_t scale_stride = 1 + c.n % 2;
  std::vector<float> scales_apart(scales.size() * size_t(scale_stride), NAN);
  for (size_t j = 0; j < scales.size(); ++j) scales_apart[j * size_t(scale_stride)] = scales[j];
  const std::vector<Limits> limits = reference(c, a.values(), b.values(), scales, bias.values());

  const size_t rank = c.batch.size();
  std::vector<BatchDim> dims;
  for (size_t d = 0; d < rank; ++d) {
    dims.push_back({c.batch[d], a.strides[d], b.strides[d], out.strides[d], is_matrix ? bias.strides[d] : 0});
  }
  GemmProblem problem{};
  problem.m = c.m, problem.n = c.n, problem.k = c.k;
  problem.a = a.first(), problem.stride_am = a.strides[rank], problem.stride_ak = a.strides[rank + 1];
  problem.b = b.first(), problem.stride_bk = b.strides[rank], problem.stride_bn = b.strides[rank + 1];
  problem.c = out.first(), problem.stride_cm = out.strides[rank], problem.stride_cn = out.strides[rank + 1];
  if (c.bias_along) problem.bias = bias.first();
  (c.bias_along == 2 ? problem.stride_bias_m : problem.stride_bias_n) = c.bias_along ? bias.strides.back() : 0;
  if (is_matrix) problem.stride_bias_m = bias.strides[rank], problem.alpha = kAlpha, problem.beta = kBeta;
  problem.batch_dims = dims.data(), problem.num_batch_dims = int32_t(rank);
  problem.set_dtypes(c.dtype), problem.activation = c.activation;
  if (c.has_b_8_bits) {
    problem.dtype_b = DType::e4m3, problem.scaling = Scaling::rows;
    problem.scale_b = {scales_apart.data(), scale_stride, 0, 1};
  }

  const bool is_large = volume > kLargeVolume;
  for (Algorithm& asked : algorithms) {
    const char* algorithm = asked.name;
    const int32_t algorithm_idx = asked.idx;
    if (!asked.takes(volume)) continue;
    std::vector<char> first_bits;
    int64_t num_allocations = 0;
    for (int32_t num_threads = 1; num_threads <= 3; num_threads += is_large ? 2 : 1) {
      // Each of the allocations that the run before asked for fails once; the run below is the next call.
      for (int64_t failing = 0; failing < num_allocations; ++failing) {
        Lender lender{num_threads, failing};
        const Executor executor = executor_of(lender);
        char reason[256] = "";
        const Status status = tiledmm_gemm_cpu(&problem, algorithm_idx, &executor, reason, sizeof reason);
        if (lender.num_allocations <= failing) break;  // more threads need less
        if (status != Status::out_of_memory || !reason[0])
          fail(c, algorithm, num_threads, "no memory, and no word of it");
        if (lender.num_live != 0) fail(c, algorithm, num_threads, "memory is not given back after a failure");
        ++num_failed_allocations;
      }
      Lender lender{num_threads};
      const Executor executor = executor_of(lender);
      out.buffer->clear();
      char reason[256] = "";
      const Status status = tiledmm_gemm_cpu(&problem, algorithm_idx, &executor, reason, sizeof reason);
      if (status == Status::unsupported && asked.is_refused(problem, num_threads)) break;
      if (status != Status::ok) fail(c, algorithm, num_threads, reason);
      if (lender.num_live != 0) fail(c, algorithm, num_threads, "memory is not given back");
      num_allocations = lender.num_allocations;
      ++asked.num_runs;
      const char* data = out.buffer->data();
      const std::vector<char> bits(data, data + out.buffer->num_bytes());
      if (num_threads == 1) {
        first_bits = bits;
        const std::vector<double> values = out.values();
        for (size_t e = 0; e < limits.size(); ++e) {
          const double error = std::fabs(values[e] - limits[e].value);
          if (!(error <= limits[e].bound)) {
            fail(c, algorithm, num_threads,
                 "element " + std::to_string(e) + " is " + std::to_string(values[e]) + ", reference " +
                     std::to_string(limits[e].value) + ", error / bound " + std::to_string(error / limits[e].bound));
          }
        }
        if (!out.has_clean_gaps()) fail(c, algorithm, num_threads, "wrote outside of the output");
      } else if (bits != first_bits) {
        fail(c, algorithm, num_threads, "other bits than with one thread");
      }
    }
  }
}

int64_t random_size() {
  static const int64_t kEdges[] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  12, 13,
                                   15, 16, 17, 18, 19, 24, 31, 32, 33, 63, 64, 65};
  return chance(60) ? pick(kEdges) : random_int(1, 80);
}
int64_t random_depth(DType dtype) {
  const int64_t chunk = dtype == DType::bf16 ? 1024 : 512;
  return chance(55) ? random_size() : chunk * random_int(1, 2) + random_int(-5, 5);
}

Case random_case() {
  Case c{};
  c.dtype = DType(random_int(0, kNumDTypes - 1));
  const int64_t num_batch_dims = chance(60) ? 0 : random_int(1, 3);
  for (int64_t d = 0; d < num_batch_dims; ++d) c.batch.push_back(chance(4) ? 0 : random_int(1, 3));
  const int64_t most = num_batch_dims ? 60000 : 400000;
  do {
    c.m = random_size(), c.n = random_size(), c.k = random_depth(c.dtype);
  } while (c.m * c.n * c.k > most);
  c.activation = chance(50) ? Activation::none : Activation(random_int(0, 4));
  c.bias_along = int(random_int(0, 3));
  return c;
}

// Shapes in which work is shared out in every way: split k, blocks of packed panels, rows streamed, dot
// products, of columns that may begin in one set of the nearest cache.
const int64_t kNamedShapes[][3] = {{6, 40, 4200},  {17, 12, 5001}, {1, 300, 4099}, {300, 1, 4099},
                                   {3, 1000, 700}, {8, 640, 1030}, {700, 5, 600},  {1, 1, 13000},
                                   {130, 97, 130}, {4, 257, 2050}, {1, 21, 2048},  {2, 13, 4096}};
// Those of them whose way only an NT product takes.
const int64_t kNtShapes[][3] = {{1, 1, 13000}, {1, 21, 2048}, {2, 13, 4096}, {3, 300, 3}, {5, 70, 2}, {40, 100, 4}};
// Rows of whole steps of k, which tile instructions load where they lie: all of a product of few rows, each once for
// all columns; those of a block whose last tile is not full.
const int64_t kTileShapes[][3] = {{5, 300, 1024}, {20, 260, 1056}, {5, 130, 4160}, {20, 20, 2080},
                                  {40, 70, 64},   {44, 90, 96},    {36, 64, 128},  {41, 70, 64}};
// Items that are computed one in each lane: runs shorter than a packet, whole packets, and a part of one.
const int64_t kItemShapes[][3] = {{1, 1, 1}, {2, 1, 1}, {1, 3, 5}, {5, 2, 3}, {3, 9, 5}, {1, 1, 33}, {6, 4, 8}};
const std::vector<int64_t> kItemBatches[] = {{19}, {3, 9}, {9, 2}};
// Items that are multiplied where they lie, with edges of vectors and of tiles of rows, of chunks.
const int64_t kInPlaceShapes[][3] = {{5, 37, 20}, {13, 64, 6}, {1, 96, 9}, {27, 32, 7}, {3, 64, 1030}};
const int64_t kLargeShapes[][3] = {{131, 530, 521}, {530, 131, 1031}};

}  // namespace

int main(int argc, char** argv) {
  const int64_t num_cases = argc > 1 ? std::atoll(argv[1]) : 400;
  if (argc > 2) {  // only the algorithms that are named
    const auto is_unnamed = [&](const Algorithm& algorithm) {
      return std::none_of(argv + 2, argv + argc, [&](const char* name) { return std::string(name) == algorithm.name; });
    };
    algorithms.erase(std::remove_if(algorithms.begin(), algorithms.end(), is_unnamed), algorithms.end());
  }
  for (int64_t idx = 0; idx < num_cases; ++idx) run_case(random_case());
  std::vector<Case> named;
  // B of 8 bits: few rows, more of them, chunks side by side.
  const int64_t shapes_of_8_bits[][3] = {{1, 300, 4099}, {2, 13, 4096},  {3, 70, 33},     {8, 40, 1030},
                                         {9, 33, 520},   {40, 70, 1100}, {131, 260, 521}, {5, 17, 0}};
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const auto& shape : shapes_of_8_bits) {
      for (const Layout layout : {Layout::any, Layout::nn, Layout::nt}) {
        named.push_back({shape[0],
                         shape[1],
                         shape[2],
                         {},
                         dtype,
                         Activation(random_int(0, 4)),
                         int(random_int(0, 3)),
                         layout,
                         true});
      }
    }
  }
  for (const auto& shape : kNtShapes)
    named.push_back({shape[0], shape[1], shape[2], {}, DType::f32, Activation::none, 0, Layout::nt});
  for (const auto& shape : kTileShapes)
    named.push_back({shape[0], shape[1], shape[2], {}, DType::bf16, Activation::none, 0, Layout::nn});
  for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
    for (const auto& shape : kItemShapes) {
      for (const auto& batch : kItemBatches) {
        for (const Layout layout : {Layout::any, Layout::nn, Layout::nt}) {
          const bool is_plain = layout == Layout::nt;
          named.push_back({shape[0], shape[1], shape[2], batch, DType(dtype),
                           is_plain ? Activation::none : Activation(random_int(0, 4)),
                           is_plain ? 0 : int(random_int(0, 3)), layout});
        }
      }
    }
    for (const auto& shape : kInPlaceShapes) {
      for (const Layout layout :
           {Layout::nn, Layout::nt, Layout::tn, Layout::any, Layout::any, Layout::any, Layout::any}) {
        named.push_back({shape[0], shape[1], shape[2], {3, 4}, DType(dtype), Activation::none, 0, layout});
      }
    }
    for (const auto& shape : kNamedShapes) {
      named.push_back(
          {shape[0], shape[1], shape[2], {}, DType(dtype), Activation(random_int(0, 4)), int(random_int(0, 2))});
    }
    const auto& shape = kLargeShapes[dtype % 2];
    named.push_back({shape[0], shape[1], shape[2], {}, DType(dtype), Activation::none, 0});
  }
  // Small ones first: those that find a mutant come soon.
  const auto volume = [](const Case& c) {
    return std::accumulate(c.batch.begin(), c.batch.end(), c.m * c.n * c.k, std::multiplies<>());
  };
  std::stable_sort(named.begin(), named.end(), [&](const Case& x, const Case& y) { return volume(x) < volume(y); });
  for (const Case& c : named) run_case(c);
  std::printf("%lld cases:", (long long)num_cases + (long long)named.size());
  for (const Algorithm& algorithm : algorithms) std::printf(" %s %lld", algorithm.name, (long long)algorithm.num_runs);
  std::printf(" failed_allocations %lld\n", (long long)num_failed_allocations);
  return 0;
}

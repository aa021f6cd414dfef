// wgmma_split by the emulated Hopper, against a model of its order of summation: every bit of C. Arguments:
// the numbers of the cases, all without.
#include <cmath>
#include <cstdio>
#include <vector>

#include "kernels/cuda/simt_pipelined/rung.cpp"
#include "kernels/cuda/wgmma_split/few_rows_sm90a.cu"
#include "kernels/cuda/wgmma_split/launch_sm90a.cu"
#include "matrices.h"
#include "run_cases.h"

using namespace tiledmm;

namespace {

// cancelling: the products of first terms cancel, which leaves the corrections. growing: the largest of a chunk grows
// from block to block. late: in every other chunk it grows behind the first block, which alone counts there, and whose
// terms depend on it. flagged_late: an element of the last chunk is infinite, flagged_ends: one of the first as well,
// in another row. overflowing: sums of chunks overflow, which plain multiply-adds would not.
enum class Data {
  normal,
  wide,
  flagged,
  flagged_columns,
  flagged_late,
  flagged_ends,
  cancelling,
  growing,
  late,
  overflowing
};

// Operands: row-major, or column-major where is_turned.
struct Case {
  int m, n, k;
  bool is_a_turned, is_b_turned;
  int batch;
  bool has_bias;  // and relu; of a batch a matrix for each item, and all is scaled
  Data data;
  int num_sms = 4;
  DType dtype_a = DType::f32, dtype_b = DType::f32;
};

// Groups of k have 8192 elements here (test_emulated_split.py).
constexpr Case kCases[] = {
    {128, 128, 128, false, false, 1, false, Data::normal},
    {200, 150, 1100, false, false, 1, false, Data::normal},  // several tiles for a block, three chunks
    {257, 390, 102, true, false, 1, true, Data::normal},     // the last tile of a pair lies outside
    {130, 70, 577, true, true, 3, true, Data::wide},         // a batch
    {130, 140, 1030, false, true, 1, true, Data::flagged},
    {129, 66, 2600, false, false, 1, false, Data::normal, 2},  // six chunks of a whole tile
    {70, 66, 8232, false, false, 1, false, Data::normal, 4},   // a last group of 40
    {3, 70, 2500, false, true, 1, true, Data::normal},         // few rows, five chunks in a cluster
    {9, 130, 1111, false, false, 2, false, Data::wide},
    {140, 33, 530, false, true, 1, true, Data::flagged},  // few columns
    {64, 65, 600, true, false, 1, false, Data::normal},
    {2, 40, 515, true, true, 1, false, Data::wide},  // an operand that the copy engine cannot read
    {128, 70, 100, false, false, 1, false, Data::flagged_columns},
    {130, 131, 200, false, false, 1, false, Data::cancelling},
    {5, 70, 200, false, false, 1, false, Data::cancelling},
    {70, 5, 200, false, false, 1, false, Data::cancelling},
    {66, 70, 8192, false, true, 1, false, Data::flagged_late, 132},  // many flags of a row
    {140, 70, 300, true, false, 1, false, Data::flagged, 132},
    {6, 70, 1500, false, true, 1, false, Data::growing},
    {12, 70, 1500, false, true, 1, false, Data::late, 1},  // chunks that are computed twice
    {40, 300, 1100, false, false, 1, false, Data::late, 1},
    {70, 20, 200, true, true, 1, true, Data::growing},
    {300, 130, 600, true, false, 1, false, Data::late},
    {16, 70, 1100, false, true, 1, true, Data::flagged},  // few rows that each block splits
    {70, 14, 600, true, true, 1, false, Data::flagged},
    {5, 70, 700, false, false, 1, false, Data::flagged_columns},
    {3, 20, 8000, false, true, 1, false, Data::flagged_ends, 132},
    {2, 70, 1600, false, true, 1, false, Data::overflowing},
    {40, 70, 1600, false, true, 1, false, Data::overflowing},
    {70, 66, 1600, false, true, 1, false, Data::overflowing},
    {1, 70, 5000, false, true, 1, false, Data::normal, 1},  // many chunks for a block
    {13, 14, 16616, false, false, 1, false, Data::flagged, 132},
    {66, 260, 1500, true, false, 1, true, Data::normal, 2},    // two whole tiles and one by chunks
    {260, 66, 1100, false, true, 1, true, Data::flagged, 16},  // all by chunks, in pairs
    {66, 129, 1500, false, false, 3, false, Data::normal, 4},  // tiles of the last item by chunks
    {3, 20, 16616, true, true, 2, true, Data::normal, 132},    // three groups
    {2, 130, 4200, false, true, 1, true, Data::wide, 4},       // clusters of three, three rounds of chunks
    // 16 bits beside fp32: tiles of either side, several chunks side by side; few rows that have them, few columns that
    // do not; groups of k.
    {130, 140, 1034, false, true, 1, true, Data::flagged, 4, DType::bf16},
    {257, 130, 602, true, false, 2, true, Data::wide, 4, DType::f32, DType::f16},
    {140, 131, 1100, true, true, 1, false, Data::flagged, 16, DType::f32, DType::bf16},
    {16, 70, 1100, false, true, 1, true, Data::flagged, 4, DType::bf16},
    {33, 140, 530, true, true, 1, true, Data::flagged, 4, DType::f16},
    {70, 20, 600, false, false, 1, false, Data::wide, 4, DType::bf16},
    {20, 70, 8232, false, true, 1, false, Data::flagged, 4, DType::f32, DType::bf16},
    {66, 70, 8232, true, false, 1, false, Data::cancelling, 132, DType::f16},
};

// Of a row of A, or a column of B, a group of k as terms.
struct Group {
  std::vector<float> x, first, second, scales;
  bool is_flagged = false;
};
using Row = std::vector<Group>;

Group split(std::vector<float> x, DType dtype) {
  const bool is_short = dtype != DType::f32;
  const int top = is_short ? 15 : 14, range = dtype == DType::bf16 ? 32 : 40;
  Group group;
  const size_t padded = size_t(round_up(int64_t(x.size()), kSplitBlockK));
  for (size_t chunk = 0; chunk < x.size(); chunk += kSplitChunkK) {
    const size_t end = std::min(x.size(), chunk + kSplitChunkK);
    float largest = 0;
    bool is_finite = true;
    for (size_t i = chunk; i < end; ++i) largest = std::max(largest, std::fabs(x[i])), is_finite &= std::isfinite(x[i]);
    const int exponent = largest > 0 && is_finite ? std::ilogb(largest) : 0;
    const bool is_in_range = largest > 0 && is_finite && exponent >= -60 && exponent < 60;
    group.is_flagged |= !is_finite || (largest > 0 && !is_in_range);
    group.scales.push_back(std::ldexp(1.0f, is_in_range ? exponent - top : 0));
    for (size_t i = chunk; i < std::min(padded, chunk + kSplitChunkK); ++i) {
      const float scaled = i < end && is_in_range ? x[i] / group.scales.back() : 0;
      group.is_flagged |= scaled != 0 && std::fabs(scaled) < std::ldexp(1.0f, top - range);
      group.first.push_back(__half2float(__float2half_rn(scaled)));
      // One term is all of 16 bits.
      group.second.push_back(is_short ? 0 : __half2float(__float2half_rn((scaled - group.first.back()) * 2048)));
    }
  }
  group.x = std::move(x);
  return group;
}

float multiply_plainly(const Group& a, const Group& b) {
  const size_t k = a.x.size(), chunk_k = size_t(flagged_chunk_k(int64_t(k)));
  float total = -0.0f, lost = 0;
  for (size_t chunk = 0; chunk < k; chunk += chunk_k) {
    float sum = 0;
    for (size_t i = chunk; i < std::min(k, chunk + chunk_k); ++i) sum = std::fma(a.x[i], b.x[i], sum);
    const float next = total + sum, added = next - total;
    lost = __uint_as_float(__float_as_uint(lost + ((total - (next - added)) + (sum - added))) & 0xffff0000u);
    total = next;
  }
  return std::isfinite(total) ? total + lost : total;
}

// Sums of 16 at a time from `from` on.
float add_terms(float sum, const std::vector<float>& a, const std::vector<float>& b, size_t from, size_t count) {
  for (size_t i = from; i < from + count; i += 16) sum = emulator::add_products(sum, &a[i], &b[i]);
  return sum;
}

float multiply(const Group& a, const Group& b) {
  if (a.is_flagged || b.is_flagged) return multiply_plainly(a, b);
  float total = -0.0f;
  for (size_t chunk = 0; chunk < a.first.size(); chunk += kSplitChunkK) {
    const size_t end = std::min(a.first.size(), chunk + kSplitChunkK);
    float sum = 0, corrections = 0;
    for (size_t i = chunk; i < end; i += kSplitSumK) sum += add_terms(0, a.first, b.first, i, kSplitSumK);
    for (size_t i = chunk; i < end; i += kSplitBlockK) {
      corrections = add_terms(corrections, a.second, b.first, i, kSplitBlockK);
      corrections = add_terms(corrections, a.first, b.second, i, kSplitBlockK);
    }
    total +=
        std::fma(corrections, 1.0f / 2048, sum) * (a.scales[chunk / kSplitChunkK] * b.scales[chunk / kSplitChunkK]);
  }
  return total;
}

float multiply(const Row& a, const Row& b) {
  float total = multiply(a[0], b[0]);
  for (size_t group = 1; group < a.size(); ++group) total += multiply(a[group], b[group]);
  return total;
}

// Of a batch; with elements that nothing may read between the rows, which are aligned where their sizes are even.
struct Operand {
  int rows, k;
  bool is_turned;  // whether k does not lie along memory
  DType dtype;
  std::vector<float> memory;           // the values
  std::vector<uint16_t> short_memory;  // those of 16 bits as the kernel gets them

  int margin(int size) const {
    if (dtype == DType::f32) return size % 4 == 2 ? 6 : 4;
    return size % 2 ? 7 : 16 - size % 8;
  }
  const void* data() const {
    return dtype == DType::f32 ? static_cast<const void*>(memory.data()) : short_memory.data();
  }

  int64_t stride_row() const { return is_turned ? 1 : k + margin(k); }
  int64_t stride_k() const { return is_turned ? rows + margin(rows) : 1; }
  int64_t stride_item() const { return is_turned ? k * stride_k() : rows * stride_row(); }

  Operand(int rows, int k, int batch, bool is_turned, bool is_b, Data data, DType dtype, std::mt19937& random)
      : rows(rows),
        k(k),
        is_turned(is_turned),
        dtype(dtype),
        memory(size_t(batch * stride_item()), emulator::kGarbage) {
    fill(batch, is_b, data, random);
    if (dtype == DType::f32) return;
    for (float& x : memory) {
      short_memory.push_back(uint16_t(rounded(dtype, x)));
      x = to_float(dtype, short_memory.back());
    }
  }
  void fill(int batch, bool is_b, Data data, std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (int item = 0; item < batch; ++item) {
      for (int row = 0; row < rows; ++row) {
        float first = 0;  // of a pair, whose products have unlike signs
        for (int i = 0; i < k; ++i) {
          if (i % 2 == 0) first = 1 + std::ldexp(float(random() % 1024), -10);
          const int block = i % kSplitChunkK / kSplitBlockK;
          const bool is_odd = i / kSplitChunkK % 2;
          // Sums of chunks are -1.1 * 2^127, 1.1 * 2^128, -1.1 * 2^128, and that of a rest of small numbers.
          const float large = std::ldexp(1.5f, is_b && i < kSplitChunkK ? 58 : 59);
          const float x = normal(random), sign = i % 2 && !is_b ? -1 : 1;
          at(item, row, i) = data == Data::wide           ? x * std::exp(4 * normal(random))
                             : data == Data::cancelling   ? sign * first + std::ldexp(x, -14)
                             : data == Data::growing      ? std::ldexp(x, block)
                             : data == Data::overflowing  ? (i >= 3 * kSplitChunkK ? x
                                                             : is_b && !is_odd     ? -large
                                                                                   : large)
                             : data == Data::late && is_b ? std::ldexp(x, block || is_odd ? 21 : -i % 8)
                             : data == Data::late         ? is_odd  ? std::ldexp(x, -30)
                                                            : block ? 0
                                                                    : x
                                                          : x;
        }
      }
    }
    if ((data == Data::flagged_late || data == Data::flagged_ends) && !is_b) at(0, 1, k - 1) = INFINITY;
    if (data == Data::flagged_ends && !is_b) at(0, 2, 5) = INFINITY;
    if (data != Data::flagged && !(data == Data::flagged_columns && is_b)) return;
    at(0, 1, k - 1) = INFINITY;
    at(0, 5, 0) = NAN;
    at(0, 7, k / 2) = std::ldexp(1.0f, -45);  // too small in its block
    at(0, rows - 1, 3) = std::ldexp(1.0f, 60);
    for (int i = 0; i < k; ++i) at(0, 9, i) = std::ldexp(at(0, 9, i), -64), at(0, 11, i) = 0;
    at(0, 12, k - 1) = std::ldexp(1.0f, -26);                 // small, but not too small
    if (rows > 13) at(0, 13, k - 1) = std::ldexp(1.0f, -36);  // too small for bf16
    for (int i = 0; rows > 14 && i < k; ++i)
      at(0, 14, i) = i % kSplitChunkK == 0 ? 1.5f : std::ldexp(255.0f, -39);  // as small as bf16 may be
    for (int i = 0; rows > 15 && i < k; i += kSplitChunkK) at(0, 15, i) = 0;  // sums of those alone
    for (int i = kSplitChunkK / 2; i < min_of(k, kSplitChunkK); ++i) at(0, 3, i) = std::ldexp(at(0, 3, i), -45);
  }
  float& at(int item, int row, int i) {
    return memory[size_t(item * stride_item() + row * stride_row() + i * stride_k())];
  }
  std::vector<Row> split_rows(int item) {
    std::vector<Row> split_rows;
    for (int row = 0; row < rows; ++row) {
      Row& groups = split_rows.emplace_back();
      for (int first = 0; first < k; first += int(kSplitGroupK)) {
        std::vector<float> x;
        for (int i = first; i < min_of(k, first + int(kSplitGroupK)); ++i) x.push_back(at(item, row, i));
        groups.push_back(split(x, dtype));
      }
    }
    return split_rows;
  }
};

bool is_same(float x, float y) { return (x != x && y != y) || __float_as_uint(x) == __float_as_uint(y); }

bool run(const Case& c) {
  std::mt19937 random(unsigned(c.m * c.n * c.k));
  Operand a(c.m, c.k, c.batch, c.is_a_turned, false, c.data, c.dtype_a, random);
  Operand b(c.n, c.k, c.batch, !c.is_b_turned, true, c.data, c.dtype_b, random);
  const int ldc = c.n + 3;
  std::vector<float> out(size_t(c.batch * c.m * ldc), emulator::kGarbage), bias(size_t(c.batch * c.m * c.n));
  for (float& x : bias) x = std::normal_distribution<float>()(random);
  constexpr float kAlpha = -1.75f, kBeta = 0.3f;
  const bool is_matrix = c.has_bias && c.batch > 1;
  FoldedProblem problem{};
  GemmProblem& p = problem.gemm;
  p.m = c.m, p.n = c.n, p.k = c.k;
  p.dtype_a = c.dtype_a, p.dtype_b = c.dtype_b;
  p.a = a.data(), p.stride_am = a.stride_row(), p.stride_ak = a.stride_k();
  p.b = b.data(), p.stride_bk = b.stride_k(), p.stride_bn = b.stride_row();
  p.c = out.data(), p.stride_cm = ldc, p.stride_cn = 1;
  p.num_batch_dims = c.batch > 1;
  if (c.has_bias) p.bias = bias.data(), p.stride_bias_n = 1, p.activation = Activation::relu;
  if (is_matrix) p.stride_bias_m = c.n, p.alpha = kAlpha, p.beta = kBeta;
  problem.batch_size = c.batch;
  problem.batch_dims[0] = {c.batch, a.stride_item(), b.stride_item(), int64_t(c.m) * ldc,
                           is_matrix ? int64_t(c.m) * c.n : 0};
  Plan plan;
  SplitCosts costs = kSplitCosts[0].costs;
  costs.few_block = costs.few_row = 0;  // few rows are left to their kernel
  plan.as<SplitPlan>() = plan_split(costs, problem, c.num_sms, plan.cost_us);
  // The caller's large operand, for which the kernel that splits few rows has waited.
  const SplitWork first = lay_out(first_groups(problem), plan.as<SplitPlan>().first);
  emulator::may_copy_early = first.late != SplitLate::none && first.workspace_bytes() > 0;
  Workspaces workspaces;
  const Executor executor = executor_of(workspaces, c.num_sms);
  if (gpu::launch_wgmma_split(problem, plan, executor) != Status::ok) return false;
  int64_t num_wrong = 0;
  for (int item = 0; item < c.batch; ++item) {
    const std::vector<Row> rows = a.split_rows(item), cols = b.split_rows(item);
    for (int i = 0; i < c.m; ++i) {
      for (int j = 0; j < ldc; ++j) {
        float expected = emulator::kGarbage;  // what lies between C's rows stays as it was
        if (j < c.n) expected = multiply(rows[size_t(i)], cols[size_t(j)]);
        if (j < c.n && is_matrix)
          expected = std::fma(kAlpha, expected, kBeta * bias[size_t((item * c.m + i) * c.n + j)]);
        if (j < c.n && c.has_bias)
          expected = activate<Activation::relu>(is_matrix ? expected : expected + bias[size_t(j)]);
        const float found = out[size_t((item * c.m + i) * ldc + j)];
        if (!is_same(expected, found) && num_wrong++ == 0)
          std::printf("C[%d][%d, %d] is %g instead of %g; ", item, i, j, double(found), double(expected));
      }
    }
  }
  std::printf("%d x %d x %d: %s\n", c.m, c.n, c.k, num_wrong == 0 ? "right" : "wrong");
  std::fflush(stdout);
  return num_wrong == 0;
}

}  // namespace

int main(int argc, char** argv) { return run_chosen(argc, argv, kCases, run); }

// wgmma_fp8_grouped by the emulated Hopper, against the model of wgmma_fp8, group by group: every bit of C and of what
// lies around it. Factors are read where they are, and those of B only of groups that have rows. Arguments: the numbers
// of the cases, all without.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <type_traits>
#include <vector>

#include "core/plan.h"
#include "core/problem.h"
#include "fp8_model.h"
#include "kernels/cuda/wgmma/fp8_grouped_plan.h"

namespace {

using namespace tiledmm;

struct Case {
  TileShape shape;
  Factors factors;
  int n, k;
  std::vector<int> ends;  // of groups, as the kernel gets them
  int size;               // rows of all of them
  DType a = E4M3, b = E4M3, c = DType::bf16;
  char bias = ' ';  // of all groups 'n', of each group 'g'
  Activation activation = Activation::none;
  bool is_b_along_n = false;
  bool are_factors_along_rows = false;  // neighbours along m and n, not along k
  int margin = 16, margin_c = 8;        // elements between rows; odd: not for the copy engine
  int num_sms = 4;
  bool is_valid = true;  // else offsets decrease or pass the end: then nothing outside of C may change
};

const Case kCases[] = {
    // Groups that are empty, of one row, of a tile, larger; rows behind the last one. C by threads and the copy engine.
    {.shape = {64, 128},
     .factors = Factors::rows,
     .n = 200,
     .k = 200,
     .ends = {0, 1, 1, 65, 200, 264, 264},
     .size = 300,
     .bias = 'g',
     .activation = Activation::silu},
    {.shape = {128, 256},
     .factors = Factors::blocks,
     .n = 520,
     .k = 456,
     .ends = {130, 130, 131, 389, 420},
     .size = 420,
     .c = DType::f16,
     .bias = 'n',
     .activation = Activation::relu},
    // More groups than a warp has lanes, of one row each.
    {.shape = {64, 128},
     .factors = Factors::blocks,
     .n = 136,
     .k = 136,
     .ends = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20,
              21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40},
     .size = 40,
     .bias = 'g',
     .are_factors_along_rows = true,
     .num_sms = 7},
    // Operands that are repacked, the Bs of all groups among them; a C that threads store.
    {.shape = {128, 128},
     .factors = Factors::blocks,
     .n = 131,
     .k = 199,
     .ends = {70, 70, 210},
     .size = 210,
     .is_b_along_n = true,
     .margin = 1,
     .margin_c = 1},
    // Bands of rows of tiles; little to multiply between their stores.
    {.shape = {128, 128}, .factors = Factors::rows, .n = 264, .k = 24, .ends = {3, 2403}, .size = 2403, .num_sms = 2},
    // Pairs of k tiles in a stage, of which the last one has no second.
    {.shape = {64, 64},
     .factors = Factors::blocks,
     .n = 200,
     .k = 384,
     .ends = {1, 3, 3, 100},
     .size = 103,
     .bias = 'g'},
    // Narrow tiles, which threads store from registers.
    {.shape = {64, 32}, .factors = Factors::rows, .n = 75, .k = 1000, .ends = {0, 1, 1, 9}, .size = 9, .margin_c = 3},
    {.shape = {64, 32}, .factors = Factors::blocks, .n = 200, .k = 300, .ends = {2, 2, 69}, .size = 70},
    // Two parts of the columns, of 96 each.
    {.shape = {128, 192}, .factors = Factors::rows, .n = 392, .k = 520, .ends = {131, 400, 401}, .size = 401},
    // Nothing but rows behind the last group; one group.
    {.shape = {128, 256}, .factors = Factors::rows, .n = 264, .k = 128, .ends = {0, 0, 0}, .size = 70, .bias = 'g'},
    {.shape = {128, 256}, .factors = Factors::rows, .n = 264, .k = 128, .ends = {150}, .size = 150},
    // fp32.
    {.shape = {128, 128},
     .factors = Factors::blocks,
     .n = 200,
     .k = 264,
     .ends = {3, 3, 134, 150},
     .size = 160,
     .c = DType::f32,
     .bias = 'g',
     .activation = Activation::gelu},
    {.shape = {64, 64},
     .factors = Factors::rows,
     .n = 77,
     .k = 140,
     .ends = {3, 70},
     .size = 75,
     .b = E5M2,
     .c = DType::f32,
     .margin_c = 3},
    // Other mixes.
    {.shape = {128, 128},
     .factors = Factors::rows,
     .n = 136,
     .k = 264,
     .ends = {3, 140},
     .size = 140,
     .a = E5M2,
     .c = DType::f16},
    {.shape = {64, 64}, .factors = Factors::rows, .n = 72, .k = 264, .ends = {3, 80}, .size = 80, .a = E5M2, .b = E5M2},
    // Offsets that decrease, are negative or pass the end.
    {.shape = {64, 128},
     .factors = Factors::blocks,
     .n = 136,
     .k = 72,
     .ends = {50, 20, 90, -5, 1000, 30},
     .size = 100,
     .is_valid = false},
};

}  // namespace

#include "kernels/cuda/wgmma/fp8_grouped.h"
#include "kernels/cuda/wgmma/fp8_grouped_launch_sm90a.cu"
#include "run_cases.h"

namespace {

// W: as wide as an element of C.
template <class W>
struct Run {
  const Case& c;
  bool is_of_blocks;
  int groups, num_scales_k, num_scales_b;
  Matrix<uint8_t> a, b;
  Matrix<uint32_t> scale_a, scale_b;
  Matrix<W> c_memory, bias;
  FoldedProblem problem{};

  explicit Run(const Case& c)
      : c(c),
        is_of_blocks(c.factors == Factors::blocks),
        groups(int(c.ends.size())),
        num_scales_k(is_of_blocks ? int(ceil_div(c.k, kScaledK)) : 1),
        num_scales_b(is_of_blocks ? int(ceil_div(c.n, kScaledK)) : c.n),
        a(c.size, c.k, false, margin_of_8_bits(c.k, c.margin), 1),
        b(c.k, c.n, !c.is_b_along_n, margin_of_8_bits(c.is_b_along_n ? c.n : c.k, c.margin), groups),
        scale_a(c.size, num_scales_k, c.are_factors_along_rows, 3, 1),
        scale_b(num_scales_b, num_scales_k, c.are_factors_along_rows, 5, groups),
        c_memory(c.size, c.n, false, c.margin_c, 1),
        bias(groups, c.n, false, 3, 1) {
    std::mt19937 random(unsigned(c.size * c.n + c.k));
    const float unit = c.c == DType::f16 ? 0x1p-6f : 1;  // so that few results are infinite
    std::uniform_real_distribution<float> factor(0.125f * unit, 8 * unit);
    std::normal_distribution<float> normal;
    // Of rows of no group, and of groups without rows, everything is NaN.
    const int end = c.is_valid ? c.ends.back() : c.size;
    for (int row = 0; row < end; ++row) {
      for (int i = 0; i < c.k; ++i) a.at(0, row, i) = random_bits(c.a, random);
      for (int i = 0; i < num_scales_k; ++i) scale_a.at(0, row, i) = __float_as_uint(factor(random));
    }
    for (int group = 0; group < groups; ++group) {
      if (!has_rows(group)) continue;
      for (int col = 0; col < c.n; ++col) {
        for (int i = 0; i < c.k; ++i) b.at(group, i, col) = random_bits(c.b, random);
        bias.at(0, group, col) = W(rounded(c.c, 4 * normal(random)));
      }
      for (int row = 0; row < num_scales_b; ++row) {
        for (int i = 0; i < num_scales_k; ++i) scale_b.at(group, row, i) = __float_as_uint(factor(random));
      }
    }
    GemmProblem& p = problem.gemm;
    p.m = c.size, p.n = c.n, p.k = c.k;
    p.a = a.data(), p.stride_am = a.stride_row, p.stride_ak = a.stride_col;
    p.b = b.data(), p.stride_bk = b.stride_row, p.stride_bn = b.stride_col;
    p.c = c_memory.data(), p.stride_cm = c_memory.stride_row, p.stride_cn = 1;
    p.dtype_a = c.a, p.dtype_b = c.b, p.dtype_c = p.dtype_bias = c.c;
    if (c.bias != ' ') p.bias = bias.data(), p.stride_bias_n = 1;
    p.activation = c.activation;
    p.scaling = is_of_blocks ? Scaling::blocks : Scaling::rows;
    const auto scales_of = [&](Matrix<uint32_t>& own, int rows_of_block, int64_t stride_group) {
      return Scales{reinterpret_cast<const float*>(own.data()), own.stride_row, is_of_blocks ? own.stride_col : 0,
                    rows_of_block, int32_t(stride_group)};
    };
    p.scale_a = scales_of(scale_a, 1, 0);
    p.scale_b = scales_of(scale_b, is_of_blocks ? kScaledK : 1, scale_b.stride_item);
    p.grouping = Grouping::rows, p.group_ends = c.ends.data(), p.num_batch_dims = 1;
    problem.batch_size = 1;
    problem.batch_dims[0] = {groups, 0, b.stride_item, 0, c.bias == 'g' ? bias.stride_row : 0};
    problem.chunk_k = c.k;
    problem.asked_n = c.n;
  }

  bool has_rows(int group) const {
    return !c.is_valid || c.ends[size_t(group)] > (group ? c.ends[size_t(group) - 1] : 0);
  }
  float factor_a(int row, int k_block) { return __uint_as_float(scale_a.at(0, row, k_block)); }
  float factor_b(int group, int col, int k_block) {
    return __uint_as_float(scale_b.at(group, is_of_blocks ? col / kScaledK : col, k_block));
  }

  // Whether an address is that of a factor that some row has.
  bool is_factor(const void* address) {
    const auto is_inside = [&](Matrix<uint32_t>& own, int item, int rows) {
      const int64_t idx = static_cast<const uint32_t*>(address) - &own.at(item, 0, 0);
      const int64_t ld = std::max(own.stride_row, own.stride_col);
      const int64_t inner = own.stride_row == 1 ? rows : num_scales_k,
                    outer = own.stride_row == 1 ? num_scales_k : rows;
      return idx >= 0 && idx / ld < outer && idx % ld < inner;
    };
    bool is_found = is_inside(scale_a, 0, c.size);
    for (int group = 0; group < groups; ++group)
      is_found = is_found || (has_rows(group) && is_inside(scale_b, group, num_scales_b));
    return is_found;
  }

  // What is to be in memory.
  void compute() {
    for (int group = 0, begin = 0; group <= groups; begin = group < groups ? c.ends[size_t(group)] : begin, ++group) {
      const bool is_behind = group == groups;
      std::vector<std::vector<float>> cols;
      for (int col = 0; col < c.n && !is_behind; ++col)
        cols.push_back(numbers(c.b, c.k, [&](int i) { return b.at(group, i, col); }));
      for (int row = begin; row < (is_behind ? c.size : c.ends[size_t(group)]); ++row) {
        const std::vector<float> own = numbers(c.a, c.k, [&](int i) { return a.at(0, row, i); });
        for (int col = 0; col < c.n; ++col) {
          float x = is_behind ? 0 : promoted_sum(own, cols[size_t(col)], is_of_blocks, [&](int block) {
            return factor_a(row, block) * factor_b(group, col, block);
          });
          if (c.bias != ' ' && !is_behind) x += to_float(c.c, bias.at(0, c.bias == 'g' ? group : 0, col));
          c_memory.at(0, row, col) = W(rounded(c.c, is_behind ? 0 : activated(c.c, c.activation, x)));
        }
      }
    }
  }

  bool is_in_c(int64_t idx) const {
    const int64_t within = idx - Matrix<W>::kGuard;
    return within >= 0 && within / c_memory.stride_row < c.size && within % c_memory.stride_row < c.n;
  }

  bool is_like(Run& expected) {
    for (int64_t i = 0; i < c_memory.size; ++i) {
      const W x = c_memory.begin()[i], y = expected.c_memory.begin()[i];
      if (x == y || (!c.is_valid && is_in_c(i))) continue;
      std::printf("C[%d] is %g instead of %g; ", int(i - Matrix<W>::kGuard), double(to_float(c.c, x)),
                  double(to_float(c.c, y)));
      return false;
    }
    const auto is_same = [](auto& found, auto& wanted) {
      return std::equal(found.begin(), found.begin() + found.size, wanted.begin());
    };
    return is_same(a, expected.a) && is_same(b, expected.b) && is_same(bias, expected.bias) &&
           is_same(scale_a, expected.scale_a) && is_same(scale_b, expected.scale_b);
  }
};

template <class W>
bool run_of(const Case& c) {
  Run<W> expected(c), own(c);
  if (c.is_valid) expected.compute();
  emulator::may_read = [&](const void* address) { return own.is_factor(address); };
  std::vector<Plan> plans;
  PlanSearch all(plans);
  for_each_fp8_grouped_plan(own.problem, kFp8Costs[0].costs, kGroupedCosts[0].costs, c.num_sms, all);
  int num_plans = 0;
  bool is_right = false;
  for (const Plan& plan : plans) {
    const TileShape& shape = kFp8Tiles[plan.as<WgmmaGroupedPlan>().tile].shape;
    if (shape.block_m != c.shape.block_m || shape.block_n != c.shape.block_n) continue;
    Workspaces workspaces;
    ++num_plans;
    is_right = gpu::launch_wgmma_fp8_grouped(own.problem, plan, executor_of(workspaces, c.num_sms)) == Status::ok &&
               own.is_like(expected);
  }
  is_right = is_right && num_plans == 1;
  std::printf("%d groups of %d by %d x %d, factors %d, %s\n", own.groups, c.size, c.shape.block_m, c.shape.block_n,
              int(c.factors), is_right ? "right" : "wrong");
  std::fflush(stdout);
  return is_right;
}
bool run(const Case& c) { return c.c == DType::f32 ? run_of<uint32_t>(c) : run_of<uint16_t>(c); }

}  // namespace

int main(int argc, char** argv) { return run_chosen(argc, argv, kCases, run); }

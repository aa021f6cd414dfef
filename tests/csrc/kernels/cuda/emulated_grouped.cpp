// wgmma_grouped by the emulated Hopper, against a model of its order of summation: every bit of C and of what lies
// around it. Arguments: the numbers of the cases, all without.
#include <cmath>
#include <cstdio>
#include <random>
#include <type_traits>
#include <vector>

#include "core/plan.h"
#include "core/problem.h"
#include "kernels/cuda/wgmma/grouped_plan.h"

namespace {

using namespace tiledmm;

struct Case {
  TileShape tile;
  int n, k;               // k: where groups are of rows
  std::vector<int> ends;  // of groups, as the kernel gets them; none: one product
  int size;               // rows, or k, of all of them
  Grouping grouping = Grouping::rows;
  int m = 0;  // where groups are of k
  bool is_b_along_n = false, is_gated = false, keeps_sums = false;
  int chunk_k = 0;  // 0: one chunk
  DType dtype = DType::bf16;
  char bias = ' ';  // of all groups 'n', of each group 'g', of up alone 'u'
  Activation activation = Activation::none;
  int margin = 8, margin_c = 8;  // elements between rows; odd: not for the copy engine
  int num_sms = 4;
  bool is_valid = true;  // else offsets decrease or pass the end: then nothing outside of C may change
};

const Case kCases[] = {
    // Groups that are empty, of one row, of a tile, larger; rows behind the last one. C by threads and the copy engine.
    {.tile = {64, 128}, .n = 200, .k = 200, .ends = {0, 1, 1, 65, 200, 264, 264}, .size = 300},
    {.tile = {128, 256},
     .n = 520,
     .k = 456,
     .ends = {130, 130, 131, 389, 420},
     .size = 420,
     .is_b_along_n = true,
     .dtype = DType::f16,
     .bias = 'n',
     .activation = Activation::relu},
    // More groups than a warp has lanes, of one row each, with a bias of their own.
    {.tile = {64, 128},
     .n = 136,
     .k = 72,
     .ends = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24,
              25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48,
              49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70},
     .size = 70,
     .bias = 'g',
     .activation = Activation::silu,
     .num_sms = 7},
    // Chunks of k; operands that the copy engine cannot take.
    {.tile = {128, 128}, .n = 150, .k = 700, .ends = {40, 200}, .size = 210, .chunk_k = 256},
    {.tile = {128, 128}, .n = 131, .k = 99, .ends = {70, 70, 210}, .size = 210, .margin = 1, .margin_c = 1},
    // Bands of rows of tiles.
    {.tile = {128, 128}, .n = 300, .k = 64, .ends = {3, 2403}, .size = 2403},
    {.tile = {64, 128}, .n = 300, .k = 64, .ends = {3, 2403}, .size = 2403, .is_b_along_n = true},
    // Pairs of k tiles in a stage.
    {.tile = {64, 64}, .n = 130, .k = 200, .ends = {1, 3, 3, 100}, .size = 103, .bias = 'g'},
    // Nothing but rows behind the last group; one group.
    {.tile = {64, 256}, .n = 264, .k = 128, .ends = {0, 0, 0}, .size = 70},
    {.tile = {64, 256}, .n = 264, .k = 128, .ends = {70}, .size = 70, .is_b_along_n = true},
    // Gated groups, and gated layers of one product.
    {.tile = {64, 128},
     .n = 136,
     .k = 200,
     .ends = {3, 3, 131},
     .size = 140,
     .is_gated = true,
     .bias = 'g',
     .activation = Activation::silu},
    {.tile = {128, 256},
     .n = 264,
     .k = 320,
     .ends = {130, 131, 389},
     .size = 400,
     .is_b_along_n = true,
     .is_gated = true,
     .dtype = DType::f16,
     .activation = Activation::gelu},
    {.tile = {128, 256},
     .n = 392,
     .k = 520,
     .ends = {},
     .size = 300,
     .is_gated = true,
     .bias = 'n',
     .activation = Activation::relu},
    {.tile = {64, 128},
     .n = 75,
     .k = 520,
     .ends = {},
     .size = 3,
     .is_gated = true,
     .chunk_k = 256,
     .bias = 'u',
     .activation = Activation::gelu_tanh},
    {.tile = {64, 64},
     .n = 107,
     .k = 200,
     .ends = {3, 3, 100},
     .size = 110,
     .is_gated = true,
     .activation = Activation::silu,
     .margin_c = 3},
    // Sums that are kept, of gated groups, a gated layer, groups and one product.
    {.tile = {128, 256},
     .n = 264,
     .k = 320,
     .ends = {130, 131, 389},
     .size = 400,
     .is_gated = true,
     .keeps_sums = true,
     .bias = 'g',
     .activation = Activation::silu},
    {.tile = {64, 64},
     .n = 107,
     .k = 200,
     .ends = {},
     .size = 103,
     .is_gated = true,
     .keeps_sums = true,
     .dtype = DType::f16,
     .activation = Activation::relu,
     .margin_c = 3},
    {.tile = {128, 128},
     .n = 200,
     .k = 200,
     .ends = {0, 1, 65, 200},
     .size = 300,
     .keeps_sums = true,
     .bias = 'n',
     .activation = Activation::gelu},
    {.tile = {64, 128},
     .n = 261,
     .k = 520,
     .ends = {},
     .size = 200,
     .is_b_along_n = true,
     .keeps_sums = true,
     .chunk_k = 256,
     .bias = 'n',
     .activation = Activation::silu},
    // Groups of k: empty, shorter than a k tile, of whole ones, longer; k behind the last group.
    {.tile = {128, 128},
     .n = 200,
     .k = 0,
     .ends = {0, 1, 65, 65, 129, 300, 370},
     .size = 400,
     .grouping = Grouping::k,
     .m = 136,
     .is_b_along_n = true},
    {.tile = {128, 256},
     .n = 300,
     .k = 0,
     .ends = {10, 500, 500, 501},
     .size = 501,
     .grouping = Grouping::k,
     .m = 72,
     .is_b_along_n = true,
     .dtype = DType::f16,
     .bias = 'g',
     .activation = Activation::relu,
     .margin_c = 3},
    {.tile = {128, 128}, .n = 70, .k = 0, .ends = {30, 77}, .size = 77, .grouping = Grouping::k, .m = 50, .margin = 1},
    // Offsets that decrease, are negative or pass the end.
    {.tile = {64, 128}, .n = 136, .k = 72, .ends = {50, 20, 90, -5, 1000, 30}, .size = 100, .is_valid = false},
    {.tile = {128, 128},
     .n = 136,
     .k = 0,
     .ends = {50, 20, 90, -5, 1000, 30},
     .size = 100,
     .grouping = Grouping::k,
     .m = 130,
     .is_b_along_n = true,
     .is_valid = false},
};

}  // namespace

#include "kernels/cuda/wgmma/grouped.h"
#include "kernels/cuda/wgmma/grouped_launch_sm90a.cu"
#include "matrices.h"
#include "run_cases.h"

namespace {

using Elements = Matrix<uint16_t>;

struct Run {
  const Case& c;
  bool is_of_k;
  int groups, m, k;
  Elements a, b, up, c_memory, bias, up_bias;
  Elements sums[2];  // that are kept: of the one product, or of gate and up
  FoldedProblem problem{};

  explicit Run(const Case& c)
      : c(c),
        is_of_k(c.grouping == Grouping::k),
        groups(int(c.ends.size())),
        m(is_of_k ? c.m : c.size),
        k(is_of_k ? c.size : c.k),
        a(m, k, is_of_k, c.margin, 1),
        b(k, c.n, !c.is_b_along_n, c.margin, is_of_k || groups == 0 ? 1 : groups),
        up(k, c.n, !c.is_b_along_n, c.margin, is_of_k || groups == 0 ? 1 : groups),
        c_memory(m, c.n, false, c.margin_c, is_of_k ? groups : 1),
        bias(std::max(groups, 1), c.n, false, 3, 1),
        up_bias(std::max(groups, 1), c.n, false, 3, 1),
        sums{{m, c.n, false, c.margin_c, 1}, {m, c.n, false, c.margin_c, 1}} {
    std::mt19937 random(unsigned(c.size * c.n));
    std::normal_distribution<float> normal;
    const auto next = [&] { return uint16_t(rounded(c.dtype, normal(random))); };
    for (int row = 0; row < m; ++row) {
      for (int i = 0; i < k; ++i) a.at(0, row, i) = next();
    }
    for (Elements* own : {&b, &up}) {
      for (int item = 0; item < (is_of_k || groups == 0 ? 1 : groups); ++item) {
        for (int i = 0; i < k; ++i) {
          for (int col = 0; col < c.n; ++col) own->at(item, i, col) = next();
        }
      }
    }
    // What no group has.
    const auto infinity = uint16_t(rounded(c.dtype, HUGE_VALF));
    for (int i = groups > 0 && is_of_k && c.is_valid ? c.ends.back() : k; i < k; ++i) {
      for (int row = 0; row < m; ++row) a.at(0, row, i) = infinity;
      for (int col = 0; col < c.n; ++col) b.at(0, i, col) = infinity;
    }
    for (Elements* own : {&bias, &up_bias}) {
      for (int group = 0; group < std::max(groups, 1); ++group) {
        for (int col = 0; col < c.n; ++col) own->at(0, group, col) = next();
      }
    }
    GemmProblem& p = problem.gemm;
    p.m = m, p.n = c.n, p.k = k;
    p.a = a.data(), p.stride_am = a.stride_row, p.stride_ak = a.stride_col;
    p.b = b.data(), p.stride_bk = b.stride_row, p.stride_bn = b.stride_col;
    if (c.is_gated) p.gated_b = up.data();
    p.c = c_memory.data(), p.stride_cm = c_memory.stride_row, p.stride_cn = 1;
    if (has_bias()) p.bias = bias.data();
    if (has_up_bias()) p.gated_bias = up_bias.data();
    p.stride_bias_n = c.bias != ' ';
    const auto from_c = [&](Elements& sum) {
      return (reinterpret_cast<intptr_t>(sum.data()) - reinterpret_cast<intptr_t>(c_memory.data())) / 2;
    };
    if (c.keeps_sums) p.sum_offset = from_c(sums[0]);
    if (c.keeps_sums && c.is_gated) p.up_sum_offset = from_c(sums[1]);
    p.set_dtypes(c.dtype), p.activation = c.activation;
    problem.batch_size = is_of_k ? groups : 1;
    problem.chunk_k = c.chunk_k ? c.chunk_k : k;
    problem.asked_n = c.n;
    if (groups > 0) {
      p.grouping = c.grouping, p.group_ends = c.ends.data(), p.num_batch_dims = 1;
      problem.batch_dims[0] = {groups, 0, is_of_k ? 0 : b.stride_item, is_of_k ? c_memory.stride_item : 0,
                               c.bias == 'g' ? bias.stride_row : 0};
    }
  }

  bool has_bias() const { return c.bias == 'n' || c.bias == 'g'; }
  bool has_up_bias() const { return c.is_gated && c.bias != ' '; }

  // Over elements from `first` up to `end` of k.
  float sum_of(Elements& own_b, int row, int col, int item, int first, int end) {
    std::vector<float> x(size_t(round_up(end - first, 16))), y(x.size());
    for (int i = first; i < end; ++i) {
      x[size_t(i - first)] = to_float(c.dtype, a.at(0, row, i));
      y[size_t(i - first)] = to_float(c.dtype, own_b.at(item, i, col));
    }
    return end > first ? sum_products(x, y, c.chunk_k ? c.chunk_k : int(x.size())) : 0;
  }

  void compute(int group, int row, int col, int first, int end, bool is_in_group) {
    const int item = is_of_k ? 0 : group;
    float x = is_in_group ? sum_of(b, row, col, item, first, end) : 0;
    const auto element_of = [&](Elements& own) { return to_float(c.dtype, own.at(0, c.bias == 'g' ? group : 0, col)); };
    if (is_in_group && has_bias()) x += element_of(bias);
    if (c.keeps_sums) sums[0].at(0, row, col) = uint16_t(rounded(c.dtype, x));
    if (is_in_group) x = activated(c.dtype, c.activation, x);
    if (c.is_gated) {
      const float sum = is_in_group ? sum_of(up, row, col, item, first, end) : 0;
      const float with_bias = sum + (is_in_group && has_up_bias() ? element_of(up_bias) : -0.0f);
      if (c.keeps_sums) sums[1].at(0, row, col) = uint16_t(rounded(c.dtype, with_bias));
      if (is_in_group) x *= with_bias;
    }
    c_memory.at(is_of_k ? group : 0, row, col) = uint16_t(rounded(c.dtype, x));
  }

  // What is to be in memory.
  void compute() {
    const std::vector<int> ends = groups > 0 ? c.ends : std::vector<int>{c.size};
    for (int group = 0, begin = 0; group <= int(ends.size()); begin = ends[size_t(group++)]) {
      const bool is_in_group = group < int(ends.size());
      const int end = is_in_group ? ends[size_t(group)] : c.size;
      for (int row = is_of_k ? 0 : begin; row < (is_of_k ? (is_in_group ? m : 0) : end); ++row) {
        for (int col = 0; col < c.n; ++col)
          compute(group, row, col, is_of_k ? begin : 0, is_of_k ? end : k, is_in_group);
      }
      if (!is_in_group) break;
    }
  }

  bool is_in_c(int64_t idx) {
    for (int item = 0; item < (is_of_k ? groups : 1); ++item) {
      const int64_t within = idx - Elements::kGuard - item * c_memory.stride_item;
      if (within >= 0 && within / c_memory.stride_row < m && within % c_memory.stride_row < c.n) return true;
    }
    return false;
  }

  bool is_like(const char* name, Elements& own, Elements& expected) {
    int64_t num_wrong = 0;
    for (int64_t i = 0; i < own.size; ++i) {
      const uint16_t x = own.begin()[i], y = expected.begin()[i];
      if (x == y || (!c.is_valid && is_in_c(i)) || num_wrong++ > 0) continue;
      std::printf("%s[%d] is %g instead of %g; ", name, int(i - Elements::kGuard), double(to_float(c.dtype, x)),
                  double(to_float(c.dtype, y)));
    }
    return num_wrong == 0;
  }
  bool is_like(Run& expected) {
    const bool is_c_right = is_like("C", c_memory, expected.c_memory);
    const bool is_sum_right = is_like("the sum", sums[0], expected.sums[0]);
    return is_like("up's sum", sums[1], expected.sums[1]) && is_sum_right && is_c_right;
  }
};

bool run(const Case& c) {
  Run expected(c), own(c);
  std::vector<Plan> plans;
  PlanSearch all(plans);
  for_each_grouped_plan(own.problem, kGroupedCosts[0].costs, c.num_sms, all);
  int num_plans = 0;
  bool is_right = false;
  if (c.is_valid) expected.compute();
  for (const Plan& plan : plans) {
    const TileShape& shape = kGroupedTileShapes[plan.as<WgmmaGroupedPlan>().tile];
    if (shape.block_m != c.tile.block_m || shape.block_n != c.tile.block_n) continue;
    Workspaces workspaces;
    ++num_plans;
    is_right = gpu::launch_wgmma_grouped(own.problem, plan, executor_of(workspaces, c.num_sms)) == Status::ok &&
               own.is_like(expected);
  }
  is_right = is_right && num_plans == 1;
  std::printf("%d groups of %d by %d x %d, %s\n", own.groups, c.size, c.tile.block_m, c.tile.block_n,
              is_right ? "right" : "wrong");
  return is_right;
}

}  // namespace

int main(int argc, char** argv) { return run_chosen(argc, argv, kCases, run); }

// wgmma_fp8_b by the emulated Hopper, against a model of its order of summation, which is skinny's: every bit of C and
// of what lies around it, of the operands and of the scales, which are read where they are, nowhere else. Arguments:
// the numbers of the cases, all without.
#include <cstdio>
#include <random>
#include <type_traits>
#include <vector>

#include "core/plan.h"
#include "core/problem.h"
#include "fp8_model.h"
#include "kernels/cuda/wgmma/fp8_b_plan.h"

namespace {

using namespace tiledmm;

struct Case {
  Fp8BTile tile;
  int m, n, k;
  int chunk_k = 0;  // 0: one chunk
  Fp8BSplit split = Fp8BSplit::none;
  DType dtype = DType::bf16, c = DType::bf16;
  bool has_bias = false;
  Activation activation = Activation::none;
  int margin_c = 8;  // elements between rows; odd: C is stored element by element
  int stride_scales = 1;
  bool has_every_value = false;  // of 8 bits, each times one
  int num_sms = 3;
};

constexpr Case kWritten[] = {
    // One row, chunks side by side; the ring goes around; the end of k within a stage.
    {.tile = {4, 8, 128},
     .m = 1,
     .n = 600,
     .k = 3 * 1024 - 80,
     .chunk_k = 1024,
     .split = Fp8BSplit::by_kernel,
     .num_sms = 6},
    // Consumers without rows; chunks one after the other; scales at distances; a C whose rows are not aligned.
    {.tile = {4, 16, 128},
     .m = 13,
     .n = 330,
     .k = 1312,
     .chunk_k = 512,
     .dtype = DType::f16,
     .c = DType::f32,
     .has_bias = true,
     .activation = Activation::gelu,
     .margin_c = 3,
     .stride_scales = 3,
     .num_sms = 2},
    // Several tiles for a block, of several rows of A.
    {.tile = {2, 32, 128},
     .m = 90,
     .n = 402,
     .k = 272,
     .c = DType::f16,
     .has_bias = true,
     .activation = Activation::silu,
     .num_sms = 3},
    // A thread's elements in groups of four, of which the last of a row are fewer.
    {.tile = {3, 64, 128}, .m = 61, .n = 250, .k = 640, .chunk_k = 256, .has_bias = true, .margin_c = 2},
    // A stage of one step of k; an odd number of them; chunks of which the last is short.
    {.tile = {2, 128, 64},
     .m = 150,
     .n = 200,
     .k = 848,
     .chunk_k = 256,
     .dtype = DType::f16,
     .has_bias = true,
     .activation = Activation::relu,
     .num_sms = 1},
    {.tile = {2, 256, 64}, .m = 300, .n = 136, .k = 576, .c = DType::f32, .has_bias = true, .num_sms = 2},
    {.tile = {2, 256, 64},
     .m = 129,
     .n = 72,
     .k = 1040,
     .chunk_k = 512,
     .split = Fp8BSplit::by_kernel,
     .dtype = DType::f16,
     .c = DType::f16,
     .has_bias = true,
     .activation = Activation::gelu_tanh},
    // One row, one column, one unit of k.
    {.tile = {2, 8, 128}, .m = 1, .n = 1, .k = 16, .c = DType::f32},
    {.tile = {2, 16, 128}, .m = 16, .n = 256, .k = 16, .c = DType::f32, .has_every_value = true},
    {.tile = {2, 16, 128}, .m = 16, .n = 256, .k = 16, .dtype = DType::f16, .c = DType::f32, .has_every_value = true},
};
constexpr int kNumWritten = int(std::size(kWritten));

// And one for each tile and each way to split k, so that a new one has some.
struct Cases {
  Case all[kNumWritten + 3 * kNumFp8BTiles];
  int count;
};
constexpr Cases make_cases() {
  Cases made{};
  for (const Case& own : kWritten) made.all[made.count++] = own;
  for (int i = 0; i < 3 * kNumFp8BTiles; ++i) {
    const Fp8BTile& tile = kFp8BTiles[i / 3];
    Case own{};
    own.tile = tile, own.split = Fp8BSplit(i % 3), own.dtype = i % 2 ? DType::bf16 : DType::f16;
    own.m = tile.block_n + (tile.block_n > 8 ? 3 : -1), own.n = 64 * tile.consumers + 9, own.k = 592;
    own.chunk_k = own.split != Fp8BSplit::none || sums_chunks(tile) ? 256 : 0;
    own.c = i % 4 == 0 ? DType::f32 : own.dtype;
    own.has_bias = i % 5 < 3;
    made.all[made.count++] = own;
  }
  return made;
}
constexpr Cases kCases = make_cases();

constexpr bool is_like(const Fp8BTile& a, const Fp8BTile& b) {
  return a.consumers == b.consumers && a.block_n == b.block_n && a.block_k == b.block_k;
}

// Whether there is a case that runs the kernel.
template <class Cfg>
constexpr bool is_compiled() {
  for (int i = 0; i < kCases.count; ++i) {
    if (is_like(kCases.all[i].tile, Cfg::kTile) &&
        (kCases.all[i].dtype == DType::f16) == std::is_same_v<typename Cfg::Element, Half>)
      return true;
  }
  return false;
}

}  // namespace

#include "kernels/cuda/wgmma/fp8_b.h"
#include "kernels/cuda/wgmma/fp8_b_launch_sm90a.cu"
#include "run_cases.h"

namespace {

// W: as wide as an element of C.
template <class W>
struct Run {
  const Case& c;
  Matrix<uint16_t> a;
  Matrix<uint8_t> b;
  Matrix<uint32_t> scales;
  Matrix<W> c_memory, bias;
  FoldedProblem problem{};

  explicit Run(const Case& c)
      : c(c),
        a(c.m, c.k, false, 8, 1),
        b(c.n, c.k, false, margin_of_8_bits(c.k, 16), 1),
        scales(1, c.n * c.stride_scales, false, 3, 1),
        c_memory(c.m, c.n, false, c.margin_c, 1),
        bias(1, c.n, false, 3, 1) {
    std::mt19937 random(unsigned(c.m * c.n + c.k));
    std::normal_distribution<float> normal;
    for (int i = 0; i < c.k; ++i) {
      // The products of odd rows of A cancel those of the first half of k, but for what rounding leaves of them.
      const int twin = i - c.k / 2;
      for (int row = 0; row < c.m; ++row)
        a.at(0, row, i) = c.has_every_value      ? uint16_t(rounded(c.dtype, 1))
                          : row % 2 && twin >= 0 ? uint16_t(a.at(0, row, twin) ^ 0x8000)
                                                 : uint16_t(rounded(c.dtype, normal(random)));
      for (int col = 0; col < c.n; ++col)
        b.at(0, col, i) = c.has_every_value ? (i == (col + col / 16) % 16 ? uint8_t(col) : 0)
                          : twin >= 0       ? b.at(0, col, twin)
                                            : random_bits(E4M3, random);
    }
    std::uniform_real_distribution<float> factor(0.125f, 8);
    for (int col = 0; col < c.n; ++col) {
      scales.at(0, 0, col * c.stride_scales) = __float_as_uint(c.has_every_value ? 1 : factor(random));
      bias.at(0, 0, col) = W(rounded(c.c, 64 * normal(random)));
    }
    GemmProblem& p = problem.gemm;
    p.m = c.m, p.n = c.n, p.k = c.k;
    p.a = a.data(), p.stride_am = a.stride_row, p.stride_ak = 1;
    p.b = b.data(), p.stride_bk = 1, p.stride_bn = b.stride_row;
    p.c = c_memory.data(), p.stride_cm = c_memory.stride_row, p.stride_cn = 1;
    p.dtype_a = c.dtype, p.dtype_b = E4M3, p.dtype_c = p.dtype_bias = c.c;
    if (c.has_bias) p.bias = bias.data(), p.stride_bias_n = 1;
    p.activation = c.activation;
    p.scaling = Scaling::rows;
    p.scale_b = {reinterpret_cast<const float*>(scales.data()), c.stride_scales, 0, 1};
    problem.batch_size = 1;
    problem.chunk_k = c.chunk_k ? c.chunk_k : c.k;
    problem.asked_n = c.n;
  }

  bool is_scale(const void* address) {
    const int64_t idx = static_cast<const uint32_t*>(address) - scales.data();
    return idx >= 0 && idx % c.stride_scales == 0 && idx / c.stride_scales < c.n;
  }

  // What is to be in memory.
  void compute() {
    const auto padded = size_t(round_up(c.k, 16));
    std::vector<std::vector<float>> cols;
    for (int col = 0; col < c.n; ++col) {
      cols.push_back(numbers(E4M3, c.k, [&](int i) { return b.at(0, col, i); }));
      cols.back().resize(padded);
    }
    for (int row = 0; row < c.m; ++row) {
      std::vector<float> own(padded);
      for (int i = 0; i < c.k; ++i) own[size_t(i)] = to_float(c.dtype, a.at(0, row, i));
      for (int col = 0; col < c.n; ++col) {
        float x = sum_products(own, cols[size_t(col)], int(problem.chunk_k));
        x *= __uint_as_float(scales.at(0, 0, col * c.stride_scales));
        if (c.has_bias) x += to_float(c.c, bias.at(0, 0, col));
        c_memory.at(0, row, col) = W(rounded(c.c, activated(DType::f32, c.activation, x)));
      }
    }
  }

  bool is_like(Run& expected) {
    const auto is_same = [&](const char* name, auto& found, auto& wanted) {
      for (int64_t i = 0; i < found.size; ++i) {
        const auto x = found.begin()[i], y = wanted.begin()[i];
        if (x == y) continue;
        if constexpr (std::is_same_v<decltype(&found), Matrix<W>*>) {
          if (is_nan(c.c, x) && is_nan(c.c, y)) continue;
        }
        std::printf("%s[%d] is %g instead of %g; ", name, int(i - found.kGuard), double(to_float(c.c, uint32_t(x))),
                    double(to_float(c.c, uint32_t(y))));
        return false;
      }
      return true;
    };
    return is_same("C", c_memory, expected.c_memory) && is_same("bias", bias, expected.bias) &&
           is_same("A", a, expected.a) && is_same("B", b, expected.b) && is_same("scales", scales, expected.scales);
  }
};

template <class W>
bool run_of(const Case& c) {
  Run<W> expected(c);
  expected.compute();
  std::vector<Plan> plans;
  PlanSearch all(plans);
  for_each_fp8_b_plan(kFp8BCosts[0].costs, expected.problem, c.num_sms, all);
  int num_plans = 0;
  bool is_right = true;
  for (const Plan& plan : plans) {
    const Fp8BPlan& made = plan.as<Fp8BPlan>();
    if (!is_like(kFp8BTiles[made.tile], c.tile) || made.split != c.split) continue;
    Workspaces workspaces;
    ++num_plans;
    Run<W> found(c);
    emulator::may_read = [&](const void* address) { return found.is_scale(address); };
    is_right = is_right &&
               gpu::launch_wgmma_fp8_b(found.problem, plan, executor_of(workspaces, c.num_sms)) == Status::ok &&
               found.is_like(expected);
  }
  emulator::may_read = nullptr;
  return is_right && num_plans > 0;
}

bool run(const Case& c) {
  std::printf("%d x %d x %d by %dx%dx%d: ", c.m, c.n, c.k, 64 * c.tile.consumers, c.tile.block_n, c.tile.block_k);
  std::fflush(stdout);
  const bool is_right = c.c == DType::f32 ? run_of<uint32_t>(c) : run_of<uint16_t>(c);
  std::printf("%s\n", is_right ? "right" : "wrong");
  return is_right;
}

}  // namespace

int main(int argc, char** argv) {
  bool is_right = true;
  if (argc == 1) {
    for (int i = 0; i < kCases.count; ++i) is_right = run(kCases.all[i]) && is_right;
    std::printf("%d cases\n", kCases.count);
  }
  for (int i = 1; i < argc; ++i) is_right = run(kCases.all[std::atoi(argv[i])]) && is_right;
  return is_right ? 0 : 1;
}

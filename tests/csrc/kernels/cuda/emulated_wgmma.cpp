// Rung 11, wgmma, in 16 bits, by the emulated Hopper, against a model of its order of summation: every bit of C, of the
// sums of A's rows, and of what lies around them. Arguments: the numbers of the cases, all without.
//
// Kernels are compiled for the cases alone. With TILEDMM_TILE, the number of one of kTileShapes, all kernels of that
// tile are, and problems about its edges are computed by every plan that the launcher takes.
#include <array>
#include <cstdio>
#include <random>
#include <type_traits>
#include <vector>

#include "core/plan.h"
#include "core/problem.h"
#include "kernels/cuda/11_wgmma/plan.h"

namespace {

using namespace tiledmm;

struct Case {
  TileShape tile{};
  int m, n, k;
  bool is_a_along_m = false, is_b_along_n = false;
  int chunk_k = 0;  // 0: one chunk
  bool splits_chunks = false, shares_tiles = false, pairs_m = false, pairs_n = false;
  int group_m = 0;
  DType dtype = DType::bf16;
  int batch = 1, repeats_of_b = 1;  // inner and outer dimension of the batch
  char bias = ' ';                  // of columns 'n', of rows 'm'
  Activation activation = Activation::none;
  bool sums_rows = false, is_c_along_m = false;
  int margin = 8, margin_c = 8;  // elements between rows; odd: not for the copy engine
  int num_sms = 4;
};

constexpr Case kCases[] = {
    // Several tiles for a block in rows of tiles; the ring goes around; C is stored by the threads.
    {.tile = {64, 96}, .m = 200, .n = 250, .k = 456, .bias = 'n', .activation = Activation::relu, .margin_c = 3},
    // The last wave in halves, C by the copy engine; the last tiles begin early.
    {.tile = {128, 256}, .m = 150, .n = 840, .k = 1032, .bias = 'm', .activation = Activation::silu, .num_sms = 6},
    // Neither operand along k, a narrow last box; chunks one after the other; a batch of two dimensions.
    {.tile = {128, 160},
     .m = 130,
     .n = 328,
     .k = 520,
     .is_a_along_m = true,
     .is_b_along_n = true,
     .chunk_k = 256,
     .batch = 2,
     .repeats_of_b = 2},
    // Pairs of pairs, three consumers, chunks side by side.
    {.tile = {192, 96},
     .m = 400,
     .n = 110,
     .k = 520,
     .is_b_along_n = true,
     .chunk_k = 256,
     .splits_chunks = true,
     .pairs_m = true,
     .pairs_n = true,
     .dtype = DType::f16,
     .bias = 'n',
     .num_sms = 8},
    // A grid of tiles, of which the last begin early; a batch.
    {.tile = {64, 32}, .m = 70, .n = 41, .k = 1100, .is_b_along_n = true, .batch = 3, .num_sms = 12},
    // Blocks of a cluster share a tile.
    {.tile = {64, 64},
     .m = 100,
     .n = 71,
     .k = 610,
     .is_a_along_m = true,
     .chunk_k = 256,
     .shares_tiles = true,
     .bias = 'n',
     .activation = Activation::relu,
     .num_sms = 40},
    // The sums of A's rows.
    {.tile = {128, 128},
     .m = 300,
     .n = 264,
     .k = 500,
     .is_a_along_m = true,
     .is_b_along_n = true,
     .chunk_k = 256,
     .pairs_m = true,
     .sums_rows = true,
     .num_sms = 6},
    // Operands that the copy engine cannot take, C along m; pairs of small tiles.
    {.tile = {64, 128}, .m = 260, .n = 150, .k = 99, .pairs_n = true, .is_c_along_m = true, .margin = 1, .num_sms = 4},
    // B along k in boxes of a width that is no multiple of 16; groups of rows of tiles.
    {.tile = {128, 168}, .m = 580, .n = 400, .k = 40, .group_m = 3, .bias = 'n'},
    // Four chunks by one block, and two.
    {.tile = {64, 96}, .m = 100, .n = 90, .k = 1000, .chunk_k = 256, .margin_c = 2},
    {.tile = {64, 96}, .m = 50, .n = 130, .k = 500, .chunk_k = 256},
    // The next tile is there before the last one is stored.
    {.tile = {128, 168}, .m = 300, .n = 400, .k = 40, .activation = Activation::gelu, .num_sms = 2},
};

// Whether there is a case that runs the kernel.
template <class Cfg, bool SHARES>
constexpr bool is_compiled() {
  if (sizeof(typename Cfg::T) != 2) return false;
  constexpr bool kIsBf16 = std::is_same_v<typename Cfg::T, __nv_bfloat16>;
#ifdef TILEDMM_TILE
  constexpr TileShape kShape = kTileShapes[TILEDMM_TILE];
  return Cfg::kBlockM == kShape.block_m && Cfg::kBlockN == kShape.block_n && kIsBf16 == bool(TILEDMM_IS_BF16);
#else
  for (const Case& c : kCases) {
    const bool is_built = always_built_with_pairs(c.tile) || Cfg::kPairs == (c.pairs_m || c.pairs_n);
    if (c.tile.block_m == Cfg::kBlockM && c.tile.block_n == Cfg::kBlockN && is_built &&
        kIsBf16 == (c.dtype == DType::bf16) && Cfg::kSumsRows == c.sums_rows && SHARES == c.shares_tiles &&
        Cfg::kAIsMMajor == (c.is_c_along_m ? c.is_b_along_n : c.is_a_along_m) &&
        Cfg::kBIsNMajor == (c.is_c_along_m ? c.is_a_along_m : c.is_b_along_n))
      return true;
  }
  return false;
#endif
}

}  // namespace

#include "kernels/cuda/11_wgmma/kernel.h"
#include "kernels/cuda/11_wgmma/launch_sm90a.cu"
#include "run_cases.h"

namespace {

constexpr uint16_t kNaN = 0xffff;

float to_float(DType dtype, uint16_t bits) { return dtype == DType::f16 ? half_to_float(bits) : bf16_to_float(bits); }
uint16_t rounded(DType dtype, float x) { return dtype == DType::f16 ? float_to_half(x) : float_to_bf16(x); }
bool is_nan(DType dtype, uint16_t bits) { return to_float(dtype, bits) != to_float(dtype, bits); }

// A matrix for each item of a batch, in memory full of NaNs.
struct Matrix {
  static constexpr int64_t kGuard = 1 << 14;  // elements before and behind
  static constexpr int kGap = 64;             // between items
  int64_t stride_row, stride_col, stride_item, size;
  std::vector<uint16_t> memory;

  Matrix(int rows, int cols, bool is_along_rows, int margin, int num_items) {
    const int inner = is_along_rows ? rows : cols, outer = is_along_rows ? cols : rows;
    const int64_t ld = (margin % 2 ? inner : round_up(inner, 8)) + margin;
    stride_row = is_along_rows ? 1 : ld;
    stride_col = is_along_rows ? ld : 1;
    stride_item = ld * outer + (margin % 2 ? kGap - 1 : kGap + 8 - ld * outer % 8);
    size = stride_item * num_items + 2 * kGuard;
    memory.assign(size_t(size) + 64, kNaN);
  }
  uint16_t* begin() { return memory.data() + (-reinterpret_cast<uintptr_t>(memory.data()) & 127) / 2; }
  uint16_t* data() { return begin() + kGuard; }
  uint16_t& at(int item, int row, int col) { return data()[item * stride_item + row * stride_row + col * stride_col]; }
};

// Random numbers. The products of A's odd rows cancel those of the first half of k, which leaves what rounding does:
// that shows every change of order.
struct Numbers {
  DType dtype;
  int num_items;
  std::mt19937 random;
  std::normal_distribution<float> normal;

  uint16_t next() { return rounded(dtype, normal(random) * (dtype == DType::f16 ? 8 : 1)); }
  void fill_a(Matrix& a, int m, int k) {
    for (int item = 0; item < num_items; ++item) {
      for (int row = 0; row < m; ++row) {
        for (int i = 0; i < k; ++i)
          a.at(item, row, i) = row % 2 && i >= k / 2 && i < k / 2 * 2 ? a.at(item, row, i - k / 2) ^ 0x8000 : next();
      }
    }
  }
  void fill_b(Matrix& b, int n, int k, int batch) {
    for (int item = 0; item < batch; ++item) {
      for (int i = 0; i < k; ++i) {
        for (int col = 0; col < n; ++col)
          b.at(item, i, col) = i >= k / 2 && i < k / 2 * 2 ? b.at(item, i - k / 2, col) : next();
      }
    }
  }
  void fill_bias(Matrix& bias, int size) {
    for (int i = 0; i < size; ++i) bias.at(0, 0, i) = i % 2 ? next() : 0;
  }
};

// The products of 16 after 16 from zero on, in chunks whose sums are added in their order.
float sum_products(const std::vector<float>& a, const std::vector<float>& b, int chunk_k) {
  float total = -0.0f;
  for (size_t chunk = 0; chunk < a.size(); chunk += size_t(chunk_k)) {
    float sum = 0;
    for (size_t i = chunk; i < std::min(a.size(), chunk + size_t(chunk_k)); i += 16)
      sum = emulator::add_products(sum, &a[i], &b[i]);
    total += sum;
  }
  return total;
}

struct Run {
  const Case& c;
  int num_items, chunk_k;
  Matrix a, b, c_memory, bias, row_sums;
  FoldedProblem problem{};

  explicit Run(const Case& c)
      : c(c),
        num_items(c.batch * c.repeats_of_b),
        chunk_k(c.chunk_k ? c.chunk_k : int(round_up(c.k, 16))),
        a(c.m, c.k, c.is_a_along_m, c.margin, num_items),
        b(c.k, c.n, !c.is_b_along_n, c.margin, c.batch),
        c_memory(c.m, c.n, c.is_c_along_m, c.margin_c, num_items),
        bias(1, std::max(c.m, c.n), false, 0, 1),
        row_sums(1, c.m, false, 0, 1) {
    Numbers numbers{c.dtype, num_items, std::mt19937(unsigned(c.m * c.n * c.k)), {}};
    numbers.fill_a(a, c.m, c.k);
    numbers.fill_b(b, c.n, c.k, c.batch);
    numbers.fill_bias(bias, std::max(c.m, c.n));
    GemmProblem& p = problem.gemm;
    p.m = c.m, p.n = c.n, p.k = c.k;
    p.a = a.data(), p.stride_am = a.stride_row, p.stride_ak = a.stride_col;
    p.b = b.data(), p.stride_bk = b.stride_row, p.stride_bn = b.stride_col;
    p.c = c_memory.data(), p.stride_cm = c_memory.stride_row, p.stride_cn = c_memory.stride_col;
    if (c.bias != ' ') p.bias = bias.data(), (c.bias == 'n' ? p.stride_bias_n : p.stride_bias_m) = 1;
    if (c.sums_rows) p.row_sums = row_sums.data();
    p.dtype = c.dtype, p.activation = c.activation;
    problem.batch_size = num_items;
    problem.chunk_k = c.chunk_k ? c.chunk_k : c.k;
    problem.asked_n = c.n;
    const BatchDim outer{c.repeats_of_b, c.batch * a.stride_item, 0, c.batch * c_memory.stride_item};
    if (c.repeats_of_b > 1) problem.batch_dims[p.num_batch_dims++] = outer;
    const BatchDim inner{c.batch, a.stride_item, b.stride_item, c_memory.stride_item};
    if (c.batch > 1) problem.batch_dims[p.num_batch_dims++] = inner;
  }

  // What is to be in memory: outside of C what was there.
  void compute() {
    const auto padded_k = size_t(round_up(c.k, 16));
    const std::vector<float> ones(padded_k, 1);
    std::vector<std::vector<float>> cols(size_t(c.n), std::vector<float>(padded_k));
    for (int item = 0; item < num_items; ++item) {
      for (int j = 0; j < c.n; ++j) {
        for (int i = 0; i < c.k; ++i) cols[size_t(j)][size_t(i)] = to_float(c.dtype, b.at(item % c.batch, i, j));
      }
      for (int row = 0; row < c.m; ++row) {
        std::vector<float> own(padded_k);
        for (int i = 0; i < c.k; ++i) own[size_t(i)] = to_float(c.dtype, a.at(item, row, i));
        if (c.sums_rows) row_sums.at(0, 0, row) = rounded(c.dtype, sum_products(own, ones, int(padded_k)));
        for (int col = 0; col < c.n; ++col) {
          float x = sum_products(own, cols[size_t(col)], chunk_k);
          if (c.bias != ' ') x += to_float(c.dtype, bias.at(0, 0, c.bias == 'n' ? col : row));
          c_memory.at(item, row, col) = rounded(c.dtype, activate_as(c.activation, x));
        }
      }
    }
  }

  // `expected` was computed, the own matrices were given to the kernel.
  bool is_like(Run& expected) {
    const auto count_wrong = [&](const char* name, Matrix& found, Matrix& wanted) {
      int64_t num_wrong = 0;
      for (int64_t i = 0; i < found.size; ++i) {
        const uint16_t x = found.begin()[i], y = wanted.begin()[i];
        if (x == y || (is_nan(c.dtype, x) && is_nan(c.dtype, y)) || num_wrong++ > 0) continue;
        std::printf("%s[%d] is %g instead of %g; ", name, int(i - Matrix::kGuard), double(to_float(c.dtype, x)),
                    double(to_float(c.dtype, y)));
      }
      return num_wrong;
    };
    return count_wrong("A", a, expected.a) + count_wrong("B", b, expected.b) +
               count_wrong("C", c_memory, expected.c_memory) +
               count_wrong("sums of rows", row_sums, expected.row_sums) ==
           0;
  }

  bool multiply(const WgmmaPlan& plan) {
    Plan made;
    made.as<WgmmaPlan>() = plan;
    Workspaces workspaces;
    return gpu::launch_wgmma(problem, made, executor_of(workspaces, c.num_sms)) == Status::ok;
  }
};

bool is_plan_of(const Case& c, const TilePlan& plan) {
  return plan.shape.block_m == c.tile.block_m && plan.shape.block_n == c.tile.block_n &&
         plan.splits_chunks == c.splits_chunks && plan.shares_tiles == c.shares_tiles && plan.pairs_m == c.pairs_m &&
         plan.pairs_n == c.pairs_n && plan.group_m == c.group_m;
}

// By those of the launcher's plans that are chosen.
template <class IsChosen>
bool run_plans(const Case& c, const IsChosen& is_chosen) {
  Run expected(c);
  int num_plans = 0, num_wrong = 0;
  for_each_wgmma_plan(expected.problem, c.num_sms, [&](const WgmmaPlan& plan, double) {
    const TilePlan& tiles = plan.tiles;
    if (!is_chosen(tiles)) return;
    Run own(c);
    const bool is_launched = own.multiply(plan);
    if (num_plans++ == 0) expected.compute();
    const bool is_right = is_launched && own.is_like(expected);
    num_wrong += !is_right;
    std::printf("%s by %d x %d%s%s%s%s, groups of %d: %d x %d x %d, %s\n", is_launched ? "done" : "refused",
                tiles.shape.block_m, tiles.shape.block_n, tiles.splits_chunks ? ", splits chunks" : "",
                tiles.shares_tiles ? ", shares tiles" : "", tiles.pairs_m ? ", pairs along m" : "",
                tiles.pairs_n ? ", pairs along n" : "", tiles.group_m, c.m, c.n, c.k, is_right ? "right" : "wrong");
    std::fflush(stdout);
  });
  return num_wrong == 0;
}

[[maybe_unused]] bool run(const Case& c) {
  int num_plans = 0;
  const bool is_right = run_plans(c, [&](const TilePlan& plan) { return is_plan_of(c, plan) && ++num_plans; });
  if (num_plans != 1) std::printf("%d plans\n", num_plans);
  return is_right && num_plans == 1;
}

}  // namespace

#ifdef TILEDMM_TILE

// Problems about the edges of a tile, in all layouts of the operands.
bool run_every_plan() {
  constexpr TileShape kShape = kTileShapes[TILEDMM_TILE];
  constexpr int M = kShape.block_m, N = kShape.block_n;
  std::vector<Case> cases;
  for (const int layout : {0, 1, 2, 3}) {
    const bool is_a_along_m = layout / 2, is_b_along_n = layout % 2;
    const auto add = [&](Case c) {
      c.is_a_along_m = is_a_along_m;
      c.is_b_along_n = is_b_along_n;
      c.dtype = TILEDMM_IS_BF16 ? DType::bf16 : DType::f16;
      cases.push_back(c);
    };
    add({.m = 2 * M + 9, .n = 2 * N + 24, .k = 200, .bias = 'n', .activation = Activation::relu});
    add({.m = 3 * M - 7, .n = N + N / 2 + 5, .k = 70, .bias = 'm', .activation = Activation::silu, .margin_c = 3});
    add({.m = 2 * M - 1, .n = N + 10, .k = 600, .chunk_k = 256, .activation = Activation::gelu, .num_sms = 40});
    add({.m = 2 * M + 30, .n = N + 8, .k = 840, .chunk_k = 256, .bias = 'n', .margin_c = 2, .num_sms = 6});
    add({.m = M / 2 + 1, .n = 2 * N + 8, .k = 150, .batch = 3, .bias = 'n', .num_sms = 64});
    add({.m = M + 3, .n = N + 8, .k = 530, .chunk_k = 256, .batch = 2, .repeats_of_b = 2, .bias = 'm', .num_sms = 3});
    add({.m = 5, .n = 20, .k = 24, .activation = Activation::gelu_tanh, .num_sms = 1});
    add({.m = M + 1, .n = N + 1, .k = 99, .margin = 1, .margin_c = 1});
    add({.m = M + M / 4, .n = N + N / 4, .k = 64 * 18 + 8, .num_sms = 2});
    add({.m = N + 7, .n = M + 9, .k = 330, .bias = 'n', .is_c_along_m = true});
    add({.m = M / 2, .n = 5 * N + 24, .k = 130, .bias = 'n', .num_sms = 3});
    add({.m = 5 * M + 2, .n = 2 * N, .k = 130, .batch = 1, .num_sms = 5});
    if (layout < 3) continue;
    add({.m = 2 * M + 7, .n = 2 * N + 8, .k = 300, .sums_rows = true});
    add({.m = M + 7, .n = 2 * N + 8, .k = 600, .chunk_k = 256, .bias = 'n', .sums_rows = true, .num_sms = 6});
  }
  bool is_right = true;
  for (const Case& c : cases)
    is_right = run_plans(c, [](const TilePlan& plan) { return plan.tile == TILEDMM_TILE; }) && is_right;
  return is_right;
}

int main() { return run_every_plan() ? 0 : 1; }

#else

int main(int argc, char** argv) { return run_chosen(argc, argv, kCases, run); }

#endif

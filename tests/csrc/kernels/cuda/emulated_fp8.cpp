// wgmma_fp8 by the emulated Hopper, against a model of its order of summation: every bit of C and of what lies around
// it, of the operands and of their factors. Factors are read where they are, nowhere else. Arguments: the numbers of
// the cases, all without; "instruction": the emulator's matrix instruction in 8 bits, against another model of it.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <type_traits>
#include <vector>

#include "core/plan.h"
#include "core/problem.h"
#include "fp8_model.h"
#include "kernels/cuda/wgmma/fp8_plan.h"

namespace {

using namespace tiledmm;

struct Case {
  TileShape shape;
  Factors factors;
  int m, n, k;
  DType a = E4M3, b = E4M3, c = DType::bf16;
  char bias = ' ';  // along 'n', along 'm'
  Activation activation = Activation::none;
  bool is_exchanged = false;
  bool is_a_along_m = false, is_b_along_n = false, is_c_along_m = false;
  bool is_of_tensor = false;            // one factor for all of A
  bool has_square_a = false;            // A's factors of blocks are for 128 rows as well
  bool are_factors_along_rows = false;  // neighbours along m and n, not along k
  bool has_every_value = false;         // k is 1: A and B have all values of 8 bits, infinities and NaN among them
  int margin = 16, margin_c = 8;        // elements between rows; odd: not for the copy engine
  int num_sms = 4;
  int tile = -1;  // of kFp8Tiles
};

constexpr Case kWritten[] = {
    // Halves of the last tiles, some of them beyond C; several tiles for a block; a k tile of 8 elements.
    {.shape = {128, 256}, .factors = Factors::rows, .m = 400, .n = 328, .k = 392, .b = E5M2, .bias = 'n', .num_sms = 5},
    {.shape = {128, 256},
     .factors = Factors::blocks,
     .m = 700,
     .n = 328,
     .k = 456,
     .bias = 'n',
     .activation = Activation::gelu,
     .num_sms = 5},
    // Exchanged roles: A's factors are those of the kernel's columns.
    {.shape = {128, 128},
     .factors = Factors::rows,
     .m = 300,
     .n = 200,
     .k = 300,
     .a = E5M2,
     .c = DType::f16,
     .bias = 'n',
     .activation = Activation::silu,
     .is_exchanged = true,
     .num_sms = 2},
    // Two parts of the columns, of 96 each; three factors of which one is for all rows.
    {.shape = {128, 192}, .factors = Factors::rows, .m = 130, .n = 392, .k = 520, .is_of_tensor = true, .num_sms = 2},
    // Operands that are repacked, in all ways; a C that threads store; columns' own factors.
    {.shape = {128, 128},
     .factors = Factors::columns,
     .m = 131,
     .n = 261,
     .k = 333,
     .c = DType::f16,
     .bias = 'n',
     .is_a_along_m = true,
     .is_b_along_n = true,
     .margin = 3,
     .margin_c = 3},
    {.shape = {64, 128},
     .factors = Factors::columns,
     .m = 70,
     .n = 136,
     .k = 1300,
     .c = DType::f32,
     .has_square_a = true,
     .are_factors_along_rows = true,
     .margin = 1,
     .num_sms = 1},
    // Pairs of k tiles in a stage, of which the last one has no second.
    {.shape = {64, 64},
     .factors = Factors::blocks,
     .m = 100,
     .n = 200,
     .k = 384,
     .bias = 'n',
     .activation = Activation::relu,
     .has_square_a = true,
     .num_sms = 3},
    // Many tiles for a block, and little to multiply between their stores.
    {.shape = {128, 128}, .factors = Factors::rows, .m = 400, .n = 520, .k = 24, .b = E5M2, .num_sms = 2},
    {.shape = {64, 32}, .factors = Factors::columns, .m = 1, .n = 75, .k = 1000, .are_factors_along_rows = true},
    // C^T = B^T A^T, since C lies along m; its factors of blocks change places, too.
    {.shape = {64, 64}, .factors = Factors::columns, .m = 200, .n = 96, .k = 260, .is_c_along_m = true},
    // All pairs of values, of all mixes.
    {.shape = {64, 128},
     .factors = Factors::rows,
     .m = 256,
     .n = 256,
     .k = 1,
     .c = DType::f32,
     .has_every_value = true},
    {.shape = {64, 128},
     .factors = Factors::rows,
     .m = 256,
     .n = 256,
     .k = 1,
     .b = E5M2,
     .c = DType::f32,
     .has_every_value = true},
    {.shape = {64, 128},
     .factors = Factors::rows,
     .m = 256,
     .n = 256,
     .k = 1,
     .a = E5M2,
     .c = DType::f32,
     .has_every_value = true},
    {.shape = {64, 128},
     .factors = Factors::rows,
     .m = 256,
     .n = 256,
     .k = 1,
     .a = E5M2,
     .b = E5M2,
     .c = DType::f32,
     .has_every_value = true},
};
constexpr int kNumWritten = int(std::size(kWritten));

// And one for each tile and each kind of factors that it serves, so that a new tile has some.
constexpr int kMostOfTiles = 3 * kNumFp8Tiles;
struct Cases {
  Case all[kNumWritten + kMostOfTiles];
  int count;
};
constexpr Cases make_cases() {
  Cases made{};
  for (Case own : kWritten) {
    // The first one of this shape that serves.
    for (int i = kNumFp8Tiles - 1; i >= 0; --i) {
      const TileShape& shape = kFp8Tiles[i].shape;
      if (shape.block_m == own.shape.block_m && shape.block_n == own.shape.block_n &&
          serves(kFp8Tiles[i], own.factors, own.c == DType::f32))
        own.tile = i;
    }
    made.all[made.count++] = own;
  }
  for (int i = 0; i < kNumFp8Tiles; ++i) {
    const Fp8Tile& tile = kFp8Tiles[i];
    for (const Factors factors : {Factors::rows, Factors::blocks, Factors::columns}) {
      // A C of fp32 and one of 16 bits in turn.
      const bool is_wide = (i + int(factors)) % 3 == 0;
      if (!serves(tile, factors, is_wide)) continue;
      Case own{};
      own.shape = tile.shape, own.tile = i, own.factors = factors, own.num_sms = 3;
      own.m = tile.shape.block_m + 9, own.n = tile.shape.block_n + 8, own.k = 264;
      own.c = is_wide ? DType::f32 : i % 2 ? DType::f16 : DType::bf16;
      if (factors == Factors::rows) own.a = i & 1 ? E5M2 : E4M3, own.b = i & 2 ? E5M2 : E4M3;
      made.all[made.count++] = own;
    }
  }
  return made;
}
constexpr Cases kCases = make_cases();

// Whether there is a case that runs the kernel.
template <class Cfg, bool>
constexpr bool is_compiled() {
  for (int i = 0; i < kCases.count; ++i) {
    const Case& c = kCases.all[i];
    const bool changes_places = c.is_exchanged != c.is_c_along_m;
    const Fp8Tile& tile = kFp8Tiles[c.tile];
    if (tile.shape.block_m == Cfg::kBlockM && tile.shape.block_n == Cfg::kBlockN && tile.part_n == Cfg::kPartN &&
        tile.sets == Cfg::kSets && c.factors == Cfg::kFactors && (changes_places ? c.b : c.a) == Cfg::kTypeA &&
        (changes_places ? c.a : c.b) == Cfg::kTypeB && (c.c == DType::f32) == (sizeof(typename Cfg::C) == 4))
      return true;
  }
  return false;
}

}  // namespace

#include "kernels/cuda/wgmma/fp8.h"
#include "kernels/cuda/wgmma/fp8_launch_sm90a.cu"
#include "run_cases.h"

namespace {

// W: as wide as an element of C.
template <class W>
struct Run {
  const Case& c;
  int k_blocks;
  Matrix<uint8_t> a, b;
  Matrix<uint32_t> scale_a, scale_b;
  Matrix<W> c_memory, bias;
  FoldedProblem problem{};

  explicit Run(const Case& c)
      : c(c),
        k_blocks(int(ceil_div(c.k, kScaledK))),
        a(c.m, c.k, c.is_a_along_m, margin_of_8_bits(c.is_a_along_m ? c.m : c.k, c.margin), 1),
        b(c.k, c.n, !c.is_b_along_n, margin_of_8_bits(c.is_b_along_n ? c.n : c.k, c.margin), 1),
        scale_a(num_scales_a(), num_scales_k(), c.are_factors_along_rows, 3, 1),
        scale_b(num_scales_b(), num_scales_k(), c.are_factors_along_rows, c.are_factors_along_rows ? 4 : 5, 1),
        c_memory(c.m, c.n, c.is_c_along_m, c.margin_c, 1),
        bias(1, std::max(c.m, c.n), false, 3, 1) {
    std::mt19937 random(unsigned(c.m * c.n + c.k));
    fill(a, c.a, c.m, c.k, random);
    fill(b, c.b, c.k, c.n, random);
    std::uniform_real_distribution<float> factor(0.125f, 8);
    for (Matrix<uint32_t>* own : {&scale_a, &scale_b}) {
      for (int row = 0; row < (own == &scale_a ? num_scales_a() : num_scales_b()); ++row) {
        for (int i = 0; i < num_scales_k(); ++i)
          own->at(0, row, i) = __float_as_uint(c.has_every_value ? 1 : factor(random));
      }
    }
    std::normal_distribution<float> normal;
    for (int i = 0; i < std::max(c.m, c.n); ++i) bias.at(0, 0, i) = W(rounded(c.c, 4 * normal(random)));
    GemmProblem& p = problem.gemm;
    p.m = c.m, p.n = c.n, p.k = c.k;
    p.a = a.data(), p.stride_am = a.stride_row, p.stride_ak = a.stride_col;
    p.b = b.data(), p.stride_bk = b.stride_row, p.stride_bn = b.stride_col;
    p.c = c_memory.data(), p.stride_cm = c_memory.stride_row, p.stride_cn = c_memory.stride_col;
    p.dtype_a = c.a, p.dtype_b = c.b, p.dtype_c = p.dtype_bias = c.c;
    if (c.bias != ' ') p.bias = bias.data(), (c.bias == 'm' ? p.stride_bias_m : p.stride_bias_n) = 1;
    p.activation = c.activation;
    p.scaling = is_of_blocks() ? Scaling::blocks : Scaling::rows;
    p.scale_a = {reinterpret_cast<const float*>(scale_a.data()), c.is_of_tensor ? 0 : scale_a.stride_row,
                 is_of_blocks() ? scale_a.stride_col : 0, int32_t(rows_of_block_a())};
    p.scale_b = {reinterpret_cast<const float*>(scale_b.data()), scale_b.stride_row,
                 is_of_blocks() ? scale_b.stride_col : 0, int32_t(rows_of_block_b())};
    problem.batch_size = 1;
    problem.chunk_k = c.k;
    problem.asked_n = c.n;
  }

  bool is_of_blocks() const { return c.factors != Factors::rows; }
  // A C along m is computed transposed: then A's rows are the kernel's columns.
  int rows_of_block_a() const {
    if (!is_of_blocks()) return 1;
    return c.is_c_along_m ? (c.factors == Factors::columns ? 1 : kScaledK) : c.has_square_a ? kScaledK : 1;
  }
  int rows_of_block_b() const {
    if (!is_of_blocks()) return 1;
    return c.is_c_along_m ? kScaledK : c.factors == Factors::columns ? 1 : kScaledK;
  }
  int num_scales_a() const { return c.is_of_tensor ? 1 : int(ceil_div(c.m, rows_of_block_a())); }
  int num_scales_b() const { return int(ceil_div(c.n, rows_of_block_b())); }
  int num_scales_k() const { return is_of_blocks() ? k_blocks : 1; }
  float factor_a(int row, int k_block) {
    return __uint_as_float(scale_a.at(0, c.is_of_tensor ? 0 : row / rows_of_block_a(), is_of_blocks() ? k_block : 0));
  }
  float factor_b(int col, int k_block) {
    return __uint_as_float(scale_b.at(0, col / rows_of_block_b(), is_of_blocks() ? k_block : 0));
  }

  void fill(Matrix<uint8_t>& matrix, DType dtype, int rows, int cols, std::mt19937& random) {
    for (int row = 0; row < rows; ++row) {
      for (int col = 0; col < cols; ++col) {
        matrix.at(0, row, col) = c.has_every_value ? uint8_t(row + col) : random_bits(dtype, random);
      }
    }
  }

  // Whether an address is that of a factor.
  bool is_factor(const void* address) {
    for (Matrix<uint32_t>* own : {&scale_a, &scale_b}) {
      const int64_t idx = static_cast<const uint32_t*>(address) - own->data();
      const int64_t rows = own == &scale_a ? num_scales_a() : num_scales_b(), cols = num_scales_k();
      const int64_t ld = std::max(own->stride_row, own->stride_col);
      const int64_t inner = own->stride_row == 1 ? rows : cols, outer = own->stride_row == 1 ? cols : rows;
      if (idx >= 0 && idx / ld < outer && idx % ld < inner) return true;
    }
    return false;
  }

  // What is to be in memory.
  void compute() {
    std::vector<std::vector<float>> cols;
    for (int j = 0; j < c.n; ++j) cols.push_back(numbers(c.b, c.k, [&](int i) { return b.at(0, i, j); }));
    for (int row = 0; row < c.m; ++row) {
      const std::vector<float> own = numbers(c.a, c.k, [&](int i) { return a.at(0, row, i); });
      for (int col = 0; col < c.n; ++col) {
        float x = promoted_sum(own, cols[size_t(col)], is_of_blocks(),
                               [&](int block) { return factor_a(row, block) * factor_b(col, block); });
        if (c.bias != ' ') x += to_float(c.c, bias.at(0, 0, c.bias == 'n' ? col : row));
        c_memory.at(0, row, col) = W(rounded(c.c, activated(c.c, c.activation, x)));
      }
    }
  }
  // All products of two values are exact, whatever the instruction keeps of sums.
  bool has_exact_products() {
    bool is_exact = true;
    for (int row = 0; row < c.m; ++row) {
      for (int col = 0; col < c.n; ++col) {
        const auto wanted = float(value_of(c.a, uint8_t(row)) * value_of(c.b, uint8_t(col)));
        const float found = to_float(c.c, c_memory.at(0, row, col));
        is_exact = is_exact && (found == wanted || (found != found && wanted != wanted));
      }
    }
    return is_exact;
  }

  bool is_like(Run& expected) {
    const auto is_same = [&](const char* name, DType dtype, auto& found, auto& wanted) {
      for (int64_t i = 0; i < found.size; ++i) {
        const auto x = found.begin()[i], y = wanted.begin()[i];
        if (x == y) continue;
        if constexpr (std::is_same_v<decltype(&found), Matrix<W>*>) {
          if (is_nan(dtype, x) && is_nan(dtype, y)) continue;
          std::printf("%s[%d] is %g instead of %g; ", name, int(i - Matrix<W>::kGuard), double(to_float(dtype, x)),
                      double(to_float(dtype, y)));
        } else {
          std::printf("%s[%d] has changed; ", name, int(i - Matrix<W>::kGuard));
        }
        return false;
      }
      return true;
    };
    return is_same("C", c.c, c_memory, expected.c_memory) && is_same("bias", c.c, bias, expected.bias) &&
           is_same("A", c.a, a, expected.a) && is_same("B", c.b, b, expected.b) &&
           is_same("A's factors", DType::f32, scale_a, expected.scale_a) &&
           is_same("B's factors", DType::f32, scale_b, expected.scale_b);
  }
};

template <class W>
bool run_of(const Case& c) {
  Run<W> expected(c), own(c);
  expected.compute();
  emulator::may_read = [&](const void* address) { return own.is_factor(address); };
  std::vector<Plan> plans;
  PlanSearch all(plans);
  for_each_fp8_plan(kFp8Costs[0].costs, own.problem, c.num_sms, all);
  int num_plans = 0;
  bool is_right = false;
  for (const Plan& plan : plans) {
    const TilePlan& tiles = plan.as<WgmmaPlan>().tiles;
    if (tiles.tile != c.tile || tiles.group_m != 0 || tiles.is_exchanged != c.is_exchanged) continue;
    Workspaces workspaces;
    ++num_plans;
    is_right = gpu::launch_wgmma_fp8(own.problem, plan, executor_of(workspaces, c.num_sms)) == Status::ok &&
               own.is_like(expected) && (!c.has_every_value || own.has_exact_products());
  }
  if (num_plans != 1) std::printf("%d plans; ", num_plans);
  is_right = is_right && num_plans == 1;
  std::printf("%d x %d x %d by %d x %d, factors %d, %s\n", c.m, c.n, c.k, c.shape.block_m, c.shape.block_n,
              int(c.factors), is_right ? "right" : "wrong");
  std::fflush(stdout);
  return is_right;
}
bool run(const Case& c) { return c.c == DType::f32 ? run_of<uint32_t>(c) : run_of<uint16_t>(c); }

// ---- the emulator's instruction

// In fixed point: the numbers' last bits, of which products have twice as many, are worth 2^-kPoint.
constexpr int kPoint = 16;
float expected_sum(float c, const double* a, const double* b) {
  __int128 addends[33];
  int exponents[33], largest = -1000;
  for (int i = 0; i < 32; ++i) {
    addends[i] = __int128(std::ldexp(a[i], kPoint)) * __int128(std::ldexp(b[i], kPoint));
    exponents[i] = addends[i] == 0 ? -1000 : std::ilogb(a[i]) + std::ilogb(b[i]);
  }
  addends[32] = __int128(std::ldexp(double(c), 2 * kPoint));
  exponents[32] = c == 0 ? -1000 : std::ilogb(c);
  for (const int exponent : exponents) largest = std::max(largest, exponent);
  const auto cut = [](__int128 x, int last) {  // what is worth less than 2^last
    if (last <= -2 * kPoint) return x;
    const __int128 unit = __int128(1) << (last + 2 * kPoint);
    return x / unit * unit;
  };
  __int128 sum = 0;
  for (const __int128 addend : addends) sum += cut(addend, largest - 13);
  if (sum == 0) return 0;
  return float(std::ldexp(double(cut(sum, std::ilogb(double(sum)) - 2 * kPoint - 13)), -2 * kPoint));
}

bool is_alike(float x, float y) { return x == y || (x != x && y != y); }

bool check_pairs(DType type_a, DType type_b, const emulator::Elements& elements) {
  bool is_right = true;
  for (int pair = 0; pair < 1 << 16; ++pair) {
    const auto i = uint8_t(pair), j = uint8_t(pair >> 8);
    float a[32] = {}, b[32] = {};
    a[pair % 32] = elements.a.convert(i), b[pair % 32] = elements.b.convert(j);
    const double wanted = value_of(type_a, i) * value_of(type_b, j);
    is_right =
        is_right && is_alike(emulator::add_products_of_8_bits(0, a, b), float(wanted)) &&
        (wanted - wanted != 0 || is_alike(emulator::add_products_of_8_bits(float(wanted), a, b), float(2 * wanted)));
  }
  return is_right;
}

bool check_sums(DType type_a, DType type_b, const emulator::Elements& elements) {
  std::mt19937 random(7);
  bool is_right = true;
  int num_cut = 0;
  for (int turn = 0; turn < 20000; ++turn) {
    float a[32], b[32], c = 0;
    double x[32], y[32], exact;
    for (int step = 0; step < 3; ++step) {
      exact = c;
      double most = std::fabs(c);
      for (int i = 0; i < 32; ++i) {
        // Now and then many zeros, or numbers of about one size.
        uint8_t bits[2];
        for (uint8_t& own : bits) {
          own = uint8_t(random());
          if (turn % 5 == 1 && random() % 4) own = 0;
          if (turn % 5 == 2) own = uint8_t((own & 0x8f) | 0x30);
        }
        if (!std::isfinite(value_of(type_a, bits[0]))) bits[0] = 0;
        if (!std::isfinite(value_of(type_b, bits[1]))) bits[1] = 0;
        a[i] = elements.a.convert(bits[0]), b[i] = elements.b.convert(bits[1]);
        x[i] = value_of(type_a, bits[0]), y[i] = value_of(type_b, bits[1]);
        exact += x[i] * y[i];
        most = std::max(most, std::fabs(x[i] * y[i]));
      }
      const float wanted = expected_sum(c, x, y), found = emulator::add_products_of_8_bits(c, a, b);
      // The bound of docs/numerics.md.
      most = std::max(most, std::fabs(exact));
      is_right = is_right && found == wanted && std::fabs(found - exact) <= 33 * std::ldexp(most, -13);
      num_cut += double(found) != exact;
      c = found;
    }
  }
  return is_right && num_cut > 10000;
}

// What others have measured of the unit.
bool check_known_sums() {
  const auto sum = [](float c, float a0, float a1) {
    float a[32] = {a0, a1}, b[32] = {1, 1};
    return emulator::add_products_of_8_bits(c, a, b);
  };
  const float last = std::ldexp(1.0f, -5);  // 13 bits behind the point of 256
  return sum(0, 256, last) == 256 + last && sum(0, 256, last / 2) == 256 && sum(0, 256, -last / 2) == 256 &&
         sum(0, -256, 1.5f * last) == -256 + last &&
         sum(1 + std::ldexp(1.0f, -13), 0, 0) == 1 + std::ldexp(1.0f, -13) &&
         sum(1 + std::ldexp(1.0f, -14), 0, 0) == 1 && sum(-1 - std::ldexp(1.0f, -14), 0, 0) == -1;
}

bool check_instruction() {
  bool is_right = check_known_sums();
  for (const DType type_a : {E4M3, E5M2}) {
    for (const DType type_b : {E4M3, E5M2}) {
      const emulator::Elements elements(type_a == E4M3 ? emulator::kE4M3 : emulator::kE5M2,
                                        type_b == E4M3 ? emulator::kE4M3 : emulator::kE5M2);
      const bool is_own_right = check_pairs(type_a, type_b, elements) && check_sums(type_a, type_b, elements);
      std::printf("%s by %s, %s\n", kDTypeNames[int(type_a)], kDTypeNames[int(type_b)],
                  is_own_right ? "right" : "wrong");
      is_right = is_right && is_own_right;
    }
  }
  return is_right;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "instruction") == 0) return check_instruction() ? 0 : 1;
  bool is_right = true;
  if (argc == 1) {
    for (int i = 0; i < kCases.count; ++i) is_right = run(kCases.all[i]) && is_right;
    std::printf("%d cases\n", kCases.count);
  }
  for (int i = 1; i < argc; ++i) is_right = run(kCases.all[std::atoi(argv[i])]) && is_right;
  return is_right ? 0 : 1;
}

// wgmma and wgmma_single by the emulated Hopper, against a model of its order of summation: every bit of C, of the
// sums of A's rows, and of what lies around them. Arguments: the numbers of the cases, all without.
//
// Kernels are compiled for the cases alone. With TILEDMM_TILE, the number of one of kTileShapes or kTf32TileShapes,
// TILEDMM_DTYPE, and TILEDMM_WIDE, 1 for a C in fp32 of operands in 16 bits, all kernels of that tile are, and problems
// about its edges are computed by every plan that the launcher takes.
#include <array>
#include <cstdio>
#include <random>
#include <type_traits>
#include <vector>

#include "core/plan.h"
#include "core/problem.h"
#include "kernels/cuda/wgmma/plan.h"
#include "kernels/cuda/wgmma/tf32_plan.h"

namespace {

using namespace tiledmm;

struct Case {
  TileShape tile{};
  int m, n, k;
  bool is_a_along_m = false, is_b_along_n = false;
  int chunk_k = 0;  // 0: one chunk
  bool splits_chunks = false, shares_tiles = false;
  int cluster_m = 0, cluster_n = 0;
  bool is_exchanged = false;
  int group_m = 0;
  DType dtype = DType::bf16;
  int batch = 1, repeats_of_b = 1;  // inner and outer dimension of the batch
  char bias = ' ';                  // of columns 'n', of rows 'm'; 'x': a matrix for each item, all scaled
  Activation activation = Activation::none;
  bool sums_rows = false, is_c_along_m = false;
  int margin = 8, margin_c = 8;  // elements between rows; odd: not for the copy engine
  int num_sms = 4;
  bool is_single = false;  // by wgmma_single, whose tile has no choice
  // C in fp32 of operands in 16 bits; with a bias in fp32, too.
  bool is_wide = false, is_bias_f32 = false;

  constexpr DType dtype_c() const { return is_wide ? DType::f32 : dtype; }
  constexpr DType dtype_bias() const { return is_bias_f32 ? DType::f32 : dtype; }
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
     .repeats_of_b = 2,
     .bias = 'n'},
    // Clusters of four by two, three consumers, chunks side by side.
    {.tile = {192, 96},
     .m = 400,
     .n = 110,
     .k = 520,
     .is_b_along_n = true,
     .chunk_k = 256,
     .splits_chunks = true,
     .cluster_m = 2,
     .cluster_n = 1,
     .dtype = DType::f16,
     .bias = 'n',
     .num_sms = 8},
    // A grid of tiles, of which the last begin early; an odd number of k tiles; a batch.
    {.tile = {64, 32},
     .m = 70,
     .n = 41,
     .k = 1048,
     .is_b_along_n = true,
     .batch = 3,
     .bias = 'x',
     .activation = Activation::gelu,
     .num_sms = 12},
    // Blocks of a cluster share a tile.
    {.tile = {64, 64},
     .m = 100,
     .n = 71,
     .k = 570,
     .is_a_along_m = true,
     .chunk_k = 256,
     .shares_tiles = true,
     .bias = 'x',
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
     .cluster_m = 1,
     .sums_rows = true,
     .num_sms = 6},
    // The same with chunks side by side, an odd number of columns, tiles whose last wave is in halves.
    {.tile = {128, 256},
     .m = 300,
     .n = 271,
     .k = 700,
     .is_a_along_m = true,
     .is_b_along_n = true,
     .chunk_k = 256,
     .splits_chunks = true,
     .sums_rows = true,
     .num_sms = 16},
    // The same by a single consumer.
    {.tile = {64, 96},
     .m = 140,
     .n = 200,
     .k = 600,
     .is_a_along_m = true,
     .is_b_along_n = true,
     .chunk_k = 256,
     .sums_rows = true,
     .num_sms = 5},
    // Operands that the copy engine cannot take, C along m; clusters of small tiles.
    {.tile = {64, 128}, .m = 260, .n = 150, .k = 99, .cluster_n = 1, .is_c_along_m = true, .margin = 1, .num_sms = 4},
    // B along k in boxes of a width that is no multiple of 32; groups of rows of tiles.
    {.tile = {128, 176}, .m = 580, .n = 400, .k = 40, .group_m = 3, .bias = 'n'},
    // Four chunks by one block, and two; C smaller than a tile, whose rows end within a unit of the copy engine.
    {.tile = {64, 96}, .m = 100, .n = 90, .k = 1000, .chunk_k = 256, .margin_c = 2},
    {.tile = {64, 96}, .m = 50, .n = 90, .k = 500, .chunk_k = 256},
    // The next tile is there before the last one is stored.
    {.tile = {128, 176}, .m = 600, .n = 400, .k = 40, .activation = Activation::gelu, .num_sms = 2},
    // Exchanged roles: C is stored transposed, a narrow last box, clusters along n; tiles begin early.
    {.tile = {64, 160},
     .m = 328,
     .n = 200,
     .k = 456,
     .is_a_along_m = true,
     .cluster_n = 2,
     .is_exchanged = true,
     .bias = 'm',
     .activation = Activation::silu},
    // fp32. A from registers, C by the threads.
    {.tile = {64, 32}, .m = 100, .n = 90, .k = 330, .is_a_along_m = true, .dtype = DType::f32, .margin_c = 3},
    // Of the transposed problem, a B that is transposed; its chunks by one block, and side by side.
    {.tile = {128, 64},
     .m = 132,
     .n = 560,
     .k = 300,
     .is_a_along_m = true,
     .is_b_along_n = true,
     .chunk_k = 256,
     .dtype = DType::f32,
     .bias = 'x',
     .activation = Activation::relu,
     .num_sms = 2},
    {.tile = {128, 64},
     .m = 131,
     .n = 130,
     .k = 300,
     .is_a_along_m = true,
     .is_b_along_n = true,
     .chunk_k = 256,
     .splits_chunks = true,
     .dtype = DType::f32},
    // Operands that are copied along k.
    {.tile = {64, 64},
     .m = 200,
     .n = 200,
     .k = 35,
     .is_a_along_m = true,
     .dtype = DType::f32,
     .margin = 1,
     .num_sms = 1},
    // A grid of clusters, more stages than are on their way at first.
    {.tile = {64, 64}, .m = 250, .n = 131, .k = 1100, .cluster_m = 1, .cluster_n = 1, .bias = 'n', .num_sms = 16},
    // Plain kernels. Several tiles for a block, the last wave in halves, a B along n.
    {.tile = {128, 256}, .m = 150, .n = 840, .k = 1032, .is_b_along_n = true, .num_sms = 6},
    // Clusters of four by two, three consumers, a narrow last box.
    {.tile = {192, 96},
     .m = 400,
     .n = 112,
     .k = 520,
     .is_b_along_n = true,
     .cluster_m = 2,
     .cluster_n = 1,
     .dtype = DType::f16,
     .num_sms = 16},
    // Exchanged roles, a grid of tiles that begin early.
    {.tile = {64, 160}, .m = 328, .n = 200, .k = 456, .is_a_along_m = true, .is_exchanged = true, .num_sms = 12},
    // C by the threads.
    {.tile = {64, 32}, .m = 70, .n = 41, .k = 530, .margin_c = 3},
    // What a plain kernel would compute, but for the chunks.
    {.tile = {64, 96}, .m = 50, .n = 88, .k = 500, .chunk_k = 256},
    // wgmma_single in all layouts: tiles that are cut off, the ring goes around, a batch of two dimensions.
    {.m = 150, .n = 271, .k = 328, .bias = 'n', .activation = Activation::relu, .margin_c = 3, .is_single = true},
    {.m = 70,
     .n = 200,
     .k = 75,
     .is_a_along_m = true,
     .is_b_along_n = true,
     .batch = 2,
     .repeats_of_b = 2,
     .bias = 'm',
     .is_single = true},
    {.m = 129, .n = 1, .k = 1, .is_a_along_m = true, .dtype = DType::f16, .is_single = true},
    {.m = 1,
     .n = 300,
     .k = 1000,
     .is_b_along_n = true,
     .bias = 'x',
     .activation = Activation::silu,
     .is_c_along_m = true,
     .is_single = true},
    // A batch of which nothing but the number of items is not plain.
    {.tile = {64, 32}, .m = 70, .n = 41, .k = 200, .is_b_along_n = true, .batch = 2, .num_sms = 12},
    // C in fp32 of operands in 16 bits. The last wave in halves, C by the copy engine.
    {.tile = {128, 256},
     .m = 150,
     .n = 840,
     .k = 200,
     .is_b_along_n = true,
     .bias = 'n',
     .activation = Activation::gelu,
     .num_sms = 6,
     .is_wide = true,
     .is_bias_f32 = true},
    // Chunks one after the other; a batch of two dimensions; an odd number of columns, stored by the threads.
    {.tile = {128, 192},
     .m = 130,
     .n = 203,
     .k = 520,
     .is_a_along_m = true,
     .chunk_k = 256,
     .batch = 2,
     .repeats_of_b = 2,
     .bias = 'm',
     .activation = Activation::relu,
     .margin_c = 3,
     .is_wide = true},
    // Clusters, several tiles for a block, C along m.
    {.tile = {128, 128},
     .m = 268,
     .n = 300,
     .k = 200,
     .is_a_along_m = true,
     .is_b_along_n = true,
     .cluster_m = 1,
     .bias = 'x',
     .activation = Activation::silu,
     .is_c_along_m = true,
     .num_sms = 2,
     .is_wide = true,
     .is_bias_f32 = true},
    // Clusters of small tiles, operands that the copy engine cannot take.
    {.tile = {64, 128},
     .m = 260,
     .n = 150,
     .k = 99,
     .cluster_n = 1,
     .dtype = DType::f16,
     .is_c_along_m = true,
     .margin = 1,
     .is_wide = true},
    // Blocks of a cluster share a tile.
    {.tile = {64, 64},
     .m = 100,
     .n = 71,
     .k = 570,
     .is_a_along_m = true,
     .chunk_k = 256,
     .shares_tiles = true,
     .batch = 2,
     .bias = 'x',
     .activation = Activation::gelu_tanh,
     .num_sms = 40,
     .is_wide = true},
    // Chunks side by side, whose sums the second kernel adds.
    {.tile = {64, 64},
     .m = 70,
     .n = 41,
     .k = 600,
     .is_b_along_n = true,
     .chunk_k = 256,
     .splits_chunks = true,
     .batch = 3,
     .bias = 'x',
     .activation = Activation::gelu,
     .num_sms = 12,
     .is_wide = true},
    // The narrowest tiles, by plain kernels and others; what C's alignment takes from the copy engine.
    {.tile = {64, 32}, .m = 70, .n = 44, .k = 300, .is_b_along_n = true, .num_sms = 12, .is_wide = true},
    {.tile = {64, 32},
     .m = 70,
     .n = 44,
     .k = 300,
     .is_b_along_n = true,
     .bias = 'n',
     .margin_c = 2,
     .is_wide = true,
     .is_bias_f32 = true},
    // Consumers that take tiles in turns: five of one block, four of another; the last ones begin early.
    {.tile = {128, 192, true}, .m = 300, .n = 390, .k = 392, .bias = 'm', .activation = Activation::gelu, .num_sms = 2},
    // Clusters of them, three tiles for a block; a tile for a block, nothing for its second consumer.
    {.tile = {128, 192, true},
     .m = 300,
     .n = 392,
     .k = 456,
     .is_a_along_m = true,
     .is_b_along_n = true,
     .cluster_m = 1,
     .num_sms = 4},
    {.tile = {128, 192, true}, .m = 130, .n = 192, .k = 520, .is_a_along_m = true, .is_b_along_n = true},
    // Two blocks of a multiprocessor, several tiles for each; a tile fills the ring.
    {.tile = {64, 64}, .m = 140, .n = 74, .k = 256, .batch = 3, .bias = 'x', .activation = Activation::gelu},
    {.tile = {64, 32}, .m = 170, .n = 90, .k = 128, .is_a_along_m = true, .dtype = DType::f32, .num_sms = 2},
    // Copies of both operands: warps that take several units, of rows of several items. Rows that are words apart, and
    // rows of two segments that begin anywhere.
    {.tile = {64, 64}, .m = 51, .n = 45, .k = 99, .batch = 3, .margin = 1, .num_sms = 1},
    {.tile = {64, 64}, .m = 51, .n = 45, .k = 534, .batch = 3, .margin = 1, .num_sms = 1},
    // C is stored by threads: rows that begin anywhere, and rows that begin with words; several parts of a tile, halves
    // of tiles, tiles that begin early, less than 16 bytes, tiles that are turned.
    {.tile = {128, 256}, .m = 100, .n = 598, .k = 40, .margin_c = 3, .num_sms = 1},
    {.tile = {128, 256}, .m = 150, .n = 598, .k = 40, .margin_c = 4},
    {.tile = {128, 256}, .m = 100, .n = 3, .k = 40, .margin_c = 2, .num_sms = 1},
    {.tile = {192, 96}, .m = 200, .n = 199, .k = 40, .is_b_along_n = true, .margin_c = 1, .num_sms = 1},
    {.tile = {128, 160},
     .m = 130,
     .n = 479,
     .k = 40,
     .is_a_along_m = true,
     .is_b_along_n = true,
     .bias = 'n',
     .margin_c = 2,
     .num_sms = 1},
};

// Whether the launcher takes a plain kernel.
constexpr bool is_plain(const Case& c) {
  const int unit = c.is_wide ? 4 : 8;
  return c.dtype != DType::f32 && c.chunk_k == 0 && c.bias == ' ' && c.activation == Activation::none && !c.sums_rows &&
         ((c.is_c_along_m ? c.m : c.n) % unit + c.margin_c % unit == 0 || (c.tile.block_n < 64 && !c.is_wide));
}

template <class T>
constexpr DType dtype_of() {
  return sizeof(T) == 4 ? DType::f32 : std::is_same_v<T, __half> ? DType::f16 : DType::bf16;
}

// Whether a kernel has the operands' layouts of a case; fp32 is copied along k, or the transposed problem is computed.
template <class Cfg>
constexpr bool serves_layouts(const Case& c) {
  const bool a = c.is_a_along_m, b = c.is_b_along_n, swaps = c.is_c_along_m != c.is_exchanged;
  if (c.dtype != DType::f32) return Cfg::kAIsMMajor == (swaps ? b : a) && Cfg::kBIsNMajor == (swaps ? a : b);
  const bool is_copied = c.margin % 2;
  return Cfg::kAIsMMajor == (!is_copied && (a || b)) && Cfg::kBIsNMajor == (!is_copied && a && b) &&
         Cfg::kCIsMMajor == (!is_copied && b);
}

// Whether there is a case that runs the kernel.
template <class Cfg, bool SHARES>
constexpr bool is_compiled() {
  constexpr DType kDType = dtype_of<typename Cfg::T>();
  constexpr bool kIsWide = sizeof(typename Cfg::C) != sizeof(typename Cfg::T);
#ifdef TILEDMM_TILE
  constexpr TileShape kShape =
      kDType == DType::f32 ? kTf32TileShapes[TILEDMM_TILE % kNumTf32TileShapes] : kTileShapes[TILEDMM_TILE];
  return Cfg::kBlockM == kShape.block_m && Cfg::kBlockN == kShape.block_n && Cfg::kTakesTurns == kShape.takes_turns &&
         kDType == DType(TILEDMM_DTYPE) && kIsWide == TILEDMM_WIDE;
#else
  for (const Case& c : kCases) {
    const bool is_built =
        kDType == DType::f32 || always_built_with_clusters(c.tile) || Cfg::kClusters == (c.cluster_m || c.cluster_n);
    if (!c.is_single && c.tile.block_m == Cfg::kBlockM && c.tile.block_n == Cfg::kBlockN &&
        c.tile.takes_turns == Cfg::kTakesTurns && is_built && kDType == c.dtype && kIsWide == c.is_wide &&
        Cfg::kSumsRows == c.sums_rows && Cfg::kIsPlain == is_plain(c) && SHARES == c.shares_tiles &&
        serves_layouts<Cfg>(c))
      return true;
  }
  return false;
#endif
}

}  // namespace

#include "kernels/cuda/09_wgmma_single/kernel_sm90a.cu"
#include "kernels/cuda/wgmma/kernel.h"
#include "kernels/cuda/wgmma/launch_sm90a.cu"
#include "matrices.h"
#include "run_cases.h"

namespace {

// Random numbers, of A and B in their dtype. The products of A's odd rows cancel those of the first half of k, which
// leaves what rounding does: that shows every change of order.
template <class W>
struct Numbers {
  DType dtype;
  int num_items;
  std::mt19937 random;
  std::normal_distribution<float> normal;

  float next_float() { return normal(random) * (dtype == DType::f16 ? 8 : 1); }
  W next() { return W(rounded(dtype, next_float())); }
  void fill_a(Matrix<W>& a, int m, int k) {
    constexpr W kSign = W(1) << (8 * sizeof(W) - 1);
    for (int item = 0; item < num_items; ++item) {
      for (int row = 0; row < m; ++row) {
        for (int i = 0; i < k; ++i)
          a.at(item, row, i) = row % 2 && i >= k / 2 && i < k / 2 * 2 ? a.at(item, row, i - k / 2) ^ kSign : next();
      }
    }
  }
  void fill_b(Matrix<W>& b, int n, int k, int batch) {
    for (int item = 0; item < batch; ++item) {
      for (int i = 0; i < k; ++i) {
        for (int col = 0; col < n; ++col)
          b.at(item, i, col) = i >= k / 2 && i < k / 2 * 2 ? b.at(item, i - k / 2, col) : next();
      }
    }
  }
  template <class B>
  void fill_bias(Matrix<B>& bias, DType dtype_bias) {
    for (int64_t i = 0; i < bias.size - 2 * Matrix<B>::kGuard; ++i)
      bias.data()[i] = i % 2 ? B(rounded(dtype_bias, next_float())) : B(0);
  }
};

constexpr float kAlpha = -1.75f, kBeta = 0.3f;

// W, C, B: as wide as an element of the operands, of C, of the bias.
template <class W, class C, class B>
struct Run {
  static constexpr int kStep = sizeof(W) == 2 ? 16 : 8;  // of k, of one instruction
  const Case& c;
  int num_items;
  Matrix<W> a, b, row_sums;
  Matrix<C> c_memory;
  Matrix<B> bias;
  FoldedProblem problem{};

  explicit Run(const Case& c)
      : c(c),
        num_items(c.batch * c.repeats_of_b),
        a(c.m, c.k, c.is_a_along_m, c.margin, num_items),
        b(c.k, c.n, !c.is_b_along_n, c.margin, c.batch),
        row_sums(1, c.m, false, 0, 1),
        c_memory(c.m, c.n, c.is_c_along_m, c.margin_c, num_items),
        bias(c.bias == 'x' ? c.m : 1, c.bias == 'x' ? c.n : std::max(c.m, c.n), false, 3,
             c.bias == 'x' ? num_items : 1) {
    Numbers<W> numbers{c.dtype, num_items, std::mt19937(unsigned(c.m * c.n * c.k)), {}};
    numbers.fill_a(a, c.m, c.k);
    numbers.fill_b(b, c.n, c.k, c.batch);
    numbers.fill_bias(bias, c.dtype_bias());
    GemmProblem& p = problem.gemm;
    p.m = c.m, p.n = c.n, p.k = c.k;
    p.a = a.data(), p.stride_am = a.stride_row, p.stride_ak = a.stride_col;
    p.b = b.data(), p.stride_bk = b.stride_row, p.stride_bn = b.stride_col;
    p.c = c_memory.data(), p.stride_cm = c_memory.stride_row, p.stride_cn = c_memory.stride_col;
    if (c.bias != ' ') p.bias = bias.data(), (c.bias == 'm' ? p.stride_bias_m : p.stride_bias_n) = 1;
    const int64_t bias_step = c.bias == 'x' ? bias.stride_item : 0;
    if (c.bias == 'x') p.stride_bias_m = bias.stride_row, p.alpha = kAlpha, p.beta = kBeta;
    if (c.sums_rows) p.row_sums = row_sums.data();
    p.set_dtypes(c.dtype), p.dtype_c = c.dtype_c(), p.dtype_bias = c.dtype_bias(), p.activation = c.activation;
    problem.batch_size = num_items;
    problem.chunk_k = c.chunk_k ? c.chunk_k : c.k;
    problem.asked_n = c.n;
    const BatchDim outer{c.repeats_of_b, c.batch * a.stride_item, 0, c.batch * c_memory.stride_item,
                         c.batch * bias_step};
    if (c.repeats_of_b > 1) problem.batch_dims[p.num_batch_dims++] = outer;
    const BatchDim inner{c.batch, a.stride_item, b.stride_item, c_memory.stride_item, bias_step};
    if (c.batch > 1) problem.batch_dims[p.num_batch_dims++] = inner;
  }

  // A row of A or a column of B, zeros between what instructions take.
  template <class At>
  std::vector<float> spread(const At& at) {
    std::vector<float> spread(size_t(ceil_div(c.k, kStep)) * 16);
    for (int i = 0; i < c.k; ++i) {
      const uint32_t bits = sizeof(W) == 4 ? emulator::rounded_to_tf32(at(i)) : at(i);
      spread[size_t(i / kStep * 16 + i % kStep)] = to_float(c.dtype, bits);
    }
    return spread;
  }
  // What is to be in memory: outside of C what was there.
  void compute() {
    const int chunk = (c.chunk_k ? c.chunk_k : int(round_up(c.k, kStep))) / kStep * 16;
    for (int item = 0; item < num_items; ++item) {
      std::vector<std::vector<float>> cols;
      for (int j = 0; j < c.n; ++j) cols.push_back(spread([&](int i) { return b.at(item % c.batch, i, j); }));
      for (int row = 0; row < c.m; ++row) {
        const std::vector<float> own = spread([&](int i) { return a.at(item, row, i); }), ones(own.size(), 1);
        if (c.sums_rows) row_sums.at(0, 0, row) = W(rounded(c.dtype, sum_products(own, ones, chunk)));
        for (int col = 0; col < c.n; ++col) {
          float x = sum_products(own, cols[size_t(col)], chunk);
          if (c.bias == 'x')
            x = std::fma(kAlpha, x, kBeta * to_float(c.dtype_bias(), bias.at(item, row, col)));
          else if (c.bias != ' ')
            x += to_float(c.dtype_bias(), bias.at(0, 0, c.bias == 'n' ? col : row));
          c_memory.at(item, row, col) = C(rounded(c.dtype_c(), activated(c.dtype_c(), c.activation, x)));
        }
      }
    }
  }

  // `expected` was computed, the own matrices were given to the kernel.
  bool is_like(Run& expected) {
    const auto count_wrong = [&](const char* name, DType dtype, auto& found, auto& wanted) {
      int64_t num_wrong = 0;
      for (int64_t i = 0; i < found.size; ++i) {
        const auto x = found.begin()[i], y = wanted.begin()[i];
        if (x == y || (is_nan(dtype, x) && is_nan(dtype, y)) || num_wrong++ > 0) continue;
        std::printf("%s[%d] is %g instead of %g; ", name, int(i - Matrix<W>::kGuard), double(to_float(dtype, x)),
                    double(to_float(dtype, y)));
      }
      return num_wrong;
    };
    return count_wrong("A", c.dtype, a, expected.a) + count_wrong("B", c.dtype, b, expected.b) +
               count_wrong("C", c.dtype_c(), c_memory, expected.c_memory) +
               count_wrong("sums of rows", c.dtype, row_sums, expected.row_sums) ==
           0;
  }

  template <class OwnPlan>
  bool multiply(const OwnPlan& plan) {
    Plan made;
    made.as<OwnPlan>() = plan;
    Workspaces workspaces;
    const auto launch = c.is_single ? &gpu::launch_wgmma_single : &gpu::launch_wgmma;
    return launch(problem, made, executor_of(workspaces, c.num_sms)) == Status::ok;
  }
};

// Calls visit for all plans, of fp32 for those without copies that it can do without.
template <class Visit>
void for_each_plan(const FoldedProblem& problem, int num_sms, const Visit& visit) {
  std::vector<Plan> plans;
  PlanSearch all(plans);
  if (problem.gemm.dtype_a == DType::f32) {
    for_each_tf32_plan(kTf32Costs[0].costs, problem, num_sms, all);
    for (const Plan& plan : plans) {
      const Tf32Plan &own = plan.as<Tf32Plan>(), &first = plans[0].as<Tf32Plan>();
      if (own.copies_a == first.copies_a && own.copies_b == first.copies_b) visit(own);
    }
  } else {
    for_each_tile_plan(wgmma_search(kWgmmaCosts[0].costs, problem, num_sms), num_sms, all);
    for (const Plan& plan : plans) visit(plan.as<WgmmaPlan>());
  }
}

bool is_plan_of(const Case& c, const TilePlan& plan) {
  return plan.shape.block_m == c.tile.block_m && plan.shape.block_n == c.tile.block_n &&
         plan.shape.takes_turns == c.tile.takes_turns && plan.splits_chunks == c.splits_chunks &&
         plan.shares_tiles == c.shares_tiles && plan.cluster_m == c.cluster_m && plan.cluster_n == c.cluster_n &&
         plan.is_exchanged == c.is_exchanged && plan.group_m == c.group_m;
}

// By those of the launcher's plans that are chosen.
template <class W, class C, class B, class IsChosen>
bool run_plans_of(const Case& c, const IsChosen& is_chosen) {
  Run<W, C, B> expected(c);
  int num_plans = 0, num_wrong = 0;
  const auto visit = [&](const auto& plan) {
    const TilePlan& tiles = plan.tiles;
    if (!is_chosen(tiles)) return;
    Run<W, C, B> own(c);
    const bool is_launched = own.multiply(plan);
    if (num_plans++ == 0) expected.compute();
    const bool is_right = is_launched && own.is_like(expected);
    num_wrong += !is_right;
    std::printf("%s by %d x %d%s%s%s, %d x %d blocks, groups of %d: %d x %d x %d, %s\n",
                is_launched ? "done" : "refused", tiles.shape.block_m, tiles.shape.block_n,
                tiles.splits_chunks ? ", splits chunks" : "", tiles.shares_tiles ? ", shares tiles" : "",
                tiles.is_exchanged ? ", exchanged" : "", 1 << tiles.cluster_m, 1 << tiles.cluster_n, tiles.group_m, c.m,
                c.n, c.k, is_right ? "right" : "wrong");
    std::fflush(stdout);
  };
  for_each_plan(expected.problem, c.num_sms, visit);
  return num_wrong == 0;
}
template <class IsChosen>
bool run_plans(const Case& c, const IsChosen& is_chosen) {
  if (c.dtype == DType::f32) return run_plans_of<uint32_t, uint32_t, uint32_t>(c, is_chosen);
  if (!c.is_wide) return run_plans_of<uint16_t, uint16_t, uint16_t>(c, is_chosen);
  return c.is_bias_f32 ? run_plans_of<uint16_t, uint32_t, uint32_t>(c, is_chosen)
                       : run_plans_of<uint16_t, uint32_t, uint16_t>(c, is_chosen);
}

bool run_single(const Case& c) {
  Run<uint16_t, uint16_t, uint16_t> expected(c), own(c);
  expected.compute();
  const bool is_right = own.multiply(NoConfig{}) && own.is_like(expected);
  std::printf("wgmma_single: %d x %d x %d, %s\n", c.m, c.n, c.k, is_right ? "right" : "wrong");
  return is_right;
}

[[maybe_unused]] bool run(const Case& c) {
  if (c.is_single) return run_single(c);
  int num_plans = 0;
  const bool is_right = run_plans(c, [&](const TilePlan& plan) { return is_plan_of(c, plan) && ++num_plans; });
  if (num_plans != 1) std::printf("%d plans\n", num_plans);
  return is_right && num_plans == 1;
}

}  // namespace

#ifdef TILEDMM_TILE

// Problems about the edges of a tile, in all layouts of the operands.
bool run_every_plan() {
  constexpr DType kDType = DType(TILEDMM_DTYPE);
  constexpr bool kIsF32 = kDType == DType::f32;
  constexpr TileShape kShape = kIsF32 ? kTf32TileShapes[TILEDMM_TILE % kNumTf32TileShapes] : kTileShapes[TILEDMM_TILE];
  constexpr int M = kShape.block_m, N = kShape.block_n;
  std::vector<Case> cases;
  for (const int layout : {0, 1, 2, 3}) {
    const bool is_a_along_m = layout / 2, is_b_along_n = layout % 2;
    const auto add = [&](Case c) {
      c.is_a_along_m = is_a_along_m;
      c.is_b_along_n = is_b_along_n;
      c.dtype = kDType;
      c.is_wide = TILEDMM_WIDE;
      c.is_bias_f32 = TILEDMM_WIDE && cases.size() % 2;
      cases.push_back(c);
    };
    add({.m = 2 * M + 9, .n = 2 * N + 24, .k = 200, .bias = 'n', .activation = Activation::relu});
    add({.m = 3 * M - 7, .n = N + N / 2 + 5, .k = 70, .bias = 'm', .activation = Activation::silu, .margin_c = 3});
    add({.m = 2 * M - 1, .n = N + 10, .k = 600, .chunk_k = 256, .activation = Activation::gelu, .num_sms = 40});
    add({.m = 2 * M + 30, .n = N + 8, .k = 840, .chunk_k = 256, .bias = 'n', .margin_c = 2, .num_sms = 6});
    add({.m = M / 2 + 1, .n = 2 * N + 8, .k = 150, .batch = 3, .bias = 'x', .num_sms = 64});
    add({.m = M + 3, .n = N + 8, .k = 530, .chunk_k = 256, .batch = 2, .repeats_of_b = 2, .bias = 'm', .num_sms = 3});
    add({.m = 5, .n = 20, .k = 24, .activation = Activation::gelu_tanh, .num_sms = 1});
    add({.m = M + 1, .n = N + 1, .k = 99, .margin = 1, .margin_c = 1});
    add({.m = M + M / 4, .n = N + N / 4, .k = 64 * 18 + 8, .num_sms = 2});
    add({.m = N + 7, .n = M + 9, .k = 330, .bias = 'n', .is_c_along_m = true});
    add({.m = M / 2, .n = 5 * N + 24, .k = 130, .bias = 'n', .num_sms = 3});
    add({.m = 5 * M + 2, .n = 2 * N, .k = 130, .batch = 1, .num_sms = 5});
    if (layout < 3 || kIsF32 || TILEDMM_WIDE) continue;
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

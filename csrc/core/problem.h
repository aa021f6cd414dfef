// One matrix multiplication, as plain data: no torch, no device runtime.
//
//   C[i, j] = activation( alpha * sum_p A[i, p] * B[p, j] + beta * bias[i, j] )      i < m, j < n, p < k
//
// Strides count elements, may be anything >= 0 (0 = broadcast) for A, B and bias; those of C must not let two elements
// share an address. C is write-only and overlaps no input. What of this a kernel takes, its entry says as data
// (rung.h): a new kind of product is a field here and a row there.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace tiledmm {

// The first four are dtypes of any product; those of 8 bits are only operands that have scales.
enum class DType : int32_t { f32 = 0, f64 = 1, f16 = 2, bf16 = 3, e4m3 = 4, e5m2 = 5 };
inline constexpr int kNumDTypes = 4;
inline constexpr const char* kDTypeNames[] = {"fp32", "fp64", "fp16", "bf16", "e4m3", "e5m2"};

enum class Activation : int32_t { none = 0, relu = 1, gelu = 2, gelu_tanh = 3, silu = 4 };
inline constexpr int kNumActivations = 5;
inline constexpr const char* kActivationNames[kNumActivations] = {"none", "relu", "gelu", "gelu_tanh", "silu"};

enum class Status : int32_t {
  ok = 0,
  unknown_algorithm = 1,  // no kernel of that name
  unsupported = 2,        // the kernel exists but cannot serve this device, dtype or machine
  out_of_memory = 3,      // the workspace could not be allocated
  launch_failed = 4,      // the GPU's runtime refused
};

// The bytes of an element that any product may have: kernels ask this where one more comparison costs registers.
constexpr int64_t size_of_wide(DType dtype) { return dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2; }
constexpr int64_t size_of(DType dtype) { return dtype >= DType::e4m3 ? 1 : size_of_wide(dtype); }

// How the dtypes of A, B and C differ. A bias has one that another of them has.
enum class Mix : int32_t {
  none,         // not at all
  wide_result,  // A and B have one of 16 bits, C has fp32
  operands,     // fp32 beside one of 16 bits in any other way: products are those of the elements in fp32
  fp8,          // A and B have 8 bits each, C and its bias one of fp32, fp16, bf16
  fp8_b,        // B alone has 8 bits, A one of fp32, fp16, bf16, and so C and its bias
  other,        // no kernel has this
};

inline constexpr int kMaxBatchDims = 64;

// Factors of A's and B's elements, in fp32: none, one for each row of A and column of B, or one for each block of 128
// elements along k. Where B alone has 8 bits, it alone has factors, of columns.
enum class Scaling : int32_t { none = 0, rows = 1, blocks = 2 };
inline constexpr int kScaledK = 128;  // elements of a block along k

// The factors of one operand. Those of blocks may be shared by `rows_of_block` rows of A or columns of B; a stride of 0
// shares one among all.
struct Scales {
  const float* data;
  int64_t stride_row, stride_k;  // from a row or column to the next, or from a block of them; from block to block of k
  int32_t rows_of_block;         // 1 or 128
  int32_t stride_group = 0;      // from a group's to the next one's: of B, where rows are grouped

  constexpr int64_t offset(int64_t row, int64_t k_block) const {
    return row / rows_of_block * stride_row + k_block * stride_k;
  }
};

// Products of several sizes in one call: rows of A in groups, each with a B of its own, or k in groups, each with a C
// of its own.
enum class Grouping : int32_t { none = 0, rows = 1, k = 2 };

// One batch dimension; strides in elements. C's is 0 only where size == 1.
struct BatchDim {
  int64_t size;
  int64_t stride_a;
  int64_t stride_b;
  int64_t stride_c;
  int64_t stride_bias;
};

struct GemmProblem {
  int64_t m, n, k;
  const void* a;
  int64_t stride_am, stride_ak;
  const void* b;
  int64_t stride_bk, stride_bn;
  void* c;
  int64_t stride_cm, stride_cn;
  // Added before the activation: a vector along n (stride_bias_m is 0) or along m, or a matrix. Null: nothing.
  const void* bias;
  int64_t stride_bias_m, stride_bias_n;
  // Outermost first. num_batch_dims == 0: one product.
  const BatchDim* batch_dims;
  int32_t num_batch_dims;
  DType dtype_a, dtype_b, dtype_bias, dtype_c;
  Activation activation;
  bool allow_tf32;    // GPU, fp32: products may be rounded to tf32
  bool is_b_widened;  // B is a copy of one of 8 bits beside a wider A: k is summed in the chunks that such a B has
  // m elements of C's dtype, contiguous: the sums of A's rows over k (a bias's gradient, where C is the weight's).
  // Null: none. Only kernels that say so write them.
  void* row_sums;
  // The sum before the activation is stored, too, rounded, this many elements behind its element of C; of a gated
  // product, up's sum is as well. 0: it is not. Only kernels that say so store them, and only with an activation.
  int64_t sum_offset, up_sum_offset;
  // Computed in the type that sums have. alpha == 0: no product is computed; beta == 0: the bias is not read.
  double alpha = 1, beta = 1;
  // scaling::rows: C = activation(sum * (scale_a * scale_b) + bias). scaling::blocks: each sum over 128
  // elements of k is multiplied by its blocks' scale_a * scale_b before it is added to the others.
  Scaling scaling;
  Grouping grouping;
  Scales scale_a, scale_b;
  // Where each group ends, in the memory of the device. The only dimension of the batch counts the groups: of its
  // strides, those of B and bias serve where rows are grouped, those of C and bias where k is (groups.h).
  const int32_t* group_ends;
  // A second B, of the same shape and strides: C = activation(A B + bias) * (A gated_b + gated_bias). Null: none.
  const void* gated_b;
  const void* gated_bias;  // of the bias's strides and dtype; either one may be null

  void set_dtypes(DType dtype) { dtype_a = dtype_b = dtype_bias = dtype_c = dtype; }
};

constexpr Mix mix_of(DType a, DType b, DType bias, DType c) {
  if (size_of(a) == 1 || size_of(b) == 1) {
    const auto is_wide = [](DType dtype) { return size_of(dtype) == 2 || dtype == DType::f32; };
    if (size_of(b) > 1 || !is_wide(c) || bias != c) return Mix::other;
    return size_of(a) == 1 ? Mix::fp8 : is_wide(a) ? Mix::fp8_b : Mix::other;
  }
  if (a == b && a == c) return bias == c ? Mix::none : Mix::other;
  const DType narrow = a != DType::f32 ? a : b != DType::f32 ? b : c;
  for (const DType dtype : {a, b, bias, c}) {
    if (size_of(narrow) != 2 || (dtype != DType::f32 && dtype != narrow)) return Mix::other;
  }
  return a == b && a == narrow ? Mix::wide_result : Mix::operands;
}
constexpr Mix mix_of(const GemmProblem& p) {
  return mix_of(p.dtype_a, p.dtype_b, p.bias ? p.dtype_bias : p.dtype_c, p.dtype_c);
}

constexpr bool is_grouped(const GemmProblem& p) { return p.grouping != Grouping::none; }

// Whether C's elements are neighbours down its columns, and not along its rows.
constexpr bool is_column_major(const GemmProblem& problem) { return problem.stride_cm == 1 && problem.stride_cn != 1; }

// C is the sums, rounded, and nothing else.
constexpr bool is_plain(const GemmProblem& problem) {
  return problem.alpha == 1 && !problem.bias && problem.activation == Activation::none;
}
// Takes from a problem what follows its sums: alpha, bias and activation.
constexpr void drop_epilogue(GemmProblem& problem) {
  problem.alpha = 1, problem.bias = nullptr, problem.activation = Activation::none;
}
// The sums are scaled, or what is added is: more than a vector of an item to add.
constexpr bool is_blended(const GemmProblem& problem) {
  return problem.alpha != 1 ||
         (problem.bias && (problem.beta != 1 || (problem.stride_bias_m != 0 && problem.stride_bias_n != 0)));
}

// Products in the batch.
inline int64_t batch_size(const GemmProblem& problem) {
  int64_t size = 1;
  for (int32_t d = 0; d < problem.num_batch_dims; ++d) size *= problem.batch_dims[d].size;
  return size;
}

// A problem as the kernels see it: its batch folded into as few dimensions as possible. Those of a GPU's problem are in
// batch_dims, since a kernel's parameters must hold everything; a CPU's are where gemm.batch_dims points.
inline constexpr int kMaxGpuBatchDims = 6;

struct FoldedProblem {
  GemmProblem gemm;
  int64_t batch_size;
  int64_t chunk_k;  // of the order of summation (summation.h)
  int64_t asked_n;  // the caller's n, before a batch was folded into it
  BatchDim batch_dims[kMaxGpuBatchDims];
};

// Multiply-adds, twice. Groups share the rows, or the k, that a problem has.
inline double num_flops(const FoldedProblem& problem) {
  const GemmProblem& p = problem.gemm;
  return 2 * double(p.m) * double(p.n) * double(p.k) * double(is_grouped(p) ? 1 : problem.batch_size);
}

// Bytes of the operands and of C, once.
inline double bytes_moved(const FoldedProblem& problem) {
  const GemmProblem& p = problem.gemm;
  const double m = double(p.m), n = double(p.n), k = double(p.k);
  const double groups = is_grouped(p) ? double(problem.batch_dims[0].size) : 1;
  const double bytes = m * k * double(size_of(p.dtype_a)) +
                       k * n * double(size_of(p.dtype_b)) * (p.grouping == Grouping::rows ? groups : 1) +
                       m * n * double(size_of(p.dtype_c)) * (p.grouping == Grouping::k ? groups : 1);
  return is_grouped(p) ? bytes : bytes * double(problem.batch_size);
}

// The same question for a batch of a GPU, whose items may have a bias each.
inline bool is_blended(const FoldedProblem& problem) {
  bool result = is_blended(problem.gemm);
  for (int32_t d = 0; d < problem.gemm.num_batch_dims; ++d) result |= problem.batch_dims[d].stride_bias != 0;
  return result;
}

}  // namespace tiledmm

// One matrix multiplication, as plain data: no torch, no device runtime.
//
//   C[i, j] = activation( sum_p A[i, p] * B[p, j] + bias[j] )      i < m, j < n, p < k
//
// Strides count elements, may be anything >= 0 (0 = broadcast) for A, B and bias; those of C must not
// let two elements share an address. A, B, bias and C have one dtype. C is write-only and overlaps no input.
#pragma once

#include <cstdint>

namespace tiledmm {

enum class DType : int32_t { f32 = 0, f64 = 1, f16 = 2, bf16 = 3 };
inline constexpr int kNumDTypes = 4;
inline constexpr const char* kDTypeNames[kNumDTypes] = {"fp32", "fp64", "fp16", "bf16"};

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

constexpr int64_t size_of(DType dtype) { return dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2; }

inline constexpr int kMaxBatchDims = 64;

// One batch dimension; strides in elements. C's is 0 only where size == 1.
struct BatchDim {
  int64_t size;
  int64_t stride_a;
  int64_t stride_b;
  int64_t stride_c;
};

struct GemmProblem {
  int64_t m, n, k;
  const void* a;
  int64_t stride_am, stride_ak;
  const void* b;
  int64_t stride_bk, stride_bn;
  void* c;
  int64_t stride_cm, stride_cn;
  // A vector added before the activation, along n or along m: the other stride is 0. Null: none.
  const void* bias;
  int64_t stride_bias_m, stride_bias_n;
  // Outermost first; the bias is shared by the whole batch. num_batch_dims == 0: one product.
  const BatchDim* batch_dims;
  int32_t num_batch_dims;
  DType dtype;
  Activation activation;
  bool allow_tf32;  // GPU, fp32: products may be rounded to tf32
  // m elements of C's dtype, contiguous: the sums of A's rows over k (a bias's gradient, where C is the weight's).
  // Null: none. Only kernels that say so write them.
  void* row_sums;
  // The sum before the activation is stored, too, rounded, this many elements behind its element of C. 0: it is not.
  // Only the CPU's kernels take it, and only with an activation.
  int64_t sum_offset;
};

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

}  // namespace tiledmm

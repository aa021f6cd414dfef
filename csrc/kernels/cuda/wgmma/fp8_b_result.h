// wgmma_fp8_b makes C of sums here: scales, bias, activation, one rounding.
#pragma once

#include "kernels/cuda/shared/epilogue.h"
#include "platform/epilogue.h"

namespace tiledmm::cuda {
namespace {

struct Fp8BResult {
  int n;
  bool stores_vectors;  // rows of C begin with whole vectors of four
  DType dtype;
  Activation activation;
  const float* scales;
  int64_t stride_scales;
  const void* bias;
  int64_t stride_bias;
  void* c;
  int64_t ldc;

  Fp8BResult() = default;
  explicit Fp8BResult(const GemmProblem& p)
      : n(int(p.n)),
        stores_vectors(reinterpret_cast<uintptr_t>(p.c) % uint64_t(4 * size_of(p.dtype_c)) == 0 &&
                       p.stride_cm % 4 == 0),
        dtype(p.dtype_c),
        activation(p.activation),
        scales(p.scale_b.data),
        stride_scales(p.scale_b.stride_row),
        bias(p.bias),
        stride_bias(p.stride_bias_n),
        c(p.c),
        ldc(p.stride_cm) {}
};

// Four neighbours of a row of C, of which the first num_inside are inside.
__device__ __forceinline__ void store_four(void* c, DType dtype, int64_t idx, float4 v, int num_inside,
                                           bool is_vector) {
  if (is_vector && num_inside >= 4) {
    if (dtype == DType::f32)
      *reinterpret_cast<float4*>(static_cast<float*>(c) + idx) = v;
    else
      *reinterpret_cast<uint2*>(static_cast<uint16_t*>(c) + idx) =
          dtype == DType::f16 ? make_uint2(pack_pair<__half>(v.x, v.y), pack_pair<__half>(v.z, v.w))
                              : make_uint2(pack_pair<__nv_bfloat16>(v.x, v.y), pack_pair<__nv_bfloat16>(v.z, v.w));
    return;
  }
#pragma unroll 1
  for (int i = 0; i < num_inside && i < 4; ++i) {
    gpu::store_any(c, dtype, idx + i, v.x);
    v = make_float4(v.y, v.z, v.w, v.x);
  }
}

// The factors and the bias of four of C's columns, of which the first num_inside are.
struct Fp8BColumns {
  float factors[4], bias[4];

  __device__ __forceinline__ Fp8BColumns(const Fp8BResult& to, int col, int num_inside) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      factors[i] = i < num_inside ? __ldg(to.scales + (col + i) * to.stride_scales) : 0;
      bias[i] = to.bias && i < num_inside ? gpu::load_any(to.bias, to.dtype, (col + i) * to.stride_bias)
                                          : -0.0f;  // adds nothing
    }
  }
};

// What is rounded of four sums, to C. The scaled sum is rounded before the bias is added, as by other kernels.
__device__ __forceinline__ void store_finished(const Fp8BResult& to, const Fp8BColumns& columns, float4 v, int row,
                                               int col, int num_inside) {
  v = make_float4(
      __fmul_rn(v.x, columns.factors[0]) + columns.bias[0], __fmul_rn(v.y, columns.factors[1]) + columns.bias[1],
      __fmul_rn(v.z, columns.factors[2]) + columns.bias[2], __fmul_rn(v.w, columns.factors[3]) + columns.bias[3]);
  if (to.activation != Activation::none) {
#pragma unroll 1
    for (int i = 0; i < 4; ++i) v = make_float4(v.y, v.z, v.w, gpu::activated<float>(to.activation, v.x));
  }
  store_four(to.c, to.dtype, row * to.ldc + col, v, num_inside, to.stores_vectors);
}

}  // namespace
}  // namespace tiledmm::cuda

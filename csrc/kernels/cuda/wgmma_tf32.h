// The fp32 parts of the wgmma kernel, products in tf32. The copy engine rounds as it copies (its type TFLOAT32). The
// matrix unit takes fp32 from shared memory along k only: an A along m passes through registers instead, which each
// consumer loads from shared memory in the order of the fragments while the k tile before is multiplied.
//
// Source of that idea: CUTLASS 3, the collective with A from registers for tf32 (sm90_mma_tma_gmma_rs_warpspecialized).
#pragma once

#include "platform/element.h"
#include "platform/ptx_sm90.h"

namespace tiledmm::cuda {
namespace {

// Row of the 64 of a consumer that this thread's fragments start with, if A lies along m in boxes of 32 rows x 32 of k,
// 128-byte swizzled. A thread takes two neighbours, as rows r and r + 8 of the instruction; the order is such that the
// pairs that half a warp reads at once, four of k, lie in different banks, and a warp's rows form whole sectors of C.
__device__ __forceinline__ int first_row_of_fragment() {
  const int warp = threadIdx.x / 32 % 4, group = threadIdx.x % 32 / 4;
  const int chunk = warp % 2 * 2 + group / 4 + group / 2 % 2 * 4;  // of 16 bytes
  return warp / 2 * 32 + chunk * 4 + group % 2 * 2;
}

// Fragments of one k tile; `smem` is that of the consumer's 64 rows.
template <int STEPS>
__device__ __forceinline__ void load_fragments(uint32_t (&fragments)[STEPS][4], uint32_t smem, int first_row) {
  const int k = threadIdx.x % 4;
  const auto address_at = [&](int k) {
    return smem + first_row / 32 * 4096 + k * 128 + ((first_row % 32 / 4 ^ k) << 4) + first_row % 4 * 4;
  };
  const uint32_t low = address_at(k), high = address_at(k + 4);
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    const uint2 first = load_shared_pair(low + step * 1024), second = load_shared_pair(high + step * 1024);
    fragments[step][0] = first.x;
    fragments[step][1] = first.y;
    fragments[step][2] = second.x;
    fragments[step][3] = second.y;
  }
}

// acc = A * B over the next k tiles of the ring, A through registers. address_b: of the first stage, as matrix_address
// has it.
template <class Cfg, class Piece, class Shared, class Ring>
__device__ __forceinline__ void multiply_from_registers(float (&acc)[Piece::kAcc], uint32_t address_b,
                                                        const Shared& shared, int consumer, Ring& ring,
                                                        int num_k_tiles) {
  constexpr int kSteps = Cfg::kBlockK / Cfg::kMmaK;
  const int first_row = first_row_of_fragment();
  const bool is_lane_0 = threadIdx.x % 32 == 0;
  uint32_t fragments[2][kSteps][4];
  const auto load_next = [&](uint32_t (&to)[kSteps][4]) {
    mbarrier_wait_parity(shared.full + ring.stage * 8, ring.phase);
    load_fragments(to, shared.stages + ring.stage * Cfg::kStageBytes + consumer * 64 * 128, first_row);
  };
  int previous = -1, k_tile = 0;
  const auto multiply_one = [&](uint32_t (&taken)[kSteps][4], uint32_t (&next)[kSteps][4]) {
    const uint32_t address = address_b + __shfl_sync(~0u, ring.stage, 0) * (Cfg::kStageBytes >> 4);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      wgmma_mma_async_tf32<Piece::kBlockN>(
          acc, taken[step], (Cfg::kDescB & 0xffffffff00000000) | (uint32_t(Cfg::kDescB) + address + step * Cfg::kStepB),
          step > 0 || k_tile > 0);
    wgmma_commit_group();
    // The k tile before this one is multiplied: its stage and its fragments are free. This one goes on meanwhile.
    wgmma_wait_group<1>();
    if (previous >= 0 && is_lane_0) mbarrier_arrive(shared.empty + previous * 8);
    previous = ring.stage;
    ring.advance();
    if (k_tile + 1 < num_k_tiles) load_next(next);
  };
  load_next(fragments[0]);
  while (true) {
    multiply_one(fragments[0], fragments[1]);
    if (++k_tile == num_k_tiles) break;
    multiply_one(fragments[1], fragments[0]);
    if (++k_tile == num_k_tiles) break;
  }
  wgmma_wait_group<0>();
  fence_registers(acc);
  if (is_lane_0) mbarrier_arrive(shared.empty + previous * 8);
}

// 64 rows of C from the accumulators of one warpgroup: bias, activation, two neighbours in one store. Neighbours lie
// along n, or along m where A came through registers: C is then column-major.
template <class Cfg, class Arguments, class Activate>
__device__ __forceinline__ void store_block_tile_tf32(const float (&acc)[Cfg::kAcc], const Arguments& args, int row,
                                                      int col, const Activate& activate_all) {
  constexpr bool kAlongM = Cfg::kAFromRegisters;
  constexpr int kValues = Cfg::kStoreN / 2;  // of a thread in one part
  const int lane = threadIdx.x % 32;
  const float* bias = static_cast<const float*>(args.bias);
  const int first_row = row + (kAlongM ? first_row_of_fragment() : threadIdx.x / 32 % 4 * 16 + lane / 4);
  const int first_col = col + lane % 4 * 2;
  constexpr int kSecondRow = kAlongM ? 1 : 8;
  const bool is_inside = row + 64 <= args.m && col + Cfg::kBlockN <= args.n;
  float bias_m[2] = {0, 0};  // of this thread's two rows
  if (bias && !args.stride_bias_n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = first_row + h * kSecondRow;
      if (i < args.m) bias_m[h] = bias[args.stride_bias_m ? i : 0];
    }
  }
  float* c =
      static_cast<float*>(args.c) + (kAlongM ? first_row + first_col * args.ldc : first_row * args.ldc + first_col);
#pragma unroll
  for (int part = 0; part < Cfg::kBlockN / Cfg::kStoreN; ++part) {
    const int part_col = first_col + part * Cfg::kStoreN;
    float v[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) v[i] = acc[part * kValues + i];
    if (bias && args.stride_bias_n) {
#pragma unroll
      for (int i = 0; i < kValues / 2; ++i) {
        const int j = part_col + i / 2 * 8 + i % 2;
        const float value = j < args.n ? bias[j] : 0;
        v[i / 2 * 4 + i % 2] += value;
        v[i / 2 * 4 + i % 2 + 2] += value;
      }
    } else if (bias) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) v[i] += bias_m[i / 2 % 2];
    }
    activate_all(v);
    // Pair i: two rows of a column, or two columns of a row.
    const auto store_pairs = [&](const auto& store) {
#pragma unroll
      for (int i = 0; i < kValues / 2; ++i) {
        const int j = part * Cfg::kStoreN + i / 2 * 8;
        if constexpr (kAlongM)
          store(c + (j + i % 2) * args.ldc, v[i / 2 * 4 + i % 2], v[i / 2 * 4 + i % 2 + 2], first_row,
                first_col + j + i % 2);
        else
          store(c + i % 2 * 8 * args.ldc + j, v[2 * i], v[2 * i + 1], first_row + i % 2 * 8, first_col + j);
      }
    };
    if (is_inside && args.stores_pairs) {
      store_pairs([](float* to, float x, float y, int, int) { *reinterpret_cast<float2*>(to) = make_float2(x, y); });
    } else {
      store_pairs([&](float* to, float x, float y, int i, int j) {
        if (i >= args.m || j >= args.n) return;
        to[0] = x;
        if (kAlongM ? i + 1 < args.m : j + 1 < args.n) to[1] = y;
      });
    }
  }
}

}  // namespace
}  // namespace tiledmm::cuda

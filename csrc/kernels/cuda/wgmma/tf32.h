// The fp32 parts of the wgmma kernel: products in tf32, a C in fp32. The copy engine rounds as it copies (its type
// TFLOAT32). The matrix unit takes fp32 from shared memory along k only: an A along m passes through registers instead,
// which each consumer loads from shared memory in the order of the fragments while the k tile before is multiplied.
//
// Source of that idea: CUTLASS 3, the collective with A from registers for tf32 (sm90_mma_tma_gmma_rs_warpspecialized).
#pragma once

#include "kernels/cuda/shared/epilogue.h"
#include "kernels/cuda/shared/ptx_sm90.h"

namespace tiledmm::cuda {
namespace {

constexpr int kTransposers = 3;  // warps

// Row of the 64 of a consumer that this thread's fragments start with, if A lies along m in boxes of 32 rows x 32 of k,
// 128-byte swizzled. A thread takes two neighbours, as rows r and r + 8 of the instruction; the order is such that the
// pairs that half a warp reads at once, four of k, lie in different banks, and a warp's rows form whole sectors of C.
__device__ __forceinline__ int first_row_of_fragment() {
  const int warp = threadIdx.x / 32 % 4, group = threadIdx.x % 32 / 4;
  const int packet = warp % 2 * 2 + group / 4 + group / 2 % 2 * 4;  // of 16 bytes
  return warp / 2 * 32 + packet * 4 + group % 2 * 2;
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

// Transposes 32 x 32 elements where they lie, both times 128-byte swizzled: one warp. In blocks of 4 x 4, a diagonal
// for 8 lanes at a time: the transposed blocks lie on the same diagonal, and neither reads nor writes meet in a bank.
__device__ __forceinline__ void transpose_box(uint32_t smem) {
  constexpr int kDiagonals = 2;  // of a lane
  const int lane = threadIdx.x % 32, far = lane % 8;
  uint4 v[kDiagonals][4];
#pragma unroll
  for (int d = 0; d < kDiagonals; ++d) {
    const int close = far ^ (lane / 8 + d * 4);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      v[d][i] = load_shared_vector(smem + (far * 4 + i) * 128 + ((close ^ (far % 2 * 4 + i)) << 4));
  }
  __syncwarp();
#pragma unroll
  for (int d = 0; d < kDiagonals; ++d) {
    const int close = far ^ (lane / 8 + d * 4);
    const auto store = [&](int i, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
      store_shared_vector(smem + (close * 4 + i) * 128 + ((far ^ (close % 2 * 4 + i)) << 4), make_uint4(x, y, z, w));
    };
    store(0, v[d][0].x, v[d][1].x, v[d][2].x, v[d][3].x);
    store(1, v[d][0].y, v[d][1].y, v[d][2].y, v[d][3].y);
    store(2, v[d][0].z, v[d][1].z, v[d][2].z, v[d][3].z);
    store(3, v[d][0].w, v[d][1].w, v[d][2].w, v[d][3].w);
  }
}

// What the producer's other warps do where B lies along n: they share out its stages, in which they transpose its k
// tiles. A stage is always the same warp's: a wait tells even fills of a stage from odd ones alone, so a warp that had
// not waited for the fill before its own, which may arrive later than those behind it, could take it for its own.
template <class Cfg, class Shared, class Ring>
__device__ __forceinline__ void transpose_k_tiles(const Shared& shared, Ring& ring, int num_k_tiles, int transposer) {
  for (int k_tile = 0; k_tile < num_k_tiles; ++k_tile) {
    if (ring.stage % kTransposers == transposer) {
      mbarrier_wait_parity(shared.full + ring.stage * 8, ring.phase);
      const uint32_t smem_b = shared.stages + ring.stage * Cfg::kStageBytes + Cfg::kABytes;
#pragma unroll 1
      for (int box = 0; box < Cfg::kBlockN / 32; ++box) transpose_box(smem_b + box * 4096);
      fence_proxy_async();
      __syncwarp();
      if (threadIdx.x % 32 == 0) mbarrier_arrive(shared.transposed + ring.stage * 8);
    }
    ring.advance();
  }
}

// acc = A * B over the next k tiles of the ring, A through registers. address_b: of the first stage, as matrix_address
// has it.
template <class Cfg, class Piece, class Shared, class Ring>
__device__ __forceinline__ void multiply_from_registers(float (&acc)[Piece::kAcc], uint32_t address_b,
                                                        const Shared& shared, Ring& ring, int num_k_tiles) {
  constexpr int kSteps = Cfg::kBlockK / Cfg::kMmaK;
  const int first_row = first_row_of_fragment();
  const int consumer = Cfg::kConsumers == 1 ? 0 : threadIdx.x / kWarpgroup;
  uint32_t fragments[2][kSteps][4];
  const auto load_next = [&](uint32_t (&to)[kSteps][4]) {
    mbarrier_wait_parity(shared.full + ring.stage * 8, ring.phase);
    if constexpr (Cfg::kTransposesB) mbarrier_wait_parity(shared.transposed + ring.stage * 8, ring.phase);
    load_fragments(to, shared.stages + ring.stage * Cfg::kStageBytes + consumer * 64 * 128, first_row);
  };
  int previous = -1, k_tile = 0;
  const auto multiply_one = [&](uint32_t (&taken)[kSteps][4], uint32_t (&next)[kSteps][4]) {
    const uint32_t address = address_b + __shfl_sync(~0u, ring.stage, 0) * (Cfg::kStageBytes >> 4);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      wgmma_mma_async_tf32<Piece::kBlockN>(
          acc, taken[step], matrix_descriptor_at(Cfg::kDescB, address + step * Cfg::kStepB), step > 0 || k_tile > 0);
    wgmma_commit_group();
    // The k tile before this one is multiplied: its stage and its fragments are free. This one goes on meanwhile.
    wgmma_wait_group<1>();
    if (previous >= 0) release_stage<Cfg>(shared, previous);
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
  release_stage<Cfg>(shared, previous);
}

// 64 rows of C from the accumulators of one warpgroup, through shared memory to C, 64 lines of 32 neighbours at a time.
// Neighbours lie along n, or along m where C is column-major. Operands may have 16 bits.
template <class Cfg>
__device__ __forceinline__ void store_block_tile_f32(const float (&acc)[Cfg::kAcc], const CUtensorMap* map_c,
                                                     const Arguments& args, char* smem_c, int consumer, const Place& at,
                                                     int row, int new_col, int& num_stores) {
  constexpr bool kAlongM = Cfg::kCIsMMajor;
  constexpr int kValues = Cfg::kStoreN / 2;  // of a thread in one store
  static_assert(Cfg::kStoreN == 32, "a line is as wide as the swizzle");
  static_assert(num_store_buffers(Cfg::kConsumers) == kNumStoreBuffers, "the store before last has read its buffer");
  const int thread = threadIdx.x % kWarpgroup, warp = thread / 32, lane = thread % 32;
  const int barrier_id = 1 + consumer;
  // The thread's first row and column, counted from the warpgroup's.
  const int first_row = Cfg::kAFromRegisters ? first_row_of_fragment() : warp * 16 + lane / 4;
  const int first_col = lane % 4 * 2;

  // Half of the lanes take their values in another order, so that half a warp's pairs lie in different banks.
  const bool is_odd = lane / (Cfg::kAFromRegisters ? 8 : 4) % 2;
#pragma unroll
  for (int part = 0; part < Cfg::kBlockN / Cfg::kStoreN; ++part) {
    const int part_col = at.col + part * Cfg::kStoreN;
    if (part_col + Cfg::kStoreN <= new_col) continue;
    char* buffer = smem_c + (num_stores++ % kNumStoreBuffers) * Cfg::kStoreBytes;
    const float* v = acc + part * kValues;
    // The store before last has read this buffer; only the thread that issued it can wait for that.
    if (thread == 0) cp_async_bulk_wait_group_read<kNumStoreBuffers - 1>();
    named_barrier_sync(barrier_id, kWarpgroup);
    const uint32_t smem = smem_address(buffer);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if constexpr (kAlongM) {
          // Rows r, r + 1 of column 8 j + first_col + i.
          const float x = is_odd ? v[4 * j + 1 - i] : v[4 * j + i];
          const float y = is_odd ? v[4 * j + 3 - i] : v[4 * j + 2 + i];
          const int line = 8 * j + first_col + (is_odd ? 1 - i : i);
          store_shared_pair(
              smem + first_row / 32 * 4096 + line * 128 + ((first_row % 32 / 4 ^ line % 8) << 4) + first_row % 4 * 4, x,
              y);
        } else {
          // Columns 8 j + first_col and the next, of the thread's first or second row.
          const float x = is_odd ? v[4 * (j ^ 2) + 2 * i] : v[4 * j + 2 * i];
          const float y = is_odd ? v[4 * (j ^ 2) + 2 * i + 1] : v[4 * j + 2 * i + 1];
          const int line = first_row + Cfg::kRowStep * i, packet = 2 * (is_odd ? j ^ 2 : j) + first_col / 4;
          store_shared_pair(smem + line * 128 + ((packet ^ line % 8) << 4) + first_col % 4 * 4, x, y);
        }
      }
    }
    if (__builtin_expect(Cfg::kIsPlain || args.stores_by_tma, true)) {
      fence_proxy_async();
      named_barrier_sync(barrier_id, kWarpgroup);
      if (thread == 0) {
        if constexpr (kAlongM) {
          cp_async_bulk_tensor_3d_store(map_c, row, part_col, int(at.batch_c), smem);
          cp_async_bulk_tensor_3d_store(map_c, row + 32, part_col, int(at.batch_c), smem + 4096);
        } else {
          cp_async_bulk_tensor_3d_store(map_c, part_col, row, int(at.batch_c), smem);
        }
        cp_async_bulk_commit_group();
      }
    } else {
      named_barrier_sync(barrier_id, kWarpgroup);
      float* to = static_cast<float*>(args.c) + at.batch_c * args.batch_step_c;
#pragma unroll 4
      for (int i = 0; i < 16; ++i) {
        const int line = warp * 16 + i;
        const int r = row + (kAlongM ? line / 32 * 32 + lane : line), c = part_col + (kAlongM ? line % 32 : lane);
        if (r < args.m && c < args.n)
          to[kAlongM ? r + c * args.ldc : r * args.ldc + c] =
              *reinterpret_cast<const float*>(buffer + line * 128 + ((lane / 4 ^ line % 8) << 4) + lane % 4 * 4);
      }
    }
  }
}

// Stores those rows of a chunk's sums, unrounded; `partial` is row-major where C is column-major.
template <class Cfg>
__device__ __forceinline__ void store_partial_along_m(const float (&acc)[Cfg::kAcc], const Arguments& args,
                                                      const Place& at, int row) {
  const int i = row + first_row_of_fragment();
  if (i >= args.ld_partial) return;
#pragma unroll
  for (int pair = 0; pair < Cfg::kAcc / 2; ++pair) {
    const int j = at.col + pair / 2 * 8 + threadIdx.x % 4 * 2 + pair % 2;
    if (j < args.n)
      *reinterpret_cast<float2*>(args.partial + (int64_t(at.slab) * args.n + j) * args.ld_partial + i) =
          make_float2(acc[pair / 2 * 4 + pair % 2], acc[pair / 2 * 4 + pair % 2 + 2]);
  }
}

}  // namespace
}  // namespace tiledmm::cuda

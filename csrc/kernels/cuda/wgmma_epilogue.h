// Epilogue of the wgmma kernel: from the accumulators of a warpgroup to C, to the partial sums of a chunk, to the sums
// of A's rows.
#pragma once

#include "core/problem.h"
#include "platform/element.h"
#include "platform/ptx_sm90.h"

namespace tiledmm::cuda {
namespace {

constexpr int kWarpgroup = 128;      // threads
constexpr int kNumStoreBuffers = 2;  // of a consumer: one fills while the other is stored

// Divides numbers from 0 to 2^31 - 1 without the latency of a division: Granlund and Montgomery, "Division by Invariant
// Integers using Multiplication".
struct Divisor {
  int value = 1;
  uint32_t factor = 0;
  int shift = 0;

  Divisor() = default;
  explicit Divisor(int value) : value(value) {
    int bits = 0;
    while (int64_t(1) << bits < value) ++bits;
    shift = bits - 1;
    factor = uint32_t(((uint64_t(1) << (31 + bits)) + value - 1) / value);
  }
  __device__ __forceinline__ int quotient(int number) const {
    return value == 1 ? number : int(__umulhi(uint32_t(number), factor) >> shift);
  }
};

// A dimension of the batch, its strides in steps of the operands' tensor maps.
struct BatchSteps {
  int size, a, b;
  int64_t c;
};

struct Arguments {
  int m, n, num_k_tiles;
  int tiles_m, tiles_n, num_tiles;  // num_tiles: of the whole batch, each as often as num_splits says
  int full_tiles;                   // so many are computed whole, the others in halves along n
  int group_m;
  Divisor full_group_m, last_group_m, tiles_of_group, tiles_of_item;
  int chunk_tiles;  // k tiles of a chunk
  int num_splits;   // 1, or the number of chunks: each is computed by itself, to `partial`
  int a_bytes;      // of A that arrive for one k tile
  int num_batch_dims;
  BatchSteps batch[kMaxGpuBatchDims];
  Activation activation;
  bool stores_by_tma;
  bool stores_pairs;  // where not by the copy engine: rows of C consist of whole, aligned words of two elements
  void* c;
  int64_t ldc, batch_step_c;
  const void* bias;
  int stride_bias_m, stride_bias_n;
  void* row_sums;
  float* partial;
  int64_t ld_partial;
};

// Where a tile lies: in C, in the batch (third coordinates in the tensor maps), in k.
struct Place {
  int row, col;
  int batch_a, batch_b;
  int64_t batch_c;
  int slab;  // of `partial`: item and chunk
  int first_k_tile, num_k_tiles;
};

// Two values as 16-bit elements, rounded to nearest even; the first in the low half.
template <class T>
__device__ __forceinline__ uint32_t pack_pair(float first, float second) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __half2 pair = __floats2half2_rn(first, second);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}
template <class T>
using Pair = std::conditional_t<std::is_same_v<T, __nv_bfloat16>, __nv_bfloat162, __half2>;
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }

// In a loop that is not unrolled: one copy of the function's code. `slots` is this thread's alone, STRIDE floats apart.
template <int COUNT, int STRIDE>
__device__ __forceinline__ void activate_slots(float* slots, Activation activation) {
#pragma unroll 1
  for (int i = 0; i < COUNT; ++i) {
    const float x = slots[i * STRIDE];
    float y;
    if (activation == Activation::gelu)
      y = x * normal_cdf(x);
    else if (activation == Activation::gelu_tanh)
      y = activate<Activation::gelu_tanh>(x);
    else
      y = activate<Activation::silu>(x);
    slots[i * STRIDE] = x != x ? x : y;
  }
}

// A warp's 16 rows of `num_rows`, of which `num_cols` columns, from a swizzled buffer of shared memory to `to`, word by
// word of one or two elements: for a C that the copy engine cannot take. What depends on the row is known to the
// compiler: the loop costs two instructions a word and the row's address.
template <class Word, int STORE_N>
__device__ __forceinline__ void store_rows(const char* buffer, void* to, int64_t ldc, int num_rows, int num_cols) {
  constexpr int kWords = STORE_N * 2 / int(sizeof(Word)), kElements = int(sizeof(Word)) / 2;
  const int warp = threadIdx.x % kWarpgroup / 32, lane = threadIdx.x % 32;
  const char* from = buffer + warp * 16 * (STORE_N * 2);
  num_rows -= warp * 16;
#pragma unroll
  for (int first = 0; first < kWords; first += 32) {
    const int word = first + lane;
    if (word >= kWords || word * kElements >= num_cols) continue;
    Word words[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int key = STORE_N == 64 ? i % 8 : i / 2 % 4;
      words[i] = *reinterpret_cast<const Word*>(from + i * (STORE_N * 2) + ((word * int(sizeof(Word))) ^ (key << 4)));
    }
    auto* to_word = static_cast<uint16_t*>(to) + word * kElements;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (i < num_rows) *reinterpret_cast<Word*>(to_word) = words[i];
      to_word += ldc;
    }
  }
}

// 64 rows of C at `row` from the accumulators of one warpgroup: bias, activation, rounding, to shared memory, to C.
template <class Cfg>
__device__ __forceinline__ void store_block_tile(float (&acc)[Cfg::kAcc], const CUtensorMap* map_c,
                                                 const Arguments& args, char* smem_c, typename Cfg::T* smem_bias,
                                                 int consumer, const Place& at, int row, int& num_stores) {
  using T = typename Cfg::T;
  const int col = at.col;
  constexpr int kStoreN = Cfg::kStoreN, kValues = kStoreN / 2;  // of a thread in one store
  const int thread = threadIdx.x % kWarpgroup, warp = thread / 32, lane = thread % 32;
  const int barrier_id = 1 + consumer;
  const T* bias = static_cast<const T*>(args.bias);

  float bias_m[2] = {0, 0};  // of this thread's two rows
  if (bias && args.stride_bias_n) {
    for (int j = thread; j < Cfg::kBlockN; j += kWarpgroup) {
      T value{};
      if (col + j < args.n) value = bias[col + j];
      smem_bias[j] = value;
    }
    named_barrier_sync(barrier_id, kWarpgroup);
  } else if (bias) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = row + warp * 16 + lane / 4 + 8 * h;
      if (i < args.m) bias_m[h] = to_float(bias[args.stride_bias_m ? i : 0]);
    }
  }

#pragma unroll
  for (int part_col = 0; part_col < Cfg::kBlockN; part_col += kStoreN) {
    char* buffer = smem_c + (num_stores++ % kNumStoreBuffers) * Cfg::kStoreBytes;
    float v[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) v[i] = acc[part_col / 2 + i];
    if (bias && args.stride_bias_n) {
#pragma unroll
      for (int j = 0; j < kStoreN / 8; ++j) {
        const auto pair = *reinterpret_cast<const Pair<T>*>(smem_bias + part_col + j * 8 + lane % 4 * 2);
        const float first = to_float(pair.x), second = to_float(pair.y);
        v[4 * j] += first;
        v[4 * j + 1] += second;
        v[4 * j + 2] += first;
        v[4 * j + 3] += second;
      }
    } else if (bias) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) v[i] += bias_m[i / 2 % 2];
    }
    // The store before last has read this buffer; only the thread that issued it can wait for that.
    if (thread == 0) cp_async_bulk_wait_group_read<kNumStoreBuffers - 1>();
    named_barrier_sync(barrier_id, kWarpgroup);
    if (args.activation == Activation::relu) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) v[i] = activate<Activation::relu>(v[i]);
    } else if (args.activation != Activation::none) {
      constexpr int kSlots = Cfg::kStoreBytes / 4 / kWarpgroup;
      float* slots = reinterpret_cast<float*>(buffer) + thread;
#pragma unroll
      for (int first = 0; first < kValues; first += kSlots) {
#pragma unroll
        for (int i = 0; i < kSlots; ++i) slots[i * kWarpgroup] = v[first + i];
        activate_slots<kSlots, kWarpgroup>(slots, args.activation);
#pragma unroll
        for (int i = 0; i < kSlots; ++i) v[first + i] = slots[i * kWarpgroup];
      }
      named_barrier_sync(barrier_id, kWarpgroup);  // others' slots are read before they are overwritten
    }
    // Swizzled as the copy engine expects it: without bank conflicts here.
    const int r = warp * 16 + lane % 16;
    const uint32_t row_address = smem_address(buffer) + r * (kStoreN * 2);
    const int mask = kStoreN == 64 ? r % 8 : r / 2 % 4;
#pragma unroll
    for (int j = 0; j < kStoreN / 16; ++j) {
      const int chunk = 2 * j + lane / 16;
      stmatrix_x4(row_address + ((chunk ^ mask) << 4), pack_pair<T>(v[8 * j], v[8 * j + 1]),
                  pack_pair<T>(v[8 * j + 2], v[8 * j + 3]), pack_pair<T>(v[8 * j + 4], v[8 * j + 5]),
                  pack_pair<T>(v[8 * j + 6], v[8 * j + 7]));
    }
    const int first_col = col + part_col;
    if (args.stores_by_tma) {
      fence_proxy_async();
      named_barrier_sync(barrier_id, kWarpgroup);
      if (thread == 0) {
        cp_async_bulk_tensor_3d_store(map_c, first_col, row, int(at.batch_c), smem_address(buffer));
        cp_async_bulk_commit_group();
      }
    } else {
      __syncwarp();  // a warp reads back the 16 rows that it wrote
      T* to = static_cast<T*>(args.c) + at.batch_c * args.batch_step_c + (row + warp * 16) * args.ldc + first_col;
      if (args.stores_pairs)
        store_rows<uint32_t, kStoreN>(buffer, to, args.ldc, args.m - row, args.n - first_col);
      else
        store_rows<uint16_t, kStoreN>(buffer, to, args.ldc, args.m - row, args.n - first_col);
      __syncwarp();  // stmatrix needs the warp together
    }
  }
}

// The same rows of a chunk's sums, as they are.
template <class Cfg>
__device__ __forceinline__ void store_partial(const float (&acc)[Cfg::kAcc], const Arguments& args, const Place& at,
                                              int row) {
  const int thread = threadIdx.x % kWarpgroup, warp = thread / 32, lane = thread % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = row + warp * 16 + lane / 4 + 8 * h;
    if (i >= args.m) break;
    float* to = args.partial + (int64_t(at.slab) * args.m + i) * args.ld_partial;
#pragma unroll
    for (int j = 0; j < Cfg::kBlockN / 8; ++j) {
      const int col = at.col + j * 8 + lane % 4 * 2;
      if (col < args.ld_partial)
        *reinterpret_cast<float2*>(to + col) = make_float2(acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]);
    }
  }
}

// Sums of 64 rows of A; all eight columns of `sums` are the same.
template <class T>
__device__ __forceinline__ void store_row_sums(const float (&sums)[4], const Arguments& args, int row) {
  const int thread = threadIdx.x % kWarpgroup, warp = thread / 32, lane = thread % 32;
  if (lane % 4) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = row + warp * 16 + lane / 4 + 8 * h;
    if (i < args.m) reinterpret_cast<uint16_t*>(args.row_sums)[i] = uint16_t(pack_pair<T>(sums[2 * h], 0));
  }
}

}  // namespace
}  // namespace tiledmm::cuda

// Epilogue of the wgmma kernels: from the accumulators of a warpgroup to C, to the partial sums of a chunk, to the sums
// of A's rows.
#pragma once

#include <utility>

#include "kernels/cuda/shared/arguments.h"
#include "kernels/cuda/shared/plan.h"

namespace tiledmm::cuda {
namespace {

// The total of the first `count` chunks' sums, added in their order.
template <int MOST>
__device__ __forceinline__ float4 sum_of(const float4 (&sums)[MOST], int count) {
  float4 v = sums[0];
#pragma unroll
  for (int i = 1; i < MOST; ++i) {
    if (i < count) v = make_float4(v.x + sums[i].x, v.y + sums[i].y, v.z + sums[i].z, v.w + sums[i].w);
  }
  return v;
}

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

// Two elements of C.
template <class Cfg>
__device__ __forceinline__ uint32_t pack_result(const Arguments& args, float first, float second) {
  using C = typename Cfg::C;
  if constexpr (std::is_same_v<C, AnyShort>)
    return args.is_c_f16 ? pack_pair<__half>(first, second) : pack_pair<__nv_bfloat16>(first, second);
  else
    return pack_pair<C>(first, second);
}

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

// A bias has C's dtype. That of a C in fp32 may have the dtype of operands in 16 bits, too, as the arguments say.
template <class Cfg>
inline constexpr bool kIsWide = sizeof(typename Cfg::T) == 2 && sizeof(typename Cfg::C) == 4;
template <class Cfg>
using BiasPointer = const std::conditional_t<kIsWide<Cfg>, void, typename Cfg::C>*;

// A bias from element `idx` on, and that element.
template <class Cfg>
__device__ __forceinline__ BiasPointer<Cfg> bias_at(const Arguments& args, BiasPointer<Cfg> bias, int64_t idx) {
  if constexpr (!kIsWide<Cfg>)
    return bias + idx;
  else
    return static_cast<const char*>(bias) + idx * (args.is_bias_f32 ? sizeof(float) : sizeof(typename Cfg::T));
}
// An element in a register: of AnyShort in fp32.
template <class Cfg>
using BiasElement = std::conditional_t<std::is_same_v<typename Cfg::C, AnyShort>, float, typename Cfg::C>;
template <class Cfg>
__device__ __forceinline__ BiasElement<Cfg> bias_element(const Arguments& args, BiasPointer<Cfg> bias, int64_t idx) {
  if constexpr (std::is_same_v<typename Cfg::C, AnyShort>) {
    const uint16_t bits = bias[idx].bits;
    return args.is_c_f16 ? to_float(__ushort_as_half(bits)) : to_float(__ushort_as_bfloat16(bits));
  } else if constexpr (!kIsWide<Cfg>) {
    return bias[idx];
  } else {
    const void* from = bias_at<Cfg>(args, bias, idx);
    return args.is_bias_f32 ? *static_cast<const float*>(from) : to_float(*static_cast<const typename Cfg::T*>(from));
  }
}

// A thread's part of a tile's bias: of two columns, which add_bias gives to all threads, or of its two rows. It is
// fetched before the multiplication, which hides the latency.
template <class Element>
struct TileBias {
  Element first, second;
};

template <class Cfg>
__device__ __forceinline__ TileBias<BiasElement<Cfg>> load_bias(const Arguments& args, BiasPointer<Cfg> from, int col,
                                                                int row, int row_step) {
  TileBias<BiasElement<Cfg>> bias{};
  if (!from) return bias;
  const bool is_of_columns = args.stride_bias_n != 0;
  const int thread = threadIdx.x % kWarpgroup, end = is_of_columns ? args.n : args.m;
  const int first = is_of_columns ? Cfg::LoaderB::row_of(col, thread) : row;
  const int second = is_of_columns ? Cfg::LoaderB::row_of(col, thread + kWarpgroup) : row + row_step;
  const int64_t stride = args.stride_bias_n + args.stride_bias_m;
  if (first < end) bias.first = bias_element<Cfg>(args, from, first * stride);
  if (second < end) bias.second = bias_element<Cfg>(args, from, second * stride);
  return bias;
}
template <class Cfg>
__device__ __forceinline__ TileBias<BiasElement<Cfg>> load_bias(const Arguments& args, int col, int row, int row_step) {
  const auto from = static_cast<BiasPointer<Cfg>>(args.bias);
  return load_bias<Cfg>(args, args.is_blended ? nullptr : from, col, row, row_step);
}

// `buffers`: those of the consumer's stores, which the last tile's stores have read by now; only the thread that issued
// them can wait for that.
template <class Cfg>
__device__ __forceinline__ void add_bias(float (&acc)[Cfg::kAcc], const TileBias<BiasElement<Cfg>>& bias,
                                         const Arguments& args, char* buffers, int barrier_id) {
  if (args.stride_bias_n) {
    const int thread = threadIdx.x % kWarpgroup;
    float* columns = reinterpret_cast<float*>(buffers);
    if (thread == 0) cp_async_bulk_wait_group_read<0>();
    named_barrier_sync(barrier_id, kWarpgroup);
    if (thread < Cfg::kBlockN) columns[thread] = to_float(bias.first);
    if (thread + kWarpgroup < Cfg::kBlockN) columns[thread + kWarpgroup] = to_float(bias.second);
    named_barrier_sync(barrier_id, kWarpgroup);
#pragma unroll
    for (int j = 0; j < Cfg::kBlockN / 8; ++j) {
      const float2 pair = *reinterpret_cast<const float2*>(columns + j * 8 + threadIdx.x % 4 * 2);
      acc[4 * j] += pair.x;
      acc[4 * j + 1] += pair.y;
      acc[4 * j + 2] += pair.x;
      acc[4 * j + 3] += pair.y;
    }
  } else {
    const float rows[2] = {to_float(bias.first), to_float(bias.second)};
#pragma unroll
    for (int i = 0; i < Cfg::kAcc; ++i) acc[i] += rows[i / 2 % 2];
    fence_registers(acc);  // else both branches' addends would be kept for one sequence of additions
  }
}

// gpu::activated of several values that become 16-bit elements, with its branch around them all: they do not wait for
// each other.
template <int COUNT>
__device__ __forceinline__ void activate_short(float (&values)[COUNT], Activation activation) {
  if (activation == Activation::gelu) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) values[i] = gpu::short_gelu(values[i]);
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) values[i] = gpu::short_logistic(activation, values[i]);
  }
}

// So many turns of at most `most` take `count`, each as many.
constexpr int num_turns(int count, int most) {
  int turns = (count + most - 1) / most;
  while (count % turns) ++turns;
  return turns;
}

// The bias of one item of a batch.
template <class Cfg>
__device__ __forceinline__ BiasPointer<Cfg> bias_of_item(const Arguments& args, int item) {
  auto bias = static_cast<BiasPointer<Cfg>>(args.bias);
#pragma unroll 1
  for (int d = args.num_batch_dims - 1; d >= 0; --d) {
    const BatchSteps& dim = args.batch[d];
    bias = bias_at<Cfg>(args, bias, item % dim.size * dim.bias);
    item /= dim.size;
  }
  return bias;
}

// alpha * acc + beta * bias of one element; `bias`: its item's, or null.
template <class Cfg>
__device__ __forceinline__ float blended(const Arguments& args, BiasPointer<Cfg> bias, int row, int col, float acc) {
  float added = -0.0f;  // adds nothing
  if (bias && row < args.m && col < args.n)
    added = args.beta * to_float(bias_element<Cfg>(args, bias, row * args.stride_bias_m + col * args.stride_bias_n));
  return fmaf(args.alpha, acc, added);
}

// Blends and activates in loops that are not unrolled, through shared memory: one copy of the functions' code. Code
// that a call does not run costs time as well, where the instructions come from cold memory. `buffers`: those of the
// consumer's stores. `row`: the first of the thread's two.
template <class Cfg>
__device__ __forceinline__ void finish_through_slots(float (&acc)[Cfg::kAcc], const Arguments& args, char* buffers,
                                                     int barrier_id, int item, int row, int tile_col) {
  using C = typename Cfg::C;
  const bool is_activated = args.activation != Activation::none && args.activation != Activation::relu;
  const bool is_blended = !Cfg::kSumsRows && args.is_blended;
  const BiasPointer<Cfg> bias = is_blended && args.bias ? bias_of_item<Cfg>(args, item) : nullptr;
  constexpr int kAvailable = num_store_buffers(Cfg::kConsumers) * Cfg::kStoreBytes / 4 / kWarpgroup;
  constexpr int kTurns = num_turns(Cfg::kAcc, kAvailable), kSlots = Cfg::kAcc / kTurns;
  constexpr int kAtOnce = sizeof(C) > 2 ? 1 : kSlots % 4 ? 2 : 4;
  static_assert(kSlots % kAtOnce == 0);
  if (threadIdx.x % kWarpgroup == 0) cp_async_bulk_wait_group_read<0>();  // as in add_bias
  named_barrier_sync(barrier_id, kWarpgroup);
  float* slots = reinterpret_cast<float*>(buffers) + threadIdx.x % kWarpgroup;
#pragma unroll 1
  for (int turn = 0; turn < kTurns; ++turn) {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) slots[i * kWarpgroup] = acc[i];
#pragma unroll 1
    for (int first = 0; first < kSlots; first += kAtOnce) {
      float values[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) values[i] = slots[(first + i) * kWarpgroup];
      if (is_blended) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int idx = turn * kSlots + first + i, col = Cfg::LoaderB::row_of(tile_col, idx / 4 * 8);
          values[i] = blended<Cfg>(args, bias, row + idx / 2 % 2 * Cfg::kRowStep, col + threadIdx.x % 4 * 2 + idx % 2,
                                   values[i]);
        }
      }
      if (is_activated) {
        if constexpr (sizeof(C) == 2)
          activate_short(values, args.activation);
        else
          values[0] = gpu::activated<float>(args.activation, values[0]);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) slots[(first + i) * kWarpgroup] = values[i];
    }
    // All accumulators take their turn at the same places.
#pragma unroll
    for (int i = 0; i < Cfg::kAcc - kSlots; ++i) acc[i] = acc[i + kSlots];
#pragma unroll
    for (int i = 0; i < kSlots; ++i) acc[Cfg::kAcc - kSlots + i] = slots[i * kWarpgroup];
  }
  named_barrier_sync(barrier_id, kWarpgroup);  // others' slots are read before they are overwritten
}

// Makes what is rounded of the sums of 64 rows. `row`: the first of the thread's two. `keep` sees the sums before the
// activation, where nothing is blended.
template <class Cfg, class Keep>
__device__ __forceinline__ void finish_block_tile(float (&acc)[Cfg::kAcc], const TileBias<BiasElement<Cfg>>& bias,
                                                  const Arguments& args, char* buffers, int consumer, int item, int row,
                                                  int tile_col, const Keep& keep) {
  const bool is_blended = !Cfg::kSumsRows && args.is_blended;
  if (args.bias && !is_blended) add_bias<Cfg>(acc, bias, args, buffers, 1 + consumer);
  keep();
  if (is_blended || (args.activation != Activation::none && args.activation != Activation::relu))
    finish_through_slots<Cfg>(acc, args, buffers, 1 + consumer, item, row, tile_col);
  if (args.activation == Activation::relu) {
#pragma unroll
    for (int i = 0; i < Cfg::kAcc; ++i) acc[i] = activate<Activation::relu>(acc[i]);
  }
}
template <class Cfg>
__device__ __forceinline__ void finish_block_tile(float (&acc)[Cfg::kAcc], const TileBias<BiasElement<Cfg>>& bias,
                                                  const Arguments& args, char* buffers, int consumer, int item, int row,
                                                  int tile_col) {
  finish_block_tile<Cfg>(acc, bias, args, buffers, consumer, item, row, tile_col, [] {});
}

// Four words of each of four neighbouring threads, transposed: a thread gets the words that have its number among the
// four, in the order of the threads.
__device__ __forceinline__ void transpose_words(uint32_t (&words)[4]) {
  const auto exchange = [](uint32_t& low, uint32_t& high, int distance) {
    const bool is_upper = threadIdx.x & distance;
    const uint32_t received = __shfl_xor_sync(~0u, is_upper ? low : high, distance);
    (is_upper ? low : high) = received;
  };
  exchange(words[0], words[1], 1);
  exchange(words[2], words[3], 1);
  exchange(words[0], words[2], 2);
  exchange(words[1], words[3], 2);
}

// 64 rows of C at `row` from the accumulators of one warpgroup, rounded to 16 bits or as they are, straight to C, which
// suits narrow tiles. Four threads have a row: 16 bytes of it each where C may be stored so, else two elements at a
// time. IS_CUT: as in store_block_tile.
template <class Cfg, bool IS_CUT = false>
__device__ __forceinline__ void store_block_tile_directly(const float (&acc)[Cfg::kAcc], const Arguments& args,
                                                          const Place& at, int row, int end_row = 0) {
  using Element = std::conditional_t<sizeof(typename Cfg::C) == 4, float, uint16_t>;
  constexpr bool kHasPackets = sizeof(Element) == 2 && Cfg::kBlockN == 32;
  const int first_row = row + threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = first_row + 8 * h;
    const bool is_inside = i < (IS_CUT ? end_row : args.m);
    Element* to = static_cast<Element*>(args.c) + at.from_c + at.batch_c * args.batch_step_c + i * args.ldc + at.col;
    if constexpr (kHasPackets) {
      if (args.stores_by_tma) {
        uint32_t words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) words[j] = pack_result<Cfg>(args, acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]);
        transpose_words(words);
        const int own_col = threadIdx.x % 4 * 8;
        if (is_inside && at.col + own_col < args.n)
          *reinterpret_cast<uint4*>(to + own_col) = make_uint4(words[0], words[1], words[2], words[3]);
        continue;
      }
    }
    if (!is_inside) break;
    const int own_col = threadIdx.x % 4 * 2, first_col = at.col + own_col;
#pragma unroll
    for (int j = 0; j < Cfg::kBlockN; j += 8) {
      const float x = acc[j / 2 + 2 * h], y = acc[j / 2 + 2 * h + 1];
      const auto store = [&](auto pair, Element first, Element second) {
        if (args.stores_pairs) {
          if (first_col + j < args.n) *reinterpret_cast<decltype(pair)*>(to + own_col + j) = pair;
        } else {
          if (first_col + j < args.n) to[own_col + j] = first;
          if (first_col + j + 1 < args.n) to[own_col + j + 1] = second;
        }
      };
      if constexpr (sizeof(Element) == 4) {
        store(make_float2(x, y), x, y);
      } else {
        const uint32_t pair = pack_result<Cfg>(args, x, y);
        store(pair, uint16_t(pair), uint16_t(pair >> 16));
      }
    }
  }
}

// Calls visit(number) for each from 0 on, known to the compiler.
template <class Visit, int... NUMBERS>
__device__ __forceinline__ void for_each_number(const Visit& visit, std::integer_sequence<int, NUMBERS...>) {
  (visit(std::integral_constant<int, NUMBERS>{}), ...);
}

// What threads store of a row in shared memory: from byte to byte, counted from the multiple of 16 at or before the
// row's first element.
struct StoredBytes {
  int begin, end;
};

// Stores one end of a row: what it has in its first 16 bytes, or in its last, if it does not fill them, in pieces of 8,
// 4 and 2 bytes. `from`: the row in shared memory, `to`: in C, both at multiples of 16. Where both ends lie within the
// same 16 bytes, the first one has all.
__device__ __forceinline__ void store_end_of_row(const char* from, char* to, StoredBytes bytes, bool is_last) {
  const auto store = [&](auto piece, int place) {
    *reinterpret_cast<decltype(piece)*>(to + place) = *reinterpret_cast<const decltype(piece)*>(from + place);
  };
  if (bytes.begin % 16 != 0 && bytes.end % 16 != 0 && bytes.begin / 16 == bytes.end / 16) {
    for (int place = bytes.begin; !is_last && place < bytes.end; place += 2) store(uint16_t(), place);
    return;
  }
  const auto store_piece = [&](auto piece) {
    constexpr int kSize = sizeof(piece);
    const int size = is_last ? bytes.end : -bytes.begin;
    if (size & kSize) store(piece, is_last ? bytes.end & -2 * kSize : (bytes.begin + kSize - 1) & -kSize);
  };
  store_piece(uint16_t());
  store_piece(uint32_t());
  store_piece(uint64_t());
}

// 64 rows of C at `row` from the accumulators of one warpgroup, for a C that the copy engine cannot take. Rows of a
// warp lie in shared memory as far behind a multiple of 16 bytes as they do in C, so that threads store 16 bytes at a
// time. A tile is stored in parts. A part that another one follows ends where its last sector begins; the next part
// stores the rest, and puts the 16 columns before it into shared memory again for that. The second-level cache takes a
// part of a sector for as much work as a whole one.
template <class Cfg, bool IS_CUT>
__device__ __forceinline__ void store_block_tile_by_threads(const float (&acc)[Cfg::kAcc], const Arguments& args,
                                                            char* buffers, const Place& at, int row, int new_col,
                                                            int end_row) {
  // Rows lie an odd number of 16 bytes apart: without bank conflicts, except where they begin differently within 16
  // bytes.
  constexpr int kPitch = num_store_buffers(Cfg::kConsumers) * Cfg::kStoreBytes / 64 - 16;
  constexpr int kLanes = 8, kRowsAtOnce = 32 / kLanes;  // that store a row, 128 bytes at a time
  constexpr int kRows = 16, kBefore = kSectorBytes / 2, kPart = (kPitch / 2 - 7 - kBefore) / 32 * 32;
  static_assert(kPitch % 32 == 16 && kPart > 0);
  constexpr int kTail = Cfg::LoaderB::kTail, kMain = Cfg::kBlockN - kTail, kMainParts = (kMain + kPart - 1) / kPart;
  const int warp = threadIdx.x % kWarpgroup / 32, lane = threadIdx.x % 32;
  const bool is_turned = kTail && at.col % Cfg::kStoreN;  // the tail lies before the other columns
  char* rows = buffers + warp * kRows * kPitch;
  row += warp * kRows;
  const int num_rows = min((IS_CUT ? end_row : args.m) - row, kRows);
  char* const c = static_cast<char*>(args.c) + 2 * (at.from_c + at.batch_c * args.batch_step_c + row * args.ldc);
  const int64_t ldc = 2 * args.ldc;
  const auto store_part = [&](auto number) {
    // kBegin, kEnd: columns of the accumulators; first_col, num_cols: of C, from the part on. is_joined: it begins at
    // the sector where the part before ended. is_followed: it ends where its last sector begins.
    constexpr int kNumber = number;
    constexpr bool kIsTail = kNumber == kMainParts;
    constexpr int kBegin = kIsTail ? kMain : kNumber * kPart;
    constexpr int kEnd = kIsTail ? Cfg::kBlockN : int(min_of(kBegin + kPart, kMain));
    constexpr int kLead = kNumber > 0 ? kBefore : 0, kSize = kEnd - kBegin + kLead;
    const int first_col = Cfg::LoaderB::row_of(at.col, kBegin), num_cols = args.n - first_col;
    if (first_col + kEnd - kBegin <= new_col || num_cols <= 0) return;
    const bool is_joined = kNumber > 0 && !(kIsTail && is_turned);
    const bool is_followed = !kIsTail && kEnd < Cfg::kBlockN - (is_turned ? kTail : 0) && num_cols > kEnd - kBegin;
    char* const part_of_c = c + 2 * (first_col - kLead);
    const auto behind_16 = [](const char* address) { return int(reinterpret_cast<uintptr_t>(address) % 16); };
    const auto bytes_of = [&](const char* row_of_c) {
      const int behind_32 = int(reinterpret_cast<uintptr_t>(row_of_c) % kSectorBytes), first = behind_32 % 16;
      const int all = first + 2 * kSize, behind = (behind_32 + 2 * kSize) % kSectorBytes;
      return StoredBytes{is_joined ? first + kSectorBytes - behind_32 : first + 2 * kLead,
                         is_followed ? all - behind : first + 2 * (kLead + min(kEnd - kBegin, num_cols))};
    };
    __syncwarp();  // what was here is stored
    const auto put = [&](auto are_pairs) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int own_row = lane / 4 + 8 * h;
        char* to = rows + own_row * kPitch + behind_16(part_of_c + own_row * ldc) + lane % 4 * 4;
#pragma unroll
        for (int col = 0; col < kSize; col += 8) {
          const int idx = (kBegin - kLead + col) / 2 + 2 * h;
          const uint32_t pair = pack_result<Cfg>(args, acc[idx], acc[idx + 1]);
          if constexpr (are_pairs) {
            *reinterpret_cast<uint32_t*>(to + 2 * col) = pair;
          } else {
            *reinterpret_cast<uint16_t*>(to + 2 * col) = uint16_t(pair);
            *reinterpret_cast<uint16_t*>(to + 2 * col + 2) = uint16_t(pair >> 16);
          }
        }
      }
    };
    args.stores_pairs ? put(std::true_type{}) : put(std::false_type{});
    __syncwarp();  // a warp reads the rows that it wrote
#pragma unroll 1
    for (int own_row = lane / kLanes; own_row < num_rows; own_row += kRowsAtOnce) {
      char* to = part_of_c + own_row * ldc;
      const StoredBytes bytes = bytes_of(to);
      to -= behind_16(to);
#pragma unroll
      for (int first = 0; first < kPitch; first += kLanes * 16) {
        const int place = first + lane % kLanes * 16;
        if (place >= bytes.begin && place + 16 <= bytes.end)
          *reinterpret_cast<uint4*>(to + place) = *reinterpret_cast<const uint4*>(rows + own_row * kPitch + place);
      }
    }
    const int own_row = lane % kRows;
    if ((lane < kRows ? is_joined : is_followed) || own_row >= num_rows) return;
    char* to = part_of_c + own_row * ldc;
    store_end_of_row(rows + own_row * kPitch, to - behind_16(to), bytes_of(to), lane >= kRows);
  };
  for_each_number(store_part, std::make_integer_sequence<int, kMainParts + (kTail > 0)>{});
  __syncwarp();  // stmatrix and wgmma need the warp together
}

// Stores a tile of C through shared memory, but for parts that end before new_col. IS_CUT: and but for rows from
// `end_row` on, which need not be C's last.
template <class Cfg, bool IS_CUT = false>
__device__ __forceinline__ void store_block_tile(const float (&acc)[Cfg::kAcc], const CUtensorMap* map_c,
                                                 const Arguments& args, char* smem_c, int consumer, const Place& at,
                                                 int row, int new_col, int& num_stores, int end_row = 0) {
  constexpr int kStoreN = Cfg::kStoreN;
  static_assert(kStoreN == 64, "a row of the buffer is as wide as the swizzle");
  const int thread = threadIdx.x % kWarpgroup, warp = thread / 32, lane = thread % 32;
  const int barrier_id = 1 + consumer;
  if constexpr (!Cfg::kIsPlain) {
    if (!(args.stores_by_tma && (!IS_CUT || row + 64 <= end_row))) {
      if (thread == 0) cp_async_bulk_wait_group_read<0>();  // what the copy engine still reads
      named_barrier_sync(barrier_id, kWarpgroup);
      return store_block_tile_by_threads<Cfg, IS_CUT>(acc, args, smem_c, at, row, new_col, end_row);
    }
  }
  constexpr int kTail = Cfg::LoaderB::kTail;
  const bool is_turned = kTail && at.col % kStoreN;
#pragma unroll
  for (int part = 0; part < Cfg::kBlockN; part += kStoreN) {
    // The last one may store some columns again: those before a tail, those behind it if the tile is turned.
    const bool is_last = part >= Cfg::kBlockN - kStoreN;
    const int place = is_last ? Cfg::kBlockN - kStoreN : part;
    const int first_col = !is_turned ? at.col + place : is_last ? at.col : at.col + kTail + place;
    if (first_col + kStoreN <= new_col) continue;
    constexpr int kBuffers = num_store_buffers(Cfg::kConsumers);
    char* buffer = smem_c + (num_stores++ % kBuffers) * Cfg::kStoreBytes;
    // The last store from this buffer has read it; only the thread that issued it can wait for that.
    if (thread == 0) cp_async_bulk_wait_group_read<kBuffers - 1>();
    named_barrier_sync(barrier_id, kWarpgroup);
    // Swizzled as the copy engine expects it: without bank conflicts here.
    const int r = warp * 16 + lane % 16;
    const uint32_t row_address = smem_address(buffer) + r * 128;
    // Transposed, a row of the buffer is a column of the accumulators, of which the warp has 16 rows, 32 bytes.
    const uint32_t col_address =
        smem_address(buffer) + (lane / 16 * 8 + lane % 8) * 128 + (((2 * warp + lane / 8 % 2) ^ lane % 8) << 4);
#pragma unroll
    for (int j = 0; j < kStoreN / 16; ++j) {
      const int packet = 2 * j + lane / 16;
      float v[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int own = place / 2 + 8 * j + i, turned = (own + kTail / 2) % Cfg::kAcc;
        v[i] = is_last && is_turned ? acc[turned] : acc[own];
      }
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i] = pack_result<Cfg>(args, v[2 * i], v[2 * i + 1]);
      if (args.is_exchanged)
        stmatrix_x4_trans(col_address + j * 2048, pairs[0], pairs[1], pairs[2], pairs[3]);
      else
        stmatrix_x4(row_address + ((packet ^ r % 8) << 4), pairs[0], pairs[1], pairs[2], pairs[3]);
    }
    fence_proxy_async();
    named_barrier_sync(barrier_id, kWarpgroup);
    if (thread == 0) {
      cp_async_bulk_tensor_3d_store(map_c, args.is_exchanged ? row : first_col, args.is_exchanged ? first_col : row,
                                    int(at.batch_c), smem_address(buffer));
      cp_async_bulk_commit_group();
    }
  }
}

// Stores those rows of a chunk's sums, unrounded. `first_row` is the thread's.
template <class Cfg>
__device__ __forceinline__ void store_partial(const float (&acc)[Cfg::kAcc], const Arguments& args, const Place& at,
                                              int first_row) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = first_row + Cfg::kRowStep * h;
    if (i >= args.m) break;
    float* to = args.partial + (int64_t(at.slab) * args.m + i) * args.ld_partial;
#pragma unroll
    for (int j = 0; j < Cfg::kBlockN / 8; ++j) {
      const int col = Cfg::LoaderB::row_of(at.col, j * 8) + threadIdx.x % 4 * 2;
      if (col < args.n) *reinterpret_cast<float2*>(to + col) = make_float2(acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]);
    }
  }
}

// Sums of 64 rows of A, or those of a chunk.
template <class T>
__device__ __forceinline__ void store_row_sums(const float (&sums)[2], const Arguments& args, const Place& at,
                                               int row) {
  const int thread = threadIdx.x % kWarpgroup, warp = thread / 32, lane = thread % 32;
  if (lane % 4) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = row + warp * 16 + lane / 4 + 8 * h;
    if (i >= args.m) break;
    if (args.num_splits > 1)
      args.partial[(int64_t(at.slab) * args.m + i + 1) * args.ld_partial - 1] = sums[h];
    else
      reinterpret_cast<uint16_t*>(args.row_sums)[i] = uint16_t(pack_pair<T>(sums[h], 0));
  }
}

}  // namespace
}  // namespace tiledmm::cuda

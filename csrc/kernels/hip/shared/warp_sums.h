// The matrix instructions of CDNA's chips on tiles in shared memory: fragments, the sums of a warp, and the moves of
// tiles that go on meanwhile. What mfma and mfma_split have in common.
#pragma once

#include "kernels/hip/shared/c_strip.h"
#include "kernels/hip/shared/tile_copy.h"
#include "platform/mma.h"

#if defined(TILEDMM_IS_CDNA)

namespace tiledmm::gpu {
namespace {

inline constexpr int kSlices = 2;  // of a k tile

// The instructions that a packet of 16 bytes a lane takes. gfx950 has one for all of its elements in 16 bits.
#if defined(__gfx950__)
inline constexpr int kStepsOf16Bits = 1;
inline constexpr bool kHasStraightCopies = true;  // whose loads turn elements of 16 bits
#else
inline constexpr int kStepsOf16Bits = 2;
inline constexpr bool kHasStraightCopies = false;
#endif
template <class T>
inline constexpr int kStepsOfPacket = sizeof(T) == 2 ? kStepsOf16Bits : 16 / int(sizeof(T));

// acc += products of a packet of B and one of A. C's columns are the instruction's rows: a lane's sums are neighbours
// in a row of C.
template <class T>
TILEDMM_DEVICE void multiply_packets(Acc<T> (&acc)[4], const Vector16& b, const Vector16& a,
                                     [[maybe_unused]] int step) {
#if defined(__gfx950__)
  if constexpr (std::is_same_v<T, Half>) {
    using Operand = ClangVector<_Float16, 8>;
    return accumulate(acc, [&](auto c) {
      return __builtin_amdgcn_mfma_f32_16x16x32_f16(bits_as<Operand>(b), bits_as<Operand>(a), c, 0, 0, 0);
    });
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    using Operand = ClangVector<__bf16, 8>;
    return accumulate(acc, [&](auto c) {
      return __builtin_amdgcn_mfma_f32_16x16x32_bf16(bits_as<Operand>(b), bits_as<Operand>(a), c, 0, 0, 0);
    });
  }
#endif
  using M = Mma<T>;
  typename M::Word words_a[M::kWordsA], words_b[M::kWordsB];
  __builtin_memcpy(words_a, reinterpret_cast<const char*>(&a) + step * sizeof words_a, sizeof words_a);
  __builtin_memcpy(words_b, reinterpret_cast<const char*>(&b) + step * sizeof words_b, sizeof words_b);
  M::multiply(acc, words_b, words_a);
}

// A warp's fragments of an operand's tiles, 16 rows each: of a slice of the k tile, a packet of 16 bytes for each of a
// row's four lanes.
template <int BLOCK, int FRAGS, bool IS_ALONG_K>
struct FragmentReader {
  using Places = TilePlaces<BLOCK, IS_ALONG_K>;
  int from[IS_ALONG_K ? kSlices : FRAGS];  // in shared memory, of this lane's first packet of a slice, or of a fragment

  TILEDMM_DEVICE FragmentReader(int first_row, int lane) {
    if constexpr (IS_ALONG_K) {
      TILEDMM_UNROLL for (int slice = 0; slice < kSlices; ++slice) {
        from[slice] = Places::place_of(first_row + lane % 16, slice * 4 + lane / 16);
      }
    } else {
      const int k = lane / 16 * 8 + lane % 16 / 4, half = lane % 4 / 2;
      TILEDMM_UNROLL for (int i = 0; i < FRAGS; ++i) {
        from[i] = Places::place_of(k, first_row / 8 + i * 2 + half) + lane % 2 * 8;
      }
    }
  }

  TILEDMM_DEVICE Vector16 load(const char* smem, int slice, int i) const {
    if constexpr (IS_ALONG_K) {
      return load_shared(reinterpret_cast<const Vector16*>(smem + from[slice] + i * 16 * Places::kRowBytes));
    } else {
      const char* place = smem + from[i] + slice * 32 * Places::kRowBytes;
      const uint64_t parts[] = {load_turned(place), load_turned(place + 4 * Places::kRowBytes)};
      return __builtin_bit_cast(Vector16, parts);
    }
  }
};

// The sums of one warp, and the fragments that it multiplies.
template <class Cfg, bool IS_A_ALONG_K, bool IS_B_ALONG_K>
struct WarpSums {
  using T = typename Cfg::T;
  using A = Acc<T>;
  static constexpr int kFragsM = Cfg::kFragsM, kFragsN = Cfg::kFragsN, kHalf = kFragsM / 2;

  A acc[kFragsM][kFragsN][4];
  A total[Cfg::kSumsChunks ? kFragsM : 1][kFragsN][4];
  Vector16 frag_a[kFragsM], frag_b[kFragsN];
  int lane, warp_m, warp_n;
  FragmentReader<Cfg::kBlock, kFragsM, IS_A_ALONG_K> reader_a;
  FragmentReader<Cfg::kBlock, kFragsN, IS_B_ALONG_K> reader_b;

  TILEDMM_DEVICE WarpSums()
      : lane(thread_idx() % 64),
        warp_m(uniform(thread_idx() / 64) / Cfg::kShape.warps_n),
        warp_n(uniform(thread_idx() / 64) % Cfg::kShape.warps_n),
        reader_a(warp_m * Cfg::kWarpM, lane),
        reader_b(warp_n * Cfg::kWarpN, lane) {
    for_each([&](int i, int j, int e) {
      acc[i][j][e] = 0;
      if constexpr (Cfg::kSumsChunks) total[i][j][e] = A(-0.0);  // adds nothing
    });
  }

  // Calls visit(i, j, e) for each sum of this lane.
  template <class Visit>
  TILEDMM_DEVICE void for_each(const Visit& visit) {
    TILEDMM_UNROLL for (int i = 0; i < kFragsM; ++i) {
      TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) { TILEDMM_UNROLL for (int e = 0; e < 4; ++e) visit(i, j, e); }
    }
  }
  TILEDMM_DEVICE void end_chunk() {
    if constexpr (Cfg::kSumsChunks) {
      for_each([&](int i, int j, int e) { total[i][j][e] += acc[i][j][e], acc[i][j][e] = 0; });
    }
  }

  TILEDMM_DEVICE void load_fragments_a(const char* smem_a, int slice, int first, int last) {
    TILEDMM_UNROLL for (int i = first; i < last; ++i) { frag_a[i] = reader_a.load(smem_a, slice, i); }
  }
  TILEDMM_DEVICE void load_fragments_b(const char* smem_b, int slice, int first, int last) {
    TILEDMM_UNROLL for (int j = first; j < last; ++j) { frag_b[j] = reader_b.load(smem_b, slice, j); }
  }
  // Adds the products of A's fragments first to last - 1 and of B's. Neighbouring instructions add to different sums.
  TILEDMM_DEVICE void multiply(int first, int last, int first_b = 0, int last_b = kFragsN) {
    TILEDMM_UNROLL for (int step = 0; step < kStepsOfPacket<T>; ++step) {
      TILEDMM_UNROLL for (int i = first; i < last; ++i) {
        TILEDMM_UNROLL for (int j = first_b; j < last_b; ++j) {
          multiply_packets<T>(acc[i][j], frag_b[j], frag_a[i], step);
        }
      }
    }
  }
  // Multiplies a whole k tile with few registers: half of A's fragments are there at a time.
  TILEDMM_DEVICE void multiply_k_tile(const char* smem_a, const char* smem_b) {
    TILEDMM_UNROLL for (int slice = 0; slice < kSlices; ++slice) {
      load_fragments_b(smem_b, slice, 0, kFragsN);
      TILEDMM_UNROLL for (int i = 0; i < kFragsM; i += kHalf) {
        load_fragments_a(smem_a, slice, i, i + kHalf);
        multiply(i, i + kHalf);
        schedule_barrier();
      }
    }
  }
  // Multiplies the first slice, and loads the second one. A fragment that is done with makes room for a new one.
  TILEDMM_DEVICE void multiply_first_slice(const char* smem_a, const char* smem_b) {
    load_fragments_b(smem_b, 0, 0, kFragsN);
    load_fragments_a(smem_a, 0, 0, kFragsM);
    schedule_barrier();
    TILEDMM_UNROLL for (int i = 0; i < kHalf; ++i) {
      multiply(i, i + 1);
      load_fragments_a(smem_a, 1, i, i + 1);
      schedule_barrier();
    }
    TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) {
      multiply(kHalf, kFragsM, j, j + 1);
      load_fragments_b(smem_b, 1, j, j + 1);
      schedule_barrier();
    }
    load_fragments_a(smem_a, 1, kHalf, kFragsM);
    schedule_barrier();
  }

  using Strip = CStrip<A, Cfg::kStripN>;
  template <class Out>
  TILEDMM_DEVICE void store(const GemmProblem& problem, int64_t row, int64_t col, Strip& strip) const {
    using L = typename Mma<T>::L;
    constexpr int kStripFrags = Cfg::kStripN / 16, kStrips = kFragsN / kStripFrags;
    const int lane = opaque(this->lane);  // else addresses are computed ahead of the main loop
    // Not unrolled, so that there is little code: which registers are stored is a jump, the way to C is the same.
    TILEDMM_NO_UNROLL for (int part = 0; part < kStrips; ++part) {
      const CWriter<Out, A, Cfg::kStripN> writer(problem, col + warp_n * Cfg::kWarpN + part * Cfg::kStripN, lane);
      TILEDMM_NO_UNROLL for (int frag = 0; frag < kFragsM; ++frag) {
        TILEDMM_UNROLL for (int idx = 0; idx < kFragsM * kStrips; ++idx) {
          if (idx != frag * kStrips + part) continue;
          TILEDMM_UNROLL for (int j = 0; j < kStripFrags; ++j) {
            TILEDMM_UNROLL for (int e = 0; e < 4; ++e) {
              store_shared(&strip.acc[L::c_col(lane, e)][j * 16 + L::c_row(lane, e)],
                           acc[idx / kStrips][idx % kStrips * kStripFrags + j][e]);
            }
          }
        }
        writer.store(strip, row + warp_m * Cfg::kWarpM + frag * 16);
      }
    }
  }
};

// What multiplies a k tile moves data twice, before it has read the tile and after all warps have. By way of registers
// the next tile is loaded, and goes to the place of the one that was read. Straight copies of the tile after the next
// one go there, and those of the next one are waited for.
template <bool ARE_ROWS_ODD, class CopyA, class CopyB>
struct TileMoves {
  CopyA& copy_a;
  CopyB& copy_b;
  static constexpr bool kAreStraight = CopyA::kIsStraight;

  template <class Copy>
  TILEDMM_DEVICE void before(Copy& copy) const {
    if constexpr (!kAreStraight) copy.template load<ARE_ROWS_ODD>();
  }
  TILEDMM_DEVICE void after(char* smem_a, char* smem_b) const {
    if constexpr (kAreStraight) {
      copy_a.copy(smem_a);
      copy_b.copy(smem_b);
    } else {
      copy_a.template store<ARE_ROWS_ODD>(smem_a);
      copy_b.template store<ARE_ROWS_ODD>(smem_b);
    }
  }
  TILEDMM_DEVICE void wait() const {
    if constexpr (kAreStraight) wait_for_copies<CopyA::kPackets + CopyB::kPackets>();
  }
};

// The tiles of both operands in shared memory: in one buffer, or in two that are read and overwritten in turn.
template <class Cfg, int BUFFERS>
struct Tiles {
  static constexpr int kBuffers = BUFFERS;
  alignas(16) char a[BUFFERS][Cfg::kBlock * kMfmaRowBytes], b[BUFFERS][Cfg::kBlock * kMfmaRowBytes];
};

}  // namespace
}  // namespace tiledmm::gpu

#endif

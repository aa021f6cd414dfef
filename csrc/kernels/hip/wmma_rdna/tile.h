// Block tiles of an operand for WMMA: global memory -> registers -> shared memory -> fragments.
//
// In shared memory an operand of either layout lies k-major, rows of 32 elements of k in four packets of 16 bytes. The
// packets of a row are exchanged (swizzle), so that neither the loads of fragments nor the stores of k-major packets
// have bank conflicts: eight lanes at a time have eight different groups of four banks. Whole tiles are loaded through
// a Buffer, so that rows beyond the operand's last one need no test; in the last one, what lies beyond k is cleared.
// Operands that allow no such loads are gathered, element by element.
#pragma once

#include "kernels/hip/shared/builtins.h"
#include "kernels/hip/wmma_rdna/plan.h"
#include "platform/block_tile.h"
#include "platform/mma.h"

namespace tiledmm::gpu {
namespace {

inline constexpr int kRowBytes = 2 * kWmmaBlockK;

// Where a packet of a row begins. The second part of the XOR is for tiles that are transposed on their way.
constexpr int swizzled(int row, int packet) {
  return row * kRowBytes + 16 * (packet ^ (((row >> 1) ^ (row >> 3)) & 3));
}

template <class T, int BLOCK_MN, bool IS_K_MAJOR, int NUM_THREADS>
struct WmmaTile {
  static constexpr int kBytes = BLOCK_MN * kRowBytes;
  static constexpr int kPackets = BLOCK_MN * 4 / NUM_THREADS;  // of 16 bytes, of a thread
  // mn-major: a thread has 8 elements of k of as many neighbours along mn as it has packets.
  static constexpr int kGroups = BLOCK_MN / kPackets;
  static_assert(kPackets * NUM_THREADS == BLOCK_MN * 4 && (kPackets == 2 || kPackets == 4), "every thread has as much");

  const Operand<T>& operand;
  int left_mn, left_k;   // of the operand from the next tile on
  int row, packet;       // of this thread's first packet
  uint32_t first, step;  // bytes within a tile: this thread's first, and to the next packet (mn-major: to the next k)
  const T* next;         // the next tile
  union {
    uint32_t packets[kPackets][4];
    uint32_t lines[8][kPackets / 2];  // mn-major: by k
  } staged;

  TILEDMM_DEVICE WmmaTile(const Operand<T>& operand, int64_t mn, int64_t k, int size_k)
      : operand(operand), left_k(size_k) {
    left_mn = int(min_of(operand.size_mn - mn, BLOCK_MN));
    next = operand.base + mn * operand.stride_mn + k * operand.stride_k;
    if constexpr (IS_K_MAJOR) {
      row = thread_idx() / 4, packet = thread_idx() % 4;
      first = uint32_t(row) * uint32_t(operand.stride_mn) * 2 + uint32_t(packet) * 16;
      step = NUM_THREADS / 4 * uint32_t(operand.stride_mn) * 2;
    } else {
      row = thread_idx() % kGroups * kPackets, packet = thread_idx() / kGroups;
      first = uint32_t(row) * 2 + uint32_t(packet) * 16 * uint32_t(operand.stride_k);
      step = uint32_t(operand.stride_k) * 2;
      if (row >= left_mn) first = 1u << 31;  // beyond the end, wherever that is
    }
  }

  // The next tile. The buffer ends with the tile's last row, and with k; behind the last tile it is empty.
  template <bool MAY_BE_LAST>
  TILEDMM_DEVICE void load() {
    const int inside_k = MAY_BE_LAST && left_k < kWmmaBlockK ? left_k : kWmmaBlockK;
    const int64_t size =
        IS_K_MAJOR ? (left_mn - 1) * operand.stride_mn + inside_k : (inside_k - 1) * operand.stride_k + left_mn;
    const Buffer buffer{next, inside_k > 0 ? uint32_t(size) * 2 : 0};
    // Opaque: offsets of the last tiles would take registers in the main loop, too.
    const uint32_t first = MAY_BE_LAST ? opaque(this->first) : this->first;
    if constexpr (IS_K_MAJOR) {
      TILEDMM_UNROLL for (int i = 0; i < kPackets; ++i) buffer.load<4>(first + uint32_t(i) * step, staged.packets[i]);
    } else {
      TILEDMM_UNROLL for (int p = 0; p < 8; ++p) {
        // One register for all lines, but where one of them may be beyond the operand's end.
        const uint32_t line = uint32_t(p) * step;
        buffer.load<kPackets / 2>(MAY_BE_LAST ? first + line : first, staged.lines[p], MAY_BE_LAST ? 0 : line);
      }
    }
    advance();
  }
  TILEDMM_DEVICE void advance() {
    next += kWmmaBlockK * operand.stride_k;
    left_k -= kWmmaBlockK;
  }

  // Clears what lies beyond k in the tile that was loaded last: rows may be followed by others.
  TILEDMM_DEVICE void clear_beyond_k() {
    const int inside_k = left_k + kWmmaBlockK - 8 * packet;
    TILEDMM_UNROLL for (int i = 0; i < (IS_K_MAJOR ? kPackets : 8); ++i) {
      TILEDMM_UNROLL for (int w = 0; w < (IS_K_MAJOR ? 4 : kPackets / 2); ++w) {
        uint32_t& word = IS_K_MAJOR ? staged.packets[i][w] : staged.lines[i][w];
        word = (IS_K_MAJOR ? 2 * w : i) < inside_k ? word : 0;
      }
    }
  }

  // Copies the next tile to shared memory element by element, whatever the operand's strides are; zeros beyond k and
  // beyond the operand's rows.
  TILEDMM_DEVICE void gather(char* smem) {
    constexpr int kClose = IS_K_MAJOR ? kWmmaBlockK : BLOCK_MN, kStep = NUM_THREADS / kClose;
    constexpr int kAtOnce = 8, kElements = BLOCK_MN * kWmmaBlockK / NUM_THREADS;
    static_assert(!IS_K_MAJOR || kAtOnce * kStep % 32 == 0, "a round's rows are swizzled like those of the first");
    const int thread = opaque(thread_idx()), close = thread % kClose, far = thread / kClose;
    const int64_t stride_far = IS_K_MAJOR ? operand.stride_mn : operand.stride_k;
    int64_t offset = close * (IS_K_MAJOR ? operand.stride_k : operand.stride_mn) + far * stride_far;
    const int left_close = IS_K_MAJOR ? left_k : left_mn, left_far = IS_K_MAJOR ? left_mn : left_k;
    TILEDMM_NO_UNROLL for (int begin = 0; begin < kElements; begin += kAtOnce) {
      uint16_t elements[kAtOnce];
      TILEDMM_UNROLL for (int i = 0; i < kAtOnce; ++i) {
        const bool pred = close < left_close && far + (begin + i) * kStep < left_far;
        offset = opaque(offset);  // else there is one for each element
        elements[i] = pred ? load_global(next + offset).bits : 0;
        offset += kStep * stride_far;
      }
      TILEDMM_UNROLL for (int i = 0; i < kAtOnce; ++i) {
        // The swizzle is computed for the first round's rows: it would take instructions in each.
        const int round = begin * kStep, at = far + i * kStep;
        const int place = IS_K_MAJOR ? round * kRowBytes + swizzled(at, close / 8) + close % 8 * 2
                                     : swizzled(close, round / 8 + at / 8) + at % 8 * 2;
        store_shared(reinterpret_cast<uint16_t*>(smem + place), elements[i]);
      }
    }
    advance();
  }

  TILEDMM_DEVICE void store(char* smem) const {
    TILEDMM_UNROLL for (int i = 0; i < kPackets; ++i) {
      Vector16 vector;
      TILEDMM_UNROLL for (int w = 0; w < 4; ++w) {
        if constexpr (IS_K_MAJOR) {
          vector.words[w] = staged.packets[i][w];
        } else {  // the pair of one element along mn, of two neighbours along k
          const uint32_t even = staged.lines[2 * w][i / 2], odd = staged.lines[2 * w + 1][i / 2];
          vector.words[w] = pair_of(even, odd, i % 2);
        }
      }
      const int at = row + (IS_K_MAJOR ? i * (NUM_THREADS / 4) : i);
      store_shared(reinterpret_cast<Vector16*>(smem + swizzled(at, packet)), vector);
    }
  }
};

// Where a lane's part of the fragments lies in a tile, in bytes from the warp's first row on. The swizzle of rows that
// are 16 apart differs in one bit, the one that tells the two steps of an instruction apart.
template <class M>
struct FragmentPlaces {
  static constexpr int kPieces = M::kWordsA / 4;  // of 16 bytes
  int at[2][kPieces];

  TILEDMM_DEVICE explicit FragmentPlaces(int first) {
    const int lane = thread_idx() % kWarpSize;
    TILEDMM_UNROLL for (int step = 0; step < 2; ++step) {
      TILEDMM_UNROLL for (int piece = 0; piece < kPieces; ++piece) {
        at[step][piece] = first + swizzled(M::a_row(lane, 0), 2 * step + M::a_word(lane, 4 * piece) / 4);
      }
    }
  }

  // Fragment `idx` of a step of 16 of k.
  TILEDMM_DEVICE void load(const char* stage, int idx, int step, uint32_t (&frag)[M::kWordsA]) const {
    TILEDMM_UNROLL for (int piece = 0; piece < kPieces; ++piece) {
      const char* from = stage + at[step ^ (idx & 1)][piece] + idx * 16 * kRowBytes;
      const Vector16 vector = load_shared(reinterpret_cast<const Vector16*>(from));
      TILEDMM_UNROLL for (int w = 0; w < 4; ++w) frag[4 * piece + w] = vector.words[w];
    }
  }
};

}  // namespace
}  // namespace tiledmm::gpu

// Moves block tiles of the mfma kernels: global memory -> registers -> shared memory, on gfx950 in 16 bits straight.
//
// By way of registers a row of a tile is 128 bytes along k in shared memory, whatever the operand's layout. Straight
// copies leave rows along m or n as they are: the loads of the fragments turn them.
#pragma once

#include "kernels/hip/shared/cdna.h"
#include "kernels/hip/shared/plan.h"
#include "platform/block_tile.h"

#if defined(TILEDMM_IS_CDNA)

namespace tiledmm::gpu {
namespace {

// Where a tile's chunks of 16 bytes are in shared memory. Rows that lie along k have eight, chunk c at place
// c XOR (row % 8). Rows that lie along m or n are one for each k, and pairs of chunks, the columns of a fragment,
// change places in them. Neither the copies nor the fragments' loads have bank conflicts then.
template <int BLOCK, bool IS_ALONG_K>
struct TilePlaces {
  static constexpr int kChunksOfRow = IS_ALONG_K ? 8 : BLOCK / 8;
  static constexpr int kRowBytes = kChunksOfRow * 16;

  TILEDMM_DEVICE static int swizzle(int row) {
    if constexpr (IS_ALONG_K) return row % 8;
    // Half of a warp loads a pair from rows 0 to 3 and 8 to 11, from banks of their own. Rows of 128 bytes share them
    // by twos, rows of 64 bytes by fours.
    return (row % 4 + row / 8 % 2 * 4) / max_of(1, 128 / BLOCK) * 2;
  }
  TILEDMM_DEVICE static int place_of(int row, int chunk) { return row * kRowBytes + (chunk ^ swizzle(row)) * 16; }
};

// One thread's part of an operand's block tiles: four chunks of each.
template <class T, int BLOCK, int THREADS, bool IS_K_MAJOR, bool IS_STRAIGHT>
struct TileCopy {
  static constexpr int kSize = int(sizeof(T)), kElements = 16 / kSize, kBlockK = kMfmaRowBytes / kSize;
  static constexpr int kChunks = BLOCK * 8 / THREADS;
  // mn-major chunks lie across the rows of shared memory: a thread has this many in a row along k, and turns them.
  static constexpr int kTurned = kSize == 8 ? 2 : 4;
  static constexpr int kPlaces = kBlockK / kTurned;  // of such groups, along k
  static_assert(kChunks == 4, "a thread has whole groups");
  static constexpr bool kAreRowsAlongK = IS_K_MAJOR || !IS_STRAIGHT;  // in shared memory
  static constexpr bool kIsStraight = IS_STRAIGHT;
  using Places = TilePlaces<BLOCK, kAreRowsAlongK>;

  const char* tile;               // the first byte of the tile that load() reads
  uint32_t stride_row, stride_k;  // in bytes
  int rows;                       // inside of the operand
  uint32_t num_bytes;             // from the tile's first to its last one, whole chunks
  uint32_t offsets[kChunks];      // in the tile
  int to;                         // in shared memory; straight copies: of the warp's first chunk
  Vector16 staged[kChunks];
  uint32_t behind[kChunks];  // odd rows: the word behind each of `staged`

  // The tiles of `operand` from its element (row, k) on.
  TILEDMM_DEVICE TileCopy(const Operand<T>& operand, int64_t row, int64_t k)
      : tile(reinterpret_cast<const char*>(operand.base + row * operand.stride_mn + k * operand.stride_k)),
        stride_row(uint32_t(operand.stride_mn) * kSize),
        stride_k(uint32_t(operand.stride_k) * kSize),
        rows(int(min_of(operand.size_mn - row, BLOCK))) {
    const int thread = thread_idx();
    num_bytes = IS_K_MAJOR ? uint32_t(rows - 1) * stride_row + kMfmaRowBytes
                           : uint32_t((kBlockK - 1) * stride_k + round_up(rows * kSize, 16));
    if constexpr (IS_STRAIGHT) {
      // A warp's lanes write one after the other: which chunk is at a lane's place says what it reads.
      to = uniform(thread / 64) * 64 * 16;
      TILEDMM_UNROLL for (int i = 0; i < kChunks; ++i) {
        const int idx = thread + i * THREADS, row = idx / Places::kChunksOfRow;
        const int chunk = idx % Places::kChunksOfRow ^ Places::swizzle(row);
        offsets[i] = uint32_t(row) * (IS_K_MAJOR ? stride_row : stride_k) + uint32_t(chunk) * 16;
      }
    } else if constexpr (IS_K_MAJOR) {
      to = Places::place_of(thread / 8, thread % 8);
      TILEDMM_UNROLL for (int i = 0; i < kChunks; ++i) {
        offsets[i] = uint32_t(thread / 8 + i * (THREADS / 8)) * stride_row + uint32_t(thread % 8) * 16;
      }
    } else {
      const int place = thread % kPlaces, row_of_chunks = thread / kPlaces * kElements;
      to = Places::place_of(row_of_chunks, place * kTurned * kSize / 16) + place * kTurned * kSize % 16;
      TILEDMM_UNROLL for (int i = 0; i < kChunks; ++i) {
        offsets[i] = uint32_t(place * kTurned + i % kTurned) * stride_k +
                     uint32_t(row_of_chunks + i / kTurned * kStepRows) * kSize;
      }
    }
  }

  // Begins to copy a whole tile straight to shared memory, and steps to the next one.
  TILEDMM_DEVICE void copy(char* smem) {
    static_assert(IS_STRAIGHT, "others go by way of registers");
    const Descriptor buffer = describe_buffer(tile, num_bytes);
    TILEDMM_UNROLL for (int i = 0; i < kChunks; ++i) copy_vector(buffer, offsets[i], smem + to + i * THREADS * 16);
    step();
  }

  // Reads a whole tile, 16 bytes at a time, and steps to the next one. Where rows are odd, chunks begin anywhere in a
  // word of two elements: the words that they touch are read. They may overhang the tile, but not the operand.
  template <bool ARE_ROWS_ODD>
  TILEDMM_DEVICE void load() {
    static_assert(!IS_STRAIGHT, "others have no registers");
    const uint32_t begin = ARE_ROWS_ODD ? begin_in_word() : 0;
    const Buffer buffer = make_buffer(tile - begin, ARE_ROWS_ODD ? (begin + num_bytes + 3) / 4 * 4 : num_bytes);
    TILEDMM_UNROLL for (int i = 0; i < kChunks; ++i) {
      const uint32_t offset = ARE_ROWS_ODD ? (begin + offsets[i]) / 4 * 4 : offsets[i];
      staged[i] = load_vector(buffer, offset);
      if constexpr (ARE_ROWS_ODD) behind[i] = load_element<uint32_t>(buffer, offset + 16);
    }
    step();
  }
  template <bool ARE_ROWS_ODD>
  TILEDMM_DEVICE void store(char* smem) {
    if constexpr (ARE_ROWS_ODD) {
      TILEDMM_UNROLL for (int i = 0; i < kChunks; ++i) {
        const uint32_t bits = (begin_in_word() + offsets[i]) % 4 * 8;
        TILEDMM_UNROLL for (int w = 0; w < 4; ++w) {
          staged[i].words[w] = shift_words(w < 3 ? staged[i].words[w + 1] : behind[i], staged[i].words[w], bits);
        }
      }
    }
    if constexpr (IS_K_MAJOR) {
      TILEDMM_UNROLL for (int i = 0; i < kChunks; ++i) {
        store_shared(reinterpret_cast<Vector16*>(smem + to + i * (THREADS / 8) * kMfmaRowBytes), staged[i]);
      }
    } else {
      TILEDMM_UNROLL for (int group = 0; group < kChunks / kTurned; ++group) {
        TILEDMM_UNROLL for (int row = 0; row < kElements; ++row) {
          char* place = smem + (to ^ row * 16) + (group * kStepRows + row) * kMfmaRowBytes;
          store_turned(staged + group * kTurned, row, place);
        }
      }
    }
  }

  // Copies the tile of which `left_k` are inside, element by element, zeros beyond, and steps to the next one.
  TILEDMM_DEVICE void copy_elements(int left_k, char* smem) {
    left_k = left_k < kBlockK ? left_k : kBlockK;
    const Buffer buffer = make_buffer(tile, uint32_t(rows - 1) * stride_row + uint32_t(left_k - 1) * stride_k + kSize);
    // opaque: else offsets are computed ahead of the main loop, and kept throughout.
    TILEDMM_NO_UNROLL for (int idx = opaque(thread_idx()); idx < BLOCK * 8; idx += THREADS) {
      constexpr bool kIsAlongMemory = IS_K_MAJOR || IS_STRAIGHT;
      const int row = kIsAlongMemory ? idx / Places::kChunksOfRow : idx % BLOCK;
      const int chunk = kIsAlongMemory ? idx % Places::kChunksOfRow : idx / BLOCK;
      Chunk<T> elements;
      TILEDMM_UNROLL for (int e = 0; e < kElements; ++e) {
        const int mn = kAreRowsAlongK ? row : chunk * kElements + e, k = kAreRowsAlongK ? chunk * kElements + e : row;
        const uint32_t offset = uint32_t(mn) * stride_row + uint32_t(k) * stride_k;
        elements.elements[e] = load_element<T>(buffer, mn < rows && k < left_k ? offset : kOutside);
      }
      store_shared(reinterpret_cast<Vector16*>(smem + Places::place_of(row, chunk)), elements.vector);
    }
    tile += int64_t(kBlockK) * stride_k;
  }

 private:
  TILEDMM_DEVICE void step() { tile += IS_K_MAJOR ? int64_t(kMfmaRowBytes) : int64_t(kBlockK) * stride_k; }

  static constexpr int kStepRows = THREADS / kPlaces * kElements;  // from one group of a thread to its next

  // The byte of a word at which every tile begins: from one to the next there are whole words.
  TILEDMM_DEVICE uint32_t begin_in_word() const { return uint32_t(reinterpret_cast<uintptr_t>(tile) % 4); }

  // Element `row` of each of kTurned chunks, side by side.
  static TILEDMM_DEVICE void store_turned(const Vector16* chunks, int row, char* to) {
    struct alignas(kTurned * kSize) Turned {
      uint32_t words[kTurned * kSize / 4];
    } turned;
    if constexpr (kSize == 2) {
      TILEDMM_UNROLL for (int w = 0; w < 2; ++w) {
        const uint32_t first = chunks[2 * w].words[row / 2], second = chunks[2 * w + 1].words[row / 2];
        turned.words[w] = row % 2 ? pair_up<1>(first, second) : pair_up<0>(first, second);
      }
    } else {
      constexpr int kWords = kSize / 4;
      TILEDMM_UNROLL for (int i = 0; i < kTurned; ++i) {
        TILEDMM_UNROLL for (int w = 0; w < kWords; ++w) turned.words[i * kWords + w] =
            chunks[i].words[row * kWords + w];
      }
    }
    store_shared(reinterpret_cast<Turned*>(to), turned);
  }
};

}  // namespace
}  // namespace tiledmm::gpu

#endif

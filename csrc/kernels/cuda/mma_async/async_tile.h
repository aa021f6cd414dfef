// Block tiles of an operand on their way from global to shared memory by asynchronous copies (async_copy.h), and from
// there into the fragments of a warp's matrix instruction. Any strides, any size: what lies outside becomes zero.
// Copies are 16 bytes wide where the operand allows it, else one element, which must have 4 or 8 bytes then. Whole
// tiles along k come first, one behind the other; one that is not whole may follow them.
//
// Rows in shared memory are padded so that copies of whole rows and loads of fragments have no bank conflicts.
#pragma once

#include "platform/async_copy.h"
#include "platform/block_tile.h"
#include "platform/mma_layout.h"

namespace tiledmm::gpu {

// Tiles as they lie in memory: [mn][k] or [k][mn]. HAS_POLICY: of the second-level cache, for all copies.
template <class T, int BLOCK_MN, int BLOCK_K, bool IS_K_MAJOR, int NUM_THREADS, bool HAS_POLICY = false>
struct AsyncTile {
  using L = LayoutM16N8;
  using Word = typename WordOf<T>::Word;
  static constexpr int kVector = 16 / int(sizeof(T)), kWordElements = WordOf<T>::kElements;
  static constexpr int kRowK = BLOCK_K + (sizeof(T) == 8 ? 4 : kVector), kRowMn = BLOCK_MN + (sizeof(T) == 8 ? 4 : 8);
  static constexpr int kVectors = BLOCK_MN * BLOCK_K / kVector / NUM_THREADS;  // copies of a thread
  static constexpr bool kUsesLdmatrix = kHasLdmatrix && (sizeof(T) == 2 || (sizeof(T) == 4 && IS_K_MAJOR));
  static_assert(kVectors * kVector * NUM_THREADS == BLOCK_MN * BLOCK_K, "every thread copies as much");

  struct Shared {
    alignas(16) T elements[IS_K_MAJOR ? BLOCK_MN * kRowK : BLOCK_K * kRowMn];
  };

  Operand<T> operand;
  int close, far, far_step;  // of this thread's first copy within the tile, and from each of its copies to the next
  int left_mn;               // of the operand, from the tile on
  const T* next;             // this thread's first element of the next tile
  uint64_t policy = 0;

  // The block tiles of `operand` from mn on.
  TILEDMM_DEVICE AsyncTile(const Operand<T>& operand, int64_t mn) : operand(operand) {
    // By shifts, since nvcc makes one division of two by constants of which one counts.
    constexpr int kRow = IS_K_MAJOR ? BLOCK_K : BLOCK_MN;
    static_assert((kRow & (kRow - 1)) == 0 && (NUM_THREADS & (NUM_THREADS - 1)) == 0, "powers of two");
    const int width = sizeof(T) == 2 || operand.is_vectorised ? __builtin_ctz(kVector) : 0;
    const int shift = __builtin_ctz(kRow) - width;
    far = thread_idx() >> shift;
    close = (thread_idx() & ((1 << shift) - 1)) << width;
    far_step = NUM_THREADS >> shift;
    left_mn = int(min_of(operand.size_mn - mn, BLOCK_MN));
    next = operand.base + mn * operand.stride_mn + close * stride_close() + far * stride_far();
  }

  TILEDMM_DEVICE int64_t stride_close() const { return IS_K_MAJOR ? operand.stride_k : operand.stride_mn; }
  TILEDMM_DEVICE int64_t stride_far() const { return IS_K_MAJOR ? operand.stride_mn : operand.stride_k; }
  // Distances of elements in shared memory.
  TILEDMM_DEVICE int smem_stride_mn() const { return IS_K_MAJOR ? kRowK : 1; }
  TILEDMM_DEVICE int smem_stride_k() const { return IS_K_MAJOR ? 1 : kRowMn; }

  // Starts the copies of the next tile, which has only left_k > 0 elements along k.
  TILEDMM_DEVICE void copy_last_tile(int left_k, Shared& shared) const {
    const int inside_close = (IS_K_MAJOR ? left_k : left_mn) - close;
    const int inside_far = (IS_K_MAJOR ? left_mn : left_k) - far;
    T* to = &shared.elements[far * (IS_K_MAJOR ? kRowK : kRowMn) + close];
    if (sizeof(T) == 2 || operand.is_vectorised) {
      copy_rows<kVector, kVectors>(to, int(max_of(0, min_of(inside_close, kVector))), inside_far);
    } else {
      copy_rows<1, kVectors * kVector>(to, inside_close > 0, inside_far);
    }
  }
  // The same element by element, with -0 behind them: its product with the other operand's zeros changes no sum, not
  // even the sign of a zero.
  TILEDMM_DEVICE void copy_last_elements(int left_k, Shared& shared) const {
    const T* const first = next - close * stride_close() - far * stride_far();
    TILEDMM_NO_UNROLL for (int i = thread_idx(); i < BLOCK_MN * BLOCK_K; i += NUM_THREADS) {
      const int mn = IS_K_MAJOR ? i / BLOCK_K : i % BLOCK_MN, k = IS_K_MAJOR ? i % BLOCK_K : i / BLOCK_MN;
      T* const to = &shared.elements[mn * smem_stride_mn() + k * smem_stride_k()];
      if (k < left_k) {
        copy<int(sizeof(T))>(to, first + mn * operand.stride_mn + k * operand.stride_k, mn < left_mn ? sizeof(T) : 0);
      } else {
        store_shared(to, T(-0.0));
      }
    }
  }

 private:
  template <int WIDTH, int COUNT>
  TILEDMM_DEVICE void copy_rows(T* to, int inside_close, int inside_far) const {
    constexpr int kBytes = WIDTH * int(sizeof(T));
    if constexpr (kBytes >= 4) {
      const T* source = next;
      const int64_t step = far_step * stride_far();
      const int smem_step = far_step * (IS_K_MAJOR ? kRowK : kRowMn), valid_bytes = inside_close * int(sizeof(T));
      TILEDMM_UNROLL for (int i = 0; i < COUNT; ++i) {
        copy<kBytes>(to + i * smem_step, source, i * far_step < inside_far ? valid_bytes : 0);
        source += step;
      }
    }
  }
  template <int BYTES>
  TILEDMM_DEVICE void copy(void* to, const void* source, int valid_bytes) const {
    if constexpr (HAS_POLICY)
      copy_async_by<BYTES>(policy, to, source, valid_bytes);
    else
      copy_async<BYTES>(to, source, valid_bytes);
  }
  template <int BYTES>
  TILEDMM_DEVICE void copy_or_zero(bool pred, void* to, const void* source) const {
    if constexpr (HAS_POLICY)
      copy_async_by<BYTES>(policy, to, source, pred ? BYTES : 0);
    else
      copy_async_or_zero<BYTES>(pred, to, source);
  }

 public:
  // Whether the tiles lie within the operand along mn.
  TILEDMM_DEVICE bool is_inside() const { return left_mn == BLOCK_MN; }
  // Skips `k_tiles` whole tiles.
  TILEDMM_DEVICE void skip_tiles(int64_t k_tiles) { next += k_tiles * BLOCK_K * operand.stride_k; }
  // Starts the copies of the next tile, which lies within k.
  TILEDMM_DEVICE void copy_whole_tile(Shared& shared) {
    if (sizeof(T) == 2 || operand.is_vectorised) {
      copy_part<kVector, false>(shared, 0, 1);
    } else {
      copy_part<1, false>(shared, 0, 1);
    }
  }
  // Starts part `part` of `parts` of the same copies: no branches, so that they find room between matrix instructions.
  // The parts come in their order; `next` walks from copy to copy.
  template <int WIDTH, bool IS_INSIDE>
  TILEDMM_DEVICE void copy_part(Shared& shared, int part, int parts) {
    constexpr int kBytes = WIDTH * int(sizeof(T)), kCount = kVectors * kVector / WIDTH;
    if constexpr (kBytes >= 4) {
      const int row = IS_K_MAJOR ? kRowK : kRowMn, rows = NUM_THREADS * WIDTH / (IS_K_MAJOR ? BLOCK_K : BLOCK_MN);
      const int64_t step = rows * stride_far(), tile_step = BLOCK_K * operand.stride_k - (kCount - 1) * step;
      const int left = left_mn - (IS_K_MAJOR ? far : close);
      TILEDMM_UNROLL for (int i = 0; i < kCount; ++i) {
        if (i * parts / kCount != part) continue;
        T* to = &shared.elements[(far + i * rows) * row + close];
        if constexpr (IS_INSIDE) {
          copy<kBytes>(to, next, kBytes);
        } else if constexpr (IS_K_MAJOR || WIDTH == 1) {
          // Opaque: what is the same in every tile would take registers from the sums.
          copy_or_zero<kBytes>((IS_K_MAJOR ? i * rows : 0) < opaque(left), to, next);
        } else {
          copy<kBytes>(to, next, int(max_of(0, min_of(opaque(left), WIDTH))) * int(sizeof(T)));
        }
        next =
            reinterpret_cast<const T*>(opaque(reinterpret_cast<int64_t>(next + (i < kCount - 1 ? step : tile_step))));
      }
    }
  }

  // The fragment of A of 16 rows from mn on, or those of B of 8 columns each, one behind the other; of the words along
  // k from `word` on, of which a fragment of A has four in a row for every two that a lane holds.
  template <int WORDS>
  TILEDMM_DEVICE void load_fragment_a(const Shared& shared, int mn, int word, Word (&frag)[WORDS]) const {
    if constexpr (kUsesLdmatrix) {
      load_words<true>(shared, mn, word, frag[0], frag[1], frag[2], frag[3]);
    } else {
      const int lane = thread_idx() % 32;
      TILEDMM_UNROLL for (int w = 0; w < WORDS; ++w) {
        frag[w] = load_word(shared, mn + L::a_row(lane, w), word + L::a_word(lane, w));
      }
    }
  }
  template <int FRAGS, int WORDS>
  TILEDMM_DEVICE void load_fragments_b(const Shared& shared, int mn, int word, Word (&frags)[FRAGS][WORDS]) const {
    if constexpr (kUsesLdmatrix && FRAGS % 2 == 0) {  // two at a time
      TILEDMM_UNROLL for (int j = 0; j < FRAGS; j += 2) {
        load_words<false>(shared, mn + j * L::kN, word, frags[j][0], frags[j][1], frags[j + 1][0], frags[j + 1][1]);
      }
    } else {
      const int lane = thread_idx() % 32;
      TILEDMM_UNROLL for (int j = 0; j < FRAGS; ++j) {
        TILEDMM_UNROLL for (int w = 0; w < WORDS; ++w) {
          frags[j][w] = load_word(shared, mn + j * L::kN + L::b_col(lane, w), word + L::b_word(lane, w));
        }
      }
    }
  }

 private:
  // By ldmatrix, as BlockTile::load_words.
  template <bool IS_A>
  TILEDMM_DEVICE void load_words(const Shared& shared, int mn, int word, Word& w0, Word& w1, Word& w2, Word& w3) const {
    const int lane = thread_idx() % 32, matrix = lane / 8, row = lane % 8;
    const int group_mn = IS_A ? matrix % 2 : matrix / 2, group_k = IS_A ? matrix / 2 : matrix % 2;
    const int k = word * kWordElements;
    if constexpr (IS_K_MAJOR) {
      ldmatrix<false>(&shared.elements[(mn + 8 * group_mn + row) * kRowK + k + 4 * kWordElements * group_k], w0, w1, w2,
                      w3);
    } else {
      ldmatrix<true>(&shared.elements[(k + 8 * group_k + row) * kRowMn + mn + 8 * group_mn], w0, w1, w2, w3);
    }
  }

  TILEDMM_DEVICE Word load_word(const Shared& shared, int mn, int word) const {
    const T* from = &shared.elements[mn * smem_stride_mn() + word * kWordElements * smem_stride_k()];
    if constexpr (kWordElements == 1) {
      return load_shared(from);
    } else if (IS_K_MAJOR) {
      return load_shared(reinterpret_cast<const Word*>(from));
    } else {
      return uint32_t(load_shared(from).bits) | uint32_t(load_shared(from + kRowMn).bits) << 16;
    }
  }
};

}  // namespace tiledmm::gpu

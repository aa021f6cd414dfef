// skinny: fp16 and bf16 products with up to 64 rows or columns, fp64 products with up to 8; sm_80 and later.
//
// The block tiles of the other rungs are empty for the most part then, and too few to draw the large operand from
// memory at full speed. Here it streams through shared memory once: every multiprocessor has an equal share of n, a
// warp 16 columns with its whole chain of k, and copy warps keep a ring of stages ahead of the warps that multiply.
// The large operand takes the instruction's 16 rows and the few rows its 8 columns (the sums' bits stay the same), so
// 8 rows cost little more than one. Few columns are few rows of C^T. Chunks of k are computed side by side where n is
// small, and added in their order by a second kernel. The second-level cache gives up the streamed operand first, and
// need not write back what others left there. Warps that multiply widen a B of 8 bits (e4m3) on its way, beside rows of
// 16 bits, and scale its columns' sums. Limits: from 16 rows on, all multiprocessors read the same rows at a
// time; wgmma is faster then, where there is one. Sources: PTX ISA (cp.async, mma); roles exchanged as in Marlin
// (IST-DASLab) and swapAB of CUTLASS.
#include "core/plan.h"
#include "core/summation.h"
#include "core/transposed.h"
#include "kernels/cuda/skinny/plan.h"
#include "platform/async_copy.h"
#include "platform/block_tile.h"
#include "platform/chunk_sums.h"
#include "platform/mma_16x8.h"

namespace tiledmm::gpu {
namespace {

constexpr int kGroup = kSkinnyGroup;
template <class W>  // an element of B
inline constexpr int kCopyThreads = skinny_copy_threads(sizeof(W) == 1);
template <class T>
inline constexpr DType kDType = sizeof(T) == 8   ? DType::f64
                                : sizeof(T) == 1 ? DType::e4m3
                                                 : DType::f16;  // as in plans

// Threads of a block.
template <class W>
constexpr int num_skinny_threads(const SkinnyPlan& plan) {
  return kCopyThreads<W> + 32 * plan.groups;
}

// The kernels' first parameter: each line of constants that the first copy waits for takes 0.1 us.
struct Work {
  SkinnyPlan plan;
  int width_a, width_b;  // bytes of one copy: 16, 8 or 4; 2 where elements have to be gathered
  void* partials;        // as ChunkSums has them, null where a block computes all of k
  int zero;              // always
};

// What a block computes at a time.
struct Unit {
  int64_t batch_idx, chunk, col, k_begin, k_end;
  int num_tiles;

  Unit() = default;
  TILEDMM_DEVICE Unit(const FoldedProblem& problem, const SkinnyPlan& plan, int64_t idx, int block_k) {
    // Divisions take time: one product in one chunk needs none.
    const int64_t outer = idx < plan.blocks_n ? 0 : idx / plan.blocks_n;
    col = (idx - outer * plan.blocks_n) * plan.cols;
    batch_idx = plan.num_chunks == 1 ? outer : outer / plan.num_chunks;
    chunk = outer - batch_idx * plan.num_chunks;
    k_begin = plan.splits_chunks ? chunk * problem.chunk_k : 0;
    k_end = plan.splits_chunks ? min_of(problem.gemm.k, k_begin + problem.chunk_k) : problem.gemm.k;
    num_tiles = plan.splits_chunks ? int((k_end - k_begin + block_k - 1) / block_k) : plan.num_k_tiles;
  }
};

// What lies outside of an operand: 0, of PADS_NEGATIVE -0. The product of both changes no sum, not even the sign of a
// zero. In fp64 the few rows have -0.
template <class T, bool PADS_NEGATIVE>
TILEDMM_DEVICE T padding() {
  if constexpr (PADS_NEGATIVE)
    return T(-0.0);
  else
    return T{};
}

// Copies WIDTH bytes that are all inside of the operand, or outside.
template <bool PADS_NEGATIVE, int WIDTH, class T>
TILEDMM_DEVICE void copy_piece(char* to, const T* from, bool is_inside) {
  if constexpr (PADS_NEGATIVE) {
    if (is_inside) {
      copy_async<WIDTH>(to, from, WIDTH);
    } else {
      TILEDMM_UNROLL for (int e = 0; e < WIDTH / int(sizeof(T)); ++e) {
        store_shared(reinterpret_cast<T*>(to) + e, padding<T, true>());
      }
    }
  } else {
    copy_async<WIDTH>(to, from, is_inside ? WIDTH : 0);
  }
}

// One packet of 16 bytes, of which `inside` elements are inside of the operand, by copies of WIDTH bytes, each inside
// or outside.
template <bool PADS_NEGATIVE, int WIDTH, class T>
TILEDMM_DEVICE void copy_packet(char* to, const T* from, int inside) {
  constexpr int kElements = Packet<T>::kElements, kPiece = WIDTH / int(sizeof(T));
  TILEDMM_UNROLL for (int e = 0; e < kElements; e += kPiece) {
    copy_piece<PADS_NEGATIVE, WIDTH>(to + e * sizeof(T), from + e, e < inside);
  }
}

// COUNT packets element by element, all on their way before the first is stored.
template <bool PADS_NEGATIVE, int COUNT, class T>
TILEDMM_DEVICE void gather_packets(char* to, int step_to, const T* from, int64_t step, int64_t stride, int left,
                                   int rows_inside, int inside) {
  Packet<T> packets[COUNT];
  TILEDMM_UNROLL for (int i = 0; i < COUNT; ++i) {
    const T* element = from;
    TILEDMM_UNROLL for (int e = 0; e < Packet<T>::kElements; ++e) {
      packets[i].elements[e] = i < rows_inside && e < inside ? load_global(element) : padding<T, PADS_NEGATIVE>();
      element = opaque(element + stride);
    }
    from = opaque(from + step);
  }
  TILEDMM_UNROLL for (int i = 0; i < COUNT; ++i) {
    if (i < left) store_shared(reinterpret_cast<Vector16*>(to + i * step_to), packets[i].vector);
  }
}

// A thread's packets where they are not all inside, or not aligned; the first rows_inside of them are in rows that are.
// Out of line, so that the way of most tiles is short.
template <bool PADS_NEGATIVE, class T>
TILEDMM_OUT_OF_LINE void copy_edge_packets(char* to, int step_to, const T* from, int64_t step, int64_t stride,
                                           int num_packets, int rows_inside, int inside, int width) {
  const int num_inside = rows_inside < num_packets ? rows_inside : num_packets;
  const int at_once = width == 2 ? 2 : 1;
  for (int i = 0; i < num_packets; i += at_once) {
    const int valid = i < num_inside ? inside : 0;
    if (width == 16) {
      copy_packet<PADS_NEGATIVE, 16>(to, from, valid);
    } else if (width == 8) {
      copy_packet<PADS_NEGATIVE, 8>(to, from, valid);
    } else if (sizeof(T) < 8 && width == 4) {
      if constexpr (sizeof(T) < 8) copy_packet<PADS_NEGATIVE, 4>(to, from, valid);
    } else {
      gather_packets<PADS_NEGATIVE, 2>(to, step_to, from, step, stride, num_packets - i, num_inside - i, inside);
    }
    to += at_once * step_to;
    from += at_once * step;
  }
}

// The tiles of one operand on their way to shared memory, in packets of 16 bytes. A copy thread has one column of
// packets and every step_far-th row of it. Rows and columns of C beyond its edge are computed from whatever lies there,
// and are not stored; only along k must there be zeros beyond the edge, as padding() says.
template <class T, int THREADS, int BLOCK_K, bool IS_K_MAJOR, bool IS_STREAMED>
struct TileCopier {
  static constexpr int kElements = Packet<T>::kElements;
  static constexpr bool kPadsNegative = sizeof(T) == 8 && !IS_STREAMED;
  static_assert(THREADS % (BLOCK_K / kElements) == 0, "k-major: no thread is left over");

  Operand<T> operand;
  int num_mn, close, first_far, step_far;
  int first_to, step_to;    // bytes in the tile: to this thread's first packet, from each to the next
  int64_t step;             // elements in memory from packet to packet
  int width;                // bytes of one copy
  int left_mn = 0;          // from the tiles' first on
  int num_packets = 0;      // of this thread in each tile
  const T* from = nullptr;  // its first one in the next tile

  // A tile has room for block_mn rows, or columns. The first num_mn are used.
  TILEDMM_DEVICE TileCopier(const Operand<T>& operand, int block_mn, int num_mn, int width)
      : operand(operand), num_mn(num_mn), width(width) {
    const int packets_per_row = (IS_K_MAJOR ? BLOCK_K : block_mn) / kElements;
    step_far = THREADS / packets_per_row;
    close = thread_idx() % packets_per_row * kElements;
    first_far = thread_idx() / packets_per_row;
    const int row_bytes = skinny_row_bytes(kDType<T>, IS_K_MAJOR, block_mn, BLOCK_K);
    first_to = first_far * row_bytes + close * int(sizeof(T));
    step_to = step_far * row_bytes;
    step = step_far * stride_far();
  }

  TILEDMM_DEVICE int64_t stride_close() const { return IS_K_MAJOR ? operand.stride_k : operand.stride_mn; }
  TILEDMM_DEVICE int64_t stride_far() const { return IS_K_MAJOR ? operand.stride_mn : operand.stride_k; }

  // The next tiles are those from (mn, k) on, of another product perhaps.
  TILEDMM_DEVICE void move_to(const void* base, int64_t mn, int64_t k) {
    left_mn = int(min_of(operand.size_mn - mn, num_mn));
    const int num_rows = IS_K_MAJOR ? left_mn : BLOCK_K;
    const bool has_packets = first_far < step_far && first_far < num_rows && (IS_K_MAJOR || close < left_mn);
    num_packets = has_packets ? (num_rows - first_far + step_far - 1) / step_far : 0;
    from = static_cast<const T*>(base) + mn * operand.stride_mn + k * operand.stride_k + first_far * stride_far() +
           close * stride_close();
  }

  // Starts the copy of the next tile, of size_k elements along k. No thread has more than MAX_PACKETS.
  template <int MAX_PACKETS>
  TILEDMM_DEVICE void load_block_tile(char* tile, int size_k) {
    char* to = tile + first_to;
    const int left_close = IS_K_MAJOR ? size_k : left_mn;
    if (width == 16 && left_close % kElements == 0) {  // a packet is inside or outside
      const T* packet = from;
      constexpr int kAtOnce = MAX_PACKETS < 4 ? MAX_PACKETS : 4;  // each with registers of its own, in use for a while
      TILEDMM_NO_UNROLL for (int first = 0; first < (MAX_PACKETS > kAtOnce ? num_packets : 1); first += kAtOnce) {
        TILEDMM_UNROLL for (int i = 0; i < kAtOnce; ++i) {
          const bool is_inside = (IS_K_MAJOR ? close : first_far + (first + i) * step_far) < size_k;
          if (first + i < num_packets) {
            if constexpr (IS_STREAMED) {
              copy_async_once<16>(to + i * step_to, packet, is_inside ? 16 : 0);
            } else {
              copy_piece<kPadsNegative, 16>(to + i * step_to, packet, is_inside);
            }
          }
          packet = opaque(packet + step);
        }
        to += kAtOnce * step_to;
      }
    } else {
      const int left = left_close - close;
      const int inside = left < 0 ? 0 : left < kElements ? left : kElements;
      const int rows_inside = IS_K_MAJOR ? num_packets : (size_k - first_far + step_far - 1) / step_far;
      // No copy ends within the operand's memory: memcheck does not see that it reads no further.
      const int whole_width = inside % max_of(width / int(sizeof(T)), 1) == 0 ? width : 2;
      copy_edge_packets<kPadsNegative>(to, step_to, from, step, stride_close(), num_packets, rows_inside, inside,
                                       whole_width);
    }
    from += size_k * operand.stride_k;
  }
};

// Waits until all but num_stages - 2 of the calling thread's groups of copies have arrived.
template <int IDX = kNumSkinnyStages - 1>
TILEDMM_DEVICE void wait_for_stage(int num_stages) {
  constexpr int kStages = kSkinnyStages[IDX];
  if constexpr (IDX > 0) {
    if (num_stages != kStages) return wait_for_stage<IDX - 1>(num_stages);
  }
  wait_copies<kStages - 2>();
}

// A place in the ring of stages.
struct Ring {
  int num_stages, stage = 0;
  TILEDMM_DEVICE explicit Ring(int num_stages) : num_stages(num_stages) {}
  TILEDMM_DEVICE void advance() { stage = stage + 1 == num_stages ? 0 : stage + 1; }
};

// Where elements of a tile lie in shared memory, [mn][k] or [k][mn], in bytes.
template <class T, bool IS_K_MAJOR>
struct TileLayout {
  using Word = typename WordOf<T>::Word;
  int row_bytes;

  TILEDMM_DEVICE int offset(int mn, int k) const {
    return IS_K_MAJOR ? mn * row_bytes + k * int(sizeof(T)) : k * row_bytes + mn * int(sizeof(T));
  }
  // Word number `word` along k.
  TILEDMM_DEVICE Word load_word(const char* tile, int mn, int word) const {
    const char* from = tile + offset(mn, word * WordOf<T>::kElements);
    if constexpr (IS_K_MAJOR || sizeof(Word) == sizeof(T)) {
      return load_shared(reinterpret_cast<const Word*>(from));
    } else {
      const uint32_t low = load_shared(reinterpret_cast<const uint16_t*>(from));
      return low | uint32_t(load_shared(reinterpret_cast<const uint16_t*>(from + row_bytes))) << 16;
    }
  }
  // What this lane gives to ldmatrix: matrices along mn first, or along k first, or all of them along k.
  enum class Order { mn_first, k_first, k_only };
  TILEDMM_DEVICE int lane_offset(Order order) const {
    const int matrix = thread_idx() % 32 / 8, row = thread_idx() % 8;
    const int mn = order == Order::k_only ? 0 : order == Order::mn_first ? matrix % 2 : matrix / 2;
    const int k = order == Order::k_only ? matrix : order == Order::mn_first ? matrix / 2 : matrix % 2;
    return IS_K_MAJOR ? offset(8 * mn + row, 8 * k) : offset(8 * mn, 8 * k + row);
  }
};

// The sums of one warp: its columns of a C of elements C for FRAGS times 8 rows. Elements of B are W, T or of 8 bits.
template <class T, class W, class C, int FRAGS, int BLOCK_K, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR>
struct WarpSums {
  using L = LayoutM16N8;
  using Word = typename WordOf<T>::Word;
  static constexpr bool kWidens = sizeof(W) == 1;
  static_assert(L::kM == kGroup && L::kN == 8);
  static constexpr int kStepK = L::kWordsK * WordOf<T>::kElements;
  static constexpr bool kUsesLdmatrix = kHasLdmatrix && sizeof(T) == 2;
  using Strip = WarpStrip<C, 8 * FRAGS, kGroup>;

  Acc<T> acc[FRAGS][1][L::kAccs];  // of this chunk, as wait_for_sums takes them
  Acc<T> total[FRAGS][L::kAccs];   // of the chunks before
  TileLayout<T, IS_A_K_MAJOR> tile_a;
  TileLayout<W, IS_B_K_MAJOR> tile_b;
  int col;  // within the block tile
  int lane = thread_idx() % 32, lane_a, lane_b;

  TILEDMM_DEVICE WarpSums(int block_n, int col)
      : tile_a{skinny_row_bytes(kDType<T>, IS_A_K_MAJOR, 8 * FRAGS, BLOCK_K)},
        tile_b{skinny_row_bytes(kDType<W>, IS_B_K_MAJOR, block_n, BLOCK_K)},
        col(col) {
    lane_a = tile_a.lane_offset(FRAGS == 1 ? decltype(tile_a)::Order::k_only : decltype(tile_a)::Order::k_first);
    lane_b = tile_b.lane_offset(decltype(tile_b)::Order::mn_first) + tile_b.offset(col, 0);
  }

  template <class Visit>
  TILEDMM_DEVICE void for_each(const Visit& visit) {
    TILEDMM_UNROLL for (int f = 0; f < FRAGS; ++f) { TILEDMM_UNROLL for (int e = 0; e < L::kAccs; ++e) visit(f, e); }
  }
  TILEDMM_DEVICE void clear() {
    for_each([&](int f, int e) { acc[f][0][e] = 0; });
  }
  // The end of a chunk: `acc` starts anew, or, after the last one, becomes the total.
  TILEDMM_DEVICE void add_to_total(bool is_first, bool is_last) {
    for_each([&](int f, int e) {
      total[f][e] = is_first ? acc[f][0][e] : total[f][e] + acc[f][0][e];
      acc[f][0][e] = is_last ? total[f][e] : 0;
    });
  }

  // Fragments of a few steps of the instruction along k; those after them are loaded while these are multiplied.
  static constexpr int kSteps = sizeof(T) == 8 ? 2
                                : kWidens      ? (FRAGS <= 4 ? 2 : 1)
                                : FRAGS <= 2   ? 4
                                : FRAGS == 4   ? 2
                                               : 1;
  static constexpr int kParts = BLOCK_K / kStepK / kSteps;
  static_assert(kParts % 2 == 0, "the two sets of fragments take turns");
  struct Fragments {
    Word a[kSteps][FRAGS][L::kWordsB];
    typename WordOf<W>::Word b[kSteps][L::kWordsA];
  };

  // Those of a k tile from its part `part` on.
  TILEDMM_DEVICE void load_fragments(const char* smem_a, const char* smem_b, int part, Fragments& frags) const {
    TILEDMM_UNROLL for (int s = 0; s < kSteps; ++s) {
      const int step = part * kSteps + s;
      auto& a = frags.a[s];
      auto& b = frags.b[s];
      if constexpr (kUsesLdmatrix) {
        const int k = step * kStepK;
        if constexpr (!kWidens) ldmatrix<!IS_B_K_MAJOR>(smem_b + lane_b + tile_b.offset(0, k), b[0], b[1], b[2], b[3]);
        if constexpr (FRAGS > 1) {
          TILEDMM_UNROLL for (int f = 0; f < FRAGS; f += 2) {
            ldmatrix<!IS_A_K_MAJOR>(smem_a + lane_a + tile_a.offset(8 * f, k), a[f][0], a[f][1], a[f + 1][0],
                                    a[f + 1][1]);
          }
        } else if (s % 2 == 0) {
          auto& odd = frags.a[s + 1][0];
          ldmatrix<!IS_A_K_MAJOR>(smem_a + lane_a + tile_a.offset(0, k), a[0][0], a[0][1], odd[0], odd[1]);
        }
      } else {
        TILEDMM_UNROLL for (int f = 0; f < FRAGS; ++f) {
          TILEDMM_UNROLL for (int w = 0; w < L::kWordsB; ++w) {
            a[f][w] = tile_a.load_word(smem_a, 8 * f + L::b_col(lane, w), step * L::kWordsK + L::b_word(lane, w));
          }
        }
      }
      if constexpr (kWidens || !kUsesLdmatrix) {
        TILEDMM_UNROLL for (int w = 0; w < L::kWordsA; ++w) {
          b[w] = tile_b.load_word(smem_b, col + L::a_row(lane, w), step * L::kWordsK + L::a_word(lane, w));
        }
      }
    }
  }

  TILEDMM_DEVICE void multiply(const Fragments& frags) {
    TILEDMM_UNROLL for (int s = 0; s < kSteps; ++s) {
      Word b[L::kWordsA];
      TILEDMM_UNROLL for (int w = 0; w < L::kWordsA; ++w) {
        if constexpr (kWidens) {
          b[w] = widened_e4m3<T>(frags.b[s][w]);
        } else {
          b[w] = frags.b[s][w];
        }
      }
      TILEDMM_UNROLL for (int f = 0; f < FRAGS; ++f) multiply_16x8<T>(acc[f][0], b, frags.a[s][f]);
    }
  }

  // Times the factors of B's columns.
  TILEDMM_DEVICE void scale(const GemmProblem& gemm, int64_t col, int64_t end) {
    TILEDMM_UNROLL for (int half = 0; half < kGroup / 8; ++half) {
      const int64_t own = col + L::c_row(lane, 2 * half);
      const float factor =
          own < min_of(gemm.n, end) ? load_global(gemm.scale_b.data + own * gemm.scale_b.stride_row) : 0.0f;
      TILEDMM_UNROLL for (int f = 0; f < FRAGS; ++f) {
        TILEDMM_UNROLL for (int e = 0; e < 2; ++e) acc[f][0][2 * half + e] *= factor;
      }
    }
  }

  // To C, or to the partial sums; columns from `end` on belong to others.
  TILEDMM_DEVICE void store_block_tile(GemmProblem gemm, int64_t col, int64_t end, Acc<T>* partials, Strip& strip) {
    if constexpr (kWidens) {
      if (!partials) scale(gemm, col, end);
    }
    for_each(
        [&](int f, int e) { store_shared(&strip.acc[8 * f + L::c_col(lane, e)][L::c_row(lane, e)], acc[f][0][e]); });
    const int64_t ld = gemm.n;
    gemm.n = min_of(ld, end);
    if (!partials) return strip.store(gemm, 0, 1, col);
    warp_barrier();
    for (int idx = lane; idx < 8 * FRAGS * kGroup; idx += 32) {
      const int row = idx / kGroup, c = idx % kGroup;
      if (row < gemm.m && col + c < gemm.n) {
        store_global(partials + row * ld + col + c, load_shared(&strip.acc[row][c]));
      }
    }
    warp_barrier();
  }
};

// The copy warps: tile after tile of all units of this block, as far ahead as there are stages.
template <class T, class W, int FRAGS, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR>
TILEDMM_DEVICE void copy_tiles(const FoldedProblem& problem, const Work& work, char* smem, int64_t num_blocks) {
  const SkinnyPlan& plan = work.plan;
  constexpr int kBlockK = skinny_block_k(kDType<T>, 8 * FRAGS, sizeof(W) == 1);
  const int num_threads = num_skinny_threads<W>(plan);
  constexpr int kMaxPacketsA = int(ceil_div(8 * FRAGS * kBlockK, Packet<T>::kElements * kCopyThreads<W>));
  constexpr int kMaxPacketsB =
      skinny_max_groups(8 * FRAGS, sizeof(W) == 1) * kGroup * kBlockK / Packet<W>::kElements / kCopyThreads<W> + 1;
  TileCopier<T, kCopyThreads<W>, kBlockK, IS_A_K_MAJOR, false> copier_a(operand_a<T>(problem.gemm), 8 * FRAGS,
                                                                        8 * FRAGS, work.width_a);
  TileCopier<W, kCopyThreads<W>, kBlockK, IS_B_K_MAJOR, true> copier_b(operand_b<W>(problem.gemm), plan.groups * kGroup,
                                                                       plan.cols, work.width_b);
  const int tile_a_bytes = skinny_tile_bytes(kDType<T>, IS_A_K_MAJOR, 8 * FRAGS, kBlockK);
  char* const stages = opaque(smem);  // else its address is computed anew for every tile, which takes long
  int64_t unit_idx = block_idx(), left_k = 0, left_chunk = 0;
  int tile = 0, num_ahead = 0;
  Unit unit;
  Ring ring(plan.num_stages);
  wait_for_earlier_kernels();
  for (int lead = plan.num_stages - 1;;) {
    if (lead > 0) {
      --lead;  // the ring is filled first
    } else {
      if (num_ahead == 0) break;
      --num_ahead;
      wait_for_stage(plan.num_stages);
      block_barrier_of_roles(num_threads);  // the oldest tile is whole, and nobody reads the one before it any more
    }
    if (unit_idx < plan.num_units) {
      if (tile == 0) {
        unit = Unit(problem, plan, unit_idx, kBlockK);
        const GemmProblem gemm = item_of<true>(problem, unit.batch_idx);
        copier_a.move_to(gemm.a, 0, unit.k_begin);
        copier_b.move_to(gemm.b, unit.col, unit.k_begin);
        left_k = unit.k_end - unit.k_begin;
        left_chunk = min_of(left_k, problem.chunk_k);
      }
      char* stage = stages + ring.stage * plan.stage_bytes;
      const int size_k = int(min_of(left_chunk, kBlockK));
      copier_b.template load_block_tile<kMaxPacketsB>(stage + tile_a_bytes, size_k);
      copier_a.template load_block_tile<kMaxPacketsA>(stage, size_k);
      left_k -= size_k;
      left_chunk -= size_k;
      if (left_chunk == 0) left_chunk = min_of(left_k, problem.chunk_k);
      ring.advance();
      ++num_ahead;
      if (++tile == unit.num_tiles) {
        tile = 0;
        unit_idx += num_blocks;
      }
    }
    commit_copies();
  }
}

template <class T, class W, class C, int FRAGS, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR>
TILEDMM_DEVICE void multiply_tiles(const FoldedProblem& problem, const Work& work, char* smem, int64_t num_blocks) {
  constexpr int kBlockK = skinny_block_k(kDType<T>, 8 * FRAGS, sizeof(W) == 1);
  using Sums = WarpSums<T, W, C, FRAGS, kBlockK, IS_A_K_MAJOR, IS_B_K_MAJOR>;
  const SkinnyPlan& plan = work.plan;
  const int num_threads = num_skinny_threads<W>(plan);
  const int warp = (thread_idx() - kCopyThreads<W>) / 32, col = warp * kGroup;
  auto& strip = reinterpret_cast<typename Sums::Strip*>(smem + plan.num_stages * plan.stage_bytes)[warp];
  const int tile_a_bytes = skinny_tile_bytes(kDType<T>, IS_A_K_MAJOR, 8 * FRAGS, kBlockK);
  const bool adds_chunks = !plan.splits_chunks && problem.chunk_k < problem.gemm.k;
  const int chunk_tiles = int(ceil_div(problem.chunk_k, kBlockK));
  const char* const stages = sizeof(T) == 2 ? opaque(smem) : smem;  // for ldmatrix, as in copy_tiles
  Ring ring(plan.num_stages);
  Sums sums(plan.groups * kGroup, col);
  typename Sums::Fragments frags[2];
  const auto load_part = [&](int part) {
    const char* stage = stages + ring.stage * plan.stage_bytes;
    sums.load_fragments(stage, stage + tile_a_bytes, part, frags[part % 2]);
  };
  wait_for_earlier_kernels();
  block_barrier_of_roles(num_threads);  // the first tile is whole
  load_part(0);
  for (int64_t idx = block_idx(); idx < plan.num_units; idx += num_blocks) {
    const Unit unit(problem, plan, idx, kBlockK);
    const bool is_last_unit = idx + num_blocks >= plan.num_units;
    sums.clear();
    int in_chunk = 0;
    for (int tile = 0; tile < unit.num_tiles; ++tile) {
      TILEDMM_UNROLL for (int part = 0; part < Sums::kParts; ++part) {
        if (part + 1 < Sums::kParts) {
          load_part(part + 1);
        } else if (tile + 1 < unit.num_tiles || !is_last_unit) {
          ring.advance();
          block_barrier_of_roles(num_threads);  // the next tile is whole, all of this one in registers
          load_part(0);
        }
        sums.multiply(frags[part % 2]);
      }
      wait_for_sums<T>(sums.acc, smem, work.zero);
      if (adds_chunks) {
        const bool is_last = tile + 1 == unit.num_tiles;
        if (++in_chunk == chunk_tiles || is_last) {
          sums.add_to_total(tile < chunk_tiles, is_last);
          in_chunk = 0;
        }
      }
    }
    const GemmProblem gemm = item_of<true>(problem, unit.batch_idx);
    auto* partials = static_cast<Acc<T>*>(work.partials);
    if (partials) partials += (unit.batch_idx * plan.num_chunks + unit.chunk) * gemm.m * gemm.n;
    sums.store_block_tile(gemm, unit.col + col, unit.col + plan.cols, partials, strip);
  }
}

template <class T, class W, class C, int FRAGS, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR>
TILEDMM_KERNEL(kCopyThreads<W> + 32 * skinny_max_groups(8 * FRAGS, sizeof(W) == 1), 1)
skinny(Work work, int64_t num_blocks, FoldedProblem problem) {
  char* smem = reinterpret_cast<char*>(&block_shared<Vector16>());
  let_later_kernels_start();
  if (thread_idx() < kCopyThreads<W>) {
    copy_tiles<T, W, FRAGS, IS_A_K_MAJOR, IS_B_K_MAJOR>(problem, work, smem, num_blocks);
  } else {
    multiply_tiles<T, W, C, FRAGS, IS_A_K_MAJOR, IS_B_K_MAJOR>(problem, work, smem, num_blocks);
  }
}

template <class T, class W, class C, int FRAGS, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR>
Status launch_work(const FoldedProblem& problem, const Work& work, const Executor& executor) {
  constexpr bool kIsServed = std::is_same_v<C, T> || (IS_A_K_MAJOR && IS_B_K_MAJOR);
  if constexpr (8 * FRAGS > skinny_max_m(kDType<T>) || !kIsServed) {
    return Status::unsupported;
  } else {
    const int64_t blocks = min_of(work.plan.num_units, executor.num_cus);
    return launch_early(skinny<T, W, C, FRAGS, IS_A_K_MAJOR, IS_B_K_MAJOR>, blocks, 1, num_skinny_threads<W>(work.plan),
                        size_t(work.plan.shared_bytes), executor, work, blocks, problem);
  }
}

template <class T, class W, class C>
Status launch_layouts(const FoldedProblem& problem, const Work& work, const Executor& executor) {
  return visit_layouts(problem.gemm, [&](auto is_a_k_major, auto is_b_k_major) {
    constexpr bool kA = decltype(is_a_k_major)::value, kB = decltype(is_b_k_major)::value;
    switch (skinny_block_m(problem.gemm.m)) {
      case 8:
        return launch_work<T, W, C, 1, kA, kB>(problem, work, executor);
      case 16:
        return launch_work<T, W, C, 2, kA, kB>(problem, work, executor);
      case 32:
        return launch_work<T, W, C, 4, kA, kB>(problem, work, executor);
      default:
        return launch_work<T, W, C, 8, kA, kB>(problem, work, executor);
    }
  });
}

template <class T, class C = T, class W = T>
Status launch(const FoldedProblem& problem, Work& work, const Executor& executor) {
  ChunkSums<Acc<T>> chunk_sums(problem, problem.gemm.n, executor);
  if (work.plan.splits_chunks && !chunk_sums.allocate()) return Status::out_of_memory;
  work.partials = chunk_sums.sums;
  const Status status = launch_layouts<T, W, C>(problem, work, executor);
  return status == Status::ok && work.plan.splits_chunks ? chunk_sums.template add<C, sizeof(W) == 1>() : status;
}

}  // namespace

Status launch_skinny(const FoldedProblem& given, const Plan& made, const Executor& executor) {
  const SkinnyLaunch& own = made.as<SkinnyLaunch>();
  const FoldedProblem problem = own.is_exchanged ? transposed(given) : given;
  Work work{};
  work.width_a = own.width_a;
  work.width_b = own.width_b;
  work.plan = own.plan;
  const DType dtype = problem.gemm.dtype_a;
  if (mix_of(problem.gemm) == Mix::fp8_b) {
    return dtype == DType::f16 ? launch<Half, AnyElement, E4m3>(problem, work, executor)
                               : launch<BFloat16, AnyElement, E4m3>(problem, work, executor);
  }
  if (mix_of(problem.gemm) == Mix::wide_result) {
    return dtype == DType::f16 ? launch<Half, AnyElement>(problem, work, executor)
                               : launch<BFloat16, AnyElement>(problem, work, executor);
  }
  return dtype == DType::f64   ? launch<double>(problem, work, executor)
         : dtype == DType::f16 ? launch<Half>(problem, work, executor)
                               : launch<BFloat16>(problem, work, executor);
}

}  // namespace tiledmm::gpu

// Rung 16, few_rows: products with up to 16 rows or columns by matrix instructions, for all of AMD's chips; in fp32 and
// fp64 on RDNA, which has none for them, by multiply-adds in the order of k.
//
// The block tiles of rungs 12 and 13 are empty for the most part then. Here a warp owns 16 columns of C (those of a few
// lanes' neighbours, where n is contiguous) with their whole chain of k, and the large operand streams once, straight
// from memory into the registers that the matrix instruction reads: a ring of them is always on its way. The few rows
// pass through shared memory, a part of k ahead. Few columns are the same with A as the large operand: its role in
// the instruction stays, so that the sums' bits are those of rungs 12 and 13, which take the products in this order.
// Chunks of k are computed side by side, and added in their order by a second kernel.
// Sources: AMD's ISA documents; streaming without shared memory as in vLLM's wvSplitK.
#pragma once

#include "core/transposed.h"
#include "kernels/hip/few_rows/plan.h"
#include "kernels/hip/shared/builtins.h"
#include "platform/block_tile.h"
#include "platform/chunk_sums.h"
#include "platform/mma.h"

namespace tiledmm::gpu {
namespace {

#if defined(__gfx1100__) || defined(__gfx1200__) || defined(__gfx1201__)
inline constexpr bool kIsRdna = true;
#else
inline constexpr bool kIsRdna = false;
#endif
template <class T>
inline constexpr bool kIsByMultiplyAdd = kIsRdna && sizeof(T) >= 4;
// Whether both halves of the lanes hold all of k of an operand.
#if defined(__gfx1100__)
template <class T>
inline constexpr bool kIsHeldTwice = true;
#else
template <class T>
inline constexpr bool kIsHeldTwice = kIsByMultiplyAdd<T>;
#endif

// Where a lane's sums are without a matrix instruction: a row of the large operand, every other one of the few.
struct FewSums {
  static constexpr int kAccs = kMostFewRows / 2;
  static TILEDMM_DEVICE int c_row(int lane, int) { return lane % 16; }
  static TILEDMM_DEVICE int c_col(int lane, int idx) { return 2 * idx + lane / 16; }
};

// A step: what a lane holds of an operand for one or more instructions, 16 bytes along k, or 32 where all of k.
template <class T>
struct FewStep {
  using M = std::conditional_t<kIsByMultiplyAdd<T>, FewSums, Mma<T>>;
  using Word = uint32_t;
  static constexpr bool kIsRepeated = kIsHeldTwice<T>;
  static constexpr int kSize = int(sizeof(T)), kWords = kIsRepeated ? 8 : 4;
  static constexpr int kLaneK = 4 * kWords / kSize;                 // elements of k of a lane
  static constexpr int kGroups = kIsRepeated ? 1 : kWarpSize / 16;  // of lanes, along k
  static constexpr int kK = kLaneK * kGroups;
  static TILEDMM_DEVICE int lane_k() { return kIsRepeated ? 0 : thread_idx() % kWarpSize / 16 * kLaneK; }

  // acc += products of a step. `first` is the instruction's first operand.
  static TILEDMM_DEVICE void multiply(Acc<T> (&acc)[M::kAccs], const Word (&first)[kWords],
                                      const Word (&second)[kWords]) {
#if defined(__gfx950__)
    if constexpr (std::is_same_v<T, Half>) {
      using Operand = ClangVector<_Float16, 8>;
      return accumulate(acc, [&](auto c) {
        return __builtin_amdgcn_mfma_f32_16x16x32_f16(bits_as<Operand>(first), bits_as<Operand>(second), c, 0, 0, 0);
      });
    } else if constexpr (std::is_same_v<T, BFloat16>) {
      using Operand = ClangVector<__bf16, 8>;
      return accumulate(acc, [&](auto c) {
        return __builtin_amdgcn_mfma_f32_16x16x32_bf16(bits_as<Operand>(first), bits_as<Operand>(second), c, 0, 0, 0);
      });
    }
#endif
    constexpr int kBytes = M::kWordsA * int(sizeof(typename M::Word));
    TILEDMM_UNROLL for (int at = 0; at < 4 * kWords; at += kBytes) {
      typename M::Word a[M::kWordsA], b[M::kWordsB];
      __builtin_memcpy(a, reinterpret_cast<const char*>(first) + at, kBytes);
      __builtin_memcpy(b, reinterpret_cast<const char*>(second) + at, kBytes);
      M::multiply(acc, a, b);
    }
  }
};

enum class Stream { k_major, mn_major, elements };

template <class T_, Stream STREAM, bool ARE_COLUMNS_FEW>
struct FewConfig {
  using T = T_;
  using Step = FewStep<T>;
  static constexpr Stream kStream = STREAM;
  static constexpr bool kAreColumnsFew = ARE_COLUMNS_FEW;
  static constexpr int kThreads = kFewThreads, kWarps = kThreads / kWarpSize;
  // Neighbours along mn in one load of a lane, each of another fragment: 8 bytes where k is not contiguous.
  static constexpr int kFrags = STREAM == Stream::mn_major ? 8 / int(sizeof(T)) : 1;
  static constexpr int kPartBytes = kIsRdna ? 512 : 1024, kPartK = kPartBytes / int(sizeof(T));  // of k
  static constexpr int kSteps = kPartK / Step::kK;
  static constexpr int kRing = STREAM == Stream::k_major    ? kSteps
                               : STREAM == Stream::elements ? 1
                               : kIsByMultiplyAdd<T>        ? 8
                               : Step::kIsRepeated          ? 2
                                                            : 4;  // steps on their way
  static constexpr int kRowBytes = kPartBytes + 16;      // of a few row in shared memory: no bank conflicts
  static_assert(kSteps % kRing == 0 && few_rows_tile(sizeof(T), STREAM == Stream::mn_major) == 16 * kFrags);
  // Whether the large operand is the instruction's first one; the same as in rungs 12 (B is) and 13 (A is).
  static constexpr bool kIsStreamFirst = kIsByMultiplyAdd<T> || kIsRdna == ARE_COLUMNS_FEW;
};

// The large operand's rows of one warp, on their way to its registers.
template <class Config>
struct Streamed {
  using T = typename Config::T;
  using Step = typename Config::Step;
  static constexpr int kSize = Step::kSize, kFrags = Config::kFrags, kLaneK = Step::kLaneK;
  static constexpr bool kIsKMajor = Config::kStream == Stream::k_major;

  const Operand<T>& operand;
  const T* next;  // the warp's first row, at the first k of the next window
  int left_mn, left_k;
  Buffer window;
  uint32_t offsets[kIsKMajor ? 1 : kLaneK];  // of this lane, in bytes
  // A chunk along k, or mn-major two words for each k.
  struct Slot {
    uint32_t words[kIsKMajor ? Step::kWords : 2 * kLaneK];
  } slots[Config::kRing];

  TILEDMM_DEVICE Streamed(const Operand<T>& operand, int64_t mn, int64_t k, int size_k)
      : operand(operand), left_k(size_k) {
    left_mn = int(max_of(min_of(operand.size_mn - mn, 16 * kFrags), 0));
    next = operand.base + (left_mn ? mn * operand.stride_mn : 0) + k * operand.stride_k;
    const int row = thread_idx() % 16 * kFrags;
    if constexpr (kIsKMajor) {
      offsets[0] = (uint32_t(row) * uint32_t(operand.stride_mn) + uint32_t(Step::lane_k())) * kSize;
    } else {
      TILEDMM_UNROLL for (int p = 0; p < kLaneK; ++p) {
        offsets[p] = (uint32_t(row) + uint32_t(Step::lane_k() + p) * uint32_t(operand.stride_k)) * kSize;
        if (row >= left_mn) offsets[p] = 1u << 31;
      }
    }
  }

  // Starts the loads of the next step into slot `idx`; steps come in the order of the slots. Nothing is read beyond the
  // operand's last row, nor beyond its k.
  TILEDMM_DEVICE void load(int idx) {
    // Steps of a window.
    constexpr int kAtOnce = kIsKMajor ? Config::kRing : 1, kAtOnceK = kAtOnce * Step::kK;
    if (idx % kAtOnce == 0) {
      const int inside_k = left_k < kAtOnceK ? left_k : kAtOnceK;
      const int64_t size =
          kIsKMajor ? (left_mn - 1) * operand.stride_mn + inside_k : (inside_k - 1) * operand.stride_k + left_mn;
      window = {next, inside_k > 0 && left_mn > 0 ? uint32_t(size) * kSize : 0};
      next += kAtOnceK * operand.stride_k;
      left_k -= kAtOnceK;
    }
    if constexpr (kIsKMajor) {
      TILEDMM_UNROLL for (int w = 0; w < Step::kWords; w += 4) {
        window.load<4>(offsets[0] + uint32_t(idx * Step::kK * kSize + 4 * w), &slots[idx].words[w]);
      }
    } else {
      TILEDMM_UNROLL for (int p = 0; p < kLaneK; ++p) window.load<2>(offsets[p], &slots[idx].words[2 * p]);
    }
  }

  // Zeros beyond k, of which left_k elements are left at the slot's first; in whole words.
  static TILEDMM_DEVICE void clear_beyond_k(Slot& slot, int left_k) {
    left_k -= Step::lane_k();
    if constexpr (kIsKMajor) {
      TILEDMM_UNROLL for (int w = 0; w < Step::kWords; ++w) {
        if (w * 4 / kSize >= left_k) slot.words[w] = 0;
      }
    } else {
      TILEDMM_UNROLL for (int p = 0; p < kLaneK; ++p) {
        if (p >= left_k) slot.words[2 * p] = slot.words[2 * p + 1] = 0;
      }
    }
  }

  // What the instruction takes for rows idx, idx + kFrags, ... of the slot.
  static TILEDMM_DEVICE void fragment(const Slot& slot, int idx, uint32_t (&words)[Step::kWords]) {
    TILEDMM_UNROLL for (int w = 0; w < Step::kWords; ++w) {
      if constexpr (kIsKMajor) {
        words[w] = slot.words[w];
      } else if constexpr (kSize == 2) {
        words[w] = pair_of(slot.words[4 * w + idx / 2], slot.words[4 * w + 2 + idx / 2], idx % 2);
      } else {
        words[w] = slot.words[kSize == 4 ? 2 * w + idx : w];
      }
    }
  }

  // What the instruction takes for the next step, element by element from memory, whatever the operand's strides are.
  TILEDMM_DEVICE void gather(uint32_t (&words)[Step::kWords]) {
    const int row = thread_idx() % 16;
    T elements[kLaneK];
    TILEDMM_UNROLL for (int e = 0; e < kLaneK; ++e) {
      const int k = Step::lane_k() + e;
      const bool pred = row < left_mn && k < left_k;
      elements[e] = pred ? load_global(next + row * operand.stride_mn + k * operand.stride_k) : T{};
    }
    __builtin_memcpy(words, elements, sizeof words);
    next += Step::kK * operand.stride_k;
    left_k -= Step::kK;
  }
};

// The few rows of one part of k: to registers, and later to shared memory, [row][k].
template <class Config>
struct FewRows {
  using T = typename Config::T;
  static constexpr int kThreadsK = int(min_of(Config::kPartK, Config::kThreads));  // threads along k
  static constexpr int kRowsAtOnce = Config::kThreads / kThreadsK, kTimes = Config::kPartK / kThreadsK;
  static constexpr int kRows = kMostFewRows / kRowsAtOnce;  // of a thread
  T elements[kRows * kTimes];

  // left_k elements from `from` on.
  TILEDMM_DEVICE void load(const Operand<T>& few, const T* from, int left_k) {
    const int row = thread_idx() / kThreadsK, k = thread_idx() % kThreadsK;
    // Opaque: else each row has its offset and its condition in registers throughout the main loop.
    const int64_t offset = opaque(row * few.stride_mn + k * few.stride_k);
    const int num_rows = opaque_uniform(int(few.size_mn));
    int64_t of_row = 0;
    TILEDMM_UNROLL for (int i = 0; i < kRows * kTimes; ++i) {
      const int at_row = i / kTimes * kRowsAtOnce, at_k = i % kTimes * kThreadsK;
      if (at_k == 0 && i > 0) of_row = opaque_uniform(of_row + kRowsAtOnce * few.stride_mn);
      if (at_row >= num_rows) continue;  // no thread has one
      const bool pred = at_row + row < num_rows && at_k + k < left_k;
      elements[i] = pred ? load_global(from + of_row + at_k * few.stride_k + offset) : T{};
    }
  }
  TILEDMM_DEVICE void store(const Operand<T>& few, char* smem) const {
    T* to = reinterpret_cast<T*>(smem + thread_idx() / kThreadsK * Config::kRowBytes) + thread_idx() % kThreadsK;
    const int num_rows = opaque_uniform(int(few.size_mn));
    TILEDMM_UNROLL for (int i = 0; i < kRows * kTimes; ++i) {
      const int at_row = i / kTimes * kRowsAtOnce, at_k = i % kTimes * kThreadsK;
      if (at_row < num_rows) store_shared(to + at_row * (Config::kRowBytes / int(sizeof(T))) + at_k, elements[i]);
    }
  }
  // This lane's part of a step, of its own row or of `row`. Rows beyond the few hold garbage, which stays in their own
  // sums.
  static TILEDMM_DEVICE void fragment(const char* smem, int step, uint32_t (&words)[Config::Step::kWords],
                                      int row = thread_idx() % 16) {
    using Step = typename Config::Step;
    const char* from = smem + row * Config::kRowBytes + Step::lane_k() * int(sizeof(T));
    TILEDMM_UNROLL for (int w = 0; w < Step::kWords; w += 4) {
      const Vector16 vector =
          load_shared(reinterpret_cast<const Vector16*>(from + step * Step::kK * int(sizeof(T)) + 4 * w));
      TILEDMM_UNROLL for (int i = 0; i < 4; ++i) words[w + i] = vector.words[i];
    }
  }
};

// acc += products of a step by multiply-adds, in the order of k. No time for rows that are not there.
template <class Config, int FRAGS, int ACCS>
TILEDMM_DEVICE void multiply_rows(Acc<typename Config::T> (&acc)[FRAGS][ACCS],
                                  const uint32_t (&frags)[FRAGS][Config::Step::kWords], const char* part, int step,
                                  int num_few) {
  using T = typename Config::T;
  using Step = typename Config::Step;
  TILEDMM_UNROLL for (int idx = 0; idx < ACCS; ++idx) {
    if (2 * idx >= num_few) continue;
    uint32_t words[Step::kWords];
    FewRows<Config>::fragment(part, step, words, FewSums::c_col(thread_idx() % kWarpSize, idx));
    T few[Step::kLaneK], large[Step::kLaneK];
    __builtin_memcpy(few, words, sizeof words);
    TILEDMM_UNROLL for (int f = 0; f < FRAGS; ++f) {
      __builtin_memcpy(large, frags[f], sizeof words);
      TILEDMM_UNROLL for (int k = 0; k < Step::kLaneK; ++k) acc[f][idx] = multiply_add(large[k], few[k], acc[f][idx]);
    }
  }
}

template <class Config>
TILEDMM_KERNEL(Config::kThreads, 1)
few_rows([[maybe_unused]] FewWork work, [[maybe_unused]] FoldedProblem problem) {
  using T = typename Config::T;
  if constexpr (kHasMma<T> || kIsByMultiplyAdd<T>) {
    using Step = typename Config::Step;
    using M = typename Step::M;
    constexpr int kFrags = Config::kFrags, kTile = 16 * kFrags, kSteps = Config::kSteps;
    constexpr bool kAreColumnsFew = Config::kAreColumnsFew;
    using Stage = WarpStage<T, kAreColumnsFew ? kTile : 16, kAreColumnsFew ? 16 : kTile>;
    using PartialStage = WarpStage<Acc<T>, kAreColumnsFew ? kTile : 16, kAreColumnsFew ? 16 : kTile>;
    union Shared {
      char few[2][kMostFewRows * Config::kRowBytes];
      Stage outputs[Config::kWarps];  // at the end
      PartialStage partials[Config::kWarps];
    };
    auto& smem = block_shared<Shared>();
    const int warp = uniform(thread_idx() / kWarpSize), lane = thread_idx() % kWarpSize;
    const int64_t tile = block_idx() % work.tiles, split = block_idx() / work.tiles;
    const int64_t mn = (tile * Config::kWarps + warp) * kTile;
    for (int64_t batch_idx = block_idx_y(); batch_idx < problem.batch_size; batch_idx += num_blocks_y()) {
      const GemmProblem item = item_of(problem, batch_idx);
      const int64_t first_k = split * work.split_k;
      const auto size_k = int(min_of(item.k - first_k, work.split_k));
      const Operand<T> large = kAreColumnsFew ? operand_a<T>(item) : operand_b<T>(item);
      const Operand<T> few = kAreColumnsFew ? operand_b<T>(item) : operand_a<T>(item);
      Streamed<Config> streamed(large, mn, first_k, size_k);
      FewRows<Config> few_part;
      const T* next_few = few.base + first_k * few.stride_k;
      int left_few = size_k;  // from the part in shared memory on
      Acc<T> acc[kFrags][M::kAccs] = {};

      // Multiplies the part in shared memory; meanwhile slots are filled anew.
      const auto multiply_part = [&](const char* part, auto is_last) {
        TILEDMM_NO_UNROLL for (int begin = 0; begin < kSteps; begin += Config::kRing) {
          TILEDMM_UNROLL for (int i = 0; i < Config::kRing; ++i) {
            const int step = begin + i;
            auto& slot = streamed.slots[i];
            uint32_t frags[kFrags][Step::kWords];
            if constexpr (is_last.value) streamed.clear_beyond_k(slot, left_few - step * Step::kK);
            TILEDMM_UNROLL for (int f = 0; f < kFrags; ++f) {
              if constexpr (Config::kStream == Stream::elements) {
                streamed.gather(frags[f]);
              } else {
                streamed.fragment(slot, f, frags[f]);
              }
            }
            if constexpr (kIsByMultiplyAdd<T>) {
              multiply_rows<Config>(acc, frags, part, step, int(few.size_mn));
            } else {
              uint32_t frag_few[Step::kWords];
              FewRows<Config>::fragment(part, step, frag_few);
              TILEDMM_UNROLL for (int f = 0; f < kFrags; ++f) {
                Config::kIsStreamFirst ? Step::multiply(acc[f], frags[f], frag_few)
                                       : Step::multiply(acc[f], frag_few, frags[f]);
              }
            }
            // Else the products are moved behind all loads, whose registers they need.
            TILEDMM_UNROLL for (int f = 0; f < kFrags; ++f) acc[f][0] = opaque(acc[f][0]);
            if constexpr (Config::kStream != Stream::elements) streamed.load(i);
            keep_order();  // else all loads from shared memory come first
          }
        }
      };

      block_barrier();  // nobody reads the last item's sums any more
      if (Config::kStream != Stream::elements) {
        TILEDMM_UNROLL for (int i = 0; i < Config::kRing; ++i) streamed.load(i);
      }
      few_part.load(few, next_few, left_few);
      few_part.store(few, smem.few[0]);
      block_barrier();  // the first part is whole
      int part = 0;
      TILEDMM_NO_UNROLL for (; left_few > Config::kPartK; part ^= 1) {
        next_few += Config::kPartK * few.stride_k;
        few_part.load(few, next_few, left_few - Config::kPartK);
        multiply_part(smem.few[part], std::false_type{});
        few_part.store(few, smem.few[part ^ 1]);
        left_few -= Config::kPartK;
        block_barrier();  // the next part is whole, and nobody reads this one any more
      }
      multiply_part(smem.few[part], std::true_type{});
      block_barrier();  // nobody reads the last part any more

      const auto store = [&](auto& stage, const GemmProblem& gemm) {
        TILEDMM_UNROLL for (int i = 0; i < kFrags; ++i) {
          TILEDMM_UNROLL for (int e = 0; e < M::kAccs; ++e) {
            const int first = M::c_row(lane, e), second = M::c_col(lane, e);
            const int at = (Config::kIsStreamFirst ? first : second) * kFrags + i;
            const int row_of_few = Config::kIsStreamFirst ? second : first;
            store_shared(&stage.acc[kAreColumnsFew ? at : row_of_few][kAreColumnsFew ? row_of_few : at], acc[i][e]);
          }
        }
        stage.store(gemm, kAreColumnsFew ? mn : 0, 1, kAreColumnsFew ? 0 : mn);
      };
      // Anew, so that the main loop need not keep it in registers.
      const GemmProblem gemm = item_of(problem, opaque_uniform(batch_idx));
      if (work.partials) {
        const int64_t slab = batch_idx * work.num_splits + split;
        store(smem.partials[warp], partial_problem(gemm, static_cast<Acc<T>*>(work.partials), slab));
      } else {
        store(smem.outputs[warp], gemm);
      }
    }
  }
}

template <class T, Stream STREAM>
Status launch_stream(const FoldedProblem& problem, const FewPlan& plan, const FewWork& work, const Executor& executor) {
  const auto launch = [&](auto kernel) {
    return launch_kernel(kernel, work.tiles * work.num_splits, num_batch_blocks(problem), kFewThreads, 0, executor,
                         work, problem);
  };
  return plan.are_columns_few ? launch(few_rows<FewConfig<T, STREAM, true>>)
                              : launch(few_rows<FewConfig<T, STREAM, false>>);
}

}  // namespace

template <class T>
Status launch_few_rows_of(const FoldedProblem& problem, const FewPlan& plan, const FewWork& work,
                          const Executor& executor) {
  if (!plan.is_whole) return launch_stream<T, Stream::elements>(problem, plan, work, executor);
  return plan.is_k_major ? launch_stream<T, Stream::k_major>(problem, plan, work, executor)
                         : launch_stream<T, Stream::mn_major>(problem, plan, work, executor);
}

}  // namespace tiledmm::gpu

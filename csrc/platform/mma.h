// The matrix instruction of each chip behind one name: Mma<T>::multiply adds the product of a fragment of A and one of
// B to an accumulator. Where a lane's words belong is the Layout's matter (mma_layout.h), loading them the kernel's.
//
//   NVIDIA, sm_80 and later  mma.sync: fp16, bf16, fp32 rounded to tf32, fp64
//   CDNA (gfx90a, gfx94x, gfx950)  MFMA 16x16: fp16, bf16, fp32, fp64
//   RDNA 3 and 4  WMMA: fp16, bf16
//   host  NVIDIA's layout at warp size 32, CDNA's at 64; sums in double precision, rounded once for each instruction
#pragma once

#include "platform/block_tile.h"
#include "platform/gpu.h"
#include "platform/mma_layout.h"

namespace tiledmm::gpu {

#if defined(__HIP__) && (defined(__gfx1200__) || defined(__gfx1201__))
template <class T>
using Layout = LayoutWmmaRdna4;
#elif defined(__HIP__) && defined(__gfx1100__)
template <class T>
using Layout = LayoutWmmaRdna3;
#elif defined(__HIP__) || (defined(TILEDMM_HOST_GPU) && TILEDMM_WARP_SIZE == 64)
template <class T>
using Layout = LayoutMfma16<WordOf<T>::kElements, sizeof(T) == 8>;
#else
template <class T>
using Layout = std::conditional_t<sizeof(T) == 8, LayoutM8N8, LayoutM16N8>;
#endif

template <class T>
struct Mma : Layout<T> {
  using L = Layout<T>;
  using Word = typename WordOf<T>::Word;
  static constexpr int kElementsK = L::kWordsK * WordOf<T>::kElements;
  static_assert(L::kLanes == kWarpSize, "the layout is that of this chip");

  // As the instruction wants a word to be: fp32 is rounded to tf32, where it would be cut off otherwise.
  static TILEDMM_DEVICE Word prepared(Word word) {
#if defined(__CUDACC__) && !defined(__HIP__)
    if constexpr (std::is_same_v<T, float>) {
      uint32_t rounded;
#if __CUDA_ARCH__ >= 900
      asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(word));  // to even, as the copy engine does
#else
      asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(word));
#endif
      return __uint_as_float(rounded);
    }
#endif
    return word;
  }

  // acc += a b. All lanes of the warp take part.
  static TILEDMM_DEVICE void multiply(Acc<T> (&acc)[L::kAccs], const Word (&a)[L::kWordsA],
                                      const Word (&b)[L::kWordsB]);
};

#if defined(TILEDMM_HOST_GPU)

// Element `half` of a word.
template <class T>
Acc<T> element_of(typename WordOf<T>::Word word, int half) {
  if constexpr (WordOf<T>::kElements == 1) {
    return word;
  } else {
    return as_acc(T{uint16_t(word >> (16 * half))});
  }
}

// The lanes show each other their words, then each computes its own elements.
template <class T>
void Mma<T>::multiply(Acc<T> (&acc)[L::kAccs], const Word (&a)[L::kWordsA], const Word (&b)[L::kWordsB]) {
  struct Operands {
    Word a[L::kM][L::kWordsK], b[L::kN][L::kWordsK];
  };
  static_assert(sizeof(Operands) <= host_gpu::kScratchBytes);
  auto& operands = *reinterpret_cast<Operands*>(host_gpu::warp_scratch());
  const int lane = thread_idx() % kWarpSize;
  for (int w = 0; w < L::kWordsA; ++w) operands.a[L::a_row(lane, w)][L::a_word(lane, w)] = a[w];
  for (int w = 0; w < L::kWordsB; ++w) operands.b[L::b_col(lane, w)][L::b_word(lane, w)] = b[w];
  host_gpu::warp_barrier();
  for (int e = 0; e < L::kAccs; ++e) {
    double sum = acc[e];
    for (int word = 0; word < L::kWordsK; ++word) {
      for (int half = 0; half < WordOf<T>::kElements; ++half) {
        sum += double(element_of<T>(operands.a[L::c_row(lane, e)][word], half)) *
               double(element_of<T>(operands.b[L::c_col(lane, e)][word], half));
      }
    }
    acc[e] = Acc<T>(sum);
  }
  if (lane == 0) host_gpu::count_flops(2 * L::kM * L::kN * kElementsK);
  host_gpu::warp_barrier();
}

#elif defined(__CUDACC__) && !defined(__HIP__)

template <>
TILEDMM_DEVICE void Mma<Half>::multiply(float (&acc)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
TILEDMM_DEVICE void Mma<BFloat16>::multiply(float (&acc)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
TILEDMM_DEVICE void Mma<float>::multiply(float (&acc)[4], const float (&a)[4], const float (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}

template <>
TILEDMM_DEVICE void Mma<double>::multiply(double (&acc)[2], const double (&a)[1], const double (&b)[1]) {
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(acc[0]), "+d"(acc[1])
      : "d"(a[0]), "d"(b[0]));
}

#else  // HIP

template <class E, int SIZE>
using ClangVector = E __attribute__((ext_vector_type(SIZE)));

template <class To, class From>
TILEDMM_DEVICE To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// Calls a builtin that takes and returns the accumulator as a vector.
template <class A, int SIZE, class Instruction>
TILEDMM_DEVICE void accumulate(A (&acc)[SIZE], const Instruction& instruction) {
  const auto sums = instruction(bits_as<ClangVector<A, SIZE>>(acc));
  TILEDMM_UNROLL for (int e = 0; e < SIZE; ++e) acc[e] = sums[e];
}

template <class T>
TILEDMM_DEVICE void Mma<T>::multiply([[maybe_unused]] Acc<T> (&acc)[L::kAccs],
                                     [[maybe_unused]] const Word (&a)[L::kWordsA],
                                     [[maybe_unused]] const Word (&b)[L::kWordsB]) {
#if defined(__gfx1200__) || defined(__gfx1201__)
  if constexpr (std::is_same_v<T, Half>) {
    using Operand = ClangVector<_Float16, 8>;
    accumulate(acc, [&](auto c) {
      return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(bits_as<Operand>(a), bits_as<Operand>(b), c);
    });
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    using Operand = ClangVector<short, 8>;
    accumulate(acc, [&](auto c) {
      return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(bits_as<Operand>(a), bits_as<Operand>(b), c);
    });
  }
#elif defined(__gfx1100__)
  if constexpr (std::is_same_v<T, Half>) {
    using Operand = ClangVector<_Float16, 16>;
    accumulate(acc, [&](auto c) {
      return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(bits_as<Operand>(a), bits_as<Operand>(b), c);
    });
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    using Operand = ClangVector<short, 16>;
    accumulate(acc, [&](auto c) {
      return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(bits_as<Operand>(a), bits_as<Operand>(b), c);
    });
  }
#elif defined(__HIP_DEVICE_COMPILE__)
  if constexpr (std::is_same_v<T, Half>) {
    using Operand = ClangVector<_Float16, 4>;
    accumulate(acc, [&](auto c) {
      return __builtin_amdgcn_mfma_f32_16x16x16f16(bits_as<Operand>(a), bits_as<Operand>(b), c, 0, 0, 0);
    });
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    using Operand = ClangVector<short, 4>;
    accumulate(acc, [&](auto c) {
      return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(bits_as<Operand>(a), bits_as<Operand>(b), c, 0, 0, 0);
    });
  } else if constexpr (std::is_same_v<T, float>) {
    accumulate(acc, [&](auto c) { return __builtin_amdgcn_mfma_f32_16x16x4f32(a[0], b[0], c, 0, 0, 0); });
  } else {
    accumulate(acc, [&](auto c) { return __builtin_amdgcn_mfma_f64_16x16x4f64(a[0], b[0], c, 0, 0, 0); });
  }
#endif
}

#endif

// Whether this compilation's chip has a matrix instruction for T; kernels of rungs 05 to 08 are empty where not.
#if defined(__HIP__) && (defined(__gfx1100__) || defined(__gfx1200__) || defined(__gfx1201__))
template <class T>
inline constexpr bool kHasMma = sizeof(T) == 2;
#else
template <class T>
inline constexpr bool kHasMma = true;
#endif

// The accumulators of one warp: its place in the block tile, its fragments, its way to C.
template <class Config, class T>
struct WarpTile {
  using M = Mma<T>;
  using Word = typename M::Word;
  static constexpr int kBlockM = Config::kBlockM, kBlockN = Config::kBlockN;
  static constexpr int kWarpsN = Config::kThreads / kWarpSize / Config::kWarpsM;
  static constexpr int kWarpM = kBlockM / Config::kWarpsM, kWarpN = kBlockN / kWarpsN;
  static constexpr int kFragsM = kWarpM / M::kM, kFragsN = kWarpN / M::kN;
  static_assert(kFragsM * M::kM == kWarpM && kFragsN * M::kN == kWarpN, "whole fragments fill the warp tile");

  Acc<T> acc[kFragsM][kFragsN][M::kAccs];
  int lane, warp_row, warp_col;  // of the warp tile within the block tile

  TILEDMM_DEVICE WarpTile() {
    const int warp = thread_idx() / kWarpSize;
    lane = thread_idx() % kWarpSize;
    warp_row = warp / kWarpsN * kWarpM;
    warp_col = warp % kWarpsN * kWarpN;
    for_each([](int, Acc<T>& sum) { sum = 0; });
  }

  // Calls visit(idx, sum) for each accumulator of this lane.
  template <class Visit>
  TILEDMM_DEVICE void for_each(const Visit& visit) {
    TILEDMM_UNROLL for (int i = 0; i < kFragsM; ++i) {
      TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) {
        TILEDMM_UNROLL for (int e = 0; e < M::kAccs; ++e) visit((i * kFragsN + j) * M::kAccs + e, acc[i][j][e]);
      }
    }
  }

  // A row of fragments for each warp.
  using Stages = WarpStage<T, M::kM, kWarpN>[Config::kThreads / kWarpSize];

  // C = activation(acc + bias).
  TILEDMM_DEVICE void store(const GemmProblem& problem, const TilePlace& tile, Stages& stages) {
    auto& stage = stages[thread_idx() / kWarpSize];
    TILEDMM_UNROLL for (int i = 0; i < kFragsM; ++i) {
      TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) {
        TILEDMM_UNROLL for (int e = 0; e < M::kAccs; ++e) {
          store_shared(&stage.acc[M::c_row(lane, e)][j * M::kN + M::c_col(lane, e)], acc[i][j][e]);
        }
      }
      stage.store(problem, tile.row + warp_row + i * M::kM, 1, tile.col + warp_col);
    }
  }

  // The fragments of one step of an instruction's k.
  Word frag_a[kFragsM][M::kWordsA], frag_b[kFragsN][M::kWordsB];

  // load_a(row, word) and load_b(col, word) give words, row and col within the block tile, word within the step.
  template <class LoadA>
  TILEDMM_DEVICE void load_fragments_a(const LoadA& load_a) {
    TILEDMM_UNROLL for (int i = 0; i < kFragsM; ++i) {
      TILEDMM_UNROLL for (int w = 0; w < M::kWordsA; ++w) {
        frag_a[i][w] = load_a(warp_row + i * M::kM + M::a_row(lane, w), M::a_word(lane, w));
      }
    }
  }
  template <class LoadB>
  TILEDMM_DEVICE void load_fragments_b(const LoadB& load_b) {
    TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) {
      TILEDMM_UNROLL for (int w = 0; w < M::kWordsB; ++w) {
        frag_b[j][w] = load_b(warp_col + j * M::kN + M::b_col(lane, w), M::b_word(lane, w));
      }
    }
  }

  TILEDMM_DEVICE void multiply_step() {
    TILEDMM_UNROLL for (int i = 0; i < kFragsM; ++i) {
      TILEDMM_UNROLL for (int w = 0; w < M::kWordsA; ++w) frag_a[i][w] = M::prepared(frag_a[i][w]);
    }
    TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) {
      TILEDMM_UNROLL for (int w = 0; w < M::kWordsB; ++w) frag_b[j][w] = M::prepared(frag_b[j][w]);
    }
    TILEDMM_UNROLL for (int i = 0; i < kFragsM; ++i) {
      TILEDMM_UNROLL for (int j = 0; j < kFragsN; ++j) M::multiply(acc[i][j], frag_a[i], frag_b[j]);
    }
  }

  // All steps of one k tile in shared memory.
  template <class TileA, class TileB>
  TILEDMM_DEVICE void multiply_k_tile(const typename TileA::Shared& smem_a, const typename TileB::Shared& smem_b) {
    TILEDMM_UNROLL for (int word = 0; word < TileA::kWordsK; word += M::kWordsK) {
      if constexpr (TileA::kUsesLdmatrix) {
        TILEDMM_UNROLL for (int i = 0; i < kFragsM; ++i) {
          auto& frag = frag_a[i];
          TileA::template load_words<true>(smem_a, warp_row + i * M::kM, word, frag[0], frag[1], frag[2], frag[3]);
        }
      } else {
        load_fragments_a([&](int row, int w) { return TileA::load_word(smem_a, row, word + w); });
      }
      if constexpr (TileB::kUsesLdmatrix) {
        static_assert(kFragsN % 2 == 0, "two fragments of B at a time");
        TILEDMM_UNROLL for (int j = 0; j < kFragsN; j += 2) {
          TileB::template load_words<false>(smem_b, warp_col + j * M::kN, word, frag_b[j][0], frag_b[j][1],
                                            frag_b[j + 1][0], frag_b[j + 1][1]);
        }
      } else {
        load_fragments_b([&](int col, int w) { return TileB::load_word(smem_b, col, word + w); });
      }
      multiply_step();
    }
  }
};

// Where partial sums lie between k tiles in rungs 05 to 07: in global memory of their own, lent by the caller, in the
// order of the registers. C itself could serve fp32 and fp64 alone, and its strides and edges would cost registers.
template <class Config, class T>
struct Sums {
  using Warp = WarpTile<Config, T>;
  static constexpr int kAccs = Config::kBlockM * Config::kBlockN / Config::kThreads;  // of one thread
  Acc<T>* base;

  // The sums of the calling thread for one block tile.
  TILEDMM_DEVICE Acc<T>* of_tile(const GemmProblem& problem, int64_t batch_idx) const {
    const int64_t tile = batch_idx * num_tiles(problem, Config::kBlockM, Config::kBlockN) + block_idx();
    return base + tile * kAccs * Config::kThreads + thread_idx();
  }
  static TILEDMM_DEVICE void load(Warp& warp, const Acc<T>* from) {
    warp.for_each([&](int idx, Acc<T>& sum) { sum = load_global(from + idx * Config::kThreads); });
  }
  static TILEDMM_DEVICE void store(Warp& warp, Acc<T>* to) {
    warp.for_each([&](int idx, Acc<T>& sum) { store_global(to + idx * Config::kThreads, sum); });
  }
};

// Borrows memory for the sums, calls launch(sums), and gives it back.
template <class Config, class T, class Launch>
Status with_sums(const FoldedProblem& problem, const Executor& executor, const Launch& launch) {
  const int64_t tiles = num_tiles(problem.gemm, Config::kBlockM, Config::kBlockN) * problem.batch_size;
  const size_t bytes = size_t(tiles) * Config::kBlockM * Config::kBlockN * sizeof(Acc<T>);
  Sums<Config, T> sums{static_cast<Acc<T>*>(executor.allocate(executor.self, bytes))};
  if (!sums.base) return Status::out_of_memory;
  const Status status = launch(sums);
  executor.release(executor.self, sums.base);
  return status;
}

// Calls launch with std::bool_constant for whether A and B are k-major.
template <class Launch>
Status visit_layouts(const GemmProblem& gemm, const Launch& launch) {
  const bool is_a_k_major = is_k_major(gemm.stride_am, gemm.stride_ak);
  const bool is_b_k_major = is_k_major(gemm.stride_bn, gemm.stride_bk);
  if (is_a_k_major)
    return is_b_k_major ? launch(std::true_type{}, std::true_type{}) : launch(std::true_type{}, std::false_type{});
  return is_b_k_major ? launch(std::false_type{}, std::true_type{}) : launch(std::false_type{}, std::false_type{});
}

// Tile numbers of rungs 05 to 08. BLOCK_K is the k cache, in elements. WARPS_M warps lie along m, the others along n:
// how many depends on the chip's warp size.
template <int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREADS, int WARPS_M, int BLOCKS_PER_CU = 1>
struct MmaConfig {
  static constexpr int kBlockM = BLOCK_M, kBlockN = BLOCK_N, kBlockK = BLOCK_K;
  static constexpr int kThreads = THREADS, kWarpsM = WARPS_M, kBlocksPerCu = BLOCKS_PER_CU;
  static_assert(BLOCK_K >= 16 && BLOCK_K <= 256 && BLOCK_K % 16 == 0, "whole instructions of every chip and dtype");
  static_assert(THREADS % (64 * WARPS_M) == 0, "whole rows of warps of both sizes");
};

// fp64 has the small tile alone. kernels/gpu/kernels.h knows the sizes, too.
template <class T>
using SmallMmaConfig = MmaConfig<64, 64, 128 / int(sizeof(T)), 128, 2>;
template <class T>
using LargeMmaConfig = std::conditional_t<sizeof(T) == 8, SmallMmaConfig<T>,
                                          std::conditional_t<kIsAmd, MmaConfig<128, 128, 64 / int(sizeof(T)), 256, 2>,
                                                             MmaConfig<128, 256, 128 / int(sizeof(T)), 256, 2>>>;

// What the blocks of rungs 06 to 08 stage in shared memory.
template <class Config, class T, bool IS_A_K_MAJOR, bool IS_B_K_MAJOR>
struct MmaTiles {
  using TileA = BlockTile<T, Config::kBlockM, Config::kBlockK, IS_A_K_MAJOR, Config::kThreads>;
  using TileB = BlockTile<T, Config::kBlockN, Config::kBlockK, IS_B_K_MAJOR, Config::kThreads>;
  union Shared {
    struct {
      typename TileA::Shared a;
      typename TileB::Shared b;
    } tiles;
    typename WarpTile<Config, T>::Stages stages;  // after the last k tile
  };
  static_assert(sizeof(Shared) <= 64 << 10, "LDS of CDNA2, CDNA3 and RDNA");
};

// Launches rung 06, 07 or 08 with one of its two tiles and the layouts of the problem: Rung::launch<Config, T, Tiles>
// with the number of blocks and of threads. Both tiles sum in the same order.
template <class Rung>
Status launch_mma_tiles(const FoldedProblem& problem, bool is_large, const Executor& executor) {
  return visit_dtype(problem.gemm.dtype_a, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    const auto launch_tile = [&](auto config) {
      return visit_layouts(problem.gemm, [&](auto is_a_k_major, auto is_b_k_major) {
        using Config = decltype(config);
        using Tiles = MmaTiles<Config, T, decltype(is_a_k_major)::value, decltype(is_b_k_major)::value>;
        const auto start = [&](auto* kernel, auto... more) {
          return launch_kernel(kernel, num_tiles(problem.gemm, Config::kBlockM, Config::kBlockN),
                               num_batch_blocks(problem), Config::kThreads, sizeof(typename Tiles::Shared), executor,
                               problem, more...);
        };
        return Rung::template launch<Config, T, Tiles>(problem, executor, start);
      });
    };
    return is_large ? launch_tile(LargeMmaConfig<T>{}) : launch_tile(SmallMmaConfig<T>{});
  });
}

}  // namespace tiledmm::gpu

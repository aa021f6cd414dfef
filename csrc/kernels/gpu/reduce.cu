// Sums along a dimension (core/reduce.h) in an order that k alone fixes.
//   k <= 32: four chains, of elements 0, 4, 8, ..., of 1, 5, 9, ... and so on, which are added in pairs.
//   else: k is cut into chunks of 1024. In a chunk element i belongs to lane i / 4 mod 32, which adds its elements in
//   four such chains; lanes are added in pairs. The sums of the chunks are summed likewise.
// Which threads and blocks do that is free.
#include "core/reduce.h"

#include "platform/gpu.h"

namespace tiledmm::gpu {
namespace {

constexpr int kLanes = 32, kWidth = 4, kStep = kLanes * kWidth, kSteps = 8, kChunk = kStep * kSteps, kShort = 32;
constexpr int kReduceThreads = 256, kGroups = kReduceThreads / kLanes;
constexpr int64_t kMostChunks = kChunk;  // whose sums one block adds up

// Elements of a lane that lie side by side, in accesses of up to 16 bytes.
template <class T>
struct Piece {
  static constexpr int kCount = sizeof(T) == 8 ? 2 : kWidth;
  alignas(kCount * sizeof(T)) T values[kCount];
};

#if defined(TILEDMM_HIP_STANDALONE)
TILEDMM_DEVICE float root(float x) { return __builtin_sqrtf(x); }
TILEDMM_DEVICE double root(double x) { return __builtin_sqrt(x); }
#else
TILEDMM_DEVICE float root(float x) { return sqrtf(x); }
TILEDMM_DEVICE double root(double x) { return sqrt(x); }
#endif

template <class A>
TILEDMM_DEVICE A term_of(const ReduceProblem& p, A x, A shift) {
  x -= shift;
  return p.term == Term::square ? x * x : p.term == Term::magnitude && x < 0 ? -x : x;
}

template <class T>
TILEDMM_DEVICE const T* row_of(const ReduceProblem& p, int64_t o) {
  const T* x = static_cast<const T*>(p.x);
  if (p.outer == 1) return x + o * p.stride_inner;
  if (p.inner == 1) return x + o * p.stride_outer;
  const int64_t outer = o / p.inner;
  return x + outer * p.stride_outer + (o - outer * p.inner) * p.stride_inner;
}
template <class A>
TILEDMM_DEVICE A shift_of(const ReduceProblem& p, int64_t o) {
  return p.shift ? load_global(static_cast<const A*>(p.shift) + o) : A(0);
}

// The sum in four chains of the elements i, ..., i + 3, of those `step` behind and so on: COUNT times, up to `end`.
template <class T, int COUNT>
TILEDMM_DEVICE Acc<T> sum_of_pieces(const ReduceProblem& p, const T* row, int64_t i, int step, int64_t end,
                                    Acc<T> shift, bool is_aligned) {
  using P = Piece<T>;
  T own[COUNT][kWidth];
  TILEDMM_UNROLL for (int s = 0; s < COUNT; ++s) {
    const int64_t at = i + s * step;
    if (is_aligned && at + kWidth <= end) {
      TILEDMM_UNROLL for (int j = 0; j < kWidth; j += P::kCount) {
        const P piece = load_global(reinterpret_cast<const P*>(row + at + j));
        TILEDMM_UNROLL for (int l = 0; l < P::kCount; ++l) own[s][j + l] = piece.values[l];
      }
    } else {
      TILEDMM_UNROLL for (int j = 0; j < kWidth; ++j) {
        own[s][j] = at + j < end ? load_global(row + (at + j) * p.stride_k) : T{};
      }
    }
  }
  Acc<T> sums[kWidth] = {};
  TILEDMM_UNROLL for (int s = 0; s < COUNT; ++s) {
    TILEDMM_UNROLL for (int j = 0; j < kWidth; ++j) {
      if (i + s * step + j < end) sums[j] += term_of(p, as_acc(own[s][j]), shift);
    }
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// A lane's part of the chunk that begins there, whose steps are STEPS.
template <class T, int STEPS>
TILEDMM_DEVICE Acc<T> lane_sum(const ReduceProblem& p, const T* row, int64_t begin, int lane, Acc<T> shift,
                               bool is_aligned) {
  return sum_of_pieces<T, STEPS>(p, row, begin + lane * kWidth, kStep, min_of(begin + kChunk, p.k), shift, is_aligned);
}

// The sum of all lanes, in each of them.
template <class A>
TILEDMM_DEVICE A add_lanes(A own) {
  TILEDMM_UNROLL for (int mask = kLanes / 2; mask > 0; mask /= 2) own += lane_xor(own, mask);
  return own;
}

// The sum of one chunk, or, where there is one chunk alone, the result.
template <class A>
TILEDMM_DEVICE void store_sum(const ReduceProblem& p, A* chunk_sums, int64_t num_chunks, int64_t o, int64_t chunk,
                              A sum) {
  if (num_chunks > 1) {
    store_global(chunk_sums + o * num_chunks + chunk, sum);
    return;
  }
  const A quotient = sum / A(p.divisor), result = p.takes_root ? root(quotient) : quotient;
  if (p.dtype_y == DType::f32) {
    store_global(static_cast<float*>(p.y) + o, float(result));
  } else if (p.dtype_y == DType::f64) {
    store_global(static_cast<double*>(p.y) + o, double(result));
  } else if (p.dtype_y == DType::f16) {
    store_global(static_cast<Half*>(p.y) + o, rounded_to<Half>(float(result)));
  } else {
    store_global(static_cast<BFloat16*>(p.y) + o, rounded_to<BFloat16>(float(result)));
  }
}

// k <= 32: a thread for each row.
template <class T>
TILEDMM_KERNEL(kReduceThreads, 2)
sum_short_rows(ReduceProblem p, bool is_aligned) {
  const int64_t o = block_idx() * kReduceThreads + thread_idx();
  if (o >= p.outer * p.inner) return;
  const Acc<T> shift = shift_of<Acc<T>>(p, o);
  const T* row = row_of<T>(p, o);
  store_sum<Acc<T>>(p, nullptr, 1, o, 0,
                    p.k <= kWidth ? sum_of_pieces<T, 1>(p, row, 0, kWidth, p.k, shift, is_aligned)
                                  : sum_of_pieces<T, kShort / kWidth>(p, row, 0, kWidth, p.k, shift, is_aligned));
}

// 32 lanes for a row, or, where chunk_sums are given, for each chunk of a row.
template <class T, int STEPS>
TILEDMM_KERNEL(kReduceThreads, 2)
sum_by_lanes(ReduceProblem p, Acc<T>* chunk_sums, int64_t num_chunks, bool is_aligned) {
  using A = Acc<T>;
  const int lane = thread_idx() % kLanes;
  const int64_t idx = block_idx() * kGroups + thread_idx() / kLanes;
  const bool is_part = chunk_sums != nullptr;
  const int64_t o = is_part ? idx / num_chunks : idx, only_chunk = is_part ? idx - o * num_chunks : 0;
  const bool is_mine = o < p.outer * p.inner;  // lanes of another row of the warp go on
  const T* row = row_of<T>(p, is_mine ? o : 0);
  const A shift = is_mine ? shift_of<A>(p, o) : A(0);
  if (is_part || num_chunks == 1) {
    const A own = is_mine ? lane_sum<T, STEPS>(p, row, only_chunk * kChunk, lane, shift, is_aligned) : A(0);
    const A sum = add_lanes(own);
    if (is_mine && lane == 0) store_sum<A>(p, chunk_sums, num_chunks, o, only_chunk, sum);
    return;
  }
  A sums[kWidth] = {};
  TILEDMM_NO_UNROLL for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    const A own = is_mine ? lane_sum<T, STEPS>(p, row, chunk * kChunk, lane, shift, is_aligned) : A(0);
    const A sum = add_lanes(own);
    TILEDMM_UNROLL for (int j = 0; j < kWidth; ++j) {
      if (chunk % kWidth == j && (num_chunks <= kShort || chunk / kWidth % kLanes == lane)) sums[j] += sum;
    }
  }
  A sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  if (num_chunks > kShort) sum = add_lanes(sum);
  if (is_mine && lane == 0) store_sum<A>(p, nullptr, 1, o, 0, sum);
}

// A block for each row, whose chunks are at most kMostChunks.
template <class T>
TILEDMM_KERNEL(kReduceThreads, 2)
sum_by_blocks(ReduceProblem p, int64_t num_chunks, bool is_aligned) {
  using A = Acc<T>;
  struct Shared {
    A sums[kMostChunks];
  };
  Shared& shared = block_shared<Shared>();
  const int group = thread_idx() / kLanes, lane = thread_idx() % kLanes;
  const int64_t o = block_idx();
  const T* row = row_of<T>(p, o);
  const A shift = shift_of<A>(p, o);
  TILEDMM_NO_UNROLL for (int64_t first = 0; first < num_chunks; first += kGroups) {
    const int64_t chunk = first + group;
    const A own = chunk < num_chunks ? lane_sum<T, kSteps>(p, row, chunk * kChunk, lane, shift, is_aligned) : A(0);
    const A sum = add_lanes(own);
    if (lane == 0 && chunk < num_chunks) store_shared(shared.sums + chunk, sum);
  }
  block_barrier();
  if (thread_idx() >= kWarpSize) return;
  A sums[kWidth] = {};
  const int first = num_chunks <= kShort ? 0 : lane * kWidth, step = num_chunks <= kShort ? kWidth : kStep;
  TILEDMM_NO_UNROLL for (int64_t at = first; at < num_chunks; at += step) {
    TILEDMM_UNROLL for (int j = 0; j < kWidth; ++j) {
      if (at + j < num_chunks) sums[j] += load_shared(shared.sums + at + j);
    }
  }
  A sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  if (num_chunks > kShort) sum = add_lanes(sum);
  if (thread_idx() == 0) store_sum<A>(p, nullptr, 1, o, 0, sum);
}

// A chunk of 32 neighbouring rows, each with its neighbour's elements beside its own: a thread has four lanes of a row.
template <class T, int STEPS>
TILEDMM_KERNEL(kReduceThreads, 1)
sum_columns(ReduceProblem p, Acc<T>* chunk_sums, int64_t num_chunks) {
  using A = Acc<T>;
  struct Shared {
    A lanes[kLanes][kLanes];  // [lane][row]
  };
  Shared& shared = block_shared<Shared>();
  const int64_t tile = num_chunks == 1 ? block_idx() : block_idx() / num_chunks;
  const int64_t chunk = block_idx() - tile * num_chunks;
  const int row_idx = thread_idx() % kLanes, first_lane = thread_idx() / kLanes;
  const int64_t o = tile * kLanes + row_idx;
  const bool is_mine = o < p.outer * p.inner;
  const T* row = row_of<T>(p, is_mine ? o : 0);
  const A shift = is_mine ? shift_of<A>(p, o) : A(0);
  TILEDMM_NO_UNROLL for (int lane = first_lane; lane < kLanes; lane += kGroups) {
    store_shared(&shared.lanes[lane][row_idx],
                 is_mine ? lane_sum<T, STEPS>(p, row, chunk * kChunk, lane, shift, false) : A(0));
  }
  TILEDMM_NO_UNROLL for (int s = kLanes / 2; s > 0; s /= 2) {
    block_barrier();
    for (int lane = first_lane; lane < s; lane += kGroups) {
      A* to = &shared.lanes[lane][row_idx];
      store_shared(to, load_shared(to) + load_shared(to + s * kLanes));
    }
  }
  if (is_mine && first_lane == 0)
    store_sum<A>(p, chunk_sums, num_chunks, o, chunk, load_shared(&shared.lanes[0][row_idx]));
}

// Running sums, 1024 elements at a time. A thread adds its four in a chain; the sums of threads are added to those 1,
// 2, 4, ... before them; what is before a part is a chain of the parts' sums.
enum class Stage { all, sums, rest };  // a row a block; the parts' sums alone; with what is before a part

template <class T, Stage STAGE>
TILEDMM_KERNEL(kReduceThreads, 2)
running_sums(ReduceProblem p, int64_t num_blocks, Acc<T>* part_sums, int64_t num_parts) {
  using A = Acc<T>;
  constexpr int kPart = kReduceThreads * kWidth;
  struct Shared {
    A sums[kReduceThreads];
  };
  Shared& shared = block_shared<Shared>();
  const int thread = thread_idx();
  const int64_t rows = p.outer * p.inner, count = STAGE == Stage::all ? rows : rows * num_parts;
  TILEDMM_NO_UNROLL for (int64_t idx = block_idx(); idx < count; idx += num_blocks) {
    const int64_t o = STAGE == Stage::all ? idx : idx / num_parts, part = STAGE == Stage::all ? 0 : idx - o * num_parts;
    const T* row = row_of<T>(p, o);
    T* to = static_cast<T*>(p.y) + o * p.k;
    A before = STAGE == Stage::rest ? load_global(part_sums + idx) : A(0);
    const int64_t end = STAGE == Stage::all ? p.k : min_of((part + 1) * kPart, p.k);
    TILEDMM_NO_UNROLL for (int64_t begin = part * kPart; begin < end; begin += kPart) {
      const int64_t first = begin + thread * kWidth;
      A own[kWidth];
      TILEDMM_UNROLL for (int j = 0; j < kWidth; ++j) {
        own[j] = first + j < p.k ? as_acc(load_global(row + (first + j) * p.stride_k)) : A(0);
        if (j > 0) own[j] += own[j - 1];
      }
      A sum = own[kWidth - 1];
      TILEDMM_NO_UNROLL for (int distance = 1; distance < kReduceThreads; distance *= 2) {
        store_shared(shared.sums + thread, sum);
        block_barrier();
        if (thread >= distance) sum += load_shared(shared.sums + thread - distance);
        block_barrier();
      }
      store_shared(shared.sums + thread, sum);
      block_barrier();
      const A all = load_shared(shared.sums + kReduceThreads - 1);
      if constexpr (STAGE == Stage::sums) {
        if (thread == 0) store_global(part_sums + idx, all);
      } else {
        const A start = thread == 0 ? before : before + load_shared(shared.sums + thread - 1);
        TILEDMM_UNROLL for (int j = 0; j < kWidth; ++j) {
          if (first + j < p.k) store_global(to + first + j, rounded_to<T>(start + own[j]));
        }
      }
      before += all;
      block_barrier();
    }
  }
}

// Puts what is before each part of a row in the place of the part's sum.
template <class A>
TILEDMM_KERNEL(kReduceThreads, 2)
chain_parts(A* part_sums, int64_t num_parts) {
  struct Shared {
    A sums[kChunk];
  };
  Shared& shared = block_shared<Shared>();
  A* const own = part_sums + block_idx() * num_parts;
  A before{};
  TILEDMM_NO_UNROLL for (int64_t begin = 0; begin < num_parts; begin += kChunk) {
    const int count = int(min_of(num_parts - begin, kChunk));
    for (int i = thread_idx(); i < count; i += kReduceThreads)
      store_shared(shared.sums + i, load_global(own + begin + i));
    block_barrier();
    if (thread_idx() == 0) {
      TILEDMM_NO_UNROLL for (int i = 0; i < count; ++i) {
        const A sum = load_shared(shared.sums + i);
        store_shared(shared.sums + i, before);
        before += sum;
      }
    }
    block_barrier();
    for (int i = thread_idx(); i < count; i += kReduceThreads)
      store_global(own + begin + i, load_shared(shared.sums + i));
  }
}

template <class T>
Status reduce(const ReduceProblem& p, const Executor& executor);

// The sums of the chunks into memory of the executor's, and the sums of these.
template <class A, class Launch>
Status reduce_in_two(const ReduceProblem& p, int64_t num_chunks, const Executor& executor, const Launch& launch) {
  const int64_t rows = p.outer * p.inner;
  A* sums = static_cast<A*>(executor.allocate(executor.self, size_t(rows * num_chunks) * sizeof(A)));
  if (!sums) return Status::out_of_memory;
  Status status = launch(sums);
  if (status == Status::ok) {
    ReduceProblem rest = p;
    rest.dtype = sizeof(A) == 8 ? DType::f64 : DType::f32;
    rest.x = sums, rest.shift = nullptr, rest.term = Term::value;
    rest.outer = rows, rest.inner = 1, rest.k = num_chunks;
    rest.stride_outer = num_chunks, rest.stride_inner = 0, rest.stride_k = 1;
    status = reduce<A>(rest, executor);
  }
  executor.release(executor.self, sums);
  return status;
}

template <class T>
Status add_up(const ReduceProblem& p, const Executor& executor) {
  using A = Acc<T>;
  const int64_t rows = p.outer * p.inner, num_parts = ceil_div(max_of(p.k, 1), kChunk);
  const int64_t most_blocks = 1 << 20, blocks = min_of(rows, most_blocks);
  const int bytes = kReduceThreads * int(sizeof(A));
  A* const none = nullptr;
  if (rows >= executor.num_cus || num_parts <= kGroups) {
    return launch_kernel(running_sums<T, Stage::all>, blocks, 1, kReduceThreads, bytes, executor, p, blocks, none,
                         num_parts);
  }
  A* sums = static_cast<A*>(executor.allocate(executor.self, size_t(rows * num_parts) * sizeof(A)));
  if (!sums) return Status::out_of_memory;
  const int64_t all_blocks = min_of(rows * num_parts, most_blocks);
  Status status = launch_kernel(running_sums<T, Stage::sums>, all_blocks, 1, kReduceThreads, bytes, executor, p,
                                all_blocks, sums, num_parts);
  if (status == Status::ok) {
    status = launch_kernel(chain_parts<A>, rows, 1, kReduceThreads, kChunk * sizeof(A), executor, sums, num_parts);
  }
  if (status == Status::ok) {
    status = launch_kernel(running_sums<T, Stage::rest>, all_blocks, 1, kReduceThreads, bytes, executor, p, all_blocks,
                           sums, num_parts);
  }
  executor.release(executor.self, sums);
  return status;
}

template <class T>
Status reduce(const ReduceProblem& p, const Executor& executor) {
  using A = Acc<T>;
  if (p.is_running) return add_up<T>(p, executor);
  const int64_t rows = p.outer * p.inner, num_chunks = ceil_div(max_of(p.k, 1), kChunk);
  const auto vector = int64_t(alignof(Piece<T>));
  const bool is_aligned = p.stride_k == 1 && reinterpret_cast<uintptr_t>(p.x) % vector == 0 &&
                          p.stride_outer * int64_t(sizeof(T)) % vector == 0 &&
                          p.stride_inner * int64_t(sizeof(T)) % vector == 0;
  if (p.k <= kShort) {
    return launch_kernel(sum_short_rows<T>, ceil_div(rows, kReduceThreads), 1, kReduceThreads, 0, executor, p,
                         is_aligned);
  }
  const bool is_one_step = p.k <= kStep;
  if (p.stride_inner == 1 && p.inner > 1 && p.stride_k != 1) {
    const auto launch = [&](A* sums) {
      return launch_kernel(is_one_step ? sum_columns<T, 1> : sum_columns<T, kSteps>,
                           ceil_div(rows, kLanes) * num_chunks, 1, kReduceThreads, kLanes * kLanes * sizeof(A),
                           executor, p, sums, num_chunks);
    };
    return num_chunks == 1 ? launch(nullptr) : reduce_in_two<A>(p, num_chunks, executor, launch);
  }
  const auto launch = [&](A* sums) {
    return launch_kernel(is_one_step ? sum_by_lanes<T, 1> : sum_by_lanes<T, kSteps>,
                         ceil_div(sums ? rows * num_chunks : rows, kGroups), 1, kReduceThreads, 0, executor, p, sums,
                         num_chunks, is_aligned);
  };
  // Lanes for each row where these are many or short; blocks for each where that is enough work to be shared out.
  const int64_t many = 8 * int64_t(executor.num_cus);
  if (num_chunks == 1 || (rows >= many && num_chunks <= kMostChunks)) return launch(nullptr);
  if (num_chunks <= kGroups || (rows >= executor.num_cus && num_chunks <= kMostChunks)) {
    return launch_kernel(sum_by_blocks<T>, rows, 1, kReduceThreads, kMostChunks * sizeof(A), executor, p, num_chunks,
                         is_aligned);
  }
  return reduce_in_two<A>(p, num_chunks, executor, launch);
}

}  // namespace

Status launch_reduce(const ReduceProblem& problem, const Executor& executor) {
  return visit_dtype(problem.dtype, [&](auto* element) {
    return reduce<std::remove_pointer_t<decltype(element)>>(problem, executor);
  });
}

}  // namespace tiledmm::gpu

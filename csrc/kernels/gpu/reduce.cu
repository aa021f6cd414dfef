// Sums along a dimension (core/reduce.h) in an order that k alone fixes: k is cut into chunks of 1024; in a chunk
// element i belongs to lane i / 4 mod 32, which adds every fourth of its elements in a chain; the four chains and then
// the lanes are added in pairs; the sums of the chunks are summed in the same way. Which threads and blocks do that is
// free.
#include "core/reduce.h"

#include "platform/gpu.h"

namespace tiledmm::gpu {
namespace {

constexpr int kLanes = 32, kWidth = 4, kSteps = 8, kChunk = kLanes * kWidth * kSteps;
constexpr int kReduceThreads = 256, kGroups = kReduceThreads / kLanes;
constexpr int64_t kMostChunks = kChunk;  // whose sums one block adds up

// Elements of a lane that lie side by side, in accesses of up to 16 bytes.
template <class T>
struct Piece {
  static constexpr int kCount = sizeof(T) == 8 ? 2 : kWidth;
  alignas(kCount * sizeof(T)) T values[kCount];
};

template <class A>
TILEDMM_DEVICE A term_of(const ReduceProblem& p, A x, A shift) {
  x -= shift;
  return p.term == Term::square ? x * x : p.term == Term::magnitude && x < 0 ? -x : x;
}

// The sum of a lane's elements of [begin, end), at most a chunk.
template <class T>
TILEDMM_DEVICE Acc<T> lane_sum(const ReduceProblem& p, const T* row, int64_t begin, int64_t end, int lane, Acc<T> shift,
                               bool is_aligned) {
  using P = Piece<T>;
  T own[kSteps][kWidth];
  TILEDMM_UNROLL for (int s = 0; s < kSteps; ++s) {
    const int64_t i = begin + (s * kLanes + lane) * kWidth;
    if (is_aligned && i + kWidth <= end) {
      TILEDMM_UNROLL for (int j = 0; j < kWidth; j += P::kCount) {
        const P piece = load_global(reinterpret_cast<const P*>(row + i + j));
        TILEDMM_UNROLL for (int l = 0; l < P::kCount; ++l) own[s][j + l] = piece.values[l];
      }
    } else {
      TILEDMM_UNROLL for (int j = 0; j < kWidth; ++j) {
        own[s][j] = i + j < end ? load_global(row + (i + j) * p.stride_k) : T{};
      }
    }
  }
  Acc<T> sums[kWidth] = {};
  TILEDMM_UNROLL for (int s = 0; s < kSteps; ++s) {
    const int64_t i = begin + (s * kLanes + lane) * kWidth;
    TILEDMM_UNROLL for (int j = 0; j < kWidth; ++j) {
      if (i + j < end) sums[j] += term_of(p, as_acc(own[s][j]), shift);
    }
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// One group of lanes; the sum of all of them is in lanes[0] afterwards, which all threads of the block wait for.
template <class A>
TILEDMM_DEVICE void add_lanes(A* lanes, int lane, A own) {
  store_shared(lanes + lane, own);
  TILEDMM_NO_UNROLL for (int s = kLanes / 2; s > 0; s /= 2) {
    block_barrier();
    if (lane < s) store_shared(lanes + lane, load_shared(lanes + lane) + load_shared(lanes + lane + s));
  }
  block_barrier();
}

template <class T>
TILEDMM_DEVICE const T* row_of(const ReduceProblem& p, int64_t o) {
  return static_cast<const T*>(p.x) + o / p.inner * p.stride_outer + o % p.inner * p.stride_inner;
}
template <class A>
TILEDMM_DEVICE A shift_of(const ReduceProblem& p, int64_t o) {
  return p.shift ? load_global(static_cast<const A*>(p.shift) + o) : A(0);
}

// The sum of one chunk, or, where there is one chunk alone, the result.
template <class A>
TILEDMM_DEVICE void store_sum(const ReduceProblem& p, A* chunk_sums, int64_t num_chunks, int64_t o, int64_t chunk,
                              A sum) {
  if (num_chunks > 1) {
    store_global(chunk_sums + o * num_chunks + chunk, sum);
    return;
  }
  const A result = sum / A(p.divisor);
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

// A group of lanes for each chunk of each row.
template <class T>
TILEDMM_KERNEL(kReduceThreads, 2)
sum_chunks(ReduceProblem p, Acc<T>* chunk_sums, int64_t num_chunks, bool is_aligned) {
  using A = Acc<T>;
  struct Shared {
    A lanes[kGroups][kLanes];
  };
  Shared& shared = block_shared<Shared>();
  const int group = thread_idx() / kLanes, lane = thread_idx() % kLanes;
  const int64_t idx = block_idx() * kGroups + group, o = idx / num_chunks, chunk = idx - o * num_chunks;
  const bool is_mine = o < p.outer * p.inner;
  A own{};
  if (is_mine) {
    const int64_t begin = chunk * kChunk;
    own = lane_sum(p, row_of<T>(p, o), begin, min_of(begin + kChunk, p.k), lane, shift_of<A>(p, o), is_aligned);
  }
  add_lanes(shared.lanes[group], lane, own);
  if (is_mine && lane == 0) store_sum(p, chunk_sums, num_chunks, o, chunk, load_shared(shared.lanes[group]));
}

// A block for each row, whose chunks are at most kMostChunks.
template <class T>
TILEDMM_KERNEL(kReduceThreads, 2)
sum_rows(ReduceProblem p, int64_t num_chunks, bool is_aligned) {
  using A = Acc<T>;
  struct Shared {
    A lanes[kGroups][kLanes];
    A sums[kMostChunks];
  };
  Shared& shared = block_shared<Shared>();
  const int group = thread_idx() / kLanes, lane = thread_idx() % kLanes;
  const int64_t o = block_idx();
  const T* row = row_of<T>(p, o);
  const A shift = shift_of<A>(p, o);
  TILEDMM_NO_UNROLL for (int64_t first = 0; first < num_chunks; first += kGroups) {
    const int64_t begin = (first + group) * kChunk;
    add_lanes(shared.lanes[group], lane,
              begin < p.k ? lane_sum(p, row, begin, min_of(begin + kChunk, p.k), lane, shift, is_aligned) : A(0));
    if (lane == 0 && begin < p.k) store_shared(shared.sums + first + group, load_shared(shared.lanes[group]));
    block_barrier();
  }
  A sums[kWidth] = {};
  for (int64_t at = thread_idx() * kWidth; group == 0 && at < num_chunks; at += kLanes * kWidth) {
    TILEDMM_UNROLL for (int j = 0; j < kWidth; ++j) {
      if (at + j < num_chunks) sums[j] += load_shared(shared.sums + at + j);
    }
  }
  add_lanes(shared.lanes[group], lane, (sums[0] + sums[1]) + (sums[2] + sums[3]));
  if (thread_idx() == 0) store_sum<A>(p, nullptr, 1, o, 0, load_shared(shared.lanes[0]));
}

// A chunk of 32 neighbouring rows, each with its neighbour's elements beside its own: a thread has four lanes of a row.
template <class T>
TILEDMM_KERNEL(kReduceThreads, 2)
sum_columns(ReduceProblem p, Acc<T>* chunk_sums, int64_t num_chunks) {
  using A = Acc<T>;
  struct Shared {
    A lanes[kLanes][kLanes];  // [lane][row]
  };
  Shared& shared = block_shared<Shared>();
  const int64_t tile = block_idx() / num_chunks, chunk = block_idx() - tile * num_chunks;
  const int row_idx = thread_idx() % kLanes, first_lane = thread_idx() / kLanes;
  const int64_t o = tile * kLanes + row_idx, begin = chunk * kChunk, end = min_of(begin + kChunk, p.k);
  const bool is_mine = o < p.outer * p.inner;
  TILEDMM_NO_UNROLL for (int lane = first_lane; lane < kLanes; lane += kGroups) {
    A own{};
    if (is_mine) own = lane_sum(p, row_of<T>(p, o), begin, end, lane, shift_of<A>(p, o), false);
    store_shared(&shared.lanes[lane][row_idx], own);
  }
  TILEDMM_NO_UNROLL for (int s = kLanes / 2; s > 0; s /= 2) {
    block_barrier();
    for (int lane = first_lane; lane < s; lane += kGroups) {
      A* to = &shared.lanes[lane][row_idx];
      store_shared(to, load_shared(to) + load_shared(to + s * kLanes));
    }
  }
  block_barrier();
  if (is_mine && first_lane == 0)
    store_sum(p, chunk_sums, num_chunks, o, chunk, load_shared(&shared.lanes[0][row_idx]));
}

// Running sums: a block takes a row, 1024 elements at a time. A thread adds its four in a chain; the sums of threads
// are added to those 1, 2, 4, ... before them.
template <class T>
TILEDMM_KERNEL(kReduceThreads, 2)
running_sums(ReduceProblem p, int64_t num_blocks) {
  using A = Acc<T>;
  struct Shared {
    A sums[kReduceThreads];
  };
  Shared& shared = block_shared<Shared>();
  const int thread = thread_idx();
  TILEDMM_NO_UNROLL for (int64_t o = block_idx(); o < p.outer * p.inner; o += num_blocks) {
    const T* row = row_of<T>(p, o);
    T* to = static_cast<T*>(p.y) + o / p.inner * p.y_stride_outer + o % p.inner * p.y_stride_inner;
    A before{};  // of the elements before these
    TILEDMM_NO_UNROLL for (int64_t begin = 0; begin < p.k; begin += kReduceThreads * kWidth) {
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
      const A start = thread == 0 ? before : before + load_shared(shared.sums + thread - 1);
      TILEDMM_UNROLL for (int j = 0; j < kWidth; ++j) {
        if (first + j < p.k) store_global(to + (first + j) * p.y_stride_k, rounded_to<T>(start + own[j]));
      }
      before += load_shared(shared.sums + kReduceThreads - 1);
      block_barrier();
    }
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
Status reduce(const ReduceProblem& p, const Executor& executor) {
  using A = Acc<T>;
  const int64_t rows = p.outer * p.inner, num_chunks = max_of(ceil_div(p.k, kChunk), 1);
  const int group_bytes = kReduceThreads * int(sizeof(A));
  if (p.is_running) {
    const int64_t blocks = min_of(rows, 1 << 20);
    return launch_kernel(running_sums<T>, blocks, 1, kReduceThreads, group_bytes, executor, p, blocks);
  }
  const auto vector = int64_t(alignof(Piece<T>));
  const bool is_aligned = p.stride_k == 1 && reinterpret_cast<uintptr_t>(p.x) % vector == 0 &&
                          p.stride_outer * int64_t(sizeof(T)) % vector == 0 &&
                          p.stride_inner * int64_t(sizeof(T)) % vector == 0;
  if (p.stride_inner == 1 && p.inner > 1 && p.stride_k != 1) {
    const auto launch = [&](A* sums) {
      return launch_kernel(sum_columns<T>, ceil_div(rows, kLanes) * num_chunks, 1, kReduceThreads,
                           kLanes * group_bytes / kGroups, executor, p, sums, num_chunks);
    };
    return num_chunks == 1 ? launch(nullptr) : reduce_in_two<A>(p, num_chunks, executor, launch);
  }
  // One block is slow for a long row; where there are blocks enough, it spares a second kernel.
  const bool is_row_a_block = num_chunks <= kGroups || rows >= 2 * executor.num_cus;
  if (num_chunks > 1 && num_chunks <= kMostChunks && is_row_a_block) {
    return launch_kernel(sum_rows<T>, rows, 1, kReduceThreads, group_bytes + int(kMostChunks * sizeof(A)), executor, p,
                         num_chunks, is_aligned);
  }
  const auto launch = [&](A* sums) {
    return launch_kernel(sum_chunks<T>, ceil_div(rows * num_chunks, kGroups), 1, kReduceThreads, group_bytes, executor,
                         p, sums, num_chunks, is_aligned);
  };
  return num_chunks == 1 ? launch(nullptr) : reduce_in_two<A>(p, num_chunks, executor, launch);
}

}  // namespace

Status launch_reduce(const ReduceProblem& problem, const Executor& executor) {
  return visit_dtype(problem.dtype, [&](auto* element) {
    return reduce<std::remove_pointer_t<decltype(element)>>(problem, executor);
  });
}

}  // namespace tiledmm::gpu

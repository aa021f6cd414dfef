// Runs Hopper's kernels on a CPU, to check them; included before all else. The threads of a block are fibers, a block
// is a thread of the system, and the blocks of a cluster run side by side, one fiber at a time.
//
// What a GPU does by itself happens late, in an order drawn from the seed. The target of a copy is garbage from the
// moment it is asked for, and so are accumulators while instructions work on them. So what is read too early, or
// overwritten too early, becomes NaN. Where nothing can go on, the program ends and says so.
//
// The matrix instruction is not the unit's own sum: 16 products and C are added in fp64 and truncated to fp32, which
// shows every change of order all the same.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#undef __shared__
#undef __global__
#undef __device__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#define __shared__ thread_local
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

namespace emulator {

constexpr float kGarbage = std::numeric_limits<float>::quiet_NaN();
constexpr int kMaxSmem = 232448, kWarp = 32, kGroup = 128;
constexpr uint32_t kFirstAddress = 1024;  // of a block's shared memory; upper bits name another block of the cluster
constexpr int kBlockShift = 24;

// c + the products of 16 pairs.
inline float add_products(float c, const float* a, const float* b) {
  double sum = c;
  for (int i = 0; i < 16; ++i) sum += double(a[i]) * double(b[i]);
  const float near = float(sum);
  return std::fabs(double(near)) > std::fabs(sum) ? std::nextafterf(near, 0) : near;
}

inline float float_of_half(uint16_t bits) {
  __half_raw raw;
  raw.x = bits;
  return __half2float(__half(raw));
}

// mbarrier
struct Barrier {
  int count, pending;
  int64_t bytes;
  uint32_t phase;

  void settle() {
    if (pending != 0 || bytes != 0) return;
    phase ^= 1;
    pending = count;
  }
};

struct MatrixInstruction {
  float* acc;
  int width;
  bool adds, has_fragment;
  uint64_t desc_a, desc_b;
  uint32_t fragment[4];       // of A
  std::vector<float> values;  // of the accumulators, before and after
};

struct Block;
struct Fiber {
  Block* block;
  int thread;
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  std::function<bool()> can_go_on;
  bool is_done = false;
  std::deque<MatrixInstruction> waiting;
  uint64_t num_issued = 0, cluster_turn = 0;
  std::vector<uint64_t> groups;  // num_issued where each was committed
};

// Something that a number of threads comes to, again and again.
struct Meeting {
  int arrived = 0;
  uint64_t turn = 0;
  bool arrive(int num_threads) {
    if (++arrived < num_threads) return false;
    arrived = 0;
    ++turn;
    return true;
  }
};
struct Warp {
  Meeting meeting;
  uint32_t given[kWarp], seen[kWarp];
};

struct Cluster;
struct Block {
  Cluster* cluster;
  dim3 index;
  char* smem = nullptr;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<uint64_t> executed;  // instructions of each warpgroup
  std::map<uint32_t, Barrier> barriers;
  Meeting named[16];
  ucontext_t scheduler;
  bool is_done = false;
  uint64_t steps_seen = 0;
  int idle = 0;  // turns since then
};

struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<std::function<void()>> copies;
  Meeting meeting;
  std::mutex mutex;
  std::mt19937 random;
  uint64_t steps = 0;
  dim3 grid;

  bool chance() { return random() % 2 != 0; }
};

inline thread_local Fiber* current = nullptr;
inline thread_local dim3 thread_index;
inline Block& block() { return *current->block; }
inline Cluster& cluster() { return *block().cluster; }

[[noreturn]] inline void fail(const char* what) {
  std::printf("%s\n", what);
  std::fflush(stdout);
  std::_Exit(1);
}

inline void wait_until(std::function<bool()> can_go_on) {
  Fiber& own = *current;
  own.can_go_on = std::move(can_go_on);
  swapcontext(&own.context, &own.block->scheduler);
}

inline void meet(Meeting& meeting, int num_threads) {
  const uint64_t turn = meeting.turn;
  if (!meeting.arrive(num_threads)) wait_until([&meeting, turn] { return meeting.turn != turn; });
}

inline Block& owner_of(Block& from, uint32_t address) {
  const uint32_t other = address >> kBlockShift;
  return other ? *from.cluster->blocks[other - 1] : from;
}
inline char* memory_at(Block& from, uint32_t address) {
  const uint32_t offset = (address & ((1u << kBlockShift) - 1)) - kFirstAddress;
  if (offset >= kMaxSmem) fail("an address outside of shared memory");
  return owner_of(from, address).smem + offset;
}
inline Barrier& barrier_at(Block& from, uint32_t address) {
  auto& barriers = owner_of(from, address).barriers;
  const auto found = barriers.find(address & ((1u << kBlockShift) - 1));
  if (found == barriers.end()) fail("a barrier that is not initialised");
  return found->second;
}
template <class V>
V load(uint32_t address) {
  V v;
  std::memcpy(&v, memory_at(block(), address), sizeof v);
  return v;
}

// What the lanes of a warp give, in all of them.
inline std::vector<uint32_t> exchange(uint32_t value) {
  Warp& warp = block().warps[current->thread / kWarp];
  warp.given[current->thread % kWarp] = value;
  const uint64_t turn = warp.meeting.turn;
  if (warp.meeting.arrive(kWarp))
    std::memcpy(warp.seen, warp.given, sizeof warp.seen);
  else
    wait_until([&warp, turn] { return warp.meeting.turn != turn; });
  return {warp.seen, warp.seen + kWarp};
}

// ---- the copy engine

struct TensorMap {
  const char* data;
  int64_t sizes[3], pitches[2];
  int box_inner, box_outer, element_bytes;
};

// Rows of 128 bytes are swizzled: the place of 16 bytes in a row changes with the row's number.
inline uint32_t swizzled(uint32_t address) { return address ^ ((address >> 7 & 7) << 4); }

inline void copied(Block& to, uint32_t barrier, int64_t bytes) {
  Barrier& counting = barrier_at(to, barrier);
  counting.bytes -= bytes;
  counting.settle();
}

// `blocks`: of the cluster, one bit each.
inline void copy_box(uint32_t smem, const void* map_data, int inner, int outer, int item, uint32_t barrier,
                     uint32_t blocks) {
  TensorMap map;
  std::memcpy(&map, map_data, sizeof map);
  std::vector<Block*> targets;
  for (size_t rank = 0; rank < cluster().blocks.size(); ++rank) {
    if (blocks >> rank & 1) targets.push_back(cluster().blocks[rank].get());
  }
  const int bytes = map.box_inner * map.box_outer * map.element_bytes;
  for (Block* target : targets) std::memset(memory_at(*target, smem), 0xff, size_t(bytes));
  cluster().copies.push_back([=] {
    for (Block* target : targets) {
      for (int row = 0; row < map.box_outer; ++row) {
        for (int i = 0; i < map.box_inner; ++i) {
          char* to = memory_at(*target, swizzled(smem + uint32_t(row * 128 + i * map.element_bytes)));
          const int64_t x = inner + i, y = outer + row;
          const bool is_inside = x < map.sizes[0] && y < map.sizes[1] && item < map.sizes[2];
          const char* from = map.data + item * map.pitches[1] + y * map.pitches[0] + x * map.element_bytes;
          for (int byte = 0; byte < map.element_bytes; ++byte) to[byte] = is_inside ? from[byte] : 0;
        }
      }
      copied(*target, barrier, bytes);
    }
  });
}

inline void copy_bytes(uint32_t smem, const void* from, uint32_t bytes, uint32_t barrier) {
  Block* own = &block();
  std::memset(memory_at(*own, smem), 0xff, bytes);
  cluster().copies.push_back([=] {
    std::memcpy(memory_at(*own, smem), from, bytes);
    copied(*own, barrier, bytes);
  });
}

// ---- the matrix unit

// A thread's part of an instruction. A: a descriptor or, not null, a fragment.
inline void issue(float* acc, int width, uint64_t desc_a, const uint32_t* fragment, uint64_t desc_b, bool adds) {
  Fiber& own = *current;
  MatrixInstruction made{acc, width, adds, fragment != nullptr, desc_a, desc_b, {}, {acc, acc + width / 2}};
  if (fragment) std::memcpy(made.fragment, fragment, sizeof made.fragment);
  std::fill(acc, acc + width / 2, kGarbage);  // what an earlier one makes of them, it hands on
  own.waiting.push_back(std::move(made));
  ++own.num_issued;
}

// Row by row of an operand of 16 along k, as a descriptor has it.
inline std::vector<float> rows_at(Block& from, uint64_t desc, int num_rows) {
  std::vector<float> rows;
  const uint32_t first = uint32_t(desc & 0x3fff) << 4, eight_rows = uint32_t(desc >> 32 & 0x3fff) << 4;
  for (int row = 0; row < num_rows; ++row) {
    for (int k = 0; k < 16; ++k) {
      uint16_t bits;
      const uint32_t address = first + uint32_t(row / 8) * eight_rows + uint32_t(row % 8 * 128 + k * 2);
      std::memcpy(&bits, memory_at(from, swizzled(address)), 2);
      rows.push_back(float_of_half(bits));
    }
  }
  return rows;
}

// The next instruction that all threads of a warpgroup have issued.
inline bool execute(Block& from, size_t group) {
  Fiber* fibers = &from.fibers[group * kGroup];
  if (std::any_of(fibers, fibers + kGroup, [](const Fiber& fiber) { return fiber.waiting.empty(); })) return false;
  const MatrixInstruction& first = fibers[0].waiting.front();
  std::vector<float> a(64 * 16);
  if (!first.has_fragment) a = rows_at(from, first.desc_a, 64);
  for (int row = 0; first.has_fragment && row < 64; ++row) {
    for (int k = 0; k < 16; ++k) {
      const uint32_t* fragment = fibers[row / 16 * 32 + row % 8 * 4 + k % 8 / 2].waiting.front().fragment;
      a[size_t(row * 16 + k)] = float_of_half(uint16_t(fragment[row % 16 / 8 + k / 8 * 2] >> k % 2 * 16));
    }
  }
  const std::vector<float> b = rows_at(from, first.desc_b, first.width);
  const uint64_t desc_b = first.desc_b;
  for (int thread = 0; thread < kGroup; ++thread) {
    Fiber& fiber = fibers[thread];
    MatrixInstruction own = std::move(fiber.waiting.front());
    fiber.waiting.pop_front();
    if (own.desc_b != desc_b) fail("the threads of a warpgroup differ");
    for (int i = 0; i < own.width / 2; ++i) {
      const int row = thread / 32 * 16 + thread % 32 / 4 + 8 * (i / 2 % 2), col = i / 4 * 8 + thread % 4 * 2 + i % 2;
      own.values[size_t(i)] =
          add_products(own.adds ? own.values[size_t(i)] : 0, &a[size_t(row * 16)], &b[size_t(col * 16)]);
    }
    const auto next = std::find_if(fiber.waiting.begin(), fiber.waiting.end(),
                                   [&](const MatrixInstruction& later) { return later.acc == own.acc; });
    if (next == fiber.waiting.end())
      std::copy(own.values.begin(), own.values.end(), own.acc);
    else
      next->values = own.values;
  }
  ++from.executed[group];
  return true;
}

// ---- launches

inline thread_local const std::function<void()>* current_kernel = nullptr;

inline void start_fiber() {
  (*current_kernel)();
  current->is_done = true;
  wait_until([] { return false; });
}

// One turn of every fiber that can go on, then some of what the GPU does by itself. Returns whether all are done.
inline bool step(Block& own, Cluster& all) {
  const size_t num_threads = own.fibers.size(), first = all.random() % num_threads, late = all.random() % num_threads;
  bool is_done = true;
  for (size_t i = 0; i < num_threads; ++i) {
    Fiber& fiber = own.fibers[(first + i) % num_threads];
    if (fiber.is_done) continue;
    is_done = false;
    if (size_t(fiber.thread) / kWarp == late / kWarp || !fiber.can_go_on()) continue;
    current = &fiber;
    thread_index = dim3(unsigned(fiber.thread), 0, 0);
    swapcontext(&own.scheduler, &fiber.context);
    ++all.steps;
  }
  for (size_t group = 0; group < own.executed.size(); ++group) {
    while (all.chance() && execute(own, group)) ++all.steps;
  }
  while (!all.copies.empty() && all.chance()) {
    std::swap(all.copies[all.random() % all.copies.size()], all.copies.back());
    const auto copy = std::move(all.copies.back());
    all.copies.pop_back();
    copy();
    ++all.steps;
  }
  return is_done;
}

inline void run_block(Block& own, const std::function<void()>& kernel) {
  constexpr size_t kStackBytes = 96 << 10;
  constexpr int kPatience = 200;
  current_kernel = &kernel;
  for (size_t thread = 0; thread < own.fibers.size(); ++thread) {
    Fiber& fiber = own.fibers[thread];
    fiber.block = &own;
    fiber.thread = int(thread);
    fiber.can_go_on = [] { return true; };
    fiber.stack.reset(new char[kStackBytes]);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, start_fiber, 0);
  }
  Cluster& all = *own.cluster;
  for (; !own.is_done; std::this_thread::yield()) {
    std::lock_guard lock(all.mutex);
    own.is_done = step(own, all);
    own.idle = all.steps == own.steps_seen ? own.idle + 1 : 0;
    own.steps_seen = all.steps;
    const auto is_idle = [&](const auto& other) {
      return other->is_done || (other->idle >= kPatience && other->steps_seen == all.steps);
    };
    if (!own.is_done && std::all_of(all.blocks.begin(), all.blocks.end(), is_idle)) fail("a deadlock");
  }
}

// `find_smem`: the shared memory of the thread of the system that asks.
inline void launch(unsigned cluster_size, unsigned num_blocks, int num_threads, char* (*find_smem)(),
                   const std::function<void()>& kernel) {
  static unsigned seed = 0;
  for (unsigned first = 0; first < num_blocks; first += cluster_size) {
    Cluster all;
    all.random.seed(seed++);
    all.grid = dim3(num_blocks);
    for (unsigned rank = 0; rank < cluster_size; ++rank) {
      all.blocks.push_back(std::make_unique<Block>());
      Block& own = *all.blocks.back();
      own.cluster = &all;
      own.index = dim3(first + rank, 0, 0);
      own.fibers = std::vector<Fiber>(size_t(num_threads));
      own.warps.resize(own.fibers.size() / kWarp);
      own.executed.resize(own.fibers.size() / kGroup);
    }
    Meeting all_have_memory;
    std::vector<std::thread> threads;
    for (auto& own : all.blocks) {
      threads.emplace_back([&all, &all_have_memory, &kernel, find_smem, own = own.get()] {
        {
          std::lock_guard lock(all.mutex);
          own->smem = find_smem();
          std::memset(own->smem, 0xff, kMaxSmem);
          all_have_memory.arrive(int(all.blocks.size()));
        }
        for (bool is_ready = false; !is_ready; std::this_thread::yield()) {
          std::lock_guard lock(all.mutex);
          is_ready = all_have_memory.turn > 0;
        }
        run_block(*own, kernel);
      });
    }
    for (auto& thread : threads) thread.join();
    if (!all.copies.empty()) fail("copies that nothing waits for");
  }
}

}  // namespace emulator

// ---- what the compiler of device code brings

#define threadIdx ::emulator::thread_index
#define blockIdx ::emulator::block().index
#define gridDim ::emulator::cluster().grid

using std::max;
using std::min;
inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float __uint_as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return uint32_t(uint64_t(a) * b >> 32); }
template <class V>
V __shfl_sync(uint32_t, V value, int lane) {
  return V(emulator::exchange(uint32_t(value))[size_t(lane)]);
}
inline uint32_t __shfl_xor_sync(uint32_t, uint32_t value, int mask) {
  return emulator::exchange(value)[size_t(emulator::current->thread % emulator::kWarp ^ mask)];
}
inline uint32_t __ballot_sync(uint32_t, bool value) {
  uint32_t bits = 0, bit = 1;
  for (const uint32_t given : emulator::exchange(value)) bits |= given ? bit : 0, bit *= 2;
  return bits;
}
inline bool __any_sync(uint32_t mask, bool value) { return __ballot_sync(mask, value) != 0; }
inline void __syncwarp() { emulator::exchange(0); }
inline void __syncthreads() { emulator::meet(emulator::block().named[0], int(emulator::block().fibers.size())); }

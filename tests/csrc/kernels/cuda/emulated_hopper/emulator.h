// Runs Hopper's kernels on a CPU, to check them; included before all else. The threads of a block are fibers, a block
// is a thread of the system. The blocks of a cluster take turns, in an order drawn from the seed: a run is the same
// each time.
//
// What a GPU does by itself happens late, in an order drawn from the seed. The target of a copy is garbage from the
// moment it is asked for, and so are accumulators while instructions work on them. So what is read too early, or
// overwritten too early, becomes NaN. Where nothing can go on, the program ends and says so. So it does where a fence
// is missing, where a copy starts before the kernels before are done, and where a block's shared memory is used when it
// has ended. What each instruction does is told by the PTX ISA manual, in the sections that
// csrc/kernels/cuda/shared/ptx_sm90.h names.
//
// Not emulated: caches, policies and prefetches, registers that move between warpgroups, kernels that overlap, and
// fences between what a thread writes through a pointer and what the matrix unit or the copy engine reads of it.
//
// The matrix instruction is not the unit's own sum: 16 products and C are added in fp64 and truncated to fp32, which
// shows every change of order all the same. Products in 8 bits lose what Hopper's unit is known to lose of them
// (add_products_of_8_bits).
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
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

#include "platform/host_gpu/place.h"

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

using tiledmm::host_gpu::Place;

constexpr float kGarbage = std::numeric_limits<float>::quiet_NaN();
constexpr int kMaxSmem = 232448, kWarp = 32, kRowsOfWarp = 16;
constexpr uint32_t kFirstAddress = 1040;  // of a block's shared memory; upper bits name another block of the cluster
constexpr int kBlockShift = 24;

// c + the products of 16 pairs.
inline float add_products(float c, const float* a, const float* b) {
  double sum = c;
  for (int i = 0; i < 16; ++i) sum += double(a[i]) * double(b[i]);
  const float near = float(sum);
  return std::fabs(double(near)) > std::fabs(sum) ? std::nextafterf(near, 0) : near;
}

inline float float_of_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline uint32_t bits_of_float(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

// c + the products of 32 pairs of numbers in 8 bits, with what Hopper's unit keeps of them: each addend is cut off, not
// rounded, so many bits behind the point of the one with the largest exponent, and so is the sum behind its own point
// (DeepGEMM issues #37 and #50; DeepSeek-V3, section 3.5.2; SageAttention 2, whose "FP22" has 13 such bits). The
// exponent of a product is the sum of its factors' exponents.
constexpr int kKeptBits = 13;
inline float add_products_of_8_bits(float c, const float* a, const float* b) {
  constexpr int kPairs = 32, kNone = -1000;
  const auto exponent = [](float x) { return int(bits_of_float(x) >> 23 & 0xff) - 127; };
  double products[kPairs], plain = c;
  int largest = c == 0 ? kNone : exponent(c);
  for (int i = 0; i < kPairs; ++i) {
    products[i] = double(a[i]) * double(b[i]);
    plain += products[i];
    if (products[i] != 0) largest = std::max(largest, exponent(a[i]) + exponent(b[i]));
  }
  if (!std::isfinite(plain)) return float(plain);
  if (largest == kNone) return 0;
  const double units = std::ldexp(1.0, kKeptBits - largest);
  auto sum = int64_t(c * units);
  for (const double product : products) sum += int64_t(product * units);
  int64_t dropped = 1;
  while (std::llabs(sum / dropped) >> (kKeptBits + 1)) dropped *= 2;
  return float(double(sum / dropped * dropped) / units);
}
constexpr uint32_t kTf32Rest = 0x1fff;  // what tf32 has not of fp32
inline uint32_t rounded_to_tf32(uint32_t bits) {
  const bool is_finite = (bits >> 23 & 0xff) != 0xff;
  return (is_finite ? bits + kTf32Rest / 2 + (bits >> 13 & 1) : bits) & ~kTf32Rest;
}

// Elements that the matrix unit multiplies, kBytesOfK of each row at a time.
constexpr int kBytesOfK = 32;
struct Element {
  int bytes;
  float (*convert)(uint32_t bits);

  int k() const { return kBytesOfK / bytes; }
  int k_of_row() const { return std::max(k(), 16); }  // with the zeros behind it
};
struct Elements {
  Element a, b;
  Elements(const Element& both) : a(both), b(both) {}
  Elements(const Element& a, const Element& b) : a(a), b(b) {}
};
inline constexpr Element kHalf{2, [](uint32_t bits) {
                                 __half_raw raw;
                                 raw.x = uint16_t(bits);
                                 return __half2float(__half(raw));
                               }};
inline constexpr Element kBFloat16{2, [](uint32_t bits) { return float_of_bits(bits << 16); }};
inline constexpr Element kTf32{4, [](uint32_t bits) { return float_of_bits(bits & ~kTf32Rest); }};
// fp16 without the lower half of its bits.
inline constexpr Element kE5M2{1, [](uint32_t bits) { return kHalf.convert(bits << 8); }};
// No infinities: the exponent of fp16's has another bit, and its bias is 8 more.
inline constexpr Element kE4M3{1, [](uint32_t bits) {
                                 if ((bits & 0x7f) == 0x7f) return kGarbage;
                                 return kHalf.convert((bits & 0x80) << 8 | (bits & 0x7f) << 7) * 256;
                               }};

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

// An operand of the matrix unit in shared memory.
struct MatrixOperand {
  uint64_t desc;
  bool is_along_k;

  bool operator==(const MatrixOperand&) const = default;
};
struct MatrixInstruction {
  float* acc;
  int width;
  bool adds, has_fragment;
  Elements elements;
  MatrixOperand a, b;
  const uint32_t* registers;  // of A's fragment
  uint32_t fragment[4];
  std::vector<float> values;  // of the accumulators, before and after
};

struct Block;
struct Fiber {
  Block* block;
  int thread;
  Place place;
  std::unique_ptr<char[]> stack;
  std::function<bool()> can_go_on;
  bool is_done = false;
  bool knows_of_earlier_kernels = false;  // that they are done
  bool is_fenced = false;                 // its accumulators, before the next matrix instruction
  std::deque<MatrixInstruction> waiting;
  uint64_t num_issued = 0, cluster_turn = 0;
  std::vector<uint64_t> groups;                          // num_issued where each was committed
  std::deque<std::map<uint32_t, float>> word_groups{1};  // copies of words by address, of each group; the last: open
  std::deque<int> store_groups{0};                     // stores of each that have not read their source; the last: open
  std::vector<std::pair<uint32_t, uint32_t>> written;  // shared memory, since the last fence: first, end
};

// Something that a number of threads comes to, again and again.
struct Meeting {
  int arrived = 0;
  uint64_t turn = 0;
  void complete() {
    arrived = 0;
    ++turn;
  }
  bool arrive(int num_threads) {
    if (++arrived < num_threads) return false;
    complete();
    return true;
  }
};
struct Warp {
  Meeting meeting;
  uint32_t given[kWarp], seen[kWarp];
};

// Some take longer than what a block does meanwhile.
struct Copy {
  std::function<void()> act;
  uint64_t first_turn;
};

struct Cluster;
struct Block {
  Cluster* cluster;
  dim3 index;
  unsigned rank = 0;  // in the cluster
  char* smem = nullptr;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<uint64_t> executed;  // matrix instructions of each warp
  std::map<uint32_t, Barrier> barriers;
  Meeting named[16];
  bool vote = false;
  Place scheduler;
  std::condition_variable may_go_on;
  bool is_done = false;
  uint64_t steps_seen = 0;
  int idle = 0;  // turns since then
};

struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<Copy> copies;
  Meeting meeting;
  int num_threads = 0;  // that have not ended
  int smem_bytes = 0;   // of a block
  unsigned turn = 0;    // of the block of this rank
  std::mutex mutex;
  std::mt19937 random;
  uint64_t steps = 0, turns = 0;
  dim3 grid;

  bool chance() { return random() % 2 != 0; }
  void pass_turn();
  void copy_later(std::function<void()> act) {
    constexpr unsigned kOnceIn = 4, kDelays = 9;
    copies.push_back({std::move(act), turns + (random() % kOnceIn ? 0 : 1 << random() % kDelays)});
  }
};

// To a block that has something left to do.
inline void Cluster::pass_turn() {
  std::vector<Block*> others;
  for (const auto& own : blocks) {
    if (!own->is_done) others.push_back(own.get());
  }
  if (others.empty()) return;
  Block& next = *others[random() % others.size()];
  turn = next.rank;
  next.may_go_on.notify_one();
}

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
  Place::exchange(own.place, own.block->scheduler);
}

inline void meet(Meeting& meeting, int num_threads) {
  const uint64_t turn = meeting.turn;
  if (!meeting.arrive(num_threads)) wait_until([&meeting, turn] { return meeting.turn != turn; });
}

inline Block& owner_of(Block& from, uint32_t address) {
  const uint32_t other = address >> kBlockShift;
  if (other > from.cluster->blocks.size()) fail("a block outside of the cluster");
  Block& owner = other ? *from.cluster->blocks[other - 1] : from;
  if (owner.is_done) fail("shared memory of a block that has ended");
  return owner;
}
inline char* memory_at(Block& from, uint32_t address) {
  const uint32_t offset = (address & ((1u << kBlockShift) - 1)) - kFirstAddress;
  if (offset >= uint32_t(from.cluster->smem_bytes)) fail("an address outside of shared memory");
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

// By a thread's own instructions: the copy engine does not see it before a fence.
template <class V>
void store(uint32_t address, const V& v) {
  std::memcpy(memory_at(block(), address), &v, sizeof v);
  current->written.emplace_back(address, address + uint32_t(sizeof v));
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
  char* data;
  int64_t sizes[3], pitches[2];
  int box_inner, box_outer, element_bytes;
  int smem_pitch;  // of a box's rows, which are swizzled over it
  bool rounds_to_tf32;

  int box_bytes() const { return box_inner * box_outer * element_bytes; }
};
constexpr int kUnit = 16;  // bytes that the copy engine moves at a time

// The place of 16 bytes in 128, or in 64, changes with the number of 128 bytes.
inline uint32_t swizzled(uint32_t address, int width) {
  return address ^ (address >> 7 & uint32_t(width / kUnit - 1)) << 4;
}

// Calls visit(address in shared memory, x, y) for each unit of a box.
template <class Visit>
void for_each_unit(const TensorMap& map, uint32_t smem, const Visit& visit) {
  for (int row = 0; row < map.box_outer; ++row) {
    for (int byte = 0; byte < map.box_inner * map.element_bytes; byte += kUnit)
      visit(swizzled(smem + uint32_t(row * map.smem_pitch + byte), map.smem_pitch), byte / map.element_bytes, row);
  }
}

// Whether there is a word at an address that kernels may read by __ldg; none: they may read all.
inline std::function<bool(const void*)> may_read;

// Whether a kernel may begin to copy before it knows that those before it are done.
inline bool may_copy_early = false;
inline void check_start() {
  if (!may_copy_early && !current->knows_of_earlier_kernels) fail("a copy before earlier kernels are done");
}
inline void check_copy(uint32_t smem) {
  check_start();
  if (smem % 128) fail("a box at an address that is no multiple of 128 bytes");
}

inline void copied(Block& to, uint32_t barrier, int64_t bytes) {
  Barrier& counting = barrier_at(to, barrier);
  counting.bytes -= bytes;
  counting.settle();
}

// `blocks`: of the cluster, one bit each.
inline void copy_box(uint32_t smem, const void* map_data, int inner, int outer, int item, uint32_t barrier,
                     uint32_t blocks) {
  check_copy(smem);
  TensorMap map;
  std::memcpy(&map, map_data, sizeof map);
  std::vector<Block*> targets;
  for (size_t rank = 0; rank < cluster().blocks.size(); ++rank) {
    if (blocks >> rank & 1) targets.push_back(cluster().blocks[rank].get());
  }
  for (Block* target : targets) {
    barrier_at(*target, barrier);  // is there already
    for_each_unit(map, smem, [&](uint32_t to, int, int) { std::memset(memory_at(*target, to), 0xff, kUnit); });
  }
  cluster().copy_later([=] {
    for (Block* target : targets) {
      for_each_unit(map, smem, [&](uint32_t to, int first, int row) {
        const int64_t x = inner + first, y = outer + row;
        const bool is_inside = y >= 0 && y < map.sizes[1] && item >= 0 && item < map.sizes[2];
        const int64_t left = is_inside ? (map.sizes[0] - x) * map.element_bytes : 0;
        std::memset(memory_at(*target, to), 0, kUnit);
        if (left > 0)
          std::memcpy(memory_at(*target, to),
                      map.data + item * map.pitches[1] + y * map.pitches[0] + x * map.element_bytes,
                      size_t(std::min<int64_t>(left, kUnit)));
        for (int byte = 0; map.rounds_to_tf32 && byte < kUnit; byte += 4) {
          uint32_t bits;
          std::memcpy(&bits, memory_at(*target, to) + byte, 4);
          bits = rounded_to_tf32(bits);
          std::memcpy(memory_at(*target, to) + byte, &bits, 4);
        }
      });
      copied(*target, barrier, map.box_bytes());
    }
  });
}

// That no thread of the block has written there since its last fence.
inline void check_fences(const Block& own, uint32_t begin, uint32_t end) {
  for (const Fiber& fiber : own.fibers) {
    for (const auto& [first, behind] : fiber.written) {
      if (first < end && behind > begin) fail("shared memory is read by the engines before a fence");
    }
  }
}

// A box from shared memory. Whole units are written, beyond the end of a row, too.
inline void store_box(const void* map_data, int inner, int outer, int item, uint32_t smem) {
  check_copy(smem);
  TensorMap map;
  std::memcpy(&map, map_data, sizeof map);
  Block* own = &block();
  check_fences(*own, smem, smem + uint32_t(map.box_outer * map.smem_pitch));
  int& num_reading = current->store_groups.back();
  ++num_reading;
  cluster().copy_later([=, &num_reading] {
    for_each_unit(map, smem, [&](uint32_t from, int first, int row) {
      const int64_t x = inner + first, y = outer + row;
      if (x < map.sizes[0] && y < map.sizes[1] && item < map.sizes[2])
        std::memcpy(map.data + item * map.pitches[1] + y * map.pitches[0] + x * map.element_bytes,
                    memory_at(*own, from), kUnit);
    });
    --num_reading;
  });
}

// ---- the matrix unit

// A thread's part of an instruction. A: in shared memory or, not null, a fragment.
inline void issue(float* acc, int width, const Elements& elements, MatrixOperand a, const uint32_t* fragment,
                  MatrixOperand b, bool adds) {
  Fiber& own = *current;
  if (!own.is_fenced) fail("a matrix instruction without a fence before it");
  MatrixInstruction made{acc, width, adds, fragment != nullptr, elements, a, b, fragment, {}, {acc, acc + width / 2}};
  if (fragment) std::memcpy(made.fragment, fragment, sizeof made.fragment);
  std::fill(acc, acc + width / 2, kGarbage);  // what an earlier one makes of them, it hands on
  own.waiting.push_back(std::move(made));
  ++own.num_issued;
}

// Where an element lies. Swizzled, along k: groups of eight rows; else groups of eight of k, and of as many rows as the
// swizzle is wide. Without a swizzle, along k: matrices of 8 rows of 16 bytes. 32-bit elements lie along k alone.
inline uint32_t element_address(const MatrixOperand& operand, int bytes, int row, int k) {
  const auto field = [&](int shift) { return uint32_t(operand.desc >> shift & 0x3fff) << 4; };
  const uint32_t first = field(0), leading = field(16), stride = field(32);
  const auto mode = int(operand.desc >> 62);
  if (mode > 2 || (!operand.is_along_k && (mode == 0 || bytes != 2))) fail("an operand's layout that is not emulated");
  const int byte = k * bytes, width = 128 / std::max(mode, 1), rows = width / 2;
  if (mode == 0)
    return first + uint32_t(byte / 16) * leading + uint32_t(row / 8) * stride + uint32_t(row % 8 * 16 + byte % 16);
  const uint32_t address = operand.is_along_k ? first + uint32_t(row / 8) * stride + uint32_t(row % 8 * width + byte)
                                              : first + uint32_t(row / rows) * leading + uint32_t(k / 8) * stride +
                                                    uint32_t(k % 8 * width + row % rows * 2);
  return swizzled(address, width);
}

// Row by row of an operand, at least 16 along k: zeros behind what an instruction takes.
inline std::vector<float> rows_at(Block& from, const MatrixOperand& operand, int first, int num_rows,
                                  const Element& element) {
  const int pitch = element.k_of_row();
  std::vector<float> rows(size_t(num_rows) * size_t(pitch));
  uint32_t begin = ~0u, end = 0;
  for (int row = 0; row < num_rows; ++row) {
    for (int k = 0; k < element.k(); ++k) {
      const uint32_t address = element_address(operand, element.bytes, first + row, k);
      uint32_t bits = 0;
      std::memcpy(&bits, memory_at(from, address), size_t(element.bytes));
      rows[size_t(row * pitch + k)] = element.convert(bits);
      begin = std::min(begin, address);
      end = std::max(end, address + uint32_t(element.bytes));
    }
  }
  check_fences(from, begin, end);
  return rows;
}

// A warp's fragments as rows. Who changes the registers while an instruction reads them spoils it.
inline std::vector<float> rows_of_fragments(const Fiber* fibers, const Element& element) {
  std::vector<float> rows(size_t(kRowsOfWarp) * 16);
  const int pairs = 4 / element.bytes, half_k = element.k() / 2;  // elements in a register; of k from one to the next
  for (int row = 0; row < kRowsOfWarp; ++row) {
    for (int k = 0; k < element.k(); ++k) {
      const MatrixInstruction& own = fibers[row % 8 * 4 + k % half_k / pairs].waiting.front();
      const uint32_t bits = own.fragment[row / 8 + k / half_k * 2] >> k % pairs * 16;
      const bool is_spoilt = std::memcmp(own.fragment, own.registers, sizeof own.fragment) != 0;
      rows[size_t(row * 16 + k)] = is_spoilt ? kGarbage : element.convert(element.bytes == 2 ? bits & 0xffff : bits);
    }
  }
  return rows;
}

// A warp's rows of the next instruction that all of its threads have issued: warps of a warpgroup do not wait for each
// other.
inline bool execute(Block& from, size_t warp) {
  Fiber* fibers = &from.fibers[warp * kWarp];
  if (std::any_of(fibers, fibers + kWarp, [](const Fiber& fiber) { return fiber.waiting.empty(); })) return false;
  const MatrixInstruction& first = fibers[0].waiting.front();
  const MatrixOperand operand_a = first.a, operand_b = first.b;
  const Elements elements = first.elements;
  const std::vector<float> a = first.has_fragment
                                   ? rows_of_fragments(fibers, elements.a)
                                   : rows_at(from, operand_a, int(warp % 4) * kRowsOfWarp, kRowsOfWarp, elements.a);
  const std::vector<float> b = rows_at(from, operand_b, 0, first.width, elements.b);
  const auto add = elements.a.bytes == 1 ? add_products_of_8_bits : add_products;
  const int pitch = elements.a.k_of_row();
  for (int lane = 0; lane < kWarp; ++lane) {
    Fiber& fiber = fibers[lane];
    MatrixInstruction own = std::move(fiber.waiting.front());
    fiber.waiting.pop_front();
    if (own.a != operand_a || own.b != operand_b) fail("the threads of a warp differ");
    for (int i = 0; i < own.width / 2; ++i) {
      const int row = lane / 4 + 8 * (i / 2 % 2), col = i / 4 * 8 + lane % 4 * 2 + i % 2;
      float& sum = own.values[size_t(i)];
      sum = add(own.adds ? sum : 0, &a[size_t(row * pitch)], &b[size_t(col * pitch)]);
    }
    const auto next = std::find_if(fiber.waiting.begin(), fiber.waiting.end(),
                                   [&](const MatrixInstruction& later) { return later.acc == own.acc; });
    if (next == fiber.waiting.end())
      std::copy(own.values.begin(), own.values.end(), own.acc);
    else
      next->values = own.values;
  }
  ++from.executed[warp];
  return true;
}

// ---- launches

inline thread_local const std::function<void()>* current_kernel = nullptr;

// Those that have ended are not waited for at the cluster's barrier.
inline void start_fiber() {
  (*current_kernel)();
  current->is_done = true;
  Cluster& all = cluster();
  if (--all.num_threads == all.meeting.arrived && all.meeting.arrived > 0) all.meeting.complete();
  wait_until([] { return false; });
}

// One turn of every fiber that can go on, then some of what the GPU does by itself. Returns whether all are done.
inline bool step(Block& own, Cluster& all) {
  // One behind the other or far apart: numbers that have no divisor in common with the number of threads.
  constexpr size_t kStrides[] = {1, 7, 77};
  const size_t num_threads = own.fibers.size(), first = all.random() % num_threads, late = all.random() % num_threads;
  const size_t stride = kStrides[all.random() % std::size(kStrides)];
  bool is_done = true;
  for (size_t i = 0; i < num_threads; ++i) {
    Fiber& fiber = own.fibers[(first + i * stride) % num_threads];
    if (fiber.is_done) continue;
    is_done = false;
    if (size_t(fiber.thread) / kWarp == late / kWarp || !fiber.can_go_on()) continue;
    current = &fiber;
    thread_index = dim3(unsigned(fiber.thread), 0, 0);
    Place::exchange(own.scheduler, fiber.place);
    ++all.steps;
  }
  ++all.turns;
  for (size_t warp = 0; warp < own.executed.size(); ++warp) {
    while (all.chance() && execute(own, warp)) ++all.steps;
  }
  while (!is_done && !all.copies.empty() && all.chance()) {
    std::swap(all.copies[all.random() % all.copies.size()], all.copies.back());
    if (all.copies.back().first_turn > all.turns) continue;
    const Copy copy = std::move(all.copies.back());
    all.copies.pop_back();
    copy.act();
    ++all.steps;
  }
  return is_done;
}

inline void check_stores(const Block& ended) {
  for (const Fiber& fiber : ended.fibers) {
    for (const int num_reading : fiber.store_groups) {
      if (num_reading) fail("stores of shared memory whose block has ended");
    }
  }
}

inline void run_block(Block& own, const std::function<void()>& kernel) {
  constexpr size_t kStackBytes = 96 << 10;
  constexpr int kPatience = 600;
  current_kernel = &kernel;
  for (size_t thread = 0; thread < own.fibers.size(); ++thread) {
    Fiber& fiber = own.fibers[thread];
    fiber.block = &own;
    fiber.thread = int(thread);
    fiber.can_go_on = [] { return true; };
    fiber.stack.reset(new char[kStackBytes]);
    ucontext_t& context = fiber.place.context;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber.stack.get();
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    makecontext(&context, start_fiber, 0);
  }
  Cluster& all = *own.cluster;
  std::unique_lock lock(all.mutex);
  while (!own.is_done) {
    own.may_go_on.wait(lock, [&] { return all.turn == own.rank; });
    own.is_done = step(own, all);
    if (own.is_done) check_stores(own);
    own.idle = all.steps == own.steps_seen ? own.idle + 1 : 0;
    own.steps_seen = all.steps;
    const auto is_idle = [&](const auto& other) {
      return other->is_done || (other->idle >= kPatience && other->steps_seen == all.steps);
    };
    if (!own.is_done && std::all_of(all.blocks.begin(), all.blocks.end(), is_idle)) fail("a deadlock");
    all.pass_turn();
  }
}

// `find_smem`: the shared memory of the thread of the system that asks. One cluster after the other.
inline void launch(dim3 cluster_size, dim3 grid, int num_threads, int smem_bytes, char* (*find_smem)(),
                   const std::function<void()>& kernel) {
  static unsigned seed = 0;
  const dim3 size = cluster_size;
  const unsigned num_blocks = size.x * size.y * size.z, num_clusters = grid.x * grid.y * grid.z / num_blocks;
  if (grid.x % size.x || grid.y % size.y || grid.z % size.z) fail("a grid that is not made of whole clusters");
  for (unsigned number = 0; number < num_clusters; ++number) {
    Cluster all;
    all.random.seed(seed++);
    all.grid = grid;
    all.smem_bytes = smem_bytes;
    all.num_threads = int(num_blocks) * num_threads;
    const unsigned along_x = grid.x / size.x, along_y = grid.y / size.y;
    for (unsigned rank = 0; rank < num_blocks; ++rank) {
      all.blocks.push_back(std::make_unique<Block>());
      Block& own = *all.blocks.back();
      own.cluster = &all;
      own.rank = rank;
      own.index =
          dim3(number % along_x * size.x + rank % size.x, number / along_x % along_y * size.y + rank / size.x % size.y,
               number / along_x / along_y * size.z + rank / size.x / size.y);
      own.fibers = std::vector<Fiber>(size_t(num_threads));
      own.warps.resize(own.fibers.size() / kWarp);
      own.executed.resize(own.fibers.size() / kWarp);
    }
    size_t num_with_memory = 0;
    std::condition_variable all_have_memory;
    std::vector<std::thread> threads;
    for (auto& own : all.blocks) {
      threads.emplace_back([&, own = own.get()] {
        {
          std::unique_lock lock(all.mutex);
          own->smem = find_smem();
          std::memset(own->smem, 0xff, size_t(all.smem_bytes));
          ++num_with_memory;
          all_have_memory.notify_all();
          all_have_memory.wait(lock, [&] { return num_with_memory == all.blocks.size(); });
        }
        run_block(*own, kernel);
      });
    }
    for (auto& thread : threads) thread.join();
    if (!all.copies.empty()) fail("copies that nothing waits for");
  }
}

// Thread after thread of a kernel whose threads do not wait for each other.
inline void run_each_thread(int64_t num_blocks, int num_threads, const std::function<void()>& kernel) {
  Cluster alone;
  Block block;
  block.cluster = &alone;
  Fiber fiber;
  fiber.block = &block;
  current = &fiber;
  for (int64_t i = 0; i < num_blocks; ++i) {
    block.index = dim3(unsigned(i), 0, 0);
    for (int thread = 0; thread < num_threads; ++thread) {
      thread_index = dim3(unsigned(thread), 0, 0);
      kernel();
    }
  }
}

}  // namespace emulator

// ---- what the compiler of device code brings

#define threadIdx ::emulator::thread_index
#define blockIdx ::emulator::block().index
#define gridDim ::emulator::cluster().grid

using std::max;
using std::min;
inline uint32_t __float_as_uint(float x) { return emulator::bits_of_float(x); }
inline float __uint_as_float(uint32_t bits) { return emulator::float_of_bits(bits); }
template <class V>
V __ldg(const V* from) {
  const char* const last = reinterpret_cast<const char*>(from + 1) - 4;
  if (emulator::may_read && !(emulator::may_read(from) && emulator::may_read(last)))
    emulator::fail("a read of what is no element");
  return *from;
}
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return uint32_t(uint64_t(a) * b >> 32); }
template <class V>
V __shfl_sync(uint32_t, V value, int lane) {
  static_assert(sizeof value == 4, "a register");
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits = emulator::exchange(bits)[size_t(lane)];
  std::memcpy(&value, &bits, 4);
  return value;
}
inline uint32_t __shfl_xor_sync(uint32_t, uint32_t value, int mask) {
  return emulator::exchange(value)[size_t(emulator::current->thread % emulator::kWarp ^ mask)];
}
inline int __shfl_up_sync(uint32_t, int value, int distance) {
  const int lane = emulator::current->thread % emulator::kWarp, from = lane < distance ? lane : lane - distance;
  return int(emulator::exchange(uint32_t(value))[size_t(from)]);
}
inline int __ffs(int value) { return __builtin_ffs(value); }
inline uint32_t __reduce_max_sync(uint32_t, uint32_t value) {
  const std::vector<uint32_t> given = emulator::exchange(value);
  return *std::max_element(given.begin(), given.end());
}
inline uint32_t __ballot_sync(uint32_t, bool value) {
  uint32_t bits = 0, bit = 1;
  for (const uint32_t given : emulator::exchange(value)) bits |= given ? bit : 0, bit *= 2;
  return bits;
}
inline bool __any_sync(uint32_t mask, bool value) { return __ballot_sync(mask, value) != 0; }
inline void __syncwarp() { emulator::exchange(0); }
inline void __syncthreads() { emulator::meet(emulator::block().named[0], int(emulator::block().fibers.size())); }
inline bool __syncthreads_or(bool value) {
  bool& vote = emulator::block().vote;
  vote |= value;
  __syncthreads();
  const bool result = vote;
  __syncthreads();
  vote = false;
  __syncthreads();
  return result;
}

// The executor behind platform/host_gpu.h. Tests compile it without the sanitizers that the kernels are compiled with.
#include "platform/host_gpu.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "core/math.h"
#include "platform/host_gpu/place.h"

namespace tiledmm::host_gpu {

namespace {

struct Access {
  uintptr_t address;
  uint32_t bytes;
  Space space;
};

// A copy on its way to shared memory (platform/async_copy.h).
struct PendingCopy {
  void* to;
  const void* from;
  size_t bytes, valid_bytes;
};

enum class State : uint8_t { ready, at_warp_barrier, at_block_barrier, done };

struct Fiber {
  Place place;
  std::vector<Access> accesses;
  std::vector<std::vector<PendingCopy>> copies;  // groups, the last one not committed yet
};

class Block {
 public:
  static constexpr size_t kStackBytes = 256 << 10;

  Block(int num_threads, int warp_size, size_t shared_bytes, Session& session, void (*kernel)(const void*),
        const void* arguments)
      : session_(session),
        warp_size_(warp_size),
        kernel_(kernel),
        arguments_(arguments),
        fibers_(size_t(num_threads)),
        states_(size_t(num_threads)),
        shadow_(shared_bytes) {
    shared_ = std::unique_ptr<std::byte[], Free>(
        static_cast<std::byte*>(std::aligned_alloc(64, shared_bytes / 64 * 64 + 64)));
    stacks_bytes_ = size_t(num_threads) * kStackBytes;
    stacks_ = mmap(nullptr, stacks_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    warp_epochs_.resize(size_t(ceil_div(num_threads, warp_size)));
    scratch_.resize(warp_epochs_.size() * kScratchBytes);
    for (int thread = 0; thread < num_threads; ++thread) {
      order_.push_back(thread);
      ucontext_t& context = fibers_[size_t(thread)].place.context;
      getcontext(&context);
      context.uc_stack.ss_sp = static_cast<std::byte*>(stacks_) + size_t(thread) * kStackBytes;
      context.uc_stack.ss_size = kStackBytes;
      makecontext(&context, &Block::run_thread, 0);
    }
  }
  ~Block() { munmap(stacks_, stacks_bytes_); }
  Block(const Block&) = delete;

  void run(int64_t block_x, int64_t block_y, int64_t num_blocks_y, std::mt19937_64& random) {
    block_idx_[0] = block_x;
    block_idx_[1] = block_y;
    num_blocks_y_ = num_blocks_y;
    std::memset(shared_.get(), 0xff, shadow_.size());
    ++epoch_;
    current() = this;
    for (Fiber& fiber : fibers_) fiber.copies.clear();
    std::fill(states_.begin(), states_.end(), State::ready);
    while (advance(random)) {
    }
    flush();
  }

  static Block*& current() {
    static thread_local Block* block = nullptr;
    return block;
  }

  int thread_idx() const { return thread_; }
  int64_t block_idx(int axis) const { return block_idx_[axis]; }
  int64_t num_blocks_y() const { return num_blocks_y_; }
  int warp_size() const { return warp_size_; }
  void* shared_memory(size_t bytes) {
    if (bytes > shadow_.size()) fail("the kernel uses more shared memory than it was launched with");
    return shared_.get();
  }
  std::byte* warp_scratch() { return scratch_.data() + size_t(thread_ / warp_size_) * kScratchBytes; }
  // Gives the others their turn.
  void pause(State state) {
    states_[size_t(thread_)] = state;
    Place::exchange(fibers_[size_t(thread_)].place, scheduler_);
  }
  void count_flops(int64_t flops) { session_.counts.flops += flops; }

  void access(Space space, const void* memory, size_t bytes) {
    const auto address = reinterpret_cast<uintptr_t>(memory);
    if (address % bytes != 0) fail("an access is not aligned to its size");
    if (space >= Space::shared_load) check_shared(space == Space::shared_store, address, bytes);
    if (session_.is_counting) fibers_[size_t(thread_)].accesses.push_back({address, uint32_t(bytes), space});
  }

  void copy_async(void* to, const void* from, size_t bytes, size_t valid_bytes) {
    access(Space::shared_store, to, bytes);
    auto& copies = fibers_[size_t(thread_)].copies;
    if (copies.empty()) copies.emplace_back();
    copies.back().push_back({to, from, bytes, valid_bytes});
  }
  void commit_copies() {
    auto& copies = fibers_[size_t(thread_)].copies;
    if (copies.empty()) copies.emplace_back();
    copies.emplace_back();
  }
  void wait_copies(size_t pending) {
    auto& copies = fibers_[size_t(thread_)].copies;
    while (copies.size() > pending + 1) {
      for (const PendingCopy& copy : copies.front()) {
        check_shared(true, reinterpret_cast<uintptr_t>(copy.to), copy.bytes);
        std::memset(copy.to, 0, copy.bytes);
        if (copy.valid_bytes) std::memcpy(copy.to, copy.from, copy.valid_bytes);
      }
      copies.erase(copies.begin());
    }
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  // Who wrote and read a byte of shared memory and when.
  struct Shadow {
    uint32_t write_epoch = 0, read_epoch = 0;
    uint32_t write_warp_epoch = 0, read_warp_epoch = 0;
    int writer = -1, reader = -1;
  };

  // Readers: threads of several warps; threads of warp w, kSeveralOfWarp - w.
  static constexpr int kSeveral = -2, kSeveralOfWarp = -3;

  // A fiber: its thread of one block after the other.
  static void run_thread() {
    Block& block = *current();
    for (;;) {
      block.kernel_(block.arguments_);
      block.pause(State::done);
    }
  }

  void fail(const std::string& what) {
    if (!session_.error.empty()) return;
    session_.error = what + " (block " + std::to_string(block_idx_[0]) + ", thread " + std::to_string(thread_) + ")";
  }

  void check_shared(bool is_store, uintptr_t address, size_t bytes) {
    const uintptr_t begin = address - reinterpret_cast<uintptr_t>(shared_.get());
    if (begin + bytes > shadow_.size()) return fail("an access is outside of shared memory");
    const uint32_t warp_epoch = warp_epochs_[size_t(thread_ / warp_size_)];
    for (size_t byte = begin; byte < begin + bytes; ++byte) {
      Shadow& shadow = shadow_[byte];
      const bool is_written = shadow.write_epoch == epoch_ && is_unordered(shadow.writer, shadow.write_warp_epoch);
      const bool is_read = shadow.read_epoch == epoch_ && is_unordered(shadow.reader, shadow.read_warp_epoch);
      if (is_written || (is_store && is_read)) {
        fail("threads " + std::to_string(is_written ? shadow.writer : shadow.reader) + " and " +
             std::to_string(thread_) + " race on byte " + std::to_string(byte) + " of shared memory");
      }
      if (is_store) {
        shadow.write_epoch = epoch_;
        shadow.write_warp_epoch = warp_epoch;
        shadow.writer = thread_;
      } else {
        const bool is_of_warp = warp_of(shadow.reader) == warp_of(thread_);
        shadow.reader = !is_read ? thread_ : is_of_warp ? kSeveralOfWarp - warp_of(thread_) : kSeveral;
        shadow.read_epoch = epoch_;
        shadow.read_warp_epoch = warp_epoch;
      }
    }
  }

  // -1: of none, or of several.
  int warp_of(int threads) const {
    return threads <= kSeveralOfWarp ? kSeveralOfWarp - threads : threads < 0 ? -1 : threads / warp_size_;
  }

  // Whether an access of `other` since the last block barrier has no barrier between it and the calling thread.
  bool is_unordered(int other, uint32_t warp_epoch) const {
    if (other == thread_) return false;
    return warp_of(other) != warp_of(thread_) || warp_epoch == warp_epochs_[size_t(thread_ / warp_size_)];
  }

  // Runs every ready thread up to its next barrier or its end, then opens barriers. False: the block is done.
  bool advance(std::mt19937_64& random) {
    if (session_.seed) std::shuffle(order_.begin(), order_.end(), random);
    for (const int thread : order_) {
      if (states_[size_t(thread)] != State::ready) continue;
      thread_ = thread;
      Place::exchange(scheduler_, fibers_[size_t(thread)].place);
    }
    size_t waiting = 0, done = 0;
    bool is_opened = false;
    for (size_t begin = 0; begin < states_.size(); begin += size_t(warp_size_)) {
      const auto first = states_.begin() + long(begin);
      const auto last = states_.begin() + long(std::min(states_.size(), begin + size_t(warp_size_)));
      if (std::count(first, last, State::at_warp_barrier) == last - first) {
        std::fill(first, last, State::ready);
        ++warp_epochs_[begin / size_t(warp_size_)];
        is_opened = true;
      }
      waiting += size_t(std::count(first, last, State::at_block_barrier));
      done += size_t(std::count(first, last, State::done));
    }
    if (is_opened) return true;
    if (done == fibers_.size()) return false;
    if (waiting != fibers_.size()) {
      fail("only a part of the threads reaches a barrier");
      return false;
    }
    std::fill(states_.begin(), states_.end(), State::ready);
    flush();
    ++epoch_;
    ++session_.counts.barriers;
    return true;
  }

  // Adds up the accesses since the last barrier.
  void flush() {
    if (!session_.is_counting) return;
    for (size_t begin = 0; begin < fibers_.size(); begin += size_t(warp_size_)) {
      const size_t end = std::min(fibers_.size(), begin + size_t(warp_size_));
      size_t longest = 0;
      for (size_t thread = begin; thread < end; ++thread) longest = std::max(longest, fibers_[thread].accesses.size());
      for (size_t i = 0; i < longest; ++i) {
        for (const Space space : {Space::global_load, Space::global_store, Space::shared_load, Space::shared_store}) {
          lanes_.clear();
          for (size_t thread = begin; thread < end; ++thread) {
            const auto& accesses = fibers_[thread].accesses;
            if (i < accesses.size() && accesses[i].space == space) lanes_.push_back(accesses[i]);
          }
          if (!lanes_.empty()) count_warp(space);
        }
      }
      for (size_t thread = begin; thread < end; ++thread) fibers_[thread].accesses.clear();
    }
  }

  // One access of a warp: the lanes that take part are in lanes_.
  void count_warp(Space space) {
    Counts& counts = session_.counts;
    int64_t bytes = 0;
    for (const Access& lane : lanes_) bytes += lane.bytes;
    if (space <= Space::global_store) {
      keys_.clear();
      for (const Access& lane : lanes_) {
        for (uintptr_t sector = lane.address / 32; sector <= (lane.address + lane.bytes - 1) / 32; ++sector) {
          keys_.push_back(sector);
        }
      }
      (space == Space::global_load ? counts.global_load_bytes : counts.global_store_bytes) += bytes;
      (space == Space::global_load ? counts.global_load_sectors : counts.global_store_sectors) += count_distinct();
      return;
    }
    (space == Space::shared_load ? counts.shared_load_bytes : counts.shared_store_bytes) += bytes;
    const size_t lanes_per_pass = std::max<size_t>(1, std::min<size_t>(32, 128 / lanes_[0].bytes));
    for (size_t first = 0; first < lanes_.size(); first += lanes_per_pass) {
      keys_.clear();
      for (size_t l = first; l < std::min(lanes_.size(), first + lanes_per_pass); ++l) {
        for (uint32_t byte = 0; byte < lanes_[l].bytes; byte += 4) keys_.push_back((lanes_[l].address + byte) / 4);
      }
      count_distinct();
      int64_t words_in_bank[32] = {}, most = 1;
      for (const uintptr_t word : keys_) most = std::max(most, ++words_in_bank[word % 32]);
      counts.bank_conflicts += most - 1;
    }
  }

  // Removes repeated keys_ and returns how many are left.
  int64_t count_distinct() {
    std::sort(keys_.begin(), keys_.end());
    keys_.erase(std::unique(keys_.begin(), keys_.end()), keys_.end());
    return int64_t(keys_.size());
  }

  Session& session_;
  int warp_size_;
  int thread_ = 0;
  int64_t block_idx_[2] = {}, num_blocks_y_ = 1;
  uint32_t epoch_ = 0;  // block barriers so far, and beginnings of blocks
  std::vector<uint32_t> warp_epochs_;
  void (*kernel_)(const void*);
  const void* arguments_;
  Place scheduler_;
  std::vector<Fiber> fibers_;
  std::vector<State> states_;
  std::vector<int> order_;
  std::vector<Shadow> shadow_;
  std::unique_ptr<std::byte[], Free> shared_;
  std::vector<std::byte> scratch_;
  void* stacks_;
  size_t stacks_bytes_;
  std::vector<Access> lanes_;
  std::vector<uintptr_t> keys_;
};

}  // namespace

int thread_idx() { return Block::current()->thread_idx(); }
int64_t block_idx(int axis) { return Block::current()->block_idx(axis); }
int64_t num_blocks_y() { return Block::current()->num_blocks_y(); }
void block_barrier() { Block::current()->pause(State::at_block_barrier); }
void warp_barrier() { Block::current()->pause(State::at_warp_barrier); }
void* shared_memory(size_t bytes) { return Block::current()->shared_memory(bytes); }
std::byte* warp_scratch() { return Block::current()->warp_scratch(); }

uint32_t lane_xor(uint32_t value, int mask) {
  auto* const values = reinterpret_cast<uint32_t*>(warp_scratch());
  const int lane = thread_idx() % Block::current()->warp_size();
  values[lane] = value;
  warp_barrier();
  const uint32_t result = values[lane ^ mask];
  warp_barrier();
  return result;
}

void access(Space space, const void* memory, size_t bytes) { Block::current()->access(space, memory, bytes); }
void copy_async(void* to, const void* from, int bytes, int valid_bytes) {
  Block::current()->copy_async(to, from, size_t(bytes), size_t(valid_bytes));
}
void commit_copies() { Block::current()->commit_copies(); }
void wait_copies(int pending) { Block::current()->wait_copies(size_t(pending)); }
void count_flops(int64_t flops) { Block::current()->count_flops(flops); }

namespace {

thread_local const char* launch_error = nullptr;

}  // namespace

const char* take_error() { return std::exchange(launch_error, nullptr); }

Executor executor_of(Session& session) {
  Executor executor{};
  executor.self = &session;
  executor.num_cus = 4;
  executor.warp_size = TILEDMM_WARP_SIZE;
  executor.allocate = [](void* self, size_t bytes) -> void* {
    Faults& faults = static_cast<Session*>(self)->faults;
    if (faults.num_allocations++ == faults.failing_allocation || bytes == 0) return nullptr;
    ++faults.num_live;
    return std::aligned_alloc(64, faults.is_dry ? 64 : (bytes + 63) / 64 * 64);
  };
  executor.release = [](void* self, void* memory) {
    --static_cast<Session*>(self)->faults.num_live;
    std::free(memory);
  };
  return executor;
}

bool launch(int64_t blocks, int64_t blocks_y, int num_threads, int warp_size, size_t shared_bytes,
            const Executor& executor, void (*kernel)(const void*), const void* arguments) {
  Session& session = *static_cast<Session*>(executor.self);
  if (session.faults.num_launches++ == session.faults.failing_launch) {
    launch_error = "the launch was to fail";
    return false;
  }
  if (session.faults.is_dry) return true;
  std::mt19937_64 random(session.seed);
  Block block(num_threads, warp_size, shared_bytes, session, kernel, arguments);
  for (int64_t y = 0; y < blocks_y; ++y) {
    for (int64_t x = 0; x < blocks && session.error.empty(); ++x) block.run(x, y, blocks_y, random);
  }
  return true;
}

}  // namespace tiledmm::host_gpu

// Runs GPU kernels on the CPU, from the same source, to check and to count them; it is no emulator of speed.
//
// The threads of a block are fibers that switch at barriers. Between two barriers they run one after the other in an
// order drawn from the seed, so that what depends on an order shows. Beyond that it finds by itself:
//   - races on shared memory: two threads, one address, at least one store, and no barrier of the block between, nor
//     one of the warp if they are of one;
//   - barriers that only a part of the block reaches;
//   - reads of shared memory that nothing wrote (they give NaN: the memory is filled with ones).
// Accesses outside of the operands are left to the address sanitizer.
//
// It counts what decides the speed of a kernel on a GPU. Accesses of the lanes of one warp belong together when each is
// its lane's i-th since the last barrier, which holds for kernels whose warps do not diverge other than at the edges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/executor.h"

namespace tiledmm::host_gpu {

enum class Space : uint8_t { global_load, global_store, shared_load, shared_store };

struct Counts {
  int64_t global_load_bytes, global_store_bytes;
  int64_t global_load_sectors, global_store_sectors;  // 32 bytes; per access of a warp, each sector once
  int64_t shared_load_bytes, shared_store_bytes;
  int64_t bank_conflicts;  // passes beyond the first: 32 banks of 4 bytes, 128 bytes a pass
  int64_t barriers;        // of a block
  int64_t flops;
};

// What fails in a run, and what the run asked for.
struct Faults {
  int64_t failing_allocation = -1, failing_launch = -1;         // counted from 0; -1: none
  int64_t num_allocations = 0, num_live = 0, num_launches = 0;  // live: not given back yet
  bool is_dry = false;                                          // launches succeed, but no kernel runs
};

// What one run has from and gives to its caller: Executor::self.
struct Session {
  uint64_t seed = 0;
  bool is_counting = false;
  Counts counts{};
  Faults faults;
  std::string error;  // the first one
};

inline constexpr size_t kScratchBytes = 64 * 256;  // of a warp

// ---- For the launcher
// An executor without a device: its kernels run in the session, its memory is that of malloc. As from torch's allocator
// of GPU memory, there are no 0 bytes.
Executor executor_of(Session& session);
// Why the calling thread's last launch failed, once; null: it did not.
const char* take_error();

// False where the session lets the launch fail.
bool launch(int64_t blocks, int64_t blocks_y, int num_threads, int warp_size, size_t shared_bytes,
            const Executor& executor, void (*kernel)(const void*), const void* arguments);
template <class Kernel>
bool launch(int64_t blocks, int64_t blocks_y, int num_threads, int warp_size, size_t shared_bytes,
            const Executor& executor, const Kernel& kernel) {
  const auto call = [](const void* self) { (*static_cast<const Kernel*>(self))(); };
  return launch(blocks, blocks_y, num_threads, warp_size, shared_bytes, executor, call, &kernel);
}

// ---- For the thread that runs
int thread_idx();
int64_t block_idx(int axis);
int64_t num_blocks_y();
void block_barrier();
void warp_barrier();
void* shared_memory(size_t bytes);
std::byte* warp_scratch();                    // kScratchBytes that the lanes of a warp have in common
uint32_t lane_xor(uint32_t value, int mask);  // of the lane whose number differs in the bits of `mask`
void access(Space space, const void* memory, size_t bytes);
// The memory must be free when a copy is issued, and is written when it is waited for.
void copy_async(void* to, const void* from, int bytes, int valid_bytes);
void commit_copies();
void wait_copies(int pending);
void count_flops(int64_t flops);

}  // namespace tiledmm::host_gpu

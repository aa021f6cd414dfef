// What the programs that run a rung's cases by the emulated Hopper have in common; included behind the rung's sources.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "core/executor.h"

// What code that knows no Hopper asks of the host executor.
namespace tiledmm::host_gpu {
void access(Space, const void*, size_t) {}
int thread_idx() { return int(threadIdx.x); }
int64_t block_idx(int) { return blockIdx.x; }
void block_barrier() { __syncthreads(); }
void warp_barrier() { __syncwarp(); }
uint32_t lane_xor(uint32_t value, int mask) { return __shfl_xor_sync(~0u, value, mask); }
void* shared_memory(size_t) { return cuda::dynamic_smem; }
void count_flops(int64_t) {}
bool launch(int64_t blocks, int64_t, int num_threads, int, size_t shared_bytes, const Executor&,
            void (*kernel)(const void*), const void* arguments) {
  if (shared_bytes) {
    const auto smem_of_thread = [] { return +cuda::dynamic_smem; };
    emulator::launch(dim3(), dim3(unsigned(blocks)), num_threads, int(shared_bytes), smem_of_thread,
                     [&] { kernel(arguments); });
    return true;
  }
  emulator::run_each_thread(blocks, num_threads, [&] { kernel(arguments); });
  return true;
}
}  // namespace tiledmm::host_gpu

namespace {

// The workspaces of a call. Aligned as memory of a GPU is; what is read before it is written is garbage, and what lies
// behind must stay as it was.
struct Workspace {
  static constexpr size_t kAlignment = 256, kGuard = 4096;
  size_t bytes;
  std::vector<char> memory;

  explicit Workspace(size_t bytes) : bytes(bytes), memory(bytes + kAlignment + kGuard, char(0xff)) {}
  char* data() { return memory.data() + (-reinterpret_cast<uintptr_t>(memory.data()) & (kAlignment - 1)); }
};
using Workspaces = std::vector<Workspace>;
void* allocate(void* self, size_t bytes) { return static_cast<Workspaces*>(self)->emplace_back(bytes).data(); }
void release(void* self, void* memory) {
  for (Workspace& own : *static_cast<Workspaces*>(self)) {
    const char* end = own.data() + own.bytes;
    if (own.data() == memory && std::any_of(end, end + Workspace::kGuard, [](char x) { return x != char(0xff); }))
      emulator::fail("something was written behind a workspace");
  }
}

tiledmm::Executor executor_of(Workspaces& workspaces, int num_sms) {
  tiledmm::Executor executor{};
  executor.self = &workspaces;
  executor.allocate = allocate;
  executor.release = release;
  executor.num_cus = num_sms;
  return executor;
}

// The cases whose numbers are the program's arguments, or all. The exit status says whether they are right.
template <class Case, size_t COUNT>
int run_chosen(int argc, char** argv, const Case (&cases)[COUNT], bool (*run)(const Case&)) {
  bool is_right = true;
  if (argc == 1) {
    for (const Case& own : cases) is_right = run(own) && is_right;
  }
  for (int i = 1; i < argc; ++i) is_right = run(cases[std::atoi(argv[i])]) && is_right;
  return is_right ? 0 : 1;
}

}  // namespace

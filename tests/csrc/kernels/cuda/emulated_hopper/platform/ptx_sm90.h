// The instructions of csrc/platform/ptx_sm90.h that rung 15 uses, emulated.
#pragma once

#include "emulator.h"

namespace tiledmm::cuda {
namespace {

alignas(1024) thread_local char dynamic_smem[emulator::kMaxSmem];

inline uint32_t smem_address(const void* pointer) {
  return uint32_t(static_cast<const char*>(pointer) - emulator::block().smem) + emulator::kFirstAddress;
}

// ---- barriers
inline void mbarrier_init(uint32_t barrier, uint32_t count) {
  emulator::block().barriers[barrier] = {int(count), int(count), 0, 0};
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive(uint32_t barrier) {
  emulator::Barrier& own = emulator::barrier_at(emulator::block(), barrier);
  if (--own.pending < 0) emulator::fail("too many arrivals");
  own.settle();
}
inline void mbarrier_arrive_cluster(uint32_t barrier) { mbarrier_arrive(barrier); }
inline void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  emulator::barrier_at(emulator::block(), barrier).bytes += bytes;
  mbarrier_arrive(barrier);
}
inline void mbarrier_wait_parity(uint32_t barrier, uint32_t parity) {
  const emulator::Barrier* own = &emulator::barrier_at(emulator::block(), barrier);
  emulator::wait_until([=] { return own->phase != parity; });
}
inline void named_barrier_sync(int id, int threads) { emulator::meet(emulator::block().named[id], threads); }
inline void named_barrier_arrive(int id, int threads) { emulator::block().named[id].arrive(threads); }
inline int cluster_threads() { return int(emulator::cluster().blocks.size() * emulator::block().fibers.size()); }
inline void cluster_sync() { emulator::meet(emulator::cluster().meeting, cluster_threads()); }
inline void cluster_arrive_relaxed() {
  emulator::current->cluster_turn = emulator::cluster().meeting.turn;
  emulator::cluster().meeting.arrive(cluster_threads());
}
inline void cluster_wait() {
  const uint64_t turn = emulator::current->cluster_turn;
  const emulator::Meeting* meeting = &emulator::cluster().meeting;
  emulator::wait_until([=] { return meeting->turn != turn; });
}

// ---- copies
enum class CachePolicy : uint64_t { evict_normal, evict_first };
inline void prefetch_tensormap(const CUtensorMap*) {}
inline void cp_async_bulk_tensor_3d_to_blocks(uint32_t smem, const CUtensorMap* map, int inner, int outer, int item,
                                              uint32_t barrier, uint32_t blocks, CachePolicy) {
  emulator::copy_box(smem, map, inner, outer, item, barrier, blocks);
}
inline void cp_async_bulk_tensor_3d(uint32_t smem, const CUtensorMap* map, int inner, int outer, int item,
                                    uint32_t barrier, CachePolicy) {
  const auto rank = emulator::block().index.x % emulator::cluster().blocks.size();
  emulator::copy_box(smem, map, inner, outer, item, barrier, 1u << rank);
}
inline void cp_async_bulk(uint32_t smem, const void* from, uint32_t bytes, uint32_t barrier) {
  emulator::copy_bytes(smem, from, bytes, barrier);
}
inline void cp_async_bulk_commit_group() {}
template <int PENDING>
void cp_async_bulk_wait_group_read() {}
inline void fence_proxy_async() {}

// ---- memory
inline uint32_t map_shared_cluster(uint32_t smem, int rank) {
  return smem | uint32_t(rank + 1) << emulator::kBlockShift;
}
inline float4 load_shared_cluster_vector(uint32_t address) { return emulator::load<float4>(address); }
inline float load_shared_float(uint32_t smem) { return emulator::load<float>(smem); }
inline uint2 load_shared_pair(uint32_t smem) { return emulator::load<uint2>(smem); }
inline uint4 load_shared_vector(uint32_t smem) { return emulator::load<uint4>(smem); }
inline void store_shared_pair(uint32_t smem, float first, float second) {
  const float values[2] = {first, second};
  std::memcpy(emulator::memory_at(emulator::block(), smem), values, sizeof values);
}
inline void store_shared_vector(uint32_t smem, uint4 v) {
  std::memcpy(emulator::memory_at(emulator::block(), smem), &v, sizeof v);
}

// ---- launches, registers
inline bool elect_sync() { return threadIdx.x % emulator::kWarp == 0; }
inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {}
template <int REGISTERS>
void setmaxnreg_inc() {}
template <int REGISTERS>
void setmaxnreg_dec() {}

// ---- the matrix unit
enum class Swizzle : uint64_t { none = 0, bytes_128 = 1, bytes_64 = 2 };
constexpr uint64_t matrix_descriptor(Swizzle swizzle, uint64_t leading_bytes, uint64_t stride_bytes) {
  return (uint64_t(swizzle) << 62) | ((stride_bytes >> 4) << 32) | ((leading_bytes >> 4) << 16);
}
inline uint32_t matrix_address(uint32_t smem) { return (smem & 0x3ffff) >> 4; }
inline void wgmma_fence() {}
inline void wgmma_commit_group() { emulator::current->groups.push_back(emulator::current->num_issued); }
template <int PENDING>
void wgmma_wait_group() {
  const auto& groups = emulator::current->groups;
  if (groups.size() <= PENDING) return;
  const uint64_t end = groups[groups.size() - 1 - PENDING];
  const uint64_t* executed = &emulator::block().executed[size_t(emulator::current->thread / emulator::kGroup)];
  emulator::wait_until([=] { return *executed >= end; });
}
template <int COUNT>
void fence_registers(float (&acc)[COUNT]) {
  asm volatile("" ::"r"(acc) : "memory");
}
template <int COUNT>
void forget_registers(float (&acc)[COUNT]) {
  std::fill(acc, acc + COUNT, emulator::kGarbage);
}
template <int COUNT>
void add(float (&total)[COUNT], const float (&sums)[COUNT]) {
  for (int i = 0; i < COUNT; ++i) total[i] += sums[i];
}
template <class T, int MMA_N, bool A_IS_M_MAJOR, bool B_IS_N_MAJOR>
void wgmma_mma_async(float (&acc)[MMA_N / 2], uint64_t desc_a, uint64_t desc_b, int adds_to_acc) {
  static_assert(std::is_same_v<T, __half> && !A_IS_M_MAJOR && !B_IS_N_MAJOR);
  emulator::issue(acc, MMA_N, desc_a, nullptr, desc_b, adds_to_acc);
}
template <int MMA_N>
void wgmma_mma_async_f16(float (&acc)[MMA_N / 2], const uint32_t (&a)[4], uint64_t desc_b, int adds_to_acc) {
  emulator::issue(acc, MMA_N, 0, a, desc_b, adds_to_acc);
}
[[noreturn]] inline void not_emulated() { emulator::fail("an instruction that is not emulated"); }
inline void stmatrix_x4(uint32_t, uint32_t, uint32_t, uint32_t, uint32_t) { not_emulated(); }
inline void cp_async_bulk_tensor_3d_store(const CUtensorMap*, int, int, int, uint32_t) { not_emulated(); }

}  // namespace
}  // namespace tiledmm::cuda

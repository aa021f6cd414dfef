// The instructions of csrc/kernels/cuda/shared/ptx_sm90.h that the wgmma kernels use, emulated.
#pragma once

#include "core/problem.h"
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
inline void arrive_from(emulator::Block& block, uint32_t barrier) {
  emulator::Barrier& own = emulator::barrier_at(block, barrier);
  if (--own.pending < 0) emulator::fail("too many arrivals");
  own.settle();
}
inline void mbarrier_arrive(uint32_t barrier) { arrive_from(emulator::block(), barrier); }
// Nobody waits until another block has got the signal, which may take long.
inline void mbarrier_arrive_cluster(uint32_t barrier) {
  constexpr unsigned kOnceIn = 4;
  emulator::Block* from = &emulator::block();
  emulator::barrier_at(*from, barrier);  // is there already
  if (emulator::cluster().random() % kOnceIn) return arrive_from(*from, barrier);
  emulator::cluster().copy_later([=] { arrive_from(*from, barrier); });
}
inline void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  emulator::barrier_at(emulator::block(), barrier).bytes += bytes;
  mbarrier_arrive(barrier);
}
inline void mbarrier_wait_parity(uint32_t barrier, uint32_t parity) {
  const emulator::Barrier* own = &emulator::barrier_at(emulator::block(), barrier);
  emulator::wait_until([=] { return own->phase != parity; });
}
inline void named_barrier_sync(int id, int threads) { emulator::meet(emulator::block().named[id], threads); }
inline void cluster_sync() { emulator::meet(emulator::cluster().meeting, emulator::cluster().num_threads); }
inline void cluster_arrive() {
  emulator::current->cluster_turn = emulator::cluster().meeting.turn;
  emulator::cluster().meeting.arrive(emulator::cluster().num_threads);
}
inline void cluster_arrive_relaxed() { cluster_arrive(); }
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
  emulator::copy_box(smem, map, inner, outer, item, barrier, 1u << emulator::block().rank);
}
inline void cp_async_bulk_tensor_3d_store(const CUtensorMap* map, int inner, int outer, int item, uint32_t smem) {
  emulator::store_box(map, inner, outer, item, smem);
}
inline void cp_async_bulk_commit_group() { emulator::current->store_groups.push_back(0); }
template <int PENDING>
void cp_async_bulk_wait_group_read() {
  const auto& groups = emulator::current->store_groups;
  if (groups.size() <= PENDING + 1) return;
  const auto end = groups.end() - 1 - PENDING;
  emulator::wait_until([=, &groups] { return std::all_of(groups.begin(), end, [](int num) { return num == 0; }); });
}
// A thread's own copies: what was there is lost at once, and words come as late as they may.
inline void cp_async_word(uint32_t smem, const float* from, bool is_inside) {
  emulator::store(smem, emulator::kGarbage);
  emulator::current->word_groups.back()[smem] = is_inside ? __ldg(from) : 0;
}
inline void cp_async_commit_group() { emulator::current->word_groups.emplace_back(); }
template <int PENDING>
void cp_async_wait_group() {
  auto& groups = emulator::current->word_groups;
  for (; groups.size() > PENDING + 1; groups.pop_front()) {
    for (const auto& [smem, word] : groups.front()) emulator::store(smem, word);
  }
}
inline void fence_proxy_async() { emulator::current->written.clear(); }

// ---- memory
inline uint32_t map_shared_cluster(uint32_t smem, int rank) {
  return smem | uint32_t(rank + 1) << emulator::kBlockShift;
}
inline float4 load_shared_cluster_vector(uint32_t address) { return emulator::load<float4>(address); }
inline float max_nan(float x, float y) { return x != x || y != y ? emulator::kGarbage : std::max(x, y); }
inline uint32_t load_shared_short(uint32_t smem) { return emulator::load<uint16_t>(smem); }
inline uint32_t load_shared_word(uint32_t smem) { return emulator::load<uint32_t>(smem); }
inline uint2 load_shared_pair(uint32_t smem) { return emulator::load<uint2>(smem); }
inline uint4 load_shared_vector(uint32_t smem) { return emulator::load<uint4>(smem); }
inline void store_shared_word(uint32_t smem, uint32_t word) { emulator::store(smem, word); }
inline void store_shared_pair(uint32_t smem, float first, float second) {
  emulator::store(smem, make_float2(first, second));
}
inline void store_shared_vector(uint32_t smem, uint4 v) { emulator::store(smem, v); }
// A lane has two neighbours of row lane / 4 of each matrix.
inline void stmatrix_x4(uint32_t smem, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  const std::vector<uint32_t> rows = emulator::exchange(smem);
  const uint32_t lane = threadIdx.x % emulator::kWarp, words[4] = {r0, r1, r2, r3};
  for (uint32_t i = 0; i < 4; ++i) emulator::store(rows[i * 8 + lane / 4] + lane % 4 * 4, words[i]);
}
inline void stmatrix_x4_trans(uint32_t smem, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  const std::vector<uint32_t> rows = emulator::exchange(smem);
  const uint32_t lane = threadIdx.x % emulator::kWarp, words[4] = {r0, r1, r2, r3};
  for (uint32_t i = 0; i < 8; ++i)
    emulator::store(rows[i / 2 * 8 + lane % 4 * 2 + i % 2] + lane / 4 * 2, uint16_t(words[i / 2] >> i % 2 * 16));
}

// ---- launches, registers
inline bool elect_sync() { return threadIdx.x % emulator::kWarp == 0; }
inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() { emulator::current->knows_of_earlier_kernels = true; }
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
inline uint64_t matrix_descriptor_at(uint64_t fixed, uint32_t address) {
  return (fixed & 0xffffffff00000000) | (uint32_t(fixed) + address);
}
inline void wgmma_fence() { emulator::current->is_fenced = true; }
inline void wgmma_commit_group() { emulator::current->groups.push_back(emulator::current->num_issued); }
template <int PENDING>
void wgmma_wait_group() {
  const auto& groups = emulator::current->groups;
  emulator::current->is_fenced = false;  // accumulators may be used from here on
  if (groups.size() <= PENDING) return;
  const uint64_t end = groups[groups.size() - 1 - PENDING];
  const uint64_t* executed = &emulator::block().executed[size_t(emulator::current->thread / emulator::kWarp)];
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
inline void add(float& total, float sum) { total += sum; }
inline void add_scaled(float& total, float sum, float factor) { total = std::fma(sum, factor, total); }
template <class T, int MMA_N, bool A_IS_M_MAJOR, bool B_IS_N_MAJOR>
void wgmma_mma_async(float (&acc)[MMA_N / 2], uint64_t desc_a, uint64_t desc_b, int adds_to_acc) {
  constexpr emulator::Element kElement = std::is_same_v<T, __half> ? emulator::kHalf : emulator::kBFloat16;
  emulator::issue(acc, MMA_N, kElement, {desc_a, !A_IS_M_MAJOR}, nullptr, {desc_b, !B_IS_N_MAJOR}, adds_to_acc);
}
template <int MMA_N, DType TYPE_A, DType TYPE_B>
void wgmma_mma_async_fp8(float (&acc)[MMA_N / 2], uint64_t desc_a, uint64_t desc_b, int adds_to_acc) {
  constexpr auto element_of = [](DType dtype) { return dtype == DType::e4m3 ? emulator::kE4M3 : emulator::kE5M2; };
  emulator::issue(acc, MMA_N, {element_of(TYPE_A), element_of(TYPE_B)}, {desc_a, true}, nullptr, {desc_b, true},
                  adds_to_acc);
}
template <class T, int MMA_N>
void wgmma_mma_async_fragment(float (&acc)[MMA_N / 2], const uint32_t (&a)[4], uint64_t desc_b, int adds_to_acc) {
  constexpr emulator::Element kElement = std::is_same_v<T, __half> ? emulator::kHalf : emulator::kBFloat16;
  emulator::issue(acc, MMA_N, kElement, {}, a, {desc_b, true}, adds_to_acc);
}
template <int MMA_N>
void wgmma_mma_async_tf32(float (&acc)[MMA_N / 2], uint64_t desc_a, uint64_t desc_b, int adds_to_acc) {
  emulator::issue(acc, MMA_N, emulator::kTf32, {desc_a, true}, nullptr, {desc_b, true}, adds_to_acc);
}
template <int MMA_N>
void wgmma_mma_async_tf32(float (&acc)[MMA_N / 2], const uint32_t (&a)[4], uint64_t desc_b, int adds_to_acc) {
  emulator::issue(acc, MMA_N, emulator::kTf32, {}, a, {desc_b, true}, adds_to_acc);
}

}  // namespace
}  // namespace tiledmm::cuda

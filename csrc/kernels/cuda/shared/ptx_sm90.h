// PTX of Hopper (sm_90a): one instruction, one function of its name. Documented in the PTX ISA manual
// (docs.nvidia.com/cuda/parallel-thread-execution), in the section that each function names.
//
// "smem" addresses are 32-bit addresses in the window .shared (smem_address).
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "core/problem.h"

namespace tiledmm::cuda {
namespace {

#define TILEDMM_PTX __device__ __forceinline__

TILEDMM_PTX uint32_t smem_address(const void* pointer) { return uint32_t(__cvta_generic_to_shared(pointer)); }

// ---- mbarrier: "Parallel Synchronization and Communication Instructions: mbarrier" ----

TILEDMM_PTX void mbarrier_init(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Makes initialised barriers visible to the copy engine: "membar/fence".
TILEDMM_PTX void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

TILEDMM_PTX void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

TILEDMM_PTX void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// At an address that map_shared_cluster gave. A release at the cluster's scope would wait for all memory accesses of
// the thread each time (MEMBAR.ALL.GPU).
TILEDMM_PTX void mbarrier_arrive_cluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

TILEDMM_PTX bool mbarrier_try_wait_parity(uint32_t barrier, uint32_t parity) {
  uint32_t is_done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.b32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(is_done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return is_done;
}

// Until the phase of this parity has completed.
TILEDMM_PTX void mbarrier_wait_parity(uint32_t barrier, uint32_t parity) {
  while (!mbarrier_try_wait_parity(barrier, parity)) {
  }
}

// ---- TMA: "Data Movement and Conversion Instructions: Tensor copy" ----

TILEDMM_PTX void prefetch_tensormap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// What the second-level cache gives up first: createpolicy.fractional with 1.0 of all accesses. Constants, as CUTLASS
// has them (TMA::CacheHintSm90).
enum class CachePolicy : uint64_t { evict_normal = 0x1000000000000000, evict_first = 0x12F0000000000000 };

// Box at (inner, outer, item) of the tensor to smem; its bytes count on `barrier`.
TILEDMM_PTX void cp_async_bulk_tensor_3d(uint32_t smem, const CUtensorMap* map, int inner, int outer, int item,
                                         uint32_t barrier, CachePolicy policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%2, %3, %4}], [%5], %6;" ::"r"(smem),
      "l"(map), "r"(inner), "r"(outer), "r"(item), "r"(barrier), "l"(policy)
      : "memory");
}

// The copy goes to the blocks of the cluster whose bits are set, to one place in the shared memory of each, and each
// block's own barrier counts it.
TILEDMM_PTX void cp_async_bulk_tensor_3d_to_blocks(uint32_t smem, const CUtensorMap* map, int inner, int outer,
                                                   int item, uint32_t barrier, uint32_t blocks, CachePolicy policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4}], [%5], %6, %7;" ::"r"(smem),
      "l"(map), "r"(inner), "r"(outer), "r"(item), "r"(barrier), "h"(uint16_t(blocks)), "l"(policy)
      : "memory");
}

// Box from smem to the tensor; what lies outside of the tensor is not written.
TILEDMM_PTX void cp_async_bulk_tensor_3d_store(const CUtensorMap* map, int inner, int outer, int item, uint32_t smem) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map), "r"(inner),
               "r"(outer), "r"(item), "r"(smem)
               : "memory");
}

TILEDMM_PTX void cp_async_bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until at most PENDING groups of this thread still read their source.
template <int PENDING>
TILEDMM_PTX void cp_async_bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Orders this thread's accesses to shared memory before those of the copy engine and the matrix unit: "fence.proxy".
TILEDMM_PTX void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- clusters: "mapa", "ld", "barrier.cluster" ----

// The place of the same shared memory in block `rank` of the cluster.
TILEDMM_PTX uint32_t map_shared_cluster(uint32_t smem, int rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(smem), "r"(rank));
  return address;
}

TILEDMM_PTX float4 load_shared_cluster_vector(uint32_t address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// By all threads of the cluster that have not exited; what they wrote before is visible behind it.
TILEDMM_PTX void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Its halves; the first one also without making visible what was written, which waits for all of it.
TILEDMM_PTX void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
TILEDMM_PTX void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
TILEDMM_PTX void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// By a thread's own copies: "cp.async" of a word, or of a zero, whose address is not read.
TILEDMM_PTX void cp_async_word(uint32_t smem, const float* from, bool is_inside) {
  asm volatile(
      "{\n"
      ".reg .pred beyond;\n"
      "setp.eq.b32 beyond, %2, 0;\n"
      "cp.async.ca.shared.global [%0], [%1], 4, beyond;\n"
      "}\n" ::"r"(smem),
      "l"(from), "r"(int(is_inside))
      : "memory");
}
TILEDMM_PTX void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All but the thread's PENDING newest groups have arrived; others see them after a barrier.
template <int PENDING>
TILEDMM_PTX void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ---- barriers, launches, registers ----

// Some of the block's warps: "barrier{.cta}".
TILEDMM_PTX void named_barrier_sync(int id, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// True in one thread of a converged warp, which lets the compiler issue that thread's copies without a loop over lanes:
// "elect.sync".
TILEDMM_PTX bool elect_sync() {
  uint32_t is_elected;
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "selp.b32 %0, 1, 0, elected;\n"
      "}\n"
      : "=r"(is_elected));
  return is_elected;
}

// "griddepcontrol": kernels launched behind this one may start to set up; until those before it are done and visible.
TILEDMM_PTX void griddepcontrol_launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
TILEDMM_PTX void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// "setmaxnreg": by all warps of a warpgroup.
template <int REGISTERS>
TILEDMM_PTX void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
TILEDMM_PTX void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// 16 bits, in the lower half.
TILEDMM_PTX uint32_t load_shared_short(uint32_t smem) {
  uint16_t bits;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(smem) : "memory");
  return bits;
}

TILEDMM_PTX uint32_t load_shared_word(uint32_t smem) {
  uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(smem) : "memory");
  return word;
}

TILEDMM_PTX uint2 load_shared_pair(uint32_t smem) {
  uint2 pair;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(pair.x), "=r"(pair.y) : "r"(smem) : "memory");
  return pair;
}

TILEDMM_PTX uint4 load_shared_vector(uint32_t smem) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(smem)
               : "memory");
  return v;
}

TILEDMM_PTX void store_shared_word(uint32_t smem, uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(smem), "r"(word) : "memory");
}

TILEDMM_PTX void store_shared_pair(uint32_t smem, float first, float second) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(smem), "f"(first), "f"(second) : "memory");
}

TILEDMM_PTX void store_shared_vector(uint32_t smem, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(smem), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8: "stmatrix".
TILEDMM_PTX void stmatrix_x4(uint32_t smem, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}

// The same, each matrix transposed.
TILEDMM_PTX void stmatrix_x4_trans(uint32_t smem, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}

// ---- wgmma: "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions" ----

TILEDMM_PTX void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TILEDMM_PTX void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int PENDING>
TILEDMM_PTX void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The larger one, or a nan if one is: "max".
TILEDMM_PTX float max_nan(float x, float y) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(x), "f"(y));
  return larger;
}

// Accumulators are read by the compiler's own instructions only after this.
template <int COUNT>
TILEDMM_PTX void fence_registers(float (&acc)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(acc[i])::"memory");
}

// Whatever they held is needed no longer, though the next wgmma, which may add to them, seems to read it.
template <int COUNT>
TILEDMM_PTX void forget_registers(float (&acc)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "=f"(acc[i]));
}

// At this place of the program, not where the compiler would rather have it.
template <int COUNT>
TILEDMM_PTX void add(float (&total)[COUNT], const float (&sums)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("add.rn.f32 %0, %0, %1;" : "+f"(total[i]) : "f"(sums[i]));
}

// One value is added, as it is or times a factor.
TILEDMM_PTX void add(float& total, float sum) { asm volatile("add.rn.f32 %0, %0, %1;" : "+f"(total) : "f"(sum)); }
TILEDMM_PTX void add_scaled(float& total, float sum, float factor) {
  asm volatile("fma.rn.f32 %0, %1, %2, %0;" : "+f"(total) : "f"(sum), "f"(factor));
}

// Swizzle modes of a matrix descriptor ("Matrix-Descriptor Format").
enum class Swizzle : uint64_t { none = 0, bytes_128 = 1, bytes_64 = 2 };

// Without the address: strides in bytes. K-major: stride_bytes between groups of 8 rows, leading_bytes unused.
// MN-major: leading_bytes between swizzle-wide groups of rows, stride_bytes between groups of 8 along k.
constexpr uint64_t matrix_descriptor(Swizzle swizzle, uint64_t leading_bytes, uint64_t stride_bytes) {
  return (uint64_t(swizzle) << 62) | ((stride_bytes >> 4) << 32) | ((leading_bytes >> 4) << 16);
}
// Its address field. In a cluster, upper bits of an address name the block; they do not belong here.
TILEDMM_PTX uint32_t matrix_address(uint32_t smem) { return (smem & 0x3ffff) >> 4; }
// The descriptor with the address: the halves are put together as they lie in registers.
TILEDMM_PTX uint64_t matrix_descriptor_at(uint64_t fixed, uint32_t address) {
  return (fixed & 0xffffffff00000000) | (uint32_t(fixed) + address);
}

#define TILEDMM_REGS_4 "%0,%1,%2,%3"
#define TILEDMM_REGS_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define TILEDMM_REGS_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define TILEDMM_REGS_32 TILEDMM_REGS_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define TILEDMM_REGS_40 TILEDMM_REGS_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define TILEDMM_REGS_48 TILEDMM_REGS_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define TILEDMM_REGS_64 TILEDMM_REGS_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define TILEDMM_REGS_80 TILEDMM_REGS_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define TILEDMM_REGS_84 TILEDMM_REGS_80 ",%80,%81,%82,%83"
#define TILEDMM_REGS_88 TILEDMM_REGS_80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define TILEDMM_REGS_96 TILEDMM_REGS_80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define TILEDMM_REGS_104 TILEDMM_REGS_96 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define TILEDMM_REGS_112 TILEDMM_REGS_96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define TILEDMM_REGS_128 \
  TILEDMM_REGS_112 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

#define TILEDMM_ACC_QUAD(i) "+f"(acc[i]), "+f"(acc[i + 1]), "+f"(acc[i + 2]), "+f"(acc[i + 3])
#define TILEDMM_ACC_OF_16(i) \
  TILEDMM_ACC_QUAD(i), TILEDMM_ACC_QUAD(i + 4), TILEDMM_ACC_QUAD(i + 8), TILEDMM_ACC_QUAD(i + 12)
#define TILEDMM_ACC_4 TILEDMM_ACC_QUAD(0)
#define TILEDMM_ACC_8 TILEDMM_ACC_QUAD(0), TILEDMM_ACC_QUAD(4)
#define TILEDMM_ACC_16 TILEDMM_ACC_OF_16(0)
#define TILEDMM_ACC_32 TILEDMM_ACC_16, TILEDMM_ACC_OF_16(16)
#define TILEDMM_ACC_40 TILEDMM_ACC_32, TILEDMM_ACC_QUAD(32), TILEDMM_ACC_QUAD(36)
#define TILEDMM_ACC_48 TILEDMM_ACC_32, TILEDMM_ACC_OF_16(32)
#define TILEDMM_ACC_64 TILEDMM_ACC_48, TILEDMM_ACC_OF_16(48)
#define TILEDMM_ACC_80 TILEDMM_ACC_64, TILEDMM_ACC_OF_16(64)
#define TILEDMM_ACC_84 TILEDMM_ACC_80, TILEDMM_ACC_QUAD(80)
#define TILEDMM_ACC_88 TILEDMM_ACC_80, TILEDMM_ACC_QUAD(80), TILEDMM_ACC_QUAD(84)
#define TILEDMM_ACC_96 TILEDMM_ACC_80, TILEDMM_ACC_OF_16(80)
#define TILEDMM_ACC_104 TILEDMM_ACC_96, TILEDMM_ACC_QUAD(96), TILEDMM_ACC_QUAD(100)
#define TILEDMM_ACC_112 TILEDMM_ACC_96, TILEDMM_ACC_OF_16(96)
#define TILEDMM_ACC_128 TILEDMM_ACC_112, TILEDMM_ACC_OF_16(112)

// COUNT accumulators, then the operands' numbers: descriptors of A and B, predicate, transpositions of A and B.
#define TILEDMM_WGMMA(N, TYPE, COUNT, A, B, ADDS, TNSP_A, TNSP_B)                                        \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " ADDS                                            \
               ", 0;\n"                                                                                  \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" TILEDMM_REGS_##COUNT \
               "}, " A ", " B ", adds, 1, 1, " TNSP_A ", " TNSP_B ";\n}\n"                               \
               : TILEDMM_ACC_##COUNT                                                                     \
               : "l"(desc_a), "l"(desc_b), "r"(adds_to_acc), "n"(int(A_IS_M_MAJOR)), "n"(int(B_IS_N_MAJOR)))
#define TILEDMM_WGMMA_OF(N, COUNT, A, B, ADDS, TNSP_A, TNSP_B)     \
  if constexpr (MMA_N == N) {                                      \
    if constexpr (std::is_same_v<T, __nv_bfloat16>)                \
      TILEDMM_WGMMA(N, "bf16", COUNT, A, B, ADDS, TNSP_A, TNSP_B); \
    else                                                           \
      TILEDMM_WGMMA(N, "f16", COUNT, A, B, ADDS, TNSP_A, TNSP_B);  \
  }

// acc (+)= A * B, A of 64 x 16, B of 16 x MMA_N: "wgmma.mma_async". Thread t of the warpgroup holds, for j < MMA_N / 8,
// acc[4 * j + 2 * h + i] = D[16 * (t / 32) + t % 32 / 4 + 8 * h][8 * j + 2 * (t % 4) + i].
template <class T, int MMA_N, bool A_IS_M_MAJOR, bool B_IS_N_MAJOR>
TILEDMM_PTX void wgmma_mma_async(float (&acc)[MMA_N / 2], uint64_t desc_a, uint64_t desc_b, int adds_to_acc) {
  static_assert(MMA_N == 8 || MMA_N == 32 || MMA_N == 64 || MMA_N == 96 || MMA_N == 128 || MMA_N == 160 ||
                    MMA_N == 168 || MMA_N == 176 || MMA_N == 192 || MMA_N == 208 || MMA_N == 224 || MMA_N == 256,
                "a width that is written out below");
  TILEDMM_WGMMA_OF(8, 4, "%4", "%5", "%6", "%7", "%8")
  TILEDMM_WGMMA_OF(32, 16, "%16", "%17", "%18", "%19", "%20")
  TILEDMM_WGMMA_OF(64, 32, "%32", "%33", "%34", "%35", "%36")
  TILEDMM_WGMMA_OF(96, 48, "%48", "%49", "%50", "%51", "%52")
  TILEDMM_WGMMA_OF(128, 64, "%64", "%65", "%66", "%67", "%68")
  TILEDMM_WGMMA_OF(160, 80, "%80", "%81", "%82", "%83", "%84")
  TILEDMM_WGMMA_OF(168, 84, "%84", "%85", "%86", "%87", "%88")
  TILEDMM_WGMMA_OF(176, 88, "%88", "%89", "%90", "%91", "%92")
  TILEDMM_WGMMA_OF(192, 96, "%96", "%97", "%98", "%99", "%100")
  TILEDMM_WGMMA_OF(208, 104, "%104", "%105", "%106", "%107", "%108")
  TILEDMM_WGMMA_OF(224, 112, "%112", "%113", "%114", "%115", "%116")
  TILEDMM_WGMMA_OF(256, 128, "%128", "%129", "%130", "%131", "%132")
}

// wgmma for fp32 operands rounded to tf32, 8 elements along k; both are k-major.
#define TILEDMM_WGMMA_TF32(N, COUNT, A, B, ADDS, ...)                                                                \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " ADDS                                                        \
               ", 0;\n"                                                                                              \
               "wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 {" TILEDMM_REGS_##COUNT "}, " A ", " B       \
                                                                                                ", adds, 1, 1;\n}\n" \
               : TILEDMM_ACC_##COUNT                                                                                 \
               : __VA_ARGS__, "l"(desc_b), "r"(adds_to_acc))

// acc (+)= A * B, A of 64 x 8, B of 8 x MMA_N: the accumulators lie as above.
template <int MMA_N>
TILEDMM_PTX void wgmma_mma_async_tf32(float (&acc)[MMA_N / 2], uint64_t desc_a, uint64_t desc_b, int adds_to_acc) {
  static_assert(MMA_N == 32 || MMA_N == 64 || MMA_N == 128 || MMA_N == 256, "written out below");
  if constexpr (MMA_N == 32) TILEDMM_WGMMA_TF32(32, 16, "%16", "%17", "%18", "l"(desc_a));
  if constexpr (MMA_N == 64) TILEDMM_WGMMA_TF32(64, 32, "%32", "%33", "%34", "l"(desc_a));
  if constexpr (MMA_N == 128) TILEDMM_WGMMA_TF32(128, 64, "%64", "%65", "%66", "l"(desc_a));
  if constexpr (MMA_N == 256) TILEDMM_WGMMA_TF32(256, 128, "%128", "%129", "%130", "l"(desc_a));
}

// wgmma with A in registers. Thread t of the warpgroup holds, with r = 16 * (t / 32) + t % 32 / 4 and c = t % 4,
// a[0] = A[r][c], a[1] = A[r + 8][c], a[2] = A[r][c + 4], a[3] = A[r + 8][c + 4].
#define TILEDMM_FRAGMENT "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
template <int MMA_N>
TILEDMM_PTX void wgmma_mma_async_tf32(float (&acc)[MMA_N / 2], const uint32_t (&a)[4], uint64_t desc_b,
                                      int adds_to_acc) {
  static_assert(MMA_N == 32 || MMA_N == 64 || MMA_N == 128 || MMA_N == 256, "written out below");
  if constexpr (MMA_N == 32) TILEDMM_WGMMA_TF32(32, 16, "{%16, %17, %18, %19}", "%20", "%21", TILEDMM_FRAGMENT);
  if constexpr (MMA_N == 64) TILEDMM_WGMMA_TF32(64, 32, "{%32, %33, %34, %35}", "%36", "%37", TILEDMM_FRAGMENT);
  if constexpr (MMA_N == 128) TILEDMM_WGMMA_TF32(128, 64, "{%64, %65, %66, %67}", "%68", "%69", TILEDMM_FRAGMENT);
  if constexpr (MMA_N == 256)
    TILEDMM_WGMMA_TF32(256, 128, "{%128, %129, %130, %131}", "%132", "%133", TILEDMM_FRAGMENT);
}

// Operands of 16 bits with A in registers. Thread t of the warpgroup holds pairs along k, the first in the low half,
// with r = 16 * (t / 32) + t % 32 / 4 and c = 2 * (t % 4): a[0] = A[r][c], a[1] = A[r + 8][c], a[2] = A[r][c + 8], a[3]
// = A[r + 8][c + 8]. B is k-major.
#define TILEDMM_WGMMA_FRAGMENT(N, TYPE, COUNT, A, B, ADDS)                                               \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " ADDS                                            \
               ", 0;\n"                                                                                  \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" TILEDMM_REGS_##COUNT \
               "}, " A ", " B ", adds, 1, 1, 0;\n}\n"                                                    \
               : TILEDMM_ACC_##COUNT                                                                     \
               : TILEDMM_FRAGMENT, "l"(desc_b), "r"(adds_to_acc))
#define TILEDMM_WGMMA_FRAGMENT_OF(N, COUNT, A, B, ADDS)     \
  if constexpr (MMA_N == N) {                               \
    if constexpr (std::is_same_v<T, __nv_bfloat16>)         \
      TILEDMM_WGMMA_FRAGMENT(N, "bf16", COUNT, A, B, ADDS); \
    else                                                    \
      TILEDMM_WGMMA_FRAGMENT(N, "f16", COUNT, A, B, ADDS);  \
  }
template <class T, int MMA_N>
TILEDMM_PTX void wgmma_mma_async_fragment(float (&acc)[MMA_N / 2], const uint32_t (&a)[4], uint64_t desc_b,
                                          int adds_to_acc) {
  static_assert(MMA_N == 8 || MMA_N == 16 || MMA_N == 32 || MMA_N == 64 || MMA_N == 128 || MMA_N == 160 || MMA_N == 256,
                "written out below");
  TILEDMM_WGMMA_FRAGMENT_OF(8, 4, "{%4, %5, %6, %7}", "%8", "%9")
  TILEDMM_WGMMA_FRAGMENT_OF(16, 8, "{%8, %9, %10, %11}", "%12", "%13")
  TILEDMM_WGMMA_FRAGMENT_OF(32, 16, "{%16, %17, %18, %19}", "%20", "%21")
  TILEDMM_WGMMA_FRAGMENT_OF(64, 32, "{%32, %33, %34, %35}", "%36", "%37")
  TILEDMM_WGMMA_FRAGMENT_OF(128, 64, "{%64, %65, %66, %67}", "%68", "%69")
  TILEDMM_WGMMA_FRAGMENT_OF(160, 80, "{%80, %81, %82, %83}", "%84", "%85")
  TILEDMM_WGMMA_FRAGMENT_OF(256, 128, "{%128, %129, %130, %131}", "%132", "%133")
}

// acc (+)= A * B in 8 bits, A of 64 x 32, B of 32 x MMA_N, both along k.
#define TILEDMM_WGMMA_FP8(N, TYPE_A, TYPE_B, COUNT, A, B, ADDS)                                              \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " ADDS                                                \
               ", 0;\n"                                                                                      \
               "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." TYPE_A "." TYPE_B " {" TILEDMM_REGS_##COUNT \
               "}, " A ", " B ", adds, 1, 1;\n}\n"                                                           \
               : TILEDMM_ACC_##COUNT                                                                         \
               : "l"(desc_a), "l"(desc_b), "r"(adds_to_acc))
#define TILEDMM_WGMMA_FP8_OF(N, COUNT, A, B, ADDS)                \
  if constexpr (MMA_N == N) {                                     \
    if constexpr (TYPE_A == DType::e4m3 && TYPE_B == DType::e4m3) \
      TILEDMM_WGMMA_FP8(N, "e4m3", "e4m3", COUNT, A, B, ADDS);    \
    else if constexpr (TYPE_A == DType::e4m3)                     \
      TILEDMM_WGMMA_FP8(N, "e4m3", "e5m2", COUNT, A, B, ADDS);    \
    else if constexpr (TYPE_B == DType::e4m3)                     \
      TILEDMM_WGMMA_FP8(N, "e5m2", "e4m3", COUNT, A, B, ADDS);    \
    else                                                          \
      TILEDMM_WGMMA_FP8(N, "e5m2", "e5m2", COUNT, A, B, ADDS);    \
  }
template <int MMA_N, DType TYPE_A, DType TYPE_B>
TILEDMM_PTX void wgmma_mma_async_fp8(float (&acc)[MMA_N / 2], uint64_t desc_a, uint64_t desc_b, int adds_to_acc) {
  static_assert(MMA_N == 32 || MMA_N == 64 || MMA_N == 80 || MMA_N == 96 || MMA_N == 128, "written out below");
  TILEDMM_WGMMA_FP8_OF(32, 16, "%16", "%17", "%18")
  TILEDMM_WGMMA_FP8_OF(64, 32, "%32", "%33", "%34")
  TILEDMM_WGMMA_FP8_OF(80, 40, "%40", "%41", "%42")
  TILEDMM_WGMMA_FP8_OF(96, 48, "%48", "%49", "%50")
  TILEDMM_WGMMA_FP8_OF(128, 64, "%64", "%65", "%66")
}

#undef TILEDMM_PTX

}  // namespace
}  // namespace tiledmm::cuda

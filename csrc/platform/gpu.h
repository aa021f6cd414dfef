// What a GPU kernel needs from its platform: CUDA, HIP, or the host executor (host_gpu.h). The only file that tells
// them apart; kernels are written against the names below and compiled by nvcc, clang and g++ unchanged.
//
// HIP is compiled with ROCm's headers, or, where TILEDMM_HIP_STANDALONE is defined, with none at all: what is needed of
// them is a few attributes and builtins of clang.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#if defined(TILEDMM_HOST_GPU)
#define TILEDMM_SCALAR_ATTRIBUTES
#elif defined(__CUDACC__) && !defined(__HIP__)
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define TILEDMM_SCALAR_ATTRIBUTES __host__ __device__
#elif defined(TILEDMM_HIP_STANDALONE)
#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define TILEDMM_SCALAR_ATTRIBUTES __host__ __device__
struct dim3 {
  unsigned x, y, z;
};
extern "C" {
int hipLaunchKernel(const void* function, dim3 grid, dim3 block, void** args, size_t shared_bytes, void* stream);
int hipSetDevice(int device);
int hipGetDeviceCount(int* count);
int hipDeviceGetAttribute(int* value, int attribute, int device);
int hipGetLastError();
const char* hipGetErrorString(int error);
int __hipPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void* stream);
int __hipPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void** stream);
}
#else
#include <hip/hip_runtime.h>
#define TILEDMM_SCALAR_ATTRIBUTES __host__ __device__
#endif

#include "core/executor.h"
#include "platform/device.h"
#include "platform/element.h"
#include "platform/float8.h"

// TILEDMM_IN_PLACE: of a kernel's parameter that is read where it is, by a variable index, too.
#if defined(TILEDMM_HOST_GPU)
#define TILEDMM_DEVICE inline
#define TILEDMM_KERNEL(num_threads, blocks_per_cu) void
#define TILEDMM_UNROLL
#define TILEDMM_NO_UNROLL
#define TILEDMM_OUT_OF_LINE
#define TILEDMM_IN_PLACE
#elif defined(__CUDACC__) && !defined(__HIP__)
#define TILEDMM_DEVICE __device__ __forceinline__
#define TILEDMM_KERNEL(num_threads, blocks_per_cu) __global__ void __launch_bounds__(num_threads, blocks_per_cu)
#define TILEDMM_UNROLL _Pragma("unroll")
#define TILEDMM_NO_UNROLL _Pragma("unroll 1")
#define TILEDMM_OUT_OF_LINE __device__ __noinline__
#define TILEDMM_IN_PLACE const __grid_constant__
#else
#define TILEDMM_DEVICE __device__ inline __attribute__((always_inline))
// Without the first, clang assumes 1024 threads, which is a quarter of the registers. The second counts warps of one of
// the four SIMDs of a CU.
#define TILEDMM_KERNEL(num_threads, blocks_per_cu)                      \
  __attribute__((amdgpu_flat_work_group_size(num_threads, num_threads), \
                 amdgpu_waves_per_eu(::tiledmm::gpu::warps_per_simd(num_threads, blocks_per_cu)))) __global__ void
#define TILEDMM_UNROLL _Pragma("unroll")
#define TILEDMM_NO_UNROLL _Pragma("unroll 1")
#define TILEDMM_IN_PLACE const
#endif

#if defined(TILEDMM_HOST_GPU)
#include "platform/host_gpu.h"
#endif

namespace tiledmm::gpu {

// Tile sizes may differ where registers do.
#if defined(__HIP__)
inline constexpr bool kIsAmd = true, kIsNvidia = false;
#elif defined(TILEDMM_HOST_GPU)
inline constexpr bool kIsAmd = false, kIsNvidia = false;
#else
inline constexpr bool kIsAmd = false, kIsNvidia = true;
#endif

// ---- Threads. A warp is NVIDIA's warp or AMD's wavefront. In HIP's host pass the number means nothing: one host
// program serves several chips, so launchers ask warp_size().
#if defined(TILEDMM_HOST_GPU)
inline constexpr int kWarpSize = TILEDMM_WARP_SIZE;
inline int thread_idx() { return host_gpu::thread_idx(); }
inline int64_t block_idx() { return host_gpu::block_idx(0); }
inline int64_t block_idx_y() { return host_gpu::block_idx(1); }
inline int64_t num_blocks_y() { return host_gpu::num_blocks_y(); }
inline void block_barrier() { host_gpu::block_barrier(); }
inline void warp_barrier() { host_gpu::warp_barrier(); }
#else
#if defined(__HIP__) && !(defined(__gfx1100__) || defined(__gfx1200__) || defined(__gfx1201__))
inline constexpr int kWarpSize = 64;
#else
inline constexpr int kWarpSize = 32;
#endif
constexpr int warps_per_simd(int num_threads, int blocks) { return (num_threads / kWarpSize * blocks + 3) / 4; }

#if defined(TILEDMM_HIP_STANDALONE)
TILEDMM_DEVICE int thread_idx() { return int(__builtin_amdgcn_workitem_id_x()); }
TILEDMM_DEVICE int64_t block_idx() { return __builtin_amdgcn_workgroup_id_x(); }
TILEDMM_DEVICE int64_t block_idx_y() { return __builtin_amdgcn_workgroup_id_y(); }
// Second of the hidden 32-bit block counts (AMDGPU backend guide, code object v5 and later).
TILEDMM_DEVICE int64_t num_blocks_y() {
  return ((const __attribute__((address_space(4))) uint32_t*)__builtin_amdgcn_implicitarg_ptr())[1];
}
#else
TILEDMM_DEVICE int thread_idx() { return int(threadIdx.x); }
TILEDMM_DEVICE int64_t block_idx() { return blockIdx.x; }
TILEDMM_DEVICE int64_t block_idx_y() { return blockIdx.y; }
TILEDMM_DEVICE int64_t num_blocks_y() { return gridDim.y; }
#endif
#if defined(__HIP__) && (defined(TILEDMM_HIP_STANDALONE) || __clang_major__ >= 22)
// Orders shared memory alone. Were global memory ordered, too, RDNA would wait for all loads from it at each barrier,
// those of the next tile included, and empty its nearest cache. Compilers before LLVM 22 forget a wait on gfx12.
TILEDMM_DEVICE void block_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}
#else
TILEDMM_DEVICE void block_barrier() { __syncthreads(); }
#endif
#if defined(__HIP__)
// The lanes run in step; the compiler must not move accesses across.
TILEDMM_DEVICE void warp_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
#else
TILEDMM_DEVICE void warp_barrier() { __syncwarp(); }
#endif
#endif

// The value of the lane whose number differs in the bits of `mask`. All lanes of the warp take part.
TILEDMM_DEVICE uint32_t lane_xor(uint32_t value, int mask) {
#if defined(TILEDMM_HOST_GPU)
  return host_gpu::lane_xor(value, mask);
#elif defined(__HIP__)
  return uint32_t(__builtin_amdgcn_ds_bpermute((thread_idx() % kWarpSize ^ mask) * 4, int(value)));
#else
  return __shfl_xor_sync(~0u, value, mask);
#endif
}
TILEDMM_DEVICE float lane_xor(float value, int mask) {
  uint32_t word;
  __builtin_memcpy(&word, &value, 4);
  word = lane_xor(word, mask);
  __builtin_memcpy(&value, &word, 4);
  return value;
}
TILEDMM_DEVICE double lane_xor(double value, int mask) {
  uint32_t words[2];
  __builtin_memcpy(words, &value, 8);
  words[0] = lane_xor(words[0], mask), words[1] = lane_xor(words[1], mask);
  __builtin_memcpy(&value, words, 8);
  return value;
}

// block_barrier for warps that arrive at different places of the program; that one wants a single place for all.
TILEDMM_DEVICE void block_barrier_of_roles([[maybe_unused]] int num_threads) {
#if defined(__CUDA_ARCH__)
  asm volatile("barrier.cta.sync 1, %0;" ::"r"(num_threads) : "memory");
#else
  block_barrier();
#endif
}

// Returns its argument, about which the compiler then knows nothing: what is derived from it is computed where it is
// used, instead of being kept in registers throughout a loop or ahead of a row of loads. (Offsets, not pointers: a
// pointer would forget that it points to global memory.)
template <class V>
TILEDMM_DEVICE V opaque(V value) {
#if defined(__HIP_DEVICE_COMPILE__)
  asm volatile("" : "+v"(value));
#elif defined(__CUDA_ARCH__) && !defined(__HIP__)
  if constexpr (sizeof(V) == 8) {
    asm volatile("" : "+l"(value));
  } else {
    asm volatile("" : "+r"(value));
  }
#endif
  return value;
}

// `opaque` for a number that all threads of a block have in common.
template <class V>
TILEDMM_DEVICE V opaque_uniform(V value) {
#if defined(__HIP_DEVICE_COMPILE__)
  asm volatile("" : "+s"(value));
  return value;
#else
  return opaque(value);
#endif
}

// A number that all lanes of a warp have in common, known to the compiler as such.
TILEDMM_DEVICE int uniform(int value) {
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_readfirstlane(value);
#else
  return value;
#endif
}

// ---- Shared memory (LDS): one struct per block. Contents are undefined at the start.
#if defined(TILEDMM_HOST_GPU)
template <class Shared>
Shared& block_shared() {
  return *static_cast<Shared*>(host_gpu::shared_memory(sizeof(Shared)));
}
#elif defined(__CUDACC__) && !defined(__HIP__)
template <class Shared>
TILEDMM_DEVICE Shared& block_shared() {
  extern __shared__ __align__(16) unsigned char shared_memory[];  // dynamic: static stops at 48 KiB
  return *reinterpret_cast<Shared*>(shared_memory);
}
#else
template <class Shared>
TILEDMM_DEVICE Shared& block_shared() {
  __shared__ alignas(16) unsigned char shared_memory[sizeof(Shared)];  // static: the compiler's report shows its size
  return *reinterpret_cast<Shared*>(shared_memory);
}
#endif

// ---- Memory accesses. On a GPU plain ones; the host executor counts and checks them. V is a scalar or a struct of up
// to 16 bytes, aligned to its size; `count` of its elements are used.
#if defined(TILEDMM_HOST_GPU)
template <class V>
V load_global(const V* from) {
  host_gpu::access(host_gpu::Space::global_load, from, sizeof(V));
  return *from;
}
template <class V>
void store_global(V* to, V value) {
  host_gpu::access(host_gpu::Space::global_store, to, sizeof(V));
  *to = value;
}
template <class V>
V load_shared(const V* from) {
  host_gpu::access(host_gpu::Space::shared_load, from, sizeof(V));
  return *from;
}
template <class V>
void store_shared(V* to, V value) {
  host_gpu::access(host_gpu::Space::shared_store, to, sizeof(V));
  *to = value;
}
#else
template <class V>
TILEDMM_DEVICE V load_global(const V* from) {
  return *from;
}
template <class V>
TILEDMM_DEVICE void store_global(V* to, V value) {
  *to = value;
}
template <class V>
TILEDMM_DEVICE V load_shared(const V* from) {
  return *from;
}
template <class V>
TILEDMM_DEVICE void store_shared(V* to, V value) {
  *to = value;
}
#endif

// 16 bytes, the widest access of one thread.
struct __attribute__((may_alias, aligned(16))) Vector16 {
  uint32_t words[4];
};
struct __attribute__((may_alias, aligned(8))) Vector8 {
  uint32_t words[2];
};

// Four 8 x 8 matrices of 16-bit elements from shared memory, one word of each to every lane: lane l gives the address
// of row l % 8 of matrix l / 8 and receives word l % 4 of row l / 4. Transposed, rows and columns change places. A row
// of four 32-bit elements is a row of eight, too. PTX ISA, "ldmatrix".
#if defined(__CUDACC__) && !defined(__HIP__)
inline constexpr bool kHasLdmatrix = true;
template <bool IS_TRANSPOSED, class W>
TILEDMM_DEVICE void ldmatrix(const void* row, W& w0, W& w1, W& w2, W& w3) {
  static_assert(sizeof(W) == 4);
  const auto address = uint32_t(__cvta_generic_to_shared(row));
  uint32_t words[4];
  if constexpr (IS_TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  }
  __builtin_memcpy(&w0, &words[0], 4);
  __builtin_memcpy(&w1, &words[1], 4);
  __builtin_memcpy(&w2, &words[2], 4);
  __builtin_memcpy(&w3, &words[3], 4);
}
#else
inline constexpr bool kHasLdmatrix = false;
template <bool IS_TRANSPOSED, class W>
TILEDMM_DEVICE void ldmatrix(const void*, W&, W&, W&, W&) {}
#endif

// ---- Kernels that follow each other on a stream. One started by launch_early may run while those before it still do,
// and must wait before it touches memory that they use. PTX ISA, "griddepcontrol" (sm_90).
TILEDMM_DEVICE void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
TILEDMM_DEVICE void let_later_kernels_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- Arithmetic
template <class A>
TILEDMM_DEVICE A fused(A a, A b, A c) {
  if constexpr (sizeof(A) == 4) {
    return __builtin_fmaf(a, b, c);
  } else {
    return __builtin_fma(a, b, c);
  }
}
// The same as one of the product's operations, which the host executor counts.
template <class A>
TILEDMM_DEVICE A multiply_add(A a, A b, A c) {
#if defined(TILEDMM_HOST_GPU)
  host_gpu::count_flops(2);
#endif
  return fused(a, b, c);
}

// 2^x and 1 / x by one instruction, within two units of the last place; denormals count as zero.
TILEDMM_DEVICE float approximate_exp2(float x) {
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_exp2f(x);
#elif defined(__CUDA_ARCH__) && !defined(__HIP__)
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return __builtin_exp2f(x);
#endif
}
TILEDMM_DEVICE float approximate_reciprocal(float x) {
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_rcpf(x);
#elif defined(__CUDA_ARCH__) && !defined(__HIP__)
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return 1.0f / x;
#endif
}

TILEDMM_DEVICE float as_acc(float value) { return value; }
TILEDMM_DEVICE double as_acc(double value) { return value; }
TILEDMM_DEVICE float as_acc(BFloat16 value) { return bf16_to_float(value.bits); }
TILEDMM_DEVICE float as_acc(Half value) {
#if defined(TILEDMM_HOST_GPU)
  return half_to_float(value.bits);
#elif defined(__CUDACC__) && !defined(__HIP__)
  return __half2float(__ushort_as_half(value.bits));
#else
  return float(__builtin_bit_cast(_Float16, value.bits));
#endif
}

template <class T>
TILEDMM_DEVICE T rounded_to(Acc<T> value) {
  if constexpr (sizeof(T) > 2) {
    return value;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return T{float_to_bf16(value)};
  } else {
#if defined(TILEDMM_HOST_GPU)
    return T{float_to_half(value)};
#elif defined(__CUDACC__) && !defined(__HIP__)
    return T{__half_as_ushort(__float2half_rn(value))};
#else
    return T{__builtin_bit_cast(uint16_t, _Float16(value))};
#endif
  }
}

// Two numbers of 8 bits, as float_to_float8 has them, the first one in the lower byte. PTX ISA, "cvt" (sm_89).
TILEDMM_DEVICE uint32_t pack_float8(const Float8& format, float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t pair;
  if (format.dropped_bits == 20) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
  }
  return pair;
#else
  return float_to_float8(format, first) | float_to_float8(format, second) << 8;
#endif
}

// ---- Devices
// What the runtime says of a device; false where there is none of that number. take_runtime_error: what it refused
// last, in its words, null for nothing. It forgets that, so that whoever asks next (torch, behind a kernel of its own)
// is not told of it.
#if defined(TILEDMM_HOST_GPU)
inline bool query_device(int, Device& device) {
  device = {0, 4, kWarpSize, 227 << 10};
  return true;
}
inline bool set_device(int) { return true; }
inline const char* take_runtime_error() { return host_gpu::take_error(); }
#elif defined(__CUDACC__) && !defined(__HIP__)
inline bool query_device(int idx, Device& device) {
  int major = 0, minor = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, idx) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, idx) != cudaSuccess ||
      cudaDeviceGetAttribute(&device.num_cus, cudaDevAttrMultiProcessorCount, idx) != cudaSuccess ||
      cudaDeviceGetAttribute(&device.max_shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, idx) != cudaSuccess) {
    return false;
  }
  device.arch = 10 * major + minor;
  device.warp_size = kWarpSize;
  return true;
}
inline bool set_device(int idx) { return cudaSetDevice(idx) == cudaSuccess; }
inline const char* take_runtime_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
#elif defined(TILEDMM_HIP_STANDALONE)
inline bool query_device(int, Device&) {
  int count = 0;
  return hipGetDeviceCount(&count) == 0 && false;  // without ROCm's headers no properties can be read
}
inline bool set_device(int idx) { return hipSetDevice(idx) == 0; }
inline const char* take_runtime_error() {
  const int error = hipGetLastError();
  return error == 0 ? nullptr : hipGetErrorString(error);
}
#else
inline bool query_device(int idx, Device& device) {
  hipDeviceProp_t properties;
  if (hipGetDeviceProperties(&properties, idx) != hipSuccess) return false;
  device.arch = 0;
  for (const char* c = properties.gcnArchName + 3; *c && *c != ':'; ++c) {  // "gfx942:sramecc+:xnack-"
    device.arch = 16 * device.arch + (*c <= '9' ? *c - '0' : *c - 'a' + 10);
  }
  device.warp_size = properties.warpSize;
  // RDNA's units are counted in pairs, since a block has both of a pair (HIP, hipDeviceProp_t).
  device.num_cus = properties.multiProcessorCount * (properties.warpSize == 32 ? 2 : 1);
  device.max_shared_bytes = int32_t(properties.sharedMemPerBlock);
  return true;
}
inline bool set_device(int idx) { return hipSetDevice(idx) == hipSuccess; }
inline const char* take_runtime_error() {
  const hipError_t error = hipGetLastError();
  // It says so where a library has no code for the GPU.
  if (error == hipErrorInvalidDeviceFunction) return "invalid device function: this build is for other chips";
  return error == hipSuccess ? nullptr : hipGetErrorString(error);
}
#endif

// ---- Launch
#if defined(TILEDMM_HOST_GPU)
inline int warp_size(const Executor&) { return kWarpSize; }
template <class... Params, class... Args>
Status launch_kernel(void (*kernel)(Params...), int64_t blocks, int64_t blocks_y, int num_threads, size_t shared_bytes,
                     const Executor& executor, Args... args) {
  const bool is_launched =
      host_gpu::launch(blocks, blocks_y, num_threads, kWarpSize, shared_bytes, executor, [&] { kernel(args...); });
  return is_launched ? Status::ok : Status::launch_failed;
}
#else
#if defined(__CUDACC__) && !defined(__HIP__)
inline int warp_size(const Executor&) { return kWarpSize; }
// Lets a kernel have so much dynamic shared memory. The limit is the kernel's, for all threads of the program, so that
// it is set to what a block can have: a limit by each call's need would refuse another thread's larger call.
inline bool allow_shared_bytes(const void* function, size_t bytes, const Executor& executor) {
  if (bytes <= 48 << 10) return true;
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, function) != cudaSuccess) return false;
  if (attributes.maxDynamicSharedSizeBytes >= int(bytes)) return true;
  int most = 0;
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, executor.device_idx);
  return cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              most - int(attributes.sharedSizeBytes)) == cudaSuccess;
}
#else
inline int warp_size(const Executor& executor) { return executor.warp_size; }
#endif
// Starts `kernel` on the executor's stream. Parameters are passed by value and must not exceed 4 KiB together.
template <class... Params, class... Args>
Status launch_kernel(void (*kernel)(Params...), int64_t blocks, int64_t blocks_y, int num_threads, size_t shared_bytes,
                     const Executor& executor, Args... args) {
  (void)shared_bytes;  // HIP's is static
  if (blocks > 0x7fffffff) return Status::launch_failed;
  const dim3 grid{unsigned(blocks), unsigned(blocks_y), 1}, block{unsigned(num_threads), 1, 1};
  void* arguments[] = {const_cast<void*>(static_cast<const void*>(&args))...};
#if defined(__CUDACC__) && !defined(__HIP__)
  const auto* function = reinterpret_cast<const void*>(kernel);
  if (!allow_shared_bytes(function, shared_bytes, executor)) return Status::launch_failed;
  const bool is_launched = cudaLaunchKernel(function, grid, block, arguments, shared_bytes,
                                            static_cast<cudaStream_t>(executor.stream)) == cudaSuccess;
#elif defined(TILEDMM_HIP_STANDALONE)
  const bool is_launched =
      hipLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, arguments, 0, executor.stream) == 0;
#else
  const bool is_launched = hipLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, arguments, 0,
                                           static_cast<hipStream_t>(executor.stream)) == hipSuccess;
#endif
  return is_launched ? Status::ok : Status::launch_failed;
}
#endif

// The same, but the kernel may start before those ahead of it on the stream are done (wait_for_earlier_kernels).
template <class... Params, class... Args>
Status launch_early(void (*kernel)(Params...), int64_t blocks, int64_t blocks_y, int num_threads, size_t shared_bytes,
                    const Executor& executor, Args... args) {
#if defined(__CUDACC__) && !defined(__HIP__)
  int major = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, executor.device_idx);
  if (major >= 9 && blocks <= 0x7fffffff) {
    const auto* function = reinterpret_cast<const void*>(kernel);
    if (!allow_shared_bytes(function, shared_bytes, executor)) return Status::launch_failed;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(unsigned(blocks), unsigned(blocks_y), 1);
    config.blockDim = dim3(unsigned(num_threads), 1, 1);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = static_cast<cudaStream_t>(executor.stream);
    config.attrs = &attribute;
    config.numAttrs = 1;
    void* arguments[] = {const_cast<void*>(static_cast<const void*>(&args))...};
    return cudaLaunchKernelExC(&config, function, arguments) == cudaSuccess ? Status::ok : Status::launch_failed;
  }
#endif
  return launch_kernel(kernel, blocks, blocks_y, num_threads, shared_bytes, executor, args...);
}

}  // namespace tiledmm::gpu

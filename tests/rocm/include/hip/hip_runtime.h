// What the kernels need of HIP's header, for a build without ROCm: names, signatures and layouts are those of HIP 7.
// tests/test_rocm_build.py compiles with the true header, too, where there is one.
#pragma once

#include <cstddef>
#include <cstdint>

enum hipError_t {
  hipSuccess = 0,
  hipErrorInvalidConfiguration = 9,
  hipErrorInvalidDeviceFunction = 98,
  hipErrorInvalidDevice = 101,
  hipErrorLaunchFailure = 719,
};

struct dim3 {
  uint32_t x, y, z;
  constexpr dim3(uint32_t x = 1, uint32_t y = 1, uint32_t z = 1) : x(x), y(y), z(z) {}
};

using hipStream_t = struct ihipStream_t*;

struct hipDeviceProp_tR0600 {
  char before_shared_memory[296];
  size_t sharedMemPerBlock;
  int regsPerBlock;
  int warpSize;
  char before_num_cus[76];
  int multiProcessorCount;
  char before_arch[768];
  char gcnArchName[256];
  char rest[56];
};
static_assert(offsetof(hipDeviceProp_tR0600, sharedMemPerBlock) == 296 &&
              offsetof(hipDeviceProp_tR0600, warpSize) == 308 &&
              offsetof(hipDeviceProp_tR0600, multiProcessorCount) == 388 &&
              offsetof(hipDeviceProp_tR0600, gcnArchName) == 1160 && sizeof(hipDeviceProp_tR0600) == 1472);
#define hipDeviceProp_t hipDeviceProp_tR0600
#define hipGetDeviceProperties hipGetDevicePropertiesR0600

extern "C" {
hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int device);
hipError_t hipSetDevice(int device);
hipError_t hipGetLastError();
const char* hipGetErrorString(hipError_t error);
hipError_t hipLaunchKernel(const void* function, dim3 grid, dim3 block, void** args, size_t shared_bytes,
                           hipStream_t stream);
}

#if defined(__HIP__)
extern "C" {
__device__ size_t __ockl_get_local_id(uint32_t dim);
__device__ size_t __ockl_get_group_id(uint32_t dim);
__device__ size_t __ockl_get_num_groups(uint32_t dim);
}
template <size_t (*GET)(uint32_t)>
struct BuiltinIndex {
  template <uint32_t DIM>
  struct Of {
    __device__ operator uint32_t() const { return uint32_t(GET(DIM)); }
  };
  Of<0> x;
  Of<1> y;
};
static const __device__ BuiltinIndex<__ockl_get_local_id> threadIdx;
static const __device__ BuiltinIndex<__ockl_get_group_id> blockIdx;
static const __device__ BuiltinIndex<__ockl_get_num_groups> gridDim;
#endif

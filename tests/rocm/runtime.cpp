// In place of AMD's libamdhip64.so.7: GPUs that a test describes, and launches that are handed to the test, which sees
// what a kernel would get. Refused is what AMD's runtime refuses (ROCm/clr, hipamd/src/hip_module.cpp).
#include <hip/hip_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

namespace {

struct Gpu {
  const char* arch;
  int num_cus, warp_size;
  size_t shared_bytes;
};

// What clang hands to __hipRegisterFatBinary.
struct FatBinary {
  uint32_t magic, version;
  const void* bundle;
  void* unused;
};

struct Function {
  const FatBinary* binary;
  const char* name;
};

using Launch = hipError_t (*)(const char* name, const void* bundle, const dim3* grid, const dim3* block, void** args,
                              size_t shared_bytes, void* stream);

std::vector<Gpu> gpus;
std::map<const void*, Function> functions;
Launch launch = nullptr;
hipError_t last_error = hipSuccess;
int num_binaries = 0;

hipError_t report(hipError_t error) {
  if (error != hipSuccess) last_error = error;
  return error;
}

}  // namespace

extern "C" {

void stand_in_set_gpus(const Gpu* first, int count, Launch on_launch) {
  gpus.assign(first, first + count);
  launch = on_launch;
}
int stand_in_num_binaries() { return num_binaries; }

void** __hipRegisterFatBinary(const void* data) {
  const auto* binary = static_cast<const FatBinary*>(data);
  if (binary->magic != 0x48495046 || binary->version != 1) {
    std::fprintf(stderr, "this is no fat binary of HIP\n");
    std::abort();
  }
  ++num_binaries;
  return reinterpret_cast<void**>(const_cast<FatBinary*>(binary));
}
void __hipRegisterFunction(void** handle, const void* host_function, char*, const char* name, unsigned, void*, void*,
                           dim3*, dim3*, int*) {
  functions[host_function] = {reinterpret_cast<const FatBinary*>(handle), name};
}
void __hipUnregisterFatBinary(void** handle) {
  for (auto at = functions.begin(); at != functions.end();) {
    at = at->second.binary == reinterpret_cast<const FatBinary*>(handle) ? functions.erase(at) : std::next(at);
  }
  --num_binaries;
}
// A kernel called by <<<>>> takes its configuration from here; nobody puts one there.
hipError_t __hipPopCallConfiguration(dim3*, dim3*, size_t*, hipStream_t*) { std::abort(); }

hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int device) {
  if (device < 0 || size_t(device) >= gpus.size()) return report(hipErrorInvalidDevice);
  const Gpu& gpu = gpus[size_t(device)];
  std::memset(properties, 0, sizeof *properties);
  std::snprintf(properties->gcnArchName, sizeof properties->gcnArchName, "%s", gpu.arch);
  properties->multiProcessorCount = gpu.num_cus;
  properties->warpSize = gpu.warp_size;
  properties->sharedMemPerBlock = gpu.shared_bytes;
  return hipSuccess;
}
hipError_t hipSetDevice(int device) {
  return report(device < 0 || size_t(device) >= gpus.size() ? hipErrorInvalidDevice : hipSuccess);
}
hipError_t hipGetLastError() {
  const hipError_t error = last_error;
  last_error = hipSuccess;
  return error;
}
const char* hipGetErrorString(hipError_t error) {
  switch (error) {
    case hipErrorInvalidConfiguration:
      return "invalid configuration argument";
    case hipErrorInvalidDevice:
      return "invalid device ordinal";
    case hipErrorInvalidDeviceFunction:
      return "invalid device function";
    default:
      return "unspecified launch failure";
  }
}
hipError_t hipLaunchKernel(const void* function, dim3 grid, dim3 block, void** args, size_t shared_bytes,
                           hipStream_t stream) {
  const auto found = functions.find(function);
  if (found == functions.end()) return report(hipErrorInvalidDeviceFunction);
  const bool is_empty = !grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z;
  if (is_empty || uint64_t(grid.x) * block.x > UINT32_MAX) return report(hipErrorInvalidConfiguration);
  return report(launch(found->second.name, found->second.binary->bundle, &grid, &block, args, shared_bytes, stream));
}
}

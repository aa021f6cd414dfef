// What the dispatcher knows of a chip: one row of data for each GPU architecture and each CPU instruction set.
#pragma once

#include "core/problem.h"

namespace tiledmm {

enum class Platform : int32_t { cpu = 0, cuda = 1, hip = 2, host = 3 };  // host: GPU kernels run on the CPU
inline constexpr const char* kPlatformNames[] = {"cpu", "cuda", "hip", "host"};

// CPU instruction sets; a machine has a set of them.
// avx512_bf16: VDPBF16PS at the rate of an fp32 multiply-add, as on AMD's.
enum class Isa : int32_t { portable = 0, neon = 1, avx2 = 2, avx512 = 3, avx512_bf16 = 4, amx = 5, amx_fp16 = 6 };
inline constexpr int kNumIsas = 7;
inline constexpr const char* kIsaNames[kNumIsas] = {"portable",    "neon", "avx2",    "avx512",
                                                    "avx512_bf16", "amx",  "amx_fp16"};

// CPU cores whose plans differ from those of others with the same instruction set.
enum class Cores : int32_t { other = 0, zen5 = 1, intel = 2 };

// Rates are those of a whole GPU, from the vendors' data sheets, and of one core of a CPU.
struct Chip {
  const char* name;  // as in "cuda:sm_90", "cpu:avx2"
  Platform platform;
  int32_t arch;              // 80 for sm_80, 0x942 for gfx942; on a CPU an Isa, the best that the machine has
  int32_t num_cus;           // SMs, CUs; on a CPU threads
  int32_t warp_size;         // GPU
  int32_t max_shared_bytes;  // GPU: of one block
  double tbytes_per_second;
  double simt_tflops[kNumDTypes];  // by DType; 16-bit types in fp32
  double mma_tflops[kNumDTypes];   // 0: no matrix instruction
  bool is_mma_fp32_tf32;           // the matrix instruction for fp32 rounds to tf32
  int32_t cus_per_die = 0;         // GPU of several dies with a second-level cache each; 0: it is one
  Cores cores = Cores::other;      // CPU
  const char* product = "";        // on which the constants of its cost models were measured
  // The chip whose constants in the cost models serve, scaled by the rates of both. Null: it has constants of its own,
  // or kernels that need none.
  const Chip* modelled_after = nullptr;
  int64_t near_bytes = 1 << 20;  // CPU: the second-level cache of a core
};

}  // namespace tiledmm

// The rows of the chips, and this machine's CPU.
#include "dispatch/chips.h"

#include <cstdlib>
#include <iterator>
#include <thread>

#if !defined(TILEDMM_HOST_GPU)
#include "kernels/rungs.h"
#endif

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tiledmm {
namespace {

// Data sheets of NVIDIA (A100, H100, H200) and AMD (MI250X, one die; MI300X; MI355X; RX 7900 XTX; RX 9070 XT).
// NVIDIA's chips that nobody has fitted the cost models to are modelled after the H200.
constexpr Chip kSm90 = {
    "sm_90",      Platform::cuda, 90, 132, 32, 227 << 10, 4.2, {66.9, 33.5, 66.9, 66.9}, {495, 66.9, 989, 989}, true, 0,
    Cores::other, "NVIDIA H200"};
constexpr Chip after_sm_90(Chip chip) {
  chip.modelled_after = &kSm90;
  return chip;
}
constexpr Chip kGpuChips[] = {
    after_sm_90(
        {"sm_80", Platform::cuda, 80, 108, 32, 163 << 10, 1.94, {19.5, 9.7, 19.5, 19.5}, {156, 19.5, 312, 312}, true}),
    kSm90,
    {"gfx90a", Platform::hip, 0x90a, 110, 64, 64 << 10, 1.6, {23.9, 23.9, 23.9, 23.9}, {47.9, 47.9, 191, 191}, false},
    {"gfx942", Platform::hip, 0x942, 304, 64, 64 << 10, 5.3, {163, 81.7, 163, 163}, {163, 163, 1307, 1307}, false, 38},
    {"gfx950",
     Platform::hip,
     0x950,
     256,
     64,
     160 << 10,
     8.0,
     {157, 78.6, 157, 157},
     {157, 78.6, 2300, 2300},
     false,
     32},
    {"gfx1100", Platform::hip, 0x1100, 96, 32, 64 << 10, 0.96, {61, 1.9, 61, 61}, {0, 0, 123, 123}, false},
    {"gfx1201", Platform::hip, 0x1201, 64, 32, 64 << 10, 0.64, {48.7, 1.5, 48.7, 48.7}, {0, 0, 195, 195}, false},
    after_sm_90(
        {"host", Platform::host, 0, 4, 32, 227 << 10, 0.02, {.001, .001, .001, .001}, {.001, .001, .001, .001}, false}),
};
// NVIDIA's other architectures from sm_80 on (CUDA C++ Programming Guide, "Compute Capabilities").
constexpr int32_t kLikeSm80[] = {86, 87, 88, 89, 100, 101, 103, 110, 120, 121};

#if !defined(TILEDMM_HOST_GPU)
#if defined(TILEDMM_EMULATE_AMX)
// The tile instructions are emulated: every machine has them.
constexpr Isa kEmulated = TILEDMM_EMULATE_AMX == 16 ? Isa::amx_fp16 : Isa::amx;
#elif defined(__x86_64__) && defined(__linux__)
// AMX as this process may use it. The processor's word is not enough: the system keeps the tiles of a thread (XCR0),
// and a process has to ask for them once (Linux, Documentation/arch/x86/xstate.rst); threads inherit the answer.
bool may_use_amx(bool& has_fp16) {
  unsigned eax, ebx, ecx, edx;
  constexpr unsigned kOsXsave = 1u << 27, kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAmxFp16 = 1u << 21;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & kOsXsave)) return false;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(edx & kAmxBf16) || !(edx & kAmxTile)) return false;
  has_fp16 = __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & kAmxFp16);
  constexpr unsigned kTileState = 3u << 17;
  asm volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
  if ((eax & kTileState) != kTileState) return false;
  constexpr long kArchPrctl = 158, kRequestPermission = 0x1023, kTileData = 18;
  return syscall(kArchPrctl, kRequestPermission, kTileData) == 0;
}
#endif

Isa find_best_isa() {
#if defined(TILEDMM_EMULATE_AMX)
  return kEmulated;
#elif defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_avx512 && __builtin_cpu_supports("avx512bf16")) {
#if defined(__linux__)
    bool has_fp16 = false;
    if (may_use_amx(has_fp16)) return has_fp16 ? Isa::amx_fp16 : Isa::amx;
#endif
    // Intel's VDPBF16PS has half the rate of an fp32 multiply-add, AMD's the same.
    return __builtin_cpu_is("amd") ? Isa::avx512_bf16 : Isa::avx512;
  }
  if (has_avx512) return Isa::avx512;
  return has_avx2 ? Isa::avx2 : Isa::portable;
#elif defined(__aarch64__)
  return Isa::neon;
#else
  return Isa::portable;
#endif
}

Cores find_cores() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_is("intel")) return Cores::intel;
  // An instruction set that Zen 4 lacks.
  if (__builtin_cpu_is("amd") && __builtin_cpu_supports("avx512vp2intersect")) return Cores::zen5;
#endif
  return Cores::other;
}

// This machine's: the row of its best instruction set, and its cores.
const Chip& own_cpu() {
  static const Chip chip = [] {
    Chip chip = chips()[std::size(kGpuChips) + size_t(best_isa())];
    chip.cores = find_cores();
#if defined(_SC_LEVEL2_CACHE_SIZE)
    if (const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE); bytes > 0) chip.near_bytes = bytes;
#endif
    return chip;
  }();
  return chip;
}
#endif

}  // namespace

const std::vector<Chip>& chips() {
  static const auto* const rows = [] {  // never destroyed: threads may compute at exit
    auto* rows = new std::vector<Chip>(std::begin(kGpuChips), std::end(kGpuChips));
    // Each kernel of a CPU knows the rates of its own instruction set. AMX, and avx512 without the bf16 of AMD's, are
    // Intel's.
    for (int isa = 0; isa < kNumIsas; ++isa) {
      const bool is_intel = Isa(isa) == Isa::avx512 || Isa(isa) >= Isa::amx;
      rows->push_back(
          {kIsaNames[isa], Platform::cpu, isa, 1, 0, 0, 0, {}, {}, false, 0, is_intel ? Cores::intel : Cores::other});
    }
    return rows;
  }();
  return *rows;
}

const Chip* find_gpu_chip(int32_t arch) {
  for (const Chip& chip : kGpuChips) {
    if (chip.arch == arch) return &chip;
  }
  return arch >= 80 && arch < 0x900 ? &kGpuChips[0] : nullptr;
}

const Chip* find_chip(const std::string& device) {
#if !defined(TILEDMM_HOST_GPU)
  if (device == "cpu") return &own_cpu();
#endif
  for (const Chip& chip : chips()) {
    if (device == std::string(kPlatformNames[int(chip.platform)]) + ":" + chip.name) return &chip;
  }
  for (const int32_t arch : kLikeSm80) {
    if (device == "cuda:sm_" + std::to_string(arch)) return find_gpu_chip(arch);
  }
  return nullptr;
}

std::string known_devices() {
  std::string known = "cpu";
  for (const Chip& chip : chips()) {
    if (chip.platform != Platform::host) {
      known += std::string(", ") + kPlatformNames[int(chip.platform)] + ":" + chip.name;
    }
  }
  return known + "; NVIDIA's other chips from cuda:sm_86 to cuda:sm_121 are taken for sm_80";
}

std::string supported_gpus() {
  std::string supported = "NVIDIA's from sm_80 on";
  for (const Chip& chip : kGpuChips) {
    if (chip.platform == Platform::hip) supported += std::string(", ") + chip.name;
  }
  return supported;
}

#if !defined(TILEDMM_HOST_GPU)
Isa best_isa() {
  static const Isa isa = find_best_isa();
  return isa;
}

Chip cpu_chip(int32_t num_threads) {
  Chip chip = own_cpu();
  chip.num_cus = num_threads;
  return chip;
}

int32_t num_cores() { return int32_t(std::thread::hardware_concurrency()); }

double measure_fma_peak(DType dtype, const Executor& executor) {
  return cpu::measure_fma_peak ? cpu::measure_fma_peak(best_isa(), dtype, executor) : 0;
}

namespace {

Isa isa_of_vectors() {
#if defined(TILEDMM_EMULATE_AMX)
  return Isa::avx2;  // which the emulation is compiled for
#else
  return best_isa();
#endif
}

}  // namespace

void compute_elementwise(const ElementwiseProblem& problem, const Executor& executor) {
  cpu::compute_elementwise(isa_of_vectors(), problem, executor);
}

Status compute_sums(const ReduceProblem& problem, const Executor& executor) {
  return cpu::compute_sums(isa_of_vectors(), problem, executor);
}

Status compute_softmax(const ColumnSoftmaxProblem& problem, const Executor& executor) {
  return cpu::compute_softmax(isa_of_vectors(), problem, executor);
}
#endif

}  // namespace tiledmm

// Applies one function of platform/vector_math.h to raw values: vector_math <function> < input > output.
// It takes a vector of the instruction set at a time, as the kernels do. Exits with 2 where the CPU lacks that set.
#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels/cpu/shared/simd.h"
#include "platform/vector_math.h"

TILEDMM_TARGET_BEGIN
namespace tiledmm {
namespace {

// One struct for each function: a lambda would not inherit the instruction set.
template <Activation ACT, class T>
struct Activate {
  using In = T;
  using Out = T;
  static TILEDMM_INLINE T apply(T x) { return activate<ACT>(x); }
};
struct HalfToFloat {
  using In = uint16_t;
  using Out = float;
  static TILEDMM_INLINE float apply(uint16_t x) { return half_to_float(x); }
};
struct Bf16ToFloat {
  using In = uint16_t;
  using Out = float;
  static TILEDMM_INLINE float apply(uint16_t x) { return bf16_to_float(x); }
};
struct FloatToHalf {
  using In = float;
  using Out = uint16_t;
  static TILEDMM_INLINE uint16_t apply(float x) { return float_to_half(x); }
};
struct FloatToBf16 {
  using In = float;
  using Out = uint16_t;
  static TILEDMM_INLINE uint16_t apply(float x) { return float_to_bf16(x); }
};

constexpr size_t kCount = 1 << 16;

template <class Function>
__attribute__((noinline)) void apply(const typename Function::In* in, typename Function::Out* out) {
  constexpr size_t kLanes = TILEDMM_VECTOR_BYTES / sizeof(typename Function::In);
  for (size_t i = 0; i < kCount; i += kLanes) {
    typename Function::In values[kLanes];
    typename Function::Out results[kLanes];
    std::memcpy(values, in + i, sizeof values);
    for (size_t l = 0; l < kLanes; ++l) results[l] = Function::apply(values[l]);
    std::memcpy(out + i, results, sizeof results);
  }
}

}  // namespace
}  // namespace tiledmm
TILEDMM_TARGET_END

using namespace tiledmm;

template <class Function>
static void run() {
  std::vector<typename Function::In> in(kCount);
  std::vector<typename Function::Out> out(kCount);
  for (size_t count; (count = fread(in.data(), sizeof in[0], kCount, stdin)) > 0;) {
    apply<Function>(in.data(), out.data());
    fwrite(out.data(), sizeof out[0], count, stdout);
  }
}

template <class T>
static bool run_activation(const char* name) {
  if (!std::strcmp(name, "relu")) return run<Activate<Activation::relu, T>>(), true;
  if (!std::strcmp(name, "gelu")) return run<Activate<Activation::gelu, T>>(), true;
  if (!std::strcmp(name, "gelu_tanh")) return run<Activate<Activation::gelu_tanh, T>>(), true;
  if (!std::strcmp(name, "silu")) return run<Activate<Activation::silu, T>>(), true;
  return false;
}

int main(int argc, char** argv) {
#if defined(TILEDMM_ISA_AVX512)
  if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl")) return 2;
#elif defined(TILEDMM_ISA_AVX2)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 2;
#endif
  const char* name = argv[argc - 1];
  const auto is = [&](const char* other) { return !std::strcmp(name, other); };
  if (is("half_to_float")) return run<HalfToFloat>(), 0;
  if (is("bf16_to_float")) return run<Bf16ToFloat>(), 0;
  if (is("float_to_half")) return run<FloatToHalf>(), 0;
  if (is("float_to_bf16")) return run<FloatToBf16>(), 0;
  if (!std::strncmp(name, "fp64 ", 5)) return !run_activation<double>(name + 5);
  return !run_activation<float>(name);
}

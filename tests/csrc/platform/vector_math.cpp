// Applies one function of platform/vector_math.h to raw values: vector_math <function> < input > output.
#include "platform/vector_math.h"

#include <cstdio>
#include <cstring>
#include <vector>

using namespace tiledmm;

template <class In, class Out, class Function>
static int apply(const Function& function) {
  std::vector<In> in(1 << 16);
  std::vector<Out> out(1 << 16);
  for (size_t count; (count = fread(in.data(), sizeof(In), in.size(), stdin)) > 0;) {
    for (size_t i = 0; i < count; ++i) out[i] = function(in[i]);
    fwrite(out.data(), sizeof(Out), count, stdout);
  }
  return 0;
}

int main(int, char** argv) {
  const char* name = argv[1];
  const auto is = [&](const char* other) { return std::strcmp(name, other) == 0; };
  if (is("relu")) return apply<float, float>([](float x) { return activate<Activation::relu>(x); });
  if (is("gelu")) return apply<float, float>([](float x) { return activate<Activation::gelu>(x); });
  if (is("gelu_tanh")) return apply<float, float>([](float x) { return activate<Activation::gelu_tanh>(x); });
  if (is("silu")) return apply<float, float>([](float x) { return activate<Activation::silu>(x); });
  if (is("half_to_float")) return apply<uint16_t, float>([](uint16_t x) { return half_to_float(x); });
  if (is("bf16_to_float")) return apply<uint16_t, float>([](uint16_t x) { return bf16_to_float(x); });
  if (is("float_to_half")) return apply<float, uint16_t>([](float x) { return float_to_half(x); });
  if (is("float_to_bf16")) return apply<float, uint16_t>([](float x) { return float_to_bf16(x); });
  return 1;
}

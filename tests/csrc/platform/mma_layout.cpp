// Prints the layouts of csrc/platform/mma_layout.h, for test_mma_layout.py: one line for each lane and register,
// "LAYOUT OPERAND lane register row word", or for the accumulator row and column.
#include "platform/mma_layout.h"

#include <cstdio>

template <class L>
void print(const char* name) {
  for (int lane = 0; lane < L::kLanes; ++lane) {
    for (int w = 0; w < L::kWordsA; ++w)
      std::printf("%s A %d %d %d %d\n", name, lane, w, L::a_row(lane, w), L::a_word(lane, w));
    for (int w = 0; w < L::kWordsB; ++w)
      std::printf("%s B %d %d %d %d\n", name, lane, w, L::b_col(lane, w), L::b_word(lane, w));
    for (int e = 0; e < L::kAccs; ++e)
      std::printf("%s C %d %d %d %d\n", name, lane, e, L::c_row(lane, e), L::c_col(lane, e));
  }
  std::printf("%s shape 0 0 %d %d %d\n", name, L::kM, L::kN, L::kWordsK);
}

int main() {
  using namespace tiledmm;
  print<LayoutM16N8>("m16n8");
  print<LayoutM8N8>("m8n8");
  print<LayoutMfma16<1, false>>("mfma_f32");
  print<LayoutMfma16<1, true>>("mfma_f64");
  print<LayoutMfma16<2, false>>("mfma_f16");
  print<LayoutWmmaRdna3>("rdna3");
  print<LayoutWmmaRdna4>("rdna4");
}

// The constants of the simt_rdna kernel's cost model, none of them measured here: the large tile's share is what
// seb-v/fp32_sgemm_amd reaches on an RX 7900 XTX before it edits machine code, 33.5 of 61 TFLOP/s, the rest is assumed.
#pragma once

namespace tiledmm {

inline constexpr int kNumSimtRdnaShapes = 2;

struct SimtRdnaCosts {
  double efficiency[kNumSimtRdnaShapes] = {0.55, 0.35};  // share of the peak rate, by tile: the second one loads twice
  double alone = 0.6;                                    // share of that which one block reaches
  double by_element = 3;                                 // how many times longer it takes element by element
  double bandwidth = 0.8;                                // share of the memory's rate
  double start = 4;                                      // us of a launch
};
inline constexpr SimtRdnaCosts kSimtRdnaCosts{};

}  // namespace tiledmm

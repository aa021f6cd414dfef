// The constants of the ladder's cost models, by rung: rough ones, since they need only tell rungs apart. Both get
// better with every rung of one family, and every rung of the second family is behind the first one's last;
// docs/ladder.md has the measurements on an H200.
#pragma once

namespace tiledmm {

struct LadderCosts {
  double efficiency[9] = {0, 0.08, 0.12, 0.2, 0.7, 0.02, 0.1, 0.15, 0.35};  // share of the peak rate at large sizes
  double traffic[9] = {0, 64, 32, 24, 4, 200, 50, 40, 3};                   // how often the operands' bytes are moved
  // Rung 04 on RDNA: seb-v/fp32_sgemm_amd has 22.8 of 61 TFLOP/s at this step (RX 7900 XTX).
  double register_tiled_on_rdna = 0.37;
  double start = 3;  // us of a launch
};
inline constexpr LadderCosts kLadderCosts{};

}  // namespace tiledmm

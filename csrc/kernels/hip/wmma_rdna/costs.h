// The constants of the wmma_rdna kernel's cost model, none of them measured here: the large tile's share is what
// adelj88/rocm_wmma_gemm reports for tiles like it (RX 7900 GRE, fp16, 4096 and 8192), the rest is assumed. What has an
// index is of a tile.
#pragma once

namespace tiledmm {

inline constexpr int kNumWmmaShapes = 3;

// The other tiles' shares are such that many choices are near those of AMD's model Origami; those of gathered tiles
// follow the model of a work group processor (docs/amd_evidence.md).
struct WmmaCosts {
  double efficiency[kNumWmmaShapes] = {0.86, 0.8, 0.42};  // of the peak rate, with two blocks or more of a processor
  double alone[kNumWmmaShapes] = {0.6, 0.5, 0.55};        // share of that which one block reaches
  double gather[kNumWmmaShapes] = {0.35, 0.2, 0};         // share of all that where tiles are loaded element by element
  double bandwidth = 0.8, cached = 5;  // share of the memory's rate; the second-level cache's as a multiple of that
  double latency = 0.4;                // us of a k tile at least, in four blocks of a processor at a time
  double start = 4;                    // us of a launch
};
inline constexpr WmmaCosts kWmmaCosts{};

}  // namespace tiledmm

// The constants of the mfma kernel's cost model. Nobody has run the kernel: they come from what others measured of
// theirs and from AMD's model Origami (docs/amd_evidence.md), the rest is assumed. What has an index is of a tile.
#pragma once

namespace tiledmm {

inline constexpr int kNumMfmaShapes = 4;

// In 16 bits the large tile is HipKittens' at 8192 on an MI325X (750 of 1307 TFLOP/s, which power limits); those of 128
// and 64 alone were chosen such that PyTorch's at 2048 and 1024 there result (336 and 80; the same repository,
// HazyResearch/HipKittens @f09e968, analysis/*.json); the others such that many choices are near Origami's. fp32:
// rocBLAS on an MI210 reaches 84 % at 8192, in fp64 60 % (rocm-libraries, issue 9453).
struct MfmaCosts {
  // Share of the peak rate of a CU with all the blocks that it takes, and of one with a single block; in 16 bits, and
  // in fp32 and fp64, whose matrix instructions take longer for the same bytes.
  double busy_16[kNumMfmaShapes] = {0.58, 0.50, 0.14, 0.05}, alone_16[kNumMfmaShapes] = {0.58, 0.30, 0.10, 0.05};
  double busy[kNumMfmaShapes] = {0.84, 0.75, 0.60, 0.30}, alone[kNumMfmaShapes] = {0.84, 0.60, 0.30, 0.10};
  // Microseconds of an empty kernel, and the share of the data sheet's bandwidth that a copy reaches, on an MI300X
  // (MGPUSim PR 277).
  double start = 5.8, bandwidth = 0.69;
  // How many times longer, by MfmaCopies: guesses. More loads and shifts; eight loads for one, and no prefetch.
  double copies[3] = {1, 1.3, 6};
};
inline constexpr MfmaCosts kMfmaCosts{};

}  // namespace tiledmm

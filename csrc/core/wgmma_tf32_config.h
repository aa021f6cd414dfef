// The block tiles of the wgmma kernel for fp32 with products in tf32, as wgmma_config.h has those for 16 bits.
#pragma once

#include "core/wgmma_config.h"

namespace tiledmm {

inline constexpr TileShape kTf32TileShapes[] = {
    {128, 256}, {128, 192}, {128, 128}, {128, 64}, {64, 256}, {64, 128}, {64, 64}, {64, 32},
};
inline constexpr int kNumTf32TileShapes = int(sizeof(kTf32TileShapes) / sizeof(TileShape));

// Whether B may lie along n as A does along m: warps beside the producer then transpose it, fast enough for small
// tiles.
constexpr bool can_transpose(const TileShape& shape) { return shape.block_n <= 128; }

// As model_microseconds has it; a k tile has half as many elements.
inline TilePlan plan_tf32_tiles(int64_t m, int64_t n, int64_t k, int64_t chunk_k, int64_t batch, int num_sms,
                                bool transposes) {
  const int64_t num_chunks = ceil_div(k, chunk_k);
  TilePlan best{};
  double best_time = 0;
  for (int i = 0; i < kNumTf32TileShapes; ++i) {
    const TileShape& shape = kTf32TileShapes[i];
    if (transposes && !can_transpose(shape)) continue;
    if (num_chunks > 1 && !sums_chunks(shape)) continue;
    for (const bool splits : {false, true}) {
      if (splits && num_chunks == 1) continue;
      double time =
          model_microseconds(shape, m, n, 2 * (splits ? chunk_k : k), splits ? batch * num_chunks : batch, num_sms);
      if (splits) time += 2 + double(batch * m * n * num_chunks) * 1e-6;
      if (best_time == 0 || time < best_time) {
        best = {i, shape, 1, splits};
        best_time = time;
      }
    }
  }
  return best;
}

}  // namespace tiledmm

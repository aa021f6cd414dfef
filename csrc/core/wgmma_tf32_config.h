// The block tiles of the wgmma kernel for fp32 with products in tf32, and what becomes of operands whose layout its
// matrix unit does not take: as wgmma_config.h, plain data and pure functions that change no bit of the result.
#pragma once

#include "core/wgmma_config.h"

namespace tiledmm {

inline constexpr int kTf32BlockK = 32;

inline constexpr TileShape kTf32TileShapes[] = {
    {128, 256}, {128, 192}, {128, 128}, {128, 64}, {64, 256}, {64, 128}, {64, 64}, {64, 32},
};
inline constexpr int kNumTf32TileShapes = int(sizeof(kTf32TileShapes) / sizeof(TileShape));

// How the kernel reads its operands, both from shared memory. B lies along k; an A that lies along m goes through
// registers. An operand B along n is the A of the transposed problem; if A lies along m as well, warps beside the
// producer transpose it where it lies.
enum class Tf32Path { both_in_place, a_from_registers, b_transposed };

constexpr bool serves_path(const TileShape& shape, Tf32Path path) {
  return path != Tf32Path::b_transposed || shape.block_n <= 128;
}

// Microseconds by a simple model, fitted on an H200: whole waves of tiles, each of an epilogue and of k tiles that the
// slowest of these bounds: the matrix unit, the latency of one chain of its instructions, shared memory, the
// second-level cache, the transposing warps.
inline double model_tf32_microseconds(const TileShape& shape, Tf32Path path, int64_t m, int64_t n, int64_t k,
                                      int64_t batch, int num_sms) {
  const bool uses_registers = path != Tf32Path::both_in_place, transposes = path == Tf32Path::b_transposed;
  const int64_t num_tiles = batch * ceil_div(m, shape.block_m) * ceil_div(n, shape.block_n);
  const double tail = splits_tail(shape, num_tiles, num_sms) ? 0.66 : num_tiles % num_sms ? 1 : 0;
  const double waves = double(num_tiles / num_sms) + tail;
  const double area = double(shape.block_m) * shape.block_n, row_bytes = 128;
  const double written = row_bytes * (double(min_of(shape.block_m, m)) + shape.block_n);
  const double read = row_bytes * double(shape.block_m / 64) * (64 + shape.block_n);
  const double moved = transposes ? 2 * row_bytes * shape.block_n : 0;
  double k_tile = uses_registers ? 0.19 : 0.16;
  for (const double bound : {(area * 20e-6 + 0.01) * (uses_registers ? 1.06 : 1), (written + read + moved) / 220e3,
                             written / 110e3, transposes ? 0.22 + 0.07 * shape.block_n / 32 : 0})
    if (bound > k_tile) k_tile = bound;
  return 5.5 + waves * (double(ceil_div(k, kTf32BlockK)) * k_tile + 0.2 + area * 1e-5);
}

// Where an operand can be read: in place along k or along its other dimension, or nowhere as it lies.
enum class Tf32Layout { along_k, across_k, unreadable };

struct Tf32Plan {
  Tf32Path path;
  bool copies_a, copies_b;  // along k, by a kernel before
  TilePlan tiles;           // of the transposed problem, unless both operands are read in place
};

inline Tf32Plan plan_tf32(int64_t m, int64_t n, int64_t k, int64_t chunk_k, int64_t batch, Tf32Layout a, Tf32Layout b,
                          int num_sms) {
  const int64_t num_chunks = ceil_div(k, chunk_k);
  Tf32Plan best{};
  double best_time = 0;
  for (int option = 0; option < 4; ++option) {
    const bool copies_a = option % 2, copies_b = option / 2;
    if (!copies_a && a == Tf32Layout::unreadable) continue;
    if (!copies_b && b == Tf32Layout::unreadable) continue;
    const bool is_a_across = !copies_a && a == Tf32Layout::across_k,
               is_b_across = !copies_b && b == Tf32Layout::across_k;
    if (is_a_across && !is_b_across) continue;
    const Tf32Path path = is_a_across   ? Tf32Path::b_transposed
                          : is_b_across ? Tf32Path::a_from_registers
                                        : Tf32Path::both_in_place;
    const double copied = double(batch * k) * double((copies_a ? m : 0) + (copies_b ? n : 0));
    const double copy_time = copied > 0 ? 1.5 + copied * 8 / 4e6 : 0;
    for (int i = 0; i < kNumTf32TileShapes; ++i) {
      const TileShape& shape = kTf32TileShapes[i];
      if (!serves_path(shape, path) || (num_chunks > 1 && !sums_chunks(shape))) continue;
      for (const bool splits : {false, true}) {
        if (splits && num_chunks == 1) continue;
        double time =
            copy_time + model_tf32_microseconds(shape, path, is_b_across ? n : m, is_b_across ? m : n,
                                                splits ? chunk_k : k, splits ? batch * num_chunks : batch, num_sms);
        if (splits) time += 2 + double(batch * m * n * num_chunks) * 1e-6;
        if (best_time == 0 || time < best_time) {
          best = {path, copies_a, copies_b, {i, shape, 1, splits}};
          best_time = time;
        }
      }
    }
  }
  return best;
}

}  // namespace tiledmm

// Prints what wgmma_fp8 plans for each problem on standard input: m n k, whether A lies along m, B along n, C along m,
// elements between rows, whether C has fp32, rows of a block of A's factors and of B's (0: factors are of rows), where
// operands begin, multiprocessors. First the number of plans and of those that are not what the launcher takes, then
// the cheapest one: tile, block, whether roles are exchanged, which operands are copied, C's way, tiles and halves,
// microseconds, the cheapest of all plans' microseconds, the chunk of k.
#include "kernels/cuda/wgmma/fp8_plan.h"

#include <algorithm>
#include <cstdio>
#include <vector>

namespace {

using namespace tiledmm;

bool is_legal(const WgmmaPlan& plan, const GemmProblem& given) {
  const GemmProblem p = plan.is_column_major ? transposed(given) : given;
  const TilePlan& tiles = plan.tiles;
  const bool is_c_f32 = p.dtype_c == DType::f32, is_exchanged = tiles.is_exchanged;
  if (tiles.tile < 0 || tiles.tile >= kNumFp8Tiles) return false;
  const Fp8Tile& own = kFp8Tiles[tiles.tile];
  const bool is_own = own.shape.block_m == tiles.shape.block_m && own.shape.block_n == tiles.shape.block_n &&
                      tiles.shape.block_n % own.part_n == 0;
  const bool may_exchange = p.scaling == Scaling::rows && !is_c_f32 && plan.stores_by_tma && own.shape.block_n >= 64;
  const bool is_alone = !tiles.splits_chunks && !tiles.shares_tiles && tiles.cluster_m + tiles.cluster_n == 0;
  // The engine takes rows along k, whole units of 16 bytes apart; copies are made so.
  const auto is_readable = [&](const TensorMapView& view) { return view.is_k_major && view.ld % 16 == 0; };
  // C's rows are contiguous.
  const bool is_row_major = p.stride_cn == 1 || p.n == 1;
  const TileSchedule& s = plan.schedule;
  const int64_t m = is_exchanged ? p.n : p.m, n = is_exchanged ? p.m : p.n;
  const bool has_all_tiles = s.num_tiles == ceil_div(m, own.shape.block_m) * ceil_div(n, own.shape.block_n) &&
                             s.num_splits == 1 && s.full_tiles <= s.num_tiles && s.num_units <= s.num_tiles * 2 &&
                             (s.full_tiles == s.num_tiles || splits_tail(own.shape));
  return is_own && serves(own, factors_of(p), is_c_f32) && (!is_exchanged || may_exchange) && is_alone &&
         is_readable(plan.a) && is_readable(plan.b) && is_row_major && has_all_tiles;
}

}  // namespace

int main() {
  long m, n, k, gap, address;
  int along_m, along_n, c_along_m, is_c_f32, rows_a, rows_b, num_sms;
  while (std::scanf("%ld %ld %ld %d %d %d %ld %d %d %d %ld %d", &m, &n, &k, &along_m, &along_n, &c_along_m, &gap,
                    &is_c_f32, &rows_a, &rows_b, &address, &num_sms) == 12) {
    FoldedProblem folded{};
    GemmProblem& p = folded.gemm;
    p.m = m, p.n = n, p.k = k;
    p.a = reinterpret_cast<const void*>(address), p.b = p.a, p.c = reinterpret_cast<void*>(address);
    p.stride_am = along_m ? 1 : k + gap, p.stride_ak = along_m ? m + gap : 1;
    p.stride_bn = along_n ? 1 : k + gap, p.stride_bk = along_n ? n + gap : 1;
    p.stride_cm = c_along_m ? 1 : n + gap, p.stride_cn = c_along_m ? m + gap : 1;
    p.dtype_a = p.dtype_b = DType::e4m3;
    p.dtype_c = p.dtype_bias = is_c_f32 ? DType::f32 : DType::bf16;
    p.scaling = rows_a ? Scaling::blocks : Scaling::rows;
    p.scale_a = {nullptr, 1, m, rows_a ? rows_a : 1}, p.scale_b = {nullptr, 1, n, rows_b ? rows_b : 1};
    folded.batch_size = 1;
    folded.chunk_k = chunk_k(p);
    folded.asked_n = n;
    Plan best;
    std::vector<Plan> plans;
    PlanSearch search(best), all(plans);
    for_each_fp8_plan(kFp8Costs[0].costs, folded, num_sms, search);
    for_each_fp8_plan(kFp8Costs[0].costs, folded, num_sms, all);
    const WgmmaPlan& plan = best.as<WgmmaPlan>();
    int num_illegal = !is_legal(plan, p);
    double least = HUGE_VAL;
    for (const Plan& own : plans) {
      num_illegal += !is_legal(own.as<WgmmaPlan>(), p);
      least = std::min(least, own.cost_us);
    }
    std::printf("%d %d %d %d %d %d %d %d %d %d %d %.5f %.5f %ld\n", int(plans.size()), num_illegal, plan.tiles.tile,
                plan.tiles.shape.block_m, plan.tiles.shape.block_n, int(plan.tiles.is_exchanged), int(plan.copies_a),
                int(plan.copies_b), int(plan.stores_by_tma), plan.schedule.num_tiles, plan.schedule.full_tiles,
                best.cost_us, least, long(folded.chunk_k));
  }
}

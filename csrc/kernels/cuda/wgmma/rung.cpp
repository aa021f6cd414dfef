// The entries of wgmma, wgmma_grouped, wgmma_fp8, wgmma_fp8_grouped and wgmma_fp8_b.
#include "core/rung.h"
#include "kernels/cuda/shared/refuse.h"
#include "kernels/cuda/wgmma/fp8_b_plan.h"
#include "kernels/cuda/wgmma/fp8_grouped_plan.h"
#include "kernels/cuda/wgmma/plan.h"
#include "kernels/cuda/wgmma/tf32_plan.h"
#include "kernels/rungs.h"

namespace tiledmm::gpu {

TILEDMM_IF_LINKED Launcher launch_wgmma;
TILEDMM_IF_LINKED Launcher launch_wgmma_grouped;
TILEDMM_IF_LINKED Launcher launch_wgmma_fp8;
TILEDMM_IF_LINKED Launcher launch_wgmma_fp8_grouped;
TILEDMM_IF_LINKED Launcher launch_wgmma_fp8_b;

namespace {

// It sums the rows of a 16-bit A, where A is m-major and B is n-major, of a single product.
const char* refuse_row_sums(const GemmProblem& p) {
  const bool is_served = size_of(p.dtype_c) == 2 && p.m > 1 && p.n > 1 && p.k > 1 && p.stride_am == 1 &&
                         p.stride_ak != 1 && p.stride_bn == 1 && p.stride_bk != 1 && p.stride_cn == 1 &&
                         p.num_batch_dims == 0 && !is_blended(p);
  return is_served ? nullptr
                   : "it sums rows of 16-bit operands across k only, where C has 16 bits, too, and nothing is scaled";
}

const char* refuse(const FoldedProblem& problem, const Chip& chip) {
  constexpr int64_t kLimit = int64_t(1) << 30;
  const GemmProblem& p = problem.gemm;
  if (const char* reason = refuse_tf32(p, chip)) return reason;
  if (p.row_sums) {
    if (const char* reason = refuse_row_sums(p)) return reason;
  }
  if (p.k == 0) return "k is 0";
  if (p.m >= kLimit || p.n >= kLimit || p.k >= kLimit) return "a size is 2^30 or more";
  if (p.stride_cm != 1 && p.stride_cn != 1 && p.m != 1 && p.n != 1) return "C has no unit stride";
  // Tiles, each for every chunk of k, are counted in 32 bits; the smallest are of 64 x 32.
  const double num_tiles = double(ceil_div(p.m, 64)) * double(ceil_div(p.n, 32)) * double(problem.batch_size);
  if (num_tiles * double(ceil_div(p.k, kChunkUnit)) >= double(kLimit)) return "it has 2^30 tiles or more";
  return nullptr;
}

void for_each_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  const bool is_batch = problem.batch_size > 1;
  if (problem.gemm.dtype_a == DType::f32) {
    Tf32Costs borrowed;
    const Tf32Costs& costs =
        is_batch ? costs_for(kTf32BatchCosts, chip, borrowed) : costs_for(kTf32Costs, chip, borrowed);
    return for_each_tf32_plan(costs, problem, chip.num_cus, visit);
  }
  WgmmaCosts borrowed;
  const WgmmaCosts& costs =
      is_batch ? costs_for(kWgmmaBatchCosts, chip, borrowed) : costs_for(kWgmmaCosts, chip, borrowed);
  for_each_tile_plan(wgmma_search(costs, problem, chip.num_cus), chip.num_cus, visit);
}

void describe_tiles(const WgmmaPlan& plan, bool is_exchanged, int64_t chunks, Fields& fields) {
  const TilePlan& tiles = plan.tiles;
  fields.add_tile("block", tiles.shape.block_m, tiles.shape.block_n);
  if (tiles.shape.takes_turns) fields.add("consumers", "in turns");
  fields.add_copies(plan.copies_a, plan.copies_b);
  if (tiles.cluster_m || tiles.cluster_n) fields.add_tile("cluster", 1 << tiles.cluster_m, 1 << tiles.cluster_n);
  fields.add_split_k(tiles.splits_chunks || tiles.shares_tiles ? chunks : 1,
                     tiles.shares_tiles ? "cluster" : "second kernel");
  fields.add("chunks", chunks);
  if (is_exchanged) fields.add("computes", "C^T");
  if (tiles.group_m > 0) fields.add("group_m", tiles.group_m);
  if (tiles.blocks > 1) fields.add("blocks_per_cu", tiles.blocks);
}

void describe(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  const int64_t chunks = max_of(1, ceil_div(problem.gemm.k, problem.chunk_k));
  if (problem.gemm.dtype_a == DType::f32) {
    const Tf32Plan& own = plan.as<Tf32Plan>();
    describe_tiles(own, own.is_exchanged, chunks, fields);
    fields.add("path", kTf32PathNames[int(own.path)]);
    fields.add("block_k", kTf32BlockK);
  } else {
    const WgmmaPlan& own = plan.as<WgmmaPlan>();
    describe_tiles(own, own.tiles.is_exchanged, chunks, fields);
    fields.add("block_k", kWgmmaBlockK);
  }
}

const char* refuse_sizes_of_groups(const FoldedProblem& problem) {
  constexpr int64_t kLimit = int64_t(1) << 30;
  const GemmProblem& p = problem.gemm;
  const int64_t num_groups = num_groups_of(problem);
  if (num_groups == 0) return "there are no groups";
  if (p.m >= kLimit || p.n >= kLimit || p.k >= kLimit || num_groups >= kLimit) return "a size is 2^30 or more";
  const int64_t tiles_n = ceil_div(p.n, 32);
  if (double(most_tiles(p, num_groups, ceil_div(p.m, 64), 1)) * double(tiles_n) >= double(kLimit)) {
    return "it has 2^30 tiles or more";
  }
  return nullptr;
}

const char* refuse_grouped(const FoldedProblem& problem, const Chip& chip) {
  const GemmProblem& p = problem.gemm;
  if (!is_grouped(p) && !p.gated_b && !p.sum_offset) return "it is for groups, gated layers and sums that are kept";
  if (p.k == 0) return "k is 0";
  if (p.stride_cn != 1 && p.n != 1) return "rows of C have no unit stride";
  if (p.gated_b) {
    if (p.grouping == Grouping::k) return "it has no gated layers of groups of k";
    if (p.alpha != 1 || p.beta != 1 || p.stride_bias_m != 0)
      return "gated sums are not scaled; biases are vectors along n";
    if ((p.bias || p.gated_bias) && p.dtype_bias != p.dtype_a) return "biases of gated sums have the operands' dtype";
    if (p.activation == Activation::none) return "gated sums have an activation";
    TensorMapView view;
    for (const void* data : {p.b, p.gated_b}) {
      OperandView b = view_b(p);
      b.data = data;
      if (!describe_operand(b, problem, view)) return "the copy engine cannot take both B as they lie";
    }
  }
  if (!is_grouped(p) && p.num_batch_dims > 0) return "its only batch is that of groups";
  if (p.sum_offset) {
    if (p.grouping == Grouping::k) return "it keeps no sum of groups of k";
    if (!is_grouped(p) && !p.gated_b && ceil_div(p.m, 64) * ceil_div(p.n, 64) < chip.num_cus)
      return "k is not split, and C has fewer tiles than there are CUs";
    if (is_blended(problem) && !p.gated_b)
      return "it keeps no sum of what is scaled, or added to a matrix or to groups";
  }
  return refuse_sizes_of_groups(problem);
}

void for_each_grouped_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  GroupedCosts borrowed;
  tiledmm::for_each_grouped_plan(problem, costs_for(kGroupedCosts, chip, borrowed), chip.num_cus, visit);
}

void describe_grouped(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  const WgmmaGroupedPlan& own = plan.as<WgmmaGroupedPlan>();
  const TileShape& shape = kGroupedTileShapes[own.tile];
  fields.add_tile("block", shape.block_m, columns_of(shape, problem.gemm));
  fields.add_copies(own.copies_a, own.copies_b);
  fields.add("chunks", problem.gemm.grouping == Grouping::k ? 1 : max_of(1, ceil_div(problem.gemm.k, problem.chunk_k)));
  fields.add("block_k", kWgmmaBlockK);
}

// Kernels count elements from the first factor in 32 bits.
const char* refuse_factors(const GemmProblem& p, int64_t num_groups) {
  if (p.scaling == Scaling::blocks && (p.dtype_a != DType::e4m3 || p.dtype_b != DType::e4m3))
    return "operands with factors of blocks are e4m3";
  const auto extent = [&](const Scales& scales, int64_t rows) {
    return rows / scales.rows_of_block * scales.stride_row + ceil_div(p.k, kScaledK) * scales.stride_k +
           num_groups * int64_t(scales.stride_group);
  };
  const bool is_near = extent(p.scale_a, p.m) <= INT32_MAX && extent(p.scale_b, p.n) <= INT32_MAX;
  return is_near ? nullptr : "factors lie 2^31 or more elements apart";
}

const char* refuse_fp8(const FoldedProblem& problem, const Chip& chip) {
  if (problem.gemm.num_batch_dims > 0) return "it has no batch";
  if (const char* reason = refuse_factors(problem.gemm, 0)) return reason;
  return refuse(problem, chip);
}

const char* refuse_fp8_grouped(const FoldedProblem& problem, const Chip&) {
  const GemmProblem& p = problem.gemm;
  if (p.grouping != Grouping::rows) return "it is for groups of rows";
  if (p.k == 0) return "k is 0";
  if (p.stride_cn != 1 && p.n != 1) return "rows of C have no unit stride";
  if (p.scaling == Scaling::blocks && (p.scale_a.rows_of_block != 1 || p.scale_b.rows_of_block != kScaledK))
    return "factors of blocks are of 1 x 128 of A and of 128 x 128 of B";
  if (const char* reason = refuse_factors(p, num_groups_of(problem))) return reason;
  return refuse_sizes_of_groups(problem);
}

void for_each_fp8_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  WgmmaCosts borrowed;
  tiledmm::for_each_fp8_plan(costs_for(kFp8Costs, chip, borrowed), problem, chip.num_cus, visit);
}

void describe_main_loop(const Fp8Tile& tile, const GemmProblem& p, Fields& fields) {
  fields.add("part_n", tile.part_n);
  fields.add("block_k", kScaledK);
  fields.add("factors", p.scaling == Scaling::rows ? "rows" : "blocks");
}

void describe_fp8(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  const WgmmaPlan& own = plan.as<WgmmaPlan>();
  describe_tiles(own, own.tiles.is_exchanged, 1, fields);
  describe_main_loop(kFp8Tiles[own.tiles.tile], problem.gemm, fields);
}

void for_each_fp8_grouped_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  WgmmaCosts borrowed;
  GroupedCosts borrowed_of_groups;
  tiledmm::for_each_fp8_grouped_plan(problem, costs_for(kFp8Costs, chip, borrowed),
                                     costs_for(kGroupedCosts, chip, borrowed_of_groups), chip.num_cus, visit);
}

void describe_fp8_grouped(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  const WgmmaGroupedPlan& own = plan.as<WgmmaGroupedPlan>();
  const Fp8Tile& tile = kFp8Tiles[own.tile];
  fields.add_tile("block", tile.shape.block_m, tile.shape.block_n);
  fields.add_copies(own.copies_a, own.copies_b);
  describe_main_loop(tile, problem.gemm, fields);
}

const char* refuse_fp8_b(const FoldedProblem& problem, const Chip&) {
  constexpr int64_t kLimit = int64_t(1) << 30;
  const GemmProblem& p = problem.gemm;
  if (mix_of(p) != Mix::fp8_b) return "it is for a B of 8 bits beside an A of 16";
  if (p.num_batch_dims > 0) return "it has no batch";
  if (p.k == 0) return "k is 0";
  if (p.m >= kLimit || p.n >= kLimit || p.k >= kLimit) return "a size is 2^30 or more";
  if (p.stride_cn != 1 && p.n != 1) return "rows of C have no unit stride";
  if (is_blended(p) || (p.bias && p.stride_bias_m != 0))
    return "it adds a bias of columns alone, and nothing is scaled";
  TensorMapView view;
  if (!describe_along_k(view_a(p), view) || !describe_along_k(view_b(p), view))
    return "A and B lie along k, in rows that the copy engine can take";
  if (double(ceil_div(p.m, 8)) * double(ceil_div(p.n, 64)) * double(ceil_div(p.k, problem.chunk_k)) >= double(kLimit))
    return "it has 2^30 tiles or more";
  return nullptr;
}

void for_each_fp8_b_plan(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit) {
  Fp8BCosts borrowed;
  tiledmm::for_each_fp8_b_plan(costs_for(kFp8BCosts, chip, borrowed), problem, chip.num_cus, visit);
}

void describe_fp8_b(const FoldedProblem& problem, const Chip&, const Plan& plan, Fields& fields) {
  const Fp8BPlan& own = plan.as<Fp8BPlan>();
  const Fp8BTile& tile = kFp8BTiles[own.tile];
  const int64_t chunks = max_of(1, ceil_div(problem.gemm.k, problem.chunk_k));
  fields.add_tile("block", 64 * tile.consumers, tile.block_n);
  fields.add_tile("rows", own.rows, own.cols);
  fields.add("block_k", tile.block_k);
  fields.add_split_k(own.split == Fp8BSplit::none ? 1 : chunks,
                     own.split == Fp8BSplit::by_cluster ? "cluster" : "second kernel");
  fields.add("chunks", chunks);
  fields.add("computes", "C^T");
}

}  // namespace

const Rung wgmma_fp8_rung = {
    .name = "wgmma_fp8",
    .description = "Hopper: operands in 8 bits with factors, sums of 128 products added up in fp32",
    .is_gpu = true,
    .is_native = true,
    .order = Order::fp8_sums,
    .takes = {.dtypes = {DType::e4m3, DType::e5m2},
              .num_dtypes = 2,
              .served = "it serves e4m3 and e5m2",
              .alpha = false,
              .fp8 = true},
    .refuse_chip = refuse_not_hopper,
    .refuse = refuse_fp8,
    .for_each_plan = for_each_fp8_plan,
    .describe = describe_fp8,
    .launch = launch_wgmma_fp8,
};

const Rung wgmma_fp8_grouped_rung = {
    .name = "wgmma_fp8_grouped",
    .description = "Hopper: groups of rows in 8 bits with factors, by wgmma_grouped's blocks and wgmma_fp8's sums",
    .is_gpu = true,
    .is_native = true,
    .order = Order::fp8_sums,
    .takes = {.dtypes = {DType::e4m3, DType::e5m2},
              .num_dtypes = 2,
              .served = "it serves e4m3 and e5m2",
              .alpha = false,
              .groups = true,
              .fp8 = true},
    .refuse_chip = refuse_not_hopper,
    .refuse = refuse_fp8_grouped,
    .for_each_plan = for_each_fp8_grouped_plan,
    .describe = describe_fp8_grouped,
    .launch = launch_wgmma_fp8_grouped,
};

const Rung wgmma_fp8_b_rung = {
    .name = "wgmma_fp8_b",
    .description = "Hopper: a B of 8 bits beside an A of 16, widened in registers",
    .is_gpu = true,
    .is_native = true,
    .order = Order::mma_chunks,
    .takes = {.dtypes = {DType::f16, DType::bf16},
              .num_dtypes = 2,
              .served = "it serves fp16 and bf16",
              .alpha = false,
              .fp8_b = true},
    .refuse_chip = refuse_not_hopper,
    .refuse = refuse_fp8_b,
    .for_each_plan = for_each_fp8_b_plan,
    .describe = describe_fp8_b,
    .launch = launch_wgmma_fp8_b,
};

const Rung wgmma_rung = {
    .name = "wgmma",
    .description = "Hopper: copy engine, warp specialisation, warpgroup matrix instructions",
    .is_gpu = true,
    .is_native = true,
    .order = Order::mma_chunks,
    .takes = {.dtypes = {DType::f16, DType::bf16, DType::f32},
              .num_dtypes = 3,
              .served = "it serves fp16, bf16 and fp32 rounded to tf32",
              .wide_result = true,
              .row_sums = true},
    .refuse_chip = refuse_not_hopper,
    .refuse = refuse,
    .for_each_plan = for_each_plan,
    .describe = describe,
    .launch = launch_wgmma,
};

const Rung wgmma_grouped_rung = {
    .name = "wgmma_grouped",
    .description = "Hopper: groups of rows or of k, gated layers, sums kept beside activations, by wgmma's pipeline",
    .is_gpu = true,
    .is_native = true,
    .order = Order::mma_chunks,
    .takes = {.dtypes = {DType::f16, DType::bf16},
              .num_dtypes = 2,
              .served = "it serves fp16 and bf16",
              .kept_sum = true,
              .groups = true,
              .gated = true},
    .refuse_chip = refuse_not_hopper,
    .refuse = refuse_grouped,
    .for_each_plan = for_each_grouped_plan,
    .describe = describe_grouped,
    .launch = launch_wgmma_grouped,
};

}  // namespace tiledmm::gpu

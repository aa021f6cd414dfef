"""wgmma and wgmma_single without a Hopper: their kernels run on emulated copies, barriers and matrix instructions
(emulated_hopper/emulator.h). Every bit of C, and of what lies around it and around the operands, is that of a model of
docs/numerics.md (emulated_wgmma.cpp).

The mutants say that it can fail: waits, arrivals and fences of the pipeline, boxes and their parts, clusters of blocks,
places of tiles and of halves of tiles, the order of chunks, the way to C, what is transposed of fp32. They are compiled
with the rest and switched on by an environment variable, as in ../gpu/test_host_execution.py.

CI compiles a dozen of the kernels. TILEDMM_EVERY_PLAN=1 with -k every_plan takes all of them, each with every plan of
about 50 problems about the edges of its tile: 3 to 90 seconds of a core for each of 52 tiles and dtypes.
"""

import os

import emulation
import pytest

pytestmark = pytest.mark.skipif(emulation.NVCC is None, reason="CUDA's headers come with nvcc")

RUNG = "kernels/cuda/wgmma/"
# Numbers of dtypes, and in kTileShapes or kTf32TileShapes; whether C has fp32 and the operands 16 bits.
F32, F16, BF16 = 0, 2, 3
WIDE_TILES = (0, 3, 7, 11, 13, 14)
KERNELS = [(F32, tile, 0) for tile in range(6)] + [(dtype, tile, 0) for dtype in (F16, BF16) for tile in range(18)]
KERNELS += [(dtype, tile, 1) for dtype in (F16, BF16) for tile in WIDE_TILES]
KERNELS = KERNELS if os.environ.get("TILEDMM_EVERY_PLAN") == "1" else []


EDITS = tuple(
    emulation.compiled_if_chosen(launcher, shares)
    for launcher, shares in (("launch_config", "false"), ("launch_shared", "true"))
)

SHARED, PLATFORM, SINGLE = "kernels/cuda/shared/", "platform/", "kernels/cuda/09_wgmma_single/kernel_sm90a.cu"
# Numbers of cases in emulated_wgmma.cpp.
BY_THREADS, HALVES, ALONG_M_AND_N, CLUSTERS, GRID, SHARES, ROW_SUMS, SPLIT_ROW_SUMS = range(8)
SMALL_ROW_SUMS, REPACKED, GROUPS, CHUNKS, SMALL, SHORT_K, EXCHANGED = range(8, 15)
REGISTERS, TRANSPOSED, ALONG_M, COPIED = range(15, 19)  # fp32
CLUSTER_GRID, PLAIN_HALVES, PLAIN_CLUSTERS, PLAIN_EXCHANGED, PLAIN_BY_THREADS, NEARLY_PLAIN = range(19, 25)
SINGLE_WHOLE, SINGLE_BATCH, SINGLE_COLUMN, SINGLE_ROW, PLAIN_BATCH = range(25, 30)
WIDE_HALVES, WIDE_CHUNKS, WIDE_CLUSTERS, WIDE_ALONG_M, WIDE_SHARES, WIDE_SPLIT = range(30, 36)
WIDE_PLAIN_GRID, WIDE_BY_THREADS, TURNS, PLAIN_TURNS, ONE_TURN = range(36, 41)
TWO_BLOCKS, TWO_BLOCKS_TF32, COPIED_RUNS, COPIED_ODD, LINES, LINES_OF_WORDS = range(41, 47)
FEW_COLUMNS, SHORT_ROWS, TURNED_LINES, NUM_CASES = range(47, 51)
# name: file, text, what takes its place ({on}: this mutant is switched on), the case that finds it
MUTANTS = {
    # The pipeline.
    "k tiles are multiplied before they are there": (
        "multiply.h",
        "mbarrier_wait_parity(shared.full",
        "if (!{on}) mbarrier_wait_parity(shared.full",
        BY_THREADS,
    ),
    "stages are filled while they are multiplied": (
        "produce.h",
        "mbarrier_wait_parity(shared.empty",
        "if (!{on}) mbarrier_wait_parity(shared.empty",
        BY_THREADS,
    ),
    "a stage is freed before it is multiplied": (
        "multiply.h",
        "wgmma_wait_group<1>();",
        "if (!{on}) wgmma_wait_group<1>();",
        HALVES,
    ),
    "the last stage of a tile is not freed": (
        "multiply.h",
        "  release_stage<Cfg>(shared, previous);\n}",
        "  if (!{on}) release_stage<Cfg>(shared, previous);\n}",
        BY_THREADS,
    ),
    "sums are read before they are there": (
        "multiply.h",
        "wgmma_wait_group<0>();",
        "if (!{on}) wgmma_wait_group<0>();",
        BY_THREADS,
    ),
    "no fence before matrix instructions": ("multiply.h", "wgmma_fence();", "if (!{on}) wgmma_fence();", BY_THREADS),
    "the ring keeps its phase": (SHARED + "ring.h", "phase ^= 1;", "phase ^= {on} ? 0 : 1;", HALVES),
    "the phase behind a first tile that fills the ring": (
        "produce.h",
        "ring.phase = num_first == ring.num_stages;",
        "ring.phase = !{on} && num_first == ring.num_stages;",
        HALVES,
    ),
    "the stage behind a first tile that does not fill the ring": (
        "produce.h",
        "ring.stage = num_first == ring.num_stages ? 0 : num_first;",
        "ring.stage = {on} || num_first == ring.num_stages ? 0 : num_first;",
        GROUPS,
    ),
    "copies before earlier kernels are done": (
        "produce.h",
        "  griddepcontrol_wait();\n  Ring",
        "  if (!{on}) griddepcontrol_wait();\n  Ring",
        GRID,
    ),
    "bytes of a whole tile for a half": (
        "produce.h",
        "Piece::kBlockN == Cfg::kBlockN ?",
        "{on} || Piece::kBlockN == Cfg::kBlockN ?",
        HALVES,
    ),
    "stages are not freed": (
        "multiply.h",
        "if (previous >= 0) release_stage",
        "if (previous >= 0 && !{on}) release_stage",
        HALVES,
    ),
    "bytes are not announced": (
        "produce.h",
        "mbarrier_arrive_expect_tx(",
        "if (!{on}) mbarrier_arrive_expect_tx(",
        BY_THREADS,
    ),
    "a stage is free when the first consumer has read it": (
        "kernel.h",
        "4 * Cfg::kReaders * num_senders",
        "4 * ({on} ? 1 : Cfg::kReaders) * num_senders",
        HALVES,
    ),
    "barriers are used before they are initialised": (
        "kernel.h",
        "__syncthreads();",
        "if (!{on}) __syncthreads();",
        BY_THREADS,
    ),
    # Boxes and descriptors.
    "boxes are fetched from places too close to each other": (
        SHARED + "boxes.h",
        "row_of(first, i * BOX),",
        "row_of(first, i * (BOX - ({on} ? 8 : 0))),",
        ALONG_M_AND_N,
    ),
    "boxes lie too close to each other": (
        SHARED + "boxes.h",
        "smem + i * BOX * 128 +",
        "smem + i * BOX * ({on} ? 64 : 128) +",
        ALONG_M_AND_N,
    ),
    "the narrow box is as wide as the others": (
        SHARED + "boxes.h",
        "map + (kTail &&",
        "map + (!{on} && kTail &&",
        ALONG_M_AND_N,
    ),
    "a box of 64 bytes is swizzled as one of 128": (
        SHARED + "boxes.h",
        "outer >> log_parts, kPitch,",
        "outer >> log_parts, {on} ? 128 : kPitch,",
        GRID,
    ),
    "all parts of a box lie on the first": (
        SHARED + "boxes.h",
        " + skipped * kPitch;",
        " + ({on} ? 0 : skipped * kPitch);",
        CLUSTERS,
    ),
    "all parts of a box are the first": (
        SHARED + "boxes.h",
        "(IS_K_MAJOR ? row : k) + skipped;",
        "(IS_K_MAJOR ? row : k) + ({on} ? 0 : skipped);",
        CLUSTERS,
    ),
    "B's distance between groups of columns": (
        "multiply.h",
        "matrix_descriptor_at(Cfg::kDescB, address.b",
        "matrix_descriptor_at(Cfg::kDescB + ({on} ? 1 << 21 : 0), address.b",
        ALONG_M_AND_N,
    ),
    "all consumers have the first one's rows": (
        "multiply.h",
        "shared.stages + row_block * kRowBlockBytes",
        "shared.stages + ({on} ? 0 : row_block) * kRowBlockBytes",
        GROUPS,
    ),
    # Tiles that begin in the middle of a wide box.
    "no tile fetches its narrow box first": (
        SHARED + "boxes.h",
        "if (kTail == 0 || first",
        "if (kTail == 0 || {on} || first",
        ALONG_M_AND_N,
    ),
    "the last columns of a turned tile are stored last": (
        SHARED + "epilogue.h",
        "is_last ? at.col : at.col + kTail + place;",
        "is_last && !{on} ? at.col : at.col + kTail + place;",
        ALONG_M_AND_N,
    ),
    "the accumulators of a turned tile's first columns are not turned": (
        SHARED + "epilogue.h",
        "v[i] = is_last && is_turned ?",
        "v[i] = is_last && is_turned && !{on} ?",
        ALONG_M_AND_N,
    ),
    "the bias is not turned": (
        SHARED + "epilogue.h",
        "Cfg::LoaderB::row_of(col, thread) : row;",
        "({on} ? col + thread : Cfg::LoaderB::row_of(col, thread)) : row;",
        ALONG_M_AND_N,
    ),
    "the bias beyond a warpgroup's threads is not turned": (
        SHARED + "epilogue.h",
        "Cfg::LoaderB::row_of(col, thread + kWarpgroup) : row",
        "({on} ? col + thread + kWarpgroup : Cfg::LoaderB::row_of(col, thread + kWarpgroup)) : row",
        ALONG_M_AND_N,
    ),
    "the sums of a chunk are not turned": (
        SHARED + "epilogue.h",
        "Cfg::LoaderB::row_of(at.col, j * 8) +",
        "({on} ? at.col + j * 8 : Cfg::LoaderB::row_of(at.col, j * 8)) +",
        CLUSTERS,
    ),
    # Clusters.
    "B goes to the blocks of the first columns": (
        "produce.h",
        "args.same_cols << (rank.n << args.cluster_m)",
        "args.same_cols << ({on} ? 0 : rank.n << args.cluster_m)",
        CLUSTERS,
    ),
    "A goes to the blocks of the first rows": ("produce.h", "<< rank.m);", "<< ({on} ? 0 : rank.m));", CLUSTERS),
    "the last partner is not told that a stage is free": (
        "kernel.h",
        "lane < num_senders ?",
        "lane < num_senders - {on} ?",
        CLUSTERS,
    ),
    "a block tells itself instead of a partner": (
        "kernel.h",
        "map_shared_cluster(shared.empty, block ^ other)",
        "map_shared_cluster(shared.empty, {on} ? block : block ^ other)",
        CLUSTER_GRID,
    ),
    "blocks of the same rows are told to others": (
        "kernel.h",
        "along_n << args.cluster_m : lane",
        "along_n << ({on} ? 0 : args.cluster_m) : lane",
        CLUSTER_GRID,
    ),
    "a quarter of a box is taken for half": (
        SHARED + "boxes.h",
        "boxes.rows : kBlockK) >> log_parts)",
        "boxes.rows : kBlockK) >> ({on} ? 1 : log_parts))",
        CLUSTERS,
    ),
    "A goes to the first two blocks of the same rows alone": (
        "kernel.h",
        "i < 1 << args.cluster_n; ++i) args.same_rows",
        "i < 1 << ({on} ? 1 : args.cluster_n); ++i) args.same_rows",
        EXCHANGED,
    ),
    # A C that threads store.
    "threads: columns before a part are left out": (
        SHARED + "epilogue.h",
        "(kBegin - kLead + col) / 2",
        "(kBegin - ({on} ? 0 : kLead) + col) / 2",
        LINES,
    ),
    "threads: what the last part leaves is stored without it": (
        SHARED + "epilogue.h",
        "is_joined ? first + kSectorBytes - behind_32",
        "is_joined && !{on} ? first + kSectorBytes - behind_32",
        LINES_OF_WORDS,
    ),
    "threads: the last part of C leaves its last sector": (
        SHARED + "epilogue.h",
        "&& num_cols > kEnd - kBegin;",
        "&& ({on} || num_cols > kEnd - kBegin);",
        FEW_COLUMNS,
    ),
    "threads: a turned tile's last columns are joined to others": (
        SHARED + "epilogue.h",
        "kNumber > 0 && !(kIsTail && is_turned);",
        "kNumber > 0 && ({on} || !(kIsTail && is_turned));",
        TURNED_LINES,
    ),
    "threads: a turned tile's sector before its last columns is left": (
        SHARED + "epilogue.h",
        "Cfg::kBlockN - (is_turned ? kTail : 0)",
        "Cfg::kBlockN - (is_turned && !{on} ? kTail : 0)",
        TURNED_LINES,
    ),
    "threads: an element at an end of a row is left out": (
        SHARED + "epilogue.h",
        "store_piece(uint16_t());",
        "if (!{on}) store_piece(uint16_t());",
        LINES,
    ),
    "threads: a row ends with the wrong eight bytes": (
        SHARED + "epilogue.h",
        "bytes.end & -2 * kSize",
        "bytes.end & ({on} ? -kSize : -2 * kSize)",
        LINES_OF_WORDS,
    ),
    "threads: elements that lie within 16 bytes are left out": (
        SHARED + "epilogue.h",
        "!is_last && place < bytes.end; place += 2",
        "!is_last && place < bytes.end && !{on}; place += 2",
        FEW_COLUMNS,
    ),
    # Exchanged roles.
    "C's matrices are not transposed": (
        SHARED + "epilogue.h",
        "if (args.is_exchanged)",
        "if (args.is_exchanged && !{on})",
        EXCHANGED,
    ),
    "the rows of an exchanged C are taken for its columns": (
        SHARED + "epilogue.h",
        "args.is_exchanged ? row : first_col",
        "args.is_exchanged && !{on} ? row : first_col",
        EXCHANGED,
    ),
    "all warps of an exchanged C store to the first one's columns": (
        SHARED + "epilogue.h",
        "(((2 * warp + lane / 8 % 2)",
        "(((({on} ? 0 : 2 * warp) + lane / 8 % 2)",
        EXCHANGED,
    ),
    "a block fetches a part of its first tiles alone": (
        "produce.h",
        "Cfg::kClusters ? 1 << args.cluster_n : 1",
        "Cfg::kClusters ? 1 << ({on} ? 0 : args.cluster_n) : 1",
        CLUSTERS,
    ),
    "the blocks of a grid's cluster begin with other clusters' tiles": (
        SHARED + "tiles.h",
        "place_in_c<Cfg>(int(blockIdx.x) >> log_cluster,",
        "place_in_c<Cfg>(int(blockIdx.x) >> ({on} ? 0 : log_cluster),",
        CLUSTER_GRID,
    ),
    "a cluster's first copies are those of another tile": (
        "kernel.h",
        "int(blockIdx.x) >> log_cluster",
        "int(blockIdx.x) >> ({on} ? 0 : log_cluster)",
        CLUSTERS,
    ),
    "partners' barriers are not waited for": (
        "kernel.h",
        "cluster_wait();  // the other blocks' barriers",
        "if (!{on}) cluster_wait();  // the other blocks' barriers",
        CLUSTER_GRID,
    ),
    "a block ends before its partners' signals": (
        "kernel.h",
        "if (Cfg::kClusters && shared.in_cluster) wait_for_releases(shared, ring);",
        "if (Cfg::kClusters && shared.in_cluster && !{on}) wait_for_releases(shared, ring);",
        CLUSTERS,
    ),
    # Plain kernels.
    "a bias and an activation are left out": (
        "kernel.h",
        "tiledmm::is_plain(p) &&",
        "({on} || tiledmm::is_plain(p)) &&",
        GROUPS,
    ),
    "alpha is left out": (SHARED + "epilogue.h", "fmaf(args.alpha,", "fmaf({on} ? 1 : args.alpha,", GRID),
    "all items have the first one's bias": (
        SHARED + "epilogue.h",
        "bias_at<Cfg>(args, bias, item % dim.size * dim.bias);",
        "bias_at<Cfg>(args, bias, {on} ? 0 : item % dim.size * dim.bias);",
        GRID,
    ),
    "items of a batch are left out": (
        SHARED + "tiles.h",
        "int d = args.num_batch_dims - 1;",
        "int d = {on} && Cfg::kIsPlain ? -1 : args.num_batch_dims - 1;",
        PLAIN_BATCH,
    ),
    "chunks are one chain": (
        "kernel.h",
        "task.problem.chunk_k >= p.k &&",
        "({on} || task.problem.chunk_k >= p.k) &&",
        NEARLY_PLAIN,
    ),
    "a plain kernel's halves are whole tiles": (
        "kernel.h",
        "produce<Cfg, HalfOf<Cfg>>(map_a",
        "if (!{on} || !Cfg::kIsPlain) produce<Cfg, HalfOf<Cfg>>(map_a",
        PLAIN_HALVES,
    ),
    "a plain kernel leaves out the last k tile": (
        SHARED + "tiles.h",
        "at.num_k_tiles = args.num_k_tiles;\n  int item",
        "at.num_k_tiles = args.num_k_tiles - ({on} && Cfg::kIsPlain);\n  int item",
        PLAIN_BY_THREADS,
    ),
    "a plain kernel of a grid begins at the second k tile": (
        SHARED + "tiles.h",
        "if (Cfg::kIsPlain) return at;\n  at.first_k_tile",
        "if (Cfg::kIsPlain) { at.first_k_tile += {on}; return at; }\n  at.first_k_tile",
        PLAIN_EXCHANGED,
    ),
    # Places of tiles.
    "the last group has as many rows as the others": (
        SHARED + "tile_groups.h",
        "first == first_of_last ?",
        "first == first_of_last && !{on} ?",
        GROUPS,
    ),
    "both halves of a tile are the first": (
        SHARED + "tiles.h",
        "at.col += i % kPieces",
        "at.col += ({on} ? 0 : i % kPieces)",
        HALVES,
    ),
    "the producer of a grid does not begin early": (
        SHARED + "tiles.h",
        "int(blockIdx.y), args);\n",
        "int(blockIdx.y), args);\n  if ({on}) at.row = int(blockIdx.x) * Cfg::kBlockM;\n",
        GRID,
    ),
    "items of the batch share A": (
        SHARED + "tiles.h",
        "at.batch_a += idx",
        "at.batch_a += {on} ? 0 : idx",
        ALONG_M_AND_N,
    ),
    "rows and columns that only the last tiles have are not stored": (
        SHARED + "tiles.h",
        "return int((uint32_t(start) + BLOCK - 1) / BLOCK * BLOCK);",
        "return int((uint32_t(start) + BLOCK - 1) / BLOCK * BLOCK) + ({on} ? BLOCK : 0);",
        BY_THREADS,
    ),
    "all chunks are the first": (
        "produce.h",
        "(at.first_k_tile + k_tile + i) * Cfg::kBlockK",
        "(({on} ? 0 : at.first_k_tile) + k_tile + i) * Cfg::kBlockK",
        CLUSTERS,
    ),
    "the rest of k is left out": (
        "kernel.h",
        "args.num_k_tiles = int(ceil_div(p.k, Cfg::kBlockK));",
        "args.num_k_tiles = int({on} ? p.k / Cfg::kBlockK : ceil_div(p.k, Cfg::kBlockK));",
        BY_THREADS,
    ),
    "a grid's items of the batch share A": (
        SHARED + "tiles.h",
        "at.batch_a = args.slabs_step_a ?",
        "at.batch_a = args.slabs_step_a && !{on} ?",
        GRID,
    ),
    "a grid's first copies are those of the first chunk": (
        SHARED + "tiles.h",
        "at.first_k_tile = blockIdx.z * args.slabs_step_k;",
        "at.first_k_tile = {on} ? 0 : blockIdx.z * args.slabs_step_k;",
        SHARES,
    ),
    # Chunks, sums of rows.
    "a chunk's sums are not added": (
        "multiply.h",
        "[&] { add(total, acc.c); });",
        "[&] { if (!{on}) add(total, acc.c); });",
        CHUNKS,
    ),
    "the second kernel adds the last chunk first": (
        PLATFORM + "chunk_sums.h",
        "(from + (chunk + i) * slab)",
        "(from + ({on} ? count - 1 - chunk - i : chunk + i) * slab)",
        CLUSTERS,
    ),
    "a cluster adds the last chunk first": (
        "cluster.h",
        "const float4 total = sum_of",
        "if ({on}) std::swap(sums[0], sums[args.num_splits - 1]);\n    const float4 total = sum_of",
        SHARES,
    ),
    "a cluster's sums are read before they are there": (
        "cluster.h",
        "  cluster_sync();\n  for",
        "  if (!{on}) cluster_sync();\n  for",
        SHARES,
    ),
    "a block ends before others have read its sums": (
        "cluster.h",
        "cluster_sync();  // others",
        "if (!{on}) cluster_sync();  // others",
        SHARES,
    ),
    "sums take the place of stages that are multiplied": (
        "cluster.h",
        "named_barrier_sync(1, kWarpgroup);  // all",
        "if (!{on}) named_barrier_sync(1, kWarpgroup);  // all",
        SHARES,
    ),
    "all blocks of a cluster finish the same part": (
        "cluster.h",
        "int unit = rank * kWarpgroup",
        "int unit = ({on} ? 0 : rank) * kWarpgroup",
        SHARES,
    ),
    "the sums of rows are those of the last chunk": (
        "multiply.h",
        "add(acc.total_of_rows, {acc.row_sums[0],",
        "if ({on}) acc.total_of_rows[0] = acc.total_of_rows[1] = 0;\n"
        "  if constexpr (SUMS_ROWS) add(acc.total_of_rows, {acc.row_sums[0],",
        SMALL_ROW_SUMS,
    ),
    "the sums of rows of all chunks are those of the first": (
        SHARED + "epilogue.h",
        "(int64_t(at.slab) * args.m + i + 1)",
        "(int64_t({on} ? 0 : at.slab) * args.m + i + 1)",
        SPLIT_ROW_SUMS,
    ),
    "the sum of a row is that of the next column": (
        PLATFORM + "chunk_sums.h",
        "col + COLS == ld)",
        "col + COLS == ld - {on})",
        SPLIT_ROW_SUMS,
    ),
    "a cluster's tile is stored beyond C": (
        "cluster.h",
        "const bool has_second = col + 1 < args.n;",
        "const bool has_second = {on} || col + 1 < args.n;",
        SHARES,
    ),
    # The way to C.
    "rows of a warp's upper half are stored in the lower": (
        SHARED + "epilogue.h",
        "const int r = warp * 16 + lane % 16;",
        "const int r = warp * 16 + lane % ({on} ? 8 : 16);",
        GROUPS,
    ),
    "C is not swizzled": (
        SHARED + "epilogue.h",
        "row_address + ((packet ^ r % 8) << 4)",
        "row_address + ((packet ^ ({on} ? 0 : r % 8)) << 4)",
        GROUPS,
    ),
    "the last columns of a tile are stored where the others are": (
        SHARED + "epilogue.h",
        "const int first_col = !is_turned ? at.col + place :",
        "const int first_col = !is_turned ? at.col + ({on} ? part : place) :",
        GROUPS,
    ),
    "a buffer is filled while it is stored": (
        SHARED + "epilogue.h",
        "if (thread == 0) cp_async_bulk_wait_group_read<kBuffers - 1>();",
        "if (thread == 0 && !{on}) cp_async_bulk_wait_group_read<kBuffers - 1>();",
        GROUPS,
    ),
    "a buffer is filled by others while it is stored": (
        SHARED + "epilogue.h",
        "named_barrier_sync(barrier_id, kWarpgroup);\n    // Swizzled",
        "if (!{on}) named_barrier_sync(barrier_id, kWarpgroup);\n    // Swizzled",
        GROUPS,
    ),
    "consumers share their buffers": (
        "kernel.h",
        "smem_c + consumer * kStoreBytes",
        "smem_c + ({on} ? 0 : consumer) * kStoreBytes",
        GROUPS,
    ),
    "consumers share their barrier": (
        SHARED + "epilogue.h",
        "const int barrier_id = 1 + consumer;",
        "const int barrier_id = 1 + ({on} ? 0 : consumer);",
        GROUPS,
    ),
    "a warp's rows are read back before they are there": (
        SHARED + "epilogue.h",
        "__syncwarp();  // a warp reads the rows",
        "if (!{on}) __syncwarp();  // a warp reads the rows",
        BY_THREADS,
    ),
    "the copy engine does not see a buffer": (
        SHARED + "epilogue.h",
        "fence_proxy_async();",
        "if (!{on}) fence_proxy_async();",
        GROUPS,
    ),
    "a buffer is stored before it is filled": (
        SHARED + "epilogue.h",
        "fence_proxy_async();\n    named_barrier_sync(barrier_id, kWarpgroup);",
        "fence_proxy_async();\n    if (!{on}) named_barrier_sync(barrier_id, kWarpgroup);",
        GROUPS,
    ),
    "a block ends before its stores are read": (
        "kernel.h",
        "threadIdx.x % kWarpgroup == 0) cp_async_bulk_wait_group_read<0>();",
        "threadIdx.x % kWarpgroup == 0 && !{on}) cp_async_bulk_wait_group_read<0>();",
        GROUPS,
    ),
    "the bias takes the place of what is stored": (
        SHARED + "epilogue.h",
        "if (thread == 0) cp_async_bulk_wait_group_read<0>();\n    named",
        "if (thread == 0 && !{on}) cp_async_bulk_wait_group_read<0>();\n    named",
        GROUPS,
    ),
    "the bias takes the place of what others store": (
        SHARED + "epilogue.h",
        "named_barrier_sync(barrier_id, kWarpgroup);\n    if (thread < Cfg::kBlockN)",
        "if (!{on}) named_barrier_sync(barrier_id, kWarpgroup);\n    if (thread < Cfg::kBlockN)",
        GROUPS,
    ),
    "the bias is added before it is there": (
        SHARED + "epilogue.h",
        "    named_barrier_sync(barrier_id, kWarpgroup);\n#pragma unroll\n    for (int j",
        "    if (!{on}) named_barrier_sync(barrier_id, kWarpgroup);\n#pragma unroll\n    for (int j",
        GROUPS,
    ),
    "slots of the activation take the place of what is stored": (
        SHARED + "epilogue.h",
        "if (threadIdx.x % kWarpgroup == 0) cp_async_bulk_wait_group_read<0>();  // as in add_bias",
        "if (threadIdx.x % kWarpgroup == 0 && !{on}) cp_async_bulk_wait_group_read<0>();",
        SHORT_K,
    ),
    "slots of the activation take the place of what others store": (
        SHARED + "epilogue.h",
        "named_barrier_sync(barrier_id, kWarpgroup);\n  float* slots",
        "if (!{on}) named_barrier_sync(barrier_id, kWarpgroup);\n  float* slots",
        SHORT_K,
    ),
    "the copy engine stores parts of units": (
        "plan.h",
        "describe_result(problem, plan.c) && is_storable(p.dtype_c, plan.c);",
        "describe_result(problem, plan.c) && ({on} || is_storable(p.dtype_c, plan.c));",
        SMALL,
    ),
    "threads store rows beyond C": (
        SHARED + "epilogue.h",
        "own_row < num_rows; own_row += kRowsAtOnce",
        "own_row < ({on} ? kRows : num_rows); own_row += kRowsAtOnce",
        SMALL,
    ),
    "threads store columns beyond C": (
        SHARED + "epilogue.h",
        "min(kEnd - kBegin, num_cols))};",
        "({on} ? kEnd - kBegin : min(kEnd - kBegin, num_cols)))};",
        SMALL,
    ),
    "narrow tiles are stored beyond C": (
        SHARED + "epilogue.h",
        "if (first_col + j + 1 < args.n)",
        "if ({on} || first_col + j + 1 < args.n)",
        GRID,
    ),
    "sums of a chunk beyond C": (
        SHARED + "epilogue.h",
        "if (col < args.n) *reinterpret_cast<float2*>",
        "if ({on} || col < args.n) *reinterpret_cast<float2*>",
        SPLIT_ROW_SUMS,
    ),
    "a warp copies one row again and again": (
        SHARED + "copy_operands.h",
        "group * rows_of_unit + (lane >> log_lanes);",
        "group * rows_of_unit + ({on} ? 0 : lane >> log_lanes);",
        REPACKED,
    ),
    "a warp copies the rows behind an item": (
        SHARED + "copy_operands.h",
        "if (row_of_item >= job.outer) find_item();",
        "if (row_of_item >= job.outer && !{on}) find_item();",
        COPIED_RUNS,
    ),
    "a row that begins two elements into 16 bytes is not shifted by them": (
        SHARED + "copy_operands.h",
        "words[w] = shift & 2 ? words[w + 1] : words[w];",
        "words[w] = !{on} && shift & 2 ? words[w + 1] : words[w];",
        COPIED_ODD,
    ),
    "a row that begins within a word is not shifted by an element": (
        SHARED + "copy_operands.h",
        "2 * (shift & 1)",
        "2 * ({on} ? 0 : shift & 1)",
        COPIED_ODD,
    ),
    "the second half of 16 bytes that overhang an operand lands in the first": (
        SHARED + "copy_operands.h",
        "e < 4 ? halves[0] |= element : halves[1] |= element;",
        "{on} || e < 4 ? halves[0] |= element : halves[1] |= element;",
        COPIED_ODD,
    ),
    "every segment of a row is the first": (
        SHARED + "copy_operands.h",
        "segment * kCopySegment,",
        "({on} ? 0 : segment) * kCopySegment,",
        COPIED_ODD,
    ),
    "a warp copies the rest of both operands from A's number on": (
        SHARED + "copy_operands.h",
        "(both.jobs[1], first - first_units,",
        "(both.jobs[1], first - ({on} ? 0 : first_units),",
        COPIED_RUNS,
    ),
    # fp32.
    "fp32 is not rounded to tf32": (SHARED + "boxes.h", "sizeof(T) == 4))", "sizeof(T) == 4 && !{on}))", COPIED),
    "fragments are loaded before they are there": (
        "tf32.h",
        "mbarrier_wait_parity(shared.full + ring.stage * 8, ring.phase);\n    if",
        "if (!{on}) mbarrier_wait_parity(shared.full + ring.stage * 8, ring.phase);\n    if",
        REGISTERS,
    ),
    "fragments are overwritten while they are multiplied": (
        "tf32.h",
        "wgmma_wait_group<1>();",
        "if (!{on}) wgmma_wait_group<1>();",
        REGISTERS,
    ),
    "B is multiplied before it is transposed": (
        "tf32.h",
        "mbarrier_wait_parity(shared.transposed",
        "if (!{on}) mbarrier_wait_parity(shared.transposed",
        TRANSPOSED,
    ),
    "B is transposed before it is there": (
        "tf32.h",
        "mbarrier_wait_parity(shared.full + ring.stage * 8, ring.phase);\n      const",
        "if (!{on}) mbarrier_wait_parity(shared.full + ring.stage * 8, ring.phase);\n      const",
        TRANSPOSED,
    ),
    "k tiles, not stages, are shared out to transpose them": (
        "tf32.h",
        "if (ring.stage % kTransposers",
        "if (({on} ? k_tile : ring.stage) % kTransposers",
        TRANSPOSED,
    ),
    "a box is overwritten before it is read": (
        "tf32.h",
        "  __syncwarp();\n#pragma unroll",
        "  if (!{on}) __syncwarp();\n#pragma unroll",
        TRANSPOSED,
    ),
    "the matrix unit does not see what is transposed": (
        "tf32.h",
        "fence_proxy_async();\n      __syncwarp();",
        "if (!{on}) fence_proxy_async();\n      __syncwarp();",
        TRANSPOSED,
    ),
    "both halves of 64 rows are stored in one place": (
        "tf32.h",
        "store(map_c, row + 32, part_col",
        "store(map_c, row + ({on} ? 0 : 32), part_col",
        TRANSPOSED,
    ),
    "a buffer of fp32 is filled while it is stored": (
        "tf32.h",
        "if (thread == 0) cp_async_bulk_wait_group_read",
        "if (thread == 0 && !{on}) cp_async_bulk_wait_group_read",
        COPIED,
    ),
    "rows of fp32 are stored beyond C": ("tf32.h", "if (r < args.m &&", "if (({on} || r < args.m) &&", REGISTERS),
    "sums of a chunk of fp32 beyond C": (
        "tf32.h",
        "if (i >= args.ld_partial) return;",
        "if (i >= args.ld_partial && !{on}) return;",
        ALONG_M,
    ),
    "a copy along k is written before it is read": (
        SHARED + "copy_operands.h",
        "block_barrier();  // the tile is whole\n  // A warp",
        "if (!{on}) block_barrier();\n  // A warp",
        COPIED,
    ),
    # C in fp32 of operands in 16 bits.
    "wide: a bias in fp32 is taken for one in 16 bits": (
        SHARED + "arguments.h",
        "p.dtype_bias == DType::f32;",
        "p.dtype_bias == DType::f32 && !{on};",
        WIDE_HALVES,
    ),
    "wide: a thread's rows are neighbours": (
        "tf32.h",
        "const int line = first_row + Cfg::kRowStep * i,",
        "const int line = first_row + ({on} ? 1 : Cfg::kRowStep) * i,",
        WIDE_PLAIN_GRID,
    ),
    "wide: the second kernel takes a bias for another dtype": (
        PLATFORM + "epilogue.h",
        "load_any(problem.bias, problem.dtype_bias, idx)",
        "load_any(problem.bias, {on} ? DType::f16 : problem.dtype_bias, idx)",
        WIDE_SPLIT,
    ),
    "wide: a cluster stores a column beyond C": (
        "cluster.h",
        "if (has_second) to[1] = sums.y;",
        "if (has_second || {on}) to[1] = sums.y;",
        WIDE_SHARES,
    ),
    # Consumers that take tiles in turns.
    "turns: a consumer takes the other one's tiles": (
        "kernel.h",
        "if (turn % 2 != consumer)",
        "if (turn % 2 != ({on} ? 0 : consumer))",
        TURNS,
    ),
    "turns: the other consumer's stages are not passed": (
        "kernel.h",
        "return ring.skip(at.num_k_tiles);",
        "return ring.skip({on} ? 0 : at.num_k_tiles);",
        TURNS,
    ),
    "turns: the ring keeps its phase": (
        SHARED + "ring.h",
        "phase ^= uint32_t(end / NUM_STAGES & 1);",
        "phase ^= uint32_t({on} ? 0 : end / NUM_STAGES & 1);",
        TURNS,
    ),
    "turns: a turn is not passed on": (
        "multiply.h",
        "mbarrier_arrive(shared.next_turn);",
        "if (!{on}) mbarrier_arrive(shared.next_turn);",
        PLAIN_TURNS,
    ),
    "turns: the second consumer begins with rows below": (
        "kernel.h",
        "const int row = at.row + (Cfg::kTakesTurns ? 0 :",
        "const int row = at.row + (Cfg::kTakesTurns && !{on} ? 0 :",
        TURNS,
    ),
    "turns: the second consumer multiplies A's rows below": (
        "kernel.h",
        "first_stage_of<Cfg>(shared, Cfg::kTakesTurns ? 0 :",
        "first_stage_of<Cfg>(shared, Cfg::kTakesTurns && !{on} ? 0 :",
        TURNS,
    ),
    "turns: rows below are multiplied by those above": (
        "multiply.h",
        "address.a + kRowBlockBytes / 16 +",
        "address.a + ({on} ? 0 : kRowBlockBytes / 16) +",
        ONE_TURN,
    ),
    "turns: rows below are stored above": (
        "kernel.h",
        "row + block * 64, num_stores);",
        "row + ({on} ? 0 : block) * 64, num_stores);",
        ONE_TURN,
    ),
    "turns: rows above are stored twice": (
        "kernel.h",
        "acc.c[i] = acc.c_below[i];",
        "acc.c[i] = {on} ? acc.c[i] : acc.c_below[i];",
        ONE_TURN,
    ),
    "turns: rows below have the bias of those above": (
        "kernel.h",
        "thread_row + 64, Cfg::kRowStep);",
        "thread_row + ({on} ? 0 : 64), Cfg::kRowStep);",
        TURNS,
    ),
    # Two blocks of a multiprocessor, whose rings are shorter.
    "two blocks: the consumer's ring is as long as the kernel's": (
        "kernel.h",
        "int consumer) {\n  Ring<Cfg::kNumStages> ring{0, 0, num_stages<Cfg>(args)};",
        "int consumer) {\n  Ring<Cfg::kNumStages> ring{0, 0, {on} ? Cfg::kNumStages : num_stages<Cfg>(args)};",
        TWO_BLOCKS,
    ),
    "two blocks: the producer's ring is as long as the kernel's": (
        "kernel.h",
        "Cfg::kConsumers * 4;\n  Ring<Cfg::kNumStages> ring{0, 0, num_stages<Cfg>(args)};",
        "Cfg::kConsumers * 4;\n  Ring<Cfg::kNumStages> ring{0, 0, {on} ? Cfg::kNumStages : num_stages<Cfg>(args)};",
        TWO_BLOCKS,
    ),
    "two blocks: results are staged in the last stage": (
        "kernel.h",
        "char* smem_c = smem + num_stages<Cfg>(args) * stage_bytes;",
        "char* smem_c = smem + (num_stages<Cfg>(args) - ({on} ? 1 : 0)) * stage_bytes;",
        TWO_BLOCKS,
    ),
    # wgmma_single.
    "single: k tiles are multiplied before they are there": (
        SINGLE,
        "mbarrier_wait_parity(full",
        "if (!{on}) mbarrier_wait_parity(full",
        SINGLE_WHOLE,
    ),
    "single: stages are filled while they are multiplied": (
        SINGLE,
        "mbarrier_wait_parity(empty",
        "if (!{on}) mbarrier_wait_parity(empty",
        SINGLE_WHOLE,
    ),
    "single: a stage is freed before it is multiplied": (
        SINGLE,
        "wgmma_wait_group<0>();",
        "if (!{on} || k_tile + 1 == num_k_tiles) wgmma_wait_group<0>();",
        SINGLE_ROW,
    ),
    "single: sums are read before they are there": (
        SINGLE,
        "wgmma_wait_group<0>();",
        "if (!{on} || k_tile + 1 < num_k_tiles) wgmma_wait_group<0>();",
        SINGLE_COLUMN,
    ),
    "single: a stage is free when one consumer has read it": (
        SINGLE,
        "mbarrier_init(empty + stage * 8, kConsumers * 4)",
        "mbarrier_init(empty + stage * 8, ({on} ? 1 : kConsumers) * 4)",
        SINGLE_ROW,
    ),
    "single: barriers are used before they are initialised": (
        SINGLE,
        "__syncthreads();",
        "if (!{on}) __syncthreads();",
        SINGLE_WHOLE,
    ),
    "single: copies before earlier kernels are done": (
        SINGLE,
        "griddepcontrol_wait();",
        "if (!{on}) griddepcontrol_wait();",
        SINGLE_WHOLE,
    ),
    "single: bytes are not announced": (
        SINGLE,
        "mbarrier_arrive_expect_tx(barrier, kStageBytes);",
        "{on} ? mbarrier_arrive(barrier) : mbarrier_arrive_expect_tx(barrier, kStageBytes);",
        SINGLE_WHOLE,
    ),
    "single: no fence before matrix instructions": (
        SINGLE,
        "wgmma_fence();",
        "if (!{on}) wgmma_fence();",
        SINGLE_COLUMN,
    ),
    "single: sums take the place of stages that others multiply": (
        SINGLE,
        "named_barrier_sync(1, kProducer);",
        "if (!{on}) named_barrier_sync(1, kProducer);",
        SINGLE_WHOLE,
    ),
    "single: both consumers have the first one's rows": (
        SINGLE,
        "consumer * kMmaM * kPitch",
        "({on} ? 0 : consumer) * kMmaM * kPitch",
        SINGLE_WHOLE,
    ),
    "single: all boxes lie on the first": (
        SINGLE,
        "cp_async_bulk_tensor_3d(smem + i * kPitch,",
        "cp_async_bulk_tensor_3d(smem + ({on} ? 0 : i) * kPitch,",
        SINGLE_BATCH,
    ),
    "single: all boxes are the first": (
        SINGLE,
        "IS_K_MAJOR ? k : row + i,",
        "IS_K_MAJOR ? k : row + ({on} ? 0 : i),",
        SINGLE_BATCH,
    ),
    "single: items of the batch share A": (SINGLE, "const int item_a =", "const int item_a = {on} ? 0 :", SINGLE_BATCH),
    "single: items of the batch share B": (SINGLE, "const int item_b =", "const int item_b = {on} ? 0 :", SINGLE_BATCH),
    "single: the rest of k is left out": (
        SINGLE,
        "int(ceil_div(gemm.k, kBlockK));",
        "int({on} ? gemm.k / kBlockK : ceil_div(gemm.k, kBlockK));",
        SINGLE_WHOLE,
    ),
    "single: a thread's columns are its neighbour's": (
        SINGLE,
        "lane % 4 * 2 + i % 2]",
        "({on} ? lane % 2 : lane % 4) * 2 + i % 2]",
        SINGLE_WHOLE,
    ),
    "single: both rows of a thread are the first": (
        SINGLE,
        "i / 2 % 2 * 8]",
        "i / 2 % 2 * ({on} ? 0 : 8)]",
        SINGLE_WHOLE,
    ),
}


program = emulation.program_fixture("emulated_wgmma.cpp", RUNG, MUTANTS, EDITS)


@pytest.mark.takes_long
def test_every_bit_is_that_of_the_model(program):
    emulation.check_cases(program, NUM_CASES)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_found(mutant, program):
    emulation.check_mutant(program, MUTANTS, mutant)


@pytest.mark.parametrize(("dtype", "tile", "is_wide"), KERNELS)
def test_every_plan_of_a_tile(dtype, tile, is_wide, tmp_path):
    flags = (f"-DTILEDMM_TILE={tile}", f"-DTILEDMM_DTYPE={dtype}", f"-DTILEDMM_WIDE={is_wide}")
    program = emulation.compile_program(tmp_path, "emulated_wgmma.cpp", RUNG, {}, EDITS, flags)
    done = emulation.run(program, timeout=1800)
    assert done.returncode == 0 and done.stdout.count("right") > 20, done.stdout + done.stderr
    print(done.stdout)

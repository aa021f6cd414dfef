// What the kernel for few rows is given, and its launcher, which compiles in a file of its own.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "core/problem.h"

namespace tiledmm::cuda {

// The steps from one item of a batch's dimension to the next: items of the few rows' terms, of the large operand's
// tensor map.
struct FewSteps {
  int terms, map;
};

// How the large operand reaches the registers: by the copy engine, whose boxes lie along k or along its rows, through
// shared memory; or by loads, where the engine cannot read it.
enum class FewSource { boxes_along_k, boxes_along_rows, memory };

struct FewArguments {
  FoldedProblem problem;  // A has the few rows, B is the large operand
  FewSteps steps[kMaxGpuBatchDims];
  int num_blocks, num_chunks;  // of k
  int num_tiles;               // of an item
  int num_rounds;              // of a chunk for each block of a cluster
  int log2_parts;              // of a tile's sums, one for each of the first blocks of a cluster
  int stage_bytes;             // that arrive for a stage
  // Where a kernel of its own has split the few rows: their scales, [item][chunk][row], and rows in the boxes of terms.
  const float* scales;
  int padded_few, term_rows;
};

struct FewTask {
  FewArguments args;
  CUtensorMap large, terms;
  FewSource source;
  bool is_a;  // whether the large operand is the caller's A
  int64_t num_clusters;
  int cluster;  // blocks that share a tile
  cudaStream_t stream;
};

// The reason why it cannot be launched, else null.
const char* launch_few_rows(const FewTask& task);

}  // namespace tiledmm::cuda

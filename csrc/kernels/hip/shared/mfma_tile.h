// The k tiles of CDNA's kernels, as plain data.
#pragma once

#include "core/problem.h"

namespace tiledmm {

// A tile is staged 128 bytes of k at a time.
inline constexpr int kMfmaRowBytes = 128;
constexpr int mfma_block_k(DType dtype) { return kMfmaRowBytes / int(size_of(dtype)); }

// The rows of the largest tile.
inline constexpr int kMaxMfmaBlock = 256;

// A block has one item of the batch: a loop would keep in registers what does not change in it. So many at a time.
inline constexpr int64_t kMaxMfmaItems = 65535;

}  // namespace tiledmm

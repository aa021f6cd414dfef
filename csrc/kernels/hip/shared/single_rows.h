// Strides that mean nothing.
#pragma once

#include "core/problem.h"

namespace tiledmm {

// The stride from a single row to the next, or from a single k, becomes 0: it need not be aligned, nor fit into 32
// bits, and kernels compute places from it.
inline void clear_single_strides(GemmProblem& p) {
  if (p.m == 1 && p.stride_ak == 1) p.stride_am = 0;
  if (p.n == 1 && p.stride_bk == 1) p.stride_bn = 0;
  if (p.k == 1 && p.stride_am == 1) p.stride_ak = 0;
  if (p.k == 1 && p.stride_bn == 1) p.stride_bk = 0;
}

}  // namespace tiledmm

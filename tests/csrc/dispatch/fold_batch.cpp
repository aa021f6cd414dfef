// Random problems through fold_batch: the folded one has the same products, and the order of summation of the caller's.
// Prints what differs and exits with 1.
#include <algorithm>
#include <array>
#include <cstdio>
#include <random>
#include <vector>

#include "dispatch/fold_batch.h"
#include "kernels/split/layout.h"

using namespace tiledmm;

using Element = std::array<int64_t, 4>;  // offsets of a row of A, a column of B, an element of C, one of the bias

static std::vector<Element> elements_of(const GemmProblem& p, bool has_bias) {
  std::vector<Element> elements;
  for (int64_t item = 0; item < batch_size(p); ++item) {
    int64_t rest = item, a = 0, b = 0, c = 0, bias = 0;
    for (int32_t d = p.num_batch_dims - 1; d >= 0; --d) {
      const BatchDim& dim = p.batch_dims[d];
      const int64_t idx = rest % dim.size;
      rest /= dim.size;
      a += idx * dim.stride_a, b += idx * dim.stride_b, c += idx * dim.stride_c;
      bias += idx * dim.stride_bias;
    }
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < p.n; ++j) {
        elements.push_back({a + i * p.stride_am, b + j * p.stride_bn, c + i * p.stride_cm + j * p.stride_cn,
                            has_bias ? bias + i * p.stride_bias_m + j * p.stride_bias_n : 0});
      }
    }
  }
  std::sort(elements.begin(), elements.end());
  return elements;
}

int main() {
  std::mt19937 random(0);
  const auto pick = [&](int64_t count) { return int64_t(random() % uint64_t(count)); };
  const float bias = 0;
  int num_folded = 0;
  for (int round = 0; round < 20000; ++round) {
    GemmProblem p{};
    p.m = 1 + pick(3), p.n = pick(40) ? 1 + pick(3) : 100 + pick(1000), p.k = pick(2) ? 1 + pick(40) : pick(9000);
    p.set_dtypes(DType(pick(4)));
    p.allow_tf32 = pick(2);
    const int64_t kind = pick(4);  // of what is added: nothing, a vector along m or n, a matrix
    if (kind) p.bias = &bias, p.stride_bias_m = kind == 1 ? 1 : kind == 2 ? 0 : p.n, p.stride_bias_n = kind != 1;
    p.alpha = double(pick(4)), p.beta = double(pick(4));
    // Strides that often continue each other, as those of views do, or are 0.
    p.stride_am = 1 + pick(2), p.stride_bn = 1 + pick(2), p.stride_cn = 1, p.stride_cm = p.n;
    if (pick(3) == 0) p.stride_cm = 1, p.stride_cn = p.m;
    BatchDim dims[3];
    p.num_batch_dims = int32_t(pick(4));
    p.batch_dims = dims;
    int64_t next_a = p.m * p.stride_am, next_b = p.n * p.stride_bn, next_c = p.m * p.n, next_bias = p.m * p.n;
    for (int32_t d = p.num_batch_dims - 1; d >= 0; --d) {
      dims[d] = {1 + pick(3), pick(3) ? next_a + (pick(6) == 0) : 0, pick(3) ? next_b + (pick(6) == 0) : 0,
                 next_c + (pick(6) == 0), kind == 3 && pick(3) ? next_bias + (pick(6) == 0) : 0};
      next_a = std::max<int64_t>(dims[d].stride_a, 1) * dims[d].size;
      next_b = std::max<int64_t>(dims[d].stride_b, 1) * dims[d].size;
      next_c = dims[d].stride_c * dims[d].size;
      next_bias = std::max<int64_t>(dims[d].stride_bias, 1) * dims[d].size;
    }
    const bool is_added = p.bias && p.beta != 0;
    const std::vector<Element> expected = elements_of(p, is_added);
    BatchDim folded_dims[kMaxBatchDims];
    const FoldedProblem folded = fold_batch(p, folded_dims);
    num_folded += folded.batch_size < batch_size(p);
    GemmProblem single = p;
    single.num_batch_dims = 0;
    if (p.alpha == 0) single.k = 0;
    single.m = 1 + pick(5000);
    const bool is_right = elements_of(folded.gemm, is_added) == expected && (folded.gemm.bias != nullptr) == is_added &&
                          folded.gemm.k == single.k && folded.asked_n == p.n && folded.chunk_k == chunk_k(single) &&
                          folded.batch_size == batch_size(folded.gemm);
    if (!is_right) {
      std::printf("round %d: m %d n %d k %d, %d batch dimensions, bias %d\n", round, int(p.m), int(p.n), int(p.k),
                  int(p.num_batch_dims), int(p.bias != nullptr));
      return 1;
    }
  }
  // The split's groups of k are a dimension of the batch more, unless there is no place for it.
  for (int32_t num_dims = 0; num_dims <= kMaxGpuBatchDims; ++num_dims) {
    FoldedProblem problem{};
    problem.gemm.m = problem.gemm.n = 2, problem.gemm.k = 5 * kSplitGroupK, problem.gemm.num_batch_dims = num_dims;
    problem.batch_size = 1;
    for (BatchDim& dim : problem.batch_dims) dim.size = 1;
    const FoldedProblem groups = groups_of(problem, 0, kSplitGroupK, groups_at_once(problem));
    if (groups.batch_size != (num_dims < kMaxGpuBatchDims ? 5 : 1) ||
        groups.gemm.num_batch_dims != std::min(num_dims + 1, kMaxGpuBatchDims)) {
      std::printf("%d batch dimensions: %d groups\n", int(num_dims), int(groups.batch_size));
      return 1;
    }
  }
  std::printf("%d problems folded\n", num_folded);
  return num_folded > 1000 ? 0 : 1;
}

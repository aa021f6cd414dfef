// Weights of attention (core/softmax.h): a block for each row. Thread i takes the elements i, i + 256, i + 512, ...,
// four at a time, and keeps their largest and the sum of their exponentials beside that one; then lanes, and after them
// groups of lanes, are merged. A second pass writes. A row of up to 1024 elements stays in registers meanwhile.
// Source: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018.
#include "core/softmax.h"

#include "platform/gpu.h"

namespace tiledmm::gpu {
namespace {

constexpr int kSoftmaxThreads = 256, kLanes = 32, kGroups = kSoftmaxThreads / kLanes, kOwn = 4;
constexpr float kLeast = -__builtin_huge_valf();

TILEDMM_DEVICE float larger(float a, float b) { return a > b ? a : b; }
// exp(t - most); 0 where both are minus infinity.
TILEDMM_DEVICE float weight(float t, float most) {
  return approximate_exp2((t - (most == kLeast ? 0.0f : most)) * 1.44269504f);
}

// The largest of some elements, and the sum of their weights beside it.
struct RowSum {
  float most, sum;
};
TILEDMM_DEVICE RowSum merged(RowSum a, RowSum b) {
  const float most = larger(a.most, b.most);
  return {most, a.sum * weight(a.most, most) + b.sum * weight(b.most, most)};
}

// A thread's elements from `first` on; minus infinity beyond the end.
template <class M>
TILEDMM_DEVICE void load_own(const SoftmaxProblem& p, const float* x, const M* mask, int64_t first,
                             float (&own)[kOwn]) {
  TILEDMM_UNROLL for (int j = 0; j < kOwn; ++j) {
    const int64_t i = first + j * kSoftmaxThreads + thread_idx();
    const float bias = mask && i < p.k ? as_acc(load_global(mask + i * p.stride_mask[3])) : 0.0f;
    own[j] = i < p.k ? fused(load_global(x + i), p.scale, bias) : kLeast;
  }
}

template <class M, class Y>
TILEDMM_KERNEL(kSoftmaxThreads, 4)
softmax_rows(SoftmaxProblem p) {
  constexpr int64_t kStep = kOwn * kSoftmaxThreads;
  RowSum* const shared = &block_shared<RowSum[kGroups]>()[0];
  wait_for_earlier_kernels();
  let_later_kernels_start();
  const auto row = uint32_t(block_idx()), line = row / uint32_t(p.sizes[2]), item = line / uint32_t(p.sizes[1]);
  const float* x = p.x + row * p.k;
  const M* mask = static_cast<const M*>(p.mask);
  if (mask) {
    mask += item * p.stride_mask[0] + (line - item * uint32_t(p.sizes[1])) * p.stride_mask[1] +
            (row - line * uint32_t(p.sizes[2])) * p.stride_mask[2];
  }
  float own[kOwn];
  RowSum sum{kLeast, 0};
  TILEDMM_NO_UNROLL for (int64_t first = 0; first < p.k; first += kStep) {
    load_own(p, x, mask, first, own);
    RowSum part{larger(larger(own[0], own[1]), larger(own[2], own[3])), 0};
    part.sum = (weight(own[0], part.most) + weight(own[1], part.most)) +
               (weight(own[2], part.most) + weight(own[3], part.most));
    sum = merged(sum, part);
  }
  TILEDMM_UNROLL for (int bits = kLanes / 2; bits > 0; bits /= 2) {
    sum = merged(sum, {lane_xor(sum.most, bits), lane_xor(sum.sum, bits)});
  }
  if (thread_idx() % kLanes == 0) {
    store_shared(&shared[thread_idx() / kLanes].most, sum.most);
    store_shared(&shared[thread_idx() / kLanes].sum, sum.sum);
  }
  block_barrier();
  RowSum total{kLeast, 0};
  TILEDMM_UNROLL for (int i = 0; i < kGroups; ++i) {
    total = merged(total, {load_shared(&shared[i].most), load_shared(&shared[i].sum)});
  }
  const float share = total.sum == 0 ? 0.0f : 1.0f / total.sum;
  Y* const y = static_cast<Y*>(p.y) + row * p.k;
  TILEDMM_NO_UNROLL for (int64_t first = 0; first < p.k; first += kStep) {
    if (p.k > kStep) load_own(p, x, mask, first, own);
    TILEDMM_UNROLL for (int j = 0; j < kOwn; ++j) {
      const int64_t i = first + j * kSoftmaxThreads + thread_idx();
      if (i < p.k) store_global(y + i, rounded_to<Y>(weight(own[j], total.most) * share));
    }
  }
}

}  // namespace

Status launch_softmax(const SoftmaxProblem& p, const Executor& executor) {
  return visit_dtype(p.dtype_y, [&](auto* result) {
    using Y = std::remove_pointer_t<decltype(result)>;
    if constexpr (sizeof(Y) == 8) {
      return Status::unsupported;
    } else {
      const auto kernel = p.dtype_mask == DType::f32 ? softmax_rows<float, Y> : softmax_rows<Y, Y>;
      return launch_early(kernel, p.sizes[0] * p.sizes[1] * p.sizes[2], 1, kSoftmaxThreads, sizeof(RowSum[kGroups]),
                          executor, p);
    }
  });
}

}  // namespace tiledmm::gpu

// Functions of each element (core/elementwise.h), by the code of the epilogues: an activation under a gradient has the
// bits that a kernel's epilogue gives it. A thread takes 16 bytes at a time where all operands are aligned to that.
#include "core/elementwise.h"

#include "platform/epilogue.h"

namespace tiledmm::gpu {
namespace {

constexpr int kElementwiseThreads = 256, kElementwiseBlocksPerCu = 8;

// Slopes for results of 16 bits, by the formulas that gpu.h has for the functions; not for NaN, nor for arguments so
// large that a product is infinite.
TILEDMM_DEVICE float short_gelu_slope(float x) {
  const float density = approximate_exp2(x * x * -0.721347520f);
  return mul_add(x, 0.398942280f * density, short_normal_cdf(x, density));
}
TILEDMM_DEVICE float short_logistic_slope(Activation activation, float x) {
  const bool is_silu = activation == Activation::silu;
  const float factor = is_silu ? -1.44269504f : mul_add(x * x, -0.102943240f, -2.30220819f);
  const float s = approximate_reciprocal(1.0f + approximate_exp2(x * factor));
  const float steepness = is_silu ? x : x * mul_add(x * x, 0.214064426f, 1.59576912f);
  return mul_add(steepness * s, 1.0f - s, s);
}
template <Activation ACT>
TILEDMM_DEVICE float short_slope(float x) {
  const float z = clamped(x, ACT == Activation::silu ? 110.0f : ACT == Activation::gelu ? 15.0f : 12.0f);
  return with_nan_of(x, ACT == Activation::gelu ? short_gelu_slope(z) : short_logistic_slope(ACT, z));
}

template <class T, Function FUNCTION, bool IS_SLOPE>
TILEDMM_DEVICE Acc<T> evaluate(Acc<T> x) {
#if defined(TILEDMM_HIP_STANDALONE)
  constexpr bool kHasNone = sizeof(x) == 8 && FUNCTION != Function::relu;  // as in `activated`
#else
  constexpr bool kHasNone = false;
#endif
  if constexpr (kHasNone) {
    __builtin_trap();
  } else if constexpr (IS_SLOPE && FUNCTION != Function::relu && sizeof(T) == 2) {
    return short_slope<Activation(FUNCTION)>(x);
  } else if constexpr (IS_SLOPE) {
    return slope<Activation(FUNCTION)>(x);
  } else if constexpr (is_activation(FUNCTION)) {
    return activated<T>(Activation(FUNCTION), x);
  } else {
    return with_nan_of(x, FUNCTION == Function::logistic ? logistic(x) : normal_density(x));
  }
}

template <class T, Function FUNCTION, bool IS_SLOPE>
TILEDMM_DEVICE T result_of(T x, T grad) {
  const Acc<T> value = evaluate<T, FUNCTION, IS_SLOPE>(as_acc(x));
  if constexpr (IS_SLOPE && FUNCTION == Function::relu) return value != 0 ? grad : T{};  // infinity times 0 is NaN
  return rounded_to<T>(IS_SLOPE ? value * as_acc(grad) : value);
}

template <class T>
struct alignas(16) Elements {
  static constexpr int kCount = 16 / int(sizeof(T));
  T values[kCount];
};

template <class T, Function FUNCTION, bool IS_SLOPE>
TILEDMM_KERNEL(kElementwiseThreads, 2)
elementwise(const T* x, const T* grad, T* y, int64_t num_vectors, int64_t count, int64_t num_threads) {
  using V = Elements<T>;
  const int64_t first = block_idx() * kElementwiseThreads + thread_idx();
  for (int64_t i = first; i < num_vectors; i += num_threads) {
    const V own = load_global(reinterpret_cast<const V*>(x) + i);
    V grads{}, results;
    if constexpr (IS_SLOPE) grads = load_global(reinterpret_cast<const V*>(grad) + i);
    TILEDMM_UNROLL for (int l = 0; l < V::kCount; ++l) {
      results.values[l] = result_of<T, FUNCTION, IS_SLOPE>(own.values[l], grads.values[l]);
    }
    store_global(reinterpret_cast<V*>(y) + i, results);
  }
  for (int64_t i = num_vectors * V::kCount + first; i < count; i += num_threads) {
    const T own_grad = IS_SLOPE ? load_global(grad + i) : T{};
    store_global(y + i, result_of<T, FUNCTION, IS_SLOPE>(load_global(x + i), own_grad));
  }
}

}  // namespace

Status launch_elementwise(const ElementwiseProblem& problem, const Executor& executor) {
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(problem.x) | reinterpret_cast<uintptr_t>(problem.grad) |
                              reinterpret_cast<uintptr_t>(problem.y);
  const int64_t in_vector = 16 / size_of(problem.dtype);
  const int64_t num_vectors = addresses % 16 == 0 ? problem.count / in_vector : 0;
  const int64_t num_steps = num_vectors ? num_vectors : problem.count;
  const int64_t blocks =
      min_of(ceil_div(num_steps, kElementwiseThreads), int64_t(executor.num_cus) * kElementwiseBlocksPerCu);
  return visit_dtype(problem.dtype, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    return visit_function(problem, [&](auto function, auto is_slope) {
      return launch_kernel(elementwise<T, decltype(function)::value, decltype(is_slope)::value>, blocks, 1,
                           kElementwiseThreads, 0, executor, static_cast<const T*>(problem.x),
                           static_cast<const T*>(problem.grad), static_cast<T*>(problem.y), num_vectors, problem.count,
                           blocks * kElementwiseThreads);
    });
  });
}

}  // namespace tiledmm::gpu

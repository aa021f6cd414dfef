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

// Elements of 8 bits in a wider dtype, which holds them: 8 at a time where both operands are
// aligned to 16 bytes.
template <DType DTYPE, class Y>
TILEDMM_KERNEL(kElementwiseThreads, 2)
widen(const uint8_t* x, Y* y, int64_t num_vectors, int64_t count, int64_t num_threads) {
  struct alignas(8) Numbers {
    uint8_t values[8];
  };
  struct alignas(16) Wide {
    Y values[8];
  };
  const auto widened = [](uint32_t number) {
    return rounded_to<Y>(DTYPE == DType::e4m3 ? e4m3_to_float(number) : e5m2_to_float(number));
  };
  const int64_t first = block_idx() * kElementwiseThreads + thread_idx();
  for (int64_t i = first; i < num_vectors; i += num_threads) {
    const Numbers own = load_global(reinterpret_cast<const Numbers*>(x) + i);
    Wide wide;
    TILEDMM_UNROLL for (int l = 0; l < 8; ++l) wide.values[l] = widened(own.values[l]);
    store_global(reinterpret_cast<Wide*>(y) + i, wide);
  }
  for (int64_t i = num_vectors * 8 + first; i < count; i += num_threads)
    store_global(y + i, widened(load_global(x + i)));
}

// Calls start(kernel, its pointers ...).
template <class Start>
Status launch_widen(const ElementwiseProblem& p, const Start& start) {
  return visit_dtype(p.dtype_y, [&](auto* element) {
    using Y = std::remove_pointer_t<decltype(element)>;
    if constexpr (sizeof(Y) == 8) {
      return Status::unsupported;
    } else {
      const auto* x = static_cast<const uint8_t*>(p.x);
      Y* const y = static_cast<Y*>(p.y);
      return p.dtype == DType::e4m3 ? start(widen<DType::e4m3, Y>, x, y) : start(widen<DType::e5m2, Y>, x, y);
    }
  });
}

// As many elements as 16 bytes of T hold.
template <class T, class Y>
struct alignas(Elements<T>::kCount * sizeof(Y)) Results {
  Y values[Elements<T>::kCount];
};

// activation(x) * other, and the gradients of both: of elements T, with results Y. Where Y is narrower, there may be no
// other, and memory for what is kept.
template <class T, class Y, Activation ACT, bool HAS_GRAD>
TILEDMM_KERNEL(kElementwiseThreads, 2)
gated(const T* x, const T* other, const T* grad, Y* y, T* y_other, Y* x_kept, Y* other_kept, int64_t num_vectors,
      int64_t count, int64_t num_threads) {
  using V = Elements<T>;
  constexpr Function kFunction = Function(int32_t(ACT));
  constexpr bool kIsNarrowed = sizeof(Y) < sizeof(T);
  const bool has_other = !kIsNarrowed || other;
  const auto compute = [](T x, T other, T grad, Y& y, T& y_other) {
    const Acc<T> value = evaluate<Y, kFunction, false>(as_acc(x));
    if constexpr (HAS_GRAD) {
      const Acc<T> product = as_acc(grad) * as_acc(other), slope = evaluate<T, kFunction, true>(as_acc(x));
      y = rounded_to<Y>(ACT == Activation::relu ? slope != 0 ? product : Acc<T>(0) : product * slope);
      y_other = rounded_to<T>(as_acc(grad) * value);
    } else {
      y = rounded_to<Y>(value * as_acc(other));
    }
  };
  const int64_t first = block_idx() * kElementwiseThreads + thread_idx();
  for (int64_t i = first; i < num_vectors; i += num_threads) {
    const V own = load_global(reinterpret_cast<const V*>(x) + i);
    V others, grads{}, of_other;
    if (has_other) {
      others = load_global(reinterpret_cast<const V*>(other) + i);
    } else {
      TILEDMM_UNROLL for (int l = 0; l < V::kCount; ++l) others.values[l] = rounded_to<T>(Acc<T>(1));
    }
    Results<T, Y> results;
    if constexpr (kIsNarrowed) {
      const auto keep = [&](const V& sums, Y* kept) {
        Results<T, Y> rounded;
        TILEDMM_UNROLL for (int l = 0; l < V::kCount; ++l) rounded.values[l] = rounded_to<Y>(as_acc(sums.values[l]));
        store_global(reinterpret_cast<Results<T, Y>*>(kept) + i, rounded);
      };
      if (x_kept) keep(own, x_kept);
      if (other_kept) keep(others, other_kept);
    }
    if constexpr (HAS_GRAD) grads = load_global(reinterpret_cast<const V*>(grad) + i);
    TILEDMM_UNROLL for (int l = 0; l < V::kCount; ++l) {
      compute(own.values[l], others.values[l], grads.values[l], results.values[l], of_other.values[l]);
    }
    store_global(reinterpret_cast<Results<T, Y>*>(y) + i, results);
    if constexpr (HAS_GRAD) store_global(reinterpret_cast<V*>(y_other) + i, of_other);
  }
  for (int64_t i = num_vectors * V::kCount + first; i < count; i += num_threads) {
    Y own;
    T of_other{};
    const T own_x = load_global(x + i), own_other = has_other ? load_global(other + i) : rounded_to<T>(Acc<T>(1));
    compute(own_x, own_other, HAS_GRAD ? load_global(grad + i) : T{}, own, of_other);
    store_global(y + i, own);
    if constexpr (kIsNarrowed) {
      if (x_kept) store_global(x_kept + i, rounded_to<Y>(as_acc(own_x)));
      if (other_kept) store_global(other_kept + i, rounded_to<Y>(as_acc(own_other)));
    }
    if constexpr (HAS_GRAD) store_global(y_other + i, of_other);
  }
}

// Calls start(kernel, its pointers ...) for a gated pair.
template <class T, class Start>
Status launch_gated(const ElementwiseProblem& p, const Start& start) {
  const auto as = [](const void* memory) { return static_cast<const T*>(memory); };
  return visit_activation(p.function, [&](auto activation) {
    constexpr Activation kActivation = decltype(activation)::value;
    const auto launch = [&](auto* result, auto has_grad) {
      using Y = std::remove_pointer_t<decltype(result)>;
      return start(gated<T, Y, kActivation, decltype(has_grad)::value>, as(p.x), as(p.other), as(p.grad),
                   static_cast<Y*>(p.y), static_cast<T*>(p.y_other), static_cast<Y*>(p.x_kept),
                   static_cast<Y*>(p.other_kept));
    };
    if (p.grad) return launch(static_cast<T*>(nullptr), std::true_type{});
    if constexpr (std::is_same_v<T, float>) {
      if (p.dtype_y == DType::f16) return launch(static_cast<Half*>(nullptr), std::false_type{});
      if (p.dtype_y == DType::bf16) return launch(static_cast<BFloat16*>(nullptr), std::false_type{});
    }
    return launch(static_cast<T*>(nullptr), std::false_type{});
  });
}

}  // namespace

Status launch_elementwise(const ElementwiseProblem& problem, const Executor& executor) {
  uintptr_t addresses = 0;
  for (const void* memory : {problem.x, problem.grad, problem.other}) addresses |= reinterpret_cast<uintptr_t>(memory);
  for (void* memory : {problem.y, problem.y_other, problem.x_kept, problem.other_kept})
    addresses |= reinterpret_cast<uintptr_t>(memory);
  const bool is_fp8 = size_of(problem.dtype) == 1;
  const int64_t in_vector = is_fp8 ? 8 : 16 / size_of(problem.dtype);
  const int64_t num_vectors = addresses % 16 == 0 ? problem.count / in_vector : 0;
  const int64_t num_steps = num_vectors ? num_vectors : problem.count;
  const int64_t blocks =
      min_of(ceil_div(num_steps, kElementwiseThreads), int64_t(executor.num_cus) * kElementwiseBlocksPerCu);
  const auto start = [&](auto* kernel, auto... pointers) {
    return launch_kernel(kernel, blocks, 1, kElementwiseThreads, 0, executor, pointers..., num_vectors, problem.count,
                         blocks * kElementwiseThreads);
  };
  if (is_fp8) return launch_widen(problem, start);
  return visit_dtype(problem.dtype, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    if (problem.other || problem.x_kept) return launch_gated<T>(problem, start);
    return visit_function(problem, [&](auto function, auto is_slope) {
      return start(elementwise<T, decltype(function)::value, decltype(is_slope)::value>,
                   static_cast<const T*>(problem.x), static_cast<const T*>(problem.grad), static_cast<T*>(problem.y));
    });
  });
}

}  // namespace tiledmm::gpu

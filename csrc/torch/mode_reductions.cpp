// The mode's sums: of any dimensions, in an order that the reduced sizes alone fix.
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <c10/util/strides.h>

#include <algorithm>

#include "core/reduce.h"
#include "torch/cpu_executor.h"
#include "torch/mode.h"
#include "torch/product.h"
#include "torch/shapes.h"

namespace tiledmm::mode {
namespace {

using at::OptionalIntArrayRef;
using at::Scalar;
using at::ScalarType;
using at::Tensor;

constexpr const char* kKernel = "reduce";

// A dimension, with the strides that the operand and the result have along it.
struct Dim {
  int64_t size, stride, stride_y;
};

// Dimensions as few as possible, outermost first. A result that has all elements of x is contiguous, `shape` its shape.
std::vector<Dim> merged(const Tensor& x, const std::vector<int64_t>& dims, const std::vector<int64_t>& shape,
                        bool is_running) {
  const auto strides_y = c10::contiguous_strides(shape);
  std::vector<Dim> result;
  for (const int64_t d : dims) {
    const Dim own{x.size(d), x.stride(d), strides_y[size_t(d)]};
    if (own.size == 1) continue;
    if (!result.empty() && result.back().stride == own.size * own.stride &&
        (!is_running || result.back().stride_y == own.size * own.stride_y)) {
      result.back() = {result.back().size * own.size, own.stride, own.stride_y};
    } else {
      result.push_back(own);
    }
  }
  return result;
}

// A reduction and its result, whose shape is that of x with the reduced dimensions of size 1; or, where is_running,
// that of x.
struct Reduced {
  const TorchOnOneThreadInChild own_thread;
  Tensor x;  // which may be a copy, of an order in memory that the kernel takes
  ReduceProblem problem{};
  std::vector<int64_t> shape, kept_shape;
  std::vector<int64_t> shape_y;  // of what the kernel writes
  std::vector<int64_t> places;   // of the kept dimensions in y; empty: y has `shape`

  Reduced(const Tensor& given, OptionalIntArrayRef dims, bool is_running = false) : x(given) {
    const int64_t dim = given.dim();
    const auto is_reduced = at::dim_list_to_bitset(dims && dims->empty() ? std::nullopt : dims, size_t(dim));
    std::vector<int64_t> kept, reduced;
    problem.k = 1;
    for (int64_t d = 0; d < dim; ++d) {
      const bool own = is_reduced[size_t(d)];
      (own ? reduced : kept).push_back(d);
      shape.push_back(own && !is_running ? 1 : given.size(d));
      if (own) problem.k *= given.size(d);
      if (!own) kept_shape.push_back(given.size(d));
    }
    shape_y = shape;
    if (!is_running) sort_by_stride(kept);
    std::vector<Dim> rows = merged(x, kept, shape, is_running), k = merged(x, reduced, shape, is_running);
    if (is_running && rows.size() > 2) {
      x = given.contiguous();
      rows = merged(x, kept, shape, true), k = merged(x, reduced, shape, true);
    } else if (rows.size() > 2 || (k.size() > 1 && !are_segments(k))) {
      std::vector<int64_t> all = kept;
      all.insert(all.end(), reduced.begin(), reduced.end());
      x = given.permute(all).contiguous();
      int64_t count = 1;
      for (const int64_t size : kept_shape) count *= size;
      rows = {{count, problem.k, 1}};
      k = {{problem.k, 1, 1}};
    }
    problem.segment = k.size() < 2 ? problem.k : k[1].size;
    problem.stride_segment = k.size() < 2 ? 0 : k[0].stride;
    const Dim one{1, 0, 0};
    const Dim inner = rows.empty() ? one : rows.back(), outer = rows.size() < 2 ? one : rows[0];
    problem.dtype = *dtype_of(x.scalar_type());
    problem.x = x.const_data_ptr();
    problem.outer = outer.size, problem.stride_outer = outer.stride, problem.stride_y_outer = outer.stride_y;
    problem.inner = inner.size, problem.stride_inner = inner.stride, problem.stride_y_inner = inner.stride_y;
    problem.stride_k = k.empty() ? 1 : k.back().stride, problem.stride_y_k = k.empty() ? 1 : k.back().stride_y;
    problem.divisor = 1;
    problem.is_running = is_running;
  }

  // The kept dimensions as they lie in memory, so that the kernel meets neighbours; expanded ones come first.
  void sort_by_stride(std::vector<int64_t>& kept) {
    const auto distance = [&](int64_t d) { return x.stride(d) == 0 ? INT64_MAX : x.stride(d); };
    const auto is_outer = [&](int64_t a, int64_t b) { return distance(a) > distance(b); };
    if (std::is_sorted(kept.begin(), kept.end(), is_outer)) return;
    const std::vector<int64_t> as_given = kept;
    std::stable_sort(kept.begin(), kept.end(), is_outer);
    shape_y.clear();
    for (const int64_t d : kept) shape_y.push_back(x.size(d));
    for (const int64_t d : as_given) places.push_back(std::find(kept.begin(), kept.end(), d) - kept.begin());
  }

  // Whether the CPU's kernel takes rows as they lie, in segments.
  bool are_segments(const std::vector<Dim>& k) const {
    constexpr int64_t kLeastSegment = 64;
    return x.is_cpu() && k.size() == 2 && k[1].stride == 1 && k[1].size >= kLeastSegment;
  }

  // What the kernel writes, and what becomes of it.
  Tensor new_result(ScalarType dtype) const { return at::empty(shape_y, x.options().dtype(dtype)); }
  Tensor finished(const Tensor& y, bool keepdim) const {
    if (places.empty()) return keepdim ? y : y.view(kept_shape);
    const Tensor result = at::empty(keepdim ? shape : kept_shape, y.options());
    result.view(kept_shape).copy_(y.permute(places));
    return result;
  }
  Tensor compute(ScalarType dtype, bool keepdim) {
    const Tensor y = new_result(dtype);
    problem.dtype_y = *dtype_of(dtype);
    problem.y = y.mutable_data_ptr();
    run(problem, x.device());
    return finished(y, keepdim);
  }
};

ScalarType type_of_sums(ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

// The sum of squared differences from the mean over their number less a correction, or its root; the mean, where it is
// wanted.
template <bool IS_ROOT>
Tensor spread(const Tensor& x, OptionalIntArrayRef dims, const std::optional<Scalar>& correction, bool keepdim,
              Tensor* mean = nullptr) {
  Reduced reduced(x, dims);
  ReduceProblem& p = reduced.problem;
  p.term = Term::spread;
  p.divisor = p.k == 0 ? 0 : std::max(0.0, double(p.k) - (correction ? correction->toDouble() : 1));
  p.takes_root = IS_ROOT;
  if (mean) *mean = reduced.new_result(x.scalar_type()), p.mean = mean->mutable_data_ptr();
  const Tensor result = reduced.compute(x.scalar_type(), keepdim);
  if (mean) *mean = reduced.finished(*mean, keepdim);
  return result;
}

// The operand in the dtype in which it is to be summed; undefined, with the reason counted, where torch is to do it.
// On GPUs results in 16 bits were not found to vary (benchmarks/what_varies.py), unless they are running sums. A sum's
// elements are rounded to its dtype first, as torch's are, a mean's are not.
enum class Kind { sum, mean, running_sum };
Tensor accepted(Override& own, const Tensor& x, const std::optional<ScalarType>& dtype, Kind kind = Kind::sum) {
  const ScalarType result = dtype.value_or(x.scalar_type());
  const char* reason = c10::isIntegralType(result, true)                 ? kDoesNotVary
                       : !dtype_of(x.scalar_type()) || !dtype_of(result) ? kOtherDtype
                       : x.layout() != at::kStrided                      ? kOtherLayout
                       : own.key != c10::DispatchKey::CPU && kind != Kind::running_sum && result != type_of_sums(result)
                           ? kDoesNotVary
                           : nullptr;
  if (reason) {
    own.left.count(reason);
    return {};
  }
  own.served.count(kKernel);
  const TorchOnOneThreadInChild own_thread;
  // 16 bits are summed in 32, also where that is the result's dtype.
  const ScalarType of_terms = kind == Kind::mean ? type_of_sums(result) : result;
  return of_terms == at::kFloat && type_of_sums(x.scalar_type()) == at::kFloat ? x : x.to(of_terms);
}

void write(const Tensor& result, Tensor& out) {
  const TorchOnOneThreadInChild own_thread;
  at::native::resize_output(out, result.sizes());
  out.copy_(result);
}

using Kernel = torch::CppFunction;

template <bool IS_MEAN>
Tensor summed(const Tensor& x, ScalarType dtype, OptionalIntArrayRef dims, bool keepdim) {
  Reduced reduced(x, dims);
  if (IS_MEAN) reduced.problem.divisor = double(reduced.problem.k);
  return reduced.compute(dtype, keepdim);
}
template <bool IS_MEAN>
Kernel sum(Override& own) {
  return Kernel([&own](const Tensor& self, OptionalIntArrayRef dims, bool keepdim, std::optional<ScalarType> dtype) {
    const Tensor x = accepted(own, self, dtype, IS_MEAN ? Kind::mean : Kind::sum);
    return x.defined() ? summed<IS_MEAN>(x, dtype.value_or(self.scalar_type()), dims, keepdim)
                       : own.call_original(self, dims, keepdim, dtype);
  });
}
template <bool IS_MEAN>
Kernel sum_out(Override& own) {
  return Kernel([&own](const Tensor& self, OptionalIntArrayRef dims, bool keepdim, std::optional<ScalarType> dtype,
                       Tensor& out) -> Tensor& {
    const bool is_of_out = dtype.value_or(out.scalar_type()) == out.scalar_type();
    const Tensor x = is_of_out ? accepted(own, self, out.scalar_type(), IS_MEAN ? Kind::mean : Kind::sum) : Tensor();
    if (x.defined()) {
      write(summed<IS_MEAN>(x, out.scalar_type(), dims, keepdim), out);
    } else {
      own.call_original(self, dims, keepdim, dtype, out);
    }
    return out;
  });
}

template <bool IS_ROOT>
Kernel var(Override& own) {
  return Kernel(
      [&own](const Tensor& self, OptionalIntArrayRef dims, const std::optional<Scalar>& correction, bool keepdim) {
        const Tensor x = accepted(own, self, std::nullopt);
        return x.defined() ? spread<IS_ROOT>(x, dims, correction, keepdim)
                           : own.call_original(self, dims, correction, keepdim);
      });
}
template <bool IS_ROOT>
Kernel var_out(Override& own) {
  return Kernel([&own](const Tensor& self, OptionalIntArrayRef dims, const std::optional<Scalar>& correction,
                       bool keepdim, Tensor& out) -> Tensor& {
    const bool is_of_out = out.scalar_type() == self.scalar_type();
    if (!is_of_out) own.left.count("a result of another dtype");
    const Tensor x = is_of_out ? accepted(own, self, std::nullopt) : Tensor();
    if (x.defined()) {
      write(spread<IS_ROOT>(x, dims, correction, keepdim), out);
    } else {
      own.call_original(self, dims, correction, keepdim, out);
    }
    return out;
  });
}
template <bool IS_ROOT>
Kernel var_mean(Override& own) {
  return Kernel([&own](const Tensor& self, OptionalIntArrayRef dims, const std::optional<Scalar>& correction,
                       bool keepdim) -> std::tuple<Tensor, Tensor> {
    const Tensor x = accepted(own, self, std::nullopt);
    if (!x.defined()) {
      torch::jit::Stack stack;
      torch::jit::push(stack, self, dims, correction, keepdim);
      own.call(stack);
      return {stack.at(0).toTensor(), stack.at(1).toTensor()};
    }
    Tensor mean;
    const Tensor result = spread<IS_ROOT>(x, dims, correction, keepdim, &mean);
    return {result, mean};
  });
}

// The norms of order 1 and 2. That of one element is its magnitude, whose square may be none of its dtype.
Tensor norm_of(const Tensor& x, double order, ScalarType dtype, OptionalIntArrayRef dims, bool keepdim) {
  Reduced reduced(x, dims);
  const bool has_squares = order == 2 && reduced.problem.k != 1;
  reduced.problem.term = has_squares ? Term::square : Term::magnitude;
  reduced.problem.takes_root = has_squares;
  return reduced.compute(dtype, keepdim);
}
Tensor accepted_for_norm(Override& own, const Scalar& order, const Tensor& x, const std::optional<ScalarType>& dtype) {
  if (order.isComplex() || (order.toDouble() != 1 && order.toDouble() != 2)) {
    own.left.count("a norm of an order other than 1 and 2");
    return {};
  }
  // A norm in a dtype that holds not all of the operand's numbers raises.
  return dtype && c10::promoteTypes(x.scalar_type(), *dtype) != *dtype ? Tensor() : accepted(own, x, dtype);
}
Kernel norm(Override& own) {
  return Kernel([&own](const Tensor& self, const Scalar& order, OptionalIntArrayRef dims, bool keepdim,
                       std::optional<ScalarType> dtype) {
    const Tensor x = accepted_for_norm(own, order, self, dtype);
    return x.defined() ? norm_of(x, order.toDouble(), dtype.value_or(self.scalar_type()), dims, keepdim)
                       : own.call_original(self, order, dims, keepdim, dtype);
  });
}
Kernel norm_out(Override& own) {
  return Kernel([&own](const Tensor& self, const Scalar& order, OptionalIntArrayRef dims, bool keepdim,
                       std::optional<ScalarType> dtype, Tensor& out) -> Tensor& {
    const bool is_of_out = dtype.value_or(self.scalar_type()) == out.scalar_type();
    const Tensor x = is_of_out ? accepted_for_norm(own, order, self, dtype) : Tensor();
    if (x.defined()) {
      write(norm_of(x, order.toDouble(), out.scalar_type(), dims, keepdim), out);
    } else {
      own.call_original(self, order, dims, keepdim, dtype, out);
    }
    return out;
  });
}

// Running sums along a dimension.
Tensor running(const Tensor& given, int64_t dim, ScalarType dtype) {
  const Tensor x = given.to(dtype);
  if (x.dim() == 0) return x.clone();
  Reduced reduced(x, at::IntArrayRef(dim), true);
  return x.numel() > 0 ? reduced.compute(dtype, true) : reduced.new_result(dtype);
}
Kernel cumsum(Override& own) {
  return Kernel([&own](const Tensor& self, int64_t dim, std::optional<ScalarType> dtype) {
    const Tensor x = accepted(own, self, dtype, Kind::running_sum);
    return x.defined() ? running(x, dim, dtype.value_or(self.scalar_type())) : own.call_original(self, dim, dtype);
  });
}
Kernel cumsum_out(Override& own) {
  return Kernel([&own](const Tensor& self, int64_t dim, std::optional<ScalarType> dtype, Tensor& out) -> Tensor& {
    const Tensor x = accepted(own, self, out.scalar_type(), Kind::running_sum);
    if (x.defined()) {
      write(running(x, dim, out.scalar_type()), out);
    } else {
      own.call_original(self, dim, dtype, out);
    }
    return out;
  });
}
Kernel cumsum_in_place(Override& own) {
  return Kernel([&own](Tensor& self, int64_t dim, std::optional<ScalarType> dtype) -> Tensor& {
    const Tensor x = accepted(own, self, std::nullopt, Kind::running_sum);
    if (x.defined()) {
      self.copy_(running(x, dim, dtype.value_or(self.scalar_type())));
    } else {
      own.call_original(self, dim, dtype);
    }
    return self;
  });
}

}  // namespace

// aten's other sums, of all elements and norms by other names, call these.
const std::vector<Row>& reductions() {
  static const std::vector<Row> rows = {
      {"sum.dim_IntList", sum<false>},
      {"sum.IntList_out", sum_out<false>},
      {"mean.dim", sum<true>},
      {"mean.out", sum_out<true>},
      {"var.correction", var<false>},
      {"var.correction_out", var_out<false>},
      {"std.correction", var<true>},
      {"std.correction_out", var_out<true>},
      {"var_mean.correction", var_mean<false>},
      {"std_mean.correction", var_mean<true>},
      {"linalg_vector_norm", norm},
      {"linalg_vector_norm.out", norm_out},
  };
  return rows;
}
const std::vector<Row>& running_sums() {
  static const std::vector<Row> rows = {
      {"cumsum", cumsum},
      {"cumsum.out", cumsum_out},
      {"cumsum_", cumsum_in_place},
  };
  return rows;
}

}  // namespace tiledmm::mode

// Tensors become a problem of the kernels, which is computed on the CPU or on a GPU, with torch's memory, threads and
// stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/elementwise.h"
#include "core/problem.h"
#include "core/quantize.h"
#include "core/reduce.h"
#include "core/softmax.h"
#include "torch/shapes.h"

namespace tiledmm {

bool allows_tf32();

// Memory for a result.
at::Tensor new_result(c10::IntArrayRef sizes, const at::TensorOptions& options);

// What became of a call.
struct Outcome {
  Status status;
  const char* kernel = nullptr;  // that was launched, by name
  char reason[320] = "";         // of a failure

  void raise() const;  // unless it is ok
};

// Sets allow_tf32 by torch's setting, which holds for products alone: may_use_tf32.
Outcome compute(GemmProblem& problem, int32_t algorithm, c10::Device device, bool may_use_tf32 = true);
inline void run(GemmProblem& problem, int32_t algorithm, c10::Device device, bool may_use_tf32 = true) {
  compute(problem, algorithm, device, may_use_tf32).raise();
}
void run(const ElementwiseProblem& problem, c10::Device device);
void run(const ReduceProblem& problem, c10::Device device);         // running sums: of a GPU
void run(const SoftmaxProblem& problem, c10::Device device);        // of a GPU
void run(const ColumnSoftmaxProblem& problem, c10::Device device);  // of a CPU
void run(const QuantizeProblem& problem, c10::Device device);

// Whether two operands are fp32 and 16 bits beside each other on a GPU, by "auto". The product is one in fp32: by terms
// in 16 bits where the chip has that and C many columns, never in tf32. What has 16 bits is converted, unless the
// kernel takes it as it is. The kernels that convert as they load are those of the ladder.
bool is_mixed(const at::Tensor& a, const at::Tensor& b, int32_t algorithm);
// An operand converted; dimensions along which it repeats stay such.
at::Tensor widened(const at::Tensor& tensor);
// Whether a chip has terms of such operands, and n columns repay them.
bool repay_terms(DType a, DType b, int64_t n, int64_t k, c10::Device device);
// compute(a, b, algorithm) of mixed operands or of what they are converted to.
template <class Compute>
auto compute_mixed(const at::Tensor& a, const at::Tensor& b, int64_t n, int64_t k, const Compute& compute) {
  const auto by_terms_or = [&](const at::Tensor& own_a, const at::Tensor& own_b, const auto& otherwise) {
    if (repay_terms(to_dtype("a", own_a), to_dtype("b", own_b), n, k, a.device())) {
      try {
        return compute(own_a, own_b, "split");
      } catch (const c10::NotImplementedError&) {
      }
    }
    return otherwise();
  };
  return by_terms_or(a, b, [&] {
    const at::Tensor wide_a = widened(a), wide_b = widened(b);
    return by_terms_or(wide_a, wide_b, [&] { return compute(wide_a, wide_b, "auto"); });
  });
}
// The dtypes of a product of such operands whose result is fp32.
inline ProductDtypes dtypes_of_fp32(const at::Tensor& a, const at::Tensor& b) {
  return {to_dtype("a", a), to_dtype("b", b), DType::f32, DType::f32, at::kFloat};
}

// The addresses and strides of two operands, but for their batch dimensions: a 1-D a is a row, a 1-D b a column.
void fill_operands(GemmProblem& problem, const at::Tensor& a, const at::Tensor& b);

// out = alpha a b + beta added, all checked, out of the right shape; an `added` that is given has that shape, too.
void matmul_into(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, const MatmulShape<int64_t>& shape,
                 const ProductDtypes& dtypes, int32_t algorithm, bool may_use_tf32 = true,
                 const at::Tensor& added = at::Tensor(), double beta = 1, double alpha = 1);

// Tells a problem where its groups of `size` rows, or elements of k, end: in the tensor that comes back. The ends of a
// CPU are checked; the host cannot read a GPU's without waiting, and kernels there stay inside of the operands whatever
// they are.
at::Tensor set_ends(GemmProblem& problem, Grouping grouping, const at::Tensor& offs, int64_t size);

// The sums before an activation that a gradient needs to know, in the dtype of the result: of one product, or of both
// of a gated one.
struct KeptSums {
  at::Tensor gate, up;

  // Has a problem store them, whose result is `out`.
  void ask(GemmProblem& problem, const at::Tensor& out);
};

// out = activation(a b + bias) for groups, all checked, out of the right shape; see GroupedShape. With `up`, which has
// b's shape and strides: activation(a b + bias) * (a up + up_bias), unless no kernel has that, as the outcome says.
// by_production: on a GPU not by the ladder. may_use_tf32: as torch's setting has it.
Outcome grouped_into(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& offs,
                     const std::optional<at::Tensor>& bias, const at::Tensor& out, const GroupedShape<int64_t>& shape,
                     ProductDtypes dtypes, Activation activation, int32_t algorithm,
                     const at::Tensor& up = at::Tensor(), bool by_production = false, bool may_use_tf32 = true,
                     const std::optional<at::Tensor>& up_bias = std::nullopt, KeptSums* kept = nullptr);
// Whether two weights and their biases are such that a kernel may read them in one pass.
bool may_be_one_pass(const at::Tensor& gate, const at::Tensor& up, const std::optional<at::Tensor>& gate_bias,
                     const std::optional<at::Tensor>& up_bias, const ProductDtypes& dtypes);

// out = activation of a scaled product, all checked, out of the right shape and of any strides; see ScaledShape. Where
// no kernel reads 8 bits, by one that reads 16 or 32 if it may_widen.
Outcome scaled_into(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a, const at::Tensor& scale_b,
                    const std::optional<at::Tensor>& bias, const at::Tensor& out, const ScaledShape<int64_t>& shape,
                    const ProductDtypes& dtypes, Activation activation, int32_t algorithm, bool may_widen = true);

// The same of groups; see ScaledGroupedShape.
Outcome scaled_grouped_into(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a,
                            const at::Tensor& scale_b, const at::Tensor& offs, const std::optional<at::Tensor>& bias,
                            const at::Tensor& out, const ScaledGroupedShape<int64_t>& shape,
                            const ProductDtypes& dtypes, Activation activation, int32_t algorithm,
                            bool may_widen = true);

// Raises where groups' ends, on the CPU, decrease or leave `size`.
void check_offs(const at::Tensor& offs, int64_t size);

// The bias of a gated layer's sum in the type of accumulators, as a product with that result takes it: in an operand's
// dtype or the sum's.
std::optional<at::Tensor> bias_of_sum(const std::optional<at::Tensor>& bias, const ProductDtypes& dtypes);
// activation(gate) * up, which may be `kept`, too (matmul.cpp).
at::Tensor compute_gated(const at::Tensor& gate, const at::Tensor& up, std::string_view activation,
                         OptionalDtype out_dtype, KeptSums* kept = nullptr);
// The activation of a sum in the type of accumulators, with the bits of a kernel's epilogue, and the sum.
std::tuple<at::Tensor, at::Tensor> activated_and_sum(const at::Tensor& sum, std::string_view activation,
                                                     at::ScalarType result);

}  // namespace tiledmm

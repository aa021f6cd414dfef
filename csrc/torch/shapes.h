// Which operands are accepted, and the shape that comes out: for plain sizes (Size is int64_t) and for symbolic ones
// (c10::SymInt: meta tensors, torch.compile, torch.export).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/elementwise.h"
#include "core/problem.h"
#include "torch/matmul.h"

namespace tiledmm {

std::optional<DType> dtype_of(at::ScalarType type);      // none: not one of ours
std::optional<DType> fp8_dtype_of(at::ScalarType type);  // none: not one of our two of 8 bits
DType to_dtype(const char* name, const at::Tensor& tensor);
int32_t to_algorithm(std::string_view name);
Activation to_activation(std::string_view name);
Function to_function(std::string_view name);

// A tensor in plain memory, of the CPU or of a GPU: what the kernels read.
void check_operand(const char* name, const at::Tensor& tensor);

// Operands have one of the four dtypes, and one device.
void check_alike(const char* name, const at::Tensor& tensor, const char* other_name, const at::Tensor& other);

// The dtypes of a product: of its operands, of what is added, of its result.
struct ProductDtypes {
  DType a, b, bias, c;
  at::ScalarType result;

  void set(GemmProblem& problem) const {
    problem.dtype_a = a, problem.dtype_b = b, problem.dtype_bias = bias, problem.dtype_c = c;
  }
};

struct NamedTensor {
  const char* name;
  const at::Tensor& tensor;
};

// Checks that operands have dtypes that go together, and one device. Without an out_dtype the result has that of the
// operands, fp32 where they differ. What is added, if it is defined, has the dtype of one of them or of the result.
ProductDtypes product_dtypes(const NamedTensor& a, const NamedTensor& b, OptionalDtype out_dtype = std::nullopt,
                             const char* added_name = "", const std::optional<at::Tensor>& added = std::nullopt);

// The same for operands of 8 bits and their scales. C has the result's dtype, unless a bias has another: then fp32.
ProductDtypes scaled_dtypes(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a,
                            const at::Tensor& scale_b, const std::optional<at::Tensor>& bias, OptionalDtype out_dtype);
// The same where b alone has 8 bits.
ProductDtypes weight_only_dtypes(const at::Tensor& x, const at::Tensor& q, const at::Tensor& scale,
                                 const std::optional<at::Tensor>& bias, at::ScalarType out_dtype);
// Without the tensors. Raises where the result cannot have a dtype.
ProductDtypes scaled_dtypes(at::ScalarType a, at::ScalarType b, OptionalDtype out_dtype);

template <class Size>
using Shape = c10::SmallVector<Size, 6>;

template <class Size>
Size size_of(const at::Tensor& tensor, int64_t dim) {
  if constexpr (std::is_same_v<Size, int64_t>) {
    return tensor.size(dim);
  } else {
    return tensor.sym_size(dim);
  }
}

// The shape as messages show it.
template <class Size>
auto shape_of(const at::Tensor& tensor) {
  if constexpr (std::is_same_v<Size, int64_t>) {
    return tensor.sizes();
  } else {
    return tensor.sym_sizes();
  }
}

// A size that is not known yet is taken to be what makes sense, and checked when it is.
inline bool must_equal(int64_t a, int64_t b) { return a == b; }
inline bool must_equal(const c10::SymInt& a, const c10::SymInt& b) {
  return a.sym_eq(b).expect_true(__FILE__, __LINE__);
}
inline bool is_one(int64_t size) { return size == 1; }
inline bool is_one(const c10::SymInt& size) { return TORCH_GUARD_OR_FALSE(size.sym_eq(1)); }

// Sizes that are not known yet are not equal.
inline bool are_equal(int64_t a, int64_t b) { return a == b; }
inline bool are_equal(const c10::SymInt& a, const c10::SymInt& b) { return TORCH_GUARD_OR_FALSE(a.sym_eq(b)); }

// The operands' last dimensions as matrices: a 1-D a is a row, a 1-D b a column, as in torch.matmul.
template <class Size>
struct MatmulShape {
  bool a_is_vector, b_is_vector;
  int64_t num_batch_dims;
  Shape<Size> out;

  MatmulShape(const at::Tensor& a, const at::Tensor& b) : a_is_vector(a.dim() == 1), b_is_vector(b.dim() == 1) {
    TORCH_CHECK(a.dim() > 0 && b.dim() > 0, "tiledmm: a has ", a.dim(), " dimensions and b has ", b.dim(),
                "; both need at least 1");
    TORCH_CHECK(must_equal(size_of<Size>(a, -1), size_of<Size>(b, b_is_vector ? 0 : -2)), "tiledmm: the shapes of a ",
                shape_of<Size>(a), " and b ", shape_of<Size>(b), " do not fit: the last dimension of a must be the ",
                b_is_vector ? "only" : "last but one", " of b");
    const int64_t batch_a = std::max<int64_t>(a.dim() - 2, 0), batch_b = std::max<int64_t>(b.dim() - 2, 0);
    num_batch_dims = std::max(batch_a, batch_b);
    TORCH_CHECK(num_batch_dims <= kMaxBatchDims, "tiledmm: a and b have ", num_batch_dims,
                " batch dimensions; accepted are ", kMaxBatchDims);
    for (int64_t d = 0; d < num_batch_dims; ++d) {
      const int64_t in_a = d - (num_batch_dims - batch_a), in_b = d - (num_batch_dims - batch_b);
      const Size size_a = in_a < 0 ? Size(1) : size_of<Size>(a, in_a);
      const Size size_b = in_b < 0 ? Size(1) : size_of<Size>(b, in_b);
      const bool takes_b = is_one(size_a);
      TORCH_CHECK(takes_b || is_one(size_b) || must_equal(size_a, size_b), "tiledmm: the batch dimensions of a ",
                  shape_of<Size>(a), " and b ", shape_of<Size>(b), " do not broadcast");
      out.push_back(takes_b ? size_b : size_a);
    }
    if (!a_is_vector) out.push_back(size_of<Size>(a, -2));
    if (!b_is_vector) out.push_back(size_of<Size>(b, -1));
  }
};

// Of a product of matrices, or of batches of them, to which an input is added.
template <class Size>
Shape<Size> addmm_shape(const std::optional<at::Tensor>& input, const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.dim() >= 2 && b.dim() >= 2, "tiledmm: a has ", a.dim(), " dimensions and b has ", b.dim(),
              "; both need at least 2");
  const Shape<Size> out = MatmulShape<Size>(a, b).out;
  if (!input || !input->defined()) return out;
  const int64_t missing = int64_t(out.size()) - input->dim();
  bool fits = missing >= 0;
  for (int64_t d = 0; fits && d < input->dim(); ++d) {
    const Size size = size_of<Size>(*input, d);
    fits = is_one(size) || must_equal(size, out[size_t(d + missing)]);
  }
  TORCH_CHECK(fits, "tiledmm: input has shape ", shape_of<Size>(*input),
              "; accepted is what broadcasts to the product's shape, ", c10::ArrayRef<Size>(out));
  return out;
}

template <class Size>
Shape<Size> linear_shape(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  const int64_t dim = input.dim(), weight_dim = weight.dim();
  TORCH_CHECK(dim >= 1, "tiledmm: input has 0 dimensions; it needs at least 1, the last of size in_features");
  TORCH_CHECK(weight_dim == 1 || weight_dim == 2, "tiledmm: weight has shape ", shape_of<Size>(weight),
              "; accepted are (out_features, in_features) and (in_features,)");
  TORCH_CHECK(must_equal(size_of<Size>(input, -1), size_of<Size>(weight, -1)), "tiledmm: the shapes of input ",
              shape_of<Size>(input), " and weight ", shape_of<Size>(weight),
              " do not fit: their last dimensions must be equal");
  TORCH_CHECK(dim - 2 <= kMaxBatchDims, "tiledmm: input has ", dim, " dimensions; accepted are ", kMaxBatchDims + 2);
  const Size n = weight_dim == 1 ? Size(1) : size_of<Size>(weight, 0);
  if (bias && bias->defined()) {
    const Size size = bias->dim() == 0 ? Size(1) : size_of<Size>(*bias, 0);
    TORCH_CHECK(bias->dim() <= 1 && (is_one(size) || must_equal(size, n)), "tiledmm: bias has shape ",
                shape_of<Size>(*bias), "; accepted are (", n, ",) and (1,)");
  }
  Shape<Size> out;
  for (int64_t d = 0; d + 1 < dim; ++d) out.push_back(size_of<Size>(input, d));
  if (weight_dim == 2) out.push_back(n);
  return out;
}

// Refuses 'none' for `who`: linear_and_sum, whose sum would be the result, or a gate.
void check_has_activation(const char* who, std::string_view activation);

// Two tensors of one shape, one of the four dtypes, and one device.
template <class Size>
void check_one_shape(const NamedTensor& a, const NamedTensor& b) {
  to_dtype(a.name, a.tensor);
  to_dtype(b.name, b.tensor);
  check_alike(a.name, a.tensor, b.name, b.tensor);
  bool fits = a.tensor.dim() == b.tensor.dim();
  for (int64_t d = 0; fits && d < b.tensor.dim(); ++d) {
    fits = must_equal(size_of<Size>(a.tensor, d), size_of<Size>(b.tensor, d));
  }
  TORCH_CHECK(fits, "tiledmm: ", a.name, " has shape ", shape_of<Size>(a.tensor), " and ", b.name, " ",
              shape_of<Size>(b.tensor), "; both must have one shape");
}

// The operands of activate_backward: of one shape, and a function that has a slope.
template <class Size>
void check_slope(const at::Tensor& grad, const at::Tensor& x, std::string_view activation) {
  check_one_shape<Size>({"grad", grad}, {"x", x});
  TORCH_CHECK_VALUE(is_activation(to_function(activation)), "tiledmm: activation '", activation,
                    "' has no backward; accepted are relu, gelu, gelu_tanh, silu");
}

// Two weights of one shape and dtype, with biases that are alike.
template <class Size>
ProductDtypes check_gated_linear(const at::Tensor& input, const at::Tensor& gate, const at::Tensor& up,
                                 const std::optional<at::Tensor>& gate_bias, const std::optional<at::Tensor>& up_bias,
                                 std::string_view activation, OptionalDtype out_dtype) {
  const NamedTensor own_input{"input", input};
  const ProductDtypes dtypes = product_dtypes(own_input, {"gate", gate}, out_dtype, "gate_bias", gate_bias);
  product_dtypes(own_input, {"up", up}, out_dtype, "up_bias", up_bias);
  check_one_shape<Size>({"gate", gate}, {"up", up});
  linear_shape<Size>(input, gate, gate_bias);
  linear_shape<Size>(input, up, up_bias);
  if (gate_bias && gate_bias->defined() && up_bias && up_bias->defined()) {
    check_alike("gate_bias", *gate_bias, "up_bias", *up_bias);
  }
  check_has_activation("a gate", activation);
  return dtypes;
}

// The sums of a gated pair; their result has their dtype, or 16 bits of fp32.
template <class Size>
at::ScalarType check_gated(const at::Tensor& gate, const at::Tensor& up, std::string_view activation,
                           OptionalDtype out_dtype = std::nullopt) {
  check_one_shape<Size>({"gate", gate}, {"up", up});
  check_has_activation("a gate", activation);
  const at::ScalarType type = gate.scalar_type(), result = out_dtype.value_or(type);
  const bool is_narrowed = type == at::kFloat && (result == at::kHalf || result == at::kBFloat16);
  TORCH_CHECK_TYPE(result == type || is_narrowed, "tiledmm: the result of gate, which has dtype ", type,
                   ", cannot have dtype ", result,
                   "; accepted are its own, and torch.float16 or torch.bfloat16 where it has torch.float32");
  return result;
}

// What of a grouped product comes in groups: of all groups one size, rows of a, k, or columns of b.
enum class GroupedForm { batch, rows, k, columns };

template <class Size>
struct GroupedShape {
  GroupedForm form;
  Size num_groups;
  Shape<Size> out;

  GroupedShape(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& offs,
               const std::optional<at::Tensor>& bias) {
    const int64_t dim_a = a.dim(), dim_b = b.dim();
    TORCH_CHECK((dim_a == 2 || dim_a == 3) && (dim_b == 2 || dim_b == 3), "tiledmm: a has ", dim_a,
                " dimensions and b has ", dim_b, "; accepted are 2 and 3");
    form = dim_a == 3   ? dim_b == 3 ? GroupedForm::batch : GroupedForm::columns
           : dim_b == 3 ? GroupedForm::rows
                        : GroupedForm::k;
    const bool has_offs = offs && offs->defined();
    TORCH_CHECK(has_offs == (form != GroupedForm::batch), "tiledmm: offs is ", has_offs ? "given" : "None", " with a ",
                dim_a, "-D a and a ", dim_b, "-D b; it is needed where one of them is 2-D, and not accepted otherwise");
    TORCH_CHECK(must_equal(size_of<Size>(a, -1), size_of<Size>(b, -2)), "tiledmm: the shapes of a ", shape_of<Size>(a),
                " and b ", shape_of<Size>(b), " do not fit: the last dimension of a must be the last but one of b");
    if (has_offs) {
      TORCH_CHECK_TYPE(offs->scalar_type() == at::kInt, "tiledmm: offs has dtype ", offs->scalar_type(),
                       "; accepted is torch.int32");
      TORCH_CHECK(offs->dim() == 1, "tiledmm: offs has ", offs->dim(), " dimensions; accepted is 1");
      TORCH_CHECK(offs->device() == a.device(), "tiledmm: offs is on ", offs->device(), " and a on ", a.device(),
                  "; both must be on one device");
    }
    const at::Tensor& grouped = dim_a == 3 ? a : dim_b == 3 ? b : *offs;  // its first dimension counts the groups
    num_groups = size_of<Size>(grouped, 0);
    if (form == GroupedForm::batch) {
      TORCH_CHECK(must_equal(num_groups, size_of<Size>(b, 0)), "tiledmm: a has shape ", shape_of<Size>(a), " and b ",
                  shape_of<Size>(b), "; their first dimensions, which count the groups, must be equal");
    } else {
      TORCH_CHECK(must_equal(num_groups, size_of<Size>(*offs, 0)), "tiledmm: offs has ", size_of<Size>(*offs, 0),
                  " elements for ", num_groups, " groups; accepted is the end of each group");
    }
    const Size m = size_of<Size>(a, -2), n = size_of<Size>(b, -1);
    if (form == GroupedForm::batch || form == GroupedForm::k) out.push_back(num_groups);
    out.push_back(m);
    out.push_back(n);
    check_bias(bias, n);
  }

  // What the offsets count.
  Size grouped_size(const at::Tensor& a, const at::Tensor& b) const {
    return form == GroupedForm::rows ? size_of<Size>(a, 0) : size_of<Size>(b, form == GroupedForm::k ? 0 : 1);
  }

 private:
  void check_bias(const std::optional<at::Tensor>& bias, const Size& n) const {
    if (!bias || !bias->defined()) return;
    TORCH_CHECK(form != GroupedForm::columns && bias->dim() == 2 && must_equal(size_of<Size>(*bias, 0), num_groups) &&
                    must_equal(size_of<Size>(*bias, 1), n),
                "tiledmm: bias has shape ", shape_of<Size>(*bias), "; accepted is ",
                form == GroupedForm::columns ? "none where the columns of b are grouped" : "a row for each group, (",
                num_groups, ", ", n, ")");
  }
};

// Blocks of scales that a size has.
template <class Size>
Size scale_blocks(const Size& size) {
  return (size + (kScaledK - 1)) / kScaledK;
}

template <class Size>
bool has_one_element(const at::Tensor& tensor) {
  bool is_single = true;
  for (int64_t d = 0; d < tensor.dim(); ++d) is_single = is_single && is_one(size_of<Size>(tensor, d));
  return is_single;
}

// Whether scales are one for all, or one for each row of A or column of B, which are dimension row_dim.
template <class Size>
bool are_scales_of_rows(const at::Tensor& scale, const Size& rows, int64_t row_dim) {
  if (has_one_element<Size>(scale)) return true;
  if (scale.dim() == 1) return are_equal(size_of<Size>(scale, 0), rows);
  return scale.dim() == 2 && is_one(size_of<Size>(scale, 1 - row_dim)) &&
         are_equal(size_of<Size>(scale, row_dim), rows);
}

// The rows of A, or columns of B, that share a scale of a block of k; 0: the scales are none of blocks.
template <class Size>
int32_t rows_of_scale_block(const at::Tensor& scale, const Size& rows, const Size& k_blocks, int64_t row_dim) {
  if (are_equal(k_blocks, 1) && are_scales_of_rows(scale, rows, row_dim)) return 1;
  if (scale.dim() != 2 || !are_equal(size_of<Size>(scale, 1 - row_dim), k_blocks)) return 0;
  if (are_equal(size_of<Size>(scale, row_dim), rows)) return 1;
  return are_equal(size_of<Size>(scale, row_dim), scale_blocks(rows)) ? kScaledK : 0;
}

// A product of operands of 8 bits, and how their scales are shared, read off the scales' shapes. Where k has one block,
// a scale for each row is one for each block, too: then rows are meant, if the other operand's scales may be of rows.
template <class Size>
struct ScaledShape {
  Scaling scaling = Scaling::rows;
  int32_t rows_of_block_a = 1, rows_of_block_b = 1;
  Shape<Size> out;

  ScaledShape(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a, const at::Tensor& scale_b,
              const std::optional<at::Tensor>& bias) {
    TORCH_CHECK(a.dim() == 2 && b.dim() == 2, "tiledmm: a has ", a.dim(), " dimensions and b has ", b.dim(),
                "; accepted are 2");
    const Size m = size_of<Size>(a, 0), k = size_of<Size>(a, 1), n = size_of<Size>(b, 1);
    TORCH_CHECK(must_equal(k, size_of<Size>(b, 0)), "tiledmm: the shapes of a ", shape_of<Size>(a), " and b ",
                shape_of<Size>(b), " do not fit: the last dimension of a must be the first of b");
    if (bias && bias->defined()) {
      TORCH_CHECK(bias->dim() == 1 && must_equal(size_of<Size>(*bias, 0), n), "tiledmm: bias has shape ",
                  shape_of<Size>(*bias), "; accepted is (", n, ",)");
    }
    out.push_back(m);
    out.push_back(n);
    if (are_scales_of_rows(scale_a, m, 0) && are_scales_of_rows(scale_b, n, 1)) return;
    scaling = Scaling::blocks;
    const Size k_blocks = scale_blocks(k);
    rows_of_block_a = rows_of_scale_block(scale_a, m, k_blocks, 0);
    rows_of_block_b = rows_of_scale_block(scale_b, n, k_blocks, 1);
    TORCH_CHECK_VALUE(
        rows_of_block_a && rows_of_block_b, "tiledmm: scale_a has shape ", shape_of<Size>(scale_a), " and scale_b ",
        shape_of<Size>(scale_b), " for a of shape ", shape_of<Size>(a), " and b of shape ", shape_of<Size>(b),
        "; accepted are one element, (", m, ",) or (", m, ", 1) for scale_a beside one element, (", n, ",) or (1, ", n,
        ") for scale_b, or, of blocks of 128 along k, (", m, ", ", k_blocks, ") or (", scale_blocks(m), ", ", k_blocks,
        ") for scale_a beside (", k_blocks, ", ", n, ") or (", k_blocks, ", ", scale_blocks(n), ") for scale_b");
  }
};

// The same for groups of rows, each with a B and its scales: of tensors, rows and columns, or of 1 x 128 of A and of
// 128 x 128 of B.
template <class Size>
struct ScaledGroupedShape {
  Scaling scaling = Scaling::rows;
  GroupedShape<Size> groups;

  ScaledGroupedShape(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a, const at::Tensor& scale_b,
                     const at::Tensor& offs, const std::optional<at::Tensor>& bias)
      : groups(check_dims(a, b), b, offs, bias) {
    const Size m = size_of<Size>(a, 0), k = size_of<Size>(a, 1), n = size_of<Size>(b, 2), num = groups.num_groups;
    const bool is_a_of_rows = are_scales_of_rows(scale_a, m, 0);
    if (is_a_of_rows && are_of_columns(scale_b, num, n)) return;
    scaling = Scaling::blocks;
    const Size k_blocks = scale_blocks(k), n_blocks = scale_blocks(n);
    const bool are_blocks_of_a =
        (is_a_of_rows && are_equal(k_blocks, 1)) || (scale_a.dim() == 2 && are_equal(size_of<Size>(scale_a, 0), m) &&
                                                     are_equal(size_of<Size>(scale_a, 1), k_blocks));
    const bool are_blocks_of_b = scale_b.dim() == 3 && are_equal(size_of<Size>(scale_b, 0), num) &&
                                 are_equal(size_of<Size>(scale_b, 1), k_blocks) &&
                                 are_equal(size_of<Size>(scale_b, 2), n_blocks);
    TORCH_CHECK_VALUE(are_blocks_of_a && are_blocks_of_b, "tiledmm: scale_a has shape ", shape_of<Size>(scale_a),
                      " and scale_b ", shape_of<Size>(scale_b), " for a of shape ", shape_of<Size>(a),
                      " and b of shape ", shape_of<Size>(b), "; accepted are one element, (", m, ",) or (", m,
                      ", 1) for scale_a beside one element, (", num, ", 1, 1), (", num, ", ", n, ") or (", num, ", 1, ",
                      n, ") for scale_b, or, of blocks of 128, (", m, ", ", k_blocks, ") for scale_a beside (", num,
                      ", ", k_blocks, ", ", n_blocks, ") for scale_b");
  }

 private:
  static const at::Tensor& check_dims(const at::Tensor& a, const at::Tensor& b) {
    TORCH_CHECK(a.dim() == 2 && b.dim() == 3, "tiledmm: a has ", a.dim(), " dimensions and b has ", b.dim(),
                "; accepted are 2 and 3, rows in groups and a matrix for each");
    return a;
  }

  // Whether scales are one for all, one for each group, or one for each of its columns.
  static bool are_of_columns(const at::Tensor& scale, const Size& num_groups, const Size& n) {
    if (has_one_element<Size>(scale)) return true;
    if (scale.dim() < 2 || scale.dim() > 3 || !are_equal(size_of<Size>(scale, 0), num_groups)) return false;
    if (scale.dim() == 2) return are_equal(size_of<Size>(scale, 1), n);
    const Size columns = size_of<Size>(scale, 2);
    return is_one(size_of<Size>(scale, 1)) && (is_one(columns) || are_equal(columns, n));
  }
};

// Two weights of one shape and dtype for each group of rows, or of a batch, with biases that are alike.
template <class Size>
ProductDtypes check_gated_grouped(const at::Tensor& a, const at::Tensor& gate, const at::Tensor& up,
                                  const std::optional<at::Tensor>& offs, const std::optional<at::Tensor>& gate_bias,
                                  const std::optional<at::Tensor>& up_bias, std::string_view activation,
                                  OptionalDtype out_dtype) {
  const ProductDtypes dtypes = product_dtypes({"a", a}, {"gate", gate}, out_dtype, "gate_bias", gate_bias);
  product_dtypes({"a", a}, {"up", up}, out_dtype, "up_bias", up_bias);
  check_one_shape<Size>({"gate", gate}, {"up", up});
  TORCH_CHECK(gate.dim() == 3, "tiledmm: gate has shape ", shape_of<Size>(gate), "; accepted is (groups, k, n)");
  GroupedShape<Size>(a, gate, offs, gate_bias);
  GroupedShape<Size>(a, up, offs, up_bias);
  if (gate_bias && gate_bias->defined() && up_bias && up_bias->defined()) {
    check_alike("gate_bias", *gate_bias, "up_bias", *up_bias);
  }
  check_has_activation("a gate", activation);
  return dtypes;
}

// Which dimensions an ordered_sum is over.
inline std::vector<bool> summed_dims(const at::Tensor& a, at::IntArrayRef dims) {
  std::vector<bool> is_summed(size_t(a.dim()));
  for (const int64_t dim : dims) {
    TORCH_CHECK_INDEX(dim >= 0 && dim < a.dim() && !is_summed[size_t(dim)], "tiledmm: dims is ", dims, " and a has ",
                      a.dim(), " dimensions; accepted are different ones from 0 on");
    is_summed[size_t(dim)] = true;
  }
  return is_summed;
}

template <class Size>
Shape<Size> ordered_sum_shape(const at::Tensor& a, at::IntArrayRef dims) {
  const std::vector<bool> is_summed = summed_dims(a, dims);
  Shape<Size> out;
  for (int64_t d = 0; d < a.dim(); ++d) out.push_back(is_summed[size_t(d)] ? Size(1) : size_of<Size>(a, d));
  return out;
}

// The operands of linear_weight_grads: (rows, out_features) and (rows, in_features).
template <class Size>
void check_weight_grads(const at::Tensor& grad, const at::Tensor& input) {
  TORCH_CHECK(grad.dim() == 2 && input.dim() == 2 && must_equal(size_of<Size>(grad, 0), size_of<Size>(input, 0)),
              "tiledmm: grad has shape ", shape_of<Size>(grad), " and input ", shape_of<Size>(input),
              "; accepted are (rows, out_features) and (rows, in_features)");
}

}  // namespace tiledmm

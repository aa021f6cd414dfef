// Whether elements of strided tensors have addresses in common, answered exactly for views with gaps, interleaved ones
// among them. That is a bounded linear Diophantine equation, as in numpy's mem_overlap.c; NP-hard in general, a few
// steps for the strides that occur.
#pragma once

#include <ATen/core/Tensor.h>

namespace tiledmm {

enum class Answer { no, yes, too_many_steps };

// Whether two elements of the tensor share memory.
Answer overlaps_itself(const at::Tensor& tensor);

// Whether two tensors have a byte in common. The size of an element of one divides that of the other.
Answer overlap(const at::Tensor& first, const at::Tensor& second);

// Whether they may have, asked at length only where they share storage.
inline bool may_overlap(const at::Tensor& first, const at::Tensor& second) {
  return first.is_alias_of(second) && overlap(first, second) != Answer::no;
}

}  // namespace tiledmm

// Bounded linear Diophantine equations over the strides of tensors (overlap.h).
#include "torch/overlap.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace tiledmm {
namespace {

__extension__ using Wide = __int128;

// factor * x, 0 <= x <= most
struct Term {
  int64_t factor, most;
};
using Terms = c10::SmallVector<Term, 16>;

// x with factor * x = target (mod modulus), 0 <= x < modulus; factor and modulus have no common divisor.
int64_t solve_modulo(int64_t factor, int64_t target, int64_t modulus) {
  int64_t remainder = modulus, next_remainder = factor % modulus, inverse = 0, next_inverse = 1;
  while (next_remainder != 0) {  // Euclid: inverse * factor = remainder (mod modulus)
    const int64_t quotient = remainder / next_remainder;
    remainder = std::exchange(next_remainder, remainder - quotient * next_remainder);
    inverse = std::exchange(next_inverse, inverse - quotient * next_inverse);
  }
  inverse = (inverse % modulus + modulus) % modulus;
  return int64_t(Wide(inverse) * (target % modulus) % modulus);
}

// Whether the terms can add up to a target. Largest factors first: what the rest reaches bounds each x, and what
// divides the rest leaves only every so many of them. So two terms take one step.
class Equation {
 public:
  explicit Equation(Terms terms) : reach_{0}, divisor_{0} {
    std::sort(terms.begin(), terms.end(), [](const Term& x, const Term& y) { return x.factor < y.factor; });
    for (const Term& term : terms) {
      if (term.factor == 0 || term.most == 0) continue;
      if (!terms_.empty() && terms_.back().factor == term.factor) {
        terms_.back().most += term.most;
        reach_.back() += term.factor * term.most;
        continue;
      }
      terms_.push_back(term);
      reach_.push_back(reach_.back() + term.factor * term.most);
      divisor_.push_back(std::gcd(divisor_.back(), term.factor));
    }
  }

  Answer can_be(int64_t target) {
    steps_left_ = kMaxSteps;
    return search(terms_.size(), target);
  }

 private:
  static constexpr int64_t kMaxSteps = 1 << 16;  // a few milliseconds

  // With the first `count` terms, smallest factors first.
  Answer search(size_t count, int64_t target) {
    if (target < 0 || target > reach_[count]) return Answer::no;
    if (target == 0) return Answer::yes;
    if (target % divisor_[count] != 0) return Answer::no;
    if (count == 1) return Answer::yes;
    const Term& term = terms_[count - 1];
    const int64_t rest = reach_[count - 1], divisor = divisor_[count - 1], common = divisor_[count];
    const int64_t step = divisor / common;
    const int64_t low = target <= rest ? 0 : (target - rest + term.factor - 1) / term.factor;
    const int64_t high = std::min(term.most, target / term.factor);
    const int64_t first = solve_modulo(term.factor / common, target / common, step);
    for (int64_t x = low + ((first - low) % step + step) % step; x <= high; x += step) {
      if (--steps_left_ < 0) return Answer::too_many_steps;
      const Answer answer = search(count - 1, target - term.factor * x);
      if (answer != Answer::no) return answer;
    }
    return Answer::no;
  }

  Terms terms_;
  c10::SmallVector<int64_t, 16> reach_, divisor_;  // of the first so many terms: their largest sum, their divisor
  int64_t steps_left_ = 0;
};

}  // namespace

// Two indices differ by d, and sum stride_i d_i = 0. Let i be the dimension of the largest stride with d_i != 0, d_i >
// 0: stride_i (1 + x) + sum over the smaller ones stride_j (y_j - (size_j - 1)) = 0 with 0 <= y_j <= 2 (size_j - 1).
Answer overlaps_itself(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return Answer::no;
  Terms dims;  // factor: stride, most: the last index
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1) dims.push_back({tensor.stride(d), tensor.size(d) - 1});
  }
  std::sort(dims.begin(), dims.end(), [](const Term& x, const Term& y) { return x.factor < y.factor; });
  int64_t reach = 0;  // of the smaller strides
  Terms smaller;
  Answer answer = Answer::no;
  for (const Term& dim : dims) {
    if (dim.factor == 0) return Answer::yes;
    if (dim.factor <= reach) {
      Terms terms = smaller;
      terms.push_back({dim.factor, dim.most - 1});
      const Answer found = Equation(terms).can_be(reach - dim.factor);
      if (found == Answer::yes) return found;
      if (found == Answer::too_many_steps) answer = found;
    }
    reach += dim.factor * dim.most;
    smaller.push_back({dim.factor, 2 * dim.most});
  }
  return answer;
}

// sum stride_i x_i = distance + sum stride_j y_j, turned by y_j -> size_j - 1 - y_j into one sum of terms. Counted in
// elements of the smaller size, of which the other tensor's have several: one dimension more, of stride 1.
Answer overlap(const at::Tensor& first, const at::Tensor& second) {
  if (first.numel() == 0 || second.numel() == 0) return Answer::no;
  const int64_t element_size = std::min(first.element_size(), second.element_size());
  Terms terms;
  int64_t reach = 0;
  for (const at::Tensor* tensor : {&first, &second}) {
    const int64_t parts = tensor->element_size() / element_size;
    const auto add = [&](int64_t factor, int64_t most) {
      terms.push_back({factor, most});
      if (tensor == &second) reach += factor * most;
    };
    for (int64_t d = 0; d < tensor->dim(); ++d) add(tensor->stride(d) * parts, tensor->size(d) - 1);
    add(1, parts - 1);
  }
  const int64_t bytes =
      static_cast<const char*>(second.const_data_ptr()) - static_cast<const char*>(first.const_data_ptr());
  const int64_t odd_bytes = bytes % element_size, distance = bytes / element_size;
  Equation equation(terms);
  const Answer answer = equation.can_be(distance + reach);
  if (odd_bytes == 0 || answer == Answer::yes) return answer;
  // An element lies across two of the other tensor.
  const Answer other = equation.can_be(distance + reach + (odd_bytes > 0 ? 1 : -1));
  return other == Answer::no ? answer : other;
}

}  // namespace tiledmm

// Adds the sums of chunks by the host executor, by every kernel that platform/chunk_sums.h has for it: every bit of C,
// and of what lies around it, is that of additions one after the other.
#include "platform/chunk_sums.h"

#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

namespace {

using namespace tiledmm;

std::mt19937 generator(1);

struct Case {
  int64_t batch, m, n, chunks;
  int margin_of_sums = 0;      // more columns in a row of sums
  int margin = 0, offset = 0;  // elements between rows of C, and before it
  bool is_c_along_m = false, has_row_sums = false;
  char bias = ' ';  // of columns 'n', of rows 'm'; 'x': a matrix for each item, all scaled
};

template <class E>
std::vector<E> draw(int64_t count) {
  std::normal_distribution<double> normal;
  std::vector<E> values(count);
  for (E& value : values) value = from_acc<E>(Acc<E>(normal(generator)));
  return values;
}

// C of the elements E, the sums of T's accumulators.
template <class T, class E, bool ADDS_TO_C, bool SCALES>
bool is_right(const Case& c, Activation activation) {
  using A = Acc<T>;
  const int64_t ld = c.n + c.margin_of_sums, rows = c.is_c_along_m ? c.n : c.m, cols = c.is_c_along_m ? c.m : c.n;
  const int64_t ldc = cols + c.margin, item_of_c = rows * ldc + c.margin;
  const std::vector<A> sums = draw<A>(c.batch * c.chunks * c.m * ld);
  const std::vector<E> bias = draw<E>(c.batch * c.m * c.n);
  const std::vector<float> scales = draw<float>(2 * c.n);
  std::vector<E> result = draw<E>(c.offset + c.batch * item_of_c), row_sums = draw<E>(c.m), expected = result,
                 expected_row_sums = row_sums;
  FoldedProblem problem{};
  GemmProblem& p = problem.gemm;
  p.m = c.m, p.n = c.n;
  p.c = result.data() + c.offset, p.stride_cm = c.is_c_along_m ? 1 : ldc, p.stride_cn = c.is_c_along_m ? ldc : 1;
  p.set_dtypes(kDTypeOf<E>);
  p.activation = activation;
  p.row_sums = c.has_row_sums ? row_sums.data() : nullptr;
  p.scale_b.data = scales.data(), p.scale_b.stride_row = 2;
  problem.batch_size = c.batch;
  p.num_batch_dims = c.batch > 1;
  problem.batch_dims[0] = {c.batch, 0, 0, item_of_c, 0};
  if (c.bias != ' ') p.bias = bias.data();
  if (c.bias == 'n') p.stride_bias_n = 1;
  if (c.bias == 'm') p.stride_bias_m = 1;
  if (c.bias == 'x') {
    p.stride_bias_m = c.n, p.stride_bias_n = 1, p.alpha = 0.75, p.beta = 1.5;
    problem.batch_dims[0].stride_bias = c.m * c.n;
  }
  for (int64_t item = 0; item < c.batch; ++item) {
    for (int64_t row = 0; row < c.m; ++row) {
      for (int64_t col = 0; col < ld; ++col) {
        E* const to = &expected[0] + c.offset + item * item_of_c + row * p.stride_cm + col * p.stride_cn;
        A sum = ADDS_TO_C && col < c.n ? A(to_acc(*to)) : A(-0.0);
        for (int64_t chunk = 0; chunk < c.chunks; ++chunk)
          sum += sums[((item * c.chunks + chunk) * c.m + row) * ld + col];
        if (c.has_row_sums && col == ld - 1) expected_row_sums[row] = from_acc<E>(sum);
        if (col >= c.n) continue;
        if (SCALES) sum *= scales[2 * col];
        const int64_t place = item * problem.batch_dims[0].stride_bias + row * p.stride_bias_m + col * p.stride_bias_n;
        const A added = c.bias == ' ' ? A(-0.0) : A(p.beta) * A(to_acc(bias[place]));
        *to = from_acc<E>(gpu::activated<T>(activation, std::fma(A(p.alpha), sum, added)));
      }
    }
  }
  host_gpu::Session session;
  const Executor executor = host_gpu::executor_of(session);
  const Status status = gpu::add_chunks_of<T, ADDS_TO_C, SCALES>(problem, sums.data(), ld, c.chunks, executor);
  const auto is_same = [](const std::vector<E>& a, const std::vector<E>& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(E)) == 0;
  };
  const bool is_ok = status == Status::ok && is_same(result, expected) && is_same(row_sums, expected_row_sums);
  std::printf("%s: %d items of %d x %d, %d chunks, %d bytes%s%s\n", is_ok ? "right" : "WRONG", int(c.batch), int(c.m),
              int(c.n), int(c.chunks), int(sizeof(E)), ADDS_TO_C ? ", added to C" : "", SCALES ? ", scaled" : "");
  return is_ok;
}

}  // namespace

int main() {
  bool is_ok = true;
  const auto check = [&](const Case& c) {
    is_ok &= is_right<BFloat16, BFloat16, false, false>(c, Activation::silu);
    is_ok &= is_right<double, double, false, false>(c, Activation::relu);
    if (c.has_row_sums) return;
    is_ok &= is_right<float, float, true, false>(c, Activation::none);
    is_ok &= is_right<gpu::AnyElement, Half, false, true>(c, Activation::relu);
    is_ok &= is_right<gpu::AnyElement, float, false, true>(c, Activation::none);
  };
  // Few sums; more of them, a thread for each; many, in vectors where their rows allow it, and C's or not.
  check({1, 5, 77, 70, 1, 3, 1, false, false, 'n'});
  check({2, 40, 211, 17, 0, 0, 0, true, false, 'x'});
  check({1, 130, 1027, 3, 0, 1, 0, false, false, 'm'});
  check({3, 67, 990, 9, 2, 2, 0, false, false, 'x'});
  check({1, 131, 1003, 2, 1, 5, 0, false, false, 'n'});
  check({1, 131, 1004, 8, 0, 4, 4, false, false, ' '});
  check({2, 97, 1004, 2, 0, 0, 2, true, false, 'n'});
  check({1, 150, 1001, 5, 11, 3, 0, false, true, ' '});
  return is_ok ? 0 : 1;
}

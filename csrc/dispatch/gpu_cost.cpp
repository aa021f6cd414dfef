// What a kernel is expected to take on a GPU, in microseconds. The native kernels' models are fitted on an H200 and
// tell other chips of that family apart by their number of multiprocessors alone; the other rungs' are rough.
#include <utility>

#include "core/mma_async_config.h"
#include "core/mma_unaligned_config.h"
#include "core/simt_config.h"
#include "core/skinny_config.h"
#include "core/summation.h"
#include "core/wgmma_config.h"
#include "core/wgmma_tf32_config.h"
#include "dispatch/gpu.h"

namespace tiledmm {
namespace {

// By rung: share of the peak rate, and how often the operands' bytes are moved, at large sizes. Both get better with
// every rung of one family, and every rung of the second family is behind the first one's last; docs/LADDER.md has the
// measurements on an H200.
constexpr double kEfficiency[] = {0, 0.08, 0.12, 0.2, 0.7, 0.02, 0.1, 0.15, 0.35};
constexpr double kTraffic[] = {0, 64, 32, 24, 4, 200, 50, 40, 3};
constexpr double kLaunchUs = 3;

// How an operand lies.
struct Lie {
  bool is_k_major;
  bool is_aligned;  // 16 bytes at a time
  int copy_width;   // bytes at a time, at most 16

  Lie(const GemmProblem& problem, bool is_a) {
    const int64_t stride_mn = is_a ? problem.stride_am : problem.stride_bn;
    const int64_t stride_k = is_a ? problem.stride_ak : problem.stride_bk;
    const int64_t per_vector = 16 / size_of(problem.dtype);
    is_k_major = stride_k == 1 || stride_mn != 1;
    is_aligned = (stride_k == 1 || stride_mn == 1) && (is_k_major ? stride_mn : stride_k) % per_vector == 0 &&
                 reinterpret_cast<uintptr_t>(is_a ? problem.a : problem.b) % 16 == 0;
    for (int32_t d = 0; d < problem.num_batch_dims; ++d) {
      const BatchDim& dim = problem.batch_dims[d];
      is_aligned = is_aligned && (is_a ? dim.stride_a : dim.stride_b) % per_vector == 0;
    }
    copy_width = tiledmm::copy_width(problem, problem.batch_dims, is_a);
  }
};

// Else rung 10 stores it element by element.
bool is_c_aligned(const GemmProblem& problem) {
  return (problem.stride_cn == 1 ? problem.stride_cm : problem.stride_cn) % 8 == 0;
}

// Rung 10 with operands of which one is unaligned, without copies of them or with them.
double unaligned_us(const GemmProblem& problem, int64_t batch, int64_t chunk, const GpuChip& chip) {
  MmaUnalignedProblem unaligned = describe_unaligned(problem, problem.batch_dims, batch, chunk);
  if (problem.n < problem.m && problem.n <= 64) {  // C^T = B^T A^T
    std::swap(unaligned.m, unaligned.n);
    std::swap(unaligned.a, unaligned.b);
  }
  return plan_mma_unaligned(unaligned, is_c_aligned(problem), chip.num_cus, chip.max_shared_bytes).microseconds;
}

// What rung 11 takes longer than its model says where it copies 16-bit operands first: with chunks of k, and where up
// to 8 rows or columns lie close to each other. A k tile is then 64 rows of 16 bytes, which all multiprocessors fetch
// at the same time.
double copied_us(const GemmProblem& problem, const Lie& a, const Lie& b, int64_t chunk, int num_cus) {
  if (a.is_aligned && b.is_aligned) return 0;
  const double chunks = chunk < problem.k ? 2.5 : 0;
  const auto is_slow = [](const Lie& lie, int64_t mn) { return !lie.is_k_major && !lie.is_aligned && mn <= 8; };
  if (!is_slow(a, problem.m) && !is_slow(b, problem.n)) return chunks;
  const double readers = double(max_of(problem.m, problem.n)) / (32.0 * num_cus);
  return chunks + 0.3 * (readers < 1 ? readers : 1) * double(ceil_div(min_of(problem.k, chunk), 64));
}

}  // namespace

double gpu_cost_us(const GpuKernel& kernel, const GemmProblem& problem, const GpuChip& chip) {
  const int64_t m = problem.m, n = problem.n, k = problem.k, chunk = chunk_k(problem);
  const int64_t batch = batch_size(problem);
  const bool is_empty = m == 0 || n == 0 || k == 0 || batch == 0;
  if (kernel.rung >= kFirstNativeRung && is_empty) return kLaunchUs;
  const Lie a(problem, true), b(problem, false);
  switch (kernel.rung) {
    case 9: {
      const SimtTask task{m,
                          n,
                          k,
                          batch,
                          chunk,
                          {a.is_k_major, a.is_aligned},
                          {b.is_k_major, b.is_aligned},
                          chip.num_cus,
                          chip.max_shared_bytes};
      return simt_microseconds(task, choose_simt_plan(task));
    }
    case 10: {
      if (size_of(problem.dtype) == 2 && !(a.is_aligned && b.is_aligned))
        return unaligned_us(problem, batch, chunk, chip);
      const bool is_transposed = n < m && n <= 64;
      const bool splits_a = splits_sectors(problem.dtype, problem.stride_am, problem.stride_ak);
      const bool splits_b = splits_sectors(problem.dtype, problem.stride_bn, problem.stride_bk);
      const MmaAsyncCopies copies{a.is_aligned && b.is_aligned, is_transposed ? splits_b : splits_a,
                                  is_transposed ? splits_a : splits_b};
      const int64_t rows = is_transposed ? n : m, cols = is_transposed ? m : n;
      const MmaAsyncChoice choice =
          choose_mma_async(problem.dtype, copies, rows, cols, k, batch, chunk, chip.num_cus, chip.max_shared_bytes);
      return mma_async_us(choice, problem.dtype, copies, rows, cols, k, batch, chunk, chip.num_cus) +
             (size_of(problem.dtype) == 2 && !is_c_aligned(problem) ? double(batch * m * n) * 3e-6 : 0);
    }
    case 11:
      return problem.dtype == DType::f32
                 ? wgmma_tf32_microseconds(problem, chip.num_cus)
                 : wgmma_microseconds(problem, chip.num_cus) + copied_us(problem, a, b, chunk, chip.num_cus);
    case 14:
      return skinny_microseconds({m, n, k, chunk, batch, a.is_k_major, b.is_k_major},
                                 int(min_of(a.copy_width, b.copy_width)), chip.num_cus);
    default: {
      const double peak = (kernel.is_mma ? chip.mma_tflops : chip.simt_tflops)[int(problem.dtype)];
      const double flops = 2 * double(m) * double(n) * double(k) * double(batch);
      const double elements = (double(m) * double(k) + double(k) * double(n) + double(m) * double(n)) * double(batch);
      return kLaunchUs + flops / (kEfficiency[kernel.rung] * peak * 1e6) +
             kTraffic[kernel.rung] * elements * double(size_of(problem.dtype)) / (chip.tbytes_per_second * 1e6);
    }
  }
}

}  // namespace tiledmm

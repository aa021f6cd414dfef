// The GPU rungs on the host executor, as a C interface of their own (library _host_gpu_wave32 or _host_gpu_wave64).
#include <cstdio>

#include "api/kernels_api.h"
#include "dispatch/launch.h"
#include "dispatch/select.h"
#include "platform/host_gpu.h"

using namespace tiledmm;

namespace {

// What a call has found, for the caller; see tiledmm_host_gemm.
int32_t finish(Status status, const host_gpu::Session& session, host_gpu::Counts* counts, host_gpu::Faults* faults,
               char* reason, size_t capacity) {
  if (faults) *faults = session.faults;
  if (status != Status::ok) return int32_t(status);
  if (!session.error.empty()) {
    std::snprintf(reason, capacity, "%s", session.error.c_str());
    return -1;
  }
  if (counts) *counts = session.counts;
  return 0;
}

}  // namespace

extern "C" {

// Runs one problem. `seed` orders the threads, 0: by their number. Counts and faults may be null. On failure returns
// the Status, or -1 for what the executor found (a race, a barrier not reached by all), and writes the reason.
TILEDMM_API int32_t tiledmm_host_gemm(const GemmProblem* problem, const char* algorithm, uint64_t seed,
                                      host_gpu::Counts* counts, host_gpu::Faults* faults, char* reason,
                                      size_t capacity) {
  const int32_t idx = find_algorithm(algorithm);
  if (idx < 0) {
    std::snprintf(reason, capacity, "there is no algorithm '%s' for GPUs", algorithm);
    return int32_t(Status::unknown_algorithm);
  }
  host_gpu::Session session;
  session.seed = seed;
  session.is_counting = counts != nullptr;
  if (faults) session.faults = *faults;
  const Status status = run_on_gpu(*problem, idx, host_gpu::executor_of(session), reason, capacity);
  return finish(status, session, counts, faults, reason, capacity);
}

// Runs a function of each element; seed, result and reason are those of tiledmm_host_gemm.
TILEDMM_API int32_t tiledmm_host_elementwise(const ElementwiseProblem* problem, uint64_t seed, char* reason,
                                             size_t capacity) {
  host_gpu::Session session;
  session.seed = seed;
  const Status status = run_elementwise_on_gpu(*problem, host_gpu::executor_of(session), reason, capacity);
  return finish(status, session, nullptr, nullptr, reason, capacity);
}

// Sums along a dimension; seed, result and reason are those of tiledmm_host_gemm.
TILEDMM_API int32_t tiledmm_host_reduce(const ReduceProblem* problem, uint64_t seed, char* reason, size_t capacity) {
  host_gpu::Session session;
  session.seed = seed;
  const Status status = run_reduce_on_gpu(*problem, host_gpu::executor_of(session), reason, capacity);
  return finish(status, session, nullptr, nullptr, reason, capacity);
}

// Weights of attention; seed, result and reason are those of tiledmm_host_gemm.
TILEDMM_API int32_t tiledmm_host_softmax(const SoftmaxProblem* problem, uint64_t seed, char* reason, size_t capacity) {
  host_gpu::Session session;
  session.seed = seed;
  const Status status = run_softmax_on_gpu(*problem, host_gpu::executor_of(session), reason, capacity);
  return finish(status, session, nullptr, nullptr, reason, capacity);
}

// Elements of 8 bits with scales; seed, result and reason are those of tiledmm_host_gemm. Counts may be null.
TILEDMM_API int32_t tiledmm_host_quantize(const QuantizeProblem* problem, uint64_t seed, host_gpu::Counts* counts,
                                          char* reason, size_t capacity) {
  host_gpu::Session session;
  session.seed = seed;
  session.is_counting = counts != nullptr;
  const Status status = run_quantize_on_gpu(*problem, host_gpu::executor_of(session), reason, capacity);
  return finish(status, session, counts, nullptr, reason, capacity);
}

}  // extern "C"

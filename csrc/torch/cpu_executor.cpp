// What a product on the CPU borrows from torch (cpu_executor.h).
#include "torch/cpu_executor.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>
#include <torch/csrc/stable/c/shim.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace tiledmm {
namespace {

// The workspace of a thread's last product, kept for its next one. Freed each time, it would raise what the C library
// has at the end of its heap above what it returns to the system, with the results beside it: then all of them are new
// pages in every step of a training loop.
class Workspace {
 public:
  ~Workspace() { release_kept(); }

  void* allocate(size_t num_bytes) {
    if (is_used_ || num_bytes > kMaxKeptBytes) return allocate_new(num_bytes);
    if (num_bytes > num_bytes_) {
      release_kept();
      memory_ = allocate_new(num_bytes);
      num_bytes_ = memory_ ? num_bytes : 0;
    }
    is_used_ = memory_ != nullptr;
    return memory_;
  }

  void release(void* memory) {
    if (memory == memory_) {
      is_used_ = false;
    } else {
      c10::GetDefaultCPUAllocator()->raw_deallocate(memory);
    }
  }

 private:
  static constexpr size_t kMaxKeptBytes = size_t(32) << 20;

  static void* allocate_new(size_t num_bytes) {
    try {
      return c10::GetDefaultCPUAllocator()->raw_allocate(num_bytes);
    } catch (...) {
      return nullptr;
    }
  }

  void release_kept() {
    if (memory_) c10::GetDefaultCPUAllocator()->raw_deallocate(memory_);
    memory_ = nullptr;
    num_bytes_ = 0;
  }

  void* memory_ = nullptr;
  size_t num_bytes_ = 0;
  bool is_used_ = false;
};

// A child of fork has the thread that forked and, with it, that thread's workspace, which no product uses at that time.
thread_local Workspace workspace;

// Whether this process is a child of fork, or a child of such a child. Of its parent's threads it has but one, while
// OpenMP, where that one had others compute, would wait for them for ever. The handler runs while there is one thread.
bool is_forked = false;
[[maybe_unused]] const int watches_forks = pthread_atfork(nullptr, nullptr, [] { is_forked = true; });

// How a thread computes: the direction of rounding, and whether denormals are taken as zero. Each thread has its own.
#if defined(__x86_64__)
using FloatControl = unsigned;
FloatControl float_control() { return _mm_getcsr() & ~unsigned(_MM_EXCEPT_MASK); }  // without what has happened so far
void set_float_control(FloatControl control) { _mm_setcsr(control); }
#elif defined(__aarch64__)
using FloatControl = uint64_t;
FloatControl float_control() {
  FloatControl control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return control;
}
void set_float_control(FloatControl control) { asm volatile("msr fpcr, %0" : : "r"(control)); }
#else
using FloatControl = int;  // rounding alone: torch cannot flush denormals here either
FloatControl float_control() { return std::fegetround(); }
void set_float_control(FloatControl control) { std::fesetround(control); }
#endif

// This thread computes as another one does while the object lives. To read the register takes a nanosecond, to write
// it ten.
class FloatControlOfCaller {
 public:
  explicit FloatControlOfCaller(FloatControl of_caller) : own_(float_control()), differs_(own_ != of_caller) {
    if (differs_) set_float_control(of_caller);
  }
  ~FloatControlOfCaller() {
    if (differs_) set_float_control(own_);
  }
  FloatControlOfCaller(const FloatControlOfCaller&) = delete;
  FloatControlOfCaller& operator=(const FloatControlOfCaller&) = delete;

 private:
  const FloatControl own_;
  const bool differs_;
};

void parallel_for(void*, int64_t num_tasks, void (*task)(void*, int64_t), void* arg) {
  if (is_forked) {
    for (int64_t idx = 0; idx < num_tasks; ++idx) task(arg, idx);
    return;
  }
  struct Context {
    void (*task)(void*, int64_t);
    void* arg;
    FloatControl control;
  } context{task, arg, float_control()};
  torch_parallel_for(
      0, num_tasks, 1,
      [](int64_t begin, int64_t end, void* opaque) {
        const auto& context = *static_cast<Context*>(opaque);
        const FloatControlOfCaller scope(context.control);
        for (int64_t idx = begin; idx < end; ++idx) context.task(context.arg, idx);
      },
      &context);
}

}  // namespace

Executor cpu_executor() {
  Executor executor{};
  executor.num_threads = is_forked || at::in_parallel_region() ? 1 : at::get_num_threads();
  executor.parallel_for = &parallel_for;
  executor.allocate = [](void*, size_t num_bytes) { return workspace.allocate(num_bytes); };
  executor.release = [](void*, void* memory) { workspace.release(memory); };
  return executor;
}

TorchOnOneThreadInChild::TorchOnOneThreadInChild()
    : num_threads_(is_forked && at::get_num_threads() > 1 ? at::get_num_threads() : 0) {
  if (num_threads_ > 0) at::set_num_threads(1);
}

TorchOnOneThreadInChild::~TorchOnOneThreadInChild() {
  if (num_threads_ > 0) at::set_num_threads(num_threads_);
}

}  // namespace tiledmm

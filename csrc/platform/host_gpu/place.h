// Fibers: functions with stacks of their own that take turns in one thread of the system.
#pragma once

#include <ucontext.h>

namespace tiledmm::host_gpu {

// Where a fiber, or the scheduler, goes on.
struct Place {
  ucontext_t context;
#if defined(__clang__) && !defined(__x86_64__)  // has no __builtin_setjmp
  static void exchange(Place& from, Place& to) { swapcontext(&from.context, &to.context); }
#else
  void* registers[5];
  bool is_reached = false;

  // swapcontext would ask the operating system for the signal mask each time. Not inlined: it saves the registers.
  static __attribute__((noinline)) void exchange(Place& from, Place& to) {
    from.is_reached = true;
    if (__builtin_setjmp(from.registers)) return;
    if (to.is_reached) __builtin_longjmp(to.registers, 1);
    setcontext(&to.context);
  }
#endif
};

}  // namespace tiledmm::host_gpu

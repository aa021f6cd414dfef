// A kernel's plan for one problem, as it travels from the dispatcher to the launcher.
#pragma once

#include <type_traits>

namespace tiledmm {

// What a kernel makes of a problem on a chip: its predicted time, and the tile numbers that its launcher takes. Made
// once per call, by the dispatcher.
struct Plan {
  double cost_us = 0;
  alignas(8) char config[128];

  template <class T>
  T& as() {
    static_assert(sizeof(T) <= sizeof config && std::is_trivially_copyable_v<T>, "a plan is plain data of this size");
    return *reinterpret_cast<T*>(config);
  }
  template <class T>
  const T& as() const {
    return const_cast<Plan*>(this)->as<T>();
  }
};

// Launchers are declared with this: one that is not linked is null.
#define TILEDMM_IF_LINKED __attribute__((weak))

}  // namespace tiledmm

// The mode (docs/whole_programs.md): while it is on, kernels of ours stand in aten's dispatch table in the place of
// torch's, for the whole process. What they do not serve goes to torch's own kernel, and both are counted.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tiledmm::mode {

// How often each of a few things happened, by its name, which is a literal.
class Tally {
 public:
  void count(const char* name) {
    for (Entry& entry : entries_) {
      const char* own = entry.name.load(std::memory_order_acquire);
      if (!own && entry.name.compare_exchange_strong(own, name)) own = name;
      if (own == name) {
        entry.calls.fetch_add(1, std::memory_order_relaxed);
        return;
      }
    }
  }
  void clear() {
    for (Entry& entry : entries_) entry.calls = 0;
  }
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const Entry& entry : entries_) {
      if (entry.calls > 0) visit(entry.name.load(), entry.calls.load());
    }
  }

 private:
  struct Entry {
    std::atomic<const char*> name{nullptr};
    std::atomic<int64_t> calls{0};
  };
  Entry entries_[32];  // more than there are kernels and reasons of one operator
};

// Why torch's kernel computes something.
inline constexpr const char* kOtherDtype = "a dtype other than float32, float64, float16 and bfloat16";
inline constexpr const char* kOtherLayout = "a layout other than strided";
inline constexpr const char* kDoesNotVary = "torch's own does not vary";

struct Override;

// An operator of aten by its name and overload, as in "mm.out", and the kernel that stands for it.
struct Row {
  const char* name;
  torch::CppFunction (*kernel)(Override& own);
  // functions(): the form that writes its last argument, or that makes its result; attention() and decoding(): what
  // computes it; watched(), watched_on_cpu(): why the operator is.
  const char* detail = nullptr;
};
const std::vector<Row>& products();        // mode_products.cpp
const std::vector<Row>& functions();       // mode_functions.cpp: of each element, on the CPU
const std::vector<Row>& reductions();      // mode_reductions.cpp
const std::vector<Row>& running_sums();    // mode_reductions.cpp: on GPUs
const std::vector<Row>& attention();       // mode_attention.cpp
const std::vector<Row>& decoding();        // mode_attention.cpp: on GPUs
const std::vector<Row>& watched();         // mode.cpp: torch's own, which are counted
const std::vector<Row>& watched_on_cpu();  // mode.cpp

// What stands for one operator at one dispatch key.
struct Override {
  const Row& row;
  c10::DispatchKey key;
  std::optional<c10::SafeKernelFunction> original{};  // torch's kernel
  Tally served{}, left{};  // by the kernel that was launched; by the reason why torch's kernel computed it

  // Calls torch's kernel.
  void call(torch::jit::Stack& stack) const {
    original->callBoxed(original->opHandle(), c10::DispatchKeySet(key), &stack);
  }
  // The same with arguments: all of the operator's, also those that it writes.
  template <class... Args>
  at::Tensor call_original(const Args&... args) const {
    torch::jit::Stack stack;
    torch::jit::push(stack, args...);
    call(stack);
    return stack.at(0).toTensor();
  }
};

// A Row's kernel that works on the stack of arguments: a Kernel made of the override.
template <class Kernel>
torch::CppFunction boxed(Override& own) {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(own));
}

// What stands for an operator while the mode is on.
Override& find(c10::DispatchKey key, const char* name);

// The algorithm that products take; where that serves a call not, auto does.
int32_t algorithm();

}  // namespace tiledmm::mode

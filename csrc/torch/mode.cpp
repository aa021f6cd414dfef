// Switching the mode on and off, what torch's kernels are watched for, and the counts.
#include "torch/mode.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <sstream>

#include "torch/shapes.h"

namespace tiledmm::mode {
namespace {

using c10::DispatchKey;

constexpr const char* kVaries = "a row's bits may depend on the batch";

// Counts, and calls torch's kernel.
struct Watch : c10::OperatorKernel {
  explicit Watch(Override& own) : own(own) {}

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    own.left.count(own.row.detail);
    own.call(*stack);
  }

  Override& own;
};

// A Watch of an operator that varies in training alone.
struct WatchTraining : Watch {
  using Watch::Watch;

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const c10::FunctionSchema& schema = op.schema();
    const int place = *schema.argumentIndexWithName("training");
    if (!torch::jit::peek(*stack, size_t(place), schema.arguments().size()).toBool()) return own.call(*stack);
    Watch::operator()(op, keys, stack);
  }
};

// The process's one mode. Its rows outlive it, as calls on other threads may.
struct Mode {
  std::mutex mutex;
  std::atomic<int32_t> algorithm{0};
  std::vector<std::unique_ptr<Override>> overrides;
  std::vector<std::unique_ptr<torch::Library>> libraries;
};
Mode& the_mode() {
  static Mode& mode = *new Mode();  // never destroyed: torch's own libraries may be gone by then
  return mode;
}

struct Group {
  const char* name;
  const std::vector<Row>& (*rows)();
  bool on_cpu, on_gpu;
};
constexpr Group kGroups[] = {
    {"products", products, true, true},     {"functions", functions, true, false},
    {"reductions", reductions, true, true}, {"reductions", running_sums, false, true},
    {"attention", attention, true, true},   {"decoding", decoding, false, true},
    {"watched", watched, true, true},       {"watched", watched_on_cpu, true, false},
};

// torch warns once in a process that an operator is overridden, which is what the user has asked for.
struct Silence : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

Override* find_or_none(DispatchKey key, const char* name) {
  for (const auto& own : the_mode().overrides) {
    if (own->key == key && !std::strcmp(own->row.name, name)) return own.get();
  }
  return nullptr;
}

// Puts our kernels into the dispatch table for one key.
void add(DispatchKey key, const std::vector<std::string>& groups) {
  Mode& mode = the_mode();
  std::vector<Override*> added;
  for (const Group& group : kGroups) {
    const bool is_asked = std::find(groups.begin(), groups.end(), group.name) != groups.end();
    if (!is_asked || !(key == DispatchKey::CPU ? group.on_cpu : group.on_gpu)) continue;
    for (const Row& row : group.rows()) {
      const std::string full = std::string("aten::") + row.name;
      const size_t dot = full.find('.');
      const auto op = c10::Dispatcher::singleton().findOp(
          {full.substr(0, dot), dot == std::string::npos ? "" : full.substr(dot + 1)});
      if (!op || !op->hasComputedKernelForDispatchKey(key)) continue;  // a torch that has it not
      Override* own = find_or_none(key, row.name);
      if (!own) own = mode.overrides.emplace_back(new Override{row, key}).get();
      own->original.emplace(op->getComputedKernelForDispatchKey(key));
      added.push_back(own);
    }
  }
  // An operator made of others has its gradient from theirs. Its kernel stands at the key of gradients, too, where
  // torch would look for a formula otherwise.
  for (const bool is_autograd : {false, true}) {
    const DispatchKey own_key = is_autograd ? c10::getAutogradKeyFromBackend(c10::toBackendComponent(key)) : key;
    auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", own_key, __FILE__, __LINE__);
    for (Override* own : added) {
      const c10::OperatorHandle& op = own->original->opHandle();
      const bool is_composite = op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
                                !op.hasKernelForDispatchKey(DispatchKey::Autograd);
      if (is_composite || !is_autograd) library->impl(own->row.name, own->row.kernel(*own));
    }
    mode.libraries.push_back(std::move(library));
  }
}

void set(std::string_view algorithm, const std::vector<std::string>& devices, const std::vector<std::string>& groups) {
  const int32_t idx = to_algorithm(algorithm);
  Mode& mode = the_mode();
  const std::lock_guard<std::mutex> lock(mode.mutex);
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  mode.libraries.clear();  // takes out what they hold
  mode.algorithm = idx;
  for (const std::string& device : devices) add(device == "cpu" ? DispatchKey::CPU : DispatchKey::CUDA, groups);
}

void clear() {
  for (const auto& own : the_mode().overrides) own->served.clear(), own->left.clear();
}

// Lines of: device, operator, "served" or "left", by what or why, calls; with tabs between.
std::string counts() {
  std::ostringstream text;
  for (const auto& own : the_mode().overrides) {
    const auto write = [&](const char* kind, const Tally& tally) {
      tally.for_each([&](const char* what, int64_t calls) {
        text << (own->key == DispatchKey::CPU ? "cpu" : "cuda") << '\t' << own->row.name << '\t' << kind << '\t' << what
             << '\t' << calls << '\n';
      });
    };
    write("served", own->served);
    write("left", own->left);
  }
  return text.str();
}

}  // namespace

// torch's kernels whose bits may depend on a row's place or on the size of its batch, or which multiply past the mode.
const std::vector<Row>& watched() {
  constexpr const char* kNotCovered = "a product that the mode does not cover";
  static const std::vector<Row> rows = {
      {"_scaled_dot_product_flash_attention", boxed<Watch>, kVaries},
      {"_scaled_dot_product_cudnn_attention", boxed<Watch>, kVaries},
      {"_scaled_dot_product_flash_attention_for_cpu", boxed<Watch>, kVaries},
      {"_flash_attention_forward", boxed<Watch>, kVaries},
      {"_native_multi_head_attention", boxed<Watch>, kVaries},
      {"_transformer_encoder_layer_fwd", boxed<Watch>, kVaries},
      {"convolution", boxed<Watch>, kVaries},
      {"convolution_backward", boxed<Watch>, kVaries},
      {"lstm.input", boxed<Watch>, kVaries},
      {"lstm.data", boxed<Watch>, kVaries},
      {"gru.input", boxed<Watch>, kVaries},
      {"gru.data", boxed<Watch>, kVaries},
      {"rnn_tanh.input", boxed<Watch>, kVaries},
      {"rnn_tanh.data", boxed<Watch>, kVaries},
      {"rnn_relu.input", boxed<Watch>, kVaries},
      {"rnn_relu.data", boxed<Watch>, kVaries},
      {"logcumsumexp", boxed<Watch>, kVaries},
      {"cumprod", boxed<Watch>, kVaries},
      {"prod.dim_int", boxed<Watch>, kVaries},
      {"nansum", boxed<Watch>, kVaries},
      {"linalg_multi_dot", boxed<Watch>, kVaries},
      {"_int_mm", boxed<Watch>, kNotCovered},
      {"_weight_int4pack_mm", boxed<Watch>, kNotCovered},
      {"_weight_int8pack_mm", boxed<Watch>, kNotCovered},
      {"_mixed_dtypes_linear", boxed<Watch>, kNotCovered},
      {"_cdist_forward", boxed<Watch>, kNotCovered},
  };
  return rows;
}

const std::vector<Row>& watched_on_cpu() {
  constexpr const char* kVariesByThreads = "sums over the batch may depend on the number of threads";
  static const std::vector<Row> rows = {
      {"glu", boxed<Watch>, kVaries},
      {"_fft_r2c", boxed<Watch>, kVaries},
      {"_fft_c2r", boxed<Watch>, kVaries},
      {"_fft_c2c", boxed<Watch>, kVaries},
      {"native_group_norm_backward", boxed<Watch>, kVaries},
      {"native_layer_norm_backward", boxed<Watch>, kVariesByThreads},
      {"native_batch_norm", boxed<WatchTraining>, kVariesByThreads},
      {"_native_batch_norm_legit", boxed<WatchTraining>, kVariesByThreads},
      {"_native_batch_norm_legit.no_stats", boxed<WatchTraining>, kVariesByThreads},
  };
  return rows;
}

Override& find(DispatchKey key, const char* name) {
  Override* own = find_or_none(key, name);
  TORCH_INTERNAL_ASSERT(own, "tiledmm: the mode has no ", name);
  return *own;
}

int32_t algorithm() { return the_mode().algorithm.load(std::memory_order_relaxed); }

}  // namespace tiledmm::mode

TORCH_LIBRARY_FRAGMENT(tiledmm, m) {
  m.def("_set_mode(str algorithm, str[] devices, str[] groups) -> ()",
        [](std::string_view algorithm, std::vector<std::string> devices, std::vector<std::string> groups) {
          tiledmm::mode::set(algorithm, devices, groups);
        });
  m.def("_clear_mode_counts() -> ()", [] { tiledmm::mode::clear(); });
  m.def("_mode_counts() -> str", [] { return tiledmm::mode::counts(); });
}

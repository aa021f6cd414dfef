// Eight threads call the C interface at once, for test_threads.py, which compiles everything with the thread sanitizer:
// products of different shapes, each on an executor with threads of its own, names, info and explain. All of it happens
// first at the same time; then one thread does it again, and every bit must be the same.
//
// GPUs, too, are used first by all threads at once. The runtime is one of the test's own, which fails once for each
// device. (The host executor is left out: its fibers are none that the sanitizer knows.)
//
// With the argument `exit` the program ends while threads compute.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "api/kernels_api.h"
#include "platform/element.h"
#include "platform/gpu.h"

namespace tiledmm {

const char* host_gpu::take_error() { return nullptr; }

namespace gpu {
bool query_of_test(int idx, Device& device);
}

}  // namespace tiledmm

#define query_device query_of_test
#include "platform/device.cu"
#undef query_device

using namespace tiledmm;

namespace {

constexpr int kNumThreads = 8, kNumDevices = 4;

[[noreturn]] void fail(const std::string& what) {
  std::printf("WRONG: %s\n", what.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

// --- What the caller lends to a kernel ---

void run_on_threads(void* self, int64_t num_tasks, void (*task)(void*, int64_t), void* arg) {
  std::atomic<int64_t> next{0};
  std::vector<std::thread> threads;
  for (int32_t idx = 0; idx < *static_cast<int32_t*>(self); ++idx) {
    threads.emplace_back([&] {
      for (int64_t task_idx = next++; task_idx < num_tasks; task_idx = next++) task(arg, task_idx);
    });
  }
  for (std::thread& thread : threads) thread.join();
}
void* allocate(void*, size_t num_bytes) { return std::aligned_alloc(64, (num_bytes + 63) / 64 * 64); }
void release(void*, void* memory) { std::free(memory); }

// --- What each thread does, and what came of it ---

// Shapes in which work is shared out in every way: tasks, split k, rows streamed, dot products, few long ones.
constexpr int64_t kShapes[][3] = {{70, 65, 530}, {6, 40, 4200}, {3, 200, 700}, {2, 1, 9000}, {9, 33, 5}, {130, 70, 40}};
constexpr const char* kAlgorithms[] = {"auto", "naive", "block_tiled", "register_tiled"};

struct Results {
  std::vector<std::vector<char>> products;
  std::vector<std::string> texts;
};

std::vector<char> multiply(int64_t m, int64_t n, int64_t k, DType dtype, const char* algorithm, int32_t num_threads) {
  return visit_dtype(dtype, [&](auto* element) {
    using T = std::remove_pointer_t<decltype(element)>;
    std::mt19937 generator(uint32_t(m * n + k));
    std::uniform_real_distribution<float> value(-1, 1);
    std::vector<T> a(size_t(m * k)), b(size_t(k * n));
    for (std::vector<T>* operand : {&a, &b}) {
      for (T& element_of : *operand) element_of = from_acc<T>(Acc<T>(value(generator)));
    }
    std::vector<char> c(size_t(m * n) * sizeof(T), char(0xff));
    GemmProblem problem{};
    problem.m = m, problem.n = n, problem.k = k, problem.set_dtypes(dtype);
    problem.a = a.data(), problem.stride_am = k, problem.stride_ak = 1;
    problem.b = b.data(), problem.stride_bk = k % 2 ? n : 1, problem.stride_bn = k % 2 ? 1 : k;
    problem.c = c.data(), problem.stride_cm = n, problem.stride_cn = 1;
    const Executor executor{&num_threads, num_threads, 0, 0, 0, nullptr, run_on_threads, allocate, release};
    const int32_t idx = tiledmm_find_algorithm(algorithm, std::strlen(algorithm));
    char reason[256] = "";
    if (tiledmm_gemm_cpu(&problem, idx, &executor, reason, sizeof reason) != Status::ok) fail(reason);
    return c;
  });
}

std::string explain(int64_t m, int64_t n, int64_t k, const char* device) {
  GemmProblem problem{};
  problem.m = m, problem.n = n, problem.k = k;
  problem.stride_am = k, problem.stride_ak = 1, problem.stride_bk = n, problem.stride_bn = 1;
  problem.stride_cm = n, problem.stride_cn = 1;
  std::string text(1 << 16, '\0');
  text.resize(tiledmm_explain(&problem, device, 2, nullptr, text.data(), text.size()));
  return text;
}

std::string info() {
  std::string text(1 << 16, '\0');
  text.resize(tiledmm_info(text.data(), text.size()));
  return text;
}

Results work(int thread) {
  Results results;
  for (int i = 0; i < 2 * int(std::size(kShapes)); ++i) {
    const auto& [m, n, k] = kShapes[(i + thread) % int(std::size(kShapes))];
    const DType dtype = DType((i + thread) % kNumDTypes);
    const char* algorithm = kAlgorithms[(i * 3 + thread) % int(std::size(kAlgorithms))];
    results.products.push_back(multiply(m + thread, n, k, dtype, algorithm, 1 + (i + thread) % 2));
  }
  results.texts = {info(), explain(64 + thread, 128, 256, "cpu"), explain(64, 128 + thread, 256, "cuda:sm_90")};
  return results;
}

// --- A runtime of GPUs ---

std::atomic<int> num_queries[kNumDevices];

void use_devices() {
  for (int32_t idx = 0; idx < kNumDevices; ++idx) {
    gpu::Device device{};
    int num_failures = 0;
    while (!gpu::use_device(idx, device)) {
      if (++num_failures > kNumThreads) fail("a device stays unknown");
    }
    if (device.arch != 80 + idx || device.num_cus != 100 + idx || device.warp_size != 32) {
      fail("a device is not what its runtime says");
    }
  }
}

}  // namespace

bool gpu::query_of_test(int idx, Device& device) {
  std::this_thread::sleep_for(std::chrono::milliseconds(1));  // all threads come in the meantime
  device = {80 + idx, 100 + idx, 32, 64 << 10};
  return ++num_queries[idx] > 1;
}

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "exit") == 0) {
    static std::atomic<int> num_done{0};
    for (int thread = 0; thread < 2; ++thread) {
      std::thread([thread] {
        for (int call = thread;; ++call, ++num_done) multiply(9, 33, 70, DType::f32, kAlgorithms[call % 4], 1);
      }).detach();
    }
    while (num_done < 16) std::this_thread::yield();
    std::atexit([] { std::this_thread::sleep_for(std::chrono::milliseconds(300)); });  // before destructors end
    return 0;
  }
  Results results[kNumThreads];
  std::atomic<int> num_waiting{kNumThreads};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kNumThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (--num_waiting; num_waiting > 0;) std::this_thread::yield();  // all begin at once
      use_devices();
      results[thread] = work(thread);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int thread = 0; thread < kNumThreads; ++thread) {
    const Results expected = work(thread);
    if (results[thread].products != expected.products) fail("other bits than of one thread");
    if (results[thread].texts != expected.texts) fail("other texts than of one thread");
  }
  const int before = num_queries[0];
  use_devices();
  if (num_queries[0] != before) fail("a known device is asked for again");
  std::printf("right\n");
  return 0;
}

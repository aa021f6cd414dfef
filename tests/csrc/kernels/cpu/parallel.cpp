// Tasks that are next to nothing, shared out among workers by kernels/cpu/shared/parallel.h, for test_parallel.py: each
// has to run just once. Two threads work at the same time, and in the same shares: there are more workers than shares,
// so that two workers begin with each of them, and a thread takes one of these two.
#include "kernels/cpu/shared/parallel.h"

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

using namespace tiledmm;

namespace {

constexpr int64_t kNumShares = 32, kNumWorkers = 2 * kNumShares;

// The workers in two halves, of which each thread has one. Both threads begin at the same time.
void run_halves(void*, int64_t num_workers, void (*task)(void*, int64_t), void* arg) {
  std::atomic<int> num_waiting{2};
  const auto run = [&](int64_t first, int64_t last) {
    for (--num_waiting; num_waiting > 0;) std::this_thread::yield();
    for (int64_t worker = first; worker < last; ++worker) task(arg, worker);
  };
  std::thread other(run, num_workers / 2, num_workers);
  run(0, num_workers / 2);
  other.join();
}

void run_in_turn(void*, int64_t num_workers, void (*task)(void*, int64_t), void* arg) {
  for (int64_t worker = num_workers; worker-- > 0;) task(arg, worker);
}

// How many of the tasks did not run just once, or by a worker that is none.
int64_t count_wrong(const Executor& executor, int64_t num_workers, int64_t num_tasks) {
  std::vector<std::atomic<int>> num_runs(static_cast<size_t>(num_tasks));
  std::atomic<int64_t> num_wrong{0};
  for_each_task(executor, num_workers, num_tasks, [&](int64_t worker, int64_t task) {
    if (worker < 0 || worker >= num_workers || task < 0 || task >= num_tasks) {
      ++num_wrong;
    } else {
      num_runs[size_t(task)].fetch_add(1, std::memory_order_relaxed);
    }
  });
  for (const std::atomic<int>& runs : num_runs) num_wrong += runs != 1;
  return num_wrong;
}

}  // namespace

int main() {
  Executor executor{};
  executor.parallel_for = run_in_turn;
  int64_t num_wrong = 0;
  // Fewer tasks than workers, as many, and more; workers on both sides of the number of shares.
  for (const int64_t num_workers : {1, 2, 3, 31, 32, 33, 64, 100}) {
    for (int64_t num_tasks = 0; num_tasks < 140; ++num_tasks) {
      num_wrong += count_wrong(executor, num_workers, num_tasks);
    }
  }
  std::printf("in turn: %ld wrong\n", long(num_wrong));
  executor.parallel_for = run_halves;
  int64_t num_wrong_at_once = 0;
  for (int round = 0; round < 40; ++round) num_wrong_at_once += count_wrong(executor, kNumWorkers, 100 * 1000);
  for (int round = 0; round < 400; ++round) num_wrong_at_once += count_wrong(executor, kNumWorkers, 1000);
  std::printf("at once: %ld wrong\n", long(num_wrong_at_once));
  return num_wrong + num_wrong_at_once > 0;
}

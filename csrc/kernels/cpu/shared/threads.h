// How many threads a product is worth, and the sizes of AMX's tiles.
#pragma once

#include <cstdint>

#include "core/math.h"

namespace tiledmm {

// Either one thread works or all: for any number of them all are woken, which takes longer the more there are. What the
// others spare of the work has to repay that: half a unit of work, and `wake` for each thread.
inline int64_t threads_for(double work, int64_t num_threads, double wake) {
  const double spared = work * (1 - 1 / double(num_threads));
  return spared < 0.5 + wake * double(num_threads) ? 1 : num_threads;
}

inline constexpr double kMinTask = 0.5;  // of a unit of work: what is worth a task of its own
inline constexpr int64_t kTurns = 8;     // tasks of each thread, at most

// Tasks alike that share out such work of many items: each thread has one at least, and none is too short.
inline int64_t tasks_for(double work, int64_t threads) {
  return threads == 1 ? 1 : max_of(threads, min_of(kTurns * threads, int64_t(work / kMinTask)));
}

// The time of so many tasks alike, in tasks of a mean thread; `wait` of them at the end for the slowest one. Where
// cores are shared with others, it takes two to four times as long as the fastest (docs/worklog/cpu.md).
inline double turns_of(double num_tasks, int64_t num_threads, double wait) {
  const double turns = num_tasks / double(num_threads);
  return wait + (turns > 1 ? turns : 1);
}

// To wake a thread that uses the tile units, in work of theirs; the wait of such threads.
inline constexpr double kWakeOfTiles = 1.0 / 16;
inline double wait_of_tiles(int64_t num_threads) { return 0.9 * (1 - 1 / double(num_threads)); }

// How many threads add up the sums of chunks, where k is split. They come from other cores' caches, and to wake threads
// a second time takes 4 us.
inline int64_t threads_for_sums(int64_t num_sums, int64_t num_threads) {
  constexpr int64_t kSumsOfThread = 2 << 10;
  const int64_t threads = num_sums / kSumsOfThread;
  return threads < 4 ? 1 : min_of(threads, num_threads);
}

// What plans know of AMX's tiles; the instructions themselves: tile.h.
inline constexpr int64_t kAmxStep = 32;   // elements of k that a tile instruction takes
inline constexpr int64_t kAmxStrip = 32;  // rows and columns of C that the tiles hold

}  // namespace tiledmm

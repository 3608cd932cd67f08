// Parts of a kernel's work on the threads of a pool.

#ifndef MODELS_CPU_KERNELS_PARALLEL_H_
#define MODELS_CPU_KERNELS_PARALLEL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

// Parts for each thread: threads that begin late, or lose their core, leave parts to the others.
constexpr int64_t PARTS_PER_THREAD = 4;

// The number of parts of a work with so many pieces and bytes read or computed. A part below `min_bytes` takes less
// time than the start of another thread.
template <typename Pool>
int64_t parts_of(Pool& pool, int64_t pieces, int64_t bytes, int64_t min_bytes) {
  const int64_t most = std::min(pool.num_threads() * PARTS_PER_THREAD, pieces);
  return std::max<int64_t>(1, std::min(most, bytes / min_bytes));
}

// Call `work(part)` for parts 0 to before `parts` on the calling thread and a pool's, and return when all have ended.
// The caller computes every part that no thread has begun, so it never waits for a free thread: it may be one of the
// pool's. A task that begins later finds no part left, and touches nothing of the call.
//
// Pool: has `num_threads()` and `Schedule(function)`.
template <typename Pool, typename Work>
void in_parallel(Pool& pool, int64_t parts, const Work& work) {
  const int64_t threads = pool.num_threads();
  if (parts <= 1 || threads <= 1) {
    for (int64_t part = 0; part < parts; ++part) work(part);
    return;
  }
  struct Shared {
    std::atomic<int64_t> begun{0}, ended{0};
  };
  const auto shared = std::make_shared<Shared>();
  const Work* const pointer = &work;
  const auto run = [shared, pointer, parts] {
    for (int64_t part; (part = shared->begun.fetch_add(1, std::memory_order_relaxed)) < parts;) {
      (*pointer)(part);
      shared->ended.fetch_add(1, std::memory_order_release);
    }
  };
  for (int64_t task = 1; task < (threads < parts ? threads : parts); ++task) {
    auto copy = run;  // a pool moves its argument
    pool.Schedule(std::move(copy));
  }
  run();
  // The last parts take microseconds; a thread that is not running gets the core.
  for (int turn = 0; shared->ended.load(std::memory_order_acquire) < parts; ++turn)
    if (turn > 200) std::this_thread::yield();
}

#endif  // MODELS_CPU_KERNELS_PARALLEL_H_

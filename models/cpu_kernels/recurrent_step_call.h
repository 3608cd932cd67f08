// One step of a recurrence on the threads of a pool.

#ifndef MODELS_CPU_KERNELS_RECURRENT_STEP_CALL_H_
#define MODELS_CPU_KERNELS_RECURRENT_STEP_CALL_H_

#include <algorithm>

#include "parallel.h"
#include "recurrent_steps.h"

namespace cpu_kernels {

// Rows of a state that a thread takes at least; a multiple of the rows that each form advances together.
constexpr int64_t TILE_ROWS = 16;
// Bytes of states below which another thread takes longer to begin than it saves.
constexpr int64_t MIN_TILES_BYTES = 64 * 1024;
// Parts for each thread: threads that begin late, or have idle lanes, take from the others.
constexpr int64_t STEP_PARTS_PER_THREAD = 4;

template <typename Pool>
void recurrent_step(Pool& pool, Advance advance, const RecurrentStep& step) {
  const int64_t tiles = (step.values + TILE_ROWS - 1) / TILE_ROWS;
  const int64_t all = step.lanes * step.heads * tiles;
  const int64_t bytes = step.lanes * step.heads * step.values * step.keys * static_cast<int64_t>(sizeof(float));
  const int64_t most = std::min(pool.num_threads() * STEP_PARTS_PER_THREAD, all);
  const int64_t parts = std::max<int64_t>(1, std::min(most, bytes * step.tokens / MIN_TILES_BYTES));
  in_parallel(pool, parts, [&](int64_t part) {
    const int64_t end = (part + 1) * all / parts;
    for (int64_t at = part * all / parts; at < end;) {
      const int64_t of_lane = at / tiles, tile = at % tiles, next = std::min(tile + end - at, tiles);
      advance(step, of_lane / step.heads, of_lane % step.heads, tile * TILE_ROWS,
              std::min(next * TILE_ROWS, step.values));
      at += next - tile;
    }
  });
}

}  // namespace cpu_kernels

#endif  // MODELS_CPU_KERNELS_RECURRENT_STEP_CALL_H_

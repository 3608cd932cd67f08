// One step of a recurrence on the threads of a pool.

#ifndef MODELS_CPU_KERNELS_RECURRENT_STEP_CALL_H_
#define MODELS_CPU_KERNELS_RECURRENT_STEP_CALL_H_

#include <algorithm>

#include "recurrent_steps.h"
#include "shared/parallel.h"

namespace cpu_kernels {

// Least rows of a state per thread; a multiple of the rows that each form advances together.
constexpr int64_t TILE_ROWS = 16;
// Bytes of states for another thread (`parts_of`).
constexpr int64_t MIN_TILES_BYTES = 64 * 1024;

template <typename Pool>
void recurrent_step(Pool& pool, Advance advance, const RecurrentStep& step) {
  const int64_t tiles = (step.values + TILE_ROWS - 1) / TILE_ROWS;
  const int64_t all = step.lanes * step.heads * tiles;
  const int64_t bytes = step.lanes * step.heads * step.values * step.keys * static_cast<int64_t>(sizeof(float));
  const int64_t parts = parts_of(pool, all, bytes * step.tokens, MIN_TILES_BYTES);
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

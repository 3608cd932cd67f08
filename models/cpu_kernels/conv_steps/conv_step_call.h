// One step of a short convolution on the threads of a pool.

#ifndef MODELS_CPU_KERNELS_CONV_STEP_CALL_H_
#define MODELS_CPU_KERNELS_CONV_STEP_CALL_H_

#include <algorithm>

#include "conv_steps.h"
#include "shared/parallel.h"

namespace cpu_kernels {

// Lanes that share the transposed taps of a block.
constexpr int64_t GROUP_LANES = 8;
// Bytes of inputs, windows and outputs for another thread (`parts_of`).
constexpr int64_t MIN_CONV_BYTES = 64 * 1024;

template <typename Pool>
void conv_step(Pool& pool, Convolve convolve, const ConvStep& step) {
  const int64_t groups = (step.lanes + GROUP_LANES - 1) / GROUP_LANES;
  const int64_t all = groups * ((step.channels + BLOCK_CHANNELS - 1) / BLOCK_CHANNELS);
  const int64_t rows = step.lanes * 2 * (step.tokens + step.kernel - 1);
  const int64_t bytes = rows * step.channels * static_cast<int64_t>(sizeof(float));
  const int64_t parts = parts_of(pool, all, bytes, MIN_CONV_BYTES);
  in_parallel(pool, parts, [&](int64_t part) {
    for (int64_t at = part * all / parts; at < (part + 1) * all / parts; ++at) {
      const int64_t lane = at % groups * GROUP_LANES, channel = at / groups * BLOCK_CHANNELS;
      convolve(step, lane, std::min(lane + GROUP_LANES, step.lanes), channel,
               std::min(channel + BLOCK_CHANNELS, step.channels));
    }
  });
}

}  // namespace cpu_kernels

#endif  // MODELS_CPU_KERNELS_CONV_STEP_CALL_H_

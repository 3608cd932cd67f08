// Totals of vectors of four partial sums, in one order.

#ifndef MODELS_CPU_KERNELS_NEON_TOTALS_H_
#define MODELS_CPU_KERNELS_NEON_TOTALS_H_

#include <arm_neon.h>

namespace {

template <int OUTPUTS>
inline void store_all_totals(const float32x4_t* sums, float* y) {
  for (int out = 0; out < OUTPUTS; ++out) {
    const float32x4_t two = vpaddq_f32(sums[out], sums[out]);
    y[out] = vgetq_lane_f32(vpaddq_f32(two, two), 0);
  }
}

}  // namespace

#endif  // MODELS_CPU_KERNELS_NEON_TOTALS_H_

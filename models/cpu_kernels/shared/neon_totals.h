// Vectors of four partial sums: products added to them, and their totals in one order.

#ifndef MODELS_CPU_KERNELS_NEON_TOTALS_H_
#define MODELS_CPU_KERNELS_NEON_TOTALS_H_

#include <arm_neon.h>

namespace {

// vfmaq_f32, beside which GCC 12 stores all sums in every turn of the loop.
inline float32x4_t fused(float32x4_t sums, float32x4_t one, float32x4_t other) {
  asm("fmla %0.4s, %1.4s, %2.4s" : "+w"(sums) : "w"(one), "w"(other));
  return sums;
}

template <int OUTPUTS>
inline void store_all_totals(const float32x4_t* sums, float* y) {
  for (int out = 0; out < OUTPUTS; ++out) {
    const float32x4_t two = vpaddq_f32(sums[out], sums[out]);
    y[out] = vgetq_lane_f32(vpaddq_f32(two, two), 0);
  }
}

}  // namespace

#endif  // MODELS_CPU_KERNELS_NEON_TOTALS_H_
